"""The main commands where the system behaves as Windows does (``tests/support/imitated_windows.py``)."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import imitated_windows
import planted_v2
import profiles
import pytest
from changing_commands import CASES, copied
from fault_server import FaultServer
from faults import Source, item, write_vectors
from harness import NOW, run
from imitated_windows import Windows, imitated

pytestmark = imitated_windows.linux


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer(dimensions=4) as found:
        yield found


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    return {}


@pytest.fixture
def windows() -> Iterator[Windows]:
    with imitated() as found:
        yield found


def files(folder: Path) -> dict[str, str]:
    """Return every file below a folder but regraft's own, by name, with the SHA-256 of its bytes."""
    found = {}
    for within, _, names in os.walk(folder):
        for name in names:
            path = Path(within, name)
            if ".regraft" not in path.parts:
                found[path.relative_to(folder).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def a_source(folder: Path, names: tuple[str, ...] = ("harbour.txt", "lamp.txt")) -> Path:
    """Write a v1 source of one base with an uploaded file of each name, and a note."""
    (folder / "export").mkdir(parents=True)
    source = Source(folder / "export")
    items = [source.upload(f"file-{number}", name, name.encode()) for number, name in enumerate(names)]
    items.append(item("note", "note", "A lamp is lit at dusk."))
    source.base("kb", items, dimensions=8)
    write_vectors(source.vectors("kb"), {f"item-file-{number}": 2 for number in range(len(names))} | {"note": 1})
    return source.write()


# --- the imitation itself --------------------------------------------------------------------------------------------


def test_the_imitation_refuses_what_windows_refuses(tmp_path: Path) -> None:
    for name in ("file", "other", "folder/inside", "read-only", "removed"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "read-only").chmod(0o444)
    with imitated() as windows:
        with (tmp_path / "file").open("rb"), pytest.raises(PermissionError):
            (tmp_path / "file").unlink()
        with closing(sqlite3.connect(tmp_path / "file.sqlite")) as db:
            db.execute("CREATE TABLE t (x)")
            with pytest.raises(PermissionError):
                (tmp_path / "other").replace(tmp_path / "file.sqlite")
        with (tmp_path / "folder/inside").open("rb"), pytest.raises(PermissionError):
            (tmp_path / "folder").replace(tmp_path / "moved")
        with pytest.raises(PermissionError):
            (tmp_path / "read-only").unlink()
        with pytest.raises(OSError, match="Invalid argument"):
            (tmp_path / "link").hardlink_to(tmp_path / "file")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "/".join(["a" * 99] * 3)).open("wb")
        with pytest.raises(TypeError):
            os.utime(1)
        with pytest.raises(NotImplementedError):
            os.stat("file", dir_fd=3)
        (tmp_path / "removed").unlink()
        assert len(windows.refused) == 5


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(10)
@pytest.mark.parametrize("name", CASES)
def test_a_changing_command_does_its_work_and_is_taken_back(
    name: str, server: FaultServer, built: dict[str, Any], tmp_path: Path
) -> None:
    expected = copied(name, server, built, tmp_path)
    assert expected.run("--yes").status == CASES[name].finished
    after = expected.contents()
    work = copied(name, server, built, tmp_path)
    before = work.contents()
    with imitated():
        done = work.run("--yes")
        assert done.status == CASES[name].finished, done.stderr
    if CASES[name].again != "refused" and not CASES[name].embeds:
        assert work.contents().keys() == after.keys()
    with imitated():
        work.undo_all()
    assert work.contents() == before


def test_a_migration_and_what_follows(tmp_path: Path, windows: Windows) -> None:
    source, library = a_source(tmp_path), tmp_path / "library"
    for outcome in ("written", "unchanged"):
        done = run("migrate", source, "--to", library, "--json", "--now", NOW)
        assert done.status == 0, done
        assert [base["outcome"] for base in done.document["bases"]] == [outcome]
    assert run("check", library, "--json", "--now", NOW).document["findings"] == []
    assert run("migrate", source, "--to", library, "--json", "--verify").status == 0
    profile = profiles.profile(tmp_path / "profile")
    before = files(profile)
    assert run("install", library, "--profile", profile, "--json", "--now", NOW).status == 0
    assert files(profile) != before
    assert run("undo", profile, "--json").status == 0
    assert [name for name in files(profile) if "KnowledgeBase" in name] == []


