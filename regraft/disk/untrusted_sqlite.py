"""Read and change SQLite files of other programs without trusting what they contain.

A file's own definitions may do nothing (:func:`guard_connection`): no view is read, no trigger runs. Content is read
leniently, also where text is not UTF-8. A change of rows is limited to the tables that it names (:func:`change_only`).
Logs and journals are recognized by their first bytes, not by name. Rules: ``docs/formats/README.md``, "Other people's
files".
"""

from __future__ import annotations

import errno
import os
import re
import stat
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any
from urllib.parse import quote

import apsw

from regraft.disk import durable, file_paths, links, writable
from regraft.errors import JournalNamesAnother, OtherRowsChanged, RowsMayBeRefused, SchemaForeign
from regraft.language import join_list, tr
from regraft.text import decode_utf8

#: The only virtual table module of the supported layouts; tables of other modules can be neither read nor called.
_MODULES = ("fts5",)
#: Views are not read, triggers do not run, functions called by definitions have no side effects, and the schema and the
#: shadow tables of a full-text index are writable only through SQL of their own.
_SETTINGS = (
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
)
#: No value is longer than SQLite allows, or much longer than the whole file: a definition could otherwise generate one.
_LONGEST = 1_000_000_000
_LEAST_LENGTH = 64 << 20
#: Text can grow when it is converted to another encoding, or as hexadecimal or JSON.
_GROWTH = 4
#: How strongly a file system may compress a file.
_PACKED = 16


#: SQLite's VFS for Windows that opens extended paths of any length; the default one ends at 1,040 bytes.
_LONG_PATHS = "win32-longpath"


def database_uri(path: PurePath, **options: object) -> str:
    r"""Return the URI by which SQLite opens a file, with ``options`` as its query parameters (``mode="ro"``).

    On Windows, the path may be on a drive or a share, or extended (``\\?\``). A share's name follows four slashes:
    after two, SQLite expects a host and accepts only ``localhost``.
    """
    absolute = Path(file_paths.extended_path(path.absolute())) if isinstance(path, Path) else path
    place = quote(os.fsencode(absolute.as_posix()), safe="/:")
    if isinstance(absolute, PureWindowsPath):
        place = f"//{place}" if absolute.drive.startswith("\\\\") else f"///{place}"
        if absolute.drive.startswith("\\\\?\\") and _LONG_PATHS in apsw.vfs_names():
            options = {**options, "vfs": _LONG_PATHS}
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"file:{place}?{query}"


def refuse_special_file(path: Path) -> None:
    """Raise if opening the file would block SQLite: a pipe without a writer, a terminal.

    Raises:
        apsw.CantOpenError
    """
    try:
        mode = file_paths.stat(path).st_mode
    except OSError:
        # SQLite itself will report the problem.
        return
    if stat.S_ISDIR(mode):
        # SQLite opens a folder, and fails at the first page.
        raise apsw.CantOpenError(tr("unable to open database file"))
    if not stat.S_ISREG(mode):
        raise apsw.CantOpenError(tr("{name} is not a file", name=path.name))


def require_writable_database(path: Path) -> Path:
    """Return the resolved path of a database that may be written to.

    Raises:
        LinkInStore, OutsideStore: it may not be written to.
        JournalNamesAnother: SQLite would remove another file with its journal.
        apsw.CantOpenError: it is a folder, a pipe or a device.
        OSError: its folder cannot be examined.
    """
    real = writable.require_writable(path)
    for suffix in ("", *COMPANION_SUFFIXES):
        writable.refuse_link(real.with_name(real.name + suffix), path.with_name(path.name + suffix))
        refuse_special_file(real.with_name(real.name + suffix))
    journal = real.with_name(real.name + "-journal")
    if is_companion(read_start(journal), "-journal"):
        try:
            shared = find_shared_journal(journal)
        except FileNotFoundError:
            shared = None  # its writer has just finished
        if shared is not None:
            raise JournalNamesAnother(path=journal, named=Path(shared))
    return real


def guard_connection(connection: apsw.Connection) -> None:
    """Prevent a file's own definitions from running (``docs/formats/README.md``, "Other people's files").

    Triggers and views in the temporary schema, which is ours, still work.
    """
    for option, value in _SETTINGS:
        connection.config(option, value)
    drop_modules(connection)


