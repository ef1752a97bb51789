"""``regraft backfill``: survey the store, show the plan, fill missing vectors, record for undo (``docs/backfill.md``).

Also runs ``rebuild`` and codex-mem's ``reconcile``, and fills each library of a fleet, whose embedder sends nothing: it
has the answers already (:class:`repair.embedding.answers.KnownEmbedder`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice

import msgspec
from msgspec import structs

from regraft import embedders, identity
from regraft.embedders import Embedder
from regraft.embedders.settings import EmbedderSettings, ModelNeed, suggest_config
from regraft.errors import Declined, StoreNotWritable, TargetLocked
from regraft.kinds import Kind
from regraft.language import format_count, tr
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import UNDO
from regraft.processes import interrupts
from regraft.report.document import Run, Suggestion
from regraft.report.progress import Progress
from repair.changes import execution
from repair.changes.changesets import IncrementalChange
from repair.changes.plan import Action, Unresolved
from repair.changes.run import ChangeReport, Planner, base_names, run_command
from repair.changes.session import Session
from repair.changes.store import Store, demand_not_running, open_for_change
from repair.embedding.answers import KnownEmbedder
from repair.embedding.filling import EmbeddingRun, FillPart, RunHooks
from repair.embedding.queue import WAIT_SECONDS, recover_before_survey
from repair.embedding.report import BackfillReport, EmbedderName, ScopeOutcome, empty_estimate
from repair.embedding.reuse import open_reuse
from repair.embedding.scope import BackfillOptions, ChooseEmbedder, Filler, Scope, Target
from repair.embedding.survey import (
    BackfillSurvey,
    SurveyedTarget,
    UnnamedEmbedder,
    choose_settings,
    command_line,
    survey_store,
    vector_kind,
)

#: Opens an embedder as a context.
OpenEmbedder = Callable[[EmbedderSettings], AbstractContextManager[Embedder]]
#: Called with a store and what will be done in it, before anything is.
OnSurvey = Callable[[Store, BackfillSurvey], None]
#: Returns the texts with vectors that a target is compared by, or None for its own sample.
SampleOf = Callable[[SurveyedTarget], list[tuple[str, bytes]] | None]


class EmbedderSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run gets its vectors from; a fleet replaces the configured embedder by one with known answers.

    Args:
        choose: chooses the settings of the embedder.
        open_embedder: opens the embedder.
        on_survey: called with the survey.
        choose_sample: replaces the sample that the embedder is compared by; None: keep the target's own.
        recovers: :attr:`repair.embedding.scope.BackfillOptions.recovers`.
    """

    choose: ChooseEmbedder
    open_embedder: OpenEmbedder = embedders.open_embedder
    on_survey: OnSurvey = lambda _store, _survey: None
    choose_sample: SampleOf = lambda _one: None
    recovers: bool = False


#: Texts that are looked up in another base at a time.
_CHUNK = 256
#: Seconds between two attempts while another run holds the store.
_PAUSE = 0.2


def backfill(
    choose: ChooseEmbedder,
    options: BackfillOptions,
    *,
    fillers: Mapping[Kind, Filler],
    progress: Progress,
    show_plan: Callable[[BackfillReport], bool] = lambda _: True,
    open_embedder: OpenEmbedder = embedders.open_embedder,
    on_survey: OnSurvey = lambda _store, _survey: None,
    choose_sample: SampleOf = lambda _one: None,
) -> BackfillReport:
    """Give vectors to the texts of a store without a vector, or with one that no search can use.

    Args:
        choose: chooses the settings of the embedder.
        options: the user's.
        fillers: the implementation for each kind of store.
        progress: notified of each text.
        show_plan: called with the plan before anything is sent; returns False to stop.
        open_embedder: opens the embedder.
        on_survey: called with the survey, before anything is done.
        choose_sample: replaces the sample that the embedder is compared by; None: keep the target's own.

    Raises:
        ChangeUnfinished: a dry run would take what a stopped run has left for damage.
        AnswerUnfit, EmbedderDiffers, EmbedderUnsteady, EmbedderRefused: the embedder cannot be used.
        ReuseDiffers: the vectors of another store cannot be used.
        BackfillStopped, BackfillInterrupted: vectors written before stay.
        RegraftError: refused, nothing was written.
    """
    run = Run(command=options.command, dry_run=options.dry_run, source=options.path)
    with ExitStack() as stack:
        store = _open_settled(options, stack)
        run.source_kind = store.found.kind.value
        filler = fillers[store.found.kind]
        settings = choose_settings(choose, store, filler, options)
        reuse = stack.enter_context(open_reuse(options.reuse, store.root, progress))
        survey = survey_store(store, filler, settings, options, reuse)
        on_survey(store, survey)
        for one in survey.targets:
            sample = None if one.sample is None else choose_sample(one)
            one.sample = one.sample if sample is None else sample
        work = _Backfill(store=store, settings=settings, options=options, run=run, survey=survey, progress=progress)
        if work.is_offline and work.has_new_model:
            # Raises: a base that gets its model has no vector that those of another store can be compared with.
            choose_settings(choose, store, filler, structs.replace(options, reuse=()))
        planned = work.report()
        if options.dry_run or not work.is_needed:
            return planned
        demand_not_running(store)
        _demand_writable(store, survey)
        with open_embedder(settings) if work.needs_embedder else _open_nothing(settings) as embedder:
            if not show_plan(planned):
                raise Declined(path=options.path)
            return work.execute(embedder)


