"""Open SQLite databases: for reading without a trace, for writing, in temporary files; transactions.

No other module opens a database. Every connection to a file is guarded against the file's own definitions
(:mod:`regraft.disk.untrusted_sqlite`).

Reading leaves no trace: an ordinary read-only connection to a file in WAL mode creates ``-wal`` and ``-shm`` beside it.
So a file is opened ``immutable``, or read from a temporary copy if a log or journal with content is beside it
(``docs/formats/index.md``, "Reading without a trace").
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import apsw
import msgspec

from regraft.disk import durable, file_paths, links, scratch, untrusted_sqlite
from regraft.disk.untrusted_sqlite import (
    COMPANION_SUFFIXES,
    copy_companion,
    find_companions,
    read_start,
)
from regraft.errors import TemporaryCopyFailed, VectorExtensionUnusable
from regraft.language import tr

logger = logging.getLogger(__name__)

#: How long a writer waits for another one, in ms.
BUSY_TIMEOUT_MS = 5_000

#: Errors that the contents of a file cause.
CONTENT_ERRORS = (
    apsw.NotADBError,
    apsw.CorruptError,
    apsw.FormatError,
    apsw.SQLError,
    apsw.ConstraintError,
    apsw.MismatchError,
    apsw.TooBigError,
    apsw.AbortError,
)
#: Errors that the system causes, whatever the contents of the file.
SYSTEM_ERRORS = (apsw.IOError, apsw.FullError, apsw.CantOpenError, apsw.NoMemError, apsw.InterruptError)
#: Extended result codes of failed writes. While a file is only read, these concern SQLite's own temporary files.
_WRITE_FAILURES = frozenset(
    {
        apsw.SQLITE_FULL,
        apsw.SQLITE_IOERR_WRITE,
        apsw.SQLITE_IOERR_FSYNC,
        apsw.SQLITE_IOERR_DIR_FSYNC,
        apsw.SQLITE_IOERR_TRUNCATE,
        apsw.SQLITE_IOERR_SHMOPEN,
        apsw.SQLITE_IOERR_SHMSIZE,
        apsw.SQLITE_IOERR_SHMMAP,
        apsw.SQLITE_IOERR_GETTEMPPATH,
    }
)
#: Format versions (at _VERSIONS) in the header of a database that uses a rollback journal.
_WITHOUT_LOG = b"\1\1"
_VERSIONS = slice(18, 20)


def is_write_failure(error: BaseException) -> bool:
    """Whether an error says that SQLite or the system cannot write (disk full, file size limit).

    Such an error is never the fault of the file that is read.
    """
    if isinstance(error, OSError):
        return error.errno in durable.NO_ROOM
    return isinstance(error, apsw.Error) and getattr(error, "extendedresult", None) in _WRITE_FAILURES


def load_vector_extension(connection: apsw.Connection) -> None:
    """Load the functions of sqlite-vec (``vec_distance_cosine``…) into ``connection``, without its virtual tables.

    Raises:
        VectorExtensionUnusable: the package is missing, or its library cannot be loaded.
    """
    try:
        extension = _find_vector_extension()
        connection.enable_load_extension(True)
        connection.load_extension(extension)
        connection.enable_load_extension(False)
    except (ImportError, OSError, apsw.ExtensionLoadingError) as error:
        raise VectorExtensionUnusable(reason=error) from error
    untrusted_sqlite.drop_modules(connection)


def _find_vector_extension() -> str:
    """Path of the sqlite-vec library, found without importing its package where possible."""
    # Importing the package would import NumPy too, if it is installed, which takes longer than many a command.
    spec = find_spec("sqlite_vec")
    if spec is not None and spec.origin is not None and any(Path(spec.origin).parent.glob("vec0.*")):
        # SQLite takes the path without its file extension.
        return str(Path(spec.origin).with_name("vec0"))
    import sqlite_vec  # noqa: PLC0415 - see above; only the package knows where its library is

    return str(sqlite_vec.loadable_path())


#: SQLite may apply the log or journal to a copy.
_READ_COPY = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


@contextmanager
def open_readonly(
    path: Path, *, vectors: bool = False, work: Path | None = None, beside_writers: bool = False
) -> Iterator[apsw.Connection]:
    """Open ``path`` for reading without a trace and close it at the end.

    Args:
        path: a SQLite file; symbolic links are followed.
        vectors: load sqlite-vec.
        work: folder for a temporary copy, which is made only if a log or journal is beside the file (default: the
            system's temporary folder).
        beside_writers: other programs may write to the file: use SQLite's locks, if that leaves no trace. Without
            locks, a file that is being written can look damaged.

    Raises:
        apsw.Error: it is not a database, or damaged.
        OSError: it cannot be read.
        TemporaryCopyFailed: it has to be copied, and the copy cannot be written.
    """
    if beside_writers and _can_use_locks(real := links.real_path(path)):
        files = (real, *find_companions(real))
        yield from _guard_reader(
            apsw.Connection(untrusted_sqlite.database_uri(real, mode="ro"), flags=_READ_ONLY), files, vectors
        )
        return
    with _traceless_source(path, work) as (address, flags, files):
        yield from _guard_reader(apsw.Connection(address, flags=flags), files, vectors)


@contextmanager
def attach_readonly(connection: apsw.Connection, path: Path, name: str) -> Iterator[None]:
    """Attach the file ``path`` to a connection under the schema name ``name`` within the context.

    The file is read without a trace, as by :func:`open_readonly`.
    No transaction may be open at the beginning or at the end. The file's own definitions are not trusted.

    Raises:
        apsw.Error: it is not a database, is damaged, or uses another text encoding than the connection's file.
        OSError: it cannot be read.
    """
    with _traceless_source(path, None) as (address, _, _):
        untrusted_sqlite.guard_connection(connection)
        connection.execute(f"ATTACH ? AS {name}", (address,))
        try:
            yield
        except BaseException:
            # The exception may have left a query open; then the file stays attached until the connection is closed.
            with suppress(apsw.Error):
                _detach(connection, name)
            raise
        _detach(connection, name)


def _detach(connection: apsw.Connection, name: str) -> None:
    """Detach the database with the schema name ``name``, after rolling back an open transaction."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"DETACH {name}")


def _can_use_locks(real: Path) -> bool:
    """Whether SQLite can read the file at a resolved path with locks and without a trace.

    It cannot if the file uses a write-ahead log, or if a writer that has ended left the journal beside the file.
    """
    if read_start(real, _VERSIONS.stop)[_VERSIONS] != _WITHOUT_LOG:
        return False
    if real.with_name(f"{real.name}-wal").exists():
        # SQLite would treat any file of this name as a log, and create its index.
        return False
    connection = apsw.Connection(untrusted_sqlite.database_uri(real, mode="ro"), flags=_READ_ONLY)
    try:
        untrusted_sqlite.guard_connection(connection)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except (apsw.CantOpenError, apsw.ReadOnlyError):
        return False
    finally:
        connection.close(force=True)
    return True


@contextmanager
def _traceless_source(path: Path, work: Path | None) -> Iterator[tuple[str, int, tuple[Path, ...]]]:
    """Yield how to open a file without a trace: URI, open flags, and the files on disk that hold the content.

    A file with a log or journal is opened as a temporary copy in ``work`` (None: the system's temporary folder).
    """
    real = links.real_path(path)
    untrusted_sqlite.refuse_special_file(real)
    while beside := find_companions(real):
        logger.info("%s is read from a copy, because %s exists beside it", real, beside[0].name)
        with scratch.temporary_folder(work) as folder:
            copy = folder / "copy.sqlite"
            try:
                durable.copy_file(real, copy)
                is_whole = all(copy_companion(file, copy, file.name[len(real.name) :]) for file in beside)
            except OSError as error:
                # Errors in a folder that the caller named are the caller's to report.
                if error.errno in durable.NO_ROOM and work is None:
                    reason = error.strerror or error
                    raise TemporaryCopyFailed(path=path, folder=scratch.temporary_root(), reason=reason) from error
                raise
            if is_whole:
                yield untrusted_sqlite.database_uri(copy, mode="rw"), _READ_COPY, (real, *beside)
                return
    yield untrusted_sqlite.database_uri(real, mode="ro", immutable=1), _READ_ONLY, (real,)


def _guard_reader(connection: apsw.Connection, files: Iterable[Path], vectors: bool) -> Iterator[apsw.Connection]:
    """Yield a connection that is restricted to reading an untrusted database, and close it afterwards.

    The content of the database is in ``files``: values cannot be longer. ``vectors`` loads sqlite-vec.
    """
    try:
        untrusted_sqlite.guard_connection(connection)
        untrusted_sqlite.limit_value_length(connection, files)
        connection.execute("PRAGMA query_only = 1")
        if vectors:
            load_vector_extension(connection)
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """Context whose statements are one transaction: committed at the end, rolled back if an exception leaves it."""
    try:
        # An interrupt here may come after BEGIN has taken effect.
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back already if the disk is full.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def json_array(values: Iterable[str]) -> str:
    """Encode texts as a JSON array, so that ``json_each`` can turn one SQL parameter into many values."""
    return msgspec.json.encode(list(values)).decode()


def sync_every_commit(connection: apsw.Connection) -> None:
    """Make every commit from now on survive a power cut right after it.

    A transaction ends with the removal of its journal. Unless the folder is flushed then, the journal can reappear
    after a power cut and roll the transaction back, and what another file has recorded about it would be wrong.

    Raises:
        apsw.Error: the file cannot be read.
    """
    connection.execute("PRAGMA synchronous = EXTRA")


@contextmanager
def open_writable(path: Path, *, create: bool = False) -> Iterator[apsw.Connection]:
    """Open ``path`` for writing, with foreign keys enforced, and close it at the end.

    It must be below a writable root, and neither it nor SQLite's files beside it may be a link. The file's own triggers
    do not run.

    Raises:
        LinkInStore, OutsideStore: it may not be written to.
        JournalNamesAnother: SQLite would remove another file with its journal.
        apsw.Error: it cannot be opened, or (``create=False``) does not exist.
        OSError: its folder cannot be examined.
    """
    real = untrusted_sqlite.require_writable_database(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_CREATE if create else 0)
    flags |= apsw.SQLITE_OPEN_NOFOLLOW
    connection = apsw.Connection(untrusted_sqlite.database_uri(real, mode="rwc" if create else "rw"), flags=flags)
    try:
        untrusted_sqlite.guard_connection(connection)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA foreign_keys = ON")
        # Has an effect on macOS only: see durable.flush.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def open_scratch() -> Iterator[apsw.Connection]:
    """Open a temporary database, which moves to a temporary file when it grows large, and delete it at the end."""
    # With URIs, as which other files are attached.
    connection = apsw.Connection("", flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI)
    try:
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def open_in_memory() -> Iterator[apsw.Connection]:
    """Open a database in memory, with foreign keys enforced."""
    connection = apsw.Connection(":memory:")
    try:
        untrusted_sqlite.guard_connection(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection
    finally:
        connection.close(force=True)


def table_names(db: apsw.Connection) -> set[str]:
    """Return the names of the tables of an open database."""
    rows = db.execute("SELECT CAST(name AS TEXT) FROM sqlite_schema WHERE type = 'table'")
    return {str(name) for (name,) in rows}


def has_own_content(db: apsw.Connection, tables: Sequence[str], invalid: Mapping[str, str]) -> bool:
    """Check that a SQLite file has exactly the schema and the values that regraft writes; return False if it is empty.

    A run that was killed right after it created the file leaves an empty one.

    Args:
        db: the file.
        tables: the CREATE statements of the schema.
        invalid: an SQL condition for each table that no row written by regraft meets.

    Raises:
        apsw.Error: regraft has not written the schema or a row, or a page is damaged.
    """
    found = db.execute("SELECT sql FROM sqlite_schema").fetchall()
    if not found:
        return False
    # SQLite's own indexes of primary keys have no SQL.
    statements = [normalize_statement(str(sql)) for (sql,) in found if sql is not None]
    if sorted(statements) != sorted(map(normalize_statement, tables)):
        raise apsw.FormatError(tr("its schema is not the one that regraft writes"))
    for table, condition in invalid.items():
        if db.execute(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1").get is not None:
            raise apsw.FormatError(tr("it has values of unexpected types"))
    return True


def normalize_statement(sql: str) -> str:
    """Return a CREATE statement as SQLite keeps it, with single blanks."""
    return " ".join(sql.replace(" IF NOT EXISTS", "").split())


# Detecting that a file was written to while it was read. A source is opened as if no program wrote to it, which leaves
# no trace; so what was read is judged only if the file did not change.


#: Message about a file that changed.
CHANGED_DURING_READ = tr("it changed while it was read; close the application that uses it and run the command again")
#: The header of a database counts its transactions; that of a log changes when the log restarts.
_HEADER_BYTES = 100

FileState = tuple[tuple[object, ...], ...]


def read_file_state(path: Path) -> FileState:
    """Return a value that changes when a SQLite file is written to.

    It has the size, time of change (ns), inode and first bytes of the file, of its log and of its journal.
    """
    return tuple(
        _read_file_state(path.with_name(f"{path.name}{end}")) for end in ("", *COMPANION_SUFFIXES) if end != "-shm"
    )


def _read_file_state(path: Path) -> tuple[object, ...]:
    """Return size, time, inode and header of a file; empty if it cannot be read."""
    try:
        status = file_paths.stat(path)
        if not file_paths.is_file(path):
            return ()
        with links.open_for_reading(path) as file:
            return status.st_size, status.st_mtime_ns, status.st_ino, file.read(_HEADER_BYTES)
    except (OSError, ValueError):
        return ()
