"""The ledger's record of changes to data that were there before, and of what takes each back.

A change is intended, then done; taking it back is intended, then done, too. What takes it back lies in a file below
the store's ``.regraft`` (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any, Literal

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import LedgerUnreadable
from regraft.tree import is_plain_name

State = Literal["intended", "done", "dropped", "undoing", "undone", "expired"]
Means = Literal["rows", "file"]

TABLES = (
    """CREATE TABLE IF NOT EXISTS change (
         change_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         means TEXT NOT NULL CHECK (means IN ('rows', 'file')),
         path TEXT NOT NULL,
         state TEXT NOT NULL
           CHECK (state IN ('intended', 'done', 'dropped', 'undoing', 'undone', 'expired')),
         kept TEXT,
         bytes INTEGER NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS action (
         run_id TEXT NOT NULL REFERENCES run (run_id),
         number INTEGER NOT NULL,
         detail BLOB NOT NULL,
         PRIMARY KEY (run_id, number))""",
)


@dataclass(frozen=True)
class Recorded:
    """One change of a run.

    ``path`` is what was changed, below the store's root. ``kept`` is what takes it back, below the store's
    ``.regraft``, None where nothing was there before; ``bytes`` is its size. ``detail`` is of the means' own.
    """

    change_id: int
    run_id: str
    means: Means
    path: str
    state: State
    kept: str | None
    bytes: int
    detail: dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """A run as the ledger has it; times in ms."""

    run_id: str
    command: str
    source: str
    status: str
    started_at: int
    finished_at: int | None
    actions: tuple[dict[str, Any], ...]
    changes: tuple[Recorded, ...]


_COLUMNS = "change_id, run_id, means, path, state, kept, bytes, detail"


class ChangeLog:
    """The changes in an open ledger."""

    def __init__(self, connection: apsw.Connection, *, has_tables: bool = True) -> None:
        self._db = connection
        self._has_tables = has_tables

    def record_actions(self, run_id: str, actions: list[dict[str, Any]]) -> None:
        """Record what a run is going to do, or what it has done in the place of that."""
        with sqlite.transaction(self._db):
            self._db.executemany(
                "INSERT OR REPLACE INTO action (run_id, number, detail) VALUES (?, ?, ?)",
                ((run_id, number, msgspec.json.encode(action)) for number, action in enumerate(actions)),
            )

    def intend(self, run_id: str, means: Means, path: str, kept: str | None, detail: dict[str, Any]) -> int:
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
            found: list[Any] = self._db.execute(query).fetchall()
            return [self._record(*row) for row in found]

    def _record(
        self, run_id: str, command: str, source: str, status: str, started_at: int, finished_at: int | None
    ) -> RunRecord:
        demand_name(run_id)
        actions = self._actions(run_id) if self._has_tables else ()
        changes = tuple(self.changes_of(run_id)) if self._has_tables else ()
        return RunRecord(run_id, command, source, status, started_at, finished_at, actions, changes)

    def _actions(self, run_id: str) -> tuple[dict[str, Any], ...]:
        rows = self._db.execute("SELECT detail FROM action WHERE run_id = ? ORDER BY number", (run_id,))
        return tuple(msgspec.json.decode(row[0]) for row in rows)

    def _changes(self, where: str, values: tuple[object, ...]) -> list[Recorded]:
        query = f"SELECT {_COLUMNS} FROM change WHERE {where} ORDER BY change_id"
        with self._understood():
            rows: list[Any] = self._db.execute(query, values).fetchall()
            return [_recorded(*row) for row in rows]

    @contextmanager
    def _understood(self) -> Iterator[None]:
        try:
            yield
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            raise LedgerUnreadable(path=Path(self._db.filename), reason=error) from error


def demand_name(name: object) -> None:
    """Refuse what a ledger calls a run, or what stands in the target, unless it is one plain name of a file.

    A store may come from somebody else, with its ledger: what it names leads nowhere but below the store.

    Raises:
        TypeError
    """
    if not isinstance(name, str) or not is_plain_name(name) or PureWindowsPath(name).drive:
        raise TypeError(f"it names {name!r}, which is no plain name")


def _recorded(
    change: int, run: str, means: Means, path: str, state: State, kept: str | None, size: int, detail: bytes
) -> Recorded:
    demand_name(run)
    found: dict[str, Any] = msgspec.json.decode(detail, type=dict[str, Any])
    for name in (path, kept, found.get("staged"), found.get("made")):
        # A store may come from somebody else, with its ledger: that leads nowhere but into the store.
        if name is not None and (PurePath(name).anchor or ".." in PurePath(name).parts or "\0" in name):
            raise TypeError(f"it names {name!r}, outside")
    return Recorded(change, run, means, path, state, kept, size, found)
