"""Apply the changes of a plan, recover from a killed run, and keep or delete the data that undo needs.

Every change is recorded in the ledger before it is made. What it replaces is kept below ``.regraft``
(``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import apsw

from migrators.pipeline import publication
from regraft.disk import durable, file_paths, links, sqlite, untrusted_sqlite, writable
from regraft.errors import ChangeUnfinished, LedgerUnreadable, PlanOutdated
from regraft.identity import replace
from regraft.language import tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import FOLDER, Ledger, ledger_path
from regraft.ledger.values import TRASH, UNDO, WORK, ChangeState, FileDetail, RecordedChange, RowsDetail
from regraft.text import printable
from repair.changes import changesets, files
from repair.changes.files import back_up_database, copy_database
from repair.changes.plan import Change, FileChange, RowsChange

logger = logging.getLogger(__name__)

#: Folder of bases under construction that wait for their vectors (``docs/restore.md``).
RESTORING = "restoring"
#: Folder of vectors that are not yet in their collection (``docs/angel-memory.md``).
RECONCILING = "reconciling"
#: Suffix of the full backup of a file, after the name of the changeset.
_BACKUP = ".backup"


def has_pending_vectors(own: Path) -> bool:
    """Whether vectors that were already paid for wait below ``own``, the ``.regraft`` folder of a store."""
    return any((own / name).exists() for name in (RESTORING, RECONCILING))


class _NotRecordable(Exception):
    """The changes of rows cannot be undone with a changeset; the change has to be made on a copy of the file."""


class ChangeExecutor:
    """Apply the changes of one run. A file that was written to since the plan is not changed.

    Args:
        root: the store's root.
        ledger: records each change before it is made.
        run_id: the run.
        planned: the planned changes; each changes another path.
    """

    def __init__(self, root: Path, ledger: Ledger, run_id: str, planned: Sequence[Change]) -> None:
        self._root = root
        self.replace_plan(planned)
        self._own = root / FOLDER
        self._ledger = ledger
        self._run = run_id
        self._changes_begun = 0
        self._actions_begun = 0

    def replace_plan(self, planned: Sequence[Change]) -> None:
        """Replace the planned changes; they must have been planned for the store as it is now."""
        self._planned = {change.path: _planned_mark(self._root / change.path, change) for change in planned}
        if len(self._planned) != len(planned):
            raise ValueError(tr("the plan changes one path twice"))

    def demand_free(self, changes: Iterable[Change]) -> None:
        """Refuse, before anything is changed, if a file is in use, cannot be written, or was changed since the plan.

        Write-ahead logs beside files are checkpointed.

        Raises:
            StoreBusy, StoreNotWritable, PlanOutdated
            LinkInStore: the path of a changed file contains a link.
        """
        for change in changes:
            path = self._root / change.path
            # Check before the first intent is recorded: a link that stops a change would also stop its recovery.
            writable.require_writable(path)
            self._demand_as_planned(path, change)
            if isinstance(change, RowsChange):
                with changesets.write_transaction(path, keep=False) as db:
                    untrusted_sqlite.refuse_foreign_rules(db, path, change.tables)
            elif _needs_log_flush(path, change):
                files.flush_logs(path)
            self._planned[change.path] = _planned_mark(path, change)

    def _demand_as_planned(self, path: Path, change: Change) -> None:
        """Refuse a change if its file was written to since the plan."""
        if _planned_mark(path, change) != self._planned[change.path]:
            raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))

    def make(self, change: Change) -> None:
        """Make one change.

        Raises:
            StoreBusy, StoreNotWritable, StoreOnTwoDisks, PlanOutdated: the change was not made.
            OSError, apsw.Error: the change failed; :func:`recover` completes or reverts it.
        """
        self._changes_begun += 1
        self._actions_begun += len(change.actions)
        self._demand_as_planned(self._root / change.path, change)
        if isinstance(change, FileChange):
            self._replace_file(change)
        elif change.bytes > changesets.LARGEST_CHANGESET:
            self._replace_file(self._convert_to_copy(change))
        else:
            try:
                self._change_rows(change)
            except _NotRecordable:
                self._replace_file(self._convert_to_copy(change))

    def _change_rows(self, change: RowsChange) -> None:
        """Change rows in a transaction and record the changeset; raises if undo could not revert it."""
        kept = f"{UNDO}/{self._run}/{self._changes_begun:06}"
        changeset = self._own / kept
        before = publication.stamp_before_change(self._ledger, self._root, change.path)
        with changesets.write_transaction(self._root / change.path) as db:
            if not changesets.can_record(db, change.tables):
                raise _NotRecordable
            if change.backup:
                back_up_database(self._root / change.path, backup_path(changeset))
            schema = changesets.read_schema(db)
            with changesets.record_changeset(db, self._root / change.path, change.tables, changeset):
                _apply(db, change)
            dangling = changesets.verify_revert(db, changeset)
            if dangling is None or changesets.read_schema(db) != schema:
                delete_undo_data(self._root, changeset)
                raise _NotRecordable
            detail = RowsDetail(dangling, self._actions_of(change), before=before)
            recorded = self._ledger.changes.intend(self._run, "rows", change.path, kept, detail)
        if before is not None:
            after = publication.read_stamp(self._root / change.path)
            self._ledger.changes.set_detail(recorded, replace(detail, after=after))
        self._ledger.changes.set_state(recorded, "done", _undo_data_size(self._root, changeset))

    def _actions_of(self, change: Change) -> tuple[int, int]:
        """Return the range of the run's actions that a change performs: the first index, and how many."""
        return self._actions_begun - len(change.actions), len(change.actions)

    def _convert_to_copy(self, change: RowsChange) -> FileChange:
        """Convert a change of rows into one that is made on a copy of the file, which then replaces the file."""
        path = self._root / change.path

        def make(new: Path) -> None:
            """Copy the file to ``new`` and change the rows of the copy."""
            copy_database(path, new)
            with (
                sqlite.open_writable(new) as db,
                sqlite.transaction(db),
                untrusted_sqlite.change_only(db, path, change.tables),
            ):
                _apply(db, change)

        return FileChange(path=change.path, actions=change.actions, make=make, bytes=file_paths.stat(path).st_size)

    def _replace_file(self, change: FileChange) -> None:
        """Build the new file beside the store, keep the old one, and move the new one into place."""
        number = f"{self._changes_begun:06}"
        final = self._root / change.path
        had = file_paths.lexists(final)
        needs_flush = _needs_log_flush(final, change)
        if needs_flush:
            files.flush_logs(final)
        before = _planned_mark(final, change)
        staged = self._own / WORK / self._run / number
        mark = None if change.make is None else _stage(change.make, change.mark, staged, final)
        if needs_flush:
            files.flush_logs(final)
        if _planned_mark(final, change) != before:
            raise PlanOutdated(path=final, reason=tr("it was changed in the meantime"))
        kept = None
        if had and change.trash:
            kept = f"{TRASH}/{time.strftime('%Y-%m-%d', time.gmtime())}-{self._run}/{change.path}"
        elif had:
            kept = f"{UNDO}/{self._run}/{number}"
        self._swap_into_place(change, number, mark, kept)

    def _swap_into_place(self, change: FileChange, number: str, mark: str | None, kept: str | None) -> None:
        """Record a file change, move the staged file into place, and keep the present one.

        Args:
            change: the change.
            number: the number of the change in the run, which names the staged file.
            mark: the fingerprint of the staged file; None if the path is removed.
            kept: where the present file goes, below ``.regraft``; None if the path does not exist.
        """
        final, staged = self._root / change.path, self._own / WORK / self._run / number
        is_new = change.make is not None
        # The topmost missing folder: undo removes it again.
        missing: Path | None = None
        folder = final.parent
        while not file_paths.lexists(folder):
            missing, folder = folder, folder.parent
        made = None if missing is None else missing.relative_to(self._root).as_posix()
        detail = FileDetail(
            new=is_new,
            mark=mark,
            staged=f"{WORK}/{self._run}/{number}",
            made=made,
            actions=self._actions_of(change),
            cache=change.is_cache,
        )
        recorded = self._ledger.changes.intend(self._run, "file", change.path, kept, detail)
        old = self._own / kept if kept else self._own / WORK / self._run / f"{number}.none"
        files.swap(final, staged if is_new else None, old)
        self._ledger.changes.set_state(recorded, "done", files.size_on_disk(old))


