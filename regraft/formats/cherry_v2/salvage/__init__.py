"""Salvage of damaged index files: every row that is left and proves itself (``docs/formats/index.md``, "Salvage")."""

from __future__ import annotations

from regraft.formats.cherry_v2.salvage.proof import Expected
from regraft.formats.cherry_v2.salvage.salvaging import Refused, Salvaged, salvaged
from regraft.formats.cherry_v2.salvage.tally import PagesTally, TableTally, Tally

__all__ = ["Expected", "PagesTally", "Refused", "Salvaged", "TableTally", "Tally", "salvaged"]
