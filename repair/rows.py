"""Changing rows of a SQLite file in one transaction, with a changeset that takes the change back.

The session extension records what happens to the rows of ordinary tables, not to a full-text index: that is built anew
from the bodies, whichever way the change goes (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import apsw

from regraft import sqlite
from regraft.errors import StoreBusy, StoreNotWritable
from regraft.formats.index.bulk import is_cjk, rebuild_full_text

BODIES = "search_text"
#: A changeset is held in memory while it is recorded: what is larger is done on a copy of the file.
LARGEST_CHANGESET = 32 << 20

_CHUNK = 1 << 20
#: What SQLite fails with where a file may not be written to.
_READ_ONLY = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)


@contextmanager
def locked(path: Path) -> Iterator[apsw.Connection]:
    """Open a file for writing in one transaction, which is committed at the end and rolled back on an error.

    Raises:
        StoreBusy: another program writes to it.
        StoreNotWritable: it may not be written to.
    """
    try:
        with sqlite.writing(path) as db:
            # A power cut after the end of this must not lose it.
            db.execute("PRAGMA synchronous = FULL")
            with sqlite.transaction(db):
                yield db
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    except _READ_ONLY as error:
        raise StoreNotWritable(path=path, reason=error) from error


def can_record(db: apsw.Connection, tables: Sequence[str]) -> bool:
    """Tell whether a changeset can hold every change of these tables, and take it back.

    A row without a key escapes it, and a reference that leads nowhere cannot come back.
    """
    for table in tables:
        keys = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')") if row[5]]
        if not keys:
            return False
        lacking = " OR ".join(f'"{key}" IS NULL' for key in keys)
        if db.execute(f'SELECT 1 FROM "{table}" WHERE {lacking} LIMIT 1').get is not None:
            return False
    return db.execute("PRAGMA foreign_key_check").get is None


@contextmanager
def recording(db: apsw.Connection, tables: Sequence[str], changeset: Path) -> Iterator[None]:
    """Record what happens to the rows of ``tables`` into a file, which is there once this ends without an error."""
    session = apsw.Session(db, "main")
    try:
        for table in tables:
            session.attach(table)
        yield
        changeset.parent.mkdir(parents=True, exist_ok=True)
        with changeset.open("wb") as file:
            session.changeset_stream(_writer(file))
    finally:
        session.close()


def _writer(file: BinaryIO) -> Callable[[memoryview], None]:
    def write(part: memoryview) -> None:
        file.write(part)

    return write


@contextmanager
def triggers_aside(db: apsw.Connection) -> Iterator[None]:
    """Change bodies without the triggers, and build the full-text index anew at the end.

    The triggers come back in their own words. All of it is part of the caller's transaction.
    """
    triggers = db.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? ORDER BY rowid", (BODIES,)
    ).fetchall()
    for name, _ in triggers:
        db.execute(f'DROP TRIGGER "{name}"')
    yield
    rebuild_full_text(db, cjk=is_cjk(db))
    for _, sql in triggers:
        db.execute(str(sql))


# --- taking it back --------------------------------------------------------------------------------------------------


def take_back(db: apsw.Connection, changeset: Path) -> list[str]:
    """Take a recorded change back, in the caller's transaction.

    Returns:
        The tables with rows that were changed since: where there are any, nothing was taken back.
    """
    bodies = _touches(changeset, BODIES) and _has_full_text(db)
    if not bodies:
        return _applied(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT)
    with triggers_aside(db):
        return _applied(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT)


def was_made(db: apsw.Connection, changeset: Path) -> bool:
    """Tell whether a recorded change was committed: it was, unless it could be made now. Nothing is changed.

    The caller's transaction is to be open.
    """
    return bool(_tried(db, changeset, 0))


def _tried(db: apsw.Connection, changeset: Path, flags: int) -> list[str]:
    db.execute("SAVEPOINT tried")
    try:
        with _without_triggers(db):
            return _applied(db, changeset, flags)
    finally:
        db.execute("ROLLBACK TO tried")
        db.execute("RELEASE tried")


def could_take_back(db: apsw.Connection, changeset: Path) -> list[str]:
    """Return the tables with rows that were changed since a recorded change. Nothing is changed."""
    return _tried(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT)


@contextmanager
def _without_triggers(db: apsw.Connection) -> Iterator[None]:
    for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?", (BODIES,)):
        db.execute(f'DROP TRIGGER "{name}"')
    yield


def _applied(db: apsw.Connection, changeset: Path, flags: int) -> list[str]:
    """Apply a changeset whole or not at all, and return the tables with rows that are not as it needs them."""
    conflicts: list[str] = []

    def conflict(kind: int, change: apsw.TableChange) -> int:
        conflicts.append("foreign keys" if kind == apsw.SQLITE_CHANGESET_FOREIGN_KEY else change.name)
        return apsw.SQLITE_CHANGESET_ABORT

    # Rows that were damaged before may break the layout's own checks.
    db.execute("PRAGMA ignore_check_constraints = ON")
    try:
        with changeset.open("rb") as file:
            apsw.Changeset.apply(file.read, db, conflict=conflict, flags=flags | apsw.SQLITE_CHANGESETAPPLY_FKNOACTION)
    except apsw.AbortError:
        if not conflicts:
            raise
    finally:
        db.execute("PRAGMA ignore_check_constraints = OFF")
    return sorted(set(conflicts))


def _touches(changeset: Path, table: str) -> bool:
    with changeset.open("rb") as file:
        return any(change.name == table for change in apsw.Changeset.iter(file.read))


def _has_full_text(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'search_text_fts'").get is not None
