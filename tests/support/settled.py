"""Assert that a store has no unfinished run, and undo all runs."""

from __future__ import annotations

from pathlib import Path

from faults import (
    fails,
)
from toys import (
    keeps,
    kept_by_ledger,
    undo,
)

from regraft.ledger import ledger
from repair.changes import undo as undoing


def assert_settled(root: Path, where: object) -> None:
    """Assert that the ledger leaves nothing open, and that just what it names is kept."""
    with ledger.open_exclusive(root) as book:
        assert book.changes.open_changes() == [], where
    assert {run.status for run in undoing.list_past_runs(root)} <= {"finished", "stopped", "interrupted"}, where
    assert keeps(root) == kept_by_ledger(root), where


def take_all_back(root: Path) -> None:
    with fails("RunUnknown"):
        while True:
            undo(root)
