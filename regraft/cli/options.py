"""Bundles of options that several commands take."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import apsw
import click
from click.shell_completion import CompletionItem

from regraft.api.arguments import parse_model_overrides
from regraft.cli import output
from regraft.cli.output import echo_error
from regraft.disk import links
from regraft.errors import ModelOptionInvalid, RegraftError
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import SALVAGE_OPTION
from regraft.kinds import Kind
from regraft.language import tr
from regraft.text import printable

if TYPE_CHECKING:
    from regraft.stores.systems import Located


# What a shell offers for a word that is being written: bases of the store at PATH, and names of findings.
#
# The packages that look at data are loaded only when a shell asks. Nothing is written, and nothing is raised: what
# cannot be read is not offered.


#: What commands call the path whose bases are meant.
_PATHS = ("path", "source", "v1")


def complete_bases(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the bases of the store that the command line names, by their names or, of v1 data, by their ids."""
    # While the option has no value yet, click leaves the arguments as they came.
    given = [*(context.params.get(name) for name in _PATHS), *context.args]
    paths = [path for path in given if path is not None]
    if not paths:
        return []
    try:
        offered = _words_of(Path(paths[0]))
    except (RegraftError, apsw.Error, OSError, ValueError):
        return []
    return [_item(word, text) for word, text in offered if word.startswith(incomplete) and _is_plain(word)]


def complete_findings(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the findings that a command takes."""
    from checks.systems import load_findings  # noqa: PLC0415
    from repair import fix, systems  # noqa: PLC0415

    taken = {
        "fix": fix.names_taken(),
        "gc": systems.collected_findings(),
        "repair": systems.repaired_findings(),
        "reconcile": systems.reconciled_findings(),
    }.get(context.info_name or "", tuple(load_findings()))
    return [CompletionItem(name) for name in taken if name.startswith(incomplete)]


def _words_of(path: Path) -> list[tuple[str, str]]:
    """Return the words that choose a base of a store, each with what is said of it."""
    from checks import systems  # noqa: PLC0415
    from checks.cherry_v2.audit import read_base_names  # noqa: PLC0415
    from regraft.kinds import SYSTEMS, V1_SOURCES  # noqa: PLC0415
    from regraft.stores.locate import open_store  # noqa: PLC0415

    with open_store(path) as found:
        if found.kind in V1_SOURCES:
            return _v1_words(found)
        if found.kind in SYSTEMS:
            return list(systems.checks_for(found.kind).ids_by_name(found).items())
        return [] if found.is_archive else _by_name(read_base_names(found))


def _v1_words(found: Located) -> list[tuple[str, str]]:
    from regraft.formats.cherry_v1.state import read_state  # noqa: PLC0415

    state = read_state(found.tree, found.places)
    raws = [raw for raw in state.bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]
    return [(raw["id"], str(raw.get("name"))) for raw in raws]


def _by_name(names: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the names of bases with their ids; where several have one name, their ids with the name."""
    every = list(names.values())
    return [(name, base) if every.count(name) == 1 else (base, name) for base, name in names.items()]


def _is_plain(word: str) -> bool:
    """Tell whether a word is shown as it is and keeps its form on its way through a shell."""
    return bool(word.strip()) and printable(word) == word and "\\" not in word


def _item(word: str, text: str) -> CompletionItem:
    # Other shells quote what they insert.
    is_bash = os.environ.get("_REGRAFT_COMPLETE", "").startswith("bash")
    value = shlex.quote(word) if is_bash else word
    return CompletionItem(value, help=printable(text))


F = TypeVar("F", bound=Callable[..., Any])


class PathType(click.Path):
    """A path; a relative one is refused where the working directory is gone, since it leads nowhere."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return it as a path."""
        path = super().convert(value, parameter, context)
        try:
            Path(os.fsdecode(path)).absolute()
        except OSError:
            self.fail(
                tr("{value!r} leads nowhere, the working directory is gone; give an absolute path", value=value),
                parameter,
            )
        return path


PATH = PathType(path_type=Path)


def parse_time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Return a time given as ISO 8601 with a time zone, in ms."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is not None:
            return round(moment.astimezone(UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(tr("{value!r} is not a time like 2026-01-31T12:00:00Z", value=value)) from error
    raise click.BadParameter(tr("{value!r} has no time zone; write it with a Z at its end", value=value))


#: Of the commands that go by how old something is.
now_option = click.option(
    "--now",
    "now",
    callback=parse_time,
    metavar="TIME",
    help=tr("What ages are relative to, ISO 8601 with Z. [default: now]"),
)
#: Of the commands that are about findings.
only_option = click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_findings,
    help=tr("Only findings of this name; may be repeated."),
)


def _follow_links(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    context.with_resource(links.follow_links(value))


def _show_decisions(context: click.Context, _parameter: click.Parameter, value: int) -> int:
    if value > 1:
        context.with_resource(output.log_decisions())
    return value


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    callback=_show_decisions,
    help=tr("Show every note; -vv shows what was decided and where an error came from."),
)


def output_options(command: F) -> F:
    """Add what every command takes: how much it says, in which form, and what a path is."""
    for option in (
        click.option(
            links.FOLLOW_OPTION,
            is_flag=True,
            expose_value=False,
            callback=_follow_links,
            help=tr("Follow links that lead out of what is read; only for data of your own."),
        ),
        click.option("--json", "as_json", is_flag=True, help=tr("Print one JSON document instead of text.")),
        click.option("-q", "--quiet", is_flag=True, help=tr("No plan, no progress; only the result.")),
        verbose_option,
        click.option(
            "--kind",
            type=click.Choice([kind.value for kind in Kind]),
            metavar="KIND",
            help=tr("What PATH is, if regraft takes it for something else: v1-backup, v1-export, library…"),
        ),
    ):
        command = option(command)
    return command


fail_on_option = click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "note", "never"]),
    default="warning",
    show_default=True,
    help=tr("From which severity on the exit status is 1."),
)


