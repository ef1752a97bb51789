"""Search in one base by the rules of Cherry Studio, and read the units of its items (``docs/search.md``).

The index supplies candidates (:mod:`regraft.formats.cherry_v2.index.search`). The catalog decides which of them count
and supplies names. The search mode depends on the base's model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

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
    parse_item_data,
)
from regraft.formats.cherry_v2.index import SCHEMA_VERSION
from regraft.formats.cherry_v2.index.schema import catalog_dimensions, dimensions_of
from regraft.formats.cherry_v2.index.search import (
    BODY_TEXT,
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
from regraft.stores.locate import Located, open_store
from regraft.stores.systems import System
from regraft.text import lenient_text, printable

#: Number of hits if neither the request nor the base sets one.
DEFAULT_COUNT = 10
#: Candidates per requested hit, since the catalog may drop some; and their maximum.
OVERFETCH = 5
MAX_CANDIDATES = 200
#: Kinds of sources that contain searchable bases.
SEARCHABLE_KINDS = (Kind.LIBRARY, Kind.PACK, Kind.V2_PROFILE, Kind.V2_BACKUP, Kind.BASE, Kind.INDEX)
_NO_VECTORS = tr("the base has no vectors; searched by words")
_NO_QUERY_VECTOR = tr(
    "searched by words only; use --embedder or --vector to also search by meaning, as the application does"
)


class Mode(StrEnum):
    """Search mode: by meaning, by words, or both. AngelMemory: by meaning or by tags."""

    VECTOR = "vector"
    BM25 = "bm25"
    HYBRID = "hybrid"
    SIMPLE = "simple"

    @property
    def score_kind(self) -> str:
        """Meaning of scores: ``relevance`` measures similarity, ``ranking`` only orders the hits."""
        return "relevance" if self is Mode.VECTOR else "ranking"


class UnitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A search request. For None, the base's setting applies, otherwise the application's default."""

    query: str
    mode: Mode | None = None
    count: int | None = None
    alpha: float | None = None
    vector: tuple[float, ...] | None = None
    #: Embeds the query if a vector is needed, given the id of the base's model (None if unknown).
    embed: Callable[[str | None], tuple[float, ...]] | None = None
    #: Search the index only, without settings and rules of the catalog.
    raw: bool = False


class UnitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a search in one base: hits, best first."""

    base_id: str
    #: None if there is no catalog.
    base_name: str | None
    mode: Mode
    count: int
    #: Weight of the vector results; None unless two result lists were combined.
    alpha: float | None
    hits: tuple[Hit, ...]
    #: Item names by item id, if there is a catalog.
    item_names: dict[str, str | None] = msgspec.field(default_factory=dict)
    #: Number of hits dropped by the catalog: item missing, of another base, or not completed.
    dropped: int = 0
    notes: tuple[str, ...] = ()
    #: Id of the base's model, if there is a catalog.
    model: str | None = None
    #: Whether scores depend on text length only, as for queries of short words.
    is_by_length: bool = False


# --- selection of the base -------------------------------------------------------------------------------------------


def list_bases(source: Located, rows: list[Row] | None) -> dict[str, StoreFile | None]:
    """Return the bases of a source by id, each with its index file (None if the catalog lists it without one).

    Args:
        source: the source.
        rows: base rows of the catalog, or None without a catalog.
    """
    stores: dict[str, StoreFile | None] = {store.base_id or source.path.name: store for store in source.stores.current}
    if rows is None or source.kind in (Kind.BASE, Kind.INDEX):
        return stores
    return {**{str(row.get("id")): None for row in rows}, **stores}


def choose_base(source: Located, bases: dict[str, StoreFile | None], rows: list[Row] | None, wanted: str | None) -> str:
    """Return the id of the requested base.

    Args:
        source: the source.
        bases: its bases, as :func:`list_bases` returns them.
        rows: base rows of the catalog, or None without a catalog.
        wanted: a v2 or v1 id, a name, or a prefix of an id; None: the only base.

    Raises:
        BaseUnknown, BaseAmbiguous: no base or several bases match.
        NotSearchable: the source has no base.
        WrongUsage: the source has several bases, and none was requested.
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
    raise WrongUsage(problem=problem, hint=tr("choose one with --base: {bases}", bases=join_list(bases)))


