"""The rules of a catalog's rows, each by rows that keep it and rows that break it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import catalog_rows
from regraft.formats.cherry_v2.catalog_reader import StoredCatalog

Row = dict[str, Any]
BASE = {
    "id": "b",
    "name": "B",
    "status": "completed",
    "error": None,
    "embedding_model_id": "m",
    "dimensions": 4,
    "search_mode": "hybrid",
}
WITHOUT_MODEL = {"embedding_model_id": None, "dimensions": None}
FILE = {"source": "/home/anna/a.md", "relativePath": "a.md"}
DATA = {
    "file": FILE,
    "url": {"source": "s", "url": "https://example.org"},
    "note": {"source": "s", "content": "text"},
    "directory": {"source": "/home/anna/docs", "relativePath": "docs"},
}


def item(key: str = "i", kind: Any = "file", **more: Any) -> Row:
    data = DATA.get(kind, FILE) if isinstance(kind, str) else FILE
    row = {"id": key, "type": kind, "status": "completed", "error": None, "group_id": None, "data": json.dumps(data)}
    return row | more


def reported(check: Callable[[FindingCollector], None]) -> list[tuple[Any, ...]]:
    """Return name, base, message, severity, samples, and whether no command helps, of each finding."""
    findings = FindingCollector()
    check(findings)
    return [
        (one.name, one.base, one.message, one.severity, one.samples, one.is_beyond_repair)
        for one in findings.to_findings()
    ]


# --- bases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, None),
        ({"status": "idle"}, "its status is idle"),
        ({"status": None}, "its status is None"),
        ({"search_mode": "words"}, "its search mode is words"),
        ({"search_mode": None}, "its search mode is None"),
        ({"search_mode": "vector"}, None),
        ({"search_mode": "bm25"}, None),
        ({"dimensions": 1}, None),
        ({"dimensions": 0}, "it has 0 dimensions"),
        ({"dimensions": -4}, "it has -4 dimensions"),
        ({"dimensions": "many"}, "it has many dimensions"),
        ({"dimensions": None}, "it has a model without dimensions"),
        ({"embedding_model_id": None}, "it has dimensions without a model"),
        (WITHOUT_MODEL, "it has no model and its search mode is hybrid"),
        ({**WITHOUT_MODEL, "search_mode": "bm25"}, None),
        ({"error": "x"}, "it is completed and has an error: x"),
        ({"error": ""}, "it is completed and has an error: "),
        ({"status": "failed"}, "its status is failed, but no error is recorded"),
        ({"status": "failed", "error": " \n"}, "its status is failed, but no error is recorded"),
        ({"status": "failed", "error": "x"}, None),
        # The values of a failed base are those that it had before.
        ({"status": "failed", "error": "x", **WITHOUT_MODEL}, None),
        ({"status": "failed", "error": "x", "dimensions": None}, None),
    ],
)
def test_values_of_a_base_that_contradict_each_other(change: Row, problem: str | None) -> None:
    assert catalog_rows.find_base_problem(BASE | change) == problem


def test_a_catalog_without_search_modes_lacks_none() -> None:
    row = {name: value for name, value in (BASE | WITHOUT_MODEL).items() if name != "search_mode"}
    assert catalog_rows.find_base_problem(row) is None
    assert catalog_rows.find_base_problem(row | {"status": "idle"}) == "its status is idle"
    # No search mode is unknown where there is none.
    [(*_, is_beyond_repair)] = base_findings(row | {"error": "x"})
    assert not is_beyond_repair


def base_findings(row: Row, models: set[str] | None = None, *more: str) -> list[tuple[Any, ...]]:
    return reported(lambda findings: catalog_rows.check_base(row, models, findings, *more))


@pytest.mark.parametrize(
    ("change", "is_beyond_repair"),
    [
        ({"search_mode": "words"}, True),
        ({"search_mode": "words", "hybrid_alpha": None}, True),
        ({"search_mode": "words", "hybrid_alpha": 0.5}, False),
        ({"search_mode": "words", "status": "idle"}, False),
        ({"error": "x"}, False),
        ({"status": "failed", "search_mode": "words", "error": None}, True),
    ],
)
def test_a_search_mode_that_nothing_tells_is_beyond_repair(change: Row, is_beyond_repair: bool) -> None:
    [(name, base, *_, found)] = base_findings(BASE | change)
    assert (name, base, found) == ("base.status", "b", is_beyond_repair)


@pytest.mark.parametrize(
    ("error", "carried_by", "message"),
    [
        ("missing_embedding_model", (), "failed during the upgrade: missing_embedding_model"),
        ("missing_vector_store", (), "failed during the upgrade: missing_vector_store"),
        ("missing_vector_store", ("migration",), "failed during the migration: missing_vector_store"),
        ("no memory", ("migration",), "failed: no memory"),
    ],
)
def test_a_failed_base_says_what_it_failed_at(error: str, carried_by: tuple[str, ...], message: str) -> None:
    row = BASE | {"status": "failed", "error": error}
    assert base_findings(row, {"m"}, *carried_by) == [("base.failed", "b", message, "warning", (), False)]


def test_models_of_a_base_that_do_not_exist() -> None:
    row = BASE | {"rerank_model_id": "r"}
    assert base_findings(row, {"m", "r"}) == base_findings(row) == base_findings(BASE, {"m"}) == []
    assert base_findings(row, {"x"}) == [
        ("base.model", "b", "its model m does not exist", "error", ("m",), False),
        ("base.model", "b", "its model r does not exist", "error", ("r",), False),
    ]
    assert base_findings(row, {"m"}) == [("base.model", "b", "its model r does not exist", "error", ("r",), False)]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("name", b"\xff", "1 base whose name is bytes"),
        ("name", 7, "1 base whose name is of another type"),
        ("chunk_separator", b"\n", "1 base whose chunk_separator is bytes"),
        ("chunk_size", "many", "1 base whose chunk_size is of another type"),
        ("threshold", b"1", "1 base whose threshold is bytes"),
        ("threshold", 0.5, None),
        ("document_count", 5, None),
        ("created_at", b"1", "1 base whose created_at is bytes"),
        ("created_at", "2026-01-01", None),
        ("updated_at", 7, None),
        ("deleted_at", None, None),
    ],
)
def test_values_of_a_type_that_no_column_of_it_has(column: str, value: object, message: str | None) -> None:
    expected = [] if message is None else [("catalog.value", "b", message, "error", ("b",), False)]
    assert base_findings(BASE | {column: value}) == expected


# --- models ----------------------------------------------------------------------------------------------------------


def test_models_without_the_values_that_a_preset_would_give_them() -> None:
    def found(used: set[str], *rows: Row) -> list[tuple[Any, ...]]:
        return reported(lambda findings: catalog_rows.check_models(rows, used, findings))

    whole = {"id": "m", "name": "M", "capabilities": "[]", "supports_streaming": 0, "preset_model_id": None}
    lacking = whole | {"name": None, "capabilities": None}
    assert found({"m"}, whole, lacking | {"preset_model_id": "p"}, {"id": "o"}) == []
    assert found(set(), lacking) == [
        ("model.incomplete", None, "1 model without name, capabilities", "error", ("m",), False)
    ]
    assert found({"m"}, lacking, lacking | {"id": "n"}) == [
        ("model.incomplete", None, "1 model that bases use, without name, capabilities", "error", ("m",), False),
        ("model.incomplete", None, "1 model without name, capabilities", "error", ("n",), False),
    ]


# --- items -----------------------------------------------------------------------------------------------------------


def items_of(
    *items: Row, chosen: set[str] | None = None, is_running: bool = False, made_by: str = "upgrade"
) -> list[tuple[Any, ...]]:
    catalog = StoredCatalog(bases=[{"id": "b"}], items={"b": list(items)})
    return reported(lambda findings: catalog_rows.check_items(catalog, chosen, is_running, findings, made_by))


def test_items_of_each_type_that_are_whole() -> None:
    assert items_of(*(item(kind, kind) for kind in DATA)) == []


@pytest.mark.parametrize(
    ("kind", "status", "error", "problem", "problem_while_running"),
    [
        ("file", "completed", None, None, None),
        ("file", "completed", "x", "completed with an error", "completed with an error"),
        ("file", "idle", None, None, None),
        ("note", "deleting", None, None, None),
        ("url", "failed", "x", None, None),
        ("url", "failed", None, "status failed, but no error is recorded", "status failed, but no error is recorded"),
        ("url", "failed", " ", "status failed, but no error is recorded", "status failed, but no error is recorded"),
        ("file", "embedding", None, "embedding, but the application is not running", None),
        ("file", "reading", None, "reading, but the application is not running", None),
        ("file", "processing", None, "processing, but the application is not running", None),
        ("file", "embedding", "x", "embedding with an error", "embedding with an error"),
        ("file", "preparing", None, "a file cannot be preparing", "a file cannot be preparing"),
        ("directory", "processing", None, None, None),
        ("directory", "preparing", None, "preparing, but the application is not running", None),
        ("directory", "reading", None, "a directory cannot be reading", "a directory cannot be reading"),
        ("directory", "embedding", None, "a directory cannot be embedding", "a directory cannot be embedding"),
        ("file", "done", None, "its status is done", "its status is done"),
        (b"\0", "completed", None, "its type is b'\\x00'", "its type is b'\\x00'"),
        ("external", "done", None, None, None),
    ],
)
def test_a_status_that_does_not_fit_an_item(
    kind: object, status: str, error: str | None, problem: str | None, problem_while_running: str | None
) -> None:
    row = item(kind=kind, status=status, error=error)
    assert catalog_rows.find_status_problem(row, False) == problem
    assert catalog_rows.find_status_problem(row, True) == problem_while_running


def test_a_status_is_reported_and_of_an_unknown_type_beyond_repair() -> None:
    assert items_of(item(status="embedding"), is_running=True) == []
    assert items_of(item(status="embedding")) == [
        ("item.status", "b", "1 item: embedding, but the application is not running", "error", ("i",), False)
    ]
    assert items_of(item(kind=None)) == [("item.status", "b", "1 item: its type is None", "error", ("i",), True)]


@pytest.mark.parametrize(("status", "going"), [("idle", ""), ("deleting", ", which is being deleted")])
def test_an_item_of_a_newer_type_has_no_other_finding(status: str, going: str) -> None:
    message = f"1 item of type external, introduced by a newer application{going}: not changed"
    row = item(kind="external", status=status, error="x", data="[]")
    assert items_of(row) == [("item.foreign-type", "b", message, "note", ("i",), False)]


def test_values_of_an_item_of_another_type() -> None:
    assert items_of(item(created_at=b"1")) == [
        ("catalog.value", "b", "1 item whose created_at is bytes", "error", ("i",), False)
    ]


def test_data_with_more_fields_is_beyond_repair() -> None:
    about = "which items of type file do not have"
    assert items_of(item(data=json.dumps(FILE | {"more": 1})), item("j", data="{")) == [
        ("item.data", "b", f"1 item: its data has more, {about}", "error", ("i",), True),
        ("item.data", "b", "1 item: its data is not a JSON object", "error", ("j",), False),
    ]


def test_a_folder_that_the_upgrade_left_behind() -> None:
    left = {"status": "failed", "error": "directory_not_migrated"}
    message = "1 folder that failed in the application's upgrade"
    assert items_of(item(kind="directory", **left)) == [("item.tombstone", "b", message, "warning", ("i",), False)]
    message = "1 folder that failed in the migration"
    found = items_of(item(kind="directory", **left), made_by="migration")
    assert found == [("item.tombstone", "b", message, "warning", ("i",), False)]
    for row in (
        item(kind="directory", status="failed", error="x"),
        item(kind="file", **left),
        item(kind="directory", **left | {"status": "completed"}),
    ):
        assert not catalog_rows.is_tombstone(row)


def test_a_path_that_is_the_id_of_a_file_in_a_folder() -> None:
    own = json.dumps({"source": "/f/a.md", "relativePath": "i"})
    folder = item("d", "directory")
    message = "1 file in a folder with its own id as path, which the application shows as its name"
    assert items_of(folder, item(group_id="d", data=own)) == [("item.path-is-id", "b", message, "note", ("i",), False)]
    note = json.dumps({"source": "s", "content": "c", "relativePath": "i"})
    for row in (item(data=own), item(group_id="d"), item(kind="note", group_id="d", data=note)):
        assert not catalog_rows.has_id_as_path(row)
    assert not catalog_rows.has_id_as_path(item(7, group_id="d", data='{"source": "s", "relativePath": 7}'))


def test_items_of_no_base_and_of_bases_that_are_not_chosen() -> None:
    wrong = item(status="failed")
    catalog = StoredCatalog(bases=[{"id": "b"}, {"id": "c"}], items={"b": [wrong], "c": [wrong], "d": [wrong]})

    def found(chosen: set[str] | None) -> list[tuple[str, str]]:
        return [
            one[:3] + one[4:5]
            for one in reported(lambda findings: catalog_rows.check_items(catalog, chosen, False, findings))
        ]

    status = "1 item: status failed, but no error is recorded"
    orphan = ("item.no-base", "d", "1 item in a base that does not exist", ("i",))
    assert found({"c"}) == [("item.status", "c", status, ("i",))]
    assert found({"d"}) == [orphan]
    assert found(None) == [orphan, ("item.status", "b", status, ("i",)), ("item.status", "c", status, ("i",))]
    without_items = StoredCatalog(bases=[{"id": "b"}])
    assert reported(lambda findings: catalog_rows.check_items(without_items, None, False, findings)) == []
    assert reported(lambda findings: catalog_rows.check_sources(without_items, None, findings)) == []


def test_the_path_of_the_file_that_is_indexed() -> None:
    paths = {"relativePath": "a.md", "indexedRelativePath": "b.md"}
    for data, path in (
        (paths, "b.md"),
        (paths | {"indexedRelativePath": ""}, "a.md"),
        ({"relativePath": "a.md"}, "a.md"),
        ({"relativePath": ""}, None),
        ({"relativePath": 7}, None),
        ({}, None),
    ):
        assert catalog_rows.get_indexed_path({"data": json.dumps(data)}) == path


def test_the_prefixes_of_files_in_folders() -> None:
    rows = [
        item("d", "directory", data=json.dumps({"source": "/f", "relativePath": "docs/"})),
        item("e", "directory", data=json.dumps({"source": "/f"})),
        item("f", "directory", data=json.dumps({"source": "/f", "relativePath": ""})),
        item("g", "directory", data=json.dumps({"source": "/f", "relativePath": 7})),
        item("n", "note", data=json.dumps({"source": "s", "content": "c", "relativePath": "n.md"})),
        *(item(f"in-{group}", group_id=group) for group in "defgn"),
        item("top"),
    ]
    assert catalog_rows.find_virtual_prefixes(rows) == {"in-d": "docs/"}


# --- folders of items ------------------------------------------------------------------------------------------------


def container_findings(*items: Row) -> list[tuple[str, tuple[str, ...]]]:
    found = items_of(*items, is_running=True)
    assert {one[0] for one in found} <= {"item.container", "item.foreign-type"}
    return [(one[2], one[4]) for one in found if one[0] == "item.container"]


@pytest.mark.parametrize(
    ("status", "children", "problem"),
    [
        ("completed", [], None),
        ("completed", ["completed", "failed", "idle"], None),
        ("completed", ["deleting"], None),
        ("processing", [], "active although it is empty"),
        ("processing", ["deleting"], "active although it is empty"),
        ("processing", ["completed", "embedding"], None),
        ("processing", ["completed"], "that should be completed according to its children"),
        ("completed", ["completed", "reading"], "that should be processing according to its children"),
        ("idle", ["embedding"], None),
        ("preparing", ["embedding"], None),
    ],
)
def test_the_status_of_a_folder_follows_from_its_children(status: str, children: list[str], problem: str) -> None:
    inside = [
        item(f"c{number}", group_id="d", status=one, error="x" if one == "failed" else None)
        for number, one in enumerate(children)
    ]
    found = container_findings(item("d", "directory", status=status), *inside)
    assert found == ([] if problem is None else [(f"1 folder {problem}", ("d",))])


def test_a_child_of_a_newer_type_leaves_the_status_of_its_folder_open() -> None:
    folder = item("d", "directory", status="processing")
    assert container_findings(folder, item(group_id="d", kind="external")) == []
    # A file with children has no status of a folder.
    assert container_findings(item("d", status="processing"), item(group_id="d")) == [
        ("1 item inside something that is not a folder", ("i",))
    ]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([item(group_id="gone")], [("1 item whose folder is missing", ("i",))]),
        ([item(group_id="n"), item("n", "note")], [("1 item inside something that is not a folder", ("i",))]),
        ([item(group_id="d"), item("d", "directory", group_id="e"), item("e", "directory")], []),
        (
            [item(group_id="d"), item("d", "directory", group_id="e"), item("e", "directory", group_id="d")],
            [("3 items inside itself", ("i", "d", "e"))],
        ),
        # What a newer application allows is unknown.
        ([item(group_id="x"), item("x", "external")], []),
        ([item(kind="external", group_id="n"), item("n", "note")], []),
        ([item(kind="external", group_id="gone")], [("1 item whose folder is missing", ("i",))]),
        ([item(group_id="d"), item("d", "directory", group_id="gone")], [("1 item whose folder is missing", ("d",))]),
    ],
)
def test_the_folder_that_an_item_is_in(rows: list[Row], found: list[tuple[str, tuple[str, ...]]]) -> None:
    assert container_findings(*rows) == found


# --- originals -------------------------------------------------------------------------------------------------------


def test_originals_that_are_gone_from_a_place_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = re.compile(rf"{re.escape(str(tmp_path))}[\\/]home[\\/][^\\/]+(?=[\\/])")
    monkeypatch.setattr(catalog_rows, "_POSIX_PLACE", place)
    monkeypatch.setattr(catalog_rows, "_WINDOWS_PLACE", place)
    home = tmp_path / "home" / "anna"
    home.mkdir(parents=True)
    (home / "kept.md").write_text("kept")
    gone, folder = str(home / "gone.md"), str(home / "docs")
    rows = [
        item("k", data=json.dumps({"source": str(home / "kept.md")})),
        item("g", data=json.dumps({"source": gone})),
        item("d", "directory", data=json.dumps({"source": folder})),
        item("n", "note", data=json.dumps({"source": gone, "content": "c"})),
        item("e", data=json.dumps({"source": ""})),
        item("x", data=json.dumps({"source": 7})),
        item("o", data=json.dumps({"source": str(tmp_path / "home" / "boris" / "gone.md")})),
        item("p", data=json.dumps({"source": str(tmp_path / "gone.md")})),
    ]
    catalog = StoredCatalog(bases=[{"id": 1}, {"id": "c"}], items={1: rows, "c": rows[1:2]})

    def found(chosen: set[str] | None) -> list[tuple[Any, ...]]:
        return reported(lambda findings: catalog_rows.check_sources(catalog, chosen, findings))

    about = "whose original is gone: the application cannot index them again"
    of_one = ("item.source-missing", "1", f"2 items {about}", "note", (gone, folder), False)
    of_other = ("item.source-missing", "c", f"1 item {about}", "note", (gone,), False)
    assert found(None) == [of_one, of_other]
    assert found({"c"}) == [of_other]
    assert found({"1"}) == [of_one]
    assert found(set()) == []
    assert [catalog_rows.get_source(row) for row in rows[2:6]] == [folder, None, None, None]
    # A path that no file can have, one below a file, and one that cannot be looked at.
    assert catalog_rows.is_source_missing(f"{home}/a\0b")
    assert catalog_rows.is_source_missing(str(home / "kept.md" / "x"))
    monkeypatch.setattr(
        catalog_rows.file_paths, "stat", lambda path: refuse() if path.name == "gone.md" else path.stat()
    )
    assert not catalog_rows.is_source_missing(gone)
    assert catalog_rows.is_source_missing(str(home / "other.md"))


def refuse() -> None:
    raise PermissionError
