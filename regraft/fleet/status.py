"""The state of a fleet: counts of what has ended, reports and a page made from them, and metrics for Prometheus.

A running fleet is looked at from outside through its journal, which neither slows it down nor locks it out.
"""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import nlargest
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from regraft import __version__, identity
from regraft.disk import links, lock_files
from regraft.errors import REFUSED, STOPPED, WORTH_READING, RegraftError
from regraft.fleet import results
from regraft.fleet.engine import Schedule
from regraft.fleet.results import GOOD, LIMITED, OUTCOMES, KnownRows, ResultRow, counts_of
from regraft.language import current_language, format_count, tr, translate_text
from regraft.report.document import Report, Run
from regraft.report.html import render_page
from regraft.report.labels import label_of
from regraft.report.metrics_file import MetricsFile
from regraft.text import path_text

logger = logging.getLogger(__name__)

#: Libraries in each table of a page.
_MOST_ROWS = 1000
#: Columns of the tables of a page: their class, and their name.
_COLUMNS = (("wide", tr("library")), ("", label_of("outcome")), ("n", tr("seconds")), ("wide", tr("message")))
#: How many of the slowest libraries a report names.
SLOWEST = 5
#: Outcomes of failed bases, and how many of them a report names.
_FAILED_BASE, _MOST_BASES = ("failed", "stopped"), 1000
#: Upper bounds of the histogram's buckets, in seconds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 14_400.0)


class LibraryReport(msgspec.Struct, frozen=True, kw_only=True):
    """A library that a report names: one of the slowest, or a failed one."""

    source: str
    outcome: str
    seconds: float | None
    code: str | None = None
    message: str | None = None


class BaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """A failed base that a report names, with the source of its library."""

    source: str
    base: str
    name: str | None
    outcome: str
    code: str | None = None
    message: str | None = None


class Tally(msgspec.Struct, kw_only=True):
    """Counts of libraries that have ended, of their bases and their rows."""

    libraries: Counter[str] = msgspec.field(default_factory=Counter)  # by outcome, as bases
    bases: Counter[str] = msgspec.field(default_factory=Counter)
    findings: Counter[str] = msgspec.field(default_factory=Counter)  # by name
    skipped: Counter[str] = msgspec.field(default_factory=Counter)  # rows, by reason
    by_seconds: Counter[int] = msgspec.field(default_factory=Counter)  # libraries, by the index of their bucket
    rows_read: int = 0
    rows_carried: int = 0
    bytes: int = 0
    attempts: int = 0  # that were started, as retries
    retries: int = 0
    seconds: float = 0.0
    slowest: list[ResultRow] = []  # libraries, the slowest first
    failed: list[ResultRow] = []  # libraries
    failed_bases: list[ResultRow] = []  # the first ones

    def add(self, rows: list[ResultRow]) -> None:
        """Count a library that has ended; ``rows`` are its own row and those of its bases."""
        own, *bases = rows
        self.libraries[own.outcome] += 1
        self.bases.update(base.outcome for base in bases)
        self.findings.update(counts_of(own.findings))
        self.skipped.update(counts_of(own.skipped))
        self.rows_read += own.rows_read or 0
        self.rows_carried += own.rows_carried or 0
        self.bytes += own.bytes or 0
        seconds = own.seconds or 0.0
        self.seconds += seconds
        self.by_seconds[bisect_left(BUCKETS, seconds)] += 1
        # Of equally slow libraries, the first in the manifest come first.
        self.slowest = nlargest(SLOWEST, [*self.slowest, own], key=lambda row: (row.seconds or 0.0, -row.library))
        if own.outcome not in GOOD:
            self.failed.append(own)
        else:
            # Of a library that failed itself, its own reason is what counts.
            failed = [base for base in bases if base.outcome in _FAILED_BASE]
            self.failed_bases += failed[: _MOST_BASES - len(self.failed_bases)]

    @property
    def good(self) -> int:
        """The number of libraries that have succeeded."""
        return sum(self.libraries[outcome] for outcome in GOOD)


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


R = TypeVar("R", bound=FleetReport)


def make_report(kind: type[R], run: Run, tally: Tally, libraries: int, **more: Any) -> R:
    """Make the report of a fleet; failed libraries and bases are in the order of the manifest.

    Args:
        kind: the class of the report.
        run: the run of regraft that reports.
        tally: the counts of the libraries that have ended.
        libraries: the number of all libraries.
        more: the fields of a subclass.
    """

    def counts(by_outcome: Counter[str]) -> dict[str, int]:
        """Return the counts by outcome in sorted order, after their sum as ``all``."""
        return {"all": by_outcome.total(), **dict(sorted(by_outcome.items()))}

    failed, bases = (sorted(rows, key=lambda row: row.library) for rows in (tally.failed, tally.failed_bases))
    return kind(
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
        **more,
    )


