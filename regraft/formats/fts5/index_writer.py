"""Writes finished pages into an FTS5 index and verifies the result (``docs/formats/fts5.md``, "Records")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import apsw
import msgspec

from regraft.disk import untrusted_sqlite
from regraft.formats.fts5.jobs import (
    PAGE_BYTES,
    IndexBuildRefused,
    Page,
)
from regraft.formats.sqlite_pages.records import MalformedRecord, encode_varint, read_varint

# Records of the index: format version, structure and averages.


#: Supported format version, as stored in the index's ``config`` table.
FORMAT = 4
#: Ids of two rows in the ``data`` table: row and token counts, and the list of segments.
AVERAGES, STRUCTURE = 1, 10
#: The id of a page is the segment number, shifted by this many bits, plus the page number.
SEGMENT_SHIFT = 37
#: FTS5's limit.
MAX_SEGMENTS = 2_000
_COOKIE_BYTES = 4
#: Marker after the cookie in the newer form of the structure record.
_LATER_FORM = b"\xff\x00\x00\x01"


class IndexSegment(msgspec.Struct, frozen=True):
    """A segment: its number, and the numbers of its first and last page."""

    number: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Structure:
    """The structure record: segments by level, newest level first; in each level the oldest segment first."""

    cookie: bytes
    levels: tuple[tuple[IndexSegment, ...], ...]
    written: int

    @property
    def segments(self) -> list[IndexSegment]:
        """All segments of all levels."""
        return [segment for level in self.levels for segment in level]

    @classmethod
    def read(cls, record: bytes) -> Structure:
        """Parse the record.

        Raises:
            IndexBuildRefused: the record has another form, or segments are being merged.
        """
        if record[_COOKIE_BYTES : _COOKIE_BYTES + len(_LATER_FORM)] == _LATER_FORM:
            raise IndexBuildRefused("the list of segments is of a later form")
        numbers = _parse_varints(record[_COOKIE_BYTES:])
        level_count, segment_count, written = _take(numbers, 3)
        if max(level_count, segment_count) > MAX_SEGMENTS:
            raise IndexBuildRefused("the list of segments is too long")
        levels = tuple(_parse_level(numbers) for _ in range(level_count))
        found = cls(record[:_COOKIE_BYTES], levels, written)
        if len(found.segments) != segment_count or next(numbers, None) is not None:
            raise IndexBuildRefused("the list of segments does not add up")
        return found

    def record(self) -> bytes:
        """Encode the record."""
        numbers = [len(self.levels), len(self.segments), self.written]
        for level in self.levels:
            numbers += [0, len(level)]
            for segment in level:
                numbers += [segment.number, segment.first, segment.last]
        return self.cookie + encode_varints(numbers)


def _parse_level(numbers: Iterator[int]) -> tuple[IndexSegment, ...]:
    merging, count = _take(numbers, 2)
    if merging or count > MAX_SEGMENTS:
        raise IndexBuildRefused("segments are being merged")
    return tuple(IndexSegment(*_take(numbers, 3)) for _ in range(count))


def _take(numbers: Iterator[int], count: int) -> list[int]:
    found = list(islice(numbers, count))
    if len(found) < count:
        raise IndexBuildRefused("the list of segments is cut off")
    return found


def check_format(db: apsw.Connection, table: str) -> None:
    """Refuse an index with another format version.

    Raises:
        IndexBuildRefused: the version is not supported.
    """
    found: Any = db.execute(f"SELECT v FROM {table}_config WHERE k = 'version'").get
    if found != FORMAT:
        raise IndexBuildRefused(f"the index is of format {found}")


def read_record(db: apsw.Connection, table: str, number: int) -> bytes:
    """Return a row of the index's ``data`` table, or empty bytes if it does not exist."""
    found: Any = db.execute(f"SELECT block FROM {table}_data WHERE id = ?", (number,)).get
    return bytes(found or b"")


def encode_varints(numbers: Iterable[int]) -> bytes:
    """Concatenate numbers below 2^56 as FTS5 varints."""
    return b"".join(map(encode_varint, numbers))


def _parse_varints(record: bytes) -> Iterator[int]:
    at = 0
    while at < len(record):
        try:
            number, at = read_varint(record, at)
        except MalformedRecord:
            raise IndexBuildRefused("a number is cut off, or too long") from None
        yield number


# Doclist indexes: for terms that span several pages, the first rowid on each page.


#: FTS5 writes a doclist index only if a term fills at least this many further pages.
MIN_INDEXED_PAGES = 4
#: First byte of a doclist-index page: whether it is the root.
_ROOT, _BELOW = b"\0", b"\1"


