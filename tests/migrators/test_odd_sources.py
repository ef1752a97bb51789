"""Odd v1 data from end to end: every row of the tables in the rules for bases, items, directories and rows."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
import zipfile
from collections import Counter
from contextlib import closing
from hashlib import md5
from pathlib import Path
from typing import Any

import apsw
import pytest
from harness import NOW, NOW_MS, run
from v1 import (
    CREATED,
    LLM,
    MODEL,
    PLAIN,
    STRICT,
    UNTYPED,
    UPDATED,
    USUAL,
    Library,
    RawText,
    Row,
    Source,
    base,
    carried,
    check_library,
    dicts,
    file,
    floats,
    folder,
    metadata,
    migrate,
    note,
    opened,
    pack,
    page,
    vector_of,
    write_store,
)

from regraft import identity

# --- bases: identity -----------------------------------------------------------------------------------------------


NO_BASES = [
    None,
    7,
    "kb",
    [],
    {},
    {"id": "only-id"},
    {"name": "only name"},
    base("", name="no id"),
    base("kb", id=7),
    base("kb", id=None),
    base("kb", name=USUAL),
    base("kb", name=None),
    base("kb", name=5),
    base("kb", name=["a"]),
    base("kb", name=""),
]


def test_what_is_no_base_is_skipped_and_does_not_use_its_id_up(tmp_path: Path) -> None:
    library = carried(tmp_path, *NO_BASES, base("kb"), stores={"kb": [Row("L", "text")]})
    assert [entry["legacy_id"] for entry in library.report["bases"]] == ["kb"]
    assert library.base("kb")["status"] == "completed"
    assert library.report["skipped"] == {"invalid_knowledge_base_identity": len(NO_BASES)}


def test_the_later_of_two_bases_with_one_id_is_skipped_with_its_items(tmp_path: Path) -> None:
    first = base("kb", note("first", "L1"), name="First")
    second = base("kb", note("second", "L2"), note("third", "L3"), name="Second")
    later = base("other", note("third", "L1"))
    library = carried(
        tmp_path, first, second, later, stores={"kb": [Row("L1", "one"), Row("L2", "two")], "other": [Row("L1", "x")]}
    )
    assert [entry["name"] for entry in library.report["bases"]] == ["First", "Base other"]
    assert library.report["skipped"] == {"duplicate_knowledge_base": 1}
    # Items of a skipped base were not migrated, so their ids are free.
    assert set(library.report["ids"]["items"]) == {"first", "third"}
    assert library.bodies("kb") == ["one"]
    assert library.skipped_rows("kb") == {"unmapped_loader": 1}


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Library:
    names = {"trimmed": " \t\ufeffA name\u3000\n", "inner": "two  words", "blank": " \u00a0\ufeff", "nel": "\u0085"}
    bases = [base(key, name=name) for key, name in names.items()]
    return carried(tmp_path_factory.mktemp("named"), *bases)


@pytest.mark.parametrize(
    ("legacy_id", "name"), [("trimmed", "A name"), ("inner", "two  words"), ("blank", "blank"), ("nel", "\u0085")]
)
def test_names_are_trimmed_as_javascript_does_it(named: Library, legacy_id: str, name: str) -> None:
    assert named.base_row(legacy_id)["name"] == name


def test_a_blank_name_is_a_warning(named: Library) -> None:
    assert [(said["base"], said["item"]) for said in named.warnings("blank_base_name")] == [("blank", None)]


@pytest.mark.parametrize("name", ["\0", "\0name", " \0 "])
def test_a_name_that_begins_with_nul_does_not_stop_the_run(tmp_path: Path, name: str) -> None:
    library = carried(tmp_path, base("odd", name=name), base("kb"), stores={"kb": [Row("L", "text")]})
    assert library.base("kb")["status"] == "completed"
    assert len(library.catalog("knowledge_base")) == 2


# --- bases: models -------------------------------------------------------------------------------------------------


def model(provider: Any = "acme", model_id: Any = "embed-3", **fields: Any) -> dict[str, Any]:
    return {"id": model_id, "provider": provider, **fields}


#: v1's model, the id that it becomes, and the code that is said of it.
RESOLVING = {
    "listed": (model(), "acme::embed-3", None),
    "both parts are trimmed": (model(" acme\t", "\ufeffembed-3 "), "acme::embed-3", None),
    "the id holds ::": (model("whatever", "acme::embed-3"), "acme::embed-3", None),
    "the id holds :: and the provider is no text": (model(None, "acme::embed-3"), "acme::embed-3", None),
    "the id holds :: twice": (model("x", "acme::a::b"), "acme::a::b", "model_recreated"),
    "dangling with its provider": (model("acme", "gone", name="Gone one"), "acme::gone", "model_recreated"),
    "dangling without a name": (model("acme", "nameless"), "acme::nameless", "model_recreated"),
    "provider without models": (model("empty", "any"), "empty::any", "model_recreated"),
}
FAILING = {
    "provider gone": model("nowhere", "embed-3"),
    "the id holds :: of a provider that is gone": model("acme", "nowhere::embed-3"),
    "provider holds ::": model("ac::me", "embed-3"),
    "no model": USUAL,
    "null": None,
    "text": "acme::embed-3",
    "list": [MODEL],
    "id is a number": model("acme", 3),
    "id is blank": model("acme", " "),
    "provider is blank": model(" ", "embed-3"),
    "provider is missing": {"id": "embed-3"},
    "id is only ::": model("acme", "::"),
    "nothing before ::": model("acme", "::embed-3"),
    "nothing after ::": model("acme", "acme::"),
}
PROVIDERS = [
    *LLM["providers"],
    {"id": "empty"},
    {"id": "ac::me", "models": [{"id": "embed-3"}]},
    {"id": "odd", "models": {"id": "x"}},
    {"id": 7, "models": [MODEL]},
    {"models": [MODEL]},
    None,
    "acme",
    {"id": "acme", "name": "Twice", "models": [None, 5, {"id": None}, {"name": "x"}]},
]


def one_item_each(names: Any) -> tuple[list[dict[str, Any]], dict[str, list[Row]]]:
    """Return a base with one indexed note for every name, and their vector files."""
    bases = [base(f"b{at}", note(f"n{at}", f"L{at}")) for at, _ in enumerate(names)]
    return bases, {f"b{at}": [Row(f"L{at}", f"text {at}"), Row("none", "left over")] for at, _ in enumerate(names)}


@pytest.fixture(scope="module")
def modelled(tmp_path_factory: pytest.TempPathFactory) -> Library:
    bases, stores = one_item_each([*RESOLVING, *FAILING])
    models = [wanted for wanted, _, _ in RESOLVING.values()] + [*FAILING.values()]
    for entry, named in zip(bases, models, strict=True):
        if named is USUAL:
            del entry["model"]
        else:
            entry["model"] = named
    place = tmp_path_factory.mktemp("modelled")
    return carried(place, *bases, stores=stores, llm={"providers": PROVIDERS})


@pytest.mark.parametrize("case", RESOLVING)
def test_a_model_that_resolves_is_kept(modelled: Library, case: str) -> None:
    legacy_id = f"b{[*RESOLVING].index(case)}"
    _, wanted, code = RESOLVING[case]
    assert modelled.base_row(legacy_id)["embedding_model_id"] == wanted
    assert modelled.base(legacy_id)["status"] == "completed"
    assert modelled.rows(legacy_id)["carried"] == 1
    said = [warning["code"] for warning in modelled.report["warnings"] if warning["base"] == legacy_id]
    assert said == [code, "unmapped_loader"] if code else ["unmapped_loader"]
    row = next(row for row in modelled.catalog("user_model") if row["id"] == wanted)
    provider, _, model_id = wanted.partition("::")
    assert (row["provider_id"], row["model_id"]) == (provider, model_id)


@pytest.mark.parametrize("case", FAILING)
def test_a_base_without_a_model_is_kept_as_failed(modelled: Library, case: str) -> None:
    at = len(RESOLVING) + [*FAILING].index(case)
    row = modelled.base_row(f"b{at}")
    assert (row["status"], row["error"]) == ("failed", "missing_embedding_model")
    assert (row["embedding_model_id"], row["dimensions"]) == (None, 4)
    assert modelled.item(f"n{at}")["status"] == "completed"
    assert modelled.rows(f"b{at}") == {
        "read": 2,
        "carried": 0,
        "skipped": {"missing_embedding_model": 2},
        "without_vector": 0,
        "v1_deduplicated": 0,
        "restored_duplicate": 0,
    }
    assert [said["base"] for said in modelled.warnings("missing_embedding_model")].count(f"b{at}") == 1


def test_every_model_is_written_in_full(modelled: Library) -> None:
    columns = ("name", "capabilities", "supports_streaming")
    names = {row["id"]: tuple(row[column] for column in columns) for row in modelled.catalog("user_model")}
    assert names["acme::embed-3"] == ("Embed 3", '["embedding"]', 1)
    assert names["acme::gone"] == ("Gone one", '["embedding"]', 1)
    assert names["acme::nameless"] == ("nameless", '["embedding"]', 1)
    assert {row["provider_id"]: row["name"] for row in modelled.catalog("user_provider")} == {
        "acme": "Acme",
        "empty": "empty",
    }


def test_without_an_llm_slice_every_named_model_exists(tmp_path: Path) -> None:
    bases, stores = one_item_each(["named", "other", "none"])
    bases[1]["model"] = model("some where", "m", name="M")
    bases[1]["rerankModel"] = model("x", "rerank-1")
    bases[2]["model"] = None
    library = carried(tmp_path, *bases, stores=stores, llm=None)
    assert [entry["error"] for entry in library.report["bases"]] == [None, None, "missing_embedding_model"]
    row = library.base_row("b1")
    assert (row["embedding_model_id"], row["rerank_model_id"]) == ("some where::m", "x::rerank-1")
    assert library.codes()["models_unknown"] == 1
    assert "model_recreated" not in library.codes()
    assert {row["provider_id"] for row in library.catalog("user_provider")} == {"acme", "some where", "x"}


@pytest.mark.parametrize("llm", [{}, {"providers": []}, {"providers": None}, {"providers": {}}, {"providers": [None]}])
def test_an_llm_slice_without_providers_says_that_none_exists(tmp_path: Path, llm: Any) -> None:
    library = carried(tmp_path, base("kb"), stores={"kb": [Row("L", "text")]}, llm=llm)
    assert library.base("kb")["error"] == "missing_embedding_model"
    assert "models_unknown" not in library.codes()


def test_dimensions_of_a_base_without_model_are_those_of_the_state(tmp_path: Path) -> None:
    # Keys that are equal (1, True) would meet in a dict.
    stated = [(16, 16), (16.0, 16), (1, 1), (0, None), (-3, None), (1.5, None), (True, None), (None, None), ([], None)]
    bases = [base(f"b{at}", model=None, dimensions=value) for at, (value, _) in enumerate(stated)]
    library = carried(tmp_path, *bases, stores={"b0": [Row("L", "text")]})
    assert [row["dimensions"] for row in library.catalog("knowledge_base")] == [wanted for _, wanted in stated]


def test_the_word_of_the_user_carries_what_is_dangling(tmp_path: Path) -> None:
    bases, stores = one_item_each(["mapped", "recreated", "not named"])
    for entry, provider in zip(bases, ("old", "lost", "other"), strict=True):
        entry["model"] = model(provider, "m", name="The model")
    options = ["--map-model", "old::m=acme::embed-3", "--recreate-model", "lost::m"]
    library = carried(tmp_path, *bases, stores=stores, options=options)
    rows = library.catalog("knowledge_base")
    assert [row["embedding_model_id"] for row in rows] == ["acme::embed-3", "lost::m", None]
    assert [row["status"] for row in rows] == ["completed", "completed", "failed"]
    assert [row["dimensions"] for row in rows] == [4, 4, 4]
    assert library.bodies("b0") == ["text 0"]
    assert library.bodies("b1") == ["text 1"]
    names = {row["id"]: row["name"] for row in library.catalog("user_model")}
    assert names == {"acme::embed-3": "Embed 3", "lost::m": "The model"}


def test_a_model_can_be_mapped_to_one_that_nobody_has(tmp_path: Path) -> None:
    bases, stores = one_item_each(["a"])
    bases[0]["model"] = model("old", "m")
    bases[0]["rerankModel"] = model("new", "n")
    library = carried(tmp_path, *bases, stores=stores, options=["--map-model", "old::m=new::n"])
    row = library.base_row("b0")
    # An embedding model that was made for the base resolves its rerank model too.
    assert (row["embedding_model_id"], row["rerank_model_id"]) == ("new::n", "new::n")
    assert [entry["provider_id"] for entry in library.catalog("user_provider")] == ["new"]


@pytest.mark.parametrize("word", ["nothing", "=acme::m", "old::m=", "old::m=acme", "old::m=::m"])
def test_a_word_that_is_none_is_refused(tmp_path: Path, word: str) -> None:
    source = Source([base("kb")]).write(tmp_path / "v1")
    done = run("migrate", source, "--to", tmp_path / "out", "--map-model", word)
    assert done.status == 2
    assert "--map-model" in done.stderr
    assert not (tmp_path / "out").exists()


def test_rerank_models(tmp_path: Path) -> None:
    dangling = model("nowhere", "r")
    cases: dict[str, tuple[dict[str, Any], str | None, bool]] = {
        "exists": ({"rerankModel": MODEL}, "acme::embed-3", False),
        "none": ({}, None, False),
        "null": ({"rerankModel": None}, None, False),
        "too early": ({"rerankModel": model("acme", "late")}, None, True),
        "made for it": ({"model": model("acme", "own"), "rerankModel": model("acme", "own")}, "acme::own", False),
        "makes": ({"model": model("acme", "late")}, None, False),
        "made before": ({"rerankModel": model("acme", "late")}, "acme::late", False),
        "dangling": ({"rerankModel": dangling}, None, True),
        "provider there": ({"rerankModel": model("acme", "gone")}, None, True),
        "failed base": ({"model": None, "rerankModel": MODEL}, "acme::embed-3", False),
    }
    bases = [base(f"b{at}", **fields) for at, (fields, _, _) in enumerate(cases.values())]
    library = carried(tmp_path, *bases, stores={f"b{at}": [Row("L", "x")] for at, _ in enumerate(bases)})
    found = [row["rerank_model_id"] for row in library.catalog("knowledge_base")]
    assert dict(zip(cases, found, strict=True)) == {name: wanted for name, (_, wanted, _) in cases.items()}
    cleared = {said["base"] for said in library.warnings("rerank_model_cleared")}
    assert cleared == {f"b{at}" for at, (_, _, warns) in enumerate(cases.values()) if warns}


# --- bases: vector files -------------------------------------------------------------------------------------------


def bytes_of_store(tmp_path: Path, rows: list[Row], ddl: str = STRICT) -> bytes:
    path = tmp_path / "made.sqlite"
    path.unlink(missing_ok=True)
    return write_store(path, rows, ddl).read_bytes()


def without_column(name: str) -> str:
    columns = ("id", "pageContent", "uniqueLoaderId", "source", "vector", "metadata")
    return f"CREATE TABLE vectors ({', '.join(column for column in columns if column != name)})"


def many(count: int = 400) -> list[Row]:
    return [Row("L", f"text {number} " + "x" * 100) for number in range(count)]


def _broken_stores(tmp_path: Path) -> dict[str, bytes | None]:
    whole = bytes_of_store(tmp_path, many())
    page = 4096
    torn = bytearray(whole)
    # A page in the middle of the file: the first rows still read.
    for at in range(len(whole) // 2 // page, len(whole) // 2 // page + 3):
        torn[at * page : (at + 1) * page] = b"\xff" * page
    broken: dict[str, bytes | None] = {
        "missing": None,
        "empty": b"",
        "text": b"no database at all, but longer than a header of SQLite would be" * 4,
        "header only": whole[:100],
        "one page": whole[:page],
        "half": whole[: len(whole) // 2 // page * page],
        "half of a page": whole[: len(whole) // 2 // page * page + 17],
        "page torn": bytes(torn),
        "no table": bytes_of_store(tmp_path, [Row("L", "x")], STRICT).replace(b"vectors", b"vektors"),
        "a view": None,
    }
    for column in ("pageContent", "uniqueLoaderId", "source", "vector"):
        broken[f"no column {column}"] = bytes_of_store(tmp_path, [Row("L", "x")], without_column(column))
    return broken


BROKEN = [
    "missing",
    "empty",
    "text",
    "header only",
    "one page",
    "half",
    "half of a page",
    "page torn",
    "no table",
    "a view",
    "no column pageContent",
    "no column uniqueLoaderId",
    "no column source",
    "no column vector",
    "a folder",
    "a dangling link",
]
#: Readable, but without a usable vector: rows are read and skipped for the base's reason.
UNUSABLE = {
    "no rows": [],
    "only NULL": [Row("L", "x", None), Row("M", "y", None)],
    "only odd": [Row("L", "x", b"abc"), Row("L", "y", "text"), Row("L", "z", b"")],
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """A library of a base for every broken or unusable vector file, and a good one between."""
    place = tmp_path_factory.mktemp("stored")
    stores: dict[str, Any] = {name: raw for name, raw in _broken_stores(place).items() if raw is not None}
    stores |= {**UNUSABLE, "good": [Row("L-good", "fine")]}
    names = [*BROKEN[:8], "good", *BROKEN[8:], *UNUSABLE]
    bases = [
        base(name, note(f"note {name}", "L"), folder(f"folder {name}", "D"), file(f"file {name}", "F"))
        for name in names
    ]
    bases[8]["items"].append(page("page good", "L-good"))
    source = Source(bases, stores, uploads={"up-file a folder.pdf": b"kept"}).write(place / "v1")
    vectors = source / "KnowledgeBase"
    (vectors / "a folder").mkdir()
    (vectors / "a dangling link").symlink_to("nowhere")
    with closing(apsw.Connection(str(vectors / "a view"))) as db:
        db.execute("CREATE TABLE t (id, pageContent, uniqueLoaderId, source, vector)")
        db.execute("CREATE VIEW vectors AS SELECT * FROM t")
    return migrate(source, place / "library")


@pytest.mark.parametrize("name", [*BROKEN, *UNUSABLE])
def test_a_base_without_a_vector_file_is_kept_with_model_and_items(stored: Library, name: str) -> None:
    row = stored.base_row(name)
    assert (row["status"], row["error"]) == ("failed", "missing_vector_store")
    known = {"no column pageContent": 4, "no column uniqueLoaderId": 4, "no column source": 4}
    assert (row["embedding_model_id"], row["dimensions"]) == ("acme::embed-3", known.get(name))
    assert stored.base(name)["directories"] == {"expanded": 0, "children": 0, "tombstones": 1}
    assert stored.item(f"note {name}")["status"] == "completed"
    assert stored.item(f"file {name}")["status"] == "completed"
    tombstone = stored.item(f"folder {name}")
    assert (tombstone["status"], tombstone["error"]) == ("failed", "directory_not_migrated")


@pytest.mark.parametrize("name", BROKEN)
def test_an_unreadable_vector_file_has_no_rows(stored: Library, name: str) -> None:
    assert stored.rows(name) == {
        "read": 0,
        "carried": 0,
        "skipped": {},
        "without_vector": 0,
        "v1_deduplicated": 0,
        "restored_duplicate": 0,
    }


@pytest.mark.parametrize("name", BROKEN)
def test_a_tombstone_of_an_unreadable_file_can_still_be_recovered(stored: Library, name: str) -> None:
    [said] = [said for said in stored.warnings("directory_not_migrated") if said["base"] == name]
    assert said["item"] == f"folder {name}"
    assert "later run" in said["message"]


@pytest.mark.parametrize("name", UNUSABLE)
def test_rows_without_a_usable_vector_are_skipped_for_the_base(stored: Library, name: str) -> None:
    count = len(UNUSABLE[name])
    assert stored.rows(name)["read"] == count
    assert stored.skipped_rows(name) == ({"missing_vector_store": count} if count else {})


@pytest.mark.parametrize("name", ["only NULL", "only odd"])
def test_a_tombstone_of_a_file_that_reads_is_not_said_to_come_back(stored: Library, name: str) -> None:
    [said] = [said for said in stored.warnings("directory_not_migrated") if said["base"] == name]
    assert "later run" not in said["message"]


def test_every_failed_base_is_said_once_and_harms_no_other(stored: Library) -> None:
    said = Counter(warning["base"] for warning in stored.warnings("missing_vector_store"))
    assert said == dict.fromkeys([*BROKEN, *UNUSABLE], 1)
    assert stored.base("good")["status"] == "completed"
    assert stored.bodies("good") == ["fine"]


def test_uploads_of_a_failed_base_are_copied(stored: Library) -> None:
    copies = [content for name in BROKEN for content in stored.raw(name).values()]
    assert copies == [b"kept"]
    assert not stored.folder("missing").exists()


def test_a_second_run_fails_the_same_bases_again_and_writes_nothing(stored: Library) -> None:
    before = {path: path.stat().st_mtime_ns for path in stored.path.rglob("*") if path.is_file()}
    again = migrate(stored.path.parent / "v1", stored.path)
    outcomes = {entry["legacy_id"]: entry["outcome"] for entry in again.report["bases"]}
    assert outcomes == {"good": "unchanged", **dict.fromkeys([*BROKEN, *UNUSABLE], "failed")}
    assert again.report["warnings"] == stored.report["warnings"]
    changed = {path for path, stamp in before.items() if path.stat().st_mtime_ns != stamp}
    assert {path for path in changed if ".regraft" not in path.parts} == set()


def test_model_and_vector_file_both_bad_is_the_models_fault(tmp_path: Path) -> None:
    bases = [base("gone", model=None), base("empty", model=None), base("null", note("n", "L"), model=None)]
    stores = {"empty": b"", "null": [Row("L", "x", None), Row("L", "y", "text")]}
    library = carried(tmp_path, *bases, stores=stores)
    assert {entry["error"] for entry in library.report["bases"]} == {"missing_embedding_model"}
    assert {row["dimensions"] for row in library.catalog("knowledge_base")} == {4}
    assert library.rows("empty")["read"] == 0
    assert library.skipped_rows("null") == {"missing_embedding_model": 2}


def test_a_vector_file_that_is_a_link_out_of_the_source_is_followed_where_that_is_wanted(tmp_path: Path) -> None:
    write_store(tmp_path / "elsewhere" / "real", [Row("L", "linked")])
    source = Source([base("kb", note("n", "L"))]).write(tmp_path / "v1")
    (source / "KnowledgeBase" / "kb").symlink_to(tmp_path / "elsewhere" / "real")
    library = migrate(source, tmp_path / "library")
    [warning] = library.warnings("missing_vector_store")
    assert "is a link to" in warning["message"]
    assert "outside of the source; use --follow-links to follow it" in warning["message"]
    assert migrate(source, tmp_path / "followed", "--follow-links").bodies("kb") == ["linked"]


@pytest.mark.parametrize("where", ["the file", "the folder"])
@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_an_upload_behind_a_link_never_lands_in_the_library(tmp_path: Path, where: str, jobs: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "up-f.pdf").write_bytes(b"somebody else's")
    bases = [base(name, file(f"f{name}", "F", content=metadata("up-f", "a.pdf"))) for name in ("kb", "kc")]
    source = Source(bases, {name: [Row("F", "text")] for name in ("kb", "kc")}).write(tmp_path / "v1")
    if where == "the file":
        (source / "Files" / "up-f.pdf").symlink_to(tmp_path / "elsewhere" / "up-f.pdf")
    else:
        (source / "Files").rmdir()
        (source / "Files").symlink_to(tmp_path / "elsewhere")
    library = migrate(source, tmp_path / "library", "--jobs", jobs)
    assert library.codes()["missing_upload"] == 2
    assert not any(path.read_bytes() == b"somebody else's" for path in library.path.rglob("*") if path.is_file())
    if where == "the file":
        assert "is a link to" in library.warnings("missing_upload")[0]["message"]
    else:
        assert [one["message"] for one in library.warnings("link_not_followed")] == [
            (
                f"Files is a link to {tmp_path / 'elsewhere'}, outside of the source, and was not followed; "
                "use --follow-links to follow it"
            )
        ]
    followed = migrate(source, tmp_path / "followed", "--jobs", jobs, "--follow-links")
    assert followed.codes()["missing_upload"] == 0
    assert list(followed.raw("kb").values()) == [b"somebody else's"]


def test_a_truncated_index_of_a_vector_file_loses_no_rows(tmp_path: Path) -> None:
    """Only the table itself is read: damage to the keys' own pages costs nothing."""
    path = write_store(tmp_path / "store", many())
    with closing(apsw.Connection(str(path))) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_vectors_2'").get
    raw = bytearray(path.read_bytes())
    raw[(root - 1) * 4096 : root * 4096] = b"\xff" * 4096
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": bytes(raw)})
    assert library.rows("kb")["carried"] == 400


