"""Every finding about folders of Chroma, planted in what real chromadb wrote; ``inspect``; and mutated files."""

from __future__ import annotations

import random
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chroma_store import (
    DIMENSION,
    ELEMENT,
    FULL_TEXT,
    VERSIONS,
    ChromaStore,
    check,
    cut_elements,
    cut_full_text,
    cut_norms,
    destroy_header,
    extract,
    forge_count,
    forge_field,
    forget_tables,
    hostile_labels,
    mix_numbers,
    overwrite_links,
    read_vector,
    remove_labels,
    state_dimension,
    write_vector,
)
from extras import needs
from faults import posix
from harness import run, snapshot

from checks.systems import load_findings
from regraft.formats.chroma import core
from regraft.formats.chroma.label_map import LabelMap, encode_label_map

Plant = Callable[[ChromaStore], None]


@pytest.fixture
def store(tmp_path: Path) -> ChromaStore:
    return extract("1.5", tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sound_folder_has_no_finding_and_is_not_written(version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    before = snapshot(store.root)
    found = run("check", store.root, "--json")
    assert (found.status, found.document["findings"]) == (0, [])
    assert found.document["checked"]["vectors"] == sum(map(len, store.expected.values()))
    assert snapshot(store.root) == before


def as_stored(store: ChromaStore, number: int) -> int | bytes:
    """Return the number of an operation as the version that wrote the folder stores it."""
    ((kind,),) = store.rows("SELECT DISTINCT typeof(seq_id) FROM embeddings")
    return number if kind == "integer" else number.to_bytes(8, "big")


def forget_vector(store: ChromaStore) -> None:
    """Add an entry to the tables whose vector is nowhere."""
    row = (store.segment("plain", "METADATA"), as_stored(store, 1))
    store.execute("INSERT INTO embeddings (segment_id, embedding_id, seq_id) VALUES (?, 'ghost', ?)", *row)


def forget_entry(store: ChromaStore) -> None:
    store.execute(
        "DELETE FROM embeddings WHERE embedding_id = 'id20' AND segment_id = ?", store.segment("plain", "METADATA")
    )


def unapply(store: ChromaStore) -> None:
    """Claim that the segment has all operations, as after a crash."""
    row = (as_stored(store, 1_000_000), store.segment("plain"))
    store.execute("UPDATE max_seq_id SET seq_id = ? WHERE segment_id = ?", *row)


def fall_behind(store: ChromaStore) -> None:
    topic = f"persistent://default/default/{store.collection_id('plain')}"
    for _ in range(45):
        store.execute(
            "INSERT INTO embeddings_queue (operation, topic, id, metadata) VALUES (1, ?, 'id20', '{}')", topic
        )
    last = as_stored(store, store.rows("SELECT max(seq_id) FROM embeddings_queue")[0][0])
    store.execute("UPDATE max_seq_id SET seq_id = ? WHERE segment_id = ?", last, store.segment("plain", "METADATA"))


def queue_for_nobody(store: ChromaStore) -> None:
    store.execute(
        "INSERT INTO embeddings_queue (operation, topic, id) VALUES (3, 'persistent://default/default/' || ?, 'x')",
        "0" * 36,
    )


def contradict_labels(store: ChromaStore) -> None:
    """Give two ids the same label."""
    labels = [(f"id{number}", number + 1) for number in range(30, 60)]
    raw = encode_label_map(LabelMap(), [*labels, ("id60", 31)])
    (store.folder("plain") / "index_metadata.pickle").write_bytes(raw)


def wrong_length(store: ChromaStore) -> None:
    store.execute("UPDATE embeddings_queue SET vector = x'0000803f' WHERE id = 'late'")


def nan(store: ChromaStore) -> None:
    write_vector(store, 30, struct.pack("<f", float("nan")))


def long_vector(store: ChromaStore) -> None:
    write_vector(store, 30, np.full(DIMENSION, 1e6, "<f4").tobytes())


def same_vector(store: ChromaStore) -> None:
    write_vector(store, 30, read_vector(store, 31))


def stray_folder(store: ChromaStore) -> None:
    folder = store.root / "0f0f0f0f-0000-4000-8000-000000000000"
    folder.mkdir()
    (folder / "header.bin").write_bytes(b"")


def bad_links(store: ChromaStore) -> None:
    file = store.folder("plain") / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    raw[5 * ELEMENT + 4 : 5 * ELEMENT + 8] = b"\xff\xff\xff\x7f"
    file.write_bytes(raw)


def drop_segment_row(store: ChromaStore) -> None:
    store.execute("DELETE FROM segments WHERE id = ?", store.segment("single"))


def foreign_operation(store: ChromaStore) -> None:
    store.execute("UPDATE embeddings_queue SET operation = 'inf' WHERE id = 'late'")


def share_segment(store: ChromaStore) -> None:
    """Let a collection have the segment of another one, as no key of the table forbids any longer."""
    store.execute("CREATE TABLE copied AS SELECT * FROM segments")
    store.execute("DROP TABLE segments")
    store.execute("ALTER TABLE copied RENAME TO segments")
    store.execute("UPDATE segments SET id = ? WHERE id = ?", store.segment("plain"), store.segment("products"))


def damage_database(store: ChromaStore) -> None:
    store.execute("DROP TABLE embedding_metadata")


#: Finding, what plants it, number of instances, and the other findings that it entails.
PLANTED: dict[str, tuple[str, Plant, int, set[str]]] = {
    "no vector": ("vector-missing", forget_vector, 1, set()),
    "no entry": ("vector-orphan", forget_entry, 1, set()),
    "never applied": ("queue-unapplied", unapply, 7, {"vector-orphan"}),
    "behind": ("queue-behind", fall_behind, 1, set()),
    "queue of nobody": ("queue-orphan", queue_for_nobody, 1, set()),
    "no labels": ("labels-missing", remove_labels, 1, {"vector-missing", "queue-unapplied"}),
    "hostile labels": ("labels-hostile", hostile_labels, 1, {"vector-missing", "queue-unapplied"}),
    "two ids of a label": ("labels-inconsistent", contradict_labels, 2,
                           {"vector-missing", "queue-unapplied", "vector-shared"}),
    "no header": ("header", destroy_header, 1, set()),
    "half of the elements": ("header", cut_elements, 1, {"labels-inconsistent", "vector-missing", "queue-unapplied"}),
    "an offset": ("header", lambda store: forge_field(store, "<Q", 4, 1 << 31), 1, set()),
    "no level factor": ("header", lambda store: forge_field(store, "<d", 84, float("nan")), 1, set()),
    "too large a capacity": ("header", lambda store: forge_field(store, "<Q", 12, 1 << 34), 1, set()),
    "too small a capacity": ("header", lambda store: forge_field(store, "<Q", 12, 9), 1, set()),
    "too few elements": ("header", lambda store: forge_count(store, 9), 1, set()),
    "a foreign operation": ("unreadable", foreign_operation, 3, {"vector-missing"}),
    "a shared segment": ("collection-incomplete", share_segment, 2, {"segment-orphan", "vector-missing"}),
    "no norms": ("norms", cut_norms, 1, {"queue-unapplied"}),
    "upper links": ("graph", overwrite_links, 1, set()),
    "lower links": ("graph", bad_links, 1, set()),
    "another length": ("dimension", wrong_length, 3, set()),
    "another dimension": ("dimension-wrong", state_dimension, 1, set()),
    "NaN": ("vector-unusable", nan, 1, set()),
    "a long vector": ("norm-outlier", long_vector, 1, set()),
    "a shared vector": ("vector-shared", same_vector, 2, set()),
    "full text": ("full-text", cut_full_text, 1, set()),
    "mixed numbers": ("seq-id-mixed", mix_numbers, 1, set()),
    "a stray folder": ("segment-orphan", stray_folder, 1, set()),
    "no segment": ("collection-incomplete", drop_segment_row, 1, {"segment-orphan"}),
    "no folder": ("segment-missing", lambda store: shutil.rmtree(store.folder("plain")), 1,
                  {"vector-missing", "queue-unapplied"}),
    "no table": ("unreadable", damage_database, 1, set()),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("version", ["0.6", "1.5"])
@pytest.mark.parametrize("case", PLANTED)
def test_each_finding_is_found_alone_and_explained(case: str, version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    name, plant, count, entailed = PLANTED[case]
    if (case, version) == ("never applied", "0.6"):
        # This version had written its segment earlier.
        count = 15
    plant(store)
    before = snapshot(store.root)
    found = check(store.root)
    assert snapshot(store.root) == before
    assert found.keys() - entailed == {name}
    first = found[name][0]
    assert name in ("norms", "header", "unreadable") or sum(one["count"] for one in found[name]) == count
    definition = load_findings()[f"chroma.{name}"]
    assert first["severity"] == definition.severity
    if definition.command:
        assert first["repair"].startswith(f"regraft {definition.command[0]} ")
    assert " ".join(definition.meaning.split()) in " ".join(run("explain", f"chroma.{name}").stdout.split())


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE max_seq_id SET seq_id = x'01020304'", "max_seq_id has an invalid value"),
        ("UPDATE max_seq_id SET seq_id = 'soon'", "max_seq_id has an invalid value"),
    ],
)
def test_a_value_of_another_type_is_named_and_nothing_is_written(
    statement: str, message: str, store: ChromaStore
) -> None:
    store.execute(statement)
    before = snapshot(store.root)
    assert f"plain cannot be checked: {message}" in [one["message"] for one in check(store.root)["unreadable"]]
    summaries = run("inspect", store.root, "--json").document["bases"]
    assert message in [one["problem"] for one in summaries if one["name"] == "plain"]
    for command in (("search", store.root, "Text", "--base", "plain"), ("repair", store.root, "--dry-run")):
        found = run(*command)
        assert found.status in (1, 2)
        assert message in found.stdout + found.stderr
        assert "bug in regraft" not in found.stderr
    assert snapshot(store.root) == before


@pytest.mark.parametrize("stated", ["many", 1 << 62])
def test_a_number_that_is_no_dimension_is_named_if_no_vector_tells_it(stated: object, store: ChromaStore) -> None:
    store.execute("UPDATE collections SET dimension = ? WHERE name = 'empty'", stated)
    before = snapshot(store.root)
    messages = [one["message"] for one in check(store.root)["unreadable"]]
    assert "empty cannot be checked: the dimension of its collection empty is not valid" in messages
    assert run("repair", store.root, "--yes").status in (1, 2)
    assert snapshot(store.root) == before


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("collections", "UPDATE collections SET id = NULL WHERE name = 'empty'"),
        ("collections", "UPDATE collections SET config_json_str = '{bad' WHERE name = 'empty'"),
        ("collection_metadata", "UPDATE collection_metadata SET int_value = 0.5 WHERE rowid = 1"),
        ("embedding_metadata", "UPDATE embedding_metadata SET string_value = x'00' WHERE rowid = 1"),
        ("embeddings_queue", "UPDATE embeddings_queue SET created_at = x'00' WHERE id = 'only'"),
        ("embeddings_queue", "UPDATE embeddings_queue SET created_at = '' WHERE id = 'only'"),
        ("embeddings_queue", "UPDATE embeddings_queue SET created_at = '2026-13-01 00:00:00' WHERE id = 'only'"),
        ("embeddings_queue", "UPDATE embeddings_queue SET metadata = '{' WHERE id = 'only'"),
        ("segments", "UPDATE segments SET type = x'00' WHERE rowid = 1"),
    ],
)
def test_a_row_that_chroma_fails_at_is_reported(table: str, statement: str, store: ChromaStore) -> None:
    store.execute(statement)
    before = snapshot(store.root)
    messages = [one["message"] for one in check(store.root)["unreadable"]]
    assert messages == [f"1 row of the table {table} with a value that Chroma does not read"]
    assert snapshot(store.root) == before


