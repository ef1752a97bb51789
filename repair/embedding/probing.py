"""Check that an embedder is the model of a base: embed texts that have a vector, and compare the two.

A base without vectors cannot be compared; then the embedder must at least give the same vector wherever a text stands
in a request.
"""

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
from repair.embedding.sender import pack_batches

#: Returns the vectors of texts, in order.
Embed = Callable[[Sequence[str]], Sequence[bytes]]
#: Called with vectors that are used later.
KeepVectors = Callable[[Sequence[bytes]], None]

#: Texts of a base that are compared.
SAMPLE_SIZE = 8
#: Two vectors of one text by one model have at least this cosine.
MIN_COSINE = 0.99
#: Sent, in two orders, if a base has no vectors yet.
SENTENCES = (
    "The ferry leaves at nine in the morning.",
    "A recipe for bread with three kinds of flour.",
    "地球绕着太阳转。",
)


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a comparison: of ``texts`` compared texts, three quarters have at least ``cosine``.

    ``remembered``: an interrupted run made the comparison with the same embedder, so nothing was sent for it.
    """

    texts: int
    cosine: float
    requests: int
    tokens: int
    remembered: bool = False


def settings_digest(settings: EmbedderSettings) -> str | None:
    """Hash the settings that decide which vectors a server returns; None for a model on disk.

    A model on disk is compared in every run: its files may have changed, and it costs nothing.
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
    keep: KeepVectors = lambda _: None,
) -> Probe:
    """Check that an embedder is the model of a base: embed a sample of its texts and compare the vectors.

    Args:
        embedder: embeds the sample.
        label: the base's display name.
        sample: texts of the base with their vectors; as many as fit into one request are compared.
        dimensions: the length of the base's vectors.
        meter: counts the requests, within the limits of the run; None: no limit.
        keep: see :func:`compare_vectors`.

    Raises:
        LimitReached: a limit does not allow the probe.
        RegraftError, ServerFailing: see :func:`compare_vectors`.
    """
    meter = meter or BudgetedEmbedder(embedder, Limits())
    requests, tokens = meter.requests, meter.tokens
    known = texts_for_probe(sample, embedder.tokens, embedder.settings.batch)
    embed = embed_in_batches(embedder, meter.embed)
    count, cosine = compare_vectors(embedder.settings.name, label, known, dimensions, embed, keep)
    return Probe(texts=count, cosine=cosine, requests=meter.requests - requests, tokens=meter.tokens - tokens)