@pytest.mark.parametrize("packed", [False, True])
def test_rows_in_a_log_beside_the_vector_file_count(tmp_path: Path, packed: bool) -> None:
    source = Source([base("kb", note("n", "L"))]).write(tmp_path / "v1")
    path = write_store(tmp_path / "live" / "kb", [Row("L", "checkpointed")])
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("INSERT INTO vectors VALUES ('L_1', 'in the log', 'L', 's', ?, '{}')", (vector_of("in the log"),))
        for name in ("kb", "kb-wal"):
            (source / "KnowledgeBase" / name).write_bytes((path.parent / name).read_bytes())
    place = pack(source, tmp_path / "backup.zip") if packed else source
    assert migrate(place, tmp_path / "library").bodies("kb") == ["checkpointed", "in the log"]


# --- bases: dimensions ---------------------------------------------------------------------------------------------


def of(dimensions: int, text: str) -> bytes:
    return vector_of(text, dimensions)


DIMENSIONS: dict[str, tuple[list[Row], int, dict[str, int]]] = {
    "the majority": (
        [Row("L", "a", of(3, "a")), Row("L", "b", of(5, "b")), Row("L", "c", of(5, "c"))],
        5,
        {"dimension_mismatch": 1},
    ),
    "a tie goes to the first row": (
        [Row("L", "a", of(6, "a")), Row("L", "b", of(5, "b")), Row("L", "c", of(5, "c")), Row("L", "d", of(6, "d"))],
        6,
        {"dimension_mismatch": 2},
    ),
    "a tie of later lengths goes to the earlier": (
        [Row("L", str(at), of(dimensions, str(at))) for at, dimensions in enumerate((2, 5, 3, 3, 5))],
        5,
        {"dimension_mismatch": 3},
    ),
    "rows of no item count": (
        [Row("L", "a", of(5, "a")), Row("x", "b", of(3, "b")), Row("y", "c", of(3, "c"))],
        3,
        {"dimension_mismatch": 1, "unmapped_loader": 2},
    ),
    "what is not usable does not count": (
        [Row("L", "a", "12345678"), Row("L", "b", b"12345"), Row("L", "c", None), Row("L", "d", of(1, "d"))],
        1,
        {"missing_vector_payload": 1, "unsupported_vector_encoding": 2},
    ),
    "one": ([Row("L", "a", of(1, "a"))], 1, {}),
    "very many": ([Row("L", "a", of(9000, "a"))], 9000, {}),
}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Library:
    bases = [base(name, note(f"note {name}", "L"), dimensions=1234) for name in DIMENSIONS]
    stores = {name: rows for name, (rows, _, _) in DIMENSIONS.items()}
    return carried(tmp_path_factory.mktemp("measured"), *bases, stores=stores, ddl=UNTYPED)