def test_metadata_without_a_number_is_no_damage(store: ChromaStore) -> None:
    """Python's JSON, which versions before 1.0 write and read, has NaN and Infinity."""
    store.execute("""UPDATE embeddings_queue SET metadata = '{"a": NaN, "b": -Infinity}'""")
    assert "unreadable" not in check(store.root)


@pytest.mark.parametrize("number", [-1, b"\xff" * 8])
def test_a_number_that_no_operation_has_is_not_mixed(number: int | bytes, store: ChromaStore) -> None:
    """It cannot be stored in the other form, so a repair could not change it."""
    store.execute("UPDATE embeddings SET seq_id = ? WHERE id = 1", number)
    assert "seq-id-mixed" not in check(store.root)


@pytest.mark.parametrize("version", VERSIONS)
def test_text_as_the_number_of_an_entry_proves_nothing(version: str, tmp_path: Path) -> None:
    store = extract(version, tmp_path)
    remove_labels(store)
    store.execute("UPDATE embeddings SET seq_id = 'soon'")
    before = snapshot(store.root)
    found = check(store.root)
    assert "unreadable" not in found
    assert snapshot(store.root) == before


def test_files_of_a_segment_that_was_never_written_to_do_not_matter(store: ChromaStore) -> None:
    """Chroma reads no other file without a label map, and the queue has every vector."""
    folder = store.folder("single")
    folder.mkdir(exist_ok=True)
    shutil.copytree(store.folder("plain"), folder, dirs_exist_ok=True)
    (folder / "index_metadata.pickle").unlink()
    forge_count(store, 0, "single")
    (folder / "link_lists.bin").write_bytes(b"\xff" * 100)
    assert check(store.root) == {}


