"""What ``regraft search`` tells of bases: its document and its text."""

from __future__ import annotations

from collections import Counter

from msgspec import UNSET, Struct, UnsetType

from regraft.formats.cherry_v2.index.search import Hit
from regraft.language import tr
from regraft.ranking.cherry_v2 import Answer
from regraft.ranking.several_bases import Answers, RankedHit, label
from regraft.report.document import Head, Report
from regraft.text import counted, one_line, shown_lines

#: How much of a body is shown, in code points; ``-v`` shows all of it.
EXCERPT = 160


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


# --- for a person --------------------------------------------------------------------------------------------------


def as_text(found: Answer | Answers, title: str, *, whole: bool, raw: bool) -> str:
    """Return what was found as text.

    Args:
        found: the hits.
        title: the first line.
        whole: show all of every body.
        raw: the index alone was asked: scores are shown as it gives them.
    """
    if isinstance(found, Answers):
        return _several_as_text(found, title, whole=whole)
    base = found.base_id if found.base_name is None else f"{one_line(found.base_name)} ({found.base_id})"
    lines = [title, tr("Base {base}: {counted}.", base=base, counted=_counted(found))]
    has_score = raw or not found.is_by_length
    for rank, hit in enumerate(found.hits, 1):
        score = f"{hit.score:.6g}  " if has_score else ""
        lines += _hit_lines(f"{rank:>3}  {score}{_where(found, hit)}", hit, whole=whole)
    return shown_lines(lines)


def _several_as_text(found: Answers, title: str, *, whole: bool) -> str:
    modes = Counter(answer.mode.value for answer in found.answers)
    said = ", ".join(
        tr("{bases} by {mode}", bases=counted(number, "base"), mode=mode) for mode, number in modes.items()
    )
    lines = [
        title,
        tr("{hits} in all bases, merged by rank; searched: {said}.", hits=counted(len(found.hits), "hit"), said=said),
    ]
    if found.not_searched:
        names = ", ".join(label(one.base_id, one.base_name) for one in found.not_searched)
        lines.append(tr("Not searched: {names}.", names=names))
    names_of = Counter(answer.base_name for answer in found.answers)
    for rank, ranked in enumerate(found.hits, 1):
        answer = ranked.answer
        base = label(answer.base_id, answer.base_name)
        if answer.base_name is not None and names_of[answer.base_name] > 1:
            base += f" ({answer.base_id})"
        lines += _hit_lines(f"{rank:>3}  {base}: {_where(answer, ranked.hit)}", ranked.hit, whole=whole)
    return shown_lines(lines)


def _counted(answer: Answer) -> str:
    weight = "" if answer.alpha is None else tr(", alpha {alpha:g}", alpha=answer.alpha)
    dropped = tr(", {dropped} dropped by the catalog", dropped=answer.dropped) if answer.dropped else ""
    return tr(
        "{hits} by {mode}{weight}{dropped}",
        hits=counted(len(answer.hits), "hit"),
        mode=answer.mode,
        weight=weight,
        dropped=dropped,
    )


def _hit_lines(head: str, hit: Hit, *, whole: bool) -> list[str]:
    body = one_line(hit.text, None if whole else EXCERPT + 1)
    excerpt = body if whole or len(body) <= EXCERPT else f"{body[:EXCERPT]}…"
    return ["", tr("{head}, unit {unit_index}", head=head, unit_index=hit.unit_index), f"     {excerpt}"]


def _where(answer: Answer, hit: Hit) -> str:
    """Return the name of a hit's item, and its path where that says more."""
    path = one_line(hit.relative_path or hit.material_id)
    name = one_line(answer.item_names.get(hit.material_id) or path)
    return name if name == path else f"{name} ({path})"
