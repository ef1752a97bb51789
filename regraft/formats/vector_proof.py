"""What speaks for a vector that was read out of a damaged file: it is like the others of its base.

Nothing in a file says what a vector's numbers were. Those of one model have one length, and norms near each other: an
embedding server gives vectors of unit length, or such as all its answers have (``docs/formats/index.md``, "Salvage").
"""

from __future__ import annotations

import math
import sys
from operator import mul
from typing import Any

import apsw
import msgspec

from regraft.formats.vector_numbers import numbers_of

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


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """A vector's norm, and how many of its numbers are there more than once."""

    norm: float
    repeats: int


#: Those of what is no vector.
NO_MEASURES = Measures(norm=0.0, repeats=0)


def measures_of(vector: bytes | None) -> Measures | None:
    """Return the measures of a float32 vector; None of what is none, or holds a NaN or an infinity."""
    if not vector or len(vector) % 4:
        return None
    numbers = numbers_of(vector)
    squares = sum(map(mul, numbers, numbers))
    if not math.isfinite(squares):
        return None
    return Measures(norm=math.sqrt(squares), repeats=len(numbers) - len(set(numbers)))


class Likeness(msgspec.Struct, frozen=True, kw_only=True):
    """What the vectors of a base have in common; ``furthest`` is the distance from the ``middle`` norm that is none."""

    middle: float
    furthest: float
    repeats: int

    def holds(self, norm: float, repeats: int) -> bool:
        """Tell whether a vector is like the others. One of zeros is like none but those."""
        return abs(norm - self.middle) <= self.furthest and repeats <= self.repeats


def likeness(db: apsw.Connection, table: str, which: str = "TRUE") -> Likeness:
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
            return Likeness(middle=1, furthest=_UNIT_PART, repeats=sys.maxsize)
        return Likeness(middle=middle, furthest=math.inf, repeats=sys.maxsize)
    low, width = _narrowest(db, rows, count)
    if width <= _UNIT_PART * low:
        middle = low + width / 2
    else:
        low, width = middle, at(count // 2, "abs(norm - ?)", middle)
    furthest = max(_SPREADS * width, _LEAST_PART * low)
    # Of those that damage left whole there may be few.
    return Likeness(middle=middle, furthest=furthest, repeats=2 * int(at(count // 10, "repeats")) + _LEAST_REPEATS)


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
