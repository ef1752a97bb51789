"""Search in collections of Chroma: by words, by vectors, or by both (``docs/search.md``, "Collections of Chroma").

Words are searched in a temporary index of the documents. Vectors are compared one by one, with the distance of the
collection, so the graph of the segment is not used and may be damaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from regraft.disk import sqlite
from regraft.errors import QueryVectorMissing, QueryVectorUnfit, QueryWithoutWord, SourceUnreadable
from regraft.formats.cherry_v2.index.search import (
    DEFAULT_ALPHA,
    FUSION_DEPTH,
    Hit,
    compile_query,
    fused,
    tokens,
    vector_blob,
)
from regraft.formats.chroma import database, layouts
from regraft.formats.chroma.collection import PROVEN, CollectionState, Origin, open_collection
from regraft.formats.chroma.database import ChromaCollection, ChromaProblem
from regraft.formats.chroma.rows import source_of
from regraft.identity import resolve_base
from regraft.language import format_count, tr
from regraft.ranking.cherry_v2 import DEFAULT_COUNT, Mode, UnitAnswer, UnitRequest
from regraft.ranking.several_bases import CombinedAnswer, search_all
from regraft.ranking.term_index import search_words

#: An entry is a material and its only unit, numbered in the order of insertion.
_TABLES = """
CREATE TABLE material (material_id TEXT PRIMARY KEY, relative_path TEXT, source TEXT) WITHOUT ROWID;
CREATE TABLE search_unit (unit_id TEXT PRIMARY KEY, material_id TEXT, unit_index INTEGER) WITHOUT ROWID;
CREATE TABLE search_text (fts_rowid INTEGER PRIMARY KEY, target_id TEXT UNIQUE, kind TEXT, text TEXT);
"""
_PROVEN_IN_SEGMENT = tuple(origin for origin in PROVEN if origin is Origin.SEGMENT)


class Collections:
    """The collections of an open folder that have entries, as bases."""

    def __init__(self, db: apsw.Connection, root: Path) -> None:
        self._db, self._root = db, root
        every = database.list_collections(db)
        self.stores: dict[str, ChromaCollection] = {one.id: one for one in every if database.count_entries(db, one)}
        layout = layouts.read_layout(root, every)
        self._titles = layout.titles
        self._words = layouts.ids_by_word(layout, every)

    def name_of(self, base_id: str) -> str | None:
        """Return the name that the application shows for a collection, or else the collection's own."""
        return self._titles.get(base_id) or self.stores[base_id].name

    def resolve(self, wanted: str) -> str:
        """Return the id of the collection that a user means by its id, its name, or what the application calls it.

        Raises:
            BaseUnknown, BaseAmbiguous
        """
        return resolve_base(wanted, {key: self.name_of(key) or key for key in self.stores}, self._words)

    def search(self, base_id: str, request: UnitRequest) -> UnitAnswer:
        """Search one collection, given by its id.

        Raises:
            QueryWithoutWord, QueryTooLong: the query has no word, too many words, or too long ones.
            QueryVectorMissing, QueryVectorUnfit: the mode needs a vector, or one with other dimensions.
            SourceUnreadable: the collection is damaged.
        """
        if not tokens(request.query):
            raise QueryWithoutWord
        of = self.stores[base_id]
        try:
            with open_collection(self._db, of, self._root) as state, sqlite.open_scratch() as index:
                _fill_index(index, self._db, of)
                model = database.read_model(self._db, of)
                named = None if model is None else "::".join(model)
                path = self._root / database.FILE
                search = _Search(
                    index=index, state=state, request=request, path=path, model=named, name=self.name_of(base_id)
                )
                return search.answer()
        except (ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
            raise SourceUnreadable(path=self._root / database.FILE, reason=error) from error


def search(root: Path, wanted: str | None, request: UnitRequest) -> UnitAnswer | CombinedAnswer:
    """Search the collection ``wanted`` (its id or a name) of Chroma's folder ``root``; None: the only one, or all.

    Raises:
        BaseUnknown, BaseAmbiguous: no collection or several collections match ``wanted``.
        SourceUnreadable: the database is damaged, or has no entry.
        RegraftError: as :meth:`Collections.search`.
    """
    path = root / database.FILE
    try:
        with database.open_chroma(path) as db:
            found = Collections(db, root)
            if not found.stores:
                raise SourceUnreadable(path=path, reason=tr("it has no entry"))
            if wanted is not None:
                return found.search(found.resolve(wanted), request)
            if len(found.stores) == 1:
                return found.search(next(iter(found.stores)), request)
            if not tokens(request.query):
                raise QueryWithoutWord
            return search_all(found, request)
    except (ChromaProblem, apsw.Error) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def _fill_index(index: apsw.Connection, db: apsw.Connection, of: ChromaCollection) -> None:
    """Copy the entries of a collection from Chroma's database ``db`` to the temporary database ``index``."""
    index.execute(_TABLES)
    with sqlite.transaction(index):
        for number, entry in enumerate(database.iterate_entries(db, of), 1):
            source = source_of(entry.metadata, entry.id)
            index.execute("INSERT OR IGNORE INTO material VALUES (?, NULL, ?)", (entry.id, source))
            index.execute("INSERT OR IGNORE INTO search_unit VALUES (?1, ?1, 0)", (entry.id,))
            row = (number, entry.id, entry.document or "")
            index.execute("INSERT OR IGNORE INTO search_text VALUES (?, ?, 'body', ?)", row)


class _Search(msgspec.Struct, kw_only=True):
    """A single search in one collection."""

    index: apsw.Connection
    state: CollectionState
    request: UnitRequest
    path: Path
    model: str | None
    name: str | None
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> UnitAnswer:
        """Run the search."""
        request = self.request
        mode = self._choose_mode()
        count = request.count or DEFAULT_COUNT
        weight = DEFAULT_ALPHA if request.alpha is None else request.alpha
        by_vector = [] if mode is Mode.BM25 else self._search_vectors(self._query_vector(mode), FUSION_DEPTH * count)
        if mode is Mode.VECTOR:
            hits = by_vector
        elif mode is Mode.BM25:
            hits = search_words(self.index, request.query, count)
        else:
            hits = fused(by_vector, search_words(self.index, request.query, FUSION_DEPTH * count), weight)
        return UnitAnswer(
            base_id=self.state.of.id,
            base_name=self.name,
            mode=mode,
            count=count,
            alpha=weight if mode is Mode.HYBRID else None,
            hits=tuple(hits[:count]),
            item_names={hit.material_id: self._source_of(hit.material_id) for hit in hits[:count]},
            notes=tuple(self.notes),
            model=self.model,
            is_by_length=mode is Mode.BM25 and not compile_query(request.query).terms,
        )

    def _source_of(self, entry_id: str) -> str:
        """Return the source of an entry, which the application stores in its metadata."""
        return str(self.index.execute("SELECT source FROM material WHERE material_id = ?", (entry_id,)).get)

    def _choose_mode(self) -> Mode:
        """Choose the search mode from the request and what the collection has."""
        request = self.request
        has_vector = request.vector is not None or request.embed is not None
        mode = request.mode or (Mode.HYBRID if has_vector else Mode.BM25)
        if mode is Mode.BM25 and request.vector is not None:
            self.notes.append(tr("the vector is not used: mode bm25 searches by words only"))
        if mode is not Mode.BM25 and not self.state.count("vector"):
            self.notes.append(tr("the base has no vectors; searched by words"))
            mode = Mode.BM25
        return mode

    # --- vectors -----------------------------------------------------------------------------------------------------

    def _query_vector(self, mode: Mode) -> Any:
        """Return the query's vector, given or embedded, as an array of float64.

        Raises:
            QueryVectorMissing: it has none, which ``mode`` needs.
            QueryVectorUnfit: it has other dimensions than the collection.
        """
        request, base, dimensions = self.request, self.state.of.id, self.state.dimension
        numbers = request.vector
        if numbers is None and request.embed is not None:
            numbers = request.embed(self.model)
        if numbers is None:
            whose = self.model or tr("the base's model")
            raise QueryVectorMissing(path=self.path, base=base, mode=mode, dimensions=dimensions, model=whose)
        if len(numbers) != dimensions:
            raise QueryVectorUnfit(path=self.path, base=base, found=len(numbers), expected=dimensions)
        vector = np.frombuffer(vector_blob(numbers), dtype="<f4").astype(np.float64)
        if not np.any(vector):
            self.notes.append(tr("the vector is all zeros, so it is similar to nothing"))
        return vector

    def _search_vectors(self, query: Any, count: int) -> list[Hit]:
        """Return the ``count`` entries nearest to the query's vector; of equally near ones, those inserted first.

        Adds a note on entries without a vector that can be compared.
        """
        best: list[tuple[float, int, str, str]] = []
        compared = 0
        for ids, vectors in self._vectors(len(query)):
            scores = _score(self.state.of.distance, query, vectors)
            compared += len(scores)
            chosen = np.flatnonzero(np.isfinite(scores))
            if len(chosen) > count:
                chosen = chosen[np.argpartition(-scores[chosen], count - 1)[:count]]
            for at in chosen.tolist():
                row: Any = self.index.execute(
                    "SELECT fts_rowid, text FROM search_text WHERE target_id = ?", (ids[at],)
                ).fetchone()
                if row is not None:
                    best.append((-float(scores[at]), int(row[0]), ids[at], str(row[1])))
            best = sorted(best)[:count]
        entries: Any = self.index.execute("SELECT count(*) FROM search_unit").get
        if missing := max(0, entries - compared):
            without = format_count(missing, "entry")
            self.notes.append(tr("{entries} without a proven vector can be found by words only", entries=without))
        return [
            Hit(unit_id=key, material_id=key, relative_path=None, unit_index=0, text=text, score=-score)
            for score, _, key, text in best
        ]

    def _vectors(self, dimension: int) -> Iterator[tuple[list[str], Any]]:
        """Yield ids of entries, and an array with a row for the vector of each; only vectors proven to be theirs."""
        for block in self.state.segment_blocks():
            proven = np.flatnonzero(np.isin(block.origins, _PROVEN_IN_SEGMENT))
            if len(proven):
                ids = block.read_ids()
                yield [ids[at] for at in proven.tolist()], block.vectors[proven]
        for key, _, raw in self.state.queued_vectors():
            if len(raw) == 4 * dimension:
                yield [key], np.frombuffer(raw, dtype="<f4").reshape(1, -1)


def _score(distance: str | None, query: Any, vectors: Any) -> Any:
    """Return an array with the similarity of each row of ``vectors`` to ``query``; NaN: not comparable.

    ``distance`` is the collection's: ``l2``, ``ip``, otherwise cosine.
    """
    with np.errstate(all="ignore"):
        numbers = vectors.astype(np.float64)
        if distance == "l2":
            return 1 / (1 + ((numbers - query) ** 2).sum(axis=1))
        products = numbers @ query
        if distance == "ip":
            return products
        norms = np.sqrt((numbers**2).sum(axis=1)) * math.sqrt(float(query @ query))
        return products / norms
