"""Time ``regraft certify`` over a large base, alone and against its copy, with the default sample of queries.

``python -m benchmarks.certify --rows 100000 --dimensions 384`` makes a v1 export folder, migrates it, and prints the
seconds and the peak of memory of certifying the library, and the v1 data against it. Exits with 1 above the limits.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: What certifying 100,000 texts of 384 dimensions may take.
SECONDS, MEGABYTES = 60, 300


def measured(*words: object) -> tuple[float, float, float, int]:
    """Run a command; return its seconds, those of the processor, its peak of memory in MB, and its exit status."""
    start = time.monotonic()
    child = subprocess.Popen([sys.executable, "-P", "-m", "regraft", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - start
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, child.returncode


def main() -> int:
    """Print a table; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=384)
    wanted = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as place:
        source, library = Path(place, "v1"), Path(place, "library")
        # In a process of its own: the peak of a new process begins at the memory of the one that starts it.
        size = ("--rows", str(wanted.rows), "--dimensions", str(wanted.dimensions))
        subprocess.run([sys.executable, "-m", "benchmarks.generate", str(source), *size], check=True)
        measured("migrate", source, "--to", library, "--yes", "--quiet")
        print("| certified | s | CPU s | MB | exit status |\n| --- | ---: | ---: | ---: | ---: |")
        for name, paths in (("a library", (library,)), ("v1 data against its library", (source, library))):
            seconds, processor, megabytes, status = measured("certify", *paths)
            failed |= seconds > SECONDS or megabytes > MEGABYTES
            print(f"| {name} | {seconds:.1f} | {processor:.1f} | {megabytes:.0f} | {status} |")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
