"""What backfill needs to know of a store: which texts lack a vector, and where a vector goes.

An index file has one scope, and so has any other store whose vectors follow from texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Survey:
    """How many distinct texts a scope has.

    ``ready`` have a good vector, ``pending`` have none, ``stale`` have one that no search can use.
    """

    ready: int
    pending: int
    stale: int

    @property
    def eligible(self) -> int:
        """Return how many there are."""
        return self.ready + self.pending + self.stale

    @property
    def lacking(self) -> int:
        """Return how many have no good vector."""
        return self.pending + self.stale


@dataclass(frozen=True, slots=True)
class Lacking:
    """A text without a good vector: None where it is not the text that its key stands for.

    ``is_stale``: it has a vector, which no search can use.
    """

    text: str | None
    is_stale: bool


@dataclass(frozen=True)
class Written:
    """What became of vectors: those of texts that had none, and those that took the place of a bad one."""

    pending: int
    stale: int


class Scope(Protocol):
    """Texts by keys, and the place of their vectors; vectors are raw little-endian float32."""

    @property
    def name(self) -> str:
        """Return its name in documents and in the queue: a base's id."""

    @property
    def label(self) -> str:
        """Return what a person calls it."""

    @property
    def dimensions(self) -> int | None:
        """Return how many numbers its vectors have; None where nobody has said and none are there."""

    def survey(self) -> Survey:
        """Count its texts."""

    def lacking(self) -> Iterator[str]:
        """Return the key of every text without a good vector, each once, in order."""

    def texts(self, keys: Sequence[str]) -> dict[str, Lacking]:
        """Return the texts of those keys that still lack a good vector."""

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> Written:
        """Write vectors in one transaction; a good one that is there stays."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return some texts that have a good vector, with it."""
