"""What happens at the k-th operation of a run: it fails, or the process ends. Which k there are, and their order."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import FrameType

from campaign import disk, native
from campaign.disk import Operation, Wire
from campaign.runs import Stage

#: What needs room on the disk.
TAKES_ROOM = frozenset({"write", "make", "mkdir", "rename", "link", "sync", "sync-folder"})
FOR_EVER = 1 << 30


class Counting:
    """Notes the kind of every operation, and writes them down when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kinds: list[str] = []

    def before(self, operation: Operation) -> None:
        self.kinds.append(operation.kind)

    def after(self, operation: Operation) -> None:
        """Nothing is left to note."""

    def save(self) -> None:
        self._path.write_text(json.dumps(self.kinds), "utf-8")


class Failing:
    """Lets the operations from number ``at`` on fail, ``lasting`` of them, where they can with this error.

    How many failed is counted in memory that a copy of this process shares with it.
    """

    def __init__(self, at: int, error: int, lasting: int) -> None:
        self._at = at
        self._error = error
        self._lasting = lasting
        self._count = 0
        self._failed = mmap.mmap(-1, 8)

    @property
    def failed(self) -> int:
        """Return how many operations failed."""
        return int.from_bytes(self._failed[:], "little")

    def before(self, operation: Operation) -> None:
        self._count += 1
        is_able = self._error != errno.ENOSPC or operation.kind in TAKES_ROOM
        if self._at <= self._count < self._at + self._lasting and is_able:
            self._failed[:] = (self.failed + 1).to_bytes(8, "little")
            raise disk.Failing(self._error)

    def after(self, operation: Operation) -> None:
        """It has not failed."""


@dataclass
class Signalling:
    """Sends this process a signal at operation number ``at``."""

    at: int
    number: int
    count: int = 0
    wire: Wire | None = None

    def before(self, _: Operation) -> None:
        self.count += 1
        if self.count != self.at:
            return
        if self.number == signal.SIGKILL or self.wire is None:
            os.kill(os.getpid(), self.number)
            return
        # What Python makes of the others is raised between two of its steps, and must not be in one of SQLite's.
        self.wire.lift()
        threading.Thread(target=self._send_outside, daemon=True).start()

    def _send_outside(self) -> None:
        """Send the signal once the operation that is under way has gone back to SQLite; no other is watched then."""
        while any(frame.f_code.co_filename == native.__file__ for frame in _stack_of_main()):
            time.sleep(0.001)
        os.kill(os.getpid(), self.number)

    def after(self, operation: Operation) -> None:
        """It is still there."""


def _stack_of_main() -> Iterator[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP, "SIGINT": signal.SIGINT}


def around(stage: Stage, watcher: Counting | Failing | Signalling) -> Callable[[], None]:
    """Return what lays the wire around a run of a stage, in its own process."""

    def work() -> None:
        wire = Wire(watcher, str(stage.place), str(stage.temporary)).lay()
        if isinstance(watcher, Signalling):
            watcher.wire = wire

    return work


def kinds_of(stage: Stage) -> list[str]:
    """Return the kind of every operation of an undisturbed run."""
    stage.reset()
    found = stage.output / "kinds.json"
    watcher = Counting(found)
    real_exit = os._exit

    def counted() -> None:
        def leave(status: int) -> None:
            wire.lift()
            watcher.save()
            real_exit(status)

        os._exit = leave  # type: ignore[assignment]
        wire = Wire(watcher, str(stage.place), str(stage.temporary)).lay()

    done = stage.run(1, counted)
    if done.status != stage.status:
        raise RuntimeError(f"{stage.scenario.name}: watched, it ended with {done.status}: {done.stderr}")
    kinds: list[str] = json.loads(found.read_text("utf-8"))
    return kinds


def shuffled(count: int, chance: Random) -> Iterator[int]:
    """Return the numbers below ``count`` in an order of chance."""
    order = list(range(count))
    chance.shuffle(order)
    return iter(order)
