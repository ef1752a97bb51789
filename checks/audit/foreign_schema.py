"""What a file's schema has that its layout does not (``docs/findings.md``, ``schema.foreign-…``).

Nothing of it ever runs here (:mod:`regraft.guarding`): triggers of the layout's names are compiled, beside tables of
our own, by a database that tells what they would do, and rules of tables likewise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import apsw

from checks.audit import file_findings
from checks.audit.collector import FindingCollector, named
from regraft import sqlite
from regraft.formats.cherry_preview.libsql import TABLE as PREVIEW
from regraft.formats.cherry_v2.catalog_generation import AGENT_LINKS, ASSISTANT_LINKS, BASES, ITEMS, MODELS, PROVIDERS
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.formats.codex_mem.database import FULL_TEXT as NOTES_TEXT
from regraft.formats.codex_mem.database import MIGRATIONS, NOTES
from regraft.untouched import carrying_keys, is_virtual, tables_of, text_indexes, wrong_rule

FULL_TEXT = "search_text_fts"
_FTS5 = re.compile(r"\bUSING\s+[\"'`\[]?fts5\b", re.IGNORECASE)
_RAISE = re.compile(r"\braise\b", re.IGNORECASE)
#: No text in a trial is long: a function that makes one of nothing fails.
_LONGEST = 1 << 20
#: The functions that definitions of the layouts call.
_IN_TRIGGERS = {"ifnull", "coalesce", "max"}
_IN_RULES = {"like", "length", "trim", "ifnull", "coalesce"}


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """Something in a schema that the layout does not have."""

    #: The finding that it is.
    finding: str
    #: What it is called in the file: the object's name, or ``table.column``.
    name: str
    #: What it is, with ``{n}`` for how many there are of it.
    message: str
    noun: str
    #: The statements that take it out of the file without losing a row; none where there are none.
    mended: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Own:
    """What a layout has: columns by table, indexes, and its triggers with the tables that they are on."""

    tables: Mapping[str, frozenset[str]]
    indexes: frozenset[str] = frozenset()
    triggers: Mapping[str, str] = field(default_factory=dict)


_PREVIEW_TEXT = f"{PREVIEW}_fts"
_INDEX = _Own(
    tables={
        "meta": frozenset({"id", "schema_version", "base_id", "created_at", "updated_at"}),
        "content": frozenset({"content_hash", "text", "created_at"}),
        "material": frozenset({"material_id", "relative_path", "current_content_hash", "created_at", "updated_at"}),
        "search_unit": frozenset(
            {
                *("unit_id", "material_id", "content_hash", "unit_type", "unit_index", "title"),
                *("char_start", "char_end", "locator_json", "created_at"),
            }
        ),
        "search_text": frozenset(
            {
                *("search_text_id", "target_type", "target_id", "kind", "text", "embedding_text_hash", "fts_rowid"),
                "created_at",
            }
        ),
        "embedding": frozenset({"embedding_text_hash", "vector_blob", "created_at"}),
    },
    indexes=frozenset(statement.split(" ON ")[0].split()[-1] for statement in schema.INDEXES),
    triggers={
        **dict.fromkeys(("search_text_ai", "search_text_ad", "search_text_au"), "search_text"),
        **{f"{PREVIEW}_{when}": PREVIEW for when in ("ai", "ad", "au")},
    },
)


@dataclass(frozen=True, eq=False)
class _Trial:
    """Tables to compile the triggers of a layout beside, and what these do by right."""

    statements: tuple[str, ...]
    #: Statements that would fire a trigger, by the table that it is on.
    firing: Mapping[str, tuple[str, ...]]
    #: Tables that a trigger may write to, each with the table that it is on.
    written: frozenset[tuple[str, str]]


_PARTS = (
    *schema.TABLES,
    schema.FULL_TEXT,
    f"CREATE TABLE {PREVIEW} (id, external_id, collection, document, metadata, embeddings)",
    f"CREATE VIRTUAL TABLE {_PREVIEW_TEXT} USING fts5 (document, content = '{PREVIEW}')",
)
_OF_INDEX = _Trial(
    statements=_PARTS,
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
)
_OF_NOTES = _Trial(
    statements=(
        f"CREATE TABLE {NOTES} (id TEXT PRIMARY KEY, title TEXT, content TEXT, searchable INTEGER)",
        f"CREATE VIRTUAL TABLE {NOTES_TEXT} USING fts5 (title, content, content = '{NOTES}')",
    ),
    firing={
        NOTES: (
            f"INSERT INTO {NOTES} (id) VALUES ('n')",
            f"UPDATE {NOTES} SET id = 'n', title = 't', content = 't', searchable = 1",
            f"DELETE FROM {NOTES}",
        )
    },
    written=frozenset({(NOTES, NOTES_TEXT)}),
)


def add(found: Iterable[Foreign], ledger: FindingCollector, base: str | None) -> None:
    """Add what is foreign to the findings of an audit."""
    for one in found:
        ledger.add(one.finding, one.message, base=base, noun=one.noun, sample=one.name, is_beyond_repair=not one.mended)


# --- index files -----------------------------------------------------------------------------------------------------


def of_index(db: apsw.Connection) -> list[Foreign]:
    """Return what an index file has that no version of its layout has; nothing of one that is newer than ours.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    if _is_newer(db):
        return []
    found = [*_triggers(db, _INDEX), *_views(db, _INDEX.tables)]
    for table, statement in tables_of(db).items():
        own = _INDEX.tables.get(table.lower())
        if own is not None:
            found += _columns(db, table, statement, own)
        elif table.lower() == FULL_TEXT and is_virtual(statement) and not _FTS5.search(statement):
            found.append(_instead(table, "a virtual table of another kind"))
        else:
            message = "{n} that carries changes of the layout's tables on"
            keys = () if is_virtual(statement) else carrying_keys(db, table, _INDEX.tables.keys())
            found += [
                Foreign(finding=file_findings.FOREIGN_COLUMN, name=key, message=message, noun="key") for key in keys
            ]
    return [*found, *_indexes(db, _INDEX), *_text_indexes(db)]


