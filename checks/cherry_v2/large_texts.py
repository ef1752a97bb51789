"""Large texts of an index held against their hashes and places piece by piece, none of them whole in memory.

It comes to what :mod:`checks.cherry_v2.texts` finds of texts that are held whole.
"""

from __future__ import annotations

import codecs
import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import apsw

from regraft.formats.large_text import PIECE_BYTES, LargeText, stored, utf16_units
from regraft.text import is_blank

#: CROSS JOIN keeps the order: by the index on kinds, every body would be read for every content.
_SLICES = """SELECT CAST(u.unit_id AS BLOB), u.char_start, u.char_end, t.rowid,
       CAST(t.embedding_text_hash AS BLOB)
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.content_hash = (SELECT content_hash FROM content WHERE rowid = ?) AND typeof(t.text) = 'text'"""


def has_hash(db: apsw.Connection, table: str, rowid: int, key: bytes | None) -> bool:
    """Tell whether the ``text`` of a row has this hash, as it is or with U+FFFD for each half of a surrogate pair.

    Raises:
        apsw.Error: the file is damaged.
    """
    exact, lenient = hashlib.sha256(), hashlib.sha256()
    for piece in stored(db, table, "text", rowid):
        exact.update(piece)
    if key is not None and exact.hexdigest().encode() == key:
        return True
    for piece in LargeText(db=db, table=table, column="text", rowid=rowid).pieces():
        lenient.update(piece)
    return key is not None and lenient.hexdigest().encode() == key


def is_utf8(db: apsw.Connection, rowid: int) -> bool:
    """Tell whether a content is UTF-8, but for halves of surrogate pairs.

    Raises:
        apsw.Error: the file is damaged.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    try:
        for piece in stored(db, "content", "text", rowid):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class LargeContent:
    """A large content, in which places are found by the units of UTF-16 before them."""

    def __init__(self, db: apsw.Connection, rowid: int) -> None:
        self._text = LargeText(db=db, table="content", column="text", rowid=rowid)
        self._db = db
        self._rowid = rowid
        #: Where pieces begin, in UTF-16 units; the pieces themselves are read again when they are asked for.
        self._starts = [0]
        for piece in self._text.pieces():
            self._starts.append(self._starts[-1] + utf16_units(piece))

    @property
    def length(self) -> int:
        """Return how long the text is, in UTF-16 units."""
        return self._starts[-1]

    def part(self, start: int, end: int) -> str:
        """Return the text from ``start`` to ``end``, in UTF-16 units; of a long part only its first piece with text."""
        for piece in self._slice(start, end):
            text = piece.decode()
            if not is_blank(text):
                return text
        return ""

    def misplaced(self) -> Iterator[tuple[bytes, int]]:
        """Yield the units whose slice is not their body, each with the body's row."""
        length = self._starts[-1]
        units: list[Any] = self._db.execute(_SLICES, (self._rowid,)).fetchall()
        for unit, start, end, body, body_hash in units:
            is_span = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length
            if not is_span or not self._is_there(start, end, body, body_hash):
                yield unit, body

    def _is_there(self, start: int, end: int, body: int, body_hash: bytes | None) -> bool:
        return self._holds(start, end, body) or self._hash(start, end) == body_hash

    def _holds(self, start: int, end: int, body: int) -> bool:
        message = _blocks(LargeText(db=self._db, table="search_text", column="text", rowid=body).pieces())
        return all(one == other for one, other in zip_longest(_blocks(self._slice(start, end)), message))

    def _hash(self, start: int, end: int) -> bytes:
        found = hashlib.sha256()
        for piece in self._slice(start, end):
            found.update(piece)
        return found.hexdigest().encode()

    def _slice(self, start: int, end: int) -> Iterator[bytes]:
        """Yield what stands from ``start`` to ``end`` as UTF-8; a half of a pair that is cut off is U+FFFD."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for number, piece in enumerate(self._text.pieces()):
            begin = self._starts[number]
            if begin >= end:
                return
            if number < first:
                continue
            if begin >= start and self._starts[number + 1] <= end:
                yield piece
                continue
            wide = piece.decode().encode("utf-16-le")
            part = wide[2 * max(start - begin, 0) : 2 * (end - begin)]
            yield part.decode("utf-16-le", "replace").encode()


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size."""
    left = b""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % PIECE_BYTES
        yield from (left[at : at + PIECE_BYTES] for at in range(0, whole, PIECE_BYTES))
        left = left[whole:]
    if left:
        yield left
