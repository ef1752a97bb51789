"""Holds reading a redb file against reading the same bytes with a checksum.

``python -m benchmarks.redb`` makes a file of 20,000 rows (keys of 32 characters, JSON of about 3.3 kB with a vector in
it), then reads all of it, in turn with the floor: every byte once, with an XXH3 of 128 bits for each 4 KiB. Each run is
a process of its own. The exit status is 1 when a limit is broken: 1 s of CPU time, 100 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import xxhash  # noqa: E402
from redb_writer import RedbTable, write_redb  # noqa: E402

from regraft.formats.redb import read_redb  # noqa: E402

ROWS, NUMBERS = 20_000, 150
PAGE_BYTES = 4096
MAX_SECONDS, MAX_PEAK_MB = 1.0, 100
_KILOBYTES = 1024 if sys.platform == "darwin" else 1


def make(path: Path, rows: int) -> None:
    """Write a file with so many rows."""
    chance = random.Random(1)
    chunks = {}
    for at in range(rows):
        vector = [chance.uniform(-1, 1) for _ in range(NUMBERS)]
        row = {"id": f"{chance.getrandbits(128):032x}", "seq": at, "vector": vector}
        chunks[row["id"].encode()] = json.dumps(row).encode()
    write_redb(path, {"chunks": RedbTable("&str", "&[u8]", chunks)})


def read(path: Path) -> None:
    """Read every row."""
    with read_redb(path) as file:
        print(sum(1 for _ in file.rows("chunks")))


def floor(path: Path) -> None:
    """Read every byte, with a checksum for each page."""
    with path.open("rb", buffering=0) as file:
        while page := file.read(PAGE_BYTES):
            xxhash.xxh3_128_digest(page)


def measured(job: str, path: Path) -> tuple[float, float]:
    """Run a job on a file in a process of its own; return its seconds of CPU time and its peak memory in MB."""
    command = [sys.executable, "-m", "benchmarks.redb", "--job", job, "--file", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / _KILOBYTES / 1024


def main() -> None:
    """Measure, print, and end with 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"[default: {ROWS}]")
    parser.add_argument("--pairs", type=int, default=5, help="of runs [default: 5]")
    parser.add_argument("--job", choices=("make", "read", "floor", "nothing"), help="only do this, with --file")
    parser.add_argument("--file", type=Path)
    asked = parser.parse_args()
    jobs = {"make": lambda path: make(path, asked.rows), "read": read, "floor": floor, "nothing": lambda _: None}
    if asked.job:
        jobs[asked.job](asked.file)
        return
    with tempfile.TemporaryDirectory(prefix="regraft-benchmark-") as folder:
        path = Path(folder, "kb.redb")
        subprocess.run(
            [sys.executable, "-m", "benchmarks.redb", "--job", "make", "--rows", str(asked.rows), "--file", str(path)],
            check=True,
        )
        print(f"{path.stat().st_size / 1e6:,.0f} MB, {asked.rows:,} rows")
        runs = [{job: measured(job, path) for job in ("nothing", "floor", "read")} for _ in range(asked.pairs)]
    medians = {job: statistics.median(run[job][0] for run in runs) for job in runs[0]}
    peak = max(run["read"][1] for run in runs)
    ratio = statistics.median(
        (run["read"][0] - medians["nothing"]) / (run["floor"][0] - medians["nothing"]) for run in runs
    )
    for job, seconds in medians.items():
        print(f"{job}: {seconds:.2f} s of CPU time, {max(run[job][1] for run in runs):,.0f} MB at the peak")
    print(f"reading takes {ratio:.1f} times the floor, without what starting takes")
    sys.exit(1 if medians["read"] > MAX_SECONDS or peak > MAX_PEAK_MB else 0)


if __name__ == "__main__":
    main()
