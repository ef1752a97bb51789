"""Schemas of strangers: what a layout does not have is named, never run, and changes no row that is not meant."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import foreign
import pytest
from harness import run, snapshot
from planted_v2 import KB, Plant, catalog, index, library, run_sql, sql

from regraft.disk import untrusted_sqlite
from regraft.errors import OtherRowsChanged, SchemaForeign
from regraft.formats.cherry_v2.index import IndexStore
from regraft.report.migration import as_json

REFUSED = 2
#: Findings that say what is the matter with a schema.
NAMED = {"schema.foreign-trigger", "schema.foreign-view", "schema.foreign-column", "schema.foreign-index"}


def findings(path: Path, *options: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in run("check", path, "--json", *options).document["findings"]}


def rows(path: Path) -> dict[str, list[str]]:
    """Return the rows of all ordinary tables, whatever is in the schema."""
    with closing(apsw.Connection(str(path))) as db:
        found = {}
        for name, statement in untrusted_sqlite.table_statements(db).items():
            if "search_text_fts" in name or untrusted_sqlite.is_virtual(statement):
                continue
            columns = ", ".join(
                untrusted_sqlite.quote_name(str(row[1])) for row in db.execute(f'PRAGMA table_info("{name}")')
            )
            found[name] = sorted(map(repr, db.execute(f'SELECT {columns} FROM "{name}" NOT INDEXED')))
        return found


def dirty(store: Path, *statements: str) -> Path:
    """Give commands something to do, and plant something in the schema."""
    run_sql(index(store), *foreign.DIRT)
    run_sql(index(store), *statements)
    return index(store)


# --- reading and changing --------------------------------------------------------------------------------------------


#: One of each kind that takes a way of its own; what else a stranger can plant takes longer in all.
QUICK = {
    *("trigger after delete embedding", "trigger raises", "trigger never ends", "trigger one of the layout's"),
    *("view instead of embedding", "view before search_text", "view full text", "view one more"),
    *("table rowid of search_text", "table virtual content", "table computed in embedding", "table computed vectors"),
    *("table key that carries on", "table rule that replaces", "table full text of another kind"),
    *("index on an expression", "index in part"),
}


def test_what_is_quick_is_there() -> None:
    assert foreign.EVERY.keys() >= QUICK


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "name", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in foreign.EVERY]
)
def test_it_is_named_and_nothing_but_what_is_meant_changes(store: Path, tmp_path: Path, name: str) -> None:
    path = dirty(store, *foreign.EVERY[name])
    before = snapshot(store)
    assert NAMED & findings(store, "--quick").keys()
    for command in (
        ("inspect", store, "--json"),
        ("search", store, "lamp", "--mode", "bm25", "--base", KB),
        ("export", store, tmp_path / "out.parquet"),
        ("pack", store, tmp_path / "out.zip"),
    ):
        done = run(*command)
        assert done.status <= REFUSED
        assert "bug in regraft" not in done.stderr
    assert snapshot(store) == before
    for command in ("gc", "repair"):
        held, raw = rows(path), path.read_bytes()
        done = run(command, store, "--yes")
        assert done.status <= REFUSED, done.stderr
        if done.status == REFUSED:
            assert path.read_bytes() == raw
        else:
            assert run("undo", store, "--yes").status in (0, REFUSED)
        assert rows(path) == held


def put_in_order(store: Path) -> dict[str, list[str]]:
    """Let commands change rows of most tables, and return what the rows are then."""
    for command in ("gc", "repair"):
        assert "\nDone" in run(command, store, "--yes").stdout
    return rows(index(store))


@pytest.fixture(scope="module")
def without_triggers(healthy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return what the rows come to where nothing is planted."""
    copy = shutil.copytree(healthy, tmp_path_factory.mktemp("without") / "library")
    dirty(copy)
    return put_in_order(copy)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", foreign.TRIGGERS)
