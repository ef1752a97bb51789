"""List the past runs of a store, undo them, and delete the undo data of old runs (``docs/commands.md``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate, takewhile
from pathlib import Path, PurePosixPath

import apsw
import msgspec

from checks.audit.findings import HOT_JOURNAL
from migrators.pipeline import publication
from regraft.disk import durable, file_paths, links, scratch, sqlite, untrusted_sqlite
from regraft.errors import LedgerUnreadable, RunUnknown, UndoBesideJournal, UndoRefused
from regraft.identity import iso_time, replace
from regraft.language import join_list, tr
from regraft.ledger.ledger import FOLDER, Ledger, RunRecord, ledger_path, read_runs
from regraft.ledger.values import FileStamp, RecordedAction, RecordedChange
from regraft.report.document import Report
from regraft.stores.locate import INDEX_FILE
from regraft.text import join_command, path_argument, printable
from repair.changes import changesets, execution, files
from repair.changes.options import GcOptions
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.store import Store


class UndoState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a run can be undone, the number of its changes, and the bytes of undo data.

    ``state`` is "possible", "undone", "expired", "unsettled" (a killed run left a change open), or "none": the run
    changed nothing.
    """

    state: str
    bytes: int
    changes: int


class PastRun(msgspec.Struct, frozen=True, kw_only=True):
    """A past run of a store; times are ISO 8601, UTC."""

    id: str
    command: str
    source: str
    status: str
    started_at: str
    finished_at: str | None
    actions: list[RecordedAction]
    undo: UndoState


def list_past_runs(root: Path, chosen: Callable[[Sequence[RunRecord]], Sequence[RunRecord]] = tuple) -> list[PastRun]:
    """List the past runs of a store, latest first.

    Args:
        root: the store's root.
        chosen: given all runs that are recorded there, returns those to list.

    Raises:
        LedgerUnreadable
    """
    return [_describe_run(record) for record in reversed(chosen(read_runs(root)))]


def _describe_run(record: RunRecord) -> PastRun:
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
    """The changes of a run that were made and can be undone."""
    return [change for change in record.changes if change.state == "done"]


def completed_actions(record: RunRecord) -> Iterator[RecordedAction]:
    """Yield the actions that a run completed. A stopped run completed fewer than it planned."""
    if record.status == "finished":
        # The count of some actions is known only after they are done.
        yield from (action for action in record.actions if action.count != 0)
        return
    # An action may change several files. It counts as completed if any of its changes was made.
    begins: Counter[int] = Counter()
    for change in record.changes:
        if change.state != "dropped":
            start, count = change.detail.actions
            begins[start] += 1
            begins[start + count] -= 1
    doing = accumulate(begins[number] for number in range(len(record.actions)))
    yield from (action for action, does in zip(record.actions, doing, strict=True) if does and action.count != 0)


class HistoryReport(Report, kw_only=True):
    """The past runs of a store, latest first."""

    runs: list[PastRun]


def _state(record: RunRecord) -> str:
    """Return the state of a run as :class:`UndoState` names it."""
    states = {change.state for change in record.changes} - {"dropped"}
    if states & {"intended", "undoing"}:
        return "unsettled"
    if "expired" in states:
        return "expired"
    if "done" in states:
        return "possible"
    return "undone" if states else "none"


def is_being_undone(record: RunRecord) -> bool:
    """Whether an undo of a run was stopped in the middle of a change, and nothing has recovered from that yet."""
    return any(change.state == "undoing" for change in record.changes)


def is_undone(root: Path, run_id: str) -> bool:
    """Whether all that a run of the store at ``root`` changed is undone."""
    return any(_state(run) == "undone" for run in read_runs(root) if run.run_id == run_id)


def is_named(run_id: str, name: str) -> bool:
    """Whether a user who writes ``name`` can mean a run: its id, the start of it, or the part after its last hyphen."""
    return run_id.startswith(name) or run_id.rpartition("-")[2] == name


