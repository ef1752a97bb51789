"""The one module that opens SQLite files.

Reading never leaves a trace: an ordinary read-only open of a file in WAL mode creates ``-wal`` and ``-shm`` beside it,
so a file is opened ``immutable``, or, where a log or journal with content lies beside it, read from a temporary copy
(``docs/formats/index.md``, "Reading without a trace").
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path, PurePath, PureWindowsPath
from urllib.parse import quote

import apsw

from regraft.disk import durable, file_paths, links, untrusted_sqlite, writable
from regraft.disk.untrusted_sqlite import (
    COMPANION_SUFFIXES,
    copy_companion,
    find_companions,
    find_shared_journal,
    is_companion,
    read_start,
)
from regraft.errors import JournalNamesAnother, TemporaryCopyFailed
from regraft.language import tr

logger = logging.getLogger(__name__)

#: How long a writer waits for another one, in ms.
BUSY_TIMEOUT_MS = 5_000

#: What SQLite fails with because of what a file holds, and not because of the system.
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
#: What SQLite fails with because of the system, whatever a file holds.
SYSTEM_ERRORS = (apsw.IOError, apsw.FullError, apsw.CantOpenError, apsw.NoMemError, apsw.InterruptError)
#: Extended result codes of failed writes: while a file is only read, these concern SQLite's own temporary files.
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
#: What a database's header says of one that keeps a rollback journal, at the place of :data:`_VERSIONS`.
_WITHOUT_LOG = b"\1\1"
_VERSIONS = slice(18, 20)
#: SQLite's layer for Windows that opens extended paths of any length; the usual one ends at 1,040 bytes.
_LONG_PATHS = "win32-longpath"


def _uri(path: PurePath, **options: object) -> str:
    """Return the URI by which SQLite opens a file: on Windows of a drive, a share, or an extended path (``\\\\?\\``).

    A share's name follows four slashes: behind two, SQLite expects a host and accepts no other than ``localhost``.
    """
    absolute = Path(file_paths.extended_path(path.absolute())) if isinstance(path, Path) else path
    place = quote(os.fsencode(absolute.as_posix()), safe="/:")
    if isinstance(absolute, PureWindowsPath):
        place = f"//{place}" if absolute.drive.startswith("\\\\") else f"///{place}"
        if absolute.drive.startswith("\\\\?\\") and _LONG_PATHS in apsw.vfs_names():
            options = {**options, "vfs": _LONG_PATHS}
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"file:{place}?{query}"


def is_write_failure(error: BaseException) -> bool:
    """Whether SQLite or the system could not write (disk full, file size limit): never the fault of the file read."""
    if isinstance(error, OSError):
        return error.errno in durable.NO_ROOM
    return isinstance(error, apsw.Error) and getattr(error, "extendedresult", None) in _WRITE_FAILURES


def _vectors_extension() -> str:
    """Return the path of sqlite-vec's extension, as SQLite takes it: without its ending."""
    # To import the package imports NumPy too, where that is installed, which takes longer than many a command.
    spec = find_spec("sqlite_vec")
    if spec is not None and spec.origin is not None and any(Path(spec.origin).parent.glob("vec0.*")):
        return str(Path(spec.origin).with_name("vec0"))
    import sqlite_vec  # noqa: PLC0415 - it lies elsewhere, which the package itself knows

    return str(sqlite_vec.loadable_path())


def load_vector_extension(connection: apsw.Connection) -> None:
    """Load sqlite-vec (``vec_distance_cosine`` and the like) into ``connection``; its kinds of tables stay out."""
    connection.enable_load_extension(True)
    connection.load_extension(_vectors_extension())
    connection.enable_load_extension(False)
    untrusted_sqlite.drop_modules(connection)


