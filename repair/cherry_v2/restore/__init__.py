"""Make a new base with a new model from the texts of one that failed, or has another model (``docs/restore.md``)."""
