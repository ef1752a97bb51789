"""The v2 index: seven tables in one SQLite file per base (``docs/formats/index.md``)."""

from regraft.formats.index.bulk import BODY_SEPARATOR, Material, Tallies, build_index
from regraft.formats.index.reclaim import Reclaimed
from regraft.formats.index.schema import SCHEMA_VERSION
from regraft.formats.index.store import IndexStore
from regraft.formats.index.units import Unit
from regraft.formats.index.verify import verify

__all__ = [
    "BODY_SEPARATOR",
    "SCHEMA_VERSION",
    "IndexStore",
    "Material",
    "Reclaimed",
    "Tallies",
    "Unit",
    "build_index",
    "verify",
]
