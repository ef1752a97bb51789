"""Run one command on many libraries (``docs/fleet.md``).

A manifest lists the libraries, a pool of processes works on them, and a Parquet file has the outcome of each.
"""
