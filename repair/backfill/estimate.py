"""What filling a scope would send, by the rules that it is sent by."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from regraft.embedders.settings import EmbedderSettings
from repair.backfill.budget import Limits
from repair.backfill.expected import Sized
from repair.backfill.filling import packed


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, tokens and requests that a run would send, and what that costs; None where there is no price.

    ``shared`` texts more take the vector of an equal one that another base has, or gets: a text is paid for once.
    """

    texts: int
    tokens: int
    requests: int
    cost: float | None
    currency: str
    shared: int = 0

    def plus(self, other: Estimate) -> Estimate:
        """Return both together."""
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        texts, tokens = self.texts + other.texts, self.tokens + other.tokens
        return Estimate(
            texts=texts, tokens=tokens, requests=self.requests + other.requests, cost=cost, currency=self.currency
        )


def cost_of(tokens: int, settings: EmbedderSettings) -> float | None:
    """Return what tokens cost, None where there is no price."""
    price = settings.price_per_million_tokens
    return None if price is None else tokens * price / 1_000_000


def nothing(settings: EmbedderSettings) -> Estimate:
    """Return what no text takes."""
    return Estimate(texts=0, tokens=0, requests=0, cost=cost_of(0, settings), currency=settings.currency)


def estimate(sized: Iterable[Sized], settings: EmbedderSettings, limits: Limits, sent: Estimate) -> Estimate:
    """Return what sending these texts takes.

    Args:
        sized: the texts, in their order.
        settings: the embedder's.
        limits: what the run may send.
        sent: what it sends before.

    Raises:
        apsw.Error: the scope is damaged.
    """
    texts = tokens = requests = 0
    for sizes in ([size for _, size in batch] for batch in packed(sized, settings.batch)):
        batch = sizes if limits.texts is None else sizes[: max(0, limits.texts - sent.texts - texts)]
        size = sum(batch)
        cost = cost_of(sent.tokens + tokens + size, settings) or 0.0
        if (
            not batch
            or (limits.requests is not None and sent.requests + requests >= limits.requests)
            or (limits.cost is not None and cost > limits.cost)
        ):
            break
        texts, tokens, requests = texts + len(batch), tokens + size, requests + 1
    return Estimate(
        texts=texts,
        tokens=tokens,
        requests=requests,
        cost=cost_of(tokens, settings),
        currency=settings.currency,
    )
