"""``repair`` of folders of Chroma: every vector that is proven reads back through Chroma's API, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chroma_fixtures import read
from chroma_store import (
    DIMENSION,
    ELEMENT,
    FULL_TEXT,
    VERSIONS,
    ChromaStore,
    Damage,
    check,
    cut_elements,
    cut_file,
    cut_full_text,
    cut_norms,
    destroy_header,
    extract,
    forge_count,
    forge_field,
    forget_tables,
    hostile_labels,
    mix_numbers,
    opened,
    overwrite_links,
    provable,
    purge_queue,
    read_label_map,
    read_vector,
    read_vectors,
    remove_labels,
    state_dimension,
)
from extras import needs
from faults import posix
from harness import Outcome, run, snapshot
from toys import killed_at_or_before, quick_disk, steps_of

from regraft.formats.chroma import core
from regraft.formats.chroma.core import ChromaFailed
from repair.chroma import rebuild

pytestmark = needs("chroma")


@pytest.fixture
def store(tmp_path: Path) -> ChromaStore:
    return extract("1.5", tmp_path)


def repair(path: Path, *options: object) -> dict[str, Any]:
    found = run("repair", path, "--yes", "--json", *options)
    assert found.status in (0, 1), found.stderr
    return found.document


def lost_ids(document: dict[str, Any], base: str) -> set[str]:
    return {
        one["subject"] for one in document["left"] if one["finding"] == "chroma.vector-missing" and one["base"] == base
    }


def assert_reads_back(store: ChromaStore, copy: Path, lost: dict[str, set[str]], *, rounded: bool = False) -> None:
    """Compare what chromadb reads from a copy with what it read before the damage; only lost ids have no vector."""
    import numpy as np

    with opened(store.root, copy) as client:
        for name, expected in store.expected.items():
            found = read_vectors(client, name)
            assert found.keys() == expected.keys()
            assert {key for key, vector in found.items() if vector is None} == lost.get(name, set())
            for key, vector in found.items():
                if vector is not None and vector != expected[key]["vector"]:
                    # Normalized by Chroma once more, since only the queue had it.
                    pair = [np.frombuffer(bytes.fromhex(one), "<f4") for one in (vector, expected[key]["vector"])]
                    assert rounded, key
                    assert np.allclose(*pair, rtol=4e-7, atol=1e-8)


ALL_PROVEN: dict[str, Damage] = {
    "upper links": overwrite_links,
    "no header": destroy_header,
    "upper links, cosine": lambda store: overwrite_links(store, "angles"),
    "no header, cosine": lambda store: destroy_header(store, "angles"),
    "too few elements": lambda store: forge_count(store, 9),
    "too few elements, cosine": lambda store: forge_count(store, 30, "angles"),
    "full text": cut_full_text,
    "mixed numbers": mix_numbers,
    "too large a capacity": lambda store: forge_field(store, "<Q", 12, 1 << 34),
    "another dimension": state_dimension,
}


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ALL_PROVEN)
def test_damage_that_no_vector_is_in_costs_no_vector(damage: str, store: ChromaStore, tmp_path: Path) -> None:
    before = store.rows("SELECT * FROM embedding_metadata ORDER BY id, key")
    ALL_PROVEN[damage](store)
    document = repair(store.root)
    assert document["left"] == []
    assert check(store.root) == {}
    assert store.rows("SELECT * FROM embedding_metadata ORDER BY id, key") == before
    assert_reads_back(store, tmp_path / "copy", {})


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("inside", ["link_lists.bin", "length.bin"])
def test_a_segment_with_a_link_is_left_and_the_others_are_repaired(
    inside: str, store: ChromaStore, tmp_path: Path
) -> None:
    path = store.folder("plain") / inside
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    overwrite_links(store, "angles")
    elsewhere = (tmp_path / "elsewhere").stat().st_mtime_ns
    planned = run("repair", store.root, "--dry-run", "--json").document
    document = repair(store.root)
    for made in (planned, document):
        actions = [(one["action"], one["base"]) for one in made["actions"]]
        assert actions == [("rebuild-segment", store.collection_id("angles"))]
    reasons = {one["reason"] for one in document["left"] if one["base"] == store.collection_id("plain")}
    assert f"{path.name} is a link or a pipe, and left as it is; replace it by a file or a folder" in reasons
    assert path.is_symlink()
    assert (tmp_path / "elsewhere").stat().st_mtime_ns == elsewhere
    assert "graph" not in check(store.root)


@pytest.mark.thorough
@posix
def test_a_pipe_in_the_place_of_a_segment_is_left(store: ChromaStore, tmp_path: Path) -> None:
    """Undo data has no pipes."""
    store.folder("plain").rename(tmp_path / "elsewhere")
    os.mkfifo(store.folder("plain"))
    overwrite_links(store, "angles")
    document = repair(store.root)
    assert {one["base"] for one in document["actions"]} == {store.collection_id("angles")}
    reasons = {one["reason"] for one in document["left"] if one["base"] == store.collection_id("plain")}
    name = store.folder("plain").name
    assert f"{name} is a link or a pipe, and left as it is; replace it by a file or a folder" in reasons
    assert store.folder("plain").is_fifo()
    assert run("undo", store.root, "--yes").status == 0


@pytest.mark.thorough
@pytest.mark.parametrize("value", ["text", b"", bytes(8)])
def test_a_vector_of_the_queue_that_is_none_is_not_taken(value: str | bytes, store: ChromaStore) -> None:
    """Operations that the segment has are no longer read by Chroma, so they do no harm."""
    remove_labels(store)
    known = repair(store.copy_into(store.root.parent).root)
    key = store.collection_id("plain")
    taken = store.rows(
        "SELECT id FROM embeddings_queue WHERE substr(topic, -36) = ? AND vector IS NOT NULL AND id <> 'late'", key
    )
    ((spoiled,), *_) = taken
    store.execute("UPDATE embeddings_queue SET vector = ? WHERE id = ? AND substr(topic, -36) = ?", value, spoiled, key)
    document = repair(store.root)
    assert lost_ids(document, key) == lost_ids(known, key) | {spoiled}


@pytest.mark.thorough
def test_a_folder_of_an_older_version_keeps_its_form(tmp_path: Path) -> None:
    store = extract("0.6", tmp_path)
    migrations = store.rows("SELECT dir, version FROM migrations ORDER BY 1, 2")
    overwrite_links(store)
    overwrite_links(store, "angles")
    assert repair(store.root)["left"] == []
    assert check(store.root) == {}
    assert store.rows("SELECT dir, version FROM migrations ORDER BY 1, 2") == migrations
    for name in ("plain", "angles"):
        # Versions up to 0.6 load nothing but an instance of their own class.
        assert b"PersistentData" in (store.folder(name) / "index_metadata.pickle").read_bytes()
    assert_reads_back(store, tmp_path / "copy", {}, rounded=True)


@pytest.mark.thorough
def test_a_segment_with_other_links_than_usual_is_read_without_its_header(tmp_path: Path) -> None:
    import chromadb
    import numpy as np
    from chromadb.config import Settings

    numbers = np.random.default_rng(20261127).normal(size=(40, DIMENSION)).astype("<f4")
    client = chromadb.PersistentClient(path=str(tmp_path / "chroma"), settings=Settings(anonymized_telemetry=False))
    configuration: Any = {"hnsw": {"space": "l2", "max_neighbors": 6, "sync_threshold": 5, "batch_size": 2}}
    collection = client.create_collection("plain", embedding_function=None, configuration=configuration)
    for at, vector in enumerate(numbers):
        collection.add(ids=[f"id{at}"], embeddings=[vector.tolist()], documents=[f"Text {at}"])
    client.close()
    expected = {f"id{at}": {"vector": vector.tobytes().hex()} for at, vector in enumerate(numbers)}
    store = ChromaStore(tmp_path / "chroma", {"plain": expected})
    destroy_header(store)
    assert repair(store.root)["left"] == []
    assert check(store.root) == {}
    assert_reads_back(store, tmp_path / "copy", {})


@pytest.mark.thorough
def test_a_rebuild_that_fails_keeps_one_copy_of_the_old_segment(
    store: ChromaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(function: Callable[..., Any], *args: Any) -> Any:
        if function is rebuild._build:
            raise ChromaFailed("InternalError: out of handles")
        return real(function, *args)

    real = core.run_in_child
    remove_labels(store)
    before = {path.name: path.read_bytes() for path in store.folder("plain").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(core, "run_in_child", fails)
        for status in (3, 2, 2):
            failed = run("repair", store.root, "--yes")
            assert failed.status == status
            assert "chromadb cannot use it: InternalError: out of handles" in failed.stderr
            assert {path.name: path.read_bytes() for path in store.folder("plain").iterdir()} == before
            (kept,) = store.root.glob("*.unproven*")
            assert {path.name: path.read_bytes() for path in kept.iterdir() if path.suffix != ".json"} == before
    # A later run needs no other copy.
    assert [one["action"] for one in repair(store.root)["actions"]] == ["rebuild-segment"]
    assert list(store.root.glob("*.unproven*")) == [kept]


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["0.4", "0.6"])
def test_a_label_map_of_an_older_version_keeps_the_number_of_each_operation(version: str, tmp_path: Path) -> None:
    """Versions up to 0.4 raise KeyError for each id that has none."""
    store = extract(version, tmp_path)
    before = {name: read_label_map(store, name) for name in ("plain", "angles")}
    for name in before:
        overwrite_links(store, name)
    repair(store.root)
    for name, old in before.items():
        new = read_label_map(store, name)
        assert new["id_to_seq_id"].keys() == new["id_to_label"].keys()
        assert new["max_seq_id"] == old.get("max_seq_id")
        # An entry whose metadata a later operation changed has a later number.
        kept = new["id_to_seq_id"].keys() & old["id_to_seq_id"].keys() - {"id12"}
        assert len(kept) > 60
        assert {key: new["id_to_seq_id"][key] for key in kept} == {key: old["id_to_seq_id"][key] for key in kept}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_entry_is_named_with_the_copy_of_its_text_if_its_document_is_lost_too(
    version: str, tmp_path: Path
) -> None:
    store = extract(version, tmp_path)
    store.execute("DELETE FROM embeddings_queue")
    remove_labels(store)
    store.execute("DELETE FROM embedding_metadata WHERE id % 2 = 0 AND key = 'chroma:document'")
    before = snapshot(store.root)
    document = run("repair", store.root, "--dry-run", "--json", "--base", "plain").document
    query = "SELECT embedding_id FROM embeddings WHERE segment_id = ?"
    ids = {key for (key,) in store.rows(query, store.segment("plain", "METADATA"))}
    reasons = {one["subject"]: one["reason"] for one in document["left"] if one["finding"] == "chroma.vector-missing"}
    assert reasons.keys() == ids
    for key in ids & store.expected["plain"].keys():
        assert f"({store.expected['plain'][key]['document']})" in reasons[key]
    assert snapshot(store.root) == before


@pytest.mark.thorough
def test_a_purged_queue_of_an_older_version_without_labels_names_the_lost_ids(tmp_path: Path) -> None:
    """Only the label map has the number of the last operation of its segment."""
    store = extract("0.4", tmp_path)
    last = read_label_map(store, "plain")["max_seq_id"]
    topic = (last, store.collection_id("plain"))
    store.execute("DELETE FROM embeddings_queue WHERE seq_id <= ? AND substr(topic, -36) = ?", *topic)
    query = "SELECT id FROM embeddings_queue WHERE vector IS NOT NULL AND substr(topic, -36) = ?"
    queued = {key for (key,) in store.rows(query, store.collection_id("plain"))}
    remove_labels(store)
    before = (store.folder("plain") / "data_level0.bin").read_bytes()
    assert {"labels-missing", "vector-missing"} <= check(store.root).keys()
    document = repair(store.root)
    lost = store.expected["plain"].keys() - queued
    assert lost_ids(document, store.collection_id("plain")) == lost
    assert (store.root / f"{store.segment('plain')}.unproven" / "data_level0.bin").read_bytes() == before
    assert check(store.root).keys() == {"vector-missing"}
    assert_has_whole_queue(store)
    assert_reads_back(store, tmp_path / "copy", {"plain": lost}, rounded=True)


def assert_has_whole_queue(store: ChromaStore) -> None:
    """Versions up to 0.4 skip operations up to the next one if the label map has no number, or 0."""
    query = "SELECT max(seq_id) FROM embeddings_queue WHERE substr(topic, -36) = ?"
    ((last,),) = store.rows(query, store.collection_id("plain"))
    assert read_label_map(store, "plain")["max_seq_id"] == last


def garbled_labels(store: ChromaStore) -> None:
    file = store.folder("plain") / "index_metadata.pickle"
    file.write_bytes(file.read_bytes()[:300])


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [hostile_labels, garbled_labels])
def test_a_whole_queue_of_an_older_version_replaces_labels_that_cannot_be_read(damage: Damage, tmp_path: Path) -> None:
    """Chroma 0.4 cannot open such a segment, although its queue has every vector."""
    store = extract("0.4", tmp_path)
    damage(store)
    document = repair(store.root)
    assert document["left"] == []
    assert check(store.root) == {}
    assert_has_whole_queue(store)
    assert_reads_back(store, tmp_path / "copy", {}, rounded=True)


@pytest.mark.parametrize(("version", "kind"), [("0.4", "blob"), ("0.6", "blob"), ("1.5", "integer")])
def test_mixed_numbers_become_those_of_the_version_that_writes(version: str, kind: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    before = {
        table: store.rows(f"SELECT segment_id, seq_id FROM {table} ORDER BY rowid")
        for table in ("embeddings", "max_seq_id")
    }
    mix_numbers(store)
    segment = store.segment("single", "METADATA")
    ((number,),) = store.rows("SELECT seq_id FROM max_seq_id WHERE segment_id = ?", segment)
    other = int.from_bytes(number, "big") if kind == "blob" else number.to_bytes(8, "big")
    store.execute("UPDATE max_seq_id SET seq_id = ? WHERE segment_id = ?", other, segment)
    assert "seq-id-mixed" in check(store.root)
    document = repair(store.root)
    assert [one["action"] for one in document["actions"]] == ["convert-numbers"]
    assert "seq-id-mixed" not in check(store.root)
    for table, rows in before.items():
        assert {one for (one,) in store.rows(f"SELECT typeof(seq_id) FROM {table}")} == {kind}
        assert store.rows(f"SELECT segment_id, seq_id FROM {table} ORDER BY rowid") == rows


def test_only_the_number_of_dimensions_is_corrected(store: ChromaStore, tmp_path: Path) -> None:
    files = {path: path.read_bytes() for path in store.root.rglob("*.bin")}
    before = store.rows("SELECT * FROM collections ORDER BY name")
    state_dimension(store)
    damaged = {name: raw for name, (_, _, raw) in snapshot(store.root).items()}
    document = repair(store.root)
    assert [(one["action"], one["base"]) for one in document["actions"]] == [
        ("set-dimension", store.collection_id("plain"))
    ]
    assert document["actions"][0]["message"] == "correct the dimensions of plain in its row from 3 to 16"
    assert store.rows("SELECT * FROM collections ORDER BY name") == before
    assert {path: path.read_bytes() for path in store.root.rglob("*.bin") if ".regraft" not in path.parts} == files
    assert_reads_back(store, tmp_path / "copy", {})
    assert run("undo", store.root, "--yes").status == 0
    assert {name: raw for name, (_, _, raw) in snapshot(store.root).items() if ".regraft" not in name} == damaged


@pytest.mark.parametrize("stated", [0, -1, 1 << 40, "text", b"16", 16.5])
def test_a_number_that_is_no_dimension_is_corrected(stated: object, store: ChromaStore) -> None:
    before = store.rows("SELECT * FROM collections ORDER BY name")
    store.execute("UPDATE collections SET dimension = ? WHERE name = 'plain'", stated)
    assert "dimension-wrong" in check(store.root)
    assert [one["action"] for one in repair(store.root)["actions"]] == ["set-dimension"]
    assert store.rows("SELECT * FROM collections ORDER BY name") == before
    assert check(store.root) == {}


@pytest.mark.thorough
def test_a_dimension_is_corrected_together_with_the_segment(store: ChromaStore, tmp_path: Path) -> None:
    overwrite_links(store)
    state_dimension(store)
    document = repair(store.root)
    assert {one["action"] for one in document["actions"]} == {"set-dimension", "rebuild-segment"}
    assert document["left"] == []
    assert check(store.root) == {}
    assert_reads_back(store, tmp_path / "copy", {})


def test_one_file_alone_does_not_correct_a_dimension(store: ChromaStore) -> None:
    """The segment may be that of another collection."""
    purge_queue(store)
    store.execute("DELETE FROM embeddings_queue")
    remove_labels(store)
    state_dimension(store)
    assert "dimension-wrong" not in check(store.root)


def test_half_of_the_elements_are_kept_and_the_others_named(store: ChromaStore, tmp_path: Path) -> None:
    cut_elements(store)
    document = repair(store.root)
    lost = lost_ids(document, store.collection_id("plain"))
    assert 30 < len(lost) < len(store.expected["plain"])
    reasons = {one["subject"]: one["reason"] for one in document["left"]}
    for key in lost:
        assert f"Text {key.removeprefix('id')} of plain" in reasons[key] or "Back again" in reasons[key]
    assert check(store.root).keys() == {"vector-missing"}
    assert_reads_back(store, tmp_path / "copy", {"plain": lost})


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [remove_labels, hostile_labels])
def test_without_labels_only_what_the_queue_proves_is_kept(damage: Damage, store: ChromaStore, tmp_path: Path) -> None:
    damage(store)
    elements = (store.folder("plain") / "data_level0.bin").read_bytes()
    document = repair(store.root)
    lost = lost_ids(document, store.collection_id("plain"))
    assert lost
    assert lost < store.expected["plain"].keys()
    # The old files are the last copy of the vectors that nothing proves.
    kept = store.root / f"{store.segment('plain')}.unproven" / "data_level0.bin"
    assert kept.read_bytes() == elements
    assert check(store.root).keys() == {"vector-missing"}
    assert_reads_back(store, tmp_path / "copy", {"plain": lost})
    assert run("undo", store.root, "--yes", "--json").status == 0
    assert "vector-missing" in check(store.root)


def write_in_order(folder: Path) -> ChromaStore:
    """Write a folder whose order of insertion was never changed, with the installed chromadb."""
    import chromadb
    import numpy as np
    from chromadb.config import Settings

    client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
    collection = client.create_collection(
        "plain", embedding_function=None, metadata={"hnsw:sync_threshold": 20, "hnsw:batch_size": 10}
    )
    vectors = np.random.default_rng(7).normal(size=(64, 16)).astype("<f4")
    ids = [f"id{number}" for number in range(64)]
    for start in range(0, 64, 8):
        part = ids[start : start + 8]
        collection.add(ids=part, embeddings=vectors[start : start + 8], documents=[f"Text of {key}" for key in part])
    client.close()
    expected = {key: {"vector": vector.tobytes().hex()} for key, vector in zip(ids, vectors, strict=True)}
    return ChromaStore(folder, {"plain": expected})


@pytest.mark.thorough
def test_unproven_vectors_are_kept_only_if_asked_for(tmp_path: Path) -> None:
    store = write_in_order(tmp_path / "ordered")
    remove_labels(store)
    shutil.copytree(store.root, tmp_path / "other")
    lost = lost_ids(repair(store.root), store.collection_id("plain"))
    assert len(lost) > 20
    assert_reads_back(store, tmp_path / "copy", {"plain": lost})

    other = ChromaStore(tmp_path / "other", store.expected)
    assert lost_ids(repair(other.root, "--unproven"), other.collection_id("plain")) == set()
    assert check(other.root) == {}
    assert_reads_back(other, tmp_path / "copy2", {})


#: The files of a segment, and the distances of the collections.
SEGMENT_FILES = ("header.bin", "data_level0.bin", "link_lists.bin", "length.bin", "index_metadata.pickle")
DISTANCES = {"plain": "l2", "angles": "cosine", "products": "ip"}


def kept_elements(store: ChromaStore, file: str, name: str) -> int:
    """Return the number of elements whose vector is left when a file is cut in half."""
    half = (store.folder(name) / file).stat().st_size // 2
    if file == "data_level0.bin":
        return half // ELEMENT
    if file == "length.bin" and DISTANCES[name] == "cosine":
        return half // 4
    return len(store.positions(name))


@pytest.mark.thorough
@pytest.mark.parametrize("file", SEGMENT_FILES)
@pytest.mark.parametrize("version", ["0.4", "0.6", "1.5"])
def test_a_file_that_is_cut_in_half_leaves_no_wrong_vector(version: str, file: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    purge_queue(store)
    has_labels = file != "index_metadata.pickle"
    known = {name: provable(store, name, kept_elements(store, file, name), has_labels=has_labels) for name in DISTANCES}
    for name in DISTANCES:
        cut_file(store, file, name)
    files = contents(store)
    document = repair(store.root)
    lost = {name: store.expected[name].keys() - known[name] for name in DISTANCES}
    assert {name: lost_ids(document, store.collection_id(name)) for name in DISTANCES} == lost
    # Without its labels, and with a purged queue, nothing of a segment is proven.
    left = check(store.root).keys() - (set() if has_labels else {"segment-missing"})
    assert left == ({"vector-missing"} if any(lost.values()) else set())
    assert_reads_back(store, tmp_path / "copy", lost, rounded=version != "1.5")
    if document["actions"]:
        # Versions before 1.0 write unused space after the elements and the lengths.
        assert run("undo", store.root, "--yes", "--json").status == 0
    assert contents(store) == files


def contents(store: ChromaStore) -> dict[str, Any]:
    """Return the content of every file but regraft's own."""
    return {name: content for name, (*_, content) in snapshot(store.root).items() if not name.startswith(".regraft")}


