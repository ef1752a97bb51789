"""redb files: every row of a real one, what a writer of our own makes comes back, and who is refused."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path

import pytest
from harness import SAMPLES, examples, needs_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from redb_writer import INTERNAL2, RedbTable, write_redb

from regraft.formats import redb
from regraft.formats.redb import RedbError, Table, pages, read_redb


def numbers(count: int) -> RedbTable:
    return RedbTable("u64", "i32", {struct.pack("<Q", at * 7): struct.pack("<i", -at) for at in range(count)})


def texts(count: int, length: int = 20) -> RedbTable:
    chance = random.Random(count)
    return RedbTable("&str", "&[u8]", {f"key {at:05}".encode(): chance.randbytes(length) for at in range(count)})


def rows_of(path: Path) -> dict[str, dict[bytes, bytes]]:
    with read_redb(path) as file:
        file.verify()
        return {name: dict(file.raw_rows(name)) for name in file.tables}


# --- a real file ---------------------------------------------------------------------------------------------------


@needs_samples
def test_every_row_of_a_real_file_is_read():
    expected = json.loads((SAMPLES / "rsclaw" / "rows.json").read_text("utf-8"))
    with read_redb(SAMPLES / "rsclaw" / "kb" / "kb.redb") as file:
        file.verify()
        found = {name: {key.hex(): value.hex() for key, value in file.raw_rows(name)} for name in file.tables}
        assert (file.format_version, file.page_size, file.transaction_id, file.clean) == (3, 4096, 60, True)
        assert all(json.loads(value)["id"] == key for key, value in file.rows("kb_docs"))
        assert {name: table.length for name, table in file.tables.items()} == {
            name: len(rows) for name, rows in expected.items()
        }
    assert found == expected


# --- what a writer makes comes back --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("page_size", "region_pages", "header_pages"), [(512, 1 << 20, 0), (4096, 16, 3), (512, 64, 1), (65536, 1024, 2)]
)
def test_rows_come_back_of_any_layout(tmp_path, version, page_size, region_pages, header_pages):
    tables = {"texts": texts(300, 700), "numbers": numbers(1000), "none": RedbTable("&str", "&str", {})}
    path = write_redb(
        tmp_path / "x.redb",
        tables,
        version=version,
        page_size=page_size,
        region_pages=region_pages,
        region_header_pages=header_pages,
        older={"texts": texts(20)},
    )
    assert rows_of(path) == {name: dict(tables[name].rows) for name in sorted(tables)}
    with read_redb(path) as file:
        assert file.format_version == version
        assert list(file.rows("numbers")) == [(at * 7, -at) for at in range(1000)]


def test_values_longer_than_a_page_come_back(tmp_path):
    rows = {f"{length:06}".encode(): bytes([length % 256]) * length for length in (0, 511, 4096, 70_000, 1_000_000)}
    path = write_redb(tmp_path / "x.redb", {"t": RedbTable("&str", "&[u8]", rows)}, page_size=512)
    assert rows_of(path) == {"t": rows}


@pytest.mark.parametrize("most", [2, 3, 5])
def test_trees_of_many_levels_come_back(tmp_path, most):
    path = write_redb(tmp_path / "x.redb", {"t": texts(500)}, page_size=512, most=most)
    assert rows_of(path) == {"t": dict(texts(500).rows)}


def test_tables_are_in_order_of_name_with_their_types(tmp_path):
    tables = {f"table {at:03}": numbers(at) for at in range(60)}
    path = write_redb(tmp_path / "x.redb", tables, page_size=512)
    with read_redb(path) as file:
        assert list(file.tables) == sorted(tables)
        assert file.tables["table 007"] == Table(
            name="table 007", key_type="u64", value_type="i32", length=7, multimap=False
        )
        with pytest.raises(TypeError):
            file.tables["new"] = file.tables["table 007"]


def test_a_database_without_a_table_has_none(tmp_path):
    with read_redb(write_redb(tmp_path / "x.redb", {}, has_system=False)) as file:
        assert not file.tables
        file.verify()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("inline_bytes", [0, 100, 100_000])
def test_a_multimap_gives_each_value_with_its_key(tmp_path, version, inline_bytes):
    rows = {f"k{at:02}".encode(): [struct.pack("<I", one) for one in range(at * 5)] for at in range(1, 40)}
    table = RedbTable("&str", "u32", rows, multimap=True)
    path = write_redb(tmp_path / "x.redb", {"m": table}, version=version, page_size=512, inline_bytes=inline_bytes)
    with read_redb(path) as file:
        assert file.tables["m"].multimap
        assert file.tables["m"].length == sum(map(len, rows.values()))
        assert list(file.rows("m")) == [(f"k{at:02}", one) for at in range(1, 40) for one in range(at * 5)]
        assert list(file.raw_rows("m")) == [(key, value) for key, values in rows.items() for value in values]


def test_a_multimap_of_texts_comes_back(tmp_path):
    rows = {b"a": [b"", b"one", b"two"], b"b": [f"{at:04}".encode() for at in range(500)]}
    path = write_redb(tmp_path / "x.redb", {"m": RedbTable("&[u8]", "&str", rows, multimap=True)}, page_size=512)
    with read_redb(path) as file:
        assert list(file.rows("m")) == [(key, value.decode()) for key in (b"a", b"b") for value in rows[key]]


stored = st.dictionaries(st.binary(max_size=40), st.binary(max_size=900), max_size=60)


@settings(max_examples=examples(60))
@given(
    rows=stored,
    other=stored,
    page_size=st.sampled_from([512, 1024, 4096]),
    version=st.sampled_from([2, 3]),
    region_pages=st.sampled_from([8, 32, 1 << 20]),
    header_pages=st.integers(0, 3),
    most=st.integers(2, 20),
    primary=st.sampled_from([0, 1]),
)
def test_any_rows_come_back(
    tmp_path_factory, rows, other, page_size, version, region_pages, header_pages, most, primary
):
    path = tmp_path_factory.getbasetemp() / "any.redb"
    tables = {"a": RedbTable("&[u8]", "&[u8]", rows), "b": RedbTable("&[u8]", "&[u8]", other)}
    write_redb(
        path,
        tables,
        page_size=page_size,
        version=version,
        region_pages=region_pages,
        region_header_pages=header_pages,
        most=most,
        primary=primary,
        clean=False,
        two_phase=False,
    )
    assert rows_of(path) == {"a": rows, "b": other}


def test_rows_are_in_the_order_that_redb_has_for_their_keys(tmp_path):
    pairs = [("a", 2), ("a", 300), ("b", 1), ("ba", 0)]
    rows = {bytes([len(text)]) + text.encode() + struct.pack("<q", number): b"" for text, number in pairs}
    order = {key: place for place, key in enumerate(rows)}
    table = RedbTable("(&str,i64)", "()", rows, key_kind=INTERNAL2, order=order.__getitem__)
    path = write_redb(
        tmp_path / "x.redb", {"t": table, "n": RedbTable("i16", "()", {struct.pack("<h", -5): b"", b"\3\0": b""})}
    )
    with read_redb(path) as file:
        assert [key for key, _ in file.rows("t")] == pairs
        assert [key for key, _ in file.rows("n")] == [-5, 3]


# --- who is refused ------------------------------------------------------------------------------------------------


def refused(path: Path, code: str) -> str:
    with pytest.raises(RedbError) as caught:
        read_redb(path)
    assert caught.value.code == code
    assert isinstance(caught.value, getattr(redb, code))
    assert str(path) in str(caught.value)
    return str(caught.value)


def changed(path: Path, at: int, data: bytes) -> Path:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_redb(tmp_path / "small.redb", {"t": texts(50), "n": numbers(30)}, page_size=512)


@pytest.mark.parametrize("content", [b"", b"x", b"SQLite format 3\0" * 100, b"redb" * 100])
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    refused(tmp_path / "x", "NotRedb")


@pytest.mark.parametrize("size", [1, 9, 64, 319])
def test_a_file_that_ends_within_its_header_is_refused(small, size):
    small.write_bytes(small.read_bytes()[:size])
    assert f"after {size} bytes" in refused(small, "RedbTooShort")


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as gone:
        (tmp_path / "gone").stat()
    assert str(gone.value.strerror) in refused(tmp_path / "gone", "RedbError")
    assert "not a file" in refused(tmp_path, "RedbError")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "RedbError")


@pytest.mark.parametrize(("version", "code"), [(1, "RedbTooOld"), (4, "RedbTooNew"), (9, "RedbTooNew")])
def test_another_version_is_refused(tmp_path, version, code):
    path = write_redb(tmp_path / "x.redb", {"t": texts(5)}, version=version)
    assert f"version {version}" in refused(path, code)
    for slot in (64, 192):  # with slots that cannot be checked, the version is still the better answer
        changed(path, slot + 30, b"????")
    refused(path, code)


@pytest.mark.parametrize("lock", ["LOCK_EX", "LOCK_SH"])
def test_a_file_that_a_program_has_open_for_writing_is_refused(small, lock):
    fcntl = pytest.importorskip("fcntl")
    with small.open("r+b") as other:
        fcntl.flock(other, getattr(fcntl, lock) | fcntl.LOCK_NB)
        if lock == "LOCK_EX":
            refused(small, "RedbInUse")
        else:
            read_redb(small).close()


def test_the_file_is_not_kept_locked(small):
    fcntl = pytest.importorskip("fcntl")
    with read_redb(small) as file, small.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert list(file.rows("t"))


def test_a_file_without_locks_is_read(small, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    with read_redb(small) as file:
        expected = list(file.rows("t"))

    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with read_redb(small) as file:
        assert list(file.rows("t")) == expected != []


@pytest.mark.parametrize("grows", [True, False])
def test_a_file_that_changes_while_it_is_read_is_refused(small, grows):
    with read_redb(small, on_damage=lambda _: None) as file:
        rows = file.rows("t")
        next(rows)
        changed(small, small.stat().st_size if grows else 9, b"\2")
        with pytest.raises(RedbError, match="changed while it was read") as caught:
            list(rows)
        assert caught.value.code == "RedbChanged"


def test_damage_of_a_file_that_changed_is_called_a_change(small):
    damages: list[object] = []
    with read_redb(small, on_damage=damages.append) as file:
        changed(small, 512, b"?" * 4096)
        changed(small, 9, b"\2")
        with pytest.raises(redb.RedbChanged):
            list(file.rows("t"))
    assert damages == []


def test_a_table_that_is_not_there_is_named_with_those_that_are(small):
    with read_redb(small) as file, pytest.raises(LookupError, match="no table x; existing tables: n, t") as caught:
        file.rows("x")
    assert caught.value.code == "RedbTableUnknown"


def test_a_closed_file_is_not_read(small):
    with read_redb(small) as file:
        rows = file.raw_rows("t")
    file.close()
    with pytest.raises(RedbError, match="the file was closed"):
        next(rows)


def test_a_disk_that_fails_is_one_error(small, monkeypatch):
    def failing(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with read_redb(small) as file:
        monkeypatch.setattr(pages, "_pread", failing)
        with pytest.raises(RedbError, match="Input/output error"):
            list(file.rows("t"))
    refused(small, "RedbError")
