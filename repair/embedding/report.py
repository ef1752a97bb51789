"""Documents of ``backfill``, ``rebuild``, ``restore`` and AngelMemory's ``reconcile`` (``docs/commands.md``).

:class:`ScopeOutcome` collects the results of one scope while a run fills it; the reports are made from it.
"""

from __future__ import annotations

import msgspec
from msgspec import structs

from regraft.embedders.settings import EmbedderSettings
from regraft.identity import iso_time
from regraft.report.document import Report, Suggestion
from repair.changes.plan import Action, Unresolved
from repair.changes.run import BaseName, ChangeReport
from repair.embedding.probing import Probe
from repair.embedding.queue import Failure
from repair.embedding.scope import TextCounts


class EmbedderName(msgspec.Struct, frozen=True, kw_only=True):
    """The name of an embedder in the configuration, and its model."""

    name: str
    model: str

    @classmethod
    def of(cls, settings: EmbedderSettings) -> EmbedderName:
        """Take name and model from the settings of a configured embedder."""
        return cls(name=settings.name, model=settings.model)


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Texts, tokens and requests that a run would send, and their cost; None if the embedder has no price.

    ``shared`` counts further texts that get the vector of an equal text of another base: a text is paid for once.
    ``reused`` counts those that get a vector of a source of ``--reuse``; of the texts that are sent, ``compared`` are
    only compared with the vectors of such sources.
    """

    texts: int
    tokens: int
    requests: int
    cost: float | None
    currency: str
    shared: int = 0
    reused: int = 0
    compared: int = 0

    def plus(self, other: Estimate) -> Estimate:
        """Return the sum of two estimates: texts, tokens, requests and cost. Its other counts are 0."""
        cost = None if self.cost is None or other.cost is None else self.cost + other.cost
        texts, tokens = self.texts + other.texts, self.tokens + other.tokens
        return Estimate(
            texts=texts, tokens=tokens, requests=self.requests + other.requests, cost=cost, currency=self.currency
        )


class ReusedVectors(msgspec.Struct, kw_only=True):
    """What a scope takes from one base of a source, or why it takes nothing (``reason``).

    ``planned`` vectors are to be taken, ``reused`` were. ``compared`` texts proved the model.
    """

    source: str
    base: str | None
    model_id: str | None
    planned: int = 0
    reused: int = 0
    compared: int = 0
    reason: str | None = None


def cost_of(tokens: int, settings: EmbedderSettings) -> float | None:
    """Return the cost of a number of tokens, or None if the embedder has no price."""
    price = settings.price_per_million_tokens
    return None if price is None else tokens * price / 1_000_000


def format_cost(cost: float, currency: str) -> str:
    """Format an amount of money with its currency, for people."""
    digits = ".2f" if cost >= 0.1 else ".2g"
    return f"{cost:{digits}} {currency}"


def empty_estimate(settings: EmbedderSettings) -> Estimate:
    """Return the estimate of sending nothing."""
    return Estimate(texts=0, tokens=0, requests=0, cost=cost_of(0, settings), currency=settings.currency)


class ScopeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one scope; times are ISO 8601, costs in the currency of the price."""

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
    reused: int
    reused_from: list[ReusedVectors]
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
    """What a backfill did, or would do. ``undo`` is the id of the run to undo; None if nothing was written.

    ``embedder`` is missing in a dry run without a configured embedder; ``suggestion`` is then the configuration.
    """

    embedder: EmbedderName | None
    bases: list[BaseName]
    scopes: list[ScopeReport]
    actions: list[Action]
    left: list[Unresolved]
    undo: str | None
    suggestion: Suggestion | None = None


class EmbeddingReport(ChangeReport, kw_only=True):
    """What a change did that embedded texts first. ``embedder`` is missing if none was needed or configured.

    ``suggestion`` is the configuration to write if none is configured; ``missing`` names what has to be installed
    first.
    """

    embedder: EmbedderName | None
    scopes: list[ScopeReport]
    suggestion: Suggestion | None = None
    missing: str | None = None


# --- one scope -------------------------------------------------------------------------------------------------------


class FillCounts(msgspec.Struct):
    """Counts of one scope in one run. ``stopped`` is why some of its texts were not sent; None: all were."""

    processed_pending: int = 0
    processed_stale: int = 0
    newly_ready: int = 0
    failed: int = 0
    stopped: str | None = None


class ScopeOutcome(msgspec.Struct, kw_only=True):
    """The results of one scope so far; times in ms."""

    scope: str
    name: str
    model_id: str | None
    dimensions: int | None
    survey: TextCounts
    planned: Estimate
    filled: FillCounts = msgspec.field(default_factory=FillCounts)
    failures: list[Failure] = msgspec.field(default_factory=list)
    #: Texts that have a vector at the end, whether this run wrote it or another one.
    ready: int | None = None
    retried: int = 0
    #: Texts that got the vector of an equal text of another base of this model.
    shared: int = 0
    #: Texts that got a vector of a source of ``--reuse``.
    reused: int = 0
    reused_from: list[ReusedVectors] = msgspec.field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    cost: float | None = None
    probe: Probe | None = None
    started_at: int | None = None
    completed_at: int | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the scope was filled and each of its texts has a vector."""
        return self.completed_at is not None and self.ready == self.survey.eligible

    def report(self) -> ScopeReport:
        """Convert the results to their form in the report."""
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
            reused=self.reused,
            reused_from=self.reused_from,
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


def make_embedding_report(
    done: ChangeReport, settings: EmbedderSettings | None, outcome: ScopeOutcome | None
) -> EmbeddingReport:
    """Make the report of a change that embedded texts from the report of the change itself.

    ``settings`` are those of the embedder, ``outcome`` the results of its scope; None: nothing was embedded.
    """
    embedder = None if settings is None else EmbedderName.of(settings)
    scopes = [] if outcome is None else [outcome.report()]
    return EmbeddingReport(**structs.asdict(done), embedder=embedder, scopes=scopes)
