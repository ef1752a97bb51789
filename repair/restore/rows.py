"""The rows of the catalog: those of a restored base, and those that give a base its first model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from migrators.cherry_preview.base_settings import read_base_settings
from migrators.stages.models import SEPARATOR, is_model_id
from regraft import sqlite
from regraft.errors import ModelNotSet, NotRestored
from regraft.formats.catalog import ModelRow
from regraft.text import counted, is_blank
from repair.install.rows import recorded_tables
from repair.plan import Action, RowsChange
from repair.rescue.catalog import TABLES, Statements, next_order_key, rehearse
from repair.restore.items import ItemCopy
from repair.restore.source import Source, read_source
from repair.restore.wish import Wanted
from repair.store import Store

_PROVIDERS = "user_provider"


class ModelUnfit(Exception):
    """A model that the catalog cannot have; the text says why."""


def new_rows(source: Source, wanted: Wanted, items: Sequence[ItemCopy], now_ms: int) -> RowsChange:
    """Return what lists a restored base with these items, and its model where that is new.

    Raises:
        NotRestored: the catalog cannot have the model.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    base = wanted.base_id(source.key)
    statements = Statements(bases={source.key})
    try:
        actions = list(_model(source, wanted.model_id, base, statements, now_ms))
    except ModelUnfit as reason:
        raise NotRestored(path=source.store.path, base=source.key, reason=reason) from reason
    with sqlite.reading(source.catalog) as db:
        columns = {table: [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")] for table in TABLES}
    row = source.row
    rerank = row.get("rerank_model_id")
    changed = {
        "id": base,
        "name": row.get("name") if is_blank(wanted.name) else wanted.name,
        "dimensions": wanted.dimensions,
        "embedding_model_id": wanted.model_id,
        "status": "completed",
        "error": None,
        "search_mode": read_base_settings(row)[0].search_mode,
        "rerank_model_id": rerank if rerank in source.models or rerank == wanted.model_id else None,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    statements.copy_row("knowledge_base", columns["knowledge_base"], source.key, changed)
    for item in items:
        fields = {"id": item.id, "base_id": base, "group_id": item.group, "status": item.status}
        statements.copy_row("knowledge_item", columns["knowledge_item"], item.old, {**fields, "error": item.error})
        if item.path is not None:
            # Of an item that gets another path, what was indexed under the old one is no concern any more.
            moved = "json_set(json_remove(data, '$.indexedRelativePath'), '$.relativePath', ?)"
            statements.made.append((f"UPDATE knowledge_item SET data = {moved} WHERE id = ?", (item.path, item.id)))
    said = f"list it with the model {wanted.model_id}, {wanted.dimensions} dimensions, and"
    said = f"{said} {counted(len(items), 'item')}"
    actions.append(Action("insert-base", said, base, None, 1 + len(items), statements.bytes))
    return _change(source, statements, actions, wanted.model_id, now_ms)


def model_change(store: Store, base_id: str, model_id: str, dimensions: int, now_ms: int) -> RowsChange | None:
    """Return what gives a base that is searched by words alone a model; None where it has that very model.

    Raises:
        ModelNotSet: it has another model, it failed, or the catalog cannot have this one.
        NotChanged, SourceUnreadable, BaseUnknown, ProfileUnknown
    """
    source = read_source(store, base_id)
    row = source.row
    if (row.get("embedding_model_id"), row.get("dimensions")) == (model_id, dimensions):
        return None
    problem = _keeps_it_without(source)
    statements = Statements()
    try:
        if problem is not None:
            raise ModelUnfit(problem)  # noqa: TRY301 - said as what the catalog says
        actions = list(_model(source, model_id, source.key, statements, now_ms))
    except ModelUnfit as reason:
        raise ModelNotSet(path=store.path, base=source.key, reason=reason) from reason
    mode = "hybrid" if row.get("search_mode") == "bm25" else str(row.get("search_mode"))
    statements.set_model(row, model_id, dimensions, mode, now_ms)
    said = f"give it the model {model_id} with {dimensions} dimensions, searched by {mode}"
    actions.append(Action("update-base", said, source.key))
    return _change(source, statements, actions, model_id, now_ms)


def _keeps_it_without(source: Source) -> str | None:
    row = source.row
    again = "regraft restore makes a new base of its texts"
    if row.get("status") != "completed":
        return f"it failed ({row.get('error')}); {again}"
    if row.get("embedding_model_id") is not None:
        return f"it has {row['embedding_model_id']} with {row.get('dimensions')} dimensions; {again} with another one"
    return None


# --- models ----------------------------------------------------------------------------------------------------------


def _model(source: Source, model: str, base: str, statements: Statements, now_ms: int) -> Iterator[Action]:
    """Insert a model that is not there yet.

    Raises:
        ModelUnfit
    """
    if not is_model_id(model):
        raise ModelUnfit(f"{model} is no model's id; write it as provider::model")
    if model in source.models:
        return
    provider, _, name = model.partition(SEPARATOR)
    if source.store.is_profile and provider not in source.providers:
        raise ModelUnfit(f"the profile has no provider {provider}; add it in the application first")
    with sqlite.reading(source.catalog) as db:
        query = "SELECT id FROM user_model WHERE provider_id = ? AND model_id = ?"
        other: Any = db.execute(query, (provider, name)).get
    if other is not None:
        raise ModelUnfit(f"the provider {provider} has that model as {other}; give --model {other}")
    row = ModelRow(model, provider, name, name, None)
    statements.insert_model(row, next_order_key(source.catalog, provider, statements), now_ms)
    yield Action("insert-model", f"add the model {model}", base, model)


def _change(source: Source, statements: Statements, actions: list[Action], model: str, now_ms: int) -> RowsChange:
    rehearse(source.catalog, statements)
    provider = model.partition(SEPARATOR)[0]
    is_new = model not in source.models and provider not in source.providers
    run = statements.applied_to(source.catalog)

    def apply(db: apsw.Connection) -> None:
        # An item may be listed before the folder that it is in.
        db.execute("PRAGMA defer_foreign_keys = ON")
        if is_new:
            last: Any = db.execute(f"SELECT max(order_key) FROM {_PROVIDERS}").get
            db.execute(
                f"INSERT INTO {_PROVIDERS} (provider_id, name, is_enabled, order_key, created_at, updated_at)"
                " VALUES (?, ?, 1, ?, ?, ?)",
                (provider, provider, "a0" if last is None else f"{last}V", now_ms, now_ms),
            )
        run(db)

    with sqlite.reading(source.catalog) as db:
        tables = recorded_tables(db, (*TABLES, _PROVIDERS))
    return RowsChange(str(source.store.catalog), tuple(actions), apply, tables, statements.bytes)
