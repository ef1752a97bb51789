"""Whether the rows of a catalog make sense by themselves (``docs/formats/catalog.md``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import findings as v2
from regraft.formats.cherry_v2.catalog_generation import REQUIRED_MODEL_COLUMNS
from regraft.formats.cherry_v2.catalog_reader import (
    DATA_FIELDS,
    Row,
    StoredCatalog,
    base_id_text,
    find_data_problem,
    list_unknown_fields,
    parse_item_data,
)
from regraft.language import join_list, tr
from regraft.report.labels import label_of
from regraft.report.notices import MISSING_MODEL, MISSING_STORE, NOT_MIGRATED
from regraft.text import is_blank

#: Statuses of an item that somebody is working on.
ACTIVE = {"preparing", "processing", "reading", "embedding"}
_STATUSES = {"idle", "completed", "failed", "deleting", *ACTIVE}
_BASE_STATUSES = {"completed", "failed"}
MODES = {"vector", "bm25", "hybrid"}


def check_base(row: Row, models: set[Any] | None, ledger: FindingCollector, carried_by: str = "upgrade") -> None:
    """Check a row of ``knowledge_base``.

    Args:
        row: the row.
        models: the ids of those that exist, None where that is not known.
        ledger: what is wrong goes there.
        carried_by: what brought the base to v2: the application's upgrade, or a migration.
    """
    base = base_id_text(row)
    check_types(row, "base", base, ledger)
    problem = find_base_problem(row)
    if problem is not None:
        ledger.add(v2.BASE_STATUS, problem, base=base, is_beyond_repair=_is_of_unknown_mode(row))
    elif row.get("status") == "failed":
        known = row.get("error") in (MISSING_MODEL, MISSING_STORE)
        message = (
            tr("failed at the {carried_by}: {error}", carried_by=label_of(carried_by), error=row["error"])
            if known
            else tr("failed: {error}", error=row["error"])
        )
        ledger.add(v2.BASE_FAILED, message, base=base, severity="warning")
    for column in ("embedding_model_id", "rerank_model_id"):
        model = row.get(column)
        if model is not None and models is not None and model not in models:
            ledger.add(v2.BASE_MODEL, tr("its model {model} does not exist", model=model), base=base, sample=model)


def _is_of_unknown_mode(row: Row) -> bool:
    """Tell whether nothing says which search mode was meant; only builds before the first release keep one."""
    is_unknown = row.get("status") in _BASE_STATUSES and "search_mode" in row and row["search_mode"] not in MODES
    return is_unknown and row.get("hybrid_alpha") is None


#: Columns that hold text, and those that hold numbers; what other findings are about apart.
_TEXTS = (
    *("id", "name", "group_id", "base_id", "rerank_model_id", "file_processor_id", "chunk_strategy"),
    "chunk_separator",
)
_NUMBERS = ("chunk_size", "chunk_overlap", "threshold", "document_count", "hybrid_alpha")
_TIMES = ("created_at", "updated_at", "deleted_at")


def check_types(row: Row, noun: str, base: str | None, ledger: FindingCollector) -> None:
    """Find values of a row that are of a type which their columns do not hold."""
    texts = (name for name in _TEXTS if not isinstance(row.get(name), str | None))
    numbers = (name for name in _NUMBERS if not isinstance(row.get(name), int | float | None))
    times = (name for name in _TIMES if isinstance(row.get(name), bytes))
    for name in (*texts, *numbers, *times):
        message = tr(
            "{{n}} whose {name} is {isinstance}",
            name=name,
            isinstance="bytes" if isinstance(row[name], bytes) else tr("of another type"),
        )
        ledger.add(v2.CATALOG_VALUE, message, base=base, noun=noun, sample=row.get("id"))


def find_base_problem(row: Row) -> str | None:
    """Return what does not go together in a row of ``knowledge_base``; None where all does."""
    return _odd_value(row) or _contradiction(row)


def _odd_value(row: Row) -> str | None:
    status, mode, dimensions = (row.get(key) for key in ("status", "search_mode", "dimensions"))
    if status not in _BASE_STATUSES:
        return tr("its status is {status}", status=status)
    if "search_mode" in row and mode not in MODES:
        return tr("its search mode is {mode}", mode=mode)
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions <= 0):
        return tr("it has {dimensions} dimensions", dimensions=dimensions)
    return None


def _contradiction(row: Row) -> str | None:
    error, model, dimensions = (row.get(key) for key in ("error", "embedding_model_id", "dimensions"))
    if row.get("status") == "failed":
        return tr("it failed without an error") if is_blank(error) else None
    if error is not None:
        return tr("it is completed and has an error: {error}", error=error)
    if (model is None) != (dimensions is None):
        return (
            tr("it has a model without dimensions") if dimensions is None else tr("it has dimensions without a model")
        )
    if model is None and row.get("search_mode") not in (None, "bm25"):
        return tr("it has no model and its search mode is {search_mode}", search_mode=row["search_mode"])
    return None


def check_models(models: Sequence[Row], used: Collection[Any], ledger: FindingCollector) -> None:
    """Check the rows of ``user_model``.

    A model with a preset inherits what is null in its row; one of the user's own inherits nothing.

    Args:
        models: all rows.
        used: ids of the models that bases name.
        ledger: what is wrong goes there.
    """
    for row in models:
        lacking = [name for name in REQUIRED_MODEL_COLUMNS if name in row and row[name] is None]
        if lacking and row.get("preset_model_id") is None:
            of_bases = tr(" that bases use,") if row.get("id") in used else ""
            message = tr("{{n}}{of_bases} without {lacking}", of_bases=of_bases, lacking=join_list(lacking))
            ledger.add(v2.MODEL_INCOMPLETE, message, noun="model", sample=row.get("id"))


def check_items(catalog: StoredCatalog, chosen: set[str] | None, is_running: bool, ledger: FindingCollector) -> None:
    """Check the rows of ``knowledge_item``.

    Args:
        catalog: all rows.
        chosen: ids of the bases whose items are looked at; None: of all, and of bases that are not there.
        is_running: whether an application may be working on items.
        ledger: what is wrong goes there.
    """
    bases = {base_id_text(row) for row in catalog.bases}
    for key, items in (catalog.items or {}).items():
        base = str(key)
        if chosen is not None and base not in chosen:
            continue
        if base not in bases:
            for item in items:
                message = tr("{n} of a base that does not exist")
                ledger.add(v2.ITEM_NO_BASE, message, base=base, noun="item", sample=item.get("id"))
            continue
        for item in items:
            check_types(item, "item", base, ledger)
            _check_item(item, base, is_running, ledger)
        _check_containers(items, base, ledger)


def has_newer_type(item: Row) -> bool:
    """Tell whether an item is of a type that a newer application has: nobody here knows its rules."""
    return isinstance(item.get("type"), str) and item["type"] not in DATA_FIELDS


def _check_item(item: Row, base: str, is_running: bool, ledger: FindingCollector) -> None:
    if has_newer_type(item):
        going = tr(", which is being deleted") if item.get("status") == "deleting" else ""
        message = tr(
            "{{n}} of the type {type}, of a newer application{going}: left alone", type=item["type"], going=going
        )
        ledger.add(v2.ITEM_FOREIGN, message, base=base, noun="item", sample=item.get("id"))
        return
    if has_id_as_path(item):
        message = tr("{n} of a folder with its own id for a path: the application shows that as its name")
        ledger.add(v2.ITEM_PATH_IS_ID, message, base=base, noun="file", sample=item.get("id"))
    problem = find_status_problem(item, is_running)
    if problem is not None:
        is_unknown = item.get("type") not in DATA_FIELDS
        ledger.add(
            v2.ITEM_STATUS,
            tr("{what}: {why}", what="{n}", why=problem),
            base=base,
            noun="item",
            sample=item.get("id"),
            is_beyond_repair=is_unknown,
        )
    problem = find_data_problem(item)
    if problem is not None:
        message, more = tr("{what}: {why}", what="{n}", why=problem), bool(list_unknown_fields(item))
        ledger.add(v2.ITEM_DATA, message, base=base, noun="item", sample=item.get("id"), is_beyond_repair=more)
    if is_tombstone(item):
        message = tr("{n} that the upgrade left behind")
        ledger.add(v2.ITEM_TOMBSTONE, message, base=base, noun="folder", sample=item.get("id"), severity="warning")


def is_tombstone(item: Row) -> bool:
    """Tell whether an item is a folder that the upgrade left behind."""
    return item.get("type") == "directory" and item.get("status") == "failed" and item.get("error") == NOT_MIGRATED


def find_status_problem(item: Row, is_running: bool) -> str | None:
    """Return what is wrong with an item's status, error and type; None where nothing is."""
    status, error, kind = (item.get(key) for key in ("status", "error", "type"))
    if has_newer_type(item):
        return None
    if kind not in DATA_FIELDS:
        return tr("its type is {kind}", kind=kind)
    if status not in _STATUSES:
        return tr("its status is {status}", status=status)
    return _error_problem(status, error) or _work_problem(kind, status, is_running)


