"""The source that a ledger names, as a suggestion for a person: text, which nothing here opens or looks for.

A ledger is input like all of a store. A path in it may name another computer, which the system would send the user's
credentials to, or a device: such paths are not suggested.
"""

from __future__ import annotations

import ntpath
import posixpath
import re
from collections.abc import Collection
from pathlib import Path

from regraft.errors import RegraftError
from regraft.ledger import ledger
from regraft.text import argument, shown

#: Folders of devices, of the system's own state, and of other computers, in any case of the letters.
_SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys", "net", "network", ".vol"})
#: Names of devices on Windows, with whatever follows that Windows ignores.
_DEVICE = re.compile(
    r"(con|conin\$|conout\$|prn|aux|nul|clock\$|(com|lpt)[0-9¹²³])[ .]*([.:].*)?", re.IGNORECASE | re.DOTALL
)
#: A folder of ordinary files.
_SHARED_MEMORY = ["dev", "shm"]
_DRIVE = re.compile(r"[A-Za-z]:")
_MOST_CHARACTERS = 4096


def suggested_source(root: Path, commands: Collection[str]) -> str | None:
    """Return the source of the last run of some commands that the ledger of a store names, as a word to show.

    Only the ledger is read.

    Args:
        root: the folder of the store.
        commands: names of the commands whose sources are meant.
    """
    try:
        runs = ledger.read_runs(root)
    except (RegraftError, OSError):
        return None
    sources = [run.source for run in runs if run.command in commands]
    return word_of(sources[-1]) if sources else None


def word_of(path: str) -> str | None:
    """Return a path as a word of a command line, control characters escaped; None: it is not to be suggested."""
    return shown(argument(path), None) if is_suggestible(path) else None


def is_suggestible(path: str) -> bool:
    """Whether a path may be shown to a person as one to name: no path of another computer, of a device, and no URL."""
    plain = path.replace("\\", "/")
    if not plain.strip() or "\0" in plain or len(plain) > _MOST_CHARACTERS:
        return False
    # Also ``\\server``, ``\\.\``, ``\\?\`` and ``\??\``.
    is_elsewhere = plain.startswith(("//", "/??")) or "://" in plain
    return not (is_elsewhere or _names_device(plain) or _is_below_system_folder(plain))


def _names_device(plain: str) -> bool:
    """Whether Windows takes a part of a path for a device, or what stands before its colon is no drive."""
    drive, rest = ntpath.splitdrive(plain)
    is_odd = bool(drive) and not _DRIVE.fullmatch(drive)
    return is_odd or any(_DEVICE.fullmatch(part) for part in rest.split("/"))


def _is_below_system_folder(plain: str) -> bool:
    parts = [part for part in posixpath.normpath(plain).split("/") if part]
    # A relative path that climbs may end at the root.
    below = [part.casefold() for part in parts if part != ".."]
    is_memory = below[:2] == _SHARED_MEMORY and len(below) > len(_SHARED_MEMORY)
    is_from_root = plain.startswith("/") or parts[:1] == [".."]
    return is_from_root and not is_memory and bool(_SYSTEM_FOLDERS.intersection(below[:1]))
