"""Search one index file by words, by vector, and by both (``docs/search.md``, ``docs/formats/index.md``).

These functions use the index alone: no catalog, settings or threshold. :mod:`regraft.ranking.cherry_v2` applies the
rules of the application's search service. Connections come from :func:`regraft.disk.sqlite.open_readonly`, and nothing
is written. Ties are won by the body that was written first.

Queries are compiled to terms of the trigram index by script, without dictionaries: Chinese and Japanese text is cut
into windows of three characters, all other text at characters that are not letters, numbers or ``_``
(``docs/search.md``, "Words of a query").
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, groupby, islice, takewhile
from typing import TYPE_CHECKING

import apsw
import msgspec

from regraft.errors import QueryTooLong
from regraft.formats.large_text import LARGE_BYTES
from regraft.identity import replace
from regraft.language import tr
from regraft.text import lenient_text

if TYPE_CHECKING:
    import regex


#: Length of the terms in the trigram index, in code points, and of the windows.
TRIGRAM_LENGTH = 3
#: Maximum number of terms in a full-text query; further terms are ignored.
MAX_TERMS = 64

_TOKEN = r"[\p{L}\p{N}_]+"
#: Chinese and Japanese characters, including those shared by several scripts such as the prolonged sound mark.
_UNSEGMENTED = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}"
_RUN = rf"(?P<unsegmented>[{_UNSEGMENTED}]+)|[^{_UNSEGMENTED}]+"


class CompiledQuery(msgspec.Struct, frozen=True):
    """The terms of a full-text query."""

    #: Runs of letters, numbers and ``_`` in the query.
    tokens: tuple[str, ...]
    #: Distinct terms for the trigram index: words, then windows. A match needs one of them.
    terms: tuple[str, ...]
    #: Distinct words too short for the trigram index.
    shorts: tuple[str, ...]


def tokens(query: str) -> list[str]:
    r"""Split a query into its searchable parts: the longest runs of letters, numbers and ``_``.

    Letters and numbers are Unicode's categories L and N, like JavaScript's ``\p{L}`` and ``\p{N}``; combining marks end
    a run.
    """
    found: list[str] = _compile_pattern(_TOKEN).findall(query)
    return found


def compile_query(query: str) -> CompiledQuery:
    """Divide the words of a query into terms for the full-text index and words that are too short for it."""
    every = tokens(query)
    runs = [
        (run[0], run["unsegmented"] is not None) for token in every for run in _compile_pattern(_RUN).finditer(token)
    ]
    words = [run for run, is_unsegmented in runs if not is_unsegmented or len(run) <= TRIGRAM_LENGTH]
    # Distinct across words and windows, because bm25() would count a repeated term twice.
    terms = dict.fromkeys(chain((word for word in words if len(word) >= TRIGRAM_LENGTH), _cut_windows(runs)))
    shorts = dict.fromkeys(word for word in words if len(word) < TRIGRAM_LENGTH)
    return CompiledQuery(tuple(every), tuple(islice(terms, MAX_TERMS)), tuple(shorts))


def is_unsegmented(text: str) -> bool:
    """Whether a text consists only of characters of scripts without spaces between words: Han, Hiragana, Katakana."""
    return _compile_pattern(f"[{_UNSEGMENTED}]+").fullmatch(text) is not None


@cache
def _compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile a pattern with ``regex``: ``re`` lacks Script_Extensions and its Unicode categories are older."""
    import regex  # noqa: PLC0415 - slow to import, and only searches need it

    return regex.compile(pattern)


def _cut_windows(runs: list[tuple[str, bool]]) -> Iterator[str]:
    """Yield the windows of three characters of each long run of unsegmented text.

    ``runs`` are parts of a query, each with whether it is unsegmented (Chinese or Japanese).
    """
    for run, is_unsegmented in runs:
        if is_unsegmented and len(run) > TRIGRAM_LENGTH:
            yield from (run[at : at + TRIGRAM_LENGTH] for at in range(len(run) - TRIGRAM_LENGTH + 1))


#: Constant of reciprocal rank fusion.
RRF_K = 60
#: Candidates that each lane contributes to a fusion, per requested hit.
FUSION_DEPTH = 5
#: Weight of the vector lane if the base does not define one.
DEFAULT_ALPHA = 0.5
#: SQLite's limit for a LIKE pattern in bytes, and a number of LIKE conditions below its limit for parameters.
_MAX_PATTERN = 50_000
_MAX_LIKES = 30_000

