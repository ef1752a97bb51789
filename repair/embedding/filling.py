"""Give vectors to the texts of one or more scopes: compare the embedder first, then send the texts.

:class:`EmbeddingRun` does this for every command: for vectors in the store (``backfill``, ``rebuild``), for a base that
is being restored, and for AngelMemory, whose vectors wait in a staging file. The caller says what is filled, how it is
opened, and what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from regraft import identity
from regraft.embedders import Embedder, ServerFailing, Unanswered
from regraft.embedders.settings import Batch
from regraft.errors import REFUSED, AnswerUnfit, BackfillInterrupted, BackfillStopped, RegraftError, SidecarUnfit
from regraft.language import format_count, tr
from regraft.ledger.ledger import Ledger
from regraft.processes import interrupts
from regraft.report.progress import Progress, stage
from regraft.stores.systems import SidecarProblem
from repair.changes.session import damage_error, is_store_damage
from repair.changes.store import Store
from repair.embedding import probing, queue
from repair.embedding.budget import BudgetedEmbedder, LimitReached, Limits, TokenGauge
from repair.embedding.queue import ALONE_ATTEMPTS, LEASE_MS, SharedStore, TextClaim, TextQueue, share_store
from repair.embedding.report import FillCounts, ScopeOutcome, cost_of, format_cost
from repair.embedding.reuse import Supply
from repair.embedding.scope import Scope, TextWithoutVector, texts_to_send
from repair.embedding.sender import BatchResult, Sender, TextBatch, VectorLengths, WorkerPool, pack_batches

#: Codes of texts that are not sent.
BLANK, NOT_ITS_HASH = "blank_text", "not_its_hash"
_REASONS = {
    BLANK: tr("it is blank"),
    NOT_ITS_HASH: tr("the text does not match its hash; run regraft repair first"),
}


# --- one scope -------------------------------------------------------------------------------------------------------


class Filling(msgspec.Struct):
    """Fills one scope: the :class:`~repair.embedding.sender.Outbox` of its texts in the queue of the store. Single use.

    Vectors go into the scope as soon as they arrive, and only then leave their texts the queue.

    Args:
        scope: open for writing.
        embedder: computes the vectors.
        queue: the store's queue, which has the texts of the scope.
        workers: the threads that send.
        meter: what was sent so far, and the limits.
        progress: notified of each text.
    """

    scope: Scope
    embedder: Embedder
    queue: TextQueue
    workers: WorkerPool
    meter: BudgetedEmbedder
    progress: Progress
    now_ms: Callable[[], int] = identity.now_ms
    filled: FillCounts = msgspec.field(default_factory=FillCounts)
    splits_unfit: bool = False
    #: Why some texts have no answer. They stay claimed, so that this run does not ask for them again.
    _unanswered: str | None = None
    _problem: BaseException | None = None
    _renewed_at: int = 0
    #: When each claim expires, in ms, by its token; read by the threads of the pool.
    _expires_at: dict[str, int] = msgspec.field(default_factory=dict)

    def run(self) -> FillCounts:
        """Send until no text waits, a limit is reached, or an error stops it.

        Whatever is raised, all answers that arrived are written, and all other claims returned to the queue.

        Raises:
            AnswerUnfit, EmbedderRefused: the answers are not those of this model, or the server rejects the key.
            ServerFailing: the server cannot be reached.
            KeyboardInterrupt
            apsw.Error, OSError: the store cannot be written.
        """
        try:
            Sender(self.embedder, self.workers).send(self)
        except BaseException:
            self.filled.stopped = "interrupted"
            raise
        finally:
            self.queue.release_all()
        if self._problem is not None:
            raise self._problem
        return self.filled

    @property
    def lengths(self) -> VectorLengths:
        """The lengths that a new vector may have: that of the scope's vectors, or None (any) before the first one."""
        return None if self.scope.dimensions is None else frozenset({self.scope.dimensions})

    # Claims.

    def renew(self) -> None:
        """Renew all claims of this process after a quarter of their time."""
        now = self.now_ms()
        if now - self._renewed_at > LEASE_MS // 4:
            self._expires_at = dict.fromkeys(self.queue.renew(now), now + LEASE_MS)
            self._renewed_at = now

    def claim(self, count: int) -> Sequence[TextBatch] | None:
        """Claim texts for up to ``count`` batches; fewer if texts need no request, which are completed at once.

        None if no text of the queue is ready, or the limit of texts is reached.
        """
        texts_left = self.meter.texts_left()
        if texts_left == 0:
            return None
        limit = count * self.embedder.settings.batch.texts
        now = self.now_ms()
        claim = self.queue.claim(self.scope.name, limit if texts_left is None else min(limit, texts_left), now)
        if claim is None:
            return None
        self._expires_at[claim.token] = now + LEASE_MS
        found = self.scope.texts(claim.keys)
        self.queue.done(claim, [key for key in claim.keys if key not in found])
        sendable = texts_to_send(found)
        for key, text in found.items():
            if key not in sendable:
                code = NOT_ITS_HASH if text.text is None else BLANK
                self._fail(claim, key, text.is_stale, code, _REASONS[code])
        batches = [
            TextBatch(
                claim=claim,
                keys=tuple(keys),
                texts=tuple(sendable[key].text or "" for key in keys),
                stale=frozenset(key for key in keys if sendable[key].is_stale),
                is_held=partial(self._is_held, claim),
            )
            for keys in self._pack(claim, sendable)
        ]
        self.meter.texts += sum(len(batch.keys) for batch in batches)
        return batches

    def _pack(self, claim: TextClaim, texts: dict[str, TextWithoutVector]) -> list[list[str]]:
        """Group the keys of claimed texts into requests.

        A last request that is not full is returned to the queue, for others to fill up. Requests are halved for each
        time the texts were claimed before: one of the texts may have killed a worker.
        """
        batch = self.embedder.settings.batch
        size = Batch(texts=max(1, batch.texts >> max(0, claim.attempts - 1)), tokens=batch.tokens)
        sized = ((key, self.embedder.tokens(text.text or "")) for key, text in texts.items())
        batches = [[key for key, _ in packed] for packed in pack_batches(sized, size)]
        if len(batches) > 1 and len(batches[-1]) < size.texts:
            self.queue.release(claim, batches.pop())
        return batches

    def _is_held(self, claim: TextClaim) -> bool:
        """Whether the claim is still valid, so that no other process can have claimed its texts."""
        return self.now_ms() <= self._expires_at.get(claim.token, -1)

    def is_waiting(self) -> bool:
        """Whether other processes have claimed texts that this one may have to take over."""
        self.filled.stopped = self.filled.stopped or self._unanswered
        if self._problem is not None or self.filled.stopped is not None or not self.queue.waiting(self.scope.name):
            return False
        if self.meter.texts_left() == 0:
            self.filled.stopped = tr("--limit {texts:,} is reached", texts=self.meter.texts)
            return False
        return True

    # Answers.

    def write(self, results: Sequence[BatchResult]) -> None:
        """Write vectors in one transaction, then remove their texts from the queue."""
        vectors: dict[str, bytes] = {}
        for result in results:
            vectors |= zip(result.batch.keys, result.vectors, strict=True)
        written = self.scope.write(vectors, self.now_ms())
        self.filled.newly_ready += written.pending + written.stale
        for batch in (result.batch for result in results):
            self.queue.done(_claim_of(batch), batch.keys)
            self._count(len(batch.keys), len(batch.stale.intersection(batch.keys)))

    def fail(self, batch: TextBatch, code: str, reason: str) -> None:
        """Record that the only text of a batch cannot be embedded: in the queue and, if possible, in the scope."""
        [key] = batch.keys
        self._fail(_claim_of(batch), key, key in batch.stale, code, reason)

    def _fail(self, claim: TextClaim, key: str, is_stale: bool, code: str, reason: str) -> None:
        """Record that the text ``key`` cannot be embedded, unless another process has claimed it.

        ``is_stale``: the text has an outdated vector.
        """
        # If the text is claimed by another process now, that one decides about it.
        if self.queue.fail(claim, key, code, reason):
            self.scope.failed(key, code, self.now_ms())
            self.filled.failed += 1
            self._count(1, int(is_stale))

    def _count(self, count: int, stale: int) -> None:
        """Count processed texts, and show the cost so far or the tokens; ``stale`` texts had an outdated vector."""
        self.filled.processed_stale += stale
        self.filled.processed_pending += count - stale
        self.progress.step(count, 0)
        settings, tokens = self.embedder.settings, self.meter.tokens
        cost = cost_of(tokens, settings)
        spent = format_count(tokens, "token") if cost is None else format_cost(cost, settings.currency)
        self.progress.at(f"{spent} · {self.scope.label}")

    def skip(self, batch: TextBatch, problem: Unanswered) -> None:  # noqa: ARG002
        """Leave the only text of a batch claimed until the run ends, which then reports why the text has no answer."""
        self._unanswered = str(problem)

    def stop(self, batch: TextBatch, problem: BaseException) -> None:
        """Note why the run stops; texts of the batch that may be the cause go last in the next run."""
        if isinstance(problem, LimitReached):
            self.filled.stopped = str(problem)
            return
        if isinstance(problem, ServerFailing):
            self.queue.defer(_claim_of(batch), batch.keys, problem.code)
        elif isinstance(problem, AnswerUnfit):
            self.queue.defer(_claim_of(batch), batch.keys, str(problem.facts["fault"]), ALONE_ATTEMPTS)
        self._problem = self._problem or problem


