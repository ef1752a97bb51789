"""The one module that opens SQLite files.

Reading never leaves a trace: an ordinary read-only open of a file in WAL mode creates ``-wal`` and ``-shm`` beside it,
so a file is opened ``immutable``, or, where a log or journal with content lies beside it, read from a temporary copy
(``docs/formats/index.md``, "Reading without a trace").
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any
from urllib.parse import quote

import apsw

from regraft import areas, guarding, links, long_paths
from regraft.boundary_errors import JournalNamesAnother
from regraft.errors import TemporaryCopyFailed
from regraft.language import tr
from regraft.ledger import durable
from regraft.text import decode_utf8

logger = logging.getLogger(__name__)

#: How long a writer waits for another one, in ms.
BUSY_TIMEOUT_MS = 5_000

#: Files that SQLite keeps beside a database and that hold part of its content.
_COMPANIONS = ("-wal", "-journal")
#: Files that SQLite makes beside a database.
TRACES = ("-wal", "-shm", "-journal")
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
#: What every database begins with.
MAGIC = b"SQLite format 3\0"
_WAL_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
#: What a database's header says of one that keeps a rollback journal, at the place of :data:`_VERSIONS`.
_WITHOUT_LOG = b"\1\1"
_VERSIONS = slice(18, 20)
_PAGE_SIZES = {512 << shift for shift in range(8)}
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: The end of a rollback journal that names another file: how long that name is, its sum, the magic (SQLite, pager.c).
_JOURNAL_TAIL = struct.Struct(">II8s")
_MAX_NAME_BYTES = 65_536
#: SQLite's layer for Windows that opens extended paths of any length; the usual one ends at 1,040 bytes.
_LONG_PATHS = "win32-longpath"


def _uri(path: PurePath, **options: object) -> str:
    """Return the URI by which SQLite opens a file: on Windows of a drive, a share, or an extended path (``\\\\?\\``).

    A share's name follows four slashes: behind two, SQLite expects a host and accepts no other than ``localhost``.
    """
    absolute = Path(long_paths.extended(path.absolute())) if isinstance(path, Path) else path
    place = quote(os.fsencode(absolute.as_posix()), safe="/:")
    if isinstance(absolute, PureWindowsPath):
        place = f"//{place}" if absolute.drive.startswith("\\\\") else f"///{place}"
        if absolute.drive.startswith("\\\\?\\") and _LONG_PATHS in apsw.vfs_names():
            options = {**options, "vfs": _LONG_PATHS}
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"file:{place}?{query}"


def companions(path: Path) -> list[Path]:
    """Return the log or journal files beside ``path`` that hold content of it.

    They are told by their first bytes: a v1 base may well be called ``notes-wal``.
    """
    found = []
    for suffix in _COMPANIONS:
        beside = path.with_name(path.name + suffix)
        if is_companion(_first_bytes(beside), suffix):
            found.append(beside)
    return found


def is_companion(first_bytes: bytes, suffix: str) -> bool:
    """Tell whether a file that begins with these bytes is a write-ahead log or a rollback journal with content."""
    if suffix == "-wal":
        return first_bytes[:4] in _WAL_MAGIC
    return first_bytes[:8] == _JOURNAL_MAGIC


def _first_bytes(path: Path, count: int = 8) -> bytes:
    path = Path(long_paths.extended(path))
    try:
        if not path.is_file():
            return b""  # opening a pipe would wait for a writer
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        if error.errno == errno.EIO:
            # A log that is not seen is content that is lost.
            raise
        return b""


def is_database(path: Path) -> bool:
    """Tell whether a file begins like a SQLite database."""
    return _first_bytes(path, len(MAGIC)) == MAGIC


def file_mark(path: Path) -> tuple[int, int] | None:
    """Return what tells whether a database was written to since: its size and time of change (ns).

    None where no database is.
    """
    if not is_database(path):
        return None
    status = long_paths.stat(path)
    return status.st_size, status.st_mtime_ns


def missing_bytes(path: Path) -> int:
    """Return how many bytes are cut off the end of a SQLite file, by its own header.

    SQLite itself takes a page that is there in part for whole and reads the rest of it as zeros: the end of a vector
    would be zeros, in silence.
    """
    with links.reading(path) as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return 0
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    if page not in _PAGE_SIZES:
        return 0
    size = long_paths.stat(path).st_size
    # The page count in the header holds only if it was written together with the change counter.
    pages = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
    return max(0, pages * page - size, -size % page)


def is_write_failure(error: BaseException) -> bool:
    """Whether SQLite or the system could not write (disk full, file size limit): never the fault of the file read."""
    if isinstance(error, OSError):
        return error.errno in durable.NO_ROOM
    return isinstance(error, apsw.Error) and getattr(error, "extendedresult", None) in _WRITE_FAILURES


def quoted(name: str) -> str:
    """Return a name from a file's schema as it can stand in a statement."""
    return '"' + name.replace('"', '""') + '"'


