"""Fills an FTS5 full-text index in several processes (``docs/formats/fts5.md``).

SQLite fills an FTS5 index on one core. Here worker processes sort the trigrams of batches of texts, then build the
index pages of disjoint trigram ranges. The pages are written in order as the only segment of the index. Whenever
anything differs from what ``docs/formats/fts5.md`` describes, FTS5 fills the index itself.
"""

from __future__ import annotations

import logging
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

from regraft.disk import durable
from regraft.formats.fts5.index_writer import (
    IndexNames,
    IndexWriter,
)
from regraft.formats.fts5.jobs import (
    PAGE_BYTES,
    SAMPLE_BYTES,
    TRIGRAMS_END,
    IndexBuildRefused,
    RangeJob,
    SortedRun,
    SortJob,
    TextFile,
    read_pages,
    write_runs,
)
from regraft.processes import pool
from regraft.processes.pool import JobFailed, ProcessPool

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
    """Run :func:`regraft.formats.fts5.segment.sort_texts`."""
    runs: list[tuple[SortedRun, list[int]]] = _load_worker_module().sort_texts(job)
    return runs


def build_range_pages(job: RangeJob) -> int:
    """Run :func:`regraft.formats.fts5.segment.build_range_pages`."""
    return int(_load_worker_module().build_range_pages(job))


def _load_worker_module() -> Any:
    return import_module("regraft.formats.fts5.segment")


def is_worthwhile(text_bytes: int) -> bool:
    """Whether worker processes would fill an index over this many bytes of text faster, and can be started."""
    return text_bytes >= MIN_TEXT_BYTES and pool.can_use_pool()


class FullTextBuilder:
    """Collects texts in ascending rowid order and fills an index with them.

    Args:
        folder: directory for temporary files; may be modified.
        pool: the worker processes.
        arguments: column and tokenizer arguments of the FTS5 table.
        run_characters: characters sorted by one job.
        range_bytes: approximate bytes of doclists in one range of pages.
        page_bytes: page size of the index.
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
        self._pool = crew
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
        """Add a text."""
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
        """Queue the last texts. No text may be added afterwards."""
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
        """Queue the sorting of the collected texts."""
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
    """Split all trigrams into ranges with about ``most`` bytes of doclists, or of a single frequent trigram.

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
    """Read ``count`` 8-byte integers from a run, starting at number ``first``."""
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
        arguments: see :class:`Sorting`.
        beside: parent directory of the temporary files; None for the system's.
        ready: existing worker processes; by default new ones are started and stopped at the end.
    """
    if not is_worthwhile(text_bytes):
        yield None
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(durable.temporary_folder(beside))
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
