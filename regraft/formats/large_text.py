"""Texts of hundreds of megabytes, read from a database piece by piece and never held whole.

A piece is UTF-8, and is what :func:`regraft.text.decode_utf8` makes of the same bytes when it has all of them.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apsw
import msgspec

from regraft import identity
from regraft.disk import sqlite
from regraft.text import decode_utf8

#: From so many bytes on a text is read in pieces.
LARGE_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
#: Before a byte that begins a character none is cut in two; surrogates that stand as characters begin with ED, and
#: only a row of them as a whole tells what they are.
_BEGINS = re.compile(rb"[\x00-\x7f\xc2-\xec\xee-\xf4]")
_CONTINUES = bytes(range(0x80, 0xC0))
_FOUR_BYTES = bytes(range(0xF0, 0xF8))


@dataclass(frozen=True, kw_only=True)
class LargeText:
    """The text of one row: a column of an ordinary table; ``codec`` is that of the file where it is not UTF-8."""

    db: apsw.Connection
    table: str
    column: str
    rowid: int
    codec: str | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the text as UTF-8.

        Raises:
            apsw.Error: it cannot be read.
        """
        raw = read_pieces(self.db, self.table, self.column, self.rowid)
        yield from _mended(raw if self.codec is None else _recoded(raw, self.codec))

    def whole(self) -> str:
        """Return all of it.

        Raises:
            apsw.Error: it cannot be read.
        """
        return self.utf8().decode()

    def utf8(self) -> bytes:
        """Return all of it as UTF-8.

        Raises:
            apsw.Error: it cannot be read.
        """
        whole = io.BytesIO()
        whole.writelines(self.pieces())
        return whole.getvalue()


def hash_text(text: str | LargeText) -> str:
    """Return the hash of a text as :func:`regraft.identity.text_hash` does, a large one piece by piece.

    Raises:
        apsw.Error: it cannot be read.
    """
    if isinstance(text, str):
        return identity.text_hash(text)
    found = hashlib.sha256()
    for piece in text.pieces():
        found.update(piece)
    return found.hexdigest()


def read_pieces(db: apsw.Connection, table: str, column: str, rowid: int) -> Iterator[bytes]:
    """Yield the bytes of a value, piece by piece.

    Raises:
        apsw.Error: it cannot be read.
    """
    with db.blob_open("main", table, column, rowid, False) as blob:
        while piece := blob.read(PIECE_BYTES):
            yield piece


