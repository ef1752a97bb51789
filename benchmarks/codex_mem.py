"""Measures what regraft does for a database of codex-mem with few and many notes: time, and that memory does not grow.

``python -m benchmarks.codex_mem`` (minutes) makes databases with notes of 400 characters, has a server on the same
machine embed them that takes no time, and then runs what an operator runs. Each command is a process of its own. The
floor is a plain program that reads every note and hashes its text, once.

The exit status is 1 when a limit is broken: more than 150 MB at the peak, or 1.3 times as much with five times the
notes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from random import Random

import apsw

from benchmarks import embedding_server
from benchmarks.backfill import configuration, note
from benchmarks.compare import ROOT, Run, run
from benchmarks.vocabulary import Writer

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

import codex_mem_store

CHARACTERS, DIMENSIONS, BATCH = 400, 1024, 64
SIZES = (20_000, 100_000)
MAX_PEAK_MB, MAX_GROWTH = 150, 1.3
_FLOOR = """
import hashlib, sqlite3, sys, unicodedata
for title, kind, content in sqlite3.connect(sys.argv[1]).execute("SELECT title, type, content FROM memory_items"):
    parts = (" ".join(unicodedata.normalize("NFC", part).split()) for part in (title, kind, content))
    hashlib.sha256("\\n".join(parts).encode()).hexdigest()
"""


def make(folder: Path, notes: int) -> None:
    """Make a database with so many notes, and no vector."""
    path = codex_mem_store.write(folder, projects=1, notes=0)
    writer = Writer("en", Random(1))
    with closing(apsw.Connection(str(path))) as db, db:
        for number in range(notes):
            text = writer.chunk(CHARACTERS)
            codex_mem_store.add_note(db, 0, number, title=f"Note {number}", content=text)


def measured(notes: int, folder: Path) -> dict[str, Run]:
    """Return what each command took, in the order in which they ran."""
    store = folder / str(notes)
    run([sys.executable, "-m", "benchmarks.codex_mem", "--make", str(store), "--notes", str(notes)], folder)
    with embedding_server.serving(DIMENSIONS, 0.0) as url:
        config = folder / "regraft.yaml"
        config.write_text(configuration(url, BATCH))
        found = {"floor": run([sys.executable, "-c", _FLOOR, str(store / "codex-mem.db")], folder)}
        embedded = ("--config", str(config))
        for name, words in {
            "backfill": ["backfill", str(store), *embedded],
            "backfill, nothing to do": ["backfill", str(store), *embedded],
            "check": ["check", str(store)],
            "inspect": ["inspect", str(store)],
            "reconcile, nothing to do": ["reconcile", str(store), *embedded],
            "search by words": ["search", str(store), "network", "--mode", "bm25"],
            "search by meaning too": ["search", str(store), "network", "--embedder", "server", *embedded],
        }.items():
            found[name] = run([sys.executable, "-m", "regraft", *words, "--json"], folder)
            json.loads(found[name].output)
            note(f"{notes:,} notes, {name}: {found[name].seconds:.1f} s, {found[name].peak_mb:.0f} MB")
    return found


def table(results: dict[int, dict[str, Run]]) -> str:
    """Return the results as a Markdown table."""
    heads = "".join(f" {notes:,} notes | of the floor | peak memory |" for notes in results)
    lines = [f"| |{heads}", f"| --- |{' ---: |' * 3 * len(results)}"]
    for name in next(iter(results.values())):
        cells = "".join(_cells(runs[name], runs["floor"]) for runs in results.values())
        lines.append(f"| {name} |{cells}")
    return "\n".join(lines)


def _cells(one: Run, floor: Run) -> str:
    return f" {one.seconds:.1f} s | {one.seconds / floor.seconds:.1f} | {one.peak_mb:.0f} MB |"


def is_broken(results: dict[int, dict[str, Run]]) -> bool:
    """Tell whether a command takes too much memory, or more with more notes."""
    small, large = ({name: one.peak_mb for name, one in results[notes].items()} for notes in SIZES)
    return any(large[name] > MAX_PEAK_MB or large[name] > MAX_GROWTH * small[name] for name in small)


def main() -> int:
    """Measure, print the table, and judge it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--notes", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.make:
        make(asked.make, asked.notes)
        return 0
    with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=asked.folder) as place:
        results = {notes: measured(notes, Path(place)) for notes in SIZES}
    print(table(results))
    return int(is_broken(results))


if __name__ == "__main__":
    sys.exit(main())
