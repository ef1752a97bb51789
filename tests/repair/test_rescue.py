"""``regraft rescue``: what the application's own upgrade left behind comes back from v1's files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from aged_files import aged
from faults import REFUSED, Tripwire, forked, late_damage, said, untouched
from golden_cases import Shape, normal
from harness import GOLDEN, NOW, NOW_MS, Outcome, command_words, golden, run, snapshot
from hypothesis import given
from hypothesis import strategies as st
from planted_v1 import profile as chromium_profile
from profiles import start_application
from rescued import actions, left
from stand_ins import KILLED, die
from stranded import (
    DATABASE,
    base_of,
    contents,
    index_of,
    profile,
    renamed,
    rows_of,
    settled,
    shape,
    some_source,
    sql,
    tables,
)
from v1 import LLM, MODEL, Row, Source, base, dicts, file, folder, note, opened, pack, vector_of

from migrators.pipeline.source import ItemDraft
from regraft import identity
from regraft.disk import sqlite
from regraft.formats.cherry_v2 import index
from regraft.identity import replace
from regraft.ledger.ledger import ChangeLog, Ledger
from repair.cherry_v2.rescue.matching import match_items


@contextmanager
def unchanged(made: Path) -> Iterator[None]:
    """Assert that every file and folder in a profile is as it was before; regraft's lock may come and go."""
    before = snapshot(made)
    yield
    assert snapshot(made) == before


def rescue(made: Path, *more: object) -> Outcome:
    return run("rescue", made, "--now", NOW, "--json", *more)


def rescued(made: Path, *more: object) -> dict[str, Any]:
    """Rescue and return the document."""
    done = rescue(made, *more)
    assert done.status in (0, 1), done
    return done.document


def found(made: Path) -> set[tuple[str, str | None]]:
    """Return what a deep check finds, but for v1's files and notes that v1 never indexed."""
    document = run("check", made, "--deep", "--json").document
    named = {(finding["name"], finding["base"]) for finding in document["findings"]}
    return {one for one in named if one[0] not in ("v1.leftover", "item.not-indexed", "item.path-is-id")}


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return profiles after an upgrade, to be copied."""
    place = tmp_path_factory.mktemp("upgraded")
    lost = {"whole": (), "stranded": ("kb",)}
    return {name: profile(place / name, some_source(), lost=bases) for name, bases in lost.items()}


@pytest.fixture
def whole(upgraded: dict[str, Path], tmp_path: Path) -> Path:
    """Return a profile after an upgrade that could read everything."""
    return shutil.copytree(upgraded["whole"], tmp_path / "whole" / "profile")


@pytest.fixture
def stranded(upgraded: dict[str, Path], tmp_path: Path) -> Path:
    """Return a profile whose first base could not be read at the upgrade."""
    return shutil.copytree(upgraded["stranded"], tmp_path / "stranded" / "profile")


# --- golden ----------------------------------------------------------------------------------------------------------


def golden_profile(name: str, tmp_path: Path) -> Path:
    made = tmp_path / name
    shutil.copytree(GOLDEN / name, made)
    for path in (made, *made.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)
    return made


@golden
@pytest.mark.parametrize(
    ("name", "database"), [("profile_208_stranded", "Data/cherrystudio.sqlite"), ("profile_stranded", DATABASE)]
)
def test_the_stranded_profile_comes_out_as_the_application_would_have_made_it(tmp_path, name, database):
    made = golden_profile(name, tmp_path)
    before = tables(made / database)
    document = rescued(made)
    redux = json.loads((made / "redux.json").read_text("utf-8"))
    with opened(settled(made / database)) as db:
        bases = dicts(db, "SELECT id, name FROM knowledge_base ORDER BY rowid")
        rows = dicts(db, "SELECT * FROM knowledge_item WHERE group_id IS NULL ORDER BY rowid")
    legacy = redux["knowledge"]["bases"]
    base_ids = {one["id"]: row["id"] for one, row in zip(legacy, bases, strict=True)}
    item_ids = {}
    for one in legacy:
        items = [item for item in one["items"] if item and item["type"] in ("file", "directory")]
        mine = [row for row in rows if row["base_id"] == base_ids[one["id"]]]
        for row in mine:
            source = json.loads(row["data"])["source"]
            match = [item for item in items if source in (item["content"], item["content"] and _path(item))]
            item_ids[match[0]["id"]] = row["id"]
    (made / "KnowledgeBase").symlink_to(made / "Data" / "KnowledgeBase")
    (made / "catalog.sqlite").symlink_to(made / database)
    ours = {one["legacyId"]: one for one in Shape(made, {"ids": {"bases": base_ids, "items": item_ids}}).bases()}
    theirs = json.loads((GOLDEN / "directory" / "expected.json").read_text("utf-8"))["bases"]
    for wanted in map(normal, theirs[:3]):
        mine = ours[wanted["legacyId"]]
        for item in wanted["items"]:
            item["updated_at"] = next(one["updated_at"] for one in mine["items"] if one["key"] == item["key"])
        assert sorted(mine["items"], key=repr) == sorted(wanted["items"], key=repr)
        own = {"items", "search_mode", "hybrid_alpha"}  # the last two are a pre-release's
        assert {key: value for key, value in mine.items() if key not in own} == {
            key: value for key, value in wanted.items() if key != "items"
        }
    still = {("item.tombstone", base_ids["dirD"]), ("item.tombstone", base_ids["dirE"])}
    assert found(made) == still
    assert {name for name, rows in tables(made / database).items() if rows != before[name]} == {
        "knowledge_base",
        "knowledge_item",
    }
    assert document["undo"] is not None
    children = [item for one in ["dirA", "dirB", "dirC"] for item in ours[one]["items"] if item["group"]]
    assert len(children) == 8


def _path(item: dict[str, Any]) -> str:
    return item["content"]["path"] if isinstance(item["content"], dict) else ""


@golden
def test_a_profile_of_a_good_upgrade_is_left_alone(tmp_path):
    made = golden_profile("profile_upgraded", tmp_path)
    with unchanged(made):
        document = rescued(made)
    assert (document["actions"], document["left"], document["undo"]) == ([], [], None)


@golden
@pytest.mark.parametrize("name", ["profile_stranded", "profile_upgraded"])
def test_golden_indexes_that_are_gone_come_back_as_they_were(tmp_path, name):
    made = golden_profile(name, tmp_path)
    rescued(made)
    before = shape(made)
    for path in (made / "Data" / "KnowledgeBase").glob("*/.cherry/index.sqlite"):
        path.unlink()
    rescued(made)
    assert shape(made) == before


# --- what check says of it -------------------------------------------------------------------------------------------


def told(made: Path, *more: object) -> dict[str, list[dict[str, Any]]]:
    """Return what a check finds, by name."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for one in run("check", made, "--json", *more).document["findings"]:
        by_name.setdefault(one["name"], []).append(one)
    return by_name


