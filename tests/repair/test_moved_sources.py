"""Originals that were moved: ``check`` names them where they were, ``repair --moved`` corrects their paths alone."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from faults import untouched
from harness import run
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_v2 import KB, OTHER, run_sql

from checks.cherry_v2 import catalog_rows
from regraft.errors import WrongUsage
from repair.cherry_v2.item_paths import MovedRoot, rewrite_source

REFUSED = 2


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that counts as the home folder of a user of this computer."""
    place = re.compile(rf"{re.escape(str(tmp_path))}[\\/]homes[\\/][^\\/]+(?=[\\/])")
    monkeypatch.setattr(catalog_rows, "_POSIX_PLACE", place)
    monkeypatch.setattr(catalog_rows, "_WINDOWS_PLACE", place)
    (tmp_path / "homes" / "anna").mkdir(parents=True)
    return tmp_path / "homes" / "anna"


def rows(store: Path) -> dict[str, tuple[Any, ...]]:
    """Return every item as plain SQLite has it, with its data decoded."""
    with closing(sqlite3.connect(f"{(store / 'catalog.sqlite').absolute().as_uri()}?mode=ro", uri=True)) as db:
        found = db.execute("SELECT * FROM knowledge_item").fetchall()
        names = [row[1] for row in db.execute("PRAGMA table_info(knowledge_item)")]
    at, data = names.index("id"), names.index("data")
    return {row[at]: (*row[:data], json.loads(row[data]), *row[data + 1 :]) for row in found}


def put(store: Path, key: str, kind: str, source: str, *, base: str = KB, group: str | None = None) -> None:
    """Add a completed item of a type with an original, with keys of its data in an unusual order and spacing."""
    data = f'{{"relativePath": "{key}.txt",   "source": {json.dumps(source)}}}'
    with closing(sqlite3.connect(store / "catalog.sqlite")) as db, db:
        db.execute(
            "INSERT INTO knowledge_item VALUES (?, ?, ?, ?, ?, 'completed', NULL, 5, 7)", (key, base, group, kind, data)
        )


def missing(store: Path, *options: object) -> list[dict[str, Any]]:
    found = run("check", store, "--json", *options).document["findings"]
    return [one for one in found if one["name"] == "item.source-missing"]


def source_of(store: Path, key: str) -> str:
    return next(str(value["source"]) for value in rows(store)[key] if isinstance(value, dict))


# --- check -----------------------------------------------------------------------------------------------------------


def test_originals_that_are_gone_are_named_by_base(store: Path, home: Path) -> None:
    (home / "kept.txt").write_text("kept")
    put(store, "kept", "file", str(home / "kept.txt"))
    put(store, "gone", "file", str(home / "docs" / "gone.txt"))
    put(store, "folder", "directory", str(home / "docs"))
    put(store, "child", "file", str(home / "docs" / "a" / "b.txt"), group="folder")
    put(store, "there", "file", str(home / "other" / "x.txt"), base=OTHER)
    found = {one["base"]: one for one in missing(store)}
    assert {base: (one["severity"], one["count"]) for base, one in found.items()} == {
        KB: ("note", 3),
        OTHER: ("note", 1),
    }
    assert found[OTHER]["samples"] == [str(home / "other" / "x.txt")]
    assert found[KB]["message"] == "3 items whose original is gone: the application cannot index them again"
    assert missing(store, "--quick") == []
    assert {one["base"] for one in missing(store, "--base", OTHER)} == {OTHER}
    # A note does not change the exit status.
    assert run("check", store, "--only", "item.source-missing").status == 0


@pytest.mark.parametrize(
    "source",
    [
        "{tmp}/homes/boris/docs/gone.txt",
        "/etc/gone-of-regraft.txt",
        "/srv/share/gone.txt",
        "//server/share/gone.txt",
        r"\\server\share\gone.txt",
        "relative/gone.txt",
        "the first line of a text",
        "https://example.org/gone",
    ],
)
def test_paths_of_another_computer_are_not_looked_for(
    source: str, store: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source.format(tmp=tmp_path)
    put(store, "gone", "file", path)
    looked: list[str] = []
    stat = catalog_rows.file_paths.stat

    def watched(one: Path) -> os.stat_result:
        looked.append(str(one))
        return stat(one)

    monkeypatch.setattr(catalog_rows.file_paths, "stat", watched)
    assert missing(store) == []
    # A path on a server is never touched: to look for it would tell the server of the user.
    assert path not in looked


@pytest.mark.parametrize("source", ["C:\\Users\\anna\\a.txt", "D:\\a.txt", "d:/docs/a.txt", "c:/users/anna/docs/a"])
def test_places_of_windows(source: str) -> None:
    found = catalog_rows._WINDOWS_PLACE.match(source)
    assert found is not None
    assert source.startswith(found[0])
    assert len(found[0]) < len(source)


@pytest.mark.parametrize("source", ["C:\\docs\\a.txt", "C:\\Users", "\\\\server\\d\\a.txt", "/home/anna/a", "D:a.txt"])
def test_other_paths_of_windows_are_no_places(source: str) -> None:
    assert catalog_rows._WINDOWS_PLACE.match(source) is None


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("/home/anna/a.txt", "/home/anna"),
        ("/Users/anna/x/a.txt", "/Users/anna"),
        ("/Volumes/Disk/a.txt", "/Volumes/Disk"),
        ("/media/anna/Disk/a.txt", "/media/anna/Disk"),
        ("/run/media/anna/Disk/a.txt", "/run/media/anna/Disk"),
        ("/mnt/data/a.txt", "/mnt/data"),
        ("/home/a.txt", None),
        ("/etc/passwd", None),
        ("/net/server/a.txt", None),
        ("C:\\Users\\anna\\a.txt", None),
    ],
)
def test_places_of_posix(source: str, place: str | None) -> None:
    found = catalog_rows._POSIX_PLACE.match(source)
    assert (None if found is None else found[0]) == place


