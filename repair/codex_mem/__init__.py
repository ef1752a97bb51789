"""Changing codex-mem: its full-text index, the metadata of its notes, and their vectors (``docs/codex-mem.md``)."""
