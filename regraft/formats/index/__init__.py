"""The v2 index: seven tables in one SQLite file per base (``docs/formats/index.md``)."""

from regraft.formats.index.bulk import BODY_SEPARATOR, Material, Tallies, build_index
from regraft.formats.index.queries import tokens
from regraft.formats.index.reclaim import Reclaimed
from regraft.formats.index.schema import SCHEMA_VERSION
from regraft.formats.index.search import (
    Hit,
    bm25_hits,
    dimensions_of,
    fused,
    hybrid_hits,
    vector_blob,
    vector_hits,
)
from regraft.formats.index.store import IndexStore
from regraft.formats.index.units import Unit
from regraft.formats.index.verify import verify

__all__ = [
    "BODY_SEPARATOR",
    "SCHEMA_VERSION",
    "Hit",
    "IndexStore",
    "Material",
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
]
