"""JSON as JavaScript writes it: torn texts, texts in texts, lists of entries, and damage."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.formats import json_text
from regraft.formats.json_text import (
    MAX_EXACT_DIGITS,
    JsonProblem,
    decode,
    is_null,
    loads,
    read_fields,
    replace_lone_surrogates,
    unwrap_string,
)

QUICK = settings(max_examples=examples(120), deadline=None)

HIGH = st.integers(0xD800, 0xDBFF).map(chr)
LOW = st.integers(0xDC00, 0xDFFF).map(chr)
TORN_TEXTS = st.text(
    st.one_of(st.characters(codec="utf-8"), HIGH, LOW, st.sampled_from('\\"ud\U0001f600\ud83d\ude00')), max_size=15
)
TORN_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 53), 1 << 53), TORN_TEXTS),
    lambda values: st.one_of(st.lists(values, max_size=4), st.dictionaries(TORN_TEXTS, values, max_size=4)),
    max_leaves=15,
)


def mended(value: Any) -> Any:
    """The reference: the value with every unpaired surrogate of its texts and keys as U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [mended(entry) for entry in value]
    if isinstance(value, dict):
        return {mended(key): mended(entry) for key, entry in value.items()}
    return value


def read(text: str | bytes) -> Any:
    return decode(bytearray(text.encode() if isinstance(text, str) else text), Any)


# --- unpaired surrogates -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"\ud83d"', "\ufffd"),
        (r'"\ude00"', "\ufffd"),
        (r'"\uD83D"', "\ufffd"),
        (r'"\uDfFf \udBfF"', "\ufffd \ufffd"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\uD83D\uDE00"', "\U0001f600"),
        (r'"\uD83d\uDe00"', "\U0001f600"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\ud83d\ude00\ude00"', "\U0001f600\ufffd"),
        (r'"\ud83d \ude00"', "\ufffd \ufffd"),
        (r'"\ud83dude00"', "\ufffdude00"),
        (r'"\ud83d\n"', "\ufffd\n"),
        (r'"\ud83d\u0041"', "\ufffdA"),
        (r'"\ud83d\\ude00"', "\ufffd\\ude00"),
        # An escaped backslash is text, whatever follows it.
        (r'"\\ud83d"', "\\ud83d"),
        (r'"\\\ud83d"', "\\\ufffd"),
        (r'"\\\\ud83d"', "\\\\ud83d"),
        (r'"\\\\\ud83d\ude00"', "\\\\\U0001f600"),
        (r'"\\\ud83d\\ude00"', "\\\ufffd\\ude00"),
        # The neighbours of the surrogates are no surrogates.
        (r'"\ud7ff\ue000\ufffd"', "\ud7ff\ue000\ufffd"),
    ],
)
def test_unpaired_escapes_are_replaced_and_pairs_kept(text: str, value: str) -> None:
    assert read(text) == value


def test_surrogates_are_mended_at_any_depth_and_in_fields_nobody_reads() -> None:
    text = r'{"a": [{"\ud83d": ["\ud83d", {"b": "x\ude00"}]}], "skipped": "\udbff"}'
    assert read(text) == {"a": [{"\ufffd": ["\ufffd", {"b": "x\ufffd"}]}], "skipped": "\ufffd"}

    class Asked(msgspec.Struct):
        a: list[Any]

    assert decode(bytearray(text.encode()), Asked).a == [{"\ufffd": ["\ufffd", {"b": "x\ufffd"}]}]


@QUICK
@given(TORN_VALUES)
def test_whatever_javascript_holds_is_read_whole(value: Any) -> None:
    assert read(json.dumps(value)) == mended(value)


@QUICK
@given(TORN_VALUES)
def test_unescaped_text_with_torn_parts_is_read_the_same(value: Any) -> None:
    # As programs write it that encode surrogates as if they were characters; only unpaired ones, no program pairs them.
    text = json.dumps(mended(value), ensure_ascii=False).replace("\ufffd", "\ud83d ")
    assert read(text.encode("utf-8", "surrogatepass")) == json.loads(text.replace("\ud83d ", "\ufffd "))


