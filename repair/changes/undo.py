"""What was done to a store, and taking it back (``docs/commands.md``)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, takewhile
from pathlib import Path, PurePosixPath

import apsw
import msgspec

from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import LedgerUnreadable, RunUnknown, UndoRefused
from regraft.identity import iso_time, replace
from regraft.language import join_list, tr
from regraft.ledger import ledger
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import FOLDER, Ledger, RunRecord
from regraft.ledger.values import RecordedAction, RecordedChange
from regraft.report.document import Report
from regraft.text import printable
from repair.changes import changesets, execution, files
from repair.changes.plan import Action, Plan
from repair.changes.store import Store
from repair.options import GcOptions


class UndoState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run can be taken back, by how many changes, and how many bytes are kept for that.

    ``state`` is "possible", "undone", "expired", "unsettled" (a kill left it open), or "none": nothing was changed.
    """

    state: str
    bytes: int
    changes: int


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did to a store; times are ISO 8601, UTC."""

    id: str
    command: str
    source: str
    status: str
    started_at: str
    finished_at: str | None
    actions: list[RecordedAction]
    undo: UndoState


def list_past_runs(root: Path, chosen: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = tuple) -> list[PastRun]:
    """Return the runs of a store, latest first.

    Args:
        root: the store's root.
        chosen: which of all runs there.

    Raises:
        LedgerUnreadable
    """
    return [_past(record) for record in reversed(chosen(ledgers.read_runs(root)))]


def _past(record: RunRecord) -> PastRun:
    done = undoable_changes(record)
    return PastRun(
        id=record.run_id,
        command=record.command,
        source=record.source,
        status=record.status,
        started_at=iso_time(record.started_at),
        finished_at=None if record.finished_at is None else iso_time(record.finished_at),
        actions=list(completed_actions(record)),
        undo=UndoState(state=_state(record), bytes=sum(change.bytes for change in done), changes=len(done)),
    )


def undoable_changes(record: RunRecord) -> list[RecordedChange]:
    """Return those of a run's changes that were made and can be taken back."""
    return [change for change in record.changes if change.state == "done"]


def completed_actions(record: RunRecord) -> Iterator[RecordedAction]:
    """Return what a run did: where it was stopped, that is less than what it meant to."""
    if record.status == "finished":
        # Some are known by their count only once they are done.
        yield from (action for action in record.actions if action.count != 0)
        return
    # Several files may change for one thing that is done, or that was not come to.
    begins: Counter[int] = Counter()
    for change in record.changes:
        if change.state != "dropped":
            start, count = change.detail.actions
            begins[start] += 1
            begins[start + count] -= 1
    doing = accumulate(begins[number] for number in range(len(record.actions)))
    yield from (action for action, does in zip(record.actions, doing, strict=True) if does and action.count != 0)


class HistoryReport(Report, kw_only=True):
    """What was done to a store, latest first."""

    runs: list[PastRun]


def _state(record: RunRecord) -> str:
    """Return whether it can be taken back, as :class:`Undoing` has it."""
    states = {change.state for change in record.changes} - {"dropped"}
    if states & {"intended", "undoing"}:
        return "unsettled"
    if "expired" in states:
        return "expired"
    if "done" in states:
        return "possible"
    return "undone" if states else "none"


def select_run(root: Path, runs: list[RunRecord], run_id: str | None) -> RunRecord:
    """Return the run that is to be taken back: the one that is named, else the latest that can be.

    Args:
        root: the store.
        runs: all of its runs, the latest last.
        run_id: the id of one, a beginning of it that no other has, or what stands behind its last hyphen.

    Raises:
        RunUnknown: there is none, or several begin so.
    """
    named = runs if run_id is None else _named(runs, run_id)
    possible = [run for run in named if _state(run) in ("possible", "unsettled")]
    if run_id is None and not possible:
        raise RunUnknown(path=root, problem=tr("no run here can be taken back"))
    if not named:
        raise RunUnknown(path=root, problem=tr("there is no run {run}", run=run_id))
    if run_id is not None and len(named) > 1:
        raise RunUnknown(path=root, problem=tr("the ids of several runs begin with {run}", run=run_id))
    if not possible:
        raise RunUnknown(path=root, problem=tr("nothing of run {run} can be taken back", run=run_id))
    return possible[-1]


def _named(runs: list[RunRecord], name: str) -> list[RunRecord]:
    exact = [run for run in runs if name in (run.run_id, run.run_id.rpartition("-")[2])]
    return exact or [run for run in runs if run.run_id.startswith(name)]


