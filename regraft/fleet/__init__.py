"""One command over many libraries (``docs/fleet.md``): a manifest names them, processes work on one after the other,
and a Parquet file has what became of each."""
