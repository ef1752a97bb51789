"""Running a plan: what takes each change back is recorded first, each file changes in one step, then it is checked.

Rules: ``docs/formats/library.md``, "Changes".
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import apsw
from msgspec import structs

from checks.audit.collector import Level
from checks.audit.findings import Finding
from regraft import sqlite
from regraft.errors import (
    REFUSED,
    ChangesStopped,
    Declined,
    Interrupted,
    LedgerUnreadable,
    NotEnoughSpace,
    NotMended,
    RegraftError,
    SourceUnreadable,
    StoreDamaged,
    StoreNotWritable,
    TargetLocked,
)
from regraft.kinds import SYSTEMS, Kind
from regraft.ledger import durable
from regraft.ledger import ledger as ledgers
from regraft.ledger.changes import RunRecord
from regraft.ledger.ledger import Ledger
from regraft.ledger.values import WORK
from regraft.report.document import Run
from regraft.report.progress import Progress, human_bytes, stage
from regraft.schema_errors import StoppedAtDamage
from regraft.text import path_text, shown
from repair.changes import apply, space, undo
from repair.changes.apply import ChangeExecutor
from repair.changes.plan import Action, Plan
from repair.changes.report import ChangeReport, base_names, reported
from repair.changes.store import Store, demand_quiet, recognised, recognised_after

logger = logging.getLogger(__name__)

Planner = Callable[[Store], Plan]
#: What fails where a pipe, a file or a link in a circle stands in the place of a folder, or a folder in that of a file.
_ODD_PLACES = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
#: Room that every run takes for its records, in bytes.
_RECORDS = 1 << 20


def run_command(
    command: str,
    path: Path,
    planner: Planner,
    *,
    kind: Kind | None = None,
    bases: tuple[str, ...] = (),
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
        dry_run: return the plan and touch nothing.
        progress: told of the changes.
        show_plan: called with the plan's report before anything is changed; False stops here.

    Raises:
        RegraftError: refused (exit status 2), stopped midway (3) or interrupted (130).
    """
    with recognised(path, kind, command, bases) as store:
        run = Run(command=command, dry_run=dry_run, source_kind=store.found.kind.value, source=path)
        if dry_run:
            plan = _planned(store, planner)
            logger.info("nothing is written: only the plan was asked for")
            run.end()
            return reported(store, run, plan)
        demand_quiet(store)
        with opened(store) as ledger, clean_stop(store, ledger):
            if apply.recover(store.root, ledger):
                with recognised(path, kind, command, bases) as settled:
                    return _carry_out(settled, ledger, run, _planned(settled, planner), progress, show_plan)
            return _carry_out(store, ledger, run, _planned(store, planner), progress, show_plan)


def _planned(store: Store, planner: Planner) -> Plan:
    with looking(store):
        return planner(store)


@contextmanager
def looking(store: Store) -> Iterator[None]:
    """Report what cannot be looked at before anything is written."""
    try:
        yield
    except RegraftError:
        raise
    except (OSError, apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=store.path, reason=getattr(error, "strerror", None) or error) from error


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
            run.end()
            return _undo_report(store, run, chosen)
        demand_quiet(store)
        with opened(store) as ledger, clean_stop(store, ledger):
            apply.recover(store.root, ledger)
            chosen = undo.chosen_run(store.root, store.runs(ledger.changes.runs()), run_id)
            planned = _undo_report(store, run, chosen)
            if not show_plan(planned):
                raise Declined(path=path)
            undo.demand_unchanged(store.root, chosen)
            ledger.begin_run("undo", path_text(path), run.id)
            ledger.changes.record_actions(run.id, planned.actions)
            with stage(progress, "Taking back", len(chosen.changes)):
                undo.take_back(store.root, ledger, chosen.run_id)
            ledger.end_run("finished")
        run.end()
        return structs.replace(planned, head=run.head())


