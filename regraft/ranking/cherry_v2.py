"""A search in one base by the rules of the application's service (``docs/search.md``, "The rules of the service").

The index gives candidates (:mod:`regraft.formats.cherry_v2.index.search`); the catalog says which of them count, and
what they are called. How a base is searched follows from its model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.errors import (
    BackupSlim,
    BaseFailed,
    BaseNotListed,
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
from regraft.formats.cherry_v2.catalog_reader import (
    CatalogLookup,
    CatalogProblem,
    Row,
    item_name,
    open_catalog,
    read_item_data,
)
from regraft.formats.cherry_v2.index import SCHEMA_VERSION
from regraft.formats.cherry_v2.index.schema import catalog_dimensions, dimensions_of
from regraft.formats.cherry_v2.index.search import (
    DEFAULT_ALPHA,
    Hit,
    bm25_hits,
    compile_query,
    hybrid_hits,
    tokens,
    vector_blob,
    vector_hits,
)
from regraft.formats.cherry_v2.layout import StoreFile
from regraft.identity import resolve_base
from regraft.kinds import KIND_NAMES, SYSTEMS, Kind
from regraft.language import join_list, tr
from regraft.stores import systems
from regraft.stores.locate import Located
from regraft.stores.systems import System
from regraft.text import lenient_text, printable

#: How many hits a base gives that says nothing of it.
DEFAULT_COUNT = 10
#: The index is asked for this many times the hits wanted, since the catalog may drop some, up to a limit.
OVERFETCH = 5
MAX_CANDIDATES = 200
#: Kinds in which there are bases to search.
SEARCHED = (Kind.LIBRARY, Kind.PACK, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
#: Where a base has no model, it has no vectors.
_NO_VECTORS = tr("it has no vectors: searched by words")
#: What a base with a model is searched by needs more than the query's words.
_NO_QUERY_VECTOR = tr("searched by words alone: by meaning, too, as the application does, with --embedder or --vector")


class Mode(StrEnum):
    """How a store is searched: by meaning, by words, or by both; notes of AngelMemory by meaning or by tags."""

    VECTOR = "vector"
    BM25 = "bm25"
    HYBRID = "hybrid"
    SIMPLE = "simple"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. What is None follows from the base, else it is the application's default."""

    query: str
    mode: Mode | None = None
    count: int | None = None
    alpha: float | None = None
    vector: tuple[float, ...] | None = None
    #: Makes that vector where it is needed, for the id of the base's model (None where nobody knows it).
    embed: Callable[[str | None], tuple[float, ...]] | None = None
    #: Ask the index alone: no settings, no rules of the catalog.
    raw: bool = False


class UnitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, best first, and how it was searched."""

    base_id: str
    #: None where no catalog says it.
    base_name: str | None
    mode: Mode
    count: int
    #: The weight of the vector lane; None where there was one lane.
    alpha: float | None
    hits: tuple[Hit, ...]
    #: What the application calls the items of the hits, by their ids, where a catalog says it.
    item_names: dict[str, str | None] = msgspec.field(default_factory=dict)
    #: Hits that the catalog did not let through: their item is missing, of another base, or not completed.
    dropped: int = 0
    notes: tuple[str, ...] = ()
    #: The id of the base's model, where a catalog says it.
    model: str | None = None
    #: Whether all that a score tells is how long the body is: so it is by short words alone.
    is_by_length: bool = False

    @property
    def score_kind(self) -> str:
        """Return what scores mean: ``relevance`` measures how near a hit is, ``ranking`` only orders hits."""
        return "relevance" if self.mode is Mode.VECTOR else "ranking"


# --- which base ----------------------------------------------------------------------------------------------------


def known_bases(source: Located, rows: list[Row] | None) -> dict[str, StoreFile | None]:
    """Return the bases of a source by id, each with its index; None for a base of the catalog that has none.

    Args:
        source: where they lie.
        rows: the catalog's bases; None: no catalog has a say.
    """
    stores: dict[str, StoreFile | None] = {store.base_id or source.path.name: store for store in source.stores.current}
    if rows is None or source.kind in (Kind.BASE, Kind.INDEX):
        return stores
    return {**{str(row.get("id")): None for row in rows}, **stores}


def chosen_base(source: Located, bases: dict[str, StoreFile | None], rows: list[Row] | None, wanted: str | None) -> str:
    """Return the id of the one base that is meant; ``wanted`` is its id in v2 or v1, its name, or an id's beginning.

    Raises:
        BaseUnknown, BaseAmbiguous: there is none of this name or id, or there are several.
        NotSearchable: there are none at all.
        WrongUsage: there are several, and none is named.
    """
    if wanted is not None:
        named = {str(row.get("id")): str(row.get("name")) for row in rows or ()}
        return resolve_base(wanted, {base: named.get(base, base) for base in bases})
    if len(bases) == 1:
        return next(iter(bases))
    if not bases:
        what = tr("{names} without a base", names=KIND_NAMES[source.kind])
        raise NotSearchable(path=source.path, what=what, advice=tr("see regraft inspect"))
    problem = tr("{path} has {bases} bases", path=printable(source.path), bases=len(bases))
    raise WrongUsage(problem=problem, hint=tr("give --base, one of {bases}", bases=join_list(bases)))


@contextmanager
def catalog_of(source: Located) -> Iterator[CatalogLookup | None]:
    """Open the catalog of a source, None where there is none.

    Raises:
        SourceUnreadable: it is there and cannot be read, or turns out to be damaged while it is.
    """
    if source.stores.catalog is None:
        yield None
        return
    with source.tree.local(source.stores.catalog, None) as path:
        try:
            with open_catalog(path) as catalog:
                yield catalog
        except CatalogProblem as problem:
            reason = tr("the catalog {problem}; --raw does without it", problem=problem)
            raise SourceUnreadable(path=source.path, reason=reason) from problem


@contextmanager
def opened_index(source: Located, store: StoreFile) -> Iterator[apsw.Connection]:
    """Open a base's index for searching, with sqlite-vec, and without a trace.

    Raises:
        SourceUnreadable: it cannot be read, or turns out to be damaged while it is.
    """
    with (
        source.tree.local(store.name, None) as path,
        naming(source, store),
        sqlite.open_readonly(path, vectors=True) as db,
    ):
        yield db


@contextmanager
def naming(source: Located, store: StoreFile) -> Iterator[None]:
    """Name the index that is read in this block where it turns out to be damaged.

    Raises:
        SourceUnreadable: it cannot be read.
    """
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=_place(source, store), reason=error) from error


def _place(source: Located, store: StoreFile) -> Path:
    """Return what a person calls the file of a base: its path, or that of the archive that holds it."""
    return source.path if source.is_archive else source.tree.path / store.name


# --- the search ----------------------------------------------------------------------------------------------------


def search(source: Located, wanted: str | None, request: Request) -> UnitAnswer:
    """Search one base.

    Args:
        source: a library, profile, v2 backup, base folder or index file.
        wanted: the base's id (v2 or v1), its name, or the beginning of its id; None where there is only one.
        request: what is asked.

    Raises:
        NotSearchable: there is nothing to search in the source.
        BaseUnknown, BaseAmbiguous, WrongUsage: there is no such base, or it is not said which one of several is meant.
        BaseFailed, BaseNotListed, BaseWithoutIndex, BackupSlim: the base cannot be searched.
        IndexForeign, IndexVersionUnknown: its index is that of another base, or of another layout.
        QueryWithoutWord, QueryTooLong: the query has no word, or too many or too long ones.
        QueryVectorMissing, QueryVectorUnfit: the mode needs a vector, or one of another length.
        SourceUnreadable: the index or the catalog is damaged.
    """
    with opened_bases(source, request) as bases:
        base_id = chosen_base(source, bases.stores, bases.rows, wanted)
        return bases.search(base_id, request)


class Bases(msgspec.Struct, frozen=True, kw_only=True):
    """The bases of a source, ready to be searched; ``rows`` and ``catalog`` are None where no catalog has a say."""

    source: Located
    catalog: CatalogLookup | None
    rows: list[Row] | None
    stores: dict[str, StoreFile | None]

    def name_of(self, base_id: str) -> str | None:
        """Return what the catalog calls a base, None where it says nothing."""
        for row in self.rows or ():
            if row.get("id") == base_id and row.get("name") is not None:
                return str(row["name"])
        return None

    def search(self, base_id: str, request: Request) -> UnitAnswer:
        """Search one base, by its id.

        Raises:
            RegraftError: as :func:`search`.
        """
        row = None if self.rows is None else _row(self.source, self.rows, base_id)
        if not request.raw and not tokens(request.query):
            raise QueryWithoutWord
        store = self.stores[base_id]
        if store is None and self.source.is_slim:
            raise BackupSlim(path=self.source.path, base=base_id)
        if store is None:
            raise BaseWithoutIndex(path=self.source.path, base=base_id)
        with opened_index(self.source, store) as db:
            is_raw = self.catalog is None
            stated, notes = _checked_identity(db, _place(self.source, store), base_id, raw=is_raw)
            # A file that lies anywhere is of the base that it names itself.
            named = base_id if store.base_id is not None else stated
            return _Search(
                db=db, path=self.source.path, base_id=named, row=row, request=request, catalog=self.catalog, notes=notes
            ).answer()


@contextmanager
def opened_bases(source: Located, request: Request) -> Iterator[Bases]:
    """Open the bases of a source for a search.

    Raises:
        NotSearchable: there is nothing to search in the source.
        SourceUnreadable: the catalog is damaged.
    """
    demand_searched(source)
    with ExitStack() as opened:
        catalog = None if request.raw else opened.enter_context(catalog_of(source))
        rows = None if catalog is None else catalog.bases()
        yield Bases(source=source, catalog=catalog, rows=rows, stores=known_bases(source, rows))


def demand_searched(source: Located) -> None:
    """Refuse a kind of source in which there is nothing to search.

    Raises:
        NotSearchable
    """
    if source.kind in SEARCHED:
        return
    advice = System.search_advice
    if source.kind in SYSTEMS:
        advice = systems.system_of(source.kind).search_advice
    raise NotSearchable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)


def _row(source: Located, rows: list[Row], base_id: str) -> Row:
    """Return a base's row; refuse what the application would not search."""
    row = next((row for row in rows if row.get("id") == base_id), None)
    if row is None:
        raise BaseNotListed(path=source.path, base=base_id)
    if row.get("status") == "failed":
        raise BaseFailed(path=source.path, base=base_id, reason=row.get("error"))
    return row


