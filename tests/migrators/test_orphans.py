"""``regraft migrate --adopt-orphans``: bases of vector files that no state names, from their rows alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from faults import untouched
from golden_cases import CASES
from harness import NOW, NOW_MS, REPO, command_words, examples, run
from hypothesis import given, settings
from hypothesis import strategies as st
from v1 import MODEL, Library, Row, Source, base, carried, folder, migrate, opened, pack, vector_of, write_store
from whole_rsclaw import healthy

from migrators.cherry_v1.orphans import FoundFolder, find_folders
from regraft import identity
from regraft.api import migrate as migrate_in_python
from regraft.disk import sqlite
from regraft.disk.file_paths import vector_file_name

ADOPT = "--adopt-orphans"
MODEL_ID = "acme::embed-3"
SNIPPET = "The fog bell: how to rin... with their eyes shut.\n"


def members_of(archive: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(archive) as read:
        return {name: read.read(name) for name in read.namelist() if not name.endswith("/")}


def md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def of(file: str) -> tuple[str, ...]:
    return (ADOPT, "--map-model", f"{file}={MODEL_ID}")


def path_rows(*paths: str, kind: str = "LocalPathLoader") -> list[Row]:
    return [Row(f"{kind}_{md5(path)}", f"text of {path}", source=path) for path in paths]


def adopted(tmp_path: Path, rows: list[Row], **parts: Any) -> Library:
    """Migrate a source whose state names no base, with one vector file."""
    return carried(tmp_path, stores={"lost": rows}, options=of("lost"), **parts)


def told(library: Library, legacy: str = "lost") -> list[tuple[str, str, str | None]]:
    """Return type, source and path of the items that are in no folder."""
    return [
        (item["type"], item["data"]["source"], item["data"].get("relativePath"))
        for item in library.items(legacy)
        if item["group_id"] is None
    ]


# --- against the migration that has the state ------------------------------------------------------------------------


def without_bases(source: Path) -> tuple[Path, dict[str, Any]]:
    """Take the bases out of a source's state, and return them by id."""
    path = source / ("redux.json" if (source / "redux.json").exists() else "data.json")
    state = json.loads(path.read_text("utf-8"))
    if path.name == "redux.json":
        bases, state["knowledge"]["bases"] = state["knowledge"]["bases"], []
    else:
        redux = json.loads(state["localStorage"]["persist:cherry-studio"])
        knowledge = json.loads(redux["knowledge"])
        bases, knowledge["bases"] = knowledge["bases"], []
        redux["knowledge"] = json.dumps(knowledge)
        state["localStorage"]["persist:cherry-studio"] = json.dumps(redux)
    path.write_text(json.dumps(state), "utf-8")
    return source, {one["id"]: one for one in bases if isinstance(one, dict)}


def words_of(bases: dict[str, Any]) -> list[str]:
    models = {vector_file_name(key): one.get("model") for key, one in bases.items()}
    pairs = ((key, f"{one['provider']}::{one['id']}") for key, one in models.items() if one)
    return [word for key, model in pairs for word in ("--map-model", f"{key}={model}")]


def texts_of(library: Library, key: str) -> Counter[tuple[str, bytes]]:
    return Counter((unit.body, unit.vector) for unit in library.units(key)) if library.base(key)["index"] else Counter()


def assert_as_much(lost: Library, whole: Library, keys: set[str]) -> None:
    """Assert that every row that the state carried comes along without it, byte for byte, in as many items or more."""
    for key in keys:
        file = vector_file_name(key)
        # The id of a base is that of its file, but for what no file may be called.
        assert (lost.base_id(file) == whole.base_id(key)) is (file == key)
        ours, theirs = texts_of(lost, file), texts_of(whole, key)
        # What the state leaves to a file with the same bytes has no rows of its own.
        assert set(theirs) <= set(ours)
        assert sum(ours.values()) == lost.rows(file)["carried"] >= whole.rows(key)["carried"]
        assert lost.rows(file)["read"] == whole.rows(key)["read"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES)
def test_golden_cases_without_their_bases(case: str, golden, tmp_path: Path) -> None:
    whole_source = shutil.copytree(golden(case) / "v1", tmp_path / "whole")
    source, bases = without_bases(shutil.copytree(whole_source, tmp_path / "v1"))
    whole = migrate(whole_source, tmp_path / "with")
    files = {path.name for path in (source / "KnowledgeBase").iterdir()}
    lost = migrate(source, tmp_path / "without", ADOPT, *words_of({key: bases[key] for key in bases if key in files}))
    completed = {one["legacy_id"] for one in whole.report["bases"] if one["status"] == "completed"}
    keys = completed & {one["legacy_id"] for one in lost.report["bases"]}
    assert keys == completed & files
    assert_as_much(lost, whole, keys)
    assert lost.codes()["adopted"] == len(lost.report["bases"]) == len(files)
    assert lost.codes()["lost_state"] == 0


