"""Checks that apply to any SQLite file: objects that the layout does not define, the full-text index, and opening.

Definitions found in a file are never executed on it (:mod:`regraft.disk.untrusted_sqlite`). A trigger or table rule is
compiled in a private in-memory database, whose authorizer records what it would do. Findings: ``schema.foreign-…``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.audit import findings as audit_findings
from checks.audit.collector import FindingCollector, display_text
from regraft.disk import file_paths, links, sqlite, untrusted_sqlite
from regraft.disk.untrusted_sqlite import full_text_shadow_indexes, is_virtual, table_statements
from regraft.language import format_count, tr

_RAISE = re.compile(r"\braise\b", re.IGNORECASE)
#: Longest value in a trial, in bytes, so that a definition cannot allocate much memory.
_LONGEST = 1 << 20
#: Functions that the layout's own triggers call.
_IN_TRIGGERS = {"ifnull", "coalesce", "max"}


class ForeignObject(msgspec.Struct, frozen=True, kw_only=True):
    """A schema object that the layout does not define."""

    #: The name of the finding.
    finding: str
    #: The object's name, or ``table.column``.
    name: str
    #: Message of the finding; ``{n}`` is the count with ``noun``.
    message: str
    noun: str
    #: Statements that remove it without losing a row; empty if that is not possible.
    removal: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TriggerTrial:
    """Tables for compiling the triggers of a layout, and the effects that these triggers are allowed to have."""

    statements: tuple[str, ...]
    #: Statements that fire a trigger, by the trigger's table.
    firing: Mapping[str, tuple[str, ...]]
    #: Pairs of a trigger's table and a table that it may insert into.
    written: frozenset[tuple[str, str]]
    #: Triples of a trigger's table, and the table and column that it may update.
    updated: frozenset[tuple[str, str, str]] = frozenset()


def add_foreign_objects(objects: Iterable[ForeignObject], findings: FindingCollector, base: str | None) -> None:
    """Report schema objects that the layout does not define, as findings of ``base``; None: of no base."""
    for one in objects:
        findings.add(
            one.finding, one.message, base=base, noun=one.noun, sample=one.name, is_beyond_repair=not one.removal
        )


def read_schema_objects(db: apsw.Connection, kind: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, table and SQL statement of each schema object of one kind, in the order of creation.

    ``kind`` is a type in ``sqlite_schema``: "trigger", "view", "index" or "table".
    """
    query = (
        "SELECT CAST(name AS BLOB), CAST(tbl_name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema"
        " WHERE type = ? AND name IS NOT NULL AND sql IS NOT NULL ORDER BY rowid"
    )
    rows: list[tuple[Any, ...]] = db.execute(query, (kind,)).fetchall()
    for row in rows:
        name, table, sql = ((part or b"").decode("utf-8", "replace") for part in row)
        yield name, table, sql


def find_foreign_views(db: apsw.Connection, tables: Iterable[str]) -> Iterator[ForeignObject]:
    """Yield every view of a file: a layout has none. A view that replaces one of ``tables`` gets another message."""
    own = set(tables)
    for name, _, _ in read_schema_objects(db, "view"):
        if name.lower() in own:
            yield ForeignObject(
                finding=audit_findings.FOREIGN_VIEW, name=name, message=tr("{n} instead of a table"), noun="view"
            )
        else:
            dropped = f"DROP VIEW {untrusted_sqlite.quote_name(name)}"
            yield ForeignObject(
                finding=audit_findings.FOREIGN_VIEW,
                name=name,
                message=tr("{n} not part of the application's layout"),
                noun="view",
                removal=(dropped,),
            )


def describe_replaced_table(table: str, kind: str) -> ForeignObject:
    """Return the foreign object for a table of the layout that the file has as another kind of object.

    ``kind`` is a noun phrase for the message, such as "a virtual table".
    """
    return ForeignObject(
        finding=audit_findings.FOREIGN_COLUMN,
        name=table,
        message=tr("{{n}} replaced by {what}", what=kind),
        noun="table",
    )


def find_full_text_indexes(db: apsw.Connection) -> Iterator[ForeignObject]:
    """Yield indexes on the internal tables of a full-text index, which no layout defines."""
    for name in full_text_shadow_indexes(db):
        message = tr("{n} on an internal table of the full-text index")
        yield ForeignObject(
            finding=audit_findings.FOREIGN_TEXT_INDEX,
            name=name,
            message=message,
            noun="index",
            removal=(f"DROP INDEX {untrusted_sqlite.quote_name(name)}",),
        )


