"""Runs the floor and ``regraft migrate`` in alternation and prints how far apart they are.

``python -m benchmarks.compare`` takes about ten minutes; ``--quick`` a few seconds. Every run is a fresh process; its
time is its whole life. Memory is what regraft's processes take together at their peak, sampled in one more run of each
case. The exit status is 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from benchmarks.vocabulary import LANGUAGES
from regraft.processes import pool

ROOT = Path(__file__).resolve().parent.parent
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"

ROWS = (20_000, 100_000)
DIMENSIONS = 768
#: Peak memory alone is measured here.
LARGE_ROWS, LARGE_DIMENSIONS = 100_000, 1024
QUICK_ROWS = 2_000

#: regraft may take this many times the floor's time, on several cores and on one …
MAX_RATIO, MAX_RATIO_OF_ONE = 0.75, 1.5
#: … and at its peak this many MB.
MAX_PEAK_MB = 250
#: FTS5's hashsize that was fastest for the floor (README.md); 0 is its own.
FLOOR_HASH_BYTES = {"en": 8 << 20, "zh": 0}

_WATCH_SECONDS = 0.1
_KILOBYTES = 1024 if sys.platform == "darwin" else 1


class RunFailed(Exception):
    """A measured command did not do what it should."""


@dataclass(frozen=True)
class Case:
    """One size of base in one language. ``repetitions`` 0: only regraft's peak memory is of interest."""

    rows: int
    dimensions: int
    language: str
    repetitions: int

    def __str__(self) -> str:
        return f"{self.rows:,} × {self.dimensions:,} {self.language}"


@dataclass(frozen=True)
class Run:
    """One finished process. ``cpu`` counts the processes that it started, too."""

    seconds: float
    cpu: float
    peak_mb: float
    output: str


@dataclass
class Measured:
    """All runs of a case."""

    case: Case
    floor: list[Run] = field(default_factory=list)
    regraft: list[Run] = field(default_factory=list)
    #: The most memory that regraft's processes took together.
    peak_mb: float = 0.0

    @property
    def ratio(self) -> float | None:
        """Return the median over the pairs of regraft's time by the floor's."""
        pairs = list(zip(self.floor, self.regraft, strict=False))
        return statistics.median(mine.seconds / least.seconds for least, mine in pairs) if pairs else None

    @property
    def cpu_ratio(self) -> float | None:
        """Return the least CPU time of regraft by the floor's. Other programs change it less than the time."""
        return min(run.cpu for run in self.regraft) / min(run.cpu for run in self.floor) if self.regraft else None

    def broken(self) -> Iterator[str]:
        """Say which limits this case breaks."""
        if self.ratio is not None and self.ratio > _most_ratio():
            yield f"{self.case}: {self.ratio:.2f} times the floor; the limit is {_most_ratio()}"
        if self.peak_mb > MAX_PEAK_MB:
            yield f"{self.case}: {self.peak_mb:.0f} MB at its peak; the limit is {MAX_PEAK_MB} MB"


def _most_ratio() -> float:
    return MAX_RATIO if pool.usable_cores() > 1 else MAX_RATIO_OF_ONE


def run(command: list[str], folder: Path, watch: Callable[[int], float] | None = None) -> Run:
    """Run one command to its end; ``watch`` is called now and then with its process, and returns the MB that it takes.

    Else the peak is what the system counted for the process, from its parent's memory at the fork on: so this program
    itself must stay small, and even the data is made in a process of its own.

    Raises:
        RunFailed: it did not exit with 0.
    """
    os.sync()  # what an earlier run wrote is not to be flushed on this one's time
    with (folder / "stdout").open("w+") as stdout, (folder / "stderr").open("w+") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=ROOT)
        peak = 0.0
        while watch is not None and not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            peak = max(peak, watch(process.pid))
            time.sleep(_WATCH_SECONDS)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode:
            raise RunFailed(f"{' '.join(command)}: exit status {process.returncode}\n{stderr.read()[-2000:]}")
        return Run(seconds, usage.ru_utime + usage.ru_stime, peak or usage.ru_maxrss / _KILOBYTES / 1024, stdout.read())


def memory_of(process: int) -> float:
    """Return the MB that a process and all it started take, memory that several share counted once."""
    total = 0.0
    for one in _family(process):
        with contextlib.suppress(OSError):
            shares = (line.split() for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines())
            total += sum(int(share[1]) for share in shares if share[0] == "Pss:") / 1024
    return total


def _family(process: int) -> Iterator[int]:
    yield process
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
            yield from _family(int(child))


def _python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _floor(source: Path, case: Case, folder: Path) -> Run:
    (vectors,) = (source / "KnowledgeBase").iterdir()
    index = folder / "floor.sqlite"
    hash_bytes = FLOOR_HASH_BYTES[case.language]
    try:
        return run(_python("benchmarks.floor", vectors, index, "--hash-bytes", hash_bytes), folder)
    finally:
        index.unlink(missing_ok=True)


