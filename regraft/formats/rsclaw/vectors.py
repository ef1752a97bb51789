"""Converts vectors of chunks from JSON decimals to float32 (``docs/formats/rsclaw.md``, "Vectors").

Converting a decimal to double and then to single precision may round twice and be off by one bit. Such rare numbers are
converted from the decimal directly.
"""

from __future__ import annotations

import math
import sys
from array import array
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import msgspec

from regraft.formats.vector_checks import LARGEST_NORM, read_floats

_NUMBERS = msgspec.json.Decoder(list[float | None])
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
#: Bits of a double that a float32 drops, and their value half-way between two float32.
_CUT, _HALF = 0x1FFFFFFF, 0x10000000
#: Exponent of a float32; 0 means zero or a subnormal number.
_EXPONENT = 0x7F800000
#: Encodings of zero, which is frequent in some vectors.
_ZEROS = (b"0.0", b"-0.0")
#: Limits: bytes of a number, and decimal exponent below which a float32 is zero.
_LONGEST, _SMALLEST = 1_100, -60
#: Characters of a JSON array of numbers other than digits.
_MARKS = b".,-+eE[] \t\r\n"
_OF_NUMBERS, _OF_ZEROS = b"0123456789" + _MARKS, b"0" + _MARKS
#: Maps all nonzero digits to 0 and E to e.
_FORMS = bytes.maketrans(b"123456789E", b"000000000e")
#: Only a number with this many digits, or with an exponent, can exceed the float32 range.
_LONG = b"0" * 18


class NotNumbers(ValueError):
    """The text is not a JSON array of numbers."""


class VectorFlaw(StrEnum):
    """Why a vector cannot be used for search."""

    EMPTY = "empty"
    NOT_NUMBERS = "not_numbers"
    #: A number is not finite; rsclaw writes ``null`` for it.
    NOT_FINITE = "not_finite"
    #: The norm exceeds single precision, in which rsclaw's search computes.
    OVERFLOW = "overflow"
    ZERO = "zero"


def find_flaw(text: bytes | msgspec.Raw) -> VectorFlaw | None:
    """Return the flaw of a vector in JSON, or None. Most vectors are checked without parsing their numbers."""
    json = bytes(text)
    if not json.startswith(b"[") or json.count(b"[") > 1:
        return VectorFlaw.NOT_NUMBERS
    others = json.translate(None, _OF_NUMBERS)
    if others:
        return VectorFlaw.NOT_NUMBERS if others.replace(b"null", b"") else VectorFlaw.NOT_FINITE
    if not json.translate(None, _OF_ZEROS):
        return VectorFlaw.ZERO if b"0" in json else VectorFlaw.EMPTY
    return _find_range_flaw(json)


def _find_range_flaw(json: bytes) -> VectorFlaw | None:
    """Return the flaw of a vector in which a number or the norm exceeds float32; else None.

    Numbers are parsed only if one may be large.
    """
    forms = json.translate(_FORMS, b"+")
    if _LONG not in forms and (b"e" not in forms or b"e0" not in forms):
        return None
    try:
        numbers = read_floats(float32_bytes(json))
    except NotNumbers:  # beyond double precision, too
        return VectorFlaw.NOT_FINITE
    if not all(map(math.isfinite, numbers)):
        return VectorFlaw.NOT_FINITE
    return None if math.hypot(*numbers) < LARGEST_NORM else VectorFlaw.OVERFLOW


def float32_bytes(text: bytes | msgspec.Raw) -> bytes:
    """Convert a JSON array of decimals to little-endian float32, rounding to nearest, ties to even.

    ``null`` becomes NaN, a number beyond float32 an infinity, an empty array no bytes.

    Raises:
        NotNumbers: the text is not an array of numbers.
    """
    try:
        numbers = _NUMBERS.decode(text)
        doubles = array("d", (math.nan if number is None else number for number in numbers))
        singles = array("f", doubles)
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise NotNumbers(str(error)) from error
    if singles and (_any_lane_is(doubles, _CUT, _HALF) or _any_lane_is(singles, _EXPONENT, 0)):
        singles = array("f", map(_round_to_nearest, _TEXTS.decode(text), singles))
    if sys.byteorder == "big":
        singles.byteswap()
    return singles.tobytes()


@lru_cache(maxsize=8)
def _lanes(count: int, bits: int, value: int) -> int:
    """Return an integer of ``count`` fields of ``bits`` bits, each with this value."""
    return int.from_bytes(value.to_bytes(bits // 8, "little") * count, "little")


def _any_lane_is(numbers: array[float], mask: int, value: int) -> bool:
    """Whether any of the numbers has this value in the bits of a mask. All numbers are tested at once."""
    whole = int.from_bytes(numbers.tobytes(), sys.byteorder)
    count, bits = len(numbers), 8 * numbers.itemsize
    # https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
    difference = (whole & _lanes(count, bits, mask)) ^ _lanes(count, bits, value)
    return bool((difference - _lanes(count, bits, 1)) & ~difference & _lanes(count, bits, 1 << (bits - 1)))


def _round_to_nearest(text: msgspec.Raw, guess: float) -> float:
    """Return the float32 nearest to a decimal number in JSON; ``guess`` is that float32 or one next to it."""
    written = bytes(text)
    if not math.isfinite(guess) or written in _ZEROS or len(written) > _LONGEST:
        return guess
    decimal = Decimal(written.decode())
    sign = -1 if decimal.is_signed() else 1
    if not decimal or decimal.adjusted() < _SMALLEST:
        return math.copysign(0.0, sign)
    exact = Fraction(decimal)
    candidates = (guess, _neighbor(guess, 1), _neighbor(guess, -1))
    nearest = min(candidates, key=lambda one: (abs(Fraction(one) - exact), _bits(one) & 1))
    return math.copysign(nearest, sign)


def _bits(single: float) -> int:
    """Return the bits of a float32 as an integer."""
    return int(array("I", array("f", [single]).tobytes())[0])


def _neighbor(single: float, step: int) -> float:
    """Return the neighboring float32 away from zero (``step`` 1) or towards it (-1); the number itself at the limit."""
    bits = _bits(single)
    if bits & 0x7FFFFFFF == (0x7F7FFFFF if step > 0 else 0):
        return single
    return float(array("f", array("I", [bits + step]).tobytes())[0])
