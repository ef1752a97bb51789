"""Measures ``regraft check`` of v2 data: how fast it is, and that no damage stops it.

``python -m benchmarks.audit speed INDEX`` checks one index file at each level, in turn with SQLite's own check of the
same file (``quick_check``, for ``--deep`` ``integrity_check``), each in a process of its own. The CPU time of a process
says more than the time on the clock when other programs run. The exit status is 1 when a limit is broken: twice
SQLite's CPU time, 250 MB, and 80 MB for ``--quick``. ``repair --dry-run`` may take 1.3 times the CPU time of ``check``.

``python -m benchmarks.audit damage LIBRARY --seeds N`` damages copies of a small library in N ways and checks each; the
exit status is 1 when a check ends in anything but findings, takes longer than 20 s, or changes a file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import NamedTuple

import apsw
from click.testing import CliRunner

from regraft.cli import cli

TIMES = 2.0
REPAIR_TIMES = 1.3
MAX_BYTES = 250_000_000
MAX_QUICK_BYTES = 80_000_000
MAX_SECONDS = 20.0
_LEVELS = ([], ["--quick"], ["--deep"])

_SQLITE = """
import sys, apsw
db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
assert db.execute("PRAGMA " + sys.argv[2]).get == "ok"
"""

# --- damage ----------------------------------------------------------------------------------------------------------


def _bytes(path: Path, random: Random) -> None:
    """Change some bytes, as a failing disk does."""
    raw = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 3, 20, 200))):
        raw[random.randrange(len(raw))] = random.choice((0, 1, 255, random.randrange(256)))
    path.write_bytes(raw)


def _early_bytes(path: Path, random: Random) -> None:
    """Change bytes where pages begin: counts, types and pointers."""
    raw = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 4, 16))):
        page = random.randrange(max(1, len(raw) // 4096))
        raw[page * 4096 + random.randrange(min(120, len(raw)))] = random.randrange(256)
    path.write_bytes(raw)


def _cut(path: Path, random: Random) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: random.randrange(len(raw))])


def _noise(path: Path, random: Random) -> None:
    head = path.read_bytes()[: random.choice((0, 16, 100, 4096))]
    path.write_bytes(head + random.randbytes(random.randrange(20_000)))


def _pages(path: Path, random: Random) -> None:
    """Exchange pages, or write one over another."""
    raw = bytearray(path.read_bytes())
    count = len(raw) // 4096
    for _ in range(random.choice((1, 2, 8))):
        one, other = (random.randrange(count) * 4096 for _ in range(2))
        first, second = bytes(raw[one : one + 4096]), bytes(raw[other : other + 4096])
        raw[one : one + 4096] = second
        if random.random() < 0.5:
            raw[other : other + 4096] = first
    path.write_bytes(raw)


_VALUES = (
    "NULL",
    "x'ff00fe'",
    "CAST(x'eda080ff' AS TEXT)",
    "-1",
    "9223372036854775807",
    "1e300",
    "''",
    "'\U0001f600'",
    "zeroblob(300000)",
    "char(0) || 'x'",
    "'../../x'",
    "'[[[[{'",
)


def _rows(path: Path, random: Random) -> None:
    """Put values of any type into any column, without the checks that would refuse them."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for _ in range(random.choice((1, 2, 5))):
            table = random.choice(tables)
            columns = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')")]
            if not columns:
                continue
            where = random.choice(("", " WHERE random() % 3 = 0", " WHERE random() % 9 = 0"))
            try:
                db.execute(
                    f'UPDATE OR IGNORE "{table}" SET "{random.choice(columns)}" = {random.choice(_VALUES)}{where}'
                )
            except apsw.Error:
                continue  # a column that says NOT NULL


_ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT 2 FROM n) SELECT i FROM n"
_SCHEMA = (
    "DROP TABLE {table}",
    "ALTER TABLE {table} RENAME TO gone",
    f"DROP TABLE {{table}}; CREATE VIEW {{table}} AS {_ENDLESS}",
    "ALTER TABLE {table} ADD COLUMN more TEXT",
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = 'CREATE TABLE x (y)' WHERE name = '{table}'",
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET rootpage = 3 WHERE name = '{table}'",
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET name = CAST(x'ff' AS TEXT) WHERE name = '{table}'",
    "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = x'ff' WHERE name = '{table}'",
)


def _schema(path: Path, random: Random) -> None:
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        try:
            db.execute(random.choice(_SCHEMA).format(table=random.choice(tables)))
        except apsw.Error:
            return  # a table of the full-text index's own


WAYS: tuple[Callable[[Path, Random], None], ...] = (_bytes, _early_bytes, _cut, _noise, _pages, _rows, _rows, _schema)


