"""The paths below ``raw/`` of one base: prefixes of its folders, paths of their files, names of its uploads.

Rules: ``docs/rules.md``, "Folders" and "Names". They are handed out together, for an upload yields to every prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from migrators.pipeline.drafts import BaseDraft, ItemDraft
from migrators.pipeline.ownership import Child
from regraft.folder_paths import ChildPaths, FolderPrefixes
from regraft.names import FreeNames, fold


class TakenPaths(msgspec.Struct, frozen=True):
    """Paths of a base that are there already: they stay, and what is new goes beside them."""

    #: Prefixes that folders have, by the folder's id.
    prefixes: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: Names in the root of ``raw/``.
    names: frozenset[str] = frozenset()
    #: Paths of files that folders have, with their prefix, by the folder's id.
    children: Mapping[str, Iterable[str]] = msgspec.field(default_factory=dict)


class Layout(msgspec.Struct, frozen=True):
    """Who has which path below ``raw/``."""

    #: By the ids of folders that are expanded.
    prefixes: dict[str, str]
    #: By the ids of their files.
    children: dict[str, str]
    #: How many files of a folder lie elsewhere, as far as their sources tell, by the folder's id.
    outside: dict[str, int]
    #: Names of uploads, by the ids of their items.
    files: dict[str, str]
    #: How many uploads have another name than they asked for.
    renamed: int
    #: Keys of all names in the root of ``raw/``, for the snapshots that come later.
    names: frozenset[str]


def lay_out(draft: BaseDraft, expanded: Mapping[str, tuple[Child, ...]], taken: TakenPaths | None = None) -> Layout:
    """Give the folders, their files and the uploads of a base their paths, in the order of the items."""
    taken = taken or TakenPaths()
    folders = [item for item in draft.folders if item.id in expanded]
    prefixes = _prefixes(folders, taken)
    children: dict[str, str] = {}
    outside: dict[str, int] = {}
    for folder in folders:
        paths = ChildPaths(folder.data["source"], prefixes[folder.id], taken.children.get(folder.id, ()))
        children.update({child.id: paths.take(child.source) for child in expanded[folder.id]})
        outside[folder.id] = paths.outside
    roots = {*prefixes.values(), *taken.prefixes.values(), *taken.names}
    names = FreeNames({*draft.taken_names, *map(fold, roots)}, reserve_processed=draft.file_processor_id is not None)
    wanted = {item.id: item.file_name for item in draft.items if item.file_name}
    files = {item_id: names.take(name) for item_id, name in wanted.items()}
    return Layout(
        prefixes=prefixes,
        children=children,
        outside=outside,
        files=files,
        renamed=sum(name != files[item_id] for item_id, name in wanted.items()),
        names=names.taken(),
    )


def _prefixes(folders: Iterable[ItemDraft], taken: TakenPaths) -> dict[str, str]:
    free = FolderPrefixes({*taken.names, *taken.prefixes.values()})
    return {
        folder.id: taken.prefixes[folder.id] if folder.id in taken.prefixes else free.take(folder.data["source"])
        for folder in folders
    }
