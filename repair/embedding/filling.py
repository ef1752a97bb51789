"""What filling a scope would send, by the rules that it is sent by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter

import msgspec

from regraft import identity
from regraft.embedders import Embedder, Halted, ServerFailing, TextsRejected, Unanswered, check
from regraft.embedders.settings import Batch, EmbedderSettings
from regraft.errors import AnswerUnfit
from regraft.language import tr
from regraft.processes import interrupts
from regraft.report.progress import Progress
from regraft.text import is_blank
from repair.embedding.budget import BudgetedEmbedder, LimitReached, Limits
from repair.embedding.queue import ALONE_ATTEMPTS, LEASE_MS, Claim, TextQueue
from repair.embedding.scope import Scope, TextCounts, TextWithoutVector
from repair.embedding.workers import BatchResult, ClaimExpired, TextBatch, WorkerPool

# Filling one scope: texts are claimed, sent several batches at a time, and written as soon as they are answered.


#: How long to wait for an answer before looking whether a claim has to be renewed, in seconds.
_POLL = 0.2
#: How many batches are claimed for each thread of the crew: it goes on sending while answers are written.
_AHEAD = 3
#: How long to wait for what was sent when the run is interrupted, in seconds: it is paid for.
_LAST_WAIT = 5.0
#: Codes of one text's own fault, by which it can fail alone.
BLANK, NOT_ITS_HASH = "blank_text", "not_its_hash"
_OF_ONE = frozenset({"non_finite", "zero_vector"})
_REASONS = {
    BLANK: tr("there is nothing in it but white space"),
    NOT_ITS_HASH: tr("the text is not the one that its hash is of: regraft repair first"),
}


class FillCounts(msgspec.Struct):
    """What became of a scope's texts in one run."""

    processed_pending: int = 0
    processed_stale: int = 0
    newly_ready: int = 0
    failed: int = 0
    #: Why not all texts were taken on, None where they were.
    stopped: str | None = None


