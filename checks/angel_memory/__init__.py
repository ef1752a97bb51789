"""Audit and inspect data folders of AngelMemory."""
