"""Convert an index file of an older or partly upgraded layout to a new file of version 2.

Rows are copied as they are, including damaged ones; only missing columns are filled in as the layout defines. The
full-text index is always rebuilt: that of version 1 may refer to the wrong rows (``docs/formats/index.md``, "Version
1").
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import VerificationFailed
from regraft.formats import table_integrity
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, full_text_matches, write_indexes
from regraft.formats.cherry_v2.index.schema import TABLE_RULES, TIME_PARAMETER, TableRules
from regraft.language import format_count, tr

#: Schema name of the attached old file.
_OLD = "old"
#: Bytes that each row grows by, and the factor by which a file is larger while its full-text index is merged.
_ROW_BYTES, _MERGING = 64, 1.3
#: SQLite checks for Ctrl-C after this many virtual machine steps.
_INTERRUPT_STEPS = 200_000
ENCODING = "UTF-8"


_INTEGER_COLUMNS = {"created_at", "updated_at", "unit_index", "char_start", "char_end"}
_PATH = "relative_path"
_VECTOR = "vector_blob"
_NUMBER = "fts_rowid"
#: Join that finds the content of a material from its units, for files whose material table has no content column: used
#: if all units refer to the same content.
_ONLY_HASH_JOIN = """ LEFT JOIN (SELECT material_id AS of_material, min(content_hash) AS only_hash
                   FROM {schema}.search_unit GROUP BY material_id HAVING count(DISTINCT content_hash) = 1)
                 ON of_material = material.material_id"""


class OldIndex(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of an index file of any version, as the input for a file of version 2."""

    #: ``meta.schema_version``, or None without an identity row.
    version: Any
    has_identity: bool
    #: Number of rows of each table.
    counts: dict[str, int]
    #: Reasons why a conversion would lose or invent data.
    problems: tuple[str, ...]
    #: Digest over all rows as the new file will contain them.
    digest: str
    #: Replacement for missing times, in ms.
    time: int
    #: SQL expressions for the columns of each table that has rows.
    selects: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def bytes(self, size: int) -> int:
        """Estimate the size of the new file in bytes, from the size of the old one."""
        return int(size * _MERGING) + _ROW_BYTES * sum(self.counts.values())


def is_newer_version(version: Any) -> bool:
    """Whether the version in an index's identity row is later than the one that this regraft supports."""
    try:
        return not isinstance(version, float) and int(version) > schema.SCHEMA_VERSION
    except (TypeError, ValueError):
        return False


def read_version(db: apsw.Connection) -> tuple[Any, bool]:
    """Read the version in the identity row of an index; return it, and whether there is such a row.

    Raises:
        apsw.Error: the file is damaged.
    """
    columns = _read_columns(db, "main", "meta")
    if not columns:
        return None, False
    version = "schema_version" if "schema_version" in columns else "NULL"
    # Text is read as bytes because it may be invalid UTF-8.
    value = f"iif(typeof({version}) = 'text', CAST({version} AS BLOB), {version})"
    row = db.execute(f"SELECT {value} FROM main.meta ORDER BY rowid LIMIT 1").fetchone()
    found = None if row is None else row[0]
    return (found.decode("utf-8", "replace").replace("\0", "") if isinstance(found, bytes) else found), row is not None


