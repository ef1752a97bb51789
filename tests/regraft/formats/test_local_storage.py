"""Local Storage: the live value of one key for every origin that has one."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from chromium_files import local_key, local_text
from harness import HERE, snapshot
from leveldb_files import Folder, TableSpec, batch

from regraft.disk.trees import FolderTree, ZipTree
from regraft.formats.chromium import StorageDamaged, StorageResult, StoredText, _Entries, read_key

KEY = "persist:cherry-studio"
REAL = HERE / "chromium_profile.zip"


def read(folder: Path, key: str = KEY) -> StorageResult[list[StoredText]]:
    return read_key(FolderTree(folder.parent), folder.name, key, folder.parent / "work")


def written(folder: Path, *entries: tuple[bytes, bytes | None]) -> Path:
    return Folder(folder, logs={3: [batch(1, entries)]}).write()


def test_a_real_profile_is_read(tmp_path):
    """Chromium 156 wrote it: the older value lies in a table, the newer in the log."""
    with zipfile.ZipFile(REAL) as archive:
        assert b'{"gen":0}' in archive.read("Local Storage/leveldb/000003.ldb")
    tree = ZipTree(REAL)
    found = read_key(tree, "Local Storage/leveldb", KEY, tmp_path)
    tree.close()
    assert found == StorageResult([StoredText("file://", '{"中":1}', 9)], 0)


def test_a_real_profile_is_read_without_its_older_table(tmp_path):
    with zipfile.ZipFile(REAL) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "Local Storage/leveldb/000003.ldb").unlink()
    found = read_key(FolderTree(tmp_path), "Local Storage/leveldb", KEY, tmp_path / "work")
    assert found == StorageResult([StoredText("file://", '{"中":1}', 9)], 1)


@pytest.mark.parametrize("text", ["", "plain", "é\xff\0", "中文 😀", "cut \ud83d", "\udc00 \ud800x"])
def test_texts_are_read_as_they_were_written(tmp_path, text):
    wide = any(ord(unit) > 0xFF for unit in text)
    folder = written(tmp_path / "db", (local_key("file://", KEY), local_text(text, wide)))
    assert read(folder).value == [StoredText("file://", text, 1)]


def test_every_origin_has_its_own_value_and_the_latest_comes_first(tmp_path):
    folder = written(
        tmp_path / "db",
        (b"VERSION", b"1"),
        (b"META:file://", b"\x08\x01"),
        (b"METAACCESS:file://", b"\x08\x01"),
        (local_key("http://127.0.0.1:8765", KEY), local_text("dev")),
        (local_key("file://", KEY), local_text("app")),
        (local_key("file://", KEY + "2"), local_text("another key")),
        (local_key("file://", "x" + KEY), local_text("another key")),
    )
    assert read(folder).value == [StoredText("file://", "app", 5), StoredText("http://127.0.0.1:8765", "dev", 4)]


def test_a_deleted_value_is_left_out(tmp_path):
    key = local_key("file://", KEY)
    folder = Folder(
        tmp_path / "db",
        tables=[TableSpec(4, [(key, 3, local_text("old"))], level=1)],
        logs={5: [batch(9, [(key, None)])]},
    )
    assert read(folder.write()) == StorageResult([], 0)


@pytest.mark.parametrize("latest_is_wide", [False, True])
def test_a_key_may_be_coded_in_either_way(tmp_path, latest_is_wide):
    folder = written(
        tmp_path / "db",
        (local_key("file://", KEY, wide=not latest_is_wide), local_text("old")),
        (local_key("file://", KEY, wide=latest_is_wide), local_text("new")),
    )
    assert read(folder).value == [StoredText("file://", "new", 2)]


def test_a_key_of_wide_characters_is_found(tmp_path):
    folder = written(tmp_path / "db", (local_key("file://", "键", wide=True), local_text("v")))
    assert [stored.text for stored in read(folder, "键").value] == ["v"]


@pytest.mark.parametrize(
    ("value", "said"), [(b"", "an unknown encoding"), (b"\x02x", "an unknown encoding"), (b"\0abc", "half a character")]
)
def test_a_value_that_is_no_text_is_damage(tmp_path, value, said):
    folder = written(tmp_path / "db", (local_key("file://", KEY), value))
    with pytest.raises(StorageDamaged, match=f"the value of {KEY} of file:// .*{said}"):
        read(folder)


def test_a_damaged_value_of_another_origin_is_left_out_and_counted(tmp_path):
    mine, other, bad = ("file://", "http://localhost:5173", "http://127.0.0.1:8765")
    folder = written(
        tmp_path / "db",
        (local_key(mine, KEY), local_text("mine")),
        (local_key(other, KEY), local_text("other")),
        (local_key(bad, KEY), b"\0abc"),
    )
    both = [StoredText(other, "other", 2), StoredText(mine, "mine", 1)]
    assert read(folder) == StorageResult(both, 1)
    with pytest.raises(StorageDamaged, match=f"of {bad} ends with half a character"):
        read_key(FolderTree(tmp_path), "db", KEY, tmp_path / "work", bad)


def test_an_older_value_that_is_no_text_does_no_harm(tmp_path):
    folder = written(
        tmp_path / "db",
        (local_key("file://", KEY, wide=True), b"\0abc"),
        (local_key("file://", KEY), local_text("new")),
    )
    assert read(folder) == StorageResult([StoredText("file://", "new", 2)], 0)


@pytest.mark.parametrize("is_missing", [False, True])
def test_an_old_table_that_cannot_be_read_does_no_harm_where_the_log_has_the_value(tmp_path, is_missing):
    mine, other = local_key("file://", KEY), local_key("http://localhost:5173", KEY)
    old = TableSpec(4, [(mine, 3, local_text("old")), (other, 4, local_text("other"))], level=2)
    for origin, expected in ((mine, StorageResult([StoredText("file://", "new", 9)], 1)), (other, None)):
        folder = Folder(tmp_path / "db", tables=[old], logs={7: [batch(9, [(origin, local_text("new"))])]}).write()
        if is_missing:
            (folder / "000004.ldb").unlink()
        else:
            (folder / "000004.ldb").write_bytes(b"x" * 900)
        if expected is not None:
            assert read(folder) == expected
        else:
            # The table may hold the newest value of the origin that matters.
            with pytest.raises(StorageDamaged, match=r"000004\.ldb"):
                read(folder)


def test_a_newer_value_in_a_damaged_block_does_not_fall_back_to_an_older_one(tmp_path):
    key = local_key("file://", KEY)
    folder = Folder(
        tmp_path / "db",
        tables=[
            TableSpec(4, [(key, 3, local_text("old"))], level=2),
            TableSpec(6, [(key, 9, local_text("new"))], level=1),
        ],
        logs={7: []},
    ).write()
    data = bytearray((folder / "000006.ldb").read_bytes())
    data[20] ^= 1
    (folder / "000006.ldb").write_bytes(data)
    with pytest.raises(StorageDamaged, match=r"db/000006\.ldb: the block at byte 0 fails its checksum"):
        read(folder)


def test_damage_between_other_keys_of_the_origin_does_no_harm(tmp_path):
    others = [(local_key("file://", f"z{number}"), 10 + number, local_text("n" * 5000)) for number in range(5)]
    mine = (local_key("file://", KEY), 3, local_text("mine"))
    folder = Folder(tmp_path / "db", tables=[TableSpec(4, [mine, *others])], logs={7: []}).write()
    data = bytearray((folder / "000004.ldb").read_bytes())
    data[12_000] ^= 1
    (folder / "000004.ldb").write_bytes(data)
    assert [stored.text for stored in read(folder).value] == ["mine"]
    with pytest.raises(StorageDamaged):
        read(folder, "z2")


def test_ranges_tell_where_the_key_may_be():
    wanted = _Entries("k")
    assert wanted.may_hold(None, None)
    assert wanted.may_hold(b"_a", b"_b")
    assert wanted.may_hold(b"_o\0\1a", b"_o\0\1z")
    assert wanted.may_hold(b"_o\0\1k", b"_o\0\1k")
    assert not wanted.may_hold(b"_o\0\1l", b"_o\0\1z")
    assert not wanted.may_hold(b"META:a", b"VERSION")
    assert not wanted.may_hold(b"a", None)


def test_the_source_stays_as_it_is(tmp_path):
    folder = written(tmp_path / "db", (local_key("file://", KEY), local_text("v")))
    before = snapshot(folder)
    read(folder)
    assert snapshot(folder) == before
