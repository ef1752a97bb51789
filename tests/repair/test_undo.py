"""Taking a run back: only where nobody changed what it changed, whole, and exactly; and what the history says."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
import toys
from faults import REFUSED, STOPPED, fails, line, links, posix, said, untouched
from harness import run
from settled import assert_settled, take_all_back
from toys import (
    CATALOG,
    COPIES,
    EVERYTHING,
    INDEX,
    NEW_FILE,
    NEW_FOLDER,
    OLD_FOLDER,
    RAW,
    QuickDisk,
    a_file,
    change,
    contents,
    keeps,
    killed,
    library,
    moments,
    named,
    planner,
    quick_disk,
    renamed,
    sql,
    steps_of,
    undo,
    write,
)

from regraft import identity
from regraft.identity import replace
from regraft.ledger import ledger
from repair.changes import execution
from repair.changes import undo as undoing
from repair.changes.plan import Plan, RowsChange
from repair.changes.store import Store


@pytest.fixture(scope="module")
def disk() -> Iterator[QuickDisk]:
    with quick_disk() as made:
        yield made


@pytest.fixture(scope="module")
def whole(disk: QuickDisk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "library")


def states(root: Path) -> list[str]:
    return [f"{run.command} {run.undo.state}" for run in undoing.list_past_runs(root)]


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@posix
@pytest.mark.parametrize("command", [EVERYTHING, COPIES])
@pytest.mark.parametrize("every", [7, pytest.param(2, marks=pytest.mark.slow)])
def test_an_undo_that_is_killed_at_any_step_is_finished_by_the_next(
    whole: Path, disk: QuickDisk, tmp_path: Path, command: Any, every: int
) -> None:
    changed = shutil.copytree(whole, tmp_path / "changed")
    old = contents(changed)
    change(changed, command)
    new = contents(changed)
    copy = shutil.copytree(changed, tmp_path / "steps")
    steps = steps_of(disk, lambda: undo(copy))
    root = tmp_path / "library"
    for at in moments(steps)[::every]:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(changed, root)
        # One write more or less is a matter of ids.
        assert killed(disk, at, lambda: undo(root)) or at > len(steps) - 3
        found = contents(root)
        for name in found.keys() | old.keys() | new.keys():
            assert found.get(name) in (old.get(name), new.get(name)), (name, at, steps[at - 1])
        take_all_back(root)
        assert contents(root) == old, (at, steps[at - 1])
        change(root, planner())
        assert_settled(root, at)
        assert keeps(root) == set(), (at, steps[at - 1])


class Killed(BaseException):
    """Ends a run in this process as a kill does: nothing is settled."""


def after(work: Any, error: type[BaseException]) -> Any:
    """Return a function that does some work, and fails after the first time."""
    failures = [error]

    def failing(*args: Any) -> None:
        work(*args)
        if failures:
            raise failures.pop()

    return failing


@pytest.mark.parametrize(
    ("name", "error"),
    [("_undo_file", KeyboardInterrupt), ("undo_changes", KeyboardInterrupt), ("_undo_file", Killed)],
)
def test_an_undo_that_was_stopped_at_its_last_change_does_not_undo_an_earlier_run_as_well(
    store: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: type[BaseException]
) -> None:
    path = store / RAW / "a.txt"
    old = path.read_bytes()
    _, latest = (change(store, planner(a_file(f"{RAW}/a.txt", text)))["undo"] for text in ("first", "second"))
    monkeypatch.setattr(undoing, name, after(getattr(undoing, name), error))
    if error is Killed:
        with pytest.raises(Killed):
            undo(store)
    done = run("undo", store, "--yes", "--json")
    assert (done.status, done.document["undone"], path.read_bytes()) == (0, latest, b"first")
    assert run("undo", store, "--yes").status == 0
    assert path.read_bytes() == old


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("first", [0.6, *(pytest.param(part, marks=pytest.mark.slow) for part in (0.3, 0.9))])
def test_a_recovery_that_is_killed_again_and_again_comes_to_an_end(
    store: Path, disk: QuickDisk, tmp_path: Path, first: float
) -> None:
    old = contents(store)
    copy = shutil.copytree(store, tmp_path / "steps")
    steps = steps_of(disk, lambda: change(copy))
    assert killed(disk, int(len(steps) * first), lambda: change(store))
    # Each run is killed a little later than the one before it, on what that one left.
    at = 1
    while killed(disk, at, lambda: change(store)):
        at += 12
    assert_settled(store, first)
    at = 1
    while killed(disk, at, lambda: take_all_back(store)):
        at += 12
    assert contents(store) == old
    change(store, planner())
    assert keeps(store) == set()


# --- what is taken back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [EVERYTHING, COPIES])
def test_undo_brings_back_every_row_and_file(store: Path, command: Any) -> None:
    old = contents(store)
    done = change(store, command)
    assert contents(store) != old
    taken = undo(store, done["undo"])
    assert taken["undone"] == done["undo"]
    assert [action["message"] for action in taken["actions"]] == [
        f"undo: {action['message']}" for action in done["actions"]
    ]
    assert contents(store) == old
    assert [path.name for path in (store / ".regraft").iterdir()] == ["ledger.sqlite"]
    assert not [path for path in store.rglob("*") if path.is_dir() and not any(path.iterdir())]


def test_a_run_and_its_undo_name_their_bases_and_actions(store: Path) -> None:
    def no_base(store: Store) -> Plan:
        plan = toys.planner(toys.renamed, toys.gone(f"{toys.RAW}/b.txt"))(store)
        first = replace(plan.changes[0], actions=(replace(plan.changes[0].actions[0], base=None),))
        return replace(plan, changes=[first, *plan.changes[1:]])

    done = change(store, no_base)
    assert [(one["base"], one["message"]) for one in done["actions"]] == [
        (None, "call them renamed"),
        (toys.KB, f"remove {toys.RAW}/b.txt"),
    ]
    assert [one["id"] for one in done["bases"]] == [toys.KB]
    with untouched(store):
        planned = undo(store, dry_run=True)
    assert (planned["undone"], planned["undo"], planned["left"]) == (done["undo"], None, [])
    assert [(one["base"], one["message"]) for one in planned["actions"]] == [
        (None, "undo: call them renamed"),
        (toys.KB, f"undo: remove {toys.RAW}/b.txt"),
    ]
    assert [one["id"] for one in planned["bases"]] == [toys.KB]
    taken_back = undo(store)
    for key in ("actions", "bases", "left", "undone", "undo"):
        assert taken_back[key] == planned[key]


def test_a_run_is_taken_back_once(store: Path) -> None:
    done = change(store)
    undo(store)
    for run_id in (done["undo"], None, "20200101T000000Z-000000"):
        with fails("RunUnknown"):
            undo(store, run_id)


def test_a_run_is_meant_by_its_id_the_start_of_it_or_its_end(store: Path) -> None:
    before = contents(store)
    with fails("RunUnknown", match="there is no run to undo"):
        undo(store)
    first = change(store, planner(named("one")))["undo"]
    assert undo(store, first[:-1])["undone"] == first
    second = change(store, planner(named("two")))["undo"]
    third = change(store, planner(toys.gone(f"{RAW}/b.txt")))["undo"]
    after = contents(store)
    for run_id, problem in (
        ("2", "several run ids start with 2"),
        ("nobody", "there is no run nobody"),
        (first, f"run {first} cannot be undone"),
    ):
        for dry_run in (True, False):
            with fails("RunUnknown", match=problem):
                undo(store, run_id, dry_run=dry_run)
    assert contents(store) == after
    assert undo(store, second.rpartition("-")[2])["undone"] == second
    assert undo(store, third)["undone"] == third
    assert contents(store) == before


def test_runs_are_taken_back_latest_first(store: Path) -> None:
    states_before = []
    for name in ("one", "two", "three"):
        states_before.append(contents(store))
        change(store, planner(named(name)))
    for before in reversed(states_before):
        undo(store)
        assert contents(store) == before


def test_an_earlier_run_goes_where_later_ones_changed_other_rows(store: Path) -> None:
    old = contents(store)
    rows = RowsChange(
        path=CATALOG,
        actions=toys.done("x"),
        apply=sql("UPDATE knowledge_item SET updated_at = 7"),
        tables=("knowledge_item",),
        bytes=1,
    )
    first, second = change(store, planner(renamed)), change(store, lambda _: Plan([rows]))
    undo(store, first["undo"])
    assert contents(store)[CATALOG]["knowledge_base"] == old[CATALOG]["knowledge_base"]  # type: ignore[index]
    undo(store, second["undo"])
    assert contents(store) == old


def test_rows_that_others_wrote_stay(store: Path) -> None:
    change(store, planner(toys.bodies))
    write(store / INDEX, "INSERT INTO content VALUES ('theirs', 'their text', 9)")
    before = toys.value(store, INDEX, "SELECT count(*) FROM search_text")
    undo(store)
    assert toys.value(store, INDEX, "SELECT text FROM content WHERE content_hash = 'theirs'") == "their text"
    assert toys.value(store, INDEX, "SELECT count(*) FROM search_text") == int(str(before)) + 1


def test_references_that_led_nowhere_before_do_so_again(store: Path) -> None:
    write(store / INDEX, "UPDATE material SET current_content_hash = 'gone' WHERE rowid = 1")
    old = contents(store)
    mend = "UPDATE material SET current_content_hash = (SELECT min(content_hash) FROM content) WHERE rowid = 1"
    change(
        store,
        lambda _: Plan(
            [RowsChange(path=INDEX, actions=toys.done("mend"), apply=sql(mend), tables=("material",), bytes=1)]
        ),
    )
    undo(store)
    assert contents(store) == old


def test_a_row_that_others_refer_to_meanwhile_stays(store: Path) -> None:
    rows = RowsChange(
        path=INDEX,
        actions=toys.done("x"),
        apply=sql("INSERT INTO content VALUES ('c', 'c', 0)"),
        tables=("content",),
        bytes=1,
    )
    change(store, lambda _: Plan([rows]))
    write(store / INDEX, "UPDATE material SET current_content_hash = 'c' WHERE rowid = 1")
    with fails("UndoRefused", match="foreign keys"):
        undo(store)


def test_values_that_were_exchanged_are_exchanged_back(store: Path) -> None:
    old = contents(store)
    rows = sql(
        "UPDATE search_unit SET unit_index = unit_index + 100 WHERE material_id = (SELECT material_id FROM material LIMIT 1)",  # noqa: E501 - one statement
        "UPDATE search_unit SET unit_index = 102 - unit_index WHERE unit_index >= 100",
    )
    change(
        store,
        lambda _: Plan([RowsChange(path=INDEX, actions=toys.done("x"), apply=rows, tables=("search_unit",), bytes=1)]),
    )
    assert contents(store) != old
    undo(store)
    assert contents(store) == old


def test_triggers_of_the_application_do_not_fire_again(store: Path) -> None:
    trigger = "CREATE TRIGGER stamp AFTER UPDATE ON knowledge_base BEGIN UPDATE knowledge_base SET updated_at = updated_at + 1 WHERE id = new.id; END"  # noqa: E501 - one statement
    write(store / CATALOG, trigger)
    old = contents(store)
    change(store, planner(renamed))
    undo(store)
    assert contents(store) == old


def test_names_of_triggers_are_only_names(store: Path) -> None:
    write(
        store / CATALOG,
        'CREATE TRIGGER "x""; DROP TABLE knowledge_item; --" AFTER DELETE ON knowledge_base BEGIN SELECT 1; END',
    )
    old = contents(store)
    change(store, planner(renamed))
    undo(store)
    assert contents(store) == old


# --- what is refused -------------------------------------------------------------------------------------------------

CHANGED_SINCE = {
    "a row": lambda store: write(store / CATALOG, "UPDATE knowledge_base SET name = 'theirs'"),
    "a row that is gone": lambda store: write(store / INDEX, "DELETE FROM search_text"),
    "a file": lambda store: (store / RAW / "a.txt").write_text("theirs") and None,
    "a file that is gone": lambda store: (store / RAW / "a.txt").unlink(),
    "a new file": lambda store: (store / NEW_FILE).write_text("theirs") and None,
    "a file in a new folder": lambda store: (store / NEW_FOLDER / "raw" / "b.txt").write_text("b") and None,
    "a row in a new folder": lambda store: write(
        store / NEW_FOLDER / ".cherry" / "index.sqlite", "UPDATE meta SET updated_at = 9"
    ),
    "something where a folder was": lambda store: (store / OLD_FOLDER).mkdir(),
    "a database that is gone": lambda store: (store / CATALOG).unlink(),
    "what is kept": lambda store: shutil.rmtree(store / ".regraft" / "trash"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("what", CHANGED_SINCE)
def test_what_was_changed_since_is_not_taken_back(store: Path, what: str) -> None:
    change(store)
    CHANGED_SINCE[what](store)
    with untouched(store):
        message = said(run("undo", store, "--dry-run", "--json"), "UndoRefused", REFUSED)
    before = contents(store)
    assert message == said(run("undo", store, "--json"), "UndoRefused", REFUSED)
    assert contents(store) == before


def test_a_copy_that_was_written_to_is_not_taken_back(store: Path) -> None:
    change(store, COPIES)
    write(store / CATALOG, "UPDATE knowledge_base SET name = 'theirs'")
    with fails("UndoRefused"):
        undo(store)


def test_opening_a_database_is_no_change(store: Path) -> None:
    old = contents(store)
    change(store, COPIES)
    for name in (CATALOG, INDEX):
        with closing(sqlite3.connect(store / name)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("VACUUM")
    undo(store)
    assert contents(store) == old


def test_a_run_that_expired_cannot_be_taken_back(store: Path) -> None:
    done = change(store)
    with ledger.open_exclusive(store) as book:
        execution.expire_changes(store, book, book.changes.changes_of(done["undo"])[:1])
    assert states(store) == ["toy expired"]
    with fails("RunUnknown"):
        undo(store, done["undo"])


@links
def test_what_is_kept_is_not_taken_from_elsewhere(store: Path, tmp_path: Path) -> None:
    change(store)
    elsewhere = tmp_path / "elsewhere"
    (store / ".regraft" / "trash").rename(elsewhere)
    (store / ".regraft" / "trash").symlink_to(elsewhere)
    with untouched(elsewhere), fails("LinkInStore", match="trash"):
        undo(store)


@pytest.mark.parametrize("column", ["path", "kept"])
@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "undo/../../../elsewhere"])
def test_a_ledger_that_leads_out_of_its_store_is_refused(store: Path, tmp_path: Path, column: str, name: str) -> None:
    change(store)
    (tmp_path / "elsewhere").mkdir()
    write(store / ".regraft" / "ledger.sqlite", f"UPDATE change SET {column} = '{name}', state = 'undoing'")
    with untouched(tmp_path):
        for command in ("undo", "gc", "history"):
            said(run(command, store, "--json"), "LedgerUnreadable", REFUSED)


def test_a_ledger_in_other_words_is_refused(store: Path) -> None:
    change(store)
    write(store / ".regraft" / "ledger.sqlite", "UPDATE change SET detail = x'ff'")
    for command in ("undo", "gc", "history"):
        said(run(command, store, "--json"), "LedgerUnreadable", REFUSED)


def test_the_rest_of_an_undo_that_is_stopped_can_be_taken_back_later(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = contents(store)
    change(store)
    real, left = os.replace, [2]

    def replace(source: Any, target: Any, **handles: Any) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(5, "Input/output error")
        real(source, target, **handles)

    with monkeypatch.context() as patch, fails("ChangesStopped", STOPPED, match="so far: 3"):
        patch.setattr(os, "replace", replace)
        undo(store)
    assert states(store) == ["undo none", "toy possible"]
    undo(store)
    assert contents(store) == old


# --- ledgers of other versions ---------------------------------------------------------------------------------------


def older(store: Path) -> Path:
    """Give a store the ledger of a regraft that only migrated."""
    (store / ".regraft").mkdir()
    with ledger.open_exclusive(store) as book:
        book.begin_run("migrate", "v1", identity.new_run_id())
        book.end_run("finished")
    path = store / ".regraft" / "ledger.sqlite"
    write(path, "DROP TABLE change", "DROP TABLE action", "UPDATE ledger SET version = 1")
    return path


def test_an_older_ledger_is_read_and_then_brought_up_to_date(store: Path) -> None:
    path = older(store)
    with untouched(store):
        assert states(store) == ["migrate none"]
        with fails("RunUnknown"):
            undo(store, dry_run=True)
    change(store)
    assert states(store) == ["toy possible", "migrate none"]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT version FROM ledger").fetchall() == [(ledger.VERSION,)]


def test_a_newer_ledger_is_refused(store: Path) -> None:
    write(older(store), "UPDATE ledger SET version = 3")
    with untouched(store):
        for command in ("undo", "gc", "history"):
            assert "version 3" in said(run(command, store, "--json"), "LedgerUnreadable", REFUSED)


# --- history ---------------------------------------------------------------------------------------------------------


def test_history_lists_runs_latest_first_and_writes_nothing(store: Path) -> None:
    done = change(store)
    undo(store)
    again = change(store, planner(renamed))
    with untouched(store):
        outcome = run("history", store, "--json")
    runs = outcome.document["runs"]
    assert [one["command"] for one in runs] == ["toy", "undo", "toy"]
    assert [one["undo"]["state"] for one in runs] == ["possible", "none", "undone"]
    assert (runs[0]["id"], runs[2]["id"]) == (again["undo"], done["undo"])
    assert runs[0]["undo"] == {"state": "possible", "bytes": toys.kept_bytes(store), "changes": 1}
    assert runs[2]["actions"] == done["actions"]
    assert all(one["status"] == "finished" and one["started_at"] <= one["finished_at"] for one in runs)


def test_history_in_words(store: Path) -> None:
    assert run("history", store).stdout == "No runs.\n"
    done = change(store)
    first, back, *actions = run("history", store).stdout.splitlines()
    assert first.endswith(f"toy  finished  {done['undo']}")
    assert back.startswith("  can be undone with regraft undo (")
    assert actions == [
        *(f"  - {one['message']}" for one in done["actions"][:5]),
        "  … and 2 more actions (-v shows all)",
    ]
    assert len(run("history", store, "-v").stdout.splitlines()) == 2 + len(done["actions"])
    assert run("undo", store).stdout.endswith(f"Undone: run {done['undo']}; changed {store}.\n")
    assert "  undone\n" in run("history", store).stdout


@posix
def test_history_names_what_a_killed_run_did_and_nothing_else(store: Path, disk: QuickDisk, tmp_path: Path) -> None:
    copy = shutil.copytree(store, tmp_path / "steps")
    steps = steps_of(disk, lambda: change(copy))
    # The third change is the first of a file.
    assert killed(disk, steps.index("replace") + 1, lambda: change(store))
    (found,) = undoing.list_past_runs(store)
    assert (found.status, found.undo.state) == ("running", "unsettled")
    assert "the next command that changes the store" in run("history", store).stdout
    with untouched(store):
        undo(store, dry_run=True)
    again = change(store)
    _, found = undoing.list_past_runs(store)
    assert (found.status, found.undo.state) == ("stopped", "possible")
    assert [one.message for one in found.actions] == ["bodies", "call them renamed"]
    assert [one["message"] for one in again["actions"]][:1] == [f"write {RAW}/a.txt"]


def test_undo_says_what_it_would_do_and_touches_nothing(store: Path) -> None:
    done = change(store)
    for mode in ("DELETE", "WAL"):
        with closing(apsw.Connection(str(store / INDEX))) as db:
            db.execute(f"PRAGMA journal_mode = {mode}")
        with untouched(store):
            outcome = run("undo", store, "--dry-run")
            assert outcome.status == 0
            assert outcome.stdout.endswith("Dry run: nothing was written.\n")
            document = run("undo", store, done["undo"], "--dry-run", "--json").document
        assert (document["undone"], document["run"]["dry_run"]) == (done["undo"], True)


def test_undo_of_nothing_leaves_no_trace(store: Path) -> None:
    with untouched(store):
        assert "there is no run to undo" in line(run("undo", store), REFUSED)
    assert not (store / ".regraft").exists()


def test_undo_can_be_declined(store: Path) -> None:
    change(store)
    with untouched(store), fails("Declined"):
        undo(store, show_plan=lambda planned: False)


# --- ledgers of a stranger -------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["../../victim", "..", "/etc", "a/b", "C:x", "a\\b", ""])
@pytest.mark.parametrize("command", ["repair", "gc", "reconcile", "upgrade", "undo", "history"])
def test_no_run_leads_out_of_the_store(command: str, name: str, store: Path) -> None:
    victim = store.parent / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("years")
    change(store)
    write(ledger.ledger_path(store), f"INSERT INTO run VALUES ('{name}', 'repair', 'x', 'finished', 1, 2)")
    with untouched(store), untouched(victim):
        done = run(command, store, "--json", *([] if command == "history" else ["--yes"]))
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "LedgerUnreadable")


LINKED = "20260615T120000Z-0a1b2c"


@posix
def test_no_link_below_the_ledger_is_emptied(store: Path) -> None:
    victim = store.parent / "victim"
    victim.mkdir()
    (victim / "thesis.txt").write_text("years")
    change(store)
    write(ledger.ledger_path(store), f"INSERT INTO run VALUES ('{LINKED}', 'repair', 'x', 'finished', 1, 2)")
    (store / ".regraft" / "undo" / LINKED).symlink_to(victim)
    with untouched(victim):
        done = run("repair", store, "--json", "--yes")
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "LinkInStore")
    assert LINKED in done.document["error"]["message"]