class Filling(msgspec.Struct):
    """Fills one scope; used once.

    Args:
        scope: open for writing.
        embedder: what makes vectors.
        queue: in which the scope's texts wait.
        workers: what sends them.
        meter: what was sent so far, and the limits.
        progress: told of each text.
    """

    scope: Scope
    embedder: Embedder
    queue: TextQueue
    workers: WorkerPool
    meter: BudgetedEmbedder
    progress: Progress
    now_ms: Callable[[], int] = identity.now_ms
    filled: FillCounts = msgspec.field(default_factory=FillCounts)
    _under_way: int = 0
    #: Why some texts have no answer. They stay claimed, so that nobody comes to them again.
    _unanswered: str | None = None
    _problem: BaseException | None = None
    _renewed: int = 0
    #: Until when claims hold, in ms, by their tokens; threads look at it.
    _until: dict[str, int] = msgspec.field(default_factory=dict)

    def run(self) -> FillCounts:
        """Fill it, until nothing waits, a limit is reached, or something stops it.

        Raises:
            AnswerUnfit, EmbedderRefused: the embedder is not to be trusted, or does not let us in.
            ServerFailing: it cannot be reached.
            KeyboardInterrupt
            apsw.Error, OSError: the store cannot be written.

        Whatever is raised, what was answered before is written, and what is not is given back.
        """
        try:
            while self._goes_on():
                self._take()
        except BaseException:
            self._leave()
            raise
        finally:
            self.queue.give_back()
        if self._problem is not None:
            raise self._problem
        return self.filled

    def _goes_on(self) -> bool:
        """Claim as much as the crew can send; tell whether there is anything to wait for."""
        # First of all: who was asleep would take its own texts for those of a dead one.
        self._renew()
        while self._problem is None and self.filled.stopped is None and (free := self._free()):
            claim = self._claimed(free)
            if claim is None:
                break
            self._submit(claim)
        if self._under_way:
            return True
        self.filled.stopped = self.filled.stopped or self._unanswered
        if self._problem is not None or self.filled.stopped is not None or not self.queue.waiting(self.scope.name):
            return False
        if self.meter.texts_left() == 0:
            self.filled.stopped = tr("--limit {texts:,} is reached", texts=self.meter.texts)
            return False
        # What others have claimed is theirs, until they are done or their claims expire.
        return True

    def _free(self) -> int:
        """Return for how many more batches there is room."""
        return max(0, _AHEAD * self.workers.count - self._under_way)

    def _claimed(self, batches: int) -> Claim | None:
        left = self.meter.texts_left()
        if left == 0:
            return None
        most = batches * self.embedder.settings.batch.texts
        if left is not None:
            most = min(most, left)
        now = self.now_ms()
        claim = self.queue.claim(self.scope.name, most, now)
        if claim is not None:
            self._until[claim.token] = now + LEASE_MS
        return claim

    def _submit(self, claim: Claim) -> None:
        found = self.scope.texts(claim.keys)
        self.queue.done(claim, [key for key in claim.keys if key not in found])
        good = texts_to_send(found)
        for key, lacking in found.items():
            if key not in good:
                code = NOT_ITS_HASH if lacking.text is None else BLANK
                self._fail(claim, key, lacking.is_stale, code)
        for keys in self._batches(claim, good):
            self.meter.texts += len(keys)
            self._send(_task(claim, keys, good, partial(self._is_held, claim)))

    def _batches(self, claim: Claim, good: dict[str, TextWithoutVector]) -> list[list[str]]:
        """Return the keys of texts as they go together; those of a last batch that is not full are given back."""
        sized = ((key, self.embedder.tokens(lacking.text or "")) for key, lacking in good.items())
        size = self._size(claim)
        batches = [[key for key, _ in batch] for batch in pack_batches(sized, size)]
        if len(batches) > 1 and len(batches[-1]) < size.texts:
            # Others fill the last one up.
            self.queue.release(claim, batches.pop())
        return batches

    def _size(self, claim: Claim) -> Batch:
        """Return how much goes into one request.

        What a worker died of may be among what it had: each time that happens, half as many go together.
        """
        batch = self.embedder.settings.batch
        return Batch(texts=max(1, batch.texts >> max(0, claim.attempts - 1)), tokens=batch.tokens)

    def _send(self, task: TextBatch) -> None:
        self._under_way += 1
        self.workers.submit(task)

    # --- answers -----------------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Write the vectors of all answers that are there in one transaction, and see to the answers without."""
        # What was answered is paid for: Ctrl-C waits.
        with interrupts.defer_stops():
            answers = [self._judged(answer) for answer in self.workers.answers(_POLL)]
            self._under_way -= len(answers)
            good = [answer for answer in answers if answer.problem is None]
            if good:
                self._write(good)
            for answer in answers:
                if answer.problem is not None:
                    self._settle(answer.task, answer.problem)

    def _judged(self, answer: BatchResult) -> BatchResult:
        if answer.problem is not None:
            return answer
        try:
            name = self.embedder.settings.name
            check(answer.vectors, len(answer.task.keys), self.scope.dimensions, embedder=name)
        except AnswerUnfit as unfit:
            return BatchResult(answer.task, problem=unfit)
        return answer

    def _write(self, answers: Sequence[BatchResult]) -> None:
        vectors: dict[str, bytes] = {}
        for answer in answers:
            vectors |= zip(answer.task.keys, answer.vectors, strict=True)
        written = self.scope.write(vectors, self.now_ms())
        self.filled.newly_ready += written.pending + written.stale
        for task in (answer.task for answer in answers):
            self.queue.done(task.claim, task.keys)
            self._processed(len(task.keys), len(task.stale.intersection(task.keys)))

    def _settle(self, task: TextBatch, problem: BaseException) -> None:
        if isinstance(problem, TextsRejected):
            self._rejected(task, problem)
        elif isinstance(problem, Unanswered):
            self._without_answer(task, problem)
        elif isinstance(problem, AnswerUnfit):
            self._unfit(task, problem)
        elif isinstance(problem, LimitReached):
            self.filled.stopped = str(problem)
        elif isinstance(problem, ClaimExpired):
            self._send_if_held(task)
        elif not isinstance(problem, Halted):
            if isinstance(problem, ServerFailing):
                # It may be down because of them.
                self.queue.doubt(task.claim, task.keys, problem.code)
            self._stop(problem)

    def _stop(self, problem: BaseException) -> None:
        """Send nothing more; what was sent is waited for."""
        self._problem = self._problem or problem
        self._withdraw()

    def _withdraw(self) -> None:
        self._under_way -= len(self.workers.withdraw())
        self.embedder.halt()

    def _rejected(self, task: TextBatch, rejected: TextsRejected) -> None:
        """Split a batch until the one bad text stands alone."""
        if len(task.keys) > 1:
            for half in task.halves():
                self._send(half)
            return
        self._fail(task.claim, task.keys[0], task.keys[0] in task.stale, rejected.code, rejected.reason)

    def _without_answer(self, task: TextBatch, problem: Unanswered) -> None:
        """Split a batch until what has no answer stands alone, and go on with all that has one."""
        if len(task.keys) > 1:
            for half in task.halves():
                self._send(half)
            return
        self._unanswered = str(problem)

    def _unfit(self, task: TextBatch, unfit: AnswerUnfit) -> None:
        """Refuse a batch: nothing of it is written, and nothing more is sent; alone, a text may fail for itself."""
        fault = str(unfit.facts["fault"])
        if len(task.keys) == 1 and fault in _OF_ONE:
            self._fail(task.claim, task.keys[0], task.keys[0] in task.stale, fault, str(unfit.facts["reason"]))
            return
        self.queue.doubt(task.claim, task.keys, fault, ALONE_ATTEMPTS)
        self._stop(unfit)

    def _fail(self, claim: Claim, key: str, is_stale: bool, code: str, reason: str = "") -> None:
        if not self.queue.fail(claim, key, code, reason or _REASONS[code]):
            # Another process has it by now: what becomes of it is for that one to say.
            return
        self.scope.failed(key, code, self.now_ms())
        self.filled.failed += 1
        self._processed(1, int(is_stale))

    def _processed(self, count: int, stale: int) -> None:
        self.filled.processed_stale += stale
        self.filled.processed_pending += count - stale
        self.progress.step(count, 0)

    # --- claims ------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        now = self.now_ms()
        if now - self._renewed > LEASE_MS // 4:
            self._until = dict.fromkeys(self.queue.renew(now), now + LEASE_MS)
            self._renewed = now

    def _is_held(self, claim: Claim) -> bool:
        """Tell whether nobody else can have the texts of a claim."""
        return self.now_ms() <= self._until.get(claim.token, -1)

    def _send_if_held(self, task: TextBatch) -> None:
        """Send what was not sent in time; what another process has taken over is that one's."""
        self._renew()
        if self._is_held(task.claim):
            self._send(task)

    def _leave(self) -> None:
        """Write what still comes within a while."""
        self.filled.stopped = "interrupted"
        self._withdraw()
        end = time.monotonic() + _LAST_WAIT
        while self._under_way and time.monotonic() < end:
            self._take()