@pytest.mark.thorough
@pytest.mark.parametrize("level", [(), ("--quick",), ("--deep",)])
def test_what_a_rescue_brings_back_is_an_error_with_that_command(stranded, level):
    with unchanged(stranded):
        found_there = told(stranded, *level)
    (base,), (tombstones,) = found_there["base.failed"], found_there["item.tombstone"]
    command = f"regraft rescue {stranded} --base {base_of('kb')}"
    assert (base["severity"], base["repair"]) == ("error", command)
    assert (tombstones["severity"], tombstones["repair"], tombstones["count"]) == ("error", command, 2)
    (leftover,) = found_there["v1.leftover"]
    assert "clean-up of old data, which deletes these files" in leftover["message"]
    assert (leftover["severity"], leftover["repair"]) == ("note", None)
    rescued(stranded)
    after = told(stranded, *level)
    assert not {"base.failed", "item.tombstone"} & after.keys()
    assert "clean-up" not in after["v1.leftover"][0]["message"]


@pytest.mark.thorough
def test_check_says_first_what_a_rescue_brings_back(stranded):
    _title, first, *_ = run("check", stranded).stdout.splitlines()
    assert first == f"1 base and 2 folders can be restored: regraft rescue {stranded}"
    rescued(stranded)
    assert "brought back" not in run("check", stranded).stdout


def test_what_no_rescue_brings_back_is_a_warning_without_a_command(stranded):
    (stranded / "Data" / "KnowledgeBase" / "kb").unlink()
    found_there = told(stranded)
    for name in ("base.failed", "item.tombstone"):
        assert [(one["severity"], one["repair"]) for one in found_there[name]] == [("warning", None)]
    assert "clean-up" not in found_there["v1.leftover"][0]["message"]


@pytest.mark.thorough
def test_a_rescue_that_needs_a_word_is_offered_with_it(without_model):
    (base,) = told(without_model)["base.failed"]
    assert base["severity"] == "error"
    assert base["repair"].endswith("--recreate-model acme::gone-1")
    assert run("check", without_model).stdout.splitlines()[1] == f"1 base can be restored: {base['repair']}"


@pytest.mark.thorough
def test_folders_of_which_only_some_come_back_are_told_apart(tmp_path):
    source = Source(
        [base("kb", folder("d", "D1", path="/home/alice/d"), folder("e", "nobody", path="/home/alice/e"))],
        {"kb": rows_of("D1")},
    )
    made = profile(tmp_path, source, lost=("kb",))
    error, warning = sorted(told(made)["item.tombstone"], key=lambda one: one["severity"])
    assert (error["severity"], error["count"], error["repair"] is None) == ("error", 1, False)
    assert (warning["severity"], warning["count"], warning["repair"]) == ("warning", 1, None)
    assert error["message"].startswith(
        "1 folder that failed in the application's upgrade; the rows are still in v1's vector file"
    )
    rescued(made)
    assert [one["severity"] for one in told(made)["item.tombstone"]] == ["warning"]


@pytest.mark.thorough
def test_files_of_v1_go_by_the_command_only_where_that_would_take_them(tmp_path):
    whole = profile(tmp_path, small())
    assert told(whole)["v1.leftover"][0]["repair"] is None
    assert told(whole, "--deep")["v1.leftover"][0]["repair"] is None  # they are too young
    for path in (whole / "Data" / "KnowledgeBase").iterdir():
        os.utime(path, (1_600_000_000, 1_600_000_000))
    assert told(whole, "--deep")["v1.leftover"][0]["repair"] == f"regraft gc {whole} --v1-leftovers"
    assert run("gc", whole, "--v1-leftovers").status == 0
    assert "v1.leftover" not in told(whole)


def vectors_of(path: Path) -> set[tuple[str, bytes]]:
    """Return the texts of a vector file of v1 with their vectors."""
    with closing(sqlite3.connect(path)) as db:
        return set(db.execute("SELECT pageContent, vector FROM vectors"))


