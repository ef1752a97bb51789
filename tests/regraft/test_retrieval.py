"""``regraft search``: the base's settings, the service's rules, what is refused, and what is said."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import faults
import pytest
from click.testing import CliRunner
from harness import GOLDEN, golden, run, snapshot
from v1 import Library, Row, base, carried, file, note, opened

from regraft import identity
from regraft.cli import cli
from regraft.formats.cherry_v2.catalog_reader import item_name

TEXTS = [f"needle number {at:02d} {'x' * at}" for at in range(16)]
QUERY = "0.5, 0.25, 0.125, 1"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Return a library of two bases; the first has four items of four texts each."""
    items = [file(f"i{at}", f"L{at}", name=f"f{at}.pdf") for at in range(4)]
    rows = [Row(f"L{at % 4}", text) for at, text in enumerate(TEXTS)]
    small = base("small", note("n", "N", text="only"))
    return carried(tmp_path, base("big", *items), small, stores={"big": rows, "small": [Row("N", "only text")]})


@pytest.fixture
def vector(tmp_path: Path) -> Path:
    path = tmp_path / "vector.json"
    path.write_text(f"[{QUERY}]", "utf-8")
    return path


def changed(library: Library, statement: str, *values: object) -> None:
    with closing(apsw.Connection(str(library.path / "catalog.sqlite"))) as db:
        db.execute(statement, values)


def configured(library: Library, **settings: object) -> None:
    for name, value in settings.items():
        changed(library, f"UPDATE knowledge_base SET {name} = ? WHERE id = ?", value, library.base_id("big"))


def found(library: Library, query: str, *options: object) -> dict[str, Any]:
    before = snapshot(library.path)
    done = run("search", library.path, query, "--base", library.base_id("big"), "--json", *options)
    assert done.status == 0, done.stderr
    assert snapshot(library.path) == before
    return done.document


def texts(document: dict[str, Any]) -> list[str]:
    return [hit["text"] for hit in document["hits"]]


def refused(code: str, *arguments: object) -> str:
    """Run a search that must be refused, for a person and for a program, and return the one line that both get."""
    text = faults.line(run("search", *arguments), faults.REFUSED)
    assert faults.said(run("search", *arguments, "--json"), code, faults.REFUSED) == text
    return text


# --- how a base is searched ----------------------------------------------------------------------------------------


def test_a_base_with_a_model_is_searched_by_words_and_by_meaning(library, vector):
    document = found(library, "needle", "--vector", vector)
    assert (document["mode"], document["alpha"], document["count"]) == ("hybrid", 0.5, 10)
    assert (document["score_kind"], document["notes"], len(document["hits"])) == ("ranking", [], 10)
    assert (document["base"], document["base_name"]) == (library.base_id("big"), "Base big")
    assert document["source"] == {"kind": "library", "path": str(library.path)}


def test_without_a_vector_of_the_query_it_is_searched_by_words_and_says_so(library):
    document = found(library, "needle")
    assert (document["mode"], document["alpha"]) == ("bm25", None)
    assert len(document["notes"]) == 1
    assert "--embedder or --vector" in document["notes"][0]
    assert found(library, "needle", "--mode", "bm25")["notes"] == []


def test_a_base_without_a_model_is_searched_by_words(library, vector):
    changed(library, "UPDATE knowledge_base SET embedding_model_id = NULL, dimensions = NULL")
    document = found(library, "needle")
    assert (document["mode"], document["notes"], len(document["hits"])) == ("bm25", [], 10)
    wanted = found(library, "needle", "--mode", "hybrid", "--vector", vector)
    assert wanted["mode"] == "bm25"
    assert wanted["notes"] == [
        "the base has no vectors; searched by words",
        "the vector is not used: mode bm25 searches by words only",
    ]
    assert len(wanted["hits"]) == 10


def test_modes_of_catalogs_from_before_the_release_say_nothing(library, vector):
    for column in ("search_mode TEXT", "hybrid_alpha REAL"):
        changed(library, f"ALTER TABLE knowledge_base ADD COLUMN {column}")
    configured(library, search_mode="vector", hybrid_alpha=0.75)
    document = found(library, "needle", "--vector", vector)
    assert (document["mode"], document["alpha"]) == ("hybrid", 0.5)


