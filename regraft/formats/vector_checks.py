"""Whether the numbers of a stored vector can be searched, asked of SQLite row by row.

sqlite-vec finds no direction in a vector that is all zeros, too short or too long for single precision, or holds a NaN
or an infinity. It looks at a million a second; only what it finds is looked at number by number here.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable
from operator import mul
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite

#: What is wrong with a vector: it has no direction; or it holds a NaN or an infinity, and so has none either.
DEGENERATE, NON_FINITE = 1, 2
_IS_FINITE = "regraft_is_finite"
#: The square root of the largest float32.
LARGEST_NORM = math.sqrt(2.0**128 - 2.0**104)


def read_floats(vector: bytes) -> array[float]:
    """Return the numbers of a float32 vector, whose bytes are the low end first on any machine."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def is_finite(vector: bytes) -> bool:
    """Tell whether all numbers of a float32 vector are finite: their sum then is, in double precision."""
    return math.isfinite(sum(read_floats(vector)))


def has_usable_norm(numbers: Iterable[float]) -> bool:
    """Whether the norm of a vector is neither zero nor beyond single precision, in which searches compute it.

    The sum of the squares has to be a float32: a cosine is not defined where it is infinite.
    """
    return 0 < math.hypot(*numbers) < LARGEST_NORM


def register_functions(db: apsw.Connection) -> None:
    """Give a connection the functions of :func:`flaw_of`, if it has them not yet."""
    try:
        db.execute(f"SELECT {_IS_FINITE}(zeroblob(4))")
    except apsw.SQLError:
        sqlite.load_vector_extension(db)
        db.create_scalar_function(_IS_FINITE, _asked, 1, deterministic=True)


def _asked(*vectors: Any) -> bool:
    return all(map(is_finite, vectors))


def flaw_sql(vector: str) -> str:
    """Return SQL for what is wrong with a vector, 0 where nothing is.

    Args:
        vector: SQL that gives a BLOB of a whole number of float32, at least one.
    """
    return (
        f"CASE WHEN vec_distance_cosine({vector}, {vector}) IS NOT NULL THEN 0"
        f" WHEN {_IS_FINITE}({vector}) THEN {DEGENERATE} ELSE {NON_FINITE} END"
    )


# What speaks for a vector that was read out of a damaged file: it is like the others of its base.
#
# Nothing in a file says what a vector's numbers were. Those of one model have one length, and norms near each other: an
# embedding server gives vectors of unit length, or such as all its answers have (``docs/formats/index.md``, "Salvage").


#: How far a norm may be from those of the others: so many times as they are spread, and at least such a part of it.
_SPREADS, _LEAST_PART = 12, 2e-7
#: Norms that so large a part of the vectors has close together are those of a model that gives all its vectors one.
_CLOSE_PART = 5
#: Fewer vectors say nothing of how far they are spread.
_LEAST_VECTORS = 5
#: But where the middle one of them is this near to unit length, all are.
_UNIT_PART = 1e-4
#: So many numbers of a vector may be there more than once, and more where those of other vectors are.
_LEAST_REPEATS = 7


class VectorMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """A vector's norm, and how many of its numbers are there more than once."""

    norm: float
    repeats: int


#: Those of what is no vector.
NO_MEASURES = VectorMeasures(norm=0.0, repeats=0)


def measure_vector(vector: bytes | None) -> VectorMeasures | None:
    """Return the measures of a float32 vector; None of what is none, or holds a NaN or an infinity."""
    if not vector or len(vector) % 4:
        return None
    numbers = read_floats(vector)
    squares = sum(map(mul, numbers, numbers))
    if not math.isfinite(squares):
        return None
    return VectorMeasures(norm=math.sqrt(squares), repeats=len(numbers) - len(set(numbers)))


class TypicalRange(msgspec.Struct, frozen=True, kw_only=True):
    """What the vectors of a base have in common; ``furthest`` is the distance from the ``middle`` norm that is none."""

    middle: float
    furthest: float
    repeats: int

    def holds(self, norm: float, repeats: int) -> bool:
        """Tell whether a vector is like the others. One of zeros is like none but those."""
        return abs(norm - self.middle) <= self.furthest and repeats <= self.repeats


def compute_typical_range(db: apsw.Connection, table: str, which: str = "TRUE") -> TypicalRange:
    """Return what most vectors of a table have in common; it has their ``norm`` and ``repeats``.

    Vectors of zeros, which a file may well have, say nothing of the others.

    Args:
        db: where the table is.
        table: its name.
        which: SQL that tells of which rows the vectors count.
    """
    rows = f"FROM {table} WHERE norm > 0 AND ({which})"
    count = int(str(db.execute(f"SELECT count(*) {rows}").get))

    def at(place: int, what: str, *values: float) -> float:
        query = f"SELECT {what} {rows} ORDER BY 1 LIMIT 1 OFFSET {place}"
        return float(str(db.execute(query, values).get or 0))

    middle = at(count // 2, "norm")
    if count < _LEAST_VECTORS:
        if abs(middle - 1) < _UNIT_PART:
            return TypicalRange(middle=1, furthest=_UNIT_PART, repeats=sys.maxsize)
        return TypicalRange(middle=middle, furthest=math.inf, repeats=sys.maxsize)
    low, width = _narrowest(db, rows, count)
    if width <= _UNIT_PART * low:
        middle = low + width / 2
    else:
        low, width = middle, at(count // 2, "abs(norm - ?)", middle)
    furthest = max(_SPREADS * width, _LEAST_PART * low)
    # Of those that damage left whole there may be few.
    return TypicalRange(middle=middle, furthest=furthest, repeats=2 * int(at(count // 10, "repeats")) + _LEAST_REPEATS)


def _narrowest(db: apsw.Connection, rows: str, count: int) -> tuple[float, float]:
    """Return the lowest of the norms that lie closest together, and how far they are spread.

    Most models make vectors of one norm. Then those that are whole lie close together, also where they are few.
    """
    close = max(_LEAST_VECTORS, count // _CLOSE_PART) - 1
    found: Any = db.execute(
        f"SELECT low, high - low FROM (SELECT norm AS low, lead(norm, {close}) OVER (ORDER BY norm) AS high {rows})"
        " WHERE high IS NOT NULL ORDER BY 2 LIMIT 1"
    ).fetchone()
    low, width = found
    return low, width
