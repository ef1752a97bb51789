"""Spreads tasks over processes of this machine; one that is killed takes only its task along, which is tried again."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from heapq import heappop, heappush
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import msgspec

from regraft import errors, language
from regraft.errors import WrongUsage
from regraft.language import tr
from regraft.processes import interpreters
from regraft.processes import pool as processes_pool

# How much memory a library is going to take, and how much there is (``docs/fleet.md``, "Large libraries").


#: What a process takes whatever it works on, and each one that helps it, in bytes.
_OF_A_PROCESS, _OF_A_HELPER = 160 << 20, 64 << 20
#: Of so many bytes of a source, one more is taken: what SQLite and FTS5 hold of it.
_SHARE = 50
#: So much of the memory is left to everything else.
_LEFT = 0.1


def planned_memory(source_bytes: int, cores: int) -> int:
    """Return how many bytes of memory a library takes at most, by its source's size and the cores that it has."""
    return _OF_A_PROCESS + _OF_A_HELPER * (cores - 1) + source_bytes // _SHARE


def available_memory() -> int:
    """Return how many bytes of memory there are for more processes; 1 TiB where the system does not say so."""
    found = [size for size in (_of_the_machine(), _of_the_group()) if size is not None]
    return int(min(found, default=1 << 40) * (1 - _LEFT))


def _of_the_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_the_group() -> int | None:
    """Return what the control group that a container is still allows, where it has a limit."""
    group = Path("/sys/fs/cgroup")
    for folder, most, used, idle in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, KeyError):
            of_files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # What was read of files is given up where memory is wanted.
            taken = int((folder / used).read_text()) - int(of_files[idle])
            return int((folder / most).read_text()) - taken
    return None


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


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
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
Work = Callable[[Any], TaskResult]
#: Tells whether how a task ended may be otherwise the next time.
IsRetried = Callable[[TaskResult], bool]


class PendingTask(msgspec.Struct, frozen=True, order=True):
    """A task that is to be done, not before a time; what is to be done first sorts first."""

    ready_at: float
    place: int
    attempt: int
    is_after_kill: bool = False


def fault_result(reason: str, seconds: float) -> TaskResult:
    """Return how a command line ended that could not be run to its end, or said nothing that can be read."""
    error = {"code": "FaultOfRegraft", "message": reason}
    return TaskResult(status=3, document={"error": error}, seconds=seconds)


class Pool(Protocol):
    """Where tasks are done, several at a time."""

    #: How many cores there are, each for one task at a time, and how many bytes of memory for all.
    count: int
    memory: int
    #: What is being done, by what stands for it.
    at_work: dict[Any, tuple[PendingTask, float]]

    def give(self, task: Task, one: PendingTask) -> None:
        """Begin a task.

        Raises:
            OSError: no process can be started.
        """

    def answers(self, seconds: float) -> Iterable[tuple[PendingTask, TaskResult]]:
        """Yield how some of the tasks ended that are being done; wait so long for the first one."""

    def close(self) -> None:
        """End all that is being done, at once: the next run goes on with it."""


def run_tasks(
    tasks: Iterable[Task], pool: Pool, *, attempts: int, is_retried: IsRetried, pause_seconds: float = 1.0
) -> Iterator[tuple[Task, TaskResult]]:
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
    waiting = [PendingTask(0.0, place, 1) for place in range(len(ordered))]
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


def _again(one: PendingTask, ended: TaskResult, pause_seconds: float) -> PendingTask:
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

    def fill(self, waiting: list[PendingTask], ordered: list[Task]) -> float:
        """Begin tasks that wait and may be begun, as many as there is room for, and return the time."""
        now = time.monotonic()
        passed: list[PendingTask] = []
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


def _patience(waiting: list[PendingTask], now: float) -> float:
    """Return how long to wait for an answer, in seconds: not longer than until the next task may be given."""
    if not waiting or waiting[0].ready_at <= now:
        return _POLL_SECONDS
    return min(waiting[0].ready_at - now, _POLL_SECONDS)


class LocalPool:
    """Processes of this machine that do one task after the other; one is started where a task has none."""

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.count, self.memory = count, available_memory()
        self._idle: list[Connection] = []
        self._ends: dict[Connection, ExitStack] = {}
        self.at_work: dict[Connection, tuple[PendingTask, float]] = {}

    def give(self, task: Task, one: PendingTask) -> None:
        """See :meth:`Pool.give`."""
        pipe = self._idle.pop() if self._idle else self._started()
        self.at_work[pipe] = one, time.monotonic()
        try:
            pipe.send((self._work, (task.job,)))
        except OSError:
            # It was killed while it had nothing to do: its answer, that it has none, comes next.
            return

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """See :meth:`Pool.answers`."""
        for pipe in processes_pool.wait_for_pipes(list(self.at_work), seconds):
            one, begun = self.at_work.pop(pipe)
            try:
                is_done, answer = pipe.recv()
            except (EOFError, OSError):
                self._ends.pop(pipe).close()
                ended = TaskResult(status=None, document={}, seconds=time.monotonic() - begun)
            else:
                self._idle.append(pipe)
                ended = answer if is_done else fault_result(answer, time.monotonic() - begun)
            yield one, ended

    def close(self) -> None:
        """See :meth:`Pool.close`."""
        for end in self._ends.values():
            end.close()

    def _started(self) -> Connection:
        end = ExitStack()
        [worker] = end.enter_context(processes_pool.start_workers(1, processes_pool.serve_jobs, may_start=True))
        self._ends[worker.pipe] = end
        return worker.pipe


