"""The v2 index: seven tables in one SQLite file per base (``docs/formats/index.md``)."""

from regraft.formats.index.bulk import BODY_SEPARATOR, Material, Tallies, build_index
from regraft.formats.index.schema import SCHEMA_VERSION
from regraft.formats.index.verify import verify

__all__ = ["BODY_SEPARATOR", "SCHEMA_VERSION", "Material", "Tallies", "build_index", "verify"]
