"""Search the note records of AngelMemory by tags, or by the vectors of its collection ``notes_index``.

A hit is a record: its path, headings and tags, never the text of the note (``docs/search.md``, "Notes of AngelMemory").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.errors import QueryWithoutWord, SourceUnreadable
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import NOTE_TAGS, RECORDS, TAGS, AngelProblem, Record
from regraft.formats.cherry_v2.index.queries import MAX_TERMS, compiled, is_unsegmented, tokens
from regraft.language import tr
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode
from regraft.text import counted


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
        asked = compiled(self._query)
        self._terms = asked.terms
        self._shorts = frozenset(asked.shorts[:MAX_TERMS])

    def matches(self, tag: str) -> bool:
        """Whether the query matches a tag."""
        folded = tag.casefold()
        if any(term in folded for term in self._terms):
            return True
        shorts = compiled(folded).shorts
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
                records=counted(nearest.missing, "record"),
            )
        )
    if nearest.orphans:
        vectors = counted(nearest.orphans, "vector")
        notes.append(tr("{vectors} of no record left out; regraft reconcile deletes them", vectors=vectors))
    return Answer(mode=Mode.VECTOR, count=count, hits=hits, notes=tuple(notes))
