"""Whether texts, bodies and ids are what their hashes say, and bodies where their units say.

Rules: ``docs/formats/index.md``, "Offsets" and "Identities".
"""

from __future__ import annotations

import codecs
import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any

import apsw
import msgspec

from checks.audit.collector import FindingCollector, Level
from checks.audit.sqlite_checks import words_agree
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.schema import FULL_TEXT, SchemaShape
from regraft.formats.cherry_v2.index.schema import HAS_LENGTH_SQL
from regraft.formats.large_text import LARGE_BYTES, PIECE_BYTES, LargeText, count_utf16_units, read_pieces
from regraft.formats.vector_checks import is_finite
from regraft.language import tr
from regraft.text import decode_utf8, is_blank

# Large texts of an index held against their hashes and places piece by piece, none of them whole in memory.
#
# It comes to what :mod:`checks.cherry_v2.detect` finds of texts that are held whole.


#: CROSS JOIN keeps the order: by the index on kinds, every body would be read for every content.
_LARGE_SLICES = """SELECT CAST(u.unit_id AS BLOB), u.char_start, u.char_end, t.rowid,
       CAST(t.embedding_text_hash AS BLOB)
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.content_hash = (SELECT content_hash FROM content WHERE rowid = ?) AND typeof(t.text) = 'text'"""


def large_text_has_hash(db: apsw.Connection, table: str, rowid: int, key: bytes | None) -> bool:
    """Tell whether the ``text`` of a row has this hash, as it is or with U+FFFD for each half of a surrogate pair.

    Raises:
        apsw.Error: the file is damaged.
    """
    exact, lenient = hashlib.sha256(), hashlib.sha256()
    for piece in read_pieces(db, table, "text", rowid):
        exact.update(piece)
    if key is not None and exact.hexdigest().encode() == key:
        return True
    for piece in LargeText(db=db, table=table, column="text", rowid=rowid).pieces():
        lenient.update(piece)
    return key is not None and lenient.hexdigest().encode() == key


def is_large_text_utf8(db: apsw.Connection, rowid: int) -> bool:
    """Tell whether a content is UTF-8, but for halves of surrogate pairs.

    Raises:
        apsw.Error: the file is damaged.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    try:
        for piece in read_pieces(db, "content", "text", rowid):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class LargeContent:
    """A large content, in which places are found by the units of UTF-16 before them."""

    def __init__(self, db: apsw.Connection, rowid: int) -> None:
        self._text = LargeText(db=db, table="content", column="text", rowid=rowid)
        self._db = db
        self._rowid = rowid
        #: Where pieces begin, in UTF-16 units; the pieces themselves are read again when they are asked for.
        self._starts = [0]
        for piece in self._text.pieces():
            self._starts.append(self._starts[-1] + count_utf16_units(piece))

    @property
    def length(self) -> int:
        """Return how long the text is, in UTF-16 units."""
        return self._starts[-1]

    def part(self, start: int, end: int) -> str:
        """Return the text from ``start`` to ``end``, in UTF-16 units; of a long part only its first piece with text."""
        for piece in self._slice(start, end):
            text = piece.decode()
            if not is_blank(text):
                return text
        return ""

    def misplaced(self) -> Iterator[tuple[bytes, int]]:
        """Yield the units whose slice is not their body, each with the body's row."""
        length = self._starts[-1]
        units: list[Any] = self._db.execute(_LARGE_SLICES, (self._rowid,)).fetchall()
        for unit, start, end, body, body_hash in units:
            is_span = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length
            if not is_span or not self._is_there(start, end, body, body_hash):
                yield unit, body

    def _is_there(self, start: int, end: int, body: int, body_hash: bytes | None) -> bool:
        return self._holds(start, end, body) or self._hash(start, end) == body_hash

    def _holds(self, start: int, end: int, body: int) -> bool:
        message = _blocks(LargeText(db=self._db, table="search_text", column="text", rowid=body).pieces())
        return all(one == other for one, other in zip_longest(_blocks(self._slice(start, end)), message))

    def _hash(self, start: int, end: int) -> bytes:
        found = hashlib.sha256()
        for piece in self._slice(start, end):
            found.update(piece)
        return found.hexdigest().encode()

    def _slice(self, start: int, end: int) -> Iterator[bytes]:
        """Yield what stands from ``start`` to ``end`` as UTF-8; a half of a pair that is cut off is U+FFFD."""
        first = max(bisect_right(self._starts, start) - 1, 0)
        for number, piece in enumerate(self._text.pieces()):
            begin = self._starts[number]
            if begin >= end:
                return
            if number < first:
                continue
            if begin >= start and self._starts[number + 1] <= end:
                yield piece
                continue
            wide = piece.decode().encode("utf-16-le")
            part = wide[2 * max(start - begin, 0) : 2 * (end - begin)]
            yield part.decode("utf-16-le", "replace").encode()


