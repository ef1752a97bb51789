"""Check the rows of a catalog by themselves: bases, models and items (``docs/formats/catalog.md``)."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import findings as v2
from regraft.disk import file_paths
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

#: Home folders, disks and drives by which a computer is recognized; a path on the system's own drive is on any.
_POSIX_PLACE = re.compile(r"/(?:home|Users|mnt|media/[^/]+|run/media/[^/]+|Volumes)/[^/]+(?=/)")
_WINDOWS_PLACE = re.compile(r"(?:[A-Za-z]:[\\/]Users[\\/][^\\/]+|[ABD-Zabd-z]:)(?=[\\/])", re.IGNORECASE)
#: Statuses of an item that is being processed.
ACTIVE = {"preparing", "processing", "reading", "embedding"}
_STATUSES = {"idle", "completed", "failed", "deleting", *ACTIVE}
_BASE_STATUSES = {"completed", "failed"}
MODES = {"vector", "bm25", "hybrid"}


def check_base(row: Row, models: set[Any] | None, findings: FindingCollector, made_by: str = "upgrade") -> None:
    """Report a wrong or failed row of ``knowledge_base``.

    Args:
        row: the row.
        models: ids of the existing models; None: unknown.
        findings: collects what is wrong.
        made_by: "migration" by regraft, or "upgrade": nothing shows that it was regraft.
    """
    base = base_id_text(row)
    check_types(row, "base", base, findings)
    problem = find_base_problem(row)
    if problem is not None:
        findings.add(v2.BASE_STATUS, problem, base=base, is_beyond_repair=_is_of_unknown_mode(row))
    elif row.get("status") == "failed":
        known = row.get("error") in (MISSING_MODEL, MISSING_STORE)
        message = (
            tr("failed during the {step}: {error}", step=label_of(made_by), error=row["error"])
            if known
            else tr("failed: {error}", error=row["error"])
        )
        findings.add(v2.BASE_FAILED, message, base=base, severity="warning")
    for column in ("embedding_model_id", "rerank_model_id"):
        model = row.get(column)
        if model is not None and models is not None and model not in models:
            findings.add(v2.BASE_MODEL, tr("its model {model} does not exist", model=model), base=base, sample=model)


def _is_of_unknown_mode(row: Row) -> bool:
    """Whether the search mode of a base is invalid, and cannot be derived from the ``hybrid_alpha`` of early builds."""
    is_unknown = row.get("status") in _BASE_STATUSES and "search_mode" in row and row["search_mode"] not in MODES
    return is_unknown and row.get("hybrid_alpha") is None


#: Columns by type. Columns that have a finding of their own are left out.
_TEXTS = (
    *("id", "name", "group_id", "base_id", "rerank_model_id", "file_processor_id", "chunk_strategy"),
    "chunk_separator",
)
_NUMBERS = ("chunk_size", "chunk_overlap", "threshold", "document_count", "hybrid_alpha")
_TIMES = ("created_at", "updated_at", "deleted_at")


def check_types(row: Row, noun: str, base: str | None, findings: FindingCollector) -> None:
    """Report values of a row whose type does not fit their column.

    ``noun`` names the kind of row in the message, ``base`` is the id of the base that the row belongs to.
    """
    texts = (name for name in _TEXTS if not isinstance(row.get(name), str | None))
    numbers = (name for name in _NUMBERS if not isinstance(row.get(name), int | float | None))
    times = (name for name in _TIMES if isinstance(row.get(name), bytes))
    for name in (*texts, *numbers, *times):
        message = tr(
            "{{n}} whose {name} is {isinstance}",
            name=name,
            isinstance="bytes" if isinstance(row[name], bytes) else tr("of another type"),
        )
        findings.add(v2.CATALOG_VALUE, message, base=base, noun=noun, sample=row.get("id"))


def find_base_problem(row: Row) -> str | None:
    """Say which values of a ``knowledge_base`` row are invalid or contradict each other; None if none do."""
    status, mode, dimensions = (row.get(key) for key in ("status", "search_mode", "dimensions"))
    if status not in _BASE_STATUSES:
        return tr("its status is {status}", status=status)
    if "search_mode" in row and mode not in MODES:
        return tr("its search mode is {mode}", mode=mode)
    if dimensions is not None and (not isinstance(dimensions, int) or dimensions <= 0):
        return tr("it has {dimensions} dimensions", dimensions=dimensions)
    return _find_contradiction(row)


def _find_contradiction(row: Row) -> str | None:
    """Say which columns of a ``knowledge_base`` row contradict each other; None if none do."""
    error, model, dimensions = (row.get(key) for key in ("error", "embedding_model_id", "dimensions"))
    if row.get("status") == "failed":
        return tr("its status is failed, but no error is recorded") if is_blank(error) else None
    if error is not None:
        return tr("it is completed and has an error: {error}", error=error)
    if (model is None) != (dimensions is None):
        return (
            tr("it has a model without dimensions") if dimensions is None else tr("it has dimensions without a model")
        )
    if model is None and row.get("search_mode") not in (None, "bm25"):
        return tr("it has no model and its search mode is {search_mode}", search_mode=row["search_mode"])
    return None


def check_models(models: Sequence[Row], used: Collection[Any], findings: FindingCollector) -> None:
    """Report models of the user's own that lack required values.

    A model with a preset inherits what is NULL in its row; a model without one does not.

    Args:
        models: the rows of ``user_model``.
        used: ids of the models that bases name.
        findings: collects what is wrong.
    """
    for row in models:
        lacking = [name for name in REQUIRED_MODEL_COLUMNS if name in row and row[name] is None]
        if lacking and row.get("preset_model_id") is None:
            of_bases = tr(" that bases use,") if row.get("id") in used else ""
            message = tr("{{n}}{of_bases} without {lacking}", of_bases=of_bases, lacking=join_list(lacking))
            findings.add(v2.MODEL_INCOMPLETE, message, noun="model", sample=row.get("id"))


def check_items(
    catalog: StoredCatalog,
    chosen: set[str] | None,
    is_running: bool,
    findings: FindingCollector,
    made_by: str = "upgrade",
) -> None:
    """Report wrong rows of ``knowledge_item``.

    Args:
        catalog: all rows.
        chosen: ids of the bases whose items are checked; None: all, and items of bases that do not exist.
        is_running: whether the application is running, so that items can be in progress.
        findings: collects what is wrong.
        made_by: "upgrade" by the application, or "migration" by regraft.
    """
    bases = catalog.rows_by_base
    for key, items in (catalog.items or {}).items():
        base = str(key)
        if chosen is not None and base not in chosen:
            continue
        if base not in bases:
            for item in items:
                message = tr("{n} in a base that does not exist")
                findings.add(v2.ITEM_NO_BASE, message, base=base, noun="item", sample=item.get("id"))
            continue
        for item in items:
            check_types(item, "item", base, findings)
            _check_item(item, base, is_running, findings, made_by)
        _check_containers(items, base, findings)


def has_newer_type(item: Row) -> bool:
    """Whether an item has a type that only a newer application defines, whose rules are unknown."""
    return isinstance(item.get("type"), str) and item["type"] not in DATA_FIELDS


def _check_item(item: Row, base: str, is_running: bool, findings: FindingCollector, made_by: str) -> None:
    """Report an unknown type, a wrong path or data, or an inconsistent status of an item.

    ``base`` is the id of its base; the other arguments are those of :func:`check_items`.
    """
    if has_newer_type(item):
        going = tr(", which is being deleted") if item.get("status") == "deleting" else ""
        message = tr(
            "{{n}} of type {type}, introduced by a newer application{going}: not changed",
            type=item["type"],
            going=going,
        )
        findings.add(v2.ITEM_FOREIGN, message, base=base, noun="item", sample=item.get("id"))
        return
    if has_id_as_path(item):
        message = tr("{n} in a folder with its own id as path, which the application shows as its name")
        findings.add(v2.ITEM_PATH_IS_ID, message, base=base, noun="file", sample=item.get("id"))
    problem = find_status_problem(item, is_running)
    if problem is not None:
        is_unknown = item.get("type") not in DATA_FIELDS
        findings.add(
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
        findings.add(v2.ITEM_DATA, message, base=base, noun="item", sample=item.get("id"), is_beyond_repair=more)
    if is_tombstone(item):
        message = tr("{n} that failed in the application's upgrade")
        if made_by == "migration":
            message = tr("{n} that failed in the migration")
        findings.add(v2.ITEM_TOMBSTONE, message, base=base, noun="folder", sample=item.get("id"), severity="warning")


def check_sources(catalog: StoredCatalog, chosen: set[str] | None, findings: FindingCollector) -> None:
    """Report items whose original file or folder is gone, if the original was on this computer.

    ``chosen`` are the ids of the bases whose items are checked; None: all.
    """
    for key, items in (catalog.items or {}).items():
        for item in items if chosen is None or str(key) in chosen else ():
            source = get_source(item)
            if source is not None and is_source_missing(source):
                message = tr("{n} whose original is gone: the application cannot index them again")
                findings.add(v2.ITEM_SOURCE_MISSING, message, base=str(key), noun="item", sample=source)


def get_source(item: Row) -> str | None:
    """Return the path of the original file or folder of an item, as the catalog has it; None for other items."""
    source = parse_item_data(item).get("source") if item.get("type") in ("file", "directory") else None
    return source if isinstance(source, str) and source else None


def is_source_missing(source: str) -> bool:
    """Whether the original at a path is gone although the home folder or drive that it was in exists.

    Other paths are not looked for: they may be of another computer, or lead to a server.
    """
    match = (_WINDOWS_PLACE if os.name == "nt" else _POSIX_PLACE).match(source)
    if match is None:
        return False
    try:
        file_paths.stat(Path(f"{match[0]}{os.sep}"))
    except (OSError, ValueError):
        return False
    try:
        file_paths.stat(Path(source))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        # ValueError: a path that no file can have, such as one with a NUL.
        return True
    except OSError:
        return False
    return False


def is_tombstone(item: Row) -> bool:
    """Whether an item is a folder that the application's upgrade did not migrate."""
    return item.get("type") == "directory" and item.get("status") == "failed" and item.get("error") == NOT_MIGRATED


