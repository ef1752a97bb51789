"""Plan new paths of items: of files to which early releases gave the ids of their items, and of moved originals.

Paths below ``raw/`` that are in use are never assigned again (``docs/rules.md``, "Folders"). Of an item whose original
was moved (``--moved OLD=NEW`` of ``regraft repair`` and ``regraft sync``, ``docs/reuse.md``), only its path changes.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.catalog_rows import find_virtual_prefixes, get_source, has_id_as_path, is_source_missing
from checks.cherry_v2.raw_files import find_path_problem
from migrators.pipeline.plan import TakenPaths
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.file_paths import (
    RESERVING_EXTENSION,
    ChildPaths,
    FolderPrefixes,
    FreeNames,
    fold_name,
    split_extension,
)
from regraft.errors import PlanOutdated, WrongUsage
from regraft.formats import okf
from regraft.formats.cherry_v2.catalog_reader import Row, base_id_text, list_paths, parse_item_data
from regraft.language import format_count, tr
from regraft.text import decode_utf8, is_blank, printable, replace_surrogates
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, Plan, RowsChange, Unresolved
from repair.changes.store import Store
from repair.cherry_v2.catalog_changes import (
    CatalogStatements,
    demand_catalog,
    is_selected,
    make_catalog_change,
    read_store_catalog,
)


def named_paths(items: Iterable[Row]) -> set[str]:
    """Return the paths below ``raw/`` that catalog rows of items name: of their files, and of processed copies."""
    return {path for item in items for path in list_paths(parse_item_data(item))}


def is_safe_path(path: Any) -> bool:
    """Whether a value is a path that stays below ``raw/``."""
    return isinstance(path, str) and find_path_problem(path.encode("utf-8", "replace")) is None


def find_taken_paths(items: Iterable[Row], materials: Iterable[str], raw: Path | None = None) -> TakenPaths:
    """Collect the paths below ``raw/`` that a base uses: in its items, in its index, and on disk.

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
        own = list(filter(is_safe_path, list_paths(parse_item_data(row))))
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


def free_snapshot_names(taken: TakenPaths, prefixes: Iterable[str], *, reserve_processed: bool) -> FreeNames:
    """Make a generator of free names for snapshots, which are Markdown files directly in ``raw/``.

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
    """New paths for the folder items of one base (``prefixes``) and the files in them, by item id."""

    base: str
    prefixes: dict[str, str] = msgspec.field(default_factory=dict)
    files: dict[str, str] = msgspec.field(default_factory=dict)
    #: Paths of files whose material still has the old path, because a run was killed before it changed the index.
    unfinished: dict[str, str] = msgspec.field(default_factory=dict)
    left: list[Unresolved] = msgspec.field(default_factory=list)

    def leave(self, reason: str, item: str | None, count: int = 1) -> None:
        """Report that an item, or ``count`` items, keep the path that is their id, and why."""
        stays = Unresolved.registered(v2.ITEM_PATH_IS_ID, reason, base=self.base, subject=item, count=count)
        self.left.append(stays)


def find_new_paths(base: str, items: Sequence[Row], materials: dict[str, str], raw: Path) -> NewPaths:
    """Find readable paths for files whose path is their item's id, and prefixes for the folders that they are in.

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
        why = _why_unnamed(row, folders.get(str(row["group_id"])))
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


def _why_unnamed(file: Row, folder: Row | None) -> str | None:
    """Return why the name of a file item in a folder item is unknown, or None; a missing folder is one reason."""
    if folder is None or is_blank(parse_item_data(folder).get("source")):
        return tr("its folder is missing or has no path")
    return tr("its original path is unknown") if is_blank(parse_item_data(file).get("source")) else None