def cut_lengths(store: ChromaStore) -> tuple[set[str], dict[str, bytes]]:
    """Cut the lengths of a collection whose queue is purged; returns the lost ids, and their unit vectors."""
    purge_queue(store)
    lost = store.expected["angles"].keys() - provable(store, "angles", kept_elements(store, "length.bin", "angles"))
    labels = read_label_map(store, "angles")["id_to_label"]
    units = {key: read_vector(store, labels[key], "angles") for key in lost}
    cut_file(store, "length.bin", "angles")
    return lost, units


@pytest.mark.thorough
def test_vectors_without_their_length_are_left_out_and_named(store: ChromaStore, tmp_path: Path) -> None:
    """Chroma returns zeros for them, or garbage."""
    lost, _ = cut_lengths(store)
    assert len(lost) > 30
    with opened(store.root, tmp_path / "before") as client:
        found = read_vectors(client, "angles")
    assert any(found[key] != store.expected["angles"][key]["vector"] for key in lost)
    files = contents(store)
    document = repair(store.root)
    assert [one["action"] for one in document["actions"]] == ["keep-segment", "rebuild-segment"]
    assert f"{len(lost)} entries without a proven vector are left out" in document["actions"][1]["message"]
    assert {one["subject"] for one in document["left"]} == lost
    for one in document["left"]:
        assert one["finding"] == "chroma.vector-missing"
        assert one["reason"].startswith(f"{one['subject']} (")
        assert one["reason"].endswith(
            "): the length of its vector is lost; --unproven keeps it with length 1, and regraft backfill embeds "
            "its text"
        )
    assert check(store.root).keys() == {"vector-missing"}
    assert_reads_back(store, tmp_path / "copy", {"angles": lost})
    kept = store.root / f"{store.segment('angles')}.unproven"
    assert {name: (kept / name).read_bytes() for name in SEGMENT_FILES} == {
        name: files[f"{store.segment('angles')}/{name}"] for name in SEGMENT_FILES
    }
    assert run("undo", store.root, "--yes", "--json").status == 0
    assert contents(store) == files


