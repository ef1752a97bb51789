"""Folders of Chroma that real chromadb wrote (``tests/golden/chroma``), damaged by plain file and SQL operations."""

from __future__ import annotations

import json
import pickle
import shutil
import sqlite3
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from harness import run

VERSIONS = ("0.4", "0.6", "1.5")
DIMENSION = 16
#: Bytes of an element: links, their count, the vector and the label.
ELEMENT = 4 + 128 + 4 * DIMENSION + 8
FULL_TEXT = "embedding_fulltext_search"


@dataclass(frozen=True)
class ChromaStore:
    """A folder of Chroma, and what Chroma's API returned for each collection when it was written."""

    root: Path
    expected: dict[str, dict[str, Any]]

    def copy_into(self, folder: Path) -> ChromaStore:
        """Copy the folder into a new one in another."""
        return ChromaStore(Path(shutil.copytree(self.root, Path(tempfile.mkdtemp(dir=folder), "store"))), self.expected)

    @property
    def database(self) -> Path:
        return self.root / "chroma.sqlite3"

    def rows(self, query: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as db:
            return db.execute(query, values).fetchall()

    def execute(self, statement: str, *values: Any) -> None:
        with closing(sqlite3.connect(self.database)) as db:
            db.execute(statement, values)
            db.commit()

    def collection_id(self, name: str) -> str:
        return str(self.rows("SELECT id FROM collections WHERE name = ?", name)[0][0])

    def segment(self, name: str, scope: str = "VECTOR") -> str:
        query = "SELECT id FROM segments WHERE scope = ? AND collection = ?"
        return str(self.rows(query, scope, self.collection_id(name))[0][0])

    def folder(self, name: str) -> Path:
        return self.root / self.segment(name)

    def positions(self, name: str) -> dict[int, int]:
        """Return the position of each label in the elements of a segment; empty without one."""
        if not (self.folder(name) / "header.bin").exists():
            return {}
        raw = (self.folder(name) / "data_level0.bin").read_bytes()
        count, size = struct.unpack_from("<QQ", (self.folder(name) / "header.bin").read_bytes(), 20)
        return {struct.unpack_from("<Q", raw, (at + 1) * size - 8)[0]: at for at in range(count)}


def extract(version: str, folder: Path) -> ChromaStore:
    """Extract the folder that a version of chromadb wrote."""
    with zipfile.ZipFile(harness.HERE / "golden" / "chroma" / f"chroma-{version}.zip") as archive:
        archive.extractall(folder)
    expected = json.loads((folder / "expected.json").read_text("utf-8"))
    return ChromaStore(folder / "chroma", expected)


@contextmanager
def opened(folder: Path, copy: Path) -> Iterator[Any]:
    """Open a copy of a folder with chromadb, in this process."""
    import chromadb
    from chromadb.config import Settings

    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".regraft"))
    # The first client migrates the copy. chromadb can panic if the same one then reads a folder of 0.4.
    chromadb.PersistentClient(path=str(copy), settings=Settings(anonymized_telemetry=False)).close()
    client = chromadb.PersistentClient(path=str(copy), settings=Settings(anonymized_telemetry=False))
    try:
        yield client
    finally:
        client.close()


def read_vectors(client: Any, name: str) -> dict[str, str | None]:
    """Return what Chroma's API returns for each id: float32 as hexadecimal digits, or None where it fails."""
    import numpy as np

    collection = client.get_collection(name, embedding_function=None)
    found: dict[str, str | None] = {}
    for key in collection.get(include=[])["ids"]:
        try:
            vector = collection.get(ids=[key], include=["embeddings"])["embeddings"][0]
        except Exception:
            found[key] = None
        else:
            found[key] = np.asarray(vector, dtype="<f4").tobytes().hex()
    return found


def check(path: Path, *options: object) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of an audit by name, without the prefix."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one in run("check", path, "--json", *options).document["findings"]:
        found.setdefault(one["name"].removeprefix("chroma."), []).append(one)
    return found


# --- damage ----------------------------------------------------------------------------------------------------------


def overwrite_links(store: ChromaStore, name: str = "plain") -> None:
    file = store.folder(name) / "link_lists.bin"
    file.write_bytes(b"\xff" * file.stat().st_size)


def remove_labels(store: ChromaStore, name: str = "plain") -> None:
    (store.folder(name) / "index_metadata.pickle").unlink()


def hostile_labels(store: ChromaStore, name: str = "plain") -> None:
    (store.folder(name) / "index_metadata.pickle").write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")


