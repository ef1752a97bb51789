"""A fleet: one command over many libraries, each with its outcome in the results."""

from __future__ import annotations

import logging
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from regraft.errors import REFUSED, STOPPED, WORTH_READING, FleetInterrupted, TargetLocked, WrongUsage
from regraft.fleet import engine, jobs, manifest, results
from regraft.fleet.engine import ObservedPool, Pool, PoolObserver, Task, TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.manifest import Library
from regraft.fleet.metrics import LibraryReport, Metrics, Tally
from regraft.fleet.results import FleetOrder, Journal, KnownRows, ResultRow
from regraft.language import tr
from regraft.report.document import Report, Run
from regraft.text import path_argument

logger = logging.getLogger(__name__)

#: How often a library is tried whose disk failed, or whose process was killed.
ATTEMPTS = 3
#: Outcomes by the exit status that a fleet has where a library has one of them, the worst first.
ENDING_WITH = {
    STOPPED: ("killed", "interrupted", "stopped"),
    REFUSED: ("refused",),
    WORTH_READING: ("worth-reading",),
}
#: A library of fewer bytes gains little by several cores.
_LARGE_BYTES = 64 << 20
#: No command uses more.
_MOST_CORES = 4
#: What a library's own fault, or regraft's, would only say again.
_FINAL = frozenset({"FaultOfRegraft", "VerificationFailed", "BooksDoNotBalance"})


class FleetReport(Report, kw_only=True):
    """What became of a fleet: libraries and bases by outcome, findings by name, and what to look at."""

    libraries: dict[str, int]
    bases: dict[str, int]
    findings: dict[str, int]
    rows_carried: int
    seconds: float
    slowest: list[LibraryReport]
    failed: list[LibraryReport]


#: Is told of each library that has ended.
Watch = Callable[[ResultRow], None]


class Fleet(msgspec.Struct, kw_only=True):
    """A fleet at work.

    Args:
        order: what is to be done.
        path: the file of the results.
        pool: gives where command lines are run, where there are any.
        attempts: how often a library is tried.
        known: the rows of libraries that have ended in an earlier run.
        metrics: follow what happens, where they are wanted.
        pause_seconds: how long to wait before a second attempt.
    """

    order: FleetOrder
    path: Path
    pool: Callable[[], Pool]
    attempts: int = ATTEMPTS
    known: KnownRows[ResultRow] = msgspec.field(default_factory=KnownRows)
    metrics: Metrics | None = None
    pause_seconds: float = 1.0

    @property
    def left(self) -> list[int]:
        """Return the numbers of the libraries that are to be worked on: those that have not ended well."""
        return [number for number in range(len(self.order.libraries)) if number not in self.known.good]

    def run(self, run: Run, watch: Watch = lambda _: None) -> FleetReport:
        """Work on all libraries that are left, write the results, and return what became of them all.

        Raises:
            FleetInterrupted: it was stopped; what had ended is in the journal.
            OSError: the results cannot be written, or no process can be started.
        """
        tally = Tally()
        try:
            with results.lock_results(self.path), self.metrics.kept(tally) if self.metrics else nullcontext():
                rows = self._work(tally, watch)
                results.write_results(self.path, self.order, rows)
        except KeyboardInterrupt:
            command = shlex.join(["regraft", "fleet", "resume", path_argument(self.path)])
            raise FleetInterrupted(finished=tally.good, command=command) from None
        run.end()
        return make_report(run, tally)

    def _work(self, tally: Tally, watch: Watch) -> KnownRows[ResultRow]:
        """Add the rows of all libraries that are left, as they end, to the journal; return those of all."""
        left = self.left
        with ExitStack() as stack:
            # When all processes have ended.
            stack.callback(jobs.remove_copies, self.order.id)
            # First of all: where it cannot be had, nothing is written.
            pool = stack.enter_context(closing(self.pool())) if left else None
            journal = stack.enter_context(closing(Journal(self.path, self.order, finished_rows(self.known, tally))))
            for found in () if pool is None else self._ended(left, pool, journal):
                journal.add(found)
                tally.add(found)
                watch(found[0])
        return journal.rows

    def _ended(self, left: list[int], pool: Pool, journal: Journal) -> Iterator[list[ResultRow]]:
        """Yield the rows of each library that ends; those that end together are flushed together."""
        libraries = self.order.libraries
        tasks = make_tasks(
            dict(zip(left, manifest.source_sizes(libraries[number] for number in left), strict=True)),
            pool.count,
            lambda number, cores: make_job(self.order, libraries[number], cores),
        )
        watchers = [PoolObserver(looked=journal.flush)]
        if self.metrics is not None:
            watchers.append(self.metrics.begin(tasks, pool))
        pool = ObservedPool(pool, watchers)
        all_ended = engine.run_tasks(
            tasks, pool, attempts=self.attempts, is_retried=is_retried, pause_seconds=self.pause_seconds
        )
        for task, ended in all_ended:
            rows = results.result_rows(libraries[task.number], task, self.order.command, ended)
            logger.info("%s: %s after %.1f s", rows[0].source, rows[0].outcome, ended.seconds)
            yield rows


