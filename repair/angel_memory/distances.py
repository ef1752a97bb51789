"""Keep the nearest of a stream of vectors, by squared L2 distance as Chroma computes it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np


class NearestVectors:
    """The ``count`` nearest of all vectors that were compared; memory does not grow with their number.

    Args:
        vector: the query's vector, little-endian float32.
        count: how many are kept.
    """

    def __init__(self, vector: bytes, count: int) -> None:
        self.vector = vector
        self.count = count
        #: How many usable vectors were compared.
        self.compared = 0
        self._numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
        #: Negative distance, then an id that sorts ties; the heap's first element is the farthest.
        self._heap: list[tuple[float, _Reversed]] = []

    @property
    def dimension(self) -> int:
        """Return how many numbers the query's vector has."""
        return len(self._numbers)

    def compare(self, vectors: Iterable[tuple[str, bytes]]) -> None:
        """Compare vectors by id; those of another length, of zeros or not finite are left out."""
        for key, vector in vectors:
            if len(vector) != len(self.vector):
                continue
            numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
            distance = float(((numbers - self._numbers) ** 2).sum())
            if np.isfinite(distance) and numbers.any():
                self.compared += 1
                self._keep(distance, key)

    def merge(self, other: NearestVectors) -> None:
        """Add what another search for the same vector found."""
        self.compared += other.compared
        for key, distance in other.sorted():
            self._keep(distance, key)

    def sorted(self) -> list[tuple[str, float]]:
        """Return ids and distances, nearest first; equal distances in the order of ids."""
        found = [(-negative, one.key) for negative, one in self._heap]
        return [(key, distance) for distance, key in sorted(found)]

    def _keep(self, distance: float, key: str) -> None:
        push = heapq.heappush if len(self._heap) < self.count else heapq.heappushpop
        push(self._heap, (-distance, _Reversed(key)))


class _Reversed:
    """An id that sorts in reverse, so that of equal distances the highest id leaves the heap first."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return self.key > other.key