@st.composite
def spelled_texts(draw: st.DrawFn) -> tuple[bytes, str]:
    """A JSON string and its value: units escaped in hex of any case or written out, backslashes as they come."""
    written, meant = b"", ""
    for character in draw(TORN_TEXTS):
        units = [character] if ord(character) < 0x10000 else list(torn(character))
        if draw(st.booleans()) or "\ud800" <= character <= "\udfff":
            for unit in units:
                digits = f"{ord(unit):04x}"
                cased = "".join(digit.upper() if draw(st.booleans()) else digit for digit in digits)
                written += rf"\u{cased}".encode()
        else:
            written += json.dumps(character, ensure_ascii=False)[1:-1].encode()
        meant += character
    return b'"' + written + b'"', meant


def torn(character: str) -> str:
    offset = ord(character) - 0x10000
    return chr(0xD800 + (offset >> 10)) + chr(0xDC00 + (offset & 0x3FF))


@QUICK
@given(spelled_texts())
def test_every_spelling_of_a_text_reads_as_that_text(text: tuple[bytes, str]) -> None:
    written, meant = text
    assert read(written) == mended(meant)


@QUICK
@given(spelled_texts())
def test_text_is_mended_in_place_and_keeps_its_length(text: tuple[bytes, str]) -> None:
    buffer = bytearray(text[0])
    view = replace_lone_surrogates(buffer)
    assert len(buffer) == len(text[0])
    assert bytes(view) == bytes(buffer)
    again = bytearray(buffer)
    replace_lone_surrogates(again)
    assert again == buffer


def test_healthy_text_is_not_touched() -> None:
    healthy = r'{"a":"\ud83d\ude00 \\ud83d 中"}'.encode()
    buffer = bytearray(healthy)
    assert bytes(replace_lone_surrogates(buffer)) == healthy
    assert buffer == healthy


def test_raw_surrogates_become_replacement_characters() -> None:
    assert read(b'"a\xed\xa0\xbdb\xed\xbf\xbf"') == "a\ufffdb\ufffd"
    # U+D7FF and U+E000 stand beside them.
    assert read(b'"\xed\x9f\xbf\xee\x80\x80"') == "\ud7ff\ue000"


