"""Run a fleet: one command on many libraries, with a row for each in the results."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import scratch, writable
from regraft.errors import (
    REFUSED,
    STOPPED,
    WORTH_READING,
    Declined,
    FleetInterrupted,
    FleetRefused,
    Interrupted,
    TargetLocked,
    WrongUsage,
)
from regraft.fleet import engine, manifest, results
from regraft.fleet.engine import Pool, Schedule, Task, TaskResult
from regraft.fleet.jobs import LibraryJob, ParseOptions
from regraft.fleet.metrics import BaseReport, LibraryReport, Metrics, Tally
from regraft.fleet.results import LIMITED, FleetOrder, Journal, Kind, KnownRows, ResultRow
from regraft.language import join_list, tr
from regraft.report.document import Report, Run
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import LONGEST_NAME, one_line, path_argument

logger = logging.getLogger(__name__)

#: If the first libraries to end, of this number, are all refused for one reason, the others are not tried.
_FIRST = 10
#: Smaller libraries gain little from several cores, and no command uses more.
_LARGE_BYTES, _MOST_CORES = 64 << 20, 4
#: Errors that another attempt would repeat.
_FINAL = frozenset({"FaultOfRegraft", "VerificationFailed", "BooksDoNotBalance", "NoNodeFits"})
#: Seconds without the end of a library after which the user is told what is running, doubled each time; and how many
#: libraries such a line names.
_QUIET_SECONDS, _NAMED = 300.0, 3


class FleetReport(Report, kw_only=True):
    """Counts of libraries and bases, and the libraries and bases to look at."""

    libraries: dict[str, int]  # by outcome, as bases
    left: int  # libraries that have no result yet
    bases: dict[str, int]
    findings: dict[str, int]  # by name
    rows_carried: int
    seconds: float
    slowest: list[LibraryReport]
    failed: list[LibraryReport]
    failed_bases: list[BaseReport]


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet will do: the number of libraries that it changes."""

    libraries: int


#: Called with the row of each library that has ended.
Watch = Callable[[ResultRow], None]


