"""``regraft upgrade`` on the catalog of a library that an earlier regraft wrote: every row comes along."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from faults import files_of, untouched
from generations import MODEL, earlier
from harness import run
from lacking import KB, OTHER, library
from planted_v2 import run_sql

from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog_generation import Generation, read_tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrate a small library once."""
    return library(tmp_path_factory.mktemp("made"))


def generation_of(path: Path) -> Generation:
    with sqlite.open_readonly(path) as db:
        return read_tables(path, db).generation


def contents(path: Path) -> dict[str, list[Any]]:
    with sqlite.open_readonly(path) as db:
        tables = [str(name) for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {
            table: [
                {column[0]: value for column, value in zip(cursor.description, row, strict=True)}
                for cursor in [db.execute(f"SELECT * FROM {table} ORDER BY rowid")]
                for row in cursor
            ]
            for table in sorted(tables)
        }


def test_a_librarys_catalog_is_brought_up_and_taken_back(made: Path, tmp_path: Path) -> None:
    store = shutil.copytree(made, tmp_path / "library")
    wanted, path = contents(store / "catalog.sqlite"), store / "catalog.sqlite"
    old = earlier(store).joinpath("catalog.sqlite").read_bytes()
    assert generation_of(path) is Generation.EARLIER_LIBRARY
    with untouched(store):
        planned = run("upgrade", store, "--dry-run", "--json").document["actions"]
    outcome = run("upgrade", store, "--json")
    assert (outcome.status, [one["action"] for one in planned]) == (0, ["upgrade-catalog"])
    assert contents(path) == wanted
    assert generation_of(path) is Generation.LIBRARY
    assert run("upgrade", store, "--json").document["actions"] == []
    assert run("undo", store, "-y").status == 0
    assert path.read_bytes() == old


def test_the_model_that_ranks_is_one_for_that(made: Path, tmp_path: Path) -> None:
    store = earlier(shutil.copytree(made, tmp_path / "library"))
    path = store / "catalog.sqlite"
    run_sql(
        path,
        "INSERT INTO user_model (id, provider_id, model_id, name, capabilities, order_key, created_at, updated_at)"
        " VALUES ('acme::rank', 'acme', 'rank', 'Rank', '[]', 'a1', 1, 1)",
        "UPDATE knowledge_base SET rerank_model_id = 'acme::rank'",
    )
    assert run("upgrade", store).status == 0
    found = {row["id"]: row["capabilities"] for row in contents(path)["user_model"]}
    assert found == {MODEL: '["embedding"]', "acme::rank": '["rerank"]'}


def test_damaged_rows_of_an_earlier_library_stay_as_they_are(made: Path, tmp_path: Path) -> None:
    store = earlier(shutil.copytree(made, tmp_path / "library"))
    path = store / "catalog.sqlite"
    run_sql(
        path,
        "PRAGMA ignore_check_constraints = ON",
        f"UPDATE knowledge_base SET status = 'failed', name = CAST(x'ff' AS TEXT) WHERE id = '{KB}'",
        f"UPDATE knowledge_item SET group_id = 'gone' WHERE base_id = '{OTHER}'",
    )
    assert run("upgrade", store, "-y").status == 0
    with sqlite.open_readonly(path) as db:
        row = db.execute(f"SELECT status, CAST(name AS BLOB) FROM knowledge_base WHERE id = '{KB}'").fetchone()
        groups = db.execute(f"SELECT group_id FROM knowledge_item WHERE base_id = '{OTHER}'").fetchall()
    assert (row, set(groups)) == (("failed", b"\xff"), {("gone",)})


def test_a_row_that_the_current_tables_refuse_leaves_the_catalog(made: Path, tmp_path: Path) -> None:
    store = earlier(shutil.copytree(made, tmp_path / "library"))
    run_sql(
        store / "catalog.sqlite",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'created_at INTEGER NOT NULL', 'created_at INTEGER')"
        " WHERE name = 'knowledge_base'",
        "PRAGMA writable_schema = RESET",
        "UPDATE knowledge_base SET created_at = NULL",
    )
    before = files_of(store)
    for more in ("--dry-run", "--yes", "--yes"):
        done = run("upgrade", store, "--json", more)
        assert files_of(store) == before
        assert (done.status, done.document["actions"]) == (1, [])
        (left,) = done.document["left"]
        assert left["subject"] == "catalog.sqlite"
        assert "knowledge_base.created_at" in left["reason"]


def test_a_catalog_that_no_regraft_wrote_is_left_alone(made: Path, tmp_path: Path) -> None:
    store = earlier(shutil.copytree(made, tmp_path / "library"))
    run_sql(store / "catalog.sqlite", "ALTER TABLE knowledge_item ADD COLUMN deleted_at INTEGER")
    before = files_of(store)
    assert run("upgrade", store, "--json").document["actions"] == []
    assert files_of(store) == before
