"""Between a run and its disk: every operation below a folder is seen before and after it is done.

SQLite's own are seen where it calls the system (:mod:`campaign.native`); those of Python in the functions
of :mod:`os` and in the raw file under ``open``. Memory that SQLite shares between processes (``-shm``) is no file to it
and is not seen. Linux only: what a descriptor stands for is read from ``/proc``.
"""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from campaign.native import NativeFiles, result_of


@dataclass(frozen=True)
class Operation:
    """One thing that is asked of the disk.

    ``kind``: open, make (a file that was not there), read, write, truncate, sync, sync-folder, rename, link, unlink,
    mkdir, rmdir, list. ``other`` is where a name leads to (rename, link); ``offset`` and ``data`` are those of a write,
    ``data`` None where only the file itself tells what was written; ``offset`` is the new size for truncate.
    """

    kind: str
    path: str
    other: str = ""
    offset: int = 0
    data: bytes | None = None
    in_sqlite: bool = False


class Failing(Exception):
    """An operation is to fail with this error of the system's."""

    def __init__(self, error: int) -> None:
        super().__init__(os.strerror(error))
        self.error = error


class Watcher(Protocol):
    """Is called around every operation, which fails where ``before`` raises :class:`Failing`."""

    def before(self, operation: Operation) -> None:
        """Look at what is about to be done."""

    def after(self, operation: Operation) -> None:
        """Look at what was done."""


