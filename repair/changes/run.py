"""Running a plan: what takes each change back is recorded first, each file changes in one step, then it is checked.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding
from regraft import kept_text
from regraft.errors import Declined, NotEnoughSpace, NotMended, PlanOutdated
from regraft.kinds import SYSTEMS, Kind
from regraft.language import joined, language, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.changes import RunRecord
from regraft.ledger.values import Recorded
from regraft.records import replace
from regraft.report.document import Run
from regraft.report.progress import Progress, human_bytes, stage
from regraft.text import shown
from repair.changes import apply, files, space, undo
from repair.changes.apply import ChangeExecutor
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.report import ChangeReport, base_names, reported
from repair.changes.session import Session, looking, session, settle_remains
from repair.changes.store import Store, alone, recognised, recognised_after

logger = logging.getLogger(__name__)

Planner = Callable[[Store], Plan]
#: Room that every run takes for its records, in bytes.
_RECORDS = 1 << 20


def run_command(  # noqa: PLR0913 - what every command is given
    command: str,
    path: Path,
    planner: Planner,
    *,
    kind: Kind | None = None,
    bases: tuple[str, ...] = (),
    now_ms: int | None = None,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] = lambda _: True,
) -> ChangeReport:
    """Plan what a command does to a store, do it, and return what was done.

    Args:
        command: its name.
        path: the store, or a part of it.
        planner: looks at the store, writes nothing, and returns the plan.
        kind: what the path is, where the user says so.
        bases: ids of the bases that are meant; empty: all.
        now_ms: what ages are relative to; None: the present time.
        dry_run: return the plan and touch nothing.
        progress: told of the changes.
        show_plan: called with the plan's report before anything is changed; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    again = partial(recognised, path, kind, command, bases, now_ms)
    with again() as named:
        run = Run(command=command, dry_run=dry_run, source_kind=named.found.kind.value, source=path)
        if dry_run:
            plan = planned(named, planner)
            logger.info("nothing is written: only the plan was asked for")
            return reported(named, run, plan)
        with session(named, again) as current:
            store = current.store
            plan = planned(store, planner)
            shown_plan = reported(store, run, plan)
            if not (plan.changes or plan.reclaims or plan.expired):
                return shown_plan
            demand_space(store, plan)
            executor = ChangeExecutor(store.root, current.ledger, run.id, plan.changes)
            if not show_plan(shown_plan):
                raise Declined(path=path)
            with alone(store):
                demand_as_read(store, plan)
                executor.demand_free(plan.changes)
                current.begin(run, plan.actions)
                make_all(executor, plan, progress)
                remaining = check_resolved(current, run, plan)
                _expire(current, run, plan)
                reclaimed = [space.give_back(store.root, reclaim) for reclaim in plan.reclaims]
                done = replace(plan, reclaims=reclaimed, left=[*plan.left, *remaining])
                apply.clean(store.root)
            undo_id = run.id if plan.changes and plan.keeps_undo else None
            return reported(store, run, done, undo_id)


def make_all(executor: ChangeExecutor, plan: Plan, progress: Progress) -> None:
    """Make the changes of a plan, in its order; errors are those of :meth:`ChangeExecutor.make`."""
    with stage(progress, "Changing", len(plan.changes), "files"):
        for change in plan.changes:
            progress.at(change.path)
            executor.make(change)
            progress.step(1, change.bytes)


def undo_run(
    path: Path,
    run_id: str | None,
    *,
    kind: Kind | None = None,
    dry_run: bool = False,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool] = lambda _: True,
) -> ChangeReport:
    """Take back what a run did to a store: ``run_id``, or the latest that can be; returns what was done.

    Raises:
        RunUnknown: there is no such run, or it was taken back already.
        UndoRefused: what it changed was changed since; nothing is taken back.
        RegraftError: as for :func:`run_command`.
    """
    with recognised(path, kind, "undo") as store:
        run = Run(command="undo", dry_run=dry_run, source_kind=store.found.kind.value, source=path)
        if not dry_run:
            settle_remains(store)
        chosen = undo.chosen_run(store.root, store.runs(ledgers.read_runs(store.root)), run_id)
        if dry_run:
            with looking(store):
                undo.demand_unchanged(store.root, chosen, dry_run=True)
            return _undo_report(store, run, chosen, undo.made_anew(store.root, chosen))
        with session(store) as current:
            chosen = undo.chosen_run(store.root, store.runs(current.ledger.changes.runs()), run_id)
            anew = undo.made_anew(store.root, chosen)
            planned = _undo_report(store, run, chosen, anew)
            if not show_plan(planned):
                raise Declined(path=path)
            with alone(store):
                if undo.made_anew(store.root, chosen) != anew:
                    raise PlanOutdated(path=store.root, reason=tr("it was written to meanwhile"))
                undo.demand_unchanged(store.root, chosen)
                current.begin(run, planned.actions)
                with stage(progress, tr("Taking back"), len(chosen.changes), "files"):
                    undo.take_back(store.root, current.ledger, chosen.run_id)
        return _undo_report(store, run, chosen, anew)