def test_a_trigger_never_runs(store: Path, without_triggers: dict[str, list[str]], name: str) -> None:
    dirty(store, *foreign.TRIGGERS[name])
    assert put_in_order(store) == without_triggers
    assert "orphan" not in str(rows(index(store))["embedding"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [*(f"trigger {one}" for one in foreign.TRIGGERS), "view one more"])
def test_repair_drops_it_and_undo_brings_the_file_back(store: Path, name: str) -> None:
    path = index(store)
    run_sql(path, *foreign.EVERY[name])
    before = path.read_bytes()
    found = findings(store)
    (named,) = NAMED & found.keys()
    assert found[named]["severity"] == "error"
    assert found[named]["repair"] == f"regraft repair {store} --only {named} --base {KB}"
    planned = run("repair", store, "--dry-run", "--json").document
    assert {action["finding"] for action in planned["actions"]} == {named}
    assert path.read_bytes() == before
    held = rows(path)
    assert run("repair", store, "--only", named, "--base", KB, "--yes").status == 0
    assert findings(store) == {}
    assert rows(path) == held
    assert run("undo", store, "--yes").status == 0
    assert path.read_bytes() == before


def test_what_is_in_the_place_of_a_table_is_beyond_repair(store: Path) -> None:
    run_sql(index(store), *foreign.VIEWS["instead of embedding"])
    found = findings(store)["schema.foreign-view"]
    assert (found["repair"], found["samples"]) == (None, ["embedding"])


def test_an_index_more_is_a_note(store: Path) -> None:
    run_sql(index(store), "CREATE INDEX more ON search_unit (created_at)")
    found = findings(store)
    assert list(found) == ["schema.foreign-index"]
    assert (found["schema.foreign-index"]["severity"], run("check", store).status) == ("note", 0)
    run_sql(index(store), *foreign.DIRT)
    assert "delete 1 vector" in run("gc", store, "--yes").stdout


def test_nothing_of_a_newer_layout_is_foreign(store: Path) -> None:
    run_sql(index(store), "ALTER TABLE material ADD COLUMN more TEXT", "UPDATE meta SET schema_version = 3")
    assert list(findings(store)) == ["schema.version"]


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("computed in embedding", "column made of embedding is generated"),
        ("rule that replaces", "embedding has a conflict clause"),
    ],
)
def test_rows_that_could_change_others_are_not_changed(store: Path, name: str, what: str) -> None:
    path = dirty(store, *foreign.TABLES[name])
    before = path.read_bytes()
    said = run("repair", store, "--only", "embedding.zero", "--yes", "--json")
    error = said.document["error"]
    assert (said.status, error["code"], error["exit_status"]) == (REFUSED, "SchemaForeign", REFUSED)
    assert what in error["message"]
    assert "no row was changed" in error["message"]
    assert path.read_bytes() == before
    assert not (store / ".regraft" / "undo").exists()


@pytest.mark.parametrize(
    ("name", "tables"), [("key that carries on", "child"), ("key without a number", "other tables")]
)
def test_a_change_of_other_rows_is_taken_back(store: Path, name: str, tables: str) -> None:
    path = dirty(store, *foreign.TABLES[name])
    before = path.read_bytes()
    said = run("repair", store, "--only", "embedding.zero", "--yes", "--json")
    error = said.document["error"]
    assert (said.status, error["code"], error["exit_status"]) == (REFUSED, "OtherRowsChanged", REFUSED)
    assert f"rows of {tables} would have changed as well" in error["message"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["key that carries on", "key without a number"])