@pytest.mark.parametrize("name", DIMENSIONS)
def test_dimensions_come_from_the_vectors(measured: Library, name: str) -> None:
    rows, dimensions, skipped = DIMENSIONS[name]
    assert measured.base_row(name)["dimensions"] == dimensions
    assert measured.skipped_rows(name) == skipped
    wanted = [row.vector for row in rows if isinstance(row.vector, bytes) and len(row.vector) == 4 * dimensions]
    assert [unit.vector for unit in measured.units(name)] == [
        vector for vector in wanted if skipped.get("unmapped_loader") is None
    ]


# --- bases: settings -----------------------------------------------------------------------------------------------

#: Settings of v1; what they become: chunk size, overlap, threshold, document count; and the fields that are named.
SETTINGS: list[tuple[dict[str, Any], tuple[Any, ...], set[str]]] = [
    ({}, (1024, 200, None, None), set()),
    (
        {"chunkSize": None, "chunkOverlap": None, "threshold": None, "documentCount": None},
        (1024, 200, None, None),
        set(),
    ),
    ({"chunkSize": 512, "chunkOverlap": 20, "threshold": 0.5, "documentCount": 7}, (512, 20, 0.5, 7), set()),
    ({"chunkSize": "512", "chunkOverlap": " 20 ", "threshold": "0.5", "documentCount": "7"}, (512, 20, 0.5, 7), set()),
    ({"chunkSize": 512.0, "chunkOverlap": 20.0}, (512, 20, None, None), set()),
    ({"chunkSize": 1}, (1, 0, None, None), set()),
    ({"chunkSize": 100}, (100, 99, None, None), set()),
    ({"chunkSize": 201}, (201, 200, None, None), set()),
    ({"chunkOverlap": 0}, (1024, 0, None, None), set()),
    ({"chunkOverlap": 1023}, (1024, 1023, None, None), set()),
    ({"chunkOverlap": 1024}, (1024, 200, None, None), {"chunkOverlap"}),
    ({"chunkSize": 100, "chunkOverlap": 100}, (100, 99, None, None), {"chunkOverlap"}),
    ({"chunkSize": 100, "chunkOverlap": -1}, (100, 99, None, None), {"chunkOverlap"}),
    ({"chunkSize": 0}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": -5, "chunkOverlap": 5000}, (1024, 200, None, None), {"chunkSize", "chunkOverlap"}),
    ({"chunkSize": 1.5}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": "many"}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": ""}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": True}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": [512]}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkSize": 1e300}, (1024, 200, None, None), {"chunkSize"}),
    ({"chunkOverlap": 10.5}, (1024, 200, None, None), {"chunkOverlap"}),
    ({"threshold": 0}, (1024, 200, 0, None), set()),
    ({"threshold": 1}, (1024, 200, 1, None), set()),
    ({"threshold": 1.0001}, (1024, 200, None, None), {"threshold"}),
    ({"threshold": -0.1}, (1024, 200, None, None), {"threshold"}),
    ({"threshold": "high"}, (1024, 200, None, None), {"threshold"}),
    ({"threshold": {}}, (1024, 200, None, None), {"threshold"}),
    ({"documentCount": 1}, (1024, 200, None, 1), set()),
    ({"documentCount": 0}, (1024, 200, None, None), {"documentCount"}),
    ({"documentCount": 2.5}, (1024, 200, None, None), {"documentCount"}),
    ({"documentCount": -1}, (1024, 200, None, None), {"documentCount"}),
    (
        {"chunkSize": "x", "chunkOverlap": "y", "threshold": "z", "documentCount": False},
        (1024, 200, None, None),
        {"chunkSize", "chunkOverlap", "threshold", "documentCount"},
    ),
]


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Library:
    bases = [base(f"b{at}", **fields) for at, (fields, _, _) in enumerate(SETTINGS)]
    return carried(tmp_path_factory.mktemp("configured"), *bases)


@pytest.mark.parametrize("at", range(len(SETTINGS)), ids=lambda at: str(SETTINGS[at][0]))
def test_settings_are_kept_when_valid(configured: Library, at: int) -> None:
    _, wanted, named = SETTINGS[at]
    row = configured.base_row(f"b{at}")
    assert (row["chunk_size"], row["chunk_overlap"], row["threshold"], row["document_count"]) == wanted
    said = [warning["message"] for warning in configured.warnings("invalid_base_config") if warning["base"] == f"b{at}"]
    assert len(said) == bool(named), "one warning per base"
    assert set(re.findall("chunkSize|chunkOverlap|threshold|documentCount", " ".join(said))) == named


PROCESSORS = [
    ({"provider": {"id": "mineru"}}, "mineru"),
    ({"provider": {"id": ""}}, None),
    ({"provider": {"id": 7}}, None),
    ({"provider": {}}, None),
    ({"provider": None}, None),
    ({"provider": "mineru"}, None),
    ("mineru", None),
    ([], None),
    (None, None),
]


def test_file_processors(tmp_path: Path) -> None:
    bases = [base(f"b{at}", preprocessProvider=value) for at, (value, _) in enumerate(PROCESSORS)]
    library = carried(tmp_path, *bases, base("none"))
    found = [row["file_processor_id"] for row in library.catalog("knowledge_base")]
    assert found == [*(wanted for _, wanted in PROCESSORS), None]


def test_description_and_remark_are_kept_in_the_report(tmp_path: Path) -> None:
    described = base("kb", note("n", "L", remark="Look here"), page("p", remark=" "), description="About boats")
    library = carried(tmp_path, described, base("other", description=""), stores={"kb": [Row("L", "x")]})
    said = [(warning["base"], warning["item"], warning["message"]) for warning in library.warnings("dropped_field")]
    assert [(legacy_base, item) for legacy_base, item, _ in said] == [("kb", None), ("kb", "n")]
    assert "About boats" in said[0][2]
    assert "Look here" in said[1][2]


@pytest.mark.parametrize(
    ("pending", "alive"),
    [
        (["gone", 7, None, "elsewhere"], ["kb"]),
        ([], ["gone", "kb"]),
        ({"gone": 1}, ["gone", "kb"]),
        ('["gone"', ["gone", "kb"]),
        ("", ["gone", "kb"]),
    ],
)
def test_bases_that_were_to_be_deleted_stay_deleted(tmp_path: Path, pending: Any, alive: list[str]) -> None:
    bases = [base("gone", note("n", "L")), base("kb", note("n", "L"))]
    stores = {name: [Row("L", "x")] for name in ("gone", "kb")}
    library = carried(tmp_path, *bases, stores=stores, pending=pending)
    assert [entry["legacy_id"] for entry in library.report["bases"]] == alive
    assert library.report["skipped"].get("pending_delete", 0) == 2 - len(alive)
    # An item of a base that is not migrated does not use its id up.
    assert library.report["skipped"].get("duplicate_knowledge_item", 0) == len(alive) - 1
    assert library.codes()["pending_delete_unreadable"] == (not isinstance(pending, list))


def test_pending_deletions_of_a_backup_count(tmp_path: Path) -> None:
    source = Source([base("gone"), base("kb")], {"kb": [Row("L", "x")]}, pending=["gone"]).write(tmp_path / "v1")
    library = migrate(pack(source, tmp_path / "backup.zip"), tmp_path / "library")
    assert [entry["legacy_id"] for entry in library.report["bases"]] == ["kb"]


# --- bases: ids and their vector files -----------------------------------------------------------------------------

VECTOR_FILES = {
    "../up": ".._up",
    "..": "untitled",
    "a/b\\c": "a_b_c",
    "CON": "_",
    "nul.txt": "_.txt",
    "ends with dots..  ": "ends with dots",
    "\x07bell\x1f": "_bell_",
    "x" * 300: "x" * 255,
    "知识库 🎉": "知识库 🎉",
    "notes-wal": "notes-wal",
}


@pytest.mark.parametrize("packed", [False, True])
def test_base_ids_lead_to_their_sanitised_vector_files(tmp_path: Path, packed: bool) -> None:
    bases = [base(legacy_id, note(f"n{at}", f"L{at}")) for at, legacy_id in enumerate(VECTOR_FILES)]
    stores = {name: [Row(f"L{at}", f"text {at}")] for at, name in enumerate(VECTOR_FILES.values())}
    place = Source(bases, stores).write(tmp_path / "v1")
    library = migrate(pack(place, tmp_path / "backup.zip") if packed else place, tmp_path / "library")
    for at, legacy_id in enumerate(VECTOR_FILES):
        assert library.bodies(legacy_id) == [f"text {at}"], legacy_id
    # Nothing left the target by way of an id.
    assert {path.name for path in tmp_path.iterdir()} <= {"v1", "library", "backup.zip"}


def test_bases_whose_ids_meet_in_one_file_take_their_own_rows(tmp_path: Path) -> None:
    bases = [
        base("same:id", note("n1", "L1"), page("p1", "shared")),
        base("same?id", note("n2", "L2"), page("p2", "shared")),
    ]
    rows = [Row("L1", "one"), Row("shared", "both"), Row("L2", "two"), Row("L0", "nobody's")]
    library = carried(tmp_path, *bases, stores={"same_id": rows})
    assert library.bodies("same:id") == ["one", "both"]
    assert library.bodies("same?id") == ["both", "two"]
    for legacy_id in ("same:id", "same?id"):
        assert library.skipped_rows(legacy_id) == {"unmapped_loader": 2}


def test_an_id_too_long_for_any_file_name_is_a_missing_file(tmp_path: Path) -> None:
    library = carried(tmp_path, base("语" * 400), base("kb"), stores={"kb": [Row("L", "x")]})
    assert [entry["error"] for entry in library.report["bases"]] == ["missing_vector_store", None]


@pytest.mark.parametrize("name", ["knowledge.json", "state.json"])
def test_a_knowledge_slice_beside_its_vector_files(tmp_path: Path, name: str) -> None:
    place = tmp_path / "v1"
    write_store(place / "kb", [Row("L", "text")])
    (place / name).write_text(json.dumps({"bases": [base("kb", note("n", "L"))]}), "utf-8")
    library = migrate(place / name, tmp_path / "library")
    assert library.bodies("kb") == ["text"]


def test_a_knowledge_slice_in_the_same_folder_as_the_folder_of_vector_files(tmp_path: Path) -> None:
    place = tmp_path / "v1"
    write_store(place / "KnowledgeBase" / "kb", [Row("L", "text")])
    (place / "any name.json").write_text(json.dumps({"bases": [base("kb", note("n", "L"))]}), "utf-8")
    for at, path in enumerate((place, place / "any name.json")):
        library = migrate(path, tmp_path / f"library {at}")
        assert library.bodies("kb") == ["text"]
        assert library.codes()["models_unknown"] == 1


# --- items: files --------------------------------------------------------------------------------------------------


def a_file(item_id: str, content: Any, **fields: Any) -> dict[str, Any]:
    return file(item_id, content=content, **fields)


