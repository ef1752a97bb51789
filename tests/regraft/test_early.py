"""Processes that are started by a command line's words, before anything else is known."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from regraft.processes import pool, startup

WHAT_CARRIES = ("regraft.disk.trees", "regraft.formats.fts5.segment")


def loaded() -> set[str]:
    """Return what is loaded where this runs."""
    return {name for name in WHAT_CARRIES if name in sys.modules}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a vector file that counts as a large one, where two cores are."""
    monkeypatch.setattr(pool, "usable_cores", lambda: 2)
    monkeypatch.setattr(startup, "LARGE_FILE_BYTES", 10)
    folder = tmp_path / "backup" / "Data" / "KnowledgeBase"
    folder.mkdir(parents=True)
    (folder / "base").write_bytes(b"0123456789")
    return tmp_path / "backup"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count processes instead of starting them."""
    counts: list[int] = []

    def counting(count: int, _: object) -> nullcontext[None]:
        counts.append(count)
        return nullcontext()

    monkeypatch.setattr(pool, "prestart_workers", counting)
    return counts


@pytest.mark.thorough
def test_a_crew_takes_the_processes_that_were_started_for_a_large_base(source: Path) -> None:
    with startup.prestart_helpers(["migrate", str(source), "--to", "out"]):
        with pool.open_pool() as helpers:
            number = helpers.take(helpers.put(os.getpid))
            assert number != os.getpid()
            assert helpers.take(helpers.put(loaded)) == set(WHAT_CARRIES)
            assert helpers.take(helpers.put(gc.isenabled))
        with pool.open_pool() as others:
            assert others.take(others.put(loaded)) < set(WHAT_CARRIES)
    assert os.name == "nt" or ended(number)


def test_processes_that_nobody_takes_end_with_the_command(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[pool.WorkerProcess] = []
    real = pool.WorkerProcess.__init__

    def noted(worker: pool.WorkerProcess, *given: Any, **named: Any) -> None:
        real(worker, *given, **named)  # type: ignore[arg-type]
        started.append(worker)

    monkeypatch.setattr(pool.WorkerProcess, "__init__", noted)
    with pytest.raises(LookupError), startup.prestart_helpers(["migrate", str(source)]):
        raise LookupError
    [worker] = started
    assert worker.end() != 0


def test_a_profile_and_a_folder_of_an_export_are_known(source: Path, counted: list[int]) -> None:
    for folder in (source, source / "Data"):
        with startup.prestart_helpers(["migrate", "--to", "out", str(folder)]):
            pass
    assert counted == [1, 1]


@pytest.mark.parametrize(
    "line",
    [
        lambda _: [],
        lambda source: ["check", source],
        lambda source: [source, "migrate"],
        lambda source: ["migrate", source, "--to", "out", "--dry-run"],
        lambda source: ["migrate", f"{source}/Data/KnowledgeBase"],
        lambda source: ["migrate", f"{source}/Data/KnowledgeBase/base"],
        lambda source: ["migrate", f"{source}/nowhere", "", "\0", "x" * 5_000],
    ],
)
def test_no_other_command_line_starts_any(line: Callable[[str], list[str]], source: Path, counted: list[int]) -> None:
    with startup.prestart_helpers(line(str(source))):
        assert not counted


def test_a_small_base_starts_none(source: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "LARGE_FILE_BYTES", 11)
    with startup.prestart_helpers(["migrate", str(source)]):
        assert not counted


def test_one_core_starts_none(source: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "usable_cores", lambda: 1)
    with startup.prestart_helpers(["migrate", str(source)]):
        assert not counted


@pytest.mark.skipif(os.name == "nt", reason="nobody can remove a folder that somebody works in")
def test_without_a_working_directory_none_is_started(
    source: Path, tmp_path: Path, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with startup.prestart_helpers(["migrate", str(source)]):
        assert not counted


def test_a_command_runs_without_processes_that_cannot_be_started(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[object, ...]] = []

    def refused(*arguments: object) -> None:
        tried.append(arguments)
        raise BlockingIOError

    monkeypatch.setattr(pool, "WorkerProcess", refused)
    with startup.prestart_helpers(["migrate", str(source)]):
        # The command starts its own pool later, and is told again that there are no processes.
        assert len(tried) == 1
        assert pool._prestarted == []


def ended(number: int) -> bool:
    """Tell whether a process is gone."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False