def test_the_sample_without_its_bases(tmp_path: Path) -> None:
    whole_source = REPO / "sample_v1" / "backup"
    source, bases = without_bases(shutil.copytree(whole_source, tmp_path / "v1"))
    whole = migrate(whole_source, tmp_path / "with")
    lost = migrate(source, tmp_path / "without", ADOPT, *words_of(bases))
    good = {one["legacy_id"] for one in whole.report["bases"] if one["status"] == "completed"}
    assert_as_much(lost, whole, good)
    # Items with rows are the same ones, with names, addresses and uploads. What v1 had no rows of is not known.
    for key in ("GSI9AeE0DFjMMy8kHBcdh", "garden:2025/spring"):
        file = vector_file_name(key)
        assert set(told(lost, file)) <= set(told(whole, key))
        uploads = {name: raw for name, raw in lost.raw(file).items() if not name.endswith(".md")}
        assert uploads.items() <= whole.raw(key).items()
    assert lost.base_row("E5CiaimJp06icDac5j8qM")["name"] == "Boat workshop"
    [damaged] = [one for one in lost.report["bases"] if one["status"] == "failed"]
    assert (damaged["legacy_id"], damaged["error"]) == ("4SmiO86DdI2WCH6-albea", "missing_vector_store")
    # All is done: nothing changes, and without the option nothing is lost.
    for options in ((ADOPT, *words_of(bases)), ()):
        again = migrate(source, tmp_path / "without", *options) if options else None
        done = again.report if again else run("migrate", source, "--to", tmp_path / "without", "--json").document
        assert {one["outcome"] for one in done["bases"]} <= {"unchanged", "failed"}
        assert {row["id"] for row in lost.catalog("knowledge_base")} == {
            lost.base_id(vector_file_name(one)) for one in bases
        }


# --- loaders and sources ---------------------------------------------------------------------------------------------


def test_uploads_are_told_by_their_path(tmp_path: Path) -> None:
    place = "C:\\Users\\mei\\AppData\\CherryStudio\\Data\\Files"
    rows = path_rows(f"{place}\\one.pdf", "/home/mei/.config/CherryStudio/Data/Files/two.md")
    rows += path_rows("/x/Data/Files/three/three.md")
    names = [{"id": "one", "origin_name": "Log book.pdf", "ext": ".pdf"}, {"id": "three", "origin_name": "Scan.pdf"}]
    library = adopted(tmp_path, rows, files=names, uploads={"one.pdf": b"1", "two.md": b"2", "three.pdf": b"3"})
    assert library.status == 0
    assert told(library) == [
        ("file", f"{place}\\one.pdf", "Log book.pdf"),
        ("file", "/home/mei/.config/CherryStudio/Data/Files/two.md", "two.md"),
        ("file", "/x/Data/Files/three/three.md", "Scan.pdf"),
    ]
    assert library.raw("lost") == {"Log book.pdf": b"1", "two.md": b"2", "Scan.pdf": b"3"}
    assert "the names of 1 file are unknown" in library.warnings("adopted")[0]["message"]


def test_files_below_one_folder_are_that_folder(tmp_path: Path) -> None:
    rows = path_rows("/home/mei/Boats/a.pdf", "/home/mei/Boats/plans/b.odt", kind="OdtLoader")
    rows += [Row("/home/mei/Boats/c.epub", "a book", source="/home/mei/Boats/c.epub")]
    rows += [Row("ImageLoader_/home/mei/Boats/d.png", "a picture", source="/home/mei/Boats/d.png")]
    library = adopted(tmp_path, rows)
    assert told(library) == [("directory", "/home/mei/Boats", "Boats")]
    children = library.children("lost//home/mei/Boats")
    assert [one["data"]["relativePath"] for one in children] == [
        *("Boats/a.pdf", "Boats/plans/b.odt", "Boats/c.epub", "Boats/d.png"),
    ]
    assert {one["status"] for one in children} == {"completed"}
    assert library.base_row("lost")["name"] == "Boats"


def test_a_file_that_is_alone_is_no_folder(tmp_path: Path) -> None:
    library = adopted(tmp_path, path_rows("/srv/a/one.pdf", "/home/mei/b.pdf", "/home/mei/c.pdf"))
    assert [kind for kind, _, _ in told(library)] == ["file"] * 3
    assert [path for _, _, path in told(library)] == ["one.pdf", "b.pdf", "c.pdf"]
    assert library.base_row("lost")["name"] == "lost"


