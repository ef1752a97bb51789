"""The index store: each rule of a rebuild, a delete and a reclaim, against a model, a crash, and other writers."""

from __future__ import annotations

import doctest
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import GOLDEN, NOW_MS, REPO, golden, snapshot
from hypothesis import given
from hypothesis import strategies as st
from index_rows import BASE, put, vectors
from patience import NEVER_SECONDS
from v1 import sha, vector_of

from regraft import errors, identity
from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index import IndexStore, opening
from regraft.formats.cherry_v2.index import store as rebuilding
from regraft.text import utf16_len

PROFILE = GOLDEN / "profile_upgraded"

OTHER = "0e7a3f4c-2f1d-4d0a-8a57-3f3f2f1b9c22"
TABLES = ("meta", "content", "material", "search_unit", "search_text", "embedding")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[IndexStore]:
    with IndexStore(path, BASE, create=True) as store:
        yield store


@contextmanager
def direct(path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(path))) as db:
        db.set_busy_timeout(5000)
        yield db


def rows(path: Path, sql: str) -> list[Any]:
    """Return what another connection finds, single columns bare."""
    with direct(path) as db:
        found = db.execute(sql).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


def dump(path: Path, *, times: bool = True) -> dict[str, list[Any]]:
    """Return every row of every table but the numbers of the rows."""
    found: dict[str, list[Any]] = {}
    with direct(path) as db:
        for table in TABLES:
            names = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')")]
            kept = [name for name in names if name != "fts_rowid" and (times or not name.endswith("_at"))]
            found[table] = sorted(db.execute(f"SELECT {', '.join(kept)} FROM {table}"), key=repr)
    return found


def demand_whole(path: Path) -> None:
    """Hold a file against everything that always holds, the full-text index included."""
    with direct(path) as db:
        assert db.execute("PRAGMA integrity_check").get == "ok"
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        db.execute("INSERT INTO search_text_fts (search_text_fts, rank) VALUES ('integrity-check', 1)")
        for unit, material, content, number, start, end, text, key, whole in db.execute(
            "SELECT u.unit_id, u.material_id, u.content_hash, u.unit_index, u.char_start, u.char_end, t.text,"
            " t.embedding_text_hash, c.text FROM search_unit u LEFT JOIN search_text t ON t.target_id = u.unit_id"
            " JOIN content c USING (content_hash)"
        ):
            assert text.encode("utf-16-le") == whole.encode("utf-16-le")[2 * start : 2 * end]
            assert key == sha(text)
            assert unit == identity.unit_id(material, content, number, start, end)
        named = "SELECT embedding_text_hash FROM search_text"
        assert db.execute(f"SELECT count(*) FROM embedding WHERE embedding_text_hash NOT IN ({named})").get == 0
        units = "SELECT content_hash FROM search_unit UNION SELECT current_content_hash FROM material"
        assert db.execute(f"SELECT count(*) FROM content WHERE content_hash NOT IN ({units})").get == 0
        assert db.execute("SELECT count(*) FROM search_text").get == db.execute("SELECT count(*) FROM search_unit").get


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """See that every row stays as it was."""
    before = dump(path)
    yield
    assert dump(path) == before


# --- opening -------------------------------------------------------------------------------------------------------


def test_a_created_index_is_empty_and_of_its_base(path: Path) -> None:
    IndexStore(path, BASE, create=True).close()
    assert rows(path, "SELECT schema_version, base_id FROM meta") == [(2, BASE)]
    assert [path.name] == [entry.name for entry in path.parent.iterdir()]
    demand_whole(path)


def test_create_takes_a_blank_file_and_leaves_a_filled_one(path: Path) -> None:
    path.write_bytes(b"")
    with IndexStore(path, BASE, create=True) as store:
        put(store, "m", "kept")
    before = path.read_bytes()
    IndexStore(path, BASE, create=True).close()
    assert path.read_bytes() == before


def test_a_created_schema_is_that_of_a_built_file(path: Path, tmp_path: Path) -> None:
    IndexStore(path, BASE, create=True).close()
    index.build_index(tmp_path / "built.sqlite", BASE, NOW_MS, [], lambda *_: None)
    sql = "SELECT type, name, sql FROM sqlite_schema ORDER BY name"
    assert rows(path, sql) == rows(tmp_path / "built.sqlite", sql)


@pytest.mark.parametrize("read_only", [False, True])
def test_another_bases_index_is_refused(path: Path, read_only: bool) -> None:
    IndexStore(path, BASE, create=True).close()
    before = snapshot(path.parent)
    with pytest.raises(errors.IndexForeign, match=f"the index of base {BASE}, not of {OTHER}") as caught:
        IndexStore(path, OTHER, read_only=read_only)
    assert caught.value.code == "IndexForeign"
    assert snapshot(path.parent) == before


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("version", [1, 3, 0, "two"])
def test_an_unknown_version_is_refused_and_nothing_emptied(path: Path, version: object, read_only: bool) -> None:
    with IndexStore(path, BASE, create=True) as store:
        put(store, "m", "paid for")
    with direct(path) as db:
        db.execute("UPDATE meta SET schema_version = ?", (version,))
    before = snapshot(path.parent)
    with pytest.raises(errors.IndexVersionUnknown, match=f"version {version}, but this regraft knows only 2"):
        IndexStore(path, BASE, read_only=read_only)
    with pytest.raises(errors.IndexVersionUnknown) as caught:
        IndexStore(path, BASE, create=True)
    assert caught.value.code == "IndexVersionUnknown"
    assert snapshot(path.parent) == before