@contextmanager
def open_source_catalog(source: Located) -> Iterator[CatalogLookup | None]:
    """Open the catalog of a source; yields None if it has none.

    Raises:
        SourceUnreadable: the catalog cannot be read or is damaged.
    """
    if source.stores.catalog is None:
        yield None
        return
    with source.tree.local(source.stores.catalog, None) as path:
        try:
            with open_catalog(path) as catalog:
                yield catalog
        except CatalogProblem as problem:
            reason = tr("the catalog {problem}; use --raw to search without it", problem=problem)
            raise SourceUnreadable(path=source.path, reason=reason) from problem


@contextmanager
def open_index(source: Located, store: StoreFile) -> Iterator[apsw.Connection]:
    """Open a base's index for reading, with sqlite-vec, leaving no files behind.

    Raises:
        SourceUnreadable: the index cannot be read or is damaged.
    """
    with (
        source.tree.local(store.name, None) as path,
        report_damaged_index(source, store),
        sqlite.open_readonly(path, vectors=True) as db,
    ):
        yield db


@contextmanager
def report_damaged_index(source: Located, store: StoreFile) -> Iterator[None]:
    """Convert SQLite errors in this block to SourceUnreadable, naming the index file.

    Raises:
        SourceUnreadable: the index cannot be read.
    """
    try:
        yield
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=_display_path(source, store), reason=error) from error


def _display_path(source: Located, store: StoreFile) -> Path:
    """Return the path of a base's index file, or of the archive that contains it, for messages."""
    return source.path if source.is_archive else source.tree.path / store.name


# --- the search ------------------------------------------------------------------------------------------------------


def search(source: Located, wanted: str | None, request: UnitRequest) -> UnitAnswer:
    """Search one base.

    Args:
        source: a library, profile, v2 backup, base folder or index file.
        wanted: v2 or v1 id, name, or prefix of the id; may be None for a source with one base.
        request: the search request.

    Raises:
        NotSearchable: the source has no searchable base.
        BaseUnknown, BaseAmbiguous, WrongUsage: no base matches, several match, or none was requested.
        BaseFailed, BaseNotListed, BaseWithoutIndex, BackupSlim: the base cannot be searched.
        IndexForeign, IndexVersionUnknown: the index belongs to another base, or has an unknown layout.
        QueryWithoutWord, QueryTooLong: the query has no word, too many words, or too long ones.
        QueryVectorMissing, QueryVectorUnfit: the mode needs a vector, or one with other dimensions.
        SourceUnreadable: the index or the catalog is damaged.
    """
    with open_bases(source, request) as bases:
        base_id = choose_base(source, bases.stores, bases.rows, wanted)
        return bases.search(base_id, request)


class Bases(msgspec.Struct, frozen=True, kw_only=True):
    """The opened bases of a source. ``rows`` and ``catalog`` are None without a catalog."""

    source: Located
    catalog: CatalogLookup | None
    rows: list[Row] | None
    stores: dict[str, StoreFile | None]

    def name_of(self, base_id: str) -> str | None:
        """Return the name of a base in the catalog, or None."""
        for row in self.rows or ():
            if row.get("id") == base_id and row.get("name") is not None:
                return str(row["name"])
        return None

    def search(self, base_id: str, request: UnitRequest) -> UnitAnswer:
        """Search one base by id.

        Raises:
            RegraftError: as :func:`search`.
        """
        row = None if self.rows is None else _find_row(self.source, self.rows, base_id)
        if not request.raw and not tokens(request.query):
            raise QueryWithoutWord
        store = self.stores[base_id]
        if store is None and self.source.is_slim:
            raise BackupSlim(path=self.source.path, base=base_id)
        if store is None:
            raise BaseWithoutIndex(path=self.source.path, base=base_id)
        with open_index(self.source, store) as db:
            is_raw = self.catalog is None
            stated, notes = _check_identity(db, _display_path(self.source, store), base_id, raw=is_raw)
            # A single index file belongs to the base that it names itself.
            named = base_id if store.base_id is not None else stated
            return _Search(
                db=db, path=self.source.path, base_id=named, row=row, request=request, catalog=self.catalog, notes=notes
            ).answer()


