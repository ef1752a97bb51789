"""Without a path: what the application has on this system, and the next command for each."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import profiles
import pytest
from harness import NOW, REPO, run, snapshot

from regraft.cli import cli

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    work = tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(work)
    return folder


def v1(folder: Path, vector_files: int = 2) -> Path:
    """Make what a v1 profile looks like from outside."""
    for name in ("Local Storage/leveldb", "IndexedDB/file__0.indexeddb.leveldb", "Data/KnowledgeBase"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(vector_files):
        with closing(apsw.Connection(str(folder / "Data" / "KnowledgeBase" / f"base-{number}"))) as db:
            db.execute("CREATE TABLE vectors (id TEXT)")
    (folder / "Data" / "KnowledgeBase" / "knowledge_pending_delete.json").write_text("[]")
    return folder


def v2(folder: Path, *rows: str) -> Path:
    """Make a v2 profile without a base, and then what ``rows`` do."""
    return profiles.profile(folder, "DELETE FROM knowledge_base", *rows)


def base_row(status: str, number: int = 1) -> str:
    error = "'missing_vector_store'" if status == "failed" else "NULL"
    return (
        "INSERT INTO knowledge_base (id, name, status, error, chunk_size, chunk_overlap, search_mode, created_at,"
        f" updated_at) VALUES ('b{number}', 'B', '{status}', {error}, 9, 0, 'bm25', 1, 1)"
    )


TOMBSTONE = (
    "INSERT INTO knowledge_item (id, base_id, type, data, status, error, created_at, updated_at)"
    " VALUES ('i', 'b1', 'directory', '{}', 'failed', 'directory_not_migrated', 1, 1)"
)


def found() -> list[dict[str, Any]]:
    """Return what is found, nothing of which is written, and whose next commands are ones that there are."""
    answer = run("inspect", "--json")
    assert answer.status == 0
    for one in answer.document["found"]:
        for step in one["next"]:
            words = shlex.split(step["command"])
            assert words[0] == "regraft"
            cli.commands[words[1]].make_context(words[1], words[2:])
    return list(answer.document["found"])


def commands(one: dict[str, Any]) -> list[str]:
    return [step["command"] for step in one["next"]]


# --- where -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [".config", "Library/Application Support", "AppData/Roaming"])
def test_the_usual_places_of_each_system(place: str, home: Path) -> None:
    profile = v1(home / place / "CherryStudio")
    assert [one["path"] for one in found()] == [str(profile)]


@pytest.mark.parametrize("name", ["XDG_CONFIG_HOME", "APPDATA"])
def test_places_that_the_system_names(name: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    profile = v1(tmp_path / "elsewhere" / "CherryStudio")
    assert [one["path"] for one in found()] == [str(profile)]


def settings(home: Path, *entries: object) -> None:
    path = home / ".cherrystudio" / "config" / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"appDataPath": list(entries)}))


def test_folders_that_the_settings_name(home: Path, tmp_path: Path) -> None:
    usual, named = v1(home / ".config" / "CherryStudio"), v1(tmp_path / "another disk" / "data of it")
    portable = v1(tmp_path / "stick" / "data")
    program = {"executablePath": str(tmp_path / "stick" / "Cherry.exe"), "dataPath": str(named)}
    settings(home, program)
    answers = {one["path"]: one for one in found()}
    assert set(answers) == {str(usual), str(named), str(portable)}
    assert answers[str(named)]["why"] == "named in the application's settings"
    assert "another folder" in answers[str(usual)]["facts"][-1]
    # The settings lead away from the usual place: only with its kind a command reads what is there.
    assert all(command.endswith("--kind v1-profile") for command in commands(answers[str(usual)]))
    assert not any("--kind" in command for command in commands(answers[str(named)]))


def test_a_portable_program_in_the_working_folder(home: Path, tmp_path: Path) -> None:
    profile = v1(tmp_path / "work" / "data")
    assert [(one["path"], one["why"]) for one in found()] == [(str(profile), "beside the portable program")]


def test_any_other_folder_called_data_is_none(home: Path, tmp_path: Path) -> None:
    (tmp_path / "work" / "data").mkdir()
    (tmp_path / "work" / "data" / "numbers.csv").write_text("1")
    assert found() == []


# --- what ------------------------------------------------------------------------------------------------------------


def test_v1_data_are_to_be_migrated(home: Path) -> None:
    profile = v1(home / ".config" / "CherryStudio", 3)
    (one,) = found()
    assert (one["kind"], one["facts"]) == ("v1-profile", ["v1 data, with 3 vector files."])
    assert commands(one) == [f"regraft migrate {profile} --to library", f"regraft check {profile}"]


def test_an_upgrade_that_has_not_ended(home: Path) -> None:
    (v1(home / ".config" / "CherryStudio") / "migration_temp").mkdir()
    assert "was started and did not finish" in found()[0]["facts"][1]


def test_v2_data_are_to_be_checked(home: Path) -> None:
    profile = v2(home / ".config" / "CherryStudio", base_row("completed"))
    (one,) = found()
    assert (one["kind"], one["facts"]) == ("v2-profile", ["v2 data, with 1 base."])
    assert commands(one) == [f"regraft check {profile}"]


def test_a_failed_upgrade_is_to_be_rescued(home: Path) -> None:
    profile = v2(home / ".config" / "CherryStudio", base_row("failed"), base_row("completed", 2), TOMBSTONE)
    v1(profile)
    (one,) = found()
    assert one["facts"] == [
        "v2 data, with 2 bases.",
        "Not usable: 1 base marked as failed.",
        "Not migrated: 1 folder.",
        "2 vector files of v1 still on disk.",
    ]
    assert commands(one)[0] == f"regraft rescue {profile} --dry-run"


def test_an_upgrade_that_brought_nothing_over(home: Path) -> None:
    profile = v1(v2(home / ".config" / "CherryStudio"))
    (one,) = found()
    assert "migrated no base" in one["facts"][1]
    assert commands(one)[0] == f"regraft migrate {profile} --to library --kind v1-profile"


def test_a_pending_reset_comes_first(home: Path) -> None:
    profile = v2(home / ".config" / "CherryStudio", base_row("completed"))
    (profile / "data-reset.pending.json").write_text('{"status": "pending"}')
    (one,) = found()
    assert "start the application once" in one["facts"][0]
    assert commands(one) == [f"regraft inspect {profile}"]


def test_a_damaged_database_is_said(home: Path) -> None:
    profile = v2(home / ".config" / "CherryStudio")
    for name in ("cherrystudio.sqlite", "cherrystudio.sqlite-wal"):
        (profile / name).write_bytes(b"no database" * 1000)
    (one,) = found()
    assert "cannot be read" in one["facts"][0]


def test_backups_and_copies_beside_it(home: Path) -> None:
    v1(home / ".config" / "CherryStudio")
    backup = Path(shutil.copy(SAMPLE, home / ".config" / "my cherry backup.zip"))
    copy = v1(home / ".config" / "CherryStudio - Copy", 1)
    (home / ".config" / "cherry.zip").write_bytes(b"not an archive")
    (home / ".config" / "cherrytree").mkdir()
    shutil.copy(SAMPLE, home / ".config" / "another program.zip")
    _, *beside = found()
    assert [(one["path"], one["kind"], one["why"]) for one in beside] == [
        (str(copy), "v1-profile", "beside it"),
        (str(backup), "v1-backup", "beside it"),
    ]
    assert commands(beside[1])[0] == shlex.join(["regraft", "migrate", str(backup), "--to", "library"])


# --- how it is said --------------------------------------------------------------------------------------------------


def test_nothing_is_written(home: Path, tmp_path: Path) -> None:
    v1(v2(home / ".config" / "CherryStudio", base_row("failed")))
    shutil.copy(SAMPLE, home / ".config" / "cherry.zip")
    before = snapshot(tmp_path)
    run("inspect")
    run()
    assert snapshot(tmp_path) == before


def test_regraft_alone_says_what_is_there_and_names_its_help(home: Path) -> None:
    profile = v1(home / ".config" / "CherryStudio")
    alone = run()
    assert (alone.status, alone.stderr) == (0, "")
    assert alone.stdout == f"{run('inspect').stdout}\nAll commands: regraft --help\n"
    assert f"    regraft migrate {profile} --to library\n" in alone.stdout


@pytest.mark.usefixtures("home")
def test_regraft_alone_helps_where_nothing_is_there() -> None:
    alone = run()
    assert alone.status == 2
    assert alone.stdout == run("--help").stdout


def test_where_nothing_is_there_it_says_where_it_looked(home: Path, tmp_path: Path) -> None:
    answer = run("inspect")
    assert answer.status == 0
    for place in (home / ".config" / "CherryStudio", tmp_path / "work" / "data"):
        assert f"  {place}\n" in answer.stdout
    assert answer.stdout.endswith("regraft inspect PATH\n")


@pytest.mark.usefixtures("home")
def test_a_kind_needs_a_path() -> None:
    done = run("inspect", "--kind", "library")
    assert (done.status, done.stdout) == (2, "")
    assert "--kind" in done.stderr


def test_what_the_next_command_says_works(home: Path, tmp_path: Path) -> None:
    (home / ".config").mkdir()
    shutil.copy(SAMPLE, home / ".config" / "cherry.zip")
    words = shlex.split(commands(found()[0])[0])[1:]
    assert run(*words, "--now", NOW, "--yes", "--fail-on", "never").status == 0
    assert (tmp_path / "work" / "library" / "catalog.sqlite").is_file()


@pytest.mark.usefixtures("home")
def test_without_a_folder_of_the_user_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nobody))
    assert run().status == 2
    assert run("inspect", "--json").document["found"] == []