def _undo_report(store: Store, run: Run, chosen: RunRecord, anew: Sequence[Recorded]) -> ChangeReport:
    """Return what is taken back of a run, and what is left: caches that were made ``anew``."""
    actions, places = [], {change.path for change in anew}
    for made in undo.made_actions(chosen):
        if made.subject in places:
            continue
        fields = structs.asdict(made)
        message = tr("take back: {message_}", message_=kept_text.translated(made.message, language()))
        actions.append(Action(**{**fields, "message": message}))
    left = [_left_anew(change, chosen) for change in anew]
    bases = base_names(store, {action.base for action in actions if action.base is not None})
    run.end()
    return ChangeReport(head=run.head(), bases=bases, actions=actions, left=left, undo=None, undone=chosen.run_id)


def _left_anew(change: Recorded, chosen: RunRecord) -> Unresolved:
    start, _ = change.detail.actions
    finding = chosen.actions[start].finding
    reason = tr("the cache of {path} was made anew and stays; what was set aside is deleted", path=shown(change.path))
    return Unresolved(finding=finding or "", reason=reason, subject=change.path)


def planned(store: Store, planner: Planner) -> Plan:
    """Return the plan of a store.

    Raises:
        SourceUnreadable: it cannot be looked at.
    """
    with looking(store):
        return planner(store)


def demand_as_read(store: Store, plan: Plan) -> None:
    """Refuse a plan that was made of files which were written to meanwhile.

    Raises:
        PlanOutdated
    """
    for name, stamp in plan.read.items():
        path = store.root / name
        if files.stamp_of(path) != stamp:
            raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))


def _expire(current: Session, run: Run, plan: Plan) -> None:
    """Delete what would take earlier runs back that the plan names, and this one where nothing of it is kept."""
    expired = list(plan.expired)
    if not plan.keeps_undo:
        expired += [change for change in current.ledger.changes.changes_of(run.id) if change.state == "done"]
    apply.expire(current.store.root, current.ledger, expired)


def check_resolved(current: Session, run: Run, plan: Plan) -> list[Unresolved]:
    """Audit the changed bases again and undo the run if a finding that it was to repair is still there.

    Only what the run can repair counts: findings that the plan itself leaves, and those that the audit calls beyond
    repair, do not.

    Returns:
        Errors of new bases that came with copied rows and that the plan does not name yet.

    Raises:
        NotMended: a promised finding is still there.
    """
    if not (plan.resolves or plan.new_bases):
        return []
    store = current.store
    named = {(one.finding, one.base) for one in plan.left}
    unmended: set[str] = set()
    inherited: list[Unresolved] = []
    # The path that the user named may be gone: for example, the folder of a deleted orphan.
    with recognised_after(store, run.command) as after:
        for finding in _found_after(after, plan):
            key = finding.name, finding.base
            if key in named:
                continue
            copied = None if finding.base is None else plan.new_bases.get(finding.base)
            is_promised = key in plan.resolves and not finding.is_beyond_repair
            if is_promised or (copied is not None and finding.name not in copied and _is_error(finding)):
                unmended.add(finding.name)
            elif copied is not None and plan.lists_inherited and FINDINGS[finding.name].severity == "error":
                inherited.append(Unresolved.with_remedy(finding, repair=finding.repair))
    if unmended:
        undo.take_back(store.root, current.ledger, run.id)
        raise NotMended(path=store.path, findings=joined(sorted(unmended)), run=run.id)
    return inherited


def _is_error(finding: Finding) -> bool:
    """Whether a finding is an error of a store in the current layout."""
    return finding.severity == "error" and not finding.name.startswith("v1.")


def _found_after(after: Store, plan: Plan) -> Iterator[Finding]:
    """Yield the findings of the bases that the plan promises something about."""
    touched = frozenset(base for _, base in plan.resolves if base is not None) | plan.new_bases.keys()
    if touched:
        yield from after.audit(plan.level, touched).findings
    if any(base is None for _, base in plan.resolves):
        # Findings of no base come from rows of the catalog and names of files; other systems may have no bases at all.
        level = Level.DEFAULT if after.found.kind in SYSTEMS else Level.QUICK
        yield from (one for one in after.audit(level).findings if one.base is None or one.base not in touched)


def demand_space(store: Store, plan: Plan) -> None:
    """Refuse a plan that the disk has no room for.

    Raises:
        NotEnoughSpace
    """
    needed = _RECORDS + sum(apply.room(store.root, change) for change in plan.changes)
    # VACUUM writes what stays once more, and so does its journal.
    needed += 2 * max((one.bytes for one in plan.reclaims), default=0)
    free = shutil.disk_usage(store.root).free
    if needed > free:
        raise NotEnoughSpace(path=store.root, needed=human_bytes(needed), free=human_bytes(free))
