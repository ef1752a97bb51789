"""What a SQLite file's own definitions may do: nothing (``docs/formats/README.md``, "Other people's files").

Every connection that :mod:`regraft.disk.sqlite` opens is guarded.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from regraft.disk import durable, file_paths, links
from regraft.errors import OtherRowsChanged, RowsMayBeRefused, SchemaForeign
from regraft.language import join_list, tr
from regraft.text import decode_utf8

#: The one kind of virtual table that files of these layouts have; one of another kind cannot be read, nor called.
_MODULES = ("fts5",)
#: What a file's own definitions may do: their views are not read, their triggers do not run, functions that they call
#: have no effects, and neither the schema nor the tables of a full-text index are written but through SQL of their own.
_SETTINGS = (
    (apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 0),
    (apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0),
    (apsw.SQLITE_DBCONFIG_DEFENSIVE, 1),
)
#: No text or BLOB is longer than SQLite allows, nor much longer than all of its file: what a definition makes up of
#: nothing would be.
_LONGEST = 1_000_000_000
_LEAST_LENGTH = 64 << 20
#: A text can grow from one encoding to another, and some columns are read as hexadecimal or JSON.
_GROWTH = 4
#: How much a file system may have packed a file.
_PACKED = 16


def guard_connection(connection: apsw.Connection) -> None:
    """Let nothing run that a file says about itself (``docs/formats/README.md``, "Other people's files").

    Triggers and views in the temporary schema, which is our own, are as before.
    """
    for option, value in _SETTINGS:
        connection.config(option, value)
    drop_modules(connection)


def drop_modules(connection: apsw.Connection) -> None:
    """Let a connection read and write no kind of virtual table but that of the layouts."""
    connection.drop_modules(_MODULES)


def limit_value_length(connection: apsw.Connection, files: Iterable[Path]) -> None:
    """Let no value be longer than what the database's files on the disk can hold."""
    with suppress(OSError):  # opening them says why
        size = sum(map(_stored_bytes, files))
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(_LONGEST, max(_LEAST_LENGTH, _GROWTH * size)))


def _stored_bytes(path: Path) -> int:
    """Return the size of a file; of one that is mostly a hole about what it takes on the disk."""
    status = file_paths.stat(path)
    blocks = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else min(status.st_size, _PACKED * 512 * blocks)


def unguard_connection(connection: apsw.Connection) -> None:
    """Let a file's own views and triggers run again: in one that was made here, and in no other."""
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_VIEW, 1)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)


@contextmanager
def allow_schema_writes(connection: apsw.Connection) -> Iterator[None]:
    """Let the tables that make up a full-text index, and the schema, be written as tables."""
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    try:
        yield
    finally:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)


#: Files that SQLite keeps beside a database and that hold part of its content.
_COMPANIONS = ("-wal", "-journal")
#: Files that SQLite makes beside a database.
COMPANION_SUFFIXES = ("-wal", "-shm", "-journal")
#: What every database begins with.
MAGIC = b"SQLite format 3\0"
_WAL_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
_PAGE_SIZES = {512 << shift for shift in range(8)}
_JOURNAL_MAGIC = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
#: The end of a rollback journal that names another file: how long that name is, its sum, the magic (SQLite, pager.c).
_JOURNAL_TAIL = struct.Struct(">II8s")
_MAX_NAME_BYTES = 65_536


def find_companions(path: Path) -> list[Path]:
    """Return the log or journal files beside ``path`` that hold content of it.

    They are told by their first bytes: a v1 base may well be called ``notes-wal``.
    """
    found = []
    for suffix in _COMPANIONS:
        beside = path.with_name(path.name + suffix)
        if is_companion(read_start(beside), suffix):
            found.append(beside)
    return found


def is_companion(first_bytes: bytes, suffix: str) -> bool:
    """Tell whether a file that begins with these bytes is a write-ahead log or a rollback journal with content."""
    if suffix == "-wal":
        return first_bytes[:4] in _WAL_MAGIC
    return first_bytes[:8] == _JOURNAL_MAGIC


def read_start(path: Path, count: int = 8) -> bytes:
    """Return the first ``count`` bytes of a regular file; empty where there are none or it cannot be read."""
    path = Path(file_paths.extended_path(path))
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
    return read_start(path, len(MAGIC)) == MAGIC


def database_mark(path: Path) -> tuple[int, int] | None:
    """Return what tells whether a database was written to since: its size and time of change (ns).

    None where no database is.
    """
    if not is_database(path):
        return None
    status = file_paths.stat(path)
    return status.st_size, status.st_mtime_ns


