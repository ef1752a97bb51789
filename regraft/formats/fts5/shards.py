"""The shards of one index: texts are dealt out while they come, and the shards spliced once all are there."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path

import apsw

from regraft import workers
from regraft.formats.fts5 import splice
from regraft.formats.fts5.records import SpliceRefused
from regraft.formats.fts5.shard import ShardJob, TextFile, serve
from regraft.formats.fts5.splice import Index
from regraft.ledger import durable

logger = logging.getLogger(__name__)

#: Below so many bytes of text, starting processes costs more than they save.
LEAST_BYTES = 8 << 20
#: An index consists of at most so many shards, whatever its size; a search looks into each.
MOST_SHARDS = 8
#: A shard has at least so many bytes of text.
SHARD_BYTES = 2 << 20
#: More processes than this gain nothing: what they make is copied by one.
MOST_PROCESSES = 4
_POLL_SECONDS = 1.0


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


class Shards:
    """Texts on their way into an index, in rising order of their rows.

    Args:
        folder: where files are written meanwhile; it may be changed.
        pipes: those of the processes.
        text_bytes: about how many bytes of text there will be. How texts are dealt out depends on nothing else.
        arguments: column and tokenizer of the index, as FTS5 takes them.
        settings: gives FTS5's own settings, once some texts have come.
        least_bytes: a shard has at least so many bytes of text.
    """

    def __init__(
        self,
        folder: Path,
        pipes: list[Connection],
        text_bytes: int,
        *,
        arguments: str,
        settings: Callable[[], Mapping[str, int]],
        least_bytes: int = SHARD_BYTES,
    ) -> None:
        self._folder = folder
        self._pipes = pipes
        self._most_bytes = max(least_bytes, -(-text_bytes // MOST_SHARDS))
        self._arguments = arguments
        self._settings = settings
        self._texts: TextFile | None = None
        self._jobs: list[tuple[ShardJob, int]] = []
        self._problem: str | None = None

    def add(self, rowid: int, text: str) -> None:
        """Take a text."""
        if self._problem is not None:
            return
        try:
            if self._texts is None:
                self._texts = TextFile(self._folder / f"texts-{len(self._jobs)}")
            self._texts.add(rowid, text)
            if self._texts.bytes >= self._most_bytes and len(self._jobs) < MOST_SHARDS - 1:
                self._hand_out()
        except (OSError, UnicodeEncodeError) as error:
            # FTS5 will fill the index alone.
            self._problem = str(error)

    def end(self) -> None:
        """Hand out the last texts; none comes any more."""
        try:
            if self._texts is not None:
                self._hand_out()
        except OSError as error:
            self._problem = str(error)

    def splice_into(self, db: apsw.Connection, index: Index, each: Callable[[int], None]) -> bool:
        """Fill an index with all texts that came, as part of the caller's transaction.

        Args:
            db: the index's file, opened for writing.
            index: the index; what it holds goes.
            each: called with the number of rows of each shard when it is in.

        Returns:
            Whether it was filled; else FTS5 has to fill it.
        """
        try:
            # A savepoint: what was copied goes again where anything differs.
            with db:
                self._splice_into(db, index, each)
        except (SpliceRefused, apsw.Error, OSError) as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            return False
        return True

    def _splice_into(self, db: apsw.Connection, index: Index, each: Callable[[int], None]) -> None:
        self.end()
        if self._problem is not None:
            raise SpliceRefused(self._problem)
        done = splice.begin(db, index)
        for place, (job, rows) in enumerate(self._jobs):
            made = self._made(self._pipes[place % len(self._pipes)])
            if made != rows:
                raise SpliceRefused(f"a shard failed: {made}")
            splice.add(db, index, done, job.into, rows)
            durable.remove(job.into)
            each(rows)
        splice.finish(db, index, done)

    def _hand_out(self) -> None:
        """Let a process make a shard of the texts that came; each process has its own queue."""
        assert self._texts is not None
        self._texts.close()
        job = ShardJob(
            texts=self._texts.path,
            into=self._folder / f"shard-{len(self._jobs)}.sqlite",
            arguments=self._arguments,
            settings=self._settings(),
        )
        self._pipes[len(self._jobs) % len(self._pipes)].send(job)
        self._jobs.append((job, self._texts.rows))
        self._texts = None

    def _made(self, pipe: Connection) -> object:
        # The pause lets signals through where waiting itself does not.
        while not wait([pipe], _POLL_SECONDS):
            pass
        try:
            return pipe.recv()
        except EOFError:
            return "its process was killed"


@contextmanager
def sharding(
    text_bytes: int,
    *,
    arguments: str,
    settings: Callable[[], Mapping[str, int]],
    beside: Path | None = None,
) -> Iterator[Shards | None]:
    """Start what fills an index over about so many bytes of text; None where FTS5 alone is faster, or has to do.

    Args:
        text_bytes: see :class:`Shards`, like the next two.
        arguments: see there.
        settings: see there.
        beside: a folder for what is written meanwhile; None for the system's.
    """
    if not pays(text_bytes):
        yield None
        return
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(durable.temporary_folder(beside))
            count = min(cores(), MOST_PROCESSES)
            started = stack.enter_context(workers.started(count, serve))
        except OSError as problem:
            logger.info("the full-text index is filled by FTS5 alone: %s", problem)
            yield None
            return
        yield Shards(folder, [one.pipe for one in started], text_bytes, arguments=arguments, settings=settings)
