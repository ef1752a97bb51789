"""Whether a database of codex-mem has its tables, its triggers and migration 006 (``docs/formats/codex_mem.md``).

The wording of statements is nobody's business: triggers are tried out in a scratch database that is made by the file's
own statements.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import apsw

from checks.audit.collector import FindingCollector, named
from checks.codex_mem import findings as codex
from regraft import sqlite
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import COLUMNS, FULL_TEXT, MIGRATION, MIGRATIONS, NOTES
from regraft.language import joined, tr

_SCOPE = ("session_id", "system_id", "project_id", "workspace_id")
#: What is read of each table.
_NEEDED: dict[str, tuple[str, ...]] = {
    "systems": ("id",),
    "projects": ("id", "system_id", "slug", "name"),
    "workspaces": ("id", "project_id"),
    "sessions": ("id", "system_id", "project_id", "workspace_id"),
    NOTES: (
        *("id", *_SCOPE, "type", "title", "content", "importance", "status", "created_at"),
        *("searchable", "exclusion_reason"),
    ),
    "handoffs": ("id", *_SCOPE, "searchable", "exclusion_reason"),
    MIGRATIONS: ("version", "name", "applied_at"),
}
_FULL_TEXT = re.compile(r"CREATE\s+VIRTUAL\s+TABLE\s+.*?\bUSING\s+fts5\s*\((.*)\)", re.IGNORECASE | re.DOTALL)
#: What that table is made with, in any order.
_ARGUMENTS = {"title", "content", f"content={NOTES}", "content_rowid=rowid"}
_SCRATCH_FULL_TEXT = (
    f"CREATE VIRTUAL TABLE {FULL_TEXT} USING fts5 (title, content, content = '{NOTES}', content_rowid = 'rowid')"
)
_TRIGGERS = ("memory_items_ai", "memory_items_ad", "memory_items_au")
_ADD = f"INSERT INTO {NOTES} (rowid, title, content, searchable) VALUES ({{}}, 'lighthouse', 'fog bell', {{}})"
#: Statements for a scratch database, with the trigger that each is about, a word, and the notes that it finds then.
_TRIES: tuple[tuple[str, str, str, list[int]], ...] = (
    ("memory_items_ai", _ADD.format(1, 1), "fog", [1]),
    ("memory_items_ai", _ADD.format(2, 0), "fog", [1]),
    ("memory_items_au", f"UPDATE {NOTES} SET content = 'harbour' WHERE rowid = 1", "fog", []),
    ("memory_items_au", "SELECT 1", "harbour", [1]),
    ("memory_items_au", f"UPDATE {NOTES} SET searchable = 0 WHERE rowid = 1", "harbour", []),
    ("memory_items_ad", _ADD.format(3, 1), "lighthouse", [3]),
    ("memory_items_ad", f"DELETE FROM {NOTES} WHERE rowid = 3", "lighthouse", []),
)


def lacking(db: apsw.Connection) -> list[str]:
    """Return what the database has not that is read of it: tables, and columns as ``table.column``.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    missing = []
    for table, columns in _NEEDED.items():
        there = {str(row[1]) for row in db.execute(f"PRAGMA table_xinfo({table})")}
        missing += [f"{table}.{column}" for column in columns if column not in there] if there else [table]
    return missing


def check_triggers(db: apsw.Connection, ledger: FindingCollector) -> None:
    """Find triggers and a full-text table that are missing or do something else.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    schema = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'trigger')"))
    if not _is_full_text(str(schema.get(FULL_TEXT))):
        ledger.add(codex.TRIGGER, tr("the full-text table is made in another way"), sample=FULL_TEXT)
        return
    columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info({NOTES})")]
    there = {name: str(schema[name]) for name in _TRIGGERS if name in schema}
    for name in (*(name for name in _TRIGGERS if name not in there), *_failing(columns, there)):
        message = tr("missing or different: {n} that keeps the full-text index")
        ledger.add(codex.TRIGGER, message, noun="trigger", sample=name)


def _is_full_text(sql: str) -> bool:
    found = _FULL_TEXT.match(sql)
    # What is a name, a text in quotes or a blank between them does not matter.
    words = [] if found is None else [re.sub(r"[\s'\"`\[\]]", "", word).lower() for word in found[1].split(",")]
    return sorted(words) == sorted(_ARGUMENTS)


def _failing(columns: list[str], triggers: dict[str, str]) -> Iterator[str]:
    """Yield the first trigger that does something else; where one is missing, nobody can tell of the others."""
    if len(triggers) < len(_TRIGGERS):
        return
    with sqlite.in_memory() as db:
        # The triggers are what is tried: the file is nobody's.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 1)
        db.authorizer = _no_other_file
        db.execute(f"CREATE TABLE {NOTES} ({', '.join(map(sqlite.quoted, columns))})")
        db.execute(_SCRATCH_FULL_TEXT)
        for name, sql in triggers.items():
            try:
                db.execute(sql)
            except (apsw.Error, ValueError):  # ValueError: a NUL in it
                yield name
                return
        for name, statement, word, wanted in _TRIES:
            if not _does(db, statement, word, wanted):
                yield name
                return


def _does(db: apsw.Connection, statement: str, word: str, wanted: list[int]) -> bool:
    query = f"SELECT rowid FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH ?"
    try:
        db.execute(statement).fetchall()
        return [row[0] for row in db.execute(query, (word,))] == wanted
    except apsw.Error:
        return False


def _no_other_file(operation: int, *_: object) -> int:
    return apsw.SQLITE_DENY if operation in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH) else apsw.SQLITE_OK


def check_migration(db: apsw.Connection, ledger: FindingCollector, *, has_vectors: bool) -> None:
    """Find migration 006 where it is there in part, or is another one.

    Args:
        db: the database.
        ledger: what is wrong goes there.
        has_vectors: whether there is a file of vectors.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    version, name = MIGRATION
    recorded = database.migration_recorded(db)
    there = database.columns_there(db)
    missing = [column for column in COLUMNS if column not in there]
    foreign = database.foreign_column(db)
    if missing and recorded not in (None, name):
        message = tr(
            "another migration {version} is recorded ({named}): what it makes nobody can tell",
            version=version,
            named=named(recorded),
        )
        ledger.add(codex.MIGRATION, message, is_beyond_repair=True)
    elif foreign is not None:
        message = tr("a column that migration 006 makes is there, and must not be empty")
        ledger.add(codex.MIGRATION, message, sample=foreign, is_beyond_repair=True)
    elif missing and there:
        message = tr("only some columns of migration 006 are there, {missing} not", missing=joined(missing))
        ledger.add(codex.MIGRATION, message, sample=missing[0])
    elif missing:
        _check_absent(ledger, is_recorded=recorded is not None, has_vectors=has_vectors)
    elif recorded is None:
        ledger.add(codex.MIGRATION, tr("all columns of migration 006 are there, and it is not recorded"))


def _check_absent(ledger: FindingCollector, *, is_recorded: bool, has_vectors: bool) -> None:
    if is_recorded or has_vectors:
        what = tr("it is recorded") if is_recorded else tr("there is a file of vectors")
        ledger.add(codex.MIGRATION, tr("no column of migration 006 is there, and {what}", what=what))