#: A copy is ours: its log or journal may be worked into it.
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
        beside_writers: others may write meanwhile: read through SQLite's own locks where that leaves no trace. What is
            read otherwise while somebody writes seems damaged.
        work: folder for a temporary copy, made only where a log or journal lies beside the file (default: the
            system's temporary folder).

    Raises:
        apsw.Error: it is no database, or damaged.
        OSError: it cannot be read.
        TemporaryCopyFailed: its log makes a copy necessary, and the copy cannot be written.
    """
    if beside_writers and _knows_locks(real := links.real_path(path)):
        files = (real, *find_companions(real))
        yield from _used(apsw.Connection(_uri(real, mode="ro"), flags=_READ_ONLY), files, vectors)
        return
    with _unwritten(path, work) as (address, flags, files):
        yield from _used(apsw.Connection(address, flags=flags), files, vectors)


@contextmanager
def attach_readonly(connection: apsw.Connection, path: Path, name: str) -> Iterator[None]:
    """Attach ``path`` to a connection as ``name``, read without a trace as by :func:`reading`.

    No transaction is to be open at the beginning and at the end. Nothing that the file says about itself is trusted.

    Raises:
        apsw.Error: it is no database, is damaged, or keeps its texts in another encoding than the connection's file.
        OSError: it cannot be read.
    """
    with _unwritten(path, None) as (address, _, _):
        untrusted_sqlite.guard_connection(connection)
        connection.execute(f"ATTACH ? AS {name}", (address,))
        try:
            yield
        except BaseException:
            # What stopped it may have left a query open: then the file stays attached as long as the connection lives.
            with suppress(apsw.Error):
                _detach(connection, name)
            raise
        _detach(connection, name)


def _detach(connection: apsw.Connection, name: str) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    connection.execute(f"DETACH {name}")


def _knows_locks(real: Path) -> bool:
    """Tell whether SQLite can read a file through its locks without a trace.

    It cannot where the file keeps a log, or where the journal beside it is not that of a writer at work.
    """
    if read_start(real, _VERSIONS.stop)[_VERSIONS] != _WITHOUT_LOG:
        return False
    if real.with_name(f"{real.name}-wal").exists():
        # SQLite would take it for a log, whatever it is, and make its index of it.
        return False
    connection = apsw.Connection(_uri(real, mode="ro"), flags=_READ_ONLY)
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
def _unwritten(path: Path, work: Path | None) -> Iterator[tuple[str, int, tuple[Path, ...]]]:
    """Give the URI, and the flags to open it with, under which a file can be read without a trace.

    And the files on the disk that hold what is read.
    """
    real = links.real_path(path)
    _demand_file(real)
    while beside := find_companions(real):
        logger.info("%s is read from a copy: %s lies beside it", real, beside[0].name)
        with durable.temporary_folder(work) as folder:
            copy = folder / "copy.sqlite"
            try:
                durable.copy_file(real, copy)
                is_whole = all(copy_companion(file, copy, file.name[len(real.name) :]) for file in beside)
            except OSError as error:
                # A folder that the caller names is the caller's to speak of.
                if error.errno in durable.NO_ROOM and work is None:
                    reason = error.strerror or error
                    raise TemporaryCopyFailed(path=path, folder=folder.parent, reason=reason) from error
                raise
            if is_whole:
                yield _uri(copy, mode="rw"), _READ_COPY, (real, *beside)
                return
    yield _uri(real, mode="ro", immutable=1), _READ_ONLY, (real,)


def _used(connection: apsw.Connection, files: Iterable[Path], vectors: bool) -> Iterator[apsw.Connection]:
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
    """Run statements all or none; the error that stopped them is the one that surfaces."""
    try:
        # Stopped here, it may have begun all the same.
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        # A full disk has rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def sync_every_commit(connection: apsw.Connection) -> None:
    """Let what is committed from now on survive a power cut that comes right after it.

    The journal of a transaction is removed at its end. Unless its folder is flushed then, it may be there again after a
    power cut, and takes the transaction back: what was recorded meanwhile, in another file, would be wrong.

    Raises:
        apsw.Error: the file cannot be read.
    """
    connection.execute("PRAGMA synchronous = EXTRA")


@contextmanager
def open_writable(path: Path, *, create: bool = False) -> Iterator[apsw.Connection]:
    """Open ``path`` for writing, with foreign keys enforced, and close it at the end.

    It lies in an area that may be changed, and neither it nor what SQLite keeps beside it is a link
    (:mod:`regraft.disk.writable`). No trigger of the file's runs (:mod:`regraft.disk.untrusted_sqlite`).

    Raises:
        LinkInStore, OutsideStore: it may not be written to.
        JournalNamesAnother: SQLite would remove another file with its journal.
        apsw.Error: it cannot be opened, or (``create=False``) does not exist.
        OSError: its folder cannot be looked at.
    """
    real = _writable(path)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_CREATE if create else 0)
    flags |= apsw.SQLITE_OPEN_NOFOLLOW
    connection = apsw.Connection(_uri(real, mode="rwc" if create else "rw"), flags=flags)
    try:
        untrusted_sqlite.guard_connection(connection)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.execute("PRAGMA foreign_keys = ON")
        # Counts on macOS only: see durable.flush.
        connection.execute("PRAGMA fullfsync = ON")
        connection.execute("PRAGMA checkpoint_fullfsync = ON")
        yield connection
    finally:
        connection.close(force=True)


def _demand_file(path: Path) -> None:
    """Refuse what SQLite would wait for: a pipe without a writer, a terminal.

    Raises:
        apsw.CantOpenError
    """
    try:
        mode = file_paths.stat(path).st_mode
    except OSError:
        # SQLite says itself what is wrong with it.
        return
    if stat.S_ISDIR(mode):
        # It opens one, and fails at the first page.
        raise apsw.CantOpenError(tr("unable to open database file"))
    if not stat.S_ISREG(mode):
        raise apsw.CantOpenError(tr("{name} is not a file", name=path.name))


def _writable(path: Path) -> Path:
    """Return where a database lies that may be written to, without links."""
    real = writable.require_writable(path)
    for suffix in ("", *COMPANION_SUFFIXES):
        writable.refuse_link(real.with_name(real.name + suffix), path.with_name(path.name + suffix))
        _demand_file(real.with_name(real.name + suffix))
    journal = real.with_name(real.name + "-journal")
    if is_companion(read_start(journal), "-journal"):
        try:
            shared = find_shared_journal(journal)
        except FileNotFoundError:
            shared = None  # a writer at work is done with it
        if shared is not None:
            raise JournalNamesAnother(path=journal, named=Path(shared))
    return real


@contextmanager
def open_scratch() -> Iterator[apsw.Connection]:
    """Give a database that lies in a temporary file where it grows large, and forget it at the end."""
    connection = apsw.Connection("")
    try:
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def open_in_memory() -> Iterator[apsw.Connection]:
    """Give a database that is nowhere on a disk, with foreign keys enforced, and forget it at the end."""
    connection = apsw.Connection(":memory:")
    try:
        untrusted_sqlite.guard_connection(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection
    finally:
        connection.close(force=True)


# Lock files: one process at a time does a piece of work, on every system.
#
# The lock is SQLite's, on a file without content: it needs neither ``fcntl`` nor hard links, and it ends with the process
# that holds it.


class LockHeld(Exception):
    """Another process holds the lock file."""


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold a lock file, which is made and, at the end, removed.

    Raises:
        LockHeld: another process holds it.
        apsw.Error: it cannot be made, or its file system has no locks.
    """
    with ExitStack() as stack:
        # Open only for a moment: a process that is started later may change what its own command line names, and
        # nothing else.
        with writable.allow_writes(path.parent, entries_only=True):
            db = stack.enter_context(open_writable(path, create=True))
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
            with writable.allow_writes(path.parent, entries_only=True):
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


# Whether a file was written to while it was read: what does not add up then is nobody's fault.
#
# A source is opened as if nobody wrote to it, which leaves no trace (``docs/formats/index.md``, "Reading without a
# trace"). So what was read is only judged when the file is still the one that it was.


#: What is said of a file that is not.
CHANGED_DURING_READ = tr("it changed meanwhile; close the application that uses it and run the command again")
#: A database's header counts its transactions; that of a log changes when it begins anew.
_HEADER_BYTES = 100

#: Compared as a whole.
FileState = tuple[tuple[object, ...], ...]


def read_file_state(path: Path) -> FileState:
    """Return what tells one state of a database, or of any other file, from another one.

    For the file, its log and its journal these are size, time of change (ns), inode and first bytes.
    """
    return tuple(_mark(path.with_name(f"{path.name}{end}")) for end in ("", *COMPANION_SUFFIXES) if end != "-shm")


def _mark(path: Path) -> tuple[object, ...]:
    try:
        status = file_paths.stat(path)
        if not file_paths.is_file(path):
            return ()
        with links.open_for_reading(path) as file:
            return status.st_size, status.st_mtime_ns, status.st_ino, file.read(_HEADER_BYTES)
    except (OSError, ValueError):
        return ()
