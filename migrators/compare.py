"""Compare search results of two stores: the same query vectors for a v1 table and its new index, or for two indexes.

Rules: ``docs/search.md``, "Comparing".
"""

from __future__ import annotations

import math
import posixpath
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import takewhile, zip_longest
from pathlib import Path

import apsw
import msgspec
from msgspec import Struct

from migrators import registry
from migrators.pipeline.run import read_library
from migrators.pipeline.source import Options
from migrators.pipeline.survey import BasePlanner, select_bases
from regraft import identity
from regraft.disk import sqlite
from regraft.errors import (
    BaseUnknown,
    NotSearchable,
    SourceUnreadable,
    WrongUsage,
)
from regraft.formats.cherry_v1.layout import VECTOR_TABLE
from regraft.formats.cherry_v2.index.schema import dimensions_of
from regraft.formats.cherry_v2.index.search import rank_bodies_by_distance, vector_blob
from regraft.formats.cherry_v2.layout import StoreFile, read_reported_ids
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.large_text import LARGE_BYTES, LargeText, hash_text
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import VectorTable
from regraft.identity import replace, resolve_base
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.ranking import cherry_v2
from regraft.report import progress
from regraft.report.document import Report
from regraft.stores.locate import Located
from regraft.text import lenient_text

#: Text hashes with scores, best first; equal scores ordered by hash.
Ranking = list[tuple[str, float]]


def rank_with_ties(texts: Iterable[tuple[str, float]], count: int) -> Ranking:
    """Return the first ``count`` distinct texts of a ranking with scores, and further ones that score as the last."""
    found: dict[str, float] = {}
    last = math.inf
    for text, score in texts:
        if len(found) >= count and score != last:
            break
        if text not in found:
            found[text] = last = score
    return sorted(found.items(), key=lambda entry: (-entry[1], entry[0]))


def measure_recall(old: Ranking, new: Ranking, count: int) -> float:
    """Return the share of the ``count`` nearest old texts that the new ranking contains; 1 for an empty old ranking."""
    wanted, given = {text for text, _ in old}, {text for text, _ in new}
    if not wanted:
        return 1.0
    return min(count, len(wanted & given)) / min(count, len(wanted))


class IndexTexts:
    """Searches the texts of an index. Each text is hashed once; large ones are hashed in pieces."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._hashes: dict[int, str] = {}

    def nearest(self, vector: bytes, count: int) -> Ranking:
        """Return the ``count`` texts nearest to a vector, and further ones that are as near as the last.

        Units with equal text are several hits but one text.

        Raises:
            apsw.Error: the index is damaged.
        """
        return rank_with_ties(
            ((self._hash(rowid), score) for rowid, score in rank_bodies_by_distance(self._db, vector)), count
        )

    def _hash(self, rowid: int) -> str:
        """Return the hash of the text at a rowid, which is read once."""
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


# --- options and results -------------------------------------------------------------------------------------------


#: Possible outcomes of comparing a base.
OUTCOMES = ("equal", "different", "missing", "damaged", "failed", "not-compared")
#: Finds the nearest texts in one store.
FindNearest = Callable[[bytes, int], Ranking]


class Query(msgspec.Struct, frozen=True):
    """A query vector and its name in the report."""

    id: str
    vector: tuple[float, ...]


class ComparisonOptions(msgspec.Struct, frozen=True):
    """What to search for: the given queries, or a sample of this many of each base's own vectors."""

    count: int
    sample: int
    queries: tuple[Query, ...] | None = None


class RankedText(Struct, frozen=True, kw_only=True):
    """A text at a rank of one store's results."""

    text_hash: str
    score: float

    @classmethod
    def of(cls, entry: tuple[str, float]) -> RankedText:
        """Name the fields of an entry of a ranking."""
        return cls(text_hash=entry[0], score=entry[1])


class Difference(Struct, frozen=True, kw_only=True):
    """The first rank at which the results of a query differ; None for a store that has fewer results.

    Equal results have None as ``rank``.
    """

    query: str
    recall: float
    rank: int | None
    v1: RankedText | None
    v2: RankedText | None


