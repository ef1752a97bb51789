"""Summarize stores of Cherry Studio's v2 preview builds for ``inspect``.

The released application sees none of their rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from msgspec import UNSET, structs

from checks.inspect import (
    BaseSummary,
    HealthSummary,
    ItemSummary,
    StoreSummary,
    VectorFileSummary,
    count_by_dimensions,
    describe_problems,
    total_bytes,
)
from checks.systems import Checks
from regraft.errors import SourceUnreadable
from regraft.formats import cherry_preview
from regraft.formats.cherry_preview import IndexLayout
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, item_name, parse_item_data, read_catalog
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.formats.vector_survey import StoreProblem
from regraft.language import tr
from regraft.stores.systems import Located

#: The problem of every store of a preview build that has rows.
INVISIBLE = tr(
    "in the layout of a preview build: the application does not see its rows; `regraft migrate` migrates them"
)
_TRAP = tr("; a vector index that only libSQL can read makes other programs count 0 rows")


def inspect_store(source: Located, *, items: bool = False) -> StoreSummary:
    """Summarize one store, or every base of a library that only has stores of a preview build."""
    stores = {store.base_id: store for store in source.stores.preview}
    rows, problem = _read_catalog(source, data=items)
    bases = []
    for row, own in rows:
        listed = _summarize_base(row, own, has_list=items)
        store = stores.pop(str(row.get("id")), None)
        if store is not None:
            found = _inspect_store_file(source, store)
            bases.append(structs.replace(listed, store=found.store, problem=found.problem))
        elif source.stores.is_whole:
            bases.append(listed)
    for store in stores.values():
        found = _inspect_store_file(source, store)
        base_id = store.base_id or found.collection or store.name
        bases.append(
            BaseSummary(
                id=base_id, name=base_id, model=None, items=found.items, store=found.store, problem=found.problem
            )
        )
    problems = describe_problems(bases)
    if problem is not None:
        problems.insert(0, problem)
    return StoreSummary(bases, HealthSummary(bytes=total_bytes(bases), problems=problems))


def _item(row: Row) -> ItemSummary:
    """Convert the catalog's row of an item."""
    return ItemSummary(
        id=row.get("id"),
        name=item_name(row.get("type"), parse_item_data(row)) or str(row.get("id")),
        type=row.get("type"),
        status=row.get("status"),
        error=row.get("error"),
        folder=row.get("group_id"),
    )


def _read_catalog(source: Located, *, data: bool) -> tuple[list[tuple[Row, list[Row]]], str | None]:
    """Read the bases with their items, and the problem if the catalog cannot be read; ``data``: read items' data."""
    if source.stores.catalog is None:
        return [], None
    try:
        with source.tree.local(source.stores.catalog, None) as path:
            catalog = read_catalog(path, data=data)
    except (CatalogProblem, SourceUnreadable) as error:
        return [], tr("the catalog {error}", error=error)
    return [(row, (catalog.items or {}).get(row.get("id"), [])) for row in catalog.bases], None


def _summarize_base(row: Row, items: list[Row], *, has_list: bool) -> BaseSummary:
    """Summarize a base whose index file is missing, from its catalog row alone."""
    statuses = Counter(str(item.get("status")) for item in items)
    return BaseSummary(
        id=row.get("id"),
        name=str(row.get("name") or row.get("id")),
        status=row.get("status"),
        error=row.get("error"),
        model=row.get("embedding_model_id"),
        items=dict(sorted(statuses.items())),
        store=None,
        problem=tr("its index file is missing"),
        item_list=list(map(_item, items)) if has_list else UNSET,
    )


def _inspect_store_file(source: Located, store: StoreFile) -> PreviewSummary:
    try:
        with source.tree.local(store.name, None) as path:
            return inspect_file(path, store.look)
    except SourceUnreadable as error:
        return PreviewSummary(problem=tr("its index file cannot be read: {reason}", reason=error.facts["reason"]))


class PreviewSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one file: the collection, and the number of items by type, that its rows name."""

    store: VectorFileSummary | None = None
    problem: str | None = None
    collection: str | None = None
    items: dict[str, int] = msgspec.field(default_factory=dict)


def inspect_file(path: Path, seen: cherry_preview.IndexSummary) -> PreviewSummary:
    """Summarize one file; ``seen`` has its header fields."""
    if seen.layout is IndexLayout.UNREADABLE:
        return PreviewSummary(problem=tr("its index file cannot be read: {problem}", problem=seen.problem))
    try:
        with cherry_preview.readable_copy(path) as copy:
            found, contents = cherry_preview.PREVIEW_VECTORS.survey(copy), cherry_preview.read_contents(copy)
            declared = cherry_preview.declared_dimensions(copy)
    except StoreProblem as problem:
        return PreviewSummary(problem=tr("its index file {problem}", problem=problem))
    store = VectorFileSummary(
        rows=found.rows,
        loaders=len(found.loaders),
        dimensions=(found.vector_bytes or 0) // 4 or declared,
        lengths=count_by_dimensions(found.lengths),
        text_bytes=found.body_bytes,
        bytes=path.stat().st_size,
    )
    types = Counter(item.type or "file" for item in contents.items.values())
    invisible = INVISIBLE + _TRAP if seen.has_trap else INVISIBLE
    return PreviewSummary(
        store=store,
        problem=invisible if found.rows else None,
        collection=contents.collection,
        items=dict(sorted(types.items())),
    )


CHECKS = Checks(inspect=lambda found, asked: inspect_store(found, items=asked.items))
