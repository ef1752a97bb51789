"""Mending the catalog: what other rows, the index and the files tell is put right, the rest stays and is said."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from faults import Tripwire, forked, untouched
from harness import GOLDEN, NOW_MS, golden, run
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_v2 import ITEM, KB, KB_ROW, OTHER, PLANTED, Plant, catalog, data, index, run_sql, several, sql
from reconciled import findings, state
from stand_ins import KILLED, die

from checks.audit.findings import Finding
from regraft import identity
from regraft.disk import durable
from regraft.errors import PlanOutdated
from regraft.formats.cherry_v2.index import IndexStore
from regraft.ledger.ledger import ChangeLog, Ledger
from regraft.report.document import encoded
from regraft.report.progress import SilentProgress
from repair.changes.plan import Plan
from repair.changes.run import run_command, undo_run
from repair.changes.store import Store
from repair.cherry_v2.rules import catalog as rules_catalog

NO_JSON = catalog(ITEM.format("data = '{'", "file"))
NO_PATH = catalog(ITEM.format(data(source="a"), "file"))
MENDED = set(rules_catalog.NAMES)
NOTE_TEXT = "The tide turned twice."


def plan(store: Store, only: Iterable[str] = ()) -> Plan:
    """Mend nothing but the catalog."""
    found: dict[str | None, list[Finding]] = defaultdict(list)
    for finding in store.findings():
        found[finding.base].append(finding)
    return Plan(*rules_catalog.plan_catalog(store, found, frozenset(only)))


def mend(store: Path, *only: str, dry_run: bool = False) -> dict[str, Any]:
    report = run_command("repair", store, lambda found: plan(found, only), dry_run=dry_run, progress=SilentProgress())
    return encoded(report)


def left(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["finding"], one["reason"]) for one in document["left"]]


def item(store: Path, kind: str, base: str = KB) -> dict[str, Any]:
    """Return the first item of a type."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        cursor = db.execute("SELECT * FROM knowledge_item WHERE type = ? AND base_id = ? ORDER BY rowid", (kind, base))
        names = [column[0] for column in cursor.get_description()]
        found = dict(zip(names, cursor.fetchone(), strict=True))
    return {**found, "data": json.loads(found["data"])}


def base_row(store: Path) -> dict[str, Any]:
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        cursor = db.execute("SELECT * FROM knowledge_base WHERE id = ?", (KB,))
        return dict(zip([column[0] for column in cursor.get_description()], cursor.fetchone(), strict=True))


def set_data(kind: str, **fields: object) -> Plant:
    return catalog(ITEM.format(data(**fields), kind))


def set_status(kind: str, status: str, error: str | None = None) -> Plant:
    value = "NULL" if error is None else f"'{error}'"
    return catalog(ITEM.format(f"status = '{status}', error = {value}", kind))


WITHOUT_MATERIAL = sql(
    *(f"DELETE FROM {table}" for table in ("search_text", "search_unit", "material", "content", "embedding"))
)


# --- everything that is planted --------------------------------------------------------------------------------------


def test_a_folder_with_a_child_of_a_newer_type_keeps_its_status(store: Path) -> None:
    folder = item(store, "directory")["id"]
    child = "UPDATE knowledge_item SET type = 'external', status = 'processing' WHERE rowid = {}"
    first = f"(SELECT min(rowid) FROM knowledge_item WHERE group_id = '{folder}')"
    run_sql(store / "catalog.sqlite", child.format(first))
    assert "item.container" not in findings(store)
    # Another child has to be mended: the folder is looked at, and stays as it is.
    last = f"(SELECT max(rowid) FROM knowledge_item WHERE group_id = '{folder}')"
    run_sql(store / "catalog.sqlite", f"UPDATE knowledge_item SET error = 'x' WHERE rowid = {last}")
    mend(store)
    assert item(store, "directory")["status"] == "completed"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name, case in PLANTED.items() if case.finding in MENDED])
def test_what_is_planted_is_mended_or_said(name: str, store: Path) -> None:
    PLANTED[name].damage(store)
    before = state(store)
    with untouched(store):
        planned = mend(store, dry_run=True)
    done = mend(store)
    assert (done["actions"], done["left"]) == (planned["actions"], planned["left"])
    is_left = {one["finding"] for one in done["left"]}
    assert MENDED.intersection(findings(store)) == is_left
    assert is_left or done["actions"]
    assert mend(store)["actions"] == []
    if done["undo"] is not None:
        undo_run(store, None, progress=SilentProgress())
    assert state(store) == before


