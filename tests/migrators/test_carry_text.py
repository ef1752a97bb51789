"""``regraft migrate --carry-text``: texts whose vector cannot be carried come along without one."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import preview
import pytest
from golden_cases import CASES
from harness import NOW, NOW_MS, REPO, command_words, examples, run, snapshot
from hypothesis import given, settings
from planted_v1 import VECTORS, gone, vectors, whole
from v1 import (
    MODEL,
    PLAIN,
    UNTYPED,
    Library,
    Row,
    Source,
    Unit,
    base,
    carried,
    dicts,
    file,
    floats,
    folder,
    migrate,
    note,
    opened,
    page,
    sha,
    vector_of,
)
from v1_rules import ROWS, indexed_items, names_of, owners_of, text_of, wanted_length, why_not

from migrators.pipeline import plan as plan_module
from regraft.errors import VerificationFailed
from regraft.formats.cherry_v2 import index
from regraft.formats.vector_table import VectorTable
from regraft.text import JS_WHITESPACE

OPTION = "--carry-text"
GONE = {**MODEL, "provider": "gone"}
#: Vectors that cannot be carried, and why.
UNUSABLE = {
    "missing_vector_payload": (None, b""),
    "unsupported_vector_encoding": ("text", 7, b"12345"),
    "dimension_mismatch": (floats(1, 2, 3), floats(1, 2, 3, 4, 5)),
}
#: One of each beside a row that is whole, which decides the dimensions, all of one item.
EACH = [
    Row("F", "whole one"),
    *(Row("F", f"{reason} {at}", vector) for reason, some in UNUSABLE.items() for at, vector in enumerate(some)),
    Row("F", "whole two"),
]
BARE = [row.body for row in EACH if not row.body.startswith("whole")]


def texts(tmp_path: Path, *items: Any, rows: list[Row], ddl: str = UNTYPED, **fields: Any) -> Library:
    """Migrate one base with the option."""
    return carried(tmp_path, base("kb", *items, **fields), stores={"kb": rows}, ddl=ddl, options=[OPTION])


def vectors_of(library: Library, legacy_base: str = "kb") -> dict[str, bytes | None]:
    """Return what each text of a base has for a vector."""
    return {unit.body: unit.vector for unit in library.units(legacy_base)}


def files(place: Path) -> dict[str, bytes]:
    """Return every file of a library but regraft's own record and report."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and ".regraft" not in path.parts and path.stem != "report"
    }


def findings(library: Library) -> Counter[tuple[str, str | None]]:
    """Return what a deep audit finds but for uploads, which most sources here do not have."""
    document = run("check", library.path, "--deep", "--json").document
    return Counter(
        {(one["name"], one["base"]): one["count"] for one in document["findings"] if one["name"] != "raw.missing"}
    )


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_text_comes_along_whatever_is_wrong_with_its_vector(tmp_path: Path) -> None:
    library = texts(tmp_path, file("f", "F"), rows=EACH)
    assert library.bodies("kb") == [row.body for row in EACH]
    found = vectors_of(library)
    assert {body for body, vector in found.items() if vector is None} == set(BARE)
    assert (found["whole one"], found["whole two"]) == (vector_of("whole one"), vector_of("whole two"))
    assert library.rows("kb") == {
        "read": 9,
        "carried": 9,
        "without_vector": 7,
        "skipped": {},
        "v1_deduplicated": 0,
        "restored_duplicate": 0,
    }
    assert library.base("kb")["dimensions"] == 4
    assert library.base("kb")["index"]["embeddings"] == 2
    assert library.report["totals"]["rows"] == library.rows("kb")


def test_without_the_option_nothing_of_it_comes_along(tmp_path: Path) -> None:
    library = carried(tmp_path, base("kb", file("f", "F")), stores={"kb": EACH}, ddl=UNTYPED)
    assert library.bodies("kb") == ["whole one", "whole two"]
    assert library.skipped_rows("kb") == {reason: len(some) for reason, some in UNUSABLE.items()}
    assert library.rows("kb")["without_vector"] == 0
    assert library.codes()["carried_without_vector"] == 0


@pytest.mark.parametrize("body", [None, "", b"", " ", JS_WHITESPACE, "\n" * 5000], ids=range(6))
def test_what_has_neither_vector_nor_text_stays_behind(body: Any, tmp_path: Path) -> None:
    rows = [Row("F", body, None), Row("F", "whole"), Row("F", body, floats(1)), Row("F", "text", None)]
    library = texts(tmp_path, file("f", "F"), rows=rows)
    assert library.bodies("kb") == ["whole", "text"]
    assert library.skipped_rows("kb") == {"missing_vector_payload": 1, "dimension_mismatch": 1}
    said = {one["code"]: one for one in library.report["warnings"]}
    assert said["missing_vector_payload"]["samples"] == ["F_0"]
    assert said["missing_vector_payload"]["message"].startswith("without text as well; 1 row not migrated")
    assert said["carried_without_vector"]["samples"] == ["F_3"]


