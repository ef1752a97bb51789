"""Changing AngelMemory's data folders: records, the vectors that follow them, and what nothing uses."""
