"""What became of the libraries of a fleet so far, in numbers that take the same memory however many there are."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest

import msgspec

from regraft.fleet.results import GOOD, Row, counts_of

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

    def add(self, rows: list[Row]) -> None:
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

    def _name(self, own: Row) -> None:
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