def _blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size."""
    left = b""
    for piece in pieces:
        left += piece
        whole = len(left) - len(left) % PIECE_BYTES
        yield from (left[at : at + PIECE_BYTES] for at in range(0, whole, PIECE_BYTES))
        left = left[whole:]
    if left:
        yield left


_BODIES = """SELECT CAST(search_text_id AS BLOB),
       search_text_id IS NOT sha256_hex(CAST(target_type || ' ' || target_id || ' ' || kind AS BLOB)),
       CASE WHEN {small} THEN
         typeof(text) <> 'text' OR (embedding_text_hash IS NOT sha256_hex(CAST(text AS BLOB))
                                    AND embedding_text_hash IS NOT lenient_hex(CAST(text AS BLOB))) END,
       CASE WHEN NOT ({small}) THEN rowid END, CAST(embedding_text_hash AS BLOB)
  FROM search_text"""
#: Texts up to here are held whole; those that are none are small.
_SMALL = "(octet_length(text) > {bytes} AND typeof(text) = 'text') IS NOT TRUE"
_UNIT_KEY = " || ' ' || ".join(("material_id", "content_hash", "unit_type", "unit_index", "char_start", "char_end"))
_UNITS = f"""SELECT CAST(unit_id AS BLOB) FROM search_unit
     WHERE unit_id IS NOT sha256_hex(CAST({_UNIT_KEY} AS BLOB))"""
CONTENT_QUERY = "SELECT rowid, CAST(content_hash AS BLOB), typeof(text), CAST(text AS BLOB) FROM content"
#: CROSS JOIN keeps the order: by the index on kinds, every body would be read for every content.
_SLICES = """SELECT CAST(u.unit_id AS BLOB), u.char_start, u.char_end, CAST(t.text AS BLOB),
       CAST(t.embedding_text_hash AS BLOB)
  FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.content_hash = (SELECT content_hash FROM content WHERE rowid = ?)"""


_SPANS = """SELECT CAST(material_id AS BLOB), char_start, char_end FROM search_unit
 WHERE content_hash = (SELECT content_hash FROM content WHERE rowid = ?)
   AND typeof(char_start) = 'integer' AND typeof(char_end) = 'integer'
 ORDER BY material_id, char_start"""


def check_texts(
    db: apsw.Connection, shape: SchemaShape, ledger: FindingCollector, base: str | None, separator: str | None = None
) -> None:
    """Hash every text and every id, and compare every body with its offsets, and every text with its units.

    Args:
        db: an index file.
        shape: the tables that it has.
        ledger: receives what is wrong.
        base: the base's id.
        separator: what may stand between two units and is in none, besides blanks; None: not known, no part is missing.

    Raises:
        apsw.Error: the file is damaged.
        OutOfTime: time is over.
    """
    db.create_scalar_function("sha256_hex", _sha256_of_row, 1, deterministic=True)
    db.create_scalar_function("lenient_hex", _lenient_sha256, 1, deterministic=True)
    if shape.has("search_text"):
        for key, wrong_id, is_wrong, large, body_hash in db.execute(_BODIES.format(small=_small())):
            if large is not None:
                ledger.check_time()
            wrong_hash = is_wrong if large is None else not large_text_has_hash(db, "search_text", large, body_hash)
            if wrong_id:
                ledger.add(
                    v2.BODY_ID,
                    tr("{n} with a wrong id (not the hash of its fields)"),
                    base=base,
                    noun="body",
                    sample=key,
                )
            if wrong_hash:
                ledger.add(v2.BODY_HASH, tr("{n} whose hash is not the text's"), base=base, noun="body", sample=key)
    if shape.has("search_unit"):
        for (key,) in db.execute(_UNITS):
            ledger.add(
                v2.UNIT_ID, tr("{n} with a wrong id (not the hash of its fields)"), base=base, noun="unit", sample=key
            )
    if shape.has("content"):
        _contents(db, shape, ledger, base, separator)


def _contents(
    db: apsw.Connection, shape: SchemaShape, ledger: FindingCollector, base: str | None, separator: str | None
) -> None:
    has_units = shape.has("search_unit", "search_text")
    for rowid, key in db.execute(f"SELECT rowid, CAST(content_hash AS BLOB) FROM content WHERE NOT {_small()}"):
        ledger.check_time()
        _large_content(db, rowid, key, has_units, ledger, base, separator)
    for rowid, key, kind, text in db.execute(f"{CONTENT_QUERY} WHERE {_small()}"):
        ledger.check_time()
        if not matches_hash(key, kind, text):
            ledger.add(v2.CONTENT_HASH, tr("{n} whose hash is another one"), base=base, noun="text", sample=key)
            continue
        misplaced = list(_misplaced(db, rowid, text)) if has_units else []
        for unit, body in misplaced:
            _add_misplaced(unit, body is not None and contains_once(text, body), ledger, base)
        # Where offsets are wrong, they do not tell which part is in no unit.
        if has_units and not misplaced and separator is not None:
            wide = decode_utf8(text).encode("utf-16-le")
            gaps = _uncovered(db, rowid, len(wide) // 2)
            _missing(gaps, partial(_decoded, wide), separator, ledger, base)


def _decoded(wide: bytes, start: int, end: int) -> str:
    return wide[2 * start : 2 * end].decode("utf-16-le", "replace")


def _missing(
    gaps: Iterator[tuple[bytes, int, int]],
    part_of: Callable[[int, int], str],
    separator: str,
    ledger: FindingCollector,
    base: str | None,
) -> None:
    """Find the materials of which a part that is not blank is in no unit."""
    found: set[bytes] = set()
    for material, start, end in gaps:
        part = part_of(start, end)
        if material not in found and not is_blank(part.replace(separator, "") if separator else part):
            found.add(material)
            message = tr("{n} with a part of the text in no unit")
            ledger.add(v2.UNIT_MISSING, message, base=base, noun="material", sample=material)


def _uncovered(db: apsw.Connection, content: int, length: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the parts of a content between the units of each material that has any, in UTF-16 units."""
    for material, spans in groupby(db.execute(_SPANS, (content,)), key=itemgetter(0)):
        end = 0
        for _, start, stop in spans:
            if start > end:
                yield material, end, start
            end = max(end, stop)
        if end < length:
            yield material, end, length


