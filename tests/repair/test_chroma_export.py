"""A base written to a collection of Chroma: chromadb reads back every vector, document, id and metadata."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chroma_store import ChromaStore, check, extract, opened
from deaths import dies, killed
from extras import needs
from faults import posix
from harness import NOW_MS, Outcome, command_words, run, snapshot
from parquet_bases import BASE
from toys import killed_at_or_before, quick_disk, steps_of

import regraft
from regraft.errors import RegraftError
from regraft.formats.cherry_v2 import index
from regraft.ledger.ledger import ChangeLog

pytestmark = needs("chroma")

DIMENSION = 24
Vectors = dict[str, bytes]


def unit_vectors(count: int, length: float = 1.0) -> Vectors:
    """Make vectors of one length by text."""
    numbers = np.random.default_rng(7).normal(size=(count, DIMENSION))
    numbers *= length / np.linalg.norm(numbers, axis=1, keepdims=True)
    return {f"Text {at}: 知识 café 🎉": one.astype("<f4").tobytes() for at, one in enumerate(numbers)}


def write_base(folder: Path, vectors: Vectors) -> Path:
    """Write an index with a material of up to seven units each, and return its base's folder."""
    path = folder / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite"
    path.parent.mkdir(parents=True)
    rows = list(vectors.items())
    parts = [
        index.Material(f"item-{at}", lambda _, at=at: f"file {at}.md", rows[at : at + 7])
        for at in range(0, len(rows), 7)
    ]
    index.build_index(path, BASE, NOW_MS, parts, lambda *_: None)
    return path.parent.parent


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def export(source: Path, target: Path, *options: object, name: str = "handbook") -> Outcome:
    return run("export", source, "--format", "chroma", "--to", target, "--collection", name, *options, "--json")


def read_collection(client: Any, name: str) -> dict[str, tuple[bytes, str | None, dict[str, Any] | None]]:
    """Return vector, document and metadata by id, as Chroma's API returns them."""
    got = client.get_collection(name, embedding_function=None).get(include=["embeddings", "documents", "metadatas"])
    vectors = [np.asarray(one, dtype="<f4").tobytes() for one in got["embeddings"]]
    metadata = [None if one is None else dict(one) for one in got["metadatas"]]
    rows = zip(vectors, got["documents"], metadata, strict=True)
    return dict(zip(got["ids"], rows, strict=True))


def read_folder(folder: Path, copy: Path, name: str = "handbook") -> dict[str, Any]:
    with opened(folder, copy) as client:
        return read_collection(client, name)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder of Chroma, without regraft's records."""
    return {name: raw for name, (size, _, raw) in snapshot(folder).items() if size >= 0 and ".regraft" not in name}


@pytest.mark.parametrize(
    ("length", "distance"), [(1.0, "cosine"), pytest.param(3.7, "l2", marks=pytest.mark.thorough), (3.7, "ip")]
)
def test_every_vector_reads_back_bit_for_bit(length: float, distance: str, tmp_path: Path) -> None:
    vectors = unit_vectors(1203, length)
    source = write_base(tmp_path / "library", vectors)
    before = snapshot(source)
    chosen = ("--distance", distance) if distance == "ip" else ()
    found = export(source, tmp_path / "chroma", *chosen)
    assert found.status == 0, found.stderr
    assert snapshot(source) == before
    document = found.document
    assert {key: document["collection"][key] for key in ("name", "distance", "entries")} == {
        "name": "handbook", "distance": distance, "entries": 1203
    }  # fmt: skip
    assert document["bases"][0]["rows"] == {"read": 1203, "carried": 1203, "skipped": {}}
    assert check(tmp_path / "chroma", "--deep") == {}
    with closing(sqlite3.connect(source / ".cherry" / "index.sqlite")) as db:
        rows = db.execute(
            "SELECT u.unit_id, t.text, m.relative_path, u.material_id, u.unit_index, u.char_start, u.char_end"
            " FROM search_unit u JOIN search_text t ON t.target_id = u.unit_id JOIN material m USING (material_id)"
        ).fetchall()
    expected = {
        unit: (
            vectors[text],
            text,
            {"path": path, "item": item, "unit_index": at, "char_start": start, "char_end": end},
        )
        for unit, text, path, item, at, start, end in rows
    }
    with opened(tmp_path / "chroma", tmp_path / "copy") as client:
        assert read_collection(client, "handbook") == expected
        collection = client.get_collection("handbook", embedding_function=None)
        key, (vector, _, _) = next(iter(expected.items()))
        assert collection.query(query_embeddings=[list(struct.unpack("<24f", vector))], n_results=1)["ids"] == [[key]]
        # It goes on as an ordinary collection.
        collection.add(ids=["new"], embeddings=[[1.0] * DIMENSION], documents=["new"])
        after = read_collection(client, "handbook")
        assert {key: after[key] for key in expected} == expected
    with closing(sqlite3.connect(tmp_path / "chroma" / "chroma.sqlite3")) as db:
        schema = db.execute("SELECT schema_str FROM collections").fetchone()
    assert '"sync_threshold":1000' in schema[0]


