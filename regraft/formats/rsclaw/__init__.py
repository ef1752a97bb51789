"""Formats of rsclaw's knowledge base (``docs/formats/rsclaw.md``)."""
