"""Processes of this one's own, for work that is done beside it and for code that must not touch it.

A worker ends with this process, however that ends: Linux kills it then, and everywhere a thread of it watches. It has
neither this one's output nor any of its open files, may change what this one may when it is told what to do, shares no
lock or semaphore with it, and can be killed at any moment: all that it writes is thrown away unless this process takes
it over. It imports nothing from the working directory (:mod:`regraft.processes.interpreters`), nor the program that started it.
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
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from multiprocessing import resource_tracker, spawn, util
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from regraft.disk import writable
from regraft.processes import interpreters, interrupts

#: Of Linux's prctl: which signal a process gets when the thread that started it ends.
_PR_SET_PDEATHSIG = 1
#: How many pipes Windows waits for at once; ``multiprocessing`` divides longer lists itself since Python 3.13.
_MOST_PIPES = 60 if os.name == "nt" and sys.version_info < (3, 13) else None
#: How long each part of a longer list is waited for in turn, in seconds.
_TURN_SECONDS = 0.02


class Worker:
    """One process, and this process's end of the pipe to it.

    It loads ``modules`` at once: what it will be told to do may need them. It may start processes of its own where
    ``may_start`` says so, and once it has cores for them (:func:`be_given`).
    """

    def __init__(self, modules: Sequence[str] = (), *, may_start: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=_begin, args=(other, modules), daemon=not may_start)
        self._process.start()
        # Where the worker is the only one who has it, its end is the pipe's end.
        other.close()

    def end(self) -> int | None:
        """End it at once, where it has not ended yet, and return its exit status."""
        self.pipe.close()
        self._process.kill()
        self._process.join()
        return self._process.exitcode


class _State:
    """What is known of this process."""

    #: How many cores it may use together with those that it starts; None: nobody has said so.
    cores: int | None = None


def set_core_limit(cores: int) -> None:
    """Know that others work beside this process, which has so many cores from now on; with one it starts no process."""
    _State.cores = cores


def core_limit() -> int | None:
    """Return how many cores this process was given, None where it has all that there are."""
    return _State.cores


def can_start_processes() -> bool:
    """Tell whether this process may start others: a worker may where it was given cores for them."""
    if _State.cores is not None:
        return _State.cores > 1
    return multiprocessing.parent_process() is None


#: Workers that nobody has told yet what to do.
_early: list[Worker] = []


@contextmanager
def prestart_workers(count: int, modules: Sequence[str]) -> Iterator[None]:
    """Start so many processes before it is known what they do, and end those that nobody has taken (:func:`started`).

    To be called in the main thread.

    Raises:
        OSError: they cannot be started.
    """
    try:
        with _beginning():
            _early.extend(Worker(modules) for _ in range(count))
        yield
    finally:
        while _early:
            _early.pop().end()


@contextmanager
def start_workers(
    count: int, serve: Callable[..., None], *args: Any, may_start: bool = False
) -> Iterator[list[Worker]]:
    """Have so many processes call ``serve(pipe, *args)``, a function of a module, and end them afterwards.

    Those that were started early are taken first, others are started; with ``may_start`` all are, and may start some
    themselves. To be called in the main thread: on Linux, processes end with the thread that started them.

    Raises:
        OSError: they cannot be started.
    """
    workers: list[Worker] = []
    try:
        with _beginning():
            for _ in range(count):
                is_early = bool(_early) and not may_start
                workers.append(_early.pop() if is_early else Worker(may_start=may_start))
                with contextlib.suppress(BrokenPipeError):
                    workers[-1].pipe.send((serve, args, writable.open_roots()))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def wait_for_pipes(pipes: Sequence[Connection], seconds: float, *, most: int | None = _MOST_PIPES) -> list[Connection]:
    """Return the pipes that have something to read, or are closed; wait for the first one.

    Args:
        pipes: any number of them.
        seconds: how long to wait.
        most: how many the system waits for at once; None means any number.
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
    # The type of what can be waited for differs between systems.
    found: list[Any] = wait(list(pipes), seconds)
    return found


@contextmanager
def _beginning() -> Iterator[None]:
    """Let processes begin undisturbed: half-made, one would say something of its own. What comes is raised after."""
    with interrupts.block_stops():
        _stand_somewhere()
        with _safely():
            if os.name != "nt":
                # Python's own helper, which lets some stops through again when it has started.
                resource_tracker.ensure_running()
            with interrupts.block_stops():
                yield


#: Held while multiprocessing starts interpreters in this module's way.
_starting = threading.RLock()


