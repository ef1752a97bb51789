"""From the decimals of a chunk's vector to the float32 that they stand for (``docs/formats/rsclaw.md``, "Vectors").

A decimal that is read as double precision first, and then cut to single, may be rounded twice and end one bit beside.
Such numbers are rare, and are rounded here from the decimal itself.
"""

from __future__ import annotations

import math
import sys
from array import array
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache

import msgspec

_NUMBERS = msgspec.json.Decoder(list[float | None])
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
#: The bits of a double that a float32 has no place for, and their value half-way between two float32.
_CUT, _HALF = 0x1FFFFFFF, 0x10000000
#: The exponent of a float32: where it is 0, the number is zero or has fewer bits.
_EXPONENT = 0x7F800000


class NotNumbers(ValueError):
    """The text is no JSON array of numbers."""


def float32_bytes(text: bytes | msgspec.Raw) -> bytes:
    """Return the little-endian float32 that a JSON array of decimals stands for, each the nearest one, ties to even.

    The system writes ``null`` for a number that is not finite: that becomes a NaN. A number beyond float32 becomes an
    infinity. The empty array gives no bytes.

    Raises:
        NotNumbers: it is something else.
    """
    try:
        numbers = _NUMBERS.decode(text)
        doubles = array("d", (math.nan if number is None else number for number in numbers))
        singles = array("f", doubles)
    except (msgspec.MsgspecError, OverflowError) as error:
        raise NotNumbers(str(error)) from error
    if singles and (_has_half(doubles) or _has_small(singles)):
        singles = array("f", map(_nearest, _TEXTS.decode(text), singles))
    if sys.byteorder == "big":
        singles.byteswap()
    return singles.tobytes()


@lru_cache(maxsize=8)
def _lanes(count: int, bits: int, value: int) -> int:
    """Return ``count`` numbers of ``bits`` bits in one, each of that value."""
    return int.from_bytes(value.to_bytes(bits // 8, "little") * count, "little")


def _any_lane_is(whole: int, count: int, bits: int, mask: int, value: int) -> bool:
    """Tell whether one of the numbers in ``whole`` has a value in the bits of a mask: all are asked at once."""
    # https://graphics.stanford.edu/~seander/bithacks.html#ZeroInWord
    apart = (whole & _lanes(count, bits, mask)) ^ _lanes(count, bits, value)
    return bool((apart - _lanes(count, bits, 1)) & ~apart & _lanes(count, bits, 1 << (bits - 1)))


def _has_half(doubles: array[float]) -> bool:
    whole = int.from_bytes(doubles.tobytes(), sys.byteorder)
    return _any_lane_is(whole, len(doubles), 64, _CUT, _HALF)


def _has_small(singles: array[float]) -> bool:
    whole = int.from_bytes(singles.tobytes(), sys.byteorder)
    return _any_lane_is(whole, len(singles), 32, _EXPONENT, 0)


def _nearest(text: msgspec.Raw, guess: float) -> float:
    """Return the float32 nearest to a decimal; ``guess`` is that or one beside it."""
    if not math.isfinite(guess):
        return guess
    try:
        exact = Fraction(Decimal(bytes(text).decode()))
    except (InvalidOperation, ValueError):  # null
        return guess
    around = (guess, _beside(guess, 1), _beside(guess, -1))
    nearest = min(around, key=lambda one: (abs(Fraction(one) - exact), _bits(one) & 1))
    return math.copysign(nearest, guess)


def _bits(single: float) -> int:
    return int(array("I", array("f", [single]).tobytes())[0])


def _beside(single: float, step: int) -> float:
    """Return the float32 one step away from zero or towards it; where there is none, the number itself."""
    bits = _bits(single)
    if bits & 0x7FFFFFFF == (0x7F7FFFFF if step > 0 else 0):
        return single
    return float(array("f", array("I", [bits + step]).tobytes())[0])
