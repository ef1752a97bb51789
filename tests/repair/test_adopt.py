"""``regraft repair --only index.orphan --adopt``: folders that no row names get their rows back."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faults import files_of, untouched
from harness import NOW, REPO, run
from planted_v2 import KB, OTHER, index, library, plant, run_sql
from v1 import dicts, opened

from regraft import api, identity
from regraft.disk import sqlite
from regraft.errors import WrongUsage
from regraft.formats import okf

MODEL = "acme::embed-3"
ADOPT = ("--only", "index.orphan", "--adopt")
STRAY = "11111111-1111-4111-8111-111111111111"


def adopt(store: Path, *options: object, status: int = 0) -> dict[str, Any]:
    done = run("repair", store, *ADOPT, "--json", *options)
    assert done.status == status, done
    return done.document


def names(store: Path) -> set[str]:
    return {one["name"] for one in run("check", store, "--json").document["findings"]}


def rows(store: Path, table: str) -> dict[str, dict[str, Any]]:
    with opened(store / "catalog.sqlite") as db:
        return {row["id"]: row for row in dicts(db, f"SELECT * FROM {table}")}


def unlist(store: Path, *bases: str) -> None:
    """Delete the rows of bases from a library's catalog."""
    for base in bases or (KB, OTHER):
        run_sql(
            store / "catalog.sqlite",
            f"DELETE FROM knowledge_item WHERE base_id = '{base}'",
            f"DELETE FROM knowledge_base WHERE id = '{base}'",
        )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return library(tmp_path)


# --- what comes back -------------------------------------------------------------------------------------------------


def test_rows_are_as_they_were_as_far_as_anything_tells(store: Path) -> None:
    bases, items = rows(store, "knowledge_base"), rows(store, "knowledge_item")
    unlist(store)
    done = adopt(store, "--model", MODEL)
    assert Counter(one["action"] for one in done["actions"]) == {"insert-base": 2}
    assert done["left"] == []
    same = ("id", "dimensions", "embedding_model_id", "status", "error", "group_id", "rerank_model_id")
    for key, row in rows(store, "knowledge_base").items():
        assert {name: row[name] for name in same} == {name: bases[key][name] for name in same}
    found = rows(store, "knowledge_item")
    containers = {key for key, row in items.items() if row["type"] == "directory"}
    assert found.keys() - items.keys() == {key for key, row in found.items() if row["type"] == "directory"}
    for key, row in items.items():
        if key in containers:
            continue
        mine = found[key]
        for name in ("id", "base_id", "type", "status", "error", "created_at"):
            assert mine[name] == row[name], name
        data, was = json.loads(mine["data"]), json.loads(row["data"])
        assert data.keys() == was.keys()
        assert data["relativePath"] == was["relativePath"]
        assert data.get("url") == was.get("url")
        # An item of a folder is in a folder of that prefix.
        assert (mine["group_id"] is None) is (row["group_id"] is None)
    [folder] = [row for row in found.values() if row["type"] == "directory"]
    [was] = [items[key] for key in containers]
    assert json.loads(folder["data"])["relativePath"] == json.loads(was["data"])["relativePath"]
    assert (folder["status"], folder["created_at"]) == ("completed", was["created_at"])
    assert names(store) <= {"raw.missing"}
    assert run("search", store, "text", "--json", "--mode", "bm25").document["hits"]


def test_undo_gives_the_same_bytes_back(store: Path) -> None:
    unlist(store)
    before, catalog = files_of(store / "KnowledgeBase"), rows(store, "knowledge_base")
    adopt(store, "--model", "new::model")
    assert files_of(store / "KnowledgeBase") == before
    assert rows(store, "user_model").keys() >= {"new::model"}
    assert run("undo", store, "-y").status == 0
    assert (rows(store, "knowledge_base"), rows(store, "knowledge_item")) == (catalog, {})
    assert "new::model" not in rows(store, "user_model")
    assert files_of(store / "KnowledgeBase") == before


