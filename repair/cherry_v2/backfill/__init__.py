"""Backfill of index files: what lacks a vector, and writing it."""
