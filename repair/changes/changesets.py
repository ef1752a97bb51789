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

from regraft.disk import durable, links, sqlite, untrusted_sqlite
from regraft.errors import StoreBusy, StoreNotWritable
from regraft.formats.cherry_v2.index.full_text import rebuild_full_text
from regraft.formats.cherry_v2.index.schema import TABLE_RULES
from regraft.language import tr
from regraft.ledger.ledger import FOLDER, Ledger
from regraft.ledger.values import RecordedChange, RowsDetail
from regraft.processes import interrupts
from regraft.stores import systems

#: Where what takes a change of rows back lies, and how many references led nowhere before that change.
RevertRecord = tuple[Path, int]
BODIES = "search_text"
_OF_INDEX = {"meta", *TABLE_RULES}
#: A changeset is held in memory while it is recorded: what is larger is done on a copy of the file.
LARGEST_CHANGESET = 32 << 20

#: What SQLite fails with where a file may not be written to.
_READ_ONLY = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)


@contextmanager
def write_transaction(path: Path, *, keep: bool = True) -> Iterator[apsw.Connection]:
    """Open a file for writing in one transaction.

    It is committed at the end and rolled back on an error; with ``keep=False`` it is rolled back whatever happens.

    Raises:
        StoreBusy: another program writes to it.
        StoreNotWritable: it may not be written to.
    """
    try:
        with sqlite.open_writable(path) as db:
            if db.readonly("main"):
                raise StoreNotWritable(path=path, reason=tr("it is read-only"))
            sqlite.sync_every_commit(db)
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
        demand_revertible(db, tables)
    except apsw.SQLError:
        return False
    for table in tables:
        keys = [row[1] for row in db.execute(f"PRAGMA table_info({untrusted_sqlite.quote_name(table)})") if row[5]]
        if not keys:
            return False
        lacking = " OR ".join(f'"{key}" IS NULL' for key in keys)
        if db.execute(f'SELECT 1 FROM "{table}" WHERE {lacking} LIMIT 1').get is not None:
            return False
    return True


def demand_revertible(db: apsw.Connection, tables: Sequence[str]) -> None:
    """Refuse tables whose changes SQLite could record, and not take back: their foreign keys name no table.

    Raises:
        apsw.SQLError
    """
    # A full-text index is taken back by the tables that it is kept in.
    with untrusted_sqlite.allow_schema_writes(db):
        for table in tables:
            # It is not carried out; SQLite looks at the keys when it reads it.
            db.execute(f"EXPLAIN INSERT INTO {untrusted_sqlite.quote_name(table)} DEFAULT VALUES").fetchall()


def read_schema(db: apsw.Connection) -> list[Any]:
    """Return the words of the schema, which no changeset holds."""
    return sorted(db.execute("SELECT type, name, ifnull(sql, '') FROM sqlite_schema"))


@contextmanager
def record_changeset(db: apsw.Connection, path: Path, tables: Sequence[str], changeset: Path) -> Iterator[None]:
    """Record what happens to the rows of ``tables`` into a file, which is on disk once this ends without an error.

    Raises:
        SchemaForeign, OtherRowsChanged: rows of other tables would change, too (:mod:`regraft.disk.untrusted_sqlite`).
    """
    session = apsw.Session(db, "main")
    try:
        for table in tables:
            session.attach(table)
        with untrusted_sqlite.change_only(db, path, tables):
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
def full_text_rebuild(db: apsw.Connection, tables: Collection[str] = (BODIES,)) -> Iterator[None]:
    """Change rows of tables without any trigger; where bodies are among them, build the full-text index anew.

    All of it is part of the caller's transaction.
    """
    yield
    if BODIES in tables and _has_full_text(db):
        rebuild_full_text(db)


def _has_full_text(db: apsw.Connection) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'search_text_fts'").get is not None


# --- taking it back --------------------------------------------------------------------------------------------------


class ApplyResult(msgspec.Struct, frozen=True):
    """What came of applying a changeset, or of trying to."""

    #: Tables with rows that are not as it needs them; where there are any, it was not applied.
    conflicts: tuple[str, ...]
    #: How many references lead nowhere because of it.
    dangling: int


def revert_changeset(db: apsw.Connection, changeset: Path, dangling: int) -> tuple[str, ...]:
    """Take a recorded change back, in the caller's transaction.

    Args:
        db: where it was made.
        changeset: its record.
        dangling: how many references led nowhere before the change and lead somewhere because of it.

    Returns:
        The tables with rows that were changed since: where there are any, nothing was taken back.
    """
    with full_text_rebuild(db, _changed_table_names(changeset)), _guarded(db):
        return _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts


