"""Changes of single files, as they are recorded, undone, and settled after a kill in each state of the files."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import fails, posix

from regraft.disk import durable, sqlite, writable
from regraft.ledger import ledger
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import FileDetail, RecordedChange, RowsDetail
from repair.changes import execution, files, undo
from repair.changes.execution import ChangeExecutor
from repair.changes.plan import Action, Change, FileChange, RowsChange

RUN = "20261121T120000Z-abcdef"


@dataclass
class Place:
    """A store of one database and one file, and its ledger, in which a run has begun."""

    root: Path
    book: Ledger
    executor: ChangeExecutor | None = None
    made: list[Change] = field(default_factory=list)

    @property
    def own(self) -> Path:
        return self.root / ".regraft"

    def make(self, *changes: Change) -> list[RecordedChange]:
        """Make changes and return what is recorded of them."""
        self.made += changes
        self.executor = ChangeExecutor(self.root, self.book, RUN, changes)
        self.executor.demand_free(changes)
        for change in changes:
            self.executor.make(change)
        return self.book.changes.every()

    def undo(self) -> None:
        [run] = self.book.changes.runs()
        undo.demand_unchanged(self.root, run)
        undo.undo_changes(self.root, self.book, RUN)

    def texts(self) -> list[str]:
        with closing(sqlite3.connect(self.root / "notes.db")) as db:
            return [text for (text,) in db.execute("SELECT text FROM note ORDER BY id")]

    def kept(self) -> dict[str, int]:
        """Return the size of each file below ``.regraft`` but the ledger."""
        there = (path for path in self.own.rglob("*") if path.is_file() and not path.name.startswith("ledger"))
        return {path.relative_to(self.own).as_posix(): path.stat().st_size for path in there}

    def record(self, detail: Any, kept: str | None, state: Any = "intended", path: str = "file.txt") -> RecordedChange:
        """Record a change without making it."""
        means: Any = "rows" if isinstance(detail, RowsDetail) else "file"
        number = self.book.changes.intend(RUN, means, path, kept, detail)
        if state != "intended":
            self.book.changes.set_state(number, state)
        return next(one for one in self.book.changes.every() if one.change_id == number)

    def state(self, change: RecordedChange) -> tuple[str, int]:
        [found] = (one for one in self.book.changes.every() if one.change_id == change.change_id)
        return found.state, found.bytes

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        return path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    root = tmp_path / "store"
    (root / ".regraft").mkdir(parents=True)
    (root / "file.txt").write_text("old")
    with closing(sqlite3.connect(root / "notes.db")) as db, db:
        db.execute("CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT)")
        db.execute("INSERT INTO note VALUES (1, 'one'), (2, 'two')")
    with writable.allow_writes(root), ledger.open_exclusive(root) as book:
        actions = [Action(action=f"action-{number}", message="x", base="kb") for number in range(9)]
        book.begin_run("toy", str(root), RUN)
        book.changes.record_actions(RUN, actions)
        yield Place(root, book)


def acts(count: int = 1) -> tuple[Action, ...]:
    return tuple(Action(action="toy", message="x", base="kb") for _ in range(count))


def rows(*statements: str, count: int = 1, **more: Any) -> RowsChange:
    def apply(db: apsw.Connection) -> None:
        for statement in statements or ("UPDATE note SET text = 'new' WHERE id = 1",):
            db.execute(statement)

    return RowsChange(path="notes.db", actions=acts(count), apply=apply, tables=("note",), **more)


def text(new: str | None, path: str = "file.txt", *, count: int = 1, **more: Any) -> FileChange:
    make: Callable[[Path], None] | None = None if new is None else lambda to: to.write_text(str(new), "utf-8") and None
    return FileChange(path=path, actions=acts(count), make=make, **more)


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_each_change_is_recorded_with_its_actions_and_what_undoes_it(place: Place) -> None:
    changes = place.make(rows(count=2), text("new", count=3), text("made", "deep/er/new.txt"))
    assert [(one.means, one.path, one.state, one.kept, one.detail.actions) for one in changes] == [
        ("rows", "notes.db", "done", f"undo/{RUN}/000001", (0, 2)),
        ("file", "file.txt", "done", f"undo/{RUN}/000002", (2, 3)),
        ("file", "deep/er/new.txt", "done", None, (5, 1)),
    ]
    assert (changes[0].rows.dangling, changes[0].rows.grows) == (0, False)
    assert changes[1].file == FileDetail(
        new=True,
        mark=files.fingerprint(place.root / "file.txt"),
        staged=f"work/{RUN}/000002",
        made=None,
        actions=(2, 3),
        cache=False,
    )
    assert (changes[2].file.made, changes[2].file.new) == ("deep", True)
    kept = place.kept()
    assert [one.bytes for one in changes] == [kept[f"undo/{RUN}/000001"], 3, 0]
    assert (place.own / "undo" / RUN / "000002").read_text("utf-8") == "old"
    assert place.texts() == ["new", "two"]
    place.undo()
    assert place.texts() == ["one", "two"]
    assert (place.root / "file.txt").read_text("utf-8") == "old"
    assert not (place.root / "deep").exists()
    assert place.kept() == {}
    assert [(one.state, one.bytes) for one in place.book.changes.every()] == [("undone", 0)] * 3


def test_what_is_removed_is_kept_or_goes_to_the_trash(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.write("other.txt", "trash")
    place.write("cache/a", "cached")
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2026, 11, 21, 0, 0, 0, 5, 325, 0)))
    changes = place.make(
        text(None), text(None, "other.txt", trash=True), text(None, "cache/a", is_cache=True, as_is=True)
    )
    day = f"trash/2026-11-21-{RUN}/other.txt"
    assert [one.kept for one in changes] == [f"undo/{RUN}/000001", day, f"undo/{RUN}/000003"]
    assert [(one.file.new, one.file.mark, one.file.cache) for one in changes] == [
        (False, None, False),
        (False, None, False),
        (False, None, True),
    ]
    assert place.kept() == {f"undo/{RUN}/000001": 3, day: 5, f"undo/{RUN}/000003": 6}
    assert not (place.root / "file.txt").exists()
    place.undo()
    assert [(place.root / name).read_text("utf-8") for name in ("file.txt", "other.txt", "cache/a")] == [
        "old",
        "trash",
        "cached",
    ]


def test_a_whole_backup_is_kept_beside_the_changeset(place: Place) -> None:
    before = (place.root / "notes.db").stat().st_size
    [change] = place.make(rows(backup=True))
    kept = place.kept()
    assert set(kept) == {f"undo/{RUN}/000001", f"undo/{RUN}/000001.backup"}
    assert kept[f"undo/{RUN}/000001.backup"] == before
    assert change.bytes == sum(kept.values())
    with closing(sqlite3.connect(place.own / "undo" / RUN / "000001.backup")) as db:
        assert db.execute("SELECT text FROM note WHERE id = 1").fetchall() == [("one",)]
    # It is needed as long as the change can be undone, and goes with it.
    assert not execution.recover(place.root, place.book)
    assert place.kept() == kept
    place.undo()
    assert place.kept() == {}


@pytest.mark.parametrize("how", ["large", "no changeset", "another schema"])
def test_rows_that_no_changeset_holds_are_changed_on_a_copy(
    how: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = ["UPDATE note SET text = 'new' WHERE id = 1"]
    if how == "no changeset":
        monkeypatch.setattr(execution.changesets, "can_record", lambda *_: False)
    elif how == "another schema":
        statements.append("CREATE INDEX by_text ON note (text)")
    more = {"bytes": execution.changesets.LARGEST_CHANGESET + 1} if how == "large" else {}
    [change] = place.make(rows(*statements, **more))
    assert (change.means, change.state, change.detail.actions) == ("file", "done", (0, 1))
    assert set(place.kept()) == {f"undo/{RUN}/000001"}
    assert place.texts() == ["new", "two"]
    with sqlite.open_readonly(place.own / "undo" / RUN / "000001") as db:
        assert db.execute("SELECT text FROM note WHERE id = 1").get == "one"
    place.undo()
    assert place.texts() == ["one", "two"]


def test_a_file_that_a_run_replaces_and_then_changes_is_undone_whole(place: Place) -> None:
    def another(new: Path) -> None:
        files.copy_database(place.root / "notes.db", new)
        with sqlite.open_writable(new) as db:
            db.execute("UPDATE note SET text = 'copied'")

    copied = FileChange(path="notes.db", actions=acts(), make=another)
    place.executor = executor = ChangeExecutor(place.root, place.book, RUN, [copied])
    executor.make(copied)
    for number in (1, 2):
        change = rows(f"UPDATE note SET text = 'changed' WHERE id = {number}")
        executor.replace_plan([change])
        executor.make(change)
    assert place.texts() == ["changed", "changed"]
    [run] = place.book.changes.runs()
    for dry_run in (True, False):
        undo.demand_unchanged(place.root, run, dry_run=dry_run)
    # A row that only another program wrote shows once the others are reverted.
    with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
        db.execute("INSERT INTO note VALUES (3, 'theirs')")
    for dry_run in (True, False):
        with fails("UndoRefused", match=r"notes\.db"):
            undo.demand_unchanged(place.root, run, dry_run=dry_run)
    with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
        db.execute("DELETE FROM note WHERE id = 3")
    place.undo()
    assert place.texts() == ["one", "two"]


def test_counters_of_a_database_that_is_put_back_stay(place: Place) -> None:
    """A number that was given once is not given again."""
    name = "memory_center/index/simple_memory.db"
    path = place.write(name, "")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE note_short_id_seq (id INTEGER PRIMARY KEY, next_id INTEGER)")
        db.execute("INSERT INTO note_short_id_seq VALUES (1, 4)")

    def another(new: Path) -> None:
        files.copy_database(path, new)
        with sqlite.open_writable(new) as db:
            db.execute("CREATE TABLE more (id INTEGER PRIMARY KEY)")

    place.make(FileChange(path=name, actions=acts(), make=another))
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE note_short_id_seq SET next_id = 9")
    place.undo()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM note_short_id_seq").fetchall() == [(1, 9)]
        assert db.execute("SELECT count(*) FROM sqlite_schema").fetchall() == [(1,)]


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    "how", ["another text", "no file", "noise", "no changeset", "a log", "file gone", "file changed"]
)
def test_what_was_changed_since_is_not_undone(how: str, dry_run: bool, place: Place) -> None:
    place.make(rows(), text("new"))
    database, what = place.root / "notes.db", "it"
    if how == "no file":
        database.unlink()
    elif how == "noise":
        database.write_bytes(b"SQLite format 3\0" + b"\xa5" * 4096)
    elif how == "no changeset":
        (place.own / KEPT).unlink()
        what = "its undo data"
    elif how.startswith("file"):
        (place.root / "file.txt").unlink() if how == "file gone" else place.write("file.txt", "theirs")
    else:
        with closing(sqlite3.connect(database)) as db, db:
            db.execute(f"PRAGMA journal_mode = {'WAL' if how == 'a log' else 'DELETE'}")
            db.execute("UPDATE note SET text = 'theirs' WHERE id = 1")
        what = r"its rows \(note\)"
    before = place.kept()
    [run] = place.book.changes.runs()
    name = "file.txt" if how.startswith("file") else r"notes\.db"
    with fails("UndoRefused", match=f"{name}.*{what}"):
        undo.demand_unchanged(place.root, run, dry_run=dry_run)
    assert place.kept() == before
    assert [one.state for one in place.book.changes.every()] == ["done", "done"]


def test_rows_that_change_while_a_run_is_undone_stop_it(place: Place) -> None:
    place.make(rows(), text("new"))
    with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
        db.execute("UPDATE note SET text = 'theirs' WHERE id = 1")
    with fails("UndoRefused", match=r"its rows \(note\)"):
        undo.undo_changes(place.root, place.book, RUN)
    assert place.texts() == ["theirs", "two"]
    # The file was undone before; that the rows were not is settled later.
    assert (place.root / "file.txt").read_text("utf-8") == "old"
    assert [one.state for one in place.book.changes.every()] == ["undoing", "undone"]
    assert execution.recover(place.root, place.book)
    assert [one.state for one in place.book.changes.every()] == ["done", "undone"]


def test_undo_data_that_no_run_makes_is_refused(place: Place) -> None:
    place.make(rows(), text("new"))
    [run] = place.book.changes.runs()
    with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
        db.execute("ALTER TABLE note RENAME TO theirs")
    for dry_run in (True, False):
        with fails("LedgerUnreadable", match=rf"{KEPT} of notes\.db is not valid: it changes note"):
            undo.demand_unchanged(place.root, run, dry_run=dry_run)
    assert (place.root / "file.txt").read_text("utf-8") == "new"


@posix
def test_a_link_is_no_file_that_a_run_replaced(place: Place) -> None:
    place.make(text("new"))
    (place.own / KEPT).unlink()
    (place.own / KEPT).symlink_to(place.root / "notes.db")
    [run] = place.book.changes.runs()
    with fails("LedgerUnreadable", match=rf"the undo data of file\.txt is a symbolic link \(\.regraft/{KEPT}\)"):
        undo.demand_unchanged(place.root, run)


def test_a_file_in_use_is_not_undone(place: Place) -> None:
    place.make(text("new"), rows())
    [run] = place.book.changes.runs()
    with closing(apsw.Connection(str(place.root / "notes.db"))) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
            with fails("StoreBusy"):
                undo.demand_unchanged(place.root, run)
            undo.demand_unchanged(place.root, run, dry_run=True)


def copied(place: Place, then: Callable[[], object] = lambda: None) -> FileChange:
    """Replace the database by a copy with other texts; ``then`` something happens."""

    def make(new: Path) -> None:
        files.copy_database(place.root / "notes.db", new)
        with sqlite.open_writable(new) as db:
            db.execute("UPDATE note SET text = 'copied'")
        then()

    return FileChange(path="notes.db", actions=acts(), make=make)


def test_a_database_that_was_replaced_is_not_put_back_while_it_is_in_use_and_never_gets_the_log_of_another(
    place: Place,
) -> None:
    place.make(copied(place), text("new"))
    [run] = place.book.changes.runs()
    with closing(apsw.Connection(str(place.root / "notes.db"))) as db:
        db.execute("BEGIN")
        db.execute("SELECT * FROM note").fetchall()
        with fails("StoreBusy", match=r"notes\.db"):
            undo.demand_unchanged(place.root, run)
    # A program that was killed since has left a log, which belongs to the new file.
    log = with_log(place.root / "notes.db")
    undo.undo_changes(place.root, place.book, RUN)
    assert not log.exists()
    assert place.texts() == ["one", "two"]
    assert (place.root / "file.txt").read_text("utf-8") == "old"


def test_a_database_that_is_opened_while_its_copy_is_made_is_not_replaced(place: Place) -> None:
    with closing(apsw.Connection(str(place.root / "notes.db"))) as db:

        def read() -> None:
            db.execute("BEGIN")
            db.execute("SELECT * FROM note").fetchall()

        with fails("StoreBusy", match=r"notes\.db"):
            place.make(copied(place, read))
        assert db.execute("SELECT text FROM note ORDER BY id").fetchall() == [("one",), ("two",)]
    assert place.book.changes.every() == []
    assert place.texts() == ["one", "two"]


def test_a_file_keeps_its_permissions_and_is_on_the_disk_before_it_is_moved(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "file.txt").chmod(0o640)
    flushed: list[str] = []
    real = durable.sync_file
    monkeypatch.setattr(durable, "sync_file", lambda path: (flushed.append(path.name), real(path)))
    place.write("other.txt", "old")
    # A change that knows its fingerprint has flushed its file itself.
    [_, change] = place.make(text("new"), text("newer", "other.txt", mark=lambda _: f"bytes {64 * 'a'}"))
    assert (place.root / "file.txt").stat().st_mode & 0o777 == (0o640 if os.name != "nt" else 0o666)
    assert (flushed.count("000001"), flushed.count("000002")) == (1, 0)
    assert change.file.mark == f"bytes {64 * 'a'}"


# --- what was planned ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [rows(), text("new"), text(None, as_is=True)], ids=["rows", "file", "as it is"])
@pytest.mark.parametrize("moment", ["before it is asked for", "before it is made"])
def test_what_is_written_to_since_the_plan_is_not_changed(change: Change, moment: str, place: Place) -> None:
    executor = ChangeExecutor(place.root, place.book, RUN, [change])
    if moment == "before it is made":
        executor.demand_free([change])
    path = place.root / change.path
    before = path.stat()
    if change.path == "notes.db":
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE note SET text = 'theirs' WHERE id = 2")
    elif isinstance(change, FileChange) and change.as_is:
        path.write_text("theirs")
    else:
        path.unlink()
    if path.exists():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10_000_000))
    with fails("PlanOutdated", match=f"{change.path}.*it was changed in the meantime"):
        executor.demand_free([change]) if moment == "before it is asked for" else executor.make(change)
    assert place.book.changes.every() == []
    assert place.kept() == {}


@posix
def test_a_path_that_leads_elsewhere_is_refused_before_anything_is_recorded(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (place.root / "link").symlink_to(tmp_path / "elsewhere")
    change = text("new", "link/file.txt")
    with fails("LinkInStore"):
        ChangeExecutor(place.root, place.book, RUN, [change]).demand_free([change])
    assert place.book.changes.every() == []


def test_a_table_whose_rules_change_other_values_is_refused_before_anything_is_recorded(place: Place) -> None:
    with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
        db.execute("ALTER TABLE note ADD COLUMN loud AS (upper(text))")
    change = rows()
    with fails("SchemaForeign", match="column loud of note is generated"):
        ChangeExecutor(place.root, place.book, RUN, [change]).demand_free([change])


def with_log(path: Path) -> Path:
    """Leave a row in the log of a database, as an application that was killed does."""
    copy = path.with_name("copy")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("UPDATE note SET text = 'logged' WHERE id = 2")
        db.commit()
        copy.write_bytes(path.read_bytes())
        log = path.with_name(f"{path.name}-wal").read_bytes()
    copy.replace(path)
    path.with_name(f"{path.name}-wal").write_bytes(log)
    return path.with_name(f"{path.name}-wal")


def make_folder(new: Path) -> None:
    new.mkdir()
    (new / "a").write_text("new")


@pytest.mark.parametrize(
    ("change", "is_flushed"),
    [
        (text("new", "deep/notes.db"), True),
        (text(None, "deep/notes.db"), True),
        (text(None, "deep/notes.db", as_is=True), False),
        (FileChange(path="deep", actions=acts(), make=make_folder), True),
        (FileChange(path="deep", actions=acts(), make=None), False),
    ],
    ids=["a new file", "a file", "a file as it is", "a new folder", "a folder"],
)
@pytest.mark.parametrize("moment", ["asked for", "made"])
def test_logs_are_written_back_where_a_path_is_replaced(
    change: FileChange, is_flushed: bool, moment: str, place: Place
) -> None:
    (place.root / "deep").mkdir()
    (place.root / "notes.db").rename(place.root / "deep" / "notes.db")
    log = with_log(place.root / "deep" / "notes.db")
    executor = ChangeExecutor(place.root, place.book, RUN, [change])
    if moment == "asked for":
        executor.demand_free([change])
        assert log.exists() != is_flushed
    executor.make(change)
    kept = place.own / KEPT
    database = kept / "notes.db" if kept.is_dir() else kept
    with closing(sqlite3.connect(f"file:{database}?immutable=1", uri=True)) as db:
        found = db.execute("SELECT text FROM note WHERE id = 2").fetchall()
    assert found == [("logged" if is_flushed else "two",)]


def test_a_log_that_comes_while_the_new_file_is_made_is_written_back(place: Place) -> None:
    def make(new: Path) -> None:
        new.write_text("new")
        before = (place.root / "notes.db").stat()
        with_log(place.root / "notes.db")
        os.utime(place.root / "notes.db", ns=(before.st_atime_ns, before.st_mtime_ns))

    change = FileChange(path="notes.db", actions=acts(), make=make)
    executor = ChangeExecutor(place.root, place.book, RUN, [change])
    with fails("PlanOutdated", match=r"notes\.db.*it was changed in the meantime"):
        executor.make(change)
    assert place.texts() == ["one", "logged"]
    assert place.book.changes.every() == []


@pytest.mark.parametrize(("more", "means"), [(0, "rows"), (1, "file")])
def test_the_largest_change_that_a_changeset_holds(more: int, means: str, place: Place) -> None:
    [change] = place.make(rows(bytes=execution.changesets.LARGEST_CHANGESET + more))
    assert change.means == means


@pytest.mark.parametrize("bodies", [True, False])
def test_words_are_indexed_again_with_the_bodies(bodies: bool, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextmanager
    def rebuild(db: apsw.Connection) -> Iterator[None]:
        yield
        seen.append(str(db.execute("SELECT text FROM note WHERE id = 1").get))

    monkeypatch.setattr(execution.changesets, "full_text_rebuild", rebuild)
    place.make(rows(bodies=bodies))
    assert seen == (["new"] if bodies else [])


def test_trash_is_no_backup_of_its_neighbor(place: Place) -> None:
    place.write("file.txt.backup", "theirs")
    first, second = place.make(text(None, trash=True), text(None, "file.txt.backup", trash=True))
    assert (first.bytes, second.bytes) == (3, 6)
    execution.expire_changes(place.root, place.book, [first])
    assert [Path(name).name for name in place.kept()] == ["file.txt.backup"]


# --- after a kill ----------------------------------------------------------------------------------------------------

KEPT = f"undo/{RUN}/000001"
STAGED = f"work/{RUN}/000001"


def detail(*, new: bool, made: str | None = None) -> FileDetail:
    return FileDetail(new=new, mark=None, staged=STAGED, made=made, actions=(0, 1))


#: What is at the path, what is kept, and whether the new file is still staged; then the state and both files after it.
INTENDED: dict[str, tuple[bool, str | None, str | None, bool, str, str | None, str | None]] = {
    "nothing was moved": (True, "old", None, True, "dropped", "old", None),
    "both names are of the old one": (True, "old", "the same", True, "dropped", "old", None),
    "the old one was moved": (True, None, "old", True, "dropped", "old", None),
    "the new one is in place": (True, "new", "old", False, "done", "new", "old"),
    "another program has put one there": (True, "theirs", "old", True, "done", "theirs", "old"),
    "it was not removed yet": (False, "old", None, False, "dropped", "old", None),
    "it has two names": (False, "old", "the same", False, "dropped", "old", None),
    "it was removed": (False, None, "old", False, "done", None, "old"),
    "it was removed and another is there": (False, "theirs", "old", False, "done", "theirs", "old"),
}


def prepare(place: Place, there: str | None, kept: str | None, *, staged: bool = False) -> None:
    final = place.root / "file.txt"
    final.unlink()
    if there is not None:
        final.write_text(there, "utf-8")
    if kept is not None:
        (place.own / KEPT).parent.mkdir(parents=True)
        if kept == "the same":
            (place.own / KEPT).hardlink_to(final)
        else:
            (place.own / KEPT).write_text(kept, "utf-8")
    if staged:
        (place.own / STAGED).parent.mkdir(parents=True)
        (place.own / STAGED).write_text("new")


def read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


@pytest.mark.parametrize("name", INTENDED)
def test_an_intended_change_of_a_file_is_made_or_not(name: str, place: Place) -> None:
    new, there, kept, staged, state, final, left = INTENDED[name]
    prepare(place, there, kept, staged=staged)
    change = place.record(detail(new=new), KEPT)
    assert execution.recover(place.root, place.book)
    assert place.state(change) == (state, 3 if state == "done" else 0)
    assert (read(place.root / "file.txt"), read(place.own / KEPT)) == (final, left)
    assert not (place.own / "work").exists()
    assert (place.own / "undo").exists() == (left is not None)
    assert [one.status for one in place.book.changes.runs()] == ["stopped"]
    assert not execution.recover(place.root, place.book)
    assert place.state(change) == (state, 3 if state == "done" else 0)


@pytest.mark.parametrize(
    ("new", "state", "kept", "is_moved"),
    [
        (True, "intended", KEPT, True),
        (True, "undoing", KEPT, True),
        (False, "undoing", KEPT, True),
        # A removal that is open has just what it wants; a change that is settled, too.
        (False, "intended", KEPT, False),
        (True, "done", KEPT, False),
        (True, "intended", None, False),
    ],
)
def test_what_a_stopped_run_has_moved_away_is_not_read_as_damage(
    new: bool, state: str, kept: str | None, is_moved: bool, place: Place
) -> None:
    prepare(place, None, "old")
    place.record(RowsDetail(0, (0, 1)), f"undo/{RUN}/000002", path="elsewhere.db")
    place.write(f".regraft/undo/{RUN}/000002", "x")
    place.record(detail(new=new), kept, state)
    before = place.kept()
    if is_moved:
        with fails("ChangeUnfinished", match=r"a run that was stopped.* has moved file\.txt away"):
            execution.demand_in_place(place.root)
    else:
        execution.demand_in_place(place.root)
    assert place.kept() == before
    # Nothing is missing where the file is there, or nothing was kept.
    place.write("file.txt", "new")
    execution.demand_in_place(place.root)
    (place.root / "file.txt").unlink()
    (place.own / KEPT).unlink()
    execution.demand_in_place(place.root)


@pytest.mark.parametrize(("there", "state"), [("new", "done"), (None, "dropped")])
def test_an_intended_file_where_none_was_is_there_or_not(there: str | None, state: str, place: Place) -> None:
    (place.root / "deep" / "er").mkdir(parents=True)
    if there is not None:
        (place.root / "deep" / "er" / "file").write_text(there, "utf-8")
    change = place.record(detail(new=True, made="deep"), None, path="deep/er/file")
    assert execution.recover(place.root, place.book)
    assert place.state(change) == (state, 0)
    # Folders that were made for it go with it.
    assert (place.root / "deep").exists() == (there is not None)
    assert read(place.root / "deep" / "er" / "file") == there


UNDOING: dict[str, tuple[str | None, str | None, str | None, str, str | None]] = {
    "nothing was moved": (KEPT, "new", "old", "done", "new"),
    "the new one is parked": (KEPT, None, "old", "undone", "old"),
    "the old one is back": (KEPT, "old", None, "undone", "old"),
    "the only one is there": (None, "new", None, "done", "new"),
    "the only one is parked": (None, None, None, "undone", None),
}


@pytest.mark.parametrize("name", UNDOING)
def test_an_undo_of_a_file_is_made_or_not(name: str, place: Place) -> None:
    recorded, there, kept, state, final = UNDOING[name]
    prepare(place, there, kept)
    change = place.record(detail(new=True), recorded, "undoing")
    parked = execution.parked_path(place.root, change)
    parked.parent.mkdir(parents=True, exist_ok=True)
    parked.write_text("new")
    assert execution.recover(place.root, place.book)
    assert place.state(change) == (state, 3 if state == "done" and recorded else 0)
    assert read(place.root / "file.txt") == final
    assert read(place.own / KEPT) == ("old" if state == "done" and recorded else None)
    assert not parked.exists()


def test_folders_of_a_file_whose_undo_was_killed_go_with_it(place: Place) -> None:
    (place.root / "deep" / "er").mkdir(parents=True)
    change = place.record(detail(new=True, made="deep"), None, "undoing", path="deep/er/file")
    assert execution.recover(place.root, place.book)
    assert place.state(change) == ("undone", 0)
    assert not (place.root / "deep").exists()


@pytest.mark.parametrize(
    ("state", "is_made", "settled"),
    [
        ("intended", True, "done"),
        ("intended", False, "dropped"),
        ("undoing", True, "done"),
        ("undoing", False, "undone"),
    ],
)
def test_a_change_of_rows_was_committed_or_not(state: str, is_made: bool, settled: str, place: Place) -> None:
    [change] = place.make(rows())
    if not is_made:
        with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
            db.execute("UPDATE note SET text = 'one' WHERE id = 1")
    place.book.changes.set_state(change.change_id, state, 0)  # type: ignore[arg-type]
    size = (place.own / KEPT).stat().st_size
    assert execution.recover(place.root, place.book)
    assert place.state(change) == (settled, size if settled == "done" else 0)
    assert (place.own / KEPT).exists() == (settled == "done")
    assert place.texts() == ["new" if is_made else "one", "two"]


@pytest.mark.parametrize("how", ["no changeset", "no file", "noise"])
def test_a_change_of_rows_that_cannot_be_judged_counts_as_made(how: str, place: Place) -> None:
    """Nothing that would undo it is deleted then."""
    [change] = place.make(rows())
    place.book.changes.set_state(change.change_id, "intended", 0)
    if how == "no changeset":
        (place.own / KEPT).unlink()
    elif how == "no file":
        (place.root / "notes.db").unlink()
    else:
        (place.root / "notes.db").write_bytes(b"SQLite format 3\0" + b"\xa5" * 4096)
    assert execution.recover(place.root, place.book)
    assert place.state(change)[0] == "done"
    assert (place.own / KEPT).exists() == (how != "no changeset")


def test_a_change_of_many_transactions_keeps_its_committed_sections(place: Place) -> None:
    [change] = place.make(rows())
    place.book.changes.set_state(change.change_id, "dropped")
    size = (place.own / KEPT).stat().st_size
    growing = place.record(RowsDetail(0, (0, 1), grows=True), KEPT, path="notes.db")
    place.book.changes.set_state(growing.change_id, "intended", size)
    assert execution.recover(place.root, place.book)
    assert place.state(growing) == ("done", size)
    # Of a section that was not committed, nothing stays.
    with (place.own / KEPT).open("ab") as file:
        file.write(b"T\x02")
    place.book.changes.set_state(growing.change_id, "intended", size)
    assert execution.recover(place.root, place.book)
    assert (place.state(growing), (place.own / KEPT).stat().st_size) == (("done", size), size)
    # An undo is done at once.
    for text, state in (("new", "done"), ("one", "undone")):
        place.book.changes.set_state(growing.change_id, "undoing", size)
        with closing(sqlite3.connect(place.root / "notes.db")) as db, db:
            db.execute("UPDATE note SET text = ? WHERE id = 1", (text,))
        assert execution.recover(place.root, place.book)
        assert place.state(growing)[0] == state
    assert place.kept() == {}


def test_what_no_change_needs_is_removed_and_the_rest_stays(place: Place) -> None:
    for name in ("000001", "000001.backup", "000002", "000003", "stray", "000004/in/a folder"):
        place.write(f".regraft/undo/{RUN}/{name}", "x")
    place.write(f".regraft/trash/2026-11-21-{RUN}/file.txt", "x")
    place.write(f".regraft/trash/2026-11-20-{RUN}/gone.txt", "x")
    place.write(f".regraft/work/{RUN}/leftover", "x")
    place.record(RowsDetail(0, (0, 1)), f"undo/{RUN}/000001", "done", path="notes.db")
    for number, state in ((2, "dropped"), (3, "undone"), (4, "expired")):
        place.record(detail(new=True), f"undo/{RUN}/00000{number}", state)
    place.record(detail(new=False), f"trash/2026-11-21-{RUN}/file.txt", "done")
    place.record(detail(new=False), f"trash/2026-11-20-{RUN}/gone.txt", "expired", "gone.txt")
    assert not execution.recover(place.root, place.book)
    assert set(place.kept()) == {
        f"undo/{RUN}/000001",
        f"undo/{RUN}/000001.backup",
        f"trash/2026-11-21-{RUN}/file.txt",
    }
    assert not (place.own / "work").exists()
    # What undoes a run may expire.
    execution.expire_changes(place.root, place.book, undo.undoable_changes(place.book.changes.runs()[0]))
    assert place.kept() == {}
    assert not {"undo", "trash", "work"} & {path.name for path in place.own.iterdir()}
    assert [one.state for one in place.book.changes.every()] == ["expired", "dropped", "undone", *["expired"] * 3]
    assert {one.bytes for one in place.book.changes.every()} == {0}


def test_empty_folders_of_undo_data_do_not_stay(place: Place) -> None:
    for name in (f"undo/{RUN}", "trash"):
        (place.own / name).mkdir(parents=True)
    assert not execution.recover(place.root, place.book)
    assert {path.name for path in place.own.iterdir() if path.is_dir()} == set()


def test_how_much_room_a_change_needs(place: Place) -> None:
    size, largest = (place.root / "notes.db").stat().st_size, execution.changesets.LARGEST_CHANGESET
    for change, needed in (
        (text("new", bytes=7), 7),
        (rows(bytes=7), 14),
        (rows(bytes=7, backup=True), 14 + size),
        (rows(bytes=7, bodies=True), 2 * size),
        (rows(bytes=largest), 2 * largest),
        (rows(bytes=largest + 1), 2 * size),
    ):
        assert execution.bytes_needed(place.root, change) == needed


def test_paid_vectors_that_wait_are_noticed(tmp_path: Path) -> None:
    assert not execution.has_pending_vectors(tmp_path)
    for name in ("restoring", "reconciling"):
        (tmp_path / name).mkdir()
        assert execution.has_pending_vectors(tmp_path)
        (tmp_path / name).rmdir()


@pytest.mark.parametrize(
    ("means", "kind", "is_fine"),
    [
        ("rows", "file", True),
        ("rows", "nothing", True),
        ("rows", "folder", False),
        ("file", "folder", True),
        ("file", "file", True),
    ],
)
def test_what_undoes_a_change_is_of_its_kind(means: str, kind: str, is_fine: bool, place: Place) -> None:
    if kind == "file":
        place.write(f".regraft/{KEPT}", "x")
    elif kind == "folder":
        (place.own / KEPT).mkdir(parents=True)
    change = place.record(RowsDetail(0, (0, 1)) if means == "rows" else detail(new=True), KEPT)
    if is_fine:
        assert execution.undo_data_path(place.root, change) == place.own / KEPT
        return
    with fails("LedgerUnreadable", match=f"the undo data {KEPT} is not a file"):
        execution.undo_data_path(place.root, change)


@posix
def test_what_undoes_a_change_is_no_pipe_and_not_elsewhere(place: Place, tmp_path: Path) -> None:
    (place.own / KEPT).parent.mkdir(parents=True)
    os.mkfifo(place.own / KEPT)
    for some in (RowsDetail(0, (0, 1)), detail(new=True)):
        with fails("LedgerUnreadable", match="is not a file"):
            execution.undo_data_path(place.root, place.record(some, KEPT))
    (place.own / KEPT).unlink()
    (place.own / KEPT).symlink_to("nowhere")
    change = place.record(detail(new=False), KEPT)
    assert execution.undo_data_path(place.root, change) == place.own / KEPT
    with fails("LedgerUnreadable", match="is not a file"):
        execution.undo_data_path(place.root, place.record(RowsDetail(0, (0, 1)), KEPT))
    (place.own / KEPT).unlink()
    (place.own / KEPT).parent.rmdir()
    (tmp_path / "elsewhere").mkdir()
    (place.own / KEPT).parent.symlink_to(tmp_path / "elsewhere")
    with fails("LedgerUnreadable", match="is outside"):
        execution.undo_data_path(place.root, change)


@posix
def test_undo_data_of_a_run_that_is_elsewhere_is_not_removed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs").write_text("x")
    (place.own / "undo").mkdir()
    (place.own / "undo" / RUN).symlink_to(tmp_path / "elsewhere")
    with fails("LedgerUnreadable", match=rf"the undo data of run {RUN} is outside \.regraft"):
        execution.recover(place.root, place.book)
    assert (tmp_path / "elsewhere" / "theirs").read_text("utf-8") == "x"
