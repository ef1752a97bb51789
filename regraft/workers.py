"""Processes of this one's own, for work that is done beside it and for code that must not touch it.

A worker ends with this process, however that ends: Linux kills it then, and everywhere a thread of it watches. It has
neither this one's output nor any of its open files, may change what this one may when it is told what to do, shares no
lock or semaphore with it, and can be killed at any moment: all that it writes is thrown away unless this process takes
it over. It imports nothing from the working directory (:mod:`regraft.interpreters`), nor the program that started it.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing import resource_tracker, spawn, util
from multiprocessing.connection import Connection, wait
from typing import Any

from regraft import areas, interpreters
from regraft.ledger import interrupts

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


def be_given(cores: int) -> None:
    """Know that others work beside this process, which has so many cores from now on; with one it starts no process."""
    _State.cores = cores


def given_cores() -> int | None:
    """Return how many cores this process was given, None where it has all that there are."""
    return _State.cores


def can_start() -> bool:
    """Tell whether this process may start others: a worker may where it was given cores for them."""
    if _State.cores is not None:
        return _State.cores > 1
    return multiprocessing.parent_process() is None


#: Workers that nobody has told yet what to do.
_early: list[Worker] = []


@contextmanager
def started_early(count: int, modules: Sequence[str]) -> Iterator[None]:
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
def started(count: int, serve: Callable[..., None], *args: Any, may_start: bool = False) -> Iterator[list[Worker]]:
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
                    workers[-1].pipe.send((serve, args, areas.handed_over()))
        yield workers
    finally:
        for worker in workers:
            worker.end()


def ready(pipes: Sequence[Connection], seconds: float, *, most: int | None = _MOST_PIPES) -> list[Connection]:
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
    with interrupts.undisturbed():
        _stand_somewhere()
        with _safely():
            if os.name != "nt":
                # Python's own helper, which lets some stops through again when it has started.
                resource_tracker.ensure_running()
            with interrupts.undisturbed():
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
    import_path = interpreters.import_path()
    # Type stubs do not have what Python keeps to itself.
    own: Any = util
    with _starting:
        given_flags, given_state = own._args_from_interpreter_flags, spawn.get_preparation_data

        def flags() -> list[str]:
            found: list[str] = given_flags()
            if threading.get_ident() != thread:
                return found
            return found + [option for option in interpreters.options() if option not in found]

        def state(name: str) -> dict[str, Any]:
            found: dict[str, Any] = given_state(name)
            if threading.get_ident() != thread:
                return found
            kept = {key: value for key, value in found.items() if not key.startswith("init_main_from_")}
            return {**kept, "sys_path": import_path}

        given_path = os.environ.get(interpreters.SEARCH_PATH)
        safe_path = interpreters.variables().get(interpreters.SEARCH_PATH)
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
    for number in interrupts.STOPS:
        signal.signal(number, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    # What a library starts here.
    os.environ.update(interpreters.variables())
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
        areas.take_over(handed)
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
