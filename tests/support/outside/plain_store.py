"""An index store by ``docs/formats/index.md`` alone, with the ``sqlite3`` of Python; nothing of regraft is imported."""

from __future__ import annotations

import hashlib
import math
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NOW_MS = 1_795_262_400_000
TABLES = (
    """CREATE TABLE meta (
         id INTEGER PRIMARY KEY CHECK (id = 1), schema_version INTEGER NOT NULL, base_id TEXT NOT NULL,
         created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)""",
    "CREATE TABLE content (content_hash TEXT PRIMARY KEY, text TEXT NOT NULL, created_at INTEGER NOT NULL)",
    """CREATE TABLE material (
         material_id TEXT PRIMARY KEY,
         relative_path TEXT NOT NULL UNIQUE CHECK (relative_path <> '' AND relative_path NOT LIKE '/%'
           AND relative_path <> '.cherry' AND relative_path NOT LIKE '.cherry/%'),
         current_content_hash TEXT REFERENCES content (content_hash),
         created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)""",
    """CREATE TABLE search_unit (
         unit_id TEXT PRIMARY KEY,
         material_id TEXT NOT NULL REFERENCES material (material_id) ON DELETE CASCADE,
         content_hash TEXT NOT NULL REFERENCES content (content_hash) ON DELETE CASCADE,
         unit_type TEXT NOT NULL CHECK (unit_type = 'chunk'),
         unit_index INTEGER NOT NULL CHECK (unit_index >= 0),
         title TEXT,
         char_start INTEGER NOT NULL CHECK (char_start >= 0),
         char_end INTEGER NOT NULL CHECK (char_end >= char_start),
         locator_json TEXT, created_at INTEGER NOT NULL)""",
    """CREATE TABLE search_text (
         search_text_id TEXT PRIMARY KEY,
         target_type TEXT NOT NULL CHECK (target_type = 'search_unit'),
         target_id TEXT NOT NULL,
         kind TEXT NOT NULL CHECK (kind = 'body'),
         text TEXT NOT NULL, embedding_text_hash TEXT NOT NULL, fts_rowid INTEGER, created_at INTEGER NOT NULL)""",
    """CREATE TABLE embedding (
         embedding_text_hash TEXT PRIMARY KEY, vector_blob BLOB NOT NULL, created_at INTEGER NOT NULL)""",
    """CREATE VIRTUAL TABLE search_text_fts USING fts5 (
         text, content='search_text', content_rowid='fts_rowid', tokenize='trigram')""",
    "CREATE INDEX material_content_idx ON material (current_content_hash)",
    "CREATE UNIQUE INDEX search_unit_material_index_idx ON search_unit (material_id, unit_type, unit_index)",
    "CREATE INDEX search_unit_content_idx ON search_unit (content_hash)",
    "CREATE INDEX search_unit_material_idx ON search_unit (material_id)",
    "CREATE UNIQUE INDEX search_text_target_kind_idx ON search_text (target_type, target_id, kind)",
    "CREATE INDEX search_text_embedding_hash_idx ON search_text (embedding_text_hash)",
    "CREATE INDEX search_text_kind_idx ON search_text (kind)",
    "CREATE UNIQUE INDEX search_text_fts_rowid_uniq ON search_text (fts_rowid)",
)
AFTER_INSERT = """CREATE TRIGGER search_text_ai AFTER INSERT ON search_text BEGIN
  UPDATE search_text SET fts_rowid = (SELECT ifnull(max(fts_rowid), 0) + 1 FROM search_text) WHERE rowid = new.rowid;
  INSERT INTO search_text_fts (rowid, text) SELECT fts_rowid, text FROM search_text WHERE rowid = new.rowid;
END"""
AFTER_DELETE = """CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN
  INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
END"""
AFTER_UPDATE = """CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text BEGIN
  INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
  INSERT INTO search_text_fts (rowid, text) VALUES (new.fts_rowid, new.text);
END"""


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Refused(ValueError):
    """The store does not take this."""


