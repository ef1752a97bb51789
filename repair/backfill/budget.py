"""What a run has sent, what that costs, and whether it may send more."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import msgspec

from regraft.embedders import Embedder
from regraft.language import tr


class Limits(msgspec.Struct, frozen=True):
    """How much a run may send at most; None: as much as it takes. The cost is in the currency of the price."""

    texts: int | None = None
    requests: int | None = None
    cost: float | None = None


class LimitReached(Exception):
    """Nothing more may be sent; the text says what was reached."""


class Budget:
    """Counts requests and tokens of all threads of a run.

    The tokens of a request are estimated until its answer says what the server counted.
    """

    def __init__(self, embedder: Embedder, limits: Limits) -> None:
        self._embedder = embedder
        self._limits = limits
        self._price = (embedder.settings.price_per_million_tokens or 0.0) / 1_000_000
        self._lock = threading.Lock()
        self._under_way = 0
        self.requests = 0
        self.tokens = 0
        #: Texts that were claimed to be sent.
        self.texts = 0

    @property
    def cost(self) -> float:
        """Return what all answered requests cost."""
        return self.tokens * self._price

    def texts_left(self) -> int | None:
        """Return how many texts may still be taken on, None where nothing limits them."""
        return None if self._limits.texts is None else max(0, self._limits.texts - self.texts)

    def embedded(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Return the vectors of texts, in their order; what is sent for them is counted.

        Raises:
            LimitReached: a request must not leave.
            TextsRejected, ServerFailing, EmbedderRefused, Halted: see :class:`~regraft.embedders.Embedder`.
        """
        estimated: list[int] = []
        tokens = 0
        try:
            found = self._embedder.embed(texts, sending=lambda sent: estimated.append(self._sending(sent)))
            tokens = estimated[-1] if found.tokens is None else found.tokens
            return found.vectors
        finally:
            with self._lock:
                self._under_way -= sum(estimated)
                self.tokens += tokens

    def _sending(self, texts: Sequence[str]) -> int:
        """Take note of a request that is about to leave, and return its tokens by estimate."""
        tokens = sum(map(self._embedder.tokens, texts))
        with self._lock:
            if self._limits.requests is not None and self.requests >= self._limits.requests:
                raise LimitReached(tr("--max-requests {requests:,} is reached", requests=self._limits.requests))
            cost = (self.tokens + self._under_way + tokens) * self._price
            if self._limits.cost is not None and cost > self._limits.cost:
                raise LimitReached(tr("--max-cost {cost:g} could be exceeded", cost=self._limits.cost))
            self.requests += 1
            self._under_way += tokens
        return tokens