@pytest.mark.thorough
def test_cosine_refuses_vectors_that_chroma_would_change(tmp_path: Path) -> None:
    source = write_base(tmp_path / "library", unit_vectors(10) | {"long": unit_vectors(1, 2)["Text 0: 知识 café 🎉"]})
    found = export(source, tmp_path / "chroma", "--distance", "cosine")
    assert found.status == 2
    assert found.stderr == (
        f"regraft: Chroma would change 1 vector of {BASE}, because the distance cosine needs length 1"
        " (use --distance l2 or --distance ip).\n"
    )
    assert not (tmp_path / "chroma").exists()


@pytest.mark.thorough
def test_a_collection_comes_back_with_ids_and_metadata(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "source")
    models = ("--map-model", "plain=acme::embed-3")
    base = store.collection_id("plain")
    made = run("migrate", store.root, "--to", tmp_path / "library", "--base", base, *models, "--yes", "--json")
    assert made.status == 0, made.stderr
    assert export(tmp_path / "library", tmp_path / "chroma", name="plain").status == 0
    expected = {
        key: (bytes.fromhex(one["vector"]), one["document"], one["metadata"])
        for key, one in store.expected["plain"].items()
    }
    assert read_folder(tmp_path / "chroma", tmp_path / "copy", "plain") == expected
    with opened(tmp_path / "chroma", tmp_path / "another copy") as client:
        assert client.get_collection("plain", embedding_function=None).metadata == {"embedding_model": "acme::embed-3"}
    # The model is known, so the way back needs no option.
    again = run("migrate", tmp_path / "chroma", "--to", tmp_path / "again", "--yes", "--json")
    assert again.status == 0, again.stderr
    assert again.document["bases"][0]["rows"]["carried"] == len(expected)


@pytest.mark.thorough
def test_metadata_keeps_its_types(tmp_path: Path) -> None:
    import chromadb
    from chromadb.config import Settings

    source = tmp_path / "source"
    client = chromadb.PersistentClient(path=str(source), settings=Settings(anonymized_telemetry=False))
    collection = client.create_collection("types", embedding_function=None, metadata={"embedding_model": "a::b"})
    metadata = [
        {"text": "é\"'", "whole": 2**62, "number": 0.1, "one": 1.0, "flag": True, "off": False},
        {"words": ["b", "a"], "numbers": [1, 2], "halves": [0.5, 1.0], "flags": [True, False]},
        None,
        {"chroma_id": "not this one"},
    ]
    vectors = [[float(at + 1), 0.5, -2.0] for at in range(4)]
    collection.add(ids=list("abcd"), embeddings=vectors, documents=["x", "", None, "y"], metadatas=metadata)
    client.close()
    expected = read_folder(source, tmp_path / "first copy", "types")
    assert export(source, tmp_path / "chroma", name="types").status == 0
    assert read_folder(tmp_path / "chroma", tmp_path / "copy", "types") == expected


@pytest.mark.thorough
@needs("parquet")
def test_a_parquet_file_becomes_a_collection(tmp_path: Path) -> None:
    vectors = unit_vectors(30)
    source = write_base(tmp_path / "library", vectors)
    assert run("export", source, tmp_path / "units.parquet").status == 0
    assert export(source, tmp_path / "direct").status == 0
    options = ("--format", "chroma", "--to", tmp_path / "chroma", "--collection", "handbook", "--json")
    found = run("import", tmp_path / "units.parquet", *options)
    assert found.status == 0, found.stderr
    assert found.document["regraft"]["command"] == "import"
    assert found.document["source"]["kind"] == "parquet"
    expected = read_folder(tmp_path / "direct", tmp_path / "one copy")
    assert read_folder(tmp_path / "chroma", tmp_path / "another copy") == expected
    refused = run("import", tmp_path / "units.parquet", "--to", tmp_path / "library 2", "--distance", "l2")
    assert (refused.status, refused.stderr) == (
        2, "regraft: --distance applies only to a collection of Chroma (add --format chroma).\n"
    )  # fmt: skip


