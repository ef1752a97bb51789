"""``regraft repair``: every planted damage that it mends, its document, paths, refusals, kills."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from audits import audit
from faults import Tripwire, files_of, forked, links, said, untouched
from harness import run
from planted_v2 import ITEM, KB, KB_ROW, MATERIAL, OTHER, PLANTED, Plant, catalog, index, run_sql, several, sql
from profiles import start_application
from stand_ins import KILLED, die

from regraft.disk import durable
from regraft.ledger.ledger import ChangeLog, Ledger
from repair.changes import files
from repair.changes.execution import ChangeExecutor
from repair.cherry_v2.rules import planner

VECTORS = {"embedding.length", "embedding.non-finite", "embedding.zero"}
MENDED = [name for name, case in PLANTED.items() if case.finding in planner.NAMES and name != "one number twice"]


def repair(path: Path, *options: object) -> dict[str, Any]:
    done = run("repair", path, "--json", *options)
    assert done.status in (0, 1), done
    return done.document


def names(path: Path) -> set[str]:
    return {finding["name"] for finding in run("check", path, "--json").document["findings"]}


def actions(document: dict[str, Any]) -> dict[str, int]:
    return {action["action"]: action["count"] for action in document["actions"]}


def state(target: Path) -> dict[str, object]:
    """Return what the rows of every database say, and the bytes of every other file of the store."""
    databases = [path for path in target.rglob("*.sqlite") if ".regraft" not in path.parts]
    found: dict[str, object] = {path.relative_to(target).as_posix(): files.fingerprint(path) for path in databases}
    raw = {name: content for name, content in files_of(target / "KnowledgeBase").items() if "/raw/" in name}
    return {**found, **raw}


# --- planted damage --------------------------------------------------------------------------------------------------


#: Damage that says nothing of what was there before.
UNDERIVED = {"a type of bytes", "a long note"}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", MENDED)
def test_planted_damage_is_mended_and_taken_back(name: str, store: Path) -> None:
    case = PLANTED[name]
    case.damage(store)
    before = state(store)
    with untouched(store):
        planned = repair(store, "--dry-run")
    done = repair(store)
    assert done["actions"] == planned["actions"]
    if name in UNDERIVED:
        assert (done["actions"], {left["finding"] for left in done["left"]}) == ([], {case.finding})
        return
    assert case.finding in {action["finding"] for action in done["actions"]}
    assert names(store) == ({"embedding.missing"} if case.finding in VECTORS else set())
    again = repair(store)
    assert (again["actions"], again["undo"]) == ([], None)
    assert run("undo", store, done["undo"], "-q").status == 0
    assert state(store) == before


def test_what_is_left_is_said_with_its_count(store: Path) -> None:
    PLANTED["a long vector"].damage(store)
    [left] = repair(store)["left"]
    assert (left["finding"], left["base"], left["count"]) == ("embedding.missing", KB, 1)
    assert run("repair", store).status == 1
    assert run("repair", store, "--fail-on", "never").status == 0


def test_a_layout_that_is_not_whole_comes_first(store: Path) -> None:
    PLANTED["one number twice"].damage(store)
    with untouched(store):
        done = repair(store, "--dry-run")
    assert done["actions"] == []
    hints = {left["finding"]: left["repair"] for left in done["left"]}
    assert hints["body.rowid"] == f"regraft upgrade {store}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", ["an absolute path", "a path in .cherry"])
@pytest.mark.parametrize("layout", ["version 1", "no trigger", "a lenient check"])
def test_an_unsafe_path_outlives_the_upgrade_that_it_needs(path: str, layout: str, store: Path) -> None:
    several(PLANTED[path].damage, PLANTED[layout].damage)(store)
    before = state(store)
    assert run("upgrade", store, "-q", "--fail-on", "never").status == 0
    assert actions(repair(store))["rename-materials"] == 1
    assert names(store) == set()
    assert [run("undo", store, "-q").status for _ in range(2)] == [0, 0]
    assert state(store) == before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("catalog", ["other dimensions", "dimensions in words", "a model without dimensions"])
@pytest.mark.parametrize("vector", ["a long vector", "an odd vector", "a vector in words"])
def test_dimensions_are_those_of_the_vectors_that_stay(catalog: str, vector: str, store: Path) -> None:
    several(PLANTED[catalog].damage, PLANTED[vector].damage)(store)
    if (catalog, vector) == ("other dimensions", "a long vector"):
        # Two lengths, and the catalog has a third one: which is right is not for regraft to say.
        assert actions(repair(store)) == {}
        assert names(store) == {"embedding.length", "base.dimensions"}
        return
    assert actions(repair(store)) == {"delete-embeddings": 1, "update-bases": 1}
    assert repair(store)["actions"] == []
    assert names(store) == {"embedding.missing"}


@pytest.mark.parametrize(
    "name", ["a foreign trigger", "a gap", "NaN", "a path of an early release", "nobody works", "other dimensions"]
)
def test_a_repair_that_mends_nothing_is_noticed(name: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second audit finds what the plan has promised to mend."""
    PLANTED[name].damage(store)
    before = state(store)
    monkeypatch.setattr(ChangeExecutor, "make", lambda *_: None)
    finding = PLANTED[name].finding
    assert finding in said(run("repair", store, "--only", finding, "--json"), "NotMended", 3)
    assert state(store) == before