def _checked_identity(db: apsw.Connection, path: Path, base_id: str, *, raw: bool) -> tuple[str, list[str]]:
    """Hold an index against the base that it should be of; return the id that it states, and what is worth saying."""
    version, id_bytes = db.execute("SELECT schema_version, CAST(base_id AS BLOB) FROM meta LIMIT 1").get or (None, b"")
    if version not in (1, SCHEMA_VERSION):
        raise IndexVersionUnknown(
            path=path, found=version, known=tr("1 and {schema_version}", schema_version=SCHEMA_VERSION)
        )
    stated = lenient_text(id_bytes)
    if stated != base_id and not raw:
        advice = tr("the application would refuse it, --raw asks it alone")
        raise IndexForeign(path=path, found=stated, base=base_id, advice=advice)
    if version != SCHEMA_VERSION:
        note = tr(
            "the index is of version {version}; the application would empty it instead of searching it", version=version
        )
        return stated, [note]
    return stated, []


class _Search(msgspec.Struct, kw_only=True):
    """One search, step by step; used once. Without a row of the catalog, the index alone is asked."""

    db: apsw.Connection
    path: Path
    base_id: str
    row: Row | None
    request: Request
    catalog: CatalogLookup | None
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> UnitAnswer:
        dimensions = dimensions_of(self.db, catalog_dimensions(self.row))
        mode = self._mode(dimensions)
        count = self.request.count or _positive(self._setting("document_count")) or DEFAULT_COUNT
        blob = b"" if mode is Mode.BM25 else self._blob(mode, dimensions)
        alpha = self._alpha() if mode is Mode.HYBRID else None
        hits, names, dropped = self._counted(self._lane(mode, blob, alpha), count)
        self._say_what_is_left_out(count)
        name = self._setting("name")
        base_name = None if name is None else str(name)
        return UnitAnswer(
            base_id=self.base_id,
            base_name=base_name,
            mode=mode,
            count=count,
            alpha=alpha,
            hits=tuple(hits),
            item_names=names,
            dropped=dropped,
            notes=tuple(self.notes),
            model=self._model(),
            is_by_length=mode is Mode.BM25 and not compile_query(self.request.query).terms,
        )

    def _setting(self, column: str) -> object:
        return None if self.row is None else self.row.get(column)

    # --- how ---------------------------------------------------------------------------------------------------------

    def _mode(self, dimensions: int | None) -> Mode:
        """Return the mode that is asked for, else the base's; bm25 where the base or the query has no vectors."""
        mode = self.request.mode or self._usual_mode()
        if mode is not Mode.BM25 and (dimensions is None or self._is_without_model()):
            self.notes.append(_NO_VECTORS)
            mode = Mode.BM25
        if mode is Mode.HYBRID and self.request.mode is None and not self._has_vector():
            self.notes.append(_NO_QUERY_VECTOR)
            mode = Mode.BM25
        elif mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append(tr("the vector is not used: bm25 looks for words only"))
        return mode

    def _is_without_model(self) -> bool:
        return self.row is not None and self._setting("embedding_model_id") is None

    def _usual_mode(self) -> Mode:
        """Return the mode that follows from the base's model; of an index alone, from what is asked."""
        if self.row is None:
            return Mode.HYBRID if self._has_vector() else Mode.BM25
        has_model = self._setting("embedding_model_id") is not None and _positive(self._setting("dimensions"))
        return Mode.HYBRID if has_model and self._setting("status") == "completed" else Mode.BM25

    def _has_vector(self) -> bool:
        return self.request.vector is not None or self.request.embed is not None

    def _blob(self, mode: Mode, dimensions: int | None) -> bytes:
        """Return the query's vector as the index compares it."""
        vector, model = self.request.vector, self._model()
        if vector is None and self.request.embed is not None:
            vector = self.request.embed(model)
        if vector is None:
            whose = model or tr("the base's model")
            raise QueryVectorMissing(path=self.path, base=self.base_id, mode=mode, dimensions=dimensions, model=whose)
        if len(vector) != dimensions:
            raise QueryVectorUnfit(path=self.path, base=self.base_id, found=len(vector), expected=dimensions)
        blob = vector_blob(vector)
        if not any(blob):
            self.notes.append(tr("the vector is all zeros: it is near to nothing"))
        return blob

    def _model(self) -> str | None:
        model = self._setting("embedding_model_id")
        return None if model is None else str(model)

    def _alpha(self) -> float:
        return DEFAULT_ALPHA if self.request.alpha is None else self.request.alpha

    def _lane(self, mode: Mode, blob: bytes, alpha: float | None) -> Callable[[int], list[Hit]]:
        """Return what gives the index's own best hits, as many as it is asked for."""
        query = self.request.query
        if mode is Mode.BM25:
            return lambda count: bm25_hits(self.db, query, count)
        if mode is Mode.VECTOR:
            return lambda count: vector_hits(self.db, blob, count)
        weight = DEFAULT_ALPHA if alpha is None else alpha
        return lambda count: hybrid_hits(self.db, query, blob, count, weight)

    # --- what counts -------------------------------------------------------------------------------------------------

    def _counted(self, lane: Callable[[int], list[Hit]], count: int) -> tuple[list[Hit], dict[str, str | None], int]:
        """Return the hits that the catalog lets through, the names of their items, and how many it dropped."""
        if self.catalog is None:
            return lane(count), {}, 0
        candidates = lane(min(count * OVERFETCH, MAX_CANDIDATES))
        items = self.catalog.items(hit.material_id for hit in candidates)
        kept = [hit for hit in candidates if items is None or self._is_living(items.get(hit.material_id))]
        hits = kept[:count]
        names = {hit.material_id: _item_name((items or {}).get(hit.material_id)) for hit in hits}
        return hits, names, len(candidates) - len(kept)

    def _is_living(self, item: Row | None) -> bool:
        """Tell whether an item is one of the base's, and is done."""
        return item is not None and item.get("base_id") == self.base_id and item.get("status") == "completed"

    def _say_what_is_left_out(self, count: int) -> None:
        """Say what the application does and this search does not."""
        threshold = self._setting("threshold")
        has_threshold = isinstance(threshold, int | float) and threshold > 0
        if self._setting("rerank_model_id"):
            cut = (
                tr(", and leave out those below its threshold of {threshold:g}", threshold=threshold)
                if has_threshold
                else ""
            )
            self.notes.append(tr("the application would rerank these hits by a model{cut}; regraft has none", cut=cut))
        elif has_threshold:
            self.notes.append(
                tr(
                    "the threshold of {threshold:g} has no part: it cuts hits that a model has reranked",
                    threshold=threshold,
                )
            )
        if self.catalog is not None and count > MAX_CANDIDATES:
            self.notes.append(
                tr(
                    "at most {max_candidates} hits are looked at, as in the application; --raw gives more",
                    max_candidates=MAX_CANDIDATES,
                )
            )


def _item_name(item: Row | None) -> str | None:
    return None if item is None else item_name(item.get("type"), read_item_data(item))


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
