"""Indexing what has a text and no unit, without a vector (``docs/indexing.md``)."""

from repair.indexing.cutting import cut
from repair.indexing.planning import NAMES, plan
from repair.indexing.texts import NoText, text_of

__all__ = ["NAMES", "NoText", "cut", "plan", "text_of"]