@contextmanager
def open_bases(source: Located, request: UnitRequest) -> Iterator[Bases]:
    """Open the bases of a source for a search.

    Raises:
        NotSearchable: the source has no searchable base.
        SourceUnreadable: the catalog is damaged.
    """
    check_searchable(source)
    with ExitStack() as opened:
        catalog = None if request.raw else opened.enter_context(open_source_catalog(source))
        rows = None if catalog is None else catalog.bases()
        yield Bases(source=source, catalog=catalog, rows=rows, stores=list_bases(source, rows))


def check_searchable(source: Located) -> None:
    """Refuse a source kind without searchable bases.

    Raises:
        NotSearchable
    """
    if source.kind in SEARCHABLE_KINDS:
        return
    advice = System.search_advice
    if source.kind in SYSTEMS:
        advice = systems.system_of(source.kind).search_advice
    raise NotSearchable(path=source.path, what=KIND_NAMES[source.kind], advice=advice)


def _find_row(source: Located, rows: list[Row], base_id: str) -> Row:
    """Return the row of a base among the base ``rows`` of the catalog.

    Raises:
        BaseNotListed, BaseFailed: the application does not search this base.
    """
    row = next((row for row in rows if row.get("id") == base_id), None)
    if row is None:
        raise BaseNotListed(path=source.path, base=base_id)
    if row.get("status") == "failed":
        raise BaseFailed(path=source.path, base=base_id, reason=row.get("error"))
    return row


def _check_identity(db: apsw.Connection, path: Path, base_id: str, *, raw: bool) -> tuple[str, list[str]]:
    """Verify that an index belongs to a base; return the base id that the index states, and notes for the user.

    Args:
        db: the index.
        path: its path, for errors.
        base_id: the base.
        raw: whether the index may state another base.

    Raises:
        IndexVersionUnknown, IndexForeign: the index has an unknown layout, or belongs to another base.
    """
    version, id_bytes = db.execute("SELECT schema_version, CAST(base_id AS BLOB) FROM meta LIMIT 1").get or (None, b"")
    if version not in (1, SCHEMA_VERSION):
        raise IndexVersionUnknown(
            path=path, found=version, known=tr("1 and {schema_version}", schema_version=SCHEMA_VERSION)
        )
    stated = lenient_text(id_bytes)
    if stated != base_id and not raw:
        advice = tr("the application would refuse it; use --raw to search the index alone")
        raise IndexForeign(path=path, found=stated, base=base_id, advice=advice)
    if version != SCHEMA_VERSION:
        note = tr(
            "the index has version {version}; the application would clear it instead of searching it", version=version
        )
        return stated, [note]
    return stated, []


