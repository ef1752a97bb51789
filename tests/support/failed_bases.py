"""Libraries with failed bases, and digests of their rows."""

from __future__ import annotations

import hashlib
import math
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from planted_v2 import KB, KB_ROW, catalog

KNOWLEDGE = "KnowledgeBase"


def is_usable(vector: object) -> bool:
    """Whether a vector can be found by a search: float32 numbers that are finite, and not all zeros."""
    if not isinstance(vector, bytes) or not vector or len(vector) % 4:
        return False
    numbers = struct.unpack(f"<{len(vector) // 4}f", vector)
    return all(map(math.isfinite, numbers)) and any(numbers)


def digest(text: object) -> str | None:
    return hashlib.sha256(text).hexdigest() if isinstance(text, bytes) else None


def rows(path: Path, query: str) -> Iterator[tuple[Any, ...]]:
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        db.text_factory = bytes
        yield from db.execute(query).fetchall()


def of_database(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the texts that are what their hashes say, and the usable vectors, of an index or a vector file of v1."""
    for key, text in rows(path, "SELECT content_hash, CAST(text AS BLOB) FROM content"):
        if key is not None and key == (digest(text) or "").encode():
            yield "text", text
    for key, text in rows(path, "SELECT embedding_text_hash, CAST(text AS BLOB) FROM search_text"):
        if key is not None and key == (digest(text) or "").encode():
            yield "text", text
    for (vector,) in rows(path, "SELECT vector_blob FROM embedding"):
        if is_usable(vector):
            yield "vector", vector
    for text, vector in rows(path, "SELECT CAST(pageContent AS BLOB), vector FROM vectors"):
        if text:
            yield "text", text
        if is_usable(vector):
            yield "vector", vector


def held(store: Path) -> set[tuple[str, object]]:
    """Return the distinct texts and vectors of a store, whatever reaches them; what is in the trash does not count."""
    found: set[tuple[str, object]] = set()
    for path in sorted(store.rglob("*")):
        if not path.is_file() or ".regraft" in path.parts or path.name.endswith(("-wal", "-shm", "-journal")):
            continue
        raw = path.read_bytes()
        if raw.startswith(b"SQLite format 3\0"):
            found.update(of_database(path))
        elif KNOWLEDGE in path.parts:
            found.add(("text", raw))
            found.add(("text", re.sub(rb"\A---\n.*?\n---\n+", b"", raw, flags=re.DOTALL)))
    return found


def state(store: Path) -> dict[str, Any]:
    """Return every row, and the bytes of every other file; what a full-text index keeps for itself aside."""
    found: dict[str, Any] = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        if not path.is_file() or name.startswith(".regraft") or name.endswith(("-wal", "-shm", "-journal")):
            continue
        raw = path.read_bytes()
        found[name] = raw
        if raw.startswith(b"SQLite format 3\0"):
            with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                db.text_factory = bytes
                tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
                content = {}
                for table in map(bytes.decode, tables):
                    if not table.startswith("search_text_fts"):
                        every = db.execute(f'SELECT * FROM "{table}"').fetchall()
                        content[table] = sorted(every, key=repr)
                found[name] = content
    return found


Damage = Callable[[Path], object]
FAILED = catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store', dimensions = NULL"))
NO_MODEL = catalog(
    KB_ROW.format("status = 'failed', error = 'missing_embedding_model', embedding_model_id = NULL, dimensions = NULL")
)


def without_items(which: str) -> Damage:
    return catalog(f"DELETE FROM knowledge_item WHERE base_id = '{KB}' AND {which}")


def tombstoned(store: Path) -> None:
    """Leave the folders as the application's upgrade does: failed, without a path, and without their files."""
    catalog(
        f"DELETE FROM knowledge_item WHERE base_id = '{KB}' AND group_id IS NOT NULL",
        f"""UPDATE knowledge_item SET status = 'failed', error = 'directory_not_migrated',
              data = json_remove(data, '$.relativePath') WHERE base_id = '{KB}' AND type = 'directory'""",
    )(store)
