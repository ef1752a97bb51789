"""Kills each command that writes a folder of Chroma at every step, and looks at what it leaves.

``python -m benchmarks.chroma_kills [CASE ...]`` (hours) ends the process of a command with SIGKILL before a step: a
file or folder that is made, moved, flushed or removed, a write or commit of SQLite, a record of the ledger. Then

- every file that was there has to be there, bit for bit, in the folder or in the undo data, and one database has the
  ids, documents and metadata of all entries;
- ``check`` has to read the folder without writing;
- the same command has to come to what an undisturbed run comes to, as chromadb reads it, without paying for a text
  whose vector was stored, and with nothing half-made left;
- ``undo``, at once or after that, has to come to the bytes of the beginning.

Steps that change nothing but files under construction are followed by ``undo`` alone; ``--changing`` leaves them out.
chromadb works in a child process of each command, as always, but in one that is forked: its import takes seconds. The
exit status is 1 if anything else came of a kill.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests")]

import angel_store  # noqa: E402
import chroma_store  # noqa: E402
from chroma_store import DIMENSION, ChromaStore, extract, opened, read_vectors  # noqa: E402
from fault_server import FaultServer, Reply, Request, answer, vector_of  # noqa: E402
from faults import Tripwire, forked  # noqa: E402
from harness import Outcome, run  # noqa: E402
from lacking import configured  # noqa: E402
from stand_ins import KILLED  # noqa: E402
from toys import QuickDisk, quick_disk, watched  # noqa: E402

from regraft import identity  # noqa: E402
from regraft.formats.chroma import core, database  # noqa: E402

_ROWS = (
    "SELECT s.collection, e.embedding_id, m.key, m.string_value, m.int_value, m.float_value, m.bool_value"
    " FROM embeddings e JOIN segments s ON s.id = e.segment_id LEFT JOIN embedding_metadata m ON m.id = e.id"
)
#: How often ``undo`` is run at most, to come to the beginning.
_MAX_UNDO = 9
_REFUSED = 2


class Broken(Exception):
    """A promise was not kept."""


def demand(holds: object, problem: str) -> None:
    """Raise Broken unless something holds."""
    if not holds:
        raise Broken(problem)


# --- the commands ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A command, and a folder in which it has something to do.

    Attributes:
        make: makes the store below a folder.
        command: the command line; ``{store}``, ``{place}`` (the folder) and ``{config}`` (an embedder's) are filled in.
        status: the exit status of an undisturbed run.
        again: that of a run after it.
        chroma: the folder of Chroma, below the store.
    """

    make: Callable[[Path], Path]
    command: tuple[str, ...]
    status: int = 0
    again: int = 0
    chroma: str = "."


def damaged(*damages: Callable[[ChromaStore], object], version: str = "1.5") -> Callable[[Path], Path]:
    """Return what makes a damaged folder that a version of chromadb wrote."""

    def make(folder: Path) -> Path:
        store = extract(version, folder)
        for damage in damages:
            damage(store)
        return store.root

    return make


def repaired(store: ChromaStore) -> None:
    """Repair a folder."""
    demand(run("repair", store.root, "--yes").status in (0, 1), "the folder cannot be repaired")


def repaired_for_good(store: ChromaStore) -> None:
    """Repair a folder, and forget what would undo it."""
    repaired(store)
    shutil.rmtree(store.root / ".regraft")


def stray(store: ChromaStore) -> None:
    """Add a segment that no row refers to."""
    shutil.copytree(store.folder("plain"), store.root / "0f0f0f0f-0000-4000-8000-000000000000")


def beside_library(folder: Path) -> Path:
    """Make a folder of Chroma, and beside it a library and a Parquet file with the entries of one collection."""
    store = extract("1.5", folder)
    words = ("--base", store.collection_id("plain"), "--map-model", "plain=acme::embed-3", "--yes")
    run("migrate", store.root, "--to", folder / "library", *words)
    run("export", folder / "library", folder / "units.parquet")
    return store.root


def empty_beside_library(folder: Path) -> Path:
    """Make an empty folder, and a library beside it."""
    beside_library(folder)
    (folder / "empty").mkdir()
    return folder / "empty"


