"""Writes sorted pages into an index, and holds the result against the texts (``docs/formats/fts5.md``)."""

from __future__ import annotations

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
#: A trigram that LIKE reads as it stands and no other case of which there is.
_TERM_CHARACTERS = 3
_WILD = "%_"


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
    """See that a term of a row is found in the same rows as LIKE finds it in, among those that follow."""
    around = f"{index.number} BETWEEN ? AND ? + {SAMPLE_ROWS}"
    texts = db.execute(f"SELECT {index.text} FROM {index.texts} WHERE {around} ORDER BY {index.number}", (first, first))
    term = next(filter(None, (_term(str(text)) for (text,) in texts)), None)
    if term is None:
        return
    scanned = db.execute(
        f"SELECT {index.number} FROM {index.texts} WHERE {around} AND {index.text} LIKE ? ORDER BY {index.number}",
        (first, first, f"%{term}%"),
    ).fetchall()
    quoted = term.replace('"', '""')
    found = db.execute(
        f"SELECT rowid FROM {index.table} WHERE {index.table} MATCH ? AND rowid BETWEEN ? AND ? + {SAMPLE_ROWS}"
        " ORDER BY rowid",
        (f'"{quoted}"', first, first),
    ).fetchall()
    if found != scanned:
        raise SpliceRefused(f"a term is found in {len(found)} rows instead of {len(scanned)}")


def _term(text: str) -> str | None:
    """Return three characters of a text that LIKE and the index read alike, from its middle on; None where none are."""
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 2), *range(min(middle, len(text) - 2))):
        term = text[start : start + _TERM_CHARACTERS]
        is_plain = term.isalnum() and not set(term) & set(_WILD)
        if is_plain and (term.isascii() or term.lower() == term.upper() == term.casefold()):
            return term
    return None
