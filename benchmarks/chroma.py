"""Measures reading a large segment of Chroma, and runs commands on damaged folders.

``python -m benchmarks.chroma speed --elements 1000000`` writes a segment of 384 dimensions with cosine distance, and
reads its files, its label map and its vectors. The exit status is 1 when the memory exceeds 250 MB.

``python -m benchmarks.chroma mutate --count 2000`` damages folders that real chromadb wrote, in one to three files
each, and runs ``check``, ``inspect``, ``repair --dry-run``, ``migrate --dry-run`` and ``export`` on each; every tenth
time on a zip archive of it. ``--first N`` starts with folder N, so that batches make up the whole. The exit status is 1
when a command ends in a traceback or in more than one line, writes to its source, or when the memory exceeds 250 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import random
import resource
import shutil
import sqlite3
import statistics
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

from chroma_store import VERSIONS, extract  # noqa: E402
from harness import run  # noqa: E402

from regraft.formats.chroma import database, label_map  # noqa: E402
from regraft.formats.chroma.collection import open_collection  # noqa: E402
from regraft.formats.chroma.database import ELEMENTS_FILE, NORMS_FILE  # noqa: E402

DIMENSION, AT_ONCE, MAX_PEAK_MB = 384, 20_000, 250
_KILOBYTES = 1 << 10 if sys.platform == "darwin" else 1


def make(folder: Path, elements: int) -> Path:
    """Write a folder with one collection whose segment has so many elements."""
    root = extract("1.5", folder).root
    with closing(sqlite3.connect(root / database.FILE)) as db:
        (key,) = db.execute("SELECT id FROM collections WHERE name = 'angles'").fetchone()
        segments = dict(db.execute("SELECT scope, id FROM segments WHERE collection = ?", (key,)))
        db.execute("DELETE FROM collections WHERE id <> ?", (key,))
        db.execute("UPDATE collections SET dimension = ?", (DIMENSION,))
        for table in ("embeddings", "embedding_metadata", "embeddings_queue", "max_seq_id"):
            db.execute(f"DELETE FROM {table}")
        rows = ((at, segments["METADATA"], f"document-{at:08}", at) for at in range(1, elements + 1))
        db.executemany("INSERT INTO embeddings (id, segment_id, embedding_id, seq_id) VALUES (?, ?, ?, ?)", rows)
        db.executemany("INSERT INTO max_seq_id VALUES (?, ?)", [(one, elements) for one in segments.values()])
        db.commit()
    _write_segment(root / segments["VECTOR"], elements)
    return root


def _write_segment(folder: Path, elements: int) -> None:
    size = 12 + 128 + 4 * DIMENSION
    fields = (1, 0, elements, elements, size, size - 8, 132, 0, 0, 16, 32, 16, 0.36, 100)
    (folder / database.HEADER_FILE).write_bytes(struct.pack("<iQQQQQQiIQQQdQ", *fields))
    layout = np.dtype([("count", "<u4"), ("links", "<u4", (32,)), ("vector", "<f4", (DIMENSION,)), ("label", "<u8")])
    numbers = np.random.default_rng(1)
    with (folder / ELEMENTS_FILE).open("wb") as file, (folder / NORMS_FILE).open("wb") as norms:
        for start in range(0, elements, AT_ONCE):
            block = np.zeros(min(AT_ONCE, elements - start), layout)
            vectors = numbers.normal(size=(len(block), DIMENSION)).astype("<f4")
            lengths = np.linalg.norm(vectors, axis=1).astype("<f4")
            block["vector"], block["label"] = vectors / lengths[:, None], np.arange(start + 1, start + len(block) + 1)
            file.write(block.tobytes())
            norms.write(lengths.tobytes())
    (folder / database.UPPER_FILE).write_bytes(bytes(4 * elements))
    labels = {f"document-{at:08}": at for at in range(1, elements + 1)}
    state = {"dimensionality": None, "total_elements_added": elements, "max_seq_id": elements}
    state |= {"id_to_label": labels, "label_to_id": {at: key for key, at in labels.items()}, "id_to_seq_id": {}}
    (folder / label_map.FILE).write_bytes(pickle.dumps(state, 4))


def speed(root: Path) -> int:
    """Read the files, the label map and the vectors of a folder that :func:`make` wrote, and print the times."""

    def timed(name: str, work: Callable[[], object]) -> float:
        started, used = time.perf_counter(), time.process_time()
        work()
        used = time.process_time() - used
        print(f"{name}: {time.perf_counter() - started:.2f} s, {used:.2f} s of CPU time")
        return used

    with database.open_chroma(root / database.FILE) as db:
        (of,) = database.list_collections(db)
        folder = root / str(of.vectors)
        timed("label map", lambda: label_map.read_label_map(folder / label_map.FILE, lambda _, __: None))
        started = time.perf_counter()
        with open_collection(db, of, root) as state:
            print(f"labels compared with entries and elements: {time.perf_counter() - started:.2f} s")
            ratios = []
            # In turn, because what else runs on the machine changes the times of both.
            for _ in range(5):
                once = timed("files once", lambda: [_read(folder / name) for name in (ELEMENTS_FILE, NORMS_FILE)])
                used = timed("vectors", lambda: sum(len(block.vectors) for block in state.segment_blocks()))
                ratios.append(used / once)
            print(f"vectors take {statistics.median(ratios):.2f} times the CPU time of their files")
            timed("vectors and ids", lambda: sum(len(block.read_ids()) for block in state.segment_blocks()))
    return _report_memory()


def _report_memory() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / _KILOBYTES
    print(f"peak memory: {peak:.0f} MB")
    return int(peak > MAX_PEAK_MB)


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 20):
            pass


def mutate(folder: Path, first: int, count: int, seed: int) -> int:
    """Damage folders and run commands on them; returns 1 if one of them misbehaves."""
    bad = 0
    sound = [extract(version, folder / version).root for version in VERSIONS]
    for at in range(first, first + count):
        numbers = random.Random(f"{seed}:{at}")
        root = folder / "mutated"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(sound[at % len(sound)], root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for file in numbers.sample(files, numbers.randrange(1, 4)):
            file.write_bytes(_damaged(bytearray(file.read_bytes()), numbers))
        before = {file: file.read_bytes() for file in files}
        source = root if at % 10 else _packed(root, files, folder / "mutated.zip")
        commands = (
            ("check", source, "--json"),
            ("inspect", source, "--json"),
            ("repair", source, "--dry-run", "--json"),
            ("repair", source, "--dry-run", "--unproven", "--json"),
            ("migrate", source, "--to", folder / "library", "--dry-run", "--map-model", "plain=acme::embed"),
            ("export", source, folder / "units.parquet", "--base", "plain"),
        )
        for command in commands:
            found = run(*command)
            if found.status not in (0, 1, 2) or (found.status == 2 and found.stderr.count("\n") != 1):
                bad += 1
                print(f"{at}: {command[0]} ended with {found.status}: {found.stderr[:500]}", flush=True)
        if {file: file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()} != before:
            bad += 1
            print(f"{at}: a command wrote to its source", flush=True)
    print(f"{count} folders, {bad} problems")
    return int(bad > 0) | _report_memory()


def _damaged(raw: bytearray, numbers: random.Random) -> bytes:
    at, end = numbers.randrange(len(raw) + 1), numbers.randrange(1, 400)
    match numbers.randrange(4):
        case 0:
            return bytes(raw[:at])
        case 1:
            for _ in range(numbers.randrange(1, 20) if raw else 0):
                raw[numbers.randrange(len(raw))] = numbers.randrange(256)
        case 2:
            raw[at : at + end] = numbers.randbytes(numbers.randrange(1, 400))
        case _:
            raw[at : at + 8] = numbers.choice([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 63)])
    return bytes(raw)


def _packed(root: Path, files: list[Path], archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as written:
        for file in files:
            written.write(file, file.relative_to(root).as_posix())
    return archive


def main() -> int:
    """Run one job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=("speed", "mutate"))
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.job == "mutate":
            return mutate(Path(place), given.first, given.count, given.seed)
        # In a process of its own: what it takes to write the folder does not count.
        writer = multiprocessing.get_context("spawn").Process(target=make, args=(Path(place), given.elements))
        writer.start()
        writer.join()
        return speed(Path(place) / "chroma")


if __name__ == "__main__":
    raise SystemExit(main())