def test_a_byte_order_mark_is_passed_over() -> None:
    assert read(b'\xef\xbb\xbf{"a": "\\ud83d"}') == {"a": "\ufffd"}
    assert read_fields(bytearray(b'\xef\xbb\xbf[{"key": "a", "value": 1}]'), ("a",)) == {"a": msgspec.Raw(b"1")}
    assert read(b'"\xef\xbb\xbf"') == "\ufeff"


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "truncated"),
        (b"   ", "truncated"),
        (b'{"a"', "truncated"),
        (b'{"a": [1, 2', "truncated"),
        (b'"open', "truncated"),
        (b'"ends in an escape \\ud8', "truncated"),
        (b"{'a': 1}", "malformed"),
        (b'{"a": 1,}', "malformed"),
        (b'{"a": 1} x', "malformed"),
        (b'{"a": NaN}', "malformed"),
        (b'{"a": \x01}', "malformed"),
        (b'"line\nbreak"', "malformed"),
        (rb'"\ud8zz"', "malformed"),
        (b"PK\x03\x04", "malformed"),
        (b"\0" * 16, "malformed"),
        (b'"\xff"', "utf-8"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 200_000, "nested too deeply"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_broken_text_says_what_is_wrong(text: bytes, reason: str) -> None:
    with pytest.raises(JsonProblem) as caught:
        read(text)
    assert reason in str(caught.value).lower()


@pytest.mark.parametrize(
    ("text", "shape", "reason"),
    [
        (b"[]", dict, "Expected `object`, got `array`"),
        (b"{}", list[Any], "Expected `array`, got `object`"),
        (b'"x"', dict, "Expected `object`, got `str`"),
        (b"null", list[Any], "Expected `array`, got `null`"),
    ],
)
def test_another_shape_says_what_was_found(text: bytes, shape: Any, reason: str) -> None:
    with pytest.raises(JsonProblem) as caught:
        decode(bytearray(text), shape)
    assert reason in str(caught.value)


def test_a_document_cut_anywhere_is_a_problem_and_never_another_error() -> None:
    text = rb'{"a": [1.5e3, "\ud83d\ude00 \\", {"b": null}], "c": "\ud83d"}'
    for end in range(len(text)):
        with pytest.raises(JsonProblem):
            read(text[:end])
    assert read(text)["c"] == "\ufffd"


@QUICK
@given(st.binary(max_size=30))
def test_any_bytes_are_read_or_a_problem(raw: bytes) -> None:
    for text in (raw, b'{"a":"' + raw + b'"}'):
        try:
            read(text)
        except JsonProblem as problem:
            assert str(problem)


# --- texts in texts ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("depth", range(4))
@settings(max_examples=examples(50), deadline=None)
@given(value=st.dictionaries(TORN_TEXTS, TORN_VALUES, max_size=3))
def test_text_in_text_is_unwrapped(depth: int, value: dict[str, Any]) -> None:
    text = json.dumps(value)
    for _ in range(depth):
        text = json.dumps(text)
    assert decode(unwrap_string(msgspec.Raw(text.encode())), Any) == mended(value)


def test_a_surrogate_torn_at_every_level_is_mended() -> None:
    inner = r'{"name": "\ud83d"}'
    assert decode(unwrap_string(msgspec.Raw(json.dumps(inner).encode())), Any) == {"name": "\ufffd"}
    raw_inside = json.dumps('{"name": "\ud83d"}')
    assert decode(unwrap_string(msgspec.Raw(raw_inside.encode())), Any) == {"name": "\ufffd"}


def test_unwrapping_leaves_what_it_is_given_alone() -> None:
    raw = msgspec.Raw(rb'"\"\\ud83d\""')
    assert bytes(unwrap_string(raw)) == "\ufffd".encode()
    assert bytes(raw) == rb'"\"\\ud83d\""'


@pytest.mark.parametrize("text", [b'"', b'"\\"', rb'"\"open"', rb'"\q"'])
def test_a_broken_text_in_a_text_is_a_problem(text: bytes) -> None:
    with pytest.raises(JsonProblem, match=r"truncated|malformed|escape"):
        unwrap_string(msgspec.Raw(text))


@pytest.mark.parametrize("text", [b"{}", b"[]", b"null", b"1", b" { } "])
def test_plain_values_are_not_unwrapped(text: bytes) -> None:
    assert bytes(unwrap_string(msgspec.Raw(text))) == text


# --- fields --------------------------------------------------------------------------------------------------------


def test_only_the_fields_asked_for_are_returned_and_unparsed() -> None:
    text = bytearray(rb'{"big": [1, 2, {"x": "\ud83d"}], "b": {"c": [1]}, "a": null, "d": "\ude00"}')
    found = read_fields(text, ("a", "b", "missing"))
    assert {name: bytes(raw) for name, raw in found.items()} == {"a": b"null", "b": b'{"c": [1]}'}
    assert is_null(found["a"])
    assert not is_null(found["b"])


def test_fields_of_fields() -> None:
    outer = read_fields(bytearray(rb'{"outer": {"inner": ["\ud83d"]}}'), ("outer",))
    inner = read_fields(outer["outer"], ("inner",))
    assert json.loads(bytes(inner["inner"])) == ["\ufffd"]


@pytest.mark.parametrize("name", ["a", "persist:cherry-studio", "with space", "", "中", "field_0"])
def test_fields_of_any_name(name: str) -> None:
    assert {
        key: bytes(raw) for key, raw in read_fields(bytearray(json.dumps({name: 1}).encode()), (name,)).items()
    } == {name: b"1"}


def test_the_last_of_equal_names_counts_as_in_javascript() -> None:
    assert bytes(read_fields(bytearray(b'{"a": 1, "a": 2}'), ("a",))["a"]) == b"2"
    assert bytes(read_fields(bytearray(b'[{"key": "a", "value": 1}, {"key": "a", "value": 2}]'), ("a",))["a"]) == b"2"


def test_a_list_of_entries_reads_as_an_object() -> None:
    text = b"""[{"key": "files", "value": [{"id": "f"}]}, {"value": 1}, {"key": 7, "value": 2}, {"key": null},
                {"key": "empty"}, {"key": "other", "value": {}, "more": 1}, {"key": ["files"], "value": 3}]"""
    found = read_fields(bytearray(text), ("files", "empty", "absent"))
    assert {name: bytes(raw) for name, raw in found.items()} == {"files": b'[{"id": "f"}]', "empty": b"null"}


@pytest.mark.parametrize("blank", [b"", b" ", b"\n\t\r ", b" " * 200])
def test_white_space_before_a_list_of_entries_is_passed_over(blank: bytes) -> None:
    assert bytes(read_fields(bytearray(blank + b'[{"key": "a", "value": 1}]'), ("a",))["a"]) == b"1"


def test_nothing_asked_for_is_still_read_for_damage() -> None:
    assert read_fields(bytearray(b'{"a": 1}'), ()) == {}
    with pytest.raises(JsonProblem, match="truncated"):
        read_fields(bytearray(b'{"a": 1'), ())


@pytest.mark.parametrize("text", [b"[]", b"[1]", b"[null]", b'[["a", 1]]', b'["a"]'])
def test_a_list_of_other_things_has_no_fields(text: bytes) -> None:
    assert read_fields(bytearray(text), ("a",)) == {}


@pytest.mark.parametrize("text", [b"1", b'"text"', b"null", b"true"])
def test_neither_object_nor_entries(text: bytes) -> None:
    with pytest.raises(JsonProblem, match="Expected `object`"):
        read_fields(bytearray(text), ("a",))


@pytest.mark.parametrize("digits", [400, 401, 4_300, 4_301, 100_000])
def test_whole_numbers_of_any_length(digits: int) -> None:
    text = b"9" * digits
    expected: Any = int(text) if digits <= MAX_EXACT_DIGITS else float("inf")
    assert loads(b'{"a": [%s, -%s]}' % (text, text)) == {"a": [expected, -expected]}
    assert read(b'{"a": %s}' % text)["a"] in (expected, int(text) if digits <= 4_300 else expected)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "", "nul", b"\xff", '"\x01"'])
def test_what_is_no_json_is_said_to_be_none(text: str | bytes) -> None:
    with pytest.raises(JsonProblem, match=r"."):
        loads(text)


@pytest.mark.parametrize("piece", [1, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 7, 64))])
@QUICK
@given(value=TORN_VALUES)
def test_long_texts_are_unwrapped_in_pieces_that_cut_nothing_in_two(piece: int, value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "_PIECE_BYTES", piece)
        inner = {"value": value}
        for text in (json.dumps(json.dumps(inner)), json.dumps(json.dumps(inner, ensure_ascii=False))):
            raw = msgspec.Raw(text.encode("utf-8", "surrogatepass"))
            assert decode(unwrap_string(raw), Any) == mended(inner)


@pytest.mark.parametrize(
    "text", [b'"abc', b'"abc\\', b'"abc\\"', b'"abc" x', b'"a" "b"', b'"\xff"', b'"\\x"', b'"', b'"' + b"a" * 99]
)
def test_a_text_in_text_that_is_broken_is_refused_in_pieces_too(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_PIECE_BYTES", 2)
    with pytest.raises(JsonProblem):
        unwrap_string(msgspec.Raw(text))
