"""Read the catalog of a store, and change exactly the planned rows.

A profile's tables may have unknown columns. Rows are updated column by column, and a row is inserted only if every
required column is known (``docs/formats/catalog.md``, "Generations").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import apsw

from checks.cherry_v2 import findings as v2
from migrators.pipeline.plan import ItemPlan
from regraft.disk import scratch, sqlite, untrusted_sqlite
from regraft.errors import NotChanged, PlanOutdated, ProfileUnknown, SourceUnreadable
from regraft.formats.cherry_v2.catalog import ModelRow
from regraft.formats.cherry_v2.catalog_generation import (
    BASES,
    ITEMS,
    MODELS,
    PROVIDERS,
    CatalogTables,
    OrderKeys,
    copy_definitions,
    make_model_row,
    make_provider_row,
    read_tables,
)
from regraft.formats.cherry_v2.catalog_reader import (
    CatalogProblem,
    Row,
    StoredCatalog,
    dump_item_data,
    parse_item_data,
    read_catalog,
)
from regraft.formats.cherry_v2.index import SCHEMA_VERSION
from regraft.formats.cherry_v2.index.opening import READ_ERRORS
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import format_count, tr
from regraft.text import replace_surrogates
from repair.changes.plan import Action, RowsChange
from repair.changes.store import Store

#: Columns of existing rows that are read or written.
_KNOWN = {
    MODELS: ("id", "provider_id", "model_id", "order_key"),
    BASES: ("id", "status", "error", "dimensions", "embedding_model_id"),
    ITEMS: ("id", "base_id", "group_id", "type", "data", "status", "error", "created_at", "updated_at"),
}
#: Tables whose rows change. Providers of a profile are never changed: they hold keys.
CATALOG_TABLES = tuple(_KNOWN)
#: Those, and the table of providers, of which a library gets new ones.
MODEL_TABLES = (*CATALOG_TABLES, PROVIDERS)


@dataclass
class CatalogStatements:
    """SQL statements of one run on a catalog, what the report says of them, and the ids of the bases that they change.

    ``name`` is the catalog's path, relative to ``root``, the root of its store.
    """

    root: Path
    name: str
    actions: list[Action] = field(default_factory=list)
    #: SQL, values, and the columns that the last values are compared with.
    made: list[tuple[str, tuple[Any, ...], tuple[str, ...]]] = field(default_factory=list)
    bases: set[str] = field(default_factory=set)
    #: Tables that new rows come into.
    inserted: set[str] = field(default_factory=set)
    #: Ids of the inserted models.
    new_models: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, store: Store) -> CatalogStatements:
        """Begin the statements on the catalog of a store that has one."""
        return cls(store.root, str(store.catalog))

    @property
    def path(self) -> Path:
        """Path of the catalog."""
        return self.root / self.name

    @cached_property
    def tables(self) -> CatalogTables:
        """Tables and columns of the catalog."""
        with sqlite.open_readonly(self.path) as db:
            return read_tables(self.path, db)

    @cached_property
    def _keys(self) -> OrderKeys:
        """Generates sort keys for new models and providers."""
        with sqlite.open_readonly(self.path) as db:
            return OrderKeys(db)

    @property
    def bytes(self) -> int:
        """Approximate size of the written rows in bytes."""
        return sum(200 + sum(len(str(value)) for value in values) for _, values, _ in self.made)

    def complete_base(self, row: Row, dimensions: int | None, model: str) -> None:
        """Add a statement that sets a base to completed, with its model and the dimensions of its vectors."""
        change = "UPDATE knowledge_base SET status = 'completed', error = NULL, dimensions = ?, embedding_model_id = ?"
        self._change_row(row["id"], change, (dimensions, model), row, *_KNOWN[BASES])

    def complete_item(self, base: str, row: Row) -> None:
        """Add a statement that sets an item to completed which the application's upgrade did not migrate."""
        change = "UPDATE knowledge_item SET status = 'completed', error = NULL"
        self._change_row(base, change, (), row, "id", "base_id", "status", "error")

    def complete_folder(self, base: str, row: Row, prefix: str, *, source: str, files: int) -> None:
        """Add statements, and the action, that complete a folder item which the application's upgrade left behind.

        Args:
            base: the base's id.
            row: the row of the folder item.
            prefix: the path below ``raw/`` that its files share. The folder item gets this path if it has none.
            source: the path of the original folder.
            files: the number of files that are added to the folder item.
        """
        if "relativePath" not in parse_item_data(row):
            self.set_path(base, row, prefix)
        self.complete_item(base, row)
        message = tr("list {files} of the folder {source} as items", source=source, files=format_count(files, "file"))
        self.actions.append(
            Action(
                action="complete-folder",
                message=message,
                base=base,
                subject=str(row["id"]),
                finding=v2.ITEM_TOMBSTONE,
            )
        )

    def set_path(self, base: str, row: Row, path: str) -> None:
        """Add a statement that sets the path of an item's snapshot. Other data of the item is unchanged."""
        change = "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', ?)"
        self._change_row(base, change, (path,), row, "id", "base_id", "data")

    def set_source(self, base: str, row: Row, source: str) -> None:
        """Add a statement that sets the path of the original of a file or folder.

        The item's other data is unchanged.
        """
        change = "UPDATE knowledge_item SET data = json_set(data, '$.source', ?)"
        self._change_row(base, change, (source,), row, "id", "base_id", "data")

    def update_item(
        self, base: str, row: Row, data: Mapping[str, str], now_ms: int | None, *, container: str | None
    ) -> None:
        """Add a statement that updates an item.

        Args:
            base: the base's id.
            row: the item's present row.
            data: the changed fields of the item's data.
            now_ms: time of the change; None: the recorded time stays.
            container: id of the folder item that the item is in, if any.
        """
        change = "UPDATE knowledge_item SET group_id = ?, updated_at = ?"
        values: tuple[Any, ...] = (container, row.get("updated_at") if now_ms is None else now_ms)
        if data:
            change += ", data = ?"
            values = (*values, dump_item_data({**parse_item_data(row), **data}))
        self._change_row(base, change, values, row, "id", "base_id", "group_id", "data", "status")

    def delete_item(self, base: str, row: Row) -> None:
        """Add a statement that deletes an item; a folder must be empty."""
        self._change_row(base, "DELETE FROM knowledge_item", (), row, "id", "base_id", "type", "data", "status")

    def _change_row(self, base: str, change: str, values: tuple[Any, ...], row: Row, *known: str) -> None:
        """Add a statement that updates or deletes one row.

        The run stops with PlanOutdated unless exactly one row has the values of ``row`` in all columns ``known``.

        Args:
            base: id of the base that the row belongs to.
            change: an UPDATE or DELETE without WHERE.
            values: the values of its parameters.
            row: the present row.
            known: columns that make up the whole WHERE condition; the id must be one of them.
        """
        self.bases.add(base)
        self.made.append((change, (*values, *(row.get(name) for name in known)), known))

    def insert_item(self, base: str, item: ItemPlan, times: Row) -> None:
        """Add a statement that inserts a planned file of a folder.

        The row ``times`` gives times that the plan lacks.
        """
        self.bases.add(base)
        data = {key: replace_surrogates(value) for key, value in item.data.items()}
        values = {
            "id": item.id,
            "base_id": base,
            "group_id": item.group_id,
            "type": item.type,
            "data": dump_item_data(data),
            "status": item.status,
            "error": item.error,
            "created_at": times.get("created_at") if item.created_at is None else item.created_at,
            "updated_at": times.get("updated_at") if item.updated_at is None else item.updated_at,
        }
        self.insert(ITEMS, values)

    def set_model(self, row: Row, model: str, dimensions: int, now_ms: int) -> None:
        """Add a statement that gives a base without a model one. Stored search settings are set to fit it."""
        values = {"embedding_model_id": model, "dimensions": dimensions, **self.tables.search_settings(model)}
        values = {**values, "updated_at": now_ms}
        values.pop("hybrid_alpha", None)
        change = f"UPDATE {BASES} SET {', '.join(f'{name} = ?' for name in values)}"
        known = ("id", "status", "embedding_model_id", "dimensions")
        self._change_row(row["id"], change, tuple(values.values()), row, *known)

    def copy_row(self, table: str, key: str, changed: Mapping[str, Any]) -> None:
        """Add a statement that copies the row of a table whose id is ``key``, with the columns in ``changed`` replaced.

        Raises:
            ProfileUnknown: the table has an unknown required column.
        """
        self.tables.insertable_columns(table, ())
        columns: Sequence[str] = tuple(self.tables.columns[table])
        listed = ", ".join(map(untrusted_sqlite.quote_name, columns))
        copied = ", ".join("?" if name in changed else untrusted_sqlite.quote_name(name) for name in columns)
        values = [changed[name] for name in columns if name in changed]
        self.inserted.add(table)
        change = f"INSERT INTO {table} ({listed}) SELECT {copied} FROM {table} WHERE id = ?"
        self.made.append((change, (*values, key), ()))

    def insert_model(self, model: ModelRow, now_ms: int) -> None:
        """Add a statement that inserts a model as the last one of its provider."""
        self.new_models.add(model.id)
        self.insert(MODELS, make_model_row(model, self._keys.next_model(model.provider_id), now_ms))

    def insert_provider(self, provider: str, now_ms: int) -> None:
        """Add a statement that inserts a provider with only a name into a library."""
        self.insert(
            PROVIDERS, make_provider_row(provider, provider, self._keys.next_provider(), now_ms, is_enabled=True)
        )

    def insert(self, table: str, row: Row) -> None:
        """Add a statement that inserts a row into a table.

        Raises:
            ProfileUnknown: the table has an unknown required column.
        """
        self.inserted.add(table)
        self.made.append((*self.tables.insert_statement(table, row), ()))

    def as_function(self) -> Callable[[apsw.Connection], None]:
        """Return a function that executes the statements on a connection. Each must change exactly one row."""
        path = self.path

        def apply(db: apsw.Connection) -> None:
            """Execute the statements on the open catalog."""
            # An item may be inserted before its folder.
            db.execute("PRAGMA defer_foreign_keys = ON")
            for sql, values, known in self.made:
                try:
                    db.execute(f"{sql} WHERE {_condition(db, known, values)}" if known else sql, values)
                except apsw.ConstraintError as error:
                    raise PlanOutdated(
                        path=path, reason=tr("a constraint refuses a row ({error})", error=error)
                    ) from error
                if db.changes() != 1:
                    raise PlanOutdated(path=path, reason=tr("a row was changed since the plan was made"))

        return apply


