"""Restore what the application's upgrade left behind from the v1 files that still exist.

Rules: ``docs/rules.md``, "Rescue".
"""

from repair.cherry_v2.rescue.plan import RescueOptions, plan

__all__ = ["RescueOptions", "plan"]