class BaseComparison(Struct, frozen=True, kw_only=True):
    """The comparison of one base. ``compared_with`` is its id in the second store."""

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
    """Totals of all bases. ``recall`` is the mean of all queries, None if there were none."""

    by_outcome: dict[str, int]
    queries: int
    recall: float | None


class CompareReport(Report, kw_only=True):
    """The report of ``regraft compare`` (``docs/commands.md``)."""

    k: int
    bases: list[BaseComparison]
    summary: ComparisonSummary


class BasePair(msgspec.Struct, frozen=True, kw_only=True):
    """A base of the first store, and the id of the base of the second store that it is compared with."""

    legacy_id: str | None
    id: str
    name: str
    other: str | None

    def not_searched(self, outcome: str, problem: str | None) -> BaseComparison:
        """Report this base as not searched. ``problem`` says why, for a person (None: ``outcome`` says all)."""
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome=outcome,
            problem=problem,
            compared_with=self.other,
        )

    def from_queries(self, results: list[Difference], texts: int) -> BaseComparison:
        """Combine the results of all queries of this base. ``texts`` is the number of texts in the first store."""
        different = [result for result in results if result.v1 != result.v2]
        shares = [result.recall for result in results]
        return BaseComparison(
            legacy_id=self.legacy_id,
            id=self.id,
            name=self.name,
            outcome="different" if different else "equal",
            problem=None,
            texts=texts,
            queries=len(results),
            recall=sum(shares) / len(shares),
            lowest_recall=min(shares),
            differences=different,
            compared_with=self.other,
        )


def compare_answers(first: FindNearest, second: FindNearest, query: Query, count: int) -> Difference:
    """Find the ``count`` texts nearest to a query in both stores, and compare them.

    ``first`` and ``second`` search the stores.

    Raises:
        apsw.Error: a store is damaged.
    """
    vector = vector_blob(query.vector)
    old, new = first(vector, count), second(vector, count)
    rank, before, after = find_first_difference(old, new) or (None, None, None)
    return Difference(query=query.id, recall=measure_recall(old, new, count), rank=rank, v1=before, v2=after)


def find_first_difference(old: Ranking, new: Ranking) -> tuple[int, RankedText | None, RankedText | None] | None:
    """Return the first rank at which two rankings differ and the text of each there, or None if they are equal.

    A ranking that ends before this rank has None as its text.
    """
    for rank, (before, after) in enumerate(zip_longest(old, new), 1):
        if before != after:
            return rank, before and RankedText.of(before), after and RankedText.of(after)
    return None


def summarize(comparisons: list[BaseComparison]) -> ComparisonSummary:
    """Add up the comparisons of all bases."""
    outcomes = Counter(base.outcome for base in comparisons)
    queries = sum(base.queries for base in comparisons)
    found = sum(base.queries * base.recall for base in comparisons if base.recall is not None)
    return ComparisonSummary(
        by_outcome={name: outcomes[name] for name in OUTCOMES},
        queries=queries,
        recall=found / queries if queries else None,
    )


# --- two stores of the current layout ------------------------------------------------------------------------------


class StoreBases(msgspec.Struct, frozen=True, kw_only=True):
    """The bases of a store: index files and names by id, ids of failed bases, and v1 ids by id."""

    source: Located
    stores: dict[str, StoreFile | None]
    names: dict[str, str]
    failed: frozenset[str]
    legacy: dict[str, str]


def compare_stores(
    first: Located,
    second: Located,
    wanted: tuple[str, ...],
    options: ComparisonOptions,
    watch: progress.Progress | None = None,
) -> list[BaseComparison]:
    """Compare every base of the first store with its counterpart in the second, in the order of the first store.

    Args:
        first: a library, profile, v2 backup, base folder or index file.
        second: another one.
        wanted: ids of the bases of the first store to compare; empty: all.
        options: what to search for.
        watch: called with the progress.

    Raises:
        BaseUnknown, BaseAmbiguous: a base of ``wanted`` does not exist.
        SourceUnreadable: a catalog is damaged.
    """
    ours, theirs = read_bases(first), read_bases(second)
    chosen = {resolve_base(one, ours.names, {old: new for new, old in ours.legacy.items()}) for one in wanted}
    ids = [base_id for base_id in ours.stores if not wanted or base_id in chosen]
    others = match_bases(BaseNames(ours.names, ours.legacy), BaseNames(theirs.names, theirs.legacy))
    watch = watch or progress.SilentProgress()
    compared = []
    with progress.stage(watch, "Comparing", len(ids), "bases"):
        for base_id in ids:
            watch.at(ours.names[base_id])
            compared.append(_compare_pair(ours, theirs, base_id, others.get(base_id), options))
            watch.step(1, 0)
    return compared