class Real:
    """The functions as they are without a watcher."""

    names = (
        *("open", "read", "write", "pread", "pwrite", "fsync", "fdatasync", "ftruncate", "truncate", "sendfile"),
        *("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "listdir", "scandir"),
        *("copy_file_range",),
    )

    def __init__(self) -> None:
        self.functions = {name: getattr(os, name) for name in self.names}
        self.opened = builtins.open

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return cast(Callable[..., Any], self.functions[name])


REAL = Real()


def path_of(descriptor: int) -> str:
    """Return what an open descriptor stands for."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - a name as it is
    except OSError:
        return ""


def _full(path: Any, dir_fd: int | None = None) -> str:
    if isinstance(path, int):
        return path_of(path)
    folder = path_of(dir_fd) if dir_fd is not None else str(Path.cwd())
    return os.path.normpath(os.path.join(folder, os.fsdecode(path)))  # noqa: PTH118 - no links are to be followed


class Wire:
    """What stands between a run and its disk, from :meth:`lay` to :meth:`lift`."""

    def __init__(self, watcher: Watcher, *roots: str) -> None:
        self._watcher = watcher
        self._roots = tuple(root.rstrip("/") for root in roots)
        self._native = NativeFiles(self.sees, self._around_native, self._flushed)

    def sees(self, path: str) -> bool:
        """Tell whether a path lies below one of the roots."""
        return any(path == root or path.startswith(f"{root}/") for root in self._roots)

    def around(self, operation: Operation, work: Callable[[], Any]) -> Any:
        """Do ``work`` between two looks at it."""
        try:
            self._watcher.before(operation)
        except Failing as failing:
            raise OSError(failing.error, os.strerror(failing.error), operation.path) from None
        done = work()
        self._watcher.after(operation)
        return done

    def _around_native(
        self, kind: str, path: str, offset: int, data: Callable[[], bytes] | None, work: Callable[[], int]
    ) -> int:
        """Do what SQLite asks for. Nothing is raised: there is nobody who could catch it."""
        written = data() if kind == "write" and data is not None else None
        operation = Operation(kind, path, offset=offset, data=written, in_sqlite=True)
        try:
            self._watcher.before(operation)
        except Failing as failing:
            return result_of(kind, failing.error)
        done = work()
        if done == 0:
            self._watcher.after(operation)
        return done

    def _flushed(self, folder: str) -> None:
        self._watcher.after(Operation("sync-folder", folder, in_sqlite=True))

    def lay(self) -> Wire:
        """Stand in for the functions."""
        self._native.lay()
        for name, function in _stand_ins(self).items():
            setattr(os, name, function)
        builtins.open = io.open = self._open  # type: ignore[assignment]
        return self

    def lift(self) -> None:
        """Give the functions back."""
        for name, function in REAL.functions.items():
            setattr(os, name, function)
        builtins.open = io.open = REAL.opened
        self._native.lift()

    def _open(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if isinstance(file, int) or not self.sees(_full(file)):
            return REAL.opened(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw_mode = mode.replace("b", "").replace("t", "")
        raw = _RawFile(self, file, raw_mode, opener or _plain)
        if buffering == 0:
            return raw
        buffered: Any = io.BufferedReader if raw_mode == "r" else io.BufferedWriter
        buffer = (io.BufferedRandom if "+" in raw_mode else buffered)(raw)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline)
        text.mode = mode  # type: ignore[misc]
        return text


@contextmanager
def watched(watcher: Watcher, *roots: str) -> Iterator[Wire]:
    """Let ``watcher`` see what is done below the roots."""
    wire = Wire(watcher, *roots).lay()
    try:
        yield wire
    finally:
        wire.lift()


def _plain(file: str, flags: int) -> int:
    return os.open(file, flags, 0o666)


class _RawFile(io.FileIO):
    """A file of Python's whose reads and writes are seen."""

    def __init__(self, wire: Wire, file: Any, mode: str, opener: Callable[[str, int], int]) -> None:
        super().__init__(file, mode, opener=opener)
        self._wire = wire
        self._path = _full(file)

    def readinto(self, buffer: Any) -> int:
        return cast(
            int, self._wire.around(Operation("read", self._path), lambda: super(_RawFile, self).readinto(buffer))
        )

    def readall(self) -> bytes:
        return cast(bytes, self._wire.around(Operation("read", self._path), lambda: super(_RawFile, self).readall()))

    def read(self, size: int | None = -1) -> bytes:
        return cast(bytes, self._wire.around(Operation("read", self._path), lambda: super(_RawFile, self).read(size)))

    def write(self, data: Any) -> int:
        place = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        operation = Operation("write", self._path, offset=place, data=bytes(data))
        return cast(int, self._wire.around(operation, lambda: super(_RawFile, self).write(data)))

    def truncate(self, size: int | None = None) -> int:
        operation = Operation("truncate", self._path, offset=self.tell() if size is None else size)
        return cast(int, self._wire.around(operation, lambda: super(_RawFile, self).truncate(size)))


# --- the functions of os -------------------------------------------------------------------------------------------


def _stand_ins(wire: Wire) -> dict[str, Callable[..., Any]]:
    return {**_of_names(wire), **_of_descriptors(wire)}


def _of_names(wire: Wire) -> dict[str, Callable[..., Any]]:
    single = {"mkdir": "mkdir", "rmdir": "rmdir", "unlink": "unlink", "remove": "unlink"}
    lists = {"listdir": "list", "scandir": "list"}
    double = {"rename": "rename", "replace": "rename", "link": "link"}
    return {
        **{name: _one_name(wire, kind, name) for name, kind in (single | lists).items()},
        **{name: _two_names(wire, kind, name) for name, kind in double.items()},
        "open": _opening(wire),
    }


def _one_name(wire: Wire, kind: str, name: str) -> Callable[..., Any]:
    def work(path: Any = ".", *more: Any, dir_fd: int | None = None, **named: Any) -> Any:
        if dir_fd is not None:
            named["dir_fd"] = dir_fd
        full = _full(path, dir_fd)
        if not wire.sees(full):
            return REAL.functions[name](path, *more, **named)
        return wire.around(Operation(kind, full), lambda: REAL.functions[name](path, *more, **named))

    return work


def _two_names(wire: Wire, kind: str, name: str) -> Callable[..., Any]:
    def work(source: Any, target: Any, **named: Any) -> Any:
        old, new = _full(source, named.get("src_dir_fd")), _full(target, named.get("dst_dir_fd"))
        if not wire.sees(old) and not wire.sees(new):
            return REAL.functions[name](source, target, **named)
        return wire.around(Operation(kind, old, new), lambda: REAL.functions[name](source, target, **named))

    return work


def _opening(wire: Wire) -> Callable[..., int]:
    def opening(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        full = _full(path, dir_fd)
        if not wire.sees(full):
            return cast(int, REAL.open(path, flags, mode, dir_fd=dir_fd))
        kind = "make" if flags & os.O_CREAT and not os.path.lexists(full) else "open"
        found = wire.around(Operation(kind, full), lambda: REAL.open(path, flags, mode, dir_fd=dir_fd))
        if flags & os.O_TRUNC and kind == "open":
            wire.around(Operation("truncate", full), lambda: None)
        return cast(int, found)

    return opening


def _of_descriptors(wire: Wire) -> dict[str, Callable[..., Any]]:
    def seen(operation: Callable[..., Operation], name: str, at: int = 0) -> Callable[..., Any]:
        def work(*arguments: Any, **named: Any) -> Any:
            path = path_of(arguments[at])
            if not wire.sees(path):
                return REAL.functions[name](*arguments, **named)
            asked = operation(path, *arguments)
            return wire.around(asked, lambda: REAL.functions[name](*arguments, **named))

        return work

    def synced(path: str, descriptor: int) -> Operation:
        return Operation("sync-folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync", path)

    def written(path: str, *_: Any) -> Operation:
        return Operation("write", path)

    def read(path: str, *_: Any) -> Operation:
        return Operation("read", path)

    def cut(path: str, _: int, size: int) -> Operation:
        return Operation("truncate", path, offset=size)

    return {
        "fsync": seen(synced, "fsync"),
        "fdatasync": seen(synced, "fdatasync"),
        "write": seen(written, "write"),
        "pwrite": seen(written, "pwrite"),
        "sendfile": seen(written, "sendfile"),
        "copy_file_range": seen(written, "copy_file_range", at=1),
        "read": seen(read, "read"),
        "pread": seen(read, "pread"),
        "ftruncate": seen(cut, "ftruncate"),
    }