def _vectors_extension() -> str:
    """Return the path of sqlite-vec's extension, as SQLite takes it: without its ending."""
    # To import the package imports NumPy too, where that is installed, which takes longer than many a command.
    spec = find_spec("sqlite_vec")
    if spec is not None and spec.origin is not None and any(Path(spec.origin).parent.glob("vec0.*")):
        return str(Path(spec.origin).with_name("vec0"))
    import sqlite_vec  # noqa: PLC0415 - it lies elsewhere, which the package itself knows

    return str(sqlite_vec.loadable_path())


def load_vectors(connection: apsw.Connection) -> None:
    """Load sqlite-vec (``vec_distance_cosine`` and the like) into ``connection``; its kinds of tables stay out."""
    connection.enable_load_extension(True)
    connection.load_extension(_vectors_extension())
    connection.enable_load_extension(False)
    guarding.drop_modules(connection)


#: A copy is ours: its log or journal may be worked into it.
_READ_COPY = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
_READ_ONLY = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI


@contextmanager
def reading(
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
        files = (real, *companions(real))
        yield from _used(apsw.Connection(_uri(real, mode="ro"), flags=_READ_ONLY), files, vectors)
        return
    with _unwritten(path, work) as (address, flags, files):
        yield from _used(apsw.Connection(address, flags=flags), files, vectors)


@contextmanager
def attached(connection: apsw.Connection, path: Path, name: str) -> Iterator[None]:
    """Attach ``path`` to a connection as ``name``, read without a trace as by :func:`reading`.

    No transaction is to be open at the beginning and at the end. Nothing that the file says about itself is trusted.

    Raises:
        apsw.Error: it is no database, is damaged, or keeps its texts in another encoding than the connection's file.
        OSError: it cannot be read.
    """
    with _unwritten(path, None) as (address, _, _):
        guarding.guard(connection)
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
    if _first_bytes(real, _VERSIONS.stop)[_VERSIONS] != _WITHOUT_LOG:
        return False
    if real.with_name(f"{real.name}-wal").exists():
        # SQLite would take it for a log, whatever it is, and make its index of it.
        return False
    connection = apsw.Connection(_uri(real, mode="ro"), flags=_READ_ONLY)
    try:
        guarding.guard(connection)
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
    while beside := companions(real):
        logger.info("%s is read from a copy: %s lies beside it", real, beside[0].name)
        with durable.temporary_folder(work) as folder:
            copy = folder / "copy.sqlite"
            try:
                durable.copy_file(real, copy)
                is_whole = all(copied_companion(file, copy, file.name[len(real.name) :]) for file in beside)
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


def copied_companion(beside: Path, copy: Path, suffix: str) -> bool:
    """Copy a log or journal beside a copy of its database; False where a writer at work is done with it meanwhile.

    A journal of a transaction over several databases names a file that they share, which SQLite removes when it has
    worked such a journal into its database. The copy does not name it: nobody else's file is to go for a copy. Where
    that file is gone, the transaction was finished, and the journal counts for nothing.

    Raises:
        OSError: it cannot be read, or the copy not be written.
    """
    target = copy.with_name(copy.name + suffix)
    try:
        shared = None if suffix == "-wal" else shared_journal(beside)
        if shared is not None and not os.path.lexists(os.fsencode(shared)):
            return True
        durable.copy_file(beside, target)
    except FileNotFoundError:
        return False
    if shared is not None:
        durable.truncate(target, target.stat().st_size - len(_JOURNAL_MAGIC))
    return True


def shared_journal(journal: Path) -> str | None:
    """Return the file that a rollback journal names at its end, as one of a transaction over several databases does.

    Raises:
        OSError: it cannot be read.
    """
    with journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _JOURNAL_TAIL.size))
        tail = file.read()
        if len(tail) < _JOURNAL_TAIL.size or not tail.endswith(_JOURNAL_MAGIC):
            return None
        length = _JOURNAL_TAIL.unpack(tail)[0]
        if not 0 < length <= min(size - len(tail), _MAX_NAME_BYTES):
            return None
        file.seek(size - len(tail) - length)
        return os.fsdecode(file.read(length).split(b"\0")[0])


