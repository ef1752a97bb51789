"""The store of another program, under the name that docs/testing.md gives it."""

from __future__ import annotations

from pathlib import Path

from plain_store import Store


def open(path: Path, *, base_id: str, create: bool) -> Store:  # noqa: A001 - as the page calls it
    return Store(path, base_id, create=create)
