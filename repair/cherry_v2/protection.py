"""Find bases from which no command deletes anything, even if a finding is named (``docs/findings.md``, "Kept").

With a catalog that is older than the indexes, or that lost rows, texts and vectors look unused. Signs of that: the base
failed, or many of its items disappeared at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog
from regraft.language import format_count, tr
from repair.changes.plan import many_disappeared
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import read_store_catalog


class DisappearedItems(msgspec.Struct, frozen=True):
    """Counts of items of a base, without folders: ``gone`` have a material but no row, ``there`` have a row."""

    gone: int = 0
    there: int = 0

    @property
    def is_protected(self) -> bool:
        """Whether so many items disappeared that nothing of the base is deleted."""
        return many_disappeared(self.gone, self.there)


class Protection:
    """Decides for each base of a store whether it is protected from deletions, and why.

    Args:
        store: the store, as it is now.
        catalog: its rows, with or without the items' data; None if the store has no catalog.
        spared: ids of bases that are protected in any case, because they had failed when the run began.
    """

    def __init__(self, store: Store, catalog: StoredCatalog | None, spared: frozenset[str] = frozenset()) -> None:
        self._store, self._catalog, self._spared = store, catalog, spared
        self._rows = {} if catalog is None else catalog.rows_by_base
        self._listed = {str(item.get("id")) for items in self._items().values() for item in items}
        self._reasons: dict[str, str | None] = {}

    @classmethod
    def of(cls, store: Store, spared: frozenset[str] = frozenset()) -> Protection:
        """Create the protection of a store from its own catalog.

        Raises:
            SourceUnreadable: the catalog cannot be read.
        """
        return cls(store, None if store.catalog is None else read_store_catalog(store, data=False), spared)

    def reason(self, base: str) -> str | None:
        """Return why nothing of the base with this id is deleted, or None if it is not protected."""
        if base not in self._reasons:
            row = self._rows.get(base)
            if base in self._spared or (row is not None and row.get("status") == "failed"):
                self._reasons[base] = tr("nothing is deleted from a failed base")
            else:
                found = self.disappeared(base)
                message = tr(
                    "{gone} of {all} disappeared at once; the catalog may be older than the index, so nothing is "
                    "deleted from the base",
                    gone=f"{found.gone:,}",
                    all=format_count(found.gone + found.there, "item"),
                )
                self._reasons[base] = message if found.is_protected else None
        return self._reasons[base]

    def disappeared(self, base: str) -> DisappearedItems:
        """Count the items of the base with this id that have a material but no row, and those with a row.

        Both counts are zero if the index cannot be read.
        """
        one = self._store.stores.get(base)
        if one is None or base not in self._rows or self._catalog is None or self._catalog.items is None:
            return DisappearedItems()
        try:
            with sqlite.open_readonly(self._store.root / one.name) as db:
                gone = sum(material not in self._listed for material in _materials(db))
        except (apsw.Error, OSError, UnicodeDecodeError):
            return DisappearedItems()
        there = sum(item.get("type") != "directory" for item in self._items().get(base, ()))
        return DisappearedItems(gone, there)

    def _items(self) -> dict[str, list[dict[str, object]]]:
        """Catalog rows of items by the id of their base."""
        items = None if self._catalog is None else self._catalog.items
        return {} if items is None else {str(base): rows for base, rows in items.items()}


def _materials(db: apsw.Connection) -> Iterator[str]:
    """Yield the ids of the materials in an open index."""
    for (raw,) in db.execute("SELECT CAST(material_id AS BLOB) FROM material"):
        yield raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
