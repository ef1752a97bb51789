"""``regraft inspect``: what a path is and what is in it."""

from __future__ import annotations

from pathlib import Path

import click

from checks import inspect as checks_inspect
from regraft import api
from regraft.cli.options import PATH, now_option, output_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.cli.places import tell_installed
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.report import progress
from regraft.report.document import encoded


@click.command()
@click.argument("path", type=PATH, required=False)
@click.option(
    "--items", is_flag=True, help=tr("List every item of every base; of AngelMemory, every record and vector.")
)
@now_option
@output_options
@reports_errors
def inspect(
    path: Path | None, items: bool, now: int | None, as_json: bool, quiet: bool, verbose: int, kind: str | None
) -> None:
    """Tell what PATH is and what is in it. Nothing is written.

    PATH may be a v1 backup (zip or folder), a v1 profile folder, an export folder, a knowledge JSON file, a v1 vector
    file, what a preview build wrote, a library that regraft wrote, one base folder, an index.sqlite, a database of
    codex-mem, or a data folder of AngelMemory. Without PATH: what the application has on this computer, backups beside
    it, and the next command for each.

    \b
    Example:
      regraft inspect ~/.config/CherryStudio
    """
    if path is None:
        if kind is not None or items:
            raise WrongUsage(problem=tr("--kind and --items are about a path"), hint=tr("give PATH"))
        if now is not None:
            raise WrongUsage(problem=tr("--now is about a path"), hint=tr("give PATH"))
        tell_installed(as_json=as_json, quiet=quiet)
        return
    report = api.inspect(path, kind=kind, items=items, now_ms=now, progress=progress.for_person(quiet=quiet or as_json))
    if as_json:
        echo_json(encoded(report))
    else:
        say(checks_inspect.as_text(report, verbose=verbose > 0))
