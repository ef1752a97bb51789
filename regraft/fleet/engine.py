"""Run the tasks of a fleet in a pool of processes: of this machine, or of a cluster of Ray.

The largest tasks start first, as many as the cores and the memory of the pool allow. A process that is killed takes
down only its own task, which is tried again.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Protocol

import msgspec

from regraft.errors import STOPPED, FaultOfRegraft
from regraft.processes.pool import JobFailed, ProcessKilled, ProcessPool

# --- memory (``docs/fleet.md``, "Large libraries") --------------------------------------------------------------------

#: Memory of a process without its library, and of each helper process, in bytes.
_PROCESS_BYTES, _HELPER_BYTES = 160 << 20, 64 << 20
#: SQLite and FTS5 hold one byte for this many bytes of the source.
_SOURCE_BYTES_PER_BYTE = 50
#: The share of the memory that is left to other programs.
_RESERVED_SHARE = 0.1


def planned_memory(source_bytes: int, cores: int) -> int:
    """Estimate the most memory that a library needs, in bytes."""
    return _PROCESS_BYTES + _HELPER_BYTES * (cores - 1) + source_bytes // _SOURCE_BYTES_PER_BYTE


def available_memory() -> int:
    """Return the memory for more processes, in bytes; 1 TiB if the system does not tell."""
    found = [size for size in (_machine_memory(), _container_memory()) if size is not None]
    return int(min(found, default=1 << 40) * (1 - _RESERVED_SHARE))


def _machine_memory() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _container_memory() -> int | None:
    """Return the memory that the control group of a container still allows, or None without a limit."""
    group = Path("/sys/fs/cgroup")
    for folder, most, used, idle in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, KeyError):
            of_files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # The page cache is released under memory pressure.
            taken = int((folder / used).read_text()) - int(of_files[idle])
            return int((folder / most).read_text()) - taken
    return None


# --- tasks -----------------------------------------------------------------------------------------------------------

#: Seconds to wait for a result before signals are handled.
_POLL_SECONDS = 1.0
#: Tasks that do not fit and are passed over, to find one that does.
_MAX_PASSED = 64


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work on one library, by its number in the manifest.

    ``job`` is a plain value, given to the work function in another process; ``name`` is for people; ``bytes`` is the
    size of the source, ``memory`` the most that the task needs, in bytes.
    """

    number: int
    job: Any
    name: str = ""
    bytes: int = 0
    cores: float = 1
    memory: int = 0


class RowCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many rows were read and migrated, and how many were skipped, by reason; None: the command does not count."""

    read: int | None = None
    carried: int | None = None
    skipped: dict[str, int] | None = None


class BaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of one base. Without a ``status``, the base ended as its library did.

    ``totals`` is JSON of the command's own.
    """

    id: str
    name: str
    status: str | None = None
    code: str | None = None
    message: str | None = None
    totals: str | None = None
    bytes: int | None = None
    rows: RowCounts = RowCounts()
    findings: dict[str, int] = {}


class LibrarySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the results of a fleet keep of a command's report: counts, without texts.

    ``run`` is the id of the run, ``totals`` JSON of the command's own. Commands may add fields in a subclass.
    """

    run: str
    rows: RowCounts = RowCounts()
    findings: dict[str, int] = {}
    totals: str | None = None
    bases: tuple[BaseResult, ...] = ()


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a command: its code (the name of its class), and its message."""

    code: str
    message: str


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended: its exit status, with the summary of its report or with an error; and its seconds.

    ``status`` is missing if the process was killed in every attempt; ``attempts`` counts them. ``wait_seconds`` must
    pass before another attempt. ``is_after_kill``: a process was killed in an earlier attempt; if its machine was lost,
    it may still be running. ``host`` and ``pid`` say where the last attempt ran, ``log`` where its output is there.
    """

    status: int | None
    seconds: float
    summary: LibrarySummary | None = None
    error: TaskError | None = None
    attempts: int = 1
    wait_seconds: float = 0.0
    is_after_kill: bool = False
    host: str | None = None
    pid: int | None = None
    log: str | None = None


#: Runs a task's job; must be a function of a module, since other processes import it.
Work = Callable[[Any], TaskResult]
#: Whether a task that ended like this may succeed in another attempt.
IsRetried = Callable[[TaskResult], bool]


class PendingTask(msgspec.Struct, frozen=True, order=True):
    """A task that waits to be started, not before ``ready_at``; sorted by priority. ``place`` is its index."""

    ready_at: float
    place: int
    attempt: int
    is_after_kill: bool = False


def kill_reason(exit_status: int | None) -> str:
    """Describe how a process ended that was killed, in English as all results; negative statuses are signals."""
    if exit_status == -9:
        return "the process was killed (SIGKILL), as systems do when memory is full"
    with suppress(ValueError):
        return f"the process was killed ({signal.Signals(-(exit_status or 0)).name})"
    return f"the process ended (exit status {exit_status})"


class Pool(Protocol):
    """Processes that run tasks, several at a time."""

    @property
    def count(self) -> int:
        """The cores that libraries share."""

    @property
    def slots(self) -> int:
        """The most cores that started tasks may ask for in total."""

    @property
    def memory(self) -> int:
        """The most memory that started tasks may ask for in total, in bytes."""

    @property
    def running(self) -> Mapping[Any, tuple[PendingTask, float]]:
        """The started tasks with the time of their start, by a handle of the pool."""

    def start_task(self, task: Task, one: PendingTask) -> None:
        """Start a task. OSError: no process can be started."""

    def answers(self, seconds: float) -> Iterable[tuple[PendingTask, TaskResult]]:
        """Yield the results of tasks that have ended; wait up to ``seconds`` for the first one."""

    def close(self) -> None:
        """Kill all running tasks; the next run repeats them."""


class PoolObserver(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks for each attempt that starts, each attempt that ends, and before each wait for results."""

    on_start: Callable[[Task, PendingTask], None] = lambda _, __: None
    on_end: Callable[[Task], None] = lambda _: None
    on_poll: Callable[[], None] = lambda: None


