"""Threads that send texts to an embedder and wait for its answers, several at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

import msgspec

from regraft.embedders import Halted, ServerFailing, TextsRejected
from regraft.errors import EmbedderRefused, EveryTextRejected
from regraft.identity import replace
from repair.embedding.budget import MeteredEmbedder
from repair.embedding.queue import Claim

#: What is sent alone to learn whether it is the server that fails, or the texts before it.
CONTROL_TEXT = "regraft"
#: After so many texts that are rejected one by one, it is asked whether anything is accepted.
MAX_REJECTED = 16
#: What comes after these would fail with them, and be doubted for nothing.
_OVER = (ServerFailing, EmbedderRefused, EveryTextRejected)


class ClaimExpired(Exception):
    """A task was not sent: its claim ran out meanwhile, and another process may have its texts."""


class TextBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one claim that go in one request, and what tells whether the claim holds at the moment."""

    claim: Claim
    keys: tuple[str, ...]
    texts: tuple[str, ...]
    stale: frozenset[str] = frozenset()
    is_held: Callable[[], bool] = lambda: True

    def halves(self) -> tuple[TextBatch, TextBatch]:
        """Return it as two."""
        middle = len(self.keys) // 2
        first, second = slice(None, middle), slice(middle, None)
        return (
            replace(self, keys=self.keys[first], texts=self.texts[first]),
            replace(self, keys=self.keys[second], texts=self.texts[second]),
        )


class BatchResult(msgspec.Struct, frozen=True):
    """What came of a task: its vectors, or what stopped it."""

    task: TextBatch
    vectors: Sequence[bytes] = ()
    problem: BaseException | None = None


class WorkerPool:
    """Threads that work off tasks; they end with the process, whatever they wait for."""

    def __init__(self, name: str, meter: MeteredEmbedder, count: int) -> None:
        self._name = name
        self._meter = meter
        self._tasks: queue.SimpleQueue[TextBatch | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BatchResult] = queue.SimpleQueue()
        #: How many single texts were rejected since the last one that was not.
        self._in_a_row = 0
        self.count = count
        self._is_over = False
        for number in range(count):
            threading.Thread(target=self._work, name=f"embedding-{number}", daemon=True).start()

    def __enter__(self) -> WorkerPool:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the threads end once they have nothing to do."""
        for _number in range(self.count):
            self._tasks.put(None)

    def submit(self, task: TextBatch) -> None:
        """Let a task be worked off."""
        self._tasks.put(task)

    def answers(self, seconds: float) -> list[BatchResult]:
        """Return all answers that are there; where there are none, wait so long for one."""
        found: list[BatchResult] = []
        try:
            found.append(self._answers.get(timeout=seconds))
            while True:
                found.append(self._answers.get_nowait())
        except queue.Empty:
            return found

    def withdraw(self) -> list[TextBatch]:
        """Return the tasks that nobody has begun, and let nobody begin them."""
        tasks: list[TextBatch] = []
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return tasks
            if task is not None:
                tasks.append(task)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            answer = BatchResult(task, problem=Halted()) if self._is_over else self._worked(task)
            self._is_over = self._is_over or isinstance(answer.problem, _OVER)
            self._answers.put(answer)

    def _worked(self, task: TextBatch) -> BatchResult:
        if self._is_over:
            return BatchResult(task, problem=Halted())
        if not task.is_held():
            # Whoever was asleep longer than a claim holds must not pay for what another one has.
            return BatchResult(task, problem=ClaimExpired())
        try:
            try:
                return BatchResult(task, self._embedded(task.texts))
            except ServerFailing as failing:
                # The server itself is down where it has no answer to this either.
                self._embedded((CONTROL_TEXT,))
                raise TextsRejected(failing.code, failing.reason) from failing
        except TextsRejected as rejected:
            problem = rejected if rejected.is_certain else self._rejected(task, rejected)
        except BaseException as error:
            problem = error
        # What comes next would fail with it, and be doubted for nothing.
        self._is_over = self._is_over or isinstance(problem, ServerFailing | EmbedderRefused | EveryTextRejected)
        return BatchResult(task, problem=problem)

    def _rejected(self, task: TextBatch, rejected: TextsRejected) -> BaseException:
        """Return what is wrong: a text, or, where one after the other is rejected, all that is sent."""
        self._in_a_row += len(task.texts) == 1
        if self._in_a_row < MAX_REJECTED:
            return rejected
        try:
            self._embedded((CONTROL_TEXT,))
        except TextsRejected as everything:
            return EveryTextRejected(embedder=self._name, reason=everything.reason)
        except Exception as problem:
            return problem
        return rejected

    def _embedded(self, texts: Sequence[str]) -> Sequence[bytes]:
        vectors = self._meter.embedded(texts)
        self._in_a_row = 0
        return vectors