def _add_misplaced(unit: bytes, is_once: bool, ledger: FindingCollector, base: str | None) -> None:
    message = tr(
        "{{n}} whose body is not at its place in the text{is_once}",
        is_once="" if is_once else tr(", nor once elsewhere in it"),
    )
    ledger.add(v2.UNIT_OFFSETS, message, base=base, noun="unit", sample=unit, is_beyond_repair=not is_once)


def _small() -> str:
    return _SMALL.format(bytes=LARGE_BYTES)


def _large_content(
    db: apsw.Connection,
    rowid: int,
    key: bytes | None,
    has_units: bool,
    ledger: FindingCollector,
    base: str | None,
    separator: str | None,
) -> None:
    if not is_large_text_utf8(db, rowid) or not large_text_has_hash(db, "content", rowid, key):
        ledger.add(v2.CONTENT_HASH, tr("{n} whose hash is another one"), base=base, noun="text", sample=key)
        return
    if not has_units:
        return
    content, is_misplaced = LargeContent(db, rowid), False
    for unit, body in content.misplaced():
        is_misplaced = True
        text = b"".join(read_pieces(db, "content", "text", rowid))
        _add_misplaced(unit, contains_once(text, b"".join(read_pieces(db, "search_text", "text", body))), ledger, base)
    if not is_misplaced and separator is not None:
        _missing(_uncovered(db, rowid, content.length), content.part, separator, ledger, base)


