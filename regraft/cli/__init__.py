"""The command line: a command parses, calls one function, renders its result (``docs/commands.md``)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from importlib import import_module
from inspect import cleandoc
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from regraft import __version__
from regraft.cli.output import echo, fail, final_status
from regraft.errors import INTERRUPTED, REFUSED, Interrupted, WrongUsage
from regraft.language import OPTION, available_languages, tr
from regraft.processes import interrupts, streams

# What ``regraft --help`` lists: every command in its group, with one line; no command is loaded for that.


#: The groups in their order, and what each of their commands does, in one line of a terminal of 80 columns.
COMMAND_GROUPS = {
    tr("Move"): {
        "migrate": tr("Migrate v1 data to a v2 library, vectors byte for byte."),
        "import": tr("Write a library that a Parquet file holds."),
        "export": tr("Write texts and vectors to a Parquet file."),
        "pack": tr("Write bases to one zip file, for another machine."),
        "install": tr("Put bases into a v2 profile."),
        "fleet": tr("Run one command over many libraries."),
    },
    tr("Look"): {
        "inspect": tr("Tell what a path is and what is in it."),
        "check": tr("Audit a store: findings, and what mends each."),
        "search": tr("Search a base as the application does."),
        "compare": tr("Ask v1's vectors and a v2 index the same."),
        "history": tr("List what regraft did, and what can be taken back."),
        "explain": tr("Explain a finding, a code or an error."),
    },
    tr("Repair"): {
        "fix": tr("Do all that check offers, in the right order."),
        "repair": tr("Mend what check finds, where other data prove what is right."),
        "gc": tr("Remove what nothing reaches: vectors, texts, files."),
        "reconcile": tr("Make indexes and vectors follow what they are derived from."),
        "upgrade": tr("Bring older files to the current layout, every vector kept."),
        "rescue": tr("Bring back what the application's own upgrade left behind."),
        "undo": tr("Take back what a run did."),
    },
    tr("Embed"): {
        "backfill": tr("Embed what has no vector yet, and nothing else."),
        "restore": tr("Make a new base with another model, of the same texts."),
        "embedders": tr("List what makes vectors, and for which bases; test it."),
    },
    tr("codex-mem and AngelMemory"): {
        "rebuild": tr("codex-mem: make the vectors of all notes anew."),
        "clear-failed": tr("codex-mem: have notes tried again that were refused."),
        "recall": tr("AngelMemory: read a note by its short id."),
    },
}
OTHER_GROUP = tr("Other")
SUMMARIES = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}


def group_commands(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the groups with those of their commands that there are; a command of no group is in the last one."""
    there = list(names)
    groups = {title: [name for name in group if name in there] for title, group in COMMAND_GROUPS.items()}
    groups[OTHER_GROUP] = [name for name in there if name not in SUMMARIES]
    return {title: members for title, members in groups.items() if members}


# The text of a command's help, paragraph by paragraph in the language of this process; examples stay as they are.


#: Begins a paragraph whose lines stay as they are.
_AS_IT_IS = "\b"


def help_paragraphs(text: str) -> list[str]:
    """Return what of a help is translated, each paragraph on one line."""
    return [_on_one_line(part) for part in _parts(text) if not part.startswith(_AS_IT_IS)]


def translate_help(text: str) -> str:
    """Return a help in the language of this process."""
    return "\n\n".join(_translated(part) for part in _parts(text))


def _translated(part: str) -> str:
    if part.startswith(_AS_IT_IS):
        return part.replace("Example:", tr("Example:"), 1)
    return tr(_on_one_line(part))


def _parts(text: str) -> list[str]:
    return cleandoc(text).split("\n\n")


def _on_one_line(part: str) -> str:
    return " ".join(part.split())


#: The commands, each with the module that has it.
_MODULES = {
    "inspect": "inspect",
    "check": "check",
    "explain": "explain",
    "migrate": "migrate",
    "search": "search",
    "compare": "compare",
    "recall": "search",
    "export": "export",
    "import": "migrate",
    "fix": "maintenance",
    "gc": "maintenance",
    "repair": "maintenance",
    "reconcile": "embedding",
    "clear-failed": "maintenance",
    "backfill": "embedding",
    "rebuild": "embedding",
    "restore": "embedding",
    "embedders": "embedding",
    "fleet": "fleet",
    "upgrade": "maintenance",
    "rescue": "maintenance",
    "install": "maintenance",
    "pack": "export",
    "history": "maintenance",
    "undo": "maintenance",
}


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands by their names; the module of one is imported when it is asked for, and not before."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        if name not in self._loaded:
            module = import_module(f"{__name__}.{_MODULES[name]}")
            command = getattr(module, "import_" if name == "import" else name.replace("-", "_"))
            command.help = translate_help(command.help or "")
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


class CommandGroup(click.Group):
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
            fail_interrupted(arguments)
        except click.ClickException as error:
            if not arguments:
                # Loading what looks at data takes a while, which no other command line has to wait for.
                from regraft.cli.inspect import greet  # noqa: PLC0415

                if greet():
                    sys.exit(0)
                echo(self.get_help(click.Context(self, info_name="regraft")) + "\n", as_it_is=True)
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
        for title, names in group_commands(self.list_commands(context)).items():
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


@click.group(cls=CommandGroup, commands=LazyCommands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    OPTION,
    type=click.Choice(available_languages()),
    expose_value=False,
    help=tr("The language of messages.  [default: the locale's]"),
)
@click.version_option(__version__, "-V", "--version", prog_name="regraft")
def cli() -> None:
    """Carry a local knowledge base to a new layout with its vectors alive.

    Vectors move byte for byte; nothing is embedded but by backfill and restore, and only what has no vector. Sources
    are only read; what is written is written whole or not at all.
    """


cli.help = translate_help(cli.help or "")


def fail_interrupted(arguments: Sequence[str]) -> NoReturn:
    """Say that a command line was stopped before it had begun anything, and end."""
    fail(Interrupted(finished=0), "", as_json="--json" in arguments, verbose=0)


def main(*, is_interrupted: bool = False) -> None:
    """Run the command line; ``is_interrupted``: it was stopped while this was loaded."""
    streams.protect_streams()
    interrupts.install_handlers()
    status: object = INTERRUPTED
    try:
        if is_interrupted:
            fail_interrupted(sys.argv[1:])
        cli(prog_name="regraft")
    except KeyboardInterrupt:
        pass
    except SystemExit as end:
        status = end.code
    finally:
        interrupts.ignore_stops()
    status = final_status(status if isinstance(status, int) else 0)
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
