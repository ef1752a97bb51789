"""Text in UTF-16 units, JavaScript's white space, bytes that are nearly UTF-8, and command lines."""

from __future__ import annotations

import re
import shlex
import struct
import unicodedata

import pytest
from harness import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from regraft.text import (
    JS_WHITESPACE,
    decode_utf8,
    is_blank,
    join_command,
    lenient_text,
    replace_surrogates,
    split_command,
    trim,
    utf8_cut,
    utf16_cut,
    utf16_len,
)

QUICK = settings(max_examples=examples(200), deadline=None)

EMOJI = "\U0001f600"
FAMILY = "👩\u200d👧"
SURROGATES = st.integers(0xD800, 0xDFFF).map(chr)
#: Characters of one and of two units, on both sides of every border.
WHOLE_CHARACTERS = st.one_of(
    st.sampled_from("aé中\u0000\u007f\u0080\u07ff\u0800\ud7ff\ue000\ufeff\uffff\U00010000\U0010ffff" + EMOJI),
    st.characters(codec="utf-8"),
)
WHOLE_TEXTS = st.text(WHOLE_CHARACTERS, max_size=40)
TORN_TEXTS = st.text(st.one_of(WHOLE_CHARACTERS, SURROGATES), max_size=40)


def units_of(text: str) -> tuple[int, ...]:
    """The reference: a text's UTF-16 units as JavaScript's charCodeAt gives them."""
    raw = text.encode("utf-16-le", "surrogatepass")
    return struct.unpack(f"<{len(raw) // 2}H", raw)


def text_of(units: tuple[int, ...]) -> str:
    return struct.pack(f"<{len(units)}H", *units).decode("utf-16-le")


def is_high(unit: int) -> bool:
    return 0xD800 <= unit <= 0xDBFF


def is_low(unit: int) -> bool:
    return 0xDC00 <= unit <= 0xDFFF


def mended(text: str) -> str:
    """The reference for unpaired surrogates: unit by unit, as ``String.prototype.toWellFormed`` does it."""
    units, out, at = units_of(text), "", 0
    while at < len(units):
        if is_high(units[at]) and at + 1 < len(units) and is_low(units[at + 1]):
            out += chr(0x10000 + ((units[at] - 0xD800) << 10) + units[at + 1] - 0xDC00)
            at += 2
        else:
            out += "\ufffd" if 0xD800 <= units[at] <= 0xDFFF else chr(units[at])
            at += 1
    return out


# --- lengths, cuts, slices -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "length"),
    [("", 0), ("abc", 3), ("é", 1), ("e\u0301", 2), ("中文", 2), (EMOJI, 2), ("a" + EMOJI + "b", 4), (FAMILY, 5)],
)
def test_length_counts_units_not_code_points(text: str, length: int) -> None:
    assert utf16_len(text) == length


@QUICK
@given(WHOLE_TEXTS)
def test_length_is_the_number_of_units(text: str) -> None:
    assert utf16_len(text) == len(units_of(text))


@pytest.mark.parametrize(
    ("text", "units", "start"),
    [
        ("abc", 2, "ab"),
        ("abc", 3, "abc"),
        ("abc", 9, "abc"),
        ("abc", 0, ""),
        (EMOJI, 1, ""),
        (EMOJI, 2, EMOJI),
        ("a" + EMOJI, 2, "a"),
        (EMOJI * 3, 5, EMOJI * 2),
        ("x" * 79 + EMOJI, 80, "x" * 79),
        ("x" * 78 + EMOJI + "y", 80, "x" * 78 + EMOJI),
        (EMOJI * 1000 + "tail", 1001, EMOJI * 500),
    ],
)
def test_cut_ends_between_code_points(text: str, units: int, start: str) -> None:
    assert utf16_cut(text, units) == start


@QUICK
@given(WHOLE_TEXTS, st.integers(0, 90))
def test_cut_is_the_slice_without_half_a_pair(text: str, limit: int) -> None:
    units = units_of(text)[:limit]
    if units and is_high(units[-1]):
        units = units[:-1]
    assert utf16_cut(text, limit) == text_of(units)


@QUICK
@given(WHOLE_TEXTS, st.integers(-3, 130))
def test_byte_cut_is_the_longest_start_that_fits(text: str, size: int) -> None:
    fitting = [text[:n] for n in range(len(text) + 1) if len(text[:n].encode()) <= max(size, 0)]
    assert utf8_cut(text, size) == fitting[-1]


# --- white space ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_white_space_is_exactly_javascripts() -> None:
    # ECMAScript: the control characters below, U+FEFF, every space separator, and the two line ends of Unicode.
    controls = {0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x2028, 0x2029, 0xFEFF}
    separators = {point for point in range(0x110000) if unicodedata.category(chr(point)) == "Zs"}
    assert sorted(map(ord, JS_WHITESPACE)) == sorted(controls | separators)
    assert len(set(JS_WHITESPACE)) == len(JS_WHITESPACE) == 25


