"""Reading a catalog of any build: what is there, by the names of its columns (``docs/formats/catalog.md``).

A profile's tables have more columns than a library's and earlier builds had fewer. Only named columns are read, so that
no API key is ever held.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import sqlite
from regraft.language import tr

#: A row by the names of those columns that are there; values are of any type.
Row = dict[str, Any]

#: The columns of ``knowledge_base``; builds before the first release had ``search_mode`` and ``hybrid_alpha``.
BASE_COLUMNS = (
    *("id", "name", "group_id", "dimensions", "embedding_model_id", "status", "error", "rerank_model_id"),
    *("file_processor_id", "chunk_size", "chunk_overlap", "chunk_strategy", "chunk_separator", "threshold"),
    *("document_count", "search_mode", "hybrid_alpha", "created_at", "updated_at"),
)
_COLUMNS = {
    "knowledge_base": BASE_COLUMNS,
    "knowledge_item": (
        *("id", "base_id", "group_id", "type", "data", "status", "error", "created_at", "updated_at", "deleted_at"),
    ),
    "user_provider": ("provider_id", "name", "is_enabled"),
    "user_model": (
        *("id", "provider_id", "model_id", "preset_model_id", "name", "group", "capabilities", "supports_streaming"),
    ),
}


class CatalogProblem(Exception):
    """A catalog that cannot be read; the text says why, for a person."""


class StoredCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a catalog in their order; None stands for a table that is not there."""

    bases: list[Row] = msgspec.field(default_factory=list)
    #: By the base's id.
    items: dict[Any, list[Row]] | None = None
    providers: list[Row] | None = None
    models: list[Row] | None = None


def base_key(row: Row) -> str:
    """Return a base's id as findings give it."""
    return str(row.get("id"))


def read_catalog(path: Path, *, data: bool = True) -> StoredCatalog:
    """Read bases, items, models and providers of a catalog on disk; text that is no UTF-8 is read leniently.

    Args:
        path: a SQLite file; it is read without a trace.
        data: read what items hold, too, not only what they are.

    Raises:
        CatalogProblem: it is missing, no SQLite file, damaged, or has no table of bases.
    """
    try:
        with sqlite.reading(path) as db:
            bases, items, providers, models = (_rows(db, table, data=data) for table in _COLUMNS)
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise CatalogProblem(tr("cannot be read: {error}", error=error)) from error
    if bases is None:
        raise CatalogProblem(tr("has no table `knowledge_base`"))
    by_base: dict[Any, list[Row]] = {}
    for item in items or ():
        by_base.setdefault(item.get("base_id"), []).append(item)
    return StoredCatalog(bases=bases, items=None if items is None else by_base, providers=providers, models=models)


def _rows(db: apsw.Connection, table: str, *, data: bool) -> list[Row] | None:
    there = {str(row[1]).lower() for row in db.execute(f"PRAGMA table_info('{table}')")}
    if not there:
        return None
    columns = [name for name in _COLUMNS[table] if name in there and (data or name != "data")]
    if not columns:
        return []
    source = f"{table} NOT INDEXED ORDER BY rowid"
    try:
        rows = db.execute(f"SELECT {', '.join(map(sqlite.quoted, columns))} FROM {source}").fetchall()
    except UnicodeDecodeError:
        rows = list(sqlite.lenient_rows(db, columns, source))
    return [dict(zip(columns, row, strict=True)) for row in rows]
