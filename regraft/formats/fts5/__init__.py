"""Fills a full-text index of FTS5 in several processes (``docs/formats/fts5.md``).

FTS5 fills an index on one core, by a hash table that it empties again and again. Here processes sort the trigrams of
some texts at a time, and make pages of what all texts have of a range of trigrams; the pages are written one after the
other as the index's one segment. Where anything is other than this page says, the index is filled by FTS5 alone.
"""

from __future__ import annotations

from regraft.formats.fts5.building import LEAST_BYTES, Index, Sorting, pays, sorting

__all__ = ["LEAST_BYTES", "Index", "Sorting", "pays", "sorting"]
