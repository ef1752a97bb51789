"""The planners that change the stores of each system: ``REPAIRS`` of the package ``repair.SYSTEM``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import msgspec

from regraft.errors import WrongUsage
from regraft.kinds import KIND_NAMES, SYSTEMS, V2_STORES, Kind
from regraft.language import tr
from repair.changes.plan import Plan
from repair.changes.store import Store
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


def repairs_for(kind: Kind) -> Repairs:
    """Return the planners for stores of a kind: ``REPAIRS`` of its package, or none."""
    package = f"repair.{kind.system or ('cherry_v2' if kind in V2_STORES else '')}"
    if package.endswith(".") or find_spec(package) is None:
        return Repairs()
    return cast(Repairs, import_module(package).REPAIRS)


def repaired_findings() -> tuple[str, ...]:
    """Return the findings that ``repair`` resolves, of stores of every system."""
    return _of_all_systems(lambda repairs: repairs.repaired)


def reconciled_findings() -> tuple[str, ...]:
    """Return the findings that ``reconcile`` resolves, of stores of every system."""
    return _of_all_systems(lambda repairs: repairs.reconciled)


def collected_findings() -> tuple[str, ...]:
    """Return the findings that ``gc`` resolves by deletion, of stores of every system."""
    return _of_all_systems(lambda repairs: repairs.collected)


def fillers() -> dict[Kind, Filler]:
    """Return the filler of each kind of store that ``backfill`` takes."""
    found = {kind: repairs_for(kind).filler for kind in (*V2_STORES, *SYSTEMS)}
    return {kind: filler for kind, filler in found.items() if filler is not None}


def _of_all_systems(names: Callable[[Repairs], tuple[str, ...]]) -> tuple[str, ...]:
    kinds = (V2_STORES[0], *SYSTEMS)
    return tuple(dict.fromkeys(name for kind in kinds for name in names(repairs_for(kind))))


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
    repaired = repairs_for(store.found.kind).repair
    if repaired is None:
        raise ValueError(tr("nothing of {kind} is repaired", kind=store.found.kind))
    return repaired(store, options)


def plan_reconcile(store: Store, options: ReconcileOptions) -> Plan:
    """Return what ``reconcile`` is going to do without an embedder; nothing is written."""
    reconciled = repairs_for(store.found.kind).reconcile
    if reconciled is None:
        raise ValueError(tr("{kind} is reconciled with an embedder", kind=store.found.kind))
    return reconciled(store, options)


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Return what ``gc`` is going to do; nothing is written."""
    collected = repairs_for(store.found.kind).gc
    if collected is None:
        raise ValueError(tr("nothing of {kind} is collected", kind=store.found.kind))
    return collected(store, options)
