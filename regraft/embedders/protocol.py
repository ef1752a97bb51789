"""What an embedder is, whatever stands behind it, and what may become of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from regraft.embedders.settings import EmbedderSettings

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


def nothing(texts: Sequence[str]) -> None:
    """Let every request leave."""


class Embedder(Protocol):
    """Texts to vectors. ``embed`` may be called from several threads."""

    @property
    def settings(self) -> EmbedderSettings:
        """Return what the configuration says."""

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = nothing) -> Embedded:
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
