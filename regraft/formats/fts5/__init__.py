"""Fills a full-text index of FTS5 in several processes (``docs/formats/fts5.md``).

FTS5 fills an index on one core. Here each process fills a *shard*, an index of its own over some rows that follow on
each other; their pages are then copied into the one index, which lists them as its segments. Where anything is other
than this page says, the index is filled by FTS5 alone.
"""

from __future__ import annotations

from regraft.formats.fts5.shards import Shards, sharding
from regraft.formats.fts5.splice import Index

__all__ = ["Index", "Shards", "sharding"]