@golden
def test_an_index_of_the_layouts_first_version_is_refused(path: Path) -> None:
    shutil.copyfile(GOLDEN / "index_v1" / "index.sqlite", path)
    before = snapshot(path.parent)
    for more in ({}, {"read_only": True}, {"create": True}):
        with pytest.raises(errors.IndexVersionUnknown, match="version 1"):
            IndexStore(path, "1323d39f-7201-41da-b44e-416bf6fb348a", **more)
    assert snapshot(path.parent) == before


@pytest.mark.parametrize(
    ("sql", "missing"),
    [
        ("DROP TRIGGER search_text_ad", "search_text_ad missing"),
        ("DROP TABLE embedding", "embedding missing"),
        ("DROP TABLE meta", "meta missing"),
        ("DELETE FROM meta", "the identity row missing"),
    ],
)
def test_an_index_with_a_part_missing_is_refused(path: Path, sql: str, missing: str) -> None:
    IndexStore(path, BASE, create=True).close()
    with direct(path) as db:
        db.execute(sql)
    for more in ({}, {"read_only": True}, {"create": True}):
        with pytest.raises(errors.IndexIncomplete, match=missing) as caught:
            IndexStore(path, BASE, **more)
        assert caught.value.code == "IndexIncomplete"


@pytest.mark.parametrize("read_only", [False, True])
def test_what_is_no_index_is_refused(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(errors.SourceNotFound):
        IndexStore(tmp_path / "nothing", BASE, read_only=read_only)
    (tmp_path / "text").write_text("no database at all, and long enough to look at" * 9, "utf-8")
    with pytest.raises(errors.SourceUnreadable):
        IndexStore(tmp_path / "text", BASE, read_only=read_only)
    (tmp_path / "folder").mkdir()
    with pytest.raises(errors.SourceUnreadable):
        IndexStore(tmp_path / "folder", BASE, read_only=read_only)


def test_create_needs_the_folder(tmp_path: Path) -> None:
    with pytest.raises(errors.SourceNotFound, match="gone"):
        IndexStore(tmp_path / "gone" / "index.sqlite", BASE, create=True)


def test_create_and_read_only_exclude_each_other(path: Path) -> None:
    with pytest.raises(errors.WrongUsage):
        IndexStore(path, BASE, create=True, read_only=True)
    assert not path.exists()


def test_a_file_that_another_program_has_locked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", 20)
    IndexStore(path, BASE, create=True).close()
    with direct(path) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(errors.IndexBusy):
            IndexStore(path, BASE)


def test_a_closed_store_says_so(path: Path) -> None:
    store = IndexStore(path, BASE, create=True)
    store.close()
    store.close()
    with pytest.raises(errors.StoreClosed):
        store.list_units("m")
    with pytest.raises(errors.StoreClosed) as caught:
        store.delete_materials(["m"])
    assert caught.value.code == "StoreClosed"


# --- rebuilding ----------------------------------------------------------------------------------------------------


def test_a_material_is_stored_as_the_layout_says(store: IndexStore, path: Path) -> None:
    content = "A fog bell 🔔 rings.\n\nEvery twenty seconds."
    bodies = ["A fog bell 🔔", "rings.\n\nEvery", "Every twenty seconds."]
    spans = [(0, 13), (14, 27), (22, 43)]
    store.rebuild_material("m1", "bell.md", content, spans, vectors(*bodies), NOW_MS)
    units = store.list_units("m1")
    assert [(unit.unit_index, unit.char_start, unit.char_end, unit.text) for unit in units] == [
        (number, *span, body) for number, (span, body) in enumerate(zip(spans, bodies, strict=True))
    ]
    assert {unit.content_hash for unit in units} == {sha(content)}
    assert rows(path, "SELECT * FROM material") == [("m1", "bell.md", sha(content), NOW_MS, NOW_MS)]
    assert rows(path, "SELECT * FROM content") == [(sha(content), content, NOW_MS)]
    assert rows(path, "SELECT DISTINCT title, locator_json, unit_type, created_at FROM search_unit") == [
        (None, None, "chunk", NOW_MS)
    ]
    assert dict(rows(path, "SELECT embedding_text_hash, vector_blob FROM embedding")) == vectors(*bodies)
    assert rows(path, "SELECT rowid = fts_rowid FROM search_text") == [1, 1, 1]
    demand_whole(path)


def test_units_are_listed_in_their_order_and_an_unknown_material_has_none(store: IndexStore) -> None:
    bodies = [f"body {number}" for number in range(12)]
    put(store, "m", *bodies)
    assert [unit.text for unit in store.list_units("m")] == bodies
    assert store.list_units("unknown") == []


def test_a_rebuild_replaces_all_of_a_material_and_nothing_of_others(store: IndexStore, path: Path) -> None:
    put(store, "a", "first", "shared")
    put(store, "b", "shared", "other")
    put(store, "a", "second", now=NOW_MS + 5, name="renamed.md")
    assert [unit.text for unit in store.list_units("a")] == ["second"]
    assert [unit.text for unit in store.list_units("b")] == ["shared", "other"]
    assert rows(path, "SELECT relative_path, created_at, updated_at FROM material WHERE material_id = 'a'") == [
        ("renamed.md", NOW_MS, NOW_MS + 5)
    ]
    assert set(rows(path, "SELECT embedding_text_hash FROM embedding")) == {*vectors("second", "shared", "other")}
    assert rows(path, "SELECT count(*) FROM content") == [2]
    demand_whole(path)


def test_the_same_again_is_no_change_but_of_times(store: IndexStore, path: Path) -> None:
    put(store, "a", "one", "two")
    before = dump(path, times=False)
    put(store, "a", "one", "two", now=NOW_MS + 9)
    assert dump(path, times=False) == before


def test_equal_texts_share_one_content_and_one_vector(store: IndexStore, path: Path) -> None:
    put(store, "a", "equal")
    store.rebuild_material("b", "b.md", "equal", [(0, 5)], {sha("equal"): vector_of("another")}, NOW_MS)
    assert rows(path, "SELECT vector_blob FROM embedding") == [vector_of("equal")]
    assert rows(path, "SELECT count(*) FROM content") == [1]
    assert store.delete_materials(["a"]) == 1
    assert rows(path, "SELECT count(*) FROM embedding") == [1]
    demand_whole(path)


def test_a_vector_that_is_there_need_not_be_given_again(store: IndexStore) -> None:
    put(store, "a", "known")
    assert store.existing_embeddings([sha("known"), sha("new")]) == {sha("known")}
    assert store.existing_embeddings([]) == set()
    assert len(store.existing_embeddings(sha(str(number)) for number in range(50_000))) == 0
    store.rebuild_material("b", "b.md", "known and new", [(0, 5), (10, 13)], vectors("new"), NOW_MS)
    assert len(store.list_units("b")) == 2


def test_a_vector_of_no_body_is_passed_over(store: IndexStore, path: Path) -> None:
    store.rebuild_material("a", "a.md", "text", [(0, 4)], vectors("text", "elsewhere"), NOW_MS)
    assert rows(path, "SELECT embedding_text_hash FROM embedding") == [sha("text")]


def test_a_material_may_have_no_unit_and_no_text(store: IndexStore, path: Path) -> None:
    store.rebuild_material("a", "a.md", "", [], {}, NOW_MS)
    assert store.list_units("a") == []
    assert rows(path, "SELECT current_content_hash FROM material") == [sha("")]


def test_a_stored_text_that_lost_its_hash_is_mended(store: IndexStore, path: Path) -> None:
    put(store, "a", "a text")
    with direct(path) as db:
        db.execute("UPDATE content SET text = 'a tex'")
    put(store, "b", "a text")
    demand_whole(path)


BAD_SPANS = {
    "beyond the end": ("abc", (0, 4), "is beyond the end of the text"),
    "all beyond": ("abc", (7, 9), "is beyond the end of the text"),
    "beyond in UTF-16": ("a😀", (0, 4), "is beyond the end of the text"),
    "before the start": ("abc", (-1, 2), "is beyond the end of the text"),
    "backwards": ("abc", (2, 1), "ends before it starts"),
    "ends in a pair": ("a😀b", (0, 2), "inside a surrogate pair"),
    "begins in a pair": ("a😀b", (2, 4), "inside a surrogate pair"),
    "half a pair": ("a😀b", (1, 2), "inside a surrogate pair"),
}


@pytest.mark.parametrize("name", BAD_SPANS)
def test_a_unit_that_is_no_slice_is_refused(store: IndexStore, path: Path, name: str) -> None:
    content, span, reason = BAD_SPANS[name]
    put(store, "m", "before")
    with unchanged(path), pytest.raises(errors.UnitRefused, match=reason) as caught:
        store.rebuild_material("m", "m.md", content, [(0, 1), span], vectors("a", content), NOW_MS)
    assert caught.value.facts["unit"] == 1
    assert caught.value.facts["length"] == utf16_len(content)
    assert caught.value.code == "UnitRefused"


def test_a_unit_may_be_the_whole_text_to_its_very_end(store: IndexStore) -> None:
    store.rebuild_material("m", "m.md", "a😀", [(0, 3), (3, 3), (1, 3)], vectors("a😀", "", "😀"), NOW_MS)
    assert [unit.text for unit in store.list_units("m")] == ["a😀", "", "😀"]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "/a",
        "a//b",
        "a/",
        "./a",
        "a/../b",
        "..",
        "a\\b",
        "a\0b",
        ".cherry",
        ".CHERRY",
        ".Cherry/x",
        "C:/x",
        "\ud800",
    ],
)
def test_a_path_that_is_none_below_raw_is_refused(store: IndexStore, path: Path, bad: str) -> None:
    with unchanged(path), pytest.raises(errors.MaterialRefused):
        store.rebuild_material("m", bad, "text", [(0, 4)], vectors("text"), NOW_MS)