def test_options_go_before_what_follows_from_the_base(library, vector):
    configured(library, document_count=3)
    assert len(found(library, "needle", "--vector", vector)["hits"]) == 3
    document = found(library, "needle", "--mode", "hybrid", "--alpha", "0.1", "-k", "5", "--vector", vector)
    assert (document["mode"], document["alpha"], document["count"], len(document["hits"])) == ("hybrid", 0.1, 5, 5)
    nearest = found(library, "needle", "--mode", "vector", "-k", "5", "--vector", vector)
    assert (nearest["mode"], nearest["alpha"], nearest["score_kind"]) == ("vector", None, "relevance")


def test_lanes_of_the_application_are_five_times_its_candidates(library, vector):
    served = found(library, "needle", "-k", "2", "--vector", vector)
    raw = found(library, "needle", "-k", "10", "--vector", vector, "--raw")
    assert [(hit["text"], hit["score"]) for hit in served["hits"]] == [
        (hit["text"], hit["score"]) for hit in raw["hits"][:2]
    ]
    assert served["hits"][0]["item_name"] is not None
    assert {(hit["base_name"], hit["item_name"]) for hit in raw["hits"]} == {(None, None)}


def test_at_most_two_hundred_hits_are_looked_at(tmp_path):
    rows = [Row("L", f"needle {at:03d}") for at in range(210)]
    made = carried(tmp_path, base("big", file("i", "L")), stores={"big": rows})
    served = found(made, "needle", "--mode", "bm25", "-k", "205")
    assert (len(served["hits"]), served["count"]) == (200, 205)
    assert served["notes"] == ["at most 200 hits are considered, as in the application; use --raw for more"]
    raw = found(made, "needle", "--mode", "bm25", "-k", "205", "--raw")
    assert (len(raw["hits"]), raw["notes"]) == (205, [])


def test_hits_tell_all_that_is_known_of_them(library):
    document = found(library, "number 03", "--mode", "bm25")
    hit = document["hits"][0]
    names = ["base", "base_name", "item_name", "rank", "score", "unit_id", "material_id", "relative_path", "unit_index"]
    assert list(hit) == [*names, "text"]
    assert (hit["rank"], hit["text"], hit["material_id"]) == (1, TEXTS[3], library.item_id("i3"))
    assert (hit["base"], hit["base_name"], hit["item_name"]) == (library.base_id("big"), "Base big", "f3.pdf")
    # "03" is too short for the full-text index, and no other text has it.
    assert len(document["hits"]) == 1
    assert hit["score"] > 0


def test_a_threshold_holds_for_reranked_hits_only(library, vector):
    configured(library, threshold=0.99)
    for mode in ("bm25", "vector", "hybrid"):
        document = found(library, "needle", "--vector", vector, "--mode", mode, "-k", "16")
        assert len(document["hits"]) == 16
        assert "the threshold of 0.99 is not applied: it concerns reranked hits only" in document["notes"]
        assert "threshold" not in document


def test_a_rerank_model_is_said_not_to_be_asked(library):
    changed(
        library,
        "INSERT INTO user_model (id, provider_id, model_id, name, capabilities, supports_streaming, order_key,"
        " created_at, updated_at) SELECT 'r::r', provider_id, 'r', 'r', '[]', 1, 'z', 0, 0 FROM user_model",
    )
    configured(library, rerank_model_id="r::r")
    said = "the application would rerank these hits with a model; regraft does not"
    assert found(library, "needle", "--mode", "bm25")["notes"] == [said]
    configured(library, threshold=0.5)
    said = "the application would rerank these hits with a model and drop those below its threshold of 0.5; "
    assert found(library, "needle", "--mode", "bm25")["notes"] == [f"{said}regraft does not"]


# --- the catalog's word on hits ------------------------------------------------------------------------------------


