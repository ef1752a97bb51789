"""Profiles as they are on disk: which database is live, and restores and resets that wait for the next start."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import stranded
from harness import NOW, run, snapshot
from profiles import profile
from v1 import Row, Source, base, file

from regraft.stores.write_checks import find_pending_change

STATES = {
    "staged": (
        "Data/restore-journal.json",
        {"version": 1, "state": "staged"},
        "will restore a backup at its next start",
    ),
    "promoting": ("Data/restore-journal.json", {"version": 1, "state": "promoting"}, "being put into place"),
    "cut off": ("Data/restore-journal.json", '{"version": 1, "st', "cannot be read (not JSON)"),
    "prepared": (
        "Data/restore-journal.json",
        {"version": 2, "state": "prepared"},
        "has prepared the restore of a backup",
    ),
    "armed": ("Data/restore-journal.json", {"version": 2, "state": "armed"}, "will restore a backup at its next start"),
    "promoting, too": ("Data/restore-journal.json", {"version": 2, "state": "promoting"}, "being put into place"),
    "reverting": ("Data/restore-journal.json", {"version": 2, "state": "reverting"}, "being rolled back"),
    "rollback armed": (
        "Data/restore-journal.json",
        {"version": 2, "state": "rollback-armed"},
        "will undo a restore at its next start",
    ),
    "a state of the other version": (
        "Data/restore-journal.json",
        {"version": 1, "state": "rolled-back"},
        "a restore may be pending",
    ),
    "another version": ("Data/restore-journal.json", {"version": 3, "state": "completed"}, "a restore may be pending"),
    "no version": ("Data/restore-journal.json", {"version": True, "state": "completed"}, "a restore may be pending"),
    "another state": ("Data/restore-journal.json", {"version": 1, "state": "waiting"}, "a restore may be pending"),
    "a state in a list": ("Data/restore-journal.json", {"version": 1, "state": ["staged"]}, "none of the known states"),
    "a byte order mark": (
        "Data/restore-journal.json",
        '\ufeff{"version": 1, "state": "completed"}',
        "cannot be read (not JSON)",
    ),
    "a list": ("Data/restore-journal.json", [], "is not a JSON object"),
    "empty": ("Data/restore-journal.json", "", "cannot be read (not JSON)"),
    "nested too deep": ("Data/restore-journal.json", "[" * 200_000, "cannot be read (not JSON)"),
    "reset": ("data-reset.pending.json", {"status": "pending"}, "a reset is pending"),
    "reset cut off": ("data-reset.pending.json", "{", "a reset may be pending"),
    "reset without status": ("data-reset.pending.json", {}, "has no status"),
}
SETTLED = [
    ("Data/restore-journal.json", {"version": 1, "state": "completed"}),
    ("Data/restore-journal.json", {"version": 1, "state": "failed"}),
    ("Data/restore-journal.json", {"version": 1, "state": "expired"}),
    *(
        ("Data/restore-journal.json", {"version": 2, "state": state})
        for state in ("completed", "rolled-back", "failed", "expired")
    ),
    ("data-reset.pending.json", {"status": "done"}),
]
COMMANDS = {
    "gc": ("gc", "{profile}"),
    "repair": ("repair", "{profile}"),
    "repair of a part": ("repair", "{profile}/Data/cherrystudio.sqlite"),
    "repair, dry": ("repair", "{profile}", "--dry-run"),
    "reconcile": ("reconcile", "{profile}"),
    "upgrade": ("upgrade", "{profile}"),
    "rescue": ("rescue", "{profile}"),
    "undo": ("undo", "{profile}"),
    "install": ("install", "{library}", "--profile", "{profile}"),
    "backfill": ("backfill", "{profile}", "--config", "{config}"),
    "restore": ("restore", "{profile}", "--base", "own", "--config", "{config}", "--model", "acme::embed-small"),
}


def live(place: Path) -> Path:
    """Make a profile whose database is where released applications have it."""
    made = profile(place)
    for name in ("cherrystudio.sqlite", "cherrystudio.sqlite-wal"):
        (made / name).rename(made / "Data" / name)
    (made / "Data" / "KnowledgeBase").mkdir(exist_ok=True)
    return made


def write(made: Path, name: str, content: Any) -> None:
    (made / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def some_source() -> Source:
    return Source([base("kb", file("f", "F"))], {"kb": [Row("F", "text")]}, uploads={"up-f.pdf": b"x"})


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("library")
    assert run("migrate", some_source().write(place / "v1"), "--to", place / "out", "--now", NOW, "-q").status in (0, 1)
    return place / "out"


@pytest.mark.thorough
@pytest.mark.parametrize("case", STATES)
def test_what_is_pending_is_told(tmp_path: Path, case: str) -> None:
    name, content, reason = STATES[case]
    made = live(tmp_path / "p")
    write(made, name, content)
    before = snapshot(made)
    done = run("check", made, "--json")
    (found,) = [one for one in done.document["findings"] if one["name"] == "catalog.pending"]
    assert (done.status, found["severity"], found["base"], found["repair"]) == (1, "error", None, None)
    assert reason in found["message"]
    assert all(one["repair"] is None for one in done.document["findings"])
    looked = run("inspect", made, "--json")
    assert looked.status == 0
    assert any(one.startswith("catalog.pending: ") and reason in one for one in looked.document["health"]["problems"])
    refused = run("repair", made, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "ProfilePending")
    assert reason in refused.document["error"]["message"]
    assert snapshot(made) == before


def test_a_record_that_is_no_file_is_pending(tmp_path: Path) -> None:
    made = live(tmp_path / "p")
    (made / "Data" / "restore-journal.json").mkdir()
    assert "is not a file" in str(find_pending_change(made))
    (made / "Data" / "restore-journal.json").rmdir()
    (made / "data-reset.pending.json").symlink_to(made / "nowhere")
    assert "is not a file" in str(find_pending_change(made))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="who may read everything")
def test_a_record_that_may_not_be_read_is_pending(tmp_path: Path) -> None:
    made = live(tmp_path / "p")
    write(made, *SETTLED[0])
    (made / SETTLED[0][0]).chmod(0)
    assert "cannot be read (Permission denied)" in str(find_pending_change(made))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "content"), SETTLED)
def test_what_is_over_hinders_nobody(tmp_path: Path, name: str, content: Any) -> None:
    made = live(tmp_path / "p")
    write(made, name, content)
    assert "catalog.pending" not in run("check", made, "--json").document["summary"]["by_name"]
    assert run("gc", made).status == 0


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("case", ["staged", "reset"])
def test_every_command_that_writes_refuses(
    tmp_path: Path, library: Path, config: Path, command: str, case: str
) -> None:
    made = live(tmp_path / "p")
    name, content, reason = STATES[case]
    write(made, name, content)
    before = snapshot(made)
    places = {"profile": made, "library": library, "config": config}
    done = run(*(word.format(**places) for word in COMMANDS[command]))
    assert done.status == 2, done
    assert reason in done.stderr
    assert "start the application once" in done.stderr
    assert snapshot(made) == before
    assert run("history", made).status == 0


# --- which database is live ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("named", ["", "Data", "Data/cherrystudio.sqlite"])
def test_the_database_in_data_is_live(tmp_path: Path, named: str) -> None:
    made = stranded.profile(tmp_path / "p", some_source(), wal=False)
    (made / "cherrystudio.sqlite").rename(made / "Data" / "cherrystudio.sqlite")
    shutil.copy(profile(tmp_path / "stale") / "cherrystudio.sqlite", made)
    done = run("check", made / named, "--json")
    assert done.document["source"]["kind"] == "v2-profile"
    names = done.document["summary"]["by_name"]
    # By the stale one the base would be the folder of no base.
    assert "index.orphan" not in names
    (found,) = [one for one in done.document["findings"] if one["name"] == "catalog.stale-copy"]
    assert (found["severity"], found["samples"], found["repair"]) == ("note", ["cherrystudio.sqlite"], None)
    looked = run("inspect", made / named, "--json").document
    assert [base["name"] for base in looked["bases"]] == ["Base kb"]
    assert looked["health"]["notes"][0].startswith("catalog.stale-copy: cherrystudio.sqlite is a left-over")
    before = (made / "cherrystudio.sqlite").read_bytes()
    assert run("gc", made / named).status == 0
    assert (made / "cherrystudio.sqlite").read_bytes() == before
    found = run("search", made / named, "text", "--base", stranded.base_of("kb"), "--json")
    assert len(found.document["hits"]) == 1


def test_a_database_in_the_root_alone_is_a_betas(tmp_path: Path) -> None:
    made = stranded.profile(tmp_path / "p", some_source(), wal=False)
    names = run("check", made, "--json").document["summary"]["by_name"]
    assert "catalog.stale-copy" not in names
    assert [base["name"] for base in run("inspect", made, "--json").document["bases"]] == ["Base kb"]


def test_the_data_folder_of_a_beta_is_its_profile(tmp_path: Path) -> None:
    made = stranded.profile(tmp_path / "p", some_source(), wal=False)
    done = run("check", made / "Data", "--json").document
    assert (done["source"]["kind"], done["checked"]["bases"]) == ("v2-profile", 1)
    write(made, *STATES["staged"][:2])
    before = snapshot(made)
    refused = run("gc", made / "Data")
    assert (refused.status, "will restore a backup at its next start" in refused.stderr) == (2, True)
    assert snapshot(made) == before


def test_a_betas_profile_may_be_called_data(tmp_path: Path) -> None:
    made = profile(tmp_path / "Data")
    assert run("check", made, "--json").document["checked"]["bases"] == 1
    assert run("repair", made, "--dry-run", "--json").document["source"]["path"] == str(made)
