"""What the pages do is what the commands do; what is typed wrong is said beside its field."""

from __future__ import annotations

import json
import math
import operator
import os
import re
import shutil
import sqlite3
import struct
import zipfile
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import lacking
import page_client
import planted_v2
import profiles
import pytest
import stranded
from faults import posix
from harness import REPO, run, snapshot
from page_client import Client, said

from checks.cherry_v2 import installed
from regraft.errors import NotBrowsed
from regraft.page import views

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def reader(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    # Jobs of both ways have one time, so that their files are equal.
    monkeypatch.setenv("REGRAFT_LANG", "en")
    with page_client.client(tmp_path) as made:
        yield made


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without what differs from run to run."""
    left = {name: value for name, value in document.items() if name not in ("run", "preflight", "undo")}
    if "install" in left:
        left["install"] = {name: value for name, value in left["install"].items() if name != "undo"}
    return left


def document(reader: Client, job: Any) -> dict[str, Any]:
    answer = reader.get(f"job/{job.id}/report.json")
    assert answer.headers["content-type"] == "application/json"
    return json.loads(answer.content)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, without regraft's own records, which name runs and times."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and ".regraft" not in path.parts)
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in files if not path.name.startswith("report.")
    }


# --- Home -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_home_lists_what_is_on_the_computer(reader, home):
    (home / "下载").mkdir()
    shutil.copyfile(SAMPLE, home / "下载" / "备份.zip")
    library = planted_v2.library(home / "Documents")
    profiles.profile(home / ".config" / "CherryStudio")
    (home / "下载" / "other.zip").write_bytes(b"PK no archive")
    (home / "Desktop").mkdir()
    (home / "Desktop" / "holiday").mkdir()
    page = reader.get("")
    text = said(page)
    for part in ("备份.zip", "a v1 backup", "in 下载", library.name, "a v2 library", "a v2 profile folder", "Upgrade"):
        assert part in text, part
    # What is in it, and what can be done with it.
    for part in (
        "v1 data, with 4 vector files.",
        "v2 data, with 2 bases.",
        "Its bases can be put into the application.",
    ):
        assert part in text, part
    assert "It can be brought into the new application, with all its vectors." in text
    for part in ("other.zip", "holiday"):
        assert part not in text, part
    assert f"upgrade?at={views.exact(home / '下载' / '备份.zip')}" in page.text


@pytest.mark.thorough
def test_a_failed_upgrade_is_offered_its_rescue_first(reader, home):
    place = home / ".config" / "CherryStudio"
    place.parent.mkdir(parents=True)
    shutil.move(stranded.profile(home / "made", stranded.some_source(), ("kb",)), place)
    for page in (reader.get(""), reader.get("store", at=place)):
        offered = re.findall(rf'class="button( primary)?" href="{reader.root}(\w+)\?at=', page.text)
        assert offered[0] == (" primary", "rescue")
        assert [name for _, name in offered].count("rescue") == 1
    assert "Its upgrade failed. What was left behind can be brought back." in said(reader.get(""))


def test_folders_that_the_desktop_names_are_looked_at(reader, home):
    (home / ".config").mkdir()
    (home / "Meine Ablage").mkdir()
    (home / ".config" / "user-dirs.dirs").write_text(
        'XDG_DOWNLOAD_DIR="$HOME/Meine Ablage"\nXDG_DESKTOP_DIR="$HOME/"\n'
    )
    shutil.copyfile(SAMPLE, home / "Meine Ablage" / "b.zip")
    folders, found = installed.find_in_user_folders()
    assert [str(folder) for folder in folders] == [str(home / "Meine Ablage")]
    assert [one.path for one in found] == [str(home / "Meine Ablage" / "b.zip")]


def test_the_first_page_is_about_the_path_of_the_command(tmp_path, home):
    with page_client.client(tmp_path, start=str(SAMPLE)) as reader:
        assert reader.get("").headers["location"] == f"{reader.root}store?at={views.exact(SAMPLE)}"
        assert reader.get("").status_code == 200


def test_a_path_shows_what_it_is_and_what_can_be_done(reader):
    text = said(reader.get("store", at=SAMPLE))
    for part in (
        "a v1 backup",
        "Harbour museum",
        "openai::text-embedding-3-small",
        "Upgrade",
        "Check",
        "regraft inspect",
    ):
        assert part in text, part
    assert "Old clippings: its vector file is truncated" in text
    with zipfile.ZipFile(SAMPLE) as backup:
        sizes = {one.filename: one.file_size for one in backup.infolist() if "/KnowledgeBase/" in f"/{one.filename}"}
    chart = text.partition("Size of the bases ")[2]
    assert chart.startswith(f"Harbour museum {max(sizes.values()) / 1000:.1f} kB ")
    assert "Vectors by model openai::text-embedding-3-small 57 silicon::BAAI/bge-m3 19 " in chart


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ("", "No path was given"),
        ("/no/such/file", f"{Path('/no/such/file')}: no such file or folder; check the spelling."),
        ("~/nothing.zip", "no such file or folder"),
        ("a\0b", "the path has a character that no path can have"),
        ("x" * 5_000, ""),
        ("/\u202egpj.exe", "no such file or folder"),
    ],
)
def test_a_path_that_is_wrong_is_said_beside_its_field(reader, typed, problem):
    answer = reader.get("store", path=typed)
    assert answer.status_code == 400
    assert 'id="problem-path"' in answer.text and 'aria-describedby="problem-path"' in answer.text
    assert problem.casefold() in said(answer).casefold()
    if "\0" not in typed:
        assert f'value="{typed}"' in answer.text


def test_paths_may_be_pasted_in_quotes_and_as_addresses(home):
    (home / "a b.zip").touch()
    for typed in (f'"{home}/a b.zip"', f"  {home}/a b.zip ", (home / "a b.zip").as_uri(), "~/a b.zip"):
        assert views.clean_path(typed) == str(home / "a b.zip"), typed


@pytest.mark.skipif(os.name != "nt", reason="a file of another computer has no path elsewhere")
@pytest.mark.parametrize("typed", ["file://server/share/a%20b.zip", "file:////server/share/a%20b.zip"])
def test_the_address_of_a_file_of_another_computer_is_its_path(typed):
    assert views.clean_path(typed) == r"\\server\share\a b.zip"


@pytest.mark.thorough
def test_a_folder_of_200000_entries_is_listed_within_limits(reader, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    first = folder / "0"
    first.touch()
    for number in range(1, 200_000):
        os.link(first, folder / f"{number}") if number % 60_000 == 0 else (folder / f"{number}").symlink_to(first)
    answer = reader.get("folder", at=folder)
    assert answer.status_code == 200 and len(answer.content) < 300_000
    assert answer.text.count("<li>") == 300
    assert "Not all are shown. Type a part of the name." in answer.text
    listed = reader.get("folder.json", at=folder).json()
    assert len(listed["entries"]) == 300 and listed["more"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_folder_can_be_walked_and_its_names_are_harmless(reader, tmp_path):
    names = ["<script>alert(1)</script>", "\u202egpj.exe", "a\nb\x1b[31m", "ü 文件"]
    for name in names:
        (tmp_path / "odd" / name).mkdir(parents=True) if "/" not in name else None
    page = reader.get("folder", at=tmp_path / "odd").text
    assert "<script>alert" not in page and "\u202e" not in page and "\x1b" not in page
    for entry in reader.get("folder.json", at=tmp_path / "odd").json()["entries"]:
        assert "\u202e" not in entry["name"] and "\n" not in entry["name"]
    inside = reader.get("folder", at=tmp_path / "odd" / names[2])
    assert inside.status_code == 200
    answer = reader.get("folder", at=tmp_path / "nothing" / "here")
    assert answer.status_code == 400 and "no such file or folder" in answer.text


# --- names of strangers -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_names_of_bases_are_only_text(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    name = "<img src=x onerror=alert(1)>\u202e\u0007" + "长" * 100_000
    planted_v2.run_sql(library / "catalog.sqlite", f"UPDATE knowledge_base SET name = '{name}'")
    for page in ("store", "browse", "pack", "install"):
        answer = reader.get(page, at=library)
        assert answer.status_code == 200, page
        assert "<img" not in answer.text and "\u202e" not in answer.text and "\u0007" not in answer.text
        assert len(answer.content) < 400_000
    job = reader.start("check", path=library)
    assert "<img" not in reader.get(f"job/{job.id}").text


# --- Upgrade ----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_upgrade_is_planned_confirmed_and_undone(reader, home, tmp_path):
    profile = profiles.profile(home / ".config" / "CherryStudio")
    before = snapshot(profile)
    form = reader.get("upgrade", at=SAMPLE)
    assert views.exact(profile) in form.text
    fields = {"path": SAMPLE, "profile": profile, "library": str(tmp_path / "library")}
    planned = reader.start("upgrade", **fields)
    text = reader.page(planned)
    assert "76 of 76 rows move with their vectors" in text
    assert "openai::text-embedding-3-small" in text and "create provider openai, disabled and without keys" in text
    assert "None of the bases can be installed in the profile in this way, so nothing would be written." in text
    # Choices are sent with the form that made the plan.
    again = {"again": planned_fields(reader, planned), "model:openai::text-embedding-3-small": "map:acme::other"}
    again |= {"provider:silicon::BAAI/bge-m3": "silicon", "model:silicon::BAAI/bge-m3": "provider"}
    planned = reader.start("upgrade", **again)
    assert "Upgrade now" in reader.page(planned)
    assert snapshot(profile) == before and not (tmp_path / "library").exists()
    done = reader.confirm(planned)
    text = reader.page(done)
    assert "Done 76 of 76 rows moved with their vectors" in text and "Undo…" in text
    # The command does the same, to the byte.
    other = profiles.profile(tmp_path / "other")
    assert f"regraft migrate {SAMPLE} --profile {profile} --to {tmp_path / 'library'} --map-model" in text
    report = done.outcome.report
    import regraft

    expected = regraft.migrate_into_profile(
        SAMPLE,
        other,
        tmp_path / "by-command",
        map_model={"openai::text-embedding-3-small": "acme::other"},
        recreate_provider=("silicon",),
    )
    assert [base.rows for base in report.bases] == [base.rows for base in expected.bases]
    assert vectors(tmp_path / "library") == vectors(tmp_path / "by-command") != {}
    undo = reader.start("undo", path=profile, run=report.install.undo)
    assert "The plan" in reader.page(undo)
    undone = reader.confirm(undo)
    assert "Undone" in reader.page(undone)
    kept = {name: value for name, value in snapshot(profile).items() if not name.startswith(".regraft")}
    assert profiles.tables(profile) == profiles.tables(profiles.profile(tmp_path / "fresh"))
    assert {name for name in kept if "KnowledgeBase" in name} == {name for name in before if "KnowledgeBase" in name}
    assert not (tmp_path / "library").exists()


def planned_fields(reader: Client, job: Any) -> str:
    """Return what the page of a plan sends along: the fields of the form that made it."""
    from html import unescape
    from re import search

    found = search(r'name="again" value="([^"]*)"', reader.get(f"job/{job.id}").text)
    assert found is not None
    return unescape(found[1])


def vectors(library: Path) -> dict[str, list[Any]]:
    """Return the vectors of a library's bases, by base."""
    found = {}
    for path in sorted(library.glob("KnowledgeBase/*/.cherry/index.sqlite")):
        found[path.parts[-3]] = profiles.rows(path, "SELECT embedding_text_hash, vector_blob FROM embedding ORDER BY 1")
    return found


@pytest.mark.thorough
def test_a_library_alone_is_equal_to_that_of_the_command(reader, tmp_path):
    planned = reader.start("upgrade", path=SAMPLE, profile_at="-", library=str(tmp_path / "library"))
    assert not (tmp_path / "library").exists()
    done = reader.confirm(planned)
    outcome = run("migrate", SAMPLE, "--to", tmp_path / "by-command", "--json")
    # JSON doubles the backslashes of Windows.
    written = {name: json.dumps(str(tmp_path / name))[1:-1] for name in ("library", "by-command")}
    ours = json.loads(json.dumps(document(reader, done)).replace(written["library"], "TO"))
    theirs = json.loads(outcome.stdout.replace(written["by-command"], "TO"))
    assert without_times(ours) == without_times(theirs)
    assert vectors(tmp_path / "library") == vectors(tmp_path / "by-command") != {}
    answer = reader.start("compare", path=SAMPLE, library=tmp_path / "library")
    assert "100.00%" in reader.page(answer)


@pytest.mark.thorough
def test_what_changed_since_the_plan_is_shown_before_anything_is_written(reader, tmp_path, home):
    library = planted_v2.library(tmp_path)
    planted_v2.plant("a vector of nobody", library)
    planned = reader.start("fix", path=library)
    planted_v2.plant("a gap", library)
    before = contents(library)
    changed = reader.confirm(planned)
    assert changed.state == "changed" and contents(library) == before
    text = reader.page(changed)
    assert "The data changed after you saw the plan. Nothing was written. This is the plan now." in text
    done = reader.confirm(changed)
    assert done.state == "done" and contents(library) != before


@pytest.mark.thorough
@posix
def test_the_application_is_started_by_a_button_of_the_result(reader, home, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    profile = profiles.profile(home / ".config" / "CherryStudio")
    fields = {"path": planted_v2.library(tmp_path), "profile": profile}
    button = f'action="{reader.root}start"'
    done = reader.confirm(reader.start("install", **fields))
    page = reader.get(f"job/{done.id}")
    # Nothing is offered that is in no usual place.
    assert button not in page.text and "Start the application: the bases are there." in said(page)
    assert "it was not found in the usual places" in said(reader.post("start", path=profile))
    program = home / "Applications" / "CherryStudio.AppImage"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho 1 >> "$HOME/started"\nwhile [ ! -e "$HOME/end" ]; do sleep 0.05; done\n')
    program.chmod(0o755)
    page = reader.get(f"job/{done.id}").text
    assert button in page and "Start the application now" in page
    assert button not in reader.get(f"job/{reader.start('install', **fields).id}").text
    answer = reader.post("start", path=profile)
    assert answer.status_code == 200 and "The application was started" in answer.text
    process = reader.desk.application
    assert process is not None
    again = reader.post("start", path=profile)
    assert (again.status_code, reader.desk.application) == (409, process)
    assert "It was started already. It may take a moment until its window opens." in said(again)
    (home / "end").touch()
    assert process.wait(page_client.NEVER_SECONDS) == 0
    assert (home / "started").read_text("utf-8") == "1\n"
    # Of another profile, or without the form's token, nothing is started.
    other = profiles.profile(tmp_path / "other")
    assert reader.post("start", path=other).status_code == 400
    assert reader.post("start", path=profile, token="wrong").status_code == 403
    assert reader.get("start").status_code == 404
    assert (home / "started").read_text("utf-8") == "1\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "fields", "field", "problem"),
    [
        (
            "upgrade",
            {"profile_at": "-", "library": ""},
            "library",
            "Enter the folder where the library is to be written.",
        ),
        ("upgrade", {"library": "/x/y", "profile": ""}, "profile", "Choose the profile of the application, or"),
        ("install", {"profile": ""}, "profile", "Choose the profile of the application."),
        ("pack", {"target": "/tmp/bases.tar"}, "target", "The name of a pack ends with .zip."),
        ("backfill", {"max_cost": "much"}, "max_cost", "Write a number, such as 0.50."),
        ("backfill", {"max_cost": "-1"}, "max_cost", "Write a number above 0."),
        ("backfill", {"max_cost": "nan"}, "max_cost", "Write a number above 0."),
        ("check", {"level": "deeper"}, "level", "Choose one of the levels."),
    ],
)
def test_what_is_typed_wrong_is_said_beside_its_field(reader, tmp_path, page, fields, field, problem):
    source = SAMPLE if page == "upgrade" else planted_v2.library(tmp_path)
    answer = reader.post(page, path=source, base="kept", **fields)
    assert answer.status_code == 400
    assert f'id="problem-{field}">{problem}' in answer.text
    for value in fields.values():
        assert value in ("", "-", "deeper") or f'value="{value}"' in answer.text
    assert not reader.desk.jobs._jobs


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "field", "value", "problem"),
    [
        ("upgrade", "profile", "nowhere", ": no such file or folder; check the spelling."),
        ("upgrade", "profile", "library", ": "),
        ("upgrade", "library", "taken", ": the folder is not empty and was not written by regraft"),
        ("install", "profile", "nowhere", ": no such file or folder; check the spelling."),
        ("pack", "target", "taken.zip", ""),
        ("rescue", "v1", "nowhere", ": no such file or folder; check the spelling."),
        ("backfill", "config", "nowhere", ": no such file or folder"),
    ],
)
def test_what_a_plan_cannot_use_is_said_beside_its_field(reader, tmp_path, page, field, value, problem):
    library = planted_v2.library(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "holiday.txt").touch()
    (tmp_path / "taken.zip").write_text("mine")
    source = {"upgrade": SAMPLE, "rescue": tmp_path / "profile"}.get(page, library)
    profile = profiles.profile(tmp_path / "profile")
    before = snapshot(tmp_path / "profile"), contents(library)
    wrong = str(tmp_path / value)
    fields = {
        "library": str(tmp_path / "new"),
        "profile": str(profile),
        "embedder": "mine",
        "max_cost": "0.25",
        field: wrong,
    }
    job = reader.start(page, path=source, **fields)
    answer = reader.get(f"job/{job.id}")
    assert (job.state, answer.status_code) == ("failed", 200)
    assert f'id="problem-{field}">{wrong}{problem}' in unescape(answer.text)
    # What was typed is still there, and the form can be sent again.
    assert f'name="{field}" value="{wrong}"' in answer.text
    if page == "backfill":
        assert 'value="0.25"' in answer.text and 'value="mine"' in answer.text
    assert f'action="{reader.root}{page}"' in answer.text
    assert (snapshot(tmp_path / "profile"), contents(library)) == before
    assert sorted(path.name for path in (tmp_path / "taken").iterdir()) == ["holiday.txt"]
    assert (tmp_path / "taken.zip").read_text("utf-8") == "mine" and not (tmp_path / "new").exists()