def test_the_trash_keeps_vectors_that_an_undone_rescue_had_brought_back(tmp_path: Path) -> None:
    items = folder("d", "D1", "D2", path="/home/mei/d"), note("n", "N", text="Remember the lamp")
    made = profile(tmp_path, Source([base("kb", *items)], {"kb": rows_of("D1", "D2", "N")}), lost=("kb",))
    file_of_v1 = aged(made / "Data" / "KnowledgeBase" / "kb")
    of_v1 = vectors_of(file_of_v1)
    of_rescue = rescued(made)["undo"]
    of_gc = run("gc", made, "--v1-leftovers", "--json").document["undo"]
    assert not file_of_v1.exists()
    assert run("undo", made, of_rescue, "--yes").status == 0
    # Long after the days of grace, nothing else has these vectors.
    later = ("--now", "2099-01-01T00:00:00.000Z", "--json")
    for _ in range(2):
        [kept] = run("gc", made, *later).document["left"]
        assert (kept["finding"], kept["repair"]) == ("v1.leftover", f"regraft undo {made} {of_gc}")
        assert "is kept in the trash: v2 has 0 of its 9 vectors" in kept["reason"]
    [in_trash] = (made / ".regraft" / "trash").rglob("kb")
    assert vectors_of(in_trash) == of_v1
    assert run(*command_words(kept["repair"])[1:], "--yes").status == 0
    assert vectors_of(file_of_v1) == of_v1
    rescued(made)
    document = run("gc", made, "--v1-leftovers", *later).document
    assert "trash-vector-file" in {one["action"] for one in document["actions"]}


def test_the_trash_of_proven_vector_files_expires(tmp_path: Path) -> None:
    made = profile(tmp_path, Source([base("kb", note("n", "N"))], {"kb": rows_of("N")}), lost=("kb",))
    aged(made / "Data" / "KnowledgeBase" / "kb")
    rescued(made)
    assert run("gc", made, "--v1-leftovers").status == 0
    document = run("gc", made, "--now", "2099-01-01T00:00:00.000Z", "--json").document
    assert ({one["action"] for one in document["actions"]}, document["left"]) == ({"expire"}, [])
    assert not (made / ".regraft" / "trash").exists()


# --- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_failed_base_comes_back_as_if_the_upgrade_had_read_it(stranded, whole):
    assert shape(stranded) != shape(whole)
    document = rescued(stranded)
    assert shape(stranded) == shape(whole)
    assert found(stranded) == set()
    assert actions(document) == [
        *("write-index", "write-snapshot", "write-snapshot"),
        *("complete-base", "complete-folder", "complete-folder", "insert-items"),
    ]
    assert {action["base"] for action in document["actions"]} == {base_of("kb")}


def test_bases_and_items_keep_their_ids(stranded):
    with opened(settled(stranded / DATABASE)) as db:
        before = {row["id"] for row in dicts(db, "SELECT id FROM knowledge_item")}
    rescued(stranded)
    with opened(settled(stranded / DATABASE)) as db:
        rows = dicts(db, "SELECT id, base_id, group_id, created_at, data, priority FROM knowledge_item")
        assert dicts(
            db, "SELECT count(*) AS n FROM assistant_knowledge_base JOIN knowledge_base ON id = knowledge_base_id"
        ) == [{"n": 2}]
    new = [row for row in rows if row["id"] not in before]
    assert before < {row["id"] for row in rows}
    folder_id = renamed(identity.item_id("kb", "d", new[0]["created_at"]))
    assert identity.child_id(folder_id, "D1", 0, new[0]["created_at"]) in {row["id"] for row in new}
    paths = sorted(json.loads(row["data"])["relativePath"] for row in new)
    assert paths == ["d/D1.md", "d/D2.md", "d/F.md", "e/D2.md", "e/D3.md"]
    assert {row["priority"] for row in new} == {7}


def test_a_rescued_base_is_searched(stranded):
    rescued(stranded)
    hits = run("search", index_of(stranded).parent.parent, "text D1", "--json", "--mode", "bm25").document["hits"]
    assert {hit["text"] for hit in hits} == {f"text {number} of D1" for number in range(3)}


def test_a_second_run_has_nothing_to_do(stranded):
    rescued(stranded)
    with unchanged(stranded):
        document = rescued(stranded)
    assert document["actions"] == []


def test_a_dry_run_says_the_same_and_touches_nothing(stranded):
    with untouched(stranded):
        planned = rescued(stranded, "--dry-run")
    done = rescued(stranded)
    assert planned["actions"] == done["actions"]
    assert planned["left"] == done["left"]
    assert planned["undo"] is None


@pytest.mark.thorough
def test_undo_gives_back_every_row_and_file(stranded):
    before = contents(stranded)
    rescued(stranded)
    assert contents(stranded) != before
    assert run("undo", stranded, "--json").status == 0
    assert contents(stranded) == before
    rescued(stranded)
    assert found(stranded) == set()


