"""The command line: each command parses its options, calls a function of :mod:`regraft.api`, and prints the report.

Commands are imported when they are run; ``--help`` lists them without importing any (``docs/commands.md``).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from regraft import __version__
from regraft.cli.output import echo, fail, final_status
from regraft.errors import INTERRUPTED, REFUSED, Interrupted, WrongUsage
from regraft.language import OPTION, available_languages, tr
from regraft.processes import interrupts, startup

# What ``regraft --help`` lists: every command in its group, with one line; no command is loaded for that.


#: The groups in their order, and what each of their commands does, in one line of a terminal of 80 columns.
COMMAND_GROUPS = {
    tr("Move"): {
        "migrate": tr("Migrate v1 data to a v2 library, vectors byte for byte."),
        "import": tr("Write the library in a Parquet file."),
        "export": tr("Write texts and vectors to a Parquet file."),
        "pack": tr("Write bases to one zip file, for another machine."),
        "install": tr("Put bases into a v2 profile."),
        "fleet": tr("Run one command on many libraries."),
    },
    tr("View"): {
        "inspect": tr("Show what a path is and what it contains."),
        "check": tr("Audit a store: findings, and how to fix each."),
        "search": tr("Search a base as the application does."),
        "compare": tr("Search v1's vectors and a v2 index with the same queries."),
        "certify": tr("Prove that a base still finds its texts."),
        "history": tr("List regraft's runs, and which can be undone."),
        "explain": tr("Explain a finding, a code or an error."),
        "ui": tr("Open a page in the browser, instead of the command line."),
    },
    tr("Repair"): {
        "fix": tr("Make every fix that check recommends, in the right order."),
        "repair": tr("Repair what check finds, if other data prove the right value."),
        "gc": tr("Remove unreferenced vectors, texts and files."),
        "reconcile": tr("Update indexes and vectors from their sources."),
        "upgrade": tr("Convert older files to the current layout."),
        "rescue": tr("Recover bases that the application's upgrade failed to migrate."),
        "undo": tr("Undo a run."),
    },
    tr("Embed"): {
        "backfill": tr("Embed texts that have no vector."),
        "sync": tr("Update a base from its changed original files."),
        "restore": tr("Make a new base from a base, with another model."),
        "embedders": tr("List and test the configured embedders."),
    },
    tr("codex-mem and AngelMemory"): {
        "rebuild": tr("codex-mem: embed all notes again."),
        "clear-failed": tr("codex-mem: retry notes that failed."),
        "recall": tr("AngelMemory: read a note by its short id."),
    },
}
OTHER_GROUP = tr("Other")
SUMMARIES = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}


def group_commands(names: Iterable[str]) -> dict[str, list[str]]:
    """Group names of commands by the title of their group; the last group has those that no group lists."""
    there = list(names)
    groups = {title: [name for name in group if name in there] for title, group in COMMAND_GROUPS.items()}
    groups[OTHER_GROUP] = [name for name in there if name not in SUMMARIES]
    return {title: members for title, members in groups.items() if members}


# The text of a command's help, paragraph by paragraph in the language of this process; examples stay as they are.


#: Begins a paragraph whose line breaks click keeps.
_AS_IT_IS = "\b"


def help_paragraphs(text: str) -> list[str]:
    """List the paragraphs of a help text that are translated, each as one line."""
    return [_on_one_line(part) for part in _split_text(text) if not part.startswith(_AS_IT_IS)]


def translate_help(text: str) -> str:
    """Translate a help text, paragraph by paragraph; examples stay as they are."""
    return "\n\n".join(
        part.replace("Example:", tr("Example:"), 1) if part.startswith(_AS_IT_IS) else tr(_on_one_line(part))
        for part in _split_text(text)
    )


def _split_text(text: str) -> list[str]:
    """Split a help text into paragraphs."""
    return cleandoc(text).split("\n\n")


def _on_one_line(part: str) -> str:
    """Join the lines of a paragraph."""
    return " ".join(part.split())


#: The module of each command.
_MODULES = {
    "inspect": "inspect",
    "check": "check",
    "certify": "certify",
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
    "sync": "embedding",
    "embedders": "embedding",
    "fleet": "fleet",
    "upgrade": "maintenance",
    "rescue": "maintenance",
    "install": "maintenance",
    "pack": "export",
    "history": "maintenance",
    "undo": "maintenance",
    "ui": "ui",
}


class LazyCommands(MutableMapping[str, click.Command]):
    """Maps names to commands, and imports the module of a command on first access."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        """Import a command if it is not loaded yet."""
        if name not in self._loaded:
            module = import_module(f"{__name__}.{_MODULES[name]}")
            command = getattr(module, "import_" if name == "import" else name.replace("-", "_"))
            command.help = translate_help(command.help or "")
            self._loaded[name] = command
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        """Add a command that is loaded already."""
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        """Remove a command that was added."""
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without importing commands."""
        return iter({**_MODULES, **self._loaded})

    def __len__(self) -> int:
        """Count the commands."""
        return len({**_MODULES, **self._loaded})