def read_bases(source: Located) -> StoreBases:
    """List the bases of a store of the v2 layout.

    Raises:
        SourceUnreadable: its catalog is damaged.
    """
    with cherry_v2.open_source_catalog(source) as catalog:
        rows = None if catalog is None else catalog.bases()
    stores = cherry_v2.list_bases(source, rows)
    names = {str(row.get("id")): str(row.get("name")) for row in rows or ()}
    folder = posixpath.dirname(source.stores.catalog or "")
    reported = read_reported_ids(source.tree, folder)
    return StoreBases(
        source=source,
        stores=stores,
        names={base_id: names.get(base_id, base_id) for base_id in stores},
        failed=frozenset(str(row.get("id")) for row in rows or () if row.get("status") == "failed"),
        legacy={new: old for old, new in reported.items()},
    )


class BaseNames(msgspec.Struct, frozen=True):
    """The bases of a store: their names, and their v1 ids as far as they are known, by id."""

    names: dict[str, str]
    legacy: dict[str, str]


def match_bases(ours: BaseNames, theirs: BaseNames) -> dict[str, str]:
    """Map the id of each base to the id of the same base in the other store: by v1 id, else by id, else by name.

    A name is used if it is unique among the remaining bases of each store. If both stores have one base, these are
    compared. Bases without a counterpart are left out.
    """
    found: dict[str, str] = {}
    for base_id in ours.names:
        candidates = (one for one in _possible_ids(ours, theirs, base_id) if one in theirs.names)
        other = next(candidates, None)
        if other is not None:
            found[base_id] = other
    taken = set(found.values())
    left = _group_by_name({base_id: name for base_id, name in ours.names.items() if base_id not in found})
    free = _group_by_name({other: name for other, name in theirs.names.items() if other not in taken})
    for name, base_ids in left.items():
        if len(base_ids) == len(free.get(name, ())) == 1:
            found[base_ids[0]] = free[name][0]
    if len(ours.names) == len(theirs.names) == 1:
        found = {next(iter(ours.names)): next(iter(theirs.names))}
    return found


def _possible_ids(ours: BaseNames, theirs: BaseNames, base_id: str) -> list[str]:
    """Return the ids that our base may have in the other store, most certain first."""
    legacy = ours.legacy.get(base_id)
    if legacy is None:
        # The other store may be the v1 data that this base came from.
        return [base_id, *(theirs_id for theirs_id, old in theirs.legacy.items() if old == base_id)]
    by_legacy = [new for new, old in theirs.legacy.items() if old == legacy]
    return [*by_legacy, identity.base_id(legacy), legacy, base_id]


def _group_by_name(names: dict[str, str]) -> dict[str, list[str]]:
    """Group base ids by name, given names by base id."""
    found: dict[str, list[str]] = {}
    for base_id, name in names.items():
        found.setdefault(name, []).append(base_id)
    return found


def _compare_pair(
    ours: StoreBases, theirs: StoreBases, base_id: str, other: str | None, options: ComparisonOptions
) -> BaseComparison:
    """Search our base and ``other``, the same base in the other store (None if it has none), and compare."""
    pair = BasePair(legacy_id=ours.legacy.get(base_id), id=base_id, name=ours.names[base_id], other=other)
    first = ours.stores[base_id]
    if first is None and base_id in ours.failed:
        return pair.not_searched("failed", tr("it failed in V1, so there is nothing to compare"))
    if first is None:
        return pair.not_searched("damaged", tr("V1 has no readable index of it"))
    second = None if other is None else theirs.stores[other]
    if second is None:
        return pair.not_searched("missing", tr("V2 has no readable index of it"))
    try:
        with (
            cherry_v2.open_index(ours.source, first) as old,
            cherry_v2.open_index(theirs.source, second) as new,
        ):
            return _compare_indexes(
                pair, _OpenIndex(ours.source, first, old), _OpenIndex(theirs.source, second, new), options
            )
    except SourceUnreadable as error:
        return pair.not_searched("damaged", str(error))


