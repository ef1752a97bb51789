"""What a backfill would do: which bases it fills, how many texts lack a vector, and what sending them takes.

Nothing is written and nothing is sent. Without a configured embedder, :class:`UnnamedEmbedder` takes its place, and
the survey says which configuration is needed (``docs/embedders.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from heapq import merge
from itertools import groupby, islice
from operator import itemgetter

import apsw
import msgspec
from msgspec import structs

from checks.audit.findings import UNREADABLE
from regraft import embedders
from regraft.embedders.settings import DEFAULT_MODEL, EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import DimensionsMissing, EmbedderUnnamed, RegraftError
from regraft.identity import replace
from regraft.language import tr
from regraft.report.document import Suggestion
from regraft.text import join_command, path_argument
from repair.changes.plan import Plan, Unresolved
from repair.changes.session import reading_store
from repair.changes.store import Store
from repair.embedding import probing
from repair.embedding.budget import Limits
from repair.embedding.report import Estimate, ScopeOutcome, cost_of, empty_estimate
from repair.embedding.reuse import Reuse, Supply
from repair.embedding.scope import (
    BackfillOptions,
    CannotFill,
    ChooseEmbedder,
    Filler,
    PreparationStep,
    Publication,
    Scope,
    Target,
    TextCounts,
    texts_to_send,
)
from repair.embedding.sender import pack_batches

#: Texts held in memory, or looked up in another base, at a time.
_CHUNK = 256
#: Commands whose dry run works without a configured embedder.
_COMMANDS = {"backfill", "rebuild"}

#: Counts the tokens of a text.
TokenCounter = Callable[[str], int]
#: The key of a text, and its tokens.
SizedText = tuple[str, int]


# --- the embedder ----------------------------------------------------------------------------------------------------


class UnnamedEmbedder(EmbedderSettings, frozen=True, kw_only=True):
    """Takes the place of an embedder that is not configured: it serves any model and has no price."""


def unnamed_embedder(models: Iterable[str]) -> UnnamedEmbedder:
    """Return a stand-in that serves these models; without any, the suggested one."""
    return UnnamedEmbedder(name="", model=DEFAULT_MODEL, model_ids=tuple(sorted(models)))


def choose_settings(choose: ChooseEmbedder, store: Store, filler: Filler, options: BackfillOptions) -> EmbedderSettings:
    """Choose the settings of the configured embedder.

    Without one, a dry run or a run with sources of vectors gets a stand-in.

    Raises:
        EmbedderUnnamed: none is configured; its fact ``suggestion`` is the configuration to write.
        RegraftError: raised by ``choose``.
    """
    models = filler.models(store, options)
    try:
        return choose(models)
    except EmbedderUnnamed as error:
        works_without = options.command in _COMMANDS or (options.command == "sync" and options.reuse)
        if not works_without or not is_unconfigured(error):
            raise
        if options.dry_run or options.reuse:
            return unnamed_embedder(models or known_models(store, filler, options))
        needs = needed_models(store, filler, options)
        raise add_suggestion(error, suggest_config(needs, options.config, command_line(options))) from error


def is_unconfigured(error: EmbedderUnnamed) -> bool:
    """Whether the error says that the configuration has no embedder at all."""
    return error.facts.get("count") == 0


def add_suggestion(error: EmbedderUnnamed, suggestion: Suggestion) -> EmbedderUnnamed:
    """Return a copy of the error that suggests a configuration to write."""
    return EmbedderUnnamed(**{**error.facts, "suggestion": suggestion})


def known_models(store: Store, filler: Filler, options: BackfillOptions) -> frozenset[str]:
    """Return the models of the vectors in a store, for a command that accepts any model; empty if they are unknown."""
    with suppress(RegraftError):
        return filler.models(store, replace(options, command="backfill"))
    return frozenset()


def needed_models(store: Store, filler: Filler, options: BackfillOptions) -> list[ModelNeed]:
    """Return the model and the vector length that each target needs. Reads only."""
    with reading_store(store):
        models = filler.models(store, options) or known_models(store, filler, options)
        needs = []
        for target in filler.targets(store, unnamed_embedder(models), options).targets:
            dimensions = None
            with (
                suppress(CannotFill, RegraftError, apsw.Error, OSError, ValueError),
                target.open_scope(store.root) as scope,
            ):
                dimensions = scope.dimensions
            needs.append(ModelNeed(model_id=target.model_id, dimensions=dimensions, label=target.label))
        return needs


def command_line(options: BackfillOptions) -> str:
    """Return the shell command with these options, without ``--dry-run``."""
    words = ["regraft", options.command, path_argument(options.path)]
    for base in options.bases:
        words += ["--base", base]
    if options.new is not None:
        words += ["--model", options.new.model_id]
    if options.dimensions is not None:
        words += ["--dimensions", str(options.dimensions)]
    if options.all_projects:
        words.append("--all-projects")
    for source in options.reuse:
        words += ["--reuse", path_argument(source.path)] if source.is_required else []
    if options.config is not None:
        words += ["--config", path_argument(options.config)]
    return join_command(words)


# --- texts and estimates ---------------------------------------------------------------------------------------------


class ExpectedTexts(msgspec.Struct):
    """The texts of one scope that a run will send, including those of units that it creates first.

    ``coming`` maps the keys of new units without a vector to their tokens. ``free`` has the keys of texts that get the
    vector of an equal text: one that another base has already (``there``), or one that the run sends for an earlier
    scope.
    """

    coming: dict[str, int] = msgspec.field(default_factory=dict)
    free: set[str] = msgspec.field(default_factory=set)
    there: frozenset[str] = frozenset()
    #: Vectors that are taken from other stores (``--reuse``).
    supply: Supply | None = None
    #: Whether the vectors of this scope are in one file with those of other scopes.
    is_file_shared: bool = False
    #: Texts that get the vector of an equal text, and of another store; set by :meth:`texts_to_send`.
    shared: int = 0
    reused: int = 0

    def survey(self, scope: Scope) -> TextCounts:
        """Count the texts of a scope as they will be once new units are created."""
        found = scope.survey()
        new = len(self.coming.keys() - set(scope.texts(list(self.coming))))
        return TextCounts(ready=found.ready, pending=found.pending + new, stale=found.stale, failed=found.failed)

    def texts_to_send(self, scope: Scope, tokens_of: TokenCounter) -> Iterator[SizedText]:
        """Yield key and tokens of the texts that are sent, ordered by key, and count those that get a known vector."""
        self.shared = self.reused = 0
        every = merge(measure_texts_without_vector(scope, tokens_of), sorted(self.coming.items()))
        distinct = (next(group) for _, group in groupby(every, key=itemgetter(0)))
        while chunk := list(islice(distinct, _CHUNK)):
            keys = [key for key, _ in chunk]
            free = self.free.intersection(keys)
            if self.is_file_shared:
                free |= scope.vectors(keys).keys()
            self.shared += len(free)
            if self.supply is not None:
                reused = self.supply.known(keys) - free
                self.reused += len(reused)
                free |= reused
            yield from ((key, tokens) for key, tokens in chunk if key not in free)


def measure_texts_without_vector(scope: Scope, tokens_of: TokenCounter) -> Iterator[SizedText]:
    """Yield key and tokens of the texts of a scope that lack a vector, without blank ones."""
    keys = scope.lacking()
    while chunk := list(islice(keys, _CHUNK)):
        for key, text in texts_to_send(scope.texts(chunk)).items():
            yield key, tokens_of(text.text or "")


def count_new_unit_tokens(scope: Scope, bodies: Iterable[tuple[str, str]], tokens_of: TokenCounter) -> dict[str, int]:
    """Map the hashes of new texts that have no vector in the scope to their number of tokens.

    ``bodies`` are pairs of hash and text; ``tokens_of`` counts the tokens of a text.
    """
    found = {}
    bodies = iter(bodies)
    while chunk := dict(islice(bodies, _CHUNK)):
        ready = scope.vectors(list(chunk))
        found.update({key: tokens_of(text) for key, text in chunk.items() if key not in ready})
    return found


def estimate_sending(
    sized: Iterable[SizedText], settings: EmbedderSettings, limits: Limits, sent: Estimate
) -> Estimate:
    """Estimate the requests and the cost of sending texts, up to the limits.

    Args:
        sized: the texts, in the order in which they are sent.
        settings: the embedder's.
        limits: those of the run.
        sent: what the run sends before these texts.

    Raises:
        apsw.Error: the scope is damaged.
    """
    texts = tokens = requests = 0
    for batch in pack_batches(sized, settings.batch):
        sizes = [size for _, size in batch]
        if limits.texts is not None:
            del sizes[max(0, limits.texts - sent.texts - texts) :]
        size = sum(sizes)
        cost = cost_of(sent.tokens + tokens + size, settings) or 0.0
        if (
            not sizes
            or (limits.requests is not None and sent.requests + requests >= limits.requests)
            or (limits.cost is not None and cost > limits.cost)
        ):
            break
        texts, tokens, requests = texts + len(sizes), tokens + size, requests + 1
    return Estimate(
        texts=texts,
        tokens=tokens,
        requests=requests,
        cost=cost_of(tokens, settings),
        currency=settings.currency,
    )


def estimate_outcome(
    scope: Scope,
    settings: EmbedderSettings,
    tokens_of: TokenCounter,
    *,
    name: str,
    model_id: str | None,
    dimensions: int | None,
    supply: Supply | None = None,
) -> ScopeOutcome:
    """Start the outcome of a scope that is filled alone, with an estimate of what is sent. Reads only.

    Args:
        scope: opened.
        settings: the embedder's.
        tokens_of: counts the tokens of a text.
        name: the display name of the scope.
        model_id: the model of its vectors, or None if unknown.
        dimensions: the length of its vectors, or None if unknown.
        supply: vectors that are taken from other stores.
    """
    expected = ExpectedTexts(supply=supply)
    planned = estimate_expected(expected, scope, settings, tokens_of, Limits(), empty_estimate(settings))
    return ScopeOutcome(
        scope=scope.name,
        name=name,
        model_id=model_id,
        dimensions=dimensions,
        survey=scope.survey(),
        planned=planned,
        reused_from=[] if supply is None else supply.outcomes(),
    )


def estimate_expected(
    expected: ExpectedTexts,
    scope: Scope,
    settings: EmbedderSettings,
    tokens_of: TokenCounter,
    limits: Limits,
    sent: Estimate,
    keys: list[str] | None = None,
) -> Estimate:
    """Estimate what is sent for a scope, including texts that are only compared.

    Args:
        expected: the texts of the scope.
        scope: opened.
        settings: the embedder's.
        tokens_of: counts the tokens of a text.
        limits: those of the run; compared texts count against the cost only.
        sent: what the run sends before.
        keys: the keys of the texts that get a vector are added to this list; None: not needed.
    """
    canaries = [] if expected.supply is None else expected.supply.canaries
    compared = empty_estimate(settings)
    for canary in canaries:
        sizes = [(text, tokens_of(text)) for text, _ in canary.sample]
        one = estimate_sending(sizes, settings, Limits(cost=limits.cost), sent.plus(compared))
        compared = compared.plus(one)
    sized = expected.texts_to_send(scope, tokens_of)
    if keys is not None:
        sized = _collect_keys(sized, keys)
    before = structs.replace(sent.plus(compared), texts=sent.texts)
    planned = estimate_sending(sized, settings, limits, before).plus(compared)
    return structs.replace(planned, shared=expected.shared, reused=expected.reused, compared=compared.texts)


# --- the survey ------------------------------------------------------------------------------------------------------


class SurveyedTarget(msgspec.Struct, kw_only=True):
    """A target of a backfill, with the first part of its outcome and the texts that the run will send for it."""

    target: Target
    outcome: ScopeOutcome
    #: Texts with their vectors that the embedder is compared by; None: no comparison, since nothing is embedded.
    sample: list[tuple[str, bytes]] | None
    expected: ExpectedTexts


class BackfillSurvey(msgspec.Struct, kw_only=True):
    """What a run will do."""

    targets: list[SurveyedTarget]
    left: list[Unresolved]
    #: The plan of the first preparation step; the plans of later ones depend on it.
    first: Plan
    #: Steps before anything is embedded; each makes its plan when it is run.
    steps: tuple[PreparationStep, ...]
    #: The step after it, if the vectors are collected outside of the store.
    publication: Publication | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.first.changes) or any(
            one.outcome.survey.lacking or one.target.is_new or one.target.is_unfinished for one in self.targets
        )

    @property
    def sends(self) -> bool:
        """Whether any text has to be embedded, be it only to compare vectors."""
        return any(one.sample is not None or one.outcome.planned.texts for one in self.targets)


def _texts_of_plan(plan: Plan, base: str) -> Callable[[], Iterable[tuple[str, str]]]:
    """Return a function that yields the texts that a plan adds to a base, as pairs of hash and text."""
    return plan.bodies.get(base, lambda: ())


def survey_store(
    store: Store,
    filler: Filler,
    settings: EmbedderSettings,
    options: BackfillOptions,
    reuse: Reuse | None = None,
) -> BackfillSurvey:
    """Survey all targets in a store that an embedder can fill; ``reuse`` has vectors of other stores.

    Raises:
        ModelDiffers, ModelSet: see :func:`~repair.cherry_v2.index_vectors.index_targets`.
        DimensionsMissing: the vector length of a base without vectors is unknown.
        ReuseDiffers: vectors of other stores are not those of the model.
        RegraftError: the store cannot be read.
    """
    with reading_store(store):
        found = filler.targets(store, settings, options)
        first = found.steps[0].planner(store) if found.steps else Plan()
    survey = BackfillSurvey(
        targets=[], left=list(found.left), first=first, steps=found.steps, publication=found.publication
    )
    if reuse is not None:
        for target in found.targets:
            coming = _texts_of_plan(first, target.base_id)
            # What cannot be opened is reported below.
            with _skip_unfit(target, []), target.open_scope(store.root) as scope:
                reuse.want(scope, target.model_id, settings, (key for key, _ in coming()))
        reuse.load()
    for target in found.targets:
        with _skip_unfit(target, survey.left), target.open_scope(store.root) as scope:
            survey.targets.append(_survey_target(scope, target, settings, options, first, reuse))
    _Estimator(store=store, survey=survey, settings=settings, options=options).run()
    return survey


def _survey_target(
    scope: Scope,
    target: Target,
    settings: EmbedderSettings,
    options: BackfillOptions,
    first: Plan,
    reuse: Reuse | None,
) -> SurveyedTarget:
    """Count the texts of a target that lack a vector, and those that will be embedded, reused or compared.

    Args:
        scope: the target's texts and vectors.
        target: the target.
        settings: the embedder's.
        options: the user's.
        first: the plan of the first preparation step, which may add texts.
        reuse: vectors of other stores, or None.
    """
    target.demand_fit(scope)
    tokens_of = embedders.counter(settings)
    expected = ExpectedTexts(is_file_shared=target.is_file_shared)
    if target.base_id in first.bodies:
        expected.coming = count_new_unit_tokens(scope, first.bodies[target.base_id](), tokens_of)
    if reuse is not None:
        can_embed = not isinstance(settings, UnnamedEmbedder)
        expected.supply = reuse.supply(scope, _texts_of_plan(first, target.base_id), can_embed=can_embed)
    canaries = () if expected.supply is None else expected.supply.canaries
    # False if all texts without a vector are blank, or get that of another store.
    is_embedded = next(expected.texts_to_send(scope, tokens_of), None) is not None
    is_length_known = scope.dimensions is not None or isinstance(settings, UnnamedEmbedder)
    if not is_length_known and is_embedded and target.needs_dimensions:
        raise DimensionsMissing(base=target.label)
    outcome = ScopeOutcome(
        scope=scope.name,
        name=target.label,
        model_id=target.model_id,
        dimensions=scope.dimensions,
        survey=expected.survey(scope),
        planned=empty_estimate(settings),
        reused_from=[] if expected.supply is None else expected.supply.outcomes(),
    )
    sample: list[tuple[str, bytes]] | None = [] if target.is_new else None
    if options.probes and (is_embedded or canaries or target.is_new):
        sample = scope.sample(probing.SAMPLE_SIZE)
    return SurveyedTarget(target=target, outcome=outcome, sample=sample, expected=expected)


def vector_kind(surveyed: SurveyedTarget) -> tuple[str | None, int | None]:
    """Return model and vector length of a target: vectors of targets with equal values are interchangeable.

    For an unknown model, the file takes its place.
    """
    return surveyed.target.model_id or surveyed.target.files[0], surveyed.outcome.dimensions


class _Estimator(msgspec.Struct, kw_only=True):
    """Estimates what a run sends for each target; a text that several targets have is sent once."""

    store: Store
    survey: BackfillSurvey
    settings: EmbedderSettings
    options: BackfillOptions

    def run(self) -> None:
        """Set the ``planned`` estimate of every outcome."""
        groups: dict[tuple[str | None, int | None], list[SurveyedTarget]] = {}
        for one in self.survey.targets:
            groups.setdefault(vector_kind(one), []).append(one)
        free = {kind: self._find_free(group) if len(group) > 1 else set() for kind, group in groups.items()}
        there = {kind: frozenset(keys) for kind, keys in free.items()}
        sent = empty_estimate(self.settings)
        for one in self.survey.targets:
            kind = vector_kind(one)
            one.expected.free, one.expected.there = free[kind], there[kind]
            self._estimate(one, sent, is_alone=len(groups[kind]) == 1)
            sent = sent.plus(one.outcome.planned)

    def _find_free(self, group: list[SurveyedTarget]) -> set[str]:
        """Return the keys of texts that a target of the group lacks and that another target of it has a vector for."""
        wanted: set[str] = set()
        for one in group:
            with _skip_unfit(one.target, self.survey.left), one.target.open_scope(self.store.root) as scope:
                wanted.update(scope.lacking(), one.expected.coming)
        found: set[str] = set()
        # Those that are compared in any case come first.
        for one in sorted(group, key=self._is_unproven):
            if not wanted or one.target.is_file_shared:
                continue
            with _skip_unfit(one.target, self.survey.left), one.target.open_scope(self.store.root) as scope:
                more: set[str] = set()
                keys = iter(sorted(wanted - found))
                while chunk := list(islice(keys, _CHUNK)):
                    more.update(scope.vectors(chunk))
                if self._is_unproven(one):
                    # It lacks nothing. Comparing it must not cost more than it saves.
                    if len(more) <= probing.SAMPLE_SIZE:
                        continue
                    one.sample = scope.sample(probing.SAMPLE_SIZE)
                found |= more
        return found

    def _is_unproven(self, one: SurveyedTarget) -> bool:
        """Whether a target is not compared with the embedder, although comparisons are made."""
        return one.sample is None and self.options.probes

    def _estimate(self, one: SurveyedTarget, sent: Estimate, *, is_alone: bool) -> None:
        """Set the estimate of what is sent for a target after ``sent``; texts of earlier targets need no request.

        ``is_alone``: no other target shares its vectors.
        """
        with _skip_unfit(one.target, self.survey.left), one.target.open_scope(self.store.root) as scope:
            keys: list[str] = []
            one.outcome.planned = estimate_expected(
                one.expected,
                scope,
                self.settings,
                embedders.counter(self.settings),
                self.options.limits,
                sent,
                None if is_alone else keys,
            )
            # Later targets get these vectors for free.
            one.expected.free.update(keys)


def _collect_keys(sized: Iterator[SizedText], keys: list[str]) -> Iterator[SizedText]:
    """Yield texts (key, tokens) unchanged, and append their keys to a list."""
    for key, size in sized:
        keys.append(key)
        yield key, size


@contextmanager
def _skip_unfit(target: Target, left: list[Unresolved]) -> Iterator[None]:
    """Context that adds a target which cannot be filled to ``left``, with the finding that says why."""
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