def test_hits_of_items_that_are_not_done_missing_or_foreign_are_dropped_before_the_cut(library, vector):
    usual = found(library, "needle", "--mode", "bm25", "-k", "16")["hits"]
    changed(library, "UPDATE knowledge_item SET status = 'deleting' WHERE id = ?", library.item_id("i0"))
    changed(library, "DELETE FROM knowledge_item WHERE id = ?", library.item_id("i1"))
    changed(
        library,
        "UPDATE knowledge_item SET base_id = ? WHERE id = ?",
        library.base_id("small"),
        library.item_id("i2"),
    )
    left = [hit["text"] for hit in usual if hit["material_id"] == library.item_id("i3")]
    assert len(left) == 4
    for mode in ("bm25", "vector", "hybrid"):
        document = found(library, "needle", "--mode", mode, "-k", "4", "--vector", vector)
        assert sorted(texts(document)) == sorted(left)
        assert [hit["rank"] for hit in document["hits"]] == [1, 2, 3, 4]
        assert document["dropped"] == 12
        raw = found(library, "needle", "--mode", mode, "-k", "16", "--vector", vector, "--raw")
        assert len(raw["hits"]) == 16
        assert raw["dropped"] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("status", ["idle", "processing", "reading", "embedding", "failed", "deleting"])
def test_hits_of_items_that_are_not_completed_are_dropped(library, status):
    error = "broken" if status == "failed" else None
    sql = "UPDATE knowledge_item SET status = ?, error = ? WHERE id = ?"
    changed(library, sql, status, error, library.item_id("i0"))
    document = found(library, "needle", "--mode", "bm25", "-k", "16")
    assert (len(document["hits"]), document["dropped"]) == (12, 4)
    assert library.item_id("i0") not in {hit["material_id"] for hit in document["hits"]}


def test_no_more_candidates_are_asked_for_than_the_application_asks_for(tmp_path):
    rows = [*(Row("gone", f"needle {at}") for at in range(300)), *(Row("kept", f"needle text {at}") for at in range(3))]
    made = carried(tmp_path, base("big", file("g", "gone"), file("k", "kept")), stores={"big": rows})
    changed(made, "UPDATE knowledge_item SET status = 'deleting' WHERE id = ?", made.item_id("g"))
    document = found(made, "needle", "--mode", "bm25", "-k", "3")
    assert (document["hits"], document["dropped"]) == ([], 15)


def test_a_catalog_without_items_lets_every_hit_through(library):
    changed(library, "DROP TABLE knowledge_item")
    document = found(library, "needle", "--mode", "bm25", "-k", "16")
    assert (len(document["hits"]), document["dropped"]) == (16, 0)
    assert {hit["item_name"] for hit in document["hits"]} == {None}


# --- names and texts that are no UTF-8 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [
        ("file", {"relativePath": "docs/a.md", "source": "/x/b.md"}, "a.md"),
        ("file", {"relativePath": "docs/", "source": ""}, "docs"),
        ("file", {"source": "C:\\folder\\b.pdf"}, "b.pdf"),
        ("directory", {"source": "/home/alice/docs/", "relativePath": ""}, "docs"),
        ("url", {"url": "https://a.test/x?y", "source": "other", "relativePath": "page.md"}, "https://a.test/x?y"),
        ("url", {"source": "https://a.test/"}, "https://a.test/"),
        ("note", {"relativePath": "My note.md", "source": "first\nsecond"}, "My note"),
        ("note", {"source": "\n \r\n first line \nsecond", "content": "text"}, "first line"),
        ("note", {"source": " ", "content": "# text\u2028more"}, "# text"),
        ("note", {"content": 7}, None),
        ("note", {"relativePath": "torn \ud83d.md"}, "torn \ufffd"),
        ("external", {}, None),
    ],
)
def test_items_are_called_as_the_application_calls_them(kind, data, name):
    assert item_name(kind, data) == name


