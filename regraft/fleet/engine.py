"""Spreads tasks over processes of this machine; one that is killed takes only its task along, which is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection, wait
from typing import Any

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


class _Waiting(msgspec.Struct, frozen=True, order=True):
    """A task that is to be done, not before a time; what is to be done first sorts first."""

    ready_at: float
    place: int
    attempt: int


def done(
    tasks: Iterable[Task], work: Work, *, count: int, attempts: int, is_retried: Retried, pause_seconds: float = 1.0
) -> Generator[tuple[Task, Ended], None, None]:
    """Yield each task with how it ended, in the order in which they end; the largest are begun first.

    Args:
        tasks: the tasks.
        work: what does one.
        count: how many processes work at a time.
        attempts: how often a task is tried that may end otherwise.
        is_retried: tells of how it ended whether it may.
        pause_seconds: how long to wait before the second attempt; before each further one twice as long.

    Close it to end the processes: what they have begun is resumed by the next run.

    Raises:
        OSError: no process can be started.
    """
    ordered = sorted(tasks, key=lambda task: (-task.bytes, task.number))
    waiting = sorted(_Waiting(0.0, place, 1) for place in range(len(ordered)))
    with closing(_Pool(work)) as pool:
        while waiting or pool.at_work:
            now = time.monotonic()
            while waiting and waiting[0].ready_at <= now and len(pool.at_work) < count:
                one = waiting.pop(0)
                pool.give(ordered[one.place], one)
            for one, ended in pool.answers(_patience(waiting, now, is_full=len(pool.at_work) == count)):
                if one.attempt < attempts and (ended.status is None or is_retried(ended)):
                    pause = pause_seconds * 2 ** (one.attempt - 1)
                    waiting.append(_Waiting(time.monotonic() + pause, one.place, one.attempt + 1))
                    waiting.sort()
                else:
                    yield ordered[one.place], msgspec.structs.replace(ended, attempts=one.attempt)


def _patience(waiting: list[_Waiting], now: float, *, is_full: bool) -> float:
    """Return how long to wait for an answer, in seconds: not longer than until the next task can be given."""
    if is_full or not waiting:
        return _POLL_SECONDS
    return min(max(waiting[0].ready_at - now, 0.0), _POLL_SECONDS)


class _Pool:
    """Processes that do one task after the other; one is started where a task has none."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._idle: list[Connection] = []
        self._ends: dict[Connection, ExitStack] = {}
        self.at_work: dict[Connection, tuple[_Waiting, float]] = {}

    def give(self, task: Task, one: _Waiting) -> None:
        pipe = self._idle.pop() if self._idle else self._started()
        self.at_work[pipe] = one, time.monotonic()
        try:
            pipe.send((self._work, (task.arguments,)))
        except OSError:
            # It was killed while it had nothing to do: its answer, that it has none, comes next.
            return

    def answers(self, seconds: float) -> Iterator[tuple[_Waiting, Ended]]:
        """Yield how tasks ended; wait so long for the first one."""
        if not self.at_work:
            time.sleep(seconds)
            return
        pipes: list[Any] = list(self.at_work)
        ready: list[Any] = wait(pipes, seconds)
        for pipe in ready:
            one, begun = self.at_work.pop(pipe)
            try:
                _, ended = pipe.recv()
            except (EOFError, OSError):
                self._ends.pop(pipe).close()
                ended = Ended(status=None, document={}, seconds=time.monotonic() - begun)
            else:
                self._idle.append(pipe)
            yield one, ended

    def close(self) -> None:
        """End all processes at once."""
        for end in self._ends.values():
            end.close()

    def _started(self) -> Connection:
        end = ExitStack()
        [worker] = end.enter_context(workers.started(1, crew.serve))
        self._ends[worker.pipe] = end
        return worker.pipe
