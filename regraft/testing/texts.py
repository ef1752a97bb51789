"""Texts and vectors as they occur in knowledge bases, and as they must not break anything."""

from __future__ import annotations

import math
import struct

from hypothesis import strategies as st

#: What offsets, hashes and full-text search stumble over: two UTF-16 units, no width, other scripts.
_STUMBLES = (
    "🎉", "👩‍👩‍👧‍👦", "𝒳", "\U0010ffff", "中文分词", "한국어", "日本語テキスト", "עברית", "e\u0301", "é", "ﬁ", "ß",
    "\u200b", "\u2028", "\ufeff", "\x85", "\u00a0", "\t", "\n", "\r\n", "\n\n", "a", "ab", "abc", "%", "_", "\\", '"',
    "'", "AND", "NOT", "*", "---\n", "# heading\n",
)  # fmt: skip
#: A vector that has a direction has no number beyond this, and no length below its reciprocal.
_LONGEST = 2.0**40


def texts(*, min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[str]:
    """Return texts that UTF-8 can hold: no unpaired surrogate and no NUL. Sizes are rough numbers of characters."""
    plain = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=min_size, max_size=max_size)
    pieces = st.lists(st.sampled_from(_STUMBLES), min_size=min_size, max_size=max(min_size, max_size // 3))
    return st.one_of(plain, pieces.map("".join))


def javascript_texts(*, max_size: int = 40) -> st.SearchStrategy[str]:
    """Return texts as JavaScript can hold them: with unpaired surrogates, where something was cut inside an emoji."""
    halves = st.sampled_from(["\ud83c", "\udf89", "\ud800", "\udfff"])
    return st.lists(st.one_of(texts(max_size=max_size), halves), max_size=4).map("".join)


def vectors(dimensions: int, *, degenerate: bool = True) -> st.SearchStrategy[bytes]:
    """Return raw little-endian float32 vectors: ``4 × dimensions`` bytes.

    ``degenerate``: also such that have no direction (zero, NaN of any payload, infinite, or so long or short that
    single precision has no squares for them). Any store has to keep them byte for byte (``docs/formats/index.md``,
    "What always holds").
    """

    def packed(number: st.SearchStrategy[float]) -> st.SearchStrategy[bytes]:
        numbers = st.lists(number, min_size=dimensions, max_size=dimensions)
        return numbers.map(lambda found: struct.pack(f"<{dimensions}f", *found))

    directed = packed(st.floats(-_LONGEST, _LONGEST, width=32)).filter(
        lambda vector: math.hypot(*struct.unpack(f"<{dimensions}f", vector)) > 1 / _LONGEST
    )
    if not degenerate:
        return directed
    usual = packed(st.floats(width=32, allow_nan=False, allow_infinity=False))
    anything = st.binary(min_size=4 * dimensions, max_size=4 * dimensions)
    # NaN of two payloads, infinity, the smallest number.
    odd = st.sampled_from([b"\x00\x00\xc0\x7f", b"\x2a\x00\xc0\xff", b"\x00\x00\x80\x7f", b"\x01\x00\x00\x00"])
    same = odd.map(lambda number: number * dimensions)
    return st.one_of(directed, directed, usual, anything, same, st.just(bytes(4 * dimensions)))
