"""Texts of hundreds of megabytes: read, stored and compared in pieces, so that memory never holds a whole one.

Pieces are UTF-8 and together equal :func:`regraft.text.decode_utf8` of the whole text. No character is split between
pieces.
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

#: Texts longer than this are processed in pieces.
LARGE_BYTES = 16 << 20
PIECE_BYTES = 1 << 20
#: Bytes that start a character, so that text can be split before them. ED is excluded: it starts encoded surrogates,
#: and only a whole run of them shows what they are.
_CHARACTER_START = re.compile(rb"[\x00-\x7f\xc2-\xec\xee-\xf4]")
_CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
_FOUR_BYTE_STARTS = bytes(range(0xF0, 0xF8))


@dataclass(frozen=True, kw_only=True)
class LargeText:
    """The text in one row of an ordinary table, read when needed. ``codec``: its encoding unless that is UTF-8."""

    db: apsw.Connection
    table: str
    column: str
    rowid: int
    codec: str | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield the text as UTF-8 in pieces.

        Raises:
            apsw.Error: it cannot be read.
        """
        raw = read_pieces(self.db, self.table, self.column, self.rowid)
        left = b""
        for piece in raw if self.codec is None else _convert_to_utf8(raw, self.codec):
            whole = left + piece
            end = _split_position(whole)
            left = whole[end:]
            if end:
                yield _to_utf8(whole[:end])
        if left:
            yield _to_utf8(left)

    def whole(self) -> str:
        """Read the whole text.

        Raises:
            apsw.Error: it cannot be read.
        """
        return self.utf8().decode()

    def utf8(self) -> bytes:
        """Read the whole text as UTF-8.

        Raises:
            apsw.Error: it cannot be read.
        """
        whole = io.BytesIO()
        whole.writelines(self.pieces())
        return whole.getvalue()


def hash_text(text: str | LargeText) -> str:
    """Compute :func:`regraft.identity.text_hash` of a text; a large text is read in pieces.

    Raises:
        apsw.Error: the text cannot be read.
    """
    if isinstance(text, str):
        return identity.text_hash(text)
    found = hashlib.sha256()
    for piece in text.pieces():
        found.update(piece)
    return found.hexdigest()


def read_pieces(db: apsw.Connection, table: str, column: str, rowid: int) -> Iterator[bytes]:
    """Yield the stored bytes of a text or BLOB, which is in one column of one row, in pieces.

    Raises:
        apsw.Error: the value cannot be read.
    """
    with db.blob_open("main", table, column, rowid, False) as blob:
        while piece := blob.read(PIECE_BYTES):
            yield piece


def _convert_to_utf8(raw: Iterator[bytes], codec: str) -> Iterator[bytes]:
    """Convert the pieces of a text in the encoding ``codec`` to UTF-8; invalid bytes are replaced."""
    decoder = codecs.getincrementaldecoder(codec)("replace")
    for piece in raw:
        yield decoder.decode(piece).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _split_position(raw: bytes) -> int:
    """Find the last position at which ``raw`` can be split without breaking a character, or 0."""
    for begin in (max(len(raw) - 64, 0), 0):
        last = None
        for match in _CHARACTER_START.finditer(raw, begin):
            last = match
        if last is not None:
            return last.start()
    return 0


def _to_utf8(raw: bytes) -> bytes:
    """Return ``raw`` unchanged if it is UTF-8; otherwise decode it leniently and encode it again."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return decode_utf8(raw).encode()
    return raw


def count_utf16_units(piece: bytes) -> int:
    """Count the UTF-16 units of the characters that start in a piece of a UTF-8 text."""
    if piece.isascii():
        return len(piece)
    wide = len(piece) - len(piece.translate(None, _FOUR_BYTE_STARTS))
    return len(piece.translate(None, _CONTINUATION_BYTES)) + wide


_SEPARATOR = b"\n\n"


class SpooledBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body in a spool.

    Attributes:
        start: offset of its first byte in the content.
        size: length in bytes.
        units: length in UTF-16 units.
        text_hash: hash of the body.
    """

    start: int
    size: int
    units: int
    text_hash: str


