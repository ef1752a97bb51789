"""Holds ``regraft pack`` and ``regraft install`` against copying the same bytes with a checksum.

``python -m benchmarks.move`` (some minutes, 15 GB in the temporary folder) makes a library of 200,000 rows, packs it,
installs it from the folder and from the pack, and does what any program would have to do with the same files: read,
SHA-256, write, flush, read back. Each run is a fresh process; what a process takes to start is taken off. The exit
status is 1 where a command takes more than twice as long, or its memory grows with the rows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.compare import Run, RunFailed, _python, machine, run
from regraft.disk import sqlite
from regraft.formats.cherry_v2.catalog import TABLES

ROWS, QUICK_ROWS, DIMENSIONS = 200_000, 2_000, 1024
#: A command may take this many times the floor's time, beyond its start-up …
MAX_RATIO = 2.0
#: … and this many MB at its peak.
MAX_PEAK_MB = 250
_CHUNK = 4 << 20


def floor(source: Path, out: Path) -> None:
    """Copy the files of a library's bases: read, SHA-256, write, flush, read back."""
    out.mkdir()
    copies = []
    for number, path in enumerate(sorted(path for path in (source / "KnowledgeBase").rglob("*") if path.is_file())):
        copy, digest = out / str(number), hashlib.sha256()
        with path.open("rb", buffering=0) as file, copy.open("wb", buffering=0) as new:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                new.write(chunk)
        copies.append(copy)
    for copy in copies:
        with copy.open("rb") as new:
            os.fsync(new.fileno())
    for copy in copies:
        with copy.open("rb", buffering=0) as new:
            while new.read(_CHUNK):
                pass


@dataclass
class Measured:
    """All runs of one job, each with the floor's run beside it; seconds are without start-up."""

    name: str
    runs: list[Run] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def line(self) -> str:
        """Return the job's line of the table."""
        seconds = statistics.median(one.seconds for one in self.runs)
        spread = f"{min(self.ratios):.2f}–{max(self.ratios):.2f}"
        peak = max(one.peak_mb for one in self.runs)
        return f"| {self.name} | {seconds:.1f} s | {statistics.median(self.ratios):.2f} | {spread} | {peak:.0f} MB |"

    @property
    def is_broken(self) -> bool:
        """Tell whether it breaks a limit."""
        return statistics.median(self.ratios) > MAX_RATIO or max(one.peak_mb for one in self.runs) > MAX_PEAK_MB


def _regraft(work: Path, *arguments: object) -> Run:
    return run(_python("regraft", *arguments), work)


def _floor(library: Path, work: Path) -> Run:
    try:
        return run(_python("benchmarks.move", "--floor", library, work / "floor"), work)
    finally:
        shutil.rmtree(work / "floor", ignore_errors=True)


def _pack(library: Path, work: Path) -> Run:
    (work / "base.zip").unlink(missing_ok=True)
    return _regraft(work, "pack", library, work / "base.zip", "--json")


def _install(source: Path, work: Path) -> Run:
    profile = work / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    (profile / "Data").mkdir(parents=True)
    with sqlite.open_writable(profile / "Data" / "cherrystudio.sqlite", create=True) as db:
        for statement in TABLES:
            db.execute(statement)
    try:
        to = ("--profile", profile, "--recreate-provider", "openai")
        done = _regraft(work, "install", source, *to, "--yes", "--json")
        if "insert-base" not in {action["action"] for action in json.loads(done.output)["actions"]}:
            raise RunFailed(f"no base came into the profile: {done.output}")
        return done
    finally:
        shutil.rmtree(profile, ignore_errors=True)


def measure(library: Path, work: Path, repetitions: int, note: Callable[[str], None]) -> list[Measured]:
    """Run each job and the floor in turn."""
    jobs: list[tuple[str, Callable[[], Run]]] = [
        ("pack", lambda: _pack(library, work)),
        ("install a library", lambda: _install(library, work)),
        ("install a pack", lambda: _install(work / "base.zip", work)),
    ]
    start = min(_regraft(work, "install", "--help").seconds for _ in range(3))
    idle = min(run([sys.executable, "-c", ""], work).seconds for _ in range(3))
    _floor(library, work)  # the file cache is warm for everybody
    results = []
    for name, job in jobs:
        measured = Measured(name)
        for _ in range(repetitions):
            least, mine = _floor(library, work).seconds - idle, job()
            measured.runs.append(mine)
            measured.ratios.append((mine.seconds - start) / least)
            note(f"{name}: {mine.seconds - start:.1f} s, floor {least:.1f} s, {mine.peak_mb:.0f} MB")
        results.append(measured)
    return results


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and judge it."""
    parser = argparse.ArgumentParser(description="Hold packing and installing against copying the same bytes.")
    parser.add_argument("--floor", nargs=2, type=Path, metavar=("LIBRARY", "OUT"), help="only copy, as the floor does")
    parser.add_argument("--library", type=Path, help="a library that is there, instead of a new one")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="2,000 rows, once, no limits")
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    options = parser.parse_args(arguments)
    if options.floor:
        floor(*options.floor)
        return 0

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=options.folder) as folder:
        work = Path(folder)
        library = options.library or _library(work, QUICK_ROWS if options.quick else ROWS)
        results = measure(library, work, 1 if options.quick else options.repetitions, note)
    print("| job | time | of the floor | of single pairs | peak memory |\n| --- | ---: | ---: | ---: | ---: |")
    print("\n".join(result.line for result in results))
    print(f"\nMeasured on {machine()}.")
    return int(not options.quick and any(result.is_broken for result in results))


def _library(work: Path, rows: int) -> Path:
    run(_python("benchmarks.generate", work / "v1", "--rows", rows, "--dimensions", DIMENSIONS), work)
    _regraft(work, "migrate", work / "v1", "--to", work / "library", "--yes", "--quiet")
    shutil.rmtree(work / "v1")
    return work / "library"


if __name__ == "__main__":
    sys.exit(main())
