"""Search in several bases (``docs/search.md``, "Several bases").

Each base is searched by its own rules (:mod:`regraft.ranking.cherry_v2`). Scores of different bases are not comparable,
so hits are merged by rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from regraft.errors import (
    BackupSlim,
    BaseFailed,
    BaseNotListed,
    BaseWithoutIndex,
    IndexForeign,
    IndexVersionUnknown,
    ModelDiffers,
    QueryVectorUnfit,
    QueryWithoutWord,
    RegraftError,
    SourceUnreadable,
    WrongUsage,
)
from regraft.formats.cherry_v2.index.search import Hit, tokens
from regraft.identity import replace
from regraft.language import join_list, tr
from regraft.ranking import cherry_v2
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode, UnitAnswer, UnitRequest
from regraft.stores.locate import Located
from regraft.text import one_line

#: A hit with this rank in its base scores 1 / (60 + rank).
_RANK_OFFSET = 60
#: Bases that the application does not search either: not a sign of damage.
_PASSED_OVER = (BaseFailed, BaseNotListed)
_NOT_SEARCHED = (
    *_PASSED_OVER,
    BackupSlim,
    BaseWithoutIndex,
    IndexForeign,
    IndexVersionUnknown,
    SourceUnreadable,
)


class NotSearched(msgspec.Struct, frozen=True, kw_only=True):
    """A base that could not be searched; ``is_damage`` makes the command exit with an error status."""

    base_id: str
    base_name: str | None
    reason: str
    is_damage: bool


class RankedHit(msgspec.Struct, frozen=True, kw_only=True):
    """A hit of one of several bases; ``score`` is 1 / (60 + its rank in its base)."""

    answer: UnitAnswer
    hit: Hit
    base_rank: int
    score: float


class CombinedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search in several bases: the result of each, and the best hits of all."""

    count: int
    answers: tuple[UnitAnswer, ...]
    hits: tuple[RankedHit, ...]
    not_searched: tuple[NotSearched, ...]
    notes: tuple[str, ...]

    @property
    def is_damaged(self) -> bool:
        """Whether any base is damaged."""
        return any(one.is_damage for one in self.not_searched)


def search(source: Located, wanted: str | None, request: UnitRequest) -> UnitAnswer | CombinedAnswer:
    """Search the requested base, the only base, or all bases.

    Args:
        source: a library, profile, v2 backup, base folder or index file.
        wanted: the base, as for :func:`regraft.ranking.cherry_v2.search`; None for all.
        request: the search request.

    Raises:
        WrongUsage: the vector fits several models.
        RegraftError: as for one base. With several bases, problems of single bases are part of the result, unless no
            base can be searched.
    """
    with cherry_v2.open_bases(source, request) as bases:
        if wanted is not None or len(bases.stores) <= 1:
            base_id = cherry_v2.choose_base(source, bases.stores, bases.rows, wanted)
            return bases.search(base_id, request)
        if not request.raw and not tokens(request.query):
            raise QueryWithoutWord
        return search_all(bases, request)


class SearchedBases(Protocol):
    """The bases of a source, which are searched one by one."""

    @property
    def stores(self) -> Mapping[str, object]:
        """Map the id of each base to what is searched of it: an index file or a collection."""

    def name_of(self, base_id: str) -> str | None:
        """Return the name of a base, or None."""

    def search(self, base_id: str, request: UnitRequest) -> UnitAnswer:
        """Search one base."""


def search_all(bases: SearchedBases, request: UnitRequest) -> CombinedAnswer:
    """Search all bases, and merge their hits by rank. Raises as :func:`search`."""
    return _CombinedSearch(bases=bases, request=replace(request, count=request.count or DEFAULT_COUNT)).answers()


class _EmbedderFailed(Exception):
    """The embedder failed; this is not a problem of the base being searched."""

    def __init__(self, error: RegraftError) -> None:
        super().__init__(str(error))
        self.error = error