@pytest.mark.parametrize("good", ["a", "文档/章.md", "..a", ".cherryx", "a/.cherry", "C:", "%_"])
def test_other_paths_are_taken(store: IndexStore, good: str) -> None:
    put(store, "m", "text", name=good)
    assert len(store.list_units("m")) == 1


def test_ids_and_texts_that_cannot_be_stored_are_refused(store: IndexStore, path: Path) -> None:
    with unchanged(path):
        for material, content in (("", "text"), ("m\udc00", "text"), ("m", "te\ud83dxt")):
            with pytest.raises(errors.MaterialRefused) as caught:
                store.rebuild_material(material, "m.md", content, [(0, 1)], vectors("t"), NOW_MS)
            assert caught.value.code == "MaterialRefused"


def test_the_path_of_another_material_is_refused(store: IndexStore, path: Path) -> None:
    put(store, "a", "first", name="same.md")
    with unchanged(path), pytest.raises(errors.MaterialRefused, match="belongs to material a"):
        put(store, "b", "second", name="same.md")


# --- vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", [b"", b"123", vector_of("x", 3), vector_of("x", 5)], ids=len)
def test_a_vector_of_another_length_is_refused(store: IndexStore, path: Path, vector: bytes) -> None:
    put(store, "a", "first")
    with unchanged(path), pytest.raises(errors.EmbeddingRefused, match=f"has {len(vector)} bytes, but .* 16") as caught:
        store.rebuild_material("b", "b.md", "x", [(0, 1)], {sha("x"): vector}, NOW_MS)
    assert caught.value.code == "EmbeddingRefused"


