"""v1's state in every shape that a user can hand in, and what damage does to it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from regraft.disk.trees import FolderTree, ZipTree
from regraft.errors import BrokenJson, SourceNotMigratable, SourceUnreadable
from regraft.formats.cherry_v1.layout import STATE_KEY, StatePaths
from regraft.formats.cherry_v1.state import DexieTable, FileRow, V1State, read_file, read_state
from regraft.report import notices

BASES = [{"id": "b1", "name": "Räume \U0001f600", "items": [{"id": "i1", "type": "note", "content": "x"}]}, None, 7]
PROVIDERS = [{"id": "openai", "models": [{"id": "m", "name": "M"}]}]
FILE = {
    "id": "f1",
    "name": "f1.md",
    "origin_name": "Lies mich.md",
    "path": "/old/f1.md",
    "size": 12,
    "ext": ".md",
    "type": "document",
    "created_at": "2025-03-14T09:39:05.000Z",
    "count": 1,
}
NOTE = {"id": "n1", "baseId": "b1", "type": "note", "content": "Dexie's text", "sourceUrl": "https://example.com/clip"}

REDUX = {"knowledge": {"bases": BASES}, "llm": {"providers": PROVIDERS}, "settings": {"theme": "dark"}}


def texts(state: dict[str, Any]) -> dict[str, str]:
    """As redux-persist writes a state: the value of every slice is itself JSON text."""
    return {name: json.dumps(value) for name, value in state.items()}


def backup(redux: Any = None, tables: Any = None, version: Any = 5) -> dict[str, Any]:
    """The content of a ``data.json``."""
    state = json.dumps(texts(REDUX) if redux is None else redux)
    if tables is None:
        tables = {"files": [FILE], "knowledge_notes": [NOTE], "topics": [{"id": "t"}]}
    return {"time": 1, "version": version, "localStorage": {STATE_KEY: state, "other": "x"}, "indexedDB": tables}


def written(folder: Path, name: str, content: Any) -> str:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return name


def from_backup(folder: Path, content: Any) -> V1State:
    return read_state(FolderTree(folder), StatePaths(backup=written(folder, "data.json", content)))


def from_export(folder: Path, redux: Any, **tables: Any) -> V1State:
    places = {name: written(folder, f"dexie/{name}.json", rows) for name, rows in tables.items()}
    return read_state(FolderTree(folder), StatePaths(redux=written(folder, "redux.json", redux), tables=places))


def from_slice(folder: Path, knowledge: Any) -> V1State:
    return read_state(FolderTree(folder), StatePaths(knowledge=written(folder, "knowledge.json", knowledge)))


def codes(state: V1State) -> list[str]:
    return [notice.code for notice in state.notices]


def assert_complete(state: V1State) -> None:
    assert state.bases == BASES
    assert state.providers == PROVIDERS
    assert state.files == {"f1": FILE}
    assert list(state.notes) == ["n1"]
    assert {"n1", "Dexie's text", "https://example.com/clip"} <= set(state.notes["n1"].values())
    assert state.pending_delete == frozenset()
    assert codes(state) == []


# --- backups of the versions 1 to 5 --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, None, "5"])
def test_backups(tmp_path: Path, version: Any) -> None:
    assert_complete(from_backup(tmp_path, backup(version=version)))


def test_a_backup_without_a_version(tmp_path: Path) -> None:
    content = backup()
    del content["version"]
    assert_complete(from_backup(tmp_path, content))


def test_the_list_form_of_version_1(tmp_path: Path) -> None:
    tables = [
        {"key": "topics", "value": []},
        {"key": "files", "value": [FILE]},
        {"key": "knowledge_notes", "value": [NOTE]},
    ]
    content = backup(tables=tables, version=1)
    assert_complete(from_backup(tmp_path, content))
    content["localStorage"] = [{"key": key, "value": value} for key, value in content["localStorage"].items()]
    assert_complete(from_backup(tmp_path, content))


@pytest.mark.parametrize(
    "redux", [texts(REDUX), REDUX, {**REDUX, "llm": json.dumps(REDUX["llm"])}], ids=["texts", "objects", "mixed"]
)
def test_slices_are_texts_or_objects(tmp_path: Path, redux: Any) -> None:
    assert_complete(from_backup(tmp_path, backup(redux)))


def test_a_state_that_is_wrapped_once_more_or_not_at_all(tmp_path: Path) -> None:
    content = backup()
    content["localStorage"][STATE_KEY] = json.dumps(content["localStorage"][STATE_KEY])
    assert_complete(from_backup(tmp_path, content))
    content["localStorage"][STATE_KEY] = texts(REDUX)
    assert_complete(from_backup(tmp_path, content))


def test_tables_may_be_texts(tmp_path: Path) -> None:
    tables = {"files": json.dumps([FILE]), "knowledge_notes": json.dumps([NOTE])}
    assert_complete(from_backup(tmp_path, backup(tables=tables)))


def test_a_backup_is_read_from_its_archive(tmp_path: Path) -> None:
    path = tmp_path / "backup.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("data.json", json.dumps(backup()))
    tree = ZipTree(path)
    assert_complete(read_state(tree, StatePaths(backup="data.json")))
    tree.close()


def test_torn_texts_are_mended_at_every_depth(tmp_path: Path) -> None:
    redux = {"knowledge": {"bases": [{"id": "b", "name": "cut \ud83d"}]}, "llm": {"providers": [{"id": "\ude00"}]}}
    tables = {"files": [{**FILE, "origin_name": "\udbff.md"}], "knowledge_notes": [], "topics": ["\ud800"]}
    state = from_backup(tmp_path, backup(texts(redux), tables))
    assert state.bases[0]["name"] == "cut \ufffd"
    assert state.providers == [{"id": "\ufffd"}]
    assert state.files["f1"]["origin_name"] == "\ufffd.md"


@pytest.mark.parametrize("version", [6, 7, 0, -1, 99])
def test_other_versions_are_named_and_refused(tmp_path: Path, version: int) -> None:
    with pytest.raises(SourceNotMigratable) as caught:
        from_backup(tmp_path, backup(version=version))
    assert caught.value.exit_status == 2
    assert str(caught.value) == (
        f"{tmp_path}: this is a backup of version {version}; regraft reads data.json of versions 1 to 5."
    )


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"localStorage": {}},
        {"localStorage": None},
        {"localStorage": {STATE_KEY: None}},
        {"localStorage": {STATE_KEY: "{}"}},
        {"localStorage": {STATE_KEY: json.dumps({"llm": "{}"})}},
        {"localStorage": {STATE_KEY: json.dumps({"knowledge": "null"})}},
        {"localStorage": {STATE_KEY: json.dumps({"knowledge": None})}},
    ],
)
def test_a_backup_without_knowledge_is_a_note(tmp_path: Path, content: Any) -> None:
    state = from_backup(tmp_path, content)
    assert state.bases == []
    assert codes(state) == [notices.NO_KNOWLEDGE]


# --- exports and slices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("redux", [REDUX, texts(REDUX)], ids=["objects", "texts"])
def test_exports(tmp_path: Path, redux: Any) -> None:
    assert_complete(from_export(tmp_path, redux, files=[FILE], knowledge_notes=[NOTE]))


def test_an_export_without_tables(tmp_path: Path) -> None:
    state = from_export(tmp_path, REDUX)
    assert (state.files, state.notes, codes(state)) == ({}, {}, [])


@pytest.mark.parametrize(
    "knowledge",
    [{"bases": BASES}, {"bases": BASES, "_persist": {"version": 1}}, BASES],
    ids=["slice", "slice with more", "bases alone"],
)
def test_a_knowledge_slice_alone_knows_no_models(tmp_path: Path, knowledge: Any) -> None:
    state = from_slice(tmp_path, knowledge)
    assert (state.bases, state.providers) == (BASES, None)
    assert codes(state) == [notices.MODELS_UNKNOWN]


def test_nothing_at_all(tmp_path: Path) -> None:
    state = read_state(FolderTree(tmp_path), StatePaths())
    assert (state.bases, codes(state)) == ([], [notices.NO_KNOWLEDGE])


@pytest.mark.parametrize("bases", [None, []])
def test_no_bases_say_nothing(tmp_path: Path, bases: Any) -> None:
    assert from_export(tmp_path, {"knowledge": {"bases": bases}}).bases == []
    state = from_export(tmp_path, {"knowledge": {}})
    assert (state.bases, codes(state)) == ([], [])


@pytest.mark.parametrize("llm", [None, "null", "5", [], "absent"])
def test_no_models_slice_is_one_warning(tmp_path: Path, llm: Any) -> None:
    redux = {"knowledge": {"bases": [*BASES, *BASES]}, "llm": llm}
    if llm == "absent":
        del redux["llm"]
    state = from_export(tmp_path, redux)
    assert state.providers is None
    assert codes(state) == [notices.MODELS_UNKNOWN]
    assert state.notices[0].severity == "warning"


@pytest.mark.parametrize("providers", [None, {}, "openai", 5])
def test_a_models_slice_without_a_list_has_no_models(tmp_path: Path, providers: Any) -> None:
    state = from_export(tmp_path, {**REDUX, "llm": {"providers": providers}})
    assert (state.providers, codes(state)) == ([], [])


# --- tables --------------------------------------------------------------------------------------------------------


def test_rows_without_an_id_are_passed_over_and_the_rest_is_kept(tmp_path: Path) -> None:
    rows = [None, 5, "text", [], {}, {"id": None}, {"id": 7}, {"id": "f1", "name": None, "other": {"deep": [1]}}, FILE]
    state = from_export(tmp_path, REDUX, files=rows, knowledge_notes=rows)
    assert state.files == {"f1": FILE}
    assert list(state.notes) == ["f1"]
    assert codes(state) == []


@pytest.mark.parametrize("table", ["files", "knowledge_notes"])
@pytest.mark.parametrize(
    "damaged", [b'[{"id": "f1"', b"", b"{}", b"5", b'"[{]"', b"\0\0\0", b"[" * 100_000], ids=lambda raw: repr(raw[:12])
)
def test_a_broken_table_harms_only_itself(tmp_path: Path, table: str, damaged: bytes) -> None:
    other = {"files": "knowledge_notes", "knowledge_notes": "files"}[table]
    state = from_export(tmp_path, REDUX, **{table: damaged, other: [{"id": "kept"}]})
    assert state.bases == BASES
    assert (len(state.files), len(state.notes)) == ((0, 1) if table == "files" else (1, 0))
    assert codes(state) == [notices.TABLE_UNREADABLE]
    assert state.notices[0].severity == "warning"
    assert state.notices[0].message.startswith(f"table {table} cannot be read: ")


@pytest.mark.parametrize("damaged", [{}, 5, "text", "[{]"])
def test_a_table_of_another_shape_in_a_backup_harms_only_itself(tmp_path: Path, damaged: Any) -> None:
    state = from_backup(tmp_path, backup(tables={"files": damaged, "knowledge_notes": [NOTE]}))
    assert (state.bases, state.files, list(state.notes)) == (BASES, {}, ["n1"])
    assert codes(state) == [notices.TABLE_UNREADABLE]


@pytest.mark.parametrize("tables", [5, "text", True])
def test_tables_of_another_shape_leave_the_knowledge(tmp_path: Path, tables: Any) -> None:
    state = from_backup(tmp_path, backup(tables=tables))
    assert (state.bases, state.files, state.notes) == (BASES, {}, {})
    assert codes(state) == [notices.TABLE_UNREADABLE]
    assert state.notices[0].message.startswith("indexedDB in data.json cannot be read: ")


def test_no_tables_at_all(tmp_path: Path) -> None:
    content = backup()
    content["indexedDB"] = None
    state = from_backup(tmp_path, content)
    assert (state.files, state.notes, codes(state)) == ({}, {}, [])


def test_a_table_that_cannot_be_read_harms_only_itself(tmp_path: Path) -> None:
    written(tmp_path, "redux.json", REDUX)
    (tmp_path / "files.json").mkdir()
    places = StatePaths(redux="redux.json", tables={"files": "files.json", "knowledge_notes": "gone.json"})
    state = read_state(FolderTree(tmp_path), places)
    assert state.bases == BASES
    assert codes(state) == [notices.TABLE_UNREADABLE, notices.TABLE_UNREADABLE]


# --- damage that stops ---------------------------------------------------------------------------------------------


def broken(caught: pytest.ExceptionInfo[BrokenJson], path: Path, where: str, reason: str) -> None:
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.startswith(f"{path}: {where} is not valid JSON: ")
    assert reason in message
    assert message.endswith("; the source is incomplete or damaged, use another copy.")


def with_state(state: Any) -> dict[str, Any]:
    return {"version": 5, "localStorage": {STATE_KEY: state}, "indexedDB": {}}


@pytest.mark.parametrize(
    ("content", "where", "reason"),
    [
        (json.dumps(backup()).encode()[:-20], "data.json", "truncated"),
        (b"", "data.json", "truncated"),
        (b"{'version': 5}", "data.json", "malformed"),
        (b"\0" * 50, "data.json", "malformed"),
        ([], "data.json", "a list, not an object"),
        (5, "data.json", "Expected `object`"),
        ({"localStorage": "text"}, "localStorage in data.json", "Expected `object`"),
        (with_state("{"), f"{STATE_KEY} in data.json", "truncated"),
        (with_state("5"), f"{STATE_KEY} in data.json", "Expected `object`"),
        (with_state(json.dumps({"knowledge": '{"bases": [', "llm": "{}"})), "the `knowledge` state", "truncated"),
        (with_state(json.dumps({"knowledge": '{"bases": {}}'})), "the `knowledge` state", "`bases` is not a list"),
        (with_state(json.dumps({"knowledge": "5"})), "the `knowledge` state", "`bases` is not a list"),
        (with_state(json.dumps({"knowledge": '{"bases": []}', "llm": "{"})), "the `llm` state", "truncated"),
    ],
)
def test_a_broken_backup_says_where(tmp_path: Path, content: Any, where: str, reason: str) -> None:
    with pytest.raises(BrokenJson) as caught:
        from_backup(tmp_path, content)
    broken(caught, tmp_path, where, reason)


@pytest.mark.parametrize(
    ("redux", "where", "reason"),
    [
        (json.dumps(REDUX).encode()[:-3], "redux.json", "truncated"),
        (b'"text"', "redux.json", "Expected `object`"),
        ({"knowledge": "{"}, "the `knowledge` state", "truncated"),
        ({"knowledge": {"bases": "b1"}}, "the `knowledge` state", "`bases` is not a list"),
        ({"knowledge": {"bases": []}, "llm": "nonsense"}, "the `llm` state", "malformed"),
    ],
)
def test_a_broken_export_says_where(tmp_path: Path, redux: Any, where: str, reason: str) -> None:
    with pytest.raises(BrokenJson) as caught:
        from_export(tmp_path, redux)
    broken(caught, tmp_path, where, reason)


def test_a_broken_slice_says_where(tmp_path: Path) -> None:
    with pytest.raises(BrokenJson) as caught:
        from_slice(tmp_path, b'{"bases": [')
    broken(caught, tmp_path, "the `knowledge` state", "truncated")


def test_a_missing_state_file(tmp_path: Path) -> None:
    with pytest.raises(SourceUnreadable) as caught:
        read_state(FolderTree(tmp_path), StatePaths(backup="data.json"))
    assert caught.value.exit_status == 2
    assert str(caught.value).startswith(f"{tmp_path}/data.json: cannot be read (")


def test_a_damaged_archive_member(tmp_path: Path) -> None:
    path = tmp_path / "backup.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("data.json", json.dumps(backup()))
    path.write_bytes(path.read_bytes().replace(b'"version"', b'"wersion"', 1))
    tree = ZipTree(path)
    with pytest.raises(SourceUnreadable, match=r"data\.json is damaged") as caught:
        read_state(tree, StatePaths(backup="data.json"))
    tree.close()
    assert caught.value.exit_status == 2


def test_whole_files_are_read(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "big").write_bytes(content)
    (tmp_path / "empty").write_bytes(b"")
    tree = FolderTree(tmp_path)
    assert read_file(tree, "big") == bytearray(content)
    assert read_file(tree, "empty") == bytearray()


# --- bases to be deleted -------------------------------------------------------------------------------------------

PENDING = "knowledge_pending_delete.json"


def pending(folder: Path, content: Any, vectors: str = "Data/KnowledgeBase") -> V1State:
    written(folder, f"{vectors}/{PENDING}" if vectors else PENDING, content)
    return read_state(FolderTree(folder), StatePaths(redux=written(folder, "redux.json", REDUX), vectors=vectors))


@pytest.mark.parametrize("vectors", ["Data/KnowledgeBase", "KnowledgeBase", ""])
def test_bases_to_be_deleted_are_listed_beside_the_vector_files(tmp_path: Path, vectors: str) -> None:
    state = pending(tmp_path, ["b1", "gone", "b1", None, 5], vectors)
    assert state.pending_delete == {"b1", "gone"}
    assert codes(state) == []


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b"null", b'"b1"', b"\xff"])
def test_a_list_that_cannot_be_read_counts_for_nothing_and_is_said(tmp_path: Path, content: bytes) -> None:
    state = pending(tmp_path, content)
    assert state.pending_delete == frozenset()
    assert codes(state) == [notices.PENDING_UNREADABLE]
    assert state.notices[0].severity == "warning"
    assert state.notices[0].message.startswith(f"Data/KnowledgeBase/{PENDING} cannot be read: ")


def test_a_list_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    written(tmp_path, PENDING, ["b1"])
    state = read_state(FolderTree(tmp_path), StatePaths(redux=written(tmp_path, "redux.json", REDUX)))
    assert state.pending_delete == frozenset()
    (tmp_path / "KnowledgeBase" / PENDING).mkdir(parents=True)
    state = read_state(FolderTree(tmp_path), StatePaths(redux="redux.json", vectors="KnowledgeBase"))
    assert (state.pending_delete, codes(state)) == (frozenset(), [notices.OLDER_LAYOUT])


# --- bytes that are no text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["files", "knowledge_notes"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["rows", "text"])
@pytest.mark.parametrize("place", [b"marker", b'"id": "bad', b"origin_name", b'"deep'])
def test_one_invalid_byte_costs_its_row_and_says_so(tmp_path: Path, table: str, wrapped: bool, place: bytes) -> None:
    bad = {**FILE, "id": "bad", "name": "marker", "sourceUrl": "marker", "content": {"deep": "x"}}
    rows: Any = [FILE, bad, {**FILE, "id": "f2"}]
    rows = json.dumps(rows) if wrapped else rows
    raw = json.dumps(backup(tables={table: rows})).encode()
    escaped = place.replace(b'"', b'\\"') if wrapped else place
    at = raw.index(escaped, raw.index(b"bad")) if place != b'"id": "bad' else raw.index(escaped)
    state = from_backup(tmp_path, raw[: at + len(escaped) - 1] + b"\xff" + raw[at + len(escaped) :])
    assert state.bases == BASES
    found = state.files if table == "files" else state.notes
    assert codes(state) in ([notices.TABLE_UNREADABLE], [])
    if wrapped:
        # Within a text nothing tells where a row begins.
        assert (dict(found), codes(state)) == ({}, [notices.TABLE_UNREADABLE])
    elif codes(state):
        assert sorted(found) == ["f1", "f2"]
        assert state.notices[0].message == f"table {table}: skipped 1 row that cannot be read, the first is row 2"


@pytest.mark.thorough
def test_no_position_of_an_invalid_byte_is_a_fault(tmp_path: Path) -> None:
    raw = json.dumps(backup()).encode()
    for at in range(0, len(raw), 2):
        try:
            from_backup(tmp_path, raw[:at] + b"\xff" + raw[at + 1 :])
        except (BrokenJson, SourceNotMigratable) as error:
            assert error.exit_status == 2
            assert str(error).startswith(f"{tmp_path}")
            assert "\n" not in str(error)


def test_a_damaged_item_is_passed_over_and_its_base_comes_along(tmp_path: Path) -> None:
    base = {"id": "b", "name": "B", "items": [{"id": "i", "type": "note"}, {"id": "broken", "type": "note"}]}
    raw = json.dumps({"knowledge": {"bases": [base]}, "llm": {}}).encode().replace(b"broken", b"bro\xffen")
    state = from_export(tmp_path, raw)
    assert list(state.bases[0]["items"]) == [{"id": "i", "type": "note"}, None]
    assert state.bases[0]["items"][:1] == [{"id": "i", "type": "note"}]


def test_rows_whose_numbers_no_json_holds(tmp_path: Path) -> None:
    table = DexieTable(FileRow)
    table.add_values([{**FILE, "size": size} for size in (1.0, float("nan"), 1 << 70, float("-inf"))][:1])
    assert table["f1"]["size"] == 1
    table.add_values([{**FILE, "size": float("nan"), "count": 1 << 70, "path": b"bytes"}, None, {"id": 7}])
    assert (table["f1"]["size"], table["f1"]["count"], table["f1"]["path"]) == (0, 0, None)
    assert (len(table), "f2" in table) == (1, False)
