"""A first look at AngelMemory's data folder: records, tags, vectors, and the providers that have folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from checks.angel_memory.audit import size_of
from checks.angel_memory.providers import Providers, entries_of, providers
from checks.angel_memory.vectors import Differences, differences
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.formats.angel_memory.database import AngelProblem
from regraft.locate import Located
from regraft.report.progress import human_bytes
from regraft.text import counted

Look = tuple[list[dict[str, Any]], dict[str, Any]]
_PROBLEMS = (AngelProblem, ChromaProblem, OSError, apsw.Error, UnicodeDecodeError)


def look(source: Located) -> Look:
    """Look at a data folder; there are no bases in it."""
    root = source.tree.path
    problems: list[str] = []
    texts: dict[str, str] | None = None
    numbers: dict[str, Any] = {}
    try:
        with database.reading(root) as db:
            texts = dict(database.vector_texts(db))
            numbers = {"records": database.record_count(db), "tags": database.tag_count(db)}
    except _PROBLEMS as error:
        problems.append(f"{database.DATABASE}: {error}")
    used = providers(root)
    found = _differences(used, texts, problems)
    if used.problem is not None:
        problems.append(f"{database.STATE}: {used.problem}")
    if used.is_changed and texts:
        problems.append(f"the provider in use is {used.in_use and used.in_use.name}: its vectors are still to be made")
    folders = _folders(root, used)
    health = {
        **numbers,
        **_vector_health(found, len(texts or ())),
        "providers": folders,
        "bytes": size_of(root / database.CENTER) + sum(folder["bytes"] for folder in folders),
        "problems": problems,
    }
    return [], health


def _vector_health(found: Differences | None, texts: int) -> dict[str, Any]:
    if found is None:
        return {"vectors": None, "coverage": None, "orphans": 0, "stale": 0}
    coverage = 1 - len(found.missing) / texts if texts else None
    return {"vectors": found.count, "coverage": coverage, "orphans": len(found.orphans), "stale": len(found.stale)}


def _differences(used: Providers, texts: dict[str, str] | None, problems: list[str]) -> Differences | None:
    if used.in_use is None or texts is None:
        return None
    try:
        return differences(used.in_use, texts)
    except _PROBLEMS as error:
        problems.append(f"{used.in_use.path.name}: {error}")
        return None


def _folders(root: Path, used: Providers) -> list[dict[str, Any]]:
    """Return every provider's folder with how many vectors of notes it has, its size, and what it is."""
    leftovers = {folder.name for folder in used.leftovers}

    def use(name: str) -> str:
        if used.in_use is not None and name == used.in_use.name:
            return "in use"
        return "left over" if name in leftovers else "of the last sync"

    return [
        {"provider": one.name, "vectors": entries_of(one), "bytes": size_of(one.path), "use": use(one.name)}
        for one in database.provider_folders(root)
    ]


def told(health: dict[str, Any]) -> Iterator[str]:
    """Return what there is, as lines for a person."""
    if "records" in health:
        records, tags = counted(health["records"], "record"), counted(health["tags"], "tag")
        yield f"{records}, {tags}, {human_bytes(health['bytes'])}."
    for one in health["providers"]:
        vectors = "no collection of notes" if one["vectors"] is None else counted(one["vectors"], "vector")
        yield f"provider {one['provider']} ({one['use']}): {vectors}, {human_bytes(one['bytes'])}"