def _recoded(raw: Iterator[bytes], codec: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(codec)("replace")
    for piece in raw:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _mended(raw: Iterator[bytes]) -> Iterator[bytes]:
    left = b""
    for piece in raw:
        whole = left + piece
        cut = _cut(whole)
        left = whole[cut:]
        if cut:
            yield _utf8(whole[:cut])
    if left:
        yield _utf8(left)


def _cut(raw: bytes) -> int:
    """Return where bytes can be cut, as near to their end as there is such a place; 0 where there is none."""
    for begin in (max(len(raw) - 64, 0), 0):
        last = None
        for match in _BEGINS.finditer(raw, begin):
            last = match
        if last is not None:
            return last.start()
    return 0


def _utf8(raw: bytes) -> bytes:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return decode_utf8(raw).encode()
    return raw


def count_utf16_units(piece: bytes) -> int:
    """Return how many UTF-16 units the characters have that begin in a piece of UTF-8."""
    if piece.isascii():
        return len(piece)
    wide = len(piece) - len(piece.translate(None, _FOUR_BYTES))
    return len(piece.translate(None, _CONTINUES)) + wide


# Materials of large texts: written and held against what was written piece by piece.
#
# A text goes into its row as room that is then filled, so that SQLite alone has it in memory, twice at the most.


_SEPARATOR = b"\n\n"


class SpooledBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body in the spool: where its bytes begin, how many there are, its length in UTF-16 units, and its hash."""

    start: int
    size: int
    units: int
    key: str


class Spool:
    """The bodies of one material outside of memory, as its content has them: joined by blank lines."""

    def __init__(self) -> None:
        self._scratch = sqlite.open_scratch()
        self._db = self._scratch.__enter__()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -8000")
        self._db.execute("CREATE TABLE piece (start INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")
        self._content = hashlib.sha256()
        self.size = 0
        self.bodies: list[SpooledBody] = []

    def close(self) -> None:
        """Remove it."""
        self._scratch.__exit__(None, None, None)

    def add(self, body: str | LargeText) -> SpooledBody:
        """Write a body behind the others.

        Raises:
            apsw.Error: it cannot be read, or there is no room.
        """
        if self.bodies:
            self._write(_SEPARATOR)
        start, units, key = self.size, 0, hashlib.sha256()
        for piece in body.pieces() if isinstance(body, LargeText) else (body.encode(),):
            units += count_utf16_units(piece)
            key.update(piece)
            self._write(piece)
        self.bodies.append(SpooledBody(start=start, size=self.size - start, units=units, key=key.hexdigest()))
        return self.bodies[-1]

    def _write(self, piece: bytes) -> None:
        if piece:
            self._db.execute("INSERT INTO piece VALUES (?, ?)", (self.size, piece))
            self._content.update(piece)
            self.size += len(piece)

    @property
    def content_hash(self) -> str:
        """Return the hash of the whole content."""
        return self._content.hexdigest()

    def pieces(self, start: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from the beginning of a body on, piece by piece, no character cut in two."""
        end = self.size if size is None else start + size
        query = "SELECT bytes FROM piece WHERE start >= ? AND start < ? ORDER BY start"
        for (piece,) in self._db.execute(query, (start, end)):
            yield piece

    def text(self, body: SpooledBody) -> str:
        """Return a body whole."""
        return b"".join(self.pieces(body.start, body.size)).decode()

    def head(self, size: int, start: int = 0) -> str:
        """Return the beginning of the content, or of what begins at ``start``, of about so many bytes."""
        found = []
        for piece in self.pieces(start, self.size - start):
            found.append(piece[:size])
            size -= len(piece)
            if size <= 0:
                break
        return b"".join(found).decode("utf-8", "ignore")


def write_pieces(db: apsw.Connection, table: str, rowid: int, pieces: Iterable[bytes]) -> None:
    """Write the bytes of the column ``text`` of a row that has room for them (:data:`ROOM`).

    Raises:
        apsw.Error: it cannot be written.
    """
    with db.blob_open("main", table, "text", rowid, True) as blob:
        for piece in pieces:
            blob.write(piece)


#: SQL for a text of so many bytes, to be filled.
RESERVED_TEXT = "CAST(zeroblob(?) AS TEXT)"


class LargeContent:
    """A large content text, walked body by body from its start."""

    def __init__(self, db: apsw.Connection, rowid: int, content_hash: str) -> None:
        whole = hashlib.sha256()
        for piece in read_pieces(db, "content", "text", rowid):
            whole.update(piece)
        self._is_it = whole.hexdigest() == content_hash
        self._blob = db.blob_open("main", "content", "text", rowid, False)
        self._units = 0

    def close(self) -> None:
        """Let go of it."""
        self._blob.close()

    def begins_at(self, start: int) -> bool:
        """Tell whether the next body begins at ``start`` (UTF-16 units); a blank line stands before all but the first.

        To be called before the body's pieces are held against it.
        """
        if start and (self._blob.read(len(_SEPARATOR)) != _SEPARATOR or start != self._units + len(_SEPARATOR)):
            return False
        self._units = start
        return self._is_it

    def goes_on(self, piece: bytes) -> bool:
        """Tell whether it goes on with these bytes."""
        self._units += count_utf16_units(piece)
        return self._blob.read(len(piece)) == piece

    def has_come_to(self, end: int) -> bool:
        """Tell whether what was held against it ends at ``end`` (UTF-16 units)."""
        return self._units == end


class WholeContent:
    """A content text that is held whole, walked in the same way."""

    def __init__(self, db: apsw.Connection, rowid: int, content_hash: str) -> None:
        self._text = b"".join(read_pieces(db, "content", "text", rowid))
        self._is_it = hashlib.sha256(self._text).hexdigest() == content_hash
        self._at = self._units = 0

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""

    def begins_at(self, start: int) -> bool:
        """See :meth:`LargeContent.begins_at`."""
        if start:
            if not self._text.startswith(_SEPARATOR, self._at) or start != self._units + len(_SEPARATOR):
                return False
            self._at += len(_SEPARATOR)
        self._units = start
        return self._is_it

    def goes_on(self, piece: bytes) -> bool:
        """See :meth:`LargeContent.goes_on`."""
        fits = self._text.startswith(piece, self._at)
        self._at += len(piece)
        self._units += count_utf16_units(piece)
        return fits

    def has_come_to(self, end: int) -> bool:
        """See :meth:`LargeContent.has_come_to`."""
        return self._units == end
