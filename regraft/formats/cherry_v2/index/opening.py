"""Open an index: check whose it is, and read it while others may write (``docs/formats/index.md``, "Store")."""

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

#: Attempts to read while the file keeps changing.
ATTEMPTS = 20
#: Pause between two attempts, in seconds.
PAUSE = 0.05

_TABLES = ("meta", "content", "material", "search_unit", "search_text", "embedding", "search_text_fts")
_TRIGGERS = ("search_text_ai", "search_text_ad", "search_text_au")

#: Exceptions that reading a damaged file raises. Invalid UTF-8 is a ValueError.
READ_ERRORS = (apsw.Error, OSError, ValueError)

Result = TypeVar("Result")
#: Size, modification time and first bytes of the file, its log and its journal.
FileMark = tuple[tuple[int, int, bytes] | None, ...]


#: Files that this process has open for writing. On POSIX, closing another descriptor of such a file releases all locks
#: that the process holds on it; therefore these files are neither inspected nor copied.
_OPEN_FOR_WRITING: Counter[Path] = Counter()
_LOCK = threading.RLock()
#: Mark of a file that this process has open for writing; no other file has this value.
_WRITTEN_HERE: FileMark = ((-1, -1, b""),)


@contextmanager
def mark_open_for_writing(path: Path) -> Iterator[None]:
    """Record that this process has ``path`` open for writing while the context is active."""
    real = links.real_path(path)
    with _LOCK:
        _OPEN_FOR_WRITING[real] += 1
    try:
        yield
    finally:
        with _LOCK:
            _OPEN_FOR_WRITING[real] -= 1


def create_index(db: apsw.Connection, base_id: str, now_ms: int) -> None:
    """Create an empty index of the base ``base_id`` in one transaction. A file that has tables is not changed."""
    if not _has_no_schema(db):
        return
    with sqlite.transaction(db):
        if not _has_no_schema(db):
            return  # another process was faster
        for statement in (*schema.TABLES, schema.FULL_TEXT, *schema.INDEXES, *schema.TRIGGERS):
            db.execute(statement)
        db.execute(
            "INSERT INTO meta (id, schema_version, base_id, created_at, updated_at) VALUES (1, ?, ?, ?, ?)",
            (schema.SCHEMA_VERSION, base_id, now_ms, now_ms),
        )


def _has_no_schema(db: apsw.Connection) -> bool:
    """Whether a database has no tables."""
    return db.execute("SELECT 1 FROM sqlite_schema").fetchone() is None


def check_identity(db: apsw.Connection, path: Path, base_id: str | None) -> None:
    """Check that a file is a complete index in the current version, of the base ``base_id`` (None: of any base).

    Raises:
        IndexIncomplete: a table, a trigger or the identity row is missing.
        IndexVersionUnknown: the file has another version.
        IndexForeign: the file is the index of another base.
        apsw.Error: the file cannot be read.
    """
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    missing = [name for name in (*_TABLES, *_TRIGGERS) if name not in names]
    # The version is checked first: another version may have other tables.
    row: Any = None
    if "meta" in names:
        row = db.execute("SELECT schema_version, base_id FROM meta WHERE id = 1").fetchone()
    if row is not None and row[0] != schema.SCHEMA_VERSION:
        raise IndexVersionUnknown(path=path, found=row[0], known=schema.SCHEMA_VERSION)
    if missing or row is None:
        raise IndexIncomplete(path=path, missing=join_list(missing) or tr("the identity row"))
    found = row[1]
    if base_id is not None and found != base_id:
        advice = tr("use the index in that base's own folder")
        raise IndexForeign(path=path, found=found, base=base_id, advice=advice)


class _FileChanged(Exception):
    """The file changed while it was read."""


class IndexReader:
    """Reads an index without creating files beside it; every read sees the current state of the file.

    SQLite does not lock a file that is opened ``immutable``, so a read during a write could mix the old and the new
    state. Therefore the marks of the file are compared before and after each read, and a read that met a change is
    repeated.
    """

    def __init__(self, path: Path, base_id: str) -> None:
        self._path = links.real_path(path)
        self._base = base_id
        self._stack = ExitStack()
        self._db: apsw.Connection | None = None
        self._mark: FileMark = ()
        self.run(lambda _: None)

    def run(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Run ``query`` with a connection to the file, so that it sees a single state of the file; return its result.

        Raises:
            IndexHotJournal: the file has an unfinished transaction.
            IndexBusy: another program keeps writing to the file.
            SourceNotFound, SourceUnreadable: the file is missing or cannot be read.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(PAUSE)
            if self._is_written():
                return self._run_beside_writer(query)
            try:
                return self._run_once(query)
            except _FileChanged:
                continue
            except IndexHotJournal:
                # The journal may belong to a program that is writing right now.
                if attempt == ATTEMPTS - 1:
                    raise
        raise IndexBusy(path=self._path)

    def _run_once(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Run a query; raises _FileChanged if the file changed while it was read."""
        mark = self._read_marks()
        if mark == _WRITTEN_HERE:
            raise _FileChanged
        try:
            result = query(self._connection(mark))
        except RegraftError:
            raise
        except READ_ERRORS as error:
            self.close()
            if self._read_marks() == mark:
                raise SourceUnreadable(path=self._path, reason=error) from error
            raise _FileChanged from error
        if self._read_marks() != mark:
            raise _FileChanged
        return result

    def _connection(self, mark: FileMark) -> apsw.Connection:
        """Return a connection to the file in the state ``mark``, reused if possible; a new one is checked first."""
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
            db = opened.enter_context(sqlite.open_readonly(self._path))
            check_identity(db, self._path, self._base)
            self._db, self._mark, self._stack = db, mark, opened.pop_all()
        return db

    def _is_written(self) -> bool:
        """Whether this process has the index open for writing."""
        return _OPEN_FOR_WRITING[self._path] > 0

    def _run_beside_writer(self, query: Callable[[apsw.Connection], Result]) -> Result:
        """Run a query with SQLite's own locks, because this process has the file open for writing."""
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
        """Close the file. The next :meth:`run` opens it again."""
        self._stack.close()
        self._db = None

    def _read_marks(self) -> FileMark:
        """Return the state of the file, its log and its journal, to notice changes."""
        with _LOCK:
            if self._is_written():
                return _WRITTEN_HERE
            return tuple(
                _read_file_state(self._path.with_name(self._path.name + suffix)) for suffix in ("", "-wal", "-journal")
            )


def _read_file_state(path: Path) -> tuple[int, int, bytes] | None:
    """Return (size, modification time in ns, first bytes) of a file, to notice changes; None if it is missing."""
    try:
        status = file_paths.stat(path)
        if not file_paths.is_file(path):
            return status.st_size, status.st_mtime_ns, b""
        with links.open_for_reading(path) as file:
            # A database header contains a change counter, a log header a salt.
            return status.st_size, status.st_mtime_ns, file.read(100)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceUnreadable(path=path, reason=error.strerror) from error
