"""What became of one scope while it was filled."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import structs

from regraft.clock import iso_time
from regraft.embedders.settings import EmbedderSettings
from repair.backfill.budget import Limits
from repair.backfill.estimate import Estimate, estimate, nothing
from repair.backfill.expected import lacking
from repair.backfill.filling import Filled
from repair.backfill.probing import Probe
from repair.backfill.queue import Failure
from repair.backfill.report import EmbedderName, EmbeddingReport, ScopeReport
from repair.backfill.scope import Scope, Survey
from repair.changes.report import ChangeReport


class Outcome(msgspec.Struct, kw_only=True):
    """What became of one scope; times in ms."""

    scope: str
    name: str
    model_id: str | None
    dimensions: int | None
    survey: Survey
    planned: Estimate
    filled: Filled = msgspec.field(default_factory=Filled)
    failures: list[Failure] = msgspec.field(default_factory=list)
    #: How many texts have a vector afterwards, whoever wrote it.
    ready: int | None = None
    retried: int = 0
    #: How many texts took the vector that an equal text of another base of this model has.
    shared: int = 0
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    probe: Probe | None = None
    started_at: int | None = None
    completed_at: int | None = None

    @property
    def is_whole(self) -> bool:
        """Tell whether it was filled, and no text is left without a vector."""
        return self.completed_at is not None and self.ready == self.survey.eligible

    def report(self) -> ScopeReport:
        """Return it as a document has it."""
        return ScopeReport(
            scope=self.scope,
            name=self.name,
            model_id=self.model_id,
            dimensions=self.dimensions,
            eligible=self.survey.eligible,
            skipped_ready=self.survey.ready,
            processed_pending=self.filled.processed_pending,
            processed_stale=self.filled.processed_stale,
            retried_failed=self.retried,
            newly_ready=self.filled.newly_ready,
            shared=self.shared,
            ready=self.survey.ready if self.ready is None else self.ready,
            failed=self.filled.failed,
            failures=self.failures,
            stopped=self.filled.stopped,
            started_at=None if self.started_at is None else iso_time(self.started_at),
            completed_at=None if self.completed_at is None else iso_time(self.completed_at),
            requests=self.requests,
            tokens=self.tokens,
            cost=self.cost,
            planned=self.planned,
            probe=self.probe,
        )


def estimated(
    scope: Scope,
    settings: EmbedderSettings,
    tokens_of: Callable[[str], int],
    *,
    name: str,
    model_id: str | None,
    dimensions: int | None,
) -> Outcome:
    """Return what filling a scope alone would come to; nothing is written.

    Args:
        scope: opened.
        settings: the embedder's.
        tokens_of: counts the tokens of a text.
        name: what a person calls the scope.
        model_id: the model of its vectors, None where nothing says so.
        dimensions: of its vectors, None where nobody knows.
    """
    planned = estimate(lacking(scope, tokens_of), settings, Limits(), nothing(settings))
    return Outcome(
        scope=scope.name,
        name=name,
        model_id=model_id,
        dimensions=dimensions,
        survey=scope.survey(),
        planned=planned,
    )


def embedding_report(done: ChangeReport, settings: EmbedderSettings | None, outcome: Outcome | None) -> EmbeddingReport:
    """Return what a change did, with what was embedded for it, if anything was."""
    embedder = None if settings is None else EmbedderName.of(settings)
    scopes = [] if outcome is None else [outcome.report()]
    return EmbeddingReport(**structs.asdict(done), embedder=embedder, scopes=scopes)
