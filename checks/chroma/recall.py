"""Measure the recall of Chroma's index: how many of the nearest vectors a search with chromadb finds.

chromadb searches a temporary copy. The nearest vectors are found by comparing a sample with every vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from regraft.disk import durable, scratch
from regraft.formats.chroma import core
from regraft.formats.chroma.collection import CollectionState, open_collection
from regraft.formats.chroma.core import ChromaFailed
from regraft.formats.chroma.database import ChromaCollection

#: Vectors used as queries, and how many nearest vectors of each are compared.
QUERIES, NEAREST = 20, 10
#: Smallest share that is not reported. Chroma's defaults find nearly all of the nearest vectors.
LEAST = 0.8
#: Distances within this share of each other count as equal.
_TOLERANCE = 1e-4


class Recall(msgspec.Struct, frozen=True):
    """Share of the nearest vectors that a search finds, or why chromadb cannot search."""

    share: float
    problem: str | None = None


def measure_recall(
    db: apsw.Connection, root: Path, collections: list[ChromaCollection]
) -> Iterator[tuple[ChromaCollection, Recall]]:
    """Yield the recall of each collection with vectors.

    Raises:
        OSError: the folder cannot be copied.
    """
    with scratch.temporary_folder() as place:
        copy = place / "chroma"
        durable.copy_tree(root, copy, without=("-shm",))
        for of in collections:
            with open_collection(db, of, root) as state:
                queries = _sample(state)
                if len(queries):
                    yield of, _measure(copy, state, queries)


def _sample(state: CollectionState) -> Any:
    """Return vectors at even distances of each other, of equal length."""
    dimension = state.dimension
    found: list[Any] = []
    step = max(1, state.count("vector") // QUERIES)
    for at, key in enumerate(state.vector_ids()):
        if at % step == 0 and len(found) < QUERIES:
            vector = state.vector_of(key)
            if vector is not None and dimension is not None and len(vector[1]) == 4 * dimension:
                numbers = np.frombuffer(vector[1], dtype="<f4")
                if np.isfinite(numbers).all() and numbers.any():
                    found.append(numbers)
    return np.array(found, dtype="<f4")


def _measure(copy: Path, state: CollectionState, queries: Any) -> Recall:
    try:
        answers: list[list[str]] = core.run_in_child(_search, copy, state.of.name, queries.tolist(), NEAREST)
    except ChromaFailed as failed:
        return Recall(0.0, str(failed))
    nearest = _nearest_distances(state, queries)
    found = expected = 0
    for query, answer, distances in zip(queries, answers, nearest, strict=True):
        limit = distances[-1] + _TOLERANCE * max(abs(float(distances[-1])), 1e-6)
        expected += len(distances)
        for key in answer:
            vector = state.vector_of(key)
            if vector is not None and len(vector[1]) == query.nbytes:
                other = np.frombuffer(vector[1], dtype="<f4").reshape(1, -1)
                found += bool(_distances(state, query.reshape(1, -1), other)[0, 0] <= limit)
    return Recall(min(1.0, found / expected) if expected else 1.0)


def _nearest_distances(state: CollectionState, queries: Any) -> Any:
    """Return the distances of the nearest vectors of each query, in ascending order."""
    best = np.empty((len(queries), 0))
    blocks = (block.vectors for block in state.segment_blocks())
    queued = (np.frombuffer(raw, dtype="<f4").reshape(1, -1) for _, _, raw in state.queued_vectors())
    for vectors in chain(blocks, (one for one in queued if one.shape[1] == queries.shape[1])):
        distances = np.concatenate([best, np.nan_to_num(_distances(state, queries, vectors), nan=np.inf)], axis=1)
        best = np.sort(np.partition(distances, min(NEAREST, distances.shape[1]) - 1, axis=1)[:, :NEAREST], axis=1)
    return best


def _distances(state: CollectionState, queries: Any, vectors: Any) -> Any:
    """Compute the distance that the collection uses, in double precision."""
    with np.errstate(all="ignore"):
        left, right = queries.astype(np.float64), vectors.astype(np.float64)
        if state.is_cosine:
            left = left / np.linalg.norm(left, axis=1, keepdims=True)
            right = right / np.linalg.norm(right, axis=1, keepdims=True)
        products = left @ right.T
        if state.of.distance == "l2":
            return (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2 * products
        return 1 - products


def _search(copy: Path, name: str, queries: list[list[float]], count: int) -> list[list[str]]:
    """Search with chromadb; called in a child process."""
    collection = core.open_client(copy, migrates=True).get_collection(name, embedding_function=None)
    found: list[list[str]] = collection.query(query_embeddings=queries, n_results=count, include=[])["ids"]
    return found
