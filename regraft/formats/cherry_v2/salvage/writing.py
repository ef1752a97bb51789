"""Count the results of a salvage, write the proven rows to a new index file, and verify it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from regraft.disk import sqlite
from regraft.errors import VerificationFailed
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, full_text_matches, write_indexes
from regraft.formats.cherry_v2.salvage import found_rows
from regraft.formats.cherry_v2.salvage.found_rows import (
    COPY,
    DAMAGED,
    DELETED,
    IS_KEPT,
    KEPT,
    LOST,
    MADE,
    REASONS,
    fetch_rows,
    fetch_value,
)
from regraft.formats.sqlite_pages import Reading
from regraft.language import tr
from regraft.text import decode_utf8

#: Schema name of the attached database of proven rows.
_PROVEN = "proven"
#: SQL expressions over the proven rows for the columns of each table. Texts are stored as bytes there.
_COLUMNS = {
    "content": {"content_hash": "CAST(key AS TEXT)", "text": "CAST(text AS TEXT)", "created_at": "created"},
    "material": {
        "material_id": "CAST(key AS TEXT)",
        "relative_path": "CAST(path AS TEXT)",
        "current_content_hash": "CAST(content AS TEXT)",
        "created_at": "created",
        "updated_at": "updated",
    },
    "search_unit": {
        "unit_id": "CAST(key AS TEXT)",
        "material_id": "CAST(material AS TEXT)",
        "content_hash": "CAST(content AS TEXT)",
        "unit_type": "'chunk'",
        "unit_index": "unit_index",
        "title": "CAST(title AS TEXT)",
        "char_start": "start",
        "char_end": "stop",
        "locator_json": "CAST(locator AS TEXT)",
        "created_at": "created",
    },
    "search_text": {
        "search_text_id": "CAST(key AS TEXT)",
        "target_type": "'search_unit'",
        "target_id": "CAST(target AS TEXT)",
        "kind": "'body'",
        "text": "CAST(text AS TEXT)",
        "embedding_text_hash": "CAST(hash AS TEXT)",
        "created_at": "created",
    },
    "embedding": {"embedding_text_hash": "CAST(key AS TEXT)", "vector_blob": "vector", "created_at": "created"},
}


def number_bodies(db: apsw.Connection) -> None:
    """Give every kept body a number in the full-text index: its own, or one after all others.

    The numbers are in the new table ``numbered``.
    """
    db.execute("CREATE TABLE numbered (number INTEGER PRIMARY KEY, seq INTEGER UNIQUE)")
    number = "typeof(number) = 'integer' AND number > 0"
    for numbers, chosen in (("number", f"fate = '{KEPT}'"), ("number", f"fate = '{MADE}'"), ("rid", IS_KEPT)):
        condition = number.replace("number", numbers)
        db.execute(
            f"""INSERT OR IGNORE INTO numbered SELECT {numbers}, seq FROM search_text
                 WHERE {chosen} AND {condition} AND seq NOT IN (SELECT seq FROM numbered) ORDER BY seq"""
        )
    db.execute(
        f"""INSERT INTO numbered
            SELECT (SELECT ifnull(max(number), 0) FROM numbered) + row_number() OVER (ORDER BY seq), seq
              FROM search_text WHERE {IS_KEPT} AND seq NOT IN (SELECT seq FROM numbered)"""
    )


def write_index(proven: Path, new: Path, base_id: str, now_ms: int) -> None:
    """Write the proven rows to a new index.

    Args:
        proven: the database of proven rows.
        new: the new file.
        base_id: id of the base.
        now_ms: time of the index if it has none, in ms.

    Raises:
        VerificationFailed: the new file differs from what was proven.
        apsw.Error, OSError: the database cannot be read or the file cannot be written.
    """
    with sqlite.open_writable(new, create=True) as db:
        with sqlite.attach_readonly(db, proven, _PROVEN):
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
            for statement in schema.TABLES:
                db.execute(statement)
            db.execute(
                "INSERT INTO main.meta VALUES (1, ?1, ?2, ifnull((SELECT created FROM proven.identity), ?3),"
                " ifnull((SELECT updated FROM proven.identity), ?3))",
                (schema.SCHEMA_VERSION, base_id, now_ms),
            )
            for table, columns in _COLUMNS.items():
                _write_table(db, table, columns)
            write_indexes(db)
            db.execute("COMMIT")
            _compare(db, base_id)
        _verify(db, base_id)


def _write_table(db: apsw.Connection, table: str, columns: dict[str, str]) -> None:
    """Copy the proven rows of a table to the new index; ``columns`` maps its columns to SQL expressions."""
    names, values = ", ".join(columns), ", ".join(columns.values())
    if table == "search_text":
        # Keep row ids equal to the full-text numbers, for readers that use row ids.
        db.execute(
            f"""INSERT INTO main.search_text (rowid, fts_rowid, {names})
                SELECT given, given, {values} FROM proven.search_text JOIN
                  (SELECT seq AS of_row, number AS given FROM proven.numbered) ON of_row = seq
                 ORDER BY given"""
        )
        return
    db.execute(
        f"INSERT INTO main.{table} ({names}) SELECT {values} FROM proven.{table} WHERE {IS_KEPT}"
        " ORDER BY rid IS NULL, rid"
    )


def _compare(db: apsw.Connection, base_id: str) -> None:
    """Compare every row of the new index with what was proven, byte by byte; raises VerificationFailed."""
    for table, columns in _COLUMNS.items():
        key = next(iter(columns))
        qualified = {
            name: value
            if value.startswith("'")
            else value.replace("CAST(", "CAST(p.")
            if "CAST" in value
            else f"p.{value}"
            for name, value in columns.items()
        }
        same = " AND ".join(f"n.{name} IS {value}" for name, value in qualified.items())
        query = (
            f"SELECT (SELECT count(*) FROM proven.{table} WHERE {IS_KEPT}) = (SELECT count(*) FROM main.{table})"
            f" AND NOT EXISTS (SELECT 1 FROM proven.{table} p LEFT JOIN main.{table} n ON n.{key} = CAST(p.key AS TEXT)"
            f" WHERE p.{IS_KEPT} AND NOT ({same}))"
        )
        if not db.execute(query).get:
            raise VerificationFailed(base=base_id, reason=tr("texts or vectors differ"))


def _verify(db: apsw.Connection, base_id: str) -> None:
    """Raise VerificationFailed if the new index has dangling references, damage or a wrong full-text index."""

    def demand(condition: Any, reason: str) -> None:
        """Raise VerificationFailed unless a condition holds."""
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    demand(not db.execute("PRAGMA foreign_key_check").fetchall(), tr("a foreign key refers to a missing row"))
    demand(db.execute("PRAGMA quick_check(1)").get == "ok", tr("SQLite's quick_check failed"))
    demand(full_text_matches(db), tr("the full-text index does not match the stored texts"))


# Totals of a salvage (``docs/formats/index.md``, "Salvage").


#: Names of the tables in counts.
KINDS = {
    "material": "materials",
    "content": "contents",
    "search_unit": "units",
    "search_text": "bodies",
    "embedding": "embeddings",
}
#: Approximate bytes that rows take in a file; a trigram index takes twice the bytes of its texts.
_SIZES = {"content": "length(text)", "search_text": "3 * length(text) + 1000", "embedding": "length(vector) + 200"}


class TableTally(Struct, frozen=True, kw_only=True):
    """Rows of a table: kept as they are, derived, and refused by reason."""

    carried: int
    derived: int
    refused: dict[str, int]

    @property
    def in_new_file(self) -> int:
        """Number of rows in the new file."""
        return self.carried + self.derived

    @property
    def about(self) -> int:
        """Estimated number of rows before the damage."""
        return self.in_new_file + sum(self.refused.values())


class PagesTally(Struct, frozen=True, kw_only=True):
    """Pages of the file, pages whose content is known, and the page size in bytes."""

    pages: int
    read: int
    page_bytes: int


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a salvage.

    Attributes:
        rows: by the names in :data:`KINDS`.
        deleted: rows that had been deleted before the damage and were still found.
        pages: how much of the file was read.
        lacking: bodies without a vector.
        units: number of units by material id, for materials that have any.
        partial: ids of materials that lack some of their units.
        traced: ids of materials that left any trace; None if the list may be incomplete.
        unnamed: ids of materials whose path is unknown; their id is used as path.
        bytes: approximate size of the new file.
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
        """Number of salvaged texts and vectors."""
        return self.rows["bodies"].in_new_file + self.rows["embeddings"].in_new_file

    @property
    def about(self) -> int:
        """Estimated number of texts and vectors before the damage."""
        return self.rows["bodies"].about + self.rows["embeddings"].about


def count_results(db: apsw.Connection, reading: Reading, unnamed: Sequence[str]) -> Tally:
    """Count the decisions about the rows of all tables.

    Args:
        db: database of the found rows.
        reading: the reading of the damaged file.
        unnamed: ids of materials whose path is unknown.
    """
    deleted = 0
    rows: dict[str, TableTally] = {}
    for table, kind in KINDS.items():
        _add_lost_rows(db, table)
        counts = {
            str(fate): int(str(count)) for fate, count in db.execute(f"SELECT fate, count(*) FROM {table} GROUP BY 1")
        }
        deleted += counts.get(DELETED, 0)
        refused = {reason: counts[reason] for reason in REASONS if counts.get(reason)}
        rows[kind] = TableTally(carried=counts.get(KEPT, 0), derived=counts.get(MADE, 0), refused=refused)
    lacking = fetch_value(
        db,
        f"SELECT count(*) FROM search_text WHERE {IS_KEPT} AND hash NOT IN (SELECT key FROM embedding WHERE {IS_KEPT})",
    )
    units, partial = _count_units(db)
    traced = None
    if reading.coverage["material"].is_whole or reading.coverage[found_rows.MATERIAL_KEY].is_whole:
        # All materials that a row, a key or a unit refers to.
        keys = fetch_rows(
            db,
            "SELECT key FROM material UNION SELECT key FROM index_key WHERE name = ?"
            " UNION SELECT material FROM search_unit",
            (found_rows.MATERIAL_KEY,),
        )
        traced = frozenset(decode_utf8(key) for (key,) in keys if isinstance(key, bytes))
    counts_of = reading.counts
    read = counts_of.pages.total() + counts_of.overflow + counts_of.inner + counts_of.free
    size = sum(
        fetch_value(db, f"SELECT ifnull(sum({size}), 0) FROM {table} WHERE {IS_KEPT}") for table, size in _SIZES.items()
    )
    return Tally(
        rows=rows,
        deleted=deleted,
        pages=PagesTally(pages=reading.file.pages, read=read, page_bytes=reading.file.page_size),
        lacking=lacking,
        units=units,
        partial=partial,
        traced=traced,
        unnamed=tuple(unnamed),
        bytes=size,
    )


def _add_lost_rows(db: apsw.Connection, table: str) -> None:
    """Add a lost row for each index key of a table that has no row.

    Before, damaged rows that have a kept copy, and those that may have been deleted, are reclassified.
    """
    name = found_rows.KEY_OF[table]
    db.execute(
        f"""UPDATE {table} SET fate = '{COPY}' WHERE fate = '{DAMAGED}' AND (
              key IN (SELECT key FROM {table} WHERE {IS_KEPT})
              OR rid IN (SELECT rid FROM index_key
                          WHERE name = ?1 AND key IN (SELECT key FROM {table} WHERE {IS_KEPT})))""",
        (name,),
    )
    # It is unknown whether a damaged row on a page with deleted rows was deleted; it counts as deleted.
    db.execute(f"UPDATE {table} SET fate = '{DELETED}' WHERE fate = '{DAMAGED}' AND strength > 1")
    columns = len(db.execute(f"PRAGMA table_info({table})").fetchall()) - 5
    db.execute(
        f"""INSERT INTO {table} SELECT NULL, 0, k.rid, '{LOST}', k.key{", NULL" * columns}
              FROM index_key k WHERE k.name = ?1 AND typeof(k.key) = 'blob'
               AND k.key NOT IN (SELECT key FROM {table} WHERE key IS NOT NULL)
               AND k.rid NOT IN (SELECT rid FROM {table}
                                  WHERE (fate = '{DAMAGED}' OR {IS_KEPT}) AND rid IS NOT NULL)""",
        (name,),
    )


def _count_units(db: apsw.Connection) -> tuple[dict[str, int], frozenset[str]]:
    """Return the number of kept units by material id, and the ids of materials that lack some of their units."""
    reasons = ", ".join(f"'{reason}'" for reason in REASONS)
    rows = fetch_rows(
        db,
        f"""SELECT material, count(*), max(unit_index) + 1,
                   EXISTS (SELECT 1 FROM search_unit r WHERE r.material = u.material AND r.fate IN ({reasons})),
                   EXISTS (SELECT 1 FROM index_key p WHERE p.name = ? AND p.key = u.material AND NOT EXISTS (
                             SELECT 1 FROM search_unit o
                              WHERE o.material = p.key AND o.unit_index = p.unit_index AND o.{IS_KEPT}))
              FROM search_unit u WHERE u.{IS_KEPT} GROUP BY material""",
        (found_rows.UNIT_PLACE,),
    )
    units = {decode_utf8(bytes(key)): count for key, count, *_ in rows}
    partial = (key for key, count, numbers, is_refused, is_lost in rows if count < numbers or is_refused or is_lost)
    return units, frozenset(decode_utf8(bytes(key)) for key in partial)