def find_foreign_on_tables(
    db: apsw.Connection, tables: Iterable[str], triggers: Iterable[str] = ()
) -> list[ForeignObject]:
    """Find triggers on some tables of a database that the layout lacks, and views and virtual tables in their place.

    Args:
        db: a database of the application or another system; its other objects are ignored.
        tables: the tables that regraft reads or changes.
        triggers: names of the layout's own triggers.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    own, known = {name.lower() for name in tables}, set(triggers)
    found = []
    for name, table, _ in read_schema_objects(db, "trigger"):
        if table.lower() in own and name.lower() not in known:
            dropped = f"DROP TRIGGER {untrusted_sqlite.quote_name(name)}"
            message = tr("{n} not part of the layout, on a table that would be changed")
            found.append(
                ForeignObject(
                    finding=audit_findings.FOREIGN_TRIGGER,
                    name=name,
                    message=message,
                    noun="trigger",
                    removal=(dropped,),
                )
            )
    found += [view for view in find_foreign_views(db, own) if view.name.lower() in own]
    for table, statement in table_statements(db).items():
        if table.lower() in own and is_virtual(statement):
            found.append(describe_replaced_table(table, tr("a virtual table")))
    return found


# --- effects of definitions, found without running them on the file -------------------------------------------------


def has_extra_effects(name: str, table: str, sql: str, trial: TriggerTrial) -> bool:
    """Whether a trigger of a file does more than the layout's triggers, although the layout has one of its name.

    The layout's triggers write the full-text index and the number of a body in it, and call almost no function.

    Args:
        name: the name of the trigger.
        table: the table that fires it.
        sql: its CREATE TRIGGER statement.
        trial: tables for trying it, and the effects that are allowed.
    """
    return (_try_trigger if len(sql) <= _REMEMBERED else _try_trigger.__wrapped__)(name, table, sql, trial)


@lru_cache(maxsize=64)
def _try_trigger(name: str, table: str, sql: str, trial: TriggerTrial) -> bool:
    """Whether a trigger of a file does more than the layout's triggers: fire it on an empty copy of the tables."""
    if _RAISE.search(sql):
        return True
    done: set[tuple[int, str | None, str | None]] = set()
    wanted = name.lower()

    def watch(action: int, first: str | None, second: str | None, _: str | None, inside: str | None) -> int:
        """Record an action of the trigger; SQLite's authorizer callback. Deny what leads out of the copy."""
        if inside is not None and inside.lower() == wanted:
            done.add((action, first, second))
        return apsw.SQLITE_DENY if action in _ELSEWHERE else apsw.SQLITE_OK

    with sqlite.open_in_memory() as db:
        db.limit(apsw.SQLITE_LIMIT_LENGTH, _LONGEST)
        for statement in trial.statements:
            db.execute(statement)
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        db.authorizer = watch
        try:
            db.execute(sql)
            for statement in trial.firing[table.lower()]:
                db.execute(f"EXPLAIN {statement}").fetchall()
        except (apsw.Error, ValueError):
            # It is about a table that no layout has, or does what is denied, or is too long.
            return True
    return not all(_is_allowed_effect(trial, table.lower(), *one) for one in done)


#: Maximum length of a definition whose result is cached: most bases of a store have the same definitions.
_REMEMBERED = 4096
#: Operations that are denied in a trial: access to other files, recursion, settings.
_ELSEWHERE = {apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH, apsw.SQLITE_RECURSIVE, apsw.SQLITE_PRAGMA}


def _is_allowed_effect(trial: TriggerTrial, table: str, action: int, subject: str | None, detail: str | None) -> bool:
    """Whether the triggers of the layout on ``table`` do an action, too.

    Args:
        trial: the effects that are allowed.
        table: the table that fires the trigger.
        action: SQLite's authorizer code of the action.
        subject: the table of the action; None or another name for actions without a table.
        detail: the column, or the function that is called.
    """
    if action == apsw.SQLITE_FUNCTION:
        return str(detail).lower() in _IN_TRIGGERS
    if action == apsw.SQLITE_INSERT:
        return (table, str(subject).lower()) in trial.written
    if action == apsw.SQLITE_UPDATE:
        return (table, str(subject).lower(), str(detail).lower()) in trial.updated
    if action == apsw.SQLITE_READ:
        return str(subject).lower() == table or (table, str(subject).lower()) in trial.written
    return action == apsw.SQLITE_SELECT


