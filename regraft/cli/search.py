"""``regraft search``: what the application would find."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from regraft import api
from regraft.api import queries
from regraft.api.queries import SearchRequest, SearchResult
from regraft.cli import options
from regraft.cli.options import PATH, config_option, output_options
from regraft.cli.output import echo, echo_error, echo_json, report_errors
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import Hit, vector_blob
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import format_count, join_list, tr
from regraft.ranking import angel_memory, codex_mem, rsclaw
from regraft.ranking.angel_memory import Answer, Span
from regraft.ranking.cherry_v2 import Mode, UnitAnswer
from regraft.ranking.codex_mem import NoteAnswer
from regraft.ranking.fusion import Answers, label
from regraft.ranking.reports import RecallReport
from regraft.ranking.rsclaw import ChunkAnswer
from regraft.report.document import Run, encoded
from regraft.report.labels import mode_label, state_label
from regraft.stores.locate import open_store
from regraft.text import one_line, printable, printable_lines

# What ``regraft search`` tells a person of bases.


#: How much of a body is shown, in code points; ``-v`` shows all of it.
EXCERPT = 160


def format_bases(found: UnitAnswer | Answers, title: str, *, whole: bool, raw: bool) -> str:
    """Return what was found as text.

    Args:
        found: the hits.
        title: the first line.
        whole: show all of every body.
        raw: the index alone was asked: scores are shown as it gives them.
    """
    if isinstance(found, Answers):
        return _several_as_text(found, title, whole=whole)
    base = found.base_id if found.base_name is None else f"{one_line(found.base_name)} ({found.base_id})"
    lines = [title, tr("Base {base}: {counted}.", base=base, counted=_counted(found))]
    has_score = raw or not found.is_by_length
    for rank, hit in enumerate(found.hits, 1):
        score = f"{hit.score:.6g}  " if has_score else ""
        lines += hit_lines(f"{rank:>3}  {score}{_format_hit_item(found, hit)}", hit, whole=whole)
    return printable_lines(lines)


def _several_as_text(found: Answers, title: str, *, whole: bool) -> str:
    modes = Counter(answer.mode.value for answer in found.answers)
    said = join_list(
        tr("{bases} by {mode}", bases=format_count(number, "base"), mode=mode_label(mode))
        for mode, number in modes.items()
    )
    lines = [
        title,
        tr(
            "{hits} in all bases, merged by rank; searched: {said}.",
            hits=format_count(len(found.hits), "hit"),
            said=said,
        ),
    ]
    if found.not_searched:
        names = join_list(label(one.base_id, one.base_name) for one in found.not_searched)
        lines.append(tr("Not searched: {names}.", names=names))
    names_of = Counter(answer.base_name for answer in found.answers)
    for rank, ranked in enumerate(found.hits, 1):
        answer = ranked.answer
        base = label(answer.base_id, answer.base_name)
        if answer.base_name is not None and names_of[answer.base_name] > 1:
            base += f" ({answer.base_id})"
        lines += hit_lines(f"{rank:>3}  {base}: {_format_hit_item(answer, ranked.hit)}", ranked.hit, whole=whole)
    return printable_lines(lines)


def _counted(answer: UnitAnswer) -> str:
    weight = "" if answer.alpha is None else tr(", alpha {alpha:g}", alpha=answer.alpha)
    dropped = tr(", {dropped} dropped by the catalog", dropped=answer.dropped) if answer.dropped else ""
    return tr(
        "{hits} by {mode}{weight}{dropped}",
        hits=format_count(len(answer.hits), "hit"),
        mode=mode_label(answer.mode),
        weight=weight,
        dropped=dropped,
    )


def hit_lines(head: str, hit: Hit, *, whole: bool) -> list[str]:
    """Return the lines of a hit: an empty one, its head, and its text, all of it or an excerpt."""
    body = one_line(hit.text, None if whole else EXCERPT + 1)
    excerpt = body if whole or len(body) <= EXCERPT else f"{body[:EXCERPT]}…"
    return ["", tr("{head}, unit {unit_index}", head=head, unit_index=hit.unit_index), f"     {excerpt}"]


def _format_hit_item(answer: UnitAnswer, hit: Hit) -> str:
    """Return the name of a hit's item, and its path where that says more."""
    path = one_line(hit.relative_path or hit.material_id)
    name = one_line(answer.item_names.get(hit.material_id) or path)
    return name if name == path else f"{name} ({path})"


