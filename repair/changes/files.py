"""Replace files and folders in one step, put them back, and recognize later changes by fingerprints.

A replaced file is moved below ``.regraft`` under another name. Nothing is copied, and after a kill either the old or
the new file is in place (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path, PurePosixPath

import apsw

from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite
from regraft.disk.checksums import Update, update_in_background
from regraft.disk.untrusted_sqlite import quote_name
from regraft.errors import CopyDiffers, StoreBusy, StoreNotWritable, StoreOnTwoDisks
from regraft.language import tr
from regraft.stores import systems

# --- copies of SQLite files ------------------------------------------------------------------------------------------

#: Pages copied in one step.
_PAGES = 4_096
#: Messages of SQLite's check that are not damage: constraint violations, and errors of virtual tables.
_NOT_DAMAGE = ("CHECK constraint", "NULL value in", "value in", "FTS", "virtual table")


def copy_database(path: Path, new: Path) -> None:
    """Copy a SQLite file page by page as readers see it now, including the content of its log.

    Raises:
        apsw.Error: the file cannot be read or the copy not written.
    """
    with sqlite.open_readonly(path) as source:
        _copy_pages(source, new)


def _copy_pages(source: apsw.Connection, new: Path) -> None:
    """Copy a database with SQLite's backup function."""
    with sqlite.open_writable(new, create=True) as copy, copy.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)


def back_up_database(path: Path, new: Path) -> None:
    """Copy a SQLite file that this process has locked, and verify the copy.

    Raises:
        CopyDiffers: the copy is damaged.
        apsw.Error, OSError: the file cannot be read or the copy not written.
    """
    durable.make_folders(new.parent)
    # Read through SQLite: closing the file in another way would release this process's lock.
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
    """Describe the first damage that SQLite's quick_check finds in the tables of an index; None if it finds none.

    Full-text tables are skipped: they are derived from the others, and checking them takes longest.

    Raises:
        apsw.Error: the file is too damaged to be checked.
    """
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    tables = [(str(name), str(sql)) for name, sql in db.execute(query)]
    virtual = tuple(name for name, sql in tables if sql.upper().startswith("CREATE VIRTUAL"))
    for name, _ in tables:
        if not name.startswith(virtual) and not name.startswith("sqlite_"):
            damage = _find_damage_in(db, f"quick_check({untrusted_sqlite.quote_name(name)})")
            if damage is not None:
                return damage
    return None


def find_damage(db: apsw.Connection) -> str | None:
    """Describe the first damage that SQLite's quick_check finds in a file; None if it finds none.

    Violated constraints and full-text indexes do not count as damage.

    Raises:
        apsw.Error: the file is too damaged to be checked.
    """
    return _find_damage_in(db, "quick_check")


def _find_damage_in(db: apsw.Connection, check: str) -> str | None:
    """Return the first message of the PRAGMA ``check`` that means damage, or None.

    ``check`` is "quick_check", perhaps with a table in parentheses.
    """
    for (found,) in db.execute(f"PRAGMA {check}"):
        message = str(found)
        if message != "ok" and not any(word in message for word in _NOT_DAMAGE):
            return message
    return None


#: Suffixes of the shadow tables in which FTS5 keeps an index.
_SHADOWS = ("data", "idx", "docsize", "config", "content")
#: Tables without content of their own: used row numbers, and the write lock of Chroma.
_UNHASHED_TABLES = {"sqlite_sequence", "acquire_write"}
#: Bytes read at once.
CHUNK_BYTES = 4 << 20
#: Prefix of fingerprints of bytes.
_BYTES_PREFIX = "bytes "
#: Prefix of fingerprints of the rows of a SQLite file.
_ROWS_PREFIX = "rows "
_HEADER_BYTES = 100
#: Fields of the SQLite header that opening a file changes: write and read version, change counter, version-valid-for.
_VOLATILE_FIELDS = (slice(18, 20), slice(24, 28), slice(92, 100))


def fingerprint(path: Path) -> str | None:
    """Hash the content of a file or folder, to recognize later changes; None if the path does not exist.

    A SQLite file is hashed by its rows in any order. Opening it, changes that were reverted, the tables of full-text
    indexes and counters do not affect the hash. A Chroma folder is hashed by its database alone: the other files are
    derived from it and are rewritten whenever they are opened.
    """
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        parts = (f"{name} {_file_fingerprint(path / name)}\n" for name in _deciding_files(path))
        return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
    return _file_fingerprint(path) if file_paths.lexists(path) else None


def _deciding_files(path: Path) -> list[str]:
    """Names of the files in a folder that decide whether the folder was changed."""
    for system in systems.all_systems():
        if system.folder_file is not None and file_paths.is_file(path / system.folder_file):
            return [system.folder_file]
    return sorted(_file_names(path))


def bytes_fingerprint(path: Path) -> str | None:
    """Hash the bytes of a file or folder, to recognize later changes; None if the path does not exist.

    Header fields that change when a SQLite file is opened are left out. Much faster than :func:`fingerprint`, which
    reads every row.
    """
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        return folder_fingerprint({name: _bytes_digest(path / name) for name in _file_names(path)})
    return f"{_BYTES_PREFIX}{_bytes_digest(path)}" if file_paths.lexists(path) else None


