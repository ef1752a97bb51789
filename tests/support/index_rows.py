"""Rows for an index that a test writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

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


@contextmanager
def without_index(path: Path, name: str) -> Iterator[None]:
    """Change rows while SQLite does not know of an index, so that the index keeps its old entries."""
    with closing(sqlite3.connect(path)) as db:
        row = db.execute("SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema WHERE name = ?", (name,))
        saved = row.fetchone()
        db.execute("PRAGMA writable_schema = ON")
        db.execute("DELETE FROM sqlite_schema WHERE name = ?", (name,))
        db.commit()
    if saved[4] is None:
        hide_unique(path, saved[2])
    yield
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", saved)
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, 'TEXT NO_KEY', 'TEXT PRIMARY KEY')")
        db.commit()


def hide_unique(path: Path, table: str) -> None:
    """Take the primary key, whose index is hidden, out of a table's definition."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'TEXT PRIMARY KEY', 'TEXT NO_KEY') WHERE name = ?",
            (table,),
        )
        db.commit()
