"""Removing what nothing reaches: rows, files and folders, and what earlier runs kept (``docs/commands.md``, "gc")."""

from repair.gc.collecting import plan
from repair.gc.wish import GRACE_DAYS, Wish, checked_names

__all__ = ["GRACE_DAYS", "Wish", "checked_names", "plan"]
