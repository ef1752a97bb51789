"""What backfill is going to do: which bases it fills, what they lack, and what that takes. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import apsw

from checks.audit.file_findings import UNREADABLE
from regraft import embedders
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import DimensionsMissing, RegraftError
from regraft.language import tr
from repair.backfill import probing
from repair.backfill.budget import Limits
from repair.backfill.estimate import Estimate, estimate, nothing
from repair.backfill.outcome import Outcome, estimated
from repair.backfill.request import BackfillOptions
from repair.backfill.scope import Filler, Scope, Step, Target, Unfit
from repair.changes.plan import Plan, Unresolved
from repair.changes.session import looking
from repair.changes.store import Store


@dataclass
class SurveyedTarget:
    """A target as it was looked at: nothing was written."""

    target: Target
    outcome: Outcome
    #: Texts with their vectors, to be compared; None where nothing is going to be embedded.
    sample: list[tuple[str, bytes]] | None


@dataclass(kw_only=True)
class BackfillSurvey:
    """What a run is going to do."""

    seen: list[SurveyedTarget]
    left: list[Unresolved]
    #: What is done before anything is embedded, as far as it is known.
    first: Plan
    #: Makes the plans of that anew, one after the other.
    steps: tuple[Step, ...]

    @property
    def is_needed(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.first.changes) or any(
            one.outcome.survey.lacking or one.target.is_new or one.target.is_unfinished for one in self.seen
        )


def look(store: Store, filler: Filler, settings: EmbedderSettings, options: BackfillOptions) -> BackfillSurvey:
    """Return what a run is going to do.

    Raises:
        ModelDiffers, ModelSet: see :func:`~repair.cherry_v2.backfill.targets.targets_of`.
        DimensionsMissing: nobody knows how long the vectors of a base are to be.
        RegraftError: it cannot be looked at.
    """
    with looking(store):
        found = filler.targets(store, settings, options)
        first = found.steps[0].planner(store) if found.steps else Plan()
    seen = BackfillSurvey(seen=[], left=list(found.left), first=first, steps=found.steps)
    made = {action.base for action in first.actions}
    sent = nothing(settings)
    for target in found.targets:
        with _readable(target, seen.left), target.opened(store.root) as scope:
            one = _seen(scope, target, settings, options, sent, target.base_id in made)
            sent = sent.plus(one.outcome.planned)
            seen.seen.append(one)
    return seen


def _seen(
    scope: Scope, target: Target, settings: EmbedderSettings, options: BackfillOptions, sent: Estimate, is_indexed: bool
) -> SurveyedTarget:
    target.demand_fit(scope)
    tokens_of = embedders.counter(settings)
    # Blank texts are not sent.
    is_embedded = is_indexed or estimate(scope, settings, tokens_of, Limits(texts=1), nothing(settings)).texts > 0
    if scope.dimensions is None and is_embedded and target.needs_dimensions:
        raise DimensionsMissing(base=target.label)
    outcome = estimated(
        scope,
        settings,
        tokens_of,
        name=target.label,
        model_id=target.model_id,
        dimensions=scope.dimensions,
        limits=options.limits,
        sent=sent,
    )
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if options.probes and (is_embedded or target.is_new):
        sample = scope.sample(probing.SAMPLE)
    return SurveyedTarget(target, outcome, sample)


@contextmanager
def _readable(target: Target, left: list[Unresolved]) -> Iterator[None]:
    """Leave a base that cannot be filled as it is; the others go on."""
    try:
        yield
    except Unfit as unfit:
        finding, reason = unfit.finding, str(unfit)
    except RegraftError as error:
        named = target.finding_of(error)
        if named is None:
            raise
        finding, reason = named, str(error)
    except (apsw.Error, OSError, ValueError) as error:
        finding, reason = UNREADABLE, tr("{files} cannot be read: {error}", files=target.files[0], error=error)
    else:
        return
    left.append(Unresolved.registered(finding, reason, base=target.base_id, subject=target.files[0]))
