"""``regraft repair --from``: what another copy of the data has comes back byte for byte; other vectors never do."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import profiles
import pytest
from extras import needs
from fault_server import FaultServer
from faults import said, untouched
from harness import GOLDEN, NOW, command_words, golden, run, run_as_given
from index_damage import IndexFile, damaged
from lacking import configured
from planted_v1 import whole
from planted_v2 import KB, OTHER, index, run_sql

import regraft
from regraft import identity

REFUSED = 2
TABLES = {
    "content": "content_hash, text",
    "material": "material_id, relative_path, current_content_hash",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash",
    "embedding": "embedding_text_hash, vector_blob",
}
SOME_VECTORS = "DELETE FROM embedding WHERE rowid % 3 = 0"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a v1 source, and the library that it makes."""
    place = tmp_path_factory.mktemp("built")
    assert run("migrate", whole(place / "v1"), "--to", place / "library", "--now", NOW, "-q").status == 0
    return place


@pytest.fixture
def place(built: Path, tmp_path: Path) -> Path:
    """Copy both; the library has no ledger."""
    shutil.copytree(built, tmp_path / "place")
    shutil.rmtree(tmp_path / "place" / "library" / ".regraft")
    return tmp_path / "place"


@pytest.fixture
def store(place: Path) -> Path:
    return place / "library"


