"""Run functions in child processes: one pool that starts, feeds, replaces and ends them.

A child process ends with its parent, however the parent ends: Linux kills it, and on all systems a thread of it watches
the parent. It has neither the parent's output nor any of its open files or locks, and may write where the parent may.
It imports nothing from the working directory (:mod:`regraft.processes.interpreters`), nor the program that started it.
It can be killed at any moment: what it has written is discarded unless the parent takes it over.

Child processes are started from the main thread: on Linux they end with the thread that started them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker, spawn, util
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol

from regraft.disk import writable
from regraft.processes import interpreters, interrupts

#: More processes than this gain nothing: the parent takes over all that they produce.
MAX_PROCESSES = 2
_POLL_SECONDS = 1.0
#: Number of jobs that a process may have: a running one, and the next ones in its pipe.
_JOBS_AHEAD = 4
#: Maximum size of a call that may wait in a pipe, which holds at least 8 KiB. With larger ones, the parent could block
#: on a child that blocks on sending its result.
_MAX_WAITING_BYTES = 8192 // _JOBS_AHEAD
#: Number of pipes that Windows waits for at once; ``multiprocessing`` splits longer lists itself since Python 3.13.
_MAX_PIPES = 60 if os.name == "nt" and sys.version_info < (3, 13) else None
#: Seconds to wait for each part of a longer list in turn.
_TURN_SECONDS = 0.02


class JobFailed(Exception):
    """A job raised an exception, or no process could run it; the message says why."""


class ProcessKilled(JobFailed):
    """A process ended while it had jobs; ``exit_status`` and ``pid`` are its exit status and its number, if known."""

    def __init__(self, exit_status: int | None, pid: int | None = None) -> None:
        super().__init__("a process was killed")
        self.exit_status, self.pid = exit_status, pid


class JobOutcome(NamedTuple):
    """The end of a job: its result, or the exception that it raised, or ProcessKilled."""

    job: int
    result: Any = None
    error: Exception | None = None


# --- which processes may be started ----------------------------------------------------------------------------------

#: Number of cores that this process and its children may use; None: all.
_given_cores: int | None = None


def set_core_limit(cores: int) -> None:
    """Limit this process and its children to a number of cores; with one core, this process starts no other."""
    global _given_cores  # noqa: PLW0603 - a property of the process
    _given_cores = cores


def usable_cores() -> int:
    """Return the number of cores that this process and its children may use."""
    existing = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(existing, _given_cores or existing)


def can_start_processes() -> bool:
    """Whether this process may start others; a child process may only if it was given cores for them."""
    if _given_cores is not None:
        return _given_cores > 1
    return multiprocessing.parent_process() is None


def can_use_pool() -> bool:
    """Whether this thread may open a pool, and there are cores for it."""
    is_main = threading.current_thread() is threading.main_thread()
    return usable_cores() > 1 and can_start_processes() and is_main


def pool_size() -> int:
    """Return the number of processes for a pool: one fewer than the usable cores, at most :data:`MAX_PROCESSES`."""
    return min(usable_cores() - 1, MAX_PROCESSES)


# --- processes -------------------------------------------------------------------------------------------------------


class Worker(Protocol):
    """A process that runs the jobs sent through ``pipe``."""

    pipe: Connection

    def end(self) -> int | None:
        """End the process at once, if it is still running, and return its exit status; None if unknown."""


class WorkerProcess:
    """A child process, and the parent's end of the pipe to it.

    It imports ``modules`` at once, because its jobs will need them. With ``may_start`` it may start processes of its
    own, once it has cores for them (:func:`set_core_limit`).
    """

    def __init__(self, modules: Sequence[str] = (), *, may_start: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_run_worker, args=(other, modules), daemon=not may_start)
        self._process.start()
        self.pid = self._process.pid
        # Only the child has this end now, so its death closes the pipe.
        other.close()

    def end(self) -> int | None:
        """End the process at once, if it is still running, and return its exit status; None if unknown."""
        self.pipe.close()
        self._process.kill()
        self._process.join()
        return self._process.exitcode


#: Processes that were started before it was known what for.
_prestarted: list[WorkerProcess] = []


@contextmanager
def prestart_workers(count: int, modules: Sequence[str]) -> Iterator[None]:
    """Start ``count`` processes for pools that are opened within the context; they import ``modules`` at once.

    Processes that no pool has taken end with the context.

    Raises:
        OSError: they cannot be started.
    """
    try:
        with _process_start():
            _prestarted.extend(WorkerProcess(modules) for _ in range(count))
        yield
    finally:
        while _prestarted:
            _prestarted.pop().end()


class ProcessPool:
    """Distributes jobs to child processes.

    All processes are started with the first job, and one that is killed fails the pool. With ``on_demand``, a process
    is started only when all others are busy; if one is killed, only its jobs fail, and it is replaced.

    Args:
        size: number of processes.
        on_demand: see above. A process then gets one job at a time.
        may_start: the processes may start processes of their own.
        jobs_ahead: number of jobs that a process may have, one of them running.
        keep_memory: the processes keep freed memory for the next arrays instead of returning it to the system.
        on_progress: called in this process with each value that a job passes to :func:`report_progress`.
        start: starts a process (default: :class:`WorkerProcess`).
    """

    def __init__(
        self,
        size: int,
        *,
        on_demand: bool = False,
        may_start: bool = False,
        jobs_ahead: int = 1,
        keep_memory: bool = False,
        on_progress: Callable[[Any], object] = lambda _: None,
        start: Callable[[], Worker] | None = None,
    ) -> None:
        self._size, self._on_demand, self._jobs_ahead = size, on_demand, jobs_ahead
        self._may_start, self._keep_memory = may_start, keep_memory
        self._on_progress = on_progress
        self._start_one = start or self._start_process
        #: the jobs of each process, the running one first
        self._workers: dict[Worker, deque[int]] = {}
        self._queue: deque[tuple[int, memoryview]] = deque()
        #: outcomes in the order in which they arrived, until they are taken
        self._outcomes: dict[int, JobOutcome] = {}
        #: outcomes of jobs up to this number are ignored
        self._discarded = self._last_job = 0
        #: a process was killed, which fails all further calls
        self._killed: ProcessKilled | None = None

    def __enter__(self) -> ProcessPool:
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes."""
        self.end()

    def start(self) -> None:
        """Start all processes, unless they are running.

        Raises:
            JobFailed: they cannot be started; the cause is an OSError.
        """
        if not self._workers:
            self._add_workers(self._size)

    def end(self) -> None:
        """End all processes, which frees their memory; unfinished jobs are lost."""
        self.forget()
        self._killed = None
        while self._workers:
            self._workers.popitem()[0].end()

    @property
    def is_started(self) -> bool:
        """Whether processes are running."""
        return bool(self._workers)

    def put(self, function: Callable[..., Any], *args: object) -> int:
        """Queue a job, the call of a module's function with ``args``, and return the number of the job.

        A call that takes more than 2 KiB is sent only to an idle process.

        Raises:
            JobFailed: no process can be started, or one was killed.
        """
        if not self._on_demand:
            self.start()
        self._last_job += 1
        self._queue.append((self._last_job, ForkingPickler.dumps((function, args))))
        self.go_on()
        return self._last_job

    def go_on(self) -> None:
        """Receive results and send queued jobs, without waiting.

        Raises:
            JobFailed: no process can be started, or one was killed.
        """
        self._receive(0)
        self._send()

    def is_answered(self, job: int) -> bool:
        """Whether a job, given by its number, has ended."""
        return job in self._outcomes

    def has_room(self, left: int = 1) -> bool:
        """Whether no job is queued and a running process has at most ``left`` jobs; with 0 it is idle."""
        return self.is_started and not self._queue and min(map(len, self._workers.values())) <= left

    def take(self, job: int) -> Any:
        """Wait for a job, given by its number, and return its result; may be called once for each job.

        Raises:
            JobFailed: it raised an exception, or a process was killed.
        """
        while job not in self._outcomes:
            # The timeout lets signals through on systems where waiting itself does not.
            self._receive(_POLL_SECONDS)
            self._send()
        outcome = self._outcomes.pop(job)
        if isinstance(outcome.error, JobFailed):
            raise outcome.error
        if outcome.error is not None:
            raise JobFailed(str(outcome.error) or type(outcome.error).__name__) from outcome.error
        return outcome.result

    def wait(self, seconds: float = _POLL_SECONDS) -> list[JobOutcome]:
        """Return the outcome of each job that has ended, once; wait up to ``seconds`` for the first one.

        Raises:
            JobFailed: a process was killed; with ``on_demand`` only if no other can be started.
        """
        self._receive(0 if self._outcomes else seconds)
        self._send()
        outcomes = list(self._outcomes.values())
        self._outcomes.clear()
        return outcomes

    def forget(self) -> None:
        """Discard the queued jobs, and the outcomes of the jobs that have ended or are running."""
        self._queue.clear()
        self._outcomes.clear()
        self._discarded = self._last_job

    def drain(self) -> None:
        """Discard queued jobs, and wait for the running ones.

        Raises:
            JobFailed: a process was killed.
        """
        self.forget()
        while any(self._workers.values()):
            self._receive(_POLL_SECONDS)

    def _add_workers(self, count: int) -> None:
        """Start ``count`` more processes.

        Raises:
            JobFailed: the system refuses. All processes are ended then, unless they are started on demand.
        """
        try:
            with _process_start():
                for _ in range(count):
                    self._workers[self._start_one()] = deque()
        except OSError as error:
            if not self._on_demand:
                self.end()
            raise JobFailed(str(error)) from error

    def _start_process(self) -> Worker:
        """Take a prestarted process or start one, send it the settings of this process, and return it."""
        can_take = bool(_prestarted) and not self._may_start
        worker = _prestarted.pop() if can_take else WorkerProcess(may_start=self._may_start)
        with contextlib.suppress(BrokenPipeError):
            worker.pipe.send((writable.open_roots(), self._keep_memory))
        return worker

    def _receive(self, seconds: float) -> None:
        """Receive answers and progress from the workers, and drop those that have died.

        Waits up to ``seconds`` for the first one.

        Raises:
            ProcessKilled: a process was killed, so the pool has failed; never with ``on_demand``.
        """
        if self._killed is not None:
            raise ProcessKilled(self._killed.exit_status)
        busy = {worker.pipe: worker for worker, jobs in self._workers.items() if jobs}
        for pipe in wait_for_pipes(list(busy), seconds) if busy else ():
            worker = busy[pipe]
            try:
                kind, value = pipe.recv()
            except (EOFError, OSError) as error:
                self._lose(worker, error)
                continue
            if kind == _PROGRESS:
                self._on_progress(value)
                continue
            job = self._workers[worker].popleft()
            if job > self._discarded:
                self._outcomes[job] = JobOutcome(job, value) if kind == _DONE else JobOutcome(job, error=value)

    def _send(self) -> None:
        """Send waiting jobs to the workers with the fewest jobs."""
        while self._queue:
            idle = [worker for worker, jobs in self._workers.items() if not jobs]
            if self._on_demand and not idle and len(self._workers) < self._size:
                self._add_workers(1)
                continue
            worker = min(self._workers, key=lambda one: len(self._workers[one]))
            job, call = self._queue[0]
            limit = self._jobs_ahead if len(call) <= _MAX_WAITING_BYTES else 1
            if len(self._workers[worker]) >= limit:
                return
            self._queue.popleft()
            self._workers[worker].append(job)
            try:
                worker.pipe.send_bytes(call)
            except OSError as error:
                self._lose(worker, error)

    def _lose(self, worker: Worker, error: Exception) -> None:
        """Remove a process that was killed, which caused ``error``; fail its jobs.

        Raises:
            ProcessKilled: processes are not started on demand, so the whole pool fails.
        """
        killed = ProcessKilled(worker.end(), getattr(worker, "pid", None))
        jobs = self._workers.pop(worker)
        if not self._on_demand:
            self._killed = killed
            raise killed from error
        for job in jobs:
            self._outcomes[job] = JobOutcome(job, error=killed)