def find_status_problem(item: Row, is_running: bool) -> str | None:
    """Say why an item's status, error and type do not fit together; None if they do.

    ``is_running``: whether the application runs, so that work may be unfinished.
    """
    status, error, kind = (item.get(key) for key in ("status", "error", "type"))
    if has_newer_type(item):
        return None
    if kind not in DATA_FIELDS:
        return tr("its type is {kind}", kind=kind)
    if status not in _STATUSES:
        return tr("its status is {status}", status=status)
    if status == "failed":
        problem = tr("status failed, but no error is recorded") if is_blank(error) else None
    else:
        problem = None if error is None else tr("{status} with an error", status=status)
    return problem or _find_work_problem(kind, status, is_running)


def _find_work_problem(kind: Any, status: Any, is_running: bool) -> str | None:
    """Say why an item of type ``kind`` cannot have a status of unfinished work; None if it can."""
    if status in (("reading", "embedding") if kind == "directory" else ("preparing",)):
        return tr("a {kind} cannot be {status}", kind=kind, status=status)
    # A folder is active because of its children, or while its files are listed (status "preparing").
    if status in ACTIVE and not is_running and (kind != "directory" or status == "preparing"):
        return tr("{status}, but the application is not running", status=status)
    return None


def get_indexed_path(item: Row) -> str | None:
    """Return the path below ``raw/`` of the file that is indexed for an item, or None."""
    data = parse_item_data(item)
    path = data.get("indexedRelativePath") or data.get("relativePath")
    return path if isinstance(path, str) and path else None


