"""What the processes make that fill an index: runs of sorted trigrams, and pages over a range of trigrams."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from regraft.formats.fts5.records import SpliceRefused
from regraft.ledger import durable

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
