"""Giving a base that is restored its vectors, before it comes into its place (``docs/restore.md``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from checks.cherry_v2 import findings as v2
from regraft import embedders, sqlite
from regraft.embedders import Embedder
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import Declined, DimensionsMissing
from regraft.language import tr
from regraft.report.progress import Progress
from repair.backfill.budget import Budget, Limits
from repair.backfill.embedding import Embedding, Part
from repair.backfill.outcome import Outcome, embedding_report, estimated
from repair.backfill.report import EmbeddingReport, ScopeReport
from repair.backfill.stopping import stops_whole
from repair.backfill.workers import CONTROL
from repair.changes.store import recognised
from repair.cherry_v2.backfill import scope as backfill_scope
from repair.cherry_v2.restore import RestoredBase, RestoreOptions, restore
from repair.cherry_v2.restore.run import whole_of


@dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """What is to be restored, and with which embedder; ``dimensions`` None: as many as its vectors turn out to have."""

    path: Path
    settings: EmbedderSettings
    model_id: str
    dimensions: int | None
    name: str | None
    base: str | None
    now_ms: int
    kind: Any = None


def restored(
    asked: RestoreRequest,
    *,
    dry_run: bool,
    progress: Progress,
    show_plan: Callable[[ScopeReport], bool] = lambda _: True,
) -> EmbeddingReport:
    """Make a new base of an old one's texts, with vectors of a new model; returns what was done.

    Args:
        asked: what is to be restored.
        dry_run: say what would be sent; nothing is sent or written.
        progress: told of each item, and of each text.
        show_plan: called with what is going to be sent before anything is; False stops here.

    Raises:
        DimensionsMissing: in a dry run, nobody knows how long the vectors are to be.
        EmbedderUnsteady, AnswerUnfit, EmbedderRefused: the embedder does not do.
        BackfillStopped, BackfillInterrupted: what was embedded is kept for the next run.
        RegraftError: see :func:`repair.cherry_v2.restore.restore`.
    """
    if dry_run:
        if asked.dimensions is None:
            raise DimensionsMissing(base=asked.model_id)
        return _Filler(asked=asked, embedder=None, progress=progress, show_plan=show_plan).restored(asked.dimensions)
    with embedders.opened(asked.settings) as embedder:
        filler = _Filler(asked=asked, embedder=embedder, progress=progress, show_plan=show_plan)
        with stops_whole(asked.path, asked.settings.name, lambda: filler.written):
            return filler.restored(asked.dimensions or _dimensions(embedder))


def _dimensions(embedder: Embedder) -> int:
    return len(Budget(embedder, Limits()).embedded((CONTROL,))[0]) // 4


@dataclass(kw_only=True)
class _Filler:
    """Restores one base; without an embedder it only looks."""

    asked: RestoreRequest
    embedder: Embedder | None
    progress: Progress
    show_plan: Callable[[ScopeReport], bool]
    outcome: Outcome | None = None

    @property
    def written(self) -> int:
        """Return how many vectors were written."""
        return 0 if self.outcome is None else self.outcome.filled.newly_ready

    def restored(self, dimensions: int) -> EmbeddingReport:
        """Restore it."""
        asked = self.asked
        wanted = RestoredBase(asked.model_id, dimensions, asked.name)
        options = RestoreOptions(base=asked.base, wanted=wanted, now_ms=asked.now_ms, kind=asked.kind)
        done = restore(
            asked.path,
            options,
            lambda index: self._fill(index, dimensions),
            dry_run=self.embedder is None,
            progress=self.progress,
        )
        if self.embedder is None:
            # That they are not there yet is what is shown.
            left = [one for one in done.left if one.finding != v2.VECTOR_MISSING]
            done = structs.replace(done, left=left)
        return embedding_report(done, asked.settings, self.outcome)

    def _fill(self, index: Path, dimensions: int) -> None:
        asked = self.asked
        with sqlite.reading(index) as db:
            base: Any = db.execute("SELECT base_id FROM meta").get
        label = asked.name or tr("The new base")
        opened = partial(backfill_scope.opened, index, str(base), label=label, dimensions=dimensions)
        settings = asked.settings
        with opened() as scope:
            tokens_of = embedders.counter(settings)
            self.outcome = outcome = estimated(
                scope, settings, tokens_of, name=scope.label, model_id=asked.model_id, dimensions=dimensions
            )
        if self.embedder is None or not outcome.survey.lacking:
            return
        if not self.show_plan(outcome.report()):
            raise Declined(path=asked.path)
        # The new base has no vectors yet: what comes back must not depend on where in a request a text stands.
        part = Part(outcome=outcome, sample=(), opened=partial(opened, writable=True))
        root, _ = whole_of(asked.path, asked.base)
        kind = asked.kind if root == asked.path else None
        with recognised(root, kind, "restore") as store:
            Embedding(path=asked.path, store=store, parts=[part], progress=self.progress).run(self.embedder)
