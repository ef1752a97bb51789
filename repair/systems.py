"""The planners that change the stores of each system: ``REPAIRS`` of the package ``repair.SYSTEM``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import cast

import msgspec

from regraft.errors import WrongUsage
from regraft.kinds import KIND_NAMES, SYSTEMS, V2_STORES, Kind
from regraft.language import tr
from repair.changes.options import GcOptions, ReconcileOptions, RepairOptions
from repair.changes.plan import Plan
from repair.changes.store import Store
from repair.embedding.scope import Filler


class Repairs(msgspec.Struct, frozen=True, kw_only=True):
    """Planners of one system; they write nothing. None: the system does not support the command.

    :attr:`regraft.stores.systems.System.commands` names the commands that accept its stores.
    """

    repair: Callable[[Store, RepairOptions], Plan] | None = None
    #: Findings that ``repair`` resolves.
    repaired: tuple[str, ...] = ()
    #: Plans ``reconcile`` without an embedder.
    reconcile: Callable[[Store, ReconcileOptions], Plan] | None = None
    #: Findings that ``reconcile`` resolves.
    reconciled: tuple[str, ...] = ()
    gc: Callable[[Store, GcOptions], Plan] | None = None
    #: Findings that ``gc`` resolves by deletion.
    collected: tuple[str, ...] = ()
    #: Fills missing vectors.
    filler: Filler | None = None


def repairs_for(kind: Kind) -> Repairs:
    """Return the planners for stores of a kind: ``REPAIRS`` of the system's package, or none."""
    if kind in V2_STORES:
        package = "repair.cherry_v2.rules"
    elif kind.system and find_spec(f"repair.{kind.system}") is not None:
        package = f"repair.{kind.system}"
    else:
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
    """Collect the finding names that ``names`` takes from the planners of every system, each once."""
    kinds = (V2_STORES[0], *SYSTEMS)
    return tuple(dict.fromkeys(name for kind in kinds for name in names(repairs_for(kind))))


def _demand_v2(store: Store, options: Mapping[str, bool]) -> None:
    """Refuse options for v2 data if the store is of another system.

    Args:
        store: the store.
        options: for each option, whether the user gave it.

    Raises:
        WrongUsage
    """
    for name, is_given in options.items():
        if is_given and store.found.kind not in V2_STORES:
            problem = tr(
                "{name} applies only to v2 data of Cherry Studio, and this is {kind}",
                name=name,
                kind=KIND_NAMES[store.found.kind],
            )
            raise WrongUsage(problem=problem, hint=tr("leave it out"))


def plan_repair(store: Store, options: RepairOptions) -> Plan:
    """Plan ``repair`` of a store.

    Raises:
        WrongUsage: an option is for v2 data only.
    """
    is_given = {"--model": options.model is not None, "--adopt": options.adopt, "--salvage": options.salvage}
    _demand_v2(store, {**is_given, "--from": options.source is not None, "--moved": bool(options.moved)})
    if options.unproven and store.found.kind is not Kind.CHROMA:
        problem = tr("--unproven applies only to {kind}", kind=KIND_NAMES[Kind.CHROMA])
        raise WrongUsage(problem=problem, hint=tr("leave it out"))
    repaired = repairs_for(store.found.kind).repair
    if repaired is None:
        raise ValueError(tr("regraft repair does not support {kind}", kind=store.found.kind))
    return repaired(store, options)


def plan_reconcile(store: Store, options: ReconcileOptions) -> Plan:
    """Plan ``reconcile`` of a store without an embedder."""
    reconciled = repairs_for(store.found.kind).reconcile
    if reconciled is None:
        raise ValueError(tr("regraft reconcile of {kind} needs an embedder", kind=store.found.kind))
    return reconciled(store, options)


def plan_gc(store: Store, options: GcOptions) -> Plan:
    """Plan ``gc`` of a store.

    Raises:
        WrongUsage: an option is for v2 data only.
    """
    _demand_v2(store, {"--vacuum": options.vacuum, "--v1-leftovers": options.v1_leftovers})
    collected = repairs_for(store.found.kind).gc
    if collected is None:
        raise ValueError(tr("regraft gc does not support {kind}", kind=store.found.kind))
    return collected(store, options)