def _used(connection: apsw.Connection, files: Iterable[Path], vectors: bool) -> Iterator[apsw.Connection]:
    try:
        guarding.guard(connection)
        guarding.limit_length(connection, files)
        connection.execute("PRAGMA query_only = 1")
        if vectors:
            load_vectors(connection)
        yield connection
    finally:
        connection.close(force=True)


def lenient_rows(
    connection: apsw.Connection,
    columns: Sequence[str],
    source: str,
    values: Sequence[apsw.SQLiteValue] = (),
    decode: Callable[[bytes], str] = decode_utf8,
) -> Iterator[tuple[Any, ...]]:
    """Yield columns of rows, text also where its bytes are no UTF-8 (:func:`regraft.text.decode_utf8`).

    Args:
        connection: where they are.
        columns: names of columns, as the file has them.
        source: what comes behind ``FROM``.
        values: those of its parameters.
        decode: what reads a text; of rows that are copied elsewhere :func:`regraft.text.decode_halves`.

    Raises:
        apsw.Error: the file is damaged.
    """
    names = [quoted(name) for name in columns]
    read = ", ".join(
        f"typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names
    )
    with closing(connection.cursor()) as cursor:
        for row in cursor.execute(f"SELECT {read} FROM {source}", values):
            pairs = zip(row[::2], row[1::2], strict=True)
            yield tuple(decode(value) if kind == "text" else value for kind, value in pairs)


def still(connection: apsw.Connection, columns: Iterable[str]) -> str:
    """Return the condition, with a parameter for each column, that a row still has what :func:`lenient_rows` gave."""
    function = "regraft_lenient"
    connection.create_scalar_function(function, _decoded, 1, deterministic=True)
    names = [quoted(name) for name in columns]
    return " AND ".join(
        f"CASE typeof({name}) WHEN 'text' THEN {function}(CAST({name} AS BLOB)) ELSE {name} END IS ?" for name in names
    )


def _decoded(*raw: Any) -> str:
    return decode_utf8(raw[0])


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


def keep_through_power_cuts(connection: apsw.Connection) -> None:
    """Let what is committed from now on survive a power cut that comes right after it.

    The journal of a transaction is removed at its end. Unless its folder is flushed then, it may be there again after a
    power cut, and takes the transaction back: what was recorded meanwhile, in another file, would be wrong.

    Raises:
        apsw.Error: the file cannot be read.
    """
    connection.execute("PRAGMA synchronous = EXTRA")


@contextmanager
def writing(path: Path, *, create: bool = False) -> Iterator[apsw.Connection]:
    """Open ``path`` for writing, with foreign keys enforced, and close it at the end.

    It lies in an area that may be changed, and neither it nor what SQLite keeps beside it is a link
    (:mod:`regraft.areas`). No trigger of the file's runs (:mod:`regraft.guarding`).

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
        guarding.guard(connection)
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
        mode = long_paths.stat(path).st_mode
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
    real = areas.demand(path)
    for suffix in ("", *TRACES):
        areas.refuse_link(real.with_name(real.name + suffix), path.with_name(path.name + suffix))
        _demand_file(real.with_name(real.name + suffix))
    journal = real.with_name(real.name + "-journal")
    if is_companion(_first_bytes(journal), "-journal"):
        try:
            shared = shared_journal(journal)
        except FileNotFoundError:
            shared = None  # a writer at work is done with it
        if shared is not None:
            raise JournalNamesAnother(path=journal, named=Path(shared))
    return real


@contextmanager
def scratch() -> Iterator[apsw.Connection]:
    """Give a database that lies in a temporary file where it grows large, and forget it at the end."""
    connection = apsw.Connection("")
    try:
        yield connection
    finally:
        connection.close(force=True)


@contextmanager
def in_memory() -> Iterator[apsw.Connection]:
    """Give a database that is nowhere on a disk, with foreign keys enforced, and forget it at the end."""
    connection = apsw.Connection(":memory:")
    try:
        guarding.guard(connection)
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection
    finally:
        connection.close(force=True)
