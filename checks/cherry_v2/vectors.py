"""Whether vectors are vectors: their lengths, what is in them, and whether texts share them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import apsw
import msgspec

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import findings as v2
from regraft.formats.cherry_v2.index.vector_lengths import HAS_LENGTH
from regraft.formats.vector_numbers import is_finite
from regraft.language import tr

#: Texts with one vector from which on that is worth a word.
MANY = 3
#: Bytes from the start of a vector by which equal ones are looked for, besides their norm.
_KEY_BYTES = 32
#: Steps of the histogram of norms.
_STEP = 0.1
_HIGHEST = 10.0

#: sqlite-vec computes norms in single precision, as the application does: the norm of a vector whose squares exceed
#: single precision is infinite, and that of one with a NaN is NULL.
_ROWS = f"""SELECT rowid, CAST(embedding_text_hash AS BLOB), {HAS_LENGTH},
       CASE WHEN {HAS_LENGTH} THEN vec_distance_l2(vector_blob, zeroblob(:length)) END,
       CASE WHEN typeof(vector_blob) = 'blob' THEN substr(vector_blob, 1, :key) END
  FROM embedding"""


class Judgment(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``embedding`` and what is wrong with its vector; ``finding`` None: nothing."""

    rowid: int
    #: Its ``embedding_text_hash``.
    key: bytes
    norm: float
    start: bytes
    finding: str | None


def check(
    db: apsw.Connection, length: int, findings: FindingCollector, base: str | None, *, is_stated: bool
) -> dict[str, int]:
    """Check every vector, and count the vectors of each norm (by the lower end of a step).

    Args:
        db: an index file, with sqlite-vec.
        length: the length in bytes that a vector must have.
        findings: receives what is wrong.
        base: the base's id.
        is_stated: whether the catalog gives that length; else most vectors have it.

    Raises:
        apsw.Error: the file is damaged.
    """
    norms: Counter[float] = Counter()
    seen: Counter[int] = Counter()
    for one in judge(db, length):
        if one.finding is not None:
            message = _message(db, one, length // 4, is_stated=is_stated)
            findings.add(one.finding, message, base=base, noun="vector", sample=one.key)
            continue
        norms[min(math.floor(one.norm / _STEP), round(_HIGHEST / _STEP))] += 1
        # The hash of a number and some bytes takes a tenth of their memory.
        seen[hash((one.norm, one.start))] += 1
    if any(count >= MANY for count in seen.values()):
        _duplicates(db, seen, length, findings, base)
    return {f"{step * _STEP:.1f}": count for step, count in sorted(norms.items())}


def _message(db: apsw.Connection, one: Judgment, dimensions: int, *, is_stated: bool) -> str:
    if one.finding == v2.VECTOR_LENGTH and is_stated:
        return tr("{{n}} without the {dimensions} dimensions of the catalog", dimensions=dimensions)
    if one.finding == v2.VECTOR_LENGTH:
        return tr("{{n}} without the {dimensions} dimensions that most have", dimensions=dimensions)
    if one.finding == v2.VECTOR_ZERO:
        return tr("{n} of zeros")
    vector: Any = db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (one.rowid,)).get
    if is_finite(vector):
        return tr("{n} with a norm too large for single precision, which no vector search can rank")
    return tr("{n} with NaN or infinity: the released application throws on every vector query of the base")


def judge(db: apsw.Connection, length: int) -> Iterator[Judgment]:
    """Yield every row of ``embedding`` with the finding that its vector is.

    Args:
        db: an index file, with sqlite-vec.
        length: the length in bytes that a vector must have.

    Raises:
        apsw.Error: the file is damaged.
    """
    for rowid, key, has_length, norm, start in db.execute(_ROWS, {"length": length, "key": _KEY_BYTES}):
        finding = None
        if not has_length:
            finding = v2.VECTOR_LENGTH
        elif norm is None or not math.isfinite(norm):
            finding = v2.VECTOR_NON_FINITE
        elif norm == 0:
            finding = v2.VECTOR_ZERO
        yield Judgment(rowid=rowid, key=key, norm=norm or 0.0, start=start, finding=finding)


def _duplicates(
    db: apsw.Connection, seen: Counter[int], length: int, findings: FindingCollector, base: str | None
) -> None:
    """Compare the whole bytes of vectors that may be equal."""
    groups: dict[bytes, list[bytes]] = {}
    for rowid, key, has_length, norm, start in db.execute(_ROWS, {"length": length, "key": _KEY_BYTES}):
        if has_length and norm and seen.get(hash((norm, start)), 0) >= MANY:
            vector = db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get
            digest = hashlib.blake2b(vector, digest_size=16).digest()
            groups.setdefault(digest, []).append(key)
    for keys in groups.values():
        if len(keys) >= MANY:
            for key in keys:
                message = tr("{n} with a vector that two or more others have too")
                findings.add(v2.VECTOR_DUPLICATE, message, base=base, noun="text", sample=key)
