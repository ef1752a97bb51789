"""The parts of the report of a migration or an import, as ``docs/commands.md`` promises them.

A base's part is kept in the ledger too (``docs/formats/library.md``). Fields that only one of the two commands has, or
that earlier versions did not have, may be ``UNSET``.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from regraft.ledger.values import Count
from regraft.report.document import Report


class RowsReport(Struct, frozen=True, kw_only=True):
    """Where the rows of a base went; ``skipped`` counts by reason."""

    read: Count
    carried: Count
    without_vector: Count | UnsetType = UNSET
    skipped: dict[str, Count]
    v1_deduplicated: Count | UnsetType = UNSET
    restored_duplicate: Count | UnsetType = UNSET


class IndexReport(Struct, frozen=True, kw_only=True):
    """The index of a base; None is what is known only once it is written. In the ledger ``path`` is relative."""

    path: str
    materials: Count
    units: Count
    embeddings: Count | None
    bytes: Count | None


class DirectoriesReport(Struct, frozen=True, kw_only=True):
    """What became of the folders of a base."""

    expanded: Count
    children: Count
    tombstones: Count


class SalvageReport(Struct, frozen=True, kw_only=True):
    """What is left of a damaged vector file: rows that prove themselves, of about how many, and why others do not.

    ``carried`` tells whether they were wanted. ``weaker`` counts rows that the tree of their table does not reach, by
    how they were found; ``deleted`` those that were left of what had been deleted. ``items`` counts items with all of
    their rows and such that lost some.
    """

    carried: bool
    rows: Count
    about: Count
    refused: dict[str, Count]
    weaker: dict[str, Count]
    deleted: Count
    pages: Count
    pages_read: Count
    page_bytes: Count
    items: dict[str, Count]


class BaseReport(Struct, frozen=True, kw_only=True):
    """What became of a base; ``items`` counts them by status, ``outcome`` is what the run did."""

    legacy_id: str | UnsetType = UNSET
    id: str
    name: str
    status: Literal["completed", "failed"]
    error: str | None
    dimensions: Count | None
    outcome: str
    items: dict[str, Count]
    skipped_items: dict[str, Count] | UnsetType = UNSET
    directories: DirectoriesReport | UnsetType = UNSET
    rows: RowsReport
    vectors: Count | UnsetType = UNSET
    differing_vectors: Count | UnsetType = UNSET
    remade: Count | UnsetType = UNSET
    salvage: SalvageReport | UnsetType = UNSET
    index: IndexReport | None

    @property
    def source_id(self) -> str:
        """Return the id that the source has for it."""
        return self.legacy_id or self.id

    @property
    def is_done(self) -> bool:
        """Tell whether it stands in the target."""
        return self.outcome in ("written", "rewritten", "unchanged", "failed")

    def lacks(self, command: Literal["migrate", "import"]) -> bool:
        """Tell whether something is missing that the command which wrote it always says."""
        if command == "migrate":
            return UNSET in (self.legacy_id, self.directories)
        return UNSET in (self.skipped_items, self.vectors, self.differing_vectors, self.remade)


class Warned(Struct, frozen=True, kw_only=True):
    """One thing that a run says; ``base`` and ``item`` are ids of the source."""

    code: str
    base: str | None
    item: str | None
    message: str
    count: int
    samples: tuple[str, ...]
    model: str | None


class NewIds(Struct, frozen=True, kw_only=True):
    """What bases, items and files of folders are called in v2, by their v1 ids; ``children`` by their base."""

    bases: dict[str, str]
    items: dict[str, str]
    children: dict[str, dict[str, str]]


class Totals(Struct, frozen=True, kw_only=True):
    """The sums over all bases; None is what a plan cannot know."""

    bases: dict[str, int]
    items: dict[str, int]
    rows: RowsReport
    materials: int | None
    units: int | None
    embeddings: int | None
    bytes: int | None


class Preflight(Struct, frozen=True, kw_only=True):
    """The room that a run takes, and that there is, in bytes."""

    bytes_needed: int
    bytes_free: int


class MigrationReport(Report, kw_only=True):
    """What a migration or an import tells; ``ids`` only of a migration, ``preflight`` only of a plan."""

    bases: list[BaseReport]
    skipped: dict[str, int]
    warnings: list[Warned]
    ids: NewIds | UnsetType = UNSET
    totals: Totals
    preflight: Preflight | UnsetType = UNSET


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at of a base: how many items and uploads it names, and its vector file.

    ``vector_file`` is its name in the source, ``kind`` what is there (None: nothing), ``bytes`` its size, and
    ``is_read`` tells whether its rows could be read, and
    ``salvageable`` how many rows of a damaged one prove themselves.
    """

    items: int
    uploads: int
    vector_file: str
    kind: Literal["file", "folder"] | None
    bytes: int
    is_read: bool
    salvageable: int = 0


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration into a new folder would report, and what was looked at of each base, by its v1 id.

    The report's room is that on the disk of the source, and nothing is refused for want of it.
    """

    report: MigrationReport
    room: Preflight
    looked_at: dict[str, LookedAt]