def rows(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of an index without their numbers and times, read by plain SQLite from a copy of the bytes."""
    with closing(sqlite3.connect(":memory:")) as db:
        raw = bytearray(path.read_bytes())
        # What the header says of a log has no meaning in memory.
        raw[18:20] = b"\x01\x01"
        db.deserialize(bytes(raw))
        return {
            table: sorted(db.execute(f"SELECT {columns} FROM {table}").fetchall()) for table, columns in TABLES.items()
        }


def vectors(path: Path) -> dict[str, bytes]:
    return dict(rows(path)["embedding"])


def found_words(path: Path, words: str) -> int:
    """Return how many bodies the full-text index of a file finds."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        query = "SELECT count(*) FROM search_text_fts WHERE search_text_fts MATCH ?"
        return int(db.execute(query, (f'"{words}"',)).fetchone()[0])


def files(root: Path) -> dict[str, bytes]:
    """Return every file of a store but those of regraft itself."""
    every = (path for path in root.rglob("*") if path.is_file() and ".regraft" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in every}


@contextmanager
def unchanged(*stores: Path) -> Iterator[None]:
    """Assert that no file of these stores is another one afterwards, and that no run is recorded in one without any."""
    before = {store: (files(store), (store / ".regraft").exists()) for store in stores}
    yield
    for store, state in before.items():
        assert (files(store), (store / ".regraft").exists()) == state


def actions(outcome: Any) -> list[tuple[str, str, int]]:
    return [(one["action"], one["base"], one["count"]) for one in outcome.document["actions"]]


def repair(store: Path, source: Path, *more: object) -> Any:
    return run("repair", store, "--from", source, "--json", "--yes", *more)


# --- every kind of source --------------------------------------------------------------------------------------------


def of_v1(place: Path) -> Path:
    return place / "v1"


def of_zip(place: Path) -> Path:
    return Path(shutil.make_archive(str(place / "backup"), "zip", place / "v1"))


def of_library(place: Path) -> Path:
    return place / "other"


def of_pack(place: Path) -> Path:
    assert run("pack", place / "other", place / "pack.zip").status == 0
    return place / "pack.zip"


def of_parquet(place: Path) -> Path:
    assert run("export", place / "other", place / "units.parquet").status == 0
    return place / "units.parquet"


SOURCES = [of_v1, of_library, of_pack, pytest.param(of_parquet, marks=needs("parquet"))]
EVERY_SOURCE = pytest.mark.parametrize("source_of", SOURCES)


@pytest.mark.one_in(3)
@EVERY_SOURCE
def test_missing_vectors_come_back(place: Path, store: Path, source_of: Callable[[Path], Path]) -> None:
    shutil.copytree(store, place / "other")
    source, before = source_of(place), rows(index(store))
    run_sql(index(store), SOME_VECTORS)
    lacking = len(before["embedding"]) - len(vectors(index(store)))
    damaged_files = files(store)
    with untouched(source, store):
        dry = run("repair", store, "--from", source, "--json", "--dry-run")
    assert actions(dry) == [("take-vectors", KB, lacking)]
    with untouched(source):
        done = repair(store, source)
    assert (done.status, actions(done), done.document["left"]) == (0, actions(dry), [])
    assert rows(index(store)) == before
    assert run("check", store, "--deep", "--json").document["summary"]["by_severity"]["error"] == 0
    with unchanged(store):
        again = repair(store, source)
    assert (again.status, actions(again), again.document["undo"]) == (0, [], None)
    assert run("undo", store, "--yes").status == 0
    assert rows(index(store)) == {**before, "embedding": sorted(rows_of_bytes(damaged_files))}


def rows_of_bytes(stored: dict[str, bytes]) -> list[tuple[Any, ...]]:
    name = f"KnowledgeBase/{KB}/.cherry/index.sqlite"
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(stored[name])
        return db.execute("SELECT embedding_text_hash, vector_blob FROM embedding").fetchall()


@pytest.mark.thorough
@EVERY_SOURCE
def test_a_missing_index_is_built_in_place(place: Path, store: Path, source_of: Callable[[Path], Path]) -> None:
    shutil.copytree(store, place / "other")
    source, before = source_of(place), rows(index(store))
    index(store).unlink()
    lacking = files(store)
    with untouched(source, store):
        dry = run("repair", store, "--from", source, "--json", "--dry-run")
    done = repair(store, source)
    assert (done.status, done.document["left"]) == (0, [])
    counts = [("write-index", KB, len(before["material"])), ("take-vectors", KB, len(before["embedding"]))]
    assert actions(done) == actions(dry) == counts
    assert rows(index(store)) == before
    assert found_words(index(store), "text 1 of N") == 1
    assert {name: held for name, held in files(store).items() if name in lacking} == lacking
    assert run("check", store, "--deep", "--json").document["summary"]["by_severity"]["error"] == 0
    with unchanged(store):
        assert actions(repair(store, source)) == []
    assert run("undo", store, "--yes").status == 0
    assert files(store) == lacking


@pytest.mark.thorough
def test_a_v2_profile_gives_and_takes(place: Path, store: Path, tmp_path: Path) -> None:
    profile = profiles.profile(tmp_path / "profile")
    assert run("install", store, "--profile", profile, "--now", NOW, "--yes", "-q").status == 0
    own = profile / "Data" / "KnowledgeBase" / KB / ".cherry" / "index.sqlite"
    before = rows(own)
    run_sql(index(store), SOME_VECTORS)
    assert repair(store, profile).status == 0
    assert rows(index(store)) == before
    own.unlink()
    assert repair(profile, store).status == 0
    assert rows(own) == before


@pytest.mark.thorough
def test_a_zipped_v1_backup_gives(place: Path, store: Path) -> None:
    source, before = of_zip(place), rows(index(store))
    index(store).unlink()
    assert repair(store, source).status == 0
    assert rows(index(store)) == before


@golden
@pytest.mark.parametrize("damage", ["vectors", "index", "noise"])
def test_a_profile_that_the_application_upgraded_takes_from_v1_data(damage: str, tmp_path: Path) -> None:
    """The application gave its bases and items ids of their own: they are told by their files and texts."""
    profile = shutil.copytree(GOLDEN / "profile_208_upgraded", tmp_path / "profile")
    [own] = (profile / "Data" / "KnowledgeBase").glob("*/.cherry/index.sqlite")
    for left in (profile / "Data" / "KnowledgeBase").iterdir():
        if left.is_file():
            left.unlink()
    before = rows(own)
    if damage == "vectors":
        run_sql(own, "DELETE FROM embedding WHERE rowid % 2 = 0")
    elif damage == "index":
        own.unlink()
    else:
        noise(own)
    assert repair(profile, GOLDEN / "basic" / "v1").status == 0
    assert rows(own) == before


# --- damaged index files ---------------------------------------------------------------------------------------------


def zeroed(path: Path) -> None:
    path.write_bytes(damaged(IndexFile.made(path), "the header is zeros"))


def noise(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 40)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:9000])


def with_a_log(path: Path) -> None:
    noise(path)
    path.with_name("index.sqlite-wal").write_bytes(b"\x37\x7f\x06\x82" + bytes(4096))


def empty(path: Path) -> None:
    path.write_bytes(b"")


def without_units(path: Path) -> None:
    run_sql(path, "DROP TABLE search_unit")


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [zeroed, noise, cut, with_a_log, empty, without_units])
def test_a_damaged_index_is_built_again_and_undo_brings_it_back(
    damage: Callable[[Path], None], place: Path, store: Path
) -> None:
    before = rows(index(store))
    damage(index(store))
    broken = files(store)
    done = repair(store, place / "v1")
    assert (done.status, done.document["left"]) == (0, [])
    assert rows(index(store)) == before
    assert run("check", store, "--deep", "--json").document["summary"]["by_severity"]["error"] == 0
    assert run("undo", store, "--yes").status == 0
    assert files(store) == broken


