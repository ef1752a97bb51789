"""A search in one base by the rules of the application's service: with the catalog's settings (``docs/search.md``).

The index gives candidates (:mod:`regraft.formats.index.search`); the catalog says how the base is searched, and which
hits count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import apsw

from regraft import identity, sqlite
from regraft.errors import (
    BaseFailed,
    BaseNotListed,
    BaseUnknown,
    BaseWithoutIndex,
    IndexForeign,
    IndexVersionUnknown,
    NotSearchable,
    QueryVectorMissing,
    QueryVectorUnfit,
    QueryWithoutWord,
    SourceUnreadable,
    WrongUsage,
)
from regraft.formats.catalog_reader import CatalogProblem, Row, StoredCatalog, read_catalog
from regraft.formats.index import SCHEMA_VERSION
from regraft.formats.index.queries import tokens
from regraft.formats.index.search import (
    DEFAULT_ALPHA,
    Hit,
    bm25_hits,
    dimensions_of,
    hybrid_hits,
    vector_blob,
    vector_hits,
)
from regraft.formats.v2_places import Store
from regraft.locate import NAMES, Kind, Located
from regraft.text import shown

#: How many hits a base gives that says nothing of it.
DEFAULT_COUNT = 10
#: The index is asked for this many times the hits wanted, since the catalog may drop some.
OVERFETCH = 5
#: Kinds in which there are bases to search.
SEARCHED = (Kind.LIBRARY, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
#: Where a base has no model, it has no vectors.
_NO_VECTORS = "it has no vectors: searched by bm25"


class Mode(StrEnum):
    """How a base is searched: by meaning, by words, or by both."""

    VECTOR = "vector"
    BM25 = "bm25"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class Request:
    """What is asked. What is None is the base's own setting, else the application's default."""

    query: str
    mode: Mode | None = None
    count: int | None = None
    alpha: float | None = None
    vector: tuple[float, ...] | None = None
    #: Makes that vector where it is needed, for the id of the base's model (None where nobody knows it).
    embed: Callable[[str | None], tuple[float, ...]] | None = None
    #: Ask the index alone: no settings, no rules of the catalog.
    raw: bool = False


@dataclass(frozen=True)
class Answer:
    """What was found, best first, and how it was searched."""

    base_id: str
    mode: Mode
    count: int
    #: The weight of the vector lane; None where there was one lane.
    alpha: float | None
    #: The lowest score that counted; None where any did.
    threshold: float | None
    hits: tuple[Hit, ...]
    #: Hits that the catalog did not let through: their item is missing, of another base, or being deleted.
    dropped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def score_kind(self) -> str:
        """Return what scores mean: ``relevance`` can be held against a threshold, ``ranking`` only orders hits."""
        return "relevance" if self.mode is Mode.VECTOR else "ranking"


# --- which base ----------------------------------------------------------------------------------------------------


def known_bases(source: Located, catalog: StoredCatalog | None) -> dict[str, Store | None]:
    """Return the bases of a source by id, each with its index; None for a base of the catalog that has none."""
    stores: dict[str, Store | None] = {store.base_id or source.path.name: store for store in source.stores.current}
    if catalog is None or source.kind in (Kind.BASE, Kind.INDEX):
        return stores
    return {**{str(row.get("id")): None for row in catalog.bases}, **stores}


def chosen_base(source: Located, bases: dict[str, Store | None], wanted: str | None) -> str:
    """Return the id of the one base that is meant; ``wanted`` is its id in v2, or the one that it had in v1.

    Raises:
        BaseUnknown: there is none of this id.
        NotSearchable: there are none at all.
        WrongUsage: there are several, and none is named.
    """
    if wanted is not None:
        found = next((key for key in (wanted, identity.base_id(wanted)) if key in bases), None)
        if found is None:
            raise BaseUnknown(base=wanted, known=", ".join(bases) or "no bases")
        return found
    if len(bases) == 1:
        return next(iter(bases))
    if not bases:
        what = f"{NAMES[source.kind]} without a base"
        raise NotSearchable(path=source.path, what=what, advice="see regraft inspect")
    problem = f"{shown(source.path)} has {len(bases)} bases"
    raise WrongUsage(problem=problem, hint=f"give --base, one of {', '.join(bases)}")


def catalog_of(source: Located) -> StoredCatalog | None:
    """Return the catalog of a source, None where there is none.

    Raises:
        SourceUnreadable: it is there and cannot be read.
    """
    if source.stores.catalog is None:
        return None
    with source.tree.local(source.stores.catalog, None) as path:
        try:
            return read_catalog(path, data=False)
        except CatalogProblem as problem:
            reason = f"the catalog {problem}; --raw does without it"
            raise SourceUnreadable(path=source.path, reason=reason) from problem


@contextmanager
def opened_index(source: Located, store: Store) -> Iterator[apsw.Connection]:
    """Open a base's index for searching, with sqlite-vec, and without a trace.

    Raises:
        SourceUnreadable: it cannot be read, or turns out to be damaged while it is.
    """
    with source.tree.local(store.name, None) as path:
        try:
            with sqlite.reading(path, vectors=True) as db:
                yield db
        except (apsw.Error, UnicodeDecodeError) as error:
            raise SourceUnreadable(path=_place(source, store), reason=error) from error


def _place(source: Located, store: Store) -> Path:
    """Return what a person calls the file of a base: its path, or that of the archive that holds it."""
    return source.path if source.is_archive else source.tree.path / store.name


# --- the search ----------------------------------------------------------------------------------------------------


def search(source: Located, wanted: str | None, request: Request) -> Answer:
    """Search one base.

    Args:
        source: a library, profile, v2 backup, base folder or index file.
        wanted: the base's id (v2 or v1); None where there is only one.
        request: what is asked.

    Raises:
        NotSearchable: there is nothing to search in the source.
        BaseUnknown, WrongUsage: there is no such base, or none is named where there are several.
        BaseFailed, BaseNotListed, BaseWithoutIndex: the base cannot be searched.
        IndexForeign, IndexVersionUnknown: its index is that of another base, or of another layout.
        QueryWithoutWord, QueryTooLong: the query has no word, or too many or too long ones.
        QueryVectorMissing, QueryVectorUnfit: the mode needs a vector, or one of another length.
        SourceUnreadable: the index or the catalog is damaged.
    """
    if source.kind not in SEARCHED:
        advice = "migrate it first, and search the library"
        if source.kind is Kind.ANGEL_MEMORY:
            advice = "regraft recall reads a note of it"
        raise NotSearchable(path=source.path, what=NAMES[source.kind], advice=advice)
    catalog = None if request.raw else catalog_of(source)
    bases = known_bases(source, catalog)
    base_id = chosen_base(source, bases, wanted)
    row = None if catalog is None else _row(source, catalog, base_id)
    if not request.raw and not tokens(request.query):
        raise QueryWithoutWord
    store = bases[base_id]
    if store is None:
        raise BaseWithoutIndex(path=source.path, base=base_id)
    items = None if catalog is None else _living(catalog, base_id)
    with opened_index(source, store) as db:
        raw = request.raw or catalog is None
        stated, notes = _checked_identity(db, _place(source, store), base_id, raw=raw)
        # A file that lies anywhere is of the base that it names itself.
        named = base_id if store.base_id is not None else stated
        return _Search(db, source.path, named, row or {}, request, items, notes).answer()


def _row(source: Located, catalog: StoredCatalog, base_id: str) -> Row:
    """Return a base's row; refuse what the application would not search."""
    row = next((row for row in catalog.bases if row.get("id") == base_id), None)
    if row is None:
        raise BaseNotListed(path=source.path, base=base_id)
    if row.get("status") == "failed":
        raise BaseFailed(path=source.path, base=base_id, reason=row.get("error"))
    return row


