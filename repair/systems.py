"""What changes the stores of each system: one adapter for each, all of one form; the application's own is the rest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from regraft.errors import WrongUsage
from regraft.kinds import KIND_NAMES, V2_STORES, Kind
from regraft.language import tr
from repair import rsclaw as rsclaw_gc
from repair import rsclaw as rsclaw_reconcile
from repair.angel_memory import gc as angel_gc
from repair.angel_memory import records as angel_records
from repair.changes.plan import Plan
from repair.changes.store import Store
from repair.cherry_v2 import gc, reconcile
from repair.cherry_v2.index_vectors import IndexFiller
from repair.cherry_v2.rules import planner
from repair.codex_mem import note_changes
from repair.codex_mem import reconcile as codex_mem_reconcile
from repair.codex_mem.note_vectors import NotesFiller
from repair.embedding.scope import Filler
from repair.options import GcOptions, ReconcileOptions, RepairOptions


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """What plans changes of a system's stores, none of which writes; None: the system does not need it.

    :attr:`regraft.stores.systems.System.commands` names the commands that get as far as this.
    """

    repair: Callable[[Store, RepairOptions], Plan] | None = None
    #: Findings that ``repair`` mends.
    repaired: tuple[str, ...] = ()
    #: Without an embedder.
    reconcile: Callable[[Store, ReconcileOptions], Plan] | None = None
    #: Findings that ``reconcile`` resolves.
    reconciled: tuple[str, ...] = ()
    gc: Callable[[Store, GcOptions], Plan] | None = None
    #: Findings that ``gc`` removes what they are about.
    collected: tuple[str, ...] = ()
    #: What backfill fills.
    filler: Filler | None = None


_V2 = Repairs(
    repair=planner.plan,
    repaired=(*planner.NAMES, *planner.BY_NAME),
    reconcile=reconcile.plan,
    reconciled=reconcile.NAMES,
    gc=gc.plan,
    collected=gc.NAMES,
    filler=IndexFiller(),
)
REPAIRS: dict[Kind, Repairs] = {
    **dict.fromkeys(V2_STORES, _V2),
    Kind.CODEX_MEM: Repairs(
        repair=note_changes.plan_full_text,
        repaired=note_changes.NAMES,
        reconcile=codex_mem_reconcile.plan,
        reconciled=codex_mem_reconcile.NAMES,
        filler=NotesFiller(),
    ),
    Kind.ANGEL_MEMORY: Repairs(
        repair=angel_records.plan,
        repaired=angel_records.NAMES,
        gc=angel_gc.plan,
        collected=angel_gc.NAMES,
    ),
    Kind.RSCLAW: Repairs(
        reconcile=rsclaw_reconcile.plan_reconcile,
        reconciled=rsclaw_reconcile.RECONCILE_FINDINGS,
        gc=rsclaw_gc.plan_gc,
        collected=rsclaw_gc.GC_FINDINGS,
    ),
}

FILLERS: dict[Kind, Filler] = {kind: one.filler for kind, one in REPAIRS.items() if one.filler is not None}
#: Of all kinds: findings that ``repair`` resolves, and those that ``gc`` resolves by deletion.
REPAIRED = tuple(dict.fromkeys(name for one in REPAIRS.values() for name in one.repaired))
COLLECTED = tuple(dict.fromkeys(name for one in REPAIRS.values() for name in one.collected))
#: Findings that ``reconcile`` resolves.
RECONCILED = tuple(dict.fromkeys(name for one in REPAIRS.values() for name in one.reconciled))


def plan_repair(store: Store, options: RepairOptions) -> Plan:
    """Return what ``repair`` is going to do; nothing is written.

    Raises:
        WrongUsage: an option is for bases, and the store has none.
    """
    of_bases = {"--model": options.model is not None, "--adopt": options.adopt, "--salvage": options.salvage}
    of_bases["--from"] = options.source is not None
    for name, is_given in of_bases.items():
        if is_given and store.found.kind not in V2_STORES:
            problem = tr(
                "{name} is for knowledge bases of the application, and this is {kind}",
                name=name,
                kind=KIND_NAMES[store.found.kind],
            )
            raise WrongUsage(problem=problem, hint=tr("leave it out"))
    repaired = REPAIRS[store.found.kind].repair
    if repaired is None:
        raise ValueError(tr("nothing of {kind} is repaired", kind=store.found.kind))
    return repaired(store, options)


def plan_reconcile(store: Store, options: ReconcileOptions) -> Plan:
    """Return what ``reconcile`` is going to do without an embedder; nothing is written."""
    reconciled = REPAIRS[store.found.kind].reconcile
    if reconciled is None:
        raise ValueError(tr("{kind} is reconciled with an embedder", kind=store.found.kind))
    return reconciled(store, options)


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Return what ``gc`` is going to do; nothing is written."""
    collected = REPAIRS[store.found.kind].gc
    if collected is None:
        raise ValueError(tr("nothing of {kind} is collected", kind=store.found.kind))
    return collected(store, options)
