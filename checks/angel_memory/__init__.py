"""Auditing and inspecting a data folder of AngelMemory."""