def has_id_as_path(item: Row) -> bool:
    """Whether an item is a file of a folder whose path is its own id, as early releases stored it."""
    if item.get("type") != "file" or item.get("group_id") is None:
        return False
    return isinstance(item.get("id"), str) and parse_item_data(item).get("relativePath") == item["id"]


def find_virtual_prefixes(items: Iterable[Row]) -> dict[str, str]:
    """Map the ids of files in folder items to the prefix of their paths. Such files have no copy below ``raw/``."""
    every = list(items)
    prefixes = {}
    for item in every:
        prefix = parse_item_data(item).get("relativePath") if item.get("type") == "directory" else None
        if isinstance(prefix, str) and prefix:
            prefixes[item.get("id")] = f"{prefix.rstrip('/')}/"
    return {str(item.get("id")): prefixes[group] for item in every if (group := item.get("group_id")) in prefixes}


def _check_containers(items: list[Row], base: str, findings: FindingCollector) -> None:
    """Report items whose folder is missing or invalid, and folders whose status does not follow from their items."""
    by_id = {item.get("id"): item for item in items}
    children: dict[Any, list[Row]] = defaultdict(list)
    for item in items:
        group = item.get("group_id")
        if group is None:
            continue
        children[group].append(item)
        problem = find_folder_problem(item, by_id)
        if problem is not None:
            findings.add(v2.ITEM_CONTAINER, f"{{n}} {problem}", base=base, noun="item", sample=item.get("id"))
    for item in items:
        problem = _find_children_problem(item, children.get(item.get("id"), ()))
        if problem is not None:
            findings.add(v2.ITEM_CONTAINER, f"{{n}} {problem}", base=base, noun="folder", sample=item.get("id"))


def _find_children_problem(item: Row, children: Sequence[Row]) -> str | None:
    """Say why the status of a folder item does not follow from the items in it; None if it does."""
    status = item.get("status")
    if item.get("type") != "directory" or status not in ("processing", "completed"):
        return None
    if any(map(has_newer_type, children)):
        return None  # How a newer application counts such a child is unknown.
    inside = [child.get("status") for child in children if child.get("status") != "deleting"]
    if not inside:
        return tr("active although it is empty") if status == "processing" else None
    wanted = "processing" if ACTIVE.intersection(inside) else "completed"
    return None if status == wanted else tr("that should be {wanted} according to its children", wanted=wanted)


def find_folder_problem(item: Row, by_id: Mapping[Any, Row]) -> str | None:
    """Say why the folder that contains an item is not valid; None if it is. ``by_id`` has all items of the base."""
    container = by_id.get(item.get("group_id"))
    if container is None:
        return tr("whose folder is missing")
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
