"""The report of a migration: its exact shape, its sums, the exit statuses, and the page and text made of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from check_pages import Page
from harness import NOW, run
from v1 import MODEL, Row, Source, base, file, folder, note, page, vector_of

TOP = {"regraft", "source", "target", "run", "bases", "skipped", "warnings", "ids", "totals"}
BASE = {
    "legacy_id",
    "id",
    "name",
    "status",
    "error",
    "dimensions",
    "outcome",
    "items",
    "directories",
    "rows",
    "index",
}
SECRET = "unmistakable"


def rich() -> Source:
    """A source that has something of everything; every text of a user holds the word "unmistakable"."""
    items = [
        file("f", "F", name=f"{SECRET} file.pdf"),
        page("p", "P", address=f"https://example.com/{SECRET}"),
        note("n", "N", text=f"{SECRET} note", remark=f"{SECRET} remark"),
        folder("d", "D1", "D2", "gone", path=f"/home/{SECRET}"),
        folder("empty", path=f"/srv/{SECRET}"),
        note("failed", processingStatus="failed", processingError=f"{SECRET} error"),
        note("idle", text=f"{SECRET} idle"),
        None,
        {"id": "m", "type": "memory"},
        note("n", text=f"{SECRET} twice"),
    ]
    rows = [Row(loader, f"{SECRET} {loader} {at}") for at in range(2) for loader in ("F", "P", "N", "D1")]
    rows += [Row("D2", f"{SECRET} D2", None, source=f"/home/{SECRET}/x"), Row("left", f"{SECRET} left over")]
    rows += [Row("F", f"{SECRET} short", b"1234"), Row("N", f"{SECRET} late", id="N_5")]
    bases = [
        base("kb", *items, description=f"{SECRET} description", chunkSize="odd", name="<b>Bold & brave</b>"),
        base("lost", note("l", "L", text=f"{SECRET} lost"), model={**MODEL, "provider": "gone"}),
        base("empty", note("e", text=f"{SECRET} empty")),
        None,
        base("kb"),
        base("deleted"),
    ]
    stores = {"kb": rows, "lost": [Row("L", f"{SECRET} lost row")]}
    return Source(bases, stores, uploads={"up-f.pdf": SECRET.encode()}, pending=["deleted"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    rich().write(folder / "v1")
    return folder


@pytest.fixture(scope="module")
def report(place: Path) -> dict[str, Any]:
    done = run("migrate", place / "v1", "--to", place / "out", "--json", "--now", NOW, "--report", place / "page.html")
    assert (done.status, done.stderr) == (1, "")
    return done.document


# --- shape ---------------------------------------------------------------------------------------------------------


def check_shape(report: dict[str, Any], *, dry_run: bool = False) -> None:
    assert set(report) - {"preflight"} == TOP
    assert set(report["regraft"]) == {"version", "command", "schema"}
    assert (report["regraft"]["command"], report["regraft"]["schema"]) == ("migrate", 1)
    for end in ("source", "target"):
        assert set(report[end]) == {"kind", "path"}
    assert set(report["run"]) == {"id", "started_at", "finished_at", "dry_run"}
    assert report["run"]["dry_run"] is dry_run
    times = [datetime.fromisoformat(report["run"][key]) for key in ("started_at", "finished_at")]
    assert times[0] <= times[1]
    for entry in report["bases"]:
        assert set(entry) == BASE
        assert set(entry["directories"]) == {"expanded", "children", "tombstones"}
        assert set(entry["rows"]) == {
            "read",
            "carried",
            "without_vector",
            "skipped",
            "v1_deduplicated",
            "restored_duplicate",
        }
        assert entry["outcome"] in ("written", "unchanged", "failed", "skipped")
        assert entry["index"] is None or set(entry["index"]) == {"path", "materials", "units", "embeddings", "bytes"}
        assert (entry["index"] is None) == (entry["status"] == "failed")
    for warning in report["warnings"]:
        assert set(warning) == {"code", "base", "item", "message", "count", "samples", "model"}
        assert re.fullmatch("[a-z0-9_]+", warning["code"])
        assert isinstance(warning["count"], int)
        assert warning["count"] > 0
        assert warning["message"]
    assert set(report["ids"]) == {"bases", "items", "children"}
    assert set(report["ids"]["children"]) <= set(report["ids"]["bases"].values())


def test_the_shape_of_the_document(report: dict[str, Any], place: Path) -> None:
    check_shape(report)
    assert report["source"] == {"kind": "v1-export", "path": str(place / "v1")}
    assert report["target"] == {"kind": "library", "path": str(place / "out")}


def test_what_the_document_says(report: dict[str, Any]) -> None:
    kb, lost, empty = report["bases"]
    assert kb["items"] == {"completed": 5, "failed": 3, "idle": 1}
    assert kb["directories"] == {"expanded": 1, "children": 2, "tombstones": 1}
    assert kb["rows"] == {
        "read": 12,
        "carried": 9,
        "skipped": {"dimension_mismatch": 1, "missing_vector_payload": 1, "unmapped_loader": 1},
        "without_vector": 0,
        "v1_deduplicated": 3,
        "restored_duplicate": 0,
    }
    assert {key: kb["index"][key] for key in ("materials", "units", "embeddings")} == {
        "materials": 4,
        "units": 9,
        "embeddings": 9,
    }
    assert (lost["error"], lost["outcome"], lost["index"]) == ("missing_embedding_model", "failed", None)
    assert lost["rows"]["skipped"] == {"missing_embedding_model": 1}
    assert (empty["error"], empty["rows"]["read"], empty["dimensions"]) == ("missing_vector_store", 0, None)
    assert report["skipped"] == {
        "duplicate_knowledge_base": 1,
        "duplicate_knowledge_item": 1,
        "invalid_knowledge_base_identity": 1,
        "knowledge_item_missing_id_or_type": 1,
        "knowledge_item_unsupported_type": 1,
        "pending_delete": 1,
    }
    assert set(report["ids"]["bases"]) == {"kb", "lost", "empty"}
    assert set(report["ids"]["items"]) == {"f", "p", "n", "d", "empty", "failed", "idle", "l", "e"}
    assert {key: set(value) for key, value in report["ids"]["children"].items()} == {kb["id"]: {"D1", "D2"}}


def test_everything_that_was_skipped_or_failed_is_named(report: dict[str, Any]) -> None:
    said = Counter((warning["code"], warning["base"], warning["item"]) for warning in report["warnings"])
    for wanted in (
        ("invalid_knowledge_base_identity", None, None),
        ("duplicate_knowledge_base", "kb", None),
        ("pending_delete", "deleted", None),
        ("knowledge_item_missing_id_or_type", "kb", None),
        ("knowledge_item_unsupported_type", "kb", "m"),
        ("duplicate_knowledge_item", "kb", "n"),
        ("missing_embedding_model", "lost", None),
        ("missing_vector_store", "empty", None),
        ("directory_not_migrated", "kb", "empty"),
        ("directory_entries_without_rows", "kb", "d"),
        ("directory_child_not_migrated", "kb", "d"),
        ("directory_child_outside", "kb", "d"),
        ("invalid_base_config", "kb", None),
        ("unmapped_loader", "kb", None),
        ("missing_vector_payload", "kb", None),
        ("dimension_mismatch", "kb", None),
        ("v1_deduplicated", "kb", None),
        ("v1_deduplicated_item", "kb", "n"),
        ("dropped_field", "kb", None),
        ("dropped_field", "kb", "n"),
    ):
        assert said.pop(wanted, 0) == 1, wanted
    assert not said


def test_totals_are_sums(report: dict[str, Any]) -> None:
    totals, bases = report["totals"], report["bases"]
    assert totals["bases"] == {"all": 3, "written": 1, "failed": 2}
    items: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    for entry in bases:
        items.update(entry["items"])
        skipped.update(entry["rows"]["skipped"])
    assert totals["items"] == {"all": sum(items.values()), **items}
    assert totals["rows"] == {
        **{
            key: sum(entry["rows"][key] for entry in bases)
            for key in ("read", "carried", "without_vector", "v1_deduplicated", "restored_duplicate")
        },
        "skipped": skipped,
    }
    assert totals["rows"]["read"] == totals["rows"]["carried"] + sum(totals["rows"]["skipped"].values())
    for key in ("materials", "units", "embeddings", "bytes"):
        assert totals[key] == sum(entry["index"][key] for entry in bases if entry["index"])


def test_the_file_beside_the_library_is_the_same_document(report: dict[str, Any], place: Path) -> None:
    assert json.loads((place / "out" / "report.json").read_text(encoding="utf-8")) == report


def test_a_dry_run_reports_the_same_and_writes_nothing(place: Path, report: dict[str, Any], tmp_path: Path) -> None:
    done = run("migrate", place / "v1", "--to", tmp_path / "out", "--json", "--now", NOW, "--dry-run")
    assert done.status == 1
    assert list(tmp_path.iterdir()) == []
    planned = done.document
    check_shape(planned, dry_run=True)
    # Only writing tells how many texts differ, and how many bytes they take.
    unknown = {"embeddings": None, "bytes": None, "path": ""}
    for ours, theirs in zip(planned["bases"], report["bases"], strict=True):
        known = {**theirs, "index": theirs["index"] and {**theirs["index"], **unknown}}
        assert {**ours, "index": ours["index"] and {**ours["index"], "path": ""}} == known
    for key in ("skipped", "warnings", "ids"):
        assert planned[key] == report[key]


def test_a_second_run_says_that_nothing_changed(place: Path, report: dict[str, Any]) -> None:
    before = {path: path.stat().st_mtime_ns for path in (place / "out").iterdir() if path.is_file()}
    done = run("migrate", place / "v1", "--to", place / "out", "--json", "--now", "2030-01-01T00:00:00Z")
    check_shape(done.document)
    assert [entry["outcome"] for entry in done.document["bases"]] == ["unchanged", "failed", "failed"]
    for key in ("skipped", "warnings", "ids"):
        assert done.document[key] == report[key]
    assert {path: path.stat().st_mtime_ns for path in before} == before
    text = run("migrate", place / "v1", "--to", place / "out").stdout
    assert "Nothing to do" in text
    assert "Written:" not in text


def test_an_error_is_one_document_and_one_line(tmp_path: Path) -> None:
    done = run("migrate", tmp_path / "nowhere", "--to", tmp_path / "out", "--json")
    assert done.status == 2
    assert set(done.document) == {"regraft", "error"}
    assert set(done.document["error"]) == {"code", "message", "exit_status"}
    assert done.document["error"]["exit_status"] == 2
    assert done.stderr == f"regraft: {done.document['error']['message']}\n"
    assert str(tmp_path / "nowhere") in done.stderr


@pytest.mark.parametrize("options", [[], ["--no-such"], ["--now", "tomorrow"], ["--now", "2026-01-01T00:00:00"]])
def test_wrong_usage_is_refused(tmp_path: Path, options: list[str]) -> None:
    source = Source([base("kb")]).write(tmp_path / "v1")
    target = ["--to", tmp_path / "out"] if options else []
    done = run("migrate", source, *target, *options)
    assert done.status == 2
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


# --- exit status ---------------------------------------------------------------------------------------------------

FINE = [Row("L", "text")]
#: A base and its rows; the exit status for --fail-on warning and error. For never it is 0.
STATUSES: dict[str, tuple[dict[str, Any], list[Row] | None, int, int]] = {
    "nothing to complain about": (base("kb", note("n", "L")), FINE, 0, 0),
    "rows of nobody": (base("kb", note("n", "L")), [*FINE, Row("gone", "x")], 0, 0),
    "chunks that v1 left out": (base("kb", note("n", "L")), [Row("L", "x", id="L_3")], 0, 0),
    "a field that is dropped": (base("kb", note("n", "L"), description="about"), FINE, 0, 0),
    "a model that is re-created": (base("kb", note("n", "L"), model={**MODEL, "id": "new"}), FINE, 0, 0),
    "items that failed in v1": (base("kb", note("n", "L", processingStatus="failed")), FINE, 0, 0),
    "a missing upload": (base("kb", file("f", "L")), FINE, 1, 0),
    "a row without a vector": (base("kb", note("n", "L")), [*FINE, Row("L", "x", None)], 1, 0),
    "a vector of zeros": (base("kb", note("n", "L")), [*FINE, Row("L", "x", b"\0" * 16)], 1, 0),
    "a skipped item": (base("kb", None), FINE, 1, 0),
    "a tombstone": (base("kb", folder("d", "gone")), FINE, 1, 0),
    "an invalid setting": (base("kb", chunkSize=0), FINE, 1, 0),
    "a base without a model": (base("kb", model=None), FINE, 1, 1),
    "a base without vectors": (base("kb"), None, 1, 1),
}


@pytest.mark.parametrize("name", STATUSES)
def test_exit_status(tmp_path: Path, name: str) -> None:
    entry, rows, warning, error = STATUSES[name]
    source = Source([entry], {} if rows is None else {"kb": rows}).write(tmp_path / "v1")
    found = {}
    for line in ("warning", "error", "never"):
        done = run("migrate", source, "--to", tmp_path / "out", "--fail-on", line, "-q")
        found[line] = done.status
    assert found == {"warning": warning, "error": error, "never": 0}
    assert run("migrate", source, "--to", tmp_path / "out").status == warning


# --- text ----------------------------------------------------------------------------------------------------------


def test_the_text_for_a_person(place: Path, tmp_path: Path) -> None:
    done = run("migrate", place / "v1", "--to", tmp_path / "out", "--now", NOW)
    assert done.status == 1
    assert done.stderr == ""
    text = done.stdout
    for needle in (
        "<b>Bold & brave</b>",
        "written",
        "failed (missing_vector_store)",
        "failed (missing_embedding_model)",
        "9 of 13 rows of 2 bases migrated",
        "nothing was embedded again",
        "[directory_not_migrated]",
        "[duplicate_knowledge_item]",
    ):
        assert needle in text, needle
    assert "\x1b" not in text
    # Everything that a run writes is listed at its end.
    listed = text.partition("Written:")[2].partition("\n\n")[0].split()
    assert {Path(name).name for name in listed} == {
        "catalog.sqlite",
        "KnowledgeBase",
        "report.json",
        "report.html",
        ".regraft",
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".regraft",
        "catalog.sqlite",
        "KnowledgeBase",
        "report.json",
        "report.html",
    }


def test_a_dry_run_says_that_it_is_one(place: Path, tmp_path: Path) -> None:
    text = run("migrate", place / "v1", "--to", tmp_path / "out", "--dry-run").stdout
    assert "9 of 13 rows of 2 bases will be migrated" in text
    assert "nothing was written" in text.lower()


def test_notes_are_for_those_who_ask(place: Path, tmp_path: Path) -> None:
    plain = run("migrate", place / "v1", "--to", tmp_path / "plain").stdout
    verbose = run("migrate", place / "v1", "--to", tmp_path / "verbose", "-v").stdout
    assert "[dropped_field]" not in plain
    assert "[dropped_field]" in verbose


# --- page ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out/report.html", "page.html"])
def test_the_page_parses_and_stands_alone(place: Path, report: dict[str, Any], name: str) -> None:
    text = (place / name).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert not {"script", "link", "img", "iframe", "a", "object", "embed", "form"} & set(page.tags)
    assert not {"src", "href", "srcset", "action", "onclick", "onload"} & {key for key, _ in page.attributes}
    assert not re.search(r"https?:|//|@import|url\(|javascript:", text)
    shown = " ".join(page.texts)
    for needle in (
        "9 of 13 rows",
        "Bold & brave",
        "missing_vector_store",
        "directory_not_migrated",
        report["run"]["id"],
    ):
        assert needle in shown, needle
    assert "<b>" not in text


def test_the_page_has_no_texts(place: Path, report: dict[str, Any]) -> None:
    assert SECRET in json.dumps(report)
    for name in ("out/report.html", "page.html"):
        assert SECRET not in (place / name).read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_refused_before_anything_is(tmp_path: Path) -> None:
    source = Source([base("kb")]).write(tmp_path / "v1")
    done = run("migrate", source, "--to", tmp_path / "out", "--report", tmp_path / "no folder" / "page.html")
    assert done.status == 2
    assert not (tmp_path / "out").exists()


def test_numbers_of_many_rows_are_readable(tmp_path: Path) -> None:
    rows = [Row("L", f"text {number}", vector_of(0)) for number in range(1234)]
    source = Source([base("kb", note("n", "L"))], {"kb": rows}).write(tmp_path / "v1")
    assert "1,234 of 1,234 rows migrated" in run("migrate", source, "--to", tmp_path / "out").stdout


def test_messages_name_the_base_as_its_user_knows_it(place: Path) -> None:
    text = run("migrate", place / "v1", "--to", place / "out").stdout
    assert "Base empty: " in text
    assert "Base lost: " in text