@pytest.mark.parametrize("second", [b"", b"12345", vector_of("y", 3)], ids=len)
def test_vectors_of_an_empty_file_must_agree(store: IndexStore, path: Path, second: bytes) -> None:
    given = {sha("x"): vector_of("x"), sha("y"): second}
    with unchanged(path), pytest.raises(errors.EmbeddingRefused):
        store.rebuild_material("b", "b.md", "xy", [(0, 1), (1, 2)], given, NOW_MS)


@pytest.mark.parametrize("wrong", [b"", b"123"])
def test_the_first_vector_of_a_file_is_looked_at_too(store: IndexStore, wrong: bytes) -> None:
    with pytest.raises(errors.EmbeddingRefused):
        store.rebuild_material("b", "b.md", "x", [(0, 1)], {sha("x"): wrong}, NOW_MS)


def test_one_damaged_vector_does_not_stop_the_others(store: IndexStore, path: Path) -> None:
    put(store, "a", "one", "two", "three")
    with direct(path) as db:
        db.execute("UPDATE embedding SET vector_blob = x'00' WHERE rowid = 1")
    put(store, "b", "four")
    assert len(store.list_units("b")) == 1


def test_a_gap_in_the_coverage_rolls_everything_back(store: IndexStore, path: Path) -> None:
    put(store, "a", "old")
    with unchanged(path), pytest.raises(errors.CoverageGap, match=r"1 of its texts .* unit 1") as caught:
        store.rebuild_material("a", "a.md", "new and bare", [(0, 3), (8, 12)], vectors("new"), NOW_MS)
    assert caught.value.code == "CoverageGap"
    assert [unit.text for unit in store.list_units("a")] == ["old"]


def test_a_base_without_a_model_has_no_vectors(store: IndexStore, path: Path) -> None:
    store.rebuild_material("a", "a.md", "only words", [(0, 10)], {}, NOW_MS, has_model=False)
    assert [unit.text for unit in store.list_units("a")] == ["only words"]
    with unchanged(path), pytest.raises(errors.MaterialRefused, match="no model"):
        store.rebuild_material("b", "b.md", "b", [(0, 1)], vectors("b"), NOW_MS, has_model=False)
    assert rows(path, "SELECT count(*) FROM embedding") == [0]


# --- sweeping and deleting -----------------------------------------------------------------------------------------


def plant_waste(path: Path) -> None:
    with direct(path) as db:
        db.execute("INSERT INTO embedding VALUES ('waste', ?, 1)", (vector_of("waste"),))
        db.execute("INSERT INTO content VALUES ('waste', 'waste', 1)")


def waste(path: Path) -> int:
    sql = "SELECT (SELECT count(*) FROM embedding WHERE embedding_text_hash = 'waste')"
    return rows(path, f"{sql} + (SELECT count(*) FROM content WHERE content_hash = 'waste')")[0]


def test_nothing_is_swept_where_nothing_became_waste(store: IndexStore, path: Path) -> None:
    put(store, "a", "text")
    plant_waste(path)
    put(store, "a", "text")
    put(store, "b", "new")
    assert store.delete_materials(["unknown"]) == 0
    assert waste(path) == 2


def test_a_rebuild_that_drops_something_sweeps(store: IndexStore, path: Path) -> None:
    put(store, "a", "text")
    plant_waste(path)
    put(store, "a", "other")
    assert waste(path) == 0
    demand_whole(path)


def test_a_shared_vector_outlives_one_of_its_bodies(store: IndexStore, path: Path) -> None:
    put(store, "a", "shared", "own")
    put(store, "b", "shared")
    put(store, "a", "new")
    assert set(rows(path, "SELECT embedding_text_hash FROM embedding")) == {sha("shared"), sha("new")}


