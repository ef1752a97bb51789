"""Compare the schema of an index file or catalog with the layout (``docs/formats/index.md``).

The wording of statements does not matter. Tables are compared by columns and keys; checks and triggers are executed in
a scratch file that is created by the file's own statements.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import apsw
import msgspec

from checks.audit import findings as audit_findings
from checks.audit.collector import FindingCollector
from checks.audit.sqlite_checks import (
    ForeignObject,
    TriggerTrial,
    deny_other_files,
    describe_replaced_table,
    find_called_functions,
    find_foreign_on_tables,
    find_foreign_views,
    find_full_text_indexes,
    has_extra_effects,
    read_schema_objects,
)
from regraft.disk import scratch, sqlite, untrusted_sqlite
from regraft.disk.untrusted_sqlite import ROW_NUMBERS, cascading_keys, find_conflict_rule, is_virtual, table_statements
from regraft.formats.cherry_preview import PREVIEW_TABLE as PREVIEW
from regraft.formats.cherry_v2.catalog_generation import AGENT_LINKS, ASSISTANT_LINKS, BASES, ITEMS, MODELS, PROVIDERS
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.language import tr

FULL_TEXT = "search_text_fts"
_ROWID = "fts_rowid"

#: Name, type, NOT NULL, and position in the primary key of each column.
_COLUMNS: dict[str, tuple[tuple[str, str, int, int], ...]] = {
    "meta": (
        *(("id", "INTEGER", 0, 1), ("schema_version", "INTEGER", 1, 0), ("base_id", "TEXT", 1, 0)),
        *(("created_at", "INTEGER", 1, 0), ("updated_at", "INTEGER", 1, 0)),
    ),
    "content": (("content_hash", "TEXT", 0, 1), ("text", "TEXT", 1, 0), ("created_at", "INTEGER", 1, 0)),
    "material": (
        *(("material_id", "TEXT", 0, 1), ("relative_path", "TEXT", 1, 0), ("current_content_hash", "TEXT", 0, 0)),
        *(("created_at", "INTEGER", 1, 0), ("updated_at", "INTEGER", 1, 0)),
    ),
    "search_unit": (
        *(("unit_id", "TEXT", 0, 1), ("material_id", "TEXT", 1, 0), ("content_hash", "TEXT", 1, 0)),
        *(("unit_type", "TEXT", 1, 0), ("unit_index", "INTEGER", 1, 0), ("title", "TEXT", 0, 0)),
        *(("char_start", "INTEGER", 1, 0), ("char_end", "INTEGER", 1, 0), ("locator_json", "TEXT", 0, 0)),
        ("created_at", "INTEGER", 1, 0),
    ),
    "search_text": (
        *(("search_text_id", "TEXT", 0, 1), ("target_type", "TEXT", 1, 0), ("target_id", "TEXT", 1, 0)),
        *(("kind", "TEXT", 1, 0), ("text", "TEXT", 1, 0), ("embedding_text_hash", "TEXT", 1, 0)),
        *((_ROWID, "INTEGER", 0, 0), ("created_at", "INTEGER", 1, 0)),
    ),
    "embedding": (
        *(("embedding_text_hash", "TEXT", 0, 1), ("vector_blob", "BLOB", 1, 0), ("created_at", "INTEGER", 1, 0)),
    ),
}
_INDEXES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "material_content_idx": ("material", ("current_content_hash",), 0),
    "search_unit_material_index_idx": ("search_unit", ("material_id", "unit_type", "unit_index"), 1),
    "search_unit_content_idx": ("search_unit", ("content_hash",), 0),
    "search_unit_material_idx": ("search_unit", ("material_id",), 0),
    "search_text_target_kind_idx": ("search_text", ("target_type", "target_id", "kind"), 1),
    "search_text_embedding_hash_idx": ("search_text", ("embedding_text_hash",), 0),
    "search_text_kind_idx": ("search_text", ("kind",), 0),
    "search_text_fts_rowid_uniq": ("search_text", (_ROWID,), 1),
}
_KEYS = {
    "material": {("content", "current_content_hash", "content_hash", "NO ACTION")},
    "search_unit": {
        ("material", "material_id", "material_id", "CASCADE"),
        ("content", "content_hash", "content_hash", "CASCADE"),
    },
}
_TRIGGERS = ("search_text_ai", "search_text_ad", "search_text_au")
_MATERIAL = "INSERT INTO material (material_id, relative_path, created_at, updated_at) VALUES ('m', {}, 0, 0)"
_UNIT = (
    "INSERT INTO search_unit (unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,"
    " created_at) VALUES ('u', 'm', 'c', {}, {}, {}, {}, 0)"
)
_BODY = (
    "INSERT INTO search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash, created_at)"
    " VALUES ('t', {}, 'u', {}, 'lighthouse', 'h', 0)"
)
_BUILD_ANEW = f"INSERT INTO {FULL_TEXT} ({FULL_TEXT}) VALUES ('rebuild')"
#: Statements that a CHECK of the layout refuses, by the column that it is for.
_REFUSED = {
    "meta.id": ("INSERT INTO meta VALUES (2, 2, 'b', 0, 0)",),
    "material.relative_path": tuple(_MATERIAL.format(path) for path in ("''", "'/x'", "'.cherry'", "'.cherry/x'")),
    "search_unit.unit_type": (_UNIT.format("'page'", 0, 0, 0),),
    "search_unit.unit_index": (_UNIT.format("'chunk'", -1, 0, 0),),
    "search_unit.char_start": (_UNIT.format("'chunk'", 0, -1, 0),),
    "search_unit.char_end": (_UNIT.format("'chunk'", 0, 2, 1),),
    "search_text.target_type": (_BODY.format("'page'", "'body'"),),
    "search_text.kind": (_BODY.format("'search_unit'", "'title'"),),
}


class SchemaShape(msgspec.Struct):
    """Which tables of the layout can be read, and which parts of it are missing or differ."""

    #: Tables that have all their columns, and ``search_text_fts``.
    tables: set[str] = msgspec.field(default_factory=set)
    missing: list[str] = msgspec.field(default_factory=list)
    #: Whether bodies have the column ``fts_rowid`` (version 2); in version 1 the row number links them.
    has_rowid: bool = True

    def has(self, *tables: str) -> bool:
        """Whether all these tables can be read."""
        return self.tables.issuperset(tables)


def compare_schema(db: apsw.Connection, findings: FindingCollector) -> SchemaShape:
    """Compare the schema of an open index file with the layout, and return which tables can be read.

    ``findings`` limits how long the trial of the file's statements may take.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    # As bytes: a damaged schema can hold any value.
    rows = db.execute("SELECT type, CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL")
    schema = {(str(kind), _text(name)): _text(sql) for kind, name, sql in rows}
    shape = SchemaShape()
    is_version_1 = ("table", "meta") in schema and _read_version(db) == 1
    shape.has_rowid = not is_version_1 or ("index", "search_text_fts_rowid_uniq") in schema
    _compare_tables(db, schema, shape)
    shape.missing += [name for name in _INDEXES if _is_wrong_index(db, name, shape)]
    if schema.get(("table", FULL_TEXT), "").upper().startswith("CREATE VIRTUAL TABLE"):
        shape.tables.add(FULL_TEXT)
    else:
        shape.missing.append(FULL_TEXT)
    shape.missing += [name for name in _TRIGGERS if ("trigger", name) not in schema]
    if shape.has(*_COLUMNS, FULL_TEXT):
        shape.missing += _find_wrong_effects(schema, shape, findings)
    return shape


