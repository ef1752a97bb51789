"""Running a plan: what takes each change back is recorded first, each file changes in one step, then it is checked.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding
from regraft import language
from regraft.disk import sqlite
from regraft.errors import Declined, NotEnoughSpace, NotMended, PlanOutdated, StoreBusy
from regraft.formats.cherry_v2.index.store import reclaim_space
from regraft.identity import replace
from regraft.kinds import SYSTEMS, Kind
from regraft.language import current_language, join_list, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import RunRecord
from regraft.ledger.values import RecordedChange
from regraft.report.document import Report, Run
from regraft.report.progress import Progress, stage
from regraft.text import format_bytes, printable
from repair.changes import execution, files, undo
from repair.changes.execution import ChangeExecutor
from repair.changes.plan import Action, Plan, Reclaim, SalvagedFile, Unresolved
from repair.changes.session import Session, open_session, reading_store, recover_if_interrupted
from repair.changes.store import Store, exclusive_access, open_for_change, reopen_for_check

# What a run did to a store, or would do, as its document has it (``docs/commands.md``).


class BaseName(msgspec.Struct, frozen=True, kw_only=True):
    """A base, by its id, and what a person calls it."""

    id: str
    name: str


class ChangeReport(Report, kw_only=True):
    """What a run did, or would do: ``undo`` is the run that can be taken back, None where nothing can."""

    bases: list[BaseName]
    actions: list[Action]
    left: list[Unresolved]
    undo: str | None
    #: What was left of damaged files, by a run that salvages.
    salvaged: list[SalvagedFile] | msgspec.UnsetType = msgspec.UNSET
    #: The run that was taken back, by a run that takes one back.
    undone: str | msgspec.UnsetType = msgspec.UNSET


def base_names(store: Store, bases: Iterable[str]) -> list[BaseName]:
    """Return bases by their ids, in order, with their names."""
    return [BaseName(id=base, name=store.names.get(base, base)) for base in sorted(bases)]


def report_plan(store: Store, run: Run, plan: Plan, undo: str | None = None) -> ChangeReport:
    """Return what a plan does, or did, by a run that ends with that."""
    run.end()
    bases = base_names(store, plan.bases)
    return ChangeReport(
        head=run.head(),
        bases=bases,
        actions=plan.actions,
        left=plan.left,
        undo=undo,
        salvaged=plan.salvaged or msgspec.UNSET,
    )


# Giving the free space in index files back to the disk: no row changes, so that there is nothing to take back.


def shrink_file(root: Path, planned: Reclaim) -> Reclaim:
    """Give the free space of one file back, and return what that came to.

    Raises:
        StoreBusy: another program has it open.
        FullTextOutOfStep: its full-text index does not match its bodies.
        apsw.Error: the system stopped it; the file is as it was.
    """
    path = root / planned.path
    try:
        with sqlite.open_writable(path) as db:
            done = reclaim_space(db, path, "always")
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    before, after = format_bytes(done.bytes_before), format_bytes(done.bytes_after)
    message = tr(
        "gave free space in the index file back to the disk: it had {before}, it has {after}",
        before=before,
        after=after,
    )
    freed = max(done.bytes_before - done.bytes_after, 0)
    return replace(planned, action=structs.replace(planned.action, message=message, bytes=freed))


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
    again = partial(open_for_change, path, kind, command, bases, now_ms)
    with again() as named:
        run = Run(command=command, dry_run=dry_run, source_kind=named.found.kind.value, source=path)
        if dry_run:
            plan = make_plan(named, planner)
            logger.info("nothing is written: only the plan was asked for")
            return report_plan(named, run, plan)
        with open_session(named, again) as current:
            store = current.store
            plan = make_plan(store, planner)
            shown_plan = report_plan(store, run, plan)
            if not (plan.changes or plan.reclaims or plan.expired):
                return shown_plan
            demand_space(store, plan)
            executor = ChangeExecutor(store.root, current.ledger, run.id, plan.changes)
            if not show_plan(shown_plan):
                raise Declined(path=path)
            with exclusive_access(store):
                demand_unchanged_files(store, plan)
                executor.demand_free(plan.changes)
                current.begin(run, plan.actions)
                apply_changes(executor, plan, progress)
                remaining = check_resolved(current, run, plan)
                _expire(current, run, plan)
                reclaimed = [shrink_file(store.root, reclaim) for reclaim in plan.reclaims]
                done = replace(plan, reclaims=reclaimed, left=[*plan.left, *remaining])
                execution.clear_work_folder(store.root)
            undo_id = run.id if plan.changes and plan.keeps_undo else None
            return report_plan(store, run, done, undo_id)


def apply_changes(executor: ChangeExecutor, plan: Plan, progress: Progress) -> None:
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
    with open_for_change(path, kind, "undo") as store:
        run = Run(command="undo", dry_run=dry_run, source_kind=store.found.kind.value, source=path)
        if not dry_run:
            recover_if_interrupted(store)
        chosen = undo.select_run(store.root, store.runs(ledgers.read_runs(store.root)), run_id)
        if dry_run:
            with reading_store(store):
                undo.demand_unchanged(store.root, chosen, dry_run=True)
            return _undo_report(store, run, chosen, undo.rebuilt_caches(store.root, chosen))
        with open_session(store) as current:
            chosen = undo.select_run(store.root, store.runs(current.ledger.changes.runs()), run_id)
            anew = undo.rebuilt_caches(store.root, chosen)
            planned = _undo_report(store, run, chosen, anew)
            if not show_plan(planned):
                raise Declined(path=path)
            with exclusive_access(store):
                if undo.rebuilt_caches(store.root, chosen) != anew:
                    raise PlanOutdated(path=store.root, reason=tr("it was written to meanwhile"))
                undo.demand_unchanged(store.root, chosen)
                current.begin(run, planned.actions)
                with stage(progress, tr("Taking back"), len(chosen.changes), "files"):
                    undo.undo_changes(store.root, current.ledger, chosen.run_id)
        return _undo_report(store, run, chosen, anew)


def _undo_report(store: Store, run: Run, chosen: RunRecord, anew: Sequence[RecordedChange]) -> ChangeReport:
    """Return what is taken back of a run, and what is left: caches that were made ``anew``."""
    actions, places = [], {change.path for change in anew}
    for made in undo.completed_actions(chosen):
        if made.subject in places:
            continue
        fields = structs.asdict(made)
        message = tr("take back: {message_}", message_=language.translate_text(made.message, current_language()))
        actions.append(Action(**{**fields, "message": message}))
    left = [_left_anew(change, chosen) for change in anew]
    bases = base_names(store, {action.base for action in actions if action.base is not None})
    run.end()
    return ChangeReport(head=run.head(), bases=bases, actions=actions, left=left, undo=None, undone=chosen.run_id)


def _left_anew(change: RecordedChange, chosen: RunRecord) -> Unresolved:
    start, _ = change.detail.actions
    finding = chosen.actions[start].finding
    reason = tr(
        "the cache of {path} was made anew and stays; what was set aside is deleted", path=printable(change.path)
    )
    return Unresolved(finding=finding or "", reason=reason, subject=change.path)


def make_plan(store: Store, planner: Planner) -> Plan:
    """Return the plan of a store.

    Raises:
        SourceUnreadable: it cannot be looked at.
    """
    with reading_store(store):
        return planner(store)


def demand_unchanged_files(store: Store, plan: Plan) -> None:
    """Refuse a plan that was made of files which were written to meanwhile.

    Raises:
        PlanOutdated
    """
    for name, stamp in plan.read.items():
        path = store.root / name
        if files.file_stamp(path) != stamp:
            raise PlanOutdated(path=path, reason=tr("it was written to meanwhile"))


def _expire(current: Session, run: Run, plan: Plan) -> None:
    """Delete what would take earlier runs back that the plan names, and this one where nothing of it is kept."""
    expired = list(plan.expired)
    if not plan.keeps_undo:
        expired += [change for change in current.ledger.changes.changes_of(run.id) if change.state == "done"]
    execution.expire_changes(current.store.root, current.ledger, expired)


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
    with reopen_for_check(store, run.command) as after:
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
        undo.undo_changes(store.root, current.ledger, run.id)
        raise NotMended(path=store.path, findings=join_list(sorted(unmended)), run=run.id)
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
    needed = _RECORDS + sum(execution.bytes_needed(store.root, change) for change in plan.changes)
    # VACUUM writes what stays once more, and so does its journal.
    needed += 2 * max((one.bytes for one in plan.reclaims), default=0)
    free = shutil.disk_usage(store.root).free
    if needed > free:
        raise NotEnoughSpace(path=store.root, needed=format_bytes(needed), free=format_bytes(free))
