"""The catalog's rows of a base, from what a Parquet file says of it or, where it says nothing, from its index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from migrators.stages.drafts import Settings
from regraft import sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.catalog import BaseRecord, BaseRow, ItemRow, ModelRow, ProviderRow
from regraft.formats.parquet.columns import About, AboutBase

#: The error of a base whose vectors are of a model that the file does not name.
MODEL_UNKNOWN = "missing_embedding_model"
#: Why an item does not come back.
DELETED = "deleted"
NOT_AN_ITEM = "invalid"


def record_of(file: Path, about: About, base: AboutBase, now_ms: int) -> BaseRecord:
    """Return a base's rows but for its items.

    Raises:
        SourceUnreadable: they are no rows of a catalog.
    """
    try:
        row = _base_row(base, now_ms)
        named = [one for one in (row.embedding_model_id, row.rerank_model_id) if one is not None]
        listed = {one["id"]: ModelRow(**one) for one in about.models}
        models = [listed.get(one) or _unlisted(one) for one in dict.fromkeys(named)]
        known = {one["provider_id"]: ProviderRow(**one) for one in about.providers}
        keys = dict.fromkeys(model.provider_id for model in models)
        providers = [known.get(key) or ProviderRow(key, key, is_enabled=False) for key in keys]
    except (TypeError, KeyError, AttributeError) as error:
        raise SourceUnreadable(path=file, reason=f"what it says of base {base.id} is no row: {error}") from error
    return BaseRecord(row, tuple(models), tuple(providers), now_ms)


def _unlisted(model_id: str) -> ModelRow:
    provider, _, name = model_id.partition("::")
    return ModelRow(model_id, provider, name or provider, name or provider, None)


def _base_row(base: AboutBase, now_ms: int) -> BaseRow:
    usual: dict[str, Any] = {one.name: getattr(Settings(), one.name) for one in fields(Settings)}
    if base.settings is not None:
        names = [one.name for one in fields(BaseRow)]
        known = {name: base.settings[name] for name in names if name in base.settings}
        nullable = {"rerank_model_id", "file_processor_id", "error", "created_at", "updated_at"}
        missing: dict[str, Any] = {name: now_ms if name.endswith("_at") else None for name in nullable - set(known)}
        return BaseRow(**{**usual, **missing, **known})
    values: dict[str, Any] = {"dimensions": base.dimensions, "embedding_model_id": base.model}
    values |= {"status": "completed", "error": None}
    if base.dimensions is None:
        values |= {"embedding_model_id": None}
        usual |= {"search_mode": "bm25"}
    elif base.model is None:
        values |= {"status": "failed", "error": MODEL_UNKNOWN}
    values |= {"created_at": now_ms, "updated_at": now_ms, "rerank_model_id": None, "file_processor_id": None}
    return BaseRow(id=base.id, name=base.name.strip() or base.id, **values, **usual)


def items_of(base: AboutBase, index: Path | None, skipped: Counter[str], now_ms: int) -> Iterator[ItemRow]:
    """Yield a base's items, a container before what it holds; count those that have no place in a catalog."""
    if base.items is None:
        if index is not None:
            yield from _of_materials(base.id, index, now_ms)
        return
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
            skipped[NOT_AN_ITEM] += len(later)
            return
        waiting = later


def _rows(base: AboutBase, skipped: Counter[str]) -> Iterator[ItemRow]:
    names = {one.name for one in fields(ItemRow)}
    for row in base.items or ():
        if row.get("deleted_at") is not None:
            skipped[DELETED] += 1
            continue
        try:
            data = json.loads(row["data"])
            yield ItemRow(**{**{name: row[name] for name in names}, "data": data})
        except (ValueError, TypeError, KeyError):
            skipped[NOT_AN_ITEM] += 1


def _of_materials(base_id: str, index: Path, now_ms: int) -> Iterator[ItemRow]:
    """Yield a file for every material: nothing else says what it was."""
    with sqlite.reading(index) as db:
        for material, path in db.execute("SELECT material_id, relative_path FROM material ORDER BY rowid"):
            data = {"source": path, "relativePath": path}
            yield ItemRow(material, base_id, None, "file", data, "completed", None, now_ms, now_ms)
