"""Removing what nothing reaches: rows, files and folders, and what earlier runs kept (``docs/commands.md``, "gc")."""

from repair.cherry_v2.gc.collecting import plan
from repair.cherry_v2.gc.wish import GRACE_DAYS, NAMES, Wish

__all__ = ["GRACE_DAYS", "NAMES", "Wish", "plan"]