class _Level(msgspec.Struct):
    """One level of a doclist index: number and content of the page being filled, its first and last rowid."""

    page: int
    data: bytearray = msgspec.field(default_factory=bytearray)
    first: int = 0
    last: int = 0


class DoclistIndex:
    """Builds the doclist index of one term.

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
        """Add the next page; ``row`` is its first rowid of this term, or 0 if it has none."""
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
                # The full page was the root: the new root begins with a pointer to it.
                self._add(height + 1, level.page, level.first)
                self._levels[height + 1].page = level.page
            level.page, level.data = level.page + 1, bytearray()
            self._add(height + 1, level.page, row)
        if level.data:
            level.data += encode_varint(row - level.last)
        else:
            is_root = height + 1 == len(self._levels)
            level.data += (_ROOT if is_root else _BELOW) + encode_varint(page) + encode_varint(row)
            level.first = row
        level.last = row

    def pages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield level, page number and content of each page; nothing if the term fills too few pages."""
        if self._pages < MIN_INDEXED_PAGES or not self._levels:
            return
        yield from self._full
        for height, level in enumerate(self._levels):
            data = bytes(level.data)
            yield height, level.page, data


#: Bits that mark a doclist-index page in a page id, and the position of its level.
_LIST_SHIFT, _HEIGHT_SHIFT = 36, 31
#: Verification: number of samples, and rowids covered by each sample.
SAMPLES, SAMPLE_ROWS = 8, 500
#: Length of a term in characters.
_TERM_CHARACTERS = 3
#: FTS5 and Python may fold these non-ASCII characters to ASCII letters differently; rows that contain one are not
#: compared.
_AMBIGUOUS = re.compile("[\N{KELVIN SIGN}\N{LATIN SMALL LETTER LONG S}\u0130\u0131]")


class IndexNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of a full-text index, of its content table, and of that table's rowid and text columns."""

    table: str
    texts: str
    number: str
    text: str


#: Number of the only segment.
_SEGMENT = 1


class IndexWriter:
    """Fills an index as part of the caller's transaction. Single use.

    Raises:
        IndexBuildRefused: the index has another format version, or is not empty.
        apsw.Error: the index cannot be written.
    """

    def __init__(self, db: apsw.Connection, index: IndexNames, page_bytes: int = PAGE_BYTES) -> None:
        self._db = db
        self._index = index
        self._page_bytes = page_bytes
        self._page = self._rows = self._tokens = 0
        #: The last page on which a term begins, with its separator and the doclist index of its last term.
        self._last: tuple[int, bytes, DoclistIndex] | None = None
        self._terms: list[tuple[int, bytes, int]] = []
        check_format(db, index.table)
        db.execute(f"INSERT INTO {index.table} ({index.table}) VALUES ('delete-all')")
        structure = Structure.read(read_record(db, index.table, STRUCTURE))
        if structure.segments:
            raise IndexBuildRefused("the index is not empty")
        self._cookie = structure.cookie

    def add_counts(self, counts: Iterable[tuple[int, int]]) -> None:
        """Write the number of tokens of each row."""

        def counted() -> Iterator[tuple[int, bytes]]:
            for row, tokens in counts:
                self._rows += 1
                self._tokens += tokens
                yield row, encode_varint(tokens)

        with untrusted_sqlite.allow_schema_writes(self._db):
            self._db.executemany(f"INSERT INTO {self._index.table}_docsize (id, sz) VALUES (?, ?)", counted())

    def add_pages(self, pages: Iterable[Page]) -> None:
        """Write the next pages of the segment.

        Raises:
            IndexBuildRefused: the pages cannot be read.
            apsw.Error: the index cannot be written.
        """
        with untrusted_sqlite.allow_schema_writes(self._db):
            self._db.executemany(
                f"INSERT INTO {self._index.table}_data (id, block) VALUES (?, ?)",
                ((_page_id(self._register_page(page)), page.data) for page in pages),
            )
            self._write_terms()

    def _register_page(self, page: Page) -> int:
        """Return the number of the next page and record the term that begins on it."""
        self._page += 1
        if self._last is not None:
            self._last[2].add_page(self._page, page.row, has_term=page.separator is not None)
        if page.separator is not None:
            self._end_term()
            # The first term of a segment has an empty separator.
            separator = b"" if self._page == 1 else page.separator
            self._last = self._page, separator, DoclistIndex(self._page, self._page_bytes)
        return self._page

    def _end_term(self) -> None:
        if self._last is None:
            return
        page, separator, doclist = self._last
        listed = list(doclist.pages())
        self._terms.append((_SEGMENT, separator, page << 1 | bool(listed)))
        replace = f"REPLACE INTO {self._index.table}_data (id, block) VALUES (?, ?)"
        for height, number, data in listed:
            self._db.execute(replace, (_page_id(number, 1 << _LIST_SHIFT | height << _HEIGHT_SHIFT), data))
        self._last = None

    def _write_terms(self) -> None:
        insert = f"INSERT INTO {self._index.table}_idx (segid, term, pgno) VALUES (?, ?, ?)"
        self._db.executemany(insert, self._terms)
        self._terms.clear()

    def finish(self) -> None:
        """Register the segment and verify that the index returns the same rows as the texts.

        The segment goes to the second level, where FTS5 puts merged segments.

        Raises:
            IndexBuildRefused: the index returns other rows than the texts.
            apsw.Error: the index cannot be read or written.
        """
        db, table = self._db, self._index.table
        segments = (IndexSegment(_SEGMENT, 1, self._page),)
        structure = Structure(self._cookie, ((), segments) if self._page else (), self._page)
        with untrusted_sqlite.allow_schema_writes(db):
            self._end_term()
            self._write_terms()
            replace = f"REPLACE INTO {table}_data (id, block) VALUES (?, ?)"
            db.execute(replace, (STRUCTURE, structure.record()))
            db.execute(replace, (AVERAGES, encode_varints([self._rows, self._tokens])))
        # FTS5 caches the structure record; rolling back to a savepoint discards the cache.
        db.execute("SAVEPOINT spliced; ROLLBACK TO spliced; RELEASE spliced")
        _verify_rows(db, self._index, self._rows)


