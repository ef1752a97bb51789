"""Whether vectors are vectors: their lengths, what is in them, and whether texts share them."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Iterator

import apsw

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import findings as v2
from regraft.language import tr

#: Texts with one vector from which on that is worth a word.
MANY = 3
#: Bytes from the start of a vector by which equal ones are looked for, besides their norm.
_KEY_BYTES = 32
#: Steps of the histogram of norms.
_STEP = 0.1
_HIGHEST = 10.0

_SAID = {
    v2.VECTOR_LENGTH: tr("without the {dimensions} dimensions that most have"),
    v2.VECTOR_NON_FINITE: tr("with NaN or infinity: the released application throws on every vector query of the base"),
    v2.VECTOR_ZERO: tr("of zeros"),
}
_ROWS = """SELECT rowid, CAST(embedding_text_hash AS BLOB),
       typeof(vector_blob) = 'blob' AND length(vector_blob) = :usual,
       CASE WHEN typeof(vector_blob) = 'blob' AND length(vector_blob) = :usual
            THEN vec_distance_l2(vector_blob, zeroblob(:usual)) END,
       CASE WHEN typeof(vector_blob) = 'blob' THEN substr(vector_blob, 1, :key) END
  FROM embedding"""


def check(db: apsw.Connection, lengths: Counter[int], ledger: FindingCollector, base: str | None) -> dict[str, int]:
    """Look at every vector, and return how many there are of each norm (by the lower end of a step).

    Args:
        db: an index file, with sqlite-vec.
        lengths: how many vectors there are of each length in bytes that one can have.
        ledger: what is wrong goes there.
        base: the base's id.

    Raises:
        apsw.Error: the file is damaged.
    """
    usual = usual_length(lengths)
    norms: Counter[float] = Counter()
    seen: Counter[int] = Counter()
    for _, key, norm, start, flaw in judged(db, usual):
        if flaw is not None:
            noun = _SAID[flaw].format(dimensions=usual // 4)
            ledger.add(flaw, f"{{n}} {noun}", base=base, noun="vector", sample=key)
            continue
        norms[min(math.floor(norm / _STEP), round(_HIGHEST / _STEP))] += 1
        # The hash of a number and some bytes: a tenth of what they themselves would take.
        seen[hash((norm, start))] += 1
    if any(count >= MANY for count in seen.values()):
        _duplicates(db, seen, usual, ledger, base)
    return {f"{step * _STEP:.1f}": count for step, count in sorted(norms.items())}


def lengths_of(db: apsw.Connection) -> Counter[int]:
    """Return how many vectors of an index file there are of each length in bytes that one can have.

    Raises:
        apsw.Error: the file is damaged.
    """
    query = (
        "SELECT length(vector_blob), count(*) FROM embedding WHERE typeof(vector_blob) = 'blob'"
        " AND length(vector_blob) > 0 AND length(vector_blob) % 4 = 0 GROUP BY 1"
    )
    return Counter({int(length): int(count) for length, count in db.execute(query)})


def usual_length(lengths: Counter[int]) -> int:
    """Return the length in bytes that most vectors have."""
    return lengths.most_common(1)[0][0] if lengths else 4


def judged(db: apsw.Connection, usual: int) -> Iterator[tuple[int, bytes, float, bytes, str | None]]:
    """Return every vector: its row, its hash, its norm, its first bytes, and the finding that it is.

    Raises:
        apsw.Error: the file is damaged.
    """
    for rowid, key, is_vector, single, start in db.execute(_ROWS, {"usual": usual, "key": _KEY_BYTES}):
        if not is_vector:
            yield rowid, key, 0.0, start, v2.VECTOR_LENGTH
            continue
        norm = single if single is not None and math.isfinite(single) else _exact_norm(db, rowid)
        flaw = v2.VECTOR_NON_FINITE if norm is None else v2.VECTOR_ZERO if norm == 0 else None
        yield rowid, key, norm or 0.0, start, flaw


def _exact_norm(db: apsw.Connection, rowid: int) -> float | None:
    """Return the norm of a vector that is too long for single precision; None where it has none."""
    numbers = array("f", db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get)
    norm = math.hypot(*numbers)
    return norm if math.isfinite(norm) else None


def _duplicates(
    db: apsw.Connection, seen: Counter[int], usual: int, ledger: FindingCollector, base: str | None
) -> None:
    """Compare those whole that may be equal."""
    groups: dict[bytes, list[bytes]] = {}
    for rowid, key, is_vector, norm, start in db.execute(_ROWS, {"usual": usual, "key": _KEY_BYTES}):
        if is_vector and norm and seen.get(hash((norm, start)), 0) >= MANY:
            vector = db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get
            digest = hashlib.blake2b(vector, digest_size=16).digest()
            groups.setdefault(digest, []).append(key)
    for keys in groups.values():
        if len(keys) >= MANY:
            for key in keys:
                message = tr("{n} with a vector that two or more others have too")
                ledger.add(v2.VECTOR_DUPLICATE, message, base=base, noun="text", sample=key)
