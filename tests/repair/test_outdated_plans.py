"""What another program does between the plan and the change: the run is refused, and nothing of that is overwritten."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import toys
from faults import fails
from harness import NOW, NOW_MS, run
from planted_rsclaw import planted
from toys import INDEX, change, contents, undo
from whole_rsclaw import FULL_TEXT, full_text

import regraft
from regraft.disk import sqlite, writable
from repair.changes import files
from repair.changes.files import copy_database
from repair.changes.plan import Action, Change, FileChange, Plan, Reclaim
from repair.changes.run import ChangeReport, shrink_file
from repair.changes.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return toys.library(tmp_path)


def bytes_of(root: Path) -> dict[str, bytes]:
    """Return every file of a store but regraft's own."""
    files_there = (path for path in sorted(root.rglob("*")) if path.is_file())
    named = {path.relative_to(root).as_posix(): path for path in files_there}
    return {name: path.read_bytes() for name, path in named.items() if not name.startswith(".regraft/")}


def on_a_copy(other_program: Any) -> Any:
    """Return a command that puts a changed copy of an index into its place; another program acts while it is made."""

    def changes(store: Store) -> list[Change]:
        def make(new: Path) -> None:
            copy_database(store.root / INDEX, new)
            with sqlite.open_writable(new) as db:
                db.execute("UPDATE meta SET updated_at = 5")
            other_program(store.root / INDEX)

        return [FileChange(path=INDEX, actions=toys.done("another index"), make=make, bytes=1000)]

    return toys.planner(changes)


def test_a_file_that_is_written_to_while_its_copy_is_made_is_not_replaced(store: Path) -> None:
    def write(path: Path) -> None:
        toys.write(path, "UPDATE meta SET updated_at = 77")

    with fails("PlanOutdated", match="it was changed in the meantime"):
        change(store, on_a_copy(write))
    assert toys.value(store, INDEX, "SELECT updated_at FROM meta") == 77
    assert not (store / ".regraft" / "undo").exists()


def test_a_file_that_is_opened_for_a_transaction_while_its_copy_is_made_is_not_replaced(store: Path) -> None:
    """The transaction would go to a file that has another name by then, and be lost."""
    others: list[apsw.Connection] = []

    def begin(path: Path) -> None:
        others.append(apsw.Connection(str(path)))
        others[0].execute("BEGIN IMMEDIATE")
        others[0].execute("UPDATE meta SET updated_at = 77")

    with fails("StoreBusy"):
        change(store, on_a_copy(begin))
    with closing(others[0]):
        others[0].execute("COMMIT")
    assert toys.value(store, INDEX, "SELECT updated_at FROM meta") == 77


def test_a_file_that_is_read_with_a_log_while_its_copy_is_made_is_not_replaced(store: Path) -> None:
    """The reader would go on with the log of the old file beside the new one."""
    others: list[apsw.Connection] = []
    toys.write(store / INDEX, "PRAGMA journal_mode = WAL")

    def read(path: Path) -> None:
        others.append(apsw.Connection(str(path)))
        others[0].execute("BEGIN")
        assert others[0].execute("SELECT * FROM meta").fetchone()

    before = contents(store)
    with fails("StoreBusy"):
        change(store, on_a_copy(read))
    others[0].close()
    assert contents(store) == before


@pytest.mark.parametrize("beside", ["", "-wal", "-journal"])
def test_a_damaged_file_is_replaced_and_no_log_of_it_is_applied_to_the_new_one(beside: str, store: Path) -> None:
    damaged = b"SQLite format 3\0" + bytes(range(256)) * 16
    (store / INDEX).write_bytes(damaged)
    if beside:
        magic = {"-wal": "377f0682", "-journal": "d9d505f920a163d7"}[beside]
        (store / f"{INDEX}{beside}").write_bytes(bytes.fromhex(magic) + bytes(508))

    def replaced(store: Store) -> list[Change]:
        def make(new: Path) -> None:
            new.write_bytes(b"new")

        return [FileChange(path=INDEX, actions=toys.done("a new index"), make=make, bytes=10)]

    run_id = change(store, toys.planner(replaced))["undo"]
    assert [path.name for path in (store / INDEX).parent.iterdir()] == ["index.sqlite"]
    assert (store / INDEX).read_bytes() == b"new"
    undo(store, run_id)
    assert (store / INDEX).read_bytes() == damaged