@contextmanager
def _safely() -> Iterator[None]:
    """Start interpreters that import nothing from the working directory, and not the program that runs here either.

    Python asks two functions of its own how a process of multiprocessing begins. They are replaced meanwhile, for this
    thread alone: what other threads of the program start begins as ever.
    """
    thread = threading.get_ident()
    import_path = interpreters.safe_import_path()
    # Type stubs do not have what Python keeps to itself.
    own: Any = util
    with _starting:
        given_flags, given_state = own._args_from_interpreter_flags, spawn.get_preparation_data

        def flags() -> list[str]:
            found: list[str] = given_flags()
            if threading.get_ident() != thread:
                return found
            return found + [option for option in interpreters.interpreter_options() if option not in found]

        def state(name: str) -> dict[str, Any]:
            found: dict[str, Any] = given_state(name)
            if threading.get_ident() != thread:
                return found
            kept = {key: value for key, value in found.items() if not key.startswith("init_main_from_")}
            return {**kept, "sys_path": import_path}

        given_path = os.environ.get(interpreters.SEARCH_PATH)
        safe_path = interpreters.interpreter_environment().get(interpreters.SEARCH_PATH)
        own._args_from_interpreter_flags, spawn.get_preparation_data = flags, state
        try:
            if safe_path is not None:
                os.environ[interpreters.SEARCH_PATH] = safe_path
            yield
        finally:
            own._args_from_interpreter_flags, spawn.get_preparation_data = given_flags, given_state
            if safe_path is not None and given_path is not None:
                os.environ[interpreters.SEARCH_PATH] = given_path


def _stand_somewhere() -> None:
    """Leave a working directory that is gone: no process can begin in it."""
    try:
        os.getcwd()  # noqa: PTH109 - asked as a process that is started asks
    except FileNotFoundError:
        os.chdir(os.sep)


# --- in the worker ---------------------------------------------------------------------------------------------------


def _begin(pipe: Connection, modules: Sequence[str]) -> None:
    """Set the process up before anything is imported that takes long; what is to be said is the parent's to say."""
    _end_with_parent()
    for number in interrupts.STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    # What a library starts here.
    os.environ.update(interpreters.interpreter_environment())
    # NumPy's threads for linear algebra would only be waiting.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What is loaded stays: nobody has to look among it for what could go.
    gc.disable()
    for name in modules:
        # What cannot be loaded is missed where it is needed.
        with contextlib.suppress(Exception):
            import_module(name)
    gc.freeze()
    gc.enable()
    # A parent that is done with it closes the pipe.
    with contextlib.suppress(EOFError, BrokenPipeError):
        serve, args, handed = pipe.recv()
        writable.adopt_roots(handed)
        serve(pipe, *args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if sys.platform == "linux":
        # The thread has to wait for its turn while native code runs; the system does not.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent.pid:
            os._exit(1)


def _watch(parent: Any) -> None:
    parent.join()
    os._exit(1)


# Processes that do jobs beside this one: they call functions of modules, which read and write files.
#
# There are as many as leave a core to this process. What they answer does not depend on their number.


#: More processes than this gain nothing: what they make is taken over by one.
MAX_PROCESSES = 2
_POLL_SECONDS = 1.0
#: A process has so many jobs: one that it works on, and the next ones.
_AHEAD = 4
#: Of so many bytes are those that may wait in a pipe, which holds 8 KiB at least: with larger ones this process would
#: wait for one that waits itself, to be rid of an answer.
_MOST_WAITING_BYTES = 8192 // _AHEAD


class JobFailed(Exception):
    """A job could not be done, or its process was killed; the text says why."""


class ProcessPool:
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
        for pipe in wait_for_pipes(busy, seconds) if busy else ():
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


def usable_cores() -> int:
    """Return on how many cores this process may run, with those that it starts."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(there, core_limit() or there)


def can_use_pool() -> bool:
    """Tell whether there are cores for a crew, and whether this thread can have one.

    Only the main thread of a process that may start others can.
    """
    return usable_cores() > 1 and can_start_processes() and threading.current_thread() is threading.main_thread()


def pool_size() -> int:
    """Return how many processes a crew has."""
    return min(usable_cores() - 1, MAX_PROCESSES)


@contextmanager
def open_pool() -> Iterator[ProcessPool]:
    """Give a crew for the cores that this process leaves, and end it afterwards, where it was started."""
    with ExitStack() as stack:

        def start() -> list[Connection]:
            started = stack.enter_context(start_workers(pool_size(), _serve_pool))
            return [one.pipe for one in started]

        yield ProcessPool(start, stack.close)


# --- in the process --------------------------------------------------------------------------------------------------

#: Of the C library's mallopt, where it has one: what larger pieces, or more free memory, go back to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 << 20


def _serve_pool(parent: Connection) -> None:
    _keep_memory()
    serve_jobs(parent)


def serve_jobs(parent: Connection) -> None:
    """Do one job after the other, and answer with what was made, or with what failed."""
    while True:
        function, args = parent.recv()
        try:
            parent.send((True, function(*args)))
        except Exception as error:
            parent.send((False, str(error) or type(error).__name__))


def release_free_memory() -> None:
    """Give what this process has freed back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _keep_memory() -> None:
    """Keep memory for the next arrays instead of giving it back to the system."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
