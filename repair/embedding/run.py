"""``regraft backfill``: looking at what lacks a vector, filling it, and what came of it (``docs/backfill.md``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from regraft import embedders, identity
from regraft.embedders import Embedder, ServerFailing, Unanswered
from regraft.embedders.settings import EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import (
    REFUSED,
    BackfillInterrupted,
    BackfillStopped,
    Declined,
    RegraftError,
    SidecarUnfit,
    StoreNotWritable,
    TargetLocked,
)
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import UNDO
from regraft.processes import interrupts
from regraft.report.document import Run
from regraft.report.progress import Progress, stage
from regraft.report.suggestion import Suggestion
from regraft.stores.systems import SidecarProblem
from repair.changes.changesets import IncrementalChange
from repair.changes.plan import Action, Unresolved
from repair.changes.run import ChangeReport, Planner, base_names, run_command
from repair.changes.session import Session, damage_error, is_store_damage
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.embedding import probing, queue
from repair.embedding.budget import BudgetedEmbedder, LimitReached, Limits
from repair.embedding.filling import Filling, cost_of
from repair.embedding.queue import WAIT_SECONDS, SharedStore, TextQueue, share_store
from repair.embedding.report import BackfillReport, EmbedderName, ScopeOutcome
from repair.embedding.scope import BackfillOptions, ChooseEmbedder, Filler, PreparationStep, Scope, Target
from repair.embedding.survey import (
    BackfillSurvey,
    SurveyedTarget,
    UnnamedEmbedder,
    choose_settings,
    command_line,
    survey_store,
    vector_kind,
)
from repair.embedding.workers import WorkerPool

# What is said where something stops a run that has written vectors: these stay.


@contextmanager
def report_stops(
    path: Path, embedder: str, written: Callable[[], int], is_begun: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Say how many vectors were written where something stops the run.

    Args:
        path: what the user named.
        embedder: what the user calls the embedder.
        written: returns how many vectors were.
        is_begun: tells whether something else was.

    Raises:
        BackfillInterrupted, BackfillStopped: it was stopped.
        StoppedAtDamage: a file is damaged where it has to be read or written, and something was written before.
        StoreDamaged, SidecarUnfit: a file is damaged where it has to be read or written, and nothing was.
        RegraftError: it was refused before anything was written, or the embedder does not do.
    """
    try:
        with _stop_is_said(written):
            yield
    except ServerFailing as error:
        reason = tr("embedder {embedder} does not answer: {reason}", embedder=embedder, reason=error.reason)
        raise BackfillStopped(path=path, reason=reason, written=written()) from error
    except Unanswered as error:
        raise BackfillStopped(path=path, reason=str(error), written=written()) from error
    except RegraftError as error:
        if (written() or is_begun()) and error.exit_status == REFUSED:
            raise BackfillStopped(path=path, reason=str(error).rstrip("."), written=written()) from error
        raise
    except (SidecarProblem, OSError, apsw.Error, UnicodeDecodeError) as error:
        raise _of_a_file(path, error, written, is_begun) from error


@contextmanager
def _stop_is_said(written: Callable[[], int]) -> Iterator[None]:
    """Say of a stop that it was one, also where it tore something that then failed in its own way."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:
        if interrupts.is_caused_by_stop(error):
            raise BackfillInterrupted(written=written()) from error
        raise


def _of_a_file(path: Path, error: Exception, written: Callable[[], int], is_begun: Callable[[], bool]) -> RegraftError:
    """Return what is said where a file is damaged, or the system does not let it be read or written."""
    reason = getattr(error, "strerror", None) or str(error)
    stays = tr("vectors: {written}", written=written()) if written() or is_begun() else None
    if isinstance(error, SidecarProblem):
        if stays is None and not isinstance(error.__cause__, apsw.IOError):
            return SidecarUnfit(path=path, reason=error)
        reason = tr("the file of the vectors: {error}", error=error)
    elif is_store_damage(error):
        return damage_error(path, reason, stays)
    return BackfillStopped(path=path, reason=reason, written=written())


# How one run embeds what lacks a vector: it probes the model, then fills one scope after the other.
#
# It is the same for what has its vectors in the store, for a base that is being restored, and for vectors that wait until
# a collection is built. What differs is handed in: what is filled, how that is opened, and what is done around it.


class FillPart(msgspec.Struct, frozen=True, kw_only=True):
    """One scope that a run fills: what came of it, what it is compared by, and how it is opened for writing.

    ``sample`` has texts with their vectors; it is empty where there are none yet, and None where nothing is compared.
    """

    outcome: ScopeOutcome
    sample: Sequence[tuple[str, bytes]] | None
    opened: Callable[[], AbstractContextManager[Scope]]


class RunHooks(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does besides embedding, where it does anything."""

    #: Done once the embedder is known to be the right one.
    prepare: Callable[[], None] = lambda: None
    #: Surrounds the filling of all parts, with the ledger that is shared with other backfills.
    recorded: Callable[[Ledger], AbstractContextManager[None]] = lambda _: nullcontext()
    #: Tells whether anything but vectors was written.
    has_begun: Callable[[], bool] = lambda: False


class EmbeddingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of an embedder over parts of a store; used once.

    Args:
        path: what the user named.
        store: what the parts are of, or are going to be of.
        parts: what is filled, in this order.
        progress: told of each text.
        limits: how much is sent at most; probes count against the cost alone.
        around: what is done besides.
    """

    path: Path
    store: Store
    parts: Sequence[FillPart]
    progress: Progress
    limits: Limits = msgspec.field(default_factory=Limits)
    around: RunHooks = msgspec.field(default_factory=RunHooks)

    @property
    def written(self) -> int:
        """Return how many vectors were written."""
        return sum(part.outcome.filled.newly_ready for part in self.parts)

    def run(self, embedder: Embedder) -> None:
        """Fill every part, and say in its outcome what came of it.

        Raises:
            AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder does not do.
            BackfillStopped, BackfillInterrupted: what was written before stays.
            RegraftError: as for :func:`repair.embedding.run.report_stops`.
        """
        settings, meter = embedder.settings, BudgetedEmbedder(embedder, self.limits)
        with report_stops(self.path, settings.name, lambda: self.written, self.around.has_begun):
            try:
                meter.charge(self._probe(embedder))
            except LimitReached as reached:
                for part in self.parts:
                    part.outcome.filled.stopped = str(reached)
                return
            self.around.prepare()
            with (
                share_store(self.store) as together,
                WorkerPool(settings.name, meter, settings.parallel) as workers,
                self.around.recorded(together.ledger),
            ):
                self._remember_probes(together.queue, embedder)
                for part in self.parts:
                    with part.opened() as scope:
                        _fill(scope, part.outcome, embedder, workers, meter, together, self.progress)

    def _probe(self, embedder: Embedder) -> int:
        """Compare the embedder with the vectors of every part, and return how many tokens that took.

        A comparison that an interrupted run paid for is not repeated while the embedder's settings are the same.

        Raises:
            LimitReached: the probes would cost more than the run may.
        """
        meter = BudgetedEmbedder(embedder, Limits(cost=self.limits.cost))
        known = self._known_probes(embedder)
        proven: dict[tuple[int | None, tuple[tuple[str, bytes], ...]], probing.Probe] = {}
        for part in self.parts:
            outcome = part.outcome
            if part.sample is None:
                continue
            # Vectors that several bases share, and an embedder's answers to our own sentences, are compared once.
            key = outcome.dimensions, tuple(part.sample)
            if outcome.scope in known:
                texts, cosine = known[outcome.scope]
                outcome.probe = probing.Probe(texts=texts, cosine=cosine, requests=0, tokens=0, remembered=True)
            elif key in proven:
                outcome.probe = structs.replace(proven[key], requests=0, tokens=0)
            else:
                proven[key] = probing.compare_with_base(embedder, outcome.name, part.sample, outcome.dimensions, meter)
                outcome.probe = proven[key]
        return meter.tokens

    def _known_probes(self, embedder: Embedder) -> dict[str, tuple[int, float]]:
        """Return the results of probes that an unfinished run recorded, by scope."""
        path, digest = self.store.own / queue.QUEUE_FILE, probing.settings_digest(embedder.settings)
        if digest is None or not path.exists():
            return {}
        try:
            with queue.open_queue(path) as waiting:
                found = {part.outcome.scope: waiting.known_probe(part.outcome.scope, digest) for part in self.parts}
        except (RegraftError, apsw.Error, OSError):
            # A queue that cannot be read is made again by whoever shares the store next.
            return {}
        return {scope: probe for scope, probe in found.items() if probe is not None}

    def _remember_probes(self, waiting: TextQueue, embedder: Embedder) -> None:
        digest = probing.settings_digest(embedder.settings)
        for part in self.parts:
            probe = part.outcome.probe
            if digest is not None and probe is not None and not probe.remembered:
                waiting.remember_probe(part.outcome.scope, digest, probe.texts, probe.cosine)


def _fill(
    scope: Scope,
    outcome: ScopeOutcome,
    embedder: Embedder,
    workers: WorkerPool,
    meter: BudgetedEmbedder,
    together: SharedStore,
    progress: Progress,
) -> None:
    """Fill one scope that is open for writing, and say in ``outcome`` what came of it.

    Raises:
        As :meth:`repair.embedding.filling.Filling.run` does.
    """
    outcome.started_at = identity.now_ms()
    filled = outcome.filled
    requests, tokens = meter.requests, meter.tokens
    together.queue.fill(scope.name, scope.lacking())
    outcome.retried = outcome.survey.failed or together.queue.failed_before(scope.name)
    filling = Filling(
        scope=scope,
        embedder=embedder,
        queue=together.queue,
        workers=workers,
        meter=meter,
        progress=progress,
        filled=filled,
    )
    try:
        with stage(progress, "Embedding", together.queue.waiting(scope.name), "texts"):
            progress.at(scope.label)
            filling.run()
    finally:
        outcome.completed_at = identity.now_ms()
        others_wrote = filled.newly_ready + filled.failed < outcome.survey.lacking and filled.stopped is None
        outcome.ready = scope.survey().ready if others_wrote else outcome.survey.ready + filled.newly_ready
        outcome.failures = together.queue.failures(scope.name)
        outcome.requests, outcome.tokens = meter.requests - requests, meter.tokens - tokens
        outcome.cost = cost_of(outcome.tokens, embedder.settings)


#: Opens an embedder for as long as it is used.
OpenEmbedder = Callable[[EmbedderSettings], AbstractContextManager[Embedder]]
#: Is told of a store, and of what is going to be done in it.
OnSurvey = Callable[[Store, BackfillSurvey], None]
#: Returns texts of a target with their vectors, or None.
SampleOf = Callable[[SurveyedTarget], list[tuple[str, bytes]] | None]


class EmbedderSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's vectors come from: ``choose`` says which embedder, ``opened`` opens it; ``looked`` is told first
    of what is going to be done. ``sampled`` says what a target is compared by, with which its embedder was compared
    before; None: by what the target gives.
    """

    choose: ChooseEmbedder
    opened: OpenEmbedder = embedders.open_embedder
    looked: OnSurvey = lambda _store, _seen: None
    sampled: SampleOf = lambda _one: None


