"""What an embedder is, whatever stands behind it, and what may become of a batch."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from regraft.embedders.settings import EmbedderSettings, LocalSettings
from regraft.errors import AnswerUnfit, ModelUnreadable, import_optional
from regraft.formats.vector_checks import LARGEST_NORM
from regraft.language import tr
from regraft.text import one_line

#: Is called with the texts of a request right before it leaves; raises what it likes to forbid that.
Sending = Callable[[Sequence[str]], None]


class Embedded(msgspec.Struct, frozen=True):
    """The vectors of a batch, as little-endian float32, in the order of its texts.

    ``tokens`` is what the server counted, None where it did not say; ``requests`` how many were sent.
    """

    vectors: list[bytes]
    tokens: int | None
    requests: int


class TextsRejected(Exception):
    """The server takes other texts, but not these: a batch can be split until the bad one stands alone.

    ``code`` is a word of the server, or ``http_413`` and the like; ``reason`` one line without a key. ``is_certain``:
    it was seen before that the server takes others.
    """

    def __init__(self, code: str, reason: str, *, is_certain: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.is_certain = is_certain


class ServerFailing(Exception):
    """The server did not answer as it should, after all ``attempts``; later it may.

    ``code`` is ``http_503`` and the like, ``rate_limited``, ``timeout``, ``connection``, or ``broken_answer``.
    """

    def __init__(self, code: str, reason: str, attempts: int) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.attempts = attempts


class Unanswered(Exception):
    """Some texts of a batch have no answer yet, and nothing is sent to get one: a batch can be split. The text says
    why.
    """


class Halted(Exception):
    """The embedder was halted before the batch could be sent, or sent again."""


def allow_all(texts: Sequence[str]) -> None:
    """Let every request leave."""


class Embedder(Protocol):
    """Texts to vectors. ``embed`` may be called from several threads."""

    @property
    def settings(self) -> EmbedderSettings:
        """Return what the configuration says."""

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch, from one request or, where that fails, its repetitions.

        Args:
            texts: they are sent with the configured prefix.
            query: these are queries of a search, not texts to be found.
            sending: called before each request, in this thread.

        Raises:
            TextsRejected, ServerFailing, Halted: see there.
            EmbedderRefused: the server answers no request of this configuration.
            AnswerUnfit: the vectors are not such of these texts.
        """

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has with its prefix: counted where a tokenizer is known, else estimated."""

    def halt(self) -> None:
        """End all waits between attempts: what is not at the server raises :class:`Halted`."""

    def close(self) -> None:
        """Let connections go."""


# What every answer has to be, before anything of it is written.


#: A shorter vector has no direction in single precision: its squares vanish.
_SHORTEST = 2.0**-63
#: The highest bytes of numbers, of either sign, that are less than that; and of infinities, NaNs and numbers
#: from 2**57 on: the squares of 16,384 smaller ones do not exceed single precision.
_SMALL = bytes(byte for byte in range(256) if byte & 0x7F < 0x20)
_LARGE = bytes(byte for byte in range(256) if byte & 0x7F >= 0x5C)
_SAID = {
    "not_numbers": tr("is not a list of numbers"),
    "non_finite": tr("has a NaN or an infinity, or a norm too large for single precision"),
    "zero_vector": tr("has only zeros"),
}


def check(vectors: Sequence[bytes], count: int, dimensions: int | None, *, embedder: str) -> None:
    """Refuse vectors that cannot be those of a batch.

    Args:
        vectors: raw float32.
        count: how many texts there were.
        dimensions: what each has to have; None: all the same.
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
    _demand_lengths(vectors, dimensions, embedder)
    # The norm of a vector with an infinity is infinite, and that of one with a NaN is a NaN or infinite.
    norms = {place: math.hypot(*array("f", vector)) for place, vector in enumerate(vectors) if not _is_plain(vector)}
    refuse_vectors("non_finite", [place for place, norm in norms.items() if not norm < LARGEST_NORM], embedder)
    refuse_vectors("zero_vector", [place for place, norm in norms.items() if norm < _SHORTEST], embedder)


def _is_plain(vector: bytes) -> bool:
    """Tell of nearly every good vector, by the exponents of its numbers, that it is one: that is forty times faster."""
    exponents = vector[3::4]
    return len(exponents.translate(None, _LARGE)) == len(exponents) and bool(exponents.strip(_SMALL))


def refuse_vectors(fault: str, bad: list[int], embedder: str) -> None:
    """Refuse an answer with bad vectors at these places.

    Raises:
        AnswerUnfit
    """
    if bad:
        raise unusable_answer(fault, tr("vector {bad} {said}", bad=bad[0] + 1, said=_SAID[fault]), bad, embedder)


def unusable_answer(fault: str, reason: str, bad: Sequence[int] = (), embedder: str = "") -> AnswerUnfit:
    """Return the error of a bad answer; ``bad`` are the places of its bad vectors."""
    position = bad[0] if len(bad) == 1 else None
    return AnswerUnfit(embedder=embedder, fault=fault, reason=reason, position=position)


def _demand_lengths(vectors: Sequence[bytes], dimensions: int | None, embedder: str) -> None:
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


# How many tokens a text has.


TokenCounter = Callable[[str], int]


def estimate(text: str) -> int:
    """Return about how many tokens a text has: a quarter of one for an ASCII character, a third for any other byte of
    its UTF-8. So a Chinese character has one, a Cyrillic letter two thirds (``docs/embedders.md``, "Tokens").
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    ascii_size = size if text.isascii() else len(text.encode("ascii", "ignore"))
    return math.ceil(ascii_size / 4 + (size - ascii_size) / 3)


def counter(settings: EmbedderSettings) -> TokenCounter:
    """Return what counts the tokens of a text: the tokenizer of the configuration or of the local model, else
    :func:`estimate`.

    Raises:
        WrongUsage: the ``tokenizers`` library is not installed.
        ModelUnreadable: the tokenizer cannot be read.
    """
    file = settings.tokenizer
    if file is None and isinstance(settings, LocalSettings) and (settings.path / "tokenizer.json").is_file():
        file = settings.path / "tokenizer.json"
    return estimate if file is None else _exact(file)


def _exact(file: Path) -> TokenCounter:
    tokenizers = import_optional("tokenizers", tr("Exact numbers of tokens"), "tokenizers")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelUnreadable(path=file, library="tokenizers", reason=one_line(str(error))[:200]) from error
    # What a model cuts away is paid for all the same.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)