def compare_vectors(
    name: str,
    label: str,
    known: Sequence[tuple[str, bytes]],
    dimensions: int | None,
    embed: Embed,
    keep: KeepVectors = lambda _: None,
) -> tuple[int, float]:
    """Compare an embedder's vectors with those of a base, or, if it has none, with each other.

    Args:
        name: the embedder's name.
        label: the base's display name.
        known: texts of the base with their vectors.
        dimensions: the length of the base's vectors.
        embed: asks the embedder.
        keep: gets the vectors of :data:`SENTENCES` if the embedder is compared with itself.

    Returns:
        The number of texts compared, and the cosine that three quarters of them have at least.

    Raises:
        EmbedderDiffers: it is another model.
        EmbedderUnsteady: it gives several vectors for one text.
        AnswerUnfit: its vectors have another length, or are missing.
        ProbeRefused, EveryTextRejected, EmbedderRefused, ServerFailing: it does not answer.
    """
    try:
        if not known:
            return _compare_with_itself(name, dimensions, embed, keep)
        found = _embed_checked(name, [text for text, _ in known], dimensions, embed)
    except TextsRejected as rejected:
        if not known:
            raise EveryTextRejected(embedder=name, reason=rejected.reason) from rejected
        raise ProbeRefused(embedder=name, base=label, reason=rejected.reason) from rejected
    cosines = sorted(cosine(old, new) for (_, old), new in zip(known, found, strict=True))
    # Tolerate a quarter of wrong vectors in the base.
    least = cosines[len(cosines) // 4]
    if least < MIN_COSINE:
        raise EmbedderDiffers(embedder=name, base=label, count=len(known), cosine=f"{least:.3f}", least=MIN_COSINE)
    return len(known), least


def texts_for_probe(
    known: Sequence[tuple[str, bytes]], tokens_of: Callable[[str], int], batch: Batch
) -> list[tuple[str, bytes]]:
    """Select the shortest of the ``known`` texts (with vectors) that fit into one request together, at least one.

    ``tokens_of`` counts the tokens of a text.
    """
    sized = sorted((tokens_of(text), text, vector) for text, vector in known)
    tokens = accumulate(one[0] for one in sized)
    count = max(1, sum(so_far <= batch.tokens for so_far in tokens))
    return [(text, vector) for _, text, vector in sized[:count]]


def embed_in_batches(embedder: Embedder, embed: Embed) -> Embed:
    """Return a function that embeds any number of texts with ``embed``, in requests of the embedder's batch size."""

    def embed_all(texts: Sequence[str]) -> list[bytes]:
        """Embed texts in several requests."""
        sized = ((text, embedder.tokens(text)) for text in texts)
        vectors: list[bytes] = []
        for batch in pack_batches(sized, embedder.settings.batch):
            vectors += embed([text for text, _ in batch])
        return vectors

    return embed_all


def _compare_with_itself(name: str, dimensions: int | None, embed: Embed, keep: KeepVectors) -> tuple[int, float]:
    """Check that an embedder gives equal vectors for the same sentences in two orders; ``keep`` gets these vectors.

    ``dimensions`` is the required length of the vectors; None: any. Returns the number of sentences, and the lowest
    cosine of two vectors of one sentence.
    """
    forward = _embed_checked(name, SENTENCES, dimensions, embed)
    backward = _embed_checked(name, SENTENCES[::-1], dimensions, embed)[::-1]
    least = min(map(cosine, forward, backward))
    if least < MIN_COSINE:
        raise EmbedderUnsteady(embedder=name, cosine=f"{least:.3f}", least=MIN_COSINE)
    keep(forward)
    return len(SENTENCES), least


def _embed_checked(name: str, texts: Sequence[str], dimensions: int | None, embed: Embed) -> Sequence[bytes]:
    """Embed texts, and check the number of the vectors and their length (``dimensions``; None: any)."""
    vectors = embed(texts)
    check(vectors, len(texts), dimensions, embedder=name)
    return vectors


def demand_same_sentences(name: str, label: str, own: Sequence[bytes], others: bytes) -> None:
    """Check that two embedders that fill one base at the same time give equal vectors for :data:`SENTENCES`.

    Args:
        name: the name of this embedder.
        label: the display name of the base.
        own: the vectors of this embedder.
        others: those of the other one, joined.

    Raises:
        EmbedderDiffers
    """
    size = len(own[0])
    pairs = zip(own, (others[start : start + size] for start in range(0, len(others), size)), strict=False)
    is_fit = len(others) == size * len(own)
    least = min((cosine(one, other) for one, other in pairs), default=0.0) if is_fit else 0.0
    if least < MIN_COSINE:
        raise EmbedderDiffers(embedder=name, base=label, count=len(own), cosine=f"{least:.3f}", least=MIN_COSINE)


def is_same_vector(one: bytes, other: bytes) -> bool:
    """Whether two vectors of the same text may be by the same model."""
    return len(one) == len(other) and cosine(one, other) >= MIN_COSINE


def cosine(one: bytes, other: bytes) -> float:
    """Return the cosine of two float32 vectors of equal length; 0 if one of them is zero or not finite."""
    left, right = array("f", one), array("f", other)
    norms = math.hypot(*left) * math.hypot(*right)
    dot = sum(map(operator.mul, left, right))
    return dot / norms if norms and math.isfinite(norms) else 0.0