@pytest.mark.thorough
@pytest.mark.parametrize("data", ["[]", "{", "", 7, "[" * 100_000])
def test_an_item_whose_data_cannot_be_read_has_no_name(library, data):
    changed(library, "UPDATE knowledge_item SET data = ?", data)
    assert {hit["item_name"] for hit in found(library, "needle", "--mode", "bm25")["hits"]} == {None}


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["bm25", "vector", "hybrid"])
def test_half_surrogates_in_texts_paths_and_names_are_read(library, vector, mode):
    torn = b"x\xed\xa0\xbd.md"
    cast = "CAST(? AS TEXT)"
    changed(library, f"UPDATE knowledge_base SET name = {cast}", torn)
    data = b'{"source": "a", "relativePath": "' + torn + b'"}'
    changed(library, f"UPDATE knowledge_item SET data = {cast} WHERE id = ?", data, library.item_id("i0"))
    with closing(apsw.Connection(str(library.index_path("big")))) as db:
        change = f"UPDATE material SET relative_path = {cast} WHERE material_id = ?"
        db.execute(change, (torn, library.item_id("i0")))
        db.execute(f"UPDATE search_text SET text = {cast} WHERE text = ?", (b"needle \xed\xb0\x80 torn", TEXTS[0]))
    document = found(library, "needle", "--mode", mode, "-k", "16", "--vector", vector)
    hit = next(hit for hit in document["hits"] if "torn" in hit["text"])
    assert hit["text"] == "needle \ufffd torn"
    assert (hit["relative_path"], hit["item_name"], hit["base_name"]) == ("x\ufffd.md",) * 3
    done = run("search", library.path, "ne torn", "--base", library.base_id("big"), "--vector", vector, "--mode", mode)
    assert "x\ufffd.md" in done.stdout


# --- what is refused -----------------------------------------------------------------------------------------------


def test_a_failed_base_is_refused(library):
    changed(
        library,
        "UPDATE knowledge_base SET status = 'failed', error = 'missing_vector_store' WHERE id = ?",
        library.base_id("big"),
    )
    said = refused("BaseFailed", library.path, "needle", "--base", library.base_id("big"))
    assert "missing_vector_store" in said
    assert len(found(library, "needle", "--raw", "--mode", "bm25")["hits"]) == 10


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["bm25", "vector", "hybrid"])
def test_a_query_without_a_word_is_refused_in_every_mode(library, vector, mode):
    options = ("--base", library.base_id("big"), "--mode", mode, "--vector", vector)
    assert "letter" in refused("QueryWithoutWord", library.path, " …?! ", *options)
    raw = found(library, " …?! ", "--raw", "--mode", mode, "--vector", vector)
    assert bool(raw["hits"]) is (mode != "bm25")


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_a_missing_vector_is_said_to_be_missing(library, mode):
    said = refused("QueryVectorMissing", library.path, "needle", "--base", library.base_id("big"), "--mode", mode)
    assert f"by {mode} needs a vector of the query" in said
    assert "--vector FILE with 4 numbers made by acme::embed-3" in said


