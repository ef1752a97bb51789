"""What backfill is going to do: which bases it fills, what they lack, and what that takes. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from checks import v2_findings as v2
from checks.findings import FINDINGS
from regraft import clock, embedders
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import DimensionsMissing, IndexForeign, IndexIncomplete, IndexVersionUnknown, RegraftError
from regraft.locate import Kind
from repair import indexing
from repair.backfill import index_scope, probing
from repair.backfill.estimate import Estimate, estimate, nothing
from repair.backfill.index_scope import IndexScope
from repair.backfill.meter import Limits
from repair.backfill.outcome import Outcome
from repair.backfill.targets import NewModel, Target, targets_of
from repair.plan import Left, Plan
from repair.store import Store


@dataclass(frozen=True)
class Wish:
    """What the user asks for: which store and bases, how much, and the model of bases that have none."""

    path: Path
    kind: Kind | None = None
    bases: tuple[str, ...] = ()
    dry_run: bool = False
    limits: Limits = field(default_factory=Limits)
    new: NewModel | None = None
    #: Of vectors where no catalog says so.
    dimensions: int | None = None
    probes: bool = True


@dataclass
class Seen:
    """A target as it was looked at: nothing was written."""

    target: Target
    outcome: Outcome
    #: Texts with their vectors, to be compared; None where nothing is going to be embedded.
    sample: list[tuple[str, bytes]] | None


@dataclass
class Look:
    """What a run is going to do."""

    seen: list[Seen]
    left: list[Left]
    #: Making units of texts that have none, before anything is embedded.
    indexing: Plan

    @property
    def is_needed(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.indexing.changes) or any(one.outcome.survey.lacking or one.target.is_new for one in self.seen)


def look(store: Store, settings: EmbedderSettings, wish: Wish) -> Look:
    """Return what a run is going to do.

    Raises:
        ModelDiffers, ModelSet: see :func:`~repair.backfill.targets.targets_of`.
        DimensionsMissing: nobody knows how long the vectors of a base are to be.
        RegraftError: it cannot be looked at.
    """
    found = targets_of(store, settings, wish.new, wish.dimensions)
    seen = Look([], list(found.left), making_units(store, {target.base_id for target in found.targets}))
    indexed = {action.base for action in seen.indexing.actions}
    sent = nothing(settings)
    for target in found.targets:
        with _readable(target, seen.left):
            with index_scope.opened(
                store.root / target.path,
                target.base_id,
                is_placed=target.is_placed,
                label=target.label,
                dimensions=target.dimensions,
            ) as scope:
                one = _seen(scope, target, settings, wish, sent, target.base_id in indexed)
            sent = sent.plus(one.outcome.planned)
            seen.seen.append(one)
    return seen


def making_units(store: Store, bases: set[str]) -> Plan:
    """Return the plan that makes units of texts that have none, of the bases that can be filled then."""
    return indexing.plan(store, clock.now_ms(), bases)


def _seen(
    scope: IndexScope, target: Target, settings: EmbedderSettings, wish: Wish, sent: Estimate, is_indexed: bool
) -> Seen:
    if scope.is_at_odds:
        is_said = target.dimensions == wish.dimensions
        who, advice = ("--dimensions says", "") if is_said else ("the catalog says", ": regraft repair first")
        reason = f"{who} {target.dimensions} dimensions, the vectors have {scope.dimensions}{advice}"
        raise _Unfit(v2.BASE_DIMENSIONS, reason)
    survey = scope.survey()
    tokens_of = embedders.counter(settings)
    # Blank texts are not sent.
    is_embedded = is_indexed or estimate(scope, settings, tokens_of, Limits(texts=1), nothing(settings)).texts > 0
    if scope.dimensions is None and is_embedded:
        raise DimensionsMissing(base=target.label)
    planned = estimate(scope, settings, tokens_of, wish.limits, sent)
    outcome = Outcome(target.base_id, target.label, target.model_id, scope.dimensions, survey, planned)
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if wish.probes and (is_embedded or target.is_new):
        sample = scope.sample(probing.SAMPLE)
    return Seen(target, outcome, sample)


class _Unfit(Exception):
    """A base that cannot be filled, with the finding that says why."""

    def __init__(self, finding: str, reason: str) -> None:
        super().__init__(reason)
        self.finding = finding


@contextmanager
def _readable(target: Target, left: list[Left]) -> Iterator[None]:
    """Leave a base that cannot be filled as it is; the others go on."""
    try:
        yield
    except _Unfit as unfit:
        finding, reason = unfit.finding, str(unfit)
    except IndexVersionUnknown as error:
        finding, reason = v2.SCHEMA_VERSION, str(error)
    except IndexIncomplete as error:
        finding, reason = v2.SCHEMA_MISSING, str(error)
    except IndexForeign as error:
        finding, reason = v2.META_BASE, str(error)
    except RegraftError:
        raise
    except (apsw.Error, OSError, ValueError) as error:
        finding, reason = v2.UNREADABLE, f"the index cannot be read: {error}"
    else:
        return
    left.append(Left(finding, reason, target.base_id, target.path, severity=FINDINGS[finding].severity))