def examine_index(db: apsw.Connection, now_ms: int, *, knows_base: bool) -> OldIndex:
    """Read a whole old index and determine whether and how it can be converted.

    Args:
        db: the file, opened for reading.
        now_ms: replacement for missing times, in ms.
        knows_base: the path of the file identifies its base.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    version, has_identity = read_version(db)
    problems = [] if has_identity or knows_base else [tr("the base that it belongs to is unknown")]
    if db.execute("PRAGMA encoding").get != ENCODING:
        problems.append(tr("its texts are not encoded as {encoding}", encoding=ENCODING))
    tables = {name: _read_columns(db, "main", name) for name in TABLE_RULES}
    counts = {name: _count_rows(db, name) if columns else 0 for name, columns in tables.items()}
    time = _read_creation_time(db) or now_ms
    selects: dict[str, tuple[str, ...]] = {}
    for name, table in TABLE_RULES.items():
        select, wrong = _build_select(db, name, table, tables[name], counts)
        problems += wrong
        if counts[name] and not wrong:
            selects[name] = select
    problems += _describe_unknown_tables(db)
    for name, select in selects.items():
        problems += _describe_rejected_rows(db, name, select, time)
    # A scan that returns fewer rows than exist would lose them, since the new file replaces the old one.
    damage = table_integrity.find_inconsistency(db, selects)
    if damage is not None:
        problems.append(tr("its pages contradict each other about its rows: {damage}", damage=damage))
    digest = "" if problems else _compute_digest(db, selects, time)
    return OldIndex(
        version=version,
        has_identity=has_identity,
        counts=counts,
        problems=tuple(problems),
        digest=digest,
        time=time,
        selects=selects,
    )


def _read_columns(db: apsw.Connection, schema_name: str, table: str) -> dict[str, str]:
    """Return the columns of a table with their types in upper case; empty if it is no ordinary table.

    ``schema_name`` is that of the file in SQLite: ``main`` or the name of an attached file.
    """
    sql = db.execute(
        f"SELECT CAST(sql AS BLOB) FROM {schema_name}.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
        (table,),
    ).get
    if sql is None or not sql.decode("utf-8", "replace").replace("\0", "").upper().startswith("CREATE TABLE"):
        return {}
    rows = db.execute(f"PRAGMA {schema_name}.table_xinfo('{table}')")
    return {str(row[1]).lower(): str(row[2]).upper() for row in rows}


def _count_rows(db: apsw.Connection, table: str) -> int:
    """Count the rows of a table."""
    count: int = db.execute(f"SELECT count(*) FROM main.{table} NOT INDEXED").get
    return count


def _read_creation_time(db: apsw.Connection) -> int | None:
    """Return the time at which the index was created, in ms; None if it is not recorded."""
    if "created_at" not in _read_columns(db, "main", "meta"):
        return None
    time = db.execute("SELECT created_at FROM main.meta WHERE typeof(created_at) = 'integer' ORDER BY rowid").get
    return time if isinstance(time, int) else None


def _build_select(
    db: apsw.Connection, name: str, table: TableRules, columns: dict[str, str], counts: dict[str, int]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the SELECT expressions that convert a table, and the reasons why it cannot be converted.

    Args:
        db: the old index.
        name: name of the table.
        table: the layout's rules for the table.
        columns: types of the table's columns by name; empty if it is missing.
        counts: number of rows of each table.
    """
    if not columns:
        needing = [other for other in table.needed_by if counts[other]]
        return (), [
            tr(
                "its table {name} is missing, and the rows of {needing} depend on it",
                name=name,
                needing=needing[0],
            )
        ] * bool(needing)
    if not counts[name]:
        return (), []
    try:
        db.execute(f"SELECT rowid FROM main.{name} NOT INDEXED LIMIT 1").fetchall()
    except apsw.SQLError:
        return (), [tr("the rows of its table {name} have no row ids", name=name)]
    found = tuple(column if column in columns else table.fill.get(column, "NULL") for column in table.columns)
    select = tuple(f"{name}.{what}" if what in columns else what for what in found)
    return select, list(_describe_column_problems(db, name, table, columns))


def _describe_column_problems(
    db: apsw.Connection, name: str, table: TableRules, columns: dict[str, str]
) -> Iterator[str]:
    """Describe the columns of a table that differ from the layout in a way that affects existing rows."""

    def has_rows(condition: str) -> bool:
        """Whether a row of the table meets an SQL condition."""
        return db.execute(f"SELECT 1 FROM main.{name} NOT INDEXED WHERE {condition} LIMIT 1").get is not None

    for column in table.columns:
        if column not in columns:
            if column not in table.fill:
                yield tr("its column {name}.{column} is missing", name=name, column=column)
        elif (
            columns[column] != _column_type(column)
            # Values that a column of the layout's type would change.
            and column != _VECTOR
            and has_rows(f"typeof({column}) NOT IN ('{_column_type(column).lower()}', 'blob', 'null')")
        ):
            yield tr("its column {name}.{column} has another type", name=name, column=column)
    for column in columns:
        if column not in (*table.columns, _NUMBER) and has_rows(f"{untrusted_sqlite.quote_name(column)} IS NOT NULL"):
            yield tr(
                "its column {name}.{column} is unknown to the layout and contains values", name=name, column=column
            )


