"""Texts on their way into an index: they are sorted in processes while they come, and made into pages in the end."""

from __future__ import annotations

import logging
import os
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby, pairwise
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from sys import byteorder

import apsw

from regraft import workers
from regraft.formats.fts5.jobs import SAMPLE_STEP, TRIGRAMS_END, RangeJob, Run, SortJob, read_pages
from regraft.formats.fts5.records import PAGE_BYTES, SpliceRefused
from regraft.formats.fts5.serving import begin
from regraft.formats.fts5.splice import Index, Splicing
from regraft.formats.fts5.tasks import Tasks
from regraft.formats.fts5.texts import TextFile
from regraft.ledger import durable

logger = logging.getLogger(__name__)

#: Below so many bytes of text, starting processes costs more than they save.
LEAST_BYTES = 8 << 20
#: So many characters are sorted at a time, and about so many trigrams made into pages: some 60 bytes of memory each.
RUN_CHARACTERS = RANGE_TRIGRAMS = 1 << 19
#: From so many bytes of text on twice as many, since each range is looked for in each run.
LARGE_BYTES = 32 << 20
#: More processes than this gain nothing: what they make is copied by one.
MOST_PROCESSES = 4


def pays(text_bytes: int) -> bool:
    """Tell whether an index over so many bytes of text is filled faster in several processes, and by this one.

    Only the main thread of a process that is no worker itself can have workers.
    """
    return (
        text_bytes >= LEAST_BYTES
        and cores() > 1
        and parent_process() is None
        and threading.current_thread() is threading.main_thread()
    )


def cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Sorting:
    """Texts on their way into an index, in rising order of their rows.

    Args:
        folder: where files are written meanwhile; it may be changed.
        pipes: those of the processes. What they make does not depend on their number.
        arguments: column and tokenizer of the index, as FTS5 takes them.
        run_characters: so many characters are sorted at a time.
        range_trigrams: about so many trigrams are made into pages at a time.
        page_bytes: how long the index's pages are.
    """

    def __init__(
        self,
        folder: Path,
        pipes: list[Connection],
        *,
        arguments: str,
        run_characters: int = RUN_CHARACTERS,
        range_trigrams: int = RANGE_TRIGRAMS,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self._folder = folder
        self._tasks = Tasks(pipes)
        self._arguments = arguments
        self._run_characters = run_characters
        self._range_trigrams = range_trigrams
        self._page_bytes = page_bytes
        self._texts: TextFile | None = None
        self._sorts = 0
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
        except (OSError, UnicodeEncodeError, SpliceRefused) as error:
            # FTS5 will fill the index alone.
            self._problem = str(error)

    def end(self) -> None:
        """Hand out the last texts; none comes any more."""
        try:
            if self._texts is not None:
                self._hand_out()
        except (OSError, SpliceRefused) as error:
            self._problem = str(error)

    def _hand_out(self) -> None:
        """Let a process sort the texts that came."""
        assert self._texts is not None
        self._texts.close()
        into = self._folder / f"run-{self._sorts}"
        self._tasks.put(SortJob(texts=self._texts.path, into=into, arguments=self._arguments))
        self._sorts += 1
        self._texts = None

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
        except (SpliceRefused, apsw.Error, OSError) as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            return False
        return True

    def _splice_into(self, db: apsw.Connection, index: Index, each: Callable[[int], None]) -> None:
        if self._problem is not None:
            raise SpliceRefused(self._problem)
        sorted_runs: list[tuple[Run, list[int]]] = [one for _ in range(self._sorts) for one in self._tasks.take()]
        runs = tuple(run for run, _ in sorted_runs)
        into = self._make_pages(runs, (samples for _, samples in sorted_runs)) if runs else []
        splicing = Splicing(db, index, self._page_bytes)
        for run in runs:
            rows = _numbers(run, run.characters, run.rows)
            splicing.add_counts(zip(rows, _numbers(run, run.counts_at, run.rows), strict=True))
        all_rows, told = sum(run.rows for run in runs), 0
        for number, path in enumerate(into, 1):
            self._tasks.take()
            splicing.add_pages(read_pages(path))
            durable.remove(path)
            done = all_rows * number // len(into)
            each(done - told)
            told = done
        splicing.finish()

    def _make_pages(self, runs: tuple[Run, ...], samples: Iterable[list[int]]) -> list[Path]:
        """Let processes make the pages over all runs, and return the files that they are going to be in."""
        alphabet = self._folder / "alphabet"
        _put(alphabet, sorted({character for run in runs for character in _numbers(run, 0, run.characters)}))
        files = []
        for number, (low, high) in enumerate(ranges_of(samples, self._range_trigrams)):
            files.append(self._folder / f"pages-{number}")
            self._tasks.put(
                RangeJob(runs=runs, alphabet=alphabet, low=low, high=high, into=files[-1], page_bytes=self._page_bytes)
            )
        return files


def ranges_of(samples: Iterable[list[int]], most: int) -> list[tuple[int, int]]:
    """Return ranges of trigrams, each of about so many or of a single one; together they are all trigrams.

    Args:
        samples: trigrams of each run at distances of ``SAMPLE_STEP``.
        most: how many trigrams a range is to have.
    """
    every = array("q")
    for some in samples:
        every.extend(some)
    edges = {0, TRIGRAMS_END}
    share, held = max(most // SAMPLE_STEP, 1), 0
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


def _put(path: Path, numbers: list[int]) -> None:
    made = array("q", numbers)
    if byteorder == "big":
        made.byteswap()
    durable.put_bytes(path, made.tobytes())


@contextmanager
def sorting(text_bytes: int, *, arguments: str, beside: Path | None = None) -> Iterator[Sorting | None]:
    """Start what fills an index over about so many bytes of text; None where FTS5 alone is faster, or has to do.

    Args:
        text_bytes: about how many bytes of text there will be.
        arguments: see :class:`Sorting`.
        beside: a folder for what is written meanwhile; None for the system's.
    """
    if not pays(text_bytes):
        yield None
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(durable.temporary_folder(beside))
            started = stack.enter_context(workers.started(min(cores(), MOST_PROCESSES), begin))
        except OSError as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            yield None
            return
        share = 2 if text_bytes >= LARGE_BYTES else 1
        yield Sorting(
            folder,
            [one.pipe for one in started],
            arguments=arguments,
            run_characters=RUN_CHARACTERS * share,
            range_trigrams=RANGE_TRIGRAMS * share,
        )