# How ``regraft search`` shows what it found in a KB of rsclaw.


def format_chunks(answer: ChunkAnswer, title: str, *, whole: bool) -> str:
    """Return an answer for a person.

    Args:
        answer: what was found.
        title: the first line.
        whole: show all of every text.
    """
    callers = join_list(map(one_line, answer.scope.words)) or tr("everybody")
    hits, mode = format_count(len(answer.hits), "hit"), mode_label(answer.mode)
    lines = [title, tr("What {callers} may see: {hits} by {mode}.", callers=callers, hits=hits, mode=mode)]
    for rank, hit in enumerate(answer.hits, 1):
        score = "" if answer.is_by_length else f"{hit.score:.6g}  "
        where = f"{one_line(answer.titles[hit.material_id])} ({one_line(hit.relative_path or hit.material_id)})"
        lines += hit_lines(f"{rank:>3}  {score}{where}", hit, whole=whole)
    return printable_lines(lines)


# How ``regraft search`` shows what it found in a database of codex-mem.


def format_notes(answer: NoteAnswer, title: str, excerpt: int | None) -> str:
    """Return an answer for a person.

    Args:
        answer: what was found.
        title: the first line.
        excerpt: how many code points of a note are shown; None: all.
    """
    where = tr("All projects") if answer.project is None else tr("Project {project}", project=one_line(answer.project))
    lines = [
        title,
        tr(
            "{where}: {hits} by {mode}; search by meaning: {state}.",
            where=where,
            hits=format_count(len(answer.found), "hit"),
            mode=mode_label(answer.mode),
            state=state_label(answer.state),
        ),
    ]
    for rank, found in enumerate(answer.found, 1):
        body = one_line(found.hit.text.removeprefix(found.title), None if excerpt is None else excerpt + 1)
        shown = body if excerpt is None or len(body) <= excerpt else f"{body[:excerpt]}…"
        kind = one_line(f"{found.type}, {found.status}, {found.hit.material_id}")
        lines += ["", f"{rank:>3}  {found.hit.score:.6g}  {one_line(found.title)}  ({kind})", f"     {shown}"]
    return printable_lines(lines)


# Text output of ``regraft search`` in a data folder of AngelMemory.


def format_records(answer: Answer, title: str) -> str:
    """Return the answer as text; ``title`` is its first line."""
    hits = format_count(len(answer.hits), "hit")
    lines = [title, tr("Notes: {hits} by {mode}.", hits=hits, mode=mode_label(answer.mode))]
    for rank, hit in enumerate(answer.hits, 1):
        record = hit.record
        place = one_line(" > ".join(filter(None, (record.path, *record.headings))))
        if record.short_id is None:
            head = f"{rank:>3}  {hit.score:.6g}  {place}"
        else:
            note = tr("note {short_id}", short_id=record.short_id)
            head = f"{rank:>3}  {hit.score:.6g}  {place}  ({note})"
        tags = hit.matched if answer.mode is Mode.SIMPLE else record.names
        label = tr("matching tags: {tags}") if answer.mode is Mode.SIMPLE else tr("tags: {tags}")
        lines += ["", head, "     " + one_line(label.format(tags=join_list(tags)))]
    if answer.hits:
        lines += ["", tr("regraft recall reads a note by its number.")]
    return printable_lines(lines)