def drop_modules(connection: apsw.Connection) -> None:
    """Disable all virtual table modules except those of the supported layouts."""
    connection.drop_modules(_MODULES)


def limit_value_length(connection: apsw.Connection, files: Iterable[Path]) -> None:
    """Limit the length of values that a connection reads to what the database's ``files`` on disk can hold."""
    with suppress(OSError):  # opening them says why
        size = 0
        for path in files:
            status = file_paths.stat(path)
            # The size of a mostly sparse file is about what it uses on disk.
            blocks = getattr(status, "st_blocks", None)
            size += status.st_size if blocks is None else min(status.st_size, _PACKED * 512 * blocks)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(_LONGEST, max(_LEAST_LENGTH, _GROWTH * size)))


def unguard_connection(connection: apsw.Connection) -> None:
    """Allow views and triggers again, in a file that regraft itself has made."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)


@contextmanager
def allow_schema_writes(connection: apsw.Connection) -> Iterator[None]:
    """Allow writes to the schema and to the shadow tables of a full-text index within the context."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    try:
        yield
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


#: Files beside a database that hold part of its content.
COMPANIONS = ("-wal", "-journal")
#: Suffixes of the files that SQLite creates beside a database.
COMPANION_SUFFIXES = ("-wal", "-shm", "-journal")
#: The first bytes of a database.
MAGIC = b"SQLite format 3\0"
_WAL_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_PAGE_SIZES = {512 << shift for shift in range(8)}
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: Trailer of a rollback journal that names another file: length and checksum of the name, magic (SQLite, pager.c).
_JOURNAL_TAIL = struct.Struct(">II8s")
_MAX_NAME_BYTES = 65_536


def find_companions(path: Path) -> list[Path]:
    """Return the log or journal files beside ``path`` that hold content of it.

    They are recognized by their first bytes: a v1 base may be called ``notes-wal``.
    """
    found = []
    for suffix in COMPANIONS:
        beside = path.with_name(path.name + suffix)
        if is_companion(read_start(beside), suffix):
            found.append(beside)
    return found


def is_companion(first_bytes: bytes, suffix: str) -> bool:
    """Whether these are the first bytes of a write-ahead log or a rollback journal with content."""
    if suffix == "-wal":
        return first_bytes[:4] in _WAL_MAGIC
    return first_bytes[:8] == _JOURNAL_MAGIC


def read_start(path: Path, count: int = 8) -> bytes:
    """Return the first ``count`` bytes of a file; none if it is missing, not a regular file or not readable."""
    try:
        if not stat.S_ISREG(file_paths.stat(path).st_mode):
            return b""  # opening a pipe would wait for a writer
        with Path(file_paths.extended_path(path)).open("rb") as file:
            return file.read(count)
    except ValueError:  # a NUL in the name
        return b""
    except OSError as error:
        if error.errno == errno.EIO:
            # Ignoring a log would lose content.
            raise
        return b""


def is_database(path: Path) -> bool:
    """Whether a file starts like a SQLite database."""
    return read_start(path, len(MAGIC)) == MAGIC


def database_mark(path: Path) -> tuple[int, int] | None:
    """Return size and time of change (ns) of a database, to detect writes; None if there is no database."""
    if not is_database(path):
        return None
    status = file_paths.stat(path)
    return status.st_size, status.st_mtime_ns


def count_missing_bytes(path: Path) -> int:
    """Return how many bytes are missing at the end of a SQLite file, according to its header.

    SQLite treats a partial page as complete and reads zeros for the rest: the end of a vector would silently be zeros.
    """
    with links.open_for_reading(path) as file:
        header = file.read(100)
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        return 0
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    if page not in _PAGE_SIZES:
        return 0
    size = file_paths.stat(path).st_size
    # The page count in the header is valid only if it was written together with the change counter.
    pages = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
    return max(0, pages * page - size, -size % page)


def quote_name(name: str) -> str:
    """Quote a name from a file's schema for use in a statement."""
    return '"' + name.replace('"', '""') + '"'


