"""JSON document of ``regraft search`` in a data folder of AngelMemory (``docs/commands.md``)."""

from __future__ import annotations

from msgspec import Struct

from regraft.ranking.angel_search import Answer
from regraft.ranking.cherry_v2 import Mode
from regraft.report.document import Head, Report


class FoundRecordReport(Struct, frozen=True, kw_only=True):
    """A record that was found; the text of the note is not part of it: ``regraft recall`` reads it."""

    rank: int
    score: float
    source_id: str
    note_short_id: int | None
    path: str
    headings: list[str]
    tags: list[str]
    matched_tags: list[str]
    total_lines: int
    #: Time of change of the file when it was read, in seconds.
    updated_at: float


class RecordsReport(Report, kw_only=True):
    """Result of ``regraft search`` in a data folder of AngelMemory."""

    mode: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundRecordReport]


def report(head: Head, answer: Answer) -> RecordsReport:
    """Return the command's result."""
    return RecordsReport(
        head=head,
        mode=answer.mode.value,
        count=answer.count,
        score_kind="relevance" if answer.mode is Mode.VECTOR else "ranking",
        notes=answer.notes,
        hits=[
            FoundRecordReport(
                rank=rank,
                score=hit.score,
                source_id=hit.record.source_id,
                note_short_id=hit.record.short_id,
                path=hit.record.path,
                headings=list(filter(None, hit.record.headings)),
                tags=list(hit.record.names),
                matched_tags=list(hit.matched),
                total_lines=hit.record.total_lines,
                updated_at=hit.record.updated_at,
            )
            for rank, hit in enumerate(answer.hits, 1)
        ],
    )
