"""Paths of what is in a migrated folder: the folder's prefix below ``raw/``, and the path of each of its files.

Rules: ``docs/rules.md``, "Folders". They follow from v1's strings alone; no file system is asked. No file is ever
behind such a path, but the application removes ``raw/<prefix>`` whole with its folder, so that nothing else in
``raw/`` may be called like a prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from regraft.names import RESERVED_NAME, TRAILING, fold, sanitise, split_extension
from regraft.text import utf16_cut, utf16_len

#: The longest segment of a path, in UTF-16 units.
MAX_SEGMENT_UNITS = 255
#: What a folder without a name is called: the root of a disk.
ROOT_PREFIX = "root"
#: What a file without a name is called.
UNTITLED = "untitled"

_SEPARATORS = re.compile(r"[/\\]+")


def segments(path: str) -> list[str]:
    """Return the segments of a path of any system; ``..`` and drive letters are segments like others."""
    return [segment for segment in _SEPARATORS.split(path) if segment not in ("", ".")]


def safe_segment(segment: str) -> str:
    """Return a segment that every system takes, of at most 255 UTF-16 units."""
    return utf16_cut(sanitise(segment), MAX_SEGMENT_UNITS)


class FolderPrefixes:
    """Hands out the prefixes of one base's folders, each only once by fold.

    Args:
        taken: names in the root of ``raw/`` that no prefix may have.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._free = _FreePaths({RESERVED_NAME, *map(fold, taken)})

    def take(self, folder: str) -> str:
        """Return the prefix of a folder, by its path: its last segment, else that with ``_1``, ``_2``… behind it."""
        return self._free.take("", safe_segment((segments(folder) or [ROOT_PREFIX])[-1]), "")


class ChildPaths:
    """Hands out the paths of one folder's files, each only once by fold.

    Args:
        folder: the folder's path as v1 has it.
        prefix: its prefix.
        taken: paths that files of the folder have already, with the prefix.
    """

    def __init__(self, folder: str, prefix: str, taken: Iterable[str] = ()) -> None:
        self._folder = [fold(segment) for segment in segments(folder)]
        self._prefix = prefix
        self._free = _FreePaths(set(map(fold, taken)))
        #: How many files so far do not lie in the folder, as far as their sources tell.
        self.outside = 0

    def take(self, source: str) -> str:
        """Return the path of a file, by its source: its place in the folder, else its last segment alone."""
        rest = self._rest(segments(source))
        *folders, name = [safe_segment(segment) for segment in rest] or [UNTITLED]
        return self._free.take("".join(f"{one}/" for one in (self._prefix, *folders)), *split_extension(name))

    def _rest(self, parts: list[str]) -> list[str]:
        depth = len(self._folder)
        if len(parts) > depth and [fold(part) for part in parts[:depth]] == self._folder:
            return parts[depth:]
        self.outside += 1
        return parts[-1:]


class _FreePaths:
    """Paths that are taken, by their folds, and where to go on for each request."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._next: dict[str, int] = {}

    def take(self, above: str, stem: str, extension: str) -> str:
        """Return the first free one of ``stem.ext``, ``stem_1.ext``… below ``above`` and keep it."""
        request = f"{above}{stem}{extension}"
        number = self._next.get(request, 0)
        while fold(path := f"{above}{_numbered(stem, extension, number)}") in self._taken:
            number += 1
        # Nothing is ever given back: the next request of this name starts behind this one.
        self._next[request] = number + 1
        self._taken.add(fold(path))
        return path


def _numbered(stem: str, extension: str, number: int) -> str:
    """Return a segment with a number before its extension, of at most 255 UTF-16 units: the stem is cut first."""
    if not number:
        return f"{stem}{extension}"
    suffix = f"_{number}"
    room = MAX_SEGMENT_UNITS - len(suffix)
    ending = extension if utf16_len(extension) <= room else utf16_cut(extension, room).rstrip(TRAILING)
    return f"{utf16_cut(stem, room - utf16_len(ending))}{suffix}{ending}"
