"""Rankings of texts by the score of a search, and where two of them part (``docs/search.md``, "Comparing").

A text counts once, however many units or rows have it, and texts of one score have no order among themselves: neither
is a difference between an old table and a new index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import zip_longest
from typing import Any

import apsw
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
from regraft.formats.cherry_v2.index.search import Hit, rank_bodies_by_distance, tokens
from regraft.formats.large_text import LARGE_BYTES, LargeText, hash_text
from regraft.identity import replace
from regraft.language import join_list, tr
from regraft.ranking import cherry_v2
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Bases, Mode, Request, UnitAnswer
from regraft.stores.locate import Located
from regraft.text import lenient_text, one_line

#: Hashes of texts with their scores, best first; texts of one score in the order of their hashes.
Ranking = list[tuple[str, float]]


def with_ties(texts: Iterable[tuple[str, float]], count: int) -> Ranking:
    """Return the first ``count`` different texts of a ranking, and those with the score of the last of them."""
    found: dict[str, float] = {}
    last = math.inf
    for text, score in texts:
        if len(found) >= count and score != last:
            break
        if text not in found:
            found[text] = last = score
    return sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))


def recall(old: Ranking, new: Ranking, count: int) -> float:
    """Return the share of the ``count`` nearest old texts that the new ranking has; 1 where there are none."""
    wanted, given = {text for text, _ in old}, {text for text, _ in new}
    if not wanted:
        return 1.0
    return min(count, len(wanted & given)) / min(count, len(wanted))


def first_difference(old: Ranking, new: Ranking) -> dict[str, Any] | None:
    """Return the first rank at which two rankings part, with text hash and score on either side; None where none is."""
    for place, (before, after) in enumerate(zip_longest(old, new), 1):
        if before != after:
            return {"rank": place, "v1": _side(before), "v2": _side(after)}
    return None


def _side(entry: tuple[str, float] | None) -> dict[str, Any] | None:
    return None if entry is None else {"text_hash": entry[0], "score": entry[1]}


class IndexTexts:
    """The texts of an index by their nearness. A text is hashed once, piece by piece where it is large."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._hashes: dict[int, str] = {}

    def nearest(self, vector: bytes, count: int) -> Ranking:
        """Return the ``count`` nearest texts, and those that are as near as the last of them.

        They are asked for as a search asks: units of equal text are several hits and one text.

        Raises:
            apsw.Error: the index is damaged.
        """
        return with_ties(
            ((self._hash(rowid), score) for rowid, score in rank_bodies_by_distance(self._db, vector)), count
        )

    def _hash(self, rowid: int) -> str:
        if rowid not in self._hashes:
            is_large = f"octet_length(text) > {LARGE_BYTES}"
            query = f"SELECT {is_large}, CASE WHEN NOT {is_large} THEN CAST(text AS BLOB) END FROM search_text"
            large, small = self._db.execute(f"{query} WHERE rowid = ?", (rowid,)).fetchone() or (0, "")
            text = (
                LargeText(db=self._db, table="search_text", column="text", rowid=rowid)
                if large
                else lenient_text(small)
            )
            self._hashes[rowid] = hash_text(text)
        return self._hashes[rowid]


# What a search by meaning asks for: something that makes the query's vector, and the reason where there is none.


#: Makes a query's vector, for the id of the model that the vectors are of.
Embed = Callable[[str], tuple[float, ...]]


class NoVector(Exception):
    """Why there is no vector of a query that could be compared, for a person."""


# A search in several bases at once (``docs/search.md``, "Several bases").
#
# Every base is searched by its own rules (:mod:`regraft.ranking.cherry_v2`). Scores of different bases do not compare, so
# that hits are merged by their ranks.