def without(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


FULL = metadata("f1", "inline.txt")
DEXIE_FILES = [
    None,
    5,
    "f1",
    [],
    {"name": "no id"},
    {"id": 7, "name": "x"},
    metadata("f1", "stored.txt", path="/stored/f1.txt"),
    metadata("twice", "first.txt"),
    metadata("twice", "second.txt"),
    metadata("partial", "partial.txt", size=None),
]
NEEDED = ("id", "name", "origin_name", "path", "ext", "type", "created_at", "size", "count")
#: Content of file items, and the original name they get; None where they are skipped.
FILES: dict[str, tuple[Any, str | None]] = {
    "complete": (metadata("gone", "alone.txt"), "alone.txt"),
    "only the id": ("f1", "stored.txt"),
    "inline wins": (FULL, "inline.txt"),
    "null counts as missing": ({**FULL, "origin_name": None, "path": None}, "stored.txt"),
    "only id and name": ({"id": "f1", "origin_name": "mine.txt"}, "mine.txt"),
    "the later row counts": ("twice", "second.txt"),
    "a partial row completed inline": ({"id": "partial", "size": 3}, "partial.txt"),
    "a partial row": ("partial", None),
    "unknown id": ("nowhere", None),
    "no content": (None, None),
    "number": (5, None),
    "list": (["f1"], None),
    "empty": ({}, None),
    "inline of a wrong type wins too": ({**FULL, "size": "14"}, None),
    "bool is no number": ({**FULL, "count": True}, None),
    "id is a number": ({**FULL, "id": 1}, None),
    "path is a list": ({**FULL, "path": []}, None),
    "size is fractional": ({**FULL, "size": 1.5}, "inline.txt"),
    "blank path and names": ({**FULL, "id": "gone", "path": " ", "name": "", "origin_name": "  "}, "untitled"),
    **{f"complete but for {name}": (without(metadata("gone", "x.txt"), name), None) for name in NEEDED if name != "id"},
}


@pytest.fixture(scope="module")
def filed(tmp_path_factory: pytest.TempPathFactory) -> Library:
    items = [a_file(name, content) for name, (content, _) in FILES.items()]
    store = {"kb": [Row("L", "text")]}
    return carried(tmp_path_factory.mktemp("filed"), base("kb", *items), stores=store, files=DEXIE_FILES)


@pytest.mark.parametrize("name", FILES)
def test_metadata_of_files_are_completed_or_the_item_is_skipped(filed: Library, name: str) -> None:
    _, wanted = FILES[name]
    skipped = [said["item"] for said in filed.warnings("knowledge_item_invalid_file")]
    assert (name in skipped) == (wanted is None)
    if wanted is not None:
        # Names that meet are made free in the order of the items.
        stem, _, ext = wanted.partition(".")
        assert re.fullmatch(rf"{stem}(_\d+)?(\.{ext})?", filed.item(name)["data"]["relativePath"])


def test_skipped_files_are_counted(filed: Library) -> None:
    count = sum(wanted is None for _, wanted in FILES.values())
    assert filed.report["skipped"] == {"knowledge_item_invalid_file": count}


#: path, name, origin_name; what `source` and `relativePath` become.
FALLBACKS = {
    "all": (("/p/a.txt", "s.txt", "o.txt"), ("/p/a.txt", "o.txt")),
    "blank path": ((" ", "s.txt", "o2.txt"), ("s.txt", "o2.txt")),
    "blank path and name": (("", "\ufeff", "o3.txt"), ("o3.txt", "o3.txt")),
    "nothing": (("", "", ""), ("nothing", "nothing")),
    "empty origin": (("/p/b", "stored.bin", ""), ("/p/b", "stored.bin")),
    "blank origin": (("/p/c", "stored2.bin", "  "), ("/p/c", "untitled")),
    "dots": (("/p/d", "stored3.bin", "..."), ("/p/d", "untitled_1")),
    "slashes": (("/p/e", "s", "../../etc/passwd"), ("/p/e", ".._.._etc_passwd")),
    "device": (("/p/f", "s", "CON.txt"), ("/p/f", "_.txt")),
    "cherry": (("/p/g", "s", ".cherry"), ("/p/g", ".cherry_1")),
    "CHERRY": (("/p/h", "s", ".CHERRY"), ("/p/h", ".CHERRY_2")),
    "control": (("/p/i", "s", "a\x00b\nc"), ("/p/i", "a_b_c")),
}


def test_where_a_files_source_and_name_come_from(tmp_path: Path) -> None:
    items = [
        a_file(key, metadata(f"up-{at}", path=path, name=name, origin_name=origin, ext=".bin"))
        for at, (key, ((path, name, origin), _)) in enumerate(FALLBACKS.items())
    ]
    uploads = {f"up-{at}.bin": key.encode() for at, key in enumerate(FALLBACKS)}
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("L", "x")]}, uploads=uploads)
    for key, (_, (source, name)) in FALLBACKS.items():
        assert library.item(key)["data"] == {"source": source, "relativePath": name}, key
        assert library.raw("kb")[name] == key.encode()
    assert "missing_upload" not in library.codes()


CLASHING = [
    "Report.pdf",
    "report.PDF",
    "re\u0301sume\u0301.md",
    "r\u00e9sum\u00e9.md",
    "RE\u0301SUME\u0301.MD",
    "stra\u00dfe",
    "STRA\u1e9eE",
]


def test_names_that_meet_on_other_file_systems_are_told_apart_on_disk(tmp_path: Path) -> None:
    names = [*CLASHING, "a.tar.gz", "A.tar.gz", ".env", ".ENV", "long" * 80 + ".txt", "long" * 80 + ".txt", "語" * 200]
    items = [file(f"i{at}", f"L{at}", name=name) for at, name in enumerate(names)]
    for at, item in enumerate(items):
        item["content"] |= {"id": f"up{at}", "ext": ".x"}
    rows = [Row(f"L{at}", f"text {at}") for at in range(len(names))]
    uploads = {f"up{at}.x": str(at).encode() for at in range(len(names))}
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows}, uploads=uploads)
    paths = [library.item(f"i{at}")["data"]["relativePath"] for at in range(len(names))]
    assert library.raw("kb") == {path: str(at).encode() for at, path in enumerate(paths)}
    keys = {unicodedata.normalize("NFC", path).lower() for path in paths}
    assert len(keys) == len(names)
    assert paths[:2] == ["Report.pdf", "report_1.PDF"]
    assert paths[7:11] == ["a.tar.gz", "A.tar_1.gz", ".env", ".ENV_1"]
    assert [len(path.encode()) for path in paths[11:13]] == [255, 255]
    assert all(path.endswith(".txt") for path in paths[11:13])


def test_a_processor_reserves_the_name_of_its_artefact(tmp_path: Path) -> None:
    names = ["a.md", "a.pdf", "a.PDF", "a_1.md", "b.docx", "B.md", "c.txt", "c.md"]
    items = [file(f"i{at}", f"L{at}", name=name, processingStatus="failed") for at, name in enumerate(names)]
    items.append(page("p", "P"))
    rows = [Row("P", "# a"), *(Row(f"L{at}", f"text {at}") for at in range(len(names)))]
    with_one = base("with", *items, preprocessProvider={"provider": {"id": "mineru"}})
    others = [{**item, "id": f"{item['id']}-2"} for item in items]
    library = carried(tmp_path, with_one, base("without", *others), stores={"with": rows, "without": rows})
    found = [library.item(f"i{at}")["data"]["relativePath"] for at in range(len(names))]
    assert found == ["a.md", "a_1.pdf", "a_2.PDF", "a_1_1.md", "b.docx", "B.md", "c.txt", "c.md"]
    assert library.item("p")["data"]["relativePath"] == "a_3.md"
    assert [library.item(f"i{at}-2")["data"]["relativePath"] for at in range(len(names))] == [
        "a.md", "a.pdf", "a_1.PDF", "a_1.md", "b.docx", "B.md", "c.txt", "c.md"
    ]  # fmt: skip


def test_a_missing_upload_keeps_the_item_and_its_rows(tmp_path: Path) -> None:
    items = [file("there", "L1", name="a.txt"), file("gone", "L2", name="b.txt"), file("folder", "L3", name="c.txt")]
    source = Source(
        [base("kb", *items)],
        {"kb": [Row(f"L{at}", f"text {at}") for at in (1, 2, 3)]},
        uploads={"up-there.txt": b"bytes"},
    ).write(tmp_path / "v1")
    (source / "Files" / "up-folder.txt").mkdir()
    library = migrate(source, tmp_path / "library")
    assert library.raw("kb") == {"a.txt": b"bytes"}
    assert library.bodies("kb") == ["text 1", "text 2", "text 3"]
    assert {library.item(item)["status"] for item in ("there", "gone", "folder")} == {"completed"}
    said = library.warnings("missing_upload")
    assert [warning["item"] for warning in said] == ["gone", "folder"]
    assert all(re.search("not (be )?(re)?indexed", warning["message"]) for warning in said)


UPLOADS = {
    # The extension as v1 has it, and the files that are there, the one that counts first.
    "a dot": (".txt", ["{}.txt"]),
    "no dot": ("txt", ["{}.txt", "{}txt"]),
    "as it stands": ("txt", ["{}txt"]),
    "two dots": ("..txt", ["{}..txt"]),
    "nothing": ("", ["{}"]),
    "blanks before": (" .txt", ["{}. .txt", "{} .txt"]),
}
if os.name != "nt":
    # Windows leaves blanks and dots at the end of a name out.
    UPLOADS |= {
        "blanks and dots behind": (".txt. .", ["{}.txt", "{}.txt. ."]),
        "with them": (".txt .", ["{}.txt ."]),
        "dots alone": ("..", ["{}", "{}.."]),
    }


def test_where_an_upload_lies(tmp_path: Path) -> None:
    items, uploads = [], {}
    for at, (key, (ext, names)) in enumerate(UPLOADS.items()):
        items.append(a_file(key, metadata(f"up{at}", f"{at}.bin", ext=ext, name=f"stored{at}.bin")))
        uploads |= {name.format(f"up{at}"): name.encode() for name in names}
        uploads[f"stored{at}.bin"] = b"never by this name"
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("L", "x")]}, uploads=uploads)
    found = {key: library.raw("kb").get(f"{at}.bin") for at, key in enumerate(UPLOADS)}
    assert found == {key: names[0].encode() for key, (_, names) in UPLOADS.items()}
    assert "missing_upload" not in library.codes()


def test_a_missing_upload_is_named_as_it_should_be_and_not_called_lost(tmp_path: Path) -> None:
    item = a_file("f", metadata("up", "a.txt", ext="txt. ", name="stored.txt"))
    library = carried(
        tmp_path, base("kb", item), stores={"kb": [Row("L", "x")]}, uploads={"stored.txt": b"never by this name"}
    )
    [said] = library.warnings("missing_upload")
    assert "the uploaded file up.txt is not in the source" in said["message"]
    assert "can be searched but not reindexed" in said["message"]
    assert library.raw("kb") == {}


def test_a_damaged_upload_of_an_archive_is_a_missing_one(tmp_path: Path) -> None:
    source = Source(
        [base("kb", file("f", "L", name="a.txt"))], {"kb": [Row("L", "x")]}, uploads={"up-f.txt": b"0123456789" * 9}
    ).write(tmp_path / "v1")
    archive = tmp_path / "backup.zip"
    with zipfile.ZipFile(pack(source, tmp_path / "packed.zip")) as packed, zipfile.ZipFile(archive, "w") as stored:
        for info in packed.infolist():
            stored.writestr(info.filename, packed.read(info))
    raw = archive.read_bytes()
    archive.write_bytes(raw.replace(b"0123456789" * 9, b"0123456789" * 8 + b"9876543210"))
    library = migrate(archive, tmp_path / "library")
    assert library.raw("kb") == {}
    assert library.codes() == {"missing_upload": 1}
    assert library.bodies("kb") == ["x"]


CLIMBING = ["../secret", "..", ".", "", "/etc/hostname", "a/../../secret", "..\\secret", "sub/inner", "nul\0"]


def test_uploads_never_come_from_outside_their_folder(tmp_path: Path) -> None:
    items = [a_file(f"i{at}", metadata(file_id, "x.txt", ext="")) for at, file_id in enumerate(CLIMBING)]
    items.append(a_file("ext", metadata("safe", "x.txt", ext="/../../secret")))
    source = Source([base("kb", *items)], {"kb": [Row("L", "x")]}, uploads={"safe": b"no"}).write(tmp_path / "v1")
    (source / "secret").write_bytes(b"must not be copied")
    (source / "Files" / "sub").mkdir()
    (source / "Files" / "sub" / "inner").write_bytes(b"must not be copied")
    library = migrate(source, tmp_path / "library")
    assert library.raw("kb") == {}
    assert library.codes()["missing_upload"] == len(items)
    assert len(library.items("kb")) == len(items)


# --- items: pages and notes ----------------------------------------------------------------------------------------

BLANK: list[Any] = [None, "", "  \ufeff\n", 5, [], {"a": 1}, True, USUAL]


@pytest.mark.parametrize("item_type", ["url", "sitemap", "directory", "note"])
def test_blank_content_skips_the_item(tmp_path: Path, item_type: str) -> None:
    items = []
    for at, content in enumerate(BLANK):
        item = {"id": f"i{at}", "type": item_type, "content": content, "created_at": CREATED}
        items.append(without(item, "content") if content is USUAL else item)
    good = page("good", "L")
    library = carried(tmp_path, base("kb", *items, good), stores={"kb": [Row("L", "x")]})
    assert library.report["skipped"] == {f"knowledge_item_invalid_{item_type}": len(BLANK)}
    assert [row["id"] for row in library.items("kb")] == [library.item_id("good")]


def test_addresses_of_urls_stay_and_those_of_sitemaps_are_trimmed(tmp_path: Path) -> None:
    address = " https://example.com/map.xml\n"
    items = [page("u", "L", address=address), {**page("s", "M", address=address), "type": "sitemap"}]
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("L", "x"), Row("M", "y")]})
    assert without(library.item("u")["data"], "relativePath") == {"source": address, "url": address}
    trimmed = address.strip()
    assert without(library.item("s")["data"], "relativePath") == {"source": trimmed, "url": trimmed}
    assert library.item("s")["type"] == "url"