def test_what_only_the_damaged_file_has_is_kept(place: Path, store: Path) -> None:
    """The source lacks an item: its text and its vectors come from what is left in the damaged file."""
    before = rows(index(store))
    state = json.loads((place / "v1" / "redux.json").read_text("utf-8"))
    bases = state["knowledge"]["bases"]
    bases[0]["items"] = [one for one in bases[0]["items"] if one["id"] != "n"]
    (place / "v1" / "redux.json").write_text(json.dumps(state), "utf-8")
    with closing(sqlite3.connect(place / "v1" / "KnowledgeBase" / "kb")) as db:
        db.execute("DELETE FROM vectors WHERE uniqueLoaderId = 'N'")
        db.commit()
    zeroed(index(store))
    assert repair(store, place / "v1").status == 0
    assert rows(index(store)) == before


def test_texts_of_a_damaged_file_that_no_item_lists_are_kept(place: Path, store: Path) -> None:
    """The catalog is damaged, too: its items can be listed again only while the index has their texts."""
    before = rows(index(store))
    listed = max(key for key, *_ in before["material"])
    run_sql(store / "catalog.sqlite", f"DELETE FROM knowledge_item WHERE id = '{listed}'")
    zeroed(index(store))
    broken = files(store)
    assert repair(store, place / "v1").status == 0
    assert rows(index(store)) == before
    assert run("undo", store, "--yes").status == 0
    assert files(store) == broken


def test_a_text_that_no_item_lists_keeps_its_path(place: Path, store: Path) -> None:
    """Another item has its path now: neither text replaces the other one."""
    paths = {row[0]: row[1] for row in rows(index(store))["material"]}
    kept, *_, moved = paths
    catalog = store / "catalog.sqlite"
    run_sql(
        catalog,
        f"DELETE FROM knowledge_item WHERE id = '{kept}'",
        # A file that nothing processed: one path is all that it has.
        f"UPDATE knowledge_item SET data = json_set(data, '$.relativePath', '{paths[kept]}') WHERE id = '{moved}'",
    )
    zeroed(index(store))
    with unchanged(store):
        done = repair(store, place / "v1")
    assert done.status == 1
    assert any("has the same path as another text" in one["reason"] for one in done.document["left"])


# --- texts -----------------------------------------------------------------------------------------------------------

_ONE = "(SELECT min(material_id) FROM material)"
_BODIES_OF_ONE = (
    f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = {_ONE})"
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("statements", "action"),
    [
        (("DELETE FROM content WHERE rowid = (SELECT min(rowid) FROM content)",), "take-contents"),
        (("UPDATE content SET text = text || '!' WHERE rowid = (SELECT min(rowid) FROM content)",), "take-contents"),
        (
            (
                _BODIES_OF_ONE,
                f"DELETE FROM search_unit WHERE material_id = {_ONE}",
            ),
            "cut-texts",
        ),
        (
            (
                _BODIES_OF_ONE,
                f"DELETE FROM search_unit WHERE material_id = {_ONE}",
                f"DELETE FROM material WHERE material_id = {_ONE}",
                "DELETE FROM content WHERE content_hash NOT IN (SELECT current_content_hash FROM material)",
                "DELETE FROM embedding WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM search_text)",
            ),
            "index-items",
        ),
    ],
    ids=["a text is gone", "a text is another one", "units are gone", "a material is gone"],
)
def test_missing_texts_come_back(place: Path, store: Path, statements: tuple[str, ...], action: str) -> None:
    before = rows(index(store))
    run_sql(index(store), *statements)
    broken = rows(index(store))
    assert broken != before
    done = repair(store, place / "v1")
    assert done.status == 0, done
    assert action in [one["action"] for one in done.document["actions"]]
    assert rows(index(store)) == before
    assert found_words(index(store), "text 1 of N") == 1
    assert run("undo", store, "--yes").status == 0
    assert rows(index(store)) == broken


