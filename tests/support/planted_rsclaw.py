"""Damage that is planted into a healthy KB of rsclaw: one finding at a time."""

from __future__ import annotations

from pathlib import Path

import planted_rsclaw_files
import planted_rsclaw_rows
from planting import PLANTINGS
from rsclaw_store import RsclawStore
from whole_rsclaw import healthy

__all__ = ["PLANTINGS", "planted", "planted_rsclaw_files", "planted_rsclaw_rows"]


def planted(root: Path, *names: str) -> RsclawStore:
    """Return a KB with damage of these names, written."""
    store = healthy(root)
    for name in names:
        PLANTINGS[name].plant(store)
    store.write()
    return store
