"""Find bases from which no command deletes anything, even if a finding is named (``docs/findings.md``, "Kept").

With a catalog that is older than the indexes, or that lost rows, texts and vectors look unused. Signs of that: the base
failed, or many of its items disappeared at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import apsw

from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog
from regraft.language import format_count, tr
from repair.changes.plan import many_disappeared
from repair.changes.store import Store


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
        items = {} if catalog is None or catalog.items is None else catalog.items
        self._items = {str(base): rows for base, rows in items.items()}
        self._listed = {str(item.get("id")) for rows in self._items.values() for item in rows}
        self._reasons: dict[str, str | None] = {}

    def reason(self, base: str) -> str | None:
        """Return why nothing of the base with this id is deleted, or None if it is not protected."""
        if base not in self._reasons:
            self._reasons[base] = self._find_reason(base)
        return self._reasons[base]

    def _find_reason(self, base: str) -> str | None:
        """Return why a base is protected, or None."""
        row = self._rows.get(base)
        if base in self._spared or (row is not None and row.get("status") == "failed"):
            return tr("nothing is deleted from a failed base")
        gone, there = self._count_items(base)
        if not many_disappeared(gone, there):
            return None
        return tr(
            "{gone} of {all} disappeared at once; the catalog may be older than the index, so nothing is "
            "deleted from the base",
            gone=f"{gone:,}",
            all=format_count(gone + there, "item"),
        )

    def _count_items(self, base: str) -> tuple[int, int]:
        """Count the items of a base, without folders, that have a material but no row, and those with a row.

        Both counts are zero if the index cannot be read.
        """
        one = self._store.stores.get(base)
        if one is None or base not in self._rows or self._catalog is None or self._catalog.items is None:
            return 0, 0
        try:
            with sqlite.open_readonly(self._store.root / one.name) as db:
                gone = sum(material not in self._listed for material in _materials(db))
        except (apsw.Error, OSError, UnicodeDecodeError):
            return 0, 0
        return gone, sum(item.get("type") != "directory" for item in self._items.get(base, ()))


def _materials(db: apsw.Connection) -> Iterator[str]:
    """Yield the ids of the materials in an open index."""
    for (raw,) in db.execute("SELECT CAST(material_id AS BLOB) FROM material"):
        yield raw.decode("utf-8", "replace") if isinstance(raw, bytes) else ""
