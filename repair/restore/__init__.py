"""A new base with a new model out of the texts of one that failed, or that has another model (``docs/restore.md``)."""

from repair.restore.rows import model_change
from repair.restore.run import Fill, Wish, restore
from repair.restore.wish import Wanted

__all__ = ["Fill", "Wanted", "Wish", "model_change", "restore"]