def test_the_sample(tmp_path: Path) -> None:
    target = tmp_path / "library"
    run("migrate", REPO / "sample_v1" / "backup", "--to", target, "--now", NOW, "-q")
    bases, items = rows(target, "knowledge_base"), rows(target, "knowledge_item")
    run_sql(target / "catalog.sqlite", "DELETE FROM knowledge_item", "DELETE FROM knowledge_base")
    done = adopt(target, "--model", "openai::text-embedding-3-small", status=1)
    # Of the base without an index there is nothing that tells.
    [left] = done["left"]
    assert left["reason"].endswith(" was not added to the catalog: it has no index, so its content is unknown")
    assert rows(target, "knowledge_base").keys() == {key for key, row in bases.items() if row["status"] == "completed"}
    found = rows(target, "knowledge_item")
    with_text = {key for key, row in found.items() if row["status"] == "completed" and row["type"] != "directory"}
    assert with_text <= items.keys()
    for key in with_text:
        mine, was = json.loads(found[key]["data"]), json.loads(items[key]["data"])
        assert (found[key]["type"], mine["relativePath"]) == (items[key]["type"], was["relativePath"])
        if found[key]["type"] == "url":
            assert mine == was
        if found[key]["type"] == "note":
            assert was["source"].startswith(mine["source"])
    # Files that were never indexed are there, to be indexed.
    lost = {json.loads(row["data"])["relativePath"] for row in found.values() if row["status"] == "failed"}
    assert lost == {"Green book.json", "Object list.csv"}
    assert names(target) <= {"index.orphan", "raw.missing"}


def test_a_processed_file_has_both_its_paths(store: Path) -> None:
    raw = store / "KnowledgeBase" / KB / "raw"
    with sqlite.open_readonly(index(store)) as db:
        path = str(db.execute("SELECT relative_path FROM material WHERE relative_path LIKE '%.pdf'").get)
    made = path.removesuffix(".pdf") + ".md"
    run_sql(index(store), f"UPDATE material SET relative_path = '{made}' WHERE relative_path = '{path}'")
    (raw / made).write_text("what a processor made of it")
    unlist(store)
    adopt(store, "--model", MODEL)
    data = [json.loads(row["data"]) for row in rows(store, "knowledge_item").values()]
    assert {"source": path, "relativePath": path, "indexedRelativePath": made} in data
    assert path not in {one["relativePath"] for one in data if "indexedRelativePath" not in one}
    assert "material.path" not in names(store)


def test_a_file_that_only_looks_like_a_snapshot_is_a_file(store: Path) -> None:
    raw = store / "KnowledgeBase" / KB / "raw"
    texts = {
        "mine.md": '---\ntitle: "Mine"\n---\ntext',
        "kind.md": '---\ntype: "Talk"\ntitle: "x"\ntimestamp: "y"\n---\ntext',
        "bare.md": '---\ntype: "URL"\ntitle: "x"\ntimestamp: "y"\n---\ntext',
        "empty.md": '---\ntype: "Note"\ntitle: ""\ntimestamp: "y"\n---\n',
    }
    for name, text in texts.items():
        (raw / name).write_bytes(text.encode())
    snapshot = okf.url_snapshot("https://example.com/a", "# A page")
    (raw / "page.md").write_bytes(f"{snapshot.block('2026-01-01T00:00:00.000Z')}# A page".encode())
    unlist(store)
    adopt(store, "--model", MODEL)
    items = {json.loads(row["data"])["relativePath"]: row for row in rows(store, "knowledge_item").values()}
    assert [items[name]["type"] for name in texts] == ["file"] * 4
    assert (items["page.md"]["type"], json.loads(items["page.md"]["data"])["url"]) == ("url", "https://example.com/a")
    assert {items[name]["status"] for name in (*texts, "page.md")} == {"failed"}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_hostile_names_in_raw(store: Path) -> None:
    raw = store / "KnowledgeBase" / KB / "raw"
    outside = store.parent / "outside"
    outside.write_text("not yours")
    for name in ("a\\b.txt", "line\nbreak.txt", "x" * 250):
        (raw / name).write_text("x")
    (raw / "link.txt").symlink_to(outside)
    (raw / ".hidden").write_text("x")
    unlist(store)
    adopt(store, "--model", MODEL)
    paths = {json.loads(row["data"])["relativePath"] for row in rows(store, "knowledge_item").values()}
    assert not paths & {"link.txt", ".hidden", "a\\b.txt"}
    assert "x" * 250 in paths
    assert "item.data" not in names(store)