def find_revert_conflicts(
    db: apsw.Connection, records: Sequence[RevertRecord], *, keep: bool = False
) -> tuple[str, ...]:
    """Return what :func:`take_back` would of one record after the other. Nothing is changed, unless it is to stay."""
    if any(BODIES in _changed_table_names(changeset) for changeset, _ in records):
        untrusted_sqlite.refuse_shadow_indexes(db)
    with nullcontext() if keep else _savepoint(db), _guarded(db):
        for changeset, dangling in records:
            conflicts = _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts
            if conflicts:
                return conflicts
    return ()


def is_committed(db: apsw.Connection, changeset: Path) -> bool:
    """Tell whether a recorded change was committed: it was, unless it could be made now. Nothing is changed."""
    with _savepoint(db):
        return bool(_apply_changeset(db, changeset, 0, None).conflicts)


def has_remaining_changes(db: apsw.Connection, changeset: Path) -> bool:
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
    with _savepoint(db):
        with untrusted_sqlite.allow_schema_writes(db), changeset.open("rb") as file:
            apsw.Changeset.apply(
                file.read, db, filter=lambda table: table not in counters, conflict=conflict, flags=flags
            )
        with changeset.open("rb") as file:
            return others < sum(change.name not in counters for change in apsw.Changeset.iter(file.read))


def verify_revert(db: apsw.Connection, changeset: Path) -> int | None:
    """Take a change back that was just made, make it again, and undo both: nothing is changed.

    Returns:
        How many references lead nowhere without the change; None where its record cannot take it back.
    """
    with _savepoint(db):
        back = _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, None)
        again = _apply_changeset(db, changeset, 0, None)
    return None if back.conflicts or again.conflicts else back.dangling


@contextmanager
def _savepoint(db: apsw.Connection) -> Iterator[None]:
    db.execute("SAVEPOINT tried")
    try:
        yield
    finally:
        db.execute("ROLLBACK TO tried")
        db.execute("RELEASE tried")


