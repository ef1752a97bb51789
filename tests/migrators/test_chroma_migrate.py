"""Migrating and exporting collections of Chroma: every text with the vector that Chroma's API returned."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import apsw
import numpy as np
import pytest
from chroma_store import DIMENSION, VERSIONS, ChromaStore, extract, remove_labels
from extras import needs, optional
from harness import run, snapshot

MODELS = [
    word
    for name in ("plain", "angles", "products", "single")
    for word in ("--map-model", f"{name}=acme::embed-3")
]  # fmt: skip


def assert_same(vector: bytes, returned: str, key: str) -> None:
    """Compare with what the API returned; Chroma rounds a cosine vector only when it writes the segment."""
    expected = bytes.fromhex(returned)
    numbers = (np.frombuffer(one, dtype="<f4") for one in (vector, expected))
    assert vector == expected or np.allclose(*numbers, rtol=2e-7, atol=1e-9), key


@pytest.mark.one_in(3)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_collection_becomes_a_base(version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path / "source")
    before = snapshot(store.root)
    found = run("migrate", store.root, "--to", tmp_path / "library", *MODELS, "--yes", "--json")
    assert found.status == 0, found.stderr
    assert snapshot(store.root) == before
    assert {one["name"] for one in found.document["bases"]} == {name for name, one in store.expected.items() if one}
    for base in found.document["bases"]:
        expected = store.expected[base["name"]]
        assert (base["rows"]["read"], base["rows"]["carried"]) == (len(expected), len(expected))
        index = tmp_path / "library" / "KnowledgeBase" / base["id"] / ".cherry" / "index.sqlite"
        (index,) = (tmp_path / "library" / "KnowledgeBase" / base["id"]).rglob("index.sqlite")
        with closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            rows = db.execute(
                "SELECT t.text, e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash)"
            ).fetchall()
        by_text = {one["document"]: one["vector"] for one in expected.values()}
        assert {text for text, _ in rows} == by_text.keys()
        for text, vector in rows:
            assert_same(vector, by_text[text], text)
    assert run("check", tmp_path / "library", "--json").document["findings"] == []


def test_documents_and_metadata_that_are_bytes_are_migrated_as_text(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    key, number = store.rows("SELECT embedding_id, id FROM embeddings ORDER BY id LIMIT 1")[0]
    store.execute(
        "UPDATE embedding_metadata SET string_value = x'e4bda0ff' WHERE id = ? AND key = 'chroma:document'", number
    )
    store.execute("INSERT INTO embedding_metadata (id, key, int_value) VALUES (?, 'bytes', x'3132')", number)
    found = run("migrate", store.root, "--to", tmp_path / "library", *MODELS, "--yes", "--json")
    assert found.status == 0, found.stderr
    units = []
    for index in (tmp_path / "library").rglob("index.sqlite"):
        with closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)) as db:
            query = "SELECT text, locator_json FROM search_text JOIN search_unit ON unit_id = target_id"
            units += [(text, json.loads(locator)) for text, locator in db.execute(query)]
    [(text, locator)] = [one for one in units if "bytes" in (one[1]["metadata"] or {})]
    assert (locator["chroma_id"], text, locator["metadata"]["bytes"]) == (key, "你\ufffd", "12")


def test_a_document_in_the_queue_that_is_no_text_is_migrated_as_text(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    topic = f"persistent://default/default/{store.collection_id('plain')}"
    vector = struct.pack("<f", 2) * DIMENSION
    store.execute(
        "INSERT INTO embeddings_queue (operation, topic, id, vector, encoding, metadata) "
        "VALUES (2, ?, 'odd', ?, 'FLOAT32', '{\"chroma:document\": 5}')",
        topic,
        vector,
    )
    chosen = ("--base", store.collection_id("plain"), *MODELS[:2])
    found = run("migrate", store.root, "--to", tmp_path / "library", *chosen, "--yes", "--json")
    assert found.status == 0, found.stderr
    (index,) = (tmp_path / "library").rglob("index.sqlite")
    with closing(apsw.Connection(str(index), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        query = (
            "SELECT e.vector_blob FROM search_text t JOIN embedding e USING (embedding_text_hash) WHERE t.text = '5'"
        )
        assert db.execute(query).fetchall() == [(vector,)]


def test_unproven_vectors_are_not_migrated(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    remove_labels(store)
    chosen = ("--base", store.collection_id("plain"), *MODELS[:2])
    found = run("migrate", store.root, "--to", tmp_path / "library", *chosen, "--yes", "--json")
    (base,) = found.document["bases"]
    assert base["rows"]["skipped"].keys() == {"missing_vector_payload"}
    assert base["rows"]["carried"] + base["rows"]["skipped"]["missing_vector_payload"] == len(store.expected["plain"])


@pytest.mark.parametrize("every", [False, True])
def test_entries_without_a_document_are_skipped_by_name(every: bool, tmp_path: Path) -> None:
    """A text of their number in the full-text index is not proven to be theirs: 0.4 leaves those of deleted entries."""
    store = extract("1.5", tmp_path / "source")
    bare = sorted(store.expected["plain"])[: None if every else 3]
    with closing(sqlite3.connect(store.root / "chroma.sqlite3")) as db, db:
        marks = ", ".join("?" * len(bare))
        ids = f"SELECT e.id FROM embeddings e JOIN segments s ON s.id = e.segment_id WHERE e.embedding_id IN ({marks})"
        db.execute(f"DELETE FROM embedding_metadata WHERE key = 'chroma:document' AND id IN ({ids})", bare)
        db.execute("DELETE FROM embeddings_queue")
        copies = db.execute(f"SELECT count(*) FROM embedding_fulltext_search_content WHERE id IN ({ids})", bare)
        assert copies.fetchone()[0] >= len(bare)
    before = snapshot(store.root)
    found = run("migrate", store.root, "--to", tmp_path / "library", "--base", "plain", *MODELS[:2], "--json")
    assert snapshot(store.root) == before
    [base] = found.document["bases"]
    rows = base["rows"]
    assert rows["skipped"]["no_document"] == len(bare)
    assert rows["read"] == rows["carried"] + sum(rows["skipped"].values())
    kept = [one for key, one in store.expected["plain"].items() if key not in bare]
    stored: dict[str, str] = {}
    for index in (tmp_path / "library").rglob("index.sqlite"):
        with closing(sqlite3.connect(index)) as db:
            query = "SELECT text, hex(vector_blob) FROM search_text JOIN embedding USING (embedding_text_hash)"
            stored |= {text: vector.lower() for text, vector in db.execute(query)}
    assert "" not in stored
    assert set(stored) <= {one["document"] for one in kept}
    assert rows["carried"] == 0 if every else len(stored) > 0
    # Without the queue, its vectors are gone as well.
    found = run("check", tmp_path / "library", "--json").document["findings"]
    assert {one["name"] for one in found} <= {"item.not-indexed"}


@pytest.mark.parametrize("every", [False, True])
def test_vectors_whose_entries_are_gone_are_named(every: bool, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    gone = sorted(store.expected["plain"])[: None if every else 3]
    segment = store.segment("plain", "METADATA")
    for key in gone:
        [(number,)] = store.rows("SELECT id FROM embeddings WHERE segment_id = ? AND embedding_id = ?", segment, key)
        store.execute("DELETE FROM embedding_metadata WHERE id = ?", number)
        store.execute("DELETE FROM embeddings WHERE id = ?", number)
    before = snapshot(store.root)
    library = tmp_path / "library"
    done = run("migrate", store.root, "--to", library, *MODELS, "--yes", "--json")
    named = [one for one in done.document["warnings"] if one["code"] == "no_document"]
    reason = "not migrated, because their ids have neither text nor metadata (for example id0, id1, id10)"
    whose = "plain: " if every else ""
    assert (done.status, [(one["count"], one["message"]) for one in named]) == (
        1,
        [(len(gone), f"{whose}{len(gone)} vectors {reason}")],
    )
    assert {one["name"] for one in done.document["bases"]} == {
        name for name, one in store.expected.items() if one and not (every and name == "plain")
    }
    if optional("pyarrow"):
        exported = run("export", store.root, tmp_path / "units.parquet", "--json")
        lost = {one["name"]: one["left_out"] for one in exported.document["bases"] if one["problem"]}
        assert (exported.status, lost) == (1, {"plain": {"chroma.vector-orphan": len(gone)}})
    assert snapshot(store.root) == before


def read_parquet(path: Path) -> list[dict[str, object]]:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path).to_pylist()


@needs("parquet")
@pytest.mark.parametrize("version", VERSIONS)
def test_export_keeps_ids_metadata_and_vectors(version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path / "source")
    before = snapshot(store.root)
    found = run("export", store.root, tmp_path / "units.parquet", "--json")
    assert found.status == 0, found.stderr
    assert snapshot(store.root) == before
    rows = read_parquet(tmp_path / "units.parquet")
    assert len(rows) == sum(map(len, store.expected.values()))
    for row in rows:
        expected = store.expected[str(row["base_name"])][str(row["unit_id"])]
        assert row["text"] == expected["document"]
        assert json.loads(str(row["locator_json"])) == {
            "chroma_id": row["unit_id"], "metadata": expected["metadata"] or None
        }  # fmt: skip
        assert_same(np.asarray(row["vector"], dtype="<f4").tobytes(), expected["vector"], str(row["unit_id"]))


@needs("parquet")
def test_an_export_is_imported_with_its_vectors(tmp_path: Path) -> None:
    store: ChromaStore = extract("1.5", tmp_path / "source")
    assert run("export", store.root, tmp_path / "units.parquet", "--base", "plain").status == 0
    found = run("import", tmp_path / "units.parquet", "--to", tmp_path / "library", "--yes", "--json")
    assert found.status in (0, 1), found.stderr
    assert run("export", tmp_path / "library", tmp_path / "again.parquet").status == 0
    again = {json.loads(str(row["locator_json"]))["chroma_id"]: row for row in read_parquet(tmp_path / "again.parquet")}
    assert again.keys() == store.expected["plain"].keys()
    for key, row in again.items():
        assert np.asarray(row["vector"], dtype="<f4").tobytes().hex() == store.expected["plain"][key]["vector"]