def test_the_same_of_a_change_on_a_copy(store: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repair.changes.changesets.LARGEST_CHANGESET", -1)
    path = dirty(store, *foreign.TABLES[name])
    before = path.read_bytes()
    said = run("repair", store, "--only", "embedding.zero", "--yes", "--json")
    assert said.document["error"]["code"] == "OtherRowsChanged"
    assert path.read_bytes() == before


def test_rows_of_other_tables_alone_make_the_difference(tmp_path: Path) -> None:
    """The proof itself: tables by name, temporary ones, and what makes up a full-text index."""
    with closing(apsw.Connection(str(tmp_path / "file"))) as db:
        for statement in (
            "CREATE TABLE own (a)",
            "CREATE TABLE other (a)",
            "CREATE TABLE keyed (a PRIMARY KEY) WITHOUT ROWID",
            "CREATE TEMP TABLE passing (a)",
            "CREATE VIRTUAL TABLE words USING fts5 (a)",
        ):
            db.execute(statement)
        with untrusted_sqlite.change_only(db, tmp_path, ("OWN",)):
            for table in ("own", "passing", "words"):
                db.execute(f"INSERT INTO {table} VALUES ('x')")
        for table in ("other", "keyed"):
            with pytest.raises(OtherRowsChanged), untrusted_sqlite.change_only(db, tmp_path, ("own",)):
                db.execute(f"INSERT INTO {table} VALUES ('x')")
        db.execute("CREATE TABLE tree (a PRIMARY KEY, b REFERENCES tree ON UPDATE SET NULL)")
        db.execute("CREATE TABLE numbered (a, OID)")
        for table, what in (
            ("words", "words is a virtual table"),
            ("tree", "the key tree \\(b\\) → tree"),
            ("numbered", "column OID of numbered hides the row numbers"),
        ):
            with pytest.raises(SchemaForeign, match=what):
                untrusted_sqlite.refuse_foreign_rules(db, tmp_path, (table,))


# --- the catalog -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["knowledge_base", "knowledge_item", "user_model", "user_provider"])
def test_a_trigger_on_rows_of_knowledge(store: Path, table: str) -> None:
    path = store / "catalog.sqlite"
    run_sql(
        path,
        "CREATE TABLE message (a)",
        "CREATE TRIGGER own AFTER INSERT ON message BEGIN DELETE FROM message; END",
        "CREATE VIEW seen AS SELECT * FROM message",
        f"CREATE TRIGGER evil BEFORE UPDATE ON {table} BEGIN DELETE FROM knowledge_item; END",
        "UPDATE knowledge_item SET status = 'processing', error = NULL WHERE type = 'note'",
    )
    before = path.read_bytes()
    found = findings(store)["schema.foreign-trigger"]
    assert (found["samples"], found["base"]) == (["evil"], None)
    with closing(apsw.Connection(str(path))) as db:
        count = db.execute("SELECT count(*) FROM knowledge_item").get
    assert "\nDone" in run("repair", store, "--yes").stdout
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute("SELECT count(*) FROM knowledge_item").get == count
        names = db.execute("SELECT name FROM sqlite_schema WHERE type IN ('trigger', 'view') ORDER BY 1").fetchall()
    assert names == [("own",), ("seen",)]
    assert not NAMED & findings(store).keys()
    assert run("undo", store, "--yes").status == 0
    assert path.read_bytes() == before


def test_a_view_in_the_place_of_the_catalog_is_never_read(store: Path) -> None:
    columns = "id, name, status"
    catalog("DROP TABLE knowledge_base", f"CREATE VIEW knowledge_base ({columns}) AS {foreign.ENDLESS}n, n, n FROM c")(
        store
    )
    found = findings(store)
    assert {"schema.foreign-view", "file.unreadable"} <= found.keys()
    for command in ("inspect", "gc", "repair", "search"):
        assert run(command, store, *(("lamp",) if command == "search" else ())).status <= REFUSED


# --- carried elsewhere -----------------------------------------------------------------------------------------------


def test_a_base_with_a_foreign_trigger_is_not_packed(store: Path, tmp_path: Path) -> None:
    run_sql(index(store), *foreign.TRIGGERS["after delete embedding"])
    done = run("pack", store, tmp_path / "out.zip", "--json")
    left = {(one["base"], one["finding"]) for one in done.document["left"]}
    assert (KB, "schema.foreign-trigger") in left


def test_a_store_of_ours_keeps_its_full_text_without_the_triggers_of_the_file(store: Path) -> None:
    path = index(store)
    run_sql(path, *foreign.TRIGGERS["one of the layout's"], *foreign.TRIGGERS["after delete embedding"])
    held = rows(path)["embedding"]
    with IndexStore(path, KB) as opened:
        opened.delete_materials([])
        opened.rebuild_material("new", "new.md", "a lighthouse", [(0, 12)], {}, 1, has_model=False)
    assert rows(path)["embedding"] == held
    with closing(apsw.Connection(str(path))) as db:
        assert db.execute("SELECT count(*) FROM search_text_fts WHERE search_text_fts MATCH 'lighthouse'").get == 1


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plant", [catalog("UPDATE knowledge_base SET name = x'6b62ff'"), sql("UPDATE meta SET schema_version = x'00'")]
)
def test_bytes_in_the_place_of_text_are_shown(store: Path, plant: Plant) -> None:
    plant(store)
    assert run("inspect", store, "--json").document["bases"]
    assert run("inspect", store).status <= 1
    assert {"catalog.value", "schema.version"} & findings(store).keys()


def test_a_value_that_its_column_does_not_hold_is_found(store: Path) -> None:
    catalog(f"UPDATE knowledge_base SET name = x'6b62ff' WHERE id = '{KB}'")(store)
    found = findings(store)["catalog.value"]
    assert (found["base"], found["severity"]) == (KB, "error")
    assert "1 base whose name is bytes" in found["message"]
    (base,) = (one for one in run("inspect", store, "--json").document["bases"] if one["id"] == KB)
    assert base["name"] == "kb\ufffd"


def test_a_number_that_json_does_not_have_is_null() -> None:
    document = {"a": [float("nan"), 1.5, b"\xff"], "b": {"c": float("-inf")}}
    assert json.loads(as_json(document)) == {"a": [None, 1.5, "\ufffd"], "b": {"c": None}}


def test_an_index_of_the_full_text_keeps_texts_as_they_are_until_it_is_dropped(tmp_path: Path) -> None:
    """SQLite would call itself without end, and the process would die of it."""
    store = library(tmp_path)
    run_sql(index(store), "UPDATE search_text SET text = text || ' and more'")
    assert run("repair", store, "--yes", "--json").status == 0
    run_sql(index(store), "CREATE INDEX mine ON search_text_fts_data (id COLLATE NOCASE)")
    before = snapshot(store)
    done = run("undo", store, "--yes", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SchemaForeign")
    assert "mine is an index on a table of the full-text index" in done.stderr
    assert {**snapshot(store), **{name: mark for name, mark in before.items() if name.startswith(".regraft")}} == before
    assert "schema.foreign-text-index" in findings(store)
    assert run("repair", store, "--yes", "--json").status == 0
    assert findings(store) == {}