# --- models and vectors ----------------------------------------------------------------------------------------------


def test_without_a_model_a_base_is_listed_as_failed(store: Path) -> None:
    unlist(store, KB)
    done = adopt(store, status=1)
    [left] = done["left"]
    line = f"regraft repair {store} --only index.orphan --adopt --model PROVIDER::MODEL"
    assert (left["finding"], left["base"]) == ("base.failed", KB)
    assert line in left["reason"]
    row = rows(store, "knowledge_base")[KB]
    assert (row["status"], row["error"], row["dimensions"]) == ("failed", "missing_embedding_model", 4)
    assert names(store) <= {"base.failed", "raw.missing"}
    # As the message says: taken back, then with the model.
    assert run("undo", store, "-y").status == 0
    adopt(store, "--model", MODEL)
    assert rows(store, "knowledge_base")[KB]["status"] == "completed"


def test_a_base_without_vectors_is_searched_by_words(store: Path) -> None:
    run_sql(index(store), "DELETE FROM embedding")
    unlist(store, KB)
    assert adopt(store)["left"] == []
    row = rows(store, "knowledge_base")[KB]
    assert (row["status"], row["embedding_model_id"], row["dimensions"]) == ("completed", None, None)
    assert {one["status"] for one in rows(store, "knowledge_item").values()} == {"completed"}


def test_what_lacks_vectors_is_not_completed(store: Path) -> None:
    plant("no vector", store)
    unlist(store, KB)
    done = adopt(store, "--model", MODEL, status=1)
    [left] = done["left"]
    assert (left["finding"], left["count"]) == ("embedding.missing", 1)
    failed = [row for row in rows(store, "knowledge_item").values() if row["status"] == "failed"]
    assert [row["error"] for row in failed] == ["indexing_interrupted"]


# --- what is left ----------------------------------------------------------------------------------------------------


def _of_another_base(store: Path) -> None:
    run_sql(index(store), f"UPDATE meta SET base_id = '{OTHER}'")


def _cut_off(store: Path) -> None:
    index(store).write_bytes(index(store).read_bytes()[:9000])


def _of_another_name(store: Path) -> None:
    (store / "KnowledgeBase" / KB).rename(store / "KnowledgeBase" / "my base")
    run_sql(index(store, "my base"), "UPDATE meta SET base_id = 'my base'")


def _with_an_item_of_another(store: Path) -> None:
    with sqlite.open_readonly(index(store)) as db:
        item = db.execute("SELECT min(material_id) FROM material").get
    run_sql(
        store / "catalog.sqlite",
        f"UPDATE knowledge_item SET id = '{item}' WHERE rowid = (SELECT max(rowid) FROM knowledge_item)",
    )