def test_a_text_without_any_vector_is_not_copied(place: Path, store: Path) -> None:
    """Otherwise its base would get texts without a vector, which is worse than the note that a file has no text."""
    copy = Path(shutil.copytree(store, place / "copy"))
    held = vectors(index(store))
    lost = ", ".join(f"'{key}'" for (key, body) in bodies(store) if body.endswith("of N"))
    run_sql(index(copy), f"DELETE FROM embedding WHERE embedding_text_hash IN ({lost})")
    note = f"(SELECT target_id FROM search_text WHERE embedding_text_hash IN ({lost}))"
    material = f"(SELECT material_id FROM search_unit WHERE unit_id IN {note})"
    run_sql(
        index(store),
        f"DELETE FROM material WHERE material_id IN {material}",
        f"DELETE FROM search_unit WHERE unit_id IN {note}",
        f"DELETE FROM search_text WHERE embedding_text_hash IN ({lost})",
        f"DELETE FROM embedding WHERE embedding_text_hash IN ({lost})",
    )
    with unchanged(store):
        done = repair(store, copy)
    [left] = done.document["left"]
    assert (done.status, left["finding"]) == (1, "item.no-material")
    assert left["reason"].endswith(f"{copy} has its text, but no vector of it")
    # With a part of the vectors, the copy has something to give.
    some = next(key for (key, body) in bodies(copy) if body.endswith("of N"))
    run_sql(index(copy), f"INSERT INTO embedding VALUES ('{some}', x'{held[some].hex()}', 1)")
    done = repair(store, copy)
    assert {one["finding"]: one["count"] for one in done.document["left"]} == {"embedding.missing": 2}


def bodies(store: Path) -> list[tuple[str, str]]:
    """Return hash and text of each body of the first base."""
    return [(row[5], row[4]) for row in rows(index(store))["search_text"]]


@pytest.mark.thorough
def test_vectors_that_no_search_can_use_are_replaced(place: Path, store: Path) -> None:
    before = rows(index(store))
    bad = {"1": struct.pack("<4f", *(4 * [float("nan")])), "2": bytes(16), "3": bytes(8)}
    for rowid, vector in bad.items():
        run_sql(index(store), f"UPDATE embedding SET vector_blob = x'{vector.hex()}' WHERE rowid = {rowid}")
    done = repair(store, place / "v1")
    assert actions(done) == [("take-vectors", KB, 3)]
    assert rows(index(store)) == before


def test_what_the_source_lacks_is_left_with_the_command_that_makes_it(place: Path, store: Path) -> None:
    with closing(sqlite3.connect(place / "v1" / "KnowledgeBase" / "kb")) as db:
        db.execute("DELETE FROM vectors WHERE uniqueLoaderId = 'N'")
        db.commit()
    run_sql(index(store), "DELETE FROM embedding WHERE rowid > 2")
    whole_count = len(rows(index(store))["search_text"]) - 2
    done = repair(store, place / "v1")
    assert actions(done) == [("take-vectors", KB, whole_count - 3)]
    [left] = done.document["left"]
    assert (done.status, left["finding"], left["count"]) == (1, "embedding.missing", 3)
    assert left["repair"] == f"regraft backfill {store} --base {KB}"


def test_a_text_without_a_copy_is_cut_from_its_raw_file(place: Path, store: Path) -> None:
    pytest.importorskip("semantic_text_splitter", reason="what cuts texts is not installed")
    with closing(sqlite3.connect(place / "v1" / "KnowledgeBase" / "kb")) as db:
        db.execute("DELETE FROM vectors WHERE uniqueLoaderId = 'P'")
        db.commit()
    paths = {row[0]: row[1] for row in rows(index(store))["material"]}
    index(store).unlink()
    done = repair(store, place / "v1")
    assert done.status == 1
    [left] = done.document["left"]
    assert (left["finding"], left["repair"]) == ("embedding.missing", f"regraft backfill {store} --base {KB}")
    assert {row[0]: row[1] for row in rows(index(store))["material"]} == paths
    assert found_words(index(store), "text 2 of P") == 1


# --- what is refused -------------------------------------------------------------------------------------------------


def with_another_model(source: Path) -> None:
    run_sql(
        source / "catalog.sqlite", f"UPDATE knowledge_base SET embedding_model_id = 'acme::other' WHERE id = '{KB}'"
    )


def with_other_dimensions(source: Path) -> None:
    run_sql(source / "catalog.sqlite", f"UPDATE knowledge_base SET dimensions = 8 WHERE id = '{KB}'")
    run_sql(index(source), "UPDATE embedding SET vector_blob = vector_blob || vector_blob")


def with_other_vectors(source: Path) -> None:
    other = struct.pack("<4f", 9, 8, 7, 6).hex()
    run_sql(index(source), f"UPDATE embedding SET vector_blob = x'{other}'")


