"""Removing what nothing reaches: rows, files and folders, and what earlier runs kept (``docs/commands.md``, "gc")."""

from repair.cherry_v2.gc.choice import NAMES
from repair.cherry_v2.gc.collecting import plan

__all__ = ["NAMES", "plan"]
