"""What a run embedded, or would embed, as its document has it (``docs/commands.md``, "backfill")."""

from __future__ import annotations

import msgspec

from regraft.embedders.settings import EmbedderSettings
from regraft.report.document import Report
from regraft.suggestion import Suggestion
from repair.backfill.estimate import Estimate
from repair.backfill.probing import Probe
from repair.backfill.queue import Failure
from repair.changes.plan import Action, Unresolved
from repair.changes.report import BaseName, ChangeReport


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
