"""Which paths of files were one folder that v1 was given (``docs/rules.md``, "Vector files that no state names").

v1 copies a file that is added alone to its own ``Data/Files``: a path elsewhere was read in a folder. Nothing but the
strings is asked, so that every machine tells the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec

from regraft.folder_paths import segments
from regraft.names import fold

#: No system takes a longer path, in UTF-16 units.
MAX_PATH_UNITS = 32_767
#: Folders whose folders are people's homes, or roots of disks.
_TOPS = frozenset({("home",), ("users",), ("mnt",), ("media",), ("volumes",)})
#: What a person's own folders are called by their system: as a rule a folder in one was added, not all of them.
_USUAL = frozenset(
    ("documents", "desktop", "downloads", "dropbox", "icloud drive", "my documents", "onedrive", "文档", "桌面", "下载")
)
_DRIVE = re.compile(r"[A-Za-z]:")
_PART = re.compile(r"[^/\\]+")


class FoundFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A folder and the loaders of its files, in the order that they were given in."""

    path: str
    loaders: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    loader: str
    path: str
    #: The folders above it, by fold.
    folders: tuple[str, ...]
    #: What every path of its disk begins with.
    root: str


def can_be_in_folder(path: str) -> bool:
    """Tell whether a path says in which folder a file lies: it is absolute, of a usual length, and climbs nowhere."""
    is_absolute = path.startswith(("/", "\\\\")) or (_DRIVE.match(path) is not None and path[2:3] in ("/", "\\"))
    return is_absolute and len(path) <= MAX_PATH_UNITS and "\0" not in path and ".." not in segments(path)


def folders_of(paths: Mapping[str, str]) -> list[FoundFolder]:
    """Return the folders that files lie in, by their paths by loader; a file that is alone is left out.

    A folder is the longest path that files of a disk have in common, of at least two files. It is no root of a disk and
    no person's home: what lies below these is looked at folder by folder.
    """
    order = {loader: place for place, loader in enumerate(paths)}
    groups: dict[str, list[_File]] = defaultdict(list)
    for loader, path in paths.items():
        if not can_be_in_folder(path):
            continue
        one = _file(loader, path)
        groups[one.root].append(one)
    found = [folder for group in groups.values() for folder in _split(group, order)]
    return sorted(found, key=lambda folder: order[folder.loaders[0]])


def _file(loader: str, path: str) -> _File:
    parts = [fold(part) for part in segments(path)]
    is_share = path.startswith("\\\\")
    root = "/".join(parts[:2]) if is_share else parts[0] if _DRIVE.match(path) else "/"
    return _File(loader=loader, path=path, folders=tuple(parts[:-1]), root=root)


def _split(files: list[_File], order: Mapping[str, int]) -> Iterator[FoundFolder]:
    waiting = [files]
    while waiting:
        group = waiting.pop()
        if len(group) < 2:
            continue
        common = _common([one.folders for one in group])
        if _may_be_one(group, common):
            loaders = sorted((one.loader for one in group), key=order.__getitem__)
            first = min(group, key=lambda one: order[one.loader])
            yield FoundFolder(path=_begin_of(first.path, len(common)), loaders=tuple(loaders))
            continue
        below: dict[str, list[_File]] = defaultdict(list)
        for one in group:
            if len(one.folders) > len(common):
                below[one.folders[len(common)]].append(one)
        waiting += below.values()


def _common(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return what all of the paths begin with: what the first and the last in order do."""
    first, last = min(paths), max(paths)
    at = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first[: min(len(first), len(last)) if at is None else at]


def _may_be_one(group: list[_File], common: tuple[str, ...]) -> bool:
    """Tell whether somebody may have added a folder: no root, no home; a usual folder only where files are in it."""
    root = group[0].root
    on_disk = common if root == "/" else common[root.count("/") + 1 :]
    # Below /home and /mnt the first folder is a person's, or a disk's own root.
    is_top = len(on_disk) <= 2 if on_disk[:1] in _TOPS else not on_disk
    if is_top:
        return False
    return on_disk[-1] not in _USUAL or any(len(one.folders) == len(common) for one in group)


def _begin_of(path: str, depth: int) -> str:
    """Return a path up to its so-manyth segment, as it is written."""
    parts = (part for part in _PART.finditer(path) if part.group() != ".")
    end = next(part.end() for at, part in enumerate(parts, 1) if at == depth)
    return path[:end]
