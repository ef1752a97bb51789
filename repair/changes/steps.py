"""One run of several steps, each planned once the one before it was made; all of it is taken back as one.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import msgspec

from regraft.errors import Declined
from regraft.kinds import PREVIEW_SOURCES, Kind
from regraft.report.document import Run
from regraft.report.progress import Progress, Silent
from repair.changes import apply
from repair.changes.apply import ChangeExecutor
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.rehearsal import rehearse
from repair.changes.report import ChangeReport, base_names
from repair.changes.run import Planner, check_resolved, demand_as_read, demand_space, make_all, planned
from repair.changes.session import Session, session
from repair.changes.store import Store, alone, recognised

Again = AbstractContextManager[Store]


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """What a run does, in this order, and what it asks at its end: what the store still has."""

    planners: Sequence[Planner]
    remains: Callable[[Store], Iterable[Unresolved]]


def run_steps(  # noqa: PLR0913 - as of run_command
    command: str,
    path: Path,
    steps: Steps,
    *,
    kind: Kind | None = None,
    bases: tuple[str, ...] = (),
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] | None,
) -> ChangeReport:
    """Make several plans one after the other, as one run, and return what was done.

    The plan of a dry run, and the one that is shown, is what the run does: where a step plans with what an earlier one
    made, all are made on a temporary copy first.

    Args:
        show_plan: called with the plan's report before anything is changed; False stops here. None: nobody asks.

    The other arguments, and the errors, are those of :func:`repair.changes.run.run_command`.
    """
    again = partial(recognised, path, kind, command, bases, now_ms)

    def rehearsed(store: Store, run: Run) -> ChangeReport:
        """Return what the run is going to do to a store."""
        looks = [planned(store, step) for step in steps.planners]
        if not any(look.changes for look in looks[:-1]):
            last = looks[-1]
            left = [one for one in steps.remains(store) if (one.finding, one.base) not in last.resolves]
            return _report(store, run, last.actions, left, None)
        done = rehearse(store, carried_out, progress)
        return _report(store, run, done.actions, done.left, None)

    def carried_out(copy: Path) -> ChangeReport:
        return run_steps(command, copy, steps, kind=kind, bases=bases, now_ms=now_ms, progress=Silent(), show_plan=None)

    with again() as named:
        run = Run(command=command, dry_run=dry_run, source_kind=named.found.kind.value, source=path)
        if dry_run:
            return rehearsed(named, run)
        with session(named, again) as current:
            store = current.store
            first = Plan()
            for step in steps.planners:
                first.add(planned(store, step))
            if not first.changes:
                return _report(store, run, [], steps.remains(store), None)
            demand_space(store, first)
            if show_plan is not None and not show_plan(rehearsed(store, run)):
                raise Declined(path=path)
            as_it_is = partial(_recognised_now, store, command, kind, bases)
            with alone(store):
                current.begin(run, ())
                actions = _make_all(current, run, steps.planners, as_it_is, progress)
                apply.clean(store.root)
            with as_it_is() as after:
                return _report(after, run, actions, steps.remains(after), run.id if actions else None)


def _make_all(
    current: Session, run: Run, steps: Sequence[Planner], again: Callable[[], Again], progress: Progress
) -> list[Action]:
    """Make the steps, each of the store as it is then, and return what was done."""
    executor = ChangeExecutor(current.store.root, current.ledger, run.id, ())
    actions: list[Action] = []
    for step in steps:
        with again() as store:
            plan = planned(store, step)
            if not plan.changes:
                continue
            demand_space(store, plan)
            executor.take(plan.changes)
            demand_as_read(store, plan)
            executor.demand_free(plan.changes)
            actions += plan.actions
            current.ledger.changes.record_actions(run.id, actions)
            make_all(executor, plan, progress)
            # What remains in a new base is among what the caller asks the store for at the end of the run.
            check_resolved(Session(store=store, ledger=current.ledger), run, plan)
    return actions


def _recognised_now(store: Store, command: str, kind: Kind | None, bases: tuple[str, ...]) -> Again:
    """Recognise a store in the midst of a run: a file that preview builds wrote may have become a folder."""
    path = store.path if store.path.exists() else store.root
    kind = None if store.found.kind in PREVIEW_SOURCES else kind
    return recognised(path, kind, command, bases, store.now_ms)


def _report(
    store: Store, run: Run, actions: Sequence[Action], left: Iterable[Unresolved], undo: str | None
) -> ChangeReport:
    run.end()
    unresolved = list(left)
    touched = {action.base for action in actions} | {one.base for one in unresolved}
    bases = base_names(store, {base for base in touched if base is not None})
    return ChangeReport(head=run.head(), bases=bases, actions=list(actions), left=unresolved, undo=undo)