@pytest.mark.thorough
def test_an_error_of_the_command_is_one_sentence_and_can_be_tried_again(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    target = tmp_path / "moved.zip"
    planned = reader.start("pack", path=library, target=str(target))
    assert planned.state == "done"
    target.write_text("another program was faster")
    job = reader.confirm(planned)
    answer = reader.get(f"job/{job.id}")
    assert answer.status_code == 200 and job.state == "failed"
    assert str(target) in said(answer) and job.outcome.code in answer.text and "Try again" in answer.text
    target.unlink()
    assert reader.start(f"job/{job.id}/again").state == "done"


# --- Check, repair, rescue, move, history -----------------------------------------------------------------------------


def test_a_check_lists_findings_and_leads_to_the_repair(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    for name in ("a gap", "a vector of nobody"):
        planted_v2.plant(name, library)
    copy = shutil.copytree(library, tmp_path / "copy")
    job = reader.start("check", path=library, level="deep")
    ours, theirs = document(reader, job), run("check", library, "--deep", "--json").document
    assert without_times(ours) == without_times(theirs)
    text = reader.page(job)
    for finding in theirs["findings"]:
        assert finding["name"] in text
    assert "Show the plan to repair" in text
    planned = reader.start("fix", path=library)
    theirs = run("fix", copy, "--dry-run", "--json").document
    ours = document(reader, planned)
    assert ours["actions"] == theirs["actions"] != []
    done = reader.confirm(planned)
    run("fix", copy)
    assert contents(library) == contents(copy)
    assert "What was changed" in reader.page(done)
    history = said(reader.get("history", at=library))
    assert "Repair" in history and "Undo…" in history
    reader.confirm(reader.start("undo", path=library, run=done.outcome.report.undo))
    run("undo", copy)
    assert contents(library) == contents(copy)
    assert "undone" in said(reader.get("history", at=library))


@pytest.mark.thorough
def test_a_check_draws_duplicates_ages_sizes_and_models(reader, tmp_path):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library)
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db, db:
        db.execute("UPDATE knowledge_item SET created_at = 1700000000000")
        db.execute("UPDATE knowledge_item SET created_at = 1735689600000 WHERE rowid = 1")
        items = db.execute("SELECT count(*) FROM knowledge_item").fetchone()[0]
    answer = reader.get(f"job/{reader.start('check', path=library).id}")
    text = said(answer)
    assert f"Items by age Items by the time when they were added 2023-11 {items - 1} 2025-01 1" in text
    assert "Duplicates" not in text
    assert "Size of the bases" in text and "Vectors by model openai::text-embedding-3-small 57" in text
    # Each bar has its number as text.
    for title in ("Items by age", "Size of the bases", "Vectors by model"):
        section = answer.text.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0]
        bars = re.findall(r'(?s)role="img" aria-label="([^"]+)".*?<span class="number">([^<]+)</span>', section)
        assert bars and all(label == number for label, number in bars), title