@pytest.mark.parametrize("body", ["\x85", "\0", ".", "🎉", 0, b"\xff", "\u200b text"], ids=repr)
def test_a_text_is_whatever_is_not_blank(body: Any, tmp_path: Path) -> None:
    library = texts(tmp_path, file("f", "F"), rows=[Row("F", "whole"), Row("F", body, None)])
    assert library.bodies("kb") == ["whole", text_of(body)]
    assert library.rows("kb")["without_vector"] == 1


def test_a_row_with_a_vector_and_without_a_text_is_carried_as_always(tmp_path: Path) -> None:
    library = texts(tmp_path, file("f", "F"), rows=[Row("F", None, floats(1, 1, 1, 1)), Row("F", "text", None)])
    assert vectors_of(library) == {"": floats(1, 1, 1, 1), "text": None}


def test_rows_of_nobody_and_of_a_folder_that_holds_none_stay_behind(tmp_path: Path) -> None:
    rows = [Row("F", "whole"), Row("X", "left over", None), Row("D", "of a folder", None), Row(None, "nobody", None)]
    items = [file("f", "F"), folder("d", "D", processingStatus="failed")]
    library = texts(tmp_path, *items, rows=rows)
    assert library.skipped_rows("kb") == {"unmapped_loader": 2, "non_indexable_container": 1}
    assert library.rows("kb")["without_vector"] == 0


def test_a_degenerate_vector_is_carried_as_always(tmp_path: Path) -> None:
    zero, nan = floats(0, 0, 0, 0), floats(float("nan"), 1, 1, 1)
    library = texts(tmp_path, file("f", "F"), rows=[Row("F", "zero", zero), Row("F", "nan", nan)])
    assert vectors_of(library) == {"zero": zero, "nan": None}
    assert library.rows("kb")["without_vector"] == 1
    [said] = library.warnings("degenerate_vector")
    assert said["count"] == 1


def test_more_text_than_an_item_can_hold_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MAX_CONTENT_BYTES", 20)
    rows = [Row("F", "whole"), Row("F", "a text that is long", None), Row("N", "short", None)]
    library = texts(tmp_path, file("f", "F"), note("n", "N"), rows=rows)
    assert library.bodies("kb") == ["short"]
    assert library.skipped_rows("kb") == {"content_too_large": 2}
    assert library.rows("kb")["without_vector"] == 1
    assert library.item("f")["status"] == "failed"


# --- order and items -------------------------------------------------------------------------------------------------


def test_texts_stand_where_v1_stored_them(tmp_path: Path) -> None:
    """Items come in the order of their first carried row, which may be one without a vector, never a blank one."""
    rows = [
        Row("N", " ", None),
        Row("P", "p0", None),
        Row("N", "n0"),
        Row("P", "# Heading\np1"),
        Row("N", "n1 🎉", None),
        Row("P", "p2", None),
    ]
    library = texts(tmp_path, note("n", "N", text="Called"), page("p", "P"), rows=rows)
    assert library.bodies("kb") == ["p0", "# Heading\np1", "p2", "n0", "n1 🎉"]
    assert [*library.raw("kb")] == ["Called.md", "Heading.md"]
    assert library.raw("kb")["Heading.md"].decode().endswith("\np0\n\n# Heading\np1\n\np2")
    assert library.raw("kb")["Called.md"].decode().endswith("\nn0\n\nn1 🎉")
    [said] = library.warnings("missing_vector_payload")
    assert said["samples"] == ["N_0"]


def test_an_item_with_texts_alone_is_as_one_with_vectors(tmp_path: Path) -> None:
    rows = [Row("F", "whole"), Row("P", "page", None), Row("N", "note", floats(1))]
    library = texts(tmp_path, file("f", "F"), page("p", "P"), note("n", "N"), rows=rows)
    assert [library.item(name)["status"] for name in "fpn"] == ["completed"] * 3
    assert {*library.raw("kb")} == {library.item(name)["data"]["relativePath"] for name in "pn"}


def test_a_file_of_a_folder_is_completed_by_its_text(tmp_path: Path) -> None:
    entries = ["WHOLE", "TEXT", "BLANK"]
    rows = [Row("WHOLE", "whole"), Row("TEXT", "text", None), Row("BLANK", " ", None)]
    library = texts(tmp_path, folder("d", *entries), folder("e", "T2"), rows=[*rows, Row("T2", "text two", None)])
    assert [child["status"] for child in library.children("d")] == ["completed", "completed", "failed"]
    assert [child["status"] for child in library.children("e")] == ["completed"]
    assert [library.item(name)["status"] for name in "de"] == ["completed", "completed"]
    [said] = library.warnings("directory_child_not_migrated")
    assert (said["item"], said["count"]) == ("d", 1)
    assert library.codes()["directory_not_migrated"] == 0