def _unfinished_paths(items: Sequence[Row], materials: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield ids and paths of items that a killed run gave a new path, but not yet their material in the index."""
    prefixes, taken = find_virtual_prefixes(items), set(materials.values())
    for row in items:
        item, path = str(row.get("id")), str(parse_item_data(row).get("relativePath"))
        is_behind = row.get("type") == "file" and materials.get(item) == item and path not in taken
        if is_behind and item in prefixes and path.startswith(prefixes[item]):
            yield item, path


def _assign_paths(
    folder: Row, prefix: str, files: list[Row], taken: TakenPaths, materials: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield ids of files in a folder item with new paths below ``prefix``, derived from those of the originals.

    ``taken`` has the paths of the folder that are in use, ``materials`` the paths in the index, by material id.
    """
    # v1 stored an entry again each time it was read. The row that has the text gets the plain name.
    with_text = {_source_of(row) for row in files if row["id"] in materials}
    files = sorted(files, key=lambda row: row["id"] not in materials and _source_of(row) in with_text)
    there = [*taken.children.get(str(folder.get("id")), ()), *materials.values()]
    paths = ChildPaths(_source_of(folder), prefix, there)
    yield from ((row["id"], paths.take(_source_of(row))) for row in files)


def _source_of(row: Row) -> str:
    """Return the path of an item's original, with U+FFFD for unpaired surrogates."""
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


def plan_catalog_change(root: Path, catalog: str, paths_by_base: Sequence[NewPaths]) -> RowsChange | None:
    """Plan to write the new paths of items to the catalog; None if no path changes.

    Args:
        root: the store's root.
        catalog: the catalog's path, relative to it.
        paths_by_base: the new paths of each base.

    Raises:
        apsw.Error, OSError: the catalog cannot be read.
    """
    actions = tuple(action for paths in paths_by_base for action in _item_actions(paths))
    if not actions:
        return None
    path = root / catalog

    def apply(db: apsw.Connection) -> None:
        """Write the new paths to the open catalog."""
        for paths in paths_by_base:
            for item, new in paths.prefixes.items():
                _set_path(db, path, paths.base, item, new, "type = 'directory' AND data ->> '$.relativePath' IS NULL")
            for item, new in paths.files.items():
                _set_path(db, path, paths.base, item, new, "type = 'file' AND data ->> '$.relativePath' = id")

    size = sum(200 + len(new) for paths in paths_by_base for new in (*paths.prefixes.values(), *paths.files.values()))
    return RowsChange(path=catalog, actions=actions, apply=apply, tables=_ITEMS, bytes=size)


def _item_actions(paths: NewPaths) -> Iterator[Action]:
    """Yield the actions for the report: one for new prefixes of folders, one for new paths of files."""
    for action, noun, of_these in (("name-folders", "folder", paths.prefixes), ("name-files", "file", paths.files)):
        if of_these:
            which = tr("a prefix") if noun == "folder" else tr("a readable path")
            message = tr(
                "set {which} for {counted} ({next})",
                counted=format_count(len(of_these), noun),
                which=which,
                next=next(iter(of_these.values())),
            )
            yield Action(
                action=action, message=message, base=paths.base, count=len(of_these), finding=v2.ITEM_PATH_IS_ID
            )


def _set_path(db: apsw.Connection, path: Path, base: str, item: str, new: str, condition: str) -> None:
    """Write the path ``new`` of an item to the open catalog at ``path``; raises PlanOutdated unless the row fits.

    ``condition`` is SQL that the row has to fulfill.
    """
    change = f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', ?) WHERE id = ? AND {condition}"
    before: Any = db.total_changes()
    db.execute(f"{change} AND base_id = ?", (new, item, base))
    if db.total_changes() == before:
        raise PlanOutdated(path=path, reason=tr("the path of item {item} changed in the meantime", item=item))


def plan_index_change(root: Path, index: str, paths: NewPaths, materials: dict[str, str]) -> RowsChange | None:
    """Plan to give materials in an index the new paths of their items; None if no path changes.

    Args:
        root: the store's root.
        index: the index file, relative to it.
        paths: the new paths of the base.
        materials: the present paths in the index, by material id.
    """
    every = {**paths.unfinished, **paths.files}
    moves = [(new, item) for item, new in every.items() if materials.get(item) == item]
    if not moves:
        return None
    message = tr("set the path of {materials} to the path of its item", materials=format_count(len(moves), "material"))
    action = Action(
        action="update-paths", message=message, base=paths.base, count=len(moves), finding=v2.ITEM_PATH_IS_ID
    )

    def apply(db: apsw.Connection) -> None:
        """Write the new paths to the open index; raises PlanOutdated if a material has another path now."""
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
    """Choose a free path below ``raw/`` that resembles ``wanted`` for a snapshot with this content.

    Returns:
        The path, and whether a file there has this content already.
    """
    while True:
        path = names.take(wanted)
        file = raw / path
        if not file_paths.exists(file):
            return path, False
        # A stopped run may have written the snapshot.
        if file_paths.is_file(file) and okf.strip_block(decode_utf8(links.read_bytes(file))) == content:
            return path, True


# --- originals that were moved ---------------------------------------------------------------------------------------

_WINDOWS = re.compile(r"[A-Za-z]:(?=[\\/]|$)|[\\/]{2}(?=[^\\/])")


def is_windows_path(path: str) -> bool:
    """Whether a path has the form of an absolute path on Windows: with a drive, or a share of a server."""
    return _WINDOWS.match(path) is not None and not path.startswith("//")


def _is_absolute(path: str) -> bool:
    """Whether a path is absolute on Windows or on another system."""
    return is_windows_path(path) or path.startswith("/")


class MovedRoot(msgspec.Struct, frozen=True):
    """A folder or file that the user moved: its old and its new absolute path, without a separator at the end."""

    old: str
    new: str

    @classmethod
    def of(cls, old: str, new: str) -> MovedRoot:
        """Check and trim the two paths.

        The new one may be relative, or begin with "~", if it exists on this computer.

        Raises:
            WrongUsage: one of them is not absolute.
        """
        here = os.path.abspath(os.path.expanduser(new))  # noqa: PTH100, PTH111 - links are not resolved
        if new and not _is_absolute(new) and os.path.exists(here):  # noqa: PTH110 - False for what is no path at all
            new = here
        for path in (old, new):
            if not _is_absolute(path) or "\0" in path:
                problem = tr("--moved {old}={new}: {path} is not an absolute path", old=old, new=new, path=path or "''")
                raise WrongUsage(problem=problem, hint=tr("write both paths in full"))
        return cls(_trim(old), _trim(new))

    def rewrite(self, source: str) -> str | None:
        """Return the new path of an original whose path is ``source``; None if it is neither at nor below the old path.

        On Windows, upper and lower case are the same, and so are both separators. Elsewhere a path is exact.
        """
        is_windows = is_windows_path(self.old)
        if is_windows_path(source) is not is_windows:
            return None
        old, own = (_fold(self.old), _fold(source)) if is_windows else (self.old, source)
        rest = source[len(self.old) :]
        separators = "\\/" if is_windows else "/"
        # The root of a disk ends with its separator, and so do all paths below it.
        is_below = self.old[-1:] in tuple(separators) or not rest or rest[0] in separators
        if len(own) != len(source) or not own.startswith(old) or not is_below:
            return None
        return _join(self.new, rest.lstrip(separators), is_windows)


def _fold(path: str) -> str:
    r"""Return a Windows path in lower case with ``\`` as separator; each character keeps its position."""
    return "".join(one if len(one) == 1 else char for char in path for one in (char.lower(),)).replace("/", "\\")


def _trim(path: str) -> str:
    """Remove separators at the end of a path, but not that of the root of a disk."""
    if is_windows_path(path):
        trimmed = path.rstrip("\\/")
        return f"{trimmed}\\" if len(trimmed) == len("C:") and trimmed.endswith(":") else trimmed
    return path.rstrip("/") or "/"


def _join(new: str, rest: str, was_windows: bool) -> str:
    """Append ``rest``, the part of a path below the moved folder, to the folder's new path.

    Separators become those of the new path's system; ``was_windows``: the old path was one of Windows.
    """
    separator = "\\" if is_windows_path(new) else "/"
    if not rest:
        return new
    if was_windows and separator == "/":
        rest = rest.replace("\\", "/")
    elif not was_windows and separator == "\\":
        rest = rest.replace("/", "\\")
    return f"{new}{rest}" if new.endswith(("\\", "/")) else f"{new}{separator}{rest}"


def rewrite_source(source: str, roots: Iterable[MovedRoot]) -> str | None:
    """Return the new path of an original by the moved folder with the longest old path that contains it, or None."""
    found = ((len(root.old), new) for root in roots if (new := root.rewrite(source)) is not None)
    return max(found, default=(0, None), key=lambda one: one[0])[1]


def plan_moved(store: Store, options: RepairOptions) -> Plan:
    """Plan to correct the paths of moved originals (``--moved OLD=NEW``) in the catalog, as one change.

    Raises:
        WrongUsage: a path is not absolute, other options of ``repair`` are given as well, or no item has its original
            at or below one of the old paths, or the new one.
        NotChanged: the store has no catalog.
        RegraftError: the catalog cannot be read.
    """
    roots = [MovedRoot.of(old, new) for old, new in options.moved]
    options.demand_alone("--moved")
    demand_catalog(store, "repair --moved")
    catalog = read_store_catalog(store)
    bases = [key for key in map(base_id_text, catalog.bases) if is_selected(store, key)]
    items = {base: catalog.items_of(base) for base in bases}
    demand_known(roots, items)
    made, statements = Plan(), CatalogStatements.of(store)
    for base, rows in items.items():
        moved = list(moved_items(rows, roots))
        # Names on Windows may have half a surrogate pair, which cannot be written as UTF-8.
        fitting = [(row, new) for row, new in moved if new == replace_surrogates(new)]
        for row, new in fitting:
            statements.set_source(base, row, new)
        statements.actions += _moved_actions(base, fitting, roots)
        made.left += _unresolved_moves(base, moved, fitting)
    if statements.actions:
        made.changes.append(make_catalog_change(statements, _ITEMS))
    return made


def moved_items(rows: Sequence[Row], roots: Sequence[MovedRoot]) -> Iterator[tuple[Row, str]]:
    """Yield the item rows whose original was moved, each with the original's new path."""
    for row in rows:
        source = get_source(row)
        new = None if source is None else rewrite_source(source, roots)
        if new is not None and new != source:
            yield row, new


def _moved_actions(base: str, moved: Sequence[tuple[Row, str]], roots: Sequence[MovedRoot]) -> Iterator[Action]:
    """Yield an action for the report for each moved folder or file with items of the base.

    ``moved``: rows and new paths.
    """
    counts = Counter(
        max((root for root in roots if root.rewrite(str(get_source(row))) is not None), key=lambda root: len(root.old))
        for row, _ in moved
    )
    for root, count in counts.items():
        message = tr(
            "correct the path of the original of {items}: {old} is {new} now",
            items=format_count(count, "item"),
            old=printable(root.old),
            new=printable(root.new),
        )
        yield Action(action="set-source", message=message, base=base, count=count, finding=v2.ITEM_SOURCE_MISSING)


def _unresolved_moves(base: str, moved: Sequence[object], fitting: Sequence[tuple[Row, str]]) -> Iterator[Unresolved]:
    """Report originals that do not exist at their new path either, and new paths that cannot be written.

    ``moved`` are all items with a new path, ``fitting`` the rows and paths that can be written.
    """
    missing = [new for _, new in fitting if is_source_missing(new)]
    if missing:
        reason = tr(
            "{items} not found at the new path either, such as {path}",
            items=format_count(len(missing), "original"),
            path=printable(missing[0]),
        )
        # A warning, unlike the finding: the user asked for these paths.
        yield Unresolved(finding=v2.ITEM_SOURCE_MISSING, reason=reason, base=base, count=len(missing))
    if len(fitting) < len(moved):
        reason, count = tr("the path is not valid Unicode"), len(moved) - len(fitting)
        yield Unresolved(finding=v2.ITEM_SOURCE_MISSING, reason=reason, base=base, count=count)


def demand_known(roots: Sequence[MovedRoot], items: Mapping[str, Sequence[Row]]) -> None:
    """Check that every moved folder or file is, or was before an earlier run, named by an item; ``items`` by base id.

    Raises:
        WrongUsage
    """
    sources = {source for rows in items.values() for row in rows if (source := get_source(row)) is not None}
    for root in roots:
        back = MovedRoot(root.new, root.old)
        if not any(root.rewrite(one) is not None or back.rewrite(one) is not None for one in sources):
            problem = tr("--moved {old}: no file or folder of the chosen bases is there", old=printable(root.old))
            raise WrongUsage(problem=problem, hint=tr("regraft inspect --items lists the sources"))
