"""From any path that a user would point at to the kind of store that it is."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import codex_mem_store
import pytest
from harness import REPO, run

from regraft.disk.trees import FolderTree, ZipTree
from regraft.errors import (
    ArchiveUnsafe,
    BrokenJson,
    ParquetFileGiven,
    SourceNotFound,
    SourceUnreadable,
    SourceUnrecognised,
    StoresInFolder,
)
from regraft.formats.cherry_v1.layout import STATE_KEY, StatePaths
from regraft.formats.codex_mem import database as codex_mem_database
from regraft.formats.codex_mem import sidecar
from regraft.kinds import KIND_NAMES, SYSTEMS, V1_SOURCES, Kind
from regraft.stores.locate import Located, open_store

KNOWLEDGE = {"bases": []}
REDUX = {"knowledge": KNOWLEDGE, "llm": {"providers": []}}
DATA = {"version": 5, "localStorage": {STATE_KEY: json.dumps({"knowledge": json.dumps(KNOWLEDGE)})}, "indexedDB": {}}

DATABASES = {
    "index": "CREATE TABLE search_unit (unit_id); CREATE TABLE meta (id)",
    "preview": "CREATE TABLE libsql_vectorstores_embedding (id, embeddings)",
    "vectors": "CREATE TABLE vectors (id, vector)",
    "v1 vectors": "CREATE TABLE vectors (id, pageContent, uniqueLoaderId, source, vector)",
    "catalog": "CREATE TABLE knowledge_base (id); CREATE TABLE knowledge_item (id)",
    "other": "CREATE TABLE something (id)",
}


def put(folder: Path, name: str, content: Any = b"") -> Path:
    path = folder / name
    if name.endswith("/"):
        path.mkdir(parents=True, exist_ok=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def database(folder: Path, name: str, tables: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.executescript(DATABASES[tables])
    return path


def zipped(folder: Path, inside: str = "") -> Path:
    """Pack a folder's content, or the folder itself below the folder ``inside``."""
    path = folder.with_name(f"{folder.name}.zip")
    with zipfile.ZipFile(path, "w") as target:
        for file in sorted(folder.rglob("*")):
            target.write(file, inside + file.relative_to(folder).as_posix())
    return path


def find(path: Path, kind: Kind | None = None) -> Located:
    with open_store(path, kind) as found:
        assert found.path == path or found.path == path.parent
        return found


def unrecognised(path: Path, kind: Kind | None = None) -> str:
    with pytest.raises(SourceUnrecognised) as caught, open_store(path, kind):
        pass
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.startswith(f"{path}: not a knowledge base that regraft knows (")
    assert message.endswith(
        "); give a v1 backup (zip or folder), a profile folder, an export folder, a knowledge JSON file, a library "
        "written by regraft, a database of codex-mem, a data folder of AngelMemory, a folder of Chroma, or "
        "a knowledge base of rsclaw."
    )
    return message.partition("regraft knows (")[2].rpartition("); give")[0]


# --- one of every kind ---------------------------------------------------------------------------------------------


def v1_backup(folder: Path) -> None:
    put(folder, "data.json", DATA)
    put(folder, "Data/KnowledgeBase/base")
    put(folder, "Data/Files/f.md")


def v1_backup_6(folder: Path) -> None:
    put(folder, "metadata.json", {"version": 6, "appName": "Cherry Studio"})
    for name in ("IndexedDB/", "Local Storage/leveldb/", "Data/KnowledgeBase/", "Data/Files/"):
        put(folder, name)


def v1_profile(folder: Path) -> None:
    for name in ("IndexedDB/", "Local Storage/leveldb/", "Data/KnowledgeBase/", "Data/Files/"):
        put(folder, name)


def v1_export(folder: Path) -> None:
    put(folder, "redux.json", REDUX)
    for name in ("dexie/files.json", "dexie/knowledge_notes.json"):
        put(folder, name, [])
    for name in ("KnowledgeBase/", "Files/"):
        put(folder, name)


def v1_knowledge(folder: Path) -> None:
    put(folder, "my knowledge.json", KNOWLEDGE)
    put(folder, "KnowledgeBase/base")


def v1_vector_folder(folder: Path) -> None:
    database(folder, "KnowledgeBase/base", "v1 vectors")
    put(folder, "Files/")


def v2_backup(folder: Path) -> None:
    put(folder, "metadata.json", {"version": 7})
    database(folder, "Data/cherrystudio.sqlite", "catalog")


