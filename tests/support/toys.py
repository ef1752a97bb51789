"""Toy commands that change a small library in every way that a plan can, and what a library holds, to compare it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest
from faults import Source, Tripwire, forked, item, write_vectors
from harness import NOW, copied, run
from stand_ins import KILLED, die

from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.ledger import ledger
from regraft.ledger.ledger import ChangeLog, Ledger
from regraft.report.document import encoded
from regraft.report.progress import SilentProgress
from repair.changes.changesets import LARGEST_CHANGESET
from repair.changes.files import copy_database
from repair.changes.plan import Action, Change, FileChange, Plan, RowsChange
from repair.changes.run import Planner, run_command, undo_run
from repair.changes.store import Store

KB, OTHER = identity.base_id("kb"), identity.base_id("other")
NEW_BASE = "aaaaaaaa-0000-4000-8000-000000000001"
INDEX = f"KnowledgeBase/{KB}/.cherry/index.sqlite"
RAW = f"KnowledgeBase/{KB}/raw"
CATALOG = "catalog.sqlite"
NEW_FILE, NEW_FOLDER, OLD_FOLDER = f"{RAW}/new/deep/file.txt", f"KnowledgeBase/{NEW_BASE}", f"KnowledgeBase/{OTHER}"


@copied
def library(place: Path) -> Path:
    """Migrate two small bases; the library has no ledger of that."""
    source = Source(place / "v1")
    source.base("kb", [source.upload("f1", "a.txt", b"a"), source.upload("f2", "b.txt", b"b")])
    source.base("other", [item("page", "url", "https://example.org/a")])
    write_vectors(source.vectors("kb"), {"item-f1": 3, "item-f2": 2})
    write_vectors(source.vectors("other"), {"page": 2})
    target = place / "library"
    assert run("migrate", source.write(), "--to", target, "--now", NOW, "-q").status == 0
    shutil.rmtree(target / ".regraft")
    return target


# --- what it holds -------------------------------------------------------------------------------------------------


def contents(root: Path) -> dict[str, object]:
    """Return what every file holds: rows of databases without ``fts_rowid``, and bytes."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    names = {path.relative_to(root).as_posix(): path for path in paths}
    own = (
        name
        for name in names
        if not name.startswith(".regraft/") and not name.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
    )
    return {
        name: rows_of(names[name]) if untrusted_sqlite.is_database(names[name]) else names[name].read_bytes()
        for name in own
    }


