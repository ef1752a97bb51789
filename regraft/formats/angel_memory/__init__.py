"""Formats of AngelMemory: its database, notes, and Chroma collections."""