# A pool that tells what it is given, and when it was looked at.


class PoolObserver(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told: ``given`` of each attempt, ``looked`` before each wait, when all is dealt with that ended."""

    given: Callable[[PendingTask], None] = lambda _: None
    looked: Callable[[], None] = lambda: None


class ObservedPool:
    """A pool whose work watchers follow; what else it has is the pool's own."""

    count: int
    at_work: dict[Any, tuple[PendingTask, float]]

    def __init__(self, pool: Pool, watchers: list[PoolObserver]) -> None:
        self._pool, self._watchers = pool, watchers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def give(self, task: Task, one: PendingTask) -> None:
        """See :meth:`regraft.fleet.engine.Pool.give`."""
        self._pool.give(task, one)
        for watcher in self._watchers:
            watcher.given(one)

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """See :meth:`regraft.fleet.engine.Pool.answers`."""
        yield from self._pool.answers(seconds)
        for watcher in self._watchers:
            watcher.looked()

    def close(self) -> None:
        """See :meth:`regraft.fleet.engine.Pool.close`."""
        self._pool.close()


# Tasks of a fleet on a cluster of Ray: the same as on one machine, in the processes of the cluster.


@contextmanager
def _outside_the_working_directory() -> Iterator[None]:
    """Work in the folder of this Python meanwhile, which holds no modules.

    Ray puts the directory in which a cluster is joined first on the import path of all workers.
    """
    try:
        before = Path.cwd()
    except OSError:
        # It is gone, and nothing can be imported from it.
        before = Path(sys.prefix)
    os.chdir(sys.prefix)
    try:
        yield
    finally:
        os.chdir(before)


class RayPool:
    """Tasks of Ray, which ask for the cores and the memory that they need. What Ray would try again by itself is tried
    again here, and counted.

    Args:
        work: runs a command line.
        address: of a cluster, as ``ray.init`` takes it; None: one of this machine is started, and ended by ``close``.
        count: how many tasks are done at a time; None: as many as the cluster has cores.

    Raises:
        WrongUsage: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, work: Work, address: str | None, count: int | None) -> None:
        self._ray = errors.import_optional("ray", tr("fleets on a cluster"), "ray")
        self.at_work: dict[Any, tuple[PendingTask, float]] = {}
        # Results are for programs.
        environment = {"env_vars": {language.VARIABLE: language.ENGLISH, **interpreters.interpreter_environment()}}
        settings: dict[str, Any] = {} if address else {"num_cpus": count, "include_dashboard": False}
        try:
            with _outside_the_working_directory():
                self._ray.init(
                    address=address,
                    runtime_env=environment,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **settings,
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise WrongUsage(
                problem=tr("there is no cluster at {address} ({error})", address=address or "local", error=error),
                hint=tr("start one with ray start, or leave --address out"),
            ) from error
        resources = self._ray.cluster_resources()
        self.count = count or max(1, int(resources.get("CPU", 1)))
        self.memory = int(resources.get("memory", 1 << 40))
        # What no machine has would be waited for without an end.
        machines = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._machines = {(int(one.get("CPU", 0)), int(one.get("memory", 0))) for one in machines}
        self._remote = self._ray.remote(max_retries=0)(work)

    def give(self, task: Task, one: PendingTask) -> None:
        """See :meth:`regraft.fleet.engine.Pool.give`."""
        fitting = ((min(task.cores, cores), min(task.memory, memory)) for cores, memory in self._machines)
        cores, memory = max(fitting, default=(1, 0))
        reference = self._remote.options(num_cpus=cores, memory=memory).remote(task.job)
        self.at_work[reference] = one, time.monotonic()

    def answers(self, seconds: float) -> Iterator[tuple[PendingTask, TaskResult]]:
        """See :meth:`regraft.fleet.engine.Pool.answers`."""
        references = list(self.at_work)
        ready, _ = self._ray.wait(references, timeout=seconds)
        if ready:
            # All that have ended by now: they are written down together.
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ready:
            one, begun = self.at_work.pop(reference)
            try:
                ended: TaskResult = self._ray.get(reference)
            except self._ray.exceptions.RayError:
                # Its process, or its machine, is gone.
                ended = TaskResult(status=None, document={}, seconds=time.monotonic() - begun)
            yield one, ended

    def close(self) -> None:
        """See :meth:`regraft.fleet.engine.Pool.close`."""
        for reference in self.at_work:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()
