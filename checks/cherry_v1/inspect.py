"""Summarize v1 data for ``inspect``: bases, items, and the contents of their vector files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import UNSET

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
from regraft.disk.file_paths import vector_file_name
from regraft.disk.trees import join_path
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v1 import layout, profile
from regraft.formats.cherry_v1.layout import find_vector_file
from regraft.formats.cherry_v1.state import LazyItems, V1State, list_vector_files, read_state
from regraft.formats.cherry_v2.catalog_reader import item_name
from regraft.formats.vector_survey import StoreProblem
from regraft.kinds import KIND_NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.report.progress import Progress, stage
from regraft.stores.locate import KNOWLEDGE_FOLDER, link_notices
from regraft.stores.systems import Located

# --- items (``docs/formats/v1.md``, "State") ------------------------------------------------------------------------


def list_items(state: V1State, raw_items: Iterable[Any]) -> list[ItemSummary]:
    """Summarize the items of a base from their entries in the state; entries that are not objects are skipped."""
    return [_summarize_item(state, raw) for raw in raw_items if isinstance(raw, dict)]


def _summarize_item(state: V1State, raw_item: dict[str, Any]) -> ItemSummary:
    """Summarize an item from its entry in the state."""
    kind = raw_item.get("type")
    return ItemSummary(
        id=raw_item.get("id"),
        name=item_name("url" if kind == "sitemap" else kind, _item_name_data(state, raw_item))
        or str(raw_item.get("id")),
        type=kind,
        status=raw_item.get("processingStatus"),
        error=raw_item.get("processingError") or UNSET,
    )


def _item_name_data(state: V1State, raw_item: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an item that its name is made from, named as in the v2 catalog."""
    content = raw_item.get("content")
    match raw_item.get("type"):
        case "url" | "sitemap":
            return {"url": content}
        case "note":
            note = _find_row(state.notes, raw_item.get("id"))
            return {
                "source": note.get("sourceUrl") or raw_item.get("sourceUrl"),
                "content": note.get("content") or content,
            }
        case "file":
            inline = content if isinstance(content, dict) else {"id": content}
            file = {**_find_row(state.files, inline.get("id")), **inline}
            return {"source": file.get("origin_name") or file.get("name")}
        case _:
            return {"source": content}


def _find_row(table: Any, key: Any) -> dict[str, Any]:
    """Return the row with a key from a table of the state, or an empty one."""
    row = table.get(key) if isinstance(key, str) else None
    return row or {}


def inspect_store(source: Located, progress: Progress, *, items: bool = False) -> StoreSummary:
    """Summarize v1 data: all bases of a source, or the vector files of a folder, or one vector file.

    ``items``: whether to list the items of each base.
    """
    if source.kind is Kind.V1_VECTORS:
        store, problem = _summarize_vector_file(source.path)
        problems = [problem] if problem else []
        base = BaseSummary(id=source.path.name, name=source.path.name, store=store, problem=problem)
        return StoreSummary([base], HealthSummary(bytes=source.path.stat().st_size, problems=problems))
    if source.kind is Kind.V1_VECTOR_FOLDER:
        return _inspect_folder(source, progress)
    if source.kind in V1_SOURCES:
        return _inspect_source(source, progress, items=items)
    return _inspect_without_state(source)


def _inspect_source(source: Located, progress: Progress, *, items: bool) -> StoreSummary:
    """Summarize a source whose state can be read: its bases, and problems of the whole source."""
    state = read_state(source.tree, source.places)
    raws = [raw for raw in state.bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]
    bases = []
    with stage(progress, "Reading", len(raws), "bases"):
        for raw in raws:
            progress.at(str(raw.get("name")))
            bases.append(_summarize_base(source, state, raw, items=items))
            progress.step(1, 0)
    sign = None if source.profile is None else profile.detect_running_app(source.profile)
    problems = [] if sign is None else [tr("the application is running ({sign}): its data may change", sign=sign)]
    noticed = (*source.notices, *link_notices(source.tree), *state.notices)
    problems += [notice.message for notice in noticed if notice.severity != "note"]
    problems += describe_problems(bases)
    if len(raws) < len(state.bases):
        problems.append(tr("{bases} bases have no id", bases=len(state.bases) - len(raws)))
    return StoreSummary(bases, HealthSummary(bytes=total_bytes(bases), problems=problems))


