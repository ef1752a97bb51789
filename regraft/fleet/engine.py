"""Run the tasks of a fleet in a pool of processes: of this machine, or of a cluster of Ray.

The largest tasks start first, as many as the cores and the memory of the pool allow. A process that is killed takes
down only its own task, which is tried again.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
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
    """Estimate the most memory that the processes of one library need, in bytes.

    ``source_bytes`` is the size of its source, ``cores`` the number of cores that it gets.
    """
    return _PROCESS_BYTES + _HELPER_BYTES * (cores - 1) + source_bytes // _SOURCE_BYTES_PER_BYTE


def available_memory() -> int:
    """Return how many bytes of memory this machine has left for more processes; 1 TiB if the system does not tell."""
    found = [1 << 40]
    with suppress(OSError, ValueError, AttributeError):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError, KeyError):
        fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    # What the control group of a container still allows.
    group = Path("/sys/fs/cgroup")
    for folder, most, used, idle in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, KeyError):
            of_files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # The page cache is released under memory pressure.
            taken = int((folder / used).read_text()) - int(of_files[idle])
            found.append(int((folder / most).read_text()) - taken)
    return int(min(found) * (1 - _RESERVED_SHARE))


# --- tasks -----------------------------------------------------------------------------------------------------------

#: Seconds to wait for a result before signals are handled.
_POLL_SECONDS = 1.0
#: Tasks that do not fit and are passed over, to find one that does.
_MAX_PASSED = 64


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The work on one library."""

    number: int  # of the library in the manifest
    job: Any  # a plain value, given to the work function in another process
    name: str = ""  # for people
    bytes: int = 0  # the size of the source
    cores: float = 1
    memory: int = 0  # the most that the task needs, in bytes


class ReportValues(msgspec.Struct, frozen=True, kw_only=True):
    """What the results of a fleet keep of a command's report, for the library or for one base: counts, without texts.

    Names and values are those of the columns (:class:`~regraft.fleet.results.ResultRow`); None: the report has none.
    Without an ``outcome``, a base ended as its library did.
    """

    base: str | None = None
    name: str | None = None
    outcome: str | None = None
    code: str | None = None
    message: str | None = None
    bytes: int | None = None
    rows_read: int | None = None
    rows_carried: int | None = None
    skipped: dict[str, int] | None = None  # rows, by reason
    findings: dict[str, int] = {}  # by name
    totals: str | None = None  # JSON of the command's own


class LibrarySummary(ReportValues, frozen=True, kw_only=True):
    """The summary of a command's report, whose run has the id ``run``. Commands may add fields in a subclass."""

    run: str | None = None
    bases: tuple[ReportValues, ...] = ()


