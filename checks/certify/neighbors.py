"""Compare queries with every vector of a base, by blocks, and look for groups of vectors that may be of two models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

#: How many of the nearest texts are compared.
NEAREST = 10
#: Cosines that differ by less are equal: they are computed in single precision, in any order.
TOLERANCE = 1e-4
#: Queries that are compared with all vectors at once, and numbers of a matrix of their cosines.
QUERIES_AT_ONCE = 2_000
_CELLS = 1 << 21

#: Returns blocks of at most so many rows: row ids, and unit vectors.
Blocks = Callable[[int], Iterator[tuple[Any, Any]]]


class Nearest(msgspec.Struct, frozen=True):
    """The nearest vectors of each query, best first: row ids (-1: none) and cosines, one line for each query."""

    rowids: Any
    cosines: Any


def find_nearest(blocks: Blocks, queries: Any, own: Any, count: int = NEAREST) -> Nearest:
    """Find the nearest vectors of queries among all vectors of the blocks.

    Args:
        blocks: returns the vectors of a base, in blocks of at most a number of rows.
        queries: unit vectors (float32), one in each row of a matrix.
        own: row number of each query's own vector, which is not a result; -1: none.
        count: how many vectors to find for each query.
    """
    best = np.full((len(queries), count), -np.inf, dtype=np.float32)
    rowids = np.full((len(queries), count), -1, dtype=np.int64)
    for keys, vectors in blocks(max(1, _CELLS // max(1, len(queries)))):
        if not len(keys):
            continue
        cosines = queries @ vectors.T
        place = np.searchsorted(keys, own)
        is_own = (place < len(keys)) & (keys[np.minimum(place, len(keys) - 1)] == own)
        cosines[np.flatnonzero(is_own), place[is_own]] = -np.inf
        lines = np.flatnonzero((cosines > best[:, -1:]).any(axis=1))
        if len(lines):
            best[lines], rowids[lines] = _merge_neighbors(best[lines], rowids[lines], cosines[lines], keys)
    return Nearest(rowids, best)


def _merge_neighbors(best_cosines: Any, best_rowids: Any, cosines: Any, block_rowids: Any) -> tuple[Any, Any]:
    """Merge the nearest vectors so far with those of a further block; each line of the arrays is for one query.

    Args:
        best_cosines: the highest cosines so far, in descending order.
        best_rowids: the row numbers of their vectors.
        cosines: the cosines of all vectors of the block.
        block_rowids: the row numbers of the vectors of the block.

    Returns:
        The highest cosines and the row numbers of their vectors; -1 for a missing vector.
    """
    count = best_cosines.shape[1]
    if cosines.shape[1] > count:
        top = np.argpartition(cosines, -count, axis=1)[:, -count:]
        cosines, block_rowids = np.take_along_axis(cosines, top, axis=1), block_rowids[top]
    else:
        block_rowids = np.broadcast_to(block_rowids, cosines.shape)
    cosines = np.concatenate([best_cosines, cosines], axis=1)
    block_rowids = np.concatenate([best_rowids, block_rowids], axis=1)
    order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    found = np.take_along_axis(cosines, order, axis=1)
    # Places without a vector have no row.
    return found, np.where(np.isfinite(found), np.take_along_axis(block_rowids, order, axis=1), -1)


class Overlap(msgspec.Struct, frozen=True):
    """How many of a query's nearest texts are the same in two bases, of how many, and whether their order differs."""

    common: int
    of: int
    is_reordered: bool


def compare_neighbors(cosines: Iterable[float | None], lowest: float) -> Overlap:
    """Compare the nearest texts of a query in one base with those in another base.

    Args:
        cosines: the query's cosine, in the other base, with each of the nearest texts in the first one, in the order of
            the first base; None: the other base lacks the text.
        lowest: the cosine of the last of the nearest texts in the other base.
    """
    found = list(cosines)
    there = [one for one in found if one is not None and one >= lowest - TOLERANCE]
    is_descending = all(after <= before + TOLERANCE for before, after in pairwise(there))
    return Overlap(len(there), len(found), len(there) == len(found) and not is_descending)


# --- suspicions ------------------------------------------------------------------------------------------------------

#: Vectors of fewer dimensions are of no model.
_MIN_DIMENSIONS = 16
#: Fewer vectors are not split, and a group of fewer vectors, or a smaller share, is no group.
_MIN_VECTORS, _MIN_MEMBERS, _MIN_SHARE = 60, 10, 0.02
#: Distance of two groups in units of their spread, from which they are apart (Ashman's D).
_APART = 4.0
#: Vectors of one model mostly have a common direction: length of the mean of unit vectors from which there is one, and
#: the cosine below which two means are far apart.
_MIN_MEAN, _FAR = 0.4, 0.3


class Groups(msgspec.Struct, frozen=True):
    """Two groups of vectors: the share of the smaller one, and the cosine of their means."""

    share: float
    cosine: float


def find_two_groups(units: Any) -> Groups | None:
    """Split unit vectors into two groups by their first principal component; None unless their means are far apart."""
    if len(units) < _MIN_VECTORS or units.shape[1] < _MIN_DIMENSIONS:
        return None
    projected = _first_component(units)
    order = np.argsort(projected, kind="stable")
    ordered, count = projected[order], len(units)
    sums, squares, first = np.cumsum(ordered), np.cumsum(ordered**2), np.arange(1, count)
    # The split with the least sum of squares within both groups.
    within = squares[-1] - sums[:-1] ** 2 / first - (sums[-1] - sums[:-1]) ** 2 / (count - first)
    at = int(np.argmin(within)) + 1
    smaller = min(at, len(units) - at)
    if smaller < max(_MIN_MEMBERS, _MIN_SHARE * len(units)):
        return None
    left, right = projected[order[:at]], projected[order[at:]]
    spread = np.sqrt((left.var() + right.var()) / 2)
    if right.mean() - left.mean() < _APART * max(float(spread), 1e-9):
        return None
    cosine = cosine_of_means(units[order[:at]].mean(axis=0), units[order[at:]].mean(axis=0))
    return None if cosine is None or cosine >= _FAR else Groups(smaller / len(units), cosine)


def cosine_of_means(first: Any, second: Any) -> float | None:
    """Return the cosine of two means of unit vectors; None if one of them shows no common direction."""
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    return None if min(lengths) < _MIN_MEAN else float(first @ second) / (lengths[0] * lengths[1])


def highest_cosine_if_far(mean: Any, others: Sequence[Any]) -> float | None:
    """Return the highest cosine of a base's mean vector with those of other bases, if all are low; otherwise None.

    ``mean`` and ``others`` are means of unit vectors.
    """
    cosines = [cosine_of_means(mean, other) for other in others if len(other) == len(mean)]
    known = [cosine for cosine in cosines if cosine is not None and cosine < _FAR]
    return max(known) if known and len(known) == len(cosines) else None


def _first_component(units: Any) -> Any:
    """Project unit vectors onto their direction of greatest variance, and return a number for each of them."""
    centered = (units - units.mean(axis=0)).astype(np.float64)
    # The first line that is not zero starts the iteration: the result does not depend on chance.
    axis = centered[int(np.argmax((centered**2).sum(axis=1)))]
    for _ in range(30):
        axis = centered.T @ (centered @ axis)
        length = np.linalg.norm(axis)
        if not length:
            break
        axis = axis / length
    return centered @ axis
