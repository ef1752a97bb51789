"""Putting files and folders in place of others in one step, and back.

What was there is kept below ``.regraft`` under another name: nothing is copied, and a kill leaves the one or the other
(``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import apsw

from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.checksums import Update, update_in_background
from regraft.disk.untrusted_sqlite import quote_name
from regraft.errors import CopyDiffers, StoreBusy, StoreNotWritable, StoreOnTwoDisks
from regraft.language import tr
from regraft.stores import systems

# Copies of SQLite files: page by page, as their readers see them, and proven where somebody may need them.


#: Pages copied at once.
_PAGES = 4_096
#: What SQLite's check says of rows that their own table would refuse, and of indexes that are no pages of the file.
_OWN_AFFAIRS = ("CHECK constraint", "NULL value in", "value in", "FTS", "virtual table")


def copy_database(path: Path, new: Path) -> None:
    """Copy a SQLite file page by page as its readers see it now, with what its log holds.

    Raises:
        apsw.Error: it cannot be read or written.
    """
    with sqlite.open_readonly(path) as source:
        _copy_pages(source, new)


def _copy_pages(source: apsw.Connection, new: Path) -> None:
    with sqlite.open_writable(new, create=True) as copy, copy.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)


def back_up_database(path: Path, new: Path) -> None:
    """Copy a SQLite file that this process has locked, and prove the copy.

    Raises:
        CopyDiffers: the copy is damaged.
        apsw.Error, OSError: it cannot be read or written.
    """
    durable.make_folders(new.parent)
    # Another way than SQLite's of closing the file would let go of the lock.
    with sqlite.open_writable(path) as source:
        pages = source.execute("PRAGMA page_count").get
        _copy_pages(source, new)
    with sqlite.open_readonly(new) as copy:
        damage = find_damage(copy)
        if copy.execute("PRAGMA page_count").get != pages:
            damage = tr("pages are missing")
    if damage is not None:
        raise CopyDiffers(path=new, reason=damage)
    durable.sync_file(new)
    durable.sync_folder(new.parent)


def find_table_damage(db: apsw.Connection) -> str | None:
    """Return what is wrong with the tables of an index by SQLite's own check; None where nothing is.

    Full-text tables are left out: they follow from the others, and reading them takes longer than all the rest.

    Raises:
        apsw.Error: it is too damaged to be checked.
    """
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    tables = [(str(name), str(sql)) for name, sql in db.execute(query)]
    virtual = tuple(name for name, sql in tables if sql.upper().startswith("CREATE VIRTUAL"))
    for name, _ in tables:
        if not name.startswith(virtual) and not name.startswith("sqlite_"):
            damage = _damage(db, f"quick_check({untrusted_sqlite.quote_name(name)})")
            if damage is not None:
                return damage
    return None


def find_damage(db: apsw.Connection) -> str | None:
    """Return what is wrong with a file by SQLite's own check; None where nothing is.

    What rows and full-text indexes say is the application's own affair.

    Raises:
        apsw.Error: it is too damaged to be checked.
    """
    return _damage(db, "quick_check")


def _damage(db: apsw.Connection, check: str) -> str | None:
    for (found,) in db.execute(f"PRAGMA {check}"):
        message = str(found)
        if message != "ok" and not any(word in message for word in _OWN_AFFAIRS):
            return message
    return None


#: FTS5 keeps what it has in these tables, besides those that it says are virtual.
_SHADOWS = ("data", "idx", "docsize", "config", "content")
#: Tables that hold nothing: numbers that were given, and who may write to a database of Chroma's.
_EMPTY = {"sqlite_sequence", "acquire_write"}
#: Read at once.
CHUNK_BYTES = 4 << 20
#: How a mark begins that is one of bytes.
_OF_BYTES = "bytes "
#: How the mark of a SQLite file begins that is one of its rows.
_OF_ROWS = "rows "
_HEADER_BYTES = 100
#: Where a SQLite header has its write and read versions, its change counter, and for which of these it holds.
_OPENING = (slice(18, 20), slice(24, 28), slice(92, 100))


def fingerprint(path: Path) -> str | None:
    """Return what tells whether a file or folder was changed: a hash of what is in it; None where nothing is.

    Of a SQLite file it is what its rows say, in any order: that it was opened, or changed and changed back, does not
    count, nor do the numbers of a full-text index and those that counters give next. Of a folder of Chroma's it is what
    its database says: the other files follow from that, and are written whenever they are opened.
    """
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        parts = (f"{name} {_file_mark(path / name)}\n" for name in _telling(path))
        return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return _file_mark(path) if os.path.lexists(path) else None


def _telling(path: Path) -> list[str]:
    """Return the names of the files that tell whether a folder was changed."""
    for system in systems.all_systems():
        if system.folder_file is not None and (path / system.folder_file).is_file():
            return [system.folder_file]
    return sorted(_names(path))


def bytes_fingerprint(path: Path) -> str | None:
    """Return what tells whether the bytes of a file or folder were changed; None where nothing is.

    What opening changes in a SQLite file does not count, so that of one that somebody only read it stays the same. It
    takes no longer than reading the bytes, where :func:`mark_of` reads every row.
    """
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        return folder_fingerprint({name: _bytes_mark(path / name) for name in _names(path)})
    return f"{_OF_BYTES}{_bytes_mark(path)}" if os.path.lexists(path) else None


def folder_fingerprint(settled: Mapping[str, str]) -> str:
    """Return what :func:`bytes_mark_of` says of a folder, of the digests of its files by their names."""
    whole = hashlib.sha256()
    for name in sorted(settled):
        whole.update(f"{name} {settled[name]}\n".encode("utf-8", "surrogatepass"))
    return f"{_OF_BYTES}{whole.hexdigest()}"


def _odd_mark(path: Path) -> str | None:
    """Return the mark of what is no plain file; None of one."""
    mode = file_paths.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return f"link {path.readlink()}"
    return None if stat.S_ISREG(mode) else f"no file {stat.S_IFMT(mode):o}"


def _bytes_mark(path: Path) -> str:
    odd = _odd_mark(path)
    if odd is not None:
        return odd
    if untrusted_sqlite.find_companions(links.real_path(path)) and untrusted_sqlite.is_database(path):
        with durable.temporary_folder() as folder:
            copy = folder / "copy.sqlite"
            copy_database(path, copy)
            return FileDigest.of(copy).settled
    return FileDigest.of(path).settled


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells whether a file was written to or is another, without reading it; None where nothing is."""
    try:
        status = file_paths.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_changed(path: Path, mark: str | None) -> bool:
    """Tell whether a file or folder is another than when it had a mark, of either kind."""
    if mark is not None and mark.startswith(_OF_BYTES):
        return bytes_fingerprint(path) != mark
    if fingerprint(path) == mark:
        return False
    # Marks of earlier versions include the tables with counters.
    is_by_rows = mark is not None and mark.startswith(_OF_ROWS) and path.is_file()
    return not (is_by_rows and _file_mark(path, without=frozenset()) == mark)