def v2_profile(folder: Path) -> None:
    database(folder, "cherrystudio.sqlite", "catalog")
    put(folder, "Data/KnowledgeBase/")


def library(folder: Path) -> None:
    database(folder, "catalog.sqlite", "catalog")
    put(folder, ".regraft/")
    database(folder, "KnowledgeBase/b/.cherry/index.sqlite", "index")


def base(folder: Path) -> None:
    database(folder, ".cherry/index.sqlite", "index")


def preview_library(folder: Path) -> None:
    database(folder, "KnowledgeBase/b/.cherry/index.sqlite", "preview")


FOLDERS: dict[Kind, Callable[[Path], None]] = {
    Kind.PREVIEW_LIBRARY: preview_library,
    Kind.V1_BACKUP: v1_backup,
    Kind.V1_BACKUP_6: v1_backup_6,
    Kind.V1_PROFILE: v1_profile,
    Kind.V1_EXPORT: v1_export,
    Kind.V1_KNOWLEDGE: v1_knowledge,
    Kind.V1_VECTOR_FOLDER: v1_vector_folder,
    Kind.V2_BACKUP: v2_backup,
    Kind.V2_PROFILE: v2_profile,
    Kind.LIBRARY: library,
    Kind.BASE: base,
}
FILES = {"index": Kind.INDEX, "preview": Kind.PREVIEW, "vectors": Kind.V1_VECTORS}


def test_every_kind_is_tried_here_and_has_a_name() -> None:
    assert {*FOLDERS, *FILES.values(), *SYSTEMS, Kind.PACK} == set(Kind) == set(KIND_NAMES)
    assert set(V1_SOURCES) <= set(Kind)


@pytest.mark.parametrize(("kind", "build"), FOLDERS.items(), ids=list(FOLDERS))
@pytest.mark.parametrize("form", ["folder", "zip", "zip of its folder", "zip of two folders"])
def test_folders_and_their_archives(tmp_path: Path, kind: Kind, build: Callable[[Path], None], form: str) -> None:
    folder = tmp_path / "source"
    build(folder)
    inside = {"folder": None, "zip": "", "zip of its folder": "My backup/", "zip of two folders": "a/b/"}[form]
    path = folder if inside is None else zipped(folder, inside)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    with open_store(path) as found:
        assert (found.kind, found.path) == (kind, path)
        assert isinstance(found.tree, FolderTree if form == "folder" else ZipTree)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before
    # The user's word, where it is right, changes nothing.
    assert find(path, kind).kind is kind


@pytest.mark.parametrize("inside", ["", "My pack/"])
def test_a_pack_is_a_library_once_it_is_unpacked(tmp_path: Path, inside: str) -> None:
    folder = tmp_path / "source"
    library(folder)
    put(folder, "pack.json", {"pack": 1})
    assert find(folder).kind is Kind.LIBRARY
    assert find(zipped(folder, inside)).kind is Kind.PACK


@pytest.mark.parametrize("kind", [*V1_SOURCES, Kind.V1_BACKUP_6])
def test_an_archive_unpacked_into_a_folder_of_its_own(tmp_path: Path, kind: Kind) -> None:
    FOLDERS[kind](tmp_path / "outer" / "My backup")
    found = find(tmp_path / "outer")
    assert found.kind is kind
    for place in (found.places.backup, found.places.redux, found.places.knowledge):
        assert place is None or found.tree.kind(place) == "file"


@pytest.mark.parametrize(("tables", "kind"), FILES.items())
def test_single_databases(tmp_path: Path, tables: str, kind: Kind) -> None:
    path = database(tmp_path, "any name", tables)
    before = (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir()))
    for word in (None, kind):
        found = find(path, word)
        assert (found.kind, found.path) == (kind, path)
        assert found.tree.path == tmp_path
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


@pytest.mark.parametrize(
    ("name", "kind"),
    [("cherrystudio.sqlite", Kind.V2_PROFILE), ("catalog.sqlite", Kind.LIBRARY)],
)
def test_a_catalog_stands_for_its_folder(tmp_path: Path, name: str, kind: Kind) -> None:
    path = database(tmp_path / "home", name, "catalog")
    found = find(path)
    assert (found.kind, found.path, found.tree.path) == (kind, path.parent, path.parent)


