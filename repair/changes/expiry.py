"""What earlier runs kept so that they can be taken back, once its time is over."""

from __future__ import annotations

from regraft.clock import iso_time
from regraft.ledger import ledger
from regraft.ledger.changes import RunRecord
from repair.changes.plan import Action, Plan
from repair.changes.store import Store
from repair.options import GcOptions

_DAY_MS = 86_400_000
#: States of a change of which nobody knows yet what became of it.
_OPEN = {"intended", "undoing"}


def plan(store: Store, options: GcOptions, made: Plan) -> None:
    """Add what is kept no longer to a plan; a part of a store, or of the findings, leaves all of it.

    Raises:
        LedgerUnreadable
    """
    made.keeps_undo = options.grace != 0
    if not store.chosen and not options.only:
        for run in ledger.read_runs(store.root):
            if (run.finished_at or run.started_at) <= options.now_ms - options.grace * _DAY_MS:
                _expire(run, made)
    if made.changes and not made.keeps_undo:
        size = sum(action.bytes for action in made.actions if action.finding is not None)
        message = "keep nothing of this run: it cannot be taken back afterwards"
        made.expiring.append(Action(action="expire", message=message, count=len(made.changes), bytes=size))


def _expire(run: RunRecord, made: Plan) -> None:
    kept = [change for change in run.changes if change.state == "done"]
    if not kept or any(change.state in _OPEN for change in run.changes):
        return
    message = f"empty what regraft {run.command} of {iso_time(run.started_at)} kept: it cannot be taken back afterwards"
    size = sum(change.bytes for change in kept)
    made.expired += kept
    made.expiring.append(Action(action="expire", message=message, subject=run.run_id, count=len(kept), bytes=size))
