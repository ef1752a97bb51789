"""What a base is to become: with which model, and under which name."""

from __future__ import annotations

import msgspec

from regraft import identity


class RestoredBase(msgspec.Struct, frozen=True):
    """The model of the new base (``provider::model``), the length of its vectors, and its name (None: the old one)."""

    model_id: str
    dimensions: int
    name: str | None = None

    def base_id(self, old: str) -> str:
        """Return the id that a base gets: a second run finds what the first one began."""
        return identity.restored_base_id(old, self.model_id, self.dimensions, self.name)