def select_run(root: Path, runs: list[RunRecord], run_id: str | None) -> RunRecord:
    """Select the run to undo: the named one, else the latest that can be undone.

    Args:
        root: the store.
        runs: its runs, latest last.
        run_id: the id of a run, a unique prefix of it, or the part after its last hyphen.

    Raises:
        RunUnknown: no run matches, or several do.
    """
    named = runs
    if run_id is not None:
        exact = [run for run in runs if run_id in (run.run_id, run.run_id.rpartition("-")[2])]
        named = exact or [run for run in runs if is_named(run.run_id, run_id)]
    possible = [run for run in named if _state(run) in ("possible", "unsettled")]
    if run_id is None and not possible:
        raise RunUnknown(path=root, problem=tr("there is no run to undo"))
    if not named:
        raise RunUnknown(path=root, problem=tr("there is no run {run}", run=run_id))
    if run_id is not None and len(named) > 1:
        raise RunUnknown(path=root, problem=tr("several run ids start with {run}", run=run_id))
    if not possible:
        raise RunUnknown(path=root, problem=tr("run {run} cannot be undone", run=run_id))
    return possible[-1]


def demand_unchanged(root: Path, run: RunRecord, *, dry_run: bool = False) -> None:
    """Refuse to undo a run if a file that it changed was changed since.

    With ``dry_run`` this is tested on copies, so that no logs appear beside the files.

    Raises:
        LedgerUnreadable: undo data is damaged, or contains changes that no run makes.
        UndoRefused
        UndoBesideJournal: a changed file may only seem changed, because it has the journal of a killed program.
        StoreBusy, StoreNotWritable
    """
    rebuilt = rebuilt_caches(root, run)
    changes = [change for change in undoable_changes(run) if change not in rebuilt]
    for change in changes:
        _demand_own_undo_data(root, change)
    chains: dict[str, list[RecordedChange]] = {}
    for change in reversed(changes):
        chains.setdefault(change.path, []).append(change)
    for path, chain in chains.items():
        what = _find_change_since(root, chain, dry_run)
        if what is not None:
            _refuse_journal(root, path, run.run_id)
            raise UndoRefused(path=root / path, what=what, run=run.run_id)
    if not dry_run:
        # Refuse a file that is in use before any other file is undone.
        for change in changes:
            if change.means == "file":
                files.flush_logs(root / change.path)
            else:
                with changesets.write_transaction(root / change.path, keep=False):
                    pass


def _refuse_journal(root: Path, path: str, run_id: str) -> None:
    """Raise UndoBesideJournal if an index at or below a path has the journal of an unfinished transaction.

    ``root`` is the store, ``path`` what a run changed, below it.
    """
    for database in files.find_databases(root / path):
        is_index = links.real_path(database).match(INDEX_FILE)
        if is_index and any(one.name.endswith("-journal") for one in untrusted_sqlite.find_companions(database)):
            store = path_argument(root)
            raise UndoBesideJournal(
                path=root,
                file=printable(database.relative_to(root).as_posix()),
                run=run_id,
                repair=join_command(["regraft", "repair", store, "--only", HOT_JOURNAL]),
                again=join_command(["regraft", "undo", store, run_id]),
            )


def rebuilt_caches(root: Path, run: RunRecord) -> list[RecordedChange]:
    """Return the changes of a run that removed a cache which its system has rebuilt, at least in part.

    They are not undone: that would mix two states of one cache.
    """
    caches = [change for change in undoable_changes(run) if change.means == "file" and change.file.cache]
    standing = {PurePosixPath(change.path).parent for change in caches if file_paths.lexists(root / change.path)}
    return [change for change in caches if PurePosixPath(change.path).parent in standing]


def _find_change_since(root: Path, chain: Sequence[RecordedChange], dry_run: bool) -> str | None:
    """Describe what was changed at one path since a run; None if nothing was.

    Args:
        root: the store.
        chain: the run's changes of that path, last one first.
        dry_run: whether to test on copies.
    """
    path = root / chain[0].path
    kept = [execution.undo_data_path(root, change) for change in chain]
    if any(one is not None and not file_paths.lexists(one) for one in kept):
        return tr("its undo data")
    rows = list(takewhile(lambda change: change.means == "rows", chain))
    # If the run replaced the file first, the file matches its fingerprint again once the rows are reverted.
    placed = next(iter(chain[len(rows) :]), None)
    if not rows:
        return "it" if placed is None or files.is_changed(path, placed.file.mark) else None
    changesets_of = [one for one in kept[: len(rows)] if one is not None]
    if len(changesets_of) < len(rows) or not file_paths.is_file(path):
        return "it"
    records = [(one, change.rows.dangling) for one, change in zip(changesets_of, rows, strict=True)]
    return _find_revert_problem(path, records, placed, dry_run)