def test_damage_that_no_command_mends_is_left(store: Path) -> None:
    PLANTED["another base"].damage(store)
    done = repair(store)
    assert done["actions"] == []
    assert {left["finding"] for left in done["left"]} == {"meta.base-id"}


def test_only_what_is_named(store: Path) -> None:
    several(PLANTED["NaN"].damage, PLANTED["another body id"].damage)(store)
    assert actions(repair(store, "--only", "body.id")) == {"rekey-bodies": 1}
    assert names(store) == {"embedding.non-finite"}


def test_only_one_base(store: Path) -> None:
    PLANTED["another body id"].damage(store)
    assert repair(store, "--base", OTHER)["actions"] == []
    assert actions(repair(store, "--base", KB)) == {"rekey-bodies": 1}


@pytest.mark.parametrize("inside", ["KnowledgeBase", f"KnowledgeBase/{KB}", f"KnowledgeBase/{KB}/.cherry/index.sqlite"])
def test_any_part_of_the_store(inside: str, store: Path) -> None:
    PLANTED["another body"].damage(store)
    repair(store / inside)
    assert names(store) == set()
    assert (store / ".regraft").is_dir()


def test_every_name_is_a_finding_that_can_be_planted() -> None:
    assert set(planner.NAMES) == {PLANTED[name].finding for name in MENDED}


# --- findings that depend on each other ------------------------------------------------------------------------------

WRONG_ID = sql("UPDATE search_text SET search_text_id = 'x' WHERE rowid = 1", "DELETE FROM embedding")
REKEYED = ("rekey-bodies", KB, 1, "body.id", "recompute the id of 1 body from the fields")
TRIGGER = catalog("CREATE TRIGGER mine AFTER DELETE ON knowledge_item BEGIN SELECT 1; END")
DROPPED = ("drop-triggers", None, 1, "schema.foreign-trigger", "drop 1 trigger not defined by the layout")
ACTIVE_ITEM = catalog(ITEM.format("status = 'embedding'", "file"))
NO_DATA = catalog(ITEM.format("data = '{'", "file"))
WITH_AN_ERROR = catalog(KB_ROW.format("error = 'x'"))
UNSAFE_PATH = sql("UPDATE material SET relative_path = '../x' WHERE relative_path = 'report.pdf'")
NO_ERROR = ("update-bases", KB, 1, "base.status", "set error NULL")


