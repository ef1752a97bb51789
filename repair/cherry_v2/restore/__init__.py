"""A new base with a new model out of the texts of one that failed, or that has another model (``docs/restore.md``)."""

from repair.cherry_v2.restore.rows import model_change
from repair.cherry_v2.restore.run import Fill, Wish, restore
from repair.cherry_v2.restore.wish import Wanted

__all__ = ["Fill", "Wanted", "Wish", "model_change", "restore"]
