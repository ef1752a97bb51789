"""The protocol of an embedder, the checks that every answer passes, and token counts."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from regraft.embedders.settings import EmbedderSettings, LocalSettings
from regraft.errors import AnswerUnfit, ModelUnreadable, import_optional
from regraft.formats.vector_checks import LARGEST_NORM
from regraft.language import tr
from regraft.text import one_line

#: Called with the texts of a request right before it is sent; raises an exception to prevent that.
Sending = Callable[[Sequence[str]], None]


class Embedded(msgspec.Struct, frozen=True):
    """The vectors of a batch (little-endian float32), in the order of its texts.

    ``tokens`` is the server's count, None if it sent none; ``requests`` is the number of requests sent.
    """

    vectors: list[bytes]
    tokens: int | None
    requests: int


class TextsRejected(Exception):
    """The server rejects these texts but accepts others; a batch can be split until the bad text is alone.

    ``code`` is the server's error code, or ``http_413`` and the like; ``reason`` is one line without a key.
    ``is_certain``: the server is known to accept others.
    """

    def __init__(self, code: str, reason: str, *, is_certain: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_certain = is_certain


class ServerFailing(Exception):
    """The server gave no valid answer in ``attempts`` attempts; it may later.

    ``code`` is ``http_503`` and the like, ``rate_limited``, ``timeout``, ``connection``, or ``broken_answer``.
    """

    def __init__(self, code: str, reason: str, attempts: int) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.attempts = attempts


class Unanswered(Exception):
    """Some texts of a batch have no recorded answer, and no request may be sent; a batch can be split. The message says
    why.
    """


class Halted(Exception):
    """The embedder was halted before the batch could be sent, or sent again."""


def allow_all(texts: Sequence[str]) -> None:
    """Do nothing, and thus allow the request with these texts: the default of ``sending``."""


class Embedder(Protocol):
    """Turns texts into vectors. ``embed`` may be called from several threads."""

    @property
    def settings(self) -> EmbedderSettings:
        """The settings in the configuration."""

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch, from one request, repeated on failure.

        Args:
            texts: the texts, without the configured prefix.
            query: the texts are search queries, not texts to be found.
            sending: called with ``texts`` before each request, in this thread; it may raise to prevent the request.

        Raises:
            TextsRejected, ServerFailing, Halted: see there.
            EmbedderRefused: the server rejects every request of this configuration.
            AnswerUnfit: the vectors cannot belong to the texts.
        """

    def tokens(self, text: str) -> int:
        """Return the number of tokens of a text with its prefix: exact if a tokenizer is known, otherwise estimated."""

    def halt(self) -> None:
        """Cancel all waits between attempts; batches that are not being processed raise :class:`Halted`."""

    def close(self) -> None:
        """Close connections."""


# Checks of an answer


#: The squares of a shorter vector's numbers underflow in single precision, so it has no direction.
_SHORTEST = 2.0**-63
#: High bytes (either sign) of numbers smaller than that, and of infinities, NaNs and numbers from 2**57 on: the sum of
#: 16,384 smaller squares stays within single precision.
_SMALL = bytes(byte for byte in range(256) if byte & 0x7F < 0x20)
_LARGE = bytes(byte for byte in range(256) if byte & 0x7F >= 0x5C)
_SAID = {
    "not_numbers": tr("is not a list of numbers"),
    "non_finite": tr("has a NaN or an infinity, or a norm too large for single precision"),
    "zero_vector": tr("has only zeros"),
}


