"""``regraft ui``: the page in the browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from regraft.cli.options import PATH, Output, output_options
from regraft.cli.output import echo, echo_json, report_errors
from regraft.errors import SourceNotFound, WrongUsage, import_optional
from regraft.language import ENGLISH, VARIABLE, current_language, tr, use_language
from regraft.processes import interrupts
from regraft.report.document import Run
from regraft.text import printable_lines


@click.command()
@click.argument("path", type=PATH, required=False)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help=tr("The port of the address.  [default: a free one]"),
)
@click.option("--no-browser", is_flag=True, help=tr("Only print the address; open no browser."))
@click.option(
    "--drop-limit",
    type=click.IntRange(1, 1_000_000),
    default=4_000,
    show_default=True,
    metavar="MB",
    help=tr("The largest file that may be dropped on the page."),
)
@report_errors
@output_options(follows_links=False)
def ui(path: Path | None, port: int, no_browser: bool, drop_limit: int, output: Output) -> None:
    """Open a page in the browser, for looking at bases, upgrading, checking, repairing and undoing.

    With PATH, the page first shows this store. Only this user on this computer can reach the page. The server ends with
    the Quit button, with Ctrl-C, or after 30 idle minutes; a running job continues if the page is closed.

    \b
    Example:
      regraft ui
    """
    if path is not None and not path.exists():
        raise SourceNotFound(path=path)
    language = current_language()
    # Pages are translated for each reader; what the server and its jobs say is English until then.
    os.environ[VARIABLE] = ENGLISH
    for module in ("starlette", "uvicorn"):
        import_optional(module, tr("pages in the browser"), "ui")
    from regraft.page import journeys, server  # noqa: PLC0415 - only this command needs it, and it is an extra

    def announce(address: str, folder: Path) -> None:
        """Open the first address in the browser, or print it; ``folder`` is the run's own folder."""
        with use_language(language):
            if output.as_json:
                echo_json({**Run(command="ui").document(), "address": address})
                return
            opened = not no_browser and server.open_browser(address, folder)
            lines = (
                [tr("The page is open in your browser.")]
                if opened
                else [tr("Open this address in your browser; it works once:")]
            )
            lines.append(f"  {address}")
            if not output.quiet:
                lines.append(tr("To end it: the Quit button of the page, or Ctrl-C."))
            echo(printable_lines(lines))

    try:
        journeys.serve(
            None if path is None else str(path.absolute()), port=port, drop_limit=drop_limit, announce=announce
        )
    except OSError as error:
        problem = tr("port {port} cannot be used: {reason}", port=port, reason=error.strerror or error)
        raise WrongUsage(problem=problem, hint=tr("give another one with --port, or none")) from error
    interrupts.ignore_stops()
    sys.exit(0)