def test_a_catalog_of_another_name_stands_for_itself(tmp_path: Path) -> None:
    path = database(tmp_path / "home", "renamed.db", "catalog")
    found = find(path)
    assert (found.kind, found.path, found.tree.path) == (Kind.LIBRARY, path, path.parent)
    assert (found.stores.catalog, found.stores.is_copy) == ("renamed.db", True)


@pytest.mark.parametrize(
    ("name", "content", "kind", "place"),
    [
        ("data.json", DATA, Kind.V1_BACKUP, "backup"),
        ("anything.json", DATA, Kind.V1_BACKUP, "backup"),
        ("redux.json", REDUX, Kind.V1_EXPORT, "redux"),
        ("state", REDUX, Kind.V1_EXPORT, "redux"),
        ("knowledge.json", KNOWLEDGE, Kind.V1_KNOWLEDGE, "knowledge"),
        ("k.txt", b"\xef\xbb\xbf \r\n\t" + json.dumps(KNOWLEDGE).encode(), Kind.V1_KNOWLEDGE, "knowledge"),
        ("k.json", b'{"bases": [{"name": "torn \\ud83d"}]}', Kind.V1_KNOWLEDGE, "knowledge"),
    ],
)
def test_single_json_files(tmp_path: Path, name: str, content: Any, kind: Kind, place: str) -> None:
    path = put(tmp_path, name, content)
    for word in (None, kind):
        found = find(path, word)
        assert (found.kind, found.path, found.tree.path) == (kind, path, tmp_path)
        states = {state: getattr(found.places, state) for state in ("backup", "redux", "knowledge")}
        assert states == {**dict.fromkeys(states), place: name}


# --- where a v1 source keeps its parts -----------------------------------------------------------------------------


def test_places_of_a_backup(tmp_path: Path) -> None:
    v1_backup(tmp_path / "source")
    expected = StatePaths(backup="data.json", is_backup=True, vectors="Data/KnowledgeBase", uploads="Data/Files")
    assert find(tmp_path / "source").places == expected
    assert find(tmp_path / "source" / "data.json").places == expected
    below = StatePaths(backup="in/data.json", is_backup=True, vectors="in/Data/KnowledgeBase", uploads="in/Data/Files")
    assert find(zipped(tmp_path / "source", "in/")).places == below


def test_a_slim_backup_has_neither_vectors_nor_uploads(tmp_path: Path) -> None:
    put(tmp_path, "data.json", DATA)
    put(tmp_path, "Data/")
    assert find(tmp_path).places == StatePaths(backup="data.json", is_backup=True)


@pytest.mark.parametrize(
    "redux",
    ["redux.json", "redux_state.json", "redux_export/redux_state.json", "redux_export/redux.json", "redux/redux.json"],
)
@pytest.mark.parametrize("tables", ["dexie/", "dexie_export/", "", "indexedDB/"])
def test_places_of_an_export(tmp_path: Path, redux: str, tables: str) -> None:
    put(tmp_path, redux, REDUX)
    put(tmp_path, f"{tables}files.json", [])
    put(tmp_path, f"{tables}knowledge_notes.json", [])
    put(tmp_path, "Data/KnowledgeBase/base")
    put(tmp_path, "Files/f.md")
    found = find(tmp_path)
    assert found.kind is Kind.V1_EXPORT
    assert found.places == StatePaths(
        redux=redux,
        tables={"files": f"{tables}files.json", "knowledge_notes": f"{tables}knowledge_notes.json"},
        vectors="Data/KnowledgeBase",
        uploads="Files",
    )


def put_slices(folder: Path) -> None:
    for name, content in REDUX.items():
        put(folder, f"redux_export/{name}.json", content)
    put(folder, "dexie_export/files.json", [])
    put(folder, "dexie_export/message_blocks.json", [])


