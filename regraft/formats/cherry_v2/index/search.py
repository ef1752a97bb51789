"""The two lanes of a search and their fusion, over one index file (``docs/search.md``, ``docs/formats/index.md``).

What the index alone answers: no catalog, no settings, no threshold. The rules of the application's service stand in
:mod:`regraft.ranking.cherry_v2`. Every function takes a connection of :func:`regraft.disk.sqlite.open_readonly` and writes
nothing; ties go to the body that was written first.
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


# What a query asks the full-text index for (``docs/search.md``, "Words of a query").
#
# Text without spaces between words is cut by its script, not by dictionaries: Chinese and Japanese text into windows of
# three characters, everything else at what is no letter, number or ``_``.


#: The trigram index knows nothing shorter, in code points; windows are as long.
TRIGRAM_LENGTH = 3
#: How many terms full text is asked for; those after them have no part in a search.
MAX_TERMS = 64

_TOKEN = r"[\p{L}\p{N}_]+"
#: Characters of Chinese and Japanese, those with several scripts among them, such as the prolonged sound mark.
_UNSEGMENTED = r"\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}"
_RUN = rf"(?P<unsegmented>[{_UNSEGMENTED}]+)|[^{_UNSEGMENTED}]+"


class CompiledQuery(msgspec.Struct, frozen=True):
    """A query as full text is asked for it."""

    #: Runs of letters, numbers and ``_``, as they stand in the query.
    tokens: tuple[str, ...]
    #: What the trigram index is asked for, any of it: words, then windows, each term once.
    terms: tuple[str, ...]
    #: Different words that are too short for it.
    shorts: tuple[str, ...]


def tokens(query: str) -> list[str]:
    r"""Return what of a query can be searched: its longest runs of letters, numbers and ``_``.

    Letters and numbers are Unicode's categories L and N, as JavaScript's ``\p{L}`` and ``\p{N}``; combining marks end
    a run.
    """
    found: list[str] = _pattern(_TOKEN).findall(query)
    return found


def compile_query(query: str) -> CompiledQuery:
    """Return what the full-text index is asked for."""
    every = tokens(query)
    runs = [(run[0], run["unsegmented"] is not None) for token in every for run in _pattern(_RUN).finditer(token)]
    words = [run for run, is_unsegmented in runs if not is_unsegmented or len(run) <= TRIGRAM_LENGTH]
    # Distinct over words and windows together: bm25() would count a term that is both twice.
    terms = dict.fromkeys(chain((word for word in words if len(word) >= TRIGRAM_LENGTH), _windows(runs)))
    shorts = dict.fromkeys(word for word in words if len(word) < TRIGRAM_LENGTH)
    return CompiledQuery(tuple(every), tuple(islice(terms, MAX_TERMS)), tuple(shorts))


def is_unsegmented(text: str) -> bool:
    """Whether a text consists of characters of a script without spaces between words: Han, Hiragana, Katakana."""
    return _pattern(f"[{_UNSEGMENTED}]+").fullmatch(text) is not None


@cache
def _pattern(pattern: str) -> regex.Pattern[str]:
    """Return a compiled pattern: the standard library knows no Script_Extensions, and its categories are older."""
    import regex  # noqa: PLC0415 - takes its time, and only searches need it

    return regex.compile(pattern)


def _windows(runs: list[tuple[str, bool]]) -> Iterator[str]:
    for run, is_unsegmented in runs:
        if is_unsegmented and len(run) > TRIGRAM_LENGTH:
            yield from (run[at : at + TRIGRAM_LENGTH] for at in range(len(run) - TRIGRAM_LENGTH + 1))


#: The constant of reciprocal rank fusion.
RRF_K = 60
#: How many candidates each lane gives to a fusion, for every hit asked for.
FUSION_DEPTH = 5
#: The weight of the vector lane where a base has none of its own.
DEFAULT_ALPHA = 0.5
#: SQLite takes no longer pattern for LIKE (bytes of UTF-8), and not many more parameters of a statement.
_MAX_PATTERN = 50_000
_MAX_LIKES = 30_000

#: A unit with its body, and where from. Beside them a body has its place: the number under which full text knows it,
#: which grows in the order of writing. Every body is of one kind: the + keeps SQLite from going by the index of kinds.
#: None of them has to be UTF-8.
#: Of a text of many megabytes a hit has no more characters than these.
LONGEST_HIT = 1_000_000
_COLUMNS = (
    "CAST(u.unit_id AS BLOB), CAST(u.material_id AS BLOB), CAST(m.relative_path AS BLOB), u.unit_index, "
    f"CAST(CASE WHEN octet_length(t.text) > {LARGE_BYTES} THEN substr(t.text, 1, {LONGEST_HIT})"
    " ELSE t.text END AS BLOB)"
)
_UNITS = "JOIN search_unit u ON u.unit_id = t.target_id LEFT JOIN material m ON m.material_id = u.material_id"


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that was found. The score's scale is its lane's."""

    unit_id: str
    material_id: str
    #: None where the unit's material is not in the index: damage.
    relative_path: str | None
    unit_index: int
    #: The unit's body.
    text: str
    score: float


