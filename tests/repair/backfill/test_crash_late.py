"""A process that was asleep longer than its claims hold: it neither pays, nor writes, nor says anything twice.

``docs/reliability.md``, "Crash semantics". Real queues, indexes and threads; the embedder and the clock are the test's.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from fault_server import vector_of
from lacking import KB, KEYS, LACKING, all_vectors, queue_rows, vectors
from planted_v2 import index

from regraft import identity
from regraft.embedders import Embedded, Embedder, Sending, TextsRejected
from regraft.embedders.settings import Batch, LocalSettings
from regraft.report.progress import SilentProgress
from repair.cherry_v2 import index_vectors as backfill_scope
from repair.cherry_v2.index_vectors import IndexScope
from repair.embedding import queue as queues
from repair.embedding.budget import BudgetedEmbedder, Limits
from repair.embedding.filling import Filling
from repair.embedding.queue import LEASE_MS, TextClaim
from repair.embedding.scope import Scope, WrittenCounts
from repair.embedding.sender import BatchResult, WorkerPool

DIMENSIONS = len(vector_of("")) // 4


WAIT = "wait"


class Told:
    """A scope that keeps what it was told of failures."""

    def __init__(self, scope: IndexScope) -> None:
        self._scope = scope
        self.failures: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scope, name)

    def failed(self, key: str, code: str, now_ms: int) -> None:
        self.failures.append(key)


class Model:
    """An embedder without a server; the first request is answered when the test lets it be."""

    def __init__(self, batch: int = 3, first: Callable[[], None] = lambda: None) -> None:
        self.settings = LocalSettings(name="mine", path=Path("model"), batch=Batch(texts=batch))
        self.sent: list[str] = []
        self.begun = threading.Event()
        self._first = first

    def tokens(self, text: str) -> int:
        return len(text)

    def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending) -> Embedded:
        sending(texts)
        self.sent += texts
        is_first = not self.begun.is_set()
        self.begun.set()
        if is_first:
            self._first()
        return Embedded([vector_of(text) for text in texts], tokens=None, requests=1)

    def halt(self) -> None:
        """Have nothing to halt."""


class Sleeper(WorkerPool):
    """The threads of a process that falls asleep while its first request is under way.

    ``asleep`` are called one after the other when the process looks for answers: each until it has not said "wait".
    """

    def __init__(self, model: Model, asleep: Sequence[Callable[[], object]]) -> None:
        self._model, self._asleep = model, list(asleep)
        #: How many answers the process was given.
        self.told = 0
        super().__init__("mine", BudgetedEmbedder(model, Limits()), 1)

    def results(self, seconds: float) -> list[BatchResult]:
        self._model.begun.wait()
        if self._asleep and self._asleep[0]() != WAIT:
            del self._asleep[0]
        found = super().results(seconds)
        self.told += len(found)
        return found


class Process:
    """All that one process has of a backfill, with a clock that is set by hand."""

    def __init__(
        self, stack: ExitStack, store: Path, file: Path, model: Model, *asleep: Callable[[], object], now: int = 1
    ) -> None:
        self.now, self.model = now, model
        opened = backfill_scope.open_index_scope(index(store), KB, dimensions=DIMENSIONS, writable=True)
        self.scope = Told(stack.enter_context(opened))
        self.queue = stack.enter_context(queues.open_queue(file))
        self.pool = Sleeper(model, asleep)
        stack.enter_context(self.pool)
        self.filling = Filling(
            scope=cast(Scope, self.scope),
            embedder=cast(Embedder, model),
            queue=self.queue,
            workers=self.pool,
            meter=BudgetedEmbedder(cast(Embedder, model), Limits()),
            progress=SilentProgress(),
            now_ms=lambda: self.now,
        )


LATER = LEASE_MS + 2


def test_who_was_asleep_neither_writes_nor_pays_for_what_another_process_has_done(store: Path, file: Path) -> None:
    awake, after = threading.Event(), list[bytes]()
    with ExitStack() as stack:

        def another_one_does_it() -> None:
            other = Process(stack, store, file, Model(), now=LATER)
            assert other.filling.run().newly_ready == len(LACKING)
            assert sorted(other.model.sent) == sorted(LACKING)
            after.append(index(store).read_bytes())
            first.now = LATER
            awake.set()

        first = Process(stack, store, file, Model(first=awake.wait), another_one_does_it)
        filled = first.filling.run()
        assert (filled.newly_ready, filled.failed, filled.stopped) == (0, 0, None)
        # Three batches were claimed and one was under way: nothing else was sent, and its answer changed nothing.
        assert len(first.model.sent) == 3
        assert index(store).read_bytes() == after[0]
    assert queue_rows(file) == []
    assert vectors(store) == all_vectors()


def test_who_was_asleep_goes_on_where_nobody_took_over(store: Path, file: Path) -> None:
    awake = threading.Event()
    with ExitStack() as stack:

        def time_passes() -> None:
            first.now = LATER
            awake.set()

        first = Process(stack, store, file, Model(first=awake.wait), time_passes)
        assert first.filling.run().newly_ready == len(LACKING)
        assert sorted(first.model.sent) == sorted(LACKING)
    assert queue_rows(file) == []


def test_a_late_answer_is_written_once_though_another_process_is_at_it(store: Path, file: Path) -> None:
    """It is paid for, and where no vector stands it is the right one; the claim stays the other one's."""
    awake, held = threading.Event(), list[TextClaim]()
    with ExitStack() as stack:
        other = stack.enter_context(queues.open_queue(file))

        def another_one_takes_it() -> None:
            while (claim := other.claim(KB, len(KEYS), LATER)) is not None:
                held.append(claim)
            first.now = LATER
            awake.set()

        def another_one_goes() -> str | None:
            if first.pool.told < 3:
                return WAIT
            # Whatever came of it here, it is all the other one's.
            assert Counter(row[2] for row in queue_rows(file)) == {"claimed": len(KEYS)}
            assert {row[5] for row in queue_rows(file)} == {claim.token for claim in held}
            other.release_all()
            return None

        first = Process(stack, store, file, Model(first=awake.wait), another_one_takes_it, another_one_goes)
        assert first.filling.run().newly_ready == len(LACKING)
        assert sorted(first.model.sent) == sorted(LACKING)
        before = index(store).read_bytes()
        texts = {identity.text_hash(text): vector_of(text) for text in first.model.sent[:3]}
        assert first.scope.write(texts, LATER) == WrittenCounts(0, 0)
        assert index(store).read_bytes() == before