def demand_unchanged(root: Path, run: RunRecord, *, dry_run: bool = False) -> None:
    """Refuse to take a run back where anything that it changed was changed since.

    A dry run tries it on copies, and leaves no trace beside the files.

    Raises:
        LedgerUnreadable: what takes a change back is damaged, or changes what no run does.
        UndoRefused
        StoreBusy, StoreNotWritable
    """
    anew = {change.change_id for change in rebuilt_caches(root, run)}
    changes = [change for change in undoable_changes(run) if change.change_id not in anew]
    for change in changes:
        _demand_fit(root, change)
    chains: dict[str, list[RecordedChange]] = {}
    for change in reversed(changes):
        chains.setdefault(change.path, []).append(change)
    for path, chain in chains.items():
        what = _changed(root, chain, dry_run)
        if what is not None:
            raise UndoRefused(path=root / path, what=what, run=run.run_id)
    if not dry_run:
        # Who has one file open is told before any other was taken back.
        for change in changes:
            if change.means == "file":
                files.flush_logs(root / change.path)
            else:
                with changesets.write_transaction(root / change.path, keep=False):
                    pass


def rebuilt_caches(root: Path, run: RunRecord) -> list[RecordedChange]:
    """Return the changes of a run that took a cache away of which its system has made something anew.

    They are not taken back: parts of two states of one cache would stand beside each other.
    """
    caches = [change for change in undoable_changes(run) if change.means == "file" and change.file.cache]
    standing = {PurePosixPath(change.path).parent for change in caches if os.path.lexists(root / change.path)}
    return [change for change in caches if PurePosixPath(change.path).parent in standing]


def _changed(root: Path, chain: Sequence[RecordedChange], dry_run: bool) -> str | None:
    """Return what was changed since a run changed one path, the last of its changes first; None: nothing."""
    path = root / chain[0].path
    kept = [execution.undo_data_path(root, change) for change in chain]
    if any(one is not None and not os.path.lexists(one) for one in kept):
        return tr("what would take it back is gone, it")
    rows = list(takewhile(lambda change: change.means == "rows", chain))
    # What was put in place before: it is as it was, once the rows that were changed in it are back. What it was put in
    # the place of lies where nobody writes.
    placed = next(iter(chain[len(rows) :]), None)
    if not rows:
        return "it" if placed is None or files.is_changed(path, placed.file.mark) else None
    changesets_of = [one for one in kept[: len(rows)] if one is not None]
    if len(changesets_of) < len(rows) or not path.is_file():
        return "it"
    records = [(one, change.rows.dangling) for one, change in zip(changesets_of, rows, strict=True)]
    return _changed_rows(path, records, placed, dry_run)


def _changed_rows(
    path: Path, records: Sequence[changesets.RevertRecord], placed: RecordedChange | None, dry_run: bool
) -> str | None:
    """Return what keeps changes of rows from being taken back by what was kept, the last one first."""
    # The last one to close a file works in the log that lies beside it, also where the run is refused.
    has_log = any(os.path.lexists(path.with_name(path.name + end)) for end in untrusted_sqlite.COMPANION_SUFFIXES)
    try:
        with _trial(path, dry_run or has_log or placed is not None) as place:
            with changesets.write_transaction(place, keep=placed is not None) as db:
                tables = changesets.find_revert_conflicts(db, records, keep=placed is not None)
            if not tables and placed is not None and files.is_changed(place, placed.file.mark):
                return "it"
    except sqlite.CONTENT_ERRORS:
        # No database any more, or a damaged one.
        return "it"
    return tr("its rows ({tables})", tables=join_list(tables)) if tables else None


def _demand_fit(root: Path, change: RecordedChange) -> None:
    """Refuse what cannot be the record of a change of rows; a file that is no database any more is told later."""
    kept = execution.undo_data_path(root, change)
    if change.means == "file" and change.file.new and kept is not None and kept.is_symlink():
        # Nothing is put in the place of a link; one that is kept was, and would lead whoever writes to it elsewhere.
        reason = tr(
            "what takes a change of {path} back is a link, {folder}/{kept}",
            path=printable(change.path),
            folder=FOLDER,
            kept=printable(change.kept),
        )
        raise LedgerUnreadable(path=ledgers.ledger_path(root), reason=reason)
    if change.means != "rows" or kept is None or not kept.is_file():
        return
    with suppress(*sqlite.CONTENT_ERRORS, apsw.CantOpenError, OSError), sqlite.open_readonly(root / change.path) as db:
        problem = changesets.find_changeset_problem(db, kept)
        if problem is not None:
            reason = tr(
                "what takes a change of {path} back is {folder}/{kept}, and {problem}",
                path=printable(change.path),
                folder=FOLDER,
                kept=printable(change.kept),
                problem=problem,
            )
            raise LedgerUnreadable(path=ledgers.ledger_path(root), reason=reason)


