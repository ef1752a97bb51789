"""What backfill fills in v2 data, and what has to be done there first."""

from __future__ import annotations

from functools import partial

from checks.cherry_v2 import findings as v2
from regraft import clock
from regraft.embedders.settings import EmbedderSettings
from regraft.records import replace
from repair.backfill.request import BackfillOptions
from repair.backfill.scope import Step, Targets
from repair.changes.plan import Plan, Unresolved
from repair.changes.store import Store
from repair.cherry_v2 import indexing
from repair.cherry_v2.backfill.targets import IndexTarget, models_of, targets_of
from repair.cherry_v2.restore import model_change


class IndexFiller:
    """The indexes of a library, a profile, a base or an index file."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """See :class:`~repair.backfill.scope.Filler`."""
        return models_of(store, options.new)

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> Targets:
        """See :class:`~repair.backfill.scope.Filler`."""
        found, left = targets_of(store, settings, options.new, options.dimensions)
        found, without = _with_index(store, found)
        left = (*left, *without)
        units = Step(partial(_units, bases={target.base_id for target in found}), may_wait=True)
        adopted = (Step(partial(_adopted, target=target)) for target in found if target.is_new)
        # What the user says may not be what the vectors say.
        message = (replace(target, is_said=target.dimensions == options.dimensions) for target in found)
        return Targets(tuple(message), left, (units, *adopted))


def _with_index(store: Store, found: tuple[IndexTarget, ...]) -> tuple[tuple[IndexTarget, ...], tuple[Unresolved, ...]]:
    """Separate the bases that have an index, or get one of their items, from those that cannot get one."""
    missing = {target.base_id for target in found if target.is_missing}
    if not missing:
        return found, ()
    plan = _units(store, missing)
    built = {base for name, base in plan.resolves if name == v2.BASE_NO_INDEX}
    kept = tuple(one for one in found if one.base_id not in missing - built)
    return kept, tuple(one for one in plan.left if one.base not in built)


def _units(store: Store, bases: set[str]) -> Plan:
    """Return the plan that makes units of texts that have none, of the bases that can be filled then."""
    return indexing.plan(store, clock.now_ms(), bases)


def _adopted(store: Store, target: IndexTarget) -> Plan:
    """Return the plan that tells the catalog the model of a base that had none.

    From then on it is known what the base lacks, and of which model.
    """
    model, dimensions = str(target.model_id), target.dimensions or 0
    change = model_change(store, target.base_id, model, dimensions, clock.now_ms())
    return Plan([] if change is None else [change])
