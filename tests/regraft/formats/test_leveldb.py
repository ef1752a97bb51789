"""LevelDB folders: which files count, the newest record wins, and only what may hold wanted keys is read."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import signal
import struct
import zipfile
from pathlib import Path

import pytest
from harness import snapshot
from leveldb_files import (
    BYTEWISE,
    Entry,
    Folder,
    TableSpec,
    added,
    batch,
    internal,
    log,
    removed,
    sized,
    table,
    varint,
)

from regraft.disk.trees import FolderTree, ZipTree
from regraft.formats.chromium.leveldb import (
    PAUSES,
    ByteReader,
    LevelDb,
    LogReader,
    MalformedStorage,
    Record,
    StorageChanged,
    StorageDamaged,
    StorageResult,
    TableReader,
    batch_records,
    decompress_snappy,
    read_leveldb,
    read_manifest,
    read_varint,
)


class Between:
    """The keys from ``low`` to ``high`` in the order of their bytes."""

    def __init__(self, low: bytes = b"", high: bytes = b"\xff" * 9) -> None:
        self.low, self.high = low, high

    def holds(self, key: bytes) -> bool:
        return self.low <= key <= self.high

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        return (low or b"") <= self.high and (high is None or high >= self.low)


ALL = Between()


def scan(folder: Path, wanted: Between = ALL) -> StorageResult[dict[bytes, bytes]]:
    """Return the live values of the LevelDB in ``folder``."""

    def read(database: LevelDb) -> dict[bytes, bytes]:
        return {key: record.value for key, record in database.scan(wanted).items() if record.value is not None}

    return read_leveldb(FolderTree(folder.parent), folder.name, BYTEWISE, folder.parent / "work", read)


def copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will have the names of what is copied."""
    seen: list[str] = []
    copy = LevelDb._copy
    monkeypatch.setattr(LevelDb, "_copy", lambda self, name: (seen.append(name), copy(self, name))[1])
    return seen


def entries(*keys: str, sequence: int = 1, value: bytes = b"v") -> list[Entry]:
    return [(key.encode(), sequence + at, value + key.encode()) for at, key in enumerate(keys)]


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63, 2**64 - 1])
def test_numbers_are_read_back(number):
    assert read_varint(b"?" + varint(number) + b"?", 1) == (number, 1 + len(varint(number)))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_numbers_that_do_not_end_or_do_not_fit_are_refused(data):
    with pytest.raises(MalformedStorage):
        read_varint(data, 0)


def test_no_more_bytes_are_taken_than_are_there():
    with pytest.raises(MalformedStorage, match="5 bytes are expected and 3 are left"):
        ByteReader(b"abcd", 1).take(5)
    with pytest.raises(MalformedStorage):
        ByteReader(b"abcd", 1).skip(4)


# --- logs ----------------------------------------------------------------------------------------------------------


def records_of(data: bytes) -> tuple[list[bytes], int]:
    reader = LogReader(io.BytesIO(data))
    found = list(reader)
    return found, reader.passed_over + reader.is_cut_off


RECORDS = [b"a" * 10, b"b" * 40000, b"", b"c" * 32761, b"d" * 100_000, b"e"]


def test_records_are_joined_over_blocks():
    assert records_of(log(RECORDS)) == (RECORDS, 0)


@pytest.mark.parametrize("left", range(10))
def test_a_block_may_end_with_too_little_room_for_a_header(left):
    records = [b"x" * (32768 - 7 - left), b"next"]
    assert records_of(log(records)) == (records, 0)


