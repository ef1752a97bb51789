"""Writing to codex-mem's notes so that no search by words is any different afterwards.

The application's trigger takes every UPDATE of a note for a new text: of an excluded note it deletes what the full-text
index never had, which skews all ranks for good (``docs/formats/codex_mem.md``, "Full text").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from checks.audit.findings import CORRUPT, UNREADABLE, Finding
from checks.codex_mem import findings as codex
from checks.codex_mem import schema
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import MigrationForeign, PlanOutdated
from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import (
    COLUMNS,
    CONTENT_VERSION,
    FULL_TEXT,
    FULL_TEXT_TABLES,
    MIGRATION,
    MIGRATIONS,
    NOTES,
)
from regraft.identity import iso_time
from regraft.language import format_count, join_list, tr
from repair.changes import schema_objects
from repair.changes.files import copy_database
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved, group_by_name, other_warnings
from repair.changes.store import Store
from repair.options import RepairOptions

#: About what a note's metadata take on the disk, in bytes.
METADATA_BYTES = 300


@contextmanager
def metadata_update(db: apsw.Connection) -> Iterator[None]:
    """Let what a note's columns of migration 006 say be written, as a part of the caller's transaction.

    No trigger of the file runs meanwhile, and of an excluded note nothing but its status can be withdrawn.

    Raises:
        apsw.ConstraintError: a note is excluded.
    """
    with database.excluded_guarded(db):
        yield


def mark_ready(db: apsw.Connection, model_id: str, rows: Iterable[tuple[str, str, str]]) -> None:
    """Say of notes that they have their vector; inside :func:`metadata`.

    Args:
        db: the database, in a transaction.
        model_id: of the vectors.
        rows: of each note its id, the hash of the text that was embedded, and when that was, RFC 3339.
    """
    db.executemany(
        f"UPDATE {NOTES} SET embedding_eligible = 1, embedding_status = 'ready', embedding_model_id = ?,"
        " embedding_content_hash = ?, embedding_content_version = ?, embedded_at = ?,"
        " embedding_error_code = NULL, embedding_error_at = NULL WHERE id = ? AND searchable = 1",
        ((model_id, text_hash, CONTENT_VERSION, at, note) for note, text_hash, at in rows),
    )


def set_status(db: apsw.Connection, rows: Iterable[tuple[str, str]]) -> None:
    """Give notes, by their ids, another status and nothing else; inside :func:`metadata`."""
    update = f"UPDATE {NOTES} SET embedding_status = ? WHERE id = ? AND searchable = 1"
    db.executemany(update, ((status, note) for note, status in rows))


def withdraw_status(db: apsw.Connection, notes: Iterable[str]) -> None:
    """Withdraw what excluded notes, by their ids, say of a vector; inside :func:`metadata`."""
    update = (
        f"UPDATE {NOTES} SET embedding_status = 'not_applicable', embedding_eligible = ifnull(embedding_eligible, 1)"
        " WHERE id = ? AND searchable IS NOT 1"
    )
    db.executemany(update, ((note,) for note in notes))


# Migration 006 of codex-mem's database: columns for what is known of a note's vector, and nothing else.
#
# It follows a draft of codex-mem's own (``docs/formats/codex_mem.md``, "Migration 006"). It is made on a copy of the
# file, page by page, which then takes the file's place: row numbers and the full-text index stay as they are.


def plan_migration(store: Store, now_ms: int) -> Plan:
    """Return what brings a database to migration 006; nothing is written.

    Raises:
        MigrationForeign: it has another migration 006, or one of the columns is another one.
    """
    changes = migration_changes(store, now_ms)
    return Plan([*changes], resolves={(codex.MIGRATION, None)} if changes else set())


def migration_changes(store: Store, now_ms: int) -> list[FileChange]:
    """Return the change that adds what is missing of migration 006; none where all of it is there.

    Raises:
        MigrationForeign: it has another migration 006, or one of the columns is another one.
    """
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        missing = missing_columns(db, path)
        is_recorded = database.migration_recorded(db) is not None
    if not missing and is_recorded:
        return []
    steps = []
    if missing:
        steps.append(
            tr("add {columns} to {notes}, all of them empty", columns=format_count(len(missing), "column"), notes=NOTES)
        )
    if not is_recorded:
        steps.append(tr("record migration {migration}", migration=MIGRATION[1]))
    action = Action(
        action="migrate-metadata", message=join_list(steps, tr(" and ")), subject=path.name, count=len(missing) or 1
    )
    applied_at = iso_time(now_ms)

    def make(new: Path) -> None:
        copy_database(path, new)
        own = (MIGRATIONS,)
        with sqlite.open_writable(new) as db, sqlite.transaction(db), untrusted_sqlite.change_only(db, path, own):
            apply_migration(db, path, applied_at)

    return [FileChange(path=path.name, actions=(action,), make=make, bytes=path.stat().st_size)]


def apply_migration(db: apsw.Connection, path: Path, applied_at: str) -> None:
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


# ``repair`` of codex-mem: its full-text index is emptied, and filled with the searchable notes alone.
#
# FTS5's own "rebuild" would make excluded notes findable (``docs/formats/codex_mem.md``, "Full text").


#: Findings that are mended.
NAMES = (codex.FTS_MISSING, codex.FTS_EXTRA, codex.FTS_SKEWED, codex.FTS_WORDS)
#: Where FTS5 keeps the index; a change of the virtual table is one of their rows.


def plan_full_text(store: Store, options: RepairOptions) -> Plan:
    """Return what is going to be mended; nothing is written."""
    found = group_by_name(store.findings())
    wanted = options.wanted(NAMES).intersection(found)
    names = [name for name in NAMES if name in wanted]
    damage = _damage(found)
    if damage is not None:
        message = tr("{message_}: that has to be mended first", message_=damage.message)
        made = Plan(left=[Unresolved.of(one, message) for name in names for one in found[name]])
    else:
        looks = {store.found.path.name: schema.find_foreign_in_notes}
        made = schema_objects.add_drops(_own(store, found, names), store, found, options.only, looks)
    if not options.only:
        others = other_warnings(found, (*NAMES, *schema_objects.NAMES))
        made.left += [Unresolved.with_remedy(one, repair=one.repair) for one in others]
    return made


def _own(store: Store, found: dict[str, list[Finding]], names: list[str]) -> Plan:
    if not names:
        return Plan()
    # One index: what mends one of them mends all.
    resolves = {(one.name, one.base) for name in NAMES for one in found.get(name, ())}
    return Plan([_refill(store, names)], resolves=resolves)


def _damage(found: dict[str, list[Finding]]) -> Finding | None:
    return next((one for every in found.values() for one in every if _keeps_from(one)), None)


def _keeps_from(finding: Finding) -> bool:
    """Tell whether nobody can fill the full-text index while this is so."""
    if finding.name == codex.TRIGGER:
        return FULL_TEXT in finding.samples
    return finding.name in (UNREADABLE, CORRUPT, codex.SCHEMA)


def _refill(store: Store, names: list[str]) -> RowsChange:
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        notes = db.execute(f"SELECT count(*) FROM {NOTES} WHERE searchable = 1").get
        size = db.execute(f"SELECT ifnull(sum(octet_length(block)), 0) FROM {FULL_TEXT}_data").get
    message = tr("index the {notes:,} searchable notes anew for the search by words", notes=notes)
    action = Action(
        action="rebuild-full-text",
        message=message,
        base=None,
        subject=path.name,
        count=notes,
        bytes=size,
        finding=names[0],
    )
    # The old index goes and a new one comes.
    return RowsChange(
        path=path.name, actions=(action,), apply=refill_full_text, tables=FULL_TEXT_TABLES, bytes=2 * size
    )


def refill_full_text(db: apsw.Connection) -> None:
    """Empty the full-text index and fill it with the searchable notes, in the caller's transaction."""
    untrusted_sqlite.refuse_shadow_indexes(db)
    db.execute(f"INSERT INTO {FULL_TEXT} ({FULL_TEXT}) VALUES ('delete-all')")
    db.execute(
        f"INSERT INTO {FULL_TEXT} (rowid, title, content)"
        f" SELECT rowid, title, content FROM {NOTES} WHERE searchable = 1 ORDER BY rowid"
    )
    # FTS5 holds rows back until then: what takes this back is read off its tables before the transaction ends.
    db.execute("SAVEPOINT flushed")
    db.execute("RELEASE flushed")