#: How many texts are looked up in another base at once.
_AT_ONCE = 256
#: Between two tries where another run is at work, in seconds.
_PAUSE = 0.2


def backfill(
    choose: ChooseEmbedder,
    options: BackfillOptions,
    *,
    fillers: Mapping[Kind, Filler],
    progress: Progress,
    show_plan: Callable[[BackfillReport], bool] = lambda _: True,
    opened: OpenEmbedder = embedders.open_embedder,
    looked: OnSurvey = lambda _store, _seen: None,
    sampled: SampleOf = lambda _one: None,
) -> BackfillReport:
    """Give vectors to the texts of a store that have none, or one that no search can use.

    Args:
        choose: says which embedder.
        options: what is asked for.
        fillers: what is filled in which kind of store.
        progress: told of each text.
        show_plan: called with the plan's report before anything is sent; False stops here.
        opened: opens the embedder.
        looked: is told what is going to be done, before anything is.
        sampled: returns what a target is compared by; None: what the target gives.

    Raises:
        AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder does not do.
        BackfillStopped, BackfillInterrupted: what was written before stays.
        RegraftError: refused, nothing was written.
    """
    run = Run(command=options.command, dry_run=options.dry_run, source=options.path)
    with open_for_change(options.path, options.kind, options.command, options.bases) as store:
        run.source_kind = store.found.kind.value
        filler = fillers[store.found.kind]
        settings = choose_settings(choose, store, filler, options)
        seen = survey_store(store, filler, settings, options)
        looked(store, seen)
        for one in seen.seen:
            handed = None if one.sample is None else sampled(one)
            one.sample = one.sample if handed is None else handed
        work = _Backfill(store=store, settings=settings, options=options, run=run, look=seen, progress=progress)
        planned = work.report()
        if options.dry_run or not seen.is_needed:
            return planned
        demand_not_running(store)
        _demand_writable(store, seen)
        with opened(settings) as embedder:
            if not show_plan(planned):
                raise Declined(path=options.path)
            return work.done(embedder)


def _demand_writable(store: Store, seen: BackfillSurvey) -> None:
    """Refuse a store that cannot be written, before anything is paid for."""
    paths = [store.own if store.own.exists() else store.root]
    for one in seen.seen:
        if one.outcome.survey.lacking:
            paths += [store.root / name for name in one.target.files]
    for path in paths:
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreNotWritable(path=path, reason=tr("it is read-only"))


