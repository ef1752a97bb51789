"""``regraft repair --adopt``: folders of bases, and materials, that the catalog has no row of get rows again.

What the rows have to be is told by the index and the files in ``raw/`` alone (``docs/findings.md``, "Adopting").
"""

from repair.cherry_v2.adopt import materials
from repair.cherry_v2.adopt.plan import NAMES, demand_alone, plan

__all__ = ["NAMES", "demand_alone", "materials", "plan"]
