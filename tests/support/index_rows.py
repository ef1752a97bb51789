"""Rows for an index that a test writes."""

from __future__ import annotations

from collections.abc import Sequence

from harness import NOW_MS
from v1 import sha, vector_of

from regraft.formats.cherry_v2.index import IndexStore
from regraft.text import utf16_len

BASE = "5b0f5be5-6c1b-4b6e-9a51-0c9b8f8a7d10"


def spans_of(bodies: Sequence[str]) -> list[tuple[int, int]]:
    """Return where these bodies are in their content, with a blank line between them."""
    found, start = [], 0
    for body in bodies:
        found.append((start, start + utf16_len(body)))
        start = found[-1][1] + 2
    return found


def vectors(*bodies: str, dimensions: int = 4) -> dict[str, bytes]:
    return {sha(body): vector_of(body, dimensions) for body in bodies}


def put(store: IndexStore, material: str, *bodies: str, now: int = NOW_MS, name: str | None = None) -> None:
    store.rebuild_material(
        material, name or f"{material}.md", "\n\n".join(bodies), spans_of(bodies), vectors(*bodies), now
    )