@pytest.mark.thorough
def test_kept_files_give_unproven_vectors_to_a_later_repair(store: ChromaStore, tmp_path: Path) -> None:
    lost, units = cut_lengths(store)
    repair(store.root)
    files = contents(store)
    # An entry that was changed since may have another text.
    changed = min(lost)
    ((number,),) = store.rows("SELECT max(seq_id) FROM embeddings")
    row = (number + 1, store.segment("angles", "METADATA"), changed)
    store.execute("UPDATE embeddings SET seq_id = ? WHERE segment_id = ? AND embedding_id = ?", *row)
    document = repair(store.root, "--unproven")
    assert [one["action"] for one in document["actions"]] == ["rebuild-segment"]
    assert document["actions"][0]["finding"] == "chroma.vector-missing"
    assert lost_ids(document, store.collection_id("angles")) == {changed}
    assert check(store.root).keys() == {"vector-missing"}
    with opened(store.root, tmp_path / "copy") as client:
        found = read_vectors(client, "angles")
    for key, one in store.expected["angles"].items():
        expected = one["vector"] if key not in lost else None if key == changed else units[key].hex()
        assert found[key] == expected
    assert run("undo", store.root, "--yes", "--json").status == 0
    store.execute("UPDATE embeddings SET seq_id = ? WHERE segment_id = ? AND embedding_id = ?", 1, *row[1:])
    assert {name: one for name, one in contents(store).items() if name != "chroma.sqlite3"} == {
        name: one for name, one in files.items() if name != "chroma.sqlite3"
    }
    assert lost_ids(repair(store.root, "--unproven"), store.collection_id("angles")) == set()
    assert check(store.root) == {}


