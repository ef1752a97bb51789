"""Without a path: what the application has on this system, and the next command for each."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import apsw
import click
import profiles
import pytest
from harness import NOW, REPO, command_words, run, snapshot

from checks.cherry_v2 import installed
from regraft.cli import cli
from regraft.kinds import KIND_NAMES, Kind

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
            words = command_words(step["command"])
            assert words[0] == "regraft"
            # A command keeps the names of its help option that its first context has.
            parent = click.Context(cli, help_option_names=["-h", "--help"])
            cli.commands[words[1]].make_context(words[1], words[2:], parent=parent)
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
    path.write_text(json.dumps({"appDataPath": list(entries)}), "utf-8")


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
    assert command_words(commands(beside[1])[0]) == ["regraft", "migrate", str(backup), "--to", "library"]


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
    words = command_words(commands(found()[0])[0])[1:]
    assert run(*words, "--now", NOW, "--yes", "--fail-on", "never").status == 0
    assert (tmp_path / "work" / "library" / "catalog.sqlite").is_file()


@pytest.mark.usefixtures("home")
def test_without_a_folder_of_the_user_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", classmethod(nobody))
    assert run().status == 2
    assert run("inspect", "--json").document["found"] == []


# --- backups and folders of a person ---------------------------------------------------------------------------------


def put(source: Path, path: Path, time: int) -> Path:
    """Copy a file, and give it a time of change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    os.utime(path, (time, time))
    return path


@pytest.mark.usefixtures("home")
def test_backups_in_some_folders_are_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    old, new = put(SAMPLE, first / "old.zip", 1_000), put(SAMPLE, second / "new.ZIP", 9_000)
    alike = [put(SAMPLE, first / f"{name}.zip", 5_000) for name in "ba"]
    put(SAMPLE, first / "a.backup", 7_000)
    (first / "folder.zip").mkdir()
    (second / "no archive.zip").write_bytes(b"PK")
    packed = tmp_path / "work" / "library.zip"
    with ZipFile(packed, "w") as archive:
        archive.writestr("library/notes.txt", "no backup")
    places = [first, tmp_path / "missing", second, packed.parent]
    found = installed.find_backups(places)
    assert [one.path for one in found] == [str(path) for path in (new, *sorted(alike), old)]
    assert {(one.kind, one.why) for one in found} == {("v1-backup", "beside it")}
    assert found[0].facts == [f"This is {KIND_NAMES[Kind.V1_BACKUP]}.", "v1 data, with 4 vector files."]
    assert [command_words(step.command) for step in found[0].next] == [
        ["regraft", "migrate", str(new), "--to", "library"],
        ["regraft", "inspect", str(new)],
    ]
    # So many are opened.
    monkeypatch.setattr(installed, "_MOST_BESIDE", 2)
    assert [one.path for one in installed.find_backups([first])] == [str(path) for path in sorted(alike)]


def test_a_backup_of_version_2_is_no_backup_of_version_1(home: Path) -> None:
    profile = v2(home / "data", base_row("completed"))
    backup = home / "backup.zip"
    with ZipFile(backup, "w") as archive:
        for path in sorted(profile.rglob("*")):
            archive.write(path, path.relative_to(profile))
    assert installed.find_backups([home]) == []


def test_the_folders_of_a_person_in_any_language(home: Path) -> None:
    made = [home / "Documents", home / "下载", home / "OneDrive - Work" / "Desktop", home / "named" / "here"]
    for folder in (*made, home / "Pictures", home / "OneDrive - Work" / "Music"):
        folder.mkdir(parents=True)
    (home / "Desktop").write_text("no folder")
    settings = home / ".config" / "user-dirs.dirs"
    settings.parent.mkdir()
    settings.write_text(
        'XDG_DOWNLOAD_DIR="$HOME/named/here"\nXDG_DOCUMENTS_DIR="$HOME/"\nXDG_MUSIC_DIR="$HOME/Music"\n'
        f'XDG_DESKTOP_DIR="{home / "Documents"}"\n',
        "utf-8",
    )
    assert installed.list_user_folders() == [made[3], made[0], made[1], made[2]]


def test_nothing_is_the_folder_of_a_person_who_has_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.find_in_user_folders() == ([], [])
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError("no home"))))
    assert installed.list_user_folders() == []


