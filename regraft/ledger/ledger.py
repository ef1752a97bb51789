"""Record in a target's ledger what runs intend, what they have finished, and what was published.

Every change follows one order: record the intent, do the work beside the target, flush, move it into place, record it
as done. After a kill at any moment, the recorded intents tell what to finish and what to remove
(``docs/formats/library.md``, "Ledger"). The ledger is a SQLite file; holding it open for writing is the lock that
excludes other runs.

Runs that change existing data also record each change and where its backup is, below ``.regraft`` ("Changes" on that
page).
"""

from __future__ import annotations

import ntpath
import os
import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import LedgerUnreadable, MigrationUnfinished, RegraftError, TargetLocked
from regraft.identity import now_ms
from regraft.language import document_in_english, tr
from regraft.ledger import values
from regraft.ledger.values import (
    CHANGE_TABLES,
    TABLES,
    VERSION,
    ChangeMeans,
    ChangeState,
    Detail,
    InvalidValue,
    RecordedAction,
    RecordedChange,
    RunRow,
    check_run_id,
    check_schema,
    check_subject,
    check_values,
    is_empty,
    parse_action,
    parse_change,
    parse_entry,
    parse_run,
    parse_step,
    table_names,
)
from regraft.text import join_command, path_argument, printable

# Changes of existing data and their backups. A change is intended, then done; undoing it is intended, then done, too.
# Its backup is a file below the store's ``.regraft``.


class RunRecord(RunRow, frozen=True, kw_only=True):
    """A run in the ledger, with its actions and its changes of existing data."""

    actions: tuple[RecordedAction, ...]
    changes: tuple[RecordedChange, ...]


#: Errors of reading a ledger that is damaged or contains what regraft does not write.
UNREADABLE_ERRORS = (
    InvalidValue,
    msgspec.MsgspecError,
    UnicodeDecodeError,
    apsw.NotADBError,
    apsw.CorruptError,
    apsw.SQLError,
)

#: The action that inserts a base into a profile; it records the items of which a salvage lost rows.
INSERT_BASE = "insert-base"

_COLUMNS = "change_id, run_id, means, path, state, kept, bytes, detail"


