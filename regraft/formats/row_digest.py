"""A digest over rows of a table, by which a second reading proves that it gave the rows of the first.

SQLite may answer two readings of a damaged file differently: a scan walks all leaf pages, a seek follows the keys above
them. Counts can agree all the same. So every row counts with its number, its text and its vector.
"""

from __future__ import annotations

from zlib import crc32

import apsw

from regraft.formats.large_text import LARGE_BYTES
from regraft.language import tr

_MASK = (1 << 64) - 1
#: Added to a row's checksum, so that no row counts nothing.
_OFFSET = 0x9E3779B1


class RowsDiffer(apsw.CorruptError):
    """A second reading of a table gave other rows than the first: the file is damaged."""


def row_digest(rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> int:
    """Return what one row adds to the digest of its rows. Digests of disjoint sets of rows add up, modulo 2^64.

    Of a text or vector over ``LARGE_BYTES`` only the length counts: it is never held whole.

    Args:
        rowid: the number of the row.
        body: the stored bytes of its text; None where it is NULL, or large.
        body_bytes: the length of the stored text in bytes.
        vector: its vector; None for a row that counts for its text alone.
    """
    checksum = crc32(body if body and body_bytes <= LARGE_BYTES else b"", body_bytes & 0xFFFFFFFF)
    if vector:
        checksum = crc32(vector if len(vector) <= LARGE_BYTES else b"%d" % len(vector), checksum)
    # A product, not a sum: two rows that exchange their contents must not add up to the same.
    return (2 * rowid + 1) * (checksum + _OFFSET) & _MASK


class RowsDigest:
    """Adds up the digests of the rows that a reading gives."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> None:
        """Count one row; the arguments are those of :func:`row_digest`."""
        self.value += row_digest(rowid, body, body_bytes, vector)

    def demand(self, expected: int | None, table: str) -> None:
        """Compare with the digest of the first reading; None where there is none to compare with.

        Raises:
            RowsDiffer: the rows are not those of the first reading.
        """
        if expected is not None and self.value & _MASK != expected & _MASK:
            raise RowsDiffer(tr("two readings of its table `{table}` gave different rows", table=table))