def _compare_tables(db: apsw.Connection, schema: Mapping[tuple[str, str], str], shape: SchemaShape) -> None:
    """Add missing and different tables, columns and keys to a shape; ``schema`` has SQL statements by type and name."""
    for table in _COLUMNS:
        wrong = list(_find_wrong_columns(db, table, shape)) if ("table", table) in schema else [table]
        shape.missing += wrong
        if not wrong:
            shape.tables.add(table)
    shape.missing += [key for table in _KEYS if shape.has(table) for key in _find_missing_keys(db, table)]


def _text(raw: bytes | None) -> str:
    """Decode a value of the schema; parts that are not UTF-8 are replaced."""
    return (raw or b"").decode("utf-8", "replace")


def _read_version(db: apsw.Connection) -> object:
    """Return the layout version that the identity row states; None if it has no such column."""
    try:
        return db.execute("SELECT schema_version FROM meta").get
    except apsw.SQLError:
        return None  # the column is missing, which is found as such


def _find_wrong_columns(db: apsw.Connection, table: str, shape: SchemaShape) -> Iterator[str]:
    """Yield the columns of a table that are missing, different, or hide the row numbers, as ``table.column``."""
    rows = db.execute(f"PRAGMA table_xinfo('{table}')")
    there = {name: (str(kind).upper(), nn, key, hidden) for _, name, kind, nn, _, key, hidden in rows}
    # Rows are identified by row number, so the table must have row numbers and no column of that name.
    yield from (f"{table}.{name}" for name in there if str(name).lower() in ROW_NUMBERS)
    listed = "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ? COLLATE NOCASE"
    if db.execute(listed, (table,)).get:
        yield tr("{table} (numbers of rows)", table=table)
    for name, *about in _COLUMNS[table]:
        if name == _ROWID and not shape.has_rowid:
            continue
        if name not in there or not _is_like(there[name], about):
            yield f"{table}.{name}"