def _apply_changeset(db: apsw.Connection, changeset: Path, flags: int, may_dangle: int | None) -> ApplyResult:
    """Apply a changeset whole or not at all; ``may_dangle`` None: any number of references may lead nowhere then.

    Tables with counters (:attr:`regraft.stores.systems.System.counters`) are left as they are.
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
        with untrusted_sqlite.allow_schema_writes(db), changeset.open("rb") as file:
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
    return ApplyResult(tuple(sorted(conflicts)), dangling)


def copy_counters(name: str, current: Path, former: Path) -> None:
    """Copy the counters of a database to the former file that undo is about to put back in its place.

    Args:
        name: the database's name below the store's root; nothing is done for one without counters.
        current: the database as it is now. One that cannot be read has no counters to keep.
        former: the file that takes its place.

    Raises:
        apsw.Error, OSError: the former file cannot be read or written.
    """
    tables = [table for system in systems.all_systems() for table in system.counters.get(name, ())]
    if not tables or not (untrusted_sqlite.is_database(current) and untrusted_sqlite.is_database(former)):
        return
    kept: dict[str, set[Any]] = {}
    with suppress(*sqlite.CONTENT_ERRORS, UnicodeDecodeError), sqlite.open_readonly(current) as db:
        kept = {
            table: set(db.execute(f"SELECT * FROM {untrusted_sqlite.quote_name(table)}").fetchall()) for table in tables
        }
    with sqlite.open_readonly(former) as db:
        # A former file that has them already stays as it is, byte for byte.
        missing = {
            table: rows.difference(db.execute(f"SELECT * FROM {untrusted_sqlite.quote_name(table)}").fetchall())
            for table, rows in kept.items()
        }
    if not any(missing.values()):
        return
    with sqlite.open_writable(former) as db, sqlite.transaction(db), untrusted_sqlite.allow_schema_writes(db):
        for table, rows in missing.items():
            for row in rows:
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT OR REPLACE INTO {untrusted_sqlite.quote_name(table)} VALUES ({marks})", row)


@contextmanager
def _guarded(db: apsw.Connection) -> Iterator[None]:
    """Let no change of a row pass that the system of the file never makes."""
    with ExitStack() as guards:
        for system in systems.all_systems():
            guards.enter_context(system.guarded(db))
        yield


def _changed_table_names(changeset: Path) -> set[str]:
    with changeset.open("rb") as file:
        return {change.name for change in apsw.Changeset.iter(file.read)}


def find_changeset_problem(db: apsw.Connection, changeset: Path) -> str | None:
    """Return why what is kept takes no change of regraft's back; None where it may.

    A store may come from somebody else, with what takes its runs back: it changes rows of the layout's own tables, not
    the schema, nor where SQLite keeps a full-text index.
    """
    try:
        touched = _changed_table_names(changeset)
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        return tr("it is damaged: {error}", error=error)
    foreign = sorted(touched - _changed_tables(db))
    return tr("it changes {foreign}, which no run of regraft does", foreign=foreign[0]) if foreign else None


def _changed_tables(db: apsw.Connection) -> set[str]:
    """Return the tables of a file whose rows regraft may have changed."""
    types: dict[str, str] = dict(db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))
    names = {name for name, kind in types.items() if kind == "table" and not name.startswith("sqlite_")}
    for system in systems.all_systems():
        if system.has_tables(types):
            return names | system.full_text_tables
    return names & _OF_INDEX if BODIES in names else names


# One change of rows that many transactions make up: what takes it back grows with each of them.
#
# A section of the file is written and flushed before its transaction is committed, and only one is under way: whatever
# stops the run, all but the last section were committed, and the last one can be tried (``docs/formats/library.md``,
# "Changes").


#: How long such a writer waits for others, and who looks meanwhile for it, in ms.
BUSY_MS = 60_000


@contextmanager
def open_writer(path: Path) -> Iterator[apsw.Connection]:
    """Open a SQLite file for writing what is paid for, transaction by transaction, beside others that do.

    Raises:
        apsw.Error: it cannot be written.
    """
    with sqlite.open_writable(path) as db:
        # What could not be written is not to be paid for.
        with sqlite.transaction(db):
            pass
        # What is paid for is not lost.
        sqlite.sync_every_commit(db)
        db.set_busy_timeout(BUSY_MS)
        yield db


class IncrementalChange:
    """What takes back what a run does to the rows of one file, transaction by transaction.

    Args:
        root: the store's root.
        ledger: its ledger.
        run_id: the run.
        path: the file, below the root, ``/`` between parts.
        kept: where what takes it back is kept, below ``.regraft``.
        actions: which of the run's actions it is: from where on, and how many.
        begin: called before anything is recorded.
    """

    def __init__(
        self,
        root: Path,
        ledger: Ledger,
        run_id: str,
        path: str,
        kept: str,
        actions: tuple[int, int],
        begin: Callable[[], None],
    ) -> None:
        self._file = root / FOLDER / kept
        self._path = root / path
        self._book = ledger
        self._intent = (run_id, path, kept)
        self._detail = RowsDetail(0, actions, grows=True)
        self._begin_run = begin
        self._change: int | None = None
        self._size = self._written = 0

    @property
    def has_changed(self) -> bool:
        """Tell whether a transaction was committed."""
        return self._size > 0

    @contextmanager
    def transaction(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Change rows of ``tables`` in one transaction that is recorded as a section; Ctrl-C waits for its end."""
        with interrupts.defer_stops():
            own = untrusted_sqlite.change_only(db, self._path, tables)
            with sqlite.transaction(db), self._section(db, tables), own:
                yield
            self.committed()

    @contextmanager
    def _section(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Record what happens to the rows of ``tables``, as a part of the transaction that is committed next."""
        demand_revertible(db, tables)
        self._begin()
        session = apsw.Session(db, "main")
        try:
            for table in tables:
                session.attach(table)
            yield
            part = session.changeset()
        finally:
            session.close()
        with durable.open_binary(self._file, "r+b") as file:
            # A section whose transaction was rolled back is no part of it.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(part)
            file.flush()
            durable.flush(file.fileno())
        self._written = len(part)

    def committed(self) -> None:
        """Take note that the transaction of the latest section was committed."""
        self._size += self._written

    def _begin(self) -> None:
        if self._change is None:
            self._begin_run()
            durable.make_folders(self._file.parent)
            durable.touch(self._file)
            durable.sync_folder(self._file.parent)
            run_id, path, kept = self._intent
            self._change = self._book.changes.intend(run_id, "rows", path, kept, self._detail)
        else:
            self._book.changes.settle(self._change, "intended", self._size)

    def end(self) -> None:
        """Record that the change is made; nothing is left of one that did nothing."""
        if self._change is None:
            return
        if self._size:
            durable.truncate(self._file, self._size)
            self._book.changes.settle(self._change, "done", self._size)
        else:
            self._book.changes.settle(self._change, "dropped", 0)
            durable.remove_tree(self._file)


def settle_last_section(final: Path, changeset: Path, change: RecordedChange) -> bool:
    """Cut off what was not committed when the run was killed, and tell whether anything was.

    Raises:
        apsw.Error, OSError: the file of the rows cannot be looked into.
    """
    if changeset.stat().st_size > change.bytes:
        last = changeset.with_name(f"{changeset.name}.last")
        with changeset.open("rb") as file:
            file.seek(change.bytes)
            durable.put_bytes(last, file.read())
        try:
            made = _is_section_whole(last) and _is_section_committed(final, last)
        finally:
            durable.remove(last)
        if not made:
            durable.truncate(changeset, change.bytes)
    return changeset.stat().st_size > 0


def _is_section_whole(section: Path) -> bool:
    """Tell whether a section was flushed as a whole: else its transaction was never committed."""
    try:
        with links.open_for_reading(section) as file:
            for _ in apsw.Changeset.iter(file.read):
                pass
    except apsw.CorruptError:
        return False
    return True


def _is_section_committed(final: Path, section: Path) -> bool:
    with write_transaction(final, keep=False) as db:
        return has_remaining_changes(db, section)
