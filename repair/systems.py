"""What ``repair``, ``reconcile`` and ``gc`` plan in which kind of store: v2 data, or a store of another system."""

from __future__ import annotations

from collections.abc import Callable

from regraft.kinds import V2_STORES, Kind
from repair.angel_memory import gc as angel_gc
from repair.angel_memory import records as angel_records
from repair.backfill.scope import Filler
from repair.changes.plan import Plan
from repair.changes.store import Store
from repair.cherry_v2 import gc, reconcile
from repair.cherry_v2.backfill.filler import IndexFiller
from repair.cherry_v2.rules import planner
from repair.codex_mem import full_text
from repair.codex_mem import reconcile as codex_mem_reconcile
from repair.codex_mem.backfill_filler import NotesFiller
from repair.options import GcOptions, RepairOptions

_MENDS: dict[Kind, Callable[[Store, RepairOptions], Plan]] = {
    Kind.CODEX_MEM: full_text.plan,
    Kind.ANGEL_MEMORY: angel_records.plan,
}
_RECONCILES: dict[Kind, Callable[[Store], Plan]] = {Kind.CODEX_MEM: codex_mem_reconcile.plan}
_COLLECTS: dict[Kind, Callable[[Store, GcOptions], Plan]] = {Kind.ANGEL_MEMORY: angel_gc.plan}

#: What backfill fills.
FILLERS: dict[Kind, Filler] = {**dict.fromkeys(V2_STORES, IndexFiller()), Kind.CODEX_MEM: NotesFiller()}

#: Findings that ``repair`` mends, of all kinds.
REPAIRED = (*planner.NAMES, *planner.BY_NAME, *full_text.NAMES, *angel_records.NAMES)
#: Findings that ``gc`` removes what they are about, of all kinds.
COLLECTED = (*gc.NAMES, *angel_gc.NAMES)


def plan_repair(store: Store, options: RepairOptions) -> Plan:
    """Return what ``repair`` is going to do; nothing is written."""
    return _MENDS.get(store.found.kind, planner.plan)(store, options)


def plan_reconcile(store: Store) -> Plan:
    """Return what ``reconcile`` is going to do without an embedder; nothing is written."""
    return _RECONCILES.get(store.found.kind, reconcile.plan)(store)


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Return what ``gc`` is going to do; nothing is written."""
    return _COLLECTS.get(store.found.kind, gc.plan)(store, options)