@pytest.mark.parametrize("space", JS_WHITESPACE)
def test_every_white_space_is_trimmed_and_blank(space: str) -> None:
    assert trim(f"{space}a{space}b{space}") == f"a{space}b"
    assert is_blank(space)


@pytest.mark.parametrize("visible", ["\x85", "\x1c", "\x1f", "\u180e", "\u200b", "\u2060", "\0"])
def test_what_only_python_or_nobody_strips_stays(visible: str) -> None:
    assert trim(f" {visible}a{visible} ") == f"{visible}a{visible}"
    assert not is_blank(visible)


def test_trimming_takes_the_ends_only() -> None:
    assert trim(" \ufeff\u00a0 a  b \r\n") == "a  b"
    assert trim("") == ""
    assert trim("\u3000\t") == ""


@pytest.mark.parametrize("value", [None, 0, 1, True, b"bytes", [], ["text"], {}, 1.5, "", " ", "\ufeff"])
def test_no_text_counts_as_blank(value: object) -> None:
    assert is_blank(value)


@pytest.mark.parametrize("value", ["a", " a ", "0", "\x85", "false"])
def test_text_is_not_blank(value: str) -> None:
    assert not is_blank(value)


# --- surrogates and bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("torn", "mends_to"),
    [
        ("plain 中 " + EMOJI, "plain 中 " + EMOJI),
        ("\ud83d", "\ufffd"),
        ("\ude00", "\ufffd"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00a", "\ufffda"),
        ("\ud83d\ude00", EMOJI),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd" + EMOJI),
        ("\ud83d" + EMOJI, "\ufffd" + EMOJI),
    ],
)
def test_unpaired_surrogates_become_replacement_characters(torn: str, mends_to: str) -> None:
    assert replace_surrogates(torn) == mends_to


@QUICK
@given(TORN_TEXTS)
def test_whole_text_is_mended_unit_by_unit_and_can_be_stored(text: str) -> None:
    result = replace_surrogates(text)
    assert result == mended(text)
    assert result.encode().decode() == result
    assert replace_surrogates(result) == result
    # One unit stays one unit, so that offsets counted before still hold.
    assert utf16_len(result) == len(units_of(text))


@QUICK
@given(WHOLE_TEXTS)
def test_utf8_is_decoded_as_it_is(text: str) -> None:
    assert decode_utf8(text.encode()) == text


@QUICK
@given(TORN_TEXTS)
def test_surrogates_written_as_utf8_are_paired_or_replaced(text: str) -> None:
    one_by_one = b"".join(
        struct.pack("<H", unit).decode("utf-16-le", "surrogatepass").encode("utf-8", "surrogatepass")
        for unit in units_of(text)
    )
    assert decode_utf8(one_by_one) == mended(text)


@QUICK
@given(TORN_TEXTS)
def test_a_column_is_read_as_text_whatever_it_holds(text: str) -> None:
    assert lenient_text(text.encode("utf-8", "surrogatepass")) == lenient_text(text) == mended(text)
    assert lenient_text(b"a\xed\xa0\xbdb\xff") == "a\ufffdb\ufffd"
    assert [lenient_text(value) for value in (7, 1.5, b"")] == ["7", "1.5", ""]


@QUICK
@given(st.binary(max_size=40))
def test_any_bytes_give_text_that_can_be_stored(raw: bytes) -> None:
    text = decode_utf8(raw)
    assert text.encode().decode() == text
    if b"\xed" not in raw:
        assert text == raw.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", ""),
        (b"a\xffb", "a\ufffdb"),
        (b"\xe4\xbd", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xed\xa0\xbd\xed\xb8\x80", EMOJI),
        (b"\xed\xa0\xbd", "\ufffd"),
        (b"\xed\xb8\x80\xed\xa0\xbd", "\ufffd\ufffd"),
        (b"\xef\xbb\xbfa", "\ufeffa"),
    ],
)
def test_invalid_bytes(raw: bytes, text: str) -> None:
    assert decode_utf8(raw) == text


_PIECES = st.one_of(
    WHOLE_CHARACTERS.map(lambda character: (character.encode(), character)),
    SURROGATES.map(lambda surrogate: (surrogate.encode("utf-8", "surrogatepass"), surrogate)),
    st.sampled_from([b"\xff", b"\xfe", b"\xc0", b"\xc1", b"\xf8"]).map(lambda byte: (byte, "\ufffd")),
)


@QUICK
@given(st.lists(_PIECES, max_size=20))
def test_other_damage_beside_a_surrogate_changes_nothing_about_it(pieces: list[tuple[bytes, str]]) -> None:
    raw = b"".join(piece for piece, _ in pieces)
    assert decode_utf8(raw) == mended("".join(meaning for _, meaning in pieces))


# --- command lines ---------------------------------------------------------------------------------------------------

