"""What every answer has to be, before anything of it is written."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence

from regraft.errors import AnswerUnfit
from regraft.formats.vector_numbers import LARGEST_NORM
from regraft.language import tr

#: A shorter vector has no direction in single precision: its squares vanish.
_SHORTEST = 2.0**-63
#: The highest bytes of numbers, of either sign, that are less than that; and of infinities, NaNs and numbers
#: from 2**57 on: the squares of 16,384 smaller ones do not exceed single precision.
_SMALL = bytes(byte for byte in range(256) if byte & 0x7F < 0x20)
_LARGE = bytes(byte for byte in range(256) if byte & 0x7F >= 0x5C)
_SAID = {
    "not_numbers": tr("is not a list of numbers"),
    "non_finite": tr("has a NaN or an infinity, or a norm too large for single precision"),
    "zero_vector": tr("has only zeros"),
}


def check(vectors: Sequence[bytes], count: int, dimensions: int | None, *, embedder: str) -> None:
    """Refuse vectors that cannot be those of a batch.

    Args:
        vectors: raw float32.
        count: how many texts there were.
        dimensions: what each has to have; None: all the same.
        embedder: its name, for the error.

    Raises:
        AnswerUnfit
    """
    if len(vectors) != count:
        raise unfit(
            "wrong_count",
            tr("it has {vectors} vectors for {count} texts", vectors=len(vectors), count=count),
            embedder=embedder,
        )
    _demand_lengths(vectors, dimensions, embedder)
    # The norm of a vector with an infinity is infinite, and that of one with a NaN is a NaN or infinite.
    norms = {place: math.hypot(*array("f", vector)) for place, vector in enumerate(vectors) if not _is_plain(vector)}
    check_each("non_finite", [place for place, norm in norms.items() if not norm < LARGEST_NORM], embedder)
    check_each("zero_vector", [place for place, norm in norms.items() if norm < _SHORTEST], embedder)


def _is_plain(vector: bytes) -> bool:
    """Tell of nearly every good vector, by the exponents of its numbers, that it is one: that is forty times faster."""
    exponents = vector[3::4]
    return len(exponents.translate(None, _LARGE)) == len(exponents) and bool(exponents.strip(_SMALL))


def check_each(fault: str, bad: list[int], embedder: str) -> None:
    """Refuse an answer with bad vectors at these places.

    Raises:
        AnswerUnfit
    """
    if bad:
        raise unfit(fault, tr("vector {bad} {said}", bad=bad[0] + 1, said=_SAID[fault]), bad, embedder)


def unfit(fault: str, reason: str, bad: Sequence[int] = (), embedder: str = "") -> AnswerUnfit:
    """Return the error of a bad answer; ``bad`` are the places of its bad vectors."""
    position = bad[0] if len(bad) == 1 else None
    return AnswerUnfit(embedder=embedder, fault=fault, reason=reason, position=position)


def _demand_lengths(vectors: Sequence[bytes], dimensions: int | None, embedder: str) -> None:
    lengths = Counter(map(len, vectors))
    usual = lengths.most_common(1)[0][0] if lengths else 0
    expected = usual if dimensions is None else 4 * dimensions
    bad = [place for place, vector in enumerate(vectors) if len(vector) != expected]
    if bad or expected % 4 or (vectors and not expected):
        first = bad[0] if bad else 0
        reason = tr(
            "vector {first} has {vectors:g} dimensions instead of {expected}",
            first=first + 1,
            vectors=len(vectors[first]) / 4,
            expected=expected // 4,
        )
        raise unfit("wrong_dimensions", reason, bad, embedder)
