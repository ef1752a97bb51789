"""Single rows of a catalog of any build, whatever their texts hold (``docs/formats/catalog.md``).

Only named columns are read, and only rows that are asked for: a catalog may have a great many items, with whole notes
in them. Text that is no UTF-8 is read as by :func:`regraft.text.lenient_text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row
from regraft.language import tr
from regraft.text import lenient_text

_BASE_COLUMNS = (
    *("id", "name", "status", "error", "embedding_model_id", "dimensions", "rerank_model_id", "threshold"),
    "document_count",
)
_ITEM_COLUMNS = ("id", "base_id", "type", "status", "data")


class CatalogLookup:
    """Rows of an open catalog by the names of those columns that are there.

    Every method raises :class:`CatalogProblem` where the catalog is damaged.
    """

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._base_columns = self._there("knowledge_base", _BASE_COLUMNS)
        self._item_columns = self._there("knowledge_item", _ITEM_COLUMNS)
        if "id" not in self._base_columns:
            raise CatalogProblem(tr("has no table `knowledge_base`"))

    def bases(self) -> list[Row]:
        """Return all bases, in the order of their rows."""
        return self._rows("knowledge_base", self._base_columns, "ORDER BY rowid", ())

    def items(self, ids: Iterable[str]) -> dict[str, Row] | None:
        """Return items by their ids, without those that are not there; None where there is no table of items."""
        if "id" not in self._item_columns:
            return None
        wanted = json.dumps(sorted(set(ids)))
        condition = "WHERE id IN (SELECT value FROM json_each(?))"
        return {str(row["id"]): row for row in self._rows("knowledge_item", self._item_columns, condition, (wanted,))}

    def _there(self, table: str, columns: tuple[str, ...]) -> tuple[str, ...]:
        with _damage_named():
            there = {str(row[1]).lower() for row in self._db.execute(f"PRAGMA table_info('{table}')")}
        return tuple(name for name in columns if name in there)

    def _rows(self, table: str, columns: tuple[str, ...], rest: str, values: tuple[str, ...]) -> list[Row]:
        read = ", ".join(
            f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in columns
        )
        with _damage_named():
            rows = self._db.execute(f"SELECT {read} FROM {table} {rest}", values).fetchall()
        plain = ((lenient_text(value) if isinstance(value, bytes) else value for value in row) for row in rows)
        return [dict(zip(columns, row, strict=True)) for row in plain]


@contextmanager
def opened_catalog(path: Path) -> Iterator[CatalogLookup]:
    """Open a catalog on disk, without a trace.

    Raises:
        CatalogProblem: it is missing, no SQLite file, damaged, or has no table of bases.
    """
    with ExitStack() as opened:
        with _damage_named():
            db = opened.enter_context(sqlite.reading(path))
        yield CatalogLookup(db)


@contextmanager
def _damage_named() -> Iterator[None]:
    try:
        yield
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise CatalogProblem(tr("cannot be read: {error}", error=error)) from error


def item_data(row: Row) -> Mapping[str, Any]:
    """Return what an item's column ``data`` holds; empty where that is no JSON object."""
    try:
        data = json_text.loads(row.get("data") or "{}")
    except (TypeError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