def vector_blob(numbers: Sequence[float]) -> bytes:
    """Return a vector as the index keeps it: little-endian float32.

    Raises:
        OverflowError: a number is beyond float32.
    """
    return struct.pack(f"<{len(numbers)}f", *numbers)


# --- words ---------------------------------------------------------------------------------------------------------


def bm25_hits(db: apsw.Connection, query: str, count: int) -> list[Hit]:
    """Return the ``count`` best hits of the words of a query (``docs/search.md``, "The lane of words").

    A hit has one of the query's terms, and every word that is too short for the index; where nothing has all of these
    short words, they do not count. Its score is -bm25(), the higher the better. A query of short words alone is looked
    for with LIKE: shortest body first, its score minus its length in code points. A query without a word finds nothing.

    Raises:
        QueryTooLong: SQLite cannot look for so many or so long words with LIKE.
        apsw.Error: the index is damaged.
    """
    asked = compile_query(query)
    if not asked.tokens or count < 1:
        return []
    place = _place(db)
    if not asked.terms:
        return list(islice(_shortest(db, asked.tokens, place), count))
    hits = list(islice(_ranked(db, asked.terms, asked.shorts, place), count))
    return hits or list(islice(_ranked(db, asked.terms, (), place), count if asked.shorts else 0))


def _ranked(db: apsw.Connection, terms: Sequence[str], shorts: Sequence[str], place: str) -> Iterator[Hit]:
    """Yield units, best first. Row numbers are sorted by themselves, so that only those of hits are joined."""
    condition, patterns = _contains(shorts)
    # CROSS: full text is asked once, not for each body.
    bodies = f"CROSS JOIN search_text t ON t.{place} = search_text_fts.rowid AND {condition}" if shorts else ""
    ranked = db.execute(
        f"""SELECT search_text_fts.rowid, -bm25(search_text_fts) AS score FROM search_text_fts {bodies}
             WHERE search_text_fts MATCH ? ORDER BY score DESC, search_text_fts.rowid""",
        # A term has neither quotes nor NUL in it: it is of letters, numbers and _.
        (*patterns, " OR ".join(f'"{term}"' for term in terms)),
    )
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.{place} = ? AND +t.kind = 'body'"
    for rowid, score in ranked:
        for row in db.execute(unit, (rowid,)):
            yield _hit(row, score)


def _shortest(db: apsw.Connection, words: Sequence[str], place: str) -> Iterator[Hit]:
    """Yield units whose bodies have every word, shortest first; sorted as in :func:`_ranked`."""
    condition, patterns = _contains(words)
    found = db.execute(
        f"""SELECT t.rowid, length(t.text) AS size FROM search_text t
             WHERE +t.kind = 'body' AND {condition} ORDER BY size, t.{place}""",
        patterns,
    )
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.rowid = ?"
    for rowid, size in found:
        for row in db.execute(unit, (rowid,)):
            yield _hit(row, -float(size))


