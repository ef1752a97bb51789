"""The same query vectors for an old table and its new index: where answers part (``docs/search.md``, "Comparing")."""

from __future__ import annotations

import posixpath
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from migrators import registry
from migrators.pipeline.run import read_library
from migrators.pipeline.source import Options
from migrators.pipeline.survey import BasePlanner, select_bases
from regraft import identity
from regraft.disk import sqlite
from regraft.errors import BaseUnknown, NotSearchable, SourceUnreadable, WrongUsage
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.cherry_v2.index.schema import dimensions_of
from regraft.formats.cherry_v2.index.search import vector_blob
from regraft.formats.cherry_v2.layout import StoreFile, read_reported_ids
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace, resolve_base
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.ranking import cherry_v2
from regraft.ranking.fusion import IndexTexts, Ranking, first_difference, recall, with_ties
from regraft.report import progress
from regraft.report.document import Report
from regraft.stores.locate import Located

# What a comparison of two stores is asked, and what it tells (``docs/search.md``, "Comparing").


#: What a comparison of a base comes to.
OUTCOMES = ("equal", "different", "missing", "damaged", "failed", "not-compared")
#: Gives the nearest texts of one side.
FindNearest = Callable[[bytes, int], Ranking]


class Query(msgspec.Struct, frozen=True):
    """A vector to ask both sides for, with what it is called."""

    id: str
    vector: tuple[float, ...]


class ComparisonOptions(msgspec.Struct, frozen=True):
    """What both sides are asked: the queries given, or a sample of so many of each base's own vectors."""

    count: int
    sample: int
    queries: tuple[Query, ...] | None = None


class RankedText(Struct, frozen=True, kw_only=True):
    """A text at a rank of one side."""

    text_hash: str
    score: float


class Difference(Struct, frozen=True, kw_only=True):
    """The first rank at which the answers to a query part; the side that has fewer texts has None.

    ``rank`` is None where they do not.
    """

    query: str
    recall: float
    rank: int | None
    v1: RankedText | None
    v2: RankedText | None


class BaseComparison(Struct, frozen=True, kw_only=True):
    """What a comparison of one base comes to; ``compared_with`` is its id in the second store."""

    legacy_id: str | None
    id: str
    name: str
    outcome: str
    problem: str | None
    texts: int | None = None
    queries: int = 0
    recall: float | None = None
    lowest_recall: float | None = None
    differences: list[Difference] = []
    compared_with: str | None = None


class ComparisonSummary(Struct, frozen=True, kw_only=True):
    """The sums over all bases; ``recall`` is the mean over queries, None where nothing was asked."""

    by_outcome: dict[str, int]
    queries: int
    recall: float | None


class CompareReport(Report, kw_only=True):
    """What ``regraft compare`` tells (``docs/commands.md``)."""

    k: int
    bases: list[BaseComparison]
    summary: ComparisonSummary


class BasePair(msgspec.Struct, frozen=True, kw_only=True):
    """One base of the first store, and the id of that of the second store with which it is compared."""

    legacy_id: str | None
    id: str
    name: str
    other: str | None

    def told(self, outcome: str, problem: str | None) -> BaseComparison:
        """Return the comparison of a base that nothing was asked."""
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome=outcome,
            problem=problem,
            compared_with=self.other,
        )

    def compared(self, results: list[Difference], texts: int) -> BaseComparison:
        """Return the comparison of a base by the answers to its queries; ``texts`` is how many the first side has."""
        parted = [result for result in results if result.v1 != result.v2]
        shares = [result.recall for result in results]
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome="different" if parted else "equal",
            problem=None,
            texts=texts,
            queries=len(results),
            recall=sum(shares) / len(shares),
            lowest_recall=min(shares),
            differences=parted,
            compared_with=self.other,
        )


def compare_answers(first: FindNearest, second: FindNearest, query: Query, count: int) -> Difference:
    """Ask both sides for the ``count`` texts that are nearest to a query.

    Raises:
        apsw.Error: one is damaged.
    """
    vector = vector_blob(query.vector)
    old, new = first(vector, count), second(vector, count)
    parted = first_difference(old, new)
    share = recall(old, new, count)
    if parted is None:
        return Difference(query=query.id, recall=share, rank=None, v1=None, v2=None)
    return Difference(query=query.id, recall=share, rank=parted["rank"], v1=_side(parted["v1"]), v2=_side(parted["v2"]))


