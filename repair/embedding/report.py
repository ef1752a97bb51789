"""What a run embedded, or would embed, as its document has it (``docs/commands.md``, "backfill")."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import structs

from regraft.embedders.settings import EmbedderSettings
from regraft.identity import iso_time
from regraft.report.document import Report
from regraft.report.suggestion import Suggestion
from repair.changes.plan import Action, Unresolved
from repair.changes.run import BaseName, ChangeReport
from repair.embedding.budget import Limits
from repair.embedding.filling import Estimate, FillCounts, empty_estimate, estimate_sending, sized_texts_without_vector
from repair.embedding.probing import Probe
from repair.embedding.queue import Failure
from repair.embedding.scope import Scope, TextCounts


class EmbedderName(msgspec.Struct, frozen=True, kw_only=True):
    """An embedder: what the user calls it, and its model."""

    name: str
    model: str

    @classmethod
    def of(cls, settings: EmbedderSettings) -> EmbedderName:
        """Return what a configured embedder is called."""
        return cls(name=settings.name, model=settings.model)


class ScopeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the texts of one scope; times are ISO 8601, costs in the currency of the price."""

    scope: str
    name: str
    model_id: str | None
    dimensions: int | None
    eligible: int
    skipped_ready: int
    processed_pending: int
    processed_stale: int
    retried_failed: int
    newly_ready: int
    shared: int
    ready: int
    failed: int
    failures: list[Failure]
    stopped: str | None
    started_at: str | None
    completed_at: str | None
    requests: int
    tokens: int
    cost: float | None
    planned: Estimate
    probe: Probe | None


class BackfillReport(Report, kw_only=True):
    """What a backfill did, or would do: ``undo`` is the run that can be taken back, None where nothing can.

    ``embedder`` is None for a dry run without any; ``suggestion`` says then what it takes.
    """

    embedder: EmbedderName | None
    bases: list[BaseName]
    scopes: list[ScopeReport]
    actions: list[Action]
    left: list[Unresolved]
    undo: str | None
    suggestion: Suggestion | None = None


class EmbeddingReport(ChangeReport, kw_only=True):
    """What a change did for which texts were embedded first; ``embedder`` None: none was needed, or named.

    ``suggestion`` says what it takes where none is configured, ``missing`` what is to be installed before a run.
    """

    embedder: EmbedderName | None
    scopes: list[ScopeReport]
    suggestion: Suggestion | None = None
    missing: str | None = None


# What became of one scope while it was filled.


class ScopeOutcome(msgspec.Struct, kw_only=True):
    """What became of one scope; times in ms."""

    scope: str
    name: str
    model_id: str | None
    dimensions: int | None
    survey: TextCounts
    planned: Estimate
    filled: FillCounts = msgspec.field(default_factory=FillCounts)
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


def estimate_outcome(
    scope: Scope,
    settings: EmbedderSettings,
    tokens_of: Callable[[str], int],
    *,
    name: str,
    model_id: str | None,
    dimensions: int | None,
) -> ScopeOutcome:
    """Return what filling a scope alone would come to; nothing is written.

    Args:
        scope: opened.
        settings: the embedder's.
        tokens_of: counts the tokens of a text.
        name: what a person calls the scope.
        model_id: the model of its vectors, None where nothing says so.
        dimensions: of its vectors, None where nobody knows.
    """
    planned = estimate_sending(
        sized_texts_without_vector(scope, tokens_of), settings, Limits(), empty_estimate(settings)
    )
    return ScopeOutcome(
        scope=scope.name,
        name=name,
        model_id=model_id,
        dimensions=dimensions,
        survey=scope.survey(),
        planned=planned,
    )


def make_embedding_report(
    done: ChangeReport, settings: EmbedderSettings | None, outcome: ScopeOutcome | None
) -> EmbeddingReport:
    """Return what a change did, with what was embedded for it, if anything was."""
    embedder = None if settings is None else EmbedderName.of(settings)
    scopes = [] if outcome is None else [outcome.report()]
    return EmbeddingReport(**structs.asdict(done), embedder=embedder, scopes=scopes)
