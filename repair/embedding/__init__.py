"""Giving vectors to texts that have none: each is embedded once, whatever happens meanwhile (``docs/backfill.md``)."""