class Spool:
    """The content of one material in a temporary database: its bodies, separated by blank lines."""

    def __init__(self) -> None:
        self._scratch = sqlite.open_scratch()
        self._db = self._scratch.__enter__()
        self._db.execute("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -8000")
        self._db.execute("CREATE TABLE piece (start INTEGER PRIMARY KEY, bytes BLOB NOT NULL)")
        self._content = hashlib.sha256()
        self.size = 0
        self.bodies: list[SpooledBody] = []

    def close(self) -> None:
        """Delete the temporary database."""
        self._scratch.__exit__(None, None, None)

    def add(self, body: str | LargeText) -> SpooledBody:
        """Append a body to the content and return its location.

        Raises:
            apsw.Error: the body cannot be read, or the disk is full.
        """
        if self.bodies:
            self._write(_SEPARATOR)
        start, units, text_hash = self.size, 0, hashlib.sha256()
        for piece in body.pieces() if isinstance(body, LargeText) else (body.encode(),):
            units += count_utf16_units(piece)
            text_hash.update(piece)
            self._write(piece)
        self.bodies.append(
            SpooledBody(start=start, size=self.size - start, units=units, text_hash=text_hash.hexdigest())
        )
        return self.bodies[-1]

    def _write(self, piece: bytes) -> None:
        """Append bytes to the content and to its hash."""
        if piece:
            self._db.execute("INSERT INTO piece VALUES (?, ?)", (self.size, piece))
            self._content.update(piece)
            self.size += len(piece)

    @property
    def content_hash(self) -> str:
        """Hash of the content written so far."""
        return self._content.hexdigest()

    def pieces(self, start: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield the content, or ``size`` bytes of it from offset ``start`` on, in pieces that split no character.

        Both must be those of a body.
        """
        end = self.size if size is None else start + size
        query = "SELECT bytes FROM piece WHERE start >= ? AND start < ? ORDER BY start"
        for (piece,) in self._db.execute(query, (start, end)):
            yield piece

    def text(self, body: SpooledBody) -> str:
        """Read the text of a body that was added."""
        return b"".join(self.pieces(body.start, body.size)).decode()

    def head(self, size: int, start: int = 0) -> str:
        """Read about ``size`` bytes of the content from the byte offset ``start`` on, as text."""
        found = []
        for piece in self.pieces(start, self.size - start):
            found.append(piece[:size])
            size -= len(piece)
            if size <= 0:
                break
        return b"".join(found).decode("utf-8", "ignore")


def write_pieces(db: apsw.Connection, table: str, rowid: int, pieces: Iterable[bytes]) -> None:
    """Write the text of a row that was inserted with :data:`RESERVED_TEXT` into its column ``text``.

    ``pieces`` are the UTF-8 bytes of the text. Raises apsw.Error if they cannot be written.
    """
    with db.blob_open("main", table, "text", rowid, True) as blob:
        for piece in pieces:
            blob.write(piece)


#: SQL expression for a text of a given number of bytes, to be filled by :func:`write_pieces`. This way only SQLite
#: holds the text in memory, at most twice.
RESERVED_TEXT = "CAST(zeroblob(?) AS TEXT)"


class LargeContent:
    """Compares a large content (the text of a material) with consecutive bodies, reading it in pieces."""

    def __init__(self, db: apsw.Connection, rowid: int, content_hash: str) -> None:
        whole = hashlib.sha256()
        for piece in read_pieces(db, "content", "text", rowid):
            whole.update(piece)
        self._has_hash = whole.hexdigest() == content_hash
        self._blob = db.blob_open("main", "content", "text", rowid, False)
        self._units = 0

    def close(self) -> None:
        """Close the open BLOB."""
        self._blob.close()

    def starts_at(self, start: int) -> bool:
        """Whether the next body starts at ``start`` (UTF-16 units), a blank line after the one before.

        Also False if the content does not match its hash. Call this before comparing the pieces of the body.
        """
        if start and (self._blob.read(len(_SEPARATOR)) != _SEPARATOR or start != self._units + len(_SEPARATOR)):
            return False
        self._units = start
        return self._has_hash

    def matches_next(self, piece: bytes) -> bool:
        """Whether the next bytes of the content equal ``piece``, the next bytes of a body; moves on behind them."""
        self._units += count_utf16_units(piece)
        return self._blob.read(len(piece)) == piece

    def ends_at(self, end: int) -> bool:
        """Whether the body compared so far ends at ``end`` (UTF-16 units of the content)."""
        return self._units == end


class WholeContent:
    """Compares a content (the text of a material) with consecutive bodies, holding it in memory."""

    def __init__(self, db: apsw.Connection, rowid: int, content_hash: str) -> None:
        self._text = b"".join(read_pieces(db, "content", "text", rowid))
        self._has_hash = hashlib.sha256(self._text).hexdigest() == content_hash
        self._at = self._units = 0

    def close(self) -> None:
        """Do nothing; there is no open file."""

    def starts_at(self, start: int) -> bool:
        """Whether the next body starts at ``start``; see :meth:`LargeContent.starts_at`."""
        if start:
            if not self._text.startswith(_SEPARATOR, self._at) or start != self._units + len(_SEPARATOR):
                return False
            self._at += len(_SEPARATOR)
        self._units = start
        return self._has_hash

    def matches_next(self, piece: bytes) -> bool:
        """Whether the next bytes of the content equal ``piece``, the next bytes of a body; moves on behind them."""
        fits = self._text.startswith(piece, self._at)
        self._at += len(piece)
        self._units += count_utf16_units(piece)
        return fits

    def ends_at(self, end: int) -> bool:
        """Whether the body compared so far ends at ``end`` (UTF-16 units of the content)."""
        return self._units == end
