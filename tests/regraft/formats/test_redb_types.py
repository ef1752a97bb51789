"""Types of redb: each name gives the values that redb reads from the same bytes, or the bytes as they are."""

from __future__ import annotations

import itertools
import struct

import pytest
from redb_writer import INTERNAL, INTERNAL2, INTERNAL3, USER_DEFINED, RedbTable, write_redb

from regraft.formats.redb import read_redb
from regraft.formats.redb.pages import TypeName, find_codec
from regraft.formats.redb.values import RAW


def decoded(name: str, data: bytes, *, kind: int = INTERNAL, version: int = 3, width: int | None = -1) -> object:
    found = find_codec(TypeName(kind=kind, name=name), version, width if width != -1 else width_of(name, kind, version))
    return found.decode(data)


def width_of(name: str, kind: int = INTERNAL, version: int = 3) -> int | None:
    """Return the only width with which the type is known; None is tried first."""
    found = [
        width for width in (None, *range(70)) if find_codec(TypeName(kind=kind, name=name), version, width) is not RAW
    ]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("name", "data", "value"),
    [
        ("()", b"", ()),
        ("bool", b"\0", False),
        ("bool", b"\1", True),
        ("char", "é".encode("utf-32-le")[:3], "é"),
        ("char", "\U0010ffff".encode("utf-32-le")[:3], "\U0010ffff"),
        ("&str", "größe".encode(), "größe"),
        ("String", b"", ""),
        ("&[u8]", b"\xff\0", b"\xff\0"),
        ("u8", b"\xff", 255),
        ("i8", b"\xff", -1),
        ("u16", b"\1\2", 513),
        ("i16", b"\0\x80", -32768),
        ("u32", b"\xff" * 4, 2**32 - 1),
        ("i32", b"\xfe" + b"\xff" * 3, -2),
        ("u64", b"\0" * 7 + b"\x80", 2**63),
        ("i64", b"\0" * 7 + b"\x80", -(2**63)),
        ("u128", b"\xff" * 16, 2**128 - 1),
        ("i128", b"\xff" * 16, -1),
        ("f32", struct.pack("<f", 1.5), 1.5),
        ("f64", struct.pack("<d", -0.1), -0.1),
        ("[u8;4]", b"\1\2\3\4", b"\1\2\3\4"),
        ("[u8;0]", b"", b""),
        ("[u16;2]", b"\1\0\2\0", [1, 2]),
        ("[&str;2]", struct.pack("<2I", 10, 13) + b"abcde", ["ab", "cde"]),
        ("[[u8;2];2]", b"abcd", [b"ab", b"cd"]),
        ("Option<u16>", b"\1\5\0", 5),
        ("Option<u16>", b"\0\0\0", None),
        ("Option<&str>", b"\1ab", "ab"),
        ("Option<&str>", b"\0", None),
        ("Option<()>", b"\1", ()),
        ("Vec<u8>", b"\3abc", b"abc"),
        ("Vec<u16>", b"\2\1\0\2\0", [1, 2]),
        ("Vec<&str>", b"\2\1a\2bc", ["a", "bc"]),
        ("Vec<&str>", b"\1\xfe\x2c\1" + b"x" * 300, ["x" * 300]),
        ("Vec<&[u8]>", b"\1\xff\0\0\1\0" + b"x" * 65536, [b"x" * 65536]),
        ("Vec<Option<u8>>", b"\2\0\0\1\7", [None, 7]),
        ("(u8,)", b"\5", (5,)),
        ("(&str,)", b"five", ("five",)),
        ("(u8,u16)", b"\1\2\0", (1, 2)),
        ("(u8,(bool,char),i8)", b"\1\1a\0\0\xff", (1, (True, "a"), -1)),
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_a_value_is_what_redb_reads(name, data, value, version):
    found = decoded(name, data, version=version)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "wide", "short", "value"),
    [
        ("(&str,u8)", b"\2\0\0\0ab\1", b"\2ab\1", ("ab", 1)),
        ("(u8,&str)", b"\1\0\0\0\1ab", b"\1ab", (1, "ab")),
        (
            "(u16,&str,u8,&[u8])",
            struct.pack("<3I", 2, 3, 1) + b"\1\0abc\7rest",
            b"\3\1\0abc\7rest",
            (1, "abc", 7, b"rest"),
        ),
        ("(&str,&str)", b"\0\0\0\0", b"\0", ("", "")),
        ("((&str,u8),u8)", b"\7\0\0\0\2\0\0\0ab\1\5", b"\4\2ab\1\5", (("ab", 1), 5)),
    ],
)
def test_the_kind_of_a_tuple_tells_how_its_lengths_are_written(name, wide, short, value):
    """redb 2 writes four bytes for each but the last, redb 3 short ones for those alone that may differ."""
    for version in (2, 3):
        assert decoded(name, wide, kind=INTERNAL, version=version) == value
        assert decoded(name, short, kind=INTERNAL2, version=version) == value
        assert decoded(name, short, kind=INTERNAL3, version=version) == value


def test_a_long_element_of_a_tuple_has_a_longer_length():
    for length, prefix in ((253, b"\xfd"), (254, b"\xfe\xfe\0"), (65536, b"\xff\0\0\1\0")):
        found = decoded("(&[u8],&str)", prefix + b"x" * length + b"end", kind=INTERNAL2)
        assert found == (b"x" * length, "end")


