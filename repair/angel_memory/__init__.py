"""Changing AngelMemory's data folder: records, vectors, and what nothing uses (``docs/angel-memory.md``)."""
