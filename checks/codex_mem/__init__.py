"""Audit and inspect databases of codex-mem."""