# --- how paths are rewritten ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "source", "expected"),
    [
        ("/home/anna/docs", "/data/docs", "/home/anna/docs/a/b.txt", "/data/docs/a/b.txt"),
        ("/home/anna/docs/", "/data/docs//", "/home/anna/docs/a.txt", "/data/docs/a.txt"),
        ("/home/anna/docs", "/data", "/home/anna/docs", "/data"),
        ("/home/anna/a.txt", "/home/anna/b.txt", "/home/anna/a.txt", "/home/anna/b.txt"),
        # Only at the boundary of a name, and in the case of the file system.
        ("/home/anna/docs", "/data", "/home/anna/docs2/a.txt", None),
        ("/home/anna/docs", "/data", "/home/anna/Docs/a.txt", None),
        ("/home/anna/docs", "/data", "/mnt/home/anna/docs/a.txt", None),
        ("/", "/data", "/a/b.txt", "/data/a/b.txt"),
        ("/docs", "/", "/docs/a.txt", "/a.txt"),
        # Windows: upper and lower case are the same, and so are the separators; the rest keeps its own.
        ("C:\\Docs", "D:\\Archive", "c:\\docs\\A\\b.txt", "D:\\Archive\\A\\b.txt"),
        ("C:/Docs", "D:/Archive", "C:\\Docs\\Sub/b.txt", "D:/Archive\\Sub/b.txt"),
        ("C:\\Docs", "D:\\", "C:\\Docs\\b.txt", "D:\\b.txt"),
        ("C:\\", "D:\\Old", "C:\\Docs\\b.txt", "D:\\Old\\Docs\\b.txt"),
        ("C:", "D:", "C:\\b.txt", "D:\\b.txt"),
        ("C:\\Docs", "D:\\Archive", "C:\\Docs2\\b.txt", None),
        ("C:\\ÜBER", "D:\\x", "c:\\über\\a.txt", "D:\\x\\a.txt"),
        ("\\\\server\\share", "Z:\\", "\\\\SERVER\\share\\a.txt", "Z:\\a.txt"),
        # To a computer of another system.
        ("C:\\Docs", "/home/anna/docs", "C:\\Docs\\A\\b.txt", "/home/anna/docs/A/b.txt"),
        ("/home/anna/docs", "D:\\docs", "/home/anna/docs/a/b.txt", "D:\\docs\\a\\b.txt"),
        # A backslash is a part of a name on POSIX.
        ("/docs", "/data", "/docs\\a.txt", None),
        ("/docs", "/data", "C:\\docs\\a.txt", None),
        ("C:\\docs", "/data", "/docs/a.txt", None),
        ("/docs", "/data", "a text that begins with /docs/a", None),
    ],
)
def test_a_path_is_rewritten(old: str, new: str, source: str, expected: str | None) -> None:
    assert MovedRoot.of(old, new).rewrite(source) == expected


def test_the_longest_old_path_wins_and_none_is_applied_twice() -> None:
    pairs = [("/docs", "/data"), ("/docs/special", "/elsewhere"), ("/data", "/never")]
    roots = [MovedRoot.of(old, new) for old, new in pairs]
    assert rewrite_source("/docs/special/a", roots) == "/elsewhere/a"
    assert rewrite_source("/docs/a", roots) == "/data/a"
    assert rewrite_source("/other", roots) is None


#: Names without separators, of which a few differ in case alone; "İ" has two characters in lower case.
NAMES = st.text(st.characters(blacklist_characters="/\\:\0", blacklist_categories=("Cs", "Cc")), min_size=1, max_size=6)
PARTS = st.lists(NAMES, min_size=1, max_size=4)