def folder_fingerprint(files: Mapping[str, str]) -> str:
    """The result of :func:`bytes_fingerprint` for a folder, from the digests of its files by name."""
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name} {files[name]}\n".encode("utf-8", "surrogatepass"))
    return f"{_BYTES_PREFIX}{whole.hexdigest()}"


def _special_file_mark(path: Path) -> str | None:
    """Return the fingerprint of a link or special file; None for a regular file."""
    mode = file_paths.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return f"link {path.readlink()}"
    return None if stat.S_ISREG(mode) else f"no file {stat.S_IFMT(mode):o}"


def _bytes_digest(path: Path) -> str:
    """Hash a file without SQLite's counters; a database with a log is hashed with the content of the log."""
    odd = _special_file_mark(path)
    if odd is not None:
        return odd
    if untrusted_sqlite.has_log(path):
        with scratch.temporary_folder() as folder:
            copy = folder / "copy.sqlite"
            copy_database(path, copy)
            return FileDigest.of(copy).without_counters
    return FileDigest.of(path).without_counters


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return inode, size and modification time (ns) of a file, to recognize a later write; None if it is missing."""
    try:
        status = file_paths.lstat(path)
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def is_changed(path: Path, mark: str | None) -> bool:
    """Whether a file or folder differs from a fingerprint of its bytes or rows; ``mark`` None: the path was missing."""
    if mark is not None and mark.startswith(_BYTES_PREFIX):
        return bytes_fingerprint(path) != mark
    if fingerprint(path) == mark:
        return False
    # Fingerprints of earlier releases include the tables with counters.
    is_by_rows = mark is not None and mark.startswith(_ROWS_PREFIX) and file_paths.is_file(path)
    return not (is_by_rows and _file_fingerprint(path, without=frozenset()) == mark)


class FileDigest:
    """SHA-256 of a file, with the header of a SQLite file kept apart."""

    def __init__(self) -> None:
        self._head = b""
        self._rest = hashlib.sha256()

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        """Read and hash a file.

        Raises:
            OSError: the file cannot be read.
        """
        digest = cls()
        with links.open_for_reading(path, buffering=0) as file, digest.updating(path) as update:
            while chunk := file.read(CHUNK_BYTES):
                update(chunk)
        return digest

    def updating(self, path: Path) -> AbstractContextManager[Update]:
        """Context with a function that hashes the next bytes; for a large file, in a background thread."""
        return (
            update_in_background(self.update)
            if file_paths.lstat(path).st_size > CHUNK_BYTES
            else nullcontext(self.update)
        )

    def update(self, chunk: bytes) -> None:
        """Hash the next bytes of the file."""
        missing = _HEADER_BYTES - len(self._head)
        if missing > 0:
            self._head += chunk[:missing]
            chunk = chunk[missing:]
        self._rest.update(chunk)

    @property
    def exact(self) -> str:
        """Digest of all bytes."""
        return f"{self._head.hex()} {self._rest.hexdigest()}"

    @property
    def without_counters(self) -> str:
        """Digest without the header fields that opening a SQLite file changes: log mode and change counters."""
        head = bytearray(self._head)
        if head.startswith(untrusted_sqlite.MAGIC) and len(head) == _HEADER_BYTES:
            for part in _VOLATILE_FIELDS:
                head[part] = bytes(part.stop - part.start)
        return f"{bytes(head).hex()} {self._rest.hexdigest()}"


def _file_names(folder: Path) -> Iterator[str]:
    """Yield the relative paths, with ``/``, of the files and folder links below a folder, without SQLite's logs."""
    for place, folders, files in file_paths.walk(folder, durable.raise_unless_missing):
        inside = PurePosixPath(Path(place).relative_to(folder).as_posix())
        yield from (str(inside / name) for name in files if not name.endswith(untrusted_sqlite.COMPANION_SUFFIXES))
        yield from (str(inside / name) for name in folders if file_paths.is_link(Path(place, name)))


def _file_fingerprint(path: Path, without: frozenset[str] | None = None) -> str:
    """Return the fingerprint of one file. A SQLite file is hashed by its rows.

    ``without`` names tables that are left out; None: those that hold the last number given out.
    """
    odd = _special_file_mark(path)
    if odd is not None:
        return odd
    if untrusted_sqlite.is_database(path):
        try:
            return f"{_ROWS_PREFIX}{_rows_hash(path, systems.counter_tables() if without is None else without)}"
        except (*sqlite.CONTENT_ERRORS, UnicodeDecodeError):
            # Hash a damaged file by its bytes. I/O errors are not caught: the disk may work when this is compared.
            pass
    return links.hash_file(path)


