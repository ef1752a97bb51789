"""``search`` in collections of Chroma, compared with chromadb's own answers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from chroma_store import ChromaStore, extract, opened, overwrite_links, remove_labels
from extras import needs
from harness import run, snapshot

import regraft


@pytest.fixture
def store(tmp_path: Path) -> ChromaStore:
    return extract("1.5", tmp_path / "source")


def numbers_of(store: ChromaStore, name: str, key: str) -> list[float]:
    return list(struct.unpack("<16f", bytes.fromhex(store.expected[name][key]["vector"])))


def vector_file(path: Path, numbers: list[float]) -> Path:
    path.write_text(json.dumps(numbers), "utf-8")
    return path


def search(path: Path, query: str, *options: object) -> dict[str, Any]:
    found = run("search", path, query, *options, "--json")
    assert found.status == 0, found.stderr
    return found.document


@needs("chroma")
@pytest.mark.parametrize("name", ["plain", "angles", "products"])
def test_vectors_are_ranked_as_chromadb_ranks_them(name: str, store: ChromaStore, tmp_path: Path) -> None:
    before = snapshot(store.root)
    # The graph is not used.
    overwrite_links(store, name)
    query = [one + 0.25 for one in numbers_of(store, name, "id20")]
    options = ("--base", name, "--vector", vector_file(tmp_path / "vector.json", query), "--mode", "vector", "-k", 7)
    found = search(store.root, "anything", *options)
    assert (found["mode"], found["base_name"], found["score_kind"]) == ("vector", name, "relevance")
    sound = extract("1.5", tmp_path / "sound")
    with opened(sound.root, tmp_path / "copy") as client:
        collection = client.get_collection(name, embedding_function=None)
        answer = collection.query(query_embeddings=[query], n_results=7, include=["distances", "documents"])
    assert [hit["unit_id"] for hit in found["hits"]] == answer["ids"][0]
    assert [hit["text"] for hit in found["hits"]] == answer["documents"][0]
    for hit, distance in zip(found["hits"], answer["distances"][0], strict=True):
        expected = 1 / (1 + distance) if name == "plain" else 1 - distance
        assert hit["score"] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert {key: one for key, one in snapshot(store.root).items() if "link_lists" not in key} == {
        key: one for key, one in before.items() if "link_lists" not in key
    }


def test_words_are_found_in_documents(store: ChromaStore) -> None:
    found = search(store.root, "Text 知识 of plain 77", "--base", store.collection_id("plain"), "-k", 200)
    texts = {key: one["document"] for key, one in store.expected["plain"].items()}
    assert found["mode"] == "bm25"
    assert {hit["unit_id"]: hit["text"] for hit in found["hits"]} == {
        key: text for key, text in texts.items() if "77" in text and "知识" in text
    }
    assert {hit["item_name"] for hit in found["hits"]} == {str(store.expected["plain"]["id77"]["metadata"]["name"])}
    only = search(store.root, "Back again", "--base", "plain")
    assert [hit["unit_id"] for hit in only["hits"]] == ["id3"]


def test_all_collections_are_searched_and_merged(store: ChromaStore, tmp_path: Path) -> None:
    found = search(store.root, "The only one")
    assert {one["base_name"] for one in found["bases"]} == {"plain", "angles", "products", "single"}
    assert found["hits"][0]["base_name"] == "single"
    vector = vector_file(tmp_path / "vector.json", numbers_of(store, "plain", "id7"))
    both = search(store.root, "Text", "--vector", vector, "-k", 40)
    assert both["mode"] == "hybrid"
    assert "id7" in [hit["unit_id"] for hit in both["hits"] if hit["base_name"] == "plain"][:3]
    report = regraft.search(store.root, "The only one", base="single")
    assert [hit.unit_id for hit in report.hits] == ["only"]


def test_a_vector_of_another_length_is_searched_by_words(store: ChromaStore, tmp_path: Path) -> None:
    vector = vector_file(tmp_path / "vector.json", [1.0, 2.0])
    refused = run("search", store.root, "Text", "--base", "plain", "--vector", vector)
    assert refused.status == 2
    assert "the vector has 2 numbers, but those of base" in refused.stderr


def test_unproven_vectors_are_not_compared(store: ChromaStore, tmp_path: Path) -> None:
    remove_labels(store)
    vector = vector_file(tmp_path / "vector.json", numbers_of(store, "plain", "id20"))
    found = search(store.root, "Text", "--base", "plain", "--vector", vector, "--mode", "vector", "-k", 100)
    proven = run("inspect", store.root, "--json").document
    (one,) = (base for base in proven["bases"] if base["name"] == "plain")
    assert len(found["hits"]) == one["in_segment"] + one["in_queue"] < len(store.expected["plain"])
    left = len(store.expected["plain"]) - len(found["hits"])
    assert found["notes"] == [f"{left} entries without a proven vector can be found by words only"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--as", "user:ada"), "--as is not for a folder of Chroma"),
        (("--raw",), "--raw is not for a folder of Chroma"),
        (("--mode", "simple"), "--mode simple is not for a folder of Chroma"),
        (("--mode", "vector"), "give --embedder NAME, or --vector FILE with 16 numbers"),
        (("--base", "nothing"), "nothing: no base has this name or id"),
    ],
)
def test_what_cannot_be_searched(options: tuple[str, ...], message: str, store: ChromaStore) -> None:
    before = snapshot(store.root)
    found = run("search", store.root, "Text", *options)
    assert found.status == 2
    assert message in found.stderr
    assert snapshot(store.root) == before


def test_a_query_without_a_word(store: ChromaStore) -> None:
    for options in ((), ("--base", "plain")):
        found = run("search", store.root, "…", *options)
        assert (found.status, found.stderr.count("\n")) == (2, 1)
