"""That a change of rows changes those of its own tables and no others (``docs/formats/README.md``, "Other people's
files").

Triggers do not run (:func:`regraft.guarding.guard`). What is left are keys that carry a change on to other rows, rules
that replace rows, and columns that follow from others: where a file has one that its layout does not, its rows stay as
they are. And whatever else there may be is noticed, by SQLite's own hook and by a changeset of all other tables.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw

from regraft.language import joined, tr
from regraft.schema_errors import OtherRowsChanged, RowsMayBeRefused, SchemaForeign
from regraft.sqlite import quoted

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


def tables_of(db: apsw.Connection) -> dict[str, str]:
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


def demand_own_rules(db: apsw.Connection, path: Path, tables: Collection[str]) -> None:
    """Refuse to change rows of tables where a definition of the file would change other rows with them.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    statements = tables_of(db)
    own = {name.lower() for name in tables}
    for table, statement in statements.items():
        if table.lower() in own:
            what = _wrong_with(db, table, statement, own)
            if what is not None:
                raise SchemaForeign(path=path, what=what)


def demand_open_to_rows(db: apsw.Connection, path: Path, table: str) -> None:
    """Refuse a table with an index that can refuse a row: a unique one besides the key, or one of what is worked out.

    Only for tables whose layout has no such index.

    Raises:
        RowsMayBeRefused
        apsw.Error: the file is damaged.
    """
    for _, name, is_unique, origin, is_partial in db.execute(f"PRAGMA index_list({quoted(table)})").fetchall():
        columns = db.execute(f"PRAGMA index_xinfo({quoted(str(name))})").fetchall()
        is_worked_out = any(column == _EXPRESSION for _, column, *_ in columns)
        if origin != "pk" and (is_unique or is_partial or is_worked_out):
            raise RowsMayBeRefused(path=path, index=str(name), table=table)


def _wrong_with(db: apsw.Connection, table: str, statement: str, own: set[str]) -> str | None:
    if is_virtual(statement):
        return tr("{table} is a virtual table", table=table)
    rule = wrong_rule(statement)
    if rule is not None:
        return tr("{table} has {rule}", table=table, rule=rule)
    for _, name, _, _, _, _, is_made in db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall():
        if is_made:
            return tr("column {name} of {table} follows from others", name=name, table=table)
        if str(name).lower() in ROW_NUMBERS:
            return tr("column {name} of {table} stands in the place of the numbers of its rows", name=name, table=table)
    return next((tr("the key {key}", key=key) for key in carrying_keys(db, table, own)), None)


def column_for_numbers(db: apsw.Connection, tables: Collection[str]) -> str | None:
    """Return the column, as ``table.column``, that stands in the place of the numbers of rows; None where none does.

    Raises:
        apsw.Error: the file is damaged.
    """
    for table in tables:
        for row in db.execute(f"PRAGMA table_xinfo({quoted(table)})").fetchall():
            if str(row[1]).lower() in ROW_NUMBERS:
                return f"{table}.{row[1]}"
    return None


def wrong_rule(statement: str) -> str | None:
    """Return what a table's statement has that lets a change of one row remove others; None where nothing does."""
    if _CONFLICT.search(_COMMENT.sub(" ", statement)):
        return tr("a rule that says what becomes of rows in conflict")
    return None


def carrying_keys(db: apsw.Connection, table: str, parents: Collection[str]) -> Iterator[str]:
    """Yield the keys of a table that carry changes of ``parents`` (in lower case) on to it, and that no layout has."""
    keys: dict[int, tuple[list[str], str, str, str]] = {}
    for number, _, to, column, _, update, delete, _ in db.execute(f"PRAGMA foreign_key_list({quoted(table)})"):
        keys.setdefault(number, ([], str(to), str(update), str(delete)))[0].append(str(column))
    for columns, to, update, delete in keys.values():
        if to.lower() not in parents or (update in _IDLE and delete in _IDLE):
            continue
        if update not in _IDLE or (table.lower(), tuple(columns), to.lower(), delete) not in _CARRYING:
            yield f"{table} ({', '.join(columns)}) → {to}"


def text_indexes(db: apsw.Connection) -> list[str]:
    """Return the indexes on the tables that full-text indexes are kept in; no program makes one.

    Raises:
        apsw.Error: the file is damaged.
    """
    parts = _parts_of(tables_of(db))
    rows = db.execute(
        "SELECT CAST(name AS BLOB), CAST(tbl_name AS BLOB) FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL"
    )
    names = [[part.decode("utf-8", "replace") for part in row] for row in rows]
    return [name for name, table in names if table.lower() in parts]


def demand_no_text_index(db: apsw.Connection) -> None:
    """Refuse to change what a full-text index holds where its own tables have an index: SQLite would never end.

    Each write to such a table begins a savepoint, before which FTS5 writes what it still holds to that very table.

    Raises:
        SchemaForeign
        apsw.Error: the file is damaged.
    """
    for name in text_indexes(db):
        raise SchemaForeign(
            path=Path(db.filename), what=tr("{name} is an index on a table of the full-text index", name=name)
        )


def _parts_of(statements: Mapping[str, str]) -> set[str]:
    """Return the tables, in lower case, that the virtual tables among some are kept in."""
    return {f"{name}_{part}".lower() for name, sql in statements.items() if is_virtual(sql) for part in _SHADOWS}


@contextmanager
def others_untouched(db: apsw.Connection, path: Path, tables: Collection[str]) -> Iterator[None]:
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
    demand_own_rules(db, path, tables)
    statements = tables_of(db)
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
            raise OtherRowsChanged(path=path, tables=joined(sorted(touched)) or tr("other tables"))
    finally:
        session.close()