@pytest.mark.thorough
def test_other_collections_stay_and_undo_takes_it_back(tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "target")
    before = contents(store.root)
    source = write_base(tmp_path / "library", unit_vectors(40))
    report = regraft.export(source, store.root, format="chroma", collection="handbook")
    assert report.collection.name == "handbook"
    assert report.collection.undo
    with opened(store.root, tmp_path / "copy") as client:
        assert len(read_collection(client, "handbook")) == 40
        for name in ("plain", "products", "single"):
            found = {key: one[0].hex() for key, one in read_collection(client, name).items()}
            assert found == {key: one["vector"] for key, one in store.expected[name].items()}
    assert [one["command"] for one in run("history", store.root, "--json").document["runs"]] == ["export"]
    assert run("undo", store.root, "--yes").status == 0
    assert contents(store.root) == before


@pytest.mark.thorough
def test_the_undo_that_a_run_suggests_can_be_pasted(tmp_path: Path) -> None:
    source, target = write_base(tmp_path / "library", unit_vectors(3)), tmp_path / "my data"
    written = run("export", source, "--format", "chroma", "--to", target, "--collection", "handbook")
    assert written.status == 0, written.stderr
    suggested = command_words(written.stdout.splitlines()[-1].removeprefix("To undo this: "))
    assert suggested == ["regraft", "undo", str(target)]
    assert run(*suggested[1:], "--yes").status == 0
    with closing(sqlite3.connect(target / "chroma.sqlite3")) as db:
        assert db.execute("SELECT count(*) FROM collections").fetchall() == [(0,)]


@pytest.mark.thorough
def test_rows_that_chroma_cannot_take_are_counted(tmp_path: Path) -> None:
    vectors = unit_vectors(20)
    source = write_base(tmp_path / "library", vectors)
    infinite = struct.pack("<24f", *[float("inf")] * DIMENSION).hex()
    execute(
        source / ".cherry" / "index.sqlite",
        "DELETE FROM embedding WHERE rowid <= 3",
        f"UPDATE embedding SET vector_blob = x'{infinite}' WHERE rowid = 4",
    )
    found = export(source, tmp_path / "chroma")
    assert found.status == 1
    rows = found.document["bases"][0]["rows"]
    assert rows == {"read": 20, "carried": 16, "skipped": {"missing_vector_payload": 3, "non_finite_vector": 1}}
    kept = read_folder(tmp_path / "chroma", tmp_path / "copy")
    texts = list(vectors)[4:]
    assert {document: vector for vector, document, _ in kept.values()} == {text: vectors[text] for text in texts}


def refusals(tmp_path: Path) -> dict[str, tuple[Path, Path, tuple[object, ...], str]]:
    """Return for each case: source, target, further options, and the message."""
    source = write_base(tmp_path / "library", unit_vectors(3))
    store = extract("1.5", tmp_path / "made")
    older = extract("0.6", tmp_path / "older").root
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    empty = write_base(tmp_path / "empty", {"only words": b""})
    execute(empty / ".cherry" / "index.sqlite", "DELETE FROM embedding")
    new = tmp_path / "new"
    return {
        "collection exists": (source, store.root, ("--collection", "plain"), "has a collection plain already"),
        "name": (source, new, ("--collection", "a b"), "'a b' cannot be the name of a collection"),
        "another folder": (source, other, (), "other is neither empty nor a folder of Chroma"),
        "inside the source": (store.root, store.root / "new", ("--base", "plain"), f"it is inside {store.root},"),
        "several bases": (store.root, new, (), "a collection is written from one base"),
        "no vectors": (empty, new, (), "has no vectors"),
        "below a file": (source, other / "mine.txt" / "new", (), "mine.txt/new: cannot be written (Not a directory)"),
        "older version": (source, older, (), "it was written by another version of chromadb"),
    }  # fmt: skip


CASES = (
    *("collection exists", "name", "another folder", "inside the source"),
    *("several bases", "no vectors", "below a file", "older version"),
)  # fmt: skip


