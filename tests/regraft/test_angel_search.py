"""``regraft search`` in a data folder of AngelMemory: by tags, and by the vectors of ``notes_index``."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from angel_store import DIMENSION, AngelStore, build, embed, untouched
from extras import needs
from harness import Outcome, run

import regraft

NOTES = {
    "family/travel/plan.md": "# Trip plan\n## Hotels\nsecret words\n## Trains\nmore secret words\n",
    "work/report.txt": "hidden text about trains\n",
    "城市/温室升温.md": "# 社区菜园\n浇水\n## 夏天\n",
    "温室/a.txt": "a\n",
    "C++ notes.md": "# Hotels and trains\n",
}


@pytest.fixture
def store(tmp_path: Path) -> AngelStore:
    return build(tmp_path / "data", NOTES)


def search(store: AngelStore, query: str, *options: object) -> Outcome:
    with untouched(store.root):
        return run("search", store.root, query, "--json", *options)


def hits(store: AngelStore, query: str, *options: object) -> list[dict[str, Any]]:
    done = search(store, query, *options)
    assert done.status == 0, done.stderr
    found: list[dict[str, Any]] = done.document["hits"]
    assert [hit["rank"] for hit in found] == [*range(1, len(found) + 1)]
    return found


def places(found: list[dict[str, Any]]) -> list[str]:
    return [" > ".join([hit["path"], *hit["headings"]]) for hit in found]


def refused(done: Outcome, code: str) -> str:
    assert (done.status, done.document["error"]["code"]) == (2, code)
    return str(done.document["error"]["message"])


# --- by tags --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("plan", {"family/travel/plan.md"}),
        ("TRIP", {"family/travel/plan.md"}),
        ("hotel", {"family/travel/plan.md", "C++ notes.md"}),
        ("which trains go there?", {"family/travel/plan.md", "C++ notes.md"}),
        ("secret words", set()),
        ("温室", {"城市/温室升温.md", "温室/a.txt"}),
        ("温室升温了怎么办", {"城市/温室升温.md", "温室/a.txt"}),
        ("社区菜园什么时候浇水", {"城市/温室升温.md"}),
        ("夏", {"城市/温室升温.md"}),
        ("md", {"family/travel/plan.md", "城市/温室升温.md", "C++ notes.md"}),
        ("a", {"温室/a.txt"}),
        ("C", {"C++ notes.md"}),
        ("%", None),
        ("...", None),
    ],
)
def test_a_query_finds_the_records_whose_tags_it_matches(store: AngelStore, query: str, found: set[str] | None) -> None:
    if found is None:
        refused(search(store, query), "QueryWithoutWord")
    else:
        assert {hit["path"] for hit in hits(store, query, "--mode", "simple")} == found


def test_more_matching_tags_come_first_and_then_the_later_time(store: AngelStore) -> None:
    for seconds, path in enumerate(("work/report.txt", "family/travel/plan.md", "C++ notes.md")):
        store.execute("UPDATE note_index_records SET updated_at = ? WHERE source_file_path = ?", 1e9 + seconds, path)
    found = hits(store, "travel hotels trains")
    expected = [
        ("family/travel/plan.md > Trip plan > Hotels", 2.0, ["travel", "Hotels"]),
        ("family/travel/plan.md > Trip plan > Trains", 2.0, ["travel", "Trains"]),
        ("C++ notes.md > Hotels and trains", 1.0, ["Hotels and trains"]),
    ]
    assert {(place, hit["score"], *hit["matched_tags"]) for place, hit in zip(places(found), found, strict=True)} == {
        (place, score, *tags) for place, score, tags in expected
    }
    assert found[2]["path"] == "C++ notes.md"
    # Of equal numbers of tags, the record that was updated last comes first.
    store.execute("UPDATE note_index_records SET updated_at = 2e9 WHERE heading_h2 = 'Trains'")
    assert places(hits(store, "travel hotels trains"))[0].endswith("Trains")
    store.execute("UPDATE note_index_records SET updated_at = 3e9 WHERE heading_h2 = 'Hotels'")
    assert places(hits(store, "travel hotels trains"))[0].endswith("Hotels")
    assert len(hits(store, "travel hotels trains", "-k", 1)) == 1


def test_a_hit_has_path_headings_and_tags_and_no_text(store: AngelStore) -> None:
    done = search(store, "hotels")
    (hit,) = [one for one in done.document["hits"] if one["path"] == "family/travel/plan.md"]
    with closing(sqlite3.connect(store.database)) as db:
        source_id, short_id, updated = db.execute(
            "SELECT source_id, note_short_id, updated_at FROM note_index_records WHERE heading_h2 = 'Hotels'"
        ).fetchone()
    assert hit == {
        "rank": hit["rank"],
        "score": 1.0,
        "source_id": source_id,
        "note_short_id": short_id,
        "path": "family/travel/plan.md",
        "headings": ["Trip plan", "Hotels"],
        "tags": ["family", "travel", "plan.md", "Trip plan", "Hotels"],
        "matched_tags": ["Hotels"],
        "total_lines": 5,
        "updated_at": updated,
    }
    assert (done.document["mode"], done.document["score_kind"], done.document["count"]) == ("simple", "ranking", 10)
    text = run("search", store.root, "hotels trip").stdout
    assert "family/travel/plan.md > Trip plan > Hotels  (note " in text
    assert "matching tags: Trip plan, Hotels" in text
    assert "by tags" in text
    for shown in (text, done.stdout):
        assert "secret" not in shown


def test_a_search_by_tags_needs_neither_chromadb_nor_notes_nor_a_provider(tmp_path: Path) -> None:
    store = build(tmp_path / "data", NOTES, provider=None)
    for path in [*store.raw.rglob("*.*")]:
        path.unlink()
    assert len(hits(store, "hotels")) == 2
    assert "chromadb" not in search(store, "hotels", "-vv").stderr


def test_tags_without_records_and_memories_are_no_hits(store: AngelStore) -> None:
    store.remember("memory-1", "Hotels")
    store.execute("INSERT INTO note_tag_rel SELECT 'note_gone', id FROM global_tags WHERE name = 'Hotels'")
    store.add_tag("Hotels everywhere")
    assert len(hits(store, "hotels")) == 2


def test_a_function_has_the_same_answer(store: AngelStore) -> None:
    report = regraft.search(store.root, "hotels", mode="simple")
    assert [hit.path for hit in report.hits] == [hit["path"] for hit in hits(store, "hotels")]


# --- by vector ------------------------------------------------------------------------------------------------------


def vector_file(folder: Path, numbers: list[float]) -> Path:
    path = folder / "vector.json"
    path.write_text(json.dumps(numbers), "utf-8")
    return path


def distances(store: AngelStore, numbers: list[float]) -> dict[str, float]:
    """Return the squared L2 distance of each record's vector to a vector, computed from its text alone."""
    return {
        key: sum((one - other) ** 2 for one, other in zip(embed(text), numbers, strict=True))
        for key, text in store.texts().items()
    }


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs("chroma"))])
def test_a_search_by_vector_gives_the_nearest_first(tmp_path: Path, real: bool) -> None:
    store = build(tmp_path / "data", NOTES, real=real)
    numbers = [0.25] * DIMENSION
    expected = distances(store, numbers)
    found = hits(store, "anything", "--vector", vector_file(tmp_path, numbers), "-k", 4)
    assert [hit["source_id"] for hit in found] == sorted(expected, key=lambda key: (expected[key], key))[:4]
    assert [hit["score"] for hit in found] == pytest.approx([1 / (1 + expected[hit["source_id"]]) for hit in found])
    assert all(hit["tags"] and hit["matched_tags"] == [] and "text" not in hit for hit in found)


