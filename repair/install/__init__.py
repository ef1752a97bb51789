"""Putting a migrated library into a profile of the application: folders of bases, and rows of the profile's database.

Rules: ``docs/rules.md``, "Install".
"""

from repair.install.plan import Wish, plan

__all__ = ["Wish", "plan"]
