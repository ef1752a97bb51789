"""The command line: a command parses, calls one function, renders its result (``docs/commands.md``)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from regraft import __version__, streams
from regraft.cli.help_text import translated
from regraft.cli.output import fail, finished, say
from regraft.cli.overview import SUMMARIES, grouped
from regraft.errors import INTERRUPTED, REFUSED, Interrupted, WrongUsage
from regraft.language import OPTION, languages, tr
from regraft.ledger import interrupts

#: The commands, each with the module that has it.
_MODULES = {
    "inspect": "inspect",
    "check": "check",
    "explain": "explain",
    "migrate": "migrate",
    "search": "search",
    "compare": "compare",
    "recall": "recall",
    "export": "export",
    "import": "import_",
    "fix": "fix",
    "gc": "gc",
    "repair": "repair",
    "reconcile": "reconcile",
    "clear-failed": "clear_failed",
    "backfill": "backfill",
    "rebuild": "rebuild",
    "restore": "restore",
    "embedders": "embedders",
    "fleet": "fleet",
    "upgrade": "upgrade",
    "rescue": "rescue",
    "install": "install",
    "pack": "pack",
    "history": "history",
    "undo": "history",
}


class OnDemand(MutableMapping[str, click.Command]):
    """The commands by their names; the module of one is imported when it is asked for, and not before."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        if name not in self._loaded:
            module = import_module(f"{__name__}.{_MODULES[name]}")
            command = getattr(module, "import_" if name == "import" else name.replace("-", "_"))
            command.help = translated(command.help or "")
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add a command."""
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        """Forget a command that was added."""
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Return the names."""
        return iter({**_MODULES, **self._loaded})

    def __len__(self) -> int:
        """Return how many commands there are."""
        return len({**_MODULES, **self._loaded})


class Commands(click.Group):
    """The commands, with wrong usage said like every other error: one line, and one document with --json."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run a command line."""
        arguments = sys.argv[1:] if args is None else list(args)
        # Habits from other programs: "help", "help COMMAND" and "version" without dashes.
        if arguments[:1] == ["help"]:
            arguments = [*arguments[1:], "--help"]
        elif arguments[:1] == ["version"]:
            arguments = ["--version", *arguments[1:]]
        settings["standalone_mode"] = False
        try:
            status = super().main(arguments, *more, **settings)
        except click.Abort:
            interrupted(arguments)
        except click.ClickException as error:
            if not arguments:
                # Loading what looks at data takes a while, which no other command line has to wait for.
                from regraft.cli.places import greet  # noqa: PLC0415

                if greet():
                    sys.exit(0)
                say(self.get_help(click.Context(self, info_name="regraft")) + "\n", as_it_is=True)
                sys.exit(REFUSED)
            message = " ".join(error.format_message().split())
            context = getattr(error, "ctx", None)
            name = context.info_name if context is not None and context.parent is not None else ""
            hint = tr("see regraft {name} --help", name=name) if name else tr("see regraft --help")
            fail(
                WrongUsage(problem=message.rstrip("."), hint=hint), name or "", as_json="--json" in arguments, verbose=0
            )
        sys.exit(status if isinstance(status, int) else 0)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups."""
        for title, names in grouped(self.list_commands(context)).items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands and options that a word can become."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._summary(name)) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, name: str) -> str:
        return SUMMARIES.get(name) or self.commands[name].get_short_help_str()

    def invoke(self, context: click.Context) -> Any:
        """Load a command and run it; of a stop meanwhile click would say something of its own."""
        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:
            raise click.Abort from error


@click.group(cls=Commands, commands=OnDemand(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    OPTION,
    type=click.Choice(languages()),
    expose_value=False,
    help=tr("The language of messages.  [default: the locale's]"),
)
@click.version_option(__version__, "-V", "--version", prog_name="regraft")
def cli() -> None:
    """Carry a local knowledge base to a new layout with its vectors alive.

    Vectors move byte for byte; nothing is embedded but by backfill and restore, and only what has no vector. Sources
    are only read; what is written is written whole or not at all.
    """


cli.help = translated(cli.help or "")


def interrupted(arguments: Sequence[str]) -> NoReturn:
    """Say that a command line was stopped before it had begun anything, and end."""
    fail(Interrupted(finished=0), "", as_json="--json" in arguments, verbose=0)


def main(*, is_interrupted: bool = False) -> None:
    """Run the command line; ``is_interrupted``: it was stopped while this was loaded."""
    streams.guard()
    interrupts.install()
    status: object = INTERRUPTED
    try:
        if is_interrupted:
            interrupted(sys.argv[1:])
        cli(prog_name="regraft")
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        status = end.code
    finally:
        interrupts.over()
    status = finished(status if isinstance(status, int) else 0)
    if status == INTERRUPTED:
        _end_interrupted()
    sys.exit(status)


def _end_interrupted() -> NoReturn:
    """End with the status of an interrupted run, by which all that was begun is cleaned up.

    Where a stop came while Python ran code out of a text, as data classes are made, it would kill itself by a signal.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(INTERRUPTED)