# --- equal texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bare_first", [True, False])
@pytest.mark.parametrize("between", [0, 300])
def test_equal_texts_share_the_vector_that_one_of_them_has(bare_first: bool, between: int, tmp_path: Path) -> None:
    """Whichever comes first, in one batch of rows or far apart, of one item or two."""
    bare, given = Row("N", "same", None), Row("F", "same")
    filler = [Row("F", f"filler {number}") for number in range(between)]
    rows = [bare, *filler, given] if bare_first else [given, *filler, bare]
    library = texts(tmp_path, file("f", "F"), note("n", "N"), rows=[*rows, Row("N", "alone", None)], ddl=PLAIN)
    assert [unit.vector for unit in library.units("kb") if unit.body == "same"] == [vector_of("same")] * 2
    assert vectors_of(library)["alone"] is None
    assert library.rows("kb")["without_vector"] == 2
    assert library.base("kb")["index"]["embeddings"] == between + 1
    assert library.codes()["differing_vector"] == 0
    assert findings(library) == {("embedding.missing", library.base_id("kb")): 1}


def test_equal_texts_in_one_item(tmp_path: Path) -> None:
    rows = [Row("F", "same", None), Row("F", "same"), Row("F", "same", floats(1)), Row("F", "same", floats(4, 3, 2, 1))]
    library = texts(tmp_path, file("f", "F"), rows=rows)
    assert [unit.vector for unit in library.units("kb")] == [vector_of("same")] * 4
    assert library.rows("kb")["without_vector"] == 2
    [said] = library.warnings("differing_vector")
    assert said["count"] == 1


# --- duplicates ------------------------------------------------------------------------------------------------------


def test_a_twin_without_rows_gets_texts_too(tmp_path: Path) -> None:
    items = [file("f", "F"), file("g", "G", name="copy.pdf"), file("h", "H")]
    uploads = {"up-f.pdf": b"a pdf", "up-g.pdf": b"a pdf"}
    rows = [Row("H", "whole"), Row("F", "one", None), Row("F", "two", floats(1))]
    source = {"stores": {"kb": rows}, "uploads": uploads, "ddl": UNTYPED}
    library = carried(tmp_path, base("kb", *items), options=[OPTION], **source)
    assert library.bodies_of("kb", library.item_id("g")) == ["one", "two"]
    numbers = {name: library.rows("kb")[name] for name in ("read", "carried", "without_vector", "restored_duplicate")}
    assert numbers == {"read": 3, "carried": 3, "without_vector": 2, "restored_duplicate": 2}
    assert findings(library)["embedding.missing", library.base_id("kb")] == 4
    plain = migrate(tmp_path / "v1", tmp_path / "plain")
    assert plain.rows("kb")["restored_duplicate"] == 0


# --- failed bases ----------------------------------------------------------------------------------------------------

OF_FAILED = [Row("N", "n0"), Row("N", "n1", None), Row("D", "d0"), Row("X", "nobody"), Row("N", " ")]


def failed(tmp_path: Path, **fields: Any) -> Library:
    items = [note("n", "N"), folder("d", "D", "no row"), note("later", text="never")]
    return texts(tmp_path, *items, rows=OF_FAILED, **fields)


def test_a_base_without_its_model_comes_with_its_texts_and_no_vector(tmp_path: Path) -> None:
    library = failed(tmp_path, model=GONE, dimensions=7)
    row = library.base_row("kb")
    assert (row["status"], row["error"], row["embedding_model_id"], row["dimensions"]) == (
        "failed",
        "missing_embedding_model",
        None,
        7,
    )
    assert vectors_of(library) == {"n0": None, "n1": None, "d0": None}
    entry = library.base("kb")
    assert entry["outcome"] == "failed"
    assert entry["rows"]["skipped"] == {"missing_embedding_model": 2}
    assert (entry["rows"]["carried"], entry["rows"]["without_vector"]) == (3, 3)
    assert {key: entry["index"][key] for key in ("materials", "units", "embeddings")} == {
        "materials": 2,
        "units": 3,
        "embeddings": 0,
    }
    assert entry["directories"] == {"expanded": 1, "children": 1, "tombstones": 0}
    assert [child["status"] for child in library.children("d")] == ["completed"]
    assert library.item("d")["status"] == "completed"
    assert [*library.raw("kb")] == [library.item("n")["data"]["relativePath"]]
    [said] = library.warnings("missing_embedding_model")
    assert "2 rows not migrated (for example N_2, X_0)" in said["message"]
    assert findings(library) == {("base.failed", library.base_id("kb")): 1}


def test_a_base_without_a_usable_vector_comes_with_its_texts(tmp_path: Path) -> None:
    library = texts(tmp_path, note("n", "N"), rows=[Row("N", "n0", None), Row("N", "n1", "text"), Row("X", "x", None)])
    row = library.base_row("kb")
    assert (row["status"], row["error"], row["dimensions"]) == ("failed", "missing_vector_store", None)
    assert row["embedding_model_id"] == "acme::embed-3"
    assert vectors_of(library) == {"n0": None, "n1": None}
    assert library.skipped_rows("kb") == {"missing_vector_store": 1}