class FileDigest:
    """The SHA-256 of a file's bytes, with the header of a SQLite file apart."""

    def __init__(self) -> None:
        self._head = b""
        self._rest = hashlib.sha256()

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        """Return that of a file on disk.

        Raises:
            OSError: it cannot be read.
        """
        digest = cls()
        with links.open_for_reading(path, buffering=0) as file, digest.updating(path) as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
        return digest

    def updating(self, path: Path) -> AbstractContextManager[Update]:
        """Give what adds the bytes of a file: of a large one in the background."""
        return (
            update_in_background(self.update)
            if file_paths.lstat(path).st_size > CHUNK_BYTES
            else nullcontext(self.update)
        )

    def update(self, chunk: bytes) -> None:
        """Add the bytes that follow."""
        missing = _HEADER_BYTES - len(self._head)
        if missing > 0:
            self._head += chunk[:missing]
            chunk = chunk[missing:]
        self._rest.update(chunk)

    @property
    def exact(self) -> str:
        """Return what every byte counts for."""
        return f"{self._head.hex()} {self._rest.hexdigest()}"

    @property
    def settled(self) -> str:
        """Return the same without what opening changes: whether a log is kept, and counters of changes."""
        head = bytearray(self._head)
        if head.startswith(untrusted_sqlite.MAGIC) and len(head) == _HEADER_BYTES:
            for part in _OPENING:
                head[part] = bytes(part.stop - part.start)
        return f"{bytes(head).hex()} {self._rest.hexdigest()}"


def _names(folder: Path) -> Iterator[str]:
    for place, folders, files in file_paths.walk(folder, durable.raise_unless_missing):
        inside = Path(place).relative_to(folder)
        yield from (str(inside / name) for name in files if not name.endswith(untrusted_sqlite.COMPANION_SUFFIXES))
        yield from (str(inside / name) for name in folders if file_paths.is_link(Path(place, name)))