def test_places_of_an_export_of_2_0_in_a_profile(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    put_slices(profile / "migration_temp")
    put(profile, "Data/KnowledgeBase/base")
    put(profile, "Data/Files/")
    expected = StatePaths(
        slices="migration_temp/redux_export",
        tables={"files": "migration_temp/dexie_export/files.json"},
        vectors="Data/KnowledgeBase",
        uploads="Data/Files",
    )
    for path in (profile / "migration_temp", profile / "migration_temp" / "redux_export", profile):
        for kind in (None, Kind.V1_EXPORT):
            found = find(path, kind)
            assert (found.kind, found.path, found.tree.path, found.places) == (
                Kind.V1_EXPORT,
                path,
                profile,
                expected,
            )
    assert find(zipped(profile)).places == expected
    # What the profile itself keeps comes first; the user can say otherwise.
    put(profile, "Local Storage/leveldb/CURRENT")
    assert find(profile).kind is Kind.V1_PROFILE
    assert find(profile, Kind.V1_EXPORT).places == expected


@pytest.mark.parametrize(("vectors", "uploads"), [("KnowledgeBase", "Files"), ("Data/KnowledgeBase", "Data/Files")])
def test_places_of_an_export_of_2_0_with_its_data_beside_it(tmp_path: Path, vectors: str, uploads: str) -> None:
    export = tmp_path / "copied"
    put_slices(export)
    put(export, f"{vectors}/base")
    put(export, f"{uploads}/f.md")
    for path in (export, export / "redux_export"):
        found = find(path)
        assert (found.kind, found.tree.path) == (Kind.V1_EXPORT, export)
        assert (found.places.slices, found.places.vectors, found.places.uploads) == ("redux_export", vectors, uploads)
    inside = find(zipped(export, "copied/")).places
    assert (inside.slices, inside.vectors) == ("copied/redux_export", f"copied/{vectors}")


def test_a_migration_temp_has_its_own_data_where_the_profile_has_none(tmp_path: Path) -> None:
    put_slices(tmp_path / "migration_temp")
    put(tmp_path, "migration_temp/KnowledgeBase/base")
    assert find(tmp_path / "migration_temp").places.vectors == "migration_temp/KnowledgeBase"


def test_tables_alone_are_no_export(tmp_path: Path) -> None:
    put(tmp_path, "migration_temp/dexie_export/files.json", [])
    with pytest.raises(SourceUnrecognised):
        find(tmp_path / "migration_temp")


def test_an_export_without_tables_and_uploads(tmp_path: Path) -> None:
    put(tmp_path, "redux.json", REDUX)
    put(tmp_path, "KnowledgeBase/base")
    assert find(tmp_path).places == StatePaths(redux="redux.json", vectors="KnowledgeBase")


def test_the_first_table_folder_wins(tmp_path: Path) -> None:
    put(tmp_path, "redux.json", REDUX)
    for name in ("dexie/files.json", "files.json", "knowledge_notes.json"):
        put(tmp_path, name, [])
    assert find(tmp_path).places.tables == {"files": "dexie/files.json", "knowledge_notes": "knowledge_notes.json"}


@pytest.mark.parametrize(
    ("names", "knowledge", "vectors"),
    [
        (["state.json", "KnowledgeBase/base"], "state.json", "KnowledgeBase"),
        (["state.json", "KnowledgeBase/"], "state.json", "KnowledgeBase"),
        # In the folder of the vector files themselves only a file called after its content is opened.
        (["my-Knowledge.json", "base", "base2"], "my-Knowledge.json", ""),
        (["knowledge.json"], "knowledge.json", ""),
    ],
)
def test_places_of_a_knowledge_slice(tmp_path: Path, names: list[str], knowledge: str, vectors: str) -> None:
    for name in names:
        put(tmp_path, name, KNOWLEDGE if name.endswith(".json") else b"")
    put(tmp_path, "knowledge_pending_delete.json", ["b"])
    for path in (tmp_path, tmp_path / knowledge):
        found = find(path)
        assert found.kind is Kind.V1_KNOWLEDGE
        assert found.places == StatePaths(knowledge=knowledge, vectors=vectors)


def test_a_redux_state_of_any_name_beside_the_vectors(tmp_path: Path) -> None:
    put(tmp_path, "exported state.json", REDUX)
    put(tmp_path, "KnowledgeBase/base")
    put(tmp_path, "a.json", {"no": "state"})
    put(tmp_path, "b.json", b"{broken")
    found = find(tmp_path)
    assert (found.kind, found.places.redux) == (Kind.V1_EXPORT, "exported state.json")


def test_json_files_of_any_name_without_vectors_are_not_searched(tmp_path: Path) -> None:
    put(tmp_path, "state.json", KNOWLEDGE)
    assert unrecognised(tmp_path) == "a folder that contains state.json"


# --- versions and precedence ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", ["", "unpacked/"])
def test_a_folder_with_stores_in_it_names_them(tmp_path: Path, wrapper: str) -> None:
    put(tmp_path, f"{wrapper}a library/KnowledgeBase/b1/raw/")
    put(tmp_path, f"{wrapper}a library/.regraft/")
    v2_profile(tmp_path / wrapper / "profile")
    put(tmp_path, f"{wrapper}photos/1.png", b"")
    with pytest.raises(StoresInFolder) as caught, open_store(tmp_path):
        pass
    place = tmp_path / wrapper
    assert str(caught.value) == (
        f"{place}: this folder is not a knowledge base, but contains some; give the path of one: "
        f"{place / 'a library'}, {place / 'profile'}."
    )
    assert (caught.value.code, caught.value.exit_status) == ("StoresInFolder", 2)


def test_a_parquet_file_is_named_with_the_command_that_reads_it(tmp_path: Path) -> None:
    put(tmp_path, "units.parquet", b"PAR1 and more")
    with pytest.raises(ParquetFileGiven) as caught, open_store(tmp_path / "units.parquet"):
        pass
    file = tmp_path / "units.parquet"
    assert str(caught.value) == (
        f"{file}: this is a Parquet file; to make a library of it, run: regraft import {file} --to library."
    )
    assert (caught.value.code, caught.value.exit_status) == ("ParquetFileGiven", 2)


def test_a_store_below_folders_of_a_single_folder_is_named(tmp_path: Path) -> None:
    v2_profile(tmp_path / "copied" / "disk" / "profile")
    with pytest.raises(StoresInFolder) as caught, open_store(tmp_path):
        pass
    disk = tmp_path / "copied" / "disk"
    assert str(caught.value) == (
        f"{disk}: this folder is not a knowledge base, but contains some; give the path of one: {disk / 'profile'}."
    )


def test_a_store_under_construction_is_not_named(tmp_path: Path) -> None:
    v2_profile(tmp_path / ".regraft" / "work" / "new")
    with pytest.raises(SourceUnrecognised) as caught, open_store(tmp_path):
        pass
    assert type(caught.value) is SourceUnrecognised
    assert "work" not in str(caught.value)


@pytest.mark.parametrize(("count", "ending"), [(4, "4."), (5, "4, ….")])
def test_more_stores_than_an_error_names_are_hinted_at(tmp_path: Path, count: int, ending: str) -> None:
    for number in range(1, count + 1):
        v2_profile(tmp_path / str(number))
    with pytest.raises(StoresInFolder) as caught, open_store(tmp_path):
        pass
    named = ", ".join(str(tmp_path / str(number)) for number in range(1, 4))
    assert str(caught.value).endswith(f": {named}, {tmp_path / ending}")


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_stores_outside_are_not_named_for_a_link_to_them(tmp_path: Path) -> None:
    v2_profile(tmp_path / "elsewhere" / "profile")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "shortcut").symlink_to(tmp_path / "elsewhere" / "profile")
    assert unrecognised(tmp_path / "given").startswith("shortcut is a link to ")


