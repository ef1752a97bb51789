"""Plan changes of a folder of Chroma: damaged segments, the full-text index, and unused folders."""

from checks.chroma import findings as chroma
from repair.chroma import segments
from repair.systems import Repairs

REPAIRS = Repairs(
    repair=segments.plan, repaired=segments.NAMES, gc=segments.plan_gc, collected=(chroma.SEGMENT_ORPHAN,)
)
