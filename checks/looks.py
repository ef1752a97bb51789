"""What a first look at a store finds: its bases, what holds their vectors, and how healthy they seem.

Every kind of store says it with these. Fields that a kind does not have stay ``UNSET`` and are in no document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft import identity
from regraft.language import format_count, join_list, tr
from regraft.report.labels import label_of
from regraft.report.progress import Progress, SilentProgress
from regraft.text import LONGEST_NAME, format_bytes, one_line, pad_left, pad_right, printable

#: Characters of an item's name in a list: a note is called by its first line.
_LONGEST_ITEM = 60


class VectorFileSummary(Struct, frozen=True, kw_only=True):
    """A vector file of v1 or of a preview build; ``lengths`` counts its vectors by their dimensions."""

    rows: int
    loaders: int
    dimensions: int | None
    lengths: dict[str, int]
    text_bytes: int
    bytes: int

    def line(self) -> str:
        """Return what is in it, for a person."""
        return _format_store(tr("{rows:,} rows", rows=self.rows), self.dimensions, self.bytes)


class IndexSummary(Struct, frozen=True, kw_only=True):
    """A v2 index; ``stale`` counts materials of no item, None where no catalog tells the items."""

    #: Whatever the file says, of any type.
    schema_version: Any
    base_id: Any
    materials: int
    units: int
    embeddings: int
    dimensions: int | None
    bodies: int
    missing: int
    #: Texts whose vector has another length than the dimensions of the base give.
    wrong_length: int
    orphan_embeddings: int
    orphan_contents: int
    orphan_bodies: int
    coverage: float | None
    orphans: int
    stale: int | None
    bytes: int

    def line(self) -> str:
        """Return what is in it, for a person."""
        parts = tr(
            "{materials:,} materials, {units:,} units, {embeddings:,} embeddings",
            materials=self.materials,
            units=self.units,
            embeddings=self.embeddings,
        )
        return _format_store(parts, self.dimensions, self.bytes)

    def coverage_lines(self) -> Iterator[str]:
        """Yield how well its texts are covered."""
        if self.coverage is not None:
            yield f"  {pad_right(label_of('coverage'), 11)} {self.coverage:.2%}"
        yield f"  {pad_right(label_of('orphans'), 11)} {self.orphans}"
        if self.stale is not None:
            yield f"  {pad_right(label_of('stale'), 11)} {self.stale}"


class MaterialSummary(Struct, frozen=True, kw_only=True):
    """A material of an index; ``utf16_units`` is how far its last unit reaches."""

    id: str
    path: str
    source: str | None
    units: int
    utf16_units: int

    def line(self) -> str:
        """Return it as a line for a person."""
        name = self.path
        # A folder's file has its own id for a path: its source is what a person knows it by.
        if self.path == self.id and self.source:
            name = self.source
        return f"    {pad_left(format_count(self.units, 'unit'), 10)}  {one_line(name)}"


class ItemSummary(Struct, frozen=True, kw_only=True):
    """An item of a base as its list shows it; ``units`` is how many of its base's index are its, where that is known.

    What a catalog says of it may be of any type; ``folder`` is the id of the folder that it is in.
    """

    id: Any
    name: str
    type: Any
    status: Any = UNSET
    error: Any = UNSET
    folder: Any = UNSET
    units: int | UnsetType | None = UNSET

    def line(self) -> str:
        """Return it as a line for a person."""
        parts = [pad_right(label_of(self.type), 9)]
        if self.status is not UNSET:
            parts.append(pad_right("" if self.status is None else label_of(self.status), 11))
        if self.units is not UNSET:
            units = "" if self.units is None else format_count(self.units, "unit")
            parts.append(pad_left(units, 10) + " ")
        name = one_line(self.name, _LONGEST_ITEM)
        if self.error:
            name = tr("{what}: {why}", what=name, why=one_line(str(self.error), LONGEST_NAME))
        inside = "" if self.folder in (UNSET, None) else "  "
        return f"    {' '.join(parts)} {inside}{name}"


class BaseSummary(Struct, frozen=True, kw_only=True):
    """A base, or what a store of another system is divided into; what a catalog says of it may be of any type."""

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
        """Yield what a person is told of it."""
        yield format_base_heading(self.id, self.name)
        if self.status:
            status = label_of(self.status)
            if self.error:
                status = tr("{what}: {why}", what=status, why=self.error)
            yield tr("  status      {status}", status=status)
        if self.model:
            yield tr("  model       {model}", model=self.model)
        if self.items:
            yield tr(
                "  items       {items}",
                items=join_list((f"{count:,} {label_of(name)}" for name, count in self.items.items())),
            )
        if self.item_list:
            yield from (item.line() for item in self.item_list)
        if self.store:
            yield f"  {self.store.line()}"
        if isinstance(self.store, IndexSummary) and (verbose or self.store.coverage != 1):
            yield from self.store.coverage_lines()
        if self.materials:
            yield from (material.line() for material in self.materials)
        if self.problem:
            yield tr("  problem     {problem}", problem=self.problem)
        yield ""


class HealthSummary(Struct, frozen=True, kw_only=True):
    """How healthy a store seems as a whole; None is what cannot be told, or has no meaning there."""

    coverage: float | None = None
    orphans: int | None = None
    stale: int | None = None
    bytes: int
    problems: list[str]
    notes: list[str] | UnsetType = UNSET

    def lines(self) -> Iterator[str]:
        """Yield what a person is told of the whole, before the sums."""
        yield from ()


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller asks of a first look: every item of the bases, and the time that ages are relative to."""

    items: bool = False
    now_ms: int = msgspec.field(default_factory=identity.now_ms)
    #: Shows a person how far it is.
    progress: Progress = msgspec.field(default_factory=SilentProgress)


class StoreSummary(msgspec.Struct, frozen=True):
    """What a first look comes to."""

    bases: list[BaseSummary]
    health: HealthSummary


def format_base_heading(base_id: object, name: object) -> str:
    """Return the line that a base's lines begin with."""
    return f"{one_line(str(name), LONGEST_NAME)}  ({printable(base_id, LONGEST_NAME)})"


def _format_store(parts: str, dimensions: int | None, size: int) -> str:
    if dimensions:
        parts = tr("{parts} × {dimensions} dimensions", parts=parts, dimensions=dimensions)
    return tr("vectors     {parts}, {size}", parts=parts, size=format_bytes(size))


def describe_problems(bases: Iterable[BaseSummary]) -> list[str]:
    """Return the problems of bases, each with its base's name."""
    return [tr("{what}: {why}", what=base.name, why=base.problem) for base in bases if base.problem]


def total_bytes(bases: Iterable[BaseSummary]) -> int:
    """Return the size of those files of bases that could be looked at."""
    return sum(base.store.bytes for base in bases if base.store)


def count_by_dimensions(lengths: dict[int, int]) -> dict[str, int]:
    """Return how many vectors there are of how many dimensions, by their lengths in bytes."""
    return {str(length // 4): count for length, count in lengths.items()}
