"""Plan and make changes of codex-mem's notes table: migration 006, embedding status, failed notes, full-text index.

A trigger of the application treats every UPDATE of a note as a new text. For an excluded note it deletes text that the
full-text index never had, which skews all ranks for good. Status columns are therefore written without triggers
(``docs/formats/codex_mem.md``, "Full text").
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
from repair.changes.options import RepairOptions
from repair.changes.plan import Action, FileChange, Plan, RowsChange, Unresolved, group_by_name, other_warnings
from repair.changes.store import Store

#: Approximate size of the status columns of a note, in bytes.
METADATA_BYTES = 300


@contextmanager
def metadata_update(db: apsw.Connection) -> Iterator[None]:
    """Context in which the status columns of migration 006 may be written, as part of the caller's transaction.

    No trigger of the file runs. Of an excluded note only the status can be withdrawn.

    Raises:
        apsw.ConstraintError: a note is excluded.
    """
    with database.guard_excluded_notes(db):
        yield


def mark_ready(db: apsw.Connection, model_id: str, rows: Iterable[tuple[str, str, str]]) -> None:
    """Record that notes have their vector. Call inside :func:`metadata_update`.

    Args:
        db: the database, in a transaction.
        model_id: the model of the vectors.
        rows: for each note, its id, the hash of the embedded text, and the time of embedding (RFC 3339).
    """
    db.executemany(
        f"UPDATE {NOTES} SET embedding_eligible = 1, embedding_status = 'ready', embedding_model_id = ?,"
        " embedding_content_hash = ?, embedding_content_version = ?, embedded_at = ?,"
        " embedding_error_code = NULL, embedding_error_at = NULL WHERE id = ? AND searchable = 1",
        ((model_id, text_hash, CONTENT_VERSION, at, note) for note, text_hash, at in rows),
    )


def set_status(db: apsw.Connection, rows: Iterable[tuple[str, str]]) -> None:
    """Set the embedding status of notes, given as (note id, status). Call inside :func:`metadata_update`."""
    update = f"UPDATE {NOTES} SET embedding_status = ? WHERE id = ? AND searchable = 1"
    db.executemany(update, ((status, note) for note, status in rows))


def withdraw_status(db: apsw.Connection, notes: Iterable[str]) -> None:
    """Withdraw the embedding status of excluded notes. Call inside :func:`metadata_update`."""
    update = (
        f"UPDATE {NOTES} SET embedding_status = 'not_applicable', embedding_eligible = ifnull(embedding_eligible, 1)"
        " WHERE id = ? AND searchable IS NOT 1"
    )
    db.executemany(update, ((note,) for note in notes))


# --- migration 006: columns for the embedding status of a note -------------------------------------------------------
#
# It follows a draft of codex-mem (``docs/formats/codex_mem.md``, "Migration 006"). It is made on a page-by-page copy
# that replaces the file, so that row numbers and the full-text index stay as they are.


def plan_migration(store: Store, now_ms: int) -> Plan:
    """Plan to bring a database to migration 006.

    Raises:
        MigrationForeign: the database has another migration 006, or a column with another definition.
    """
    changes = migration_changes(store, now_ms)
    return Plan([*changes], resolves={(codex.MIGRATION, None)} if changes else set())


def migration_changes(store: Store, now_ms: int) -> list[FileChange]:
    """Return the change of the database that adds what is missing of migration 006; empty if nothing is.

    Raises:
        MigrationForeign: the database has another migration 006, or a column with another definition.
    """
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        missing = missing_columns(db, path)
        is_recorded = database.recorded_migration_name(db) is not None
    if not missing and is_recorded:
        return []
    steps = []
    if missing:
        steps.append(
            tr("add {columns} to {notes}, all empty", columns=format_count(len(missing), "column"), notes=NOTES)
        )
    if not is_recorded:
        steps.append(tr("record migration {migration}", migration=MIGRATION[1]))
    action = Action(
        action="migrate-metadata",
        message=join_list(steps, between=tr("; ")),
        subject=path.name,
        count=len(missing) or 1,
    )
    applied_at = iso_time(now_ms)

    def make(new: Path) -> None:
        """Copy the database to ``new``, and add the columns and the record of the migration."""
        copy_database(path, new)
        own = (MIGRATIONS,)
        with sqlite.open_writable(new) as db, sqlite.transaction(db), untrusted_sqlite.change_only(db, path, own):
            for name in missing_columns(db, path):
                db.execute(f"ALTER TABLE {NOTES} ADD COLUMN {name} {COLUMNS[name]}")
            if database.recorded_migration_name(db) is None:
                db.execute(
                    f"INSERT INTO {MIGRATIONS} (version, name, applied_at) VALUES (?, ?, ?)", (*MIGRATION, applied_at)
                )

    return [FileChange(path=path.name, actions=(action,), make=make, bytes=path.stat().st_size)]


def missing_columns(db: apsw.Connection, path: Path) -> list[str]:
    """List the columns of migration 006 that the notes lack.

    Raises:
        MigrationForeign: an existing column is NOT NULL, or columns are missing although another migration 006 is
            recorded.
    """
    filled = database.find_conflicting_column(db)
    if filled is not None:
        raise MigrationForeign(path=path, what=tr("its column {filled} does not allow empty values", filled=filled))
    there = database.list_migrated_columns(db)
    missing = [name for name in COLUMNS if name not in there]
    recorded = database.recorded_migration_name(db)
    if missing and recorded not in (None, MIGRATION[1]):
        raise MigrationForeign(
            path=path,
            what=tr('its migration {migration} is called "{recorded}"', migration=MIGRATION[0], recorded=recorded),
        )
    return missing


# --- the full-text index ---------------------------------------------------------------------------------------------
#
# It is emptied and filled with the searchable notes: FTS5's own "rebuild" would make excluded notes findable
# (``docs/formats/codex_mem.md``, "Full text").

#: Findings that ``repair`` resolves.
NAMES = (codex.FTS_MISSING, codex.FTS_EXTRA, codex.FTS_SKEWED, codex.FTS_WORDS)


def plan_full_text(store: Store, options: RepairOptions) -> Plan:
    """Plan the repair of the chosen full-text findings."""
    found = group_by_name(store.findings())
    wanted = options.wanted(NAMES).intersection(found)
    names = [name for name in NAMES if name in wanted]
    damage = _find_damage(found)
    if damage is not None:
        message = tr("{what}; repair that first", what=damage.message)
        made = Plan(left=[Unresolved.of(one, message) for name in names for one in found[name]])
    else:
        looks = {store.found.path.name: schema.find_foreign_in_notes}
        made = schema_objects.add_drops(_plan_own(store, found, names), store, found, options.only, looks)
    if not options.only:
        others = other_warnings(found, (*NAMES, *schema_objects.NAMES))
        made.left += [Unresolved.with_remedy(one, repair=one.repair) for one in others]
    return made


def _plan_own(store: Store, found: dict[str, list[Finding]], names: list[str]) -> Plan:
    """Plan to rebuild the full-text index of notes if any finding about it is to be repaired.

    ``found`` has the findings of the audit by name, ``names`` are those to repair.
    """
    if not names:
        return Plan()
    # All findings are about the same index, so rebuilding it resolves all of them.
    resolves = {(one.name, one.base) for name in NAMES for one in found.get(name, ())}
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        notes = db.execute(f"SELECT count(*) FROM {NOTES} WHERE searchable = 1").get
        size = db.execute(f"SELECT ifnull(sum(octet_length(block)), 0) FROM {FULL_TEXT}_data").get
    message = tr("rebuild the full-text index with {notes:,} searchable notes", notes=notes)
    action = Action(
        action="rebuild-full-text", message=message, subject=path.name, count=notes, bytes=size, finding=names[0]
    )
    # The size counts the old index and the new one.
    change = RowsChange(
        path=path.name, actions=(action,), apply=refill_full_text, tables=FULL_TEXT_TABLES, bytes=2 * size
    )
    return Plan([change], resolves=resolves)


def _find_damage(found: dict[str, list[Finding]]) -> Finding | None:
    """Return a finding about damage that prevents filling the full-text index, or None; ``found`` is by name."""
    for one in (one for every in found.values() for one in every):
        in_index = one.name == codex.TRIGGER and FULL_TEXT in one.samples
        if in_index or one.name in (UNREADABLE, CORRUPT, codex.SCHEMA):
            return one
    return None


def refill_full_text(db: apsw.Connection) -> None:
    """Empty the full-text index and index the searchable notes, in the caller's transaction."""
    untrusted_sqlite.refuse_shadow_indexes(db)
    db.execute(f"INSERT INTO {FULL_TEXT} ({FULL_TEXT}) VALUES ('delete-all')")
    db.execute(
        f"INSERT INTO {FULL_TEXT} (rowid, title, content)"
        f" SELECT rowid, title, content FROM {NOTES} WHERE searchable = 1 ORDER BY rowid"
    )
    # FTS5 buffers rows until a savepoint ends. The undo data is read from its tables before the transaction ends.
    db.execute("SAVEPOINT flushed")
    db.execute("RELEASE flushed")


