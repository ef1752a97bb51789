"""Texts of hundreds of megabytes, read from a database piece by piece and never held whole.

A piece is UTF-8, and is what :func:`regraft.text.decode_utf8` makes of the same bytes when it has all of them.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass

import apsw

from regraft import identity
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
        raw = stored(self.db, self.table, self.column, self.rowid)
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


def hash_of(text: str | LargeText) -> str:
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


def stored(db: apsw.Connection, table: str, column: str, rowid: int) -> Iterator[bytes]:
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


def utf16_units(piece: bytes) -> int:
    """Return how many UTF-16 units the characters have that begin in a piece of UTF-8."""
    if piece.isascii():
        return len(piece)
    wide = len(piece) - len(piece.translate(None, _FOUR_BYTES))
    return len(piece.translate(None, _CONTINUES)) + wide