TO_CHROMA = ("--format", "chroma", "--to", "{store}", "--collection", "handbook")
EXPORT = ("export", "{place}/library", *TO_CHROMA)
BACKFILL = ("backfill", "{store}", "--config", "{config}", "--yes")
REPAIR = ("repair", "{store}", "--yes")
GC = ("gc", "{store}", "--only", "chroma.segment-orphan", "--yes")
RECONCILE = ("reconcile", "{store}", "--config", "{config}", "--yes")
LINKS, LABELS, ELEMENTS = chroma_store.overwrite_links, chroma_store.remove_labels, chroma_store.cut_elements
QUEUE, NORMS = chroma_store.purge_queue, chroma_store.cut_norms
ANGEL = str(angel_store.AngelStore(Path()).chroma().parent)
CASES = {
    "repair": Case(damaged(LINKS), REPAIR),
    "repair of 0.4": Case(damaged(LINKS, version="0.4"), REPAIR),
    "repair of 0.6": Case(damaged(LINKS, version="0.6"), REPAIR),
    "repair without labels": Case(damaged(LABELS), REPAIR, status=1),
    "repair of a cut segment": Case(damaged(ELEMENTS), REPAIR, status=1),
    "repair without proven vectors": Case(damaged(QUEUE, LABELS, version="0.6"), REPAIR, status=1),
    "repair --unproven": Case(damaged(QUEUE, NORMS, repaired_for_good), (*REPAIR, "--unproven")),
    "repair of segment and database": Case(
        damaged(LINKS, chroma_store.cut_full_text, chroma_store.mix_numbers), REPAIR
    ),
    "gc": Case(damaged(stray), GC),
    "undo": Case(damaged(LABELS, repaired), ("undo", "{store}", "--yes"), again=_REFUSED),
    "export": Case(beside_library, EXPORT, again=_REFUSED),
    "import": Case(beside_library, ("import", "{place}/units.parquet", *TO_CHROMA), again=_REFUSED),
    "export to an empty folder": Case(empty_beside_library, EXPORT, again=_REFUSED),
    "backfill": Case(damaged(ELEMENTS, repaired_for_good), BACKFILL),
    "backfill of all": Case(damaged(QUEUE, LABELS, repaired_for_good, version="0.6"), BACKFILL),
    "reconcile": Case(lambda folder: angel_store.damaged(folder / "data", real=True).root, RECONCILE, chroma=ANGEL),
}


def answers_of(stores: list[ChromaStore]) -> Callable[[Request], Reply]:
    """Return how a server answers that has the vectors of stores, and those of AngelMemory."""
    rows = [one for store in stores for entries in store.expected.values() for one in entries.values()]
    known = {one["document"]: bytes.fromhex(one["vector"]) for one in rows}

    def vector(text: str, dimensions: int) -> bytes:
        if dimensions == angel_store.DIMENSION:
            return struct.pack(f"<{dimensions}f", *angel_store.embed(text))
        return known.get(text) or vector_of(text, dimensions)

    return lambda request: answer(request, [vector(text, request.dimensions) for text in request.texts])


# --- what is there ---------------------------------------------------------------------------------------------------


def files_of(root: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a store, without regraft's records."""
    paths = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in paths.items() if not name.startswith(".regraft")}


def finished_files(root: Path) -> list[Path]:
    """Return all files that are not under construction, in a fixed order."""
    return [path for path in sorted(root.rglob("*")) if path.is_file() and ".regraft/work/" not in path.as_posix()]