def _condition(db: apsw.Connection, known: tuple[str, ...], values: tuple[Any, ...]) -> str:
    """Return the SQL condition that a row still has the values of its ``known`` columns, the last of ``values``."""
    condition = untrusted_sqlite.unchanged_condition(db, known)
    place = len(values) - len(known) + known.index("id") if "id" in known else None
    if place is not None and isinstance(values[place], str) and values[place].isascii():
        condition += f" AND id = ?{place + 1}"  # so that SQLite finds the row by its key
    return condition


def make_catalog_change(statements: CatalogStatements, tables: tuple[str, ...]) -> RowsChange:
    """Execute the statements on a copy, and return them as a change of the catalog.

    Args:
        statements: the statements.
        tables: tables whose rows may change.

    Raises:
        ProfileUnknown: a table or a required column is missing or unknown, or a constraint refuses a row.
        apsw.Error: the catalog cannot be read.
    """
    _rehearse(statements)
    return RowsChange(
        path=statements.name,
        actions=tuple(statements.actions),
        apply=statements.as_function(),
        tables=tables,
        bytes=statements.bytes,
    )


def _rehearse(statements: CatalogStatements) -> None:
    """Execute the statements on a temporary copy of the affected rows, with the constraints of the catalog's tables.

    Raises:
        ProfileUnknown: a table or a required column is missing or unknown, or a constraint refuses a row.
        apsw.Error: the catalog cannot be read.
    """
    path, tables = statements.path, {*CATALOG_TABLES, *statements.inserted}
    with (
        scratch.temporary_folder() as work,
        sqlite.open_readonly(path) as source,
        sqlite.open_writable(work / "rows.sqlite", create=True) as copy,
    ):
        # Referenced rows are not copied. The real transaction checks references.
        copy.execute("PRAGMA foreign_keys = OFF")
        for table, known in _KNOWN.items():
            statements.tables.demand(table, known)
        copy_definitions(source, copy, sorted(tables))
        # Existing rows may violate constraints. New ones must not.
        copy.execute("PRAGMA ignore_check_constraints = ON")
        for base in statements.bases:
            _copy_rows(source, copy, BASES, "id", base)
            _copy_rows(source, copy, ITEMS, "base_id", base)
        copy.execute("PRAGMA ignore_check_constraints = OFF")
        try:
            with sqlite.transaction(copy):
                statements.as_function()(copy)
        except PlanOutdated as error:
            raise ProfileUnknown(
                path=path, what=tr("a database with additional constraints ({reason})", reason=error.facts["reason"])
            ) from error