def _stage(
    make: Callable[[Path], None], mark: Callable[[Path], str | None] | None, staged: Path, final: Path
) -> str | None:
    """Make the new file and flush it to disk; returns the fingerprint by which undo recognizes later changes.

    Args:
        make: writes the file.
        mark: computes the fingerprint for a ``make`` that flushes its file itself; None: :func:`files.fingerprint`.
        staged: where the file is written.
        final: where it goes later; a present file there gives it its mode.
    """
    durable.make_folders(staged.parent)
    make(staged)
    if file_paths.is_file(final) and file_paths.is_file(staged):
        durable.copy_mode(final, staged)
    if mark is None:
        durable.sync_tree(staged) if staged.is_dir() else durable.sync_file(staged)
    return (mark or files.fingerprint)(staged)


def _needs_log_flush(path: Path, change: FileChange) -> bool:
    """Whether the logs of SQLite files at a path have to be checkpointed before a change replaces the path."""
    if change.as_is:
        return False
    return file_paths.is_file(path) or (change.make is not None and file_paths.is_folder(path))


def _planned_mark(path: Path, change: Change) -> object:
    """Return a value that changes when a program writes to the path of a change: a file, or databases in a folder."""
    if isinstance(change, FileChange) and change.as_is:
        return files.file_stamp(path)
    found = files.find_databases(path)
    if not found:
        return file_paths.lexists(path)
    marks = []
    for database in found:
        for file in (database, *untrusted_sqlite.find_companions(links.real_path(database))):
            marks.append((str(file), file_paths.stat(file).st_size, file_paths.stat(file).st_mtime_ns))
    return marks