@pytest.mark.thorough
def test_only_the_base_that_is_named_comes_back(tmp_path):
    made = profile(tmp_path, some_source(), lost=("kb", "other"))
    rescued(made, "--base", base_of("other"))
    assert {name for name, _ in found(made)} == {"base.failed", "item.tombstone"}
    assert {base for _, base in found(made)} == {base_of("kb")}


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["gone", "no bytes", "no tables", "no rows"])
def test_a_completed_base_without_an_index_gets_one(whole, damage):
    before, path = shape(whole), settled(index_of(whole))
    if damage == "gone":
        shutil.rmtree(path.parent)
    elif damage == "no rows":
        sql(
            path,
            *(f"DELETE FROM {table}" for table in ("search_text", "search_unit", "material", "content", "embedding")),
        )
    else:
        path.write_bytes(b"")
        if damage == "no tables":
            sql(path, "PRAGMA user_version = 1")
    document = rescued(whole)
    assert shape(whole) == before
    assert found(whole) == set()
    assert actions(document) == ["write-index"]
    assert run("undo", whole).status == 0


def test_a_snapshot_and_uploads_that_are_gone_are_written_with_the_index(whole):
    before = shape(whole)
    shutil.rmtree(index_of(whole).parent.parent)
    document = rescued(whole)
    assert shape(whole) == before
    assert sorted(actions(document)) == sorted(
        ["write-index", "restore-upload", "restore-upload", "write-snapshot", "write-snapshot"]
    )


FOLDER_D = renamed(identity.item_id("kb", "d", 1741944474000))
_LISTED = f"(SELECT id FROM db.knowledge_item WHERE group_id = '{FOLDER_D}')"


def as_an_early_release(made: Path) -> None:
    """Take a folder back to what releases did that expanded none: a tombstone beside rows that are there."""
    sql(
        settled(index_of(made)),
        f"ATTACH '{settled(made / DATABASE)}' AS db",
        f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id IN {_LISTED})",
        f"DELETE FROM search_unit WHERE material_id IN {_LISTED}",
        f"DELETE FROM material WHERE material_id IN {_LISTED}",
        "DELETE FROM content WHERE content_hash NOT IN (SELECT current_content_hash FROM material)",
        "DELETE FROM embedding WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM search_text)",
    )
    sql(
        made / DATABASE,
        f"DELETE FROM knowledge_item WHERE group_id = '{FOLDER_D}'",
        f"UPDATE knowledge_item SET status = 'failed', error = 'directory_not_migrated' WHERE id = '{FOLDER_D}'",
    )


@pytest.mark.thorough
def test_a_folder_comes_back_into_an_index_that_is_in_use(whole):
    before = shape(whole)
    as_an_early_release(whole)
    path = index_of(whole)
    # What the user has added since.
    sql(
        path,
        "INSERT INTO content VALUES ('h', 'mine', 1)",
        "INSERT INTO material VALUES ('mine', 'mine.md', 'h', 1, 1)",
        f"INSERT INTO embedding VALUES ('v', x'{vector_of('mine').hex()}', 1)",
    )
    mine = [tables(path)[name] for name in ("material", "search_text", "embedding")]
    assert found(whole) >= {("item.tombstone", base_of("kb"))}
    document = rescued(whole)
    assert shape(whole) == before
    assert actions(document) == ["write-index", "complete-folder", "insert-items"]
    for name, rows in zip(("material", "embedding"), (mine[0], mine[2]), strict=True):
        assert set(rows) < set(tables(path)[name])
    assert not {name for name, _ in found(whole)} & {"item.tombstone", "fts.desync", "body.rowid", "embedding.missing"}
    assert run("undo", whole).status == 0
    assert [tables(path)[name] for name in ("material", "search_text", "embedding")] == mine


@pytest.mark.thorough
def test_a_completed_item_whose_text_is_gone_gets_it_again(whole):
    before = shape(whole)
    lost = renamed(identity.item_id("kb", "g", 1741944474000))
    sql(
        index_of(whole),
        f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = '{lost}')",
        f"DELETE FROM search_unit WHERE material_id = '{lost}'",
        f"DELETE FROM material WHERE material_id = '{lost}'",
    )
    assert ("item.no-material", base_of("kb")) in found(whole)
    rescued(whole)
    assert shape(whole) == before
    assert found(whole) == set()


@pytest.mark.thorough
@pytest.mark.parametrize("remains", ["units and bodies", "bodies"])
def test_what_is_left_of_a_material_that_is_gone_is_no_obstacle(whole: Path, remains: str) -> None:
    path, lost = index_of(whole), renamed(identity.item_id("kb", "g", 1741944474000))
    before, vectors = shape(whole), tables(path)["embedding"]
    if remains == "bodies":
        sql(path, f"DELETE FROM search_unit WHERE material_id = '{lost}'")
    sql(path, f"DELETE FROM material WHERE material_id = '{lost}'")
    damaged = tables(path)
    document = rescued(whole)
    assert actions(document) == ["write-index"]
    assert shape(whole) == before
    assert tables(path)["embedding"] == vectors
    assert found(whole) == set()
    assert run("undo", whole, "--yes").status == 0
    assert tables(path) == damaged


def test_bodies_of_another_text_stay(whole: Path) -> None:
    """What v1 does not have is not deleted for what it has: the rescue is refused, and nothing is written."""
    path, lost = index_of(whole), renamed(identity.item_id("kb", "g", 1741944474000))
    hashed = identity.text_hash("mine")
    unit = f"(SELECT min(unit_id) FROM search_unit WHERE material_id = '{lost}')"
    sql(
        path,
        f"UPDATE search_text SET text = 'mine', embedding_text_hash = '{hashed}' WHERE target_id = {unit}",
        f"DELETE FROM material WHERE material_id = '{lost}'",
    )
    before = tables(path)
    assert rescue(whole).status == REFUSED
    assert tables(path) == before


