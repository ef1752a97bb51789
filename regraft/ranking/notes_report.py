"""What ``regraft search`` tells of a database of codex-mem, as a document (``docs/commands.md``)."""

from __future__ import annotations

from msgspec import Struct

from regraft.ranking.codex_mem import Answer
from regraft.report.document import Head, Report


class FoundNote(Struct, frozen=True, kw_only=True):
    """A note that was found; ``material_id`` is its project."""

    rank: int
    score: float
    unit_id: str
    material_id: str
    relative_path: str | None
    unit_index: int
    text: str
    title: str
    type: str
    status: str


class NotesReport(Report, kw_only=True):
    """What ``regraft search`` tells of a database of codex-mem; ``base`` is the project, None for all."""

    base: str | None
    mode: str
    state: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundNote]


def report(head: Head, answer: Answer) -> NotesReport:
    """Return the command's result."""
    return NotesReport(
        head=head,
        base=answer.project,
        mode=answer.mode.value,
        state=answer.state.value,
        count=answer.count,
        score_kind="ranking",
        notes=answer.notes,
        hits=[
            FoundNote(
                rank=rank,
                score=found.hit.score,
                unit_id=found.hit.unit_id,
                material_id=found.hit.material_id,
                relative_path=found.hit.relative_path,
                unit_index=found.hit.unit_index,
                text=found.hit.text,
                title=found.title,
                type=found.type,
                status=found.status,
            )
            for rank, found in enumerate(answer.found, 1)
        ],
    )
