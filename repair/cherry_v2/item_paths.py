"""Plan readable paths for files of folders to which early releases gave the ids of their items as paths.

Paths that are in use are never assigned again (``docs/rules.md``, "Folders").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import find_virtual_prefixes, has_id_as_path
from checks.cherry_v2.raw_files import find_path_problem
from migrators.pipeline.plan import TakenPaths
from regraft.disk import links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import (
    RESERVING_EXTENSION,
    ChildPaths,
    FolderPrefixes,
    FreeNames,
    fold_name,
    split_extension,
)
from regraft.errors import PlanOutdated
from regraft.formats import okf
from regraft.formats.cherry_v2.catalog_reader import Row, parse_item_data
from regraft.language import format_count, tr
from regraft.text import decode_utf8, is_blank, replace_surrogates
from repair.changes.plan import Action, RowsChange, Unresolved

_KEYS = ("relativePath", "indexedRelativePath")


def is_safe_path(path: Any) -> bool:
    """Whether a value is a path that stays below ``raw/``."""
    return isinstance(path, str) and find_path_problem(path.encode("utf-8", "replace")) is None


def find_taken_paths(items: Iterable[Row], materials: Iterable[str], raw: Path | None = None) -> TakenPaths:
    """Collect the paths of a base that are in use: by its items, in its index, and on disk.

    The path of a missing snapshot counts as free, so that the snapshot can be written again.

    Args:
        items: the base's rows.
        materials: the paths in its index.
        raw: the base's folder of raw files; None: ignore files on disk.
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
    on_disk: set[str] = set()
    if raw is not None:
        with suppress(OSError):
            # Files on disk below a folder's prefix belong to the folder.
            on_disk = {path.name for path in raw.iterdir()}.difference(prefixes.values())
    return TakenPaths(prefixes, frozenset(names - set(prefixes.values()) | on_disk), children)


def _paths_of(row: Row) -> list[str]:
    data = parse_item_data(row)
    return [data[key] for key in _KEYS if is_safe_path(data.get(key))]


def free_snapshot_names(taken: TakenPaths, prefixes: Iterable[str], *, reserve_processed: bool) -> FreeNames:
    """Generator of free names for snapshots in the root of ``raw/``.

    Args:
        taken: the paths in use. Files on disk are checked for each name.
        prefixes: prefixes of all folders, including new ones.
        reserve_processed: whether to reserve the name of the Markdown file that a file processor creates for an upload.
    """
    keys = {fold_name(name) for name in (*taken.names, *taken.prefixes.values(), *prefixes)}
    stems = [stem for stem, extension in map(split_extension, keys) if extension == RESERVING_EXTENSION]
    if reserve_processed:
        keys.update(f"{stem}.md" for stem in stems)
    return FreeNames(keys, reserve_processed=reserve_processed)


_ITEMS = ("knowledge_item",)


class NewPaths(msgspec.Struct):
    """New paths of the folders of one base and their files, by item id."""

    base: str
    prefixes: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, str] = msgspec.field(default_factory=dict)
    #: Paths of files whose material still has the old path, because a run was killed before it changed the index.
    unfinished: dict[str, str] = msgspec.field(default_factory=dict)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    def leave(self, reason: str, item: str | None, count: int = 1) -> None:
        """Report an item that keeps its path."""
        stays = Unresolved.registered(v2.ITEM_PATH_IS_ID, reason, base=self.base, subject=item, count=count)
        self.left.append(stays)


def find_new_paths(base: str, items: Sequence[Row], materials: dict[str, str], raw: Path) -> NewPaths:
    """Find paths for files whose path is their item's id, and prefixes for their folders.

    Args:
        base: the base's id.
        items: its rows, in order.
        materials: the paths in its index, by material id.
        raw: its folder of raw files.
    """
    made = NewPaths(base, unfinished=dict(_unfinished_paths(items, materials)))
    folders = {str(row.get("id")): row for row in items if row.get("type") == "directory"}
    files: dict[str, list[Row]] = defaultdict(list)
    for row in filter(has_id_as_path, items):
        why = _naming_problem(row, folders.get(str(row["group_id"])))
        if why is not None:
            made.leave(why, row["id"])
        else:
            files[str(row["group_id"])].append(row)
    taken = find_taken_paths(items, materials.values(), raw)
    free = FolderPrefixes({*taken.names, *taken.prefixes.values()})
    for key in (key for key in folders if key in files):
        if key not in taken.prefixes:
            made.prefixes[key] = free.take(_source_of(folders[key]))
        prefix = taken.prefixes.get(key) or made.prefixes[key]
        made.files.update(_assign_paths(folders[key], prefix, files[key], taken, materials))
    return made


def _naming_problem(row: Row, folder: Row | None) -> str | None:
    """Why the name of a file in a folder is unknown; None if it is known."""
    if folder is None or is_blank(parse_item_data(folder).get("source")):
        return tr("its folder is missing or has no path")
    return tr("its original path is unknown") if is_blank(parse_item_data(row).get("source")) else None


