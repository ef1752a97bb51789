"""Bases exported to Parquet and imported again, and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import NOW, NOW_MS, run, snapshot
from v1 import vector_of

from regraft.disk import sqlite
from regraft.formats.cherry_v2 import index

BASE = "11111111-2222-4333-8444-555555555555"
#: What an index holds, but for times.
TABLES = {
    "meta": "id, schema_version, base_id",
    "content": "content_hash, text",
    "material": "material_id, relative_path, current_content_hash",
    "search_unit": "unit_id, material_id, content_hash, unit_type, unit_index, title, char_start, char_end,"
    " locator_json",
    "search_text": "search_text_id, target_type, target_id, kind, text, embedding_text_hash, fts_rowid",
    "embedding": "embedding_text_hash, vector_blob",
}


def tables_of(path: Path) -> dict[str, Any]:
    with sqlite.open_readonly(path) as db:
        return {name: db.execute(f"SELECT {what} FROM {name} ORDER BY 1").fetchall() for name, what in TABLES.items()}


def indexes_of(library: Path) -> dict[str, dict[str, Any]]:
    return {path.parent.parent.name: tables_of(path) for path in library.rglob("KnowledgeBase/*/.cherry/index.sqlite")}


def there_and_back(tmp_path: Path, source: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """Export and import a source and return the library, and what both commands said."""
    before = snapshot(source) if source.is_dir() else source.read_bytes()
    out = run("export", source, tmp_path / "units.parquet", "--json")
    assert (snapshot(source) if source.is_dir() else source.read_bytes()) == before
    back = run("import", tmp_path / "units.parquet", "--to", tmp_path / "back", "--json", "--now", NOW)
    return tmp_path / "back", out.document, back.document


def built(path: Path, materials: dict[str, list[str]], base_id: str = BASE, dimensions: int = 4) -> Path:
    """Build an index in a base's own folder and return it."""
    place = path / "KnowledgeBase" / base_id / ".cherry" / "index.sqlite"
    place.parent.mkdir(parents=True)
    rows = {name: [(text, vector_of(text, dimensions)) for text in texts] for name, texts in materials.items()}
    parts = [index.Material(name, lambda _, name=name: f"{name}.md", bodies) for name, bodies in rows.items()]
    index.build_index(place, base_id, NOW_MS, parts, lambda *_: None)
    return place
