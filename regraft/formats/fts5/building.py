"""Texts on their way into an index: they are sorted in processes while they come, and made into pages in the end."""

from __future__ import annotations

import logging
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from itertools import chain, groupby, pairwise
from pathlib import Path
from sys import byteorder
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, untrusted_sqlite
from regraft.formats.fts5.records import (
    AVERAGES,
    PAGE_BYTES,
    SAMPLE_BYTES,
    SEGMENT_SHIFT,
    STRUCTURE,
    TRIGRAMS_END,
    DoclistIndex,
    IndexSegment,
    Page,
    RangeJob,
    Run,
    SortJob,
    SpliceRefused,
    Structure,
    TextFile,
    demand_format,
    read_pages,
    record_of,
    varints,
    write_runs,
)
from regraft.formats.sqlite_pages.records import put_varint
from regraft.processes import pool
from regraft.processes.pool import JobFailed, ProcessPool

# Writes sorted pages into an index, and holds the result against the texts (``docs/formats/fts5.md``).


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

        with untrusted_sqlite.allow_schema_writes(self._db):
            self._db.executemany(f"INSERT INTO {self._index.table}_docsize (id, sz) VALUES (?, ?)", counted())

    def add_pages(self, pages: Iterable[Page]) -> None:
        """Write the next pages of the segment.

        Raises:
            SpliceRefused: the pages cannot be read.
            apsw.Error: the index cannot be written.
        """
        with untrusted_sqlite.allow_schema_writes(self._db):
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
        with untrusted_sqlite.allow_schema_writes(db):
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


# The jobs that processes do (:mod:`regraft.processes.pool`): NumPy is loaded there, and not where they are dealt out.


def sort(job: SortJob) -> list[tuple[Run, list[int]]]:
    """See :func:`regraft.formats.fts5.segment.sort`."""
    runs: list[tuple[Run, list[int]]] = _making().sort(job)
    return runs


def make_pages(job: RangeJob) -> int:
    """See :func:`regraft.formats.fts5.segment.make_pages`."""
    return int(_making().make_pages(job))


def _making() -> Any:
    return import_module("regraft.formats.fts5.segment")


logger = logging.getLogger(__name__)

#: Below so many bytes of text, starting processes costs more than they save.
LEAST_BYTES = 8 << 20
#: So many characters are sorted at a time, which takes some 60 bytes of memory for each.
RUN_CHARACTERS = 1 << 19
#: About so many bytes of doclists are made into pages at a time.
RANGE_BYTES = 8 << 20
#: From so many bytes of text on twice as many, since each range is looked for in each run.
LARGE_BYTES = 32 << 20
#: What is written meanwhile: texts, sorted runs and their list, pages.
_FILES = ("texts-*", "run-*", "runs", "pages-*")


def pays(text_bytes: int) -> bool:
    """Tell whether an index over so many bytes of text is filled faster by a crew, and whether there can be one."""
    return text_bytes >= LEAST_BYTES and pool.can_use_pool()


