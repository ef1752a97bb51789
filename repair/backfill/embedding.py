"""How one run embeds what lacks a vector: it probes the model, then fills one scope after the other.

It is the same for what has its vectors in the store, for a base that is being restored, and for vectors that wait until
a collection is built. What differs is handed in: what is filled, how that is opened, and what is done around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from regraft import clock
from regraft.embedders import Embedder
from regraft.errors import RegraftError
from regraft.ledger.ledger import Ledger
from regraft.report.progress import Progress, stage
from repair.backfill import probing, queue
from repair.backfill.budget import Budget, LimitReached, Limits
from repair.backfill.estimate import cost_of
from repair.backfill.filling import Filling
from repair.backfill.outcome import Outcome
from repair.backfill.queue import Queue
from repair.backfill.scope import Scope
from repair.backfill.sharing import Shared, shared
from repair.backfill.stopping import stops_whole
from repair.backfill.workers import WorkerPool
from repair.changes.store import Store


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One scope that a run fills: what came of it, what it is compared by, and how it is opened for writing.

    ``sample`` has texts with their vectors; it is empty where there are none yet, and None where nothing is compared.
    """

    outcome: Outcome
    sample: Sequence[tuple[str, bytes]] | None
    opened: Callable[[], AbstractContextManager[Scope]]


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does besides embedding, where it does anything."""

    #: Done once the embedder is known to be the right one.
    prepare: Callable[[], None] = lambda: None
    #: Surrounds the filling of all parts, with the ledger that is shared with other backfills.
    recorded: Callable[[Ledger], AbstractContextManager[None]] = lambda _: nullcontext()
    #: Tells whether anything but vectors was written.
    has_begun: Callable[[], bool] = lambda: False


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an embedder over parts of a store; used once.

    Args:
        path: what the user named.
        store: what the parts are of, or are going to be of.
        parts: what is filled, in this order.
        progress: told of each text.
        limits: how much is sent at most; probes count against the cost alone.
        around: what is done besides.
    """

    path: Path
    store: Store
    parts: Sequence[Part]
    progress: Progress
    limits: Limits = msgspec.field(default_factory=Limits)
    around: Around = msgspec.field(default_factory=Around)

    @property
    def written(self) -> int:
        """Return how many vectors were written."""
        return sum(part.outcome.filled.newly_ready for part in self.parts)

    def run(self, embedder: Embedder) -> None:
        """Fill every part, and say in its outcome what came of it.

        Raises:
            AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder does not do.
            BackfillStopped, BackfillInterrupted: what was written before stays.
            RegraftError: as for :func:`repair.backfill.stopping.stops_whole`.
        """
        settings, meter = embedder.settings, Budget(embedder, self.limits)
        with stops_whole(self.path, settings.name, lambda: self.written, self.around.has_begun):
            try:
                meter.charge(self._probe(embedder))
            except LimitReached as reached:
                for part in self.parts:
                    part.outcome.filled.stopped = str(reached)
                return
            self.around.prepare()
            with (
                shared(self.store) as together,
                WorkerPool(settings.name, meter, settings.parallel) as workers,
                self.around.recorded(together.ledger),
            ):
                self._remember_probes(together.queue, embedder)
                for part in self.parts:
                    with part.opened() as scope:
                        _fill(scope, part.outcome, embedder, workers, meter, together, self.progress)

    def _probe(self, embedder: Embedder) -> int:
        """Compare the embedder with the vectors of every part, and return how many tokens that took.

        A comparison that an interrupted run paid for is not repeated while the embedder's settings are the same.

        Raises:
            LimitReached: the probes would cost more than the run may.
        """
        meter = Budget(embedder, Limits(cost=self.limits.cost))
        known = self._known_probes(embedder)
        proven: dict[tuple[int | None, tuple[tuple[str, bytes], ...]], probing.Probe] = {}
        for part in self.parts:
            outcome = part.outcome
            if part.sample is None:
                continue
            # Vectors that several bases share, and an embedder's answers to our own sentences, are compared once.
            key = outcome.dimensions, tuple(part.sample)
            if outcome.scope in known:
                texts, cosine = known[outcome.scope]
                outcome.probe = probing.Probe(texts=texts, cosine=cosine, requests=0, tokens=0, remembered=True)
            elif key in proven:
                outcome.probe = structs.replace(proven[key], requests=0, tokens=0)
            else:
                proven[key] = probing.proof(embedder, outcome.name, part.sample, outcome.dimensions, meter)
                outcome.probe = proven[key]
        return meter.tokens

    def _known_probes(self, embedder: Embedder) -> dict[str, tuple[int, float]]:
        """Return the results of probes that an unfinished run recorded, by scope."""
        path, digest = self.store.own / queue.FILE, probing.fingerprint(embedder.settings)
        if digest is None or not path.exists():
            return {}
        try:
            with queue.opened(path) as waiting:
                found = {part.outcome.scope: waiting.known_probe(part.outcome.scope, digest) for part in self.parts}
        except (RegraftError, apsw.Error, OSError):
            # A queue that cannot be read is made again by whoever shares the store next.
            return {}
        return {scope: probe for scope, probe in found.items() if probe is not None}

    def _remember_probes(self, waiting: Queue, embedder: Embedder) -> None:
        digest = probing.fingerprint(embedder.settings)
        for part in self.parts:
            probe = part.outcome.probe
            if digest is not None and probe is not None and not probe.remembered:
                waiting.remember_probe(part.outcome.scope, digest, probe.texts, probe.cosine)


def _fill(
    scope: Scope,
    outcome: Outcome,
    embedder: Embedder,
    workers: WorkerPool,
    meter: Budget,
    together: Shared,
    progress: Progress,
) -> None:
    """Fill one scope that is open for writing, and say in ``outcome`` what came of it.

    Raises:
        As :meth:`repair.backfill.filling.Filling.run` does.
    """
    outcome.started_at = clock.now_ms()
    filled = outcome.filled
    requests, tokens = meter.requests, meter.tokens
    together.queue.fill(scope.name, scope.lacking())
    outcome.retried = outcome.survey.failed or together.queue.failed_before(scope.name)
    filling = Filling(
        scope=scope,
        embedder=embedder,
        queue=together.queue,
        workers=workers,
        meter=meter,
        progress=progress,
        filled=filled,
    )
    try:
        with stage(progress, "Embedding", together.queue.waiting(scope.name), "texts"):
            progress.at(scope.label)
            filling.run()
    finally:
        outcome.completed_at = clock.now_ms()
        others_wrote = filled.newly_ready + filled.failed < outcome.survey.lacking and filled.stopped is None
        outcome.ready = scope.survey().ready if others_wrote else outcome.survey.ready + filled.newly_ready
        outcome.failures = together.queue.failures(scope.name)
        outcome.requests, outcome.tokens = meter.requests - requests, meter.tokens - tokens
        outcome.cost = cost_of(outcome.tokens, embedder.settings)
