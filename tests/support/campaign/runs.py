"""Running a scenario in a process of its own, and judging what it has left.

A run is a copy of this process, which has everything loaded. Times and names of runs are always the same ones, so that
two runs that go the same way leave the same bytes.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
import shutil
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import apsw
from fault_server import vector_of

from benchmarks.kills import State, rows_mark, state_of
from campaign.stores import Scenario  # it makes the helpers of the tests known
from regraft import cli, embedders, identity
from regraft.__main__ import main as regraft
from regraft.disk import sqlite, untrusted_sqlite, writable
from regraft.embedders.protocol import Embedded
from regraft.ledger.ledger import FOLDER

KILLED = 137
DONE, STOPPED, REFUSED = (0, 1), 3, 2
#: Of these only that they are there is compared: they tell when each run was.
_DATED = ("*report.json", "*report.html")
#: What a run must not leave in regraft's own folder.
_HALF_MADE = ("work", "staging", "replaced", "restoring", "reconciling")
_MOMENT = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Ended:
    """How a run ended, and what it said."""

    status: int
    stdout: str
    stderr: str

    @property
    def code(self) -> str:
        """Return the last line of what it said, short."""
        return self.stderr.strip().rpartition("\n")[2][-200:]


class _Clock(datetime):
    @classmethod
    def now(cls, _: Any = None) -> datetime:  # type: ignore[override]
        return _MOMENT


class _Embedder:
    """Makes vectors of texts in this process."""

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    def embed(self, texts: Any, *, query: bool = False, sending: Any = lambda _: None) -> Embedded:
        sending(texts)
        return Embedded([vector_of(text) for text in texts], tokens=None, requests=1)

    def tokens(self, text: str) -> int:
        return len(text) // 4 + 1

    def halt(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is open."""


def load() -> None:
    """Import what commands import late, so that copies of this process need not."""
    for name in cli.cli.commands:
        cli.cli.commands[name]
    for package in ("regraft", "migrators", "checks", "repair"):
        root = Path(import_module(package).__path__[0])
        for path in sorted(root.rglob("*.py")):
            if path.name != "__main__.py":
                import_module(
                    ".".join((package, *path.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")
                )
    # Copies of this process are not to look through all of it for garbage, and so have it copied.
    gc.collect()
    gc.freeze()


def _named(number: int) -> Callable[[int], str]:
    """Return what names the runs of a process; later ones sort behind earlier ones."""
    count = iter(range(1 << 30))
    return lambda size: f"{number:02x}{next(count):04x}{'0' * 32}"[: 2 * size]


def _in_copy(work: Callable[[], object], output: Path, number: int) -> None:
    """Do ``work`` in this process, a copy, and end it."""
    status = 99
    try:
        for descriptor, name in ((1, "out"), (2, "err")):
            file = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, descriptor)
            os.close(file)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        # As at the start of a program: what takes their place lets go of them.
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]
        # As users run it: they are not warned of a file that a signal leaves unclosed.
        warnings.simplefilter("ignore", ResourceWarning)
        embedders.ServerEmbedder = _Embedder  # type: ignore[misc, assignment]
        identity.datetime = _Clock  # type: ignore[misc]
        identity.secrets = types.SimpleNamespace(token_hex=_named(number))  # type: ignore[assignment]
        work()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def in_copy(work: Callable[[], object], output: Path, number: int = 1) -> Ended:
    """Do ``work`` in a copy of this process; ``number`` says the how manieth run of the store it is."""
    output.mkdir(exist_ok=True)
    with warnings.catch_warnings():
        # Who started this process may keep threads; the copy needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _in_copy(work, output, number)
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    texts = [
        (output / name).read_text("utf-8", "replace") if (output / name).exists() else "" for name in ("out", "err")
    ]
    return Ended(128 - code if code < 0 else code, *texts)


def command(line: list[str]) -> Callable[[], None]:
    """Return what runs a command line of regraft."""

    def work() -> None:
        # What this process may change is for the command to say.
        writable._roots.clear()
        sys.argv = ["regraft", *line]
        regraft()

    return work