@pytest.mark.thorough
def test_texts_that_are_there_twice_are_counted(reader, tmp_path):
    store = lacking.library(tmp_path)
    hashes = [
        one for (one,) in rows_of(planted_v2.index(store, lacking.KB), "SELECT embedding_text_hash FROM search_text")
    ]
    repeated = len(hashes) - len(set(hashes))
    job = reader.start("check", path=store)
    assert f"they share its vector {lacking_name(store)} {repeated} " in reader.page(job) and repeated > 0
    # Vectors without a text, and texts without a vector, are no duplicates.
    lacking.taken_away(store, [lacking.KB_TEXTS["item-f2"][0]])
    planted_v2.run_sql(planted_v2.index(store, lacking.KB), "INSERT INTO embedding VALUES ('nobody', zeroblob(32), 1)")
    with closing(sqlite3.connect(planted_v2.index(store, lacking.KB))) as db:
        query = "SELECT count(*), count(DISTINCT e.rowid) FROM search_text JOIN embedding e USING (embedding_text_hash)"
        bodies, texts = db.execute(query).fetchone()
    statistics = document(reader, reader.start("check", path=store))["statistics"]["bases"]
    [found] = [one["duplicates"] for one in statistics if one["id"] == lacking.KB]
    assert found == bodies - texts


