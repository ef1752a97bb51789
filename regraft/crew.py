"""Processes that do jobs beside this one: they call functions of modules, which read and write files.

There are as many as leave a core to this process. What they answer does not depend on their number.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from regraft import workers

#: More processes than this gain nothing: what they make is taken over by one.
MOST_PROCESSES = 2
_POLL_SECONDS = 1.0
#: A process has so many jobs: one that it works on, and the next ones.
_AHEAD = 4
#: Of so many bytes are those that may wait in a pipe, which holds 8 KiB at least: with larger ones this process would
#: wait for one that waits itself, to be rid of an answer.
_MOST_WAITING_BYTES = 8192 // _AHEAD


class JobFailed(Exception):
    """A job could not be done, or its process was killed; the text says why."""


class Crew:
    """Deals jobs out to processes, which are started with the first one.

    Args:
        start: starts processes that do :func:`serve`, and returns the pipe to each.
        end: ends them.
    """

    def __init__(self, start: Callable[[], list[Connection]], end: Callable[[], None] = lambda: None) -> None:
        self._start, self._end = start, end
        self._at_work: dict[Connection, deque[int]] = {}
        self._waiting: deque[tuple[int, memoryview]] = deque()
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._forgotten = self._put = 0

    def start(self) -> None:
        """Start the processes, where they are not.

        Raises:
            JobFailed: they could not be started.
        """
        if self._at_work:
            return
        try:
            self._at_work = {pipe: deque() for pipe in self._start()}
        except OSError as error:
            raise JobFailed(str(error)) from error

    @property
    def is_started(self) -> bool:
        """Tell whether the processes have been started."""
        return bool(self._at_work)

    def put(self, function: Callable[..., Any], *args: object) -> int:
        """Have a function of a module called, as soon as a process is free for it; return the number of the job.

        What takes more than 2 KiB to be said is said to a process that has nothing else to do.

        Raises:
            JobFailed: no process could be started, or one was killed.
        """
        self.start()
        self._put += 1
        job = self._put
        self._waiting.append((job, ForkingPickler.dumps((function, args))))
        self.go_on()
        return job

    def go_on(self) -> None:
        """Take the answers that have come, and deal out what waits, without waiting.

        Raises:
            JobFailed: a process was killed.
        """
        self._collect(0)
        self._deal()

    def is_answered(self, job: int) -> bool:
        """Tell whether the answer to a job has come."""
        return job in self._answers

    def has_room(self, left: int = 1) -> bool:
        """Tell whether a process that has been started has so many jobs left at most; with 0 it has nothing to do."""
        return self.is_started and not self._waiting and min(map(len, self._at_work.values())) <= left

    def take(self, job: int) -> Any:
        """Return the answer to a job, once; wait for it.

        Raises:
            JobFailed: it failed, or a process was killed.
        """
        while job not in self._answers:
            # The pause lets signals through where waiting itself does not.
            self._collect(_POLL_SECONDS)
            self._deal()
        is_done, answer = self._answers.pop(job)
        if not is_done:
            raise JobFailed(answer)
        return answer

    def forget(self) -> None:
        """Have nobody do what waits, and throw away all answers that were not taken."""
        self._waiting.clear()
        self._answers.clear()
        self._forgotten = self._put

    def end(self) -> None:
        """End the processes, which then take no memory any more; what they have not answered is lost."""
        self.forget()
        self._at_work = {}
        self._end()

    def settle(self) -> None:
        """Have nobody do what waits, and wait for what is being done.

        Raises:
            JobFailed: a process was killed.
        """
        self.forget()
        while any(self._at_work.values()):
            self._collect(_POLL_SECONDS)

    def _collect(self, seconds: float) -> None:
        busy = [pipe for pipe, jobs in self._at_work.items() if jobs]
        for pipe in workers.ready(busy, seconds) if busy else ():
            try:
                answer = pipe.recv()
            except (EOFError, OSError) as error:
                raise JobFailed("a process was killed") from error
            job = self._at_work[pipe].popleft()
            if job > self._forgotten:
                self._answers[job] = answer

    def _deal(self) -> None:
        while self._waiting:
            pipe = min(self._at_work, key=lambda pipe: len(self._at_work[pipe]))
            _, call = self._waiting[0]
            if len(self._at_work[pipe]) >= (_AHEAD if len(call) <= _MOST_WAITING_BYTES else 1):
                return
            self._send(pipe, *self._waiting.popleft())

    def _send(self, pipe: Connection, job: int, call: memoryview) -> None:
        try:
            pipe.send_bytes(call)
        except OSError as error:
            raise JobFailed("a process was killed") from error
        self._at_work[pipe].append(job)


def cores() -> int:
    """Return on how many cores this process may run, with those that it starts."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, workers.given_cores() or there)


def can_start() -> bool:
    """Tell whether there are cores for a crew, and whether this thread can have one.

    Only the main thread of a process that may start others can.
    """
    return cores() > 1 and workers.can_start() and threading.current_thread() is threading.main_thread()


def processes() -> int:
    """Return how many processes a crew has."""
    return min(cores() - 1, MOST_PROCESSES)


@contextmanager
def gathered() -> Iterator[Crew]:
    """Give a crew for the cores that this process leaves, and end it afterwards, where it was started."""
    with ExitStack() as stack:

        def start() -> list[Connection]:
            started = stack.enter_context(workers.started(processes(), _begin))
            return [one.pipe for one in started]

        yield Crew(start, stack.close)


# --- in the process --------------------------------------------------------------------------------------------------

#: Of the C library's mallopt, where it has one: what larger pieces, or more free memory, go back to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20


def _begin(parent: Connection) -> None:
    _keep_memory()
    serve(parent)


def serve(parent: Connection) -> None:
    """Do one job after the other, and answer with what was made, or with what failed."""
    while True:
        function, args = parent.recv()
        try:
            parent.send((True, function(*args)))
        except Exception as error:
            parent.send((False, str(error) or type(error).__name__))


def give_memory_back() -> None:
    """Give what this process has freed back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _keep_memory() -> None:
    """Keep memory for the next arrays instead of giving it back to the system."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