def _file_mark(path: Path, without: frozenset[str] | None = None) -> str:
    """Return the mark of a file; of a SQLite file by its rows, ``without`` some tables (default: those of counters)."""
    odd = _odd_mark(path)
    if odd is not None:
        return odd
    if untrusted_sqlite.is_database(path):
        try:
            return f"{_OF_ROWS}{_rows_mark(path, systems.counter_tables() if without is None else without)}"
        except (*sqlite.CONTENT_ERRORS, UnicodeDecodeError):
            pass  # damaged: its bytes tell. A disk that fails now may not do so later, when the mark is compared.
    with links.open_for_reading(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows_mark(path: Path, without: frozenset[str]) -> str:
    total = 0
    with sqlite.open_readonly(path) as db:
        for table in sorted(set(_ordinary_tables(db)) - without):
            columns = [
                row[1] for row in db.execute(f"PRAGMA table_info({quote_name(table)})") if str(row[1]) != "fts_rowid"
            ]
            wanted = ", ".join(f"typeof({quote_name(name)}), CAST({quote_name(name)} AS BLOB)" for name in columns)
            for row in db.execute(f"SELECT {wanted} FROM {quote_name(table)}"):
                # A sum: no order of rows is any order of theirs.
                total += int.from_bytes(hashlib.blake2b(repr((table, row)).encode(), digest_size=16).digest())
    return f"{total % (1 << 128):032x}"


def _ordinary_tables(db: apsw.Connection) -> list[str]:
    found = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    virtual = [str(name) for name, sql in found if str(sql).upper().startswith("CREATE VIRTUAL")]
    derived = {*virtual, *(f"{name}_{shadow}" for name in virtual for shadow in _SHADOWS), *_EMPTY}
    return sorted(str(name) for name, _ in found if name not in derived and not str(name).startswith("sqlite_stat"))


# --- moves -----------------------------------------------------------------------------------------------------------


def flush_log(path: Path) -> None:
    """Work the log or journal beside a SQLite file into it, as its next writer would, and make sure of being alone.

    What is no SQLite file, or too damaged to be opened, is left as it is.

    Raises:
        StoreBusy: another program has it open.
        StoreNotWritable: it may not be written to.
    """
    if not untrusted_sqlite.is_database(path):
        return
    try:
        with sqlite.open_writable(path) as db:
            if db.readonly("main"):
                raise StoreNotWritable(path=path, reason=tr("it is read-only"))
            db.set_busy_timeout(0)
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("BEGIN EXCLUSIVE")
            db.execute("COMMIT")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    except (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError) as error:
        raise StoreNotWritable(path=path, reason=error) from error
    except (apsw.NotADBError, apsw.CorruptError) as error:
        # A log that stays would be taken for that of what comes in the file's place.
        if untrusted_sqlite.find_companions(links.real_path(path)):
            raise StoreNotWritable(
                path=path, reason=tr("its log cannot be worked into it: {error}", error=error)
            ) from error


def find_databases(path: Path) -> list[Path]:
    """Return the SQLite files that a file or folder is, or holds, in the order of names; links to folders hold none."""
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        inside = (
            Path(place, name)
            for place, _, names in file_paths.walk(path, durable.raise_unless_missing)
            for name in names
        )
        return sorted(file for file in inside if not file_paths.is_link(file) and untrusted_sqlite.is_database(file))
    return [path] if untrusted_sqlite.is_database(path) else []


def flush_logs(path: Path) -> None:
    """Do what :func:`settle_log` does for every SQLite file of a file or folder.

    Raises:
        StoreBusy, StoreNotWritable
    """
    for file in find_databases(path):
        flush_log(file)


def swap(final: Path, new: Path | None, kept: Path) -> None:
    """Put ``new`` where ``final`` is and what was there to ``kept``; each of both may be nothing.

    Raises:
        StoreOnTwoDisks, OSError
    """
    try:
        if os.path.lexists(final):
            durable.make_folders(kept.parent)
            # A folder never takes the place of a file that is still there.
            if new is not None and not file_paths.is_folder(new) and _linked(final, kept):
                durable.sync_folder(kept.parent)
            else:
                durable.replace(final, kept)
        if new is not None:
            durable.make_folders(final.parent)
            durable.replace(new, final)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise StoreOnTwoDisks(path=final, root=kept.parent) from error
        raise


def swap_back(final: Path, kept: Path | None, aside: Path) -> None:
    """Put ``kept`` back where ``final`` is; what stood there goes to ``aside``, which the caller removes."""
    if os.path.lexists(final):
        durable.make_folders(aside.parent, flush=False)
        if not (kept is not None and file_paths.is_file(kept) and _linked(final, aside)):
            durable.replace(final, aside)
    if kept is not None:
        durable.make_folders(final.parent)
        durable.replace(kept, final)


def _linked(path: Path, kept: Path) -> bool:
    """Give a file a second name, so that its place is never empty; False where that cannot be."""
    return not file_paths.is_folder(path) and not file_paths.is_link(path) and durable.try_link(path, kept)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; links are not followed."""
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        return sum(file_paths.lstat(path / name).st_size for name in _names(path))
    return file_paths.lstat(path).st_size if file_paths.exists(path) or file_paths.is_link(path) else 0


def remove_empty_folders(folder: Path, stop: Path) -> None:
    """Remove empty folders from ``folder`` upwards, below ``stop``."""
    while folder != stop and stop in folder.parents:
        try:
            durable.remove_folder(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