#: Maximum characters of a hit's text. The query below selects a unit with its body and path as bytes, since they may be
#: invalid UTF-8. All bodies have the same kind: ``+t.kind`` keeps SQLite from using the index on it.
LONGEST_HIT = 1_000_000
BODY_TEXT = (
    f"CAST(CASE WHEN octet_length(t.text) > {LARGE_BYTES} THEN substr(t.text, 1, {LONGEST_HIT}) ELSE t.text END"
    " AS BLOB)"
)
_COLUMNS = (
    "CAST(u.unit_id AS BLOB), CAST(u.material_id AS BLOB), CAST(m.relative_path AS BLOB), u.unit_index, " + BODY_TEXT
)
_UNITS = "JOIN search_unit u ON u.unit_id = t.target_id LEFT JOIN material m ON m.material_id = u.material_id"


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was found. Scores of different lanes are not comparable."""

    unit_id: str
    material_id: str
    #: None if the unit's material is missing from the index, which is damage.
    relative_path: str | None
    unit_index: int
    #: The body of the unit.
    text: str
    score: float


def vector_blob(numbers: Sequence[float]) -> bytes:
    """Encode a vector as little-endian float32, as the index stores it.

    Raises:
        OverflowError: a number is too large for float32.
    """
    return struct.pack(f"<{len(numbers)}f", *numbers)


# --- words ---------------------------------------------------------------------------------------------------------


def bm25_hits(db: apsw.Connection, query: str, count: int) -> list[Hit]:
    """Return the ``count`` best hits for the words of a query (``docs/search.md``, "The lane of words").

    A hit contains one of the query's terms, and every word that is too short for the index; if no body contains all of
    the short words, they are ignored. The score is -bm25(), higher is better. A query of short words only is searched
    with LIKE: the shortest body first, scored by minus its length in code points. A query without words finds nothing.

    Raises:
        QueryTooLong: the query has more or longer short words than SQLite accepts.
        apsw.Error: the index is damaged.
    """
    compiled = compile_query(query)
    if not compiled.tokens or count < 1:
        return []
    column = full_text_column(db)
    if not compiled.terms:
        return list(islice(_rank_by_length(db, compiled.tokens, column), count))
    hits = list(islice(_rank_by_bm25(db, compiled.terms, compiled.shorts, column), count))
    return hits or list(islice(_rank_by_bm25(db, compiled.terms, (), column), count if compiled.shorts else 0))


def _rank_by_bm25(db: apsw.Connection, terms: Sequence[str], shorts: Sequence[str], column: str) -> Iterator[Hit]:
    """Yield the units that a full-text query finds, best first.

    Args:
        db: the index.
        terms: the body must contain at least one of the terms.
        shorts: short words; the body must contain all of them.
        column: column of ``search_text`` that full-text row ids refer to.
    """
    condition, patterns = _like_condition(shorts)
    # CROSS JOIN makes SQLite query the full-text index once, not once per body.
    bodies = f"CROSS JOIN search_text t ON t.{column} = search_text_fts.rowid AND {condition}" if shorts else ""
    ranked = db.execute(
        f"""SELECT search_text_fts.rowid, -bm25(search_text_fts) AS score FROM search_text_fts {bodies}
             WHERE search_text_fts MATCH ? ORDER BY score DESC, search_text_fts.rowid""",
        # Terms need no escaping: they consist of letters, numbers and _.
        (*patterns, " OR ".join(f'"{term}"' for term in terms)),
    )
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.{column} = ? AND +t.kind = 'body'"
    for rowid, score in ranked:
        for row in db.execute(unit, (rowid,)):
            yield _make_hit(row, score)


def _rank_by_length(db: apsw.Connection, words: Sequence[str], column: str) -> Iterator[Hit]:
    """Yield the units whose bodies contain every word, shortest first.

    ``column`` of ``search_text`` is what full-text row ids refer to; it decides ties.
    """
    condition, patterns = _like_condition(words)
    found = db.execute(
        f"""SELECT t.rowid, length(t.text) AS size FROM search_text t
             WHERE +t.kind = 'body' AND {condition} ORDER BY size, t.{column}""",
        patterns,
    )
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.rowid = ?"
    for rowid, size in found:
        for row in db.execute(unit, (rowid,)):
            yield _make_hit(row, -float(size))


def _like_condition(words: Sequence[str]) -> tuple[str, list[str]]:
    """Build the SQL condition that a body ``t.text`` contains every word, and its parameters.

    Raises:
        QueryTooLong: the words are too many or too long for SQLite.
    """
    # Of LIKE's wildcards only `_` can be part of a word.
    escaped = (word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for word in dict.fromkeys(words))
    patterns = [f"%{word}%" for word in sorted(escaped, key=len, reverse=True)]
    if len(patterns) > _MAX_LIKES:
        raise QueryTooLong(reason=tr("the limit is {max_likes:,} short words", max_likes=_MAX_LIKES))
    if any(len(pattern.encode()) > _MAX_PATTERN for pattern in patterns):
        raise QueryTooLong(reason=tr("one of its words is longer than SQLite's limit for LIKE"))
    # ESCAPE makes every comparison slower, so it is only used if needed.
    likes = ["t.text LIKE ?" + " ESCAPE '\\'" * ("\\" in pattern) for pattern in patterns]
    return _join_with_and(likes), patterns


def _join_with_and(conditions: Sequence[str]) -> str:
    """Join SQL conditions with AND as a balanced tree, because SQLite limits the depth of expressions."""
    if len(conditions) <= 2:
        return " AND ".join(conditions) or "1"
    middle = len(conditions) // 2
    return f"({_join_with_and(conditions[:middle])}) AND ({_join_with_and(conditions[middle:])})"


def full_text_column(db: apsw.Connection) -> str:
    """Return the column of ``search_text`` that full-text row ids refer to; version 1 has no column of its own."""
    names = {str(row[1]) for row in db.execute("PRAGMA table_info('search_text')")}
    return "fts_rowid" if "fts_rowid" in names else "rowid"


# --- vectors -------------------------------------------------------------------------------------------------------


def vector_hits(db: apsw.Connection, vector: bytes, count: int) -> list[Hit]:
    """Return the ``count`` units nearest by cosine distance. ``db`` must have sqlite-vec loaded.

    The score is 1 - distance. Stored vectors of another length, all zeros or not finite are never hits; if ``vector``
    is all zeros, there are no hits.

    Raises:
        apsw.Error: the index is damaged.
    """
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.rowid = ?"
    found = (
        _make_hit(row, score)
        for rowid, score in rank_bodies_by_distance(db, vector)
        for row in db.execute(unit, (rowid,))
    )
    return list(islice(found, max(count, 0)))


def rank_bodies_by_distance(db: apsw.Connection, vector: bytes) -> Iterator[tuple[int, float]]:
    """Yield the row id in ``search_text`` and the score of every body that :func:`vector_hits` would find.

    The order is that of :func:`vector_hits`.

    Raises:
        apsw.Error: the index is damaged.
    """
    # Vectors are sorted before joining, so that only rows of hits are joined.
    ranked = db.execute(
        # A WHERE condition on the distance would make SQLite compute it twice.
        """SELECT rowid,
                  CASE WHEN typeof(vector_blob) = 'blob' AND octet_length(vector_blob) = ?2
                       THEN vec_distance_cosine(vector_blob, ?1) END AS distance
             FROM embedding NOT INDEXED
            ORDER BY distance NULLS LAST""",
        (vector, len(vector)),
    )
    bodies = f"""SELECT t.{full_text_column(db)}, t.rowid FROM search_text t
                  WHERE +t.kind = 'body'
                    AND t.embedding_text_hash = (SELECT embedding_text_hash FROM embedding WHERE rowid = ?)
                    AND EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = t.target_id)"""
    known = takewhile(lambda row: row[1] is not None, ranked)
    for distance, group in groupby(known, key=lambda row: row[1]):
        rows = [row for rowid, _ in group for row in db.execute(bodies, (rowid,))]
        for _, rowid in sorted(rows, key=lambda row: row[0] if isinstance(row[0], int) else 0):
            yield rowid, 1 - distance


# --- both ----------------------------------------------------------------------------------------------------------


def hybrid_hits(db: apsw.Connection, query: str, vector: bytes, count: int, alpha: float = DEFAULT_ALPHA) -> list[Hit]:
    """Return the ``count`` best hits of a search by vector and of one by words (the lanes), fused by rank.

    Each lane contributes 5 × ``count`` candidates. The score of a hit is alpha / (60 + rank by vector) plus (1 - alpha)
    / (60 + rank by words), with ranks from 1. Ties are won by the hit of the vector lane.

    Raises:
        QueryTooLong, apsw.Error: as in :func:`bm25_hits` and :func:`vector_hits`.
    """
    depth = FUSION_DEPTH * count
    return fused(vector_hits(db, vector, depth), bm25_hits(db, query, depth), alpha)[:count]


def fused(by_vector: Iterable[Hit], by_words: Iterable[Hit], alpha: float) -> list[Hit]:
    """Fuse the hits of both lanes by reciprocal rank, best first; ``alpha`` is the weight of the vector lane."""
    found: dict[str, Hit] = {}
    scores: dict[str, float] = {}
    for weight, lane in ((alpha, by_vector), (1 - alpha, by_words)):
        for rank, hit in enumerate(lane, 1):
            found.setdefault(hit.unit_id, hit)
            scores[hit.unit_id] = scores.get(hit.unit_id, 0.0) + weight / (RRF_K + rank)
    best = sorted(found, key=lambda unit: -scores[unit])
    return [replace(found[unit], score=scores[unit]) for unit in best]


def _make_hit(row: Sequence[object], score: float) -> Hit:
    """Make a hit from a row of :data:`_COLUMNS`."""
    unit, material, path, number, text = row
    return Hit(
        unit_id=lenient_text(unit),
        material_id=lenient_text(material),
        relative_path=None if path is None else lenient_text(path),
        unit_index=number if isinstance(number, int) else -1,
        text=lenient_text(text),
        score=float(score),
    )