def bytes_needed(root: Path, change: Change) -> int:
    """Estimate the disk space in bytes that a change needs while it is made."""
    if isinstance(change, FileChange):
        return change.bytes
    # The journal holds the changed rows once more, and a full-text index is rebuilt completely.
    whole = change.bodies or change.bytes > changesets.LARGEST_CHANGESET
    size = file_paths.stat(root / change.path).st_size
    return 2 * (size if whole else change.bytes) + (size if change.backup else 0)


def _apply(db: apsw.Connection, change: RowsChange) -> None:
    """Apply a change of rows, within the caller's transaction."""
    with changesets.full_text_rebuild(db) if change.bodies else nullcontext():
        change.apply(db)


# --- undo data -------------------------------------------------------------------------------------------------------


def backup_path(changeset: Path) -> Path:
    """Path of the full backup of a database, beside the changeset of its change."""
    return changeset.with_name(f"{changeset.name}{_BACKUP}")


def _undo_files(root: Path, kept: Path) -> list[Path]:
    """List the undo data at ``kept``, and the full backup beside it if there is one."""
    backup = backup_path(kept)
    is_backup = root / FOLDER / UNDO in kept.parents and file_paths.lexists(backup)
    return [kept, backup] if is_backup else [kept]


def _undo_data_size(root: Path, kept: Path) -> int:
    """Return the bytes on disk of the undo data at ``kept``, with the full backup beside it."""
    return sum(map(files.size_on_disk, _undo_files(root, kept)))


# --- recovery after a kill -------------------------------------------------------------------------------------------


def demand_in_place(root: Path) -> None:
    """Refuse a store from which a stopped run has moved a file or folder away, which would be read as damage.

    Raises:
        ChangeUnfinished
        LedgerUnreadable: the ledger is damaged.
    """
    for run in ledgers.read_runs(root):
        for change in run.changes:
            if change.means != "file" or change.kept is None:
                continue
            is_open = change.state == "undoing" or (change.state == "intended" and change.file.new)
            if (
                is_open
                and not file_paths.lexists(root / change.path)
                and file_paths.lexists(root / FOLDER / change.kept)
            ):
                raise ChangeUnfinished(path=root, name=printable(change.path))