def _task(
    claim: Claim, keys: Sequence[str], found: dict[str, TextWithoutVector], is_held: Callable[[], bool]
) -> TextBatch:
    texts = tuple(found[key].text or "" for key in keys)
    stale = frozenset(key for key in keys if found[key].is_stale)
    return TextBatch(claim=claim, keys=tuple(keys), texts=texts, stale=stale, is_held=is_held)


def texts_to_send(found: dict[str, TextWithoutVector]) -> dict[str, TextWithoutVector]:
    """Return those texts that have anything to be embedded."""
    return {key: lacking for key, lacking in found.items() if not is_blank(lacking.text)}


def pack_batches(sized: Iterable[tuple[str, int]], batch: Batch) -> Iterator[list[tuple[str, int]]]:
    """Return keys of texts, each with its tokens, as what one request may hold."""
    packing: list[tuple[str, int]] = []
    tokens = 0
    for key, size in sized:
        if packing and (len(packing) >= batch.texts or tokens + size > batch.tokens):
            yield packing
            packing, tokens = [], 0
        packing.append((key, size))
        tokens += size
    if packing:
        yield packing


# What a run sends of each scope, before it does: no less than it will, texts that are still to be cut included.


#: How many texts are held at once.
_AT_ONCE = 256

TokenCounter = Callable[[str], int]
#: A text's key, and its tokens.
SizedText = tuple[str, int]


