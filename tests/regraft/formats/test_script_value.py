"""Values of JavaScript as Chromium stores them: data is decoded, and no bytes make the decoder do anything else."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from chromium_files import HEAD, serialized, tagged
from hypothesis import given
from hypothesis import strategies as st
from leveldb_files import sized, varint

from regraft.formats.chromium import MAX_DEPTH, decode_script_value
from regraft.formats.chromium.leveldb import MalformedStorage

TEXTS = st.text(st.characters(), max_size=20) | st.sampled_from(["\ud83d", "\udc00x", "é", "中文"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**31), 2**31 - 1) | st.floats(allow_nan=False) | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=30,
)


def decoded(tags: bytes, head: bytes = HEAD) -> Any:
    return decode_script_value(head + tags)


# --- what is decoded -----------------------------------------------------------------------------------------------


@given(VALUES)
def test_data_is_read_back(value):
    assert decode_script_value(serialized(value)) == value


def double(number: float) -> bytes:
    return struct.pack("<d", number)


@pytest.mark.parametrize(
    ("tags", "value"),
    [
        (b"_", None),
        (b"0", None),
        (b"T", True),
        (b"F", False),
        (b"I\x01", -1),
        (b"I\xff\xff\xff\xff\x0f", -(2**31)),
        (b"U\xff\xff\xff\xff\x0f", 2**32 - 1),
        (b"N" + double(0.5), 0.5),
        (b"N" + double(-math.inf), -math.inf),
        (b"Z\x10" + (2**63).to_bytes(8, "little"), 2**63),
        (b"Z\x11" + (5).to_bytes(8, "little"), -5),
        (b"Z\x00", 0),
        (b"S\x03\xe4\xb8\xad", "中"),
        (b'"\x01\xe9', "é"),
        (b"\0\0c\x02\x2d\x4e", "中"),
        (b"c\x02\x3d\xd8", "\ud83d"),
        (b"?\x01o{\x00", {}),
        (b"D" + double(1.5e12), 1.5e12),
        (b"y", True),
        (b"x", False),
        (b"n" + double(5), 5.0),
        (b"z\x10" + (7).to_bytes(8, "little"), 7),
        (b's"\x01a', "a"),
        (b'R"\x03a.b\x02', "a.b"),
        (b'oI\x02"\x01aU\x03I\x02N' + double(2.5) + b"T{\x03", {"1": "a", "3": 1, "2.5": True}),
        (b"A\x03T-_$\x00\x03", [True, None, None]),
        (b'A\x01T"\x01kF$\x01\x01', [True]),
        (b'a\x04I\x04"\x01x"\x01kT@\x02\x04', [None, None, "x", None]),
        (b';"\x01kI\x02I\x04T:\x04', [["k", 1], [2, True]]),
        (b"'I\x02\"\x01x,\x02", [1, "x"]),
        (b"B\x02\x01\x02", b"\x01\x02"),
        (b"B\x04abcdVB\x01\x02\x00", b"bc"),
        (b"~\x02\x08ab", b"ab"),
        (b"u\x01", None),
        (b"t\x00", None),
        (b'rTm"\x03boos"\x05stack.', None),
        (b"rc" + b"o{\x00" + b".", None),
        (b"\\i\x00", None),
        (b"\\L\x02\x00\x01", None),
    ],
)
def test_every_kind_of_data_is_decoded(tags, value):
    assert decoded(tags) == value


@pytest.mark.parametrize(
    "head",
    [
        b"\xff\x0d",
        b"\xff\x0f",
        b"\xff\x11\xff\x0d",
        b"\xff\x14\xff\x0f",
        HEAD,
        b"\xff\x15\xff\x0f",
        b"\xff\x19\xff\x12",
    ],
)
def test_the_versions_before_a_value_are_passed_over(head):
    assert decoded(b'o"\x01kI\x02{\x01', head) == {"k": 1}


def test_what_follows_a_value_is_left_alone():
    assert decoded(b"T\xa0\x00\x00\x00") is True


def test_old_values_have_no_tag_before_inner_texts_and_no_flags_in_views():
    assert decoded(b"R\x03a.b\x02", b"\xff\x0b") == "a.b"
    assert decoded(b"A\x02B\x02abVB\x00\x01I\x02$\x00\x02", b"\xff\x0d") == [b"a", 1]


def test_a_reference_is_the_object_it_refers_to():
    found = decoded(b'o"\x01aA\x01T$\x00\x01"\x01b^\x01{\x02')
    assert found == {"a": [True], "b": [True]}
    assert found["a"] is found["b"]


def test_views_and_errors_are_counted_among_the_objects_that_are_referred_to():
    assert decoded(b"A\x04B\x02abVB\x01\x01\x00r.D" + double(3) + b"^\x02$\x00\x04") == [b"b", None, 3.0, b"b"]


def test_a_cycle_ends_where_it_begins_again():
    assert decoded(b'o"\x04self^\x00"\x02ino"\x02up^\x00{\x01{\x02') == {"self": None, "in": {"up": None}}


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (b"", "missing"),
        (b"\0\0", "missing"),
        (b"q", "not data"),
        (b"{", "not data"),
        (b"\\#\x01\x02", "browser object"),
        (b"w\x00", "not data"),
        (b"N\x00", "are expected"),
        (b'"\x05ab', "are expected"),
        (b"c\x03abc", "half a character"),
        (b"S\x01\xff", "not UTF-8"),
        (b"^\x00", "does not exist"),
        (b"o^\x05T{\x01", "does not exist"),
        (b"oT_{\x01", "name is not text"),
        (b"RT\x00", "no text where one is expected"),
        (b"A\xff\xff\xff\xff\x0f", "much larger"),
        (b"a\xff\xff\xff\xff\x0f@\x00\xff\xff\xff\xff\x0f", "much larger"),
        (b"B\x02abVB\x01\x02\x00", "past the end"),
        (b"r!", "unknown structure"),
        (b"\\L\xff\xff\xff\x7f", "browser object"),
        (b"Z\xfe\xff\xff\xff\x0f", "are expected"),
    ],
)
def test_what_is_no_data_is_refused(tags, said):
    with pytest.raises(MalformedStorage, match=said):
        decoded(tags)


@pytest.mark.parametrize("head", [b"", b"\xff", b"o{\x00", b"\xff\x15\xfe", b"\xff\x15\xfe" + bytes(12), b"\xff\x11"])
def test_what_has_no_version_is_refused(head):
    with pytest.raises(MalformedStorage):
        decode_script_value(head)


def nested(depth: int) -> bytes:
    return b"A\x01" * depth + b"T" + b"$\x00\x01" * depth


def test_values_nest_as_deep_as_data_does_and_no_deeper():
    found = decoded(nested(MAX_DEPTH - 1))
    for _ in range(MAX_DEPTH - 1):
        (found,) = found
    assert found is True
    for depth in (MAX_DEPTH, 1000, 100_000):
        with pytest.raises(MalformedStorage, match="nested too deeply"):
            decoded(nested(depth))


def test_a_few_bytes_do_not_become_gigabytes():
    many_holes = b"A\x64" + b"a\xa0\x8d\x06@\x00\xa0\x8d\x06" * 100 + b"$\x00\x64"
    with pytest.raises(MalformedStorage, match="much larger"):
        decoded(many_holes)
    views = b"A\xe8\x07B\x90\x4e" + bytes(10_000) + b"^\x01VB\x00\x90\x4e\x00" * 999 + b"$\x00\xe8\x07"
    with pytest.raises(MalformedStorage, match="much larger"):
        decoded(views)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_malformed(data):
    for head in (b"", HEAD, b"\xff\x0b"):
        try:
            decode_script_value(head + data)
        except MalformedStorage as error:
            assert str(error)


@given(VALUES, st.data())
def test_a_changed_value_is_a_value_or_malformed(value, data):
    whole = bytearray(serialized(value))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    del whole[data.draw(st.integers(at, len(whole))) :]
    try:
        decode_script_value(bytes(whole))
    except MalformedStorage as error:
        assert str(error)


def test_sizes_are_not_believed():
    for tag in b'S"cBZ~':
        with pytest.raises(MalformedStorage):
            decoded(bytes([tag]) + varint(2**62) + b"x")
    with pytest.raises(MalformedStorage):
        decoded(b"o" + tagged("k") + b"S" + sized(b"abc")[:-1])
