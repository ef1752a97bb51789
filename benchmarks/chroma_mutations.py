"""Changes folders of Chroma at random, and runs the commands on each: do they keep what they promise?

``python -m benchmarks.chroma_mutations PYTHON... --count 2000 --log FILE`` takes the Python of an environment for each
version of chromadb. Each writes four folders: as the version leaves it, with a purged queue, one of Open
WebUI, and one with AngelMemory's collection. A copy is changed in one to three ways (``chroma_changes.py``) and goes
through ``inspect``, ``check``, ``repair``, ``export``, ``search`` and ``undo``. The changes follow from the seed and
the number; ``--only N`` tries one folder again.

The judge reads files with struct, pickle and sqlite3, and the repaired folder with chromadb's API. Every vector must be
the one that the id had, or the one that the changed files have for it. Every id that lost its vector must be named.

Commands run in one process that a crash or a limit ends, and every 200th time in processes of their own. Each line of
the log is one folder, and a run continues after the last one. The exit status is 1 if any folder has a problem.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import os
import pickle
import random
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SUPPORT = ROOT / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

import numpy as np  # noqa: E402
from chroma_store import ChromaStore, Labels, purge_queue, read_label_map  # noqa: E402
from harness import Outcome, run_as_given  # noqa: E402

from benchmarks.chroma_changes import DATABASE, LABELS, change  # noqa: E402
from regraft.formats.chroma import core  # noqa: E402
from regraft.formats.chroma.core import ChromaFailed  # noqa: E402

#: Links of an element, and entries of a collection, in each folder.
SHAPES = {"as written": (16, 60), "purged": (8, 60), "open-webui": (16, 40), "angel-memory": (24, 40)}
#: Limits for one folder: seconds of processor time and of the clock, and megabytes more than before the first one.
CPU_SECONDS, SECONDS, MEGABYTES = 120, 240, 300
REAL_EVERY = 200
#: Relative difference that Chroma's rounding may make to a vector that it normalizes.
ROUNDING = 1e-6
_WRITE = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import chroma_fixtures
for shape, (links, count) in json.loads(sys.argv[3]).items():
    place = Path(sys.argv[2], shape)
    found = chroma_fixtures.write_folder(place / "vector_db", count, links=links)
    (place / "expected.json").write_text(json.dumps(found), "utf-8")
"""
_OPEN_WEBUI = """
    CREATE TABLE knowledge (id TEXT, name TEXT); CREATE TABLE file (id TEXT, filename TEXT);
    CREATE TABLE knowledge_file (knowledge_id TEXT, file_id TEXT); CREATE TABLE memory (id TEXT, user_id TEXT);
    INSERT INTO knowledge VALUES ('plain', 'Handbook'); INSERT INTO file VALUES ('f1', 'plan.pdf');"""


# --- reading without the core ----------------------------------------------------------------------------------------

Vectors = dict[str, dict[str, list[bytes]]]


