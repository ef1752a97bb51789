"""Links in a store that somebody else made: no command writes, moves or removes anything through one."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import angel_store
import apsw
import codex_mem_store
import lacking
import pytest
from extras import needs, optional
from faults import posix, untouched
from harness import NOW, REPO, Outcome, nothing_opened, run
from planted_v2 import KB, library, plant
from profiles import profile

from regraft.disk import durable, writable
from regraft.ledger import ledger
from repair.changes import execution, undo

pytestmark = posix

BASE = f"KnowledgeBase/{KB}"
#: What is replaced by a link to where it is, or, where it is not there, to something of the user's.
FOLDERS = (
    *(".regraft", ".regraft/undo", ".regraft/undo/RUN", ".regraft/work", ".regraft/work/run", ".regraft/staging"),
    *(".regraft/replaced", ".regraft/trash", ".regraft/trash/2026-01-01-x", ".regraft/restoring"),
    *("KnowledgeBase", BASE, f"{BASE}/raw", f"{BASE}/.cherry"),
)
FILES = (
    *(".regraft/ledger.sqlite", ".regraft/ledger.sqlite-journal", ".regraft/backfill.sqlite", "catalog.sqlite"),
    *("catalog.sqlite-wal", f"{BASE}/.cherry/index.sqlite", f"{BASE}/.cherry/index.sqlite-shm"),
    *("report.json", "report.html"),
)
CODES = {"LinkInStore", "SourceUnrecognised", "NotChanged", "SourceUnreadable", "TargetNotOurs", "SourceNotFound"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a place with a library that a run has changed, and sources that something can be added from."""
    place = tmp_path_factory.mktemp("made")
    target = library(place)
    plant("words of no body", target)
    assert run("repair", target, "--yes").status == 0
    plant("words of no body", target)
    if optional("pyarrow"):
        assert run("export", target, place / "units.parquet").status == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Iterator[Path]:
    """Copy that place, and put something of the user's beside the library."""
    copy = shutil.copytree(made, tmp_path / "place")
    (copy / "victim" / "docs").mkdir(parents=True)
    (copy / "victim" / "letter").write_text("dear")
    (copy / "victim" / "docs" / "plan").write_text("secret")
    yield copy


def linked(place: Path, name: str, *, is_folder: bool) -> Path:
    """Put a link in the place of something of the library, and return it; what was there is among the user's now."""
    runs = sorted(one.name for one in (place / "library" / ".regraft" / "undo").iterdir())
    path = place / "library" / name.replace("RUN", runs[0])
    goal = place / "victim" / ("docs" if is_folder else "letter")
    if path.exists():
        goal = place / "victim" / "moved"
        path.rename(goal)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(goal, target_is_directory=is_folder)
    return path


def changing_commands(place: Path) -> list[tuple[object, ...]]:
    """Return what changes a library, as it is called."""
    store = place / "library"
    config = lacking.configured(place / "regraft.yaml", "http://127.0.0.1:9/v1")
    return [
        *((command, store, "--yes") for command in ("repair", "gc", "reconcile", "upgrade", "undo")),
        ("gc", store, "--vacuum", "--yes"),
        ("repair", store, "--dry-run"),
        ("backfill", store, "--config", config, "--yes"),
        ("restore", f"{store}/{BASE}", "--model", "acme::embed-small", "--dimensions", 8, "--config", config, "--yes"),
        ("migrate", place / "v1", "--to", store, "--now", NOW, "--yes"),
        *([("import", place / "units.parquet", "--to", store, "--yes")] if optional("pyarrow") else []),
    ]


def error_of(done: Outcome) -> tuple[str, str]:
    """Return the code and the message of a refusal."""
    assert done.status == 2, done
    error = done.document["error"]
    assert "\n" not in error["message"]
    return error["code"], error["message"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_no_command_changes_anything_through_a_link(name: str, place: Path) -> None:
    link = linked(place, name, is_folder=name in FOLDERS)
    commands = changing_commands(place)
    with untouched(place):
        for command in commands:
            code, message = error_of(run(*command, "--json"))
            assert code == "LinkInStore", (command, message)
            assert link.name in message, (command, message)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*FOLDERS, *FILES])
