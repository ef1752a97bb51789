"""Units as a Parquet file and back: nothing is lost on the way, other tools read it, and damage is one line."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import pytest
from extras import needs, optional
from faults import files_of, said, untouched
from harness import GOLDEN, NOW, REPO, Outcome, run, snapshot
from harness import golden as golden_data
from hypothesis import given
from hypothesis import strategies as st
from parquet_bases import BASE, built, indexes_of, tables_of, there_and_back
from tree_damage import one_cell_less
from v1 import RawText, Row, base, dicts, file, floats, note, opened, sha, vector_of
from v1 import carried as migrated

from migrators import parquet as importing
from regraft.disk import durable, sqlite
from regraft.formats.parquet import unit_file
from regraft.formats.parquet.unit_file import FileMetadata, UnitRow
from regraft.ledger import ledger

pa, pq = optional("pyarrow"), optional("pyarrow.parquet")
pytestmark = needs("parquet")

SAMPLE = REPO / "sample_v1" / "cherry-studio.202503141200.zip"

CATALOG = ("knowledge_base", "knowledge_item", "user_model", "user_provider")


def catalog_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return bases and items as they are, models and providers without the time of the run."""
    with opened(path) as db:
        rows = {table: dicts(db, f"SELECT * FROM {table} ORDER BY rowid") for table in CATALOG}
    for table in CATALOG[2:]:
        for row in rows[table]:
            del row["created_at"], row["updated_at"]
    return rows


def refused(outcome: Outcome, *words: str, status: int = 2) -> None:
    assert outcome.status == status, outcome.stdout
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr


# --- round trips -----------------------------------------------------------------------------------------------------


def test_a_migrated_library_comes_back_equal(tmp_path):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library, "--now", NOW)
    back, exported, imported = there_and_back(tmp_path, library)
    assert indexes_of(back) == indexes_of(library)
    assert catalog_of(back / "catalog.sqlite") == catalog_of(library / "catalog.sqlite")
    carried = [one["rows"]["carried"] for one in exported["bases"]]
    assert sum(carried) == 76
    assert [one["rows"] for one in imported["bases"]] == [
        {"read": count, "carried": count, "skipped": {}} for count in carried
    ]
    assert run("inspect", back, "--json").document["health"]["coverage"] == 1


@pytest.mark.parametrize("case", ["basic", "directory", "unicode"])
def test_a_golden_migration_comes_back_equal(tmp_path, golden, case):
    library = tmp_path / "library"
    run("migrate", golden(case) / "v1", "--to", library, "--now", NOW)
    back, _, _ = there_and_back(tmp_path, library)
    assert indexes_of(library)
    assert indexes_of(back) == indexes_of(library)
    assert catalog_of(back / "catalog.sqlite") == catalog_of(library / "catalog.sqlite")


@golden_data
@pytest.mark.parametrize("case", ["profile_upgraded", "profile_stranded"])
def test_what_the_application_wrote_comes_back_equal(tmp_path, case):
    back, _, _ = there_and_back(tmp_path, GOLDEN / case)
    assert indexes_of(GOLDEN / case)
    assert indexes_of(back) == indexes_of(GOLDEN / case)
    with opened(GOLDEN / case / "cherrystudio.sqlite") as theirs, opened(back / "catalog.sqlite") as ours:
        for table in ("knowledge_base", "knowledge_item"):
            names = [row[1] for row in ours.execute(f"PRAGMA table_info('{table}')")]
            query = f"SELECT {', '.join(names)} FROM {table} ORDER BY id"
            assert dicts(ours, query) == dicts(theirs, query)


@golden_data
def test_an_index_of_version_1_comes_back_in_version_2(tmp_path):
    source = GOLDEN / "index_v1" / "restored.sqlite"
    back, exported, _ = there_and_back(tmp_path, source)
    with sqlite.open_readonly(source) as db:
        bodies = db.execute("SELECT text FROM search_text ORDER BY rowid").fetchall()
        base_id = db.execute("SELECT base_id FROM meta").get
    after = indexes_of(back)[base_id]
    assert [(row[4],) for row in sorted(after["search_text"], key=lambda row: row[6])] == bodies
    assert after["meta"] == [(1, 2, base_id)]
    assert exported["bases"][0]["vectors"] == len(bodies)


#: Any text that UTF-8 can hold, with much of what goes wrong: NUL, astral characters, the separator itself.
TEXTS = st.text(
    st.one_of(st.sampled_from("\0\n🎉\ufeff\uffff "), st.characters(exclude_categories=["Cs"])), max_size=12
)


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from(["one", "two", "three"]), st.lists(TEXTS, min_size=1, max_size=5), min_size=1))
def test_any_texts_come_back(tmp_path_factory, materials):
    folder = tmp_path_factory.mktemp("texts")
    source = built(folder, materials)
    back, _, imported = there_and_back(folder, source)
    assert indexes_of(back) == {BASE: tables_of(source)}
    assert imported["bases"][0]["remade"] == 0


VECTORS = st.one_of(st.none(), st.binary(min_size=12, max_size=12))
WHOLE = st.integers(0, 2**62)