UNFIT = {
    "of another base": (_of_another_base, "its index has errors that no command repairs (meta.base-id (1))"),
    "cut off": (_cut_off, "its index has errors (file."),
    "another name": (_of_another_name, "its name is not a base id"),
    "no body": (lambda store: plant("no body", store), "its index has errors (unit.no-body (1))"),
    "no index": (lambda store: index(store).unlink(), "it has no index, so its content is unknown"),
    "an item of another base": (_with_an_item_of_another, f" belongs to base {OTHER}"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_gets_no_rows_is_named_and_stays(name: str, store: Path) -> None:
    damage, reason = UNFIT[name]
    unlist(store, KB)
    damage(store)
    before = rows(store, "knowledge_base")
    with untouched(store):
        done = adopt(store, "--model", MODEL, status=1)
    assert done["actions"] == []
    [left] = done["left"]
    assert left["finding"] == "index.orphan"
    assert reason in left["reason"]
    assert rows(store, "knowledge_base") == before


def test_one_that_is_unfit_does_not_keep_others_out(store: Path) -> None:
    unlist(store)
    _cut_off(store)
    done = adopt(store, "--model", MODEL, status=1)
    assert [one["base"] for one in done["actions"]] == [OTHER]
    assert rows(store, "knowledge_base").keys() == {OTHER}


def test_items_that_lost_their_base_stay(store: Path) -> None:
    items = rows(store, "knowledge_item")
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_base WHERE id = '{KB}'")
    assert "item.no-base" in names(store)
    adopt(store, "--model", MODEL)
    found = rows(store, "knowledge_item")
    assert items.items() <= found.items()
    assert "item.no-base" not in names(store)


def test_only_what_was_chosen(store: Path) -> None:
    unlist(store)
    assert [one["base"] for one in adopt(store, "--model", MODEL, "--base", OTHER)["actions"]] == [OTHER]
    assert [one["base"] for one in adopt(store / "KnowledgeBase" / KB, "--model", MODEL)["actions"]] == [KB]
    assert adopt(store, "--model", MODEL)["actions"] == []


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--adopt",), "use --only index.orphan --adopt or --only material.orphan --adopt"),
        ((*ADOPT, "--only", "fts.desync"), "--adopt needs exactly one finding"),
        ((*ADOPT, "--only", "material.orphan"), "--adopt needs exactly one finding"),
        (("--only", "index.orphan"), "use --only index.orphan --adopt, or delete them with gc --only index.orphan"),
        (
            ("--only", "material.orphan"),
            "--only material.orphan --adopt, or delete them with reconcile --only material.orphan",
        ),
        ((*ADOPT, "--model", "nonsense"), "write it as provider::model"),
    ],
)
def test_wrong_usage_is_refused(options: tuple[str, ...], message: str, store: Path) -> None:
    unlist(store)
    with untouched(store):
        done = run("repair", store, *options)
    assert done.status == 2
    assert message in done.stderr


def test_it_is_for_bases_with_a_catalog(store: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(store / "KnowledgeBase" / KB, tmp_path / "alone" / KB)
    before = files_of(alone)
    done = run("repair", alone, *ADOPT)
    assert (done.status, files_of(alone)) == (2, before)
    assert "without a catalog" in done.stderr


def test_a_dry_run_says_the_same(store: Path) -> None:
    unlist(store)
    with untouched(store):
        planned = adopt(store, "--model", MODEL, "--dry-run")
    done = adopt(store, "--model", MODEL)
    assert (planned["actions"], planned["left"]) == (done["actions"], done["left"])


def test_check_offers_both_ways(store: Path) -> None:
    unlist(store, KB)
    found = {one["name"]: one for one in run("check", store, "--json").document["findings"]}
    message = found["index.orphan"]["message"]
    assert "repair --only index.orphan --adopt lists such bases again" in message
    assert found["index.orphan"]["repair"] == f"regraft repair {store} --only index.orphan --adopt"
    assert "--only index.orphan --adopt" in run("explain", "index.orphan").stdout


def test_the_same_by_a_program(store: Path) -> None:
    unlist(store, KB)
    with pytest.raises(WrongUsage):
        api.repair(store, adopt=True)
    report = api.repair(store, only=["index.orphan"], adopt=True, model=MODEL)
    assert [one.action for one in report.actions] == ["insert-base"]
    assert rows(store, "knowledge_base")[KB]["name"] == "docs"
    assert identity.uuid7_time("no id") is None