def list_columns(db: apsw.Connection, table: str, schema: str = "") -> list[str]:
    """List the columns of a table in their order; empty if there is no such table.

    ``schema`` is the name under which the file of the table is attached, if it is.
    """
    return [str(row[1]) for row in db.execute(f"PRAGMA {schema and schema + '.'}table_info({quote_name(table)})")]


def has_log(path: Path) -> bool:
    """Whether a file is a database with content in a log or journal beside it."""
    return bool(find_companions(links.real_path(path))) and is_database(path)


def copy_companion(beside: Path, copy: Path, suffix: str) -> bool:
    """Copy the log or journal ``beside`` a database to its place beside ``copy``, the copy of that database.

    ``suffix`` is ``-wal`` or ``-journal``. Returns False if the writer has just removed the log or journal.

    A journal of a transaction over several databases names a file that they share, which SQLite removes after applying
    such a journal. The copy does not name it, so that using the copy removes no other file. If that file is gone, the
    transaction was finished, and the journal has no effect.

    Raises:
        OSError: it cannot be read, or the copy cannot be written.
    """
    target = copy.with_name(copy.name + suffix)
    try:
        shared = None if suffix == "-wal" else find_shared_journal(beside)
        if shared is not None and not os.path.lexists(os.fsencode(shared)):
            return True
        durable.copy_file(beside, target)
    except FileNotFoundError:
        return False
    if shared is not None:
        durable.truncate(target, target.stat().st_size - len(_JOURNAL_MAGIC))
    return True


def find_shared_journal(journal: Path) -> str | None:
    """Return the path of the file that a rollback journal names in its trailer, or None.

    The journals of a transaction over several databases name one file that they share.

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


def read_lenient_rows(
    connection: apsw.Connection,
    columns: Sequence[str],
    source: str,
    values: Sequence[apsw.SQLiteValue] = (),
    decode: Callable[[bytes], str] = decode_utf8,
) -> Iterator[tuple[Any, ...]]:
    """Yield columns of rows, with text decoded even if it is not UTF-8 (:func:`regraft.text.decode_utf8`).

    Args:
        connection: the database.
        columns: names of columns, as the file has them.
        source: the SQL after ``FROM``.
        values: values of its parameters.
        decode: decodes text; for rows that are copied elsewhere, :func:`regraft.text.decode_halves`.

    Raises:
        apsw.Error: the file is damaged.
    """
    names = [quote_name(name) for name in columns]
    read = ", ".join(
        f"typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names
    )
    with closing(connection.cursor()) as cursor:
        for row in cursor.execute(f"SELECT {read} FROM {source}", values):
            pairs = zip(row[::2], row[1::2], strict=True)
            yield tuple(decode(value) if kind == "text" else value for kind, value in pairs)


def unchanged_condition(connection: apsw.Connection, columns: Iterable[str]) -> str:
    """Return an SQL condition with one parameter per column: the row still has these values.

    The values must be those that :func:`read_lenient_rows` yielded. The condition works on ``connection`` only.
    """
    function = "regraft_lenient"
    connection.create_scalar_function(function, _decode_text, 1, deterministic=True)
    names = [quote_name(name) for name in columns]
    return " AND ".join(
        f"CASE typeof({name}) WHEN 'text' THEN {function}(CAST({name} AS BLOB)) ELSE {name} END IS ?" for name in names
    )


def _decode_text(*raw: Any) -> str:
    """Decode the bytes that are the only argument: the SQL function of :func:`unchanged_condition`."""
    return decode_utf8(raw[0])


# Limiting a change of rows to the tables that are meant. Triggers do not run. What remains are foreign keys with
# actions, conflict clauses and generated columns: a table that has one which its layout does not have is not changed.
# Any other change is detected by SQLite's update hook and by a changeset of all other tables.


#: Suffixes of the shadow tables of an FTS5 index.
_SHADOWS = ("data", "idx", "docsize", "config", "content")
#: Foreign keys with actions that the layouts have: table, columns, parent table, action on deletion.
_CARRYING = {
    ("search_unit", ("material_id",), "material", "CASCADE"),
    ("search_unit", ("content_hash",), "content", "CASCADE"),
    ("knowledge_base", ("rerank_model_id",), "user_model", "SET NULL"),
    ("knowledge_item", ("base_id",), "knowledge_base", "CASCADE"),
    ("knowledge_item", ("base_id", "group_id"), "knowledge_item", "CASCADE"),
    ("assistant_knowledge_base", ("knowledge_base_id",), "knowledge_base", "CASCADE"),
    ("agent_knowledge_base", ("knowledge_base_id",), "knowledge_base", "CASCADE"),
    ("user_model", ("provider_id",), "user_provider", "CASCADE"),
}
#: SQLite's names for the row number, unless a column has that name.
ROW_NUMBERS = {"rowid", "_rowid_", "oid"}
#: The column number of an expression in an index.
_EXPRESSION = -2
_IDLE = {"NO ACTION", "RESTRICT"}
_COMMENT = re.compile(r"/\*.*?(\*/|$)|--[^\n]*", re.DOTALL)
_CONFLICT = re.compile(r"\bON\s+CONFLICT\b", re.IGNORECASE)
_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\b", re.IGNORECASE)


def table_statements(db: apsw.Connection) -> dict[str, str]:
    """Map the tables of a file to their CREATE statements.

    Raises:
        apsw.Error: the file is damaged.
    """
    rows = db.execute(
        "SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'table'"
        " AND typeof(name) = 'text' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return {name.decode("utf-8", "replace"): (sql or b"").decode("utf-8", "replace") for name, sql in rows}


def is_virtual(statement: str) -> bool:
    """Whether a CREATE statement creates a virtual table."""
    return _VIRTUAL.match(_COMMENT.sub(" ", statement)) is not None


def refuse_foreign_rules(db: apsw.Connection, path: Path, tables: Collection[str]) -> None:
    """Raise if changing rows of ``tables`` would change other rows too, because of a definition in the file ``path``.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    statements = table_statements(db)
    own = {name.lower() for name in tables}
    for table, statement in statements.items():
        if table.lower() in own:
            what = _find_foreign_rule(db, table, statement, own)
            if what is not None:
                raise SchemaForeign(path=path, what=what)


