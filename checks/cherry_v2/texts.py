"""Whether texts, bodies and ids are what their hashes say, and bodies where their units say.

Rules: ``docs/formats/index.md``, "Offsets" and "Identities".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import apsw

from checks.audit.collector import FindingCollector
from checks.cherry_v2 import findings as v2
from checks.cherry_v2 import large_texts
from checks.cherry_v2.schema_shape import Shape
from regraft.formats.large_text import LARGE_BYTES, stored
from regraft.language import tr
from regraft.text import decode_utf8, is_blank

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
CONTENTS = "SELECT rowid, CAST(content_hash AS BLOB), typeof(text), CAST(text AS BLOB) FROM content"
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


def check(
    db: apsw.Connection, shape: Shape, ledger: FindingCollector, base: str | None, separator: str | None = None
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
            wrong_hash = is_wrong if large is None else not large_texts.has_hash(db, "search_text", large, body_hash)
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
    db: apsw.Connection, shape: Shape, ledger: FindingCollector, base: str | None, separator: str | None
) -> None:
    has_units = shape.has("search_unit", "search_text")
    for rowid, key in db.execute(f"SELECT rowid, CAST(content_hash AS BLOB) FROM content WHERE NOT {_small()}"):
        ledger.check_time()
        _large_content(db, rowid, key, has_units, ledger, base, separator)
    for rowid, key, kind, text in db.execute(f"{CONTENTS} WHERE {_small()}"):
        ledger.check_time()
        if not is_right(key, kind, text):
            ledger.add(v2.CONTENT_HASH, tr("{n} whose hash is another one"), base=base, noun="text", sample=key)
            continue
        misplaced = list(_misplaced(db, rowid, text)) if has_units else []
        for unit, body in misplaced:
            _add_misplaced(unit, body is not None and holds_once(text, body), ledger, base)
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
    if not large_texts.is_utf8(db, rowid) or not large_texts.has_hash(db, "content", rowid, key):
        ledger.add(v2.CONTENT_HASH, tr("{n} whose hash is another one"), base=base, noun="text", sample=key)
        return
    if not has_units:
        return
    content, is_misplaced = large_texts.LargeContent(db, rowid), False
    for unit, body in content.misplaced():
        is_misplaced = True
        text = b"".join(stored(db, "content", "text", rowid))
        _add_misplaced(unit, holds_once(text, b"".join(stored(db, "search_text", "text", body))), ledger, base)
    if not is_misplaced and separator is not None:
        _missing(_uncovered(db, rowid, content.length), content.part, separator, ledger, base)


def holds_once(text: bytes, body: bytes) -> bool:
    """Tell whether a text holds a body exactly once; both are UTF-8."""
    first = text.find(body)
    return first >= 0 and text.find(body, first + 1) < 0


def is_right(key: bytes | None, kind: str, text: Any) -> bool:
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
        if not is_span(start, end, len(whole) // width):
            yield unit, body
            continue
        found = whole[start * width : end * width]
        message = body if ascii_only else decode_utf8(body or b"").encode("utf-16-le")
        # A body that is not what was embedded, in a place that still holds that, is wrong itself and not its place.
        if found != message and _sha256_of(found, ascii_only) != body_hash:
            yield unit, body


def is_span(start: object, end: object, length: int) -> bool:
    """Tell whether two values are a place in a text of this length."""
    return isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length


def _sha256_of(found: bytes, ascii_only: bool) -> bytes:
    raw = found if ascii_only else found.decode("utf-16-le", "replace").encode()
    return hashlib.sha256(raw).hexdigest().encode()
