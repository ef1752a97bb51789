"""The two lanes of a search and their fusion, over one index file (``docs/search.md``, ``docs/formats/index.md``).

What the index alone answers: no catalog, no settings, no threshold. The rules of the application's service stand in
:mod:`regraft.retrieval`. Every function takes a connection of :func:`regraft.sqlite.reading` and writes nothing; ties
go to the body that was written first.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, takewhile

import apsw

from regraft.errors import QueryTooLong
from regraft.text import decode_utf8

#: The constant of reciprocal rank fusion.
RRF_K = 60
#: How many candidates each lane gives to a fusion, for every hit asked for.
FUSION_DEPTH = 5
#: The weight of the vector lane where a base has none of its own.
DEFAULT_ALPHA = 0.5
#: A token of fewer code points is invisible to the trigram index.
MIN_TRIGRAM = 3
#: SQLite takes no longer pattern for LIKE (bytes of UTF-8), and no deeper expression.
_MAX_PATTERN = 50_000
_MAX_LIKES = 500

#: A unit with its body, and where from. Beside them a body has its place: the number under which full text knows it,
#: which grows in the order of writing. Every body is of one kind: the + keeps SQLite from going by the index of kinds.
_COLUMNS = "u.unit_id, u.material_id, m.relative_path, u.unit_index, CAST(t.text AS BLOB)"
_UNITS = "JOIN search_unit u ON u.unit_id = t.target_id LEFT JOIN material m ON m.material_id = u.material_id"


@dataclass(frozen=True)
class Hit:
    """A unit that was found. The score's scale is its lane's."""

    unit_id: str
    material_id: str
    #: None where the unit's material is not in the index: damage.
    relative_path: str | None
    unit_index: int
    #: The unit's body.
    text: str
    score: float


def tokens(query: str) -> list[str]:
    r"""Return what of a query can be searched: its runs of letters, digits and ``_``.

    Letters and digits are those of Unicode's categories L and N, as JavaScript's ``\p{L}`` and ``\p{N}``: combining
    marks end a run.
    """
    runs = groupby(query, key=lambda point: point == "_" or unicodedata.category(point)[0] in "LN")
    return ["".join(run) for is_word, run in runs if is_word]


def vector_blob(numbers: Sequence[float]) -> bytes:
    """Return a vector as the index keeps it: little-endian float32.

    Raises:
        OverflowError: a number is beyond float32.
    """
    return struct.pack(f"<{len(numbers)}f", *numbers)


def dimensions_of(db: apsw.Connection) -> int | None:
    """Return how many numbers a vector of an index has, by its first vector; None where it has no vectors."""
    size = db.execute("SELECT octet_length(vector_blob) FROM embedding LIMIT 1").get
    return None if size is None else int(size) // 4


# --- words ---------------------------------------------------------------------------------------------------------


def bm25_hits(db: apsw.Connection, query: str, count: int) -> list[Hit]:
    """Return the ``count`` best hits of the words of a query; all of them have to occur.

    A hit's score is -bm25(), the higher the better. Where a word has fewer than 3 code points, every word is looked for
    with LIKE: shortest body first, its score minus its length in code points. A query without a word finds nothing.

    Raises:
        QueryTooLong: SQLite cannot look for so many or so long words with LIKE.
        apsw.Error, UnicodeDecodeError: the index is damaged.
    """
    words = tokens(query)
    if not words or count < 1:
        return []
    place = _place(db)
    if min(map(len, words)) < MIN_TRIGRAM:
        return _like_hits(db, words, count, place)
    match = " AND ".join(f'"{word}"' for word in words)
    return list(islice(_ranked(db, match, place), count))


def _ranked(db: apsw.Connection, match: str, place: str) -> Iterator[Hit]:
    """Yield units, best first. Row numbers are sorted by themselves, so that only those of hits are joined."""
    ranked = db.execute(
        """SELECT rowid, -bm25(search_text_fts) AS score FROM search_text_fts
            WHERE search_text_fts MATCH ? ORDER BY score DESC, rowid""",
        (match,),
    )
    unit = f"SELECT {_COLUMNS} FROM search_text t {_UNITS} WHERE t.{place} = ? AND +t.kind = 'body'"
    for rowid, score in ranked:
        for row in db.execute(unit, (rowid,)):
            yield _hit(row, score)


def _like_hits(db: apsw.Connection, words: list[str], count: int, place: str) -> list[Hit]:
    patterns = [f"%{_escaped(word)}%" for word in dict.fromkeys(words)]
    if len(patterns) > _MAX_LIKES:
        reason = f"with a word of fewer than {MIN_TRIGRAM} characters, {_MAX_LIKES} words are the limit"
        raise QueryTooLong(reason=reason)
    if max(len(pattern.encode()) for pattern in patterns) > _MAX_PATTERN:
        raise QueryTooLong(reason="one of its words is longer than SQLite looks for")
    likes = " AND ".join("t.text LIKE ? ESCAPE '\\'" for _ in patterns)
    rows = db.execute(
        f"""SELECT {_COLUMNS}, length(t.text)
              FROM search_text t {_UNITS}
             WHERE +t.kind = 'body' AND {likes}
             ORDER BY length(t.text), t.{place} LIMIT ?""",
        (*patterns, count),
    )
    return [_hit(row[:5], -float(row[5])) for row in rows]


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
        apsw.Error, UnicodeDecodeError: the index is damaged.
    """
    return list(islice(_nearest(db, vector), max(count, 0)))


def _nearest(db: apsw.Connection, vector: bytes) -> Iterator[Hit]:
    """Yield units, nearest first. Vectors are sorted by themselves, so that only those of hits are joined."""
    place = _place(db)
    ranked = db.execute(
        # A condition on the distance would have SQLite work it out twice.
        """SELECT embedding_text_hash,
                  CASE WHEN typeof(vector_blob) = 'blob' AND octet_length(vector_blob) = ?2
                       THEN vec_distance_cosine(vector_blob, ?1) END AS distance
             FROM embedding NOT INDEXED
            ORDER BY distance NULLS LAST""",
        (vector, len(vector)),
    )
    units = f"""SELECT t.{place}, {_COLUMNS} FROM search_text t {_UNITS}
                 WHERE +t.kind = 'body' AND t.embedding_text_hash = ?"""
    known = takewhile(lambda row: row[1] is not None, ranked)
    for distance, group in groupby(known, key=lambda row: row[1]):
        rows = [row for text_hash, _ in group for row in db.execute(units, (text_hash,))]
        for row in sorted(rows, key=lambda row: row[0] if isinstance(row[0], int) else 0):
            yield _hit(row[1:], 1 - distance)


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
        unit_id=_text(unit),
        material_id=_text(material),
        relative_path=None if path is None else _text(path),
        unit_index=number if isinstance(number, int) else -1,
        text=_text(text),
        score=float(score),
    )


def _text(value: object) -> str:
    """Return a value of a column as text, whatever a damaged file has there."""
    return decode_utf8(value) if isinstance(value, bytes) else str(value)
