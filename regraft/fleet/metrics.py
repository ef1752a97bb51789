"""The state of a fleet as metrics of Prometheus, in a file that node_exporter's textfile collector reads
(``docs/fleet.md``, "Metrics")."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from heapq import nlargest
from pathlib import Path
from typing import Any

import msgspec

from regraft import __version__, errors, identity
from regraft.disk import durable, links, writable
from regraft.errors import RegraftError, WrongUsage
from regraft.fleet.engine import PendingTask, Pool, PoolObserver, Task
from regraft.fleet.results import GOOD, OUTCOMES, ResultRow, counts_of
from regraft.language import tr
from regraft.text import path_text

# What became of the libraries of a fleet so far, in numbers that take the same memory however many there are.


#: So many libraries are named as the slowest.
SLOWEST = 5
#: Seconds up to which libraries are counted together, as Prometheus does; beyond the last there are no bounds.
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 3_600.0, 14_400.0)


class LibraryReport(msgspec.Struct, frozen=True, kw_only=True):
    """A library that is named in a report: a slow one, or one that did not end well."""

    source: str
    outcome: str
    seconds: float | None
    code: str | None = None
    message: str | None = None


class Tally(msgspec.Struct, kw_only=True):
    """Counts of libraries that ended, of their bases and of their rows.

    ``libraries`` and ``bases`` are by outcome, ``skipped`` are rows by reason, ``findings`` by name, ``by_seconds``
    libraries by the place of their bucket in :data:`BUCKETS`. Of libraries that did not end well, each is kept.
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

    def add(self, rows: list[ResultRow]) -> None:
        """Count a library that ended, by its own row and those of its bases."""
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
        self._name(own)

    def _name(self, own: ResultRow) -> None:
        """Keep what a report may have to say of a library."""
        told = LibraryReport(
            source=own.source, outcome=own.outcome, seconds=own.seconds, code=own.code, message=own.message
        )
        # Of equal ones those come first that the manifest names first.
        slow = (own.seconds or 0.0, -own.library, told)
        self._slowest = nlargest(SLOWEST, [*self._slowest, slow], key=lambda one: one[:2])
        if own.outcome not in GOOD:
            self._failed.append((own.library, told))

    @property
    def slowest(self) -> list[LibraryReport]:
        """Return the slowest libraries, the slowest first."""
        return [told for *_, told in self._slowest]

    @property
    def failed(self) -> list[LibraryReport]:
        """Return the libraries that did not end well, in the order of the manifest."""
        return [told for _, told in sorted(self._failed, key=lambda one: one[0])]

    @property
    def good(self) -> int:
        """Return how many libraries ended well."""
        return sum(self.libraries[outcome] for outcome in GOOD)


logger = logging.getLogger(__name__)

#: What each metric's name begins with.
PREFIX = "regraft_fleet_"
#: The first line of every file: by it an earlier one is known, which may be replaced.
_MARK = b"# Written by regraft fleet.\n"
#: How long a file stays as it is while libraries are worked on, in seconds.
_EVERY_SECONDS = 5.0


def metrics_files(path: Path) -> tuple[Path, Path]:
    """Return the files that metrics take: their own, and the one that is renamed to it."""
    return path, path.with_name(f"{path.name}.new")


