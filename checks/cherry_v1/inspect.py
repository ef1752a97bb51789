"""A first look at v1 data: bases, items, and what their vector files hold."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from checks.looks import bytes_of, problems_of
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v1 import embedjs, profile
from regraft.formats.cherry_v1.state import read_state
from regraft.formats.cherry_v1.tables import Items
from regraft.formats.vector_table import StoreProblem
from regraft.kinds import NAMES
from regraft.locate import KNOWLEDGE_FOLDER, Located
from regraft.names import vector_file_name
from regraft.report.progress import Progress, stage
from regraft.tree import join, notices_of

Look = tuple[list[dict[str, Any]], dict[str, Any]]


def look(source: Located, progress: Progress) -> Look:
    """Look at every base of a v1 source."""
    state = read_state(source.tree, source.places)
    raws = [raw for raw in state.bases if _has_id(raw)]
    bases = []
    with stage(progress, "Reading", len(raws)):
        for raw in raws:
            progress.at(str(raw.get("name")))
            bases.append(_base(source, raw))
            progress.step(1, 0)
    sign = None if source.profile is None else profile.sign_of_life(source.profile)
    problems = [] if sign is None else [f"the application is running ({sign}): its data may change"]
    noticed = (*source.notices, *notices_of(source.tree), *state.notices)
    problems += [notice.message for notice in noticed if notice.severity != "note"]
    problems += problems_of(bases)
    if len(raws) < len(state.bases):
        problems.append(f"{len(state.bases) - len(raws)} bases have no id")
    return bases, _health(bytes_of(bases), problems)


def _has_id(raw: Any) -> bool:
    return isinstance(raw, dict) and isinstance(raw.get("id"), str)


def look_at_file(path: Path) -> Look:
    """Look at one v1 vector file alone."""
    store, problem = _survey(path)
    base = {"id": path.name, "name": path.name, "store": store, "problem": problem}
    return [base], _health(path.stat().st_size, [problem] if problem else [])


def look_without_state(source: Located) -> Look:
    """Look at a source whose state this version does not read: its vector files and base folders, by their names."""
    folders = (f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)
    folder = next((name for name in folders if source.tree.kind(name) == "folder"), None)
    bases: list[dict[str, Any]] = []
    for name in source.tree.children(folder) if folder else []:
        place = join(folder or "", name)
        if source.tree.kind(place) == "folder":
            bases.append({"id": name, "name": name, "store": None, "problem": None})
        elif not name.endswith(".json"):
            bases.append({"id": name, "name": name, **_look_at_member(source, place)})
    problems = [f"{NAMES[source.kind]} is recognised; this version does not read its knowledge state"]
    problems += problems_of(bases)
    return bases, _health(bytes_of(bases), problems)


def _look_at_member(source: Located, name: str) -> dict[str, Any]:
    try:
        with source.tree.local(name, None) as path:
            store, problem = _survey(path)
    except SourceUnreadable as error:
        store, problem = None, str(error.facts["reason"])
    return {"store": store, "problem": problem}


def _health(size: int, problems: list[str]) -> dict[str, Any]:
    return {"coverage": None, "orphans": None, "stale": None, "bytes": size, "problems": problems}


def _base(source: Located, raw: dict[str, Any]) -> dict[str, Any]:
    items = raw.get("items") if isinstance(raw.get("items"), list | Items) else []
    types = Counter(str(item.get("type")) for item in items or [] if isinstance(item, dict))
    found: dict[str, Any] = {"store": None, "problem": "the source holds no vector files"}
    if source.places.vectors is not None:
        found = _look_at_member(source, join(source.places.vectors, vector_file_name(raw["id"])))
    return {
        "id": raw["id"],
        "name": str(raw.get("name")),
        "model": _model_of(raw),
        "items": dict(sorted(types.items())),
        **found,
    }


def _model_of(raw: dict[str, Any]) -> str | None:
    model = raw.get("model")
    if not isinstance(model, dict):
        return None
    return "::".join(str(model[key]) for key in ("provider", "id") if model.get(key)) or None


def _survey(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    try:
        found = embedjs.VECTORS.survey(path)
    except StoreProblem as problem:
        return None, f"its vector file {problem}"
    lengths = {length // 4: count for length, count in found.lengths.items()}
    store = {
        "rows": found.rows,
        "loaders": len(found.loaders),
        "dimensions": (found.vector_bytes or 0) // 4 or None,
        "lengths": {str(dimensions): count for dimensions, count in lengths.items()},
        "text_bytes": found.body_bytes,
        "bytes": path.stat().st_size,
    }
    return store, None if found.lengths else "its vector file holds no usable vector"
