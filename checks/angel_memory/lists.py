"""List the records of AngelMemory and the entries of its collection (``regraft inspect --items``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import apsw
from msgspec import Struct

from checks.angel_memory.vectors import Differences
from regraft.columns import padded_left
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.database import ProviderFolder
from regraft.labels import label_of
from regraft.language import tr
from regraft.text import one_line

#: Characters of a text that are shown of a vector.
_LONGEST_TEXT = 100


class RecordLook(Struct, frozen=True, kw_only=True):
    """A record; ``vector`` is "current", "stale", "unusable", "missing", or "none" if its tags give no text."""

    note_short_id: int | None
    source_id: str
    path: str
    headings: list[str]
    tags: list[str]
    total_lines: int
    updated_at: float
    vector: str | None

    def line(self) -> str:
        """Return it as a line of text."""
        number = "-" if self.note_short_id is None else str(self.note_short_id)
        place = one_line(" > ".join([self.path, *self.headings]))
        state = "" if self.vector in (None, "current") else tr(" (vector: {state})", state=label_of(self.vector))
        return f"  {padded_left(number, 6)}  {place}{state}"


class VectorLook(Struct, frozen=True, kw_only=True):
    """An entry of the collection ``notes_index``.

    ``state`` is "current", "stale", "unusable" or "orphan". ``stored`` says where the vector lies: in Chroma's "queue",
    or in the "files" of a segment. ``dimensions`` are those of a vector in the queue; None: only chromadb can tell.
    """

    source_id: str
    document: str | None
    metadata: dict[str, Any]
    state: str
    stored: str
    dimensions: int | None

    def line(self) -> str:
        """Return it as a line of text."""
        state = "" if self.state == "current" else f" ({label_of(self.state)})"
        return f"  {one_line(self.source_id)}{state}  {one_line(self.document or '', _LONGEST_TEXT)}"


def record_looks(db: apsw.Connection, found: Differences | None) -> list[RecordLook]:
    """Return the records in the order of short ids; without ``found``, nothing is said of their vectors."""
    states = {} if found is None else _states(found, ("missing", found.missing))
    looks = [
        RecordLook(
            note_short_id=record.short_id,
            source_id=record.source_id,
            path=record.path,
            headings=list(filter(None, record.headings)),
            tags=list(record.names),
            total_lines=record.total_lines,
            updated_at=record.updated_at,
            vector=None if found is None else states.get(record.source_id, "current") if record.vector_text else "none",
        )
        for record in database.records(db)
    ]
    return sorted(looks, key=lambda one: (one.note_short_id is None, one.note_short_id or 0, one.source_id))


def vector_looks(folder: ProviderFolder, found: Differences) -> list[VectorLook]:
    """Return the entries of a provider's collection in the order of source ids.

    Raises:
        ChromaProblem, apsw.Error, OSError: the database cannot be read.
    """
    if not folder.database.is_file():
        return []
    states = _states(found, ("orphan", found.orphans))
    with chroma.reading(folder.database) as db:
        notes = chroma.collection(db, database.COLLECTION)
        if notes is None:
            return []
        lengths = {key: len(vector) // 4 for key, vector in chroma.vectors(db, notes)}
        looks = [
            VectorLook(
                source_id=entry.id,
                document=entry.document,
                metadata=entry.metadata,
                state=states.get(entry.id, "current"),
                stored="queue" if entry.id in lengths else "files",
                dimensions=lengths.get(entry.id),
            )
            for entry in chroma.entries(db, notes)
        ]
    return sorted(looks, key=lambda one: one.source_id)


def _states(found: Differences, more: tuple[str, list[str]]) -> Mapping[str, str]:
    states = dict.fromkeys(found.stale, "stale")
    states |= dict.fromkeys((*found.lengths, *found.unusable), "unusable")
    state, keys = more
    return states | dict.fromkeys(keys, state)


def lines(records: list[RecordLook], vectors: list[VectorLook]) -> Iterator[str]:
    """Yield both lists as lines of text."""
    yield tr("Records:")
    yield from (one.line() for one in records)
    yield ""
    yield tr("Vectors of the provider in use:")
    yield from (one.line() for one in vectors)
    yield ""
