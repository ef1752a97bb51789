"""Check float32 vectors: whether a search can use them, and whether vectors salvaged from a damaged file look right.

A vector is unusable if its norm is zero or outside single precision, or if it contains a NaN or an infinity.
sqlite-vec checks about a million vectors a second; only the vectors it rejects are examined number by number in Python.

Nothing in a file proves the numbers of a vector. But all vectors of one model have the same length and similar norms,
so a salvaged vector is compared with the others of its base (``docs/formats/index.md``, "Salvage").
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

#: Values of :func:`flaw_sql`: the vector has no usable norm, or it contains a NaN or an infinity.
DEGENERATE, NON_FINITE = 1, 2
_IS_FINITE = "regraft_is_finite"
#: Square root of the largest float32.
LARGEST_NORM = math.sqrt(2.0**128 - 2.0**104)


def read_floats(vector: bytes) -> array[float]:
    """Decode a little-endian float32 vector, on machines of either byte order."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def is_finite(vector: bytes) -> bool:
    """Whether all numbers of a float32 vector are finite. If they are, so is their sum in double precision."""
    return math.isfinite(sum(read_floats(vector)))


def has_usable_norm(numbers: Iterable[float]) -> bool:
    """Whether the norm is greater than zero and its square fits a float32, so that a cosine distance is defined."""
    return 0 < math.hypot(*numbers) < LARGEST_NORM


def register_functions(db: apsw.Connection) -> None:
    """Register the SQL functions that :func:`flaw_sql` needs on a connection, unless they are registered already."""
    try:
        db.execute(f"SELECT {_IS_FINITE}(zeroblob(4))")
    except apsw.SQLError:
        sqlite.load_vector_extension(db)
        db.create_scalar_function(_IS_FINITE, lambda *vectors: all(map(is_finite, vectors)), 1, deterministic=True)


def flaw_sql(vector: str) -> str:
    """Build an SQL expression for the flaw of a vector: 0 if it is usable, else DEGENERATE or NON_FINITE.

    Args:
        vector: SQL expression for a BLOB that contains one or more float32 numbers and nothing else.
    """
    return (
        f"CASE WHEN vec_distance_cosine({vector}, {vector}) IS NOT NULL THEN 0"
        f" WHEN {_IS_FINITE}({vector}) THEN {DEGENERATE} ELSE {NON_FINITE} END"
    )


#: A norm is accepted within 12 times the spread of the others, and within this fraction of the norm in any case.
_MAX_SPREADS, _MIN_TOLERANCE = 12, 2e-7
#: A fifth of the vectors with nearly equal norms identifies a model whose vectors all have one norm.
_CLUSTER_FRACTION = 5
#: With fewer vectors the spread is unknown.
_MIN_VECTORS = 5
#: With too few vectors: if the median norm is this close to 1, all vectors are expected to have unit length.
_UNIT_TOLERANCE = 1e-4
#: Accepted number of repeated values in a vector; more if other vectors have more.
_MIN_REPEATS = 7


class VectorMeasures(msgspec.Struct, frozen=True, kw_only=True):
    """Norm of a vector, and how many of its numbers repeat an earlier one."""

    norm: float
    repeats: int


#: Measures of a value that is not a vector.
NO_MEASURES = VectorMeasures(norm=0.0, repeats=0)


def measure_vector(vector: bytes | None) -> VectorMeasures | None:
    """Compute norm and repeats of a float32 vector; None if it is not a vector, or contains a NaN or an infinity."""
    if not vector or len(vector) % 4:
        return None
    numbers = read_floats(vector)
    squares = sum(map(mul, numbers, numbers))
    if not math.isfinite(squares):
        return None
    return VectorMeasures(norm=math.sqrt(squares), repeats=len(numbers) - len(set(numbers)))


class TypicalRange(msgspec.Struct, frozen=True, kw_only=True):
    """Norms, and numbers of repeated values, that most vectors of a base have.

    Attributes:
        middle: norm in the middle of the accepted norms.
        furthest: largest accepted distance of a norm from ``middle``.
        repeats: largest accepted number of repeated values in a vector.
    """

    middle: float
    furthest: float
    repeats: int


def compute_typical_range(db: apsw.Connection, table: str, which: str = "TRUE") -> TypicalRange:
    """Compute the range of norms and repeats that most vectors of a table have.

    Vectors of zeros are ignored: a valid file may contain them, and they say nothing about the others.

    Args:
        db: database that contains the table.
        table: name of a table with the columns ``norm`` and ``repeats``.
        which: SQL condition that selects the rows to use.
    """
    rows = f"FROM {table} WHERE norm > 0 AND ({which})"
    count = int(str(db.execute(f"SELECT count(*) {rows}").get))

    def select_nth(position: int, expression: str, *values: float) -> float:
        """Return the value of an SQL expression at a position, in ascending order of the values."""
        query = f"SELECT {expression} {rows} ORDER BY 1 LIMIT 1 OFFSET {position}"
        return float(str(db.execute(query, values).get or 0))

    middle = select_nth(count // 2, "norm")
    if count < _MIN_VECTORS:
        if abs(middle - 1) < _UNIT_TOLERANCE:
            return TypicalRange(middle=1, furthest=_UNIT_TOLERANCE, repeats=sys.maxsize)
        return TypicalRange(middle=middle, furthest=math.inf, repeats=sys.maxsize)
    # The narrowest interval of norms that contains a fifth of the vectors, by its lower end and its width. Most models
    # produce vectors of one norm, so the undamaged vectors are close together even if they are few.
    close = max(_MIN_VECTORS, count // _CLUSTER_FRACTION) - 1
    found: Any = db.execute(
        f"SELECT low, high - low FROM (SELECT norm AS low, lead(norm, {close}) OVER (ORDER BY norm) AS high {rows})"
        " WHERE high IS NOT NULL ORDER BY 2 LIMIT 1"
    ).fetchone()
    low, width = found
    if width <= _UNIT_TOLERANCE * low:
        middle = low + width / 2
    else:
        low, width = middle, select_nth(count // 2, "abs(norm - ?)", middle)
    furthest = max(_MAX_SPREADS * width, _MIN_TOLERANCE * low)
    # Few of the vectors may be undamaged, so the tenth percentile of the repeats is used.
    repeats = 2 * int(select_nth(count // 10, "repeats")) + _MIN_REPEATS
    return TypicalRange(middle=middle, furthest=furthest, repeats=repeats)