@pytest.mark.thorough
def test_a_lost_label_map_and_kept_files_give_the_same_as_unproven_at_once(tmp_path: Path) -> None:
    store = write_in_order(tmp_path / "ordered")
    remove_labels(store)
    repair(store.root)
    document = repair(store.root, "--unproven")
    assert [one["action"] for one in document["actions"]] == ["rebuild-segment"]
    assert document["left"] == []
    assert check(store.root) == {}
    assert_reads_back(store, tmp_path / "copy", {})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "note", [b"", b"[]", b'{"applied": -1, "last": 5}', b'{"applied": 1, "last": 99999999999999999999}']
)
def test_kept_files_whose_operations_are_unknown_are_not_used(note: bytes, store: ChromaStore) -> None:
    lost, _ = cut_lengths(store)
    repair(store.root)
    (store.root / f"{store.segment('angles')}.unproven" / "regraft.json").write_bytes(note)
    before = contents(store)
    assert repair(store.root, "--unproven")["actions"] == []
    assert contents(store) == before
    assert {one["samples"][0] for one in check(store.root)["vector-missing"]} <= lost


@pytest.mark.thorough
@pytest.mark.parametrize("taken_by", ["a file", pytest.param("a link", marks=posix)])
def test_a_name_that_another_program_took_is_no_kept_copy(taken_by: str, store: ChromaStore, tmp_path: Path) -> None:
    remove_labels(store)
    folder = store.folder("plain")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    taken = store.root / f"{folder.name}.unproven"
    elsewhere = tmp_path / "elsewhere"
    if taken_by == "a file":
        taken.write_bytes(b"mine")
    else:
        shutil.copytree(folder, elsewhere)
        (elsewhere / "regraft.json").write_bytes(b"{}")
        taken.symlink_to(elsewhere, target_is_directory=True)
    repair(store.root)
    kept = store.root / f"{folder.name}.unproven-2"
    assert {path.name: path.read_bytes() for path in kept.iterdir() if path.name != "regraft.json"} == before
    if taken_by == "a file":
        assert taken.read_bytes() == b"mine"
    else:
        assert taken.is_symlink()
        assert (elsewhere / "regraft.json").read_bytes() == b"{}"


