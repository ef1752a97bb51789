"""Fills an FTS5 full-text index in several processes (``docs/formats/fts5.md``).

SQLite fills an FTS5 index on one core. Here worker processes sort the trigrams of batches of texts, then build the
index pages of disjoint trigram ranges. The pages are written in order as the only segment of the index. Whenever
anything differs from what ``docs/formats/fts5.md`` describes, FTS5 fills the index itself.
"""

from __future__ import annotations

import logging
import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from sys import byteorder
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, scratch, untrusted_sqlite
from regraft.formats.fts5.jobs import (
    PAGE_BYTES,
    SAMPLE_BYTES,
    TRIGRAMS_END,
    IndexBuildRefused,
    Page,
    RangeJob,
    SortedRun,
    SortJob,
    TextFile,
    read_pages,
    write_runs,
)
from regraft.formats.sqlite_pages.records import MalformedRecord, encode_varint, read_varint
from regraft.processes import pool
from regraft.processes.pool import JobFailed, ProcessPool

# --- the index: finished pages are written into it and verified ("Records") ------------------------------------------

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
    """The structure record of an index: its segments by level, newest level first, oldest segment first."""

    cookie: bytes
    levels: tuple[tuple[IndexSegment, ...], ...]
    written: int

    @property
    def segments(self) -> list[IndexSegment]:
        """All segments of all levels."""
        return [segment for level in self.levels for segment in level]

    @classmethod
    def read(cls, record: bytes) -> Structure:
        """Parse a structure record.

        Raises:
            IndexBuildRefused: the record has another form, or segments are being merged.
        """
        if record[_COOKIE_BYTES : _COOKIE_BYTES + len(_LATER_FORM)] == _LATER_FORM:
            raise IndexBuildRefused("the list of segments is of a later form")
        numbers = _parse_varints(record[_COOKIE_BYTES:])
        level_count, segment_count, written = _take_numbers(numbers, 3)
        if max(level_count, segment_count) > MAX_SEGMENTS:
            raise IndexBuildRefused("the list of segments is too long")
        levels: list[tuple[IndexSegment, ...]] = []
        for _ in range(level_count):
            merging, count = _take_numbers(numbers, 2)
            if merging or count > MAX_SEGMENTS:
                raise IndexBuildRefused("segments are being merged")
            levels.append(tuple(IndexSegment(*_take_numbers(numbers, 3)) for _ in range(count)))
        found = cls(record[:_COOKIE_BYTES], tuple(levels), written)
        if len(found.segments) != segment_count or next(numbers, None) is not None:
            raise IndexBuildRefused("the list of segments does not add up")
        return found

    def record(self) -> bytes:
        """Encode the structure record."""
        numbers = [len(self.levels), len(self.segments), self.written]
        for level in self.levels:
            numbers += [0, len(level)]
            for segment in level:
                numbers += [segment.number, segment.first, segment.last]
        return self.cookie + encode_varints(numbers)


def _take_numbers(numbers: Iterator[int], count: int) -> list[int]:
    """Return the next ``count`` numbers; raises IndexBuildRefused if there are fewer."""
    found = list(islice(numbers, count))
    if len(found) < count:
        raise IndexBuildRefused("the list of segments is cut off")
    return found


def read_record(db: apsw.Connection, table: str, number: int) -> bytes:
    """Return the row with a number of the ``data`` table of the index ``table``; empty if it does not exist."""
    found: Any = db.execute(f"SELECT block FROM {table}_data WHERE id = ?", (number,)).get
    return bytes(found or b"")


def encode_varints(numbers: Iterable[int]) -> bytes:
    """Concatenate numbers below 2^56 as FTS5 varints."""
    return b"".join(map(encode_varint, numbers))