def test_what_nothing_tells_stays(store: Path) -> None:
    """Of all that is planted, only this cannot be derived."""
    names = ["a type of bytes", "a long note"]
    several(*(PLANTED[name].damage for name in names))(store)
    with untouched(store):
        planned = mend(store, dry_run=True)
    assert planned["actions"] == []
    assert left(planned) == [
        ("item.status", "its type is b'\\x00', so its status is unknown"),
        (
            "item.data",
            (
                "its content is longer than 1,000,000 characters (UTF-16 units; emoji counted as two), "
                "and no other data shows the right value"
            ),
        ),
    ]
    assert [one["subject"] is None for one in planned["left"]] == [False, False]


OTHERS = [
    name for name, case in PLANTED.items() if case.finding not in {*MENDED, "catalog.pending", "catalog.stale-copy"}
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [name if at % 4 == 0 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(OTHERS)]
)
def test_other_damage_is_left_alone(name: str, store: Path) -> None:
    PLANTED[name].damage(store)
    before = state(store)
    document = mend(store)
    assert MENDED.intersection(findings(store)) <= {one["finding"] for one in document["left"]}
    assert {path for path, mark in state(store).items() if mark != before[path]} <= {"catalog.sqlite"}


# --- statuses --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("damage", "kind", "expected"),
    [
        (set_status("file", "embedding"), "file", ("failed", "indexing_interrupted")),
        (set_status("file", "preparing"), "file", ("failed", "indexing_interrupted")),
        (set_status("directory", "preparing"), "directory", ("failed", "indexing_interrupted")),
        (set_status("file", "reading", "no answer"), "file", ("failed", "no answer")),
        (set_status("file", "failed", " "), "file", ("failed", "No reason was recorded for this failure.")),
        (set_status("file", "completed", ""), "file", ("completed", None)),
        (set_status("file", "completed", "old"), "file", ("completed", None)),
        (set_status("file", "deleting", "old"), "file", ("deleting", None)),
        (set_status("file", "done"), "file", ("completed", None)),
        (set_status("directory", "embedding"), "directory", ("completed", None)),
        (set_status("directory", "completed", "old"), "directory", ("completed", None)),
        (several(set_status("file", "completed", "old"), WITHOUT_MATERIAL), "file", ("failed", "old")),
        (several(set_status("file", "done"), WITHOUT_MATERIAL), "file", ("failed", "indexing_interrupted")),
        (several(set_status("note", "idle", ""), WITHOUT_MATERIAL), "note", ("idle", None)),
    ],
)
def test_a_status_follows_from_error_and_index(
    damage: Plant, kind: str, expected: tuple[str, str | None], store: Path
) -> None:
    damage(store)
    assert "item.status" in findings(store)
    document = mend(store)
    found = item(store, kind)
    assert (found["status"], found["error"]) == expected
    assert document["left"] == []
    assert "item.status" not in findings(store)


def test_where_the_index_cannot_be_read_nobody_knows_whether_an_item_is_indexed(store: Path) -> None:
    several(set_status("file", "completed", "old"), PLANTED["random bytes"].damage)(store)
    with untouched(store):
        assert left(mend(store, dry_run=True)) == [
            ("item.status", "its index cannot be read, so its status is unknown")
        ]


def test_a_folder_follows_what_became_of_its_files(store: Path) -> None:
    """Only the statuses of items were asked for, and their folder must not be at work for ever."""
    run_sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_item SET status = 'reading' WHERE group_id IS NOT NULL",
        ITEM.format("status = 'processing'", "directory"),
    )
    document = mend(store, "item.status")
    assert [action["message"] for action in document["actions"]] == [
        "set 1 folder to completed",
        "set 2 items to failed (indexing_interrupted)",
    ]
    assert findings(store) == []


# --- folders ---------------------------------------------------------------------------------------------------------