@pytest.mark.parametrize("rows", [[], [Row("X", "nobody", None)], [Row("N", " ", None)]], ids=len)
def test_a_failed_base_without_a_text_to_carry_has_no_index(rows: list[Row], tmp_path: Path) -> None:
    library = texts(tmp_path, note("n", "N"), rows=rows)
    entry = library.base("kb")
    assert (entry["error"], entry["index"], entry["rows"]["carried"]) == ("missing_vector_store", None, 0)
    assert library.codes()["carried_without_vector"] == 0
    assert not library.folder("kb").exists()


@pytest.mark.parametrize("damage", [gone(VECTORS), lambda source: (source / VECTORS).write_bytes(b"no database")])
def test_a_file_that_cannot_be_read_has_no_texts(damage: Callable[[Path], object], tmp_path: Path) -> None:
    source = whole(tmp_path / "v1")
    damage(source)
    with_option, without = (migrate(source, tmp_path / name, *more) for name, more in (("a", [OPTION]), ("b", [])))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert with_option.base("kb")["rows"] == without.base("kb")["rows"]
    assert with_option.codes() == without.codes()


def test_a_folder_of_a_failed_base_without_rows_stays_one_item(tmp_path: Path) -> None:
    library = texts(tmp_path, note("n", "N"), folder("d", "no row"), rows=[Row("N", "n0")], model=GONE)
    assert library.item("d")["error"] == "directory_not_migrated"
    [said] = library.warnings("directory_not_migrated")
    assert said["message"].endswith("stays one failed item: none of its 1 files has rows")


def test_its_model_brings_its_vectors_back(tmp_path: Path) -> None:
    library = failed(tmp_path, model=GONE)
    again = migrate(tmp_path / "v1", library.path, "--recreate-model", "gone::embed-3")
    assert again.base("kb")["status"] == "completed"
    # Its texts come along again: one of them has no vector of its own.
    assert vectors_of(again) == {"n0": vector_of("n0"), "n1": None, "d0": vector_of("d0"), " ": vector_of(" ")}
    assert again.rows("kb")["without_vector"] == 1


# --- the same with the option and without ----------------------------------------------------------------------------


def test_where_no_vector_is_missing_the_bytes_are_the_same(tmp_path: Path) -> None:
    source = whole(tmp_path / "v1")
    without = migrate(source, tmp_path / "without")
    with_option = migrate(source, tmp_path / "with", OPTION)
    assert files(without.path) == files(with_option.path)
    assert {**without.report, "run": 0, "target": 0, "bases": 0} == {
        **with_option.report,
        "run": 0,
        "target": 0,
        "bases": 0,
    }
    for options in ([OPTION], []):
        for library in (without, with_option):
            again = migrate(source, library.path, *options)
            assert {entry["outcome"] for entry in again.report["bases"]} == {"unchanged"}


@pytest.mark.thorough
def test_any_number_of_processes_gives_the_same(tmp_path: Path) -> None:
    rows = [*EACH, *(Row("F", f"more {number}", None) for number in range(600))]
    bases = [base(name, file(f"f {name}", "F"), model=GONE if name == "c" else MODEL) for name in "abc"]
    Source(bases, dict.fromkeys("abc", rows), ddl=UNTYPED).write(tmp_path / "v1")
    one, two = (migrate(tmp_path / "v1", tmp_path / number, OPTION, "--jobs", number) for number in "12")
    assert files(one.path) == files(two.path)
    assert one.report["totals"] == two.report["totals"]
    assert one.rows("c")["without_vector"] == one.rows("c")["carried"] == len(rows)


# --- what is said ----------------------------------------------------------------------------------------------------


def odd_source(place: Path) -> Path:
    """Write a source with a base that lacks vectors and one that lacks its model."""
    kb = base("kb", file("f", "F"))
    lost = base("lost", note("l", "L"), model=GONE)
    return Source([kb, lost], {"kb": EACH, "lost": [Row("L", "lost")]}, ddl=UNTYPED).write(place)


