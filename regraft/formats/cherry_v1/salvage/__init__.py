"""Salvage of damaged v1 vector files: every row that is still there and proves itself (``docs/salvage.md``)."""

from __future__ import annotations

from regraft.formats.cherry_v1.salvage.doubts import doubt
from regraft.formats.cherry_v1.salvage.salvaging import TABLE, Salvaged, salvaged
from regraft.formats.salvage_tally import SalvageTally

__all__ = ["TABLE", "SalvageTally", "Salvaged", "doubt", "salvaged"]
