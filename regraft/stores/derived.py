"""What a derived store lacks of its authority, has otherwise, or has too much: "A must follow B", written once.

Both are given as ids with fingerprints, sorted by id: the materials of an index and the items of a catalog, say. What
an id and a fingerprint are is the caller's business, and so is what becomes of a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from regraft.language import tr

DifferenceKind = Literal["missing", "stale", "orphaned"]


class Ordered(Protocol):
    """What can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Tell whether it comes before another one."""


Id = TypeVar("Id", bound=Ordered)
Fingerprint = TypeVar("Fingerprint")


class OutOfOrder(ValueError):
    """An id that does not come after the one before it: it is there twice, or its sequence is not sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Generic[Id, Fingerprint]):
    """An id that a derived store and its authority do not agree about.

    ``missing``: only the authority has it. ``stale``: both have it, with other fingerprints. ``orphaned``: only the
    derived store has it. ``wanted`` is the authority's fingerprint, ``found`` that of the derived store, each None
    where the id is not there.
    """

    kind: DifferenceKind
    id: Id
    wanted: Fingerprint | None
    found: Fingerprint | None


def compare_sorted(
    authority: Iterable[tuple[Id, Fingerprint]], derived: Iterable[tuple[Id, Fingerprint]]
) -> Iterator[Difference[Id, Fingerprint]]:
    """Return in the order of ids what ``derived`` has to change to follow ``authority``.

    Both are sorted by id, each id only once; neither is held in memory.

    Raises:
        OutOfOrder: one of them is not.
    """
    left, right = _ascending(authority), _ascending(derived)
    wanted, found = next(left, None), next(right, None)
    while wanted is not None and found is not None:
        if wanted[0] < found[0]:
            yield Difference(kind="missing", id=wanted[0], wanted=wanted[1], found=None)
            wanted = next(left, None)
        elif found[0] < wanted[0]:
            yield Difference(kind="orphaned", id=found[0], wanted=None, found=found[1])
            found = next(right, None)
        else:
            if wanted[1] != found[1]:
                yield Difference(kind="stale", id=wanted[0], wanted=wanted[1], found=found[1])
            wanted, found = next(left, None), next(right, None)
    while wanted is not None:
        yield Difference(kind="missing", id=wanted[0], wanted=wanted[1], found=None)
        wanted = next(left, None)
    while found is not None:
        yield Difference(kind="orphaned", id=found[0], wanted=None, found=found[1])
        found = next(right, None)


def _ascending(rows: Iterable[tuple[Id, Fingerprint]]) -> Iterator[tuple[Id, Fingerprint]]:
    before: tuple[Id, Fingerprint] | None = None
    for row in rows:
        if before is not None and not before[0] < row[0]:
            raise OutOfOrder(tr("{row!r} does not come after {before!r}", row=row[0], before=before[0]))
        before = row
        yield row
