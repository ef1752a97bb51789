"""A small dose of damaged b-trees: each base is migrated with all of its rows, or fails by name, and stops no other."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import REPO

# Last: it is the installed package that is tested.
if str(REPO) not in sys.path:
    sys.path.append(str(REPO))

from benchmarks.damaged_trees import Trees
from regraft.formats import table_integrity

SEED = 1


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trees]:
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield Trees(SEED, tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("salvage", [False, True])
def test_rows_of_damaged_trees_are_migrated_or_named(trees: Trees, salvage: bool) -> None:
    assert [problem for number in range(1, 7) for problem in trees.bad(number, salvage=salvage)] == []


@pytest.mark.thorough
def test_lost_rows_are_noticed_where_nothing_is_compared(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages and readings are not compared, rows go missing, and the campaign has to see that."""
    monkeypatch.setattr(table_integrity, "find_contradiction", lambda *_: None)
    monkeypatch.setattr(table_integrity.RowsDigest, "demand", lambda *_: None)
    found = (problem for number in range(1, 20) for problem in trees.bad(number, salvage=False))
    assert next(found, None) is not None
