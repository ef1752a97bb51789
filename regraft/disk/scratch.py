"""Make temporary folders, and remove those that killed processes have left.

While a process has temporary folders in the system's temporary folder, they are in its *run folder*, ``regraft-run-``
and eight random characters, readable by its user only. The process holds the lock file in the run folder. The lock ends
with the process, however that ends, so a run folder whose lock no process holds is a leftover, and the next run of the
same user removes it (:func:`remove_leftovers`). Rules: ``docs/commands.md``, "Temporary files".
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import apsw

from regraft.disk import durable, file_paths, lock_files, writable
from regraft.errors import RegraftError

logger = logging.getLogger(__name__)

_PREFIX = "regraft-run-"
_RUN_FOLDER = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
_LOCK = "lock"
#: The lock file and the journal that SQLite has beside it.
_LOCK_FILES = frozenset({_LOCK, f"{_LOCK}-journal"})
#: Permissions of a run folder that anybody but its owner has, which must be none.
_OF_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: Attempts to make and lock a run folder, which other processes may remove before it is locked.
_TRIES = 5


class _RunFolder:
    """The run folder of this process in one temporary folder: made for the first user, removed after the last."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.process = os.getpid()
        self._path: Path | None = None
        self._lock = ExitStack()
        self._users = 0

    def is_at(self, path: Path) -> bool:
        """Whether this is the run folder at a path."""
        return self._path == path

    def acquire(self) -> Path:
        """Count one more user of the folder and return its path; make and lock the folder if it does not exist.

        Raises:
            OSError: it cannot be created.
        """
        # Counted first: the garbage collector may end another context of this thread at any time.
        self._users += 1
        try:
            if self._path is None:
                self._path = self._make()
        except BaseException:
            self._users -= 1
            raise
        return self._path

    def release(self) -> None:
        """Count one user of the folder less; remove the folder after the last one."""
        self._users -= 1
        if self._users or self._path is None or self.process != os.getpid():
            return
        path, self._path = self._path, None
        # Files that another program holds open stay, with the lock file, until a later run removes them.
        with contextlib.suppress(OSError, RegraftError):
            self._lock.close()
            _remove_empty(path)

    def _make(self) -> Path:
        """Create and lock the folder, and return its path.

        If no lock is possible, its name is not that of a run folder, so no process removes it as a leftover.
        """
        for _ in range(_TRIES):
            path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._root))
            try:
                self._lock.enter_context(lock_files.hold_lock(path / _LOCK, is_kept=partial(_has_content, path)))
            except lock_files.LockHeld:
                # Another process removes it as a leftover.
                continue
            except (apsw.Error, OSError, RegraftError) as error:
                logger.info("%s cannot be locked: %s", path, error)
                with contextlib.suppress(OSError, RegraftError), writable.allow_writes(self._root, entries_only=True):
                    durable.remove_tree(path, wait=durable.do_not_wait)
            else:
                return path
        # Without locks, no process can tell a leftover from a folder in use. This one has another name, so none will.
        return Path(tempfile.mkdtemp(prefix="regraft-", dir=self._root))


#: Reentrant: the garbage collector may end a context while this thread begins another one.
_guard = threading.RLock()
#: The run folders of this process, by temporary folder.
_run_folders: dict[Path, _RunFolder] = {}


def temporary_root() -> Path:
    """Return the system's temporary folder."""
    return Path(tempfile.gettempdir())


def anonymous_file(memory_bytes: int) -> tempfile.SpooledTemporaryFile[bytes]:
    """Create a file without a name, in memory up to a size. It is removed when it is closed or the process ends."""
    return tempfile.SpooledTemporaryFile(memory_bytes)