# --- clear-failed: notes that an embedder refused are pending again --------------------------------------------------

_FAILED = "embedding_status = 'failed'"


def plan_clear_failed(store: Store) -> Plan:
    """Plan to mark notes whose embedding failed as pending, so that the next backfill tries them again."""
    path = store.found.path
    with sqlite.open_readonly(path) as db:
        if not database.is_migrated(db):
            return Plan()
        failed = f"{_FAILED} AND {database.eligible_sql(db)}"
        query = f"SELECT project_id, count(*) FROM {NOTES} WHERE {failed} GROUP BY project_id"
        found: list[Any] = db.execute(query).fetchall()
    counts = {project: count for project, count in found if store.wants(project)}
    if not counts:
        return Plan()

    def apply(db: apsw.Connection) -> None:
        """Update the failed notes; refuse if other notes have failed since the plan."""
        update = f"""UPDATE {NOTES} SET embedding_status = 'pending', embedding_error_code = NULL,
            embedding_error_at = NULL WHERE {failed} AND project_id = ?"""
        before = db.total_changes()
        with metadata_update(db):
            db.executemany(update, ((project,) for project in counts))
        if db.total_changes() - before != sum(counts.values()):
            raise PlanOutdated(path=path, reason=tr("the set of failed notes changed since the plan"))

    actions = tuple(
        Action(
            action="clear-failed",
            message=tr("mark {failed_notes} as pending", failed_notes=format_count(count, "failed note")),
            base=base,
            count=count,
            finding=codex.FAILED,
        )
        for base, count in ((_project_of(project), count) for project, count in counts.items())
    )
    change = RowsChange(
        path=path.name, actions=actions, apply=apply, tables=(NOTES,), bytes=METADATA_BYTES * sum(counts.values())
    )
    return Plan([change], resolves={(codex.FAILED, _project_of(project)) for project in counts})


def _project_of(project: object) -> str | None:
    """Return the project id of notes; None if the column has a value other than text."""
    return project if isinstance(project, str) else None
