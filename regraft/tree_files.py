"""Files of a source as a whole: whether they changed, their copies, and hashes of what was written.

Processes that help load this module (:mod:`regraft.crew`), so it needs little.
"""

from __future__ import annotations

import hashlib
import shutil
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from regraft import links, long_paths
from regraft.errors import SourceUnreadable
from regraft.ledger import durable
from regraft.tree import FolderTree, Tree

#: Stands for a file whose bytes nobody can tell.
UNREADABLE = "unreadable"
#: So much is copied at a time: more would be asked of the system anew each time.
_CHUNK_BYTES = 1 << 16


class SourceFailed(Exception):
    """Something of the source could not be read to its end, though it looked well; the text says why."""


def first_file(tree: Tree, names: Iterable[str]) -> str | None:
    """Return the first of some names that a file has, None where none has one."""
    return next((name for name in names if tree.kind(name) == "file"), None)


def mark(tree: Tree, name: str | None) -> object:
    """Return what tells whether a file changed, by size and CRC-32; of anything else what it is."""
    kind = tree.kind(name) if name else None
    if name is None or kind != "file":
        return kind
    try:
        return [tree.size(name), tree.crc32(name)]
    except OSError:
        return UNREADABLE


def copy_to(tree: Tree, name: str, target: Path) -> None:
    """Copy a file of a source to ``target``, where no file is yet; nothing is left there where it cannot be read.

    Raises:
        SourceFailed, SourceUnreadable: it cannot be read.
        OSError: the target cannot be written.
    """
    with tree.open(name) as file:
        try:
            copy(file, target)
        except SourceFailed:
            durable.remove(target, missing_ok=True)
            raise


def copy(file: BinaryIO, target: Path) -> None:
    """Copy what can be read to ``target``, where no file is yet.

    Raises:
        SourceFailed: it cannot be read.
        OSError: the target cannot be written.
    """
    if not long_paths.is_folder(target.parent):
        durable.make_folders(target.parent, flush=False)
    with durable.open_binary(target, "xb") as copied:
        shutil.copyfileobj(_Reader(file), copied, _CHUNK_BYTES)


class _Reader:
    """Reads from the source, with its errors told apart from those of the target."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1, /) -> bytes:
        """Read up to ``size`` bytes."""
        try:
            return self._file.read(size)
        except OSError as error:
            reason = error.facts["reason"] if isinstance(error, SourceUnreadable) else error.strerror or error
            raise SourceFailed(str(reason)) from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with Path(long_paths.extended(path)).open("rb", buffering=0) as file:
        # Of a file up to that length, nothing has to be set up to read it piece by piece.
        first = file.read(_CHUNK_BYTES)
        hasher = hashlib.sha256(first)
        if len(first) == _CHUNK_BYTES:
            hashlib.file_digest(file, lambda: hasher)
        return hasher.hexdigest()


def folder_hash(base: Path, folder: str) -> str:
    """Return the SHA-256 of the names, from ``base`` on, and bytes of all files below a folder of it; "" without it."""
    hasher = hashlib.sha256()
    for path in sorted(long_paths.below(base / folder)):
        # A link is not followed: regraft writes none.
        content = file_hash(path) if stat.S_ISREG(long_paths.lstat(path).st_mode) else "no file"
        hasher.update(f"{path.relative_to(base)} {content}\n".encode())
    return hasher.hexdigest() if long_paths.is_folder(base / folder) else ""


def size_of(path: Path) -> int:
    """Return how many bytes a file has, or all files in a folder, links not followed; what cannot be read has none."""
    inside = (Path(folder, name) for folder, _, names in long_paths.walk(path) for name in names)
    total = 0
    for file in inside if path.is_dir() else [path]:
        with suppress(OSError):
            total += long_paths.lstat(file).st_size
    return total


# --- in processes that help ------------------------------------------------------------------------------------------


class Place(msgspec.Struct, frozen=True):
    """A source that is a folder, as other processes read it."""

    tree: FolderTree
    follow_links: bool


def marks(place: Place, files: Sequence[Sequence[str]]) -> list[object]:
    """Return the marks of files, each the first one that has one of some names."""
    with links.followed(place.follow_links):
        return [mark(place.tree, first_file(place.tree, names)) for names in files]


def copies(place: Place, files: Sequence[tuple[Sequence[str], str]], target: Path) -> list[bool]:
    """Copy files to their paths below ``target``, each the first one that has one of some names; tell which were.

    What was in the way is for others to find and to say.
    """
    with links.followed(place.follow_links):
        return [_is_copied(place.tree, names, target / path) for names, path in files]


def _is_copied(tree: Tree, names: Sequence[str], target: Path) -> bool:
    name = first_file(tree, names)
    if name is None:
        return False
    try:
        copy_to(tree, name, target)
    except (SourceFailed, SourceUnreadable):
        return False
    return True