def test_a_tuple_within_another_type_is_read_where_its_encoding_is_known():
    wide, short = b"\1\2\0\0\0ab\1", b"\1\2ab\1"
    assert decoded("Option<(&str,u8)>", wide, version=2) == ("ab", 1)
    assert decoded("Option<(&str,u8)>", short, kind=INTERNAL3) == ("ab", 1)
    assert decoded("Option<(&str,u8)>", short, kind=INTERNAL) == short
    assert decoded("Option<(u8,u8)>", b"\1\2\3", kind=INTERNAL) == (2, 3)


@pytest.mark.parametrize(
    "name",
    [
        *("", "u7", "u256", "str", "uuid::Uuid", "Option<", "Option<u8", "Option<>", "Vec<x::Y>", "[u8]", "[u8;]"),
        *("[u8;-1]", "(u8", "(u8)", "(,)", "(u8,)x", "u8 ", "(u8, u8)", "Option<u8>>", "[();4000000000]", "Vec<()>"),
        *("[u8;99999999999]", "Option<" * 40 + "u8" + ">" * 40, "(" * 5000, "[" * 5000),
    ],
)
def test_a_type_that_nobody_knows_gives_bytes(name):
    assert decoded(name, b"any") == b"any"


@pytest.mark.parametrize("kind", [0, USER_DEFINED, 5, 255])
def test_a_type_of_somebody_else_gives_bytes(kind):
    assert decoded("u8", b"\1", kind=kind) == b"\1"


def test_a_type_of_another_width_than_the_table_says_gives_bytes():
    assert decoded("u32", b"\1", width=1) == b"\1"
    assert decoded("&str", b"\1", width=1) == b"\1"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("bool", b"\2"),
        ("char", b"\0\xd8\0"),
        ("char", b"\0\0\x11"),
        ("&str", b"\xff"),
        ("Option<u8>", b"\2\0"),
        ("Option<&str>", b""),
        ("Option<&str>", b"\2"),
        ("[&str;2]", b"\0\0\0\0"),
        ("[&str;2]", struct.pack("<2I", 10, 9) + b"abc"),
        ("[&str;2]", struct.pack("<2I", 10, 12) + b"abc"),
        ("[&str;1]", struct.pack("<I", 9)),
        ("Vec<u8>", b""),
        ("Vec<u8>", b"\2a"),
        ("Vec<u8>", b"\1ab"),
        ("Vec<u64>", b"\xff\xff\xff\xff\xff"),
        ("Vec<&str>", b"\xff\xff\xff\xff\xff"),
        ("Vec<&str>", b"\1\1ab"),
        ("Vec<&str>", b"\1\xfe\1"),
        ("(&str,u8)", b"\1\0\0"),
        ("(&str,u8)", b"\1\0\0\0ab\1"),
        ("(&str,u8)", b"\xff\xff\xff\xff"),
        ("(u8,&str)", b"\2\0\0\0ab"),
    ],
)
def test_bytes_that_are_no_value_of_a_type_are_refused(name, data):
    with pytest.raises(ValueError):
        decoded(name, data)


@pytest.mark.parametrize(
    ("name", "kind", "in_order"),
    [
        ("i8", INTERNAL, [b"\x80", b"\xff", b"\0", b"\x7f"]),
        ("u16", INTERNAL, [b"\xff\0", b"\0\1"]),
        ("&str", INTERNAL, [b"", b"a", b"ab", "é".encode(), "\uffff".encode(), "\U00010000".encode()]),
        ("char", INTERNAL, [b"a\0\0", b"\0\1\0", b"\0\0\1"]),
        ("Option<i8>", INTERNAL, [b"\0\0", b"\1\xff", b"\1\0"]),
        ("Option<&str>", INTERNAL, [b"\0", b"\1", b"\1a"]),
        ("(i8,u8)", INTERNAL, [b"\xff\1", b"\0\0", b"\0\1"]),
        ("(&str,u8)", INTERNAL2, [b"\1a\5", b"\2aa\1", b"\1b\0"]),
        ("[i8;2]", INTERNAL, [b"\xff\1", b"\0\0"]),
        ("[&str;1]", INTERNAL, [struct.pack("<I", 5) + b"a", struct.pack("<I", 6) + b"aa"]),
        ("bool", INTERNAL, [b"\0", b"\1"]),
    ],
)
def test_keys_are_in_the_order_that_redb_has_for_their_type(name, kind, in_order):
    rank = find_codec(TypeName(kind=kind, name=name), 3, width_of(name, kind)).rank
    assert rank is not None
    ranks = [rank(key) for key in in_order]
    assert all(first < second for first, second in itertools.pairwise(ranks))


@pytest.mark.parametrize("name", ["f32", "f64", "Vec<u8>", "(u8,f32)", "Option<f64>", "[f32;2]", "x::Own"])
def test_types_without_a_known_order_are_read_in_the_order_they_stand_in(name):
    assert find_codec(TypeName(kind=INTERNAL, name=name), 3, width_of(name)).rank is None


def test_keys_of_a_type_of_somebody_else_come_as_they_stand(tmp_path):
    place = {b"z": 0, b"a": 1, b"m": 2}
    rows = dict.fromkeys(place, b"")
    table = RedbTable("my::Key", "my::Value", rows, key_kind=USER_DEFINED, value_kind=USER_DEFINED, order=place.get)
    with read_redb(write_redb(tmp_path / "x.redb", {"t": table})) as file:
        assert (file.tables["t"].key_type, file.tables["t"].value_type) == ("my::Key", "my::Value")
        assert [key for key, _ in file.rows("t")] == list(place)