def open_pool() -> ProcessPool:
    """Return a pool for the cores that this process leaves; close it with ``with``."""
    return ProcessPool(pool_size(), jobs_ahead=_JOBS_AHEAD, keep_memory=True)


def wait_for_pipes(pipes: Sequence[Connection], seconds: float, *, most: int | None = _MAX_PIPES) -> list[Connection]:
    """Return the pipes that have data or are closed; wait up to ``seconds`` for the first one.

    Args:
        pipes: any number of pipes.
        seconds: how long to wait.
        most: for how many pipes the system can wait at once; None: any number.
    """
    if most is None or len(pipes) <= most:
        return _wait(pipes, seconds)
    parts = [pipes[start : start + most] for start in range(0, len(pipes), most)]
    end = time.monotonic() + seconds
    while True:
        found = [pipe for part in parts for pipe in _wait(part, 0)]
        left = end - time.monotonic()
        if found or left <= 0:
            return found
        for part in parts:
            if _wait(part, min(left, _TURN_SECONDS)):
                break


def _wait(pipes: Sequence[Connection], seconds: float) -> list[Connection]:
    """Wait up to ``seconds`` until a pipe has data or is closed; return all such pipes."""
    # The parameter type of wait() differs between systems.
    found: list[Any] = wait(list(pipes), seconds)
    return found