def test_a_segment_without_any_proven_vector_is_set_aside(store: ChromaStore, tmp_path: Path) -> None:
    purge_queue(store)
    labels = read_label_map(store, "products")["id_to_label"]
    queued = provable(store, "products", 0, has_labels=False)
    store.execute("DELETE FROM embeddings_queue WHERE substr(topic, -36) = ?", store.collection_id("products"))
    lost = store.expected["products"].keys() - (queued - labels.keys())
    (store.folder("products") / "index_metadata.pickle").write_bytes(b"")
    files = contents(store)
    document = repair(store.root)
    assert [one["action"] for one in document["actions"]] == ["keep-segment", "remove-segment"]
    assert lost <= lost_ids(document, store.collection_id("products"))
    assert not store.folder("products").exists()
    kept = store.root / f"{store.segment('products')}.unproven" / "data_level0.bin"
    assert kept.read_bytes() == files[f"{store.segment('products')}/data_level0.bin"]
    with opened(store.root, tmp_path / "copy") as client:
        collection = client.get_collection("products", embedding_function=None)
        assert set(collection.get()["ids"]) == store.expected["products"].keys()
        assert set(read_vectors(client, "products").values()) == {None}
    assert run("repair", store.root, "--yes", "--json").document["actions"] == []
    assert run("undo", store.root, "--yes", "--json").status == 0
    assert contents(store) == files


