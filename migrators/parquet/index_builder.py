"""Build the index of one base from the rows of a Parquet file, and verify it.

Rows may come in any order and are written as they come. The content of a material is written and checked against its
units once all rows are there. Large texts are read and compared in pieces.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from regraft import identity
from regraft.disk import sqlite
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.formats.cherry_v2.index import BODY_SEPARATOR, schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, rebuild_full_text
from regraft.formats.large_text import LARGE_BYTES, PIECE_BYTES, RESERVED_TEXT, count_utf16_units, write_pieces
from regraft.formats.parquet.unit_file import EmptyMaterial, UnitRow
from regraft.language import tr
from regraft.report import notices
from regraft.text import utf16_len

# --- large texts ---------------------------------------------------------------------------------------------------


_SEPARATOR = BODY_SEPARATOR.encode()
#: Interval in bytes at which offsets of a content are remembered.
_STEP_BYTES = 1 << 16

#: A text of a row. A large one is the UTF-8 bytes in Arrow's memory.
RowText = str | memoryview


def hash_text(text: RowText) -> str:
    """Return the hash of a text."""
    return identity.text_hash(text) if isinstance(text, str) else hashlib.sha256(text).hexdigest()


class TextColumn(NamedTuple):
    """A column of texts in the index or in a temporary table."""

    schema: str
    table: str
    name: str


#: Bodies of units, contents of materials, and contents of materials that are not complete yet.
_BODY = TextColumn("main", "search_text", "text")
_CONTENT = TextColumn("main", "content", "text")
_REMEMBERED = TextColumn("temp", "given_material", "content")


class StoredText(NamedTuple):
    """A text in a row of the database. Its methods raise apsw.Error if it cannot be read or written."""

    db: apsw.Connection
    column: TextColumn
    rowid: int

    def open(self, *, is_writable: bool = False) -> apsw.Blob:
        """Open the bytes of the text."""
        return self.db.blob_open(*self.column, self.rowid, is_writable)

    def write(self, text: memoryview) -> None:
        """Replace the text by another one (UTF-8), in pieces."""
        schema, table, name = self.column
        update = f"UPDATE {schema}.{table} SET {name} = {RESERVED_TEXT} WHERE rowid = ?"
        self.db.execute(update, (len(text), self.rowid))
        with self.open(is_writable=True) as blob:
            for start in range(0, len(text), PIECE_BYTES):
                blob.write(text[start : start + PIECE_BYTES])

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes of the text. A piece may end within a character."""
        with self.open() as blob:
            while piece := blob.read(PIECE_BYTES):
                yield piece

    def hash(self) -> str:
        """Return the hash of the text."""
        found = hashlib.sha256()
        for piece in self.pieces():
            found.update(piece)
        return found.hexdigest()


class StoredUnit(NamedTuple):
    """The row of a unit: the content that it names, its position in the material, and its offsets in UTF-16 units."""

    rowid: int
    content_hash: str
    position: int
    start: int
    end: int


class LargeBodies:
    """The bodies of one material, in the order of its units."""

    def __init__(self, db: apsw.Connection, units: list[StoredUnit]) -> None:
        self._db = db
        self.units = units
        #: Size of each body in bytes and in UTF-16 units.
        self.sizes: list[tuple[int, int]] = []
        joined = hashlib.sha256()
        for number, unit in enumerate(units):
            joined.update(_SEPARATOR if number else b"")
            size = wide = 0
            for piece in self._body(unit):
                joined.update(piece)
                size += len(piece)
                wide += count_utf16_units(piece)
            self.sizes.append((size, wide))
        #: Hash of all bodies joined by blank lines.
        self.joined_hash = joined.hexdigest()

    def _body(self, unit: StoredUnit) -> Iterator[bytes]:
        """Yield the UTF-8 bytes of a unit's body."""
        return StoredText(self._db, _BODY, unit.rowid).pieces()

    def write_joined(self, now_ms: int) -> int:
        """Write the bodies, joined by blank lines, as a content if it does not exist yet. Return its rowid.

        Raises:
            apsw.Error: it cannot be written.
        """
        query = "SELECT rowid FROM content WHERE content_hash = ?"
        known: list[Any] = self._db.execute(query, (self.joined_hash,)).fetchall()
        for (rowid,) in known:
            return int(rowid)
        size = sum(size for size, _ in self.sizes) + len(_SEPARATOR) * max(len(self.sizes) - 1, 0)
        self._db.execute(f"INSERT INTO content VALUES (?, {RESERVED_TEXT}, ?)", (self.joined_hash, size, now_ms))
        rowid = self._db.last_insert_rowid()
        bodies = (chain((_SEPARATOR,) if number else (), self._body(unit)) for number, unit in enumerate(self.units))
        write_pieces(self._db, "content", rowid, chain.from_iterable(bodies))
        return rowid

    def match(self, content: StoredText, content_hash: str) -> bool:
        """Whether every unit names this content, and its body is the content's text at its offsets."""
        if any(unit.content_hash != content_hash for unit in self.units):
            return False
        with _SliceComparison(content) as slices:
            return all(
                slices.has_slice(unit.start, unit.end, size, self._body(unit))
                for unit, size in zip(self.units, self.sizes, strict=True)
            )

    def with_offsets(self) -> Iterator[StoredUnit]:
        """Yield the units with offsets in the joined bodies."""
        start = 0
        for unit, (_, wide) in zip(self.units, self.sizes, strict=True):
            yield StoredUnit(unit.rowid, self.joined_hash, unit.position, start=start, end=start + wide)
            start += wide + len(BODY_SEPARATOR)


