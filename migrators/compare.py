"""The same query vectors for an old table and its new index: where answers part (``docs/search.md``, "Comparing")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

import apsw
import msgspec

from migrators import compare_stores, registry
from migrators.compare_report import BaseComparison, Pair, Query, Question, ask
from migrators.compare_stores import sampled
from migrators.pipeline.options import Options
from migrators.pipeline.run import read_library
from migrators.pipeline.survey import BasePlanner, chosen
from regraft import identity, sqlite
from regraft.errors import BaseUnknown, NotSearchable, SourceUnreadable, WrongUsage
from regraft.formats.cherry_v1.embedjs import VECTORS
from regraft.formats.cherry_v2.index.vector_lengths import dimensions_of
from regraft.formats.cherry_v2.layout import Store
from regraft.formats.cherry_v2.models import ModelOverrides
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import VectorTable
from regraft.kinds import NAMES, Kind
from regraft.language import tr
from regraft.locate import Located
from regraft.ranking import cherry_v2
from regraft.ranking.fusion import IndexTexts, Ranking, with_ties
from regraft.records import replace
from regraft.report import progress

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
def old_bases(source: Located, options: Options, watch: progress.Progress | None = None) -> Iterator[list[OldBase]]:
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
        bases = chosen(read_library(pipeline, source, options), options)
        planner = BasePlanner(pipeline, source, source.path, options, keep, None)
        found = []
        for work in planner.works(bases, {}, watch or progress.Silent()):
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
        size = VECTORS.survey(source.path).vector_bytes
    except StoreProblem as error:
        raise SourceUnreadable(path=source.path, reason=error) from error
    name = source.path.name
    vectors, problem = (None, tr("it holds no usable vector")) if size is None else (source.path, None)
    return OldBase(
        legacy_id=name,
        id=identity.base_id(name),
        name=name,
        table=VECTORS,
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
        return sampled(self._db, sorted(self.hashes), count, self._vector)

    def _vector(self, rowid: int) -> bytes:
        return self._base.table.vector_of(self._db, rowid)


# --- the comparison ------------------------------------------------------------------------------------------------


def compare(
    old: Located, new: Located, options: Options, asked: Question, watch: progress.Progress | None = None
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
        raise NotSearchable(path=new.path, what=NAMES[new.kind], advice=advice)
    if old.kind in cherry_v2.SEARCHED and not old.stores.has_preview:
        if options.model_overrides != ModelOverrides():
            hint = tr("leave them out: V1 is in the v2 layout already")
            raise WrongUsage(problem=tr("--map-model and --recreate-model are about v1 data"), hint=hint)
        return compare_stores.compare(old, new, options.bases, asked, watch)
    stores = cherry_v2.known_bases(new, None)
    watch = watch or progress.Silent()
    compared = []
    with old_bases(old, options, watch) as found, progress.stage(watch, "Comparing", len(found), "bases"):
        for base in found:
            watch.at(base.name)
            compared.append(compare_base(base, new, store_of(base, stores, only=len(found) == 1), asked))
            watch.step(1, 0)
    return compared


def compare_base(old: OldBase, new: Located, store: Store | None, asked: Question) -> BaseComparison:
    """Return what a comparison of one base comes to."""
    other = None if store is None else store.base_id
    pair = Pair(legacy_id=old.legacy_id, id=old.id, name=old.name, other=other)
    if old.vectors is None:
        return pair.told("failed", old.problem)
    if store is None:
        return pair.told("missing", tr("V2 has no index of it that can be read"))
    try:
        with _opened_table(old.vectors) as table, cherry_v2.opened_index(new, store) as index:
            return _asked(pair, OldTexts(table, old), index, asked)
    except SourceUnreadable as error:
        return pair.told("damaged", str(error))


def _asked(pair: Pair, texts: OldTexts, index: apsw.Connection, asked: Question) -> BaseComparison:
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
    results = [ask(texts.nearest, indexed.nearest, query, asked.count) for query in fitting]
    return pair.compared(results, len(texts.hashes))


@contextmanager
def _opened_table(path: Path) -> Iterator[apsw.Connection]:
    try:
        with sqlite.reading(path, vectors=True) as db:
            yield db
    except (apsw.Error, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def store_of(old: OldBase, stores: dict[str, Store | None], *, only: bool) -> Store | None:
    """Return the index of an old base: by the id that it gets, else its own; the only one where both sides have one."""
    found = stores.get(old.id) or stores.get(old.legacy_id)
    return next(iter(stores.values())) if found is None and only and len(stores) == 1 else found