def test_deleting_takes_units_bodies_and_what_only_they_named(store: IndexStore, path: Path) -> None:
    for material in ("a", "b", "c"):
        put(store, material, f"own {material}", "shared")
    assert store.delete_materials(["a", "unknown", "b", "a"]) == 2
    assert store.list_units("a") == []
    assert [unit.text for unit in store.list_units("c")] == ["own c", "shared"]
    assert set(rows(path, "SELECT embedding_text_hash FROM embedding")) == {sha("own c"), sha("shared")}
    demand_whole(path)
    assert store.delete_materials(["c"]) == 1
    assert [len(table) for name, table in dump(path).items() if name != "meta"] == [0] * 5


# --- read-only -----------------------------------------------------------------------------------------------------


def as_wal(path: Path) -> None:
    with direct(path) as db:
        assert db.execute("PRAGMA journal_mode = wal").get == "wal"


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_reading_leaves_no_trace(path: Path, mode: str) -> None:
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", "text")
    if mode == "wal":
        as_wal(path)
    before = snapshot(path.parent)
    with IndexStore(path, BASE, read_only=True) as store:
        assert [unit.text for unit in store.list_units("a")] == ["text"]
        assert store.existing_embeddings([sha("text")]) == {sha("text")}
        assert snapshot(path.parent) == before
    assert snapshot(path.parent) == before


def test_a_read_only_store_refuses_every_change(path: Path) -> None:
    IndexStore(path, BASE, create=True).close()
    before = snapshot(path.parent)
    with IndexStore(path, BASE, read_only=True) as store:
        for change in (lambda: put(store, "a", "b"), lambda: store.delete_materials([]), store.reclaim):
            with pytest.raises(errors.IndexReadOnly) as caught:
                change()
            assert caught.value.code == "IndexReadOnly"
    assert snapshot(path.parent) == before


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_read_only_store_sees_what_others_wrote_since(path: Path, mode: str) -> None:
    with IndexStore(path, BASE, create=True) as writer:
        put(writer, "a", "old")
    if mode == "wal":
        as_wal(path)
    with IndexStore(path, BASE, read_only=True) as reader, IndexStore(path, BASE) as writer:
        assert [unit.text for unit in reader.list_units("a")] == ["old"]
        put(writer, "a", "new")
        assert [unit.text for unit in reader.list_units("a")] == ["new"]


def test_a_file_that_is_never_at_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PAUSE", 0)
    IndexStore(path, BASE, create=True).close()
    with IndexStore(path, BASE, read_only=True) as store:
        real, ticks = store._reader._read_marks, iter(range(10**6))
        monkeypatch.setattr(store._reader, "_read_marks", lambda: (*real(), (next(ticks), 0, b"")))
        with pytest.raises(errors.IndexBusy) as caught:
            store.list_units("a")
    assert caught.value.code == "IndexBusy"


@pytest.mark.skipif(os.name == "nt", reason="Windows refuses to remove a file that is open")
def test_a_file_that_went_away(path: Path) -> None:
    IndexStore(path, BASE, create=True).close()
    with IndexStore(path, BASE, read_only=True) as store:
        path.unlink()
        with pytest.raises(errors.SourceNotFound):
            store.list_units("a")


# --- crashes -------------------------------------------------------------------------------------------------------

CRASH = """
import os, signal, sys
from pathlib import Path
from regraft.formats.cherry_v2.index import IndexStore, store as rebuilding

sys.path[:0] = {paths!r}
from index_rows import BASE, put

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL) if hasattr(signal, "SIGKILL") else os._exit(9)

store = IndexStore(Path({path!r}), BASE)
# So few pages are kept in memory that the unfinished transaction is in the file itself.
store._db.execute("PRAGMA cache_size = 5")
if {stage!r} != "committed":
    setattr(rebuilding, {stage!r}, die)
put(store, "a", *(f"new {{number}} " + "text " * 40 for number in range(300)))
die()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["delete", "wal"])
@pytest.mark.parametrize(
    "stage", ["_insert_units", "_insert_embeddings", "missing_embeddings", "_delete_unused_contents", "committed"]
)
def test_a_killed_rebuild_leaves_the_old_state_or_the_new_one(path: Path, stage: str, mode: str) -> None:
    old = [f"old {number} " + "word " * 40 for number in range(200)]
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", *old)
        put(store, "b", "another")
    if mode == "wal":
        as_wal(path)
    script = CRASH.format(paths=sys.path, path=str(path), stage=stage)
    done = subprocess.run([sys.executable, "-P", "-c", script], cwd=REPO, check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr == ""
    expected = [f"new {number} " + "text " * 40 for number in range(300)] if stage == "committed" else old
    before = snapshot(path.parent)
    if mode == "delete" and stage != "committed":
        with pytest.raises(errors.IndexHotJournal) as caught:
            IndexStore(path, BASE, read_only=True)
        assert caught.value.code == "IndexHotJournal"
    else:
        with IndexStore(path, BASE, read_only=True) as store:
            assert [unit.text for unit in store.list_units("a")] == expected
    assert snapshot(path.parent) == before
    with IndexStore(path, BASE) as store:
        assert [unit.text for unit in store.list_units("a")] == expected
        put(store, "a", "goes on")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    demand_whole(path)


# --- other writers and readers -------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the locks of others as long as it takes."""
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", NEVER_SECONDS * 1000)