def finished_rows(known: KnownRows[ResultRow], tally: Tally) -> Iterator[list[ResultRow]]:
    """Yield the rows of each library that ended well in an earlier run, and count it."""
    for number in sorted(known.good):
        rows = known[number]
        tally.add(rows)
        yield rows


def make_tasks(sizes: Mapping[int, int], cores: int, job: Callable[[int, int], Any]) -> list[Task]:
    """Return the task of each library; one that is much of all gets several cores.

    Args:
        sizes: the bytes of each library, by its number.
        cores: how many there are.
        job: returns what is to be done with a library, by its number and how many cores it has.
    """
    tasks, fair = [], sum(sizes.values()) / cores
    for number, size in sizes.items():
        has = min(cores, _MOST_CORES, math.ceil(size / fair)) if size >= _LARGE_BYTES else 1
        needed = engine.planned_memory(size, has)
        tasks.append(Task(number=number, job=job(number, has), bytes=size, cores=has, memory=needed))
    return tasks


def make_job(order: FleetOrder, library: Library, cores: int = 1) -> LibraryJob:
    """Return what is to be done with a library."""
    return LibraryJob(
        command=order.command,
        options=(*order.options, *library.options),
        source=library.source,
        target=library.target,
        fleet=order.id,
        cores=cores,
    )


def is_retried(ended: TaskResult) -> bool:
    """Tell whether a library may end otherwise the next time: the system stopped it, or somebody has it who is said to
    be gone."""
    code = (ended.document.get("error") or {}).get("code")
    if ended.is_after_kill and code == TargetLocked.__name__:
        return True
    return ended.status == STOPPED and code not in _FINAL


def make_report(run: Run, tally: Tally) -> FleetReport:
    """Return what became of a fleet."""
    return FleetReport(
        head=run.head(),
        libraries=_counts(tally.libraries),
        bases=_counts(tally.bases),
        findings=dict(sorted(tally.findings.items())),
        rows_carried=tally.rows_carried,
        seconds=round(tally.seconds, 3),
        slowest=tally.slowest,
        failed=tally.failed,
    )


def _counts(by_outcome: Counter[str]) -> dict[str, int]:
    return {"all": by_outcome.total(), **dict(sorted(by_outcome.items()))}


def fleet_exit_status(report: FleetReport) -> int:
    """Return the exit status of a fleet: that of the library that ended worst."""
    ends = (status for status, outcomes in ENDING_WITH.items() if not report.libraries.keys().isdisjoint(outcomes))
    return next(ends, 0)


def demand_new_results(path: Path) -> None:
    """Refuse results where there are some, or in no folder.

    Raises:
        WrongUsage
    """
    if not path.absolute().parent.is_dir():
        raise WrongUsage(
            problem=tr("{path} lies in no folder that is there", path=path), hint=tr("make the folder, or name another")
        )
    if path.exists() or results.journal_path(path).exists():
        raise WrongUsage(
            problem=tr("{path} has the results of another run", path=path),
            hint=tr("go on with regraft fleet resume, or name another file"),
        )
