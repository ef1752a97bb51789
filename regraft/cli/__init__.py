"""The command line: a command parses, calls one function, renders its result (``docs/commands.md``)."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

import click

from regraft import __version__
from regraft.cli.check import check
from regraft.cli.compare import compare
from regraft.cli.export import export
from regraft.cli.gc import gc
from regraft.cli.history import history, undo
from regraft.cli.import_ import import_
from regraft.cli.inspect import inspect
from regraft.cli.install import install
from regraft.cli.migrate import migrate
from regraft.cli.output import fail
from regraft.cli.reconcile import reconcile
from regraft.cli.repair import repair
from regraft.cli.rescue import rescue
from regraft.cli.search import search
from regraft.cli.upgrade import upgrade
from regraft.errors import INTERRUPTED, REFUSED, WrongUsage


class Commands(click.Group):
    """The commands, with wrong usage said like every other error: one line, and one document with --json."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run a command line."""
        arguments = sys.argv[1:] if args is None else list(args)
        settings["standalone_mode"] = False
        try:
            status = super().main(arguments, *more, **settings)
        except click.ClickException as error:
            if not arguments:
                click.echo(self.get_help(click.Context(self, info_name="regraft")))
                sys.exit(REFUSED)
            said = " ".join(error.format_message().split())
            context = getattr(error, "ctx", None)
            name = context.info_name if context is not None and context.parent is not None else ""
            hint = f"see regraft {name} --help" if name else "see regraft --help"
            fail(WrongUsage(problem=said.rstrip("."), hint=hint), name or "", as_json="--json" in arguments, verbose=0)
        sys.exit(status if isinstance(status, int) else 0)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="regraft")
def cli() -> None:
    """Carry a local knowledge base to a new layout with its vectors alive.

    Vectors move byte for byte and nothing is embedded again. Sources are only read; what is written is written whole
    or not at all.
    """


for command in (
    inspect,
    check,
    migrate,
    search,
    compare,
    export,
    import_,
    gc,
    upgrade,
    history,
    undo,
    rescue,
    install,
    repair,
    reconcile,
):
    cli.add_command(command)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal's coding lacks must not end a run.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        cli(prog_name="regraft")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
