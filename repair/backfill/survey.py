"""What backfill is going to do: which bases it fills, what they lack, and what that takes. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import apsw

from checks.audit.findings import FINDINGS
from checks.cherry_v2 import findings as v2
from regraft import embedders
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import DimensionsMissing, IndexForeign, IndexIncomplete, IndexVersionUnknown, RegraftError
from regraft.schema_errors import SchemaForeign
from repair.backfill import probing
from repair.backfill.budget import Limits
from repair.backfill.estimate import Estimate, estimate, nothing
from repair.backfill.kinds import FILLERS
from repair.backfill.outcome import Outcome
from repair.backfill.request import Wish
from repair.backfill.scope import Scope, Step, Target, Unfit
from repair.changes.plan import Left, Plan
from repair.changes.run import looking
from repair.changes.store import Store


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


def look(store: Store, settings: EmbedderSettings, wish: Wish) -> Look:
    """Return what a run is going to do.

    Raises:
        ModelDiffers, ModelSet: see :func:`~repair.cherry_v2.backfill.targets.targets_of`.
        DimensionsMissing: nobody knows how long the vectors of a base are to be.
        RegraftError: it cannot be looked at.
    """
    with looking(store):
        found = FILLERS[store.found.kind].targets(store, settings, wish)
        first = found.steps[0].planner(store) if found.steps else Plan()
    seen = Look([], list(found.left), first, found.steps)
    made = {action.base for action in first.actions}
    sent = nothing(settings)
    for target in found.targets:
        with _readable(target, seen.left), target.opened(store.root) as scope:
            one = _seen(scope, target, settings, wish, sent, target.base_id in made)
            sent = sent.plus(one.outcome.planned)
            seen.seen.append(one)
    return seen


def _seen(
    scope: Scope, target: Target, settings: EmbedderSettings, wish: Wish, sent: Estimate, is_indexed: bool
) -> Seen:
    target.demand_fit(scope)
    survey = scope.survey()
    tokens_of = embedders.counter(settings)
    # Blank texts are not sent.
    is_embedded = is_indexed or estimate(scope, settings, tokens_of, Limits(texts=1), nothing(settings)).texts > 0
    if scope.dimensions is None and is_embedded and target.needs_dimensions:
        raise DimensionsMissing(base=target.label)
    planned = estimate(scope, settings, tokens_of, wish.limits, sent)
    outcome = Outcome(target.base_id, target.label, target.model_id, scope.dimensions, survey, planned)
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if wish.probes and (is_embedded or target.is_new):
        sample = scope.sample(probing.SAMPLE)
    return Seen(target, outcome, sample)


@contextmanager
def _readable(target: Target, left: list[Left]) -> Iterator[None]:
    """Leave a base that cannot be filled as it is; the others go on."""
    try:
        yield
    except Unfit as unfit:
        finding, reason = unfit.finding, str(unfit)
    except IndexVersionUnknown as error:
        finding, reason = v2.SCHEMA_VERSION, str(error)
    except IndexIncomplete as error:
        finding, reason = v2.SCHEMA_MISSING, str(error)
    except IndexForeign as error:
        finding, reason = v2.META_BASE, str(error)
    except SchemaForeign as error:
        finding, reason = v2.FOREIGN_COLUMN, str(error)
    except RegraftError:
        raise
    except (apsw.Error, OSError, ValueError) as error:
        finding, reason = v2.UNREADABLE, f"{target.files[0]} cannot be read: {error}"
    else:
        return
    left.append(Left(finding, reason, target.base_id, target.files[0], severity=FINDINGS[finding].severity))
