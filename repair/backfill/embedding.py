"""How one run embeds what lacks a vector: it probes the model, then fills one scope after the other.

It is the same for what has its vectors in the store, for a base that is being restored, and for vectors that wait until
a collection is built. What differs is handed in: what is filled, how that is opened, and what is done around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
from msgspec import structs

from regraft import clock
from regraft.embedders import Embedder
from regraft.ledger.ledger import Ledger
from regraft.report.progress import Progress, stage
from repair.backfill import probing
from repair.backfill.budget import Budget, Limits
from repair.backfill.estimate import cost_of
from repair.backfill.filling import Filling
from repair.backfill.outcome import Outcome
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
        limits: how much is sent at most; probes count against none.
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
            self._probe(embedder)
            self.around.prepare()
            with (
                shared(self.store) as together,
                WorkerPool(settings.name, meter, settings.parallel) as workers,
                self.around.recorded(together.ledger),
            ):
                for part in self.parts:
                    with part.opened() as scope:
                        _fill(scope, part.outcome, embedder, workers, meter, together, self.progress)

    def _probe(self, embedder: Embedder) -> None:
        """Look whether the embedder is the model of what is there; what that takes counts against no limit."""
        proven: dict[tuple[int | None, tuple[tuple[str, bytes], ...]], probing.Probe] = {}
        for part in self.parts:
            outcome = part.outcome
            if part.sample is None:
                continue
            # What it makes of words of its own is the same for every base, and of vectors that several share, too.
            key = outcome.dimensions, tuple(part.sample)
            if key in proven:
                outcome.probe = structs.replace(proven[key], requests=0, tokens=0)
            else:
                outcome.probe = proven[key] = probing.proof(embedder, outcome.name, part.sample, outcome.dimensions)


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
