"""Bringing back what the application's own upgrade left behind, from the v1 files that are still there.

Rules: ``docs/rules.md``, "Rescue".
"""

from repair.cherry_v2.rescue.plan import RescueOptions, plan

__all__ = ["RescueOptions", "plan"]
