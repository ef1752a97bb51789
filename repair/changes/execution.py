"""Making one change of a plan, settling what a killed run left open, and taking a change back."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path

import apsw

from regraft.disk import durable, links, sqlite, untrusted_sqlite, writable
from regraft.errors import LedgerUnreadable, PlanOutdated
from regraft.language import tr
from regraft.ledger.ledger import FOLDER, Ledger, ledger_path
from regraft.ledger.values import TRASH, UNDO, WORK, ChangeState, FileDetail, RecordedChange, RowsDetail
from repair.changes import changesets, files
from repair.changes.files import back_up_database, copy_database
from repair.changes.plan import Change, FileChange, RowsChange

logger = logging.getLogger(__name__)

#: Bases that are built and wait for their vectors (``docs/restore.md``).
RESTORING = "restoring"
#: Vectors that wait for their collection (``docs/angel-memory.md``).
RECONCILING = "reconciling"
#: What the name of a whole file, as it was, has besides that of what takes a change of its rows back.
_BACKUP = ".backup"


def has_pending_vectors(own: Path) -> bool:
    """Tell whether something that was paid for waits below a store's ``.regraft``."""
    return any((own / name).exists() for name in (RESTORING, RECONCILING))


class _NotRecordable(Exception):
    """What happened to rows is nothing that a changeset can take back."""


class ChangeExecutor:
    """Makes the changes of one run, just planned; what was written to since then is not changed."""

    def __init__(self, root: Path, ledger: Ledger, run_id: str, planned: Sequence[Change]) -> None:
        self._root = root
        self.take(planned)
        self._own = root / FOLDER
        self._book = ledger
        self._run = run_id
        self._made = 0
        self._told = 0

    def take(self, planned: Sequence[Change]) -> None:
        """Take changes that were just planned, of the store as those that were made before have left it."""
        self._planned = {change.path: _planned_mark(self._root / change.path, change) for change in planned}
        if len(self._planned) != len(planned):
            raise ValueError(tr("two changes of one path in one plan"))

    def demand_free(self, changes: Iterable[Change]) -> None:
        """Refuse before anything is changed where a file is in use, may not be written to, or was since the plan.

        What lies in a log beside a file is worked into it.

        Raises:
            StoreBusy, StoreNotWritable, PlanOutdated
            LinkInStore: a link lies on the way to what is to be changed.
        """
        for change in changes:
            path = self._root / change.path
            # Before the first change is intended: what a link keeps from being made could not be settled either.
            writable.require_writable(path)
            self._demand_as_planned(path, change)
            if isinstance(change, RowsChange):
                with changesets.write_transaction(path, keep=False) as db:
                    untrusted_sqlite.refuse_foreign_rules(db, path, change.tables)
            elif _is_replaced(path, change):
                files.flush_logs(path)
            self._planned[change.path] = _planned_mark(path, change)

    def _demand_as_planned(self, path: Path, change: Change) -> None:
        if _planned_mark(path, change) != self._planned[change.path]:
            raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))

    def make(self, change: Change) -> None:
        """Make one change.

        Raises:
            StoreBusy, StoreNotWritable, StoreOnTwoDisks, PlanOutdated: it was not made.
            OSError, apsw.Error: the system stopped it; :func:`recover` settles what became of it.
        """
        self._made += 1
        self._told += len(change.actions)
        self._demand_as_planned(self._root / change.path, change)
        if isinstance(change, FileChange):
            self._file(change)
        elif change.bytes > changesets.LARGEST_CHANGESET:
            self._file(self._on_copy(change))
        else:
            try:
                self._rows(change)
            except _NotRecordable:
                self._file(self._on_copy(change))

    def _rows(self, change: RowsChange) -> None:
        kept = f"{UNDO}/{self._run}/{self._made:06}"
        changeset = self._own / kept
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
            detail = RowsDetail(dangling, self._actions_of(change))
            recorded = self._book.changes.intend(self._run, "rows", change.path, kept, detail)
        self._book.changes.settle(recorded, "done", _kept_size(self._root, changeset))

    def _actions_of(self, change: Change) -> tuple[int, int]:
        """Return which of the run's actions a change does: from where on, and how many."""
        return self._told - len(change.actions), len(change.actions)

    def _on_copy(self, change: RowsChange) -> FileChange:
        """Return the same change as one that is made on a copy, which then takes the file's place."""
        path = self._root / change.path

        def make(new: Path) -> None:
            copy_database(path, new)
            with (
                sqlite.open_writable(new) as db,
                sqlite.transaction(db),
                untrusted_sqlite.change_only(db, path, change.tables),
            ):
                _apply(db, change)

        return FileChange(path=change.path, actions=change.actions, make=make, bytes=path.stat().st_size)

    def _file(self, change: FileChange) -> None:
        number = f"{self._made:06}"
        final = self._root / change.path
        had = final.exists() or final.is_symlink()
        is_replaced = _is_replaced(final, change)
        if is_replaced:
            files.flush_logs(final)
        before = _planned_mark(final, change)
        staged = self._own / WORK / self._run / number
        mark = None if change.make is None else _staged(change.make, change.mark, staged, final)
        if is_replaced:
            files.flush_logs(final)
        if _planned_mark(final, change) != before:
            raise PlanOutdated(path=final, reason=tr("it was written to meanwhile"))
        kept = self._kept(change, number) if had else None
        self._swap(change, number, mark, kept)

    def _swap(self, change: FileChange, number: str, mark: str | None, kept: str | None) -> None:
        """Put what was made in the place of what goes to ``kept``, below ``.regraft``; None where nothing was there."""
        final, staged = self._root / change.path, self._own / WORK / self._run / number
        is_new = change.make is not None
        missing = _first_missing(final.parent)
        made = None if missing is None else missing.relative_to(self._root).as_posix()
        detail = FileDetail(
            new=is_new,
            mark=mark,
            staged=f"{WORK}/{self._run}/{number}",
            made=made,
            actions=self._actions_of(change),
            cache=change.is_cache,
        )
        recorded = self._book.changes.intend(self._run, "file", change.path, kept, detail)
        old = self._own / kept if kept else self._own / WORK / self._run / f"{number}.none"
        files.swap(final, staged if is_new else None, old)
        self._book.changes.settle(recorded, "done", files.size_on_disk(old))

    def _kept(self, change: FileChange, number: str) -> str:
        if not change.trash:
            return f"{UNDO}/{self._run}/{number}"
        return f"{TRASH}/{time.strftime('%Y-%m-%d', time.gmtime())}-{self._run}/{change.path}"


