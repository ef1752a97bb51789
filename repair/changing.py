"""Making one change of a plan, settling what a killed run left open, and taking a change back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import apsw

from regraft import durable, sqlite
from regraft.changes import Recorded
from regraft.errors import CopyDiffers, PlanOutdated
from regraft.ledger import FOLDER, Ledger
from repair import files, rows
from repair.plan import Change, FileChange, RowsChange

UNDO, TRASH, WORK = "undo", "trash", "work"
#: Pages copied at once.
_PAGES = 4_096
#: What SQLite's check says of rows that their own table would refuse, and of indexes that are no pages of the file.
_OWN_AFFAIRS = ("CHECK constraint", "NULL value in", "value in", "FTS", "virtual table")


class _NotRecordable(Exception):
    """A row without a key, which no changeset can hold."""


class Changer:
    """Makes the changes of one run."""

    def __init__(self, root: Path, book: Ledger, run_id: str) -> None:
        self._root = root
        self._own = root / FOLDER
        self._book = book
        self._run = run_id
        self._made: set[str] = set()

    def make(self, change: Change) -> None:
        """Make one change.

        Raises:
            StoreBusy, StoreNotWritable, StoreOnTwoDisks, PlanOutdated: it was not made.
            OSError, apsw.Error: the system stopped it; :func:`recover` settles what became of it.
        """
        if change.path in self._made:
            raise ValueError(f"two changes of {change.path} in one run")
        self._made.add(change.path)
        if isinstance(change, FileChange):
            self._file(change)
        elif change.bytes > rows.LARGEST_CHANGESET:
            self._file(self._on_copy(change))
        else:
            try:
                self._rows(change)
            except _NotRecordable:
                self._file(self._on_copy(change))

    def _rows(self, change: RowsChange) -> None:
        number = f"{len(self._made):06}"
        kept = f"{UNDO}/{self._run}/{number}"
        changeset = self._own / kept
        with rows.locked(self._root / change.path) as db:
            if not rows.can_record(db, change.tables):
                raise _NotRecordable
            if change.backup:
                back_up(self._root / change.path, backup_of(changeset))
            with rows.recording(db, change.tables, changeset):
                _apply(db, change)
            durable.sync_file(changeset)
            durable.sync_folder(changeset.parent)
            recorded = self._book.changes.intend(self._run, "rows", change.path, kept, {})
        self._book.changes.settle(recorded, "done", _kept_size(changeset))

    def _on_copy(self, change: RowsChange) -> FileChange:
        """Return the same change as one that is made on a copy, which then takes the file's place."""
        path = self._root / change.path

        def make(new: Path) -> None:
            copy_database(path, new)
            with sqlite.writing(new) as db, sqlite.transaction(db):
                _apply(db, change)

        return FileChange(change.path, change.actions, make, path.stat().st_size)

    def _file(self, change: FileChange) -> None:
        number = f"{len(self._made):06}"
        final = self._root / change.path
        had = final.exists() or final.is_symlink()
        if had and final.is_file():
            files.settle_log(final)
        before = sqlite.file_mark(final)
        staged = self._own / WORK / self._run / number
        mark = None
        if change.make is not None:
            staged.parent.mkdir(parents=True, exist_ok=True)
            change.make(staged)
            durable.sync_tree(staged) if staged.is_dir() else durable.sync_file(staged)
            mark = files.mark_of(staged)
        if sqlite.file_mark(final) != before:
            raise PlanOutdated(path=final, reason="it was written to meanwhile")
        kept = self._kept(change, number) if had else None
        made = _first_missing(final.parent)
        detail = {
            "new": change.make is not None,
            "mark": mark,
            "staged": f"{WORK}/{self._run}/{number}",
            "made": None if made is None else made.relative_to(self._root).as_posix(),
        }
        recorded = self._book.changes.intend(self._run, "file", change.path, kept, detail)
        old = self._own / kept if kept else self._own / WORK / self._run / f"{number}.none"
        files.swap(final, staged if change.make is not None else None, old)
        self._book.changes.settle(recorded, "done", files.size_of(old))

    def _kept(self, change: FileChange, number: str) -> str:
        if not change.trash:
            return f"{UNDO}/{self._run}/{number}"
        return f"{TRASH}/{time.strftime('%Y-%m-%d', time.gmtime())}-{self._run}/{change.path}"


def demand_free(root: Path, changes: Iterable[Change]) -> None:
    """Refuse before anything is changed where a file is in use, or may not be written to.

    Raises:
        StoreBusy, StoreNotWritable
    """
    for change in changes:
        path = root / change.path
        if isinstance(change, FileChange):
            if path.is_file():
                files.settle_log(path)
        else:
            with rows.locked(path):
                pass


def room(root: Path, change: Change) -> int:
    """Return about how many bytes a change takes on the disk while it is made."""
    whole = isinstance(change, RowsChange) and change.backup
    return change.bytes + ((root / change.path).stat().st_size if whole else 0)


def _apply(db: apsw.Connection, change: RowsChange) -> None:
    with rows.triggers_aside(db) if change.bodies else nullcontext():
        change.apply(db)


def copy_database(path: Path, new: Path) -> None:
    """Copy a SQLite file page by page as its readers see it now, with what its log holds.

    Raises:
        apsw.Error: it cannot be read or written.
    """
    with sqlite.reading(path) as source:
        _copy_pages(source, new)


