"""What the tests of a backfill begin with: a library that lacks vectors, and a queue of its texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lacking import KB, KEYS, library, taken_away

from repair.embedding import queue as queues


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library that lacks vectors; no test changes it."""
    return taken_away(library(tmp_path_factory.mktemp("whole")))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    """Return a copy of that library."""
    return shutil.copytree(whole, tmp_path / "library")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a queue in which the texts wait that lack a vector."""
    path = tmp_path / "queue.sqlite"
    with queues.open_queue(path) as queue:
        queue.fill(KB, KEYS)
    return path
