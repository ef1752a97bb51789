"""Copy bases of another store into a profile: their folders, and rows of the profile's database.

Rules: ``docs/rules.md``, "Install".
"""

from repair.cherry_v2.install.plan import InstallOptions, plan

__all__ = ["InstallOptions", "plan"]
