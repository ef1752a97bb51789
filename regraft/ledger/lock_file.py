"""Lock files: one process at a time does a piece of work, on every system.

The lock is SQLite's, on a file without content: it needs neither ``fcntl`` nor hard links, and it ends with the process
that holds it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw

from regraft import areas, sqlite
from regraft.ledger import durable


class LockHeld(Exception):
    """Another process holds the lock file."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a lock file, which is made and, at the end, removed.

    Raises:
        LockHeld: another process holds it.
        apsw.Error: it cannot be made, or its file system has no locks.
    """
    with ExitStack() as stack:
        # Open only for a moment: a process that is started later may change what its own command line names, and
        # nothing else.
        with areas.opened(path.parent, entries_only=True):
            db = stack.enter_context(sqlite.writing(path, create=True))
        db.set_busy_timeout(0)
        try:
            mine = _file_number(path)
            db.execute("BEGIN EXCLUSIVE")
            # The process that held it may have removed it since: then it excludes nobody any more.
            is_held = _file_number(path) != mine
        except (apsw.BusyError, FileNotFoundError):
            is_held = True
        if is_held:
            raise LockHeld
        try:
            yield
        finally:
            with areas.opened(path.parent, entries_only=True):
                _remove(path, stack)


def _file_number(path: Path) -> int:
    """Return the number that tells a file from another one of the same name."""
    return path.stat().st_ino


def _remove(path: Path, stack: ExitStack) -> None:
    """Remove the lock file while it is locked; on Windows, which refuses that, right after it is closed."""
    if os.name != "nt":
        try:
            durable.remove(path, missing_ok=True, wait=_do_not_wait)
        except PermissionError:
            pass
        else:
            return
    stack.close()
    # The next process may have opened it meanwhile, and removes it.
    with contextlib.suppress(PermissionError):
        durable.remove(path, missing_ok=True, wait=_do_not_wait)


def _do_not_wait(_: float) -> None:
    """Try again at once."""