@pytest.mark.thorough
def test_what_is_refused_writes_nothing(tmp_path: Path) -> None:
    cases = refusals(tmp_path)
    assert tuple(cases) == CASES
    before = contents(tmp_path)
    for case, (source, target, options, message) in cases.items():
        words = ("export", source, "--format", "chroma", "--to", target, "--collection", "handbook", *options)
        found = run(*words)
        assert found.status == 2, (case, found)
        assert message in found.stderr, case
        assert found.stderr.count("\n") == 1, case
        # A refused run makes its ledger and removes it again: only the time of the folder is another.
        assert contents(tmp_path) == before, case


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("FILE", "--collection", "x"), "--collection applies only to a collection of Chroma"),
        (("FILE", "--format", "chroma"), "--format chroma writes to a folder"),
        (("--to", "FOLDER"), "a Parquet file is written to the file that follows PATH"),
        (("--to", "FOLDER", "--format", "chroma"), "--format chroma needs the name of a collection"),
    ],
)
def test_options_that_do_not_fit(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    source = write_base(tmp_path / "library", unit_vectors(3))
    before = snapshot(tmp_path)
    found = run("export", source, *(str(tmp_path / one) if one.isupper() else one for one in options))
    assert found.status == 2
    assert message in found.stderr
    assert snapshot(tmp_path) == before


def test_an_open_folder_is_refused(tmp_path: Path) -> None:
    import subprocess
    import sys

    store = extract("1.5", tmp_path / "target")
    source = write_base(tmp_path / "library", unit_vectors(3))
    before = snapshot(store.root)
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('BEGIN EXCLUSIVE');"
        "print('open', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(store.database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        found = export(source, store.root)
        holder.communicate("")
    assert found.status == 2
    assert "chroma.sqlite3 is open" in found.stderr
    assert snapshot(store.root) == before


@pytest.mark.thorough
def test_a_difference_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that chromadb would return differently: the comparison runs in another process, over a staged file."""
    from repair.chroma import new_collection

    store = extract("1.5", tmp_path / "target")
    source = write_base(tmp_path / "library", unit_vectors(3))
    before = contents(store.root)
    settle = new_collection._Job._finish_segment

    def damage(self: Any, built: Path, staged: Path) -> None:
        settle(self, built, staged)
        execute(
            built / "chroma.sqlite3", "UPDATE embedding_metadata SET string_value = 'x' WHERE string_value LIKE 'file%'"
        )

    monkeypatch.setattr(new_collection._Job, "_finish_segment", damage)
    with pytest.raises(RegraftError, match="reads back differently") as refused:
        regraft.export(source, store.root, format="chroma", collection="handbook")
    assert refused.value.code == "CollectionRefused"
    assert contents(store.root) == before
    with pytest.raises(RegraftError, match="reads back differently"):
        regraft.export(source, tmp_path / "new", format="chroma", collection="handbook")
    assert not (tmp_path / "new").exists()


def test_a_dry_run_reports_and_writes_nothing(tmp_path: Path) -> None:
    source = write_base(tmp_path / "library", unit_vectors(40))
    execute(source / ".cherry" / "index.sqlite", "DELETE FROM embedding WHERE rowid <= 3")
    store = extract("1.5", tmp_path / "target")
    before = snapshot(tmp_path)
    for target in (store.root, tmp_path / "new"):
        found = export(source, target, "--dry-run")
        assert found.status == 1, found.stderr
        assert found.document["run"]["dry_run"] is True
        expected = {"name": "handbook", "distance": "cosine", "entries": 37, "undo": None}
        assert found.document["collection"] == expected
        assert found.document["bases"][0]["rows"]["skipped"] == {"missing_vector_payload": 3}
        words = ("export", source, "--format", "chroma", "--to", target, "--collection", "handbook", "--dry-run")
        assert run(*words).stdout.endswith(
            f"Would write the collection handbook with 37 entries to {target} (distance cosine).\n"
            "Dry run: nothing was written.\n"
        )
    assert snapshot(tmp_path) == before


# Only a run tries to make the folder.
@pytest.mark.parametrize("case", [case for case in CASES if case != "below a file"])
def test_a_dry_run_refuses_what_a_run_refuses(case: str, tmp_path: Path) -> None:
    source, target, options, message = refusals(tmp_path)[case]
    before = snapshot(tmp_path)
    found = export(source, target, *options, "--dry-run")
    assert found.status == 2
    assert message in found.stderr or message in json.loads(found.stdout)["error"]["message"]
    assert snapshot(tmp_path) == before


@pytest.mark.thorough
@posix
@pytest.mark.parametrize("command", ["export", pytest.param("import", marks=needs("parquet"))])
def test_a_kill_leaves_no_part_of_a_collection(command: str, tmp_path: Path) -> None:
    store = extract("1.5", tmp_path / "target")
    vectors = unit_vectors(12)
    source = write_base(tmp_path / "library", vectors)
    if command == "import":
        assert run("export", source, tmp_path / "units.parquet").status == 0

    def work(one: ChromaStore) -> Outcome:
        if command == "export":
            return export(source, one.root)
        words = ("--format", "chroma", "--to", one.root, "--collection", "handbook", "--json")
        return run("import", tmp_path / "units.parquet", *words)

    with quick_disk() as disk:
        first = store.copy_into(tmp_path)
        steps = steps_of(disk, lambda: work(first))
        for at in (len(steps) // 3, 2 * len(steps) // 3, len(steps) - 4, len(steps) - 1):
            one = killed_at_or_before(disk, at, lambda: store.copy_into(tmp_path), work)
            names = {name for (name,) in one.rows("SELECT name FROM collections")}
            assert {name for (name,) in store.rows("SELECT name FROM collections")} == names - {"handbook"}
            assert set(check(one.root)) <= {"segment-orphan"}
            if "handbook" not in names:
                assert work(one).status == 0
            kept = read_folder(one.root, tmp_path / f"copy-{at}")
            assert {document: vector for vector, document, _ in kept.values()} == vectors


@pytest.mark.thorough
@posix
def test_the_segment_that_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    """The folder of the segment takes its place before the database that refers to it."""
    store = extract("1.5", tmp_path / "target")
    vectors = unit_vectors(12)
    source = write_base(tmp_path / "library", vectors)
    before = contents(store.root)
    begins_database = dies(ChangeLog, "intend", lambda *given: "chroma.sqlite3" in given)
    killed(begins_database, lambda: export(source, store.root))
    left = {name: raw for name, raw in contents(store.root).items() if name not in before}
    assert {Path(name).name for name in left} >= {"header.bin", "data_level0.bin"}

    assert export(source, store.root).status == 0
    assert not left.keys() & contents(store.root).keys()
    assert check(store.root) == {}
    kept = read_folder(store.root, tmp_path / "copy")
    assert {document: vector for vector, document, _ in kept.values()} == vectors
    assert run("undo", store.root, "--yes").status == 0
    assert contents(store.root) == before


def test_lists_in_metadata_are_read(tmp_path: Path) -> None:
    """Versions from 1.5 on keep lists in a table of their own."""
    store = extract("1.5", tmp_path / "source")
    (number,) = store.rows("SELECT id FROM embeddings WHERE embedding_id = 'only'")[0]
    store.execute("INSERT INTO embedding_metadata_array VALUES (?, 'tags', 'b', NULL, NULL, NULL)", number)
    store.execute("INSERT INTO embedding_metadata_array VALUES (?, 'tags', 'a', NULL, NULL, NULL)", number)
    models = ("--base", store.collection_id("single"), "--map-model", "single=acme::embed-3")
    assert run("migrate", store.root, "--to", tmp_path / "library", *models, "--yes").status == 0
    (path,) = (tmp_path / "library").rglob("index.sqlite")
    with closing(sqlite3.connect(path)) as db:
        (locator,) = db.execute("SELECT locator_json FROM search_unit").fetchone()
    assert json.loads(locator) == {"chroma_id": "only", "metadata": {"tags": ["b", "a"]}}


def test_import_takes_files_and_no_folder(tmp_path: Path) -> None:
    source = write_base(tmp_path / "library", unit_vectors(2))
    before = snapshot(tmp_path)
    found = run("import", source, "--to", tmp_path / "target")
    reason = "this is a folder; import reads files of regraft export; for a store, use regraft migrate"
    assert (found.status, found.stderr) == (2, f"regraft: {source}: {reason}.\n")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("option", [("--format", "chroma"), ("--collection", "x"), ("--distance", "l2")])
def test_a_fleet_writes_no_collection(option: tuple[str, ...], tmp_path: Path) -> None:
    write_base(tmp_path / "libraries" / "one", unit_vectors(2))
    before = snapshot(tmp_path)
    words = (tmp_path / "libraries", "--to", tmp_path / "out", "--results", tmp_path / "r.parquet", "--yes")
    found = run("fleet", "export", *words, "--", *option)
    assert found.status == 2
    assert f"{option[0]} is for one collection of Chroma, which a fleet does not write" in found.stderr
    assert snapshot(tmp_path) == before
