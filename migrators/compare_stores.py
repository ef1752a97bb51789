"""The same query vectors for two stores of the current layout (``docs/search.md``, "Comparing")."""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Callable

import apsw
import msgspec

from migrators.compare_report import BaseComparison, Nearest, Pair, Query, Question, ask
from regraft import identity
from regraft.base_names import meant
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v2.index.vector_lengths import dimensions_of
from regraft.formats.cherry_v2.layout import Store
from regraft.formats.cherry_v2.library_report import reported_ids
from regraft.language import tr
from regraft.locate import Located
from regraft.ranking import cherry_v2
from regraft.ranking.fusion import IndexTexts, Ranking
from regraft.report import progress


class _Bases(msgspec.Struct, frozen=True, kw_only=True):
    """The bases of a store: their indexes, their names, the ids of those that failed, and v1's ids by their own."""

    source: Located
    stores: dict[str, Store | None]
    names: dict[str, str]
    failed: frozenset[str]
    legacy: dict[str, str]


def compare(
    first: Located,
    second: Located,
    wanted: tuple[str, ...],
    asked: Question,
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
    chosen = {meant(one, ours.names, {old: new for new, old in ours.legacy.items()}) for one in wanted}
    ids = [base_id for base_id in ours.stores if not wanted or base_id in chosen]
    others = _counterparts(ours, theirs)
    watch = watch or progress.Silent()
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
    reported = reported_ids(source.tree, folder)
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


def _compared(ours: _Bases, theirs: _Bases, base_id: str, other: str | None, asked: Question) -> BaseComparison:
    pair = Pair(legacy_id=ours.legacy.get(base_id), id=base_id, name=ours.names[base_id], other=other)
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
            return _asked(pair, _Index(ours.source, first, old), _Index(theirs.source, second, new), asked)
    except SourceUnreadable as error:
        return pair.told("damaged", str(error))


class _Index(msgspec.Struct, frozen=True):
    """The open index of one side; damage is told of the index in which it is met, since both are open at once."""

    source: Located
    store: Store
    db: apsw.Connection

    def dimensions(self) -> int | None:
        with cherry_v2.naming(self.source, self.store):
            return dimensions_of(self.db)

    def queries(self, count: int) -> tuple[int, list[Query]]:
        """Return how many texts the index has, and a sample of their vectors."""
        with cherry_v2.naming(self.source, self.store):
            rows = _texts(self.db)
            return len(rows), _sample(self.db, rows, count)

    def nearest(self) -> Nearest:
        with cherry_v2.naming(self.source, self.store):
            texts = IndexTexts(self.db)

        def asked(vector: bytes, count: int) -> Ranking:
            with cherry_v2.naming(self.source, self.store):
                return texts.nearest(vector, count)

        return asked


def _asked(pair: Pair, old: _Index, new: _Index, asked: Question) -> BaseComparison:
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
    return pair.compared([ask(first, second, query, asked.count) for query in fitting], count)


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

    return sampled(db, rows, count, vector_of)


def sampled(db: apsw.Connection, rows: list[int], count: int, vector_of: Callable[[int], bytes]) -> list[Query]:
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