class _Search(msgspec.Struct, kw_only=True):
    """A single search. Without a catalog row, only the index is used."""

    db: apsw.Connection
    path: Path
    base_id: str
    row: Row | None
    request: UnitRequest
    catalog: CatalogLookup | None
    notes: list[str] = msgspec.field(default_factory=list)

    def answer(self) -> UnitAnswer:
        """Run the search."""
        dimensions = dimensions_of(self.db, catalog_dimensions(self.row))
        mode = self._choose_mode(dimensions)
        count = self.request.count or _positive(self._setting("document_count")) or DEFAULT_COUNT
        blob = b"" if mode is Mode.BM25 else self._query_vector(mode, dimensions)
        weight = DEFAULT_ALPHA if self.request.alpha is None else self.request.alpha
        alpha = weight if mode is Mode.HYBRID else None
        hits, names, dropped = self._apply_catalog(self._make_query(mode, blob, weight), count)
        self._add_notes(count)
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
        """Return a column of the base's row in the catalog: a setting of the base. None without a catalog."""
        return None if self.row is None else self.row.get(column)

    # --- mode and query vector ---------------------------------------------------------------------------------------

    def _choose_mode(self, dimensions: int | None) -> Mode:
        """Return the mode of the request, or else the base's own; bm25 if the base or the query has no vectors.

        ``dimensions`` are those of the base's vectors; None: it has none. Notes tell the user of a change.
        """
        mode = self.request.mode or self._default_mode()
        has_no_model = self.row is not None and self._setting("embedding_model_id") is None
        if mode is not Mode.BM25 and (dimensions is None or has_no_model):
            self.notes.append(_NO_VECTORS)
            mode = Mode.BM25
        if mode is Mode.HYBRID and self.request.mode is None and not self._has_vector():
            self.notes.append(_NO_QUERY_VECTOR)
            mode = Mode.BM25
        elif mode is Mode.BM25 and self.request.vector is not None:
            self.notes.append(tr("the vector is not used: mode bm25 searches by words only"))
        return mode

    def _default_mode(self) -> Mode:
        """Return the mode for a request without one: by the base's model, or by the query for an index alone."""
        if self.row is None:
            return Mode.HYBRID if self._has_vector() else Mode.BM25
        has_model = self._setting("embedding_model_id") is not None and _positive(self._setting("dimensions"))
        return Mode.HYBRID if has_model and self._setting("status") == "completed" else Mode.BM25

    def _has_vector(self) -> bool:
        """Whether the query has a vector, or an embedder that can compute one."""
        return self.request.vector is not None or self.request.embed is not None

    def _query_vector(self, mode: Mode, dimensions: int | None) -> bytes:
        """Return the query's vector, given or embedded, in the format of the index.

        Raises:
            QueryVectorMissing: the query has none, which ``mode`` needs.
            QueryVectorUnfit: its dimensions are not ``dimensions``.
        """
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
            self.notes.append(tr("the vector is all zeros, so it is similar to nothing"))
        return blob

    def _model(self) -> str | None:
        """Return the id of the base's embedding model; None without one or without a catalog."""
        model = self._setting("embedding_model_id")
        return None if model is None else str(model)

    def _make_query(self, mode: Mode, blob: bytes, weight: float) -> Callable[[int], list[Hit]]:
        """Return a function that takes a count and returns that many of the index's best hits.

        ``blob`` is the query's vector, empty in bm25 mode; ``weight`` is that of the vector results in hybrid mode.
        """
        query = self.request.query
        if mode is Mode.BM25:
            return lambda count: bm25_hits(self.db, query, count)
        if mode is Mode.VECTOR:
            return lambda count: vector_hits(self.db, blob, count)
        return lambda count: hybrid_hits(self.db, query, blob, count, weight)

    # --- rules of the catalog ----------------------------------------------------------------------------------------

    def _apply_catalog(
        self, find_hits: Callable[[int], list[Hit]], count: int
    ) -> tuple[list[Hit], dict[str, str | None], int]:
        """Return the best ``count`` hits that the catalog accepts, their item names, and the number of dropped hits.

        ``find_hits`` takes a count and returns that many of the index's best hits.
        """
        if self.catalog is None:
            return find_hits(count), {}, 0
        candidates = find_hits(min(count * OVERFETCH, MAX_CANDIDATES))
        items = self.catalog.items(hit.material_id for hit in candidates)
        kept = [hit for hit in candidates if items is None or self._is_completed(items.get(hit.material_id))]
        hits = kept[:count]
        names: dict[str, str | None] = {}
        for hit in hits:
            item = (items or {}).get(hit.material_id)
            names[hit.material_id] = None if item is None else item_name(item.get("type"), parse_item_data(item))
        return hits, names, len(candidates) - len(kept)

    def _is_completed(self, item: Row | None) -> bool:
        """Whether an item belongs to this base and is completed."""
        return item is not None and item.get("base_id") == self.base_id and item.get("status") == "completed"

    def _add_notes(self, count: int) -> None:
        """Add notes on what the application does and this search, for ``count`` hits, does not."""
        threshold = self._setting("threshold")
        has_threshold = isinstance(threshold, int | float) and threshold > 0
        if self._setting("rerank_model_id"):
            cut = (
                tr(" and drop those below its threshold of {threshold:g}", threshold=threshold) if has_threshold else ""
            )
            self.notes.append(
                tr("the application would rerank these hits with a model{cut}; regraft does not", cut=cut)
            )
        elif has_threshold:
            self.notes.append(
                tr(
                    "the threshold of {threshold:g} is not applied: it concerns reranked hits only",
                    threshold=threshold,
                )
            )
        if self.catalog is not None and count > MAX_CANDIDATES:
            self.notes.append(
                tr(
                    "at most {max_candidates} hits are considered, as in the application; use --raw for more",
                    max_candidates=MAX_CANDIDATES,
                )
            )


def _positive(value: object) -> int | None:
    """Return a value if it is a positive integer, or None."""
    return value if isinstance(value, int) and value > 0 else None


#: Embeds a query for the model with the given id.
Embed = Callable[[str], tuple[float, ...]]


class NoVector(Exception):
    """The query has no usable vector; the message gives the reason."""


# --- the units of an item --------------------------------------------------------------------------------------------