def recover(root: Path, ledger: Ledger) -> bool:
    """Complete or undo every change that a killed run left open; returns whether there was one.

    Raises:
        RegraftError, OSError, apsw.Error: a file of such a change cannot be read.
    """
    found = ledger.changes.open_changes()
    for change in reversed(found):
        logger.info(
            "an earlier run was stopped while it changed %s; the change is now completed or reverted", change.path
        )
        recover_change = _recover_rows if change.means == "rows" else _recover_file
        recover_change(root, ledger, change)
    ledger.stop_runs()
    _remove_unneeded_undo_data(root, ledger)
    clear_work_folder(root)
    return bool(found)


def _remove_unneeded_undo_data(root: Path, ledger: Ledger) -> None:
    """Remove the undo data of changes that were never made or can no longer be undone."""
    changes = ledger.changes.every()
    needed = _needed_undo_data(changes)
    for change in changes:
        if change.kept is not None and change.kept not in needed:
            delete_undo_data(root, undo_data_path(root, change))
    for run in ledger.changes.runs():
        # Undo data that no change names: the run was killed before it recorded its intent.
        folder = root / FOLDER / UNDO / run.run_id
        if links.real_path(folder) != links.real_path(root / FOLDER) / UNDO / run.run_id:
            raise LedgerUnreadable(
                path=ledger_path(root),
                reason=tr("the undo data of run {run_id} is outside .regraft", run_id=run.run_id),
            )
        for kept in sorted(folder.iterdir()) if folder.is_dir() else ():
            if kept.relative_to(root / FOLDER).as_posix() not in needed:
                delete_undo_data(root, kept)
        files.remove_empty_folders(folder, root / FOLDER)
    for name in (UNDO, TRASH):
        files.remove_empty_folders(root / FOLDER / name, root / FOLDER)


def _needed_undo_data(changes: Iterable[RecordedChange]) -> set[str]:
    """Return the paths below ``.regraft`` of the undo data that is still needed, and of full backups beside it."""
    last = (change.kept for change in changes if change.state in ("done", "intended", "undoing"))
    needed = {kept for kept in last if kept is not None}
    return needed | {f"{kept}{_BACKUP}" for kept in needed if kept.startswith(f"{UNDO}/")}


def delete_undo_data(root: Path, kept: Path | None) -> None:
    """Delete the undo data at ``kept``, if any, and the full backup beside it."""
    if kept is not None:
        for place in _undo_files(root, kept):
            durable.remove_tree(place)
        files.remove_empty_folders(kept.parent, root / FOLDER)


def undo_data_path(root: Path, change: RecordedChange) -> Path | None:
    """Path of the data that undoes a change, or None if the change replaced nothing.

    Raises:
        LedgerUnreadable: links lead out of ``.regraft``, or the path is not of a kind that a run writes.
    """
    if change.kept is None:
        return None
    kept = root / FOLDER / change.kept
    if links.real_path(root / FOLDER) not in links.real_path(kept.parent).parents:
        raise LedgerUnreadable(
            path=ledger_path(root), reason=tr("the undo data {kept} is outside .regraft", kept=change.kept)
        )
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = file_paths.lstat(kept).st_mode
        # A changeset is always a regular file. Reading a pipe would block.
        if not stat.S_ISREG(mode) and (change.means == "rows" or not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode))):
            raise LedgerUnreadable(
                path=ledger_path(root), reason=tr("the undo data {kept} is not a file", kept=change.kept)
            )
    return kept


def clear_work_folder(root: Path) -> None:
    """Delete files that were under construction."""
    work = root / FOLDER / WORK
    if work.exists():
        durable.remove_leftovers(work)


def _recover_rows(root: Path, ledger: Ledger, change: RecordedChange) -> None:
    """Record whether a change of rows that a killed run began, or began to undo, was made."""
    if _is_rows_change_made(root, change):
        _record_state(root, ledger, change, "done")
    elif change.state == "undoing":
        _record_state(root, ledger, change, "undone")
    else:
        _record_state(root, ledger, change, "dropped")


