"""Send texts to an embedder in batches, with several threads, until each has a vector or a reason why it has none.

One :class:`Sender` serves every run: a backfill of a store and each process of a fleet. What it sends, and where the
answers go, is up to its :class:`Outbox`: the texts of one scope (:mod:`repair.embedding.filling`) or of a fleet
(:mod:`repair.embedding.fleet_jobs`). A rejected batch is halved until the bad text stands alone.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from regraft.embedders import Embedder, Halted, ServerFailing, TextsRejected, Unanswered, check
from regraft.embedders.settings import Batch
from regraft.errors import AnswerUnfit, EmbedderRefused, EveryTextRejected
from regraft.identity import replace
from regraft.processes import interrupts
from repair.embedding.budget import LimitReached, MeteredEmbedder
from repair.embedding.queue import TextClaim

#: A harmless text, sent alone to find out whether the server fails or the texts before it are bad.
CONTROL_TEXT = "regraft"
#: After this many single texts rejected in a row, the control text is sent.
MAX_REJECTED = 16
#: The number of float32 values that a vector may have; None: any.
VectorLengths = frozenset[int] | None
#: After these errors every further request would fail as well.
_FATAL = (ServerFailing, EmbedderRefused, EveryTextRejected)
#: Batches that are handed to each thread in advance, so that it keeps sending while answers are written.
_AHEAD = 3
#: Seconds to wait for an answer before claims are renewed.
_POLL = 0.2
#: Seconds to wait for requests in flight when the run is interrupted: they are paid for.
_LAST_WAIT = 5.0
#: Faults of an answer that are the fault of one text if it was sent alone.
_TEXT_FAULTS = frozenset({"non_finite", "zero_vector"})


class ClaimExpired(Exception):
    """The claim of a batch expired before it was sent: another process may have claimed its texts."""


class TextBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Texts that are sent in one request. A fleet needs no ``claim``: only one sender has a batch."""

    keys: tuple[str, ...]
    texts: tuple[str, ...]
    claim: TextClaim | None = None
    #: Keys of texts that replace a vector no search can use.
    stale: frozenset[str] = frozenset()
    is_held: Callable[[], bool] = lambda: True

    def halves(self) -> tuple[TextBatch, TextBatch]:
        """Split the batch in two."""
        middle = len(self.keys) // 2
        first, second = slice(None, middle), slice(middle, None)
        return (
            replace(self, keys=self.keys[first], texts=self.texts[first]),
            replace(self, keys=self.keys[second], texts=self.texts[second]),
        )


class BatchResult(msgspec.Struct, frozen=True):
    """The vectors of a batch, or the error that it ended with."""

    batch: TextBatch
    vectors: Sequence[bytes] = ()
    problem: BaseException | None = None


def pack_batches(sized: Iterable[tuple[str, int]], batch: Batch) -> Iterator[list[tuple[str, int]]]:
    """Group texts in their order into requests of the embedder's batch size. Texts are pairs of key and tokens."""
    packed: list[tuple[str, int]] = []
    tokens = 0
    for key, size in sized:
        if packed and (len(packed) >= batch.texts or tokens + size > batch.tokens):
            yield packed
            packed, tokens = [], 0
        packed.append((key, size))
        tokens += size
    if packed:
        yield packed


# --- threads ---------------------------------------------------------------------------------------------------------


