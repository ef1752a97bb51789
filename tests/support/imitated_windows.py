"""An imitation of Windows on Linux, as far as files are concerned, for commands that run in this process.

What it imitates: no ``fcntl``; no function acts on an open file instead of a path, or relative to an open folder; a
folder cannot be opened; what is open (by Python or by SQLite) cannot be removed, renamed or replaced, and neither can
the folders that it lies in; read-only files cannot be removed or replaced; there are no hard links; and a path of 260
characters or more does not exist, unless it has the prefix of an extended path. ``os.name`` and ``sys.platform`` stay
those of Linux: without them neither ``pathlib`` nor ``subprocess`` works.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regraft.disk import durable, file_paths, untrusted_sqlite, writable
from regraft.processes import pool

#: The longest path, in characters, without the prefix.
LONGEST = 259
PREFIX = "\\\\?\\"
_HANDLES = Path("/proc/self/fd")
_ACCESS_DENIED, _SHARING_VIOLATION, _TOO_LONG, _INVALID_FUNCTION = 5, 32, 206, 1

linux = pytest.mark.skipif(not _HANDLES.is_dir(), reason="the system does not list which files are open")


def _error(kind: type[OSError], number: int, winerror: int, path: object) -> OSError:
    error = kind(number, os.strerror(number), path)
    error.winerror = winerror  # type: ignore[attr-defined]
    return error


class Windows:
    """The functions of the system, as Windows has them."""

    def __init__(self) -> None:
        self._readlink, self._stat, self._lstat, self._listdir = os.readlink, os.stat, os.lstat, os.listdir
        self._realpath = os.path.realpath
        #: Whether a function of the system is at work, which itself asks for paths of any length.
        self._is_inside = False
        #: What was refused, for tests of this imitation.
        self.refused: list[str] = []

    def path(self, path: Any) -> Any:
        """Return a path as Linux takes it; refuse one that is too long."""
        if isinstance(path, int) or path is None:
            return path
        text = os.fsdecode(os.fspath(path))
        if text.startswith(PREFIX):
            return text.removeprefix(PREFIX)
        if not self._is_inside and len(str(Path(text).absolute())) > LONGEST:
            self.refused.append(f"too long: {text}")
            raise _error(FileNotFoundError, errno.ENOENT, _TOO_LONG, text)
        return text

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let a function of the system look at paths of any length."""
        was, self._is_inside = self._is_inside, True
        try:
            yield
        finally:
            self._is_inside = was

    def realpath(self, path: Any, *, strict: bool = False) -> str:
        """Return where a path leads; one with the prefix keeps it, as on Windows."""
        text = os.fsdecode(os.fspath(path))
        with self.inside():
            real = self._realpath(text.removeprefix(PREFIX), strict=strict)
        return PREFIX + real if text.startswith(PREFIX) else real

    def is_folder(self, path: str) -> bool:
        """Whether a folder is at a path as Linux takes it."""
        try:
            return stat.S_ISDIR(self._stat(path).st_mode)
        except OSError:
            return False

    def is_there(self, path: str) -> bool:
        """Whether anything is at a path as Linux takes it."""
        try:
            self._lstat(path)
        except OSError:
            return False
        return True

    def open_paths(self) -> list[str]:
        """Return the paths of all files that this process has open."""
        found = []
        for name in self._listdir(_HANDLES):
            try:
                found.append(self._readlink(f"{_HANDLES}/{name}"))
            except OSError:
                continue
        return found

    def demand_closed(self, path: str) -> None:
        """Refuse to remove or rename what is open, or a folder in which something is."""
        whole = str(Path(self.realpath(Path(path).absolute().parent), Path(path).name))
        if any(one == whole or one.startswith(f"{whole}/") for one in self.open_paths()):
            self.refused.append(f"open: {path}")
            raise _error(PermissionError, errno.EACCES, _SHARING_VIOLATION, path)

    def demand_writable(self, path: str) -> None:
        """Refuse to remove or replace a read-only file."""
        try:
            mode = self._lstat(path).st_mode
        except OSError:
            return
        if stat.S_ISREG(mode) and not mode & stat.S_IWUSR:
            self.refused.append(f"read-only: {path}")
            raise _error(PermissionError, errno.EACCES, _ACCESS_DENIED, path)


