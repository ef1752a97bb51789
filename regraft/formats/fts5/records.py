"""The records in which FTS5 keeps what an index consists of (``docs/formats/fts5.md``, "Records")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import apsw
import msgspec

from regraft.disk import durable
from regraft.formats.sqlite_pages.records import Malformed, put_varint, varint

# Texts on their way to another process, in a file with the number of each one's row.


#: Before each text: its row, and its length in bytes.
_HEAD = struct.Struct("<qQ")


class TextFile:
    """A new file of texts that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.characters = 0
        self._file: BinaryIO = durable.open_binary(path, "xb")

    def add(self, rowid: int, text: str) -> None:
        """Write a text behind the others."""
        raw = text.encode()
        self._file.write(_HEAD.pack(rowid, len(raw)) + raw)
        self.rows += 1
        self.characters += len(text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every row and text of a file."""
    with path.open("rb") as file:
        while head := file.read(_HEAD.size):
            rowid, length = _HEAD.unpack(head)
            yield rowid, file.read(length).decode()


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


# What the processes make that fill an index: runs of sorted trigrams, and pages over a range of trigrams.


#: The three characters of a trigram stand in one number, which sorts as they do: here is the end of them all.
CODE_POINTS = 0x110000
CHARACTER_BITS = 21
TRIGRAMS_END = CODE_POINTS << 2 * CHARACTER_BITS
#: What a trigram's doclist takes while pages are made, besides its bytes; and of so much in a run one trigram is told.
DOCLIST_BYTES = 32
SAMPLE_BYTES = 1 << 15


class SortJob(msgspec.Struct, frozen=True, kw_only=True):
    """The trigrams of the texts in a file are to be sorted.

    ``arguments`` are the column and the tokenizer of the index, as FTS5 takes them.
    """

    texts: Path
    into: Path
    arguments: str
    page_bytes: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The file with the sorted trigrams of some texts; :mod:`regraft.formats.fts5.runs` says what is in it.

    It begins with numbers of 8 bytes, the lowest first: the rows of the texts, then how many trigrams each has.
    """

    path: Path
    rows: int
    terms: int
    marks: int
    stream_bytes: int


def write_runs(path: Path, runs: Iterable[Run]) -> None:
    """Write a list of runs in the same folder."""
    lines = (f"{run.path.name} {run.rows} {run.terms} {run.marks} {run.stream_bytes}\n" for run in runs)
    durable.put_bytes(path, "".join(lines).encode())


def read_runs(path: Path) -> Iterator[Run]:
    """Yield the runs of a list.

    Raises:
        OSError: it cannot be read.
    """
    for line in path.read_text().splitlines():
        name, *numbers = line.split()
        rows, terms, marks, stream_bytes = map(int, numbers)
        yield Run(path=path.with_name(name), rows=rows, terms=terms, marks=marks, stream_bytes=stream_bytes)


class RangeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Pages are to be made over the trigrams from ``low`` up to, without, ``high``, of all runs that a file lists."""

    runs: Path
    low: int
    high: int
    into: Path
    page_bytes: int


class Page(NamedTuple):
    """A page of a segment.

    ``separator`` tells the first term that begins in it from all terms before it; None where none does.
    ``row`` is the first row in it of a term that began before; 0 where there is none.
    """

    data: bytes
    separator: bytes | None
    row: int


#: Before each page in a file: the lengths of its bytes and of its separator, and its row.
_PAGE = struct.Struct("<HHq")
_NO_SEPARATOR = 0xFFFF
_PAGES_AT_ONCE = 64
_BUFFER_BYTES = 1 << 18


def write_pages(file: BinaryIO, pages: Iterable[Page]) -> int:
    """Write pages behind others, and return how many."""
    parts: list[bytes] = []
    count = 0
    for count, page in enumerate(pages, 1):
        length = _NO_SEPARATOR if page.separator is None else len(page.separator)
        parts += _PAGE.pack(len(page.data), length, page.row), page.separator or b"", page.data
        if count % _PAGES_AT_ONCE == 0:
            file.write(b"".join(parts))
            parts.clear()
    file.write(b"".join(parts))
    return count


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages in a file.

    Raises:
        SpliceRefused: the file is not whole.
    """
    with path.open("rb", _BUFFER_BYTES) as file:
        while head := file.read(_PAGE.size):
            if len(head) < _PAGE.size:
                raise SpliceRefused("a file of pages is cut off")
            length, separator_length, row = _PAGE.unpack(head)
            separator = None if separator_length == _NO_SEPARATOR else file.read(separator_length)
            data = file.read(length)
            if len(data) < length:
                raise SpliceRefused("a file of pages is cut off")
            yield Page(data, separator, row)


# Where the rows of a long list of occurrences lie, page by page, as FTS5 keeps it (``docs/formats/fts5.md``).


#: A term has such a list if it goes on over so many pages without another term.
LEAST_PAGES = 4
#: The first byte of a page of the list: whether there is a page above it.
_ROOT, _BELOW = b"\0", b"\1"


class _Level(msgspec.Struct):
    """One level: the page that is being filled, its number, its first row, and the last row in it."""

    page: int
    data: bytearray = msgspec.field(default_factory=bytearray)
    first: int = 0
    last: int = 0


class DoclistIndex:
    """The rows with which pages begin that a term goes on over; used for one term.

    Args:
        page: the page in which the term begins.
        page_bytes: FTS5's ``pgsz``.
    """

    def __init__(self, page: int, page_bytes: int) -> None:
        self._page = page
        self._page_bytes = page_bytes
        self._levels: list[_Level] = []
        self._full: list[tuple[int, int, bytes]] = []
        self._pages = 0

    def add_page(self, page: int, row: int, *, has_term: bool) -> None:
        """Take the next page, with its first row of this term; 0 where there is none."""
        if not has_term:
            self._pages += 1
        if row:
            self._add(0, page, row)
        elif not has_term and self._levels:
            self._levels[0].data += b"\0"

    def _add(self, height: int, page: int, row: int) -> None:
        if height == len(self._levels):
            self._levels.append(_Level(self._page))
        level = self._levels[height]
        if len(level.data) >= self._page_bytes:
            level.data[:1] = _BELOW
            self._full.append((height, level.page, bytes(level.data)))
            if height + 1 == len(self._levels):
                # It was the root: the new one names it first.
                self._add(height + 1, level.page, level.first)
                self._levels[height + 1].page = level.page
            level.page, level.data = level.page + 1, bytearray()
            self._add(height + 1, level.page, row)
        if level.data:
            level.data += put_varint(row - level.last)
        else:
            is_root = height + 1 == len(self._levels)
            level.data += (_ROOT if is_root else _BELOW) + put_varint(page) + put_varint(row)
            level.first = row
        level.last = row

    def pages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield height, number and bytes of each page; nothing where the term is on few pages."""
        if self._pages < LEAST_PAGES or not self._levels:
            return
        yield from self._full
        for height, level in enumerate(self._levels):
            data = bytes(level.data)
            yield height, level.page, data