FOLDER = (
    "INSERT INTO knowledge_item SELECT '{}', base_id, '{}', 'directory', data, '{}', NULL, 0, 0"
    " FROM knowledge_item WHERE type = 'directory' LIMIT 1"
)


def groups(store: Path) -> dict[str, str | None]:
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        return dict(db.execute("SELECT id, group_id FROM knowledge_item WHERE base_id = ?", (KB,)))


def test_of_folders_inside_one_another_the_oldest_moves_to_the_top(store: Path) -> None:
    added = [("b", "c"), ("c", "a"), ("a", "b"), ("d", "a"), ("e", "e")]
    run_sql(store / "catalog.sqlite", *(FOLDER.format(key, group, "completed") for key, group in added))
    before = groups(store)
    document = mend(store)
    assert {key: group for key, group in groups(store).items() if group != before[key]} == {"a": None, "e": None}
    assert [action["message"] for action in document["actions"]] == ["move 2 folders to the top: inside itself"]
    assert findings(store) == []


def test_what_is_inside_a_file_or_nothing_moves_to_the_top(store: Path) -> None:
    file = item(store, "file")["id"]
    run_sql(store / "catalog.sqlite", FOLDER.format("a", file, "completed"), FOLDER.format("b", "nowhere", "completed"))
    before = state(store)
    mend(store)
    assert (groups(store)["a"], groups(store)["b"]) == (None, None)
    assert findings(store) == []
    undo_run(store, None, progress=SilentProgress())
    assert state(store) == before


def test_what_is_inside_an_item_of_a_newer_application_stays(store: Path) -> None:
    PLANTED["a type of a newer application"].damage(store)
    key = item(store, "external")["id"]
    run_sql(store / "catalog.sqlite", FOLDER.format("a", key, "completed"), FOLDER.format("b", "gone", "completed"))
    document = mend(store)
    assert left(document) == []
    assert (groups(store)["a"], groups(store)["b"]) == (key, None)


def test_folders_follow_from_the_inside_out(store: Path) -> None:
    chain = [("a", "", "processing"), ("b", "a", "processing"), ("c", "b", "processing")]
    run_sql(store / "catalog.sqlite", *(FOLDER.format(*one).replace("''", "NULL") for one in chain))
    assert [action["count"] for action in mend(store)["actions"]] == [3]
    assert findings(store) == []


# --- statuses and folders of items, without a store ------------------------------------------------------------------


def row(
    key: str, kind: Any = "file", status: str = "completed", group: str | None = None, **more: Any
) -> dict[str, Any]:
    return {"id": key, "type": kind, "status": status, "error": None, "group_id": group} | more


@pytest.mark.parametrize(
    ("kind", "status", "error", "is_indexed", "result"),
    [
        ("file", "completed", None, None, None),
        ("file", "failed", "x", None, None),
        ("file", "failed", " ", None, ("failed", rules_catalog.NO_REASON)),
        ("file", "deleting", "x", None, ("deleting", None)),
        ("file", "idle", "", None, ("idle", None)),
        ("file", "completed", "", False, ("completed", None)),
        ("file", "completed", "x", True, ("completed", None)),
        ("file", "completed", "x", False, ("failed", "x")),
        ("file", "completed", "x", None, "its index cannot be read, so its status is unknown"),
        ("file", "embedding", None, True, ("failed", rules_catalog.INTERRUPTED)),
        ("file", "embedding", "x", True, ("failed", "x")),
        ("file", "unknown", None, True, ("completed", None)),
        ("file", "unknown", None, False, ("failed", rules_catalog.INTERRUPTED)),
        ("file", b"\0", None, None, "its index cannot be read, so its status is unknown"),
        ("directory", "reading", None, None, ("failed", rules_catalog.INTERRUPTED)),
        ("directory", "preparing", None, None, ("failed", rules_catalog.INTERRUPTED)),
        ("directory", "processing", "", None, ("processing", None)),
        ("external", "unknown", "x", True, None),
        (None, "completed", None, True, "its type is None, so its status is unknown"),
    ],
)
def test_the_status_that_follows_from_an_item(
    kind: Any, status: Any, error: str | None, is_indexed: bool | None, result: tuple[str, str | None] | str | None
) -> None:
    one = row("i", kind, status, error=error)
    items = rules_catalog.ItemRepairs([row("other"), one])
    asked: list[str] = []

    def tell(key: str) -> bool | None:
        asked.append(key)
        return is_indexed

    rules_catalog.repair_statuses(items, False, tell)
    if isinstance(result, tuple):
        assert (one["status"], one["error"], items.statuses, items.left) == (*result, {1: "item.status"}, [])
    else:
        assert (one["status"], one["error"], items.statuses) == (status, error, {})
        assert items.left == ([] if result is None else [("item.status", result, "i")])
    assert set(asked) <= {"i"}