#: A hit of this rank in its base scores 1 / (60 + rank).
_RANK_OFFSET = 60
#: What the application does not search either: nothing is wrong with the store.
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
    """A base that could not be searched, and why; ``is_damage`` says whether that is worth an exit status."""

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


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in several bases: the answer of each, and the best hits of all."""

    count: int
    answers: tuple[UnitAnswer, ...]
    hits: tuple[RankedHit, ...]
    not_searched: tuple[NotSearched, ...]
    notes: tuple[str, ...]

    @property
    def is_damaged(self) -> bool:
        """Tell whether a base is damaged."""
        return any(one.is_damage for one in self.not_searched)


def search(source: Located, wanted: str | None, request: Request) -> UnitAnswer | Answers:
    """Search the base that is named, the only one there is, or all.

    Args:
        source: a library, profile, v2 backup, base folder or index file.
        wanted: the base, as of :func:`regraft.ranking.cherry_v2.search`; None: all.
        request: what is asked.

    Raises:
        WrongUsage: the vector may be of several models.
        RegraftError: as of a search in one base. What is wrong with one of several bases is said in the answer, unless
            no base can be searched.
    """
    with cherry_v2.opened_bases(source, request) as bases:
        if wanted is not None or len(bases.stores) <= 1:
            base_id = cherry_v2.chosen_base(source, bases.stores, bases.rows, wanted)
            return bases.search(base_id, request)
        if not request.raw and not tokens(request.query):
            raise QueryWithoutWord
        return _Several(bases=bases, request=replace(request, count=request.count or DEFAULT_COUNT)).answers()


class _NotEmbedded(Exception):
    """An embedder that gives no vector at all: no fault of the base that was to be searched."""

    def __init__(self, error: RegraftError) -> None:
        super().__init__(str(error))
        self.error = error


class _Several(msgspec.Struct, kw_only=True):
    """One search in all bases, step by step; used once."""

    bases: Bases
    request: Request
    found: dict[str, UnitAnswer] = msgspec.field(default_factory=dict)
    not_searched: list[NotSearched] = msgspec.field(default_factory=list)
    errors: list[RegraftError] = msgspec.field(default_factory=list)
    #: Why a vector is not that of a base, for those for which it is not.
    unfit: list[RegraftError] = msgspec.field(default_factory=list)

    def answers(self) -> Answers:
        for base_id in self.bases.stores:
            self._search(base_id)
        if not self.found:
            raise self.errors[0]
        if self.unfit and not self._by_vector():
            raise self.unfit[0]
        if self.request.vector is not None:
            self._demand_one_model()
        count = self.request.count or DEFAULT_COUNT
        answers = tuple(self.found.values())
        return Answers(
            count=count,
            answers=answers,
            hits=tuple(merged(answers)[:count]),
            not_searched=tuple(self.not_searched),
            notes=tuple(self._notes()),
        )

    def _search(self, base_id: str) -> None:
        try:
            self.found[base_id] = self._answer(base_id)
        except _NotEmbedded as stop:
            raise stop.error from stop
        except _NOT_SEARCHED as error:
            self.errors.append(error)
            is_damage = not isinstance(error, _PASSED_OVER)
            name = self.bases.name_of(base_id)
            self.not_searched.append(
                NotSearched(base_id=base_id, base_name=name, reason=str(error), is_damage=is_damage)
            )

    def _answer(self, base_id: str) -> UnitAnswer:
        """Return what a base answers: by words where the query's vector is not of its model."""
        try:
            return self.bases.search(base_id, self._guarded())
        except ModelDiffers as error:
            self.unfit.append(error)
            return self._by_words(base_id, tr("searched by words: the embedder is of another model"))
        except QueryVectorUnfit as error:
            self.unfit.append(error)
            found, expected = error.facts["found"], error.facts["expected"]
            return self._by_words(
                base_id,
                tr(
                    "searched by words: its vectors have {expected} numbers, the query's has {found}",
                    expected=expected,
                    found=found,
                ),
            )

    def _by_words(self, base_id: str, note: str) -> UnitAnswer:
        request = replace(self.request, mode=Mode.BM25, vector=None, embed=None)
        answer = self.bases.search(base_id, request)
        return replace(answer, notes=(note, *answer.notes))

    def _guarded(self) -> Request:
        """Return the request; what is wrong with its embedder is told from what is wrong with a base."""
        embed = self.request.embed
        if embed is None:
            return self.request

        def guarded(model_id: str | None) -> tuple[float, ...]:
            try:
                return embed(model_id)
            except ModelDiffers:
                raise
            except RegraftError as error:
                raise _NotEmbedded(error) from error

        return replace(self.request, embed=guarded)

    def _by_vector(self) -> list[UnitAnswer]:
        return [answer for answer in self.found.values() if answer.mode is not Mode.BM25]

    def _demand_one_model(self) -> None:
        """Refuse a vector that may be of several models: of all but one its distances would mean nothing."""
        models = sorted({answer.model for answer in self._by_vector() if answer.model is not None})
        if len(models) > 1:
            problem = tr(
                "vectors of {models} models are as long as the query's: {models2}",
                models=len(models),
                models2=join_list(models),
            )
            hint = tr("--base names the base that is meant; --mode bm25 searches all by words")
            raise WrongUsage(problem=problem, hint=hint)

    def _notes(self) -> Iterable[str]:
        """Yield what is worth saying, once for all bases of which it is true."""
        for one in self.not_searched:
            yield tr(
                "{base_id} is not searched: {reason}", base_id=label(one.base_id, one.base_name), reason=one.reason
            )
        told: dict[str, list[str]] = {}
        for answer in self.found.values():
            for note in answer.notes:
                told.setdefault(note, []).append(label(answer.base_id, answer.base_name))
        for note, names in told.items():
            if len(names) == len(self.found):
                yield note
            else:
                yield f"{', '.join(names)}: {note}"


def merged(answers: Iterable[UnitAnswer]) -> list[RankedHit]:
    """Return the hits of several bases by their ranks; of equal ranks that of the first base comes first."""
    hits = [
        RankedHit(answer=answer, hit=hit, base_rank=rank, score=1 / (_RANK_OFFSET + rank))
        for answer in answers
        for rank, hit in enumerate(answer.hits, 1)
    ]
    return sorted(hits, key=lambda ranked: ranked.base_rank)


def label(base_id: str, name: str | None) -> str:
    """Return what a person calls a base: its name, else its id."""
    return one_line(base_id if name is None else name)
