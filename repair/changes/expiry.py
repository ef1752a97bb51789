"""What earlier runs kept so that they can be taken back, once its time is over."""

from __future__ import annotations

from collections.abc import Iterator

from regraft.clock import iso_time
from regraft.language import tr
from regraft.ledger import ledger
from regraft.ledger.changes import RunRecord
from regraft.ledger.values import Recorded
from regraft.records import replace
from repair.changes.plan import Action, Plan
from repair.changes.store import Store
from repair.options import GcOptions

_DAY_MS = 86_400_000
#: States of a change of which nobody knows yet what became of it.
_OPEN = {"intended", "undoing"}


def beside(own: Plan, store: Store, options: GcOptions) -> Plan:
    """Return a plan with what is kept no longer, too; a part of a store, or of the findings, leaves all of it.

    Raises:
        LedgerUnreadable
    """
    expired: list[Recorded] = []
    expiring: list[Action] = []
    for run, kept in _due(store, options):
        when = iso_time(run.started_at)
        message = tr(
            "empty what regraft {command} of {when} kept: it cannot be taken back afterwards",
            command=run.command,
            when=when,
        )
        size = sum(change.bytes for change in kept)
        expired += kept
        expiring.append(Action(action="expire", message=message, subject=run.run_id, count=len(kept), bytes=size))
    keeps_undo = options.grace != 0
    if own.changes and not keeps_undo:
        size = sum(action.bytes for action in own.actions if action.finding is not None)
        message = tr("keep nothing of this run: it cannot be taken back afterwards")
        expiring.append(Action(action="expire", message=message, count=len(own.changes), bytes=size))
    return replace(own, expired=expired, expiring=expiring, keeps_undo=keeps_undo)


def _due(store: Store, options: GcOptions) -> Iterator[tuple[RunRecord, list[Recorded]]]:
    """Yield the runs whose time is over, each with its changes that could still be taken back."""
    if store.chosen or options.only or not options.expires:
        return
    latest = options.now_ms - options.grace * _DAY_MS
    for run in ledger.read_runs(store.root):
        is_over = (run.finished_at or run.started_at) <= latest
        kept = _kept(run) if is_over else []
        if kept:
            yield run, kept


def _kept(run: RunRecord) -> list[Recorded]:
    """Return the changes of a run that could be taken back; none while it is not known what became of all of them."""
    if any(change.state in _OPEN for change in run.changes):
        return []
    return [change for change in run.changes if change.state == "done"]
