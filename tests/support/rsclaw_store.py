"""Small KBs of rsclaw: documents as markdown files, and a database of redb that the tests' own writer makes.

A store is healthy as it is made; damage is put into :attr:`RsclawStore.tables` or into its files. The rows follow
``docs/formats/rsclaw.md``; nothing here asks the code under test for a rule.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harness
from redb_writer import RedbTable, write_redb

#: A KB with planted damage, and every row of its database.
SAMPLE = harness.SAMPLES / "rsclaw"
needs_samples = harness.needs_samples

DAY_MS = 86_400_000
EMBEDDER, DIMENSIONS = "stub-4", 4
#: By table: the types of key and value as the sample has them.
TYPES = {"kb_jobs_by_status_priority": ("&[u8]", "&[u8]"), "kb_collection_by_name": ("&str", "&str")}
TABLES = (
    *("kb_docs", "kb_doc_latest_version", "kb_chunks", "kb_chunk_by_logical", "kb_entities", "kb_entity_index"),
    *("kb_seen_items", "kb_sync_state", "kb_ledger", "kb_jobs_by_id", "kb_jobs_by_dedupe_active"),
    *("kb_jobs_by_status_priority", "kb_job_claims", "kb_collections", "kb_collection_by_name"),
)
_STATUSES = {"ready": 0, "running": 1, "done": 2, "failed": 3}


def compact(value: Any) -> bytes:
    """Return a value as the system writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Return the vector of a text, of numbers that float32 has exactly: the same for the same text, always."""
    digest = hashlib.sha256(text.encode()).digest()
    return [(digest[at % 32] - 127.5) / 128 for at in range(dimensions)]


def sha256(text: str | bytes) -> str:
    """Return a SHA-256 in hex."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def chunk_id(lsid: str, seq: int, body: str) -> str:
    """Return the id of a chunk."""
    return hashlib.sha256(b"\0".join([lsid.encode(), seq.to_bytes(4, "big"), body.encode()])).hexdigest()[:32]


def markdown_file(doc: dict[str, Any], body: str) -> str:
    """Return the text of a document's file."""
    tags = "".join(f"\n- {tag}" for tag in doc["tags"]) or " []"
    return (
        f"---\ntitle: {doc['title']}\nsource_kind: {doc['source_kind']}\n"
        f"logical_source_id: {doc['logical_source_id']}\ncreated_at: 2026-05-20T01:02:03.123456789+00:00\n"
        f"tags:{tags}\nmeta: null\n---\n\n{body}"
    )


