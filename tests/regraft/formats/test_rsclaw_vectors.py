"""From decimals to float32: each the nearest one, also where reading it as a double first would end one bit beside."""

from __future__ import annotations

import json
import math
import struct
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regraft.formats.rsclaw.vectors import NotNumbers, float32_bytes

LARGEST = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
SMALLEST = struct.unpack("<f", b"\x01\x00\x00\x00")[0]


def single(bits: int) -> float:
    return struct.unpack("<f", bits.to_bytes(4, "little"))[0]


def bits_of(blob: bytes, at: int = 0) -> int:
    return int.from_bytes(blob[4 * at : 4 * at + 4], "little")


def nearest(text: str) -> int:
    """Return the bits of the float32 nearest to a decimal, ties to even, by halving the whole range of bits."""
    exact = Fraction(Decimal(text))
    sign, size = (0x80000000, -exact) if text.startswith("-") else (0, exact)
    low, high = 0, 0x7F7FFFFF
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if Fraction(single(middle)) <= size else (low, middle - 1)
    above = min(low + 1, 0x7F7FFFFF)
    below_by, above_by = size - Fraction(single(low)), Fraction(single(above)) - size
    if above_by < below_by or (above_by == below_by and low & 1):
        low = above
    return sign | low


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40))
def test_what_float32_has_comes_back_bit_for_bit(numbers):
    # The shortest decimal that float32 reads back, as the system writes it, and the longer one of the double.
    for text in (json.dumps(numbers), "[" + ",".join(f"{number:.9g}" for number in numbers) + "]"):
        assert float32_bytes(text.encode()) == struct.pack(f"<{len(numbers)}f", *numbers)


@given(st.decimals(min_value=-10, max_value=10, allow_nan=False, places=25))
def test_every_decimal_becomes_the_nearest(number):
    text = format(number, "f")
    assert bits_of(float32_bytes(f"[{text}]".encode())) == nearest(text)


@given(st.integers(0, 0x7F7FFFFE), st.sampled_from(["", "-"]), st.sampled_from([-1, 0, 1]), st.booleans())
def test_a_decimal_beside_the_middle_of_two_float32_is_not_rounded_twice(bits, sign, side, is_alone):
    # So near to the middle that a double is the middle itself.
    middle = (Fraction(single(bits)) + Fraction(single(bits + 1))) / 2
    digits = 60 + 160
    shifted = middle * 10**digits
    text = f"{sign}{shifted.numerator // shifted.denominator + side}e-{digits}"
    around = "" if is_alone else "0.5,"
    blob = float32_bytes(f"[{around}{text}]".encode())
    assert bits_of(blob, not is_alone) == nearest(text)


def test_the_numbers_that_a_double_would_spoil_are_there():
    # 1 + 2**-24 + a little: the double is the tie, whose even side is 1.
    text = "1.00000005960464477539062500000000001"
    assert struct.unpack("<f", struct.pack("<f", float(text)))[0] == 1.0
    assert bits_of(float32_bytes(f"[{text}]".encode())) == 0x3F800001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[0.0,-0.0]", struct.pack("<ff", 0.0, -0.0)),
        ("[1,2]", struct.pack("<ff", 1, 2)),
        ("[]", b""),
        (" [ 0.5 , 1e0 ] ", struct.pack("<ff", 0.5, 1.0)),
        ("[1e-46]", b"\0\0\0\0"),
        (f"[{SMALLEST!r}]", b"\x01\0\0\0"),
        # The middle between nothing and the smallest, and a little more than it.
        ("[7.006492321624085354618e-46]", b"\0\0\0\0"),
        ("[7.006492321624085354619e-46]", b"\x01\0\0\0"),
        (f"[{LARGEST!r},-{LARGEST!r}]", struct.pack("<ff", LARGEST, -LARGEST)),
        ("[1e39,-1e39]", struct.pack("<ff", math.inf, -math.inf)),
    ],
)
def test_edges(text, expected):
    assert float32_bytes(text.encode()) == expected


def test_null_is_no_number():
    assert math.isnan(struct.unpack("<ff", float32_bytes(b"[null,1.0]"))[0])
    # Also where the others are looked at one by one.
    first, second = struct.unpack("<ff", float32_bytes(b"[null,1.0000000596046447753906250001]"))
    assert math.isnan(first)
    assert second == single(0x3F800001)


@pytest.mark.parametrize(
    "text", ["", "{}", "1", "null", '["1"]', "[[1]]", "[true]", "[1", "[1]]", "[1,]", "[NaN]", "\xff"]
)
def test_what_is_no_array_of_numbers(text):
    with pytest.raises(NotNumbers):
        float32_bytes(text.encode("latin-1"))


def test_numbers_of_any_size_are_harmless():
    with pytest.raises(NotNumbers):
        float32_bytes(b"[" + b"9" * 5000 + b"]")
    assert float32_bytes(b"[" + b"9" * 300 + b".5]") == struct.pack("<f", math.inf)
    for text in ("1e-99999", "1e-999999999999", "0e999999999999", "0." + "0" * 5000 + "1"):
        assert float32_bytes(f"[{text}]".encode()) == b"\0\0\0\0"
        assert float32_bytes(f"[-{text}]".encode()) == b"\0\0\0\x80"
