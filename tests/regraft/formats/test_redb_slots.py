"""Which commit of a redb file is read: closed or not, one slot damaged, or pages that never reached the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from redb_writer import GOD_BYTE, RECOVERY, SLOTS, TWO_PHASE, Redb, RedbTable, write_redb

from regraft.formats.redb import PageDamage, RedbDamaged, RedbError, read_redb


def table(word: bytes, count: int = 60) -> RedbTable:
    return RedbTable("&str", "&[u8]", {f"{at:03}".encode(): word for at in range(count)})


NEW, OLD = {"t": table(b"new")}, {"t": table(b"old")}
BOTH = pytest.mark.parametrize("version", [2, 3])
PLACES = pytest.mark.parametrize("primary", [0, 1])


def made(path: Path, **options: object) -> Path:
    return write_redb(path / "x.redb", NEW, older=OLD, page_size=512, transaction_id=9, **options)


def flip(path: Path, at: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def read(path: Path) -> tuple[str, int, bool, list[PageDamage]]:
    """Return which word the rows have, the transaction, whether the file is clean, and the damage."""
    damages: list[PageDamage] = []
    with read_redb(path, on_damage=damages.append) as file:
        words = {value for _, value in file.rows("t")}
        return b" ".join(words).decode(), file.transaction_id, file.clean, damages


def first_page_of_new(path: Path) -> int:
    """Return where the first leaf of the newer table is."""
    return path.read_bytes().index(b"new") // 512 * 512


@BOTH
@PLACES
@pytest.mark.parametrize("two_phase", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_the_slot_that_the_file_names_is_read(tmp_path, version, primary, two_phase, clean):
    path = made(tmp_path, version=version, primary=primary, two_phase=two_phase, clean=clean)
    assert read(path) == ("new", 9, clean, [])


@BOTH
@PLACES
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_slot_gives_way_to_the_other(tmp_path, version, primary, clean):
    path = made(tmp_path, version=version, primary=primary, clean=clean, two_phase=False)
    flip(path, SLOTS[primary] + 20)
    word, transaction, _, damages = read(path)
    assert (word, transaction) == ("old", 8)
    assert [(one.table, one.page, one.offset, one.length) for one in damages] == [
        (None, f"commit slot {primary}", SLOTS[primary], 128)
    ]
    assert damages[0].reason == "the checksum is wrong, so the other commit was read"
    with pytest.raises(RedbDamaged, match=f"commit slot {primary}") as caught:
        read_redb(path)
    assert caught.value.code == "RedbDamaged"


@BOTH
@PLACES
def test_a_damaged_slot_that_is_not_needed_is_damage_in_a_file_that_was_closed(tmp_path, version, primary):
    path = made(tmp_path, version=version, primary=primary)
    flip(path, SLOTS[1 - primary] + 100)
    word, transaction, _, damages = read(path)
    assert (word, transaction, len(damages)) == ("new", 9, 1)
    assert damages[0].reason == "its checksum is wrong"


@BOTH
def test_a_commit_that_was_being_written_is_no_damage(tmp_path, version):
    path = made(tmp_path, version=version, clean=False)
    flip(path, SLOTS[1] + 100)
    assert read(path) == ("new", 9, False, [])


@BOTH
def test_two_damaged_slots_leave_nothing(tmp_path, version):
    path = made(tmp_path, version=version)
    flip(path, SLOTS[0] + 40)
    flip(path, SLOTS[1] + 127)
    with pytest.raises(RedbError) as caught:
        read_redb(path, on_damage=lambda _: None)
    assert caught.value.code == "RedbSlotsDamaged"


@BOTH
@PLACES
def test_of_a_file_that_was_left_open_the_newer_slot_is_read(tmp_path, version, primary):
    """The file may name the old slot still, or again."""
    path = made(tmp_path, version=version, primary=primary, clean=False, two_phase=False)
    flip(path, GOD_BYTE, 1)
    assert read(path) == ("new", 9, False, [])


@BOTH
def test_of_two_phases_the_slot_that_the_file_names_is_read(tmp_path, version):
    path = made(tmp_path, version=version, clean=False, two_phase=True)
    flip(path, GOD_BYTE, 1)
    assert read(path) == ("old", 8, False, [])


@BOTH
def test_a_commit_whose_pages_did_not_reach_the_disk_gives_way_to_the_one_before(tmp_path, version):
    path = made(tmp_path, version=version, clean=False, two_phase=False)
    flip(path, first_page_of_new(path) + 20)
    word, transaction, clean, damages = read(path)
    assert (word, transaction, clean) == ("old", 8, False)
    assert [one.reason for one in damages] == ["this commit was not completely written, so the previous one was read"]


@BOTH
def test_redbs_own_trees_count_for_a_commit_too(tmp_path, version):
    path = made(tmp_path, version=version, clean=False, two_phase=False)
    data = path.read_bytes()
    at = data.index(b"\1redb::SavepointId")
    flip(path, at)
    assert read(path)[:2] == ("old", 8)


def test_the_tree_of_freed_pages_counts_for_a_commit_too(tmp_path):
    path = made(tmp_path, version=2, clean=False, two_phase=False)
    flip(path, path.read_bytes().index(b"\5\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0"))
    assert read(path)[:2] == ("old", 8)


@BOTH
@pytest.mark.parametrize("flags", [0, RECOVERY | TWO_PHASE])
def test_a_commit_that_was_on_the_disk_does_not_give_way(tmp_path, version, flags):
    path = made(tmp_path, version=version, clean=not flags & RECOVERY, two_phase=bool(flags & TWO_PHASE))
    flip(path, first_page_of_new(path) + 20)
    word, transaction, _, damages = read(path)
    assert (word, transaction) == ("new", 9)
    assert [one.table for one in damages] == ["t"]


@BOTH
def test_where_no_commit_is_whole_the_newer_one_is_read(tmp_path, version):
    path = made(tmp_path, version=version, clean=False, two_phase=False)
    flip(path, first_page_of_new(path) + 20)
    flip(path, path.read_bytes().index(b"old"))
    word, transaction, _, damages = read(path)
    assert (word, transaction) == ("new", 9)
    assert [one.table for one in damages] == ["t"]


def test_a_closed_file_that_names_its_older_slot_is_damaged_in_version_3(tmp_path):
    path = made(tmp_path, version=3)
    flip(path, GOD_BYTE, 1)
    word, transaction, _, damages = read(path)
    assert (word, transaction) == ("new", 9)
    assert [one.reason for one in damages] == ["the header names this commit, but the other one is newer and was read"]


def test_in_version_2_a_commit_that_was_not_to_last_may_stay_in_the_other_slot(tmp_path):
    path = made(tmp_path, version=2)
    flip(path, GOD_BYTE, 1)
    assert read(path) == ("old", 8, True, [])


def test_the_version_is_that_of_the_commit(tmp_path):
    """A program that brings a file to version 3 leaves version 2 in the other slot."""
    file = Redb(version=2)
    old = file.slot(4, file.tables(OLD))
    file.version = 3
    path = file.finish(tmp_path / "x.redb", [file.slot(5, file.tables(NEW)), old], TWO_PHASE)
    with read_redb(path) as opened:
        assert (opened.format_version, opened.transaction_id) == (3, 5)


def test_a_version_that_is_not_read_does_no_harm_in_a_slot_that_is_not_read(tmp_path):
    file = Redb(version=1)
    old = file.slot(4, None)
    file.version = 3
    path = file.finish(tmp_path / "x.redb", [file.slot(5, file.tables(NEW)), old], RECOVERY)
    assert read(path) == ("new", 5, False, [])


# --- a length that does not fit ------------------------------------------------------------------------------------


@BOTH
def test_a_file_that_grew_before_it_was_left_is_whole(tmp_path, version):
    path = made(tmp_path, version=version, clean=False, two_phase=False)
    path.write_bytes(path.read_bytes() + bytes(5120))
    assert read(path) == ("new", 9, False, [])


@BOTH
def test_a_file_that_ends_too_early_says_so_and_what_is_there_is_read(tmp_path, version):
    """The newer commit was written last."""
    path = made(tmp_path, version=version, has_system=False, clean=False, two_phase=False)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    word, transaction, _, damages = read(path)
    assert (word, transaction) == ("old", 8)
    assert (damages[0].page, damages[0].offset, damages[0].length) == ("header", 0, 320)
    assert damages[0].reason == f"the file ends after {len(data) - 100:,} of {len(data):,} bytes"


@pytest.mark.parametrize(("at", "value"), [(12, 0), (12, 100), (12, 1 << 31), (12, 4097), (20, 0), (20, (1 << 20) + 1)])
def test_a_layout_that_no_file_has_is_damage_that_ends_all(tmp_path, at, value):
    path = made(tmp_path)
    data = bytearray(path.read_bytes())
    data[at : at + 4] = value.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(RedbDamaged, match="the page or region size is not valid"):
        read_redb(path, on_damage=lambda _: None)
