"""Whose index a file is, and reading it while others may write (``docs/formats/index.md``, "Store")."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.errors import (
    IndexBusy,
    IndexForeign,
    IndexHotJournal,
    IndexIncomplete,
    IndexVersionUnknown,
    RegraftError,
    SourceNotFound,
    SourceUnreadable,
)
from regraft.formats.cherry_v2.index import schema
from regraft.language import join_list, tr

#: How often a read is begun anew because somebody wrote meanwhile.
ATTEMPTS = 20
#: The pause between two of them, in seconds.
PAUSE = 0.05

_TABLES = ("meta", "content", "material", "search_unit", "search_text", "embedding", "search_text_fts")
_TRIGGERS = ("search_text_ai", "search_text_ad", "search_text_au")

#: What reading a damaged file raises: invalid UTF-8 is a ValueError.
READ_ERRORS = (apsw.Error, OSError, ValueError)

Result = TypeVar("Result")
#: Size, time of change and first bytes of a file and what lies beside it.
FileMark = tuple[tuple[int, int, bytes] | None, ...]


#: Files that this process has open for writing. On POSIX, closing a file in any other way than SQLite's lets go of all
#: locks that the process has on it, so that such a file is neither looked into nor copied.
_WRITTEN: Counter[Path] = Counter()
_LOCK = threading.RLock()
#: The mark of such a file; no other file has it.
_OWN: FileMark = ((-1, -1, b""),)


@contextmanager
def mark_open_for_writing(path: Path) -> Iterator[None]:
    """Note that this process has ``path`` open for writing as long as the context lasts."""
    real = links.real_path(path)
    with _LOCK:
        _WRITTEN[real] += 1
    try:
        yield
    finally:
        with _LOCK:
            _WRITTEN[real] -= 1


def create_index(db: apsw.Connection, base_id: str, now_ms: int) -> None:
    """Make an empty index of ``base_id`` in a file without any table, in one transaction; else do nothing."""
    if not _is_blank(db):
        return
    with sqlite.transaction(db):
        if not _is_blank(db):
            return  # somebody else was faster
        for statement in (*schema.TABLES, schema.FULL_TEXT, *schema.INDEXES, *schema.TRIGGERS):
            db.execute(statement)
        db.execute(
            "INSERT INTO meta (id, schema_version, base_id, created_at, updated_at) VALUES (1, ?, ?, ?, ?)",
            (schema.SCHEMA_VERSION, base_id, now_ms, now_ms),
        )


def _is_blank(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None


def check_identity(db: apsw.Connection, path: Path, base_id: str | None) -> None:
    """Refuse a file that is not the index of ``base_id`` (None: of any base) in the layout's own version.

    Raises:
        IndexIncomplete: a table, a trigger or the identity row is missing.
        IndexVersionUnknown: it has another version.
        IndexForeign: it is the index of another base.
        apsw.Error: it cannot be read.
    """
    found = _identity(db, path)
    if base_id is not None and found != base_id:
        advice = tr("give the index of that base's own folder")
        raise IndexForeign(path=path, found=found, base=base_id, advice=advice)


def _identity(db: apsw.Connection, path: Path) -> Any:
    """Return the id that an index of the layout's own version says it is of."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    missing = [name for name in (*_TABLES, *_TRIGGERS) if name not in names]
    # The version goes first: a file of another one may well have other tables.
    row = db.execute("SELECT schema_version, base_id FROM meta WHERE id = 1").fetchone() if "meta" in names else None
    if row is not None and row[0] != schema.SCHEMA_VERSION:
        raise IndexVersionUnknown(path=path, found=row[0], known=schema.SCHEMA_VERSION)
    if missing or row is None:
        raise IndexIncomplete(path=path, missing=join_list(missing) or tr("the identity row"))
    return row[1]


class _Changed(Exception):
    """Somebody wrote while the file was read."""


class IndexReader:
    """Reads an index without a trace, each time as the file is at that moment.

    A file opened ``immutable`` is not locked: what was read while somebody wrote would be neither the old state nor
    the new one. Marks of the file are therefore taken before and after, and a read that met a change is done anew.
    """

    def __init__(self, path: Path, base_id: str) -> None:
        self._path = links.real_path(path)
        self._base = base_id
        self._stack = ExitStack()
        self._db: apsw.Connection | None = None
        self._mark: FileMark = ()
        self.run(lambda _: None)

    def run(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Return what ``query`` finds in one state of the file.

        Raises:
            IndexHotJournal: an unfinished transaction lies beside the file.
            IndexBusy: somebody writes to it without a pause.
            SourceNotFound, SourceUnreadable: it is gone, or cannot be read.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE)
            if self._is_written():
                return self._run_beside_writer(query)
            try:
                return self._run_once(query)
            except _Changed:
                continue
            except IndexHotJournal:
                # It may be that of a writer at work.
                if attempt == ATTEMPTS - 1:
                    raise
        raise IndexBusy(path=self._path)

    def _run_once(self, query: Callable[[apsw.Connection], Result]) -> Result:
        mark = self._marks()
        if mark == _OWN:
            raise _Changed
        try:
            result = query(self._connection(mark))
        except RegraftError:
            raise
        except READ_ERRORS as error:
            self.close()
            if self._marks() == mark:
                raise SourceUnreadable(path=self._path, reason=error) from error
            raise _Changed from error
        if self._marks() != mark:
            raise _Changed
        return result

    def _connection(self, mark: FileMark) -> apsw.Connection:
        """Return a connection to the file in the state of ``mark``, whose identity was looked at."""
        if self._db is not None and mark == self._mark:
            return self._db
        self.close()
        if mark[0] is None:
            raise SourceNotFound(path=self._path)
        journals = [file for file in untrusted_sqlite.find_companions(self._path) if file.name.endswith("-journal")]
        if journals:
            raise IndexHotJournal(path=self._path, journal=journals[0].name)
        with ExitStack() as opened, _LOCK:
            if self._is_written():
                raise apsw.BusyError(tr("opened for writing by this process"))  # the marks differ now
            self._db = opened.enter_context(sqlite.open_readonly(self._path))
            opened.callback(self._forget)
            check_identity(self._db, self._path, self._base)
            self._mark = mark
            self._stack = opened.pop_all()
        return self._db

    def _is_written(self) -> bool:
        return _WRITTEN[self._path] > 0

    def _run_beside_writer(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Read through SQLite's own locks: this process has the file open for writing, the log beside it is its own."""
        self.close()
        try:
            with sqlite.open_writable(self._path) as db:
                db.execute("PRAGMA query_only = 1")
                check_identity(db, self._path, self._base)
                return query(db)
        except apsw.BusyError as error:
            raise IndexBusy(path=self._path) from error
        except RegraftError:
            raise
        except READ_ERRORS as error:
            raise SourceUnreadable(path=self._path, reason=error) from error

    def close(self) -> None:
        """Close the file; the next :meth:`run` opens it again."""
        self._stack.close()

    def _forget(self) -> None:
        self._db = None

    def _marks(self) -> FileMark:
        with _LOCK:
            if self._is_written():
                return _OWN
            return tuple(_mark(self._path.with_name(self._path.name + suffix)) for suffix in ("", "-wal", "-journal"))


def _mark(path: Path) -> tuple[int, int, bytes] | None:
    try:
        status = file_paths.stat(path)
        if not file_paths.is_file(path):
            return status.st_size, status.st_mtime_ns, b""
        with links.open_for_reading(path) as file:
            # The header of a database counts its changes, that of a log has its salt.
            return status.st_size, status.st_mtime_ns, file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceUnreadable(path=path, reason=error.strerror) from error