def deny_other_files(operation: int, *_: object) -> int:
    """Deny attaching other database files; an authorizer for SQLite, which gives it the code of each operation."""
    return apsw.SQLITE_DENY if operation in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH) else apsw.SQLITE_OK


def find_called_functions(statement: str) -> frozenset[str]:
    """Return the names of the functions that the rules of a table call.

    ``statement`` is its CREATE TABLE, which is executed in a private database.
    """
    trace = _trace_called_functions if len(statement) <= _REMEMBERED else _trace_called_functions.__wrapped__
    return trace(statement)


@lru_cache(maxsize=64)
def _trace_called_functions(statement: str) -> frozenset[str]:
    """Execute a CREATE TABLE statement in memory; return the SQL functions that its CHECK and DEFAULT clauses call."""
    called: set[str] = set()

    def watch(action: int, _: str | None, second: str | None, *__: str | None) -> int:
        """Record a call of a function; SQLite's authorizer callback."""
        if action == apsw.SQLITE_FUNCTION:
            called.add(display_text(second).lower())
        return apsw.SQLITE_DENY if action in _ELSEWHERE else apsw.SQLITE_OK

    with sqlite.open_in_memory() as db:
        db.authorizer = watch
        with suppress(apsw.Error, ValueError):  # damaged, which is found as such
            db.execute(statement)
    return frozenset(called)


# --- full-text indexes ----------------------------------------------------------------------------------------------


_PARTS = ("data", "idx", "docsize", "config")
#: Id of the row of an index's data that holds its counts.
AVERAGES = 1


def words_agree(
    db: apsw.Connection, index: str, source: str, bodies: str, arguments: str, averages: bytes | None = None
) -> bool:
    """Whether a full-text index (FTS5) holds the words of its texts, by SQLite's own integrity check.

    The check is a write, so it runs on a copy of the index's data in a temporary table.

    Args:
        db: the file, opened read-only.
        index: the name of the virtual table.
        source: the name of the table that the index takes its texts from.
        bodies: a query for the texts, each with its ``number`` in the index.
        arguments: the columns and options of the virtual table.
        averages: the row with the index's counts, to use instead of the one in the file; None: the one in the file.

    Raises:
        apsw.Error: the file is damaged.
    """
    # The file is opened read-only; this allows temporary tables.
    db.execute("PRAGMA query_only = 0")
    # The index's data are rows of 4 KB, read in their order: larger pages are fewer reads and writes.
    db.execute("PRAGMA temp.page_size = 16384")
    try:
        with untrusted_sqlite.allow_schema_writes(db):
            db.execute(f"CREATE TEMP VIEW {source} AS {bodies}")
            made_of = f"{arguments}, content = '{source}', content_rowid = 'number'"
            db.execute(f"CREATE VIRTUAL TABLE temp.{index} USING fts5 ({made_of})")
            for part in _PARTS:
                db.execute(f"DELETE FROM temp.{index}_{part}")
                db.execute(f"INSERT INTO temp.{index}_{part} SELECT * FROM main.{index}_{part}")
            if averages is not None:
                db.execute(f"REPLACE INTO temp.{index}_data VALUES (?, ?)", (AVERAGES, averages))
        try:
            db.execute(f"INSERT INTO temp.{index} ({index}, rank) VALUES ('integrity-check', 1)")
        except apsw.CorruptError as error:
            if getattr(error, "extendedresult", 0) != apsw.SQLITE_CORRUPT_VTAB:
                raise
            return False
        return True
    finally:
        for what in (f"TABLE IF EXISTS temp.{index}", f"VIEW IF EXISTS temp.{source}"):
            db.execute(f"DROP {what}")
        db.execute("PRAGMA query_only = 1")


# --- opening --------------------------------------------------------------------------------------------------------


def find_open_problem(path: Path) -> str | None:
    """Return the reason why a file cannot be opened as a SQLite database; None if it can."""
    try:
        if not file_paths.is_file(path):
            return tr("it is not a file")
        with links.open_for_reading(path) as file:
            start = file.read(16)
        if start != untrusted_sqlite.MAGIC:
            return tr("it is empty") if not start else tr("it is not a SQLite file")
        # A log or journal may hold the missing pages.
        lost = (
            0 if untrusted_sqlite.find_companions(links.real_path(path)) else untrusted_sqlite.count_missing_bytes(path)
        )
    except (OSError, ValueError) as error:
        return str(error)
    return tr("it lacks {bytes} at its end", bytes=format_count(lost, "byte")) if lost else None
