"""Bases of which no command deletes anything, whether a finding is named or not (``docs/findings.md``, "Kept").

A catalog that is older than the indexes, or that lost rows, makes texts and vectors look like waste. Two signs of it
count: the base failed, or many of its items disappeared at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog, base_id_text
from regraft.language import format_count, tr
from repair.changes.plan import many_disappeared
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import read_store_catalog


class DisappearedItems(msgspec.Struct, frozen=True):
    """Materials of a base whose items have no row any more, and the items that still have one, folders aside."""

    gone: int = 0
    there: int = 0

    @property
    def is_protected(self) -> bool:
        """Whether so many are gone that nothing of the base is deleted."""
        return many_disappeared(self.gone, self.there)


class Protection:
    """Tells of each base of a store whether it is protected, and why.

    Args:
        store: the store, as it is now.
        catalog: its rows, with or without what items hold; None where the store has no catalog.
        spared: ids of bases that are protected in any case, because they failed when the run began.
    """

    def __init__(self, store: Store, catalog: StoredCatalog | None, spared: frozenset[str] = frozenset()) -> None:
        self._store, self._catalog, self._spared = store, catalog, spared
        self._rows = {} if catalog is None else {base_id_text(row): row for row in catalog.bases}
        self._listed = {str(item.get("id")) for items in self._items().values() for item in items}
        self._known: dict[str, str | None] = {}

    @classmethod
    def of(cls, store: Store, spared: frozenset[str] = frozenset()) -> Protection:
        """Return the protection of a store by its own catalog.

        Raises:
            SourceUnreadable: the catalog cannot be read.
        """
        return cls(store, None if store.catalog is None else read_store_catalog(store, data=False), spared)

    def reason(self, base: str) -> str | None:
        """Return why nothing of a base is deleted, for a person; None where it is not protected."""
        if base not in self._known:
            self._known[base] = self._reason(base)
        return self._known[base]

    def disappeared(self, base: str) -> DisappearedItems:
        """Count the items of a base that have a material and no row; zero where its index cannot be read."""
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
        items = None if self._catalog is None else self._catalog.items
        return {} if items is None else {str(base): rows for base, rows in items.items()}

    def _reason(self, base: str) -> str | None:
        row = self._rows.get(base)
        if base in self._spared or (row is not None and row.get("status") == "failed"):
            return tr("the base failed, and nothing is deleted from a failed base")
        found = self.disappeared(base)
        if not found.is_protected:
            return None
        return tr(
            "{gone} of {all} disappeared at once: the catalog may be older than the index, and nothing of the base is "
            "deleted",
            gone=f"{found.gone:,}",
            all=format_count(found.gone + found.there, "item"),
        )


def _materials(db: apsw.Connection) -> Iterator[str]:
    for (raw,) in db.execute("SELECT CAST(material_id AS BLOB) FROM material"):
        yield raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