def test_the_warning_says_how_many_why_and_what_completes_them(tmp_path: Path) -> None:
    source = odd_source(tmp_path / "v1")
    library = migrate(source, tmp_path / "my library", OPTION)
    of_kb, of_lost = library.warnings("carried_without_vector")
    reasons = "2 missing_vector_payload, 3 unsupported_vector_encoding, 2 dimension_mismatch"
    said, command = of_kb["message"].split("; ")
    assert said == f"7 rows migrated without a vector: {reasons} (for example F_1, F_2, F_3)"
    words = command_words(command.removesuffix(" adds the missing vectors"))
    assert words == ["regraft", "backfill", str(library.path), "--base", library.base_id("kb")]
    assert (of_kb["base"], of_kb["count"], of_kb["samples"]) == ("kb", 7, ["F_1", "F_2", "F_3"])
    said, command = of_lost["message"].split("; ")
    assert said == "1 row migrated without a vector: 1 missing_embedding_model (for example L_0)"
    words = command_words(command.removesuffix(" creates a new base from them"))
    assert words == ["regraft", "restore", str(library.path), "--base", library.base_id("lost"), "--embedder", "NAME"]
    assert library.status == 1
    totals = library.report["totals"]
    assert (totals["rows"]["carried"], totals["rows"]["without_vector"], totals["embeddings"]) == (10, 8, 2)
    moved = library.path.rename(tmp_path / "moved")
    again = migrate(source, moved, OPTION)
    assert str(moved) in again.warnings("carried_without_vector")[0]["message"]


def test_the_dry_run_says_the_same_and_writes_nothing(tmp_path: Path) -> None:
    source = odd_source(tmp_path / "v1")
    before = snapshot(tmp_path)
    dry = run("migrate", source, "--to", tmp_path / "out", OPTION, "--dry-run", "--json", "--now", NOW).document
    assert snapshot(tmp_path) == before
    library = migrate(source, tmp_path / "out", OPTION)
    for planned, made in zip(dry["bases"], library.report["bases"], strict=True):
        assert planned["rows"] == made["rows"]
        assert {**planned, "index": {**planned["index"], "embeddings": 0, "bytes": 0}} == {
            **made,
            "index": {**made["index"], "embeddings": 0, "bytes": 0},
        }
    assert dry["warnings"] == library.report["warnings"]
    assert dry["preflight"]["bytes_needed"] >= library.report["totals"]["bytes"]


def test_text_and_page_tell_texts_from_vectors(tmp_path: Path) -> None:
    source = odd_source(tmp_path / "v1")
    done = run("migrate", source, "--to", tmp_path / "out", OPTION, "--now", NOW, "--report", tmp_path / "page.html")
    said = "2 of 10 rows migrated with their vectors, 8 more without one; nothing was embedded again."
    assert done.stdout.startswith("Plan: 2 bases, 2 of 10 rows and 8 without a vector; needs about")
    assert said in done.stdout.splitlines()
    assert "failed (missing_embedding_model)" in done.stdout
    html = (tmp_path / "page.html").read_text("utf-8")
    assert said in html
    assert "carried_without_vector: 8" in html
    assert re.search(r'<rect class="carried"[^>]*><title>migrated: 2</title>', html)
    assert re.search(r'<rect class="bare"[^>]*><title>carried_without_vector: 8</title>', html)
    assert "Everything was migrated." in html


def test_the_page_of_an_audit_tells_them_too(tmp_path: Path) -> None:
    library = migrate(odd_source(tmp_path / "v1"), tmp_path / "out", OPTION)
    done = run("check", library.path, "--json", "--report", tmp_path / "page.html")
    assert [one["rows"]["without_vector"] for one in done.document["statistics"]["bases"]] == [7, 1]
    html = (tmp_path / "page.html").read_text("utf-8")
    assert "carried_without_vector: 7" in html


def test_a_look_at_the_result(tmp_path: Path) -> None:
    library = migrate(odd_source(tmp_path / "v1"), tmp_path / "out", OPTION)
    kb, lost = library.base_id("kb"), library.base_id("lost")
    assert findings(library) == {("embedding.missing", kb): 7, ("base.failed", lost): 1}
    first, second = run("inspect", library.path, "--json").document["bases"]
    assert (first["store"]["missing"], first["problem"]) == (7, "7 texts without a vector")
    assert (second["store"]["missing"], second["store"]["coverage"]) == (1, 0)
    assert second["problem"] == "failed during the migration: missing_embedding_model; 1 text without a vector"
    found = run("search", library.path, "missing_vector_payload", "--base", kb, "--mode", "bm25", "--json")
    assert [hit["text"] for hit in found.document["hits"]] == ["missing_vector_payload 0", "missing_vector_payload 1"]


# --- the audit of a source -------------------------------------------------------------------------------------------

PLANTED = {
    "missing_vector_payload": "UPDATE vectors SET vector = NULL WHERE id = 'F_0'",
    "unsupported_vector_encoding": "UPDATE vectors SET vector = 'text' WHERE id = 'F_0'",
    "dimension_mismatch": f"UPDATE vectors SET vector = x'{floats(1).hex()}' WHERE id = 'F_0'",
    "missing_vector_store": "UPDATE vectors SET vector = NULL",
}