salvage_option = click.option(
    SALVAGE_OPTION,
    "salvage",
    is_flag=True,
    help=tr(
        "Carry the rows of damaged vector files that prove themselves, and the whole members of a damaged zip archive; "
        "name the others."
    ),
)


visible_option = click.option(
    "--visible-to",
    multiple=True,
    metavar="WHO",
    help=tr("rsclaw: also documents for user:ID, agent:ID or channel:ID; may be repeated.  [default: everybody's]"),
)


adopt_option = click.option(
    "--adopt-orphans",
    is_flag=True,
    help=tr("v1: make a base of each vector file that no base names; --map-model FILE=MODEL says its model."),
)


def model_options(command: F) -> F:
    """Add the user's word on models (:func:`model_word`)."""
    for option in (
        click.option(
            "--recreate-model",
            multiple=True,
            metavar="ID",
            help=tr("Carry bases of model ID, which v1 no longer lists: the model is made again."),
        ),
        click.option(
            "--map-model",
            multiple=True,
            metavar="OLD=NEW",
            help=tr(
                "Treat vectors of model OLD (or of the v1 base or vector file OLD) as those of model NEW; ids are "
                "provider::model."
            ),
        ),
    ):
        command = option(command)
    return command


def plan_options(command: F) -> F:
    """Add what decides how a source is planned, and which of what is said about it counts."""
    for option in (
        fail_on_option,
        model_options,
        click.option(
            "--base",
            "bases",
            multiple=True,
            metavar="ID",
            shell_complete=complete_bases,
            help=tr("Only this base (v1 or v2 id); may be repeated."),
        ),
    ):
        command = option(command)
    return command


def parse_model_map(pairs: tuple[str, ...]) -> dict[str, str]:
    """Return what ``--map-model`` says: new ids by old ones.

    Raises:
        ModelOptionInvalid: it is not of the form OLD=NEW.
    """
    words = {}
    for text in pairs:
        old, separator, new = text.partition("=")
        if not separator:
            reason = tr("write OLD=NEW, NEW as provider::model")
            raise ModelOptionInvalid(option="--map-model", value=text, reason=reason)
        words[old] = new
    return words


def parse_models(pairs: tuple[str, ...], recreated: tuple[str, ...]) -> ModelOverrides:
    """Return what the user says of models.

    Raises:
        ModelOptionInvalid: an option is not of its form.
    """
    return parse_model_overrides(parse_model_map(pairs), recreated)


# What commands that embed texts take: an embedder of the configuration (``docs/embedders.md``).


config_option = click.option(
    "--config",
    "config_path",
    type=PATH,
    metavar="FILE",
    help=tr("Where embedders are written.  [default: regraft.yaml]"),
)


def embedder_options(command: F) -> F:
    """Add which embedder is meant, and where it is written."""
    chosen = click.option(
        "--embedder",
        "embedder_name",
        metavar="NAME",
        help=tr("The embedder, by its name in the configuration; may be left out where only one fits."),
    )

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        # With -vv everything that is logged is shown already; a program reads errors alone on stderr.
        if kwargs.get("as_json") or kwargs.get("quiet") or kwargs.get("verbose", 0) > 1:
            return command(*args, **kwargs)
        with _shown_retries():
            return command(*args, **kwargs)

    return config_option(chosen(run))  # type: ignore[return-value]


class _RetryLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # noqa: PLC0415 - loaded where a request failed

        # A progress bar is taken off the terminal for the line, and drawn again below it.
        with tqdm.external_write_mode(file=sys.stderr):
            echo_error(record.getMessage())


@contextmanager
def _shown_retries() -> Iterator[None]:
    """Print a line on stderr for each failed attempt to reach an embedding server."""
    logger, lines = logging.getLogger("regraft.embedders.server"), _RetryLines(logging.WARNING)
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)


def limit_options(command: F) -> F:
    """Add how much is sent at most, and whether the model is compared first."""
    for option in (
        click.option(
            "--no-probe", is_flag=True, help=tr("Do not ask first whether it is the model of the vectors there are.")
        ),
        click.option(
            "--max-cost",
            "cost",
            type=click.FloatRange(min=0, min_open=True),
            metavar="N",
            help=tr("Spend N at most, by the configured price."),
        ),
        click.option(
            "--max-requests", "requests", type=click.IntRange(min=1), metavar="N", help=tr("Send N requests at most.")
        ),
        click.option("--limit", "texts", type=click.IntRange(min=1), metavar="N", help=tr("Embed N texts at most.")),
    ):
        command = option(command)
    return command