class ChangeLog:
    """The changes in an open ledger. ``has_tables`` is False for a ledger of version 1, which has no changes."""

    def __init__(self, connection: apsw.Connection, *, has_tables: bool = True) -> None:
        self._db = connection
        self._has_tables = has_tables

    def record_actions(self, run_id: str, actions: Sequence[msgspec.Struct]) -> None:
        """Record the actions of a run (what it is about to do, or has done), as its JSON document has them."""
        with sqlite.transaction(self._db):
            self.put_actions(run_id, actions)

    def put_actions(self, run_id: str, actions: Sequence[msgspec.Struct]) -> None:
        """Record the actions of a run as :meth:`record_actions` does, in the caller's transaction."""
        self._db.executemany(
            "INSERT OR REPLACE INTO action (run_id, number, detail) VALUES (?, ?, ?)",
            # In English, whatever the language of the process.
            (
                (run_id, number, msgspec.json.encode(document_in_english(msgspec.to_builtins(action))))
                for number, action in enumerate(actions)
            ),
        )

    def intend(self, run_id: str, means: ChangeMeans, path: str, kept: str | None, detail: Detail) -> int:
        """Record that a run is about to make a change; return the number of the change.

        Args:
            run_id: the run.
            means: whether it changes rows or a file.
            path: what it changes, below the store's root.
            kept: the path of its backup below ``.regraft``; None if nothing exists at ``path``.
            detail: what else is needed to undo it.
        """
        self._db.execute(
            "INSERT INTO change (run_id, means, path, state, kept, bytes, detail)"
            " VALUES (?, ?, ?, 'intended', ?, 0, ?)",
            (run_id, means, path, kept, msgspec.json.encode(detail)),
        )
        return self._db.last_insert_rowid()

    def set_state(self, change_id: int, state: ChangeState, size: int | None = None) -> None:
        """Record the new state of a change, and the size of its backup in bytes (None: unchanged)."""
        self._db.execute(
            "UPDATE change SET state = ?, bytes = ifnull(?, bytes) WHERE change_id = ?", (state, size, change_id)
        )

    def set_detail(self, change_id: int, detail: Detail) -> None:
        """Replace the detail of a change."""
        self._db.execute("UPDATE change SET detail = ? WHERE change_id = ?", (msgspec.json.encode(detail), change_id))

    def open_changes(self) -> list[RecordedChange]:
        """Return the changes whose execution or undo was not recorded as done, oldest first."""
        return self._select_changes("state IN ('intended', 'undoing')", ())

    def changes_of(self, run_id: str) -> list[RecordedChange]:
        """Return the changes of a run, oldest first."""
        return self._select_changes("run_id = ?", (run_id,))

    def done_rows_changes(self, path: str) -> list[RecordedChange]:
        """Return the changes of rows of the file at ``path`` that were made and not undone, oldest first."""
        return self._select_changes("means = 'rows' AND state = 'done' AND path = ?", (path,))

    def every(self) -> list[RecordedChange]:
        """Return the changes of all runs, oldest first."""
        return self._select_changes("TRUE", ())

    def runs(self) -> list[RunRecord]:
        """Return all runs, oldest first."""
        query = "SELECT run_id, command, source, status, started_at, finished_at FROM run ORDER BY rowid"
        with self._report_invalid_values():
            return [self._read_run(row) for row in self._db.execute(query).fetchall()]

    def _read_run(self, row: tuple[Any, ...]) -> RunRecord:
        """Return the run of a row of the table ``run``, with its actions and changes."""
        run = parse_run(row)
        actions: tuple[RecordedAction, ...] = ()
        changes: tuple[RecordedChange, ...] = ()
        if self._has_tables:
            query = "SELECT detail FROM action WHERE run_id = ? ORDER BY number"
            actions = tuple(parse_action(detail) for (detail,) in self._db.execute(query, (run.run_id,)))
            changes = tuple(self.changes_of(run.run_id))
        return RunRecord(**msgspec.structs.asdict(run), actions=actions, changes=changes)

    def _select_changes(self, where: str, values: tuple[str, ...]) -> list[RecordedChange]:
        """Return the changes that meet the SQL condition ``where`` with these parameters, oldest first."""
        query = f"SELECT {_COLUMNS} FROM change WHERE {where} ORDER BY change_id"
        with self._report_invalid_values():
            return [parse_change(row) for row in self._db.execute(query, values).fetchall()]

    @contextmanager
    def _report_invalid_values(self) -> Iterator[None]:
        """Context that converts errors of reading the ledger to LedgerUnreadable."""
        try:
            yield
        except UNREADABLE_ERRORS as error:
            raise LedgerUnreadable(path=Path(self._db.filename), reason=error) from error


FOLDER = values.FOLDER
FILE = "ledger.sqlite"

#: How long runs that share a ledger wait for each other's records, in ms.
SHARED_TIMEOUT_MS = 60_000
#: Attempts to read a ledger that another run is writing.
_READ_TRIES = 5

_STEP = "step_id, run_id, subject, action, state, fingerprint, detail"
_ENTRY = "subject, step_id, fingerprint, detail"

T = TypeVar("T")


class LedgerEntry(msgspec.Struct, frozen=True):
    """What is published under a subject: the fingerprint of its input, and data that its writer needs later."""

    fingerprint: str
    detail: bytes


