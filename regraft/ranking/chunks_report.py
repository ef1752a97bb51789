"""What ``regraft search`` tells of a KB of rsclaw, as a document (``docs/commands.md``)."""

from __future__ import annotations

from msgspec import Struct

from regraft.ranking.rsclaw import Answer
from regraft.report.document import Head, Report


class FoundChunk(Struct, frozen=True, kw_only=True):
    """A chunk that was found: its document is the material, ``item_name`` the title of that; there is no base."""

    base: str | None = None
    base_name: str | None = None
    item_name: str
    rank: int
    score: float
    unit_id: str
    material_id: str
    relative_path: str | None
    unit_index: int
    text: str


class ChunksReport(Report, kw_only=True, rename={"as_": "as"}):
    """What ``regraft search`` tells of a KB of rsclaw; ``as`` says who asked, and is empty for what is global."""

    base: str | None = None
    base_name: str | None = None
    as_: tuple[str, ...]
    mode: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundChunk]


def report(head: Head, answer: Answer) -> ChunksReport:
    """Return the command's result."""
    return ChunksReport(
        head=head,
        as_=answer.scope.words,
        mode=answer.mode.value,
        count=answer.count,
        score_kind=answer.score_kind,
        notes=answer.notes,
        hits=[
            FoundChunk(
                item_name=answer.titles[hit.material_id],
                rank=rank,
                score=hit.score,
                unit_id=hit.unit_id,
                material_id=hit.material_id,
                relative_path=hit.relative_path,
                unit_index=hit.unit_index,
                text=hit.text,
            )
            for rank, hit in enumerate(answer.hits, 1)
        ],
    )