def test_quick_reads_no_vectors(store: ChromaStore) -> None:
    nan(store)
    assert check(store.root, "--quick") == {}
    assert check(store.root).keys() == {"vector-unusable"}


@pytest.mark.thorough
@needs("chroma")
@posix
@pytest.mark.parametrize("inside", ["", "link_lists.bin", "length.bin"])
def test_deep_checks_the_others_if_a_segment_has_a_link(inside: str, store: ChromaStore, tmp_path: Path) -> None:
    path = store.folder("plain") / inside
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    overwrite_links(store, "angles")
    found = check(store.root, "--deep")
    assert path.name in found["segment-missing"][0]["message"]
    assert {one["base"] for one in found["segment-missing"]} == {store.collection_id("plain")}
    assert {one["base"] for one in found["graph"]} == {store.collection_id("angles")}


@needs("chroma")
def test_deep_measures_recall(store: ChromaStore) -> None:
    assert check(store.root, "--deep") == {}
    file = store.folder("plain") / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    for at in range(len(store.positions("plain"))):
        # No element has a link any more, so a search ends where it begins.
        raw[at * ELEMENT : at * ELEMENT + 2] = b"\0\0"
    file.write_bytes(raw)
    assert check(store.root) == {}
    found = check(store.root, "--deep")
    assert found.keys() == {"recall"}
    assert "nearest vectors" in found["recall"][0]["message"]


