"""What backfill did, or would do, as documents have it (``docs/commands.md``, "backfill")."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from regraft.clock import iso_time
from repair.backfill.estimate import Estimate
from repair.backfill.filling import Filled
from repair.backfill.probing import Probe
from repair.backfill.queue import Failure
from repair.backfill.scope import Survey


@dataclass(kw_only=True)
class Outcome:
    """What became of one scope; times in ms."""

    scope: str
    name: str
    model_id: str | None
    dimensions: int | None
    survey: Survey
    planned: Estimate
    filled: Filled = field(default_factory=Filled)
    failures: list[Failure] = field(default_factory=list)
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

    def document(self) -> dict[str, Any]:
        """Return it as a document has it."""
        return {
            "scope": self.scope,
            "name": self.name,
            "model_id": self.model_id,
            "dimensions": self.dimensions,
            "eligible": self.survey.eligible,
            "skipped_ready": self.survey.ready,
            "processed_pending": self.filled.processed_pending,
            "processed_stale": self.filled.processed_stale,
            "retried_failed": self.retried,
            "newly_ready": self.filled.newly_ready,
            "shared": self.shared,
            "ready": self.survey.ready if self.ready is None else self.ready,
            "failed": self.filled.failed,
            "failures": [asdict(failure) for failure in self.failures],
            "stopped": self.filled.stopped,
            "started_at": None if self.started_at is None else iso_time(self.started_at),
            "completed_at": None if self.completed_at is None else iso_time(self.completed_at),
            "requests": self.requests,
            "tokens": self.tokens,
            "cost": self.cost,
            "planned": self.planned.document(),
            "probe": None if self.probe is None else asdict(self.probe),
        }