@pytest.mark.parametrize(("version", "kind"), [(6, Kind.V1_BACKUP_6), (7, Kind.V2_BACKUP)])
def test_a_backup_states_its_version(tmp_path: Path, version: int, kind: Kind) -> None:
    put(tmp_path, "metadata.json", {"version": version})
    put(tmp_path, "Data/")
    found = find(tmp_path)
    assert (found.kind, found.version) == (kind, version)


@pytest.mark.parametrize("version", [8, 99, -1])
def test_a_version_that_nobody_knows_is_not_guessed(tmp_path: Path, version: int) -> None:
    put(tmp_path, "metadata.json", {"version": version})
    put(tmp_path, "Data/")
    unrecognised(tmp_path)


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"{}", b'{"version": "6"}', b'{"version": null}', b"\xff"])
def test_metadata_that_states_no_version_says_nothing(tmp_path: Path, metadata: bytes) -> None:
    put(tmp_path, "metadata.json", metadata)
    assert unrecognised(tmp_path) == "a folder that contains metadata.json"
    v1_profile(tmp_path)
    assert find(tmp_path).kind is Kind.V1_PROFILE


def test_what_the_application_left_beside_a_profile_does_not_hide_it(tmp_path: Path) -> None:
    v2_profile(tmp_path)
    v1_profile(tmp_path)
    put(tmp_path, "redux.json", REDUX)
    assert find(tmp_path).kind is Kind.V2_PROFILE
    assert find(tmp_path, Kind.V1_EXPORT).places.redux == "redux.json"