#: Largest vector that is read, in bytes: 65,536 dimensions. Larger ones are damage.
_MOST_BYTES = 4 << 16
#: A vector that is a BLOB of whole float32 values and not larger than that, else NULL.
_VECTOR = (
    "CASE WHEN typeof(e.vector_blob) = 'blob' AND octet_length(e.vector_blob) % 4 = 0"
    f" AND octet_length(e.vector_blob) BETWEEN 4 AND {_MOST_BYTES} THEN e.vector_blob END"
)
_FROM = (
    "FROM search_unit u LEFT JOIN search_text t ON t.target_id = u.unit_id AND +t.kind = 'body' "
    "LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash"
)


class StoredUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of an index. Values of a damaged index can be of any type, so numbers may be None."""

    unit_id: str
    unit_index: int | None
    #: Where the body is in the item's text, in UTF-16 units.
    char_start: int | None
    char_end: int | None
    #: None if the unit has no body, which is damage.
    text: str | None
    #: Dimensions and Euclidean length of its vector; None without a vector.
    dimensions: int | None = None
    norm: float | None = None


class ItemUnits(msgspec.Struct, frozen=True, kw_only=True):
    """Some units of an item. ``count`` is the number of all of them; ``relative_path`` is below ``raw/``."""

    relative_path: str | None
    count: int
    units: tuple[StoredUnit, ...]


def read_units(path: Path, base: str, item: str, *, first: int, count: int) -> ItemUnits:
    """Read units of an item, in the order of its text; an item that the index does not have has none.

    Args:
        path: a library, profile, pack, v2 backup or base folder.
        base: id of the base.
        item: id of the item.
        first: number of units to pass over.
        count: maximum number of units.

    Raises:
        BaseWithoutIndex: the source has no such base, or no index of it.
        SourceUnreadable: the index is damaged.
    """
    with open_store(path) as source, open_index(source, _find_index(source, base)) as db:
        found = db.execute("SELECT CAST(relative_path AS BLOB) FROM material WHERE material_id = ?", (item,)).get
        number = db.execute("SELECT count(*) FROM search_unit WHERE material_id = ?", (item,)).get
        rows: Any = db.execute(
            f"SELECT CAST(u.unit_id AS BLOB), u.unit_index, u.char_start, u.char_end, {BODY_TEXT}, {_VECTOR} {_FROM} "
            "WHERE u.material_id = ? ORDER BY u.unit_index LIMIT ? OFFSET ?",
            (item, count, first),
        )
        units = []
        for unit, place, start, end, text, vector in rows:
            numbers = () if vector is None else struct.unpack(f"<{len(vector) // 4}f", vector)
            one = StoredUnit(
                unit_id=lenient_text(unit or b""),
                unit_index=_whole(place),
                char_start=_whole(start),
                char_end=_whole(end),
                text=None if text is None else lenient_text(text),
                dimensions=len(numbers) or None,
                norm=math.hypot(*numbers) if numbers else None,
            )
            units.append(one)
    return ItemUnits(
        relative_path=None if found is None else lenient_text(found), count=int(str(number)), units=tuple(units)
    )


def find_neighbors(path: Path, base: str, unit: str, count: int) -> list[Hit]:
    """Return the ``count`` units of a base whose vectors are nearest to that of one of its units, by cosine.

    Args:
        path: a library, profile, pack, v2 backup or base folder.
        base: id of the base.
        unit: id of the unit; nothing is returned if it has no vector.
        count: maximum number of units.

    Raises:
        BaseWithoutIndex, SourceUnreadable: as :func:`read_units`.
    """
    with open_store(path) as source, open_index(source, _find_index(source, base)) as db:
        vector = db.execute(f"SELECT {_VECTOR} {_FROM} WHERE u.unit_id = ?", (unit,)).get
        if not isinstance(vector, bytes):
            return []
        return [hit for hit in vector_hits(db, vector, count + 1) if hit.unit_id != unit][:count]


def _find_index(source: Located, base: str) -> StoreFile:
    """Return the index file of a base, given by its id; raise BaseWithoutIndex if the source has none."""
    store = list_bases(source, None).get(base)
    if store is None:
        raise BaseWithoutIndex(path=source.path, base=base)
    return store


def _whole(value: object) -> int | None:
    """Return a value if it is an integer, or None."""
    return value if isinstance(value, int) else None