@given(
    st.lists(
        st.builds(
            UnitRow,
            **{name: st.none() | (TEXTS if kind == "string" else WHOLE) for name, kind in unit_file.COLUMNS.items()},
            vector=VECTORS,
        )
    ),
    st.integers(1, 4),
)
def test_any_rows_and_any_float_come_back_bit_for_bit(tmp_path_factory, rows, group):
    """Four random bytes are any float: numbers, denormals, infinities, NaNs with a payload."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_file, "GROUP_ROWS", group)
        with unit_file.write_units(path, FileMetadata(1, "v2", 3, [])) as target:
            for row in rows:
                target.add(row)
    assert list(unit_file.read_rows(path)) == rows


def test_more_rows_than_bytes_can_hold_are_refused(tmp_path):
    """Rows of nothing take no room in a file, and as long to read as any."""
    path = tmp_path / "units.parquet"
    schema = unit_file.make_schema(pa, FileMetadata(1, "v2", None, []))
    nothing = [pa.nulls(200_000, field.type) for field in schema]
    pq.write_table(pa.table(nothing, schema=schema), path)
    assert path.stat().st_size < 200_000 / unit_file.ROWS_PER_BYTE
    refused(
        run("import", path, "--to", tmp_path / "back"),
        "it has 200,000 rows in",
        "more than a file of units can contain",
    )
    assert [found.name for found in tmp_path.iterdir()] == ["units.parquet"]


def test_nans_keep_their_payload(tmp_path):
    odd = [struct.pack("<3I", 0x7FC00000 + number, 0x7F800001, 0xFFC0BEEF) for number in range(300)]
    with unit_file.write_units(tmp_path / "nan.parquet", FileMetadata(1, "v2", 3, [])) as target:
        for vector in odd:
            target.add(UnitRow(*[None] * len(unit_file.COLUMNS), vector))
    assert [row.vector for row in unit_file.read_rows(tmp_path / "nan.parquet")] == odd


def own_cut(source: Path, text: str, cuts: list[tuple[int, int]]) -> None:
    """Give the only material of an index a content of its own, cut at these offsets (UTF-16 units)."""
    coded = text.encode("utf-16-le")
    bodies = [coded[2 * start : 2 * end].decode("utf-16-le") for start, end in cuts]
    # As the application would: with the triggers that keep full text in step.
    with closing(apsw.Connection(str(source))) as db:
        db.execute("DELETE FROM search_text; DELETE FROM search_unit; DELETE FROM embedding;")
        db.execute("INSERT INTO content VALUES (?, ?, 1)", (sha(text), text))
        db.execute("UPDATE material SET current_content_hash = ?", (sha(text),))
        db.execute("DELETE FROM content WHERE content_hash <> ?", (sha(text),))
        for number, (body, (start, end)) in enumerate(zip(bodies, cuts, strict=True)):
            unit = sha(f"one {sha(text)} chunk {number} {start} {end}")
            db.execute(
                "INSERT INTO search_unit VALUES (?, 'one', ?, 'chunk', ?, 'A title', ?, ?, '{\"page\":1}', 1)",
                (unit, sha(text), number, start, end),
            )
            db.execute(
                "INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', ?, ?, NULL, 1)",
                (sha(f"search_unit {unit} body"), unit, body, sha(body)),
            )
            db.execute("INSERT OR IGNORE INTO embedding VALUES (?, ?, 1)", (sha(body), vector_of(body)))


@pytest.mark.parametrize(
    "cuts",
    [[(0, 3), (3, 9)], [(0, 6), (4, 10), (8, 17)], [(2, 4), (12, 17)], [(4, 4)]],
    ids=["adjoining", "overlapping", "with gaps", "empty"],
)
def test_a_content_that_is_more_than_its_units_comes_back(tmp_path, cuts):
    source = built(tmp_path, {"one": ["x"]})
    own_cut(source, "🎉ab cd 第三 efgh xyz", cuts)
    before = tables_of(source)
    back, _, imported = there_and_back(tmp_path, source)
    assert indexes_of(back) == {BASE: before}
    assert imported["bases"][0]["remade"] == 0


def test_materials_without_units_and_bases_without_vectors_come_back(tmp_path):
    source = built(tmp_path, {"one": ["only words"], "none": []})
    with sqlite.open_writable(source) as db:
        db.execute("DELETE FROM embedding")
        db.execute("INSERT INTO material VALUES ('bare', 'bare.md', NULL, 1, 1)")
    before = tables_of(source)
    back, exported, _ = there_and_back(tmp_path, source)
    assert indexes_of(back) == {BASE: before}
    assert exported["bases"][0]["dimensions"] is None
    [row] = catalog_of(back / "catalog.sqlite")["knowledge_base"]
    assert (row["status"], row["embedding_model_id"]) == ("completed", None)


def test_without_a_catalog_a_base_says_that_its_model_is_unknown(tmp_path):
    back, _, _ = there_and_back(tmp_path, built(tmp_path, {"one": ["a", "b"]}))
    catalog = catalog_of(back / "catalog.sqlite")
    [row] = catalog["knowledge_base"]
    assert (row["status"], row["error"], row["dimensions"]) == ("failed", "missing_embedding_model", 4)
    [item] = catalog["knowledge_item"]
    assert (item["id"], json.loads(item["data"])["relativePath"]) == ("one", "one.md")


# --- salvage ---------------------------------------------------------------------------------------------------------


def test_bodies_without_a_usable_vector_come_back_without_one(tmp_path):
    source = built(tmp_path, {"one": ["kept", "lost", "short", "kept too"]})
    with sqlite.open_writable(source) as db:
        db.execute("DELETE FROM embedding WHERE embedding_text_hash = ?", (sha("lost"),))
        db.execute("UPDATE embedding SET vector_blob = x'0000' WHERE embedding_text_hash = ?", (sha("short"),))
    back, exported, imported = there_and_back(tmp_path, source)
    assert exported["bases"][0]["without_vector"] == 2
    assert imported["bases"][0]["rows"] == {"read": 4, "carried": 4, "skipped": {}}
    kept = {sha(text): vector_of(text) for text in ("kept", "kept too")}
    assert dict(indexes_of(back)[BASE]["embedding"]) == kept


@pytest.mark.parametrize(
    "name", ["sqlite_autoindex_embedding_1", "sqlite_autoindex_search_unit_1", "embedding", "search_unit"]
)
def test_rows_that_only_a_table_or_its_index_has_are_said_to_be_damage(tmp_path, name):
    """The leaf of a table, or of an index by which its rows are found, has one entry less."""
    source = built(tmp_path, {"one": ["first text", "second text"], "two": ["third text"]})
    one_cell_less(source, name)
    before = source.read_bytes()
    done = run("export", source, tmp_path / "units.parquet", "--json")
    (base,) = done.document["bases"]
    assert done.status == 1
    assert "its index is damaged: " in base["problem"] or "cannot be read to its end" in base["problem"]
    assert source.read_bytes() == before


def test_rows_that_are_missing_when_they_are_read_again_stop_an_import(tmp_path, monkeypatch):
    source = built(tmp_path, {"one": ["first text", "second text"]})
    assert run("export", source, tmp_path / "units.parquet").status == 0
    real = importing.unit_file.read_rows
    monkeypatch.setattr(importing.unit_file, "read_rows", lambda path, groups: islice(real(path, groups), 1))
    done = run("import", tmp_path / "units.parquet", "--to", tmp_path / "back", "--json")
    message = said(done, "StoppedMidway", 3)
    assert f"two reads of base {BASE} gave 2 and 1 rows" in message
    assert not list((tmp_path / "back").rglob("index.sqlite"))


@pytest.mark.parametrize(("page_of", "problem"), [("content", False), ("sqlite_autoindex_content_1", True)])
def test_what_still_reads_of_a_damaged_index_comes_back(tmp_path, page_of, problem):
    """A page of contents is scrambled; they follow from bodies and their offsets."""
    source = built(tmp_path, {"one": ["first text", "second text"], "two": ["third text"]})
    right = tables_of(source)
    with sqlite.open_readonly(source) as db:
        size = db.execute("PRAGMA page_size").get
        page = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (page_of,)).get
    raw = bytearray(source.read_bytes())
    raw[(page - 1) * size : page * size] = b"\xa5" * size
    source.write_bytes(raw)
    back, exported, imported = there_and_back(tmp_path, source)
    assert ("is damaged" in (exported["bases"][0]["problem"] or "")) is problem
    assert imported["bases"][0]["rows"] == {"read": 3, "carried": 3, "skipped": {}}
    assert indexes_of(back) == {BASE: right}


def test_damaged_rows_are_counted_and_the_rest_is_made_whole(tmp_path):
    source = built(tmp_path, {"one": ["aa", "bb", "cc"], "two": ["dd"]})
    with sqlite.open_writable(source) as db:
        db.execute("UPDATE search_text SET text = 'changed' WHERE text = 'bb'")
        db.execute("UPDATE search_text SET target_id = 'nobody' WHERE text = 'dd'")
    back, exported, imported = there_and_back(tmp_path, source)
    [out], [came] = exported["bases"], imported["bases"]
    assert out["rows"] == {"read": 4, "carried": 3, "skipped": {"body.orphan": 1}}
    assert out["left_out"]["unit.no-body"] == 1
    assert came["rows"] == {"read": 3, "carried": 2, "skipped": {"text_changed": 1}}
    rows = indexes_of(back)[BASE]
    assert sorted(row[4] for row in rows["search_text"]) == ["aa", "cc"]
    for _, material, content, _, number, _, start, end, _ in rows["search_unit"]:
        text = dict(rows["content"])[content]
        assert text[start:end] == {0: "aa", 2: "cc"}[number]
        assert material == "one"


def test_wrong_offsets_are_made_anew(tmp_path):
    source = built(tmp_path, {"one": ["aa", "bb"], "two": ["dd"]})
    with sqlite.open_writable(source) as db:
        db.execute("UPDATE search_unit SET char_end = char_end + 40 WHERE unit_index = 1")
    right = tables_of(built(tmp_path / "again", {"one": ["aa", "bb"], "two": ["dd"]}))
    back, _, imported = there_and_back(tmp_path, source)
    assert imported["bases"][0]["remade"] == 1
    assert indexes_of(back) == {BASE: right}


def test_rows_that_another_program_has_doubled_or_emptied_are_counted(tmp_path):
    built(tmp_path, {"one": ["aa", "bb"]})
    run("export", tmp_path / "KnowledgeBase" / BASE, tmp_path / "units.parquet")
    table = pq.read_table(tmp_path / "units.parquet")
    rows = table.to_pylist()
    odd = [{**rows[0], "text": None}, {**rows[0], "base": "nobody"}, {**rows[0], "unit_index": -1}]
    pq.write_table(pa.Table.from_pylist([rows[1], *rows, *odd], schema=table.schema), tmp_path / "odd.parquet")
    came = run("import", tmp_path / "odd.parquet", "--to", tmp_path / "back", "--json")
    assert came.status == 1
    assert came.document["bases"][0]["rows"] == {"read": 5, "carried": 2, "skipped": {"duplicate": 1, "not_whole": 2}}
    assert came.document["skipped"] == {"no_base": 1}


@pytest.mark.parametrize("paths", [("../out", "b/../../out"), ("two", "two"), ("C:/out.md", ".CHERRY/index.sqlite")])
def test_paths_that_no_material_may_have_are_replaced(tmp_path, paths):
    built(tmp_path, {"../up": ["aa"], "two": ["bb"]})
    run("export", tmp_path / "KnowledgeBase" / BASE, tmp_path / "units.parquet")
    table = pq.read_table(tmp_path / "units.parquet")
    rows = [{**row, "path": path} for row, path in zip(table.to_pylist(), paths, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "odd.parquet")
    came = run("import", tmp_path / "odd.parquet", "--to", tmp_path / "back", "--json")
    assert came.document["bases"][0]["rows"] == {"read": 2, "carried": 2, "skipped": {}}
    with closing(sqlite3.connect(tmp_path / "back" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite")) as db:
        found = dict(db.execute("SELECT material_id, relative_path FROM material"))
    assert found.keys() == {"../up", "two"}
    for path in found.values():
        assert (tmp_path / "raw" / path).resolve().is_relative_to(tmp_path / "raw"), path
        assert not path.lower().startswith((".cherry", "c:")), path
    names = {one["name"] for one in run("check", tmp_path / "back", "--json").document["findings"]}
    assert not any("path" in name for name in names), names


@pytest.mark.parametrize("name", ["text", "vector", "base_name"])
def test_a_column_that_is_there_twice_is_refused(tmp_path, name):
    built(tmp_path, {"one": ["aa"]})
    run("export", tmp_path / "KnowledgeBase" / BASE, tmp_path / "units.parquet")
    table = pq.read_table(tmp_path / "units.parquet")
    pq.write_table(table.append_column(name, table[name]), tmp_path / "odd.parquet")
    refused(run("import", tmp_path / "odd.parquet", "--to", tmp_path / "back"), f"more than one column {name}")
    assert not (tmp_path / "back").exists()


# --- v1 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["basic"])
def test_v1_and_what_became_of_it_agree_in_texts_and_vectors(tmp_path, golden, case):
    source, library = golden(case) / "v1", tmp_path / "library"
    run("migrate", source, "--to", library)
    assert run("export", library, tmp_path / "v2.parquet").status == 0
    assert run("export", source, tmp_path / "v1.parquet", "--v1").status in (0, 1)
    # What a migration carries is in both, with the same vector; the vector table may hold more.
    pairs = [
        {(row.text, row.vector) for row in unit_file.read_rows(tmp_path / name)}
        for name in ("v1.parquet", "v2.parquet")
    ]
    assert len(pairs[1]) > 10
    assert pairs[1] <= pairs[0]
    assert pq.read_schema(tmp_path / "v1.parquet").equals(pq.read_schema(tmp_path / "v2.parquet"))


def test_the_legacy_table_keeps_rows_that_no_migration_takes(tmp_path):
    rows = [Row("F", "one"), Row("F", "two", vector=None), Row("G", "three", vector=floats(1, 2)), Row("F", "four")]
    library = migrated(tmp_path, base("kb", file("f", "F"), note("n")), stores={"kb": rows})
    vectors = tmp_path / "v1" / "KnowledgeBase" / "kb"
    for source in (tmp_path / "v1", vectors):
        done = run("export", source, tmp_path / "v1.parquet", "--v1", "--json")
        assert done.document["bases"][0]["rows"] == {"read": 4, "carried": 4, "skipped": {}}
        found = list(unit_file.read_rows(tmp_path / "v1.parquet"))
        assert [(row.item, row.unit_index, row.text, row.unit_id) for row in found] == [
            ("F", 0, "one", "F_0"),
            ("F", 1, "two", "F_1"),
            ("G", 0, "three", "G_0"),
            ("F", 2, "four", "F_2"),
        ]
        assert [row.vector for row in found] == [vector_of("one"), None, None, vector_of("four")]
    assert library.bodies("kb") == ["one", "four"]
    refused(run("import", tmp_path / "v1.parquet", "--to", tmp_path / "back"), "v1 vector files", "migrate")
    refused(run("export", tmp_path / "v1", tmp_path / "other.parquet"), "--v1")
    refused(run("export", library.path, tmp_path / "other.parquet", "--v1"), "leave out --v1")


# --- other tools -----------------------------------------------------------------------------------------------------


def test_duckdb_reads_it_as_it_is(tmp_path):
    import duckdb

    built(tmp_path, {"one": ["first", "second"], "two": ["third 🎉"]})
    run("export", tmp_path / "KnowledgeBase", tmp_path / "units.parquet")
    name = str(tmp_path / "units.parquet")
    with duckdb.connect() as db:
        count = "SELECT count(*), count(DISTINCT item), min(len(vector)), max(len(vector)) FROM read_parquet(?)"
        assert db.execute(count, [name]).fetchall() == [(3, 2, 4, 4)]
        near = db.execute(
            "SELECT a.text, b.text, list_cosine_similarity(a.vector, b.vector) AS near"
            " FROM read_parquet($1) a, read_parquet($1) b WHERE a.text = 'first' ORDER BY near DESC",
            [name],
        ).fetchall()
        told = db.execute("SELECT decode(value) FROM parquet_kv_metadata(?) WHERE decode(key) = 'regraft'", [name])
        [(stated,)] = told.fetchall()
    one, other = (struct.unpack("<4f", vector_of(text)) for text in ("first", near[1][1]))
    cosine = sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
    assert near[0][:2] == ("first", "first")
    assert near[1][2] == pytest.approx(cosine, rel=1e-5)
    assert json.loads(stated)["bases"][0]["dimensions"] == 4


def test_the_columns_are_those_of_the_page(tmp_path):
    built(tmp_path, {"one": ["first"]})
    run("export", tmp_path / "KnowledgeBase", tmp_path / "units.parquet")
    schema = pq.read_schema(tmp_path / "units.parquet")
    page = (REPO / "docs" / "formats" / "parquet.md").read_text("utf-8")
    for field in schema:
        kind = "list of float32" if field.name == "vector" else str(field.type)
        assert f"| `{field.name}` | {kind} |" in page
    assert schema.field("vector").type == pa.list_(pa.float32(), 4)
    assert pq.ParquetFile(tmp_path / "units.parquet").metadata.row_group(0).column(0).compression == "ZSTD"


# --- a run and the next ----------------------------------------------------------------------------------------------


def exported(tmp_path: Path, texts: list[str], name: str = "units.parquet", base_id: str = BASE) -> Path:
    """Export a base of one material, and return the file."""
    assert run("export", built(tmp_path / f"of {name}", {base_id: texts}, base_id), tmp_path / name).status == 0
    return tmp_path / name


def imported(tmp_path: Path, *more: object, name: str = "units.parquet", quiet: str = "--json") -> Outcome:
    return run("import", tmp_path / name, "--to", tmp_path / "back", "--now", NOW, quiet, *more)


def outcomes_of(done: Outcome) -> list[str]:
    return [base["outcome"] for base in done.document["bases"]]


def test_a_dry_run_tells_the_plan_and_writes_nothing(tmp_path):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library, "--now", NOW)
    run("export", library, tmp_path / "units.parquet")
    with untouched(tmp_path):
        plan = imported(tmp_path, "--dry-run").document
        text = imported(tmp_path, "--dry-run", quiet="-q").stdout
    assert "76 of 76 rows will be migrated with their vectors (76); nothing is embedded again." in text
    assert text.endswith("Dry run: nothing was written.\n")
    done = imported(tmp_path).document
    for key in ("id", "name", "status", "items", "rows", "vectors"):
        assert [base[key] for base in plan["bases"]] == [base[key] for base in done["bases"]]
    for key in ("units", "materials", "path"):
        assert [(one["index"] or {}).get(key) for one in plan["bases"]] == [
            (one["index"] or {}).get(key) for one in done["bases"]
        ]
    size = sum(path.stat().st_size for path in (tmp_path / "back").rglob("*.sqlite") if path.name != "ledger.sqlite")
    assert size < plan["preflight"]["bytes_needed"] < 3 * size
    assert plan["run"]["dry_run"] is True
    assert json.loads((tmp_path / "back" / "report.json").read_text("utf-8")) == done
    assert "Report of an import</title>" in (tmp_path / "back" / "report.html").read_text("utf-8")


def test_the_same_file_again_changes_nothing(tmp_path):
    run("migrate", SAMPLE, "--to", tmp_path / "library", "--now", NOW)
    run("export", tmp_path / "library", tmp_path / "units.parquet")
    first = imported(tmp_path)
    with untouched(tmp_path / "back"):
        again = imported(tmp_path)
    assert outcomes_of(again) == ["unchanged", "unchanged", "unchanged", "failed"]
    assert (again.status, again.document["totals"]["rows"]) == (first.status, first.document["totals"]["rows"])
    # A base that is gone comes back; the others stay.
    shutil.rmtree(next((tmp_path / "back" / "KnowledgeBase").iterdir()))
    assert sorted(outcomes_of(imported(tmp_path))) == ["failed", "unchanged", "unchanged", "written"]
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path / "library")


def test_what_is_said_of_a_file_is_said_again(tmp_path):
    path = exported(tmp_path, ["aa", "bb"])
    table = pq.read_table(path)
    rows = table.to_pylist()
    pq.write_table(pa.Table.from_pylist([*rows, {**rows[0], "base": "nobody"}, rows[0]], schema=table.schema), path)
    first, again = imported(tmp_path), imported(tmp_path)
    assert again.document["skipped"] == first.document["skipped"] == {"no_base": 1}
    assert again.document["warnings"] == first.document["warnings"]
    assert {one["code"] for one in again.document["warnings"]} == {"no_base", "duplicate", "model_not_named"}
    assert imported(tmp_path, "--fail-on", "never").status == 0


def test_another_file_of_a_base_takes_its_place_but_for_a_base_that_was_changed(tmp_path):
    exported(tmp_path, ["old"])
    exported(tmp_path, ["new", "newer"], "new.parquet")
    imported(tmp_path)
    assert outcomes_of(imported(tmp_path, name="new.parquet")) == ["failed"]
    assert sorted(row[4] for row in indexes_of(tmp_path / "back")[BASE]["search_text"]) == ["new", "newer"]
    with sqlite.open_writable(tmp_path / "back" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite") as db:
        db.execute("UPDATE meta SET updated_at = updated_at + 1")
    with untouched(tmp_path / "back"):
        said(imported(tmp_path), "TargetBaseChanged", 2)


def test_a_completed_base_is_kept_where_the_file_gives_a_failed_one(tmp_path):
    run("migrate", SAMPLE, "--to", tmp_path / "library", "--now", NOW)
    run("export", tmp_path / "library", tmp_path / "units.parquet")
    imported(tmp_path)
    index = next((tmp_path / "library" / "KnowledgeBase").rglob("index.sqlite"))
    shutil.copy(index, tmp_path / "alone.sqlite")
    assert run("export", tmp_path / "alone.sqlite", tmp_path / "bare.parquet").status == 0
    kept = imported(tmp_path, name="bare.parquet").document
    assert [one["code"] for one in kept["warnings"]] == ["completed_base_kept"]
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path / "library")


def test_bases_of_several_files_stand_side_by_side(tmp_path):
    other = "22222222-2222-4333-8444-555555555555"
    exported(tmp_path, ["one"])
    exported(tmp_path, ["two"], "two.parquet", other)
    imported(tmp_path)
    assert outcomes_of(imported(tmp_path, name="two.parquet")) == ["failed"]
    assert indexes_of(tmp_path / "back").keys() == {BASE, other}
    assert {row["id"] for row in catalog_of(tmp_path / "back" / "catalog.sqlite")["knowledge_base"]} == {BASE, other}


def test_only_the_chosen_base_is_imported(tmp_path):
    run("migrate", SAMPLE, "--to", tmp_path / "library", "--now", NOW)
    run("export", tmp_path / "library", tmp_path / "units.parquet")
    wanted = min(indexes_of(tmp_path / "library"))
    done = imported(tmp_path, "--base", wanted)
    assert [base["id"] for base in done.document["bases"]] == [wanted]
    assert indexes_of(tmp_path / "back") == {wanted: indexes_of(tmp_path / "library")[wanted]}
    with untouched(tmp_path / "back"):
        assert wanted in said(imported(tmp_path, "--base", "nobody"), "BaseUnknown", 2)
    assert imported(tmp_path).document["totals"]["bases"]["all"] == 4
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path / "library")


@pytest.mark.parametrize("first", ["migrate", "import"])
def test_a_base_of_one_command_is_not_written_over_by_the_other(tmp_path, first):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library, "--now", NOW)
    run("export", library, tmp_path / "units.parquet")
    target = library if first == "migrate" else tmp_path / "back"
    if first == "import":
        imported(tmp_path)
    command = ("import", tmp_path / "units.parquet") if first == "migrate" else ("migrate", SAMPLE)
    with untouched(target):
        message = said(run(*command, "--to", target, "--json"), "TargetBaseForeign", 2)
    assert f"was written here by regraft {first}" in message
    assert run("import", exported(tmp_path, ["other"], "other.parquet"), "--to", target).status == 1
    assert BASE in indexes_of(target)


def test_rows_in_any_order_come_to_the_same_library(tmp_path):
    other = "22222222-2222-4333-8444-555555555555"
    built(tmp_path, {"one": ["a", "b", "c"]})
    built(tmp_path, {"two": ["d", "e", "f"]}, other)
    run("export", tmp_path / "KnowledgeBase", tmp_path / "units.parquet")
    table = pq.read_table(tmp_path / "units.parquet")
    mixed = table.take([0, 3, 1, 4, 2, 5])
    mixed = mixed.set_column(0, "base", mixed.column("base").dictionary_encode())
    pq.write_table(mixed, tmp_path / "units.parquet", row_group_size=2)
    imported(tmp_path)
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path)


# --- refusals --------------------------------------------------------------------------------------------------------


def test_a_second_import_waits_for_the_first(tmp_path):
    exported(tmp_path, ["a"])
    (tmp_path / "back" / ".regraft").mkdir(parents=True)
    with ledger.open_exclusive(tmp_path / "back"):
        said(imported(tmp_path), "TargetLocked", 2)
    assert not (tmp_path / "back" / "catalog.sqlite").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_disk_without_room_is_refused(tmp_path, monkeypatch, more):
    exported(tmp_path, ["a"])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    # It is refused before the file is read for its checksum.
    monkeypatch.setattr(importing, "stream_crc32", None)
    assert "100.0 kB are free" in said(imported(tmp_path, *more), "NotEnoughSpace", 2)
    assert not (tmp_path / "back").exists()


def test_a_file_that_changes_before_its_checksum_is_taken_stops_the_import(tmp_path, monkeypatch):
    path = exported(tmp_path, ["a"])
    read = importing.stream_crc32

    def grown(file: Any) -> int:
        found = read(file)
        path.write_bytes(path.read_bytes() + b"more")
        return found

    monkeypatch.setattr(importing, "stream_crc32", grown)
    assert "it changed while it was read" in said(imported(tmp_path), "StoppedMidway", 3)
    assert not (tmp_path / "back").exists() or not list((tmp_path / "back").glob("KnowledgeBase/*"))


def test_an_answer_of_no_writes_nothing_of_an_import(tmp_path, monkeypatch):
    exported(tmp_path, ["a"])
    monkeypatch.setattr(sys.modules["regraft.cli.migrate"], "PlanPrompt", lambda **_: lambda _: False)
    said(imported(tmp_path), "Declined", 2)
    assert not (tmp_path / "back").exists()


def test_a_base_that_is_called_like_a_record_of_the_ledger_is_refused(tmp_path):
    for name in ("catalog", "report", "x" * 300):
        with unit_file.write_units(
            tmp_path / "units.parquet",
            FileMetadata(1, "v2", None, [unit_file.BaseMetadata(name, "x", None, None, index=True)]),
        ):
            pass
        said(imported(tmp_path), "SourceUnreadable", 2)
    assert not (tmp_path / "back").exists()


def test_a_file_that_changes_meanwhile_stops_the_run(tmp_path, monkeypatch):
    path = exported(tmp_path, ["a"])
    real = unit_file.survey_file

    def and_touched(*arguments: Any) -> Any:
        found = real(*arguments)
        os.utime(path, ns=(1, 1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(unit_file, "survey_file", and_touched)
        assert "it changed while it was read" in said(imported(tmp_path), "StoppedMidway", 3)
    assert list(files_of(tmp_path / "back")) == [".regraft/ledger.sqlite"]
    assert outcomes_of(imported(tmp_path)) == ["failed"]


def test_bases_of_several_dimensions_need_a_file_each(tmp_path):
    other = "22222222-2222-4333-8444-555555555555"
    built(tmp_path, {"one": ["a"]})
    built(tmp_path, {"two": ["b"]}, other, dimensions=6)
    source = tmp_path / "KnowledgeBase"
    refused(run("export", source, tmp_path / "all.parquet"), "differ in dimensions", "--base")
    assert not (tmp_path / "all.parquet").exists()
    files = [tmp_path / "4.parquet", tmp_path / "6.parquet"]
    for path, base_id in zip(files, (BASE, other), strict=True):
        assert run("export", source, path, "--base", base_id).status == 0
    assert run("import", *files, "--to", tmp_path / "back", "--fail-on", "never").status == 0
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path)
    refused(run("import", files[0], files[0], "--to", tmp_path / "twice"), BASE, "in one file only")
    refused(run("export", source, files[0], "--base", "nobody"), "nobody", BASE)


def test_only_an_earlier_file_of_units_is_written_over(tmp_path):
    source = built(tmp_path, {"one": ["a"]})
    target = tmp_path / "units.parquet"
    for content in (b"", b"my own file", b"PAR1 and no more"):
        target.write_bytes(content)
        refused(run("export", source, target), "was not written by regraft")
        assert target.read_bytes() == content
    pq.write_table(pa.table({"mine": [1]}), target)
    refused(run("export", source, target), "was not written by regraft")
    target.unlink()
    assert run("export", source, target).status == run("export", source, target).status == 0
    refused(run("export", source, tmp_path / "no" / "folder.parquet"), "its folder does not exist")
    library = tmp_path / "KnowledgeBase"
    refused(run("export", library, library / "units.parquet"), f"it is inside {library},")


def test_a_stop_leaves_no_part_of_a_file_or_library(tmp_path, monkeypatch):
    source = built(tmp_path / "source", {"one": ["a"]})
    run("export", source, tmp_path / "units.parquet")
    before = snapshot(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "replace", full)
    refused(run("export", source, tmp_path / "units.parquet"), "No space left", status=3)
    assert snapshot(tmp_path) == before
    refused(imported(tmp_path, quiet="-q"), "No space left", status=3)
    assert list(files_of(tmp_path / "back")) == [".regraft/ledger.sqlite"]


def test_a_library_is_imported_into_a_folder_of_its_own(tmp_path):
    run("export", built(tmp_path, {"one": ["a"]}), tmp_path / "units.parquet")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    refused(run("import", tmp_path / "units.parquet", "--to", tmp_path / "mine"), "not empty")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    assert run("import", tmp_path / "units.parquet", "--to", tmp_path / "empty", "--fail-on", "never").status == 0
    refused(run("import", tmp_path / "units.parquet", "--to", tmp_path), "one of the target and the source")


def test_foreign_and_damaged_files_are_one_line(tmp_path):
    run("export", built(tmp_path, {"one": ["some text", "more text"] * 20}), tmp_path / "units.parquet")
    whole = (tmp_path / "units.parquet").read_bytes()
    path = tmp_path / "odd.parquet"
    refused(run("import", tmp_path / "nothing", "--to", tmp_path / "back"), "no such file")
    for content in (b"", b"PAR1", b"x" * 300, whole[:-20], whole[: len(whole) // 2], b"\0" * len(whole)):
        path.write_bytes(content)
        refused(run("import", path, "--to", tmp_path / "back"), "odd.parquet: cannot be read")
    pq.write_table(pa.table({"mine": [1]}), path)
    refused(run("import", path, "--to", tmp_path / "back"), "regraft did not write")
    for stated in (b"not JSON", b'{"schema":7,"layout":"v2","dimensions":4,"bases":[]}'):
        pq.write_table(pa.table({"mine": [1]}).replace_schema_metadata({b"regraft": stated}), path)
        refused(run("import", path, "--to", tmp_path / "back"), "odd.parquet")
    assert not (tmp_path / "back").exists()


def test_a_changed_byte_is_seen(tmp_path):
    """Pages carry checksums: a byte that changed in one is never taken for a text or a vector."""
    run("export", built(tmp_path, {"one": ["some text", "more text"]}), tmp_path / "units.parquet")
    whole = (tmp_path / "units.parquet").read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    right = list(unit_file.read_rows(tmp_path / "units.parquet"))
    path, seen = tmp_path / "odd.parquet", 0
    for place in range(4, footer, 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert list(unit_file.read_rows(path)) == right, place
        except unit_file.SourceUnreadable:
            seen += 1
    assert seen > 20


def test_a_base_id_that_leads_elsewhere_is_refused(tmp_path):
    for name in ("../elsewhere", "a/b", "..", "", "a\0b"):
        about = FileMetadata(1, "v2", None, [unit_file.BaseMetadata(name, "x", None, None, index=True)])
        with unit_file.write_units(tmp_path / "units.parquet", about):
            pass
        refused(run("import", tmp_path / "units.parquet", "--to", tmp_path / "back"), "not a valid folder name")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["units.parquet"]


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    source = built(tmp_path, {"one": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "file").write_bytes(b"")
    refused(run("export", source, tmp_path / "units.parquet"), "pyarrow", "pip install")
    refused(run("import", tmp_path / "file", "--to", tmp_path / "back"), "pyarrow", "pip install")


def test_texts_that_are_no_utf8_agree_with_what_a_migration_makes_of_them(tmp_path):
    odd = [b"cut \xed\xa0\xbd pair", b"two \xed\xa0\xbd\xed\xb8\x80 halves", b"\xff\xfe bytes", b"nul \x00 inside"]
    rows = [Row("F", RawText(body), vector=vector_of(body)) for body in odd]
    library = migrated(tmp_path, base("kb", file("f", "F")), stores={"kb": rows})
    run("export", tmp_path / "v1", tmp_path / "v1.parquet", "--v1")
    run("export", library.path, tmp_path / "v2.parquet")
    old, new = (list(unit_file.read_rows(tmp_path / name)) for name in ("v1.parquet", "v2.parquet"))
    assert len(old) == len(odd)
    assert [(row.text, row.body_hash, row.vector) for row in old] == [
        (row.text, row.body_hash, row.vector) for row in new
    ]


def described(path: Path, settings: dict[str, Any], items: list[dict[str, Any]], *, index: bool = True) -> Path:
    """Write a file of one base without any row."""
    usual = {
        "id": BASE,
        "name": "Base",
        "dimensions": 4,
        "embedding_model_id": "acme::embed",
        "status": "completed",
        "chunk_size": 500,
        "chunk_overlap": 50,
        "threshold": None,
        "document_count": 6,
        "created_at": 7,
        "updated_at": 8,
    }
    about = unit_file.BaseMetadata(BASE, "Base", None, 4, index=index, settings={**usual, **settings}, items=items)
    with unit_file.write_units(path, FileMetadata(1, "v2", None, [about])):
        pass
    return path


def item(item_id: str, **fields: Any) -> dict[str, Any]:
    usual = {"base_id": BASE, "group_id": None, "type": "note", "data": '{"source":"n","content":"c"}'}
    return {"id": item_id, **usual, "status": "completed", "error": None, "created_at": 1, "updated_at": 2, **fields}


def test_items_that_have_no_place_in_a_catalog_are_counted(tmp_path):
    items = [
        item("child", group_id="folder"),
        item("folder", type="directory"),
        item("gone", deleted_at=5),
        item("odd", data="not JSON"),
        item("lost", group_id="nowhere"),
        {"id": "bare"},
    ]
    path = described(tmp_path / "units.parquet", {}, items)
    came = run("import", path, "--to", tmp_path / "back", "--json")
    assert came.status == 1
    assert came.document["bases"][0]["skipped_items"] == {"deleted": 1, "invalid": 3}
    catalog = catalog_of(tmp_path / "back" / "catalog.sqlite")
    assert [row["id"] for row in catalog["knowledge_item"]] == ["folder", "child"]
    assert [row["id"] for row in catalog["user_model"]] == ["acme::embed"]
    assert catalog["knowledge_base"][0]["chunk_size"] == 500


def test_a_completed_base_without_an_index_is_refused(tmp_path):
    path = described(tmp_path / "units.parquet", {}, [], index=False)
    refused(run("import", path, "--to", tmp_path / "back"), "is completed but has no index")
    assert [found.name for found in tmp_path.iterdir()] == ["units.parquet"]


@pytest.mark.parametrize("data", ["{}", '{"source":"n"}', '{"a":1}', "not JSON", '{"source":1,"content":"c"}', None])
def test_an_item_with_texts_that_nobody_can_read_is_refused(data, tmp_path):
    path = described(tmp_path / "units.parquet", {}, [item("odd", data=data)])
    about = unit_file.read_metadata(path)
    about.bases[0].bare_materials = [unit_file.EmptyMaterial("odd", "odd.md", None)]
    with unit_file.write_units(path, about):
        pass
    for more in ("--dry-run", "-q"):
        refused(run("import", path, "--to", tmp_path / "back", more), "its item odd has texts, but its data")
    assert [found.name for found in tmp_path.iterdir()] == ["units.parquet"]


@pytest.mark.parametrize(
    "settings",
    [{"chunk_size": 0}, {"status": "failed"}, {"embedding_model_id": 5}, {"name": None}, {"chunk_size": 2**70}],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_no_catalog_takes_are_one_line(tmp_path, settings):
    path = described(tmp_path / "units.parquet", settings, [])
    refused(run("import", path, "--to", tmp_path / "back"), "units.parquet: cannot be read")
    assert [found.name for found in tmp_path.iterdir()] == ["units.parquet"]


# --- files that are made to do harm ----------------------------------------------------------------------------------


def harmful(tmp_path: Path, rows: int, about: dict[str, Any] | None = None, **columns_of: Any) -> Path:
    """Write a file whose rows have the columns that are given, and nothing else."""
    one = {"id": BASE, "name": "b", "model": None, "dimensions": 4, "index": True}
    said_of = {"schema": 1, "layout": "v2", "dimensions": 4, "bases": [one], **(about or {})}
    values = {name: pa.nulls(rows, getattr(pa, kind)()) for name, kind in unit_file.COLUMNS.items()}
    values |= {"vector": pa.nulls(rows, pa.list_(pa.float32(), 4)), "base": pa.array([BASE] * rows), **columns_of}
    table = pa.table(values).replace_schema_metadata({unit_file.METADATA_KEY: json.dumps(said_of)})
    pq.write_table(table, tmp_path / "units.parquet", compression="zstd")
    return tmp_path / "units.parquet"


def test_a_dictionary_that_stands_for_gigabytes_is_read_few_rows_at_once(tmp_path, monkeypatch):
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 3_000, pa.int32()), pa.array(["x" * (1 << 20)]))
    path = harmful(tmp_path, 3_000, text=texts)
    assert path.stat().st_size < 100_000
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(unit_file, "_count_batch", lambda _, batch, *more: sizes.append((len(batch), batch.nbytes)))
    unit_file.survey_file(path, lambda _: None)
    assert sum(rows for rows, _ in sizes) == 3_000
    assert max(size for _, size in sizes) < 100 << 20


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("text", lambda: pa.list_(pa.string())),
        ("base", lambda: pa.struct([("a", pa.string())])),
        ("unit_index", lambda: pa.map_(pa.string(), pa.int32())),
        ("vector", lambda: pa.list_(pa.list_(pa.float32()))),
        ("vector", lambda: pa.list_(pa.float32(), 1_000_000)),
    ],
)
def test_columns_of_another_shape_are_refused_by_name(tmp_path, name, kind):
    harmful(tmp_path, 3, **{name: pa.nulls(3, kind())})
    said(imported(tmp_path), "SourceUnreadable", 2)
    assert not (tmp_path / "back").exists()


def test_a_file_of_very_many_columns_is_read_for_its_own(tmp_path):
    harmful(tmp_path, 1, **{f"more{number}": pa.nulls(1, pa.int32()) for number in range(5_000)})
    with untouched(tmp_path):
        done = imported(tmp_path, "--dry-run")
    assert done.status in (0, 1)
    assert done.document["totals"]["rows"]["read"] == 1


# --- names of bases, other tools, standard output --------------------------------------------------------------------


def test_rows_name_their_base_and_the_file_its_model_for_other_tools(tmp_path):
    library = tmp_path / "library"
    run("migrate", SAMPLE, "--to", library, "--now", NOW)
    path = tmp_path / "units.parquet"
    exported = run("export", library, path, "--json").document["bases"]
    table = pq.read_table(path)
    pairs = set(zip(table["base"].to_pylist(), table["base_name"].to_pylist(), strict=True))
    assert pairs == {(one["id"], one["name"]) for one in exported if one["rows"]["carried"]}
    described = json.loads(table.schema.metadata[b"vdf"])
    assert described["id_column"] == "unit_id"
    for one in exported:
        [found] = described["indexes"][one["id"]]
        assert found == {
            "namespace": "",
            "index_name": one["name"],
            "dimensions": one["dimensions"],
            "model_name": one["model"],
            "vector_columns": ["vector"],
            "metric": "Cosine",
        }


def test_the_old_table_names_its_bases_too(tmp_path):
    migrated(tmp_path, base("one", file("i", "L")), stores={"one": [Row("L", "text")]})
    path = tmp_path / "old.parquet"
    assert run("export", tmp_path / "v1", path, "--v1").status == 0
    assert pq.read_table(path)["base_name"].to_pylist() == ["Base one"]


def test_a_file_without_names_of_bases_comes_back_equal(tmp_path):
    source = built(tmp_path / "store", {"one": ["a text", "another"], "two": ["a third"]})
    path, older = tmp_path / "units.parquet", tmp_path / "older.parquet"
    assert run("export", source, path).status == 0
    table = pq.read_table(path).drop_columns(["base_name"])
    pq.write_table(table, older, compression="zstd")
    assert run("import", older, "--to", tmp_path / "back", "--now", NOW, "--fail-on", "error").status in (0, 1)
    assert run("import", path, "--to", tmp_path / "other", "--now", NOW, "--fail-on", "error").status in (0, 1)
    assert indexes_of(tmp_path / "back") == indexes_of(tmp_path / "other")
    assert indexes_of(tmp_path / "back")[BASE] == tables_of(source)
    pq.write_table(table.drop_columns(["title"]), older)
    refused(run("import", older, "--to", tmp_path / "third"), "without the column title")


@pytest.mark.parametrize("name", ["units.csv", "units", "units.parquet.zip"])
def test_a_name_that_is_not_that_of_a_parquet_file_is_refused(tmp_path, name):
    source = built(tmp_path / "store", {"one": ["a text"]})
    before = snapshot(tmp_path)
    refused(run("export", source, tmp_path / name), name, "does not end in .parquet")
    said(run("export", source, tmp_path / name, "--json"), "WrongUsage", 2)
    assert snapshot(tmp_path) == before


def test_a_file_goes_to_standard_output_whole_and_what_is_said_to_stderr(tmp_path):
    source = built(tmp_path / "store", {"one": ["a text", "another"]})
    path = tmp_path / "units.parquet"
    assert run("export", source, path).status == 0
    before = snapshot(tmp_path)
    command = [sys.executable, "-P", "-m", "regraft", "export", str(source), "-"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=REPO)
    assert (done.returncode, done.stdout) == (0, path.read_bytes()), done.stderr
    assert b"2 units, 2 vectors" in done.stderr
    assert snapshot(tmp_path) == before


def test_standard_output_is_not_shared_with_a_document_nor_written_where_nothing_is(tmp_path, monkeypatch):
    source = built(tmp_path / "store", {"one": ["a text"]})
    before = snapshot(tmp_path)
    message = said(run("export", source, "-", "--json"), "WrongUsage", 2)
    assert "--json and the file would both be written to standard output" in message
    refused(run("export", source, "-", "--base", "nobody"), "nobody")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run("export", source, "-")
    refused(done, 'pip install "regraft[parquet]"')
    assert done.stdout == ""
    assert snapshot(tmp_path) == before


def test_an_import_says_that_the_original_files_are_not_in_it(tmp_path):
    source = built(tmp_path / "store", {"one": ["a text"]})
    path = tmp_path / "units.parquet"
    assert run("export", source, path).status == 0
    sentence = "A Parquet file does not contain the original files."
    assert sentence in run("import", path, "--to", tmp_path / "back", "--dry-run").stdout
    assert sentence in run("import", path, "--to", tmp_path / "back").stdout
    assert sentence not in run("import", path, "--to", tmp_path / "back", "-q").stdout
