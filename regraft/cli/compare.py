"""``regraft compare``: the same query vectors against the old table and the new index."""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import apsw
import click
import msgspec

import migrators
from migrators import journeys
from migrators.stages.run import read_library
from migrators.stages.work import Looker, chosen
from regraft import clock, identity, progress, retrieval, sqlite
from regraft.cli.options import PATH, model_word, output_options, plan_options
from regraft.cli.output import echo_json, reports_errors, say
from regraft.envelope import Run
from regraft.errors import BaseUnknown, SourceUnreadable, WrongUsage
from regraft.formats.embedjs import VECTORS
from regraft.formats.index.search import dimensions_of, vector_blob
from regraft.formats.v2_places import Store
from regraft.formats.vector_table import StoreProblem, VectorTable
from regraft.locate import NAMES, Kind, Located, located
from regraft.rankings import Ranking, first_difference, nearest_texts, recall, with_ties
from regraft.text import counted, one_line, shown

#: What a comparison of a base comes to.
OUTCOMES = ("equal", "different", "missing", "failed", "not-compared")
_ERRORS = {"different", "missing"}
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
def old_bases(source: Located, options: migrators.Options) -> Iterator[list[OldBase]]:
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
    journey = journeys.journey_of(source)
    options = replace(options, dry_run=True)
    with ExitStack() as keep:
        bases = chosen(read_library(journey, source, options), options)
        looker = Looker(journey, source, source.path, options, keep, None)
        found = []
        for work in looker.works(bases, {}, progress.Silent()):
            plan, draft = work.plan, work.draft
            if plan is None:
                continue
            runs = tuple(dict.fromkeys(run for material in plan.materials for run in material.runs))
            vectors = work.vectors if plan.error is None else None
            problem = None if plan.error is None else f"it would migrate as failed ({plan.error})"
            about = (draft.legacy_id, draft.id, draft.name)
            found.append(OldBase(*about, journey.table, vectors, plan.vector_bytes, runs, problem))
        yield found


