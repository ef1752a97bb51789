"""A live profile and its version 6 backup, written by a real browser, give what the same state in data.json gives."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import v1
from browser_profile import (
    SAMPLE_FOLDER,
    SAMPLE_ZIP,
    STATE_KEY,
    State,
    Step,
    alone,
    as_backup_6,
    as_json,
    browsing,
    need_browser,
    packed,
    put_data_beside,
)
from extras import needs
from faults import files_of, line, untouched
from harness import NOW, run
from patience import NEVER_SECONDS

from regraft.identity import replace

#: Names that no base has any more: in Latin-1, and not. No part of them comes twice, so that they stay whole in a
#: packed table.
FIRST_DRAFT = "First draft 5e0c7b19"
THROWN_AWAY = "扔掉的旧书签夹"


# --- the life of a profile -----------------------------------------------------------------------------------------


def knowledge(state: State) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(state.slices["knowledge"])
    return found


def with_bases(state: State, bases: list[dict[str, Any]]) -> State:
    return replace(state, slices={**state.slices, "knowledge": as_json({"bases": bases})})


def first_draft(state: State) -> State:
    """Return an early state: one base, called otherwise, all of it Latin-1, and other words in every row."""
    base = {**knowledge(state)["bases"][0], "name": FIRST_DRAFT, "items": [], "model": None}
    files = [{**row, "origin_name": "draft.txt", "ext": ".txt"} for row in state.tables["files"]]
    notes = [{**row, "content": "draft " * 50} for row in state.tables["knowledge_notes"]]
    tables = {"files": files, "knowledge_notes": notes, "drafts": [{"id": "d", "text": "é"}]}
    return State({"knowledge": as_json({"bases": [base]}), "llm": as_json({"providers": []})}, tables)


def thrown_away(state: State) -> State:
    """Return a later state: a base too many, one missing, the others called otherwise, and rows too many."""
    bases = knowledge(state)["bases"]
    extra = {**bases[1], "id": "thrown-away", "name": THROWN_AWAY}
    renamed = [{**base, "name": f"{THROWN_AWAY} {at}", "items": base["items"][::2]} for at, base in enumerate(bases)]
    others = {name: [{**row, "id": f"x-{row['id']}"} for row in rows] for name, rows in state.tables.items()}
    return replace(with_bases(state, [extra, *renamed[:0:-1]]), tables=others)


def deletions(state: State) -> list[Step]:
    return [
        {"do": "delete", "table": name, "ids": [row["id"] for row in rows]}
        for name, rows in state.tables.items()
        if rows
    ]


def among_others(state: State) -> State:
    """Return the state between other slices of hundreds of kilobytes, as an application has them."""
    words = random.Random(7)
    long = "".join(words.choices('abcdefghij KLMNOP菜园"\\\n\u00e9🌱', k=150_000))
    order = ["assistants", "knowledge", "runtime", "llm", *state.slices]
    return replace(state, slices={name: state.slices.get(name, as_json({"x": long})) for name in dict.fromkeys(order)})


def live_in(profile: Path, final: State) -> None:
    """Write a profile through its life: early releases and states, an end, a second run that is killed."""
    early, late = first_draft(final), thrown_away(final)
    with browsing(profile) as browser:
        browser.play(*early.steps(), release=4)
        browser.play({"do": "chat", "name": "talk", "answers": 240, "length": 5000})
        browser.play({"do": "set", "key": f"{STATE_KEY}-old", "value": "{}"}, *among_others(late).steps())
        browser.quit()
    with browsing(profile) as browser:
        browser.play({"do": "chat", "name": "more", "answers": 240, "length": 5000})
        browser.play({"do": "remove", "key": STATE_KEY}, *deletions(late), {"do": "clear", "table": "topics"})
        browser.play(*among_others(early).steps()[:1])
        browser.play(*among_others(late).steps()[:1])
        browser.play(*among_others(final).steps())
        # The end comes in the middle of a chat.
        browser.begin({"do": "chat", "name": "last", "answers": 2000, "length": 5000})
        wait_for_growth(profile / "IndexedDB", 1_000_000)
        browser.kill()


def wait_for_growth(folder: Path, size: int) -> None:
    """Wait until the files of a folder have grown by ``size`` bytes."""
    start, end = folder_bytes(folder), time.monotonic() + NEVER_SECONDS
    while folder_bytes(folder) < start + size:
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.005)


def folder_bytes(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):  # a file of a database at work may vanish
        return sum(path.stat().st_size for path in folder.rglob("*"))
    return 0


def write_sources(folder: Path) -> None:
    """Write the killed profile of the sample's state, and its version 6 backup, unpacked and packed."""
    profile = folder / "CherryStudio"
    live_in(profile, State.of_backup(SAMPLE_FOLDER))
    put_data_beside(profile, SAMPLE_FOLDER / "Data" / "KnowledgeBase", SAMPLE_FOLDER / "Data" / "Files")
    packed(as_backup_6(profile, folder / "backup"), folder / "backup.zip")


