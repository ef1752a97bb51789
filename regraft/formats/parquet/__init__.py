"""Units as a Parquet file: one row for each unit, with its vector (``docs/formats/parquet.md``)."""
