"""Auditing and inspecting a database of codex-mem."""
