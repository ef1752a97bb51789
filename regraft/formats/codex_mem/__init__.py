"""Formats of codex-mem: its database of notes, and the sidecar that regraft adds for vectors."""
