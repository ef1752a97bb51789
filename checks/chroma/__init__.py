"""Audit and inspect folders of Chroma (``docs/chroma.md``)."""
