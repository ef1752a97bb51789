"""A base's folder, copied beside its place and held against what was copied."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw

from regraft import sqlite
from regraft.errors import CopyDiffers, PlanOutdated
from regraft.formats.index.opening import demand_identity
from repair import files
from repair.copies import copy_database, damage_of

#: What is copied: files with what they are to be held against, their sizes and times of change.
Listed = tuple[tuple[Path, tuple[int, int]], ...]


def listed(paths: list[Path]) -> Listed:
    """Return files as they are now."""
    return tuple((path, _mark(path)) for path in paths)


def _mark(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_size, status.st_mtime_ns


def copied(folder: Path, base: str, files_of_base: Listed) -> Callable[[Path], None]:
    """Return what copies the folder of a base to a place of its own, whole and proven.

    It raises:
        PlanOutdated: a file was written to since it was listed.
        CopyDiffers: the copy is not what was copied.
        RegraftError, OSError, apsw.Error: it cannot be read or written.
    """

    def make(new: Path) -> None:
        new.mkdir()
        for path, mark in files_of_base:
            if not path.is_file() or _mark(path) != mark:
                raise PlanOutdated(path=path, reason="it was written to meanwhile")
            target = new / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(path, target)
        index = new / ".cherry" / "index.sqlite"
        if index.is_file():
            with sqlite.reading(index) as db:
                demand_identity(db, index, base)
                damage = damage_of(db)
            if damage is not None:
                raise CopyDiffers(path=index, reason=damage)

    return make


def _copy(path: Path, target: Path) -> None:
    """Copy a file; a database with a log or journal beside it as its readers see it."""
    if sqlite.companions(path.resolve()) and sqlite.is_database(path):
        copy_database(path, target)
        same = files.mark_of(path) == files.mark_of(target)
    else:
        shutil.copyfile(path, target)
        same = _digest(path) == _digest(target)
    if not same:
        raise CopyDiffers(path=target, reason=f"it differs from {path}")


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def is_same(folder: Path, other: Path) -> bool:
    """Tell whether two folders of a base hold the same: rows of the index in any order, and files below ``raw/``."""
    names = (".cherry/index.sqlite", "raw")
    try:
        return all(files.mark_of(folder / name) == files.mark_of(other / name) for name in names)
    except (OSError, apsw.Error):
        return False
