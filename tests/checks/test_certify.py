"""``regraft certify``: planted faults are found and named, and sound bases of many kinds have no finding."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import angel_store
import chroma_store
import codex_mem_store
import fault_server
import numpy as np
import pytest
from extras import needs
from fault_server import FaultServer, changed, right
from harness import Outcome, run, snapshot
from v1 import PLAIN, Library, Row, Source, base, carried, file, floats, sha

import regraft
from checks.certify import base as certified_base
from checks.certify import findings as certify_findings
from checks.certify.neighbors import compare_neighbors, find_nearest, find_two_groups
from checks.systems import load_findings
from regraft.errors import Declined

WORDS = (
    "harbour",
    "lantern",
    "ferry",
    "museum",
    "rope",
    "anchor",
    "bakery",
    "tide",
    "gull",
    "timber",
    "signal",
    "pier",
)


def text_of(at: int) -> str:
    """Return a text that shares words with others and has one of its own."""
    one = random.Random(at)
    return f"Entry number {at}: {' '.join(one.choice(WORDS) for _ in range(12))}, marked with sign{at:04d}."


TEXTS = [text_of(at) for at in range(40)]


def unit(seed: object, dimensions: int = 8) -> bytes:
    """Return a random vector of norm 1."""
    one = random.Random(repr(seed))
    numbers = [one.gauss(0, 1) for _ in range(dimensions)]
    norm = math.hypot(*numbers)
    return floats(*(number / norm for number in numbers))


def rows_of(texts: Sequence[str], dimensions: int = 8) -> list[Row]:
    return [Row("L", text, vector=unit(text, dimensions)) for text in texts]


@pytest.fixture
def library(tmp_path: Path) -> Library:
    """Return a library of two bases, made from the folder ``v1`` beside it."""
    stores = {"one": rows_of(TEXTS), "two": [Row("M", text, vector=unit(text)) for text in TEXTS[:25]]}
    return carried(tmp_path, base("one", file("a", "L")), base("two", file("b", "M")), stores=stores)


def certified(*arguments: object) -> Outcome:
    """Certify, and see that nothing was written."""
    folders = {Path(str(path)).parent for path in arguments if isinstance(path, Path)}
    before = {folder: snapshot(folder) for folder in folders}
    done = run("certify", *arguments, "--json", "--yes")
    assert {folder: snapshot(folder) for folder in folders} == before
    return done


def names(done: Outcome) -> set[str]:
    return {found["name"] for found in done.document["findings"]}


def outcomes(done: Outcome, base_id: str, side: str = "a") -> dict[str, str]:
    found = next(one for one in done.document["bases"] if (one["side"], one["id"]) == (side, base_id))
    return {proof["name"]: proof["outcome"] for proof in found["proofs"]}


def edit(path: Path, statement: str, *values: Any) -> None:
    """Change an index with plain SQLite, as a program without checks could."""
    with closing(sqlite3.connect(path)) as db, db:
        triggers = db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        assert db.execute(statement, values).rowcount > 0
        for _, sql in triggers:
            db.execute(sql)


def rows(path: Path, query: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(query, values).fetchall()


def replace_vector(library: Library, text: str, vector: bytes) -> None:
    statement = "UPDATE embedding SET vector_blob = ? WHERE embedding_text_hash = ?"
    edit(library.index_path("one"), statement, vector, sha(text))


# --- nothing is wrong ------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_library_keeps_what_its_source_had(library: Library) -> None:
    done = certified(library.path.parent / "v1", library.path)
    assert (done.status, done.document["findings"], done.document["suspicions"]) == (0, [], [])
    assert [(one["side"], one["texts"], one["findable"]) for one in done.document["bases"]] == [
        ("a", 40, 40),
        ("b", 40, 40),
        ("a", 25, 25),
        ("b", 25, 25),
    ]
    first = done.document["bases"][0]
    assert first["compared_with"] == library.base_id("one")
    assert (first["neighbors"]["queries"], first["neighbors"]["overlap"], first["neighbors"]["reordered"]) == (40, 1, 0)
    assert first["norms"]["least"] == pytest.approx(1) == first["norms"]["most"]
    found = outcomes(done, library.base_id("one"))
    assert {found[name] for name in ("vectors", "coverage", "shared", "sets", "neighbors")} == {"proven"}
    assert found["model"] == found["words"] == "not-checked"
    of_library = outcomes(done, library.base_id("one"), "b")
    assert of_library["hashes"] == of_library["reachable"] == of_library["words"] == "proven"


def clean_vectors(kind: int, one: random.Random, count: int) -> list[bytes]:
    """Return vectors as very different models make them."""
    dimensions = one.choice((2, 8, 33, 96))
    center = [one.gauss(0, 1) for _ in range(dimensions)]
    found = []
    for _ in range(count):
        numbers = [one.gauss(0, 1) for _ in range(dimensions)]
        if kind % 4 == 1:  # a common direction, as of many models
            numbers = [number + 2 * shift for number, shift in zip(numbers, center, strict=True)]
        norm = math.hypot(*numbers)
        size = {0: 1.0, 1: 1.0, 2: one.lognormvariate(2, 0.5), 3: one.uniform(0.5, 1.5) * 1e-3}[kind % 4]
        found.append(floats(*(size * number / norm for number in numbers)))
    return found


def clean_texts(kind: int, one: random.Random, count: int) -> list[str]:
    pool = (
        "潮水",
        "灯塔",
        "码头",
        "渡轮",
        "Straße",
        "ÉTÉ",
        "naïve",
        "İstanbul",
        "x",
        "😀",
        "a_b",
        "100%",
        "'quoted'",
        "\t",
    )
    words = WORDS if kind % 2 else (*WORDS, *pool)
    return [f"{one.choice(words)} {at} " + " ".join(one.choices(words, k=one.randint(1, 200))) for at in range(count)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", range(20))
def test_sound_bases_have_no_finding(kind: int, tmp_path: Path) -> None:
    one = random.Random(kind)
    count = (1, 2, 7, 30, 120)[kind % 5]
    texts = clean_texts(kind, one, count)
    stored = [Row("L", text, vector=raw) for text, raw in zip(texts, clean_vectors(kind, one, count), strict=True)]
    if kind % 3 == 0:
        # A text that stands in a base twice, with the same vector.
        stored.append(Row("L", stored[0].body, vector=stored[0].vector))
    made = carried(tmp_path, base("one", file("a", "L")), stores={"one": stored}, ddl=PLAIN)
    for arguments in ((tmp_path / "v1",), (made.path,), (tmp_path / "v1", made.path, "--all")):
        done = certified(*arguments)
        assert (done.status, done.document["findings"], done.document["suspicions"]) == (0, [], []), arguments


def test_texts_that_a_model_cannot_tell_apart_may_share_a_vector(tmp_path: Path) -> None:
    same = unit("same")
    pairs = ["The old Harbour", "the  old harbour", "harbour old the", "THE OLD HARBOUR"]
    stored = [Row("L", text, vector=same) for text in pairs] + rows_of(TEXTS)
    made = carried(tmp_path, base("one", file("a", "L")), stores={"one": stored})
    assert certified(made.path).document["findings"] == []


def test_bases_without_vectors_are_proven_by_words_only(library: Library) -> None:
    edit(library.index_path("two"), "DELETE FROM embedding")
    done = certified(library.path, "--base", library.base_id("two"))
    assert done.document["findings"] == []
    found = outcomes(done, library.base_id("two"))
    assert (found["words"], found["vectors"], found["self"]) == ("proven", "not-checked", "not-checked")


# --- planted faults --------------------------------------------------------------------------------------------------


def zeros(library: Library) -> None:
    replace_vector(library, TEXTS[3], bytes(32))


def not_a_number(library: Library) -> None:
    replace_vector(library, TEXTS[4], struct.pack("<8f", math.nan, *[1.0] * 7))


def other_length(library: Library) -> None:
    replace_vector(library, TEXTS[5], unit("short", 4))


def long_vector(library: Library) -> None:
    replace_vector(library, TEXTS[6], struct.pack("<8f", *(7 * number for number in struct.unpack("<8f", unit(1)))))


def same_vector(library: Library) -> None:
    replace_vector(library, TEXTS[7], unit(TEXTS[8]))


def no_vector(library: Library) -> None:
    edit(library.index_path("one"), "DELETE FROM embedding WHERE embedding_text_hash = ?", sha(TEXTS[9]))


def changed_text(library: Library) -> None:
    # The triggers of the file update the full-text index.
    with closing(sqlite3.connect(library.index_path("one"))) as db, db:
        statement = "UPDATE search_text SET text = 'Something else was written here.' WHERE embedding_text_hash = ?"
        assert db.execute(statement, (sha(TEXTS[10]),)).rowcount == 1


def no_unit(library: Library) -> None:
    statement = "DELETE FROM search_unit WHERE unit_id = (SELECT target_id FROM search_text WHERE text = ?)"
    edit(library.index_path("one"), statement, TEXTS[11])


def no_item(library: Library) -> None:
    with closing(sqlite3.connect(library.path / "catalog.sqlite")) as db, db:
        assert db.execute("DELETE FROM knowledge_item WHERE id = ?", (library.item_id("a"),)).rowcount == 1


def not_in_full_text(library: Library) -> None:
    path = library.index_path("one")
    [(rowid,)] = rows(path, "SELECT fts_rowid FROM search_text WHERE text = ?", TEXTS[12])
    delete = "INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', ?, ?)"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(delete, (rowid, TEXTS[12]))


def stale_full_text(library: Library) -> None:
    path = library.index_path("one")
    [(rowid,)] = rows(path, "SELECT fts_rowid FROM search_text WHERE text = ?", TEXTS[13])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(
            "INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', ?, ?)", (rowid, TEXTS[13])
        )
        db.execute("INSERT INTO search_text_fts (rowid, text) VALUES (?, 'quite other words')", (rowid,))


def lost_text(library: Library) -> None:
    path = library.index_path("one")
    [(target,)] = rows(path, "SELECT target_id FROM search_text WHERE text = ?", TEXTS[14])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM search_text WHERE text = ?", (TEXTS[14],))
        db.execute("DELETE FROM search_unit WHERE unit_id = ?", (target,))


def swapped_vectors(library: Library) -> None:
    replace_vector(library, TEXTS[15], unit("another text"))


def lost_index(library: Library) -> None:
    shutil.rmtree(library.folder("two"))
    with closing(sqlite3.connect(library.path / "catalog.sqlite")) as db, db:
        db.execute("DELETE FROM knowledge_item WHERE base_id = ?", (library.base_id("two"),))
        db.execute("DELETE FROM knowledge_base WHERE id = ?", (library.base_id("two"),))


def damaged_index(library: Library) -> None:
    path = library.index_path("one")
    raw = bytearray(path.read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    path.write_bytes(raw)


#: Each fault, the finding, the proof that it contradicts, and whether it is found without the v1 data.
FAULTS: dict[Callable[[Library], None], tuple[str, str, bool]] = {
    zeros: ("certify.vector-unusable", "vectors", True),
    not_a_number: ("certify.vector-unusable", "vectors", True),
    other_length: ("certify.vector-length", "vectors", True),
    long_vector: ("certify.norm-outlier", "vectors", True),
    same_vector: ("certify.vector-shared", "shared", True),
    no_vector: ("certify.text-without-vector", "coverage", True),
    changed_text: ("certify.hash-foreign", "hashes", True),
    no_unit: ("certify.unreachable", "reachable", True),
    no_item: ("certify.unreachable", "reachable", True),
    not_in_full_text: ("certify.words-differ", "words", True),
    stale_full_text: ("certify.words-differ", "words", True),
    damaged_index: ("certify.unreadable", "", True),
    lost_text: ("certify.text-missing", "sets", False),
    swapped_vectors: ("certify.vector-differs", "sets", False),
    lost_index: ("certify.base-missing", "", False),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda one: one.__name__)
def test_planted_faults_are_found(plant: Callable[[Library], None], library: Library) -> None:
    finding, proof, is_found_alone = FAULTS[plant]
    plant(library)
    alone = certified(library.path)
    both = certified(library.path.parent / "v1", library.path)
    assert both.status == 1
    assert finding in names(both)
    if is_found_alone:
        assert alone.status == 1
        assert names(alone) == {finding}
        if proof:
            assert outcomes(alone, library.base_id("one"))[proof] == "found"
            assert outcomes(alone, library.base_id("two"))[proof] != "found" or plant is no_item
    elif proof:
        assert outcomes(both, library.base_id("one"))[proof] == "found"
    severities = {found["severity"] for found in both.document["findings"] if found["name"] == finding}
    assert severities == {load_findings()[finding].severity}


@pytest.mark.thorough
def test_a_finding_names_the_text(library: Library) -> None:
    zeros(library)
    done = certified(library.path)
    [found] = done.document["findings"]
    assert found["samples"] == [TEXTS[3][:60]]
    assert (found["base"], found["base_name"], found["count"]) == (library.base_id("one"), "Base one", 1)
    shown = run("certify", library.path, "-v")
    assert f"for example: {TEXTS[3][:60].strip()}" in shown.stdout
    assert "Contradicted by a finding:\n  every vector can be used" in shown.stdout


@pytest.mark.thorough
def test_what_b_has_beyond_a_is_a_note(library: Library) -> None:
    copy = library.path.parent / "copy"
    shutil.copytree(library.path, copy)
    lost_text(library)
    no_vector(library)
    done = certified(library.path, copy)
    notes = {found["name"] for found in done.document["findings"] if found["severity"] == "note"}
    assert notes == {"certify.text-added", "certify.vector-added"}
    turned = certified(copy, library.path)
    assert {"certify.text-missing", "certify.vector-missing"} <= names(turned)


@pytest.mark.thorough
def test_vectors_that_were_made_again_are_a_note(library: Library) -> None:
    copy = library.path.parent / "copy"
    shutil.copytree(library.path, copy)
    numbers = list(struct.unpack("<8f", unit(TEXTS[2])))
    numbers[0] += 1e-5
    replace_vector(library, TEXTS[2], floats(*numbers))
    done = certified(copy, library.path)
    [found] = [one for one in done.document["findings"] if one["name"] == "certify.vector-differs"]
    assert found["severity"] == "note"
    assert done.status == 0
    assert "lowest cosine 1.0000" in found["message"]


@pytest.mark.thorough
def test_neighbors_are_counted_by_independent_means(library: Library) -> None:
    """Reverse the vectors of a copy for some texts: their neighbors change, and NumPy says by how much."""
    copy = library.path.parent / "copy"
    shutil.copytree(library.path, copy)
    changed = TEXTS[:6]
    for text in changed:
        replace_vector(library, text, floats(*(-number for number in struct.unpack("<8f", unit(text)))))
    done = certified(copy, library.path, "--base", library.base_id("one"))
    old = np.array([struct.unpack("<8f", unit(text)) for text in TEXTS])
    new = np.array([(-1 if text in changed else 1) * row for text, row in zip(TEXTS, old, strict=True)])

    def nearest(matrix: Any, at: int) -> set[int]:
        order = np.argsort(-(matrix @ matrix[at]))
        return set([int(one) for one in order if one != at][:10])

    shares = [len(nearest(old, at) & nearest(new, at)) / 10 for at in range(len(TEXTS))]
    found = done.document["bases"][0]["neighbors"]
    assert found["queries"] == 40
    assert found["overlap"] == pytest.approx(sum(shares) / 40)
    assert found["lowest"] == pytest.approx(min(shares))
    assert found["bars"] == [sum(round(10 * share) == count for share in shares) for count in range(11)]
    assert "certify.neighbors-differ" in names(done)


@pytest.mark.thorough
def test_two_models_in_one_base_are_a_suspicion_and_no_finding(tmp_path: Path) -> None:
    one = random.Random(5)
    centers = [[one.gauss(0, 1) for _ in range(64)] for _ in range(2)]
    centers[1] = [-number for number in centers[0]]
    stored = []
    for at in range(120):
        numbers = [one.gauss(0, 0.2) + shift for shift in centers[at % 3 == 0]]
        norm = math.hypot(*numbers)
        stored.append(Row("L", text_of(at), vector=floats(*(number / norm for number in numbers))))
    made = carried(tmp_path, base("one", file("a", "L")), stores={"one": stored})
    done = certified(made.path)
    assert (done.status, done.document["findings"]) == (0, [])
    [found] = done.document["suspicions"]
    assert (found["name"], found["base"]) == ("two-groups", made.base_id("one"))
    assert "33% in the smaller one" in found["message"]
    assert "Suspicions, which prove nothing:" in run("certify", made.path).stdout


# --- sources of other kinds ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["folder", "file", "vector folder", "index", "pack"])
def test_every_form_of_the_same_data_is_certified(kind: str, library: Library, tmp_path: Path) -> None:
    paths = {
        "folder": library.path.parent / "v1",
        "file": library.path.parent / "v1" / "KnowledgeBase" / "one",
        "vector folder": library.path.parent / "v1" / "KnowledgeBase",
        "index": library.index_path("one"),
        "pack": tmp_path / "pack.zip",
    }
    if kind == "pack":
        assert run("pack", library.path, paths[kind]).status == 0
    done = certified(paths[kind], *(["--kind", "v1-vector-folder"] if kind == "vector folder" else []))
    assert (done.status, done.document["findings"]) == (0, []), done.stdout
    assert done.document["bases"][0]["findable"] == 40


def test_rows_of_deleted_items_are_not_missed(tmp_path: Path) -> None:
    stored = [*rows_of(TEXTS), Row("deleted long ago", "A text of a deleted item.", vector=unit("deleted"))]
    made = carried(tmp_path, base("one", file("a", "L")), stores={"one": stored})
    done = certified(tmp_path / "v1", made.path)
    assert (done.status, done.document["findings"]) == (0, [])
    assert certified(tmp_path / "v1").document["bases"][0]["findable"] == 41


def test_notes_of_codex_mem_are_certified(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "memory", notes=6)
    codex_mem_store.embed(path)
    done = certified(path)
    assert (done.status, done.document["findings"]) == (0, [])
    assert [one["findable"] for one in done.document["bases"]] == [one["texts"] for one in done.document["bases"]]
    assert sum(one["texts"] for one in done.document["bases"]) == len(codex_mem_store.searchable(path))
    codex_mem_store.edit(path, codex_mem_store.note_id(0, 1))
    assert names(certified(path)) == {"certify.text-without-vector"}


def words_of(done: Any) -> set[str]:
    """Return the outcomes of the proof by words."""
    return {proof["outcome"] for one in done.document["bases"] for proof in one["proofs"] if proof["name"] == "words"}


@pytest.mark.thorough
def test_notes_of_codex_mem_that_words_do_not_find_are_found(tmp_path: Path) -> None:
    path = codex_mem_store.write(tmp_path / "memory", notes=6)
    codex_mem_store.embed(path)
    healthy = certified(path)
    assert (words_of(healthy), names(healthy)) == ({"proven"}, set())
    with closing(sqlite3.connect(path)) as db, db:
        rowid, title, content = db.execute(
            "SELECT rowid, title, content FROM memory_items WHERE searchable = 1 LIMIT 1"
        ).fetchone()
        db.execute(
            "INSERT INTO memory_items_fts (memory_items_fts, rowid, title, content) VALUES ('delete', ?, ?, ?)",
            (rowid, title, content),
        )
    broken = certified(path)
    assert (names(broken), "found" in words_of(broken)) == ({"certify.words-differ"}, True)
    messages = sorted(one["message"] for one in broken.document["findings"])
    assert len(messages) == 2
    assert messages[0].endswith("texts are not found by their own words")
    assert messages[0].startswith("1 of ")
    assert messages[1] == "not in the full-text index: 1 text"


@pytest.mark.thorough
@pytest.mark.parametrize("version", chroma_store.VERSIONS)
def test_documents_of_chroma_that_words_do_not_find_are_found(version: str, tmp_path: Path) -> None:
    store = chroma_store.extract(version, tmp_path)
    healthy = certified(store.root)
    assert words_of(healthy) <= {"proven", "sampled"}
    assert words_of(healthy)
    assert "certify.words-differ" not in names(healthy)
    with closing(sqlite3.connect(store.root / "chroma.sqlite3")) as db, db:
        first, second = (key for (key,) in db.execute("SELECT rowid FROM embedding_fulltext_search LIMIT 2"))
        db.execute("DELETE FROM embedding_fulltext_search WHERE rowid = ?", (first,))
        db.execute("UPDATE embedding_fulltext_search SET string_value = 'another text' WHERE rowid = ?", (second,))
    broken = certified(store.root)
    assert "certify.words-differ" in names(broken)
    messages = {one["message"] for one in broken.document["findings"] if one["name"] == "certify.words-differ"}
    assert {"not in the full-text index: 1 text", "the full-text index has another text of 1 text"} <= messages


def test_records_of_angel_memory_are_certified(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "data")
    done = certified(store.raw.parent)
    assert done.document["findings"] == []
    assert done.document["bases"][0]["findable"] == len(set(store.texts().values()))


def test_records_of_angel_memory_whose_vector_is_missing_or_of_another_text_are_texts_without_a_vector(
    tmp_path: Path,
) -> None:
    store = angel_store.build(tmp_path / "data")
    dropped, stale = sorted({text: key for key, text in store.texts().items()}.values())[:2]
    store.drop_vectors(dropped)
    store.put_vector(stale, "a text from before")
    (base,) = (done := certified(store.raw.parent)).document["bases"]
    (finding,) = done.document["findings"]
    assert (finding["name"], finding["message"]) == ("certify.text-without-vector", "2 texts without a vector")
    assert (base["texts"], base["texts"] - base["findable"]) == (len(set(store.texts().values())), 2)


def test_records_of_angel_memory_without_any_vector_are_counted(tmp_path: Path) -> None:
    store = angel_store.build(tmp_path / "data")
    store.drop_vectors(*store.texts())
    (base,) = certified(store.raw.parent).document["bases"]
    assert (base["texts"], base["vectors"]) == (len(set(store.texts().values())), 0)


@pytest.mark.thorough
@needs("chroma")
def test_an_index_of_chroma_that_lost_its_links_is_found(tmp_path: Path) -> None:
    store = chroma_store.extract("1.5", tmp_path)
    done = certified(store.root)
    assert (done.status, done.document["findings"]) == (0, [])
    assert "sampled" in {proof["outcome"] for one in done.document["bases"] for proof in one["proofs"]}
    elements = store.folder("plain") / "data_level0.bin"
    raw = bytearray(elements.read_bytes())
    for at in range(len(store.positions("plain"))):
        # No element has a link any more, so a search ends where it begins.
        raw[at * chroma_store.ELEMENT : at * chroma_store.ELEMENT + 2] = b"\0\0"
    elements.write_bytes(raw)
    assert names(certified(store.root)) == {"certify.index-differs"}


@pytest.mark.thorough
@pytest.mark.parametrize("version", chroma_store.VERSIONS)
def test_collections_of_chroma_are_read(version: str, tmp_path: Path) -> None:
    store = chroma_store.extract(version, tmp_path)
    done = certified(store.root)
    assert sum(one["vectors"] for one in done.document["bases"]) == sum(map(len, store.expected.values()))


# --- with a model ----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as started:
        yield started


@pytest.fixture
def filled(tmp_path: Path) -> Library:
    """Return a library whose vectors the server makes."""
    stores = {"one": [Row("L", text, vector=fault_server.vector_of(text)) for text in TEXTS]}
    return carried(tmp_path, base("one", file("a", "L")), stores=stores)


def config(server: FaultServer, folder: Path, **more: Any) -> Path:
    path = folder.parent / "regraft.yaml"
    settings = {
        "provider": "openai",
        "model": "embed-3",
        "model_ids": ["acme::embed-3"],
        "base_url": server.url,
        **more,
    }
    path.write_text(json.dumps({"embedders": {"one": settings}}), "utf-8")
    return path


def test_the_right_model_is_confirmed(server: FaultServer, filled: Library, tmp_path_factory: Any) -> None:
    place = config(server, tmp_path_factory.mktemp("c") / "x", price_per_million_tokens=0.5)
    done = certified(filled.path, "--config", place)
    assert done.status in (0, 1)
    checked = done.document["bases"][0]["model_check"]
    assert (checked["texts"], checked["same"], checked["problem"]) == (32, 32, None)
    assert checked["lowest"] == pytest.approx(1)
    assert checked["cosines"] == [0] * 9 + [32]
    assert len(server.texts) == 64
    assert set(server.texts[:32]) <= set(TEXTS)
    assert names(done) <= {"certify.known-item"}


@pytest.mark.thorough
def test_a_wrong_and_a_mixed_model_are_named_with_their_share(
    server: FaultServer, filled: Library, tmp_path_factory: Any
) -> None:
    place = config(server, tmp_path_factory.mktemp("c") / "x")
    for text in TEXTS[::2]:
        replace_vector(filled, text, unit(text))
    mixed = certified(filled.path, "--config", place)
    [found] = [one for one in mixed.document["findings"] if one["name"] == "certify.model-differs"]
    checked = mixed.document["bases"][0]["model_check"]
    other = checked["texts"] - checked["same"]
    # Texts are spread over the rows, of which every other one was changed.
    assert 12 <= other <= 20
    assert found["base"] == filled.base_id("one")
    assert f"{other} of 32 texts ({other / 32:.0%}) have another vector than embedder one makes" in found["message"]
    for text in TEXTS:
        replace_vector(filled, text, unit(text))
    wrong = certified(filled.path, "--config", place)
    [found] = [one for one in wrong.document["findings"] if one["name"] == "certify.model-differs"]
    assert "32 of 32 texts (100%)" in found["message"]
    assert wrong.status == 1


def test_vectors_of_another_length_are_of_another_model(
    server: FaultServer, filled: Library, tmp_path_factory: Any
) -> None:
    server.dimensions = 16
    done = certified(filled.path, "--config", config(server, tmp_path_factory.mktemp("c") / "x"))
    assert names(done) == {"certify.model-differs"}
    assert len(server.texts) == 32, "no end of a text is searched for"


def test_nothing_is_claimed_where_the_answers_have_several_lengths(
    server: FaultServer, filled: Library, tmp_path_factory: Any
) -> None:
    server.behave = [right, changed(lambda vectors: [vector + vector for vector in vectors])]
    place = config(server, tmp_path_factory.mktemp("c") / "x", batch={"texts": 16})
    done = certified(filled.path, "--config", place)
    checked = done.document["bases"][0]["model_check"]
    assert "dimensions instead of" in checked["problem"]
    assert (done.status, names(done), checked["texts"]) == (1, set(), 0)


def test_a_base_of_another_model_gets_nothing_sent(server: FaultServer, filled: Library, tmp_path_factory: Any) -> None:
    place = config(server, tmp_path_factory.mktemp("c") / "x", model="other", model_ids=["acme::other"])
    done = certified(filled.path, "--config", place)
    assert server.texts == []
    problem = done.document["bases"][0]["model_check"]["problem"]
    assert problem == "embedder one has model other, but the vectors are of acme::embed-3"
    assert (done.status, done.document["findings"]) == (0, [])


def test_the_price_is_asked_before_anything_is_sent(
    server: FaultServer, filled: Library, tmp_path_factory: Any
) -> None:
    place = config(server, tmp_path_factory.mktemp("c") / "x", price_per_million_tokens=1000)
    asked = []

    def refuse(planned: Any) -> bool:
        asked.append(planned)
        return False

    with pytest.raises(Declined):
        regraft.certify(filled.path, config=place, confirm=refuse)
    assert server.texts == []
    [planned] = asked
    assert (planned.embedder, planned.bases, planned.estimate.texts) == ("one", 1, 64)
    assert planned.estimate.cost == pytest.approx(planned.estimate.tokens / 1000)
    unasked = run("certify", filled.path, "--config", place, "--json")
    assert (unasked.status, unasked.document["error"]["code"]) == (2, "ConsentMissing")
    # Certify changes nothing, and has no --dry-run.
    assert unasked.document["error"]["message"] == (
        "regraft certify needs your confirmation, but cannot ask for it without a terminal; nothing was written or "
        "sent. Use --yes to confirm; --dry-run, if the command has it, shows the plan."
    )
    assert server.texts == []


@pytest.mark.thorough
def test_limits_hold_and_are_said(server: FaultServer, filled: Library, tmp_path_factory: Any) -> None:
    place = config(server, tmp_path_factory.mktemp("c") / "x")
    done = certified(filled.path, "--config", place, "--limit", 5)
    assert len(server.texts) == 5
    server.requests.clear()
    stopped = certified(filled.path, "--config", place, "--max-requests", 1)
    assert stopped.status == 1
    assert stopped.document["bases"][0]["model_check"]["problem"] == "--max-requests 1 is reached"
    assert stopped.document["not_checked"] == ["Base one: --max-requests 1 is reached"]
    assert done.document["bases"][0]["model_check"]["texts"] == 5


@pytest.mark.thorough
def test_a_base_that_a_limit_leaves_out_is_said(server: FaultServer, tmp_path: Path, tmp_path_factory: Any) -> None:
    stores = {
        "one": [Row("L", text, vector=fault_server.vector_of(text)) for text in TEXTS],
        "two": [Row("M", text, vector=fault_server.vector_of(text)) for text in TEXTS],
    }
    store = carried(tmp_path, base("one", file("a", "L")), base("two", file("b", "M")), stores=stores).path
    place = config(server, tmp_path_factory.mktemp("c") / "x")
    done = certified(store, "--config", place, "--limit", 5)
    first, second = done.document["bases"]
    assert (first["model_check"]["texts"], first["model_check"]["problem"]) == (5, None)
    assert (second["model_check"]["texts"], second["model_check"]["problem"]) == (0, "--limit 5 is reached")
    assert done.document["not_checked"] == [f"{second['name']}: --limit 5 is reached"]
    assert (done.status, len(server.texts)) == (1, 5)


def test_a_failing_server_is_no_finding_about_the_base(
    server: FaultServer, filled: Library, tmp_path_factory: Any
) -> None:
    server.behave = fault_server.server_error()
    place = config(server, tmp_path_factory.mktemp("c") / "x", retries=0)
    done = certified(filled.path, "--config", place)
    assert done.status == 1
    assert done.document["findings"] == []
    assert done.document["not_checked"]


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_page_says_what_was_proven_and_names_nothing(library: Library) -> None:
    same_vector(library)
    page = library.path.parent / "page.html"
    done = run("certify", library.path.parent / "v1", library.path, "--report", page)
    assert done.status == 1
    text = page.read_text("utf-8")
    assert "Proven for all" in text
    assert "Contradicted by a finding" in text
    assert "different texts have different vectors" in text
    assert "certify.vector-shared" in text
    assert text.count("<svg") >= 6
    assert "<script" not in text
    assert not re.search(r"(src|href)\s*=", text)
    for secret in (TEXTS[7], "Base one", str(library.path), "embed-3", library.base_id("one")[9:]):
        assert secret not in text
    assert run("certify", library.path, "--report", page).status == 1, "an earlier page is replaced"
    refused = run("certify", library.path, "--report", library.path / "page.html")
    assert refused.status == 2
    assert not (library.path / "page.html").exists()


@pytest.mark.thorough
def test_api_and_command_say_the_same(library: Library) -> None:
    swapped_vectors(library)
    source = library.path.parent / "v1"
    done = certified(source, library.path, "--sample", 7)
    report = regraft.certify(source, library.path, sample=7)
    one, other = json.loads(json.dumps(regraft.encoded(report))), done.document
    for document in (one, other):
        del document["run"]
    assert one == other
    assert report.sample == 7
    assert regraft.certify(library.path, all_=True).sample is None
    with pytest.raises(ValueError, match="sample"):
        regraft.certify(library.path, sample=0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "nothing: no such file or folder"),
        (("library", "nothing"), "nothing: no such file or folder"),
        (("library", "--base", "unknown"), "unknown"),
        (("library", "--embedder", "none"), "regraft.yaml"),
    ],
)
def test_refusals_are_one_line(
    arguments: tuple[str, ...], message: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(library.path.parent)
    before = snapshot(library.path.parent)
    done = run("certify", *arguments)
    assert done.status == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert snapshot(library.path.parent) == before


def test_where_there_is_no_base_nothing_is_proven(tmp_path: Path) -> None:
    source = Source([]).write(tmp_path / "v1")
    done = certified(source)
    assert (done.status, done.document["bases"], done.document["findings"]) == (1, [], [])
    assert done.document["not_checked"] == ["There is no base to certify."]
    assert run("certify", source).stdout.endswith("\n\nThere is no base to certify.\n")


def test_a_failed_base_is_said_not_to_be_checked(tmp_path: Path) -> None:
    stores = {"one": rows_of(TEXTS[:3])}
    library = carried(tmp_path, base("one", file("a", "L")), base("two", file("b", "M")), stores=stores)
    reason = "Base two: it failed (missing_vector_store) and has no index"
    done = certified(library.path)
    assert (done.status, [one["name"] for one in done.document["bases"]]) == (1, ["Base one"])
    assert (done.document["findings"], done.document["not_checked"]) == ([], [reason])
    assert f"\nNot checked: {reason}\n\nNothing found." in run("certify", library.path).stdout
    assert certified(library.path, "--base", "Base one").status == 0
    alone = run("certify", library.path, "--base", "Base two")
    assert alone.status == 1
    assert alone.stdout.endswith(f"Not checked: {reason}\n\nThere is no base to certify.\n")


@pytest.mark.thorough
def test_hostile_values_make_findings_and_no_traceback(library: Library) -> None:
    path = library.index_path("one")
    edit(path, "UPDATE embedding SET vector_blob = zeroblob(40000003) WHERE embedding_text_hash = ?", sha(TEXTS[0]))
    edit(path, "UPDATE embedding SET vector_blob = 'text' WHERE embedding_text_hash = ?", sha(TEXTS[1]))
    edit(path, "UPDATE search_text SET embedding_text_hash = x'ff00' WHERE text = ?", TEXTS[2])
    edit(path, "UPDATE search_text SET fts_rowid = NULL WHERE text = ?", TEXTS[3])
    huge = struct.pack("<8f", *[3e38] * 8)
    replace_vector(library, TEXTS[4], huge)
    done = certified(library.path)
    assert done.status == 1
    assert {"certify.text-without-vector", "certify.vector-unusable", "certify.words-differ"} <= names(done)


def test_a_view_in_the_place_of_a_table_is_refused(library: Library) -> None:
    path = library.index_path("one")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("ALTER TABLE embedding RENAME TO other")
        db.execute("CREATE VIEW embedding AS SELECT 1 AS vector_blob")
    done = certified(library.path)
    assert names(done) == {"certify.unreadable"}


# --- the parts -------------------------------------------------------------------------------------------------------


def test_nearest_vectors_equal_a_plain_sort_whatever_the_blocks() -> None:
    one = np.random.default_rng(3)
    vectors = one.normal(size=(501, 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    keys = np.arange(501, dtype=np.int64) * 3 + 1
    queries, own = vectors[:40], keys[:40]
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, 1:11]
    for size in (1, 7, 500, 10_000):

        def blocks(_: int, size: int = size) -> Iterator[tuple[Any, Any]]:
            for start in range(0, 501, size):
                yield keys[start : start + size], vectors[start : start + size]

        found = find_nearest(blocks, queries, own)
        assert (found.rowids == keys[expected]).all()
    few = find_nearest(lambda _: iter([(keys[:4], vectors[:4])]), queries[:1], own[:1])
    assert sorted(few.rowids[0].tolist()) == [-1] * 7 + sorted(keys[1:4].tolist())


def test_ties_are_no_difference() -> None:
    assert compare_neighbors([0.9, 0.80001, 0.8], 0.8) == compare_neighbors([0.9, 0.8, 0.80001], 0.8)
    swapped = compare_neighbors([0.7, 0.9], 0.7)
    assert (swapped.common, swapped.is_reordered) == (2, True)
    gone = compare_neighbors([0.9, None, 0.5], 0.8)
    assert (gone.common, gone.of, gone.is_reordered) == (1, 3, False)


def test_one_group_is_not_split() -> None:
    one = np.random.default_rng(8)
    for dimensions in (2, 16, 384):
        for shift in (0, 1, 5):
            vectors = one.normal(size=(400, dimensions)) + shift
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            assert find_two_groups(vectors.astype(np.float32)) is None


def test_beginnings_are_compared_without_case_accents_and_order() -> None:
    same = ["Été à Nice", "nice  ETE a", "É té  à  nIcE!"]
    assert len({certified_base.hash_beginning(text) for text in same}) == 1
    assert certified_base.hash_beginning("Été à Nice") != certified_base.hash_beginning("Été à Nizza")
    assert certified_base.hash_beginning("…!") is None
    long = "word " * 60
    assert certified_base.hash_beginning(long + "one end") == certified_base.hash_beginning(long + "another end")


def test_every_finding_is_planted_here_or_above() -> None:
    text = Path(__file__).read_text("utf-8")
    registered = {value for value in vars(certify_findings).values() if isinstance(value, str)} & set(load_findings())
    assert {name for name in registered if f'"{name}"' not in text} <= {"certify.self-missed"}