def count_missing_bytes(path: Path) -> int:
    """Return how many bytes are cut off the end of a SQLite file, by its own header.

    SQLite itself takes a page that is there in part for whole and reads the rest of it as zeros: the end of a vector
    would be zeros, in silence.
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
    # The page count in the header holds only if it was written together with the change counter.
    pages = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
    return max(0, pages * page - size, -size % page)


def quote_name(name: str) -> str:
    """Return a name from a file's schema as it can stand in a statement."""
    return '"' + name.replace('"', '""') + '"'


def copy_companion(beside: Path, copy: Path, suffix: str) -> bool:
    """Copy a log or journal beside a copy of its database; False where a writer at work is done with it meanwhile.

    A journal of a transaction over several databases names a file that they share, which SQLite removes when it has
    worked such a journal into its database. The copy does not name it: nobody else's file is to go for a copy. Where
    that file is gone, the transaction was finished, and the journal counts for nothing.

    Raises:
        OSError: it cannot be read, or the copy not be written.
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


def read_lenient_rows(
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
    names = [quote_name(name) for name in columns]
    read = ", ".join(
        f"typeof({name}), CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END" for name in names
    )
    with closing(connection.cursor()) as cursor:
        for row in cursor.execute(f"SELECT {read} FROM {source}", values):
            pairs = zip(row[::2], row[1::2], strict=True)
            yield tuple(decode(value) if kind == "text" else value for kind, value in pairs)


def unchanged_condition(connection: apsw.Connection, columns: Iterable[str]) -> str:
    """Return the condition, with a parameter for each column, that a row still has what :func:`lenient_rows` gave."""
    function = "regraft_lenient"
    connection.create_scalar_function(function, _decoded, 1, deterministic=True)
    names = [quote_name(name) for name in columns]
    return " AND ".join(
        f"CASE typeof({name}) WHEN 'text' THEN {function}(CAST({name} AS BLOB)) ELSE {name} END IS ?" for name in names
    )


def _decoded(*raw: Any) -> str:
    return decode_utf8(raw[0])


# That a change of rows changes those of its own tables and no others (``docs/formats/README.md``, "Other people's
# files").
#
# Triggers do not run (:func:`regraft.disk.untrusted_sqlite.guard_connection`). What is left are keys that carry a change on to other rows, rules
# that replace rows, and columns that follow from others: where a file has one that its layout does not, its rows stay as
# they are. And whatever else there may be is noticed, by SQLite's own hook and by a changeset of all other tables.


#: What FTS5 keeps a full-text index in.
_SHADOWS = ("data", "idx", "docsize", "config", "content")
#: Keys of the layouts that carry a change on: table, columns, the table that they lead to, what its deletion does.
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
#: What SQLite calls the number of a row, where no column is called so.
ROW_NUMBERS = {"rowid", "_rowid_", "oid"}
#: The number of a column of an index that is an expression.
_EXPRESSION = -2
_IDLE = {"NO ACTION", "RESTRICT"}
_COMMENT = re.compile(r"/\*.*?(\*/|$)|--[^\n]*", re.DOTALL)
_CONFLICT = re.compile(r"\bON\s+CONFLICT\b", re.IGNORECASE)
_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\b", re.IGNORECASE)


def table_statements(db: apsw.Connection) -> dict[str, str]:
    """Return the statements of all tables of a file by their names.

    Raises:
        apsw.Error: the file is damaged.
    """
    rows = db.execute(
        "SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE type = 'table'"
        " AND typeof(name) = 'text' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return {name.decode("utf-8", "replace"): (sql or b"").decode("utf-8", "replace") for name, sql in rows}


def is_virtual(statement: str) -> bool:
    """Tell whether a table's statement makes a virtual one."""
    return _VIRTUAL.match(_COMMENT.sub(" ", statement)) is not None