def _copy_rows(source: apsw.Connection, copy: apsw.Connection, table: str, key: str, value: str) -> None:
    """Copy the rows of a table whose column ``key`` has the given value from ``source`` to ``copy``."""
    columns = untrusted_sqlite.list_columns(source, table)
    listed, marks = ", ".join(map(untrusted_sqlite.quote_name, columns)), ", ".join("?" * len(columns))
    rows = untrusted_sqlite.read_lenient_rows(source, columns, f"{table} WHERE {key} = ?", (value,))
    copy.executemany(f"INSERT INTO {table} ({listed}) VALUES ({marks})", rows)


# --- reading the catalog ---------------------------------------------------------------------------------------------


def demand_catalog(store: Store, command: str, advice: str | None = None) -> str:
    """Return the path of a store's catalog, relative to its root.

    Args:
        store: the store.
        command: the command that needs the catalog, for the message.
        advice: what to do instead, for the message; None: use the store that the files belong to.

    Raises:
        NotChanged: the store has no catalog.
    """
    if store.catalog is None:
        raise NotChanged(
            path=store.path,
            what=tr("{names} without a catalog", names=KIND_NAMES[store.found.kind]),
            command=command,
            advice=advice or tr("use the library or profile that it belongs to"),
        )
    return store.catalog


