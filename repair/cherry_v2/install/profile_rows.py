"""Rows that an installation inserts into a profile: bases, items, models, providers and links of assistants.

Which columns the profile's tables have depends on their generation (``docs/rules.md``, "Install"). All rows are tested
on empty copies of the tables first. Items of types that the profile's application does not have are refused, except
external documents: Markdown files in ``raw/`` that a newer application syncs from a service can be installed as files
(``docs/formats/catalog.md``, "Types of newer applications").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import scratch, sqlite, untrusted_sqlite
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
from regraft.formats.cherry_v2.catalog_reader import DATA_FIELDS, Row, dump_item_data, item_name, parse_item_data
from regraft.formats.cherry_v2.models import SEPARATOR, ModelOverrides
from regraft.kinds import Kind
from regraft.language import format_count, join_first, join_list, tr
from regraft.stores.locate import open_store
from regraft.text import decode_halves, join_command, one_line
from repair.changes.store import Store
from repair.cherry_v2.install.base_copy import CopyIds
from repair.cherry_v2.source import BaseSource

# --- external items --------------------------------------------------------------------------------------------------

EXTERNAL = "external"
#: The option that turns external items into files.
EXTERNAL_OPTION = "--external-as-files"
#: Number of items that a message names.
_NAMED = 3


def convert_external_items(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield item rows, with those of external documents converted to files.

    External items in status ``deleting`` are left out: the application has not finished them, or is deleting them.
    """
    for row in rows:
        if row.get("type") != EXTERNAL:
            yield row
        elif row.get("status") != "deleting":
            # The application refuses to list items if one of them has an unknown key.
            data = {name: value for name, value in parse_item_data(row).items() if name in DATA_FIELDS["file"][0]}
            yield {**row, "type": "file", "data": dump_item_data(data)}