def _is_newer(db: apsw.Connection) -> bool:
    with suppress(apsw.SQLError):
        version = db.execute("SELECT schema_version FROM meta ORDER BY id LIMIT 1").get
        return isinstance(version, int) and version > SCHEMA_VERSION
    return False


def _objects(db: apsw.Connection, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield the name, the table and the statement of each object of a kind; what holds no text is left out."""
    query = (
        "SELECT CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema"
        " WHERE type = ? AND name IS NOT NULL AND sql IS NOT NULL ORDER BY rowid"
    )
    rows: list[tuple[Any, ...]] = db.execute(query, (kind,)).fetchall()
    for row in rows:
        name, table, sql = ((part or b"").decode("utf-8", "replace") for part in row)
        yield name, table, sql


def _triggers(db: apsw.Connection, own: _Own) -> Iterator[Foreign]:
    for name, table, sql in _objects(db, "trigger"):
        dropped = f"DROP TRIGGER {sqlite.quoted(name)}"
        if own.triggers.get(name.lower()) != table.lower():
            yield Foreign(
                finding=file_findings.FOREIGN_TRIGGER,
                name=name,
                message="{n} that the layout does not have",
                noun="trigger",
                mended=(dropped,),
            )
        elif does_more(name, table, sql, _OF_INDEX):
            again = tuple(one for one in schema.TRIGGERS if one.split()[2] == name.lower())
            message = "{n} of the layout's that does something else, too"
            yield Foreign(
                finding=file_findings.FOREIGN_TRIGGER,
                name=name,
                message=message,
                noun="trigger",
                mended=(dropped, *again),
            )


def _views(db: apsw.Connection, tables: Iterable[str]) -> Iterator[Foreign]:
    own = {*tables, FULL_TEXT}
    for name, _, _ in _objects(db, "view"):
        if name.lower() in own:
            yield Foreign(
                finding=file_findings.FOREIGN_VIEW, name=name, message="{n} in the place of a table", noun="view"
            )
        else:
            dropped = f"DROP VIEW {sqlite.quoted(name)}"
            yield Foreign(
                finding=file_findings.FOREIGN_VIEW,
                name=name,
                message="{n} that the layout does not have",
                noun="view",
                mended=(dropped,),
            )


def _columns(db: apsw.Connection, table: str, statement: str, own: frozenset[str]) -> Iterator[Foreign]:
    if is_virtual(statement):
        yield _instead(table, "a virtual table")
        return
    for row in db.execute(f"PRAGMA table_xinfo({sqlite.quoted(table)})").fetchall():
        name, is_made = str(row[1]), bool(row[6])
        if is_made or name.lower() not in own:
            message = "{n} that follows from others" if is_made else "{n} that the layout does not have"
            yield Foreign(finding=file_findings.FOREIGN_COLUMN, name=f"{table}.{name}", message=message, noun="column")
    rule = wrong_rule(statement)
    if rule is not None:
        yield Foreign(finding=file_findings.FOREIGN_COLUMN, name=table, message=f"{{n}} with {rule}", noun="table")
    keys = carrying_keys(db, table, _INDEX.tables.keys())
    yield from (
        Foreign(finding=file_findings.FOREIGN_COLUMN, name=key, message="{n} that carries changes on", noun="key")
        for key in keys
    )
    called = sorted(_called_by(statement) - _IN_RULES)
    yield from (
        Foreign(
            finding=file_findings.FOREIGN_COLUMN,
            name=table,
            message=f"{{n}} with a rule that calls {name}",
            noun="table",
        )
        for name in called
    )


def _instead(table: str, what: str) -> Foreign:
    return Foreign(finding=file_findings.FOREIGN_COLUMN, name=table, message=f"{{n}} that is {what}", noun="table")


def _indexes(db: apsw.Connection, own: _Own) -> Iterator[Foreign]:
    for name, table, _ in _objects(db, "index"):
        if table.lower() in own.tables and name.lower() not in own.indexes:
            yield Foreign(
                finding=file_findings.FOREIGN_INDEX,
                name=name,
                message="{n} that the layout does not have",
                noun="index",
            )


def _text_indexes(db: apsw.Connection) -> Iterator[Foreign]:
    for name in text_indexes(db):
        message = "{n} on the tables of the full-text index"
        yield Foreign(
            finding=file_findings.FOREIGN_TEXT_INDEX,
            name=name,
            message=message,
            noun="index",
            mended=(f"DROP INDEX {sqlite.quoted(name)}",),
        )


# --- other databases -------------------------------------------------------------------------------------------------


def of_codex_mem(db: apsw.Connection) -> list[Foreign]:
    """Return what codex-mem's database has on its notes that is none of its own.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    own = {f"{NOTES}_{when}" for when in ("ai", "ad", "au")}
    found = on_tables(db, (NOTES, MIGRATIONS), own)
    for name, table, sql in _objects(db, "trigger"):
        if name in own and table.lower() == NOTES and does_more(name, table, sql, _OF_NOTES):
            message = "{n} of codex-mem's that does something else, too"
            found.append(Foreign(finding=file_findings.FOREIGN_TRIGGER, name=name, message=message, noun="trigger"))
    return [*found, *_text_indexes(db)]


def of_catalog(db: apsw.Connection) -> list[Foreign]:
    """Return what a catalog has on the tables of knowledge, and what stands in their place; all else is its own.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    return on_tables(db, (BASES, ITEMS, MODELS, PROVIDERS, ASSISTANT_LINKS, AGENT_LINKS))


def on_tables(db: apsw.Connection, tables: Iterable[str], triggers: Iterable[str] = ()) -> list[Foreign]:
    """Return what another database has on some of its tables: triggers, and views in their place.

    Args:
        db: the database, of the application or another system; all else in it is theirs.
        tables: the ones that rows are read of or changed in.
        triggers: names of those triggers that the layout has.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    own, known = {name.lower() for name in tables}, set(triggers)
    found = []
    for name, table, _ in _objects(db, "trigger"):
        if table.lower() in own and name.lower() not in known:
            dropped = f"DROP TRIGGER {sqlite.quoted(name)}"
            message = "{n} on a table that is changed here, which the layout does not have"
            found.append(
                Foreign(
                    finding=file_findings.FOREIGN_TRIGGER, name=name, message=message, noun="trigger", mended=(dropped,)
                )
            )
    found += [view for view in _views(db, own) if view.name.lower() in own]
    for table, statement in tables_of(db).items():
        if table.lower() in own and is_virtual(statement):
            found.append(_instead(table, "a virtual table"))
    return found


# --- what definitions would do ---------------------------------------------------------------------------------------


def does_more(name: str, table: str, sql: str, trial: _Trial) -> bool:
    """Tell whether a trigger that has the name of one of the layout's does anything that none of these does.

    These write to the full-text index and to the number of a body in it, and call next to nothing.
    """
    return (_tried if len(sql) <= _REMEMBERED else _tried.__wrapped__)(name, table, sql, trial)


@lru_cache(maxsize=64)
def _tried(name: str, table: str, sql: str, trial: _Trial) -> bool:
    if _RAISE.search(sql):
        return True
    done: set[tuple[int, str | None, str | None]] = set()
    wanted = name.lower()

    def watch(action: int, first: str | None, second: str | None, _: str | None, inside: str | None) -> int:
        if inside is not None and inside.lower() == wanted:
            done.add((action, first, second))
        return apsw.SQLITE_DENY if action in _ELSEWHERE else apsw.SQLITE_OK

    with sqlite.in_memory() as db:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, _LONGEST)
        for statement in trial.statements:
            db.execute(statement)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        db.authorizer = watch
        try:
            db.execute(sql)
            for statement in trial.firing[table.lower()]:
                db.execute(f"EXPLAIN {statement}").fetchall()
        except apsw.SQLError:
            return True  # it is about a table that no layout has
        except (apsw.Error, ValueError):
            return False  # damaged: it is missing, which is found as such
    return not all(_is_own(trial, table.lower(), *one) for one in done)


