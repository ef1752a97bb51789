"""From a Parquet file of units back to a library (``docs/formats/parquet.md``, "The way back")."""

from migrators.parquet.run import import_files

__all__ = ["import_files"]
