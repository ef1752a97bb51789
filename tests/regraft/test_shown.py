"""The one function that shows text of a user's: nothing of it moves, turns, hides or goes on for ever."""

from __future__ import annotations

import json
import unicodedata
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.errors import SourceNotFound
from regraft.report import migration
from regraft.text import LONGEST_SHOWN, escape_json, one_line, printable, printable_lines

HIDDEN = ("Cc", "Cf", "Zl", "Zp", "Cs", "Co")
ANY_TEXT = st.text(st.characters(categories=(*HIDDEN, "L", "M", "N", "P", "S", "Zs", "Cn")), max_size=60)


def hidden(text: str) -> set[str]:
    return {one for one in text if unicodedata.category(one) in HIDDEN}


@pytest.mark.thorough
def test_every_character_that_hides_is_an_escape() -> None:
    every = [chr(point) for point in range(0x110000) if unicodedata.category(chr(point)) in HIDDEN]
    assert [one for one in every if printable(one) != one.encode("unicode_escape").decode()] == []


@pytest.mark.parametrize(
    "plain", ["", "plain", "a b", r"C:\x1b", "é 中文 עברית العربية", "e\u0301", "🎉", "❤\ufe0f", "ｗｉｄｅ"]
)
def test_what_can_be_seen_stays(plain: str) -> None:
    assert printable(plain) == plain


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("\x1b[31m", r"\x1b[31m"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\x9b\x7f\x85", r"\x9b\x7f\x85"),
        ("\u202egnp", r"\u202egnp"),
        ("a\u200db", r"a\u200db"),
        ("\udcff\ud83d", r"\udcff\ud83d"),
        ("\ue000\U000e0041\U0010ffff", r"\ue000\U000e0041\U0010ffff"),
        ("\u3164\u115f\u034f", r"\u3164\u115f\u034f"),
        # Joiners that join stay: a family, and words of scripts that are written with them.
        ("👩\u200d👧", "👩\u200d👧"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("e" + "\u0301" * 40, "e" + "\u0301" * 8 + "…"),
    ],
)
def test_what_is_shown(text: str, seen: str) -> None:
    assert printable(text) == seen


@given(ANY_TEXT)
def test_nothing_is_hidden_and_shown_text_stays(text: str) -> None:
    seen = printable(text)
    assert hidden(seen) <= {"\u200c", "\u200d"}
    assert printable(seen) == seen
    assert hidden(printable(text, None, lines=True)) <= {"\u200c", "\u200d", "\n", "\t"}
    assert "\n" not in one_line(text)


@given(ANY_TEXT)
def test_json_says_the_same(text: str) -> None:
    written = migration.as_json({"text": text})
    assert hidden(written) <= {"\u200c", "\u200d", "\n"}
    paired = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert json.loads(written) == {"text": paired}


def test_json_has_no_number_that_json_has_not() -> None:
    assert json.loads(migration.as_json({"a": [float("inf"), float("nan"), 1.5], "b": (1, -float("inf"))})) == {
        "a": [None, None, 1.5],
        "b": [1, None],
    }
    assert escape_json('"\x7f"') == r'"\u007f"'


def test_a_long_text_ends() -> None:
    assert printable("x" * 1_000_000) == "x" * LONGEST_SHOWN + "…(1,000,000 characters)"
    assert printable("abc", 2) == "ab…(3 characters)"
    assert len(one_line("a\n" * 1_000_000, 100)) < 200
    assert len(printable_lines(["x" * 1_000_000])) < 20_000


def test_errors_show_their_facts() -> None:
    error = SourceNotFound(path=PurePosixPath("/a\n\x1b[2J\udcff"))
    assert str(error) == r"/a\n\x1b[2J\udcff: no such file or folder; check the spelling."
    assert len(str(SourceNotFound(path="x" * 100_000))) < 5_000
