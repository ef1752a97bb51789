"""The generations of the application's catalog, and what a row needs in each (``docs/formats/catalog.md``).

A generation is told by the columns that a database has, never by a version. All that inserts rows into a catalog asks
here: which columns it has, what the required ones get, and which of them nobody knows.
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

#: One row that changes: the statement, and its values.
Statement = tuple[str, tuple[Any, ...]]

PROVIDERS, MODELS, BASES, ITEMS = "user_provider", "user_model", "knowledge_base", "knowledge_item"
#: Who uses which base. A base that is deleted takes these rows along: it is changed in place.
ASSISTANT_LINKS, AGENT_LINKS = "assistant_knowledge_base", "agent_knowledge_base"
LINKS = (ASSISTANT_LINKS, AGENT_LINKS)

_TIMES = ("created_at", "updated_at")
#: What earlier generations keep of a search, which follows from the model: it is never taken from another catalog.
_DERIVED = ("search_mode", "hybrid_alpha")
#: The columns that a row is given, by table, parents first; the rest is left to its default.
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
#: Columns that a generation may lack although a row has a value for them.
_SPARED = {MODELS: ("supports_streaming",), BASES: _DERIVED}
#: What a model that has no preset must have, else every read of the models fails.
REQUIRED_MODEL_COLUMNS = ("name", "capabilities", "supports_streaming")


class Generation(StrEnum):
    """Generations of a catalog, as a person knows them."""

    LIBRARY = "a library"
    EARLIER_LIBRARY = tr("a library of an earlier regraft")
    BEFORE_RELEASE = tr("a build before 2.0.0")
    FIRST = "2.0.0 to 2.0.8"
    SECOND = tr("2.0.9 or later")
    THIRD = "2.1"


def detect_generation(columns: Mapping[str, Collection[str]]) -> Generation:
    """Tell a generation by the columns of each table that is there."""
    models, bases = columns.get(MODELS, ()), columns.get(BASES, ())
    if "preset_model_id" not in models:
        is_current = "search_mode" not in bases and "supports_streaming" in models
        return Generation.LIBRARY if is_current else Generation.EARLIER_LIBRARY
    if "search_mode" in bases:
        return Generation.BEFORE_RELEASE
    if "input_modalities_explicit" not in models:
        return Generation.FIRST
    return Generation.SECOND if "api_features" in columns.get(PROVIDERS, ()) else Generation.THIRD


class CatalogTables(msgspec.Struct, frozen=True):
    """The tables of one catalog as they are there: names of columns with whether a row must have a value of its own."""

    path: Path
    columns: Mapping[str, Mapping[str, bool]]

    @property
    def generation(self) -> Generation:
        """Return the generation that the catalog is of."""
        return detect_generation(self.columns)

    def demand(self, table: str, needed: Collection[str]) -> None:
        """Refuse a catalog without a table, or without a column of it.

        Raises:
            ProfileUnknown: it names what is missing.
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
        """Return the columns that a new row of a table is given.

        Args:
            table: one of :data:`GIVEN`.
            used: the columns that rows have a value for; None: all that are known.

        Raises:
            ProfileUnknown: the table or a used column is missing, or a column must have a value that nobody knows.
        """
        given, spared = INSERTED_COLUMNS[table], _SPARED.get(table, ())
        self.demand(table, [name for name in given if name not in spared and (used is None or name in used)])
        there = self.columns[table]
        self._demand_no_other(table, [name for name, is_needed in there.items() if is_needed and name not in given])
        return tuple(name for name in given if name in there)

    def _demand_no_other(self, table: str, unknown: list[str]) -> None:
        if unknown:
            what = tr(
                "a table {table} that needs {unknown}, and else is that of {generation}",
                table=table,
                unknown=join_list(unknown),
                generation=self.generation,
            )
            raise ProfileUnknown(path=self.path, what=what)

    def derived(self, model: object) -> Row:
        """Return what a base's row has because of its model (None: it has none), in a generation that keeps it."""
        values = {"search_mode": "bm25" if model is None else "hybrid", "hybrid_alpha": None}
        return {name: value for name, value in values.items() if name in self.columns.get(BASES, ())}

    def insert_statement(self, table: str, row: Row) -> Statement:
        """Return what inserts a row; of a base what follows from its model is filled in.

        Raises:
            ProfileUnknown: see :meth:`insertable`.
        """
        names = self.insertable_columns(table, {name for name, value in row.items() if value is not None})
        whole = {**row, **self.derived(row.get("embedding_model_id"))} if table == BASES else row
        listed = ", ".join(f'"{name}"' for name in names)
        statement = f'INSERT INTO "{table}" ({listed}) VALUES ({", ".join("?" * len(names))})'
        return statement, tuple(whole.get(name) for name in names)


