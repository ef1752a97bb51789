"""What a kill leaves in every recorded state of a change, and what the next run makes of it.

``docs/reliability.md``, "Crash semantics", has the table.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import toys
from deaths import Patched, dies, killed
from faults import fails, files_of, posix
from toys import change, contents, keeps, kept_by_ledger, planner, quick_disk, undo

from regraft.disk import durable
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import ChangeLog
from repair.changes.plan import Plan
from repair.changes.store import Store


@pytest.fixture(scope="module", autouse=True)
def nothing_is_flushed() -> Iterator[None]:
    """A killed process has written what it has written."""
    with quick_disk():
        yield


ROWS = planner(toys.renamed)
FILE = planner(toys.a_file(f"{toys.RAW}/a.txt", "another"))
NEW = planner(toys.a_file(toys.NEW_FILE, "new"))
GONE = planner(toys.gone(f"{toys.RAW}/a.txt"))
PLANS = {"rows": ROWS, "a file": FILE, "a new file": NEW, "no file": GONE}
NOTHING = planner()


def forgetful(store: Store) -> Plan:
    """Change a file for good: what would take that back is deleted at the end."""
    changes = FILE(store).changes
    return Plan(changes, keeps_undo=False)


def _settles(state: str) -> Callable[..., bool]:
    return lambda _, __, settled, *___: settled == state


def _is_put(_: Path, target: Path) -> bool:
    return target.name in ("a.txt", "file.txt") and ".regraft" not in target.parts


@dataclass(frozen=True, kw_only=True)
class ChangeMoment:
    """A moment of a change: what the ledger says of it then, and once the next run has settled it; None: nothing.

    ``is_made``: the change stands in the store then.
    """

    dies: Patched
    state: str | None
    settled: str | None
    is_made: bool
    plans: tuple[str, ...] = tuple(PLANS)
    #: What is killed: the change, or taking it back.
    undo: bool = False


CHANGE_MOMENTS = {
    "before it is intended": ChangeMoment(dies=dies(ChangeLog, "intend"), state=None, settled=None, is_made=False),
    "it is intended": ChangeMoment(
        dies=dies(ChangeLog, "intend", after=True), state="intended", settled="dropped", is_made=False
    ),
    "a file is about to be put in place": ChangeMoment(
        dies=dies(durable, "replace", _is_put),
        state="intended",
        settled="dropped",
        is_made=False,
        plans=("a file", "a new file"),
    ),
    "it is made": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("done")), state="intended", settled="done", is_made=True
    ),
    "it is done": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("done"), after=True), state="done", settled="done", is_made=True
    ),
    "it is going to be taken back": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("undoing"), after=True),
        state="undoing",
        settled="done",
        is_made=True,
        plans=("rows", "a file", "a new file"),
        undo=True,
    ),
    # One move puts it back: the next run makes it.
    "it is going to be put back": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("undoing"), after=True),
        state="undoing",
        settled="undone",
        is_made=False,
        plans=("no file",),
        undo=True,
    ),
    "it is taken back": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("undone")),
        state="undoing",
        settled="undone",
        is_made=False,
        undo=True,
    ),
    "it is undone": ChangeMoment(
        dies=dies(ChangeLog, "set_state", _settles("undone"), after=True),
        state="undone",
        settled="undone",
        is_made=False,
        undo=True,
    ),
}
CASES = [(name, plan) for name, moment in CHANGE_MOMENTS.items() for plan in moment.plans]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with a run that stays, so that its ledger does."""
    root = toys.library(tmp_path_factory.mktemp("whole"))
    change(root, planner(toys.a_file(f"{toys.RAW}/b.txt", "earlier")))
    return root


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "library")


def last_change(root: Path, command: str = "toy") -> tuple[str, str | None]:
    """Return how the last run of a command ended, and the state of its one change."""
    runs = [run for run in ledgers.read_runs(root) if run.command == command]
    return runs[-1].status, next((one.state for one in runs[-1].changes), None)


@pytest.mark.one_in(3)
@posix
@pytest.mark.parametrize(("name", "plan"), CASES)
def test_a_change_that_is_killed_in_a_state_is_settled_by_it(name: str, plan: str, store: Path) -> None:
    moment, command = CHANGE_MOMENTS[name], PLANS[plan]
    old = contents(store)
    new = contents(_changed(store, command))
    assert old != new
    if moment.undo:
        change(store, command)
    killed(moment.dies, (lambda: undo(store)) if moment.undo else (lambda: change(store, command)))
    assert last_change(store)[1] == moment.state
    assert last_change(store, "undo" if moment.undo else "toy")[0] == "running"
    # The next run has nothing of its own to do.
    change(store, NOTHING)
    assert contents(store) == (new if moment.is_made else old)
    assert last_change(store)[1] == moment.settled
    assert last_change(store, "undo" if moment.undo else "toy")[0] == "stopped"
    assert keeps(store) == kept_by_ledger(store)
    settled = files_of(store)
    change(store, NOTHING)
    assert files_of(store) == settled
    # The same again comes to the same, once, and can be taken back.
    change(store, command)
    assert contents(store) == new
    undo(store)
    assert contents(store) == old


def _changed(store: Path, command: Any) -> Path:
    copy = shutil.copytree(store, store.parent / "changed")
    change(copy, command)
    return copy


@posix
@pytest.mark.parametrize(("after", "state"), [(False, "done"), (True, "expired")])
def test_what_would_take_a_change_back_goes_once_that_is_recorded(after: bool, state: str, store: Path) -> None:
    earlier = keeps(store)
    killed(dies(ChangeLog, "set_state", _settles("expired"), after=after), lambda: change(store, forgetful))
    assert last_change(store) == ("running", state)
    assert keeps(store) > earlier
    change(store, NOTHING)
    assert last_change(store) == ("stopped", state)
    assert (keeps(store) == earlier) == after
    assert keeps(store) == kept_by_ledger(store)


@posix
def test_what_a_killed_run_has_made_beside_the_store_is_made_anew(store: Path) -> None:
    """A file of before is not what this run would make: it is thrown away, and made again."""
    before = contents(store)
    killed(dies(ChangeLog, "intend"), lambda: change(store, planner(toys.a_file(f"{toys.RAW}/a.txt", "half of the"))))
    [made] = (store / ".regraft" / "work").rglob("000001")
    assert made.read_text("utf-8") == "half of the"
    assert contents(store) == before
    change(store, FILE)
    assert (store / toys.RAW / "a.txt").read_text("utf-8") == "another"
    assert not (store / ".regraft" / "work").exists()


@posix
def test_a_run_that_is_done_twice_leaves_what_one_run_leaves(whole: Path, tmp_path: Path) -> None:
    """Byte by byte, the ledger too; where the first was killed, row by row."""
    once = shutil.copytree(whole, tmp_path / "once")
    change(once, toys.EVERYTHING)
    left = files_of(once)
    change(once, toys.EVERYTHING)
    assert files_of(once) == left
    twice = shutil.copytree(whole, tmp_path / "twice")
    killed(dies(ChangeLog, "set_state", _settles("done")), lambda: change(twice, toys.EVERYTHING))
    change(twice, toys.EVERYTHING)
    assert contents(twice) == contents(once)
    left = files_of(twice)
    change(twice, toys.EVERYTHING)
    assert files_of(twice) == left


def test_what_is_recorded_as_taken_back_is_taken_back_once(store: Path) -> None:
    change(store, ROWS)
    undo(store)
    undo(store)  # the earlier run
    with fails("RunUnknown"):
        undo(store)