def _find_revert_problem(
    path: Path, records: Sequence[changesets.RevertRecord], placed: RecordedChange | None, dry_run: bool
) -> str | None:
    """Describe what prevents reverting the row changes of a run to one file; None if nothing does.

    Args:
        path: the file.
        records: the changesets, last one first.
        placed: the change by which the run replaced the file before it changed rows; None: it did not.
        dry_run: whether to test on a copy.
    """
    # Closing a file checkpoints its log. Test on a copy, so that a refused undo changes nothing.
    has_log = any(file_paths.lexists(path.with_name(path.name + end)) for end in untrusted_sqlite.COMPANION_SUFFIXES)
    try:
        with _open_test_file(path, dry_run or has_log or placed is not None) as place:
            with changesets.write_transaction(place, keep=placed is not None) as db:
                tables = changesets.find_revert_conflicts(db, records, keep=placed is not None)
            if not tables and placed is not None and files.is_changed(place, placed.file.mark):
                return "it"
    except sqlite.CONTENT_ERRORS:
        # The file is damaged, or not a database any more.
        return "it"
    return tr("its rows ({tables})", tables=join_list(tables)) if tables else None


def _demand_own_undo_data(root: Path, change: RecordedChange) -> None:
    """Refuse undo data of a change that regraft cannot have written: a planted link, or an invalid changeset.

    A changed file that is not a database any more is reported later.
    """
    kept = execution.undo_data_path(root, change)
    if change.means == "file" and change.file.new and kept is not None and file_paths.is_link(kept):
        # No run replaces a link, so this one was planted: later writes through it would go elsewhere.
        reason = tr(
            "the undo data of {path} is a symbolic link ({folder}/{kept})",
            path=printable(change.path),
            folder=FOLDER,
            kept=printable(change.kept),
        )
        raise LedgerUnreadable(path=ledger_path(root), reason=reason)
    if change.means != "rows" or kept is None or not file_paths.is_file(kept):
        return
    with suppress(*sqlite.CONTENT_ERRORS, apsw.CantOpenError, OSError), sqlite.open_readonly(root / change.path) as db:
        problem = changesets.find_changeset_problem(db, kept)
        if problem is not None:
            reason = tr(
                "the undo data {folder}/{kept} of {path} is not valid: {problem}",
                path=printable(change.path),
                folder=FOLDER,
                kept=printable(change.kept),
                problem=problem,
            )
            raise LedgerUnreadable(path=ledger_path(root), reason=reason)


@contextmanager
def _open_test_file(path: Path, on_copy: bool) -> Iterator[Path]:
    """Context with the path of a file to try reverts on: a temporary copy with ``on_copy``, else the file itself."""
    if not on_copy:
        yield path
        return
    with scratch.temporary_folder() as folder:
        files.copy_database(path, folder / "copy.sqlite")
        yield folder / "copy.sqlite"


def read_stamps(root: Path, run: RunRecord) -> dict[str, FileStamp | None]:
    """Map the path of each file whose rows a run changed to its present stamp (:func:`publication.read_stamp`)."""
    paths = {change.path for change in undoable_changes(run) if change.means == "rows"}
    return {path: publication.read_stamp(root / path) for path in paths}


def undo_changes(root: Path, ledger: Ledger, run_id: str, stamps: Mapping[str, FileStamp | None] | None = None) -> None:
    """Undo every change of a run, last one first. Call :func:`demand_unchanged` before.

    For a cache that its system rebuilt (:func:`rebuilt_caches`), only the undo data is deleted. A file that a migration
    wrote and that only regraft has changed since stays recognized as the migration's.

    Args:
        root: the store.
        ledger: its ledger.
        run_id: the run.
        stamps: :func:`read_stamps` from before :func:`demand_unchanged`, whose tests may touch the files; None: those
            of now.

    Raises:
        UndoRefused: rows were changed since.
        StoreBusy, StoreNotWritable, OSError, apsw.Error
    """
    run = next(one for one in ledger.changes.runs() if one.run_id == run_id)
    anew = {change.change_id for change in rebuilt_caches(root, run)}
    last_stamps = dict(read_stamps(root, run) if stamps is None else stamps)
    for change in reversed(undoable_changes(run)):
        if change.change_id in anew:
            ledger.changes.set_state(change.change_id, "undone", 0)
            execution.delete_undo_data(root, execution.undo_data_path(root, change))
            continue
        ledger.changes.set_state(change.change_id, "undoing")
        if change.means == "rows":
            _undo_rows(root, change)
            _follow_rows(root, ledger, change, last_stamps)
        else:
            _undo_file(root, change)
        ledger.changes.set_state(change.change_id, "undone", 0)
        execution.delete_undo_data(root, execution.undo_data_path(root, change))
    # The next run removes what another program has open.
    with suppress(PermissionError):
        execution.clear_work_folder(root)


