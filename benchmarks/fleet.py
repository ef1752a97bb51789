"""Times ``regraft fleet`` over copies of the sample: two workers against one, on both engines.

``python -m benchmarks.fleet`` (a minute or two). A library's overhead is what it takes in a worker that is warm beyond
the command itself, which is timed in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.compare import machine

SAMPLE = Path(__file__).parents[1] / "sample_v1" / "backup"


def timed(sources: Path, folder: Path, *options: str) -> tuple[float, list[float]]:
    """Run a fleet of migrations, and return its seconds, and those of each library."""
    results = folder / "results.parquet"
    command = [sys.executable, "-m", "regraft", "fleet", "migrate", str(sources), "--to", str(folder / "libraries")]
    begun = time.monotonic()
    done = subprocess.run(
        [*command, "--results", str(results), "--json", *options], check=False, capture_output=True, text=True
    )
    seconds = time.monotonic() - begun
    document = json.loads(done.stdout)
    assert document["libraries"].get("worth-reading") == document["libraries"]["all"], done.stderr
    rows = pq.read_table(results).to_pylist()
    return seconds, [row["seconds"] for row in rows if row["base"] is None]


def main() -> None:
    """Measure, and print a line for each engine and number of workers."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--libraries", type=int, default=60)
    parser.add_argument("--engine", action="append", choices=["local", "ray"])
    asked = parser.parse_args()
    print(machine())
    for engine in asked.engine or ["local"]:
        whole: dict[int, float] = {}
        for workers in (1, 2):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                for number in range(asked.libraries):
                    shutil.copytree(SAMPLE, folder / "sources" / f"backup-{number:04}")
                os.sync()
                whole[workers], each = timed(folder / "sources", folder, "--engine", engine, "--workers", str(workers))
            warm = statistics.median(each)
            print(
                f"{engine}, {workers} workers: {whole[workers]:.1f} s, {warm:.2f} s a library in a warm worker,"
                f" {whole[workers] * workers / asked.libraries:.2f} s with all around it"
            )
        print(f"{engine}: two workers do {whole[1] / whole[2]:.2f} times as much as one")


if __name__ == "__main__":
    main()
