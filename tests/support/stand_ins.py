"""What a process that a test starts does in place of the real thing, and disks that fail.

Such a process loads this module: neither pytest nor Hypothesis, which take longer than most runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
from patience import NEVER_SECONDS

from migrators.pipeline import workers as pipeline_workers
from regraft.cli import LazyCommands
from regraft.errors import BooksDoNotBalance, VerificationFailed
from regraft.ledger.ledger import Ledger
from regraft.processes import interrupts, pool

#: What a killed process leaves as its exit status.
KILLED = 137


def die() -> None:
    """End this process at once, as a power cut or ``kill -9`` would."""
    os._exit(KILLED)


def begin_as_in_a_terminal() -> None:
    """Let a process that was just started heed stops, however the tests were started, and not outlive them."""
    for number in interrupts.STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _kept(root: Path) -> int:
    return len(list((root / ".regraft" / "undo").glob("*/*")))


#: Moments of a migration, and of a run that changes a store, by what is there.
MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the ledger is there": lambda target: (target / ".regraft" / "ledger.sqlite").exists(),
    "the first index is begun": lambda target: any((target / ".regraft" / "staging").rglob(".cherry/index.sqlite")),
    "a base is in place": lambda target: any((target / "KnowledgeBase").glob("*")),
    "two bases are in place": lambda target: len(list((target / "KnowledgeBase").glob("*"))) >= 2,
    "the catalog is there": lambda target: (target / "catalog.sqlite").exists(),
    "what takes one change back is there": lambda target: _kept(target) >= 1,
    "what takes two changes back is there": lambda target: _kept(target) >= 2,
}


def hold_still(moment: str, target: str, reached: str, on: str) -> None:
    """Stand still at a moment, from the next step at which files are made, moved or flushed, until ``on`` is there."""

    def held(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            result = real(*arguments, **named)
            if MOMENTS[moment](Path(target)) and not Path(reached).exists():
                Path(reached).touch()
                # A signal may be held back here: it must not be the only way on.
                while not Path(on).exists():
                    time.sleep(0.001)
            return result

        return step

    for name in ("mkdir", "replace", "fsync"):
        setattr(os, name, held(getattr(os, name)))


# --- disks that fail -----------------------------------------------------------------------------------------------


class _File(apsw.VFSFile):
    """A SQLite file whose writes and flushes are counted, and fail where they should."""

    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.write(len(data))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.sync()
        super().xSync(flags)


class Disk(apsw.VFS):
    """SQLite's view of a disk, in place of the real one until :meth:`unregister`."""

    def __init__(self) -> None:
        self.writes = self.bytes = self.syncs = 0
        self.errors: list[BaseException] = []
        self.real = apsw.vfs_names()[0]
        super().__init__("failing-disk", self.real, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(self, name, flags)

    def write(self, size: int) -> None:
        """Count a write."""
        self.writes += 1
        self.bytes += size

    def sync(self) -> None:
        """Count a flush."""
        self.syncs += 1

    def fail(self, error: apsw.Error) -> None:
        """Raise an error of this disk."""
        self.errors.append(error)
        raise error


class FullDisk(Disk):
    """A disk that has room for so many more writes, and none for a larger file after that."""

    def __init__(self, writes: int) -> None:
        self.room = writes
        super().__init__()

    def write(self, size: int) -> None:
        super().write(size)
        if self.writes > self.room:
            self.fail(apsw.FullError("database or disk is full"))


class FailingFlush(Disk):
    """A disk of which one flush fails."""

    def __init__(self, at: int) -> None:
        self._at = at
        super().__init__()

    def sync(self) -> None:
        super().sync()
        if self.syncs == self._at:
            self.fail(apsw.IOError("disk I/O error"))


@contextmanager
def on_disk(disk: Disk) -> Iterator[Disk]:
    """Let SQLite use ``disk`` meanwhile.

    SQLite goes on after some errors, as where it cannot give up a log: it keeps the log. An error of this disk that it
    does not pass on is no fault of anybody's.
    """
    told = sys.unraisablehook

    def tell(one: Any) -> None:
        if not any(one.exc_value is error for error in disk.errors):
            told(one)

    sys.unraisablehook = tell
    try:
        yield disk
    finally:
        sys.unraisablehook = told
        disk.unregister()


# --- processes of a run --------------------------------------------------------------------------------------------
# They stand in for the work on one base, in a process that knows nothing of the test that made it.


def die_in_process(*_: object) -> None:
    """Be killed, as for want of memory."""
    die()


def raise_VerificationFailed(*_: object) -> None:
    """Find an index that is not what was read."""
    raise VerificationFailed(base="alpha", reason="texts or vectors differ")


def raise_BooksDoNotBalance(*_: object) -> None:
    """Lose a row."""
    raise BooksDoNotBalance(base="alpha", read=3, carried=2, skipped=0)


def fill_up_in_process(job: pipeline_workers.WriteJob) -> object:
    """Work on a base until the disk is full."""
    with on_disk(FullDisk(20)):
        return real_work(job)


def talk_and_fail(job: pipeline_workers.WriteJob) -> object:
    """Report more steps than a pipe holds, and then fail."""
    for _ in range(5_000):
        pool.report_progress((job.work.draft.name, 0.0, 0))
    raise VerificationFailed(base="alpha", reason="texts or vectors differ")


def held(job: pipeline_workers.WriteJob, wait: Callable[[], object]) -> None:
    """Tell through a pipe beside the target that a process has come to a base, and hold it there.

    The pipe is open for as long as the process lives.
    """
    pipe = os.open(job.earlier.parent.parent.parent / "pipe", os.O_WRONLY)
    os.write(pipe, b".")
    wait()


def hold_in_native_code(job: pipeline_workers.WriteJob, *_: object) -> None:
    """Hold a process where no thread of it can do anything, nor a stop reach it."""
    held(job, lambda: ctypes.PyDLL(None).sleep(1_000_000))


def hold_without_the_system(job: pipeline_workers.WriteJob, *_: object) -> None:
    """Hold a process that the system does not end with its parent."""
    ctypes.CDLL(None).prctl(1, 0)
    held(job, threading.Event().wait)


def stop_when_a_base_is_done(*numbers: int) -> None:
    """Let signals come when the first base is in its place."""
    done = Ledger.done

    def stopped(*arguments: Any) -> None:
        done(*arguments)
        for number in numbers:
            os.kill(os.getpid(), number)

    Ledger.done = stopped  # type: ignore[method-assign]


def hang_up_twice() -> None:
    """Do what a terminal does that is closed."""
    stop_when_a_base_is_done(signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)


def terminate_twice() -> None:
    """Do what ``timeout`` does."""
    stop_when_a_base_is_done(signal.SIGTERM, signal.SIGTERM)


def terminate_while_text_runs() -> None:
    """Let a signal come while a command is loaded, in the midst of code that Python runs out of a text."""
    load = LazyCommands.__getitem__

    def loaded(commands: LazyCommands, name: str) -> Any:
        exec("import signal; signal.raise_signal(signal.SIGTERM)")
        return load(commands, name)

    LazyCommands.__getitem__ = loaded  # type: ignore[method-assign]


def ignore_that_the_terminal_goes() -> None:
    """Do what ``nohup`` does, and then what a terminal does that is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop_when_a_base_is_done(signal.SIGHUP)


def stay(job: pipeline_workers.WriteJob) -> object:
    """Build a base, and then stay at it until the run is over."""
    real_work(job)
    return threading.Event().wait()


def interrupt_what_is_half_made() -> None:
    """Let Ctrl-C come when a process has begun and nobody is yet there to end it."""
    start = pool.WorkerProcess.__init__
    # The threads of libraries let it through, too.
    threading.Thread(target=threading.Event().wait, daemon=True).start()

    def started(worker: pool.WorkerProcess, *given: Any, **named: Any) -> None:
        start(worker, *given, **named)
        os.kill(os.getpid(), signal.SIGINT)

    pool.WorkerProcess.__init__ = started  # type: ignore[method-assign]


real_work = pipeline_workers._in_process


# --- patience of a backfill ------------------------------------------------------------------------------------------


def with_patience() -> None:
    """Wait for the other run as long as it takes."""
    from repair.embedding import queue, run

    queue.WAIT_SECONDS = run.WAIT_SECONDS = NEVER_SECONDS


def with_short_leases() -> None:
    """Let claims expire soon, and be renewed sooner."""
    from repair.embedding import filling, queue

    queue.LEASE_MS = filling.LEASE_MS = 2000


def with_little_patience() -> None:
    """Wait not so long for what was sent when the run is interrupted."""
    from repair.embedding import sender

    sender._LAST_WAIT = 1.0
