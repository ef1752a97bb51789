"""Backfill of all libraries of a fleet: each distinct text is embedded once (``docs/fleet.md``, "Embedding what has no
vector")."""
