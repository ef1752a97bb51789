"""Give vectors to texts without one; each is paid for once, whatever stops a run (``docs/backfill.md``)."""