class Stage:
    """A scenario with its store before and after an undisturbed run, always at the same path."""

    def __init__(self, scenario: Scenario, work: Path) -> None:
        self.scenario = scenario
        self.place = work / "case"
        self.output = work / "output"
        self.temporary = work / "temporary"
        self._before = work / f"before-{hashlib.blake2b(scenario.name.encode(), digest_size=4).hexdigest()}"
        self.temporary.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(self.temporary)
        self.seconds = 0.0
        self._prepare()
        self.old = self.state()
        self.old_sources = self.sources()
        done = self.run()
        if done.status not in DONE:
            raise RuntimeError(f"{scenario.name}: an undisturbed run ended with {done.status}: {done.stderr}")
        self.new = self.state()
        self.status = done.status
        #: What was found to come of trees that were judged before.
        self._judged: dict[str, str] = {}

    def _prepare(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        ended = in_copy(self._fill, self.output, 0)
        if ended.status:
            raise RuntimeError(f"{self.scenario.name}: no store: {ended.stderr}")
        shutil.rmtree(self._before, ignore_errors=True)
        shutil.copytree(self.place, self._before, symlinks=True)

    def _fill(self) -> None:
        with writable.allow_writes(self.place):
            self.scenario.prepare(self.place)

    def reset(self) -> None:
        """Put everything as it was before the run."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._before, self.place, symlinks=True)
        for left in self.temporary.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    def run(self, number: int = 1, around: Callable[[], object] | None = None) -> Ended:
        """Run the command in a copy of this process; ``around`` is called in there before."""
        work = command(self.scenario.line(self.place))

        def both() -> None:
            if around is not None:
                around()
            work()

        return in_copy(both, self.output, number)

    # --- what there is ---------------------------------------------------------------------------------------------

    def changed(self) -> list[Path]:
        """Return what the run may change."""
        return [self.place / name for name in self.scenario.changed]

    def state(self) -> State:
        """Return what all that the run may change holds, rows of databases and bytes of files."""
        found: State = {}
        for path in self.changed():
            if path.is_dir():
                found |= {f"{path.name}/{name}": mark for name, mark in state_of(path, self.scenario.ignored).items()}
            elif path.exists():
                found[path.name] = hashlib.blake2b(path.read_bytes()).hexdigest()
        return {name: "there" if name.endswith(_DATED_ENDS) else mark for name, mark in found.items()}

    def sources(self) -> dict[str, bytes]:
        """Return the bytes of every file that the run may only read."""
        paths = (path for path in self.place.rglob("*") if path.is_file())
        names = ((path.relative_to(self.place), path) for path in paths)
        return {
            name.as_posix(): path.read_bytes() for name, path in names if name.parts[0] not in self.scenario.changed
        }

    def mark(self) -> str:
        """Return what tells one outcome from another: names, rows and bytes, also in regraft's own folder."""
        digest = hashlib.blake2b(digest_size=16)
        for top in self.changed():
            for path in sorted((top, *top.rglob("*"))):
                if not path.name.endswith(untrusted_sqlite.COMPANION_SUFFIXES) or not untrusted_sqlite.is_database(
                    _database_of(path)
                ):
                    digest.update(f"{path}\0{_content_mark(path)}\0".encode())
        return digest.hexdigest()

    # --- judging ---------------------------------------------------------------------------------------------------

    def judge_next(self, *, mark: str | None = None) -> str:
        """Say what is wrong with what comes of the next run, the store being what it is now; empty: nothing.

        What has the same ``mark`` as an earlier tree is not run again (default: :meth:`mark`).
        """
        mark = self.mark() if mark is None else mark
        if mark not in self._judged:
            self._judged[mark] = self._judge_next()
        return self._judged[mark]

    @property
    def iterate(self) -> int:
        """Return how many different trees were judged by the next run."""
        return len(self._judged)

    def _judge_next(self) -> str:
        done = self.run(2)
        state = self.state()
        if done.status not in DONE and not (done.status == REFUSED and self.scenario.settled and state == self.new):
            return f"the next run ended with {done.status}: {done.code}"
        if state != self.new:
            return f"the next run did not come to the end: {_differences(state, self.new)}"
        if left := self._half_made():
            return f"left behind: {', '.join(left)}"
        if self.sources() != self.old_sources:
            return "a source changed"
        return self._judge_undo() if self.scenario.store else ""

    def _half_made(self) -> list[str]:
        own = [path for top in self.changed() for path in (top / FOLDER).glob("*")]
        found = [path.name for path in own if path.name in _HALF_MADE]
        return found + [path.name for path in self.temporary.iterdir()]

    def _judge_undo(self) -> str:
        line = ["undo", str(self.place / self.scenario.store), "-y", "-q"]
        for number in range(3, 9):
            done = in_copy(command(line), self.output, number)
            if done.status not in DONE:
                break
        state = self.state()
        if state != self.old:
            return f"undo ({done.status}) does not give the beginning: {_differences(state, self.old)}; {done.code}"
        return ""


def _database_of(path: Path) -> Path:
    return path.with_name(path.name.rpartition("-")[0] or path.name)


def _content_mark(path: Path) -> str:
    if path.is_dir() or not path.exists():
        return str(path.is_dir())
    if not untrusted_sqlite.is_database(path):
        return f"{hashlib.blake2b(path.read_bytes()).hexdigest()} {path.stat().st_nlink}"
    try:
        return _ledger_mark(path) if path.parent.name == FOLDER else rows_mark(path, set())
    except apsw.Error as error:
        return repr(error)


def _ledger_mark(path: Path) -> str:
    """Return what the rows of a ledger say, but for times of files, which are other ones in each run."""
    said = []
    with sqlite.open_readonly(path) as db:
        tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        for (table,) in tables:
            for row in db.execute(f"SELECT * FROM {untrusted_sqlite.quote_name(str(table))}"):
                said.append(_TIME_OF_FILE.sub("", repr((table, row))))
    return "\n".join(said)


#: Times of files in ns, and the hashes that are made of them.
_TIME_OF_FILE = re.compile(r"\b1[0-9]{18}\b|(?<=\"raw_mark\":\")[0-9a-f]+|(?<=')[0-9a-f]{40}(?=')")
_DATED_ENDS = tuple(pattern.removeprefix("*") for pattern in _DATED)


def _differences(found: State, wanted: State) -> str:
    names = sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))
    shown = [
        f"{name} {'missing' if name not in found else 'not expected' if name not in wanted else 'differs'}"
        for name in names
    ]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


@contextmanager
def stages(scenarios: tuple[Scenario, ...], work: Path) -> Iterator[list[Stage]]:
    """Prepare every scenario."""
    load()
    before = tempfile.tempdir
    try:
        yield [Stage(scenario, work) for scenario in scenarios]
    finally:
        tempfile.tempdir = before