REFUSALS = {
    with_another_model: "its model is acme::embed-3, but the copy has acme::other",
    with_other_dimensions: "its vectors have 4 dimensions, but those of the copy have 8",
    with_other_vectors: "the vectors of a text in both differ",
}


@pytest.mark.thorough
@pytest.mark.parametrize("change", REFUSALS)
def test_vectors_of_another_kind_are_refused_by_name(change: Callable[[Path], None], place: Path, store: Path) -> None:
    source = shutil.copytree(store, place / "other")
    change(source)
    run_sql(index(store), SOME_VECTORS)
    with unchanged(store, source):
        message = said(repair(store, source), "RepairSourceDiffers", REFUSED)
        assert REFUSALS[change] in message
        assert "it cannot be used to repair base" in message
        # Another base that lacks nothing is none of its business.
        assert repair(store, source, "--base", OTHER).status == 0


def test_without_a_vector_in_common_nothing_is_taken(place: Path, store: Path) -> None:
    source = shutil.copytree(store, place / "other")
    run_sql(index(source), "DELETE FROM embedding WHERE rowid % 2 = 0")
    run_sql(index(store), "DELETE FROM embedding WHERE rowid % 2 = 1")
    with unchanged(store):
        assert "the vectors cannot be compared" in said(repair(store, source), "RepairSourceDiffers", REFUSED)


def test_no_index_and_no_file_in_common_proves_nothing(place: Path, store: Path) -> None:
    """The index is missing, and every raw file was changed since: neither a vector nor a text can be compared."""
    index(store).unlink()
    for path in (store / "KnowledgeBase" / KB / "raw").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes() + b" changed")
    with unchanged(store):
        done = repair(store, place / "v1")
        message = done.stdout + done.stderr
    assert done.status in (1, REFUSED)
    assert "to confirm that it is the same base" in message or "has nothing of it" in message


def test_no_index_and_another_model(place: Path, store: Path) -> None:
    source = shutil.copytree(store, place / "other")
    with_another_model(source)
    index(store).unlink()
    with unchanged(store):
        assert "its model is" in said(repair(store, source), "RepairSourceDiffers", REFUSED)


def test_a_folder_that_is_gone_as_a_whole_comes_from_the_same_base(place: Path, store: Path) -> None:
    source, before = shutil.copytree(store, place / "other"), rows(index(store))
    shutil.rmtree(store / "KnowledgeBase" / KB)
    assert repair(store, source).status in (0, 1)
    assert rows(index(store)) == before


@pytest.mark.parametrize("more", [("--only", "body.hash"), ("--salvage",), ("--model", "acme::embed-3")])
def test_other_ways_to_repair_do_not_go_with_it(place: Path, store: Path, more: tuple[str, ...]) -> None:
    with unchanged(store):
        message = said(repair(store, place / "v1", *more), "WrongUsage", REFUSED)
    assert f"--from cannot be combined with {more[0]}" in message


def test_what_is_no_copy_is_refused(place: Path, store: Path, tmp_path: Path) -> None:
    run_sql(index(store), SOME_VECTORS)
    (tmp_path / "empty").mkdir()
    with unchanged(store):
        assert "no such file or folder" in said(repair(store, tmp_path / "none"), "SourceNotFound", REFUSED)
        assert said(repair(store, tmp_path / "empty"), "SourceUnrecognised", REFUSED)
        assert "the store being repaired" in said(repair(store, store), "WrongUsage", REFUSED)
        vectors_alone = place / "v1" / "KnowledgeBase" / "kb"
        assert "use a v1 backup or profile" in said(repair(store, vectors_alone), "SourceNotMigratable", REFUSED)
        alone = shutil.copyfile(index(store), tmp_path / "index.sqlite")
        assert "without a catalog" in said(repair(alone, place / "v1"), "NotChanged", REFUSED)


@pytest.mark.thorough
def test_a_damaged_copy_is_named_as_damaged(place: Path, store: Path) -> None:
    """The message tells a damaged copy, which --salvage may read, from a copy of other data."""
    source = shutil.copytree(store, place / "other")
    index(source).write_bytes(b"no database" * 500)
    index(store).unlink()
    vector_file = place / "v1" / "KnowledgeBase" / "kb"
    vector_file.write_bytes(vector_file.read_bytes()[:4096])
    for path in (source, place / "v1"):
        with unchanged(store):
            done = repair(store, path)
        assert done.status == 1
        [left] = (one for one in done.document["left"] if one["finding"] == "base.no-index")
        assert f"the copy of the base in {path} cannot be used: " in left["reason"]