@pytest.mark.thorough
@needs("chroma")
def test_vectors_in_the_files_of_a_segment_are_found_as_chroma_finds_them(tmp_path: Path) -> None:
    import chromadb
    from chromadb.config import Settings

    store = build(tmp_path / "data", {f"note {number}.txt": "x\n" for number in range(40)}, real=True)
    folder = store.chroma().parent
    # What Chroma has worked into the files, it takes out of its queue.
    client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
    settings = {"hnsw": {"sync_threshold": 3, "batch_size": 2}}
    client.delete_collection("notes_index")
    made = client.create_collection("notes_index", configuration=settings, embedding_function=None)
    for key, text in store.texts().items():
        made.upsert(ids=[key], documents=[text], embeddings=[embed(text)], metadatas=[{"source_id": key}])
    numbers = [0.1] * DIMENSION
    expected = made.query(query_embeddings=[numbers], n_results=40)
    client.close()
    with store.opened(store.chroma()) as db:
        db.execute("DELETE FROM embeddings_queue WHERE seq_id <= (SELECT min(seq_id) FROM max_seq_id)")
    found = hits(store, "anything", "--vector", vector_file(tmp_path, numbers), "-k", 40)
    assert [hit["source_id"] for hit in found] == expected["ids"][0]
    assert [1 / hit["score"] - 1 for hit in found] == pytest.approx(expected["distances"][0], rel=1e-5)


