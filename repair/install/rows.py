"""The rows of a library in a profile's own tables: what these need, trying it on a copy, and inserting.

A profile's tables have more columns than a library's: those take their defaults, and a column that must have a value
and is not known here is refused by name (``docs/rules.md``, "Install").
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.errors import PlanOutdated, ProfileUnknown
from regraft.formats.catalog_reader import BASE_COLUMNS, Row

_TIMES = ("created_at", "updated_at")
#: The tables that rows are inserted into, with the columns that are known, parents first.
COLUMNS = {
    "user_model": ("id", "provider_id", "model_id", "name", "group", "capabilities", "order_key", *_TIMES),
    "knowledge_base": BASE_COLUMNS,
    "knowledge_item": ("id", "base_id", "group_id", "type", "data", "status", "error", *_TIMES),
    "assistant_knowledge_base": ("assistant_id", "knowledge_base_id", *_TIMES),
}
Columns = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class NewBase:
    """A base that is inserted, with the models that it has in the profile."""

    id: str
    model: str | None
    rerank: str | None


@dataclass(frozen=True)
class NewRows:
    """All rows that are inserted; bases and items are read from the library's catalog when they are needed."""

    path: Path
    catalog: Path
    mark: tuple[int, int] | None
    columns: Columns
    models: tuple[Row, ...]
    bases: tuple[NewBase, ...]
    #: Assistants with the bases that they use.
    links: tuple[tuple[str, str], ...]
    now_ms: int

    def apply(self, db: apsw.Connection) -> None:
        """Insert them, and hold every reference of the tables against what is there.

        Raises:
            PlanOutdated: the library was written to, or the profile's own rules refuse a row.
        """
        if sqlite.file_mark(self.catalog) != self.mark:
            raise PlanOutdated(path=self.catalog, reason="it was written to meanwhile")
        before = set(_dangling(db))
        try:
            db.execute("PRAGMA defer_foreign_keys = ON")
            insert(db, self.columns, "user_model", ({**row, **self._times} for row in self.models))
            with sqlite.reading(self.catalog) as source:
                for base in self.bases:
                    insert_base(db, source, self.columns, base)
            links = ({"assistant_id": one, "knowledge_base_id": base, **self._times} for one, base in self.links)
            insert(db, self.columns, "assistant_knowledge_base", links)
        except apsw.ConstraintError as error:
            raise PlanOutdated(path=self.path, reason=f"its own rules refuse a row ({error})") from error
        new = set(_dangling(db)) - before
        if new:
            table, parent = min(new)[:2]
            raise PlanOutdated(path=self.path, reason=f"a row of {table} would refer to none of {parent}")

    @property
    def _times(self) -> Row:
        return dict.fromkeys(_TIMES, self.now_ms)


def _dangling(db: apsw.Connection) -> Iterator[tuple[str, str, int]]:
    for name in COLUMNS:
        if db.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)).get is not None:
            for table, rowid, parent, _ in db.execute(f"PRAGMA foreign_key_check('{name}')"):
                yield str(table), str(parent), rowid if isinstance(rowid, int) else -1


def insert(db: apsw.Connection, columns: Columns, table: str, rows: Iterable[Row]) -> None:
    """Insert rows into a table, by the names of its columns."""
    names = columns.get(table, ())
    listed = ", ".join(f'"{name}"' for name in names)
    statement = f"INSERT INTO {table} ({listed}) VALUES ({', '.join('?' * len(names))})"
    for row in rows:
        db.execute(statement, tuple(row.get(name) for name in names))


def insert_base(db: apsw.Connection, source: apsw.Connection, columns: Columns, base: NewBase) -> None:
    """Insert a base of the library ``source`` with its items; its group is the user's own and none of the profile's."""
    own = {"group_id": None, "embedding_model_id": base.model, "rerank_model_id": base.rerank}
    found = _read(source, columns, "knowledge_base", "id", base.id)
    insert(db, columns, "knowledge_base", ({**row, **own} for row in found))
    insert(db, columns, "knowledge_item", _read(source, columns, "knowledge_item", "base_id", base.id))


