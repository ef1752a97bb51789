"""Turn texts into vectors: one protocol, implemented by servers and local models (``docs/embedders.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from regraft.embedders.local import LocalEmbedder
from regraft.embedders.protocol import (
    Embedded,
    Embedder,
    Halted,
    Sending,
    ServerFailing,
    TextsRejected,
    Unanswered,
    check,
    counter,
    estimate,
)
from regraft.embedders.server import ServerEmbedder
from regraft.embedders.settings import EmbedderSettings, LocalSettings, ServerSettings

__all__ = [
    "Embedded",
    "Embedder",
    "EmbedderSettings",
    "Halted",
    "LocalSettings",
    "Sending",
    "ServerFailing",
    "ServerSettings",
    "TextsRejected",
    "Unanswered",
    "check",
    "counter",
    "estimate",
    "open_embedder",
]


@contextmanager
def open_embedder(settings: EmbedderSettings) -> Iterator[Embedder]:
    """Open an embedder, and close its connections or model at the end.

    Raises:
        WrongUsage: a library that it needs is not installed.
        EmbedderKeyMissing: the environment variable with its key is missing.
        ModelUnreadable: there is no such model on disk.
    """
    embedder: Embedder
    if isinstance(settings, LocalSettings):
        embedder = LocalEmbedder(settings)
    else:
        assert isinstance(settings, ServerSettings)
        embedder = ServerEmbedder(settings)
    try:
        yield embedder
    finally:
        embedder.halt()
        embedder.close()
