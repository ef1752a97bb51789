"""``regraft repair --only index.orphan --adopt``: folders of bases that no row of the catalog names get rows again.

What the rows have to be is told by the index and the files in ``raw/`` alone (``docs/findings.md``, "Adopting").
"""

from repair.cherry_v2.adopt.plan import demand_alone, plan

__all__ = ["demand_alone", "plan"]