def test_looking_goes_on(name: str, place: Path) -> None:
    linked(place, name, is_folder=name in FOLDERS)
    with untouched(place):
        for command in ("inspect", "check", "history"):
            done = run(command, place / "library", "--json")
            assert done.status in (0, 1, 2), done
            assert isinstance(done.document, dict)


def test_what_the_user_names_may_be_a_link(place: Path) -> None:
    (place / "mine").symlink_to(place / "library", target_is_directory=True)
    (place / "above").symlink_to(place, target_is_directory=True)
    assert run("repair", place / "mine", "--yes").status == 0
    planted = plant("words of no body", place / "library")
    assert planted.finding in names_found(place / "library")
    assert run("repair", place / "above" / "library", "--yes").status == 0
    assert planted.finding not in names_found(place / "library")
    assert run("migrate", place / "v1", "--to", place / "above" / "new", "--now", NOW, "--yes").status == 0
    assert (place / "new" / "catalog.sqlite").is_file()
    assert run("pack", place / "mine", place / "above" / "pack.zip").status == 0
    assert zipfile.is_zipfile(place / "pack.zip")


def names_found(library: Path) -> set[str]:
    return {one["name"] for one in run("check", library, "--deep", "--json").document["findings"]}


@needs("parquet")
def test_an_export_may_go_below_a_link_that_the_user_names(place: Path) -> None:
    (place / "mine").symlink_to(place / "library", target_is_directory=True)
    (place / "above").symlink_to(place, target_is_directory=True)
    assert run("export", place / "mine", place / "above" / "units2.parquet").status == 0
    assert (place / "units2.parquet").read_bytes()[:4] == b"PAR1"


def test_a_link_of_the_users_below_raw_is_no_part_of_it(place: Path) -> None:
    """A stray link goes to the trash as a link, and comes back as one."""
    raw = place / "library" / BASE / "raw"
    (raw / "stray").symlink_to(place / "victim" / "letter")
    with untouched(place / "victim"):
        assert run("gc", place / "library", "--yes").status in (0, 1)
        assert run("repair", place / "library", "--yes").status in (0, 1)
    run("undo", place / "library", "--yes")
    assert (place / "victim" / "letter").read_text("utf-8") == "dear"


# --- profiles and other systems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Data", "Data/KnowledgeBase", "cherrystudio.sqlite", ".regraft"])
@pytest.mark.parametrize("command", ["install", "rescue", "repair", "gc"])
def test_a_profile_with_a_link(name: str, command: str, place: Path) -> None:
    root = profile(place / "profile")
    moved = root / name
    moved.parent.mkdir(parents=True, exist_ok=True)
    goal = place / "victim" / "moved"
    moved.rename(goal) if moved.exists() else goal.mkdir()
    moved.symlink_to(goal, target_is_directory=goal.is_dir())
    line = ["install", place / "library", "--profile", root] if command == "install" else [command, root]
    with untouched(place):
        code, _ = error_of(run(*line, "--yes", "--json"))
    assert code in CODES


def copies(tmp_path: Path) -> tuple[Path, Path]:
    victim = tmp_path / "victim"
    (victim / "docs").mkdir(parents=True)
    (victim / "letter").write_text("dear")
    return victim / "letter", victim / "docs"