def contains_once(text: bytes, body: bytes) -> bool:
    """Tell whether a text holds a body exactly once; both are UTF-8."""
    first = text.find(body)
    return first >= 0 and text.find(body, first + 1) < 0


def matches_hash(key: bytes | None, kind: str, text: Any) -> bool:
    """Tell whether a content is a text with this hash; ``kind`` is SQLite's type of it, ``text`` its bytes."""
    if kind != "text" or key is None or not _is_utf8(text):
        return False
    return key.decode("utf-8", "replace") in (_sha256(text), _lenient_sha256(text))


def _sha256_of_row(*values: Any) -> str | None:
    return _sha256(values[0])


def _sha256(raw: Any) -> str | None:
    return hashlib.sha256(raw).hexdigest() if isinstance(raw, bytes) else None


def _lenient_sha256(*values: Any) -> str | None:
    """Return the hash of a text that has half a surrogate pair in it, as JavaScript has it: with U+FFFD for each."""
    raw = values[0]
    return _sha256(decode_utf8(raw).encode()) if isinstance(raw, bytes) and not raw.isascii() else None


def _is_utf8(text: bytes) -> bool:
    """Tell whether bytes are UTF-8, but for halves of surrogate pairs."""
    if text.isascii():
        return True
    try:
        text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


