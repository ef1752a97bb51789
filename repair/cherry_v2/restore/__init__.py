"""A new base with a new model out of the texts of one that failed, or that has another model (``docs/restore.md``)."""

from repair.cherry_v2.restore.publish import model_change
from repair.cherry_v2.restore.run import Fill, RestoreOptions, restore
from repair.cherry_v2.restore.source import RestoredBase

__all__ = ["Fill", "RestoreOptions", "RestoredBase", "model_change", "restore"]