def test_a_damaged_page_of_a_copy_is_not_taken_for_damage_of_the_store(place: Path, store: Path) -> None:
    """Only the vectors of one base of the copy cannot be read: those of the other come back."""
    source = shutil.copytree(store, place / "other")
    with closing(sqlite3.connect(index(source))) as db:
        [(root,)] = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'embedding'")
        [(size,)] = db.execute("PRAGMA page_size")
    raw = bytearray(index(source).read_bytes())
    raw[(root - 1) * size : root * size] = bytes(size)
    index(source).write_bytes(raw)
    whole = vectors(index(store, OTHER))
    run_sql(index(store), SOME_VECTORS)
    run_sql(index(store, OTHER), "DELETE FROM embedding WHERE rowid = (SELECT max(rowid) FROM embedding)")
    lacking = vectors(index(store))
    assert vectors(index(store, OTHER)) != whole
    done = repair(store, source)
    assert (done.status, {base for _, base, _ in actions(done)}) == (1, {OTHER})
    [left] = (one for one in done.document["left"] if one["finding"] == "embedding.missing")
    assert left["base"] == KB
    assert f"the copy of the base in {source} cannot be used: its index cannot be read completely: " in left["reason"]
    assert vectors(index(store)) == lacking
    assert vectors(index(store, OTHER)) == whole


@pytest.mark.parametrize("finding", ["base.no-index", "embedding.missing"])
def test_a_damaged_vector_file_is_salvaged_into_a_library_that_is_a_copy_then(
    place: Path, store: Path, finding: str
) -> None:
    """Without that command, the next one that was named embeds every text again."""
    before = vectors(index(store))
    if finding == "embedding.missing":
        run_sql(index(store), SOME_VECTORS)
    else:
        index(store).unlink()
    there = set(vectors(index(store)).items()) if index(store).exists() else set()
    source = (place / "v1").rename(place / "我的 v1")
    vector_file = source / "KnowledgeBase" / "kb"
    vector_file.write_bytes(vector_file.read_bytes()[:-4096])
    with unchanged(store):
        [left] = (one for one in repair(store, source).document["left"] if one["finding"] == finding)
    assert "--salvage can salvage " in left["reason"]
    command = command_words(left["repair"])
    assert command == ["regraft", "migrate", str(source), "--to", "LIBRARY", "--salvage"]
    library = place / "library 2"
    run(*command[1:4], library, "--salvage", "--now", NOW, "-q")
    assert repair(store, library).status in (0, 1)
    assert there < set(vectors(index(store)).items()) <= set(before.items())


@pytest.mark.thorough
def test_a_program_names_it_as_source(place: Path, store: Path) -> None:
    before = rows(index(store))
    index(store).unlink()
    report = regraft.repair(store, source=place / "v1")
    assert [action.action for action in report.actions] == ["write-index", "take-vectors"]
    assert rows(index(store)) == before


def test_vectors_of_definitions_of_a_stranger_are_not_taken(place: Path, store: Path) -> None:
    """A source whose index has a trigger of its own is left out: nothing that it defines runs or is believed."""
    source = shutil.copytree(store, place / "other")
    run_sql(index(source), "CREATE TRIGGER evil AFTER INSERT ON embedding BEGIN DELETE FROM material; END")
    run_sql(index(store), SOME_VECTORS)
    with unchanged(store):
        done = repair(store, source)
    assert actions(done) == []
    assert done.status == 1


# --- what is recommended ---------------------------------------------------------------------------------------------


def finding_of(store: Path, name: str) -> dict[str, Any]:
    found = run("check", store, "--json").document["findings"]
    return next(one for one in found if one["name"] == name)


def named_source(store: Path, source: str) -> None:
    """Let the ledger of a store name a source."""
    (store / ".regraft").mkdir(exist_ok=True)
    with closing(sqlite3.connect(store / ".regraft" / "ledger.sqlite")) as db:
        db.execute("UPDATE run SET source = ?", (source,))
        db.commit()


@pytest.fixture
def migrated(built: Path, tmp_path: Path) -> Path:
    """Copy the library with its ledger, and take its first base's vectors away."""
    store = shutil.copytree(built / "library", tmp_path / "migrated")
    run_sql(index(store), SOME_VECTORS)
    return store


@pytest.mark.thorough
def test_the_copy_comes_before_embedding(built: Path, migrated: Path) -> None:
    found = finding_of(migrated, "embedding.missing")
    assert found["repair"] == f"regraft repair {migrated} --from {built / 'v1'} --base {KB}"
    assert found["message"].endswith(f"if that copy no longer exists: regraft backfill {migrated} --base {KB}")
    assert run_as_given(*found["repair"].split()[1:], "--yes").status == 0
    assert rows(index(migrated)) == rows(index(built / "library"))