def damage(library: Path, seed: int) -> str:
    """Damage one file of a library in the way that ``seed`` stands for, and return what was done."""
    random = Random(seed)
    files = [*library.glob("KnowledgeBase/*/.cherry/index.sqlite")] * 2 + [library / "catalog.sqlite"]
    path = random.choice(sorted(files))
    done = []
    for way in random.choices(WAYS, k=random.choice((1, 1, 1, 2))):
        try:
            way(path, random)
            done.append(way.__name__.strip("_"))
        except (apsw.Error, ValueError, IndexError, UnicodeDecodeError):
            continue  # too damaged already for this one
    return f"{path.relative_to(library)}: {', '.join(done)}"


def state(folder: Path) -> dict[str, tuple[int, str]]:
    """Return every file of a folder with its time of change and a hash of its bytes."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


def complaint(library: Path, seed: int) -> str | None:
    """Damage a library, check it, and return what is wrong with the check; None where nothing is."""
    what = damage(library, seed)
    before = state(library)
    started = time.monotonic()
    result = CliRunner().invoke(cli, ["check", str(library), "--json", *_LEVELS[seed % 3]], prog_name="regraft")
    seconds = time.monotonic() - started
    if result.exit_code not in (0, 1) or (result.exception and not isinstance(result.exception, SystemExit)):
        return f"seed {seed} ({what}): status {result.exit_code}, {result.stderr.strip()} {result.exception!r}"
    if seconds > MAX_SECONDS:
        return f"seed {seed} ({what}): {seconds:.0f} s"
    if state(library) != before:
        return f"seed {seed} ({what}): a file was changed"
    return None


def run_damage(library: Path, first: int, count: int) -> int:
    found: Counter[bool] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "library"
        for seed in range(first, first + count):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(library, copy)
            said = complaint(copy, seed)
            found[said is None] += 1
            if said is not None:
                print(said)
    print(f"{found[True]:,} damaged libraries ended in findings, {found[False]:,} did not (seeds {first} to {seed})")
    return int(found[False] > 0)


# --- speed -----------------------------------------------------------------------------------------------------------


class Usage(NamedTuple):
    """What a process took: seconds on a core, seconds on the clock, and its most memory in bytes."""

    cpu: float
    clock: float
    memory: int


def measured(*command: str) -> Usage:
    """Run a command in a process of its own, which must end with findings or without."""
    started = time.monotonic()
    # Compiling its modules again would take a second of each run.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit status {process.returncode}")
    clock = time.monotonic() - started
    return Usage(usage.ru_utime + usage.ru_stime, clock, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def least(runs: list[Usage]) -> Usage:
    """Return the least times of some runs, and the most memory."""
    return Usage(min(run.cpu for run in runs), min(run.clock for run in runs), max(run.memory for run in runs))


def run_speed(index: Path, repeats: int) -> int:
    sqlite = {"quick_check": [sys.executable, "-c", _SQLITE, str(index), "quick_check"]}
    sqlite["integrity_check"] = [*sqlite["quick_check"][:-1], "integrity_check"]
    regraft = [sys.executable, "-m", "regraft"]
    commands = {
        **sqlite,
        **{" ".join(["check", *level]): [*regraft, "check", str(index), *level] for level in _LEVELS},
        "repair --dry-run": [*regraft, "repair", "--dry-run", str(index)],
    }
    runs: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            runs[name].append(measured(*command))
    found = {name: least(some) for name, some in runs.items()}
    limits = {
        "quick_check": ("quick_check", 1.0, MAX_BYTES),
        "check": ("quick_check", TIMES, MAX_BYTES),
        "check --quick": ("quick_check", TIMES, MAX_QUICK_BYTES),
        "integrity_check": ("integrity_check", 1.0, MAX_BYTES),
        "check --deep": ("integrity_check", TIMES, MAX_BYTES),
        "repair --dry-run": ("check", REPAIR_TIMES, MAX_BYTES),
    }
    worst = 0
    for name, (other, times, most) in limits.items():
        usage, ratio = found[name], found[name].cpu / found[other].cpu
        cpu, memory = f"{usage.cpu:.1f} s | {ratio:.2f} × {other}", f"{usage.memory / 1e6:.0f} MB"
        print(f"| {name} | {cpu} | {usage.clock:.1f} s | {memory} |")
        if ratio > times or usage.memory > most:
            worst = 1
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("index", type=Path)
    speed.add_argument("--repeats", type=int, default=2)
    damaged = commands.add_parser("damage")
    damaged.add_argument("library", type=Path)
    damaged.add_argument("--seeds", type=int, default=1000)
    damaged.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.command == "speed":
        return run_speed(given.index, given.repeats)
    return run_damage(given.library, given.first, given.seeds)


if __name__ == "__main__":
    sys.exit(main())
