"""Summarize v2 data for ``inspect``: the catalog, and counts of the index of every base."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
from msgspec import UNSET, structs

from checks import cherry_preview as cherry_preview_inspect
from checks.cherry_v2 import audit, detect
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.audit import inserted_bases
from checks.inspect import (
    BaseSummary,
    HealthSummary,
    IndexSummary,
    ItemSummary,
    MaterialSummary,
    StoreSummary,
    VectorFileSummary,
    describe_problems,
    total_bytes,
)
from checks.systems import Checks
from regraft.disk import sqlite
from regraft.formats import cherry_preview
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, Row, item_name, parse_item_data, read_catalog
from regraft.formats.cherry_v2.index import SCHEMA_VERSION
from regraft.formats.cherry_v2.index.schema import (
    catalog_dimensions,
    choose_vector_length,
    count_bodies_of_other_length,
    count_vector_lengths,
)
from regraft.kinds import Kind
from regraft.language import format_count, join_list, tr
from regraft.report.labels import label_of
from regraft.stores.locate import CATALOG_FILE, INDEX_FILE, unpack_archive
from regraft.stores.systems import Located
from regraft.stores.write_checks import find_pending_change
from regraft.text import lenient_text

_SLIM = tr("a slim backup: it has the rows of its bases, but not their indexes and files")

Store = VectorFileSummary | IndexSummary

#: The rows that break a rule are counted with the rule's own condition.
_RULES = {
    "missing": detect.BODY_WITHOUT_VECTOR,
    "orphan_embeddings": detect.ORPHAN_VECTOR,
    "orphan_contents": detect.ORPHAN_CONTENT,
    "orphan_bodies": detect.ORPHAN_BODY,
}
_COUNTS = {
    "materials": "SELECT count(*) FROM material",
    "units": "SELECT count(*) FROM search_unit",
    "embeddings": "SELECT count(*) FROM embedding",
    "bodies": "SELECT count(*) FROM search_text",
    **{name: f"SELECT count(*) FROM {rule.table} WHERE {rule.condition}" for name, rule in _RULES.items()},
}


def inspect_store(source: Located, *, items: bool) -> StoreSummary:
    """Summarize a library, a profile, one base folder or one index file; an archive is unpacked first.

    Args:
        source: the store.
        items: whether to list the items of every base.
    """
    with unpack_archive(source, raw=False) as unpacked:
        if source.kind is Kind.INDEX:
            bases = [_summarize_base(unpacked, unpacked.path, items=items)]
        elif source.kind is Kind.BASE:
            bases = [_summarize_base(unpacked, unpacked.path / INDEX_FILE, items=items)]
        else:
            bases = _summarize_bases(unpacked, items=items)
        return StoreSummary(bases, _sum_health(unpacked, bases))


def _sum_health(source: Located, bases: list[BaseSummary]) -> HealthSummary:
    """Add up the health of all bases of the store."""
    read = [base.store for base in bases if isinstance(base.store, IndexSummary)]
    bodies = sum(store.bodies for store in read)
    notes = [_SLIM] if source.is_slim else []
    if source.stores.stale_copy is not None:
        note = tr(
            "{stale_copy}: {stale_copy2} is a left-over of a beta; the live database is {live}",
            stale_copy=v2.STALE_COPY,
            stale_copy2=source.stores.stale_copy,
            live=source.stores.catalog,
        )
        notes.insert(0, note)
    return HealthSummary(
        coverage=_share(bodies - sum(store.missing + store.wrong_length for store in read), bodies),
        orphans=sum(store.orphans for store in read),
        stale=sum(store.stale or 0 for store in read),
        bytes=total_bytes(bases),
        problems=list(_describe_problems(source, bases)),
        notes=notes or UNSET,
    )


def _describe_problems(source: Located, bases: list[BaseSummary]) -> Iterator[str]:
    # A pending restore or reset.
    """Yield the problems of the whole store and of each base."""
    reason = None if source.kind is Kind.V2_BACKUP or source.stores.is_copy else find_pending_change(source.tree.path)
    if reason is not None:
        yield f"{v2.PENDING}: {reason}"
    yield from (
        tr("{name} cannot be read: {reason}", name=name, reason=reason) for name, reason in source.damaged.items()
    )
    yield from describe_problems(bases)


def _summarize_base(source: Located, index_path: Path, *, items: bool) -> BaseSummary:
    """Summarize the base with this index file, with every material; ``items``: whether to list its items."""
    folder, catalog = index_path.parent.parent, _catalog_path(source)
    known: list[BaseSummary] = []
    if catalog and index_path == folder / INDEX_FILE:
        known = _summarize_catalog(source, catalog, {folder.name: index_path}, folder.name, items=items)
    if known:
        base = known[0]
    else:
        store, problem = _summarize_index_file(index_path, None)
        stated = store.base_id if isinstance(store, IndexSummary) else folder.name
        base = BaseSummary(id=stated, name=stated, store=store, problem=problem)
    sources = _read_sources(catalog, base.id) if known and catalog else {}
    if base.store is None:
        return structs.replace(base, materials=[])
    try:
        return structs.replace(base, materials=_summarize_materials(index_path, sources))
    except (apsw.Error, OSError) as error:
        return structs.replace(base, materials=[], problem=tr("its materials cannot be read: {error}", error=error))


def _read_sources(catalog: Path, base_id: str) -> dict[str, str]:
    """Map the ids of a base's items to the original path or address that the catalog records for them."""
    query = """SELECT CAST(id AS BLOB), CASE WHEN json_valid(data) THEN CAST(data ->> 'source' AS BLOB) END
                 FROM knowledge_item WHERE base_id = ?"""
    try:
        with sqlite.open_readonly(catalog) as db:
            rows = db.execute(query, (base_id,))
            return {lenient_text(item): lenient_text(source) for item, source in rows if source is not None}
    except (apsw.Error, UnicodeDecodeError):
        return {}