@pytest.mark.thorough
def test_a_file_that_equals_another_is_given_its_text_each_time(tmp_path):
    place = tmp_path / "notes"
    place.mkdir()
    loaders = []
    for name in ("one.md", "two.md"):
        (place / name).write_text("the same", encoding="utf-8")
        os.utime(place / name, (1, 1))
        loaders.append(f"LocalPathLoader_{hashlib.md5(str(place / name).encode()).hexdigest()}")
    rows = [Row(loaders[0], "the same", source=str(place / "one.md"))]
    source = Source([base("kb", folder("d", *loaders, path=str(place)))], {"kb": rows})
    whole = profile(tmp_path / "whole", source)
    made = profile(tmp_path / "stranded", source, lost=("kb",))
    rescued(made)
    assert shape(made) == shape(whole)
    with opened(index_of(made)) as db:
        assert db.execute("SELECT count(*) FROM material").get == 2
    index_of(made).unlink()
    assert actions(rescued(made)) == ["write-index"]
    assert shape(made) == shape(whole)
    assert found(made) == set()


# --- what somebody took out or changed -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_was_deleted_since_does_not_come_back(whole):
    page_id = renamed(identity.item_id("kb", "p", 1741944474000))
    sql(
        whole / DATABASE,
        f"DELETE FROM knowledge_item WHERE id = '{page_id}'",
        f"DELETE FROM knowledge_item WHERE group_id = '{FOLDER_D}' AND data LIKE '%D1%'",
    )
    index_of(whole).unlink()
    rescued(whole)
    with opened(index_of(whole)) as db:
        texts = {text for (text,) in db.execute("SELECT text FROM search_text")}
    assert not any(text.endswith((" P", " D1")) for text in texts)
    assert any(text.endswith(" D2") for text in texts)
    assert found(whole) == {("raw.orphan", base_of("kb"))} or found(whole) == set()


def test_a_base_of_another_name_is_told_by_what_is_in_it(stranded, whole):
    for made in (stranded, whole):
        sql(
            made / DATABASE,
            f"UPDATE knowledge_base SET name = 'Mine', chunk_size = 99, chunk_overlap = 9 WHERE id = '{base_of('kb')}'",
        )
    rescued(stranded)
    assert shape(stranded) == shape(whole)


def test_bases_of_one_name_are_told_by_what_is_in_them(tmp_path):
    bases = [base(one, note(f"n{one}", one, text=one), name="Same") for one in "abc"]
    made = profile(tmp_path, Source(bases, {one: rows_of(one) for one in "abc"}), lost=("a", "c"))
    rescued(made)
    for one in "abc":
        with opened(index_of(made, one)) as db:
            assert {text[-1] for (text,) in db.execute("SELECT text FROM search_text")} == {one}


def test_a_base_that_may_be_several_stays(tmp_path):
    bases = [base(one, name="Same") for one in "abc"]
    made = profile(tmp_path, Source(bases, {one: rows_of(one) for one in "abc"}), lost=("a", "b", "c"))
    sql(made / DATABASE, f"DELETE FROM knowledge_base WHERE id = '{base_of('b')}'")
    with unchanged(made):
        document = rescued(made)
    assert left(document) == [("base.failed", "several v1 bases match this one")] * 2


def test_a_base_that_was_renamed_and_lost_an_item_is_told_by_its_time(tmp_path):
    bases = [
        base("kb", note("n1", "N1", text="One"), note("n2", "N2", text="Two")),
        base("other", note("o", "O"), created_at=1741944400000),
    ]
    made = profile(tmp_path, Source(bases, {"kb": rows_of("N1", "N2"), "other": rows_of("O")}), lost=("kb", "other"))
    gone = renamed(identity.item_id("kb", "n2", 1741944474000))
    sql(made / DATABASE, "UPDATE knowledge_base SET name = 'Mine'", f"DELETE FROM knowledge_item WHERE id = '{gone}'")
    assert left(rescued(made)) == []
    with opened(index_of(made)) as db:
        assert db.execute("SELECT group_concat(DISTINCT substr(text, -2)) FROM search_text").get == "N1"


def test_an_item_that_may_be_several_stays(tmp_path):
    items = [note("n1", "N1", text="Same"), note("n2", "N2", text="Same"), note("n3", "N3", text="Other")]
    made = profile(tmp_path, Source([base("kb", *items)], {"kb": rows_of("N1", "N2", "N3")}), lost=("kb",))
    sql(
        made / DATABASE,
        f"DELETE FROM knowledge_item WHERE id = '{renamed(identity.item_id('kb', 'n2', 1741944474000))}'",
    )
    document = rescued(made)
    assert ("item.no-material", "several v1 items match this one") in left(document)
    with opened(index_of(made)) as db:
        assert db.execute("SELECT group_concat(DISTINCT substr(text, -2)) FROM search_text").get == "N3"


