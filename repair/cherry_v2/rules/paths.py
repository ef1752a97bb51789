"""Plan the repair of paths that lead out of a base's ``raw/``: in the index, in the catalog, and on disk.

A material gets the path of its item if that is safe, else a safe form of its own. The order of changes is: new files,
the catalog, old files, the index. If a run is killed, the next one finds the item's path and finishes. If no item has
the path, the old file is removed last. Rules: ``docs/formats/index.md``, "What always holds".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import get_indexed_path
from checks.cherry_v2.raw_files import find_stored_path_problem
from regraft.disk import durable, links, sqlite
from regraft.disk.file_paths import RESERVED_NAME, FreeNames, fold_name, sanitize_material_name
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.catalog_reader import Row, parse_item_data
from regraft.language import format_count, tr
from regraft.text import decode_utf8
from repair.changes.plan import Action, FileChange, RowsChange, Unresolved
from repair.cherry_v2.item_paths import is_safe_path

_SEPARATORS = re.compile(r"[/\\]+")


class ItemPath(msgspec.Struct, frozen=True, kw_only=True):
    """A new path for an item; ``key`` is the field of its data."""

    item: str
    key: str
    old: str
    new: str


class PathRepairs(msgspec.Struct):
    """Changes for the unsafe paths of one base."""

    #: Row numbers of materials, with their new paths.
    materials: list[tuple[int, str]] = msgspec.field(default_factory=list)
    items: list[ItemPath] = msgspec.field(default_factory=list)
    made: list[FileChange] = msgspec.field(default_factory=list)
    removed: list[FileChange] = msgspec.field(default_factory=list)
    removed_last: list[FileChange] = msgspec.field(default_factory=list)
    left: list[Unresolved] = msgspec.field(default_factory=list)


class _Material(msgspec.Struct, frozen=True):
    rowid: int
    id: str
    raw: bytes


def plan_paths(root: Path, base: str, index: str, raw: str, items: Sequence[Row] | None) -> PathRepairs:
    """Find new paths for the materials of one base whose paths are unsafe.

    Args:
        root: the store's root.
        base: the base's id.
        index: its index file, below the root.
        raw: its folder of files, below the root.
        items: its items; None without a catalog.

    Raises:
        apsw.Error, OSError: the index cannot be read.
    """
    by_id = {str(item.get("id")): item for item in items or ()}
    unsafe, taken = _materials(root / index)
    found = PathRepairs()
    files = FileRenames(root, raw, base)
    names = set(filter(None, map(get_indexed_path, by_id.values())))
    for material in unsafe:
        item = by_id.get(material.id, {})
        path = get_indexed_path(item)
        if path is None or not is_safe_path(path):
            new = files.free_name(material.raw, taken | names)
            found.items += _new_paths(material.id, item, path, new)
        elif path in taken:
            reason = tr("another material has the path of its item, {path}", path=path)
            found.left.append(Unresolved.registered(v2.PATH_UNSAFE, reason, base=base, subject=material.id))
            continue
        else:
            new = path
        taken.add(new)
        found.materials.append((material.rowid, new))
        files.move(material.raw, new, found, found.removed_last if path is None else found.removed)
    return found


def _new_paths(key: str, item: Row, old: str | None, new: str) -> Iterator[ItemPath]:
    """Yield the new path of an item, if it had one."""
    if old is not None:
        name = "indexedRelativePath" if parse_item_data(item).get("indexedRelativePath") else "relativePath"
        yield ItemPath(item=key, key=name, old=old, new=new)


def _materials(index: Path) -> tuple[list[_Material], set[str]]:
    unsafe, taken = [], set()
    with sqlite.open_readonly(index) as db:
        for rowid, key, raw in db.execute(
            "SELECT rowid, CAST(material_id AS BLOB), CAST(relative_path AS BLOB) FROM material ORDER BY rowid"
        ):
            if find_stored_path_problem(raw) is None:
                taken.add(decode_utf8(raw or b""))
            else:
                unsafe.append(_Material(rowid, (key or b"").decode("utf-8", "replace"), raw or b""))
    return unsafe, taken


class FileRenames:
    """The files below one base's ``raw/``: finds free names, and plans moves."""

    def __init__(self, root: Path, raw: str, base: str) -> None:
        self._root = root
        self._raw = raw
        self._folder = root / raw
        self._base = base

    def free_name(self, old: bytes, taken: set[str]) -> str:
        """Return a safe and unused path that resembles an unsafe one."""
        parts = [part for part in _SEPARATORS.split(old.decode("utf-8", "replace")) if part not in ("", ".", "..")]
        *folders, name = map(sanitize_material_name, parts or ["untitled"])
        prefix = self._prefix(folders)
        source = self._inside(old)
        names = FreeNames()
        for beside in {path[len(prefix) :] for path in taken if path.startswith(prefix)}:
            names.take(beside)
        while True:
            path = f"{prefix}{names.take(name)}"
            if _is_free(self._folder / path, source):
                return path

    def _prefix(self, folders: list[str]) -> str:
        """Return the prefix for a path in these folders; empty if they cannot be used."""
        folder = "/".join(folders)
        is_usable = folder and fold_name(folders[0]) != RESERVED_NAME and self._is_inside(self._folder / folder)
        return f"{folder}/" if is_usable else ""

    def move(self, old: bytes, new: str, found: PathRepairs, removed: list[FileChange]) -> None:
        """Plan to move a material's file to its new name; the removal of the old one goes to ``removed``."""
        source = self._inside(old)
        target = self._folder / new
        if source is None or source == target or not _is_free(target, source):
            return
        size = source.stat().st_size
        if not os.path.lexists(target):
            action = Action(
                action="move-files",
                message=tr("move a file to {new}", new=new),
                base=self._base,
                subject=new,
                bytes=size,
                finding=v2.PATH_UNSAFE,
            )
            found.made.append(
                FileChange(path=f"{self._raw}/{new}", actions=(action,), make=partial(_copy, source), bytes=size)
            )
        name = source.relative_to(self._root).as_posix()
        # A name that is not text cannot be recorded for undo, so the old file stays.
        if name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") == name:
            removed.append(FileChange(path=name, actions=(), make=None))

    def _inside(self, old: bytes) -> Path | None:
        """Return the regular file below ``raw/`` that a path names, or None."""
        path = PurePosixPath(os.fsdecode(old))
        if b"\0" in old or path.is_absolute() or ".." in _SEPARATORS.split(str(path)) or not path.parts:
            return None
        place = self._folder / path
        try:
            return place if self._is_inside(place) and place.is_file() and not place.is_symlink() else None
        except OSError:
            return None

    def _is_inside(self, place: Path) -> bool:
        """Whether a path stays below ``raw/`` when links are resolved."""
        return links.real_path(place).is_relative_to(links.real_path(self._folder))