def _page_id(page: int, kind: int = 0) -> int:
    return (_SEGMENT << SEGMENT_SHIFT) + kind + page


def _verify_rows(db: apsw.Connection, index: IndexNames, rows: int) -> None:
    named = f"FROM {index.texts} WHERE {index.number} IS NOT NULL"
    for what in (f"{index.table}_docsize", f"(SELECT {index.number} {named})"):
        if db.execute(f"SELECT count(*) FROM {what}").get != rows:
            raise IndexBuildRefused("the index has not as many rows as there are texts")
    strays = f"SELECT EXISTS (SELECT 1 FROM {index.table}_docsize WHERE id NOT IN (SELECT {index.number} {named}))"
    if db.execute(strays).get:
        raise IndexBuildRefused("the index has rows that are no text's")
    edges: Any = db.execute(f"SELECT min({index.number}), max({index.number}) {named}").get
    for sample in range(SAMPLES) if rows else ():
        low, high = edges
        _verify_sample(db, index, low + (high - low) * sample // SAMPLES)


def _verify_sample(db: apsw.Connection, index: IndexNames, first: int) -> None:
    """Verify that a term matches exactly the rows that contain it, among the rows from ``first`` on.

    Texts are compared here rather than with LIKE, because LIKE stops at a NUL character and the tokenizer skips it.
    """
    row_range = f"BETWEEN ?1 AND ?1 + {SAMPLE_ROWS}"
    texts: Any = db.execute(
        f"SELECT {index.number}, {index.text} FROM {index.texts}"
        f" WHERE {index.number} {row_range} ORDER BY {index.number}",
        (first,),
    )
    term: str | None = None
    containing: set[int] = set()
    ambiguous: set[int] = set()
    for row, value in texts:
        text = str(value)
        if _AMBIGUOUS.search(text):
            ambiguous.add(row)
            continue
        indexed = text.replace("\0", "").lower()
        # Earlier rows had no usable term, so none of them contains this one.
        term = term or _choose_term(indexed)
        if term is not None and term in indexed:
            containing.add(row)
    if term is None:
        return
    matches = db.execute(
        f"SELECT rowid FROM {index.table} WHERE {index.table} MATCH ?2 AND rowid {row_range}", (first, f'"{term}"')
    )
    found = {row for (row,) in matches} - ambiguous
    if found != containing:
        raise IndexBuildRefused(f"a term is found in {len(found)} rows instead of {len(containing)}")


def _choose_term(text: str) -> str | None:
    """Return three alphanumeric characters of a lower-case text that are ASCII or caseless, or None.

    The search starts in the middle of the text.
    """
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 2), *range(min(middle, len(text) - 2))):
        term = text[start : start + _TERM_CHARACTERS]
        if term.isalnum() and (term.isascii() or term.lower() == term.upper() == term.casefold()):
            return term
    return None