def _staged(
    make: Callable[[Path], None], mark: Callable[[Path], str | None] | None, staged: Path, final: Path
) -> str | None:
    """Make what comes in the place of ``final``, whole on the disk; return what tells later whether it was changed."""
    durable.make_folders(staged.parent)
    make(staged)
    if final.is_file() and staged.is_file():
        durable.copy_mode(final, staged)
    if mark is None:
        durable.sync_tree(staged) if staged.is_dir() else durable.sync_file(staged)
    return (mark or files.fingerprint)(staged)


def _is_replaced(path: Path, change: FileChange) -> bool:
    """Tell whether what a path holds has to be settled first: a file, or a folder that another one is made of."""
    if change.as_is:
        return False
    return path.is_file() or (change.make is not None and path.is_dir())


def _planned_mark(path: Path, change: Change) -> object:
    """Return what tells whether a database, or one in a folder, or the log beside it, was written to."""
    if isinstance(change, FileChange) and change.as_is:
        return files.file_stamp(path)
    found = files.find_databases(path)
    if not found:
        return os.path.lexists(path)
    marks = []
    for database in found:
        for file in (database, *untrusted_sqlite.find_companions(links.real_path(database))):
            marks.append((str(file), file.stat().st_size, file.stat().st_mtime_ns))
    return marks


def bytes_needed(root: Path, change: Change) -> int:
    """Return about how many bytes a change takes on the disk while it is made."""
    if isinstance(change, FileChange):
        return change.bytes
    # The journal holds what is changed once more, and a full-text index is built anew as a whole.
    whole = change.bodies or change.bytes > changesets.LARGEST_CHANGESET
    size = (root / change.path).stat().st_size
    return 2 * (size if whole else change.bytes) + (size if change.backup else 0)


def _apply(db: apsw.Connection, change: RowsChange) -> None:
    with changesets.full_text_rebuild(db) if change.bodies else nullcontext():
        change.apply(db)


