"""``regraft reconcile``: the index follows the catalog, and what it lacks is listed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import REFUSED, Tripwire, forked, said, untouched
from harness import NOW_MS, run
from planted_v2 import ITEM, KB, KB_ROW, OTHER, PLANTED, catalog, data, index, run_sql, sql
from profiles import start_application
from reconciled import findings, state
from stand_ins import KILLED, die
from v1 import Row, write_store

from regraft import identity
from regraft.disk import durable, sqlite
from regraft.formats.cherry_v2.index import IndexStore
from regraft.ledger.ledger import ChangeLog, Ledger
from regraft.testing.damage import STRAY_BASE

MENDED = {"material.orphan", "material.path"}
#: What lets reconcile delete materials.
NAMED = ("--only", "material.orphan")


def reconcile(store: Path, *options: object, status: int = 0) -> dict[str, Any]:
    done = run("reconcile", store, "--json", *options)
    assert done.status == status, (done.stdout, done.stderr)
    return done.document


def actions(document: dict[str, Any]) -> dict[str, int]:
    return {action["action"]: action["count"] for action in document["actions"]}


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]


@contextmanager
def opened(path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path))) as db:
        yield db


def materials(store: Path) -> dict[str, str]:
    """Return the paths of the materials in the first base, by their ids."""
    with opened(index(store)) as db:
        return dict(db.execute("SELECT material_id, relative_path FROM material"))


def move_item(store: Path, item: str, path: str) -> None:
    """Give an item another path."""
    with opened(store / "catalog.sqlite") as db:
        [(stored,)] = db.execute("SELECT data FROM knowledge_item WHERE id = ?", (item,)).fetchall()
        changed = json.dumps({**json.loads(stored), "relativePath": path})
        db.execute("UPDATE knowledge_item SET data = ? WHERE id = ?", (changed, item))


def of_types(store: Path, *types: str) -> list[str]:
    with opened(store / "catalog.sqlite") as db:
        rows = db.execute("SELECT type, id FROM knowledge_item WHERE base_id = ? ORDER BY rowid", (KB,)).fetchall()
    return [key for wanted in types for key in [key for kind, key in rows if kind == wanted][:1]]


# --- materials without an item ---------------------------------------------------------------------------------------


def test_nothing_is_done_where_the_index_follows(store: Path) -> None:
    with untouched(store):
        document = reconcile(store)
    assert (document["actions"], document["left"], document["undo"]) == ([], [], None)


def test_a_material_without_an_item_goes_with_what_only_it_needs(store: Path) -> None:
    """Texts and vectors that another material has stay, and nothing else of the index changes."""
    before = state(store)
    with opened(index(store)) as db:
        [(content, body, vector)] = db.execute(
            "SELECT c.text, t.text, e.vector_blob FROM content c, search_text t JOIN embedding e"
            " USING (embedding_text_hash) LIMIT 1"
        )
    own = "only here"
    text = f"{body}{own}"
    vectors = {identity.text_hash(one): vector for one in (body, own)}
    with IndexStore(index(store), KB) as opened_store:
        units = [(0, len(body)), (len(body), len(text))]
        opened_store.rebuild_material("ghost", "ghost.md", text, units, vectors, NOW_MS)
        opened_store.rebuild_material("shade", "shade.md", content, [], {}, NOW_MS)
    assert findings(store) == ["material.no-units", "material.orphan", "raw.missing"]
    document = reconcile(store, *NAMED)
    assert actions(document) == {
        "delete-materials": 2,
        "delete-units": 2,
        "delete-contents": 1,
        "delete-bodies": 2,
        "delete-embeddings": 1,
    }
    assert [one["finding"] for one in document["actions"] if one["finding"]] == ["material.orphan"]
    assert [one["bytes"] for one in document["actions"]] == [0, 0, len(text), len(text), len(vector)]
    assert findings(store) == []
    assert state(store) == before


def test_what_was_waste_before_is_left_to_gc(store: Path) -> None:
    PLANTED["a vector of nobody"].damage(store)
    PLANTED["a material being deleted"].damage(store)
    assert actions(reconcile(store, *NAMED))["delete-embeddings"] == 3
    assert "embedding.orphan" in findings(store)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a material of no item", "a material being deleted", "another path"])
def test_undo_gives_everything_back(name: str, store: Path) -> None:
    PLANTED[name].damage(store)
    before = state(store)
    options = () if name == "another path" else NAMED
    with untouched(store):
        planned = reconcile(store, "--dry-run", *options, status=run("reconcile", store, "--dry-run", *options).status)
    done = run("reconcile", store, "--json", *options).document
    assert done["actions"] == planned["actions"] != []
    assert done["left"] == planned["left"]
    assert MENDED.isdisjoint(findings(store))
    again = run("reconcile", store, "--json", *options).document
    assert again["actions"] == []
    assert again["undo"] is None
    assert state(store) != before
    assert run("undo", store, done["undo"]).status == 0
    assert state(store) == before


def test_a_material_whose_item_is_of_another_base_stays(store: Path) -> None:
    PLANTED["an item of no base"].damage(store)
    [item] = of_types(store, "file")
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET base_id = '{OTHER}' WHERE id = '{item}'")
    with untouched(store):
        document = reconcile(store, *NAMED, status=1)
    assert ("material.orphan", f"its item belongs to base {OTHER}") in left(document)


def test_where_no_material_has_an_item_the_index_may_be_that_of_others(store: Path) -> None:
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET id = 'new-' || id WHERE base_id = '{KB}'")
    with untouched(store):
        document = reconcile(store, status=1)
    assert document["actions"] == []
    assert next(one for one in document["left"] if one["finding"] == "material.orphan")["count"] == 5


def test_an_index_of_no_base_is_left(store: Path) -> None:
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{KB}'",
            f"DELETE FROM knowledge_base WHERE id = '{KB}'")  # fmt: skip
    with untouched(store):
        document = reconcile(store, status=1)
    assert left(document) == [
        ("material.orphan", "the index is not changed: the catalog has no such base"),
    ]


@pytest.mark.parametrize("options", [(), NAMED])
def test_where_many_items_are_gone_at_once_nothing_is_deleted(options: tuple[str, ...], store: Path) -> None:
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE base_id = '{KB}'")
    with untouched(store):
        document = reconcile(store, *options, status=1)
    [(finding, reason)] = left(document)
    assert finding == "material.orphan"
    assert "5 of 5 items disappeared at once" in reason


@pytest.mark.parametrize("options", [(), NAMED])
def test_nothing_of_a_failed_base_is_deleted(options: tuple[str, ...], store: Path) -> None:
    PLANTED["a material of no item"].damage(store)
    catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store'"))(store)
    with untouched(store):
        document = reconcile(store, *options, status=1)
    reasons = [reason for finding, reason in left(document) if finding == "material.orphan"]
    assert len(reasons) == 1
    assert "deleted from a failed base" in reasons[0]


def test_a_material_is_kept_unless_it_is_named(store: Path) -> None:
    PLANTED["a material of no item"].damage(store)
    with untouched(store):
        document = reconcile(store, status=1)
        for_person = run("reconcile", store)
    [one] = [one for one in document["left"] if one["finding"] == "material.orphan"]
    assert "--only material.orphan deletes them" in one["reason"]
    assert one["repair"] == f"regraft repair {store} --only material.orphan --adopt --base {one['base']}"
    assert one["reason"] in for_person.stdout
    assert one["repair"] in for_person.stdout


def test_only_what_is_named_follows(store: Path) -> None:
    file, url = of_types(store, "file", "url")
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE id = '{url}'")
    move_item(store, file, "elsewhere.md")
    assert actions(reconcile(store, "--only", "material.path", status=1)) == {"update-paths": 1}
    assert "material.orphan" in findings(store)


def test_a_finding_of_another_command_is_refused(store: Path) -> None:
    with untouched(store):
        done = run("reconcile", store, "--only", "raw.orphan", "--json")
        assert "reconcile takes material.orphan, material.path" in said(done, "WrongUsage", 2)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "damage",
    [
        sql("INSERT INTO material VALUES (x'00', 'a', NULL, 0, 0)"),
        sql("INSERT INTO material VALUES (NULL, 'a', NULL, 0, 0)"),
        sql("INSERT INTO material VALUES (CAST(x'ff' AS TEXT), 'a', NULL, 0, 0)"),
    ],
)
def test_a_material_whose_id_is_no_text_stays(damage: Any, store: Path) -> None:
    damage(store)
    with untouched(store):
        assert left(reconcile(store, *NAMED, status=1)) == [("material.orphan", "its id is not text")]


def test_where_an_items_id_is_no_text_nothing_is_deleted(store: Path) -> None:
    PLANTED["a material being deleted"].damage(store)
    run_sql(store / "catalog.sqlite", "INSERT INTO knowledge_item SELECT x'00', base_id, NULL, type, data, status,"
            f" NULL, 0, 0 FROM knowledge_item WHERE base_id = '{OTHER}'")  # fmt: skip
    with untouched(store):
        document = reconcile(store, *NAMED, status=1)
        assert [one["finding"] for one in document["left"]].count("material.orphan") == 1


# --- paths -----------------------------------------------------------------------------------------------------------


def test_a_material_takes_the_path_of_its_item(store: Path) -> None:
    [item] = of_types(store, "file")
    raw = index(store).parent.parent / "raw"
    (raw / "report.pdf").rename(raw / "new.pdf")
    move_item(store, item, "new.pdf")
    assert findings(store) == ["material.path", "raw.missing"]
    document = reconcile(store)
    assert actions(document) == {"update-paths": 1}
    assert document["actions"][0]["subject"] == item
    assert materials(store)[item] == "new.pdf"
    assert findings(store) == []


def test_what_is_indexed_of_an_item_goes_before_its_own_file(store: Path) -> None:
    indexed = data(source="a", relativePath="report.pdf", indexedRelativePath="report.md")
    catalog(ITEM.format(indexed, "file"))(store)
    (index(store).parent.parent / "raw" / "report.md").write_text("text")
    reconcile(store)
    assert materials(store)[of_types(store, "file")[0]] == "report.md"
    assert findings(store) == []


def test_a_file_that_is_not_where_its_item_says_is_named(store: Path) -> None:
    [item] = of_types(store, "file")
    move_item(store, item, "new.pdf")
    document = reconcile(store, status=1)
    assert left(document) == [("raw.missing", 'its file is still called "report.pdf", and its item says "new.pdf"')]
    assert findings(store) == ["raw.missing"]


def test_paths_are_handed_on_and_swapped(store: Path) -> None:
    """Three materials in a circle: each is in the way of another."""
    three = of_types(store, "file", "url", "note")
    paths = [materials(store)[item] for item in three]
    for item, path in zip(three, (*paths[1:], paths[0]), strict=True):
        move_item(store, item, path)
    before = state(store)
    document = reconcile(store)
    assert actions(document) == {"update-paths": 3}
    assert [materials(store)[item] for item in three] == [*paths[1:], paths[0]]
    assert run("undo", store).status == 0
    assert state(store) == before


@pytest.mark.thorough
def test_the_path_of_a_material_that_goes_is_free(store: Path) -> None:
    file, url = of_types(store, "file", "url")
    taken = materials(store)[url]
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE id = '{url}'")
    move_item(store, file, taken)
    before = state(store)
    assert "update-paths" not in actions(reconcile(store, status=1))
    assert actions(reconcile(store, *NAMED, "--only", "material.path"))["update-paths"] == 1
    assert materials(store)[file] == taken
    assert run("undo", store).status == 0
    assert state(store) == before


def test_a_path_that_is_taken_or_none_is_left(store: Path) -> None:
    file, url, note = of_types(store, "file", "url", "note")
    child = next(path for path in materials(store).values() if "/" in path)
    owner = next(item for item, path in materials(store).items() if path == child)
    move_item(store, file, child)  # that of a material that stays
    move_item(store, url, "same.md")
    move_item(store, note, "same.md")
    with untouched(store):
        document = reconcile(store, status=1)
    reasons = [reason for finding, reason in left(document) if finding == "material.path"]
    assert sorted(reasons) == [
        f'the path of its item, "{child}", is that of the material {owner}',
        'the path of its item, "same.md", is that of several items',
        'the path of its item, "same.md", is that of several items',
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["../x", "/x", ".cherry/x", "a\\b", "a//b", "a\0"])
def test_no_unsafe_path_gets_into_an_index(path: str, store: Path) -> None:
    move_item(store, of_types(store, "file")[0], path)
    with untouched(store):
        assert reconcile(store, status=1)["left"][0]["finding"] == "material.path"


def test_a_path_that_waits_for_one_that_is_left_is_left_too(store: Path) -> None:
    file, url = of_types(store, "file", "url")
    move_item(store, file, materials(store)[url])
    move_item(store, url, "../x")
    with untouched(store):
        assert len(reconcile(store, status=1)["left"]) == 2


# --- what is missing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "finding", "status"),
    [
        ("a file without text", "item.no-material", 1),
        ("a note never indexed", "item.not-indexed", 0),
        ("no index", "base.no-index", 1),
    ],
)
def test_what_the_index_lacks_is_listed(name: str, finding: str, status: int, store: Path) -> None:
    PLANTED[name].damage(store)
    with untouched(store):
        document = reconcile(store, status=status)
    assert [(one["finding"], one["base"], one["repair"]) for one in document["left"]] == [(finding, KB, None)]


def test_of_a_profile_rescue_may_help_while_it_has_vector_files_of_v1(store: Path) -> None:
    PLANTED["no index"].damage(store)
    (store / "catalog.sqlite").rename(store / "cherrystudio.sqlite")
    [one] = reconcile(store, status=1)["left"]
    assert one["repair"] is None
    assert run("rescue", store, "--yes").status == REFUSED
    write_store(store / "KnowledgeBase" / "kb", [Row("F", "a text of v1")])
    [one] = reconcile(store, status=1)["left"]
    assert one["repair"] == f"regraft rescue {store}"


# --- damage and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name",
    [
        name if case.finding in MENDED or at % 4 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for at, (name, case) in enumerate(PLANTED.items())
    ],
)
def test_whatever_is_damaged_it_ends_in_order(name: str, store: Path) -> None:
    """What it can mend is gone afterwards, what it changed is taken back, and other damage stays as it was."""
    PLANTED[name].damage(store)
    before = state(store)
    done = run("reconcile", store, "--json")
    if done.status == REFUSED:
        assert state(store) == before
        return
    assert done.status in (0, 1)
    is_left = {one["finding"] for one in done.document["left"]}
    assert MENDED.intersection(findings(store)) <= is_left
    if done.document["undo"] is None:
        assert state(store) == before
        return
    assert run("undo", store).status == 0
    assert state(store) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["random bytes", "no embeddings", "version 3", "another base", "no identity"])
def test_a_damaged_index_is_left(name: str, store: Path) -> None:
    PLANTED[name].damage(store)
    PLANTED["another path"].damage(store)
    with untouched(store):
        document = reconcile(store, status=1)
    assert PLANTED[name].finding in {one["finding"] for one in document["left"]}
    assert document["actions"] == []


def test_only_the_chosen_base_changes(store: Path) -> None:
    PLANTED["another path"].damage(store)
    with untouched(store):
        reconcile(store, "--base", OTHER)
    assert "base" in said(run("reconcile", store, "--base", "nobody", "--json"), "BaseUnknown", REFUSED)


def test_without_a_catalog_nothing_can_be_followed(store: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(store / "KnowledgeBase" / KB, tmp_path / "alone" / STRAY_BASE)
    before = state(alone)
    message = said(run("reconcile", alone, "--json"), "NotChanged", REFUSED)
    assert "without a catalog, which regraft reconcile does not take" in message
    assert (state(alone), (alone / ".regraft").exists()) == (before, False)
    (store / "catalog.sqlite").write_bytes(b"no database")
    with untouched(store):
        said(run("reconcile", store, "--json"), "SourceUnreadable", REFUSED)


def test_while_somebody_writes_nothing_is_changed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 0)
    PLANTED["another path"].damage(store)
    with opened(index(store)) as db:
        db.execute("BEGIN IMMEDIATE")
        before = materials(store)
        said(run("reconcile", store, "--json"), "StoreBusy", REFUSED)
    assert materials(store) == before


def test_while_the_application_runs_nothing_is_changed(store: Path) -> None:
    PLANTED["another path"].damage(store)
    (store / "catalog.sqlite").rename(store / "cherrystudio.sqlite")
    start_application(store)
    with untouched(store):
        said(run("reconcile", store, "--json"), "ApplicationOpen", REFUSED)
        assert actions(reconcile(store, "--dry-run", status=1)) == {"update-paths": 1}


# --- kills -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_killed_at_any_step_the_next_run_finishes(healthy: Path, tmp_path: Path) -> None:
    """Before every step: the index is the old or the new one, and after the next run it is the new one."""
    damaged = shutil.copytree(healthy, tmp_path / "damaged")
    for name in ("a material being deleted", "another path"):
        PLANTED[name].damage(damaged)
    move_item(damaged, of_types(damaged, "note")[0], "moved.md")
    old = state(damaged)
    finished = shutil.copytree(damaged, tmp_path / "finished")
    run("reconcile", finished)
    new = state(finished)
    at, is_over = 0, False
    while not is_over:
        at += 1
        store = shutil.copytree(damaged, tmp_path / "killed")

        def work(store: Path = store, at: int = at) -> None:
            with pytest.MonkeyPatch.context() as patch:
                trip = Tripwire(patch, die, at)
                trip.watch(Ledger, "begin_run", "end_run").watch(ChangeLog, "record_actions", "intend", "set_state")
                trip.watch(durable, "sync_file", "sync_folder").watch(os, "replace", "link", "mkdir")
                run("reconcile", store)

        is_over = forked(work) != KILLED
        assert state(store) in (old, new), at
        run("reconcile", store)
        assert state(store) == new, at
        assert run("undo", store).status == 0
        assert state(store) == old, at
        shutil.rmtree(store)
    assert at > 8