def lacking_name(store: Path) -> str:
    with closing(sqlite3.connect(store / "catalog.sqlite")) as db:
        return str(db.execute("SELECT name FROM knowledge_base WHERE id = ?", (lacking.KB,)).fetchone()[0])


@pytest.mark.thorough
def test_many_months_are_shown_by_year(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db, db:
        row = db.execute("SELECT * FROM knowledge_item LIMIT 1").fetchone()
        columns = [one[1] for one in db.execute("PRAGMA table_info(knowledge_item)")]
        db.execute("DELETE FROM knowledge_item")
        for number in range(30):
            values = {**dict(zip(columns, row, strict=True)), "id": f"i{number}"}
            values["created_at"] = 1_577_880_000_000 + number * 31 * 86_400_000
            db.execute(f"INSERT INTO knowledge_item VALUES ({', '.join('?' * len(columns))})", list(values.values()))
        db.execute("UPDATE knowledge_item SET created_at = 9e18 WHERE id = 'i29'")
    text = reader.page(reader.start("check", path=library))
    assert "Items by the time when they were added 2020 12 2021 12 2022 5" in text


@pytest.mark.thorough
def test_what_cannot_be_browsed_says_so_and_an_archive_has_no_history(reader, tmp_path):
    store = chroma_zip(tmp_path)
    page = reader.get("store", at=store)
    offered = re.findall(rf'class="button[^"]*" href="{reader.root}(\w+)\?at=', page.text)
    assert offered == ["check"]
    folder = tmp_path / "chroma"
    assert "history?at=" in reader.get("store", at=folder).text
    answers = [reader.get("browse", at=folder), reader.get("browse", at=folder, base="x", q="boat")]
    answers.append(reader.post("browse", path=folder, q="boat", embedder="mine"))
    for answer in answers:
        assert answer.status_code == 400
        assert f"{folder}: this is a folder of Chroma, whose texts the page cannot show" in said(answer)
        assert "--" not in said(answer)
    with pytest.raises(NotBrowsed) as refused:
        views._check_browsed(folder)
    assert (refused.value.code, refused.value.exit_status) == ("NotBrowsed", 2)


def chroma_zip(folder: Path) -> Path:
    """Write a small folder of Chroma, and a zip file of it; return the zip file."""
    with zipfile.ZipFile(REPO / "tests" / "golden" / "chroma" / "chroma-0.6.zip") as golden:
        golden.extractall(folder, [name for name in golden.namelist() if name.startswith("chroma/")])
    return Path(shutil.make_archive(str(folder / "packed"), "zip", folder, "chroma"))


@pytest.mark.thorough
def test_a_failed_upgrade_is_rescued(reader, tmp_path):
    profile = stranded.profile(tmp_path, stranded.some_source(), ("kb",))
    copy = shutil.copytree(profile, tmp_path / "copy")
    planned = reader.start("rescue", path=profile)
    assert "What is changed" in reader.page(planned)
    done = reader.confirm(planned)
    theirs = run("rescue", copy, "--json").document
    assert [one["action"] for one in document(reader, done)["actions"]] == [one["action"] for one in theirs["actions"]]
    assert vectors(profile / "Data") == vectors(copy / "Data")


@pytest.mark.thorough
def test_bases_are_packed_and_put_into_a_profile(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    target = tmp_path / "moved.zip"
    planned = reader.start("pack", path=library, target=str(target))
    assert not target.exists()
    done = reader.confirm(planned)
    assert done.state == "done" and target.is_file()
    run("pack", library, tmp_path / "by-command.zip")
    profile = profiles.profile(tmp_path / "profile")
    planned = reader.start("install", path=target, profile=profile)
    assert "Install" in reader.page(planned)
    done = reader.confirm(planned)
    assert done.state == "done"
    there = {row[0] for row in profiles.rows(profile / "cherrystudio.sqlite", "SELECT id FROM knowledge_base")}
    assert planted_v2.KB in there


@pytest.mark.thorough
def test_a_plan_of_missing_vectors_sends_nothing(reader, tmp_path):
    library = planted_v2.library(tmp_path)
    planted_v2.plant("no vector", library)
    before = contents(library)
    job = reader.start("backfill", path=library, max_cost="0.50")
    text = reader.page(job)
    assert job.state in ("done", "failed")
    assert contents(library) == before
    assert "price" in text or "embedder" in text.lower()


@pytest.mark.thorough
def test_texts_are_found_by_words(reader, tmp_path):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library)
    text = said(reader.get("browse", at=library, q="boat"))
    expected = run("search", library, "boat", "--mode", "bm25", "-k", 20, "--json").document
    assert f"{len(expected['hits'])} hit" in text
    for hit in expected["hits"]:
        assert " ".join(hit["text"].split())[:60] in text
    base = expected["hits"][0]["base"]
    assert "Boat workshop" in said(reader.get("browse", at=library, base=base)) or base


def rows_of(index: Path, query: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(index)) as db:
        return db.execute(query, values).fetchall()


UNITS = (
    "SELECT u.unit_id, u.unit_index, u.char_start, u.char_end, t.text, e.vector_blob FROM search_unit u "
    "JOIN search_text t ON t.target_id = u.unit_id LEFT JOIN embedding e USING (embedding_text_hash) "
)


def cosine(one: bytes, other: bytes) -> float:
    left, right = (struct.unpack(f"<{len(blob) // 4}f", blob) for blob in (one, other))
    return sum(map(operator.mul, left, right)) / math.hypot(*left) / math.hypot(*right)


@pytest.mark.thorough
def test_an_item_shows_its_units_and_the_neighbors_of_one(reader, tmp_path):
    store = lacking.taken_away(lacking.library(tmp_path), [lacking.KB_TEXTS["item-f2"][0]])
    index = planted_v2.index(store, lacking.KB)
    [(item,)] = rows_of(index, "SELECT material_id FROM search_unit GROUP BY material_id HAVING count(*) = 4")
    listed = reader.get("browse", at=store, base=lacking.KB)
    assert f"item={quote(item, safe='')}" in listed.text
    page = said(reader.get("browse", at=store, base=lacking.KB, item=item))
    units = rows_of(index, UNITS + "WHERE u.material_id = ? ORDER BY u.unit_index", item)
    assert [vector is None for *_, vector in units].count(True) == 1
    for _, number, start, end, text, vector in units:
        facts = f"{number} characters {start:,} to {end:,} · "
        norm = f"8 dimensions, length {math.hypot(*struct.unpack('<8f', vector)):.4f}" if vector else "without a vector"
        assert f"{facts}{norm} {text}" in page
    unit, *_, vector = units[1]
    nearest = said(reader.get("browse", at=store, base=lacking.KB, item=item, unit=unit))
    every = rows_of(index, UNITS + "WHERE e.vector_blob IS NOT NULL AND u.unit_id <> ?", unit)
    # Two units have one text, and one vector.
    best = sorted(every, key=lambda row: -cosine(vector, row[5]))[:10]
    shown_scores = re.findall(r"\d+\. .+? (-?\d\.\d{4}) ", nearest.partition("4 units")[0])
    assert shown_scores == [f"{cosine(vector, row[5]):.4f}" for row in best]
    assert all(row[4] in nearest for row in best)
    lonely = next(unit for unit, *_, vector in units if vector is None)
    page = said(reader.get("browse", at=store, base=lacking.KB, item=item, unit=lonely))
    assert "This unit has no usable vector, so it has no neighbors." in page


@pytest.mark.thorough
def test_the_units_of_a_long_item_are_on_pages(reader, tmp_path):
    store = lacking.library(tmp_path)
    texts = lacking.many(store)
    [(item,)] = rows_of(
        planted_v2.index(store, lacking.KB), "SELECT DISTINCT material_id FROM search_unit WHERE unit_id = 'unit-0'"
    )
    first = said(reader.get("browse", at=store, base=lacking.KB, item=item))
    answer = reader.get("browse", at=store, base=lacking.KB, item=item, first=50)
    second = said(answer)
    assert [text for text in texts if f"{text} " in first] + [text for text in texts if f"{text} " in second] == texts
    assert "Next" in first and "Previous" in second and "Next" not in second
    for wrong in ("x", "-1", "9" * 30):
        assert reader.get("browse", at=store, base=lacking.KB, item=item, first=wrong).status_code == 200


@pytest.mark.thorough
def test_units_of_a_damaged_index_are_only_shown(reader, tmp_path):
    store = lacking.library(tmp_path)
    index = planted_v2.index(store, lacking.KB)
    [(item,)] = rows_of(index, "SELECT material_id FROM search_unit GROUP BY material_id HAVING count(*) = 8")
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        units = db.execute("SELECT unit_id FROM search_unit WHERE material_id = ? ORDER BY unit_index", (item,))
        one, two, three, *_ = [unit for (unit,) in units]
        db.execute("UPDATE search_unit SET char_start = 'x' WHERE unit_id = ?", (one,))
        hashes = "(SELECT embedding_text_hash FROM search_text WHERE target_id = ?)"
        db.execute(f"UPDATE embedding SET vector_blob = x'010203' WHERE embedding_text_hash = {hashes}", (two,))
        db.execute("UPDATE search_text SET text = ? WHERE target_id = ?", ("<script>\u202e", three))
    for unit in (one, two, three, "none"):
        answer = reader.get("browse", at=store, base=lacking.KB, item=item, unit=unit)
        assert answer.status_code == 200
        assert "<script>" not in answer.text.partition("</h1>")[2] and "&lt;script&gt;" in answer.text
        assert "\u202e" not in answer.text
    assert "no usable vector" in said(reader.get("browse", at=store, base=lacking.KB, item=item, unit=two))
    assert "The index has no text of this item." in said(reader.get("browse", at=store, base=lacking.KB, item="nobody"))
    assert "has no readable index" in said(reader.get("browse", at=store, base="nobody", item=item))


@pytest.mark.thorough
def test_the_three_modes_stand_side_by_side(reader, server, config, tmp_path):
    store = lacking.library(tmp_path)
    answer = reader.post("browse", path=store, q="boat", embedder="mine", config=str(config))
    assert (answer.status_code, server.texts) == (200, ["boat"] * 2)
    lanes = re.split(r"<h2>", answer.text)[1:4]
    for lane, mode in zip(lanes, ("bm25", "vector", "hybrid"), strict=True):
        options = () if mode == "bm25" else ("--embedder", "mine", "--config", config)
        hits = run("search", store, "boat", "--mode", mode, "-k", 10, *options, "--json").document["hits"]
        text = " ".join(re.sub(r"<[^>]+>", "", lane).split())
        assert [hit["text"] in text for hit in hits] == [True] * len(hits)
        assert len(re.findall(r'class="finding"', lane)) == len(hits)
    assert "<mark>boat</mark>" in answer.text and "Has these words: boat" in answer.text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"q": "", "embedder": "mine"}, "q", "nothing to search for"),
        ({"q": "boat", "embedder": ""}, "embedder", "no embedder was given"),
        ({"q": "boat", "embedder": "other"}, "embedder", "other"),
        ({"q": "boat", "embedder": "mine", "config": "/no/file.yaml"}, "embedder", "no such file or folder"),
    ],
)
def test_a_search_by_meaning_that_cannot_be_is_said_beside_its_field(
    reader, server, config, tmp_path, fields, field, problem
):
    store = lacking.library(tmp_path)
    answer = reader.post("browse", path=store, **{"config": str(config), **fields})
    assert (answer.status_code, server.texts) == (400, [])
    assert f'id="problem-{field}"' in answer.text and problem in said(answer)
    assert f'value="{fields["q"]}"' in answer.text


