"""What an import plans for one base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from migrators.parquet.catalog_rows import item_of_material
from migrators.parquet.files import UnitsFile
from migrators.pipeline import preflight
from regraft.formats.cherry_v2.catalog import BaseRecord, ItemRow
from regraft.formats.parquet.columns import Held
from regraft.formats.parquet.metadata import AboutBase

#: Bytes on disk for one byte of an item: in the catalog, in its successor while that is written, and in the ledger.
ITEM_FACTOR = 3


class Plan(msgspec.Struct, frozen=True):
    """What becomes of one base; ``items`` is None where they follow from its materials."""

    about: AboutBase
    file: UnitsFile
    held: Held
    record: BaseRecord
    items: tuple[ItemRow, ...] | None
    skipped_items: Counter[str]
    #: Rows of no base, said with the first base of their file.
    strays: int

    def expected_items(self) -> Iterable[ItemRow]:
        """Return its items; those that follow from materials are known by their ids alone."""
        if self.items is not None:
            return self.items
        base, now_ms = self.about, self.record.now_ms
        return [item_of_material(base.id, one, one, now_ms) for one in self.materials] if base.index else []

    @property
    def materials(self) -> set[str]:
        """Return the ids of its materials, also of those none of whose rows will be fit."""
        return self.held.items | {one.id for one in self.about.bare_materials}

    @property
    def bytes(self) -> int:
        """Estimate the bytes that it takes on disk."""
        items = ITEM_FACTOR * len(msgspec.json.encode(self.items or ()))
        if not self.about.index:
            return items
        bare = sum(len(one.content or "") for one in self.about.bare_materials)
        return items + preflight.index_bytes(
            self.held.rows, self.held.rows, self.held.vector_bytes, self.held.text_bytes + bare
        )
