"""What a comparison of two stores is asked, and what it tells (``docs/search.md``, "Comparing")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.ranking.fusion import Ranking, first_difference, recall
from regraft.report.document import Report

#: What a comparison of a base comes to.
OUTCOMES = ("equal", "different", "missing", "damaged", "failed", "not-compared")
#: Gives the nearest texts of one side.
Nearest = Callable[[bytes, int], Ranking]


class Query(msgspec.Struct, frozen=True):
    """A vector to ask both sides for, with what it is called."""

    id: str
    vector: tuple[float, ...]


class Question(msgspec.Struct, frozen=True):
    """What both sides are asked: the queries given, or a sample of so many of each base's own vectors."""

    count: int
    sample: int
    queries: tuple[Query, ...] | None = None


class Side(Struct, frozen=True, kw_only=True):
    """A text at a rank of one side."""

    text_hash: str
    score: float


class Difference(Struct, frozen=True, kw_only=True):
    """The first rank at which the answers to a query part; the side that has fewer texts has None.

    ``rank`` is None where they do not.
    """

    query: str
    recall: float
    rank: int | None
    v1: Side | None
    v2: Side | None


class BaseComparison(Struct, frozen=True, kw_only=True):
    """What a comparison of one base comes to; ``compared_with`` is its id in the second store."""

    legacy_id: str | None
    id: str
    name: str
    outcome: str
    problem: str | None
    texts: int | None = None
    queries: int = 0
    recall: float | None = None
    lowest_recall: float | None = None
    differences: list[Difference] = []
    compared_with: str | None = None


class ComparisonSummary(Struct, frozen=True, kw_only=True):
    """The sums over all bases; ``recall`` is the mean over queries, None where nothing was asked."""

    by_outcome: dict[str, int]
    queries: int
    recall: float | None


class CompareReport(Report, kw_only=True):
    """What ``regraft compare`` tells (``docs/commands.md``)."""

    k: int
    bases: list[BaseComparison]
    summary: ComparisonSummary


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One base of the first store, and the id of that of the second store with which it is compared."""

    legacy_id: str | None
    id: str
    name: str
    other: str | None

    def told(self, outcome: str, problem: str | None) -> BaseComparison:
        """Return the comparison of a base that nothing was asked."""
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome=outcome,
            problem=problem,
            compared_with=self.other,
        )

    def compared(self, results: list[Difference], texts: int) -> BaseComparison:
        """Return the comparison of a base by the answers to its queries; ``texts`` is how many the first side has."""
        parted = [result for result in results if result.v1 != result.v2]
        shares = [result.recall for result in results]
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome="different" if parted else "equal",
            problem=None,
            texts=texts,
            queries=len(results),
            recall=sum(shares) / len(shares),
            lowest_recall=min(shares),
            differences=parted,
            compared_with=self.other,
        )


def ask(first: Nearest, second: Nearest, query: Query, count: int) -> Difference:
    """Ask both sides for the ``count`` texts that are nearest to a query.

    Raises:
        apsw.Error: one is damaged.
    """
    vector = vector_blob(query.vector)
    old, new = first(vector, count), second(vector, count)
    parted = first_difference(old, new)
    share = recall(old, new, count)
    if parted is None:
        return Difference(query=query.id, recall=share, rank=None, v1=None, v2=None)
    return Difference(query=query.id, recall=share, rank=parted["rank"], v1=_side(parted["v1"]), v2=_side(parted["v2"]))


def _side(found: dict[str, Any] | None) -> Side | None:
    return None if found is None else Side(**found)


def summary(told: list[BaseComparison]) -> ComparisonSummary:
    """Return the sums over all bases."""
    outcomes = Counter(base.outcome for base in told)
    queries = sum(base.queries for base in told)
    found = sum(base.queries * base.recall for base in told if base.recall is not None)
    return ComparisonSummary(
        by_outcome={name: outcomes[name] for name in OUTCOMES},
        queries=queries,
        recall=found / queries if queries else None,
    )