def _claim_of(batch: TextBatch) -> TextClaim:
    """Return the claim of a batch. Every batch of a queue has one."""
    assert batch.claim is not None
    return batch.claim


# --- one run ---------------------------------------------------------------------------------------------------------


class FillPart(msgspec.Struct, frozen=True, kw_only=True):
    """One scope that a run fills: its outcome, the texts the embedder is compared by, and how to open it for writing.

    ``sample`` has texts with their vectors; empty: the scope has none yet, so the embedder is compared with itself;
    None: no comparison. ``supply`` has vectors of other stores, which are taken before anything is sent.
    """

    outcome: ScopeOutcome
    sample: Sequence[tuple[str, bytes]] | None
    opened: Callable[[], AbstractContextManager[Scope]]
    supply: Supply | None = None


class RunHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What the command does around the embedding."""

    #: Called once the embedder has proved to be the right one, before anything is sent.
    prepare: Callable[[], None] = lambda: None
    #: Context of the filling of all parts; it gets the ledger, which other backfills of the store share.
    recorded: Callable[[Ledger], AbstractContextManager[None]] = lambda _: nullcontext()
    #: Whether the run has written anything other than vectors.
    has_begun: Callable[[], bool] = lambda: False


class EmbeddingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an embedder over parts of a store. Single use.

    Args:
        path: the path that the user gave.
        store: the store that the parts belong to, or will belong to.
        parts: filled in this order.
        progress: notified of each text.
        limits: the most that may be sent; probes count against the cost only.
        hooks: what the command does around the embedding.
        sends: whether texts are sent. Otherwise parts only get what their supply has.
    """

    path: Path
    store: Store
    parts: Sequence[FillPart]
    progress: Progress
    limits: Limits = msgspec.field(default_factory=Limits)
    hooks: RunHooks = msgspec.field(default_factory=RunHooks)
    sends: bool = True

    @property
    def written(self) -> int:
        """The number of vectors written so far."""
        return sum(part.outcome.filled.newly_ready for part in self.parts)

    def run(self, embedder: Embedder) -> None:
        """Fill every part and complete its outcome.

        Raises:
            AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder cannot be used.
            BackfillStopped, BackfillInterrupted: vectors written before stay.
            RegraftError: see :func:`report_stops`.
        """
        settings, meter = embedder.settings, BudgetedEmbedder(embedder, self.limits)
        sentences: list[bytes] = []
        with report_stops(self.path, settings.name, lambda: self.written, self.hooks.has_begun):
            try:
                meter.charge(self._probe(embedder, meter.gauge, sentences))
            except LimitReached as reached:
                for part in self.parts:
                    part.outcome.filled.stopped = str(reached)
                    part.outcome.cost = cost_of(part.outcome.tokens, settings)
                return
            self.hooks.prepare()
            with (
                share_store(self.store) as shared,
                WorkerPool(settings.name, meter, settings.parallel) as workers,
                self.hooks.recorded(shared.ledger),
            ):
                digest = probing.settings_digest(embedder.settings)
                self._compare_with_other_runs(settings.name, sentences, shared)
                for part in self.parts:
                    probe = part.outcome.probe
                    if digest is not None and probe is not None and not probe.remembered:
                        shared.queue.remember_probe(part.outcome.scope, digest, probe.texts, probe.cosine)
                for part in self.parts:
                    with part.opened() as scope:
                        if part.supply is not None:
                            part.supply.copy_to(scope, part.outcome)
                        self._fill(scope, part, embedder, workers, meter, shared)

    def _compare_with_other_runs(self, name: str, sentences: Sequence[bytes], shared: SharedStore) -> None:
        """Check that runs which fill a part without vectors at the same time have the same model.

        ``name`` is that of the embedder, ``sentences`` its vectors from the comparison with itself.

        Raises:
            EmbedderDiffers
        """
        for part in self.parts:
            if sentences and part.sample is not None and not part.sample:
                others = shared.queue.share_sentences(part.outcome.scope, b"".join(sentences))
                probing.demand_same_sentences(name, part.outcome.name, sentences, others)

    def _probe(self, embedder: Embedder, gauge: TokenGauge, sentences: list[bytes]) -> int:
        """Compare the embedder with the vectors of every part and its supply; returns the number of tokens sent.

        A comparison that an interrupted run paid for is not repeated while the embedder's settings are the same.
        ``gauge`` learns how the server counts tokens. ``sentences`` is set to the vectors of the sentences, if the
        embedder is compared with itself.

        Raises:
            LimitReached: the probes would cost more than ``--max-cost``. Outcomes have what was sent before.
        """
        meter = BudgetedEmbedder(embedder, Limits(cost=self.limits.cost), gauge)
        keep: probing.KeepVectors = partial(sentences.__setitem__, slice(None))
        known = self._known_probes(embedder)
        meter.demand_affordable(self._count_probe_tokens(embedder, known))
        results: dict[tuple[int | None, tuple[tuple[str, bytes], ...]], probing.Probe] = {}
        for part in self.parts:
            outcome = part.outcome
            if part.sample is None:
                continue
            # Parts with equal samples, or without vectors, are compared once.
            key = outcome.dimensions, tuple(part.sample)
            if outcome.scope in known:
                texts, cosine = known[outcome.scope]
                outcome.probe = probing.Probe(texts=texts, cosine=cosine, requests=0, tokens=0, remembered=True)
            elif key in results:
                outcome.probe = structs.replace(results[key], requests=0, tokens=0)
            else:
                requests, tokens = meter.requests, meter.tokens
                try:
                    probe = probing.compare_with_base(
                        embedder, outcome.name, part.sample, outcome.dimensions, meter, keep
                    )
                except LimitReached:
                    if meter.requests > requests:
                        outcome.probe = probing.Probe(
                            texts=0, cosine=0.0, requests=meter.requests - requests, tokens=meter.tokens - tokens
                        )
                    raise
                results[key] = outcome.probe = probe
        for part in self.parts:
            requests, tokens = meter.requests, meter.tokens
            try:
                if part.supply is not None:
                    part.supply.compare(embedder, meter)
                    part.outcome.reused_from = part.supply.outcomes()
            finally:
                part.outcome.requests += meter.requests - requests
                part.outcome.tokens += meter.tokens - tokens
        return meter.tokens

    def _count_probe_tokens(self, embedder: Embedder, known: Collection[str]) -> int:
        """Estimate the tokens of all comparisons but those of the scopes in ``known``."""
        parts = [part for part in self.parts if part.sample is not None and part.outcome.scope not in known]
        samples = {(part.outcome.dimensions, tuple(part.sample or ())) for part in parts}
        batch = embedder.settings.batch
        texts = [
            text
            for _, sample in samples
            for text in [one for one, _ in probing.texts_for_probe(sample, embedder.tokens, batch)]
            or 2 * probing.SENTENCES
        ]
        for part in self.parts:
            canaries = () if part.supply is None else part.supply.canaries
            texts += [text for canary in canaries for text, _ in canary.texts(embedder)]
        return sum(map(embedder.tokens, texts))

    def _known_probes(self, embedder: Embedder) -> dict[str, tuple[int, float]]:
        """Return the comparisons that an unfinished run recorded: by scope, the number of texts and their cosine."""
        path, digest = self.store.own_folder / queue.QUEUE_FILE, probing.settings_digest(embedder.settings)
        if digest is None or not path.exists():
            return {}
        try:
            with queue.open_queue(path) as waiting:
                found = {part.outcome.scope: waiting.known_probe(part.outcome.scope, digest) for part in self.parts}
        except (RegraftError, apsw.Error, OSError):
            # share_store replaces a queue that cannot be read.
            return {}
        return {scope: probe for scope, probe in found.items() if probe is not None}

    def _fill(
        self,
        scope: Scope,
        part: FillPart,
        embedder: Embedder,
        workers: WorkerPool,
        meter: BudgetedEmbedder,
        shared: SharedStore,
    ) -> None:
        """Send the texts of one scope and complete its outcome, also if :meth:`Filling.run` raises.

        Args:
            scope: the scope, open for writing.
            part: the scope's outcome and its supply.
            embedder: the embedder.
            workers: the threads that send.
            meter: what was sent so far, and the limits.
            shared: the ledger and the queue of the store.
        """
        outcome = part.outcome
        outcome.started_at = identity.now_ms()
        filled = outcome.filled
        requests, tokens = meter.requests, meter.tokens
        if self.sends:
            lacking = scope.lacking()
            shared.queue.fill(scope.name, lacking if part.supply is None else part.supply.sendable(lacking))
        outcome.retried = outcome.survey.failed or shared.queue.failed_before(scope.name)
        filling = Filling(
            scope=scope,
            embedder=embedder,
            queue=shared.queue,
            workers=workers,
            meter=meter,
            progress=self.progress,
            filled=filled,
        )
        try:
            if self.sends:
                with stage(self.progress, "Embedding", shared.queue.waiting(scope.name), "texts"):
                    self.progress.at(scope.label)
                    filling.run()
        finally:
            outcome.completed_at = identity.now_ms()
            others_wrote = filled.newly_ready + filled.failed < outcome.survey.lacking and filled.stopped is None
            outcome.ready = scope.survey().ready if others_wrote else outcome.survey.ready + filled.newly_ready
            outcome.failures = shared.queue.failures(scope.name)
            outcome.requests += meter.requests - requests
            outcome.tokens += meter.tokens - tokens
            outcome.cost = cost_of(outcome.tokens, embedder.settings)