def _is_rows_change_made(root: Path, change: RecordedChange) -> bool:
    """Whether a change of rows was committed. If in doubt it counts as committed, so that no undo data is lost."""
    final, changeset = root / change.path, undo_data_path(root, change)
    if changeset is None or not file_paths.is_file(changeset) or not file_paths.is_file(final):
        return True
    try:
        if change.state == "intended" and change.rows.grows:
            return changesets.recover_last_section(final, changeset, change)
        with changesets.write_transaction(final, keep=False) as db:
            return changesets.is_committed(db, changeset)
    except (apsw.NotADBError, apsw.CorruptError):
        return True


def _recover_file(root: Path, ledger: Ledger, change: RecordedChange) -> None:
    """Complete or take back a file change that a killed run began, and record its state."""
    final, kept = root / change.path, undo_data_path(root, change)
    if change.state == "undoing":
        _recover_undo(root, ledger, change, final, kept)
        return
    made = file_paths.lexists(final) == change.file.new
    if change.file.new and file_paths.lexists(root / FOLDER / change.file.staged):
        made = False
    if kept is not None and file_paths.lexists(kept):
        made = _recover_swap(change, final, kept, made=made)
    if made:
        _record_state(root, ledger, change, "done")
        return
    remove_created_folders(root, change)
    _record_state(root, ledger, change, "dropped")


def _recover_swap(change: RecordedChange, final: Path, kept: Path, *, made: bool) -> bool:
    """Finish moving files for a change that a killed run began; returns whether the change was made.

    Args:
        change: the change.
        final: the changed path. If nothing is there, the old file is put back.
        kept: where the old file was moved to.
        made: whether the change seems to be made, judged by the new file.
    """
    if not made and not file_paths.lexists(final):
        durable.replace(kept, final)
    if made and not change.file.new:
        return True
    # Two names of one file are a half-finished swap. A different file was written by another program.
    return file_paths.lexists(kept) and not os.path.samestat(file_paths.lstat(kept), file_paths.lstat(final))


def _recover_undo(root: Path, ledger: Ledger, change: RecordedChange, final: Path, kept: Path | None) -> None:
    """Complete or take back the undo of a file change that a killed run began, and record its state.

    ``final`` is the changed path, ``kept`` the old file that undo puts back; None if there was none.
    """
    parked = parked_path(root, change)
    if kept is not None and file_paths.lexists(kept) and not file_paths.lexists(final):
        durable.replace(kept, final)
    # Undo moves the kept file back, or removes the new file if there was none before.
    source = final if kept is None else kept
    state: ChangeState = "done" if file_paths.lexists(source) else "undone"
    _record_state(root, ledger, change, state)
    remove_created_folders(root, change)
    durable.remove_tree(parked)


def remove_created_folders(root: Path, change: RecordedChange) -> None:
    """Remove the folders that were created for a change if they are empty now."""
    if change.file.made is not None:
        files.remove_empty_folders((root / change.path).parent, (root / change.file.made).parent)


def parked_path(root: Path, change: RecordedChange) -> Path:
    """Path to which undo moves the new file of a change until the change is recorded as undone."""
    return root / FOLDER / WORK / f"back-{change.change_id}"


def _record_state(root: Path, ledger: Ledger, change: RecordedChange, state: ChangeState) -> None:
    """Record the final state of a change, and delete its undo data if it was not made."""
    kept = undo_data_path(root, change)
    if state == "done":
        size = 0 if kept is None else _undo_data_size(root, kept)
        ledger.changes.set_state(change.change_id, "done", size)
        return
    ledger.changes.set_state(change.change_id, state, 0)
    delete_undo_data(root, kept)


# --- deleting undo data ----------------------------------------------------------------------------------------------


def expire_changes(root: Path, ledger: Ledger, changes: Iterable[RecordedChange]) -> None:
    """Delete the undo data of the given changes."""
    for change in changes:
        # Recorded first, so that after a kill the next run knows that the data is no longer needed.
        ledger.changes.set_state(change.change_id, "expired", 0)
        delete_undo_data(root, undo_data_path(root, change))