class ExpectedTexts(msgspec.Struct):
    """What becomes of the texts of one scope before it is filled.

    ``coming`` are those of units that are made first and have no vector, ``free`` the keys of those that take the
    vector of an equal text: one that is there (``there``), or that the run has sent for another scope before.
    """

    coming: dict[str, int] = msgspec.field(default_factory=dict)
    free: set[str] = msgspec.field(default_factory=set)
    there: frozenset[str] = frozenset()
    #: Whether the place of its vectors holds those of others, too.
    shares_with_itself: bool = False
    #: How many texts take the vector of an equal one; known once :meth:`sized` was read.
    shared: int = 0

    def survey(self, scope: Scope) -> TextCounts:
        """Count the texts of a scope as they will be."""
        found = scope.survey()
        more = len(self.coming.keys() - set(scope.texts(list(self.coming))))
        return TextCounts(ready=found.ready, pending=found.pending + more, stale=found.stale, failed=found.failed)

    def sized(self, scope: Scope, tokens_of: TokenCounter) -> Iterator[SizedText]:
        """Yield every text that is sent, in its order."""
        self.shared = 0
        every = merge(sized_texts_without_vector(scope, tokens_of), sorted(self.coming.items()))
        once = (next(group) for _, group in groupby(every, key=itemgetter(0)))
        while chunk := list(islice(once, _AT_ONCE)):
            keys = [key for key, _ in chunk]
            free = self.free.intersection(keys)
            if self.shares_with_itself:
                free |= scope.vectors(keys).keys()
            self.shared += len(free)
            yield from (one for one in chunk if one[0] not in free)


def sized_texts_without_vector(scope: Scope, tokens_of: TokenCounter) -> Iterator[SizedText]:
    """Yield the texts that lack a vector and have anything to be embedded."""
    keys = scope.lacking()
    while chunk := list(islice(keys, _AT_ONCE)):
        for key, one in texts_to_send(scope.texts(chunk)).items():
            yield key, tokens_of(one.text or "")


def sized_new_units(scope: Scope, bodies: Iterable[tuple[str, str]], tokens_of: TokenCounter) -> dict[str, int]:
    """Return those of the bodies that have no vector, by their keys, with their tokens."""
    found = {}
    bodies = iter(bodies)
    while chunk := dict(islice(bodies, _AT_ONCE)):
        ready = scope.vectors(list(chunk))
        found.update({key: tokens_of(text) for key, text in chunk.items() if key not in ready})
    return found


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, tokens and requests that a run would send, and what that costs; None where there is no price.

    ``shared`` texts more take the vector of an equal one that another base has, or gets: a text is paid for once.
    """

    texts: int
    tokens: int
    requests: int
    cost: float | None
    currency: str
    shared: int = 0

    def plus(self, other: Estimate) -> Estimate:
        """Return both together."""
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        texts, tokens = self.texts + other.texts, self.tokens + other.tokens
        return Estimate(
            texts=texts, tokens=tokens, requests=self.requests + other.requests, cost=cost, currency=self.currency
        )


def cost_of(tokens: int, settings: EmbedderSettings) -> float | None:
    """Return what tokens cost, None where there is no price."""
    price = settings.price_per_million_tokens
    return None if price is None else tokens * price / 1_000_000


def empty_estimate(settings: EmbedderSettings) -> Estimate:
    """Return what no text takes."""
    return Estimate(texts=0, tokens=0, requests=0, cost=cost_of(0, settings), currency=settings.currency)


def estimate_sending(
    sized: Iterable[SizedText], settings: EmbedderSettings, limits: Limits, sent: Estimate
) -> Estimate:
    """Return what sending these texts takes.

    Args:
        sized: the texts, in their order.
        settings: the embedder's.
        limits: what the run may send.
        sent: what it sends before.

    Raises:
        apsw.Error: the scope is damaged.
    """
    texts = tokens = requests = 0
    for sizes in ([size for _, size in batch] for batch in pack_batches(sized, settings.batch)):
        batch = sizes if limits.texts is None else sizes[: max(0, limits.texts - sent.texts - texts)]
        size = sum(batch)
        cost = cost_of(sent.tokens + tokens + size, settings) or 0.0
        if (
            not batch
            or (limits.requests is not None and sent.requests + requests >= limits.requests)
            or (limits.cost is not None and cost > limits.cost)
        ):
            break
        texts, tokens, requests = texts + len(batch), tokens + size, requests + 1
    return Estimate(
        texts=texts,
        tokens=tokens,
        requests=requests,
        cost=cost_of(tokens, settings),
        currency=settings.currency,
    )
