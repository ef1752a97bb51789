"""``regraft repair --salvage``: a damaged index is written anew from what is left in it, and offered to be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import codex_mem_store
import index_damage
import pytest
from faults import fails, line, untouched
from harness import command_words, run, snapshot
from index_damage import PAGE, IndexFile, rows_of
from planted_v2 import KB, OTHER, index, library

import regraft

COUNT = r"(\d+) of about (\d+) texts and vectors can be salvaged with --salvage"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library(tmp_path_factory.mktemp("made"))


@pytest.fixture
def target(made: Path, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "library"
    shutil.copytree(made, place)
    yield place


def lose(target: Path, name: str, base: str = KB) -> IndexFile:
    """Zero the first leaf page of a table or index, and return the file as it was."""
    path = index(target, base)
    file = IndexFile.made(path)
    overwrite(path, (file.of(name)[0] - 1) * PAGE, bytes(PAGE))
    return file


def overwrite(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def about(target: Path, name: str, *options: object) -> list[dict]:
    found = run("check", target, "--json", *options).document["findings"]
    return [one for one in found if one["name"] == name]


@pytest.mark.thorough
def test_a_damaged_index_comes_out_whole(target):
    file = lose(target, "search_unit")
    damaged = index(target).read_bytes()
    before = snapshot(target / "KnowledgeBase" / OTHER)
    with untouched(target):
        planned = run("repair", target, "--salvage", "--dry-run", "--json")
    done = run("repair", target, "--salvage", "--json")
    for key in ("actions", "left", "salvaged"):
        assert done.document[key] == planned.document[key]
    assert (planned.status, done.status) == (0, 0)
    (action,) = done.document["actions"]
    assert (action["action"], action["base"], action["finding"]) == ("salvage-index", KB, "file.corrupt")
    assert rows_of(index(target)) == file.rows
    assert run("check", target, "--deep").status == 0
    assert snapshot(target / "KnowledgeBase" / OTHER) == before
    with untouched(index(target)):
        again = run("repair", target, "--salvage")
    assert (again.status, again.stdout.strip()) == (0, "Nothing to do: nothing was written.")
    assert run("undo", target).status == 0
    assert index(target).read_bytes() == damaged


@pytest.mark.thorough
def test_what_is_left_is_counted_for_each_table(target):
    file = lose(target, "embedding")
    outcome = run("repair", target, "--salvage", "--dry-run", "--json")
    (told,) = outcome.document["salvaged"]
    lost = len(file.rows["embedding"])
    assert (told["base"], told["path"]) == (KB, f"KnowledgeBase/{KB}/.cherry/index.sqlite")
    assert told["rows"]["embeddings"] == {"carried": 0, "derived": 0, "refused": {"lost": lost}}
    assert told["rows"]["bodies"] == {"carried": len(file.rows["search_text"]), "derived": 0, "refused": {}}
    assert told["pages"]["pages"] == file.pages
    assert told["pages"]["page_bytes"] == PAGE
    assert told["items"]["whole"] == len(file.rows["material"])
    assert (told["items"]["partial"], told["items"]["lost"]) == ([], [])
    (left,) = outcome.document["left"]
    assert (left["finding"], left["count"], left["base"]) == ("embedding.missing", lost, KB)
    assert left["repair"] == f"regraft backfill {target} --base {KB}"
    assert outcome.status == 1
    text = run("repair", target, "--salvage")
    assert f"  {lost} rows not recovered: only their keys are left" in text.stdout
    assert f"Next: regraft backfill {target} --base {KB}" in text.stdout
    (missing,) = about(target, "embedding.missing", "--deep")
    assert missing["count"] == lost


@pytest.mark.thorough
def test_an_item_that_lost_its_text_is_named(target):
    file = lose(target, "embedding")
    path = index(target)
    material, row = next(iter(file.rows["material"].items()))
    units = {key for key, one in file.rows["search_unit"].items() if str(one[1], "utf-8") == material}
    bodies = [key for key, one in file.rows["search_text"].items() if str(one[2], "ascii") in units]
    for at, length in (*file.places["content"][str(row[2], "ascii")], *file.places["search_text"][bodies[0]]):
        overwrite(path, at, bytes(length))
    outcome = run("repair", target, "--salvage", "--json")
    (told,) = outcome.document["salvaged"]
    assert [one["id"] for one in told["items"]["lost"]] == [material]
    reasons = [one["reason"] for one in outcome.document["left"] if one["finding"] == "item.no-material"]
    assert len(reasons) == 1
    assert told["items"]["lost"][0]["name"] in reasons[0]
    assert reasons[0].startswith("1 item lost all text: ")
    assert "file.corrupt" not in {one["name"] for one in run("check", target, "--deep", "--json").document["findings"]}


@pytest.mark.thorough
def test_without_the_word_it_is_left_and_offered(target):
    lose(target, "search_text")
    offered = f"regraft repair {target} --salvage --base {KB}"
    with untouched(index(target)):
        outcome = run("repair", target, "--json")
    (left,) = outcome.document["left"]
    assert (left["finding"], left["repair"], outcome.status) == ("file.corrupt", offered, 1)
    assert outcome.document["actions"] == []
    assert "salvaged" not in outcome.document
    assert left["reason"].endswith("texts and vectors can be salvaged with --salvage")
    (finding,) = about(target, "file.corrupt")
    # The ledger names the source of the migration, which has all of it.
    assert finding["repair"].startswith(f"regraft repair {target} --from ")
    assert finding["message"].endswith(f"; if that copy no longer exists: {offered}")
    shutil.rmtree(target / ".regraft")
    (finding,) = about(target, "file.corrupt")
    assert finding["repair"] == offered
    assert f"regraft repair {target} --from SOURCE --base {KB}" in finding["message"]


def test_other_bases_are_left_alone(target):
    lose(target, "search_text")
    lose(target, "search_text", OTHER)
    before = snapshot(target / "KnowledgeBase" / OTHER)
    outcome = run("repair", target, "--salvage", "--base", KB, "--json")
    assert [one["base"] for one in outcome.document["actions"]] == [KB]
    assert snapshot(target / "KnowledgeBase" / OTHER) == before
    assert {one["base"] for one in about(target, "file.corrupt", "--deep")} == {OTHER}


@pytest.mark.parametrize("rest", [b"", bytes(8 * PAGE), b"\xa7" * 8 * PAGE])
def test_where_nothing_proves_itself_nothing_is_written(target, rest):
    index(target).write_bytes(b"SQLite format 3\0"[: len(rest)] + rest)
    with untouched(index(target)):
        outcome = run("repair", target, "--salvage", "--json")
    (left,) = outcome.document["left"]
    assert (left["finding"], left["base"], outcome.status) == ("file.unreadable", KB, 1)
    assert left["reason"].endswith(": nothing can be salvaged: is not a SQLite file in any part")
    assert outcome.document["actions"] == []
    shutil.rmtree(target / ".regraft", ignore_errors=True)
    (finding,) = about(target, "file.unreadable")
    assert finding["repair"] is None
    assert "nothing can be salvaged: is not a SQLite file in any part; if you have another copy" in finding["message"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["sqlite_autoindex_search_text_1", "search_text_fts_docsize", "search_unit_content_idx"]
)
def test_damage_that_only_a_deep_look_sees_is_mended(name, target):
    file = lose(target, name)
    assert run("repair", target, "--salvage").status == 0
    assert rows_of(index(target)) == file.rows
    assert run("check", target, "--deep").status == 0


@pytest.mark.thorough
@pytest.mark.parametrize("place", ["base", "file"])
def test_a_base_or_a_file_by_itself_is_found_by_its_place(target, place):
    file = IndexFile.made(index(target))
    overwrite(index(target), 0, bytes(100))
    named = index(target) if place == "file" else target / "KnowledgeBase" / KB
    (finding,) = about(named, "file.unreadable")
    assert finding["base"] == KB
    assert finding["message"].endswith(f"regraft repair {named} --salvage")
    damage = index(target).read_bytes()
    assert finding["repair"].startswith(f"regraft repair {named} --from ")
    assert run(*command_words(finding["repair"])[1:]).status == 0
    assert {name: set(rows) for name, rows in rows_of(index(target)).items()} == {
        name: set(rows) for name, rows in file.rows.items()
    }
    assert run("undo", named).status == 0
    assert index(target).read_bytes() == damage
    assert run("repair", named, "--salvage").status == 0
    assert rows_of(index(target)) == file.rows
    assert run("check", named, "--deep").status == 0


def test_a_file_without_a_catalog_is_salvaged_by_itself(target, tmp_path):
    file = IndexFile.made(index(target))
    alone = tmp_path / KB / ".cherry" / "index.sqlite"
    alone.parent.mkdir(parents=True)
    alone.write_bytes(bytes(100) + file.raw[100:])
    assert run("repair", alone, "--salvage").status == 0
    assert rows_of(alone) == file.rows


def test_a_log_beside_it_is_read_and_set_aside(target, tmp_path):
    """Rows that only the log has come along, and the log is not taken for that of the new file."""
    path = index(target)
    file = IndexFile.made(path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        db.execute("UPDATE material SET updated_at = updated_at + 5")
        rows = dict(db.execute("SELECT material_id, updated_at FROM material").fetchall())
        for name in ("index.sqlite", "index.sqlite-wal"):
            shutil.copy(path.with_name(name), tmp_path / name)
    shutil.copy(tmp_path / "index.sqlite", path)
    log = path.with_name("index.sqlite-wal")
    shutil.copy(tmp_path / "index.sqlite-wal", log)
    overwrite(path, (file.of("search_text")[0] - 1) * PAGE, bytes(PAGE))
    damaged, kept = path.read_bytes(), log.read_bytes()
    outcome = run("repair", target, "--salvage", "--json")
    assert [one["action"] for one in outcome.document["actions"]] == ["salvage-index"]
    assert outcome.status == 0
    assert not log.exists()
    assert {key: row[4] for key, row in rows_of(path)["material"].items()} == rows
    assert run("undo", target).status == 0
    assert (path.read_bytes(), log.read_bytes()) == (damaged, kept)


def test_a_file_that_is_written_to_meanwhile_is_left(target):
    lose(target, "search_text")

    def agree(_: object) -> bool:
        overwrite(index(target), 5 * PAGE, b"\1")
        return True

    with fails("PlanOutdated"):
        regraft.repair(target, salvage=True, confirm=agree)
    assert about(target, "file.corrupt", "--deep")


def test_programs_salvage_as_the_command_does(target):
    file = lose(target, "content")
    report = regraft.repair(target, salvage=True)
    assert [one.action for one in report.actions] == ["salvage-index"]
    assert [one.base for one in report.salvaged or ()] == [KB]
    assert rows_of(index(target)) == file.rows


def test_it_is_for_knowledge_bases_of_the_application(tmp_path):
    path = codex_mem_store.write(tmp_path)
    with untouched(path):
        message = line(run("repair", path, "--salvage"), 2)
    assert message.startswith("--salvage applies only to v2 data of Cherry Studio, and this is a database of codex-mem")


@pytest.mark.thorough
def test_every_kind_of_damage_is_mended_or_named(target, tmp_path):
    """What comes out of heavy damage is found in order by a deep audit, but for what was lost."""
    lost_for_good = {"embedding.missing", "item.no-material", "embedding.orphan", "material.no-units", "unit.gap"}
    for name in ("it is cut off at 25 %", "it is cut off at 75 %", "half of the leaf pages of content are noise"):
        place = tmp_path / "one"
        shutil.copytree(target, place)
        file = IndexFile.made(index(place))
        index(place).write_bytes(index_damage.damaged(file, name))
        done = run("repair", place, "--salvage", "--json")
        assert [one["action"] for one in done.document["actions"]] == ["salvage-index"], done.document
        found = run("check", place, "--deep", "--json").document["findings"]
        assert {one["name"] for one in found if one["base"] == KB} <= lost_for_good, name
        shutil.rmtree(place)