FOLDERS = {
    "direct files": (["/data/x.md", "/data/y.md"], ["/data"]),
    "files below only": (["/srv/q/a/x.md", "/srv/q/b/y.md"], ["/srv/q"]),
    "the root": (["/x.md", "/y.md"], []),
    "a home": (["/home/mei/x.md", "/home/mei/y.md", "/home/mei/d/1.md", "/home/mei/d/2.md"], ["/home/mei/d"]),
    "two folders of a home": (
        ["/Users/li/a/1.md", "/Users/li/b/1.md", "/Users/li/a/2.md", "/Users/li/b/c/2.md"],
        ["/Users/li/a", "/Users/li/b"],
    ),
    "two folders of a usual one": (
        ["/home/mei/Documents/a/1.md", "/home/mei/Documents/a/2.md", "/home/mei/Documents/b/1.md"],
        ["/home/mei/Documents/a"],
    ),
    "a usual one": (["/home/mei/Documents/1.md", "/home/mei/Documents/b/1.md"], ["/home/mei/Documents"]),
    "a Windows drive": (["D:\\x.md", "D:\\y.md"], []),
    "a Windows home": (["C:\\Users\\li\\x.md", "c:/users/LI/y.md"], []),
    "a Windows folder": (["C:\\Users\\li\\notes\\x.md", "c:/users/li/Notes/sub/y.md"], ["C:\\Users\\li\\notes"]),
    "two drives": (["C:\\a\\x.md", "D:\\a\\x.md"], []),
    "a share": (["\\\\nas\\disk\\x.md", "\\\\nas\\disk\\y.md"], []),
    "a folder of a share": (["\\\\nas\\disk\\a\\x.md", "\\\\nas\\disk\\a\\y.md"], ["\\\\nas\\disk\\a"]),
    "a mounted disk": (
        ["/mnt/disk/x.md", "/mnt/disk/y.md", "/media/usb/z/1.md", "/media/usb/z/2.md"],
        ["/media/usb/z"],
    ),
    "climbing": (["/data/../etc/x", "/data/../etc/y"], []),
    "relative": (["data/x", "data/y"], []),
    "a NUL": (["/data/x\0", "/data/y\0"], []),
    "too long": ([f"/data/{'x' * 40_000}", f"/data/{'y' * 40_000}"], []),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_which_paths_are_one_folder(name: str) -> None:
    paths, wanted = FOLDERS[name]
    found = find_folders({str(at): path for at, path in enumerate(paths)})
    assert [one.path for one in found] == wanted
    assert all(len(one.loaders) > 1 for one in found)


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "b", "home", "mei", "C:", "Documents"]), min_size=1, max_size=6), max_size=9
    )
)
def test_every_path_is_in_one_folder_at_most(paths: list[list[str]]) -> None:
    found = find_folders({str(at): "/" + "/".join(parts) for at, parts in enumerate(paths)})
    loaders = [loader for one in found for loader in one.loaders]
    assert len(loaders) == len(set(loaders))
    for one in found:
        assert all(
            f"/{'/'.join(paths[int(loader)])}".lower().startswith(f"{one.path}/".lower()) for loader in one.loaders
        )


def test_texts_are_told_by_the_uploads_that_they_are(tmp_path: Path) -> None:
    text, page = (
        "The fog bell: how to ring it with both eyes shut.\n",
        "<html><body>Hello there, dear visitor of ours</body>",
    )
    rows = [
        Row(f"TextLoader_{md5(text)}", "one", source=SNIPPET.replace("rin... with", "rin...t with")),
        Row(f"WebLoader_{md5(page)}", "two", source="<html><body>Hello there,...visitor of ours</body>"),
        Row(f"TextLoader_{md5('lost')}", "three", source="# Tide tables, lower har...ow and then at midnight."),
        Row(f"JsonLoader_{md5('lost')}", "four", source='[{"shelf":"A1","thing":"...nt":6,"unit":"pieces"}]'),
        Row(
            f"WebLoader_{md5('other')}",
            "OPEN NIGHT On the last Tuesday of a month",
            source="<!doctype html>\n<html la...l>\n",
        ),
    ]
    files = [{"id": "up", "origin_name": "Fog bell.txt", "ext": ".txt"}]
    library = adopted(tmp_path, rows, files=files, uploads={"up.txt": text.encode(), "web.html": page.encode()})
    assert [path for _, _, path in told(library)] == [
        *("Fog bell.txt", "web.html", "Tide tables, lower.txt"),
        *(f"json-{md5('lost')[:8]}.json", "OPEN NIGHT On the last Tuesday of a mont.html"),
    ]
    assert library.raw("lost") == {"Fog bell.txt": text.encode(), "web.html": page.encode()}
    assert Counter(one["code"] for one in library.report["warnings"])["missing_upload"] == 3
    assert "the names of 4 files are unknown" in library.warnings("adopted")[0]["message"]


def test_pages_and_sitemaps(tmp_path: Path) -> None:
    address, plain = "https://museum.example/visit", "museum.example/a/very/long/address/that/was/cut/in/its/middle"
    sitemap = "https://museum.example/sitemap.xml"
    told_of = json.dumps({"originalSource": sitemap})
    rows = [
        Row(f"WebLoader_{md5(address)}", "one", source=address),
        Row(f"WebLoader_{md5(plain)}", plain, source="museum.example/a/very/lo...as/cut/in/its/middle"),
        Row(f"WebLoader_{md5('moved')}", "three", source="https://museum.example/moved"),
        Row(f"SitemapLoader_{md5(sitemap)}", "four", source="https://museum.example/1", metadata=told_of),
        Row(f"SitemapLoader_{md5(sitemap)}", "five", source="https://museum.example/2", metadata=told_of),
        Row("SitemapLoader_x", "six", source="https://museum.example/3", metadata="no JSON"),
    ]
    library = adopted(tmp_path, rows)
    assert library.status == 0
    urls = [(item["type"], item["data"]["url"]) for item in library.items("lost")]
    wanted = (address, plain, "https://museum.example/moved", sitemap, "https://museum.example/3")
    assert urls == [("url", one) for one in wanted]
    assert "reconstructed from 6 rows: 3 urls, 2 sitemaps" in library.warnings("adopted")[0]["message"]