@pytest.mark.thorough
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_readers_see_one_state_or_the_other(path: Path, mode: str, read_only: bool) -> None:
    states = [[f"{name} {number}" for number in range(size)] for name, size in (("even", 30), ("odd", 45))]
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", *states[0])
    if mode == "wal":
        as_wal(path)
    seen: list[list[str]] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        try:
            with IndexStore(path, BASE, read_only=read_only) as reader:
                while not over.is_set():
                    seen.append([unit.text for unit in reader.list_units("a")])
        except (errors.IndexBusy, errors.IndexHotJournal):
            pass  # it said so, which is right
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    with IndexStore(path, BASE) as writer:
        for turn in range(1, 20):
            put(writer, "a", *states[turn % 2])
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(found in states for found in seen)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    demand_whole(path)


READ = """
import sys
import threading
from pathlib import Path
from regraft import errors
from regraft.formats.cherry_v2.index import IndexStore

states = [{states!r}[0], {states!r}[1]]
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
with IndexStore(Path({path!r}), {base!r}, read_only=True) as reader:
    print("ready", flush=True)
    is_last = False
    while not is_last:
        is_last = over.is_set()
        try:
            found = [unit.text for unit in reader.list_units("a")]
        except (errors.IndexBusy, errors.IndexHotJournal):
            assert not is_last, "nobody writes any more"
            continue
        assert found in states, found
"""


@pytest.mark.thorough
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_reader_in_another_process_sees_one_state_or_the_other(path: Path, mode: str) -> None:
    """It may be told that the index is busy as long as somebody writes, however long that is."""
    states = [[f"{name} {number}" for number in range(size)] for name, size in (("even", 30), ("odd", 45))]
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", *states[0])
    if mode == "wal":
        as_wal(path)
    script = READ.format(states=states, path=str(path), base=BASE)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-P", "-c", script], cwd=REPO, text=True, **pipes) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
        with IndexStore(path, BASE) as writer:
            for turn in range(1, 60):
                put(writer, "a", *states[turn % 2])
        assert reader.communicate()[1] == ""
    assert reader.returncode == 0
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    demand_whole(path)


@pytest.mark.skipif(os.name == "nt", reason="locks are let go by closing a file on POSIX only")
def test_reading_beside_an_own_writer_keeps_its_lock(path: Path) -> None:
    """Whoever opens and closes the file itself would let go of the writer's lock against other programs."""
    with IndexStore(path, BASE, create=True) as writer:
        put(writer, "a", "text")
        with IndexStore(path, BASE, read_only=True) as reader:
            writer._db.execute("BEGIN IMMEDIATE")
            assert [unit.text for unit in reader.list_units("a")] == ["text"]
            script = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN IMMEDIATE')"
            done = subprocess.run([sys.executable, "-P", "-c", script], check=False, capture_output=True, text=True)
            assert "database is locked" in done.stderr
            writer._db.execute("ROLLBACK")


def test_writers_wait_for_each_other_and_then_say_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regraft.disk.sqlite.BUSY_TIMEOUT_MS", 20)
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", "old")
        with direct(path) as db:
            db.execute("BEGIN IMMEDIATE")
            for change in (lambda: put(store, "a", "new"), lambda: store.delete_materials(["a"]), store.reclaim):
                with pytest.raises(errors.IndexUnchanged, match="locked") as caught:
                    change()
                assert caught.value.code == "IndexUnchanged"
            db.execute("ROLLBACK")
        assert [unit.text for unit in store.list_units("a")] == ["old"]
        put(store, "a", "new")
        assert [unit.text for unit in store.list_units("a")] == ["new"]


def test_files_that_the_application_left_stay_as_they_are_used(path: Path) -> None:
    """In WAL mode before and after, with no log beside it."""
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", "old")
    as_wal(path)
    with IndexStore(path, BASE) as store:
        put(store, "a", "new")
        store.delete_materials(["unknown"])
        store.reclaim("always")
    assert path.read_bytes()[18:20] == b"\x02\x02"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    demand_whole(path)


@golden
def test_the_applications_own_file_is_rebuilt_in_and_given_back(path: Path) -> None:
    (own,) = (PROFILE / "Data" / "KnowledgeBase").glob("*/.cherry/index.sqlite")
    shutil.copyfile(own, path)
    base = own.parents[1].name
    materials = rows(path, "SELECT material_id FROM material ORDER BY 1")
    size = rows(path, "SELECT length(vector_blob) FROM embedding LIMIT 1")[0]
    mode = path.read_bytes()[18:20]
    before = dump(path, times=False)
    with IndexStore(path, base) as store:
        units = {material: store.list_units(material) for material in materials}
        assert sum(map(len, units.values())) == len(before["search_unit"])
        for material, kept in units.items():
            place, content = rows(
                path,
                "SELECT relative_path, text FROM material JOIN content ON content_hash = current_content_hash"
                f" WHERE material_id = '{material}'",
            )[0]
            spans = [(unit.char_start, unit.char_end) for unit in kept]
            # Not one vector is given: they are all there.
            store.rebuild_material(material, place, content, spans, {}, NOW_MS)
        assert dump(path, times=False) == before
        with pytest.raises(errors.EmbeddingRefused):
            store.rebuild_material("new", "new.md", "new", [(0, 3)], {sha("new"): bytes(size + 4)}, NOW_MS)
        store.rebuild_material("new", "new.md", "new", [(0, 3)], {sha("new"): b"\1" * size}, NOW_MS)
        assert store.delete_materials(["new"]) == 1
        store.reclaim("always")
    assert dump(path, times=False) == before
    assert path.read_bytes()[18:20] == mode
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    demand_whole(path)


