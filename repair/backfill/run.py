"""``regraft backfill``: looking at what lacks a vector, filling it, and what came of it (``docs/backfill.md``)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import islice

import msgspec

from regraft import clock, embedders
from regraft.embedders import Embedder
from regraft.embedders.settings import EmbedderSettings
from regraft.embedders.snippet import Need, suggested
from regraft.errors import Declined, StoreNotWritable, TargetLocked
from regraft.kinds import Kind
from regraft.language import tr
from regraft.ledger import interrupts
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import UNDO
from regraft.report.document import Run
from regraft.report.progress import Progress
from regraft.suggestion import Suggestion
from regraft.text import counted
from repair.backfill.embedding import Around, Embedding, Part
from repair.backfill.outcome import Outcome
from repair.backfill.report import BackfillReport, EmbedderName
from repair.backfill.request import BackfillOptions, Choice
from repair.backfill.scope import Filler, Scope, Step, Target
from repair.backfill.sharing import PATIENCE
from repair.backfill.survey import BackfillSurvey, SurveyedTarget, kind_of, look
from repair.backfill.unnamed import StandIn, chosen, command_of
from repair.changes.incremental import IncrementalChange
from repair.changes.plan import Action, Unresolved
from repair.changes.report import ChangeReport, base_names
from repair.changes.run import Planner, run_command
from repair.changes.session import Session
from repair.changes.store import Store, demand_quiet, recognised

#: Opens an embedder for as long as it is used.
Opened = Callable[[EmbedderSettings], AbstractContextManager[Embedder]]
#: Is told of a store, and of what is going to be done in it.
Looked = Callable[[Store, BackfillSurvey], None]
#: Returns texts of a target with their vectors, or None.
Sampled = Callable[[SurveyedTarget], list[tuple[str, bytes]] | None]


class Supply(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's vectors come from: ``choose`` says which embedder, ``opened`` opens it; ``looked`` is told first
    of what is going to be done. ``sampled`` says what a target is compared by, with which its embedder was compared
    before; None: by what the target gives.
    """

    choose: Choice
    opened: Opened = embedders.opened
    looked: Looked = lambda _store, _seen: None
    sampled: Sampled = lambda _one: None


#: How many texts are looked up in another base at once.
_AT_ONCE = 256
#: Between two tries where another run is at work, in seconds.
_PAUSE = 0.2


def backfill(
    choose: Choice,
    options: BackfillOptions,
    *,
    fillers: Mapping[Kind, Filler],
    progress: Progress,
    show_plan: Callable[[BackfillReport], bool] = lambda _: True,
    opened: Opened = embedders.opened,
    looked: Looked = lambda _store, _seen: None,
    sampled: Sampled = lambda _one: None,
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
    with recognised(options.path, options.kind, options.command, options.bases) as store:
        run.source_kind = store.found.kind.value
        filler = fillers[store.found.kind]
        settings = chosen(choose, store, filler, options)
        seen = look(store, filler, settings, options)
        looked(store, seen)
        for one in seen.seen:
            handed = None if one.sample is None else sampled(one)
            one.sample = one.sample if handed is None else handed
        work = _Backfill(store=store, settings=settings, options=options, run=run, look=seen, progress=progress)
        planned = work.report()
        if options.dry_run or not seen.is_needed:
            return planned
        demand_quiet(store)
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
            parts.append(Part(outcome=one.outcome, sample=one.sample, opened=partial(self._opened, one)))
        embedding = Embedding(
            path=self.options.path,
            store=self.store,
            parts=parts,
            progress=self.progress,
            limits=self.options.limits,
            around=Around(prepare=self._take_steps, recorded=self._recorded, has_begun=self._has_begun),
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
            target.finish(self.store.root, self._files_of(target), clock.now_ms(), wrote=self.written > 0)

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
            if other is one or not is_proven or kind_of(other) != kind_of(one):
                continue
            with other.target.opened(self.store.root) as source:
                _copy_vectors(source, scope, one.outcome)

    # --- what is done besides ----------------------------------------------------------------------------------------

    def _take_steps(self) -> None:
        self.others = []
        for step in self.look.steps:
            self._take(step)

    def _take(self, step: Step) -> None:
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
        options, end = self.options, time.monotonic() + PATIENCE
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
            message = tr("give {texts} the vectors that they lack", texts=counted(count, "text"))
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
        return isinstance(self.settings, StandIn)

    def _suggestion(self) -> Suggestion | None:
        """Return what to write into a configuration that names no embedder."""
        if not self._has_none or not self.look.is_needed:
            return None
        outcomes = [one.outcome for one in self.look.seen if one.outcome.planned.texts or one.target.is_new]
        needs = [Need(model_id=one.model_id, dimensions=one.dimensions, label=one.name) for one in outcomes]
        return suggested(needs, self.options.config, command_of(self.options))

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


def _copy_vectors(source: Scope, scope: Scope, outcome: Outcome) -> None:
    """Write the vectors that lie in another scope, or elsewhere in the same place, of texts that lack one."""
    lacking = scope.lacking()
    while keys := list(islice(lacking, _AT_ONCE)):
        found = source.vectors(keys)
        if found:
            # What is written is counted, whatever comes.
            with interrupts.held_back():
                written = scope.write(found, clock.now_ms())
                outcome.shared += written.pending + written.stale
                outcome.filled.newly_ready += written.pending + written.stale
