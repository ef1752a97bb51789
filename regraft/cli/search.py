"""``regraft search``: what the application would find."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from regraft.api.embedding import embed_for, embedding
from regraft.cli import completion, search_notes, search_results
from regraft.cli.embedding import config_option
from regraft.cli.options import PATH, output_options
from regraft.cli.output import echo_json, note, reports_errors, say
from regraft.cli.search_results import EXCERPT
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.kinds import NAMES, Kind
from regraft.language import tr
from regraft.locate import located
from regraft.ranking import codex_mem, notes_report, search_report, several_bases
from regraft.ranking.cherry_v2 import Mode, Request
from regraft.ranking.several_bases import Answers
from regraft.report.document import Report, Run, encoded
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
    help=tr("By words, by meaning, or both.  [default: both where the base has a model, else by words]"),
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
    raw: bool,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Search bases for QUERY as the application does. Nothing is written.

    Without --base all bases are searched. PATH is a v2 library, profile or backup, one base folder, an index.sqlite,
    or a database of codex-mem.

    \b
    Example:
      regraft search library "annual leave" --base Handbook
    """
    run = Run(command="search")
    numbers = _given_vector(vector, embedder_name)
    wanted = Mode(mode) if mode else None
    status = 0
    with located(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        title = tr("{path} is {names}.", path=shown(path), names=NAMES[source.kind])
        report: Report
        if source.kind is Kind.CODEX_MEM:
            search_notes.refuse({"--alpha": alpha is not None, "--raw": raw, "--mode vector": wanted is Mode.VECTOR})
            of_notes_model = None if embedder_name is None else embed_for(query, embedder_name, config_path)
            question = codex_mem.Request(
                query=query, project=base, mode=wanted, count=count, vector=numbers, embed=of_notes_model
            )
            of_notes = codex_mem.search(source.path, question)
            run.end()
            notes, report = of_notes.notes, notes_report.report(run.head(), of_notes)
            text = search_notes.as_text(of_notes, title, None if verbose else EXCERPT)
        else:
            embed = None if embedder_name is None else embedding(query, embedder_name, config_path)
            request = Request(query=query, mode=wanted, count=count, alpha=alpha, vector=numbers, embed=embed, raw=raw)
            found = several_bases.search(source, base, request)
            run.end()
            status = int(isinstance(found, Answers) and found.is_damaged)
            notes, report = found.notes, search_report.report(run.head(), found)
            text = search_results.as_text(found, title, whole=verbose > 0, raw=raw)
    if not quiet:
        _note_all(notes)
    if as_json:
        echo_json(encoded(report))
    else:
        say(text)
    sys.exit(status)


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
