"""SQLite's own way to its files, seen from outside: its functions are replaced by ours, which call them.

A VFS written in Python would not do: what it raises comes out of calls whose errors SQLite passes over (a flush while a
file is closed), which no disk does. Here an error is the number that SQLite's own code would have returned.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_int64, c_void_p
from typing import Any

import apsw

# The name must stay the very pointer: SQLite keeps it, and reads parameters behind its end.
_OPEN = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_int, POINTER(c_int))
_DELETE = CFUNCTYPE(c_int, c_void_p, c_char_p, c_int)
_CLOSE = CFUNCTYPE(c_int, c_void_p)
_MOVE = CFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_int64)
_TRUNCATE = CFUNCTYPE(c_int, c_void_p, c_int64)
_SYNC = CFUNCTYPE(c_int, c_void_p, c_int)
_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_SUPER_JOURNAL | apsw.SQLITE_OPEN_WAL
_CODES = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "unlink": apsw.SQLITE_IOERR_DELETE,
    "open": apsw.SQLITE_CANTOPEN,
    "make": apsw.SQLITE_CANTOPEN,
}

#: Is asked to do one operation (kind, path, offset, bytes) by calling the last argument.
Around = Callable[[str, str, int, Callable[[], bytes] | None, Callable[[], int]], int]


class _Vfs(Structure):
    _fields_ = (
        ("iVersion", c_int),
        ("szOsFile", c_int),
        ("mxPathname", c_int),
        ("pNext", c_void_p),
        ("zName", c_char_p),
        ("pAppData", c_void_p),
        ("xOpen", c_void_p),
        ("xDelete", c_void_p),
    )


class _Methods(Structure):
    #: Those of version 3, in their order; what is not ours is copied as it is.
    _fields_ = (
        ("iVersion", c_int),
        ("xClose", c_void_p),
        ("xRead", c_void_p),
        ("xWrite", c_void_p),
        ("xTruncate", c_void_p),
        ("xSync", c_void_p),
        ("rest", c_void_p * 13),
    )


def result_of(kind: str, error: int) -> int:
    """Return what SQLite's own code returns when an operation fails with an error of the system's."""
    if kind == "write" and error == errno.ENOSPC:
        return apsw.SQLITE_FULL
    return _CODES.get(kind, apsw.SQLITE_IOERR)


class NativeFiles:
    """SQLite's functions, replaced from :meth:`lay` to :meth:`lift`."""

    def __init__(self, sees: Callable[[str], bool], around: Around, flushed: Callable[[str], None]) -> None:
        self._sees, self._around, self._flushed = sees, around, flushed
        db = apsw.Connection("")
        pointer = c_void_p()
        db.file_control("main", apsw.SQLITE_FCNTL_VFS_POINTER, ctypes.addressof(pointer))
        db.close()
        assert pointer.value is not None
        self._vfs = _Vfs.from_address(pointer.value)
        self._open, self._delete = _OPEN(self._vfs.xOpen), _DELETE(self._vfs.xDelete)
        #: Our functions must live as long as SQLite may call them.
        self._ours: list[Any] = []
        self._tables: dict[int, tuple[_Methods, _Methods]] = {}
        #: Open files, by their address: path, and whether the next flush is the first one of a journal.
        self._paths: dict[int, str] = {}
        self._new_journals: set[int] = set()

    def lay(self) -> None:
        """Stand in for SQLite's functions."""
        ours = (_OPEN(self._opened), _DELETE(self._deleted))
        self._ours += ours
        self._before = (self._vfs.xOpen, self._vfs.xDelete)
        self._vfs.xOpen, self._vfs.xDelete = (ctypes.cast(one, c_void_p).value for one in ours)

    def lift(self) -> None:
        """Give the functions back, those of open files, too."""
        self._vfs.xOpen, self._vfs.xDelete = self._before
        for ours, real in self._tables.values():
            ctypes.memmove(ctypes.addressof(ours), ctypes.addressof(real), ctypes.sizeof(_Methods))

    # --- names -----------------------------------------------------------------------------------------------------

    def _opened(self, vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        path = "" if name is None else os.path.normpath(os.fsdecode(ctypes.string_at(name)))
        if not path or not self._sees(path):
            return int(self._open(vfs, name, file, flags, out))
        is_new = bool(flags & apsw.SQLITE_OPEN_CREATE) and not os.path.lexists(path)
        done = self._around(
            "make" if is_new else "open", path, 0, None, lambda: int(self._open(vfs, name, file, flags, out))
        )
        methods = c_void_p.from_address(file)
        if done != apsw.SQLITE_OK:
            # SQLite closes what has methods.
            methods.value = None
        elif methods.value:
            self._paths[file] = path
            if flags & apsw.SQLITE_OPEN_CREATE and flags & _JOURNALS:
                self._new_journals.add(file)
            methods.value = self._table(methods.value)
        return done

    def _deleted(self, vfs: int, name: bytes, sync: int) -> int:
        path = os.path.normpath(os.fsdecode(name))
        if not self._sees(path) or not os.path.lexists(path):
            return int(self._delete(vfs, name, sync))
        done = self._around("unlink", path, 0, None, lambda: int(self._delete(vfs, name, sync)))
        if sync and done == apsw.SQLITE_OK:
            self._flushed(os.path.dirname(path))  # noqa: PTH120
        return done

    # --- files -----------------------------------------------------------------------------------------------------

    def _table(self, address: int) -> int:
        """Return our functions in the place of those at an address."""
        if address not in self._tables:
            real = _Methods.from_address(address)
            ours, copy = _Methods(), _Methods()
            for table in (ours, copy):
                ctypes.memmove(ctypes.addressof(table), address, ctypes.sizeof(_Methods))
            functions = {
                "xClose": _CLOSE(self._close(_CLOSE(real.xClose))),
                "xRead": _MOVE(self._moved("read", _MOVE(real.xRead))),
                "xWrite": _MOVE(self._moved("write", _MOVE(real.xWrite))),
                "xTruncate": _TRUNCATE(self._truncated(_TRUNCATE(real.xTruncate))),
                "xSync": _SYNC(self._synced(_SYNC(real.xSync))),
            }
            for name, function in functions.items():
                setattr(ours, name, ctypes.cast(function, c_void_p).value)
            self._ours += functions.values()
            self._tables[address] = (ours, copy)
        return ctypes.addressof(self._tables[address][0])

    def _close(self, real: Any) -> Callable[[int], int]:
        def close(file: int) -> int:
            self._paths.pop(file, None)
            self._new_journals.discard(file)
            return int(real(file))

        return close

    def _moved(self, kind: str, real: Any) -> Callable[[int, int, int, int], int]:
        def moved(file: int, buffer: int, amount: int, offset: int) -> int:
            return self._around(
                kind,
                self._paths[file],
                offset,
                lambda: ctypes.string_at(buffer, amount),
                lambda: int(real(file, buffer, amount, offset)),
            )

        return moved

    def _truncated(self, real: Any) -> Callable[[int, int], int]:
        def truncated(file: int, size: int) -> int:
            return self._around("truncate", self._paths[file], size, None, lambda: int(real(file, size)))

        return truncated

    def _synced(self, real: Any) -> Callable[[int, int], int]:
        def synced(file: int, flags: int) -> int:
            path = self._paths[file]
            done = self._around("sync", path, 0, None, lambda: int(real(file, flags)))
            # SQLite flushes the folder of a journal or log at its first flush, and that of a database never.
            if done == apsw.SQLITE_OK and file in self._new_journals:
                self._new_journals.discard(file)
                self._flushed(os.path.dirname(path))  # noqa: PTH120
            return done

        return synced