# --- what is kept ----------------------------------------------------------------------------------------------------


def backup_path(changeset: Path) -> Path:
    """Return where the file as it was lies beside what takes a change of its rows back."""
    return changeset.with_name(f"{changeset.name}{_BACKUP}")


def _kept_places(root: Path, kept: Path) -> list[Path]:
    """Return what is kept to take a change back, and the backup beside it; in the trash names are the user's own."""
    backup = backup_path(kept)
    is_backup = root / FOLDER / UNDO in kept.parents and os.path.lexists(backup)
    return [kept, backup] if is_backup else [kept]


def _kept_size(root: Path, kept: Path) -> int:
    return sum(map(files.size_on_disk, _kept_places(root, kept)))


# --- after a kill ----------------------------------------------------------------------------------------------------


def recover(root: Path, ledger: Ledger) -> bool:
    """Settle every change that a killed run left open, and tell whether there was one.

    Raises:
        RegraftError, OSError, apsw.Error: a file of it cannot be looked into.
    """
    found = ledger.changes.open_changes()
    for change in reversed(found):
        logger.info("an earlier run was stopped while it changed %s; that is settled", change.path)
        settle = _settle_rows if change.means == "rows" else _settle_file
        settle(root, ledger, change)
    ledger.stop_runs()
    _remove_remains(root, ledger)
    clear_work_folder(root)
    return bool(found)


def _remove_remains(root: Path, ledger: Ledger) -> None:
    """Remove what was kept to take back what was never made, or can be taken back no more."""
    changes = ledger.changes.every()
    needed = _needed(changes)
    for change in changes:
        if change.kept is not None and change.kept not in needed:
            delete_undo_data(root, undo_data_path(root, change))
    for run in ledger.changes.runs():
        _remove_unnamed(root, run.run_id, needed)
    for name in (UNDO, TRASH):
        files.remove_empty_folders(root / FOLDER / name, root / FOLDER)


def _needed(changes: Iterable[RecordedChange]) -> set[str]:
    """Return what takes changes back that still can be, below ``.regraft``, and the backups beside it."""
    last = (change.kept for change in changes if change.state in ("done", "intended", "undoing"))
    needed = {kept for kept in last if kept is not None}
    return needed | {f"{kept}{_BACKUP}" for kept in needed if kept.startswith(f"{UNDO}/")}


def _remove_unnamed(root: Path, run_id: str, needed: Collection[str]) -> None:
    """Remove what nothing names: a run leaves it that was killed before it recorded its intent.

    Raises:
        LedgerUnreadable: links lead out of ``.regraft``.
    """
    folder = root / FOLDER / UNDO / run_id
    if links.real_path(folder) != links.real_path(root / FOLDER) / UNDO / run_id:
        raise LedgerUnreadable(
            path=ledger_path(root), reason=tr("what is kept of {run_id} lies elsewhere", run_id=run_id)
        )
    for kept in sorted(folder.iterdir()) if folder.is_dir() else ():
        if kept.relative_to(root / FOLDER).as_posix() not in needed:
            delete_undo_data(root, kept)
    files.remove_empty_folders(folder, root / FOLDER)


def delete_undo_data(root: Path, kept: Path | None) -> None:
    """Remove what would take a change back."""
    if kept is not None:
        for place in _kept_places(root, kept):
            durable.remove_tree(place)
        files.remove_empty_folders(kept.parent, root / FOLDER)


def undo_data_path(root: Path, change: RecordedChange) -> Path | None:
    """Return where what takes a change back lies, None where nothing was there before.

    Raises:
        LedgerUnreadable: links lead out of ``.regraft``, or what is there is nothing that was ever kept.
    """
    if change.kept is None:
        return None
    kept = root / FOLDER / change.kept
    if links.real_path(root / FOLDER) not in links.real_path(kept.parent).parents:
        raise LedgerUnreadable(
            path=ledger_path(root), reason=tr("what is kept at {kept} lies elsewhere", kept=change.kept)
        )
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = kept.lstat().st_mode
        # Nothing but a file is a record of rows; a pipe would be waited for.
        if not stat.S_ISREG(mode) and (change.means == "rows" or not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode))):
            raise LedgerUnreadable(
                path=ledger_path(root), reason=tr("what is kept at {kept} is not a file", kept=change.kept)
            )
    return kept


