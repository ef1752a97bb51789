"""Check an rsclaw store, and change single bytes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import NOW, run, snapshot


def check(root: Path, *options: str, now: str = NOW) -> list[dict[str, Any]]:
    """Return what an audit finds."""
    return list(run("check", root, "--json", "--now", now, *filter(None, options)).document["findings"])


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def flipped(root: Path, *places: int) -> None:
    """Flip the bytes at some places of the database."""
    path = root / "kb.redb"
    data = bytearray(path.read_bytes())
    for place in places:
        data[place] ^= 0xFF
    path.write_bytes(data)


def row_at(root: Path, text: str) -> int:
    """Return where a row lies in the database that has a text."""
    place = (root / "kb.redb").read_bytes().find(text.encode())
    assert place > 0
    return place
