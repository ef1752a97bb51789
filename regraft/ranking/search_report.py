"""What ``regraft search`` tells of bases, as a document (``docs/commands.md``)."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from regraft.formats.cherry_v2.index.search import Hit
from regraft.ranking.cherry_v2 import Answer
from regraft.ranking.several_bases import Answers, RankedHit
from regraft.report.document import Head, Report


class FoundUnit(Struct, frozen=True, kw_only=True):
    """A hit; its last two fields only where several bases were searched: rank and score in its own base."""

    base: str
    base_name: str | None
    item_name: str | None
    rank: int
    score: float
    unit_id: str
    material_id: str
    relative_path: str | None
    unit_index: int
    text: str
    base_rank: int | UnsetType = UNSET
    base_score: float | UnsetType = UNSET


class SearchedBase(Struct, frozen=True, kw_only=True):
    """How one of several bases was searched; ``problem`` says why it was not."""

    base: str
    base_name: str | None
    mode: str | None = None
    alpha: float | None = None
    score_kind: str | None = None
    found: int = 0
    dropped: int = 0
    problem: str | None = None


class SearchReport(Report, kw_only=True):
    """What ``regraft search`` tells (``docs/commands.md``); ``bases`` only where several were searched."""

    base: str | None
    base_name: str | None
    mode: str | None
    count: int
    alpha: float | None
    score_kind: str
    dropped: int
    notes: tuple[str, ...]
    hits: list[FoundUnit]
    bases: list[SearchedBase] | UnsetType = UNSET


def report(head: Head, found: Answer | Answers) -> SearchReport:
    """Return the command's result."""
    if isinstance(found, Answers):
        return _report_of_several(head, found)
    return SearchReport(
        head=head,
        base=found.base_id,
        base_name=found.base_name,
        mode=found.mode.value,
        count=found.count,
        alpha=found.alpha,
        score_kind=found.score_kind,
        dropped=found.dropped,
        notes=found.notes,
        hits=[_unit(found, hit, rank, hit.score) for rank, hit in enumerate(found.hits, 1)],
    )


def _report_of_several(head: Head, found: Answers) -> SearchReport:
    first = found.answers[0]
    is_one_way = all((one.mode, one.alpha) == (first.mode, first.alpha) for one in found.answers)
    searched = [
        SearchedBase(
            base=answer.base_id,
            base_name=answer.base_name,
            mode=answer.mode.value,
            alpha=answer.alpha,
            score_kind=answer.score_kind,
            found=len(answer.hits),
            dropped=answer.dropped,
        )
        for answer in found.answers
    ]
    left_out = [
        SearchedBase(base=one.base_id, base_name=one.base_name, problem=one.reason) for one in found.not_searched
    ]
    return SearchReport(
        head=head,
        base=None,
        base_name=None,
        mode=first.mode.value if is_one_way else None,
        count=found.count,
        alpha=first.alpha if is_one_way else None,
        score_kind="ranking",
        dropped=sum(answer.dropped for answer in found.answers),
        notes=found.notes,
        hits=[_unit_of_several(ranked, rank) for rank, ranked in enumerate(found.hits, 1)],
        bases=[*searched, *left_out],
    )


def _unit(
    answer: Answer,
    hit: Hit,
    rank: int,
    score: float,
    base_rank: int | UnsetType = UNSET,
    base_score: float | UnsetType = UNSET,
) -> FoundUnit:
    return FoundUnit(
        base=answer.base_id,
        base_name=answer.base_name,
        item_name=answer.item_names.get(hit.material_id),
        rank=rank,
        score=score,
        unit_id=hit.unit_id,
        material_id=hit.material_id,
        relative_path=hit.relative_path,
        unit_index=hit.unit_index,
        text=hit.text,
        base_rank=base_rank,
        base_score=base_score,
    )


def _unit_of_several(ranked: RankedHit, rank: int) -> FoundUnit:
    return _unit(ranked.answer, ranked.hit, rank, ranked.score, ranked.base_rank, ranked.hit.score)