def test_a_late_refusal_is_not_believed_where_another_process_has_the_text(store: Path, file: Path) -> None:
    awake = threading.Event()

    def refused() -> None:
        awake.wait()
        raise TextsRejected("http_400", "no")

    with ExitStack() as stack:
        other = stack.enter_context(queues.open_queue(file))

        def another_one_takes_it() -> None:
            while other.claim(KB, len(KEYS), LATER) is not None:
                pass
            first.now = LATER
            awake.set()

        def another_one_goes() -> str | None:
            return WAIT if first.pool.told < 3 else other.release_all()

        model = Model(batch=1, first=refused)
        first = Process(stack, store, file, model, another_one_takes_it, another_one_goes)
        filled = first.filling.run()
        assert (filled.failed, first.scope.failures) == (0, [])
        # What was refused once was asked for again, as by the one that had it.
        assert Counter(model.sent) == Counter([*LACKING, model.sent[0]])
    assert queue_rows(file) == []


def test_what_is_sent_is_claimed_and_what_is_forgotten_is_written(store: Path, file: Path) -> None:
    """Other processes see the claim before a request leaves, and the vector before the text leaves the queue."""
    with ExitStack() as stack:

        class Watched(Model):
            def embed(self, texts: Sequence[str], *, query: bool = False, sending: Sending) -> Embedded:
                keys = {identity.text_hash(text) for text in texts}
                assert {row[2] for row in queue_rows(file) if row[1] in keys} == {"claimed"}
                seen.append("sent")
                return super().embed(texts, query=query, sending=sending)

        seen: list[str] = []
        process = Process(stack, store, file, Watched())
        done = process.queue.done

        def watched(claim: TextClaim, keys: Sequence[str]) -> None:
            assert {identity.text_hash(text) for text in vectors(store)} >= set(keys)
            seen.extend("done" for _ in keys)
            done(claim, keys)

        process.queue.done = watched  # type: ignore[method-assign, assignment]
        process.filling.run()
        assert Counter(seen) == {"sent": -(-len(LACKING) // 3), "done": len(LACKING)}


def test_filling_what_is_filled_changes_no_byte(store: Path, file: Path) -> None:
    for expected in (len(LACKING), 0):
        before = index(store).read_bytes()
        with ExitStack() as stack:
            process = Process(stack, store, file, Model())
            # As if nobody had ever been at it.
            process.queue.fill(KB, KEYS)
            if not expected:
                process.model.begun.set()
            assert process.filling.run().newly_ready == len(process.model.sent) == expected
        assert (index(store).read_bytes() == before) == (not expected)