@pytest.mark.thorough
def test_a_log_that_is_cut_off_anywhere_loses_only_what_is_cut():
    whole = log(RECORDS)
    ends = [len(log(RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    for cut in [*range(0, len(whole), 997), *(end + more for end in ends for more in (-1, 0, 1, 6, 7, 8))]:
        if 0 <= cut <= len(whole):
            expected = [record for record, end in zip(RECORDS, ends[1:], strict=True) if end <= cut]
            is_torn = cut not in ends
            assert records_of(whole[:cut]) == (expected, int(is_torn)), cut


@pytest.mark.parametrize("zeros", [1, 6, 7, 100, 32768, 100_000])
def test_zeros_at_the_end_are_no_damage(zeros):
    assert records_of(log(RECORDS) + bytes(zeros)) == (RECORDS, 0)


def test_damage_costs_the_rest_of_its_block_and_is_counted():
    data = bytearray(log([b"1" * 100, b"2" * 100, b"3" * 100, b"4" * 40000, b"5"]))
    data[150] ^= 1
    # The rest of the first block is lost, and so is the record that goes on in the second.
    assert records_of(bytes(data)) == ([b"1" * 100, b"5"], 1)


def test_zeros_in_the_middle_are_damage():
    data = bytearray(log([b"1" * 100, b"2" * 40000, b"3"]))
    data[107:32768] = bytes(32768 - 107)
    assert records_of(bytes(data)) == ([b"1" * 100, b"3"], 1)
    data = bytearray(log([b"1" * 100, b"2" * 100, b"3"]))
    data[107:214] = bytes(107)
    assert records_of(bytes(data)) == ([b"1" * 100], 1)


def test_a_record_that_was_begun_and_not_finished_is_counted():
    begun = log([b"x" * 40000])[:32768]
    assert records_of(begun + log([b"next"])) == ([b"next"], 1)


def test_a_rest_without_its_beginning_is_counted_once():
    rest = log([b"x" * 100_000])[32768:]
    assert records_of(rest + log([b"next"])) == ([b"next"], 1)


def test_a_length_past_its_block_is_damage_unless_the_log_ends_there():
    data = log([b"1" * 40000, b"2"])
    broken = data[:4] + struct.pack("<H", 40000) + data[6:]
    assert records_of(broken) == ([b"2"], 1)
    assert records_of(log([b"1"]) + bytes(4) + struct.pack("<HB", 9, 1) + b"short") == ([b"1"], 1)


def test_a_length_that_is_damaged_is_no_cut_off_end():
    """It reaches past the end of the log, as that of a record which was cut off does; but whole ones come after it."""
    data = bytearray(log([b"1" * 100, b"2" * 100, b"3" * 100]))
    struct.pack_into("<H", data, 107 + 4, 5000)
    assert records_of(bytes(data)) == ([b"1" * 100], 1)


@pytest.mark.parametrize(("length", "kind"), [(32768, 1), (40000, 1), (900, 0), (900, 5), (900, 255)])
def test_what_was_never_a_header_is_no_cut_off_end(length, kind):
    data = log([b"1" * 100]) + b"\1\2\3\4" + struct.pack("<HB", length, kind) + b"x" * 50
    assert records_of(data) == ([b"1" * 100], 1)


def test_zeros_before_a_cut_off_end_are_damage():
    data = log([b"1"]).ljust(32768, b"\0") + log([b"2" * 100])[:50]
    assert records_of(data) == ([b"1"], 1)


def test_batches_number_their_records_one_after_the_other():
    data = batch(7, [(b"a", b"1"), (b"b", None), (b"c", b"")])
    assert batch_records(data, lambda key: key != b"b") == [Record(b"a", 7, b"1"), Record(b"c", 9, b"")]
    assert batch_records(data, lambda key: key == b"b") == [Record(b"b", 8, None)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(11),
        batch(1, [(b"a", b"1")], count=2),
        batch(1, [(b"a", b"1"), (b"b", b"2")], count=1),
        batch(1, [(b"a", b"1")])[:-1],
        batch(1, []) + b"\x07",
        batch(1, []) + b"\x01\xff",
    ],
)
def test_a_batch_that_is_none_is_refused_as_a_whole(data):
    with pytest.raises(MalformedStorage):
        batch_records(data, lambda _: False)


# --- tables --------------------------------------------------------------------------------------------------------


def table_records(data: bytes, wanted: Between = ALL) -> list[Record]:
    return list(TableReader(io.BytesIO(data), len(data)).records(wanted))


MANY: list[Entry] = [
    (f"key-{number:05}".encode(), 1000 + number, None if number % 7 == 0 else b"%d " % number * 20)
    for number in range(500)
]


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("shorten", [False, True])
def test_tables_are_read_back(kind, shorten):
    data = table(MANY, kind=kind, shorten=shorten)
    assert table_records(data) == [Record(*entry) for entry in MANY]


def test_every_version_of_a_key_is_given():
    versions: list[Entry] = [(b"k", 9, b"new"), (b"k", 4, None), (b"k", 2, b"old")]
    assert table_records(table(versions, block_bytes=1)) == [Record(*entry) for entry in versions]


@pytest.mark.parametrize("shorten", [False, True])
def test_only_blocks_that_may_hold_wanted_keys_are_read(shorten):
    data = table(MANY, shorten=shorten)
    wanted = Between(b"key-00200", b"key-00210")
    expected = [Record(*entry) for entry in MANY if wanted.holds(entry[0])]

    class Counting(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            self.taken += len(found)
            return found

    file = Counting(data)
    assert list(TableReader(file, len(data)).records(wanted)) == expected
    assert file.taken < len(data) / 3


def test_damage_counts_only_where_wanted_keys_may_be():
    data = bytearray(table(MANY))
    data[10] ^= 1
    assert table_records(bytes(data), Between(b"key-00400", b"key-00410"))
    with pytest.raises(MalformedStorage, match="the block at byte 0 fails its checksum"):
        table_records(bytes(data), Between(b"key-00000", b"key-00001"))


def test_a_damaged_index_is_refused():
    data = bytearray(table(MANY))
    data[-60] ^= 1
    with pytest.raises(MalformedStorage, match="fails its checksum"):
        table_records(bytes(data))


@pytest.mark.parametrize(("kind", "said"), [(2, "zstd"), (9, "unknown way")])
def test_blocks_packed_in_another_way_are_refused_by_name(kind, said):
    with pytest.raises(MalformedStorage, match=said):
        table_records(table(MANY, kind=kind))


@pytest.mark.parametrize("size", [0, 47, 48, 100])
def test_what_does_not_end_as_a_table_is_refused(size):
    with pytest.raises(MalformedStorage):
        TableReader(io.BytesIO(bytes(size)), size)


def test_a_handle_past_the_end_is_refused():
    data = table(MANY)
    footer = (varint(0) + varint(5) + varint(10**12) + varint(10**12)).ljust(40, b"\0")
    with pytest.raises(MalformedStorage, match="past the end"):
        table_records(data[:-48] + footer + data[-8:])


def test_packed_bytes_that_announce_far_too_much_are_refused_before_unpacking():
    with pytest.raises(MalformedStorage, match="state a size"):
        decompress_snappy(varint(1 << 30) + b"\x00a")
    with pytest.raises(MalformedStorage, match="damaged"):
        decompress_snappy(varint(50) + b"\x00a")


# --- which files count ---------------------------------------------------------------------------------------------


def test_the_newest_record_of_each_key_wins_wherever_it_is(tmp_path):
    folder = Folder(
        tmp_path / "db",
        tables=[
            TableSpec(5, [(b"a", 10, b"old"), (b"b", 11, b"b"), (b"c", 12, b"c")], level=2, kind=1),
            TableSpec(7, [(b"a", 20, b"newer"), (b"c", 21, None)], level=0),
            TableSpec(8, [(b"d", 22, b"d")], level=0, suffix="sst"),
        ],
        logs={9: [batch(30, [(b"a", b"newest"), (b"b", None)])], 10: [batch(32, [(b"e", b"e"), (b"b", b"again")])]},
    )
    assert scan(folder.write()) == StorageResult({b"a": b"newest", b"b": b"again", b"d": b"d", b"e": b"e"}, 0)


def test_the_order_of_files_says_nothing_about_what_is_newer(tmp_path):
    folder = Folder(
        tmp_path / "db",
        tables=[TableSpec(50, [(b"a", 90, b"newest")], level=2)],
        logs={60: [batch(30, [(b"a", b"older")])]},
    )
    assert scan(folder.write()).value == {b"a": b"newest"}


def test_only_logs_from_the_number_in_the_manifest_count(tmp_path):
    logs = {number: [batch(number, [(b"%d" % number, b"v")])] for number in (3, 4, 5, 1234567)}
    folder = Folder(tmp_path / "db", logs=logs, log_number=5, previous_log=3)
    assert set(scan(folder.write()).value) == {b"3", b"5", b"1234567"}


def test_tables_that_were_removed_do_not_count(tmp_path):
    folder = Folder(tmp_path / "db", tables=[TableSpec(4, entries("new"))], logs={9: []})
    old = TableSpec(3, entries("old"), level=1)
    folder.earlier_edits = [added(old), removed(1, 3)]
    folder.write()
    (folder.path / "000003.ldb").write_bytes(table(old.entries))
    assert set(scan(folder.path).value) == {b"new"}


def test_a_table_may_move_to_another_level(tmp_path):
    spec = TableSpec(3, entries("a"), level=2)
    folder = Folder(tmp_path / "db", tables=[spec], logs={9: []})
    folder.earlier_edits = [added(spec, level=0), removed(0, 3) + added(spec, level=1), removed(1, 3)]
    assert scan(folder.write()).value == {b"a": b"va"}


def test_other_facts_of_a_manifest_are_passed_over(tmp_path):
    edits = [b"\x05\x01" + sized(internal(b"k", 1, 1)) + b"\x03\x09\x04\x09\x02\x07"]
    version = read_manifest(io.BytesIO(log(edits)))
    assert (version.log, version.tables) == (7, {})


@pytest.mark.parametrize("edit", [b"\x08", b"\x07\x01\x02", b"\x07\x01\x02\x03\x01a\x01b", b"\x01\x09abc"])
def test_an_edit_that_cannot_be_read_makes_the_manifest_unreadable(edit):
    with pytest.raises(MalformedStorage):
        read_manifest(io.BytesIO(log([b"\x02\x05", edit])))


def simple(folder: Path) -> Path:
    return Folder(
        folder,
        tables=[TableSpec(5, entries("a", "b")), TableSpec(6, entries("x", "y"), level=1)],
        logs={9: [batch(30, [(b"c", b"c")])]},
    ).write()


def lose_current(folder: Path) -> None:
    (folder / "CURRENT").unlink()


def name_no_manifest(folder: Path) -> None:
    (folder / "CURRENT").write_bytes(b"../MANIFEST-000001\n")


def lose_manifest(folder: Path) -> None:
    (folder / "MANIFEST-000001").unlink()


def empty_manifest(folder: Path) -> None:
    (folder / "MANIFEST-000001").write_bytes(b"")


def damage_manifest(folder: Path) -> None:
    data = bytearray((folder / "MANIFEST-000001").read_bytes())
    data[20] ^= 1
    (folder / "MANIFEST-000001").write_bytes(data)


@pytest.mark.parametrize("harm", [lose_current, name_no_manifest, lose_manifest, empty_manifest, damage_manifest])
def test_without_a_manifest_all_files_count_and_that_is_said(tmp_path, harm):
    folder = simple(tmp_path / "db")
    harm(folder)
    found = scan(folder)
    assert set(found.value) == {b"a", b"b", b"c", b"x", b"y"}
    assert found.passed_over == 1


def test_without_a_manifest_a_table_that_was_never_finished_is_passed_over(tmp_path):
    folder = simple(tmp_path / "db")
    whole = (folder / "000005.ldb").read_bytes()
    (folder / "000077.ldb").write_bytes(whole[:-50])
    assert scan(folder).passed_over == 0
    lose_current(folder)
    found = scan(folder)
    assert set(found.value) == {b"a", b"b", b"c", b"x", b"y"}
    assert found.passed_over == 2
    (folder / "000077.ldb").write_bytes(b"\1" + whole[1:])
    with pytest.raises(StorageDamaged, match=r"000077\.ldb: the block at byte 0 fails its checksum"):
        scan(folder)


def test_a_log_that_is_gone_is_said(tmp_path):
    """Programs that clean up disks delete files that end in .log."""
    folder = simple(tmp_path / "db")
    (folder / "000009.log").unlink()
    found = scan(folder)
    assert set(found.value) == {b"a", b"b", b"x", b"y"}
    assert found.passed_over == 1


def test_an_order_of_keys_that_is_not_expected_is_refused(tmp_path):
    folder = Folder(tmp_path / "db", comparator="idb_cmp1", logs={3: []}).write()
    with pytest.raises(StorageDamaged, match=f"in the order idb_cmp1, not {BYTEWISE}"):
        scan(folder)


def test_a_missing_table_is_named(tmp_path):
    folder = simple(tmp_path / "db")
    (folder / "000005.ldb").unlink()
    with pytest.raises(StorageDamaged, match=r"db/000005\.ldb: the file is missing"):
        scan(folder)
    assert set(scan(folder, Between(b"w")).value) == {b"x", b"y"}


def test_a_damaged_table_is_named(tmp_path):
    folder = simple(tmp_path / "db")
    (folder / "000005.ldb").write_bytes(bytes(500))
    with pytest.raises(StorageDamaged, match=r"db/000005\.ldb: the footer is not that of a table"):
        scan(folder)


def test_malformed_batches_are_dropped_and_counted(tmp_path):
    folder = Folder(
        tmp_path / "db",
        logs={3: [batch(1, [(b"a", b"1")]), batch(2, [(b"a", b"2")], count=9), b"short", batch(3, [(b"b", b"3")])]},
    )
    assert scan(folder.write()) == StorageResult({b"a": b"1", b"b": b"3"}, 2)


def test_an_empty_folder_holds_nothing(tmp_path):
    (tmp_path / "db").mkdir()
    assert scan(tmp_path / "db") == StorageResult({}, 1)
    assert scan(tmp_path / "nowhere") == StorageResult({}, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(20))
def test_a_log_of_something_else_is_said(tmp_path, seed):
    data = random.Random(seed).randbytes(5000)
    for content in (data, data[:3], data[:4] + b"\x00\x20\x01" + data, bytes(5000)):
        folder = Folder(tmp_path / "db", logs={3: []}).write()
        (folder / "000003.log").write_bytes(content)
        assert scan(folder) == StorageResult({}, 1)


def test_a_log_that_was_never_written_is_no_damage(tmp_path):
    folder = Folder(tmp_path / "db", logs={3: [batch(1, [(b"a", b"1")])], 4: []})
    assert scan(folder.write()) == StorageResult({b"a": b"1"}, 0)


# --- tables that are too old to matter -----------------------------------------------------------------------------


def settled(folder: Path) -> StorageResult[dict[bytes, bytes | None]]:
    """Scan all keys, with any value of ``own`` as an answer by itself."""

    def read(database: LevelDb) -> dict[bytes, bytes | None]:
        found = database.scan(ALL, is_answer=lambda record: record.key == b"own" and record.value is not None)
        return {key: record.value for key, record in found.items()}

    return read_leveldb(FolderTree(folder.parent), folder.name, BYTEWISE, folder.parent / "work", read)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def break_block(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])


HARMS = pytest.mark.parametrize("harm", [lose, cut, break_block])


def aged(folder: Path, newest: int) -> Folder:
    """Three tables, one newer than the other, and a log; the last value of ``own`` is in number ``newest`` of them."""
    values: list[list[tuple[bytes, bytes | None]]] = [
        [(b"a", b"%d" % number), (b"z", b"%d" % number)] for number in range(4)
    ]
    for number in range(newest + 1):
        values[number].insert(1, (b"own", b"%d" % number))
    tables = [
        TableSpec(
            4 + number,
            [(key, 10 * number + at, value) for at, (key, value) in enumerate(values[number], 1)],
            level=2 - number,
            last_sequence=10 * number + 5,
        )
        for number in range(3)
    ]
    return Folder(folder, tables=tables, logs={9: [batch(31, values[3])]})


@pytest.mark.thorough
@HARMS
@pytest.mark.parametrize("damaged", range(3))
@pytest.mark.parametrize("newest", range(4))
def test_a_table_does_no_harm_where_what_is_wanted_is_newer(tmp_path, newest, damaged, harm):
    folder = aged(tmp_path / "db", newest).write()
    harm(folder / f"{4 + damaged:06}.ldb")
    if damaged >= newest:
        with pytest.raises(StorageDamaged, match=rf"db/00000{4 + damaged}\.ldb"):
            settled(folder)
    else:
        expected = {b"a": b"3", b"own": b"%d" % newest, b"z": b"3"}
        assert settled(folder) == StorageResult(expected, 1)


@HARMS
def test_what_a_damaged_table_may_have_newer_records_of_is_left_out(tmp_path, harm):
    folder = Folder(
        tmp_path / "db",
        tables=[
            TableSpec(4, [(b"a", 1, b"old"), (b"other", 2, b"old")], last_sequence=5),
            TableSpec(5, [(b"other", 11, b"new"), (b"own", 12, b"old")], last_sequence=15),
        ],
        logs={9: [batch(31, [(b"own", b"new")])]},
    ).write()
    assert settled(folder) == StorageResult({b"a": b"old", b"other": b"new", b"own": b"new"}, 0)
    harm(folder / "000005.ldb")
    assert settled(folder) == StorageResult({b"own": b"new"}, 1)


@HARMS
def test_logs_are_newer_than_tables_though_the_manifest_counts_them_in(tmp_path, harm):
    """A table is added after its log was replaced: by then the new log may have records."""
    table = TableSpec(5, [(b"own", 3, b"old"), (b"z", 4, b"z")], last_sequence=40)
    folder = Folder(tmp_path / "db", tables=[table], logs={9: [batch(5, [(b"own", b"new")])]}).write()
    harm(folder / "000005.ldb")
    assert settled(folder) == StorageResult({b"own": b"new"}, 1)


@HARMS
@pytest.mark.parametrize("is_dated_later", [False, True])
def test_how_old_a_table_is_may_stand_in_a_later_edit(tmp_path, is_dated_later, harm):
    """A new MANIFEST begins with all tables, and says what the last sequence number is in its second edit."""
    later = 15 if is_dated_later else None
    old, new = TableSpec(4, entries("own", sequence=3)), TableSpec(5, entries("own", sequence=20))
    small = TableSpec(6, entries("zz", sequence=14), last_sequence=later)
    folder = Folder(tmp_path / "db", tables=[old, small, new], logs={9: []}).write()
    harm(folder / "000004.ldb")
    if is_dated_later:
        assert settled(folder) == StorageResult({b"own": b"vown"}, 1)
    else:
        with pytest.raises(StorageDamaged, match=r"000004\.ldb"):
            settled(folder)


@HARMS
def test_a_deleted_value_settles_nothing(tmp_path, harm):
    table = TableSpec(5, [(b"other", 2, b"v"), (b"own", 3, b"old")], last_sequence=4)
    folder = Folder(tmp_path / "db", tables=[table], logs={9: [batch(5, [(b"own", None)])]}).write()
    harm(folder / "000005.ldb")
    with pytest.raises(StorageDamaged, match=r"000005\.ldb"):
        settled(folder)


def test_without_a_manifest_no_table_is_known_to_be_old(tmp_path):
    folder = aged(tmp_path / "db", 3).write()
    break_block(folder / "000004.ldb")
    assert settled(folder).value[b"own"] == b"3"
    lose_manifest(folder)
    with pytest.raises(StorageDamaged, match=r"000004\.ldb"):
        settled(folder)


# --- how a source is read ------------------------------------------------------------------------------------------


def test_only_tables_that_may_hold_wanted_keys_are_copied(tmp_path, monkeypatch):
    folder = simple(tmp_path / "db")
    seen = copied(folder, monkeypatch)
    assert set(scan(folder, Between(b"w", b"x")).value) == {b"x"}
    assert seen == ["MANIFEST-000001", "000009.log", "000006.ldb"]


def test_nothing_of_the_source_changes_and_nothing_stays_behind(tmp_path):
    folder = simple(tmp_path / "db")
    before = snapshot(folder)
    scan(folder)
    assert snapshot(folder) == before
    assert list((tmp_path / "work").iterdir()) == []


def test_an_archive_is_read_as_its_folder_is(tmp_path):
    folder = simple(tmp_path / "db")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, f"inner/db/{path.name}")
    tree = ZipTree(tmp_path / "a.zip")
    found = read_leveldb(tree, "inner/db", BYTEWISE, tmp_path / "w", lambda database: set(database.scan(ALL)))
    tree.close()
    assert found == StorageResult({b"a", b"b", b"c", b"x", b"y"}, 0)


def test_a_damaged_member_of_an_archive_is_damage(tmp_path):
    folder = simple(tmp_path / "db")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"db/{path.name}")
    data = (tmp_path / "a.zip").read_bytes()
    stored = (folder / "000005.ldb").read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace(stored, bytes(len(stored))))
    tree = ZipTree(tmp_path / "a.zip")
    with pytest.raises(StorageDamaged, match=r"000005\.ldb"):
        read_leveldb(tree, "db", BYTEWISE, tmp_path / "w", lambda database: database.scan(ALL))
    tree.close()