@pytest.mark.parametrize("code", PLANTED)
def test_an_audit_gives_the_command_that_carries_the_texts(code: str, tmp_path: Path) -> None:
    source = vectors(PLANTED[code])(whole(tmp_path / "v1"))
    document = run("check", source, "--json").document
    [repair] = {one["repair"] for one in document["findings"] if one["repair"]}
    words = command_words(repair)
    assert words == ["regraft", "migrate", str(source), "--to", "OUT", OPTION]
    words[words.index("OUT")] = str(tmp_path / "out")
    done = run(*words[1:], "--json")
    assert [base["rows"]["skipped"] for base in done.document["bases"]] == [{}, {}]
    assert "--carry-text" in run("check", source).stdout


def test_an_audit_offers_it_only_where_there_is_a_text(tmp_path: Path) -> None:
    for damage in (gone(VECTORS), vectors("DELETE FROM vectors")):
        source = damage(whole(tmp_path / "v1"))
        assert {one["repair"] for one in run("check", source, "--json").document["findings"]} == {None}
        shutil.rmtree(source)


# --- running again ---------------------------------------------------------------------------------------------------


def outcomes(library: Library) -> dict[str, str]:
    return {entry["legacy_id"]: entry["outcome"] for entry in library.report["bases"]}


def three_bases(place: Path, *more: Row) -> Path:
    """Write a source with a base that is whole, one that lacks vectors (and a text), and one without its model."""
    bases = [
        base("whole", file("w", "W")),
        base("kb", file("f", "F")),
        base("lost", note("l", "L"), model=GONE),
    ]
    stores = {"whole": [Row("W", "w")], "kb": [*EACH, Row("F", " ", None), *more], "lost": [Row("L", "lost")]}
    return Source(bases, stores, ddl=UNTYPED).write(place)


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    source = three_bases(tmp_path / "v1")
    library = migrate(source, tmp_path / "out", OPTION)
    before = snapshot(library.path)
    again = migrate(source, library.path, OPTION)
    assert snapshot(library.path) == before
    assert outcomes(again) == {"whole": "unchanged", "kb": "unchanged", "lost": "failed"}
    assert again.report["warnings"] == library.report["warnings"]
    assert again.report["totals"]["rows"] == library.report["totals"]["rows"]


def test_with_the_option_after_a_run_without_what_lacks_texts_is_written_anew(tmp_path: Path) -> None:
    source = three_bases(tmp_path / "v1")
    migrate(source, tmp_path / "out")
    library = migrate(source, tmp_path / "out", OPTION)
    assert outcomes(library) == {"whole": "unchanged", "kb": "written", "lost": "failed"}
    assert library.rows("lost")["carried"] == 1
    fresh = migrate(source, tmp_path / "fresh", OPTION)
    assert files(library.path) == files(fresh.path)
    before = snapshot(library.path)
    migrate(source, library.path, OPTION)
    assert snapshot(library.path) == before


def test_without_the_option_after_a_run_with_it_nothing_is_taken_away(tmp_path: Path) -> None:
    source = three_bases(tmp_path / "v1")
    library = migrate(source, tmp_path / "out", OPTION)
    before = snapshot(library.path)
    again = migrate(source, library.path)
    assert snapshot(library.path) == before
    assert outcomes(again) == {"whole": "unchanged", "kb": "unchanged", "lost": "failed"}
    shutil.rmtree(source)
    newer = three_bases(source, Row("F", "newer"), Row("F", "newer bare", None))
    again = migrate(newer, library.path)
    assert outcomes(again) == {"whole": "unchanged", "kb": "written", "lost": "failed"}
    assert again.rows("kb")["without_vector"] == 8
    assert again.rows("whole")["without_vector"] == 0


def test_the_option_does_not_stay_with_a_base_that_had_no_use_for_it(tmp_path: Path) -> None:
    rows = [Row("F", "whole")]
    for more in (rows, [*rows, Row("F", "bare", None)]):
        shutil.rmtree(tmp_path / "v1", ignore_errors=True)
        source = Source([base("kb", file("f", "F"))], {"kb": more}, ddl=UNTYPED).write(tmp_path / "v1")
        library = migrate(source, tmp_path / "out", *([OPTION] if more is rows else []))
    assert library.skipped_rows("kb") == {"missing_vector_payload": 1}


@pytest.mark.parametrize("more", [[], [OPTION]])
def test_a_failed_base_with_texts_is_not_replaced_by_one_without(more: list[str], tmp_path: Path) -> None:
    source = three_bases(tmp_path / "v1")
    library = migrate(source, tmp_path / "out", OPTION)
    before = files(library.path)
    (source / "KnowledgeBase" / "lost").unlink()
    again = migrate(source, library.path, *more)
    assert files(library.path) == before
    [said] = again.warnings("completed_base_kept")
    assert said["base"] == "lost"
    assert "the base with texts from an earlier run is kept" in said["message"]