def _undo_report(store: Store, run: Run, chosen: RunRecord) -> ChangeReport:
    actions = []
    for made in undo.made_actions(chosen):
        fields = structs.asdict(made)
        actions.append(Action(**{**fields, "message": f"take back: {made.message}"}))
    bases = base_names(store, {action.base for action in actions if action.base is not None})
    return ChangeReport(head=run.head(), bases=bases, actions=actions, left=[], undo=None, undone=chosen.run_id)


def _carry_out(
    store: Store,
    ledger: Ledger,
    run: Run,
    plan: Plan,
    progress: Progress,
    show_plan: Callable[[ChangeReport], bool],
) -> ChangeReport:
    planned = reported(store, run, plan)
    if not (plan.changes or plan.reclaims or plan.expired):
        run.end()
        return structs.replace(planned, head=run.head())
    _check_space(store, plan)
    changer = ChangeExecutor(store.root, ledger, run.id, plan.changes)
    if not show_plan(planned):
        raise Declined(path=store.path)
    changer.demand_free(plan.changes)
    ledger.begin_run(run.command, path_text(store.path), run.id)
    ledger.changes.record_actions(run.id, planned.actions)
    with stage(progress, "Changing", len(plan.changes)):
        for change in plan.changes:
            progress.at(change.path)
            changer.make(change)
            progress.step(1, change.bytes)
    _check_mended(store, ledger, run, plan)
    _expire(store, ledger, run, plan)
    plan.reclaims = [space.give_back(store.root, reclaim) for reclaim in plan.reclaims]
    apply.clean(store.root)
    ledger.end_run("finished")
    run.end()
    undo_id = run.id if plan.changes and plan.keeps_undo else None
    return reported(store, run, plan, undo_id)


def _expire(store: Store, ledger: Ledger, run: Run, plan: Plan) -> None:
    own = () if plan.keeps_undo else ledger.changes.changes_of(run.id)
    apply.expire(store.root, ledger, (*plan.expired, *(change for change in own if change.state == "done")))


def _check_mended(store: Store, ledger: Ledger, run: Run, plan: Plan) -> None:
    """Check what was touched again; where something is not mended, all of the run is taken back."""
    if not plan.resolves:
        return
    # What was chosen may be gone: it was the folder of no base.
    with recognised_after(store, run.command) as after:
        found = {(one.name, one.base) for one in _found_after(after, plan)}
    still = sorted({name for name, base in plan.resolves if (name, base) in found})
    if still:
        undo.take_back(store.root, ledger, run.id)
        raise NotMended(path=store.path, findings=", ".join(still), run=run.id)


def _found_after(after: Store, plan: Plan) -> Iterator[Finding]:
    """Yield what is found in what a plan promises something of."""
    touched = frozenset(base for _, base in plan.resolves if base is not None)
    if touched:
        yield from after.audit(plan.level, touched).findings
    if any(base is None for _, base in plan.resolves):
        # Of no base is what rows of the catalog and names of files tell; another system may have no bases at all.
        level = Level.DEFAULT if after.found.kind in SYSTEMS else Level.QUICK
        yield from after.audit(level).findings


def _check_space(store: Store, plan: Plan) -> None:
    needed = _RECORDS + sum(apply.room(store.root, change) for change in plan.changes)
    # VACUUM writes what stays once more, and so does its journal.
    needed += 2 * max((one.bytes for one in plan.reclaims), default=0)
    free = shutil.disk_usage(store.root).free
    if needed > free:
        raise NotEnoughSpace(path=store.root, needed=human_bytes(needed), free=human_bytes(free))


@contextmanager
def opened(store: Store) -> Iterator[Ledger]:
    """Open the store's ledger, which keeps every other run out; what was made for it goes again if nothing is in it.

    Raises:
        TargetLocked: another run has it.
        StoreNotWritable
    """
    # The folder may be there without a ledger: the ledger alone is made then.
    new = next((path for path in (store.own, ledgers.path_of(store.root)) if not os.path.lexists(path)), None)
    unused = new
    try:
        with contextlib.ExitStack() as stack:
            try:
                durable.make_folders(store.own)
                ledger = stack.enter_context(ledgers.opened(store.root))
            except RegraftError:
                raise
            except (OSError, apsw.Error) as error:
                reason = getattr(error, "strerror", None) or error
                raise StoreNotWritable(path=store.root, reason=reason) from error
            # From now on it may hold what takes a run back: whatever comes, it goes only after it was looked at.
            unused = None
            try:
                yield ledger
            finally:
                # A run that was stopped before it changed anything leaves nothing, as one that was refused.
                if _says_nothing(store, ledger):
                    unused = new
    except TargetLocked:
        unused = None
        raise
    finally:
        if unused is not None:
            with contextlib.suppress(OSError, RegraftError):
                durable.remove_tree(unused)