@pytest.mark.parametrize("command", ["repair", "reconcile", "rebuild", "clear-failed", "backfill", "undo"])
@pytest.mark.parametrize("suffix", ["-wal", ".semantic.sqlite", "own", "own file"])
def test_codex_mem_with_a_link(command: str, suffix: str, tmp_path: Path) -> None:
    letter, docs = copies(tmp_path)
    store = codex_mem_store.write(tmp_path / "store", wal=False)
    codex_mem_store.migrate(store)
    store.with_name(".regraft").mkdir()
    path = {
        "own": store.with_name(".regraft"),
        "own file": store.with_name(".regraft") / ledger.FILE,
        ".semantic.sqlite": Path(str(codex_mem_store.database.sidecar_path(store))),
    }.get(suffix, Path(f"{store}{suffix}"))
    goal = docs if suffix == "own" else letter
    if path.is_dir():
        path.rmdir()
    elif path.exists():
        goal = letter.with_name("moved")
        path.rename(goal)
    path.symlink_to(goal)
    with untouched(tmp_path):
        code, message = error_of(run(command, store, "--yes", "--json"))
        assert code in {"LinkInStore", *CODES}, message


@pytest.mark.parametrize("command", ["repair", "gc", "reconcile"])
@pytest.mark.parametrize("name", [".regraft", "memory_center", "memory_center/index", "STATE", "FILES", "CHROMA"])
def test_angel_memory_with_a_link(command: str, name: str, tmp_path: Path) -> None:
    copies(tmp_path)
    store = angel_store.damaged(tmp_path / "data")
    known = {"STATE": store.state_file, "FILES": store.file_index, "CHROMA": store.chroma()}
    path, goal = known.get(name, store.root / name), tmp_path / "victim" / "moved"
    path.rename(goal) if path.exists() else goal.mkdir()
    path.symlink_to(goal, target_is_directory=goal.is_dir())
    with untouched(tmp_path):
        code, message = error_of(run(command, store.root, "--yes", "--json"))
        assert code in {*CODES, "EmbedderUnnamed"}, message


# --- at the moment of the act ----------------------------------------------------------------------------------------


