"""An embedder that sends nothing: it has the answers that a fleet has got."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from regraft import embedders, identity
from regraft.embedders import Embedded, Embedder, Sending, TextsRejected, Unanswered
from regraft.embedders.protocol import nothing
from regraft.embedders.settings import EmbedderSettings
from repair.backfill.fleet import answers
from repair.backfill.fleet.answers import Answer

#: Returns the answers that there are to texts, by their keys.
Find = Callable[[Sequence[str]], dict[str, Answer]]


class KnownEmbedder:
    """Answers what it knows (:class:`~regraft.embedders.protocol.Embedder`).

    Args:
        settings: those of the embedder that gave the answers.
        find: returns the answers that there are to texts, by their keys.
        why: what is said of a text without one.
    """

    def __init__(self, settings: EmbedderSettings, find: Find, why: str) -> None:
        self.settings = settings
        self._find = find
        self._why = why
        self._counted = embedders.counter(settings)
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = nothing) -> Embedded:  # noqa: ARG002
        """Return the vectors of a batch; no request is sent.

        Raises:
            TextsRejected: one of them was.
            Unanswered: one of them has no answer.
        """
        keys = [identity.text_hash(text) for text in texts]
        with self._lock:
            found = self._find(keys)
        vectors: list[bytes] = []
        for key in keys:
            one = found.get(key)
            if one is None:
                raise Unanswered(self._why)
            if one.vector is None:
                raise TextsRejected(one.code or "", one.reason or "", is_certain=True)
            vectors.append(one.vector)
        return Embedded(vectors, 0, 0)

    def tokens(self, text: str) -> int:
        """Return how many tokens a text has with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """Do nothing: nothing is waited for."""

    def close(self) -> None:
        """Do nothing."""


@contextmanager
def opened(work: Path, settings: EmbedderSettings, why: str) -> Iterator[Embedder]:
    """Open the answers in a work folder as an embedder.

    Raises:
        apsw.Error, OSError: they cannot be read.
        WrongUsage, ModelUnreadable: the tokenizer cannot be used.
    """
    with answers.reading(work) as db:
        yield KnownEmbedder(settings, partial(answers.best_of, db), why)
