"""The rows of the catalog: those of a restored base, and those that give a base its first model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checks.cherry_v2.catalog_rows import MODES
from regraft.errors import ModelNotSet, NotRestored
from regraft.formats.cherry_v2.catalog_generation import BASES, ITEMS, PROVIDERS
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.language import tr
from regraft.text import counted, is_blank
from repair.changes.plan import Action, RowsChange
from repair.changes.store import Store
from repair.cherry_v2.new_model import ModelUnfit, insert_model
from repair.cherry_v2.rescue.catalog import TABLES, Statements, rehearsed
from repair.cherry_v2.restore.items import ItemCopy
from repair.cherry_v2.restore.options import RestoredBase
from repair.cherry_v2.restore.source import Source, read_source


def new_rows(source: Source, wanted: RestoredBase, items: Sequence[ItemCopy], now_ms: int) -> RowsChange:
    """Return what lists a restored base with these items, and its model where that is new.

    Raises:
        NotRestored: the catalog cannot have the model.
        ProfileUnknown: the profile is of another time than this regraft.
    """
    base = wanted.base_id(source.key)
    statements = Statements(source.catalog, bases={source.key})
    for table in (BASES, ITEMS):
        statements.tables.insertable(table, ())
    try:
        actions = list(_model(source, wanted.model_id, base, statements, now_ms))
    except ModelUnfit as reason:
        raise NotRestored(path=source.store.path, base=source.key, reason=reason) from reason
    row = source.row
    rerank = row.get("rerank_model_id")
    changed = {
        "id": base,
        "name": row.get("name") if is_blank(wanted.name) else wanted.name,
        "dimensions": wanted.dimensions,
        "embedding_model_id": wanted.model_id,
        "status": "completed",
        "error": None,
        **_searched(statements, row, wanted.model_id),
        "rerank_model_id": rerank if rerank in source.models or rerank == wanted.model_id else None,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    statements.copy_row(BASES, source.key, changed)
    for item in items:
        fields = {"id": item.id, "base_id": base, "group_id": item.group, "status": item.status}
        statements.copy_row(ITEMS, item.old, {**fields, "error": item.error})
        if item.path is not None:
            # Of an item that gets another path, what was indexed under the old one is no concern any more.
            moved = "json_set(json_remove(data, '$.indexedRelativePath'), '$.relativePath', ?)"
            statements.made.append((f"UPDATE knowledge_item SET data = {moved} WHERE id = ?", (item.path, item.id), ()))
    message = tr(
        "list it with the model {model_id}, {dimensions} dimensions, and",
        model_id=wanted.model_id,
        dimensions=wanted.dimensions,
    )
    message = f"{message} {counted(len(items), 'item')}"
    actions.append(
        Action(
            action="insert-base", message=message, base=base, subject=None, count=1 + len(items), bytes=statements.bytes
        )
    )
    return _change(source, statements, actions)


def _searched(statements: Statements, row: Row, model: str) -> Row:
    """Return how a restored base is searched, where its catalog keeps that: as the old one, if that can be."""
    is_kept = row.get("embedding_model_id") is not None and row.get("search_mode") in MODES
    return {} if is_kept else statements.tables.derived(model)


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
    statements = Statements(source.catalog)
    try:
        if problem is not None:
            raise ModelUnfit(problem)  # noqa: TRY301 - said as what the catalog says
        actions = list(_model(source, model_id, source.key, statements, now_ms))
    except ModelUnfit as reason:
        raise ModelNotSet(path=store.path, base=source.key, reason=reason) from reason
    statements.set_model(row, model_id, dimensions, now_ms)
    message = tr(
        "give it the model {model_id} with {dimensions} dimensions, searched by both lanes",
        model_id=model_id,
        dimensions=dimensions,
    )
    actions.append(Action(action="update-base", message=message, base=source.key))
    return _change(source, statements, actions)


def _keeps_it_without(source: Source) -> str | None:
    row = source.row
    again = tr("regraft restore makes a new base of its texts")
    if row.get("status") != "completed":
        return tr("it failed ({get}); {again}", get=row.get("error"), again=again)
    if row.get("embedding_model_id") is not None:
        return tr(
            "it has {embedding_model_id} with {get} dimensions; {again} with another one",
            embedding_model_id=row["embedding_model_id"],
            get=row.get("dimensions"),
            again=again,
        )
    return None


def _model(source: Source, model: str, base: str, statements: Statements, now_ms: int) -> Iterator[Action]:
    """Insert a model that is not there yet.

    Raises:
        ModelUnfit
    """
    return insert_model(
        statements,
        model,
        base,
        models=source.models,
        providers=source.providers,
        is_profile=source.store.is_profile,
        now_ms=now_ms,
    )


def _change(source: Source, statements: Statements, actions: list[Action]) -> RowsChange:
    return rehearsed(statements, str(source.store.catalog), actions, (*TABLES, PROVIDERS))