# --- errors ----------------------------------------------------------------------------------------------------------


@contextmanager
def report_stops(
    path: Path, embedder: str, written: Callable[[], int], has_begun: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Context that turns what stops a run into an error with the number of written vectors, which stay.

    Args:
        path: the path that the user gave.
        embedder: the embedder's name.
        written: returns the number of vectors written so far.
        has_begun: returns whether anything else was written.

    Raises:
        BackfillInterrupted, BackfillStopped: the run was interrupted or stopped.
        StoppedAtDamage: a file is damaged, and something was written before.
        StoreDamaged, SidecarUnfit: a file is damaged, and nothing was written.
        RegraftError: refused before anything was written, or the embedder cannot be used.
    """
    try:
        try:
            yield
        except (KeyboardInterrupt, Exception) as error:
            # An interrupt may surface as another error, of a library that it interrupted.
            if interrupts.is_caused_by_stop(error):
                raise BackfillInterrupted(written=written()) from error
            raise
    except ServerFailing as error:
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=embedder, reason=error.reason.rstrip("."))
        raise BackfillStopped(path=path, reason=reason, written=written()) from error
    except Unanswered as error:
        raise BackfillStopped(path=path, reason=str(error), written=written()) from error
    except RegraftError as error:
        if (written() or has_begun()) and error.exit_status == REFUSED:
            raise BackfillStopped(path=path, reason=str(error).rstrip("."), written=written()) from error
        raise
    except (SidecarProblem, OSError, apsw.Error, UnicodeDecodeError) as error:
        raise _file_error(path, error, written(), has_begun()) from error


def _file_error(path: Path, error: Exception, written: int, has_begun: bool) -> RegraftError:
    """Make the error for a file that is damaged, or that the system does not allow to be read or written.

    ``written`` is the number of vectors written so far, ``has_begun`` whether anything else was.
    """
    reason = getattr(error, "strerror", None) or str(error)
    kept = tr("vectors: {written}", written=written) if written or has_begun else None
    if isinstance(error, SidecarProblem):
        if kept is None and not isinstance(error.__cause__, apsw.IOError):
            return SidecarUnfit(path=path, reason=error)
        reason = tr("the file of the vectors: {error}", error=error)
    elif is_store_damage(error):
        return damage_error(path, reason, kept)
    return BackfillStopped(path=path, reason=reason, written=written)
