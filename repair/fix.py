"""All that ``regraft check`` offers and that nothing has to be embedded for, in the order in which it works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from checks import systems as audits
from checks.audit.options import CheckOptions, CommandLine
from regraft.errors import SourceNotMigratable
from regraft.kinds import PREVIEW_SOURCES, V2_STORES
from repair import other_copies, proven_lines
from repair.changes.plan import Plan, Unresolved
from repair.changes.run import Planner
from repair.changes.store import Store
from repair.cherry_v2 import proven_hints, upgrade
from repair.cherry_v2.gc.choice import BY_NAME
from repair.cherry_v2.rescue.plan import RescueOptions
from repair.cherry_v2.rescue.plan import plan as plan_rescue
from repair.options import GcOptions, RepairOptions
from repair.systems import REPAIRS


def planners(now_ms: int, keep: ExitStack) -> tuple[Planner, ...]:
    """Return the steps: layouts first, what v1 still has, what can be derived, what follows, what nothing reaches.

    Args:
        now_ms: the run's time.
        keep: what is opened or extracted of v1 stays so until it closes.
    """
    return (
        partial(_upgrade, now_ms=now_ms),
        partial(_rescue, options=RescueOptions(now_ms=now_ms, keep=keep)),
        partial(_repair, options=RepairOptions(now_ms=now_ms)),
        _reconcile,
        partial(_collect, now_ms=now_ms),
    )


def remaining(store: Store, command_line: CommandLine) -> Iterator[Unresolved]:
    """Yield what ``check`` still finds, each with its reason and the command that may help."""
    wanted = CheckOptions(bases=tuple(sorted(store.chosen)), now_ms=store.now_ms)
    audit = audits.audit(store.found, wanted, command_line)
    if store.found.kind in V2_STORES:
        audit = proven_lines.with_working_lines(audit, store.found, wanted.bases, store.now_ms)
        audit = proven_hints.with_hints(audit, store.found, wanted.level, wanted.bases, command_line)
        audit = other_copies.with_copies(audit, store.found, store.path)
    for finding in audit.findings:
        if store.wants(finding.base):
            yield Unresolved.of(finding, finding.message, repair=finding.repair)


def _upgrade(store: Store, now_ms: int) -> Plan:
    if store.found.kind not in V2_STORES and store.found.kind not in PREVIEW_SOURCES:
        return Plan()
    return upgrade.plan(store, upgrade.UpgradeOptions(now_ms))


def _rescue(store: Store, options: RescueOptions) -> Plan:
    if not store.is_profile:
        return Plan()
    try:
        return plan_rescue(store, options)
    except SourceNotMigratable:
        # Nothing of v1 is left that could be brought back; what is missing is said at the end.
        return Plan()


def _repair(store: Store, options: RepairOptions) -> Plan:
    repairs = REPAIRS.get(store.found.kind)
    return Plan() if repairs is None or repairs.repair is None else repairs.repair(store, options)


def _reconcile(store: Store) -> Plan:
    repairs = REPAIRS.get(store.found.kind)
    if repairs is None or repairs.reconcile is None:
        return Plan()
    if store.found.kind in V2_STORES and store.catalog is None:
        # An index by itself has no catalog that it could follow.
        return Plan()
    return repairs.reconcile(store)


def _collect(store: Store, now_ms: int) -> Plan:
    repairs = REPAIRS.get(store.found.kind)
    if repairs is None or repairs.gc is None:
        return Plan()
    # By their names: what takes earlier runs back does not expire by this.
    return repairs.gc(store, GcOptions(now_ms=now_ms, only=frozenset(repairs.collected).difference(BY_NAME)))
