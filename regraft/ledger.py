"""The ledger of a target: what runs intended, what they finished, and what stands there because of them.

Every change goes: intent recorded → work done beside the target → flushed → moved into place → recorded done. After a
kill at any moment the recorded intents tell what to finish and what to remove (``docs/formats/library.md``,
"Ledger"). The ledger is a SQLite file; holding it open for writing is the lock that keeps a second run out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import changes, sqlite
from regraft.changes import ChangeLog, RunRecord
from regraft.clock import now_ms
from regraft.errors import LedgerUnreadable, TargetLocked

FOLDER = ".regraft"
FILE = "ledger.sqlite"
#: Version 1 had no record of changes to data that were there before.
VERSION = 2

#: How long runs that share a ledger wait for each other's records, in ms.
SHARED_TIMEOUT_MS = 60_000

_TABLES = (
    "CREATE TABLE ledger (version INTEGER NOT NULL)",
    """CREATE TABLE run (
         run_id TEXT PRIMARY KEY,
         command TEXT NOT NULL,
         source TEXT NOT NULL,
         status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'stopped', 'interrupted')),
         started_at INTEGER NOT NULL,
         finished_at INTEGER)""",
    """CREATE TABLE step (
         step_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         subject TEXT NOT NULL,
         action TEXT NOT NULL,
         state TEXT NOT NULL CHECK (state IN ('intended', 'done', 'dropped')),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE part (
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         number INTEGER NOT NULL,
         body BLOB NOT NULL,
         PRIMARY KEY (step_id, number))""",
    """CREATE TABLE entry (
         subject TEXT PRIMARY KEY,
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
)


@dataclass(frozen=True)
class Entry:
    """What stands in the target under a subject: the fingerprint of its input, and what its writer needs again."""

    fingerprint: str
    detail: bytes


@dataclass(frozen=True)
class Step:
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
            (run_id, command, source, now_ms()),
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
                (self._run, subject, action, entry.fingerprint, entry.detail),
            )
            step_id = self._db.last_insert_rowid()
            numbered = ((step_id, number, body) for number, body in enumerate(parts))
            self._db.executemany("INSERT INTO part (step_id, number, body) VALUES (?, ?, ?)", numbered)
        return Step(step_id, subject, action, entry)

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
        query = (
            "SELECT step_id, subject, action, fingerprint, detail FROM step WHERE state = 'intended' ORDER BY step_id"
        )
        with readable(self._target):
            rows: list[Any] = self._db.execute(query).fetchall()
            self._demand_names(subject for _, subject, *_ in rows)
        return [Step(step, subject, action, Entry(mark, detail)) for step, subject, action, mark, detail in rows]

    def entries(self) -> dict[str, Entry]:
        """Return what stands in the target, by subject."""
        with readable(self._target):
            rows: list[Any] = self._db.execute("SELECT subject, fingerprint, detail FROM entry").fetchall()
            self._demand_names(subject for subject, *_ in rows)
        return {subject: Entry(fingerprint, detail) for subject, fingerprint, detail in rows}

    def _demand_names(self, subjects: Iterable[object]) -> None:
        """Refuse a ledger whose subjects are more than names: folders are called like them."""
        try:
            for subject in subjects:
                changes.demand_name(subject)
        except TypeError as error:
            raise LedgerUnreadable(path=path_of(self._target), reason=error) from error

    def parts(self, subject: str) -> Iterator[bytes]:
        """Stream the parts of what stands under ``subject``, in their order."""
        query = "SELECT body FROM part JOIN entry USING (step_id) WHERE subject = ? ORDER BY number"
        with readable(self._target):
            for (body,) in self._db.execute(query, (subject,)):
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
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise LedgerUnreadable(path=path_of(target), reason=error) from error


@contextmanager
def opened(target: Path) -> Iterator[Ledger]:
    """Open the ledger of ``target`` (its folder exists) for one writer and keep every other one out.

    Raises:
        TargetLocked: another run has it open.
        LedgerUnreadable: it is damaged, or of a later regraft.
        apsw.Error: it cannot be written.
    """
    with sqlite.writing(path_of(target), create=True) as db:
        db.set_busy_timeout(0)
        try:
            # The lock is the file's own, held from here to the end; the system frees it when a process dies.
            with readable(target):
                db.execute("PRAGMA locking_mode = EXCLUSIVE")
                db.execute("BEGIN EXCLUSIVE")
                _prepare(db, target)
                db.execute("COMMIT")
                # Runs that share a ledger leave it with a log, which would lie beside it from now on.
                db.execute("PRAGMA journal_mode = DELETE")
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
    with sqlite.writing(path_of(target), create=True) as db:
        try:
            with readable(target):
                # With a log, SQLite keeps a lock that others may have too for as long as the file is open. Where the
                # disk knows no logs, one run has it for itself.
                if db.execute("PRAGMA journal_mode = WAL").get != "wal":
                    db.execute("PRAGMA locking_mode = EXCLUSIVE")
                with sqlite.transaction(db):
                    _prepare(db, target)
        except apsw.BusyError as error:
            raise TargetLocked(path=target) from error
        db.execute("PRAGMA synchronous = FULL")
        db.set_busy_timeout(SHARED_TIMEOUT_MS)
        yield Ledger(db, target)


def _prepare(db: apsw.Connection, target: Path) -> None:
    if _is_fresh(db, target):
        for statement in (*_TABLES, *changes.TABLES):
            db.execute(statement)
        db.execute("INSERT INTO ledger (version) VALUES (?)", (VERSION,))
    if _checked_version(db, target) < VERSION:
        for statement in changes.TABLES:
            db.execute(statement)
        db.execute("UPDATE ledger SET version = ?", (VERSION,))


def _is_fresh(db: apsw.Connection, target: Path) -> bool:
    """Tell whether nothing is in the file yet: a run was killed before it had recorded anything."""
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
    if tables and "ledger" not in tables:
        raise LedgerUnreadable(path=path_of(target), reason="it is of another program")
    return not tables


def _checked_version(db: apsw.Connection, target: Path) -> int:
    version: Any = db.execute("SELECT version FROM ledger").get
    if version not in range(1, VERSION + 1):
        raise LedgerUnreadable(path=path_of(target), reason=f"it is of version {version}")
    return int(version)


def read_entries(target: Path) -> dict[str, Entry]:
    """Return what stands in ``target`` without a trace; nothing where it has no ledger.

    Raises:
        LedgerUnreadable: it is damaged.
    """
    path = path_of(target)
    if not path.exists():
        return {}
    with readable(target), sqlite.reading(path) as db:
        if _is_fresh(db, target):
            return {}
        _checked_version(db, target)
        return Ledger(db, target).entries()


def read_runs(target: Path) -> list[RunRecord]:
    """Return the runs that the ledger of ``target`` knows, oldest first, without a trace.

    Raises:
        LedgerUnreadable: it is damaged.
    """
    path = path_of(target)
    if not path.exists():
        return []
    with readable(target), sqlite.reading(path) as db:
        if _is_fresh(db, target):
            return []
        return ChangeLog(db, has_tables=_checked_version(db, target) == VERSION).runs()