def test_a_pack_is_written_and_leaves_nothing_beside_it(tmp_path: Path, windows: Windows) -> None:
    library = planted_v2.library(tmp_path)
    target = tmp_path / "packs" / "bases.zip"
    target.parent.mkdir()
    for _ in range(2):
        assert run("pack", library, target, "--now", NOW, "--json").status == 0
        assert [path.name for path in target.parent.iterdir()] == ["bases.zip"]
    with zipfile.ZipFile(target) as pack:
        assert pack.testzip() is None
        index = next(name for name in pack.namelist() if name.endswith("index.sqlite"))
        assert pack.read(index) == planted_v2.index(library).read_bytes()
    (target.parent / "other.zip").write_bytes(b"theirs")
    assert run("pack", library, target.parent / "other.zip", "--now", NOW, "--json").status == 2
    assert (target.parent / "other.zip").read_bytes() == b"theirs"


def test_two_packs_never_write_one_file(tmp_path: Path, windows: Windows) -> None:
    from repair.cherry_v2 import pack

    library, target = planted_v2.library(tmp_path), tmp_path / "bases.zip"
    with pack.writable.allow_writes(tmp_path, entries_only=True), pack._new_part_file(target) as part:
        part.write_bytes(b"half of it")
        refused = run("pack", library, target, "--now", NOW, "--json")
        assert (refused.status, refused.document["error"]["code"]) == (2, "TargetLocked")
        assert part.read_bytes() == b"half of it"
    assert not target.exists()
    assert run("pack", library, target, "--now", NOW, "--json").status == 0


def test_read_only_files_of_a_library_are_no_obstacle(tmp_path: Path, windows: Windows) -> None:
    source, library = a_source(tmp_path), tmp_path / "library"
    assert run("migrate", source, "--to", library, "--json", "--now", NOW).status == 0
    for within, _, names in os.walk(library / "KnowledgeBase"):
        for name in names:
            if not name.endswith(".sqlite"):
                Path(within, name).chmod(stat.S_IREAD)
    for report in ("report.json", "report.html"):
        (library / report).chmod(stat.S_IREAD)
    (source / "Files" / "file-0.txt").write_bytes(b"changed")
    write_vectors(source / "KnowledgeBase" / "kb", {"item-file-0": 3, "item-file-1": 2, "note": 1})
    done = run("migrate", source, "--to", library, "--json", "--now", NOW)
    assert [base["outcome"] for base in done.document["bases"]] == ["written"], done
    [raw] = (library / "KnowledgeBase").glob("*/raw/harbour.txt")
    assert raw.read_bytes() == b"changed"


# --- long paths ------------------------------------------------------------------------------------------------------


def deep(folder: Path, length: int) -> Path:
    """Return a new folder at a path of so many characters."""
    while len(str(folder)) < length:
        folder = folder / ("d" * min(60, max(1, length - len(str(folder)) - 1)))
    folder.mkdir(parents=True)
    return folder


def test_files_at_long_paths_are_migrated_checked_packed_and_installed(tmp_path: Path) -> None:
    source = a_source(tmp_path, ("n" * 150 + ".txt", "lamp.txt"))
    library = deep(tmp_path, 180) / "library"
    profile = profiles.profile(deep(tmp_path / "p", 150) / "profile")
    with imitated() as windows:
        done = run("migrate", source, "--to", library, "--json", "--now", NOW)
        assert done.status == 0, done
        checked = run("check", library, "--json", "--now", NOW).document
        assert checked["findings"] == []
        assert run("migrate", source, "--to", library, "--json").document["bases"][0]["outcome"] == "unchanged"
        assert run("pack", library, tmp_path / "bases.zip", "--json", "--now", NOW).status == 0
        assert run("install", library, "--profile", profile, "--json", "--now", NOW).status == 0
    assert [one for one in windows.refused if one.startswith("too long")] == []
    [raw] = (library / "KnowledgeBase").glob("*/raw/n*.txt")
    assert len(str(raw)) > imitated_windows.LONGEST
    assert raw.read_bytes() == ("n" * 150 + ".txt").encode()
    with zipfile.ZipFile(tmp_path / "bases.zip") as pack:
        assert [name for name in pack.namelist() if name.endswith("n.txt")]
    assert len(list(profile.rglob("n*n.txt"))) == 1


