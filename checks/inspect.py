"""Report of ``regraft inspect``: what a store is, what it contains, and whether it looks healthy.

Each system fills in these structures. Fields that a system does not have stay ``UNSET`` and are left out of the JSON
output.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft import identity
from regraft.kinds import SYSTEMS, Kind
from regraft.language import format_count, join_list, tr
from regraft.report.document import Report
from regraft.report.labels import format_labeled_count, label_of
from regraft.report.progress import Progress, SilentProgress
from regraft.stores.systems import system_of
from regraft.text import (
    LONGEST_NAME,
    format_bytes,
    join_command,
    one_line,
    pad_left,
    pad_right,
    path_argument,
    printable,
    printable_lines,
)

#: Characters of an item's name in a list. The name of a note is its first line.
_LONGEST_ITEM = 60


class VectorFileSummary(Struct, frozen=True, kw_only=True):
    """A vector file of v1 or of a preview build; ``lengths`` counts its vectors by dimensions."""

    rows: int
    loaders: int
    dimensions: int | None
    lengths: dict[str, int]
    text_bytes: int
    bytes: int

    def lines(self, *, verbose: bool) -> Iterator[str]:  # noqa: ARG002 - one line is all
        """Yield the text output's line about this vector file; ``verbose`` adds nothing."""
        rows = format_count(self.rows, "row")
        yield f"  {_format_vector_line(rows, self.dimensions, self.bytes)}"


class IndexSummary(Struct, frozen=True, kw_only=True):
    """A v2 index file; ``stale`` counts materials without an item, None if no catalog is known."""

    #: As stored, of any type.
    schema_version: Any
    base_id: Any
    materials: int
    units: int
    embeddings: int
    dimensions: int | None
    bodies: int
    missing: int
    #: Bodies whose vector does not have the dimensions of the base.
    wrong_length: int
    orphan_embeddings: int
    orphan_contents: int
    orphan_bodies: int
    coverage: float | None
    orphans: int
    stale: int | None
    bytes: int

    def lines(self, *, verbose: bool) -> Iterator[str]:
        """Yield the text output's lines about this index.

        The coverage by vectors, orphans and stale materials are shown with ``verbose``, or if vectors are missing.
        """
        materials, units = format_count(self.materials, "material"), format_count(self.units, "unit")
        parts = join_list((materials, units, format_count(self.embeddings, "embedding")))
        yield f"  {_format_vector_line(parts, self.dimensions, self.bytes)}"
        if self.coverage == 1 and not verbose:
            return
        if self.coverage is not None:
            yield f"  {pad_right(label_of('coverage'), 11)} {self.coverage:.2%}"
        yield f"  {pad_right(label_of('orphans'), 11)} {self.orphans}"
        if self.stale is not None:
            yield f"  {pad_right(label_of('stale'), 11)} {self.stale}"


class MaterialSummary(Struct, frozen=True, kw_only=True):
    """A material of an index; ``utf16_units`` is the end of its last unit."""

    id: str
    path: str
    source: str | None
    units: int
    utf16_units: int

    def line(self) -> str:
        """Return the text output's line about this material."""
        name = self.path
        # The path of a folder's file can be its own id; the user knows it by its source.
        if self.path == self.id and self.source:
            name = self.source
        return f"    {pad_left(format_count(self.units, 'unit'), 10)}  {one_line(name)}"


class ItemSummary(Struct, frozen=True, kw_only=True):
    """An item in the list of a base; ``units`` counts its units in the index, if known.

    Values from a catalog can be of any type. ``folder`` is the id of the containing folder item.
    """

    id: Any
    name: str
    type: Any
    status: Any = UNSET
    error: Any = UNSET
    folder: Any = UNSET
    units: int | UnsetType | None = UNSET

    def line(self) -> str:
        """Return the text output's line about this item."""
        parts = [pad_right(label_of(self.type), 9)]
        if self.status is not UNSET:
            parts.append(pad_right("" if self.status is None else label_of(self.status), 11))
        if self.units is not UNSET:
            units = "" if self.units is None else format_count(self.units, "unit")
            parts.append(pad_left(units, 10) + " ")
        name = one_line(self.name, _LONGEST_ITEM)
        if self.error:
            name = _with_reason(name, one_line(str(self.error), LONGEST_NAME))
        inside = "" if self.folder in (UNSET, None) else "  "
        return f"    {' '.join(parts)} {inside}{name}"