# --- starting safely -------------------------------------------------------------------------------------------------


@contextmanager
def _process_start() -> Iterator[None]:
    """Context in which processes can be started safely; it defers stops: an interrupted child prints a traceback."""
    with interrupts.block_stops():
        try:
            os.getcwd()  # noqa: PTH109 - asked as a started process asks
        except FileNotFoundError:
            # No process can start in a working directory that was removed.
            os.chdir(os.sep)
        with _safe_interpreters():
            if os.name != "nt":
                # Python's own helper process; starting it unblocks some signals, hence the second call below.
                resource_tracker.ensure_running()
            with interrupts.block_stops():
                yield


#: Held while multiprocessing is changed to start interpreters safely.
_starting = threading.RLock()


@contextmanager
def _safe_interpreters() -> Iterator[None]:
    """Make multiprocessing start interpreters that import neither from the working directory nor the running program.

    Two internal functions of multiprocessing are replaced within the context, with an effect in this thread only.
    """
    thread = threading.get_ident()
    import_path = interpreters.safe_import_path()
    # Type stubs lack Python's internals.
    internals: Any = util
    with _starting:
        given_flags, given_data = internals._args_from_interpreter_flags, spawn.get_preparation_data

        def flags() -> list[str]:
            """Return the options of started interpreters, with those that keep the import path safe."""
            found: list[str] = given_flags()
            if threading.get_ident() != thread:
                return found
            return found + [option for option in interpreters.interpreter_options() if option not in found]

        def preparation_data(name: str) -> dict[str, Any]:
            """Return the setup that multiprocessing sends to the process ``name``: a safe import path, no program."""
            found: dict[str, Any] = given_data(name)
            if threading.get_ident() != thread:
                return found
            kept = {key: value for key, value in found.items() if not key.startswith("init_main_from_")}
            return {**kept, "sys_path": import_path}

        given_path = os.environ.get(interpreters.SEARCH_PATH)
        safe_path = interpreters.interpreter_environment().get(interpreters.SEARCH_PATH)
        internals._args_from_interpreter_flags, spawn.get_preparation_data = flags, preparation_data
        try:
            if safe_path is not None:
                os.environ[interpreters.SEARCH_PATH] = safe_path
            yield
        finally:
            internals._args_from_interpreter_flags, spawn.get_preparation_data = given_flags, given_data
            if safe_path is not None and given_path is not None:
                os.environ[interpreters.SEARCH_PATH] = given_path


