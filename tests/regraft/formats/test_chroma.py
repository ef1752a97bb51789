"""Reading folders of Chroma: every vector as Chroma's API returns it, whichever version wrote it, and hostile files."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from chroma_store import DIMENSION, ELEMENT, VERSIONS, ChromaStore, extract, forge_count, remove_labels

from regraft.formats.chroma import database, label_map
from regraft.formats.chroma.collection import CollectionState, Origin, open_collection
from regraft.formats.chroma.label_map import ForeignInstruction, LabelMap, LabelMapProblem, encode_label_map
from regraft.formats.chroma.segment import SegmentProblem, open_segment


def read_labels(path: Path, content: bytes) -> tuple[LabelMap, list[tuple[Any, ...]]]:
    path.write_bytes(content)
    pairs: list[tuple[Any, ...]] = []
    found = label_map.read_label_map(path, lambda role, some: pairs.extend((role, *pair) for pair in some))
    return found, pairs


@pytest.mark.thorough
@pytest.mark.parametrize("version", VERSIONS)
def test_every_vector_is_what_the_api_returned(version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    with database.open_chroma(store.database) as db:
        collections = {one.name: one for one in database.list_collections(db)}
        assert collections.keys() == store.expected.keys()
        for name, expected in store.expected.items():
            entries = {one.id: one for one in database.iterate_entries(db, collections[name])}
            assert {key: entry.document for key, entry in entries.items()} == {
                key: one["document"] for key, one in expected.items()
            }
            assert all(entries[key].metadata == (one["metadata"] or {}) for key, one in expected.items())
            with open_collection(db, collections[name], store.root) as state:
                assert_same_vectors(state, expected)


@contextmanager
def read_state(store: ChromaStore, name: str = "plain") -> Iterator[CollectionState]:
    """Open a collection of a folder."""
    with database.open_chroma(store.database) as db:
        of = database.find_collection(db, name)
        assert of is not None
        with open_collection(db, of, store.root) as state:
            yield state


def assert_same_vectors(state: CollectionState, expected: dict[str, Any]) -> None:
    """Compare in both ways of reading: one by one, and in blocks."""
    blocks: dict[str, bytes] = {}
    for block in state.segment_blocks():
        blocks |= {key: vector.tobytes() for key, vector in zip(block.read_ids(), block.vectors, strict=True)}
    blocks |= {key: raw for key, _, raw in state.queued_vectors()}
    assert blocks.keys() == expected.keys()
    for key, one in expected.items():
        found = state.vector_of(key)
        assert found is not None
        origin, vector = found
        assert blocks[key] == vector
        if state.is_cosine and origin is Origin.QUEUE:
            # Not yet normalized: the vector as the application gave it, which Chroma rounds later.
            returned = np.frombuffer(bytes.fromhex(one["vector"]), dtype="<f4")
            assert np.allclose(np.frombuffer(vector, dtype="<f4"), returned, rtol=2e-7, atol=1e-9)
        else:
            assert vector.hex() == one["vector"], key
    assert list(state.missing_ids()) == list(state.orphan_ids()) == list(state.contradicting_ids()) == []


def test_a_label_map_is_read_as_the_versions_write_it(tmp_path: Path) -> None:
    for found in (
        LabelMap(dimension=8, total_added=2, max_seq_id=7, is_object=True),
        LabelMap(dimension=None, total_added=2, max_seq_id=None, is_object=False),
    ):
        raw = encode_label_map(found, [("a", 1), ("é", 1 << 40)])
        labels = [("id_to_label", "a", 1), ("id_to_label", "é", 1 << 40)]
        assert read_labels(tmp_path / "x", raw) == (
            found,
            [*labels, ("label_to_id", 1, "a"), ("label_to_id", 1 << 40, "é")],
        )


@pytest.mark.parametrize("protocol", range(2, 6))
def test_python_s_own_pickles_of_a_dictionary_are_read(protocol: int, tmp_path: Path) -> None:
    ids = {f"id{number}": number for number in range(1, 2500)}
    labels = {number: key for key, number in ids.items()}
    content = {"dimensionality": 3, "id_to_label": ids, "label_to_id": labels, "id_to_seq_id": dict(ids)}
    found, pairs = read_labels(tmp_path / "x", pickle.dumps(content, protocol))
    assert found == LabelMap(dimension=3)
    assert {key: value for role, key, value in pairs if role == "id_to_label"} == ids
    assert {key: value for role, key, value in pairs if role == "label_to_id"} == labels


class Caller:
    def __reduce__(self) -> Any:
        return (print, ("called",))


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_refused(
    protocol: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = {"dimensionality": Caller(), "id_to_label": {}, "label_to_id": {}}
    with pytest.raises(LabelMapProblem) as refused:
        read_labels(tmp_path / "x", pickle.dumps(content, protocol))
    assert protocol < 2 or isinstance(refused.value, ForeignInstruction)
    assert capsys.readouterr().out == ""


NESTED = b"\x80\x04}(X\x01\x00\x00\x00a" * 50
HUGE = b"\x80\x04}(X\xff\xff\xff\x7f" + b"x" * 100


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\x80\x04.", "not a dictionary"),
        (b"\x80\x04}.", "no labels"),
        (b"\x80\x04N.", "not a dictionary"),
        (NESTED, "not a valid pickle"),
        (HUGE, "ends too early"),
        (b"\x80\x04" + b"N" * 1000, "more values"),
        (b"\x80\x04h\x05.", "not a valid pickle"),
        (b"\x80\x04\x94r\xff\xff\xff\xff.", "not a valid pickle"),
        (b"\x80\x04}u.", "not a valid pickle"),
        (encode_label_map(LabelMap(), [("a", 1)])[:-20], "ends too early"),
        (b"\x80\x04}(X\x0b\x00\x00\x00id_to_label}(X\x01\x00\x00\x00a\x8a\x09" + b"\xff" * 8 + b"\x00uu.", "range"),
        (b"\x80\x04}(X\x0b\x00\x00\x00id_to_label}(X\x01\x00\x00\x00aJ\xff\xff\xff\xffuu.", "range"),
    ],
)
def test_other_files_are_refused_with_a_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(LabelMapProblem, match=reason):
        read_labels(tmp_path / "x", content)


@pytest.fixture
def store(tmp_path: Path) -> ChromaStore:
    return extract("1.5", tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [(20, "<Q", 1 << 62), (28, "<Q", 1 << 62), (28, "<Q", 0), (36, "<Q", 3), (44, "<Q", 1 << 63), (60, "<Q", 1 << 40),
     (68, "<Q", 7), (76, "<Q", 0), (0, "<i", 2), (56, "<I", 1 << 30), (52, "<i", 1 << 30)],
)  # fmt: skip
def test_forged_sizes_are_not_believed(offset: int, form: str, value: int, store: ChromaStore) -> None:
    file = store.folder("plain") / "header.bin"
    raw = bytearray(file.read_bytes())
    struct.pack_into(form, raw, offset, value)
    file.write_bytes(raw)
    segment = open_segment(store.folder("plain"), DIMENSION)
    assert segment.problems
    assert segment.count * segment.header.element_bytes <= (store.folder("plain") / "data_level0.bin").stat().st_size
    with read_state(store) as state:
        assert_same_vectors(state, store.expected["plain"])


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("name", ["plain", "angles"])
@pytest.mark.parametrize("version", ["0.6", "1.5"])
def test_elements_that_the_header_does_not_count_are_read(version: str, name: str, count: int, tmp_path: Path) -> None:
    """A header that is older than the other files, or forged: the label map still names the elements."""
    store = extract(version, tmp_path)
    forge_count(store, count, name)
    with read_state(store, name) as state:
        assert state.segment is not None
        said = f"header.bin: it counts {count}, and the label map has more"
        assert state.segment.problems == (said,)
        assert_same_vectors(state, store.expected[name])


def test_elements_that_no_link_leads_to_are_unproven(store: ChromaStore) -> None:
    """The unused space of a file may have elements of another collection, under the same labels."""
    forge_count(store, 0)
    with read_state(store) as state:
        unproven = set(state.ids_of(Origin.UNPROVEN))
        assert unproven <= set(state.contradicting_ids())
        assert len(unproven) > 70
        for key in unproven:
            found = state.vector_of(key)
            assert found is not None
            assert found[1].hex() == store.expected["plain"][key]["vector"]


def test_an_older_segment_takes_no_element_from_unused_space(tmp_path: Path) -> None:
    """A backup of a running application can have a label map that is newer than the other files."""
    store = extract("0.6", tmp_path)
    count = len(store.positions("plain"))
    file = store.folder("plain") / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    other = (store.folder("angles") / "data_level0.bin").read_bytes()[:ELEMENT]
    raw[count * ELEMENT : (count + 1) * ELEMENT] = other
    struct.pack_into("<Q", raw, (count + 1) * ELEMENT - 8, 1_000_000)
    file.write_bytes(raw)
    path = store.folder("plain") / "index_metadata.pickle"
    found, labels = label_map.read_labels(path)
    path.write_bytes(encode_label_map(found, [*labels, ("newer", 1_000_000)]))
    with read_state(store) as state:
        assert state.place_of("newer") == (Origin.UNPROVEN, count)
        for key, one in store.expected["plain"].items():
            vector = state.vector_of(key)
            assert vector is not None
            assert vector[1].hex() == one["vector"]


def test_unused_space_behind_the_elements_proves_nothing(tmp_path: Path) -> None:
    """Versions before 1.0 write it as it was in memory: here with an old state of an element, and one of no id."""
    store = extract("0.6", tmp_path)
    positions = store.positions("plain")
    file = store.folder("plain") / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    first = len(positions) * ELEMENT
    label = min(positions)
    raw[first : first + 3 * ELEMENT] = b"\x2a" * (3 * ELEMENT)
    struct.pack_into("<Q", raw, first + ELEMENT - 8, label)
    struct.pack_into("<Q", raw, first + 2 * ELEMENT - 8, 1_000_000)
    file.write_bytes(raw)
    # The id of a label that is nowhere makes regraft look there.
    path = store.folder("plain") / "index_metadata.pickle"
    found, labels = label_map.read_labels(path)
    path.write_bytes(encode_label_map(found, [*labels, ("ghost", 2_000_000)]))
    with read_state(store) as state:
        assert list(state.contradicting_ids()) == ["ghost"]
        assert state.segment is not None
        assert state.segment.problems == ()
        assert state.place_of("ghost") is None
        for key, one in store.expected["plain"].items():
            found = state.vector_of(key)
            assert found is not None
            assert found[1].hex() == one["vector"]


@pytest.mark.parametrize("links", [4, 8, 32])
def test_a_header_with_other_links_than_the_file_has_is_not_believed(links: int, store: ChromaStore) -> None:
    """Its sizes fit together, but every vector would be read at a wrong place."""
    file = store.folder("plain") / "header.bin"
    values = list(struct.unpack("<iQQQQQQiIQQQdQ", file.read_bytes()))
    vector_at = 4 + 8 * links
    label_at = vector_at + 4 * DIMENSION
    values[4:7] = label_at + 8, label_at, vector_at
    values[9:12] = links, 2 * links, links
    file.write_bytes(struct.pack("<iQQQQQQiIQQQdQ", *values))
    with read_state(store) as state:
        assert state.segment is not None
        assert state.segment.problems == ("header.bin: its sizes contradict the size of data_level0.bin",)
        assert_same_vectors(state, store.expected["plain"])


def test_labels_that_sqlite_cannot_store_belong_to_no_id(store: ChromaStore) -> None:
    file = store.folder("plain") / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    raw[196:204] = b"\xff" * 8
    file.write_bytes(raw)
    with read_state(store) as state:
        assert len([*state.missing_ids(), *state.orphan_ids()]) <= 1
        assert len(list(state.contradicting_ids())) == 1


def test_a_segment_that_is_a_link_is_not_followed(store: ChromaStore, tmp_path: Path) -> None:
    real = store.folder("plain")
    real.rename(tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(SegmentProblem, match="is a link"):
        open_segment(real, DIMENSION)


def test_without_labels_only_the_queue_proves_a_vector(store: ChromaStore) -> None:
    remove_labels(store, "products")
    with read_state(store, "products") as state:
        proven = [*state.ids_of(Origin.QUEUE), *state.ids_of(Origin.RECOVERED)]
        assert proven
        for key in proven:
            found = state.vector_of(key)
            assert found is not None
            assert found[1].hex() == store.expected["products"][key]["vector"]
        # Rows were updated and deleted, so the order of insertion proves nothing and suggests nothing.
        assert list(state.ids_of(Origin.UNPROVEN)) == []


def test_operations_that_chroma_ignored_prove_no_vector(store: ChromaStore) -> None:
    """An add of an id that existed, an update of one that did not, and an add after another add."""
    remove_labels(store)
    ((key, number),) = store.rows(
        "SELECT embedding_id, seq_id FROM embeddings WHERE segment_id = ? ORDER BY seq_id LIMIT 1",
        store.segment("plain", "METADATA"),
    )
    topic = f"persistent://default/default/{store.collection_id('plain')}"
    store.execute("DELETE FROM embeddings_queue WHERE substr(topic, -36) = ?", store.collection_id("plain"))
    operations = (
        (number + 1, 0, key, 1.0),
        (number + 2, 1, "never there", 2.0),
        (number + 3, 2, "again", 3.0),
        (number + 4, 0, "again", 4.0),
    )
    for place, operation, name, value in operations:
        store.execute(
            "INSERT INTO embeddings_queue (seq_id, operation, topic, id, vector, encoding) "
            "VALUES (?, ?, ?, ?, ?, 'FLOAT32')",
            *(place, operation, topic, name, struct.pack("<f", value) * DIMENSION),
        )
    with read_state(store) as state:
        assert state.applied > number + 4
        assert {name: raw for name, _, raw in state.queued_vectors()} == {"again": struct.pack("<f", 3.0) * DIMENSION}


@pytest.mark.thorough
def test_a_large_queue_stays_out_of_memory(store: ChromaStore) -> None:
    topic = f"persistent://default/default/{store.collection_id('plain')}"
    with closing(apsw.Connection(str(store.database))) as db, db:
        rows = ((2, topic, f"q{number}", b"\0" * 64, "FLOAT32", "{}") for number in range(30_000))
        db.executemany(
            "INSERT INTO embeddings_queue (operation, topic, id, vector, encoding, metadata) VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
    with database.open_chroma(store.database) as db:
        of = database.find_collection(db, "plain")
        assert of is not None
        assert database.count_entries(db, of) == 30_000 + len(store.expected["plain"])