@pytest.mark.parametrize(
    ("damage", "options", "done", "left"),
    [
        # Bodies need vectors where the base has a model, and is completed.
        ([WRONG_ID], (), [REKEYED], {("embedding.missing", KB, 15)}),
        (
            [WRONG_ID, catalog(KB_ROW.format("embedding_model_id = NULL, dimensions = NULL"))],
            *((), [REKEYED], set()),
        ),
        (
            [WRONG_ID, catalog(KB_ROW.format("status = 'failed', error = 'x'"))],
            *((), [REKEYED], {("base.failed", KB, 1)}),
        ),
        # Of what is named, nothing else is repaired or reported.
        ([WRONG_ID, ACTIVE_ITEM], ("--only", "body.id"), [REKEYED], set()),
        ([WRONG_ID, TRIGGER], (), [DROPPED, REKEYED], {("embedding.missing", KB, 15)}),
        ([WRONG_ID, TRIGGER], ("--only", "body.id"), [REKEYED], set()),
        ([WRONG_ID, TRIGGER], ("--only", "schema.foreign-trigger"), [DROPPED], set()),
        # With the path of its item, a material agrees with it.
        (
            [UNSAFE_PATH],
            (),
            [("rename-materials", KB, 1, "material.path-unsafe", "give 1 material a path below raw/")],
            set(),
        ),
        # The vectors show the dimensions, so that their length is right.
        (
            [catalog(KB_ROW.format("dimensions = 768"))],
            (),
            [("update-bases", KB, 1, "base.dimensions", "set dimensions 4")],
            set(),
        ),
        (
            [WITH_AN_ERROR, ACTIVE_ITEM],
            (),
            [
                NO_ERROR,
                ("update-items", KB, 1, "item.status", "set 1 item to failed (indexing_interrupted)"),
            ],
            set(),
        ),
        (
            [WITH_AN_ERROR, NO_DATA],
            (),
            [NO_ERROR, ("update-items", KB, 1, "item.data", "rewrite the data of 1 file")],
            set(),
        ),
        ([WITH_AN_ERROR, NO_DATA], ("--only", "base.status"), [NO_ERROR], set()),
    ],
)
def test_what_is_repaired_and_reported_of_several_findings(
    damage: list[Plant],
    options: tuple[str, ...],
    done: list[tuple[Any, ...]],
    left: set[tuple[str, str | None, int]],
    store: Path,
) -> None:
    for plant in damage:
        plant(store)
    found, before = names(store), state(store)
    document = repair(store, *options)
    actions = [
        (one["action"], one["base"], one["count"], one["finding"], one["message"]) for one in document["actions"]
    ]
    assert actions == done
    assert {(one["finding"], one["base"], one["count"]) for one in document["left"]} == left
    remaining = names(store)
    assert {one[3] for one in done} <= found - remaining
    if not options:
        assert remaining == {one[0] for one in left}
    assert run("undo", store, "--yes").status == 0
    assert state(store) == before


def test_the_index_of_a_base_that_cannot_be_read_is_reported_once(store: Path) -> None:
    path = index(store)
    path.write_bytes(path.read_bytes()[:9000])
    run_sql(index(store, OTHER), "UPDATE search_text SET search_text_id = 'x' WHERE rowid = 1")
    with untouched(store):
        planned = run("repair", store, "--json", "--dry-run").document
    document = repair(store)
    assert planned["actions"] == document["actions"]
    assert [(one["action"], one["base"]) for one in document["actions"]] == [("rekey-bodies", OTHER)]
    [one] = document["left"]
    assert (one["finding"], one["base"]) == ("file.unreadable", KB)
    assert one["reason"].endswith("nothing can be salvaged: none of its remaining rows can be verified")
    assert path.stat().st_size == 9000


# --- paths ---------------------------------------------------------------------------------------------------------


def unsafe(target: Path, path: str, item: str | None = None) -> str:
    """Give the upload an unsafe path in the index and its item another one, the same by default; returns its id."""
    with closing(apsw.Connection(str(index(target)))) as db:
        [(material,)] = db.execute("SELECT material_id FROM material WHERE relative_path = 'report.pdf'").fetchall()
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute("UPDATE material SET relative_path = ? WHERE material_id = ?", (path, material))
    with closing(apsw.Connection(str(target / "catalog.sqlite"))) as db:
        sql = "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', ?) WHERE id = ?"
        db.execute(sql, (path if item is None else item, material))
    return str(material)


def paths(target: Path, material: str) -> tuple[object, object]:
    with closing(apsw.Connection(str(index(target)))) as db:
        one = db.execute("SELECT relative_path FROM material WHERE material_id = ?", (material,)).get
    with closing(apsw.Connection(str(target / "catalog.sqlite"))) as db:
        return one, db.execute("SELECT data ->> 'relativePath' FROM knowledge_item WHERE id = ?", (material,)).get


def raw(target: Path) -> Path:
    return index(target).parent.parent / "raw"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_an_unsafe_path_of_index_item_and_file_becomes_a_safe_one(store: Path) -> None:
    (raw(store) / "report.pdf").rename(raw(store) / "a\\report.pdf")
    material = unsafe(store, "a\\report.pdf")
    before = state(store)
    done = repair(store)
    assert actions(done) == {"move-files": 1, "rename-items": 1, "rename-materials": 1}
    assert paths(store, material) == ("a/report.pdf", "a/report.pdf")
    assert (raw(store) / "a" / "report.pdf").read_bytes() == b"a pdf"
    assert not (raw(store) / "a\\report.pdf").exists()
    assert names(store) == set()
    run("undo", store, "-q")
    assert state(store) == before


