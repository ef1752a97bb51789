"""Turn texts into vectors: one protocol, implemented by servers and local models (``docs/embedders.md``)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock

from regraft.disk import links
from regraft.embedders.protocol import (
    Embedded,
    Embedder,
    Halted,
    Sending,
    ServerFailing,
    TextsRejected,
    Unanswered,
    allow_all,
    check,
    counter,
    estimate,
)
from regraft.embedders.server import ServerEmbedder
from regraft.embedders.settings import EmbedderSettings, LocalSettings, ServerSettings, tidy_message
from regraft.errors import ModelUnreadable, import_optional
from regraft.formats import json_text
from regraft.language import tr
from regraft.text import replace_surrogates

# --- local models ----------------------------------------------------------------------------------------------------
#
# Texts are embedded in this process with model2vec or sentence-transformers. Nothing is downloaded.


class LocalEmbedder:
    """Computes vectors one batch at a time; the libraries use all cores for one batch."""

    def __init__(self, settings: LocalSettings) -> None:
        """Load the model.

        Raises:
            WrongUsage: the library is not installed.
            ModelUnreadable: there is no such model.
        """
        self.settings = settings
        self._halted = Event()
        self._one = Lock()
        library = settings.library or model_library(settings.path)
        if not settings.path.is_dir():
            raise ModelUnreadable(path=settings.path, library=library, reason=tr("there is no such folder"))
        # The libraries read this on import, and then request nothing that a model's folder lacks.
        os.environ["HF_HUB_OFFLINE"] = "1"
        module = import_optional(library.replace("-", "_"), tr("Models of this kind"), library)
        try:
            if library == "model2vec":
                self._model = module.StaticModel.from_pretrained(settings.path)
            else:
                # Its progress bars would be shown even without a terminal.
                logs = import_optional("transformers.utils.logging", tr("Models of this kind"), library)
                logs.disable_progress_bar()
                self._model = module.SentenceTransformer(str(settings.path), local_files_only=True)
            self._counted = counter(settings)
        except ModelUnreadable:
            raise
        except Exception as error:  # these libraries raise anything
            raise ModelUnreadable(path=settings.path, library=library, reason=tidy_message(str(error), None)) from error
        self._more = {"use_multiprocessing": False} if library == "model2vec" else {"convert_to_numpy": True}

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending = allow_all) -> Embedded:
        """Return the vectors of a batch; see :class:`~regraft.embedders.protocol.Embedder`."""
        prefix = self.settings.query_prefix if query else self.settings.prefix
        with self._one:
            if self._halted.is_set():
                raise Halted
            sending(texts)
            try:
                made = self._model.encode(
                    [replace_surrogates(prefix + text) for text in texts], show_progress_bar=False, **self._more
                )
                vectors = [row.tobytes() for row in made.astype("<f4")]
            except Exception as error:  # these libraries raise anything
                raise TextsRejected("local_error", tidy_message(f"{type(error).__name__}: {error}", None)) from error
        check(vectors, len(texts), None, embedder=self.settings.name)
        return Embedded(vectors, None, 1)

    def tokens(self, text: str) -> int:
        """Return the number of tokens of a text with its prefix."""
        return self._counted(self.settings.prefix + text)

    def halt(self) -> None:
        """Prevent further batches."""
        self._halted.set()

    def close(self) -> None:
        """Release the model."""
        self._model = None


def model_library(folder: Path) -> str:
    """Return the library that a model's folder is made for.

    Both libraries write ``model.safetensors`` and ``tokenizer.json``; the model type in ``config.json`` tells them
    apart: a model of model2vec has no other type.
    """
    try:
        found = json_text.loads(links.read_bytes(folder / "config.json"))
    except (OSError, ValueError):
        return "sentence-transformers"
    kind = found.get("model_type", "model2vec") if isinstance(found, dict) else ""
    return "model2vec" if kind == "model2vec" else "sentence-transformers"


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