def read_tables(path: Path, db: apsw.Connection) -> CatalogTables:
    """Read what tables and columns the catalog at ``path`` has.

    Raises:
        apsw.Error: it cannot be read.
    """
    found = {}
    for table in INSERTED_COLUMNS:
        columns = db.execute(f"PRAGMA table_info('{table}')").fetchall()
        if columns:
            found[table] = {str(row[1]): _is_needed(*row[3:5]) for row in columns}
    return CatalogTables(path, found)


def _is_needed(not_null: Any, default: Any) -> bool:
    return bool(not_null) and (default is None or str(default).strip().upper() == "NULL")


# --- models ----------------------------------------------------------------------------------------------------------


def read_model(row: Row, capabilities: tuple[str, ...] = EMBEDDING) -> ModelRow:
    """Return a model in full from its row in any catalog, where what it inherits from the application is null.

    Args:
        row: with at least ``id``, ``provider_id`` and ``model_id``.
        capabilities: what it can do where the row does not say so.
    """
    streaming = row.get("supports_streaming")
    name, group = row.get("name"), row.get("group")
    return ModelRow(
        id=str(row["id"]),
        provider_id=str(row["provider_id"]),
        model_id=str(row["model_id"]),
        name=str(row["model_id"]) if is_blank(name) else str(name),
        group=None if is_blank(group) else str(group),
        capabilities=_listed(row.get("capabilities")) or capabilities,
        supports_streaming=True if streaming is None else bool(streaming),
    )


def _listed(capabilities: Any) -> tuple[str, ...]:
    try:
        found = json_text.loads(capabilities) if isinstance(capabilities, str) else capabilities
    except (ValueError, RecursionError):
        return ()
    return tuple(one for one in found if isinstance(one, str)) if isinstance(found, list | tuple) else ()


def make_model_row(model: ModelRow, key: str, now_ms: int) -> Row:
    """Return the row of a new model: complete by itself, with ``key`` as its place and ``now_ms`` as its times."""
    return {
        "id": model.id,
        "provider_id": model.provider_id,
        "model_id": model.model_id,
        "name": model.name,
        "group": model.group,
        "capabilities": json.dumps(model.capabilities),
        "supports_streaming": int(model.supports_streaming),
        "order_key": key,
        **dict.fromkeys(_TIMES, now_ms),
    }


def make_provider_row(provider: str, name: str, key: str, now_ms: int, *, is_enabled: bool = False) -> Row:
    """Return the row of a new provider of the user's own; it has no keys."""
    values = {"provider_id": provider, "name": name, "is_enabled": int(is_enabled), "order_key": key}
    return {**values, **dict.fromkeys(_TIMES, now_ms)}


class OrderKeys:
    """Gives new models, and new providers, their places behind the last ones that are there."""

    def __init__(self, db: apsw.Connection) -> None:
        """Read the last keys.

        Raises:
            apsw.Error: they cannot be read.
        """
        is_text = "WHERE typeof(order_key) = 'text'"
        self._last: dict[Any, str | None] = dict(
            db.execute(f"SELECT provider_id, max(order_key) FROM {MODELS} {is_text} GROUP BY 1")
        )
        self._last_provider: Any = db.execute(f"SELECT max(order_key) FROM {PROVIDERS} {is_text}").get

    def next_model(self, provider: str) -> str:
        """Give a new model of a provider its key."""
        self._last[provider] = key = key_after(self._last.get(provider))
        return key

    def next_provider(self) -> str:
        """Give a new provider its key."""
        self._last_provider = key = key_after(self._last_provider)
        return key


# --- trying rows -----------------------------------------------------------------------------------------------------


def copy_definitions(source: apsw.Connection, copy: apsw.Connection, tables: Iterable[str]) -> None:
    """Make empty tables with the definitions and indexes of a catalog, to try rows on.

    Raises:
        apsw.Error: a definition is none that can stand alone.
    """
    query = "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('table', 'index') AND sql NOT NULL"
    for table in tables:
        for (sql,) in source.execute(f"{query} ORDER BY type DESC", (table,)).fetchall():
            copy.execute(str(sql))


def find_dangling_references(db: apsw.Connection) -> Iterator[tuple[str, str, int]]:
    """Yield the references of a catalog's tables that lead nowhere: the table, what it refers to, and the row."""
    for name in INSERTED_COLUMNS:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).get is not None:
            for table, rowid, parent, _ in db.execute(f"PRAGMA foreign_key_check('{name}')"):
                yield str(table), str(parent), rowid if isinstance(rowid, int) else -1
