"""Varints of many numbers at once: 7 bits in each byte, the highest first, the top bit set in all but the last."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


class Varints(NamedTuple):
    """Numbers, how many bytes each takes, and where in a stream each ends."""

    numbers: NDArray[Any]
    lengths: Bytes
    ends: Numbers


def lengths_of(numbers: NDArray[Any]) -> Bytes:
    """Return how many bytes each number below 2^56 takes."""
    lengths = np.ones(len(numbers), dtype=np.uint8)
    most, limit = int(numbers.max(initial=0)), 1 << 7
    while limit <= most:
        lengths += numbers >= limit
        limit <<= 7
    return lengths


def put_all(stream: Bytes, *groups: Varints) -> None:
    """Write numbers that together are all of a stream.

    The last byte of each number is written after all others. So each can write a second one: where it has none, that is
    the last byte of the number before it (before the first one, of the stream's last number).
    """
    for group in groups:
        _put_others(stream, group, 2)
    for numbers, lengths, ends in groups:
        if lengths.max(initial=1) > 1:
            stream[ends - 2] = (numbers >> 7).astype(np.uint8) | 0x80
    for numbers, _, ends in groups:
        stream[ends - 1] = numbers.astype(np.uint8) & 0x7F


def put_some(stream: Bytes, group: Varints) -> None:
    """Write numbers among what else is in a stream."""
    _put_others(stream, group, 1)
    stream[group.ends - 1] = group.numbers.astype(np.uint8) & 0x7F


def _put_others(stream: Bytes, group: Varints, least: int) -> None:
    """Write the bytes of numbers behind which so many more follow, or more than that."""
    numbers, lengths, ends = group
    for back in range(least, int(lengths.max(initial=1))):
        those = np.flatnonzero(lengths > back)
        stream[ends[those] - (1 + back)] = (numbers[those] >> 7 * back).astype(np.uint8) | 0x80