@pytest.mark.parametrize(
    ("status", "children", "result"),
    [
        ("reading", ["completed"], ("completed", None)),
        ("reading", ["deleting"], ("failed", rules_catalog.INTERRUPTED)),
        ("reading", [], ("failed", rules_catalog.INTERRUPTED)),
        ("preparing", ["completed"], ("failed", rules_catalog.INTERRUPTED)),
    ],
)
def test_a_folder_that_was_read_is_completed_where_it_has_children(
    status: str, children: list[str], result: tuple[str, str | None]
) -> None:
    folder = row("d", "directory", status)
    items = rules_catalog.ItemRepairs([folder, *(row(f"c{one}", status=one, group="d") for one in children)])
    rules_catalog.repair_statuses(items, False, lambda _: True)
    assert (folder["status"], folder["error"], items.statuses) == (*result, {0: "item.status"})


def moved(*rows: dict[str, Any]) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Return the items that are moved to the top, each with its problem, and those that are left."""
    before = {one["id"]: one["group_id"] for one in rows}
    items = rules_catalog.ItemRepairs(list(rows))
    rules_catalog.repair_folders(items)
    assert {one["id"] for one in rows if one["group_id"] != before[one["id"]]} == {
        rows[number]["id"] for number in items.moves
    }
    assert all(rows[number]["group_id"] is None for number in items.moves)
    return {rows[number]["id"]: problem for number, problem in items.moves.items()}, items.left


def test_items_of_no_folder_move_to_the_top() -> None:
    rows = [row("a", group="gone"), row("b", group="n"), row("n", "note"), row("c", group="d"), row("d", "directory")]
    assert moved(*rows) == (
        {"a": "whose folder is missing", "b": "inside something that is not a folder"},
        [],
    )


def test_a_circle_of_folders_is_cut_at_its_oldest() -> None:
    circle = [row(key, "directory", group=group) for key, group in (("b", "c"), ("c", "a"), ("a", "b"))]
    assert moved(row("x", group="c"), *circle, row("e", "directory", group="e")) == (
        {"a": "inside itself", "e": "inside itself"},
        [],
    )


def test_what_is_inside_an_item_of_an_unknown_type_is_left() -> None:
    rows = [row("a", group="u"), row("u", b"\0")]
    reason = "the item that it is in is of type b'\\x00'"
    assert moved(*rows) == ({}, [("item.container", reason, "a")])
    circle = [row("a", "directory", group="b"), row("b", None, group="a"), row("i", group="a")]
    found, left = moved(*circle)
    assert found == {}
    assert {one[2]: one[1] for one in left} == {
        "a": "the item that it is in is of type None",
        "b": "a folder that contains it is of an unknown type",
        "i": "a folder that contains it is of an unknown type",
    }


@pytest.mark.parametrize("changed", [None, [3]])
def test_the_statuses_of_folders_follow_up_to_the_top(changed: list[int] | None) -> None:
    rows = [
        row("a", "directory", "completed"),
        row("b", "directory", "completed", "a"),
        row("c", "directory", "completed", "b"),
        row("i", status="embedding", group="c"),
        row("z", "directory", "processing"),
        row("f", "directory", "failed"),
        row("g", status="embedding", group="f"),
    ]
    items = rules_catalog.ItemRepairs(rows)
    rules_catalog.update_folder_statuses(items, changed)
    expected = dict.fromkeys("abc", "processing") | {"i": "embedding", "f": "failed", "g": "embedding"}
    # A folder without children is completed, where every folder is looked at.
    assert {one["id"]: one["status"] for one in rows} == expected | {
        "z": "completed" if changed is None else "processing"
    }
    assert items.statuses == dict.fromkeys((0, 1, 2, *([4] if changed is None else ())), "item.container")
    items = rules_catalog.ItemRepairs([row("d", "directory", "processing"), row("x", "external", group="d")])
    rules_catalog.update_folder_statuses(items, None)
    assert items.statuses == {}


# --- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["file", "url", "note"])
@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"source":7}', '{"source":" ","relativePath":[]}'])
def test_lost_data_come_back_from_the_index_and_the_snapshot(kind: str, damage: str, store: Path) -> None:
    before = item(store, kind)["data"]
    catalog(ITEM.format(f"data = '{damage}'", kind))(store)
    mend(store)
    after = item(store, kind)["data"]
    assert list(after) == list(before)
    assert {**after, "source": None} == {**before, "source": None} | ({"content": after["content"]} if kind == "note" else {})  # fmt: skip # noqa: E501
    assert after["source"] == {"file": "report.pdf"}.get(kind, before["source"])
    assert findings(store) == []


def test_data_in_bytes_are_read(store: Path) -> None:
    before = item(store, "file")["data"]
    catalog(ITEM.format("data = CAST(data AS BLOB)", "file"))(store)
    mend(store)
    assert item(store, "file")["data"] == before
    assert findings(store) == []


@pytest.mark.parametrize(
    ("kind", "damaged", "mended"),
    [
        ("url", {"source": "https://a"}, {"source": "https://a", "url": "https://a"}),
        ("url", {"url": "https://a"}, {"source": "https://a", "url": "https://a"}),
        ("file", {"relativePath": "report.pdf"}, {"source": "report.pdf", "relativePath": "report.pdf"}),
        (
            "file",
            {"source": "a", "relativePath": "x.pdf", "indexedRelativePath": 7},
            {"source": "a", "relativePath": "x.pdf", "indexedRelativePath": "report.pdf"},
        ),
    ],
)
def test_a_missing_field_comes_from_those_that_are_there(
    kind: str, damaged: dict[str, Any], mended: dict[str, Any], store: Path
) -> None:
    set_data(kind, **damaged)(store)
    mend(store)
    after = item(store, kind)["data"]
    assert {key: after[key] for key in mended} == mended
    assert "item.data" not in findings(store)


def test_a_field_that_nobody_knows_is_told_and_not_thrown_away(store: Path) -> None:
    set_data("url", source="https://a", url="https://a", more=1)(store)
    (found,) = [one for one in run("check", store, "--json").document["findings"] if one["name"] == "item.data"]
    assert (found["message"], found["repair"]) == (
        "1 item: its data has more, which items of type url do not have",
        None,
    )
    with untouched(store):
        document = mend(store)
    said = "its data has more, which items of type url do not have, and no other data shows the right value"
    assert ("item.data", said) in left(document)


@pytest.mark.parametrize(
    "damage",
    [
        set_data("directory", relativePath="docs"),
        several(set_data("file", source="a"), WITHOUT_MATERIAL),
        several(set_data("file", source="a"), sql("UPDATE material SET relative_path = '../x' WHERE rowid = 1")),
        several(set_data("file", source="a"), PLANTED["another base"].damage),
        several(set_data("file", source="a"), PLANTED["random bytes"].damage),
        set_data("file", source="a", indexedRelativePath="report.pdf"),
    ],
)
def test_a_field_that_nothing_tells_is_not_made_up(damage: Plant, store: Path) -> None:
    damage(store)
    with untouched(store):
        document = mend(store, dry_run=True)
    assert [finding for finding, _ in left(document)] == ["item.data"]
    assert document["actions"] == []


def test_of_a_virtual_path_nobody_knows_the_source(store: Path) -> None:
    run_sql(
        store / "catalog.sqlite",
        "UPDATE knowledge_item SET data = json_object('relativePath', id) WHERE group_id IS NOT NULL",
    )
    assert [one["count"] for one in mend(store, dry_run=True)["left"]] == [2]


def test_the_text_of_a_note_comes_from_the_index_only_where_it_is_whole(store: Path) -> None:
    set_data("note", source="a")(store)
    text = json.dumps(item(store, "note")["data"])
    run_sql(index(store), "UPDATE content SET text = text || '!'")
    shutil.rmtree(index(store).parent.parent / "raw")
    assert [finding for finding, _ in left(mend(store))] == ["item.data"]
    assert json.dumps(item(store, "note")["data"]) == text


def test_a_note_that_is_too_long_is_cut_where_its_index_has_all_of_it(store: Path) -> None:
    found = item(store, "note")
    long = "🎉" + "x" * 1_000_000
    with IndexStore(index(store), KB) as opened:
        vectors = {identity.text_hash("🎉"): b"\0\0\x80\x3f" * 4}
        opened.rebuild_material(found["id"], found["data"]["relativePath"], long, [(0, 2)], vectors, NOW_MS)
    set_data("note", source="a", content=long)(store)
    mend(store)
    assert item(store, "note")["data"]["content"] == long[:-2]
    assert "item.data" not in findings(store)


# --- bases -----------------------------------------------------------------------------------------------------------

NO_VECTORS = sql("DELETE FROM embedding")
NO_INDEX = PLANTED["no index"].damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (catalog(KB_ROW.format("dimensions = -1")), {"dimensions": 4}),
        (catalog(KB_ROW.format("dimensions = NULL")), {"dimensions": 4}),
        (catalog(KB_ROW.format("error = 'missing_vector_store'")), {"status": "completed", "error": None}),
        (catalog(KB_ROW.format("status = 'failed'")), {"status": "completed", "error": None}),
        (catalog(KB_ROW.format("status = 'ready'")), {"status": "completed", "error": None}),
        (
            several(catalog(KB_ROW.format("error = 'missing_vector_store'")), NO_INDEX),
            {"status": "failed", "error": "missing_vector_store"},
        ),
        (
            several(catalog(KB_ROW.format("status = 'failed'")), NO_INDEX),
            {"status": "failed", "error": "missing_vector_store"},
        ),
        (
            several(catalog(KB_ROW.format("status = 'failed', embedding_model_id = NULL, dimensions = 'x'")), NO_INDEX),
            {"status": "failed", "error": "missing_embedding_model", "dimensions": None},
        ),
        (
            several(catalog(KB_ROW.format("embedding_model_id = NULL")), NO_VECTORS),
            {"dimensions": None},
        ),
    ],
)
def test_a_base_follows_from_its_index(damage: Plant, expected: dict[str, Any], store: Path) -> None:
    damage(store)
    assert "base.status" in findings(store)
    document = mend(store)
    assert document["left"] == []
    assert {key: base_row(store)[key] for key in expected} == expected
    assert MENDED.isdisjoint(findings(store))


MIXED = sql("UPDATE embedding SET vector_blob = zeroblob(8) WHERE rowid = 1")


@pytest.mark.parametrize(
    ("damage", "finding", "reason"),
    [
        (
            catalog(KB_ROW.format("embedding_model_id = NULL")),
            "base.status",
            "it has no model, and the model of its vectors is unknown; if you know it, run regraft repair --model ID",
        ),
        (
            several(catalog(KB_ROW.format("dimensions = NULL")), MIXED),
            "base.status",
            "its vectors have different lengths",
        ),
        (
            several(catalog(KB_ROW.format("dimensions = NULL")), NO_VECTORS),
            "base.status",
            "it has no vectors that show its dimensions",
        ),
        (
            several(catalog(KB_ROW.format("status = 'ready'")), PLANTED["random bytes"].damage),
            "base.status",
            "its index cannot be read, so it is unknown whether it failed",
        ),
        (
            several(catalog(KB_ROW.format("dimensions = 768")), MIXED),
            "base.dimensions",
            "its vectors have different lengths",
        ),
    ],
)
def test_a_base_of_which_nobody_knows_stays(damage: Plant, finding: str, reason: str, store: Path) -> None:
    damage(store)
    with untouched(store):
        document = mend(store, dry_run=True)
    assert left(document) == [(finding, reason)]
    assert document["actions"] == []


def test_a_person_says_of_which_model_vectors_are(store: Path) -> None:
    model, before = base_row(store)["embedding_model_id"], state(store)
    catalog(KB_ROW.format("embedding_model_id = NULL"))(store)
    [found] = [one for one in run("check", store, "--json").document["findings"] if one["name"] == "base.status"]
    assert (found["repair"], "regraft repair --model ID" in found["message"]) == (None, True)
    done = run("repair", store, "--model", model, "--base", KB, "--yes", "--json")
    assert (done.status, [one["finding"] for one in done.document["actions"]]) == (0, ["base.status"])
    assert state(store) == before
    assert run("undo", store, "--yes").status == 0
    assert base_row(store)["embedding_model_id"] is None


@pytest.mark.parametrize(
    ("model", "status", "said"),
    [
        ("acme::unheard-of", 1, "the catalog has no model acme::unheard-of: add it in the application first"),
        ("unheard-of", 2, "provider::model"),
    ],
)
def test_a_model_has_to_be_there(model: str, status: int, said: str, store: Path) -> None:
    catalog(KB_ROW.format("embedding_model_id = NULL"))(store)
    with untouched(store):
        done = run("repair", store, "--model", model, "--yes", "--json")
    assert (done.status, said in json.dumps(done.document)) == (status, True)


# --- the whole -------------------------------------------------------------------------------------------------------


def test_several_findings_are_mended_in_one_change(store: Path) -> None:
    names = ["other dimensions", "not JSON", "a folder that is gone", "nobody works", "a folder at work"]
    several(*(PLANTED[name].damage for name in names))(store)
    before = state(store)
    document = mend(store)
    assert {action["finding"] for action in document["actions"]} == {PLANTED[name].finding for name in names}
    assert MENDED.isdisjoint(findings(store))
    undo_run(store, document["undo"], progress=SilentProgress())
    assert state(store) == before


def test_only_what_is_asked_for_is_mended(store: Path) -> None:
    several(PLANTED["other dimensions"].damage, NO_JSON)(store)
    assert [action["finding"] for action in mend(store, "item.data")["actions"]] == ["item.data"]
    assert [name for name in findings(store) if name in MENDED] == ["base.dimensions"]


def test_what_others_keep_in_the_catalog_stays(store: Path) -> None:
    """A profile has more columns, tables and triggers than regraft knows."""
    several(PLANTED["nobody works"].damage, PLANTED["other dimensions"].damage, NO_JSON)(store)
    run_sql(
        store / "catalog.sqlite",
        "ALTER TABLE knowledge_item ADD COLUMN pinned TEXT DEFAULT 'yes'",
        "ALTER TABLE knowledge_base ADD COLUMN icon BLOB DEFAULT x'00ff'",
        "CREATE TABLE message (id INTEGER PRIMARY KEY, body)",
        "INSERT INTO message VALUES (1, 'hello')",
        "CREATE TRIGGER message_au AFTER UPDATE ON message BEGIN DELETE FROM message; END",
        "PRAGMA journal_mode = WAL",
    )
    mend(store)
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        assert db.execute("SELECT DISTINCT pinned FROM knowledge_item").fetchall() == [("yes",)]
        assert db.execute("SELECT DISTINCT icon FROM knowledge_base").fetchall() == [(b"\x00\xff",)]
        assert db.execute("SELECT * FROM message").fetchall() == [(1, "hello")]
        assert db.execute("PRAGMA journal_mode").get == "wal"
    assert MENDED.isdisjoint(findings(store))


def test_no_path_is_guessed_of_a_file_that_may_have_been_processed(store: Path) -> None:
    """What was made of a file is indexed in its place: the material's path is then not the file's."""
    NO_PATH(store)
    with closing(apsw.Connection(str(index(store)))) as db:
        item = sqlite_item(store)
        db.execute("UPDATE material SET relative_path = 'memo.md' WHERE material_id = ?", (item,))
    raw = index(store).parent.parent / "raw"
    (raw / "memo.md").write_bytes(b"made of it")
    (raw / "memo.PDF").write_bytes(b"the file itself")
    mend(store)
    assert "item.data" in findings(store)
    (raw / "memo.PDF").unlink()
    mend(store)
    assert "item.data" not in findings(store)


def sqlite_item(store: Path) -> str:
    """Return the item that :data:`NO_PATH` is about."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        return str(db.execute("SELECT id FROM knowledge_item WHERE type = 'file' ORDER BY rowid LIMIT 1").get)


