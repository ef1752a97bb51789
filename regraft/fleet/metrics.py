"""The state of a fleet as Prometheus metrics, in a file for node_exporter's textfile collector (``docs/fleet.md``).

:class:`Tally` counts the libraries that have ended; reports are made from it as well. Its memory does not grow with
their number, except for failed libraries.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import Any

import msgspec

from regraft import __version__, errors, identity
from regraft.disk import durable, links, writable
from regraft.errors import RegraftError, WrongUsage
from regraft.fleet.engine import PendingTask, Pool, PoolObserver, Task
from regraft.fleet.results import GOOD, OUTCOMES, ResultRow, counts_of, demand_folder
from regraft.language import tr
from regraft.text import path_text

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
    """Counts of libraries that have ended, of their bases and their rows.

    ``libraries`` and ``bases`` are counted by outcome, ``skipped`` rows by reason, ``findings`` by name, and
    ``by_seconds`` has libraries by the index of their bucket in :data:`BUCKETS`.
    """

    libraries: Counter[str] = msgspec.field(default_factory=Counter)
    bases: Counter[str] = msgspec.field(default_factory=Counter)
    findings: Counter[str] = msgspec.field(default_factory=Counter)
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    by_seconds: Counter[int] = msgspec.field(default_factory=Counter)
    rows_read: int = 0
    rows_carried: int = 0
    bytes: int = 0
    attempts: int = 0
    seconds: float = 0.0
    _slowest: list[tuple[float, int, LibraryReport]] = []
    _failed: list[tuple[int, LibraryReport]] = []
    _failed_bases: list[tuple[int, BaseReport]] = []

    def add(self, rows: list[ResultRow]) -> None:
        """Count a library that has ended, by its own row and those of its bases."""
        own, *bases = rows
        self.libraries[own.outcome] += 1
        self.bases.update(base.outcome for base in bases)
        self.findings.update(counts_of(own.findings))
        self.skipped.update(counts_of(own.skipped))
        self.rows_read += own.rows_read or 0
        self.rows_carried += own.rows_carried or 0
        self.bytes += own.bytes or 0
        self.attempts += own.attempts or 0
        seconds = own.seconds or 0.0
        self.seconds += seconds
        self.by_seconds[next((place for place, bound in enumerate(BUCKETS) if seconds <= bound), len(BUCKETS))] += 1
        self._remember(own, bases)

    def _remember(self, own: ResultRow, bases: list[ResultRow]) -> None:
        """Keep what a report may say about a library and its bases."""
        report = msgspec.convert(own, LibraryReport, from_attributes=True)
        # Of equally slow libraries, the first in the manifest come first.
        slow = (own.seconds or 0.0, -own.library, report)
        self._slowest = nlargest(SLOWEST, [*self._slowest, slow], key=lambda one: one[:2])
        if own.outcome not in GOOD:
            self._failed.append((own.library, report))
        # Of a library that failed itself, its own reason is what counts.
        for base in bases if own.outcome in GOOD else ():
            if base.outcome in _FAILED_BASE and len(self._failed_bases) < _MOST_BASES:
                self._failed_bases.append((base.library, msgspec.convert(base, BaseReport, from_attributes=True)))

    @property
    def slowest(self) -> list[LibraryReport]:
        """The slowest libraries, the slowest first."""
        return [report for *_, report in self._slowest]

    @property
    def failed(self) -> list[LibraryReport]:
        """The libraries that have failed, in the order of the manifest."""
        return [report for _, report in sorted(self._failed, key=lambda one: one[0])]

    @property
    def failed_bases(self) -> list[BaseReport]:
        """The first bases that have failed, in the order of the manifest."""
        return [report for _, report in sorted(self._failed_bases, key=lambda one: one[0])]

    @property
    def good(self) -> int:
        """The number of libraries that have succeeded."""
        return sum(self.libraries[outcome] for outcome in GOOD)


logger = logging.getLogger(__name__)

#: The prefix of all metric names.
PREFIX = "regraft_fleet_"
#: The first line of the file; a file without it is not overwritten.
_MARK = b"# Written by regraft fleet.\n"
#: Seconds between two updates while libraries are processed.
_UPDATE_SECONDS = 5.0


def metrics_files(path: Path) -> tuple[Path, Path]:
    """Return the metrics file, and the temporary file that replaces it."""
    return path, path.with_name(f"{path.name}.new")


class Metrics:
    """The metrics of one run. Nothing is written before :meth:`begin`.

    Args:
        path: the file.
        results: the file of the results; a label of every metric, which keeps two fleets of one machine apart.
        command, engine: labels of ``run_info``.
        libraries: the number of libraries in the manifest.
        now: returns a monotonic time in seconds.

    Raises:
        WrongUsage: the library prometheus_client is not installed.
    """

    def __init__(
        self,
        path: Path,
        results: Path,
        *,
        command: str,
        engine: str,
        libraries: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = errors.import_optional("prometheus_client", tr("metrics"), "metrics")
        errors.import_optional("prometheus_client.core", tr("metrics"), "metrics")
        self.path = path
        self._labels = {"results": path_text(links.real_path(results))}
        self._about = {"command": command, "engine": engine, "version": __version__}
        self._libraries = libraries
        self._now = now
        self._started_at = identity.now_ms() / 1000
        self._written_at: float | None = None
        self._tally = Tally()
        self._pool: Pool | None = None
        self._bytes = 0
        self._attempts = 0
        self._retries = 0
        self._is_finished = False
        self._registry = self._client.CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        #: Why the last update failed; None: it did not.
        self.problem: Exception | None = None

    # --- what happens ------------------------------------------------------------------------------------------------

    def demand_path(self, others: Iterable[Path]) -> None:
        """Check that the file's folder exists, that the file differs from ``others``, and that it is ours if it exists.

        Raises:
            WrongUsage: a check failed.
            OSError: the file cannot be read.
        """
        demand_folder(self.path)
        taken = set(map(links.real_path, others))
        for path in metrics_files(self.path):
            real = links.real_path(path)
            if real in taken or not taken.isdisjoint(real.parents):
                problem = tr("the metrics file {path} would overwrite the results", path=path)
                raise WrongUsage(problem=problem, hint=tr("use another file"))
            if not is_overwritable(path):
                problem = tr("{path} exists and is not a metrics file of a fleet", path=path)
                raise WrongUsage(problem=problem, hint=tr("use another file"))

    @contextmanager
    def kept(self, tally: Tally) -> Iterator[None]:
        """Context in which the file follows ``tally``; it is written once more at the end.

        If an error ends it before :meth:`begin`, nothing is written.
        """
        self._tally = tally
        try:
            yield
            self._is_finished = True
        finally:
            if self._is_finished or self._written_at is not None:
                self._pool = None
                self._try_to_write()

    def begin(self, tasks: Sequence[Task], pool: Pool) -> PoolObserver:
        """Write the metrics file, and return an observer for the pool. Called for each round of tasks.

        Raises:
            OSError, RegraftError: the first write failed.
        """
        self._bytes = self._tally.bytes + sum(task.bytes for task in tasks)
        self._pool = pool
        if self._written_at is None:
            self._attempts = self._tally.attempts
            self._retries = self._attempts - self._tally.libraries.total()
            self._write()
        else:
            self._try_to_write()
        return PoolObserver(on_start=self._count_attempt, on_poll=self.refresh)

    def _count_attempt(self, _: Task, one: PendingTask) -> None:
        self._attempts += 1
        self._retries += one.attempt > 1

    def refresh(self) -> None:
        """Write the file if the last update is old enough."""
        if self._written_at is None or self._now() - self._written_at >= _UPDATE_SECONDS:
            self._try_to_write()

    # --- the file ----------------------------------------------------------------------------------------------------

    def _try_to_write(self) -> None:
        """Write the file; a failure is logged, since the libraries matter more."""
        try:
            self._write()
        except (OSError, RegraftError, ValueError, OverflowError) as error:
            if self.problem is None:
                logger.warning("metrics could not be written: %s", error)
            self.problem = error
        else:
            self.problem = None

    def _write(self) -> None:
        self._written_at = self._now()
        _write_file(self.path, _MARK + self._client.generate_latest(self._registry))

    # --- the metrics -------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called by ``prometheus_client``."""
        tally, pool = self._tally, self._pool
        ended = tally.libraries.total()
        outcomes = dict.fromkeys(OUTCOMES.values(), 0) | tally.libraries
        about = self._client.core.GaugeMetricFamily(
            f"{PREFIX}run_info", "The command and the engine of the fleet.", labels=[*self._labels, *self._about]
        )
        about.add_metric([*self._labels.values(), *self._about.values()], 1)
        yield about
        gauge, count = partial(self._family, "Gauge"), partial(self._family, "Counter")
        yield gauge("start_timestamp_seconds", "When this run began.", self._started_at)
        yield gauge("update_timestamp_seconds", "When this file was written.", identity.now_ms() / 1000)
        yield gauge("finished", "1: the results are written; 0: they are not yet.", self._is_finished)
        yield gauge("libraries", "Libraries of the manifest.", self._libraries)
        yield count("libraries_ended", "Libraries that ended.", outcomes, "outcome")
        yield gauge("libraries_left", "Libraries that have not ended.", self._libraries - ended)
        yield gauge("libraries_at_work", "Libraries that are being processed.", len(pool.running) if pool else 0)
        yield gauge("workers", "The most libraries that are processed at a time.", pool.count if pool else 0)
        yield count("source_bytes", "Bytes of the sources of the libraries that ended.", tally.bytes)
        left = max(self._bytes - tally.bytes, 0)
        yield gauge("source_left_bytes", "Bytes of the sources of the libraries that have not ended.", left)
        yield count("attempts", "Attempts to process a library.", max(self._attempts, tally.attempts))
        yield count("retries", "Attempts after a failed one.", max(self._retries, tally.attempts - ended))
        yield self._histogram("library_seconds", "Seconds that the last attempt of each library took.")
        yield count("bases", "Bases of the libraries that ended.", tally.bases, "outcome")
        yield count("rows_read", "Rows read in the libraries that ended.", tally.rows_read)
        yield count("rows_carried", "Rows of these libraries that were migrated.", tally.rows_carried)
        yield count(
            "rows_skipped", "Rows of these libraries that were not migrated, by reason.", tally.skipped, "reason"
        )
        yield count("findings", "Findings in the libraries that ended.", tally.findings, "finding")

    def _family(self, kind: str, name: str, about: str, value: float | dict[str, int], label: str | None = None) -> Any:
        """Make a metric of a value, or of a value for each value of a label."""
        labels = [*self._labels, *([label] if label else [])]
        family = getattr(self._client.core, f"{kind}MetricFamily")(PREFIX + name, about, labels=labels)
        for key, number in sorted(value.items()) if isinstance(value, dict) else [(None, value)]:
            family.add_metric([*self._labels.values(), *([] if key is None else [key])], number)
        return family

    def _histogram(self, name: str, about: str) -> Any:
        family = self._client.core.HistogramMetricFamily(PREFIX + name, about, labels=list(self._labels))
        counts, so_far = self._tally.by_seconds, 0
        buckets = []
        for place, bound in enumerate((*map(str, BUCKETS), "+Inf")):
            so_far += counts[place]
            buckets.append((bound, so_far))
        family.add_metric(list(self._labels.values()), buckets, round(self._tally.seconds, 3))
        return family