@dataclass
class RsclawStore:
    """A KB below ``root``: rows as Python objects by table and key, written by :meth:`write`."""

    root: Path
    now_ms: int = harness.NOW_MS
    #: Objects are written as JSON, bytes as they are.
    tables: dict[str, dict[bytes, Any]] = field(default_factory=lambda: {name: {} for name in TABLES})
    _count: int = 0

    def __post_init__(self) -> None:
        for name in ("md/doc", "raw"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def ulid(self) -> str:
        """Return the next id: they sort as they are made."""
        self._count += 1
        return f"01M{self._count:023d}"

    def put(self, table: str, key: str | bytes, value: Any = b"") -> None:
        """Put a row into a table."""
        self.tables[table][key.encode() if isinstance(key, str) else key] = value

    def doc(
        self,
        title: str = "Doc",
        paragraphs: Sequence[str] = ("One paragraph.",),
        *,
        lsid: str | None = None,
        version: int = 1,
        status: str = "active",
        visibility: dict[str, Any] | None = None,
        owner: str | None = None,
        source: dict[str, Any] | None = None,
        tags: Sequence[str] = (),
        age_days: float = 2,
        embedder: str = EMBEDDER,
        dimensions: int = DIMENSIONS,
        job: str = "done",
        **more: Any,
    ) -> dict[str, Any]:
        """Add a document with its file, chunks, ledger entry and job; return its row, which may still be changed.

        ``more`` replaces fields of it; at a path that is given so, no file is written.
        """
        body = "\n\n".join(paragraphs)
        raw = f"raw of {title} {version}: {body}".encode()
        key, at = self.ulid(), int(self.now_ms - age_days * DAY_MS)
        lsid = lsid or f"file:sha256:{sha256(raw)}"
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "doc"
        doc: dict[str, Any] = {
            "id": key,
            "logical_source_id": lsid,
            "source": source or {"type": "doc", "path": "(manual)"},
            "source_kind": "doc",
            "title": title,
            "mime": "text/markdown",
            "raw_sha256": sha256(raw),
            "markdown_path": f"md/doc/{slug}--{sha256(lsid)[:8]}--{sha256(body)[:8]}.md",
            "markdown_sha256": sha256(body),
            "raw_path": f"raw/{key}.md",
            "owner_user_id": owner,
            "created_at": at,
            "updated_at": at,
            "version": version,
            "status": status,
            "visibility": visibility or {"type": "global"},
            "tags": list(tags),
            "meta": None,
            **more,
        }
        self.put("kb_docs", key, doc)
        before = self.tables["kb_doc_latest_version"].get(lsid.encode())
        if before is None or before["version"] < version:
            self.put("kb_doc_latest_version", lsid, {"doc_id": key, "version": version})
        for name, content in ((doc["markdown_path"], markdown_file(doc, body).encode()), (doc["raw_path"], raw)):
            if name and name not in more.values():
                self.file(name, content)
        self.ledger(doc, job)
        if job in ("done", "running"):
            self.chunks(doc, paragraphs, embedder, dimensions)
        return doc

    def chunks(
        self, doc: dict[str, Any], paragraphs: Sequence[str], embedder: str = EMBEDDER, dimensions: int = DIMENSIONS
    ) -> list[dict[str, Any]]:
        """Add a chunk for each paragraph of a document."""
        made, start = [], 0
        for seq, text in enumerate(paragraphs):
            end = start + len(text.encode())
            made.append(self.chunk(doc, seq, text, (start, end), embedder=embedder, dimensions=dimensions))
            start = end + 2
        return made

    def chunk(
        self,
        doc: dict[str, Any],
        seq: int,
        text: str,
        place: tuple[int, int],
        *,
        embedder: str = EMBEDDER,
        dimensions: int = DIMENSIONS,
        **more: Any,
    ) -> dict[str, Any]:
        """Add one chunk; ``more`` replaces fields of it."""
        lsid = doc["logical_source_id"]
        indexed = f"{doc['title']}\n\n{text}"
        chunk = {
            "id": chunk_id(lsid, seq, text),
            "doc_id": doc["id"],
            "logical_source_id": lsid,
            "doc_version": doc["version"],
            "seq": seq,
            "heading_path": [doc["title"]],
            "byte_offset": list(place),
            "indexed_text": indexed,
            "vector": embed(indexed, dimensions),
            "simhash": 1,
            "locator": {"type": "md_section", "heading_path": [doc["title"]]},
            "status": "active",
            "source_quality": 1.0,
            "embedder_id": embedder,
            **more,
        }
        self.put("kb_chunks", chunk["id"], chunk)
        self.put("kb_chunk_by_logical", f"{lsid}\0{chunk['id']}")
        return chunk

    def ledger(self, doc: dict[str, Any], job: str) -> None:
        """Add the ledger entry of a document, and its job in a state."""
        entry, at = self.ulid(), doc["created_at"]
        self.put(
            "kb_ledger",
            entry,
            {
                "id": entry,
                "created_at": at,
                "updated_at": at,
                "doc_id": doc["id"],
                "logical_source_id": doc["logical_source_id"],
                "op": "create",
                "new_paths": [doc["markdown_path"], doc["raw_path"]],
                "old_paths": [],
                "status": "done" if job == "done" else "pending",
                "error": None,
            },
        )
        self.job(doc, job)

    def job(self, doc: dict[str, Any], status: str) -> str:
        """Add the job that cuts and embeds a document; return its id."""
        key, at = self.ulid(), doc["created_at"]
        about = {"kind": "chunk_and_embed", "doc_id": doc["id"], "doc_version": doc["version"]}
        self.put(
            "kb_jobs_by_id",
            key,
            {
                "id": key,
                "kind": about,
                "status": status,
                "priority": 128,
                "created_at": at,
                "attempts": 5 if status == "failed" else 0,
                "last_error": "handler panicked" if status == "failed" else None,
            },
        )
        self.put("kb_jobs_by_status_priority", bytes([_STATUSES[status], 128]) + at.to_bytes(8, "big") + key.encode())
        if status in ("ready", "running"):
            self.put("kb_jobs_by_dedupe_active", f"chunk_embed:{doc['id']}:{doc['version']}", key.encode())
        if status == "running":
            claim = {"worker_id": "w1", "claimed_at": self.now_ms, "expires_at": self.now_ms + 60_000, "token": "t1"}
            self.put("kb_job_claims", key, claim)
        return key

    def file(self, name: str, content: bytes, age_hours: float = 48) -> Path:
        """Write a file that is so old; never one outside the KB, whatever its name."""
        path = self.root / name
        assert path.resolve().is_relative_to(self.root.resolve()), name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.age(path, age_hours)
        return path

    def age(self, path: Path, hours: float) -> None:
        """Let a file have been written so long before the store's present time."""
        at = self.now_ms / 1000 - hours * 3600
        os.utime(path, (at, at))

    def snapshot(self, chunks: Sequence[str] | None = None, dimension: int = DIMENSIONS) -> Path:
        """Write the snapshot of vectors: of all chunks, or of those that are given."""
        known = sorted(key.decode() for key in self.tables["kb_chunks"]) if chunks is None else list(chunks)
        meta = {"schema_version": 1, "dimension": dimension, "id_to_chunk": known}
        self.file("hnsw/snapshot.hnsw.data", b"data")
        return self.file("hnsw/snapshot.meta.json", json.dumps(meta).encode())

    def write(self, name: str = "kb.redb", **options: Any) -> Path:
        """Write the database, and return the folder of the KB; ``options`` are those of the writer."""
        tables = {}
        for table, rows in self.tables.items():
            key_type, value_type = TYPES.get(table, ("&str", "&[u8]"))
            coded = {key: value if isinstance(value, bytes) else compact(value) for key, value in rows.items()}
            tables[table] = RedbTable(key_type, value_type, coded)
        write_redb(self.root / name, tables, **options)
        return self.root
