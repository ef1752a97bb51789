"""What processes of a fleet do in tests in the place of a command: they get into trouble by the name of the source."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest import MonkeyPatch

from regraft.fleet.engine import LibrarySummary, Task, TaskError, TaskResult, Work
from regraft.fleet.jobs import CommandOptions, LibraryJob
from regraft.options import OPTIONS
from regraft.processes import pool


def work(job: LibraryJob) -> TaskResult:
    """End as the source's name says; ``once``: only the first time."""
    source = Path(job.source)
    trouble = source.name.partition(" ")[2]
    if trouble.endswith(" once") and _is_first(source):
        trouble = trouble.removesuffix(" once")
    if trouble == "killed":
        os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
    status, code = {"full": (3, "StoppedBySystem"), "fault": (3, "FaultOfRegraft"), "refused": (2, "WrongUsage")}.get(
        trouble, (0, None)
    )
    error = None if code is None else TaskError(code=code, message=f"{trouble}.")
    return TaskResult(status=status, error=error, seconds=0.1)


def plain(command: str) -> CommandOptions:
    """Return the options of a command that was given none."""
    return CommandOptions(values=OPTIONS[command]())


def _is_first(source: Path) -> bool:
    mark = source.with_name(f"{source.name}.seen")
    if mark.exists():
        return False
    mark.touch()
    return True


def large(job: LibraryJob) -> TaskResult:
    """Return more than a cluster sends along with the end of a task: it stays on the node until it is asked for."""
    return TaskResult(status=0, summary=LibrarySummary(totals='"' + "x" * 1_000_000 + '"'), seconds=0.1)


TROUBLE, LARGE = work, large


class HerePool:
    """Does every task in this process, when its answer is asked for: what starts no process is quick."""

    def __init__(self, work: Work, count: int) -> None:
        self.cores = self.slots = count
        self.memory = 1 << 40
        self._work = work
        self.jobs: dict[int, Any] = {}

    def start_task(self, task: Task) -> None:
        """Take note of a task."""
        self.jobs[task.number] = task.job

    def answers(self, seconds: float) -> Iterator[tuple[int, TaskResult]]:
        """Do the first task."""
        number = next(iter(self.jobs))
        yield number, self._work(self.jobs.pop(number))

    def close(self) -> None:
        """Do nothing."""


def helped(job: LibraryJob) -> TaskResult:
    """Tell how many cores this process has, and whether another one of its own has done something for it."""
    pool.set_core_limit(job.cores)
    helper = None
    if pool.can_use_pool():
        with pool.open_pool() as helpers:
            helper = helpers.take(helpers.put(os.getpid))
    totals = {"cores": pool.usable_cores(), "helped": helper not in (None, os.getpid())}
    return TaskResult(status=0, summary=LibrarySummary(totals=json.dumps(totals)), seconds=0.1)


def put_in_place(monkeypatch: MonkeyPatch) -> None:
    """Let fleets do everything in this process, which stays what it is."""
    monkeypatch.setattr("regraft.api.fleet.LocalPool", HerePool)
    monkeypatch.setattr(pool, "set_core_limit", lambda _: None)
