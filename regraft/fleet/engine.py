"""Spreads tasks over processes of this machine; one that is killed takes only its task along, which is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from typing import Any, Protocol

import msgspec

from regraft import crew, workers
from regraft.fleet import memory

#: How long to wait for an answer before signals are looked at, in seconds.
_POLL_SECONDS = 1.0
#: So many tasks are passed for which there is no room, to find one for which there is.
_PASSED = 64


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with one library, by the library's number in the manifest.

    ``job`` is a plain value that is handed to the work; ``bytes`` is the source's size, and ``memory`` what the task is
    going to take at most, in bytes.
    """

    number: int
    job: Any
    bytes: int = 0
    cores: int = 1
    memory: int = 0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a command line ended: its exit status, its document, and the seconds it took.

    ``status`` is None where the process was killed each time; ``attempts`` is how often it was tried. Before it is
    tried again, ``wait_seconds`` have to pass at least. ``is_after_kill`` tells whether a process was killed in an
    attempt before, as far as anybody knows: where a machine was lost, it may still be at work.
    """

    status: int | None
    document: dict[str, Any]
    seconds: float
    attempts: int = 1
    wait_seconds: float = 0.0
    is_after_kill: bool = False


#: Does a task's job: a function of a module, for other processes.
Work = Callable[[Any], Ended]
#: Tells whether how a task ended may be otherwise the next time.
Retried = Callable[[Ended], bool]


class Waiting(msgspec.Struct, frozen=True, order=True):
    """A task that is to be done, not before a time; what is to be done first sorts first."""

    ready_at: float
    place: int
    attempt: int
    is_after_kill: bool = False


def fault(reason: str, seconds: float) -> Ended:
    """Return how a command line ended that could not be run to its end, or said nothing that can be read."""
    error = {"code": "FaultOfRegraft", "message": reason}
    return Ended(status=3, document={"error": error}, seconds=seconds)


class Pool(Protocol):
    """Where tasks are done, several at a time."""

    #: How many cores there are, each for one task at a time, and how many bytes of memory for all.
    count: int
    memory: int
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
    room = _Room(pool)
    while waiting or pool.at_work:
        now = room.fill(waiting, ordered)
        patience = _patience(waiting, now)
        if not pool.at_work:
            time.sleep(patience)
            continue
        for one, ended in pool.answers(patience):
            room.give_back(ordered[one.place])
            told = msgspec.structs.replace(ended, attempts=one.attempt, is_after_kill=one.is_after_kill)
            if one.attempt < attempts and (ended.status is None or is_retried(told)):
                heappush(waiting, _again(one, ended, pause_seconds))
            else:
                # Its process goes on while somebody writes down how this one ended.
                room.fill(waiting, ordered)
                yield ordered[one.place], told


def _again(one: Waiting, ended: Ended, pause_seconds: float) -> Waiting:
    """Return when a task is tried again that ended so."""
    pause = max(pause_seconds * 2 ** (one.attempt - 1), ended.wait_seconds)
    is_after_kill = one.is_after_kill or ended.status is None
    return msgspec.structs.replace(
        one, ready_at=time.monotonic() + pause, attempt=one.attempt + 1, is_after_kill=is_after_kill
    )


class _Room:
    """The cores and the memory of a pool, as far as tasks that are being done have them."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._cores = self._memory = 0

    def fill(self, waiting: list[Waiting], ordered: list[Task]) -> float:
        """Begin tasks that wait and may be begun, as many as there is room for, and return the time."""
        now = time.monotonic()
        passed: list[Waiting] = []
        while waiting and waiting[0].ready_at <= now and len(passed) < _PASSED and self._is_anything_free():
            one = heappop(waiting)
            task = ordered[one.place]
            if not self._is_there_for(task):
                # A smaller one may find the room that this one does not.
                passed.append(one)
                continue
            self._cores += task.cores
            self._memory += task.memory
            self._pool.give(task, one)
        for one in passed:
            heappush(waiting, one)
        return now

    def _is_anything_free(self) -> bool:
        return self._cores < self._pool.count

    def _is_there_for(self, task: Task) -> bool:
        """Tell whether one more task may be begun; one that is alone has all there is."""
        if not self._cores:
            return True
        return self._cores + task.cores <= self._pool.count and self._memory + task.memory <= self._pool.memory

    def give_back(self, task: Task) -> None:
        """Note that a task has ended."""
        self._cores -= task.cores
        self._memory -= task.memory


def _patience(waiting: list[Waiting], now: float) -> float:
    """Return how long to wait for an answer, in seconds: not longer than until the next task may be given."""
    if not waiting or waiting[0].ready_at <= now:
        return _POLL_SECONDS
    return min(waiting[0].ready_at - now, _POLL_SECONDS)


class LocalPool:
    """Processes of this machine that do one task after the other; one is started where a task has none."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.count, self.memory = count, memory.available()
        self._idle: list[Connection] = []
        self._ends: dict[Connection, ExitStack] = {}
        self.at_work: dict[Connection, tuple[Waiting, float]] = {}

    def give(self, task: Task, one: Waiting) -> None:
        """See :meth:`Pool.give`."""
        pipe = self._idle.pop() if self._idle else self._started()
        self.at_work[pipe] = one, time.monotonic()
        try:
            pipe.send((self._work, (task.job,)))
        except OSError:
            # It was killed while it had nothing to do: its answer, that it has none, comes next.
            return

    def answers(self, seconds: float) -> Iterator[tuple[Waiting, Ended]]:
        """See :meth:`Pool.answers`."""
        for pipe in workers.ready(list(self.at_work), seconds):
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
        [worker] = end.enter_context(workers.started(1, crew.serve, may_start=True))
        self._ends[worker.pipe] = end
        return worker.pipe