class MetricsFile:
    """A metrics file that a command writes once, at its end.

    Args:
        path: the file.
        command: the command; its metrics are called ``regraft_COMMAND_…``.
        labels: labels of every metric.

    Raises:
        WrongUsage: the library prometheus_client is not installed.
    """

    def __init__(self, path: Path, command: str, labels: dict[str, str]) -> None:
        self._client = errors.import_optional("prometheus_client", tr("metrics"), "metrics")
        errors.import_optional("prometheus_client.core", tr("metrics"), "metrics")
        self._path = path
        self._prefix = f"regraft_{command}_"
        self._mark = f"# Written by regraft {command}.\n".encode()
        self._labels = labels
        self._families: list[Any] = []

    def demand_path(self) -> None:
        """Check that the file's folder exists, and that the file is ours if it exists.

        Raises:
            WrongUsage: a check failed.
            OSError: the file cannot be read.
        """
        demand_folder(self._path)
        for path in metrics_files(self._path):
            if not is_overwritable(path, self._mark):
                problem = tr("{path} exists and is not a metrics file of this command", path=path)
                raise WrongUsage(problem=problem, hint=tr("use another file"))

    def add(self, name: str, about: str, value: float) -> None:
        """Add a gauge."""
        self.add_labelled(name, about, (), {(): value})

    def add_labelled(
        self, name: str, about: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
    ) -> None:
        """Add a gauge with further labels; ``values`` are its values by those of the labels."""
        family = self._client.core.GaugeMetricFamily(self._prefix + name, about, labels=[*self._labels, *labels])
        for words, value in sorted(values.items()):
            family.add_metric([*self._labels.values(), *words], value)
        self._families.append(family)

    def collect(self) -> Iterator[Any]:
        """Yield all metrics; called by ``prometheus_client``."""
        yield from self._families

    def write(self) -> None:
        """Write the file in one step.

        Raises:
            OSError, RegraftError: it cannot be written.
        """
        registry = self._client.CollectorRegistry(auto_describe=False)
        registry.register(self)
        _write_file(self._path, self._mark + self._client.generate_latest(registry))


def _write_file(metrics: Path, text: bytes) -> None:
    """Write a metrics file in one step.

    Raises:
        OSError, RegraftError: it cannot be written.
    """
    path, new = metrics_files(metrics)
    with writable.allow_writes(path.parent, entries_only=True):
        durable.write_text_atomically(path, text.decode(), new)


def is_overwritable(path: Path, mark: bytes = _MARK) -> bool:
    """Whether a file does not exist, is empty, or is a metrics file of an earlier run; ``mark`` is its first line."""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    with links.open_for_reading(path) as file:
        return file.read(len(mark)) in (b"", mark)
