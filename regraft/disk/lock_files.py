"""Lock files: SQLite's lock on an empty file.

It needs neither ``fcntl`` nor hard links, works between containers that share a folder, and ends with its process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from regraft.disk import durable, untrusted_sqlite, writable

_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW


class LockHeld(Exception):
    """Another process holds the lock."""


@contextmanager
def hold_lock(path: Path, *, is_kept: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Hold a lock file within the context: created at the beginning, removed at the end.

    Args:
        path: the lock file.
        is_kept: called at the end; the file is not removed if it returns True.

    Raises:
        LockHeld: another process holds it.
        apsw.Error: it cannot be created, or its file system has no locks.
    """
    with ExitStack() as stack:
        # Writable only for a moment: processes started later may change what their own command line names, and nothing
        # else.
        with writable.allow_writes(path.parent, entries_only=True):
            real = untrusted_sqlite.require_writable_database(path)
            db = apsw.Connection(untrusted_sqlite.database_uri(real, mode="rwc"), flags=_FLAGS)
            stack.callback(db.close, True)
            untrusted_sqlite.guard_connection(db)
            db.set_busy_timeout(0)
        try:
            number_before = _file_number(path)
            db.execute("BEGIN EXCLUSIVE")
            # The process that held it may have removed it since; then locking it excludes no other process.
            is_held = _file_number(path) != number_before
        except (apsw.BusyError, FileNotFoundError):
            is_held = True
        if is_held:
            raise LockHeld
        try:
            yield
        finally:
            if not is_kept():
                with writable.allow_writes(path.parent, entries_only=True):
                    _remove_lock_file(path, stack)


def is_lock_held(path: Path) -> bool:
    """Whether a process holds a lock file. Nothing is written."""
    if not path.is_file() or path.is_symlink():
        return False
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_NOFOLLOW
    try:
        db = apsw.Connection(untrusted_sqlite.database_uri(path, mode="ro"), flags=flags)
    except apsw.CantOpenError:
        # It has just been removed.
        return False
    try:
        untrusted_sqlite.guard_connection(db)
        db.set_busy_timeout(0)
        db.execute("PRAGMA schema_version").fetchall()
    except apsw.BusyError:
        return True
    except apsw.Error:
        return False
    finally:
        db.close(True)
    return False


def _file_number(path: Path) -> int:
    """Return the inode number of a file."""
    return path.stat().st_ino


def _remove_lock_file(path: Path, held: ExitStack) -> None:
    """Remove a lock file while it is locked; on Windows, which refuses that, right after closing it.

    ``held`` unlocks and closes the file when it is closed.
    """
    if os.name != "nt":
        try:
            durable.remove(path, missing_ok=True, wait=durable.do_not_wait)
        except PermissionError:
            pass
        else:
            return
    held.close()
    # The next process may have opened it already, and will remove it.
    with contextlib.suppress(PermissionError):
        durable.remove(path, missing_ok=True, wait=durable.do_not_wait)