class _SliceComparison:
    """Compares slices of a stored text with bodies. Offsets are in UTF-16 units."""

    def __init__(self, text: StoredText) -> None:
        self._blob = text.open()
        #: Offsets of each step in UTF-16 units and in bytes; the last one is the end of the text.
        self._units, self._bytes = [0], [0]
        #: End of the last slice. The next one usually begins after a blank line.
        self._end = (0, 0)
        while step := self._blob.read(_STEP_BYTES):
            self._units.append(self._units[-1] + count_utf16_units(step))
            self._bytes.append(self._bytes[-1] + len(step))

    def __enter__(self) -> _SliceComparison:
        return self

    def __exit__(self, *_: object) -> None:
        self._blob.close()

    def has_slice(self, start: int, end: int, size: tuple[int, int], body: Iterable[bytes]) -> bool:
        """Whether the text from ``start`` to ``end`` is this body.

        ``size`` is the length of the body in bytes and in UTF-16 units.
        """
        length, wide = size
        at = self._byte_at(start) if end <= self._units[-1] and end - start == wide else None
        if at is None or at + length > self._bytes[-1]:
            return False
        self._blob.seek(at)
        self._end = end, at + length
        return all(self._blob.read(len(piece)) == piece for piece in body)

    def _byte_at(self, units: int) -> int | None:
        """Convert an offset in the text from UTF-16 units to bytes. None within a surrogate pair."""
        end, behind = self._end
        if units == end + len(BODY_SEPARATOR):
            self._blob.seek(behind)
            if self._blob.read(len(_SEPARATOR)) == _SEPARATOR:
                return behind + len(_SEPARATOR)
        # If a step ends within a character, its units count to the step with its first byte.
        step = max(bisect_right(self._units, units) - 1, 0)
        at, left = self._bytes[step], units - self._units[step]
        self._blob.seek(at)
        piece = self._blob.read(_STEP_BYTES + 4)
        place = next((place for place in range(min(4, len(piece))) if piece[place] & 0xC0 != 0x80), 0)
        text = piece[place:].decode("utf-8", "ignore").encode("utf-16-le")[: 2 * left]
        try:
            return at + place + len(text.decode("utf-16-le").encode())
        except UnicodeDecodeError:
            return None


def copy_content(remembered: StoredText, content_hash: str, now_ms: int) -> None:
    """Copy a text from another table to a content, unless the content exists.

    Raises:
        apsw.Error: it cannot be written.
    """
    db = remembered.db
    if not db.execute("SELECT 1 FROM content WHERE content_hash = ?", (content_hash,)).fetchall():
        schema, table, name = remembered.column
        size = f"(SELECT octet_length({name}) FROM {schema}.{table} WHERE rowid = ?)"
        db.execute(
            f"INSERT INTO content VALUES (?, CAST(zeroblob({size}) AS TEXT), ?)",
            (content_hash, remembered.rowid, now_ms),
        )
        write_pieces(db, "content", db.last_insert_rowid(), remembered.pieces())