#: Redux content and URL, Dexie content and URL; source and content of the item, None where it is skipped.
NOTES: dict[str, tuple[tuple[Any, Any, Any, Any], tuple[str, str] | None]] = {
    "redux": (("text", USUAL, USUAL, USUAL), ("text", "text")),
    "dexie": (("", USUAL, "stored", USUAL), ("stored", "stored")),
    "dexie before redux": (("text", USUAL, "stored", USUAL), ("stored", "stored")),
    "empty dexie does not hide redux": (("text", USUAL, "", USUAL), ("text", "text")),
    "blank dexie does not hide redux": (("text", USUAL, " \n", USUAL), ("text", "text")),
    "null dexie": (("text", USUAL, None, None), ("text", "text")),
    "dexie of a wrong type": (("text", USUAL, {"a": 1}, 7), ("text", "text")),
    "item's url": (("text", "https://a", USUAL, USUAL), ("https://a", "text")),
    "dexie's url": (("text", "https://a", "stored", "https://b"), ("https://b", "stored")),
    "blank dexie url": (("text", "https://a", "stored", " "), ("https://a", "stored")),
    "blank item url": (("text", "  ", USUAL, USUAL), ("text", "text")),
    "url of a wrong type": (("text", ["https://a"], USUAL, USUAL), ("text", "text")),
    "url alone": (("", "https://a", USUAL, USUAL), ("https://a", "")),
    "dexie's url alone": ((None, USUAL, None, "https://b"), ("https://b", "")),
    "blank text with url": (("  ", "https://a", "\t", USUAL), ("https://a", "")),
    "text is not trimmed": (("  text\n", USUAL, USUAL, USUAL), ("  text\n", "  text\n")),
    "nothing": (("", "", "", ""), None),
    "blank": ((" ", "\n", "\ufeff", "\t"), None),
}


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Library:
    items, rows = [], [None, 5, {"content": "no id"}, {"id": ["a"], "content": "x"}]
    for name, ((text, address, stored, stored_address), _) in NOTES.items():
        items.append(note(name, text=text, sourceUrl=address))
        if stored is not USUAL or stored_address is not USUAL:
            rows.append(
                {
                    key: value
                    for key, value in (("content", stored), ("sourceUrl", stored_address))
                    if value is not USUAL
                }
                | {"id": name}
            )
    store = {"kb": [Row("L", "x")]}
    return carried(tmp_path_factory.mktemp("noted"), base("kb", *items), stores=store, notes=rows)


@pytest.mark.parametrize("name", NOTES)
def test_text_and_source_of_notes(noted: Library, name: str) -> None:
    wanted = NOTES[name][1]
    if wanted is None:
        assert name not in noted.report["ids"]["items"]
        assert noted.report["skipped"] == {"knowledge_item_invalid_note": 2}
    else:
        assert noted.item(name)["data"] == {"source": wanted[0], "content": wanted[1]}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 1_000_000, 1_000_000),
        ("x" * 1_000_001, 1_000_000),
        ("x" + "🎉" * 500_000, 999_999),
        pytest.param("🎉" * 500_000, 1_000_000, marks=pytest.mark.slow),
    ],
    ids=["at the limit", "over it", "never inside a pair", "pairs at the limit"],
)
def test_long_notes_are_cut(tmp_path: Path, text: str, kept: int) -> None:
    library = carried(tmp_path, base("kb", note("n", text=text)))
    data = library.item("n")["data"]
    assert len(data["content"].encode("utf-16-le")) // 2 == kept
    assert text.startswith(data["content"])
    assert data["source"] == data["content"]
    assert library.codes()["note_truncated"] == (len(text.encode("utf-16-le")) // 2 > kept)


# --- items: what is none -------------------------------------------------------------------------------------------


def test_broken_items_harm_only_themselves(tmp_path: Path) -> None:
    broken: list[Any] = [
        None, 5, "item", [], {}, {"id": "x"}, {"type": "note"}, {"id": "", "type": "note"}, {"id": 5, "type": "note"},
        {"id": "x", "type": ""}, {"id": "x", "type": 5}, {"id": None, "type": None}, {"id": ["x"], "type": {"a": 1}},
    ]  # fmt: skip
    unsupported = [
        {"id": f"u{at}", "type": item_type, "content": "x"}
        for at, item_type in enumerate(["memory", "video", "Note", "  ", "FILE"])
    ]
    items = [note("first", "L1"), *broken, *unsupported, note("x", "L2")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("L1", "one"), Row("L2", "two")]})
    assert library.report["skipped"] == {
        "knowledge_item_missing_id_or_type": len(broken),
        "knowledge_item_unsupported_type": len(unsupported),
    }
    assert [*library.report["ids"]["items"]] == ["first", "x"]
    assert library.bodies("kb") == ["one", "two"]


def test_equal_warnings_are_said_once_with_their_count(tmp_path: Path) -> None:
    """Each warning once: what has no id of its own is counted, not repeated."""
    items = [None, 5, {"id": "x"}, note("n", "L"), note("n"), note("n")]
    library = carried(tmp_path, None, {}, base("kb", *items), base("kb"), base("kb"), stores={"kb": [Row("L", "x")]})
    said = {(one["code"], one["base"], one["item"]): one["count"] for one in library.report["warnings"]}
    assert library.report["skipped"] == {
        "invalid_knowledge_base_identity": 2,
        "duplicate_knowledge_base": 2,
        "knowledge_item_missing_id_or_type": 3,
        "duplicate_knowledge_item": 2,
    }
    assert said[("invalid_knowledge_base_identity", None, None)] == 2
    assert said[("duplicate_knowledge_item", "kb", "n")] == 2
    assert len({json.dumps(one) for one in library.report["warnings"]}) == len(library.report["warnings"])


@pytest.mark.parametrize("items", [None, {}, "items", 5, {"0": note("n", "L")}, USUAL])
def test_a_list_of_items_that_is_none_is_an_empty_one(tmp_path: Path, items: Any) -> None:
    odd = base("odd", items=items)
    library = carried(tmp_path, odd, base("kb"), stores={name: [Row("L", "x")] for name in ("odd", "kb")})
    assert [entry["items"] for entry in library.report["bases"]] == [{}, {}]
    assert library.skipped_rows("odd") == {"unmapped_loader": 1}
    assert library.base("odd")["status"] == "completed"


def of_type(kind: str, item_id: str, *loaders: str, content: Any) -> dict[str, Any]:
    made = note(item_id, *loaders)
    return {**made, "type": kind, "content": content}


def subtitled(item_id: str, *loaders: str) -> dict[str, Any]:
    """Return a video item, as v1 writes it: the video and its subtitles."""
    kinds = {".mp4": "video", ".srt": "text"}
    files = [metadata(item_id, f"talk{ext}", type=kind) for ext, kind in kinds.items()]
    return of_type("video", item_id, *loaders, content=files)


def test_rows_of_an_item_of_an_unsupported_type_are_skipped_for_its_own_reason(tmp_path: Path) -> None:
    items = (
        note("n", "L1"),
        of_type("memory", "m", "M1", "M2", content="remember"),
        of_type("video", "v", "V1", content=[]),
        of_type("new type", "x", "L1", "X1", content=None),
    )
    loaders = ("L1", "M1", "M2", "M2", "V1", "X1", "gone")
    rows = [Row(loader, f"text {at} of {loader}") for at, loader in enumerate(loaders)]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    # A loader that another item has too is that item's.
    assert library.bodies("kb") == ["text 0 of L1"]
    assert library.skipped_rows("kb") == {"knowledge_item_unsupported_type": 5, "unmapped_loader": 1}
    assert library.report["skipped"] == {"knowledge_item_unsupported_type": 3}
    check_library(library)


def test_subtitles_of_a_video_are_carried_with_their_vectors(tmp_path: Path) -> None:
    rows = [Row("S1", "first line"), Row("S1", "second line"), Row("L1", "a note")]
    source = base("kb", subtitled("v", "S1"), note("n", "L1"))
    uploads = {"v.srt": b"1\n00:00:01,000 --> 00:00:02,000\nfirst line\n"}
    library = carried(tmp_path, source, stores={"kb": rows}, uploads=uploads)
    assert library.skipped_rows("kb") == {}
    item = library.item("v")
    assert (item["type"], item["status"]) == ("file", "completed")
    assert (library.folder("kb") / "raw" / "talk.srt").read_bytes() == uploads["v.srt"]
    with opened(library.folder("kb") / ".cherry" / "index.sqlite") as db:
        found = dicts(
            db,
            "SELECT t.text, e.vector_blob FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id"
            " JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash WHERE u.material_id = ?"
            " ORDER BY u.unit_index",
            (item["id"],),
        )
    assert [(one["text"], bytes(one["vector_blob"])) for one in found] == [
        (text, vector_of(text)) for text in ("first line", "second line")
    ]
    (said,) = library.warnings("knowledge_item_unsupported_type")
    assert (said["item"], said["count"]) == ("v", 1)
    check_library(library)


def test_subtitles_that_are_no_text_stay_with_their_video(tmp_path: Path) -> None:
    source = base("kb", subtitled("v", "S1"), subtitled("w", "S2"))
    uploads = {"v.srt": b"RIFF\0\0binary", "w.srt": b"\xff\xfe1\x00\n\x00"}
    library = carried(tmp_path, source, stores={"kb": [Row("S1", "a"), Row("S2", "b")]}, uploads=uploads)
    assert library.skipped_rows("kb") == {"knowledge_item_unsupported_type": 1}
    assert library.bodies("kb") == ["b"]


def test_an_item_id_is_migrated_once(tmp_path: Path) -> None:
    first = base("one", page("broken", address=""), note("n", "L1"), note("n", "L2"))
    second = base("two", note("n", "L1"), page("broken", "L3"), page("n", "L3"))
    rows = [Row("L1", "a"), Row("L2", "b"), Row("L3", "c")]
    library = carried(tmp_path, first, second, stores={"one": rows, "two": rows})
    assert library.report["skipped"] == {"duplicate_knowledge_item": 3, "knowledge_item_invalid_url": 1}
    # What was skipped owns no rows; an id that was not migrated is still free.
    assert library.bodies("one") == ["a"]
    assert library.bodies("two") == ["c"]
    assert library.skipped_rows("one") == {"unmapped_loader": 2}
    said = [(one["base"], one["item"], one["count"]) for one in library.warnings("duplicate_knowledge_item")]
    assert said == [("one", "n", 1), ("two", "n", 2)]


def test_items_are_stored_in_the_order_of_v1(tmp_path: Path) -> None:
    ids = ["z", "a", "m", "b"]
    items = [note(item_id, f"L{item_id}", created_at=CREATED - at) for at, item_id in enumerate(ids)]
    rows = [Row(f"L{item_id}", item_id) for item_id in reversed(ids)]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert [row["id"] for row in library.items("kb")] == [library.item_id(item_id) for item_id in ids]


# --- items: status, times, loaders ---------------------------------------------------------------------------------

FAILED = "Legacy knowledge item indexing failed."
INTERRUPTED = "Legacy knowledge item indexing was interrupted and needs to be retried."
#: processingStatus, processingError, uniqueId; status and error. Only that there is a default text is a rule.
STATUSES: list[tuple[Any, Any, Any, str, Any]] = [
    ("completed", "", "L", "completed", None),
    ("completed", "old error", "L", "completed", None),
    ("completed", "", "", "idle", None),
    ("completed", "", " \t", "idle", None),
    ("completed", "", 7, "idle", None),
    ("completed", "", USUAL, "idle", None),
    (USUAL, USUAL, "L", "completed", None),
    (None, None, None, "idle", None),
    ("unheard of", "x", "L", "completed", None),
    (7, "x", USUAL, "idle", None),
    ("failed", "disk full", "L", "failed", "disk full"),
    ("failed", "  disk full ", USUAL, "failed", "disk full"),
    ("failed", "", "L", "failed", FAILED),
    ("failed", " \ufeff", "L", "failed", FAILED),
    ("failed", None, "L", "failed", FAILED),
    ("failed", {"message": "x"}, "L", "failed", FAILED),
    ("processing", "", "L", "failed", INTERRUPTED),
    ("pending", USUAL, USUAL, "failed", INTERRUPTED),
    ("pending", "why", USUAL, "failed", "why"),
]


@pytest.fixture(scope="module")
def statused(tmp_path_factory: pytest.TempPathFactory) -> Library:
    items = [
        note(f"n{at}", processingStatus=status, processingError=error, uniqueId=unique)
        for at, (status, error, unique, _, _) in enumerate(STATUSES)
    ]
    return carried(tmp_path_factory.mktemp("statused"), base("kb", *items), base("failed", model=None))


@pytest.mark.parametrize("at", range(len(STATUSES)), ids=lambda at: str(STATUSES[at][:3]))
def test_status_of_an_item(statused: Library, at: int) -> None:
    item = statused.item(f"n{at}")
    assert (item["status"], item["error"]) == STATUSES[at][3:]


@pytest.mark.parametrize("code", ["directory_not_migrated", "indexing_interrupted"])
def test_free_text_is_never_a_code(tmp_path: Path, code: str) -> None:
    library = carried(tmp_path, base("kb", note("n", processingStatus="failed", processingError=code)))
    error = library.item("n")["error"]
    assert error != code
    assert code in error


@pytest.mark.parametrize("error", ["\0", "\0boom", "boom\0"])
def test_an_error_with_nul_in_it_does_not_stop_the_run(tmp_path: Path, error: str) -> None:
    library = carried(tmp_path, base("kb", note("n", processingStatus="failed", processingError=error)))
    assert library.item("n")["status"] == "failed"


def test_rows_of_failed_and_idle_items_are_carried(tmp_path: Path) -> None:
    items = [
        note("failed", "L1", processingStatus="failed"),
        note("idle", "L2", uniqueId=""),
        note("pending", "L3", processingStatus="pending"),
    ]
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row(f"L{at}", f"text {at}") for at in (1, 2, 3)]})
    assert library.bodies("kb") == ["text 1", "text 2", "text 3"]
    assert [row["status"] for row in library.items("kb")] == ["failed", "idle", "failed"]