def write_with_queue(folder: Path, operation: str) -> tuple[ChromaStore, Any]:
    """Write a cosine collection of 64 entries, and an operation with another vector of the last one in the queue."""
    import chromadb
    import numpy as np
    from chromadb.config import Settings

    client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
    settings = {"hnsw:space": "cosine", "hnsw:M": 24, "hnsw:sync_threshold": 20, "hnsw:batch_size": 10}
    collection = client.create_collection("angles", embedding_function=None, metadata=settings)
    vectors = np.random.default_rng(7).normal(size=(65, DIMENSION)).astype("<f4")
    ids = [f"id{number:02}" for number in range(64)]
    for start in range(0, 64, 8):
        part = ids[start : start + 8]
        collection.add(ids=part, embeddings=vectors[start : start + 8], documents=[f"Text of {key}" for key in part])
    getattr(collection, operation)(ids=["id40"], embeddings=vectors[64:], documents=["Text of id40"])
    expected = read(collection)
    client.close()
    store = ChromaStore(folder, {"angles": expected})
    purge_queue(store)
    return store, vectors[64]


@pytest.mark.thorough
@pytest.mark.parametrize("operation", ["add", "update", "upsert"])
@pytest.mark.parametrize("file", ["length.bin", "index_metadata.pickle"])
def test_an_operation_of_the_queue_keeps_its_meaning(operation: str, file: str, tmp_path: Path) -> None:
    """Chroma ignores the addition of an id that exists, and the update of one that does not."""
    import numpy as np

    store, other = write_with_queue(tmp_path / "chroma", operation)
    path = store.folder("angles") / file
    # The element of id40, which is one of the last ones, has no length any more.
    path.write_bytes(path.read_bytes()[: 80 if file == "length.bin" else 40])
    document = repair(store.root)
    named = lost_ids(document, store.collection_id("angles"))
    with opened(store.root, tmp_path / "copy") as client:
        found = read_vectors(client, "angles")
    assert {key for key, vector in found.items() if vector is None} == named
    for key, vector in found.items():
        if vector is not None:
            pair = [
                np.frombuffer(bytes.fromhex(one), "<f4") for one in (vector, store.expected["angles"][key]["vector"])
            ]
            assert np.allclose(*pair, rtol=4e-7, atol=1e-8), key
    assert ("id40" in named) == (operation == "add")
    assert ("empty-operations" in {one["action"] for one in document["actions"]}) == (operation == "add")
    if operation != "add":
        pair = [np.frombuffer(bytes.fromhex(str(found["id40"])), "<f4"), other]
        assert np.allclose(*pair, rtol=4e-7, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0, 50, 99])
def test_a_header_that_was_cut_is_derived_from_the_settings_of_the_collection(size: int, tmp_path: Path) -> None:
    """With another number of links than the default, elements have another size."""
    store, _ = write_with_queue(tmp_path / "chroma", "upsert")
    header = store.folder("angles") / "header.bin"
    header.write_bytes(header.read_bytes()[:size])
    assert repair(store.root)["left"] == []
    assert check(store.root) == {}
    assert_reads_back(store, tmp_path / "copy", {}, rounded=True)


