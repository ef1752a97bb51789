"""Snapshots of notes and pages, for other programs."""

from regraft.formats.cherry_v2.okf import (
    Snapshot,
    first_line,
    leading_line,
    note_snapshot,
    strip_block,
    url_snapshot,
)

__all__ = [
    "Snapshot",
    "first_line",
    "leading_line",
    "note_snapshot",
    "strip_block",
    "url_snapshot",
]
