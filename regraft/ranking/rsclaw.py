"""A search in a KB of rsclaw: a ranking of regraft's own, over what the caller may see and nothing else.

Rules: ``docs/search.md``, "Knowledge bases of rsclaw".
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from regraft.errors import QueryWithoutWord, WrongUsage
from regraft.formats import vector_numbers
from regraft.formats.cherry_v2.index.queries import compiled, tokens
from regraft.formats.cherry_v2.index.search import (
    DEFAULT_ALPHA,
    FUSION_DEPTH,
    Hit,
    bm25_hits,
    fused,
    vector_blob,
    vector_hits,
)
from regraft.formats.rsclaw.scope import Scope
from regraft.language import tr
from regraft.ranking import rsclaw_index
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode
from regraft.ranking.query_vectors import Embed, NoVector
from regraft.ranking.rsclaw_index import KbIndex
from regraft.text import counted


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, and by whom; ``mode`` None: hybrid where there is a vector of the query, or what makes one."""

    query: str
    scope: Scope
    mode: Mode | None = None
    count: int | None = None
    vector: tuple[float, ...] | None = None
    embed: Embed | None = None

    @property
    def wants_meaning(self) -> bool:
        """Tell whether the KB is to be searched by meaning, too, or only so."""
        if self.mode is None:
            return self.vector is not None or self.embed is not None
        return self.mode is not Mode.BM25


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, best first, how, and what is worth saying. A hit's unit is a chunk, its material a document."""

    scope: Scope
    mode: Mode
    count: int
    hits: tuple[Hit, ...]
    #: The titles of the documents of the hits, by their ids.
    titles: dict[str, str]
    notes: tuple[str, ...]
    #: Whether all that a score tells is how long the text is: so it is by short words alone.
    is_by_length: bool
    #: Whether pages of the KB are damaged.
    is_damaged: bool

    @property
    def score_kind(self) -> str:
        """Return what a score is: how near by meaning, or only a place in the order."""
        return "relevance" if self.mode is Mode.VECTOR else "ranking"


def search(path: Path, request: Request) -> Answer:
    """Search a KB for a caller.

    Args:
        path: the database of the KB.
        request: what is asked.

    Raises:
        QueryWithoutWord, QueryTooLong: the query has no word, or too many or too long ones.
        WrongUsage: meaning alone is asked for, and cannot be searched.
        RedbError: the database is in use, of another format, or damaged as a whole.
        OSError: there is no room for a temporary index.
    """
    if not tokens(request.query):
        raise QueryWithoutWord
    with rsclaw_index.built(path, request.scope, vectors=request.wants_meaning) as index:
        return _Search(index=index, request=request).answer()


class _Search(msgspec.Struct, kw_only=True):
    """One search, step by step; used once."""

    index: KbIndex
    request: Request
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> Answer:
        count = self.request.count or DEFAULT_COUNT
        self._say_what_is_damaged()
        vector = self._meaning()
        mode = Mode.BM25 if vector is None else self.request.mode or Mode.HYBRID
        hits = tuple(self._hits(mode, vector, count))
        return Answer(
            scope=self.request.scope,
            mode=mode,
            count=count,
            hits=hits,
            titles={hit.material_id: self.index.title_of(hit.material_id) for hit in hits},
            notes=tuple(self.notes),
            is_by_length=mode is Mode.BM25 and not compiled(self.request.query).terms,
            is_damaged=self.index.is_damaged,
        )

    def _say_what_is_damaged(self) -> None:
        if self.index.is_damaged:
            self.notes.append(tr("pages of the database are damaged: what lies in them is not searched"))
        if self.request.mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append(tr("the vector is not used: bm25 looks for words only"))

    # --- lanes -------------------------------------------------------------------------------------------------------

    def _hits(self, mode: Mode, vector: bytes | None, count: int) -> list[Hit]:
        if vector is None:
            return self._by_words(count)
        if mode is Mode.VECTOR:
            return vector_hits(self.index.db, vector, count)
        depth = FUSION_DEPTH * count
        both = fused(vector_hits(self.index.db, vector, depth), self._by_words(depth), DEFAULT_ALPHA)
        return sorted(both, key=lambda hit: (-hit.score, hit.unit_id))[:count]

    def _by_words(self, count: int) -> list[Hit]:
        if terms := compiled(self.request.query).terms:
            self.index.fill_full_text(terms)
        return bm25_hits(self.index.db, self.request.query, count)

    # --- meaning -----------------------------------------------------------------------------------------------------

    def _meaning(self) -> bytes | None:
        """Return the query's vector; None, with a note that says why, where words alone can be searched.

        Raises:
            WrongUsage: meaning alone is asked for.
        """
        if not self.request.wants_meaning:
            return None
        try:
            return self._vector()
        except NoVector as obstacle:
            if self.request.mode is Mode.VECTOR:
                problem = tr("nothing can be searched by meaning: {obstacle}", obstacle=obstacle)
                raise WrongUsage(problem=problem, hint=tr("--mode bm25 searches by words")) from obstacle
            self.notes.append(tr("searched by words alone: {obstacle}", obstacle=obstacle))
            return None

    def _vector(self) -> bytes:
        """Return the query's vector, and let those take part that it can be compared with.

        Raises:
            NoVector: there is none, or nothing to compare it with.
        """
        main = self.index.main_embedder()
        if main is None:
            raise NoVector(tr("no chunk has a vector"))
        numbers, embedder = self.request.vector, main
        if numbers is not None:
            embedder = self.index.main_embedder(len(numbers)) or main
        elif self.request.embed is not None:
            numbers = self.request.embed(main)
        else:
            raise NoVector(tr("there is no vector of the query; --vector or --embedder gives one"))
        return self._comparable(numbers, embedder)

    def _comparable(self, numbers: tuple[float, ...], embedder: str) -> bytes:
        """Return a query's vector as it is compared with those of an embedder, and let no others take part."""
        blob, dimensions = vector_blob(numbers), self.index.dimensions_of(embedder)
        if not any(blob):
            raise NoVector(tr("the query's vector is all zeros, which is near to nothing"))
        if not vector_numbers.is_finite(blob):
            raise NoVector(tr("the query's vector has numbers that are not finite"))
        others = self.index.keep_vectors(embedder, len(numbers))
        if not self.index.vectors:
            raise NoVector(
                tr(
                    "the query's vector has {numbers} numbers, those of {embedder} have {dimensions}",
                    numbers=len(numbers),
                    embedder=embedder,
                    dimensions=dimensions,
                )
            )
        self.index.drop_flawed_vectors()
        if not self.index.vectors:
            raise NoVector(tr("no chunk has a vector that can be compared"))
        self._say_who_is_missing(embedder, others, self.index.chunks - others - self.index.vectors)
        return blob

    def _say_who_is_missing(self, embedder: str, others: int, unusable: int) -> None:
        if others:
            self.notes.append(
                tr(
                    "{chunks} of another embedder or dimension than the query ({embedder}) can be found by words alone",
                    chunks=counted(others, "chunk"),
                    embedder=embedder,
                )
            )
        if unusable:
            self.notes.append(
                tr(
                    "{chunks} without a vector that can be compared can be found by words alone",
                    chunks=counted(unusable, "chunk"),
                )
            )
