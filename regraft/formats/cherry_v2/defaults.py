"""How a base cuts and finds text where nothing says otherwise: what the catalog's columns hold by default."""

from __future__ import annotations

import msgspec

DEFAULT_CHUNK_SIZE = 1024
DEFAULT_CHUNK_OVERLAP = 200
DEFAULT_CHUNK_STRATEGY = "structured"
#: Four characters: backslash, n, backslash, n.
DEFAULT_CHUNK_SEPARATOR = "\\n\\n"


class Settings(msgspec.Struct, frozen=True):
    """How a base cuts and finds text, valid by the catalog's rules."""

    chunk_size: int = DEFAULT_CHUNK_SIZE
    chunk_overlap: int = DEFAULT_CHUNK_OVERLAP
    threshold: float | None = None
    document_count: int | None = None
    chunk_strategy: str = DEFAULT_CHUNK_STRATEGY
    chunk_separator: str = DEFAULT_CHUNK_SEPARATOR