class _OpenIndex(msgspec.Struct, frozen=True):
    """An open index of a store. Damage is reported with the name of its file."""

    source: Located
    store: StoreFile
    db: apsw.Connection

    def dimensions(self) -> int | None:
        """Return the dimensions of the vectors, or None if they are not known."""
        with cherry_v2.report_damaged_index(self.source, self.store):
            return dimensions_of(self.db)

    def queries(self, count: int) -> tuple[int, list[Query]]:
        """Return the number of texts in the index, and a sample of up to ``count`` of their vectors as queries."""
        with cherry_v2.report_damaged_index(self.source, self.store):
            # One row of ``embedding`` for every text that has a vector and can be found by a search.
            found = self.db.execute(
                """SELECT rowid FROM embedding e
                    WHERE typeof(vector_blob) = 'blob'
                      AND EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = e.embedding_text_hash)
                    ORDER BY rowid"""
            )
            rows = [rowid for (rowid,) in found]

            def vector_of(rowid: int) -> bytes:
                return bytes(self.db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get)

            return len(rows), sample_vectors(self.db, rows, count, vector_of)

    def nearest(self) -> FindNearest:
        """Return the function that searches this index; it reports damage as an error of the store."""
        with cherry_v2.report_damaged_index(self.source, self.store):
            texts = IndexTexts(self.db)

        def search(vector: bytes, count: int) -> Ranking:
            """Find the texts nearest to a vector; report damage."""
            with cherry_v2.report_damaged_index(self.source, self.store):
                return texts.nearest(vector, count)

        return search


def _compare_indexes(pair: BasePair, old: _OpenIndex, new: _OpenIndex, options: ComparisonOptions) -> BaseComparison:
    """Compare what two indexes of a base find for the given queries or, without any, for a sample of stored vectors."""
    dimensions = old.dimensions()
    count, sample = old.queries(options.sample)
    queries = sample if options.queries is None else list(options.queries)
    fitting = [query for query in queries if len(query.vector) == dimensions]
    if not fitting:
        reason = (
            tr("no vectors to sample")
            if options.queries is None
            else tr("no query has {dimensions} dimensions", dimensions=dimensions)
        )
        return pair.not_searched("not-compared", reason)
    if new.dimensions() not in (None, dimensions):
        return pair.not_searched("different", tr("the index has vectors of a different length"))
    first, second = old.nearest(), new.nearest()
    return pair.from_queries([compare_answers(first, second, query, options.count) for query in fitting], count)


