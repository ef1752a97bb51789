"""What holds for every command that changes a store: one table of commands, and the same laws for each of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changing_commands import CASES, Work, copied
from fault_server import FaultServer
from faults import posix, untouched
from harness import Outcome, run_as_given
from toys import QuickDisk, killed_at_or_before, quick_disk, steps_of

from regraft.cli import changes

EVERY = pytest.mark.parametrize("name", CASES)
AT_ONCE = pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.embeds])


# --- helpers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(dimensions=4) as found:
        yield found


@pytest.fixture(scope="module")
def disk() -> Iterator[QuickDisk]:
    with quick_disk() as found:
        yield found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Return the stores that were built already, each with its folder."""
    return {}


@pytest.fixture
def work(name: str, server: FaultServer, built: dict[str, Any], tmp_path: Path) -> Work:
    return copied(name, server, built, tmp_path)


def planned(outcome: Outcome) -> list[tuple[object, ...]]:
    """Return what a document says is done, without how it is said."""
    keys = ("action", "base", "finding")
    return [tuple(action[key] for key in keys) for action in outcome.document["actions"]]


# --- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@EVERY
def test_what_a_person_declines_changes_nothing(name: str, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "confirm_plan", lambda *_, **__: False)
    before, own = work.contents(), work.own()
    declined = run_as_given(*work.arguments)
    assert (declined.status, declined.stdout) == (2, "")
    assert declined.stderr.splitlines()[-1].startswith("regraft: ")
    assert "nothing was written" in declined.stderr
    assert (work.contents(), work.own()) == (before, own)


@pytest.mark.thorough
@EVERY
def test_nothing_is_changed_without_consent(name: str, work: Work) -> None:
    """Nobody is there to be asked, and neither a program's output nor silence is an answer."""
    before, own = work.contents(), work.own()
    for more in ((), ("-q",), ("--json",)) if name == next(iter(CASES)) else ((), ("--json",)):
        refused = run_as_given(*work.arguments, *more)
        assert refused.status == 2, refused
        assert f"regraft: regraft {work.arguments[0]} needs your confirmation" in refused.stderr
        assert "nothing was written" in refused.stderr
        assert "--yes" in refused.stderr
        assert (work.contents(), work.own()) == (before, own)
    assert json.loads(refused.stdout)["error"]["code"] == "ConsentMissing"


@pytest.mark.one_in(3)
@EVERY
def test_a_run_does_what_the_dry_run_says_once_and_is_taken_back_whole(name: str, work: Work) -> None:
    """One store is led through all of it: a dry run, the run, a second run, and undo."""
    before = work.contents()
    with untouched(work.root):
        dry = work.run("--dry-run")
    assert planned(dry)
    assert dry.document["run"]["dry_run"] is True
    assert dry.document["regraft"]["command"] == work.arguments[0]

    done = work.run("--yes")
    assert done.status == CASES[name].finished, done
    assert planned(done) == planned(dry)
    after = work.contents()
    assert after != before
    [recorded] = [one for one in work.history() if one["id"] == done.document["undo"]]
    assert recorded["status"] == "finished"
    assert recorded["actions"]

    again = work.run("--yes")
    if CASES[name].again == "refused":
        assert again.status == 2
        assert work.contents() == after
    elif CASES[name].again == "nothing":
        assert (planned(again), again.document["undo"]) == ([], None)
        assert work.contents() == after
    else:
        assert planned(again)

    work.undo_all()
    assert work.contents() == before


@pytest.mark.one_in(4)
@posix
@AT_ONCE
@pytest.mark.parametrize(
    "share", [pytest.param(1 / 3, marks=pytest.mark.slow), 2 / 3, pytest.param(1, marks=pytest.mark.slow)]
)
def test_a_kill_in_the_midst_leaves_all_of_it_to_the_next_run(
    name: str, share: float, server: FaultServer, built: dict[str, Any], tmp_path: Path, disk: QuickDisk
) -> None:
    def fresh() -> Work:
        return copied(name, server, built, tmp_path)

    # What a process makes once, such as the layout that files are compared with, is no step of a later run.
    fresh().run("--yes")
    work = fresh()
    before = work.contents()
    steps = steps_of(disk, lambda: work.run("--yes"))
    after = work.contents()
    at = min(int(share * len(steps)), len(steps) - 2)
    work = killed_at_or_before(disk, at, fresh, lambda work: work.run("--yes"))
    found = work.contents()
    # What several steps change may be between two of them.
    if work.arguments[0] != "fix":
        assert all(found.get(file) in (before.get(file), after.get(file)) for file in {*before, *after, *found})
    assert work.run("--yes").status == CASES[name].finished
    assert work.contents().keys() == after.keys()
    work.undo_all()
    assert work.contents() == before
