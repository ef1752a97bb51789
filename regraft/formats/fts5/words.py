"""Texts on their way into an index: they are sorted in processes while they come, and made into pages in the end."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, groupby, pairwise
from pathlib import Path
from sys import byteorder

import apsw

from regraft import crew
from regraft.crew import Crew, JobFailed
from regraft.formats.fts5 import serving
from regraft.formats.fts5.jobs import SAMPLE_BYTES, TRIGRAMS_END, RangeJob, Run, SortJob, read_pages, write_runs
from regraft.formats.fts5.records import PAGE_BYTES, SpliceRefused
from regraft.formats.fts5.splice import Index, Splicing
from regraft.formats.fts5.texts import TextFile
from regraft.ledger import durable

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
    return text_bytes >= LEAST_BYTES and crew.can_start()


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
        crew: Crew,
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
        self._sorting.append(self._crew.put(serving.sort, job))
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
            self._paging.append((self._crew.put(serving.make_pages, job), into))
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
    text_bytes: int, *, arguments: str, beside: Path | None = None, ready: Crew | None = None
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
            at_hand = ready or stack.enter_context(crew.gathered())
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
