"""Fills an FTS5 full-text index in several processes (``docs/formats/fts5.md``).

SQLite fills an FTS5 index on one core. Here worker processes sort the trigrams of batches of texts, then build the
index pages of disjoint trigram ranges. The pages are written in order as the only segment of the index. Whenever
anything differs from what ``docs/formats/fts5.md`` describes, FTS5 fills the index itself.
"""

from __future__ import annotations

from regraft.formats.fts5.building import MIN_TEXT_BYTES, FullTextBuilder, is_worthwhile, open_full_text_builder
from regraft.formats.fts5.index_writer import IndexNames

__all__ = ["MIN_TEXT_BYTES", "FullTextBuilder", "IndexNames", "is_worthwhile", "open_full_text_builder"]