def _parse_varints(record: bytes) -> Iterator[int]:
    """Yield the varints of a record; raises IndexBuildRefused if one is malformed."""
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
    """Builds the doclist index of one term: the first rowid on each page that the term spans.

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
        """Add the next page of the segment.

        Args:
            page: number of the page.
            row: first rowid on it that belongs to this term, or 0.
            has_term: whether another term begins on it.
        """
        if not has_term:
            self._pages += 1
        if row:
            self._add_to_level(0, page, row)
        elif not has_term and self._levels:
            self._levels[0].data += b"\0"

    def _add_to_level(self, height: int, page: int, row: int) -> None:
        """Add a pointer (page and its first rowid) to one level of the doclist index; a full page moves up a level."""
        if height == len(self._levels):
            self._levels.append(_Level(self._page))
        level = self._levels[height]
        if len(level.data) >= self._page_bytes:
            level.data[:1] = _BELOW
            self._full.append((height, level.page, bytes(level.data)))
            if height + 1 == len(self._levels):
                # The full page was the root: the new root begins with a pointer to it.
                self._add_to_level(height + 1, level.page, level.first)
                self._levels[height + 1].page = level.page
            level.page, level.data = level.page + 1, bytearray()
            self._add_to_level(height + 1, level.page, row)
        if level.data:
            level.data += encode_varint(row - level.last)
        else:
            is_root = height + 1 == len(self._levels)
            level.data += (_ROOT if is_root else _BELOW) + encode_varint(page) + encode_varint(row)
            level.first = row
        level.last = row

    def pages(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (level, page number, content) of each page of the doclist index.

        Nothing if the term fills too few pages to need one.
        """
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
    """Writes finished pages into an empty index as part of the caller's transaction. Single use.

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
        found: Any = db.execute(f"SELECT v FROM {index.table}_config WHERE k = 'version'").get
        if found != FORMAT:
            raise IndexBuildRefused(f"the index is of format {found}")
        db.execute(f"INSERT INTO {index.table} ({index.table}) VALUES ('delete-all')")
        structure = Structure.read(read_record(db, index.table, STRUCTURE))
        if structure.segments:
            raise IndexBuildRefused("the index is not empty")
        self._cookie = structure.cookie

    def add_counts(self, counts: Iterable[tuple[int, int]]) -> None:
        """Write the number of tokens of each row, given as (rowid, number)."""

        def counted() -> Iterator[tuple[int, bytes]]:
            """Yield rows with their token counts, and add them up."""
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
        """Return the number of the next page, and begin the doclist index of the last term that begins on it."""
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
        """Write the doclist index of the last term, and put the term into the list of terms."""
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
        """Write the listed terms, each with the page on which it begins."""
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
    """Return the row id of a page of the segment; ``kind`` are the bits that mark a page of a doclist index."""
    return (_SEGMENT << SEGMENT_SHIFT) + kind + page


def _verify_rows(db: apsw.Connection, index: IndexNames, rows: int) -> None:
    """Raise IndexBuildRefused unless the index has exactly the ``rows`` texts, and samples of it are right."""
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
    """Verify that the index finds a term in exactly the texts that contain it, among those from rowid ``first`` on.

    Texts are compared here rather than with LIKE, because LIKE stops at a NUL character and the tokenizer skips it.

    Raises:
        IndexBuildRefused: the index finds other rows.
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
    """Choose a term to search for: three letters or digits of a text that are ASCII or have no case, or None.

    ``text`` is lower-case. The search starts in its middle.
    """
    middle = len(text) // 2
    for start in (*range(middle, len(text) - 2), *range(min(middle, len(text) - 2))):
        term = text[start : start + _TERM_CHARACTERS]
        if term.isalnum() and (term.isascii() or term.lower() == term.upper() == term.casefold()):
            return term
    return None


# --- the worker processes: they sort texts while they arrive, then build pages ---------------------------------------

logger = logging.getLogger(__name__)

#: Below this many bytes of text, starting processes costs more time than it saves.
MIN_TEXT_BYTES = 8 << 20
#: Characters sorted by one job, at about 60 bytes of memory each.
RUN_CHARACTERS = 1 << 19
#: Approximate size in bytes of the doclists in one range of pages.
RANGE_BYTES = 8 << 20
#: From this many bytes of text on, both limits are doubled, because each range is searched in each run.
LARGE_BYTES = 32 << 20
#: Temporary files: texts, sorted runs, the list of runs, pages.
_FILES = ("texts-*", "run-*", "runs", "pages-*")


# Entry points of the jobs. NumPy is imported in the workers only, not in the process that queues the jobs.


def sort_texts(job: SortJob) -> list[tuple[SortedRun, list[int]]]:
    """Run :func:`regraft.formats.fts5.segment.sort_texts` in a worker process."""
    runs: list[tuple[SortedRun, list[int]]] = _load_worker_module().sort_texts(job)
    return runs


