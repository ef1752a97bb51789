"""``regraft repair --from``: texts, vectors and indexes come back from another copy (``docs/repair-from.md``)."""

from repair.cherry_v2.from_source.plan import plan

__all__ = ["plan"]