def _copy(source: Path, new: Path) -> None:
    durable.copy_file(source, new)
    durable.copy_mode(source, new)
    durable.copy_times(source, new)


def _is_free(place: Path, source: Path | None) -> bool:
    """Whether a path is unused, or has the copy of this file that an earlier run made."""
    return not os.path.lexists(place) or (source is not None and _is_copy(source, place))


def _is_copy(source: Path, other: Path) -> bool:
    """Whether a file has the same content as another."""
    if not other.is_file() or other.is_symlink() or other.stat().st_size != source.stat().st_size:
        return False
    with source.open("rb") as one, other.open("rb") as two:
        return all(part == two.read(1 << 20) for part in iter(partial(one.read, 1 << 20), b""))


# --- the catalog -----------------------------------------------------------------------------------------------------


def plan_item_paths(root: Path, catalog: str, paths: dict[str, list[ItemPath]]) -> RowsChange | None:
    """Return the change that gives items their new paths, by base; None without any."""
    actions = tuple(
        Action(
            action="rename-items",
            message=tr("give {items} a path below raw/", items=format_count(len(of_base), "item")),
            base=base,
            subject=None,
            count=len(of_base),
            finding=v2.PATH_UNSAFE,
        )
        for base, of_base in paths.items()
        if of_base
    )
    if not actions:
        return None

    def apply(db: apsw.Connection) -> None:
        for base, path in _each(paths):
            db.execute(
                f"UPDATE knowledge_item SET data = json_set(data, '$.{path.key}', ?) WHERE id = ? AND base_id = ?"
                f" AND json_extract(data, '$.{path.key}') = ?",
                (path.new, path.item, base, path.old),
            )
            if db.changes() != 1:
                raise PlanOutdated(
                    path=root / catalog, reason=tr("the path of the item {item} is another one now", item=path.item)
                )

    size = 2 * sum(len(path.new) for _, path in _each(paths)) + 4096
    return RowsChange(path=catalog, actions=actions, apply=apply, tables=("knowledge_item",), bytes=size)


def _each(paths: dict[str, list[ItemPath]]) -> Iterator[tuple[str, ItemPath]]:
    return ((base, path) for base, of_base in paths.items() for path in of_base)