class BaseSummary(Struct, frozen=True, kw_only=True):
    """A base, or a part of a store of another system. Values from a catalog can be of any type."""

    id: Any
    name: Any
    status: Any = UNSET
    error: Any = UNSET
    model: Any = UNSET
    items: dict[str, int] | UnsetType = UNSET
    item_list: list[ItemSummary] | UnsetType = UNSET
    store: VectorFileSummary | IndexSummary | UnsetType | None
    problem: str | None
    materials: list[MaterialSummary] | UnsetType = UNSET

    def lines(self, *, verbose: bool) -> Iterator[str]:
        """Yield the text output's lines about this base; ``verbose`` shows more about its index."""
        yield format_base_heading(self.id, self.name)
        if self.status:
            yield tr("  status      {status}", status=_with_reason(label_of(self.status), self.error))
        if self.model:
            yield tr("  model       {model}", model=self.model)
        if self.items:
            yield tr(
                "  items       {items}",
                items=join_list(format_labeled_count(count, name) for name, count in self.items.items()),
            )
        yield from map(ItemSummary.line, self.item_list or ())
        if self.store:
            yield from self.store.lines(verbose=verbose)
        yield from map(MaterialSummary.line, self.materials or ())
        if self.problem:
            yield tr("  problem     {problem}", problem=self.problem)
        yield ""