class Sorting:
    """Texts on their way into an index, in rising order of their rows.

    Args:
        folder: where files are written meanwhile; it may be changed.
        crew: the processes.
        arguments: column and tokenizer of the index, as FTS5 takes them.
        run_characters: so many characters are sorted at a time.
        range_bytes: about so many bytes of doclists are made into pages at a time.
        page_bytes: how long the index's pages are.
    """

    def __init__(
        self,
        folder: Path,
        crew: ProcessPool,
        *,
        arguments: str,
        run_characters: int = RUN_CHARACTERS,
        range_bytes: int = RANGE_BYTES,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._folder = folder
        self._crew = crew
        self._arguments = arguments
        self._run_characters = run_characters
        self._range_bytes = range_bytes
        self._page_bytes = page_bytes
        self._texts: TextFile | None = None
        self._sorts = 0
        #: The jobs whose runs are not there yet.
        self._sorting: deque[int] = deque()
        self._has_ended = False
        self._runs: list[Run] = []
        self._samples: list[list[int]] = []
        #: The jobs that make pages, and the files that these are going to be in, once that is known.
        self._paging: list[tuple[int, Path]] | None = None
        self._problem: str | None = None

    def add(self, rowid: int, text: str) -> None:
        """Take a text."""
        if self._problem is not None:
            return
        try:
            if self._texts is None:
                self._texts = TextFile(self._folder / f"texts-{self._sorts}")
            self._texts.add(rowid, text)
            if self._texts.characters >= self._run_characters:
                self._hand_out()
        except (OSError, UnicodeEncodeError, JobFailed) as error:
            self._give_up(error)

    def end(self) -> None:
        """Hand out the last texts; none comes any more."""
        self._has_ended = True
        try:
            if self._texts is not None:
                self._hand_out()
        except (OSError, JobFailed) as error:
            self._give_up(error)

    def go_on(self) -> None:
        """Deal out what is next, without waiting: whoever does something else meanwhile calls it now and then."""
        if self._problem is not None:
            return
        try:
            self._crew.go_on()
            while self._has_ended and self._paging is None and self._are_next_sorted:
                self._take_sorted()
        except (OSError, JobFailed) as error:
            self._give_up(error)

    def _give_up(self, problem: Exception) -> None:
        """Leave the index to FTS5, which may need the room."""
        self._problem = str(problem)
        if self._texts is not None:
            self._texts.close()
            self._texts = None
        for path in chain.from_iterable(map(self._folder.glob, _FILES)):
            # What a process still has open there goes with the folder.
            with suppress(OSError):
                durable.remove(path, missing_ok=True)

    def _hand_out(self) -> None:
        """Let a process sort the texts that came."""
        assert self._texts is not None
        self._texts.close()
        into = self._folder / f"run-{self._sorts}"
        job = SortJob(texts=self._texts.path, into=into, arguments=self._arguments, page_bytes=self._page_bytes)
        self._sorting.append(self._crew.put(sort, job))
        self._sorts += 1
        self._texts = None

    @property
    def _are_next_sorted(self) -> bool:
        return not self._sorting or self._crew.is_answered(self._sorting[0])

    def splice_into(self, db: apsw.Connection, index: Index, each: Callable[[int], None]) -> bool:
        """Fill an index with all texts that came, as part of the caller's transaction.

        Args:
            db: the index's file, opened for writing.
            index: the index; what it holds goes.
            each: called with numbers of rows, in proportion to what is in.

        Returns:
            Whether it was filled; else FTS5 has to fill it.
        """
        self.end()
        try:
            # A savepoint: what was written goes again where anything differs.
            with db:
                self._splice_into(db, index, each)
        except (SpliceRefused, JobFailed, apsw.Error, OSError) as problem:
            self._give_up(problem)
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            return False
        return True

    def _splice_into(self, db: apsw.Connection, index: Index, each: Callable[[int], None]) -> None:
        if self._problem is not None:
            raise SpliceRefused(self._problem)
        while self._paging is None:
            self._take_sorted()
        splicing = Splicing(db, index, self._page_bytes)
        for run in self._runs:
            splicing.add_counts(zip(_numbers(run, 0, run.rows), _numbers(run, run.rows, run.rows), strict=True))
        all_rows, told = sum(run.rows for run in self._runs), 0
        for number, (job, path) in enumerate(self._paging, 1):
            self._crew.take(job)
            splicing.add_pages(read_pages(path))
            durable.remove(path)
            done = all_rows * number // len(self._paging)
            each(done - told)
            told = done
        splicing.finish()

    def _take_sorted(self) -> None:
        """Take the runs of the next texts; once all are there, let processes make the pages over them."""
        if self._sorting:
            for run, samples in self._crew.take(self._sorting.popleft()):
                self._runs.append(run)
                self._samples.append(samples)
        if self._sorting:
            return
        runs, self._paging = self._folder / "runs", []
        write_runs(runs, self._runs)
        for low, high in ranges_of(self._samples, self._range_bytes) if self._runs else ():
            into = self._folder / f"pages-{len(self._paging)}"
            job = RangeJob(runs=runs, low=low, high=high, into=into, page_bytes=self._page_bytes)
            self._paging.append((self._crew.put(make_pages, job), into))
        self._samples.clear()


def ranges_of(samples: Iterable[list[int]], most: int) -> list[tuple[int, int]]:
    """Return ranges of trigrams, each of about so many or of a single one; together they are all trigrams.

    Args:
        samples: trigrams of each run at distances of ``SAMPLE_BYTES``.
        most: how many bytes of doclists a range is to have.
    """
    every = array("q")
    for some in samples:
        every.extend(some)
    edges = {0, TRIGRAMS_END}
    share, held = max(most // SAMPLE_BYTES, 1), 0
    for trigram, same in groupby(sorted(every)):
        count = sum(1 for _ in same)
        if count >= share:
            # What one trigram has may be more than fits: alone it need not be sorted.
            edges |= {trigram, trigram + 1}
            held = 0
        elif held + count > share:
            edges.add(trigram)
            held = count
        else:
            held += count
    return list(pairwise(sorted(edges)))


def _numbers(run: Run, first: int, count: int) -> array[int]:
    """Return so many numbers of a run, from one on."""
    numbers = array("q")
    with run.path.open("rb") as file:
        file.seek(first * numbers.itemsize)
        numbers.frombytes(file.read(count * numbers.itemsize))
    if byteorder == "big":
        numbers.byteswap()
    return numbers


@contextmanager
def sorting(
    text_bytes: int, *, arguments: str, beside: Path | None = None, ready: ProcessPool | None = None
) -> Iterator[Sorting | None]:
    """Start what fills an index over about so many bytes of text; None where FTS5 alone is faster, or has to do.

    Args:
        text_bytes: about how many bytes of text there will be.
        arguments: see :class:`Sorting`.
        beside: a folder for what is written meanwhile; None for the system's.
        ready: processes that may be used; else some are started, and ended afterwards.
    """
    if not pays(text_bytes):
        yield None
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(durable.temporary_folder(beside))
            at_hand = ready or stack.enter_context(pool.open_pool())
        except OSError as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            yield None
            return
        # What is left of jobs is nobody's when this ends early.
        stack.callback(at_hand.forget)
        share = 2 if text_bytes >= LARGE_BYTES else 1
        yield Sorting(
            folder,
            at_hand,
            arguments=arguments,
            run_characters=RUN_CHARACTERS * share,
            range_bytes=RANGE_BYTES * share,
        )