def test_what_is_found_in_the_folders_of_a_person(home: Path, healthy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    downloads = home / "Downloads"
    old, new = put(SAMPLE, downloads / "old.zip", 1_000), put(SAMPLE, downloads / "new.ZIP", 9_000)
    put(SAMPLE, downloads / "new.bak", 10_000)
    (downloads / "broken.zip").write_bytes(b"PK")
    os.utime(downloads / "broken.zip", (500, 500))
    library = shutil.copytree(healthy, downloads / "a library")
    profile = v2(downloads / "saved cherry data", base_row("completed"))
    shutil.copytree(library, downloads / ".hidden")
    (downloads / "notes").mkdir()
    (downloads / "cherry trees").mkdir()
    (home / "Documents").symlink_to(downloads, target_is_directory=True)
    folders, found = installed.find_in_user_folders()
    assert folders == [downloads]
    assert [(one.path, one.kind, one.why) for one in found] == [
        (str(new), "v1-backup", "in Downloads"),
        (str(old), "v1-backup", "in Downloads"),
        (str(library), "library", "in Downloads"),
        (str(profile), "v2-profile", "in Downloads"),
    ]
    assert found[0].facts == [f"This is {KIND_NAMES[Kind.V1_BACKUP]}.", "v1 data, with 4 vector files."]
    assert found[2].facts == [f"This is {KIND_NAMES[Kind.LIBRARY]}.", "v2 data, with 2 bases."]
    assert [(command_words(step.command), step.does) for step in found[2].next] == [
        (["regraft", "install", str(library), "--profile", "PROFILE"], "Put its bases into a v2 profile"),
        (["regraft", "inspect", str(library)], "See what is in it"),
    ]
    assert [command_words(step.command) for step in found[1].next] == [
        ["regraft", "migrate", str(old), "--to", "library"],
        ["regraft", "inspect", str(old)],
    ]
    assert found[3].facts == ["v2 data, with 1 base."]
    # So many are opened.
    (downloads / "cherry trees").rmdir()
    monkeypatch.setattr(installed, "_MOST_ARCHIVES", 1)
    monkeypatch.setattr(installed, "_MOST_FOLDERS", 1)
    _, some = installed.find_in_user_folders()
    assert [one.path for one in some] in ([str(new), str(library)], [str(new), str(profile)])
    monkeypatch.setattr(installed, "_MOST_LISTED", 0)
    assert installed.find_in_user_folders() == ([downloads], [])


# --- what is said of an upgrade --------------------------------------------------------------------------------------


def test_failed_bases_without_files_of_v1_are_to_be_checked(home: Path) -> None:
    profile = v2(home / ".config" / "CherryStudio", base_row("failed"))
    (one,) = found()
    assert one["facts"] == ["v2 data, with 1 base.", "Not usable: 1 base marked as failed."]
    assert (commands(one), one["remedy"]) == ([f"regraft check {profile}"], None)


def test_folders_that_were_not_migrated_are_enough_for_a_rescue(home: Path) -> None:
    items = [TOMBSTONE.replace("'i'", f"'i{number}'") for number in range(4)]
    others = [items[2].replace("'directory'", "'file'", 1), items[3].replace("directory_not_migrated", "other")]
    profile = v1(v2(home / ".config" / "CherryStudio", base_row("completed"), *items[:2], *others), 1)
    (one,) = found()
    assert one["facts"] == ["v2 data, with 1 base.", "Not migrated: 2 folders.", "1 vector file of v1 still on disk."]
    assert (commands(one), one["remedy"]) == (
        [f"regraft rescue {profile} --dry-run", f"regraft check {profile}"],
        "rescue",
    )


def test_files_of_v1_beside_good_bases_are_left_over(home: Path) -> None:
    profile = v1(v2(home / ".config" / "CherryStudio", base_row("completed")))
    (one,) = found()
    assert one["facts"] == ["v2 data, with 1 base.", "2 vector files of v1 still on disk."]
    assert (commands(one), one["remedy"]) == ([f"regraft check {profile}"], None)


def test_an_application_that_runs_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    v1(home / ".config" / "CherryStudio")
    monkeypatch.setattr(installed.profile, "detect_running_app", lambda _: "process 7")
    assert found()[0]["facts"][1:] == ["The application is running (process 7): end it before anything is changed."]


def test_a_profile_in_an_archive_is_no_copy_of_one(home: Path) -> None:
    profile = v1(home / ".config" / "CherryStudio")
    shutil.make_archive(str(home / ".config" / "my cherry data"), "zip", profile)
    assert [one["path"] for one in found()] == [str(profile)]


@pytest.mark.parametrize(
    ("name", "content", "may_be"),
    [
        ("base", b"SQLite format 3\0damaged", True),
        ("base.sqlite", b"SQLite format 3\0damaged", False),
        ("base", b"something else", False),
    ],
)
def test_a_damaged_vector_file_is_told_by_its_name(tmp_path: Path, name: str, content: bytes, *, may_be: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert installed.may_be_vector_file(tmp_path / name) is may_be


def test_a_database_without_vectors_is_no_vector_file(tmp_path: Path) -> None:
    for name, table in (("vectors", "vectors"), ("other", "texts")):
        with closing(apsw.Connection(str(tmp_path / name))) as db:
            db.execute(f"CREATE TABLE {table} (id)")
        assert installed.may_be_vector_file(tmp_path / name) is (name == "vectors")