def fleet_exit_status(report: FleetReport) -> int:
    """Return the exit status of a command on a fleet: that of its worst library."""
    outcomes = report.libraries.keys()
    if outcomes & {"killed", "interrupted", "stopped"}:
        return STOPPED
    if "refused" in outcomes:
        return REFUSED
    return WORTH_READING if report.left or outcomes & {"worth-reading", LIMITED} else 0


class RunningLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """A library that has started and not ended; ``since`` is the time of the attempt in ISO 8601."""

    source: str
    attempt: int
    since: str


class FleetStatus(FleetReport, kw_only=True):
    """The state of a fleet: ``running``, ``interrupted`` (``resume`` continues it), or ``finished``.

    ``command`` is what it runs. ``in_progress`` is also what an interrupted run was processing.
    """

    command: str
    state: Literal["running", "interrupted", "finished"]
    in_progress: list[RunningLibrary]


def read_status(path: Path) -> tuple[FleetStatus, KnownRows]:
    """Return the state of the fleet with the results at ``path``, and the rows of the libraries that have ended.

    Raises as :func:`~regraft.fleet.results.read_results` does.
    """
    # Asked first: a run that ends between both steps is reported as running, and never one that runs as interrupted.
    is_running = lock_files.is_lock_held(results.result_files(path).lock)
    order, known = results.read_results(path)
    state = "interrupted" if results.journal_path(path).is_file() else "finished"
    tally = Tally()
    for number in known:
        tally.add(known[number])
    run = Run(command="fleet status", source_kind=None, source=path)
    run.end()
    libraries = order.libraries
    in_progress = [
        RunningLibrary(source=libraries[number].source, attempt=line.attempt, since=line.at)
        for number, line in sorted(known.started.items())
        if 0 <= number < len(libraries)
    ]
    more = {"command": order.command, "state": "running" if is_running else state, "in_progress": in_progress}
    return make_report(FleetStatus, run, tally, len(libraries), **more), known


def status_page(status: FleetStatus, rows: KnownRows) -> str:
    """Render the state of a fleet, and the rows of the libraries that have ended, as an offline HTML page."""

    def cells(row: ResultRow | LibraryReport | BaseReport) -> tuple[str, ...]:
        """Format a library or a base as cells of a table."""
        name = f"{row.name or row.base} · {row.source}" if isinstance(row, BaseReport) else row.source
        seconds = getattr(row, "seconds", None)
        # Rows are English.
        message = translate_text(row.message or "", current_language()) or row.code or ""
        return name, label_of(row.outcome), "" if seconds is None else f"{seconds:,.1f}", message

    good = (rows[number][0] for number in rows if rows.ending(number) is None)
    counts = {label_of(name): f"{count:,}" for name, count in status.libraries.items() if name != "all"}
    if status.left:
        counts[tr("left")] = f"{status.left:,}"
    sections = [
        (tr("Failed libraries"), [*map(cells, status.failed[:_MOST_ROWS])]),
        (tr("Failed bases"), [*map(cells, status.failed_bases)]),
        (tr("In progress"), [(one.source, label_of("running"), "", one.since) for one in status.in_progress]),
        (tr("Libraries that ended well"), [*map(cells, islice(good, _MOST_ROWS))]),
    ]
    return render_page(
        "fleet.html",
        "fleet",
        title=tr("Fleet: {command}", command=status.command),
        lead=tr(
            "{state}: {libraries} with a result, {left:,} without.",
            state=label_of(status.state),
            libraries=format_count(status.libraries["all"], "library"),
            left=status.left,
        ),
        numbers=counts,
        findings=status.findings,
        columns=_COLUMNS,
        sections=[(heading, found) for heading, found in sections if found],
        most=_MOST_ROWS,
        run=status.head.run,
    )


# --- metrics ---------------------------------------------------------------------------------------------------------

#: Seconds between two updates while libraries are processed.
_UPDATE_SECONDS = 5.0