def _regraft(source: Path, case: Case, folder: Path, watch: Callable[[int], float] | None = None) -> Run:
    out = folder / "library"
    try:
        done = run(_python("regraft", "migrate", source, "--to", out, "--json"), folder, watch)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    carried = sum(base["rows"]["carried"] for base in json.loads(done.output)["bases"])
    if carried != case.rows:
        raise RunFailed(f"regraft carried {carried:,} rows of {case.rows:,}")
    return done


def measure(case: Case, folder: Path, note: Callable[[str], None]) -> Measured:
    """Make the data of a case, run both programs over it in turn, and remove it."""
    measured = Measured(case)
    with _data(case, folder, note) as source:
        watched = _regraft(source, case, folder, memory_of if sys.platform == "linux" else None)
        measured.peak_mb = watched.peak_mb
        note(f"{case}: {watched.peak_mb:.0f} MB")
        for repetition in range(case.repetitions):
            # Who goes first changes, so that neither always meets the machine as the other left it.
            for floor in (True, False) if repetition % 2 == 0 else (False, True):
                done = _floor(source, case, folder) if floor else _regraft(source, case, folder)
                (measured.floor if floor else measured.regraft).append(done)
                note(f"{case}: {'floor' if floor else 'regraft'} {done.seconds:.1f} s")
    return measured


@contextmanager
def _data(case: Case, folder: Path, note: Callable[[str], None]) -> Iterator[Path]:
    note(f"{case}: making the data")
    source = folder / "source"
    size = ("--rows", case.rows, "--dimensions", case.dimensions, "--lang", case.language)
    try:
        run(_python("benchmarks.generate", source, *size), folder)
        yield source
    finally:
        shutil.rmtree(source, ignore_errors=True)


def table(results: Iterable[Measured]) -> str:
    """Return the results as a Markdown table, which reads well in a terminal too."""
    heads = ("rows × dimensions", "floor", "regraft", "ratio", "floor, CPU", "regraft, CPU", "ratio", "peak memory")
    lines = [heads, ("---", *["---:"] * (len(heads) - 1))]
    for result in results:
        seconds = [_median(runs) for runs in (result.floor, result.regraft)]
        cpu = [f"{min(run.cpu for run in runs):.1f} s" if runs else "" for runs in (result.floor, result.regraft)]
        ratio, cpu_ratio = ("" if one is None else f"{one:.2f}" for one in (result.ratio, result.cpu_ratio))
        lines.append((str(result.case), *seconds, ratio, *cpu, cpu_ratio, f"{result.peak_mb:.0f} MB"))
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(_table_line(line, widths) for line in lines)


def _table_line(cells: tuple[str, ...], widths: list[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    return " | ".join((first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others))).join(("| ", " |"))


def _median(runs: list[Run]) -> str:
    return f"{statistics.median(done.seconds for done in runs):.1f} s" if runs else ""


def machine() -> str:
    """Say what the numbers were measured on."""
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()},"
        f" SQLite {apsw.sqlite_lib_version()}"
    )


def write_readme(text: str) -> None:
    """Put ``text`` between the two marks in README.md."""
    before, rest = README.read_text(encoding="utf-8").split(BEGIN)
    _, after = rest.split(END)
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _cases(options: argparse.Namespace) -> list[Case]:
    languages = options.lang or LANGUAGES
    if options.quick:
        return [Case(QUICK_ROWS, DIMENSIONS, language, 1) for language in languages]
    timed = [
        Case(rows, DIMENSIONS, language, options.repetitions) for rows in options.rows or ROWS for language in languages
    ]
    large = [Case(LARGE_ROWS, LARGE_DIMENSIONS, language, 0) for language in languages]
    return timed + ([] if options.no_large else large)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Hold a migration's time and memory against the floor.")
    parser.add_argument("--rows", type=int, action="append", help="only bases of that many rows (repeatable)")
    parser.add_argument("--lang", choices=LANGUAGES, action="append", help="only this language (repeatable)")
    parser.add_argument("--repetitions", type=int, default=3, help="pairs of runs per case (default: 3)")
    parser.add_argument("--no-large", action="store_true", help="leave out the cases for peak memory")
    parser.add_argument("--quick", action="store_true", help="one pair over 2,000 rows, no limits")
    parser.add_argument("--markdown", action="store_true", help="also write the table into benchmarks/README.md")
    parser.add_argument("--folder", type=Path, help="where data is made and removed (default: the temporary folder)")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions must be positive")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and judge it."""
    options = _options(arguments)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        with tempfile.TemporaryDirectory(prefix="regraft-bench-", dir=options.folder) as folder:
            results = [measure(case, Path(folder), note) for case in _cases(options)]
    except RunFailed as error:
        note(str(error))
        return 2
    text = f"{table(results)}\n\nMeasured on {machine()}."
    print(text)
    if options.markdown:
        write_readme(text)
    broken = [] if options.quick else [line for result in results for line in result.broken()]
    for line in broken:
        note(line)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