def check(vectors: Sequence[bytes], count: int, dimensions: int | None, *, embedder: str) -> None:
    """Raise if ``vectors`` cannot be the vectors of a batch: wrong number, length, zero or infinite.

    Args:
        vectors: raw float32.
        count: number of texts.
        dimensions: required length; None: any, but equal.
        embedder: its name, for the error.

    Raises:
        AnswerUnfit
    """
    if len(vectors) != count:
        raise unusable_answer(
            "wrong_count",
            tr("it has {vectors} vectors for {count} texts", vectors=len(vectors), count=count),
            embedder=embedder,
        )
    _check_lengths(vectors, dimensions, embedder)
    # The norm of a vector with an infinity is infinite; with a NaN it is NaN or infinite.
    norms = {
        place: math.hypot(*array("f", vector)) for place, vector in enumerate(vectors) if not _is_clearly_valid(vector)
    }
    refuse_vectors("non_finite", [place for place, norm in norms.items() if not norm < LARGEST_NORM], embedder)
    refuse_vectors("zero_vector", [place for place, norm in norms.items() if norm < _SHORTEST], embedder)


def _is_clearly_valid(vector: bytes) -> bool:
    """Whether the exponents alone prove a vector valid, as for nearly all: 40 times faster than computing the norm."""
    exponents = vector[3::4]
    return len(exponents.translate(None, _LARGE)) == len(exponents) and bool(exponents.strip(_SMALL))


def refuse_vectors(fault: str, bad: list[int], embedder: str) -> None:
    """Raise if ``bad``, the positions of vectors with a fault, is not empty.

    ``fault`` is a key of :data:`_SAID`; ``embedder`` is the embedder's name, for the error.

    Raises:
        AnswerUnfit
    """
    if bad:
        raise unusable_answer(fault, tr("vector {bad} {said}", bad=bad[0] + 1, said=_SAID[fault]), bad, embedder)


def unusable_answer(fault: str, reason: str, bad: Sequence[int] = (), embedder: str = "") -> AnswerUnfit:
    """Return the error for an answer with a fault.

    Args:
        fault: a code of the fault, such as ``wrong_count``.
        reason: the fault as a text for the user.
        bad: the positions of the vectors with the fault.
        embedder: the embedder's name.
    """
    position = bad[0] if len(bad) == 1 else None
    return AnswerUnfit(embedder=embedder, fault=fault, reason=reason, position=position)


def _check_lengths(vectors: Sequence[bytes], dimensions: int | None, embedder: str) -> None:
    """Raise AnswerUnfit if not all vectors have ``dimensions`` or, if that is None, the most common length."""
    lengths = Counter(map(len, vectors))
    usual = lengths.most_common(1)[0][0] if lengths else 0
    expected = usual if dimensions is None else 4 * dimensions
    bad = [place for place, vector in enumerate(vectors) if len(vector) != expected]
    if bad or expected % 4 or (vectors and not expected):
        first = bad[0] if bad else 0
        reason = tr(
            "vector {first} has {vectors:g} dimensions instead of {expected}",
            first=first + 1,
            vectors=len(vectors[first]) / 4,
            expected=expected // 4,
        )
        raise unusable_answer("wrong_dimensions", reason, bad, embedder)


# Token counts


TokenCounter = Callable[[str], int]


def estimate(text: str) -> int:
    """Estimate the tokens of a text: 1/4 per ASCII character, 1/3 per other byte of UTF-8.

    So a Chinese character counts as 1, a Cyrillic letter as 2/3 (``docs/embedders.md``, "Tokens").
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    ascii_size = size if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_size / 4 + (size - ascii_size) / 3)


def counter(settings: EmbedderSettings) -> TokenCounter:
    """Return a function that counts tokens: by the tokenizer of the configuration or the local model, otherwise
    :func:`estimate`.

    Raises:
        WrongUsage: the ``tokenizers`` library is not installed.
        ModelUnreadable: the tokenizer cannot be read.
    """
    file = settings.tokenizer
    if file is None and isinstance(settings, LocalSettings) and (settings.path / "tokenizer.json").is_file():
        file = settings.path / "tokenizer.json"
    if file is None:
        return estimate
    tokenizers = import_optional("tokenizers", tr("Exact token counts"), "tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelUnreadable(path=file, library="tokenizers", reason=one_line(str(error))[:200]) from error
    # Providers charge for text that the model truncates.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
