"""Whether the numbers of a stored vector can be searched, asked of SQLite row by row.

sqlite-vec finds no direction in a vector that is all zeros, too short or too long for single precision, or holds a NaN
or an infinity. It looks at a million a second; only what it finds is looked at number by number here.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable
from typing import Any

import apsw

from regraft import sqlite

#: What is wrong with a vector: it has no direction; or it holds a NaN or an infinity, and so has none either.
DEGENERATE, NON_FINITE = 1, 2
_IS_FINITE = "regraft_is_finite"
#: The square root of the largest float32.
LARGEST_NORM = math.sqrt(2.0**128 - 2.0**104)


def numbers_of(vector: bytes) -> array[float]:
    """Return the numbers of a float32 vector, whose bytes are the low end first on any machine."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def is_finite(vector: bytes) -> bool:
    """Tell whether all numbers of a float32 vector are finite: their sum then is, in double precision."""
    return math.isfinite(sum(numbers_of(vector)))


def has_norm(numbers: Iterable[float]) -> bool:
    """Whether the norm of a vector is neither zero nor beyond single precision, in which searches compute it.

    The sum of the squares has to be a float32: a cosine is not defined where it is infinite.
    """
    return 0 < math.hypot(*numbers) < LARGEST_NORM


def prepare(db: apsw.Connection) -> None:
    """Give a connection the functions of :func:`flaw_of`, if it has them not yet."""
    try:
        db.execute(f"SELECT {_IS_FINITE}(zeroblob(4))")
    except apsw.SQLError:
        sqlite.load_vectors(db)
        db.create_scalar_function(_IS_FINITE, _asked, 1, deterministic=True)


def _asked(*vectors: Any) -> bool:
    return all(map(is_finite, vectors))


def flaw_of(vector: str) -> str:
    """Return SQL for what is wrong with a vector, 0 where nothing is.

    Args:
        vector: SQL that gives a BLOB of a whole number of float32, at least one.
    """
    return (
        f"CASE WHEN vec_distance_cosine({vector}, {vector}) IS NOT NULL THEN 0"
        f" WHEN {_IS_FINITE}({vector}) THEN {DEGENERATE} ELSE {NON_FINITE} END"
    )