def run_tasks(
    tasks: Iterable[Task],
    pool: Pool,
    *,
    attempts: int,
    is_retried: IsRetried,
    pause_seconds: float = 1.0,
    observers: Sequence[PoolObserver] = (),
) -> Iterator[tuple[Task, TaskResult]]:
    """Run tasks and yield each with its result, in the order in which they end. The largest are started first.

    Args:
        tasks: in any order.
        pool: the processes.
        attempts: the most attempts of a task.
        is_retried: whether a task that was not killed may succeed in another attempt.
        pause_seconds: the wait before the second attempt; doubled for each further one.
        observers: notified of starts, ends and retries of tasks.

    Raises:
        OSError: no process can be started.
    """
    queue = _Queue(tasks, pool, observers)
    while queue.waiting or pool.running:
        seconds = queue.start_tasks()
        if not pool.running:
            time.sleep(seconds)
            continue
        for one, ended in pool.answers(seconds):
            task = queue.end_task(one)
            result = msgspec.structs.replace(ended, attempts=one.attempt, is_after_kill=one.is_after_kill)
            if one.attempt < attempts and (ended.status is None or is_retried(result)):
                pause = max(pause_seconds * 2 ** (one.attempt - 1), ended.wait_seconds)
                queue.retry(one, pause, is_after_kill=one.is_after_kill or ended.status is None)
            else:
                # Start the next task before the caller stores this result.
                queue.start_tasks()
                yield task, result
        for observer in observers:
            observer.on_poll()


class _Queue:
    """The tasks that wait, and the cores and the memory of a pool that running ones use."""

    def __init__(self, tasks: Iterable[Task], pool: Pool, observers: Sequence[PoolObserver]) -> None:
        self._pool, self._observers = pool, observers
        self._cores, self._memory = 0.0, 0
        self._ordered = sorted(tasks, key=lambda task: (-task.bytes, task.number))
        # A sorted list is a heap.
        self.waiting = [PendingTask(0.0, place, 1) for place in range(len(self._ordered))]

    def start_tasks(self) -> float:
        """Start as many waiting tasks as fit and are due; returns the seconds to wait for a result."""
        now, waiting = time.monotonic(), self.waiting
        passed: list[PendingTask] = []
        while waiting and waiting[0].ready_at <= now and len(passed) < _MAX_PASSED and self._cores < self._pool.slots:
            one = heappop(waiting)
            task = self._ordered[one.place]
            if not self._fits(task):
                # A smaller task may fit.
                passed.append(one)
                continue
            self._cores += task.cores
            self._memory += task.memory
            self._pool.start_task(task, one)
            for observer in self._observers:
                observer.on_start(task, one)
        for one in passed:
            heappush(waiting, one)
        until_due = waiting[0].ready_at - now if waiting else 0.0
        return min(until_due, _POLL_SECONDS) if until_due > 0 else _POLL_SECONDS

    def _fits(self, task: Task) -> bool:
        """Whether one more task fits; a task always fits if no other one is running."""
        if not self._cores:
            return True
        return self._cores + task.cores <= self._pool.slots and self._memory + task.memory <= self._pool.memory

    def end_task(self, one: PendingTask) -> Task:
        """Free what a task used that has ended."""
        task = self._ordered[one.place]
        self._cores -= task.cores
        self._memory -= task.memory
        for observer in self._observers:
            observer.on_end(task)
        return task

    def retry(self, one: PendingTask, pause: float, *, is_after_kill: bool) -> None:
        """Have a task wait for another attempt, at least ``pause`` seconds."""
        again = msgspec.structs.replace(
            one, ready_at=time.monotonic() + pause, attempt=one.attempt + 1, is_after_kill=is_after_kill
        )
        heappush(self.waiting, again)


class LocalPool:
    """Runs tasks in child processes of this machine, each started when a task needs one."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.count = self.slots = count
        self.memory = available_memory()
        self._processes = ProcessPool(count, on_demand=True, may_start=True)
        self.running: dict[int, tuple[PendingTask, float]] = {}

    def start_task(self, task: Task, one: PendingTask) -> None:
        """Start a task in a process of this machine; OSError if none can be started."""
        try:
            job = self._processes.put(self._work, task.job)
        except JobFailed as error:
            raise error.__cause__ or error from None
        self.running[job] = one, time.monotonic()

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """Yield the results of tasks that have ended; wait up to ``seconds`` for the first one."""
        for job, result, error in self._processes.wait(seconds):
            one, begun = self.running.pop(job)
            if error is None:
                yield one, result
                continue
            seconds, host = time.monotonic() - begun, socket.gethostname()
            if isinstance(error, ProcessKilled):
                killed = TaskError(code=ProcessKilled.__name__, message=kill_reason(error.exit_status))
                yield one, TaskResult(status=None, seconds=seconds, error=killed, host=host, pid=error.pid)
            else:
                # No command raises an exception.
                fault = TaskError(code=FaultOfRegraft.__name__, message=str(error) or type(error).__name__)
                yield one, TaskResult(status=STOPPED, seconds=seconds, error=fault, host=host)

    def close(self) -> None:
        """Kill all running tasks; the next run repeats them."""
        self._processes.end()
