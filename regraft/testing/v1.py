"""Valid v1 states with the vector files that go with them, and an export folder made of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from regraft import areas, sqlite
from regraft.names import vector_file_name
from regraft.testing.texts import javascript_texts, texts, vectors

_MODEL = {"id": "embed-3", "provider": "acme", "name": "Embed 3", "group": "embed"}
_PROVIDERS = [{"id": "acme", "name": "Acme", "enabled": True, "models": [_MODEL]}]
_TIMES = st.integers(1_600_000_000_000, 1_800_000_000_000)
_SCHEMA = """CREATE TABLE vectors (
    id TEXT PRIMARY KEY, pageContent TEXT UNIQUE, uniqueLoaderId TEXT NOT NULL, source TEXT NOT NULL,
    vector F32_BLOB, metadata TEXT)"""


@dataclass(frozen=True, kw_only=True)
class V1Row:
    """A row of a v1 vector file."""

    id: str
    body: str
    loader_id: str
    source: str
    vector: bytes


@dataclass(frozen=True)
class V1Case:
    """A whole v1 knowledge base: the state by slice, Dexie's tables, uploads, and the rows of every base by its id."""

    redux: dict[str, Any]
    tables: dict[str, list[dict[str, Any]]]
    uploads: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[V1Row]] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        """Write an export folder, which does not exist yet, and return it (``docs/formats/v1.md``, "Export folder")."""
        (folder / "dexie").mkdir(parents=True)
        # JavaScript writes half a character as an escape; Python does the same.
        (folder / "redux.json").write_text(json.dumps(self.redux), "utf-8")
        for name, table in self.tables.items():
            (folder / "dexie" / f"{name}.json").write_text(json.dumps(table), "utf-8")
        for place in ("Files", "KnowledgeBase"):
            (folder / place).mkdir()
        for name, raw in self.uploads.items():
            (folder / "Files" / name).write_bytes(raw)
        with areas.opened(folder):
            for base_id, rows in self.rows.items():
                _write_vectors(folder / "KnowledgeBase" / vector_file_name(base_id), rows)
        return folder


def _write_vectors(path: Path, rows: list[V1Row]) -> None:
    with sqlite.writing(path, create=True) as db:
        db.execute(_SCHEMA)
        db.executemany(
            "INSERT INTO vectors (id, pageContent, uniqueLoaderId, source, vector) VALUES (?, ?, ?, ?, ?)",
            [(row.id, row.body, row.loader_id, row.source, row.vector) for row in rows],
        )


@st.composite
def v1_cases(draw: st.DrawFn, *, dimensions: int = 4, max_bases: int = 3) -> V1Case:
    """Return valid v1 knowledge bases: every base has a model that exists and a vector file that can be read.

    Bases hold files with their uploads, urls and notes, in any order; names and texts have half characters, as
    JavaScript leaves them.
    """
    drawn = _Drawn(draw, dimensions)
    bases = [drawn.base(f"base {number}") for number in range(draw(st.integers(1, max_bases)))]
    return V1Case(
        redux={"knowledge": {"bases": bases}, "llm": {"providers": _PROVIDERS}},
        tables={"files": [], "knowledge_notes": drawn.notes},
        uploads=drawn.uploads,
        rows=drawn.rows,
    )


class _Drawn:
    """Draws the parts of one case."""

    def __init__(self, draw: st.DrawFn, dimensions: int) -> None:
        self._draw = draw
        self._dimensions = dimensions
        self.notes: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.rows: dict[str, list[V1Row]] = {}

    def base(self, base_id: str) -> dict[str, Any]:
        kinds = self._draw(st.lists(st.sampled_from(["file", "url", "note"]), max_size=4))
        self.rows[base_id] = []
        items = [getattr(self, f"_{kind}")(f"{base_id} {place}") for place, kind in enumerate(kinds)]
        for item in items:
            self._add_rows(base_id, item)
        if not self.rows[base_id]:
            # A base without any usable vector fails: this one has a row that no item owns.
            self.rows[base_id].append(self._row("left", 0, "left over", "note"))
        return {
            "id": base_id,
            "name": self._draw(javascript_texts(max_size=12)) + base_id,
            "model": _MODEL,
            "dimensions": self._dimensions,
            "created_at": self._draw(_TIMES),
            "updated_at": self._draw(_TIMES),
            "version": 1,
            "items": items,
        }

    def _item(self, item_id: str, kind: str, loader_id: str, content: object) -> dict[str, Any]:
        return {
            "id": item_id,
            "type": kind,
            "content": content,
            "uniqueId": loader_id,
            "uniqueIds": [loader_id],
            "processingStatus": "completed",
            "created_at": self._draw(_TIMES),
            "updated_at": self._draw(_TIMES),
        }

    def _file(self, item_id: str) -> dict[str, Any]:
        file_id = hashlib.md5(item_id.encode(), usedforsecurity=False).hexdigest()
        raw = self._draw(st.binary(max_size=20))
        self.uploads[f"{file_id}.md"] = raw
        path = f"/home/user/Files/{file_id}.md"
        metadata = {
            "id": file_id,
            "name": f"{file_id}.md",
            "origin_name": self._draw(texts(min_size=1, max_size=12)) + ".md",
            "path": path,
            "ext": ".md",
            "type": "text",
            "created_at": "2025-03-14T12:00:00.000Z",
            "size": len(raw),
            "count": 1,
        }
        digest = hashlib.md5(path.encode(), usedforsecurity=False).hexdigest()
        return self._item(item_id, "file", f"LocalPathLoader_{digest}", metadata)

    def _url(self, item_id: str) -> dict[str, Any]:
        address = f"https://example.com/{item_id.replace(' ', '-')}"
        digest = hashlib.md5(address.encode(), usedforsecurity=False).hexdigest()
        return self._item(item_id, "url", f"WebLoader_{digest}", address)

    def _note(self, item_id: str) -> dict[str, Any]:
        text = f"{self._draw(javascript_texts())} {item_id}"
        digest = hashlib.md5(item_id.encode(), usedforsecurity=False).hexdigest()
        self.notes.append({"id": item_id, "content": text})
        return self._item(item_id, "note", f"NoteLoader_{digest}", "")

    def _add_rows(self, base_id: str, item: dict[str, Any]) -> None:
        loader = item["uniqueId"]
        for number in range(self._draw(st.integers(1, 4))):
            # A text is there once in a base: v1 leaves out what it has already.
            body = f"{self._draw(texts())} {loader} {number}"
            self.rows[base_id].append(self._row(loader, number, body, loader))

    def _row(self, loader_id: str, number: int, body: str, source: str) -> V1Row:
        return V1Row(
            id=f"{loader_id}_{number}",
            body=body,
            loader_id=loader_id,
            source=source,
            vector=self._draw(vectors(self._dimensions)),
        )
