"""A working directory that is gone: absolute paths work as ever, relative ones are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from extras import optional
from faults import REFUSED, library, line, migrate, said, small_source
from harness import run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows keeps a directory that somebody works in")


@pytest.fixture
def nowhere(tmp_path: Path) -> Iterator[Path]:
    """Work in a folder that is gone, and return where there are folders."""
    before = Path.cwd()
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    yield tmp_path
    os.chdir(before)


@pytest.mark.thorough
@pytest.mark.parametrize("jobs", [1, 2])
def test_absolute_paths(jobs: int, nowhere: Path) -> None:
    source, target = small_source(nowhere / "source"), nowhere / "library"
    assert migrate(source.folder, target, "--jobs", jobs).status == 1
    assert len(library(target)) > 1
    if optional("pyarrow"):
        assert run("export", target, nowhere / "units.parquet").status in (0, 1)
    assert run("pack", target, nowhere / "pack.zip", "--yes").status in (0, 1)
    assert run("check", target).status in (0, 1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "library"),
        ("check", "."),
        ("gc", "library"),
        ("undo", "library"),
        ("backfill", "library", "--embedder", "x"),
        ("backfill", "/library", "--embedder", "x", "--config", "mine.yaml"),
        ("migrate", "/source", "--to", "library"),
        ("migrate", "source", "--to", "/library"),
        ("migrate", "/source", "--to", "/library", "--report", "page.html"),
        ("export", "/library", "units.parquet"),
        ("import", "units.parquet", "--to", "/library"),
        ("pack", "/library", "pack.zip"),
        ("install", "library", "--profile", "/profile"),
        ("install", "/library", "--profile", "profile"),
        ("rescue", "profile"),
        ("search", "library", "lamp"),
    ],
    ids=" ".join,
)
def test_relative_paths(arguments: tuple[str, ...], nowhere: Path) -> None:
    given = [f"{nowhere}{part}" if part.startswith("/") else part for part in arguments]
    assert "The current directory no longer exists; use an absolute path instead of" in line(run(*given), REFUSED)
    assert "The current directory no longer exists" in said(run(*given, "--json"), "WrongUsage", REFUSED)
    assert list(nowhere.iterdir()) == []
