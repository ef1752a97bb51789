"""What a run that changes a store ends with: what is done, what is not and why, and what to do next."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from faults import STOPPED, said
from harness import run
from planted_v2 import KB, OTHER, index, plant
from stranded import profile, some_source
from toys import rows_of

from regraft.identity import replace
from repair.changes.plan import Plan
from repair.changes.store import Store
from repair.fix import sequence


def ending(text: str) -> list[str]:
    """Return the lines after the last empty one."""
    return text.rstrip("\n").rpartition("\n\n")[2].splitlines()


def test_where_nothing_is_left_nothing_else_is_said(store: Path) -> None:
    plant("no body", store)
    assert ending(run("repair", store).stdout) == [
        f"Done. Changed: {store} and its .regraft.",
        f"Next: regraft check {store}",
        f"To undo: regraft undo {store}",
    ]
    assert run("repair", store).stdout == "Nothing to do: nothing was written.\n"


def test_what_is_not_done_is_named(store: Path) -> None:
    plant("no body", store)
    index(store, OTHER).write_bytes(b"no database at all")
    planned = run("repair", store, "--dry-run")
    assert "Incomplete: Andere Küche 🎉 (reasons above)" in planned.stdout
    done = run("repair", store)
    assert done.status == 1
    assert "Not changed:\nAndere Küche 🎉" in done.stdout
    assert ending(done.stdout)[:2] == [
        f"Done: 1 of 2 bases. Changed: {store} and its .regraft.",
        "Incomplete: Andere Küche 🎉 (reasons above)",
    ]


def test_a_base_of_which_a_finding_is_left_is_done_in_part(store: Path) -> None:
    plant("no body", store)
    next(path for path in sorted((index(store).parent.parent / "raw").rglob("*.md"))).unlink()
    assert ending(run("repair", store).stdout)[0] == f"Done in part. Changed: {store} and its .regraft."
    plant("no body", store)
    index(store, OTHER).write_bytes(b"no database at all")
    shown = ending(run("repair", store).stdout)
    assert shown[0] == f"Done: 0 of 2 bases, 1 in part. Changed: {store} and its .regraft."
    assert shown[1].startswith("Incomplete: ")


@pytest.mark.parametrize("command", ["repair", "rescue", "gc", "fix"])
def test_a_command_that_can_do_nothing_says_so(command: str, tmp_path: Path) -> None:
    """A folder of v1's that the upgrade left, with nothing of v1 to bring it back from."""
    made = profile(tmp_path, some_source(), ("kb",))
    shutil.rmtree(made / "Data" / "KnowledgeBase" / "kb", ignore_errors=True)
    (made / "Data" / "KnowledgeBase" / "kb").unlink(missing_ok=True)
    done = run(command, made)
    text = done.stdout
    assert "Nothing to do: nothing" not in text or "Not changed" not in text
    if done.status == 1 and "Done" not in text:
        assert f"Nothing to do: {command} cannot fix " in text
        assert ending(text)[-1].startswith("Next: regraft ")


def test_one_finding_is_not_one_of_many(store: Path) -> None:
    index(store, OTHER).write_bytes(b"no database at all")
    nothing = "Nothing to do: repair cannot fix {}; nothing was written."
    assert nothing.format("the finding above") in run("repair", store).stdout.splitlines()
    index(store, KB).write_bytes(b"no database at all")
    assert nothing.format("any of the 2 findings above") in run("repair", store).stdout.splitlines()


def test_fix_does_what_check_offers_in_order(store: Path) -> None:
    for name in ("no body", "a gap", "a vector of nobody"):
        plant(name, store)
    offered = {one["repair"] for one in run("check", store, "--json").document["findings"]} - {None}
    assert len(offered) > 1
    done = run("fix", store, "--json").document
    assert len({action["action"] for action in done["actions"]}) > 2
    assert run("check", store, "--json").document["summary"]["by_severity"] == {"error": 0, "warning": 0, "note": 0}
    [latest, *_] = run("history", store, "--json").document["runs"]
    assert (latest["command"], latest["undo"]["state"]) == ("fix", "possible")


def test_fix_of_one_base_leaves_the_others(store: Path) -> None:
    plant("no body", store)
    assert run("fix", store, "--base", OTHER, "--json").document["actions"] == []
    assert run("fix", store, "--base", KB, "--json").document["actions"]


def test_a_step_that_mends_nothing_takes_back_the_steps_before_it(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no body", "no vector", "a text of nobody"):
        plant(name, store)
    before = rows_of(index(store))
    collect = sequence._Steps.collect

    def boasting(steps: Any, found: Store) -> Plan:
        plan = collect(steps, found)
        return replace(plan, resolves={*plan.resolves, ("embedding.missing", KB)}) if plan.changes else plan

    monkeypatch.setattr(sequence._Steps, "collect", boasting)
    message = said(run("fix", store, "--json"), "NotMended", STOPPED)
    assert "embedding.missing" in message
    assert rows_of(index(store)) == before
    assert run("history", store, "--json").document["runs"][0]["undo"]["state"] == "undone"