class HealthSummary(Struct, frozen=True, kw_only=True):
    """Health of the whole store; None if unknown or not applicable."""

    coverage: float | None = None
    orphans: int | None = None
    stale: int | None = None
    bytes: int
    problems: list[str]
    notes: list[str] | UnsetType = UNSET

    def lines(self) -> Iterator[str]:
        """Yield additional lines of text output about the whole store; systems override this."""
        yield from ()


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``inspect``: whether to list items, and the time in ms to which ages are relative."""

    items: bool = False
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    progress: Progress = msgspec.field(default_factory=SilentProgress)


class StoreSummary(msgspec.Struct, frozen=True):
    """Result of ``inspect`` for one store."""

    bases: list[BaseSummary]
    health: HealthSummary


def format_base_heading(base_id: object, name: object) -> str:
    """Return the first line of the text output about a base: its name and id."""
    return f"{one_line(str(name), LONGEST_NAME)}  ({printable(base_id, LONGEST_NAME)})"


def _format_vector_line(parts: str, dimensions: int | None, size: int) -> str:
    """Return the text output's line about the vectors of a base.

    Args:
        parts: the counts of rows or units, as text.
        dimensions: the dimensions of the vectors, if they have the same.
        size: the size of the file in bytes.
    """
    if dimensions:
        parts = tr("{parts} × {dimensions} dimensions", parts=parts, dimensions=dimensions)
    return tr("vectors     {parts}, {size}", parts=parts, size=format_bytes(size))


def _with_reason(text: object, reason: object) -> str:
    """Append a reason to a text, after a colon; without a reason, return the text alone."""
    return tr("{what}: {why}", what=text, why=reason) if reason else str(text)


def describe_problems(bases: Iterable[BaseSummary]) -> list[str]:
    """Return the problem of each base that has one, preceded by the name of the base."""
    return [_with_reason(base.name, base.problem) for base in bases if base.problem]


def total_bytes(bases: Iterable[BaseSummary]) -> int:
    """Add up the sizes of the vector files and index files of bases, in bytes."""
    return sum(base.store.bytes for base in bases if base.store)


def count_by_dimensions(lengths: dict[int, int]) -> dict[str, int]:
    """Convert counts of vectors by length in bytes to counts by dimensions, as JSON keys."""
    return {str(length // 4): count for length, count in lengths.items()}


class InspectReport(Report, kw_only=True):
    """JSON output of ``regraft inspect``; ``kind`` is a :class:`regraft.kinds.Kind`."""

    kind: str
    bases: Sequence[BaseSummary]
    health: HealthSummary


def format_inspect_report(report: InspectReport, *, verbose: bool = False) -> str:
    """Return the text output of ``inspect``; ``verbose`` shows more about each index."""
    kind = Kind(report.kind)
    lines = [report.head.title, ""]
    for base in report.bases:
        lines += base.lines(verbose=verbose)
    lines += report.health.lines()
    part = system_of(kind).part if kind in SYSTEMS else "base"
    if part:
        size = format_bytes(report.health.bytes)
        lines.append(tr("{parts}, {size}.", parts=format_count(len(report.bases), part), size=size))
    path = report.head.source.path if report.head.source else ""
    lines += _health_lines(path, report.health, report.bases)
    return printable_lines(lines)


def _health_lines(path: str, health: HealthSummary, bases: Sequence[BaseSummary]) -> Iterator[str]:
    """Yield the last lines of the text output; ``path`` is the store, for commands that show details."""
    if health.coverage is not None:
        yield (
            tr(
                "{coverage:.2%} of the texts have their vector; {orphans}, {stale:,} stale.",
                coverage=health.coverage,
                orphans=format_count(health.orphans or 0, "orphan"),
                stale=health.stale or 0,
            )
        )
    yield from _problem_lines(health, bases)
    worth = list(_suggest_commands(path, health, bases))
    yield from worth
    if not worth and not health.problems:
        yield tr("No problem at a glance.")


def _problem_lines(health: HealthSummary, bases: Sequence[BaseSummary]) -> Iterator[str]:
    """Yield lines with the problems that no base reports, the number of bases that report one, and the notes."""
    above = set(describe_problems(bases))
    for problem in health.problems:
        if problem not in above:
            yield tr("problem: {problem}", problem=problem)
    named = sum(problem in above for problem in health.problems)
    if named:
        yield tr("{bases} with a problem, see above.", bases=format_count(named, "base"))
    for note in health.notes or ():
        yield tr("note: {note}", note=note)


def _suggest_commands(path: str, health: HealthSummary, bases: Sequence[BaseSummary]) -> Iterator[str]:
    """Yield lines about failed items and incomplete texts, each with a command for details about the store ``path``."""
    failed = sum(base.items.get("failed", 0) for base in bases if base.items)
    # An audit does not list failed items: they are failed in the application too, and nothing is damaged.
    if failed and any(base.item_list for base in bases):
        yield tr("Worth a look: {worth}, see above.", worth=format_count(failed, "failed item"))
    elif failed:
        yield _format_suggestion(format_count(failed, "failed item"), "inspect", path, "--items")
    incomplete = join_list(_count_incomplete(health))
    if incomplete:
        yield _format_suggestion(incomplete, "check", path)


def _format_suggestion(counts: str, command: str, path: str, *options: str) -> str:
    """Return the line that suggests a regraft command for details.

    Args:
        counts: what there is to see, such as "2 failed items".
        command: the name of the regraft command.
        path: the store.
        options: further words of the command line.
    """
    value = join_command(["regraft", command, path_argument(path), *options])
    return tr("Worth a look: {worth}; for details: {value}", worth=counts, value=value)


def _count_incomplete(health: HealthSummary) -> Iterator[str]:
    """Yield phrases that count what a store lacks: vectors of texts, and what orphans and stale materials it has."""
    if health.coverage is not None and health.coverage < 1:
        yield tr("{coverage:.2%} of the texts without a vector", coverage=1 - health.coverage)
    if health.orphans:
        yield format_count(health.orphans, "orphan")
    if health.stale:
        yield tr("{stale:,} stale", stale=health.stale)