class Metrics:
    """The metrics of one run. Nothing is written before :meth:`begin` or :meth:`end`.

    Args:
        path: the file.
        results: the file of the fleet's results, a label of every metric: two fleets of one machine do not mix.
        command, engine: what each library is given to, and where: labels of ``run_info``.
        libraries: how many the manifest has.
        now: gives seconds that only go forward.

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
        self._path = path
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
        #: Why the file could not be written the last time; None: it was.
        self.problem: Exception | None = None

    # --- what happens ------------------------------------------------------------------------------------------------

    def demand_place(self, others: Iterable[Path]) -> None:
        """Refuse a file in no folder, one that regraft did not write, and one of ``others``.

        Raises:
            WrongUsage
            OSError: it cannot be read.
        """
        if not self._path.absolute().parent.is_dir():
            raise WrongUsage(
                problem=tr("{path} lies in no folder that is there", path=self._path),
                hint=tr("make the folder, or name another"),
            )
        taken = set(map(links.real_path, others))
        for path in metrics_files(self._path):
            real = links.real_path(path)
            if real in taken or not taken.isdisjoint(real.parents):
                problem = tr("the metrics {path} would be written over the results", path=path)
                raise WrongUsage(problem=problem, hint=tr("name another file"))
            if not _is_replaceable(path):
                problem = tr("{path} is there already, and no metrics of a fleet", path=path)
                raise WrongUsage(problem=problem, hint=tr("name another file"))

    @contextmanager
    def kept(self, tally: Tally) -> Iterator[None]:
        """Write the state of ``tally`` while libraries are worked on, and in the end, whatever ends it.

        Nothing is written where nothing was begun and an error ends it.
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
        """Write the state, and return who follows the pool. Some fleets give out tasks more than once.

        Raises:
            OSError, RegraftError: it cannot be written, the first time.
        """
        self._bytes = self._tally.bytes + sum(task.bytes for task in tasks)
        self._pool = pool
        if self._written_at is None:
            self._attempts = self._tally.attempts
            self._retries = self._attempts - self._tally.libraries.total()
            self._write()
        else:
            self._try_to_write()
        return PoolObserver(given=self._given, looked=self.refresh)

    def _given(self, one: PendingTask) -> None:
        """Count an attempt."""
        self._attempts += 1
        self._retries += one.attempt > 1

    def refresh(self) -> None:
        """Write the state, if some time has passed."""
        if self._written_at is None or self._now() - self._written_at >= _EVERY_SECONDS:
            self._try_to_write()

    # --- the file ----------------------------------------------------------------------------------------------------

    def _try_to_write(self) -> None:
        """Write the state; where that fails the libraries are more important."""
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
        text: bytes = self._client.generate_latest(self._registry)
        path, new = metrics_files(self._path)
        with writable.allow_writes(path.parent, entries_only=True):
            durable.write_text_atomically(path, (_MARK + text).decode(), new)

    # --- the metrics -------------------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Any]:
        """Yield all metrics, as ``prometheus_client`` asks for them."""
        yield from self._about_run()
        yield from self._about_libraries()
        tally = self._tally
        yield self._counts("bases", "Bases of the libraries that ended.", "outcome", tally.bases)
        yield self._count("rows_read", "Rows that were read in the libraries that ended.", tally.rows_read)
        yield self._count("rows_carried", "Rows of those that stand in the targets.", tally.rows_carried)
        yield self._counts("rows_skipped", "Rows of those that were not carried.", "reason", tally.skipped)
        yield self._counts("findings", "Findings in the libraries that ended.", "finding", tally.findings)

    def _about_run(self) -> Iterator[Any]:
        yield self._gauge("run_info", "What the fleet is told to do.", 1, self._about)
        yield self._gauge("start_timestamp_seconds", "When this run began.", self._started_at)
        yield self._gauge("update_timestamp_seconds", "When this file was written.", identity.now_ms() / 1000)
        yield self._gauge("finished", "1: the results are written; 0: they are not yet.", self._is_finished)

    def _about_libraries(self) -> Iterator[Any]:
        tally, pool = self._tally, self._pool
        ended = tally.libraries.total()
        outcomes = dict.fromkeys(OUTCOMES.values(), 0) | tally.libraries
        yield self._gauge("libraries", "Libraries of the manifest.", self._libraries)
        yield self._counts("libraries_ended", "Libraries that ended.", "outcome", outcomes)
        yield self._gauge("libraries_left", "Libraries that have not ended.", self._libraries - ended)
        yield self._gauge("libraries_at_work", "Libraries that are worked on.", len(pool.at_work) if pool else 0)
        yield self._gauge("workers", "How many libraries are worked on at most.", pool.count if pool else 0)
        yield self._count("source_bytes", "Bytes of the sources of the libraries that ended.", tally.bytes)
        left = max(self._bytes - tally.bytes, 0)
        yield self._gauge("source_left_bytes", "Bytes of the sources of the libraries that have not ended.", left)
        attempts = max(self._attempts, tally.attempts)
        retries = max(self._retries, tally.attempts - ended)
        yield self._count("attempts", "How often work on a library was begun.", attempts)
        yield self._count("retries", "How often of those it was begun again after it failed.", retries)
        yield self._histogram("library_seconds", "Seconds that the last attempt of each library took.")

    def _gauge(self, name: str, about: str, value: float, labels: dict[str, str] | None = None) -> Any:
        every = {**self._labels, **(labels or {})}
        family = self._client.core.GaugeMetricFamily(PREFIX + name, about, labels=list(every))
        family.add_metric(list(every.values()), value)
        return family

    def _count(self, name: str, about: str, value: int) -> Any:
        family = self._client.core.CounterMetricFamily(PREFIX + name, about, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counts(self, name: str, about: str, label: str, values: dict[str, int]) -> Any:
        family = self._client.core.CounterMetricFamily(PREFIX + name, about, labels=[*self._labels, label])
        for key, value in sorted(values.items()):
            family.add_metric([*self._labels.values(), key], value)
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


def _is_replaceable(path: Path) -> bool:
    """Tell whether nothing is lost where a file is replaced: it is not there, is empty, or an earlier run wrote it."""
    if not os.path.lexists(path):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    with links.open_for_reading(path) as file:
        return file.read(len(_MARK)) in (b"", _MARK)
