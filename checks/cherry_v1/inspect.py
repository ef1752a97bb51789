"""A first look at v1 data: bases, items, and what their vector files hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import UNSET

from checks.cherry_v1.item_list import item_list
from checks.looks import BaseLook, HealthLook, Look, VectorFileLook, by_dimensions, bytes_of, problems_of
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v1 import embedjs, profile
from regraft.formats.cherry_v1.layout import vector_file_in
from regraft.formats.cherry_v1.state import V1State, read_state, vector_files
from regraft.formats.cherry_v1.tables import Items
from regraft.formats.vector_survey import StoreProblem
from regraft.kinds import NAMES, V1_SOURCES, Kind
from regraft.language import tr
from regraft.locate import KNOWLEDGE_FOLDER
from regraft.located import Located
from regraft.names import vector_file_name
from regraft.report.progress import Progress, stage
from regraft.tree import join, notices_of


def look(source: Located, progress: Progress, *, items: bool = False) -> Look:
    """Look at v1 data: at all bases of a source, with their items or without, or at the vector file of one."""
    if source.kind is Kind.V1_VECTORS:
        return _look_at_file(source.path)
    if source.kind is Kind.V1_VECTOR_FOLDER:
        return _look_at_folder(source, progress)
    if source.kind in V1_SOURCES:
        return _look_at_source(source, progress, items=items)
    return _look_without_state(source)


def _look_at_source(source: Located, progress: Progress, *, items: bool) -> Look:
    state = read_state(source.tree, source.places)
    raws = [raw for raw in state.bases if isinstance(raw, dict) and isinstance(raw.get("id"), str)]
    bases = []
    with stage(progress, "Reading", len(raws), "bases"):
        for raw in raws:
            progress.at(str(raw.get("name")))
            bases.append(_base(source, state, raw, items=items))
            progress.step(1, 0)
    sign = None if source.profile is None else profile.sign_of_life(source.profile)
    problems = [] if sign is None else [tr("the application is running ({sign}): its data may change", sign=sign)]
    noticed = (*source.notices, *notices_of(source.tree), *state.notices)
    problems += [notice.message for notice in noticed if notice.severity != "note"]
    problems += problems_of(bases)
    if len(raws) < len(state.bases):
        problems.append(tr("{bases} bases have no id", bases=len(state.bases) - len(raws)))
    return Look(bases, HealthLook(bytes=bytes_of(bases), problems=problems))


def _look_at_file(path: Path) -> Look:
    """Look at one v1 vector file alone."""
    store, problem = _survey(path)
    problems = [problem] if problem else []
    base = BaseLook(id=path.name, name=path.name, store=store, problem=problem)
    return Look([base], HealthLook(bytes=path.stat().st_size, problems=problems))


def _look_at_folder(source: Located, progress: Progress) -> Look:
    """Look at every vector file of a folder, which no state lies beside."""
    names = sorted(vector_files(source.tree, source.places))
    bases = []
    with stage(progress, "Reading", len(names), "bases"):
        for name in names:
            progress.at(name)
            store, problem = _look_at_member(source, join(source.places.vectors or "", name))
            bases.append(BaseLook(id=name, name=name, store=store, problem=problem))
            progress.step(1, 0)
    lost = tr("no state names these vector files; regraft migrate --adopt-orphans makes bases of their rows")
    return Look(bases, HealthLook(bytes=bytes_of(bases), problems=[lost, *problems_of(bases)]))


def _look_without_state(source: Located) -> Look:
    """Look at a source whose state this version does not read: its vector files and base folders, by their names."""
    folders = (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)
    folder = next((name for name in folders if source.tree.kind(name) == "folder"), None)
    bases = []
    for name in source.tree.children(folder) if folder else []:
        place = join(folder or "", name)
        if source.tree.kind(place) == "folder":
            bases.append(BaseLook(id=name, name=name, store=None, problem=None))
        elif not name.endswith(".json"):
            store, problem = _look_at_member(source, place)
            bases.append(BaseLook(id=name, name=name, store=store, problem=problem))
    problems = [tr("{names} is recognised; this version does not read its knowledge state", names=NAMES[source.kind])]
    problems += problems_of(bases)
    return Look(bases, HealthLook(bytes=bytes_of(bases), problems=problems))


def _look_at_member(source: Located, name: str) -> tuple[VectorFileLook | None, str | None]:
    try:
        with source.tree.local(name, None) as path:
            return _survey(path)
    except SourceUnreadable as error:
        return None, str(error.facts["reason"])


def _base(source: Located, state: V1State, raw: dict[str, Any], *, items: bool) -> BaseLook:
    own = raw.get("items") if isinstance(raw.get("items"), list | Items) else []
    types = Counter(str(item.get("type")) for item in own or [] if isinstance(item, dict))
    store: VectorFileLook | None = None
    problem: str | None = tr("the source holds no vector files")
    if source.places.vectors is not None:
        folder = source.places.vectors
        name = vector_file_in(source.tree, folder, vector_file_name(raw["id"]))
        store, problem = _look_at_member(source, join(folder, name))
    return BaseLook(
        id=raw["id"],
        name=str(raw.get("name")),
        model=_model_of(raw),
        items=dict(sorted(types.items())),
        item_list=item_list(state, own or ()) if items else UNSET,
        store=store,
        problem=problem,
    )


def _model_of(raw: dict[str, Any]) -> str | None:
    model = raw.get("model")
    if not isinstance(model, dict):
        return None
    return "::".join(str(model[key]) for key in ("provider", "id") if model.get(key)) or None


def _survey(path: Path) -> tuple[VectorFileLook | None, str | None]:
    try:
        found = embedjs.VECTORS.survey(path)
    except StoreProblem as problem:
        return None, tr("its vector file {problem}", problem=problem)
    store = VectorFileLook(
        rows=found.rows,
        loaders=len(found.loaders),
        dimensions=(found.vector_bytes or 0) // 4 or None,
        lengths=by_dimensions(found.lengths),
        text_bytes=found.body_bytes,
        bytes=path.stat().st_size,
    )
    return store, None if found.lengths else tr("its vector file holds no usable vector")