def test_damage_that_only_carrying_finds_takes_no_texts_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = three_bases(tmp_path / "v1")
    library = migrate(source, tmp_path / "out", OPTION)
    before = files(library.path)
    state = (source / "redux.json").read_text("utf-8").replace("Base lost", "Another name")
    (source / "redux.json").write_text(state, "utf-8")

    def broken(*_: object) -> Iterator[Any]:
        raise apsw.CorruptError("database disk image is malformed")
        yield

    monkeypatch.setattr(VectorTable, "rows_and_texts", broken)
    again = migrate(source, library.path, OPTION)
    assert files(library.path) == before
    assert [said["base"] for said in again.warnings("completed_base_kept")] == ["lost"]


def test_an_index_that_was_completed_since_is_left_alone(tmp_path: Path) -> None:
    """Vectors that were paid for are never carried over."""
    source = three_bases(tmp_path / "v1")
    library = migrate(source, tmp_path / "out", OPTION)
    with closing(apsw.Connection(str(library.index_path("kb")))) as db:
        db.execute("INSERT INTO embedding VALUES (?, ?, ?)", (sha(BARE[0]), floats(1, 2, 3, 4), NOW_MS))
    before = snapshot(library.path)
    for options in ((), (OPTION,)):
        assert run("migrate", source, "--to", library.path, "--json", *options).status == 1
        assert snapshot(library.path) == before


# --- preview builds --------------------------------------------------------------------------------------------------


def test_a_preview_store_comes_with_its_texts(tmp_path: Path) -> None:
    rows = [*preview.ROWS, preview.Row(preview.C, "bare", vector=None), preview.Row(preview.A, "odd", vector=floats(1))]
    source = preview.profile(tmp_path / "in", rows)
    library = preview.migrate(source, tmp_path / "out", OPTION)
    found = vectors_of(library, preview.BASE)
    assert (found["bare"], found["odd"]) == (None, None)
    assert library.rows(preview.BASE)["without_vector"] == 2
    assert library.skipped_rows(preview.BASE) == {}
    without = preview.migrate(source, tmp_path / "without")
    assert library.rows(preview.BASE)["read"] == without.rows(preview.BASE)["carried"] + 2


@pytest.mark.parametrize("option", [[], [OPTION]])
def test_a_note_that_only_its_rows_tell_has_the_text_that_is_carried(option: list[str], tmp_path: Path) -> None:
    rows = [preview.Row(preview.C, "one", "note"), preview.Row(preview.C, "two", "note", vector=None)]
    place = preview.store(tmp_path / "in" / "KnowledgeBase" / preview.BASE, rows)
    library = preview.migrate(place, tmp_path / "out", "--recreate-model", preview.MODEL, *option)
    [item] = library.items(preview.BASE)
    assert (
        item["data"]["content"]
        == "\n\n".join(library.bodies(preview.BASE))
        == "\n\n".join(["one", "two"][: 1 + len(option)])
    )


# --- verification ----------------------------------------------------------------------------------------------------


def built(path: Path) -> Callable[[], None]:
    """Build an index in which some bodies came without a vector, and return what verifies it."""
    rows = [("first", None), ("second", floats(1)), ("third", None), ("second", None), ("first", floats(2))]
    materials = [
        index.Material("m", lambda _: "m", iter(rows)),
        index.Material("n", lambda _: "n", iter([("fourth", None)])),
    ]
    tallies, digests = index.build_index(path, "base", NOW_MS, materials, lambda *_: None)
    assert list(tallies.bare) == [1, 3, 4, 6]
    assert (tallies.units, tallies.embeddings, tallies.differing_vectors) == (6, 2, 0)
    return lambda: index.verify(path, "base", tallies, digests, 4)