def test_what_the_source_never_had_is_not_expected_of_it(tmp_path: Path) -> None:
    source, store = whole(tmp_path / "v1"), tmp_path / "library"
    with closing(sqlite3.connect(source / "KnowledgeBase" / "kb")) as db, db:
        db.execute("UPDATE vectors SET vector = NULL WHERE uniqueLoaderId = 'N'")
    run("migrate", source, "--to", store, "--carry-text", "--yes", "-q", "--now", NOW)
    found = finding_of(store, "embedding.missing")
    assert (found["count"], found["repair"]) == (3, f"regraft backfill {store} --base {KB}")
    assert found["message"].endswith(f"if you have another copy of the data: {copy_command(store)}")
    run_sql(index(store), "DELETE FROM embedding WHERE rowid = 2")
    assert finding_of(store, "embedding.missing")["repair"] == copy_command(store, source)


def copy_command(store: Path, source: object = "SOURCE") -> str:
    return f"regraft repair {store} --from {source} --base {KB}"


def test_without_a_ledger_the_source_is_for_the_user_to_name(store: Path) -> None:
    index(store).unlink()
    found = finding_of(store, "base.no-index")
    copy = f"regraft repair {store} --from SOURCE --base {KB}"
    assert found["message"].endswith(f"if you have another copy of the data: {copy}")
    assert found["repair"] == f"regraft backfill {store} --base {KB}"


def without_file_item(store: Path) -> str:
    """Delete the material of a file item with its rows, and the raw file; return the item's id."""
    with closing(sqlite3.connect(store / "catalog.sqlite")) as db:
        columns = "id, json_extract(data, '$.relativePath')"
        names = dict(db.execute(f"SELECT {columns} FROM knowledge_item WHERE type = 'file' AND base_id = '{KB}'"))
    key = next(row[0] for row in rows(index(store))["material"] if row[0] in names)
    run_sql(
        index(store),
        f"DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = '{key}')",
        f"DELETE FROM search_unit WHERE material_id = '{key}'",
        f"DELETE FROM material WHERE material_id = '{key}'",
        "DELETE FROM embedding WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM search_text)",
        "DELETE FROM content WHERE content_hash NOT IN (SELECT current_content_hash FROM material)",
    )
    (store / "KnowledgeBase" / KB / "raw" / names[key]).unlink(missing_ok=True)
    return key


def test_the_text_of_an_item_without_a_file_is_in_a_copy_alone(place: Path, store: Path) -> None:
    """So check names the copy, although nothing else can bring the text back."""
    before = rows(index(store))
    without_file_item(store)
    assert len(rows(index(store))["embedding"]) < len(before["embedding"])
    found = finding_of(store, "item.no-material")
    copy = f"regraft repair {store} --from SOURCE --base {KB}"
    assert found["message"].endswith(f"no file to read it from; if you have another copy of the data: {copy}")
    assert found["repair"] is None
    other = shutil.copytree(store, place / "other")
    left = repair(store, other).document["left"]
    assert [(one["finding"], one["repair"]) for one in left] == [("item.no-material", None)]
    assert left[0]["reason"].endswith(f": {other} has none of them")
    assert run_as_given(*copy.replace("SOURCE", str(place / "v1")).split()[1:], "--yes").status == 0
    assert rows(index(store)) == before


def test_the_copy_comes_before_salvage(store: Path) -> None:
    zeroed(index(store))
    found = finding_of(store, "file.unreadable")
    assert f"--from SOURCE --base {KB}" in found["message"]
    assert found["repair"] == f"regraft repair {store} --salvage --base {KB}"
    explained = run("explain", "file.unreadable").stdout
    assert explained.index("--from") < explained.index("--salvage")


NEVER_SUGGESTED = [
    r"\\server\share\v1",
    "//server/share/v1",
    r"\\.\PhysicalDrive0",
    r"\\?\GLOBALROOT\Device\Harddisk0",
    r"\??\C:\v1",
    "/dev/zero",
    "/dev/../dev//tty",
    "/tmp/../proc/self/mem",
    "/PROC/1/root",
    "/sys/kernel",
    "/net/server/share",
    "CON",
    r"C:\v1\NUL.txt",
    "C:/v1/com1:",
    "file://server/share",
    "",
]


