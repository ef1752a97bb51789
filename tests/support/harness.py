"""What most tests use: paths, the time that commands are given, and running a command in this process."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import settings

from regraft.cli import cli
from regraft.disk import writable


def examples(searched: int) -> int:
    """Return how many examples a property is tried with: so many in a search, a part of them otherwise."""
    return -(-searched // {"quick": 12, "regraft": 4}.get(settings.get_current_profile_name(), 1))


HERE = Path(__file__).resolve().parent.parent
REPO = HERE.parent
#: Real data of Cherry Studio with known answers, where it lies beside the repository.
GOLDEN = Path(os.environ.get("REGRAFT_GOLDEN") or REPO.parent / "shared" / "golden")
#: Real data of other systems, where it lies beside the repository.
SAMPLES = Path(os.environ.get("REGRAFT_SAMPLES") or REPO.parent / "shared" / "samples")
#: Tests of data that the applications themselves wrote. It may not be copied into the repository: without it these
#: tests are left out, and the tests beside them, over data of the tests' own, are all there is.
golden = pytest.mark.real_data(str(GOLDEN))
needs_samples = pytest.mark.real_data(str(SAMPLES))
NOW = "2026-11-21T12:00:00.000Z"
NOW_MS = 1795262400000
#: Where Linux has memory that looks like a disk, and how much of it has to be free.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


@dataclass
class Outcome:
    """What a command came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout)


@contextmanager
def nothing_opened() -> Iterator[None]:
    """Take back, for a command, what tests may write: it has to open what it changes."""
    lent, writable._roots[:] = list(writable._roots), []
    try:
        yield
        assert writable._roots == [], "an area stays open"
    finally:
        writable._roots[:] = lent


#: Commands that ask before they change what is there.
ASKING = (
    *("fix", "repair", "gc", "reconcile", "clear-failed", "upgrade", "rescue", "install"),
    *("backfill", "rebuild", "restore", "sync", "undo"),
)
_SETTLED = {"--yes", "-y", "--dry-run", "--help"}


def consenting(*arguments: object) -> list[str]:
    """Return a command line that asks nobody: most tests are about what comes of the answer yes."""
    words = [str(argument) for argument in arguments]
    if words and words[0] in ASKING and _SETTLED.isdisjoint(words):
        words.append("--yes")
    return words


def run(*arguments: object) -> Outcome:
    """Run the command line in this process, with consent; its own errors surface as they are."""
    return run_as_given(*consenting(*arguments))


def run_as_given(*arguments: object) -> Outcome:
    """Run just this command line in this process; nobody is there to be asked."""
    with nothing_opened():
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="regraft")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


#: What makes folders that tests get copies of, and where each made its own in this process.
_makers: list[Callable[[Path], Path]] = []
_made: dict[Callable[[Path], Path], Path] = {}


def command_words(line: str) -> list[str]:
    """Split a command line as this system does, without the code under test."""
    if os.name != "nt":
        return shlex.split(line)
    split = ctypes.windll.shell32.CommandLineToArgvW
    split.restype = ctypes.POINTER(ctypes.c_wchar_p)
    split.argtypes = [ctypes.c_wchar_p, ctypes.POINTER(ctypes.c_int)]
    count = ctypes.c_int()
    # The first word, a program, is split by other rules.
    words = split(f"program {line}", ctypes.byref(count))
    return [str(word) for word in words[1 : count.value]]


def copied(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Let a function that fills a folder copy what it made before the first test.

    Before any test, because the first one that calls it may have replaced something that takes part in making it.
    """

    @wraps(make)
    def copy(place: Path) -> Path:
        if make not in _made:
            return make(place)
        shutil.copytree(_made[make], place, dirs_exist_ok=True)
        return place / "library"

    _makers.append(make)
    return copy


def make_what_is_copied(folder: Path) -> None:
    """Make what the functions that were imported make, but for what fails: that is up to the tests."""
    for number, make in enumerate(_makers):
        with suppress(Exception):
            _made[make] = make(folder / str(number)).parent


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file below ``folder`` with its size, time of change and bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        found[path.relative_to(folder).as_posix()] = (
            status.st_size if path.is_file() else -1,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return found