def clear_work_folder(root: Path) -> None:
    """Remove what was being made."""
    work = root / FOLDER / WORK
    if work.exists():
        durable.remove_leftovers(work)


def _settle_rows(root: Path, ledger: Ledger, change: RecordedChange) -> None:
    if _rows_made(root, change):
        _settled(root, ledger, change, "done")
    elif change.state == "undoing":
        _settled(root, ledger, change, "undone")
    else:
        _settled(root, ledger, change, "dropped")


def _rows_made(root: Path, change: RecordedChange) -> bool:
    """Tell whether a change of rows was committed; where nobody can tell, it was, so that nothing is thrown away."""
    final, changeset = root / change.path, undo_data_path(root, change)
    if changeset is None or not changeset.is_file() or not final.is_file():
        return True
    try:
        if change.state == "intended" and change.rows.grows:
            return changesets.settle_last_section(final, changeset, change)
        with changesets.write_transaction(final, keep=False) as db:
            return changesets.is_committed(db, changeset)
    except (apsw.NotADBError, apsw.CorruptError):
        return True


def _settle_file(root: Path, ledger: Ledger, change: RecordedChange) -> None:
    final, kept = root / change.path, undo_data_path(root, change)
    if change.state == "undoing":
        _settle_undo(root, ledger, change, final, kept)
        return
    made = os.path.lexists(final) == change.file.new
    if change.file.new and os.path.lexists(root / FOLDER / change.file.staged):
        made = False
    if kept is not None and os.path.lexists(kept):
        made = _settle_swap(change, final, kept, made=made)
    if made:
        _settled(root, ledger, change, "done")
        return
    remove_created_folders(root, change)
    _settled(root, ledger, change, "dropped")


def _settle_swap(change: RecordedChange, final: Path, kept: Path, *, made: bool) -> bool:
    """Put back what was kept where nothing took its place, and tell whether the change was made."""
    if not made and not os.path.lexists(final):
        durable.replace(kept, final)
    if made and not change.file.new:
        return True
    # Two names of one file are the first half of a swap; another file came there from another program.
    return os.path.lexists(kept) and not os.path.samestat(kept.lstat(), final.lstat())


def _settle_undo(root: Path, ledger: Ledger, change: RecordedChange, final: Path, kept: Path | None) -> None:
    aside = parked_path(root, change)
    if kept is not None and os.path.lexists(kept) and not os.path.lexists(final):
        durable.replace(kept, final)
    # What was there goes back from where it was kept; where nothing was, what was made goes.
    leaves = final if kept is None else kept
    state: ChangeState = "done" if os.path.lexists(leaves) else "undone"
    _settled(root, ledger, change, state)
    remove_created_folders(root, change)
    durable.remove_tree(aside)


def remove_created_folders(root: Path, change: RecordedChange) -> None:
    """Remove the folders that were made for a change and that nothing is in any more."""
    if change.file.made is not None:
        files.remove_empty_folders((root / change.path).parent, (root / change.file.made).parent)


def _first_missing(folder: Path) -> Path | None:
    missing = None
    while not os.path.lexists(folder):
        missing, folder = folder, folder.parent
    return missing


def parked_path(root: Path, change: RecordedChange) -> Path:
    """Return where what a change made waits until the change is recorded as taken back."""
    return root / FOLDER / WORK / f"back-{change.change_id}"


def _settled(root: Path, ledger: Ledger, change: RecordedChange, state: ChangeState) -> None:
    """Record what became of a change, and remove what would take back one that was never made."""
    kept = undo_data_path(root, change)
    if state == "done":
        size = 0 if kept is None else _kept_size(root, kept)
        ledger.changes.settle(change.change_id, "done", size)
        return
    ledger.changes.settle(change.change_id, state, 0)
    delete_undo_data(root, kept)


# --- emptying --------------------------------------------------------------------------------------------------------


def expire_changes(root: Path, ledger: Ledger, changes: Iterable[RecordedChange]) -> None:
    """Delete what would take these changes back."""
    for change in changes:
        # Recorded first: after a kill the next run finds what is needed no more.
        ledger.changes.settle(change.change_id, "expired", 0)
        delete_undo_data(root, undo_data_path(root, change))
