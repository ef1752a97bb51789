"""Digests over the bodies of an index with their vectors, as they are put in, to be compared with what is read back."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

#: About so many bodies are in one digest, and all of a material's.
PART_BODIES = 1024


class PartDigest(NamedTuple):
    """A digest over some bodies, up to the one with this number."""

    last: int
    digest: str


class BodiesDigest:
    """A digest that runs over bodies: over the hash of each one's text and its vector, where it came with one."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()

    def add(self, text_hash: bytes, vector: bytes | None) -> None:
        """Take the next body."""
        self._hasher.update(text_hash + (vector or b""))

    def hexdigest(self) -> str:
        """Return the digest of what was taken."""
        return self._hasher.hexdigest()


class Digests:
    """The digests of all bodies, as they are put into an index in the order of their numbers."""

    def __init__(self) -> None:
        self.parts: list[PartDigest] = []
        self._first = 1
        self._running = BodiesDigest()

    def add(self, text_hash: bytes, vector: bytes | None) -> None:
        """Take the next body."""
        self._running.add(text_hash, vector)

    def end_material(self, last: int) -> None:
        """Know that the bodies of a material end with this number: a part of enough bodies ends there, too."""
        if last - self._first + 1 >= PART_BODIES:
            self.end(last)

    def end(self, last: int) -> None:
        """Know that no body comes behind the one with this number that is in the same part."""
        if last >= self._first:
            self.parts.append(PartDigest(last, self._running.hexdigest()))
        self._first, self._running = last + 1, BodiesDigest()