def _read(source: apsw.Connection, columns: Columns, table: str, key: str, value: str) -> Iterator[Row]:
    there = {str(row[1]) for row in source.execute(f"PRAGMA table_info('{table}')")}
    names = [name for name in columns[table] if name in there]
    listed = ", ".join(f'"{name}"' for name in names)
    for row in source.execute(f"SELECT {listed} FROM {table} WHERE {key} = ? ORDER BY rowid", (value,)):
        yield dict(zip(names, row, strict=True))


# --- what a profile's tables are -------------------------------------------------------------------------------------


def known_columns(path: Path, db: apsw.Connection, source: apsw.Connection, tables: Iterable[str]) -> Columns:
    """Return which columns of a profile's tables get values of the library ``source``.

    Columns that a profile lacks are passed over where the library has nothing in them.

    Raises:
        ProfileUnknown: a table or column is missing, or one must have a value and is not known.
        apsw.Error: it cannot be read.
    """
    found = {}
    for table in tables:
        there: list[Any] = db.execute(f"PRAGMA table_info('{table}')").fetchall()
        if not there:
            raise ProfileUnknown(path=path, what=f"no table {table}")
        names = {str(row[1]) for row in there}
        missing = [name for name in COLUMNS[table] if name not in names and _is_used(source, table, name)]
        if missing:
            raise ProfileUnknown(path=path, what=f"a table {table} without {', '.join(missing)}")
        needed = [str(row[1]) for row in there if row[3] and row[4] is None and row[1] not in COLUMNS[table]]
        if needed:
            raise ProfileUnknown(path=path, what=f"a table {table} that needs {', '.join(needed)}")
        found[table] = tuple(name for name in COLUMNS[table] if name in names)
    return found


def _is_used(source: apsw.Connection, table: str, column: str) -> bool:
    """Tell whether a column of the library has a value; what is not in a library at all always gets one."""
    if table not in ("knowledge_base", "knowledge_item"):
        return True
    if column not in {row[1] for row in source.execute(f"PRAGMA table_info('{table}')")}:
        return False
    return source.execute(f'SELECT 1 FROM {table} WHERE "{column}" IS NOT NULL LIMIT 1').get is not None


def recorded_tables(db: apsw.Connection, tables: Iterable[str]) -> tuple[str, ...]:
    """Return the tables whose rows change with those of ``tables``: where one has a trigger, that may be any."""
    own = tuple(tables)
    marks = ", ".join("?" * len(own))
    if db.execute(f"SELECT 1 FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ({marks})", own).get is None:
        return own
    every = db.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        " AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
    )
    return (*own, *(str(name) for (name,) in every if name not in own))


class Rehearsal:
    """Tries rows on empty tables of the profile's own making, in a temporary file."""

    def __init__(self, db: apsw.Connection, source: apsw.Connection, columns: Columns) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="regraft-")
        self._source = source
        self._columns = columns
        self._path = Path(self._folder.name) / "rows.sqlite"
        with sqlite.writing(self._path, create=True) as copy:
            for table in columns:
                query = (
                    "SELECT sql FROM sqlite_schema WHERE tbl_name = ? AND type IN ('table', 'index') AND sql NOT NULL"
                )
                for (sql,) in db.execute(f"{query} ORDER BY type DESC", (table,)).fetchall():
                    copy.execute(str(sql))

    def problem(self, base: NewBase) -> str | None:
        """Return why the tables refuse a base or an item of it; None where they do not."""
        with sqlite.writing(self._path) as copy:
            # What rows refer to is not copied; the real transaction holds them against it.
            copy.execute("PRAGMA foreign_keys = OFF")
            copy.execute("BEGIN")
            try:
                insert_base(copy, self._source, self._columns, base)
                if copy.execute("PRAGMA foreign_key_check('knowledge_item')").fetchone() is not None:
                    return "an item's folder is not there"
            except apsw.ConstraintError as error:
                return str(error)
            finally:
                copy.execute("ROLLBACK")
        return None

    def close(self) -> None:
        """Remove the file."""
        self._folder.cleanup()
