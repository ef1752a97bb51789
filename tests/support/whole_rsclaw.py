"""A KB of rsclaw in which nothing is wrong, with a bit of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rsclaw_store import RsclawStore

URL = "https://example.com/page?b=2&a=1"
LSID_OF_URL = "url:https://example.com/page?a=1&b=2"
CUSTOM = "file:custom:notes"
FULL_TEXT = "idx/tantivy/meta.json"
SNAPSHOT = "hnsw/snapshot.meta.json"


def healthy(root: Path) -> RsclawStore:
    """Return a KB with a bit of everything, not yet written; docs by title are found with :func:`doc`."""
    store = RsclawStore(root)
    store.doc("Handbook", ["# Handbook", "First paragraph, 第一段.", "Second paragraph."], tags=["manual"])
    store.doc("Diary", ["Only mine."], visibility={"type": "private"}, owner="anna")
    store.doc("Page", ["What a page says."], lsid=LSID_OF_URL, source={"type": "url", "url": URL})
    store.doc("Old", ["A first version."], lsid=CUSTOM, version=1, status="tombstoned", age_days=5)
    store.doc("New", ["A second version."], lsid=CUSTOM, version=2)
    store.doc("Agent", ["For an agent."], visibility={"type": "agent", "agent_id": "a1"})
    store.doc("Channel", ["For a channel."], visibility={"type": "channel", "channel_id": "c1"})
    store.doc("Waiting", ["Not yet cut."], job="ready", age_days=0.5)
    store.doc("Working", ["Being cut."], job="running", age_days=0.5)
    first = next(iter(store.tables["kb_chunks"].values()))
    store.put("kb_entities", "e1", {"canonical_id": "e1", "surface_forms": ["x"], "kind": "url", "created_at": 1})
    mention = {"entity_id": "e1", "chunk_id": first["id"], "doc_id": first["doc_id"], "mention_count": 1, "score": 1.0}
    store.put("kb_entity_index", f"e1\0{first['id']}", mention)
    store.put("kb_seen_items", "manual\0x", {"raw_sha256": "0", "first_seen_at": 1, "last_seen_at": 1})
    store.put("kb_sync_state", "x", {"cursor": "1", "last_sync_at": 1})
    collection = {"id": "col_1", "name": "手册", "description": None, "embed_model": None, "created_at": 1}
    store.put("kb_collections", "col_1", collection)
    store.put("kb_collection_by_name", "手册", b"col_1")
    store.snapshot()
    full_text(store)
    return store


def with_garbage(root: Path) -> RsclawStore:
    """Return one with files that nothing names, and a snapshot of vectors that is not of the chunks that are there."""
    store = healthy(root)
    store.file("md/doc/left--00000000--00000000.md", b"left")
    store.file("raw/left.pdf", b"left")
    store.snapshot(["0" * 32])
    return store


def full_text(store: RsclawStore, more: int = 0, deleted: int = 1) -> Path:
    """Write what describes the full-text index: of all chunks, and some more."""
    count = len(store.tables["kb_chunks"]) + more
    segments = [
        {"segment_id": "a", "max_doc": count, "deletes": None},
        {"segment_id": "b", "max_doc": deleted, "deletes": {"num_deleted_docs": deleted, "opstamp": 1}},
    ]
    store.file("idx/tantivy/segment.term", b"data")
    return store.file(FULL_TEXT, json.dumps({"segments": segments, "opstamp": 3}).encode())


def doc(store: RsclawStore, title: str) -> dict[str, Any]:
    """Return the row of a document."""
    return next(one for one in store.tables["kb_docs"].values() if one["title"] == title)


def chunks(store: RsclawStore, title: str) -> list[dict[str, Any]]:
    """Return the rows of a document's chunks, in their order."""
    key = doc(store, title)["id"]
    found = [one for one in store.tables["kb_chunks"].values() if one["doc_id"] == key]
    return sorted(found, key=lambda one: int(one["seq"]))


def job(store: RsclawStore, title: str) -> dict[str, Any]:
    """Return the row of a document's job."""
    key = doc(store, title)["id"]
    return next(one for one in store.tables["kb_jobs_by_id"].values() if one["kind"]["doc_id"] == key)


def entry(store: RsclawStore, title: str) -> dict[str, Any]:
    """Return the row of a document's ledger entry."""
    key = doc(store, title)["id"]
    return next(one for one in store.tables["kb_ledger"].values() if one["doc_id"] == key)


def drop(store: RsclawStore, table: str, key: str | bytes) -> None:
    """Take a row away."""
    del store.tables[table][key.encode() if isinstance(key, str) else key]


def rename_chunk(store: RsclawStore, chunk: dict[str, Any], key: str) -> None:
    """Give a chunk another id, wherever it is named."""
    old = chunk["id"]
    drop(store, "kb_chunks", old)
    drop(store, "kb_chunk_by_logical", f"{chunk['logical_source_id']}\0{old}")
    chunk["id"] = key
    store.put("kb_chunks", key, chunk)
    store.put("kb_chunk_by_logical", f"{chunk['logical_source_id']}\0{key}")
    for mention in store.tables["kb_entity_index"].values():
        mention["chunk_id"] = key if mention["chunk_id"] == old else mention["chunk_id"]
    store.snapshot()


def caches(store: RsclawStore) -> None:
    """Bring the caches in step with the chunks."""
    store.snapshot()
    full_text(store)
