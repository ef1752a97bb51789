"""The commands ``search`` and ``recall``, and their text output for each kind of store."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from pathlib import Path

import click
import msgspec

from regraft import api
from regraft.api import queries
from regraft.api.queries import SearchResult
from regraft.cli.options import PATH, Output, output_options, struct_options
from regraft.cli.output import echo, echo_error, echo_json, report_errors
from regraft.errors import SourceUnreadable, WrongUsage
from regraft.formats.cherry_v2.index.search import Hit, vector_blob
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import format_count, join_list, tr
from regraft.options import RecallOptions, SearchOptions
from regraft.ranking import angel_memory, codex_mem, rsclaw
from regraft.ranking.angel_memory import LineRange, RecordAnswer
from regraft.ranking.cherry_v2 import Mode, UnitAnswer
from regraft.ranking.codex_mem import NoteAnswer
from regraft.ranking.reports import RecallReport
from regraft.ranking.rsclaw import ChunkAnswer
from regraft.ranking.several_bases import CombinedAnswer, base_label
from regraft.report.document import encoded
from regraft.report.labels import mode_label, state_label
from regraft.text import one_line, printable, printable_lines

#: Code points of a text shown without ``-v``.
_EXCERPT = 160


def format_bases(answer: UnitAnswer | CombinedAnswer, title: str, *, whole: bool, raw: bool) -> str:
    """Format the hits in one base or all bases.

    Args:
        answer: the hits.
        title: the first line.
        whole: show complete texts.
        raw: show the scores of the index even if hits are ranked by length.
    """
    if isinstance(answer, CombinedAnswer):
        return _format_combined(answer, title, whole=whole)
    base = answer.base_id if answer.base_name is None else f"{one_line(answer.base_name)} ({answer.base_id})"
    lines = [title, tr("Base {base}: {counted}.", base=base, counted=_format_counts(answer))]
    has_score = raw or not answer.is_by_length
    for rank, hit in enumerate(answer.hits, 1):
        score = f"{hit.score:.6g}  " if has_score else ""
        lines += hit_lines(f"{rank:>3}  {score}{_format_hit_item(answer, hit)}", hit, whole=whole)
    return printable_lines(lines)


def _format_combined(found: CombinedAnswer, title: str, *, whole: bool) -> str:
    """Format the hits in all bases; ``title`` is the first line, ``whole`` shows complete texts."""
    modes = Counter(answer.mode.value for answer in found.answers)
    message = join_list(
        tr("{bases} by {mode}", bases=format_count(number, "base"), mode=mode_label(mode))
        for mode, number in modes.items()
    )
    lines = [
        title,
        tr(
            "{hits} in all bases, merged by rank; searched: {said}.",
            hits=format_count(len(found.hits), "hit"),
            said=message,
        ),
    ]
    if found.not_searched:
        names = join_list(base_label(one.base_id, one.base_name) for one in found.not_searched)
        lines.append(tr("Not searched: {names}.", names=names))
    names_of = Counter(answer.base_name for answer in found.answers)
    for rank, ranked in enumerate(found.hits, 1):
        answer = ranked.answer
        base = base_label(answer.base_id, answer.base_name)
        if answer.base_name is not None and names_of[answer.base_name] > 1:
            base += f" ({answer.base_id})"
        lines += hit_lines(f"{rank:>3}  {base}: {_format_hit_item(answer, ranked.hit)}", ranked.hit, whole=whole)
    return printable_lines(lines)


def _format_counts(answer: UnitAnswer) -> str:
    """Format the number of hits in a base, how they were searched, and how many were dropped."""
    weight = "" if answer.alpha is None else tr(", alpha {alpha:g}", alpha=answer.alpha)
    dropped = (
        tr(", {dropped} more of items that are missing or not completed", dropped=answer.dropped)
        if answer.dropped
        else ""
    )
    return tr(
        "{hits} by {mode}{weight}{dropped}",
        hits=format_count(len(answer.hits), "hit"),
        mode=mode_label(answer.mode),
        weight=weight,
        dropped=dropped,
    )


def hit_lines(head: str, hit: Hit, *, whole: bool) -> list[str]:
    """Format a hit as lines: an empty one, ``head`` with the number of the unit, and the text or an excerpt."""
    text = _excerpt(hit.text, whole=whole)
    return ["", tr("{head}, unit {unit_index}", head=head, unit_index=hit.unit_index), f"     {text}"]


def _excerpt(text: str, *, whole: bool) -> str:
    """Return the beginning of a text in one line; with ``whole``, all of it."""
    body = one_line(text, None if whole else _EXCERPT + 1)
    return body if whole or len(body) <= _EXCERPT else f"{body[:_EXCERPT]}…"


def _format_hit_item(answer: UnitAnswer, hit: Hit) -> str:
    """Format the name of the item that a hit is in, and its path if that differs."""
    path = one_line(hit.relative_path or hit.material_id)
    name = one_line(answer.item_names.get(hit.material_id) or path)
    return name if name == path else f"{name} ({path})"


# How ``regraft search`` shows what it found in a KB of rsclaw.


def format_chunks(answer: ChunkAnswer, title: str, *, whole: bool) -> str:
    """Format the hits in a knowledge base of rsclaw.

    Args:
        answer: the hits.
        title: the first line.
        whole: show complete texts.
    """
    callers = join_list(map(one_line, answer.scope.words)) or tr("all users")
    hits, mode = format_count(len(answer.hits), "hit"), mode_label(answer.mode)
    lines = [title, tr("Documents visible to {callers}: {hits} by {mode}.", callers=callers, hits=hits, mode=mode)]
    for rank, hit in enumerate(answer.hits, 1):
        score = "" if answer.is_by_length else f"{hit.score:.6g}  "
        where = f"{one_line(answer.titles[hit.material_id])} ({one_line(hit.relative_path or hit.material_id)})"
        lines += hit_lines(f"{rank:>3}  {score}{where}", hit, whole=whole)
    return printable_lines(lines)


# How ``regraft search`` shows what it found in a database of codex-mem.


def format_notes(answer: NoteAnswer, title: str, *, whole: bool) -> str:
    """Format the hits in a database of codex-mem. Arguments as for :func:`format_chunks`."""
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
        shown = _excerpt(found.hit.text.removeprefix(found.title), whole=whole)
        kind = one_line(f"{found.type}, {found.status}, {found.hit.material_id}")
        lines += ["", f"{rank:>3}  {found.hit.score:.6g}  {one_line(found.title)}  ({kind})", f"     {shown}"]
    return printable_lines(lines)


# Text output of ``regraft search`` in a data folder of AngelMemory.


def format_records(answer: RecordAnswer, title: str) -> str:
    """Format the hits in a data folder of AngelMemory; ``title`` is the first line."""
    hits = format_count(len(answer.hits), "hit")
    lines = [title, tr("Notes: {hits} by {mode}.", hits=hits, mode=mode_label(answer.mode))]
    for rank, hit in enumerate(answer.hits, 1):
        record = hit.record
        place = one_line(" > ".join(filter(None, (record.path, *record.headings))))
        head = f"{rank:>3}  {hit.score:.6g}  {place}"
        if record.short_id is not None:
            head += f"  ({tr('note {short_id}', short_id=record.short_id)})"
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
    "--vector", metavar="FILE|-", help=tr("The query's vector: a file (or stdin) with one JSON array of numbers.")
)
@report_errors
@struct_options(SearchOptions, without=("vector",))
@output_options()
def search(path: Path, query: str, vector: str | None, options: SearchOptions, output: Output) -> None:
    """Search bases for QUERY as the application does. Nothing is written.

    Without --base all bases are searched. PATH is a v2 library, profile or backup, one base folder, an index.sqlite,
    a database of codex-mem, a knowledge base of rsclaw, a data folder of AngelMemory, or a folder of Chroma.

    \b
    Example:
      regraft search library "annual leave" --base Handbook
    """
    if vector is not None:
        if options.embedder is not None:
            raise WrongUsage(problem=tr("--vector and --embedder exclude each other"), hint=tr("give one of them"))
        options = msgspec.structs.replace(options, vector=_read_vector(vector))
    head, found = queries.search_path(path, query, options)
    for notice in () if output.quiet else found.notes:
        echo_error(tr("note: {one}", one=notice))
    if output.as_json:
        echo_json(encoded(queries.build_search_report(head, found)))
    else:
        kind = head.source.kind if head.source else None
        title = tr("{path} is {names}.", path=printable(path), names=KIND_NAMES[Kind(kind)] if kind else "")
        echo(_format_result(found, title, whole=output.verbose > 0, raw=options.raw))
    sys.exit(int(queries.is_damaged(found)))


def _format_result(result: SearchResult, title: str, *, whole: bool, raw: bool) -> str:
    """Format the hits in any kind of store. Arguments as for :func:`format_bases`."""
    match result:
        case codex_mem.NoteAnswer():
            return format_notes(result, title, whole=whole)
        case rsclaw.ChunkAnswer():
            return format_chunks(result, title, whole=whole)
        case angel_memory.RecordAnswer():
            return format_records(result, title)
        case _:
            return format_bases(result, title, whole=whole, raw=raw)


def _read_vector(name: str) -> tuple[float, ...]:
    """Read a query's vector from the file ``name``, or from stdin if it is "-".

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
    """Parse a vector from JSON text; ``where`` is the input that the error names.

    Raises:
        WrongUsage: it is not an array of numbers that fit into float32.
    """
    try:
        numbers = msgspec.json.decode(raw, type=tuple[float, ...])
        vector_blob(numbers)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        raise WrongUsage(
            problem=tr("{where}: not a vector: {error}", where=where, error=error),
            hint=tr("expected one JSON array of numbers"),
        ) from error
    if not numbers or not all(map(math.isfinite, numbers)):
        raise WrongUsage(
            problem=tr("{where}: not a vector", where=where), hint=tr("expected one JSON array of numbers")
        )
    return numbers


