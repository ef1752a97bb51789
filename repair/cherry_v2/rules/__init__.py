"""Plan ``regraft repair`` for v2 data: one planner, and the repairs of index files, catalog rows and paths."""

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