@pytest.mark.skipif(os.name != "nt", reason="elsewhere a backslash is part of a name")
def test_a_file_at_a_path_with_backslashes_stays_in_its_folder(store: Path) -> None:
    (raw(store) / "a").mkdir()
    (raw(store) / "report.pdf").rename(raw(store) / "a" / "report.pdf")
    material = unsafe(store, "a\\report.pdf")
    before = state(store)
    assert actions(repair(store)) == {"rename-items": 1, "rename-materials": 1}
    assert paths(store, material) == ("a/report.pdf", "a/report.pdf")
    assert (raw(store) / "a" / "report.pdf").read_bytes() == b"a pdf"
    assert names(store) == set()
    run("undo", store, "-q")
    assert state(store) == before


def test_a_file_outside_is_never_touched(store: Path) -> None:
    outside = raw(store).parent / "report.pdf"
    (raw(store) / "report.pdf").rename(outside)
    material = unsafe(store, "../report.pdf")
    assert actions(repair(store)) == {"rename-items": 1, "rename-materials": 1}
    assert paths(store, material) == ("report.pdf", "report.pdf")
    assert outside.read_bytes() == b"a pdf"
    assert names(store) == {"raw.missing"}


def test_a_new_path_of_one_material_does_not_hide_the_missing_file_of_another(store: Path) -> None:
    (raw(store) / "report.pdf").rename(raw(store).parent / "report.pdf")
    unsafe(store, "../report.pdf")
    next(path for path in sorted(raw(store).rglob("*.md"))).unlink()
    planned = run("repair", store, "--dry-run", "--json").document
    assert {one["action"] for one in planned["actions"]} == {"rename-items", "rename-materials"}
    assert [(one["finding"], one["count"]) for one in planned["left"]] == [("raw.missing", 1)]


@links
def test_a_link_out_of_the_folder_is_not_followed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (raw(store) / "out").symlink_to(tmp_path)
    material = unsafe(store, "out\\..\\secret")
    assert "move-files" not in actions(repair(store))
    assert paths(store, material) == ("secret", "secret")
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_safe_name_that_is_taken_gets_a_number(store: Path) -> None:
    with closing(apsw.Connection(str(index(store)))) as db:
        [(other,)] = db.execute("SELECT relative_path FROM material WHERE relative_path LIKE '%.md' LIMIT 1").fetchall()
    material = unsafe(store, f"../{other}")
    repair(store)
    stem = str(other).removesuffix(".md")
    assert paths(store, material) == (f"{stem}_1.md", f"{stem}_1.md")


def test_without_a_catalog_only_the_index_changes(store: Path, tmp_path: Path) -> None:
    alone = shutil.copyfile(index(store), tmp_path / "index.sqlite")
    run_sql(alone, MATERIAL.format("relative_path = '/etc/x'"))
    assert actions(repair(alone)) == {"rename-materials": 1}
    assert names(alone) == set()


def test_the_path_of_the_item_that_another_material_has(store: Path) -> None:
    with closing(apsw.Connection(str(index(store)))) as db:
        [(other,)] = db.execute("SELECT relative_path FROM material WHERE relative_path LIKE '%.md' LIMIT 1").fetchall()
    unsafe(store, "../x", str(other))
    done = repair(store)
    assert done["actions"] == []
    assert "another material has the path" in next(
        one["reason"] for one in done["left"] if one["finding"] == "material.path-unsafe"
    )


def test_a_catalog_that_cannot_be_read_keeps_paths(store: Path) -> None:
    unsafe(store, "../x")
    PLANTED["another body id"].damage(store)
    (store / "catalog.sqlite").write_bytes(b"x")
    done = repair(store / "KnowledgeBase" / KB)
    assert actions(done) == {"rekey-bodies": 1}
    assert {"material.path-unsafe", "file.unreadable"} <= {left["finding"] for left in done["left"]}


# --- refusals ------------------------------------------------------------------------------------------------------


