"""JSON documents of ``regraft search`` and ``regraft recall`` (``docs/commands.md``)."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from regraft.formats.cherry_v2.index.search import Hit
from regraft.ranking.angel_memory import NoteExcerpt, RecordAnswer
from regraft.ranking.cherry_v2 import UnitAnswer
from regraft.ranking.codex_mem import NoteAnswer
from regraft.ranking.rsclaw import ChunkAnswer
from regraft.ranking.several_bases import CombinedAnswer
from regraft.report.document import Head, Report


class FoundUnit(Struct, frozen=True, kw_only=True):
    """A hit. ``base_rank`` and ``base_score`` are present only if several bases were searched."""

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
    """How one of several bases was searched; ``problem`` is the reason if it was not."""

    base: str
    base_name: str | None
    mode: str | None = None
    alpha: float | None = None
    score_kind: str | None = None
    found: int = 0
    dropped: int = 0
    problem: str | None = None


class SearchReport(Report, kw_only=True):
    """Result of ``regraft search``; ``bases`` is present only if several bases were searched."""

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


def search_report(head: Head, answer: UnitAnswer | CombinedAnswer) -> SearchReport:
    """Build the report of a search in one or several bases."""
    if isinstance(answer, CombinedAnswer):
        return _combined_report(head, answer)
    return SearchReport(
        head=head,
        base=answer.base_id,
        base_name=answer.base_name,
        mode=answer.mode.value,
        count=answer.count,
        alpha=answer.alpha,
        score_kind=answer.mode.score_kind,
        dropped=answer.dropped,
        notes=answer.notes,
        hits=[_build_unit(answer, hit, rank, hit.score) for rank, hit in enumerate(answer.hits, 1)],
    )


def _combined_report(head: Head, found: CombinedAnswer) -> SearchReport:
    """Build the report of a search in several bases; the mode is stated once if it is the same in all."""
    first = found.answers[0]
    is_one_way = all((one.mode, one.alpha) == (first.mode, first.alpha) for one in found.answers)
    searched = [
        SearchedBase(
            base=answer.base_id,
            base_name=answer.base_name,
            mode=answer.mode.value,
            alpha=answer.alpha,
            score_kind=answer.mode.score_kind,
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
        hits=[
            _build_unit(ranked.answer, ranked.hit, rank, ranked.score, ranked.base_rank, ranked.hit.score)
            for rank, ranked in enumerate(found.hits, 1)
        ],
        bases=[*searched, *left_out],
    )


def _build_unit(
    answer: UnitAnswer,
    hit: Hit,
    rank: int,
    score: float,
    base_rank: int | UnsetType = UNSET,
    base_score: float | UnsetType = UNSET,
) -> FoundUnit:
    """Build the report of a hit in the result ``answer`` of its base.

    ``rank`` and ``score`` are those in the whole report; ``base_rank`` and ``base_score``, in several bases, its own.
    """
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


# rsclaw.


class FoundChunk(Struct, frozen=True, kw_only=True):
    """A chunk that was found. Its document is the material, ``item_name`` the document's title."""

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
    """Result of ``regraft search`` in a KB of rsclaw; ``as`` names the callers; empty if only global documents."""

    base: str | None = None
    base_name: str | None = None
    as_: tuple[str, ...]
    mode: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundChunk]


def chunk_search_report(head: Head, answer: ChunkAnswer) -> ChunksReport:
    """Build the report of a search in a KB of rsclaw."""
    return ChunksReport(
        head=head,
        as_=answer.scope.words,
        mode=answer.mode.value,
        count=answer.count,
        score_kind=answer.mode.score_kind,
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


# codex-mem.


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
    """Result of ``regraft search`` in a codex-mem database; ``base`` is the project, None for all."""

    base: str | None
    mode: str
    state: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundNote]


def note_search_report(head: Head, answer: NoteAnswer) -> NotesReport:
    """Build the report of a search in a codex-mem database."""
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


# AngelMemory: lines of a note.


class RecallReport(Report, kw_only=True):
    """Result of ``regraft recall``. Lines are counted from 1."""

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


def recall_report(head: Head, excerpt: NoteExcerpt) -> RecallReport:
    """Build the report of a note excerpt."""
    return RecallReport(
        head=head,
        note_short_id=excerpt.record.short_id,
        source_id=excerpt.record.source_id,
        path=excerpt.record.path,
        headings=list(filter(None, excerpt.record.headings)),
        tags=list(excerpt.record.names),
        total_lines=excerpt.total_lines,
        actual_start_line=excerpt.start,
        actual_end_line=excerpt.end,
        tokens=excerpt.tokens,
        truncated=excerpt.is_cut,
        line_cut=excerpt.is_line_cut,
        content=excerpt.content,
    )


# AngelMemory: search.


class FoundRecordReport(Struct, frozen=True, kw_only=True):
    """A record that was found. The text of the note is not included: use ``regraft recall``."""

    rank: int
    score: float
    source_id: str
    note_short_id: int | None
    path: str
    headings: list[str]
    tags: list[str]
    matched_tags: list[str]
    total_lines: int
    #: Modification time of the file when it was read, in seconds.
    updated_at: float


class RecordsReport(Report, kw_only=True):
    """Result of ``regraft search`` in a data directory of AngelMemory."""

    mode: str
    count: int
    score_kind: str
    notes: tuple[str, ...]
    hits: list[FoundRecordReport]


def record_search_report(head: Head, answer: RecordAnswer) -> RecordsReport:
    """Build the report of a search in a data directory of AngelMemory."""
    return RecordsReport(
        head=head,
        mode=answer.mode.value,
        count=answer.count,
        score_kind=answer.mode.score_kind,
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
