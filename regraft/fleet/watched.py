"""A pool that tells what it is given, and when it was looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from regraft.fleet.engine import Ended, Pool, Task, Waiting


class Watcher(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told: ``given`` of each attempt, ``looked`` before each wait, when all is dealt with that ended."""

    given: Callable[[Waiting], None] = lambda _: None
    looked: Callable[[], None] = lambda: None


class WatchedPool:
    """A pool whose work watchers follow; what else it has is the pool's own."""

    count: int
    at_work: dict[Any, tuple[Waiting, float]]

    def __init__(self, pool: Pool, watchers: list[Watcher]) -> None:
        self._pool, self._watchers = pool, watchers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def give(self, task: Task, one: Waiting) -> None:
        """See :meth:`regraft.fleet.engine.Pool.give`."""
        self._pool.give(task, one)
        for watcher in self._watchers:
            watcher.given(one)

    def answers(self, seconds: float) -> Iterator[tuple[Waiting, Ended]]:
        """See :meth:`regraft.fleet.engine.Pool.answers`."""
        yield from self._pool.answers(seconds)
        for watcher in self._watchers:
            watcher.looked()

    def close(self) -> None:
        """See :meth:`regraft.fleet.engine.Pool.close`."""
        self._pool.close()
