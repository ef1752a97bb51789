"""What processes are to do for an index, dealt out to them, and what they answer, in the order of the tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from regraft.formats.fts5.records import SpliceRefused

_POLL_SECONDS = 1.0
#: A process has so many tasks: one that it works on, and the next.
_AHEAD = 2


class Tasks:
    """Deals tasks out to processes that answer one after the other; what they fail with is a text."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._at_work: dict[Connection, deque[int]] = {pipe: deque() for pipe in pipes}
        self._waiting: deque[tuple[int, object]] = deque()
        self._answers: dict[int, Any] = {}
        self._put = self._taken = 0

    def put(self, task: object) -> None:
        """Deal out a task, as soon as a process is free for it.

        Raises:
            SpliceRefused: a process was killed.
        """
        self._waiting.append((self._put, task))
        self._put += 1
        self._collect(0)
        self._deal()

    def take(self) -> Any:
        """Return the answer to the next task; wait for it.

        Raises:
            SpliceRefused: its process failed, or one was killed.
        """
        while self._taken not in self._answers:
            # The pause lets signals through where waiting itself does not.
            self._collect(_POLL_SECONDS)
            self._deal()
        answer = self._answers.pop(self._taken)
        self._taken += 1
        if isinstance(answer, str):
            raise SpliceRefused(answer)
        return answer

    def _collect(self, seconds: float) -> None:
        # What is waited for is of another class on each system.
        busy: list[Any] = [pipe for pipe, tasks in self._at_work.items() if tasks]
        ready: list[Any] = wait(busy, seconds) if busy else []
        for pipe in ready:
            try:
                self._answers[self._at_work[pipe].popleft()] = pipe.recv()
            except (EOFError, OSError) as error:
                raise SpliceRefused("a process was killed") from error

    def _deal(self) -> None:
        for pipe in sorted(self._at_work, key=lambda pipe: len(self._at_work[pipe])):
            while self._waiting and len(self._at_work[pipe]) < _AHEAD:
                number, task = self._waiting.popleft()
                try:
                    pipe.send(task)
                except OSError as error:
                    raise SpliceRefused("a process was killed") from error
                self._at_work[pipe].append(number)
