"""A fleet's tasks in the process of the test itself, one after the other: no process has to be started for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from regraft import workers
from regraft.fleet.engine import Ended, Task, Waiting, Work


class InlinePool:
    """Does a task when its answer is asked for."""

    count = 1

    def __init__(self, work: Work, count: int) -> None:
        self._work = work
        self.at_work: dict[Any, tuple[Waiting, float]] = {}

    def give(self, task: Task, one: Waiting) -> None:
        """Keep a task."""
        self.at_work[task] = one, time.monotonic()

    def answers(self, seconds: float) -> Iterator[tuple[Waiting, Ended]]:
        """Do it."""
        for task in list(self.at_work):
            one, _ = self.at_work.pop(task)
            yield one, self._work(task.arguments)

    def close(self) -> None:
        """Do nothing."""


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fleets take it, and this process stay what it is."""
    monkeypatch.setattr("regraft.cli.fleet.LocalPool", InlinePool)
    monkeypatch.setattr(workers, "be_one_of_many", lambda: None)