def sample_vectors(db: apsw.Connection, rows: list[int], count: int, vector_of: Callable[[int], bytes]) -> list[Query]:
    """Choose the vectors of up to ``count`` rows, evenly spread, as queries. Vectors without a direction are left out.

    Args:
        db: a connection with sqlite-vec.
        rows: rowids in order.
        count: maximum size of the sample.
        vector_of: returns the vector of a row, given its rowid.
    """
    if not rows:
        return []
    starts = sorted({at * len(rows) // count for at in range(count)})
    found = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        for rowid in rows[start:end]:
            vector = vector_of(rowid)
            # The distance of a vector without a direction is NULL.
            distance = "SELECT vec_distance_cosine(?1, ?1)"
            if vector and len(vector) % 4 == 0 and db.execute(distance, (vector,)).get is not None:
                found.append(Query(f"row {rowid}", struct.unpack(f"<{len(vector) // 4}f", vector)))
                break
    return found


_EVERY_ROW = (-(1 << 63), (1 << 63) - 1)


class OldBase(msgspec.Struct, frozen=True):
    """The rows of a source base that would be migrated: their file, and their rowid ranges in order."""

    legacy_id: str
    id: str
    name: str
    table: VectorTable
    #: None if the base would fail.
    vectors: Path | None
    vector_bytes: int
    runs: tuple[tuple[int, int], ...]
    problem: str | None = None
    #: Its rows, also of a base that would fail; None if they cannot be read.
    file: Path | None = None
    model: str | None = None


# --- a source and its new index ------------------------------------------------------------------------------------


@contextmanager
def plan_old_bases(
    source: Located, options: Options, watch: progress.Progress | None = None
) -> Iterator[list[OldBase]]:
    """Plan the bases of a v1 or preview source as ``regraft migrate`` does. Their files stay open during the block.

    For a vector file without a state, every row with a usable vector counts.

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
    pipeline = registry.pipeline_of(source, adopt_orphans=options.adopt_orphans)
    options = replace(options, dry_run=True)
    with ExitStack() as keep:
        bases = select_bases(read_library(pipeline, source, options), options)
        planner = BasePlanner(pipeline, source, source.path, options, keep, None)
        found = []
        for work in planner.plan_bases(bases, {}, watch or progress.SilentProgress()):
            plan, draft = work.plan, work.draft
            if plan is None:
                continue
            runs = tuple(dict.fromkeys(run for material in plan.materials for run in material.runs))
            vectors, problem = work.vectors, None
            if plan.error is not None:
                vectors, problem = None, tr("it would fail to migrate ({error})", error=plan.error)
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
                    file=work.vectors,
                    model=draft.embedding.id,
                )
            )
        yield found


def _vector_file(source: Located) -> OldBase:
    """Describe a vector file without a state as a base."""
    try:
        size = VECTOR_TABLE.survey(source.path).vector_bytes
    except StoreProblem as error:
        raise SourceUnreadable(path=source.path, reason=error) from error
    name = source.path.name
    vectors, problem = (None, tr("it has no usable vector")) if size is None else (source.path, None)
    return OldBase(
        legacy_id=name,
        id=identity.base_id(name),
        name=name,
        table=VECTOR_TABLE,
        vectors=vectors,
        vector_bytes=size or 0,
        runs=(_EVERY_ROW,),
        problem=problem,
        file=vectors,
    )


class OldTexts:
    """Searches the texts of a source base. Rows of equal text count once, with the first vector, as in the index."""

    def __init__(self, db: apsw.Connection, base: OldBase) -> None:
        self._db = db
        self._base = base
        self._distance = (
            f"CASE WHEN typeof({base.table.vector}) = 'blob' AND octet_length({base.table.vector}) = ?2"
            f" THEN vec_distance_cosine({base.table.vector}, ?1) END"
        )
        self.vector_bytes = base.vector_bytes
        first: dict[str, int] = {}
        for rowid, text_hash in base.table.text_hashes(db, base.runs, base.vector_bytes):
            first.setdefault(text_hash, rowid)
        #: Hash of each text, by the rowid of its first row.
        self.hashes = {rowid: text_hash for text_hash, rowid in first.items()}

    def nearest(self, vector: bytes, count: int) -> Ranking:
        """Return the ``count`` texts nearest to a vector, and those with the same distance as the last one."""
        rows = self._db.execute(
            f"""SELECT rowid, {self._distance} AS distance FROM {self._base.table.name} NOT INDEXED
                 ORDER BY distance NULLS LAST""",
            (vector, len(vector)),
        )
        near = takewhile(lambda row: row[1] is not None, rows)
        return rank_with_ties(((self.hashes[row], 1 - away) for row, away in near if row in self.hashes), count)

    def sample(self, count: int) -> list[Query]:
        """Choose the vectors of up to ``count`` rows, evenly spread, as queries.

        Those without a direction are left out.
        """
        return sample_vectors(self._db, sorted(self.hashes), count, partial(self._base.table.vector_of, self._db))


# --- the comparison ------------------------------------------------------------------------------------------------


def compare(
    old: Located, new: Located, options: Options, asked: ComparisonOptions, watch: progress.Progress | None = None
) -> list[BaseComparison]:
    """Compare every base of the first store with its counterpart in the second, in the order of the first store.

    A base that is damaged in either store is reported as damaged, and the others are compared.

    Args:
        old: a source of a migration, a single vector file, or a store like ``new``.
        new: a library, profile, v2 backup, base folder or index file.
        options: options of a migration; they select the bases.
        asked: what to search for.
        watch: called with the progress.

    Raises:
        NotSearchable: ``new`` is something else.
        WrongUsage: ``options`` are about v1's models, and ``old`` is not v1 data.
        SourceUnreadable: a catalog or the state of v1 is damaged.
        RegraftError: as for planning a migration.
    """
    if new.kind not in cherry_v2.SEARCHABLE_KINDS:
        advice = tr("V2 must be a v2 library, profile, backup, base or index")
        raise NotSearchable(path=new.path, what=KIND_NAMES[new.kind], advice=advice)
    if old.kind in cherry_v2.SEARCHABLE_KINDS and not old.stores.has_preview:
        if options.model_overrides != ModelOverrides():
            hint = tr("leave out these options: V1 is in the v2 layout already")
            raise WrongUsage(problem=tr("--map-model and --recreate-model only apply to v1 data"), hint=hint)
        return compare_stores(old, new, options.bases, asked, watch)
    stores = cherry_v2.list_bases(new, None)
    watch = watch or progress.SilentProgress()
    compared = []
    with plan_old_bases(old, options, watch) as found, progress.stage(watch, "Comparing", len(found), "bases"):
        for base in found:
            watch.at(base.name)
            compared.append(compare_base(base, new, find_store(base, stores, only=len(found) == 1), asked))
            watch.step(1, 0)
    return compared


def compare_base(old: OldBase, new: Located, store: StoreFile | None, options: ComparisonOptions) -> BaseComparison:
    """Search a base of the source and its new index (None if it has none), and compare."""
    other = None if store is None else store.base_id
    pair = BasePair(legacy_id=old.legacy_id, id=old.id, name=old.name, other=other)
    if old.vectors is None:
        return pair.not_searched("failed", old.problem)
    if store is None:
        return pair.not_searched("missing", tr("V2 has no readable index of it"))
    try:
        with open_table(old.vectors) as table, cherry_v2.open_index(new, store) as index:
            return _compare_with_index(pair, OldTexts(table, old), index, options)
    except SourceUnreadable as error:
        return pair.not_searched("damaged", str(error))


def _compare_with_index(
    pair: BasePair, texts: OldTexts, index: apsw.Connection, options: ComparisonOptions
) -> BaseComparison:
    """Compare what a search finds in the source base and in its index, for the given queries or for a sample."""
    vector_bytes = texts.vector_bytes
    queries = texts.sample(options.sample) if options.queries is None else list(options.queries)
    fitting = [query for query in queries if 4 * len(query.vector) == vector_bytes]
    if not fitting:
        reason = (
            tr("no vectors to sample")
            if options.queries is None
            else tr("no query has {vector_bytes} dimensions", vector_bytes=vector_bytes // 4)
        )
        return pair.not_searched("not-compared", reason)
    if dimensions_of(index) not in (None, vector_bytes // 4):
        return pair.not_searched("different", tr("the index has vectors of a different length"))
    indexed = IndexTexts(index)
    results = [compare_answers(texts.nearest, indexed.nearest, query, options.count) for query in fitting]
    return pair.from_queries(results, len(texts.hashes))


@contextmanager
def open_table(path: Path) -> Iterator[apsw.Connection]:
    """Open a vector file for reading, with sqlite-vec.

    Raises:
        SourceUnreadable: it cannot be read, or is damaged.
    """
    try:
        with sqlite.open_readonly(path, vectors=True) as db:
            yield db
    except (apsw.Error, UnicodeDecodeError) as error:
        if sqlite.is_write_failure(error):
            raise
        raise SourceUnreadable(path=path, reason=error) from error


def find_store(old: OldBase, stores: dict[str, StoreFile | None], *, only: bool) -> StoreFile | None:
    """Find the index of a source base among those of a store: by its new id, else its old one.

    If both have only one base (``only`` tells that of the source), these belong together.
    """
    found = stores.get(old.id) or stores.get(old.legacy_id)
    return next(iter(stores.values())) if found is None and only and len(stores) == 1 else found