# --- in the child process --------------------------------------------------------------------------------------------

#: Kinds of messages to the parent.
_DONE, _FAILED, _PROGRESS = "done", "failed", "progress"
#: Signal that Linux sends a process when the thread that started it ends (prctl).
_PR_SET_PDEATHSIG = 1
#: Options of the C library's mallopt: thresholds above which freed memory is returned to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20

_current = threading.local()


def report_progress(value: object) -> None:
    """Send a value to the ``on_progress`` of the pool that runs the current job."""
    _current.pipe.send((_PROGRESS, value))


def serve_jobs(pipe: Connection) -> None:
    """Receive jobs from a pipe, run one after the other and send each result or exception back.

    EOFError: the parent has closed the pipe.
    """
    _current.pipe = pipe
    while True:
        function, args = pipe.recv()
        try:
            pipe.send((_DONE, function(*args)))
        except Exception as error:
            pipe.send((_FAILED, _picklable(error)))


def _picklable(error: Exception) -> Exception:
    """Return ``error`` with its traceback as a note, or a JobFailed if the parent could not unpickle it."""
    error.add_note(traceback.format_exc())
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return JobFailed(str(error) or type(error).__name__)
    return error


def _run_worker(pipe: Connection, modules: Sequence[str]) -> None:
    """Set up this child process, import ``modules``, and run the jobs from ``pipe`` until the parent closes it."""
    _end_with_parent()
    # The parent decides about stops and reports them.
    for number in interrupts.STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    # For processes that a library starts here.
    os.environ.update(interpreters.interpreter_environment())
    # NumPy's threads for linear algebra would only wait.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Modules stay loaded: exclude them from garbage collection.
    gc.disable()
    for name in modules:
        # A failing import is reported by the job that needs the module.
        with contextlib.suppress(Exception):
            import_module(name)
    gc.freeze()
    gc.enable()
    with contextlib.suppress(EOFError, BrokenPipeError):
        roots, keep_memory = pipe.recv()
        writable.adopt_roots(roots)
        if keep_memory:
            with contextlib.suppress(OSError, AttributeError, TypeError):
                library = ctypes.CDLL(None)
                for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
                    library.mallopt(option, _KEPT_BYTES)
        serve_jobs(pipe)


def _end_with_parent() -> None:
    """Make this process exit when its parent does, even if the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        """Wait for the end of the parent, and exit."""
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":
        # The thread cannot run while native code holds the interpreter; the system can kill the process then.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:
            os._exit(1)


def release_free_memory() -> None:
    """Return freed memory of this process to the system, if the C library supports it."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