def is_selected(store: Store, base: str) -> bool:
    """Whether the user selected a base of the catalog.

    If the store is the folder or the index file of one base, only that base is selected.
    """
    return store.wants(base) and (store.found.stores.is_whole or base in store.stores)


def demand_profile(store: Store, *, command: str, advice: str) -> str:
    """Return the path of a profile's database, relative to its root; ``command`` and ``advice`` are for the message.

    Raises:
        NotChanged: the store is not a profile.
    """
    if store.found.kind is not Kind.V2_PROFILE or store.catalog is None or not store.is_profile:
        raise NotChanged(path=store.path, what=KIND_NAMES[store.found.kind], command=command, advice=advice)
    return store.catalog


def read_store_catalog(store: Store, *, data: bool = True) -> StoredCatalog:
    """Read the catalog of a store that has one. ``data``: whether to read the column ``data`` of items, too.

    Raises:
        SourceUnreadable: the catalog cannot be read.
    """
    path = store.root / str(store.catalog)
    try:
        return read_catalog(path, data=data)
    except CatalogProblem as problem:
        raise SourceUnreadable(path=path, reason=problem.reason) from problem


def demand_known_version(store: Store) -> None:
    """Refuse a profile if its highest or newest index has another version than regraft writes.

    The application would then clear indexes of regraft's version.

    Raises:
        ProfileUnknown
    """
    versions = sorted(_index_versions(store))
    newest = versions[-1] if versions else None
    highest = max(versions, key=lambda one: one[1], default=None)
    for found in (highest, newest):
        if found is not None and found[1] != SCHEMA_VERSION and (found is newest or found[1] > SCHEMA_VERSION):
            what = tr(
                "an index of version {found} instead of {schema_version} in base {found2}",
                found=found[1],
                schema_version=SCHEMA_VERSION,
                found2=found[2],
            )
            raise ProfileUnknown(path=store.root, what=what)


def _index_versions(store: Store) -> Iterator[tuple[int, int, str]]:
    """Yield the time of creation (ms), the layout version and the base id of each readable index."""
    for base, one in store.stores.items():
        try:
            with sqlite.open_readonly(store.root / one.name) as db:
                row = db.execute("SELECT created_at, schema_version FROM meta WHERE id = 1").fetchone()
        except READ_ERRORS:
            continue  # damaged, or of another layout
        if row is not None and isinstance(row[0], int) and isinstance(row[1], int):
            yield row[0], row[1], base


INTERRUPTED = "indexing_interrupted"