def _side(found: dict[str, Any] | None) -> RankedText | None:
    return None if found is None else RankedText(**found)


def summarize(told: list[BaseComparison]) -> ComparisonSummary:
    """Return the sums over all bases."""
    outcomes = Counter(base.outcome for base in told)
    queries = sum(base.queries for base in told)
    found = sum(base.queries * base.recall for base in told if base.recall is not None)
    return ComparisonSummary(
        by_outcome={name: outcomes[name] for name in OUTCOMES},
        queries=queries,
        recall=found / queries if queries else None,
    )


# The same query vectors for two stores of the current layout (``docs/search.md``, "Comparing").


class _Bases(msgspec.Struct, frozen=True, kw_only=True):
    """The bases of a store: their indexes, their names, the ids of those that failed, and v1's ids by their own."""

    source: Located
    stores: dict[str, StoreFile | None]
    names: dict[str, str]
    failed: frozenset[str]
    legacy: dict[str, str]


def compare_stores(
    first: Located,
    second: Located,
    wanted: tuple[str, ...],
    asked: ComparisonOptions,
    watch: progress.Progress | None = None,
) -> list[BaseComparison]:
    """Return what a comparison of every base of the first store comes to, in its order.

    Args:
        first: a library, profile, v2 backup, base folder or index file.
        second: another one.
        wanted: the only bases of the first store to compare; empty: all.
        asked: what both are asked.
        watch: is told of every base.

    Raises:
        BaseUnknown, BaseAmbiguous: a base of ``wanted`` is not there.
        SourceUnreadable: a catalog is damaged.
    """
    ours, theirs = _bases_of(first), _bases_of(second)
    chosen = {resolve_base(one, ours.names, {old: new for new, old in ours.legacy.items()}) for one in wanted}
    ids = [base_id for base_id in ours.stores if not wanted or base_id in chosen]
    others = _counterparts(ours, theirs)
    watch = watch or progress.SilentProgress()
    compared = []
    with progress.stage(watch, "Comparing", len(ids), "bases"):
        for base_id in ids:
            watch.at(ours.names[base_id])
            compared.append(_compared(ours, theirs, base_id, others.get(base_id), asked))
            watch.step(1, 0)
    return compared


def _bases_of(source: Located) -> _Bases:
    with cherry_v2.catalog_of(source) as catalog:
        rows = None if catalog is None else catalog.bases()
    stores = cherry_v2.known_bases(source, rows)
    names = {str(row.get("id")): str(row.get("name")) for row in rows or ()}
    folder = posixpath.dirname(source.stores.catalog or "")
    reported = read_reported_ids(source.tree, folder)
    return _Bases(
        source=source,
        stores=stores,
        names={base_id: names.get(base_id, base_id) for base_id in stores},
        failed=frozenset(str(row.get("id")) for row in rows or () if row.get("status") == "failed"),
        legacy={new: old for old, new in reported.items()},
    )


def _counterparts(ours: _Bases, theirs: _Bases) -> dict[str, str]:
    """Return the id of the same base in the other store, by the base's own: by its v1 id, by its id, then by its name.

    A name counts where each store has one base left of it. Where both stores have one base, these are the same.
    """
    found: dict[str, str] = {}
    for base_id in ours.stores:
        candidates = (one for one in _other_ids(ours, theirs, base_id) if one in theirs.stores)
        other = next(candidates, None)
        if other is not None:
            found[base_id] = other
    taken = set(found.values())
    left = _by_name({base_id: ours.names[base_id] for base_id in ours.stores if base_id not in found})
    free = _by_name({other: theirs.names[other] for other in theirs.stores if other not in taken})
    for name, base_ids in left.items():
        if len(base_ids) == len(free.get(name, ())) == 1:
            found[base_ids[0]] = free[name][0]
    if len(ours.stores) == len(theirs.stores) == 1:
        found = {next(iter(ours.stores)): next(iter(theirs.stores))}
    return found


def _other_ids(ours: _Bases, theirs: _Bases, base_id: str) -> list[str]:
    """Return the ids that the same base may have in the other store, the surest first."""
    legacy = ours.legacy.get(base_id)
    if legacy is None:
        return [base_id]
    by_legacy = [new for new, old in theirs.legacy.items() if old == legacy]
    return [*by_legacy, identity.base_id(legacy), legacy, base_id]


