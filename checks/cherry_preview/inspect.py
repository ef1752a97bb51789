"""A first look at stores of preview builds: what they hold, and that the application sees none of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from checks.looks import bytes_of, problems_of
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_preview import libsql
from regraft.formats.cherry_preview.libsql import Layout, Look
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, read_catalog
from regraft.formats.cherry_v2.layout import Store
from regraft.formats.vector_table import StoreProblem
from regraft.locate import Located

Found = tuple[list[dict[str, Any]], dict[str, Any]]

#: What is wrong with every store of a preview build that has rows.
INVISIBLE = "in the layout of preview builds: the application sees none of its rows, `regraft migrate` carries them"
_TRAP = "; a vector index that only libSQL can read makes other programs count 0 rows"


def look(source: Located) -> Found:
    """Look at one store, or at every base of a library whose stores are all a preview build's."""
    stores = {store.base_id: store for store in source.stores.preview}
    rows, problem = _catalog(source)
    bases = []
    for row, items in rows:
        store = stores.pop(str(row.get("id")), None)
        if store is not None:
            bases.append({**_listed(row, items), **_look_at(source, store, is_listed=True)})
        elif source.stores.is_whole:
            bases.append({**_listed(row, items), "store": None, "problem": "its index file is missing"})
    for store in stores.values():
        bases.append(_look_at(source, store, is_listed=False))
    problems = [*([problem] if problem else []), *problems_of(bases)]
    return bases, {"coverage": None, "orphans": None, "stale": None, "bytes": bytes_of(bases), "problems": problems}


def _catalog(source: Located) -> tuple[list[tuple[Row, list[Row]]], str | None]:
    if source.stores.catalog is None:
        return [], None
    try:
        with source.tree.local(source.stores.catalog, None) as path:
            catalog = read_catalog(path, data=False)
    except (CatalogProblem, SourceUnreadable) as error:
        return [], f"the catalog {error}"
    return [(row, (catalog.items or {}).get(row.get("id"), [])) for row in catalog.bases], None


def _listed(row: Row, items: list[Row]) -> dict[str, Any]:
    return {
        "id": row.get("id"),
        "name": str(row.get("name") or row.get("id")),
        "status": row.get("status"),
        "error": row.get("error"),
        "model": row.get("embedding_model_id"),
        "items": dict(sorted(Counter(str(item.get("status")) for item in items).items())),
    }


def _look_at(source: Located, store: Store, *, is_listed: bool) -> dict[str, Any]:
    try:
        with source.tree.local(store.name, None) as path:
            found = look_at_file(path, store.look)
    except SourceUnreadable as error:
        found = {"store": None, "problem": f"its index file cannot be read: {error.facts['reason']}"}
    collection, items = found.pop("collection", None), found.pop("items", {})
    base_id = store.base_id or collection or store.name
    return found if is_listed else {"id": base_id, "name": base_id, "model": None, "items": items, **found}


def look_at_file(path: Path, seen: Look) -> dict[str, Any]:
    """Return ``store`` and ``problem`` of one file, with the items that its rows name by type."""
    if seen.layout is Layout.UNREADABLE:
        return {"store": None, "problem": f"its index file cannot be read: {seen.problem}"}
    try:
        with libsql.readable(path) as copy:
            found, contents = libsql.PREVIEW.survey(copy), libsql.read_contents(copy)
            declared = libsql.declared_dimensions(copy)
    except StoreProblem as problem:
        return {"store": None, "problem": f"its index file {problem}"}
    lengths = {str(length // 4): count for length, count in found.lengths.items()}
    store = {
        "rows": found.rows,
        "loaders": len(found.loaders),
        "dimensions": (found.vector_bytes or 0) // 4 or declared,
        "lengths": lengths,
        "text_bytes": found.body_bytes,
        "bytes": path.stat().st_size,
    }
    types = Counter(item.type or "file" for item in contents.items.values())
    invisible = INVISIBLE + (_TRAP if seen.has_trap else "")
    return {
        "store": store,
        "problem": invisible if found.rows else None,
        "collection": contents.collection,
        "items": dict(sorted(types.items())),
    }
