"""Plan changes of the v2 data of Cherry Studio."""

from repair.cherry_v2 import gc, reconcile
from repair.cherry_v2.index_vectors import IndexFiller
from repair.cherry_v2.rules import planner
from repair.systems import Repairs

REPAIRS = Repairs(
    repair=planner.plan,
    repaired=(*planner.NAMES, *planner.BY_NAME),
    reconcile=reconcile.plan,
    reconciled=reconcile.NAMES,
    gc=gc.plan,
    collected=gc.NAMES,
    filler=IndexFiller(),
)