#: Words, and how they are written for cmd.exe and PowerShell.
ON_WINDOWS = {
    "--only": "--only",
    "acme::embed-3": "acme::embed-3",
    r"C:\知识库\备份.zip": r"C:\知识库\备份.zip",
    r"C:\My Data": r'"C:\My Data"',
    "C:\\My Data\\": '"C:\\My Data\\\\"',
    r"\\server\share": r"\\server\share",
    "O'Brien & Söhne": '"O\'Brien & Söhne"',
    "100%": '"100%"',
    "a,b": '"a,b"',
    "": '""',
    # PowerShell takes the part after the dot as another word, but not in quotes.
    "-x.y": '"-x.y"',
    # A path on Windows has no double quote, but the id of a model can.
    'a" & calc & "b': '"a"" & calc & ""b"',
    # These are escaped for PowerShell, which would run them in double quotes or end the quotes there.
    "$(calc)": '"`$(calc)"',
    "“我的”资料": '"`“我的`”资料"',
    # The part of a variable of cmd.exe may be a double quote.
    "%CMDCMDLINE:~-1%&calc": '"%^CMDCMDLINE:~-1%&calc"',
    **{f"a{one}b": f'"a{one}b"' for one in " &|<>^()%,;@#{}'~!?*[]"},
}
SHELL_WORDS = st.text(st.one_of(st.sampled_from("\"'`$%&|<>^\\ :;,()@#~=“”„’-./ab中"), WHOLE_CHARACTERS), max_size=12)
#: Words that no shell of Windows changes or ends, when they are in double quotes.
HARMLESS_WORDS = st.text(st.sampled_from("\"'%&|<>^\\ ;,()@#~=’-./ab中"), max_size=12)


def words_of_a_program(line: str) -> list[str]:
    """The reference: how a program on Windows splits its command line ("Parsing C command-line arguments")."""
    words: list[str] = []
    word, is_quoted, at = "", False, 0
    is_word = False
    while at < len(line):
        slashes = len(line[at:]) - len(line[at:].lstrip("\\"))
        if slashes:
            is_word, after = True, line[at + slashes : at + slashes + 1]
            word += "\\" * (slashes // 2 if after == '"' else slashes)
            at += slashes
            if after == '"' and slashes % 2:
                word, at = word + '"', at + 1
        elif line[at] == '"':
            is_word = True
            if is_quoted and line[at + 1 : at + 2] == '"':
                word, at = word + '"', at + 2
            else:
                is_quoted, at = not is_quoted, at + 1
        elif line[at] == " " and not is_quoted:
            words += [word] if is_word else []
            word, is_word, at = "", False, at + 1
        else:
            is_word, word, at = True, word + line[at], at + 1
    return [*words, word] if is_word else words


@pytest.mark.parametrize(("word", "written"), ON_WINDOWS.items())
def test_a_word_is_quoted_for_the_shells_of_windows(word: str, written: str) -> None:
    assert join_command(["regraft", word], windows=True) == f"regraft {written}"
    assert split_command(f"regraft {written}", windows=True) == ["regraft", word]


@QUICK
@given(st.lists(SHELL_WORDS, max_size=4), st.booleans())
def test_a_command_line_is_split_as_it_was_joined(words: list[str], windows: bool) -> None:
    assert split_command(join_command(words, windows=windows), windows=windows) == words


@QUICK
@given(st.lists(HARMLESS_WORDS, max_size=4))
def test_a_program_on_windows_gets_the_words(words: list[str]) -> None:
    assert words_of_a_program(join_command(words, windows=True)) == words


@QUICK
@given(st.lists(SHELL_WORDS, max_size=4))
def test_nothing_in_a_word_takes_effect_on_windows(words: list[str]) -> None:
    line = join_command(words, windows=True)
    # cmd.exe: only what is between an even number of quotes can separate or redirect commands.
    assert not set("".join(line.split('"')[::2])) & set("&|<>^()%")
    # PowerShell: a quote of any kind ends the string, unless it is doubled or escaped; so does the end of the word.
    unescaped = re.sub("`.", "", line, flags=re.DOTALL)
    outside = re.sub('"(?:[^"“”„$`]|"")*"', "", unescaped)
    assert not set(outside) & set("\"'`$“”„‘’‚‛;&|<>(){},@#")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (r'pandoc.exe -t plain "C:\My Docs\"', ["pandoc.exe", "-t", "plain", "C:\\My Docs\\"]),
        (r'"C:\Program Files\pandoc.exe" {}', [r"C:\Program Files\pandoc.exe", "{}"]),
        (r"--config='D:\a b\c.yaml' --deep", [r"--config=D:\a b\c.yaml", "--deep"]),
    ],
)
def test_a_users_line_keeps_its_backslashes_on_windows(line: str, words: list[str]) -> None:
    assert split_command(line, windows=True) == words
    with pytest.raises(ValueError, match="quot"):
        split_command(line + ' "x', windows=True)


@QUICK
@given(st.lists(SHELL_WORDS, max_size=4))
def test_a_posix_shell_gets_the_words(words: list[str]) -> None:
    assert shlex.split(join_command(words, windows=False)) == words
