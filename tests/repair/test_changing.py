"""Changing a store: whatever stops a run, every file is the old or the new one, and the next run finishes."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
import toys
from faults import (
    INTERRUPTED,
    REFUSED,
    STOPPED,
    Hold,
    fails,
    forked,
    give_up_rights,
    output_of,
    posix,
    said,
    started_command,
    untouched,
)
from harness import REPO, run
from planted_v2 import a_hot_journal
from profiles import start_application
from settled import assert_settled, take_all_back
from stand_ins import MOMENTS, FullDisk, on_disk
from toys import (
    COPIES,
    EVERYTHING,
    QuickDisk,
    change,
    contents,
    keeps,
    killed,
    library,
    moments,
    quick_disk,
    steps_of,
    undo,
    watched,
)

from regraft import identity
from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import (
    ChangesStopped,
    Interrupted,
    RegraftError,
    StoreNotWritable,
)
from regraft.ledger import ledger
from repair.changes import changesets, execution
from repair.changes import undo as undoing
from repair.changes.execution import ChangeExecutor
from repair.changes.plan import Plan, RowsChange
from repair.changes.run import Planner


@dataclass(frozen=True)
class Case:
    """A plan to be disturbed: the library before it and after it."""

    command: Planner
    whole: Path
    old: dict[str, object]
    new: dict[str, object]

    def copy(self, place: Path) -> Path:
        """Return a fresh copy of the library as it was before."""
        shutil.rmtree(place, ignore_errors=True)
        return shutil.copytree(self.whole, place)

    def holds(self, root: Path, where: object) -> None:
        """Assert that every file is the old or the new one."""
        found = contents(root)
        for name in found.keys() | self.old.keys() | self.new.keys():
            assert found.get(name) in (self.old.get(name), self.new.get(name)), (name, where)

    def ends_well(self, root: Path, where: object, *, back: bool = True) -> None:
        """Assert that the next run finishes, that nothing lies about, and (``back``) that all can be taken back."""
        change(root, self.command)
        assert contents(root) == self.new, where
        assert_settled(root, where)
        if not back:
            return
        take_all_back(root)
        assert contents(root) == self.old, where
        assert keeps(root) == set(), where


@pytest.fixture(scope="module")
def disk() -> Iterator[QuickDisk]:
    with quick_disk() as made:
        yield made


@pytest.fixture(scope="module")
def cases(disk: QuickDisk, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    place = tmp_path_factory.mktemp("cases")
    whole = library(place)
    found = {}
    for name, command in (("everything", EVERYTHING), ("copies", COPIES)):
        changed = shutil.copytree(whole, place / name)
        change(changed, command)
        found[name] = Case(command, whole, contents(whole), contents(changed))
    return found


SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"

# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@posix
@pytest.mark.parametrize("name", ["everything", "copies"])
def test_a_kill_at_any_step_leaves_every_file_old_or_new(
    cases: dict[str, Case], disk: QuickDisk, tmp_path: Path, name: str
) -> None:
    case = cases[name]
    copy = case.copy(tmp_path / "steps")
    steps = steps_of(disk, lambda: change(copy, case.command))
    for at in moments(steps):
        root = case.copy(tmp_path / "library")
        # One write more or less is a matter of ids.
        assert killed(disk, at, lambda root=root: change(root, case.command)) or at > len(steps) - 3
        where = (at, steps[at - 1])
        case.holds(root, where)
        case.ends_well(root, where, back=at % 3 == 0)


@pytest.mark.slow
@posix
def test_a_kill_of_the_real_process_at_any_moment(cases: dict[str, Case], tmp_path: Path) -> None:
    """The command itself, in a process of its own, killed from outside."""
    case = wasteful(tmp_path)
    begun = "the ledger is there"
    for number, moment in enumerate([begun, *(name for name in MOMENTS if name.startswith("what takes"))]):
        root, folder = case.copy(tmp_path / "library"), tmp_path / str(number)
        folder.mkdir()
        hold = Hold(moment, root, folder)
        with started_command("gc", str(root), *NAMED, "--yes", hold=hold) as process:
            hold.wait(process)
            os.killpg(process.pid, signal.SIGKILL)
            output_of(process)
        case.holds(root, moment)
        assert run("gc", root, *NAMED).status == 0
        assert contents(root) == case.new
        assert_settled(root, moment)
        take_all_back(root)
        assert contents(root) == case.old


#: Bodies whose unit is gone, and could be written again, go where they are named.
NAMED = [word for name in ("body", "content", "embedding") for word in ("--only", f"{name}.orphan")]


def wasteful(place: Path) -> Case:
    """Return gc of a library with waste in two indexes."""
    whole, changed = library(place / "wasteful"), place / "collected"
    for base in (toys.KB, toys.OTHER):
        with closing(sqlite3.connect(whole / "KnowledgeBase" / base / ".cherry" / "index.sqlite")) as db, db:
            db.execute("INSERT INTO embedding SELECT 'waste' || rowid, vector_blob, 0 FROM embedding")
            db.execute("INSERT INTO content VALUES (?, 'of nobody', 0)", (identity.text_hash("of nobody"),))
            db.execute("DELETE FROM search_unit WHERE rowid = 1")
    shutil.copytree(whole, changed)
    assert run("gc", changed, *NAMED).status == 0
    return Case(EVERYTHING, whole, contents(whole), contents(changed))


# --- what stops a run ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(cases: dict[str, Case], tmp_path: Path) -> Path:
    return shutil.copytree(cases["everything"].whole, tmp_path / "library")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["everything", "copies"])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(errno.ENOSPC, "No space left on device"), ChangesStopped), (KeyboardInterrupt(), Interrupted)],
)
def test_an_error_at_any_step_leaves_every_file_old_or_new(
    cases: dict[str, Case], disk: QuickDisk, tmp_path: Path, name: str, error: BaseException, kind: type[RegraftError]
) -> None:
    case = cases[name]

    def fail() -> None:
        raise error

    copy = case.copy(tmp_path / "steps")
    steps = steps_of(disk, lambda: change(copy, case.command))
    for at in moments(steps)[::5]:
        root = case.copy(tmp_path / "library")
        with pytest.MonkeyPatch.context() as patch:
            wire = watched(patch, at, fail)
            disk.step = wire.step
            try:
                # The very first step, and the last, are nobody's but the caller's.
                with pytest.raises((kind, StoreNotWritable, KeyboardInterrupt)):
                    change(root, case.command)
            finally:
                disk.step = lambda name: None
        case.holds(root, (at, steps[at - 1]))
        case.ends_well(root, (at, steps[at - 1]))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("room", range(1, 15, 2))
def test_a_full_disk_changes_nothing(cases: dict[str, Case], tmp_path: Path, room: int) -> None:
    case = wasteful(tmp_path)
    root = case.copy(tmp_path / "library")
    with on_disk(FullDisk(room)):
        message = run("gc", root, *NAMED, "--json").document["error"]
    assert message["exit_status"] in (REFUSED, STOPPED)
    case.holds(root, room)
    assert run("gc", root, *NAMED).status == 0
    assert contents(root) == case.new


def test_a_full_disk_while_a_changeset_is_written_changes_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(store)

    def full(file: object) -> object:
        def write(part: memoryview) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        return write

    monkeypatch.setattr(changesets, "_writer", full)
    with fails("ChangesStopped", STOPPED, match="No space left"):
        change(store)
    assert contents(store) == before
    assert keeps(store) == set()


def test_damage_that_shows_after_the_first_change_is_no_reason_to_run_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, opened = contents(store), changesets._writer, []

    def damaged_next(file: Any) -> Any:
        opened.append(file)
        if len(opened) > 1:
            raise apsw.CorruptError("database disk image is malformed")
        return real(file)

    with monkeypatch.context() as patch:
        patch.setattr(changesets, "_writer", damaged_next)
        stopped = r"stopped at damaged data \(database disk .*changes made: 1\).*regraft undo"
        with fails("StoppedAtDamage", STOPPED, match=stopped):
            change(store)
    assert contents(store) != before
    assert run("undo", store, "--yes").status == 0
    assert contents(store) == before


def test_what_the_system_refused_is_said_with_its_path(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/store/raw")

    monkeypatch.setattr(changesets, "_writer", refused)
    with fails("ChangesStopped", STOPPED, match=r"stopped: /store/raw: Permission denied\. Every file is intact"):
        change(store)


def test_too_little_space_is_told_before(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(store)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with unwritten(store), fails("NotEnoughSpace"):
        change(store)


@pytest.mark.parametrize(
    ("more", "changed", "whole"),
    [
        # The changed rows, which the journal holds once more.
        ({"bytes": 3000}, 2, 0),
        # The full-text index is written again.
        ({"bytes": 3000, "bodies": True}, 0, 2),
        ({"bytes": 3000, "backup": True}, 2, 1),
        ({"bytes": changesets.LARGEST_CHANGESET}, 2, 0),
        ({"bytes": changesets.LARGEST_CHANGESET + 1}, 0, 2),
    ],
)
def test_the_space_that_a_change_of_rows_takes(
    more: dict[str, int], changed: int, whole: int, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = rows_change(store, toys.INDEX, ("meta",), "UPDATE meta SET updated_at = 5", **more)
    # The ledger takes a megabyte at most.
    needed = (1 << 20) + changed * more["bytes"] + whole * (store / toys.INDEX).stat().st_size
    usage = shutil.disk_usage(store)
    for free, refusal in ((needed - 1, "NotEnoughSpace"), (needed, "Declined")):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        with unwritten(store), fails(refusal):
            change(store, command, show_plan=lambda _: False)


@contextmanager
def unwritten(store: Path) -> Iterator[None]:
    """Assert that nothing in a store is written, and that nothing is left in it."""
    with untouched(*store.iterdir()):
        yield
    assert not (store / ".regraft").exists()


HELD = {
    "a writer": ("DELETE", "BEGIN IMMEDIATE"),
    "a writer in WAL mode": ("WAL", "BEGIN IMMEDIATE"),
    "a reader": ("DELETE", "BEGIN; SELECT * FROM meta"),
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("command", [toys.planner(toys.bodies), COPIES])
def test_a_database_in_use_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch, held: str, command: Planner
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    mode, statements = HELD[held]
    before = contents(store)
    with closing(apsw.Connection(str(store / toys.INDEX))) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        reading = other.execute(statements)
        assert reading.fetchone() or mode
        with fails("StoreBusy"):
            change(store, command)
        assert contents(store) == before
    assert keeps(store) == set()
    change(store, command)
    assert contents(store) != before


def test_a_later_database_in_use_stops_a_run_that_changed_something(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    # It was free when all files were asked for.
    monkeypatch.setattr(ChangeExecutor, "demand_free", lambda *_: None)
    with closing(apsw.Connection(str(store / toys.CATALOG))) as other:
        other.execute("BEGIN IMMEDIATE")
        with fails(
            "ChangesStopped",
            STOPPED,
            match=r"another program has it open for writing.*again\. Every file is intact.*so far: 1",
        ):
            change(store)
    change(store)
    assert [run.status for run in undoing.list_past_runs(store)] == ["finished", "stopped"]


@posix
def test_a_read_only_file_or_folder_is_refused(cases: dict[str, Case]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = shutil.copytree(cases["everything"].whole, Path(folder, "library"))
        for read_only, command in (
            (root / toys.INDEX, toys.planner(toys.bodies)),
            (root / toys.INDEX, COPIES),
            (root, COPIES),
        ):
            for path in (root, *root.rglob("*")):
                path.chmod(0o777)
            read_only.chmod(0o555)
            assert forked(lambda command=command: refused_as_nobody(root, command)) == 0


def refused_as_nobody(root: Path, command: Planner) -> None:
    give_up_rights()
    with unwritten(root), fails("StoreNotWritable"):
        change(root, command)


def test_what_is_not_changed_in_place_is_refused(store: Path, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "library"), "zip", store))
    with untouched(tmp_path):
        for path in (SAMPLE, archive):
            for command in ("gc", "undo", "history"):
                said(run(command, path, "--json"), "NotChanged", REFUSED)
        said(run("gc", store, "--base", "none", "--json"), "BaseUnknown", REFUSED)


def test_a_profile_in_use_is_not_changed(store: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    (profile / "Data").mkdir(parents=True)
    (store / "KnowledgeBase").rename(profile / "Data" / "KnowledgeBase")
    (store / toys.CATALOG).rename(profile / "cherrystudio.sqlite")
    toys.write(next(profile.rglob("index.sqlite")), "INSERT INTO embedding VALUES ('waste', zeroblob(32), 0)")
    assert run("gc", profile).status == 0
    start_application(profile)
    with untouched(profile):
        for command in ("gc", "undo"):
            said(run(command, profile, "--json"), "ApplicationOpen", REFUSED)
        assert run("undo", profile, "--dry-run").status == 0
        assert run("history", profile).status == 0


def test_regrafts_own_folder_may_be_no_file(store: Path) -> None:
    (store / ".regraft").write_text("x")
    with untouched(store):
        with pytest.raises(FileExistsError) as taken:
            (store / ".regraft").mkdir()
        with fails("StoreNotWritable", match=re.escape(taken.value.strerror)):
            change(store)
        assert run("history", store).stdout == "No runs.\n"


def test_another_run_keeps_this_one_out(store: Path) -> None:
    change(store, toys.planner(toys.renamed))
    with untouched(store), ledger.open_exclusive(store), fails("TargetLocked"):
        change(store)


def test_an_own_folder_on_another_disk_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def across(source: Path, target: Path, **_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    before = contents(store)
    for part in (toys.another_index, toys.a_file(toys.NEW_FILE, "x"), toys.gone(toys.OLD_FOLDER)):
        with monkeypatch.context() as patch, fails("StoreOnTwoDisks"):
            patch.setattr(os, "replace", across)
            patch.setattr(os, "link", across)
            change(store, toys.planner(part))
        assert contents(store) == before
        assert not (store / toys.NEW_FILE).parent.parent.exists()
        assert keeps(store) == set()


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("number", [errno.EPERM, pytest.param(errno.ENOTSUP, marks=pytest.mark.slow)])
def test_a_file_system_without_hard_links(
    cases: dict[str, Case], disk: QuickDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: Path, target: Path, **_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    case = cases["copies"]
    copy = case.copy(tmp_path / "steps")
    steps = steps_of(disk, lambda: change(copy, case.command))
    for at in (at for at, name in enumerate(steps, 1) if name in ("replace", "set_state")):
        root = case.copy(tmp_path / "library")
        assert killed(disk, at, lambda root=root: change(root, case.command))
        case.ends_well(root, at)


def test_what_another_program_put_there_meanwhile_stays_and_so_does_what_was_there(
    store: Path, disk: QuickDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path, **_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    # Without links the index is away for a moment, between two moves.
    command = toys.planner(toys.another_index)
    copy = shutil.copytree(store, store.with_name("steps"))
    steps = steps_of(disk, lambda: change(copy, command))
    _, at = (at for at, name in enumerate(steps, 1) if name == "replace")
    whole = (store / toys.INDEX).read_bytes()
    assert killed(disk, at, lambda: change(store, command))
    (store / toys.INDEX).write_text("theirs")
    with ledger.open_exclusive(store) as book:
        execution.recover(store, book)
    assert (store / toys.INDEX).read_text("utf-8") == "theirs"
    (kept,) = keeps(store)
    assert (store / ".regraft" / kept).read_bytes() == whole


# --- folders ---------------------------------------------------------------------------------------------------------

OLD_INDEX = f"{toys.OLD_FOLDER}/.cherry/index.sqlite"


@pytest.mark.thorough
def test_a_folder_takes_the_place_of_another_as_a_whole(store: Path, disk: QuickDisk) -> None:
    command = toys.planner(toys.another_folder)
    before = contents(store)
    copy = shutil.copytree(store, store.with_name("steps"))
    steps = steps_of(disk, lambda: change(copy, command))
    after = contents(copy)
    assert after.keys() - before.keys() == {f"{toys.OLD_FOLDER}/more.txt"}
    for at in (at for at, name in enumerate(steps, 1) if name in ("replace", "set_state", "intend")):
        root = shutil.copytree(store, store.with_name(f"at-{at}"))
        assert killed(disk, at, lambda root=root: change(root, command))
        change(root, command)
        assert contents(root) == after, at
        undo(root)
        assert contents(root) == before, at


def test_a_folder_is_not_replaced_while_a_database_in_it_is_in_use(store: Path) -> None:
    with closing(apsw.Connection(str(store / OLD_INDEX))) as other:
        other.execute("BEGIN IMMEDIATE")
        before = contents(store)
        with fails("StoreBusy"):
            change(store, toys.planner(toys.another_folder))
        other.execute("ROLLBACK")
    assert contents(store) == before
    change(store, toys.planner(toys.another_folder))
    with closing(apsw.Connection(str(store / OLD_INDEX))) as other:
        other.execute("BEGIN IMMEDIATE")
        with fails("StoreBusy"):
            undo(store)
    assert (store / toys.OLD_FOLDER / "more.txt").exists()
    undo(store)


def test_a_folder_whose_database_was_written_to_meanwhile_is_not_replaced(store: Path) -> None:
    def meanwhile(_: dict[str, Any]) -> bool:
        toys.write(store / OLD_INDEX, "UPDATE meta SET updated_at = 77")
        return True

    with fails("PlanOutdated"):
        change(store, toys.planner(toys.another_folder), show_plan=meanwhile)
    assert toys.value(store, OLD_INDEX, "SELECT updated_at FROM meta") == 77
    assert not (store / toys.OLD_FOLDER / "more.txt").exists()


def test_what_a_log_has_goes_into_the_copy_of_a_folder(store: Path) -> None:
    other = apsw.Connection(str(store / OLD_INDEX))
    other.execute("PRAGMA journal_mode = WAL")
    other.execute("UPDATE meta SET updated_at = 77")
    copy = shutil.copytree(store, store.with_name("copy"))
    other.close()
    assert untrusted_sqlite.find_companions(copy / OLD_INDEX)
    change(copy, toys.planner(toys.another_folder))
    assert not untrusted_sqlite.find_companions(copy / OLD_INDEX)
    assert toys.value(copy, OLD_INDEX, "SELECT updated_at FROM meta") == 77


# --- how rows are changed --------------------------------------------------------------------------------------------


def rows_change(store: Path, path: str, tables: tuple[str, ...], *statements: str, **more: int) -> Planner:
    return lambda _: Plan(
        [RowsChange(path=path, actions=toys.done("rows"), apply=toys.sql(*statements), tables=tables, **more)]
    )


def kept_as(store: Path) -> list[str]:
    with ledger.open_exclusive(store) as book:
        return [change.means for change in book.changes.every()]


def test_what_no_changeset_can_hold_is_done_on_a_copy(store: Path) -> None:
    toys.write(store / toys.INDEX, "INSERT INTO content VALUES (NULL, 'no key', 0)")
    before = contents(store)
    change(store, rows_change(store, toys.INDEX, ("content",), "DELETE FROM content WHERE content_hash IS NULL"))
    assert toys.value(store, toys.INDEX, "SELECT count(*) FROM content WHERE content_hash IS NULL") == 0
    assert kept_as(store) == ["file"]
    undo(store)
    assert contents(store) == before


def test_what_a_changeset_cannot_take_back_is_done_on_a_copy(store: Path) -> None:
    toys.write(store / toys.CATALOG, "CREATE TABLE plain (key TEXT PRIMARY KEY)", "INSERT INTO plain VALUES ('a')")
    before = contents(store)
    statements = ("INSERT INTO plain VALUES ('b')", "ALTER TABLE plain ADD COLUMN more", "UPDATE plain SET more = 1")
    change(store, rows_change(store, toys.CATALOG, ("plain",), *statements))
    assert toys.value(store, toys.CATALOG, "SELECT sum(more) FROM plain") == 2
    assert kept_as(store) == ["file"]
    undo(store)
    assert contents(store) == before


def test_what_a_foreign_key_without_a_table_keeps_from_being_taken_back_is_done_on_a_copy(store: Path) -> None:
    table = "CREATE TABLE plain (key TEXT PRIMARY KEY, note TEXT, other TEXT REFERENCES gone (id))"
    toys.write(store / toys.CATALOG, table, "INSERT INTO plain VALUES ('a', 'old', NULL)")
    before = contents(store)
    change(store, rows_change(store, toys.CATALOG, ("plain",), "UPDATE plain SET note = 'new'"))
    assert toys.value(store, toys.CATALOG, "SELECT note FROM plain") == "new"
    assert kept_as(store) == ["file"]
    undo(store)
    assert contents(store) == before


def test_a_changeset_that_fails_its_proof_is_not_relied_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(store)
    monkeypatch.setattr(changesets, "verify_revert", lambda db, changeset: None)
    change(store, toys.planner(toys.bodies))
    assert kept_as(store) == ["file"]
    undo(store)
    assert contents(store) == before


def test_a_large_change_is_done_on_a_copy_and_keeps_permissions(store: Path) -> None:
    (store / toys.CATALOG).chmod(0o640)
    change(store, toys.planner(toys.renamed_on_copy))
    assert kept_as(store) == ["file"]
    assert (store / toys.CATALOG).stat().st_mode & 0o777 == (0o640 if os.name != "nt" else 0o666)


def test_a_log_is_part_of_what_is_changed(store: Path, tmp_path: Path) -> None:
    """An application that was killed leaves rows in its log."""
    for command in (toys.planner(toys.bodies), COPIES):
        root = tmp_path / f"killed-{id(command)}"
        with closing(sqlite3.connect(store / toys.INDEX)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("INSERT OR REPLACE INTO content VALUES ('logged', 'in the log', 0)")
            db.commit()
            shutil.copytree(store, root)
        assert (root / f"{toys.INDEX}-wal").stat().st_size > 0
        old = contents(root)
        change(root, command)
        assert toys.value(root, toys.INDEX, "SELECT count(*) FROM content WHERE content_hash = 'logged'") == 1
        undo(root)
        assert contents(root) == old


def test_an_unfinished_transaction_is_rolled_back_first(store: Path) -> None:
    old = contents(store)
    a_hot_journal(store)
    change(store, toys.planner(toys.bodies, toys.renamed))
    undo(store)
    assert contents(store) == old


@pytest.mark.parametrize("by", ["a row", "a row in the log", "another program's file", "its end"])
def test_what_was_written_to_since_it_was_planned_is_not_changed(store: Path, by: str) -> None:
    def meanwhile(_: dict[str, Any]) -> bool:
        path = store / toys.INDEX
        if by == "its end":
            path.unlink()
        elif by == "another program's file":
            path.unlink()
            sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
        else:
            others.append(apsw.Connection(str(path)))
            others[0].execute(f"PRAGMA journal_mode = {'WAL' if 'log' in by else 'DELETE'}")
            others[0].execute("UPDATE meta SET updated_at = 77")
        return True

    others: list[apsw.Connection] = []
    with fails("PlanOutdated"):
        change(store, toys.planner(toys.another_index), show_plan=meanwhile)
    for other in others:
        assert other.execute("SELECT updated_at FROM meta").fetchall() == [(77,)]
        other.close()


@pytest.mark.thorough
def test_memory_does_not_grow_with_what_is_changed(store: Path) -> None:
    toys.write(
        store / toys.CATALOG,
        "CREATE TABLE big (key INTEGER PRIMARY KEY, value BLOB)",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000)"
        " INSERT INTO big SELECT i, zeroblob(4000) FROM n",
    )
    command = rows_change(store, toys.CATALOG, ("big",), "DELETE FROM big", bytes=120_000_000)
    assert forked(lambda: change_within(store, command, 60 << 20)) == 0
    assert kept_as(store) == ["file"]
    assert forked(lambda: change_within(store, None, 60 << 20)) == 0
    assert toys.value(store, toys.CATALOG, "SELECT count(*) FROM big") == 30_000


def change_within(store: Path, command: Planner | None, more: int) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    undo(store) if command is None else change(store, command)
    used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert used < more, used


# --- nothing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [EVERYTHING, COPIES])
def test_a_dry_run_writes_nothing(store: Path, command: Planner) -> None:
    with untouched(store):
        planned = change(store, command, dry_run=True)
    assert not (store / ".regraft").exists()
    done = change(store, command)
    assert planned["actions"] == done["actions"]


def test_what_is_declined_writes_nothing(store: Path) -> None:
    with unwritten(store), fails("Declined"):
        change(store, show_plan=lambda planned: False)


def test_an_interrupted_question_writes_nothing(store: Path) -> None:
    def interrupt(_: object) -> bool:
        raise KeyboardInterrupt

    with unwritten(store), fails("Interrupted", INTERRUPTED):
        change(store, show_plan=interrupt)


def test_a_second_run_has_nothing_to_do(store: Path) -> None:
    change(store)
    with untouched(store):
        assert change(store)["actions"] == []


def test_a_plan_changes_a_file_once(store: Path) -> None:
    with unwritten(store), pytest.raises(ValueError, match="changes one path twice"):
        change(store, toys.planner(toys.renamed, toys.renamed_on_copy))


@pytest.mark.parametrize("error", [apsw.CorruptError("malformed"), PermissionError(13, "Permission denied")])
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_cannot_be_looked_at_is_said_in_one_line(store: Path, error: Exception, dry_run: bool) -> None:
    def failing(_: object) -> Plan:
        raise error

    with unwritten(store), fails("SourceUnreadable"):
        change(store, failing, dry_run=dry_run)


def test_what_is_not_mended_is_taken_back(store: Path) -> None:
    toys.write(store / toys.INDEX, "INSERT INTO embedding VALUES ('waste', zeroblob(32), 0)")
    before = contents(store)
    plan = Plan(
        [
            RowsChange(
                path=toys.CATALOG,
                actions=toys.done("x"),
                apply=toys.sql("UPDATE knowledge_base SET name = 'x'"),
                tables=("knowledge_base",),
            )
        ],
        resolves={("embedding.orphan", toys.KB)},
    )
    with fails("NotMended", STOPPED, match=r"embedding\.orphan"):
        change(store, lambda _: plan)
    assert contents(store) == before
    assert keeps(store) == set()
    assert [(one.status, one.undo.state) for one in undoing.list_past_runs(store)] == [("stopped", "undone")]