TIMES: list[tuple[Any, int]] = [
    (CREATED, CREATED),
    (0, 0),
    (-5, -5),
    (1741944474000.9, 1741944474000),
    (-1.9, -1),
    (0.4, 0),
    (1.741944474e12, CREATED),
    ("1741944474000", NOW_MS),
    ("2025-03-14T09:30:00Z", NOW_MS),
    ("", NOW_MS),
    (None, NOW_MS),
    (USUAL, NOW_MS),
    (True, NOW_MS),
    ([CREATED], NOW_MS),
    ({}, NOW_MS),
]


def test_times_are_whole_milliseconds(tmp_path: Path) -> None:
    bases = [
        base(f"b{at}", note(f"n{at}", created_at=value, updated_at=value), created_at=value, updated_at=value)
        for at, (value, _) in enumerate(TIMES)
    ]
    library = carried(tmp_path, *bases)
    for at, (value, wanted) in enumerate(TIMES):
        for row in (library.base_row(f"b{at}"), library.item(f"n{at}")):
            assert (row["created_at"], row["updated_at"]) == (wanted, wanted), value


@pytest.mark.parametrize("value", ["1e300", "-1e300", "9" * 25, "9" * 400, "-" + "9" * 400])
def test_a_huge_time_does_not_stop_the_run(tmp_path: Path, value: str) -> None:
    source = Source([base("odd", note("n")), base("kb")], {"kb": [Row("L", "x")]}).write(tmp_path / "v1")
    state = source / "redux.json"
    text = state.read_text("utf-8")
    at = text.index('"kb"')
    state.write_text(text[:at].replace(str(CREATED), value) + text[at:], "utf-8")
    library = migrate(source, tmp_path / "library")
    assert library.base("kb")["status"] == "completed"
    # What JavaScript takes for infinite is no time.
    assert library.item("n")["id"].startswith(
        "ffffffff-ffff-7" if len(value) < 100 and value[0] != "-" else "00000000-0000-7"
    )


def test_a_huge_setting_does_not_stop_the_run(tmp_path: Path) -> None:
    source = Source([base("kb", chunkSize=123456789)], {"kb": [Row("L", "x")]}).write(tmp_path / "v1")
    state = source / "redux.json"
    state.write_text(state.read_text("utf-8").replace("123456789", "9" * 400), "utf-8")
    library = migrate(source, tmp_path / "library")
    assert library.base_row("kb")["chunk_size"] == 1024
    assert library.codes()["invalid_base_config"] == 1


#: uniqueIds, uniqueId; the loaders whose rows the item gets.
LOADERS: dict[str, tuple[Any, Any, set[str]]] = {
    "ids": (["A", "B"], "C", {"A", "B"}),
    "id alone": (USUAL, "C", {"C"}),
    "empty list": ([], "C", {"C"}),
    "blank entries": (["", " "], "C", set()),
    "null entries": ([None], "C", set()),
    "blank and not": (["", "B", 5], "C", {"B"}),
    "no list": ("A", "C", {"C"}),
    "null": (None, "C", {"C"}),
    "object": ({"0": "A"}, "C", {"C"}),
    "not trimmed": ([" A "], "C", set()),
    "nothing": (None, None, set()),
}


def test_loaders_of_an_item(tmp_path: Path) -> None:
    bases = [
        base(f"b{at}", note(f"n{at}", uniqueIds=ids, uniqueId=one)) for at, (ids, one, _) in enumerate(LOADERS.values())
    ]
    rows = [Row(loader, f"of {loader}") for loader in ("A", "B", "C")]
    library = carried(tmp_path, *bases, stores={f"b{at}": rows for at, _ in enumerate(bases)})
    for at, (name, (_, _, wanted)) in enumerate(LOADERS.items()):
        assert set(library.bodies(f"b{at}")) == {f"of {loader}" for loader in wanted}, name
        assert library.skipped_rows(f"b{at}").get("unmapped_loader", 0) == 3 - len(wanted)


def test_of_two_items_with_one_loader_the_later_gets_the_rows(tmp_path: Path) -> None:
    items = [note("early", "same", "own"), page("late", "same"), note("alone", "other", "other")]
    rows = [Row("same", "shared"), Row("own", "mine"), Row("other", "twice named")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert library.bodies_of("kb", library.item_id("late")) == ["shared"]
    assert library.bodies_of("kb", library.item_id("early")) == ["mine"]
    assert library.bodies_of("kb", library.item_id("alone")) == ["twice named"]
    assert [(said["code"], said["item"]) for said in library.report["warnings"]] == [("loader_shared", "early")]


# --- directories ---------------------------------------------------------------------------------------------------


def test_a_completed_folder_becomes_a_container_with_a_child_for_each_entry(tmp_path: Path) -> None:
    entries = ["D1", "", "D2", None, " ", "gone", 5, "D3"]
    items = [note("before"), folder("d", *entries, created_at=1000.5, updated_at=2000), note("after")]
    rows = [
        Row("D2", "two", source="/docs/two.md"),
        Row("D1", "one", source="/docs/old.md"),
        Row("D1", "one more", source="/home/alice/docs/sub/one.md"),
        Row("D1", "and more", source="  "),
        Row("D1", "the first again", source="/docs/old.md"),
        Row("D3", "no vector", None, source="/docs/three.md"),
    ]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    container = library.item("d")
    assert (container["status"], container["error"], container["data"]) == (
        "completed",
        None,
        {"source": "/home/alice/docs", "relativePath": "docs"},
    )
    assert (container["created_at"], container["updated_at"]) == (1000, 2000)
    children = library.children("d")
    assert [(*child["data"].values(), child["status"], child["error"]) for child in children] == [
        ("/home/alice/docs/sub/one.md", "docs/sub/one.md", "completed", None),
        ("/docs/two.md", "docs/two.md", "completed", None),
        ("/docs/three.md", "docs/three.md", "failed", "directory_not_migrated"),
    ]
    [said] = library.warnings("directory_child_outside")
    assert (said["item"], said["count"]) == ("d", 2)
    # Right after their container, in the order of the entries.
    order = [row["id"] for row in library.items("kb")]
    own = [child["id"] for child in children]
    assert order == [library.item_id("before"), container["id"], *own, library.item_id("after")]
    assert [library.child_id("kb", loader) for loader in ("D1", "D2", "D3")] == own
    assert library.bodies_of("kb", own[0]) == ["one", "one more", "and more", "the first again"]
    assert library.base("kb")["directories"] == {"expanded": 1, "children": 3, "tombstones": 0}
    assert not any((library.folder("kb") / "raw" / child).exists() for child in own)


def test_entries_without_rows_are_one_warning_with_the_count(tmp_path: Path) -> None:
    entries = ["D1", *(f"gone {at}" for at in range(7)), "D2", "D3", "", " "]
    entries += ["gone 1", "D2"]
    rows = [Row(f"D{at}", f"text {at}") for at in (1, 2, 3)]
    library = carried(tmp_path, base("kb", folder("d", *entries)), stores={"kb": rows})
    [said] = library.report["warnings"]
    assert (said["base"], said["item"], said["count"]) == ("kb", "d", 7)
    assert "7 of 10" in said["message"]


def test_a_repeated_entry_makes_one_child(tmp_path: Path) -> None:
    library = carried(tmp_path, base("kb", folder("d", "D", "D", "E")), stores={"kb": [Row("D", "x"), Row("E", "y")]})
    first, other = library.children("d")
    assert (first["status"], other["status"]) == ("completed", "completed")
    assert library.bodies_of("kb", first["id"]) == ["x"]
    # Ids are what they were when the second one made a child, too: it counts.
    folder_id = library.item_id("d")
    assert first["id"] == identity.child_id(folder_id, "D", 0, CREATED) == library.child_id("kb", "D")
    assert other["id"] == identity.child_id(folder_id, "E", 2, CREATED)


FOLDERS = [
    folder("first", "A", "B", path="/a/docs/"),
    folder("second", "C", path="C:\\b\\Docs"),
    folder("tombstone", "gone", path="/c/docs"),
    folder("third", "D", path="/d/docs_1"),
    folder("root", "E", path="/"),
    folder("cherry", "F", path="/x/.cherry"),
]


@pytest.mark.thorough
def test_what_is_in_raw_yields_to_every_folder_also_to_later_ones(tmp_path: Path) -> None:
    uploads = [file("u1", "U1", name="docs"), file("u2", "U2", name="DOCS_2"), file("u3", name="root.md")]
    sources = {
        "A": "/a/docs/x/a.md",
        "B": "/a/docs/X/A.md",
        "C": "c:/B/docs/y.md",
        "D": "\\\\?\\C:\\b\\z.md",
        "E": "/etc/motd",
        "F": "text of a file",
        "N": "note",
        "U1": "/u1",
        "U2": "/u2",
    }
    rows = [Row(loader, f"text of {loader}", source=source) for loader, source in sources.items()]
    items = [*uploads, note("n", "N", text="root"), *FOLDERS]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    paths = {key: library.item(key)["data"].get("relativePath") for key in ("u1", "u2", "u3", "n")}
    assert paths == {"u1": "docs_2", "u2": "DOCS_2_1", "u3": "root.md", "n": "root_1.md"}
    prefixes = [library.item(str(item["id"]))["data"].get("relativePath") for item in FOLDERS]
    assert prefixes == ["docs", "Docs_1", None, "docs_1_1", "root", ".cherry_1"]
    children = [child["data"]["relativePath"] for item in FOLDERS for child in library.children(str(item["id"]))]
    assert children == [
        *("docs/x/a.md", "docs/X/A_1.md"),
        "Docs_1/y.md",
        "docs_1_1/z.md",
        "root/etc/motd",
        ".cherry_1/text of a file",
    ]
    with opened(library.index_path("kb")) as db:
        materials = {row[0] for row in db.execute("SELECT relative_path FROM material")}
    assert materials == {*children, "docs_2", "DOCS_2_1", "root_1.md"}
    assert {said["item"]: said["count"] for said in library.warnings("directory_child_outside")} == {
        "third": 1,
        "cherry": 1,
    }
    [renamed] = library.warnings("renamed_files")
    assert (renamed["count"], renamed["message"]) == (2, "2 files renamed because the name was taken")


def test_of_two_folders_with_one_file_the_later_gets_the_rows(tmp_path: Path) -> None:
    items = [folder("first", "D", "own"), folder("second", "D", path="/else"), folder("third", "gone")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("D", "x"), Row("own", "y")]})
    [lost, own], [kept] = library.children("first"), library.children("second")
    assert (lost["status"], own["status"], kept["status"]) == ("failed", "completed", "completed")
    assert library.item("first")["status"] == "completed"
    assert library.child_id("kb", "D") == kept["id"]
    assert (library.item("third")["status"], library.item("third")["error"]) == ("failed", "directory_not_migrated")
    assert library.base("kb")["directories"] == {"expanded": 2, "children": 3, "tombstones": 1}


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("status", ["completed", "failed", "pending"])
def test_a_loader_of_a_standalone_item_stays_with_it(tmp_path: Path, before: bool, status: str) -> None:
    alone = file("alone", "D", name="a.md", processingStatus=status)
    items = [alone, folder("d", "D", "E")] if before else [folder("d", "D", "E"), alone]
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("D", "x"), Row("E", "y")]})
    assert library.bodies_of("kb", library.item_id("alone")) == ["x"]
    taken, own = library.children("d")
    assert (taken["status"], taken["error"]) == ("failed", "directory_not_migrated")
    assert own["status"] == "completed"
    assert library.item("d")["status"] == "completed"
    [said] = library.warnings("directory_child_loader_conflict")
    assert (said["item"], said["count"]) == ("d", 1)
    assert "D" not in library.report["ids"]["children"][library.base_id("kb")]


def test_a_container_all_of_whose_children_failed_has_failed_too(tmp_path: Path) -> None:
    items = [
        folder("conflicts", "A"),
        folder("unusable", "B", "C"),
        folder("some", "B2", "D"),
        note("alone", "A"),
    ]
    rows = [
        Row("A", "a"),
        Row("B", "b", None),
        Row("C", "c", b"12345"),
        Row("B2", "e", None),
        Row("D", "d"),
        Row("D", "d2"),
    ]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    for name in ("conflicts", "unusable"):
        container = library.item(name)
        assert (container["status"], container["error"]) == ("failed", "directory_not_migrated")
        assert {child["status"] for child in library.children(name)} == {"failed"}
    assert library.item("some")["status"] == "completed"
    assert library.base("kb")["directories"] == {"expanded": 3, "children": 5, "tombstones": 0}
    assert library.skipped_rows("kb") == {"missing_vector_payload": 2, "unsupported_vector_encoding": 1}


