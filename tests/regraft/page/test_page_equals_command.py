"""What a button writes is, byte for byte, what the command writes that its page names."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lacking
import page_client
import page_tasks
import planted_v2
import profiles
import pytest
import stranded
from harness import REPO, command_words, run
from page_client import Client

from regraft.page import jobs
from regraft.page.views import command_line

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
CHOICES = {
    "model:openai::text-embedding-3-small": "map:acme::other",
    "provider:silicon::BAAI/bge-m3": "silicon",
    "model:silicon::BAAI/bge-m3": "provider",
}


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REGRAFT_LANG", "en")
    monkeypatch.setattr(jobs, "run_task", page_tasks.at_one_time)
    with page_client.client(tmp_path) as made:
        yield made


def written(folder: Path) -> dict[str, Any]:
    """Return the content of every file below a folder.

    Left out are the records of runs (ids of runs, reports with their times and paths) and the logs of SQLite, whose
    pages the main files have.
    """
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_record = ".regraft" in path.parts or path.name.startswith("report.")
        if is_record or path.is_dir() or path.name.endswith(("-wal", "-shm")):
            continue
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as pack:
                found[name] = {one.filename: hashlib.sha256(pack.read(one)).hexdigest() for one in pack.infolist()}
        else:
            found[name] = path.read_bytes()
    return found


def settle(folder: Path) -> None:
    """Move what SQLite has in logs into the files."""
    for path in folder.rglob("*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def rows_without_times(path: Path) -> dict[str, list[Any]]:
    """Return all rows of a database in their order, without the times when they were written."""
    with closing(sqlite3.connect(path)) as db:
        found = {}
        for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if not row[1].endswith("ed_at")]
            if columns:
                found[table] = db.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        return found


class Twin:
    """Two equal folders: ``page`` for the buttons and ``command`` for the commands."""

    def __init__(self, folder: Path, reader: Client) -> None:
        self.page, self.command = folder / "page", folder / "command"
        self.page.mkdir()
        self._reader = reader

    def split(self) -> None:
        """Copy what was made for the page."""
        shutil.copytree(self.page, self.command, symlinks=True)

    def press(self, journey: str, **fields: Any) -> Any:
        """Plan and confirm a journey, run its command in the other folder, and compare both."""
        before = written(self.page)
        planned = self._reader.start(journey, **fields)
        assert planned.state == "done", planned.outcome
        assert written(self.page) == before, "a plan writes nothing"
        done = self._reader.confirm(planned)
        assert done.state == "done", done.outcome
        # The command is the one that the page names, for the other folder.
        words = command_words(command_line(done.task))[1:]
        own = [word.replace(str(self.page), str(self.command)) for word in words]
        assert own != words
        time = ["--now", page_tasks.NOW] if "now_ms" in getattr(done.task.options, "__struct_fields__", ()) else []
        # In a terminal the command asks, as the page does by its button.
        consent = ["--yes"] if done.task.function == "migrate_into_profile" else []
        outcome = run(*own, *time, *consent)
        assert outcome.status in (0, 1), outcome.stderr
        assert self.compared(has_answers=journey == "backfill") != before, "something was written"
        return done

    def compared(self, *, has_answers: bool = False) -> dict[str, Any]:
        """Assert that both folders are equal, and return what is in them.

        Vectors that were computed have the time of their answer, which no option sets.
        """
        for folder in (self.page, self.command):
            settle(folder)
        ours, theirs = written(self.page), written(self.command)
        assert list(ours) == list(theirs)
        for name in ours:
            if ours[name] != theirs[name]:
                assert has_answers and name.endswith("index.sqlite"), name
                assert rows_without_times(self.page / name) == rows_without_times(self.command / name)
        return ours


@pytest.fixture
def twin(tmp_path: Path, reader: Client) -> Twin:
    return Twin(tmp_path, reader)


def undo_of(twin: Twin, store: Path, run_id: str, *, has_answers: bool = False) -> None:
    """Undo a run by the page and the last one by the command, and compare both."""
    done = twin._reader.confirm(twin._reader.start("undo", path=store, run=run_id))
    assert done.state == "done", done.outcome
    other = Path(str(store).replace(str(twin.page), str(twin.command)))
    assert run("undo", other).status == 0
    twin.compared(has_answers=has_answers)


@pytest.mark.thorough
def test_an_upgrade_into_a_profile_and_its_undo(twin: Twin) -> None:
    profile = profiles.profile(twin.page / "profile")
    before = profiles.tables(profile)
    twin.split()
    done = twin.press("upgrade", path=SAMPLE, profile=profile, library=str(twin.page / "library"), **CHOICES)
    assert profiles.tables(profile) != before
    undo_of(twin, profile, done.outcome.report.install.undo)
    assert profiles.tables(profile) == before and not (twin.page / "library").exists()


def test_a_library_alone(twin: Twin) -> None:
    twin.split()
    twin.press("upgrade", path=SAMPLE, profile_at="-", library=str(twin.page / "library"))


@pytest.mark.thorough
def test_a_repair_and_its_undo(twin: Twin) -> None:
    library = planted_v2.library(twin.page)
    for name in ("a gap", "a vector of nobody"):
        planted_v2.plant(name, library)
    twin.split()
    before = written(twin.page)
    done = twin.press("fix", path=library)
    undo_of(twin, library, done.outcome.report.undo)
    assert set(written(twin.page)) == set(before)


@pytest.mark.thorough
def test_a_rescue_and_its_undo(twin: Twin) -> None:
    profile = stranded.profile(twin.page, stranded.some_source(), ("kb",))
    twin.split()
    done = twin.press("rescue", path=profile)
    undo_of(twin, profile, done.outcome.report.undo)


@pytest.mark.thorough
def test_bases_that_move_by_a_pack(twin: Twin) -> None:
    library = planted_v2.library(twin.page)
    profile = profiles.profile(twin.page / "profile")
    twin.split()
    twin.press("pack", path=library, target=str(twin.page / "moved.zip"))
    done = twin.press("install", path=twin.page / "moved.zip", profile=profile)
    undo_of(twin, profile, done.outcome.report.undo)


@pytest.mark.thorough
def test_vectors_that_are_computed(twin: Twin, server: Any, config: Path) -> None:
    store = lacking.taken_away(lacking.library(twin.page))
    twin.split()
    done = twin.press("backfill", path=store, config=str(config), embedder="mine")
    assert sum(scope.newly_ready for scope in done.outcome.report.scopes) > 0
    undo_of(twin, store, done.outcome.report.undo, has_answers=True)