def refuse_foreign_rules(db: apsw.Connection, path: Path, tables: Collection[str]) -> None:
    """Refuse to change rows of tables where a definition of the file would change other rows with them.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    statements = table_statements(db)
    own = {name.lower() for name in tables}
    for table, statement in statements.items():
        if table.lower() in own:
            what = _wrong_with(db, table, statement, own)
            if what is not None:
                raise SchemaForeign(path=path, what=what)


def refuse_restrictive_indexes(db: apsw.Connection, path: Path, table: str) -> None:
    """Refuse a table with an index that can refuse a row: a unique one besides the key, or one of what is worked out.

    Only for tables whose layout has no such index.

    Raises:
        RowsMayBeRefused
        apsw.Error: the file is damaged.
    """
    for _, name, is_unique, origin, is_partial in db.execute(f"PRAGMA index_list({quote_name(table)})").fetchall():
        columns = db.execute(f"PRAGMA index_xinfo({quote_name(str(name))})").fetchall()
        is_worked_out = any(column == _EXPRESSION for _, column, *_ in columns)
        if origin != "pk" and (is_unique or is_partial or is_worked_out):
            raise RowsMayBeRefused(path=path, index=str(name), table=table)


def _wrong_with(db: apsw.Connection, table: str, statement: str, own: set[str]) -> str | None:
    if is_virtual(statement):
        return tr("{table} is a virtual table", table=table)
    rule = find_conflict_rule(statement)
    if rule is not None:
        return tr("{table} has {rule}", table=table, rule=rule)
    for _, name, _, _, _, _, is_made in db.execute(f"PRAGMA table_xinfo({quote_name(table)})").fetchall():
        if is_made:
            return tr("column {name} of {table} follows from others", name=name, table=table)
        if str(name).lower() in ROW_NUMBERS:
            return tr("column {name} of {table} stands in the place of the numbers of its rows", name=name, table=table)
    return next((tr("the key {key}", key=key) for key in cascading_keys(db, table, own)), None)


def find_rowid_column(db: apsw.Connection, tables: Collection[str]) -> str | None:
    """Return the column, as ``table.column``, that stands in the place of the numbers of rows; None where none does.

    Raises:
        apsw.Error: the file is damaged.
    """
    for table in tables:
        for row in db.execute(f"PRAGMA table_xinfo({quote_name(table)})").fetchall():
            if str(row[1]).lower() in ROW_NUMBERS:
                return f"{table}.{row[1]}"
    return None


def find_conflict_rule(statement: str) -> str | None:
    """Return what a table's statement has that lets a change of one row remove others; None where nothing does."""
    if _CONFLICT.search(_COMMENT.sub(" ", statement)):
        return tr("a rule that says what becomes of rows in conflict")
    return None


def cascading_keys(db: apsw.Connection, table: str, parents: Collection[str]) -> Iterator[str]:
    """Yield the keys of a table that carry changes of ``parents`` (in lower case) on to it, and that no layout has."""
    keys: dict[int, tuple[list[str], str, str, str]] = {}
    for number, _, to, column, _, update, delete, _ in db.execute(f"PRAGMA foreign_key_list({quote_name(table)})"):
        keys.setdefault(number, ([], str(to), str(update), str(delete)))[0].append(str(column))
    for columns, to, update, delete in keys.values():
        if to.lower() not in parents or (update in _IDLE and delete in _IDLE):
            continue
        if update not in _IDLE or (table.lower(), tuple(columns), to.lower(), delete) not in _CARRYING:
            yield f"{table} ({', '.join(columns)}) → {to}"


def full_text_shadow_indexes(db: apsw.Connection) -> list[str]:
    """Return the indexes on the tables that full-text indexes are kept in; no program makes one.

    Raises:
        apsw.Error: the file is damaged.
    """
    parts = _parts_of(table_statements(db))
    rows = db.execute(
        "SELECT CAST(name AS BLOB), CAST(tbl_name AS BLOB) FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    )
    names = [[part.decode("utf-8", "replace") for part in row] for row in rows]
    return [name for name, table in names if table.lower() in parts]


def refuse_shadow_indexes(db: apsw.Connection) -> None:
    """Refuse to change what a full-text index holds where its own tables have an index: SQLite would never end.

    Each write to such a table begins a savepoint, before which FTS5 writes what it still holds to that very table.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    for name in full_text_shadow_indexes(db):
        raise SchemaForeign(
            path=Path(db.filename), what=tr("{name} is an index on a table of the full-text index", name=name)
        )


def _parts_of(statements: Mapping[str, str]) -> set[str]:
    """Return the tables, in lower case, that the virtual tables among some are kept in."""
    return {f"{name}_{part}".lower() for name, sql in statements.items() if is_virtual(sql) for part in _SHADOWS}


@contextmanager
def change_only(db: apsw.Connection, path: Path, tables: Collection[str]) -> Iterator[None]:
    """Change rows of ``tables`` in the caller's transaction, which is to be rolled back on an error, and of no others.

    What makes up a full-text index, which follows from rows, may change with them, and so may temporary tables.

    Args:
        db: the connection.
        path: its file, for messages.
        tables: whose rows may change.

    Raises:
        SchemaForeign: the file has definitions with which nobody can tell what would change.
        OtherRowsChanged: rows of another table changed, too.
        apsw.Error: the file is damaged, or cannot be written.
    """
    refuse_foreign_rules(db, path, tables)
    statements = table_statements(db)
    allowed = {name.lower() for name in tables} | _parts_of(statements)
    touched: set[str] = set()

    def changed(_: int, database: str, table: str, __: int) -> None:
        if database == "main" and table.lower() not in allowed:
            touched.add(table)

    session = apsw.Session(db, "main")
    try:
        # Tables without a key of their own are recorded by the numbers of their rows.
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