@contextmanager
def temporary_folder(work: Path | None = None, *, root: Path | None = None) -> Iterator[Path]:
    """Create a writable temporary folder, and remove it with its contents at the end.

    Args:
        work: the folder to create it in, created if missing. The caller removes leftovers there.
        root: without ``work``, the temporary folder that contains the run folder (default: the system's).

    Raises:
        OSError: it cannot be created.
    """
    with ExitStack() as stack:
        if work is None:
            parent = stack.enter_context(_use_run_folder(root or temporary_root()))
        else:
            durable.make_folders(work, flush=False)
            writable.refuse_link(writable.require_writable(work), work)
            parent = work
        folder = Path(tempfile.mkdtemp(prefix="regraft-", dir=parent))
        try:
            with writable.allow_writes(folder):
                yield folder
        finally:
            # Remove only the folder that was just made. Files that another program holds open stay, which is not an
            # error.
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _use_run_folder(root: Path) -> Iterator[Path]:
    """Yield the run folder of this process in the temporary folder ``root``, which exists until its last context ends.

    The first context of a process removes the leftovers of killed processes.
    """
    with _guard:
        run = _run_folders.get(root)
        is_first = run is None
        if run is None or run.process != os.getpid():
            # A forked process must not use, and not remove, the folder of its parent.
            run = _run_folders[root] = _RunFolder(root)
    if is_first:
        remove_leftovers(root)
    with _guard:
        path = run.acquire()
    try:
        yield path
    finally:
        with _guard:
            run.release()


def is_used_by_others(root: Path | None = None) -> bool:
    """Whether another process has temporary folders in a temporary folder (default: the system's)."""
    root = root or temporary_root()
    own = _run_folders.get(root)
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        names = [entry.name for entry in entries if _RUN_FOLDER.fullmatch(entry.name)]
        return any(
            lock_files.is_lock_held(root / name / _LOCK) for name in names if own is None or not own.is_at(root / name)
        )
    return False


def remove_leftovers(root: Path | None = None) -> None:
    """Remove the run folders of this user that killed processes have left in a temporary folder.

    Removed are only folders that have the name of a run folder, belong to this user, and are closed to all others. A
    folder that is not empty must also have a lock file, which no process holds. No link is followed. What cannot be
    removed stays for the next run.

    Args:
        root: the temporary folder (default: the system's).
    """
    try:
        with os.scandir(root or temporary_root()) as entries:
            found = [Path(entry.path) for entry in entries if _RUN_FOLDER.fullmatch(entry.name)]
    except OSError as error:
        logger.info("leftovers are not removed: %s", error)
        return
    for folder in found:
        _remove_leftover(folder)


def _remove_leftover(folder: Path) -> None:
    """Remove a run folder unless a process uses it."""
    try:
        if not _is_own_folder(folder):
            return
        lock = folder / _LOCK
        with os.scandir(folder) as entries:
            files = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        if files & _LOCK_FILES:
            with lock_files.hold_lock(lock, is_kept=partial(_has_content, folder)), writable.allow_writes(folder):
                for entry in sorted(folder.iterdir()):
                    if entry.name not in _LOCK_FILES:
                        durable.remove_tree(entry, wait=durable.do_not_wait)
            logger.info("removed %s, which a killed process had left", folder)
        # Without a lock file, this removes only an empty folder: its process was killed before it made the file.
        _remove_empty(folder)
    except lock_files.LockHeld:
        pass
    except (OSError, RegraftError, apsw.Error) as error:
        logger.info("%s is not removed: %s", folder, error)


def _is_own_folder(path: Path) -> bool:
    """Whether this is a folder, not a link, that belongs to this user and is closed to all others.

    On Windows, each user has a temporary folder of their own.
    """
    status = file_paths.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or file_paths.is_link_stat(status):
        return False
    return os.name == "nt" or (status.st_uid == os.geteuid() and not status.st_mode & _OF_OTHERS)


def _has_content(folder: Path) -> bool:
    """Whether a run folder contains more than its lock file, which stays then, so that the folder is recognized."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        return any(entry.name not in _LOCK_FILES for entry in entries)
    return False


def _remove_empty(folder: Path) -> None:
    """Remove an empty run folder; do nothing if it is missing. OSError: it is not empty."""
    with writable.allow_writes(folder.parent, entries_only=True), contextlib.suppress(FileNotFoundError):
        durable.remove_folder(folder)