def test_vectors_of_no_record_are_left_out_and_records_without_one_are_counted(
    store: AngelStore, tmp_path: Path
) -> None:
    keys = list(store.texts())
    store.drop_vectors(keys[0])
    store.put_vector("note_ghost", "a ghost", vector=[0.25] * DIMENSION)
    store.put_vector(keys[1], store.texts()[keys[1]], vector=[float("nan")] * DIMENSION)
    store.put_vector(keys[2], store.texts()[keys[2]], vector=[0.0] * DIMENSION)
    done = search(store, "anything", "--vector", vector_file(tmp_path, [0.25] * DIMENSION))
    assert {hit["source_id"] for hit in done.document["hits"]} == set(keys[3:])
    missing, orphans = done.document["notes"]
    assert missing.startswith("3 records without a usable vector")
    assert orphans.startswith("1 vector without a record")


def test_equal_distances_are_ordered_by_id(store: AngelStore, tmp_path: Path) -> None:
    for key, text in store.texts().items():
        store.put_vector(key, text, vector=[1.0] * DIMENSION)
    found = hits(store, "x", "--vector", vector_file(tmp_path, [0.5] * DIMENSION), "-k", 3)
    assert [hit["source_id"] for hit in found] == sorted(store.texts())[:3]


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--mode", "bm25"], "WrongUsage", "--mode bm25 is not for"),
        (["--mode", "hybrid"], "WrongUsage", "give --mode simple"),
        (["--mode", "vector"], "WrongUsage", "needs the vector of the query"),
        (["--base", "x"], "WrongUsage", "--base is not for"),
        (["--alpha", "0.5"], "WrongUsage", "--alpha is not for"),
        (["--raw"], "WrongUsage", "--raw is not for"),
        (["--as", "user:a"], "WrongUsage", "--as is not for"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(
    store: AngelStore, options: list[str], code: str, said: str
) -> None:
    assert said in refused(search(store, "hotels", *options), code)


def test_a_vector_of_another_length_is_refused(store: AngelStore, tmp_path: Path) -> None:
    message = refused(search(store, "x", "--vector", vector_file(tmp_path, [1.0, 2.0])), "QueryVectorUnfit")
    assert f"has 2 numbers, but those of base notes_index have {DIMENSION}" in message
    path = vector_file(tmp_path, [1.0] * DIMENSION)
    message = refused(search(store, "x", "--vector", path, "--mode", "simple"), "WrongUsage")
    assert "--mode simple searches tags" in message


def test_without_a_collection_a_search_by_vector_is_refused(tmp_path: Path) -> None:
    store = build(tmp_path / "data", NOTES, provider=None)
    message = refused(search(store, "x", "--vector", vector_file(tmp_path, [1.0] * DIMENSION)), "NotSearchable")
    assert "--mode simple" in message


def test_a_damaged_database_is_named(store: AngelStore) -> None:
    raw = bytearray(store.database.read_bytes())
    raw[100:4096] = struct.pack("<I", 0xFFFFFFFF) * ((4096 - 100) // 4)
    store.database.write_bytes(raw)
    assert "simple_memory.db" in refused(search(store, "hotels"), "SourceUnreadable")


def test_simple_mode_is_refused_for_bases(tmp_path: Path) -> None:
    from search_model import Body, write_index

    index = write_index(tmp_path / "index.sqlite", [Body("some text")])
    done = run("search", index, "text", "--mode", "simple", "--json")
    assert "only notes of AngelMemory can be searched by tags" in refused(done, "WrongUsage")
