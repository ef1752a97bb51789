"""Searches for each system: which hits are found, and in which order."""
