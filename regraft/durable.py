"""Putting files in place so that a crash leaves either the old or the new, whole and on disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from pathlib import Path

#: Virus scanners and indexers on Windows hold a new file for a moment: a refused rename is tried again this often.
REPLACE_TRIES = 8
REPLACE_WAIT_SECONDS = 0.05


#: What a write fails with for want of room: never the fault of what is read meanwhile.
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})


def sync_file(path: Path) -> None:
    """Flush a file's bytes to disk."""
    # Windows flushes only what is open for writing.
    descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to disk, where the system can (Windows cannot, and does so by itself)."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Flush every file and folder below ``path``, and ``path`` itself."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync_file(Path(folder, name))
        sync_folder(Path(folder))


def replace(source: Path, target: Path) -> None:
    """Move ``source`` to ``target`` on the same file system in one step, and flush both folders.

    Raises:
        OSError: it cannot be moved, also after several tries.
    """
    for attempt in range(REPLACE_TRIES):
        try:
            os.replace(source, target)  # noqa: PTH105 - tests inject faults here
            break
        except PermissionError:
            if attempt == REPLACE_TRIES - 1:
                raise
            time.sleep(REPLACE_WAIT_SECONDS * 2**attempt)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def make_folders(path: Path) -> None:
    """Make a folder and those above it that are missing, so that a power cut leaves their entries, too."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def write_text(path: Path, text: str, temporary: Path) -> None:
    """Put ``text`` at ``path`` in one step, by way of ``temporary`` on the same file system."""
    temporary.write_text(text, encoding="utf-8", newline="\n")
    sync_file(temporary)
    replace(temporary, path)


def remove_tree(path: Path) -> None:
    """Remove a folder and what is in it, or a file; nothing there is fine too."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