def test_folders_that_stay_one_item(tmp_path: Path) -> None:
    items = [
        folder("none left", "gone", "gone too"),
        folder("no entries"),
        folder("blank entries", "", None),
        folder("no list", uniqueIds="D"),
        folder("blank sources", "S"),
        folder("failed", "F", processingStatus="failed", processingError="why"),
        folder("pending", "P", processingStatus="pending"),
        folder("idle", "I", uniqueId=""),
    ]
    rows = [
        Row("S", "s", source=""),
        Row("S", "s2", None, source=" \ufeff"),
        Row("F", "f"),
        Row("P", "p", b"odd"),
        Row("I", "i", None),
        Row("DirectoryLoader_no entries", "own"),
        Row("DirectoryLoader_no list", "own 2"),
        Row("gone three", "unmapped"),
    ]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    statuses = {item["id"]: library.item(item["id"]) for item in items}
    for name in ("none left", "no entries", "blank entries", "no list", "blank sources"):
        assert (statuses[name]["status"], statuses[name]["error"]) == ("failed", "directory_not_migrated"), name
    assert (statuses["failed"]["status"], statuses["failed"]["error"]) == ("failed", "why")
    assert (statuses["pending"]["status"], statuses["pending"]["error"]) == ("failed", INTERRUPTED)
    assert (statuses["idle"]["status"], statuses["idle"]["error"]) == ("idle", None)
    assert {row["group_id"] for row in library.items("kb")} == {None}
    assert {row["updated_at"] for row in library.items("kb")} == {UPDATED}
    # Rows of a folder that stayed one item, whatever their vectors.
    assert library.skipped_rows("kb") == {"non_indexable_container": 7, "unmapped_loader": 1}
    assert library.base("kb")["directories"] == {"expanded": 0, "children": 0, "tombstones": 5}
    assert library.rows("kb")["carried"] == 0
    assert library.base("kb")["status"] == "completed"


def test_a_child_comes_before_a_folder_that_stayed_one_item(tmp_path: Path) -> None:
    items = [folder("expanded", "D", "E"), folder("failed", "D", "F", processingStatus="failed")]
    rows = [Row("D", "d"), Row("E", "e"), Row("F", "f")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert [child["status"] for child in library.children("expanded")] == ["completed", "completed"]
    assert library.skipped_rows("kb") == {"non_indexable_container": 1}


def test_directories_of_a_base_without_model(tmp_path: Path) -> None:
    items = [folder("done", "D"), folder("idle", "D", uniqueId=""), folder("bad", "D", processingStatus="failed")]
    library = carried(tmp_path, base("kb", *items, model=None), stores={"kb": [Row("D", "d")]})
    found = [(row["status"], row["error"]) for row in library.items("kb")]
    assert found == [("failed", "directory_not_migrated"), ("idle", None), ("failed", FAILED)]
    assert library.skipped_rows("kb") == {"missing_embedding_model": 1}
    assert library.base("kb")["directories"]["tombstones"] == 1


@pytest.mark.parametrize(("suffix", "kind"), [(".txt", "TextLoader"), (".log", "TextLoader"), (".html", "WebLoader")])
def test_the_real_path_of_a_file_that_is_still_on_disk_is_found(tmp_path: Path, suffix: str, kind: str) -> None:
    place = tmp_path / "on disk"
    (place / "sub").mkdir(parents=True)
    text = "A text that is a good deal longer than the fifty characters of a snippet.\n"
    path = place / "sub" / f"diary{suffix}"
    path.write_bytes(text.encode())
    (place / "other.txt").write_text("another text")
    loader = f"{kind}_{md5(text.encode()).hexdigest()}"
    snippet = f"{text[:24]}...{text[-23:]}"
    rows = [Row(loader, "A text", source=snippet), Row("TextLoader_gone", "gone", source="a snippet of it")]
    items = [folder("d", loader, "TextLoader_gone", path=str(place))]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    # A better name, never a condition.
    assert [child["data"]["source"] for child in library.children("d")] == [str(path), "a snippet of it"]


# --- rows ----------------------------------------------------------------------------------------------------------

GOOD = vector_of("good")
#: The vector of a row; why it is not carried.
VECTORS: list[tuple[Any, str | None]] = [
    (None, "missing_vector_payload"),
    (b"", "missing_vector_payload"),
    ("text", "unsupported_vector_encoding"),
    ("x" * 16, "unsupported_vector_encoding"),
    ("[1, 2, 3, 4]", "unsupported_vector_encoding"),
    (7, "unsupported_vector_encoding"),
    (0, "unsupported_vector_encoding"),
    (1.5, "unsupported_vector_encoding"),
    (b"x", "unsupported_vector_encoding"),
    (b"x" * 15, "unsupported_vector_encoding"),
    (b"x" * 17, "unsupported_vector_encoding"),
    (floats(1, 2, 3), "dimension_mismatch"),
    (floats(1, 2, 3, 4, 5), "dimension_mismatch"),
    (floats(1, 2, 3, 4), None),
    (floats(1, 2, 3, 4), None),
    (b"\xff\xfe\xfd\xfc" * 4, None),
]


def test_why_a_row_is_not_carried(tmp_path: Path) -> None:
    rows = [Row("L", f"text {at}", vector) for at, (vector, _) in enumerate(VECTORS)]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows}, ddl=UNTYPED)
    assert library.skipped_rows("kb") == Counter(reason for _, reason in VECTORS if reason)
    assert [(unit.body, unit.vector) for unit in library.units("kb")] == [
        (row.body, row.vector) for row, (_, reason) in zip(rows, VECTORS, strict=True) if reason is None
    ]


@pytest.mark.parametrize(
    ("fields", "reasons"),
    [
        ({}, ("unmapped_loader", "non_indexable_container")),
        ({"model": None}, ("missing_embedding_model", "missing_embedding_model")),
    ],
)
def test_base_and_owner_come_before_the_vector(
    tmp_path: Path, fields: dict[str, Any], reasons: tuple[str, str]
) -> None:
    odd = [None, b"", "text", b"12345", floats(1), GOOD]
    rows = [Row(loader, f"{loader} {at}", vector) for loader in ("none", "D") for at, vector in enumerate(odd)]
    # The majority of usable vectors.
    rows += [Row("L", f"good {at}") for at in range(3)]
    items = [note("n", "L"), folder("d", "D", processingStatus="failed")]
    library = carried(tmp_path, base("kb", *items, **fields), stores={"kb": rows}, ddl=UNTYPED)
    wanted = Counter(reason for reason in reasons for _ in odd)
    wanted.update([] if not fields else ["missing_embedding_model"] * 3)
    assert library.skipped_rows("kb") == wanted


def test_loaders_that_are_no_text_are_nobodys(tmp_path: Path) -> None:
    loaders = [None, 7, 1.5, b"L", "", " ", "L"]
    rows = [Row(loader, f"text {at}", id=None) for at, loader in enumerate(loaders)]
    items = [note("n", "L"), note("seven", "7"), note("empty", uniqueId="", uniqueIds=["", " "])]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows}, ddl=UNTYPED)
    assert library.bodies("kb") == ["text 6"]
    assert library.skipped_rows("kb") == {"unmapped_loader": 6}


def test_every_reason_comes_with_its_count_and_three_examples(tmp_path: Path) -> None:
    rows = [Row("gone", f"g{at}") for at in range(5)] + [Row("L", "x", None), Row("L", "y"), Row("L", "z", b"1")]
    rows += [Row("D", f"d{at}") for at in range(4)]
    items = [note("n", "L"), folder("d", "D", uniqueId="")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    wanted = {
        "unmapped_loader": (5, ["gone_0", "gone_1", "gone_2"], "gone_3"),
        "missing_vector_payload": (1, ["L_0"], "L_1"),
        "unsupported_vector_encoding": (1, ["L_2"], "L_1"),
        "non_indexable_container": (4, ["D_0", "D_1", "D_2"], "D_3"),
    }
    assert library.skipped_rows("kb") == {reason: count for reason, (count, _, _) in wanted.items()}
    for reason, (count, examples, further) in wanted.items():
        [said] = library.warnings(reason)
        assert (said["base"], said["count"]) == ("kb", count)
        assert all(example in said["message"] for example in examples)
        assert further not in said["message"]


def test_examples_of_a_failed_base(tmp_path: Path) -> None:
    rows = [Row("L", f"t{at}") for at in range(4)]
    library = carried(tmp_path, base("kb", model=None), stores={"kb": rows})
    [said] = library.warnings("missing_embedding_model")
    assert said["count"] == 4
    assert all(example in said["message"] for example in ("L_0", "L_1", "L_2"))
    assert "L_3" not in said["message"]


ODD_VECTORS = {
    "zero": floats(0, 0, 0, 0),
    "negative zero": floats(-0.0, 0, 0, 0),
    "nan": floats(1, math.nan, 2, 3),
    "infinite": floats(1, math.inf, 2, 3),
    "minus infinite": floats(1, 2, 3, -math.inf),
    "another nan": b"\x01\x02\xc0\x7f" + floats(1, 2, 3),
}


ZERO_VECTORS = {name: vector for name, vector in ODD_VECTORS.items() if "zero" in name}
#: Finite, but too long or too short for single precision: no direction is found in them.
BEYOND = {"too long": floats(3e38, 3e38, 3e38, 3e38), "too short": floats(1e-44, 0, 0, 0)}


def test_vectors_without_direction_are_carried_verbatim_with_a_warning(tmp_path: Path) -> None:
    kept = {**ZERO_VECTORS, **BEYOND}
    rows = [Row("L", name, vector) for name, vector in kept.items()] + [Row("L", "plain")]
    rows += [Row("gone", "nobody's", floats(0, 0, 0, 0))]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows})
    assert {unit.body: unit.vector for unit in library.units("kb")} == {**kept, "plain": vector_of("plain")}
    [said] = library.warnings("degenerate_vector")
    assert (said["base"], said["count"]) == ("kb", len(kept))
    assert library.status == 1


def test_vectors_with_a_nan_or_an_infinity_are_not_carried(tmp_path: Path) -> None:
    odd = {name: vector for name, vector in ODD_VECTORS.items() if name not in ZERO_VECTORS}
    rows = [Row("L", "first"), *(Row("L", name, vector) for name, vector in odd.items()), Row("M", "only", odd["nan"])]
    rows += [Row("L", "too long", odd["nan"] + floats(1)), Row("gone", "nobody's", odd["nan"]), Row("L", "last")]
    library = carried(tmp_path, base("kb", note("n", "L"), page("p", "M")), stores={"kb": rows})
    assert library.bodies("kb") == ["first", "last"]
    assert library.rows("kb")["skipped"] == {
        "non_finite_vector": len(odd) + 1,
        "dimension_mismatch": 1,
        "unmapped_loader": 1,
    }
    [said] = library.warnings("non_finite_vector")
    assert (said["base"], said["count"], len(said["samples"])) == ("kb", len(odd) + 1, 3)
    assert library.status == 1
    assert "relativePath" not in library.item("p")["data"]


def test_vectors_that_are_not_finite_count_for_the_dimensions(tmp_path: Path) -> None:
    nan = ODD_VECTORS["nan"]
    rows = [Row("L", "a", nan), Row("L", "b", nan), Row("L", "c", floats(1, 2, 3))]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows})
    assert (library.base("kb")["status"], library.base("kb")["dimensions"]) == ("completed", 4)
    assert library.rows("kb")["skipped"] == {"non_finite_vector": 2, "dimension_mismatch": 1}
    assert library.base("kb")["index"]["units"] == 0


def test_texts_of_vectors_that_are_not_finite_come_along_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = [Row("L", "a"), Row("L", "b", ODD_VECTORS["nan"]), Row("L", " ", ODD_VECTORS["infinite"])]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows}, options=["--carry-text"])
    assert {unit.body: unit.vector for unit in library.units("kb")} == {"a": vector_of("a"), "b": None}
    assert library.rows("kb")["skipped"] == {"non_finite_vector": 1}
    assert library.rows("kb")["without_vector"] == 1


def test_equal_bodies_share_one_vector_and_the_first_wins(tmp_path: Path) -> None:
    rows = [
        Row("L", "same", floats(1, 1, 1, 1)),
        Row("L", "other"),
        Row("L", "same", floats(2, 2, 2, 2)),
        Row("M", "same", floats(1, 1, 1, 1)),
        Row("M", "same", floats(3, 3, 3, 3)),
    ]
    library = carried(tmp_path, base("kb", note("n", "L"), note("m", "M")), stores={"kb": rows}, ddl=PLAIN)
    assert [unit.vector for unit in library.units("kb") if unit.body == "same"] == [floats(1, 1, 1, 1)] * 4
    index = library.base("kb")["index"]
    assert (index["units"], index["embeddings"], index["materials"]) == (5, 2, 2)
    [said] = library.warnings("differing_vector")
    assert (said["base"], said["count"]) == ("kb", 2)


