"""Reading a note of AngelMemory by its short id, from the file itself (``docs/angel-memory.md``, "Recall")."""

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

#: Short ids that are given as the nearest to one that no note has.
_NEAREST = 3


@dataclass(frozen=True)
class Span:
    """Lines that are wanted, from 1 on, both ends included; None: from the first, to the last."""

    first: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        if self.first is not None and self.last is not None and self.first > self.last:
            raise ValueError(tr("line {first} comes after line {last}", first=self.first, last=self.last))


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A note's record, and lines of its file as they are now.

    Of an empty file both lines are 0. If the budget has no room for the first line, that line is cut; if it has no room
    for a single character, the end is before the start.
    """

    record: Record
    total_lines: int
    start: int
    end: int
    content: str
    #: About how many tokens the lines have, and whether lines were left out because there were more.
    tokens: int
    is_cut: bool
    #: Whether the first line alone has more tokens than the budget, so that only its beginning is there.
    is_line_cut: bool


def recall(root: Path, short_id: int, span: Span, token_budget: int | None = None) -> Recalled:
    """Read lines of the file of a note; nothing is written.

    Args:
        root: the data folder.
        short_id: the note's.
        span: which lines; what lies beyond the file is left out.
        token_budget: at most so many tokens; None: as many as there are.

    Raises:
        NoteUnknown, NoteAmbiguous: no note has the short id, or several have it.
        NoteGone, NoteOutside: its file is not there, or not below ``raw/``.
        SourceUnreadable: its file or the database cannot be read.
    """
    record = _record(root, short_id)
    place = database.inside(root / database.RAW, record.path)
    if place is None:
        raise NoteOutside(path=root, short_id=short_id, file=record.path)
    try:
        lines = database.lines_of(links.read_bytes(place))
    except FileNotFoundError as error:
        raise NoteGone(path=root, short_id=short_id, file=record.path) from error
    except OSError as error:
        raise SourceUnreadable(path=place, reason=error.strerror or error) from error
    start = min(max(1, span.first or 1), len(lines))
    end = min(max(1, len(lines) if span.last is None else span.last), len(lines))
    wanted = lines[max(0, start - 1) : end]
    kept = wanted if token_budget is None else _fitting(wanted, token_budget)
    content = "\n".join(kept)
    is_cut = kept != wanted
    return Recalled(
        record=record,
        total_lines=len(lines),
        start=start,
        end=end - len(wanted) + len(kept),
        content=content,
        tokens=estimate(content),
        is_cut=is_cut,
        is_line_cut=is_cut and kept[:1] != wanted[:1],
    )


def _fitting(lines: Sequence[str], budget: int) -> list[str]:
    """Return the lines from the first on that have no more tokens than ``budget``, joined.

    If the first line alone has more, return its beginning.
    """
    count = bisect_right(range(1, len(lines) + 1), budget, key=lambda count: estimate("\n".join(lines[:count])))
    if count or not lines:
        return list(lines[:count])
    first = lines[0]
    length = bisect_right(range(1, len(first) + 1), budget, key=lambda length: estimate(first[:length]))
    return [first[:length]] if length else []


def _record(root: Path, short_id: int) -> Record:
    try:
        with database.reading(root) as db:
            found = list(database.records(db, "r.note_short_id = ?", (short_id,)))
            if not found:
                raise NoteUnknown(path=root, short_id=short_id, known=_known(db, short_id))
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error
    if len(found) > 1:
        files = join_list(record.path for record in found)
        raise NoteAmbiguous(path=root, short_id=short_id, files=files)
    return found[0]


def _known(db: apsw.Connection, short_id: int) -> str:
    """Return the short ids that there are, for a person."""
    highest = database.highest_short_id(db)
    if highest is None:
        return tr("there are no notes")
    nearest = f"SELECT DISTINCT note_short_id FROM {RECORDS} WHERE note_short_id IS NOT NULL"
    rows = db.execute(f"{nearest} ORDER BY abs(note_short_id - ?), 1 LIMIT ?", (short_id, _NEAREST))
    near = join_list(str(number) for (number,) in sorted(rows))
    return tr("the nearest are {near}, the highest is {highest}", near=near, highest=highest)


# Search the note records of AngelMemory by tags, or by the vectors of its collection ``notes_index``.
#
# A hit is a record: its path, headings and tags, never the text of the note (``docs/search.md``, "Notes of AngelMemory").


class Nearest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search in the collection ``notes_index``."""

    #: Source ids with their squared L2 distance, nearest first; every one is the id of a record.
    distances: list[tuple[str, float]]
    #: Records that have a vector text and no usable vector.
    missing: int
    #: Vectors whose id is no record.
    orphans: int


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A search request; ``nearest`` returns the given number of nearest records and is needed by vector mode only."""

    query: str
    mode: Mode
    count: int | None = None
    nearest: Callable[[int], Nearest] | None = None


class FoundRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was found; ``matched`` are those of its tags that the query matches, in simple mode only."""

    record: Record
    score: float
    matched: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Records, best first, and how they were found."""

    mode: Mode
    count: int
    hits: tuple[FoundRecord, ...]
    notes: tuple[str, ...] = ()


def search(root: Path, request: Request) -> Answer:
    """Search the records of a data folder.

    Raises:
        QueryWithoutWord: the query has no letter, number or ``_``.
        SourceUnreadable: the database of records cannot be read.
    """
    if not tokens(request.query):
        raise QueryWithoutWord
    count = request.count or DEFAULT_COUNT
    try:
        with database.reading(root) as db:
            if request.nearest is None:
                return Answer(mode=Mode.SIMPLE, count=count, hits=tuple(_by_tags(db, request.query, count)))
            return _by_vector(db, request.nearest(count), count)
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error


# --- by tags --------------------------------------------------------------------------------------------------------


class TagMatcher:
    """Decides which tags a query matches (``docs/search.md``, "Notes of AngelMemory")."""

    def __init__(self, query: str) -> None:
        self._query = query.casefold()
        asked = compile_query(self._query)
        self._terms = asked.terms
        self._shorts = frozenset(asked.shorts[:MAX_TERMS])

    def matches(self, tag: str) -> bool:
        """Whether the query matches a tag."""
        folded = tag.casefold()
        if any(term in folded for term in self._terms):
            return True
        shorts = compile_query(folded).shorts
        return (
            not self._shorts.isdisjoint(shorts)
            # Text without spaces between words: a short word is found inside a longer run, in either direction.
            or any(is_unsegmented(short) and short in folded for short in self._shorts)
            or any(is_unsegmented(short) and short in self._query for short in shorts)
        )


def _by_tags(db: apsw.Connection, query: str, count: int) -> Iterator[FoundRecord]:
    """Yield the records with the most matching tags; of equal numbers, the one updated last comes first."""
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
        for record in database.records(db, "r.rowid = ?", (rowid,)):
            matched = tuple(name for name in record.names if matcher.matches(name))
            yield FoundRecord(record=record, score=float(hits), matched=matched)


# --- by vector ------------------------------------------------------------------------------------------------------


def _by_vector(db: apsw.Connection, nearest: Nearest, count: int) -> Answer:
    hits = tuple(
        FoundRecord(record=record, score=1 / (1 + distance))
        for source_id, distance in nearest.distances
        for record in database.records(db, "r.source_id = ?", (source_id,))
    )
    notes = []
    if nearest.missing:
        notes.append(
            tr(
                "{records} without a usable vector could not be found; regraft reconcile embeds them",
                records=format_count(nearest.missing, "record"),
            )
        )
    if nearest.orphans:
        vectors = format_count(nearest.orphans, "vector")
        notes.append(tr("{vectors} of no record left out; regraft reconcile deletes them", vectors=vectors))
    return Answer(mode=Mode.VECTOR, count=count, hits=hits, notes=tuple(notes))