def test_a_dropped_file_is_copied_and_limited(tmp_path, home):
    with page_client.client(tmp_path, drop_limit=1) as reader:
        token = {"x-form-token": reader.desk.entrance.form_token, "origin": reader.desk.entrance.origin}

        def put(name: str, body: bytes) -> Any:
            return reader.http.put(f"{reader.root}dropped?name={name}", content=body, headers=token)

        answer = put("../../evil%00.zip", SAMPLE.read_bytes())
        (copied,) = [path for path in reader.desk.folder.rglob("*") if path.is_file()]
        assert copied.read_bytes() == SAMPLE.read_bytes() and copied.parent.parent == reader.desk.folder
        assert "a v1 backup" in said(reader.http.get(answer.json()["next"]))
        # The library of a dropped backup is not written into the run's own folder.
        assert str(home / "library") in reader.get("upgrade", at=copied).text
        answer = put("large.zip", b"x" * 1_000_001)
        assert (answer.status_code, answer.json()["problem"]) == (
            413,
            "The file is larger than 1.0 MB. Give its path instead.",
        )
        assert [path for path in reader.desk.folder.rglob("*") if path.is_file()] == [copied]


def test_quit_ends_the_server_unless_a_job_is_running(reader):
    assert not reader.desk.is_ended
    answer = reader.post("quit")
    assert answer.status_code == 200 and "regraft has ended" in answer.text and reader.desk.is_ended


@pytest.mark.thorough
def test_a_page_is_in_the_language_of_its_reader(reader):
    chinese = reader.get("", headers={"accept-language": "zh-CN,zh;q=0.9,en;q=0.5"})
    assert '<html lang="zh">' in chinese.text and "你的知识库" in chinese.text
    for accepted in ("fr, de;q=0.9", "", "en;q=0.9, zh;q=0.1", "zh;q=x, *"):
        assert '<html lang="en">' in reader.get("", headers={"accept-language": accepted}).text
    reader.post("language", to="zh")
    assert '<html lang="zh">' in reader.get("", headers={"accept-language": "en"}).text
    job = reader.start("check", path=SAMPLE)
    assert "向量文件" in reader.page(job)
    # The document is the command's: English.
    assert "vector file" in json.dumps(document(reader, job))


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, ""), (-1, "19"), (32_535_244_800_000, "3001-01-0"), (253_402_300_799_999, "9999-12-31"), (10**15, "")],
)
def test_times_of_files_that_a_system_cannot_convert_are_shown(value: int | None, shown: str) -> None:
    """Windows has no local time before 1970 and after the year 3000; Python has none after the year 9999."""
    text = views.format_time(value)
    assert text.startswith(shown)
    assert bool(text) == bool(shown)
