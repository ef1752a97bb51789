"""How much may be sent, and when: by a clock that the tests turn, so that nobody waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from regraft.embedders import Embedded, Sending
from regraft.errors import AnswerUnfit
from repair.embedding.budget import BudgetedEmbedder, LimitReached, Limits, Pacer, Permit, Rates, Spending


class Clock:
    """A time in seconds that only passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def sent_at(rates: Rates, sizes: list[int], senders: int) -> list[tuple[float, int]]:
    """Return when so many senders, each of which waits as it is told, send requests of these sizes."""
    clock = Clock()
    pacer = Pacer(rates, clock)
    free, found = [clock.now] * senders, []
    for size in sizes:
        sender = min(range(senders), key=lambda number: free[number])
        clock.now = max(clock.now, free[sender])
        free[sender] = clock.now + pacer.reserve(size)
        found.append((free[sender], size))
    return found


@pytest.mark.parametrize("senders", [1, 7])
def test_no_minute_has_more_than_its_share(senders: int) -> None:
    sizes = random.Random(7).choices([10, 200, 900], k=300)
    found = sent_at(Rates(requests=60, tokens=20_000), sizes, senders)
    for begin, _ in found:
        minute = [size for at, size in found if begin <= at < begin + 59.999]
        assert len(minute) <= 60
        # The last one may begin in it and take its time in the next.
        assert sum(minute[:-1]) <= 20_000
    # Nor does it take longer than it has to.
    least = max(60 * len(sizes) / 60, 60 * sum(sizes) / 20_000)
    assert found[-1][0] - found[0][0] <= least * 1.5


def test_without_rates_nobody_waits() -> None:
    assert {at for at, _ in sent_at(Rates(), [5_000] * 50, 3)} == {1000.0}


def test_what_the_server_counted_more_is_waited_for() -> None:
    clock = Clock()
    pacer = Pacer(Rates(tokens=60), clock)
    assert pacer.reserve(10) == 0
    pacer.add(5)
    assert pacer.reserve(1) == 15
    clock.now += 100
    assert pacer.reserve(1) == 0


def test_costs_are_limited_by_what_a_server_counts_for_what_was_estimated() -> None:
    spending = Spending(Limits(cost=100.0), price=1.0)
    spending.settle(*reserved(spending, 10, counts=40))
    # As many as forty may come of ten again.
    assert spending.reserve(10) == Permit()
    assert spending.reserve(6).refused == "--max-cost 100 could be exceeded"
    assert spending.reserve(5) == Permit()
    assert (spending.requests, spending.tokens, spending.reserved) == (3, 40, 15)


def reserved(spending: Spending, tokens: int, counts: int) -> tuple[int, int]:
    assert spending.reserve(tokens) == Permit()
    return tokens, counts


def test_what_nobody_settles_stays_spent_and_what_did_not_leave_does_not() -> None:
    spending = Spending(Limits(requests=3, cost=100.0), price=1.0)
    assert [spending.reserve(tokens).refused for tokens in (60, 50, 40)] == [
        None,
        "--max-cost 100 could be exceeded",
        None,
    ]
    spending.cancel(40)
    assert spending.reserve(40) == Permit()
    assert (spending.requests, spending.reserved) == (2, 100)
    assert spending.reserve(0) == Permit()
    assert spending.reserve(0).refused == "--max-requests 3 is reached"


class Model:
    """An embedder whose texts have as many tokens as characters by the estimate, and four times as many really."""

    settings: Any = SimpleNamespace(price_per_million_tokens=1e6)

    def __init__(self, failed: int = 0, problem: AnswerUnfit | None = None) -> None:
        self._failed, self._problem = failed, problem

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending) -> Embedded:
        """Send so many requests in vain, and one that is answered."""
        for _attempt in range(self._failed + 1):
            sending(texts)
        if self._problem is not None:
            raise self._problem
        return Embedded([b"1234"] * len(texts), 4 * sum(map(len, texts)), self._failed + 1)

    def tokens(self, text: str) -> int:
        return len(text)

    def halt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def test_attempts_that_failed_do_not_hide_how_a_server_counts() -> None:
    meter = BudgetedEmbedder(Model(failed=3), Limits(cost=100.0))
    meter.embed(["x" * 10])
    assert (meter.requests, meter.tokens) == (4, 40)
    with pytest.raises(LimitReached):
        # 64 tokens really.
        meter.embed(["x" * 16])
    assert meter.tokens == 40


@pytest.mark.parametrize(("counted", "tokens"), [(70, 70), (None, 10)])
def test_an_answer_that_cannot_be_used_is_paid_for(counted: int | None, tokens: int) -> None:
    unfit = AnswerUnfit(embedder="mine", fault="zero_vector", reason="", position=0)
    unfit.tokens = counted
    meter = BudgetedEmbedder(Model(problem=unfit), Limits(cost=100.0))
    with pytest.raises(AnswerUnfit):
        meter.embed(["x" * 10])
    assert meter.tokens == tokens