def unfinished_external_items(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of external items that :func:`convert_external_items` leaves out."""
    return [row for row in rows if row.get("type") == EXTERNAL and row.get("status") == "deleting"]


def describe_refused_items(refused: dict[str, list[Row]]) -> str:
    """Describe, for a message, the items whose types the profile does not support.

    Args:
        refused: item rows by type.
    """
    parts = [
        tr(
            "{items} of type {type} ({names})",
            items=format_count(len(rows), "item"),
            type=one_line(kind),
            names=name_some_items(rows),
        )
        for kind, rows in sorted(refused.items())
    ]
    message = tr("the profile's application does not support {parts}", parts="; ".join(parts))
    if set(refused) == {EXTERNAL}:
        return tr("{what}; use {option} to install them as files", what=message, option=EXTERNAL_OPTION)
    return tr("{what}; install into a profile of a newer version of the application", what=message)


def name_some_items(rows: list[Row]) -> str:
    """List the names of the first items, and the number of the others, for a message."""
    names = [one_line(_name_of(row)) for row in rows[:_NAMED]]
    more = len(rows) - len(names)
    return join_list(names) if not more else tr("{names} and {more} more", names=", ".join(names), more=more)


def _name_of(row: Row) -> str:
    """Return the display name of an item: its title, its file's name or source, or its id."""
    data = parse_item_data(row)
    title = data.get("title")
    return title if isinstance(title, str) and title.strip() else item_name(row.get("type"), data) or str(row.get("id"))


class NewBase(msgspec.Struct, frozen=True):
    """A base to insert in the profile: its ids there and in the source, and the models that it gets."""

    id: str
    #: Id in the source.
    origin: str
    model: str | None = None
    rerank: str | None = None
    #: Set if the base is installed as a new one.
    new_ids: CopyIds | None = None
    #: New name in the profile, if the user gives one.
    name: str | None = None
    #: Whether external items are installed as files.
    external_as_files: bool = False

    def items(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the source's item ``rows`` of the base as they are inserted in the profile."""
        if self.external_as_files:
            rows = convert_external_items(rows)
        yield from rows if self.new_ids is None else map(self.new_ids.row, rows)


class NewRows(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that are inserted in the profile. Bases and items are read from the source's catalog at that time."""

    tables: CatalogTables
    catalog: Path
    mark: tuple[int, int] | None
    #: Rows of providers.
    providers: tuple[Row, ...]
    #: Rows of models.
    models: tuple[Row, ...]
    bases: tuple[NewBase, ...]
    #: Rows that link assistants with bases.
    links: tuple[Row, ...]

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of the tables that rows are inserted in."""
        more = ((PROVIDERS, self.providers), (MODELS, self.models), (ASSISTANT_LINKS, self.links))
        return (BASES, ITEMS, *(table for table, rows in more if rows))

    def apply(self, db: apsw.Connection) -> None:
        """Insert the rows in the open database, and check that none of them refers to a missing row.

        Raises:
            PlanOutdated: the source was written to, or a constraint of the profile refuses a row.
        """
        if untrusted_sqlite.database_mark(self.catalog) != self.mark:
            raise PlanOutdated(path=self.catalog, reason=tr("it was changed in the meantime"))
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
                path=self.tables.path, reason=tr("a constraint refuses a row ({error})", error=error)
            ) from error
        new = set(find_dangling_references(db)) - before
        if new:
            table, parent = min(new)[:2]
            raise PlanOutdated(
                path=self.tables.path,
                reason=tr("a row of {table} would refer to a missing row of {parent}", table=table, parent=parent),
            )


def insert_rows(db: apsw.Connection, tables: CatalogTables, table: str, rows: Iterable[Row]) -> None:
    """Insert rows, given as values by column name, in a table of an open catalog."""
    for row in rows:
        db.execute(*tables.insert_statement(table, row))


def insert_base(db: apsw.Connection, source: apsw.Connection, tables: CatalogTables, base: NewBase) -> None:
    """Insert a base of the catalog ``source``, and its items, in the open catalog ``db``.

    Its group is dropped: groups belong to a profile.
    """
    own = {"id": base.id, "group_id": None, "embedding_model_id": base.model, "rerank_model_id": base.rerank}
    if base.name is not None:
        own["name"] = base.name
    insert_rows(db, tables, BASES, ({**row, **own} for row in _read_rows(source, BASES, "id", base.origin)))
    insert_rows(db, tables, ITEMS, base.items(_read_rows(source, ITEMS, "base_id", base.origin)))


def _read_rows(source: apsw.Connection, table: str, key: str, value: str) -> Iterator[Row]:
    """Yield the rows of a table in ``source`` whose column ``key`` has a value, in the order of insertion."""
    there = untrusted_sqlite.list_columns(source, table)
    names = [name for name in INSERTED_COLUMNS[table] if name in there]
    where = f"{table} WHERE {key} = ? ORDER BY rowid"
    for row in untrusted_sqlite.read_lenient_rows(source, names, where, (value,), decode_halves):
        yield dict(zip(names, row, strict=True))


# --- testing rows on the profile's tables ----------------------------------------------------------------------------


def demand_insertable(tables: CatalogTables, source: apsw.Connection) -> None:
    """Check that bases and items of the catalog ``source`` can be inserted in a profile's ``tables``.

    Columns that the profile lacks are ignored if no row of the source uses them.

    Raises:
        ProfileUnknown: a table or column is missing, or a required column is unknown.
        apsw.Error: a catalog cannot be read.
    """
    for table in (BASES, ITEMS):
        tables.insertable_columns(table, set(_used_columns(source, table)))


def _used_columns(source: apsw.Connection, table: str) -> Iterator[str]:
    """Yield the names of a table's columns that have a value in any row of the catalog ``source``."""
    for name in untrusted_sqlite.list_columns(source, table):
        if source.execute(f'SELECT 1 FROM {table} WHERE "{name}" IS NOT NULL LIMIT 1').get is not None:
            yield name


class RowsRehearsal:
    """Tests whether rows can be inserted, on empty copies of the profile's tables in a temporary file.

    ``db`` is the profile's database, ``source`` the catalog that rows of bases are read from.
    """

    def __init__(self, db: apsw.Connection, source: apsw.Connection, tables: CatalogTables) -> None:
        """Copy the definitions of the profile's ``tables`` from its database ``db`` to a temporary file."""
        self._stack = ExitStack()
        self._source = source
        self._tables = tables
        self._path = self._stack.enter_context(scratch.temporary_folder()) / "rows.sqlite"
        with sqlite.open_writable(self._path, create=True) as copy:
            copy_definitions(db, copy, [table for table in INSERTED_COLUMNS if table in tables.columns])

    def problem(self, base: NewBase) -> str | None:
        """Return why the profile's tables refuse a base or one of its items, or None."""
        with self._test_database() as copy:
            try:
                insert_base(copy, self._source, self._tables, base)
            except apsw.ConstraintError as error:
                return str(error)
            if copy.execute(f"PRAGMA foreign_key_check('{ITEMS}')").fetchone() is not None:
                return tr("the folder of an item is missing")
        return None

    def refused_items(self, base: NewBase) -> dict[str, list[Row]]:
        """Return the items of a base whose type the profile's tables refuse, by type."""
        of_others: dict[str, list[Row]] = {}
        for row in base.items(_read_rows(self._source, ITEMS, "base_id", base.origin)):
            if isinstance(row.get("type"), str) and row["type"] not in DATA_FIELDS:
                of_others.setdefault(row["type"], []).append(row)
        return {kind: rows for kind, rows in of_others.items() if self._is_type_refused(rows[0])}

    def _is_type_refused(self, row: Row) -> bool:
        """Whether the tables refuse an item because of its type: as a file, they would accept it."""
        as_file = {"type": "file", "status": "completed", "error": None, "group_id": None}
        with self._test_database() as copy:
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
        """Check that a table of the profile accepts rows which the installation needs.

        Raises:
            ProfileUnknown
        """
        with self._test_database() as copy:
            try:
                insert_rows(copy, self._tables, table, rows)
            except apsw.ConstraintError as error:
                raise ProfileUnknown(
                    path=self._tables.path, what=tr("a database with additional constraints ({error})", error=error)
                ) from error

    @contextmanager
    def _test_database(self) -> Iterator[apsw.Connection]:
        """Open the copies of the tables for a test; all inserted rows are rolled back at the end."""
        with sqlite.open_writable(self._path) as copy:
            # Referenced rows are not copied. The real transaction checks references.
            copy.execute("PRAGMA foreign_keys = OFF")
            copy.execute("BEGIN")
            try:
                yield copy
            finally:
                copy.execute("ROLLBACK")

    def close(self) -> None:
        """Delete the temporary file."""
        self._stack.close()


# --- models ----------------------------------------------------------------------------------------------------------

#: Number of the profile's models that a message names.
_MAX_MODELS = 8


class ModelMissing(Exception):
    """The profile lacks the model of a base; the text says why, and what to do. ``model`` is the model's id."""

    def __init__(self, why: str, model: str) -> None:
        super().__init__(why)
        self.model = model


class ProfileModels(msgspec.Struct, kw_only=True):
    """The models of a profile, and those that are created for bases of the source."""

    library: BaseSource
    model_overrides: ModelOverrides
    there: set[Any]
    #: Pairs of provider and model id, which are unique.
    pairs: set[tuple[Any, Any]]
    #: Ids of the existing providers.
    providers: set[Any]
    #: Ids of the providers that an option says to create.
    recreated: frozenset[str] = frozenset()
    #: Models to insert, by id.
    new: dict[str, ModelRow] = msgspec.field(default_factory=dict)
    _used_columns: set[str] = msgspec.field(default_factory=set)

    def embedding(self, base: str, named: Any) -> str | None:
        """Return the id of the embedding model that a base gets in the profile; None if it has no model.

        Args:
            base: the base's id in the source.
            named: the model that its row names there.

        Raises:
            ModelMissing
        """
        if named is None:
            return None
        for old in self.model_overrides.mapped:
            if old == named or self.library.base_of(old) == base:
                self._used_columns.add(old)
                named = self.model_overrides.mapped[old]
                break
        if self._is_known(named) or self._try_create(str(named), EMBEDDING):
            return str(named)
        provider = str(named).partition(SEPARATOR)[0]
        mapped = tr(
            "choose an existing one with {option}", option=join_command(["--map-model", f"{named}=PROVIDER::MODEL"])
        )
        known = sorted(one for one in self.there if isinstance(one, str))
        if known:
            mapped = tr("{mapped} ({names})", mapped=mapped, names=one_line(join_first(known, _MAX_MODELS)))
        if provider in self.providers or provider in self.recreated:
            again = join_command(["--recreate-model", str(named)])
            raise ModelMissing(
                tr(
                    "its model {named} is neither in the profile nor in the library: {again}, or {mapped}",
                    named=named,
                    again=again,
                    mapped=mapped,
                ),
                str(named),
            )
        gone = tr(
            "its model {named} and the provider {provider} are not in the profile", named=named, provider=provider
        )
        made = tr(
            "create it as a custom provider, disabled and without API keys, with {option}",
            option=join_command(["--recreate-provider", provider]),
        )
        raise ModelMissing(tr("{gone}: {made}, or {mapped}", gone=gone, made=made, mapped=mapped), str(named))

    def rerank(self, named: Any) -> str | None:
        """Return the id of the rerank model that a base gets instead of ``named``, or None."""
        if named is None:
            return None
        named = self.model_overrides.mapped.get(named, named)
        return str(named) if self._is_known(named) or self._try_create(str(named), RERANK) else None

    def unused(self) -> list[str]:
        """Describe the model options that match no base and so are probably mistyped."""
        made = self.there | self.new.keys()
        providers = {model.provider_id for model in self.new.values()} | self.providers
        return [
            *(tr("the model {old}", old=old) for old in self.model_overrides.mapped if old not in self._used_columns),
            *(tr("the model {model}", model=model) for model in sorted(self.model_overrides.recreated - made)),
            *(tr("the provider {provider}", provider=provider) for provider in sorted(self.recreated - providers)),
        ]

    def _is_known(self, named: Any) -> bool:
        """Whether the model with the id ``named`` is in the profile, or will be created."""
        return named in self.there or named in self.new

    def _try_create(self, named: str, capabilities: tuple[str, ...]) -> bool:
        """Add the model with the id ``named`` to those to create, if its provider exists and its data is known.

        Its data is that of the source, or an option's. ``capabilities`` are used if the source has none. Returns
        whether the model was added.
        """
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
    """Read the ids of models and providers from a profile's open database. Keys of the user are never read.

    Args:
        db: the database.
        library: the source of the bases.
        model_overrides: the model options of the user.
        recreated: ids of providers that are created if the profile lacks them.

    Raises:
        apsw.Error: the profile's database cannot be read.
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


# --- links of assistants ---------------------------------------------------------------------------------------------

_TABLE, _LINKS = "assistant", "assistant_knowledge_base"
#: Part of the names of settings that refer to bases.
_SETTING_WORD = "knowledge"
#: Maximum depth of nested settings.
_MAX_DEPTH = 12


def find_assistant_links(
    store: Store, db: apsw.Connection, base_of: Callable[[str], str | None]
) -> list[tuple[str, str]]:
    """Find assistants that used a base in v1 and have no link to it in the profile.

    They still refer to it in a dangling row, in the assistant's own settings, or in v1's state (``docs/rules.md``,
    "Install").

    Args:
        store: the profile.
        db: its database.
        base_of: maps a v1 id to the base that is installed for it, or None.

    Returns:
        Pairs of assistant id and base id.

    Raises:
        apsw.Error: the database cannot be read.
    """
    columns, of_links = (untrusted_sqlite.list_columns(db, table) for table in (_TABLE, _LINKS))
    if "id" not in columns or not {"assistant_id", "knowledge_base_id"}.issubset(of_links):
        return []
    known: set[Any] = set(db.execute(f"SELECT assistant_id, knowledge_base_id FROM {_LINKS}"))
    is_kept = " WHERE deleted_at IS NULL" if "deleted_at" in columns else ""
    there = {key for (key,) in db.execute(f"SELECT id FROM {_TABLE}{is_kept}") if isinstance(key, str)}
    found: set[tuple[str, str]] = set()
    for assistant, old in (*known, *_links_in_settings(db, columns), *_links_in_v1(store)):
        base = base_of(old) if isinstance(old, str) and assistant in there else None
        if base is not None:
            found.add((assistant, base))
    return sorted(found - known)


def _links_in_settings(db: apsw.Connection, columns: list[str]) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of an assistant and the v1 id of a base that one of these columns of its row contains."""
    for column in columns:
        text = f'CAST("{column}" AS BLOB)'
        # Search the raw bytes, which may not be valid UTF-8.
        has_word = f"instr({text}, x'{_SETTING_WORD[1:].encode().hex()}')"
        query = f"SELECT id, {text} FROM {_TABLE} WHERE typeof(\"{column}\") = 'text' AND {has_word}"
        for assistant, value in db.execute(query):
            with contextlib.suppress(ValueError, RecursionError):
                yield from ((assistant, old) for old in _nested_ids(json_text.loads(value), _MAX_DEPTH))


def _nested_ids(value: Any, depth: int) -> Iterator[Any]:
    """Yield the base ids in nested settings: values of keys whose name mentions knowledge, to a limited depth."""
    if isinstance(value, dict) and depth:
        for key, inside in value.items():
            if _SETTING_WORD in key.lower():
                yield from _ids(inside)
            yield from _nested_ids(inside, depth - 1)
    elif isinstance(value, list) and depth:
        for inside in value:
            yield from _nested_ids(inside, depth - 1)


def _ids(value: Any) -> Iterator[Any]:
    """Yield the id, or ids, in a value that is an id, an object with an id, or a list with such values."""
    for one in value if isinstance(value, list) else [value]:
        yield one.get("id") if isinstance(one, dict) else one


def _links_in_v1(store: Store) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of an assistant and the v1 id of its base from v1's state; nothing if the state cannot be read."""
    for kind in (Kind.V1_PROFILE, Kind.V1_EXPORT):
        with contextlib.suppress(RegraftError, OSError), open_store(store.root, kind) as source:
            state = read_slice(source.tree, source.places, "assistants")
            listed = state.get("assistants") if isinstance(state, dict) else None
            for one in listed if isinstance(listed, list) else ():
                if isinstance(one, dict):
                    yield from ((one.get("id"), old) for old in _ids(one.get("knowledge_bases")))