def rows_of(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every ordinary table, and the schema; a full-text index must match its bodies."""
    with sqlite.open_readonly(path) as db:
        schema = db.execute("SELECT name, type, sql FROM sqlite_schema WHERE name NOT LIKE '%fts\\_%' ESCAPE '\\'")
        found: dict[str, list[tuple[Any, ...]]] = {"": sorted(schema.fetchall())}
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE '%VIRTUAL%'"):
            names = [row[1] for row in db.execute(f"PRAGMA table_info({untrusted_sqlite.quote_name(table)})")]
            if not table.startswith("search_text_fts"):
                columns = ", ".join(
                    f"CAST({untrusted_sqlite.quote_name(name)} AS BLOB)" for name in names if name != "fts_rowid"
                )
                found[table] = sorted(
                    db.execute(f"SELECT {columns} FROM {untrusted_sqlite.quote_name(table)}").fetchall(), key=repr
                )
    if "search_text" in found:
        with tempfile.TemporaryDirectory() as folder:
            copy_database(path, copy := Path(folder) / "copy.sqlite")
            with sqlite.open_writable(copy) as db:
                db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
    return found


def keeps(root: Path) -> set[str]:
    """Return what lies in regraft's own folder besides the ledger."""
    own = root / ".regraft"
    paths = (path for path in own.rglob("*") if path.is_file() or not any(path.iterdir()))
    return {path.relative_to(own).as_posix() for path in paths if not path.name.startswith("ledger.sqlite")}


def kept_by_ledger(root: Path) -> set[str]:
    """Return what the ledger says is kept, all files of it."""
    with ledger.open_exclusive(root) as book:
        changes = [change for change in book.changes.every() if change.state == "done" and change.kept is not None]
    own = root / ".regraft"
    tops = [own / str(change.kept) for change in changes]
    files = [file for top in tops for file in ((top, *top.rglob("*")) if top.is_dir() else (top,))]
    return {file.relative_to(own).as_posix() for file in files if file.is_file() or not any(file.iterdir())}


def kept_bytes(root: Path) -> int:
    """Return the size of all that is kept."""
    return sum((root / ".regraft" / name).stat().st_size for name in keeps(root))


def write(path: Path, *statements: str) -> None:
    """Write to a database as another program."""
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


# --- plans ---------------------------------------------------------------------------------------------------------


def done(what: str, **more: Any) -> tuple[Action, ...]:
    """Return the action of a toy change."""
    return (Action(action="toy", message=what, base=KB, **more),)


def value(root: Path, path: str, query: str) -> object:
    """Return one value of a database."""
    with sqlite.open_readonly(root / path) as db:
        return db.execute(query).get


def sql(*statements: str) -> Callable[[apsw.Connection], None]:
    """Return a change that executes statements."""

    def apply(db: apsw.Connection) -> None:
        for statement in statements:
            db.execute(statement)

    return apply


def bodies(store: Store) -> list[Change]:
    """Change a body, delete another with its vector, and add a content."""
    text = "a lamp of another kind"
    if value(store.root, INDEX, f"SELECT count(*) FROM content WHERE text = '{text}'"):
        return []
    apply = sql(
        f"UPDATE search_text SET text = '{text}' WHERE rowid = 2",
        "DELETE FROM embedding"
        " WHERE embedding_text_hash = (SELECT embedding_text_hash FROM search_text WHERE rowid = 1)",
        "DELETE FROM search_text WHERE rowid = 1",
        f"INSERT INTO content VALUES ('{identity.text_hash(text)}', '{text}', 1)",
    )
    tables = ("search_text", "embedding", "content")
    return [RowsChange(path=INDEX, actions=done("bodies"), apply=apply, tables=tables, bytes=1000, bodies=True)]


def named(name: str, *, size: int = 100) -> Callable[[Store], list[Change]]:
    """Return what gives the bases in the catalog another name."""

    def changes(store: Store) -> list[Change]:
        if value(store.root, CATALOG, "SELECT min(name) FROM knowledge_base") == name:
            return []
        apply = sql(f"UPDATE knowledge_base SET name = '{name}'")
        return [
            RowsChange(
                path=CATALOG, actions=done(f"call them {name}"), apply=apply, tables=("knowledge_base",), bytes=size
            )
        ]

    return changes


renamed, renamed_on_copy = named("renamed"), named("copied", size=LARGEST_CHANGESET + 1)


def a_file(path: str, text: str) -> Callable[[Store], list[Change]]:
    """Return what puts a file in place, of what is there or of nothing."""

    def make(new: Path) -> None:
        new.write_text(text, "utf-8")

    def changes(store: Store) -> list[Change]:
        there = (store.root / path).is_file() and (store.root / path).read_text("utf-8") == text
        return [] if there else [FileChange(path=path, actions=done(f"write {path}"), make=make, bytes=10)]

    return changes


def gone(path: str, *, trash: bool = True) -> Callable[[Store], list[Change]]:
    """Return what takes a file or folder away."""

    def changes(store: Store) -> list[Change]:
        return (
            [FileChange(path=path, actions=done(f"remove {path}"), make=None, bytes=0, trash=trash)]
            if (store.root / path).exists()
            else []
        )

    return changes


def a_base(store: Store) -> list[Change]:
    """Make the folder of a base, with an index in it."""

    def make(new: Path) -> None:
        (new / ".cherry").mkdir(parents=True)
        copy_database(store.root / INDEX, new / ".cherry" / "index.sqlite")
        (new / "raw").mkdir()
        (new / "raw" / "a.txt").write_text("a")

    made = (store.root / NEW_FOLDER).exists()
    return [] if made else [FileChange(path=NEW_FOLDER, actions=done("a new base"), make=make, bytes=1000)]


def another_folder(store: Store) -> list[Change]:
    """Put another folder in the place of one that has an index: a copy with a file more."""
    folder = store.root / OLD_FOLDER
    if (folder / "more.txt").exists():
        return []

    def make(new: Path) -> None:
        shutil.copytree(folder, new)
        (new / "more.txt").write_text("more")

    return [FileChange(path=OLD_FOLDER, actions=done("another folder"), make=make, bytes=1000)]


def another_index(store: Store) -> list[Change]:
    """Put another index in the place of the one that is there."""
    query = "SELECT updated_at FROM meta"
    if value(store.root, INDEX, query) == 5:
        return []

    def make(new: Path) -> None:
        copy_database(store.root / INDEX, new)
        with sqlite.open_writable(new) as db:
            db.execute("UPDATE meta SET updated_at = 5")

    return [FileChange(path=INDEX, actions=done("another index"), make=make, bytes=1000)]


def planner(*parts: Callable[[Store], list[Change]]) -> Planner:
    """Return a command that makes these changes."""
    return lambda store: Plan([change for part in parts for change in part(store)])


#: Every way to change something, in one plan.
EVERYTHING = planner(
    bodies,
    renamed,
    a_file(f"{RAW}/a.txt", "another"),
    a_file(NEW_FILE, "new"),
    gone(f"{RAW}/b.txt"),
    a_base,
    gone(OLD_FOLDER),
)
#: The same by other means.
COPIES = planner(another_index, renamed_on_copy, gone(f"{RAW}/b.txt", trash=False))


def change(root: Path, command: Planner = EVERYTHING, **more: Any) -> dict[str, Any]:
    """Run a toy command."""
    return encoded(run_command("toy", root, command, progress=SilentProgress(), **more))


def undo(root: Path, run_id: str | None = None, **more: Any) -> dict[str, Any]:
    """Take a run back."""
    return encoded(undo_run(root, run_id, progress=SilentProgress(), **more))


# --- moments -------------------------------------------------------------------------------------------------------


class QuickDisk(apsw.VFS):
    """SQLite's view of a disk that never flushes, and counts flushes and some of the writes as steps.

    Nothing here ends like a power cut: what a killed process has written stays written.
    """

    def __init__(self) -> None:
        self.step: Callable[[str], None] = lambda name: None
        self.real = apsw.vfs_names()[0]
        super().__init__("quick-disk", self.real, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _QuickFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        # The end of a transaction.
        self.step("xDelete")
        super().xDelete(name, sync)


class _QuickFile(apsw.VFSFile):
    def __init__(self, disk: QuickDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._writes = 0
        super().__init__(disk.real, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        # Of all writes between two flushes some are enough.
        if self._writes % 32 == 0:
            self._disk.step("xWrite")
        self._writes += 1
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._writes = 0
        self._disk.step("xSync")


@contextmanager
def quick_disk() -> Iterator[QuickDisk]:
    """Let SQLite use a disk that never flushes, and let nothing else flush either."""
    disk = QuickDisk()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda descriptor: None)
            yield disk
    finally:
        disk.unregister()


def moments(steps: list[str]) -> list[int]:
    """Return at which steps to kill: at all, but only some of those that are SQLite's own."""
    return [at for at, name in enumerate(steps, 1) if not name.startswith("x") or at % 12 == 0]


def watched(patch: pytest.MonkeyPatch, at: int, spring: Callable[[], object] = die) -> Tripwire:
    """Return a wire across all that changes a store but SQLite's own writes: it springs at one step."""
    wire = Tripwire(patch, spring, at).watch(os, "mkdir", "replace", "fsync", "link", "unlink", "rmdir")
    wire.watch(Ledger, "begin_run", "end_run", "stop_runs")
    return wire.watch(ChangeLog, "record_actions", "intend", "set_state")


Subject = TypeVar("Subject")


def killed(disk: QuickDisk, at: int, work: Callable[[], object]) -> bool:
    """Do some work in another process that is killed at one step, and tell whether it came so far."""

    def watched_work() -> None:
        with pytest.MonkeyPatch.context() as patch:
            disk.step = watched(patch, at).step
            work()

    status = forked(watched_work)
    assert status in (0, KILLED), f"step {at}"
    return status == KILLED


def killed_at_or_before(
    disk: QuickDisk, at: int, fresh: Callable[[], Subject], work: Callable[[Subject], object]
) -> Subject:
    """Do some work in another process that is killed at one step, and return what it worked on.

    Some runs have fewer steps than others: answers of a server are written as they arrive, and leftovers of other
    processes are removed by whoever comes first. Such a run is done anew, and killed at an earlier step.
    """
    for step in range(at, 0, -3):
        subject = fresh()
        if killed(disk, step, partial(work, subject)):
            return subject
    raise AssertionError("no run was killed")


def steps_of(disk: QuickDisk, work: Callable[[], object]) -> list[str]:
    """Do some work and return its steps."""
    with pytest.MonkeyPatch.context() as patch:
        wire = watched(patch, -1)
        disk.step = wire.step
        try:
            work()
        finally:
            disk.step = lambda name: None
    return wire.steps