def refuse_restrictive_indexes(db: apsw.Connection, path: Path, table: str) -> None:
    """Raise if a table of the file ``path`` has an index, other than its primary key, that can reject a row.

    Such an index is unique, partial, or over an expression.
    Use it only for tables whose layout has no such index.

    Raises:
        RowsMayBeRefused
        apsw.Error: the file is damaged.
    """
    for _, name, is_unique, origin, is_partial in db.execute(f"PRAGMA index_list({quote_name(table)})").fetchall():
        columns = db.execute(f"PRAGMA index_xinfo({quote_name(str(name))})").fetchall()
        is_expression = any(column == _EXPRESSION for _, column, *_ in columns)
        if origin != "pk" and (is_unique or is_partial or is_expression):
            raise RowsMayBeRefused(path=path, index=str(name), table=table)


def _find_foreign_rule(db: apsw.Connection, table: str, statement: str, own: set[str]) -> str | None:
    """Describe a rule of a table that would change other rows or values than an SQL statement names; None without one.

    Args:
        db: the file.
        table: name of the table.
        statement: its CREATE statement.
        own: names of the tables that may change, in lower case.
    """
    if is_virtual(statement):
        return tr("{table} is a virtual table", table=table)
    rule = find_conflict_rule(statement)
    if rule is not None:
        return tr("{table} has {rule}", table=table, rule=rule)
    for _, name, _, _, _, _, is_generated in db.execute(f"PRAGMA table_xinfo({quote_name(table)})").fetchall():
        if is_generated:
            return tr("column {name} of {table} is generated", name=name, table=table)
        if str(name).lower() in ROW_NUMBERS:
            return tr("column {name} of {table} hides the row numbers", name=name, table=table)
    return next((tr("the key {key}", key=key) for key in cascading_keys(db, table, own)), None)


def find_rowid_column(db: apsw.Connection, tables: Collection[str]) -> str | None:
    """Return a column of ``tables`` that has a name of SQLite's row number, as ``table.column``, or None.

    In such a table, ``rowid`` is that column and not the row number.

    Raises:
        apsw.Error: the file is damaged.
    """
    for table in tables:
        for row in db.execute(f"PRAGMA table_xinfo({quote_name(table)})").fetchall():
            if str(row[1]).lower() in ROW_NUMBERS:
                return f"{table}.{row[1]}"
    return None


