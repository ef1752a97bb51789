"""Run the tests in random order beside busy processes and a disk load, and list the tests that fail.

A test must not depend on time or load: three runs on a machine that is fully loaded have no failures.

usage: python -m benchmarks.stability [--runs 3] [--seed N] [--busy 8] [--marks EXPRESSION] [PATH ...]
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
#: One process of load each. They end with their standard input, so that they never outlive this program.
_STOP = "import os, sys, threading; threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()"
_BUSY = f"{_STOP}\nwhile True: pass"
_DISK = f"""{_STOP}
data = os.urandom(1 << 20)
while True:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
"""


@dataclass(frozen=True)
class Result:
    """What one run of the tests came to."""

    seed: int
    seconds: float
    status: int
    tests: int
    skipped: int
    failed: list[str]


@contextmanager
def load(script: str, *arguments: str) -> Iterator[None]:
    """Run a process of load until the end of the block."""
    process = subprocess.Popen([sys.executable, "-c", script, *arguments], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def run_tests(seed: int, paths: list[str], marks: str, workers: int, log: Path) -> Result:
    """Run the tests once in the order of a seed; their output goes to a file."""
    report = log.with_suffix(".xml")
    command = [
        *(sys.executable, "-P", "-m", "pytest", "-q", "-n", str(workers), "-m", marks, f"--junitxml={report}"),
        *("--random-order-bucket", "global", "--random-order-seed", str(seed), *paths),
    ]
    began = time.monotonic()
    with log.open("w") as output:
        done = subprocess.run(command, cwd=REPO, stdout=output, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - began
    cases = list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return Result(
        seed=seed,
        seconds=seconds,
        status=done.returncode,
        tests=len(cases),
        skipped=sum(case.find("skipped") is not None for case in cases),
        failed=[f"{case.get('classname')}::{case.get('name')}" for case in failed],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="tests to run, by default all")
    parser.add_argument("--runs", type=int, default=3, help="how many runs (default 3)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the first run; the others count up from it")
    parser.add_argument("--busy", type=int, default=8, help="busy processes beside the tests (default 8)")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests (default 2)")
    parser.add_argument("--marks", default="not slow", help="tests by their marks (default: not slow)")
    parser.add_argument("--logs", type=Path, default=None, help="directory for the output of the runs")
    options = parser.parse_args()
    first = secrets.randbelow(1_000_000) if options.seed is None else options.seed
    logs = options.logs or Path(tempfile.mkdtemp(prefix="regraft-stability-"))
    logs.mkdir(parents=True, exist_ok=True)
    failures: dict[str, list[int]] = defaultdict(list)
    is_well = True
    with ExitStack() as stack:
        for _ in range(options.busy):
            stack.enter_context(load(_BUSY))
        place = stack.enter_context(tempfile.TemporaryDirectory(prefix="regraft-load-", ignore_cleanup_errors=True))
        stack.enter_context(load(_DISK, str(Path(place) / "load")))
        for seed in range(first, first + options.runs):
            result = run_tests(seed, options.paths, options.marks, options.workers, logs / f"seed-{seed}.txt")
            is_well = is_well and result.status == 0
            print(
                f"seed {seed}: {result.tests} tests in {result.seconds:.0f} s, {len(result.failed)} failed, "
                f"{result.skipped} skipped (pytest ended with {result.status})",
                flush=True,
            )
            for name in result.failed:
                failures[name].append(seed)
    for name, seeds in sorted(failures.items()):
        print(f"failed with {', '.join(map(str, seeds))}: {name}")
    print(f"The output of the runs is in {logs}.")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
