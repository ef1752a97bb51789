"""The rows of a library in a profile's own tables: what these need, trying it on a copy, and inserting.

Which columns a profile has, and what they are given, is told by its generation (``docs/rules.md``, "Install").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import PlanOutdated, ProfileUnknown
from regraft.formats.cherry_v2.catalog_generation import (
    ASSISTANT_LINKS,
    BASES,
    GIVEN,
    ITEMS,
    MODELS,
    PROVIDERS,
    Tables,
    copy_definitions,
    dangling,
)
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import DATA
from regraft.language import tr
from regraft.ledger import durable
from regraft.text import decode_halves
from repair.cherry_v2.install import external
from repair.cherry_v2.install.rekeying import NewIds


class NewBase(msgspec.Struct, frozen=True):
    """A base that is inserted, with the models that it has in the profile."""

    id: str
    #: Its id in the source.
    origin: str
    model: str | None = None
    rerank: str | None = None
    #: Given where it comes as a new base.
    new_ids: NewIds | None = None
    #: Its name in the profile, where the user gives another one.
    name: str | None = None
    #: Whether its external items come as files.
    external_as_files: bool = False

    def items(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the items of the source as they are inserted."""
        if self.external_as_files:
            rows = external.with_files(rows)
        yield from rows if self.new_ids is None else map(self.new_ids.row, rows)


class NewRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that are inserted; bases and items are read from the library's catalog when they are needed."""

    tables: Tables
    catalog: Path
    mark: tuple[int, int] | None
    #: Rows of providers.
    providers: tuple[Row, ...]
    #: Rows of models.
    models: tuple[Row, ...]
    bases: tuple[NewBase, ...]
    #: Rows that say which assistant uses which base.
    links: tuple[Row, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the tables that rows are inserted into."""
        more = ((PROVIDERS, self.providers), (MODELS, self.models), (ASSISTANT_LINKS, self.links))
        return (BASES, ITEMS, *(table for table, rows in more if rows))

    def apply(self, db: apsw.Connection) -> None:
        """Insert them, and hold every reference of the tables against what is there.

        Raises:
            PlanOutdated: the library was written to, or the profile's own rules refuse a row.
        """
        if sqlite.file_mark(self.catalog) != self.mark:
            raise PlanOutdated(path=self.catalog, reason=tr("it was written to meanwhile"))
        before = set(dangling(db))
        try:
            db.execute("PRAGMA defer_foreign_keys = ON")
            insert(db, self.tables, PROVIDERS, self.providers)
            insert(db, self.tables, MODELS, self.models)
            with sqlite.reading(self.catalog) as source:
                for base in self.bases:
                    insert_base(db, source, self.tables, base)
            insert(db, self.tables, ASSISTANT_LINKS, self.links)
        except apsw.ConstraintError as error:
            raise PlanOutdated(
                path=self.tables.path, reason=tr("its own rules refuse a row ({error})", error=error)
            ) from error
        new = set(dangling(db)) - before
        if new:
            table, parent = min(new)[:2]
            raise PlanOutdated(
                path=self.tables.path,
                reason=tr("a row of {table} would refer to none of {parent}", table=table, parent=parent),
            )


def insert(db: apsw.Connection, tables: Tables, table: str, rows: Iterable[Row]) -> None:
    """Insert rows into a table, by the names of its columns."""
    for row in rows:
        db.execute(*tables.inserting(table, row))


def insert_base(db: apsw.Connection, source: apsw.Connection, tables: Tables, base: NewBase) -> None:
    """Insert a base of the library ``source`` with its items; its group is the user's own and none of the profile's."""
    own = {"id": base.id, "group_id": None, "embedding_model_id": base.model, "rerank_model_id": base.rerank}
    if base.name is not None:
        own["name"] = base.name
    insert(db, tables, BASES, ({**row, **own} for row in _read(source, BASES, "id", base.origin)))
    insert(db, tables, ITEMS, base.items(_read(source, ITEMS, "base_id", base.origin)))


def _read(source: apsw.Connection, table: str, key: str, value: str) -> Iterator[Row]:
    there = {str(row[1]) for row in source.execute(f"PRAGMA table_info('{table}')")}
    names = [name for name in GIVEN[table] if name in there]
    where = f"{table} WHERE {key} = ? ORDER BY rowid"
    for row in sqlite.lenient_rows(source, names, where, (value,), decode_halves):
        yield dict(zip(names, row, strict=True))


# --- what a profile's tables are -------------------------------------------------------------------------------------


def demand_insertable(tables: Tables, source: apsw.Connection) -> None:
    """Refuse a profile that bases and items of the library ``source`` cannot be inserted into.

    Columns that a profile lacks are passed over where the library has nothing in them.

    Raises:
        ProfileUnknown: a table or column is missing, or one must have a value and is not known.
        apsw.Error: it cannot be read.
    """
    for table in (BASES, ITEMS):
        tables.insertable(table, set(_used(source, table)))


def _used(source: apsw.Connection, table: str) -> Iterator[str]:
    """Yield the columns of the library that have a value in any row."""
    for row in source.execute(f"PRAGMA table_info('{table}')").fetchall():
        if source.execute(f'SELECT 1 FROM {table} WHERE "{row[1]}" IS NOT NULL LIMIT 1').get is not None:
            yield str(row[1])


class Rehearsal:
    """Tries rows on empty tables of the profile's own making, in a temporary file."""

    def __init__(self, db: apsw.Connection, source: apsw.Connection, tables: Tables) -> None:
        self._stack = ExitStack()
        self._source = source
        self._tables = tables
        self._path = self._stack.enter_context(durable.temporary_folder()) / "rows.sqlite"
        with sqlite.writing(self._path, create=True) as copy:
            copy_definitions(db, copy, [table for table in GIVEN if table in tables.columns])

    def problem(self, base: NewBase) -> str | None:
        """Return why the tables refuse a base or an item of it; None where they do not."""
        with self._tried() as copy:
            try:
                insert_base(copy, self._source, self._tables, base)
            except apsw.ConstraintError as error:
                return str(error)
            if copy.execute(f"PRAGMA foreign_key_check('{ITEMS}')").fetchone() is not None:
                return tr("an item's folder is not there")
        return None

    def refused_items(self, base: NewBase) -> dict[str, list[Row]]:
        """Return the items of a base whose type the tables refuse, by that type."""
        of_others: dict[str, list[Row]] = {}
        for row in base.items(_read(self._source, ITEMS, "base_id", base.origin)):
            if isinstance(row.get("type"), str) and row["type"] not in DATA:
                of_others.setdefault(row["type"], []).append(row)
        return {kind: rows for kind, rows in of_others.items() if self._is_type_refused(rows[0])}

    def _is_type_refused(self, row: Row) -> bool:
        """Whether the tables take an item as a file, and not as it is."""
        as_file = {"type": "file", "status": "completed", "error": None, "group_id": None}
        with self._tried() as copy:
            try:
                insert(copy, self._tables, ITEMS, [{**row, **as_file, "type": row["type"]}])
            except apsw.ConstraintError:
                pass
            else:
                return False
            try:
                insert(copy, self._tables, ITEMS, [{**row, **as_file}])
            except apsw.ConstraintError:
                return False
        return True

    def demand(self, table: str, rows: Iterable[Row]) -> None:
        """Refuse a profile whose table refuses rows that every base needs.

        Raises:
            ProfileUnknown
        """
        with self._tried() as copy:
            try:
                insert(copy, self._tables, table, rows)
            except apsw.ConstraintError as error:
                raise ProfileUnknown(
                    path=self._tables.path, what=tr("rules of its own: {error}", error=error)
                ) from error

    @contextmanager
    def _tried(self) -> Iterator[apsw.Connection]:
        with sqlite.writing(self._path) as copy:
            # What rows refer to is not copied; the real transaction holds them against it.
            copy.execute("PRAGMA foreign_keys = OFF")
            copy.execute("BEGIN")
            try:
                yield copy
            finally:
                copy.execute("ROLLBACK")

    def close(self) -> None:
        """Remove the file."""
        self._stack.close()