def _command_words(error: click.ClickException, command: click.Command, arguments: Sequence[str]) -> list[str]:
    """Return the names of the groups and the command that an error is about, such as ``["fleet", "resume"]``."""
    words: list[str] = []
    context = getattr(error, "ctx", None)
    if context is None:
        # An option that lacks its argument: the error of click does not name the command.
        for word in arguments:
            if not isinstance(command, click.Group) or word not in command.commands:
                break
            words.append(word)
            command = command.commands[word]
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name or "")
        context = context.parent
    return words


class CommandGroup(click.Group):
    """The commands; wrong usage is reported like any other error: one line, or one JSON document."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **settings: Any) -> Any:
        """Run a command line, by default that of this process; the other arguments are click's."""
        arguments = sys.argv[1:] if args is None else list(args)
        # As in other programs: "help", "help COMMAND" and "version" without dashes.
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
                self._start_without_arguments()
            if isinstance(error, click.exceptions.NoArgsIsHelpError):
                echo(error.format_message() + "\n", as_it_is=True)
                sys.exit(REFUSED)
            message = " ".join(error.format_message().split())
            words = _command_words(error, self, arguments)
            hint = tr("see regraft {name} --help", name=" ".join(words)) if words else tr("see regraft --help")
            problem, name = message.rstrip(".。"), words[-1] if words else ""
            fail(WrongUsage(problem=problem, hint=hint), name, as_json="--json" in arguments, verbose=0)
        sys.exit(status if isinstance(status, int) else 0)

    def _start_without_arguments(self) -> NoReturn:
        """Do what suits an empty command line, and exit.

        On a terminal, the user is asked for a source; started by a double click, the page is opened. Otherwise the
        application's data on this computer are listed, or the help is printed if nothing is found.
        """
        if startup.is_double_clicked() and "ui" in self.commands and find_spec("uvicorn") is not None:
            self.main(["ui"])
        # Only an empty command line needs these imports, which take a while.
        if startup.is_terminal(sys.stdin) and startup.is_terminal(sys.stdout):
            from regraft.cli.guided import start  # noqa: PLC0415

            start()
        from regraft.cli.inspect import greet  # noqa: PLC0415

        if greet():
            sys.exit(0)
        echo(self.get_help(click.Context(self, info_name="regraft")) + "\n", as_it_is=True)
        sys.exit(REFUSED)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups."""
        for title, names in group_commands(self.list_commands(context)).items():
            with formatter.section(title):
                formatter.write_dl([(name, self._summary(name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """List the commands and options that begin with an incomplete word."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._summary(name)) for name in names]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def _summary(self, name: str) -> str:
        """Return the line that describes a command in the help."""
        return SUMMARIES.get(name) or self.commands[name].get_short_help_str()

    def invoke(self, context: click.Context) -> Any:
        """Load a command and run it; Ctrl-C while it loads becomes an Abort, which :meth:`main` reports."""
        from regraft.disk import scratch  # noqa: PLC0415 - takes a while to load, and help needs none of it

        try:
            scratch.remove_leftovers()
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
    """Migrate a local knowledge base to a new storage layout and keep its vectors.

    Vectors are copied byte for byte; migrating and installing embed nothing. Sources are only read; each write is made
    completely or not at all.
    """


cli.help = translate_help(cli.help or "")


def fail_interrupted(arguments: Sequence[str]) -> NoReturn:
    """Report that the user stopped the program before a command began, and exit; ``arguments`` are the command line."""
    fail(Interrupted(finished=0), "", as_json="--json" in arguments, verbose=0)


def main(*, is_interrupted: bool = False) -> None:
    """Run the command line; ``is_interrupted``: the user pressed Ctrl-C while it was loading."""
    startup.protect_streams()
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
    if status == INTERRUPTED or interrupts.is_shutdown_skipped:
        # Exit without Python's own shutdown: if Ctrl-C came while Python was executing generated code, as for data
        # classes, it would end itself by a signal.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(status)
    sys.exit(status)
