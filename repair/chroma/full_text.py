"""Rebuild the full-text index in a Chroma database from the documents."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import apsw

from regraft.disk import scratch, sqlite, untrusted_sqlite
from regraft.errors import FullTextNotRebuilt
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import DIFFERING_DOCUMENTS, FULL_TEXT_CONTENT, FULL_TEXT_SQL, FULL_TEXT_TABLE
from regraft.language import tr
from repair.changes.files import copy_database
from repair.changes.plan import Action, Unresolved

#: Version of FTS5's tables; FTS5 does not open them without it.
_FORMAT = 4


def plan_rebuild(path: Path, name: str, finding: str) -> Action | Unresolved:
    """Plan to rebuild the index of a database, or report why that fails. A failure stops no other repair.

    A rebuild is tried in a temporary copy, but only if the tables of the index are damaged or not those that Chroma
    creates.

    Args:
        path: the database.
        name: its path below the root of the store.
        finding: the name of the finding about its index.

    Raises:
        ChromaProblem, apsw.Error, OSError: the database cannot be read.
    """
    if not _has_sound_tables(path):
        try:
            with scratch.temporary_folder() as folder:
                rebuild_in_copy(path, folder / path.name)
        except FullTextNotRebuilt as refused:
            reason = tr(
                "the full-text index of {name} cannot be rebuilt ({reason}); to fix it, restore the file from a backup",
                name=name,
                reason=refused.facts["reason"],
            )
            return Unresolved.registered(finding, reason, base=None, subject=name)
    message = tr("rebuild the full-text index of {name} from its documents", name=name)
    return Action(action="rebuild-full-text", message=message, subject=name, finding=finding)


def _has_sound_tables(path: Path) -> bool:
    """Whether the tables of the index can be read, and are those that Chroma creates or missing."""
    with chroma.open_chroma(path) as db:
        statements = untrusted_sqlite.table_statements(db)
        names = [name for name in FULL_TEXT_SQL if name in statements]
        if untrusted_sqlite.full_text_shadow_indexes(db) or any(
            sqlite.normalize_statement(statements[name]) != FULL_TEXT_SQL[name] for name in names
        ):
            return False
        stored = [name for name in names if name != FULL_TEXT_TABLE]
        with suppress(apsw.CorruptError):
            return all(db.execute(f"PRAGMA quick_check({name})").fetchall() == [("ok",)] for name in stored)
        return False


def rebuild_in_copy(path: Path, new: Path) -> None:
    """Copy a database and rebuild the full-text index in the copy.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild the index.
        apsw.Error, OSError: the copy cannot be written.
    """
    copy_database(path, new)
    try:
        with sqlite.open_writable(new) as db:
            # With one, FTS5's rebuild ends the process.
            for name in untrusted_sqlite.full_text_shadow_indexes(db):
                reason = tr("{name} is an index on a table of the full-text index", name=name)
                raise FullTextNotRebuilt(path=path, reason=reason)
            with sqlite.transaction(db):
                rebuild(db)
            problem = chroma.find_full_text_damage(db)
    except apsw.Error as error:
        if sqlite.is_write_failure(error):
            raise
        raise FullTextNotRebuilt(path=path, reason=error) from error
    if problem is not None:
        raise FullTextNotRebuilt(path=path, reason=problem)


def rebuild(db: apsw.Connection) -> None:
    """Rebuild the index within the open transaction. Tables that are missing are created."""
    with untrusted_sqlite.allow_schema_writes(db):
        _create_missing_tables(db, chroma.list_missing_full_text_tables(db) or [])
        db.execute(f"INSERT OR REPLACE INTO {FULL_TEXT_TABLE}_config (k, v) VALUES ('version', ?)", (_FORMAT,))
        db.execute(
            f"INSERT OR REPLACE INTO {FULL_TEXT_CONTENT} (id, c0) SELECT m.id, m.string_value {DIFFERING_DOCUMENTS}"
        )
    db.execute(f"INSERT INTO {FULL_TEXT_TABLE} ({FULL_TEXT_TABLE}) VALUES ('rebuild')")


def _create_missing_tables(db: apsw.Connection, missing: list[str]) -> None:
    """Create missing tables of the full-text index; without its main table, all are created again."""
    if FULL_TEXT_TABLE not in missing:
        for name in missing:
            db.execute(FULL_TEXT_SQL[name])
        return
    # FTS5 creates its tables itself, and only all of them. The texts that are left may have no document any more.
    left = [name for name in FULL_TEXT_SQL if name not in missing]
    keeps_texts = FULL_TEXT_CONTENT in left
    if keeps_texts:
        db.execute(f"CREATE TEMP TABLE kept_text AS SELECT id, c0 FROM {FULL_TEXT_CONTENT}")
    for name in left:
        db.execute(f"DROP TABLE {name}")
    db.execute(FULL_TEXT_SQL[FULL_TEXT_TABLE])
    if keeps_texts:
        db.execute(f"INSERT INTO {FULL_TEXT_CONTENT} (id, c0) SELECT id, c0 FROM temp.kept_text")
        db.execute("DROP TABLE temp.kept_text")
