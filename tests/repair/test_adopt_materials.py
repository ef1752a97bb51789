"""``regraft repair --only material.orphan --adopt`` lists items again and completes failed bases from their indexes."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from failed_bases import FAILED, NO_MODEL, held, state, tombstoned, without_items
from faults import untouched
from harness import run
from planted_v2 import KB, KB_ROW, OTHER, PLANTED, catalog, index, run_sql, sql
from v1 import dicts, opened

from regraft import api
from repair.cherry_v2.orphan_folders import ListedFolder

MODEL = "acme::embed-3"
ADOPT = ("--only", "material.orphan", "--adopt")
COMPLETE = ("--only", "base.failed")


def repair(store: Path, *options: object, status: int = 0) -> dict[str, Any]:
    done = run("repair", store, "--json", *options)
    assert done.status == status, done
    return done.document


def rows(store: Path, table: str) -> dict[str, dict[str, Any]]:
    with opened(store / "catalog.sqlite") as db:
        return {row["id"]: row for row in dicts(db, f"SELECT * FROM {table}")}


def items(store: Path) -> dict[str, dict[str, Any]]:
    return {key: row for key, row in rows(store, "knowledge_item").items() if row["base_id"] == KB}


def left(document: dict[str, Any]) -> dict[str, str]:
    return {one["finding"]: one["reason"] for one in document["left"]}


def done_by(document: dict[str, Any]) -> Counter[str]:
    return Counter(one["action"] for one in document["actions"])


# --- items -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_items_are_as_they_were_as_far_as_anything_tells(store: Path) -> None:
    before = items(store)
    damaged = without_items("type <> 'directory'")
    damaged(store)
    lost, everything = state(store), held(store)
    with untouched(store):
        planned = repair(store, *ADOPT, "--dry-run")
    document = repair(store, *ADOPT)
    assert document["actions"] == planned["actions"]
    assert done_by(document) == {"insert-items": 1}
    after = items(store)
    indexed = {key for key, row in before.items() if row["type"] != "directory" and key in after}
    assert len(indexed) == 5
    for key in indexed:
        for name in ("type", "group_id", "status", "error", "created_at"):
            assert after[key][name] == before[key][name], name
        paths = [json.loads(row["data"])["relativePath"] for row in (before[key], after[key])]
        assert paths[0] == paths[1]
        if before[key]["type"] == "url":
            assert json.loads(after[key]["data"])["url"] == json.loads(before[key]["data"])["url"]
    assert "material.orphan" not in {one["name"] for one in run("check", store, "--json").document["findings"]}
    assert held(store) == everything
    assert repair(store, *ADOPT)["actions"] == []
    assert run("undo", store, "--yes").status == 0
    assert state(store) == lost


def test_a_folder_that_is_gone_is_listed_before_its_files(store: Path) -> None:
    without_items("TRUE")(store)
    repair(store, *ADOPT)
    after = items(store)
    groups = {row["group_id"] for row in after.values() if row["group_id"] is not None}
    assert groups
    assert {after[group]["type"] for group in groups} == {"directory"}
    for row in after.values():
        if row["group_id"] is not None:
            prefix = json.loads(after[row["group_id"]]["data"])["relativePath"]
            assert json.loads(row["data"])["relativePath"].startswith(f"{prefix}/")


def test_files_of_a_tombstone_come_back_into_it(store: Path) -> None:
    before = items(store)
    tombstoned(store)
    lost = state(store)
    document = repair(store, *ADOPT)
    assert done_by(document)["complete-folder"] >= 1
    after = items(store)
    children = [key for key, row in before.items() if row["group_id"] is not None and key in after]
    assert children
    for key in children:
        assert after[key]["group_id"] == before[key]["group_id"]
        data, known = json.loads(after[key]["data"]), json.loads(before[key]["data"])
        # A number may have made the name free: nothing tells what the file was called.
        is_numbered = data["relativePath"].endswith("_1.md")
        assert data["source"] == (data["relativePath"] if is_numbered else known["source"])
        container = after[before[key]["group_id"]]
        assert (container["status"], container["error"]) == ("completed", None)
        assert json.loads(container["data"]) == json.loads(before[container["id"]]["data"])
    assert run("undo", store, "--yes").status == 0
    assert state(store) == lost


@pytest.mark.parametrize(
    ("source", "rest", "wanted"),
    [
        ("/home/a/docs", "b/c.md", "/home/a/docs/b/c.md"),
        ("/", "c.md", "/c.md"),
        ("C:\\docs", "b/c.md", "C:\\docs\\b\\c.md"),
        ("C:/docs/", "c.md", "C:/docs/c.md"),
        ("\\\\server\\share", "c.md", "\\\\server\\share\\c.md"),
        ("docs", "c.md", None),
        (None, "c.md", None),
        ("/home/a", "b/c_1.md", None),
    ],
)
def test_the_source_of_a_file_follows_from_its_folder(source: str | None, rest: str, wanted: str | None) -> None:
    assert ListedFolder("id", source).source_of(rest) == wanted


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (PLANTED["a material being deleted"].damage, "the application is deleting its item"),
        (PLANTED["a material of no item"].damage, "another item has the same path"),
        (
            catalog(f"UPDATE knowledge_item SET base_id = '{OTHER}' WHERE base_id = '{KB}'"),
            "its item belongs to base",
        ),
    ],
)
def test_what_has_an_item_is_left_with_the_reason(damage: Any, reason: str, store: Path) -> None:
    damage(store)
    with untouched(store):
        document = repair(store, *ADOPT, status=1)
        checked = run("check", store, "--json").document["findings"]
    assert document["actions"] == []
    assert reason in left(document)["material.orphan"]
    [finding] = [one for one in checked if one["name"] == "material.orphan"]
    assert finding["repair"] is None
    assert reason in finding["message"]


def test_an_index_of_another_base_lists_nothing(store: Path) -> None:
    without_items("TRUE")(store)
    PLANTED["another base"].damage(store)
    with untouched(store):
        document = repair(store, *ADOPT, status=1)
    assert document["actions"] == []
    assert "meta.base-id" in left(document)["material.orphan"]


def test_text_without_a_vector_makes_a_failed_item(store: Path) -> None:
    without_items("TRUE")(store)
    sql("DELETE FROM embedding WHERE rowid = 1")(store)
    repair(store, *ADOPT)
    statuses = Counter((row["status"], row["error"]) for row in items(store).values())
    assert statuses["failed", "indexing_interrupted"] == 1


def test_only_the_base_that_was_chosen(store: Path) -> None:
    run_sql(store / "catalog.sqlite", "DELETE FROM knowledge_item")
    document = repair(store, *ADOPT, "--base", OTHER)
    assert {one["base"] for one in document["actions"]} == {OTHER}


# --- bases -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("options", [ADOPT, COMPLETE])
def test_a_failed_base_is_completed_from_its_index(options: tuple[str, ...], store: Path) -> None:
    before = rows(store, "knowledge_base")[KB]
    FAILED(store)
    without_items("type <> 'directory'")(store)
    lost, everything = state(store), held(store)
    document = repair(store, *options)
    assert done_by(document) == {"insert-items": 1, "complete-base": 1}
    after = rows(store, "knowledge_base")[KB]
    assert {name: value for name, value in after.items() if name != "updated_at"} == {
        name: value for name, value in before.items() if name != "updated_at"
    }
    assert held(store) == everything
    assert {one["name"] for one in run("check", store, "--json").document["findings"]} == set()
    assert run("undo", store, "--yes").status == 0
    assert state(store) == lost


def test_a_base_without_a_model_waits_for_a_person(store: Path) -> None:
    NO_MODEL(store)
    with untouched(store):
        document = repair(store, *COMPLETE, status=1)
    [one] = document["left"]
    assert "the catalog does not name the model of its vectors" in one["reason"]
    assert one["repair"] == f"regraft repair {store} --only base.failed --base {KB} --model PROVIDER::MODEL"
    assert done_by(repair(store, *COMPLETE, "--model", MODEL)) == {"complete-base": 1}
    row = rows(store, "knowledge_base")[KB]
    assert (row["status"], row["error"], row["embedding_model_id"], row["dimensions"]) == ("completed", None, MODEL, 4)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (sql("DELETE FROM embedding WHERE rowid = 1"), "body without a vector"),
        (sql("DELETE FROM embedding"), "its index has no vectors"),
        (sql("UPDATE embedding SET vector_blob = zeroblob(8) WHERE rowid = 1"), "embedding.length"),
        (PLANTED["NaN"].damage, "embedding.non-finite"),
        (PLANTED["no body"].damage, "unit.no-body"),
        (sql("PRAGMA foreign_keys = ON", "DELETE FROM material"), "its index is empty"),
        (catalog("DELETE FROM user_model"), "does not exist"),
    ],
)
def test_a_base_whose_index_is_not_complete_stays_failed(damage: Any, reason: str, store: Path) -> None:
    FAILED(store)
    damage(store)
    with untouched(store):
        document = repair(store, *COMPLETE, status=1)
        checked = run("check", store, "--json").document["findings"]
    assert document["actions"] == []
    assert reason in left(document)["base.failed"]
    [finding] = [one for one in checked if one["name"] == "base.failed"]
    assert finding["repair"] is None


def test_a_failed_base_without_an_index_has_no_command(store: Path) -> None:
    FAILED(store)
    shutil.rmtree(index(store).parent)
    [finding] = [one for one in run("check", store, "--json").document["findings"] if one["name"] == "base.failed"]
    assert finding["repair"] is None


# --- fix -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_fix_lists_items_again_in_a_failed_base_only(store: Path) -> None:
    FAILED(store)
    run_sql(store / "catalog.sqlite", "DELETE FROM knowledge_item WHERE type <> 'directory'")
    before = held(store)
    with untouched(store):
        planned = run("fix", store, "--dry-run", "--json").document
    done = run("fix", store, "--yes", "--json")
    assert done.status == 1
    assert {one["base"] for one in done.document["actions"]} == {KB}
    assert planned["actions"] == done.document["actions"]
    assert done_by(done.document) == {"insert-items": 1, "complete-base": 1}
    [other] = [one for one in done.document["left"] if one["finding"] == "material.orphan"]
    assert other["repair"] == f"regraft repair {store} --only material.orphan --adopt --base {OTHER}"
    assert held(store) == before


@pytest.mark.thorough
def test_fix_deletes_a_material_where_it_is_named(store: Path) -> None:
    PLANTED["a material of no item"].damage(store)
    before = state(store)
    assert "delete-materials" not in done_by(run("fix", store, "--yes", "--json").document)
    done = run("fix", store, "--only", "material.orphan", "--yes", "--json")
    assert done_by(done.document)["delete-materials"] == 1
    assert {one["finding"] for one in done.document["actions"] if one["finding"]} == {"material.orphan"}
    assert run("undo", store, "--yes").status == 0
    assert state(store) == before


def test_fix_refuses_a_finding_that_it_does_not_resolve(store: Path) -> None:
    with untouched(store):
        done = run("fix", store, "--only", "raw.missing")
    assert done.status == 2
    assert "--only raw.missing" in done.stderr


# --- programs --------------------------------------------------------------------------------------------------------


def test_the_same_by_a_program(store: Path) -> None:
    FAILED(store)
    without_items("type <> 'directory'")(store)
    report = api.repair(store, only=["material.orphan"], adopt=True)
    assert [one.action for one in report.actions] == ["insert-items", "complete-base"]
    catalog(KB_ROW.format("name = 'x'"))(store)
    PLANTED["a material of no item"].damage(store)
    assert api.reconcile(store).actions == []
    assert next(one.action for one in api.reconcile(store, only=["material.orphan"]).actions) == "delete-materials"