def _undo_rows(root: Path, change: RecordedChange) -> None:
    """Revert a change of rows by its changeset.

    Raises:
        UndoRefused: rows were changed since.
    """
    with changesets.write_transaction(root / change.path) as db:
        tables = changesets.revert_changeset(db, root / FOLDER / str(change.kept), change.rows.dangling)
        if tables:
            what = tr("its rows ({tables})", tables=join_list(tables))
            raise UndoRefused(path=root / change.path, what=what, run=change.run_id)


def _follow_rows(root: Path, ledger: Ledger, change: RecordedChange, last_stamps: dict[str, FileStamp | None]) -> None:
    """Record the new stamp of a file whose rows were reverted where the ledger has the one from before the change.

    Nothing is recorded if another program wrote to the file between the change and its undo. ``last_stamps`` has the
    stamps from before the undo, and gets the new one.
    """
    was, before = last_stamps.get(change.path), change.rows.before
    now = last_stamps[change.path] = publication.read_stamp(root / change.path)
    if was is None or before is None or was != change.rows.after:
        return
    publication.follow_undo(ledger, root, change.path, before)
    for other in ledger.changes.done_rows_changes(change.path):
        if other.rows.after == before:
            ledger.changes.set_detail(other.change_id, replace(other.rows, after=now))


def _undo_file(root: Path, change: RecordedChange) -> None:
    """Put the kept file back in place of the changed one, which is deleted last."""
    final = root / change.path
    files.flush_logs(final)
    parked = execution.parked_path(root, change)
    kept = execution.undo_data_path(root, change)
    if kept is not None and file_paths.is_file(kept):
        changesets.copy_counters(change.path, final, kept)
    files.swap_back(final, kept, parked)
    execution.remove_created_folders(root, change)
    with suppress(PermissionError):
        durable.remove_tree(parked, wait=durable.do_not_wait)


# --- expiry of undo data ---------------------------------------------------------------------------------------------

_DAY_MS = 86_400_000
#: States of a change that a killed run left open.
_OPEN = {"intended", "undoing"}


def add_expired_runs(
    own: Plan, store: Store, options: GcOptions, find_needed: Callable[[RunRecord], list[Unresolved]] | None = None
) -> Plan:
    """Add the deletion of expired undo data to the plan ``own`` of ``gc``.

    Nothing is added if the user chose only some bases or findings.

    Args:
        own: the plan.
        store: the store.
        options: the options of ``gc``.
        find_needed: returns reports about undo data of a run that may be the last copy; such a run does not expire.

    Raises:
        LedgerUnreadable
    """
    expired: list[RecordedChange] = []
    expiring: list[Action] = []
    left = list(own.left)
    for run, kept in _expired_runs(store, options):
        needed = [] if find_needed is None else find_needed(run)
        if needed:
            left += needed
            continue
        when = iso_time(run.started_at)
        message = tr(
            "delete the undo data of regraft {command} from {when}; that run can no longer be undone",
            command=run.command,
            when=when,
        )
        size = sum(change.bytes for change in kept)
        expired += kept
        expiring.append(Action(action="expire", message=message, subject=run.run_id, count=len(kept), bytes=size))
    keeps_undo = options.grace != 0
    if own.changes and not keeps_undo:
        size = sum(action.bytes for action in own.actions if action.finding is not None)
        message = tr("keep no undo data of this run; it cannot be undone")
        expiring.append(Action(action="expire", message=message, count=len(own.changes), bytes=size))
    return replace(own, left=left, expired=expired, expiring=expiring, keeps_undo=keeps_undo)


def _expired_runs(store: Store, options: GcOptions) -> Iterator[tuple[RunRecord, list[RecordedChange]]]:
    """Yield the runs whose undo data has expired, with the changes that could still be undone."""
    if store.chosen or options.only or not options.expires:
        return
    latest = options.now_ms - options.grace * _DAY_MS
    for run in read_runs(store.root):
        is_expired = (run.finished_at or run.started_at) <= latest
        # While the state of a change is unknown, nothing of its run expires.
        is_settled = all(change.state not in _OPEN for change in run.changes)
        kept = undoable_changes(run)
        if is_expired and is_settled and kept:
            yield run, kept
