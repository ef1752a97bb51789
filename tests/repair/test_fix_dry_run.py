"""``fix --dry-run`` announces what ``fix --yes`` does, in stores of every system; judged by the files afterwards."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import angel_store
import codex_mem_store
import older
import planted_rsclaw
import planted_v2
import pytest
import stranded
from faults import untouched
from harness import NOW, run, run_as_given

from regraft.cli import changes
from repair.fix import sequence

#: Damage of rsclaw.
_LOOSE, _STALE = "a file that nothing names", "a snapshot that lacks a chunk"
#: Kept by regraft itself.
OWN = ".regraft"


def library(*damages: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        target = planted_v2.library(folder)
        for name in damages:
            planted_v2.plant(name, target)
        return target

    return make


def older_library(folder: Path) -> Path:
    """A library of version 1 that has waste, too: it is only found once the layout is whole."""
    target = planted_v2.library(folder)
    planted_v2.plant("a vector of nobody", target)
    older.make_version_1(planted_v2.index(target))
    return target


def stranded_profile(folder: Path) -> Path:
    return stranded.profile(folder, stranded.some_source(), ("kb",))


def memory(folder: Path) -> Path:
    """A data folder of AngelMemory: records that go leave tags behind, which the next step removes."""
    return angel_store.damaged(folder / "data").root


def memory_with_more_tags(folder: Path) -> Path:
    store = angel_store.damaged(folder / "données")
    for path in sorted((store.root / "raw").rglob("*.md"))[:2]:
        path.unlink()
    return store.root


def notes(folder: Path) -> Path:
    path = codex_mem_store.write(folder / "codex", notes=4, excluded=1)
    codex_mem_store.embed(path)
    codex_mem_store.unindex(path)
    codex_mem_store.delete(path, codex_mem_store.note_id(0, 1))
    return path


def kb(*damages: str) -> Callable[[Path], Path]:
    return lambda folder: planted_rsclaw.planted(folder / "kb", *damages).root


STORES: dict[str, Callable[[Path], Path]] = {
    "a library with garbage": library("a body of nobody", "a vector of nobody"),
    "a library with damage of several kinds": library("another body id", "another body", "NaN"),
    "a library whose items are gone": library("a text of nobody", "a folder of no base"),
    "an older library": older_library,
    "a stranded profile": stranded_profile,
    "AngelMemory": memory,
    "AngelMemory without some files": memory_with_more_tags,
    "codex-mem": notes,
    "rsclaw": kb(_LOOSE, _STALE),
    "nothing to do": library(),
}


def tables(path: Path) -> dict[str, Counter[Any]]:
    """Return the rows of every ordinary table of a database, as plain SQLite reads them."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.text_factory = bytes
        names = [
            name.decode()
            for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
            if not (sql or b"").upper().startswith(b"CREATE VIRTUAL")
        ]
        return {name: Counter(db.execute(f'SELECT * FROM "{name}"').fetchall()) for name in names}


def contents(root: Path) -> dict[str, Any]:
    """Return what is in the files of a store; a database by its rows."""
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if OWN in path.relative_to(root).parts or not path.is_file() or name.endswith(("-wal", "-shm", "-journal")):
            continue
        raw = path.read_bytes()
        is_database = raw.startswith(b"SQLite format 3\0")
        found[name] = tables(path) if is_database else hashlib.sha256(raw).hexdigest()
    return found


def deleted(before: dict[str, Any], after: dict[str, Any], database: str, table: str) -> int:
    return (before[database][table] - after[database][table]).total()