# ``regraft recall``: lines of a note.


_LINES = re.compile(r"(?=.*\d)(\d*):(\d*)", re.ASCII)

#: SQLite has no higher numbers.
_HIGHEST = 2**63 - 1


def _refuse_minus_one(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Explain that the short id 0, which AngelMemory displays as -1, must be given as 0; a callback of click."""
    if value:
        raise click.UsageError(tr("AngelMemory displays the short id 0 as -1; use 0"))


def _parse_line_range(_context: click.Context, _parameter: click.Parameter, value: str | None) -> LineRange:
    """Parse the lines of ``--lines A:B``; None: all lines. A callback of click."""
    if value is None:
        return LineRange()
    found = _LINES.fullmatch(value)
    if found is None:
        raise click.BadParameter(tr("{value!r} is not a range like 3:12, 3: or :12", value=value))
    try:
        return LineRange(*(int(end) if end else None for end in found.groups()))
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command()
@click.argument("path", type=PATH)
@click.argument("short_id", type=click.IntRange(min=0, max=_HIGHEST))
@click.option(
    "-1", "is_shown", is_flag=True, is_eager=True, expose_value=False, hidden=True, callback=_refuse_minus_one
)
@click.option(
    "--lines",
    "span",
    callback=_parse_line_range,
    metavar="A:B",
    help=tr("Only lines A to B, counted from 1; either may be omitted."),
)
@report_errors
@struct_options(RecallOptions, without=("first", "last"))
@output_options()
def recall(path: Path, short_id: int, span: LineRange, options: RecallOptions, output: Output) -> None:
    """Read the note with SHORT_ID from its file, as it is now. Nothing is written.

    PATH is a data folder of AngelMemory.

    \b
    Example:
      regraft recall data/plugin_data/AngelMemory 8
    """
    options = msgspec.structs.replace(options, first=span.first, last=span.last)
    found = api.recall(path, short_id, options)
    if output.as_json:
        echo_json(encoded(found))
        return
    if not output.quiet:
        echo(_head(found, verbose=output.verbose > 0))
    text = found.content.replace("\r\n", "\n")
    echo(f"{text}\n", as_it_is=True)
    if found.truncated and not output.quiet:
        echo_error(tr("note: {left}", left=_describe_omitted(found, options.token_budget)))


def _describe_omitted(report: RecallReport, token_budget: int | None) -> str:
    """Explain which end of a note the token budget omitted, and how to read it.

    ``token_budget`` is the user's limit, which was reached.
    """
    if report.line_cut:
        return tr(
            "line {line} is longer than the budget of {token_budget} tokens, so its end is omitted; give a "
            "larger --token-budget",
            line=report.actual_start_line,
            token_budget=token_budget,
        )
    return tr(
        "the budget of {token_budget} tokens is used up; continue with --lines {end}:",
        token_budget=token_budget,
        end=report.actual_end_line + 1,
    )


def _head(report: RecallReport, *, verbose: bool) -> str:
    """Format the lines above a note's text; ``verbose``: with tags and source id."""
    place = join_list(filter(None, (report.path, " > ".join(report.headings))))
    title = tr("Note {short_id}: {place}", short_id=report.note_short_id, place=place)
    tokens = format_count(report.tokens, "token")
    lines = [
        one_line(title),
        tr(
            "lines {start} to {end} of {total_lines}, about {tokens}",
            start=report.actual_start_line,
            end=report.actual_end_line,
            total_lines=report.total_lines,
            tokens=tokens,
        ),
    ]
    if verbose:
        lines += [tr("tags {names}", names=one_line(join_list(report.tags))), report.source_id]
    return printable_lines([*lines, ""])
