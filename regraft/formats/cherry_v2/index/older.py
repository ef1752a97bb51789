"""An index file of an older or half-applied layout: what it holds, and the same as a fresh file of version 2.

Rows are taken as they are, damage to them too; only what the layout itself says is filled in. The full-text index is
always built anew: of version 1's nobody knows whether it points at the right rows (``docs/formats/index.md``,
"Version 1").
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator
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

#: The schema that an old file is attached as.
_OLD = "old"
#: Bytes that a row grows by, and how much larger a file is while its full-text index is merged.
_ROW_BYTES, _MERGING = 64, 1.3
#: SQLite lets Python look for Ctrl-C after so many steps of its machine.
_STEPS = 200_000
ENCODING = "UTF-8"


_WHOLE_NUMBERS = {"created_at", "updated_at", "unit_index", "char_start", "char_end"}
_PATH = "relative_path"
_VECTOR = "vector_blob"
_NUMBER = "fts_rowid"
#: Units of a material that all name one text, where the material itself has no place to name it.
_ONLY_HASH = """ LEFT JOIN (SELECT material_id AS of_material, min(content_hash) AS only_hash
                   FROM {schema}.search_unit GROUP BY material_id HAVING count(DISTINCT content_hash) = 1)
                 ON of_material = material.material_id"""


class OldIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What an index file of any version holds, as far as a file of version 2 can be made of it."""

    #: ``meta.schema_version``, None where no row says one.
    version: Any
    has_identity: bool
    #: How many rows each table has.
    counts: dict[str, int]
    #: Why no file of version 2 can be made without losing or inventing something, for a person.
    problems: tuple[str, ...]
    #: A digest over all rows, as the new file will hold them.
    digest: str
    #: The time that stands in for one that is missing, in ms.
    time: int
    #: SQL expressions for the columns of each table that has any row.
    selects: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def bytes(self, size: int) -> int:
        """Return about how many bytes the new file takes, the old one having ``size``."""
        return int(size * _MERGING) + _ROW_BYTES * sum(self.counts.values())


def is_newer_version(version: Any) -> bool:
    """Tell whether what stands in ``meta.schema_version`` is a version that is not known yet."""
    try:
        return not isinstance(version, float) and int(version) > schema.SCHEMA_VERSION
    except (TypeError, ValueError):
        return False


def read_version(db: apsw.Connection) -> tuple[Any, bool]:
    """Return ``meta.schema_version`` and whether there is an identity row.

    Raises:
        apsw.Error: the file is damaged.
    """
    columns = _columns(db, "main", "meta")
    if not columns:
        return None, False
    version = "schema_version" if "schema_version" in columns else "NULL"
    # Text as bytes: it may be no UTF-8.
    value = f"iif(typeof({version}) = 'text', CAST({version} AS BLOB), {version})"
    row = db.execute(f"SELECT {value} FROM main.meta ORDER BY rowid LIMIT 1").fetchone()
    found = None if row is None else row[0]
    return (found.decode("utf-8", "replace").replace("\0", "") if isinstance(found, bytes) else found), row is not None


def examine_index(db: apsw.Connection, now_ms: int, *, knows_base: bool) -> OldIndex:
    """Read all of an old index and return what a new file can be made of.

    Args:
        db: opened for reading.
        now_ms: the time for what never had one, in ms.
        knows_base: whether the place of the file tells whose it is.

    Raises:
        apsw.Error, UnicodeDecodeError: it is damaged.
    """
    version, has_identity = read_version(db)
    problems = [] if has_identity or knows_base else [tr("nothing says whose index it is")]
    if db.execute("PRAGMA encoding").get != ENCODING:
        problems.append(tr("its texts are in another encoding than {encoding}", encoding=ENCODING))
    tables = {name: _columns(db, "main", name) for name in TABLE_RULES}
    counts = {name: _count(db, name) if columns else 0 for name, columns in tables.items()}
    time = _time(db) or now_ms
    selects, wrong = _selects(db, tables, counts)
    problems += wrong
    problems += _strangers(db)
    for name, select in selects.items():
        problems += _refused(db, name, select, time)
    problems += _hidden(db, selects)
    digest = "" if problems else _digest(db, "main", selects, time)
    return OldIndex(
        version=version,
        has_identity=has_identity,
        counts=counts,
        problems=tuple(problems),
        digest=digest,
        time=time,
        selects=selects,
    )


def _columns(db: apsw.Connection, place: str, table: str) -> dict[str, str]:
    """Return columns and their types in capitals of what is an ordinary table; nothing of anything else."""
    sql = db.execute(
        f"SELECT CAST(sql AS BLOB) FROM {place}.sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE",
        (table,),
    ).get
    if sql is None or not sql.decode("utf-8", "replace").replace("\0", "").upper().startswith("CREATE TABLE"):
        return {}
    rows = db.execute(f"PRAGMA {place}.table_xinfo('{table}')")
    return {str(row[1]).lower(): str(row[2]).upper() for row in rows}


def _count(db: apsw.Connection, table: str) -> int:
    count: int = db.execute(f"SELECT count(*) FROM main.{table} NOT INDEXED").get
    return count