def _misplaced(db: apsw.Connection, content: int, text: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """Return the units of a content whose slice of it, in UTF-16 units, is not their body, with that body."""
    ascii_only = text.isascii()
    whole = text if ascii_only else decode_utf8(text).encode("utf-16-le")
    width = 1 if ascii_only else 2
    for unit, start, end, body, body_hash in db.execute(_SLICES, (content,)):
        if not is_valid_span(start, end, len(whole) // width):
            yield unit, body
            continue
        found = whole[start * width : end * width]
        message = body if ascii_only else decode_utf8(body or b"").encode("utf-16-le")
        # A body that is not what was embedded, in a place that still holds that, is wrong itself and not its place.
        if found != message and _sha256_of(found, ascii_only) != body_hash:
            yield unit, body


def is_valid_span(start: object, end: object, length: int) -> bool:
    """Tell whether two values are a place in a text of this length."""
    return isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length


def _sha256_of(found: bytes, ascii_only: bool) -> bytes:
    raw = found if ascii_only else found.decode("utf-16-le", "replace").encode()
    return hashlib.sha256(raw).hexdigest().encode()


# Whether vectors are vectors: their lengths, what is in them, and whether texts share them.


#: Texts with one vector from which on that is worth a word.
MANY_SHARING = 3
#: Bytes from the start of a vector by which equal ones are looked for, besides their norm.
_KEY_BYTES = 32
#: Steps of the histogram of norms.
_STEP = 0.1
_HIGHEST = 10.0

#: sqlite-vec computes norms in single precision, as the application does: the norm of a vector whose squares exceed
#: single precision is infinite, and that of one with a NaN is NULL.
_ROWS = f"""SELECT rowid, CAST(embedding_text_hash AS BLOB), {HAS_LENGTH_SQL},
       CASE WHEN {HAS_LENGTH_SQL} THEN vec_distance_l2(vector_blob, zeroblob(:length)) END,
       CASE WHEN typeof(vector_blob) = 'blob' THEN substr(vector_blob, 1, :key) END
  FROM embedding"""


class VectorCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``embedding`` and what is wrong with its vector; ``finding`` None: nothing."""

    rowid: int
    #: Its ``embedding_text_hash``.
    key: bytes
    norm: float
    start: bytes
    finding: str | None


def check_vectors(
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
    for one in classify_vectors(db, length):
        if one.finding is not None:
            message = _message(db, one, length // 4, is_stated=is_stated)
            findings.add(one.finding, message, base=base, noun="vector", sample=one.key)
            continue
        norms[min(math.floor(one.norm / _STEP), round(_HIGHEST / _STEP))] += 1
        # The hash of a number and some bytes takes a tenth of their memory.
        seen[hash((one.norm, one.start))] += 1
    if any(count >= MANY_SHARING for count in seen.values()):
        _duplicates(db, seen, length, findings, base)
    return {f"{step * _STEP:.1f}": count for step, count in sorted(norms.items())}


def _message(db: apsw.Connection, one: VectorCheck, dimensions: int, *, is_stated: bool) -> str:
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


def classify_vectors(db: apsw.Connection, length: int) -> Iterator[VectorCheck]:
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
        yield VectorCheck(rowid=rowid, key=key, norm=norm or 0.0, start=start, finding=finding)


def _duplicates(
    db: apsw.Connection, seen: Counter[int], length: int, findings: FindingCollector, base: str | None
) -> None:
    """Compare the whole bytes of vectors that may be equal."""
    groups: dict[bytes, list[bytes]] = {}
    for rowid, key, has_length, norm, start in db.execute(_ROWS, {"length": length, "key": _KEY_BYTES}):
        if has_length and norm and seen.get(hash((norm, start)), 0) >= MANY_SHARING:
            vector = db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get
            digest = hashlib.blake2b(vector, digest_size=16).digest()
            groups.setdefault(digest, []).append(key)
    for keys in groups.values():
        if len(keys) >= MANY_SHARING:
            for key in keys:
                message = tr("{n} with a vector that two or more others have too")
                findings.add(v2.VECTOR_DUPLICATE, message, base=base, noun="text", sample=key)


# Whether the full-text index holds what the bodies say.
#
# FTS5's own check is a write, so it runs on a copy of the index's data in a temporary table, with the bodies where they
# are (``docs/formats/index.md``, "Reading without a trace").


def check_full_text(db: apsw.Connection, shape: SchemaShape, ledger: FindingCollector, base: str | None) -> None:
    """Compare the numbers of bodies with those of the index; above the quick level its words too.

    Raises:
        apsw.Error: the file is damaged.
    """
    number = "fts_rowid" if shape.has_rowid else "rowid"
    bodies = f"SELECT {number}, CAST(search_text_id AS BLOB) FROM search_text WHERE {number} IS %s NULL"
    _numbers(db, number, bodies, ledger, base)
    if ledger.level >= Level.DEFAULT and not ledger.count(v2.FTS_DESYNC, base) and not _body_words_agree(db, number):
        ledger.add(v2.FTS_DESYNC, tr("the full-text index does not hold the words of the bodies"), base=base)


def _numbers(db: apsw.Connection, number: str, bodies: str, ledger: FindingCollector, base: str | None) -> None:
    doubles = f"SELECT {number} FROM search_text WHERE {number} IS NOT NULL GROUP BY {number} HAVING count(*) > 1"
    for _, key in db.execute(bodies % ""):
        ledger.add(v2.BODY_ROWID, tr("{n} without a number in the full-text index"), base=base, noun="body", sample=key)
    for (numbers,) in db.execute(doubles):
        ledger.add(v2.BODY_ROWID, tr("{n} used twice"), base=base, noun="number", sample=numbers)
    docsize = f"main.{FULL_TEXT}_docsize"
    without = list(
        db.execute(f"{bodies % 'NOT'} AND NOT EXISTS (SELECT 1 FROM {docsize} d WHERE d.id = search_text.{number})")
    )
    beyond = list(
        db.execute(f"SELECT id FROM {docsize} d WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.{number} = d.id)")
    )
    for body, entry in zip_longest(without, beyond):
        _add_number(ledger, base, body, entry)


def _add_number(
    ledger: FindingCollector, base: str | None, body: tuple[int, bytes] | None, entry: tuple[int] | None
) -> None:
    """Say what became of a body without an entry and an entry without a body: one of each is one out of step."""
    if body is not None and entry is not None:
        message = tr("{n} whose number the full-text index does not have, while it has another that no body has")
        ledger.add(v2.BODY_ROWID, message, base=base, noun="body", sample=body[1])
    elif body is not None:
        ledger.add(v2.FTS_DESYNC, tr("{n} not in the full-text index"), base=base, noun="body", sample=body[1])
    elif entry is not None:
        message = tr("{n} of the full-text index without a body")
        ledger.add(v2.FTS_DESYNC, message, base=base, noun="entry", sample=entry[0])


def _body_words_agree(db: apsw.Connection, number: str) -> bool:
    bodies = f"SELECT {number} AS number, text FROM main.search_text WHERE {number} IS NOT NULL"
    return words_agree(db, FULL_TEXT, "search_text", bodies, "text, tokenize = 'trigram'")
