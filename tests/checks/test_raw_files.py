"""Items, materials and the files below ``raw/`` of a base compared with each other, each rule by small cases."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import NOW_MS

from checks.audit.collector import FindingCollector, Level
from checks.cherry_v2 import raw_files
from checks.cherry_v2.raw_files import IndexMaterial

Row = dict[str, Any]
HOUR = 3600


def item(key: str, kind: str = "file", status: str = "completed", group: str | None = None, **data: Any) -> Row:
    return {"id": key, "type": kind, "status": status, "group_id": group, "data": json.dumps(data)}


def material(key: str, path: str, text: str | None = None, *, is_empty: bool = False) -> IndexMaterial:
    content = None if text is None else hashlib.sha256(text.encode()).hexdigest()
    return IndexMaterial(id=key, path=path, content_hash=content, is_empty=is_empty)


def reported(check: Callable[[FindingCollector], object], level: Level = Level.DEFAULT) -> list[tuple[Any, ...]]:
    """Return name, message, samples, severity, and whether no command helps, of each finding of base ``b``."""
    findings = FindingCollector(level, now_ms=NOW_MS)
    check(findings)
    assert findings.not_checked == []
    found = findings.to_findings()
    assert {one.base for one in found} <= {"b"}
    return [(one.name, one.message, one.samples, one.severity, one.is_beyond_repair) for one in found]


# --- paths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b"a.md", None),
        ("Küche/书.md".encode(), None),
        (b"a\xff", "not UTF-8"),
        (b"a\0b", "it has a NUL or a backslash"),
        (b"a\\b", "it has a NUL or a backslash"),
        (b"/a", "absolute"),
        (b"C:/a", "absolute"),
        (b"c:", "absolute"),
        (b"1:a", None),
        ("é:a".encode(), None),
        (b"ab:c", None),
        (b":", None),
        (b"C", None),
        (b"a/../b", "it has .."),
        (b"..", "it has .."),
        (b"a..b", None),
        (b".cherry", "inside .cherry"),
        (b".Cherry/x", "inside .cherry"),
        (b"a/.cherry", None),
        (b"a//b", "not normalized"),
        (b"a/./b", "not normalized"),
        (b"a/", "not normalized"),
    ],
)
def test_paths_that_no_file_below_raw_has(raw: bytes | None, problem: str | None) -> None:
    assert raw_files.find_path_problem(raw) == raw_files.find_stored_path_problem(raw) == problem


def test_half_a_surrogate_pair_is_valid_only_in_a_stored_path() -> None:
    assert raw_files.find_path_problem(b"a\xed\xa0\xbd") == "not UTF-8"
    assert raw_files.find_stored_path_problem(b"a\xed\xa0\xbd") is None
    assert raw_files.find_stored_path_problem(b"../\xed\xa0\xbd") == "it has .."


# --- items and materials ---------------------------------------------------------------------------------------------


def compared(
    items: list[Row], materials: list[IndexMaterial], raw: Path, *, is_completed: bool = True, **recorded: Any
) -> list[tuple[Any, ...]]:
    return reported(
        lambda findings: raw_files.check_materials(
            "b", items, materials, raw, findings, is_completed=is_completed, **recorded
        )
    )


def test_materials_that_disagree_with_their_items(tmp_path: Path) -> None:
    items = [
        item("a", relativePath="a.md"),
        item("i", relativePath="x.docx", indexedRelativePath="i.md"),
        item("u", "url", url="https://example.org"),
        item("s", relativePath="half \ud83d.md"),
        item("d", status="deleting", relativePath="d.md"),
        item("n", "external", status="deleting", relativePath="n.md"),
        item("o", relativePath="o.md"),
    ]
    materials = [
        material("a", "a.md"),
        material("i", "i.md"),
        material("u", "u"),
        material("s", "half \ufffd.md"),
        material("d", "d.md"),
        material("n", "other.md"),
        material("o", "other.md"),
        material("x", "x.md"),
    ]
    assert compared(items, materials, tmp_path) == [
        ("material.orphan", "1 material of an item that is being deleted", ("d",), "warning", False),
        ("material.orphan", "1 material without an item", ("x",), "warning", False),
        ("material.path", "1 material with a different path than its item", ("o",), "error", False),
    ]


LACKING = "1 item completed but without a text in the index"
UNINDEXED = "1 item completed but never indexed"


def test_completed_items_without_a_material(tmp_path: Path) -> None:
    (tmp_path / "plain.md").write_text("text")
    (tmp_path / "wide.PDF").write_text("text")
    (tmp_path / "folder.md").mkdir()

    def lacking(row: Row) -> tuple[Any, ...]:
        [found] = compared([row], [], tmp_path)
        return found

    for row, name, message, severity, is_beyond_repair in [
        (item("f", relativePath="plain.md"), "item.no-material", LACKING, "warning", False),
        (
            item("f", relativePath="wide.PDF", indexedRelativePath="plain.md"),
            "item.no-material",
            LACKING,
            "warning",
            False,
        ),
        (
            item("f", relativePath="wide.PDF"),
            "item.no-material",
            f"{LACKING}, and with a file that is not plain text",
            "warning",
            True,
        ),
        (
            item("f", relativePath="gone.md"),
            "item.no-material",
            f"{LACKING}, and with no file to read it from",
            "warning",
            True,
        ),
        (
            item("f", relativePath="folder.md"),
            "item.no-material",
            f"{LACKING}, and with no file to read it from",
            "warning",
            True,
        ),
        (
            item("f", relativePath="../plain.md"),
            "item.no-material",
            f"{LACKING}, and with no file to read it from",
            "warning",
            True,
        ),
        (
            item("f", relativePath="x" * 300),
            "item.no-material",
            f"{LACKING}, and with no file to read it from",
            "warning",
            True,
        ),
        (item("n", "note", content="text"), "item.not-indexed", UNINDEXED, "note", False),
        (
            item("n", "note", content=" "),
            "item.not-indexed",
            f"{UNINDEXED}, and with no text in the note",
            "note",
            True,
        ),
        (item("n", "note", content="", relativePath="plain.md"), "item.no-material", LACKING, "warning", False),
        (
            item("u", "url", url="https://example.org", content="text"),
            "item.not-indexed",
            f"{UNINDEXED}, and with no file to read it from",
            "note",
            True,
        ),
        (item("u", "url", relativePath="plain.md"), "item.no-material", LACKING, "warning", False),
    ]:
        assert lacking(row) == (name, message, (row["id"],), severity, is_beyond_repair)


def test_items_that_need_no_material(tmp_path: Path) -> None:
    rows = [item("d", "directory"), item("i", status="idle"), item("f", status="failed"), item("x", "external")]
    assert compared(rows, [], tmp_path) == []
    lacking = [item("a", relativePath="a.md")]
    assert compared(lacking, [], tmp_path, is_completed=False) == []
    assert compared(lacking, [material("a", "a.md")], tmp_path) == []
    assert len(compared(lacking, [material("a", "a.md", is_empty=True)], tmp_path)) == 1


@pytest.mark.parametrize(("without_rows", "is_recorded"), [(0, False), (1, False), (2, True), (3, True)])
def test_files_of_which_v1_had_no_rows_are_notes(without_rows: int, is_recorded: bool, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    rows = [item("a", relativePath="a.md"), item("b", relativePath="a.md"), item("n", "note", content="c")]
    about = "2 items completed but without a text in the index"
    files = (
        ("item.no-material", f"{about}: v1 had no rows", ("a", "b"), "note", False)
        if is_recorded
        else ("item.no-material", about, ("a", "b"), "warning", False)
    )
    assert compared(rows, [], tmp_path, without_rows=without_rows) == [
        files,
        ("item.not-indexed", UNINDEXED, ("n",), "note", False),
    ]


def test_items_whose_rows_a_salvage_may_have_lost_are_warnings(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("text")
    rows = [item(key, relativePath="a.md") for key in "abc"]
    rows += [item("n", "note", content="c"), item("o", "note", content="c"), item("u", "url")]
    lost = "the rows may have been among those that could not be salvaged"
    materials = [material("c", "a.md")]
    found = compared(rows, materials, tmp_path, without_rows=1, lost_rows={"a", "c", "n", "u"})
    assert sorted(found) == [
        ("item.no-material", f"{LACKING}: {lost}", ("a",), "warning", False),
        ("item.no-material", f"{LACKING}: v1 had no rows", ("b",), "note", False),
        ("item.not-indexed", UNINDEXED, ("o",), "note", False),
        ("item.not-indexed", f"{LACKING}, and with no file to read it from: {lost}", ("u",), "warning", True),
        ("item.not-indexed", f"{LACKING}: {lost}", ("n",), "warning", False),
    ]


def test_items_that_lost_a_part_of_their_rows_are_named_until_they_are_indexed_again(tmp_path: Path) -> None:
    rows = [item(key, relativePath=f"{key}.md") for key in "abce"]
    materials = [material(key, f"{key}.md", is_empty=key == "e") for key in "abcde"]
    for one in materials:
        one.is_as_created = one.id != "c"
    lost = "with a part of the text missing, or perhaps missing: not all of the rows could be salvaged"
    found = compared(rows, materials, tmp_path, is_completed=False, lost_rows=set("bcde"))
    assert found == [
        ("unit.missing", f"1 item {lost}", ("b",), "warning", False),
        ("material.orphan", "1 material without an item", ("d",), "warning", False),
    ]


# --- files -----------------------------------------------------------------------------------------------------------


def put(raw: Path, name: str, text: str = "text", age: float = 2 * HOUR) -> None:
    path = raw / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    os.utime(path, (NOW_MS / 1000 - age,) * 2)


def files_checked(
    raw: Path, items: list[Row] | None, materials: list[IndexMaterial] | None, level: Level = Level.DEFAULT
) -> tuple[int, list[tuple[Any, ...]]]:
    counts = []
    found = reported(
        lambda findings: counts.append(raw_files.check_raw_files(raw, "b", items, materials, findings)), level
    )
    return counts[0], found


def missing(*paths: str) -> list[tuple[Any, ...]]:
    noun = "material" if len(paths) == 1 else "materials"
    message = f"{len(paths)} {noun} whose file is missing"
    return [("raw.missing", message, paths, "warning", False)] if paths else []


def test_materials_whose_file_is_missing(tmp_path: Path) -> None:
    put(tmp_path, "there.md")
    put(tmp_path, "folder.md/x")
    folder = item("d", "directory", relativePath="docs/")
    items = [folder, item("v", group="d"), item("n", "external"), *(item(key) for key in "abcw")]
    materials = [
        material("a", "there.md"),
        material("b", "gone.md"),
        material("c", "folder.md"),
        material("i", "i"),
        material("v", "docs/gone.md"),
        material("w", "docs/gone.md"),
        material("n", "gone.md"),
        material("u", "../gone.md"),
    ]
    used = [*items, item("x", relativePath="there.md"), item("y", relativePath="folder.md/x")]
    # A file in a folder item has no file of its own, and what an item of a newer type has is unknown.
    assert files_checked(tmp_path, used, materials) == (2, missing("gone.md", "folder.md", "docs/gone.md"))
    # Without a catalog, every path in a folder may be virtual.
    assert files_checked(tmp_path, None, materials) == (2, missing("gone.md", "folder.md", "gone.md"))
    assert files_checked(tmp_path, used, None) == (2, [])


@pytest.mark.parametrize(
    ("text", "is_changed"),
    [
        ("indexed", False),
        ("---\ntype: Note\ntitle: T\n---\nindexed", False),
        ("indexed ", True),
        ("", True),
    ],
)
@pytest.mark.parametrize("kind", ["url", "note", "file"])
def test_snapshots_that_differ_from_what_was_indexed(kind: str, text: str, is_changed: bool, tmp_path: Path) -> None:
    put(tmp_path, "s.md", text)
    items, materials = [item("s", kind, relativePath="s.md")], [material("s", "s.md", "indexed")]
    found = ("raw.changed", "1 snapshot different from the text that was indexed", ("s.md",), "warning", False)
    is_found = is_changed and kind != "file"
    assert files_checked(tmp_path, items, materials, Level.DEEP) == (1, [found] if is_found else [])
    assert files_checked(tmp_path, items, materials) == (1, [])


def test_a_snapshot_that_cannot_be_read_or_is_too_long_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "s.md", "indexed")
    items, materials = [item("s", "note", relativePath="s.md")], [material("s", "s.md", "indexed")]

    def names() -> list[str]:
        return [one[0] for one in files_checked(tmp_path, items, materials, Level.DEEP)[1]]

    monkeypatch.setattr(raw_files, "_LARGEST_SNAPSHOT", len("indexed"))
    assert names() == []
    monkeypatch.setattr(raw_files, "_LARGEST_SNAPSHOT", len("indexed") - 1)
    assert names() == ["raw.changed"]
    monkeypatch.setattr(raw_files, "_LARGEST_SNAPSHOT", 1000)

    def refuse(path: Path) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(raw_files.links, "read_bytes", refuse)
    assert names() == ["raw.changed"]


def test_files_that_no_item_refers_to(tmp_path: Path) -> None:
    for name in (
        "own.md",
        "indexed.md",
        "docs/a.md",
        "docs",
        "newer.md",
        "deep/x.md",
        "deep.md",
        "stray.md",
        "ab/c.md",
    ):
        if name != "docs":
            put(tmp_path, name)
    put(tmp_path, "young.md", age=HOUR)
    put(tmp_path, "older.md", age=HOUR + 1)
    items = [
        item("a", relativePath="own.md", indexedRelativePath="indexed.md"),
        item("d", "directory", relativePath="docs"),
        item("x", "directory", relativePath=7),
        item("f", relativePath="ab"),
        item("n", "external", files=["newer.md", {"more": ["", "deep/"]}], size=7),
        item("broken") | {"data": "["},
    ]
    strays = ["ab/c.md", "deep.md", "older.md", "stray.md"]
    count, found = files_checked(tmp_path, items, [])
    assert [(one[:2], one[3:]) for one in found] == [
        (("raw.orphan", "4 files not referenced by any item"), ("warning", False))
    ]
    assert set(found[0][2]) <= set(strays)
    assert count == 10
    assert sorted(raw_files.find_orphan_files(tmp_path, items, NOW_MS)) == strays
    # Without a catalog, it is unknown which files are needed.
    assert files_checked(tmp_path, None, []) == (10, [])


def test_the_files_of_a_folder_are_walked_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b/c", "b/d/e"):
        put(tmp_path, name)
    found = dict(raw_files.walk_files(tmp_path))
    assert {name: round(NOW_MS / 1000 - at) for name, at in found.items()} == dict.fromkeys(("a", "b/c", "b/d/e"), 7200)
    for limit in (0, 1, 3, 4):
        monkeypatch.setattr(raw_files, "_MOST_FILES", limit)
        assert len(list(raw_files.walk_files(tmp_path))) == min(limit, 3)


def test_a_failing_disk_is_no_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OSError(errno.EIO, os.strerror(errno.EIO))

    def fail(_: Path, onerror: Callable[[OSError], None]) -> list[Any]:
        onerror(error)
        return []

    monkeypatch.setattr(raw_files.file_paths, "walk", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        list(raw_files.walk_files(tmp_path))
    error.errno = errno.ENOENT
    assert list(raw_files.walk_files(tmp_path)) == []


def test_time_that_is_over_is_said_and_no_file_counted(tmp_path: Path) -> None:
    put(tmp_path, "a")
    findings = FindingCollector(max_duration=-1, now_ms=NOW_MS)
    assert raw_files.check_raw_files(tmp_path, "b", [], [material("a", "gone")], findings) == 0
    assert (findings.not_checked, findings.to_findings()) == (["b: raw files"], ())


def test_a_path_too_long_for_the_system_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_files.file_paths, "is_hidden_by_length", lambda path: path.name == "long")
    findings = FindingCollector(now_ms=NOW_MS)
    raw_files.check_raw_files(tmp_path, "b", [], [material("a", "long"), material("c", "gone")], findings)
    assert findings.not_checked == ["b: long: its path is too long for this system"]
    assert [one.samples for one in findings.to_findings()] == [("gone",)]