class Restless(FolderTree):
    """A folder that somebody changes whenever one of its files is opened."""

    def __init__(self, path: Path, name: str, change) -> None:
        super().__init__(path)
        self.name, self.change, self.times = name, change, 0

    def open(self, name: str):
        if name.endswith(self.name):
            self.times += 1
            self.change(self.path / "db", self.times)
        return super().open(name)


def read_restless(tree: FolderTree) -> StorageResult[dict[bytes, Record]]:
    return read_leveldb(tree, "db", BYTEWISE, tree.path / "work", lambda database: database.scan(ALL))


def test_a_table_that_vanishes_while_it_is_read_is_looked_for_again(tmp_path):
    simple(tmp_path / "db")
    tree = Restless(tmp_path, "000005.ldb", lambda folder, _: (folder / "000005.ldb").unlink())
    with pytest.raises(StorageDamaged, match=r"000005\.ldb: the file is missing"):
        read_restless(tree)
    assert tree.times == 1


def test_a_running_application_makes_reading_start_again(tmp_path):
    simple(tmp_path / "db")

    def compact(folder: Path, times: int) -> None:
        if times == 1:
            shutil.rmtree(folder)
            Folder(folder, tables=[TableSpec(12, entries("a", "new", sequence=40))], logs={13: []}).write()

    tree = Restless(tmp_path, "000005.ldb", compact)
    assert set(read_restless(tree).value) == {b"a", b"new"}
    assert tree.times == 1