def test_a_busy_index_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", 1)
    PLANTED["another body"].damage(store)
    with closing(apsw.Connection(str(index(store)))) as other:
        other.execute("BEGIN IMMEDIATE")
        before = state(store)
        assert "another program" in said(run("repair", store, "--json"), "StoreBusy", 2)
        assert state(store) == before
    assert repair(store)["actions"]


def test_what_cannot_be_written_is_refused(store: Path) -> None:
    PLANTED["another body"].damage(store)
    (store / ".regraft" / "ledger.sqlite").unlink()
    (store / ".regraft").rmdir()
    (store / ".regraft").write_bytes(b"")
    with untouched(store):
        said(run("repair", store, "--json"), "StoreNotWritable", 2)


def test_a_running_application_is_refused(store: Path, tmp_path: Path) -> None:
    PLANTED["another body"].damage(store)
    profile = tmp_path / "profile"
    (profile / "Data").mkdir(parents=True)
    (store / "catalog.sqlite").rename(profile / "cherrystudio.sqlite")
    (store / "KnowledgeBase").rename(profile / "Data" / "KnowledgeBase")
    lock = start_application(profile)
    with untouched(profile):
        assert "application is running" in said(run("repair", profile, "--json"), "ApplicationOpen", 2)
        assert repair(profile, "--dry-run")["actions"]
    lock.unlink()
    assert actions(repair(profile))["restore-bodies"] == 1


def test_names_and_bases_that_are_none(store: Path) -> None:
    with untouched(store):
        said(run("repair", store, "--base", "x", "--json"), "BaseUnknown", 2)
        assert "nearest" in said(run("repair", store, "--only", "body.hsh", "--json"), "WrongUsage", 2)
        assert "repair takes" in said(run("repair", store, "--only", "raw.orphan", "--json"), "WrongUsage", 2)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(20))
def test_any_damage_ends_in_words(seed: int, store: Path) -> None:
    (audit.damage if seed % 2 else lambda target, _: audit.damage(target, seed + 1000))(store, seed)
    outcome = run("repair", store, "--json")
    assert outcome.status in (0, 1, 2, 3)
    if "error" not in outcome.document:
        left = {one["finding"] for one in outcome.document["left"]}
        assert names(store) & set(planner.NAMES) <= left


# --- kills -----------------------------------------------------------------------------------------------------------


def wire(patch: pytest.MonkeyPatch, at: int) -> Tripwire:
    tripwire = Tripwire(patch, die, at).watch_files()
    tripwire.watch(os, "link", "unlink").watch(durable, "remove_tree", "replace")
    return tripwire.watch(ChangeLog, "intend", "set_state", "record_actions").watch(Ledger, "begin_run", "end_run")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fork, and no backslash in names")
@pytest.mark.slow
def test_a_kill_at_any_step_leaves_old_or_new_and_the_next_run_finishes(
    healthy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shutil.copytree(healthy, tmp_path / "first")
    (raw(first) / "report.pdf").rename(raw(first) / "a\\report.pdf")
    unsafe(first, "a\\report.pdf")
    several(PLANTED["another body"].damage, PLANTED["a gap"].damage, PLANTED["NaN"].damage)(first)
    old = state(first)
    whole = shutil.copytree(first, tmp_path / "whole")
    repair(whole)
    new = state(whole)
    at, killed = 1, True
    while killed:
        store = shutil.copytree(first, tmp_path / f"killed-{at}")

        def work(store: Path = store, at: int = at) -> None:
            wire(monkeypatch, at)
            run("repair", store, "--json")

        status = forked(work)
        killed = status == KILLED
        assert status in (0, KILLED)
        for name, content in state(store).items():
            assert content in (old.get(name), new.get(name)), (at, name)
        repair(store)
        assert state(store) == new, at
        assert not (store / ".regraft" / "work").exists()
        shutil.rmtree(store)
        at += 1
    assert at > 20


@pytest.mark.parametrize("seed", [182, 329, 363])
def test_pages_that_changed_places_are_not_written_over(seed: int, store: Path) -> None:
    """Such damage shows as rows that contradict each other: nothing is derived from those."""
    audit.damage(store, seed)
    before = state(store)
    done = repair(store)
    assert done["actions"] == []
    assert names(store).intersection(planner.NAMES) <= {left["finding"] for left in done["left"]}
    assert state(store) == before
