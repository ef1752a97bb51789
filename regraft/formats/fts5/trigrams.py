"""The trigrams of texts as FTS5's tokenizer makes them, sorted with NumPy (``docs/formats/fts5.md``, "Trigrams")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw
import msgspec
import numpy as np
from numpy.typing import NDArray

from regraft import sqlite
from regraft.formats.fts5.jobs import CODE_POINTS
from regraft.formats.fts5.records import SpliceRefused
from regraft.formats.fts5.varints import Numbers

CHARACTERS = 3
#: A trigram and its place among the characters of all texts stand in one number of so many bits.
KEY_BITS = 63
#: So many characters are worked on at a time, so that what is made meanwhile stays in the processor's cache.
_SLICE = 1 << 16
_NO_KEY = (1 << KEY_BITS) - 1


class Folding:
    """What the tokenizer makes of each character, as FTS5 itself says it.

    Args:
        arguments: a column ``text`` and the tokenizer, as FTS5 takes them.
    """

    def __init__(self, arguments: str) -> None:
        self._arguments = arguments
        self._folded = np.zeros(CODE_POINTS, dtype=np.int32)
        # NUL is not asked for: the tokenizer leaves it out.
        self._is_known = np.zeros(CODE_POINTS, dtype=np.bool_)
        self._is_known[0] = True

    def fold(self, characters: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return what becomes of each of some different characters, which ascend; 0 for one that is left out.

        Raises:
            SpliceRefused: the tokenizer makes no trigrams, or does something else than to fold each character.
        """
        unknown: list[int] = characters[~self._is_known[characters]].tolist()
        if unknown:
            with sqlite.scratch() as db:
                self._ask(db, unknown)
        return self._folded[characters]

    def _ask(self, db: apsw.Connection, characters: list[int]) -> None:
        """Let FTS5 index a text with each character three times: every third trigram shows what one becomes."""
        db.execute(f"CREATE VIRTUAL TABLE folding USING fts5 ({self._arguments}, content = '')")
        db.execute("CREATE VIRTUAL TABLE folded USING fts5vocab (folding, instance)")
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, 'abcd')")
        if db.execute("SELECT term, offset FROM folded ORDER BY offset").fetchall() != [("abc", 0), ("bcd", 1)]:
            raise SpliceRefused("the tokenizer does not make trigrams")
        db.execute("INSERT INTO folding (folding) VALUES ('delete-all')")
        text = "".join(chr(character) * CHARACTERS for character in characters)
        db.execute("INSERT INTO folding (rowid, text) VALUES (1, ?)", (text,))
        if db.execute("SELECT count(*) FROM folded").get != len(text) - (CHARACTERS - 1):
            raise SpliceRefused("the tokenizer leaves characters out")
        every_third = f"SELECT offset / {CHARACTERS}, term FROM folded WHERE offset % {CHARACTERS} = 0"
        folded: list[Any] = db.execute(every_third).fetchall()
        for place, term in folded:
            if len(term) != CHARACTERS or len(set(term)) > 1:
                raise SpliceRefused(f"the tokenizer makes {term!r} of the character {characters[place]}")
            self._folded[characters[place]] = ord(term[0])
        self._is_known[characters] = True


class Trigrams(msgspec.Struct, frozen=True, kw_only=True):
    """The trigrams of some texts, sorted by their characters, then by text and place.

    A trigram is a number of three digits, ``digit_bits`` each: places in ``alphabet``, which ascends. A key is a
    trigram, then in ``text_bits`` the place of its text among the texts, then in ``place_bits`` its place in the text.
    """

    alphabet: list[int]
    digit_bits: int
    text_bits: int
    place_bits: int
    keys: Numbers
    #: For each text how many trigrams it has.
    counts: Numbers


class _Bits(NamedTuple):
    """How many bits of a key each digit of its trigram takes, the place of its text, and its place there."""

    digit: int
    text: int
    place: int


def trigrams_of(texts: Sequence[str], folding: Folding) -> Trigrams | None:
    """Return the sorted trigrams of texts; None where they, and the different characters in them, are too many.

    Raises:
        SpliceRefused: see :meth:`Folding.fold`.
        UnicodeEncodeError: a text has a surrogate.
    """
    characters = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4").astype(np.int64)
    alphabet, digits = _digits(characters, folding)
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    if not digits.all():
        lengths = np.bincount(np.repeat(np.arange(len(texts)), lengths)[digits != 0], minlength=len(texts))
        digits = digits[digits != 0]
    bits = _Bits(len(alphabet).bit_length(), len(texts).bit_length(), int(lengths.max(initial=0)).bit_length())
    if CHARACTERS * bits.digit + bits.text + bits.place > KEY_BITS:
        return None
    return Trigrams(
        alphabet=alphabet,
        digit_bits=bits.digit,
        text_bits=bits.text,
        place_bits=bits.place,
        keys=_sorted_keys(digits, lengths, bits),
        counts=np.maximum(lengths - (CHARACTERS - 1), 0),
    )


def _digits(characters: Numbers, folding: Folding) -> tuple[list[int], Numbers]:
    """Return what the characters become, ascending, behind a 0, and for each character its place there."""
    is_there = np.zeros(CODE_POINTS, dtype=np.bool_)
    is_there[characters] = True
    different = np.flatnonzero(is_there)
    folded = folding.fold(different)
    alphabet = sorted({0, *folded.tolist()})
    digit = np.zeros(CODE_POINTS, dtype=np.int64)
    digit[different] = np.searchsorted(alphabet, folded)
    return alphabet, digit[characters]


def _sorted_keys(digits: Numbers, lengths: Numbers, bits: _Bits) -> Numbers:
    """Return the keys of characters that are digits already, of texts of these lengths."""
    keys = np.empty(max(len(digits) - CHARACTERS + 1, 0), dtype=np.int64)
    ends = np.cumsum(lengths)
    # For each text what makes a character's place among all a key's last bits.
    bases = (np.arange(len(lengths)) << bits.place) - (ends - lengths)
    for first in range(0, len(keys), _SLICE):
        part = digits[first : first + _SLICE + CHARACTERS - 1]
        made = keys[first : first + _SLICE]
        np.left_shift(part[:-2], bits.digit, out=made)
        made |= part[1:-1]
        made <<= bits.digit
        made |= part[2:]
        made <<= bits.text + bits.place
        last = first + len(made)
        low, high = np.searchsorted(ends, (first, last - 1), side="right")
        of_text = np.diff(np.minimum(ends[low : high + 1], last), prepend=first)
        made += np.repeat(bases[low : high + 1], of_text)
        made += np.arange(first, last)
    # Three characters of two texts are no trigram: they go behind all that are.
    count = len(keys)
    for back in range(1, CHARACTERS):
        across = ends[(ends >= back) & (ends < count + back)] - back
        keys[across] = _NO_KEY
    keys.sort()
    return keys[: int(keys.searchsorted(_NO_KEY))]