def test_an_undo_whose_plan_is_outdated_is_refused(tmp_path: Path) -> None:
    """The application rebuilds a cache after the person saw what the undo restores."""
    store = planted(tmp_path / "kb", "a full text index of more texts", "a snapshot of an unknown chunk")
    old = (store.root / FULL_TEXT).read_bytes()
    assert run("reconcile", store.root, "--now", NOW).status == 0
    seen: list[Any] = []

    def rebuild(report: Any) -> bool:
        seen.append([one.subject for one in report.actions])
        full_text(store)
        return True

    with fails("PlanOutdated", match="it was changed in the meantime"):
        undo(store.root, show_plan=rebuild)
    assert seen
    assert seen[0]
    new = (store.root / FULL_TEXT).read_bytes()
    assert new != old
    # Nothing was undone: with a new plan, the cache of the application stays and the undo says so.
    done = undo(store.root)
    assert [one["subject"] for one in done["left"]] == ["idx/tantivy"]
    assert (store.root / FULL_TEXT).read_bytes() == new


def test_a_plan_is_refused_if_a_file_that_it_was_made_from_is_written_to_before_the_change(tmp_path: Path) -> None:
    """The application names a file again that nothing named when the person saw the plan."""
    store = planted(tmp_path / "kb", "a file that nothing names")
    shown: list[ChangeReport] = []

    def write(report: ChangeReport) -> bool:
        shown.append(report)
        os.utime(store.root / "kb.redb", ns=(1, 1))
        return True

    before = bytes_of(store.root)
    with fails("PlanOutdated", match="kb.redb.*it was changed in the meantime"):
        regraft.gc(store.root, only=["kb.file-orphan"], now_ms=NOW_MS, confirm=write)
    assert [action.action for action in shown[0].actions] == ["trash-file"]
    assert bytes_of(store.root) == before


def test_two_plans_become_one_with_all_that_either_does() -> None:
    """Also what each was made from: a run is refused if a file of either plan was changed since."""
    one, other, both = plan_of("a"), plan_of("b"), Plan()
    both.add(one)
    both.add(other)
    for name in ("changes", "left", "expired", "expiring", "reclaims", "salvaged"):
        assert getattr(both, name) == getattr(one, name) + getattr(other, name), name
    for name in ("resolves", "new_bases", "read", "bodies"):
        assert getattr(both, name) == getattr(one, name) | getattr(other, name), name


def plan_of(name: str) -> Plan:
    """Return a plan with something of each kind."""
    made: Any = name
    return Plan(
        changes=[made],
        left=[made],
        expired=[made],
        expiring=[made],
        reclaims=[made],
        salvaged=[made],
        resolves={("finding", name)},
        new_bases={name: frozenset()},
        read={name: (1, 2, 3)},
        bodies={name: lambda: iter(())},
    )


@pytest.mark.parametrize("fingerprint", [files.fingerprint, files.bytes_fingerprint])
@pytest.mark.parametrize("name", [INDEX, toys.RAW, f"{toys.RAW}/a.txt", "missing"])
def test_a_later_change_is_recognized_by_either_fingerprint(store: Path, fingerprint: Any, name: str) -> None:
    path = store / name
    mark = fingerprint(path)
    assert not files.is_changed(path, mark)
    if name == INDEX:
        toys.write(path, "UPDATE meta SET updated_at = 77")
    elif path.is_dir():
        (path / "a.txt").write_text("another text")
    else:
        path.write_text("another text")
    assert files.is_changed(path, mark)
    assert not files.is_changed(path, fingerprint(path))


def test_an_index_that_another_program_holds_is_not_shrunk(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 1)
    before = (store / INDEX).read_bytes()
    with closing(apsw.Connection(str(store / INDEX))) as other:
        other.execute("BEGIN IMMEDIATE")
        action = Action(action="vacuum", message="shrink it", subject=INDEX, bytes=1)
        with fails("StoreBusy", match="index.sqlite"), writable.allow_writes(store):
            shrink_file(store, Reclaim(INDEX, action, len(before)))
    assert (store / INDEX).read_bytes() == before