class Store:
    """One index. Methods whose names begin with an underscore are where a mutant differs."""

    version = 2
    triggers: tuple[str, ...] = (AFTER_INSERT, AFTER_DELETE, AFTER_UPDATE)

    def __init__(self, path: Path, base_id: str, *, create: bool = False) -> None:
        if not create and not path.exists():
            raise Refused(f"{path} does not exist")
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA foreign_keys = ON")
        if create:
            self._create(base_id)
        try:
            self._demand(base_id)
        except Refused:
            self.db.close()
            raise

    def _create(self, base_id: str) -> None:
        for statement in (*TABLES, *self.triggers):
            self.db.execute(statement)
        row = (self.version, self._stored_base(base_id), NOW_MS, NOW_MS)
        self.db.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?)", row)

    def _stored_base(self, base_id: str) -> str:
        return base_id

    def _demand(self, base_id: str) -> None:
        found = self.db.execute("SELECT schema_version, base_id FROM meta").fetchone()
        if found != (2, base_id):
            raise Refused(f"it is of {found}")

    def close(self) -> None:
        self.db.close()

    # --- changes ---------------------------------------------------------------------------------------------------

    def replace(
        self,
        material_id: str,
        path: str,
        content: str,
        units: Sequence[tuple[int, int]],
        embeddings: Mapping[str, bytes],
    ) -> None:
        with self._transaction():
            cuts = [(*span, self._body(content, *span)) for span in self._spans(content, units)]
            stored = self._content(content)
            content_hash = self._content_hash(stored)
            self.db.execute(
                "INSERT INTO content VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (content_hash, stored, NOW_MS)
            )
            self._put_material(material_id, self._path(path), content_hash)
            self._clear(material_id)
            for index, (start, end, body) in enumerate(cuts):
                self._put_unit(material_id, content_hash, self._index(index), start, end, body)
            for key in dict.fromkeys(sha256(body) for _, _, body in cuts):
                if key in embeddings:
                    self._put_vector(key, embeddings[key])
            self._demand_coverage()
            self._sweep()

    def delete(self, material_ids: Iterable[str]) -> None:
        with self._transaction():
            for material_id in material_ids:
                self._clear(material_id)
                self.db.execute("DELETE FROM material WHERE material_id = ?", (material_id,))
            self._sweep()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def _spans(self, content: str, units: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        length = len(content.encode("utf-16-le")) // 2
        for start, end in units:
            if not 0 <= start <= end <= length:
                raise Refused(f"{start} to {end} of {length}")
        return units

    def _body(self, content: str, start: int, end: int) -> str:
        return content.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")

    def _content(self, content: str) -> str:
        return content

    def _content_hash(self, content: str) -> str:
        return sha256(content)

    def _path(self, path: str) -> str:
        return path

    def _index(self, index: int) -> int:
        return index

    def _put_material(self, material_id: str, path: str, content_hash: str) -> None:
        taken = self.db.execute(
            "SELECT 1 FROM material WHERE relative_path = ? AND material_id <> ?", (path, material_id)
        )
        if taken.fetchone():
            raise Refused(f"{path} is taken")
        self.db.execute(
            "INSERT INTO material VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT (material_id) DO UPDATE"
            " SET relative_path = ?2, current_content_hash = ?3, updated_at = ?4",
            (material_id, path, content_hash, NOW_MS),
        )

    def _clear(self, material_id: str) -> None:
        self.db.execute(
            "DELETE FROM search_text WHERE target_id IN (SELECT unit_id FROM search_unit WHERE material_id = ?)",
            (material_id,),
        )
        self.db.execute("DELETE FROM search_unit WHERE material_id = ?", (material_id,))

    def _unit_id(self, *of: object) -> str:
        return sha256(" ".join(map(str, of)))

    def _put_unit(self, material_id: str, content_hash: str, index: int, start: int, end: int, body: str) -> None:
        unit = self._unit_id(material_id, content_hash, "chunk", index, start, end)
        self.db.execute(
            "INSERT INTO search_unit VALUES (?, ?, ?, 'chunk', ?, NULL, ?, ?, NULL, ?)",
            (unit, material_id, content_hash, index, start, end, NOW_MS),
        )
        self.db.execute(
            "INSERT INTO search_text VALUES (?, 'search_unit', ?, 'body', ?, ?, NULL, ?)",
            (sha256(f"search_unit {unit} body"), unit, body, sha256(body), NOW_MS),
        )

    def _put_vector(self, key: str, vector: bytes) -> None:
        self.db.execute("INSERT INTO embedding VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, vector, NOW_MS))

    def _demand_coverage(self) -> None:
        missing = "SELECT 1 FROM search_text WHERE embedding_text_hash NOT IN"
        if self.db.execute(f"{missing} (SELECT embedding_text_hash FROM embedding)").fetchone():
            raise Refused("a body without a vector")

    def _sweep(self) -> None:
        self._sweep_vectors()
        self.db.execute(
            "DELETE FROM content WHERE content_hash NOT IN (SELECT content_hash FROM search_unit) AND content_hash"
            " NOT IN (SELECT current_content_hash FROM material)"
        )

    def _sweep_vectors(self) -> None:
        self.db.execute(
            "DELETE FROM embedding WHERE embedding_text_hash NOT IN (SELECT embedding_text_hash FROM search_text)"
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def units(self, material_id: str) -> list[tuple[int, int, str]]:
        return self.db.execute(
            "SELECT char_start, char_end, text FROM search_unit JOIN search_text ON target_id = unit_id"
            " WHERE material_id = ? ORDER BY unit_index",
            (material_id,),
        ).fetchall()

    def words(self, word: str, count: int) -> list[str]:
        found = self.db.execute(
            "SELECT target_id FROM search_text_fts f JOIN search_text t ON t.fts_rowid = f.rowid"
            f" WHERE search_text_fts MATCH ? ORDER BY bm25(search_text_fts) {self._order()} LIMIT ?",
            (f'"{word}"', count),
        )
        return [unit for (unit,) in found]

    def _order(self) -> str:
        return "ASC"

    def nearest(self, vector: bytes, count: int) -> list[str]:
        rows = self.db.execute(
            "SELECT target_id, vector_blob FROM search_text JOIN embedding USING (embedding_text_hash)"
        )
        return [unit for _, unit in sorted((distance(vector, other), unit) for unit, other in rows)[:count]]


def distance(first: bytes, second: bytes) -> float:
    one, other = (struct.unpack(f"<{len(vector) // 4}f", vector) for vector in (first, second))
    dot = sum(left * right for left, right in zip(one, other, strict=True))
    return 1 - dot / (math.hypot(*one) * math.hypot(*other))