def _summarize_materials(index: Path, sources: dict[str, str]) -> list[MaterialSummary]:
    """Summarize every material of an index; ``sources`` maps ids of materials to the originals of their items."""
    with sqlite.open_readonly(index) as db:
        rows = db.execute(
            """SELECT CAST(m.material_id AS BLOB), CAST(m.relative_path AS BLOB), count(u.unit_id), max(u.char_end)
                 FROM material m LEFT JOIN search_unit u USING (material_id)
                GROUP BY m.material_id ORDER BY m.rowid"""
        )
        return [
            MaterialSummary(
                id=lenient_text(material),
                path=lenient_text(path),
                source=sources.get(lenient_text(material)),
                units=units,
                utf16_units=length or 0,
            )
            for material, path, units, length in rows
        ]


def _share(part: int, whole: int) -> float | None:
    """Return a part as a fraction of the whole; None if the whole is 0."""
    return part / whole if whole else None


def _catalog_path(source: Located) -> Path | None:
    """Return the path of the store's catalog; None if it has none."""
    return None if source.stores.catalog is None else source.tree.path / source.stores.catalog


def _summarize_bases(source: Located, *, items: bool) -> list[BaseSummary]:
    """Summarize all bases: those in the catalog, then index files that the catalog does not name.

    ``items``: whether to list the items of each base.
    """
    catalog = _catalog_path(source)
    stores = (*source.stores.current, *source.stores.preview)
    indexes = {str(store.base_id): source.tree.path / store.name for store in stores}
    known = _summarize_catalog(source, catalog, indexes, items=items) if catalog else []
    named = {base.id for base in known}
    for base_id, path in sorted(indexes.items()):
        if base_id not in named:
            store, problem = _summarize_index_file(path, None)
            if problem is None and catalog:
                problem = tr("no catalog names this base")
            known.append(BaseSummary(id=base_id, name=base_id, store=store, problem=problem))
    return known


def _summarize_catalog(
    source: Located, catalog: Path, indexes: dict[str, Path], only_base: str | None = None, *, items: bool
) -> list[BaseSummary]:
    """Summarize the bases of a catalog, with the index of each.

    Args:
        source: the store.
        catalog: the path of the catalog.
        indexes: the index files, by base id.
        only_base: the id of the only base to summarize; None: all.
        items: whether to list the items of each base.
    """
    try:
        found = read_catalog(catalog, data=items)
    except CatalogProblem as error:
        return [
            BaseSummary(id=catalog.name, name=catalog.name, store=None, problem=tr("the catalog {error}", error=error))
        ]
    bases, inserted = [], inserted_bases(source.tree.path, source)
    for row in found.bases:
        base_id = row.get("id")
        if only_base in (None, base_id):
            own = None if found.items is None else found.items.get(base_id, [])
            path = indexes.get(str(base_id))
            is_migrated = catalog.name == CATALOG_FILE or str(base_id) in inserted
            store, problem = _summarize_index(row, own, path, is_migrated=is_migrated, is_slim=source.is_slim)
            statuses = Counter(str(item.get("status")) for item in (own or []))
            base = BaseSummary(
                id=row.get("id"),
                name=_readable(row.get("name", row.get("id"))),
                status=_readable(row.get("status")),
                error=_readable(row.get("error")),
                model=_readable(row.get("embedding_model_id")),
                items=dict(sorted(statuses.items())),
                store=store,
                problem=problem,
            )
            if items:
                base = structs.replace(base, item_list=_list_items(own or [], indexes.get(str(base_id))))
            bases.append(base)
    return bases


def _list_items(rows: list[Row], index: Path | None) -> list[ItemSummary]:
    """Summarize the items of a base from their rows, with the number of units in the index."""
    units: dict[str, int] = {}
    if index is not None:
        query = "SELECT CAST(material_id AS BLOB), count(*) FROM search_unit GROUP BY material_id"
        with suppress(apsw.Error, OSError, UnicodeDecodeError), sqlite.open_readonly(index) as db:
            units = {lenient_text(material): count for material, count in db.execute(query) if material is not None}
    return [
        ItemSummary(
            id=_readable(row.get("id")),
            name=item_name(row.get("type"), parse_item_data(row)) or str(_readable(row.get("id"))),
            type=_readable(row.get("type")),
            status=_readable(row.get("status")),
            error=_readable(row.get("error")),
            folder=_readable(row.get("group_id")),
            units=units.get(str(row.get("id"))),
        )
        for row in rows
    ]