def test_elements_of_an_unknown_size_are_not_read(tmp_path: Path) -> None:
    store, _ = write_with_queue(tmp_path / "chroma", "upsert")
    (store.folder("angles") / "header.bin").write_bytes(b"")
    store.execute("UPDATE collection_metadata SET int_value = 16 WHERE key = 'hnsw:M'")
    for column in ("config_json_str", "schema_str"):
        store.execute(f"UPDATE collections SET {column} = replace({column}, '24', '16')")
    messages = [one["message"] for one in check(store.root)["segment-missing"]]
    assert messages == ["its vector segment cannot be used: without a header, the size of its elements is unknown"]
    document = repair(store.root)
    queued = provable(store, "angles", 0, has_labels=False)
    assert lost_ids(document, store.collection_id("angles")) == store.expected["angles"].keys() - queued
    assert_reads_back(store, tmp_path / "copy", {"angles": store.expected["angles"].keys() - queued}, rounded=True)


@pytest.mark.thorough
def test_vectors_without_their_length_are_kept_with_length_1(store: ChromaStore, tmp_path: Path) -> None:
    import numpy as np

    cut_norms(store)
    repair(store.root, "--unproven")
    assert check(store.root) == {}
    with opened(store.root, tmp_path / "copy") as client:
        found = read_vectors(client, "angles")
    for key, vector in found.items():
        assert vector is not None
        pair = (np.frombuffer(bytes.fromhex(one), "<f4") for one in (vector, store.expected["angles"][key]["vector"]))
        units = [one / np.linalg.norm(one) for one in pair]
        assert np.allclose(*units, rtol=0, atol=1e-6)


def test_unproven_is_refused_for_other_stores(tmp_path: Path) -> None:
    from planted_v2 import library

    found = run("repair", library(tmp_path), "--unproven", "--yes")
    assert found.status == 2
    assert "--unproven applies only to a folder of Chroma" in found.stderr


def test_undo_restores_every_byte(store: ChromaStore) -> None:
    overwrite_links(store)
    cut_full_text(store)
    before = {name: content for name, (*_, content) in snapshot(store.root).items()}
    repair(store.root)
    assert check(store.root) == {}
    assert run("undo", store.root, "--yes", "--json").status == 0
    after = {name: content for name, (*_, content) in snapshot(store.root).items() if not name.startswith(".regraft")}
    assert after == before


def test_the_full_text_is_that_of_the_documents_again(store: ChromaStore) -> None:
    cut_full_text(store)
    repair(store.root)
    found = store.rows(f"SELECT count(*) FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH '\"Text 20 of\"'")
    assert found == [(3,)]


_PARTS = tuple(f"{FULL_TEXT}_{part}" for part in ("data", "idx", "content", "docsize", "config"))


@pytest.mark.parametrize(
    "names", [(FULL_TEXT,), (FULL_TEXT, *_PARTS), (FULL_TEXT, f"{FULL_TEXT}_idx"), (_PARTS[2],), (_PARTS[0], _PARTS[4])]
)
def test_missing_tables_of_the_full_text_index_are_created(
    names: tuple[str, ...], store: ChromaStore, tmp_path: Path
) -> None:
    store.execute(f"INSERT INTO {FULL_TEXT} (rowid, string_value) VALUES (999, 'a text of no document')")
    forget_tables(store, *names)
    before = store.database.read_bytes()
    others = {
        name: store.rows(f"SELECT * FROM {name}")
        for (name,) in store.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")
        if not name.startswith(FULL_TEXT)
    }
    document = repair(store.root)
    assert [one["action"] for one in document["actions"]] == ["rebuild-full-text"]
    assert {name: store.rows(f"SELECT * FROM {name}") for name in others} == others
    copy = store.copy_into(tmp_path)
    copy.execute(f"INSERT INTO {FULL_TEXT} ({FULL_TEXT}, rank) VALUES ('integrity-check', 1)")
    assert copy.rows("PRAGMA integrity_check") == [("ok",)]
    documents = dict(copy.rows("SELECT id, string_value FROM embedding_metadata WHERE key = 'chroma:document'"))
    left = {999: "a text of no document"} if _PARTS[2] not in names else {}
    assert dict(copy.rows(f"SELECT rowid, string_value FROM {FULL_TEXT}")) == documents | left
    for number, text in documents.items():
        found = copy.rows(f"SELECT rowid FROM {FULL_TEXT} WHERE {FULL_TEXT} MATCH ?", f'"{text}"')
        assert (number,) in found
    with opened(store.root, tmp_path / "written") as client:
        collection = client.get_collection("plain", embedding_function=None)
        collection.add(ids=["new"], embeddings=[[0.5] * DIMENSION], documents=["A new document"])
        assert collection.get(where_document={"$contains": "new document"})["ids"] == ["new"]
    assert run("undo", store.root, "--yes").status == 0
    assert store.database.read_bytes() == before


def index_on_a_part(store: ChromaStore) -> str:
    """With such an index, FTS5's rebuild would end the process."""
    cut_full_text(store)
    store.execute(f"CREATE INDEX foreign_index ON {FULL_TEXT}_data (1)")
    return "foreign_index is an index on a table of the full-text index"


def part_of_other_columns(store: ChromaStore) -> str:
    forget_tables(store, f"{FULL_TEXT}_config")
    store.execute(f"CREATE TABLE {FULL_TEXT}_config (other)")
    return "has no column named k"


