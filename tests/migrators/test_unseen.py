"""What nobody may look at is said to be unreadable, not missing, and nothing is changed for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from harness import run
from planted_v2 import KB, index, library

DENIED = os.strerror(errno.EACCES)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a library of whose first base nobody may look into the folder with the index."""
    made = library(tmp_path)
    folder = index(made).parent
    real_stat, real_open = os.stat, Path.open

    def denied(path: Path) -> None:
        if folder in path.parents:
            raise PermissionError(errno.EACCES, DENIED, str(path))

    def stat(path: Any, **options: Any) -> os.stat_result:
        if isinstance(path, str | Path):
            denied(Path(path))
        return real_stat(path, **options)

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        denied(path)
        return real_open(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", stat)
    monkeypatch.setattr(Path, "open", opened)
    return made


def contents(store: Path) -> dict[str, bytes]:
    """Return every file with its bytes, by the system's own means."""
    found = {}
    for folder, _, names in os.walk(store):
        for name in names:
            number = os.open(f"{folder}/{name}", os.O_RDONLY)
            with os.fdopen(number, "rb") as file:
                found[f"{folder}/{name}"] = file.read()
    return found


def test_an_index_that_may_not_be_looked_for_cannot_be_read(store: Path) -> None:
    found = [one for one in run("check", store, "--json").document["findings"] if one["base"] == KB]
    assert ("file.unreadable", True) in {(one["name"], DENIED in one["message"]) for one in found}
    assert "base.no-index" not in {one["name"] for one in found}


def test_the_folder_of_such_a_base_is_refused(store: Path) -> None:
    for command in ("inspect", "check", "search"):
        words = ["fog"] if command == "search" else []
        done = run(command, index(store).parent.parent, *words, "--json")
        assert (done.status, done.document["error"]["code"]) == (2, "SourceUnreadable")
        assert DENIED in done.document["error"]["message"]


@pytest.mark.parametrize("command", ["gc", "repair", "reconcile"])
def test_nothing_is_changed_for_a_base_that_nobody_sees(command: str, store: Path) -> None:
    before = contents(store)
    assert run(command, store, "-y").status in (1, 2)
    assert contents(store) == before