def _readable(value: Any) -> Any:
    """Return bytes as text, and values of other types unchanged; columns can hold values of any type."""
    return lenient_text(value) if isinstance(value, bytes) else value


def _summarize_index(
    row: Row, items: list[Row] | None, path: Path | None, *, is_migrated: bool, is_slim: bool
) -> tuple[Store | None, str | None]:
    """Summarize the index of a base that the catalog names; the second value is a problem, or None.

    Args:
        row: the catalog's row of the base.
        items: the catalog's rows of its items; None: unknown.
        path: its index file; None: missing.
        is_migrated: whether regraft is known to have made the base.
        is_slim: whether the store is a slim backup, which has no indexes.
    """
    failed = None
    if row.get("status") == "failed":
        step = label_of("migration" if is_migrated else "upgrade")
        failed = tr("failed during the {step}: {error}", step=step, error=row.get("error"))
    if path is None:
        return None, failed or (None if is_slim else tr("its index file is missing"))
    ids = None if items is None else {str(item.get("id")) for item in items}
    # A failed base can have texts without vectors even if its model is gone.
    has_model = row.get("embedding_model_id") is not None or failed is not None
    store, problem = _summarize_index_file(path, ids, has_model=has_model, dimensions=catalog_dimensions(row))
    return store, join_list(filter(None, (failed, problem)), between=tr("; ")) or None


#: Columns can hold values of any type, and text that is not UTF-8.
_META = """SELECT CASE typeof(schema_version) WHEN 'integer' THEN schema_version ELSE CAST(schema_version AS BLOB) END,
                  CAST(base_id AS BLOB) FROM meta"""


def _summarize_index_file(
    path: Path, item_ids: set[str] | None, *, has_model: bool | None = None, dimensions: int | None = None
) -> tuple[Store | None, str | None]:
    """Count the rows of one index file; the second value is a problem of it, or None.

    Args:
        path: the index file.
        item_ids: ids of the base's items; None: unknown.
        has_model: whether the base has a model; None: unknown. A base without one needs no vectors.
        dimensions: the dimensions that the catalog states; None: it states none.
    """
    seen = cherry_preview.summarize_file(path)
    if seen.layout is cherry_preview.IndexLayout.PREVIEW:
        found = cherry_preview_inspect.inspect_file(path, seen)
        return found.store, found.problem
    try:
        with sqlite.open_readonly(path) as db:
            counts = {name: db.execute(sql).get for name, sql in _COUNTS.items()}
            lengths = count_vector_lengths(db)
            length = choose_vector_length(lengths, dimensions)
            counts["wrong_length"] = count_bodies_of_other_length(db, length)
            version, stated = db.execute(_META).fetchone() or (None, None)
            stale = None if item_ids is None else _count_stale(db, item_ids)
    except (apsw.Error, OSError) as error:
        return None, tr("its index cannot be read: {error}", error=error)
    wants_vectors = counts["embeddings"] > 0 if has_model is None else has_model
    if not wants_vectors:
        counts["missing"] = counts["wrong_length"] = 0
    covered = counts["bodies"] - counts["missing"] - counts["wrong_length"]
    store = IndexSummary(
        schema_version=_readable(version),
        base_id=_readable(stated),
        **counts,
        dimensions=length // 4 if lengths else None,
        coverage=_share(covered, counts["bodies"]),
        orphans=counts["orphan_embeddings"] + counts["orphan_contents"] + counts["orphan_bodies"],
        stale=stale,
        bytes=path.stat().st_size,
    )
    return store, _find_problem(path, store)


def _count_stale(db: apsw.Connection, item_ids: set[str]) -> int:
    """Count the materials of an index whose item is not one of ``item_ids``."""
    held = db.execute("SELECT CAST(material_id AS BLOB) FROM material")
    return sum(material is None or lenient_text(material) not in item_ids for (material,) in held)


def _find_problem(path: Path, store: IndexSummary) -> str | None:
    """Describe the problem of an index that would hurt the user most; None if there is no problem."""
    folder = path.parent.parent.name
    if store.schema_version != SCHEMA_VERSION:
        return tr(
            "its index is of version {schema_version}, not {schema_version2}: the application would empty it",
            schema_version=store.schema_version,
            schema_version2=SCHEMA_VERSION,
        )
    if path.parent.name == ".cherry" and store.base_id != folder:
        return tr("its index belongs to base {base_id}: the application would refuse it", base_id=store.base_id)
    problems = []
    if store.missing:
        problems.append(tr("{texts} without a vector", texts=format_count(store.missing, "text")))
    if store.wrong_length:
        problems.append(
            tr(
                "{texts} with a vector that does not have {dimensions} dimensions",
                texts=format_count(store.wrong_length, "text"),
                dimensions=store.dimensions,
            )
        )
    return join_list(problems, between=tr("; ")) or None


CHECKS = Checks(
    inspect=lambda found, asked: inspect_store(found, items=asked.items),
    audit=audit.audit,
)
