"""From the decimals of a chunk's vector to the float32 that they stand for (``docs/formats/rsclaw.md``, "Vectors").

A decimal that is read as double precision first, and then cut to single, may be rounded twice and end one bit beside.
Such numbers are rare, and are rounded here from the decimal itself.
"""

from __future__ import annotations

import hashlib
import math
import sys
from array import array
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import msgspec

from regraft.disk import links
from regraft.formats.vector_checks import LARGEST_NORM, read_floats

_NUMBERS = msgspec.json.Decoder(list[float | None])
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
#: The bits of a double that a float32 has no place for, and their value half-way between two float32.
_CUT, _HALF = 0x1FFFFFFF, 0x10000000
#: The exponent of a float32: where it is 0, the number is zero or has fewer bits.
_EXPONENT = 0x7F800000
#: How zeros are written: there are many of them in some vectors.
_ZEROS = (b"0.0", b"-0.0")
#: No number that a program writes is longer, in bytes; and the exponent of ten from which on all is zero.
_LONGEST, _SMALLEST = 1_100, -60
#: What numbers are written with besides their digits, and what is left of zeros without it.
_MARKS = b".,-+eE[] \t\r\n"
_OF_NUMBERS, _OF_ZEROS = b"0123456789" + _MARKS, b"0" + _MARKS
#: All digits are one, and so are both letters of an exponent.
_FORMS = bytes.maketrans(b"123456789E", b"000000000e")
#: A vector whose norm is beyond float32 has a number with so many digits in a row, or with an exponent.
_LONG = b"0" * 18


class NotNumbers(ValueError):
    """The text is no JSON array of numbers."""


class Flaw(StrEnum):
    """Why a vector can be found by nobody."""

    EMPTY = "empty"
    NOT_NUMBERS = "not_numbers"
    #: A number that is not finite: the system writes ``null`` for it.
    NOT_FINITE = "not_finite"
    #: The numbers are finite, and their norm is not in single precision, in which the system's search computes.
    OVERFLOW = "overflow"
    ZERO = "zero"


def flaw_of(text: bytes | msgspec.Raw) -> Flaw | None:
    """Return what is wrong with a vector, which is JSON, whatever its length; None where nothing is.

    Its characters tell, without reading one number.
    """
    json = bytes(text)
    if not json.startswith(b"[") or json.count(b"[") > 1:
        return Flaw.NOT_NUMBERS
    others = json.translate(None, _OF_NUMBERS)
    if others:
        return Flaw.NOT_NUMBERS if others.replace(b"null", b"") else Flaw.NOT_FINITE
    if not json.translate(None, _OF_ZEROS):
        return Flaw.ZERO if b"0" in json else Flaw.EMPTY
    return _flaw_of_large(json)


def _flaw_of_large(json: bytes) -> Flaw | None:
    """Compare the numbers and their norm with the range of float32; they are read only where one may be large."""
    forms = json.translate(_FORMS, b"+")
    if _LONG not in forms and (b"e" not in forms or b"e0" not in forms):
        return None
    try:
        numbers = read_floats(float32_bytes(json))
    except NotNumbers:  # beyond double precision, too
        return Flaw.NOT_FINITE
    if not all(map(math.isfinite, numbers)):
        return Flaw.NOT_FINITE
    return None if math.hypot(*numbers) < LARGEST_NORM else Flaw.OVERFLOW


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
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
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
    written = bytes(text)
    if not math.isfinite(guess) or written in _ZEROS or len(written) > _LONGEST:
        return guess
    decimal = Decimal(written.decode())
    sign = -1 if decimal.is_signed() else 1
    if not decimal or decimal.adjusted() < _SMALLEST:
        return math.copysign(0.0, sign)
    exact = Fraction(decimal)
    around = (guess, _beside(guess, 1), _beside(guess, -1))
    nearest = min(around, key=lambda one: (abs(Fraction(one) - exact), _bits(one) & 1))
    return math.copysign(nearest, sign)


def _bits(single: float) -> int:
    return int(array("I", array("f", [single]).tobytes())[0])


def _beside(single: float, step: int) -> float:
    """Return the float32 one step away from zero or towards it; where there is none, the number itself."""
    bits = _bits(single)
    if bits & 0x7FFFFFFF == (0x7F7FFFFF if step > 0 else 0):
        return single
    return float(array("f", array("I", [bits + step]).tobytes())[0])


# The markdown files of a KB: a block of YAML, a blank line, and the body (``docs/formats/rsclaw.md``, "Markdown").
#
# The YAML is never interpreted: what it says stands in the database, too, and a date in it has to stay text.


_BEGIN, _END = b"---\n", b"\n---\n"
#: A block of YAML is looked for in so many bytes.
_MOST_HEAD = 1 << 20
_PIECE = 1 << 20


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What a file's body is: where it begins, its length in bytes, and the SHA-256 of them in hex."""

    start: int
    size: int
    sha256: str


def body_of(path: Path) -> Body:
    """Read a file and return what its body is; memory does not grow with it.

    Raises:
        OSError: it cannot be read.
    """
    with links.open_for_reading(path) as file:
        head = file.read(_MOST_HEAD)
        start = body_start(head)
        digest, size = hashlib.sha256(head[start:]), len(head) - start
        while piece := file.read(_PIECE):
            digest.update(piece)
            size += len(piece)
    return Body(start=start, size=size, sha256=digest.hexdigest())


def body_start(head: bytes) -> int:
    """Return where the body begins in the first bytes of a file: 0 where no block of YAML is."""
    if not head.startswith(_BEGIN):
        return 0
    # An empty block ends where it begins.
    end = head.find(_END, len(_BEGIN) - 1)
    if end < 0:
        return 0
    start = end + len(_END)
    return start + (head[start : start + 1] == b"\n")
