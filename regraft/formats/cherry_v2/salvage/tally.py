"""What a salvage of an index comes to, in numbers (``docs/formats/index.md``, "Salvage")."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec
from msgspec import Struct

from regraft.formats.cherry_v2.salvage import shapes
from regraft.formats.cherry_v2.salvage.scratch import (
    COPY,
    DAMAGED,
    DELETED,
    KEPT,
    LOST,
    MADE,
    REASONS,
    rows_of,
    value_of,
)
from regraft.formats.sqlite_pages import Origin, Reading
from regraft.text import decode_utf8

#: What the tables are called where their rows are counted.
KINDS = {
    "material": "materials",
    "content": "contents",
    "search_unit": "units",
    "search_text": "bodies",
    "embedding": "embeddings",
}
#: About how many bytes of a file the rows take; a full-text index of trigrams takes twice its texts.
_SIZES = {"content": "length(text)", "search_text": "3 * length(text) + 1000", "embedding": "length(vector) + 200"}
_THERE = f"fate IN ('{KEPT}', '{MADE}')"


class TableTally(Struct, frozen=True, kw_only=True):
    """How many rows of a table come along as they are, how many are derived, and why others stay."""

    carried: int
    derived: int
    refused: dict[str, int]

    @property
    def there(self) -> int:
        """Return how many rows the new file has."""
        return self.carried + self.derived

    @property
    def about(self) -> int:
        """Return how many rows there were, as far as what is left tells."""
        return self.there + sum(self.refused.values())


class PagesTally(Struct, frozen=True, kw_only=True):
    """How many pages a file has, of how many it is known what they are, and how long one is."""

    pages: int
    read: int
    page_bytes: int


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of an index.

    Attributes:
        rows: by the names of :data:`KINDS`.
        deleted: rows that were deleted before, and of which the file still had something.
        pages: how much of the file was read.
        lacking: bodies without a vector.
        units: how many units each material has that has any, by id.
        partial: ids of those of them that lack some.
        traced: ids of materials of which anything is left, or was; None where that is not known of every one.
        unnamed: ids of materials whose path nobody knows: it is their id now.
        bytes: about how large the new file is.
    """

    rows: dict[str, TableTally]
    deleted: int
    pages: PagesTally
    lacking: int
    units: dict[str, int] = msgspec.field(default_factory=dict)
    partial: frozenset[str] = frozenset()
    traced: frozenset[str] | None = None
    unnamed: tuple[str, ...] = ()
    bytes: int = 0

    @property
    def salvaged(self) -> int:
        """Return how many texts and vectors come along."""
        return self.rows["bodies"].there + self.rows["embeddings"].there

    @property
    def about(self) -> int:
        """Return how many texts and vectors there were, as far as what is left tells."""
        return self.rows["bodies"].about + self.rows["embeddings"].about


def tallied(db: apsw.Connection, reading: Reading, unnamed: Sequence[str]) -> Tally:
    """Count what was decided about every row."""
    deleted = 0
    rows: dict[str, TableTally] = {}
    for table, kind in KINDS.items():
        _name_lost(db, table)
        counts = {
            str(fate): int(str(count)) for fate, count in db.execute(f"SELECT fate, count(*) FROM {table} GROUP BY 1")
        }
        deleted += counts.get(DELETED, 0)
        refused = {reason: counts[reason] for reason in REASONS if counts.get(reason)}
        rows[kind] = TableTally(carried=counts.get(KEPT, 0), derived=counts.get(MADE, 0), refused=refused)
    lacking = value_of(
        db,
        f"SELECT count(*) FROM search_text WHERE {_THERE} AND hash NOT IN (SELECT key FROM embedding WHERE {_THERE})",
    )
    units, partial = _of_materials(db)
    is_told = reading.coverage["material"].is_whole or reading.coverage[shapes.MATERIAL_KEY].is_whole
    counts_of = reading.counts
    read = sum(counts_of.pages[origin] for origin in Origin) + counts_of.overflow + counts_of.inner + counts_of.free
    size = sum(
        value_of(db, f"SELECT ifnull(sum({size}), 0) FROM {table} WHERE {_THERE}") for table, size in _SIZES.items()
    )
    return Tally(
        rows=rows,
        deleted=deleted,
        pages=PagesTally(pages=reading.file.pages, read=read, page_bytes=reading.file.page_size),
        lacking=lacking,
        units=units,
        partial=partial,
        traced=_traced(db) if is_told else None,
        unnamed=tuple(unnamed),
        bytes=size,
    )


def _name_lost(db: apsw.Connection, table: str) -> None:
    """Count rows of which only the key in an index is left, and none twice that was read damaged and is derived."""
    name = shapes.KEY_OF[table]
    db.execute(
        f"""UPDATE {table} SET fate = '{COPY}' WHERE fate = '{DAMAGED}' AND (
              key IN (SELECT key FROM {table} WHERE {_THERE})
              OR rid IN (SELECT rid FROM index_key
                          WHERE name = ?1 AND key IN (SELECT key FROM {table} WHERE {_THERE})))""",
        (name,),
    )
    # Of damaged rows on pages where deleted ones are nobody knows whether they were deleted.
    db.execute(f"UPDATE {table} SET fate = '{DELETED}' WHERE fate = '{DAMAGED}' AND strength > 1")
    columns = len(db.execute(f"PRAGMA table_info({table})").fetchall()) - 5
    db.execute(
        f"""INSERT INTO {table} SELECT NULL, 0, k.rid, '{LOST}', k.key{", NULL" * columns}
              FROM index_key k WHERE k.name = ?1 AND typeof(k.key) = 'blob'
               AND k.key NOT IN (SELECT key FROM {table} WHERE key IS NOT NULL)
               AND k.rid NOT IN (SELECT rid FROM {table} WHERE (fate = '{DAMAGED}' OR {_THERE}) AND rid IS NOT NULL)""",
        (name,),
    )


def _of_materials(db: apsw.Connection) -> tuple[dict[str, int], frozenset[str]]:
    """Return how many units each material has that has any, and which of them lack some."""
    reasons = ", ".join(f"'{reason}'" for reason in REASONS)
    rows = rows_of(
        db,
        f"""SELECT material, count(*), max(place) + 1,
                   EXISTS (SELECT 1 FROM search_unit r WHERE r.material = u.material AND r.fate IN ({reasons})),
                   EXISTS (SELECT 1 FROM index_key p WHERE p.name = ? AND p.key = u.material AND NOT EXISTS (
                             SELECT 1 FROM search_unit o WHERE o.material = p.key AND o.place = p.place AND o.{_THERE}))
              FROM search_unit u WHERE u.{_THERE} GROUP BY material""",
        (shapes.UNIT_PLACE,),
    )
    units = {decode_utf8(bytes(key)): count for key, count, *_ in rows}
    partial = (key for key, count, numbers, is_refused, is_lost in rows if count < numbers or is_refused or is_lost)
    return units, frozenset(decode_utf8(bytes(key)) for key in partial)


def _traced(db: apsw.Connection) -> frozenset[str]:
    """Return the ids of materials that a row, a key or a unit names."""
    query = (
        "SELECT key FROM material UNION SELECT key FROM index_key WHERE name = ? UNION SELECT material FROM search_unit"
    )
    found = rows_of(db, query, (shapes.MATERIAL_KEY,))
    return frozenset(decode_utf8(key) for (key,) in found if isinstance(key, bytes))
