"""Damages folders that several versions of chromadb wrote, repairs them, and reads them back with the same version.

``python -m benchmarks.chroma_versions PYTHON... --rows 20000`` takes the Python of an environment for each version.
Each writes a folder with collections of three distances, from whose queue everything is purged that the segments have.
``--links`` sets the links of an element. Then one file at a time is damaged, in a copy: the upper layers of a graph are
overwritten, the label map is removed, the full-text index is cut, sequence numbers are mixed, and each file of the
segments is cut in half. ``regraft repair`` runs in an interpreter in which no socket can connect. At the end, the
version that wrote the folder reads it through its API, and ``--reader``, the Python of another version.

The exit status is 1 when a vector differs, when an entry without a vector is not named by the repair, or when a named
one has its vector in what was left of the files.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from chroma_store import (  # noqa: E402
    DIMENSION,
    ELEMENT,
    ChromaStore,
    cut_elements,
    cut_file,
    cut_full_text,
    mix_numbers,
    overwrite_links,
    provable,
    purge_queue,
    remove_labels,
)

#: The collections that are damaged, one of each distance.
NAMES = ("plain", "angles", "products")
_WRITE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import chromadb, chroma_fixtures
rows, links = int(sys.argv[4]), json.loads(sys.argv[5])
batch = min(500, rows // 10)
found = chroma_fixtures.write_folder(Path(sys.argv[2]), rows, batch, 2 * batch, links)
Path(sys.argv[3]).write_text(json.dumps(found), "utf-8")
print(chromadb.__version__)
"""
#: Reads the vectors of ids in pages; in a page where the API fails, one by one.
_READ = """
import json, sys
import chromadb, numpy as np
from chromadb.config import Settings
client = chromadb.PersistentClient(path=sys.argv[1], settings=Settings(anonymized_telemetry=False))
wanted, found = json.load(open(sys.argv[2], encoding="utf-8")), {}

def read(collection, ids):
    got = collection.get(ids=ids, include=["embeddings", "documents"])
    pairs = zip(got["ids"], got["embeddings"], got["documents"], strict=True)
    return {key: (np.asarray(one, dtype="<f4").tobytes().hex(), text) for key, one, text in pairs if one is not None}

for name, ids in wanted.items():
    collection, found[name] = client.get_collection(name), {}
    for start in range(0, len(ids), 500):
        found[name].update(read(collection, ids[start : start + 500]))
    if ids:
        vector = bytes.fromhex(found[name][ids[0]][0])
        assert collection.query(query_embeddings=[np.frombuffer(vector, "<f4").tolist()], n_results=1)["ids"][0]
json.dump(found, open(sys.argv[3], "w", encoding="utf-8"))
"""
_BLOCKED = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("a socket was made")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from regraft.__main__ import main
if __name__ == "__main__": main()
"""


def kept_elements(store: ChromaStore, name: str, damage: str) -> int:
    """Return the number of elements whose vector a damage leaves."""
    count = len(store.positions(name))
    is_cut = (damage == "elements cut" and name in NAMES) or (damage == "lengths cut" and name == "angles")
    if damage == "lengths cut" and is_cut:
        return (store.folder(name) / "length.bin").stat().st_size // 2 // 4
    return count // 2 if is_cut else count


def damage_each(damage: Callable[[ChromaStore, str], None]) -> Callable[[ChromaStore], None]:
    """Damage each of the collections."""

    def work(store: ChromaStore) -> None:
        for name in NAMES:
            damage(store, name)

    return work


DAMAGES: dict[str, Callable[[ChromaStore], None]] = {
    "links overwritten": damage_each(overwrite_links),
    "labels removed": damage_each(remove_labels),
    "full text cut": cut_full_text,
    "numbers mixed": mix_numbers,
    "elements cut": damage_each(cut_elements),
    "lengths cut": lambda store: cut_file(store, "length.bin", "angles"),
    "header cut": damage_each(lambda store, name: cut_file(store, "header.bin", name)),
    "links cut": damage_each(lambda store, name: cut_file(store, "link_lists.bin", name)),
    "labels cut": damage_each(lambda store, name: cut_file(store, "index_metadata.pickle", name)),
}


def try_damage(store: ChromaStore, damage: str, readers: list[str], folder: Path) -> list[str]:
    """Damage a copy, repair it, and read it back with each version; returns what is wrong."""
    known = {
        name: provable(
            store,
            name,
            kept_elements(store, name, damage),
            has_labels=damage not in ("labels removed", "labels cut") or name not in NAMES,
        )
        for name in store.expected
        if store.expected[name]
    }
    one = ChromaStore(shutil.copytree(store.root, folder / "damaged"), store.expected)
    DAMAGES[damage](one)
    blocked = folder / "blocked.py"
    blocked.write_text(_BLOCKED, "utf-8")
    started = time.perf_counter()
    command = [sys.executable, str(blocked), "repair", str(one.root), "--yes", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 1):
        return [f"repair ended with {done.returncode}: {done.stderr}"]
    left = [row for row in json.loads(done.stdout)["left"] if row["finding"] == "chroma.vector-missing"]
    problems, lost = [], 0
    for name, ids in known.items():
        of_base = [row for row in left if row["base"] == store.collection_id(name)]
        named = {row["subject"] for row in of_base if row["subject"] is not None}
        count = len(named) + sum(row["count"] for row in of_base if row["subject"] is None)
        missing = store.expected[name].keys() - ids
        lost += len(missing)
        if count != len(missing) or named - missing:
            problems.append(f"{name}: {count} named as lost, {len(missing)} are; {len(named & ids)} of them have one")
        texts = {key: store.expected[name][key]["document"] for key in named & missing}
        problems += [
            f"{name}: {row['subject']} is named without its text"
            for row in of_base
            if texts.get(row["subject"], "") not in row["reason"]
        ]
    for python in readers:
        wrong, exact, rounded = read_back(store, one.root, python, known, folder)
        problems += wrong
        counts = f"{exact:,} bit-equal, {rounded:,} by Chroma's rounding, {lost:,} lost and named"
        print(f"  {damage}: {counts}, {seconds:.1f} s", flush=True)
    return problems


def read_back(
    store: ChromaStore, root: Path, python: str, known: dict[str, set[str]], folder: Path
) -> tuple[list[str], int, int]:
    """Read a copy with a version; returns what is wrong, and how many vectors are equal, or differ by its rounding."""
    copy, problems, exact, rounded = folder / "read", [], 0, 0
    # Chroma applies its queue when it opens a folder.
    shutil.copytree(root, copy, ignore=shutil.ignore_patterns(".regraft"))
    (folder / "wanted.json").write_text(json.dumps({name: sorted(ids) for name, ids in known.items()}), "utf-8")
    read = [python, "-c", _READ, str(copy), str(folder / "wanted.json"), str(folder / "found.json")]
    reading = subprocess.run(read, capture_output=True, text=True, check=False)
    shutil.rmtree(copy)
    if reading.returncode:
        return [f"the API failed: {reading.stderr[-500:]}"], 0, 0
    found = json.loads((folder / "found.json").read_text("utf-8"))
    for name, ids in known.items():
        for key in ids:
            vector, text = found[name].get(key, (None, None))
            expected = store.expected[name][key]
            if vector == expected["vector"] and text == expected["document"]:
                exact += 1
            elif vector is not None and name == "angles" and _is_close(vector, expected["vector"]):
                rounded += 1
            else:
                problems.append(f"{name}: {key} differs")
    return problems, exact, rounded


def _is_close(one: str, other: str) -> bool:
    pairs = zip(*(struct.unpack(f"<{DIMENSION}f", bytes.fromhex(vector)) for vector in (one, other)), strict=True)
    return all(abs(left - right) <= 4e-7 * abs(right) + 1e-8 for left, right in pairs)


def main() -> int:
    """Try all versions."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python", nargs="+")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--links", type=int)
    parser.add_argument("--reader", help="the Python of another version, which reads each folder, too")
    given, bad = parser.parse_args(), 0
    assert ELEMENT > DIMENSION
    for python in given.python:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            command = [python, "-c", _WRITE, str(SUPPORT), str(folder / "chroma"), str(folder / "expected.json")]
            written = subprocess.run(
                [*command, str(given.rows), json.dumps(given.links)], capture_output=True, text=True, check=True
            )
            store = ChromaStore(folder / "chroma", json.loads((folder / "expected.json").read_text("utf-8")))
            purge_queue(store)
            with closing(sqlite3.connect(store.database)) as db:
                (rows,) = db.execute("SELECT count(*) FROM embeddings").fetchone()
            print(f"chromadb {written.stdout.split()[-1]}: {rows:,} entries", flush=True)
            for damage in DAMAGES:
                with tempfile.TemporaryDirectory() as work:
                    problems = try_damage(
                        store, damage, [python, *([given.reader] if given.reader else [])], Path(work)
                    )
                for problem in problems[:5]:
                    print(f"  {damage}: {problem}", flush=True)
                bad += len(problems)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
