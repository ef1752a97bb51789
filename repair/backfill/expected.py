"""What a run sends of each scope, before it does: no less than it will, texts that are still to be cut included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter

import msgspec

from repair.backfill.filling import sendable
from repair.backfill.scope import Scope, Survey

#: How many texts are held at once.
_AT_ONCE = 256

Counter = Callable[[str], int]
#: A text's key, and its tokens.
Sized = tuple[str, int]


class Expected(msgspec.Struct):
    """What becomes of the texts of one scope before it is filled.

    ``coming`` are those of units that are made first and have no vector, ``free`` the keys of those that take the
    vector of an equal text: one that is there (``there``), or that the run has sent for another scope before.
    """

    coming: dict[str, int] = msgspec.field(default_factory=dict)
    free: set[str] = msgspec.field(default_factory=set)
    there: frozenset[str] = frozenset()
    #: Whether the place of its vectors holds those of others, too.
    shares_with_itself: bool = False
    #: How many texts take the vector of an equal one; known once :meth:`sized` was read.
    shared: int = 0

    def survey(self, scope: Scope) -> Survey:
        """Count the texts of a scope as they will be."""
        found = scope.survey()
        more = len(self.coming.keys() - set(scope.texts(list(self.coming))))
        return Survey(ready=found.ready, pending=found.pending + more, stale=found.stale, failed=found.failed)

    def sized(self, scope: Scope, tokens_of: Counter) -> Iterator[Sized]:
        """Yield every text that is sent, in its order."""
        self.shared = 0
        every = merge(lacking(scope, tokens_of), sorted(self.coming.items()))
        once = (next(group) for _, group in groupby(every, key=itemgetter(0)))
        while chunk := list(islice(once, _AT_ONCE)):
            keys = [key for key, _ in chunk]
            free = self.free.intersection(keys)
            if self.shares_with_itself:
                free |= scope.vectors(keys).keys()
            self.shared += len(free)
            yield from (one for one in chunk if one[0] not in free)


def lacking(scope: Scope, tokens_of: Counter) -> Iterator[Sized]:
    """Yield the texts that lack a vector and have anything to be embedded."""
    keys = scope.lacking()
    while chunk := list(islice(keys, _AT_ONCE)):
        for key, one in sendable(scope.texts(chunk)).items():
            yield key, tokens_of(one.text or "")


def coming(scope: Scope, bodies: Iterable[tuple[str, str]], tokens_of: Counter) -> dict[str, int]:
    """Return those of the bodies that have no vector, by their keys, with their tokens."""
    found = {}
    bodies = iter(bodies)
    while chunk := dict(islice(bodies, _AT_ONCE)):
        ready = scope.vectors(list(chunk))
        found.update({key: tokens_of(text) for key, text in chunk.items() if key not in ready})
    return found
