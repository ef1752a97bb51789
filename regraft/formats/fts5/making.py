"""Makes a shard: with NumPy where its tokenizer is that of trigrams, else with FTS5 alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import apsw

from regraft import guarding, sqlite
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
from regraft.formats.fts5.segment import pages_of
from regraft.formats.fts5.shard import TABLE, ShardJob, read_texts
from regraft.formats.fts5.trigrams import Folding, trigrams_of
from regraft.ledger import durable

#: A segment is made of about so many characters; some 30 bytes of memory are taken for each.
SEGMENT_CHARACTERS = 5 << 19
#: Numbers of rows are below this.
_ROWS_END = 1 << 40
#: The file is thrown away if anything fails. Large pages take many of FTS5's at once from and to the disk.
_PRAGMAS = (("page_size", 1 << 16), ("journal_mode", "OFF"), ("synchronous", "OFF"), ("cache_size", -2_000))

Texts = list[tuple[int, str]]


def make(job: ShardJob) -> int:
    """Make the index, as one segment, and return the number of its rows.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    try:
        with _new(job) as db:
            _fill(db, job)
    except (SpliceRefused, UnicodeError):
        durable.remove(job.into)
        with _new(job) as db:
            _let_fts5_fill(db, job)
    with _writing(job) as db:
        db.execute(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('optimize')")
        return int(db.execute(f"SELECT count(*) FROM {TABLE}_docsize").get)


@contextmanager
def _writing(job: ShardJob, *, create: bool = False) -> Iterator[apsw.Connection]:
    with sqlite.writing(job.into, create=create) as db:
        for name, value in _PRAGMAS:
            db.pragma(name, value)
        db.execute("BEGIN IMMEDIATE")
        yield db
        db.execute("COMMIT")


@contextmanager
def _new(job: ShardJob) -> Iterator[apsw.Connection]:
    with _writing(job, create=True) as db:
        db.execute(f"CREATE VIRTUAL TABLE {TABLE} USING fts5 ({job.arguments}, content = '')")
        yield db


def _let_fts5_fill(db: apsw.Connection, job: ShardJob) -> None:
    for name, value in job.settings.items():
        db.execute(f"INSERT INTO {TABLE} ({TABLE}, rank) VALUES (?, ?)", (name, value))
    db.executemany(f"INSERT INTO {TABLE} (rowid, text) VALUES (?, ?)", read_texts(job.texts))


def _fill(db: apsw.Connection, job: ShardJob) -> None:
    """Write segments over the texts into the tables of an empty index.

    Raises:
        SpliceRefused, UnicodeError: that cannot be done with these texts, or with this SQLite.
    """
    demand_format(db, TABLE)
    with sqlite.scratch() as scratch, guarding.below_the_surface(db):
        segments = _Segments(db, Folding(scratch, job.arguments))
        for texts in _some_at_a_time(read_texts(job.texts)):
            segments.add(texts)
        segments.finish()


def _some_at_a_time(texts: Iterable[tuple[int, str]]) -> Iterator[Texts]:
    some: Texts = []
    characters = 0
    for rowid, text in texts:
        if some and characters + len(text) > SEGMENT_CHARACTERS:
            yield some
            some, characters = [], 0
        some.append((rowid, text))
        characters += len(text)
    if some:
        yield some


class _Segments:
    """The segments of an index that is being made, which FTS5 has to read anew afterwards."""

    def __init__(self, db: apsw.Connection, folding: Folding) -> None:
        self._db = db
        self._folding = folding
        self._segments: list[IndexSegment] = []
        self._rows = self._tokens = self._last_row = 0

    def add(self, texts: Texts) -> None:
        """Write a segment over texts whose rows follow on those that came.

        Raises:
            SpliceRefused: they do not, or the texts cannot be sorted.
        """
        rowids = [rowid for rowid, _ in texts]
        trigrams = trigrams_of([text for _, text in texts], self._folding)
        if trigrams is None:
            # Fewer texts take fewer bits.
            if len(texts) == 1:
                raise SpliceRefused("a text is too long, of too many different characters")
            self.add(texts[: len(texts) // 2])
            self.add(texts[len(texts) // 2 :])
            return
        for rowid in rowids:
            if not self._last_row < rowid < _ROWS_END:
                raise SpliceRefused("the numbers of the rows do not rise, or are too high")
            self._last_row = rowid
        sizes = trigrams.counts.tolist()
        docsize = f"INSERT INTO {TABLE}_docsize (id, sz) VALUES (?, ?)"
        self._db.executemany(docsize, ((rowid, varints([size])) for rowid, size in zip(rowids, sizes, strict=True)))
        self._rows += len(rowids)
        self._tokens += sum(sizes)
        number = len(self._segments) + 1
        terms: list[tuple[int, bytes, int]] = []
        page = 0

        def rows() -> Iterator[tuple[int, bytes]]:
            nonlocal page
            for made in pages_of(trigrams, rowids, PAGE_BYTES):
                page += 1
                if made.separator is not None:
                    terms.append((number, made.separator, page << 1))
                yield (number << SEGMENT_SHIFT) + page, made.data

        self._db.executemany(f"INSERT INTO {TABLE}_data (id, block) VALUES (?, ?)", rows())
        self._db.executemany(f"INSERT INTO {TABLE}_idx (segid, term, pgno) VALUES (?, ?, ?)", terms)
        if page:
            self._segments.append(IndexSegment(number, 1, page))

    def finish(self) -> None:
        """List the segments as the newest of the index."""
        known = Structure.read(record_of(self._db, TABLE, STRUCTURE))
        pages = sum(segment.last for segment in self._segments)
        structure = Structure(known.cookie, (tuple(self._segments),) if self._segments else (), pages)
        replace = f"REPLACE INTO {TABLE}_data (id, block) VALUES (?, ?)"
        self._db.execute(replace, (STRUCTURE, structure.record()))
        self._db.execute(replace, (AVERAGES, varints([self._rows, self._tokens])))
