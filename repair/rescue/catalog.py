"""The rows of a profile's own database: which columns it has, and changing exactly those rows that were planned.

A profile's tables have more columns than are known here. Rows are updated column by column, and a row is only inserted
where every column that it must have is known (``docs/formats/catalog.md``, "A profile's own tables").
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from migrators.stages.planned import ItemPlan
from regraft import sqlite
from regraft.errors import PlanOutdated, ProfileUnknown
from regraft.formats.catalog import ModelRow
from regraft.formats.catalog_reader import Row
from regraft.text import whole

#: One row that changes: the statement, and its values.
Statement = tuple[str, tuple[Any, ...]]
_TIMES = ("created_at", "updated_at")
#: The columns that are read and written: rows of models and items are inserted, those of bases are not.
_KNOWN = {
    "user_model": ("id", "provider_id", "model_id", "name", "group", "capabilities", "order_key", *_TIMES),
    "knowledge_base": ("id", "status", "error", "dimensions", "embedding_model_id"),
    "knowledge_item": ("id", "base_id", "group_id", "type", "data", "status", "error", *_TIMES),
}
#: The tables whose rows change. Providers are never touched: they hold keys.
TABLES = tuple(_KNOWN)


@dataclass
class Statements:
    """The statements of one run, and the ids of the bases that they are about."""

    made: list[Statement] = field(default_factory=list)
    bases: set[str] = field(default_factory=set)

    @property
    def bytes(self) -> int:
        """Return about how much the rows hold."""
        return sum(200 + sum(len(str(value)) for value in values) for _, values in self.made)

    def complete_base(self, row: Row, dimensions: int | None, model: str) -> None:
        """Make a base a completed one."""
        change = "UPDATE knowledge_base SET status = 'completed', error = NULL, dimensions = ?, embedding_model_id = ?"
        self._update(row["id"], change, (dimensions, model), row, *_KNOWN["knowledge_base"])

    def complete_item(self, base: str, row: Row) -> None:
        """Make an item that was not migrated a completed one."""
        change = "UPDATE knowledge_item SET status = 'completed', error = NULL"
        self._update(base, change, (), row, "id", "base_id", "status", "error")

    def set_path(self, base: str, row: Row, path: str) -> None:
        """Give an item the path of its snapshot; all else that its data hold stays as it is written."""
        change = "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', ?)"
        self._update(base, change, (path,), row, "id", "base_id", "data")

    def _update(self, base: str, change: str, values: tuple[Any, ...], row: Row, *known: str) -> None:
        """Update a row if it still has what is ``known`` of it."""
        self.bases.add(base)
        same = " AND ".join(f"{name} IS ?" for name in known)
        self.made.append((f"{change} WHERE {same}", (*values, *(row.get(name) for name in known))))

    def insert_item(self, base: str, item: ItemPlan, times: Row) -> None:
        """Insert a file of a folder; ``times`` is the folder's row, for what v1 has no time of."""
        self.bases.add(base)
        data = {key: whole(value) for key, value in item.data.items()}
        self._insert(
            "knowledge_item",
            item.id,
            base,
            item.group_id,
            item.type,
            json.dumps(data, ensure_ascii=False, separators=(",", ":")),
            item.status,
            item.error,
            times.get("created_at") if item.created_at is None else item.created_at,
            times.get("updated_at") if item.updated_at is None else item.updated_at,
        )

    def set_model(self, row: Row, model: str, dimensions: int, mode: str, now_ms: int) -> None:
        """Give a base without a model one."""
        change = "UPDATE knowledge_base SET embedding_model_id = ?, dimensions = ?, search_mode = ?, updated_at = ?"
        known = ("id", "status", "embedding_model_id", "dimensions")
        self._update(row["id"], change, (model, dimensions, mode, now_ms), row, *known)

    def copy_row(self, table: str, columns: Sequence[str], key: str, changed: Mapping[str, Any]) -> None:
        """Copy a row of a base under another id: all columns as they are, but for those that are ``changed``."""
        listed = ", ".join(map(sqlite.quoted, columns))
        copied = ", ".join("?" if name in changed else sqlite.quoted(name) for name in columns)
        values = [changed[name] for name in columns if name in changed]
        self.made.append((f"INSERT INTO {table} ({listed}) SELECT {copied} FROM {table} WHERE id = ?", (*values, key)))

    def insert_model(self, model: ModelRow, key: str, now_ms: int) -> None:
        """Insert a model of a provider that is there; ``key`` is its place in the order of the provider's models."""
        self._insert(
            "user_model",
            model.id,
            model.provider_id,
            model.model_id,
            model.name,
            model.group,
            "[]",
            key,
            now_ms,
            now_ms,
        )

    def _insert(self, table: str, *values: Any) -> None:
        columns = ", ".join(f'"{name}"' for name in _KNOWN[table])
        self.made.append((f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})", values))

    def applied_to(self, path: Path) -> Callable[[apsw.Connection], None]:
        """Return what runs them in the database at ``path``; each changes exactly one row."""

        def apply(db: apsw.Connection) -> None:
            for sql, values in self.made:
                try:
                    db.execute(sql, values)
                except apsw.ConstraintError as error:
                    raise PlanOutdated(path=path, reason=f"its own rules refuse a row ({error})") from error
                if db.changes() != 1:
                    raise PlanOutdated(path=path, reason="a row was changed since the plan was made")

        return apply


