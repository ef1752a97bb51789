"""Change rows of a SQLite file in one transaction and record a changeset that reverts the change.

SQLite's session extension records the rows of ordinary tables, but not of a full-text index. The index is rebuilt from
the bodies after a change in either direction (``docs/formats/library.md``, "Changes").

A change of many transactions (:class:`IncrementalChange`) appends one section to its changeset for each transaction.
The section is flushed before its transaction is committed, and only one is open at a time. After a kill, every section
but the last is known to be committed; the last one is tested against the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO

import apsw
import msgspec

from migrators.pipeline import publication
from regraft.disk import durable, links, sqlite, untrusted_sqlite
from regraft.errors import StoreBusy, StoreNotWritable
from regraft.formats.cherry_v2.index.full_text import rebuild_full_text
from regraft.formats.cherry_v2.index.schema import TABLE_RULES
from regraft.identity import replace
from regraft.language import tr
from regraft.ledger.ledger import FOLDER, Ledger
from regraft.ledger.values import RecordedChange, RowsDetail
from regraft.processes import interrupts
from regraft.stores import systems

#: A changeset, and the number of dangling references that existed before its change.
RevertRecord = tuple[Path, int]
BODIES = "search_text"
_OF_INDEX = {"meta", *TABLE_RULES}
#: Changesets are held in memory while they are recorded, so larger changes are made on a copy of the file.
LARGEST_CHANGESET = 32 << 20

#: Errors of SQLite if a file cannot be written.
_READ_ONLY = (apsw.ReadOnlyError, apsw.CantOpenError, apsw.PermissionsError, apsw.AuthError)


@contextmanager
def write_transaction(path: Path, *, keep: bool = True) -> Iterator[apsw.Connection]:
    """Open a SQLite file for writing in one transaction.

    The transaction is committed at the end and rolled back on an error. With ``keep=False`` it is always rolled back.

    Raises:
        StoreBusy: another program writes to the file.
        StoreNotWritable: the file cannot be written.
    """
    try:
        with sqlite.open_writable(path) as db:
            if db.readonly("main"):
                raise StoreNotWritable(path=path, reason=tr("it is read-only"))
            sqlite.sync_every_commit(db)
            with sqlite.transaction(db) if keep else _roll_back(db):
                yield db
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    except _READ_ONLY as error:
        raise StoreNotWritable(path=path, reason=error) from error


@contextmanager
def _roll_back(db: apsw.Connection) -> Iterator[None]:
    """Context that begins a write transaction and always rolls it back."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def can_record(db: apsw.Connection, tables: Sequence[str]) -> bool:
    """Whether a changeset can record every change of the given tables. It cannot record rows without a primary key."""
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
    """Refuse tables whose changes SQLite could record but not revert: a foreign key refers to a table that is missing.

    Raises:
        apsw.SQLError: a table is refused.
    """
    # A full-text index is reverted through its shadow tables.
    with untrusted_sqlite.allow_schema_writes(db):
        for table in tables:
            # The statement is not executed: SQLite checks the foreign keys while preparing it.
            db.execute(f"EXPLAIN INSERT INTO {untrusted_sqlite.quote_name(table)} DEFAULT VALUES").fetchall()


def read_schema(db: apsw.Connection) -> list[Any]:
    """Return type, name and SQL of all schema objects, sorted, to notice changes that a changeset does not record."""
    return sorted(db.execute("SELECT type, name, ifnull(sql, '') FROM sqlite_schema"))


