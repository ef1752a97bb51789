"""What most tests use: paths, the time that commands are given, and running a command in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import settings

from regraft.cli import cli
from regraft.disk import writable


def examples(searched: int) -> int:
    """Return how many examples a property is tried with: so many in a search, a quarter of them otherwise."""
    return (searched + 3) // 4 if settings.default is not None and settings.default.derandomize else searched


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


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file below ``folder`` with its size, time of change and bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.stat()
        found[str(path.relative_to(folder))] = (
            status.st_size if path.is_file() else -1,
            status.st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
    return found