def test_an_index_with_texts_alone_is_verified(tmp_path: Path) -> None:
    verify = built(tmp_path / "index.sqlite")
    verify()
    with opened(tmp_path / "index.sqlite") as db:
        kept = dict(
            db.execute("SELECT text, vector_blob FROM search_text LEFT JOIN embedding USING (embedding_text_hash)")
        )
    assert kept == {"first": floats(2), "second": floats(1), "third": None, "fourth": None}


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM embedding WHERE vector_blob = x'0000803f'",
        f"UPDATE embedding SET embedding_text_hash = '{sha('third')}' WHERE vector_blob = x'0000803f'",
        "UPDATE embedding SET vector_blob = x'00000000' WHERE vector_blob = x'0000803f'",
        f"INSERT INTO embedding VALUES ('{sha('third')}', x'0000803f', 0)",
        "UPDATE search_text SET text = 'other' WHERE text = 'third'",
        "DELETE FROM search_text WHERE text = 'fourth'",
    ],
)
def test_what_is_wrong_beside_texts_alone_is_seen(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "index.sqlite"
    verify = built(path)
    with closing(apsw.Connection(str(path))) as db:
        db.execute(statement)
    with pytest.raises(VerificationFailed):
        verify()


# --- known sources ---------------------------------------------------------------------------------------------------

SAMPLE = REPO / "sample_v1" / "backup"


@pytest.mark.thorough
@pytest.mark.parametrize("case", [*CASES, "sample"])
def test_a_source_that_lost_vectors_comes_out_whole_but_for_these(
    case: str, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    """Catalog, texts, units, numbers, snapshots and uploads are those of the undamaged source."""
    source = Path(shutil.copytree(SAMPLE if case == "sample" else golden(case) / "v1", tmp_path / "source"))
    undamaged = migrate(source, tmp_path / "undamaged", OPTION)
    lost = 0
    for path in sorted(source.rglob("KnowledgeBase/*")):
        with suppress(apsw.Error), closing(apsw.Connection(str(path))) as db:
            # A row without a text would stay behind; the first row keeps the dimensions.
            db.create_scalar_function("blank", lambda body: not text_of(body).strip(JS_WHITESPACE))
            db.execute("UPDATE vectors SET vector = NULL WHERE rowid % 3 = 2 AND NOT blank(pageContent)")
            lost += db.changes()
    library = migrate(source, tmp_path / "library", OPTION)
    assert (library.status, lost > 0) == (1, True)
    for before, after in zip(undamaged.report["bases"], library.report["bases"], strict=True):
        assert (before["items"], before["directories"]) == (after["items"], after["directories"])
        assert before["dimensions"] == after["dimensions"]
        for key in ("read", "carried", "v1_deduplicated", "restored_duplicate"):
            assert before["rows"][key] == after["rows"][key]
    assert {**files(undamaged.path), **indexes(undamaged)} == {**files(library.path), **indexes(library)}
    kept = {(unit.body, unit.vector) for entry in library.report["bases"] for unit in units_of(library, entry)}
    whole = {(unit.body, unit.vector) for entry in undamaged.report["bases"] for unit in units_of(undamaged, entry)}
    assert {vector for _, vector in kept - whole} == {None}


def units_of(library: Library, entry: dict[str, Any]) -> list[Unit]:
    return [] if entry["index"] is None else library.units(entry["legacy_id"])


def indexes(library: Library) -> dict[str, Any]:
    """Return what every index holds but for its vectors, by the name of its file."""
    found = {}
    for path in library.path.rglob("index.sqlite"):
        with opened(path) as db:
            tables = ("meta", "content", "material", "search_unit", "search_text")
            name = path.relative_to(library.path).as_posix()
            found[name] = [dicts(db, f"SELECT rowid, * FROM {table} ORDER BY rowid") for table in tables]
    return found


# --- any rows --------------------------------------------------------------------------------------------------------


def comes_along(row: Row) -> bool:
    """Tell whether a row has a text, by the words of the rules."""
    return bool(text_of(row.body).strip(JS_WHITESPACE))


@pytest.mark.thorough
@given(items=indexed_items(), rows=ROWS)
@settings(max_examples=examples(40))
def test_every_row_is_carried_with_its_vector_or_its_text_or_accounted_for(
    items: list[dict[str, Any]], rows: list[Row]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        source = Source([base("kb", *items)], {"kb": rows}, ddl=UNTYPED).write(Path(place) / "v1")
        without = migrate(source, Path(place) / "without")
        library = migrate(source, Path(place) / "with", OPTION)
        owners, length = owners_of(items, rows), wanted_length(rows)
        kept: list[tuple[str, Row, bool]] = []
        skipped: Counter[str] = Counter()
        for row in rows:
            owner = owners.get(row.loader) if isinstance(row.loader, str) else None
            reason = why_not(row, owners, length)
            owned = owner is not None and owner[1]
            if reason is None or (owned and comes_along(row)):
                assert owner is not None
                kept.append((owner[0], row, reason is None))
            else:
                skipped[reason] += 1
        booked = library.rows("kb")
        assert (booked["read"], booked["carried"], booked["skipped"]) == (len(rows), len(kept), skipped)
        assert booked["without_vector"] == sum(not is_whole for _, _, is_whole in kept)
        if kept or length is not None:
            order = [*dict.fromkeys(owner for owner, _, _ in kept)]
            ordered = sorted(kept, key=lambda one: order.index(one[0]))
            names, units = names_of(library), library.units("kb")
            assert [(names[unit.item], unit.body) for unit in units] == [
                (owner, text_of(row.body)) for owner, row, _ in ordered
            ]
            given_vectors = {(text_of(row.body), row.vector) for _, row, is_whole in kept if is_whole}
            with_vector = {body for body, _ in given_vectors}
            for unit in units:
                assert (unit.vector is not None) == (unit.body in with_vector)
                assert unit.vector is None or (unit.body, unit.vector) in given_vectors
        if not booked["without_vector"] and length is not None:
            assert files(library.path) == files(without.path)
        before = snapshot(library.path)
        for options in ([OPTION], []):
            migrate(source, library.path, *options)
            assert snapshot(library.path) == before
        onward = migrate(source, without.path, OPTION)
        assert files(onward.path) == files(library.path)