def mark_of(root: Path) -> str:
    """Return a hash of all files that are not under construction."""
    found = hashlib.blake2b()
    for path in finished_files(root):
        found.update(path.as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def rows_of(path: Path) -> set[tuple[Any, ...]]:
    """Return id, document and metadata of the entries of a database; empty if it is not one of Chroma."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return set(db.execute(_ROWS))
    except sqlite3.DatabaseError:
        return set()


def read_all(folder: Path) -> dict[str, Any]:
    """Return what chromadb reads of each collection."""
    found = {}
    with tempfile.TemporaryDirectory(dir=folder.parent) as place, opened(folder, Path(place) / "copy") as client:
        for one in client.list_collections():
            got = client.get_collection(one.name, embedding_function=None).get(include=["documents", "metadatas"])
            rows = zip(got["ids"], got["documents"], got["metadatas"], strict=True)
            entries = sorted(rows, key=lambda row: row[0])
            found[one.name] = [entries, sorted(read_vectors(client, one.name).items())]
    return found


def staged_keys(root: Path) -> set[str]:
    """Return the hashes of the texts whose vectors wait for their segment."""
    found: set[str] = set()
    for path in root.rglob("reconciling/*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'vector'").fetchall():
                found.update(str(key) for (key,) in db.execute("SELECT key FROM vector"))
    return found


# --- processes -------------------------------------------------------------------------------------------------------

_wires: list[Tripwire] = []


def fork_children() -> None:
    """Let the product fork the processes that it starts, and let them come to no step."""
    import chromadb.api.rust  # noqa: PLC0415 - loaded once, for all of them
    import chromadb.telemetry.product.posthog  # noqa: F401, PLC0415

    def disarm() -> None:
        for wire in _wires:
            wire._at = -1

    os.register_at_fork(after_in_child=disarm)
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda *_: context  # type: ignore[assignment,misc]


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own, which leaves nothing open; returns its result as JSON has it."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "result"
        demand(forked(lambda: file.write_text(json.dumps(function(*args)))) == 0, "see above")
        return json.loads(file.read_text())


# --- killing ---------------------------------------------------------------------------------------------------------


class Killer:
    """Kills one command on copies of its store."""

    def __init__(self, case: Case, place: Path, disk: QuickDisk, server: FaultServer) -> None:
        self._case, self._place, self._disk, self._server = case, place, disk, server
        self._config = configured(place / "regraft.yaml", server, model="embed-3")
        self._store = Path(apart(lambda: str(case.make(place))))
        is_undo = case.command[0] == "undo"
        kept = finished_files(self._store / ".regraft" / "undo" if is_undo else self._store)
        #: Files that are kept, with their names. The database is judged by its rows.
        self._kept = {path.read_bytes(): path.name for path in kept if path.name != database.FILE}
        self._rows = rows_of(self._store / case.chroma / database.FILE)
        with tempfile.TemporaryDirectory(dir=place) as folder:
            # This process loads what its copies will need.
            copy = self._copy(Path(folder))
            self._work(copy)
            self._beginning = files_of(copy if is_undo else self._store)
            run("check", copy, "--json")
            run("undo", copy, "--yes", "--json")
        gc.freeze()
        with tempfile.TemporaryDirectory(dir=place) as folder:
            #: The steps of a run, and the state at each of them.
            self.steps, self._marks, self._end = apart(self._undisturbed, self._copy(Path(folder)))

    def _copy(self, folder: Path) -> Path:
        return Path(shutil.copytree(self._store, folder / self._store.name))

    def _work(self, store: Path) -> Outcome:
        words = {"store": store, "place": self._place, "config": self._config}
        return run(*(part.format(**words) for part in self._case.command), "--json")

    def _watched(self, store: Path, at: int, look: Callable[[], object]) -> tuple[list[str], Outcome]:
        """Do the work, which is killed at a step, and look at the store at each one."""
        with pytest.MonkeyPatch.context() as patch:
            wire = watched(patch, at, partial(os.kill, os.getpid(), signal.SIGKILL))
            count = wire.step

            def step(name: str) -> None:
                look()
                count(name)

            patch.setattr(wire, "step", step)
            _wires[:] = [wire]
            self._disk.step = step
            try:
                done = self._work(store)
            finally:
                self._disk.step = lambda _: None
            return wire.steps, done

    def _undisturbed(self, copy: Path) -> tuple[list[str], list[str], Any]:
        marks: list[str] = []
        steps, done = self._watched(copy, -1, lambda: marks.append(mark_of(copy)))
        demand(done.status == self._case.status, f"undisturbed, it ended with {done.status}: {done}")
        return steps, marks, self._state(copy)

    def _state(self, store: Path) -> Any:
        """Return what chromadb reads, what check finds, and what lies in regraft's records besides the ledger."""
        found = sorted({one["name"] for one in run("check", store, "--json").document["findings"]})
        own = {path.name for path in store.rglob(".regraft/*") if not path.name.startswith("ledger")}
        return [apart(read_all, store / self._case.chroma), found, sorted(own)]

    def is_changing(self, at: int) -> bool:
        """Whether the store before a step is another one than before the last one, but for files under construction."""
        return at == 1 or self._marks[at - 1] != self._marks[at - 2]

    def kill(self, at: int) -> str:
        """Kill a run at a step, and say what came of it.

        Raises:
            Broken
        """
        with tempfile.TemporaryDirectory(dir=self._place) as folder:
            copy = self._copy(Path(folder))
            status = forked(lambda: self._watched(copy, at, lambda: None))
            if status == 0:
                # Answers of a server are written as they arrive, in more or fewer steps.
                return "came to its end"
            demand(status == KILLED, f"the run ended with {status}")
            if self.is_changing(at):
                other = Path(folder, "other") / copy.name
                other.parent.mkdir()
                # With hard links: a file with two names is a half-finished swap.
                subprocess.run(["cp", "-a", copy, other], check=True)
                staged, begun = staged_keys(copy), len(self._server.texts)
                apart(self._judge, other)
                sent = {identity.text_hash(text) for text in self._server.texts[begun:]}
                demand(not staged & sent, "a text was paid for twice")
            apart(self._judge_undo, copy)
        return "whole"

    def _judge(self, copy: Path) -> None:
        """Check a store, run the command again, and undo it."""
        before = files_of(copy)
        found = run("check", copy, "--json")
        # An empty folder is none of Chroma yet.
        demand(found.status in (0, 1) or not before, f"check ended with {found.status}: {found}")
        demand(files_of(copy) == before, "check wrote")
        done = self._work(copy)
        # What is left for a person is said by the run that leaves it.
        expected = (self._case.status, self._case.again)
        demand(done.status in expected, f"the next run ended with {done.status}: {done}")
        state = self._state(copy)
        demand(state[1:] == self._end[1:], f"after the next run {state[1:]}, not {self._end[1:]}")
        demand(state[0] == self._end[0], "after the next run chromadb reads something else")
        self._judge_undo(copy)

    def _judge_undo(self, copy: Path) -> None:
        """Look for what may be lost, and undo all runs."""
        there = {path.read_bytes() for path in finished_files(copy)}
        lost = sorted(name for raw, name in self._kept.items() if raw not in there)
        demand(not lost, f"lost: {lost}")
        places = [
            copy / self._case.chroma / database.FILE,
            *copy.rglob("undo/*/*"),
            *copy.rglob(f"undo/**/{database.FILE}"),
        ]
        found = any(self._rows <= rows_of(path) for path in places if path.is_file())
        demand(found or not self._rows, "entries are lost")
        for _ in range(_MAX_UNDO):
            done = run("undo", copy, "--yes", "--json")
            if done.status:
                code = done.document["error"]["code"]
                # A folder that was empty is none of Chroma before anything is in it.
                is_empty = not self._beginning and code == "SourceUnrecognised"
                demand(code == "RunUnknown" or is_empty, f"undo was refused: {done}")
            if done.status or files_of(copy) == self._beginning:
                break
        found = files_of(copy)
        if not self._beginning and not rows_of(copy / database.FILE):
            # The empty database of a new folder stays.
            found.pop(database.FILE, None)
        odd = {name for name in found.keys() | self._beginning.keys() if found.get(name) != self._beginning.get(name)}
        demand(not odd, f"undo left {sorted(odd)}")


def kill_all(name: str, place: Path, first: int, *, only_changing: bool) -> bool:
    """Kill a command at its steps from one on, print what came of it, and return whether all was whole."""
    began, counts = time.monotonic(), Counter[str]()
    with quick_disk() as disk, FaultServer() as server:
        stores = [extract(version, place / version) for version in ("0.6", "1.5")]
        server.behave = answers_of(stores)
        server.dimensions = angel_store.DIMENSION if name == "reconcile" else DIMENSION
        (place / "place").mkdir()
        killer = Killer(CASES[name], place / "place", disk, server)
        steps = [at for at in range(first, len(killer.steps) + 1) if not only_changing or killer.is_changing(at)]
        print(f"{name}: {len(steps)} of {len(killer.steps)} steps", flush=True)
        for at in steps:
            try:
                counts[killer.kill(at)] += 1
            except Broken as broken:
                counts["broken"] += 1
                print(f"{name}: step {at} ({killer.steps[at - 1]}): {broken}", flush=True)
    ends = ", ".join(f"{count} {what}" for what, count in counts.most_common())
    print(f"{name}: {ends} ({time.monotonic() - began:.0f} s)", flush=True)
    return not counts["broken"]


def main() -> int:
    """Kill, look, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--changing", action="store_true", help="only steps that change more than the work folder")
    parser.add_argument("--first", type=int, default=1, metavar="STEP", help="begin at this step")
    asked = parser.parse_args()
    fork_children()
    core.demand_chromadb()
    is_whole = True
    for name in asked.cases or CASES:
        with tempfile.TemporaryDirectory() as place:
            is_whole &= kill_all(name, Path(place), asked.first, only_changing=asked.changing)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