def test_notes(tmp_path: Path) -> None:
    one, stored, clipped = "A short note", "Rota\n\nfor March", "Clipped\n\nhere"
    rows = [
        Row(f"NoteLoader_{md5(one)}", one, source="note"),
        Row(f"NoteLoader_{md5(stored)}", "Rota for March", source="note"),
        Row(f"NoteLoader_{md5(clipped + 'https://b.example')}", "Clipped here", source="https://b.example"),
        Row("NoteLoader_x", "the first part of a long note", source="note", id="NoteLoader_x_1"),
        Row("NoteLoader_x", "this is what the first part", source="note", id="NoteLoader_x_0"),
        Row("NoteLoader_x", "and the end", source="note", id="NoteLoader_x_2"),
    ]
    notes = [
        {"id": "n1", "content": stored},
        {"id": "n2", "content": clipped, "sourceUrl": "https://b.example"},
        {"id": "n3", "content": "of another base"},
    ]
    library = adopted(tmp_path, rows, notes=notes)
    assert library.status == 0
    assert [(item["data"]["source"], item["data"]["content"]) for item in library.items("lost")] == [
        (one, one),
        (stored, stored),
        ("https://b.example", clipped),
        *[("this is what the first part of a long note and the end",) * 2],
    ]
    assert "; of 1 note only the indexed text is known" in library.warnings("adopted")[0]["message"]


def test_rows_that_belong_to_nobody_are_counted(tmp_path: Path) -> None:
    rows = [
        Row("DirectoryLoader_1", "of a folder itself", source="/data"),
        Row("LocalPathLoader_1", "no source", source="  "),
        Row("VideoLoader_1", "of a later kind", source="https://video.example/1"),
        Row("OtherLoader_1", "of another kind", source="some text"),
        Row(" ", "of no loader", source="note"),
    ]
    library = adopted(tmp_path, rows)
    assert told(library) == [
        ("file", "LocalPathLoader_1", "file-1"),
        ("url", "https://video.example/1", library.items("lost")[1]["data"]["relativePath"]),
        ("file", "OtherLoader_1.txt", "some text.txt"),
    ]
    assert library.skipped_rows("lost") == {"unmapped_loader": 2}
    assert library.rows("lost")["read"] == 5


HOSTILE = st.one_of(
    st.sampled_from(
        ["../../etc/passwd", "/../../etc/passwd", "\0", "/a\0b", "C:\\..\\x", "//", "/", "\\\\", "http://", "https://[",
         "con", "/home/mei/.cherry/x", "x" * 5000, "/" + "a/" * 300, "\ud7ff\u202e\x1b[31m", "note", " ", "\n\n"]
    ),
    st.text(max_size=20),
)  # fmt: skip
KINDS = st.sampled_from(
    ["LocalPathLoader_", "TextLoader_", "JsonLoader_", "WebLoader_", "NoteLoader_", "SitemapLoader_", "ImageLoader_",
     "DirectoryLoader_", "OdtLoader_", "", "Unknown_"]
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(KINDS, HOSTILE, HOSTILE, HOSTILE), min_size=1, max_size=8))
def test_no_row_leads_out_and_every_row_is_counted(drawn: list[tuple[str, str, str, str]]) -> None:
    """:func:`v1.migrate` holds what is written against every rule: paths stay inside, books balance, ids are unique."""
    rows = [
        Row(f"{kind}{key}", f"{at} {body}", source=source, metadata=source, id=f"{kind}{key}_{at}")
        for at, (kind, key, source, body) in enumerate(drawn)
    ]
    with tempfile.TemporaryDirectory() as place:
        library = adopted(Path(place), rows)
        assert library.rows("lost")["read"] == len(rows)
        assert set(library.skipped_rows("lost")) <= {"unmapped_loader"}
        inside = {path.name for path in Path(place).iterdir()}
        assert inside == {"v1", "library"}


# --- which files -----------------------------------------------------------------------------------------------------


def rows_of(*texts: str) -> list[Row]:
    return [Row(f"WebLoader_{md5(text)}", text, source=f"https://example.com/{text}") for text in texts]


def test_only_files_that_no_base_names(tmp_path: Path) -> None:
    stores: dict[str, Any] = {"kb": rows_of("one"), "lost": rows_of("two"), "empty": [], "gone": rows_of("three")}
    source = Source([base("kb")], stores, pending=["gone"]).write(tmp_path / "v1")
    with sqlite.open_writable(source / "KnowledgeBase" / "other", create=True) as db:
        db.execute("CREATE TABLE something (id)")
    library = migrate(source, tmp_path / "library", *of("lost"))
    assert [one["legacy_id"] for one in library.report["bases"]] == ["kb", "lost"]
    assert library.bodies("lost") == ["two"]
    # A base that is to be deleted does not come back, and that is said.
    assert [one["base"] for one in library.warnings("pending_delete")] == ["gone"]
    assert library.report["skipped"] == {"pending_delete": 1}
    assert [one["message"] for one in library.warnings("not_adopted")] == [
        "no base was made from empty: it has no rows",
        "no base was made from other: it has no table `vectors`",
    ]


def test_without_the_option_nothing_is_adopted(tmp_path: Path) -> None:
    library = carried(tmp_path, base("kb"), stores={"kb": rows_of("one"), "lost": rows_of("two")})
    assert [one["legacy_id"] for one in library.report["bases"]] == ["kb"]
    assert library.codes()["unnamed_vector_files"] == 1