@pytest.mark.parametrize("inside", ["KnowledgeBase/", ""])
def test_a_folder_of_bases_is_a_library(tmp_path: Path, inside: str) -> None:
    database(tmp_path, f"{inside}b1/.cherry/index.sqlite", "index")
    put(tmp_path, f"{inside}b2/raw/")
    assert find(tmp_path).kind is Kind.LIBRARY


def test_the_ledger_alone_tells_a_library(tmp_path: Path) -> None:
    put(tmp_path, ".regraft/")
    put(tmp_path, "report.html")
    assert unrecognised(tmp_path) == "a folder that contains .regraft, report.html"
    put(tmp_path, "KnowledgeBase/")
    assert find(tmp_path).kind is Kind.LIBRARY


def test_an_archive_stays_open_only_while_it_is_used(tmp_path: Path) -> None:
    v1_backup(tmp_path / "source")
    with open_store(zipped(tmp_path / "source")) as found:
        with found.tree.open("data.json") as file:
            assert file.read(1) == b"{"
        tree = found.tree
    with pytest.raises((ValueError, SourceUnreadable), match="closed"):
        tree.open("data.json")


# --- the user's word -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Kind.V1_BACKUP, Kind.V1_EXPORT, Kind.LIBRARY, Kind.V1_PROFILE, Kind.BASE])
def test_a_kind_that_a_folder_cannot_be_is_refused(tmp_path: Path, kind: Kind) -> None:
    put(tmp_path, "notes.txt", b"x")
    assert unrecognised(tmp_path, kind) == f"it does not contain {KIND_NAMES[kind]}"
    assert unrecognised(zipped(tmp_path), kind) == f"it does not contain {KIND_NAMES[kind]}"


def test_a_library_without_a_catalog_can_be_forced(tmp_path: Path) -> None:
    put(tmp_path, "KnowledgeBase/")
    unrecognised(tmp_path)
    assert find(tmp_path, Kind.LIBRARY).kind is Kind.LIBRARY


def test_a_backup_inside_a_profile_can_be_forced(tmp_path: Path) -> None:
    v2_profile(tmp_path)
    put(tmp_path, "data.json", DATA)
    found = find(tmp_path, Kind.V1_BACKUP)
    assert (found.kind, found.places.backup) == (Kind.V1_BACKUP, "data.json")


def test_a_kind_that_a_json_file_is_not_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, "redux.json", REDUX)
    said = unrecognised(path, Kind.V1_BACKUP)
    assert said == f"{KIND_NAMES[Kind.V1_EXPORT]}, not {KIND_NAMES[Kind.V1_BACKUP]}"


@pytest.mark.parametrize("tables", ["index", "vectors", "preview", "catalog"])
@pytest.mark.parametrize("kind", [Kind.V1_BACKUP, Kind.V1_EXPORT, Kind.V1_PROFILE, Kind.BASE])
def test_a_kind_that_a_database_cannot_be_is_refused(tmp_path: Path, tables: str, kind: Kind) -> None:
    unrecognised(database(tmp_path, "file.sqlite", tables), kind)


def test_a_catalog_is_no_index_whatever_the_user_says(tmp_path: Path) -> None:
    unrecognised(database(tmp_path, "file.sqlite", "catalog"), Kind.INDEX)


@pytest.mark.parametrize("kind", FILES.values())
def test_a_damaged_database_is_located_on_the_users_word(tmp_path: Path, kind: Kind) -> None:
    path = put(tmp_path, "file.sqlite", b"SQLite format 3\0" + bytes(4000))
    with pytest.raises(SourceUnreadable) as caught, open_store(path):
        pass
    assert caught.value.exit_status == 2
    assert str(caught.value).startswith(f"{path}: cannot be read (")
    assert find(path, kind).kind is kind


# --- what is nothing -----------------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    path = tmp_path / "missing.zip"
    for kind in (None, Kind.V1_BACKUP):
        with pytest.raises(SourceNotFound) as caught, open_store(path, kind):
            pass
        assert caught.value.exit_status == 2
        assert str(caught.value) == f"{path}: no such file or folder; check the spelling."


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"hello", "a text file"),
        ("你好".encode(), "a text file"),
        (b"\x7fELF\0\0", "a file of another kind"),
        (b"%PDF-1.7\0", "a file of another kind"),
        (b"PK but not an archive", "a text file"),
        (b"{}", "a JSON file without a knowledge state"),
        (b'{"a": {"bases": []}}', "a JSON file without a knowledge state"),
        (b"[]", "a JSON file without a knowledge state"),
        (b"[1, 2]", "a JSON file without a knowledge state"),
        (b'{"regraft": {"command": "migrate"}, "bases": []}', "a JSON file without a knowledge state"),
        (b'[{"id": "f1", "ext": ".md"}]', "a JSON file without a knowledge state"),
    ],
)
def test_files_of_other_kinds(tmp_path: Path, content: bytes, found: str) -> None:
    assert unrecognised(put(tmp_path, "file", content)) == found


