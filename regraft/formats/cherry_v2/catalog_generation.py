"""Generations of the application's catalog, and the columns that a row needs in each (``docs/formats/catalog.md``).

A generation is recognized by the columns of the tables, never by a version number. All code that inserts rows into an
existing catalog asks this module which columns exist, which values they get, and whether a required column is unknown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.errors import ProfileUnknown
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog import EMBEDDING, ModelRow
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.order_keys import key_after
from regraft.language import join_list, tr
from regraft.text import is_blank

#: An SQL statement and its values, which changes one row.
Statement = tuple[str, tuple[Any, ...]]

PROVIDERS, MODELS, BASES, ITEMS = "user_provider", "user_model", "knowledge_base", "knowledge_item"
#: Tables that link assistants and agents to bases. Deleting a base would delete these rows, so bases are updated in
#: place.
ASSISTANT_LINKS, AGENT_LINKS = "assistant_knowledge_base", "agent_knowledge_base"

_TIMES = ("created_at", "updated_at")
#: Search settings of earlier generations. They follow from the model and are never copied from another catalog.
_DERIVED = ("search_mode", "hybrid_alpha")
#: Columns that a new row gets a value for, by table, parents first. Other columns keep their default.
INSERTED_COLUMNS: Mapping[str, tuple[str, ...]] = {
    PROVIDERS: ("provider_id", "name", "is_enabled", "order_key", *_TIMES),
    MODELS: (
        *("id", "provider_id", "model_id", "name", "group", "capabilities", "supports_streaming", "order_key"),
        *_TIMES,
    ),
    BASES: (
        *("id", "name", "group_id", "dimensions", "embedding_model_id", "status", "error", "rerank_model_id"),
        *("file_processor_id", "chunk_size", "chunk_overlap", "chunk_strategy", "chunk_separator", "threshold"),
        *("document_count", *_DERIVED, *_TIMES),
    ),
    ITEMS: ("id", "base_id", "group_id", "type", "data", "status", "error", *_TIMES),
    ASSISTANT_LINKS: ("assistant_id", "knowledge_base_id", *_TIMES),
    AGENT_LINKS: ("agent_id", "knowledge_base_id", *_TIMES),
}
#: Columns that a generation may lack although rows have a value for them.
_OPTIONAL_COLUMNS = {MODELS: ("supports_streaming",), BASES: _DERIVED}
#: Columns that a model without a preset must have; otherwise the application fails to read any model.
REQUIRED_MODEL_COLUMNS = ("name", "capabilities", "supports_streaming")


class Generation(StrEnum):
    """Generations of a catalog, named for messages."""

    LIBRARY = "a library"
    EARLIER_LIBRARY = tr("a library of an earlier regraft")
    BEFORE_RELEASE = tr("a build before 2.0.0")
    FIRST = "2.0.0 to 2.0.8"
    SECOND = tr("2.0.9 or later")
    THIRD = "2.1"


class CatalogTables(msgspec.Struct, frozen=True):
    """The tables of one catalog. ``columns`` maps each table's columns to whether a row must provide a value."""

    path: Path
    columns: Mapping[str, Mapping[str, bool]]

    @property
    def generation(self) -> Generation:
        """The generation of the catalog, recognized by its columns."""
        models, bases = self.columns.get(MODELS, ()), self.columns.get(BASES, ())
        if "preset_model_id" not in models:
            is_current = "search_mode" not in bases and "supports_streaming" in models
            return Generation.LIBRARY if is_current else Generation.EARLIER_LIBRARY
        if "search_mode" in bases:
            return Generation.BEFORE_RELEASE
        if "input_modalities_explicit" not in models:
            return Generation.FIRST
        return Generation.SECOND if "api_features" in self.columns.get(PROVIDERS, ()) else Generation.THIRD

    def demand(self, table: str, needed: Collection[str]) -> None:
        """Check that the catalog has a table with certain columns.

        Raises:
            ProfileUnknown: the table or a column is missing.
        """
        there = self.columns.get(table)
        if there is None:
            raise ProfileUnknown(path=self.path, what=tr("no table {table}", table=table))
        missing = [name for name in needed if name not in there]
        if missing:
            raise ProfileUnknown(
                path=self.path, what=tr("a table {table} without {missing}", table=table, missing=join_list(missing))
            )

    def insertable_columns(self, table: str, used: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the columns that a new row of a table gets a value for.

        Args:
            table: a key of :data:`INSERTED_COLUMNS`.
            used: columns that rows have a value for; None for all columns.

        Raises:
            ProfileUnknown: the table or a used column is missing, or an unknown column requires a value.
        """
        given, optional = INSERTED_COLUMNS[table], _OPTIONAL_COLUMNS.get(table, ())
        needed = set(given if used is None else used).difference(optional)
        self.demand(table, [name for name in given if name in needed])
        there = self.columns[table]
        unknown = [name for name, is_needed in there.items() if is_needed and name not in given]
        if unknown:
            what = tr(
                "a table {table} like that of {generation}, but which also requires {unknown}",
                table=table,
                unknown=join_list(unknown),
                generation=self.generation,
            )
            raise ProfileUnknown(path=self.path, what=what)
        return tuple(name for name in given if name in there)

    def search_settings(self, model: object) -> Row:
        """Return the search mode and weight of a base that has this embedding model (None: no model).

        Only the columns that the catalog has are returned.
        """
        values = {"search_mode": "bm25" if model is None else "hybrid", "hybrid_alpha": None}
        return {name: value for name, value in values.items() if name in self.columns.get(BASES, ())}

    def insert_statement(self, table: str, row: Row) -> Statement:
        """Build the statement that inserts a row, and its values; for a base, its search settings are added.

        Raises:
            ProfileUnknown: see :meth:`insertable_columns`.
        """
        names = self.insertable_columns(table, {name for name, value in row.items() if value is not None})
        whole = {**row, **self.search_settings(row.get("embedding_model_id"))} if table == BASES else row
        listed = ", ".join(f'"{name}"' for name in names)
        statement = f'INSERT INTO "{table}" ({listed}) VALUES ({", ".join("?" * len(names))})'
        return statement, tuple(whole.get(name) for name in names)


def read_tables(path: Path, db: apsw.Connection) -> CatalogTables:
    """Read the tables and columns of a catalog; ``path`` is its path, for messages.

    Raises:
        apsw.Error: the catalog cannot be read.
    """
    found = {}
    for table in INSERTED_COLUMNS:
        columns = db.execute(f"PRAGMA table_info('{table}')").fetchall()
        if columns:
            # A column must get a value if it is NOT NULL and has no default, or the default NULL.
            found[table] = {
                str(name): bool(not_null) and (default is None or str(default).strip().upper() == "NULL")
                for _, name, _, not_null, default, *_ in columns
            }
    return CatalogTables(path, found)


# --- models ----------------------------------------------------------------------------------------------------------


def read_model(row: Row, capabilities: tuple[str, ...] = EMBEDDING) -> ModelRow:
    """Make a complete model from its row in a catalog of any build, where inherited values are NULL.

    Args:
        row: a row with at least ``id``, ``provider_id`` and ``model_id``.
        capabilities: capabilities if the row does not list any.
    """
    try:
        stated = row.get("capabilities")
        listed = json_text.loads(stated) if isinstance(stated, str) else stated
    except (ValueError, RecursionError):
        listed = ()
    known = tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list | tuple) else ()
    streaming = row.get("supports_streaming")
    name, group = row.get("name"), row.get("group")
    return ModelRow(
        id=str(row["id"]),
        provider_id=str(row["provider_id"]),
        model_id=str(row["model_id"]),
        name=str(row["model_id"]) if is_blank(name) else str(name),
        group=None if is_blank(group) else str(group),
        capabilities=known or capabilities,
        supports_streaming=True if streaming is None else bool(streaming),
    )


def make_model_row(model: ModelRow, order_key: str, now_ms: int) -> Row:
    """Make the catalog row of a new model that is complete without a preset of the application."""
    return {
        "id": model.id,
        "provider_id": model.provider_id,
        "model_id": model.model_id,
        "name": model.name,
        "group": model.group,
        "capabilities": json.dumps(model.capabilities),
        "supports_streaming": int(model.supports_streaming),
        "order_key": order_key,
        **dict.fromkeys(_TIMES, now_ms),
    }


def make_provider_row(provider: str, name: str, order_key: str, now_ms: int, *, is_enabled: bool = False) -> Row:
    """Make the catalog row of a new custom provider (id and displayed name), without API keys."""
    values = {"provider_id": provider, "name": name, "is_enabled": int(is_enabled), "order_key": order_key}
    return {**values, **dict.fromkeys(_TIMES, now_ms)}


class OrderKeys:
    """Generates order keys that sort new models and providers after the existing ones."""

    def __init__(self, db: apsw.Connection) -> None:
        """Read the last keys.

        Raises:
            apsw.Error: the catalog cannot be read.
        """
        is_text = "WHERE typeof(order_key) = 'text'"
        self._last: dict[Any, str | None] = dict(
            db.execute(f"SELECT provider_id, max(order_key) FROM {MODELS} {is_text} GROUP BY 1")
        )
        self._last_provider: Any = db.execute(f"SELECT max(order_key) FROM {PROVIDERS} {is_text}").get

    def next_model(self, provider: str) -> str:
        """Return the order key of the next new model of a provider."""
        self._last[provider] = key = key_after(self._last.get(provider))
        return key

    def next_provider(self) -> str:
        """Return the order key of the next new provider."""
        self._last_provider = key = key_after(self._last_provider)
        return key


# --- checking rows ---------------------------------------------------------------------------------------------------


def copy_definitions(source: apsw.Connection, copy: apsw.Connection, tables: Iterable[str]) -> None:
    """Create the tables of a catalog and their indexes, without rows, in another database to try inserting rows.

    Args:
        source: the catalog.
        copy: the other database.
        tables: names of the tables.

    Raises:
        apsw.Error: a definition depends on something that is missing.
    """
    query = "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('table', 'index') AND sql NOT NULL"
    for table in tables:
        for (sql,) in source.execute(f"{query} ORDER BY type DESC", (table,)).fetchall():
            copy.execute(str(sql))


def find_dangling_references(db: apsw.Connection) -> Iterator[tuple[str, str, int]]:
    """Yield (table, referenced table, row id) of each dangling foreign key of a catalog.

    The row id is -1 if the table has none.
    """
    for name in INSERTED_COLUMNS:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).get is not None:
            for table, rowid, parent, _ in db.execute(f"PRAGMA foreign_key_check('{name}')"):
                yield str(table), str(parent), rowid if isinstance(rowid, int) else -1