# --- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_model(tmp_path: Path) -> Path:
    """Return a profile with a base whose model v1 had lost, beside another base of the same provider."""
    gone = {**MODEL, "id": "gone-1"}
    bases = [base("kb", note("n", "N"), model=gone), base("other", note("o", "O"))]
    made = profile(
        tmp_path,
        Source(
            bases,
            {"kb": rows_of("N"), "other": rows_of("O")},
            llm={"providers": [{**LLM["providers"][0], "id": "elsewhere"}, LLM["providers"][0]]},
        ),
        lost=("kb",),
    )
    sql(
        made / DATABASE,
        "UPDATE knowledge_base SET error = 'missing_embedding_model', embedding_model_id = NULL,"
        f" dimensions = NULL WHERE id = '{base_of('kb')}'",
        "DELETE FROM user_model WHERE id = 'acme::gone-1'",
    )
    return made


def test_a_base_without_its_model_stays_until_somebody_says_which_it_is(without_model):
    with unchanged(without_model):
        document = rescued(without_model)
    ((finding, reason),) = left(document)
    assert finding == "base.failed"
    assert "--recreate-model acme::gone-1" in reason
    command = command_words(document["left"][0]["repair"])
    assert command == ["regraft", "rescue", str(without_model), "--recreate-model", "acme::gone-1"]


@pytest.mark.thorough
def test_a_model_is_added_again_by_the_users_word(without_model):
    before = tables(without_model / DATABASE)["user_provider"]
    document = rescued(without_model, "--recreate-model", "acme::gone-1")
    assert "add-model" in actions(document)
    assert found(without_model) == set()
    assert tables(without_model / DATABASE)["user_provider"] == before
    with opened(settled(without_model / DATABASE)) as db:
        models = dicts(db, "SELECT * FROM user_model ORDER BY order_key")
        assert [row["id"] for row in models] == ["acme::embed-3", "acme::gone-1"]
        assert models[1]["is_enabled"] == 1
    assert run("undo", without_model).status == 0
    assert [row for row in tables(without_model / DATABASE)["user_model"] if "gone" in row] == []


@pytest.mark.thorough
def test_a_base_is_mapped_to_a_model_that_is_there(without_model):
    document = rescued(without_model, "--map-model", "acme::gone-1=acme::embed-3")
    assert "add-model" not in actions(document)
    assert found(without_model) == set()
    with opened(settled(without_model / DATABASE)) as db:
        assert dicts(db, "SELECT DISTINCT embedding_model_id AS m FROM knowledge_base") == [{"m": "acme::embed-3"}]


def test_a_provider_is_never_made(without_model):
    sql(without_model / DATABASE, "DELETE FROM user_provider WHERE provider_id = 'acme'")
    for word in ((), ("--recreate-model", "acme::gone-1")):
        with unchanged(without_model):
            document = rescued(without_model, *word)
        assert "add the provider in the application first" in left(document)[0][1]


def test_a_failed_base_whose_texts_came_without_vectors_is_not_called_completed(without_model):
    path = index_of(without_model)
    path.parent.mkdir(parents=True)
    with opened(settled(without_model / DATABASE)) as db:
        item = db.execute("SELECT id FROM knowledge_item WHERE base_id = ?", (base_of("kb"),)).get
    material = index.Material(item, lambda _: "note.md", iter([("text 0 of N", None)]))
    index.build_index(path, base_of("kb"), NOW_MS, [material], lambda *_: None)
    with unchanged(without_model):
        document = rescued(without_model, "--recreate-model", "acme::gone-1")
    ((finding, reason),) = left(document)
    assert finding == "base.failed"
    assert "its index has the texts without vectors" in reason


def test_a_word_that_no_base_needs_is_said(stranded):
    document = rescued(stranded, "--map-model", "acme::typo=acme::embed-3")
    assert ("base.model", "no base uses the model acme::typo or has that id") in left(document)


@pytest.mark.thorough
def test_vectors_of_another_model_are_not_mixed_in(whole):
    sql(
        whole / DATABASE,
        "INSERT INTO user_model (id, provider_id, model_id, name, capabilities, supports_streaming, order_key,"
        " created_at, updated_at) VALUES ('acme::new', 'acme', 'new', 'new', '[]', 1, 'a1', 0, 0)",
        f"UPDATE knowledge_base SET embedding_model_id = 'acme::new' WHERE id = '{base_of('kb')}'",
    )
    index_of(whole).unlink()
    document = rescued(whole)
    assert "--map-model acme::embed-3=acme::new" in left(document)[0][1]
    assert rescued(whole, "--map-model", "acme::embed-3=acme::new")["actions"]
    assert found(whole) == set()


# --- v1's state and files --------------------------------------------------------------------------------------------


def test_vector_files_that_are_gone_or_damaged_leave_their_base(stranded):
    path = stranded / "Data" / "KnowledgeBase" / "kb"
    path.write_bytes(path.read_bytes()[:5000])
    with unchanged(stranded):
        document = rescued(stranded)
    assert "its vector file kb is truncated: " in left(document)[0][1]
    path.unlink()
    with unchanged(stranded):
        done = rescue(stranded)
    assert "its vector file kb does not exist" in left(done.document)[0][1]
    assert done.status == 1


def test_damage_that_only_whole_texts_show_is_found_before_anything_is_written(tmp_path):
    items = [file("f2", "L_item-f2"), note("n", "L_rota")]
    made = profile(tmp_path, Source([base("beta", *items)], {"beta": rows_of("L_item-f2")}), lost=("beta",))
    late_damage(made / "Data" / "KnowledgeBase" / "beta")
    with unchanged(made):
        document = rescued(made)
    assert "cannot be read" in left(document)[0][1]


