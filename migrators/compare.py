"""The same query vectors for an old table and its new index: where answers part (``docs/search.md``, "Comparing")."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import apsw

from migrators import registry
from migrators.pipeline.options import Options
from migrators.pipeline.run import read_library
from migrators.pipeline.survey import BasePlanner, chosen
from regraft import identity, sqlite
from regraft.errors import BaseUnknown, NotSearchable, SourceUnreadable
from regraft.formats.cherry_v1.embedjs import VECTORS
from regraft.formats.cherry_v2.index.search import dimensions_of, vector_blob
from regraft.formats.cherry_v2.layout import Store
from regraft.formats.vector_table import StoreProblem, VectorTable
from regraft.kinds import NAMES, Kind
from regraft.locate import Located
from regraft.ranking import cherry_v2
from regraft.ranking.fusion import IndexTexts, Ranking, first_difference, recall, with_ties
from regraft.report import progress

#: What a comparison of a base comes to.
OUTCOMES = ("equal", "different", "missing", "failed", "not-compared")
_EVERY_ROW = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Query:
    """A vector to ask both sides for, with what it is called."""

    id: str
    vector: tuple[float, ...]


@dataclass(frozen=True)
class OldBase:
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
def old_bases(source: Located, options: Options) -> Iterator[list[OldBase]]:
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
        for work in planner.works(bases, {}, progress.Silent()):
            plan, draft = work.plan, work.draft
            if plan is None:
                continue
            runs = tuple(dict.fromkeys(run for material in plan.materials for run in material.runs))
            vectors = work.vectors if plan.error is None else None
            problem = None if plan.error is None else f"it would migrate as failed ({plan.error})"
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
    vectors, problem = (None, "it holds no usable vector") if size is None else (source.path, None)
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
        rows = sorted(self.hashes)
        if not rows:
            return []
        starts = sorted({at * len(rows) // count for at in range(count)})
        found = []
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            vectors = ((rowid, self._vector(rowid)) for rowid in rows[start:end])
            usable = ((rowid, vector) for rowid, vector in vectors if self._is_near_itself(vector))
            rowid, vector = next(usable, (0, b""))
            if vector:
                found.append(Query(f"row {rowid}", struct.unpack(f"<{len(vector) // 4}f", vector)))
        return found

    def _is_near_itself(self, vector: bytes) -> bool:
        return self._db.execute("SELECT vec_distance_cosine(?1, ?1)", (vector,)).get is not None

    def _vector(self, rowid: int) -> bytes:
        return self._base.table.vector_of(self._db, rowid)


# --- the comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """What both sides are asked: the queries given, or a sample of so many of each base's own vectors."""

    count: int
    sample: int
    queries: tuple[Query, ...] | None = None


def compare(old: Located, new: Located, options: Options, asked: Question) -> list[dict[str, Any]]:
    """Return what a comparison of every base of a v1 or preview source comes to, in the source's order.

    Args:
        old: whatever is migrated, or one vector file.
        new: a library, profile, v2 backup, base folder or index file.
        options: as for a migration; they say which bases count.
        asked: what both sides are asked.

    Raises:
        NotSearchable: ``new`` is something else.
        SourceUnreadable: an old table or an index is damaged.
        RegraftError: as for planning a migration.
    """
    if new.kind not in cherry_v2.SEARCHED:
        advice = "V2 has to be a v2 library, profile, backup, base or index"
        raise NotSearchable(path=new.path, what=NAMES[new.kind], advice=advice)
    stores = cherry_v2.known_bases(new, None)
    with old_bases(old, options) as found:
        return [compare_base(base, new, store_of(base, stores, only=len(found) == 1), asked) for base in found]


def compare_base(old: OldBase, new: Located, store: Store | None, asked: Question) -> dict[str, Any]:
    """Return what a comparison of one base comes to.

    Raises:
        SourceUnreadable: the old table or the index is damaged.
    """
    about: dict[str, Any] = {"legacy_id": old.legacy_id, "id": old.id, "name": old.name}
    if old.vectors is None:
        return {**about, **_nothing("failed", old.problem)}
    if store is None:
        return {**about, **_nothing("missing", "V2 has no index of it that can be read")}
    with _opened_table(old.vectors) as table, cherry_v2.opened_index(new, store) as index:
        texts = OldTexts(table, old)
        queries = texts.sample(asked.sample) if asked.queries is None else list(asked.queries)
        fitting = [query for query in queries if 4 * len(query.vector) == old.vector_bytes]
        if not fitting:
            given = "no vector to sample" if asked.queries is None else f"no query of {old.vector_bytes // 4} numbers"
            return {**about, **_nothing("not-compared", given)}
        if dimensions_of(index) not in (None, old.vector_bytes // 4):
            return {**about, **_nothing("different", "the index has vectors of another length")}
        indexed = IndexTexts(index)
        results = [_ask(texts, indexed, query, asked.count) for query in fitting]
    return {**about, **_outcome(results, len(texts.hashes))}


def _outcome(results: list[dict[str, Any]], texts: int) -> dict[str, Any]:
    parted = [result for result in results if result["v1"] != result["v2"]]
    shares = [result["recall"] for result in results]
    return {
        "outcome": "different" if parted else "equal",
        "problem": None,
        "texts": texts,
        "queries": len(results),
        "recall": sum(shares) / len(shares),
        "lowest_recall": min(shares),
        "differences": parted,
    }


def _nothing(outcome: str, problem: str | None) -> dict[str, Any]:
    numbers = {"texts": None, "queries": 0, "recall": None, "lowest_recall": None}
    return {"outcome": outcome, "problem": problem, **numbers, "differences": []}


def _ask(texts: OldTexts, indexed: IndexTexts, query: Query, count: int) -> dict[str, Any]:
    vector = vector_blob(query.vector)
    old, new = texts.nearest(vector, count), indexed.nearest(vector, count)
    parted = first_difference(old, new) or {"rank": None, "v1": None, "v2": None}
    return {"query": query.id, "recall": recall(old, new, count), **parted}


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


def summary(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over all bases; ``recall`` is the mean over queries, None where nothing was asked."""
    outcomes = Counter(base["outcome"] for base in told)
    queries = sum(base["queries"] for base in told)
    found = sum(base["queries"] * base["recall"] for base in told if base["queries"])
    return {
        "by_outcome": {name: outcomes[name] for name in OUTCOMES},
        "queries": queries,
        "recall": found / queries if queries else None,
    }