def test_deep_does_not_search_in_damaged_files(store: ChromaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a forged header, chromadb takes gigabytes of memory."""
    forge_field(store, "<Q", 12, 1 << 34)
    searched = []

    def search(_: object, copy: Path, name: str, queries: list[list[float]], count: int) -> list[list[str]]:
        assert copy.is_dir()
        searched.append(name)
        return [[]] * len(queries)

    monkeypatch.setattr(core, "is_installed", lambda: True)
    monkeypatch.setattr(core, "run_in_child", search)
    found = check(store.root, "--deep")
    assert {"angles", "products"} <= set(searched)
    assert "plain" not in searched
    messages = [one["message"] for one in found["recall"] if one["base"] == store.collection_id("plain")]
    assert messages == ["chromadb cannot search it: header.bin: its capacity contradicts the number of its elements"]


def test_deep_says_that_chromadb_is_missing(store: ChromaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "is_installed", lambda: False)
    found = check(store.root, "--deep")["recall"][0]
    assert (found["severity"], found["repair"]) == ("note", None)


# --- inspect and applications ----------------------------------------------------------------------------------------


def test_inspect_counts_vectors_by_where_they_are(store: ChromaStore) -> None:
    document = run("inspect", store.root, "--json").document
    assert document["source"]["kind"] == "chroma"
    by_name = {one["name"]: one for one in document["bases"]}
    assert {name: one["entries"] for name, one in by_name.items()} == {
        name: len(entries) for name, entries in store.expected.items()
    }
    plain = by_name["plain"]
    assert (plain["distance"], plain["dimensions"], plain["missing"], plain["unproven"]) == ("l2", DIMENSION, 0, 0)
    assert plain["in_segment"] + plain["in_queue"] == plain["entries"]
    assert by_name["angles"]["distance"] == "cosine"
    assert document["health"]["coverage"] == 1
    text = run("inspect", store.database).stdout
    assert "l2: 82 in the segment, 7 in the queue" in text


def open_webui(store: ChromaStore, data: Path) -> ChromaStore:
    """Make the folder Open WebUI's: collections of a knowledge base, a file, a user's memories, and of nobody."""
    data.mkdir()
    store.root.rename(data / "vector_db")
    moved = ChromaStore(data / "vector_db", store.expected)
    for old, new in (("plain", "kb-1"), ("angles", "file-f1"), ("products", "user-memory-u1"), ("single", "file-gone")):
        moved.execute("UPDATE collections SET name = ? WHERE name = ?", new, old)
    moved.execute("UPDATE collections SET name = 'knowledge-bases' WHERE name = 'empty'")
    with closing(sqlite3.connect(data / "webui.db")) as db:
        db.executescript(
            """CREATE TABLE knowledge (id TEXT, name TEXT); CREATE TABLE file (id TEXT, filename TEXT);
               CREATE TABLE knowledge_file (knowledge_id TEXT, file_id TEXT);
               CREATE TABLE memory (id TEXT, user_id TEXT);
               INSERT INTO knowledge VALUES ('kb-1', 'Handbook'), ('kb-2', 'Not indexed');
               INSERT INTO file VALUES ('f1', 'plan.pdf'); INSERT INTO memory VALUES ('m', 'u1');"""
        )
    return moved


def test_open_webui_names_its_collections(store: ChromaStore, tmp_path: Path) -> None:
    data = tmp_path / "data"
    moved = open_webui(store, data)
    before = snapshot(data)
    document = run("inspect", data, "--json").document
    assert document["health"]["application"] == "open-webui"
    assert {one["name"]: one["title"] for one in document["bases"]} == {
        "kb-1": "knowledge base Handbook",
        "file-f1": "file plan.pdf",
        "user-memory-u1": "memories of user u1",
        "file-gone": None,
        "knowledge-bases": "index of knowledge bases",
    }
    found = check(data)
    assert found.keys() == {"collection-orphan", "collection-missing"}
    assert found["collection-orphan"][0]["samples"] == ["file-gone"]
    assert found["collection-missing"][0]["samples"] == ["Not indexed"]
    options = run("explain", "chroma.collection-orphan").stdout
    assert all(word in options for word in ("leave it", "regraft export", "regraft migrate", "delete it with Chroma"))
    assert "message shows" not in options
    assert check(moved.root) == found
    assert snapshot(data) == before


def test_a_collection_is_selected_by_what_open_webui_calls_it(store: ChromaStore, tmp_path: Path) -> None:
    data = tmp_path / "data"
    moved = open_webui(store, data)
    chosen, other = (moved.collection_id(name) for name in ("kb-1", "file-f1"))
    moved.execute("UPDATE collections SET dimension = 17 WHERE name IN ('kb-1', 'file-f1')")
    for word in ("Handbook", "knowledge base Handbook", "kb-1", chosen):
        found = check(data, "--base", word)
        # Only what belongs to the whole folder is reported beside the findings of the collection.
        assert found.keys() == {"collection-missing", "dimension-wrong"}
        assert [one["base"] for one in found["dimension-wrong"]] == [chosen]
        hits = run("search", data, "Text", "--base", word, "--json").document["hits"]
        assert hits
        assert {moved.expected["plain"][hit["unit_id"]]["document"] == hit["text"] for hit in hits} == {True}
        plan = run("migrate", data, "--to", tmp_path / "library", "--base", word, "--dry-run", "--json")
        assert [(one["legacy_id"], one["name"]) for one in plan.document["bases"]] == [(chosen, "Handbook")]
    assert [one["base"] for one in check(data, "--base", "plan.pdf")["dimension-wrong"]] == [other]
    refused = run("check", data, "--base", "Nothing")
    assert (refused.status, refused.stdout) == (2, "")
    assert "Nothing: no base has this name or id; known bases: " in refused.stderr
    assert f"Handbook ({chosen})" in refused.stderr
    # A name of two knowledge bases selects neither.
    with closing(sqlite3.connect(data / "webui.db")) as db:
        db.execute("INSERT INTO knowledge VALUES ('file-gone', 'x')")
        db.execute("UPDATE file SET filename = 'Handbook'")
        db.commit()
    for command in (("check", data), ("export", data, tmp_path / "none.parquet")):
        assert run(*command, "--base", "Handbook").status == 2
    assert not (tmp_path / "none.parquet").exists()


def test_mempalace_is_recognized(store: ChromaStore) -> None:
    store.execute("UPDATE collections SET name = 'mempalace_drawers' WHERE name = 'plain'")
    document = run("inspect", store.root, "--json").document
    assert document["health"]["application"] == "mempalace"
    assert "drawers of the palace" in [one["title"] for one in document["bases"]]


# --- mutated files ---------------------------------------------------------------------------------------------------


def mutate(file: Path, numbers: random.Random) -> None:
    raw = bytearray(file.read_bytes())
    if not raw:
        return
    match numbers.randrange(4):
        case 0:
            del raw[numbers.randrange(len(raw)) :]
        case 1:
            for _ in range(numbers.randrange(1, 40)):
                raw[numbers.randrange(len(raw))] = numbers.randrange(256)
        case 2:
            at = numbers.randrange(len(raw))
            raw[at : at + 8] = numbers.choice([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 63)])
        case _:
            at = numbers.randrange(len(raw))
            raw[at:at] = raw[: numbers.randrange(1, 4096)]
    file.write_bytes(raw)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("version", "count", "seed"),
    [(version, 20, 20261126) for version in VERSIONS]
    + [pytest.param(version, 100, 20261127, marks=pytest.mark.slow) for version in VERSIONS],
)
def test_no_mutation_causes_a_traceback_or_a_write(version: str, count: int, seed: int, tmp_path: Path) -> None:
    """Mutate folders of each version; ``benchmarks`` of a release use more."""
    numbers = random.Random(seed)
    sound = extract(version, tmp_path / "sound")
    files = [path.relative_to(sound.root) for path in sorted(sound.root.rglob("*")) if path.is_file()]
    for round_ in range(count):
        store = ChromaStore(tmp_path / "mutated", sound.expected)
        shutil.copytree(sound.root, store.root)
        for name in numbers.sample(files, numbers.randrange(1, 3)):
            mutate(store.root / name, numbers)
        before = snapshot(store.root)
        for command in ("check", "inspect"):
            found: Any = run(command, store.root, "--json")
            assert found.status in (0, 1, 2), (round_, found.stderr)
            assert "bug in regraft" not in found.stderr, (round_, found.stderr)
        assert snapshot(store.root) == before
        shutil.rmtree(store.root)


@pytest.mark.parametrize(
    "names", [(FULL_TEXT,), (f"{FULL_TEXT}_docsize",), (f"{FULL_TEXT}_data", f"{FULL_TEXT}_content")]
)
def test_missing_tables_of_the_full_text_index_are_named(names: tuple[str, ...], store: ChromaStore) -> None:
    """Chroma 1.5.9 opens and reads such a folder, and fails at every write."""
    forget_tables(store, *names)
    before = snapshot(store.root)
    found = check(store.root)
    assert found.keys() == {"full-text"}
    damage = f"the full-text index of chroma.sqlite3 is damaged: missing tables: {', '.join(names)}"
    assert [one["message"] for one in found["full-text"]] == [damage]
    assert check(store.root, "--deep", "--only", "chroma.unreadable") == {}
    assert snapshot(store.root) == before


def test_the_first_versions_had_no_full_text_index(store: ChromaStore) -> None:
    store.execute(f"DROP TABLE {FULL_TEXT}")
    store.execute("DELETE FROM migrations WHERE dir = 'metadb' AND version > 2")
    assert check(store.root) == {}


@pytest.mark.parametrize("name", ["header.bin", "data_level0.bin", "link_lists.bin"])
def test_a_folder_in_the_place_of_a_file_is_called_one(name: str, store: ChromaStore) -> None:
    path = store.folder("plain") / name
    path.unlink()
    missing = [one["message"] for findings in check(store.root).values() for one in findings]
    path.mkdir()
    messages = [one["message"] for findings in check(store.root).values() for one in findings]
    assert [f"{name}: it does not exist" in message for message in missing].count(True) == 1
    assert [f"{name}: it is a folder" in message for message in messages].count(True) == 1
    assert not any("not exist" in message for message in messages)


def test_a_file_in_the_place_of_a_segment_is_called_one(store: ChromaStore) -> None:
    folder = store.folder("plain")
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    (message,) = [one["message"] for one in check(store.root)["segment-missing"]]
    assert message == f"its vector segment cannot be used: {folder.name} is not a folder"
