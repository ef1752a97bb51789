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
    """Summarize one store of a preview build, or every base of a library that only has such stores.

    ``items``: whether to list the items of each base.
    """
    stores = {store.base_id: store for store in source.stores.preview}
    rows, problem = _read_catalog(source, with_item_data=items)
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


def _summarize_item(row: Row) -> ItemSummary:
    """Summarize an item from its row in the catalog."""
    return ItemSummary(
        id=row.get("id"),
        name=item_name(row.get("type"), parse_item_data(row)) or str(row.get("id")),
        type=row.get("type"),
        status=row.get("status"),
        error=row.get("error"),
        folder=row.get("group_id"),
    )


def _read_catalog(source: Located, *, with_item_data: bool) -> tuple[list[tuple[Row, list[Row]]], str | None]:
    """Return the catalog's row of each base with the rows of its items, and why the catalog cannot be read, or None.

    ``with_item_data``: whether to read the data that names an item.
    """
    if source.stores.catalog is None:
        return [], None
    try:
        with source.tree.local(source.stores.catalog, None) as path:
            catalog = read_catalog(path, data=with_item_data)
    except (CatalogProblem, SourceUnreadable) as error:
        return [], tr("the catalog {error}", error=error)
    return [(row, (catalog.items or {}).get(row.get("id"), [])) for row in catalog.bases], None


def _summarize_base(row: Row, items: list[Row], *, has_list: bool) -> BaseSummary:
    """Summarize a base from its catalog row and items, as one without an index file; ``has_list``: list the items."""
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
        item_list=list(map(_summarize_item, items)) if has_list else UNSET,
    )


def _inspect_store_file(source: Located, store: StoreFile) -> PreviewSummary:
    """Summarize one file of the source, or describe why it cannot be read."""
    try:
        with source.tree.local(store.name, None) as path:
            return inspect_file(path, store.look)
    except SourceUnreadable as error:
        return PreviewSummary(problem=tr("its index file cannot be read: {reason}", reason=error.facts["reason"]))


class PreviewSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one index file of a preview build; its rows name the collection and the items."""

    store: VectorFileSummary | None = None
    problem: str | None = None
    collection: str | None = None
    items: dict[str, int] = msgspec.field(default_factory=dict)


def inspect_file(path: Path, header: cherry_preview.IndexSummary) -> PreviewSummary:
    """Summarize an index file of a preview build; ``header`` has the fields that were read from its first bytes."""
    if header.layout is IndexLayout.UNREADABLE:
        return PreviewSummary(problem=tr("its index file cannot be read: {problem}", problem=header.problem))
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
    invisible = INVISIBLE + _TRAP if header.has_trap else INVISIBLE
    return PreviewSummary(
        store=store,
        problem=invisible if found.rows else None,
        collection=contents.collection,
        items=dict(sorted(types.items())),
    )


CHECKS = Checks(inspect=lambda found, asked: inspect_store(found, items=asked.items))
