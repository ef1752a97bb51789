"""What backfill is going to do: which bases it fills, what they lack, and what that takes. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import apsw
import msgspec
from msgspec import structs

from checks.audit.file_findings import UNREADABLE
from regraft import embedders
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import DimensionsMissing, RegraftError
from regraft.language import tr
from repair.backfill import probing
from repair.backfill.estimate import Estimate, estimate, nothing
from repair.backfill.expected import Expected, Sized, coming
from repair.backfill.outcome import Outcome
from repair.backfill.request import BackfillOptions
from repair.backfill.scope import Filler, Scope, Step, Target, Unfit
from repair.backfill.unnamed import StandIn
from repair.changes.plan import Plan, Unresolved
from repair.changes.session import looking
from repair.changes.store import Store

#: How many texts are looked up in another base at once.
_AT_ONCE = 256


class SurveyedTarget(msgspec.Struct, kw_only=True):
    """A target as it was looked at: nothing was written."""

    target: Target
    outcome: Outcome
    #: Texts with their vectors, to be compared; None where nothing is going to be embedded.
    sample: list[tuple[str, bytes]] | None
    expected: Expected


class BackfillSurvey(msgspec.Struct, kw_only=True):
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
    for target in found.targets:
        with _readable(target, seen.left), target.opened(store.root) as scope:
            seen.seen.append(_seen(scope, target, settings, options, first))
    _Estimating(store=store, seen=seen, settings=settings, options=options).run()
    return seen


def _seen(
    scope: Scope, target: Target, settings: EmbedderSettings, options: BackfillOptions, first: Plan
) -> SurveyedTarget:
    target.demand_fit(scope)
    tokens_of = embedders.counter(settings)
    expected = Expected(shares_with_itself=target.shares_with_itself)
    if target.base_id in first.bodies:
        expected.coming = coming(scope, first.bodies[target.base_id](), tokens_of)
    # Blank texts are not sent.
    is_embedded = next(expected.sized(scope, tokens_of), None) is not None
    is_known = scope.dimensions is not None or isinstance(settings, StandIn)
    if not is_known and is_embedded and target.needs_dimensions:
        raise DimensionsMissing(base=target.label)
    outcome = Outcome(
        scope=scope.name,
        name=target.label,
        model_id=target.model_id,
        dimensions=scope.dimensions,
        survey=expected.survey(scope),
        planned=nothing(settings),
    )
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if options.probes and (is_embedded or target.is_new):
        sample = scope.sample(probing.SAMPLE)
    return SurveyedTarget(target=target, outcome=outcome, sample=sample, expected=expected)


def kind_of(one: SurveyedTarget) -> tuple[str | None, int | None]:
    """Return what vectors have to have in common; an index without a catalog has nothing in common with others."""
    return one.target.model_id or one.target.files[0], one.outcome.dimensions


class _Estimating(msgspec.Struct, kw_only=True):
    """Says what a run sends for each target: a text that several of them have is sent once."""

    store: Store
    seen: BackfillSurvey
    settings: EmbedderSettings
    options: BackfillOptions

    def run(self) -> None:
        """Put it into the outcomes."""
        groups: dict[tuple[str | None, int | None], list[SurveyedTarget]] = {}
        for one in self.seen.seen:
            groups.setdefault(kind_of(one), []).append(one)
        free = {kind: self._free(group) if len(group) > 1 else set() for kind, group in groups.items()}
        there = {kind: frozenset(keys) for kind, keys in free.items()}
        sent = nothing(self.settings)
        for one in self.seen.seen:
            kind = kind_of(one)
            one.expected.free, one.expected.there = free[kind], there[kind]
            self._estimate(one, sent, is_alone=len(groups[kind]) == 1)
            sent = sent.plus(one.outcome.planned)

    def _free(self, group: list[SurveyedTarget]) -> set[str]:
        """Return the texts that some of these lack, and another one has whose vectors are going to be compared."""
        wanted: set[str] = set()
        for one in group:
            with _readable(one.target, self.seen.left), one.target.opened(self.store.root) as scope:
                wanted.update(scope.lacking(), one.expected.coming)
        found: set[str] = set()
        for one in group:
            if not wanted or one.target.shares_with_itself or (one.sample is None and self.options.probes):
                continue
            with _readable(one.target, self.seen.left), one.target.opened(self.store.root) as scope:
                keys = iter(sorted(wanted))
                while chunk := list(islice(keys, _AT_ONCE)):
                    found.update(scope.vectors(chunk))
        return found

    def _estimate(self, one: SurveyedTarget, sent: Estimate, *, is_alone: bool) -> None:
        with _readable(one.target, self.seen.left), one.target.opened(self.store.root) as scope:
            sized = one.expected.sized(scope, embedders.counter(self.settings))
            keys: list[str] = []
            if not is_alone:
                sized = _noting(sized, keys)
            planned = estimate(sized, self.settings, self.options.limits, sent)
            # What is sent for one is not sent again for the next.
            one.expected.free.update(keys)
            one.outcome.planned = structs.replace(planned, shared=one.expected.shared)


def _noting(sized: Iterator[Sized], keys: list[str]) -> Iterator[Sized]:
    for key, size in sized:
        keys.append(key)
        yield key, size


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
