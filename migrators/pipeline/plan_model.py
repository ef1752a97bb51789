"""What a plan says: what becomes of a base, its items and its rows. Made by :mod:`.plan`, worked off by the rest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from migrators.pipeline.drafts import BaseDraft, Upload
from migrators.pipeline.source import Found
from regraft.formats.salvage_tally import SalvageTally
from regraft.report.notices import Notice


class ItemPlan(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One row of ``knowledge_item``, but for what only carrying knows (snapshot paths)."""

    id: str
    legacy_id: str | None
    group_id: str | None
    type: str
    data: dict[str, str]
    status: str
    error: str | None
    created_at: int | None
    updated_at: int | None
    upload: Upload | None = None


class MaterialPlan(msgspec.Struct, frozen=True):
    """The rows that become one material.

    Attributes:
        item: an index into the plan's items.
        runs: ranges of rowids; rows in them that are not migrated have no vector of the base's length.
        rows: how many rows are migrated.
        body_bytes: the length of their texts in bytes.
        digest: over the rows that the survey found, which migrating has to read again.
        is_finite: no vector in the ranges has a NaN or an infinity, so that none has to be looked at again.
    """

    item: int
    runs: tuple[tuple[int, int], ...]
    rows: int
    body_bytes: int
    digest: int
    is_finite: bool = False


class Rows(msgspec.Struct, frozen=True):
    """The books of a base: every row is carried or skipped for a reason."""

    read: int = 0
    carried: int = 0
    skipped: dict[str, int] = msgspec.field(default_factory=dict)
    #: Those of the carried ones whose text came along alone.
    without_vector: int = 0
    #: Chunks that v1 itself never stored; they are in no row.
    v1_deduplicated: int = 0
    #: Units given to files that have no row of their own, after another file with the same bytes; outside the books.
    restored_duplicate: int = 0

    @property
    def balanced(self) -> bool:
        """Tell whether the books balance."""
        return self.read == self.carried + sum(self.skipped.values())


class Directories(msgspec.Struct, frozen=True):
    """What became of a base's folders: expanded ones, their children, and those that stayed one failed item."""

    expanded: int = 0
    children: int = 0
    tombstones: int = 0


class BasePlan(msgspec.Struct, frozen=True):
    """What becomes of one base. ``error`` is None for a completed one."""

    draft: BaseDraft
    error: str | None
    dimensions: int | None
    items: Sequence[ItemPlan]
    materials: tuple[MaterialPlan, ...]
    rows: Rows
    directories: Directories
    #: By loader id: the id of the child that owns its rows.
    children: dict[str, str]
    notices: tuple[Notice, ...]
    #: Keys of the names in ``raw/`` that are taken before any snapshot has one.
    taken_names: frozenset[str] = frozenset()
    #: What other files told of it.
    found: Found = msgspec.field(default_factory=Found)
    #: Whether texts come along whose vector cannot.
    carry_text: bool = False
    #: What is left of its vector file, where that is damaged.
    salvage: SalvageTally | None = None
    #: Of a salvaged base: how many of its items have all of their rows, and how many lost some.
    whole_items: int = 0
    damaged_items: int = 0

    @property
    def has_index(self) -> bool:
        """Tell whether the base gets an index: a failed one only where there are texts to carry."""
        return self.error is None or bool(self.materials)

    @property
    def vector_bytes(self) -> int:
        """Return the length of a vector in bytes; a failed base gets none."""
        return 4 * (self.dimensions or 0) if self.error is None else 0

    @property
    def units(self) -> int:
        """Return how many units the index will have: rows carried, and those given to duplicates."""
        return self.rows.carried + self.rows.restored_duplicate

    @property
    def body_bytes(self) -> int:
        """Return the bytes of all bodies to be written."""
        return sum(material.body_bytes for material in self.materials)
