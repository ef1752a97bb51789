"""Times fleets of migrations with two workers against one, on this machine and on Ray.

``python -m benchmarks.fleet`` (some minutes; ``--engine local`` without Ray). Two kinds of libraries are migrated: many
small ones, and some of a middle size. Processes are started once and have worked before; then runs with one worker and
with two take turns, each over the same libraries into a new folder, from the first task to the results on the disk.
Starting is told apart. ``--whole`` times the command itself as well, from the shell, start and all.

The ratio is the median of those of the pairs. What a worker waits for beside its commands is a task's overhead. Where
others use the cores, too, those seconds and ratios say little: so a second ratio leaves out what workers have waited
for a core, which Linux tells of each. It is that of two workers with a core each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from benchmarks import generate
from benchmarks.compare import machine
from regraft.api.fleet import run_job
from regraft.cli.fleet import parse_library_options as parse
from regraft.fleet.engine import LocalPool, Pool
from regraft.fleet.manifest import Library
from regraft.fleet.ray_pool import RayPool
from regraft.fleet.results import FleetOrder
from regraft.fleet.run import Fleet
from regraft.report.document import Run

SAMPLE = Path(__file__).parents[1] / "sample_v1" / "backup"
#: What tells of processes, on Linux.
PROCESSES = Path("/proc")
#: Workers of a pool; one of them rests where one is measured.
WORKERS = 2
#: Libraries of a middle size.
ROWS, DIMENSIONS = 2_000, 384


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """Libraries of one size: how one is made in a folder, by its number, and how many there are."""

    name: str
    make: Callable[[Path, int], object]
    count: int


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """A run over so many libraries with so many workers, and for how long these have waited for a core in all."""

    libraries: int
    workers: int
    seconds: float
    commands: float
    waited: float

    @property
    def overhead(self) -> float:
        """Return the seconds of a task beside its command."""
        return (self.seconds * self.workers - self.commands) / self.libraries

    @property
    def undisturbed(self) -> float:
        """Return the seconds of a task, its command and what is beside it, but for waiting for a core."""
        return (self.seconds * self.workers - self.waited) / self.libraries


class Kept:
    """A pool whose processes go on to the next run."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.cores = self.slots = WORKERS

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def close(self) -> None:
        """Leave it as it is."""

    def work_with(self, count: int) -> None:
        """Have the scheduler use so many of its processes."""
        self.cores = self.slots = count

    def end(self) -> None:
        """End the processes."""
        self._pool.close()


POOLS: dict[str, Callable[[], Pool]] = {
    "local": lambda: LocalPool(run_job, WORKERS),
    "ray": lambda: RayPool(run_job, None, WORKERS),
}


def small(folder: Path, _: int) -> None:
    """Make a copy of the sample: 4 bases, 76 rows, some 40 files in the library."""
    shutil.copytree(SAMPLE, folder)


def middle(folder: Path, number: int) -> None:
    """Make an export of one base."""
    generate.generate(folder, generate.Size(ROWS, DIMENSIONS, seed=number))


def migrated(sources: list[Path], folder: Path, pool: Pool) -> float:
    """Migrate sources into a new folder, and return the seconds of all commands together."""
    libraries = tuple(Library(source=str(source), target=str(folder / "to" / source.name)) for source in sources)
    order = FleetOrder(command="migrate", options=(), libraries=libraries)
    folder.mkdir()
    report = Fleet(parse=parse, order=order, path=folder / "results.parquet", pool=lambda: pool).run(
        Run(command="fleet migrate")
    )
    good = report.libraries.get("worth-reading", 0) + report.libraries.get("done", 0)
    if good != len(sources):
        raise RuntimeError(f"not all were migrated: {report.failed}")
    return report.seconds


def timed(sources: list[Path], pool: Kept, workers: int) -> Timed:
    """Migrate sources with so many workers."""
    pool.work_with(workers)
    with new_folder() as place:
        os.sync()
        waited, begun = _waited(), time.monotonic()
        commands = migrated(sources, place / "run", pool)
        return Timed(
            libraries=len(sources),
            workers=workers,
            seconds=time.monotonic() - begun,
            commands=commands,
            waited=_waited() - waited,
        )


def _waited() -> float:
    """Return for how many seconds the workers have waited for a core since they began; 0 where no system tells it."""
    nanoseconds = 0
    for process in _descendants(os.getpid()):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes()
            if words.startswith(b"ray::") or b"spawn_main" in words:
                nanoseconds += int((process / "schedstat").read_text().split()[1])
    return nanoseconds / 1e9