@pytest.mark.parametrize("damage", [index_on_a_part, part_of_other_columns])
def test_a_full_text_index_that_cannot_be_rebuilt_stops_no_other_repair(
    damage: Callable[[ChromaStore], str], store: ChromaStore
) -> None:
    why = damage(store)
    before, database = snapshot(store.root), store.database.read_bytes()
    planned = run("repair", store.root, "--dry-run", "--json").document
    found = run("repair", store.root, "--yes", "--json")
    for document in (planned, found.document):
        assert document["actions"] == []
        (one,) = document["left"]
        assert (one["finding"], one["subject"]) == ("chroma.full-text", "chroma.sqlite3")
        assert why in one["reason"]
    assert found.status == 1
    shown = {name: value for name, value in snapshot(store.root).items() if not name.startswith(".regraft")}
    assert shown == before
    overwrite_links(store)
    document = repair(store.root)
    assert [one["action"] for one in document["actions"]] == ["rebuild-segment"]
    assert [one["finding"] for one in document["left"]] == ["chroma.full-text"]
    assert check(store.root).keys() - {"sqlite-foreign"} == {"full-text"}
    assert store.database.read_bytes() == database


def test_a_folder_in_the_place_of_a_header_is_replaced(store: ChromaStore, tmp_path: Path) -> None:
    path = store.folder("plain") / "header.bin"
    path.unlink()
    path.mkdir()
    assert repair(store.root)["left"] == []
    assert check(store.root) == {}
    assert_reads_back(store, tmp_path / "copy", {})
    assert run("undo", store.root, "--yes").status == 0
    assert path.is_dir()


def test_entries_without_a_vector_are_named_with_the_command_that_embeds_them(store: ChromaStore) -> None:
    cut_elements(store)
    lost = lost_ids(repair(store.root), store.collection_id("plain"))
    before = snapshot(store.root)
    planned = run("repair", store.root, "--dry-run")
    assert planned.status == 1
    assert planned.stdout.splitlines()[-1] == f"Next: regraft backfill {store.root}"
    document = run("repair", store.root, "--dry-run", "--json").document
    assert document["actions"] == []
    assert lost_ids(document, store.collection_id("plain")) == lost
    assert snapshot(store.root) == before


@pytest.mark.thorough
def test_a_base_with_lost_entries_is_not_said_to_be_done(store: ChromaStore) -> None:
    cut_elements(store, "plain")
    cut_elements(store, "products")
    overwrite_links(store, "angles")
    shown = run("repair", store.root, "--yes").stdout
    assert f"Done: 1 of 3 bases, 2 in part. Changed: {store.root} and its .regraft." in shown.splitlines()
    (incomplete,) = [line for line in shown.splitlines() if line.startswith("Incomplete: ")]
    assert {"plain", "products"} == set(incomplete.removeprefix("Incomplete: ").split(" (")[0].split(", "))
    assert f"Next: regraft backfill {store.root}" in shown.splitlines()


def test_a_folder_in_use_is_not_written(store: ChromaStore) -> None:
    overwrite_links(store)
    before = snapshot(store.root)
    script = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(store.database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        found = run("repair", store.root, "--yes")
        holder.communicate("")
    assert found.status == 2
    assert "chroma.sqlite3 is open" in found.stderr
    assert snapshot(store.root) == before


def test_nothing_is_sent(store: ChromaStore) -> None:
    """Run the command in an interpreter, and in child processes, in which no socket can be made."""
    overwrite_links(store)
    script = (
        "import socket, sys\n"
        "def refuse(*args, **kwargs): raise AssertionError('a socket was made')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from regraft.__main__ import main\n"
        "if __name__ == '__main__': main()\n"
    )
    file = store.root.parent / "blocked.py"
    file.write_text(script, "utf-8")
    done = subprocess.run(
        [sys.executable, str(file), "repair", str(store.root), "--yes", "--json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["actions"][0]["action"] == "rebuild-segment"


def test_a_stray_segment_goes_to_the_trash_only_if_it_is_named(store: ChromaStore) -> None:
    stray = store.root / "0f0f0f0f-0000-4000-8000-000000000000"
    shutil.copytree(store.folder("plain"), stray)
    assert run("gc", store.root, "--yes", "--json").document["actions"] == []
    assert stray.is_dir()
    found = run("gc", store.root, "--only", "chroma.segment-orphan", "--yes", "--json").document
    assert [one["action"] for one in found["actions"]] == ["trash-segment"]
    assert not stray.exists()
    assert run("undo", store.root, "--yes", "--json").status == 0
    assert (stray / "data_level0.bin").read_bytes() == (store.folder("plain") / "data_level0.bin").read_bytes()


@pytest.mark.thorough
@posix
def test_a_kill_leaves_the_old_or_the_new_segment(store: ChromaStore, tmp_path: Path) -> None:
    """The graph of a new segment is another one each time, so a segment is judged by what it has, not by its bytes."""
    overwrite_links(store)
    old = (store.folder("plain") / "link_lists.bin").read_bytes()
    with quick_disk() as disk:

        def work(one: ChromaStore) -> Outcome:
            return run("repair", one.root, "--yes")

        first = store.copy_into(tmp_path)
        steps = steps_of(disk, lambda: work(first))
        for at in (len(steps) // 4, len(steps) // 2, 3 * len(steps) // 4, len(steps) - 2):
            one = killed_at_or_before(disk, at, lambda: store.copy_into(tmp_path), work)
            links = one.folder("plain") / "link_lists.bin"
            assert not links.exists() or links.read_bytes() == old or check(one.root) == {}
            assert run("repair", one.root, "--yes").status == 0
            assert check(one.root) == {}
            assert_reads_back(one, tmp_path / f"copy-{at}", {})
