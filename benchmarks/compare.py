"""Runs the floor and ``regraft migrate`` in alternation and prints how far apart they are.

``python -m benchmarks.compare`` takes about twenty minutes; ``--quick`` a few seconds. Every run is a fresh process;
its time is its whole life, its peak memory what the system counted for it. The exit status is 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
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

ROOT = Path(__file__).resolve().parent.parent
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results -->", "<!-- end of results -->"

ROWS = (20_000, 100_000)
DIMENSIONS = 768
#: Peak memory is measured here.
LARGE_ROWS, LARGE_DIMENSIONS = 100_000, 1024
QUICK_ROWS = 2_000

#: regraft may take this many times the floor's time …
MAX_RATIO = 1.5
#: … and at its peak this many MB.
MAX_PEAK_MB = {"en": 250, "zh": 400}
#: FTS5's hashsize that was fastest for the floor (README.md); 0 is its own.
FLOOR_HASH_BYTES = {"en": 8 << 20, "zh": 0}

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
    """One finished process."""

    seconds: float
    peak_mb: float
    output: str


@dataclass
class Measured:
    """All runs of a case."""

    case: Case
    floor: list[Run] = field(default_factory=list)
    regraft: list[Run] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        """Return the median over the pairs of regraft's time by the floor's."""
        pairs = list(zip(self.floor, self.regraft, strict=False))
        return statistics.median(mine.seconds / least.seconds for least, mine in pairs) if pairs else None

    @property
    def peak_mb(self) -> float:
        """Return the most memory that any run of regraft took."""
        return max(run.peak_mb for run in self.regraft)

    def broken(self) -> Iterator[str]:
        """Say which limits this case breaks."""
        if self.ratio is not None and self.ratio > MAX_RATIO:
            yield f"{self.case}: {self.ratio:.2f} times the floor; the limit is {MAX_RATIO}"
        limit = MAX_PEAK_MB[self.case.language]
        if self.peak_mb > limit:
            yield f"{self.case}: {self.peak_mb:.0f} MB at its peak; the limit is {limit} MB"


def run(command: list[str], folder: Path) -> Run:
    """Run one command to its end.

    The peak of a process counts from its parent's memory at the fork, so this program itself must stay small: that is
    why even the data is made in a process of its own.

    Raises:
        RunFailed: it did not exit with 0.
    """
    os.sync()  # what an earlier run wrote is not to be flushed on this one's time
    with (folder / "stdout").open("w+") as stdout, (folder / "stderr").open("w+") as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        stdout.seek(0)
        stderr.seek(0)
        if process.returncode:
            raise RunFailed(f"{' '.join(command)}: exit status {process.returncode}\n{stderr.read()[-2000:]}")
        return Run(seconds, usage.ru_maxrss / _KILOBYTES / 1024, stdout.read())


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


def _regraft(source: Path, case: Case, folder: Path) -> Run:
    out = folder / "library"
    try:
        done = run(_python("regraft", "migrate", source, "--to", out, "--json", "--jobs", 1), folder)
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
        if not case.repetitions:
            measured.regraft.append(_regraft(source, case, folder))
        for repetition in range(case.repetitions):
            # Who goes first changes, so that neither always meets the machine as the other left it.
            for floor in (True, False) if repetition % 2 == 0 else (False, True):
                done = _floor(source, case, folder) if floor else _regraft(source, case, folder)
                (measured.floor if floor else measured.regraft).append(done)
                note(f"{case}: {'floor' if floor else 'regraft'} {done.seconds:.1f} s, {done.peak_mb:.0f} MB")
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
    heads = ("rows × dimensions", "floor", "regraft", "ratio", "peak memory")
    lines = [heads, ("---", *["---:"] * (len(heads) - 1))]
    for result in results:
        seconds = [_median(runs) for runs in (result.floor, result.regraft)]
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        lines.append((str(result.case), *seconds, ratio, f"{result.peak_mb:.0f} MB"))
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