#: Triggers of up to so many characters are remembered: most bases of a store have the same ones.
_REMEMBERED = 4096
#: What nobody's definitions do: reach other files, or walk in circles.
_ELSEWHERE = {apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_RECURSIVE, apsw.SQLITE_PRAGMA}


def _is_own(trial: _Trial, table: str, action: int, first: str | None, second: str | None) -> bool:
    if action == apsw.SQLITE_FUNCTION:
        return str(second).lower() in _IN_TRIGGERS
    if action == apsw.SQLITE_INSERT:
        return (table, str(first).lower()) in trial.written
    if action == apsw.SQLITE_UPDATE:
        return (table, str(first).lower(), str(second).lower()) == ("search_text", "search_text", "fts_rowid")
    if action == apsw.SQLITE_READ:
        return str(first).lower() == table or (table, str(first).lower()) in trial.written
    return action == apsw.SQLITE_SELECT


def _called_by(statement: str) -> frozenset[str]:
    """Return the functions that a table's own rules call, by making it where nothing else is."""
    return _rules_call(statement) if len(statement) <= _REMEMBERED else _rules_call.__wrapped__(statement)


@lru_cache(maxsize=64)
def _rules_call(statement: str) -> frozenset[str]:
    called: set[str] = set()

    def watch(action: int, _: str | None, second: str | None, *__: str | None) -> int:
        if action == apsw.SQLITE_FUNCTION:
            called.add(named(second).lower())
        return apsw.SQLITE_DENY if action in _ELSEWHERE else apsw.SQLITE_OK

    with sqlite.in_memory() as db:
        db.authorizer = watch
        with suppress(apsw.Error, ValueError):  # damaged, which is found as such
            db.execute(statement)
    return frozenset(called)