def _is_like(column: tuple[str, int, int, int], expected: Sequence[object]) -> bool:
    """Whether a column is as the layout defines it.

    ``column`` has its type, and whether it is NOT NULL, a key, and generated; ``expected`` the first three.
    """
    # A key may also be NOT NULL. A generated column cannot be written.
    kind, is_needed, key, is_generated = column
    return not is_generated and [kind, 0 if key else is_needed, key] == list(expected)


def _find_missing_keys(db: apsw.Connection, table: str) -> Iterator[str]:
    """Yield descriptions of the foreign keys and unique columns of the layout that a table lacks."""
    there = set()
    for _, _, to, column, target, _, action, _ in db.execute(f"PRAGMA foreign_key_list('{table}')"):
        # A foreign key without a column refers to the primary key.
        primary_key = {"content": "content_hash", "material": "material_id"}.get(str(to))
        there.add((to, column, target or primary_key, action))
    yield from (f"{table}.{key[1]} → {key[0]}" for key in sorted(_KEYS[table]) if key not in there)
    unique = [row[1] for row in db.execute(f"PRAGMA index_list('{table}')") if row[2]]
    if table == "material" and ["relative_path"] not in [_index_columns(db, name) for name in unique]:
        yield tr("material.relative_path (unique)")


def _index_columns(db: apsw.Connection, name: str) -> list[str]:
    """Return the columns of the index ``name``."""
    quoted = name.replace("'", "''")
    return [row[2] for row in db.execute(f"PRAGMA index_info('{quoted}')")]


def _is_wrong_index(db: apsw.Connection, name: str, shape: SchemaShape) -> bool:
    """Whether the index ``name`` of the layout is missing from the file, or different."""
    table, columns, unique = _INDEXES[name]
    if columns == (_ROWID,) and not shape.has_rowid:
        return False
    of_table = {row[1]: (row[2], row[4]) for row in db.execute(f"PRAGMA index_list('{table}')")}
    return of_table.get(name) != (unique, 0) or _index_columns(db, name) != list(columns)


def _find_wrong_effects(
    schema: dict[tuple[str, str], str], shape: SchemaShape, findings: FindingCollector
) -> list[str]:
    """Return the names of columns and triggers that do not do what the layout requires, by executing the statements.

    A schema without such names is remembered, and an equal one is not executed again.

    Args:
        schema: the file's SQL statements by type and name.
        shape: tells whether bodies have the column ``fts_rowid``.
        findings: limits the time of each statement; nothing is added to it.
    """
    wanted = [("table", table) for table in (*_COLUMNS, FULL_TEXT)] + [("trigger", name) for name in _TRIGGERS]
    statements = {key: schema[key] for key in wanted if key in schema}
    mark = hashlib.blake2b(repr((shape.has_rowid, statements)).encode(), digest_size=16).digest()
    if mark in _RIGHT:
        return []
    found = list(_try_statements(statements, shape, findings))
    if not found and len(_RIGHT) < _MOST_RIGHT:
        _RIGHT.add(mark)
    return found


#: Digests of schemas that passed the trial: most bases of a store have the same one.
_RIGHT: set[bytes] = set()
_MOST_RIGHT = 1000


def _try_statements(
    statements: dict[tuple[str, str], str], shape: SchemaShape, findings: FindingCollector
) -> Iterator[str]:
    """Execute the file's CREATE statements in a scratch file, and yield the names of what behaves unlike the layout.

    ``statements`` are by type and name. After a statement that fails, only its name is yielded. ``findings`` limits
    the time of each statement.
    """
    with (
        scratch.temporary_folder() as folder,
        sqlite.open_writable(folder / "scratch.sqlite", create=True) as db,
        findings.limit_statements(db, 0),
    ):
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA journal_mode = MEMORY")
        # The scratch file is private, so its triggers may run.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        db.authorizer = deny_other_files
        for (_, name), statement in statements.items():
            try:
                db.execute(statement)
            except sqlite.SYSTEM_ERRORS:
                raise
            except (apsw.Error, ValueError):  # ValueError: a NUL or a surrogate in it
                yield name
                return
        yield from (
            what for what, tries in _REFUSED.items() if not all(_is_refused(db, sql, findings) for sql in tries)
        )
        if all(("trigger", name) in statements for name in _TRIGGERS):
            yield from _find_wrong_trigger(db, shape, findings)