def _column_type(column: str) -> str:
    """Return the SQL type that the layout declares for a column."""
    return "INTEGER" if column in _INTEGER_COLUMNS else "BLOB" if column == _VECTOR else "TEXT"


def _describe_unknown_tables(db: apsw.Connection) -> Iterator[str]:
    """Describe tables with rows that no version of the layout has, except the table of preview builds."""
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    virtual = [str(name) for name, sql in rows if str(sql).upper().startswith("CREATE VIRTUAL")]
    for name, sql in rows:
        lower = str(name).lower()
        derived = str(sql).upper().startswith("CREATE VIRTUAL") or any(lower.startswith(f"{one}_") for one in virtual)
        if lower in (*TABLE_RULES, "meta") or derived or lower.startswith(("sqlite_", "search_text_fts_", "libsql_")):
            continue
        quoted = untrusted_sqlite.quote_name(str(name))
        if db.execute(f"SELECT 1 FROM {quoted} LIMIT 1").get is not None:
            yield tr("its table {name} is unknown to the layout and contains rows", name=name)


def _describe_rejected_rows(db: apsw.Connection, name: str, select: tuple[str, ...], time: int) -> Iterator[str]:
    """Describe rows of a table that the layout's constraints reject.

    Args:
        db: the old index.
        name: name of the table.
        select: SQL expression for each column of the layout.
        time: replacement for missing times, in ms.
    """
    table = TABLE_RULES[name]
    named = ", ".join(f"{what} AS {column}" for what, column in zip(select, table.columns, strict=True))
    rows = f"(SELECT {named} {_from_clause('main', name, select)})"
    values = {"time": time} if TIME_PARAMETER in named else {}

    def count(sql: str) -> int:
        """Return the count that a query selects."""
        found: int = db.execute(sql, values).get
        return found

    conditions = [
        (f"{column} IS NULL", tr("without {column}", column=column))
        for column in table.columns
        if column not in table.nullable
    ]
    # Invalid paths are damage of their own; a later repair of the new file gives these materials a path.
    conditions += [
        (f"({check}) IS FALSE", tr("violating the condition {check}", check=check))
        for check in table.checks
        if _PATH not in check
    ]
    for condition, what in conditions:
        found = count(f"SELECT count(*) FROM {rows} WHERE {condition}")
        if found:
            yield tr("{rows} of {name} {what}", rows=format_count(found, "row"), name=name, what=what)
    for columns in table.unique:
        key = ", ".join(columns)
        known = " AND ".join(f"{column} IS NOT NULL" for column in columns)
        doubles = f"SELECT 1 FROM {rows} WHERE {known} GROUP BY {key} HAVING count(*) > 1"
        found = count(f"SELECT count(*) FROM ({doubles})")
        if found:
            yield tr("{name} has {keys} ({key}) more than once", name=name, keys=format_count(found, "key"), key=key)


def _from_clause(schema_name: str, name: str, select: tuple[str, ...]) -> str:
    """Return the FROM clause that reads a table, with the join that some SELECT expressions need.

    ``schema_name`` is that of the file in SQLite: ``main`` or the name of an attached file.
    """
    joined = _ONLY_HASH_JOIN.format(schema=schema_name) if "only_hash" in select else ""
    return f"FROM {schema_name}.{name} AS {name} NOT INDEXED{joined}"


def _compute_digest(db: apsw.Connection, selects: dict[str, tuple[str, ...]], time: int) -> str:
    """Compute a digest over all rows of all tables in order, including the type of each value.

    Args:
        db: the index.
        selects: SQL expressions for the columns of each table.
        time: replacement for missing times, in ms.
    """
    hasher = hashlib.blake2b(digest_size=32)
    for name, select in selects.items():
        hasher.update(f"\n{name}\n".encode())
        exact = ", ".join(f"typeof({what}), CAST({what} AS BLOB)" for what in select)
        query = f"SELECT {exact} {_from_clause('main', name, select)} ORDER BY {name}.rowid"
        for row in db.execute(query, {"time": time} if TIME_PARAMETER in query else {}):
            for value in row:
                part = value.encode() if isinstance(value, str) else value or b""
                hasher.update(b"%d %b" % (len(part), part))
    return hasher.hexdigest()


