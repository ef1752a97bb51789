"""Rows of a catalog and an index, read and written with plain sqlite3."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from planted_v2 import KB


def rows(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(apsw.Connection(str(path))) as db:
        return db.execute(sql, values).fetchall()


def item_of(store: Path, kind: str) -> tuple[str, dict[str, Any]]:
    """Return the first base's item of a type, and its data."""
    query = "SELECT id, data FROM knowledge_item WHERE base_id = ? AND type = ? AND group_id IS NULL LIMIT 1"
    [(key, data)] = rows(store / "catalog.sqlite", query, KB, kind)
    return key, json.loads(data)


def raw(store: Path, base: str = KB) -> Path:
    return store / "KnowledgeBase" / base / "raw"


def put_item(store: Path, key: str, kind: str, **data: Any) -> None:
    """Add a completed item to the first base."""
    with closing(apsw.Connection(str(store / "catalog.sqlite"))) as db:
        db.execute(
            "INSERT INTO knowledge_item VALUES (?, ?, NULL, ?, ?, 'completed', NULL, 0, 0)",
            (key, KB, kind, json.dumps(data)),
        )


def put_file(store: Path, key: str, name: str, content: bytes, **more: Any) -> None:
    """Add a completed file that was never indexed."""
    (raw(store) / name).write_bytes(content)
    put_item(store, key, "file", source=f"/home/user/{name}", relativePath=name, **more)