def _copy_pages(source: apsw.Connection, new: Path) -> None:
    with sqlite.writing(new, create=True) as copy, copy.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)


def back_up(path: Path, new: Path) -> None:
    """Copy a SQLite file that this process has locked, and prove the copy.

    Raises:
        CopyDiffers: the copy is damaged.
        apsw.Error, OSError: it cannot be read or written.
    """
    new.parent.mkdir(parents=True, exist_ok=True)
    # Another way than SQLite's of closing the file would let go of the lock.
    with sqlite.writing(path) as source:
        pages = source.execute("PRAGMA page_count").get
        _copy_pages(source, new)
    with sqlite.reading(new) as copy:
        damage = damage_of(copy)
        if copy.execute("PRAGMA page_count").get != pages:
            damage = "pages are missing"
    if damage is not None:
        raise CopyDiffers(path=new, reason=damage)
    durable.sync_file(new)
    durable.sync_folder(new.parent)


def backup_of(changeset: Path) -> Path:
    """Return where the file as it was lies beside what takes a change of its rows back."""
    return changeset.with_name(f"{changeset.name}.backup")


def _kept_size(kept: Path) -> int:
    return files.size_of(kept) + files.size_of(backup_of(kept))


def damage_of(db: apsw.Connection) -> str | None:
    """Return what is wrong with a file by SQLite's own check; None where nothing is.

    What rows and full-text indexes say is the application's own affair.

    Raises:
        apsw.Error: it is too damaged to be checked.
    """
    for (found,) in db.execute("PRAGMA quick_check"):
        said = str(found)
        if said != "ok" and not any(word in said for word in _OWN_AFFAIRS):
            return said
    return None


# --- after a kill ----------------------------------------------------------------------------------------------------


def recover(root: Path, book: Ledger) -> bool:
    """Settle every change that a killed run left open, and tell whether there was one.

    Raises:
        RegraftError, OSError, apsw.Error: a file of it cannot be looked into.
    """
    found = book.changes.open_changes()
    for change in reversed(found):
        settle = _settle_rows if change.means == "rows" else _settle_file
        settle(root, book, change)
    clean(root)
    return bool(found)


def clean(root: Path) -> None:
    """Remove what was being made."""
    work = root / FOLDER / WORK
    if work.exists():
        durable.remove_tree(work)


def _settle_rows(root: Path, book: Ledger, change: Recorded) -> None:
    changeset = root / FOLDER / str(change.kept)
    with rows.locked(root / change.path) as db:
        made = rows.was_made(db, changeset)
    if change.state == "undoing":
        _settled(root, book, change, "done" if made else "undone")
    else:
        _settled(root, book, change, "done" if made else "dropped")


def _settle_file(root: Path, book: Ledger, change: Recorded) -> None:
    own, final = root / FOLDER, root / change.path
    kept = None if change.kept is None else own / change.kept
    if change.state == "undoing":
        _settle_undo(root, book, change, final, kept)
        return
    staged = own / change.detail["staged"]
    made = not staged.exists() if change.detail["new"] else kept is not None and not _there(final)
    if not made and kept is not None and _there(kept) and not _there(final):
        durable.replace(kept, final)
    if not made:
        remove_made(root, change)
    _settled(root, book, change, "done" if made else "dropped")


def _settle_undo(root: Path, book: Ledger, change: Recorded, final: Path, kept: Path | None) -> None:
    aside = aside_of(root, change)
    if kept is not None and _there(kept) and not _there(final):
        durable.replace(kept, final)
    back = not _there(kept) if kept is not None else not _there(final)
    _settled(root, book, change, "undone" if back else "done")
    remove_made(root, change)
    durable.remove_tree(aside)


def remove_made(root: Path, change: Recorded) -> None:
    """Remove the folders that were made for a change and that nothing is in any more."""
    if change.detail["made"] is not None:
        files.prune((root / change.path).parent, (root / change.detail["made"]).parent)


def _first_missing(folder: Path) -> Path | None:
    missing = None
    while not folder.exists():
        missing, folder = folder, folder.parent
    return missing


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def aside_of(root: Path, change: Recorded) -> Path:
    """Return where what a change made waits until the change is recorded as taken back."""
    return root / FOLDER / WORK / f"back-{change.change_id}"


def _settled(root: Path, book: Ledger, change: Recorded, state: str) -> None:
    """Record what became of a change, and remove what would take back one that was never made."""
    kept = None if change.kept is None else root / FOLDER / change.kept
    if state == "done":
        book.changes.settle(change.change_id, "done", 0 if kept is None else _kept_size(kept))
        return
    book.changes.settle(change.change_id, "undone" if state == "undone" else "dropped", 0)
    forget(root, kept)


def forget(root: Path, kept: Path | None) -> None:
    """Remove what would take a change back."""
    if kept is not None:
        durable.remove_tree(kept)
        durable.remove_tree(backup_of(kept))
        files.prune(kept.parent, root / FOLDER)


# --- emptying --------------------------------------------------------------------------------------------------------


def expire(root: Path, book: Ledger, changes: Iterable[Recorded]) -> None:
    """Delete what would take these changes back."""
    for change in changes:
        # Recorded first: after a kill they only lie there for nothing.
        book.changes.settle(change.change_id, "expired", 0)
        forget(root, None if change.kept is None else root / FOLDER / change.kept)
