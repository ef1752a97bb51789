"""A catalog that is named as a file is the one that is read, under any name; nothing beside it takes its place."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from faults import untouched
from harness import run
from planted_v2 import KB, OTHER, library

import regraft
from regraft.errors import NotChanged

NAMES = (
    "backup.sqlite",
    "cherrystudio.sqlite.bak",
    "catalog (1).sqlite",
    "备份 📦.db",
    "no-ending",
    "catalog.sqlite.old",
)
CHANGING = ("repair", "fix", "gc", "reconcile", "upgrade", "rescue", "history", "undo")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "library"
    shutil.copytree(made, place)
    yield place


def renamed_copy(store: Path, name: str, said: str = "Only in the copy") -> Path:
    """Copy the catalog under another name, with one base less and another name of the other one."""
    copy = store / name
    shutil.copyfile(store / "catalog.sqlite", copy)
    with closing(sqlite3.connect(copy)) as db, db:
        db.execute("UPDATE knowledge_base SET name = ? WHERE id = ?", (said, KB))
        db.execute("DELETE FROM knowledge_item WHERE base_id = ?", (OTHER,))
        db.execute("DELETE FROM knowledge_base WHERE id = ?", (OTHER,))
    return copy


def names_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return {name for (name,) in db.execute("SELECT name FROM knowledge_base")}


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_the_named_file_is_read(store: Path, name: str) -> None:
    copy = renamed_copy(store, name)
    with untouched(store):
        seen = run("inspect", copy, "--json")
        checked = run("check", copy, "--json")
    assert {one["name"] for one in seen.document["bases"]} == names_in(copy) != names_in(store / "catalog.sqlite")
    assert seen.document["source"]["path"] == checked.document["source"]["path"] == str(copy)
    assert checked.document["checked"]["bases"] == 1
    found = {one["name"] for one in checked.document["findings"]}
    # The base that only the other catalog has is no folder without a row here, and no file is one of v1.
    assert found.isdisjoint({"index.orphan", "v1.leftover", "base.no-index"})
    assert all(one["repair"] is None for one in checked.document["findings"])


@pytest.mark.parametrize("name", NAMES)
def test_alone_it_is_read_too(store: Path, name: str, tmp_path: Path) -> None:
    copy = renamed_copy(store, name)
    alone = tmp_path / "alone" / name
    alone.parent.mkdir()
    shutil.move(copy, alone)
    with untouched(alone.parent):
        seen = run("inspect", alone, "--json")
        checked = run("check", alone, "--json")
    assert {one["name"] for one in seen.document["bases"]} == names_in(alone)
    assert {one["name"] for one in checked.document["findings"]} >= {"base.no-index"}
    assert "v1.leftover" not in {one["name"] for one in checked.document["findings"]}


@pytest.mark.parametrize("command", CHANGING)
def test_a_copy_is_never_changed(store: Path, command: str) -> None:
    copy = renamed_copy(store, "backup.sqlite")
    with untouched(store):
        refused = run(command, copy, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "NotChanged")
    assert "a copy of a catalog" in refused.document["error"]["message"]
    assert str(copy) in refused.document["error"]["message"]


def test_neither_is_it_packed_nor_migrated(store: Path, tmp_path: Path) -> None:
    copy = renamed_copy(store, "backup.sqlite")
    with untouched(store):
        for arguments in (("pack", copy, tmp_path / "p.zip"), ("migrate", copy, "--to", tmp_path / "to")):
            refused = run(*arguments, "--json")
            assert refused.status == 2, refused
            assert str(copy) in refused.document["error"]["message"]
    assert not (tmp_path / "p.zip").exists()
    assert not (tmp_path / "to").exists()
    with pytest.raises(NotChanged):
        regraft.api.repair(copy)


def test_what_is_searched_is_named_by_the_copy(store: Path) -> None:
    copy = renamed_copy(store, "backup.sqlite")
    found = run("search", copy, "text", "--base", KB, "--mode", "bm25", "--json").document
    assert found["base_name"] == "Only in the copy"


def test_the_catalog_beside_a_live_database_is_read_where_it_is_named(store: Path) -> None:
    live = store / "cherrystudio.sqlite"
    shutil.copyfile(store / "catalog.sqlite", live)
    with closing(sqlite3.connect(live)) as db, db:
        db.execute("UPDATE knowledge_base SET name = 'live ' || name")
    assert {one["name"] for one in run("inspect", live, "--json").document["bases"]} == names_in(live)
    catalog = store / "catalog.sqlite"
    assert {one["name"] for one in run("inspect", catalog, "--json").document["bases"]} == names_in(catalog)
    (store / "Data").mkdir()
    shutil.copyfile(live, store / "Data" / "cherrystudio.sqlite")
    with closing(sqlite3.connect(live)) as db, db:
        db.execute("UPDATE knowledge_base SET name = 'stale ' || name")
    assert {one["name"] for one in run("inspect", live, "--json").document["bases"]} == names_in(live)
    assert run("repair", live, "--json").document["error"]["code"] == "NotChanged"


@pytest.mark.parametrize("name", ["cherrystudio.sqlite", "catalog.sqlite"])
def test_a_catalog_alone_in_a_folder_is_no_vector_file(store: Path, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "root only"
    folder.mkdir()
    shutil.copyfile(store / "catalog.sqlite", folder / name)
    shutil.copyfile(store / "catalog.sqlite", folder / "backup.sqlite")
    with untouched(folder):
        findings = run("check", folder, "--json").document["findings"]
        removed = run("gc", folder, "--only", "v1.leftover", "--dry-run", "--json").document
    assert "v1.leftover" not in {one["name"] for one in findings}
    assert removed["actions"] == []


def test_a_link_to_a_catalog_is_that_catalog(store: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(store / "catalog.sqlite")
    assert {one["name"] for one in run("inspect", link, "--json").document["bases"]} == names_in(link)
    assert run("repair", link, "--dry-run", "--json").status == 0
