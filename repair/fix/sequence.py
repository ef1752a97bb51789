"""The steps of ``regraft fix``: everything that ``regraft check`` recommends and that needs no embedder, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

from checks import systems as audits
from checks.audit.collector import CheckOptions, CommandLine
from checks.cherry_v2 import findings as v2
from regraft.errors import SourceNotMigratable
from regraft.formats.cherry_v2.catalog_reader import CatalogProblem, base_id_text, read_catalog
from regraft.identity import replace
from regraft.kinds import PREVIEW_SOURCES, V2_STORES
from repair.changes.options import GcOptions, ReconcileOptions, RepairOptions
from repair.changes.plan import Plan, Unresolved
from repair.changes.run import Planner
from repair.changes.store import Store
from repair.cherry_v2 import adopt, upgrade
from repair.cherry_v2.rescue.plan import RescueOptions
from repair.cherry_v2.rescue.plan import plan as plan_rescue
from repair.cherry_v2.rules import planner
from repair.fix import recommendations
from repair.systems import collected_findings, reconciled_findings, repaired_findings, repairs_for


def planners(now_ms: int, keep: ExitStack, only: frozenset[str] = frozenset()) -> tuple[Planner, ...]:
    """The planners of all steps: upgrade, rescue, adopt, rewrite units, repair, reconcile, gc.

    Args:
        now_ms: the time of the run.
        keep: opened and extracted files of v1 stay until this closes.
        only: names of findings; empty: all that need not be named.
    """
    steps = _Steps(now_ms, only)
    rescue_options = RescueOptions(now_ms=now_ms, keep=keep)
    return (
        steps.upgrade,
        partial(steps.rescue, options=rescue_options),
        steps.list_again,
        steps.write_units,
        steps.repair,
        steps.reconcile,
        steps.collect,
    )


#: Findings that the first steps resolve.
UPGRADED = (v2.SCHEMA_MISSING, v2.SCHEMA_VERSION, v2.SCHEMA_PREVIEW)
RESCUED = (v2.BASE_FAILED, v2.BASE_NO_INDEX, v2.ITEM_NO_MATERIAL, v2.ITEM_TOMBSTONE)


class _Steps:
    """The planners of one run, and the facts that later steps need from earlier ones."""

    def __init__(self, now_ms: int, only: frozenset[str]) -> None:
        self._now_ms, self._only = now_ms, only
        #: Bases that had failed when the run began. Nothing is deleted from them, even after they are completed.
        self._failed: set[str] = set()
        #: Bases that the rescue step restores.
        self._rescued: set[str] = set()

    def _wants(self, names: Iterable[str]) -> bool:
        return not self._only or not self._only.isdisjoint(names)

    def _named(self, names: Iterable[str]) -> frozenset[str]:
        """The named findings that a step resolves; empty if no finding was named."""
        return self._only.intersection(names)

    def upgrade(self, store: Store) -> Plan:
        if store.found.kind in V2_STORES and store.catalog is not None:
            with suppress(CatalogProblem):
                rows = read_catalog(store.root / store.catalog, data=False).bases
                self._failed |= {base_id_text(row) for row in rows if row.get("status") == "failed"}
        is_of_application = store.found.kind in V2_STORES or store.found.kind in PREVIEW_SOURCES
        if not is_of_application or not self._wants(UPGRADED):
            return Plan()
        return upgrade.plan(store, upgrade.UpgradeOptions(self._now_ms))

    def rescue(self, store: Store, options: RescueOptions) -> Plan:
        if not store.is_profile or not self._wants(RESCUED):
            return Plan()
        try:
            made = plan_rescue(store, options)
        except SourceNotMigratable:
            # No data of v1 is left. What is missing is reported at the end.
            return Plan()
        self._rescued = {action.base for action in made.actions if action.base is not None}
        return made

    def list_again(self, store: Store) -> Plan:
        """Complete failed bases from their indexes, with items for their materials."""
        is_wanted = self._wants((v2.BASE_FAILED, v2.MATERIAL_ORPHAN))
        if store.found.kind not in V2_STORES or store.catalog is None or not is_wanted:
            return Plan()
        made = adopt.plan_materials(
            store, RepairOptions(now_ms=self._now_ms), failed_only=True, without=frozenset(self._rescued)
        )
        if self._only:
            return made
        # Unresolved findings are reported at the end.
        return replace(made, left=[])

    def write_units(self, store: Store) -> Plan:
        """Rewrite units that their bodies prove, before other repairs of their indexes."""
        if store.found.kind not in V2_STORES or not self._wants((v2.BODY_ORPHAN,)):
            return Plan()
        made = planner.plan(store, RepairOptions(now_ms=self._now_ms, only=frozenset({v2.BODY_ORPHAN})))
        return replace(made, left=[])

    def repair(self, store: Store) -> Plan:
        repairs = repairs_for(store.found.kind)
        if repairs.repair is None or not self._wants(repairs.repaired):
            return Plan()
        by_choice = {*adopt.NAMES, v2.BASE_FAILED, v2.VECTOR_UNEXPECTED}
        named = self._named(repairs.repaired) - by_choice
        if self._only and not named:
            return Plan()
        return repairs.repair(store, RepairOptions(now_ms=self._now_ms, only=named, spared=frozenset(self._failed)))

    def reconcile(self, store: Store) -> Plan:
        repairs = repairs_for(store.found.kind)
        if repairs.reconcile is None or not self._wants(repairs.reconciled):
            return Plan()
        if store.found.kind in V2_STORES and store.catalog is None:
            # A single index file has no catalog to compare with.
            return Plan()
        only = self._named(repairs.reconciled)
        return repairs.reconcile(store, ReconcileOptions(only=only, spared=frozenset(self._failed)))

    def collect(self, store: Store) -> Plan:
        repairs = repairs_for(store.found.kind)
        if repairs.gc is None or not self._wants(repairs.collected):
            return Plan()
        # ``fix`` never deletes undo data of earlier runs.
        options = GcOptions(
            now_ms=self._now_ms,
            only=self._named(repairs.collected),
            expires=False,
            spared=frozenset(self._failed),
        )
        return repairs.gc(store, options)


def names_taken() -> tuple[str, ...]:
    """Return the findings that ``fix`` resolves, of stores of every system."""
    return tuple(
        dict.fromkeys((*UPGRADED, *RESCUED, *repaired_findings(), *reconciled_findings(), *collected_findings()))
    )


def remaining(store: Store, command_line: CommandLine) -> Iterator[Unresolved]:
    """Yield the findings that a store still has, with the recommended commands."""
    wanted = CheckOptions(bases=tuple(sorted(store.chosen)), now_ms=store.now_ms)
    audit = audits.audit(store.found, wanted, command_line)
    if store.found.kind in V2_STORES:
        audit = recommendations.remove_idle_commands(audit, store.found, wanted.bases, store.now_ms)
        audit = recommendations.add_rescue_hints(audit, store.found, wanted.level, wanted.bases, command_line)
        audit = recommendations.recommend_copies(audit, store.found, store.path)
    for finding in audit.findings:
        if store.wants(finding.base):
            yield Unresolved.of(finding, finding.message, repair=finding.repair)