def test_rows_that_changed_since_they_were_planned_with_are_not_touched(store: Path) -> None:
    for change in ("status = 'idle'", "data = '[]'"):
        several(PLANTED["nobody works"].damage, NO_PATH)(store)
        [planned] = _planned(store).changes
        catalog(ITEM.format(change, "file"))(store)
        before = state(store)
        with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db, pytest.raises(PlanOutdated), db:
            planned.apply(db)  # type: ignore[union-attr]
        assert state(store) == before


def _planned(store: Path) -> Plan:
    made: list[Plan] = []

    def planner(found: Store) -> Plan:
        made.append(plan(found))
        return made[0]

    run_command("repair", store, planner, dry_run=True, progress=SilentProgress())
    return made[0]


VALUES = st.sampled_from
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "group_id": VALUES([None, "0", "1", "2", "3", "4", "gone"]),
            "type": VALUES(["directory", "directory", "file", "note", "memory"]),
            "status": VALUES(["idle", "preparing", "processing", "reading", "completed", "failed", "deleting", "odd"]),
            "error": VALUES([None, None, "", "broken"]),
            "data": VALUES(["{", '{"source":"s","relativePath":"p","content":"c"}', '{"content":"c"}']),
        }
    ),
    max_size=7,
)


@pytest.mark.thorough
@settings(max_examples=8)
@given(rows=ROWS)
def test_any_items_are_mended_as_far_as_they_can_be(rows: list[dict[str, Any]], healthy: Path) -> None:
    """Whatever they are like: the findings that stay are those that are said, and a second run has nothing to do."""
    with TemporaryDirectory() as folder:
        store = shutil.copytree(healthy, Path(folder) / "library")
        with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.executemany(
                "INSERT INTO knowledge_item VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
                (
                    (str(n), OTHER, row["group_id"], row["type"], row["data"], row["status"], row["error"])
                    for n, row in enumerate(rows)
                ),
            )
        before = state(store)
        document = mend(store)
        assert MENDED.intersection(findings(store)) == {one["finding"] for one in document["left"]}
        assert mend(store)["actions"] == []
        if document["undo"] is not None:
            undo_run(store, None, progress=SilentProgress())
        assert state(store) == before