def _rows_hash(path: Path, without: frozenset[str]) -> str:
    """Return a hash of the rows of all tables except ``without``; the order of rows does not matter."""
    total = 0
    with sqlite.open_readonly(path) as db:
        for table in sorted(set(_ordinary_tables(db)) - without):
            columns = [
                row[1] for row in db.execute(f"PRAGMA table_info({quote_name(table)})") if str(row[1]) != "fts_rowid"
            ]
            wanted = ", ".join(f"typeof({quote_name(name)}), CAST({quote_name(name)} AS BLOB)" for name in columns)
            for row in db.execute(f"SELECT {wanted} FROM {quote_name(table)}"):
                # Added up, so that the order of rows does not matter.
                total += int.from_bytes(hashlib.blake2b(repr((table, row)).encode(), digest_size=16).digest())
    return f"{total % (1 << 128):032x}"


def _ordinary_tables(db: apsw.Connection) -> list[str]:
    """Return the names of the tables whose rows are hashed: neither virtual nor derived from others."""
    found = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    virtual = [str(name) for name, sql in found if str(sql).upper().startswith("CREATE VIRTUAL")]
    derived = {*virtual, *(f"{name}_{shadow}" for name in virtual for shadow in _SHADOWS), *_UNHASHED_TABLES}
    return sorted(str(name) for name, _ in found if name not in derived and not str(name).startswith("sqlite_stat"))


# --- replacing files -------------------------------------------------------------------------------------------------


def flush_log(path: Path) -> None:
    """Checkpoint the log or roll back the journal of a SQLite file, and make sure that no other program has it open.

    A file that is not SQLite, or too damaged to be opened, is left as it is.

    Raises:
        StoreBusy: another program has the file open.
        StoreNotWritable: the file cannot be written.
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
        # A log that remained would be applied to the file that replaces this one.
        if untrusted_sqlite.find_companions(links.real_path(path)):
            raise StoreNotWritable(
                path=path, reason=tr("its write-ahead log cannot be checkpointed: {error}", error=error)
            ) from error


def find_databases(path: Path) -> list[Path]:
    """List the SQLite files at a path or below it, sorted by name. Links are not followed."""
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        inside = (
            Path(place, name)
            for place, _, names in file_paths.walk(path, durable.raise_unless_missing)
            for name in names
        )
        return sorted(file for file in inside if not file_paths.is_link(file) and untrusted_sqlite.is_database(file))
    return [path] if untrusted_sqlite.is_database(path) else []


def flush_logs(path: Path) -> None:
    """Call :func:`flush_log` for every SQLite file at a path or below it.

    Raises:
        StoreBusy, StoreNotWritable
    """
    for file in find_databases(path):
        flush_log(file)


def swap(final: Path, new: Path | None, kept: Path) -> None:
    """Move the file at ``final``, if any, to ``kept``, and ``new`` (None: nothing) to ``final``.

    Raises:
        StoreOnTwoDisks, OSError
    """
    try:
        if file_paths.lexists(final):
            durable.make_folders(kept.parent)
            # A folder cannot be renamed onto an existing file.
            if new is not None and not file_paths.is_folder(new) and _try_second_name(final, kept):
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


def swap_back(final: Path, kept: Path | None, parked: Path) -> None:
    """Move the file at ``final`` to ``parked``, which the caller removes, and ``kept`` (None: nothing) to ``final``."""
    if file_paths.lexists(final):
        durable.make_folders(parked.parent, flush=False)
        if not (kept is not None and file_paths.is_file(kept) and _try_second_name(final, parked)):
            durable.replace(final, parked)
    if kept is not None:
        durable.make_folders(final.parent)
        durable.replace(kept, final)


def _try_second_name(path: Path, kept: Path) -> bool:
    """Create the hard link ``kept`` to a file, so that its path is never empty; False if that is not possible."""
    if file_paths.is_folder(path) or file_paths.is_link(path):
        return False
    # To replace a read-only file on Windows, its attribute is cleared, which its second name would lose as well.
    is_read_only = os.name == "nt" and not file_paths.lstat(path).st_mode & stat.S_IWUSR
    return not is_read_only and durable.try_link(path, kept)


def size_on_disk(path: Path) -> int:
    """Size of a file in bytes, or of all files in a folder. Links are not followed."""
    if file_paths.is_folder(path) and not file_paths.is_link(path):
        return sum(file_paths.lstat(path / name).st_size for name in _file_names(path))
    return file_paths.lstat(path).st_size if file_paths.exists(path) or file_paths.is_link(path) else 0


def delete_database(path: Path) -> None:
    """Delete a SQLite file of regraft, its logs, and its folder if that is empty."""
    for suffix in ("", *untrusted_sqlite.COMPANION_SUFFIXES):
        durable.remove_tree(path.with_name(path.name + suffix))
    remove_empty_folders(path.parent, path.parent.parent)


def remove_empty_folders(folder: Path, stop: Path) -> None:
    """Remove empty folders from ``folder`` upwards, up to but not including ``stop``."""
    while folder != stop and stop in folder.parents:
        try:
            durable.remove_folder(folder)
        except FileNotFoundError:
            pass
        except OSError:
            return
        folder = folder.parent