def test_a_database_with_other_tables(tmp_path: Path) -> None:
    path = database(tmp_path, "file.sqlite", "other")
    assert unrecognised(path) == "a SQLite file with none of the known tables"


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], "nothing"),
        (["b", "a/"], "a, b"),
        (["1", "2", "3", "4", "5"], "1, 2, 3, 4"),
        (["Data/base", "readme"], "Data, readme"),
    ],
)
def test_folders_and_archives_of_other_kinds(tmp_path: Path, names: list[str], found: str) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in names:
        put(folder, name)
    assert unrecognised(folder) == f"a folder that contains {found}"
    assert unrecognised(zipped(folder)) == f"an archive that contains {found}"


@pytest.mark.parametrize(
    ("content", "reason"), [(b'{"bases": [', "truncated"), (b"{bases}", "malformed"), (b"[1, 2", "truncated")]
)
def test_broken_json_files(tmp_path: Path, content: bytes, reason: str) -> None:
    path = put(tmp_path, "knowledge.json", content)
    with pytest.raises(BrokenJson) as caught, open_store(path):
        pass
    assert caught.value.exit_status == 2
    message = str(caught.value)
    assert message.startswith(f"{path}: knowledge.json is not valid JSON: ")
    assert reason in message
    assert message.endswith("; the source is incomplete or damaged, use another copy.")


def test_a_truncated_archive(tmp_path: Path) -> None:
    v1_backup(tmp_path / "source")
    path = zipped(tmp_path / "source")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(SourceUnreadable, match="damaged or incomplete zip archive") as caught, open_store(path):
        pass
    assert caught.value.exit_status == 2


def test_an_unsafe_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as target:
        target.writestr("data.json", json.dumps(DATA))
        target.writestr("../escape", b"")
    with pytest.raises(ArchiveUnsafe, match=r"\.\./escape leads out of the archive") as caught, open_store(path):
        pass
    assert caught.value.exit_status == 2


def test_the_folder_that_some_systems_add_to_an_archive_is_passed_over(tmp_path: Path) -> None:
    v1_backup(tmp_path / "source")
    path = zipped(tmp_path / "source", "My backup/")
    with zipfile.ZipFile(path, "a") as target:
        target.writestr("__MACOSX/My backup/._data.json", b"\0")
    assert find(path).kind is Kind.V1_BACKUP


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as POSIX systems have them")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceUnreadable, match="not a file"), open_store(tmp_path / "pipe"):
        pass


# --- stores of other systems ---------------------------------------------------------------------------------------


def test_a_database_of_codex_mem_is_told_by_its_tables(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "data")
    for place in (path, path.parent):
        with open_store(place) as found:
            assert (found.kind, found.path, found.tree.path) == (Kind.CODEX_MEM, path, path.parent)
    renamed = path.rename(tmp_path / "notes")
    assert find(renamed).kind is Kind.CODEX_MEM
    sidecar.create_sidecar(codex_mem_database.sidecar_path(renamed), "a-model", None, "2026-01-01T00:00:00Z")
    assert unrecognised(codex_mem_database.sidecar_path(renamed)) == f"the vectors of {renamed}; use that path instead"
    assert "none of the known tables" in unrecognised(database(tmp_path, "codex-mem.db", "other"))


@pytest.fixture
def no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder, as a service or a container has."""

    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    for name in ("XDG_CONFIG_HOME", "APPDATA", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_home")
def test_a_user_without_a_home_folder_can_migrate_and_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample = REPO / "sample_v1" / "cherry-studio.202503141200.zip"
    done = run("migrate", sample, "--to", "library", "--json", "--fail-on", "never")
    assert (done.status, done.document["bases"][0]["status"]) == (0, "completed")
    for words in (("check", "library"), ("inspect",), ("check",), ("repair", "library"), ("search", "library", "bell")):
        done = run(*words)
        assert done.status in (0, 1, 2), words
        assert "this is a bug" not in done.stderr
