"""What was done to a store, and taking it back (``docs/commands.md``, "history and undo")."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regraft import durable, ledger
from regraft.changes import Recorded, RunRecord
from regraft.clock import iso_time
from regraft.errors import RunUnknown, UndoRefused
from regraft.ledger import FOLDER, Ledger
from repair import changing, files, rows


def history(root: Path) -> list[dict[str, Any]]:
    """Return all runs of a store, latest first, as a document has them.

    Raises:
        LedgerUnreadable
    """
    return [_run(record) for record in reversed(ledger.read_runs(root))]


def _run(record: RunRecord) -> dict[str, Any]:
    done = _undoable(record)
    return {
        "id": record.run_id,
        "command": record.command,
        "source": record.source,
        "status": record.status,
        "started_at": iso_time(record.started_at),
        "finished_at": None if record.finished_at is None else iso_time(record.finished_at),
        "actions": list(record.actions),
        "undo": {"state": _state(record), "bytes": sum(change.bytes for change in done), "changes": len(done)},
    }


def _undoable(record: RunRecord) -> list[Recorded]:
    return [change for change in record.changes if change.state == "done"]


def _state(record: RunRecord) -> str:
    """Return what can be taken back: "possible", "undone", "expired", or "none" where nothing was changed."""
    states = {change.state for change in record.changes} - {"dropped"}
    if "expired" in states:
        return "expired"
    if "done" in states:
        return "possible"
    return "undone" if states else "none"


def chosen_run(root: Path, runs: list[RunRecord], run_id: str | None) -> RunRecord:
    """Return the run that is to be taken back: the one that is named, else the latest that can be.

    Raises:
        RunUnknown: there is none.
    """
    possible = [run for run in runs if _state(run) == "possible" and run_id in (None, run.run_id)]
    if not possible:
        raise RunUnknown(path=root, run=run_id or "at all")
    return possible[-1]


def demand_unchanged(root: Path, run: RunRecord) -> None:
    """Refuse to take a run back where anything that it changed was changed since.

    Raises:
        UndoRefused
    """
    for change in _undoable(run):
        what = _changed(root, change)
        if what is not None:
            raise UndoRefused(path=root / change.path, what=what, run=run.run_id)


def _changed(root: Path, change: Recorded) -> str | None:
    path = root / change.path
    kept = None if change.kept is None else root / FOLDER / change.kept
    if kept is not None and not (kept.exists() or kept.is_symlink()):
        return "what would take it back is gone, it"
    if change.means == "file":
        return None if files.mark_of(path) == change.detail["mark"] else "it"
    if kept is None or not path.is_file():
        return "it"
    with rows.locked(path) as db:
        tables = rows.could_take_back(db, kept)
    return f"its rows ({', '.join(tables)})" if tables else None


def take_back(root: Path, book: Ledger, run_id: str) -> None:
    """Take every change of a run back, the last one first.

    Raises:
        UndoRefused: something was changed since.
        StoreBusy, StoreNotWritable, OSError, apsw.Error
    """
    run = next(one for one in book.changes.runs() if one.run_id == run_id)
    demand_unchanged(root, run)
    for change in reversed(_undoable(run)):
        book.changes.settle(change.change_id, "undoing")
        if change.means == "rows":
            _take_back_rows(root, change)
        else:
            _take_back_file(root, change)
        book.changes.settle(change.change_id, "undone", 0)
        changing.forget(root, None if change.kept is None else root / FOLDER / change.kept)
    changing.clean(root)


def _take_back_rows(root: Path, change: Recorded) -> None:
    with rows.locked(root / change.path) as db:
        tables = rows.take_back(db, root / FOLDER / str(change.kept))
        if tables:
            what = f"its rows ({', '.join(tables)})"
            raise UndoRefused(path=root / change.path, what=what, run=change.run_id)


def _take_back_file(root: Path, change: Recorded) -> None:
    final = root / change.path
    if final.is_file():
        files.settle_log(final)
    aside = changing.aside_of(root, change)
    files.swap_back(final, None if change.kept is None else root / FOLDER / change.kept, aside)
    changing.remove_made(root, change)
    durable.remove_tree(aside)