@pytest.fixture(scope="session")
def browser_sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The killed profile in each form in which it can be given; made once for all processes that run tests."""
    need_browser()
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with alone(shared / "browser.lock"):
        folder = shared / "browser"
        if not folder.exists():
            made = tmp_path_factory.mktemp("made")
            write_sources(made)
            made.rename(folder)
    return {
        "profile": folder / "CherryStudio",
        "backup folder": folder / "backup",
        "backup zip": folder / "backup.zip",
    }


@pytest.fixture(scope="session")
def killed(browser_sources: dict[str, Path]) -> Path:
    """The profile of the sample's state, as a killed browser has left it. Tests only read it."""
    return browser_sources["profile"]


# --- what must come of it ------------------------------------------------------------------------------------------


def library(target: Path) -> dict[str, bytes]:
    """Return the bytes of all that a run has left but its reports and its own record."""
    kept = files_of(target)
    return {
        name: content
        for name, content in kept.items()
        if name not in ("report.json", "report.html") and not name.startswith(".regraft/")
    }


@pytest.fixture(scope="session")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What comes of the sample's version 5 zip."""
    target = tmp_path_factory.mktemp("wanted") / "library"
    v1.migrate(SAMPLE_ZIP, target)
    found = library(target)
    assert len(found) > 10
    return found


KINDS = {"profile": "v1-profile", "backup folder": "v1-backup-6", "backup zip": "v1-backup-6"}
each_form = pytest.mark.parametrize("form", KINDS)


def test_an_unpacked_backup_gives_the_same_as_the_zip(wanted: dict[str, bytes], tmp_path: Path) -> None:
    v1.migrate(SAMPLE_FOLDER, tmp_path / "library")
    assert library(tmp_path / "library") == wanted


def test_the_profile_is_a_hard_one(killed: Path) -> None:
    """Older values stand in table files, the last ones in a log, and the lock of a dead browser is left."""
    assert (killed / "SingletonLock").is_symlink()
    for storage in (killed / "Local Storage" / "leveldb", killed / "IndexedDB" / "file__0.indexeddb.leveldb"):
        assert {".ldb", ".log"} <= {path.suffix for path in storage.iterdir()}, storage
    tables = [path.read_bytes() for path in (killed / "Local Storage" / "leveldb").glob("*.ldb")]
    assert len(tables) > 1
    assert FIRST_DRAFT.encode() in b"".join(tables)
    assert THROWN_AWAY.encode("utf-16-le") in b"".join(tables)


@each_form
def test_a_profile_gives_the_library_of_its_backup(
    form: str, browser_sources: dict[str, Path], wanted: dict[str, bytes], tmp_path: Path
) -> None:
    """v1.migrate sees that the source is as before, to the bytes and times of every file."""
    done = v1.migrate(browser_sources[form], tmp_path / "library")
    assert done.report["source"]["kind"] == KINDS[form]
    assert library(tmp_path / "library") == wanted


@each_form
def test_a_second_run_changes_nothing(form: str, browser_sources: dict[str, Path], tmp_path: Path) -> None:
    target = tmp_path / "library"
    v1.migrate(browser_sources[form], target)
    with untouched(target, browser_sources[form]):
        again = run("migrate", browser_sources[form], "--to", target, "--json", "--now", NOW)
    assert {base["outcome"] for base in again.document["bases"]} == {"unchanged", "failed"}