def test_a_damaged_file_fails_by_name(tmp_path: Path) -> None:
    whole = write_store(tmp_path / "whole", [Row(f"L{at}", "x" * 3000 + str(at)) for at in range(9)]).read_bytes()
    library = carried(tmp_path, stores={"lost": whole[:9000]}, options=(ADOPT,))
    [failed] = library.report["bases"]
    assert (failed["legacy_id"], failed["status"], failed["items"]) == ("lost", "failed", {})
    [said] = library.warnings("missing_embedding_model")
    assert said["message"].startswith("its vector file lost is truncated: ")
    assert said["message"].endswith("; --salvage migrates the rows of it that can be proven")
    assert "it cannot be read" in library.warnings("adopted")[0]["message"]


DAMAGES = {
    "truncated": lambda raw: raw[: len(raw) - 10_384],
    "a leaf page": lambda raw: raw[: 6 * 4096] + b"U" * 2000 + raw[6 * 4096 + 2000 :],
    "the root page": lambda raw: raw[:4096] + bytes(4096) + raw[8192:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_salvaged_as_if_the_state_named_its_base(damage: str, tmp_path: Path) -> None:
    key = "GSI9AeE0DFjMMy8kHBcdh"
    whole_source = shutil.copytree(REPO / "sample_v1" / "backup", tmp_path / "whole")
    file = whole_source / "Data" / "KnowledgeBase" / key
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    source, bases = without_bases(shutil.copytree(whole_source, tmp_path / "v1"))
    whole = migrate(whole_source, tmp_path / "with", "--salvage")
    lost = migrate(source, tmp_path / "without", ADOPT, "--salvage", *words_of(bases))

    assert_as_much(lost, whole, {key})
    assert lost.rows(key)["skipped"] == whole.rows(key)["skipped"]
    assert lost.rows(key)["carried"] >= 20
    # Of a note that lost rows, the text is not known.
    assert {one for one in told(lost, key) if one[0] != "note"} <= set(told(whole, key))
    assert lost.base_row(key)["status"] == "completed"
    [salvaged] = [one for one in lost.report["warnings"] if (one["code"], one["base"]) == ("salvaged", key)]
    [expected] = [one for one in whole.report["warnings"] if (one["code"], one["base"]) == ("salvaged", key)]
    assert salvaged["message"].split("; ")[1] == expected["message"].split("; ")[1]


def test_the_option_that_names_the_model_of_a_salvaged_file_works_as_it_is_given(tmp_path: Path) -> None:
    key = "GSI9AeE0DFjMMy8kHBcdh"
    source, _ = without_bases(shutil.copytree(REPO / "sample_v1" / "backup", tmp_path / "v1"))
    file = source / "Data" / "KnowledgeBase" / key
    file.write_bytes(DAMAGES["truncated"](file.read_bytes()))
    library = migrate(source, tmp_path / "library", ADOPT, "--salvage")
    [said] = [one["message"] for one in library.warnings("missing_embedding_model") if one["base"] == key]
    command = re.search(r"migrate them with (.*?);", said)
    assert command is not None
    words = [word.replace("PROVIDER::MODEL", MODEL_ID) for word in command_words(command[1])]
    assert words == [ADOPT, "--salvage", "--map-model", f"{key}={MODEL_ID}"]
    later = migrate(source, tmp_path / "library", *words)
    assert later.base_row(key)["status"] == "completed"
    assert len(later.bodies(key)) == later.rows(key)["carried"] >= 20


def test_the_option_for_intact_files_of_a_truncated_archive_works_as_it_is_given(tmp_path: Path) -> None:
    """Without ``--salvage``, the archive itself would be refused."""
    key = "E5CiaimJp06icDac5j8qM"
    archive = tmp_path / "backup.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.write(REPO / "sample_v1" / "backup" / "Data" / "KnowledgeBase" / key, f"Data/KnowledgeBase/{key}")
        end = made.fp.tell()  # type: ignore[union-attr]
    archive.write_bytes(archive.read_bytes()[:end])
    library = migrate(archive, tmp_path / "library", ADOPT, "--salvage")
    [said] = [one["message"] for one in library.warnings("missing_embedding_model")]
    command = re.search(r"migrate them with (.*?);", said)
    assert command is not None
    words = [word.replace("PROVIDER::MODEL", MODEL_ID) for word in command_words(command[1])]
    assert words == [ADOPT, "--salvage", "--map-model", f"{key}={MODEL_ID}"]
    assert len(migrate(archive, tmp_path / "library", *words).bodies(key)) == 22


def test_a_file_of_which_nothing_is_left_still_fails_by_name(tmp_path: Path) -> None:
    whole = write_store(tmp_path / "whole", rows_of("one")).read_bytes()
    # The header and the schema are whole, and the one page of rows is gone.
    damaged = whole[:4096] + bytes(len(whole) - 4096)
    library = carried(tmp_path, stores={"lost": damaged}, options=(*of("lost"), "--salvage"))
    [failed] = library.report["bases"]
    assert (failed["legacy_id"], failed["status"], failed["error"]) == ("lost", "failed", "missing_vector_store")
    assert failed["items"] == {}


def test_two_files_are_two_bases(tmp_path: Path) -> None:
    stores = {"one": rows_of("same"), "two": rows_of("same")}
    library = carried(tmp_path, stores=stores, options=(*of("one"), "--map-model", f"two={MODEL_ID}"))
    assert [(one["legacy_id"], one["rows"]["carried"]) for one in library.report["bases"]] == [("one", 1), ("two", 1)]
    assert library.units("one")[0].item != library.units("two")[0].item
    chosen = migrate(tmp_path / "v1", tmp_path / "chosen", *of("one"), "--base", "one")
    assert [one["legacy_id"] for one in chosen.report["bases"]] == ["one"]


def test_ids_follow_from_the_file_and_its_rows(tmp_path: Path) -> None:
    rows = [*path_rows("/srv/a/x.md", "/srv/a/y.md"), *rows_of("one")]
    first = adopted(tmp_path / "1", rows)
    second = migrate(pack(tmp_path / "1" / "v1", tmp_path / "backup.zip"), tmp_path / "2", *of("lost"))
    assert first.base_id("lost") == second.base_id("lost") == identity.base_id("lost")
    assert first.report["ids"] == second.report["ids"]
    assert first.units("lost") == second.units("lost")


# --- models ----------------------------------------------------------------------------------------------------------


def test_without_a_model_a_base_fails_and_says_how_to_carry_it(tmp_path: Path) -> None:
    library = carried(tmp_path, stores={"lost": rows_of("one")}, options=(ADOPT,))
    assert library.status == 1
    assert library.skipped_rows("lost") == {"missing_embedding_model": 1}
    assert library.base_row("lost")["dimensions"] == 4
    [said] = library.warnings("missing_embedding_model")
    assert said["message"].startswith(
        "nothing says which model made its vectors of 4 dimensions; migrate them with --adopt-orphans --map-model "
        "lost=PROVIDER::MODEL"
    )
    # The same target: the base is carried once its model is told, and stays without a word.
    later = migrate(tmp_path / "v1", tmp_path / "library", *of("lost"))
    assert later.bodies("lost") == ["one"]
    assert migrate(tmp_path / "v1", tmp_path / "library", *of("lost")).base("lost")["outcome"] == "unchanged"
    kept = migrate(tmp_path / "v1", tmp_path / "library", ADOPT)
    assert kept.codes()["completed_base_kept"] == 1
    assert kept.bodies("lost") == ["one"]


@pytest.mark.parametrize(
    ("bases", "is_said"),
    [
        ([base("kb")], True),
        ([base("kb", dimensions=8)], False),
        ([base("kb"), base("kc", model={**MODEL, "id": "embed-4"})], False),
        ([base("kb", model=None)], False),
    ],
)
def test_a_likely_model_is_said_and_not_taken(bases: list[Any], is_said: bool, tmp_path: Path) -> None:
    source = Source(bases, {"lost": rows_of("one")}).write(tmp_path / "v1")
    library = migrate(source, tmp_path / "library", ADOPT)
    said = next(one["message"] for one in library.warnings("missing_embedding_model") if one["base"] == "lost")
    likely = f"if it was {MODEL_ID}, as in the other bases, migrate them with {ADOPT} --map-model lost={MODEL_ID}"
    assert (likely in said) is is_said
    assert library.base("lost")["status"] == "failed"


def test_words_on_models(tmp_path: Path) -> None:
    source = Source([], {"lost": rows_of("one")}).write(tmp_path / "v1")
    by_path = migrate(source, tmp_path / "1", ADOPT, "--map-model", f"backup/KnowledgeBase/lost={MODEL_ID}")
    assert by_path.base_row("lost")["embedding_model_id"] == MODEL_ID
    unknown = migrate(source, tmp_path / "2", ADOPT, "--map-model", f"lots={MODEL_ID}")
    assert [one["message"] for one in unknown.warnings("model_option_unused")] == [
        "no base uses the model lots or has that id"
    ]
    for word in ("lost", "lost=embed-3", "=a::b"):
        with untouched(tmp_path):
            done = run("migrate", source, "--to", tmp_path / "3", ADOPT, "--map-model", word)
        assert done.status == 2
        assert "--map-model" in done.stderr


# --- later runs ------------------------------------------------------------------------------------------------------


def test_a_base_stays_whatever_later_runs_know(tmp_path: Path) -> None:
    library = adopted(tmp_path, path_rows("/srv/a/x.md", "/srv/a/y.md"))
    source, target = tmp_path / "v1", tmp_path / "library"
    migrate_again = run("migrate", source, "--to", target, "--json", "--now", NOW)
    assert migrate_again.document["bases"] == []
    assert [row["id"] for row in library.catalog("knowledge_base")] == [library.base_id("lost")]
    # A state that names it is better: the same base is carried anew, with its name.
    loaders = [f"LocalPathLoader_{md5(f'/srv/a/{name}.md')}" for name in "xy"]
    redux = json.loads((source / "redux.json").read_text("utf-8"))
    redux["knowledge"]["bases"] = [base("lost", folder("d", *loaders, path="/srv/a"), name="Boats")]
    (source / "redux.json").write_text(json.dumps(redux), "utf-8")
    found = migrate(source, target, ADOPT)
    assert found.base("lost")["outcome"] == "written"
    assert (found.base_row("lost")["name"], found.rows("lost")["carried"]) == ("Boats", 2)
    assert found.codes()["adopted"] == 0


# --- sources without a state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", ["", "KnowledgeBase", "Data/KnowledgeBase"])
@pytest.mark.parametrize("form", ["folder", "zip"])
def test_a_folder_of_vector_files_alone(inside: str, form: str, tmp_path: Path) -> None:
    made = tmp_path / "left"
    upload = "/x/Data/Files/up.pdf"
    write_store(made / inside / "lost", [*rows_of("one"), *path_rows(upload)])
    (made / "Files").mkdir()
    (made / "Files" / "up.pdf").write_bytes(b"a pdf")
    source = Path(shutil.make_archive(str(made), "zip", made)) if form == "zip" else made
    looked = run("inspect", source, "--json")
    assert looked.document["kind"] == "v1-vector-folder"
    assert [one["id"] for one in looked.document["bases"]] == ["lost"]
    with untouched(tmp_path):
        refused = run("migrate", source, "--to", tmp_path / "library")
    assert refused.status == 2
    assert "--adopt-orphans makes a base from the rows alone" in refused.stderr
    library = migrate(source, tmp_path / "library", *of("lost"))
    assert library.bodies("lost") == ["one", f"text of {upload}"]
    assert library.raw("lost")["up.pdf"] == b"a pdf"
    assert library.codes()["models_unknown"] == 0


def test_check_of_a_folder_alone_offers_it(tmp_path: Path) -> None:
    write_store(tmp_path / "left" / "lost", rows_of("one"))
    findings = run("check", tmp_path / "left", "--json").document["findings"]
    offered = [(one["name"], one["repair"]) for one in findings if one["repair"]]
    assert offered == [("v1.state", f"regraft migrate {tmp_path / 'left'} --to OUT --adopt-orphans")]


def test_one_vector_file_alone(tmp_path: Path) -> None:
    path = write_store(tmp_path / "left" / "lost", rows_of("one"))
    write_store(tmp_path / "left" / "another", rows_of("two"))
    with untouched(tmp_path):
        assert "--adopt-orphans" in run("migrate", path, "--to", tmp_path / "library").stderr
    library = migrate(path, tmp_path / "library", *of("lost"))
    assert [one["legacy_id"] for one in library.report["bases"]] == ["lost"]
    assert library.bodies("lost") == ["one"]
    # What lies beside it is no part of it.
    assert migrate(path, tmp_path / "left" / "library", *of("lost")).bodies("lost") == ["one"]


def test_part_of_a_profile_is_still_refused(tmp_path: Path) -> None:
    (tmp_path / "profile" / "Local Storage" / "leveldb").mkdir(parents=True)
    write_store(tmp_path / "profile" / "Data" / "KnowledgeBase" / "lost", rows_of("one"))
    done = run("migrate", tmp_path / "profile" / "Data" / "KnowledgeBase", "--to", tmp_path / "library", ADOPT)
    assert done.status == 2
    assert f"it is part of the profile {tmp_path / 'profile'}; give that instead" in done.stderr


def test_other_sources_have_no_such_files(tmp_path: Path) -> None:
    healthy(tmp_path / "kb").write()
    done = run("migrate", tmp_path / "kb", "--to", tmp_path / "library", ADOPT)
    assert done.status == 2
    assert "--adopt-orphans only applies to vector files of v1, and this is a knowledge base of rsclaw" in done.stderr


# --- reports ---------------------------------------------------------------------------------------------------------


def test_check_offers_what_then_works(tmp_path: Path) -> None:
    source = Source([base("kb")], {"kb": rows_of("one"), "lost": rows_of("two")}).write(tmp_path / "v1")
    found = {one["name"]: one["repair"] for one in run("check", source, "--json").document["findings"]}
    assert found["v1.unnamed-file"] == f"regraft migrate {source} --to OUT --adopt-orphans"
    after = run("check", source, *of("lost"), "--json").document["findings"]
    assert [one["message"] for one in after if one["name"] == "v1.unnamed-file"] == [
        "no base of the state names this vector file; reconstructed from 1 row: 1 url"
    ]
    refused = run("check", tmp_path / "library" / "catalog.sqlite", ADOPT)
    assert refused.status == 2


def test_the_same_by_a_program(tmp_path: Path) -> None:
    source = Source([], {"lost": rows_of("one")}).write(tmp_path / "v1")
    report = migrate_in_python(
        source, tmp_path / "library", adopt_orphans=True, map_model={"lost": MODEL_ID}, now_ms=NOW_MS
    )
    assert [(one.legacy_id, one.status) for one in report.bases] == [("lost", "completed")]
    page = (tmp_path / "library" / "report.html").read_text("utf-8")
    assert "adopted" in page


def test_a_dry_run_says_the_same(tmp_path: Path) -> None:
    source = Source([], {"lost": rows_of("one")}).write(tmp_path / "v1")
    with untouched(tmp_path):
        dry = run("migrate", source, "--to", tmp_path / "library", "--dry-run", "--json", *of("lost")).document
    library = migrate(source, tmp_path / "library", *of("lost"))
    assert dry["warnings"] == library.report["warnings"]
    assert [one["rows"] for one in dry["bases"]] == [one["rows"] for one in library.report["bases"]]


@pytest.mark.skipif(os.name == "nt", reason="Windows leaves dots at the end of a name out")
def test_a_file_is_not_changed_by_a_look(tmp_path: Path) -> None:
    """The vector file is read without a trace, also where its name is none that sanitising gives."""
    write_store(tmp_path / "v1" / "KnowledgeBase" / "odd.", rows_of("one"))
    library = migrate(tmp_path / "v1", tmp_path / "library", *of("odd."))
    assert library.bodies("odd.") == ["one"]
    with opened(library.index_path("odd.")) as db:
        assert db.execute("SELECT base_id FROM meta").fetchall() == [(identity.base_id("odd."),)]
    assert isinstance(FoundFolder(path="/x", loaders=("a", "b")), FoundFolder)


# --- a damaged state -------------------------------------------------------------------------------------------------


def damaged_source(tmp_path: Path, how: str) -> Path:
    """Write a source with two vector files and a state that cannot be read."""
    stores = {"one": path_rows("/docs/a.md"), "two": path_rows("/docs/b.md", "/docs/c.md")}
    source = Source(bases=[base("one"), base("two")], stores=stores).write(tmp_path / "v1")
    members = members_of(pack(source, tmp_path / "whole.zip"))
    (tmp_path / "whole.zip").unlink()
    shutil.rmtree(tmp_path / "v1")
    if how == "a folder, truncated":
        root = tmp_path / "damaged"
        members["data.json"] = members["data.json"][:-9]
        for name, content in members.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
        return root
    archive = tmp_path / "damaged.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    raw = bytearray(archive.read_bytes())
    raw[raw.index(members["data.json"]) + 7] ^= 1
    archive.write_bytes(raw)
    return archive


@pytest.mark.parametrize(
    ("how", "code", "reason"),
    [
        ("a folder, truncated", "BrokenJson", "data.json is not valid JSON: Input data was truncated"),
        ("an archive, one bit", "SourceUnreadable", "data.json is damaged: Bad CRC-32 for file 'data.json'"),
    ],
)
def test_a_damaged_state_is_done_without_if_the_user_says_so(tmp_path: Path, how: str, code: str, reason: str) -> None:
    source, library = damaged_source(tmp_path, how), tmp_path / "library"
    with untouched(source):
        for command in (("inspect", source), ("check", source), ("migrate", source, "--to", library, "--yes")):
            refused = run(*command, "--json")
            error = refused.document["error"]
            assert (refused.status, error["code"]) == (2, code)
            hint = f"{reason}; regraft migrate --adopt-orphans makes bases of its 2 vector files without it"
            assert hint in error["message"]
        assert not library.exists()
        models = ("--map-model", f"one={MODEL_ID}", "--map-model", f"two={MODEL_ID}")
        done = run("migrate", source, "--to", library, ADOPT, *models, "--yes", "--json")
        (warning,) = [one for one in done.document["warnings"] if one["code"] == "damaged_state"]
        assert "the application's state is not used, because it is damaged" in warning["message"]
        assert {one["legacy_id"]: one["rows"]["carried"] for one in done.document["bases"]} == {"one": 1, "two": 2}
    stored = set()
    for index in library.glob("KnowledgeBase/*/.cherry/index.sqlite"):
        with opened(index) as db:
            stored |= set(
                db.execute("SELECT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)")
            )
    texts = [f"text of /docs/{name}.md" for name in "abc"]
    assert stored == {(text, vector_of(text)) for text in texts}


def test_a_damaged_state_without_vector_files_stays_an_error(tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    (tmp_path / "backup" / "data.json").write_text('{"version": 5, "localStorage": {')
    (tmp_path / "backup" / "Data" / "KnowledgeBase").mkdir(parents=True)
    for more in ((), (ADOPT,)):
        refused = run("migrate", tmp_path / "backup", "--to", tmp_path / "library", "--yes", "--json", *more)
        assert (refused.status, refused.document["error"]["code"]) == (2, "BrokenJson")
        assert ADOPT not in refused.document["error"]["message"]
    assert [one.name for one in tmp_path.iterdir()] == ["backup"]


def test_rows_of_damaged_vector_files_of_an_archive_with_a_damaged_state_are_adopted(tmp_path: Path) -> None:
    rows = path_rows(*(f"/home/mei/{number}.md" for number in range(12)))
    source = Source(bases=[base("kb")], stores={"kb": rows}).write(tmp_path / "v1")
    members = members_of(pack(source, tmp_path / "whole.zip"))
    members["data.json"] = members["data.json"][:-40]
    path, library = tmp_path / "damaged.zip", tmp_path / "library"
    with zipfile.ZipFile(path, "w") as made:
        for name, content in members.items():
            made.writestr(name, content)
    data = bytearray(path.read_bytes())
    # The vector of one row is out of the range of the others.
    data[data.index(vector_of(rows[5].body)) + 15] ^= 0x40
    path.write_bytes(data)
    refused = run("migrate", path, "--to", library, *of("kb"), "--yes", "--json")
    told = [one["message"] for one in refused.document["warnings"]]
    assert any("cannot be read; --salvage migrates the rows of it that can be proven" in one for one in told)
    done = run("migrate", path, "--to", library, *of("kb"), "--salvage", "--yes", "--json")
    (found,) = done.document["bases"]
    assert (found["status"], found["rows"]["carried"]) == ("completed", 11)
    (index,) = library.glob("KnowledgeBase/*/.cherry/index.sqlite")
    with opened(index) as db:
        pairs = dict(db.execute("SELECT text, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)"))
    assert pairs == {row.body: vector_of(row.body) for row in rows if row is not rows[5]}
    assert bytes(data) == path.read_bytes()