def _inspect_folder(source: Located, progress: Progress) -> StoreSummary:
    """Summarize the vector files of a folder that has no state, each as a base."""
    names = sorted(list_vector_files(source.tree, source.places))
    bases = []
    with stage(progress, "Reading", len(names), "bases"):
        for name in names:
            progress.at(name)
            store, problem = _summarize_member(source, join_path(source.places.vectors or "", name))
            bases.append(BaseSummary(id=name, name=name, store=store, problem=problem))
            progress.step(1, 0)
    lost = tr("no state names these vector files; regraft migrate --adopt-orphans makes bases of their rows")
    return StoreSummary(bases, HealthSummary(bytes=total_bytes(bases), problems=[lost, *describe_problems(bases)]))


def _inspect_without_state(source: Located) -> StoreSummary:
    """Summarize a source whose state this version cannot read: each vector file or folder in its knowledge folder.

    Vector files are opened. Only the ids and names of bases come from the file names.
    """
    folders = (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)
    folder = next((name for name in folders if source.tree.kind(name) == "folder"), None)
    bases = []
    for name in source.tree.children(folder) if folder else []:
        path = join_path(folder or "", name)
        if source.tree.kind(path) == "folder":
            bases.append(BaseSummary(id=name, name=name, store=None, problem=None))
        elif not name.endswith(".json"):
            store, problem = _summarize_member(source, path)
            bases.append(BaseSummary(id=name, name=name, store=store, problem=problem))
    problems = [
        tr("{names} is recognized, but this version does not read its knowledge state", names=KIND_NAMES[source.kind])
    ]
    problems += describe_problems(bases)
    return StoreSummary(bases, HealthSummary(bytes=total_bytes(bases), problems=problems))


def _summarize_member(source: Located, path: str) -> tuple[VectorFileSummary | None, str | None]:
    """Summarize the vector file at a path of the source; return the summary or None, and its problem or None."""
    try:
        with source.tree.local(path, None) as file:
            return _summarize_vector_file(file)
    except SourceUnreadable as error:
        return None, str(error.facts["reason"])


def _summarize_base(source: Located, state: V1State, raw_base: dict[str, Any], *, items: bool) -> BaseSummary:
    """Summarize a base from its entry in the state, and its vector file; ``items``: whether to list its items."""
    own = raw_base.get("items") if isinstance(raw_base.get("items"), list | LazyItems) else []
    types = Counter(str(item.get("type")) for item in own or [] if isinstance(item, dict))
    store: VectorFileSummary | None = None
    problem: str | None = tr("the source holds no vector files")
    if source.places.vectors is not None:
        folder = source.places.vectors
        name = find_vector_file(source.tree, folder, vector_file_name(raw_base["id"]))
        store, problem = _summarize_member(source, join_path(folder, name))
    return BaseSummary(
        id=raw_base["id"],
        name=str(raw_base.get("name")),
        model=_model_of(raw_base),
        items=dict(sorted(types.items())),
        item_list=list_items(state, own or ()) if items else UNSET,
        store=store,
        problem=problem,
    )


def _model_of(raw_base: dict[str, Any]) -> str | None:
    """Return the embedding model that a base's entry in the state names, as provider::model, or None."""
    model = raw_base.get("model")
    if not isinstance(model, dict):
        return None
    return "::".join(str(model[key]) for key in ("provider", "id") if model.get(key)) or None


def _summarize_vector_file(path: Path) -> tuple[VectorFileSummary | None, str | None]:
    """Summarize a vector file; return the summary or None, and its problem or None."""
    try:
        found = layout.VECTOR_TABLE.survey(path)
    except StoreProblem as problem:
        return None, tr("its vector file {problem}", problem=problem)
    store = VectorFileSummary(
        rows=found.rows,
        loaders=len(found.loaders),
        dimensions=(found.vector_bytes or 0) // 4 or None,
        lengths=count_by_dimensions(found.lengths),
        text_bytes=found.body_bytes,
        bytes=path.stat().st_size,
    )
    return store, None if found.lengths else tr("its vector file holds no usable vector")


CHECKS = Checks(inspect=lambda found, asked: inspect_store(found, asked.progress, items=asked.items))