# --- the new file ----------------------------------------------------------------------------------------------------


def build_current_index(path: Path, new: Path, old: OldIndex, base_id: str) -> None:
    """Write the rows of an old index to a new file of version 2 and verify it.

    Args:
        path: the old file.
        new: the new file, which must not exist.
        old: result of :func:`examine_index` without problems.
        base_id: id of the base, used if the file has no identity row.

    Raises:
        VerificationFailed: the new file differs from what was examined.
        apsw.Error, OSError: the old file cannot be read or the new one cannot be written.
    """
    with sqlite.open_writable(new, create=True) as db:
        # Dangling foreign keys are damage of their own and are kept.
        db.execute("PRAGMA foreign_keys = OFF")
        # So are invalid paths. All other checks were made by examine_index.
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.set_progress_handler(lambda: False, _INTERRUPT_STEPS)
        with sqlite.attach_readonly(db, path, _OLD):
            db.execute("BEGIN IMMEDIATE")
            _write_rows(db, old, base_id)
            write_indexes(db)
            db.execute("COMMIT")
        _verify(db, old, base_id)


def _write_rows(db: apsw.Connection, old: OldIndex, base_id: str) -> None:
    """Create the tables of the current layout and copy the rows of the old index, which is attached."""
    db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
    for statement in schema.TABLES:
        db.execute(statement)
    there = _read_columns(db, _OLD, "meta")
    named = "base_id" if "base_id" in there else "NULL"
    times = [
        f"iif(typeof({name}) = 'integer', {name}, :time)" if name in there else ":time"
        for name in ("created_at", "updated_at")
    ]
    identity = f"SELECT 1, :version, ifnull({named}, :base), {', '.join(times)} FROM {_OLD}.meta ORDER BY rowid LIMIT 1"
    if not old.has_identity:
        identity = "SELECT 1, :version, :base, :time, :time"
    db.execute(
        f"INSERT INTO main.meta (id, schema_version, base_id, created_at, updated_at) {identity}",
        {"version": schema.SCHEMA_VERSION, "base": base_id, "time": old.time},
    )
    numbers = itertools.count(1)

    def next_number(*_: Any) -> int:
        """SQL function: return the next number in the full-text index, from 1."""
        return next(numbers)

    db.create_scalar_function("next_number", next_number, 0)
    for name, select in old.selects.items():
        columns, values = list(TABLE_RULES[name].columns), list(select)
        if name == "search_text":
            columns, values = [*columns, _NUMBER], [*values, "next_number()"]
        statement = (
            f"INSERT INTO main.{name} ({', '.join(columns)})"
            f" SELECT {', '.join(values)} {_from_clause(_OLD, name, select)} ORDER BY {name}.rowid"
        )
        db.execute(statement, {"time": old.time} if TIME_PARAMETER in statement else {})


def _verify(db: apsw.Connection, old: OldIndex, base_id: str) -> None:
    """Raise VerificationFailed unless the new index has the rows of the old one and a matching full-text index."""

    def demand(condition: bool, reason: str) -> None:
        """Raise VerificationFailed unless a condition holds."""
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    whole = {name: tuple(f"{name}.{column}" for column in TABLE_RULES[name].columns) for name in old.selects}
    demand(_compute_digest(db, whole, old.time) == old.digest, tr("texts or vectors differ"))
    counts = {name: _count_rows(db, name) for name in TABLE_RULES}
    demand(counts == old.counts, tr("it contains {counts} instead of {counts2}", counts=counts, counts2=old.counts))
    out_of_step = db.execute("SELECT count(*) FROM search_text WHERE rowid IS NOT fts_rowid").get
    demand(out_of_step == 0, tr("{out_of_step} bodies do not match the full-text index", out_of_step=out_of_step))
    demand(full_text_matches(db), tr("the full-text index does not match the stored texts"))
