"""What no command repairs, and what a base failed in: what is said of it, and what to do."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import NOW, REPO, run, snapshot
from profiles import profile as make_profile

BACKUP = REPO / "sample_v1" / "backup"
MUSEUM, BOATS = "3ef4ee57-45e1-4471-a166-dcdcd2472839", "4aa0e45c-564f-4db1-bbca-e41d572c6984"
FAILED = "c82ab975-6c94-405a-9e99-811edfca8fb8"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate the sample once."""
    library = tmp_path_factory.mktemp("made") / "library"
    assert run("migrate", BACKUP, "--to", library, "--now", NOW).status == 1
    return library


@pytest.fixture
def library(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "library"))


def messages(path: Path, name: str) -> list[str]:
    return [one["message"] for one in run("check", path, "--json").document["findings"] if one["name"] == name]


def execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


# --- a catalog that cannot be read -----------------------------------------------------------------------------------


def test_a_catalog_that_cannot_be_read_is_written_again_by_the_migration(library: Path) -> None:
    (library / "catalog.sqlite").write_bytes(b"no catalog" * 500)
    [message] = messages(library, "file.unreadable")
    said, command = message.split("; to write it again, with the options of the migration: regraft ")
    assert (said, command) == (
        "the catalog cannot be read: file is not a database",
        f"migrate {BACKUP} --to {library}",
    )
    refused = run("gc", library)
    assert refused.status == 2
    assert "catalog.sqlite: cannot be read (file is not a database); check" in refused.stderr
    assert run(*command.split(), "--now", NOW).status == 1
    assert messages(library, "file.unreadable") == []
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM knowledge_base").fetchone() == (4,)


def test_of_a_profile_only_a_backup_has_the_rows(tmp_path: Path) -> None:
    profile = make_profile(tmp_path / "profile")
    (profile / "Data" / "cherrystudio.sqlite").write_bytes(b"no catalog" * 500)
    found = messages(profile, "file.unreadable")
    assert found == ["the catalog cannot be read: file is not a database; restore the file from a backup"]


# --- an index that nothing repairs -----------------------------------------------------------------------------------


def left_of(library: Path, *options: object) -> tuple[int, list[tuple[str, Any]]]:
    before = snapshot(library / "KnowledgeBase")
    done = run("repair", library, "--from", BACKUP, "--json", *options)
    assert done.document["actions"] == []
    assert snapshot(library / "KnowledgeBase") == before
    left = [one for one in done.document["left"] if one["severity"] != "note"]
    return done.status, [(one["finding"], one["base"]) for one in left]


def test_a_copied_folder(library: Path) -> None:
    copy = "11111111-97f3-4f62-9c79-56ab4e07d5a1"
    shutil.copytree(library / "KnowledgeBase" / BOATS, library / "KnowledgeBase" / copy)
    [message] = messages(library, "index.orphan")
    assert message.endswith(": its index has errors that no command repairs (meta.base-id (1))")
    assert left_of(library) == (1, [("meta.base-id", copy)])
    assert left_of(library, "--base", MUSEUM) == (0, [])


@pytest.mark.parametrize(
    ("change", "finding"), [("base_id = 'other'", "meta.base-id"), ("schema_version = 99", "schema.version")]
)
def test_an_index_that_no_copy_repairs(change: str, finding: str, library: Path) -> None:
    execute(library / "KnowledgeBase" / BOATS / ".cherry" / "index.sqlite", f"UPDATE meta SET {change}")
    assert left_of(library) == (1, [(finding, BOATS)])


# --- a base that failed ----------------------------------------------------------------------------------------------


def test_a_base_says_whether_it_failed_in_the_migration(library: Path, tmp_path: Path) -> None:
    """The profile has a failed base of its own."""
    profile = make_profile(tmp_path / "profile")
    given = ("--base", FAILED, "--recreate-provider", "openai", "--now", NOW)
    assert run("install", library, "--profile", profile, *given).status == 0
    known = "failed during the migration: missing_vector_store"
    unknown = "failed during the upgrade: missing_vector_store"
    assert messages(library, "base.failed") == [known]

    def inspected() -> list[str]:
        lines = run("inspect", profile).stdout.splitlines()
        return [line.split("problem")[1].strip() for line in lines if line.startswith("  problem")]

    assert sorted(messages(profile, "base.failed")) == sorted(inspected()) == [known, unknown]
    shutil.rmtree(profile / ".regraft")
    assert messages(profile, "base.failed") == inspected() == [unknown, unknown]


def test_a_base_that_failed_without_its_model_fails_for_another_reason(tmp_path: Path) -> None:
    """The damaged file of a failed base has no index to compare: the run ends, and completes the other bases."""
    source, library = tmp_path / "files", tmp_path / "library"
    shutil.copytree(BACKUP, source)
    (source / "data.json").unlink()
    assert run("migrate", source, "--to", library, "--adopt-orphans", "--salvage", "--now", NOW).status == 1
    done = run("migrate", BACKUP, "--to", library, "--now", NOW, "--json")
    assert done.status == 1
    outcomes = {one["name"]: one["rows"]["carried"] for one in done.document["bases"]}
    assert outcomes["Harbour museum"] == 35
    with closing(sqlite3.connect(library / "catalog.sqlite")) as db:
        found = dict(db.execute("SELECT id, status FROM knowledge_base").fetchall())
    assert (found[MUSEUM], found[BOATS], found[FAILED]) == ("completed", "completed", "failed")


# --- items under other ids -------------------------------------------------------------------------------------------


def test_items_of_a_base_that_was_made_of_its_file_have_other_ids(tmp_path: Path) -> None:
    source, library = tmp_path / "files", tmp_path / "library"
    shutil.copytree(BACKUP, source)
    (source / "data.json").unlink()
    vectors = source / "Data" / "KnowledgeBase" / "GSI9AeE0DFjMMy8kHBcdh"
    content = bytearray(vectors.read_bytes())
    for page in (7, 8, 12):
        content[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    vectors.write_bytes(content)
    model = "GSI9AeE0DFjMMy8kHBcdh=openai::text-embedding-3-small"
    run("migrate", source, "--to", library, "--adopt-orphans", "--salvage", "--map-model", model, "--now", NOW)
    assert len(messages(library, "unit.missing")) == 1
    done = run("repair", library, "--from", BACKUP, "--json")
    [reason] = [one["reason"] for one in done.document["left"] if one["finding"] == "unit.missing"]
    command = f"regraft migrate {BACKUP} --to {library}"
    assert reason.endswith(
        f": {BACKUP} has its items under other ids: {command} completes the base, before this repair or after "
        "regraft undo"
    )
    assert run("undo", library).status == 0
    assert run("migrate", BACKUP, "--to", library, "--now", NOW).status == 1
    assert messages(library, "unit.missing") == []


# --- a library in a library ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["new", "deep/new", "KnowledgeBase/new"])
def test_no_library_is_made_in_a_library(inside: str, library: Path) -> None:
    before = snapshot(library)
    done = run("migrate", BACKUP, "--to", library / inside)
    assert (done.status, done.stdout) == (2, "")
    said = f"regraft: {library / inside}: cannot be written (it is inside the library {library}); choose another place."
    assert done.stderr.strip() == said
    assert snapshot(library) == before
