"""The records in which FTS5 keeps what an index consists of (``docs/formats/fts5.md``, "Records")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import apsw
import msgspec

from regraft.formats.sqlite_pages.records import Malformed, put_varint, varint

#: The version that an index states of its own format.
FORMAT = 4
#: Rows of the index's data: the counts of rows and tokens, and the list of its segments.
AVERAGES, STRUCTURE = 1, 10
#: The number of a page is that of its segment, shifted by so many bits, and its place in the segment.
SEGMENT_SHIFT = 37
#: FTS5 fills its pages up to so many bytes, where nobody says otherwise.
PAGE_BYTES = 4050
#: An index has at most so many segments.
MOST_SEGMENTS = 2_000
_COOKIE_BYTES = 4
#: What follows the cookie in a list of segments of the later form.
_LATER_FORM = b"\xff\x00\x00\x01"


class SpliceRefused(Exception):
    """An index cannot be put together from pages; the text says why. FTS5 has to fill it alone."""


class IndexSegment(msgspec.Struct, frozen=True):
    """A segment: its number, and the places of its first and last page."""

    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Structure:
    """The list of an index's segments: by level, the newest level first, in a level the oldest segment first."""

    cookie: bytes
    levels: tuple[tuple[IndexSegment, ...], ...]
    written: int

    @property
    def segments(self) -> list[IndexSegment]:
        """Return all segments."""
        return [segment for level in self.levels for segment in level]

    @classmethod
    def read(cls, record: bytes) -> Structure:
        """Read the record.

        Raises:
            SpliceRefused: it is of another form, or segments are being merged.
        """
        if record[_COOKIE_BYTES : _COOKIE_BYTES + len(_LATER_FORM)] == _LATER_FORM:
            raise SpliceRefused("the list of segments is of a later form")
        numbers = _varints(record[_COOKIE_BYTES:])
        level_count, segment_count, written = _some(numbers, 3)
        if max(level_count, segment_count) > MOST_SEGMENTS:
            raise SpliceRefused("the list of segments is too long")
        levels = tuple(_level(numbers) for _ in range(level_count))
        found = cls(record[:_COOKIE_BYTES], levels, written)
        if len(found.segments) != segment_count or next(numbers, None) is not None:
            raise SpliceRefused("the list of segments does not add up")
        return found

    def record(self) -> bytes:
        """Return the record."""
        numbers = [len(self.levels), len(self.segments), self.written]
        for level in self.levels:
            numbers += [0, len(level)]
            for segment in level:
                numbers += [segment.number, segment.first, segment.last]
        return self.cookie + varints(numbers)


def _level(numbers: Iterator[int]) -> tuple[IndexSegment, ...]:
    merging, count = _some(numbers, 2)
    if merging or count > MOST_SEGMENTS:
        raise SpliceRefused("segments are being merged")
    return tuple(IndexSegment(*_some(numbers, 3)) for _ in range(count))


def _some(numbers: Iterator[int], count: int) -> list[int]:
    """Return the next numbers of a record, which has to have so many."""
    found = list(islice(numbers, count))
    if len(found) < count:
        raise SpliceRefused("the list of segments is cut off")
    return found


def demand_format(db: apsw.Connection, table: str) -> None:
    """Demand that an index is of the format that this package knows.

    Raises:
        SpliceRefused: it is of another one.
    """
    found: Any = db.execute(f"SELECT v FROM {table}_config WHERE k = 'version'").get
    if found != FORMAT:
        raise SpliceRefused(f"the index is of format {found}")


def record_of(db: apsw.Connection, table: str, number: int) -> bytes:
    """Return a record of an index; empty where it has none."""
    found: Any = db.execute(f"SELECT block FROM {table}_data WHERE id = ?", (number,)).get
    return bytes(found or b"")


def varints(numbers: Iterable[int]) -> bytes:
    """Return numbers below 2^56 as FTS5 writes them, one after the other."""
    return b"".join(map(put_varint, numbers))


def _varints(record: bytes) -> Iterator[int]:
    at = 0
    while at < len(record):
        try:
            number, at = varint(record, at)
        except Malformed:
            raise SpliceRefused("a number is cut off, or too long") from None
        yield number