@st.composite
def spelled_differently(draw: st.DrawFn, path: str) -> str:
    """Spell a path of Windows with other separators and other cases of ASCII letters."""
    swapped = draw(st.lists(st.booleans(), min_size=len(path), max_size=len(path)))
    other = {"\\": "/", "/": "\\"}
    return "".join(
        other.get(char, char.swapcase() if char.isascii() else char) if swap else char
        for char, swap in zip(path, swapped, strict=True)
    )


@settings(max_examples=200, deadline=None)
@given(old=PARTS, new=PARTS, rest=PARTS)
def test_what_is_below_a_posix_path_goes_along_and_comes_back(old: list[str], new: list[str], rest: list[str]) -> None:
    first, second = f"/{'/'.join(old)}", f"/{'/'.join(new)}"
    source = f"{first}/{'/'.join(rest)}"
    moved = MovedRoot.of(first, second).rewrite(source)
    assert moved == f"{second}/{'/'.join(rest)}"
    assert MovedRoot.of(second, first).rewrite(moved) == source
    assert MovedRoot.of(f"{first}/", f"{second}//").rewrite(first) == second
    # A neighbor whose name only begins like it stays, and so does a path of another case.
    assert MovedRoot.of(first, second).rewrite(f"{first}x/{rest[0]}") is None
    if source.swapcase() != source and not source.swapcase().startswith(first):
        assert MovedRoot.of(first, second).rewrite(source.swapcase()) is None


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(data=st.data(), old=PARTS, new=PARTS, rest=PARTS)
def test_on_windows_neither_case_nor_separator_matters(
    data: st.DataObject, old: list[str], new: list[str], rest: list[str]
) -> None:
    first, second = "C:\\" + "\\".join(old), "D:\\" + "\\".join(new)
    source = data.draw(spelled_differently(first + "\\" + "\\".join(rest)))
    moved = MovedRoot.of(data.draw(spelled_differently(first)), second).rewrite(source)
    assert moved is not None
    assert moved[: len(second)] == second
    assert moved[len(second) + 1 :] == source[len(first) + 1 :]
    # To another system: the separators are those of the new path.
    there = MovedRoot.of(first, "/srv/data").rewrite(source)
    assert there == f"/srv/data/{source[len(first) + 1 :].replace(chr(92), '/')}"
    assert MovedRoot.of(first, second).rewrite(f"{first}x\\{rest[0]}") is None


@pytest.mark.parametrize(("old", "new"), [("docs", "/data"), ("/docs", "data"), ("", "/data"), ("/docs", "C:data")])
def test_paths_that_are_not_absolute_are_refused(old: str, new: str) -> None:
    with pytest.raises(WrongUsage, match="is not an absolute path"):
        MovedRoot.of(old, new)


@pytest.mark.parametrize("command", ["repair", "sync"])
@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (("x=y",), "--moved x=y: x is not an absolute path (write both paths in full)."),
        (("/docs=y",), "--moved /docs=y: y is not an absolute path (write both paths in full)."),
        (
            ("/docs=~/nowhere",),
            "--moved /docs=~/nowhere: ~/nowhere is not an absolute path (write both paths in full).",
        ),
        (("/docs=",), "--moved /docs=: '' is not an absolute path (write both paths in full)."),
        (("=/docs",), "--moved =/docs: '' is not an absolute path (write both paths in full)."),
        (("/docs",), "--moved /docs has no new path (write OLD=NEW)."),
        (("/docs=/a", "/docs=/b"), "--moved /docs has two new paths (give one of them)."),
        (("/nowhere=.",), "--moved /nowhere: no file or folder of the chosen bases is there"),
    ],
)
def test_both_commands_refuse_a_pair_in_the_same_words(
    command: str, pairs: tuple[str, ...], problem: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with untouched(store):
        done = run(command, store, *(word for pair in pairs for word in ("--moved", pair)), "--json")
    error = done.document["error"]
    assert (done.status, error["code"]) == (REFUSED, "WrongUsage")
    assert problem in error["message"]


def test_a_new_path_that_exists_may_be_relative_or_below_home(
    store: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "archive").mkdir()
    monkeypatch.chdir(home)
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(home))
    put(store, "one", "file", "/srv/a/one.txt")
    put(store, "two", "file", "/srv/b/two.txt")
    done = moved(store, "/srv/a=archive", f"/srv/b=~{os.sep}archive")
    assert [action["count"] for action in done.document["actions"]] == [1, 1]
    expected = tuple(str(home / "archive" / name) for name in ("one.txt", "two.txt"))
    assert (source_of(store, "one"), source_of(store, "two")) == expected


# --- repair ----------------------------------------------------------------------------------------------------------


def moved(store: Path, *pairs: str, options: tuple[object, ...] = ()) -> Any:
    words = [word for pair in pairs for word in ("--moved", pair)]
    return run("repair", store, *words, "--json", *options)


