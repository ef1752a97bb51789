"""Large texts of an import: written, joined and held against each other piece by piece, none of them held whole."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.formats.cherry_v2.index import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.large import ROOM, fill
from regraft.formats.large_text import LARGE_BYTES, PIECE_BYTES, utf16_units

_SEPARATOR = BODY_SEPARATOR.encode()
#: Places of a content are known at steps of so many bytes.
_STEP_BYTES = 1 << 16

#: A text of a row: UTF-8 of Arrow's where it is large.
Text = str | memoryview


def hash_of(text: Text) -> str:
    """Return the hash of a text of either kind."""
    return identity.text_hash(text) if isinstance(text, str) else hashlib.sha256(text).hexdigest()


def put(db: apsw.Connection, place: tuple[str, str, str], rowid: int, text: memoryview) -> None:
    """Write a large text into a row: ``place`` is a schema, a table and a column.

    Raises:
        apsw.Error: it cannot be written.
    """
    schema, table, column = place
    db.execute(f"UPDATE {schema}.{table} SET {column} = {ROOM} WHERE rowid = ?", (len(text), rowid))
    with db.blob_open(schema, table, column, rowid, True) as blob:
        for start in range(0, len(text), PIECE_BYTES):
            blob.write(text[start : start + PIECE_BYTES])


def head(text: Text, characters: int) -> str:
    """Return the beginning of a text."""
    if isinstance(text, str):
        return text[:characters]
    return bytes(text[: 4 * characters]).decode("utf-8", "ignore")[:characters]


class Stored(msgspec.Struct, frozen=True):
    """A text in a row of the connection's file, or of its temporary tables."""

    db: apsw.Connection
    schema: str
    table: str
    column: str
    rowid: int

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes; pieces may end within a character.

        Raises:
            apsw.Error: it cannot be read.
        """
        with self.db.blob_open(self.schema, self.table, self.column, self.rowid, False) as blob:
            while piece := blob.read(PIECE_BYTES):
                yield piece

    def hash(self) -> str:
        """Return its hash.

        Raises:
            apsw.Error: it cannot be read.
        """
        found = hashlib.sha256()
        for piece in self.pieces():
            found.update(piece)
        return found.hexdigest()


class Bodies:
    """The bodies of one material in the order of its units, which have row, content hash, index, start and end."""

    def __init__(self, db: apsw.Connection, units: list[Any]) -> None:
        self._db = db
        self.units = units
        #: Bytes, and UTF-16 units, of every body.
        self.sizes: list[tuple[int, int]] = []
        joined = hashlib.sha256()
        for number, unit in enumerate(units):
            joined.update(_SEPARATOR if number else b"")
            size = wide = 0
            for piece in self.pieces(unit[0]):
                joined.update(piece)
                size += len(piece)
                wide += utf16_units(piece)
            self.sizes.append((size, wide))
        #: The hash of all of them, a blank line between two.
        self.joined_hash = joined.hexdigest()

    def pieces(self, rowid: int) -> Iterator[bytes]:
        """Yield the UTF-8 of a body."""
        return Stored(db=self._db, schema="main", table="search_text", column="text", rowid=rowid).pieces()

    def put_joined(self, now_ms: int) -> int:
        """Write them as a content, if it is not there yet, and return its row.

        Raises:
            apsw.Error: it cannot be written.
        """
        query = "SELECT rowid FROM content WHERE content_hash = ?"
        known: list[Any] = self._db.execute(query, (self.joined_hash,)).fetchall()
        for (rowid,) in known:
            return int(rowid)
        size = sum(size for size, _ in self.sizes) + len(_SEPARATOR) * max(len(self.sizes) - 1, 0)
        self._db.execute(f"INSERT INTO content VALUES (?, {ROOM}, ?)", (self.joined_hash, size, now_ms))
        rowid = self._db.last_insert_rowid()
        fill(self._db, "content", rowid, self._joined())
        return rowid

    def _joined(self) -> Iterator[bytes]:
        for number, unit in enumerate(self.units):
            if number:
                yield _SEPARATOR
            yield from self.pieces(unit[0])

    def add_up(self, content: Stored, content_hash: str) -> bool:
        """Tell whether every unit names this content and is its slice."""
        if any(unit[1] != content_hash for unit in self.units):
            return False
        with _Slices(content) as slices:
            return all(
                slices.has(unit[3], unit[4], size, self.pieces(unit[0]))
                for unit, size in zip(self.units, self.sizes, strict=True)
            )

    def placed(self) -> Iterator[Any]:
        """Place the units one after the other in what :meth:`put_joined` writes."""
        start = 0
        for (rowid, _, index, _, _), (_, wide) in zip(self.units, self.sizes, strict=True):
            yield rowid, self.joined_hash, index, start, start + wide
            start += wide + len(BODY_SEPARATOR)


class _Slices:
    """A stored text, of which slices are held against bodies at places that UTF-16 counts."""

    def __init__(self, text: Stored) -> None:
        self._blob = text.db.blob_open(text.schema, text.table, text.column, text.rowid, False)
        #: Where steps begin: in UTF-16 units and in bytes; the last is the end.
        self._units, self._bytes = [0], [0]
        #: Where the last slice ended: most begin a blank line behind it.
        self._end = (0, 0)
        while step := self._blob.read(_STEP_BYTES):
            self._units.append(self._units[-1] + utf16_units(step))
            self._bytes.append(self._bytes[-1] + len(step))

    def __enter__(self) -> _Slices:
        return self

    def __exit__(self, *_: object) -> None:
        self._blob.close()

    def has(self, start: int, end: int, size: tuple[int, int], body: Iterable[bytes]) -> bool:
        """Tell whether the slice from ``start`` to ``end`` is a body of ``size`` (bytes, UTF-16 units)."""
        length, wide = size
        at = self._byte_at(start) if end <= self._units[-1] and end - start == wide else None
        if at is None or at + length > self._bytes[-1]:
            return False
        self._blob.seek(at)
        self._end = end, at + length
        return all(self._blob.read(len(piece)) == piece for piece in body)

    def _byte_at(self, units: int) -> int | None:
        """Return where the character begins that has so many units before it; None within a pair of surrogates."""
        end, behind = self._end
        if units == end + len(BODY_SEPARATOR):
            self._blob.seek(behind)
            if self._blob.read(len(_SEPARATOR)) == _SEPARATOR:
                return behind + len(_SEPARATOR)
        # Steps may end within a character: its units count where its first byte is.
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


def copy_content(told: Stored, content_hash: str, now_ms: int) -> None:
    """Write a text as a content, if it is not there yet.

    Raises:
        apsw.Error: it cannot be written.
    """
    db = told.db
    if not db.execute("SELECT 1 FROM content WHERE content_hash = ?", (content_hash,)).fetchall():
        size = f"(SELECT octet_length({told.column}) FROM {told.schema}.{told.table} WHERE rowid = ?)"
        db.execute(
            f"INSERT INTO content VALUES (?, CAST(zeroblob({size}) AS TEXT), ?)", (content_hash, told.rowid, now_ms)
        )
        fill(db, "content", db.last_insert_rowid(), told.pieces())


def are_large(db: apsw.Connection, material: str) -> bool:
    """Tell whether the texts of a material, with the content that rows gave, are walked piece by piece."""
    bodies = (
        "SELECT sum(octet_length(t.text)) FROM search_unit u CROSS JOIN search_text t ON t.rowid = u.rowid"
        " WHERE u.material_id = ?"
    )
    told = "SELECT octet_length(content) FROM told WHERE material_id = ?"
    sizes = [db.execute(query, (material,)).get for query in (bodies, told)]
    return sum(size or 0 for size in sizes) > LARGE_BYTES