class Metrics(MetricsFile):
    """The metrics of one run. Nothing is written before :meth:`begin`.

    ``results``, the file of the results, is a label of every metric, which keeps two fleets of one machine apart;
    ``command`` and ``engine`` are labels of ``run_info``. WrongUsage: the library prometheus_client is not installed.
    """

    def __init__(self, path: Path, results: Path, *, command: str, engine: str, libraries: int) -> None:
        super().__init__(path, "fleet", {"results": path_text(links.real_path(results))})
        self._about = {"command": command, "engine": engine, "version": __version__}
        self._libraries = libraries
        self._started_at, self._written_at = identity.now_ms() / 1000, -math.inf
        self._tally = Tally()
        self._schedule: Schedule | None = None
        self._bytes, self._is_finished = 0, False
        #: Why the last update failed; None: it did not.
        self.problem: Exception | None = None

    @contextmanager
    def follow(self, tally: Tally) -> Iterator[None]:
        """Context in which the metrics are those of ``tally``; the file is written at the end.

        It is not written if an error came before :meth:`begin`.
        """
        self._tally = tally
        try:
            yield
            self._is_finished = True
        finally:
            if self._is_finished or self._schedule is not None:
                self._schedule, self._written_at = None, -math.inf
                self.refresh()

    def begin(self, schedule: Schedule) -> None:
        """Show the tasks of a schedule in the metrics from now on. OSError, RegraftError: the first write failed."""
        is_first, self._schedule = self._schedule is None, schedule
        self._bytes = self._tally.bytes + sum(task.bytes for task in schedule.tasks)
        if is_first:
            self._written_at = time.monotonic()
            self.write()

    def refresh(self) -> None:
        """Write the file of metrics if the last update is old enough; a failure is logged, not raised."""
        if time.monotonic() - self._written_at < _UPDATE_SECONDS:
            return
        self._written_at = time.monotonic()
        try:
            self.write()
            self.problem = None
        except (OSError, RegraftError, ValueError, OverflowError) as error:
            if self.problem is None:
                logger.warning("metrics could not be written: %s", error)
            self.problem = error

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called by ``prometheus_client``."""
        tally, schedule = self._tally, self._schedule
        ended = tally.libraries.total()
        at_work, workers = (len(schedule.running), schedule.pool.cores) if schedule else (0, 0)
        bytes_left = max(self._bytes - tally.bytes, 0)
        about = "The command and the engine of the fleet."
        yield self.family("Gauge", "run_info", about, tuple(self._about), {tuple(self._about.values()): 1})
        outcomes = dict.fromkeys(OUTCOMES.values(), 0) | tally.libraries
        # The values of the last ones by a label.
        metrics: tuple[tuple[Any, ...], ...] = (
            ("Gauge", "start_timestamp_seconds", "When this run began.", self._started_at),
            ("Gauge", "update_timestamp_seconds", "When this file was written.", identity.now_ms() / 1000),
            ("Gauge", "finished", "1: the results are written; 0: they are not yet.", self._is_finished),
            ("Gauge", "libraries", "Libraries of the manifest.", self._libraries),
            ("Gauge", "libraries_left", "Libraries that have not ended.", self._libraries - ended),
            ("Gauge", "libraries_at_work", "Libraries that are being processed.", at_work),
            ("Gauge", "workers", "The most libraries that are processed at a time.", workers),
            ("Gauge", "source_left_bytes", "Source bytes of libraries that have not ended.", bytes_left),
            ("Counter", "source_bytes", "Source bytes of the libraries that ended.", tally.bytes),
            ("Counter", "attempts", "Attempts to process a library.", tally.attempts),
            ("Counter", "retries", "Attempts after a failed one.", tally.retries),
            ("Counter", "rows_read", "Rows read in the libraries that ended.", tally.rows_read),
            ("Counter", "rows_carried", "Rows of these libraries that were migrated.", tally.rows_carried),
            ("Counter", "libraries_ended", "Libraries that ended.", outcomes, "outcome"),
            ("Counter", "bases", "Bases of the libraries that ended.", tally.bases, "outcome"),
            ("Counter", "rows_skipped", "Rows that were not migrated, by reason.", tally.skipped, "reason"),
            ("Counter", "findings", "Findings in the libraries that ended.", tally.findings, "finding"),
        )
        for kind, name, about, value, *label in metrics:
            by_label: dict[tuple[str, ...], float] = (
                {(key,): count for key, count in value.items()} if label else {(): value}
            )
            yield self.family(kind, name, about, tuple(label), by_label)
        seconds = self.family("Histogram", "library_seconds", "Seconds that the last attempt of each library took.")
        so_far = accumulate(tally.by_seconds[place] for place in range(len(BUCKETS) + 1))
        buckets = list(zip((*map(str, BUCKETS), "+Inf"), so_far, strict=True))
        seconds.add_metric(list(self._labels.values()), buckets, round(tally.seconds, 3))
        yield seconds
