"""What a run has sent, what that costs, and whether and when it may send more.

:class:`Spending` counts, and is asked before each request leaves: by the threads of one run, or, in a process of its
own, by all machines of a fleet. :class:`Meter` asks it for an embedder.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from regraft.embedders import Embedder, Halted
from regraft.language import tr


class Limits(msgspec.Struct, frozen=True):
    """How much a run may send at most; None: as much as it takes. The cost is in the currency of the price."""

    texts: int | None = None
    requests: int | None = None
    cost: float | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How much a run may send in a minute; None: as much as it can."""

    requests: int | None = None
    tokens: int | None = None


class LimitReached(Exception):
    """Nothing more may be sent; the text says what was reached."""


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request that wants to leave: in so many seconds it may, or why it must not."""

    seconds: float = 0.0
    refused: str | None = None


class Pacer:
    """Spreads requests and their tokens evenly over time, so that no minute has more than its share.

    It is a bucket that holds one request: who takes it leaves the bucket empty for as long as the request and its
    tokens take at the given rates. ``now`` returns a time in seconds.
    """

    def __init__(self, rates: Rates, now: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates
        self._now = now
        self._free_at = 0.0

    def taken(self, tokens: int) -> float:
        """Take the next place for a request of so many tokens, and return in how many seconds it comes."""
        now = self._now()
        place = max(now, self._free_at)
        self._free_at = place + self._length(1, tokens)
        return place - now

    def counted(self, more: int) -> None:
        """Take note that a request had so many tokens more than was estimated."""
        self._free_at += self._length(0, more)

    def _length(self, requests: int, tokens: int) -> float:
        """Return how many seconds requests and tokens take up."""
        by_requests = 60 * requests / self._rates.requests if self._rates.requests else 0.0
        by_tokens = 60 * tokens / self._rates.tokens if self._rates.tokens else 0.0
        return max(by_requests, by_tokens) if requests else by_tokens


class Gauge:
    """Learns how many tokens a server counts at most where one was estimated, so that a limit of costs holds."""

    def __init__(self) -> None:
        self._most = 1.0

    def learn(self, estimated: int, counted: int) -> None:
        """Take note of an answer."""
        self._most = max(self._most, counted / estimated if estimated else 1.0)

    def scaled(self, estimated: int) -> float:
        """Return how many tokens may have to be paid for: not fewer than estimated."""
        return estimated * self._most


class SpendingAccount(Protocol):
    """What is asked before a request leaves, and told afterwards what became of it."""

    def reserve(self, tokens: int) -> Permit:
        """Take note of a request of so many tokens, by estimate, that is about to leave; or refuse it."""

    def settle(self, reserved: int, tokens: int) -> None:
        """Take note that requests for which so many tokens were reserved are over, and how many the server counted."""

    def give_back(self, tokens: int) -> None:
        """Take note that a request did not leave after all."""


class Spending:
    """Counts requests and tokens, within limits.

    The tokens of a request are estimated until its answer says what the server counted. What nobody settles, since
    who sent it is gone, stays under way: it counts against the limits as if it was spent.

    Args:
        limits: how much may be sent.
        price: of a token.
        pacer: says when; None: at once.
        gauge: corrects estimates; None: by what is sent here alone.
    """

    def __init__(self, limits: Limits, price: float, pacer: Pacer | None = None, gauge: Gauge | None = None) -> None:
        self.limits = limits
        self._price = price
        self._pacer = pacer or Pacer(Rates())
        self._gauge = gauge or Gauge()
        self._lock = threading.Lock()
        self.under_way = 0
        self.requests = 0
        self.tokens = 0

    def reserve(self, tokens: int) -> Permit:
        """See :meth:`Leave.reserve`."""
        with self._lock:
            limits = self.limits
            if limits.requests is not None and self.requests >= limits.requests:
                return Permit(refused=tr("--max-requests {requests:,} is reached", requests=limits.requests))
            cost = (self.tokens + self._gauge.scaled(self.under_way + tokens)) * self._price
            if limits.cost is not None and cost > limits.cost:
                return Permit(refused=tr("--max-cost {cost:g} could be exceeded", cost=limits.cost))
            self.requests += 1
            self.under_way += tokens
            return Permit(seconds=self._pacer.taken(tokens))

    def settle(self, reserved: int, tokens: int) -> None:
        """See :meth:`Leave.settle`."""
        with self._lock:
            self.under_way -= reserved
            self.tokens += tokens
            if tokens:
                self._gauge.learn(reserved, tokens)
            self._pacer.counted(max(0, tokens - reserved))

    def give_back(self, tokens: int) -> None:
        """See :meth:`Leave.give_back`."""
        with self._lock:
            self.requests -= 1
            self.under_way -= tokens


class MeteredEmbedder:
    """Asks for leave for each request of an embedder; used by several threads.

    Args:
        embedder: what makes vectors.
        leave: what is asked.
        pause: waits so many seconds, and returns True where nothing is to be sent any more; None: waits.
    """

    def __init__(
        self, embedder: Embedder, leave: SpendingAccount, pause: Callable[[float], bool] | None = None
    ) -> None:
        self._embedder = embedder
        self._leave = leave
        self._pause = pause or threading.Event().wait
        #: Why what was sent could not be noted down: nothing more leaves.
        self._problem: Exception | None = None

    def embedded(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Return the vectors of texts, in their order; what is sent for them is counted.

        Raises:
            LimitReached: a request must not leave.
            TextsRejected, ServerFailing, EmbedderRefused, Halted: see :class:`~regraft.embedders.Embedder`.
            Unanswered: see there.
            apsw.Error, OSError: what was sent for others before could not be noted down.
        """
        estimated: list[int] = []
        try:
            found = self._embedder.embed(texts, sending=lambda sent: estimated.append(self._sending(sent)))
        except BaseException:
            if estimated:
                self._leave.settle(sum(estimated), 0)
            raise
        if estimated:
            try:
                self._leave.settle(sum(estimated), estimated[-1] if found.tokens is None else found.tokens)
            except Exception as problem:
                # The vectors are paid for: they are kept first.
                self._problem = problem
        return found.vectors

    def _sending(self, texts: Sequence[str]) -> int:
        """Wait until a request may leave, and return its tokens by estimate."""
        if self._problem is not None:
            raise self._problem
        tokens = sum(map(self._embedder.tokens, texts))
        permit = self._leave.reserve(tokens)
        if permit.refused is not None:
            raise LimitReached(permit.refused)
        if permit.seconds and self._pause(permit.seconds):
            self._leave.give_back(tokens)
            raise Halted
        return tokens


class BudgetedEmbedder(MeteredEmbedder):
    """Counts what all threads of one run send, within its limits."""

    def __init__(self, embedder: Embedder, limits: Limits) -> None:
        self._spending = Spending(limits, (embedder.settings.price_per_million_tokens or 0.0) / 1_000_000)
        super().__init__(embedder, self._spending)
        #: Texts that were claimed to be sent.
        self.texts = 0

    @property
    def requests(self) -> int:
        """Return how many requests were sent."""
        return self._spending.requests

    @property
    def tokens(self) -> int:
        """Return how many tokens they had."""
        return self._spending.tokens

    def charge(self, tokens: int) -> None:
        """Count tokens that were sent before against the cost limit."""
        self._spending.tokens += tokens

    def texts_left(self) -> int | None:
        """Return how many texts may still be taken on, None where nothing limits them."""
        most = self._spending.limits.texts
        return None if most is None else max(0, most - self.texts)