def _descendants(process: int) -> Iterator[Path]:
    for children in PROCESSES.glob(f"{process}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                yield PROCESSES / str(child)
                yield from _descendants(child)


@contextmanager
def new_folder() -> Iterator[Path]:
    """Give a folder on the disk that ``TMPDIR`` names, and remove it."""
    with tempfile.TemporaryDirectory(prefix="regraft-fleet-") as name:
        yield Path(name)


def started(engine: str, sources: list[Path], folder: Path) -> tuple[Kept, float]:
    """Start the processes of an engine, and return the seconds until each of them has migrated a small library."""
    begun = time.monotonic()
    pool = Kept(POOLS[engine]())
    migrated(sources[:WORKERS], folder / engine, pool)
    return pool, time.monotonic() - begun


def compare(kind: Kind, engine: str, pool: Kept, pairs: int) -> None:
    """Time one worker and two in turns, and print what came of it."""
    with new_folder() as place:
        sources = [place / f"{number:04}" for number in range(kind.count)]
        for number, source in enumerate(sources):
            kind.make(source, number)
        runs: dict[int, list[Timed]] = {1: [], WORKERS: []}
        timed(sources, pool, WORKERS)
        for pair in range(pairs):
            for workers in (1, WORKERS) if pair % 2 else (WORKERS, 1):
                runs[workers].append(timed(sources, pool, workers))
    for workers, found in runs.items():
        print(f"{engine}, {kind.count} {kind.name}, {workers} at a time: {_said(found)}", flush=True)
    pairs_of = list(zip(runs[1], runs[WORKERS], strict=True))
    ratios = [one.seconds / two.seconds for one, two in pairs_of]
    undisturbed = [WORKERS * one.undisturbed / two.undisturbed for one, two in pairs_of]
    print(
        f"{engine}, {kind.count} {kind.name}: {_median(ratios)} times as much with {WORKERS};"
        f" but for waiting for a core {_median(undisturbed)}",
        flush=True,
    )


def _said(found: list[Timed]) -> str:
    """Return medians of what runs took."""
    seconds, command, overhead, undisturbed = (
        statistics.median(values)
        for values in (
            [one.seconds for one in found],
            [one.commands / one.libraries for one in found],
            [one.overhead for one in found],
            [one.undisturbed for one in found],
        )
    )
    return (
        f"{seconds:.1f} s; a command {command:.3f} s, beside it {overhead:.3f} s;"
        f" a task but for waiting for a core {undisturbed:.3f} s"
    )


def _median(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def whole(engine: str, count: int) -> None:
    """Time the command over small libraries, start and all, with one worker and with two."""
    for workers in (1, WORKERS):
        with new_folder() as place:
            for number in range(count):
                small(place / "sources" / f"{number:04}", number)
            os.sync()
            results = place / "results.parquet"
            words = ("fleet", "migrate", str(place / "sources"), "--to", str(place / "to"), "--results", str(results))
            options = ("--engine", engine, "--workers", str(workers), "--json")
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "regraft", *words, *options], check=False, capture_output=True, text=True
            )
            seconds = time.monotonic() - begun
            if (
                json.loads(done.stdout)["libraries"]["all"]
                != pq.read_table(results, columns=["base"]).column(0).null_count
            ):
                raise RuntimeError(done.stderr)
        print(
            f"{engine}, the whole command over {count} small libraries, {workers} at a time: {seconds:.1f} s",
            flush=True,
        )


def main() -> None:
    """Measure, and print some lines for each engine and kind of libraries."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--engine", action="append", choices=[*POOLS])
    parser.add_argument("--small", type=int, default=60, help="so many small libraries")
    parser.add_argument("--middle", type=int, default=24, help=f"so many of {ROWS:,} rows × {DIMENSIONS}")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--whole", action="store_true", help="time the whole command, too")
    asked = parser.parse_args()
    kinds = (
        Kind(name="small libraries", make=small, count=asked.small),
        Kind(name=f"libraries of {ROWS:,} rows × {DIMENSIONS}", make=middle, count=asked.middle),
    )
    print(machine())
    for engine in asked.engine or POOLS:
        with new_folder() as place:
            for number in range(WORKERS):
                small(place / f"{number}", number)
            pool, seconds = started(engine, [place / f"{number}" for number in range(WORKERS)], place)
        print(f"{engine}: started in {seconds:.1f} s, the first libraries done", flush=True)
        try:
            for kind in kinds:
                if kind.count:
                    compare(kind, engine, pool, asked.pairs)
        finally:
            pool.end()
        if asked.whole:
            whole(engine, asked.small)


if __name__ == "__main__":
    main()