@pytest.mark.thorough
@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "[1, 2, 3, null]", "[1, 2, 3, NaN]", "[1, 2, 3, 1e39]", "[1, 2, 3, 1e999]", "[1, 2", "\ud8ff"],
)
def test_what_is_no_vector_is_refused(library, tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    options = ("--base", library.base_id("big"), "--mode", "vector", "--vector", path)
    assert "not a vector" in refused("WrongUsage", library.path, "needle", *options)


@pytest.mark.parametrize("mode", ["vector", "hybrid"])
def test_a_vector_of_another_length_than_those_of_the_base_is_refused(library, tmp_path, mode):
    path = tmp_path / "short.json"
    path.write_text("[1, 2, 3]")
    options = ("--base", library.base_id("big"), "--mode", mode, "--vector", path)
    said = refused("QueryVectorUnfit", library.path, "needle", *options)
    assert f"has 3 numbers, but those of base {library.base_id('big')} have 4" in said


def test_a_vector_file_that_is_not_there_is_refused(library, tmp_path):
    options = ("--base", library.base_id("big"), "--vector", tmp_path / "nowhere")
    assert "nowhere" in refused("SourceUnreadable", library.path, "needle", *options)


def test_a_base_that_is_not_there_is_refused_with_those_that_are(library):
    said = refused("BaseUnknown", library.path, "needle", "--base", "other")
    assert "no base has this name or id" in said
    assert library.base_id("big") in said
    assert library.base_id("small") in said


def test_a_v1_source_cannot_be_searched(tmp_path, library):
    assert library.status in (0, 1)
    assert "migrate it first" in refused("NotSearchable", tmp_path / "v1", "needle")


def test_an_index_of_another_base_is_refused_as_the_application_does(library):
    index = library.index_path("big")
    with closing(apsw.Connection(str(index))) as db:
        db.execute("UPDATE meta SET base_id = 'other'")
    said = refused("IndexForeign", library.path, "needle", "--base", library.base_id("big"), "--mode", "bm25")
    assert f"{index}: this is the index of base other, not of {library.base_id('big')}" in said
    assert "--raw" in said
    assert len(found(library, "needle", "--raw", "--mode", "bm25")["hits"]) == 10


@pytest.mark.parametrize("version", [0, 3])
def test_an_unknown_version_is_refused(library, version):
    with closing(apsw.Connection(str(library.index_path("big")))) as db:
        db.execute("UPDATE meta SET schema_version = ?", (version,))
    assert f"version {version}" in refused("IndexVersionUnknown", library.index_path("big"), "needle", "--raw")


def test_a_base_that_the_catalog_does_not_know_is_refused(library):
    changed(library, "DELETE FROM knowledge_item")
    changed(library, "DELETE FROM knowledge_base WHERE id = ?", library.base_id("big"))
    assert "--raw" in refused("BaseNotListed", library.path, "needle", "--base", library.base_id("big"))
    assert len(found(library, "needle", "--raw")["hits"]) == 10


def test_a_base_without_an_index_is_refused(library):
    library.index_path("big").unlink()
    said = refused("BaseWithoutIndex", library.path, "needle", "--base", library.base_id("big"))
    assert said.startswith(f"{library.path}: base {library.base_id('big')} has no readable index")


def test_a_library_without_a_base_is_refused(tmp_path):
    empty = carried(tmp_path)
    assert "a v2 library without a base" in refused("NotSearchable", empty.path, "needle")


def test_a_damaged_index_is_one_line(library):
    index = library.index_path("big")
    options = ("--base", library.base_id("big"), "--mode", "bm25")
    with closing(apsw.Connection(str(index))) as db:
        db.execute("DROP TABLE search_text_fts")
    assert str(index) in refused("SourceUnreadable", library.path, "needle", *options)
    raw = bytearray(index.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    index.write_bytes(raw)
    refused("BaseWithoutIndex", library.path, "needle", *options)


@pytest.mark.thorough
def test_a_query_that_is_too_long_is_refused(library):
    options = ("--base", library.base_id("big"), "--mode", "bm25")
    assert "too long" in refused("QueryTooLong", library.path, "知a" * 20_000, *options)


# --- kinds of paths and bases --------------------------------------------------------------------------------------


def _where_library(library: Library) -> Path:
    return library.path


def _where_folder(library: Library) -> Path:
    return library.folder("big")


def _where_index(library: Library) -> Path:
    return library.index_path("big")


@pytest.mark.thorough
@pytest.mark.parametrize("where", [_where_library, _where_folder, _where_index])
def test_a_base_is_searched_by_the_catalog_above_it(library, where: Callable[[Library], Path]):
    configured(library, document_count=2)
    done = run("search", where(library), "needle", "--base", library.base_id("big"), "--mode", "bm25", "--json")
    assert done.status == 0, done.stderr
    assert (done.document["count"], done.document["base"]) == (2, library.base_id("big"))


def test_a_base_is_known_by_its_v1_id_too(library):
    assert identity.base_id("big") == library.base_id("big")
    assert run("search", library.path, "needle", "--base", "big", "--mode", "bm25").status == 0


def test_an_index_file_that_lies_anywhere_is_asked_alone(library, tmp_path, vector):
    place = tmp_path / "elsewhere" / "copy.db"
    place.parent.mkdir()
    place.write_bytes(library.index_path("big").read_bytes())
    words = run("search", place, "needle", "--json").document
    assert (words["mode"], words["base"], len(words["hits"])) == ("bm25", library.base_id("big"), 10)
    both = run("search", place, "needle", "--vector", vector, "--json").document
    assert (both["mode"], both["alpha"]) == ("hybrid", 0.5)


def test_a_v2_backup_is_searched_in_its_archive(library, tmp_path):
    packed = tmp_path / "backup.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("metadata.json", '{"version": 7}')
        archive.write(library.path / "catalog.sqlite", "cherrystudio.sqlite")
        for path in sorted((library.path / "KnowledgeBase").rglob("*")):
            archive.write(path, f"Data/KnowledgeBase/{path.relative_to(library.path / 'KnowledgeBase')}")
    options = ("--base", library.base_id("big"), "--mode", "bm25", "--json")
    done = run("search", packed, "needle", *options)
    assert done.status == 0, done.stderr
    assert done.document["source"]["kind"] == "v2-backup"
    assert done.document["hits"] == found(library, "needle", "--mode", "bm25")["hits"]


def test_a_vector_of_zeros_is_near_to_nothing(library, tmp_path):
    zeros = tmp_path / "zeros.json"
    zeros.write_text("[0, 0, 0, 0]")
    document = found(library, "needle", "--mode", "vector", "--vector", zeros)
    assert document["hits"] == []
    assert any("zeros" in said for said in document["notes"])


def test_a_vector_is_read_from_stdin(library, vector):
    options = ("--mode", "vector", "--raw")
    usual = found(library, "needle", *options, "--vector", vector)
    arguments = ["search", str(library.path), "needle", "--base", "big", "--json", *options, "--vector", "-"]
    done = CliRunner().invoke(cli, arguments, input=f"[{QUERY}]")
    assert json.loads(done.stdout)["hits"] == usual["hits"]


# --- what a person reads -------------------------------------------------------------------------------------------


def test_a_person_reads_rank_score_place_and_the_start_of_the_text(tmp_path):
    body = "needle \x1b[31mred\n" + "long " * 60
    made = carried(tmp_path, base("big", file("i", "L", name="f.pdf")), stores={"big": [Row("L", body)]})
    done = run("search", made.path, "needle", "--mode", "bm25")
    assert done.status == 0
    assert "1 hit by words." in done.stdout
    assert "f.pdf, unit 0" in done.stdout
    assert "\x1b" not in done.stdout
    assert "…" in done.stdout
    assert "…" not in run("search", made.path, "needle", "--mode", "bm25", "-v").stdout


def test_the_length_of_a_body_is_shown_as_no_score(library):
    options = (library.path, "03", "--base", library.base_id("big"))
    done = run("search", *options)
    assert "  1  f3.pdf, unit 0\n" in done.stdout
    score = -len(TEXTS[3])
    assert f"  1  {score}  " in run("search", *options, "--raw").stdout
    assert run("search", *options, "--json").document["hits"][0]["score"] == score
    assert "  1  f0.pdf, unit 0" not in run("search", library.path, "needle", "--base", "Base big").stdout


def test_notes_go_to_stderr_and_quiet_leaves_them_out(library, vector):
    options = ("--base", library.base_id("big"), "--mode", "bm25", "--vector", vector)
    assert run("search", library.path, "needle", *options).stderr.startswith("note: the vector is not used")
    assert run("search", library.path, "needle", *options, "--quiet").stderr == ""


# --- what the application itself wrote -----------------------------------------------------------------------------


@golden
@pytest.mark.parametrize("name", ["profile_upgraded", "profile_208_upgraded"])
def test_a_profile_of_the_application_is_searched_without_a_trace(tmp_path, name):
    profile = GOLDEN / name
    before = snapshot(profile)
    index = next(profile.glob("Data/KnowledgeBase/*/.cherry/index.sqlite"))
    with opened(index) as db:
        text, blob = db.execute(
            "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash) LIMIT 1"
        ).get
    file_of_vector = tmp_path / "vector.json"
    file_of_vector.write_text(json.dumps(list(memoryview(blob).cast("f"))), "utf-8")
    done = run("search", profile, "greenhouse", "--mode", "vector", "--vector", file_of_vector, "--json")
    assert done.status == 0, done.stderr
    assert done.document["hits"][0]["text"] == text
    assert done.document["hits"][0]["score"] == pytest.approx(1, abs=1e-6)
    both = run("search", profile, "greenhouse", "--vector", file_of_vector, "--json").document
    assert (both["mode"], both["alpha"], both["base_name"]) == ("hybrid", 0.5, "Research notes")
    assert all(hit["item_name"] for hit in both["hits"])
    assert snapshot(profile) == before
