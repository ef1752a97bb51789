"""A profile of an unknown release: it is read, and writing to it is refused with the name of what is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from extras import needs
from generations import changed, dump, needing, profile, with_bases
from harness import NOW, run
from lacking import KB, index, library
from planted_v2 import run_sql


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


def reads(store: Path, place: Path) -> None:
    """Assert that everything that only reads a profile does."""
    assert run("inspect", store, "--json").status == 0
    checked = run("check", store, "--json")
    assert [one for one in checked.document["findings"] if one["severity"] == "error"] == []
    assert run("search", store, "lamp", "--mode", "bm25", "--base", KB, "--json").document["hits"]
    assert run("export", store, place / "units.parquet").status == 0
    assert run("pack", store, place / "bases.zip", "--base", KB, "--now", NOW, "--json").status == 0
    other = profile(place / "other", "2.1")
    assert run("install", store, "--profile", other, "--now", NOW, "--json").status == 0


@needs("parquet")
@pytest.mark.parametrize("table", ["knowledge_base", "knowledge_item"])
def test_a_column_that_must_have_a_value_is_read_past_and_refused_by_name(
    table: str, made: Path, tmp_path: Path
) -> None:
    store = with_bases(tmp_path / "profile", "2.1", made)
    needing(store, table, "color")
    reads(store, tmp_path)
    empty = profile(tmp_path / "empty", "2.1")
    needing(empty, table, "color")
    before = dump(empty)
    refused = run("install", made, "--profile", empty, "--now", NOW, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "ProfileUnknown")
    assert f"a table {table} like that of 2.1, but which also requires color" in refused.document["error"]["message"]
    assert dump(empty) == before


@needs("parquet")
def test_further_tables_and_columns_with_a_default_change_nothing(made: Path, tmp_path: Path) -> None:
    store = with_bases(tmp_path / "profile", "2.1", made)
    changed(
        store,
        "CREATE TABLE knowledge_future (id TEXT PRIMARY KEY, base_id TEXT REFERENCES knowledge_base)",
        "ALTER TABLE knowledge_item ADD COLUMN color TEXT NOT NULL DEFAULT 'blue'",
        "ALTER TABLE knowledge_base ADD COLUMN weight REAL",
    )
    reads(store, tmp_path)
    changed(store, f"DELETE FROM knowledge_item WHERE base_id = '{KB}' AND type = 'note'")
    before = dump(store)
    assert run("reconcile", store, "--only", "material.orphan", "--json").document["actions"]
    assert run("undo", store, "-y").status == 0
    assert dump(store) == before


def test_an_index_of_a_later_layout_is_named_and_nothing_is_installed_beside_it(made: Path, tmp_path: Path) -> None:
    store = with_bases(tmp_path / "profile", "2.1", made)
    run_sql(index(store / "Data", KB), "UPDATE meta SET schema_version = 3")
    before = dump(store)
    checked = run("check", store, "--json")
    assert checked.status == 1
    assert any("3" in one["message"] and one["base"] == KB for one in checked.document["findings"])
    refused = run("install", made, "--profile", store, "--now", NOW, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "ProfileUnknown")
    assert "an index of version 3 instead of 2" in refused.document["error"]["message"]
    assert dump(store) == before


def test_a_known_column_that_is_gone_is_named(made: Path, tmp_path: Path) -> None:
    store = with_bases(tmp_path / "profile", "2.1", made)
    changed(store, "ALTER TABLE knowledge_base DROP COLUMN document_count")
    assert run("inspect", store, "--json").status in (0, 1)
    assert run("search", store, "lamp", "--mode", "bm25", "--base", KB, "--json").document["hits"]
    assert run("check", store, "--json").status in (0, 1)
    empty = profile(tmp_path / "empty", "2.1", "ALTER TABLE knowledge_item RENAME COLUMN data TO content")
    before = dump(empty)
    refused = run("install", made, "--profile", empty, "--now", NOW, "--json")
    assert (refused.status, refused.document["error"]["code"]) == (2, "ProfileUnknown")
    assert "a table knowledge_item without data" in refused.document["error"]["message"]
    assert dump(empty) == before