def test_a_null_body_is_the_empty_text(tmp_path: Path) -> None:
    rows = [Row("L", None, GOOD), Row("L", "text"), Row("L", None, GOOD), Row("M", None, GOOD), Row("N", "")]
    items = [note("n", "L"), page("m", "M"), file("f", "N", name="a.txt")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert library.bodies("kb") == ["", "text", "", "", ""]
    assert library.bodies_of("kb", library.item_id("n")) == ["", "text", ""]
    # The whole text is two separators around "text".
    assert library.raw("kb")["A note.md"].endswith(b"---\n\n\ntext\n\n")
    assert library.item("m")["data"]["relativePath"] == "example.com-start.md"


def test_bodies_of_any_type_are_text(tmp_path: Path) -> None:
    rows = [
        Row("L", 7, GOOD),
        Row("L", 1.5, GOOD),
        Row("L", b"bytes \xff", GOOD),
        Row("L", RawText(b"half \xed\xa0\xbd of"), GOOD),
        Row("L", RawText(b"pair \xed\xa0\xbd\xed\xb8\x80"), GOOD),
        Row("L", RawText(b"bad \xc3("), GOOD),
        Row("L", "nul\0inside", GOOD),
    ]
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": rows}, ddl=UNTYPED)
    assert library.bodies("kb") == [
        "7", "1.5", "bytes \ufffd", "half \ufffd of", "pair \U0001f600", "bad \ufffd(", "nul\0inside"
    ]  # fmt: skip


def test_materials_come_in_the_order_of_their_first_carried_rows(tmp_path: Path) -> None:
    items = [note("a", "LA"), folder("d", "D1", "D2"), page("b", "LB", "LB2"), file("c", "LC", name="c.txt")]
    rows = [
        Row("LA", "a0, not carried", None),
        Row("LB", "b0"),
        Row("D2", "d2 0", source="/d/2"),
        Row("gone", "x"),
        Row("LA", "a1 🎉"),
        Row("LB2", "b1"),
        Row("LC", "c0"),
        Row("D1", "d1 0 🎉", source="/d/1"),
        Row("LB", "b2"),
        Row("LA", "a2"),
        Row("D2", "d2 1"),
    ]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert library.bodies("kb") == ["b0", "b1", "b2", "d2 0", "d2 1", "a1 🎉", "a2", "c0", "d1 0 🎉"]
    owners = [*dict.fromkeys(unit.item for unit in library.units("kb"))]
    one, two = (library.child_id("kb", loader) for loader in ("D1", "D2"))
    assert owners == [library.item_id("b"), two, library.item_id("a"), library.item_id("c"), one]


def test_row_order_is_rowid_order(tmp_path: Path) -> None:
    rows = [
        Row("L", "last", rowid=900),
        Row("L", "first", rowid=-7),
        Row("M", "between", rowid=5),
        Row("L", "zero", rowid=0),
    ]
    library = carried(tmp_path, base("kb", note("m", "M"), note("l", "L")), stores={"kb": rows})
    assert library.bodies("kb") == ["first", "zero", "last", "between"]


def test_holes_are_counted_outside_the_books(tmp_path: Path) -> None:
    rows = [
        Row("A", "a0", id="A_0"),
        Row("A", "a4", id="A_4"),
        Row("B", "b2", None, id="B_2"),
        Row("C", "c", id="no number"),
        Row("C", "c2", id="C_x1"),
        Row("C", "c3", id=None),
        Row("D", "d", id="D_9"),
        Row("gone", "g", id="gone_99"),
        Row("E", "e", id="A_7"),
        Row("F_1", "f", id="F_1_1"),
    ]
    items = [note("a", "A"), note("b", "B", "C", "E"), folder("d", "D"), note("f", "F_1")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows}, ddl=PLAIN)
    # A: 5 - 2, B: 3 - 1, D (a child): 10 - 1, F_1: 2 - 1. Loaders that nobody owns do not count.
    assert library.rows("kb") == {
        "read": 10,
        "carried": 8,
        "skipped": {"missing_vector_payload": 1, "unmapped_loader": 1},
        "without_vector": 0,
        "v1_deduplicated": 3 + 2 + 9 + 1,
        "restored_duplicate": 0,
    }
    [said] = library.warnings("v1_deduplicated")
    assert said["count"] == 15


def test_a_vector_file_without_an_id_column_is_read(tmp_path: Path) -> None:
    ddl = "CREATE TABLE vectors (pageContent TEXT, uniqueLoaderId TEXT, source TEXT, vector BLOB)"
    library = carried(tmp_path, base("kb", note("n", "L")), stores={"kb": [Row("L", "x"), Row("M", "y")]}, ddl=ddl)
    assert library.bodies("kb") == ["x"]
    assert library.skipped_rows("kb") == {"unmapped_loader": 1}


def test_a_vector_file_that_keeps_its_text_as_utf16_is_read(tmp_path: Path) -> None:
    source = Source([base("kb", note("n", "L"))]).write(tmp_path / "v1")
    with closing(apsw.Connection(str(source / "KnowledgeBase" / "kb"))) as db:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        db.execute(STRICT)
        db.execute("INSERT INTO vectors VALUES ('L_0', 'häuser 🎉', 'L', 's', ?, '{}')", (GOOD,))
    library = migrate(source, tmp_path / "library")
    assert [(unit.body, unit.vector) for unit in library.units("kb")] == [("häuser 🎉", GOOD)]


def test_a_base_without_a_carried_row_gets_an_empty_index(tmp_path: Path) -> None:
    library = carried(tmp_path, base("kb", note("n", "other")), stores={"kb": [Row("gone", "x", of(7, "x"))]})
    entry = library.base("kb")
    assert (entry["status"], entry["dimensions"]) == ("completed", 7)
    assert {key: entry["index"][key] for key in ("materials", "units", "embeddings")} == {
        "materials": 0,
        "units": 0,
        "embeddings": 0,
    }
    assert library.index_path("kb").is_file()


def test_rows_of_an_item_with_broken_content_are_unmapped(tmp_path: Path) -> None:
    items = [page("blank", "L1", address=""), {**note("m", "L2"), "type": "memory"}, note("n", "L3")]
    rows = [Row(f"L{at}", f"text {at}") for at in (1, 2, 3)]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    assert library.bodies("kb") == ["text 3"]
    assert library.skipped_rows("kb") == {"knowledge_item_unsupported_type": 1, "unmapped_loader": 1}


# --- snapshots -----------------------------------------------------------------------------------------------------


def test_snapshots_hold_exactly_the_text_behind_their_block(tmp_path: Path) -> None:
    items = [
        page("u", "U", address="https://bücher.example/a b/Üben?x#y"),
        note("n", "N", text="A very plain note"),
        note("clip", "C", text="text", sourceUrl="https://example.com/42"),
        page("none"),
    ]
    rows = [Row("U", "first\r"), Row("U", "\n## Head: line ##\nmore"), Row("N", "body"), Row("C", "clipped")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    names = {item: library.item(item)["data"].get("relativePath") for item in ("u", "n", "clip", "none")}
    assert names == {
        "u": "Head_ line ##.md",
        "n": "A very plain note.md",
        "clip": "https___example.com_42.md",
        "none": None,
    }
    raw = {name: content.decode() for name, content in library.raw("kb").items()}
    assert raw[names["u"] or ""] == (
        f'---\ntype: "URL"\ntitle: "Head: line ##"\nresource: "https://bücher.example/a b/Üben?x#y"\n'
        f'timestamp: "{NOW}"\n---\nfirst\r\n\n\n## Head: line ##\nmore'
    )
    assert raw[names["n"] or ""] == f'---\ntype: "Note"\ntitle: "A very plain note"\ntimestamp: "{NOW}"\n---\nbody'
    assert raw[names["clip"] or ""].startswith('---\ntype: "Note"\ntitle: "https://example.com/42"\n')


def test_snapshots_are_named_after_files_in_the_order_of_their_materials(tmp_path: Path) -> None:
    items = [page("late", "P2"), page("early", "P1"), file("f", name="Title.md"), note("n", "N", text="title")]
    rows = [Row("P1", "Title"), Row("P2", "# Title"), Row("N", "anything")]
    library = carried(tmp_path, base("kb", *items), stores={"kb": rows})
    names = {item: library.item(item)["data"]["relativePath"] for item in ("f", "early", "late", "n")}
    assert names == {"f": "Title.md", "early": "Title_1.md", "late": "Title_2.md", "n": "title_3.md"}


# --- tables and exports that are broken ----------------------------------------------------------------------------

BROKEN_TABLES: list[Any] = ['[{"id": "f1"', "", "null", {"f1": {}}, 7, '"text"', "[1, 2", '[{"id": "f1",}]']


@pytest.mark.parametrize("table", BROKEN_TABLES, ids=str)
@pytest.mark.parametrize("name", ["files", "notes"])
def test_a_broken_table_harms_only_what_needs_it(tmp_path: Path, name: str, table: Any) -> None:
    items = [
        a_file("needs", "f1"),
        a_file("complete", FULL),
        note("n", "L", text="of the state"),
        note("empty", text=""),
    ]
    parts = {"files": [metadata("f1", "table.txt")], "notes": [{"id": "empty", "content": "of the table"}]}
    parts[name] = table
    library = carried(tmp_path, base("kb", *items), stores={"kb": [Row("L", "x")]}, **parts)
    skipped = {"files": "knowledge_item_invalid_file", "notes": "knowledge_item_invalid_note"}
    assert library.report["skipped"] == {skipped[name]: 1}
    assert {"complete", "n"} <= set(library.report["ids"]["items"])
    [said] = library.warnings("dexie_table_unreadable")
    assert {"files": "files", "notes": "knowledge_notes"}[name] in said["message"]


def test_missing_tables_are_empty_ones(tmp_path: Path) -> None:
    source = Source([base("kb", note("n", "L"), a_file("f", "f1"))], {"kb": [Row("L", "x")]}).write(tmp_path / "v1")
    for path in (source / "dexie").iterdir():
        path.unlink()
    (source / "dexie").rmdir()
    library = migrate(source, tmp_path / "library")
    assert library.bodies("kb") == ["x"]
    assert library.report["skipped"] == {"knowledge_item_invalid_file": 1}


@pytest.mark.parametrize(
    "text", ['{"knowledge": {"bases": [', "", "[", "\0\0\0\0", '{"knowledge": {"bases": 5}}', '{"knowledge": "{"}']
)
def test_a_broken_state_is_refused_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    source = Source([base("kb")]).write(tmp_path / "v1")
    (source / "redux.json").write_text(text, "utf-8")
    done = run("migrate", source, "--to", tmp_path / "out", "--json")
    assert done.status == 2
    assert done.document["error"]["exit_status"] == 2
    assert len(done.stderr.splitlines()) == 1
    assert str(source) in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"llm": LLM},
        {"knowledge": None},
        {"knowledge": {}},
        {"knowledge": {"bases": None}},
        {"knowledge": {"bases": []}},
        {"knowledge": json.dumps({"bases": []})},
    ],
    ids=str,
)
def test_a_recognised_source_without_bases_is_nothing_to_complain_about(tmp_path: Path, state: Any) -> None:
    source = Source([]).write(tmp_path / "v1")
    (source / "redux.json").write_text(json.dumps(state), "utf-8")
    library = migrate(source, tmp_path / "library")
    assert library.status == 0
    assert library.report["bases"] == []
    assert library.catalog("knowledge_base") == []


def test_slices_that_are_json_text_are_unwrapped(tmp_path: Path) -> None:
    source = Source([base("kb", note("n", "L"))], {"kb": [Row("L", "x")]}).write(tmp_path / "v1")
    state = json.loads((source / "redux.json").read_text("utf-8"))
    (source / "redux.json").write_text(json.dumps({name: json.dumps(part) for name, part in state.items()}), "utf-8")
    assert migrate(source, tmp_path / "library").bodies("kb") == ["x"]


def test_unpaired_surrogates_are_replaced_everywhere(tmp_path: Path) -> None:
    half = "\ud83d"
    items = [
        file("f", f"L{half}", name=f"cut {half}.txt"),
        note("n", "N", text=f"note {half}", remark=f"re {half}", sourceUrl=f"https://a/{half}"),
        page("p", "P", address=f"https://example.com/{half}", processingStatus="failed", processingError=f"e {half}"),
        folder("d", "D", path=f"/docs/{half}"),
    ]
    odd = base(f"kb{half}", *items, name=f"Name {half}", description=f"about {half}", model={**MODEL, "name": half})
    rows = [
        Row("L\ufffd", "x"),
        Row("N", "y"),
        Row("P", "z"),
        Row("D", RawText(b"cut \xed\xa0\xbd"), source=RawText(b"/docs/\xed\xa0\xbd")),
    ]
    library = carried(tmp_path, odd, stores={"kb\ufffd": rows}, uploads={"up-f.txt": b"x"})
    assert library.base_row("kb\ufffd")["name"] == "Name \ufffd"
    assert library.item("f")["data"]["relativePath"] == "cut \ufffd.txt"
    assert library.item("n")["data"]["content"] == "note \ufffd"
    assert library.item("p")["error"] == "e \ufffd"
    assert library.children("d")[0]["data"]["source"] == "/docs/\ufffd"
    assert sorted(library.bodies("kb\ufffd")) == ["cut \ufffd", "x", "y", "z"]


# --- the same from elsewhere ---------------------------------------------------------------------------------------


def test_the_same_bases_give_the_same_library_from_every_kind_of_source(tmp_path: Path) -> None:
    items = [
        file("f", "F", name="paper.pdf"),
        page("p", "P"),
        note("n", "N"),
        folder("d", "D1", "D2"),
        note("idle"),
    ]
    rows = [Row(loader, f"{loader} {at} 🎉") for at in range(3) for loader in ("P", "D2", "F", "N", "D1", "gone")]
    bases = [base("kb", *items), base("failed", model=None)]
    source = Source(bases, {"kb": rows}, uploads={"up-f.pdf": b"pdf"}).write(tmp_path / "v1")
    places = {"folder": source, "zip": pack(source, tmp_path / "a.zip"), "old zip": pack(source, tmp_path / "b.zip", 3)}
    written = {}
    for name, place in places.items():
        library = migrate(place, tmp_path / name, *(["--jobs", "2"] if name == "zip" else []))
        files = sorted(path for path in library.path.rglob("*") if path.is_file() and ".regraft" not in path.parts)
        written[name] = {
            path.relative_to(library.path).as_posix(): path.read_bytes()
            for path in files
            if not path.name.startswith("report.")
        }
        written[name]["ids"] = json.dumps(library.report["ids"]).encode()
    assert written["folder"] == written["zip"] == written["old zip"]
    assert len(written["folder"]) == 6, "catalog, index, three files, and the ids"