def _error_problem(status: Any, error: Any) -> str | None:
    if status == "failed":
        return tr("failed without an error") if is_blank(error) else None
    return None if error is None else tr("{status} with an error", status=status)


def _work_problem(kind: Any, status: Any, is_running: bool) -> str | None:
    if status in (("reading", "embedding") if kind == "directory" else ("preparing",)):
        return tr("a {kind} cannot be {status}", kind=kind, status=status)
    # A folder is at work because of its children, or while its files are listed.
    if status in ACTIVE and not is_running and (kind != "directory" or status == "preparing"):
        return tr("{status}, and nobody is working", status=status)
    return None


def get_indexed_path(item: Row) -> str | None:
    """Return the path below ``raw/`` of what is indexed of an item; None where it names none."""
    data = parse_item_data(item)
    path = data.get("indexedRelativePath") or data.get("relativePath")
    return path if isinstance(path, str) and path else None


def has_id_as_path(item: Row) -> bool:
    """Tell whether an item is a file of a folder that has its own id for a path, as early releases gave them."""
    if item.get("type") != "file" or item.get("group_id") is None:
        return False
    return isinstance(item.get("id"), str) and parse_item_data(item).get("relativePath") == item["id"]


def find_virtual_prefixes(items: Iterable[Row]) -> dict[str, str]:
    """Return what the paths of files of folders begin with, by the files' ids: they have no file by design."""
    every = list(items)
    prefixes = {}
    for item in every:
        prefix = parse_item_data(item).get("relativePath") if item.get("type") == "directory" else None
        if isinstance(prefix, str) and prefix:
            prefixes[item.get("id")] = f"{prefix.rstrip('/')}/"
    return {str(item.get("id")): prefixes[group] for item in every if (group := item.get("group_id")) in prefixes}