class WorkerPool:
    """Threads that send batches. They are daemons, so a request without an answer does not keep the process alive.

    Args:
        name: the embedder's name.
        meter: sends, within the limits of the run.
        count: the number of threads.
    """

    def __init__(self, name: str, meter: MeteredEmbedder, count: int) -> None:
        self._name = name
        self._meter = meter
        self._batches: queue.SimpleQueue[TextBatch | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[BatchResult] = queue.SimpleQueue()
        #: Single texts rejected since the last accepted request.
        self._rejected_in_a_row = 0
        self.count = count
        self._is_over = False
        for number in range(count):
            threading.Thread(target=self._work, name=f"embedding-{number}", daemon=True).start()

    def __enter__(self) -> WorkerPool:
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End each thread once it is idle."""
        for _number in range(self.count):
            self._batches.put(None)

    def submit(self, batch: TextBatch) -> None:
        """Queue a batch for the next idle thread."""
        self._batches.put(batch)

    def results(self, seconds: float) -> list[BatchResult]:
        """Return all results so far, or wait up to ``seconds`` for the first one."""
        found: list[BatchResult] = []
        try:
            found.append(self._results.get(timeout=seconds))
            while True:
                found.append(self._results.get_nowait())
        except queue.Empty:
            return found

    def withdraw(self) -> list[TextBatch]:
        """Remove the batches that no thread has started, and return them."""
        batches: list[TextBatch] = []
        while True:
            try:
                batch = self._batches.get_nowait()
            except queue.Empty:
                return batches
            if batch is not None:
                batches.append(batch)

    def _work(self) -> None:
        """Send batches in a thread until the pool ends; after a fatal problem, return further batches unsent."""
        while (batch := self._batches.get()) is not None:
            result = BatchResult(batch, problem=Halted()) if self._is_over else self._send(batch)
            self._is_over = self._is_over or isinstance(result.problem, _FATAL)
            self._results.put(result)

    def _send(self, batch: TextBatch) -> BatchResult:
        """Embed a batch, unless its claim expired; if the server fails, find out whether the texts are the cause."""
        if not batch.is_held():
            # The process slept longer than its claim holds: another one may have paid for these texts.
            return BatchResult(batch, problem=ClaimExpired())
        try:
            try:
                return BatchResult(batch, self._embed(batch.texts))
            except ServerFailing as failing:
                # If the server answers the control text, it is these texts at which it fails.
                self._embed((CONTROL_TEXT,))
                raise TextsRejected(failing.code, failing.reason) from failing
        except TextsRejected as rejected:
            problem = rejected if rejected.is_certain else self._check_rejection(batch, rejected)
        except BaseException as error:
            problem = error
        return BatchResult(batch, problem=problem)

    def _check_rejection(self, batch: TextBatch, rejected: TextsRejected) -> BaseException:
        """Return the error that a rejected batch ends with: the rejection itself, or one of the embedder.

        After many single texts in a row are rejected, a control text shows whether the embedder rejects every text.
        """
        self._rejected_in_a_row += len(batch.texts) == 1
        if self._rejected_in_a_row < MAX_REJECTED:
            return rejected
        try:
            self._embed((CONTROL_TEXT,))
        except TextsRejected as everything:
            return EveryTextRejected(embedder=self._name, reason=everything.reason)
        except Exception as problem:
            return problem
        return rejected

    def _embed(self, texts: Sequence[str]) -> Sequence[bytes]:
        """Send texts within the limits of the run."""
        vectors = self._meter.embed(texts)
        self._rejected_in_a_row = 0
        return vectors


def _usual_length(results: Sequence[BatchResult]) -> VectorLengths:
    """Return the most common length of the first vectors that arrive together; None without any.

    They are written together, so that one of another length would cost the others.
    """
    lengths = Counter(len(result.vectors[0]) // 4 for result in results if result.problem is None and result.vectors)
    return frozenset(length for length, _ in lengths.most_common(1)) or None


# --- the sender ------------------------------------------------------------------------------------------------------


class Outbox(Protocol):
    """Texts that are to be embedded, and the record of the results. Called by one thread."""

    #: Whether a batch with a NaN or a zero vector in its answer is halved; otherwise it stops the run.
    splits_unfit: bool

    @property
    def lengths(self) -> VectorLengths:
        """The lengths that a vector may have now; None: any."""

    def renew(self) -> None:
        """Renew the claims of this process if they are due."""

    def claim(self, count: int) -> Sequence[TextBatch] | None:
        """Claim up to ``count`` batches (fewer, even none, if texts need no request); None if no text is left."""

    def is_waiting(self) -> bool:
        """Whether texts are left that another process has claimed. Asked when nothing is in flight."""
        return False

    def write(self, results: Sequence[BatchResult]) -> None:
        """Write the vectors of results durably: they are paid for."""

    def fail(self, batch: TextBatch, code: str, reason: str) -> None:
        """Record that the only text of a batch cannot be embedded."""

    def skip(self, batch: TextBatch, problem: Unanswered) -> None:  # noqa: ARG002
        """Record that the only text of a batch has no known answer, as an embedder of known answers reports it."""
        raise problem

    def stop(self, batch: TextBatch, problem: BaseException) -> None:
        """Record why no more batches are claimed.

        Raises:
            BaseException: the problem, if it is not one of the embedder.
        """


class Sender:
    """Sends the texts of an outbox, several requests at a time.

    Args:
        embedder: whose settings give the batch size; halted when sending stops.
        workers: the threads that send.
        on_halt: called when nothing more may be sent; wakes threads that wait for a permit.
        ahead: batches per thread that are claimed and not recorded yet; None: three. With 1, a killed process loses
            at most one paid answer per thread.
    """

    def __init__(
        self,
        embedder: Embedder,
        workers: WorkerPool,
        on_halt: Callable[[], None] = lambda: None,
        ahead: int | None = None,
    ) -> None:
        self._ahead = _AHEAD if ahead is None else ahead
        self._embedder = embedder
        self._workers = workers
        self._on_halt = on_halt
        self._in_flight = 0
        #: No more batches are claimed.
        self._is_over = False
        #: No more requests are sent.
        self._is_halted = False

    def send(self, outbox: Outbox) -> None:
        """Send until no text is left, a limit is reached, or an error stops it; see :meth:`Outbox.stop`.

        Raises:
            KeyboardInterrupt: requests in flight are waited for five seconds, and their answers written.
            apsw.Error, OSError: an answer cannot be written.
        """
        try:
            while self._submit_claimed(outbox):
                self._receive(outbox)
        except BaseException:
            self._halt()
            end = time.monotonic() + _LAST_WAIT
            while self._in_flight and time.monotonic() < end:
                self._receive(outbox)
            raise

    def _submit_claimed(self, outbox: Outbox) -> bool:
        """Claim and submit as many batches as the threads can take; returns whether to wait for answers or claims."""
        # Before claiming: after a long sleep, this process must not take over its own expired claims.
        outbox.renew()
        while not self._is_over and (room := self._ahead * self._workers.count - self._in_flight) > 0:
            batches = outbox.claim(room)
            if batches is None:
                break
            for batch in batches:
                self._submit(batch)
        return self._in_flight > 0 or (not self._is_halted and outbox.is_waiting())

    def _submit(self, batch: TextBatch) -> None:
        """Queue a batch for the threads, and note that it is in flight."""
        self._in_flight += 1
        self._workers.submit(batch)

    def _halt(self) -> None:
        """Send nothing more. Requests in flight go on."""
        self._is_over = self._is_halted = True
        self._on_halt()
        self._in_flight -= len(self._workers.withdraw())
        self._embedder.halt()

    def _receive(self, outbox: Outbox) -> None:
        """Write all vectors that have arrived, then handle the batches that failed."""
        # Ctrl-C is held back until what was paid for is written.
        with interrupts.defer_stops():
            arrived = self._workers.results(_POLL)
            lengths = outbox.lengths or _usual_length(arrived)
            results = [self._verify_vectors(result, lengths) for result in arrived]
            self._in_flight -= len(results)
            good = [result for result in results if result.problem is None]
            if good:
                outbox.write(good)
            for result in results:
                if result.problem is not None:
                    self._handle(outbox, result.batch, result.problem)

    def _verify_vectors(self, result: BatchResult, lengths: VectorLengths) -> BatchResult:
        """Return the result, with AnswerUnfit as its problem if a vector has none of the allowed ``lengths``."""
        if result.problem is not None:
            return result
        dimensions = None
        if lengths is not None and result.vectors:
            length = len(result.vectors[0]) // 4
            dimensions = length if length in lengths else min(lengths)
        try:
            name = self._embedder.settings.name
            check(result.vectors, len(result.batch.keys), dimensions, embedder=name)
        except AnswerUnfit as unfit:
            return BatchResult(result.batch, problem=unfit)
        return result

    def _handle(self, outbox: Outbox, batch: TextBatch, problem: BaseException) -> None:
        """Decide what happens to a failed batch: halve it, record its only text as failed, send it again, or stop."""
        is_alone = len(batch.keys) == 1
        if isinstance(problem, Halted):
            return
        if isinstance(problem, ClaimExpired):
            outbox.renew()
            if batch.is_held():
                self._submit(batch)
        elif isinstance(problem, TextsRejected):
            outbox.fail(batch, problem.code, problem.reason) if is_alone else self._split(batch)
        elif isinstance(problem, Unanswered):
            outbox.skip(batch, problem) if is_alone else self._split(batch)
        elif isinstance(problem, AnswerUnfit) and problem.facts["fault"] in _TEXT_FAULTS and is_alone:
            outbox.fail(batch, str(problem.facts["fault"]), str(problem.facts["reason"]))
        elif isinstance(problem, AnswerUnfit) and problem.facts["fault"] in _TEXT_FAULTS and outbox.splits_unfit:
            self._split(batch)
        else:
            outbox.stop(batch, problem)
            self._is_over = True
            # At a limit, requests that are reserved already may still be sent.
            if not isinstance(problem, LimitReached):
                self._halt()

    def _split(self, batch: TextBatch) -> None:
        """Send a refused batch again in two halves."""
        if not self._is_halted:
            for half in batch.halves():
                self._submit(half)