def build_range_pages(job: RangeJob) -> int:
    """Run :func:`regraft.formats.fts5.segment.build_range_pages` in a worker process."""
    return int(_load_worker_module().build_range_pages(job))


def _load_worker_module() -> Any:
    """Import the module that does the work, which needs NumPy."""
    return import_module("regraft.formats.fts5.segment")


def is_worthwhile(text_bytes: int) -> bool:
    """Whether worker processes would fill an index over this many bytes of text faster, and can be started."""
    return text_bytes >= MIN_TEXT_BYTES and pool.can_use_pool()


class FullTextBuilder:
    """Collects texts in ascending rowid order and fills an index with them.

    Args:
        folder: directory for temporary files; may be modified.
        processes: the worker processes.
        arguments: column and tokenizer arguments of the FTS5 table.
        run_characters: characters sorted by one job.
        range_bytes: approximate bytes of doclists in one range of pages.
        page_bytes: page size of the index.
    """

    def __init__(
        self,
        folder: Path,
        processes: ProcessPool,
        *,
        arguments: str,
        run_characters: int = RUN_CHARACTERS,
        range_bytes: int = RANGE_BYTES,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._folder = folder
        self._pool = processes
        self._arguments = arguments
        self._run_characters = run_characters
        self._range_bytes = range_bytes
        self._page_bytes = page_bytes
        self._texts: TextFile | None = None
        self._sorts = 0
        #: Sort jobs whose results have not been taken yet.
        self._sorting: deque[int] = deque()
        self._has_ended = False
        self._runs: list[SortedRun] = []
        self._samples: list[list[int]] = []
        #: Page jobs and their output files; None until all runs are sorted.
        self._paging: list[tuple[int, Path]] | None = None
        self._problem: str | None = None

    def add(self, rowid: int, text: str) -> None:
        """Add a text with its rowid."""
        if self._problem is not None:
            return
        try:
            if self._texts is None:
                self._texts = TextFile(self._folder / f"texts-{self._sorts}")
            self._texts.add(rowid, text)
            if self._texts.characters >= self._run_characters:
                self._queue_sort()
        except (OSError, UnicodeEncodeError, JobFailed) as error:
            self._give_up(error)

    def end(self) -> None:
        """Queue the sorting of the last texts. No text may be added afterwards."""
        self._has_ended = True
        try:
            if self._texts is not None:
                self._queue_sort()
        except (OSError, JobFailed) as error:
            self._give_up(error)

    def go_on(self) -> None:
        """Queue further jobs without waiting. Call it now and then while the process does other work."""
        if self._problem is not None:
            return
        try:
            self._pool.go_on()
            while self._has_ended and self._paging is None:
                if self._sorting and not self._pool.is_answered(self._sorting[0]):
                    break
                self._take_sort_result()
        except (OSError, JobFailed) as error:
            self._give_up(error)

    def _give_up(self, problem: Exception) -> None:
        """Stop building, and delete the temporary files: FTS5 may need the disk space."""
        self._problem = str(problem)
        if self._texts is not None:
            self._texts.close()
            self._texts = None
        for path in chain.from_iterable(map(self._folder.glob, _FILES)):
            # A file that a worker still has open is deleted with the directory.
            with suppress(OSError):
                durable.remove(path, missing_ok=True)

    def _queue_sort(self) -> None:
        """Queue a job that sorts the collected texts."""
        assert self._texts is not None
        self._texts.close()
        into = self._folder / f"run-{self._sorts}"
        job = SortJob(texts=self._texts.path, into=into, arguments=self._arguments, page_bytes=self._page_bytes)
        self._sorting.append(self._pool.put(sort_texts, job))
        self._sorts += 1
        self._texts = None

    def fill_index(self, db: apsw.Connection, index: IndexNames, each: Callable[[int], None]) -> bool:
        """Fill an index with all added texts, as part of the caller's transaction.

        Args:
            db: the index's file, opened for writing.
            index: the index; its previous content is deleted.
            each: called with a number of rows whenever a proportional part of the index is written.

        Returns:
            Whether the index was filled. If not, FTS5 has to fill it.
        """
        self.end()
        try:
            # The savepoint undoes a partial index if verification fails.
            with db:
                self._fill_index(db, index, each)
        except (IndexBuildRefused, JobFailed, apsw.Error, OSError) as problem:
            self._give_up(problem)
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            return False
        return True

    def _fill_index(self, db: apsw.Connection, index: IndexNames, each: Callable[[int], None]) -> None:
        """Write the sorted pages to the index; ``each`` is called with the number of rows just written."""
        if self._problem is not None:
            raise IndexBuildRefused(self._problem)
        while self._paging is None:
            self._take_sort_result()
        writer = IndexWriter(db, index, self._page_bytes)
        for run in self._runs:
            writer.add_counts(
                zip(_read_run_numbers(run, 0, run.rows), _read_run_numbers(run, run.rows, run.rows), strict=True)
            )
        all_rows, reported = sum(run.rows for run in self._runs), 0
        for number, (job, path) in enumerate(self._paging, 1):
            self._pool.take(job)
            writer.add_pages(read_pages(path))
            durable.remove(path)
            done = all_rows * number // len(self._paging)
            each(done - reported)
            reported = done
        writer.finish()

    def _take_sort_result(self) -> None:
        """Take the result of the next sort job; after the last one, queue the page jobs."""
        if self._sorting:
            for run, samples in self._pool.take(self._sorting.popleft()):
                self._runs.append(run)
                self._samples.append(samples)
        if self._sorting:
            return
        runs, self._paging = self._folder / "runs", []
        write_runs(runs, self._runs)
        for low, high in split_ranges(self._samples, self._range_bytes) if self._runs else ():
            into = self._folder / f"pages-{len(self._paging)}"
            job = RangeJob(runs=runs, low=low, high=high, into=into, page_bytes=self._page_bytes)
            self._paging.append((self._pool.put(build_range_pages, job), into))
        self._samples.clear()


def split_ranges(samples: Iterable[list[int]], most: int) -> list[tuple[int, int]]:
    """Split all trigrams into ranges [low, high) with about ``most`` bytes of doclists, or of one frequent trigram.

    Args:
        samples: for each run, the trigram at every ``SAMPLE_BYTES`` of its doclists.
        most: bytes of doclists per range.
    """
    trigrams = array("q")
    for run_samples in samples:
        trigrams.extend(run_samples)
    edges = {0, TRIGRAMS_END}
    limit, collected = max(most // SAMPLE_BYTES, 1), 0
    for trigram, same in groupby(sorted(trigrams)):
        count = sum(1 for _ in same)
        if count >= limit:
            # The doclists of one trigram may exceed the limit; in a range of their own they need no sorting.
            edges |= {trigram, trigram + 1}
            collected = 0
        elif collected + count > limit:
            edges.add(trigram)
            collected = count
        else:
            collected += count
    return list(pairwise(sorted(edges)))


def _read_run_numbers(run: SortedRun, first: int, count: int) -> array[int]:
    """Read ``count`` 8-byte integers at the beginning of a run's file, skipping ``first`` of them."""
    numbers = array("q")
    with run.path.open("rb") as file:
        file.seek(first * numbers.itemsize)
        numbers.frombytes(file.read(count * numbers.itemsize))
    if byteorder == "big":
        numbers.byteswap()
    return numbers


@contextmanager
def open_full_text_builder(
    text_bytes: int, *, arguments: str, beside: Path | None = None, ready: ProcessPool | None = None
) -> Iterator[FullTextBuilder | None]:
    """Start a builder for about ``text_bytes`` of text; yields None if FTS5 has to fill the index itself.

    Args:
        text_bytes: approximate total size of the texts.
        arguments: column and tokenizer arguments of the FTS5 table.
        beside: parent directory of the temporary files; None for the system's.
        ready: existing worker processes; by default new ones are started and stopped at the end.
    """
    if not is_worthwhile(text_bytes):
        yield None
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch.temporary_folder(beside))
            workers = ready or stack.enter_context(pool.open_pool())
        except OSError as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            yield None
            return
        # Discard jobs that are still queued if the caller stops early.
        stack.callback(workers.forget)
        share = 2 if text_bytes >= LARGE_BYTES else 1
        yield FullTextBuilder(
            folder,
            workers,
            arguments=arguments,
            run_characters=RUN_CHARACTERS * share,
            range_bytes=RANGE_BYTES * share,
        )


__all__ = ["MIN_TEXT_BYTES", "FullTextBuilder", "IndexNames", "is_worthwhile", "open_full_text_builder"]
