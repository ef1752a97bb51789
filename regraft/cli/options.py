"""Builds the options of commands from the structs of :mod:`regraft.options`, and completes their values in shells."""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from inspect import get_annotations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import apsw
import click
import msgspec
from click.shell_completion import CompletionItem

from regraft.cli import output
from regraft.cli.output import echo_error
from regraft.disk import links
from regraft.errors import ModelOptionInvalid, RegraftError, WrongUsage
from regraft.kinds import Kind
from regraft.language import tr
from regraft.options import CheckOptions, FailOn
from regraft.report.progress import Progress, terminal_progress
from regraft.text import printable

# Shell completion loads the packages that read stores only when a shell asks. It raises nothing: what cannot be read is
# not offered.

#: Parameters of commands with the path of the store.
_PATHS = ("path", "source", "v1")


def complete_bases(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the value of ``--base``: list bases of the store on the command line, by name, or by id in v1 data."""
    # While the option has no value yet, click leaves the arguments as they came.
    given = [*(context.params.get(name) for name in _PATHS), *context.args]
    path = next((one for one in given if one is not None), None)
    if path is None:
        return []
    try:
        offered = _list_base_words(Path(path))
    except (RegraftError, apsw.Error, OSError, ValueError):
        return []
    # Bash inserts a word as it is; other shells quote what they insert.
    quote = shlex.quote if os.environ.get("_REGRAFT_COMPLETE", "").startswith("bash") else str
    return [
        CompletionItem(quote(word), help=printable(text))
        for word, text in offered
        if word.startswith(incomplete) and _is_plain(word)
    ]


def complete_findings(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the value of ``--only``: list the findings that the command accepts."""
    from checks.systems import load_findings  # noqa: PLC0415
    from repair import systems  # noqa: PLC0415
    from repair.fix import sequence  # noqa: PLC0415

    taken = {
        "fix": sequence.fixable_findings(),
        "gc": systems.collected_findings(),
        "repair": systems.repaired_findings(),
        "reconcile": systems.reconciled_findings(),
    }.get(context.info_name or "", tuple(load_findings()))
    return [CompletionItem(name) for name in taken if name.startswith(incomplete)]


def _list_base_words(path: Path) -> list[tuple[str, str]]:
    """List the words that select a base of the store at a path, each with a description."""
    from checks import systems  # noqa: PLC0415
    from checks.cherry_v2.audit import read_base_names  # noqa: PLC0415
    from regraft.kinds import SYSTEMS, V1_SOURCES  # noqa: PLC0415
    from regraft.stores.locate import open_store  # noqa: PLC0415

    with open_store(path) as found:
        if found.kind in V1_SOURCES:
            from regraft.formats.cherry_v1.state import read_state  # noqa: PLC0415

            state = read_state(found.tree, found.places)
            raws = [raw for raw in state.bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]
            return [(raw["id"], str(raw.get("name"))) for raw in raws]
        if found.kind in SYSTEMS:
            return list(systems.checks_for(found.kind).ids_by_name(found).items())
        names = {} if found.is_archive else read_base_names(found)
        # Bases with the same name are listed by id.
        uses = Counter(names.values())
        return [(name, base) if uses[name] == 1 else (base, name) for base, name in names.items()]


def _is_plain(word: str) -> bool:
    """Whether a shell passes a word on unchanged, and a terminal shows all of it."""
    return bool(word.strip()) and printable(word) == word and "\\" not in word


F = TypeVar("F", bound=Callable[..., Any])
Options = TypeVar("Options", bound=msgspec.Struct)


class PathType(click.Path):
    """The type of a path argument; relative paths are refused if the working directory was deleted."""

    #: Whether a double quote cannot be a part of a path. Shells of Windows complete a name to ``"C:\My Data\"``, whose
    #: last backslash makes the closing quote a part of the word, with all that follows up to the next quote.
    windows = os.name == "nt"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Check a word of the command line, and convert it to a :class:`~pathlib.Path`."""
        if self.windows and isinstance(value, str):
            value = value.removesuffix('"')
            if '"' in value:
                text = tr("{value} has a double quote; leave out the backslash before it", value=printable(value))
                self.fail(text, parameter)
            # Windows ignores the dots and blanks at the end of a name, so the real path would be another one.
            ignored = re.search(r"(?<=[^\\/:. ])[. ]+\Z", value)
            if ignored is not None and not value.startswith("\\\\?\\"):
                value = value[: ignored.start()]
        path = super().convert(value, parameter, context)
        try:
            Path(os.fsdecode(path)).absolute()
        except OSError:
            self.fail(
                tr("The current directory no longer exists; use an absolute path instead of {value!r}.", value=value),
                parameter,
            )
        return path


PATH = PathType(path_type=Path)


def _parse_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Parse ISO 8601 with a time zone to Unix milliseconds; None stays None. A callback of click."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(tr("{value!r} is not a time like 2026-01-31T12:00:00Z", value=value)) from error
    raise click.BadParameter(tr("{value!r} has no time zone; add a Z at its end", value=value))


def _show_decisions(context: click.Context, _parameter: click.Parameter, value: int) -> int:
    """Show the log for the duration of the command if ``-v`` was given twice; a callback of click.

    ``value`` is how often ``-v`` was given; it is returned unchanged.
    """
    if value > 1:
        context.with_resource(output.show_log())
    return value


#: Help of ``--verbose`` and ``--quiet``.
_VERBOSE = tr("Show every note; -vv also shows decisions, and the traceback of an error.")
_QUIET = tr("Show only the result, without plan and progress.")


def verbose_option(text: str = _VERBOSE) -> Callable[[F], F]:
    """Make the decorator that adds ``--verbose``; ``text`` is its help."""
    return click.option("-v", "--verbose", count=True, callback=_show_decisions, help=text)


_json_option = click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text."))
_links_option = click.option(
    links.FOLLOW_OPTION,
    is_flag=True,
    expose_value=False,
    # The links are followed for the duration of the command.
    callback=lambda context, _, value: context.with_resource(links.follow_links(value)),
    help=tr("Follow links that lead out of the path; only for your own data."),
)
#: Help of options of several commands.
ASKS = tr("Do not ask for confirmation; needed in scripts.")
#: What severity of a finding or notice makes the exit status 1.
FAIL_ON = tr("Lowest severity that makes the exit status 1.")


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """How a command prints, asks and exits: the values of the options of :func:`output_options`."""

    as_json: bool
    quiet: bool
    #: How often ``-v`` was given.
    verbose: int
    #: Do not ask before changing anything.
    yes: bool = False
    #: The lowest severity of a finding or notice that makes the exit status 1, or "never".
    fail_on: FailOn = "warning"
    #: The lines of the plan that the user was shown and agreed to.
    shown: list[str] = msgspec.field(default_factory=list)

    def progress(self) -> Progress:
        """Return a progress bar, unless the output is for a program or the user wants none."""
        return terminal_progress(quiet=self.as_json or self.quiet)

    def print_report(self, document: dict[str, Any], text: Callable[[], str], page: Path | None) -> None:
        """Print a report, as its JSON document or as text, and the path of its page (None: none was written)."""
        written = "" if page is None or self.quiet else output.format_written([page])
        if self.as_json:
            output.echo_json(document)
            for line in written.splitlines():
                echo_error(line)
        else:
            output.echo("\n".join(filter(None, (text(), written))))


def output_options(
    *,
    yes: str = "",
    fail_on: str = "",
    follows_links: bool = True,
    verbose: str = _VERBOSE,
    quiet: str = _QUIET,
) -> Callable[[F], F]:
    """Make the decorator that adds the options on output; the command gets them as one value, ``output``.

    Args:
        yes: the help of ``--yes``; empty: the command asks nothing.
        fail_on: the help of ``--fail-on``; empty: the command has no such option.
        follows_links: whether the command reads a path that may hold links.
        verbose: the help of ``--verbose``.
        quiet: the help of ``--quiet``.
    """
    options = [verbose_option(verbose), click.option("-q", "--quiet", is_flag=True, help=quiet), _json_option]
    if yes:
        options.append(click.option("-y", "--yes", is_flag=True, help=yes))
    if fail_on:
        choice = click.Choice(get_args(FailOn))
        options.append(click.option("--fail-on", type=choice, default="warning", show_default=True, help=fail_on))
    if follows_links:
        options.append(_links_option)

    def decorate(command: F) -> F:
        """Add the options to a command."""

        @wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            """Run the command with one :class:`Output` in place of the options' values."""
            names = given.keys() & set(Output.__struct_fields__)
            return command(*args, output=Output(**{name: given.pop(name) for name in names}), **given)

        for option in options:
            run = option(run)
        return run  # type: ignore[return-value]

    return decorate


def struct_options(struct: type[msgspec.Struct], *, without: Collection[str] = ()) -> Callable[[F], F]:
    """Make the decorator that adds one option per field of an options struct; the command gets it as ``options``.

    Fields in ``without`` get no option and keep their default.
    """
    hints = get_type_hints(struct, include_extras=True)
    defaults = dict(zip(struct.__struct_fields__, struct.__struct_defaults__, strict=True))
    # A command's own options come before those that it shares with others.
    own = [name for base in struct.__mro__ if base is not object for name in get_annotations(base)]
    names = [name for name in own if name in defaults and name not in without]

    def decorate(command: F) -> F:
        """Add the options to a command."""

        @wraps(command)
        def run(*args: Any, **given: Any) -> Any:
            """Run the command with one struct in place of the options' values."""
            values = {name: given.pop(name) for name in names}
            return command(*args, options=build_options(struct, values), **given)

        for name in reversed(names):
            run = _click_option(name, hints[name], defaults[name])(run)
        return run  # type: ignore[return-value]

    return decorate


def build_options(struct: type[Options], values: dict[str, Any]) -> Options:
    """Make an options struct from what click parsed, by field name; fields without a value keep their default.

    Raises:
        ModelOptionInvalid, WrongUsage: a value of ``--map-model`` or ``--moved`` is not of the form OLD=NEW.
    """
    hints = get_type_hints(struct, include_extras=True)
    for name, value in values.items():
        if hints[name].__metadata__[-1].extra["off"]:
            values[name] = not value
        elif name in ("map_model", "moved"):
            pairs = [text.partition("=") for text in value]
            for old, separator, _ in pairs:
                if not separator and name == "moved":
                    raise WrongUsage(problem=tr("--moved {old} has no new path", old=old), hint=tr("write OLD=NEW"))
                if not separator:
                    reason = tr("write OLD=NEW, NEW as provider::model")
                    raise ModelOptionInvalid(option="--map-model", value=old, reason=reason)
            values[name] = {old: new for old, _, new in pairs}
            twice = next((old for old, _, new in pairs if name == "moved" and values[name][old] != new), None)
            if twice is not None:
                raise WrongUsage(problem=tr("--moved {old} has two new paths", old=twice), hint=tr("give one of them"))
        elif name == "kind":
            values[name] = None if value is None else Kind(value)
    return struct(**values)


def with_level(options: CheckOptions, *, quick: bool, deep: bool) -> CheckOptions:
    """Set the level of a check from the flags ``--quick`` and ``--deep``.

    Raises:
        WrongUsage: both are set.
    """
    if quick and deep:
        raise WrongUsage(problem=tr("--quick and --deep exclude each other"), hint=tr("use one of them"))
    return msgspec.structs.replace(options, level="quick" if quick else "deep" if deep else "default")


def _click_option(name: str, hint: Any, default: Any) -> Callable[[F], F]:
    """Build the click option of a field of an options struct.

    ``hint`` is the annotated type of the field, whose metadata describe the option.
    """
    described = hint.__metadata__[-1]
    extra = described.extra or {}
    option = extra["off"] or extra["option"] or f"--{name.replace('_', '-')}"
    settings: dict[str, Any] = {"help": described.description, "metavar": described.title, **_value_settings(hint)}
    if name == "now_ms":
        settings |= {"type": str, "callback": _parse_time}
    elif name == "only" and "type" not in settings:
        settings["shell_complete"] = complete_findings
    elif option == "--base":
        settings["shell_complete"] = complete_bases
    if isinstance(default, int | float | str) and not isinstance(default, bool):
        settings |= {"default": default, "show_default": True}
    return click.option(option, name, **settings)


# The names with which click says what a value must be.
click.IntRange.name = tr("integer")
click.FloatRange.name = tr("number")


class _Number(click.FloatRange):
    """A number in a range; NaN is refused, since comparisons with limits do not exclude it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a word of the command line to a number."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(tr("{value} is not a number", value=value), param, ctx)
        return number


def _value_settings(hint: Any) -> dict[str, Any]:
    """Choose the arguments of ``click.option`` that depend on the annotated type of a field."""
    annotated, limits = hint.__origin__, hint.__metadata__[0]
    if get_origin(annotated) in (tuple, dict):
        items = get_args(annotated)
        if Path in items:
            return {"multiple": True, "type": PATH}
        choices = {"type": click.Choice(get_args(items[0]))} if get_origin(items[0]) is Literal else {}
        return {"multiple": True, **choices}
    # The type beside None, if the value is optional; it may have limits.
    is_optional = type(None) in get_args(annotated)
    kind = next(one for one in get_args(annotated) if one is not type(None)) if is_optional else annotated
    if get_origin(kind) is Annotated:
        kind, limits = kind.__origin__, kind.__metadata__[0]
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if kind is int:
        return {"type": click.IntRange(limits.ge, limits.le)}
    if kind is float:
        lowest = limits.ge if limits.gt is None else limits.gt
        return {"type": _Number(lowest, limits.le, min_open=limits.gt is not None)}
    settings: dict[Any, dict[str, Any]] = {
        bool: {"is_flag": True},
        str: {"type": str},
        Path: {"type": PATH},
        Kind: {"type": click.Choice([one.value for one in Kind])},
    }
    return settings[kind]


class _RetryLines(logging.Handler):
    """Prints log records on stderr, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record on stderr, above the progress bar."""
        from tqdm import tqdm  # noqa: PLC0415 - loaded where a request failed

        # A progress bar is taken off the terminal for the line, and drawn again below it.
        with tqdm.external_write_mode(file=sys.stderr):
            echo_error(record.getMessage())


@contextmanager
def echo_retries(*, enabled: bool) -> Iterator[None]:
    """Print warnings about retries on stderr within the context, if ``enabled``.

    These are failed attempts to reach a server, unusable stores of ``--reuse``, and a cluster without room.
    """
    if not enabled:
        yield
        return
    names = ("regraft.embedders", "regraft.fleet.ray_pool", "regraft.fleet.run", "repair.embedding.reuse")
    with output.attach_handler(names, _RetryLines(logging.WARNING)):
        yield


def report_retries(command: F) -> F:
    """Let a command print its failed attempts to reach an embedding server, unless its output is for a program.

    With ``-vv`` everything that is logged is printed already.
    """

    @wraps(command)
    def run(*args: Any, output: Output, **given: Any) -> Any:
        """Run the command while retries are printed."""
        with echo_retries(enabled=not (output.as_json or output.quiet or output.verbose > 1)):
            return command(*args, output=output, **given)

    return run  # type: ignore[return-value]
