"""Whether an embedder makes the vectors that a base has: its answers are compared with what is there."""

from __future__ import annotations

import hashlib
import math
import operator
from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from regraft.embedders import Embedder, TextsRejected, check
from regraft.embedders.settings import Batch, EmbedderSettings, ServerSettings
from regraft.errors import EmbedderDiffers, EmbedderUnsteady, EveryTextRejected, ProbeRefused
from repair.embedding.budget import BudgetedEmbedder, Limits
from repair.embedding.filling import pack_batches

#: Returns the vectors of texts.
Embed = Callable[[Sequence[str]], Sequence[bytes]]

#: How many texts of a base are compared.
SAMPLE_SIZE = 8
#: The least cosine of two vectors that one model made of one text.
MIN_COSINE = 0.99
#: Sent where a base has no vectors yet: what comes back must not depend on where in a request a text stands.
SENTENCES = (
    "The ferry leaves at nine in the morning.",
    "A recipe for bread with three kinds of flour.",
    "地球绕着太阳转。",
)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing an embedder's vectors with stored ones.

    ``texts`` were compared, and three quarters of them have at least ``cosine``. ``remembered``: an interrupted run of
    the same embedder made the comparison, and nothing was sent for it again.
    """

    texts: int
    cosine: float
    requests: int
    tokens: int
    remembered: bool = False


def settings_digest(settings: EmbedderSettings) -> str | None:
    """Return a digest of all settings that decide which vectors a server returns; None for a model on disk.

    A model on disk is probed every time: its files may have changed, and it costs nothing.
    """
    if not isinstance(settings, ServerSettings):
        return None
    decisive = (settings.base_url, settings.model, settings.dimensions, settings.encoding, settings.prefix)
    return hashlib.sha256(msgspec.json.encode(decisive)).hexdigest()


def compare_with_base(
    embedder: Embedder,
    label: str,
    sample: Sequence[tuple[str, bytes]],
    dimensions: int | None,
    meter: BudgetedEmbedder | None = None,
) -> Probe:
    """Compare an embedder with a base and return the result.

    Args:
        embedder: what is asked.
        label: what a person calls the base.
        sample: texts of the base with their vectors; of these, as many as fit into a request are compared.
        dimensions: of the base's vectors.
        meter: counts what is sent, and refuses what a limit does not allow; None: no limit.

    Raises:
        LimitReached: a limit does not allow the probe.
        As :func:`probe` does.
    """
    meter = meter or BudgetedEmbedder(embedder, Limits())
    requests, tokens = meter.requests, meter.tokens
    known = texts_for_probe(sample, embedder.tokens, embedder.settings.batch)
    embed = embed_in_batches(embedder, meter.embedded)
    count, cosine = compare_vectors(embedder.settings.name, label, known, dimensions, embed)
    return Probe(texts=count, cosine=cosine, requests=meter.requests - requests, tokens=meter.tokens - tokens)


def compare_vectors(
    name: str, label: str, known: Sequence[tuple[str, bytes]], dimensions: int | None, embed: Embed
) -> tuple[int, float]:
    """Compare an embedder's answers with vectors that a base has, or, where it has none, with each other.

    Args:
        name: what the user calls the embedder.
        label: what a person calls the base.
        known: texts of the base with their vectors.
        dimensions: of the base's vectors.
        embed: asks it for vectors.

    Returns:
        How many texts were compared, and the cosine that three quarters of them have at least.

    Raises:
        EmbedderDiffers: it is another model.
        EmbedderUnsteady: it gives one text several vectors.
        AnswerUnfit: it gives vectors of another length, or none.
        ProbeRefused, EveryTextRejected, EmbedderRefused, ServerFailing: it gives no answer.
    """
    try:
        if not known:
            return _against_itself(name, dimensions, embed)
        found = _embedded(name, [text for text, _ in known], dimensions, embed)
    except TextsRejected as rejected:
        if not known:
            raise EveryTextRejected(embedder=name, reason=rejected.reason) from rejected
        raise ProbeRefused(embedder=name, base=label, reason=rejected.reason) from rejected
    cosines = sorted(cosine(old, new) for (_, old), new in zip(known, found, strict=True))
    # A vector or two of the base may themselves be wrong.
    least = cosines[len(cosines) // 4]
    if least < MIN_COSINE:
        raise EmbedderDiffers(embedder=name, base=label, count=len(known), cosine=f"{least:.3f}", least=MIN_COSINE)
    return len(known), least


def texts_for_probe(
    known: Sequence[tuple[str, bytes]], tokens_of: Callable[[str], int], batch: Batch
) -> list[tuple[str, bytes]]:
    """Return the shortest of some texts: as many as have no more tokens than one request may, and at least one."""
    sized = sorted((tokens_of(text), text, vector) for text, vector in known)
    tokens = accumulate(one[0] for one in sized)
    count = max(1, sum(so_far <= batch.tokens for so_far in tokens))
    return [(text, vector) for _, text, vector in sized[:count]]


def embed_in_batches(embedder: Embedder, embed: Embed) -> Embed:
    """Return what embeds texts in as many requests as they take."""

    def embedded(texts: Sequence[str]) -> list[bytes]:
        sized = ((text, embedder.tokens(text)) for text in texts)
        vectors: list[bytes] = []
        for batch in pack_batches(sized, embedder.settings.batch):
            vectors += embed([text for text, _ in batch])
        return vectors

    return embedded


def _against_itself(name: str, dimensions: int | None, embed: Embed) -> tuple[int, float]:
    first = _embedded(name, SENTENCES, dimensions, embed)
    turned = _embedded(name, SENTENCES[::-1], dimensions, embed)[::-1]
    least = min(map(cosine, first, turned))
    if least < MIN_COSINE:
        raise EmbedderUnsteady(embedder=name, cosine=f"{least:.3f}", least=MIN_COSINE)
    return len(SENTENCES), least


def _embedded(name: str, texts: Sequence[str], dimensions: int | None, embed: Embed) -> Sequence[bytes]:
    vectors = embed(texts)
    check(vectors, len(texts), dimensions, embedder=name)
    return vectors


def cosine(one: bytes, other: bytes) -> float:
    """Return the cosine of two vectors of one length, 0 where it has none."""
    left, right = array("f", one), array("f", other)
    norms = math.hypot(*left) * math.hypot(*right)
    dot = sum(map(operator.mul, left, right))
    return dot / norms if norms and math.isfinite(norms) else 0.0
