"""Schemas of strangers in what is no index of v2: vector files of v1, codex-mem, AngelMemory, Chroma's database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import angel_store
import codex_mem_store as notes
import pytest
from foreign import ENDLESS
from harness import NOW, run
from planted_v1 import whole
from planted_v2 import run_sql

COLUMNS = "id, pageContent, uniqueLoaderId, source, vector, metadata"
MOVED = "ALTER TABLE vectors RENAME TO old"
OF_V1 = {
    "an endless view": ("DROP TABLE vectors", f"CREATE VIEW vectors ({COLUMNS}) AS {ENDLESS}n, n, n, n, n, n FROM c"),
    "a view": (MOVED, "CREATE VIEW vectors AS SELECT * FROM old"),
    "a virtual table": ("DROP TABLE vectors", f"CREATE VIRTUAL TABLE vectors USING fts5 ({COLUMNS})"),
    "no numbers": (MOVED, f"CREATE TABLE vectors ({COLUMNS}, PRIMARY KEY (id)) WITHOUT ROWID"),
    "computed vectors": (
        MOVED,
        "CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector AS (zeroblob(900000000)), metadata)",
        "INSERT INTO vectors SELECT id, pageContent, uniqueLoaderId, source, metadata FROM old",
    ),
    **{
        f"a column {name}": (
            MOVED,
            f"CREATE TABLE vectors ({COLUMNS}, {name})",
            f"INSERT INTO vectors SELECT {COLUMNS}, 'x' FROM old",
        )
        for name in ("rowid", "OID", "_rowid_")
    },
}


def names(path: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in run("check", path, "--json").document["findings"]}


@pytest.mark.parametrize("name", OF_V1)
def test_a_vector_file_fails_by_name_and_the_others_come_along(tmp_path: Path, name: str) -> None:
    source = whole(tmp_path / "v1")
    run_sql(source / "KnowledgeBase" / "kb", *OF_V1[name])
    assert names(source)["v1.unreadable"]["base"] == "kb"
    assert run("inspect", source, "--json").status <= 1
    done = run("migrate", source, "--to", tmp_path / "library", "--now", NOW, "--json")
    assert {base["legacy_id"]: base["status"] for base in done.document["bases"]} == {
        "kb": "failed",
        "other": "completed",
    }


def test_a_trigger_of_a_vector_file_says_nothing_of_its_rows(tmp_path: Path) -> None:
    source = whole(tmp_path / "v1")
    run_sql(
        source / "KnowledgeBase" / "kb", "CREATE TRIGGER evil AFTER INSERT ON vectors BEGIN DELETE FROM vectors; END"
    )
    done = run("migrate", source, "--to", tmp_path / "library", "--now", NOW, "--json")
    assert done.status == 0
    rows = {base["legacy_id"]: base["rows"] for base in done.document["bases"]}
    assert rows["kb"]["read"] == rows["kb"]["carried"] > 0


def test_a_trigger_on_notes_is_named_dropped_and_brought_back(tmp_path: Path) -> None:
    path = notes.write(tmp_path, wal=False)
    notes.unindex(path)
    notes.run_sql(path, "CREATE TRIGGER evil AFTER UPDATE ON memory_items BEGIN DELETE FROM handoffs; END")
    before = path.read_bytes()
    found = names(path)
    assert found["schema.foreign-trigger"]["samples"] == ["evil"]
    assert found["schema.foreign-trigger"]["repair"] is not None
    assert f"Done. Changed: {path}" in run("repair", path, "--yes").stdout
    assert "schema.foreign-trigger" not in names(path)
    assert run("undo", path, "--yes").status == 0
    assert path.read_bytes() == before


def test_a_trigger_of_codex_mem_that_does_more(tmp_path: Path) -> None:
    path = notes.write(tmp_path, wal=False)
    more = notes.TRIGGERS["memory_items_ad"].replace("END", "DELETE FROM handoffs; END")
    notes.run_sql(path, f"DROP TRIGGER memory_items_ad; CREATE TRIGGER memory_items_ad {more}")
    found = names(path)["schema.foreign-trigger"]
    assert (found["samples"], found["repair"]) == (["memory_items_ad"], None)
    assert "with a different definition" in found["message"]


def test_codex_mem_itself_has_nothing_foreign(tmp_path: Path) -> None:
    path = notes.write(tmp_path, excluded=1)
    notes.migrate(path)
    assert not any(name.startswith("schema.") for name in names(path))


def test_triggers_on_both_databases_of_angel_memory(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "data")
    store.execute("CREATE TRIGGER evil AFTER DELETE ON note_index_records BEGIN DELETE FROM global_tags; END")
    store.execute(
        "CREATE TRIGGER worse AFTER INSERT ON file_index_global BEGIN DELETE FROM file_index_global; END",
        path=store.file_index,
    )
    before = store.database.read_bytes(), store.file_index.read_bytes()
    assert names(store.root)["schema.foreign-trigger"]["samples"] == ["evil", "worse"]
    assert run("repair", store.root, "--only", "schema.foreign-trigger", "--yes").status == 0
    assert "schema.foreign-trigger" not in names(store.root)
    assert run("undo", store.root, "--yes").status == 0
    assert (store.database.read_bytes(), store.file_index.read_bytes()) == before


def test_a_view_in_the_place_of_a_table_of_angel_memory_is_said_to_stay(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "data")
    store.execute("ALTER TABLE memory_tag_rel RENAME TO others")
    store.execute("CREATE VIEW memory_tag_rel AS SELECT * FROM others")
    left = run("repair", store.root, "--json").document["left"]
    assert [one["finding"] for one in left] == ["schema.foreign-view", "angel.unreadable"]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER evil AFTER INSERT ON embeddings_queue BEGIN DELETE FROM embeddings; END",
        "CREATE VIEW evil AS SELECT * FROM collections",
    ],
)
def test_a_database_of_chromas_with_triggers_or_views_is_not_used(tmp_path: Path, statement: str) -> None:
    store = angel_store.build(tmp_path / "data")
    store.execute(statement, path=store.chroma())
    found = names(store.root)["angel.unreadable"]
    assert "evil, which Chroma never creates" in found["message"]
