"""The rows of a library in a profile's own tables: what these need, trying it on a copy, and inserting.

Which columns a profile has, and what they are given, is told by its generation (``docs/rules.md``, "Install").
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import PlanOutdated, ProfileUnknown, RegraftError
from regraft.formats import json_text
from regraft.formats.cherry_v1.state import read_slice
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, ModelRow
from regraft.formats.cherry_v2.catalog_generation import (
    ASSISTANT_LINKS,
    BASES,
    INSERTED_COLUMNS,
    ITEMS,
    MODELS,
    PROVIDERS,
    CatalogTables,
    copy_definitions,
    find_dangling_references,
    read_model,
)
from regraft.formats.cherry_v2.catalog_reader import DATA_FIELDS, Row, item_name, parse_item_data
from regraft.formats.cherry_v2.models import SEPARATOR, ModelOverrides
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.stores.locate import open_store
from regraft.text import decode_halves, one_line
from repair.changes.store import Store
from repair.cherry_v2.install.base_copy import CopyIds
from repair.cherry_v2.source import BaseSource

# Items of types that a profile's application does not have: external documents that come as files, and what to say of
# the others.
#
# An external document is a Markdown file in ``raw/`` that a newer application syncs from a service
# (``docs/formats/catalog.md``, "Types of newer applications"). The file is verbatim: as a file item it has the same text.


EXTERNAL = "external"
#: The option that turns external items into files.
EXTERNAL_OPTION = "--external-as-files"
#: So many items are named in a message.
_NAMED = 3


def convert_external_items(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield items as they are installed with :data:`OPTION`: external ones as files.

    An external item in status ``deleting`` is left out: the application has not finished it, or is removing it.
    """
    for row in rows:
        if row.get("type") != EXTERNAL:
            yield row
        elif row.get("status") != "deleting":
            # The application refuses a whole list of items for one further key.
            data = {name: value for name, value in parse_item_data(row).items() if name in DATA_FIELDS["file"][0]}
            text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
            yield {**row, "type": "file", "data": text}


def unfinished_external_items(rows: Iterable[Row]) -> list[Row]:
    """Return the external items that :func:`with_files` leaves out."""
    return [row for row in rows if row.get("type") == EXTERNAL and row.get("status") == "deleting"]


def external_file_path(row: Row) -> str | None:
    """Return the path below ``raw/`` of an external item's file; None where its data do not tell."""
    path = parse_item_data(row).get("relativePath")
    return path if isinstance(path, str) else None


def describe_refused_items(refused: dict[str, list[Row]]) -> str:
    """Say that a profile has no items of some types, and which items are of them.

    Args:
        refused: items by their type.
    """
    parts = [
        tr(
            "{items} of the type {type} ({names})",
            items=format_count(len(rows), "item"),
            type=one_line(kind),
            names=name_some_items(rows),
        )
        for kind, rows in sorted(refused.items())
    ]
    message = tr("the profile's application has no such items: {parts}", parts="; ".join(parts))
    if set(refused) == {EXTERNAL}:
        return tr("{message_}; {option} lets them come as files", message_=message, option=EXTERNAL_OPTION)
    return tr("{message_}; install into a profile of the application that has them", message_=message)


def name_some_items(rows: list[Row]) -> str:
    """Return the names of a few items, and how many more there are."""
    names = [one_line(_name_of(row)) for row in rows[:_NAMED]]
    more = len(rows) - len(names)
    return join_list(names) if not more else tr("{names} and {more} more", names=", ".join(names), more=more)


def _name_of(row: Row) -> str:
    data = parse_item_data(row)
    title = data.get("title")
    return title if isinstance(title, str) and title.strip() else item_name(row.get("type"), data) or str(row.get("id"))


