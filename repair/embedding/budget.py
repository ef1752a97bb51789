"""Count requests and tokens, enforce the limits of a run (``--max-requests``, ``--max-cost``), and pace requests.

Every request is reserved in a :class:`Spending` before it is sent and settled with the server's token count afterwards.
One run shares one; a fleet keeps its own in the process of the keeper, for all machines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from regraft.embedders import Embedder, Halted
from regraft.errors import AnswerUnfit
from regraft.language import tr


class Limits(msgspec.Struct, frozen=True):
    """The most that a run may send; None: no limit. ``cost`` is in the currency of the embedder's price."""

    texts: int | None = None
    requests: int | None = None
    cost: float | None = None


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The most that a run may send per minute; None: no limit."""

    requests: int | None = None
    tokens: int | None = None


class LimitReached(Exception):
    """A limit does not allow another request; the text says which limit."""


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a request may be sent: after a wait of ``seconds``, or not at all for the reason ``refused``."""

    seconds: float = 0.0
    refused: str | None = None


class Pacer:
    """Spread requests and their tokens evenly over time, so that no minute exceeds the rates.

    A leaky bucket that holds one request: each request blocks the next one for as long as it and its tokens take at the
    given rates. ``now`` returns a monotonic time in seconds.
    """

    def __init__(self, rates: Rates, now: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates
        self._now = now
        self._free_at = 0.0

    def reserve(self, tokens: int) -> float:
        """Reserve the next time slot for a request of ``tokens`` tokens; returns the seconds to wait for it."""
        now = self._now()
        slot = max(now, self._free_at)
        self._free_at = slot + self._seconds(1, tokens)
        return slot - now

    def add(self, tokens: int) -> None:
        """Delay the next time slot for tokens by which a request exceeded its estimate."""
        self._free_at += self._seconds(0, tokens)

    def _seconds(self, requests: int, tokens: int) -> float:
        """Return how many seconds requests with this many tokens together take at the given rates."""
        by_requests = 60 * requests / self._rates.requests if self._rates.requests else 0.0
        by_tokens = 60 * tokens / self._rates.tokens if self._rates.tokens else 0.0
        return max(by_requests, by_tokens) if requests else by_tokens


class TokenGauge:
    """The largest ratio of counted to estimated tokens so far, so that a cost limit holds although tokens are
    estimated.
    """

    def __init__(self) -> None:
        self._largest_ratio = 1.0

    def learn(self, estimated: int, counted: int) -> None:
        """Compare the estimate of a request with the server's count."""
        self._largest_ratio = max(self._largest_ratio, counted / estimated if estimated else 1.0)

    def upper_bound(self, estimated: int) -> float:
        """Return the most tokens that the server may count for an estimate; never less than the estimate."""
        return estimated * self._largest_ratio


class SpendingAccount(Protocol):
    """Where a sender reserves each request and settles it afterwards."""

    def reserve(self, tokens: int) -> Permit:
        """Reserve a request of an estimated number of tokens, or refuse it."""

    def settle(self, reserved: int, tokens: int) -> None:
        """Replace the estimate ``reserved`` of finished requests by the tokens that the server counted."""

    def cancel(self, tokens: int) -> None:
        """Return the reservation of a request that was not sent."""


class Spending:
    """Requests and tokens spent so far, within limits; thread-safe.

    The tokens of a request are estimated until its answer has the server's count. A reservation that is never settled,
    because its process was killed, stays reserved: it counts against the limits as if it was spent.

    Args:
        limits: the most that may be sent.
        price: of one token.
        pacer: spreads requests over time; None: no delays.
        gauge: corrects token estimates; None: one that learns from this spending alone.

    The cost limit applies to this spending together with ``beside``, if that is set.
    """

    def __init__(
        self, limits: Limits, price: float, pacer: Pacer | None = None, gauge: TokenGauge | None = None
    ) -> None:
        self.limits = limits
        self._price = price
        self._pacer = pacer or Pacer(Rates())
        self._gauge = gauge or TokenGauge()
        self.beside: Spending | None = None
        self._lock = threading.Lock()
        #: Estimated tokens of requests that are not settled yet.
        self.reserved = 0
        self.requests = 0
        self.tokens = 0

    def reserve(self, tokens: int) -> Permit:
        """Reserve a request of an estimated number of tokens.

        The permit refuses it once ``--max-requests`` is reached or ``--max-cost`` might be exceeded.
        """
        with self._lock:
            limits = self.limits
            if limits.requests is not None and self.requests >= limits.requests:
                return Permit(refused=tr("--max-requests {requests:,} is reached", requests=limits.requests))
            every = [self] if self.beside is None else [self, self.beside]
            open_tokens = tokens + sum(one.reserved for one in every)
            cost = (sum(one.tokens for one in every) + self._gauge.upper_bound(open_tokens)) * self._price
            if limits.cost is not None and cost > limits.cost:
                return Permit(refused=tr("--max-cost {cost:g} could be exceeded", cost=limits.cost))
            self.requests += 1
            self.reserved += tokens
            return Permit(seconds=self._pacer.reserve(tokens))

    def settle(self, reserved: int, tokens: int) -> None:
        """Replace the estimate ``reserved`` of finished requests by the tokens that the server counted."""
        with self._lock:
            self.reserved -= reserved
            self.tokens += tokens
            if tokens:
                self._gauge.learn(reserved, tokens)
            self._pacer.add(max(0, tokens - reserved))

    def cancel(self, tokens: int) -> None:
        """Return the reservation of a request that was not sent; ``tokens`` was its estimate."""
        with self._lock:
            self.requests -= 1
            self.reserved -= tokens


class MeteredEmbedder:
    """An embedder that reserves each request in a spending account first; used by several threads.

    Args:
        embedder: computes the vectors.
        account: where requests are reserved and settled.
        pause: waits a number of seconds and returns True if sending was halted; None: plain waiting.
    """

    def __init__(
        self, embedder: Embedder, account: SpendingAccount, pause: Callable[[float], bool] | None = None
    ) -> None:
        self._embedder = embedder
        self._account = account
        self._pause = pause or threading.Event().wait
        #: The error with which settling failed: no further request is sent.
        self._problem: Exception | None = None

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Sequence[bytes]:
        """Reserve a request and send texts; returns their vectors in order. ``query``: the texts are search queries.

        Raises:
            LimitReached: a limit does not allow the request.
            TextsRejected, ServerFailing, EmbedderRefused, Halted, Unanswered: see :class:`~regraft.embedders.Embedder`.
            apsw.Error, OSError: an earlier request could not be settled.
        """
        estimates: list[int] = []
        try:
            answer = self._embedder.embed(
                texts, query=query, sending=lambda sent: estimates.append(self._reserve(sent))
            )
        except BaseException as error:
            # The server counted the tokens of an answer that cannot be used, too.
            self._settle(estimates, error.tokens if isinstance(error, AnswerUnfit) else 0)
            raise
        if estimates:
            try:
                self._settle(estimates, answer.tokens)
            except Exception as problem:
                # These vectors are paid for: return them, and raise the error at the next request.
                self._problem = problem
        return answer.vectors

    def _settle(self, estimates: Sequence[int], tokens: int | None) -> None:
        """Settle the attempts to send one request: all but the last one failed.

        ``estimates`` are those of the attempts, ``tokens`` the server's count for the last one; None: it sent none.
        """
        if not estimates:
            return
        *failed, last = estimates
        if failed:
            self._account.settle(sum(failed), 0)
        self._account.settle(last, last if tokens is None else tokens)

    def _reserve(self, texts: Sequence[str]) -> int:
        """Reserve a request for texts and wait for its time slot; returns its estimated tokens."""
        if self._problem is not None:
            raise self._problem
        tokens = sum(map(self._embedder.tokens, texts))
        permit = self._reserve_tokens(tokens)
        if permit.seconds and self._pause(permit.seconds):
            self._account.cancel(tokens)
            raise Halted
        return tokens

    def _reserve_tokens(self, tokens: int) -> Permit:
        """Reserve a request of an estimated number of tokens, or raise LimitReached."""
        permit = self._account.reserve(tokens)
        if permit.refused is not None:
            raise LimitReached(permit.refused)
        return permit


class BudgetedEmbedder(MeteredEmbedder):
    """An embedder within the limits of one run, shared by all its threads. It counts what is sent."""

    def __init__(self, embedder: Embedder, limits: Limits, gauge: TokenGauge | None = None) -> None:
        #: Corrects token estimates; the meters of one run share it.
        self.gauge = gauge or TokenGauge()
        price = (embedder.settings.price_per_million_tokens or 0.0) / 1_000_000
        self._spending = Spending(limits, price, gauge=self.gauge)
        super().__init__(embedder, self._spending)
        #: How many texts were claimed to be sent.
        self.texts = 0

    @property
    def requests(self) -> int:
        """Requests sent so far."""
        return self._spending.requests

    @property
    def tokens(self) -> int:
        """Tokens sent so far, as the server counted them."""
        return self._spending.tokens

    def demand_affordable(self, tokens: int) -> None:
        """Check that the limits allow one request of an estimated number of tokens.

        Raises:
            LimitReached
        """
        self._reserve_tokens(tokens)
        self._spending.cancel(tokens)

    def charge(self, tokens: int) -> None:
        """Count tokens that were sent before (to compare the embedder) against the cost limit."""
        self._spending.tokens += tokens

    def texts_left(self) -> int | None:
        """Return how many more texts the limit of texts allows to claim, or None without a limit."""
        limit = self._spending.limits.texts
        return None if limit is None else max(0, limit - self.texts)
