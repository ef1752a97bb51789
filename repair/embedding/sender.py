"""Sends texts of a fleet and has their answers kept; one for each process that sends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from threading import Event

from regraft.embedders import Embedder, Halted, ServerFailing, TextsRejected, check
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import REFUSED, STOPPED, AnswerUnfit, BackfillStopped, RegraftError
from regraft.language import to_english, tr
from regraft.processes import interrupts
from repair.embedding.answers import AnswerKeeper, StopReason, TextAnswer, TextKind
from repair.embedding.budget import LimitReached, MeteredEmbedder
from repair.embedding.filling import pack_batches
from repair.embedding.queue import Claim
from repair.embedding.workers import BatchResult as Answered
from repair.embedding.workers import TextBatch, WorkerPool

#: A text and its key.
KeyedText = tuple[str, str]
#: How many numbers vectors may have; None: nobody knows.
VectorLengths = frozenset[int] | None
#: How many texts are asked for at once: which of them have no answer.
_AT_ONCE = 256
#: How many batches wait for each thread: it goes on sending while answers are kept.
_AHEAD = 3
#: How long to wait for an answer before looking again, in seconds.
_POLL = 0.2
#: How long to wait for what was sent when the run is interrupted, in seconds: it is paid for.
_LAST_WAIT = 5.0
#: What is wrong with an answer by its one text's own fault.
_OF_ONE = frozenset({"non_finite", "zero_vector"})


class Sender:
    """Sends what it is given to an embedder; as many requests at a time as the configuration says.

    Args:
        embedder: makes the vectors.
        keeper: asked before anything leaves, and told all that comes.
        kind: what is sent.
        dimensions: what a vector may have; None: nobody knows.
    """

    def __init__(
        self, embedder: Embedder, keeper: AnswerKeeper, kind: TextKind, dimensions: VectorLengths = None
    ) -> None:
        settings = embedder.settings
        self._embedder = embedder
        self._keeper = keeper
        self._kind: TextKind = kind
        self._settings = settings
        self._dimensions = dimensions
        self._halted = Event()
        self._ending = ExitStack()
        meter = MeteredEmbedder(embedder, keeper.leave(kind), self._halted.wait)
        self._workers = self._ending.enter_context(WorkerPool(settings.name, meter, settings.parallel))
        self._under_way = 0
        self._is_over = False

    def send(self, texts: Iterable[KeyedText], step: Callable[[int], None] = lambda _: None) -> None:
        """Send those of the texts that have no answer, until all have one or nothing more may leave.

        Args:
            texts: each with its key.
            step: told how many have been answered.

        Raises:
            KeyboardInterrupt: what was under way is kept, where it came within a while.
            apsw.Error, OSError: an answer cannot be kept.
        """
        batches = self._batches(texts)
        try:
            while self._goes_on(batches):
                self._take(step)
        except BaseException:
            self._leave(step)
            raise

    def close(self) -> None:
        """Let the threads end."""
        self._ending.close()

    # --- what leaves -------------------------------------------------------------------------------------------------

    def _batches(self, texts: Iterable[KeyedText]) -> Iterator[TextBatch]:
        """Yield texts as they go together."""
        texts = iter(texts)
        while not self._is_over and (some := dict(islice(texts, _AT_ONCE))):
            wanted = self._keeper.claim(list(some), self._kind)
            sized = ((key, self._embedder.tokens(some[key])) for key in wanted)
            for batch in pack_batches(sized, self._settings.batch):
                keys = tuple(key for key, _ in batch)
                # In a fleet a batch is nobody's but its sender's.
                claim = Claim(token="", scope="", keys=keys, attempts=0)
                yield TextBatch(claim=claim, keys=keys, texts=tuple(some[key] for key in keys))

    def _goes_on(self, batches: Iterator[TextBatch]) -> bool:
        """Submit as much as the threads can send; tell whether there is anything to wait for."""
        while not self._is_over and self._under_way < _AHEAD * self._workers.count:
            task = next(batches, None)
            if task is None:
                break
            self._submit(task)
        return self._under_way > 0

    def _submit(self, task: TextBatch) -> None:
        self._under_way += 1
        self._workers.submit(task)

    def _end(self) -> None:
        """Begin nothing more; what may leave leaves, in its time, and is waited for."""
        self._is_over = True
        self._under_way -= len(self._workers.withdraw())

    def _halt(self) -> None:
        """Send nothing more; what was sent is waited for."""
        self._halted.set()
        self._end()
        self._embedder.halt()

    def _leave(self, step: Callable[[int], None]) -> None:
        """Keep what still comes within a while."""
        self._halt()
        end = time.monotonic() + _LAST_WAIT
        while self._under_way and time.monotonic() < end:
            self._take(step)

    # --- what comes --------------------------------------------------------------------------------------------------

    def _take(self, step: Callable[[int], None]) -> None:
        """Have all answers kept that are there, and see to those without vectors."""
        # What was answered is paid for: Ctrl-C waits.
        with interrupts.defer_stops():
            came = [self._judged(one) for one in self._workers.answers(_POLL)]
            self._under_way -= len(came)
            found: dict[str, TextAnswer] = {}
            for one in came:
                if one.problem is None:
                    vectors = zip(one.task.keys, one.vectors, strict=True)
                    found.update((key, TextAnswer(vector=vector)) for key, vector in vectors)
                else:
                    found.update(self._settled(one.task, one.problem))
            if found:
                self._keeper.keep(found, self._kind)
                step(len(found))

    def _judged(self, one: Answered) -> Answered:
        """Return an answer; one whose vectors have a length that none may have as a problem."""
        if one.problem is None:
            dimensions = None
            if self._dimensions is not None and one.vectors:
                has = len(one.vectors[0]) // 4
                dimensions = has if has in self._dimensions else min(self._dimensions)
            try:
                check(one.vectors, len(one.task.keys), dimensions, embedder=self._settings.name)
            except AnswerUnfit as unfit:
                return Answered(one.task, problem=unfit)
        return one

    def _settled(self, task: TextBatch, problem: BaseException) -> dict[str, TextAnswer]:
        """Send a batch again as two, return what is wrong with a text that stands alone, or stop."""
        found = _of_texts(problem)
        if found is not None:
            if len(task.keys) == 1:
                return {task.keys[0]: found}
            for half in task.halves() if not self._is_over else ():
                self._submit(half)
        elif not isinstance(problem, Halted):
            self._keeper.stop(stop_reason(problem, self._settings))
            # Of a limit, others may have the rest, and wait for their time.
            self._end() if isinstance(problem, LimitReached) else self._halt()
        return {}


def _of_texts(problem: BaseException) -> TextAnswer | None:
    """Return what a text gets instead of a vector that fails for itself; None: it is not the text."""
    if isinstance(problem, TextsRejected):
        return TextAnswer(code=problem.code, reason=str(to_english(problem.reason)))
    if isinstance(problem, AnswerUnfit) and problem.facts["fault"] in _OF_ONE:
        return TextAnswer(code=str(problem.facts["fault"]), reason=str(to_english(problem.facts["reason"])))
    return None


def stop_reason(problem: BaseException, settings: EmbedderSettings) -> StopReason:
    """Return why nothing more is sent after a problem.

    Raises:
        BaseException: it is none of the embedder's.
    """
    if isinstance(problem, LimitReached):
        return StopReason(reason=str(problem))
    if isinstance(problem, ServerFailing):
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=settings.name, reason=problem.reason)
        return StopReason(reason=reason, code=BackfillStopped.__name__, exit_status=STOPPED)
    if isinstance(problem, RegraftError):
        return StopReason(reason=str(problem), code=problem.code, exit_status=library_exit_status(problem))
    raise problem


def library_exit_status(problem: RegraftError) -> int:
    """Return the exit status of a library that a problem keeps from being filled: it is not just worth reading."""
    return max(REFUSED, problem.exit_status)