@click.command()
@click.argument("path", type=PATH)
@click.argument("query")
@click.option(
    "--base",
    metavar="NAME",
    shell_complete=options.complete_bases,
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
@report_errors
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
    with open_store(path, Kind(kind) if kind else None) as source:
        run.source_kind, run.source = source.kind.value, source.path if source.notices else path
        found = queries.search_source(source, request)
        run.end()
    if not quiet:
        _note_all(found.notes)
    if as_json:
        echo_json(encoded(queries.build_search_report(run.head(), found)))
    else:
        title = tr("{path} is {names}.", path=printable(path), names=KIND_NAMES[source.kind])
        echo(_format_result(found, title, whole=verbose > 0, raw=raw))
    sys.exit(int(queries.is_damaged(found)))


def _format_result(found: SearchResult, title: str, *, whole: bool, raw: bool) -> str:
    match found:
        case codex_mem.NoteAnswer():
            return format_notes(found, title, None if whole else EXCERPT)
        case rsclaw.ChunkAnswer():
            return format_chunks(found, title, whole=whole)
        case angel_memory.Answer():
            return format_records(found, title)
        case _:
            return format_bases(found, title, whole=whole, raw=raw)


def _note_all(notes: Iterable[str]) -> None:
    for one in notes:
        echo_error(tr("note: {one}", one=one))


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
    return parse_vector(raw, tr("--vector {where}", where=where))


def parse_vector(raw: bytes, where: str) -> tuple[float, ...]:
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


# ``regraft recall``: lines of a note.


_LINES = re.compile(r"(?=.*\d)(\d*):(\d*)", re.ASCII)

#: SQLite has no higher numbers.
_HIGHEST = 2**63 - 1


def _refuse_shown(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Say what is meant by the id that AngelMemory shows for 0."""
    if value:
        raise click.UsageError(tr("AngelMemory shows the short id 0 as -1; give 0"))


def _span(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Span:
    """Return the lines that an option names."""
    if value is None:
        return Span()
    found = _LINES.fullmatch(value)
    if found is None:
        raise click.BadParameter(tr("{value!r} is not a range like 3:12, 3: or :12", value=value))
    try:
        return Span(*(int(end) if end else None for end in found.groups()))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("path", type=PATH)
@click.argument("short_id", type=click.IntRange(min=0, max=_HIGHEST))
@click.option("-1", "is_shown", is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_refuse_shown)
@click.option(
    "--lines", "span", callback=_span, metavar="A:B", help=tr("Only lines A to B, from 1 on; either may be left out.")
)
@click.option(
    "--token-budget",
    type=click.IntRange(min=1),
    metavar="N",
    help=tr("At most about N tokens: lines from the end are left out."),
)
@output_options
@report_errors
def recall(
    path: Path,
    short_id: int,
    span: Span,
    token_budget: int | None,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Read the note with SHORT_ID from its file, as it is now. Nothing is written.

    PATH is a data folder of AngelMemory.

    \b
    Example:
      regraft recall data/plugin_data/AngelMemory 8
    """
    found = api.recall(path, short_id, kind=kind, first=span.first, last=span.last, token_budget=token_budget)
    if as_json:
        echo_json(encoded(found))
        return
    if not quiet:
        echo(_head(found, verbose=verbose > 0))
    text = found.content.replace("\r\n", "\n")
    echo(f"{text}\n", as_it_is=True)
    if found.truncated and not quiet:
        echo_error(tr("note: {left}", left=_left(found, token_budget)))


def _left(found: RecallReport, token_budget: int | None) -> str:
    """Return what the budget left out, and how to read it."""
    if found.line_cut:
        return tr(
            "line {line} is longer than the budget of {token_budget} tokens, so its end is left out; give a larger"
            " --token-budget",
            line=found.actual_start_line,
            token_budget=token_budget,
        )
    return tr(
        "the budget of {token_budget} tokens ends here; go on with --lines {end}:",
        token_budget=token_budget,
        end=found.actual_end_line + 1,
    )


def _head(found: RecallReport, *, verbose: bool) -> str:
    """Return what stands above the lines for a person."""
    place = join_list(filter(None, (found.path, " > ".join(found.headings))))
    title = tr("Note {short_id}: {place}", short_id=found.note_short_id, place=place)
    tokens = format_count(found.tokens, "token")
    lines = [
        one_line(title),
        tr(
            "lines {start} to {end} of {total_lines}, about {tokens}",
            start=found.actual_start_line,
            end=found.actual_end_line,
            total_lines=found.total_lines,
            tokens=tokens,
        ),
    ]
    if verbose:
        lines += [tr("tags {names}", names=one_line(join_list(found.tags))), found.source_id]
    return printable_lines([*lines, ""])