def test_reading_gives_up_after_some_attempts(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    simple(tmp_path / "db")

    def grow(folder: Path, times: int) -> None:
        with (folder / "MANIFEST-000001").open("ab") as file:
            file.write(log([b"\x04" + varint(100 + times)]))

    tree = Restless(tmp_path, "000009.log", grow)
    with pytest.raises(StorageChanged, match="quit the application"):
        read_restless(tree)
    assert tree.times == 1 + len(PAUSES)
    assert waited == [0, *PAUSES]
    assert list((tmp_path / "work").iterdir()) == []


def test_a_log_that_grows_is_no_reason_to_start_again(tmp_path):
    folder = simple(tmp_path / "db")

    def append(_: Path, times: int) -> None:
        data = log([batch(30, [(b"c", b"c")]), batch(40 + times, [(b"late", b"v")])])
        (folder / "000009.log").write_bytes(data)

    tree = Restless(tmp_path, "000006.ldb", append)
    assert set(read_restless(tree).value) == {b"a", b"b", b"c", b"x", b"y"}
    assert tree.times == 1


def test_a_file_that_shrinks_while_it_is_read_is_a_change(tmp_path):
    simple(tmp_path / "db")

    def shrink(folder: Path, _: int) -> None:
        data = (folder / "000009.log").read_bytes()
        (folder / "000009.log").write_bytes(data[:-1])

    with pytest.raises(StorageChanged):
        read_restless(Restless(tmp_path, "000009.log", shrink))


def test_what_cannot_be_opened_is_damage(tmp_path):
    folder = simple(tmp_path / "db")
    (folder / "000009.log").unlink()
    (folder / "000009.log").mkdir()
    with pytest.raises(StorageDamaged, match=r"000009\.log"):
        scan(folder)


def test_a_pipe_is_damage_and_nobody_waits_for_it(tmp_path, monkeypatch):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")

    def ring(*_: object) -> None:
        raise AssertionError("the reader waits for a pipe")

    signal.signal(signal.SIGALRM, ring)
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    folder = simple(tmp_path / "db")
    for name, said in (("000005.ldb", "000005.ldb"), ("000009.log", "000009.log"), ("CURRENT", "")):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        os.mkfifo(folder / name)
        signal.alarm(20)
        if said:
            with pytest.raises(StorageDamaged, match=rf"^db/{said}: a pipe, a socket or a device, not a file$"):
                scan(folder)
        else:
            assert scan(folder).passed_over == 1
        signal.alarm(0)
        (folder / name).unlink()
        (folder / name).write_bytes(kept)
    assert waited == [0.0] * 3
    assert scan(folder).passed_over == 0


class Failing(FolderTree):
    """A folder on a disk that cannot read one of its files."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    def open(self, name: str):
        file = super().open(name)
        return BadFile(file) if name.endswith(self.name) else file


class BadFile(io.BufferedReader):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("name", ["000005.ldb", "000009.log"])
def test_a_disk_that_fails_to_read_a_file_is_damage_of_that_file(tmp_path, name):
    simple(tmp_path / "db")
    with pytest.raises(StorageDamaged, match=f"^db/{name}: {os.strerror(errno.EIO)}$"):
        read_restless(Failing(tmp_path, name))


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000001"])
def test_a_disk_that_fails_to_read_what_counts_is_as_if_it_were_gone(tmp_path, name):
    simple(tmp_path / "db")
    found = read_restless(Failing(tmp_path, name))
    assert set(found.value) == {b"a", b"b", b"c", b"x", b"y"}
    assert found.passed_over == 1


def test_a_work_folder_that_cannot_be_written_is_no_damage(tmp_path):
    simple(tmp_path / "db")
    tree = Restless(tmp_path, "000009.log", lambda folder, _: shutil.rmtree(folder.parent / "work"))
    with pytest.raises(FileNotFoundError, match="regraft-"):
        read_restless(tree)
    assert tree.times == 1
