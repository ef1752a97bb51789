"""What a run did to a store, or would do, as its document has it (``docs/commands.md``)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from regraft.report.document import Report, Run
from repair.changes.plan import Action, Plan, Unresolved
from repair.changes.salvaged import SalvagedFile
from repair.changes.store import Store


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


def reported(store: Store, run: Run, plan: Plan, undo: str | None = None) -> ChangeReport:
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
