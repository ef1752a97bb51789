"""Whether a file was written to while it was read: what does not add up then is nobody's fault.

A source is opened as if nobody wrote to it, which leaves no trace (``docs/formats/index.md``, "Reading without a
trace"). So what was read is only judged when the file is still the one that it was.
"""

from __future__ import annotations

from pathlib import Path

from regraft import links, long_paths, sqlite
from regraft.language import tr

#: What is said of a file that is not.
MOVED = tr("it changed meanwhile; close the application that uses it and run the command again")
#: A database's header counts its transactions; that of a log changes when it begins anew.
_HEADER_BYTES = 100

#: Compared as a whole.
Mark = tuple[tuple[object, ...], ...]


def mark_of(path: Path) -> Mark:
    """Return what tells one state of a database, or of any other file, from another one.

    For the file, its log and its journal these are size, time of change (ns), inode and first bytes.
    """
    return tuple(_mark(path.with_name(f"{path.name}{end}")) for end in ("", *sqlite.TRACES) if end != "-shm")


def _mark(path: Path) -> tuple[object, ...]:
    try:
        status = long_paths.stat(path)
        if not long_paths.is_file(path):
            return ()
        with links.reading(path) as file:
            return status.st_size, status.st_mtime_ns, status.st_ino, file.read(_HEADER_BYTES)
    except (OSError, ValueError):
        return ()
