"""The v2 index: seven tables in one SQLite file per base (``docs/formats/index.md``)."""

from regraft.formats.cherry_v2.index.bulk import BODY_SEPARATOR, Material, PartDigest, Tallies, build_index
from regraft.formats.cherry_v2.index.schema import SCHEMA_VERSION, Unit, dimensions_of
from regraft.formats.cherry_v2.index.search import (
    Hit,
    bm25_hits,
    fused,
    hybrid_hits,
    tokens,
    vector_blob,
    vector_hits,
)
from regraft.formats.cherry_v2.index.store import IndexStore, Reclaimed
from regraft.formats.cherry_v2.index.verify import verify, verify_full_text

__all__ = [
    "BODY_SEPARATOR",
    "SCHEMA_VERSION",
    "Hit",
    "IndexStore",
    "Material",
    "PartDigest",
    "Reclaimed",
    "Tallies",
    "Unit",
    "bm25_hits",
    "build_index",
    "dimensions_of",
    "fused",
    "hybrid_hits",
    "tokens",
    "vector_blob",
    "vector_hits",
    "verify",
    "verify_full_text",
]