def _is_refused(db: apsw.Connection, sql: str, findings: FindingCollector) -> bool:
    """Whether SQLite refuses a statement, as the layout's checks must do; its effect is rolled back."""
    db.execute("SAVEPOINT tried")
    is_refused = False
    try:
        db.execute(sql)
    except apsw.InterruptError:
        findings.check_time()  # it would not have ended, so nothing was refused
    except sqlite.SYSTEM_ERRORS:
        raise  # a full disk says nothing about the layout, and SQLite has rolled back
    except apsw.Error:
        is_refused = True
    if db.in_transaction:
        db.execute("ROLLBACK TO tried")
        db.execute("RELEASE tried")
    return is_refused


def _find_wrong_trigger(db: apsw.Connection, shape: SchemaShape, findings: FindingCollector) -> Iterator[str]:
    """Yield the name of the first trigger after which the full-text index does not match the bodies."""
    for name, sql, word, gone in (
        ("search_text_ai", _BODY.format("'search_unit'", "'body'"), "ghtho", None),
        (FULL_TEXT, _BUILD_ANEW, "ghtho", None),
        ("search_text_au", "UPDATE search_text SET text = 'fog bell'", "og b", "ghtho"),
        ("search_text_ad", "DELETE FROM search_text", None, "og b"),
    ):
        try:
            if name == FULL_TEXT and shape.has_rowid:
                # After a rebuild, the full-text index must use ``fts_rowid`` and not the row number.
                db.execute("UPDATE search_text SET rowid = 7")
            db.execute(sql)
            is_wrong = not _finds_words(db, shape, word, gone)
        except apsw.InterruptError:
            findings.check_time()  # it would not have ended
            is_wrong = True
        except sqlite.SYSTEM_ERRORS:
            raise
        except apsw.Error:
            is_wrong = True
        if is_wrong:
            yield name
            return


def _finds_words(db: apsw.Connection, shape: SchemaShape, word: str | None, removed_word: str | None) -> bool:
    """Whether a full-text search for ``word`` finds every body, and a search for ``removed_word`` finds none."""

    def hits(word: str) -> list[object]:
        """Return the numbers of the entries that contain a word."""
        found = db.execute(f"SELECT rowid FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH ?", (f'"{word}"',))
        return [row[0] for row in found]

    number = _ROWID if shape.has_rowid else "rowid"
    rows = [row[0] for row in db.execute(f"SELECT {number} FROM search_text")]
    if word is not None and hits(word) != rows:
        return False
    return removed_word is None or not hits(removed_word)


# --- objects that the layout does not define (``docs/findings.md``, ``schema.foreign-…``) ----------------------------


_FTS5 = re.compile(r"\bUSING\s+[\"'`\[]?fts5\b", re.IGNORECASE)
#: Functions that the rules of the layout's tables call.
_IN_RULES = {"like", "length", "trim", "ifnull", "coalesce"}


_PREVIEW_TEXT = f"{PREVIEW}_fts"
#: The triggers of a layout, with their tables.
_OWN_TRIGGERS = {
    **dict.fromkeys(_TRIGGERS, "search_text"),
    **{f"{PREVIEW}_{when}": PREVIEW for when in ("ai", "ad", "au")},
}


_TRIAL_TABLES = (
    *schema.TABLES,
    schema.FULL_TEXT,
    f"CREATE TABLE {PREVIEW} (id, external_id, collection, document, metadata, embeddings)",
    f"CREATE VIRTUAL TABLE {_PREVIEW_TEXT} USING fts5 (document, content = '{PREVIEW}')",
)
_INDEX_TRIAL = TriggerTrial(
    statements=_TRIAL_TABLES,
    firing={
        "search_text": (
            "INSERT INTO search_text (search_text_id) VALUES ('t')",
            "UPDATE search_text SET text = 't'",
            "DELETE FROM search_text",
        ),
        PREVIEW: (
            f"INSERT INTO {PREVIEW} (id) VALUES ('t')",
            f"UPDATE {PREVIEW} SET document = 't'",
            f"DELETE FROM {PREVIEW}",
        ),
    },
    written=frozenset({("search_text", FULL_TEXT), (PREVIEW, _PREVIEW_TEXT)}),
    updated=frozenset({("search_text", "search_text", "fts_rowid")}),
)


