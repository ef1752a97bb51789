"""What the processes make that fill an index: sorted runs of trigrams, and pages over a range of trigrams."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from regraft.formats.fts5.records import SpliceRefused

#: The three characters of a trigram stand in one number, which sorts as they do: here is the end of them all.
CHARACTER_BITS = 21
TRIGRAMS_END = 0x110000 << 2 * CHARACTER_BITS
#: Of so many trigrams of a run, one is told.
SAMPLE_STEP = 1 << 12


@dataclass(frozen=True, kw_only=True)
class SortJob:
    """The trigrams of the texts in a file are to be sorted.

    ``arguments`` are the column and the tokenizer of the index, as FTS5 takes them.
    """

    texts: Path
    into: Path
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """The sorted trigrams of some texts, in a file of numbers of 8 bytes, the lowest first.

    In it are the characters, ascending; the rows of the texts; how many trigrams each has; and the keys. A key is a
    trigram, then in ``text_bits`` the place of its text, then in ``place_bits`` its place there. Its trigram is a
    number of three digits, ``digit_bits`` each, of which each is the place of a character.
    """

    path: Path
    characters: int
    rows: int
    tokens: int
    digit_bits: int
    text_bits: int
    place_bits: int

    @property
    def counts_at(self) -> int:
        """Return how many numbers stand before the counts."""
        return self.characters + self.rows

    @property
    def keys_at(self) -> int:
        """Return how many numbers stand before the keys."""
        return self.characters + 2 * self.rows


@dataclass(frozen=True, kw_only=True)
class RangeJob:
    """Pages are to be made over the trigrams from ``low`` up to, without, ``high``, of all runs.

    ``alphabet`` is a file with the characters of all of them.
    """

    runs: tuple[Run, ...]
    alphabet: Path
    low: int
    high: int
    into: Path
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Page:
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


def write_page(file: BinaryIO, page: Page) -> None:
    """Write a page behind others."""
    separator = b"" if page.separator is None else page.separator
    length = _NO_SEPARATOR if page.separator is None else len(separator)
    file.write(_PAGE.pack(len(page.data), length, page.row) + separator + page.data)


def read_pages(path: Path) -> Iterator[Page]:
    """Yield the pages in a file.

    Raises:
        SpliceRefused: the file is not whole.
    """
    with path.open("rb") as file:
        while head := file.read(_PAGE.size):
            if len(head) < _PAGE.size:
                raise SpliceRefused("a file of pages is cut off")
            length, separator_length, row = _PAGE.unpack(head)
            separator = None if separator_length == _NO_SEPARATOR else file.read(separator_length)
            data = file.read(length)
            if len(data) < length:
                raise SpliceRefused("a file of pages is cut off")
            yield Page(data, separator, row)