def _living(catalog: StoredCatalog, base_id: str) -> set[str] | None:
    """Return the ids of the base's items but of those being deleted; None where the catalog has no items at all."""
    if catalog.items is None:
        return None
    return {str(item.get("id")) for item in catalog.items.get(base_id, ()) if item.get("status") != "deleting"}


def _checked_identity(db: apsw.Connection, path: Path, base_id: str, *, raw: bool) -> tuple[str, list[str]]:
    """Hold an index against the base that it should be of; return the id that it states, and what is worth saying."""
    version, stated = db.execute("SELECT schema_version, base_id FROM meta").get or (None, None)
    if version not in (1, SCHEMA_VERSION):
        raise IndexVersionUnknown(path=path, found=version, known=f"1 and {SCHEMA_VERSION}")
    if stated != base_id and not raw:
        advice = "the application would refuse it, --raw asks it alone"
        raise IndexForeign(path=path, found=stated, base=base_id, advice=advice)
    if version != SCHEMA_VERSION:
        said = f"the index is of version {version}; the application would empty it instead of searching it"
        return str(stated), [said]
    return str(stated), []


@dataclass
class _Search:
    """One search, step by step; used once."""

    db: apsw.Connection
    path: Path
    base_id: str
    row: Row
    request: Request
    items: set[str] | None
    notes: list[str] = field(default_factory=list)

    def answer(self) -> Answer:
        dimensions = dimensions_of(self.db)
        mode = self._mode(dimensions)
        count = self.request.count or _positive(self.row.get("document_count")) or DEFAULT_COUNT
        blob = b"" if mode is Mode.BM25 else self._blob(mode, dimensions)
        alpha = self._alpha() if mode is Mode.HYBRID else None
        threshold = _number(self.row.get("threshold")) if mode is Mode.VECTOR else None
        hits, dropped = self._counted(self._lane(mode, blob, alpha), count)
        if threshold is not None:
            hits = [hit for hit in hits if hit.score >= threshold]
        if self.row.get("rerank_model_id"):
            self.notes.append("the application would rerank these hits by a model; regraft has none")
        return Answer(self.base_id, mode, count, alpha, threshold, tuple(hits), dropped, tuple(self.notes))

    def _mode(self, dimensions: int | None) -> Mode:
        """Return the mode: the one asked for, else the base's own; bm25 where there are no vectors."""
        own = self.row.get("search_mode")
        usual = Mode.BM25 if self.request.vector is None and self.request.embed is None else Mode.HYBRID
        mode = self.request.mode or (Mode(own) if own in list(Mode) else usual)
        lexical = bool(self.row) and self.row.get("embedding_model_id") is None
        if mode is not Mode.BM25 and (lexical or dimensions is None):
            self.notes.append(_NO_VECTORS)
            mode = Mode.BM25
        if mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append("the vector is not used: bm25 looks for words only")
        return mode

    def _blob(self, mode: Mode, dimensions: int | None) -> bytes:
        """Return the query's vector as the index compares it."""
        vector = self.request.vector
        if vector is None and self.request.embed is not None:
            model_id = self.row.get("embedding_model_id")
            vector = self.request.embed(None if model_id is None else str(model_id))
        if vector is None:
            model = self.row.get("embedding_model_id") or "the base's model"
            raise QueryVectorMissing(path=self.path, base=self.base_id, mode=mode, dimensions=dimensions, model=model)
        if len(vector) != dimensions:
            raise QueryVectorUnfit(path=self.path, base=self.base_id, found=len(vector), expected=dimensions)
        blob = vector_blob(vector)
        if not any(blob):
            self.notes.append("the vector is all zeros: it is near to nothing")
        return blob

    def _alpha(self) -> float:
        if self.request.alpha is not None:
            return self.request.alpha
        own = _number(self.row.get("hybrid_alpha"))
        return DEFAULT_ALPHA if own is None else own

    def _lane(self, mode: Mode, blob: bytes, alpha: float | None) -> Callable[[int], list[Hit]]:
        """Return what gives the index's own best hits, as many as it is asked for."""
        query = self.request.query
        if mode is Mode.BM25:
            return lambda count: bm25_hits(self.db, query, count)
        if mode is Mode.VECTOR:
            return lambda count: vector_hits(self.db, blob, count)
        weight = DEFAULT_ALPHA if alpha is None else alpha
        return lambda count: hybrid_hits(self.db, query, blob, count, weight)

    def _counted(self, lane: Callable[[int], list[Hit]], count: int) -> tuple[list[Hit], int]:
        """Return the hits that the catalog lets through, cut to ``count``, and how many before them it did not."""
        if self.items is None:
            return lane(count), 0
        asked = count * OVERFETCH
        while True:
            found = lane(asked)
            kept = [hit for hit in found if hit.material_id in self.items]
            if len(kept) >= count or len(found) < asked:
                break
            # So many are dropped that the usual surplus does not do.
            asked *= 4
        last = found.index(kept[count - 1]) if len(kept) >= count else len(found) - 1
        dropped = sum(hit.material_id not in self.items for hit in found[: last + 1])
        return kept[:count], dropped


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
