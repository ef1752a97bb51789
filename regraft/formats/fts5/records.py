"""The records in which FTS5 keeps what an index consists of (``docs/formats/fts5.md``, "Records")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

#: The version that an index states of its own format.
FORMAT = 4
#: Rows of the index's data: the counts of rows and tokens, and the list of its segments.
AVERAGES, STRUCTURE = 1, 10
#: The number of a page is that of its segment, shifted by so many bits, and its place in the segment.
SEGMENT_SHIFT = 37
#: An index has at most so many segments.
MOST_SEGMENTS = 2_000
_COOKIE_BYTES = 4
#: What follows the cookie in a list of segments of the later form.
_LATER_FORM = b"\xff\x00\x00\x01"


class OtherForm(Exception):
    """A record is of another form than that of :data:`FORMAT`; the text says how."""


@dataclass(frozen=True, slots=True)
class IndexSegment:
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
            OtherForm: it is of another form, or segments are being merged.
        """
        numbers = _varints(record[_COOKIE_BYTES:])
        if record[_COOKIE_BYTES : _COOKIE_BYTES + len(_LATER_FORM)] == _LATER_FORM:
            raise OtherForm("the list of segments is of a later form")
        try:
            level_count, segment_count, written = next(numbers), next(numbers), next(numbers)
            if max(level_count, segment_count) > MOST_SEGMENTS:
                raise OtherForm("the list of segments is too long")
            levels = tuple(_level(numbers) for _ in range(level_count))
        except StopIteration:
            raise OtherForm("the list of segments is cut off") from None
        found = cls(record[:_COOKIE_BYTES], levels, written)
        if len(found.segments) != segment_count or next(numbers, None) is not None:
            raise OtherForm("the list of segments does not add up")
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
    merging, count = next(numbers), next(numbers)
    if merging or count > MOST_SEGMENTS:
        raise OtherForm("segments are being merged")
    return tuple(IndexSegment(next(numbers), next(numbers), next(numbers)) for _ in range(count))


def read_averages(record: bytes) -> Sequence[int]:
    """Return the number of rows, and of tokens in each column."""
    return list(_varints(record))


def varints(numbers: Iterable[int]) -> bytes:
    """Return numbers, each in 1 to 8 bytes of 7 bits, the highest first."""
    record = bytearray()
    for number in numbers:
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        record += bytes(reversed(groups))
    return bytes(record)


def _varints(record: bytes) -> Iterator[int]:
    number = 0
    is_open = False
    for byte in record:
        number = number << 7 | byte & 0x7F
        is_open = byte >= 0x80
        if not is_open:
            yield number
            number = 0
        elif number >> 56:
            raise OtherForm("a number is too long")
    if is_open:
        raise OtherForm("a number is cut off")