def test_state_and_files_come_from_a_backup(stranded, whole, tmp_path):
    backup = pack(some_source().write(tmp_path / "v1"), tmp_path / "backup.zip")
    (stranded / "redux.json").unlink()
    (stranded / "Data" / "KnowledgeBase" / "kb").unlink()
    shutil.rmtree(stranded / "Data" / "Files")
    rescued(stranded, "--v1", backup)
    assert shape(stranded) == shape(whole)


def test_files_that_a_backup_lacks_are_those_of_the_profile(stranded, whole, tmp_path):
    source = replace(some_source(), stores={}, uploads={}).write(tmp_path / "v1")
    (stranded / "redux.json").unlink()
    rescued(stranded, "--v1", source)
    assert shape(stranded) == shape(whole)


def test_state_comes_from_chromiums_storage(stranded, whole, tmp_path):
    live = chromium_profile(some_source().write(tmp_path / "v1"))
    (stranded / "redux.json").unlink()
    for name in ("Local Storage", "IndexedDB"):
        shutil.copytree(live / name, stranded / name)
    rescued(stranded)
    assert shape(stranded) == shape(whole)


def test_without_a_state_of_v1_it_is_refused(stranded):
    (stranded / "redux.json").unlink()
    with unchanged(stranded):
        assert "--v1 SOURCE" in said(rescue(stranded), "SourceNotMigratable", REFUSED)


def test_a_profile_that_never_was_v1_is_left_alone(whole):
    (whole / "redux.json").unlink()
    with unchanged(whole):
        assert rescued(whole)["actions"] == []


# --- refusals --------------------------------------------------------------------------------------------------------


def test_only_a_profile_is_rescued(tmp_path):
    library = tmp_path / "library"
    run("migrate", some_source().write(tmp_path / "v1"), "--to", library, "-q")
    with unchanged(library):
        assert "regraft rescue does not take" in said(rescue(library), "NotChanged", REFUSED)


def test_a_base_that_is_not_there_is_refused(stranded):
    with unchanged(stranded):
        said(rescue(stranded, "--base", "nobody"), "BaseUnknown", REFUSED)


def test_under_a_running_application_nothing_is_changed(stranded):
    start_application(stranded)
    with untouched(stranded):
        said(rescue(stranded), "ApplicationOpen", REFUSED)
        planned = rescue(stranded, "--dry-run")
    assert (planned.status, planned.document["run"]["dry_run"]) == (0, True)
    assert planned.document["actions"] != []


def test_a_database_in_use_is_refused_before_anything_is_written(stranded, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_MS", 10)
    before = dict(snapshot(stranded / "Data"))
    with closing(apsw.Connection(str(stranded / DATABASE))) as db:
        db.execute("BEGIN IMMEDIATE")
        said(rescue(stranded), "StoreBusy", REFUSED)
    assert snapshot(stranded / "Data") == before
    assert not (stranded / ".regraft").exists()


def test_a_profile_that_cannot_be_written_is_refused(stranded, monkeypatch):
    real = os.mkdir

    def refuse(path, *arguments, **named):
        if Path(path).name == ".regraft":
            raise PermissionError(13, "Permission denied")
        real(path, *arguments, **named)

    monkeypatch.setattr(os, "mkdir", refuse)
    with unchanged(stranded):
        said(rescue(stranded), "StoreNotWritable", REFUSED)


def with_rows(made: Path, change: str) -> None:
    """Make a table of items anew with another definition."""
    with closing(apsw.Connection(str(made / DATABASE))) as db:
        ddl = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'knowledge_item'").get
        db.execute("PRAGMA writable_schema = ON")
        old, new = change.split(" → ")
        assert old in ddl
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'knowledge_item'", (ddl.replace(old, new),))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "priority INTEGER NOT NULL DEFAULT 7 → priority INTEGER NOT NULL",
            r"a table knowledge_item like that of .+, but which also requires priority,",
        ),
        ("error TEXT → failure TEXT", "a table knowledge_item without error"),
        (
            "'failed', 'deleting' → 'failed', 'deleting', 'done') AND (data NOT LIKE '%/docs/%'",
            "additional constraints",
        ),
    ],
    ids=["a column", "no column", "a rule"],
)
def test_tables_of_an_unknown_shape_are_refused_by_name(stranded, change, reason):
    if change.startswith("error"):
        sql(stranded / DATABASE, "ALTER TABLE knowledge_item RENAME COLUMN error TO failure")
    else:
        with_rows(stranded, change)
    with unchanged(stranded):
        assert re.search(reason, said(rescue(stranded), "ProfileUnknown", REFUSED))


@pytest.mark.parametrize("version", [1, 3])
def test_indexes_of_another_version_are_refused_by_name(stranded, version):
    sql(settled(index_of(stranded, "other")), f"UPDATE meta SET schema_version = {version}")
    settled(index_of(stranded, "other"))
    with unchanged(stranded):
        assert f"an index of version {version}" in said(rescue(stranded), "ProfileUnknown", REFUSED)


def test_a_damaged_index_stays_as_it_is(whole):
    path = settled(index_of(whole))
    path.write_bytes(path.read_bytes()[:9000] + bytes(90_000))
    as_tombstone = (
        f"UPDATE knowledge_item SET status = 'failed', error = 'directory_not_migrated' WHERE id = '{FOLDER_D}'"
    )
    sql(whole / DATABASE, as_tombstone)
    with unchanged(whole):
        document = rescued(whole)
    assert [finding for finding, _ in left(document)] == ["file.unreadable"]


