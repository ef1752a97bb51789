"""Damaged redb files: what is wrong is said, the rest is read, and no row comes out that was not written."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from redb_damage import ROWS, TEXT, finished, made, read, reasons
from redb_writer import Redb, RedbTable, definition, digest, leaf_bytes, root, write_redb

from regraft.formats.redb import PageDamage, read_redb


def overwritten(path: Path, at: int, data: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    return path


@pytest.fixture
def file() -> Redb:
    return Redb(page_size=512)


def three_leaves(file: Redb) -> list[tuple[int, bytes]]:
    return [file.leaf(ROWS[at : at + 4], TEXT) for at in (0, 4, 8)]


# --- leaves --------------------------------------------------------------------------------------------------------


def test_a_leaf_with_a_wrong_checksum_is_left_out_and_the_others_are_read(tmp_path, file):
    leaves = three_leaves(file)
    path = made(tmp_path, file, root(file.branch(leaves, [b"k03", b"k07"], None), 12))
    overwritten(path, file.offset(leaves[1][0]) + 60, b"V")
    rows, damages = read(path)
    assert rows == ROWS[:4] + ROWS[8:]
    assert damages == [
        PageDamage(
            table="t",
            page="region 0, page 1, order 0",
            offset=file.offset(leaves[1][0]),
            length=512,
            reason="its checksum is wrong",
        )
    ]


def test_bytes_behind_the_last_value_do_not_count(tmp_path, file):
    leaf = file.leaf(ROWS[:3], TEXT)
    path = overwritten(made(tmp_path, file, root(leaf, 3)), file.offset(leaf[0]) + 500, b"whatever")
    assert read(path) == (ROWS[:3], [])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ((0, b"\7"), "it is neither a leaf nor a branch"),
        ((0, b"\2"), "an entry lies outside of its page"),
        ((0, b"\2\0\xff"), "it has more children than fit into the page"),
        ((2, b"\0\0"), "the page has no entry"),
        ((2, b"\xff\xff"), "it has more entries than fit into the page"),
        ((4, struct.pack("<I", 3)), "an entry ends before it begins"),
        ((4, struct.pack("<I", 5000)), "an entry ends before it begins"),
        ((20 + 12, struct.pack("<I", 0xFFFFFFFF)), "an entry exceeds its page"),
    ],
)
def test_a_leaf_that_says_what_cannot_be_is_damaged(tmp_path, file, change, reason):
    """Its checksum is right: whoever wrote it is to blame."""
    at, data = change
    page = bytearray(leaf_bytes(ROWS[:4], TEXT).ljust(512, b"\0"))
    page[at : at + len(data)] = data
    path = made(tmp_path, file, root((file.place(bytes(page)), digest(page)), 4))
    rows, damages = read(path)
    assert (rows, damages[0].reason) == ([], reason)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 0, 1)])
def test_keys_out_of_order_are_damage(tmp_path, file, order):
    leaf = file.leaf([ROWS[at] for at in order], TEXT)
    rows, damages = read(made(tmp_path, file, root(leaf, 3)))
    assert (rows, reasons(damages)) == ([], ["its keys are not in order"])


@pytest.mark.parametrize(
    ("keys", "good"),
    [([b"k03", b"k06"], 8), ([b"k02", b"k07"], 8), ([b"zzz", b"zzzz"], 4)],
    ids=["above the upper", "both sides", "below the lower"],
)
def test_keys_beyond_those_of_the_branch_are_damage(tmp_path, file, keys, good):
    rows, damages = read(made(tmp_path, file, root(file.branch(three_leaves(file), keys, None), 12)))
    assert len(rows) == good
    assert set(reasons(damages)) == {"its keys are not in order"}


def test_leaves_out_of_order_are_damage_where_the_branch_does_not_tell(tmp_path, file):
    first, second, third = three_leaves(file)
    path = made(tmp_path, file, root(file.branch([second, first, third], [b"k07", b"k07"], None), 12))
    assert reasons(read(path)[1]) == ["its keys are not in order"]


def test_a_key_that_is_not_of_its_type_is_damage(tmp_path, file):
    leaf = file.leaf([(b"\1", b"")], (1, None))
    path = made(tmp_path, file, root(leaf, 1), key_type="bool")
    assert read(path) == ([(b"\1", b"")], [])
    file = Redb(page_size=512)
    rows, damages = read(made(tmp_path, file, root(file.leaf([(b"\2", b"")], (1, None)), 1), key_type="bool"))
    assert (rows, reasons(damages)) == ([], ["a key does not match its type: a boolean is neither 0 nor 1"])


def test_a_value_that_is_not_of_its_type_costs_its_row(tmp_path):
    table = RedbTable("&str", "&str", {b"a": b"fine", b"b": b"\xff", b"c": b"too"})
    damages: list[PageDamage] = []
    with read_redb(write_redb(tmp_path / "x.redb", {"t": table}), on_damage=damages.append) as opened:
        assert list(opened.rows("t")) == [("a", "fine"), ("c", "too")]
        assert [one.reason[:31] for one in damages] == ["a row does not match its types:"]
        assert len(list(opened.raw_rows("t"))) == 3


# --- branches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 8 + 24 * 3 + 4 * 2, 8 + 24 * 3], ids=["padding", "a key", "the end of a key"])
def test_below_a_damaged_branch_every_child_is_read_that_is_right(tmp_path, file, at):
    branch = file.branch(three_leaves(file), [b"k03", b"k07"], None)
    path = overwritten(made(tmp_path, file, root(branch, 12)), file.offset(branch[0]) + at, b"\xf0")
    rows, damages = read(path)
    assert rows == ROWS
    assert len(damages) == 1
    assert damages[0].offset == file.offset(branch[0])


@pytest.mark.parametrize("at", [8 + 16, 8 + 48 + 8], ids=["a checksum", "a page number"])
def test_a_child_that_a_damaged_branch_does_not_prove_is_left_out(tmp_path, file, at):
    branch = file.branch(three_leaves(file), [b"k03", b"k07"], None)
    path = overwritten(made(tmp_path, file, root(branch, 12)), file.offset(branch[0]) + at, b"\xf0")
    rows, damages = read(path)
    assert rows == ROWS[:4] + ROWS[8:]
    assert reasons(damages)[0] == "its checksum is wrong"
    assert len(damages) == 2


def test_a_damaged_branch_does_not_lead_into_another_table(tmp_path, file):
    """Its children are right as pages, but nothing proves that they are its own."""
    foreign = file.branch([file.leaf([(b"k05", b"foreign")], TEXT), file.leaf([(b"k06", b"f")], TEXT)], [b"k05"], None)
    branch = file.branch(three_leaves(file), [b"k03", b"k07"], None)
    path = made(tmp_path, file, root(branch, 12))
    overwritten(path, file.offset(branch[0]) + 8 + 48 + 8, struct.pack("<Q", foreign[0]))
    rows, damages = read(path)
    assert rows == ROWS[:4] + ROWS[8:]
    assert reasons(damages) == ["its checksum is wrong", "it is not the page that a damaged parent page refers to"]


# --- pages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (1 << 19, "the page lies outside of the file"),
        (5 << 20, "the page lies outside of the file"),
        (0xFFFFF << 20, "the page lies outside of the file"),
        (20 << 59, "the page lies outside of the file"),
        (21 << 59, "the page number is not valid"),
        (31 << 59, "the page number is not valid"),
        (1 << 64, "the page lies outside of the file"),
    ],
)
def test_a_page_that_is_not_in_the_file_is_damage(tmp_path, number, reason):
    file = Redb(page_size=512)
    if number == 1 << 64:  # it begins in the file, and ends behind it
        number = 3 << 59
    leaf = file.leaf(ROWS[:3], TEXT)
    rows, damages = read(made(tmp_path, file, root((number, leaf[1]), 3)))
    assert (rows, reasons(damages)) == ([], [reason])


def test_a_page_beyond_its_region_is_damage(tmp_path):
    file = Redb(page_size=512, region_pages=8)
    leaf = file.leaf(ROWS[:3], TEXT)
    path = made(tmp_path, file, root((8, leaf[1]), 3))
    path.write_bytes(path.read_bytes() + bytes(512 * 20))
    assert reasons(read(path)[1]) == ["the page number is not valid"]


def test_a_page_that_is_reached_twice_is_damage(tmp_path, file):
    leaf = file.leaf(ROWS[:3], TEXT)
    rows, damages = read(made(tmp_path, file, root(file.branch([leaf, leaf], [b"k02"], None), 6)))
    assert (rows, reasons(damages)) == (ROWS[:3], ["the page is referenced twice"])


def test_a_page_within_a_larger_one_is_reached_twice(tmp_path, file):
    large = leaf_bytes([(b"a", b"x" * 900)], TEXT)
    number = file.place(large)
    inside = (((number & 0xFFFFF) << 1) + 1, digest(b""))
    rows, damages = read(made(tmp_path, file, root(file.branch([(number, digest(large)), inside], [b"a"], None), 2)))
    assert (len(rows), reasons(damages)) == (1, ["the page is referenced twice"])
    file = Redb(page_size=512)
    number = file.place(large)
    inside = (((number & 0xFFFFF) << 1) + 1, digest(b""))
    branch = file.branch([inside, (number, digest(large))], [b"a"], None)
    assert reasons(read(made(tmp_path, file, root(branch, 2)))[1])[-1] == "the page is referenced twice"


def test_a_page_of_two_tables_is_damage_of_the_second(tmp_path, file):
    tree = root(file.leaf(ROWS[:3], TEXT), 3)
    table = RedbTable("&str", "&[u8]", {})
    tables = [(name, definition(table, tree, 3)) for name in (b"a", b"b", b"c")]
    damages: list[PageDamage] = []
    with read_redb(finished(tmp_path, file, file.tree(tables, TEXT)), on_damage=damages.append) as opened:
        assert [len(list(opened.raw_rows(name))) for name in "abca"] == [3, 0, 0, 3]
        opened.verify()
    assert [(one.table, one.reason) for one in damages] == [
        (name, "the page belongs to another table") for name in "bcbc"
    ]


# --- the list of tables --------------------------------------------------------------------------------------------


def test_a_damaged_list_belongs_to_no_table(tmp_path, file):
    path = made(tmp_path, file, None)
    data = path.read_bytes()
    rows, damages = read(overwritten(path, data.rindex(b"&str"), b"?"))
    assert (rows, [one.table for one in damages], reasons(damages)) == ([], [None], ["its checksum is wrong"])


@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\1", "a table is in the form of version 1"),
        (0, b"\5", "a table is of an unknown kind"),
        (52, b"\2", "the definition of a table cannot be read"),
        (60, b"\xff\xff", "the definition of a table cannot be read"),
        (60, b"\0", "the name of a type cannot be read"),
        (65, b"\xff", "the name of a type cannot be read"),
    ],
)
def test_a_definition_that_cannot_be_read_costs_its_table(tmp_path, file, at, data, reason):
    broken = bytearray(definition(RedbTable("&str", "&[u8]", {}), None, 0))
    broken[at : at + len(data)] = data
    whole = definition(RedbTable("u8", "u8", {}), None, 0)
    path = finished(tmp_path, file, file.tree([(b"broken", bytes(broken)), (b"whole", whole)], TEXT))
    damages: list[PageDamage] = []
    with read_redb(path, on_damage=damages.append) as opened:
        assert list(opened.tables) == ["whole"]
    assert reasons(damages) == [reason]


def test_other_entries_of_the_list_that_cannot_be_read(tmp_path, file):
    whole = definition(RedbTable("u8", "u8", {}), None, 0)
    path = finished(tmp_path, file, file.tree([(b"a", whole[:-4]), (b"b", whole[:63]), (b"\xff", whole)], TEXT))
    damages: list[PageDamage] = []
    with read_redb(path, on_damage=damages.append) as opened:
        assert not opened.tables
    assert reasons(damages) == [
        "the definition of a table cannot be read",
        "the definition of a table is truncated",
        "the name of a table cannot be read",
    ]


# --- multimaps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the values of a key have an unknown format"),
        (b"\2" + bytes(24), "the values of a key have an unknown format"),
        (b"\3" + bytes(31), "the values of a key have an unknown format"),
        (b"\1", "the page has another type than expected"),
        (b"\1\1\0\xff\xff", "it has more entries than fit into the page"),
        (b"\1" + leaf_bytes([(b"b", b""), (b"a", b"")], (None, 0)), "its keys are not in order"),
        (b"\3" + bytes(32), "the page is referenced twice"),
    ],
)
def test_values_of_a_multimap_that_cannot_be_read(tmp_path, file, value, reason):
    fine = b"\1" + leaf_bytes([(b"x", b"")], (None, 0))
    leaf = file.leaf([(b"a", fine), (b"b", value), (b"c", fine)], TEXT)
    rows, damages = read(made(tmp_path, file, root(leaf, 3), multimap=True))
    assert (rows, reasons(damages)) == ([(b"a", b"x"), (b"c", b"x")], [reason])