@contextmanager
def record_changeset(db: apsw.Connection, path: Path, tables: Sequence[str], changeset: Path) -> Iterator[None]:
    """Record the row changes that the block makes, in a changeset file that is flushed to disk if no error occurs.

    Args:
        db: the open database.
        path: its path, for error messages.
        tables: the only tables whose rows may change.
        changeset: the file to write.

    Raises:
        SchemaForeign, OtherRowsChanged: rows of other tables would change (:mod:`regraft.disk.untrusted_sqlite`).
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
    """Return a function that writes the parts of a changeset to a file."""

    def write(part: memoryview) -> None:
        file.write(part)

    return write


@contextmanager
def full_text_rebuild(db: apsw.Connection, tables: Collection[str] = (BODIES,)) -> Iterator[None]:
    """Context that rebuilds the full-text index of bodies at its end if the bodies are among the changed ``tables``.

    The rebuild is part of the caller's transaction.
    """
    yield
    if BODIES in tables and (db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'search_text_fts'").get is not None):
        rebuild_full_text(db)


# --- reverting a changeset -------------------------------------------------------------------------------------------


class ApplyResult(msgspec.Struct, frozen=True):
    """Result of applying a changeset, or of trying to."""

    #: Tables whose rows do not match the changeset. If there are any, it was not applied.
    conflicts: tuple[str, ...]
    #: Number of dangling references after applying it.
    dangling: int


def revert_changeset(db: apsw.Connection, changeset: Path, dangling: int) -> tuple[str, ...]:
    """Revert a recorded change in the caller's transaction.

    Args:
        db: the database that was changed.
        changeset: the record of the change.
        dangling: number of dangling foreign keys that existed before the change and that it resolved.

    Returns:
        The tables with rows that were changed since. If there are any, nothing was reverted.
    """
    with full_text_rebuild(db, _changed_table_names(changeset)), _guard_rows(db):
        return _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts


def find_revert_conflicts(db: apsw.Connection, records: Sequence[RevertRecord], *, keep: bool) -> tuple[str, ...]:
    """Try to revert changesets in order; return the tables whose rows conflict with the first one that fails.

    Args:
        db: the database that was changed.
        records: each changeset with the number of dangling foreign keys that existed before its change.
        keep: whether the reverted rows stay; otherwise the database is left as it was.
    """
    if any(BODIES in _changed_table_names(changeset) for changeset, _ in records):
        untrusted_sqlite.refuse_shadow_indexes(db)
    with nullcontext() if keep else _open_savepoint(db), _guard_rows(db):
        for changeset, dangling in records:
            conflicts = _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, dangling).conflicts
            if conflicts:
                return conflicts
    return ()


def is_committed(db: apsw.Connection, changeset: Path) -> bool:
    """Whether a recorded change was committed, that is, whether it can no longer be applied. Changes nothing."""
    with _open_savepoint(db):
        return bool(_apply_changeset(db, changeset, 0, None).conflicts)


def has_remaining_changes(db: apsw.Connection, changeset: Path) -> bool:
    """Whether any row is still as a recorded change left it. Changes nothing.

    Unlike :func:`is_committed`, this also holds if another program made part of the same change since.
    """
    others = 0

    def conflict(kind: int, _: apsw.TableChange) -> int:
        """Count the changes of the changeset that another program has overwritten, and skip them."""
        nonlocal others
        others += kind != apsw.SQLITE_CHANGESET_FOREIGN_KEY
        return apsw.SQLITE_CHANGESET_OMIT

    flags = apsw.SQLITE_CHANGESETAPPLY_INVERT | apsw.SQLITE_CHANGESETAPPLY_FKNOACTION
    counters = systems.counter_tables()
    with _open_savepoint(db):
        with untrusted_sqlite.allow_schema_writes(db), changeset.open("rb") as file:
            apsw.Changeset.apply(
                file.read, db, filter=lambda table: table not in counters, conflict=conflict, flags=flags
            )
        with changeset.open("rb") as file:
            return others < sum(change.name not in counters for change in apsw.Changeset.iter(file.read))


def verify_revert(db: apsw.Connection, changeset: Path) -> int | None:
    """Test whether the changeset of a change that was just made can revert it. The database is left as it was.

    Returns:
        The number of dangling foreign keys without the change, or None if its changeset cannot revert it.
    """
    with _open_savepoint(db):
        back = _apply_changeset(db, changeset, apsw.SQLITE_CHANGESETAPPLY_INVERT, None)
        again = _apply_changeset(db, changeset, 0, None)
    return None if back.conflicts or again.conflicts else back.dangling


@contextmanager
def _open_savepoint(db: apsw.Connection) -> Iterator[None]:
    """Context whose changes to the database are rolled back at its end."""
    db.execute("SAVEPOINT tried")
    try:
        yield
    finally:
        db.execute("ROLLBACK TO tried")
        db.execute("RELEASE tried")


def _apply_changeset(db: apsw.Connection, changeset: Path, flags: int, may_dangle: int | None) -> ApplyResult:
    """Apply a changeset completely or not at all; the result names the tables that prevented it, if any.

    Tables with counters (:attr:`regraft.stores.systems.System.counters`) are skipped.

    Args:
        db: the database.
        changeset: the file to apply.
        flags: of SQLite's ``sqlite3changeset_apply_v2``.
        may_dangle: how many dangling foreign keys are accepted; None: any number.
    """
    conflicts: set[str] = set()
    counters = systems.counter_tables()
    dangling = 0

    def conflict(kind: int, change: apsw.TableChange) -> int:
        """Tell SQLite what to do about a conflict of this kind; note the table unless the conflict is accepted."""
        nonlocal dangling
        if kind != apsw.SQLITE_CHANGESET_FOREIGN_KEY:
            conflicts.add(change.name)
            return apsw.SQLITE_CHANGESET_ABORT
        dangling = change.fk_conflicts or 0
        if may_dangle is None or dangling <= may_dangle:
            return apsw.SQLITE_CHANGESET_OMIT
        conflicts.add(tr("foreign keys"))
        return apsw.SQLITE_CHANGESET_ABORT

    # Rows that were damaged before may violate CHECK constraints of the layout.
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
    """Copy counter rows of a database into the earlier file that undo is about to put back. Counters never decrease.

    Args:
        name: the database's path below the store's root. Nothing is done for a database without counters.
        current: the present database. If it cannot be read, no counters are copied.
        former: the earlier file.

    Raises:
        apsw.Error, OSError: the earlier file cannot be read or written.
    """
    tables = [table for system in systems.all_systems() for table in system.counters.get(name, ())]
    if not tables or not (untrusted_sqlite.is_database(current) and untrusted_sqlite.is_database(former)):
        return
    kept: dict[str, set[Any]] = {}
    with suppress(*sqlite.CONTENT_ERRORS, UnicodeDecodeError):
        kept = _read_rows(current, tables)
    # If the earlier file has the same counters, it must stay identical byte for byte.
    present = _read_rows(former, kept)
    missing = {table: rows - present[table] for table, rows in kept.items()}
    if not any(missing.values()):
        return
    with sqlite.open_writable(former) as db, sqlite.transaction(db), untrusted_sqlite.allow_schema_writes(db):
        for table, rows in missing.items():
            for row in rows:
                marks = ", ".join("?" * len(row))
                db.execute(f"INSERT OR REPLACE INTO {untrusted_sqlite.quote_name(table)} VALUES ({marks})", row)


def _read_rows(path: Path, tables: Iterable[str]) -> dict[str, set[Any]]:
    """Return all rows of some tables of a database, by table."""
    with sqlite.open_readonly(path) as db:
        return {
            table: set(db.execute(f"SELECT * FROM {untrusted_sqlite.quote_name(table)}").fetchall()) for table in tables
        }


@contextmanager
def _guard_rows(db: apsw.Connection) -> Iterator[None]:
    """Context that refuses row changes that the system of the file never makes itself."""
    with ExitStack() as guards:
        for system in systems.all_systems():
            guards.enter_context(system.guard_rows(db))
        yield


def _changed_table_names(changeset: Path) -> set[str]:
    with changeset.open("rb") as file:
        return {change.name for change in apsw.Changeset.iter(file.read)}


def find_changeset_problem(db: apsw.Connection, changeset: Path) -> str | None:
    """Say why a changeset for the database ``db`` cannot be one that regraft recorded; None if it can.

    A store may come from an untrusted source together with its changesets. A valid one changes rows of the layout's own
    tables only, not the schema and not the tables of a full-text index.
    """
    try:
        touched = _changed_table_names(changeset)
    except (apsw.CorruptError, apsw.NotADBError, UnicodeDecodeError) as error:
        return tr("it is damaged: {error}", error=error)
    foreign = sorted(touched - _changeable_tables(db))
    return tr("it changes {foreign}, which regraft never does", foreign=foreign[0]) if foreign else None


def _changeable_tables(db: apsw.Connection) -> set[str]:
    """Return the tables of a file whose rows regraft may have changed."""
    types: dict[str, str] = dict(db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'"))
    names = {name for name, kind in types.items() if kind == "table" and not name.startswith("sqlite_")}
    for system in systems.all_systems():
        if system.has_tables(types):
            return names | system.full_text_tables
    return names & _OF_INDEX if BODIES in names else names


# --- changes of many transactions ------------------------------------------------------------------------------------

#: How long a writer of many transactions, or a reader beside it, waits for a lock, in ms.
BUSY_MS = 60_000


@contextmanager
def open_writer(path: Path) -> Iterator[apsw.Connection]:
    """Open a SQLite file to write paid results in many transactions while other programs may write to it as well.

    Raises:
        apsw.Error: the file cannot be written.
    """
    with sqlite.open_writable(path) as db:
        # Fail before anything is paid for if the file cannot be written.
        with sqlite.transaction(db):
            pass
        # Paid results must survive a power cut.
        sqlite.sync_every_commit(db)
        db.set_busy_timeout(BUSY_MS)
        yield db


class IncrementalChange:
    """The undo record of the changes that a run makes to one file in many transactions.

    Args:
        root: the store's root.
        ledger: its ledger.
        run_id: the run.
        path: the file, below the root, with ``/`` between parts.
        kept: the changeset, below ``.regraft``.
        actions: the first action of the run that this change is for, and the number of actions.
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
        # Read before the file is opened: closing it otherwise than through SQLite releases the locks of this process.
        before = publication.stamp_before_change(ledger, root, path)
        self._detail = RowsDetail(0, actions, grows=True, before=before)
        self._begin_run = begin
        self._change: int | None = None
        self._size = self._written = 0
        #: SQLite's version of the data at the first section; another version means that others have written.
        self._data_version = -1

    @property
    def has_changed(self) -> bool:
        """Whether a transaction was committed."""
        return self._size > 0

    @contextmanager
    def transaction(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Change rows of ``tables`` in one transaction that is recorded as a section. Ctrl-C waits for its end."""
        with interrupts.defer_stops():
            own = untrusted_sqlite.change_only(db, self._path, tables)
            with sqlite.transaction(db), self._section(db, tables), own:
                yield
            self.note_commit()
        self._note_stamp(db)

    @contextmanager
    def _section(self, db: apsw.Connection, tables: Sequence[str]) -> Iterator[None]:
        """Context that records the row changes of ``tables`` and appends them to the changeset before the commit."""
        demand_revertible(db, tables)
        if self._change is None:
            self._begin_run()
            durable.make_folders(self._file.parent)
            durable.touch(self._file)
            durable.sync_folder(self._file.parent)
            run_id, path, kept = self._intent
            if publication.read_stamp(self._path) != self._detail.before:
                self._detail = replace(self._detail, before=None)
            self._data_version = db.execute("PRAGMA data_version").get
            self._change = self._book.changes.intend(run_id, "rows", path, kept, self._detail)
        else:
            self._book.changes.set_state(self._change, "intended", self._size)
        session = apsw.Session(db, "main")
        try:
            for table in tables:
                session.attach(table)
            yield
            part = session.changeset()
        finally:
            session.close()
        with durable.open_binary(self._file, "r+b") as file:
            # Overwrite a section whose transaction was rolled back.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(part)
            file.flush()
            durable.flush(file.fileno())
        self._written = len(part)

    def _note_stamp(self, db: apsw.Connection) -> None:
        """Note the stamp of the file after a section, unless another program has written to it since the first one."""
        if self._detail.before is not None:
            after = publication.read_stamp(self._path)
            is_alone = db.execute("PRAGMA data_version").get == self._data_version
            self._detail = replace(self._detail, after=after if is_alone else None)

    def note_commit(self) -> None:
        """Count the latest section as committed."""
        self._size += self._written

    def end(self) -> None:
        """Record the change as done. A change without a committed transaction leaves no record."""
        if self._change is None:
            return
        if self._size:
            durable.truncate(self._file, self._size)
            if self._detail.before is not None:
                self._book.changes.set_detail(self._change, self._detail)
            self._book.changes.set_state(self._change, "done", self._size)
        else:
            self._book.changes.set_state(self._change, "dropped", 0)
            durable.remove_tree(self._file)


def recover_last_section(final: Path, changeset: Path, change: RecordedChange) -> bool:
    """Cut the last section off the changeset of a killed run if it was not committed to the database ``final``.

    A section has the changes of one transaction; ``change`` says how many bytes are known to be committed. Returns
    whether any section remains.

    Raises:
        apsw.Error, OSError: the changed file cannot be read.
    """
    if changeset.stat().st_size > change.bytes:
        last = changeset.with_name(f"{changeset.name}.last")
        with changeset.open("rb") as file:
            file.seek(change.bytes)
            durable.put_bytes(last, file.read())
        try:
            made = _is_section_whole(last)
            if made:
                with write_transaction(final, keep=False) as db:
                    made = has_remaining_changes(db, last)
        finally:
            durable.remove(last)
        if not made:
            durable.truncate(changeset, change.bytes)
    return changeset.stat().st_size > 0


def _is_section_whole(section: Path) -> bool:
    """Whether a section was flushed completely. If not, its transaction was never committed."""
    try:
        with links.open_for_reading(section) as file:
            for _ in apsw.Changeset.iter(file.read):
                pass
    except apsw.CorruptError:
        return False
    return True