def find_conflict_rule(statement: str) -> str | None:
    """Describe the ON CONFLICT clause of a CREATE statement, which lets a changed row remove others, or return None."""
    if _CONFLICT.search(_COMMENT.sub(" ", statement)):
        return tr("a conflict clause")
    return None


def cascading_keys(db: apsw.Connection, table: str, parents: Collection[str]) -> Iterator[str]:
    """Yield a table's foreign keys that pass changes of the tables ``parents`` (lower case) on to it, as text.

    Keys that a supported layout has itself are left out.
    """
    keys: dict[int, tuple[list[str], str, str, str]] = {}
    for number, _, to, column, _, update, delete, _ in db.execute(f"PRAGMA foreign_key_list({quote_name(table)})"):
        keys.setdefault(number, ([], str(to), str(update), str(delete)))[0].append(str(column))
    for columns, to, update, delete in keys.values():
        if to.lower() not in parents or (update in _IDLE and delete in _IDLE):
            continue
        if update not in _IDLE or (table.lower(), tuple(columns), to.lower(), delete) not in _CARRYING:
            yield f"{table} ({', '.join(columns)}) → {to}"


def full_text_shadow_indexes(db: apsw.Connection) -> list[str]:
    """Return the names of the indexes on shadow tables of full-text indexes; no program creates such an index.

    Raises:
        apsw.Error: the file is damaged.
    """
    parts = _shadow_tables(table_statements(db))
    rows = db.execute(
        "SELECT CAST(name AS BLOB), CAST(tbl_name AS BLOB) FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    )
    names = [[part.decode("utf-8", "replace") for part in row] for row in rows]
    return [name for name, table in names if table.lower() in parts]


def refuse_shadow_indexes(db: apsw.Connection) -> None:
    """Raise if a shadow table of a full-text index has an index: changing the full-text index would never end.

    Each write to such a table begins a savepoint, before which FTS5 writes its pending data to that very table.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    for name in full_text_shadow_indexes(db):
        raise SchemaForeign(
            path=Path(db.filename), what=tr("{name} is an index on a table of the full-text index", name=name)
        )


def _shadow_tables(statements: Mapping[str, str]) -> set[str]:
    """Return the names, in lower case, of the shadow tables of all virtual tables among the CREATE ``statements``."""
    return {f"{name}_{part}".lower() for name, sql in statements.items() if is_virtual(sql) for part in _SHADOWS}


@contextmanager
def change_only(db: apsw.Connection, path: Path, tables: Collection[str]) -> Iterator[None]:
    """Context in which rows of ``tables`` may be changed, and no others; it checks that at the end.

    The caller has a transaction open, and rolls it back on an error. The shadow tables of a full-text index and
    temporary tables may change, too.

    Args:
        db: the connection.
        path: its file, for messages.
        tables: the tables whose rows may change.

    Raises:
        SchemaForeign: the file's definitions make it impossible to tell what would change.
        OtherRowsChanged: rows of another table changed, too.
        apsw.Error: the file is damaged, or cannot be written.
    """
    refuse_foreign_rules(db, path, tables)
    statements = table_statements(db)
    allowed = {name.lower() for name in tables} | _shadow_tables(statements)
    touched: set[str] = set()

    def changed(_: int, database: str, table: str, __: int) -> None:
        """Note the table of a changed row if it must not change (an update hook of SQLite)."""
        if database == "main" and table.lower() not in allowed:
            touched.add(table)

    session = apsw.Session(db, "main")
    try:
        # Tables without a primary key are recorded by row number.
        session.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, 1)
        for name, sql in statements.items():
            if name.lower() not in allowed and not is_virtual(sql):
                session.attach(name)
        db.set_update_hook(changed)
        try:
            yield
        finally:
            db.set_update_hook(None)
        if touched or not session.is_empty:
            raise OtherRowsChanged(path=path, tables=join_list(sorted(touched)) or tr("other tables"))
    finally:
        session.close()