def test_paths_are_corrected_and_nothing_else_is(store: Path, home: Path) -> None:
    new = home / "archive"
    new.mkdir()
    (new / "there.txt").write_text("there")
    put(store, "there", "file", str(home / "docs" / "there.txt"))
    put(store, "folder", "directory", str(home / "docs"))
    put(store, "child", "file", str(home / "docs" / "a" / "gone.txt"), group="folder")
    put(store, "beside", "file", str(home / "docs2" / "x.txt"))
    put(store, "url", "url", str(home / "docs" / "page"))
    before = rows(store)
    files = {path: path.read_bytes() for path in store.rglob("*") if path.is_file() and ".regraft" not in path.parts}
    pair = f"{home / 'docs'}={new}"
    with untouched(store):
        planned = moved(store, pair, options=("--dry-run",))
    done = moved(store, pair)
    assert (planned.status, done.status) == (1, 1)
    [action] = done.document["actions"]
    assert (action["action"], action["base"], action["count"]) == ("set-source", KB, 3)
    assert planned.document["actions"] == done.document["actions"]
    [left] = done.document["left"]
    assert (left["finding"], left["count"], left["severity"]) == ("item.source-missing", 1, "warning")
    assert str(new / "a" / "gone.txt") in left["reason"]
    after = rows(store)
    expected = {"there": new / "there.txt", "folder": new, "child": new / "a" / "gone.txt"}
    for key, row in before.items():
        new_source = {"source": str(expected[key])} if key in expected else {}
        assert after[key] == tuple({**one, **new_source} if isinstance(one, dict) else one for one in row)
    changed = {path for path, content in files.items() if path.read_bytes() != content}
    assert changed == {store / "catalog.sqlite"}
    again = moved(store, pair)
    assert (again.document["actions"], rows(store)) == ([], after)
    assert run("undo", store, "--json").status == 0
    assert rows(store) == before


def test_only_the_chosen_base_is_corrected(store: Path) -> None:
    put(store, "one", "file", "C:\\Docs\\one.txt")
    put(store, "two", "file", "C:\\Docs\\two.txt", base=OTHER)
    done = moved(store, "C:\\docs=D:\\Docs", options=("--base", OTHER))
    # Windows can look for the file, which is not there, if it has this drive.
    assert done.status == (1 if Path("D:\\").exists() else 0), done
    assert (source_of(store, "one"), source_of(store, "two")) == ("C:\\Docs\\one.txt", "D:\\Docs\\two.txt")


def test_several_folders_are_corrected_in_one_run(store: Path) -> None:
    put(store, "one", "file", "/srv/a/one.txt")
    put(store, "two", "file", "/srv/b/two.txt")
    done = moved(store, "/srv/a=/srv/b", "/srv/b=/srv/c")
    assert [action["count"] for action in done.document["actions"]] == [1, 1]
    assert (source_of(store, "one"), source_of(store, "two")) == ("/srv/b/one.txt", "/srv/c/two.txt")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--moved", "/nowhere=/data"), "no file or folder of the chosen bases is there"),
        (("--moved", "docs=/data"), "is not an absolute path"),
        (("--moved", "/docs"), "has no new path"),
        (("--moved", "/docs=/a", "--moved", "/docs=/b"), "--moved /docs has two new paths (give one of them)"),
        (("--moved", "/docs="), "is not an absolute path"),
        (("--moved", "/a=/b", "--salvage"), "--moved cannot be combined with --salvage"),
        (("--moved", "/a=/b", "--from", "elsewhere"), "--moved cannot be combined with --from"),
        (("--moved", "/a=/b", "--only", "item.status"), "--moved cannot be combined with --only"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: tuple[str, ...], problem: str, store: Path) -> None:
    with untouched(store):
        done = run("repair", store, *options, "--json")
    assert (done.status, done.document["error"]["code"]) == (REFUSED, "WrongUsage")
    assert problem in done.document["error"]["message"]


def test_data_that_is_no_json_is_left_alone(store: Path) -> None:
    put(store, "one", "file", "/srv/a/one.txt")
    run_sql(
        store / "catalog.sqlite",
        "INSERT INTO knowledge_item SELECT 'odd', base_id, NULL, type, '{oops', status,"
        " error, created_at, updated_at FROM knowledge_item WHERE id = 'one'",
    )
    done = moved(store, "/srv/a=/srv/b")
    assert done.status in (0, 1), done
    assert source_of_text(store, "odd") == "{oops"


def source_of_text(store: Path, key: str) -> str:
    with closing(sqlite3.connect(store / "catalog.sqlite")) as db:
        return str(db.execute("SELECT data FROM knowledge_item WHERE id = ?", (key,)).fetchone()[0])
