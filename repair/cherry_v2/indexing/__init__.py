"""Indexing what has a text and no unit, without a vector (``docs/indexing.md``)."""

from repair.cherry_v2.indexing.cutting import cut
from repair.cherry_v2.indexing.planning import NAMES, plan
from repair.cherry_v2.indexing.texts import NoText, text_of

__all__ = ["NAMES", "NoText", "cut", "plan", "text_of"]
