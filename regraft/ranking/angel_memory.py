"""Recall and search of AngelMemory notes (``docs/angel-memory.md``, ``docs/search.md``).

:func:`recall` reads lines of a note's file by short id. :func:`search` finds records by tags, or by the vectors of the
collection ``notes_index``. A search hit has path, headings and tags, never the text of the note.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import links
from regraft.embedders.protocol import estimate
from regraft.errors import NoteAmbiguous, NoteGone, NoteOutside, NoteUnknown, QueryWithoutWord, SourceUnreadable
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import NOTE_TAGS, RECORDS, TAGS, AngelProblem, Record
from regraft.formats.cherry_v2.index.search import MAX_TERMS, compile_query, is_unsegmented, tokens
from regraft.language import format_count, join_list, tr
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode

#: Number of similar short ids to suggest for an unknown one.
_NEAREST = 3


@dataclass(frozen=True)
class LineRange:
    """A range of lines, from 1, both ends included; None means the first or the last line."""

    first: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the first line is after the last one."""
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError(tr("first line {first} is after last line {last}", first=self.first, last=self.last))


class NoteExcerpt(msgspec.Struct, frozen=True, kw_only=True):
    """A record and current lines of its file.

    For an empty file both line numbers are 0. If the token budget is smaller than the first line, that line is
    truncated; if it allows no character, ``end`` is less than ``start``.
    """

    record: Record
    total_lines: int
    start: int
    end: int
    content: str
    #: Estimated tokens of the content, and whether lines were omitted to stay within the budget.
    tokens: int
    is_cut: bool
    #: Whether the first line alone exceeds the budget and is truncated.
    is_line_cut: bool


def recall(root: Path, short_id: int, span: LineRange, token_budget: int | None = None) -> NoteExcerpt:
    """Read lines of a note's file. Nothing is written.

    Args:
        root: the data directory.
        short_id: short id of the note.
        span: lines to read; limited to the lines of the file.
        token_budget: maximum number of tokens; None for no limit.

    Raises:
        NoteUnknown, NoteAmbiguous: no note has the short id, or several have it.
        NoteGone, NoteOutside: the file of the note is missing, or not below ``raw/``.
        SourceUnreadable: the file or the database cannot be read.
    """
    record = _find_record(root, short_id)
    file = database.resolve_note_path(root / database.RAW, record.path)
    if file is None:
        raise NoteOutside(path=root, short_id=short_id, file=record.path)
    try:
        lines = database.split_lines(links.read_bytes(file))
    except FileNotFoundError as error:
        raise NoteGone(path=root, short_id=short_id, file=record.path) from error
    except OSError as error:
        raise SourceUnreadable(path=file, reason=error.strerror or error) from error
    start = min(max(1, span.first or 1), len(lines))
    end = min(max(1, len(lines) if span.last is None else span.last), len(lines))
    wanted = lines[max(0, start - 1) : end]
    kept = wanted if token_budget is None else _limit_tokens(wanted, token_budget)
    content = "\n".join(kept)
    is_cut = kept != wanted
    return NoteExcerpt(
        record=record,
        total_lines=len(lines),
        start=start,
        end=end - len(wanted) + len(kept),
        content=content,
        tokens=estimate(content),
        is_cut=is_cut,
        is_line_cut=is_cut and kept[:1] != wanted[:1],
    )


def _limit_tokens(lines: Sequence[str], budget: int) -> list[str]:
    """Return as many of the first lines as the token budget allows; if none fits, the beginning of the first line."""
    count = bisect_right(range(1, len(lines) + 1), budget, key=lambda count: estimate("\n".join(lines[:count])))
    if count or not lines:
        return list(lines[:count])
    first = lines[0]
    length = bisect_right(range(1, len(first) + 1), budget, key=lambda length: estimate(first[:length]))
    return [first[:length]] if length else []


def _find_record(root: Path, short_id: int) -> Record:
    """Return the record with a short id in the data directory ``root``.

    Raises NoteUnknown or NoteAmbiguous unless there is exactly one.
    """
    try:
        with database.open_records(root) as db:
            found = list(database.iterate_records(db, "r.note_short_id = ?", (short_id,)))
            if not found:
                raise NoteUnknown(path=root, short_id=short_id, known=_describe_short_ids(db, short_id))
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error
    if len(found) > 1:
        files = join_list(record.path for record in found)
        raise NoteAmbiguous(path=root, short_id=short_id, files=files)
    return found[0]


def _describe_short_ids(db: apsw.Connection, short_id: int) -> str:
    """Describe the short ids in the database nearest to ``short_id``, which it lacks, for an error message."""
    highest = database.find_highest_short_id(db)
    if highest is None:
        return tr("there are no notes")
    nearest = f"SELECT DISTINCT note_short_id FROM {RECORDS} WHERE note_short_id IS NOT NULL"
    rows = db.execute(f"{nearest} ORDER BY abs(note_short_id - ?), 1 LIMIT ?", (short_id, _NEAREST))
    near = join_list(str(number) for (number,) in sorted(rows))
    return tr("the closest short ids are {near}, the highest is {highest}", near=near, highest=highest)