def test_a_name_that_the_system_does_not_take_is_a_failure_of_its_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where extended paths do not help either."""
    source = a_source(tmp_path, ("n" * 150 + ".txt", "lamp.txt"))
    library = deep(tmp_path, 100) / "library"
    with imitated():
        monkeypatch.setattr(imitated_windows.file_paths, "extended_path", os.fspath)
        done = run("migrate", source, "--to", library, "--json", "--now", NOW)
        assert done.status == 1, done
        [base] = done.document["bases"]
        assert (base["outcome"], base["rows"]["read"], base["rows"]["carried"]) == ("written", 5, 5)
        [warning] = [one for one in done.document["warnings"] if one["code"] == "path_too_long"]
        assert warning["item"] == "item-file-0"
        assert "nnn.txt: the system allows no path of" in warning["message"]
    [lamp] = (library / "KnowledgeBase").glob("*/raw/*.txt")
    assert lamp.read_bytes() == b"lamp.txt"
    with closing(sqlite3.connect(next((library / "KnowledgeBase").glob("*/.cherry/index.sqlite")))) as db:
        assert db.execute("SELECT count(*) FROM embedding").fetchone() == (5,)


def test_a_file_at_a_path_that_cannot_be_looked_at_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = a_source(tmp_path, ("n" * 150 + ".txt", "lamp.txt"))
    library = deep(tmp_path, 140) / "library"
    assert run("migrate", source, "--to", library, "--json", "--now", NOW).status == 0
    (next((library / "KnowledgeBase").glob("*/raw/lamp.txt"))).unlink()
    with imitated():
        monkeypatch.setattr(imitated_windows.file_paths, "extended_path", os.fspath)
        document = run("check", library, "--json", "--now", NOW).document
    [missing] = [one for one in document["findings"] if one["name"] == "raw.missing"]
    assert missing["count"] == 1
    assert "nnn.txt: its path is too long for this system" in json.dumps(document)


def test_a_missing_file_at_a_long_path_is_still_called_missing(tmp_path: Path) -> None:
    source = a_source(tmp_path, ("n" * 150 + ".txt", "lamp.txt"))
    library = deep(tmp_path, 140) / "library"
    assert run("migrate", source, "--to", library, "--json", "--now", NOW).status == 0
    next((library / "KnowledgeBase").glob("*/raw/n*.txt")).unlink()
    with imitated():
        document = run("check", library, "--json", "--now", NOW).document
    [missing] = [one for one in document["findings"] if one["name"] == "raw.missing"]
    assert missing["count"] == 1
    assert "too long" not in json.dumps(document)


def test_a_base_with_a_name_that_the_profile_cannot_take_stays_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, library = a_source(tmp_path, ("n" * 100 + ".txt", "lamp.txt")), tmp_path / "library"
    assert run("migrate", source, "--to", library, "--json", "--now", NOW).status == 0
    profile = profiles.profile(deep(tmp_path / "p", 150) / "profile")
    before = files(profile)
    with imitated():
        monkeypatch.setattr(imitated_windows.file_paths, "extended_path", os.fspath)
        outcome = run("install", library, "--profile", profile, "--now", NOW, "--json")
    assert outcome.status == 1, outcome
    [left] = outcome.document["left"]
    assert f"the path of its file raw/{'n' * 100}.txt would be too long in the profile" in left["reason"]
    assert files(profile) == before


@pytest.mark.parametrize(("name", "length"), [("sync", 10), ("gc of a library", 10), ("gc of a library", 90)])
def test_a_run_that_keeps_files_at_long_paths_is_undone(
    name: str, length: int, server: FaultServer, tmp_path: Path
) -> None:
    work = copied(name, server, {}, deep(tmp_path, 150))
    orphan = planted_v2.index(work.root).parent.parent / "raw" / f"{'n' * length}.txt"
    orphan.write_bytes(b"an orphan")
    os.utime(orphan, (0, 0))
    before = work.contents()
    with imitated() as windows:
        done = work.run("--yes", *(("--only", "raw.orphan") if CASES[name].command == ("gc",) else ()))
        assert done.status == CASES[name].finished, done
    kept = [path for path in (work.root / ".regraft" / "trash").rglob("*.*") if path.is_file()]
    assert kept
    assert [path for path in kept if len(str(path)) <= imitated_windows.LONGEST] == []
    assert {path.name for path in kept} <= {Path(path).name for path in before.keys() - work.contents().keys()}
    with imitated():
        work.undo_all()
    assert work.contents() == before
    assert [one for one in windows.refused if one.startswith("too long")] == []