def rehearse(path: Path, statements: Statements) -> None:
    """Try the statements on a copy of nothing but the rows that they are about, under the tables' own rules.

    Raises:
        ProfileUnknown: a table, or a column that a row must have, is missing or unknown, or a rule refuses a row.
        apsw.Error: it cannot be read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="regraft-") as work,
        sqlite.reading(path) as source,
        sqlite.writing(Path(work) / "rows.sqlite", create=True) as copy,
    ):
        # What rows refer to is not copied; the engine's own transaction holds them against it.
        copy.execute("PRAGMA foreign_keys = OFF")
        for table in TABLES:
            _demand_columns(path, source, table, statements)
            ddl = source.execute("SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?", (table,)).get
            copy.execute(str(ddl))
        # What is there already may break the rules; what is written must not.
        copy.execute("PRAGMA ignore_check_constraints = ON")
        for base in statements.bases:
            _copy_rows(source, copy, "knowledge_base", "id", base)
            _copy_rows(source, copy, "knowledge_item", "base_id", base)
        copy.execute("PRAGMA ignore_check_constraints = OFF")
        try:
            statements.applied_to(path)(copy)
        except PlanOutdated as error:
            raise ProfileUnknown(path=path, what=f"rules of its own: {error.facts['reason']}") from error


def _demand_columns(path: Path, db: apsw.Connection, table: str, statements: Statements) -> None:
    known = _KNOWN[table]
    # A row that is copied has every column.
    inserted = any(sql.startswith(f"INSERT INTO {table} ") and " SELECT " not in sql for sql, _ in statements.made)
    there: list[Any] = db.execute(f"PRAGMA table_info('{table}')").fetchall()
    missing = [name for name in known if name not in {row[1] for row in there}]
    if missing:
        raise ProfileUnknown(path=path, what=f"a table {table} without {', '.join(missing)}")
    unknown = [str(row[1]) for row in there if inserted and row[3] and row[4] is None and row[1] not in known]
    if unknown:
        raise ProfileUnknown(path=path, what=f"a table {table} that needs {', '.join(unknown)}")


def _copy_rows(source: apsw.Connection, copy: apsw.Connection, table: str, key: str, value: str) -> None:
    columns = [f'"{row[1]}"' for row in source.execute(f"PRAGMA table_info('{table}')")]
    marks = ", ".join("?" * len(columns))
    rows = source.execute(f"SELECT {', '.join(columns)} FROM {table} WHERE {key} = ?", (value,))
    copy.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


def next_order_key(path: Path, provider: str, made: Statements) -> str:
    """Return a key that sorts after those of all models of a provider, and of those that are going to be inserted."""
    with sqlite.reading(path) as db:
        last: Any = db.execute("SELECT max(order_key) FROM user_model WHERE provider_id = ?", (provider,)).get
    start = "a0" if not isinstance(last, str) else f"{last}V"
    return start + "V" * sum(
        sql.startswith("INSERT INTO user_model ") and provider in values for sql, values in made.made
    )
