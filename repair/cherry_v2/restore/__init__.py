"""A new base with a new model out of the texts of one that failed, or that has another model (``docs/restore.md``)."""

from repair.cherry_v2.restore.options import RestoredBase
from repair.cherry_v2.restore.rows import model_change
from repair.cherry_v2.restore.run import Fill, RestoreOptions, restore

__all__ = ["Fill", "RestoreOptions", "RestoredBase", "model_change", "restore"]