def _unfinished_paths(items: Sequence[Row], materials: dict[str, str]) -> Iterator[tuple[str, str]]:
    prefixes, taken = find_virtual_prefixes(items), set(materials.values())
    for row in items:
        item, path = str(row.get("id")), str(parse_item_data(row).get("relativePath"))
        is_behind = row.get("type") == "file" and materials.get(item) == item and path not in taken
        if is_behind and item in prefixes and path.startswith(prefixes[item]):
            yield item, path


def _assign_paths(
    folder: Row, prefix: str, files: list[Row], taken: TakenPaths, materials: dict[str, str]
) -> Iterator[tuple[str, str]]:
    # v1 stored an entry again each time it was read. The row that has the text gets the plain name.
    with_text = {_source_of(row) for row in files if row["id"] in materials}
    files = sorted(files, key=lambda row: row["id"] not in materials and _source_of(row) in with_text)
    there = [*taken.children.get(str(folder.get("id")), ()), *materials.values()]
    paths = ChildPaths(_source_of(folder), prefix, there)
    yield from ((row["id"], paths.take(_source_of(row))) for row in files)


def _source_of(row: Row) -> str:
    return replace_surrogates(str(parse_item_data(row)["source"]))


def read_material_paths(index: Path) -> dict[str, str]:
    """Read the paths of the materials in an index, by material id.

    Raises:
        apsw.Error, OSError: the index cannot be read.
    """
    with sqlite.open_readonly(index) as db:
        rows = untrusted_sqlite.read_lenient_rows(db, ("material_id", "relative_path"), "material")
        return {str(material): str(path) for material, path in rows}


# --- changes ---------------------------------------------------------------------------------------------------------


def plan_catalog_change(root: Path, catalog: str, every: Sequence[NewPaths]) -> RowsChange | None:
    """Change of the items' paths in the catalog; None if no path changes.

    Raises:
        apsw.Error, OSError: the catalog cannot be read.
    """
    actions = tuple(action for paths in every for action in _item_actions(paths))
    if not actions:
        return None
    path = root / catalog
    tables = tuple(_ITEMS)

    def apply(db: apsw.Connection) -> None:
        for paths in every:
            for item, new in paths.prefixes.items():
                _set_path(db, path, paths.base, item, new, "type = 'directory' AND data ->> '$.relativePath' IS NULL")
            for item, new in paths.files.items():
                _set_path(db, path, paths.base, item, new, "type = 'file' AND data ->> '$.relativePath' = id")

    size = sum(200 + len(new) for paths in every for new in (*paths.prefixes.values(), *paths.files.values()))
    return RowsChange(path=catalog, actions=actions, apply=apply, tables=tables, bytes=size)


def _item_actions(paths: NewPaths) -> Iterator[Action]:
    for action, noun, of_these in (("name-folders", "folder", paths.prefixes), ("name-files", "file", paths.files)):
        if of_these:
            which = "a prefix" if noun == "folder" else tr("a readable path")
            message = tr(
                "give {counted} {which} ({next})",
                counted=format_count(len(of_these), noun),
                which=which,
                next=next(iter(of_these.values())),
            )
            yield Action(
                action=action,
                message=message,
                base=paths.base,
                subject=None,
                count=len(of_these),
                finding=v2.ITEM_PATH_IS_ID,
            )


def _set_path(db: apsw.Connection, path: Path, base: str, item: str, new: str, condition: str) -> None:
    change = f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', ?) WHERE id = ? AND {condition}"
    before: Any = db.total_changes()
    db.execute(f"{change} AND base_id = ?", (new, item, base))
    if db.total_changes() == before:
        raise PlanOutdated(path=path, reason=tr("the path of item {item} changed in the meantime", item=item))


def plan_index_change(root: Path, index: str, paths: NewPaths, materials: dict[str, str]) -> RowsChange | None:
    """Change of the materials' paths in an index to those of their items; None if no path changes."""
    every = {**paths.unfinished, **paths.files}
    moves = [(new, item) for item, new in every.items() if materials.get(item) == item]
    if not moves:
        return None
    message = tr("set the path of {materials} to the path of its item", materials=format_count(len(moves), "material"))
    action = Action(
        action="update-paths",
        message=message,
        base=paths.base,
        subject=None,
        count=len(moves),
        finding=v2.ITEM_PATH_IS_ID,
    )

    def apply(db: apsw.Connection) -> None:
        for new, item in moves:
            before: Any = db.total_changes()
            db.execute(
                "UPDATE material SET relative_path = ?1 WHERE material_id = ?2 AND relative_path = ?2", (new, item)
            )
            if db.total_changes() == before:
                raise PlanOutdated(
                    path=root / index, reason=tr("the path of material {item} changed in the meantime", item=item)
                )

    return RowsChange(
        path=index, actions=(action,), apply=apply, tables=("material",), bytes=sum(200 + len(new) for new, _ in moves)
    )


def find_snapshot_name(names: FreeNames, wanted: str, raw: Path, content: str) -> tuple[str, bool]:
    """Find an unused name; also returns whether the identical snapshot already exists there."""
    while True:
        path = names.take(wanted)
        place = raw / path
        if not place.exists():
            return path, False
        # A stopped run may have written the snapshot.
        if place.is_file() and okf.strip_block(decode_utf8(links.read_bytes(place))) == content:
            return path, True
