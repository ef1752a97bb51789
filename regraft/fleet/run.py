"""Run a fleet: one command on many libraries, with a row for each in the results."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk import scratch, writable
from regraft.errors import (
    STOPPED,
    Declined,
    FleetInterrupted,
    FleetRefused,
    Interrupted,
    RegraftError,
    StoppedBySystem,
    TargetLocked,
    WrongUsage,
)
from regraft.fleet import engine, manifest, results
from regraft.fleet.engine import Pool, Schedule, Task, TaskResult
from regraft.fleet.jobs import LibraryJob, ParseOptions
from regraft.fleet.results import Ending, FleetOrder, Journal, KnownRows, ResultRow
from regraft.fleet.status import FleetReport, Metrics, Tally, make_report
from regraft.language import join_list, to_english, tr
from regraft.report.document import Run
from regraft.report.progress import Progress, SilentProgress, stage
from regraft.text import LONGEST_NAME, join_command, one_line, path_argument

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


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fleet will do: the number of libraries that it changes."""

    libraries: int


#: Called with the row of each library that has ended.
Watch = Callable[[ResultRow], None]


class Fleet(msgspec.Struct, kw_only=True):
    """One run over a fleet. Single use."""

    order: FleetOrder  # the command and the libraries
    path: Path  # the file of the results
    pool: Callable[[], Pool]  # opens the pool; called only if a library is left
    parse: ParseOptions  # parses the options of a library
    attempts: int = 3  # for a library whose disk failed, or whose process was killed
    known: KnownRows = msgspec.field(default_factory=KnownRows)  # of libraries that ended in an earlier run
    metrics: Metrics | None = None  # updated during the run
    keep_going: bool = False  # go on when the first libraries are refused for the same reason
    only: tuple[Ending, ...] = ()  # which unsuccessful libraries are processed; empty: all
    dry_run: bool = False  # write no results; the options make the command of each library write nothing
    pause_seconds: float = 1.0  # the wait before a second attempt
    progress: Progress = msgspec.field(default_factory=SilentProgress)
    confirm: Callable[[FleetPlan], bool] = lambda _: True  # called before anything is changed; False stops the run
    _first: list[str | None] = msgspec.field(default_factory=list)  # codes of the first libraries that ended
    _watch: Watch = lambda _: None
    _tally: Tally = msgspec.field(default_factory=Tally)
    _journal: Journal | None = None
    _retried: set[str] = msgspec.field(default_factory=set)  # codes of errors after which a library was tried again
    _quiet: tuple[float, float] = (0.0, _QUIET_SECONDS)  # when a library last ended, and the seconds until a notice

    @property
    def left(self) -> list[int]:
        """The numbers in the manifest of the libraries that this run processes."""
        return unsuccessful_libraries(self.order, self.known, self.only)

    def run(self, run: Run, watch: Watch = lambda _: None) -> FleetReport:
        """Run the command on all libraries that are left, write the results, and report on all libraries.

        ``run`` is this run of regraft, for the report; ``watch`` is called with the row of each library that has ended.

        Interrupted: before there was anything to continue with. FleetInterrupted, FleetRefused: libraries that ended
        are in the journal. OSError: the results cannot be written, or no process can be started.
        """
        self._watch = watch
        try:
            with self.lock(), self.metrics.follow(self._tally) if self.metrics else nullcontext():
                self.work()
        except KeyboardInterrupt:
            # It may have been interrupted between the journal's end and the next line of this process.
            if self.dry_run or results.is_unused(results.journal_path(self.path)):
                raise Interrupted(finished=self._tally.good) from None
            raise FleetInterrupted(finished=self._tally.good, command=self.resume_command) from None
        except OSError as error:
            is_by_system = isinstance(error, StoppedBySystem) or not isinstance(error, RegraftError)
            if not is_by_system or self._journal is None or results.is_unused(results.journal_path(self.path)):
                raise
            names = [str(error.filename)] if error.filename else []
            reason = ": ".join([*names, error.strerror or str(error)])
            if isinstance(error, StoppedBySystem):
                reason = str(error.facts["reason"])
            raise StoppedBySystem(
                reason=tr("{reason}; continue with: {command}", reason=reason, command=self.resume_command)
            ) from error
        run.end()
        return self.report(run)

    def lock(self) -> AbstractContextManager[None]:
        """Return a context in which the results are locked against other processes; a dry run has none."""
        return nullcontext() if self.dry_run else results.lock_results(self.path)

    def report(self, run: Run) -> FleetReport:
        """Make the report on all libraries, for this run of regraft."""
        return make_report(FleetReport, run, self._tally, len(self.order.libraries))

    def work(self) -> None:
        """Run the libraries that are left, journal the rows of each, and write the results. Declined: by the user."""
        left, order = self.left, self.order
        is_change = order.form.changes and not self.parse(order.command, order.options).is_dry
        if is_change and not self.confirm(FleetPlan(libraries=len(left))):
            raise Declined(path=self.path)
        with self.open_run(left) as pool, stage(self.progress, "Libraries", len(left), "libraries"):
            for task, ended in self.run_jobs(pool, self.measure(left), self.make_job):
                self.progress.at(order.libraries[task.number].source)
                self.end_library(self.rows_of(task, ended))
        self.write_results()

    def write_results(self) -> None:
        """Write the results, once every library has some; until then the journal keeps them."""
        if self._journal is not None and len(self._journal.rows) == len(self.order.libraries):
            results.write_results(self.path, self.order, self._journal.rows)

    @contextmanager
    def open_run(self, left: list[int]) -> Iterator[Pool | None]:
        """Open the pool, and the journal with all rows of earlier runs; yield the pool, or None without libraries.

        ``left`` are the numbers of the libraries to process; the results of all others are counted now.
        """
        again = set(left)

        def known_rows() -> Iterator[list[ResultRow]]:
            """Yield the rows of each library that ended in an earlier run; count those that are not repeated."""
            for number, rows in self.known.items():
                if number not in again:
                    self._tally.add(rows)
                    self._tally.attempts += (attempts := rows[0].attempts or 1)
                    self._tally.retries += attempts - 1
                yield rows

        with ExitStack() as stack:
            # Runs last, when all processes have ended.
            stack.callback(scratch.remove_leftovers)
            # Before anything is written: the pool may be refused.
            pool = stack.enter_context(closing(self.pool())) if left else None
            if not self.dry_run:
                self._journal = stack.enter_context(closing(Journal(self.path, self.order, known_rows())))
            yield pool

    def make_job(self, number: int, cores: int = 1) -> LibraryJob:
        """Make the job of a library, given by its number, which gets a number of cores."""
        order, library = self.order, self.order.libraries[number]
        options = self.parse(order.command, (*order.options, *library.options))
        return LibraryJob(
            command=order.command,
            options=options,
            source=library.source,
            target=library.target,
            fleet=order.id,
            cores=cores,
        )

    def measure(self, numbers: list[int]) -> dict[int, int]:
        """Map the numbers of libraries to the sizes of their sources in bytes."""
        sizes = manifest.source_sizes(self.order.libraries[number] for number in numbers)
        return dict(zip(numbers, sizes, strict=True))

    def run_jobs(
        self, pool: Pool | None, sizes: Mapping[int, int], job: Callable[[int, int], Any], *, notes_starts: bool = True
    ) -> Iterator[tuple[Task, TaskResult]]:
        """Run a job for each library, and yield the task and the result of each when it ends.

        Args:
            pool: the processes; None without libraries.
            sizes: the size of each library in bytes, by its number.
            job: makes the job of a library by its number and the cores that it gets.
            notes_starts: whether the journal records when a job starts. Not for jobs after which further ones of
                the same library follow.
        """
        if pool is None or not sizes:
            return
        cores, libraries = pool.cores, self.order.libraries
        tasks, fair_share = [], sum(sizes.values()) / cores
        for number, size in sizes.items():
            # A library that is a large share of all gets several cores.
            has = min(cores, _MOST_CORES, math.ceil(size / fair_share)) if size >= _LARGE_BYTES else 1
            memory, name = engine.planned_memory(size, has), Path(libraries[number].source).name
            tasks.append(Task(number=number, job=job(number, has), name=name, bytes=size, cores=has, memory=memory))

        def note_start(task: Task, attempt: int) -> None:
            """Record that an attempt (1: the first) of a task has started."""
            if self._journal is not None and notes_starts:
                self._journal.note_start(task, attempt)
            self._tally.attempts += 1
            self._tally.retries += attempt > 1

        def flush() -> None:
            """Store what has ended: libraries that end together are flushed together."""
            if self._journal is not None:
                self._journal.flush()
            if self.metrics is not None:
                self.metrics.refresh()
            self.log_stall(schedule)

        schedule = Schedule(
            tasks,
            pool,
            attempts=self.attempts,
            is_retried=is_retried,
            pause_seconds=self.pause_seconds,
            on_start=note_start,
            on_retry=self.log_retry,
            on_poll=flush,
        )
        if self.metrics is not None:
            self.metrics.begin(schedule)
        for task, ended in schedule:
            self.progress.step(1, task.bytes)
            yield task, ended

    def log_retry(self, task: Task, ended: TaskResult) -> None:
        """Log why a task is tried again, after the result ``ended``, once for each kind of error.

        All libraries may wait for the same server.
        """
        if ended.error is None or ended.error.code in self._retried:
            return
        self._retried.add(ended.error.code)
        text = tr(
            "{name} is tried again ({code}: {message}); more libraries with this code are not named here",
            name=one_line(task.name, LONGEST_NAME),
            code=ended.error.code,
            message=one_line(ended.error.message, LONGEST_NAME),
        )
        logger.warning("%s", text)

    def log_stall(self, schedule: Schedule) -> None:
        """Log what is running if no library has ended for some minutes; the next line follows after twice as long."""
        now, (ended_at, quiet) = time.monotonic(), self._quiet
        if ended_at != schedule.ended_at:
            ended_at, quiet = schedule.ended_at, _QUIET_SECONDS
        is_stalled = now - ended_at >= quiet
        self._quiet = ended_at, quiet * (2 if is_stalled else 1)
        if not is_stalled:
            return
        named = []
        for one in sorted(schedule.running.values())[:_NAMED]:
            name = one_line(schedule.tasks[one.place].name, LONGEST_NAME)
            named.append(tr("{name} ({minutes} min)", name=name, minutes=int((now - one.at) // 60)))
        if len(schedule.running) > _NAMED:
            named.append(tr("{count:,} more", count=len(schedule.running) - _NAMED))
        text = tr(
            "no library has ended for {minutes} min; running: {named}; waiting: {waiting:,}",
            minutes=int((now - ended_at) // 60),
            named=join_list(named),
            waiting=len(schedule.waiting),
        )
        logger.warning("%s", text)

    def rows_of(self, task: Task, ended: TaskResult) -> list[ResultRow]:
        """Return the result rows of a library whose task ended with the result ``ended``."""
        return results.result_rows(self.order.libraries[task.number], task, self.order.command, ended)

    def end_library(self, rows: list[ResultRow]) -> None:
        """Record the rows of a library that has ended. FleetRefused: the first ones were refused for one reason."""
        # Results are English; some messages are those of this process.
        rows = [msgspec.structs.replace(row, message=to_english(row.message)) for row in rows]
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
        return join_command(["regraft", "fleet", "resume", path_argument(self.path)])


def unsuccessful_libraries(order: FleetOrder, known: KnownRows, only: Iterable[Ending] = ()) -> list[int]:
    """Return the numbers of the libraries of a fleet that have not succeeded, according to the ``known`` rows.

    With ``only``, those that ended in one of the given ways.
    """
    endings = {number: known.ending(number) for number in range(len(order.libraries))}
    wanted = set(only) or {"failed", "refused", "unfinished"}
    return [number for number, ending in endings.items() if ending in wanted]


def is_retried(ended: TaskResult) -> bool:
    """Whether another attempt may succeed after one with the result ``ended``.

    That is so if the system stopped it, or if a killed process still holds the lock.
    """
    code = None if ended.error is None else ended.error.code
    if ended.is_after_kill and code == TargetLocked.__name__:
        return True
    return ended.status == STOPPED and code not in _FINAL


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