class LedgerStep(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded intent that is not recorded as done."""

    step_id: int
    subject: str
    action: str
    entry: LedgerEntry


class Ledger:
    """The open ledger of one target; see :func:`open_exclusive`, :func:`open_shared` and :func:`read_entries`."""

    def __init__(self, connection: apsw.Connection, target: Path) -> None:
        self._db = connection
        self._target = target
        self._run: str | None = None
        self.changes = ChangeLog(connection)

    # --- runs ------------------------------------------------------------------------------------------------------

    def begin_run(self, command: str, source: str, run_id: str, actions: Sequence[msgspec.Struct] = ()) -> None:
        """Record that a run starts, with its command, its source and its ``actions`` (see :class:`ChangeLog`)."""
        with sqlite.transaction(self._db):
            self._db.execute(
                "INSERT INTO run (run_id, command, source, status, started_at) VALUES (?, ?, ?, 'running', ?)",
                (check_run_id(run_id), command, source, now_ms()),
            )
            self.changes.put_actions(run_id, actions)
        self._run = run_id

    def end_run(self, status: str) -> None:
        """Record how the run of :meth:`begin_run` ended: finished, stopped or interrupted; do nothing without one."""
        if self._run is None:
            return
        self._db.execute("UPDATE run SET status = ?, finished_at = ? WHERE run_id = ?", (status, now_ms(), self._run))

    def stop_runs(self) -> None:
        """Mark all runs that are recorded as running as stopped.

        None of them can continue while this process has the ledger open.
        """
        self._db.execute("UPDATE run SET status = 'stopped' WHERE status = 'running'")

    # --- steps -----------------------------------------------------------------------------------------------------

    def intend(self, subject: str, action: str, entry: LedgerEntry, parts: Iterable[bytes] = ()) -> LedgerStep:
        """Record the intent to publish ``entry`` under ``subject``, and return it.

        Args:
            subject: a base id, ``catalog`` or ``report``.
            action: what the run does with the subject.
            entry: its new entry.
            parts: data that is too large to hold in memory and that its writer needs later; see :meth:`parts`.
        """
        with sqlite.transaction(self._db):
            self._db.execute(
                "INSERT INTO step (run_id, subject, action, state, fingerprint, detail)"
                " VALUES (?, ?, ?, 'intended', ?, ?)",
                (self._run, check_subject(subject), action, entry.fingerprint, entry.detail),
            )
            step_id = self._db.last_insert_rowid()
            numbered = ((step_id, number, body) for number, body in enumerate(parts))
            self._db.executemany("INSERT INTO part (step_id, number, body) VALUES (?, ?, ?)", numbered)
        return LedgerStep(step_id=step_id, subject=subject, action=action, entry=entry)

    def done(self, step: LedgerStep) -> None:
        """Record that an intent was carried out, and publish its entry."""
        with sqlite.transaction(self._db):
            self._db.execute("UPDATE step SET state = 'done', detail = x'' WHERE step_id = ?", (step.step_id,))
            self._db.execute(
                "DELETE FROM part WHERE step_id IN (SELECT step_id FROM entry WHERE subject = ?)", (step.subject,)
            )
            self._db.execute(
                "INSERT INTO entry (subject, step_id, fingerprint, detail) VALUES (?1, ?2, ?3, ?4)"
                " ON CONFLICT (subject) DO UPDATE SET step_id = ?2, fingerprint = ?3, detail = ?4",
                (step.subject, step.step_id, step.entry.fingerprint, step.entry.detail),
            )

    def entry(self, subject: str) -> LedgerEntry | None:
        """Return the published entry under ``subject``, or None."""
        with report_unreadable(self._target):
            rows = self._db.execute(f"SELECT {_ENTRY} FROM entry WHERE subject = ?", (subject,)).fetchall()
            return next((LedgerEntry(one.fingerprint, one.detail) for one in map(parse_entry, rows)), None)

    def set_fingerprint(self, subject: str, fingerprint: str) -> None:
        """Replace the fingerprint of the published entry under ``subject``."""
        self._db.execute("UPDATE entry SET fingerprint = ? WHERE subject = ?", (fingerprint, subject))

    def amend(self, subject: str, detail: bytes) -> None:
        """Replace the detail of the published entry under ``subject``; its parts stay."""
        self._db.execute("UPDATE entry SET detail = ? WHERE subject = ?", (detail, subject))

    def drop(self, step: LedgerStep) -> None:
        """Record that an intent was abandoned; its work was removed."""
        with sqlite.transaction(self._db):
            self._db.execute("UPDATE step SET state = 'dropped', detail = x'' WHERE step_id = ?", (step.step_id,))
            self._db.execute("DELETE FROM part WHERE step_id = ?", (step.step_id,))

    def open_steps(self) -> list[LedgerStep]:
        """Return the intents that were neither carried out nor abandoned, oldest first."""
        query = f"SELECT {_STEP} FROM step WHERE state = 'intended' ORDER BY step_id"
        with report_unreadable(self._target):
            steps = map(parse_step, self._db.execute(query).fetchall())
            return [
                LedgerStep(
                    step_id=one.step_id,
                    subject=one.subject,
                    action=one.action,
                    entry=LedgerEntry(one.fingerprint, one.detail),
                )
                for one in steps
            ]

    def entries(self) -> dict[str, LedgerEntry]:
        """Map each subject to its published entry."""
        with report_unreadable(self._target):
            rows = map(parse_entry, self._db.execute(f"SELECT {_ENTRY} FROM entry").fetchall())
            return {one.subject: LedgerEntry(one.fingerprint, one.detail) for one in rows}

    def parts(self, subject: str) -> Iterator[bytes]:
        """Yield the parts that were recorded with the published entry under ``subject``, in order."""
        query = "SELECT body FROM part JOIN entry USING (step_id) WHERE subject = ? ORDER BY number"
        return self._select_parts(query, subject)

    def parts_of(self, step: LedgerStep) -> Iterator[bytes]:
        """Yield the parts that were recorded with an intent, in order."""
        return self._select_parts("SELECT body FROM part WHERE step_id = ? ORDER BY number", step.step_id)

    def _select_parts(self, query: str, value: str | int) -> Iterator[bytes]:
        """Yield the only column of a query with one parameter."""
        with report_unreadable(self._target):
            for (body,) in self._db.execute(query, (value,)):
                yield body


def ledger_path(target: Path) -> Path:
    """Return the path of the ledger of ``target``."""
    return target / FOLDER / FILE


@contextmanager
def report_unreadable(target: Path) -> Iterator[None]:
    """Context that converts errors of reading the ledger of ``target`` to LedgerUnreadable.

    Raises:
        LedgerUnreadable
    """
    try:
        yield
    except UNREADABLE_ERRORS as error:
        raise LedgerUnreadable(path=ledger_path(target), reason=error) from error


@contextmanager
def open_exclusive(target: Path) -> Iterator[Ledger]:
    """Open the ledger of ``target`` (an existing folder) for writing, excluding every other run.

    Raises:
        TargetLocked: another run has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
        apsw.Error: it cannot be written.
    """
    with _open_file(target) as db:
        db.set_busy_timeout(0)
        try:
            # The lock on the file is held until it is closed; the system releases it when the process dies.
            with report_unreadable(target):
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                db.execute("BEGIN EXCLUSIVE")
                _prepare(db)
                db.execute("COMMIT")
                # Runs that share a ledger leave it in WAL mode, and the log would stay beside it.
                db.execute("PRAGMA journal_mode = DELETE")
                sqlite.sync_every_commit(db)
        except apsw.BusyError as error:
            raise TargetLocked(path=target) from error
        yield Ledger(db, target)


@contextmanager
def open_shared(target: Path) -> Iterator[Ledger]:
    """Open the ledger of ``target`` together with other runs that share it, excluding all others.

    Every record is a transaction of its own. Before, one run must have recovered, alone, from killed runs
    (:func:`open_exclusive`). Runs recorded as running may be those that share the ledger.

    Raises:
        TargetLocked: a run that does not share it has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
        apsw.Error: it cannot be written.
    """
    with _open_file(target) as db:
        try:
            with report_unreadable(target):
                # Read the whole ledger before changing anything, even its journal mode.
                with sqlite.transaction(db):
                    _prepare(db)
                # In WAL mode SQLite holds a shared lock as long as the file is open. If the disk does not support WAL,
                # one run takes the ledger for itself.
                if db.execute("PRAGMA journal_mode = WAL").get != "wal":
                    db.execute("PRAGMA locking_mode = EXCLUSIVE")
                with sqlite.transaction(db):
                    check_schema(db)
        except apsw.BusyError as error:
            raise TargetLocked(path=target) from error
        sqlite.sync_every_commit(db)
        db.set_busy_timeout(SHARED_TIMEOUT_MS)
        yield Ledger(db, target)


@contextmanager
def _open_file(target: Path) -> Iterator[apsw.Connection]:
    """Open the ledger file of ``target`` for writing, and create it if it is missing.

    Closing leaves the file, and a log beside it, unchanged unless :func:`_prepare` has accepted the ledger.
    """
    path = ledger_path(target)
    _refuse_special_file(path)
    has_log = any(os.path.lexists(path.with_name(path.name + end)) for end in untrusted_sqlite.COMPANION_SUFFIXES)
    with sqlite.open_writable(path, create=True) as db:
        # Without a log, closing removes what opening has created.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
        # SQLite silently opens a file for reading if it may not write it (read-only media, missing permission).
        if db.readonly("main"):
            raise apsw.ReadOnlyError(tr("it is read-only"))
        yield db


def _refuse_special_file(path: Path) -> None:
    """Raise LedgerUnreadable if the path of a ledger is a link, a folder, a pipe or the like."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise LedgerUnreadable(path=path, reason=tr("it is not a regular file"))


def _prepare(db: apsw.Connection) -> None:
    """Check the whole ledger and create missing tables, in the caller's transaction.

    Raises:
        InvalidValue, apsw.Error, msgspec.MsgspecError, UnicodeDecodeError: regraft does not accept the ledger.
    """
    if is_empty(db):
        for statement in (*TABLES, *CHANGE_TABLES):
            db.execute(statement)
        db.execute("INSERT INTO ledger (version) VALUES (?)", (VERSION,))
    version = check_schema(db)
    check_values(db, table_names(version))
    if version < VERSION:
        for statement in CHANGE_TABLES:
            db.execute(statement)
        db.execute("UPDATE ledger SET version = ?", (VERSION,))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def read_entries(
    target: Path, take: Callable[[Ledger], dict[str, LedgerEntry]] = Ledger.entries
) -> dict[str, LedgerEntry]:
    """Return the published entries of ``target`` by subject; empty if it has no ledger. Leaves no trace.

    ``take`` reads the entries from the open ledger, and may check more of it.

    Raises:
        LedgerUnreadable: it is damaged, or contains what regraft does not write.
    """
    found = _read(target, lambda db, _: take(Ledger(db, target)))
    return {} if found is None else found


def read_runs(target: Path) -> list[RunRecord]:
    """Return the runs in the ledger of ``target``, oldest first, without a trace.

    Raises:
        LedgerUnreadable: it is damaged, or contains what regraft does not write.
    """
    found = _read(target, lambda db, version: ChangeLog(db, has_tables=version == VERSION).runs())
    return found or []


def _read(target: Path, take: Callable[[apsw.Connection, int], T]) -> T | None:
    """Open the ledger of ``target`` without a trace, and return the result of ``take`` for its database and version.

    None if ``target`` has no ledger, or an empty one. LedgerUnreadable: it cannot be read.
    """
    path = ledger_path(target)
    _refuse_special_file(path)
    for left in reversed(range(_READ_TRIES)):
        before = _file_states(path)
        if before is None:
            return None
        try:
            with report_unreadable(target), sqlite.open_readonly(path) as db:
                if is_empty(db):
                    return None
                version = check_schema(db)
                check_values(db, table_names(version))
                return take(db, version)
        except LedgerUnreadable:
            # A ledger that another run is writing can look damaged.
            if not left or _file_states(path) == before:
                raise
        except (apsw.Error, OSError) as error:
            raise LedgerUnreadable(path=path, reason=getattr(error, "strerror", None) or error) from error
    return None


def _file_states(path: Path) -> list[tuple[int, int]] | None:
    """Return size and time of change (ns) of the ledger and the files beside it; None if there is no ledger."""
    try:
        found = [path.stat(), *(file.stat() for file in untrusted_sqlite.find_companions(path))]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [(one.st_size, one.st_mtime_ns) for one in found]


# Suggesting the source that a ledger names. It is shown to a person, and never opened or looked for: the ledger is
# untrusted. A path in it may name another computer, to which the system would send the user's credentials, or a device;
# such paths are not suggested.


#: Folders of devices, of system state, and of other computers, in any letter case.
_SYSTEM_FOLDERS = frozenset({"dev", "proc", "sys", "net", "network", ".vol"})
#: Device names on Windows, with suffixes that Windows ignores.
_DEVICE = re.compile(
    r"(con|conin\$|conout\$|prn|aux|nul|clock\$|(com|lpt)[0-9¹²³])[ .]*([.:].*)?", re.IGNORECASE | re.DOTALL
)
#: /dev/shm holds ordinary files.
_SHARED_MEMORY = ["dev", "shm"]
_DRIVE = re.compile(r"[A-Za-z]:")
_MOST_CHARACTERS = 4096


def suggested_source(root: Path, commands: Collection[str]) -> str | None:
    """Return the source of the last run of one of the commands, as a command-line argument to suggest to the user.

    None if the ledger of the store names none, cannot be read, or names one that must not be suggested.

    Args:
        root: the folder of the store.
        commands: names of commands.
    """
    try:
        runs = read_runs(root)
    except (RegraftError, OSError):
        return None
    sources = [run.source for run in runs if run.command in commands]
    return suggested_argument(sources[-1]) if sources else None


def suggested_argument(path: str) -> str | None:
    """Return a path as a printable command-line argument; None if it must not be suggested."""
    return printable(path_argument(path), None) if is_suggestible(path) else None


def is_suggestible(path: str) -> bool:
    """Whether a path may be suggested to a person: not on another computer, not a device, not a URL."""
    plain = path.replace("\\", "/")
    if not plain.strip() or "\0" in plain or len(plain) > _MOST_CHARACTERS:
        return False
    # This includes ``\\server``, ``\\.\``, ``\\?\`` and ``\??\``.
    if plain.startswith(("//", "/??")) or "://" in plain:
        return False
    # Windows treats some names, and whatever precedes a colon, as a device or a drive.
    drive, rest = ntpath.splitdrive(plain)
    is_drive = not drive or _DRIVE.fullmatch(drive) is not None
    return is_drive and not any(map(_DEVICE.fullmatch, rest.split("/"))) and not _is_in_system_folder(plain)


def _is_in_system_folder(plain: str) -> bool:
    """Whether a path with ``/`` as separator is in a folder of devices, system state, or other computers."""
    parts = [part for part in posixpath.normpath(plain).split("/") if part]
    # A relative path that climbs up may reach the root.
    below = [part.casefold() for part in parts if part != ".."]
    is_memory = below[:2] == _SHARED_MEMORY and len(below) > len(_SHARED_MEMORY)
    is_from_root = plain.startswith("/") or parts[:1] == [".."]
    return is_from_root and not is_memory and not _SYSTEM_FOLDERS.isdisjoint(below[:1])


# Recognizing a folder in which the first run was killed before it published anything.


#: Commands that create a library.
_COMMANDS = ("migrate", "import")


def find_unfinished_run(folder: Path) -> MigrationUnfinished | None:
    """Return an error if a run was killed in this folder before it published anything; None otherwise.

    The caller has checked that the folder is not a store. Nothing is written.
    """
    with suppress(RegraftError, OSError):
        if not ledger_path(folder).is_file() or read_entries(folder):
            return None
        runs = read_runs(folder)
        if any(run.command not in _COMMANDS for run in runs):
            return None
        # A run that was killed while planning has not recorded itself yet.
        command, source = (runs[-1].command, suggested_argument(runs[-1].source)) if runs else ("migrate", None)
        words = ["regraft", command, source or "SOURCE", "--to", path_argument(folder)]
        return MigrationUnfinished(path=folder, command=join_command(words))
    return None