@contextmanager
def _trial(path: Path, on_copy: bool) -> Iterator[Path]:
    """Return where taking rows back is tried: the file itself, or a copy of it."""
    if not on_copy:
        yield path
        return
    with durable.temporary_folder() as folder:
        files.copy_database(path, folder / "copy.sqlite")
        yield folder / "copy.sqlite"


def undo_changes(root: Path, ledger: Ledger, run_id: str) -> None:
    """Take every change of a run back, the last one first; see :func:`demand_unchanged`.

    Of a cache that was made anew (:func:`made_anew`) the former state is deleted.

    Raises:
        UndoRefused: rows were changed since.
        StoreBusy, StoreNotWritable, OSError, apsw.Error
    """
    run = next(one for one in ledger.changes.runs() if one.run_id == run_id)
    anew = {change.change_id for change in rebuilt_caches(root, run)}
    for change in reversed(undoable_changes(run)):
        if change.change_id in anew:
            ledger.changes.settle(change.change_id, "undone", 0)
            execution.delete_undo_data(root, execution.undo_data_path(root, change))
            continue
        ledger.changes.settle(change.change_id, "undoing")
        if change.means == "rows":
            _take_back_rows(root, change)
        else:
            _take_back_file(root, change)
        ledger.changes.settle(change.change_id, "undone", 0)
        execution.delete_undo_data(root, execution.undo_data_path(root, change))
    execution.clear_work_folder(root)


def _take_back_rows(root: Path, change: RecordedChange) -> None:
    with changesets.write_transaction(root / change.path) as db:
        tables = changesets.revert_changeset(db, root / FOLDER / str(change.kept), change.rows.dangling)
        if tables:
            what = tr("its rows ({tables})", tables=join_list(tables))
            raise UndoRefused(path=root / change.path, what=what, run=change.run_id)


def _take_back_file(root: Path, change: RecordedChange) -> None:
    final = root / change.path
    files.flush_logs(final)
    aside = execution.parked_path(root, change)
    kept = execution.undo_data_path(root, change)
    if kept is not None and kept.is_file():
        changesets.copy_counters(change.path, final, kept)
    files.swap_back(final, kept, aside)
    execution.remove_created_folders(root, change)
    durable.remove_tree(aside)


# What earlier runs kept so that they can be taken back, once its time is over.


_DAY_MS = 86_400_000
#: States of a change of which nobody knows yet what became of it.
_OPEN = {"intended", "undoing"}


def add_expired_runs(own: Plan, store: Store, options: GcOptions) -> Plan:
    """Return a plan with what is kept no longer, too; a part of a store, or of the findings, leaves all of it.

    Raises:
        LedgerUnreadable
    """
    expired: list[RecordedChange] = []
    expiring: list[Action] = []
    for run, kept in _due(store, options):
        when = iso_time(run.started_at)
        message = tr(
            "empty what regraft {command} of {when} kept: it cannot be taken back afterwards",
            command=run.command,
            when=when,
        )
        size = sum(change.bytes for change in kept)
        expired += kept
        expiring.append(Action(action="expire", message=message, subject=run.run_id, count=len(kept), bytes=size))
    keeps_undo = options.grace != 0
    if own.changes and not keeps_undo:
        size = sum(action.bytes for action in own.actions if action.finding is not None)
        message = tr("keep nothing of this run: it cannot be taken back afterwards")
        expiring.append(Action(action="expire", message=message, count=len(own.changes), bytes=size))
    return replace(own, expired=expired, expiring=expiring, keeps_undo=keeps_undo)


def _due(store: Store, options: GcOptions) -> Iterator[tuple[RunRecord, list[RecordedChange]]]:
    """Yield the runs whose time is over, each with its changes that could still be taken back."""
    if store.chosen or options.only or not options.expires:
        return
    latest = options.now_ms - options.grace * _DAY_MS
    for run in ledger.read_runs(store.root):
        is_over = (run.finished_at or run.started_at) <= latest
        kept = _undoable_if_settled(run) if is_over else []
        if kept:
            yield run, kept


def _undoable_if_settled(run: RunRecord) -> list[RecordedChange]:
    """Return the changes of a run that could be taken back; none while it is not known what became of all of them."""
    if any(change.state in _OPEN for change in run.changes):
        return []
    return [change for change in run.changes if change.state == "done"]
