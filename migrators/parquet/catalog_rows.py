"""The catalog's rows of a base, from what a Parquet file says of it or, where it says nothing, from its index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import fields

from regraft import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_v2.catalog import EMBEDDING, RERANK, BaseRecord, BaseRow, ItemRow, ModelRow, ProviderRow
from regraft.formats.cherry_v2.catalog_generation import model_of
from regraft.formats.cherry_v2.defaults import Settings
from regraft.formats.cherry_v2.item_data import data_damage
from regraft.formats.parquet.metadata import About, AboutBase
from regraft.language import tr
from regraft.report import notices
from regraft.text import whole

#: The error of a base whose vectors are of a model that the file does not name.
MODEL_UNKNOWN = "missing_embedding_model"


def record_of(file: Path, about: About, base: AboutBase, now_ms: int) -> BaseRecord:
    """Return a base's rows but for its items.

    Raises:
        SourceUnreadable: they are no rows of a catalog.
    """
    try:
        row = msgspec.convert(_base_row(base, now_ms), BaseRow)
        named = {row.embedding_model_id: EMBEDDING}
        named.setdefault(row.rerank_model_id, RERANK)
        listed = {one["id"]: one for one in about.models}
        every = ((one, capabilities) for one, capabilities in named.items() if one is not None)
        models = [_model(one, listed.get(one), capabilities) for one, capabilities in every]
        known = {one["provider_id"]: msgspec.convert(one, ProviderRow, strict=False) for one in about.providers}
        keys = dict.fromkeys(model.provider_id for model in models)
        providers = [known.get(key) or ProviderRow(key, key, is_enabled=False) for key in keys]
    except (msgspec.MsgspecError, KeyError) as error:
        raise SourceUnreadable(
            path=file, reason=tr("what it says of base {id} is not a row: {error}", id=base.id, error=error)
        ) from error
    return BaseRecord(base=row, models=tuple(models), providers=tuple(providers), now_ms=now_ms)


class _Listed(msgspec.Struct):
    """A model as a file has it; what it inherits from the application is null."""

    id: str
    provider_id: str
    model_id: str
    name: str | None = None
    group: str | None = None
    capabilities: str | list[str] | None = None
    supports_streaming: bool | None = None


def _model(model_id: str, listed: Any, capabilities: tuple[str, ...]) -> ModelRow:
    """Return a model in full: as the file has it, or by its id."""
    if listed is None:
        provider, _, name = model_id.partition("::")
        listed = {"id": model_id, "provider_id": provider, "model_id": name or provider}
    return model_of(msgspec.structs.asdict(msgspec.convert(listed, _Listed, strict=False)), capabilities)


def _stored_values(settings: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return what a row that the file has says, with what it may lack."""
    names = [one.name for one in fields(BaseRow)]
    known = {name: settings[name] for name in names if name in settings}
    nullable = {"rerank_model_id", "file_processor_id", "error", "created_at", "updated_at"}
    missing: dict[str, Any] = {name: now_ms if name.endswith("_at") else None for name in nullable - set(known)}
    return {**missing, **known}


def _base_row(base: AboutBase, now_ms: int) -> dict[str, Any]:
    usual: dict[str, Any] = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    if base.settings is not None:
        return {**usual, **_stored_values(base.settings, now_ms)}
    values: dict[str, Any] = {"dimensions": base.dimensions, "embedding_model_id": base.model}
    values |= {"status": "completed", "error": None}
    if base.dimensions is None:
        values |= {"embedding_model_id": None}
    elif base.model is None:
        values |= {"status": "failed", "error": MODEL_UNKNOWN}
    values |= {"created_at": now_ms, "updated_at": now_ms, "rerank_model_id": None, "file_processor_id": None}
    return {"id": base.id, "name": base.name.strip() or base.id, **values, **usual}


def items_of(base: AboutBase, skipped: Counter[str]) -> Iterator[ItemRow]:
    """Yield the items that the file has, a container before what it holds; count those that no catalog has room for."""
    waiting = list(_rows(base, skipped))
    placed: set[str | None] = {None}
    while waiting:
        later = []
        for row in waiting:
            if row.group_id in placed:
                yield row
                placed.add(row.id)
            else:
                later.append(row)
        if len(later) == len(waiting):
            # Their container is not there: the catalog would refuse them.
            skipped[notices.NOT_AN_ITEM] += len(later)
            return
        waiting = later


def _rows(base: AboutBase, skipped: Counter[str]) -> Iterator[ItemRow]:
    for row in base.items or ():
        item = None if row.get("deleted_at") is not None else _item(row)
        if item is not None and item.base_id == base.id:
            yield item
        else:
            skipped[notices.NOT_AN_ITEM if row.get("deleted_at") is None else notices.ITEM_DELETED] += 1


def _item(row: dict[str, Any]) -> ItemRow | None:
    """Return a row of ``knowledge_item``, None where it is none or would not stay the same in the ledger, as JSON."""
    try:
        data = {key: whole(one) if isinstance(one, str) else one for key, one in json_text.loads(row["data"]).items()}
        item = msgspec.convert({**row, "data": data}, ItemRow)
        return (
            item
            if data_damage(row) is None and msgspec.json.decode(msgspec.json.encode(item), type=ItemRow) == item
            else None
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, msgspec.MsgspecError):
        return None


def items_of_materials(base_id: str, index: Path, now_ms: int) -> Iterator[ItemRow]:
    """Yield a file for every material of an index: nothing else says what it was."""
    with sqlite.reading(index) as db:
        for material, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid"):
            yield item_of_material(base_id, material, path, now_ms)


def item_of_material(base_id: str, material: str, path: str, now_ms: int) -> ItemRow:
    """Return the item that stands for a material."""
    data = {"source": path, "relativePath": path}
    return ItemRow(
        id=material,
        base_id=base_id,
        group_id=None,
        type="file",
        data=data,
        status="completed",
        error=None,
        created_at=now_ms,
        updated_at=now_ms,
    )
