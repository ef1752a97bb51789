"""Bringing stores of the v2 preview to the released layout."""