def has_large_texts(db: apsw.Connection, material: str) -> bool:
    """Whether the texts of a material are so large that they must be read and written in pieces."""
    bodies = (
        "SELECT sum(octet_length(t.text)) FROM search_unit u CROSS JOIN search_text t ON t.rowid = u.rowid"
        " WHERE u.material_id = ?"
    )
    remembered = "SELECT octet_length(content) FROM given_material WHERE material_id = ?"
    sizes = [db.execute(query, (material,)).get for query in (bodies, remembered)]
    return sum(size or 0 for size in sizes) > LARGE_BYTES


_TEMPORARY = (
    "CREATE TEMP TABLE given_material (material_id TEXT PRIMARY KEY, path TEXT NOT NULL, content TEXT)",
    # Index to find the units of a material while rows are added.
    schema.INDEXES[2],
)


class ImportedIndex:
    """Builds the index of one base, and counts its rows."""

    def __init__(self, base_id: str, now_ms: int, connection: apsw.Connection) -> None:
        self._base_id = base_id
        self._now = now_ms
        self._db = connection
        #: Digest over text hash and vector of all stored vectors, in their order.
        self.digest = hashlib.blake2b(digest_size=32)
        self.read = 0
        self.carried = 0
        self.skipped: Counter[str] = Counter()
        #: Number of materials whose content, ids and offsets were made from the bodies of their units.
        self.remade = 0
        self.vectors = 0
        self.materials = 0
        #: Number of units whose vector differs from that of an earlier unit with the same text, which was kept.
        self.differing = 0
        self._db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        # Units are inserted before the rows that they refer to. Verification checks the keys.
        self._db.execute("PRAGMA foreign_keys = OFF")
        self._db.execute("BEGIN IMMEDIATE")
        for statement in (*schema.TABLES, *_TEMPORARY):
            self._db.execute(statement)
        self._db.execute(
            "INSERT INTO meta (id, schema_version, base_id, created_at, updated_at) VALUES (1, ?, ?, ?, ?)",
            (schema.SCHEMA_VERSION, base_id, now_ms, now_ms),
        )

    def add(self, row: UnitRow) -> None:
        """Write one row of the file, or count it as skipped with a reason."""
        self.read += 1
        reason = self._reason_to_skip(row)
        if reason is not None:
            self.skipped[reason] += 1
            return
        self._remember_content(row)
        number = self.carried + 1
        start, end = row.char_start, row.char_end
        if start is None or end is None or not 0 <= start <= end:
            start = end = 0  # replaced when the material is complete
        self._db.execute(
            "INSERT INTO search_unit (rowid, unit_id, material_id, content_hash, unit_type, unit_index, title,"
            " char_start, char_end, locator_json, created_at) VALUES (?, ?, ?, ?, 'chunk', ?, ?, ?, ?, ?, ?)",
            (
                number,
                # A temporary id: the real one is computed when its offsets are checked.
                f"row {number}",
                row.item,
                row.content_hash or "",
                row.unit_index,
                row.title,
                start,
                end,
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
            StoredText(self._db, _BODY, number).write(row.text)
        self._add_vector(row)
        self.carried = number

    def _remember_content(self, row: UnitRow) -> None:
        """Store the path and the content of the row's material in a temporary table. The first content is used."""
        is_large = isinstance(row.content, memoryview)
        self._db.execute(
            "INSERT INTO given_material VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET content = coalesce(content, ?3)",
            (row.item, row.path or row.item, None if is_large else row.content),
        )
        if is_large:
            bare = "SELECT rowid FROM given_material WHERE material_id = ? AND content IS NULL"
            numbers: list[Any] = self._db.execute(bare, (row.item,)).fetchall()
            for (number,) in numbers:
                StoredText(self._db, _REMEMBERED, number).write(row.content)

    def _reason_to_skip(self, row: UnitRow) -> str | None:
        """Return the reason code if a row of the file cannot be imported, or None."""
        is_whole = isinstance(row.item, str) and isinstance(row.text, RowText) and isinstance(row.body_hash, str)
        if not is_whole or not row.item or (row.unit_index or 0) < 0:
            return notices.NOT_WHOLE
        if row.unit_index is None:
            return notices.NOT_WHOLE
        if hash_text(row.text) != row.body_hash:
            return notices.TEXT_CHANGED
        there = "SELECT 1 FROM search_unit WHERE material_id = ? AND unit_type = 'chunk' AND unit_index = ?"
        return notices.DUPLICATE_ROW if self._db.execute(there, (row.item, row.unit_index)).fetchall() else None

    def _add_vector(self, row: UnitRow) -> None:
        """Write the vector of a row. Of equal texts, the first vector is kept and different ones are counted."""
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

    def finish(self, bare: Iterable[EmptyMaterial]) -> None:
        """Write contents and materials, then indexes, the full-text index and triggers, and commit.

        ``bare`` are the materials without units.

        Raises:
            BooksDoNotBalance: the row counts do not add up, which is a bug.
            apsw.Error: the index cannot be written.
        """
        if self.read != self.carried + self.skipped.total():
            raise BooksDoNotBalance(
                base=self._base_id, read=self.read, carried=self.carried, skipped=self.skipped.total()
            )
        numbers: list[Any] = self._db.execute("SELECT rowid FROM given_material ORDER BY rowid").fetchall()
        for (number,) in numbers:
            remembered = "SELECT material_id, path FROM given_material WHERE rowid = ?"
            material, path = self._db.execute(remembered, (number,)).fetchall()[0]
            if has_large_texts(self._db, str(material)):
                self._finish_large_material(number, str(material), str(path))
            else:
                content = self._db.execute("SELECT content FROM given_material WHERE rowid = ?", (number,)).get
                self._finish_material(str(material), str(path), content)
        for one in bare:
            if not self._db.execute("SELECT 1 FROM material WHERE material_id = ?", (one.id,)).fetchall():
                content_hash = None if one.content is None else self._add_content(one.content)
                self._add_material(one.id, one.path, content_hash)
        self._db.execute("DROP TABLE given_material")
        self._db.execute(schema.ROWID_INDEX)
        self._db.execute(schema.FULL_TEXT)
        rebuild_full_text(self._db)
        for statement in (*schema.INDEXES[1:2], *schema.INDEXES[3:], *schema.TRIGGERS):
            self._db.execute(statement)
        self._db.execute("COMMIT")

    def _finish_material(self, material: str, path: str, content: str | None) -> None:
        """Write the content of a material; if its units do not match it, rebuild it from them.

        ``content`` is the text in the file, None if it has none.
        """
        rows: list[Any] = self._db.execute(
            "SELECT u.rowid, u.content_hash, u.unit_index, u.char_start, u.char_end, t.text FROM search_unit u"
            " CROSS JOIN search_text t ON t.rowid = u.rowid WHERE u.material_id = ? ORDER BY u.unit_index",
            (material,),
        ).fetchall()
        units, bodies = [StoredUnit(*row[:5]) for row in rows], [str(row[5]) for row in rows]
        joined = BODY_SEPARATOR.join(bodies)
        text = joined if content is None else content
        content_hash = identity.text_hash(text)
        coded = text.encode("utf-16-le")
        # Every unit has to name this content, and its body has to be the content's text at its offsets.
        are_valid = all(
            unit.content_hash == content_hash
            and 2 * unit.end <= len(coded)
            and coded[2 * unit.start : 2 * unit.end] == body.encode("utf-16-le")
            for unit, body in zip(units, bodies, strict=True)
        )
        if not are_valid:
            self.remade += 1
            text, content_hash = joined, identity.text_hash(joined)
            # The new offsets are those in the joined bodies.
            start = 0
            for position, body in enumerate(bodies):
                end = start + utf16_len(body)
                units[position] = units[position]._replace(start=start, end=end)
                start = end + len(BODY_SEPARATOR)
        self._add_content(text)
        self._add_material(material, path, content_hash)
        self._name_units(material, content_hash, units)

    def _finish_large_material(self, number: int, material: str, path: str) -> None:
        """Write the content of a material in pieces; if its units do not match it, rebuild it from them.

        ``number`` is the row of the material in the temporary table.
        """
        rows: list[Any] = self._db.execute(
            "SELECT rowid, content_hash, unit_index, char_start, char_end FROM search_unit"
            " WHERE material_id = ? ORDER BY unit_index",
            (material,),
        ).fetchall()
        units = [StoredUnit(*row) for row in rows]
        bodies = LargeBodies(self._db, units)
        content_hash, fits = bodies.joined_hash, False
        if self._db.execute("SELECT content IS NOT NULL FROM given_material WHERE rowid = ?", (number,)).get:
            remembered = StoredText(self._db, _REMEMBERED, number)
            content_hash = remembered.hash()
            fits = bodies.match(remembered, content_hash)
            if fits:
                copy_content(remembered, content_hash, self._now)
        if not fits:
            joined = StoredText(self._db, _CONTENT, bodies.write_joined(self._now))
            is_joined = content_hash == bodies.joined_hash
            if not (is_joined and bodies.match(joined, content_hash)):
                self.remade += 1
                units = list(bodies.with_offsets())
            content_hash = bodies.joined_hash
        self._add_material(material, path, content_hash)
        self._name_units(material, content_hash, units)

    def _name_units(self, material: str, content_hash: str, units: Iterable[StoredUnit]) -> None:
        """Store the final ids of units and their bodies. The ids follow from material, content and offsets."""
        for unit in units:
            unit_id = identity.unit_id(material, content_hash, unit.position, unit.start, unit.end)
            self._db.execute(
                "UPDATE search_unit SET unit_id = ?, content_hash = ?, char_start = ?, char_end = ? WHERE rowid = ?",
                (unit_id, content_hash, unit.start, unit.end, unit.rowid),
            )
            self._db.execute(
                "UPDATE search_text SET search_text_id = ?, target_id = ? WHERE rowid = ?",
                (identity.body_id(unit_id), unit_id, unit.rowid),
            )

    def _add_content(self, text: str) -> str:
        """Write the row of a content unless it exists, and return the hash of the text."""
        content_hash = identity.text_hash(text)
        self._db.execute(
            "INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (content_hash, text, self._now),
        )
        return content_hash

    def _add_material(self, material: str, path: str, content_hash: str | None) -> None:
        """Write the row of a material; if its path is invalid or taken, its id becomes the path, else a hash of it."""
        insert = (
            "INSERT INTO material (material_id, relative_path, current_content_hash, created_at, updated_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT (relative_path) DO NOTHING"
        )
        digest = identity.text_hash(material)
        for number, candidate in enumerate(chain((path, material, digest), (f"{digest}_{one}" for one in count(1)))):
            if schema.is_safe_path(candidate):
                self._db.execute(insert, (material, candidate, content_hash, self._now, self._now))
                if self._db.changes():
                    self.remade += bool(number)
                    break
        self.materials += 1


def _if_small(column: str) -> str:
    """Return an SQL expression for a column: its value, or NULL if the value is large."""
    return f"CASE WHEN octet_length({column}) <= {LARGE_BYTES} THEN {column} END"


def verify_index(path: Path, base_id: str, built: ImportedIndex) -> None:
    """Read the new index of a base, and compare it with its own hashes, ids and offsets and with what was ``built``.

    Raises:
        VerificationFailed
    """

    def require(condition: bool, reason: str) -> None:
        """Fail the verification for this reason unless the condition holds."""
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    with sqlite.open_readonly(path) as db:
        require(not db.execute("PRAGMA foreign_key_check").fetchall(), tr("a foreign key refers to a missing row"))
        counts = {
            "search_unit": built.carried,
            "search_text": built.carried,
            "search_text_fts_docsize": built.carried,
            "embedding": built.vectors,
            "material": built.materials,
        }
        for table, expected in counts.items():
            require(
                db.execute(f"SELECT count(*) FROM {table}").get == expected,
                tr("rows of {table} are missing", table=table),
            )
        for content_hash, text, number in db.execute(f"SELECT content_hash, {_if_small('text')}, rowid FROM content"):
            found = StoredText(db, _CONTENT, number).hash() if text is None else hash_text(text)
            require(found == content_hash, tr("a content does not match its hash"))
        query = f"""SELECT u.material_id, u.content_hash, u.unit_index, u.char_start, u.char_end, u.unit_id,
                          {_if_small("t.text")}, t.embedding_text_hash, t.rowid = t.fts_rowid, t.rowid
                     FROM search_text t LEFT JOIN search_unit u ON u.unit_id = t.target_id ORDER BY t.rowid"""
        for material, content, index, start, end, unit, text, key, in_step, number in db.execute(query):
            require(
                unit == identity.unit_id(material, content, index, start, end) and in_step, tr("a unit's id is wrong")
            )
            found = StoredText(db, _BODY, number).hash() if text is None else hash_text(text)
            require(found == key, tr("a body does not match its hash"))
        seen = hashlib.blake2b(digest_size=32)
        for key, vector in db.execute("SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY rowid"):
            seen.update(bytes.fromhex(key) + vector)
        require(seen.digest() == built.digest.digest(), tr("vectors differ from the source"))