class NewBase(msgspec.Struct, frozen=True):
    """A base that is inserted, with the models that it has in the profile."""

    id: str
    #: Its id in the source.
    origin: str
    model: str | None = None
    rerank: str | None = None
    #: Given where it comes as a new base.
    new_ids: CopyIds | None = None
    #: Its name in the profile, where the user gives another one.
    name: str | None = None
    #: Whether its external items come as files.
    external_as_files: bool = False

    def items(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the items of the source as they are inserted."""
        if self.external_as_files:
            rows = convert_external_items(rows)
        yield from rows if self.new_ids is None else map(self.new_ids.row, rows)


class NewRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that are inserted; bases and items are read from the library's catalog when they are needed."""

    tables: CatalogTables
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
        if untrusted_sqlite.database_mark(self.catalog) != self.mark:
            raise PlanOutdated(path=self.catalog, reason=tr("it was written to meanwhile"))
        before = set(find_dangling_references(db))
        try:
            db.execute("PRAGMA defer_foreign_keys = ON")
            insert_rows(db, self.tables, PROVIDERS, self.providers)
            insert_rows(db, self.tables, MODELS, self.models)
            with sqlite.open_readonly(self.catalog) as source:
                for base in self.bases:
                    insert_base(db, source, self.tables, base)
            insert_rows(db, self.tables, ASSISTANT_LINKS, self.links)
        except apsw.ConstraintError as error:
            raise PlanOutdated(
                path=self.tables.path, reason=tr("its own rules refuse a row ({error})", error=error)
            ) from error
        new = set(find_dangling_references(db)) - before
        if new:
            table, parent = min(new)[:2]
            raise PlanOutdated(
                path=self.tables.path,
                reason=tr("a row of {table} would refer to none of {parent}", table=table, parent=parent),
            )


def insert_rows(db: apsw.Connection, tables: CatalogTables, table: str, rows: Iterable[Row]) -> None:
    """Insert rows into a table, by the names of its columns."""
    for row in rows:
        db.execute(*tables.insert_statement(table, row))


def insert_base(db: apsw.Connection, source: apsw.Connection, tables: CatalogTables, base: NewBase) -> None:
    """Insert a base of the library ``source`` with its items; its group is the user's own and none of the profile's."""
    own = {"id": base.id, "group_id": None, "embedding_model_id": base.model, "rerank_model_id": base.rerank}
    if base.name is not None:
        own["name"] = base.name
    insert_rows(db, tables, BASES, ({**row, **own} for row in _read(source, BASES, "id", base.origin)))
    insert_rows(db, tables, ITEMS, base.items(_read(source, ITEMS, "base_id", base.origin)))


def _read(source: apsw.Connection, table: str, key: str, value: str) -> Iterator[Row]:
    there = {str(row[1]) for row in source.execute(f"PRAGMA table_info('{table}')")}
    names = [name for name in INSERTED_COLUMNS[table] if name in there]
    where = f"{table} WHERE {key} = ? ORDER BY rowid"
    for row in untrusted_sqlite.read_lenient_rows(source, names, where, (value,), decode_halves):
        yield dict(zip(names, row, strict=True))


# --- what a profile's tables are -------------------------------------------------------------------------------------


def demand_insertable(tables: CatalogTables, source: apsw.Connection) -> None:
    """Refuse a profile that bases and items of the library ``source`` cannot be inserted into.

    Columns that a profile lacks are passed over where the library has nothing in them.

    Raises:
        ProfileUnknown: a table or column is missing, or one must have a value and is not known.
        apsw.Error: it cannot be read.
    """
    for table in (BASES, ITEMS):
        tables.insertable_columns(table, set(_used(source, table)))


def _used(source: apsw.Connection, table: str) -> Iterator[str]:
    """Yield the columns of the library that have a value in any row."""
    for row in source.execute(f"PRAGMA table_info('{table}')").fetchall():
        if source.execute(f'SELECT 1 FROM {table} WHERE "{row[1]}" IS NOT NULL LIMIT 1').get is not None:
            yield str(row[1])


class RowsRehearsal:
    """Tries rows on empty tables of the profile's own making, in a temporary file."""

    def __init__(self, db: apsw.Connection, source: apsw.Connection, tables: CatalogTables) -> None:
        self._stack = ExitStack()
        self._source = source
        self._tables = tables
        self._path = self._stack.enter_context(durable.temporary_folder()) / "rows.sqlite"
        with sqlite.open_writable(self._path, create=True) as copy:
            copy_definitions(db, copy, [table for table in INSERTED_COLUMNS if table in tables.columns])

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
            if isinstance(row.get("type"), str) and row["type"] not in DATA_FIELDS:
                of_others.setdefault(row["type"], []).append(row)
        return {kind: rows for kind, rows in of_others.items() if self._is_type_refused(rows[0])}

    def _is_type_refused(self, row: Row) -> bool:
        """Whether the tables take an item as a file, and not as it is."""
        as_file = {"type": "file", "status": "completed", "error": None, "group_id": None}
        with self._tried() as copy:
            try:
                insert_rows(copy, self._tables, ITEMS, [{**row, **as_file, "type": row["type"]}])
            except apsw.ConstraintError:
                pass
            else:
                return False
            try:
                insert_rows(copy, self._tables, ITEMS, [{**row, **as_file}])
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
                insert_rows(copy, self._tables, table, rows)
            except apsw.ConstraintError as error:
                raise ProfileUnknown(
                    path=self._tables.path, what=tr("rules of its own: {error}", error=error)
                ) from error

    @contextmanager
    def _tried(self) -> Iterator[apsw.Connection]:
        with sqlite.open_writable(self._path) as copy:
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


# Which model of the profile a base has once it is installed: its own, a mapped one, or one that is re-created.


#: How many of the profile's models a message names.
_SHOWN = 8


class ModelMissing(Exception):
    """A base whose model the profile has not; the text says why, and what to do."""


class ProfileModels(msgspec.Struct, kw_only=True):
    """The models of a profile, and those that come with the bases of a library."""

    library: BaseSource
    model_overrides: ModelOverrides
    there: set[Any]
    #: Providers with their models' own ids: no two models of a provider have the same.
    pairs: set[tuple[Any, Any]]
    #: Ids of the providers that are there.
    providers: set[Any]
    #: Ids of the providers that are made because the user says so.
    recreated: frozenset[str] = frozenset()
    #: Models that are inserted, by their ids.
    new: dict[str, ModelRow] = msgspec.field(default_factory=dict)
    _used: set[str] = msgspec.field(default_factory=set)

    def embedding(self, base: str, named: Any) -> str | None:
        """Return the model that a base gets in place of the one that its row names.

        Raises:
            ModelMissing
        """
        if named is None:
            return None
        for old in self.model_overrides.mapped:
            if old == named or self.library.base_of(old) == base:
                self._used.add(old)
                named = self.model_overrides.mapped[old]
                break
        if self._is_there(named) or self._created(str(named), EMBEDDING):
            return str(named)
        provider = str(named).partition(SEPARATOR)[0]
        mapped = tr("--map-model '{named}=PROVIDER::MODEL' gives one that is there", named=named)
        known = sorted(one for one in self.there if isinstance(one, str))
        if known:
            more = len(known) - _SHOWN
            names = join_list([*known[:_SHOWN], *([tr("{more:,} more", more=more)] if more > 0 else [])])
            mapped = tr("{mapped} ({names})", mapped=mapped, names=one_line(names))
        if provider in self.providers or provider in self.recreated:
            again = f"--recreate-model '{named}'"
            raise ModelMissing(
                tr(
                    "its model {named} is neither in the profile nor in the library: {again}, or {mapped}",
                    named=named,
                    again=again,
                    mapped=mapped,
                )
            )
        gone = tr(
            "its model {named} and the provider {provider} are not in the profile", named=named, provider=provider
        )
        made = tr(
            "--recreate-provider '{provider}' makes it as one of your own, disabled and without keys", provider=provider
        )
        raise ModelMissing(tr("{gone}: {made}, or {mapped}", gone=gone, made=made, mapped=mapped))

    def rerank(self, named: Any) -> str | None:
        """Return the rerank model that a base keeps; None where it cannot."""
        if named is None:
            return None
        named = self.model_overrides.mapped.get(named, named)
        return str(named) if self._is_there(named) or self._created(str(named), RERANK) else None

    def unused(self) -> list[str]:
        """Return the user's words that met no base: a typing error, most likely."""
        made = self.there | self.new.keys()
        providers = {model.provider_id for model in self.new.values()} | self.providers
        return [
            *(tr("the model {old}", old=old) for old in self.model_overrides.mapped if old not in self._used),
            *(tr("the model {model}", model=model) for model in sorted(self.model_overrides.recreated - made)),
            *(tr("the provider {provider}", provider=provider) for provider in sorted(self.recreated - providers)),
        ]

    def _is_there(self, named: Any) -> bool:
        return named in self.there or named in self.new

    def _created(self, named: str, capabilities: tuple[str, ...]) -> bool:
        """Re-create a model as the library has it, or as the user's word has it, where its provider is there."""
        provider, _, model = named.partition(SEPARATOR)
        row = self.library.models.get(named)
        if provider not in self.providers | self.recreated or (
            row is None and named not in self.model_overrides.recreated
        ):
            return False
        known: Row = row if row is not None and row.get("provider_id") == provider else {}
        model = known.get("model_id") or model
        if (provider, model) in self.pairs:
            return False
        self.new[named] = read_model({**known, "id": named, "provider_id": provider, "model_id": model}, capabilities)
        self.pairs.add((provider, model))
        return True


def read_models(
    db: apsw.Connection, library: BaseSource, model_overrides: ModelOverrides, recreated: frozenset[str]
) -> ProfileModels:
    """Read which models and providers a profile has, of which ``recreated`` are made where it lacks them.

    Keys are never read.

    Raises:
        apsw.Error: it cannot be read.
    """
    pairs = {(row[1], row[2]): row[0] for row in db.execute("SELECT id, provider_id, model_id FROM user_model")}
    providers = {row[0] for row in db.execute("SELECT provider_id FROM user_provider")}
    return ProfileModels(
        library=library,
        model_overrides=model_overrides,
        there=set(pairs.values()),
        pairs=set(pairs),
        providers=providers,
        recreated=recreated - providers,
    )


# Which assistants of a profile still refer to a base by the id that it had in v1 (``docs/rules.md``, "Install").
#
# They do so in a row that leads nowhere, in the assistant's own settings, or in what v1 left of its state.


_TABLE, _LINKS = "assistant", "assistant_knowledge_base"
#: What speaks of bases in the name of a setting.
_WORD = "knowledge"
#: How deep settings are looked into.
_DEPTH = 12


def find_assistant_links(
    store: Store, db: apsw.Connection, base_of: Callable[[str], str | None]
) -> list[tuple[str, str]]:
    """Return the assistants that refer to a base, with the base, as far as the profile does not say so already.

    Args:
        store: the profile.
        db: its database.
        base_of: from an id in v1 to the base that is installed for it, None where none is.

    Raises:
        apsw.Error: the database cannot be read.
    """
    columns = _columns(db, _TABLE)
    if "id" not in columns or not {"assistant_id", "knowledge_base_id"} <= set(_columns(db, _LINKS)):
        return []
    known = {(one, base) for one, base in db.execute(f"SELECT assistant_id, knowledge_base_id FROM {_LINKS}")}
    there = _assistants(db, columns)
    found: set[tuple[str, str]] = set()
    for assistant, old in (*known, *_in_settings(db, columns), *_in_v1(store)):
        base = base_of(old) if isinstance(old, str) and assistant in there else None
        if base is not None:
            found.add((assistant, base))
    return sorted(found - known)


def _columns(db: apsw.Connection, table: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]


def _assistants(db: apsw.Connection, columns: list[str]) -> set[str]:
    """Return the ids of the assistants that are there."""
    is_there = " WHERE deleted_at IS NULL" if "deleted_at" in columns else ""
    return {key for (key,) in db.execute(f"SELECT id FROM {_TABLE}{is_there}") if isinstance(key, str)}


def _in_settings(db: apsw.Connection, columns: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield assistants with what their own row names as knowledge bases."""
    for column in columns:
        text = f'CAST("{column}" AS BLOB)'
        # A value of any bytes is looked into without being decoded.
        has_word = f"instr({text}, x'{_WORD[1:].encode().hex()}')"
        query = f"SELECT id, {text} FROM {_TABLE} WHERE typeof(\"{column}\") = 'text' AND {has_word}"
        for assistant, value in db.execute(query):
            with contextlib.suppress(ValueError, RecursionError):
                yield from ((assistant, old) for old in _named(json_text.loads(value), _DEPTH))


def _named(value: Any, depth: int) -> Iterator[Any]:
    """Yield the ids below every key that speaks of knowledge."""
    if isinstance(value, dict) and depth:
        for key, inside in value.items():
            if _WORD in key.lower():
                yield from _ids(inside)
            yield from _named(inside, depth - 1)
    elif isinstance(value, list) and depth:
        for inside in value:
            yield from _named(inside, depth - 1)


def _ids(value: Any) -> Iterator[Any]:
    for one in value if isinstance(value, list) else [value]:
        yield one.get("id") if isinstance(one, dict) else one


def _in_v1(store: Store) -> Iterator[tuple[Any, Any]]:
    """Yield the assistants of v1's state with the bases that they had; nothing where that cannot be read."""
    for kind in (Kind.V1_PROFILE, Kind.V1_EXPORT):
        with contextlib.suppress(RegraftError, OSError), open_store(store.root, kind) as source:
            state = read_slice(source.tree, source.places, "assistants")
            listed = state.get("assistants") if isinstance(state, dict) else None
            for one in listed if isinstance(listed, list) else ():
                if isinstance(one, dict):
                    yield from ((one.get("id"), old) for old in _ids(one.get("knowledge_bases")))