def _says_nothing(store: Store, ledger: Ledger) -> bool:
    """Tell whether a ledger has nothing to take back, and nothing waits; one that cannot be read just now may have."""
    try:
        made = any(change.state != "dropped" for change in ledger.changes.every())
    except (apsw.Error, LedgerUnreadable):
        return False
    return not made and not apply.is_waiting(store.own)


def settle_remains(store: Store) -> None:
    """Settle what a killed run was making, where the run that is asked for may be refused before it would do so.

    Raises:
        TargetLocked, StoreNotWritable, ApplicationOpen
    """
    if (store.own / WORK).exists():
        demand_quiet(store)
        with opened(store) as ledger:
            apply.recover(store.root, ledger)


def _reason(error: Exception) -> str:
    """Return what an error says; of the system's, of which file, too, where it tells."""
    if not isinstance(error, OSError):
        return str(error)
    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{shown(os.fsdecode(error.filename))}: {reason}"


@contextmanager
def clean_stop(store: Store, ledger: Ledger) -> Iterator[None]:
    """Leave every file whole, whatever stops the run; what is refused once something was changed was stopped."""
    before = {change.change_id: change.state for change in ledger.changes.every()}
    leave = partial(_leave_whole, store, ledger, before)
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(finished=leave("interrupted")) from error
    except RegraftError as error:
        finished = leave("stopped")
        if finished and error.exit_status == REFUSED:
            raise ChangesStopped(path=store.root, reason=str(error).rstrip("."), finished=finished) from error
        raise
    except (OSError, apsw.Error, UnicodeDecodeError) as error:
        reason, finished = _reason(error), leave("stopped")
        if is_of_the_store(error):
            raise at_damage(store.root, reason, f"changes: {finished}" if finished else None) from error
        raise ChangesStopped(path=store.root, reason=reason, finished=finished) from error
    except Exception:
        leave("stopped")
        raise


#: How many changes were made, where the ledger cannot be read any more.
_UNKNOWN = "unknown"


def _leave_whole(store: Store, ledger: Ledger, before: Mapping[int, str], status: str) -> int | str:
    """End a run that was stopped; return how many changes it made, as far as that can be told."""
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        apply.recover(store.root, ledger)
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        # What is being made tells the next run how far an unsettled change has come.
        if not ledger.changes.open_changes():
            apply.clean(store.root)
    with contextlib.suppress(OSError, apsw.Error, RegraftError):
        ledger.end_run(status)
        return sum(_is_finished(before.get(one.change_id), one.state) for one in ledger.changes.every())
    # The disk does not even give the ledger: nobody may be told that nothing was written.
    return _UNKNOWN


def at_damage(path: Path, reason: object, finished: str | None) -> RegraftError:
    """Return what is said where damage stops a run; ``finished`` is what stays of it, None where nothing does."""
    if finished is None:
        return StoreDamaged(path=path, reason=reason)
    return StoppedAtDamage(path=path, reason=reason, finished=finished)


def is_of_the_store(error: Exception) -> bool:
    """Tell whether an error comes of what is in a store, and not of the system: the next try would come to the same."""
    if isinstance(error, OSError):
        return error.errno in _ODD_PLACES
    return isinstance(error, (*sqlite.CONTENT_ERRORS, UnicodeDecodeError))


def _is_finished(before: str | None, now: str) -> bool:
    """Tell whether a change was made, or taken back, since it was in state ``before``."""
    return (before is None and now == "done") or (before == "done" and now == "undone")