class TaskError(msgspec.Struct, frozen=True, kw_only=True):
    """The error that ended a command: its code (the name of its class), and its message."""

    code: str
    message: str


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, with the summary of its report or with an error."""

    status: int | None  # its exit status; None: the process was killed in every attempt
    seconds: float = 0.0
    summary: LibrarySummary | None = None
    error: TaskError | None = None
    attempts: int = 1
    wait_seconds: float = 0.0  # before another attempt
    is_after_kill: bool = False  # an earlier attempt was killed; it may still run, if its machine was lost
    host: str | None = None  # of the last attempt, as the next two
    pid: int | None = None
    log: str | None = None  # the path of its output there


#: Runs a task's job; must be a function of a module, since other processes import it.
Work = Callable[[Any], TaskResult]


class Pool(Protocol):
    """Processes that run tasks, several at a time."""

    @property
    def cores(self) -> int:
        """The number of cores that all libraries share."""

    @property
    def slots(self) -> int:
        """The maximum of the cores that the started tasks may ask for in total."""

    @property
    def memory(self) -> int:
        """The maximum of the memory that the started tasks may ask for in total, in bytes."""

    def start_task(self, task: Task) -> None:
        """Start a task. OSError: no process can be started."""

    def answers(self, seconds: float) -> Iterable[tuple[int, TaskResult]]:
        """Yield the numbers and results of tasks that have ended; wait up to ``seconds`` for the first one."""

    def close(self) -> None:
        """Kill all running tasks; the next run repeats them."""


class Attempt(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """An attempt to run a task, not before ``at``, or running since then."""

    at: float = 0.0
    place: int  # of the task in :attr:`Schedule.tasks`
    number: int = 1
    is_after_kill: bool = False


class Schedule:
    """Runs tasks in a pool, the largest first, as many as fit; yields each with its result when it has ended.

    A task has up to ``attempts``: another one if it was killed, or ``is_retried``, after a wait of ``pause_seconds``,
    doubled for each further one. ``on_start`` is called with each task that is started, and the number of the attempt;
    ``on_retry`` with each task that gets another one, and how the last one ended; ``on_poll`` after each wait for
    results. OSError: no process can be started.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        pool: Pool,
        *,
        attempts: int,
        is_retried: Callable[[TaskResult], bool] = lambda _: False,
        pause_seconds: float = 1.0,
        on_start: Callable[[Task, int], None] = lambda _, __: None,
        on_retry: Callable[[Task, TaskResult], None] = lambda _, __: None,
        on_poll: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool, self._attempts, self._is_retried, self._pause = pool, attempts, is_retried, pause_seconds
        self._on_start, self._on_retry, self._on_poll = on_start, on_retry, on_poll
        self.tasks = sorted(tasks, key=lambda task: (-task.bytes, task.number))
        # A sorted list is a heap.
        self.waiting = [Attempt(place=place) for place in range(len(self.tasks))]
        #: By the number of the task.
        self.running: dict[int, Attempt] = {}
        self.ended_at = time.monotonic()

    def __iter__(self) -> Iterator[tuple[Task, TaskResult]]:
        """Run the tasks, and yield each with its result, in the order in which they end."""
        while self.waiting or self.running:
            seconds = self._start_tasks()
            if not self.running:
                time.sleep(seconds)
                continue
            for number, ended in self.pool.answers(seconds):
                attempt, self.ended_at = self.running.pop(number), time.monotonic()
                result = self._finish(attempt, ended)
                if result is not None:
                    # Start the next task before the caller stores this result.
                    self._start_tasks()
                    yield self.tasks[attempt.place], result
            self._on_poll()

    def _finish(self, attempt: Attempt, ended: TaskResult) -> TaskResult | None:
        """Return the final result of a task after an attempt; None: another attempt was put in the queue.

        ``ended`` is the result of the attempt.
        """
        is_after_kill = attempt.is_after_kill or ended.is_after_kill
        result = msgspec.structs.replace(
            ended,
            seconds=ended.seconds or self.ended_at - attempt.at,
            attempts=attempt.number,
            is_after_kill=is_after_kill,
        )
        if attempt.number >= self._attempts or not (ended.status is None or self._is_retried(result)):
            return result
        again = msgspec.structs.replace(
            attempt,
            at=self.ended_at + max(self._pause * 2 ** (attempt.number - 1), ended.wait_seconds),
            number=attempt.number + 1,
            is_after_kill=is_after_kill or ended.status is None,
        )
        heappush(self.waiting, again)
        self._on_retry(self.tasks[attempt.place], result)
        return None

    def _start_tasks(self) -> float:
        """Start as many waiting tasks as fit and are due; return the seconds to wait for results."""
        now, waiting, pool = time.monotonic(), self.waiting, self.pool
        running = [self.tasks[one.place] for one in self.running.values()]
        cores, memory = sum(task.cores for task in running), sum(task.memory for task in running)
        passed: list[Attempt] = []
        while waiting and waiting[0].at <= now and len(passed) < _MAX_PASSED and cores < pool.slots:
            one = heappop(waiting)
            task = self.tasks[one.place]
            # A task always fits if no other one is running; a smaller one may fit where this one does not.
            if cores and (cores + task.cores > pool.slots or memory + task.memory > pool.memory):
                passed.append(one)
                continue
            cores, memory = cores + task.cores, memory + task.memory
            pool.start_task(task)
            self.running[task.number] = msgspec.structs.replace(one, at=now)
            self._on_start(task, one.number)
        for one in passed:
            heappush(waiting, one)
        until_due = waiting[0].at - now if waiting else 0.0
        return min(until_due, _POLL_SECONDS) if until_due > 0 else _POLL_SECONDS


class LocalPool:
    """Runs tasks in child processes of this machine, each started when a task needs one."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.cores = self.slots = count
        self.memory = available_memory()
        self._processes = ProcessPool(count, on_demand=True, may_start=True)
        #: The numbers of the running tasks, by the job of the processes.
        self._numbers: dict[int, int] = {}

    def start_task(self, task: Task) -> None:
        """Start a task in a process of this machine; OSError if none can be started."""
        try:
            self._numbers[self._processes.put(self._work, task.job)] = task.number
        except JobFailed as error:
            raise error.__cause__ or error from None

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Yield the numbers and results of tasks that have ended; wait up to ``seconds`` for the first one."""
        for job, ended, error in self._processes.wait(seconds):
            number, host = self._numbers.pop(job), socket.gethostname()
            if error is None:
                yield number, ended
            elif isinstance(error, ProcessKilled):
                found = TaskError(code=ProcessKilled.__name__, message=kill_reason(error.exit_status))
                yield number, TaskResult(status=None, error=found, host=host, pid=error.pid)
            else:
                # No command raises an exception.
                found = TaskError(code=FaultOfRegraft.__name__, message=str(error) or type(error).__name__)
                yield number, TaskResult(status=STOPPED, error=found, host=host)

    def close(self) -> None:
        """Kill all running tasks; the next run repeats them."""
        self._processes.end()


def kill_reason(exit_status: int | None) -> str:
    """Describe how a killed process ended by its exit status (negative: a signal), in English as all results are."""
    if exit_status == -9:
        return "the process was killed (SIGKILL), as systems do when memory is full"
    if exit_status is not None and exit_status < 0:
        # Windows has a signal 0.
        with suppress(ValueError):
            return f"the process was killed ({signal.Signals(-exit_status).name})"
    return f"the process ended (exit status {exit_status})"