class Sound:
    """A folder before any change: what Chroma's API returned, and which elements its ids had, by collection id."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = ChromaStore(place / "vector_db", json.loads((place / "expected.json").read_text("utf-8")))
        self.ids, self.folders, self.labels = {}, {}, {}
        self.sizes: dict[str, int] = {}
        for name in self.store.expected:
            key = self.store.collection_id(name)
            self.ids[key], self.folders[key] = name, self.store.segment(name)
            self.labels[key] = read_label_map(self.store, name).get("id_to_label", {})
            header = self.store.folder(name) / "header.bin"
            if header.exists():
                (self.sizes[key],) = struct.unpack_from("<Q", header.read_bytes(), 28)
        self.settings = read_settings(self.store.root)
        self.files = self.elements(self.store.root)

    def expected(self, key: str) -> dict[str, bytes]:
        return {one: bytes.fromhex(row["vector"]) for one, row in self.store.expected[self.ids[key]].items()}

    def elements(self, root: Path) -> Vectors:
        """Read the vectors that the segments in a folder have for the ids, with and without their norms."""
        found: Vectors = defaultdict(lambda: defaultdict(list))
        for key, size in self.sizes.items():
            raw, norms = (read_file(root / self.folders[key] / name) for name in ("data_level0.bin", "length.bin"))
            at_label = defaultdict(list)
            for start in range(0, len(raw) - size + 1, size):
                (label,) = struct.unpack_from("<Q", raw, start + size - 8)
                at_label[label].append(start)
            for labels in (self.labels[key], read_labels(root / self.folders[key] / LABELS)):
                for one, label in labels.items():
                    for start in at_label[label]:
                        vector = np.frombuffer(raw[start + size - 72 : start + size - 8], "<f4")
                        norm = np.frombuffer(norms[start // size * 4 :][:4].ljust(4, b"\0"), "<f4")
                        with np.errstate(all="ignore"):
                            found[key][one] += [(vector * norm).astype("<f4").tobytes()]
                        found[key][one] += [vector.tobytes()]
        return found


def read_file(path: Path) -> bytes:
    """Read a file; nothing if it is none, or a link."""
    return path.read_bytes() if path.is_file() and not path.is_symlink() and not path.parent.is_symlink() else b""


def read_labels(path: Path) -> dict[str, int]:
    """Read the ids of a label map on which both of its directions agree."""
    try:
        found = Labels(io.BytesIO(read_file(path))).load()
        found = found if isinstance(found, dict) else vars(found)
        back = found["label_to_id"]
        return {one: label for one, label in found["id_to_label"].items() if back.get(label) == one}
    except Exception:
        return {}


def rows(root: Path, query: str) -> list[Any] | None:
    """Read rows of the database, or of as much of it as can be read; None if nothing can."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        for file in root.glob(f"{DATABASE}*"):
            if file.is_file():
                shutil.copy(file, place)
        with closing(sqlite3.connect(Path(place, DATABASE))) as db:
            db.text_factory = bytes
            try:
                for row in db.execute(query):
                    found.append(row)
            except (sqlite3.Error, OverflowError):
                return found or None
    return found


def read_tables(root: Path) -> list[Any]:
    """Read the tables that commands change."""
    return [rows(root, f"SELECT rowid, * FROM {table}") for table in ("embeddings", "embeddings_queue", "max_seq_id")]


def read_settings(root: Path) -> list[Any]:
    """Read the rows that decide what a collection is, and where its vectors are."""
    tables = ("collections", "collection_metadata", "segments", "segment_metadata")
    return [rows(root, f"SELECT * FROM {table} ORDER BY 1, 2") for table in tables]


