"""What backfill is going to do: which bases it fills, what they lack, and what that takes. Nothing is written."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from checks.audit.findings import UNREADABLE
from regraft import embedders
from regraft.embedders.settings import DEFAULT_MODEL, EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import DimensionsMissing, EmbedderUnnamed, RegraftError
from regraft.identity import replace
from regraft.language import tr
from regraft.report.suggestion import Suggestion
from regraft.text import path_argument
from repair.changes.plan import Plan, Unresolved
from repair.changes.session import reading_store
from repair.changes.store import Store
from repair.embedding import probing
from repair.embedding.filling import (
    Estimate,
    ExpectedTexts,
    SizedText,
    empty_estimate,
    estimate_sending,
    sized_new_units,
)
from repair.embedding.report import ScopeOutcome
from repair.embedding.scope import BackfillOptions, CannotFill, ChooseEmbedder, Filler, PreparationStep, Scope, Target

# Looking without an embedder: what a run would send, and the configuration that it needs (``docs/embedders.md``).


#: Commands that say what they would send although nobody has said to whom.
_COMMANDS = {"backfill", "rebuild"}


class UnnamedEmbedder(EmbedderSettings, frozen=True, kw_only=True):
    """Stands for the embedder that nobody has named: it is of every model, and has no price."""


def unnamed_embedder(models: Iterable[str]) -> UnnamedEmbedder:
    """Return what stands for an embedder of these models; where there are none, of the one that is suggested."""
    return UnnamedEmbedder(name="", model=DEFAULT_MODEL, model_ids=tuple(sorted(models)))


def choose_settings(choose: ChooseEmbedder, store: Store, filler: Filler, options: BackfillOptions) -> EmbedderSettings:
    """Return the embedder that is meant; for a dry run without any, what stands for it.

    Raises:
        EmbedderUnnamed: there is none; its fact ``suggestion`` says what to write into the configuration.
        RegraftError: as ``choose`` raises it.
    """
    models = filler.models(store, options)
    try:
        return choose(models)
    except EmbedderUnnamed as error:
        if options.command not in _COMMANDS or not is_unconfigured(error):
            raise
        if options.dry_run:
            return unnamed_embedder(models or known_models(store, filler, options))
        needs = needed_models(store, filler, options)
        raise add_suggestion(error, suggest_config(needs, options.config, command_line(options))) from error


def is_unconfigured(error: EmbedderUnnamed) -> bool:
    """Tell whether no embedder is configured at all, so that the user has nothing to choose from."""
    return error.facts.get("count") == 0


def add_suggestion(error: EmbedderUnnamed, suggestion: Suggestion) -> EmbedderUnnamed:
    """Return the error with what to write into the configuration."""
    return EmbedderUnnamed(**{**error.facts, "suggestion": suggestion})


def known_models(store: Store, filler: Filler, options: BackfillOptions) -> frozenset[str]:
    """Return the models of the vectors that are there, where any model would do."""
    with suppress(RegraftError):
        return filler.models(store, replace(options, command="backfill"))
    return frozenset()


def needed_models(store: Store, filler: Filler, options: BackfillOptions) -> list[ModelNeed]:
    """Return the vectors that what is meant needs: of which model, and how long; nothing is written."""
    with reading_store(store):
        models = filler.models(store, options) or known_models(store, filler, options)
        return [
            _need(target, store.root) for target in filler.targets(store, unnamed_embedder(models), options).targets
        ]


def _need(target: Target, root: Path) -> ModelNeed:
    dimensions = None
    with suppress(CannotFill, RegraftError, apsw.Error, OSError, ValueError), target.opened(root) as scope:
        dimensions = scope.dimensions
    return ModelNeed(model_id=target.model_id, dimensions=dimensions, label=target.label)


def command_line(options: BackfillOptions) -> str:
    """Return the command line that asks for the same, and is no dry run."""
    words = ["regraft", options.command, path_argument(options.path)]
    for base in options.bases:
        words += ["--base", base]
    if options.new is not None:
        words += ["--model", options.new.model_id]
    if options.dimensions is not None:
        words += ["--dimensions", str(options.dimensions)]
    if options.all_projects:
        words.append("--all-projects")
    if options.config is not None:
        words += ["--config", path_argument(options.config)]
    return shlex.join(words)


#: How many texts are looked up in another base at once.
_AT_ONCE = 256


class SurveyedTarget(msgspec.Struct, kw_only=True):
    """A target as it was looked at: nothing was written."""

    target: Target
    outcome: ScopeOutcome
    #: Texts with their vectors, to be compared; None where nothing is going to be embedded.
    sample: list[tuple[str, bytes]] | None
    expected: ExpectedTexts


class BackfillSurvey(msgspec.Struct, kw_only=True):
    """What a run is going to do."""

    seen: list[SurveyedTarget]
    left: list[Unresolved]
    #: What is done before anything is embedded, as far as it is known.
    first: Plan
    #: Makes the plans of that anew, one after the other.
    steps: tuple[PreparationStep, ...]

    @property
    def is_needed(self) -> bool:
        """Tell whether there is anything to do."""
        return bool(self.first.changes) or any(
            one.outcome.survey.lacking or one.target.is_new or one.target.is_unfinished for one in self.seen
        )


def survey_store(store: Store, filler: Filler, settings: EmbedderSettings, options: BackfillOptions) -> BackfillSurvey:
    """Return what a run is going to do.

    Raises:
        ModelDiffers, ModelSet: see :func:`~repair.cherry_v2.index_vectors.index_targets`.
        DimensionsMissing: nobody knows how long the vectors of a base are to be.
        RegraftError: it cannot be looked at.
    """
    with reading_store(store):
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
    expected = ExpectedTexts(shares_with_itself=target.shares_with_itself)
    if target.base_id in first.bodies:
        expected.coming = sized_new_units(scope, first.bodies[target.base_id](), tokens_of)
    # Blank texts are not sent.
    is_embedded = next(expected.sized(scope, tokens_of), None) is not None
    is_known = scope.dimensions is not None or isinstance(settings, UnnamedEmbedder)
    if not is_known and is_embedded and target.needs_dimensions:
        raise DimensionsMissing(base=target.label)
    outcome = ScopeOutcome(
        scope=scope.name,
        name=target.label,
        model_id=target.model_id,
        dimensions=scope.dimensions,
        survey=expected.survey(scope),
        planned=empty_estimate(settings),
    )
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if options.probes and (is_embedded or target.is_new):
        sample = scope.sample(probing.SAMPLE_SIZE)
    return SurveyedTarget(target=target, outcome=outcome, sample=sample, expected=expected)


def vector_kind(one: SurveyedTarget) -> tuple[str | None, int | None]:
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
            groups.setdefault(vector_kind(one), []).append(one)
        free = {kind: self._free(group) if len(group) > 1 else set() for kind, group in groups.items()}
        there = {kind: frozenset(keys) for kind, keys in free.items()}
        sent = empty_estimate(self.settings)
        for one in self.seen.seen:
            kind = vector_kind(one)
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
            planned = estimate_sending(sized, self.settings, self.options.limits, sent)
            # What is sent for one is not sent again for the next.
            one.expected.free.update(keys)
            one.outcome.planned = structs.replace(planned, shared=one.expected.shared)


def _noting(sized: Iterator[SizedText], keys: list[str]) -> Iterator[SizedText]:
    for key, size in sized:
        keys.append(key)
        yield key, size


@contextmanager
def _readable(target: Target, left: list[Unresolved]) -> Iterator[None]:
    """Leave a base that cannot be filled as it is; the others go on."""
    try:
        yield
    except CannotFill as unfit:
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