def _time(db: apsw.Connection) -> int | None:
    if "created_at" not in _columns(db, "main", "meta"):
        return None
    time = db.execute("SELECT created_at FROM main.meta WHERE typeof(created_at) = 'integer' ORDER BY rowid").get
    return time if isinstance(time, int) else None


def _selects(
    db: apsw.Connection, tables: dict[str, dict[str, str]], counts: dict[str, int]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return what the rows of each table that has any are read with, and what is in the way of that."""
    selects: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for name, table in TABLE_RULES.items():
        found, wrong = _select(db, name, table, tables[name], counts)
        problems += wrong
        if counts[name] and not wrong:
            selects[name] = found
    return selects, problems


def _select(
    db: apsw.Connection, name: str, table: TableRules, columns: dict[str, str], counts: dict[str, int]
) -> tuple[tuple[str, ...], list[str]]:
    """Return what a table's rows are read with, and what is in the way of that."""
    if not columns:
        needing = [other for other in table.needed_by if counts[other]]
        return (), [
            tr(
                "its table {name} is missing, without which the rows of {needing} mean nothing",
                name=name,
                needing=needing[0],
            )
        ] * bool(needing)
    if not counts[name]:
        return (), []
    if not _has_row_ids(db, name):
        return (), [tr("the rows of its table {name} have no order", name=name)]
    found = tuple(column if column in columns else table.fill.get(column, "NULL") for column in table.columns)
    select = tuple(f"{name}.{what}" if what in columns else what for what in found)
    return select, list(_wrong_columns(db, name, table, columns))


def _wrong_columns(db: apsw.Connection, name: str, table: TableRules, columns: dict[str, str]) -> Iterator[str]:
    """Say which columns are not the layout's, as far as that matters to the rows that are there."""
    for column in table.columns:
        if column not in columns:
            if column not in table.fill:
                yield tr("its column {name}.{column} is missing", name=name, column=column)
        elif columns[column] != _type(column) and _has_others(db, name, column):
            yield tr("its column {name}.{column} is of another type", name=name, column=column)
    for column in columns:
        if column not in (*table.columns, _NUMBER) and _has_any(db, name, column):
            yield tr(
                "its column {name}.{column} is not one of the layout's, and holds something", name=name, column=column
            )


def _type(column: str) -> str:
    return "INTEGER" if column in _WHOLE_NUMBERS else "BLOB" if column == _VECTOR else "TEXT"


def _has_row_ids(db: apsw.Connection, table: str) -> bool:
    try:
        db.execute(f"SELECT rowid FROM main.{table} NOT INDEXED LIMIT 1").fetchall()
    except apsw.SQLError:
        return False
    return True


def _has_others(db: apsw.Connection, table: str, column: str) -> bool:
    """Tell whether a column has values that would become others in one of the layout's type."""
    if column == _VECTOR:
        return False
    where = f"typeof({column}) NOT IN ('{_type(column).lower()}', 'blob', 'null')"
    return db.execute(f"SELECT 1 FROM main.{table} NOT INDEXED WHERE {where} LIMIT 1").get is not None


def _has_any(db: apsw.Connection, table: str, column: str) -> bool:
    quoted = untrusted_sqlite.quote_name(column)
    return db.execute(f"SELECT 1 FROM main.{table} NOT INDEXED WHERE {quoted} IS NOT NULL LIMIT 1").get is not None


def _strangers(db: apsw.Connection) -> Iterator[str]:
    """Name tables with rows that no version of the layout has; a preview build's are looked after elsewhere."""
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall()
    virtual = [str(name) for name, sql in rows if str(sql).upper().startswith("CREATE VIRTUAL")]
    for name, sql in rows:
        lower = str(name).lower()
        derived = str(sql).upper().startswith("CREATE VIRTUAL") or any(lower.startswith(f"{one}_") for one in virtual)
        if lower in (*TABLE_RULES, "meta") or derived or lower.startswith(("sqlite_", "search_text_fts_", "libsql_")):
            continue
        quoted = untrusted_sqlite.quote_name(str(name))
        if db.execute(f"SELECT 1 FROM {quoted} LIMIT 1").get is not None:
            yield tr("its table {name} is not one of the layout's, and has rows", name=name)


def _hidden(db: apsw.Connection, tables: Iterable[str]) -> Iterator[str]:
    """Say that a scan may give fewer rows than there are: a copy of these would take the file's place."""
    damage = table_integrity.find_inconsistency(db, tables)
    if damage is not None:
        yield tr("its pages do not agree on which rows there are: {damage}", damage=damage)


def _refused(db: apsw.Connection, name: str, select: tuple[str, ...], time: int) -> Iterator[str]:
    """Say which rows the layout would refuse."""
    table = TABLE_RULES[name]
    named = ", ".join(f"{what} AS {column}" for what, column in zip(select, table.columns, strict=True))
    rows = f"(SELECT {named} {_from('main', name, select)})"
    values = {"time": time} if TIME_PARAMETER in named else {}

    def count(sql: str) -> int:
        found: int = db.execute(sql, values).get
        return found

    for condition, what in _row_faults(table):
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


def _row_faults(table: TableRules) -> Iterator[tuple[str, str]]:
    """Yield the conditions under which the layout refuses a row, each with what to say of such rows."""
    for column in table.columns:
        if column not in table.nullable:
            yield f"{column} IS NULL", tr("without {column}", column=column)
    for check in table.checks:
        # A path that is none is damage of its own, which a mend of the new file gives a name.
        if _PATH not in check:
            yield f"({check}) IS FALSE", tr("of which this does not hold: {check}", check=check)


def _from(place: str, name: str, select: tuple[str, ...]) -> str:
    joined = _ONLY_HASH.format(schema=place) if "only_hash" in select else ""
    return f"FROM {place}.{name} AS {name} NOT INDEXED{joined}"


def _digest(db: apsw.Connection, place: str, selects: dict[str, tuple[str, ...]], time: int) -> str:
    """Return a digest over all rows of all tables in their order, byte for byte and type for type."""
    hasher = hashlib.blake2b(digest_size=32)
    for name, select in selects.items():
        hasher.update(f"\n{name}\n".encode())
        exact = ", ".join(f"typeof({what}), CAST({what} AS BLOB)" for what in select)
        query = f"SELECT {exact} {_from(place, name, select)} ORDER BY {name}.rowid"
        for row in db.execute(query, {"time": time} if TIME_PARAMETER in query else {}):
            for value in row:
                part = value.encode() if isinstance(value, str) else value or b""
                hasher.update(b"%d %b" % (len(part), part))
    return hasher.hexdigest()


# --- the new file ----------------------------------------------------------------------------------------------------


def build_current_index(path: Path, new: Path, old: OldIndex, base_id: str) -> None:
    """Write what an old index holds to ``new`` as a file of version 2, and compare it with what was read.

    Args:
        path: the old file.
        new: where no file is yet.
        old: what :func:`examine` found in it, without problems.
        base_id: whose index it is, where no identity row of its own says so.

    Raises:
        VerificationFailed: the new file is not what was examined.
        apsw.Error, OSError: one cannot be read, or the other not be written.
    """
    with sqlite.open_writable(new, create=True) as db:
        # Rows of which a key leads nowhere are damage of their own, and stay.
        db.execute("PRAGMA foreign_keys = OFF")
        # So do paths that are none; all other checks were made beforehand.
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.set_progress_handler(lambda: False, _STEPS)
        with sqlite.attach_readonly(db, path, _OLD):
            db.execute("BEGIN IMMEDIATE")
            _write_rows(db, old, base_id)
            write_indexes(db)
            db.execute("COMMIT")
        _verify(db, old, base_id)


def _write_rows(db: apsw.Connection, old: OldIndex, base_id: str) -> None:
    db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
    for statement in schema.TABLES:
        db.execute(statement)
    _write_identity(db, old, base_id)
    numbers = itertools.count(1)

    def next_number(*_: Any) -> int:
        return next(numbers)

    db.create_scalar_function("next_number", next_number, 0)
    for name, select in old.selects.items():
        columns, values = list(TABLE_RULES[name].columns), list(select)
        if name == "search_text":
            columns, values = [*columns, _NUMBER], [*values, "next_number()"]
        statement = (
            f"INSERT INTO main.{name} ({', '.join(columns)})"
            f" SELECT {', '.join(values)} {_from(_OLD, name, select)} ORDER BY {name}.rowid"
        )
        db.execute(statement, {"time": old.time} if TIME_PARAMETER in statement else {})


def _write_identity(db: apsw.Connection, old: OldIndex, base_id: str) -> None:
    there = _columns(db, _OLD, "meta")
    named = "base_id" if "base_id" in there else "NULL"
    times = [
        f"iif(typeof({name}) = 'integer', {name}, :time)" if name in there else ":time"
        for name in ("created_at", "updated_at")
    ]
    values = {"version": schema.SCHEMA_VERSION, "base": base_id, "time": old.time}
    query = f"SELECT 1, :version, ifnull({named}, :base), {', '.join(times)} FROM {_OLD}.meta ORDER BY rowid LIMIT 1"
    if not old.has_identity:
        query = "SELECT 1, :version, :base, :time, :time"
    db.execute(f"INSERT INTO main.meta (id, schema_version, base_id, created_at, updated_at) {query}", values)


def _verify(db: apsw.Connection, old: OldIndex, base_id: str) -> None:
    def demand(condition: bool, reason: str) -> None:
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    whole = {name: tuple(f"{name}.{column}" for column in TABLE_RULES[name].columns) for name in old.selects}
    demand(_digest(db, "main", whole, old.time) == old.digest, tr("texts or vectors differ"))
    counts = {name: _count(db, name) for name in TABLE_RULES}
    demand(counts == old.counts, tr("it holds {counts} instead of {counts2}", counts=counts, counts2=old.counts))
    out_of_step = db.execute("SELECT count(*) FROM search_text WHERE rowid IS NOT fts_rowid").get
    demand(
        out_of_step == 0, tr("{out_of_step} bodies are out of step with the full-text index", out_of_step=out_of_step)
    )
    demand(full_text_matches(db), tr("the full-text index does not match the bodies"))