def queued(root: Path) -> Vectors:
    """Read the vectors of the queue."""
    found: Vectors = defaultdict(lambda: defaultdict(list))
    query = "SELECT topic, id, vector, encoding FROM embeddings_queue ORDER BY seq_id"
    for topic, one, vector, encoding in rows(root, query) or []:
        if isinstance(vector, bytes):
            raw = np.frombuffer(vector[: len(vector) // 4 * 4], "<i4").astype("<f4").tobytes()
            found[text(topic)[-36:]][text(one)] += [vector, raw] if encoding == b"INT32" else [vector]
    return found


def entries(root: Path) -> dict[str, set[str]]:
    """Read the ids of the entries of each collection."""
    found: dict[str, set[str]] = defaultdict(set)
    query = """SELECT s.collection, e.embedding_id FROM embeddings e JOIN segments s ON s.id = e.segment_id
                WHERE s.scope = 'METADATA'"""
    for key, one in rows(root, query) or []:
        found[text(key)].add(text(one))
    return found


def text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def read_with_chroma(root: Path, copy: Path) -> dict[str, dict[str, bytes | None]]:
    """Read a copy of a folder with Chroma's API: None for an id whose vector it does not return.

    What links lead to is copied, because Chroma would write through them.

    Raises:
        ChromaFailed: it cannot open the folder.
    """

    def ignored(folder: str, names: list[str]) -> set[str]:
        paths = {name: Path(folder, name) for name in names}
        return {name for name, path in paths.items() if name == ".regraft" or path.is_fifo() or not path.exists()}

    shutil.copytree(root, copy, ignore=ignored)
    try:
        return fork(_read_all, copy)
    finally:
        shutil.rmtree(copy)


def _read_all(copy: Path) -> dict[str, dict[str, bytes | None]]:
    import chromadb  # noqa: PLC0415 - in a child process only
    from chromadb.config import Settings  # noqa: PLC0415

    signal.alarm(60)
    settings = Settings(anonymized_telemetry=False, _env_file=None)
    chromadb.PersistentClient(path=str(copy), settings=settings).close()
    client, found = chromadb.PersistentClient(path=str(copy), settings=settings), {}
    for collection in client.list_collections():
        found[str(collection.id)] = dict(_read_collection(collection))
    return found


def _read_collection(collection: Any) -> Iterator[tuple[str, bytes | None]]:
    ids = collection.get(include=[])["ids"]
    for some in (ids, *([one] for one in ids)):
        # If one id has no vector, all fail together.
        try:
            got = collection.get(ids=some, include=["embeddings"])
        except BaseException:
            if len(some) == 1:
                yield some[0], None
        else:
            for one, vector in zip(got["ids"], got["embeddings"], strict=True):
                yield one, None if vector is None else np.asarray(vector, dtype="<f4").tobytes()
            if some is ids:
                return


# --- running commands ------------------------------------------------------------------------------------------------


def fork(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a child process that has chromadb loaded; instead of :func:`core.run_in_child`."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        with suppress(BaseException), os.fdopen(writing, "wb") as pipe:
            pickle.dump(core._call(function, args), pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    _, status = os.waitpid(child, 0)
    result, problem = pickle.loads(raw) if raw else (None, f"its process ended ({status})")
    if problem is not None:
        raise ChromaFailed(problem)
    return result


def run_real(*arguments: object) -> Outcome:
    """Run a command line in a process of its own."""
    command = [sys.executable, "-m", "regraft", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return Outcome(done.returncode, done.stdout, done.stderr)


def snapshot(folder: Path) -> dict[str, object]:
    """Return what is in a folder, without what regraft keeps for itself."""
    found: dict[str, object] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != ".regraft"]
        for path in (Path(place, name) for name in (*folders, *files)):
            content: object = "a folder" if path.is_dir() else "a pipe"
            if path.is_symlink():
                content = path.readlink()
            elif path.is_file():
                content = path.read_bytes()
            found[str(path.relative_to(folder))] = content
    return found


class Trial:
    """One changed folder, and what is wrong with what the commands do to it."""

    def __init__(self, number: int, seed: int, sound: Sound, work: Path) -> None:
        self.number, self.sound, self.work = number, sound, work
        self.run = run_as_given if number % REAL_EVERY != 1 else run_real
        self.problems: list[str] = []
        self.notes: dict[str, Any] = {}
        shutil.copytree(sound.place, work / "data")
        self.root = work / "data" / "vector_db"
        self.changes = change(self.root, random.Random(f"{seed} {number}"))

    def command(
        self, *arguments: object, statuses: tuple[int, ...] = (0, 1, 2), own: str = "/"
    ) -> tuple[dict[str, Any], int]:
        """Run a command that may change what begins with ``own``; returns its document and its exit status."""
        before = snapshot(self.work)
        try:
            found = self.run(*arguments)
        except BaseException:
            self.problems.append(f"{arguments[0]}: {traceback.format_exc()[-1500:]}")
            return {}, -1
        self.notes.setdefault("statuses", []).append(f"{arguments[0]} {found.status}")
        if found.status not in statuses or "Traceback" in found.stderr:
            self.problems.append(f"{arguments[0]} ended with {found.status}: {found.stderr[-1500:]}")
        after = snapshot(self.work)
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        if self.has_log and read_tables(self.root) == self.tables:
            # SQLite itself takes over a log, and removes a journal, when a database is opened for writing.
            changed = {name for name in changed if DATABASE not in name}
        outside = sorted(name for name in changed if found.status == 2 or not name.startswith(own))
        if outside:
            self.problems.append(f"{arguments[0]} ({found.status}) wrote to {outside[:5]}")
        with suppress(json.JSONDecodeError):
            return json.loads(found.stdout), found.status
        return {}, found.status

    def try_commands(self) -> None:
        """Run all commands and judge what they did."""
        root = self.root
        changed, self.tables = snapshot(root), read_tables(root)
        self.has_log = any((root / f"{DATABASE}{end}").exists() for end in ("-wal", "-journal"))
        self.allowed = self._allowed_vectors()
        self.command("inspect", root, "--json")
        self.command("check", root, "--json", *(("--deep",) if not self.number % 9 else ()))
        planned, _ = self.command("repair", root, "--dry-run", "--json")
        if (root / ".regraft").exists():
            self.problems.append("a dry run made .regraft")
        repaired, status = self.command("repair", root, "--yes", "--json", statuses=(0, 1, 2, 3), own="data/vector_db/")
        if status == 3 and "chromadb cannot use it: " not in str(repaired.get("error")):
            self.problems.append(f"the repair stopped: {repaired.get('error')}")
        actions = [[(one["action"], one["subject"]) for one in made.get("actions", ())] for made in (planned, repaired)]
        if actions[0] != actions[1] and status in (0, 1):
            self.problems.append(f"the dry run planned {actions[0]}, and the run did {actions[1]}")
        checked, _ = self.command("check", root, "--json")
        self.notes["memory"] = round(memory())
        self._judge_vectors(repaired, checked)
        if self.number % 3 == 0:
            self.command("export", root, self.work / "units.parquet", own="units.parquet")
            self.command("search", root, "Text", "--json")
        if actions[1] or (status == 3 and "changes made so far: 0" not in str(repaired)):
            self.command("undo", root, "--yes", "--json", statuses=(0,), own="data/vector_db/")
        kept = snapshot(root)
        differing = {name for name in kept.keys() | changed.keys() if kept.get(name) != changed.get(name)}
        if self.has_log and read_tables(root) == self.tables:
            differing = {name for name in differing if not name.startswith(DATABASE)}
        if differing:
            self.problems.append(f"undo leaves other bytes: {sorted(differing)[:5]}")

    def _allowed_vectors(self) -> Vectors:
        """Collect the vectors that may be those of each id."""
        found: Vectors = defaultdict(lambda: defaultdict(list))
        for source in (
            self.sound.files,
            self.sound.elements(self.root),
            queued(self.root),
            queued(self.sound.store.root),
        ):
            for key, ids in source.items():
                for one, vectors in ids.items():
                    found[key][one] += vectors
        for key in self.sound.ids:
            for one, vector in self.sound.expected(key).items():
                found[key][one].append(vector)
        self.is_strict = read_settings(self.root) == self.sound.settings
        if not self.is_strict:
            # A collection may have become one of another distance, or have got the segment of another one.
            for one in {one for ids in found.values() for one in ids}:
                every = [vector for ids in list(found.values()) for vector in ids.get(one, ())]
                for key in list(found):
                    found[key][one] = every
        return found

    def _judge_vectors(self, repaired: dict[str, Any], checked: dict[str, Any]) -> None:
        """Read every vector with Chroma, compare it, and see that each id without one is named."""
        findings = [one for one in checked.get("findings", ()) if one["severity"] != "note"]
        left = [row for row in repaired.get("left", ()) if row["finding"] == "chroma.vector-missing"]
        named = {(row["base"], row["subject"]) for row in left}
        # Chroma reads what a link in a segment leads to.
        linked = {row["base"] for row in repaired.get("left", ()) if " is a link or a pipe, " in row["reason"]}
        try:
            read = read_with_chroma(self.root, self.work / "copy")
        except (ChromaFailed, OSError, shutil.Error) as failed:
            self.notes["chroma"] = str(failed)[:300]
            self.notes["is reported"] = bool(findings) or not checked
            return
        counts = self.notes["vectors"] = {"equal": 0, "of the changed files": 0, "named": 0, "with a finding": 0}
        for key, ids in entries(self.root).items():
            expected = self.sound.expected(key) if key in self.sound.ids else {}
            for one in sorted(ids & expected.keys()):
                vector = read.get(key, {}).get(one)
                if vector == expected[one]:
                    counts["equal"] += 1
                elif vector is not None and any(is_close(vector, other) for other in self.allowed[key][one]):
                    counts["of the changed files"] += 1
                elif key in linked or key not in read:
                    # If it is not read, it is in another of Chroma's databases now.
                    counts["with a finding"] += 1
                elif vector is not None:
                    self.problems.append(f"{self.sound.ids[key]}: {one} has a wrong vector")
                elif (key, one) in named:
                    counts["named"] += 1
                elif any(row["base"] in (key, None) for row in findings):
                    counts["with a finding"] += 1
                else:
                    self.problems.append(f"{self.sound.ids[key]}: {one} has no vector and is not named")


def is_close(vector: bytes, other: bytes) -> bool:
    """Whether two vectors differ by no more than Chroma's own rounding."""
    if vector == other or len(vector) != len(other):
        return vector == other
    left, right = (np.frombuffer(one, "<f4").astype("f8") for one in (vector, other))
    with np.errstate(all="ignore"):
        return bool(np.linalg.norm(left - right) <= ROUNDING * np.linalg.norm(right))


# --- the process that tries folders ----------------------------------------------------------------------------------


def refuse_sockets(event: str, _: tuple[Any, ...]) -> None:
    """Refuse every socket that reaches another machine."""
    if event in ("socket.getaddrinfo", "socket.connect", "socket.bind", "socket.sendto"):
        raise AssertionError(f"a socket was used: {event}")


def memory() -> float:
    """Return the most memory that this process or a child had, in megabytes."""
    kilobytes = 1 << 10 if sys.platform == "darwin" else 1
    used = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(used) / 1024 / kilobytes


def processor_seconds() -> float:
    """Return the processor time of this process and its children."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def work(places: list[Path], numbers: list[int], seed: int, log: Path, place: Path) -> None:
    """Try folders, each with its own limits, and write a line for each."""
    import chromadb.api.rust  # noqa: F401, PLC0415 - loaded once for all child processes

    sys.addaudithook(refuse_sockets)
    core.run_in_child = fork
    sound = [Sound(one) for one in places]
    least = 0.0
    for number in numbers:
        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + CPU_SECONDS, hard))
        signal.alarm(SECONDS)
        started = processor_seconds()
        one = sound[number % len(sound)]
        with tempfile.TemporaryDirectory(dir=place) as folder:
            trial = Trial(number, seed, one, Path(folder))
            trial.try_commands()
        least = least or memory()
        # Chroma's telemetry makes it, although it is off.
        (place / ".ses").unlink(missing_ok=True)
        if memory() > least + MEGABYTES:
            trial.problems.append(f"{memory():.0f} MB of memory")
            least = memory()
        if left := sorted(path.name for path in place.iterdir() if path.name != "sound"):
            trial.problems.append(f"temporary files are left: {left}")
            for path in left:
                shutil.rmtree(place / path, ignore_errors=True)
        trial.notes["seconds"] = round(processor_seconds() - started, 2)
        line = {"number": number, "folder": f"{one.place.parent.name} {one.place.name}", "changes": trial.changes}
        write_line(log, line | trial.notes | {"problems": trial.problems})


def write_line(log: Path, line: dict[str, Any]) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    for problem in line["problems"]:
        print(f"{line['number']} ({line.get('folder')}): {line.get('changes')}\n  {problem}", flush=True)


def write_sound(python: str, place: Path) -> Iterator[Path]:
    """Write the folders of a version, if they are not there."""
    folder = place / Path(python).parent.parent.name
    if folder.exists():
        yield from (folder / shape for shape in SHAPES)
        return
    folder.mkdir(parents=True)
    command = [python, "-c", _WRITE, str(SUPPORT), str(folder), json.dumps(SHAPES)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    for shape in SHAPES:
        store = ChromaStore(
            folder / shape / "vector_db", json.loads((folder / shape / "expected.json").read_text("utf-8"))
        )
        if shape == "purged":
            purge_queue(store)
        elif shape == "open-webui":
            with closing(sqlite3.connect(folder / shape / "webui.db")) as db:
                db.executescript(_OPEN_WEBUI)
        elif shape == "angel-memory":
            store.execute("UPDATE collections SET name = 'notes_index' WHERE name = 'plain'")
            found = {"notes_index" if name == "plain" else name: rows for name, rows in store.expected.items()}
            (folder / shape / "expected.json").write_text(json.dumps(found), "utf-8")
        yield folder / shape


def main() -> int:
    """Try folders until the log has as many lines as are wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("python", nargs="+")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="one folder alone")
    parser.add_argument("--folders", type=Path, help="keep the written folders here, so that the changes are the same")
    parser.add_argument("--log", type=Path, default=Path("chroma-mutations.jsonl"))
    given = parser.parse_args()
    memory_folder = Path("/dev/shm")
    given.log.touch()
    with tempfile.TemporaryDirectory(dir=memory_folder if memory_folder.is_dir() else None) as folder:
        place = Path(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        places = [one for python in given.python for one in write_sound(python, given.folders or place / "sound")]
        while True:
            done = len(given.log.read_text("utf-8").splitlines())
            numbers = list(range(done, given.count)) if given.only is None else [given.only]
            if not numbers:
                break
            process = multiprocessing.get_context("spawn").Process(
                target=work, args=(places, numbers, given.seed, given.log, place)
            )
            process.start()
            process.join()
            if given.only is not None:
                break
            if process.exitcode:
                done = len(given.log.read_text("utf-8").splitlines())
                problem = f"the process ended with {process.exitcode}"
                write_line(given.log, {"number": done, "problems": [problem]})
    lines = [json.loads(line) for line in given.log.read_text("utf-8").splitlines()]
    bad = [line["number"] for line in lines if line["problems"]]
    print(f"{len(lines)} folders, {len(bad)} with problems")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
