"""Builds the index of one base from the rows of a Parquet file, and reads it back.

Rows come in any order and are written as they come; a material's content, which its units add up to, is written and
checked when all of them are there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apsw

from migrators.parquet import large
from regraft import identity, sqlite
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.formats.cherry_v2.index import BODY_SEPARATOR, schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, rebuild_full_text
from regraft.formats.large_text import LARGE_BYTES
from regraft.formats.parquet.columns import UnitRow
from regraft.formats.parquet.metadata import BareMaterial
from regraft.language import tr
from regraft.report import notices
from regraft.text import utf16_len

#: Where large texts go: a schema, a table and a column.
_BODY = ("main", "search_text", "text")
_TOLD = ("temp", "told", "content")
_TEMPORARY = (
    "CREATE TEMP TABLE told (material_id TEXT PRIMARY KEY, path TEXT NOT NULL, content TEXT)",
    # While rows come, units of a material are found by this one.
    schema.INDEXES[2],
)


class Rebuilt:
    """The index of one base while it is built; ``rows`` are the books."""

    def __init__(self, base_id: str, now_ms: int, connection: apsw.Connection) -> None:
        self._base_id = base_id
        self._now = now_ms
        self._db = connection
        #: Runs over (text hash, vector) of every vector that is stored, in that order.
        self.digest = hashlib.blake2b(digest_size=32)
        self.read = 0
        self.carried = 0
        self.skipped: Counter[str] = Counter()
        #: Materials whose content, ids and offsets are made anew from their units' bodies.
        self.remade = 0
        self.vectors = 0
        self.materials = 0
        #: Units whose vector is not that of an earlier unit with the same text, which stayed.
        self.differing = 0
        self._db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        # Units come before what they refer to; verification checks the keys.
        self._db.execute("PRAGMA foreign_keys = OFF")
        self._db.execute("BEGIN IMMEDIATE")
        for statement in (*schema.TABLES, *_TEMPORARY):
            self._db.execute(statement)
        self._db.execute(
            "INSERT INTO meta (id, schema_version, base_id, created_at, updated_at) VALUES (1, ?, ?, ?, ?)",
            (schema.SCHEMA_VERSION, base_id, now_ms, now_ms),
        )

    def add(self, row: UnitRow) -> None:
        """Write one row, or count why it is not written."""
        self.read += 1
        reason = self._unfit(row)
        if reason is not None:
            self.skipped[reason] += 1
            return
        self._tell(row)
        number = self.carried + 1
        self._db.execute(
            "INSERT INTO search_unit (rowid, unit_id, material_id, content_hash, unit_type, unit_index, title,"
            " char_start, char_end, locator_json, created_at) VALUES (?, ?, ?, ?, 'chunk', ?, ?, ?, ?, ?, ?)",
            (
                number,
                # Its own id comes when it is proven.
                f"row {number}",
                row.item,
                row.content_hash or "",
                row.unit_index,
                row.title,
                *_offsets(row),
                row.locator_json,
                self._now,
            ),
        )
        self._db.execute(
            "INSERT INTO search_text (rowid, search_text_id, target_type, target_id, kind, text, embedding_text_hash,"
            " fts_rowid, created_at) VALUES (?1, ?2, 'search_unit', ?2, 'body', ?3, ?4, ?1, ?5)",
            (number, f"row {number}", row.text if isinstance(row.text, str) else "", row.body_hash, self._now),
        )
        if isinstance(row.text, memoryview):
            large.put(self._db, _BODY, number, row.text)
        self._add_vector(row)
        self.carried = number

    def _tell(self, row: UnitRow) -> None:
        """Keep what a row says of its material; the first content wins."""
        is_large = isinstance(row.content, memoryview)
        self._db.execute(
            "INSERT INTO told VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET content = coalesce(content, ?3)",
            (row.item, row.path or row.item, None if is_large else row.content),
        )
        if is_large:
            bare = "SELECT rowid FROM told WHERE material_id = ? AND content IS NULL"
            numbers: list[Any] = self._db.execute(bare, (row.item,)).fetchall()
            for (number,) in numbers:
                large.put(self._db, _TOLD, number, row.content)

    def _unfit(self, row: UnitRow) -> str | None:
        is_whole = isinstance(row.item, str) and isinstance(row.text, large.Text) and isinstance(row.body_hash, str)
        if not is_whole or not row.item or (row.unit_index or 0) < 0:
            return notices.NOT_WHOLE
        if row.unit_index is None:
            return notices.NOT_WHOLE
        if large.hash_of(row.text) != row.body_hash:
            return notices.TEXT_CHANGED
        there = "SELECT 1 FROM search_unit WHERE material_id = ? AND unit_type = 'chunk' AND unit_index = ?"
        return notices.DUPLICATE_ROW if self._db.execute(there, (row.item, row.unit_index)).fetchall() else None

    def _add_vector(self, row: UnitRow) -> None:
        if row.vector is None:
            return
        before = self._db.total_changes()
        self._db.execute(
            "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (row.body_hash, row.vector, self._now),
        )
        if self._db.total_changes() > before:
            self.vectors += 1
            self.digest.update(bytes.fromhex(row.body_hash) + row.vector)
        else:
            kept = "SELECT vector_blob FROM embedding WHERE embedding_text_hash = ?"
            self.differing += self._db.execute(kept, (row.body_hash,)).get != row.vector

    def finish(self, bare: Iterable[BareMaterial]) -> None:
        """Write contents and materials, then indexes, the full-text index and triggers; commit.

        Raises:
            BooksDoNotBalance: a fault of regraft.
            apsw.Error: it cannot be written.
        """
        if self.read != self.carried + self.skipped.total():
            raise BooksDoNotBalance(
                base=self._base_id, read=self.read, carried=self.carried, skipped=self.skipped.total()
            )
        numbers: list[Any] = self._db.execute("SELECT rowid FROM told ORDER BY rowid").fetchall()
        for (number,) in numbers:
            told = "SELECT material_id, path FROM told WHERE rowid = ?"
            material, path = self._db.execute(told, (number,)).fetchall()[0]
            if large.are_large(self._db, str(material)):
                self._finish_large(number, str(material), str(path))
            else:
                content = self._db.execute("SELECT content FROM told WHERE rowid = ?", (number,)).get
                self._finish_material(str(material), str(path), content)
        for one in bare:
            if not self._db.execute("SELECT 1 FROM material WHERE material_id = ?", (one.id,)).fetchall():
                content_hash = None if one.content is None else self._add_content(one.content)
                self._add_material(one.id, one.path, content_hash)
        self._db.execute("DROP TABLE told")
        self._db.execute(schema.ROWID_INDEX)
        self._db.execute(schema.FULL_TEXT)
        rebuild_full_text(self._db)
        for statement in (*schema.INDEXES[1:2], *schema.INDEXES[3:], *schema.TRIGGERS):
            self._db.execute(statement)
        self._db.execute("COMMIT")

    def _finish_material(self, material: str, path: str, content: str | None) -> None:
        units: list[Any] = self._db.execute(
            "SELECT u.rowid, u.content_hash, u.unit_index, u.char_start, u.char_end, t.text FROM search_unit u"
            " CROSS JOIN search_text t ON t.rowid = u.rowid WHERE u.material_id = ? ORDER BY u.unit_index",
            (material,),
        ).fetchall()
        joined = BODY_SEPARATOR.join(unit[5] for unit in units)
        text = joined if content is None else content
        content_hash = identity.text_hash(text)
        if not _adds_up(text, content_hash, units):
            self.remade += 1
            text, content_hash = joined, identity.text_hash(joined)
            units = list(_placed(units, content_hash))
        self._add_content(text)
        self._add_material(material, path, content_hash)
        self._name_units(material, content_hash, (unit[:5] for unit in units))

    def _finish_large(self, number: int, material: str, path: str) -> None:
        """Do the same for a material of large texts, piece by piece."""
        units: list[Any] = self._db.execute(
            "SELECT rowid, content_hash, unit_index, char_start, char_end FROM search_unit"
            " WHERE material_id = ? ORDER BY unit_index",
            (material,),
        ).fetchall()
        bodies = large.Bodies(self._db, units)
        content_hash, fits = bodies.joined_hash, False
        if self._db.execute("SELECT content IS NOT NULL FROM told WHERE rowid = ?", (number,)).get:
            told = large.Stored(db=self._db, schema=_TOLD[0], table=_TOLD[1], column=_TOLD[2], rowid=number)
            content_hash = told.hash()
            fits = bodies.add_up(told, content_hash)
            if fits:
                large.copy_content(told, content_hash, self._now)
        if not fits:
            joined = large.Stored(
                db=self._db, schema="main", table="content", column="text", rowid=bodies.put_joined(self._now)
            )
            is_joined = content_hash == bodies.joined_hash
            if not (is_joined and bodies.add_up(joined, content_hash)):
                self.remade += 1
                units = list(bodies.placed())
            content_hash = bodies.joined_hash
        self._add_material(material, path, content_hash)
        self._name_units(material, content_hash, units)

    def _name_units(self, material: str, content_hash: str, units: Iterable[Any]) -> None:
        for rowid, _, index, start, end in units:
            unit = identity.unit_id(material, content_hash, index, start, end)
            self._db.execute(
                "UPDATE search_unit SET unit_id = ?, content_hash = ?, char_start = ?, char_end = ? WHERE rowid = ?",
                (unit, content_hash, start, end, rowid),
            )
            self._db.execute(
                "UPDATE search_text SET search_text_id = ?, target_id = ? WHERE rowid = ?",
                (identity.body_id(unit), unit, rowid),
            )

    def _add_content(self, text: str) -> str:
        content_hash = identity.text_hash(text)
        self._db.execute(
            "INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (content_hash, text, self._now),
        )
        return content_hash

    def _add_material(self, material: str, path: str, content_hash: str | None) -> None:
        insert = (
            "INSERT INTO material (material_id, relative_path, current_content_hash, created_at, updated_at)"
            " VALUES (?, ?, ?, ?, ?)"
        )
        try:
            self._db.execute(insert, (material, path, content_hash, self._now, self._now))
        except apsw.ConstraintError:
            # A path that the layout refuses, or that another material has: its own id is a path, too.
            self.remade += 1
            self._db.execute(insert, (material, material, content_hash, self._now, self._now))
        self.materials += 1


def _offsets(row: UnitRow) -> tuple[int, int]:
    """Return offsets that the table takes; wrong ones prove nothing and are made anew."""
    start, end = row.char_start, row.char_end
    return (start, end) if start is not None and end is not None and 0 <= start <= end else (0, 0)


def _adds_up(text: str, content_hash: str, units: list[Any]) -> bool:
    """Tell whether every unit names this content and is its slice."""
    coded = text.encode("utf-16-le")
    return all(
        named == content_hash and 2 * end <= len(coded) and coded[2 * start : 2 * end] == body.encode("utf-16-le")
        for _, named, _, start, end, body in units
    )


def _placed(units: list[Any], content_hash: str) -> Iterator[Any]:
    """Place units one after the other, a blank line between them."""
    start = 0
    for rowid, _, index, _, _, body in units:
        end = start + utf16_len(body)
        yield rowid, content_hash, index, start, end, body
        start = end + len(BODY_SEPARATOR)


def _small(column: str) -> str:
    return f"CASE WHEN octet_length({column}) <= {LARGE_BYTES} THEN {column} END"


def verify(path: Path, base_id: str, built: Rebuilt) -> None:
    """Read an index back and hold it against its own hashes, ids and offsets, and against what was put into it.

    Raises:
        VerificationFailed
    """

    def demand(condition: bool, reason: str) -> None:
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    with sqlite.reading(path) as db:
        demand(not db.execute("PRAGMA foreign_key_check").fetchall(), tr("a foreign key dangles"))
        counts = {
            "search_unit": built.carried,
            "search_text": built.carried,
            "search_text_fts_docsize": built.carried,
            "embedding": built.vectors,
            "material": built.materials,
        }
        for table, expected in counts.items():
            demand(
                db.execute(f"SELECT count(*) FROM {table}").get == expected,
                tr("rows of {table} are missing", table=table),
            )
        for content_hash, text, number in db.execute(f"SELECT content_hash, {_small('text')}, rowid FROM content"):
            found = (
                large.Stored(db=db, schema="main", table="content", column="text", rowid=number).hash()
                if text is None
                else large.hash_of(text)
            )
            demand(found == content_hash, tr("a content does not match its hash"))
        query = f"""SELECT u.material_id, u.content_hash, u.unit_index, u.char_start, u.char_end, u.unit_id,
                          {_small("t.text")}, t.embedding_text_hash, t.rowid = t.fts_rowid, t.rowid
                     FROM search_text t LEFT JOIN search_unit u ON u.unit_id = t.target_id ORDER BY t.rowid"""
        for material, content, index, start, end, unit, text, key, in_step, number in db.execute(query):
            demand(
                unit == identity.unit_id(material, content, index, start, end) and in_step, tr("a unit's id is wrong")
            )
            found = large.Stored(db, *_BODY, number).hash() if text is None else large.hash_of(text)
            demand(found == key, tr("a body does not match its hash"))
        seen = hashlib.blake2b(digest_size=32)
        for key, vector in db.execute("SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY rowid"):
            seen.update(bytes.fromhex(key) + vector)
        demand(seen.digest() == built.digest.digest(), tr("vectors differ"))