def cut_elements(store: ChromaStore, name: str = "plain") -> None:
    """Keep the first half of the elements that are there."""
    file = store.folder(name) / "data_level0.bin"
    file.write_bytes(file.read_bytes()[: len(store.positions(name)) // 2 * ELEMENT])


def destroy_header(store: ChromaStore, name: str = "plain") -> None:
    (store.folder(name) / "header.bin").write_bytes(b"\x07" * 100)


def forge_count(store: ChromaStore, count: int, name: str = "plain") -> None:
    """Let the header count other elements than there are, with an entry point among them."""
    file = store.folder(name) / "header.bin"
    raw = bytearray(file.read_bytes())
    struct.pack_into("<Q", raw, 20, count)
    struct.pack_into("<I", raw, 56, 0)
    file.write_bytes(raw)


def forge_field(store: ChromaStore, form: str, offset: int, value: float, name: str = "plain") -> None:
    """Write a field of a header."""
    file = store.folder(name) / "header.bin"
    raw = bytearray(file.read_bytes())
    struct.pack_into(form, raw, offset, value)
    file.write_bytes(raw)


def state_dimension(store: ChromaStore) -> None:
    """Let the row of a collection have another dimension than its vectors."""
    store.execute("UPDATE collections SET dimension = 3 WHERE name = 'plain'")


def cut_file(store: ChromaStore, file: str, name: str) -> None:
    """Keep the first half of a file of a segment."""
    path = store.folder(name) / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def purge_queue(store: ChromaStore) -> None:
    """Remove the operations that every segment has, as versions from 0.5.6 on do."""
    for name, rows in store.expected.items():
        if rows:
            store.execute(
                "DELETE FROM embeddings_queue WHERE seq_id <= ? AND substr(topic, -36) = ?",
                applied(store, name),
                store.collection_id(name),
            )


def applied(store: ChromaStore, name: str) -> int:
    """Return the last operation that both segments of a collection have."""
    found = []
    for scope in ("VECTOR", "METADATA"):
        rows = store.rows("SELECT seq_id FROM max_seq_id WHERE segment_id = ?", store.segment(name, scope))
        if rows:
            number = rows[0][0]
            found.append(int.from_bytes(number, "big") if isinstance(number, bytes) else number)
        else:
            found.append(read_label_map(store, name).get("max_seq_id") or 0)
    return min(found)


class Labels(pickle._Unpickler):
    """Reads the label maps that chromadb wrote for the tests, without the version that wrote them.

    The unpickler in C would make room for any number that a changed map gives an object.
    """

    def find_class(self, _: str, name: str) -> Any:
        """Take the one class of versions before 1.0 for a namespace."""
        assert name == "PersistentData"
        return type(name, (), {})


def read_label_map(store: ChromaStore, name: str) -> dict[str, Any]:
    """Return the label map of a segment; empty without one."""
    path = store.folder(name) / "index_metadata.pickle"
    if not path.exists():
        return {}
    with path.open("rb") as file:
        found = Labels(file).load()
    return found if isinstance(found, dict) else dict(vars(found))


def provable(store: ChromaStore, name: str, elements: int, *, has_labels: bool = True) -> set[str]:
    """Return the ids whose vector is in the first elements of a sound segment, or in the queue."""
    positions = store.positions(name)
    labels = read_label_map(store, name).get("id_to_label", {}) if has_labels else {}
    found = {key for key, label in labels.items() if positions[label] < elements}
    query = (
        "SELECT id, operation, vector IS NOT NULL FROM embeddings_queue WHERE substr(topic, -36) = ? ORDER BY seq_id"
    )
    for key, operation, has_vector in store.rows(query, store.collection_id(name)):
        if operation == 3:
            found.discard(key)
        elif has_vector:
            found.add(key)
    return found & store.expected[name].keys()


def cut_norms(store: ChromaStore) -> None:
    file = store.folder("angles") / "length.bin"
    file.write_bytes(file.read_bytes()[:40])


def mix_numbers(store: ChromaStore) -> None:
    for key, number in store.rows("SELECT id, seq_id FROM embeddings WHERE id % 2"):
        other = int.from_bytes(number, "big") if isinstance(number, bytes) else number.to_bytes(8, "big")
        store.execute("UPDATE embeddings SET seq_id = ? WHERE id = ?", other, key)


def cut_full_text(store: ChromaStore) -> None:
    store.execute(f"DELETE FROM {FULL_TEXT}_data WHERE id > 10")
    store.execute(f"DELETE FROM {FULL_TEXT}_content WHERE id % 3 = 0")


def forget_tables(store: ChromaStore, *names: str) -> None:
    """Remove tables from the schema, as a tool for damaged files leaves it that could not copy them."""
    with closing(sqlite3.connect(store.database)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.executemany("DELETE FROM sqlite_schema WHERE name = ?", [(name,) for name in names])
        db.commit()
    store.execute("VACUUM")


def write_vector(store: ChromaStore, label: int, vector: bytes, name: str = "plain") -> None:
    """Write the vector of the element with a label."""
    file = store.folder(name) / "data_level0.bin"
    raw = bytearray(file.read_bytes())
    at = store.positions(name)[label] * ELEMENT + 132
    raw[at : at + len(vector)] = vector
    file.write_bytes(raw)


def read_vector(store: ChromaStore, label: int, name: str = "plain") -> bytes:
    """Read the vector of the element with a label."""
    at = store.positions(name)[label] * ELEMENT + 132
    return (store.folder(name) / "data_level0.bin").read_bytes()[at : at + 4 * DIMENSION]


Damage = Callable[[ChromaStore], None]
