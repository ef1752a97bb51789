"""Migration 006 of codex-mem's database: columns for what is known of a note's vector, and nothing else.

It follows a draft of codex-mem's own (``docs/formats/codex_mem.md``, "Migration 006"). It is made on a copy of the
file, page by page, which then takes the file's place: row numbers and the full-text index stay as they are.
"""

from __future__ import annotations

from pathlib import Path

import apsw

from checks.codex_mem import findings as codex
from regraft import sqlite, untouched
from regraft.clock import iso_time
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import COLUMNS, MIGRATION, MIGRATIONS, NOTES
from regraft.language import joined, tr
from regraft.system_errors import MigrationForeign
from regraft.text import counted
from repair.changes.copies import copy_database
from repair.changes.plan import Action, FileChange, Plan
from repair.changes.store import Store


def plan(store: Store, now_ms: int) -> Plan:
    """Return what brings a database to migration 006; nothing is written.

    Raises:
        MigrationForeign: it has another migration 006, or one of the columns is another one.
    """
    changes = changes_of(store, now_ms)
    return Plan([*changes], resolves={(codex.MIGRATION, None)} if changes else set())


def changes_of(store: Store, now_ms: int) -> list[FileChange]:
    """Return the change that adds what is missing of migration 006; none where all of it is there.

    Raises:
        MigrationForeign: it has another migration 006, or one of the columns is another one.
    """
    path = store.found.path
    with sqlite.reading(path) as db:
        missing = missing_columns(db, path)
        is_recorded = database.migration_recorded(db) is not None
    if not missing and is_recorded:
        return []
    steps = []
    if missing:
        steps.append(
            tr("add {columns} to {notes}, all of them empty", columns=counted(len(missing), "column"), notes=NOTES)
        )
    if not is_recorded:
        steps.append(tr("record migration {migration}", migration=MIGRATION[1]))
    action = Action(
        action="migrate-metadata", message=joined(steps, tr(" and ")), subject=path.name, count=len(missing) or 1
    )
    applied_at = iso_time(now_ms)

    def make(new: Path) -> None:
        copy_database(path, new)
        own = (MIGRATIONS,)
        with sqlite.writing(new) as db, sqlite.transaction(db), untouched.others_untouched(db, path, own):
            migrate(db, path, applied_at)

    return [FileChange(path=path.name, actions=(action,), make=make, bytes=path.stat().st_size)]


def migrate(db: apsw.Connection, path: Path, applied_at: str) -> None:
    """Add what is missing, in the caller's transaction.

    Args:
        db: the database, open for writing.
        path: what it is called in errors.
        applied_at: the time, RFC 3339.

    Raises:
        MigrationForeign: it has another migration 006, or one of the columns is another one.
    """
    for name in missing_columns(db, path):
        db.execute(f"ALTER TABLE {NOTES} ADD COLUMN {name} {COLUMNS[name]}")
    if database.migration_recorded(db) is None:
        db.execute(f"INSERT INTO {MIGRATIONS} (version, name, applied_at) VALUES (?, ?, ?)", (*MIGRATION, applied_at))


def missing_columns(db: apsw.Connection, path: Path) -> list[str]:
    """Return which columns the notes lack.

    Raises:
        MigrationForeign: one that is there must not be empty; or some are missing, and another
            migration of that number is recorded.
    """
    filled = database.foreign_column(db)
    if filled is not None:
        raise MigrationForeign(
            path=path, what=tr("its notes have a column {filled} that must not be empty", filled=filled)
        )
    there = database.columns_there(db)
    missing = [name for name in COLUMNS if name not in there]
    recorded = database.migration_recorded(db)
    if missing and recorded not in (None, MIGRATION[1]):
        raise MigrationForeign(
            path=path,
            what=tr('its migration {migration} is called "{recorded}"', migration=MIGRATION[0], recorded=recorded),
        )
    return missing