@pytest.mark.thorough
@pytest.mark.parametrize(("path", "texts"), [("../../x", 0), ("report.pdf", 1)])
def test_a_path_that_an_index_cannot_have_leaves_its_item(whole, path, texts):
    sql(
        whole / DATABASE,
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{path}') WHERE data LIKE '%/docs/D1%'",
    )
    index_of(whole).unlink()
    document = rescued(whole)
    assert [why for _, why in left(document) if why.startswith(f"its path {path} cannot be used")]
    with opened(index_of(whole)) as db:
        assert db.execute("SELECT count(*) FROM material WHERE relative_path = ?", (path,)).get == texts


ODD = {
    "an id of bytes": "UPDATE knowledge_item SET id = CAST(id AS BLOB) WHERE type = 'note'",
    "no id": "UPDATE knowledge_item SET id = NULL WHERE type = 'note'",
    "not JSON": "UPDATE knowledge_item SET data = '{' WHERE type = 'file'",
    "a path that climbs": "UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '../../x')"
    " WHERE type = 'file'",
    "a name of bytes": "UPDATE knowledge_base SET name = x'ff'",
    "a time in words": "UPDATE knowledge_item SET group_id = 7 WHERE type = 'url'",
    "text that is not UTF-8": "UPDATE knowledge_item SET data = CAST(x'ff7b' AS TEXT) WHERE type = 'url'",
}


@pytest.mark.thorough
@pytest.mark.parametrize("odd", ODD)
def test_damage_in_the_profile_ends_in_words(stranded, odd):
    with closing(apsw.Connection(str(stranded / DATABASE))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        ddl = db.execute("SELECT sql FROM sqlite_schema WHERE name = 'knowledge_item'").get
        db.execute("PRAGMA writable_schema = ON")
        loose = ddl.replace("id TEXT PRIMARY KEY NOT NULL", "id TEXT PRIMARY KEY")
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'knowledge_item'", (loose,))
    sql(stranded / DATABASE, "PRAGMA ignore_check_constraints = ON", ODD[odd])
    done = rescue(stranded)
    assert done.status in (0, 1, 2), done
    if done.status == 2:
        assert done.document["error"]["code"] == "SourceUnreadable"
    assert not (stranded / "x").exists() and not (stranded.parent / "x").exists()


# --- kills -----------------------------------------------------------------------------------------------------------


def small() -> Source:
    items = [file("f", "F"), note("n", "N", text="Remember"), folder("d", "D1", "D2")]
    return Source([base("kb", *items)], {"kb": rows_of("F", "N", "D1", "D2", count=1)}, uploads={"up-f.pdf": b"pdf"})


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_old_or_the_new_and_the_next_run_finishes(tmp_path, monkeypatch):
    whole = shape(profile(tmp_path / "whole", small()))
    made = profile(tmp_path / "stranded", small(), lost=("kb",), wal=False)
    first, copy = tables(made / DATABASE), tmp_path / "copy"
    at, ended = 0, KILLED
    while ended == KILLED:
        at += 1
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(made, copy)

        def work(at: int = at) -> None:
            wire = Tripwire(monkeypatch, die, at)
            wire.watch(ChangeLog, "intend", "set_state").watch(Ledger, "begin_run", "end_run")
            wire.watch(os, "mkdir", "replace", "link", "unlink")
            rescue(copy)

        ended = forked(work)
        rows = tables(copy / DATABASE)
        assert rows == first or shape(copy) == whole, at
        if rows != first:
            assert found(copy) == set()
        rescued(copy)
        assert shape(copy) == whole, at
    assert found(copy) == set()
    assert at > 20


# --- matching --------------------------------------------------------------------------------------------------------

_ITEMS = st.lists(
    st.tuples(st.sampled_from(["note", "directory"]), st.sampled_from("ab"), st.sampled_from([1, 2, None])), max_size=8
)


@given(_ITEMS, st.lists(st.booleans(), min_size=8, max_size=8))
def test_nobody_is_taken_for_another(kinds, kept):
    drafts = [
        ItemDraft(
            legacy_id=str(at),
            id=f"draft {at}",
            type=kind,
            data={"source": source, "content": source},
            status="completed",
            error=None,
            created_at=time,
            updated_at=time,
            loader_ids=(),
        )
        for at, (kind, source, time) in enumerate(kinds)
    ]
    rows = [
        {
            "id": f"row {draft.legacy_id}",
            "type": draft.type,
            "data": json.dumps(draft.data),
            "status": "completed",
            "group_id": None,
            "created_at": 99 if draft.created_at is None else draft.created_at,
        }
        for draft, stays in zip(drafts, kept, strict=False)
        if stays
    ]
    matched = match_items(rows, drafts, {})
    assert len({row["id"] for row, _ in matched.pairs}) == len({id(draft) for _, draft in matched.pairs})
    for row, draft in matched.pairs:
        assert (row["type"], json.loads(row["data"])) == (draft.type, draft.data)
        assert draft.created_at in (None, row["created_at"])
    if all(kept[: len(kinds)]) and None not in [time for *_, time in kinds]:
        assert [f"draft {row['id'][4:]}" for row, _ in matched.pairs] == [draft.id for draft in drafts]
    assert not {row["id"] for row in matched.unsure} & {row["id"] for row, _ in matched.pairs}
