"""Jobs for the worker processes that fill an FTS5 index, and the temporary files that they exchange."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from regraft.disk import durable

#: Header before each text in a text file: rowid, then length in bytes.
_TEXT_HEADER = struct.Struct("<qQ")


class TextFile:
    """Writes texts and their rowids to a new temporary file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self.characters = 0
        self._file: BinaryIO = durable.open_binary(path, "xb")

    def add(self, rowid: int, text: str) -> None:
        """Append a text with its rowid."""
        raw = text.encode()
        self._file.write(_TEXT_HEADER.pack(rowid, len(raw)) + raw)
        self.rows += 1
        self.characters += len(text)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (rowid, text) of each text in a file that :class:`TextFile` wrote."""
    with path.open("rb") as file:
        while head := file.read(_TEXT_HEADER.size):
            rowid, length = _TEXT_HEADER.unpack(head)
            yield rowid, file.read(length).decode()


#: FTS5's default page size in bytes (``pgsz``).
PAGE_BYTES = 4050


class IndexBuildRefused(Exception):
    """The index cannot be built from pages; the message gives the reason. FTS5 has to fill it instead."""


#: A trigram is stored as one integer of three code points; integers sort in the order of the trigrams.
CODE_POINTS = 0x110000
CHARACTER_BITS = 21
TRIGRAMS_END = CODE_POINTS << 2 * CHARACTER_BITS
#: Memory overhead of a doclist while pages are built; and bytes of doclists between two samples.
DOCLIST_BYTES = 32
SAMPLE_BYTES = 1 << 15


class SortJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job: sort the trigrams of the texts in the file ``texts`` and write the run ``into`` a file.

    ``arguments`` are the column and tokenizer arguments of the FTS5 table.
    """

    texts: Path
    into: Path
    arguments: str
    page_bytes: int


class SortedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the sorted trigrams of some texts; :mod:`regraft.formats.fts5.runs` describes its content.

    The file begins with little-endian 8-byte integers: the rowid of each text, then the number of trigrams of each
    text.
    """

    path: Path
    rows: int
    terms: int
    marks: int
    stream_bytes: int


def write_runs(path: Path, runs: Iterable[SortedRun]) -> None:
    """Write a list of sorted runs to a file in the same directory."""
    lines = (f"{run.path.name} {run.rows} {run.terms} {run.marks} {run.stream_bytes}\n" for run in runs)
    durable.put_bytes(path, "".join(lines).encode())


def read_runs(path: Path) -> Iterator[SortedRun]:
    """Yield the sorted runs that a file lists.

    Raises:
        OSError: the file cannot be read.
    """
    for line in path.read_text().splitlines():
        name, *numbers = line.split()
        rows, terms, marks, stream_bytes = map(int, numbers)
        yield SortedRun(path=path.with_name(name), rows=rows, terms=terms, marks=marks, stream_bytes=stream_bytes)


class RangeJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job: build the index pages for the trigrams from ``low`` (included) to ``high`` (excluded).

    ``runs`` is the file that lists the sorted runs.
    """

    runs: Path
    low: int
    high: int
    into: Path
    page_bytes: int


class Page(NamedTuple):
    """A leaf page of a segment.

    ``separator`` is the shortest prefix of the page's first new term that sorts after all earlier terms; None if no
    term begins on the page. ``row`` is the first rowid on the page that belongs to a term begun on an earlier page, or
    0.
    """

    data: bytes
    separator: bytes | None
    row: int


#: Header before each page in a file: length of the data, length of the separator, and ``row``.
_PAGE_HEADER = struct.Struct("<HHq")
_NO_SEPARATOR = 0xFFFF
_PAGES_AT_ONCE = 64
_BUFFER_BYTES = 1 << 18


def write_pages(file: BinaryIO, pages: Iterable[Page]) -> int:
    """Append index pages to an open file and return their number."""
    parts: list[bytes] = []
    count = 0
    for count, page in enumerate(pages, 1):
        length = _NO_SEPARATOR if page.separator is None else len(page.separator)
        parts += _PAGE_HEADER.pack(len(page.data), length, page.row), page.separator or b"", page.data
        if count % _PAGES_AT_ONCE == 0:
            file.write(b"".join(parts))
            parts.clear()
    file.write(b"".join(parts))
    return count


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the index pages in a file.

    Raises:
        IndexBuildRefused: the file is not whole.
    """
    with path.open("rb", _BUFFER_BYTES) as file:
        while head := file.read(_PAGE_HEADER.size):
            if len(head) < _PAGE_HEADER.size:
                raise IndexBuildRefused("a file of pages is cut off")
            length, separator_length, row = _PAGE_HEADER.unpack(head)
            separator = None if separator_length == _NO_SEPARATOR else file.read(separator_length)
            data = file.read(length)
            if len(data) < length:
                raise IndexBuildRefused("a file of pages is cut off")
            yield Page(data, separator, row)
