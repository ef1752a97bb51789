"""Spreads tasks over processes of this machine; one that is killed takes only its task along, which is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from heapq import heappop, heappush
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import msgspec

from regraft import crew, workers

#: How long to wait for an answer before signals are looked at, in seconds.
_POLL_SECONDS = 1.0


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of one library, by the library's number in the manifest; ``bytes`` is the source's size."""

    number: int
    arguments: tuple[str, ...]
    bytes: int = 0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command line ended: its exit status, its document, and the seconds it took.

    ``status`` is None where the process was killed each time; ``attempts`` is how often it was tried.
    """

    status: int | None
    document: dict[str, Any]
    seconds: float
    attempts: int = 1


#: Runs a command line: a function of a module, for other processes.
Work = Callable[[tuple[str, ...]], Ended]
#: Tells whether how a task ended may be otherwise the next time.
Retried = Callable[[Ended], bool]


class Waiting(msgspec.Struct, frozen=True, order=True):
    """A task that is to be done, not before a time; what is to be done first sorts first."""

    ready_at: float
    place: int
    attempt: int


def fault(reason: str, seconds: float) -> Ended:
    """Return how a command line ended that could not be run to its end, or said nothing that can be read."""
    error = {"code": "FaultOfRegraft", "message": reason}
    return Ended(status=3, document={"error": error}, seconds=seconds)


class Pool(Protocol):
    """Where tasks are done, several at a time."""

    #: How many are done at a time.
    count: int
    #: What is being done, by what stands for it.
    at_work: dict[Any, tuple[Waiting, float]]

    def give(self, task: Task, one: Waiting) -> None:
        """Begin a task.

        Raises:
            OSError: no process can be started.
        """

    def answers(self, seconds: float) -> Iterable[tuple[Waiting, Ended]]:
        """Yield how some of the tasks ended that are being done; wait so long for the first one."""

    def close(self) -> None:
        """End all that is being done, at once: the next run goes on with it."""


def done(
    tasks: Iterable[Task], pool: Pool, *, attempts: int, is_retried: Retried, pause_seconds: float = 1.0
) -> Iterator[tuple[Task, Ended]]:
    """Yield each task with how it ended, in the order in which they end; the largest are begun first.

    Args:
        tasks: the tasks.
        pool: where they are done.
        attempts: how often a task is tried that may end otherwise.
        is_retried: tells of how it ended whether it may.
        pause_seconds: how long to wait before the second attempt; before each further one twice as long.

    Raises:
        OSError: no process can be started.
    """
    ordered = sorted(tasks, key=lambda task: (-task.bytes, task.number))
    # Ascending, which is a heap already.
    waiting = [Waiting(0.0, place, 1) for place in range(len(ordered))]
    while waiting or pool.at_work:
        now = _give(waiting, ordered, pool)
        patience = _patience(waiting, now, is_full=len(pool.at_work) == pool.count)
        if not pool.at_work:
            time.sleep(patience)
            continue
        for one, ended in pool.answers(patience):
            if one.attempt < attempts and (ended.status is None or is_retried(ended)):
                pause = pause_seconds * 2 ** (one.attempt - 1)
                heappush(waiting, Waiting(time.monotonic() + pause, one.place, one.attempt + 1))
            else:
                # Its process goes on while somebody writes down how this one ended.
                _give(waiting, ordered, pool)
                yield ordered[one.place], msgspec.structs.replace(ended, attempts=one.attempt)


def _give(waiting: list[Waiting], ordered: list[Task], pool: Pool) -> float:
    """Begin tasks that wait and may be begun, as many as the pool has room for, and return the time."""
    now = time.monotonic()
    while waiting and waiting[0].ready_at <= now and len(pool.at_work) < pool.count:
        one = heappop(waiting)
        pool.give(ordered[one.place], one)
    return now


def _patience(waiting: list[Waiting], now: float, *, is_full: bool) -> float:
    """Return how long to wait for an answer, in seconds: not longer than until the next task can be given."""
    if is_full or not waiting:
        return _POLL_SECONDS
    return min(max(waiting[0].ready_at - now, 0.0), _POLL_SECONDS)


class LocalPool:
    """Processes of this machine that do one task after the other; one is started where a task has none."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.count = count
        self._idle: list[Connection] = []
        self._ends: dict[Connection, ExitStack] = {}
        self.at_work: dict[Connection, tuple[Waiting, float]] = {}

    def give(self, task: Task, one: Waiting) -> None:
        """See :meth:`Pool.give`."""
        pipe = self._idle.pop() if self._idle else self._started()
        self.at_work[pipe] = one, time.monotonic()
        try:
            pipe.send((self._work, (task.arguments,)))
        except OSError:
            # It was killed while it had nothing to do: its answer, that it has none, comes next.
            return

    def answers(self, seconds: float) -> Iterator[tuple[Waiting, Ended]]:
        """See :meth:`Pool.answers`."""
        pipes: list[Any] = list(self.at_work)
        ready: list[Any] = wait(pipes, seconds)
        for pipe in ready:
            one, begun = self.at_work.pop(pipe)
            try:
                is_done, answer = pipe.recv()
            except (EOFError, OSError):
                self._ends.pop(pipe).close()
                ended = Ended(status=None, document={}, seconds=time.monotonic() - begun)
            else:
                self._idle.append(pipe)
                ended = answer if is_done else fault(answer, time.monotonic() - begun)
            yield one, ended

    def close(self) -> None:
        """See :meth:`Pool.close`."""
        for end in self._ends.values():
            end.close()

    def _started(self) -> Connection:
        end = ExitStack()
        [worker] = end.enter_context(workers.started(1, crew.serve))
        self._ends[worker.pipe] = end
        return worker.pipe
