"""The ledger's record of changes to data that were there before, and of what takes each back.

A change is intended, then done; taking it back is intended, then done, too. What takes it back lies in a file below
the store's ``.regraft`` (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import LedgerUnreadable
from regraft.language import in_english
from regraft.ledger.values import (
    Detail,
    Means,
    Recorded,
    RecordedAction,
    State,
    Status,
    UnfitValue,
    action_of,
    recorded_of,
    run_of,
)


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the ledger has it; times in ms."""

    run_id: str
    command: str
    source: str
    status: Status
    started_at: int
    finished_at: int | None
    actions: tuple[RecordedAction, ...]
    changes: tuple[Recorded, ...]


#: What reading a ledger fails with where it says what regraft does not write, or is damaged.
UNFIT = (UnfitValue, msgspec.MsgspecError, UnicodeDecodeError, apsw.NotADBError, apsw.CorruptError, apsw.SQLError)

_COLUMNS = "change_id, run_id, means, path, state, kept, bytes, detail"


class ChangeLog:
    """The changes in an open ledger."""

    def __init__(self, connection: apsw.Connection, *, has_tables: bool = True) -> None:
        self._db = connection
        self._has_tables = has_tables

    def record_actions(self, run_id: str, actions: Sequence[msgspec.Struct]) -> None:
        """Record what a run is going to do, or what it has done in the place of that, as its document has it."""
        with sqlite.transaction(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO action (run_id, number, detail) VALUES (?, ?, ?)",
                ((run_id, number, _kept(action)) for number, action in enumerate(actions)),
            )

    def intend(self, run_id: str, means: Means, path: str, kept: str | None, detail: Detail) -> int:
        """Record the intent of a change and return its number."""
        self._db.execute(
            "INSERT INTO change (run_id, means, path, state, kept, bytes, detail)"
            " VALUES (?, ?, ?, 'intended', ?, 0, ?)",
            (run_id, means, path, kept, msgspec.json.encode(detail)),
        )
        return self._db.last_insert_rowid()

    def settle(self, change_id: int, state: State, size: int | None = None) -> None:
        """Record what became of a change; ``size`` is that of what takes it back, in bytes."""
        self._db.execute(
            "UPDATE change SET state = ?, bytes = ifnull(?, bytes) WHERE change_id = ?", (state, size, change_id)
        )

    def open_changes(self) -> list[Recorded]:
        """Return the changes of which nobody knows yet whether they were made or taken back, oldest first."""
        return self._changes("state IN ('intended', 'undoing')", ())

    def changes_of(self, run_id: str) -> list[Recorded]:
        """Return the changes of a run, oldest first."""
        return self._changes("run_id = ?", (run_id,))

    def every(self) -> list[Recorded]:
        """Return the changes of all runs, oldest first."""
        return self._changes("TRUE", ())

    def runs(self) -> list[RunRecord]:
        """Return all runs, oldest first."""
        query = "SELECT run_id, command, source, status, started_at, finished_at FROM run ORDER BY rowid"
        with self._understood():
            return [self._record(row) for row in self._db.execute(query).fetchall()]

    def _record(self, row: tuple[Any, ...]) -> RunRecord:
        run = run_of(row)
        actions = self._actions(run.run_id) if self._has_tables else ()
        changes = tuple(self.changes_of(run.run_id)) if self._has_tables else ()
        return RunRecord(
            run_id=run.run_id,
            command=run.command,
            source=run.source,
            status=run.status,
            started_at=run.started_at,
            finished_at=run.finished_at,
            actions=actions,
            changes=changes,
        )

    def _actions(self, run_id: str) -> tuple[RecordedAction, ...]:
        rows = self._db.execute("SELECT detail FROM action WHERE run_id = ? ORDER BY number", (run_id,))
        return tuple(action_of(detail) for (detail,) in rows)

    def _changes(self, where: str, values: tuple[str, ...]) -> list[Recorded]:
        query = f"SELECT {_COLUMNS} FROM change WHERE {where} ORDER BY change_id"
        with self._understood():
            return [recorded_of(row) for row in self._db.execute(query, values).fetchall()]

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except UNFIT as error:
            raise LedgerUnreadable(path=Path(self._db.filename), reason=error) from error


def _kept(action: msgspec.Struct) -> bytes:
    """Return an action as a ledger keeps it: in English, whoever made it."""
    return msgspec.json.encode(in_english(msgspec.to_builtins(action)))
