"""Paths below a base's ``raw/`` that are taken: what comes back goes beside them (``docs/rules.md``, "Folders")."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from checks.cherry_v2.index_file import path_problem
from migrators.pipeline.folders import TakenPaths
from regraft.formats.cherry_v2.catalog_reader import Row
from regraft.formats.cherry_v2.item_data import data_of
from regraft.names import RESERVING_EXTENSION, FreeNames, fold, split_extension

_KEYS = ("relativePath", "indexedRelativePath")


def is_safe(path: Any) -> bool:
    """Tell whether an item's data give a path that stays below ``raw/``."""
    return isinstance(path, str) and path_problem(path.encode("utf-8", "replace")) is None


def taken_paths(items: Iterable[Row], materials: Iterable[str], raw: Path | None = None) -> TakenPaths:
    """Return the paths of a base that are there: of its items, of its index, and on disk.

    A snapshot that is gone is written anew, under its name if that is free.

    Args:
        items: the base's rows.
        materials: the paths that its index has.
        raw: the base's folder of raw files; None: what is on disk does not count.
    """
    prefixes: dict[str, str] = {}
    children: dict[str, list[str]] = defaultdict(list)
    paths: list[str] = list(materials)
    for row in items:
        own = _paths_of(row)
        if row.get("type") == "directory":
            prefixes.update({str(row.get("id")): path for path in own[:1]})
        elif row.get("group_id") is not None:
            children[str(row["group_id"])] += own
        elif row.get("type") not in ("url", "note"):
            paths += own
    names = {path.partition("/")[0] for path in paths}
    # What lies on disk below a folder's prefix is the folder's own.
    on_disk = {name for name in _root_names(raw) if name not in prefixes.values()}
    return TakenPaths(prefixes, frozenset(names - set(prefixes.values()) | on_disk), children)


def _paths_of(row: Row) -> list[str]:
    data = data_of(row)
    return [data[key] for key in _KEYS if is_safe(data.get(key))]


def _root_names(raw: Path | None) -> Iterator[str]:
    if raw is None:
        return
    try:
        yield from (path.name for path in raw.iterdir())
    except OSError:
        return


def snapshot_names(taken: TakenPaths, prefixes: Iterable[str], *, reserve_processed: bool) -> FreeNames:
    """Return the names in the root of ``raw/`` that snapshots can have.

    Args:
        taken: what is there; whether a file is in the way on disk is looked at for each name.
        prefixes: the prefixes of all folders, also of those that come back.
        reserve_processed: whether beside an upload the name of what a file processor makes of it is kept free.
    """
    keys = {fold(name) for name in (*taken.names, *taken.prefixes.values(), *prefixes)}
    stems = [stem for stem, extension in map(split_extension, keys) if extension == RESERVING_EXTENSION]
    if reserve_processed:
        keys.update(f"{stem}.md" for stem in stems)
    return FreeNames(keys, reserve_processed=reserve_processed)