# --- giving space back ---------------------------------------------------------------------------------------------


def numbers(path: Path) -> list[Any]:
    return rows(path, "SELECT search_text_id, rowid, fts_rowid FROM search_text ORDER BY 1")


def test_a_vacuum_keeps_the_numbers_of_the_rows(store: IndexStore, path: Path) -> None:
    for number in range(20):
        put(store, f"m{number}", *(f"lighthouse {number} {part}" for part in range(20)))
    store.delete_materials(f"m{number}" for number in range(0, 20, 2))
    before, kept = numbers(path), dump(path)
    done = store.reclaim("always")
    assert done.vacuumed
    assert done.bytes_after < done.bytes_before
    assert done.bytes_after == path.stat().st_size
    assert numbers(path) == before
    assert dump(path) == kept
    found = "SELECT t.text FROM search_text_fts f JOIN search_text t ON t.fts_rowid = f.rowid"
    assert set(rows(path, f"{found} WHERE search_text_fts MATCH '\"house 3 1\"'")) == {
        f"lighthouse 3 {part}" for part in (1, *range(10, 20))
    }
    demand_whole(path)


def test_vacuum_waits_until_it_pays(store: IndexStore, path: Path) -> None:
    put(store, "small", "kept")
    assert store.reclaim().vacuumed is False
    text = "".join(chr(0x4E00 + number % 20_000) for number in range(700_000))
    for number in range(6):
        store.rebuild_material(f"t{number}", f"t{number}", f"{number}{text}", [], {}, NOW_MS)
    store.delete_materials(["t0"])
    few = store.reclaim()
    assert (few.vacuumed, few.free_bytes >= 1 << 20) == (False, True)
    store.delete_materials(f"t{number}" for number in range(1, 6))
    never = store.reclaim("never")
    assert (never.vacuumed, never.bytes_after) == (False, never.bytes_before)
    done = store.reclaim()
    assert done.vacuumed
    assert done.free_bytes >= 8 << 20
    assert done.bytes_after < 1 << 20
    demand_whole(path)


def test_an_unknown_way_to_vacuum_is_refused(store: IndexStore) -> None:
    with pytest.raises(errors.WrongUsage):
        store.reclaim("sometimes")


def test_a_full_text_index_out_of_step_is_told_before_anything_is_done(store: IndexStore, path: Path) -> None:
    put(store, "a", "text")
    with direct(path) as db:
        db.execute("UPDATE search_text SET fts_rowid = 77")
    with pytest.raises(errors.FullTextOutOfStep, match="before reclaiming space") as caught:
        store.reclaim("always")
    assert caught.value.code == "FullTextOutOfStep"


# --- against other writers of the layout ---------------------------------------------------------------------------


def test_the_file_is_that_of_the_bulk_builder(path: Path, tmp_path: Path) -> None:
    materials = {
        "m1": ["The lighthouse keeper wrote.", "A fog bell 🔔 rings.", "shared"],
        "m2": ["雾钟每隔二十秒敲响一次。"],
        "m3": ["shared", "shared", "🔔"],
    }
    built = tmp_path / "built.sqlite"
    given = [
        index.Material(name, lambda _, name=name: f"{name}.md", [(body, vector_of(body)) for body in bodies])
        for name, bodies in materials.items()
    ]
    tallies, digest = index.build_index(built, BASE, NOW_MS, given, lambda *_: None)
    with IndexStore(path, BASE, create=True) as store:
        put(store, "m1", "something", "that goes again")
        for name, bodies in materials.items():
            put(store, name, *bodies)
        put(store, "gone", "and away")
        store.delete_materials(["gone"])
    with direct(path) as db:
        db.execute("UPDATE meta SET created_at = ?, updated_at = ?", (NOW_MS, NOW_MS))
    assert dump(path) == dump(built)
    vocabulary = "SELECT term, doc, cnt FROM words ORDER BY 1"
    with direct(path) as ours, direct(built) as theirs:
        for db in (ours, theirs):
            db.execute("CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, search_text_fts, row)")
        assert ours.execute(vocabulary).fetchall() == theirs.execute(vocabulary).fetchall()
    assert (tallies.units, bool(digest)) == (7, True)


@dataclass(frozen=True)
class Step:
    """One change of a sequence: rebuild with these bodies, delete (None), or open the file again."""

    material: str
    bodies: tuple[str, ...] | None
    reopen: bool


WORDS = st.sampled_from(["", "a", "bell 🔔", "雾钟", "shared", "\U0010ffff", "e\u0301", "x\n\ny"])
STEPS = st.builds(Step, st.sampled_from("abc"), st.none() | st.lists(WORDS, max_size=4).map(tuple), st.booleans())


