"""The ledger of a target: what runs intended, what they finished, and what stands there because of them.

Every change goes: intent recorded → work done beside the target → flushed → moved into place → recorded done. After a
kill at any moment the recorded intents tell what to finish and what to remove (``docs/formats/library.md``,
"Ledger"). The ledger is a SQLite file; holding it open for writing is the lock that keeps a second run out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from regraft import sqlite
from regraft.clock import now_ms
from regraft.errors import LedgerUnreadable, TargetLocked
from regraft.language import tr
from regraft.ledger import values
from regraft.ledger.changes import UNFIT, ChangeLog, RunRecord
from regraft.ledger.schema import CHANGE_TABLES, TABLES, VERSION, demand_schema, is_empty, tables_of
from regraft.ledger.values import demand_fit, entry_of, run_id_of, step_of, subject_of

FOLDER = values.FOLDER
FILE = "ledger.sqlite"

#: How long runs that share a ledger wait for each other's records, in ms.
SHARED_TIMEOUT_MS = 60_000
#: How often a ledger is read again that another run wrote to meanwhile.
_READ_TRIES = 5

_STEP = "step_id, run_id, subject, action, state, fingerprint, detail"
_ENTRY = "subject, step_id, fingerprint, detail"

T = TypeVar("T")


class Entry(msgspec.Struct, frozen=True):
    """What stands in the target under a subject: the fingerprint of its input, and what its writer needs again."""

    fingerprint: str
    detail: bytes


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded intent that no run has recorded as done."""

    step_id: int
    subject: str
    action: str
    entry: Entry


class Ledger:
    """The open ledger of one target; made by :func:`opened` and :func:`read_entries`."""

    def __init__(self, connection: apsw.Connection, target: Path) -> None:
        self._db = connection
        self._target = target
        self._run: str | None = None
        self.changes = ChangeLog(connection)

    # --- runs ------------------------------------------------------------------------------------------------------

    def begin_run(self, command: str, source: str, run_id: str) -> None:
        """Record that a run starts."""
        self._db.execute(
            "INSERT INTO run (run_id, command, source, status, started_at) VALUES (?, ?, ?, 'running', ?)",
            (run_id_of(run_id), command, source, now_ms()),
        )
        self._run = run_id

    def end_run(self, status: str) -> None:
        """Record how the run ended: finished, stopped or interrupted; one that never began has no end."""
        if self._run is None:
            return
        self._db.execute("UPDATE run SET status = ?, finished_at = ? WHERE run_id = ?", (status, now_ms(), self._run))

    def stop_runs(self) -> None:
        """Record of every run that never ended that it did not finish: holding the ledger means that none goes on."""
        self._db.execute("UPDATE run SET status = 'stopped' WHERE status = 'running'")

    # --- steps -----------------------------------------------------------------------------------------------------

    def intend(self, subject: str, action: str, entry: Entry, parts: Iterable[bytes] = ()) -> Step:
        """Record the intent to make ``entry`` stand under ``subject``.

        ``parts`` are what its writer needs again and what is too much to hold at once; see :meth:`parts`.
        """
        with sqlite.transaction(self._db):
            self._db.execute(
                "INSERT INTO step (run_id, subject, action, state, fingerprint, detail)"
                " VALUES (?, ?, ?, 'intended', ?, ?)",
                (self._run, subject_of(subject), action, entry.fingerprint, entry.detail),
            )
            step_id = self._db.last_insert_rowid()
            numbered = ((step_id, number, body) for number, body in enumerate(parts))
            self._db.executemany("INSERT INTO part (step_id, number, body) VALUES (?, ?, ?)", numbered)
        return Step(step_id=step_id, subject=subject, action=action, entry=entry)

    def done(self, step: Step) -> None:
        """Record that an intent was carried out, and what stands in the target now."""
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

    def amend(self, subject: str, detail: bytes) -> None:
        """Replace the detail of what stands under ``subject``; its parts stay."""
        self._db.execute("UPDATE entry SET detail = ? WHERE subject = ?", (detail, subject))

    def drop(self, step: Step) -> None:
        """Record that an intent was given up; what it had begun is removed."""
        with sqlite.transaction(self._db):
            self._db.execute("UPDATE step SET state = 'dropped', detail = x'' WHERE step_id = ?", (step.step_id,))
            self._db.execute("DELETE FROM part WHERE step_id = ?", (step.step_id,))

    def open_steps(self) -> list[Step]:
        """Return the intents that were neither carried out nor given up, oldest first."""
        query = f"SELECT {_STEP} FROM step WHERE state = 'intended' ORDER BY step_id"
        with readable(self._target):
            steps = map(step_of, self._db.execute(query).fetchall())
            return [
                Step(
                    step_id=one.step_id,
                    subject=one.subject,
                    action=one.action,
                    entry=Entry(one.fingerprint, one.detail),
                )
                for one in steps
            ]

    def entries(self) -> dict[str, Entry]:
        """Return what stands in the target, by subject."""
        with readable(self._target):
            rows = map(entry_of, self._db.execute(f"SELECT {_ENTRY} FROM entry").fetchall())
            return {one.subject: Entry(one.fingerprint, one.detail) for one in rows}

    def parts(self, subject: str) -> Iterator[bytes]:
        """Stream the parts of what stands under ``subject``, in their order."""
        query = "SELECT body FROM part JOIN entry USING (step_id) WHERE subject = ? ORDER BY number"
        return self._parts(query, subject)

    def parts_of(self, step: Step) -> Iterator[bytes]:
        """Stream the parts of an intent, in their order."""
        return self._parts("SELECT body FROM part WHERE step_id = ? ORDER BY number", step.step_id)

    def _parts(self, query: str, value: str | int) -> Iterator[bytes]:
        with readable(self._target):
            for (body,) in self._db.execute(query, (value,)):
                yield body