def _open_settled(options: BackfillOptions, stack: ExitStack) -> Store:
    """Open the store, after completing or undoing the changes of a killed run; a dry run refuses them instead.

    ``stack`` closes the store.
    """
    again = partial(open_for_change, options.path, options.kind, options.command, options.bases)
    store = stack.enter_context(again())
    if options.recovers or not options.dry_run:
        # Changes of another run that is at work stay as they are.
        with suppress(TargetLocked):
            if recover_before_survey(store):
                store = stack.enter_context(again())
    if options.dry_run:
        execution.demand_in_place(store.root)
    return store


@contextmanager
def _open_nothing(settings: EmbedderSettings) -> Iterator[Embedder]:
    """Open a stand-in for the embedder, for a run in which no text has to be sent.

    Texts that are added to the store during the run get no vector.
    """
    yield KnownEmbedder(settings, lambda _: {}, tr("it was added during the run"))


def _demand_writable(store: Store, survey: BackfillSurvey) -> None:
    """Refuse a store with read-only files to fill, before anything is paid for."""
    paths = [store.own_folder if store.own_folder.exists() else store.root]
    for one in survey.targets:
        if one.outcome.survey.lacking:
            paths += [store.root / name for name in one.target.files]
    for path in paths:
        if path.exists() and not os.access(path, os.W_OK):
            raise StoreNotWritable(path=path, reason=tr("it is read-only"))


# --- filling ---------------------------------------------------------------------------------------------------------