def plain(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the actions of a document; names in the trash have the time and the run in them."""
    return [{key: value for key, value in one.items() if key != "message"} for one in document["actions"]]


def sentences(document: dict[str, Any]) -> list[str]:
    return sorted(one["message"] for one in document["actions"])


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return STORES[request.param](tmp_path / "store")


@pytest.mark.one_in(6)
def test_the_dry_run_shows_what_is_done(store: Path) -> None:
    root = store if store.is_dir() else store.parent
    with untouched(root):
        planned = run("fix", store, "--dry-run", "--json", "--now", NOW)
    before = contents(root)
    done = run("fix", store, "--json", "--yes", "--now", NOW)
    after = contents(root)
    assert plain(planned.document) == plain(done.document)
    assert sentences(planned.document) == sentences(done.document)
    assert bool(done.document["actions"]) == (before != after)
    kept = [{key: one[key] for key in ("finding", "base", "count", "repair")} for one in planned.document["left"]]
    stays = [{key: one[key] for key in ("finding", "base", "count", "repair")} for one in done.document["left"]]
    assert kept == stays
    assert planned.status == done.status
    assert str(root) not in json.dumps(planned.document["actions"])


@pytest.mark.thorough
@pytest.mark.parametrize("make", [memory, notes])
def test_a_relative_path_will_do(make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    place = store.relative_to(tmp_path)
    planned = run("fix", place, "--dry-run", "--json", "--now", NOW).document
    done = run("fix", place, "--yes", "--json", "--now", NOW).document
    assert plain(planned) == plain(done)
    assert sentences(planned) == sentences(done)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["library", "it's my library"])
def test_command_lines_have_the_path_that_was_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = planted_v2.library(tmp_path / "made")
    first = "(SELECT min(rowid) FROM embedding)"
    infinite = "x'0000807f' || substr(vector_blob, 5)"
    planted_v2.run_sql(
        planted_v2.index(store), f"UPDATE embedding SET vector_blob = CAST({infinite} AS BLOB) WHERE rowid = {first}"
    )
    shutil.rmtree(store / OWN)
    store.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    planned = run("fix", name, "--dry-run", "--json", "--now", NOW).document
    done = run("fix", name, "--yes", "--json", "--now", NOW).document
    [left] = planned["left"]
    assert [left] == done["left"]
    assert planned["actions"]
    quoted = f'"{name}"' if os.name == "nt" and " " in name else shlex.quote(name)
    assert f"regraft repair {quoted} --from SOURCE --base {planted_v2.KB}" in left["reason"]


@pytest.mark.thorough
@pytest.mark.parametrize(("make", "least"), [(memory, 1), (memory_with_more_tags, 2)])
def test_tags_that_are_announced_are_those_that_go(make: Callable[[Path], Path], least: int, tmp_path: Path) -> None:
    root = make(tmp_path)
    planned = run("fix", root, "--dry-run", "--json", "--now", NOW).document["actions"]
    before = contents(root)
    run("fix", root, "--yes", "-q", "--now", NOW)
    after = contents(root)
    (database,) = [name for name, found in before.items() if isinstance(found, dict) and "global_tags" in found]
    announced: Counter[str] = Counter()
    for action in planned:
        announced[action["action"]] += action["count"]
    assert announced["delete-tags"] == deleted(before, after, database, "global_tags")
    assert announced["delete-tags"] >= least


def test_a_person_is_shown_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = memory(tmp_path)
    planned = run("fix", root, "--dry-run", "--json", "--now", NOW).document
    seen: list[str] = []

    def declines(lines: Any, **_: Any) -> bool:
        seen.extend(lines)
        return False

    monkeypatch.setattr(changes, "confirm_plan", declines)
    before = contents(root)
    assert run_as_given("fix", root, "--now", NOW).status == 2
    assert contents(root) == before
    text = "\n".join(seen)
    assert all(one["message"] in text for one in planned["actions"][:5])
    assert "more" in text or len(planned["actions"]) <= len(seen)


def test_a_copy_that_has_no_room_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = memory(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(sequence.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with untouched(root):
        refused = run("fix", root, "--dry-run", "--json", "--now", NOW)
    assert refused.status == 2
    assert refused.document["error"]["code"] == "NotEnoughSpace"