# Search.


class NearestRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a vector search in the collection ``notes_index``."""

    #: Source ids of records with their squared L2 distance, nearest first.
    distances: list[tuple[str, float]]
    #: Number of records with a text to embed but without a valid vector.
    missing: int
    #: Number of vectors without a record.
    orphans: int


class RecordRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search request. ``nearest`` returns the given number of nearest records; only vector mode needs it."""

    query: str
    mode: Mode
    count: int | None = None
    nearest: Callable[[int], NearestRecords] | None = None


class RecordMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was found; ``matched`` are its tags that the query matches, in simple mode only."""

    record: Record
    score: float
    matched: tuple[str, ...] = ()


class RecordAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search: records, best first."""

    mode: Mode
    count: int
    hits: tuple[RecordMatch, ...]
    notes: tuple[str, ...] = ()


def search(root: Path, request: RecordRequest) -> RecordAnswer:
    """Search the records of a data directory.

    Raises:
        QueryWithoutWord: the query has no letter, number or ``_``.
        SourceUnreadable: the database of records cannot be read.
    """
    if not tokens(request.query):
        raise QueryWithoutWord
    count = request.count or DEFAULT_COUNT
    try:
        with database.open_records(root) as db:
            if request.nearest is None:
                return RecordAnswer(mode=Mode.SIMPLE, count=count, hits=tuple(_search_tags(db, request.query, count)))
            return _search_vectors(db, request.nearest(count), count)
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error


# --- by tags --------------------------------------------------------------------------------------------------------


class TagMatcher:
    """Decides which tags a query matches (``docs/search.md``, "Notes of AngelMemory")."""

    def __init__(self, query: str) -> None:
        self._query = query.casefold()
        compiled = compile_query(self._query)
        self._terms = compiled.terms
        self._shorts = frozenset(compiled.shorts[:MAX_TERMS])

    def matches(self, tag: str) -> bool:
        """Whether the query matches a tag: a term of the query is in the tag, or they share a short word."""
        folded = tag.casefold()
        if any(term in folded for term in self._terms):
            return True
        shorts = compile_query(folded).shorts
        return (
            not self._shorts.isdisjoint(shorts)
            # In text without spaces between words, a short word may be part of a longer run, in either direction.
            or any(is_unsegmented(short) and short in folded for short in self._shorts)
            or any(is_unsegmented(short) and short in self._query for short in shorts)
        )


def _search_tags(db: apsw.Connection, query: str, count: int) -> Iterator[RecordMatch]:
    """Yield the ``count`` records with the most tags that match the query; of equal ones, the latest updated first."""
    matcher = TagMatcher(query)
    db.create_scalar_function("regraft_matches", lambda *tags: matcher.matches(str(tags[0])), 1, deterministic=True)
    ranked: list[Any] = db.execute(
        f"""SELECT r.rowid, count(DISTINCT n.tag_id) AS hits
              FROM {NOTE_TAGS} n JOIN {RECORDS} r ON r.source_id = n.source_id
             WHERE n.tag_id IN (SELECT id FROM {TAGS} WHERE regraft_matches(CAST(name AS TEXT)))
             GROUP BY r.rowid ORDER BY hits DESC, r.updated_at DESC, r.note_short_id DESC, r.source_id LIMIT ?""",
        (count,),
    ).fetchall()
    for rowid, hits in ranked:
        for record in database.iterate_records(db, "r.rowid = ?", (rowid,)):
            matched = tuple(name for name in record.names if matcher.matches(name))
            yield RecordMatch(record=record, score=float(hits), matched=matched)


# --- by vector ------------------------------------------------------------------------------------------------------


def _search_vectors(db: apsw.Connection, nearest: NearestRecords, count: int) -> RecordAnswer:
    """Build the result from ``nearest``: the records of the vectors found, and notes on what could not be searched.

    ``db`` has the records; ``count`` is the number that was requested.
    """
    hits = tuple(
        RecordMatch(record=record, score=1 / (1 + distance))
        for source_id, distance in nearest.distances
        for record in database.iterate_records(db, "r.source_id = ?", (source_id,))
    )
    notes = []
    if nearest.missing:
        notes.append(
            tr(
                "{records} without a usable vector could not be searched; run regraft reconcile to embed them",
                records=format_count(nearest.missing, "record"),
            )
        )
    if nearest.orphans:
        vectors = format_count(nearest.orphans, "vector")
        notes.append(tr("{vectors} without a record ignored; run regraft reconcile to delete them", vectors=vectors))
    return RecordAnswer(mode=Mode.VECTOR, count=count, hits=hits, notes=tuple(notes))