@given(st.lists(STEPS, max_size=8))
def test_any_sequence_of_changes_is_as_a_plain_model_says(steps: list[Step]) -> None:
    model: dict[str, tuple[str, ...]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.sqlite"
        store = IndexStore(path, BASE, create=True)
        for step in steps:
            if step.bodies is None:
                assert store.delete_materials([step.material]) == (model.pop(step.material, None) is not None)
            else:
                put(store, step.material, *step.bodies)
                model[step.material] = step.bodies
            if step.reopen:
                store.close()
                store = IndexStore(path, BASE)
        store.close()
        with IndexStore(path, BASE, read_only=True) as reader:
            for material in "abc":
                assert tuple(unit.text for unit in reader.list_units(material)) == model.get(material, ())
        everything = {body for bodies in model.values() for body in bodies}
        assert dict(rows(path, "SELECT embedding_text_hash, vector_blob FROM embedding")) == vectors(*everything)
        assert {*rows(path, "SELECT text FROM content")} == {"\n\n".join(bodies) for bodies in model.values()}
        assert {*rows(path, "SELECT material_id FROM material")} == set(model)
        demand_whole(path)


@given(st.text(max_size=30), st.integers(-2, 40), st.integers(-2, 40))
def test_a_unit_is_the_slice_that_javascript_cuts_or_refused(content: str, start: int, end: int) -> None:
    wide = content.encode("utf-16-le")
    try:
        expected = wide[2 * start : 2 * end].decode("utf-16-le") if 0 <= start <= end <= len(wide) // 2 else None
    except UnicodeDecodeError:
        expected = None
    if expected is None:
        with pytest.raises(errors.UnitRefused):
            index.schema.cut_units("m", content, [(start, end)])
    else:
        (unit,) = index.schema.cut_units("m", content, [(start, end)])
        assert (unit.text, unit.embedding_text_hash) == (expected, sha(expected))


def test_a_change_that_fails_midway_is_taken_back(
    store: IndexStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a", "old")

    def fail(*_: object) -> None:
        raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(rebuilding, "_delete_unused_contents", fail)
    with unchanged(path), pytest.raises(errors.IndexUnchanged, match="full"):
        put(store, "a", "new")
    with unchanged(path), pytest.raises(errors.IndexUnchanged):
        store.delete_materials(["a"])


DAMAGE = {
    "a body that is not UTF-8": "UPDATE search_text SET text = CAST(x'ff' AS TEXT)",
    "a body that is a blob": "UPDATE search_text SET text = x'00'",
    "an offset that is none": "UPDATE search_unit SET char_end = 'x'",
}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_rows_are_an_error_of_ours(path: Path, name: str, read_only: bool) -> None:
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", "text")
    with direct(path) as db:
        db.execute("DROP TRIGGER search_text_au")
        db.execute(DAMAGE[name])
        db.execute("CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text BEGIN SELECT 1; END")
    with IndexStore(path, BASE, read_only=read_only) as store, pytest.raises(errors.SourceUnreadable):
        store.list_units("a")


@pytest.mark.parametrize("read_only", [False, True])
def test_an_identity_that_is_no_utf8(path: Path, read_only: bool) -> None:
    IndexStore(path, BASE, create=True).close()
    with direct(path) as db:
        db.execute("UPDATE meta SET base_id = CAST(x'ff' AS TEXT)")
    with pytest.raises(errors.SourceUnreadable):
        IndexStore(path, BASE, read_only=read_only)


@pytest.mark.thorough
@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_of_torn_pages(path: Path, read_only: bool) -> None:
    with IndexStore(path, BASE, create=True) as store:
        put(store, "a", *(f"text {number}" for number in range(300)))
    raw = path.read_bytes()
    for start in range(0, len(raw), 4096):
        path.write_bytes(raw[:start] + random.Random(start).randbytes(4096) + raw[start + 4096 :])
        with suppress(errors.RegraftError), IndexStore(path, BASE, read_only=read_only) as store:
            assert all(isinstance(unit.text, str) for unit in store.list_units("a"))


@pytest.mark.parametrize("work", ["list", "named", "sweep"])
def test_no_question_begins_with_every_body_of_the_file(store: IndexStore, work: str) -> None:
    """SQLite, without statistics, would take the bodies first, and the vectors' pages to look for waste."""
    asked: list[str] = []
    store._db.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: asked.append(event["sql"]))
    {
        "list": lambda: store.list_units("m"),
        "named": lambda: put(store, "m", "text"),
        "sweep": lambda: (put(store, "m", "text"), store.delete_materials(["m"])),
    }[work]()
    store._db.trace_v2(0, None)
    asked = [sql for sql in asked if sql.startswith(("SELECT", "DELETE")) and "_fts" not in sql and "LIMIT" not in sql]
    plans = []
    for sql in asked:
        values = (None,) * len(set(re.findall(r"\?\d", sql)) or sql.count("?") * "x")
        plans += [row[3] for row in store._db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    assert plans
    whole = (
        "SCAN embedding",
        "SCAN e",
        "SCAN c",
        "SCAN t",
        "SCAN search_text",
        "SEARCH t USING INDEX search_text_kind",
    )
    assert not [plan for plan in plans if plan.startswith(whole) and "COVERING" not in plan and "target_id" not in plan]
    assert not [plan for plan in plans if plan.endswith(("(kind=?)", "(target_type=?)"))]


def test_the_examples_of_the_page_run() -> None:
    page = REPO / "docs" / "formats" / "index.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert failed == 0
    assert tried > 15
