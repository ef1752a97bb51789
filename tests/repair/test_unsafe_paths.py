"""New paths for materials whose path leads out of ``raw/``: which, of which files, and what is not moved."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from faults import fails, links

from checks.audit.findings import Finding
from checks.cherry_v2 import findings as v2
from repair.changes.plan import RowsChange, Unresolved
from repair.cherry_v2.rules import catalog
from repair.cherry_v2.rules.catalog import FileRenames, ItemPath, PathRepairs

RAW = "KnowledgeBase/kb/raw"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / RAW / "sub").mkdir(parents=True)
    return tmp_path / RAW


def renames(raw: Path) -> FileRenames:
    return FileRenames(raw.parents[2], RAW, "kb")


# --- free names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "taken", "new"),
    [
        ("../a.txt", set(), "a.txt"),
        ("/a.txt", set(), "a.txt"),
        ("./../x/./a.txt", set(), "x/a.txt"),
        ("x\\y\\a.txt", set(), "x/y/a.txt"),
        ("..", set(), "untitled"),
        ("", set(), "untitled"),
        ("../a.txt", {"a.txt"}, "a_1.txt"),
        ("../a.txt", {"A.TXT"}, "a_1.txt"),
        ("../a.txt", {"sub/a.txt"}, "a.txt"),
        ("../sub/a.txt", {"sub/a.txt", "a.txt"}, "sub/a_1.txt"),
        ("../sub/a.txt", {"subway/a.txt"}, "sub/a.txt"),
        # A folder that is no place for files is left out.
        (".cherry/a.txt", set(), "a.txt"),
        ("../.CHERRY/a.txt", set(), "a.txt"),
        ("../.cherry", set(), ".cherry_1"),
        ("linked/a.txt/..", set(), "linked/a.txt"),
    ],
)
def test_a_safe_path_resembles_the_unsafe_one(old: str, taken: set[str], new: str, raw: Path) -> None:
    assert renames(raw).free_name(old.encode(), taken) == new


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_name_is_free_if_nothing_or_the_copy_of_an_earlier_run_is_there(raw: Path) -> None:
    (raw / "x\\a.txt").write_text("text")
    (raw / "x").mkdir()
    (raw / "x" / "a.txt").write_text("other")
    assert renames(raw).free_name(b"x\\a.txt", set()) == "x/a_1.txt"
    (raw / "x" / "a_1.txt").write_text("text")
    assert renames(raw).free_name(b"x\\a.txt", set()) == "x/a_1.txt"
    # Of the file outside, nothing is known.
    assert renames(raw).free_name(b"../x/a.txt", set()) == "x/a_2.txt"


@links
def test_a_folder_behind_a_link_is_not_used(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (raw / "linked").symlink_to(tmp_path / "outside", target_is_directory=True)
    assert renames(raw).free_name(b"../linked/a.txt", set()) == "a.txt"


# --- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"text", b"text", True),
        (b"text", b"tex", False),
        (b"text", b"texT", False),
        (b"", b"", True),
        (bytes(1 << 20) + b"a", bytes(1 << 20) + b"b", False),
        (bytes(1 << 20) + b"a", bytes(1 << 20) + b"a", True),
        (b"text", None, False),
    ],
)
def test_only_the_same_bytes_are_a_copy(one: bytes, other: bytes | None, same: bool, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(one)
    if other is None:
        (tmp_path / "other").mkdir()
    else:
        (tmp_path / "other").write_bytes(other)
    assert catalog._is_free(tmp_path / "other", tmp_path / "one") == same
    assert not catalog._is_free(tmp_path / "other", None)
    assert catalog._is_free(tmp_path / "nothing", None)


@links
def test_a_link_is_no_copy(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"text")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    assert not catalog._is_free(tmp_path / "other", tmp_path / "one")
    assert not catalog._is_free(tmp_path / "broken", None)


def moved(raw: Path, old: bytes, new: str) -> PathRepairs:
    found = PathRepairs()
    renames(raw).move(old, new, found, found.removed)
    return found


posix = pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")


@posix
def test_a_file_is_copied_with_its_times_and_the_old_one_removed(raw: Path) -> None:
    (raw / "sub\\a.txt").write_text("text")
    (raw / "sub\\a.txt").chmod(0o640)
    os.utime(raw / "sub\\a.txt", ns=(10**18, 10**18 + 5))
    found = moved(raw, b"sub\\a.txt", "sub/a.txt")
    [made], [removed] = found.made, found.removed
    [action] = made.actions
    assert (made.path, made.bytes, removed.path, removed.make) == (f"{RAW}/sub/a.txt", 4, f"{RAW}/sub\\a.txt", None)
    assert (action.action, action.message, action.base) == ("move-files", "move a file to sub/a.txt", "kb")
    assert (action.subject, action.bytes, action.finding) == ("sub/a.txt", 4, v2.PATH_UNSAFE)
    assert removed.actions == ()
    assert made.make is not None
    made.make(raw / "sub" / "a.txt")
    status = (raw / "sub" / "a.txt").stat()
    assert ((raw / "sub" / "a.txt").read_text("utf-8"), status.st_mode & 0o777) == ("text", 0o640)
    assert status.st_mtime_ns == 10**18 + 5
    # A killed run made the copy: only the old file is left to remove.
    again = moved(raw, b"sub\\a.txt", "sub/a.txt")
    assert (again.made, [one.path for one in again.removed]) == ([], [f"{RAW}/sub\\a.txt"])
    # Another file is in the way.
    (raw / "sub" / "a.txt").write_text("texT")
    assert moved(raw, b"sub\\a.txt", "sub/a.txt") == PathRepairs()


@pytest.mark.parametrize(
    "old", [b"../out.txt", b"/etc/passwd", b"", b".", b"nothing", b"sub", b"x\0y", b"..\\out.txt", b"a.txt"]
)
def test_what_is_no_file_below_the_folder_is_never_moved(old: bytes, raw: Path) -> None:
    (raw.parent / "out.txt").write_text("not of the base")
    (raw / "a.txt").write_text("text")
    # The last one has the right place already.
    assert moved(raw, old, "a.txt") == PathRepairs()


@pytest.mark.parametrize("old", [b"sub\\a.txt", b"sub/a.txt.", b"sub/a.txt ", b"sub/A.TXT"])
def test_a_file_that_the_system_finds_by_the_unsafe_path_stays_at_its_safe_one(old: bytes, raw: Path) -> None:
    """On Windows all of these lead to the file; elsewhere, to none."""
    (raw / "sub" / "a.txt").write_text("text")
    assert renames(raw).free_name(old, set()) in ("sub/a.txt", "sub/A.TXT", "sub/a_1.txt")
    assert moved(raw, old, "sub/a.txt") == PathRepairs()


@posix
def test_links_and_names_that_are_no_text_stay(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("not of the base")
    (raw / "x\\link").symlink_to(tmp_path / "out.txt")
    (raw / "y\\link").symlink_to(raw / "here.txt")
    (raw / "here.txt").write_text("text")
    for old in (b"x\\link", b"y\\link"):
        assert moved(raw, old, "new.txt") == PathRepairs()
    try:
        Path(os.fsdecode(bytes(raw) + b"/z\\\xff")).write_text("text")
    except OSError:
        return  # macOS has no such names.
    found = moved(raw, b"z\\\xff", "new.txt")
    # Undo could not record the name, so the old file stays beside its copy.
    assert ([one.path for one in found.made], found.removed) == ([f"{RAW}/new.txt"], [])


# --- materials and items -------------------------------------------------------------------------------------------


def planned(raw: Path, materials: dict[str, bytes | None], items: list[Any] | None) -> PathRepairs:
    index = raw.parent / "index.sqlite"
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("CREATE TABLE material (material_id, relative_path)")
        db.executemany("INSERT INTO material VALUES (?, CAST(? AS TEXT))", materials.items())
    return catalog.plan_paths(raw.parents[2], "kb", "KnowledgeBase/kb/index.sqlite", RAW, items)


def item(key: str, **data: Any) -> dict[str, Any]:
    return {"id": key, "type": "file", "data": json.dumps(data)}


def test_a_material_gets_the_path_of_its_item_if_that_is_safe(raw: Path) -> None:
    items = [
        item("safe", relativePath="b.txt"),
        item("unsafe", relativePath="../c.txt"),
        item("indexed", relativePath="report.pdf", indexedRelativePath="..\\report.md"),
        item("fine", relativePath="a.txt"),
        item("another", relativePath="b_1.txt"),
    ]
    materials = {
        "fine": b"a.txt",
        "safe": b"../b.txt",
        "unsafe": b"../c.txt",
        "indexed": b"..\\report.md",
        "alone": b"/a.txt",
        "none": None,
        "last": b"../b_1.txt",
        "also": b"../a.txt",
    }
    found = planned(raw, materials, items)
    assert found.materials == [
        (2, "b.txt"),
        (3, "c.txt"),
        (4, "report.md"),
        (5, "a_1.txt"),
        (6, "untitled"),
        (7, "b_1_1.txt"),
        (8, "a_2.txt"),
    ]
    assert found.items == [
        ItemPath(item="unsafe", key="relativePath", old="../c.txt", new="c.txt"),
        ItemPath(item="indexed", key="indexedRelativePath", old="..\\report.md", new="report.md"),
    ]
    assert (found.left, found.made) == ([], [])


@posix
def test_the_file_of_an_item_goes_before_the_index_and_that_of_no_item_last(raw: Path) -> None:
    for name in ("x\\a.txt", "x\\b.txt"):
        (raw / name).write_text(name, "utf-8")
    found = planned(raw, {"listed": b"x\\a.txt", "alone": b"x\\b.txt"}, [item("listed", relativePath="x\\a.txt")])
    assert found.materials == [(1, "x/a.txt"), (2, "x/b.txt")]
    assert [one.path for one in found.made] == [f"{RAW}/x/a.txt", f"{RAW}/x/b.txt"]
    assert [one.path for one in found.removed] == [f"{RAW}/x\\a.txt"]
    assert [one.path for one in found.removed_last] == [f"{RAW}/x\\b.txt"]


def test_a_path_that_another_material_has_is_not_given_twice(raw: Path) -> None:
    found = planned(raw, {"first": b"a.txt", "second": b"../x"}, [item("second", relativePath="a.txt")])
    reason = "another material has the path of its item, a.txt"
    assert found.left == [Unresolved.registered(v2.PATH_UNSAFE, reason, base="kb", subject="second")]
    assert found.materials == []


# --- the catalog ---------------------------------------------------------------------------------------------------


def test_items_get_their_new_paths_in_the_catalog_alone(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE knowledge_item (id, base_id, data)")
        db.executemany(
            "INSERT INTO knowledge_item VALUES (?, ?, ?)",
            [
                ("a", "kb", '{"relativePath": "../a", "source": "kept"}'),
                ("a", "other", '{"relativePath": "../a"}'),
                ("b", "kb", '{"relativePath": "r.pdf", "indexedRelativePath": "../r.md"}'),
            ],
        )
    paths = {
        "kb": [
            ItemPath(item="a", key="relativePath", old="../a", new="a"),
            ItemPath(item="b", key="indexedRelativePath", old="../r.md", new="r.md"),
        ],
        "other": [],
    }
    change = catalog.plan_item_paths(tmp_path, "catalog.sqlite", paths)
    assert isinstance(change, RowsChange)
    [action] = change.actions
    assert (action.action, action.base, action.count, action.finding) == ("rename-items", "kb", 2, v2.PATH_UNSAFE)
    assert action.message == "give 2 items a path below raw/"
    assert (change.path, change.tables, change.bytes) == ("catalog.sqlite", ("knowledge_item",), 2 * 5 + 4096)
    with closing(apsw.Connection(str(path))) as db:
        with db:
            change.apply(db)
        assert [json.loads(str(data)) for (data,) in db.execute("SELECT data FROM knowledge_item ORDER BY rowid")] == [
            {"relativePath": "a", "source": "kept"},
            {"relativePath": "../a"},
            {"relativePath": "r.pdf", "indexedRelativePath": "r.md"},
        ]
        # The plan was made for other rows.
        with fails("PlanOutdated", match="the path of item a changed in the meantime"), db:
            change.apply(db)
    assert catalog.plan_item_paths(tmp_path, "catalog.sqlite", {"kb": []}) is None


def test_foreign_objects_of_the_catalog_are_dropped_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Store:
        root = tmp_path
        catalog: str | None = "catalog.sqlite"

    asked: list[Any] = []

    def plan_drops(*given: Any) -> Any:
        asked.append(given)
        return "change"

    monkeypatch.setattr(catalog, "plan_drops", plan_drops)
    trigger, view = (
        Finding(name=name, severity="warning", message="x", is_beyond_repair=name == v2.FOREIGN_VIEW)
        for name in (v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW)
    )
    other = Finding(name=v2.INDEX_ORPHAN, severity="warning", message="x")
    every = frozenset({v2.FOREIGN_TRIGGER, v2.FOREIGN_VIEW, v2.INDEX_ORPHAN})
    plan: Callable[..., Any] = catalog.plan_definitions
    stays = [Unresolved.with_remedy(view)]
    found = {None: [trigger, view, other], "kb": [trigger]}
    assert plan(Store(), found, every) == (["change"], stays, {(v2.FOREIGN_TRIGGER, None)})
    assert asked == [(tmp_path, "catalog.sqlite", {v2.FOREIGN_TRIGGER}, None, catalog.schema.find_foreign_in_catalog)]
    asked.clear()
    assert plan(Store(), found, frozenset({v2.FOREIGN_VIEW})) == ([], stays, set())
    assert plan(Store(), {"kb": [trigger]}, every) == ([], [], set())
    assert plan(Store(), {None: [trigger]}, frozenset({v2.INDEX_ORPHAN})) == ([], [], set())
    Store.catalog = None
    assert plan(Store(), found, every) == ([], stays, set())
    assert asked == []
    Store.catalog = "catalog.sqlite"
    monkeypatch.setattr(catalog, "plan_drops", lambda *_: None)
    assert plan(Store(), {None: [trigger]}, every) == ([], [], {(v2.FOREIGN_TRIGGER, None)})