# --- filling ---------------------------------------------------------------------------------------------------------


class _Backfill(msgspec.Struct, kw_only=True):
    """One run of backfill; used once."""

    store: Store
    settings: EmbedderSettings
    options: BackfillOptions
    run: Run
    look: BackfillSurvey
    progress: Progress
    #: What other runs of this command did: making units, and telling the catalog of a model; None before that.
    others: list[ChangeReport] | None = None
    #: What a step would have done that had to wait for another run.
    _postponed: list[Unresolved] = msgspec.field(default_factory=list)
    _is_recorded: bool = False
    #: What records each file of the targets, by its name.
    _files: dict[str, IncrementalChange] = msgspec.field(default_factory=dict)

    @property
    def written(self) -> int:
        """Return how many vectors were written."""
        return sum(one.outcome.filled.newly_ready for one in self.look.seen)

    def _has_begun(self) -> bool:
        """Tell whether anything was changed: by a step before the embedding, or vectors that nothing tells of yet."""
        steps = any(done.undo is not None for done in self.others or ())
        return steps or any(file.has_changed for file in self._files.values())

    def done(self, embedder: Embedder) -> BackfillReport:
        """Do it, and return what was done."""
        parts = []
        for one in self.look.seen:
            parts.append(FillPart(outcome=one.outcome, sample=one.sample, opened=partial(self._opened, one)))
        embedding = EmbeddingRun(
            path=self.options.path,
            store=self.store,
            parts=parts,
            progress=self.progress,
            limits=self.options.limits,
            around=RunHooks(prepare=self._take_steps, recorded=self._recorded, has_begun=self._has_begun),
        )
        embedding.run(embedder)
        return self.report()

    @contextmanager
    def _recorded(self, ledger: Ledger) -> Iterator[None]:
        """Record what takes vectors back that are written meanwhile, and how the run ended."""
        status = "stopped"
        try:
            with ExitStack() as open_files:
                self._files = self._growing(ledger)
                for file in self._files.values():
                    open_files.callback(file.end)
                yield
                self._finish()
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            if self._is_recorded:
                ledger.changes.record_actions(self.run.id, self._embedding(is_over=True))
                ledger.end_run(status)

    @contextmanager
    def _opened(self, one: SurveyedTarget) -> Iterator[Scope]:
        """Open a target for writing; what equal texts have, it has at once."""
        with one.target.opened(self.store.root, self._files_of(one.target)) as scope:
            one.outcome.survey = scope.survey()
            self._share(one, scope)
            yield scope

    def _files_of(self, target: Target) -> list[IncrementalChange]:
        return [self._files[name] for name in target.files]

    def _growing(self, ledger: Ledger) -> dict[str, IncrementalChange]:
        """Return what records each file of the targets, by its name; some write to the same ones."""
        users: dict[str, list[int]] = {}
        for number, one in enumerate(self.look.seen):
            for name in one.target.files:
                users.setdefault(name, []).append(number)
        begin = partial(self._begin, ledger)
        made = {}
        for place, (name, targets) in enumerate(users.items(), 1):
            kept, actions = f"{UNDO}/{self.run.id}/{place:06}", (targets[0], len(targets))
            made[name] = IncrementalChange(self.store.root, ledger, self.run.id, name, kept, actions, begin)
        return made

    def _finish(self) -> None:
        """Let places of vectors say that all was done; several targets may have one."""
        if any(one.outcome.filled.stopped is not None for one in self.look.seen):
            return
        places = {one.target.files: one.target for one in self.look.seen}
        for target in places.values():
            target.finish(self.store.root, self._files_of(target), identity.now_ms(), wrote=self.written > 0)

    def _begin(self, ledger: Ledger) -> None:
        """Record the run; one that writes nothing is none."""
        if not self._is_recorded:
            Session(store=self.store, ledger=ledger).begin(self.run, self._embedding())
            self._is_recorded = True

    def _share(self, one: SurveyedTarget, scope: Scope) -> None:
        """Give texts the vectors that equal ones have in another base of the model: a text is paid for once."""
        if one.target.shares_with_itself:
            _copy_vectors(scope, scope, one.outcome)
            return
        for other in self.look.seen:
            # What nobody has compared may be called so and be of another model.
            is_proven = other.outcome.probe is not None or not self.options.probes
            if other is one or not is_proven or vector_kind(other) != vector_kind(one):
                continue
            with other.target.opened(self.store.root) as source:
                _copy_vectors(source, scope, one.outcome)

    # --- what is done besides ----------------------------------------------------------------------------------------

    def _take_steps(self) -> None:
        self.others = []
        for step in self.look.steps:
            self._take(step)

    def _take(self, step: PreparationStep) -> None:
        """Take a step; where another backfill is long at work, one that may has to wait."""
        if step.may_wait and not self.look.first.changes:
            return
        try:
            self._other(step.planner)
        except TargetLocked as locked:
            if not step.may_wait:
                raise
            for one in self.look.first.actions:
                if one.finding is not None:
                    left = Unresolved.registered(
                        one.finding, str(locked), base=one.base, subject=one.subject, count=one.count
                    )
                    self._postponed.append(left)

    def _other(self, planner: Planner) -> None:
        """Run a planner of its own; another backfill that is at it may do the same.

        Raises:
            TargetLocked: it does not.
        """
        options, end = self.options, time.monotonic() + WAIT_SECONDS
        while True:
            try:
                done = run_command(
                    options.command,
                    options.path,
                    planner,
                    kind=options.kind,
                    bases=options.bases,
                    progress=self.progress,
                )
            except TargetLocked:
                if not planner(self.store).changes:
                    return
                if time.monotonic() >= end:
                    raise
                time.sleep(_PAUSE)
            else:
                self.others = [*(self.others or ()), done]
                return

    # --- what is reported ---------------------------------------------------------------------------------------------

    def _embedding(self, *, is_over: bool = False) -> list[Action]:
        """Return what is done to vectors: what is meant of targets that may still be come to."""
        actions = []
        for one in self.look.seen:
            outcome = one.outcome
            is_known = is_over or outcome.completed_at is not None
            count = outcome.filled.newly_ready if is_known else outcome.survey.lacking
            message = tr("give {texts} the vectors that they lack", texts=format_count(count, "text"))
            size = count * 4 * (outcome.dimensions or 0)
            finding = one.target.finding
            action = Action(
                action="embed", message=message, base=outcome.scope, count=count, bytes=size, finding=finding
            )
            actions.append(action)
        return actions

    def report(self) -> BackfillReport:
        """Return what was done, or is going to be."""
        self.run.end()
        seen = self.look.seen
        actions = [*self._other_actions(), *(action for action in self._embedding() if action.count)]
        left = self._left()
        bases: set[str | None] = {one.target.base_id for one in seen}
        bases.update(action.base for action in actions)
        bases.update(one.base for one in left)
        return BackfillReport(
            head=self.run.head(),
            embedder=None if self._has_none else EmbedderName.of(self.settings),
            bases=base_names(self.store, filter(None, bases)),
            scopes=[one.outcome.report() for one in seen],
            actions=actions,
            left=left,
            undo=self._undo(),
            suggestion=self._suggestion(),
        )

    @property
    def _has_none(self) -> bool:
        return isinstance(self.settings, UnnamedEmbedder)

    def _suggestion(self) -> Suggestion | None:
        """Return what to write into a configuration that names no embedder."""
        if not self._has_none or not self.look.is_needed:
            return None
        outcomes = [one.outcome for one in self.look.seen if one.outcome.planned.texts or one.target.is_new]
        needs = [ModelNeed(model_id=one.model_id, dimensions=one.dimensions, label=one.name) for one in outcomes]
        return suggest_config(needs, self.options.config, command_line(self.options))

    def _other_actions(self) -> list[Action]:
        """Return what is done besides: as it is planned, or as other runs did it."""
        if self.others is None:
            return self.look.first.actions
        return [action for done in self.others for action in done.actions]

    def _left(self) -> list[Unresolved]:
        """Return what is left, but for what was filled meanwhile."""
        filled: set[tuple[str, str | None]] = set()
        for seen in self.look.seen:
            if seen.outcome.is_whole:
                filled.update((name, seen.target.base_id) for name in seen.target.resolves)
        every = (*self.look.left, *self._postponed, *self.look.first.left)
        return [one for one in every if (one.finding, one.base) not in filled]

    def _undo(self) -> str | None:
        """Return the run that can be taken back: this one, or the last of those that did something besides."""
        if self.written:
            return self.run.id
        return next((done.undo for done in reversed(self.others or ()) if done.undo), None)


def _copy_vectors(source: Scope, scope: Scope, outcome: ScopeOutcome) -> None:
    """Write the vectors that lie in another scope, or elsewhere in the same place, of texts that lack one."""
    lacking = scope.lacking()
    while keys := list(islice(lacking, _AT_ONCE)):
        found = source.vectors(keys)
        if found:
            # What is written is counted, whatever comes.
            with interrupts.defer_stops():
                written = scope.write(found, identity.now_ms())
                outcome.shared += written.pending + written.stale
                outcome.filled.newly_ready += written.pending + written.stale