def _check_containers(items: list[Row], base: str, ledger: FindingCollector) -> None:
    by_id = {item.get("id"): item for item in items}
    children: dict[Any, list[Row]] = defaultdict(list)
    for item in items:
        group = item.get("group_id")
        if group is None:
            continue
        children[group].append(item)
        problem = find_folder_problem(item, by_id)
        if problem is not None:
            ledger.add(v2.ITEM_CONTAINER, f"{{n}} {problem}", base=base, noun="item", sample=item.get("id"))
    for item in items:
        problem = _folder_problem(item, children.get(item.get("id"), ()))
        if problem is not None:
            ledger.add(v2.ITEM_CONTAINER, f"{{n}} {problem}", base=base, noun="folder", sample=item.get("id"))


def _folder_problem(item: Row, children: Sequence[Row]) -> str | None:
    """Return where the status of a folder does not follow from what is inside; None where it does."""
    status = item.get("status")
    if item.get("type") != "directory" or status not in ("processing", "completed"):
        return None
    if any(map(has_newer_type, children)):
        return None  # How a newer application counts such a child nobody here knows.
    inside = [child.get("status") for child in children if child.get("status") != "deleting"]
    if not inside:
        return tr("at work with nothing inside") if status == "processing" else None
    wanted = "processing" if ACTIVE.intersection(inside) else "completed"
    return None if status == wanted else tr("that should be {wanted} by what is inside", wanted=wanted)


def find_folder_problem(item: Row, by_id: Mapping[Any, Row]) -> str | None:
    """Return what is wrong with the folder that an item, which has one, is in; None where nothing is."""
    container = by_id.get(item.get("group_id"))
    if container is None:
        return tr("whose folder is not there")
    if has_newer_type(item) or has_newer_type(container):
        return None
    if container.get("type") != "directory":
        return tr("inside something that is not a folder")
    seen = {item.get("id")}
    above: Row | None = container
    while above is not None:
        if above.get("id") in seen:
            return tr("inside itself")
        seen.add(above.get("id"))
        above = by_id.get(above.get("group_id")) if above.get("group_id") is not None else None
    return None