def _by_path(windows: Windows, real: Callable[..., Any], *, paths: int = 1) -> Callable[..., Any]:
    """Return a function of the system that takes paths only."""

    def act(*args: Any, **more: Any) -> Any:
        if any(more.pop(name, None) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError("dir_fd unavailable on this platform")
        given = [windows.path(argument) for argument in args[:paths]]
        return real(*given, *args[paths:], **more)

    return act


@contextmanager
def imitated() -> Iterator[Windows]:
    """Imitate Windows meanwhile; processes that are started do not, so none are."""
    windows = Windows()
    with pytest.MonkeyPatch.context() as patch:
        _patch_files(windows, patch)
        _patch_modules(patch)
        yield windows


def _patch_files(windows: Windows, patch: pytest.MonkeyPatch) -> None:
    real_open, real_unlink, real_rename, real_rmdir = os.open, os.unlink, os.replace, os.rmdir
    for name in ("stat", "lstat", "mkdir", "scandir", "listdir", "access", "readlink", "truncate"):
        patch.setattr(os, name, _by_path(windows, getattr(os, name)))
    for name in ("chmod", "utime"):
        patch.setattr(os, name, _no_handle(windows, getattr(os, name)))

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        place = windows.path(path)
        if windows.is_folder(place):
            raise _error(PermissionError, errno.EACCES, _ACCESS_DENIED, path)
        return real_open(place, flags, mode)

    def open_file(file: Any, *args: Any, **more: Any) -> Any:
        # An opener is given the path and opens it itself.
        return real_builtin(file if more.get("opener") else windows.path(file), *args, **more)

    real_builtin = builtins.open
    patch.setattr(os, "open", opened)
    patch.setattr(builtins, "open", open_file)
    patch.setattr(io, "open", open_file)

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        place = windows.path(path)
        windows.demand_closed(place)
        windows.demand_writable(place)
        real_unlink(place)

    def replace(source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        if src_dir_fd is not None or dst_dir_fd is not None:
            raise NotImplementedError("src_dir_fd and dst_dir_fd unavailable on this platform")
        old, new = windows.path(source), windows.path(target)
        windows.demand_closed(old)
        if windows.is_folder(new) and windows.is_there(old):
            raise _error(PermissionError, errno.EACCES, _ACCESS_DENIED, target)
        if windows.is_there(new):
            windows.demand_closed(new)
            windows.demand_writable(new)
        real_rename(old, new)

    def rename(source: Any, target: Any, **handles: Any) -> None:
        if windows.is_there(windows.path(target)):
            raise _error(FileExistsError, errno.EEXIST, 183, target)
        replace(source, target, **handles)

    def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raise NotImplementedError("dir_fd unavailable on this platform")
        place = windows.path(path)
        windows.demand_closed(place)
        real_rmdir(place)

    def link(source: Any, target: Any, **_: Any) -> None:
        if windows.is_there(windows.path(target)):
            raise _error(FileExistsError, errno.EEXIST, 183, target)
        raise _error(OSError, errno.EINVAL, _INVALID_FUNCTION, source)

    patch.setattr(os.path, "realpath", windows.realpath)
    patch.setattr(os, "unlink", unlink)
    patch.setattr(os, "remove", unlink)
    patch.setattr(os, "replace", replace)
    patch.setattr(os, "rename", rename)
    patch.setattr(os, "rmdir", rmdir)
    patch.setattr(os, "link", link)
    for name in ("supports_fd", "supports_dir_fd", "supports_follow_symlinks"):
        patch.setattr(os, name, set())
    patch.setattr(shutil, "_use_fd_functions", False)


def _no_handle(windows: Windows, real: Callable[..., Any]) -> Callable[..., Any]:
    by_path = _by_path(windows, real)

    def act(path: Any, *args: Any, **more: Any) -> Any:
        if isinstance(path, int):
            raise TypeError("path should be string, bytes or os.PathLike, not int")
        return by_path(path, *args, **more)

    return act


def _patch_modules(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "fcntl", None)
    patch.setattr(writable, "fcntl", None)
    patch.setattr(writable, "SUPPORTS_DIR_FD", False)
    patch.setattr(file_paths, "MAX_PLAIN_LENGTH", 247)
    patch.setattr(durable.time, "sleep", lambda _: None)
    # A process that is started would be one of Linux.
    patch.setattr(pool, "can_start_processes", lambda: False)
    uri = untrusted_sqlite.database_uri
    patch.setattr(
        untrusted_sqlite, "database_uri", lambda path, **options: uri(path, **options).replace("%5C%5C%3F%5C", "")
    )