def test_a_link_that_comes_while_a_run_is_at_work(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All was well when the run began: what is written next is looked at again."""
    own = place / "library" / ".regraft"
    real = execution.ChangeExecutor.make

    def make(self: execution.ChangeExecutor, change: object) -> None:
        own.rename(place / "victim" / "own")
        own.symlink_to(place / "victim" / "docs", target_is_directory=True)
        real(self, change)  # type: ignore[arg-type]

    monkeypatch.setattr(execution.ChangeExecutor, "make", make)
    done = run("repair", place / "library", "--yes", "--json")
    assert done.status == 2, done
    assert sorted(one.name for one in (place / "victim" / "docs").iterdir()) == ["plan"]
    assert (place / "victim" / "letter").read_text("utf-8") == "dear"


def test_a_root_that_becomes_a_link_to_somewhere_else(place: Path) -> None:
    """Where the user's own words lead is settled when a command begins."""
    root, other = place / "root", place / "victim"
    (place / "first").mkdir()
    root.symlink_to(place / "first", target_is_directory=True)
    with nothing_opened(), writable.allow_writes(root):
        durable.put_text(root / "a", "x")
        root.unlink()
        root.symlink_to(other, target_is_directory=True)
        with untouched(other), pytest.raises(writable.LinkInStore):
            durable.put_text(root / "letter", "x")
        with untouched(other), pytest.raises(writable.LinkInStore):
            durable.remove_tree(root / "docs")
    assert (place / "first" / "a").read_text("utf-8") == "x"


Act = Callable[[Path, ledger.Ledger], object]


@pytest.mark.parametrize(
    "path", ["out/letter", "out/docs", "out/new", "KnowledgeBase/out/letter"], ids=lambda path: path.replace("/", " ")
)
@pytest.mark.parametrize("state", ["intended", "undoing", "done"])
@pytest.mark.parametrize("act", [execution.recover, lambda root, book: undo.undo_changes(root, book, RUN)])
def test_a_change_that_leads_out_by_a_link(act: Act, state: str, path: str, place: Path) -> None:
    """What the ledger says may be plain: the link is in the store."""
    store = place / "library"
    for folder in (store, store / "KnowledgeBase"):
        (folder / "out").symlink_to(place / "victim", target_is_directory=True)
    kept = store / ".regraft" / "undo" / RUN / "000001"
    kept.parent.mkdir(parents=True)
    kept.write_text("theirs")
    with writable.allow_writes(store), ledger.open_exclusive(store) as book:
        book.begin_run("repair", str(store), RUN)
        detail = {"new": True, "mark": None, "staged": f"work/{RUN}/000001", "made": None, "actions": [0, 0]}
        number = book.changes.intend(RUN, "file", path, f"undo/{RUN}/000001", detail)
        book.changes.set_state(number, state, 6)  # type: ignore[arg-type]
        with untouched(place / "victim"):
            try:
                act(store, book)
            except Exception as error:
                assert type(error).__name__ in {"LinkInStore", "LedgerUnreadable", "UndoRefused"}, error
    assert os.path.lexists(store / "out")


RUN = "20260101T000000Z-abcdef"


# --- journals that name another file ---------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [f"{BASE}/.cherry/index.sqlite", "catalog.sqlite", ".regraft/ledger.sqlite"])
def test_a_journal_that_names_a_file_of_the_users(name: str, place: Path) -> None:
    """SQLite removes the file that such a journal names, for whoever opens the database to write, or a copy of it."""
    path, table = place / "library" / name, {"index.sqlite": "meta", "catalog.sqlite": "knowledge_base"}
    unfinished(path, table.get(path.name, "run"), place / "victim" / "letter")
    commands = [("check", place / "library"), ("inspect", place / "library"), *changing_commands(place)]
    with untouched(place / "victim"):
        for command in commands:
            done = run(*command, "--json")
            # Nobody answers an embedding.
            assert done.status in (0, 1, 2) or command[0] == "restore", done
            # A catalog that nothing is to be changed in is only read.
            if command == commands[2] and path.name != "catalog.sqlite":
                assert error_of(done)[0] == "JournalNamesAnother"


def unfinished(path: Path, table: str, named: Path) -> None:
    """Leave a database as a writer that was killed does, with a journal that names a file at its end."""
    with closing(apsw.Connection(str(path))) as db:
        column = db.execute(
            f"SELECT name FROM pragma_table_info('{table}') WHERE type = 'INTEGER' ORDER BY cid DESC LIMIT 1"
        ).get
        db.execute(f"BEGIN; UPDATE {table} SET {column} = {column} + 1")
        db.cache_flush()
        content, journal = path.read_bytes(), Path(f"{path}-journal").read_bytes()
    path.write_bytes(content)
    name = os.fsencode(named)
    tail = (2**30 // 4096 + 1).to_bytes(4) + name + len(name).to_bytes(4) + sum(name).to_bytes(4)
    Path(f"{path}-journal").write_bytes(journal + tail + journal[:8])


@pytest.mark.one_in(3)
@pytest.mark.skipif(os.mkdir not in os.supports_dir_fd, reason="no such folders can be made")
@pytest.mark.parametrize(
    ("name", "command"),
    [("work", "gc"), ("work", "repair"), ("work", "fix"), ("work", "migrate"), ("staging", "migrate")],
)
def test_folders_without_an_end_in_what_regraft_leaves_are_removed(name: str, command: str, tmp_path: Path) -> None:
    library = tmp_path / "library"
    assert run("migrate", REPO / "sample_v1" / "backup", "--to", library).status == 1
    place = library / ".regraft" / name
    place.mkdir(exist_ok=True)
    handle = os.open(place, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("deeper", dir_fd=handle)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    words = ("migrate", REPO / "sample_v1" / "backup", "--to") if command == "migrate" else (command,)
    try:
        done = run(*words, library)
        assert done.status in (0, 1), done.stderr
        assert not (place / "deeper").exists()
    finally:
        # Nothing else removes it.
        durable.remove_tree(place)