# ``regraft clear-failed``: notes that an embedder refused are pending again; their texts stay as they are.


_FAILED = "embedding_status = 'failed'"


def plan_clear_failed(store: Store) -> Plan:
    """Return which notes are going to be pending again; nothing is written."""
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        if not database.is_migrated(db):
            return Plan()
        failed = f"{_FAILED} AND {database.eligible(db)}"
        query = f"SELECT project_id, count(*) FROM {NOTES} WHERE {failed} GROUP BY project_id"
        found: list[Any] = db.execute(query).fetchall()
    counts = {project: count for project, count in found if store.wants(project)}
    if not counts:
        return Plan()

    def apply(db: apsw.Connection) -> None:
        update = f"""UPDATE {NOTES} SET embedding_status = 'pending', embedding_error_code = NULL,
            embedding_error_at = NULL WHERE {failed} AND project_id = ?"""
        before = db.total_changes()
        with metadata_update(db):
            db.executemany(update, ((project,) for project in counts))
        if db.total_changes() - before != sum(counts.values()):
            raise PlanOutdated(path=path, reason=tr("other notes have failed now than were planned"))

    actions = tuple(
        Action(
            action="clear-failed",
            message=tr("mark {failed_notes} as pending", failed_notes=format_count(count, "failed note")),
            base=base,
            subject=None,
            count=count,
            bytes=0,
            finding=codex.FAILED,
        )
        for base, count in ((_base_of(project), count) for project, count in counts.items())
    )
    change = RowsChange(
        path=path.name, actions=actions, apply=apply, tables=(NOTES,), bytes=METADATA_BYTES * sum(counts.values())
    )
    return Plan([change], resolves={(codex.FAILED, _base_of(project)) for project in counts})


def _base_of(project: object) -> str | None:
    """Return the project that notes are of; None where a note names none that could be one."""
    return project if isinstance(project, str) else None
