"""Run a command that changes a store: plan, check that it can be done, apply, audit again, report; and undo a run.

Undo data is recorded before each change, and each file changes in one step. If the audit afterwards still finds what
the run was to repair, the run is undone (``docs/formats/library.md``, "Changes").
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import apsw
import msgspec
from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import FINDINGS, Finding
from regraft import language
from regraft.disk import sqlite
from regraft.errors import Declined, Interrupted, NotEnoughSpace, NotMended, PlanOutdated, StoreBusy, UndoOfLastCopy
from regraft.formats.cherry_v2.index.store import reclaim_space
from regraft.identity import replace
from regraft.kinds import SYSTEMS, Kind
from regraft.language import current_language, join_list, tr
from regraft.ledger import ledger as ledgers
from regraft.ledger.ledger import RunRecord
from regraft.ledger.values import RecordedChange
from regraft.report.document import Report, Run
from regraft.report.progress import Progress, stage
from regraft.text import format_bytes, join_command, path_argument, printable
from repair.changes import execution, files, undo
from repair.changes.execution import ChangeExecutor
from repair.changes.plan import Action, Plan, Reclaim, SalvagedFile, Unresolved
from repair.changes.session import Session, open_session, reading_store, recover_if_interrupted
from repair.changes.store import Store, exclusive_access, open_for_change, reopen_for_check

logger = logging.getLogger(__name__)

Planner = Callable[[Store], Plan]
#: Recorded actions that changed nothing in the store.
OUTSIDE_ACTIONS = frozenset({"read-library", "write-library"})
#: Disk space for the ledger records of a run, in bytes.
_LEDGER_BYTES = 1 << 20

# --- reports (docs/commands.md) --------------------------------------------------------------------------------------


class BaseName(msgspec.Struct, frozen=True, kw_only=True):
    """A base: its id and its display name."""

    id: str
    name: str


class ChangeReport(Report, kw_only=True):
    """Report of a run that changed a store, or would. ``undo`` is the id of the run if it can be undone, else None."""

    bases: list[BaseName]
    actions: list[Action]
    left: list[Unresolved]
    undo: str | None
    #: Salvage reports of damaged files.
    salvaged: list[SalvagedFile] | msgspec.UnsetType = msgspec.UNSET
    #: The run that an undo has undone.
    undone: str | msgspec.UnsetType = msgspec.UNSET
    #: Bases whose vectors an undo removes; there may be no other copy.
    removed_vectors: list[str] | msgspec.UnsetType = msgspec.UNSET


def base_names(store: Store, bases: Iterable[str]) -> list[BaseName]:
    """Pair base ids, sorted, with their names."""
    return [BaseName(id=base, name=store.names.get(base, base)) for base in sorted(bases)]


def report_plan(store: Store, run: Run, plan: Plan, undo: str | None = None) -> ChangeReport:
    """Make the report of a plan that was executed or is only shown, and note the time as the end of the run.

    ``undo`` is the id of the run if it can be undone, else None.
    """
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


def shrink_file(root: Path, planned: Reclaim) -> Reclaim:
    """Return the free pages of one index file to the disk; the result says how many bytes that freed.

    Raises:
        StoreBusy: another program has the file open.
        FullTextOutOfStep: the full-text index does not match the bodies.
        apsw.Error: SQLite failed; the file is unchanged.
    """
    path = root / planned.path
    try:
        with sqlite.open_writable(path) as db:
            done = reclaim_space(db, path, "always")
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    before, after = format_bytes(done.bytes_before), format_bytes(done.bytes_after)
    message = tr(
        "shrank the index file from {before} to {after}",
        before=before,
        after=after,
    )
    freed = max(done.bytes_before - done.bytes_after, 0)
    return replace(planned, action=structs.replace(planned.action, message=message, bytes=freed))


class OutsideUndo(msgspec.Struct, frozen=True, kw_only=True):
    """What the undo of a run does outside of the store.

    ``during`` is entered before the changes in the store are undone. It takes back what it did if that fails.
    ``removed_vectors`` are the bases of the store whose vectors the undo removes and that may have no other copy;
    ``lost_origin`` is a path from which some of them were copied and that no longer exists.
    """

    removed_vectors: list[str] = msgspec.field(default_factory=list)
    lost_origin: str | None = None
    actions: list[Action] = msgspec.field(default_factory=list)
    during: Callable[[], AbstractContextManager[None]] = nullcontext


# --- running a command -----------------------------------------------------------------------------------------------


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
    """Plan the changes of a command to a store, make them, and return the report.

    Args:
        command: the command's name.
        path: the store, or a part of it.
        planner: reads the store, writes nothing, and returns the plan.
        kind: the kind of the store, if the user names it.
        bases: ids of the chosen bases; empty: all.
        now_ms: the time that ages are relative to; None: now.
        dry_run: return the plan without changing anything.
        progress: receives the progress of the changes.
        show_plan: called with the report of the plan before anything is changed. False stops the run.

    Raises:
        ChangeUnfinished: a stopped run has moved a file of the store away, so the plan of a dry run would be wrong.
        RegraftError: refused (exit status 2), stopped after some changes (3) or interrupted (130).
    """
    again = partial(open_for_change, path, kind, command, bases, now_ms)
    with again() as named:
        run = Run(command=command, dry_run=dry_run, source_kind=named.found.kind.value, source=path)
        if dry_run:
            execution.demand_in_place(named.root)
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
    """Make the changes of a plan in order. Errors are those of :meth:`ChangeExecutor.make`."""
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
    outside_of: Callable[[Store, RunRecord, Sequence[RunRecord]], OutsideUndo] = lambda *_: OutsideUndo(),
    completed: str | None = None,
) -> ChangeReport:
    """Undo a run: ``run_id``, or the latest run that can be undone. Returns the report.

    ``outside_of`` returns what the undo of the chosen run, one of all runs in the ledger, does outside of the store; by
    default nothing. ``completed``: a run whose killed undo was completed now (:func:`complete_killed_undo`), to report.

    Raises:
        RunUnknown: there is no such run, or it was already undone.
        UndoOfLastCopy: no run is named, and what its vectors were copied from is gone.
        UndoRefused: the files were changed since the run. Nothing is undone.
        RegraftError: as for :func:`run_command`.
    """
    with open_for_change(path, kind, "undo") as store:
        run = Run(command="undo", dry_run=dry_run, source_kind=store.found.kind.value, source=path)
        if not dry_run:
            completed = complete_killed_undo(store) or completed
        runs = ledgers.read_runs(store.root)
        if completed is not None and (run_id is None or undo.is_named(completed, run_id)):
            return _undo_report(store, run, next(one for one in runs if one.run_id == completed), [], OutsideUndo())
        chosen = undo.select_run(store.root, store.runs(runs), run_id)
        if dry_run:
            with reading_store(store):
                undo.demand_unchanged(store.root, chosen, dry_run=True)
            outside = outside_of(store, chosen, runs)
            return _undo_report(store, run, chosen, *_parts_of_undo(store, chosen, outside, run_id))
        try:
            with open_session(store) as current:
                runs = current.ledger.changes.runs()
                chosen = undo.select_run(store.root, store.runs(runs), run_id)
                rebuilt, outside = _parts_of_undo(store, chosen, outside_of(store, chosen, runs), run_id)
                planned = _undo_report(store, run, chosen, rebuilt, outside)
                if planned.removed_vectors:
                    # The plan warns of their loss: an undo that is refused anyway is refused before.
                    undo.demand_unchanged(store.root, chosen, dry_run=True)
                if not show_plan(planned):
                    raise Declined(path=path)
                with exclusive_access(store):
                    _apply_undo(current, run, chosen, planned, rebuilt, outside, progress)
        except (Interrupted, KeyboardInterrupt):
            if not undo.is_undone(store.root, chosen.run_id):
                raise
            # The last change was undone. Run again, as the error advises, the command would undo an earlier run.
            outside = OutsideUndo()
        return _undo_report(store, run, chosen, rebuilt, outside)


def _apply_undo(
    current: Session,
    run: Run,
    chosen: RunRecord,
    planned: ChangeReport,
    rebuilt: Sequence[RecordedChange],
    outside: OutsideUndo,
    progress: Progress,
) -> None:
    """Record the undo ``run``, and undo the changes of a run, if the store is still as it was planned.

    Args:
        current: the locked store.
        run: this run.
        chosen: the run to undo.
        planned: the report of the plan.
        rebuilt: the changes that the undo leaves, by the plan.
        outside: what it does outside of the store.
        progress: notified of every file.

    Raises:
        PlanOutdated, UndoRefused: the store was changed. Nothing is undone.
    """
    root = current.store.root
    if undo.rebuilt_caches(root, chosen) != rebuilt:
        raise PlanOutdated(path=root, reason=tr("it was changed in the meantime"))
    stamps = undo.read_stamps(root, chosen)
    undo.demand_unchanged(root, chosen)
    current.begin(run, planned.actions)
    with stage(progress, tr("Undoing"), len(chosen.changes), "files"), outside.during():
        undo.undo_changes(root, current.ledger, chosen.run_id, stamps)


def _parts_of_undo(
    store: Store, chosen: RunRecord, outside: OutsideUndo, run_id: str | None
) -> tuple[list[RecordedChange], OutsideUndo]:
    """Return the changes of a run that its undo leaves, and ``outside``, what it does outside of the store.

    ``run_id`` is the name that the user gave.

    Raises:
        UndoOfLastCopy: the user named no run, and what its vectors were copied from is gone.
    """
    if run_id is None and outside.lost_origin is not None:
        raise UndoOfLastCopy(
            path=store.root,
            run=chosen.run_id,
            bases=language.format_count(len(outside.removed_vectors), "base"),
            origin=printable(outside.lost_origin),
            pack=_pack_command(store.path, outside.removed_vectors),
            again=join_command(["regraft", "undo", path_argument(store.path), chosen.run_id]),
        )
    return undo.rebuilt_caches(store.root, chosen), outside


def complete_killed_undo(store: Store) -> str | None:
    """Recover from a killed run. Returns the id of the run whose undo was killed and is now complete, or None.

    Raises:
        TargetLocked, StoreNotWritable, ApplicationOpen
    """
    open_runs = [one.run_id for one in store.runs(ledgers.read_runs(store.root)) if undo.is_being_undone(one)]
    recover_if_interrupted(store, is_open=bool(open_runs))
    return next((run_id for run_id in open_runs if undo.is_undone(store.root, run_id)), None)


def _pack_command(path: Path, bases: Iterable[str]) -> str:
    """Return the command line that packs bases of the store at ``path``."""
    words = [word for base in bases for word in ("--base", base)]
    return join_command(["regraft", "pack", path_argument(path), "packed.zip", *words])


def describe_removed_vectors(report: ChangeReport, path: Path) -> str | None:
    """Warn that an undo removes the vectors that a run brought into the store at ``path``; None if it removes none.

    An undo cannot be undone, and what the vectors were copied from may be gone since.
    """
    bases = report.removed_vectors or []
    if not bases:
        return None
    return tr(
        "The vectors that this run brought are removed from {bases}. If there is no other copy, pack them first: "
        "{command}",
        bases=language.format_count(len(bases), "base"),
        command=_pack_command(path, bases),
    )


def _undo_report(
    store: Store, run: Run, chosen: RunRecord, rebuilt: Sequence[RecordedChange], outside: OutsideUndo
) -> ChangeReport:
    """Report an undo.

    Args:
        store: the store.
        run: the run of the undo itself.
        chosen: the run that is undone.
        rebuilt: its changes that stay, because their system has rebuilt the cache that they removed.
        outside: what is undone outside of the store.
    """
    actions, kept_paths = [], {change.path for change in rebuilt}
    for made in undo.completed_actions(chosen):
        if made.subject in kept_paths or made.action in OUTSIDE_ACTIONS:
            continue
        fields = structs.asdict(made)
        message = tr("undo: {what}", what=language.translate_text(made.message, current_language()))
        actions.append(Action(**{**fields, "message": message}))
    actions += outside.actions
    left = []
    for change in rebuilt:
        first_action, _ = change.detail.actions
        finding = chosen.actions[first_action].finding or ""
        path = printable(change.path)
        reason = tr(
            "the application has rebuilt the cache {path}, so the old one is deleted instead of restored", path=path
        )
        left.append(Unresolved(finding=finding, reason=reason, subject=change.path))
    bases = base_names(store, {action.base for action in actions if action.base is not None})
    run.end()
    return ChangeReport(
        head=run.head(),
        bases=bases,
        actions=actions,
        left=left,
        undo=None,
        undone=chosen.run_id,
        removed_vectors=outside.removed_vectors or msgspec.UNSET,
    )


def make_plan(store: Store, planner: Planner) -> Plan:
    """Call the planner, and report errors of reading the store as such.

    Raises:
        SourceUnreadable: the store cannot be read.
    """
    with reading_store(store):
        return planner(store)


def demand_unchanged_files(store: Store, plan: Plan) -> None:
    """Refuse a plan if a file that the planner read was changed since.

    Raises:
        PlanOutdated
    """
    for name, stamp in plan.read.items():
        path = store.root / name
        if files.file_stamp(path) != stamp:
            raise PlanOutdated(path=path, reason=tr("it was changed in the meantime"))


def _expire(current: Session, run: Run, plan: Plan) -> None:
    """Delete the undo data of the expired runs that the plan lists, and of this run if the plan keeps none."""
    expired = list(plan.expired)
    if not plan.keeps_undo:
        expired += [change for change in current.ledger.changes.changes_of(run.id) if change.state == "done"]
    execution.expire_changes(current.store.root, current.ledger, expired)


def check_resolved(current: Session, run: Run, plan: Plan) -> list[Unresolved]:
    """Audit the changed bases again, and undo the run if a finding that it was to resolve still exists.

    Findings that the plan itself leaves, and those that the audit calls beyond repair, do not count.

    Returns:
        Errors of new bases that were copied with their rows and that the plan does not list yet.

    Raises:
        NotMended: a finding that the run was to resolve still exists.
    """
    if not (plan.resolves or plan.new_bases):
        return []
    store = current.store
    reported = {(one.finding, one.base) for one in plan.left}
    # The path that the user named may be gone, for example the folder of a deleted orphan.
    with reopen_for_check(store, run.command) as after:
        found = [one for one in _audit_after(after, plan) if (one.name, one.base) not in reported]
    unresolved = sorted({one.name for one in found if _breaks_promise(one, plan)})
    if unresolved:
        undo.undo_changes(store.root, current.ledger, run.id)
        raise NotMended(path=store.path, findings=join_list(unresolved), run=run.id)
    if not plan.lists_inherited:
        return []
    inherited = (one for one in found if one.base in plan.new_bases and FINDINGS[one.name].severity == "error")
    return [Unresolved.with_remedy(one, repair=one.repair) for one in inherited]


def _audit_after(after: Store, plan: Plan) -> Iterator[Finding]:
    """Audit the store ``after`` the run: new bases for all findings, others for those that the plan promises to fix."""
    touched = frozenset(base for _, base in plan.resolves if base is not None) | plan.new_bases.keys()
    if touched:
        promised = (
            frozenset() if plan.new_bases else frozenset(name for name, base in plan.resolves if base is not None)
        )
        yield from after.audit(plan.level, touched, promised).findings
    promised = frozenset(name for name, base in plan.resolves if base is None)
    if promised:
        # Findings of no base come from rows of the catalog and names of files; other systems may have no bases at all.
        level = Level.DEFAULT if after.found.kind in SYSTEMS else Level.QUICK
        found = after.audit(level, names=promised).findings
        yield from (one for one in found if one.base is None or one.base not in touched)


def _breaks_promise(finding: Finding, plan: Plan) -> bool:
    """Whether the run was to resolve a finding, or the finding is a new error in a base that the run created."""
    if (finding.name, finding.base) in plan.resolves and not finding.is_beyond_repair:
        return True
    inherited = None if finding.base is None else plan.new_bases.get(finding.base)
    is_error = finding.severity == "error" and not finding.name.startswith("v1.")
    return is_error and inherited is not None and finding.name not in inherited


def demand_space(store: Store, plan: Plan) -> None:
    """Refuse a plan that needs more disk space than there is.

    Raises:
        NotEnoughSpace
    """
    needed = _LEDGER_BYTES + sum(execution.bytes_needed(store.root, change) for change in plan.changes)
    # VACUUM writes the remaining pages once more, and so does its journal.
    needed += 2 * max((one.bytes for one in plan.reclaims), default=0)
    free = shutil.disk_usage(store.root).free
    if needed > free:
        raise NotEnoughSpace(path=store.root, needed=format_bytes(needed), free=format_bytes(free))
