"""``regraft search``: what the application would find."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from regraft.api import searching
from regraft.api.searching import Found, SearchRequest
from regraft.cli import completion, search_chunks, search_notes, search_records, search_results
from regraft.cli.embedding import config_option
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, note, reports_errors, say
from regraft.cli.search_results import EXCERPT
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.kinds import NAMES, Kind
from regraft.language import tr
from regraft.locate import located
from regraft.ranking import angel_search, codex_mem, rsclaw
from regraft.ranking.cherry_v2 import Mode
from regraft.report.document import Run, encoded
from regraft.text import shown


@click.command()
@click.argument("path", type=PATH)
@click.argument("query")
@click.option(
    "--base",
    metavar="NAME",
    shell_complete=completion.bases,
    help=tr("Only this base (its name, v1 or v2 id).  [default: all]"),
)
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    help=tr(
        "By words (bm25), by meaning (vector), or both (hybrid); notes of AngelMemory by tags (simple) or by meaning."
        "  [default: both where the base has a model, else by words]"
    ),
)
@click.option(
    "-k",
    "count",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help=tr("How many hits.  [default: the base's own, else 10]"),
)
@click.option(
    "--alpha",
    type=click.FloatRange(0, 1),
    metavar="A",
    help=tr("Weight of meaning in hybrid mode.  [default: 0.5]"),
)
@click.option(
    "--vector", metavar="FILE|-", help=tr("The query's vector: a file (or stdin) with one JSON array of numbers.")
)
@click.option(
    "--embedder",
    "embedder_name",
    metavar="NAME",
    help=tr("Let this embedder of the configuration make the query's vector; only the query is sent."),
)
@config_option
@click.option(
    "--as",
    "callers",
    multiple=True,
    metavar="WHO",
    help=tr("rsclaw: what user:ID, agent:ID or channel:ID may see, too; may be repeated.  [default: what is global]"),
)
@click.option("--raw", is_flag=True, help=tr("Ask the index alone: no settings or rules of the catalog."))
@output_options
@reports_errors
def search(  # noqa: PLR0913, PLR0917 - one parameter for every option
    path: Path,
    query: str,
    base: str | None,
    mode: str | None,
    count: int | None,
    alpha: float | None,
    vector: str | None,
    embedder_name: str | None,
    config_path: Path | None,
    callers: tuple[str, ...],
    raw: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Search bases for QUERY as the application does. Nothing is written.

    Without --base all bases are searched. PATH is a v2 library, profile or backup, one base folder, an index.sqlite,
    a database of codex-mem, a knowledge base of rsclaw, or a data folder of AngelMemory.

    \b
    Example:
      regraft search library "annual leave" --base Handbook
    """
    run = Run(command="search")
    request = SearchRequest(
        query=query,
        base=base,
        mode=Mode(mode) if mode else None,
        count=count,
        alpha=alpha,
        vector=_given_vector(vector, embedder_name),
        embedder=embedder_name,
        config=config_path,
        raw=raw,
        callers=callers,
    )
    with located(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        found = searching.search(source, request)
        run.end()
    if not quiet:
        _note_all(found.notes)
    if as_json:
        echo_json(encoded(searching.report(run.head(), found)))
    else:
        title = tr("{path} is {names}.", path=shown(path), names=NAMES[source.kind])
        say(_as_text(found, title, whole=verbose > 0, raw=raw))
    sys.exit(int(searching.is_damaged(found)))


def _as_text(found: Found, title: str, *, whole: bool, raw: bool) -> str:
    match found:
        case codex_mem.Answer():
            return search_notes.as_text(found, title, None if whole else EXCERPT)
        case rsclaw.Answer():
            return search_chunks.as_text(found, title, whole=whole)
        case angel_search.Answer():
            return search_records.as_text(found, title)
        case _:
            return search_results.as_text(found, title, whole=whole, raw=raw)


def _note_all(notes: Iterable[str]) -> None:
    for one in notes:
        note(tr("note: {one}", one=one))


def _given_vector(name: str | None, embedder: str | None) -> tuple[float, ...] | None:
    if name is not None and embedder is not None:
        raise WrongUsage(problem=tr("--vector and --embedder exclude each other"), hint=tr("give one of them"))
    return None if name is None else _read_vector(name)


def _read_vector(name: str) -> tuple[float, ...]:
    """Return a query's vector.

    Raises:
        SourceUnreadable: there is no such file.
        WrongUsage: it does not hold a vector.
    """
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise SourceUnreadable(path=Path(name), reason=error.strerror or error) from error
    where = "stdin" if name == "-" else name
    return checked_vector(raw, tr("--vector {where}", where=where))


def checked_vector(raw: bytes, where: str) -> tuple[float, ...]:
    """Return the vector that JSON text holds.

    Raises:
        WrongUsage: it is no array of numbers that fit into float32.
    """
    try:
        numbers = msgspec.json.decode(raw, type=tuple[float, ...])
        vector_blob(numbers)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise WrongUsage(
            problem=tr("{where}: not a vector: {error}", where=where, error=error),
            hint=tr("it is one JSON array of numbers"),
        ) from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise WrongUsage(problem=tr("{where}: not a vector", where=where), hint=tr("it is one JSON array of numbers"))
    return numbers