class _Backfill(msgspec.Struct, kw_only=True):
    """One run of backfill. Single use."""

    store: Store
    settings: EmbedderSettings
    options: BackfillOptions
    run: Run
    survey: BackfillSurvey
    progress: Progress
    #: Whether texts should be sent, with sources of vectors but no configured embedder.
    lacks_embedder: bool = False
    #: Reports of the preparation steps, each a run of its own; None before them.
    steps_done: list[ChangeReport] | None = None
    #: What a step would have done that was skipped because another run holds the store.
    _postponed: list[Unresolved] = msgspec.field(default_factory=list)
    _is_recorded: bool = False
    #: The undo record of each file of the targets, by its name.
    _files: dict[str, IncrementalChange] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Plan to send nothing if no embedder is configured."""
        self.lacks_embedder = self._is_unnamed and bool(self.options.reuse) and self.survey.sends
        if self.is_offline:
            for one in self.survey.targets:
                planned, nothing = one.outcome.planned, empty_estimate(self.settings)
                shared = planned.shared if one.target.is_file_shared else 0
                one.outcome.planned = structs.replace(nothing, shared=shared, reused=planned.reused)

    @property
    def is_offline(self) -> bool:
        """Whether only what other stores have is written: texts should be sent, and no embedder is configured."""
        return self.lacks_embedder and not self.options.dry_run

    @property
    def has_new_model(self) -> bool:
        """Whether a base gets its model in this run."""
        return any(one.target.is_new for one in self.survey.targets)

    @property
    def needs_embedder(self) -> bool:
        """Whether the embedder is opened: not if all vectors that are written come from other stores."""
        return not self.is_offline and (self.survey.sends or not self.options.reuse)

    @property
    def is_needed(self) -> bool:
        """Whether the run has anything to do."""
        if self.is_offline and not any(one.outcome.planned.reused for one in self.survey.targets):
            return bool(self.survey.first.changes)
        return self.survey.is_needed

    @property
    def written(self) -> int:
        """The number of vectors written so far."""
        return sum(one.outcome.filled.newly_ready for one in self.survey.targets)

    def _has_begun(self) -> bool:
        """Whether the run has changed anything: in a preparation step, or in a file of vectors."""
        steps = any(done.undo is not None for done in self.steps_done or ())
        return steps or any(file.has_changed for file in self._files.values())

    def execute(self, embedder: Embedder) -> BackfillReport:
        """Take the preparation steps, fill all targets, and report what was done."""
        parts = [
            FillPart(
                outcome=one.outcome,
                sample=None if self.is_offline else one.sample,
                opened=partial(self._open_target, one),
                supply=one.expected.supply,
            )
            for one in self.survey.targets
        ]
        embedding = EmbeddingRun(
            path=self.options.path,
            store=self.store,
            parts=parts,
            progress=self.progress,
            limits=self.options.limits,
            hooks=RunHooks(prepare=self._take_steps, recorded=self._record_run, has_begun=self._has_begun),
            sends=not self.is_offline,
        )
        embedding.run(embedder)
        publication = self.survey.publication
        if publication is not None:
            self._run_planner(publication.planner)
            publication.finished(self.store)
        return self.report()

    @contextmanager
    def _record_run(self, ledger: Ledger) -> Iterator[None]:
        """Context that records in the ledger what undo needs for the vectors, and how the run ended."""
        status = "stopped"
        try:
            with ExitStack() as open_files:
                self._files = self._undo_records(ledger)
                for file in self._files.values():
                    open_files.callback(file.end)
                yield
                # Each file of vectors records that the run is complete; targets may share their files.
                if all(one.outcome.filled.stopped is None for one in self.survey.targets):
                    for target in {one.target.files: one.target for one in self.survey.targets}.values():
                        wrote = self.written > 0
                        target.finish(self.store.root, self._files_of(target), identity.now_ms(), wrote=wrote)
            status = "finished"
        except KeyboardInterrupt:
            status = "interrupted"
            raise
        finally:
            if self._is_recorded:
                ledger.changes.record_actions(self.run.id, self._embed_actions(is_over=True))
                ledger.end_run(status)

    @contextmanager
    def _open_target(self, surveyed: SurveyedTarget) -> Iterator[Scope]:
        """Open a target for writing, and copy the vectors that equal texts have in other targets."""
        with surveyed.target.open_scope(self.store.root, self._files_of(surveyed.target)) as scope:
            surveyed.outcome.survey = scope.survey()
            self._copy_known_vectors(surveyed, scope)
            yield scope

    def _files_of(self, target: Target) -> list[IncrementalChange]:
        """Return the undo records of the files that a target's vectors are written to."""
        return [self._files[name] for name in target.files]

    def _undo_records(self, ledger: Ledger) -> dict[str, IncrementalChange]:
        """Create the undo record of each file of the targets, by file name; targets may share a file."""
        users: dict[str, list[int]] = {}
        for number, one in enumerate(self.survey.targets):
            for name in one.target.files:
                users.setdefault(name, []).append(number)
        begin = partial(self._record_begin, ledger)
        records = {}
        for number, (name, targets) in enumerate(users.items(), 1):
            kept, actions = f"{UNDO}/{self.run.id}/{number:06}", (targets[0], len(targets))
            records[name] = IncrementalChange(self.store.root, ledger, self.run.id, name, kept, actions, begin)
        return records

    def _record_begin(self, ledger: Ledger) -> None:
        """Record the run before its first write; a run that writes nothing is not recorded."""
        if not self._is_recorded:
            Session(store=self.store, ledger=ledger).begin(self.run, self._embed_actions())
            self._is_recorded = True

    def _copy_known_vectors(self, surveyed: SurveyedTarget, scope: Scope) -> None:
        """Copy the vectors of equal texts from other bases with the same model into a scope, to pay for a text once."""
        if surveyed.target.is_file_shared:
            _copy_vectors(scope, scope, surveyed.outcome)
            return
        for other in self.survey.targets:
            # Without a probe, the base may only be called by the name of the model.
            is_proven = other.outcome.probe is not None or not self.options.probes
            if other is surveyed or not is_proven or vector_kind(other) != vector_kind(surveyed):
                continue
            with other.target.open_scope(self.store.root) as source:
                _copy_vectors(source, scope, surveyed.outcome)

    # --- steps before the embedding ----------------------------------------------------------------------------------

    def _take_steps(self) -> None:
        """Run the preparation steps, such as creating missing indexes."""
        self.steps_done = []
        for step in self.survey.steps:
            if step.may_wait and not self.survey.first.changes:
                continue
            try:
                self._run_planner(step.planner)
            except TargetLocked as locked:
                # Another backfill holds the store for long: a step that may wait is skipped and reported.
                if not step.may_wait:
                    raise
                for one in self.survey.first.actions:
                    if one.finding is not None:
                        left = Unresolved.registered(
                            one.finding, str(locked), base=one.base, subject=one.subject, count=one.count
                        )
                        self._postponed.append(left)

    def _run_planner(self, planner: Planner) -> None:
        """Make and execute the plan of a preparation step as a run of its own, unless another backfill does the same.

        Raises:
            TargetLocked: another run holds the store, and the step is still needed.
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
                self.steps_done = [*(self.steps_done or ()), done]
                return

    # --- the report ---------------------------------------------------------------------------------------------------

    def _embed_actions(self, *, is_over: bool = False) -> list[Action]:
        """Return one action for each target: how many vectors were written, or are planned if it is not filled yet.

        ``is_over``: the run has ended, so nothing more will be written.
        """
        actions = []
        for one in self.survey.targets:
            outcome = one.outcome
            is_known = is_over or outcome.completed_at is not None
            count = outcome.filled.newly_ready if is_known else outcome.survey.lacking
            message = tr("add the missing vectors of {texts}", texts=format_count(count, "text"))
            size = count * 4 * (outcome.dimensions or 0)
            finding = one.target.finding
            action = Action(
                action="embed", message=message, base=outcome.scope, count=count, bytes=size, finding=finding
            )
            actions.append(action)
        return actions

    def report(self) -> BackfillReport:
        """Return the report of what was done, or is planned."""
        self.run.end()
        targets = self.survey.targets
        # The actions of the steps: as planned, or, once they were taken, as done.
        actions = list(self.survey.first.actions)
        if self.steps_done is not None:
            actions = [action for done in self.steps_done for action in done.actions]
        actions += (action for action in self._embed_actions() if action.count)
        left = self._unresolved()
        bases: set[str | None] = {one.target.base_id for one in targets}
        bases.update(action.base for action in actions)
        bases.update(one.base for one in left)
        return BackfillReport(
            head=self.run.head(),
            embedder=None if self._is_unnamed else EmbedderName.of(self.settings),
            bases=base_names(self.store, filter(None, bases)),
            scopes=[one.outcome.report() for one in targets],
            actions=actions,
            left=left,
            # This run, or the last step that changed anything.
            undo=self.run.id
            if self._is_recorded
            else next((done.undo for done in reversed(self.steps_done or ()) if done.undo), None),
            suggestion=self._suggestion(),
        )

    @property
    def _is_unnamed(self) -> bool:
        """Whether no embedder is configured yet, so that only an estimate is possible."""
        return isinstance(self.settings, UnnamedEmbedder)

    def _suggestion(self) -> Suggestion | None:
        """Return the configuration to write if no embedder is configured and one is needed; else None."""
        if not self._is_unnamed or not self.survey.is_needed:
            return None
        outcomes = [
            one.outcome
            for one in self.survey.targets
            if one.outcome.planned.texts or one.target.is_new or (self.is_offline and _count_lacking(one.outcome))
        ]
        if not outcomes:
            return None
        needs = [ModelNeed(model_id=one.model_id, dimensions=one.dimensions, label=one.name) for one in outcomes]
        return suggest_config(needs, self.options.config, command_line(self.options))

    def _unresolved(self) -> list[Unresolved]:
        """Return the unresolved findings, without those of targets that are complete now."""
        resolved: set[tuple[str, str | None]] = set()
        for one in self.survey.targets:
            if one.outcome.is_complete:
                resolved.update((name, one.target.base_id) for name in one.target.resolves)
        every = (*self.survey.left, *self._postponed, *self.survey.first.left, *self._report_unsent())
        return [left for left in every if (left.finding, left.base) not in resolved]

    def _report_unsent(self) -> Iterator[Unresolved]:
        """Yield a finding for the texts that get no vector because no source has a proven one and they are not sent."""
        for one in self.survey.targets:
            outcome, supply = one.outcome, one.expected.supply
            if self.lacks_embedder:
                count = _count_lacking(outcome)
                reason = tr(
                    "{texts} left without a vector: no source has one that is proven, and no embedder is configured",
                    texts=format_count(count, "text"),
                )
            else:
                count = 0 if supply is None else supply.withheld
                reason = tr(
                    "{texts} left without a vector: the vectors of their source were made by another model, and the "
                    "plan was not to send the texts to the embedder; run the command again without this source",
                    texts=format_count(count, "text"),
                )
            if count:
                yield Unresolved(finding=one.target.finding, reason=reason, base=one.target.base_id, count=count)


def _count_lacking(outcome: ScopeOutcome) -> int:
    """Count the texts that have no vector after the run; before the run, those that no source of vectors has."""
    ready = outcome.survey.ready + outcome.planned.reused
    return outcome.survey.eligible - (ready if outcome.ready is None else outcome.ready)


def _copy_vectors(source: Scope, scope: Scope, outcome: ScopeOutcome) -> None:
    """Copy vectors from ``source`` to texts of ``scope`` that lack one, and count them; both may be the same file."""
    lacking = scope.lacking()
    while keys := list(islice(lacking, _CHUNK)):
        found = source.vectors(keys)
        if found:
            # The count must include what is written, even if Ctrl-C comes in between.
            with interrupts.defer_stops():
                written = scope.write(found, identity.now_ms())
                outcome.shared += written.pending + written.stale
                outcome.filled.newly_ready += written.pending + written.stale