@pytest.mark.thorough
def test_killed_at_any_step_the_next_run_finishes(healthy: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(healthy, tmp_path / "damaged")
    several(PLANTED["nobody works"].damage, PLANTED["not JSON"].damage)(damaged)
    old = state(damaged)
    finished = shutil.copytree(damaged, tmp_path / "finished")
    mend(finished)
    new = state(finished)
    at, is_over = 0, False
    while not is_over:
        at += 1
        store = shutil.copytree(damaged, tmp_path / "killed")

        def work(store: Path = store, at: int = at) -> None:
            with pytest.MonkeyPatch.context() as patch:
                trip = Tripwire(patch, die, at)
                trip.watch(Ledger, "begin_run", "end_run").watch(ChangeLog, "record_actions", "intend", "set_state")
                trip.watch(durable, "sync_file", "sync_folder")
                mend(store)

        is_over = forked(work) != KILLED
        assert state(store) in (old, new), at
        mend(store)
        assert state(store) == new, at
        shutil.rmtree(store)
    assert at > 5


@golden
def test_in_a_real_profile_only_the_rows_of_the_knowledge_base_change(tmp_path: Path) -> None:
    profile = shutil.copytree(GOLDEN / "profile_upgraded", tmp_path / "profile")
    database = profile / "cherrystudio.sqlite"
    run_sql(
        database,
        "UPDATE knowledge_item SET status = 'embedding' WHERE rowid = (SELECT min(rowid) FROM knowledge_item)",
        "UPDATE knowledge_base SET dimensions = 7 WHERE status = 'completed' AND dimensions IS NOT NULL",
    )
    before = state(profile)
    assert {"item.status", "base.dimensions"} <= set(findings(profile))
    document = mend(profile)
    assert MENDED.isdisjoint(findings(profile))
    assert {path for path, mark in state(profile).items() if mark != before[path]} == {"cherrystudio.sqlite"}
    with closing(apsw.Connection(str(database))) as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        assert db.execute("PRAGMA integrity_check").get == "ok"
        assert db.execute("PRAGMA journal_mode").get == "wal"
    undo_run(profile, document["undo"], progress=SilentProgress())
    assert state(profile) == before
