"""A process that is killed at any request to a store leaves what the next one makes the outcome of one run of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_work import plain

from regraft.disk import writable
from regraft.fleet import jobs, versions
from regraft.fleet.engine import TaskResult
from regraft.fleet.jobs import LibraryJob
from regraft.fleet.storage import StoragePath, storage_path


class Killed(BaseException):
    """The process is gone: it does nothing any more, not even to clean up."""


class Mortal:
    """A store's client in a process that is killed at its n-th request: right before it is done, or right after."""

    def __init__(self, files: Any, requests: int, *, is_after: bool) -> None:
        self._files, self._left, self._is_after = files, requests, is_after

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._files, name)

        def request(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left > 0:
                return asked(*args, **named)
            if self._left == 0 and self._is_after:
                asked(*args, **named)
            raise Killed

        return request


def repaired(job: LibraryJob) -> TaskResult:
    """Change a library as a command does: once."""
    library = Path(job.source)
    (library / "index.sqlite").write_bytes(b"repaired")
    (library / "raw" / "new.txt").write_bytes(b"new")
    return TaskResult(status=0, seconds=0.1)


@pytest.fixture
def library(tmp_path: Path) -> StoragePath:
    """Publish a library."""
    place = storage_path(f"memory://{tmp_path.name}/anna")
    folder = tmp_path / "first"
    (folder / "raw").mkdir(parents=True)
    for name in ("index.sqlite", "catalog.sqlite", "raw/a.txt", "raw/b.txt"):
        (folder / name).write_text(name, "utf-8")
    with writable.allow_writes(tmp_path):
        assert versions.publish_version(place, folder, versions.NO_VERSION)
    return place


def deaths(place: StoragePath, monkeypatch: pytest.MonkeyPatch, *, is_after: bool) -> Iterator[int]:
    """Kill the work on a library at its first request, at its second one, and so on, until it comes to its end."""
    files = place._files
    stored, folders = dict(files.store), list(files.pseudo_dirs)
    for requests in itertools.count(1):
        files.store.clear()
        files.store.update(stored)
        files.pseudo_dirs[:] = folders
        if not is_killed(place, Mortal(files, requests, is_after=is_after), monkeypatch):
            return
        yield requests


def is_killed(place: StoragePath, files: Mortal, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Work on a library, and tell whether the process was killed on the way."""
    with monkeypatch.context() as patched:
        patched.setattr(StoragePath, "_files", files)
        try:
            ended = jobs.run_library_job(
                LibraryJob(command="repair", options=plain("repair"), source=place.url, fleet="f"), repaired
            )
        except Killed:
            return True
    assert ended.status == 0
    return False


@pytest.mark.thorough
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_whenever_a_process_is_killed_the_next_one_comes_to_what_one_run_comes_to(
    library: StoragePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    before = versions.latest_version(library)
    count = 0
    for count in deaths(library, monkeypatch, is_after=is_after):
        # What counts is whole, the old or the new.
        there = tmp_path / f"{count} killed"
        with writable.allow_writes(there):
            version = versions.fetch_library(library, there)
        is_new = (there / "index.sqlite").read_bytes() == b"repaired"
        assert (there / "raw" / "new.txt").exists() == is_new
        assert version.number == before.number + is_new

        ended = jobs.run_library_job(
            LibraryJob(command="repair", options=plain("repair"), source=library.url, fleet="f"), repaired
        )
        assert ended.status == 0, count
        last = versions.latest_version(library)
        assert last.number == before.number + 1
        assert sorted(last.files) == ["catalog.sqlite", "index.sqlite", "raw/a.txt", "raw/b.txt", "raw/new.txt"]
        assert not any("lease" in name for name in library.objects())
        # What is left of the one that was killed goes with the next version.
        with writable.allow_writes(there):
            versions.fetch_library(library, there / "again")
            (there / "again" / "index.sqlite").write_bytes(b"repaired again")
            assert versions.publish_version(library, there / "again", last)
        folders = {name.split("/")[1] for name in library.objects() if name.count("/") > 1}
        assert folders == {versions.latest_version(library).folder}
    assert count > 10