def _by_name(names: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for base_id, name in names.items():
        found.setdefault(name, []).append(base_id)
    return found


def _compared(
    ours: _Bases, theirs: _Bases, base_id: str, other: str | None, asked: ComparisonOptions
) -> BaseComparison:
    pair = BasePair(legacy_id=ours.legacy.get(base_id), id=base_id, name=ours.names[base_id], other=other)
    first = ours.stores[base_id]
    if first is None and base_id in ours.failed:
        return pair.told("failed", tr("it failed in V1: there is nothing to compare"))
    if first is None:
        return pair.told("damaged", tr("V1 has no index of it that can be read"))
    second = None if other is None else theirs.stores[other]
    if second is None:
        return pair.told("missing", tr("V2 has no index of it that can be read"))
    try:
        with (
            cherry_v2.opened_index(ours.source, first) as old,
            cherry_v2.opened_index(theirs.source, second) as new,
        ):
            return _compare_indexes(pair, _Index(ours.source, first, old), _Index(theirs.source, second, new), asked)
    except SourceUnreadable as error:
        return pair.told("damaged", str(error))


class _Index(msgspec.Struct, frozen=True):
    """The open index of one side; damage is told of the index in which it is met, since both are open at once."""

    source: Located
    store: StoreFile
    db: apsw.Connection

    def dimensions(self) -> int | None:
        with cherry_v2.naming(self.source, self.store):
            return dimensions_of(self.db)

    def queries(self, count: int) -> tuple[int, list[Query]]:
        """Return how many texts the index has, and a sample of their vectors."""
        with cherry_v2.naming(self.source, self.store):
            rows = _texts(self.db)
            return len(rows), _sample(self.db, rows, count)

    def nearest(self) -> FindNearest:
        with cherry_v2.naming(self.source, self.store):
            texts = IndexTexts(self.db)

        def asked(vector: bytes, count: int) -> Ranking:
            with cherry_v2.naming(self.source, self.store):
                return texts.nearest(vector, count)

        return asked


def _compare_indexes(pair: BasePair, old: _Index, new: _Index, asked: ComparisonOptions) -> BaseComparison:
    dimensions = old.dimensions()
    count, sample = old.queries(asked.sample)
    queries = sample if asked.queries is None else list(asked.queries)
    fitting = [query for query in queries if len(query.vector) == dimensions]
    if not fitting:
        given = (
            tr("no vector to sample")
            if asked.queries is None
            else tr("not a query of {dimensions} numbers", dimensions=dimensions)
        )
        return pair.told("not-compared", given)
    if new.dimensions() not in (None, dimensions):
        return pair.told("different", tr("the index has vectors of another length"))
    first, second = old.nearest(), new.nearest()
    return pair.compared([compare_answers(first, second, query, asked.count) for query in fitting], count)


def _texts(db: apsw.Connection) -> list[int]:
    """Return a rowid in ``embedding`` for every text that has a vector and that a search can find."""
    rows = db.execute(
        """SELECT rowid FROM embedding e
            WHERE typeof(vector_blob) = 'blob'
              AND EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash)
            ORDER BY rowid"""
    )
    return [rowid for (rowid,) in rows]


def _sample(db: apsw.Connection, rows: list[int], count: int) -> list[Query]:
    def vector_of(rowid: int) -> bytes:
        return bytes(db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get)

    return sample_vectors(db, rows, count, vector_of)


def sample_vectors(db: apsw.Connection, rows: list[int], count: int, vector_of: Callable[[int], bytes]) -> list[Query]:
    """Return the vectors of up to ``count`` rows, evenly spread; those that are near to nothing are left out.

    Args:
        db: a connection with sqlite-vec.
        rows: rowids in their order.
        count: how many at the most.
        vector_of: gives the vector of a row.
    """
    if not rows:
        return []
    starts = sorted({at * len(rows) // count for at in range(count)})
    found = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        for rowid in rows[start:end]:
            vector = vector_of(rowid)
            if len(vector) % 4 == 0 and _is_near_itself(db, vector):
                found.append(Query(f"row {rowid}", struct.unpack(f"<{len(vector) // 4}f", vector)))
                break
    return found


def _is_near_itself(db: apsw.Connection, vector: bytes) -> bool:
    return bool(vector) and db.execute("SELECT vec_distance_cosine(?1, ?1)", (vector,)).get is not None


_EVERY_ROW = (-(1 << 63), (1 << 63) - 1)


class OldBase(msgspec.Struct, frozen=True):
    """The rows of one base that migrate: where they are, and the ranges of their rowids in the order of carrying."""

    legacy_id: str
    id: str
    name: str
    table: VectorTable
    #: None where the base would migrate as failed.
    vectors: Path | None
    vector_bytes: int
    runs: tuple[tuple[int, int], ...]
    problem: str | None = None


# --- the old side --------------------------------------------------------------------------------------------------


@contextmanager
def plan_old_bases(
    source: Located, options: Options, watch: progress.Progress | None = None
) -> Iterator[list[OldBase]]:
    """Give the bases of a v1 or preview source, by the plan that ``regraft migrate`` makes of it.

    Of a vector file alone, without a state, every row with a usable vector counts.

    Raises:
        RegraftError: as for planning a migration.
    """
    if source.kind is Kind.V1_VECTORS:
        single = _vector_file(source)
        for wanted in options.bases:
            if wanted not in (single.legacy_id, single.id):
                raise BaseUnknown(base=wanted, known=single.legacy_id)
        yield [single]
        return
    pipeline = registry.pipeline_of(source)
    options = replace(options, dry_run=True)
    with ExitStack() as keep:
        bases = select_bases(read_library(pipeline, source, options), options)
        planner = BasePlanner(pipeline, source, source.path, options, keep, None)
        found = []
        for work in planner.works(bases, {}, watch or progress.SilentProgress()):
            plan, draft = work.plan, work.draft
            if plan is None:
                continue
            runs = tuple(dict.fromkeys(run for material in plan.materials for run in material.runs))
            vectors = work.vectors if plan.error is None else None
            problem = None if plan.error is None else tr("it would migrate as failed ({error})", error=plan.error)
            found.append(
                OldBase(
                    legacy_id=draft.legacy_id,
                    id=draft.id,
                    name=draft.name,
                    table=pipeline.table,
                    vectors=vectors,
                    vector_bytes=plan.vector_bytes,
                    runs=runs,
                    problem=problem,
                )
            )
        yield found


def _vector_file(source: Located) -> OldBase:
    try:
        size = VECTOR_TABLE.survey(source.path).vector_bytes
    except StoreProblem as error:
        raise SourceUnreadable(path=source.path, reason=error) from error
    name = source.path.name
    vectors, problem = (None, tr("it holds no usable vector")) if size is None else (source.path, None)
    return OldBase(
        legacy_id=name,
        id=identity.base_id(name),
        name=name,
        table=VECTOR_TABLE,
        vectors=vectors,
        vector_bytes=size or 0,
        runs=(_EVERY_ROW,),
        problem=problem,
    )


class OldTexts:
    """The texts of an old base. Rows of equal text count once, with the vector of the first, as the index has it."""

    def __init__(self, db: apsw.Connection, base: OldBase) -> None:
        self._db = db
        self._base = base
        self._distance = (
            f"CASE WHEN typeof({base.table.vector}) = 'blob' AND octet_length({base.table.vector}) = ?2"
            f" THEN vec_distance_cosine({base.table.vector}, ?1) END"
        )
        self.vector_bytes = base.vector_bytes
        self.hashes = self._read()

    def _read(self) -> dict[int, str]:
        """Return the hash of every text by the rowid of its first row."""
        first: dict[str, int] = {}
        for rowid, text in self._base.table.text_hashes(self._db, self._base.runs, self._base.vector_bytes):
            first.setdefault(text, rowid)
        return {rowid: text for text, rowid in first.items()}

    def nearest(self, vector: bytes, count: int) -> Ranking:
        """Return the ``count`` nearest texts, and those that are as near as the last of them."""
        rows = self._db.execute(
            f"""SELECT rowid, {self._distance} AS distance FROM {self._base.table.name} NOT INDEXED
                 ORDER BY distance NULLS LAST""",
            (vector, len(vector)),
        )
        near = takewhile(lambda row: row[1] is not None, rows)
        return with_ties(((self.hashes[row], 1 - away) for row, away in near if row in self.hashes), count)

    def sample(self, count: int) -> list[Query]:
        """Return the vectors of up to ``count`` rows, evenly spread; those that are near to nothing are left out."""
        return sample_vectors(self._db, sorted(self.hashes), count, self._vector)

    def _vector(self, rowid: int) -> bytes:
        return self._base.table.vector_of(self._db, rowid)


# --- the comparison ------------------------------------------------------------------------------------------------


def compare(
    old: Located, new: Located, options: Options, asked: ComparisonOptions, watch: progress.Progress | None = None
) -> list[BaseComparison]:
    """Return what a comparison of every base of the first store comes to, in its order.

    A base that is damaged on either side is told as such; the others are compared.

    Args:
        old: whatever is migrated, one vector file, or what ``new`` can be.
        new: a library, profile, v2 backup, base folder or index file.
        options: as for a migration; they say which bases count.
        asked: what both sides are asked.
        watch: is told how far it is.

    Raises:
        NotSearchable: ``new`` is something else.
        WrongUsage: ``options`` have a word on v1's models, and ``old`` is not v1 data.
        SourceUnreadable: a catalog or the state of v1 is damaged.
        RegraftError: as for planning a migration.
    """
    if new.kind not in cherry_v2.SEARCHED:
        advice = tr("V2 has to be a v2 library, profile, backup, base or index")
        raise NotSearchable(path=new.path, what=KIND_NAMES[new.kind], advice=advice)
    if old.kind in cherry_v2.SEARCHED and not old.stores.has_preview:
        if options.model_overrides != ModelOverrides():
            hint = tr("leave them out: V1 is in the v2 layout already")
            raise WrongUsage(problem=tr("--map-model and --recreate-model are about v1 data"), hint=hint)
        return compare_stores(old, new, options.bases, asked, watch)
    stores = cherry_v2.known_bases(new, None)
    watch = watch or progress.SilentProgress()
    compared = []
    with plan_old_bases(old, options, watch) as found, progress.stage(watch, "Comparing", len(found), "bases"):
        for base in found:
            watch.at(base.name)
            compared.append(compare_base(base, new, find_store(base, stores, only=len(found) == 1), asked))
            watch.step(1, 0)
    return compared


def compare_base(old: OldBase, new: Located, store: StoreFile | None, asked: ComparisonOptions) -> BaseComparison:
    """Return what a comparison of one base comes to."""
    other = None if store is None else store.base_id
    pair = BasePair(legacy_id=old.legacy_id, id=old.id, name=old.name, other=other)
    if old.vectors is None:
        return pair.told("failed", old.problem)
    if store is None:
        return pair.told("missing", tr("V2 has no index of it that can be read"))
    try:
        with _opened_table(old.vectors) as table, cherry_v2.opened_index(new, store) as index:
            return _compare_with_index(pair, OldTexts(table, old), index, asked)
    except SourceUnreadable as error:
        return pair.told("damaged", str(error))


def _compare_with_index(
    pair: BasePair, texts: OldTexts, index: apsw.Connection, asked: ComparisonOptions
) -> BaseComparison:
    vector_bytes = texts.vector_bytes
    queries = texts.sample(asked.sample) if asked.queries is None else list(asked.queries)
    fitting = [query for query in queries if 4 * len(query.vector) == vector_bytes]
    if not fitting:
        given = (
            tr("no vector to sample")
            if asked.queries is None
            else tr("not a query of {vector_bytes} numbers", vector_bytes=vector_bytes // 4)
        )
        return pair.told("not-compared", given)
    if dimensions_of(index) not in (None, vector_bytes // 4):
        return pair.told("different", tr("the index has vectors of another length"))
    indexed = IndexTexts(index)
    results = [compare_answers(texts.nearest, indexed.nearest, query, asked.count) for query in fitting]
    return pair.compared(results, len(texts.hashes))


@contextmanager
def _opened_table(path: Path) -> Iterator[apsw.Connection]:
    try:
        with sqlite.open_readonly(path, vectors=True) as db:
            yield db
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def find_store(old: OldBase, stores: dict[str, StoreFile | None], *, only: bool) -> StoreFile | None:
    """Return the index of an old base: by the id that it gets, else its own; the only one where both sides have one."""
    found = stores.get(old.id) or stores.get(old.legacy_id)
    return next(iter(stores.values())) if found is None and only and len(stores) == 1 else found
