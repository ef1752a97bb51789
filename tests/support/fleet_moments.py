"""What processes of a fleet do in tests at a moment of a command: they are killed, or wait for what another one does.

A moment is the number of an operation that a command asks of its target's disk, SQLite's own among them. What is to
happen to a source stands in a file of its name in the folder ``moments`` beside the folder of the sources: one line for
each attempt. Linux only, as what the operations are seen with.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from campaign import disk
from campaign.disk import Operation
from pytest import MonkeyPatch

from regraft.api.fleet import run_job
from regraft.cli.fleet import parse_library_options as parse
from regraft.fleet.engine import LocalPool, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.results import FleetOrder, ResultRow
from regraft.fleet.run import Fleet
from regraft.fleet.storage import StoragePath, storage_path
from regraft.report.document import Run


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What happens at an operation: a command is run and waited for; without one, this process is killed."""

    operation: int
    command: tuple[str, ...] = ()


class Watching:
    """Counts operations, and does something before one of them."""

    def __init__(self, moment: int = 0, does: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._moment, self._does = moment, does

    def before(self, _: Operation) -> None:
        """Look at what is about to be done."""
        self.count += 1
        if self.count == self._moment:
            self._does()

    def after(self, _: Operation) -> None:
        """It was done."""


def plan(source: Path, *moments: Moment) -> None:
    """Write down what is to happen in the first attempts at a source."""
    path = _plan_of(source)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(moment) + b"\n" for moment in moments))


def left_of(source: Path) -> int:
    """Return how many of the moments that were planned have not come."""
    path = _plan_of(source)
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def taken(source: Path) -> Moment | None:
    """Return what is planned for this attempt at a source, if anything is, and strike it out."""
    if not left_of(source):
        return None
    path = _plan_of(source)
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rest))
    return msgspec.json.decode(first, type=Moment)


def watched(job: LibraryJob, watching: Watching) -> TaskResult:
    """Do a job, and see what it asks of the disk below its target's parent."""
    with disk.watched(watching, str(Path(str(job.target)).parent)):
        return run_job(job)


def work(job: LibraryJob) -> TaskResult:
    """Do a job; at the moment that is planned for this attempt, do what is planned."""
    moment = taken(Path(job.source))
    if moment is None:
        return run_job(job)

    def do() -> None:
        if not moment.command:
            os.kill(os.getpid(), signal.SIGKILL)
        subprocess.run(moment.command, check=False, capture_output=True)

    return watched(job, Watching(moment.operation, do))


def work_in_store(job: LibraryJob) -> TaskResult:
    """Do a job over object storage; at the request that is planned for this attempt, this process is killed."""
    moment = taken(Path(job.source))
    if moment is None:
        return run_job(job)
    with MonkeyPatch.context() as patched:
        files = Counted(storage_path(str(job.target))._files, moment.operation)
        patched.setattr(StoragePath, "_files", files)
        return run_job(job)


class Counted:
    """A store's client in a process that is killed before its n-th request."""

    def __init__(self, files: Any, requests: int) -> None:
        self._files, self._left = files, requests

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._files, name)

        def request(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return asked(*args, **named)

        return request


def work_until_killed(order: str, results: str, count: int) -> None:
    """Work on a fleet (the order in JSON) with two processes, and be killed when so many libraries have ended."""
    ended = iter(range(1, count))

    def watch(_: ResultRow) -> None:
        if next(ended, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    fleet = Fleet(
        parse=parse,
        order=msgspec.json.decode(order, type=FleetOrder),
        path=Path(results),
        pool=lambda: LocalPool(run_job, 2),
    )
    fleet.run(Run(command="fleet migrate"), watch)


def _plan_of(source: Path) -> Path:
    return source.parent.parent / "moments" / source.name


WORK, IN_STORE = work, work_in_store
