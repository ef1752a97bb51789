"""Checks and summaries of stores. Nothing here writes to a store."""