def _vector_file(source: Located) -> OldBase:
    try:
        size = VECTORS.survey(source.path).vector_bytes
    except StoreProblem as error:
        raise SourceUnreadable(path=source.path, reason=error) from error
    name = source.path.name
    vectors, problem = (None, "it holds no usable vector") if size is None else (source.path, None)
    return OldBase(name, identity.base_id(name), name, VECTORS, vectors, size or 0, (_EVERY_ROW,), problem)


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
        for rowid, (body, _) in zip(self._rowids(), self._rows(), strict=True):
            first.setdefault(identity.text_hash(body), rowid)
        return {rowid: text for text, rowid in first.items()}

    def _rowids(self) -> Iterator[int]:
        vector = self._base.table.vector
        query = f"""SELECT rowid FROM {self._base.table.name} NOT INDEXED
                     WHERE rowid BETWEEN ? AND ? AND typeof({vector}) = 'blob' AND octet_length({vector}) = ?
                     ORDER BY rowid"""
        for run in self._base.runs:
            yield from (int(row[0]) for row in self._db.execute(query, (*run, self._base.vector_bytes)))

    def _rows(self) -> Iterator[tuple[str, bytes]]:
        return self._base.table.rows(self._db, self._base.runs, self._base.vector_bytes)

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
        starts = sorted({at * len(rows) // count for at in range(count)} if rows else ())
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
        return next(self._base.table.rows(self._db, [(rowid, rowid)], self._base.vector_bytes))[1]


# --- the comparison ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What both sides are asked: the queries given, or a sample of so many of each base's own vectors."""

    count: int
    sample: int
    queries: tuple[Query, ...] | None = None


def compare_base(old: OldBase, new: Located, store: Store | None, asked: Asked) -> dict[str, Any]:
    """Return what a comparison of one base comes to.

    Raises:
        SourceUnreadable: the old table or the index is damaged.
    """
    about: dict[str, Any] = {"legacy_id": old.legacy_id, "id": old.id, "name": old.name}
    if old.vectors is None:
        return {**about, **_nothing("failed", old.problem)}
    if store is None:
        return {**about, **_nothing("missing", "V2 has no index of it that can be read")}
    with _opened_table(old.vectors) as table, retrieval.opened_index(new, store) as index:
        texts = OldTexts(table, old)
        queries = texts.sample(asked.sample) if asked.queries is None else list(asked.queries)
        fitting = [query for query in queries if 4 * len(query.vector) == old.vector_bytes]
        if not fitting:
            given = "no vector to sample" if asked.queries is None else f"no query of {old.vector_bytes // 4} numbers"
            return {**about, **_nothing("not-compared", given)}
        if dimensions_of(index) not in (None, old.vector_bytes // 4):
            return {**about, **_nothing("different", "the index has vectors of another length")}
        results = [_ask(texts, index, query, asked.count) for query in fitting]
    parted = [result for result in results if result["v1"] != result["v2"]]
    shares = [result["recall"] for result in results]
    return {
        **about,
        "outcome": "different" if parted else "equal",
        "problem": None,
        "texts": len(texts.hashes),
        "queries": len(results),
        "recall": sum(shares) / len(shares),
        "lowest_recall": min(shares),
        "differences": parted,
    }


def _nothing(outcome: str, problem: str | None) -> dict[str, Any]:
    numbers = {"texts": None, "queries": 0, "recall": None, "lowest_recall": None}
    return {"outcome": outcome, "problem": problem, **numbers, "differences": []}


def _ask(texts: OldTexts, index: apsw.Connection, query: Query, count: int) -> dict[str, Any]:
    vector = vector_blob(query.vector)
    old, new = texts.nearest(vector, count), nearest_texts(index, vector, count)
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


# --- the command ---------------------------------------------------------------------------------------------------


class _QueryLine(msgspec.Struct):
    vector: tuple[float, ...]
    id: str | int | None = None


def read_queries(path: Path) -> tuple[Query, ...]:
    """Read queries: JSON lines, or one JSON array, of objects with a ``vector`` and perhaps an ``id``.

    Raises:
        SourceUnreadable: there is no such file.
        WrongUsage: it holds something else, or nothing.
    """
    try:
        raw = path.read_bytes().strip()
    except OSError as error:
        raise SourceUnreadable(path=path, reason=error.strerror or error) from error
    try:
        decoder = msgspec.json.Decoder(list[_QueryLine])
        lines = decoder.decode(raw) if raw.startswith(b"[") else msgspec.json.Decoder(_QueryLine).decode_lines(raw)
        for line in lines:
            vector_blob(line.vector)
    except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError) as error:
        hint = 'a line is {"id": "a name", "vector": [numbers]}'
        raise WrongUsage(problem=f"--queries {shown(path)}: not queries: {error}", hint=hint) from error
    if not lines:
        raise WrongUsage(problem=f"--queries {shown(path)}: no query in it", hint="leave it out to use a sample")
    named = ((f"query {place}" if line.id is None else str(line.id), line) for place, line in enumerate(lines, 1))
    return tuple(Query(name, line.vector) for name, line in named)


@click.command()
@click.argument("v1", type=PATH)
@click.argument("v2", type=PATH)
@click.option(
    "--queries",
    type=PATH,
    metavar="FILE",
    help='JSON lines (or one JSON array) of {"id": "a name", "vector": [numbers]}.',
)
@click.option(
    "--sample",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Without --queries: so many of each base's own vectors.",
)
@click.option(
    "-k", "count", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N", help="Texts compared."
)
@plan_options
@output_options
@reports_errors
def compare(  # noqa: PLR0913, PLR0917 - one parameter for every option
    v1: Path,
    v2: Path,
    queries: Path | None,
    sample: int,
    count: int,
    bases: tuple[str, ...],
    map_model: tuple[str, ...],
    recreate_model: tuple[str, ...],
    fail_on: str,
    as_json: bool,
    quiet: bool,
    verbose: int,
    kind: str | None,
) -> None:
    """Ask the vectors of V1 and the index of V2 the same, and tell where they part. Nothing is written.

    V1 is whatever regraft migrate takes, or one vector file; V2 a v2 library, profile or backup, one base folder, or an
    index.sqlite. --kind is about V1.
    """
    run = Run("compare")
    asked = Asked(count, sample, None if queries is None else read_queries(queries))
    word = model_word(map_model, recreate_model)
    options = migrators.Options(now_ms=clock.now_ms(), word=word, bases=bases, while_running=True)
    with located(v1, Kind(kind) if kind else None) as old, located(v2) as new:
        run.source_kind, run.source = old.kind.value, v1
        run.target_kind, run.target = new.kind.value, v2
        if new.kind not in retrieval.SEARCHED:
            problem = f"{shown(v2)}: this is {NAMES[new.kind]}, not the new side of a comparison"
            raise WrongUsage(problem=problem, hint="V2 is a v2 library, profile, base or index")
        stores = retrieval.known_bases(new, None)
        with old_bases(old, options) as found:
            told = [compare_base(base, new, store_of(base, stores, only=len(found) == 1), asked) for base in found]
    run.end()
    if as_json:
        echo_json({**run.document(), "k": count, "bases": told, "summary": summary(told)})
    else:
        say(_as_text(told, count, every=verbose > 0, quiet=quiet))
    sys.exit(_exit_status(told, fail_on))


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


def _exit_status(told: list[dict[str, Any]], fail_on: str) -> int:
    outcomes = {base["outcome"] for base in told}
    worst = {"never": set(), "error": _ERRORS, "warning": set(OUTCOMES) - {"equal"}}[fail_on]
    return int(bool(outcomes & worst))


def _as_text(told: list[dict[str, Any]], count: int, *, every: bool, quiet: bool) -> str:
    lines = []
    for base in told:
        recalled = "" if base["recall"] is None else f", recall@{count} {base['recall']:.4f}"
        asked = f" ({_queries(base['queries'])}{recalled})" if base["queries"] else ""
        why = f": {base['problem']}" if base["problem"] else ""
        if not quiet or base["outcome"] != "equal":
            lines.append(f"{base['outcome']:<12} {one_line(base['name'])}{asked}{why}")
        lines += map(_difference, base["differences"] if every else base["differences"][:1])
    outcomes = Counter(base["outcome"] for base in told)
    said = ", ".join(f"{outcomes[name]} {name}" for name in OUTCOMES if outcomes[name])
    return "\n".join([*lines, f"{counted(len(told), 'base')}: {said or 'nothing to compare'}."]) + "\n"


def _difference(parted: dict[str, Any]) -> str:
    sides = (
        "nothing" if side is None else f"{side['text_hash'][:12]} at {side['score']:.6f}" for side in _both(parted)
    )
    old, new = sides
    return f"             {one_line(parted['query'])}, rank {parted['rank']}: v1 has {old}, v2 has {new}"


def _queries(count: int) -> str:
    return f"{count:,} query" if count == 1 else f"{count:,} queries"


def _both(parted: dict[str, Any]) -> tuple[Any, Any]:
    return parted["v1"], parted["v2"]
