"""Kills a command that changes a store at random moments and looks at what it leaves.

``python -m benchmarks.kills STORE --kills N -- COMMAND [OPTION]…`` runs ``regraft COMMAND STORE`` with the options on
copies of STORE (``{store}`` in an option is the copy). After each ``kill -9`` every file must be as it was before or as
an undisturbed run leaves it, and the next run must come to the end of that undisturbed run, with nothing half made left
in ``.regraft``; with ``--undo``, taking all runs back must then come to the beginning.

Files are compared by their bytes, SQLite files by the rows of their ordinary tables, without the columns of
``--ignore`` (times, for instance), and files whose name matches ``--ignore-files`` not at all. The exit status is 1
when a kill left anything else.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from regraft.disk import sqlite, untrusted_sqlite
from repair.changes import execution

#: What is in a store: the name of every file, and what tells its content.
State = dict[str, str]
Compare = Callable[[Path], State]
#: What a run may end with: nothing to complain about, or something worth reading.
_ENDED = (0, 1)


def state_of(store: Path, ignored: Iterable[str] = (), skipped: Iterable[str] = ()) -> State:
    """Return what is in a store besides regraft's own folder."""
    found = {}
    for path in sorted(store.rglob("*")):
        name = path.relative_to(store).as_posix()
        own = name.startswith(".regraft") or name.endswith(untrusted_sqlite.COMPANION_SUFFIXES)
        if path.is_file() and not own and not any(fnmatch.fnmatch(name, pattern) for pattern in skipped):
            found[name] = (
                rows_mark(path, set(ignored)) if untrusted_sqlite.is_database(path) else _hash(path.read_bytes())
            )
    return found


def _hash(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def rows_mark(path: Path, ignored: set[str]) -> str:
    """Return a hash of all rows, in any order; ``fts_rowid`` may be numbered anew."""
    parts = []
    with sqlite.open_readonly(path) as db:
        tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        for (table,) in tables.fetchall():
            if table.startswith(("search_text_fts", "sqlite_")):
                continue
            names = [str(row[1]) for row in db.execute(f"PRAGMA table_info({untrusted_sqlite.quote_name(table)})")]
            wanted = [untrusted_sqlite.quote_name(name) for name in names if name not in {"fts_rowid", *ignored}]
            columns = ", ".join(f"typeof({name}), CAST({name} AS BLOB)" for name in wanted)
            rows = db.execute(f"SELECT {columns} FROM {untrusted_sqlite.quote_name(table)}")
            parts += [_hash(repr((table, row)).encode()) for row in rows]
    return _hash("".join(sorted(parts)).encode())


class Killer:
    """Runs one command on copies of a store."""

    def __init__(self, store: Path, command: list[str], compare: Compare) -> None:
        self._store = store
        self._command = command
        self._compare = compare
        self._old = compare(store)
        with tempfile.TemporaryDirectory() as folder:
            copy = self.copy(Path(folder))
            began = time.monotonic()
            self._finish(copy)
            self.seconds = time.monotonic() - began
            self._new = compare(copy)

    def copy(self, folder: Path) -> Path:
        """Return a fresh copy of the store, by the same name."""
        return shutil.copytree(self._store, folder / self._store.name, symlinks=True)

    def _start(self, store: Path) -> subprocess.Popen[bytes]:
        name, *options = (part.replace("{store}", str(store)) for part in self._command)
        line = [sys.executable, "-m", "regraft", name, str(store), "--yes", *options]
        return subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)

    def _finish(self, store: Path) -> None:
        process = self._start(store)
        _, said = process.communicate()
        if process.returncode not in _ENDED:
            raise SystemExit(f"{' '.join(self._command)} ended with {process.returncode}: {said.decode()}")

    def kill(self, after: float, *, undo: bool) -> str:
        """Kill the command so many seconds after its start, and return what came of it: ``whole`` is what it should."""
        with tempfile.TemporaryDirectory() as folder:
            copy = self.copy(Path(folder))
            process = self._start(copy)
            time.sleep(after)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            found = self._compare(copy)
            names = found.keys() | self._old.keys() | self._new.keys()
            if any(found.get(name) not in (self._old.get(name), self._new.get(name)) for name in names):
                return "neither old nor new"
            began = (copy / ".regraft").exists()
            self._finish(copy)
            if self._compare(copy) != self._new:
                return "the next run did not finish"
            if (copy / ".regraft" / execution.WORK).exists():
                return "work left behind"
            if undo and not self._taken_back(copy):
                return "not taken back"
        return "whole" if began else "whole (killed before it began)"

    def _taken_back(self, store: Path) -> bool:
        line = [sys.executable, "-m", "regraft", "undo", str(store), "--yes", "-q"]
        while subprocess.run(line, capture_output=True, check=False).returncode == 0:
            pass
        return self._compare(store) == self._old


def main() -> int:
    """Kill, look, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ignore", action="append", default=[], metavar="COLUMN")
    parser.add_argument("--ignore-files", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--undo", action="store_true")
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    killer = Killer(asked.store, asked.command, lambda store: state_of(store, asked.ignore, asked.ignore_files))
    random, counted = Random(asked.seed), Counter[str]()
    for _ in range(asked.kills):
        counted[killer.kill(random.uniform(0, killer.seconds), undo=asked.undo)] += 1
    print(f"regraft {' '.join(asked.command)}: {asked.kills} kills within {killer.seconds:.1f} s")
    for what, count in counted.most_common():
        print(f"{count:6}  {what}")
    return 0 if all(what.startswith("whole") for what in counted) else 1


if __name__ == "__main__":
    sys.exit(main())
