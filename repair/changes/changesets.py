"""Changing rows of a SQLite file in one transaction, with a changeset that takes the change back.

The session extension records what happens to the rows of ordinary tables, not to a full-text index: that is built anew
from the bodies, whichever way the change goes (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import msgspec

from regraft import guarding, sqlite, systems, untouched
from regraft.errors import StoreBusy, StoreNotWritable
from regraft.formats.cherry_v2.index.full_text import rebuild_full_text
from regraft.formats.cherry_v2.index.layout import TABLES
from regraft.language import tr
from regraft.ledger import durable

#: Where what takes a change of rows back lies, and how many references led nowhere before that change.
Record = tuple[Path, int]
BODIES = "search_text"
_OF_INDEX = {"meta", *TABLES}
#: A changeset is held in memory while it is recorded: what is larger is done on a copy of the file.
LARGEST_CHANGESET = 32 << 20

#: What SQLite fails with where a file may not be written to.
_READ_ONLY = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)


@contextmanager
def locked(path: Path, *, keep: bool = True) -> Iterator[apsw.Connection]:
    """Open a file for writing in one transaction.

    It is committed at the end and rolled back on an error; with ``keep=False`` it is rolled back whatever happens.

    Raises:
        StoreBusy: another program writes to it.
        StoreNotWritable: it may not be written to.
    """
    try:
        with sqlite.writing(path) as db:
            if db.readonly("main"):
                raise StoreNotWritable(path=path, reason=tr("it is read-only"))
            sqlite.keep_through_power_cuts(db)
            with sqlite.transaction(db) if keep else _rolled_back(db):
                yield db
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    except _READ_ONLY as error:
        raise StoreNotWritable(path=path, reason=error) from error


@contextmanager
def _rolled_back(db: apsw.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def can_record(db: apsw.Connection, tables: Sequence[str]) -> bool:
    """Tell whether a changeset can hold every change of these tables: a row without a key escapes it."""
    try:
        demand_taken_back(db, tables)
    except apsw.SQLError:
        return False
    for table in tables:
        keys = [row[1] for row in db.execute(f"PRAGMA table_info({sqlite.quoted(table)})") if row[5]]
        if not keys:
            return False
        lacking = " OR ".join(f'"{key}" IS NULL' for key in keys)
        if db.execute(f'SELECT 1 FROM "{table}" WHERE {lacking} LIMIT 1').get is not None:
            return False
    return True


def demand_taken_back(db: apsw.Connection, tables: Sequence[str]) -> None:
    """Refuse tables whose changes SQLite could record, and not take back: their foreign keys name no table.

    Raises:
        apsw.SQLError
    """
    # A full-text index is taken back by the tables that it is kept in.
    with guarding.below_the_surface(db):
        for table in tables:
            # It is not carried out; SQLite looks at the keys when it reads it.
            db.execute(f"EXPLAIN INSERT INTO {sqlite.quoted(table)} DEFAULT VALUES").fetchall()


def schema_of(db: apsw.Connection) -> list[Any]:
    """Return the words of the schema, which no changeset holds."""
    return sorted(db.execute("SELECT type, name, ifnull(sql, '') FROM sqlite_schema"))


@contextmanager
def recording(db: apsw.Connection, path: Path, tables: Sequence[str], changeset: Path) -> Iterator[None]:
    """Record what happens to the rows of ``tables`` into a file, which is on disk once this ends without an error.

    Raises:
        SchemaForeign, OtherRowsChanged: rows of other tables would change, too (:mod:`regraft.untouched`).
    """
    session = apsw.Session(db, "main")
    try:
        for table in tables:
            session.attach(table)
        with untouched.others_untouched(db, path, tables):
            yield
        durable.make_folders(changeset.parent)
        with durable.open_binary(changeset, "wb") as file:
            session.changeset_stream(_writer(file))
        durable.sync_file(changeset)
        durable.sync_folder(changeset.parent)
    finally:
        session.close()


def _writer(file: BinaryIO) -> Callable[[memoryview], None]:
    def write(part: memoryview) -> None:
        file.write(part)

    return write


@contextmanager
def triggers_aside(db: apsw.Connection, tables: Collection[str] = (BODIES,)) -> Iterator[None]:
    """Change rows of tables without any trigger; where bodies are among them, build the full-text index anew.

    All of it is part of the caller's transaction.
    """
    yield
    if BODIES in tables and _has_full_text(db):
        rebuild_full_text(db)


def _has_full_text(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'search_text_fts'").get is not None


# --- taking it back --------------------------------------------------------------------------------------------------


class Applied(msgspec.Struct, frozen=True):
    """What came of applying a changeset, or of trying to."""

    #: Tables with rows that are not as it needs them; where there are any, it was not applied.
    conflicts: tuple[str, ...]
    #: How many references lead nowhere because of it.
    dangling: int


def take_back(db: apsw.Connection, changeset: Path, dangling: int) -> tuple[str, ...]:
    """Take a recorded change back, in the caller's transaction.

    Args:
        db: where it was made.
        changeset: its record.
        dangling: how many references led nowhere before the change and lead somewhere because of it.

    Returns:
        The tables with rows that were changed since: where there are any, nothing was taken back.
    """
    with triggers_aside(db, _touched(changeset)), _guarded(db):
        return _applied(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts


def could_take_back(db: apsw.Connection, records: Sequence[Record], *, keep: bool = False) -> tuple[str, ...]:
    """Return what :func:`take_back` would of one record after the other. Nothing is changed, unless it is to stay."""
    if any(BODIES in _touched(changeset) for changeset, _ in records):
        untouched.demand_no_text_index(db)
    with nullcontext() if keep else _tried(db), _guarded(db):
        for changeset, dangling in records:
            conflicts = _applied(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts
            if conflicts:
                return conflicts
    return ()


def was_made(db: apsw.Connection, changeset: Path) -> bool:
    """Tell whether a recorded change was committed: it was, unless it could be made now. Nothing is changed."""
    with _tried(db):
        return bool(_applied(db, changeset, 0, None).conflicts)


def was_left(db: apsw.Connection, changeset: Path) -> bool:
    """Tell whether any row is as a recorded change left it. Nothing is changed.

    Where others may have made the same change since, it tells more than :func:`was_made`.
    """
    others = 0

    def conflict(kind: int, _: apsw.TableChange) -> int:
        nonlocal others
        others += kind != apsw.SQLITE_CHANGESET_FOREIGN_KEY
        return apsw.SQLITE_CHANGESET_OMIT

    flags = apsw.SQLITE_CHANGESETAPPLY_INVERT | apsw.SQLITE_CHANGESETAPPLY_FKNOACTION
    counters = systems.counter_tables()
    with _tried(db):
        with guarding.below_the_surface(db), changeset.open("rb") as file:
            apsw.Changeset.apply(
                file.read, db, filter=lambda table: table not in counters, conflict=conflict, flags=flags
            )
        with changeset.open("rb") as file:
            return others < sum(change.name not in counters for change in apsw.Changeset.iter(file.read))


def proven(db: apsw.Connection, changeset: Path) -> int | None:
    """Take a change back that was just made, make it again, and undo both: nothing is changed.

    Returns:
        How many references lead nowhere without the change; None where its record cannot take it back.
    """
    with _tried(db):
        back = _applied(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, None)
        again = _applied(db, changeset, 0, None)
    return None if back.conflicts or again.conflicts else back.dangling


@contextmanager
def _tried(db: apsw.Connection) -> Iterator[None]:
    db.execute("SAVEPOINT tried")
    try:
        yield
    finally:
        db.execute("ROLLBACK TO tried")
        db.execute("RELEASE tried")


def _applied(db: apsw.Connection, changeset: Path, flags: int, may_dangle: int | None) -> Applied:
    """Apply a changeset whole or not at all; ``may_dangle`` None: any number of references may lead nowhere then.

    Tables with counters (:attr:`regraft.system.System.counters`) are left as they are.
    """
    conflicts: set[str] = set()
    counters = systems.counter_tables()
    dangling = 0

    def conflict(kind: int, change: apsw.TableChange) -> int:
        nonlocal dangling
        if kind != apsw.SQLITE_CHANGESET_FOREIGN_KEY:
            conflicts.add(change.name)
            return apsw.SQLITE_CHANGESET_ABORT
        dangling = change.fk_conflicts or 0
        if may_dangle is None or dangling <= may_dangle:
            return apsw.SQLITE_CHANGESET_OMIT
        conflicts.add(tr("foreign keys"))
        return apsw.SQLITE_CHANGESET_ABORT

    # Rows that were damaged before may break the layout's own checks.
    db.execute("PRAGMA ignore_check_constraints = ON")
    try:
        with guarding.below_the_surface(db), changeset.open("rb") as file:
            apsw.Changeset.apply(
                file.read,
                db,
                filter=lambda table: table not in counters,
                conflict=conflict,
                flags=flags | apsw.SQLITE_CHANGESETAPPLY_FKNOACTION,
            )
    except (apsw.AbortError, apsw.ConstraintError):
        if not conflicts:
            raise
    finally:
        db.execute("PRAGMA ignore_check_constraints = OFF")
    return Applied(tuple(sorted(conflicts)), dangling)


def keep_counters(name: str, current: Path, former: Path) -> None:
    """Copy the counters of a database to the former file that undo is about to put back in its place.

    Args:
        name: the database's name below the store's root; nothing is done for one without counters.
        current: the database as it is now. One that cannot be read has no counters to keep.
        former: the file that takes its place.

    Raises:
        apsw.Error, OSError: the former file cannot be read or written.
    """
    tables = [table for system in systems.every() for table in system.counters.get(name, ())]
    if not tables or not (sqlite.is_database(current) and sqlite.is_database(former)):
        return
    kept: dict[str, set[Any]] = {}
    with suppress(*sqlite.CONTENT_ERRORS, UnicodeDecodeError), sqlite.reading(current) as db:
        kept = {table: set(db.execute(f"SELECT * FROM {sqlite.quoted(table)}").fetchall()) for table in tables}
    with sqlite.reading(former) as db:
        # A former file that has them already stays as it is, byte for byte.
        missing = {
            table: rows.difference(db.execute(f"SELECT * FROM {sqlite.quoted(table)}").fetchall())
            for table, rows in kept.items()
        }
    if not any(missing.values()):
        return
    with sqlite.writing(former) as db, sqlite.transaction(db), guarding.below_the_surface(db):
        for table, rows in missing.items():
            for row in rows:
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT OR REPLACE INTO {sqlite.quoted(table)} VALUES ({marks})", row)


@contextmanager
def _guarded(db: apsw.Connection) -> Iterator[None]:
    """Let no change of a row pass that the system of the file never makes."""
    with ExitStack() as guards:
        for system in systems.every():
            guards.enter_context(system.guarded(db))
        yield


def _touched(changeset: Path) -> set[str]:
    with changeset.open("rb") as file:
        return {change.name for change in apsw.Changeset.iter(file.read)}


def unfit(db: apsw.Connection, changeset: Path) -> str | None:
    """Return why what is kept takes no change of regraft's back; None where it may.

    A store may come from somebody else, with what takes its runs back: it changes rows of the layout's own tables, not
    the schema, nor where SQLite keeps a full-text index.
    """
    try:
        touched = _touched(changeset)
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        return tr("it is damaged: {error}", error=error)
    foreign = sorted(touched - _changed_tables(db))
    return tr("it changes {foreign}, which no run of regraft does", foreign=foreign[0]) if foreign else None


def _changed_tables(db: apsw.Connection) -> set[str]:
    """Return the tables of a file whose rows regraft may have changed."""
    types: dict[str, str] = dict(db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))
    names = {name for name, kind in types.items() if kind == "table" and not name.startswith("sqlite_")}
    for system in systems.every():
        if system.has_tables(types):
            return names | system.full_text_tables
    return names & _OF_INDEX if BODIES in names else names