def find_foreign_in_index(db: apsw.Connection) -> list[ForeignObject]:
    """Return the schema objects of an index file that no known version defines; empty for a file of a newer version.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    with suppress(apsw.SQLError):
        version = db.execute("SELECT schema_version FROM meta ORDER BY id LIMIT 1").get
        if isinstance(version, int) and version > SCHEMA_VERSION:
            return []
    found = [*_find_foreign_triggers(db), *find_foreign_views(db, {*_COLUMNS, FULL_TEXT})]
    for table, statement in table_statements(db).items():
        if table.lower() in _COLUMNS:
            found += _find_foreign_columns(db, table, statement)
        elif table.lower() == FULL_TEXT and is_virtual(statement) and not _FTS5.search(statement):
            found.append(describe_replaced_table(table, tr("a virtual table of another kind")))
        else:
            message = tr("{n} cascading changes of the layout's tables")
            keys = () if is_virtual(statement) else cascading_keys(db, table, _COLUMNS.keys())
            found += [_foreign_column(key, message, "key") for key in keys]
    return [*found, *_find_foreign_indexes(db), *find_full_text_indexes(db)]


def _find_foreign_triggers(db: apsw.Connection) -> Iterator[ForeignObject]:
    """Yield the triggers of a file that the layout does not have, or that do more than the layout's."""
    for name, table, sql in read_schema_objects(db, "trigger"):
        dropped = f"DROP TRIGGER {untrusted_sqlite.quote_name(name)}"
        if _OWN_TRIGGERS.get(name.lower()) != table.lower():
            yield ForeignObject(
                finding=audit_findings.FOREIGN_TRIGGER,
                name=name,
                message=tr("{n} not part of the application's layout"),
                noun="trigger",
                removal=(dropped,),
            )
        elif has_extra_effects(name, table, sql, _INDEX_TRIAL):
            again = tuple(one for one in schema.TRIGGERS if one.split()[2] == name.lower())
            message = tr("{n} of the layout with a different definition")
            yield ForeignObject(
                finding=audit_findings.FOREIGN_TRIGGER,
                name=name,
                message=message,
                noun="trigger",
                removal=(dropped, *again),
            )


def _find_foreign_columns(db: apsw.Connection, table: str, statement: str) -> Iterator[ForeignObject]:
    """Yield columns, keys and constraints of a table that the layout does not define, or the table if it is virtual.

    ``statement`` is the table's CREATE TABLE statement.
    """
    if is_virtual(statement):
        yield describe_replaced_table(table, tr("a virtual table"))
        return
    known_columns = {name for name, *_ in _COLUMNS[table.lower()]}
    for row in db.execute(f"PRAGMA table_xinfo({untrusted_sqlite.quote_name(table)})").fetchall():
        name, is_made = f"{table}.{row[1]}", bool(row[6])
        if is_made:
            yield _foreign_column(name, tr("{n} computed from other columns"), "column")
        elif str(row[1]).lower() not in known_columns:
            yield _foreign_column(name, tr("{n} not part of the application's layout"), "column")
    rule = find_conflict_rule(statement)
    if rule is not None:
        yield _foreign_column(table, tr("{{n}} with {rule}", rule=rule), "table")
    for key in cascading_keys(db, table, _COLUMNS.keys()):
        yield _foreign_column(key, tr("{n} cascading changes"), "key")
    for name in sorted(find_called_functions(statement) - _IN_RULES):
        yield _foreign_column(table, tr("{{n}} with a constraint that calls {name}", name=name), "table")


def _foreign_column(name: str, message: str, noun: str) -> ForeignObject:
    """Return the foreign object for a column, key or table; ``noun`` says which."""
    return ForeignObject(finding=audit_findings.FOREIGN_COLUMN, name=name, message=message, noun=noun)


def _find_foreign_indexes(db: apsw.Connection) -> Iterator[ForeignObject]:
    """Yield the indexes on tables of the layout that the layout does not define."""
    message = tr("{n} not part of the application's layout")
    for name, table, _ in read_schema_objects(db, "index"):
        if table.lower() in _COLUMNS and name.lower() not in _INDEXES:
            yield ForeignObject(finding=audit_findings.FOREIGN_INDEX, name=name, message=message, noun="index")


def find_foreign_in_catalog(db: apsw.Connection) -> list[ForeignObject]:
    """Return foreign triggers on the catalog's knowledge tables, and views and virtual tables in their place.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    return find_foreign_on_tables(db, (BASES, ITEMS, MODELS, PROVIDERS, ASSISTANT_LINKS, AGENT_LINKS))
