"""Migrate an rsclaw store and read the library with plain sqlite3."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
from harness import NOW, Outcome, run


def migrate(root: Path, *options: object) -> Outcome:
    """Migrate a KB beside itself."""
    return run("migrate", root, "--to", root.parent / "library", "--now", NOW, "--json", "--yes", *options)


def library_of(root: Path) -> Path:
    return root.parent / "library"


def rows(path: Path, query: str) -> list[Any]:
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        return db.execute(query).fetchall()


def only_base(root: Path) -> Path:
    (base,) = (library_of(root) / "KnowledgeBase").iterdir()
    return base


def carried(root: Path) -> list[tuple[str, int, str, bytes | None]]:
    """Return what an index holds: for each unit its path, its number, its text and its vector, in order."""
    query = """SELECT m.relative_path, u.unit_index, t.text, e.vector_blob FROM search_text t
                 JOIN search_unit u ON u.unit_id = t.target_id JOIN material m ON m.material_id = u.material_id
                 LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash ORDER BY t.rowid"""
    return rows(only_base(root) / ".cherry/index.sqlite", query)


def items(root: Path) -> dict[str, tuple[str, str, dict[str, Any]]]:
    found = rows(library_of(root) / "catalog.sqlite", "SELECT type, status, data FROM knowledge_item")
    return {json.loads(data)["relativePath"]: (kind, status, json.loads(data)) for kind, status, data in found}


def skipped(outcome: Outcome) -> dict[str, int]:
    """Return why rows are not carried; the books have to balance."""
    (base,) = outcome.document["bases"]
    found = base["rows"]
    assert found["read"] == found["carried"] + sum(found["skipped"].values())
    return found["skipped"]
