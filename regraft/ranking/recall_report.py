"""What ``regraft recall`` tells: lines of a note, and where they are from (``docs/commands.md``, "recall")."""

from __future__ import annotations

from regraft.ranking.angel_memory import Recalled
from regraft.report.document import Head, Report


class RecallReport(Report, kw_only=True):
    """What ``regraft recall`` tells (``docs/commands.md``); lines count from 1."""

    note_short_id: int | None
    source_id: str
    path: str
    headings: list[str]
    tags: list[str]
    total_lines: int
    actual_start_line: int
    actual_end_line: int
    tokens: int
    truncated: bool
    line_cut: bool
    content: str


def report(head: Head, found: Recalled) -> RecallReport:
    """Return what is told of lines that were read."""
    return RecallReport(
        head=head,
        note_short_id=found.record.short_id,
        source_id=found.record.source_id,
        path=found.record.path,
        headings=list(filter(None, found.record.headings)),
        tags=list(found.record.names),
        total_lines=found.total_lines,
        actual_start_line=found.start,
        actual_end_line=found.end,
        tokens=found.tokens,
        truncated=found.is_cut,
        line_cut=found.is_line_cut,
        content=found.content,
    )
