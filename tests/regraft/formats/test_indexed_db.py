"""IndexedDB: the rows of the object stores that are asked for, wherever Chromium put them."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chromium_files import (
    BLOCKS,
    COMMITTED_SCOPE,
    DATABASE,
    FILES,
    IDB,
    NOTES,
    OPEN_SCOPE,
    array_key,
    binary_key,
    blob_entry,
    blob_key,
    database_key,
    date_key,
    file_entry,
    idb_folder,
    idb_order,
    in_blob,
    little,
    names,
    number_key,
    packed,
    prefix,
    row,
    row_key,
    scope_key,
    serialized,
    store_key,
    undo_delete,
    undo_key,
    undo_put,
    write_blob,
)
from harness import HERE, snapshot
from leveldb_files import BYTEWISE, Folder, TableSpec, batch, varint

from regraft.disk.trees import FolderTree, ZipTree
from regraft.formats.chromium import (
    ExternalObject,
    KeyPrefix,
    PrefixFilter,
    StorageDamaged,
    StorageResult,
    StoreRows,
    parse_external_objects,
    read_stores,
    row_sort_key,
    split_key,
)
from regraft.formats.chromium.leveldb import LevelDb, MalformedStorage

STORES = {FILES: "files", BLOCKS: "message_blocks", NOTES: "knowledge_notes"}
WANTED = ("files", "knowledge_notes")
REAL = HERE / "chromium_profile.zip"


def read(folder: Path, stores: tuple[str, ...] = WANTED) -> StorageResult[dict[str, StoreRows] | None]:
    return read_stores(FolderTree(folder.parent), folder.name, DATABASE, stores, folder.parent / "work")


def written(tmp_path: Path, entries: Mapping[bytes, bytes | None]) -> Path:
    return idb_folder(tmp_path / "file__0.indexeddb.leveldb", {**names(STORES), **entries}).write()


def rows(folder: Path, store: str = "files") -> list[Any]:
    found = read(folder).value
    assert found is not None
    assert found[store].problem is None
    return found[store].rows


# --- a real profile ------------------------------------------------------------------------------------------------

A_ROW = {
    "name": "a.txt",
    "origin_name": "ü𝒳.txt",
    "size": 3,
    "count": 1,
    "at": 1700000000000.0,
    "half": 0.5,
    "neg": -7,
    "big": 4294967296.0,
    "lone": "\ud83d",
    "yes": True,
    "no": False,
    "nil": None,
    "un": None,
    "list": [1, None, "x"],
    "set": [1],
    "map": [["k", 2]],
    "bytes": b"\1\2",
    "big2": -123,
    "re": "a.b",
    "n": 5.0,
    "s": "t",
    "b": True,
}


def test_a_real_profile_is_read(tmp_path):
    """Chromium 156 wrote it in two sessions: packed tables on two levels, a log, a packed value, a row deleted."""
    tree = ZipTree(REAL)
    found = read_stores(tree, "IndexedDB/file__0.indexeddb.leveldb", DATABASE, WANTED, tmp_path)
    nothing = read_stores(tree, "IndexedDB/file__0.indexeddb.leveldb", "Another", WANTED, tmp_path)
    tree.close()
    assert found.value is not None
    assert found.passed_over == 0
    assert found.value["files"] == StoreRows(
        [
            {"id": "a0", **A_ROW, "gen": 0},
            {"id": "a1", **A_ROW, "gen": 1},
            {"id": "blob", "it": None},
            {"id": "cycle", "in": {"out": None, "same": [1]}, "again": [1]},
            {"id": "err", "e": None},
            {"id": "sparse", "sp": [None] * 9 + ["last"]},
        ]
    )
    assert found.value["knowledge_notes"].rows == [
        {"id": "n1", "content": "note 1"},
        {"id": "n2", "content": "中文" * 20000},
    ]
    assert nothing == StorageResult(None, 0)


# --- databases and stores ------------------------------------------------------------------------------------------


def test_rows_come_in_the_order_of_their_keys_and_only_from_the_stores_that_are_asked_for(tmp_path):
    folder = written(
        tmp_path,
        {
            row_key(FILES, "b"): row({"id": "b"}),
            row_key(NOTES, "n"): row({"id": "n", "content": "中"}),
            row_key(BLOCKS, "m"): row({"id": "m"}),
            row_key(FILES, "a"): row({"id": "a"}),
            prefix(1, FILES, 2) + b"\x01\x00": b"\x01",
            prefix(1, FILES, 30) + b"\x01\x00": b"index",
        },
    )
    assert read(folder) == StorageResult(
        {
            "files": StoreRows([{"id": "a"}, {"id": "b"}]),
            "knowledge_notes": StoreRows([{"id": "n", "content": "中"}]),
        },
        0,
    )


def test_a_store_that_is_not_there_is_left_out_and_an_empty_one_is_empty(tmp_path):
    assert read(written(tmp_path, {}), ("files", "nothing")).value == {"files": StoreRows([])}


def test_a_folder_without_the_database_holds_none(tmp_path):
    folder = idb_folder(tmp_path / "a.leveldb", {**names(STORES, name="Other"), prefix(0) + b"\x01": b"\x05"})
    assert read(folder.write()) == StorageResult(None, 0)


def lose_log(folder: Path) -> None:
    (folder / "000003.log").unlink()


def empty_log(folder: Path) -> None:
    (folder / "000003.log").write_bytes(b"")


def zero_log(folder: Path) -> None:
    (folder / "000003.log").write_bytes(bytes(5000))


def garble_log(folder: Path) -> None:
    (folder / "000003.log").write_bytes(random.Random(1).randbytes(5000))


def empty_folder(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def lose_folder(folder: Path) -> None:
    empty_folder(folder)
    folder.rmdir()


@pytest.mark.parametrize("harm", [lose_log, empty_log, zero_log, garble_log, empty_folder, lose_folder])
def test_a_folder_that_lost_all_it_had_is_not_one_without_the_database(tmp_path, harm):
    folder = Folder(tmp_path / "a.leveldb", IDB, idb_order, logs={3: [batch(1, list(names(STORES).items()))]}).write()
    assert read(folder).passed_over == 0
    harm(folder)
    assert read(folder) == StorageResult(None, 1)


def test_a_blob_that_the_disk_fails_to_read_costs_its_row(tmp_path, monkeypatch):
    value = serialized({"id": "a"})
    folder = written(
        tmp_path,
        {
            row_key(FILES, "a"): varint(1) + in_blob(len(value)),
            blob_key(FILES, "a"): blob_entry(3, len(value)),
            row_key(FILES, "b"): row("b"),
        },
    )
    write_blob(folder, 3, value)
    assert rows(folder) == [{"id": "a"}, "b"]

    class BadFile(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    opened = FolderTree.open
    monkeypatch.setattr(FolderTree, "open", lambda self, name: BadFile() if ".blob/" in name else opened(self, name))
    found = read(folder).value
    assert found is not None
    assert found["files"] == StoreRows(["b"], passed_over=1)


def test_of_two_databases_of_one_name_the_later_counts(tmp_path):
    folder = written(
        tmp_path,
        {
            **names(STORES, name="CherryStudio2", database=900),
            database_key(origin="http_localhost_1@1"): little(700),
            store_key(FILES, 700): "files".encode("utf-16-be"),
            row_key(FILES, "a"): row("of the first"),
            row_key(FILES, "a", database=700): row("of the second"),
        },
    )
    assert rows(folder) == ["of the second"]


def test_a_store_that_was_deleted_and_made_again_is_the_new_one(tmp_path):
    folder = written(
        tmp_path,
        {
            row_key(FILES, "a"): row("old"),
            store_key(FILES): None,
            store_key(7): "files".encode("utf-16-be"),
            row_key(7, "a"): row("new"),
        },
    )
    assert rows(folder) == ["new"]


def test_a_deleted_database_is_gone(tmp_path):
    assert read(written(tmp_path, {database_key(): None})) == StorageResult(None, 0)


def test_rows_are_updated_and_deleted(tmp_path):
    name = tmp_path / "a.leveldb"
    entries = {**names(STORES), **{row_key(FILES, key): row(f"{key} old") for key in "abc"}}
    table = TableSpec(4, [(key, 5, value) for key, value in entries.items()], level=1, kind=1)
    logs = {9: [batch(50, [(row_key(FILES, "a"), row("a new", 2)), (row_key(FILES, "b"), None)])]}
    folder = Folder(name, IDB, idb_order, [table], logs).write()
    assert rows(folder) == ["a new", "c old"]


def test_tables_are_chosen_by_the_numbers_in_keys_not_by_their_bytes(tmp_path, monkeypatch):
    """Store 300 takes two bytes for its id, so that its keys sort elsewhere as bytes."""
    tables = [
        TableSpec(4, [(key, 1, value) for key, value in names(STORES).items()], level=1),
        TableSpec(5, [(row_key(FILES, f"f{n}"), 10 + n, row(n)) for n in range(9)], level=1),
        TableSpec(6, [(row_key(BLOCKS, f"m{n}"), 20 + n, row("m" * 500)) for n in range(50)], level=1),
        TableSpec(7, [(row_key(NOTES, f"n{n}"), 90 + n, row("n")) for n in range(9)], level=1),
        TableSpec(8, [(row_key(FILES, "x", database=2), 99, row("other"))], level=1),
    ]
    folder = Folder(tmp_path / "a.leveldb", IDB, idb_order, tables, {9: []}).write()
    seen: list[str] = []
    copy = LevelDb._copy
    monkeypatch.setattr(LevelDb, "_copy", lambda self, name: (seen.append(name), copy(self, name))[1])
    found = read(folder).value
    assert found == {"files": StoreRows(list(range(9))), "knowledge_notes": StoreRows(["n"] * 9)}
    assert {"000004.ldb", "000005.ldb", "000007.ldb"} == {name for name in seen if name.endswith("ldb")}


def test_damage_in_one_store_leaves_the_others(tmp_path):
    tables = [
        TableSpec(4, [(key, 1, value) for key, value in names(STORES).items()], level=1),
        TableSpec(5, [(row_key(FILES, "f"), 10, row("f"))], level=1),
        TableSpec(7, [(row_key(NOTES, "n"), 90, row("n"))], level=1),
    ]
    folder = Folder(tmp_path / "a.leveldb", IDB, idb_order, tables, {9: []}).write()
    data = bytearray((folder / "000005.ldb").read_bytes())
    data[3] ^= 1
    (folder / "000005.ldb").write_bytes(data)
    found = read(folder).value
    assert found is not None
    assert found["knowledge_notes"] == StoreRows(["n"])
    assert found["files"].rows == []
    assert found["files"].problem == "a.leveldb/000005.ldb: the block at byte 0 fails its checksum"


def test_damage_to_the_names_is_raised(tmp_path):
    tables = [TableSpec(4, [(key, 1, value) for key, value in names(STORES).items()], level=1)]
    folder = Folder(tmp_path / "a.leveldb", IDB, idb_order, tables, {9: []}).write()
    (folder / "000004.ldb").unlink()
    with pytest.raises(StorageDamaged, match=r"000004\.ldb: the file is missing"):
        read(folder)


def test_another_order_of_keys_is_refused(tmp_path):
    folder = Folder(tmp_path / "a.leveldb", BYTEWISE, logs={3: []}).write()
    with pytest.raises(StorageDamaged, match=f"not {IDB}"):
        read(folder)


# --- values --------------------------------------------------------------------------------------------------------


def test_a_row_that_cannot_be_decoded_is_passed_over_and_counted(tmp_path):
    folder = written(
        tmp_path,
        {
            row_key(FILES, "a"): row("a"),
            row_key(FILES, "b"): varint(1) + b"\xff\x15\xff\x0f\\#\x01",
            row_key(FILES, "c"): b"",
            row_key(FILES, "d"): varint(1) + serialized("text")[:-2],
            row_key(FILES, "e"): row("e"),
        },
    )
    found = read(folder).value
    assert found is not None
    assert found["files"] == StoreRows(["a", "e"], passed_over=3)


NOTE = {"id": "n", "content": "A long note. " * 20_000}


def test_a_packed_value_is_unpacked(tmp_path):
    assert rows(written(tmp_path, {row_key(FILES, "a"): varint(3) + packed(serialized(NOTE))})) == [NOTE]


@pytest.mark.parametrize("wrap", [bytes, packed])
@pytest.mark.parametrize("number", [1, 0xABC, 0x12345])
def test_a_value_in_a_blob_is_fetched(tmp_path, wrap, number):
    value = wrap(serialized(NOTE))
    folder = written(
        tmp_path,
        {
            row_key(FILES, "a"): varint(3) + in_blob(len(value)),
            blob_key(FILES, "a"): blob_entry(number, len(value)),
            row_key(FILES, "b"): row("b"),
        },
    )
    place = write_blob(folder, number, value)
    assert f"{place.parent.name}/{place.name}" == f"{number >> 8 & 0xFF:02x}/{number:x}"
    before = snapshot(tmp_path)
    assert rows(folder) == [NOTE, "b"]
    (tmp_path / "work").rmdir()
    assert {name: state[1:] for name, state in before.items()} == {
        name: state[1:] for name, state in snapshot(tmp_path).items()
    }


def test_the_blob_of_a_value_is_found_behind_those_of_its_files(tmp_path):
    value = serialized("the value")
    folder = written(
        tmp_path,
        {
            row_key(FILES, "a"): varint(3) + in_blob(len(value), 2),
            blob_key(FILES, "a"): file_entry(1, 9) + b"\x02\x03abc" + blob_entry(5, len(value)),
        },
    )
    write_blob(folder, 5, value)
    assert rows(folder) == ["the value"]


@pytest.mark.parametrize(
    ("value", "entry", "blob"),
    [
        (in_blob(9), blob_entry(1, 9), None),
        (in_blob(9), blob_entry(1, 9), b"too short"[:5]),
        (in_blob(5), None, b"12345"),
        (in_blob(5, 3), blob_entry(1, 5), b"12345"),
        (in_blob(5), b"\x02\x01a", b"12345"),
        (in_blob(5), b"\x07", b"12345"),
        (in_blob(5), b"\x00\x01", b"12345"),
        (in_blob(5), blob_entry(1, 5), b"12345"),
        (in_blob(2**60), blob_entry(1, 2**60), b"12345"),
        (b"\xff\x11\x03abc", None, None),
        (b"\xff\x11", None, None),
        (b"\xff\x11\x02" + varint(1 << 40) + b"x", None, None),
        (packed(packed(packed(packed(packed(b"x"))))), None, None),
    ],
)
def test_a_value_that_cannot_be_fetched_is_passed_over(tmp_path, value, entry, blob):
    entries = {row_key(FILES, "a"): varint(3) + value, row_key(FILES, "b"): row("b")}
    if entry is not None:
        entries[blob_key(FILES, "a")] = entry
    folder = written(tmp_path, entries)
    if blob is not None:
        write_blob(folder, 1, blob)
    found = read(folder).value
    assert found is not None
    assert found["files"] == StoreRows(["b"], passed_over=1)


# --- keys ----------------------------------------------------------------------------------------------------------

IN_ORDER = [
    number_key(float("-inf")),
    number_key(-1.5),
    number_key(0),
    number_key(2),
    number_key(10),
    date_key(-1),
    date_key(5),
    b"\x01" + varint(0),
    b"\x01\x01\x00a",
    b"\x01\x02\x00a\x00a",
    b"\x01\x01\x01\x00",
    b"\x01\x01\xd8\x3d",
    b"\x01\x01\xff\xee",
    binary_key(b""),
    binary_key(b"a"),
    binary_key(b"ab"),
    binary_key(b"b"),
    array_key(),
    array_key(number_key(1)),
    array_key(number_key(1), number_key(0)),
    array_key(number_key(1), b"\x01\x00"),
    array_key(number_key(2)),
    array_key(array_key()),
]


def test_rows_are_ordered_as_indexed_db_orders_their_keys(tmp_path):
    shuffled = list(enumerate(IN_ORDER))
    random.Random(5).shuffle(shuffled)
    folder = written(tmp_path, {row_key(FILES, key): row(number) for number, key in shuffled})
    assert rows(folder) == list(range(len(IN_ORDER)))


@pytest.mark.parametrize("key", [b"", b"\x09", b"\x01\x05ab", b"\x04\xff\xff\x7f", b"\x04\x01" * 3000, b"\x03\x00"])
def test_a_key_that_cannot_be_read_comes_last(key):
    assert sorted([key, *IN_ORDER], key=row_sort_key) == [*IN_ORDER, key]


@pytest.mark.parametrize("numbers", [(0, 0, 0), (1, 2, 3), (300, 70_000, 255), (2**60, 2**63, 2**31)])
def test_prefixes_are_read_back(numbers):
    assert split_key(prefix(*numbers) + b"rest") == (KeyPrefix(*numbers), b"rest")


@pytest.mark.parametrize("key", [b"", b"\x00\x01", b"\xff" * 10])
def test_a_key_without_a_whole_prefix_is_refused(key):
    with pytest.raises(MalformedStorage):
        split_key(key)
    assert not PrefixFilter((KeyPrefix(0, 0, 0),)).holds(key)
    assert PrefixFilter((KeyPrefix(0, 0, 0),)).may_hold(key, key)


def test_external_objects_are_listed():
    assert parse_external_objects(blob_entry(5, 9) + file_entry(300, 7) + b"\x02\x01x") == [
        ExternalObject(5, 9),
        ExternalObject(300, 7),
        ExternalObject(None, 0),
    ]


# --- transactions that were never committed ------------------------------------------------------------------------


def begun(scope: int, state: bytes = OPEN_SCOPE) -> dict[bytes, bytes | None]:
    """Return what a transaction that changes rows leaves until it is cleaned up."""
    top = 2**63 - 1
    return {
        scope_key(scope): state,
        undo_key(scope, top): undo_put(row_key(FILES, "a"), row("a old")),
        undo_key(scope, top - 1): undo_delete(row_key(FILES, "new")),
        undo_key(scope, top - 2): undo_put(row_key(FILES, "gone"), row("gone old")),
        undo_key(scope, top - 3): undo_put(row_key(FILES, "a"), row("a in between")),
        undo_key(scope, top - 4): undo_delete(store_key(9)),
        undo_key(scope, top - 5): b"\x1a\x02\x0a\x00",
        undo_key(scope, top - 6): b"\xff",
        row_key(FILES, "a"): row("a new"),
        row_key(FILES, "new"): row("new"),
        row_key(FILES, "gone"): None,
        store_key(9): "knowledge_notes".encode("utf-16-be"),
    }


def test_an_open_transaction_is_undone(tmp_path):
    folder = written(tmp_path, {row_key(NOTES, "n"): row("note"), **begun(200)})
    assert rows(folder) == ["a old", "gone old"]
    assert rows(folder, "knowledge_notes") == ["note"]


def test_a_committed_transaction_counts(tmp_path):
    folder = written(tmp_path, {**begun(200, COMMITTED_SCOPE), store_key(9): None})
    assert rows(folder) == ["a new", "new"]


def test_only_the_open_one_of_several_transactions_is_undone(tmp_path):
    other = {scope_key(7): OPEN_SCOPE, undo_key(7, 5): undo_delete(row_key(NOTES, "n"))}
    folder = written(
        tmp_path, {**begun(200, COMMITTED_SCOPE), store_key(9): None, row_key(NOTES, "n"): row("note"), **other}
    )
    assert rows(folder) == ["a new", "new"]
    assert rows(folder, "knowledge_notes") == []
