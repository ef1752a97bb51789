"""Writes sorted pages into an index, and holds the result against the texts (``docs/formats/fts5.md``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import apsw
import msgspec

from regraft import guarding
from regraft.formats.fts5.doclists import DoclistIndex
from regraft.formats.fts5.jobs import Page
from regraft.formats.fts5.records import (
    AVERAGES,
    PAGE_BYTES,
    SEGMENT_SHIFT,
    STRUCTURE,
    IndexSegment,
    SpliceRefused,
    Structure,
    demand_format,
    record_of,
    varints,
)
from regraft.formats.sqlite_pages.records import put_varint

#: A page of a list of a long term's rows, and its height, in the number of a page.
_LIST_SHIFT, _HEIGHT_SHIFT = 36, 31
#: What is looked for again: terms from so many places among the rows, each in so many rows around.
SAMPLES, SAMPLE_ROWS = 8, 500
#: The tokenizer makes terms of so many characters.
_TERM_CHARACTERS = 3
#: Characters beyond ASCII that FTS5 and Python may fold to an ASCII letter differently: rows with one are not compared.
_AMBIGUOUS = re.compile("[\N{KELVIN SIGN}\N{LATIN SMALL LETTER LONG S}\u0130\u0131]")


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """A full-text index of one column whose texts are in another table: the names of both and of two columns."""

    table: str
    texts: str
    number: str
    text: str


#: The one segment's number.
_SEGMENT = 1


class Splicing:
    """Fills an index as part of the caller's transaction; used once.

    Raises:
        SpliceRefused: the index is of another format.
        apsw.Error: it cannot be written.
    """

    def __init__(self, db: apsw.Connection, index: Index, page_bytes: int = PAGE_BYTES) -> None:
        self._db = db
        self._index = index
        self._page_bytes = page_bytes
        self._page = self._rows = self._tokens = 0
        #: The last page in which a term begins, with its separator and what follows on it.
        self._last: tuple[int, bytes, DoclistIndex] | None = None
        self._terms: list[tuple[int, bytes, int]] = []
        demand_format(db, index.table)
        db.execute(f"INSERT INTO {index.table} ({index.table}) VALUES ('delete-all')")
        structure = Structure.read(record_of(db, index.table, STRUCTURE))
        if structure.segments:
            raise SpliceRefused("the index is not empty")
        self._cookie = structure.cookie

    def add_counts(self, counts: Iterable[tuple[int, int]]) -> None:
        """Write of rows how many tokens each has."""

        def counted() -> Iterator[tuple[int, bytes]]:
            for row, tokens in counts:
                self._rows += 1
                self._tokens += tokens
                yield row, put_varint(tokens)

        with guarding.below_the_surface(self._db):
            self._db.executemany(f"INSERT INTO {self._index.table}_docsize (id, sz) VALUES (?, ?)", counted())

    def add_pages(self, pages: Iterable[Page]) -> None:
        """Write the next pages of the segment.

        Raises:
            SpliceRefused: the pages cannot be read.
            apsw.Error: the index cannot be written.
        """
        with guarding.below_the_surface(self._db):
            self._db.executemany(
                f"INSERT INTO {self._index.table}_data (id, block) VALUES (?, ?)",
                ((_page_id(self._numbered(page)), page.data) for page in pages),
            )
            self._write_terms()

    def _numbered(self, page: Page) -> int:
        """Return the number of the next page, and take note of the terms in it."""
        self._page += 1
        if self._last is not None:
            self._last[2].add_page(self._page, page.row, has_term=page.separator is not None)
        if page.separator is not None:
            self._end_term()
            # Nothing is before the first term.
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
        """List what was written as the index's one segment, and see that it answers as the texts do.

        It is where FTS5 puts what it has merged: above the level that is written to.

        Raises:
            SpliceRefused: it does not.
            apsw.Error: it cannot be read or written.
        """
        db, table = self._db, self._index.table
        segments = (IndexSegment(_SEGMENT, 1, self._page),)
        structure = Structure(self._cookie, ((), segments) if self._page else (), self._page)
        with guarding.below_the_surface(db):
            self._end_term()
            self._write_terms()
            replace = f"REPLACE INTO {table}_data (id, block) VALUES (?, ?)"
            db.execute(replace, (STRUCTURE, structure.record()))
            db.execute(replace, (AVERAGES, varints([self._rows, self._tokens])))
        # FTS5 keeps the list of segments that it read; what it kept it forgets where it is taken back to a point.
        db.execute("SAVEPOINT spliced; ROLLBACK TO spliced; RELEASE spliced")
        _demand_answers(db, self._index, self._rows)


def _page_id(page: int, kind: int = 0) -> int:
    return (_SEGMENT << SEGMENT_SHIFT) + kind + page


def _demand_answers(db: apsw.Connection, index: Index, rows: int) -> None:
    named = f"FROM {index.texts} WHERE {index.number} IS NOT NULL"
    for what in (f"{index.table}_docsize", f"(SELECT {index.number} {named})"):
        if db.execute(f"SELECT count(*) FROM {what}").get != rows:
            raise SpliceRefused("the index has not as many rows as there are texts")
    strays = f"SELECT EXISTS (SELECT 1 FROM {index.table}_docsize WHERE id NOT IN (SELECT {index.number} {named}))"
    if db.execute(strays).get:
        raise SpliceRefused("the index has rows that are no text's")
    edges: Any = db.execute(f"SELECT min({index.number}), max({index.number}) {named}").get
    for sample in range(SAMPLES) if rows else ():
        low, high = edges
        _demand_sample(db, index, low + (high - low) * sample // SAMPLES)


def _demand_sample(db: apsw.Connection, index: Index, first: int) -> None:
    """Verify that a term matches exactly the rows whose text contains it, among the rows from ``first`` on.

    Texts are compared here, not with LIKE: LIKE ends at a NUL, while the tokenizer leaves NUL out and goes on.
    """
    around = f"BETWEEN ?1 AND ?1 + {SAMPLE_ROWS}"
    texts: Any = db.execute(
        f"SELECT {index.number}, {index.text} FROM {index.texts} WHERE {index.number} {around} ORDER BY {index.number}",
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
        # A row before the first one with a term has no term at all, so it does not contain this one either.
        term = term or _term(indexed)
        if term is not None and term in indexed:
            containing.add(row)
    if term is None:
        return
    matches = db.execute(
        f"SELECT rowid FROM {index.table} WHERE {index.table} MATCH ?2 AND rowid {around}", (first, f'"{term}"')
    )
    found = {row for (row,) in matches} - ambiguous
    if found != containing:
        raise SpliceRefused(f"a term is found in {len(found)} rows instead of {len(containing)}")


def _term(text: str) -> str | None:
    """Return three letters or digits of a lower-case text that have no case or are ASCII, from its middle on."""
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 2), *range(min(middle, len(text) - 2))):
        term = text[start : start + _TERM_CHARACTERS]
        if term.isalnum() and (term.isascii() or term.lower() == term.upper() == term.casefold()):
            return term
    return None