@pytest.mark.thorough
@pytest.mark.parametrize("source", NEVER_SUGGESTED)
def test_paths_of_other_computers_and_devices_are_never_suggested(migrated: Path, source: str) -> None:
    named_source(migrated, source)
    found = finding_of(migrated, "embedding.missing")
    assert found["repair"] == f"regraft backfill {migrated} --base {KB}"
    shown = run("check", migrated).stdout
    assert "--from SOURCE" in shown
    assert not source or source not in shown.replace("regraft", "").replace(str(migrated), "")


def test_control_characters_of_a_ledger_are_escaped(migrated: Path) -> None:
    named_source(migrated, "/home/mei/\x1b]0;title\x07\u202ev1")
    shown = run("check", migrated).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\x1b]0;title\x07\u202ev1" in finding_of(migrated, "embedding.missing")["repair"]


class Opened:
    """The paths that were opened or looked for, and are not below the folder of a test."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.is_on = False

    def note(self, path: object) -> None:
        if self.is_on and isinstance(path, str | bytes | os.PathLike):
            self.paths.append(os.fsdecode(path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    # The hook stays as long as the process; it only notes what it is told while this is on.
    seen = Opened()
    sys.addaudithook(
        lambda event, given: seen.note(given[0]) if event in ("open", "os.listdir", "os.scandir") else None
    )
    for name in ("stat", "lstat", "access", "readlink"):
        real = getattr(os, name)

        def watched(path: Any, *more: Any, _real: Any = real, **named: Any) -> Any:
            seen.note(path)
            return _real(path, *more, **named)

        monkeypatch.setattr(os, name, watched)
    seen.is_on = True
    yield seen
    seen.is_on = False


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["check", "fix", "inspect", "repair"])
def test_nothing_that_a_ledger_names_is_looked_for(
    migrated: Path, tmp_path: Path, opened: Opened, command: str
) -> None:
    secret = tmp_path / "elsewhere" / "v1-of-a-stranger"
    secret.mkdir(parents=True)
    opened.is_on = False
    named_source(migrated, str(secret))
    opened.is_on = True
    done = run(command, migrated, *(("--dry-run",) if command in ("fix", "repair") else ()))
    assert done.status in (0, 1)
    if command == "check":
        assert str(secret) in done.stdout
    assert str(migrated / "catalog.sqlite") in map(os.path.abspath, opened.paths)
    assert not [path for path in opened.paths if "elsewhere" in path]


# --- backfill of a missing index -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_backfill_builds_a_missing_index_in_place(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the client of embedding servers is not installed")
    pytest.importorskip("semantic_text_splitter", reason="what cuts texts is not installed")
    before = rows(index(store))
    index(store).unlink()
    with FaultServer(dimensions=4) as server:
        config = configured(tmp_path / "regraft.yaml", server, model_ids=["acme::embed-3"], dimensions=4)
        with untouched(store):
            dry = run("backfill", store, "--config", config, "--base", KB, "--json", "--dry-run")
            assert server.requests == []
        done = run("backfill", store, "--config", config, "--base", KB, "--json", "--yes")
    assert [one["action"] for one in dry.document["actions"]] == ["write-index", "embed"]
    assert [one["action"] for one in done.document["actions"]] == ["write-index", "embed"]
    made = rows(index(store))
    # The only file is no plain text, which the application alone reads.
    assert {row[:2] for row in made["material"]} <= {row[:2] for row in before["material"]}
    assert {row[5] for row in made["search_text"]} == set(dict(made["embedding"]))
    assert all(len(vector) == 16 for _, vector in made["embedding"])
    bodies = {row[4]: row[5] for row in made["search_text"]}
    assert all(identity.text_hash(text) == key for text, key in bodies.items())
    assert run("check", store, "--json").document["summary"]["by_name"].get("base.no-index") is None


def test_a_backfill_that_wrote_texts_says_that_it_takes_two_undos(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("openai", reason="the client of embedding servers is not installed")
    pytest.importorskip("semantic_text_splitter", reason="what cuts texts is not installed")
    index(store).unlink()
    before = files(store)
    with FaultServer(dimensions=4) as server:
        config = configured(tmp_path / "regraft.yaml", server, model_ids=["acme::embed-3"], dimensions=4)
        done = run("backfill", store, "--config", config, "--base", KB, "--yes")
    more = "That undoes only the new vectors; run it again to undo the other changes."
    assert done.stdout.endswith(f"To undo: regraft undo {store}\n{more}\n")
    assert vectors(index(store))
    assert run("undo", store, "--yes").status == 0
    assert not vectors(index(store))
    assert run("undo", store, "--yes").status == 0
    assert files(store) == before