def path_of(target: Path) -> Path:
    """Return where the ledger of ``target`` is."""
    return target / FOLDER / FILE


@contextmanager
def readable(target: Path) -> Iterator[None]:
    """Report a ledger that cannot be read as such.

    Raises:
        LedgerUnreadable
    """
    try:
        yield
    except UNFIT as error:
        raise LedgerUnreadable(path=path_of(target), reason=error) from error


@contextmanager
def opened(target: Path) -> Iterator[Ledger]:
    """Open the ledger of ``target`` (its folder exists) for one writer and keep every other one out.

    Raises:
        TargetLocked: another run has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
        apsw.Error: it cannot be written.
    """
    with _writing(target) as db:
        db.set_busy_timeout(0)
        try:
            # The lock is the file's own, held from here to the end; the system frees it when a process dies.
            with readable(target):
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                db.execute("BEGIN EXCLUSIVE")
                _prepare(db)
                db.execute("COMMIT")
                # Runs that share a ledger leave it with a log, which would lie beside it from now on.
                db.execute("PRAGMA journal_mode = DELETE")
                sqlite.keep_through_power_cuts(db)
        except apsw.BusyError as error:
            raise TargetLocked(path=target) from error
        yield Ledger(db, target)


@contextmanager
def shared(target: Path) -> Iterator[Ledger]:
    """Open the ledger of ``target`` together with other runs that share it, and keep all others out.

    Every record is a transaction of its own. Who shares must have looked first, alone, at what killed runs left
    (:func:`opened`), and must not judge the runs that are recorded as running: they may be those that share.

    Raises:
        TargetLocked: a run that shares it with nobody has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
        apsw.Error: it cannot be written.
    """
    with _writing(target) as db:
        try:
            with readable(target):
                # Nothing of a ledger is changed before all of it was read, not even how it is kept.
                with sqlite.transaction(db):
                    _prepare(db)
                # With a log, SQLite keeps a lock that others may have too for as long as the file is open. Where the
                # disk knows no logs, one run has it for itself.
                if db.execute("PRAGMA journal_mode = WAL").get != "wal":
                    db.execute("PRAGMA locking_mode = EXCLUSIVE")
                with sqlite.transaction(db):
                    demand_schema(db)
        except apsw.BusyError as error:
            raise TargetLocked(path=target) from error
        sqlite.keep_through_power_cuts(db)
        db.set_busy_timeout(SHARED_TIMEOUT_MS)
        yield Ledger(db, target)


@contextmanager
def _writing(target: Path) -> Iterator[apsw.Connection]:
    """Open the file for writing, and leave it and the log beside it as they are where it is refused."""
    path = path_of(target)
    _demand_file(path)
    has_log = any(os.path.lexists(path.with_name(path.name + end)) for end in sqlite.TRACES)
    with sqlite.writing(path, create=True) as db:
        # Without one, closing removes what opening has made.
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(has_log))
        db.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        # SQLite opens a file that it may not write (read-only media, missing permission) for reading, without a word.
        if db.readonly("main"):
            raise apsw.ReadOnlyError(tr("it is read-only"))
        yield db


def _demand_file(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise LedgerUnreadable(path=path, reason=tr("it is not an ordinary file"))


def _prepare(db: apsw.Connection) -> None:
    """Read all that a ledger says, and give it the tables that it lacks, in the caller's transaction."""
    if is_empty(db):
        for statement in (*TABLES, *CHANGE_TABLES):
            db.execute(statement)
        db.execute("INSERT INTO ledger (version) VALUES (?)", (VERSION,))
    version = demand_schema(db)
    demand_fit(db, tables_of(version))
    if version < VERSION:
        for statement in CHANGE_TABLES:
            db.execute(statement)
        db.execute("UPDATE ledger SET version = ?", (VERSION,))
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)


def read_entries(target: Path, take: Callable[[Ledger], dict[str, Entry]] = Ledger.entries) -> dict[str, Entry]:
    """Return what stands in ``target`` without a trace; nothing where it has no ledger.

    ``take`` reads that, and may look at more of the ledger.

    Raises:
        LedgerUnreadable: it is damaged, or says what regraft does not write.
    """
    found = _read(target, lambda db, _: take(Ledger(db, target)))
    return {} if found is None else found


def read_runs(target: Path) -> list[RunRecord]:
    """Return the runs that the ledger of ``target`` knows, oldest first, without a trace.

    Raises:
        LedgerUnreadable: it is damaged, or says what regraft does not write.
    """
    found = _read(target, lambda db, version: ChangeLog(db, has_tables=version == VERSION).runs())
    return found or []


def _read(target: Path, take: Callable[[apsw.Connection, int], T]) -> T | None:
    """Return what ``take`` reads of a ledger and its version; None where there is none, or nothing in it."""
    path = path_of(target)
    _demand_file(path)
    for left in reversed(range(_READ_TRIES)):
        before = _marks(path)
        if before is None:
            return None
        try:
            with readable(target), sqlite.reading(path) as db:
                if is_empty(db):
                    return None
                version = demand_schema(db)
                demand_fit(db, tables_of(version))
                return take(db, version)
        except LedgerUnreadable:
            # What another run writes to meanwhile seems damaged.
            if not left or _marks(path) == before:
                raise
        except (apsw.Error, OSError) as error:
            raise LedgerUnreadable(path=path, reason=getattr(error, "strerror", None) or error) from error
    return None


def _marks(path: Path) -> list[tuple[int, int]] | None:
    """Return sizes and times of change (ns) of the file and what lies beside it; None where there is no file."""
    try:
        found = [path.stat(), *(file.stat() for file in sqlite.companions(path))]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return [(one.st_size, one.st_mtime_ns) for one in found]
