"""Compare stored vectors with those that an embedder makes of the same texts, and search for texts by their ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import apsw
import msgspec
import numpy as np

from checks.certify.base import CertifiedBase, read_text, require_readable
from checks.certify.measures import MIN_COSINE, Measured
from checks.certify.neighbors import find_nearest
from regraft.language import tr

#: Texts of a base that are embedded again, and as many ends of texts that are searched for.
KNOWN_TEXTS = 32
#: Longest text that is sent, and the shortest whose end is searched for, in characters.
_LONGEST, _SHORTEST = 8_000, 60
#: Share of a text that is its end.
_END = 3

#: Embeds texts; the second argument tells whether they are queries.
EmbedTexts = Callable[[Sequence[str], bool], Sequence[bytes]]


class EmbeddingStopped(Exception):
    """The embedder gave no more vectors; the message says why."""


class KnownTexts(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of one base that are sent to an embedder, each with its row number, and the ends of some of them.

    ``problem`` says why no text of the base is sent although it has some.
    """

    rows: list[tuple[int, str]]
    ends: list[tuple[int, str]]
    problem: str | None = None


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of embedding texts of a base again.

    ``same`` of ``texts`` have a cosine of at least 0.99 with the stored vector. Of ``ends`` ends of texts, ``found``
    find their text among the 10 nearest. ``problem`` says why nothing was compared, or why it stopped.
    """

    embedder: str
    texts: int = 0
    same: int = 0
    lowest: float | None = None
    median: float | None = None
    #: Number of texts by cosine, in steps of 0.1 from 0 (and below) to 1.
    cosines: list[int] = []
    ends: int = 0
    found: int = 0
    problem: str | None = None


def choose_texts(base: CertifiedBase) -> KnownTexts:
    """Choose texts of a base that are embedded again, evenly spread over its rows; none if it cannot be read."""
    if base.open is None:
        return KnownTexts(rows=[], ends=[])
    try:
        with base.open() as db:
            require_readable(base, db)
            return _choose_from_rows(base, db)
    except (apsw.Error, OSError, ValueError):
        return KnownTexts(rows=[], ends=[])


def _choose_from_rows(base: CertifiedBase, db: apsw.Connection) -> KnownTexts:
    """Choose texts with a vector from an open base, evenly spread over the rows, and the end of each long one."""
    if base.table is None:
        name = "search_text"
        wanted = """embedding_text_hash IN
                    (SELECT embedding_text_hash FROM embedding WHERE typeof(vector_blob) = 'blob')"""
    else:
        name, wanted = base.table.name, f"typeof({base.table.vector}) = 'blob'"
    first, last = db.execute(f"SELECT min(rowid), max(rowid) FROM {name}").fetchone() or (None, None)
    rows: dict[int, str] = {}
    for step in range(KNOWN_TEXTS if first is not None else 0):
        start = int(str(first)) + (int(str(last)) - int(str(first))) * step // KNOWN_TEXTS
        query = f"SELECT rowid FROM {name} WHERE rowid >= ? AND {wanted} ORDER BY rowid LIMIT 1"
        for (rowid,) in db.execute(query, (start,)).fetchall():
            text = read_text(db, base, int(str(rowid)), _LONGEST + 1)
            # The vector of a longer text cannot be made again from its beginning.
            if text.strip() and len(text) <= _LONGEST:
                rows[int(str(rowid))] = text
    ends = [(row, text[-(len(text) // _END) :]) for row, text in rows.items() if len(text) >= _SHORTEST]
    return KnownTexts(rows=list(rows.items()), ends=ends)


def limit_texts(known: dict[str, KnownTexts], limit: int | None) -> dict[str, KnownTexts]:
    """Limit the number of texts and ends of texts that are sent to an embedder, counted over all bases together.

    Bases come in the order of ``known``, which has the chosen texts by base id. A base of which no text is left gets
    the limit as its ``problem``. ``limit``: None: no limit.
    """
    if limit is None:
        return known
    remaining = limit
    limited = {}
    for key, one in known.items():
        rows = one.rows[:remaining]
        ends = [end for end in one.ends if end[0] in dict(rows)][: remaining - len(rows)]
        problem = tr("--limit {texts:,} is reached", texts=limit) if one.rows and not rows else None
        limited[key] = KnownTexts(rows=rows, ends=ends, problem=problem)
        remaining -= len(rows) + len(ends)
    return limited


def compare_model(measured: Measured, known: KnownTexts, embed: EmbedTexts, embedder: str) -> ModelCheck:
    """Embed known texts of a base again and compare the vectors; then search with the ends of texts for these texts.

    Args:
        measured: the base.
        known: the texts that were chosen.
        embed: makes vectors of texts; its second argument is whether they are search queries.
        embedder: the name of the embedder, for the result.

    Raises:
        EmbeddingStopped: the embedder gave no more vectors.
        RegraftError: the embedder cannot be used.
    """
    if known.problem is not None:
        raise EmbeddingStopped(known.problem)
    stored = _map_to_vectors(measured, [row for row, _ in known.rows])
    texts = [(row, text) for row, text in known.rows if row in stored]
    if not texts:
        return ModelCheck(embedder=embedder)
    made = embed([text for _, text in texts], False)
    if any(len(vector) != measured.length for vector in made):
        cosines = [-1.0] * len(texts)
        ends: list[tuple[int, str]] = []
    else:
        units = measured.units([stored[row] for row, _ in texts])
        # A cosine that is no number is that of vectors that have nothing in common.
        cosines = np.nan_to_num(np.einsum("ij,ij->i", units, _units(made)), nan=-1.0).tolist()
        ends = [(row, text) for row, text in known.ends if row in stored]
    bars = np.histogram(np.clip(cosines, 0, 1), bins=10, range=(0, 1))[0].tolist()
    return ModelCheck(
        embedder=embedder,
        texts=len(texts),
        same=sum(cosine >= MIN_COSINE for cosine in cosines),
        lowest=min(cosines),
        median=sorted(cosines)[len(cosines) // 2],
        cosines=bars,
        ends=len(ends),
        found=_count_found(measured, stored, ends, embed) if ends else 0,
    )


def _count_found(measured: Measured, stored: dict[int, int], ends: list[tuple[int, str]], embed: EmbedTexts) -> int:
    """Count the texts that a vector search for their end finds among the nearest.

    Args:
        measured: the base.
        stored: the row number of each text's vector, by the row number of the text.
        ends: row number and end of each text.
        embed: makes vectors of texts; its second argument is whether they are search queries.
    """
    vectors = embed([text for _, text in ends], True)
    if any(len(vector) != measured.length for vector in vectors):
        return 0
    nearest = find_nearest(measured.blocks, _units(vectors), np.full(len(ends), -1, dtype=np.int64))
    own = np.array([stored[row] for row, _ in ends], dtype=np.int64)
    return int((nearest.rowids == own[:, None]).any(axis=1).sum())


def _map_to_vectors(measured: Measured, texts: Sequence[int]) -> dict[int, int]:
    """Map row numbers of texts to the row number of their vector. Texts without a usable vector are left out."""
    p = measured.prefix
    query = f"SELECT f.at FROM {p}body b JOIN {p}found f ON f.text = b.text WHERE b.rowid = ?"
    found = {body: measured.scratch.execute(query, (body,)).get for body in texts}
    return {body: int(str(at)) for body, at in found.items() if at is not None}


def _units(vectors: Sequence[bytes]) -> np.ndarray:
    """Decode vectors (float32) and scale them to length 1, as the rows of a matrix."""
    numbers = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(numbers.astype(np.float64), axis=1, keepdims=True)
        return (numbers / np.where(norms > 0, norms, 1)).astype(np.float32)
