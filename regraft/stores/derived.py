"""Compare a derived store with its source of truth.

Both are sequences of (id, fingerprint), sorted by id: the materials of an index and the items of a catalog, for
example. The caller decides what ids and fingerprints are, and what to do about a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

from regraft.language import tr

DifferenceKind = Literal["missing", "stale", "orphaned"]


class Ordered(Protocol):
    """A type whose values can be sorted."""

    def __lt__(self, other: Any, /) -> bool:
        """Whether the value sorts before another one."""


Id = TypeVar("Id", bound=Ordered)
Fingerprint = TypeVar("Fingerprint")


class OutOfOrder(ValueError):
    """An id does not come after the previous one: it occurs twice, or the sequence is not sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Generic[Id, Fingerprint]):
    """An id that differs between a derived store and its source of truth.

    ``missing``: only the source of truth has it. ``stale``: both have it, with different fingerprints. ``orphaned``:
    only the derived store has it. ``wanted`` is the fingerprint in the source of truth, ``found`` the one in the
    derived store; None if the id is missing there.
    """

    kind: DifferenceKind
    id: Id
    wanted: Fingerprint | None
    found: Fingerprint | None


def compare_sorted(
    authority: Iterable[tuple[Id, Fingerprint]], derived: Iterable[tuple[Id, Fingerprint]]
) -> Iterator[Difference[Id, Fingerprint]]:
    """Yield the differences between a derived store and its source of truth, ``authority``, in the order of ids.

    Both are pairs of id and fingerprint, sorted by id without duplicates; neither is held in memory.

    Raises:
        OutOfOrder: one of them is not sorted.
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
    """Yield pairs unchanged; raise OutOfOrder if their ids do not ascend."""
    before: tuple[Id, Fingerprint] | None = None
    for row in rows:
        if before is not None and not before[0] < row[0]:
            raise OutOfOrder(tr("{row!r} does not come after {before!r}", row=row[0], before=before[0]))
        before = row
        yield row