def _contains(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the condition that a body ``t.text`` is LIKE each word, with its parameters.

    Raises:
        QueryTooLong
    """
    patterns = [f"%{_escaped(word)}%" for word in sorted(dict.fromkeys(words), key=len, reverse=True)]
    if len(patterns) > _MAX_LIKES:
        raise QueryTooLong(reason=tr("{max_likes:,} short words are the limit", max_likes=_MAX_LIKES))
    if any(len(pattern.encode()) > _MAX_PATTERN for pattern in patterns):
        raise QueryTooLong(reason=tr("one of its words is longer than SQLite looks for"))
    # An escape costs a little on every body.
    likes = ["t.text LIKE ?" + " ESCAPE '\\'" * ("\\" in pattern) for pattern in patterns]
    return _all_of(likes), patterns


def _all_of(conditions: Sequence[str]) -> str:
    """Return conditions joined by AND, as a balanced tree: SQLite's depth of expressions is limited."""
    if len(conditions) <= 2:
        return " AND ".join(conditions) or "1"
    middle = len(conditions) // 2
    return f"({_all_of(conditions[:middle])}) AND ({_all_of(conditions[middle:])})"


def _escaped(word: str) -> str:
    """Return a word with LIKE's wildcards taken for themselves; of these only ``_`` can be in one."""
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _place(db: apsw.Connection) -> str:
    """Return the column that full text is joined on: version 1 has none of its own."""
    names = {str(row[1]) for row in db.execute("PRAGMA table_info('search_text')")}
    return "fts_rowid" if "fts_rowid" in names else "rowid"


# --- vectors -------------------------------------------------------------------------------------------------------


def vector_hits(db: apsw.Connection, vector: bytes, count: int) -> list[Hit]:
    """Return the ``count`` units whose vectors are nearest, by cosine; ``db`` has sqlite-vec loaded.

    A hit's score is 1 - distance. Vectors of another length than ``vector``, all zeros or not finite have no distance
    and are no hits; where ``vector`` itself is all zeros, nothing is.

    Raises:
        apsw.Error: the index is damaged.
    """
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.rowid = ?"
    found = (
        _hit(row, score) for rowid, score in rank_bodies_by_distance(db, vector) for row in db.execute(unit, (rowid,))
    )
    return list(islice(found, max(count, 0)))


def rank_bodies_by_distance(db: apsw.Connection, vector: bytes) -> Iterator[tuple[int, float]]:
    """Yield the rowid in ``search_text`` and the score of every body that :func:`vector_hits` would find, in its order.

    Raises:
        apsw.Error: the index is damaged.
    """
    # Vectors are sorted by themselves, so that only those of hits are joined.
    ranked = db.execute(
        # A condition on the distance would have SQLite work it out twice.
        """SELECT rowid,
                  CASE WHEN typeof(vector_blob) = 'blob' AND octet_length(vector_blob) = ?2
                       THEN vec_distance_cosine(vector_blob, ?1) END AS distance
             FROM embedding NOT INDEXED
            ORDER BY distance NULLS LAST""",
        (vector, len(vector)),
    )
    bodies = f"""SELECT t.{_place(db)}, t.rowid FROM search_text t
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
    """Return the ``count`` best hits of both lanes, fused by rank; raises as the lanes do.

    Each lane gives 5 × ``count`` candidates. A hit's score is the sum of alpha / (60 + rank) for its rank by vector and
    (1 - alpha) / (60 + rank) for its rank by words, ranks counted from 1. A tie goes to the hit of the vector lane.
    """
    depth = FUSION_DEPTH * count
    return fused(vector_hits(db, vector, depth), bm25_hits(db, query, depth), alpha)[:count]


def fused(by_vector: Iterable[Hit], by_words: Iterable[Hit], alpha: float) -> list[Hit]:
    """Return the hits of both lanes by reciprocal rank fusion, best first."""
    found: dict[str, Hit] = {}
    scores: dict[str, float] = {}
    for weight, lane in ((alpha, by_vector), (1 - alpha, by_words)):
        for rank, hit in enumerate(lane, 1):
            found.setdefault(hit.unit_id, hit)
            scores[hit.unit_id] = scores.get(hit.unit_id, 0.0) + weight / (RRF_K + rank)
    best = sorted(found, key=lambda unit: -scores[unit])
    return [replace(found[unit], score=scores[unit]) for unit in best]


def _hit(row: Sequence[object], score: float) -> Hit:
    unit, material, path, number, text = row
    return Hit(
        unit_id=lenient_text(unit),
        material_id=lenient_text(material),
        relative_path=None if path is None else lenient_text(path),
        unit_index=number if isinstance(number, int) else -1,
        text=lenient_text(text),
        score=float(score),
    )