@each_form
def test_inspect_names_it_and_shows_its_bases(form: str, browser_sources: dict[str, Path]) -> None:
    with untouched(browser_sources[form]):
        shown = run("inspect", browser_sources[form], "--json")
    assert shown.status == 0
    assert shown.document["kind"] == KINDS[form]
    names = [base["name"] for base in shown.document["bases"]]
    assert names == [base["name"] for base in knowledge(State.of_backup(SAMPLE_FOLDER))["bases"]]


# --- a running application -----------------------------------------------------------------------------------------


@pytest.fixture
def running(killed: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the profile in which a browser is at work; it has written other states and the final one again."""
    profile = tmp_path / "CherryStudio"
    shutil.copytree(killed, profile, symlinks=True)
    final = State.of_backup(SAMPLE_FOLDER)
    with browsing(profile) as browser:
        browser.play(*thrown_away(final).steps())
        browser.play(*deletions(thrown_away(final)), *among_others(final).steps())
        browser.begin()
        yield profile


def test_a_running_application_is_refused_but_for_the_users_word(
    running: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    target = tmp_path / "library"
    refused = line(run("migrate", running, "--to", target, "--now", NOW), 2)
    assert "running" in refused
    assert str(running) in refused
    assert not target.exists()
    done = run("migrate", running, "--to", target, "--now", NOW, "--json", "--while-running")
    assert done.status in (0, 1), done.stderr
    assert library(target) == wanted


def test_the_backup_of_a_running_application_is_no_running_application(
    running: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    """The application itself writes these backups, while it runs."""
    backup = as_backup_6(running, tmp_path / "backup")
    v1.migrate(backup, tmp_path / "library")
    assert library(tmp_path / "library") == wanted


# --- large notes ---------------------------------------------------------------------------------------------------


@needs("browser")
def test_large_notes_come_through(tmp_path: Path) -> None:
    """Chromium packs large values that pack, and keeps others in files of their own."""
    need_browser()
    words = random.Random(11)
    notes = {
        "dense": "".join(map(chr, words.choices(range(33, 127), k=300_000))),
        "wide": "".join(map(chr, words.choices(range(0x4E00, 0x9FFF), k=200_000))),
        "plain": "A line of a long note, again.\n" * 33_000,
        "mixed": "再来一行 again 🌱\n" * 40_000,
    }
    items = [v1.note(name, f"NoteLoader_{name}", text="") for name in notes]
    rows = [v1.Row(f"NoteLoader_{name}", text[:500]) for name, text in notes.items()]
    stored = [{**item, "baseId": "alpha", "content": notes[item["id"]]} for item in items]
    export = v1.Source([v1.base("alpha", *items)], {"alpha": rows}, notes=stored).write(tmp_path / "export")
    profile = tmp_path / "profile"
    older = [{**row, "content": row["content"][::-1]} for row in stored]
    state = State.of_export(export)
    with browsing(profile, over_http=True) as browser:
        browser.play({"do": "put", "table": "knowledge_notes", "rows": older})
        browser.play(*state.steps())
        browser.quit()
    in_files_of_their_own = [path for path in (profile / "IndexedDB").glob("*.blob/**/*") if path.is_file()]
    assert len(in_files_of_their_own) >= 2
    put_data_beside(profile, export / "KnowledgeBase", export / "Files")
    backup = as_backup_6(profile, tmp_path / "backup")
    sources = {
        "export": export,
        "zip": v1.pack(export, tmp_path / "5.zip"),
        "profile": profile,
        "backup": packed(backup, tmp_path / "6.zip"),
    }
    found = {}
    for name, source in sources.items():
        done = v1.migrate(source, tmp_path / f"library of {name}")
        assert {item["id"]: item["data"]["content"] for item in done.items("alpha")} == {
            done.item_id(note): text for note, text in notes.items()
        }
        found[name] = library(tmp_path / f"library of {name}")
    for name, content in found.items():
        assert content == found["export"], name
    assert not os.path.lexists(profile / "SingletonLock")
