"""Stores of preview builds as a source: every shape, every place, with a catalog and without, trap and all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import preview
import pytest
from harness import GOLDEN, NOW_MS, examples, golden, run, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from preview import (
    BASE,
    CREATED,
    ITEMS,
    MODEL,
    OTHER,
    ROWS,
    TABLE,
    UNPARSABLE,
    USUAL,
    VECTOR_INDEX,
    A,
    B,
    C,
    D,
    Row,
    base_row,
    carried,
    current_store,
    expected,
    item_row,
    migrate,
    profile,
    rows_of,
    store,
    write_catalog,
)
from v1 import check_library, floats, vector_of

from regraft.disk import sqlite
from regraft.formats import cherry_preview
from regraft.formats.cherry_preview import PREVIEW_VECTORS, IndexLayout

REAL = GOLDEN / "preview"
#: The user's word for bases that name no model.
WORD = ("--recreate-model", MODEL)


def flat(folder: Path, *rows: Row, **how: Any) -> Path:
    """Write a store as a flat file among bases and return it."""
    return store(folder / "KnowledgeBase" / BASE, rows or ROWS, **how)


def query(path: Path, sql: str) -> Any:
    with sqlite.open_readonly(path) as db:
        return db.execute(sql).get


# --- the trap ------------------------------------------------------------------------------------------------------


def test_an_empty_vector_index_makes_sqlite_lie_and_regraft_does_not_fall_for_it(tmp_path):
    source = flat(tmp_path / "in", vector_index=VECTOR_INDEX)
    assert query(source, f"SELECT count(*) FROM {TABLE}") == 0
    assert query(source, f"SELECT 1 FROM {TABLE}") is None
    assert query(source, f"SELECT EXISTS (SELECT 1 FROM {TABLE})") == 0
    assert query(source, f"SELECT count(*) FROM {TABLE} NOT INDEXED") == len(ROWS)
    assert PREVIEW_VECTORS.survey(source).rows == len(ROWS)
    assert cherry_preview.summarize_file(source) == cherry_preview.IndexSummary(
        IndexLayout.PREVIEW, has_rows=True, has_trap=True
    )
    library = migrate(source, tmp_path / "out", *WORD)
    assert library.rows(BASE) == {**library.rows(BASE), "read": len(ROWS), "carried": len(ROWS), "skipped": {}}
    assert carried(library) == expected(ROWS)


def test_inspect_names_the_trap_and_what_is_hidden(tmp_path):
    source = flat(tmp_path, vector_index=VECTOR_INDEX)
    said = run("inspect", source, "--json")
    assert (said.status, said.document["kind"]) == (0, "preview-index")
    found = said.document["bases"][0]
    assert (found["id"], found["items"]) == (BASE, {"file": 1, "note": 1, "url": 1})
    assert {key: found["store"][key] for key in ("rows", "dimensions", "loaders")} == {
        "rows": len(ROWS),
        "dimensions": 4,
        "loaders": 3,
    }
    assert "does not see its rows" in found["problem"]
    assert "makes other programs count 0 rows" in found["problem"]
    plain = run("inspect", store(tmp_path / "plain.sqlite")).stdout
    assert "does not see its rows" in plain
    assert "count 0 rows" not in plain


def test_a_schema_that_sqlite_refuses_is_read_from_a_copy_without_that_index(tmp_path):
    source = flat(tmp_path / "in", vector_index=UNPARSABLE)
    with pytest.raises(apsw.Error, match="malformed database schema"):
        query(source, f"SELECT id FROM {TABLE}")
    assert run("inspect", source, "--json").document["bases"][0]["store"]["rows"] == len(ROWS)
    library = migrate(source, tmp_path / "out", *WORD)
    assert carried(library) == expected(ROWS)
    check_library(library)


@pytest.mark.thorough
def test_a_refused_schema_is_read_from_a_profile_a_zip_and_by_several_processes(tmp_path):
    source = tmp_path / "in"
    for base in (BASE, OTHER):
        rows = [Row(f"{base[:-3]}{number:03}", f"text {number} of {base}") for number in range(3)]
        store(source / "KnowledgeBase" / base / ".cherry" / "index.sqlite", rows, base=base, vector_index=UNPARSABLE)
    several = migrate(source, tmp_path / "out", *WORD, "--jobs", "2")
    assert [base["rows"]["carried"] for base in several.report["bases"]] == [3, 3]
    assert not list(tmp_path.glob("in/**/*-journal"))
    packed = migrate(zipped(source, tmp_path / "in.zip"), tmp_path / "out2", *WORD)
    assert [carried(packed, base) for base in (BASE, OTHER)] == [carried(several, base) for base in (BASE, OTHER)]


def test_a_schema_beyond_help_is_unreadable_and_named(tmp_path):
    source = flat(tmp_path, vector_index=UNPARSABLE)
    raw = source.read_bytes()
    source.write_bytes(raw.replace(f"CREATE TABLE {TABLE}".encode(), f"CREATE TABEL {TABLE}".encode()))
    done = run("migrate", source, "--to", tmp_path / "out", "--json", *WORD)
    assert (done.status, done.document["error"]["code"]) == (2, "SourceUnreadable")
    assert not (tmp_path / "out").exists()


def zipped(folder: Path, target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return target


# --- where a store lies --------------------------------------------------------------------------------------------


def lone_file(folder: Path) -> Path:
    return store(folder / "anything.bin")


def lone_folder(folder: Path) -> Path:
    return store(folder / "index.sqlite").parent


def index_folder(folder: Path) -> Path:
    return store(folder / BASE / ".cherry" / "index.sqlite").parent


def index_file(folder: Path) -> Path:
    return store(folder / BASE / ".cherry" / "index.sqlite", base=OTHER)


def base_folder(folder: Path) -> Path:
    return store(folder / BASE / ".cherry" / "index.sqlite").parent.parent


def bases_folder(folder: Path) -> Path:
    return store(folder / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite").parent.parent.parent


def flat_file(folder: Path) -> Path:
    return flat(folder, base=OTHER)


def flat_bases(folder: Path) -> Path:
    return flat(folder).parent


def flat_library(folder: Path) -> Path:
    return flat(folder).parent.parent


def named_file(folder: Path) -> Path:
    return store(folder / "KnowledgeBase" / f"{BASE}.sqlite").parent


def data_library(folder: Path) -> Path:
    store(folder / "Data" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite")
    return folder


def bare_profile(folder: Path) -> Path:
    store(folder / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite")
    write_catalog(folder / "cherrystudio.sqlite", bases=())
    return folder


def inner_profile(folder: Path) -> Path:
    store(folder / "Data" / "KnowledgeBase" / BASE)
    write_catalog(folder / "Data" / "cherrystudio.sqlite", bases=())
    return folder


def data_folder(folder: Path) -> Path:
    return inner_profile(folder) / "Data"


PLACES = {
    lone_file: "preview-index",
    index_file: "preview-index",
    flat_file: "preview-index",
    lone_folder: "preview-library",
    index_folder: "preview-library",
    base_folder: "preview-library",
    bases_folder: "preview-library",
    flat_bases: "preview-library",
    flat_library: "preview-library",
    named_file: "preview-library",
    data_library: "preview-library",
    bare_profile: "v2-profile",
    inner_profile: "v2-profile",
    data_folder: "v2-profile",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_store_is_found_wherever_it_lies(tmp_path, place):
    source = place(tmp_path / "in")
    seen = run("inspect", source, "--json").document
    assert (seen["kind"], [base["id"] for base in seen["bases"]]) == (PLACES[place], [BASE])
    assert seen["bases"][0]["store"]["rows"] == len(ROWS)
    library = migrate(source, tmp_path / "out", *WORD)
    assert library.report["source"]["kind"] == PLACES[place]
    assert carried(library) == expected(ROWS)
    check_library(library)


@pytest.mark.parametrize("place", [lone_folder, base_folder, bases_folder, flat_library, inner_profile])
def test_a_zip_is_read_as_the_folder_that_was_packed(tmp_path, place):
    source = place(tmp_path / "in")
    inside = zipped(source.parent if place in (base_folder, bases_folder) else source, tmp_path / "in.zip")
    library = migrate(inside, tmp_path / "out", *WORD)
    assert carried(library) == expected(ROWS)
    unpacked = migrate(source, tmp_path / "out2", *WORD)
    assert library.catalog("knowledge_item") == unpacked.catalog("knowledge_item")
    assert library.index_path(BASE).read_bytes() == unpacked.index_path(BASE).read_bytes()


def test_the_file_itself_may_lie_beside_the_target(tmp_path):
    library = migrate(store(tmp_path / "old.sqlite"), tmp_path / "out", *WORD)
    assert carried(library) == expected(ROWS)


def test_a_target_in_a_source_folder_is_refused(tmp_path):
    done = run("migrate", flat_library(tmp_path), "--to", tmp_path / "KnowledgeBase" / "out", *WORD)
    assert done.status == 2
    assert "contains the other" in done.stderr


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("old.sqlite", None),
        ("old.sqlite", ""),
        ("old.sqlite", "a/b"),
        pytest.param("KnowledgeBase/CON", None, marks=pytest.mark.skipif(os.name == "nt", reason="a device there")),
        ("KnowledgeBase/catalog", None),
        ("old.sqlite", "Report"),
    ],
)
def test_a_base_without_a_usable_id_gets_one_that_follows_from_what_there_is(tmp_path, name, base):
    source = store(tmp_path / "in" / name, base=base)
    ids = []
    for out in ("out", "again"):
        done = run("migrate", source, "--to", tmp_path / out, "--json", *WORD)
        ids += [entry["id"] for entry in done.document["bases"]]
        assert done.document["totals"]["rows"]["carried"] == len(ROWS)
    assert ids[0] == ids[1]
    assert ids[0][14] == "4"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every name is text")
def test_a_base_in_a_folder_whose_name_is_no_text_is_carried(tmp_path):
    for base, name in ((BASE, b"\xff\xfe"), (OTHER, b"\xff\xff")):
        store(tmp_path / "in" / "KnowledgeBase" / base / ".cherry" / "index.sqlite")
        (tmp_path / "in" / "KnowledgeBase" / base).rename(tmp_path / "in" / "KnowledgeBase" / os.fsdecode(name))
    bases = []
    for _ in range(2):
        done = run("migrate", tmp_path / "in", "--to", tmp_path / "out", "--yes", "--json", *WORD)
        assert done.status in (0, 1), done
        # The items of both have the same ids, of which a library has each once.
        assert done.document["totals"]["rows"]["read"] == 2 * len(ROWS)
        bases.append(done.document["bases"])
    assert [base["outcome"] for base in bases[1]] == ["unchanged", "unchanged"]
    assert len({base["id"] for base in [*bases[0], *bases[1]]}) == 2


def test_forms_may_be_mixed_and_one_base_stands_once(tmp_path):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE / ".cherry" / "index.sqlite")
    store(bases / f"{BASE}.db", [Row(D, "the flat file comes second")])
    store(bases / OTHER, [Row(D, "a flat base")], base=OTHER)
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD)
    assert [base["id"] for base in library.report["bases"]] == [BASE, OTHER]
    assert carried(library) == expected(ROWS)
    assert [unit.body for unit in library.units(OTHER)] == ["a flat base"]


@pytest.mark.parametrize("seven_tables", [False, True])
def test_of_two_forms_the_one_with_rows_stands(tmp_path, seven_tables):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE / ".cherry" / "index.sqlite", [], seven_tables=seven_tables)
    store(bases / f"{BASE}.sqlite")
    assert carried(migrate(tmp_path / "in", tmp_path / "out", *WORD)) == expected(ROWS)


def test_other_files_among_the_bases_are_passed_over(tmp_path):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE)
    (bases / "knowledge_pending_delete.json").write_text("[]")
    (bases / "notes.txt").write_text("notes")
    (bases / "empty").mkdir()
    (bases / "v1base").write_bytes(b"SQLite format 3\0 but no more than that")
    with apsw.Connection(str(bases / "v1")) as db:
        db.execute("CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector)")
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD)
    assert [base["id"] for base in library.report["bases"]] == [BASE]


# --- what a store holds --------------------------------------------------------------------------------------------

WITHOUT_EXTERNAL = tuple(name for name in preview.COLUMNS if name != "external_id")
WITHOUT_METADATA = tuple(name for name in preview.COLUMNS if name != "metadata")
SHAPES: dict[str, dict[str, Any]] = {
    "as later builds write it": {},
    "without external_id": {"columns": WITHOUT_EXTERNAL},
    "without the full text": {"full_text": False},
    "with the vector index": {"vector_index": VECTOR_INDEX},
    "with the vector index and without external_id": {"vector_index": VECTOR_INDEX, "columns": WITHOUT_EXTERNAL},
    "without an id": {"columns": tuple(name for name in preview.COLUMNS if name != "id")},
    "without a collection": {"columns": tuple(name for name in preview.COLUMNS if name != "collection")},
    "with columns in another order": {"columns": tuple(reversed(preview.COLUMNS))},
    "with empty tables of v2": {"seven_tables": True},
    "with all of it": {"seven_tables": True, "vector_index": VECTOR_INDEX},
    "as UTF-16": {"before": "PRAGMA encoding = 'UTF-16le'"},
    "with large pages": {"before": "PRAGMA page_size = 65536"},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_the_table_is_carried_whole(tmp_path, shape):
    library = migrate(flat(tmp_path / "in", **SHAPES[shape]), tmp_path / "out", *WORD)
    assert carried(library) == expected(ROWS)
    assert library.base_row(BASE)["dimensions"] == 4
    check_library(library)


def test_rows_of_a_file_in_wal_mode_come_from_its_log_and_nothing_is_left_beside_it(tmp_path):
    source = flat(tmp_path / "in")
    with closing(apsw.Connection(str(source))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute(
            f"INSERT INTO {TABLE} VALUES ('x', ?, ?, 'only in the log', '{{}}', ?)", (A, BASE, vector_of("only"))
        )
        # A copy as a crash would leave it: the log has content, nobody has it open.
        copy = tmp_path / "copy" / "KnowledgeBase"
        copy.mkdir(parents=True)
        for path in source.parent.iterdir():
            if not path.name.endswith("-shm"):
                shutil.copy(path, copy / path.name)
    library = migrate(copy.parent, tmp_path / "out", *WORD)
    assert library.bodies_of(BASE, A) == [*(row.body for row in ROWS if row.item == A), "only in the log"]
    assert sorted(path.name for path in copy.iterdir()) == [BASE, f"{BASE}-wal"]


def test_an_item_is_named_by_its_external_id_else_by_its_metadata(tmp_path):
    rows = [
        Row(A, "by external id", metadata={"itemId": B, "itemType": "file", "source": "/a.md"}),
        Row(B, "by metadata, the id is null", external_id=None),
        Row(C, "by metadata, the id is blank", external_id=" \t"),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert [(unit.item, unit.body) for unit in library.units(BASE)] == [(row.item, row.body) for row in rows]


def test_rows_of_nobody_are_counted_and_not_carried(tmp_path):
    rows = [
        Row(A, "somebody's"),
        Row(None, "no id at all", external_id=None, metadata={}),
        Row(None, "metadata that is not JSON", external_id=None, metadata="{itemId:"),
        Row(None, "metadata that is no object", external_id="", metadata="[1]"),
        Row(None, "metadata that is null", external_id=None, metadata=None),
        Row(None, "an id that is a number", external_id=None, metadata={"itemId": 7}),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.skipped_rows(BASE) == {"unmapped_loader": 5}
    assert library.bodies(BASE) == ["somebody's"]


@pytest.mark.parametrize("metadata", ["{broken", "", None, "null", "[]", '"text"', b"\xff\xfe", 7])
def test_metadata_that_says_nothing_does_not_lose_the_row(tmp_path, metadata):
    rows = [Row(A, "a text", metadata=metadata)]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.bodies(BASE) == ["a text"]
    item = library.item(A)
    assert (item["type"], item["data"]) == ("file", {"source": A, "relativePath": A})


def test_metadata_is_read_as_text_and_as_a_blob(tmp_path):
    known = json.dumps({"itemId": B, "itemType": "URL", "source": "https://example.org/a"}).encode()
    library = migrate(
        flat(tmp_path / "in", Row(B, "a text", external_id=None, metadata=known)), tmp_path / "out", *WORD
    )
    assert library.item(B)["data"]["url"] == "https://example.org/a"


def test_rows_that_cannot_be_used_are_counted_by_reason(tmp_path):
    rows = [
        *rows_of(A, "one", "two", "three"),
        Row(A, "null", vector=None),
        Row(A, "empty", vector=b""),
        Row(A, "as text", vector="[0.1, 0.2]"),
        Row(A, "odd", vector=b"12345"),
        Row(A, "longer", vector=floats(1, 2, 3, 4, 5)),
        Row(B, "zero", vector=floats(0, 0, 0, 0)),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.skipped_rows(BASE) == {
        "dimension_mismatch": 1,
        "missing_vector_payload": 2,
        "unsupported_vector_encoding": 2,
    }
    assert library.bodies(BASE) == ["one", "two", "three", "zero"]
    assert library.warnings("degenerate_vector")[0]["count"] == 1
    ids = json.dumps([warning["message"] for warning in library.report["warnings"]])
    assert "00000000-0000-0000-0000-000000000004" in ids, "rows are named by their own ids"


def test_equal_texts_share_the_first_vector(tmp_path):
    rows = [Row(A, "same", vector=floats(1, 2, 3, 4)), Row(B, "same", vector=floats(4, 3, 2, 1)), Row(B, "other")]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert [unit.vector for unit in library.units(BASE) if unit.body == "same"] == [floats(1, 2, 3, 4)] * 2
    assert library.base(BASE)["index"]["embeddings"] == 2
    assert library.warnings("differing_vector")[0]["count"] == 1


def test_units_stand_in_the_order_of_rowids_whatever_their_chunk_index_says(tmp_path):
    rows = [
        Row(A, "third", more={"chunkIndex": 2}, rowid=9),
        Row(B, "between", rowid=12),
        Row(A, "first", more={"chunkIndex": 0}, rowid=40),
        Row(A, "again the first", more={"chunkIndex": 0}, rowid=41),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.bodies_of(BASE, A) == ["third", "first", "again the first"]
    assert [item["id"] for item in library.items(BASE)] == [A, B]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("id", "external_id", "metadata", "embeddings"), "without the column document"),
        (("id", "external_id", "document"), "without the column embeddings"),
        (("id",), "without the column document, embeddings"),
    ],
)
def test_a_table_without_texts_or_vectors_makes_a_failed_base(tmp_path, columns, said):
    source = flat(tmp_path / "in", columns=columns, full_text=False, base=None)
    library = migrate(source, tmp_path / "out", *WORD)
    assert (library.status, library.base(BASE)["error"]) == (1, "missing_vector_store")
    assert said in library.warnings("missing_vector_store")[0]["message"]


def test_an_empty_table_makes_a_base_without_rows(tmp_path):
    library = migrate(flat_empty(tmp_path / "in"), tmp_path / "out", *WORD)
    entry = library.base(BASE)
    assert (library.status, entry["status"], entry["dimensions"], entry["rows"]["read"]) == (0, "completed", 4, 0)
    assert library.index_path(BASE).is_file()


def flat_empty(folder: Path) -> Path:
    return store(folder / "KnowledgeBase" / BASE, [])


@pytest.mark.parametrize("shape", [{}, {"vector_index": VECTOR_INDEX}])
def test_damage_makes_a_failed_base_and_harms_no_other(tmp_path, shape):
    bases = tmp_path / "in" / "KnowledgeBase"
    broken = store(bases / BASE, [Row(A, f"{number} " + "long text " * 300) for number in range(60)], **shape)
    raw = bytearray(broken.read_bytes())
    raw[len(raw) // 2 :] = b"\xa5" * (len(raw) - len(raw) // 2)
    broken.write_bytes(raw)
    store(bases / OTHER, [Row(B, "whole")], base=OTHER)
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD)
    assert library.base(BASE)["error"] == "missing_vector_store"
    assert library.bodies(OTHER) == ["whole"]
    assert "missing_vector_store" in library.codes()


def test_a_file_that_is_cut_off_makes_a_failed_base(tmp_path):
    source = flat(tmp_path / "in", *[Row(A, f"{number} " + "long text " * 300) for number in range(60)])
    source.write_bytes(source.read_bytes()[:-5000])
    library = migrate(source.parent, tmp_path / "out", *WORD)
    assert library.base(BASE)["error"] == "missing_vector_store"
    assert "is truncated" in library.warnings("missing_vector_store")[0]["message"]


def test_a_damaged_store_without_a_model_says_both(tmp_path):
    source = flat(tmp_path / "in", *[Row(A, f"{number} " + "long text " * 300) for number in range(60)])
    source.write_bytes(source.read_bytes()[:-5000])
    raw = bytearray(source.read_bytes())
    raw[20_000:60_000] = b"\xa5" * 40_000
    source.write_bytes(raw)
    said = migrate(source.parent, tmp_path / "out").warnings("missing_embedding_model")[0]["message"]
    assert "--map-model" in said
    assert "cannot be read" in said


def test_an_index_file_that_is_no_store_is_told(tmp_path):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE / ".cherry" / "index.sqlite")
    other = bases / OTHER / ".cherry" / "index.sqlite"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD)
    assert library.base(OTHER)["error"] == "missing_vector_store"
    assert library.bodies(BASE)


# --- without a catalog ---------------------------------------------------------------------------------------------


def test_items_are_what_their_rows_say(tmp_path):
    rows = [
        *rows_of(A, "one", source="C:\\docs\\a<b>.md"),
        *rows_of(B, "two", type="url", source="https://example.org/two"),
        *rows_of(C, "three", "and more", type="note", source="Rota"),
        *rows_of(D, "four", type="sitemap", source="https://example.org/map"),
        *rows_of(preview.item_id(5), "five", type="memory", source="/x/five.md"),
        *rows_of(preview.item_id(6), "six", source="/other/five.md"),
        *rows_of(preview.item_id(7), "seven", metadata={}),
        *rows_of(preview.item_id(8), "eight", metadata={"itemType": "note"}),
        *rows_of(preview.item_id(9), "nine", metadata={"itemType": "url"}),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    found = {item["id"]: (item["type"], item["data"]) for item in library.items(BASE)}
    assert found == {
        A: ("file", {"source": "C:\\docs\\a<b>.md", "relativePath": "a_b_.md"}),
        B: ("url", {"source": "https://example.org/two", "url": "https://example.org/two", "relativePath": "two.md"}),
        C: ("note", {"source": "Rota", "content": "three\n\nand more", "relativePath": "Rota.md"}),
        D: ("url", {"source": "https://example.org/map", "url": "https://example.org/map", "relativePath": "four.md"}),
        preview.item_id(5): ("file", {"source": "/x/five.md", "relativePath": "five.md"}),
        preview.item_id(6): ("file", {"source": "/other/five.md", "relativePath": "five_1.md"}),
        preview.item_id(7): ("file", {"source": preview.item_id(7), "relativePath": preview.item_id(7)}),
        preview.item_id(8): ("note", {"source": "eight", "content": "eight", "relativePath": "eight.md"}),
        preview.item_id(9): (
            "url",
            {"source": preview.item_id(9), "url": preview.item_id(9), "relativePath": "nine.md"},
        ),
    }
    assert {item["status"] for item in library.items(BASE)} == {"completed"}
    assert {item["created_at"] for item in library.items(BASE)} == {NOW_MS}
    assert library.warnings("renamed_files")[0]["count"] == 1
    row = library.base_row(BASE)
    assert (row["name"], row["embedding_model_id"], row["created_at"]) == (BASE, MODEL, NOW_MS)
    check_library(library)


def test_a_later_row_may_say_what_the_first_did_not(tmp_path):
    rows = [
        Row(A, "one", metadata={"itemId": A}),
        Row(A, "two", metadata={"itemType": "note", "source": " "}),
        Row(A, "three", metadata={"source": "Rota", "itemType": "url"}),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.item(A)["data"] == {"source": "Rota", "content": "one\n\ntwo\n\nthree", "relativePath": "Rota.md"}


def test_a_note_holds_the_text_that_is_carried_else_all_that_there_is(tmp_path):
    rows = [
        *rows_of(A, "one", "two", type="note", source="Rota"),
        Row(A, "of another length", vector=floats(1, 2), type="note"),
        Row(B, "never embedded", vector=None, type="note", source="Lost"),
        Row(B, "nor this", vector=None, type="note", source="Lost"),
    ]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    assert library.item(A)["data"]["content"] == "one\n\ntwo"
    assert library.item(B)["data"] == {"source": "Lost", "content": "never embedded\n\nnor this"}


def test_a_long_note_is_cut_and_its_rows_are_carried_whole(tmp_path):
    bodies = [f"{number} " + "😀" * 100_000 for number in range(6)]
    rows = [Row(A, body, type="note", source="Long", vector=vector_of(body[:9])) for body in bodies]
    library = migrate(flat(tmp_path / "in", *rows), tmp_path / "out", *WORD)
    content = library.item(A)["data"]["content"]
    assert len(content.encode("utf-16-le")) // 2 in (999_999, 1_000_000)
    assert "\n\n".join(bodies).startswith(content)
    assert library.bodies(BASE) == bodies
    assert library.codes()["note_truncated"] == 1


def test_raw_files_beside_the_index_are_copied_under_the_names_of_their_sources(tmp_path):
    source = base_folder(tmp_path / "in")
    (source / "raw").mkdir()
    (source / "raw" / "plan.md").write_bytes(b"the plan itself\n")
    library = migrate(source, tmp_path / "out", *WORD)
    assert library.raw(BASE)["plan.md"] == b"the plan itself\n"
    assert library.status == 0
    (source / "raw" / "plan.md").unlink()
    poorer = migrate(source, tmp_path / "out2", *WORD)
    assert poorer.codes()["missing_upload"] == 1
    assert poorer.status == 1


def test_urls_and_notes_get_snapshots_of_exactly_their_text(tmp_path):
    library = migrate(flat(tmp_path / "in"), tmp_path / "out", *WORD)
    raw = library.raw(BASE)
    assert sorted(raw) == ["Rota.md", "The ferry.md"]
    assert raw["Rota.md"].decode().endswith("---\nRota for March\n\nMei, then Alice")


def test_without_a_model_the_base_fails_and_the_message_says_the_option(tmp_path):
    source = flat(tmp_path / "in")
    library = migrate(source, tmp_path / "out")
    assert (library.status, library.base(BASE)["error"]) == (1, "missing_embedding_model")
    assert library.skipped_rows(BASE) == {"missing_embedding_model": len(ROWS)}
    assert library.item(C)["data"]["content"] == "Rota for March\n\nMei, then Alice"
    said = library.warnings("missing_embedding_model")[0]["message"]
    option = f"--map-model {BASE}=PROVIDER::MODEL"
    assert option in said
    assert "--recreate-model PROVIDER::MODEL" in said
    mapped = migrate(source, tmp_path / "out", "--map-model", f"{BASE}=silicon::bge")
    assert carried(mapped) == expected(ROWS)
    assert [row["id"] for row in mapped.catalog("user_model")] == ["silicon::bge"]
    assert "model_option_unused" not in mapped.codes()


def test_one_recreated_model_is_that_of_every_base_without_one(tmp_path):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE)
    store(bases / OTHER, [Row(D, "other")], base=OTHER)
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD, "--map-model", f"{OTHER}=silicon::bge")
    assert library.base_row(BASE)["embedding_model_id"] == MODEL
    assert library.base_row(OTHER)["embedding_model_id"] == "silicon::bge"
    assert "model_option_unused" not in library.codes()
    two = migrate(tmp_path / "in", tmp_path / "out2", *WORD, "--recreate-model", "silicon::bge")
    assert {base["error"] for base in two.report["bases"]} == {"missing_embedding_model"}
    assert two.codes()["model_option_unused"] == 2


def test_an_item_of_two_stores_is_one_item(tmp_path):
    bases = tmp_path / "in" / "KnowledgeBase"
    store(bases / BASE, [Row(A, "first")])
    store(bases / OTHER, [Row(A, "second"), Row(B, "third")], base=OTHER)
    library = migrate(tmp_path / "in", tmp_path / "out", *WORD)
    assert library.codes()["duplicate_knowledge_item"] == 1
    assert library.skipped_rows(OTHER) == {"unmapped_loader": 1}


# --- with a catalog ------------------------------------------------------------------------------------------------


def test_a_profile_keeps_all_that_its_catalog_says(tmp_path):
    library = migrate(profile(tmp_path / "in"), tmp_path / "out")
    assert (library.status, library.codes()) == (0, Counter())
    assert carried(library) == expected(ROWS)
    row = library.base_row(BASE)
    usual = base_row()
    # How a base is searched follows from its model.
    usual = {name: value for name, value in usual.items() if name not in ("search_mode", "hybrid_alpha")}
    assert {name: row[name] for name in usual} == usual
    for item, row in zip(library.items(BASE), ITEMS, strict=True):
        data = {key: item["data"][key] for key in json.loads(row["data"])}
        assert {**item, "data": data} == {**row, "data": json.loads(row["data"])}
    assert library.raw(BASE)["plan.md"] == b"the plan itself\n"
    assert library.catalog("user_model")[0]["name"] == "Embed 3"
    assert library.catalog("user_provider")[0]["name"] == "Acme"
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"sk-secret" not in written


def test_one_base_of_a_profile_alone_is_described_by_its_catalog_too(tmp_path):
    source = profile(tmp_path / "in", bases=[base_row(OTHER, name="Other"), base_row()])
    folder = source / "Data" / "KnowledgeBase" / BASE
    for place in (folder, folder / ".cherry" / "index.sqlite"):
        library = migrate(place, tmp_path / f"out-{place.name}")
        assert [(base["id"], base["name"]) for base in library.report["bases"]] == [(BASE, "Harbour")]
        assert library.raw(BASE)["plan.md"] == b"the plan itself\n"


def test_items_without_rows_keep_their_row_and_rows_without_items_are_told(tmp_path):
    items = [*ITEMS[:1], item_row(D, "url", {"source": "https://a.example", "url": "https://a.example"})]
    library = migrate(profile(tmp_path / "in", items=items), tmp_path / "out")
    assert [(item["id"], item["status"]) for item in library.items(BASE)] == [(A, "completed"), (D, "completed")]
    assert library.skipped_rows(BASE) == {"unmapped_loader": 4}
    assert library.bodies_of(BASE, A) == [row.body for row in ROWS if row.item == A]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("status", "error", "becomes"),
    [
        ("completed", None, ("completed", None)),
        ("completed", "left over", ("completed", None)),
        ("idle", None, ("idle", None)),
        ("failed", "no network", ("failed", "no network")),
        ("failed", "indexing_interrupted", ("failed", "indexing_interrupted")),
        ("failed", " ", ("failed", "Legacy knowledge item indexing failed.")),
        *(
            (status, None, ("failed", "Legacy knowledge item indexing was interrupted and needs to be retried."))
            for status in ("processing", "reading", "embedding", "pending", "something else")
        ),
        ("embedding", "half way", ("failed", "half way")),
        (None, None, ("completed", None)),
        (USUAL, None, ("completed", None)),
    ],
)
def test_the_status_of_an_item(tmp_path, status, error, becomes):
    items = [item_row(A, "file", {"source": "/a.md", "relativePath": "plan.md"}, status=status, error=error)]
    library = migrate(profile(tmp_path / "in", items=items), tmp_path / "out")
    item = library.item(A)
    assert (item["status"], item["error"]) == becomes
    assert library.bodies_of(BASE, A) == [row.body for row in ROWS if row.item == A]


@pytest.mark.parametrize("fields", [{"status": "deleting"}, {"deleted_at": CREATED}])
def test_an_item_that_was_deleted_stays_behind(tmp_path, fields):
    items = [{**ITEMS[0], **fields}, *ITEMS[1:]]
    library = migrate(profile(tmp_path / "in", items=items), tmp_path / "out")
    assert [item["id"] for item in library.items(BASE)] == [B, C]
    assert library.report["skipped"] == {"item_deleting": 1}
    assert library.skipped_rows(BASE) == {"unmapped_loader": 3}
    assert library.status == 0


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (item_row(None, "file", {}), "knowledge_item_missing_id_or_type"),
        (item_row(D, " ", {}), "knowledge_item_missing_id_or_type"),
        (item_row(D, "memory", {}), "knowledge_item_unsupported_type"),
        (ITEMS[0], "duplicate_knowledge_item"),
    ],
)
def test_items_that_cannot_be_are_skipped_and_named(tmp_path, row, reason):
    library = migrate(profile(tmp_path / "in", items=[*ITEMS, row]), tmp_path / "out")
    assert library.report["skipped"] == {reason: 1}
    assert carried(library) == expected(ROWS)


FOLDER = preview.item_id(50)


def folder_items(status: str = "completed", **fields: Any) -> list[dict[str, Any]]:
    """Return a folder after the two files that are in it, as a catalog may list them."""
    inside = {"group_id": FOLDER}
    return [
        {**ITEMS[0], **inside, "data": json.dumps({"source": "/docs/plan.md", "relativePath": "docs/plan.md"})},
        item_row(B, "file", {"source": "/docs/b.md", "relativePath": B}, **inside),
        item_row(FOLDER, "directory", {"source": "/docs", "relativePath": "docs"}, status=status, **fields),
        ITEMS[2],
    ]


def test_a_folder_and_its_files_stay_together(tmp_path):
    source = profile(tmp_path / "in", items=folder_items())
    raw = source / "Data" / "KnowledgeBase" / BASE / "raw"
    (raw / "docs").mkdir()
    (raw / "plan.md").rename(raw / "docs" / "plan.md")
    library = migrate(source, tmp_path / "out")
    found = [(item["id"], item["group_id"], item["status"]) for item in library.items(BASE)]
    assert found == [
        (FOLDER, None, "completed"),
        (A, FOLDER, "completed"),
        (B, FOLDER, "completed"),
        (C, None, "completed"),
    ]
    copied = library.folder(BASE) / "raw" / "docs" / "plan.md"
    assert copied.read_text("utf-8") == "the plan itself\n"
    assert library.item(B)["data"]["relativePath"] == B
    assert carried(library) == expected(ROWS)
    assert library.codes() == Counter()


@pytest.mark.parametrize(
    ("status", "error", "becomes"),
    [
        ("processing", None, "completed"),
        ("preparing", None, "failed"),
        ("failed", "gone", "failed"),
        ("idle", None, "idle"),
    ],
)
def test_the_status_of_a_folder_follows_from_its_files_where_that_is_its_rule(tmp_path, status, error, becomes):
    library = migrate(profile(tmp_path / "in", items=folder_items(status, error=error)), tmp_path / "out")
    assert library.item(FOLDER)["status"] == becomes
    assert library.codes()["directory_not_migrated"] == 0


@pytest.mark.parametrize("group", [preview.item_id(99), A, B])
def test_a_group_that_is_no_folder_is_left_out_and_told(tmp_path, group):
    items = [{**ITEMS[0], "group_id": group}, *ITEMS[1:]]
    library = migrate(profile(tmp_path / "in", items=items), tmp_path / "out")
    assert library.item(A)["group_id"] is None
    assert [warning["item"] for warning in library.warnings("dropped_field")] == [A]


def test_folders_in_a_circle_are_opened(tmp_path):
    one, two = preview.item_id(60), preview.item_id(61)
    items = [
        item_row(one, "directory", {"source": "/one"}, group_id=two),
        item_row(two, "directory", {"source": "/two"}, group_id=one),
        {**ITEMS[0], "group_id": one},
    ]
    library = migrate(profile(tmp_path / "in", items=items), tmp_path / "out")
    groups = {item["id"]: item["group_id"] for item in library.items(BASE)}
    assert (groups[A], list(groups.values()).count(None)) == (one, 1)


MENDED = {
    "an older file": ("file", {"file": {"path": "/x/plan.md", "name": "plan.md"}}, {"source": "/x/plan.md"}),
    "a file without a source": ("file", {"relativePath": "plan.md"}, {"source": "/home/alice/docs/plan.md"}),
    "a file without a path": ("file", {"source": "/x/plan.md"}, {"relativePath": "plan.md"}),
    "a file with a path upwards": ("file", {"source": "/x/plan.md", "relativePath": "../x"}, {"relativePath": "x"}),
    "a file in the index's folder": (
        "file",
        {"source": "/x", "relativePath": ".cherry/a.md"},
        {"relativePath": "a.md"},
    ),
    "a url without a source": ("url", {"url": "https://x.example"}, {"source": "https://x.example"}),
    "a url without a url": ("url", {"source": "https://x.example"}, {"url": "https://x.example"}),
    "a note without a source": ("note", {"content": "a text"}, {"source": "/home/alice/docs/plan.md"}),
    "a note without a text": (
        "note",
        {"source": "Rota"},
        {"content": "The harbour lamp 😀\n\nis lit at dusk\n\nshared text"},
    ),
    "a folder by its path": ("directory", {"path": "/docs"}, {"source": "/docs"}),
    "not JSON": ("file", "{broken", {"source": "/home/alice/docs/plan.md", "relativePath": "plan.md"}),
    "nothing": ("file", None, {"source": "/home/alice/docs/plan.md", "relativePath": "plan.md"}),
    "a list": ("url", [1, 2], {"url": "/home/alice/docs/plan.md"}),
    "JSON in JSON": ("url", json.dumps(json.dumps({"url": "https://x.example"})), {"url": "https://x.example"}),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", MENDED)
def test_data_of_another_shape_is_mended_where_it_can_be(tmp_path, case):
    kind, data, wanted = MENDED[case]
    library = migrate(profile(tmp_path / "in", items=[item_row(A, kind, data)]), tmp_path / "out")
    found = library.item(A)["data"]
    assert {key: found[key] for key in wanted} == wanted
    assert all(isinstance(value, str) for value in found.values())
    if case != "JSON in JSON":
        assert library.codes()["item_data_mended"] == 1


def test_data_that_nothing_can_mend_is_kept_and_named(tmp_path):
    rows = [Row(A, "a text", metadata={})]
    items = [item_row(A, "url", {}), item_row(B, "directory", {}), item_row(C, "note", {"source": ""})]
    library = migrate(profile(tmp_path / "in", rows, items=items), tmp_path / "out")
    assert sorted(warning["item"] for warning in library.warnings("item_data_incomplete")) == [A, B, C]
    assert library.bodies_of(BASE, A) == ["a text"]
    assert library.status == 1


def test_fields_that_v2_has_no_place_for_are_in_the_report(tmp_path):
    data = {"source": "/a", "relativePath": "plan.md", "size": 7, "indexedRelativePath": "plan.pdf.md", "tag": "x"}
    bases = [base_row(group_id="my group")]
    library = migrate(profile(tmp_path / "in", bases=bases, items=[item_row(A, "file", data)]), tmp_path / "out")
    assert library.item(A)["data"] == {"source": "/a", "relativePath": "plan.md", "tag": "x"}
    said = {warning["message"] for warning in library.warnings("dropped_field")}
    assert said == {"size: 7", "indexedRelativePath: plan.pdf.md", "group: my group"}
    assert library.status == 0


def test_snapshots_of_the_source_are_copied_and_missing_ones_are_made(tmp_path):
    urls = [
        item_row(A, "url", {"source": "https://a.example", "url": "https://a.example", "relativePath": "page.md"}),
        item_row(B, "url", {"source": "https://b.example", "url": "https://b.example", "relativePath": "gone.md"}),
    ]
    source = profile(tmp_path / "in", items=urls)
    raw = source / "Data" / "KnowledgeBase" / BASE / "raw"
    (raw / "page.md").write_text("as the application wrote it")
    library = migrate(source, tmp_path / "out")
    assert library.item(A)["data"]["relativePath"] == "page.md"
    assert library.raw(BASE)["page.md"] == b"as the application wrote it"
    assert library.item(B)["data"]["relativePath"] == "The ferry.md"
    assert "The ferry.md" in library.raw(BASE)


def test_two_items_never_share_a_path(tmp_path):
    names = ("plan.md", "PLAN.md", "sub/plan.md", "sub/PLAN.md", "sub", "plan.md/deep.md")
    items = [
        item_row(preview.item_id(number), "file", {"source": f"/{name}", "relativePath": name})
        for number, name in enumerate(names, start=1)
    ]
    rows = [Row(item["id"], f"text of {item['id']}") for item in items]
    library = migrate(profile(tmp_path / "in", rows, items=items), tmp_path / "out")
    paths = [item["data"]["relativePath"] for item in library.items(BASE)]
    assert paths[0] == "plan.md"
    assert paths[2] == "sub/plan.md"
    assert len({path.casefold() for path in paths}) == len(paths)
    assert len(library.bodies(BASE)) == len(names)


# --- models of a catalog -------------------------------------------------------------------------------------------


def test_a_base_of_words_alone_fails_for_its_model_until_one_is_named(tmp_path):
    bases = [base_row(embedding_model_id=None, dimensions=None, search_mode="bm25")]
    source = profile(tmp_path / "in", bases=bases)
    failed = migrate(source, tmp_path / "out")
    assert failed.base(BASE)["error"] == "missing_embedding_model"
    assert f"--map-model {BASE}=PROVIDER::MODEL" in failed.warnings("missing_embedding_model")[0]["message"]
    for name, option in {"a": ("--map-model", f"{BASE}={MODEL}"), "b": ("--recreate-model", "silicon::bge")}.items():
        library = migrate(source, tmp_path / name, *option)
        assert carried(library) == expected(ROWS)
        row = library.base_row(BASE)
        assert row["dimensions"] == 4


def test_a_recreated_model_that_a_base_names_is_that_base_s_alone(tmp_path):
    bases = [base_row(embedding_model_id="gone::model"), base_row(OTHER, embedding_model_id=None, name="None")]
    source = profile(tmp_path / "in", bases=bases)
    store(source / "Data" / "KnowledgeBase" / OTHER / ".cherry" / "index.sqlite", [Row(D, "other")], base=OTHER)
    library = migrate(source, tmp_path / "out", "--recreate-model", "gone::model")
    assert library.base_row(BASE)["embedding_model_id"] == "gone::model"
    assert library.base(OTHER)["error"] == "missing_embedding_model"


def test_a_model_that_dangles_fails_the_base_unless_its_provider_is_there(tmp_path):
    gone = migrate(profile(tmp_path / "a", bases=[base_row(embedding_model_id="gone::model")]), tmp_path / "out-a")
    assert gone.base(BASE)["error"] == "missing_embedding_model"
    assert "--recreate-model gone::model" in gone.warnings("missing_embedding_model")[0]["message"]
    kept = migrate(profile(tmp_path / "b", bases=[base_row(embedding_model_id="acme::other")]), tmp_path / "out-b")
    assert kept.base_row(BASE)["embedding_model_id"] == "acme::other"
    assert kept.codes() == Counter({"model_recreated": 1})


def test_the_rerank_model_is_kept_where_it_exists(tmp_path):
    rerank = {**preview.MODEL_ROW, "id": "acme::rerank", "model_id": "rerank", "name": "Rerank"}
    there = profile(
        tmp_path / "a", bases=[base_row(rerank_model_id="acme::rerank")], models=[preview.MODEL_ROW, rerank]
    )
    library = migrate(there, tmp_path / "out-a")
    assert library.base_row(BASE)["rerank_model_id"] == "acme::rerank"
    assert [row["id"] for row in library.catalog("user_model")] == [MODEL, "acme::rerank"]
    gone = migrate(profile(tmp_path / "b", bases=[base_row(rerank_model_id="acme::rerank")]), tmp_path / "out-b")
    assert gone.base_row(BASE)["rerank_model_id"] is None
    assert gone.codes() == Counter({"rerank_model_cleared": 1})


def test_models_with_ids_of_another_form_are_found_by_their_rows(tmp_path):
    models = [{"id": "7", "provider_id": "acme", "model_id": "embed-3"}]
    library = migrate(
        profile(tmp_path / "in", bases=[base_row(embedding_model_id="7")], models=models), tmp_path / "out"
    )
    assert library.base_row(BASE)["embedding_model_id"] == MODEL
    assert carried(library) == expected(ROWS)


def test_without_tables_of_models_every_model_counts_as_there(tmp_path):
    library = migrate(profile(tmp_path / "in", models=None, providers=None), tmp_path / "out")
    assert library.base_row(BASE)["embedding_model_id"] == MODEL
    assert library.codes() == Counter({"models_unknown": 1})


# --- catalogs of other builds --------------------------------------------------------------------------------------


def test_columns_that_an_older_build_did_not_have_are_as_if_unset(tmp_path):
    bases = [{"id": BASE, "name": " Harbour ", "embedding_model_id": MODEL}]
    items = [{name: item[name] for name in ("id", "base_id", "type", "data")} for item in ITEMS]
    models = [{"id": MODEL}]
    library = migrate(profile(tmp_path / "in", bases=bases, items=items, models=models, providers=[]), tmp_path / "out")
    row = library.base_row(BASE)
    assert (row["name"], row["chunk_size"], row["chunk_overlap"]) == ("Harbour", 1024, 200)
    assert (row["created_at"], row["dimensions"]) == (NOW_MS, 4)
    assert carried(library) == expected(ROWS)


def test_settings_that_are_not_valid_are_replaced_and_named(tmp_path):
    odd = base_row(chunk_size=0, chunk_overlap=-1, threshold=7, search_mode="magic", hybrid_alpha=2, chunk_strategy="x")
    library = migrate(profile(tmp_path / "in", bases=[{**odd, "name": " "}]), tmp_path / "out")
    row = library.base_row(BASE)
    assert (row["chunk_size"], row["threshold"], row["chunk_strategy"]) == (1024, None, "structured")
    said = library.warnings("invalid_base_config")[0]["message"]
    for name in ("chunk_size", "chunk_overlap", "threshold", "chunk_strategy"):
        assert name in said
    assert library.codes()["blank_base_name"] == 1
    assert row["name"] == BASE


def test_a_base_that_had_failed_is_carried_where_its_vectors_can_be(tmp_path):
    bases = [base_row(status="failed", error="missing_vector_store", dimensions=None)]
    library = migrate(profile(tmp_path / "in", bases=bases), tmp_path / "out")
    assert carried(library) == expected(ROWS)
    assert "missing_vector_store" in library.warnings("dropped_field")[0]["message"]


def test_without_a_table_of_items_rows_tell_them(tmp_path):
    library = migrate(profile(tmp_path / "in", items=None), tmp_path / "out")
    assert library.base_row(BASE)["name"] == "Harbour"
    assert carried(library) == expected(ROWS)
    assert library.codes()["catalog_unreadable"] == 1


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xa5" * 4000])
def test_a_catalog_that_cannot_be_read_is_told_and_stops_nothing(tmp_path, content):
    source = profile(tmp_path / "in")
    (source / "cherrystudio.sqlite").write_bytes(content)
    library = migrate(source, tmp_path / "out", *WORD)
    assert carried(library) == expected(ROWS)
    assert library.codes()["catalog_unreadable"] == 1
    assert run("inspect", source, "--json").status == 0


def test_a_base_that_no_catalog_lists_is_told_by_its_rows(tmp_path):
    source = profile(tmp_path / "in")
    store(source / "Data" / "KnowledgeBase" / OTHER, [Row(D, "unlisted")], base=OTHER)
    library = migrate(source, tmp_path / "out", *WORD)
    assert [(base["id"], base["name"]) for base in library.report["bases"]] == [(BASE, "Harbour"), (OTHER, OTHER)]
    assert library.bodies(OTHER) == ["unlisted"]


def test_a_listed_base_without_a_store_is_migrated_as_failed(tmp_path):
    source = profile(tmp_path / "in", bases=[base_row(OTHER, name="Gone"), base_row()])
    library = migrate(source, tmp_path / "out")
    assert (library.base(OTHER)["error"], library.base(BASE)["error"]) == ("missing_vector_store", None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"id": None}, "invalid_knowledge_base_identity"),
        ({"id": " "}, "invalid_knowledge_base_identity"),
        (base_row(), "duplicate_knowledge_base"),
    ],
)
def test_rows_of_bases_that_cannot_be_are_skipped_and_named(tmp_path, row, reason):
    library = migrate(profile(tmp_path / "in", bases=[base_row(), row]), tmp_path / "out")
    assert library.report["skipped"] == {reason: 1}
    assert carried(library) == expected(ROWS)


# --- mixed with v2 -------------------------------------------------------------------------------------------------


def mixed(folder: Path, **catalog: Any) -> Path:
    profile(folder, bases=[base_row(OTHER, name="Done"), base_row()], **catalog)
    current_store(folder / "Data" / "KnowledgeBase" / OTHER / ".cherry" / "index.sqlite", OTHER)
    return folder


def test_bases_in_the_v2_layout_are_skipped_by_name_and_the_others_carried(tmp_path):
    library = migrate(mixed(tmp_path / "in"), tmp_path / "out")
    assert [base["id"] for base in library.report["bases"]] == [BASE]
    assert library.report["skipped"] == {"current_layout": 1}
    assert [warning["base"] for warning in library.warnings("current_layout")] == [OTHER]
    assert (library.status, library.report["source"]["kind"]) == (0, "v2-profile")
    assert carried(library) == expected(ROWS)


def test_a_mixed_library_without_a_catalog(tmp_path):
    source = mixed(tmp_path / "in")
    (source / "cherrystudio.sqlite").unlink()
    library = migrate(source / "Data" / "KnowledgeBase", tmp_path / "out", *WORD)
    assert (library.report["source"]["kind"], library.report["skipped"]) == ("library", {"current_layout": 1})
    assert carried(library) == expected(ROWS)


def test_inspect_shows_both_layouts_of_a_mixed_profile(tmp_path):
    source = mixed(tmp_path / "in")
    (source / "Data" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite").rename(
        source / "Data" / "KnowledgeBase" / f"{BASE}.sqlite"
    )
    said = run("inspect", source, "--json").document
    stores = {base["name"]: base["store"] for base in said["bases"]}
    assert stores["Done"]["units"] == 1
    assert stores["Harbour"]["rows"] == len(ROWS)
    assert said["health"]["coverage"] == 1
    assert "does not see its rows" in run("inspect", source).stdout


def test_a_failed_base_of_v2_without_a_store_needs_no_migration(tmp_path):
    source = mixed(tmp_path / "in")
    with apsw.Connection(str(source / "cherrystudio.sqlite")) as db:
        db.execute("INSERT INTO knowledge_base (id, name, status, error) VALUES ('gone', 'Gone', 'failed', 'x')")
    db.close()
    library = migrate(source, tmp_path / "out")
    assert library.report["skipped"] == {"current_layout": 2}


def test_rows_beside_a_filled_v2_index_stay_where_they_are_and_are_told(tmp_path):
    source = mixed(tmp_path / "in")
    path = source / "Data" / "KnowledgeBase" / OTHER / ".cherry" / "index.sqlite"
    with apsw.Connection(str(path)) as db:
        db.execute(f"CREATE TABLE {TABLE} (id, external_id, document, metadata, embeddings)")
        db.execute(f"INSERT INTO {TABLE} VALUES ('x', ?, 'old', '{{}}', ?)", (A, vector_of("old")))
    db.close()
    library = migrate(source, tmp_path / "out")
    assert library.report["skipped"] == {"current_layout": 1}
    assert "unused rows of a preview build" in library.warnings("current_layout")[0]["message"]


@pytest.mark.parametrize("kind", ["library", "base", "index", "profile", "zip"])
def test_where_nothing_is_a_preview_build_s_the_refusal_stays(tmp_path, kind):
    folder = tmp_path / "in" / "KnowledgeBase" / BASE
    path = current_store(folder / ".cherry" / "index.sqlite", BASE)
    if kind in ("profile", "zip"):
        write_catalog(tmp_path / "in" / "cherrystudio.sqlite")
    source = {"library": tmp_path / "in", "base": folder, "index": path}.get(kind, tmp_path / "in")
    if kind == "zip":
        source = zipped(source, tmp_path / "in.zip")
    done = run("migrate", source, "--to", tmp_path / "out", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceNotMigratable")
    assert "in the v2 layout already" in done.document["error"]["message"]


def test_a_file_with_an_empty_preview_table_beside_filled_v2_tables_is_v2(tmp_path):
    path = current_store(tmp_path / "in" / BASE / ".cherry" / "index.sqlite", BASE)
    with apsw.Connection(str(path)) as db:
        db.execute(f"CREATE TABLE {TABLE} (id, document, embeddings)")
    db.close()
    assert run("inspect", path, "--json").document["kind"] == "index"
    done = run("migrate", path, "--to", tmp_path / "out", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "SourceNotMigratable")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_said_to_be_one_and_is_none_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    done = run("migrate", tmp_path / "in", "--to", tmp_path / "out", "--kind", "preview-library")
    assert done.status == 2
    assert "it does not contain a library of a preview build" in done.stderr


# --- the stages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [profile, flat_library, lone_file], ids=lambda make: make.__name__)
def test_a_second_run_changes_nothing(tmp_path, make):
    source = make(tmp_path / "in")
    migrate(source, tmp_path / "out", *WORD)
    before = snapshot(tmp_path / "out")
    again = migrate(source, tmp_path / "out", *WORD)
    assert [base["outcome"] for base in again.report["bases"]] == ["unchanged"]
    kept = {name: state for name, state in before.items() if not name.startswith(".regraft")}
    assert {name: state for name, state in snapshot(tmp_path / "out").items() if name in kept} == kept


def test_a_changed_row_or_catalog_is_carried_anew(tmp_path):
    source = profile(tmp_path / "in")
    migrate(source, tmp_path / "out")
    with apsw.Connection(str(source / "Data" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite")) as db:
        db.execute(f"UPDATE {TABLE} SET embeddings = ? WHERE document = 'is lit at dusk'", (floats(4, 3, 2, 1),))
    db.close()
    library = migrate(source, tmp_path / "out")
    assert library.base(BASE)["outcome"] == "written"
    assert floats(4, 3, 2, 1) in {unit.vector for unit in library.units(BASE)}
    with apsw.Connection(str(source / "cherrystudio.sqlite")) as db:
        db.execute("UPDATE knowledge_base SET name = 'Port'")
    db.close()
    assert migrate(source, tmp_path / "out").base_row(BASE)["name"] == "Port"


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path):
    source = profile(tmp_path / "in")
    planned = run("migrate", source, "--to", tmp_path / "out", "--dry-run", "--json").document
    assert not (tmp_path / "out").exists()
    library = migrate(source, tmp_path / "out")
    assert planned["bases"][0]["rows"] == library.rows(BASE)
    assert planned["ids"] == library.report["ids"]


@pytest.mark.thorough
def test_one_base_of_several_and_several_at_once_give_the_same(tmp_path):
    source = profile(tmp_path / "in", bases=[base_row(OTHER, name="Other"), base_row()])
    rows = [Row(preview.item_id(70 + number), f"text {number}") for number in range(40)]
    items = [item_row(row.item, "file", {"source": "/a", "relativePath": row.item}, base_id=OTHER) for row in rows]
    (source / "cherrystudio.sqlite").unlink()
    write_catalog(source / "cherrystudio.sqlite", [base_row(OTHER, name="Other"), base_row()], [*items, *ITEMS])
    store(source / "Data" / "KnowledgeBase" / OTHER, rows, base=OTHER)
    both = migrate(source, tmp_path / "both", "--jobs", "2")
    assert [base["id"] for base in both.report["bases"]] == [OTHER, BASE]
    one = migrate(source, tmp_path / "one", "--base", BASE)
    assert [base["id"] for base in one.report["bases"]] == [BASE]
    assert one.index_path(BASE).read_bytes() == both.index_path(BASE).read_bytes()


def test_a_profile_whose_application_runs_is_left_alone_unless_allowed(tmp_path, monkeypatch):
    source = profile(tmp_path / "in")
    monkeypatch.setattr("regraft.formats.cherry_v1.profile.detect_running_app", lambda _: "process 7")
    done = run("migrate", source, "--to", tmp_path / "out", "--json")
    assert (done.status, done.document["error"]["code"]) == (2, "ApplicationRunning")
    library = migrate(source, tmp_path / "out", "--while-running")
    assert library.codes() == Counter({"application_running": 1})
    assert carried(library) == expected(ROWS)


def test_an_item_that_another_base_of_the_target_has_stops_the_run_before_it_writes(tmp_path):
    migrate(flat(tmp_path / "in"), tmp_path / "out", *WORD)
    before = snapshot(tmp_path / "out" / "KnowledgeBase")
    again = store(tmp_path / "in2" / "KnowledgeBase" / OTHER, base=OTHER)
    for more in ((), ("--dry-run",)):
        done = run("migrate", again, "--to", tmp_path / "out", "--json", *WORD, *more)
        assert (done.status, done.document["error"]["code"]) == (2, "TargetHasItem")
        assert A in done.document["error"]["message"]
    assert snapshot(tmp_path / "out" / "KnowledgeBase") == before
    assert migrate(flat(tmp_path / "in", *ROWS[:2]), tmp_path / "out", *WORD).base(BASE)["outcome"] == "written"


VECTORS = {
    "usable": vector_of("usable"),
    "other": floats(4, 3, 2, 1),
    "longer": floats(1, 2, 3, 4, 5),
    "null": None,
    "text": "[1, 2]",
}


@pytest.mark.thorough
@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C, None]),
            st.sampled_from(["file", "url", "note", None]),
            st.text(max_size=12) | st.sampled_from(["shared", "😀 shared", ""]),
            st.sampled_from([*VECTORS]),
        ),
        max_size=14,
    ),
    st.booleans(),
)
def test_whatever_rows_there_are_the_books_balance_and_vectors_are_what_they_were(rows, trap):
    made = [
        Row(item, body, type=kind, external_id=item, metadata={"itemType": kind}, vector=VECTORS[vector])
        for item, kind, body, vector in rows
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = migrate(
            store(
                folder / "in" / "KnowledgeBase" / BASE, made, full_text=False, vector_index=VECTOR_INDEX if trap else ""
            ),
            folder / "out",
            *WORD,
        )
        found = library.rows(BASE)
        lengths = Counter(len(row.vector) for row in made if isinstance(row.vector, bytes))
        length = max(lengths, key=lengths.__getitem__) if lengths else None
        fitting = [row for row in made if row.item and isinstance(row.vector, bytes) and len(row.vector) == length]
        assert (found["read"], found["carried"]) == (len(made), len(fitting))
        if library.base(BASE)["status"] == "completed":
            assert carried(library) == expected(fitting)
            check_library(library)


# --- golden --------------------------------------------------------------------------------------------------------


def golden_rows() -> list[tuple[str, str, bytes]]:
    with sqlite.open_readonly(REAL / "index.sqlite") as db:
        sql = f"SELECT external_id, document, embeddings FROM {TABLE} NOT INDEXED ORDER BY rowid"
        return [(str(item), str(body), bytes(vector)) for item, body, vector in db.execute(sql)]


@golden
@pytest.mark.parametrize("name", ["", "index.sqlite"], ids=["folder", "file"])
def test_golden_every_vector_byte_for_byte(tmp_path, name):
    manifest = json.loads((REAL / "manifest.json").read_text("utf-8"))
    library = migrate(REAL / name, tmp_path / "out", "--recreate-model", MODEL)
    base = manifest["baseId"]
    rows = golden_rows()
    first = {}
    for _, body, vector in rows:
        first.setdefault(body, vector)
    found = [(unit.item, unit.body, unit.vector) for unit in library.units(base)]
    assert found == [(item, body, first[body]) for item, body, _ in rows]
    with_rows = [item for item in manifest["items"] if item["chunks"]]
    items = library.items(base)
    assert [(item["id"], item["type"], item["data"]["source"]) for item in items] == [
        (item["itemId"], item["itemType"], item["source"]) for item in with_rows
    ]
    counts = Counter(unit.item for unit in library.units(base))
    assert counts == {item["itemId"]: item["chunks"] for item in with_rows}
    assert library.base_row(base)["dimensions"] == manifest["dims"]
    check_library(library)


@golden
def test_golden_with_the_trap_of_early_builds(tmp_path):
    source = tmp_path / "in" / "KnowledgeBase" / "copy.sqlite"
    source.parent.mkdir(parents=True)
    shutil.copyfile(REAL / "index.sqlite", source)
    with apsw.Connection(str(source)) as db:
        preview.set_trap(db, VECTOR_INDEX)
    db.close()
    assert query(source, f"SELECT count(*) FROM {TABLE}") == 0
    library = migrate(source, tmp_path / "out", "--recreate-model", MODEL)
    assert library.rows("copy")["carried"] == len(golden_rows()) == 48


@golden
def test_golden_is_described_as_what_it_is():
    found = run("inspect", REAL, "--json").document["bases"][0]
    digest = hashlib.sha256((REAL / "index.sqlite").read_bytes()).hexdigest()
    assert (found["store"]["rows"], found["store"]["dimensions"]) == (48, 32)
    assert found["items"] == {"file": 3, "note": 3, "url": 2}
    assert hashlib.sha256((REAL / "index.sqlite").read_bytes()).hexdigest() == digest