class _CombinedSearch(msgspec.Struct, kw_only=True):
    """A single search in all bases."""

    bases: SearchedBases
    request: UnitRequest
    found: dict[str, UnitAnswer] = msgspec.field(default_factory=dict)
    not_searched: list[NotSearched] = msgspec.field(default_factory=list)
    errors: list[RegraftError] = msgspec.field(default_factory=list)
    #: Why the query's vector does not fit a base.
    unfit: list[RegraftError] = msgspec.field(default_factory=list)

    def answers(self) -> CombinedAnswer:
        """Search all bases; raises if none can be searched, or if the vector fits several models."""
        for base_id in self.bases.stores:
            self._search(base_id)
        if not self.found:
            raise self.errors[0]
        if self.unfit and not self._vector_answers():
            raise self.unfit[0]
        if self.request.vector is not None:
            # Refuse a vector that fits several models: its distances would be meaningless for all but one.
            models = sorted({answer.model for answer in self._vector_answers() if answer.model is not None})
            if len(models) > 1:
                problem = tr(
                    "the query's vector fits {models} models: {models2}",
                    models=len(models),
                    models2=join_list(models),
                )
                hint = tr("choose a base with --base, or search all by words with --mode bm25")
                raise WrongUsage(problem=problem, hint=hint)
        count = self.request.count or DEFAULT_COUNT
        answers = tuple(self.found.values())
        return CombinedAnswer(
            count=count,
            answers=answers,
            hits=tuple(merge_hits(answers)[:count]),
            not_searched=tuple(self.not_searched),
            notes=tuple(self._notes()),
        )

    def _search(self, base_id: str) -> None:
        """Search one base and record its result; an error of the base is recorded as the reason of not searching it."""
        try:
            self.found[base_id] = self._search_one(base_id)
        except _EmbedderFailed as stop:
            raise stop.error from stop
        except _NOT_SEARCHED as error:
            self.errors.append(error)
            is_damage = not isinstance(error, _PASSED_OVER)
            name = self.bases.name_of(base_id)
            self.not_searched.append(
                NotSearched(base_id=base_id, base_name=name, reason=str(error), is_damage=is_damage)
            )

    def _search_one(self, base_id: str) -> UnitAnswer:
        """Return the result of one base, which is searched by words if the query's vector does not fit its model."""
        try:
            return self.bases.search(base_id, self._wrap_embedder())
        except ModelDiffers as error:
            self.unfit.append(error)
            return self._search_words(base_id, tr("searched by words: the embedder has another model"))
        except QueryVectorUnfit as error:
            self.unfit.append(error)
            found, expected = error.facts["found"], error.facts["expected"]
            return self._search_words(
                base_id,
                tr(
                    "searched by words: its vectors have {expected} dimensions, the query's has {found}",
                    expected=expected,
                    found=found,
                ),
            )

    def _search_words(self, base_id: str, note: str) -> UnitAnswer:
        """Search one base by words, and add to its result a note that says why."""
        request = replace(self.request, mode=Mode.BM25, vector=None, embed=None)
        answer = self.bases.search(base_id, request)
        return replace(answer, notes=(note, *answer.notes))

    def _wrap_embedder(self) -> UnitRequest:
        """Return the request with an embedder whose errors are raised as _EmbedderFailed, unlike errors of a base."""
        embed = self.request.embed
        if embed is None:
            return self.request

        def guarded(model_id: str | None) -> tuple[float, ...]:
            """Embed the query for a model; raise _EmbedderFailed if the embedder fails."""
            try:
                return embed(model_id)
            except ModelDiffers:
                raise
            except RegraftError as error:
                raise _EmbedderFailed(error) from error

        return replace(self.request, embed=guarded)

    def _vector_answers(self) -> list[UnitAnswer]:
        """Return the results of the bases that were searched by vector."""
        return [answer for answer in self.found.values() if answer.mode is not Mode.BM25]

    def _notes(self) -> Iterable[str]:
        """Yield the remarks for the user: bases that were not searched, and each remark of a base's search once."""
        for one in self.not_searched:
            yield tr(
                "{base_id} was not searched: {reason}",
                base_id=base_label(one.base_id, one.base_name),
                reason=one.reason,
            )
        bases_by_note: dict[str, list[str]] = {}
        for answer in self.found.values():
            for note in answer.notes:
                bases_by_note.setdefault(note, []).append(base_label(answer.base_id, answer.base_name))
        for note, names in bases_by_note.items():
            if len(names) == len(self.found):
                yield note
            else:
                yield f"{', '.join(names)}: {note}"


def merge_hits(answers: Iterable[UnitAnswer]) -> list[RankedHit]:
    """Merge the hits of several bases, given by the result of each, by the rank in their base.

    Of equal ranks, the hit of the first base comes first.
    """
    hits = [
        RankedHit(answer=answer, hit=hit, base_rank=rank, score=1 / (_RANK_OFFSET + rank))
        for answer in answers
        for rank, hit in enumerate(answer.hits, 1)
    ]
    return sorted(hits, key=lambda ranked: ranked.base_rank)


def base_label(base_id: str, name: str | None) -> str:
    """Return the name of a base, or its id, on one line."""
    return one_line(base_id if name is None else name)