class Fleet(msgspec.Struct, kw_only=True):
    """One run over a fleet."""

    order: FleetOrder  # the command and the libraries
    path: Path  # the file of the results
    pool: Callable[[], Pool]  # opens the pool; called only if a library is left
    parse: ParseOptions  # parses the options of a library
    attempts: int = 3  # for a library whose disk failed, or whose process was killed
    known: KnownRows = msgspec.field(default_factory=KnownRows)  # of libraries that ended in an earlier run
    metrics: Metrics | None = None  # updated during the run
    keep_going: bool = False  # go on when the first libraries are refused for the same reason
    only: tuple[Kind, ...] = ()  # the kinds of libraries that are processed, of those that are left; empty: all
    dry_run: bool = False  # write no results; the options make the command of each library write nothing
    pause_seconds: float = 1.0  # the wait before a second attempt
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    confirm: Callable[[FleetPlan], bool] = lambda _: True  # called before anything is changed; False stops the run
    _first: list[str | None] = msgspec.field(default_factory=list)  # codes of the first libraries that ended
    _watch: Watch = lambda _: None
    _tally: Tally = msgspec.field(default_factory=Tally)
    _journal: Journal | None = None

    @property
    def left(self) -> list[int]:
        """The numbers of the libraries that this run processes."""
        return left_libraries(self.order, self.known, self.only)

    def run(self, run: Run, watch: Watch = lambda _: None) -> FleetReport:
        """Run the command on all libraries that are left, write the results, and report on all libraries.

        Raises:
            Interrupted: before there was anything to continue with.
            FleetInterrupted, FleetRefused: libraries that ended are in the journal.
            OSError: the results cannot be written, or no process can be started.
        """
        self._watch = watch
        try:
            with self.lock(), self.metrics.kept(self._tally) if self.metrics else nullcontext():
                self.work()
        except KeyboardInterrupt:
            if self._journal is None:
                raise Interrupted(finished=self._tally.good) from None
            raise FleetInterrupted(finished=self._tally.good, command=self.resume_command) from None
        run.end()
        return self.report(run)

    def lock(self) -> AbstractContextManager[None]:
        """Lock the results; a dry run has none."""
        return nullcontext() if self.dry_run else results.lock_results(self.path)

    def report(self, run: Run) -> FleetReport:
        """Report on all libraries."""
        return make_report(run, self._tally, len(self.order.libraries))

    def work(self) -> None:
        """Run the libraries that are left, and add the rows of each to the journal; then write the results.

        Raises:
            Declined: the plan was declined.
        """
        left, order = self.left, self.order
        is_change = order.form.changes and not self.parse(order.command, order.options).is_dry
        if is_change and not self.confirm(FleetPlan(libraries=len(left))):
            raise Declined(path=self.path)
        with ExitStack() as stack:
            # Runs last, when all processes have ended.
            stack.callback(scratch.remove_leftovers)
            # Before anything is written: the pool may be refused.
            pool = stack.enter_context(closing(self.pool())) if left else None
            if not self.dry_run:
                self.open_journal(left, stack)
            if pool is not None:
                with stage(self.progress, "Libraries", len(left), "libraries"):
                    for task, ended in self.run_jobs(pool, self.measure(left), self.make_job):
                        self.progress.at(order.libraries[task.number].source)
                        self.progress.step(1, task.bytes)
                        self.end_library(self.rows_of(task, ended))
        self.write_results()

    def write_results(self) -> None:
        """Write the results, once every library has some; until then the journal keeps them."""
        if self._journal is not None and len(self._journal.rows) == len(self.order.libraries):
            results.write_results(self.path, self.order, self._journal.rows)

    def open_journal(self, left: Iterable[int], stack: ExitStack) -> None:
        """Open the journal with all known rows, and count those of the libraries that are not processed again."""
        again = set(left)

        def known_rows() -> Iterator[list[ResultRow]]:
            for number, rows in self.known.items():
                if number not in again:
                    self._tally.add(rows)
                    self._tally.attempts += (attempts := rows[0].attempts or 1)
                    self._tally.retries += attempts - 1
                yield rows

        self._journal = stack.enter_context(closing(Journal(self.path, self.order, known_rows())))

    def make_job(self, number: int, cores: int = 1) -> LibraryJob:
        """Make the job of a library."""
        order, library = self.order, self.order.libraries[number]
        return LibraryJob(
            command=order.command,
            options=self.parse(order.command, (*order.options, *library.options)),
            source=library.source,
            target=library.target,
            fleet=order.id,
            cores=cores,
        )

    def measure(self, numbers: list[int]) -> dict[int, int]:
        """Map libraries to their sizes in bytes."""
        sizes = manifest.source_sizes(self.order.libraries[number] for number in numbers)
        return dict(zip(numbers, sizes, strict=True))

    def run_jobs(
        self, pool: Pool, sizes: Mapping[int, int], job: Callable[[int, int], Any], *, notes_starts: bool = True
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Run a job for each library, and yield how each ends.

        Args:
            pool: the processes.
            sizes: the size of each library in bytes, by its number.
            job: makes the job of a library by its number and the cores that it gets.
            notes_starts: whether the jobs end their libraries, so that the journal says which are in progress.
        """
        cores, libraries = pool.count, self.order.libraries
        tasks, fair_share = [], sum(sizes.values()) / cores
        for number, size in sizes.items():
            # A library that is a large share of all gets several cores.
            has = min(cores, _MOST_CORES, math.ceil(size / fair_share)) if size >= _LARGE_BYTES else 1
            memory, name = engine.planned_memory(size, has), Path(libraries[number].source).name
            tasks.append(Task(number=number, job=job(number, has), name=name, bytes=size, cores=has, memory=memory))

        def note_start(task: Task, attempt: int) -> None:
            """Record that an attempt has started."""
            if self._journal is not None and notes_starts:
                self._journal.note_start(task, attempt)
            self._tally.count_attempt(attempt)

        def flush() -> None:
            """Store what has ended: libraries that end together are flushed together."""
            if self._journal is not None:
                self._journal.flush()
            if self.metrics is not None:
                self.metrics.refresh()
            notice.tell(schedule)

        notice = _StallNotice()
        schedule = Schedule(
            tasks,
            pool,
            attempts=self.attempts,
            is_retried=is_retried,
            pause_seconds=self.pause_seconds,
            on_start=note_start,
            on_poll=flush,
        )
        if self.metrics is not None:
            self.metrics.begin(schedule)
        return iter(schedule)

    def rows_of(self, task: Task, ended: TaskResult) -> list[ResultRow]:
        """Return the rows of a library that has ended."""
        return results.result_rows(self.order.libraries[task.number], task, self.order.command, ended)

    def end_library(self, rows: list[ResultRow]) -> None:
        """Record the rows of a library that has ended.

        Raises:
            FleetRefused: all of the first libraries were refused for the same reason, such as a wrong name of a bucket.
        """
        own = rows[0]
        logger.info("%s: %s after %.1f s", own.source, own.outcome, own.seconds)
        if self._journal is not None:
            self._journal.add(rows)
        self._tally.add(rows)
        self._watch(own)
        if self.keep_going or len(self._first) == _FIRST:
            return
        self._first.append(own.code if own.outcome == "refused" else None)
        if len(self._first) == _FIRST < len(self.left) and own.code is not None and set(self._first) == {own.code}:
            raise FleetRefused(count=_FIRST, code=own.code, reason=own.message, command=self.resume_command)

    @property
    def resume_command(self) -> str:
        """The command that continues the run."""
        return shlex.join(["regraft", "fleet", "resume", path_argument(self.path)])


def left_libraries(order: FleetOrder, known: KnownRows, only: Iterable[Kind] = ()) -> list[int]:
    """Return the numbers of the libraries that have not succeeded, and are of one of the kinds; empty: of any."""
    kinds = {number: known.kind(number) for number in range(len(order.libraries))}
    wanted = set(only) or {"failed", "refused", "unfinished"}
    return [number for number, kind in kinds.items() if kind in wanted]


class _StallNotice:
    """Tells the user what is running when no library has ended for some minutes."""

    def __init__(self) -> None:
        self._ended_at, self._quiet = 0.0, _QUIET_SECONDS

    def tell(self, schedule: Schedule) -> None:
        """Log a line if it is time for one; the next one follows after twice as long."""
        now = time.monotonic()
        if self._ended_at != schedule.ended_at:
            self._ended_at, self._quiet = schedule.ended_at, _QUIET_SECONDS
        if now - self._ended_at < self._quiet:
            return
        self._quiet *= 2
        named = []
        for one in sorted(schedule.running.values())[:_NAMED]:
            name = one_line(schedule.tasks[one.place].name, LONGEST_NAME)
            named.append(tr("{name} ({minutes} min)", name=name, minutes=int((now - one.at) // 60)))
        if len(schedule.running) > _NAMED:
            named.append(tr("{count:,} more", count=len(schedule.running) - _NAMED))
        text = tr(
            "no library has ended for {minutes} min; running: {named}; waiting: {waiting:,}",
            minutes=int((now - self._ended_at) // 60),
            named=join_list(named),
            waiting=len(schedule.waiting),
        )
        logger.warning("%s", text)


def is_retried(ended: TaskResult) -> bool:
    """Whether a library may succeed in another attempt: the system stopped it, or the killed process still holds its
    lock.
    """
    code = None if ended.error is None else ended.error.code
    if ended.is_after_kill and code == TargetLocked.__name__:
        return True
    return ended.status == STOPPED and code not in _FINAL


def make_report(run: Run, tally: Tally, libraries: int) -> FleetReport:
    """Make the report of a fleet of a number of libraries; those that it names are in the order of the manifest."""

    def counts(by_outcome: Counter[str]) -> dict[str, int]:
        return {"all": by_outcome.total(), **dict(sorted(by_outcome.items()))}

    failed, bases = (sorted(rows, key=lambda row: row.library) for rows in (tally.failed, tally.failed_bases))
    return FleetReport(
        head=run.head(),
        libraries=counts(tally.libraries),
        left=libraries - tally.libraries.total(),
        bases=counts(tally.bases),
        findings=dict(sorted(tally.findings.items())),
        rows_carried=tally.rows_carried,
        seconds=round(tally.seconds, 3),
        slowest=msgspec.convert(tally.slowest, list[LibraryReport], from_attributes=True),
        failed=msgspec.convert(failed, list[LibraryReport], from_attributes=True),
        failed_bases=msgspec.convert(bases, list[BaseReport], from_attributes=True),
    )


def fleet_exit_status(report: FleetReport) -> int:
    """Return the exit status of a fleet: that of its worst library."""
    outcomes = report.libraries.keys()
    if outcomes & {"killed", "interrupted", "stopped"}:
        return STOPPED
    if "refused" in outcomes:
        return REFUSED
    return WORTH_READING if report.left or outcomes & {"worth-reading", LIMITED} else 0


def demand_new_results(path: Path) -> None:
    """Check that the results do not exist yet, and that they can be written; raises TargetNotWritable or WrongUsage."""
    writable.demand_output(path)
    if path.suffix.lower() in (".csv", ".html"):
        problem = tr("results are JSON Lines or Parquet, not {suffix}", suffix=path.suffix)
        hint = tr("name a .jsonl or .parquet file; regraft fleet status converts it to the other formats")
        raise WrongUsage(problem=problem, hint=hint)
    if path.exists() or not results.is_unused(results.journal_path(path)):
        raise WrongUsage(
            problem=tr("{path} already has the results of another run", path=path),
            hint=tr("continue that run with regraft fleet resume, or use another file"),
        )
