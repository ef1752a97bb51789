"""Find the rows of an index file that break a rule of the layout, each with its row number.

``check`` counts and describes these rows; ``repair``, ``gc`` and ``reconcile`` plan from their row numbers and
conditions. Rules: ``docs/formats/index.md``, "What always holds", "Offsets" and "Identities". Text columns are read as
bytes because a damaged column can hold any value. Offsets count UTF-16 code units. For a damaged file, every function
raises ``apsw.Error``.
"""

from __future__ import annotations

import codecs
import hashlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import groupby, islice, zip_longest
from operator import itemgetter
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import apsw
import msgspec

from checks.audit.collector import FindingCollector
from checks.audit.sqlite_checks import words_agree
from checks.cherry_v2 import findings as v2
from checks.cherry_v2.schema import FULL_TEXT, SchemaShape
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index.schema import HAS_LENGTH_SQL
from regraft.formats.large_text import LARGE_BYTES, PIECE_BYTES, LargeText, count_utf16_units, read_pieces
from regraft.formats.vector_checks import is_finite
from regraft.language import tr
from regraft.text import decode_utf8, is_blank


class DetectedRow(NamedTuple):
    """One row that breaks a rule, as :meth:`FindingCollector.add` takes it.

    ``rowid`` is the row number in the table that the finding is about, for example ``search_unit`` for ``unit.…``.
    """

    finding: str
    message: str
    noun: str
    rowid: int | None
    sample: object
    is_beyond_repair: bool = False


# --- rows that contradict rows of other tables -----------------------------------------------------------------------


class RowRule(msgspec.Struct, frozen=True, kw_only=True):
    """A rule between tables that one SQL condition expresses."""

    finding: str
    message: str
    noun: str
    table: str
    #: The column that names a row to the user.
    key: str
    #: True for rows of ``table`` that break the rule; its columns are qualified by the table's name.
    condition: str
    #: Whether an index of ``table`` has all columns of the condition.
    is_indexed: bool = False

    def detect(self, db: apsw.Connection, row_count: int | None = None) -> Iterator[DetectedRow]:
        """Yield the rows that break the rule.

        Args:
            db: an open index file.
            row_count: the number of rows that the table itself has, without its indexes; None: not counted.
        """
        if self.is_indexed and not _may_match(db, self.table, self.condition, row_count):
            return
        query = f"SELECT rowid, CAST({self.key} AS BLOB) FROM {self.table} WHERE {self.condition}"
        for rowid, key in db.execute(query):
            yield DetectedRow(self.finding, self.message, self.noun, rowid, key)


def _may_match(db: apsw.Connection, table: str, condition: str, row_count: int | None) -> bool:
    """Whether any row of a table may meet a condition, by counting in an index that has all columns of the condition.

    This takes a quarter of the time of a search from every row, as the index has the order in which the condition
    searches another one. A damaged index can lack rows, so their number is compared with ``row_count``.

    ``row_count``: the number of rows of the table; None: unknown, so the result is True.
    """
    counted = f"SELECT count(*) FILTER (WHERE {condition}), count(*) FROM {table}"
    return row_count is None or db.execute(counted).fetchall() != [(0, row_count)]


HAS_UNITS = "EXISTS (SELECT 1 FROM search_unit u WHERE u.material_id = material.material_id)"
HAS_CONTENT = "EXISTS (SELECT 1 FROM content c WHERE c.content_hash = material.current_content_hash)"

UNIT_WITHOUT_BODY = RowRule(
    finding=v2.NO_BODY,
    message=tr("{n} without a body"),
    noun="unit",
    table="search_unit",
    key="unit_id",
    condition="""NOT EXISTS (SELECT 1 FROM search_text t WHERE t.target_type = 'search_unit'
                                AND t.target_id = search_unit.unit_id AND t.kind = 'body')""",
)
ORPHAN_BODY = RowRule(
    finding=v2.BODY_ORPHAN,
    message=tr("{n} whose unit is missing"),
    noun="body",
    table="search_text",
    key="search_text_id",
    condition="NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.unit_id = search_text.target_id)",
    is_indexed=True,
)
ORPHAN_CONTENT = RowRule(
    finding=v2.CONTENT_ORPHAN,
    message=tr("{n} not referenced by any material or unit"),
    noun="text",
    table="content",
    key="content_hash",
    condition="""NOT EXISTS (SELECT 1 FROM material m WHERE m.current_content_hash = content.content_hash)
             AND NOT EXISTS (SELECT 1 FROM search_unit u WHERE u.content_hash = content.content_hash)""",
)
MATERIAL_WITHOUT_CONTENT = RowRule(
    finding=v2.NO_CONTENT,
    message=tr("{n} with units but without a text"),
    noun="material",
    table="material",
    key="material_id",
    condition=f"NOT {HAS_CONTENT} AND {HAS_UNITS}",
)
MATERIAL_WITHOUT_UNITS = RowRule(
    finding=v2.NO_UNITS,
    message=tr("{n} with a text but without units"),
    noun="material",
    table="material",
    key="material_id",
    condition=f"""NOT {HAS_UNITS}
              AND EXISTS (SELECT 1 FROM content c WHERE c.content_hash = material.current_content_hash
                             AND trim(c.text, char(32, 9, 10, 13)) <> '')""",
)
UNIT_OF_OTHER_CONTENT = RowRule(
    finding=v2.UNIT_CONTENT,
    message=tr("{n} referring to a different text than the material, or to no material"),
    noun="unit",
    table="search_unit",
    key="unit_id",
    condition="""NOT EXISTS (SELECT 1 FROM material m WHERE m.material_id = search_unit.material_id
                                AND (m.current_content_hash IS NULL
                                     OR search_unit.content_hash IS m.current_content_hash))""",
)
ORPHAN_VECTOR = RowRule(
    finding=v2.VECTOR_ORPHAN,
    message=tr("{n} not referenced by any indexed text"),
    noun="vector",
    table="embedding",
    key="embedding_text_hash",
    condition="NOT EXISTS (SELECT 1 FROM search_text t WHERE t.embedding_text_hash = embedding.embedding_text_hash)",
)
BODY_WITHOUT_VECTOR = RowRule(
    finding=v2.VECTOR_MISSING,
    message=tr("{n} without a vector"),
    noun="body",
    table="search_text",
    key="search_text_id",
    condition="NOT EXISTS (SELECT 1 FROM embedding e WHERE e.embedding_text_hash = search_text.embedding_text_hash)",
    is_indexed=True,
)
#: The rules between contents, materials and units, in the order in which their findings are reported.
CONTENT_RULES = (ORPHAN_CONTENT, MATERIAL_WITHOUT_CONTENT, MATERIAL_WITHOUT_UNITS, UNIT_OF_OTHER_CONTENT)

_UNIT_GAPS = """SELECT min(rowid), CAST(material_id AS BLOB) FROM search_unit GROUP BY material_id
  HAVING min(unit_index) IS NOT 0 OR max(unit_index) IS NOT count(*) - 1 OR count(DISTINCT unit_index) <> count(*)"""


def detect_relations(db: apsw.Connection, shape: SchemaShape, body_count: int | None) -> Iterator[DetectedRow]:
    """Yield the rows whose references between units, bodies, materials and contents are broken.

    ``body_count`` is the number of rows that ``search_text`` itself has, without its indexes; None: not counted.
    """
    if shape.has("search_unit", "search_text"):
        yield from UNIT_WITHOUT_BODY.detect(db)
        yield from ORPHAN_BODY.detect(db, body_count)
        for rowid, material in db.execute(_UNIT_GAPS):
            message = tr("{n} whose units are not numbered 0, 1, 2, …")
            yield DetectedRow(v2.UNIT_GAP, message, noun="material", rowid=rowid, sample=material)
    if shape.has("search_unit", "material", "content"):
        for rule in CONTENT_RULES:
            yield from rule.detect(db)


def read_rows(
    db: apsw.Connection, query: str, rows: Iterable[int] | None, values: Mapping[str, Any] | None = None
) -> Iterator[Any]:
    """Yield the result of a query that ends with a condition on one table.

    Args:
        db: an open index file.
        query: the query.
        rows: row numbers of the only rows to read; None: all rows.
        values: parameters of the query.
    """
    if rows is None:
        yield from db.execute(query, values or {})
        return
    for row in rows:
        yield from db.execute(f"{query} AND rowid = :row", {**(values or {}), "row": row})


# --- texts, ids and offsets ------------------------------------------------------------------------------------------

#: True for a text that is processed as a whole. A value that is not text counts as small.
IS_SMALL = f"((octet_length(text) > {LARGE_BYTES} AND typeof(text) = 'text') IS NOT TRUE)"
#: Bodies with a wrong id or hash, and large bodies, whose hash is compared piece by piece.
_SUSPECT_BODIES = f"""SELECT rowid, key, is_wrong_id, is_wrong_hash, is_small, body_hash FROM (
    SELECT rowid, CAST(search_text_id AS BLOB) AS key,
           search_text_id IS NOT sha256_hex(CAST(target_type || ' ' || target_id || ' ' || kind AS BLOB))
             AS is_wrong_id,
           CASE WHEN {IS_SMALL} THEN
             typeof(text) <> 'text' OR (embedding_text_hash IS NOT sha256_hex(CAST(text AS BLOB))
                                        AND embedding_text_hash IS NOT lenient_hex(CAST(text AS BLOB)))
           END AS is_wrong_hash,
           {IS_SMALL} AS is_small, CAST(embedding_text_hash AS BLOB) AS body_hash
      FROM search_text)
 WHERE (is_wrong_id OR is_wrong_hash OR NOT is_small)"""
_UNIT_FIELDS = " || ' ' || ".join(("material_id", "content_hash", "unit_type", "unit_index", "char_start", "char_end"))
_WRONG_UNIT_IDS = f"""SELECT rowid, CAST(unit_id AS BLOB) FROM search_unit
     WHERE unit_id IS NOT sha256_hex(CAST({_UNIT_FIELDS} AS BLOB))"""
CONTENT_QUERY = "SELECT rowid, CAST(content_hash AS BLOB), typeof(text), CAST(text AS BLOB) FROM content"
#: CROSS JOIN keeps this order. By the index on ``kind``, SQLite would read every body for every content.
_BODIES_OF_CONTENT = """FROM search_unit u
  CROSS JOIN search_text t ON t.target_type = 'search_unit' AND t.target_id = u.unit_id AND t.kind = 'body'
 WHERE u.content_hash = (SELECT content_hash FROM content WHERE rowid = ?)"""
_SLICES = f"""SELECT u.rowid, CAST(u.unit_id AS BLOB), u.char_start, u.char_end, CAST(t.text AS BLOB),
       CAST(t.embedding_text_hash AS BLOB) {_BODIES_OF_CONTENT}"""
_LARGE_SLICES = f"""SELECT u.rowid, CAST(u.unit_id AS BLOB), u.char_start, u.char_end, t.rowid,
       CAST(t.embedding_text_hash AS BLOB) {_BODIES_OF_CONTENT} AND typeof(t.text) = 'text'"""
_SPANS = """SELECT CAST(material_id AS BLOB), char_start, char_end FROM search_unit
 WHERE content_hash = (SELECT content_hash FROM content WHERE rowid = ?)
   AND typeof(char_start) = 'integer' AND typeof(char_end) = 'integer'
 ORDER BY material_id, char_start"""


#: Findings about contents and the places of bodies in them, which one loop looks for.
PLACES = frozenset({v2.CONTENT_HASH, v2.UNIT_OFFSETS, v2.UNIT_MISSING})


def detect_texts(
    db: apsw.Connection,
    shape: SchemaShape,
    separator: str | None,
    check_time: Callable[[], None],
    ruled_out: Collection[str] = (),
) -> Iterator[DetectedRow]:
    """Hash every text and id, and compare each body with its offsets and each content with its units.

    Args:
        db: an open index file.
        shape: the tables that can be read.
        separator: text that may separate two units in addition to blanks; None: unknown, missing parts are not
            reported.
        check_time: called before each content and large text; raises to stop.
        ruled_out: findings that need not be looked for (:func:`checks.cherry_v2.index_file.rule_out_findings`).
    """
    if shape.has("search_text") and not {v2.BODY_ID, v2.BODY_HASH}.issubset(ruled_out):
        yield from detect_bodies(db, check_time)
    if shape.has("search_unit") and v2.UNIT_ID not in ruled_out:
        yield from detect_unit_ids(db)
    if shape.has("content") and not PLACES.issubset(ruled_out):
        yield from detect_contents(db, shape, separator, check_time)


def detect_unit_ids(db: apsw.Connection, rows: Iterable[int] | None = None) -> Iterator[DetectedRow]:
    """Yield the units whose id is not the hash of their fields. ``rows`` are row numbers of the only units to check."""
    _create_hash_functions(db)
    for rowid, key in read_rows(db, _WRONG_UNIT_IDS, rows):
        yield DetectedRow(
            v2.UNIT_ID, tr("{n} with a wrong id (not the hash of its fields)"), noun="unit", rowid=rowid, sample=key
        )


def detect_contents(
    db: apsw.Connection,
    shape: SchemaShape,
    separator: str | None,
    check_time: Callable[[], None],
    rows: Iterable[int] | None = None,
) -> Iterator[DetectedRow]:
    """Hash contents, and compare each with its units. The arguments are those of :func:`detect_texts`.

    ``rows`` are row numbers of the only contents to check; None: all.
    """
    has_units = shape.has("search_unit", "search_text")
    large = f"SELECT rowid, CAST(content_hash AS BLOB) FROM content WHERE NOT {IS_SMALL}"
    for rowid, key in read_rows(db, large, rows):
        check_time()
        yield from _detect_in_large_content(db, rowid, key, separator, has_units=has_units)
    for rowid, key, kind, text in read_rows(db, f"{CONTENT_QUERY} WHERE {IS_SMALL}", rows):
        check_time()
        if not matches_hash(key, kind, text):
            yield _wrong_content(rowid, key)
        elif has_units:
            yield from _detect_in_content(db, rowid, text, separator)


def _create_hash_functions(db: apsw.Connection) -> None:
    """Define the SQL functions that compute SHA-256 of a text as stored, and as JavaScript does it."""
    db.create_scalar_function("sha256_hex", _sha256_or_null, 1, deterministic=True)
    db.create_scalar_function("lenient_hex", _lenient_sha256_or_null, 1, deterministic=True)


def detect_bodies(
    db: apsw.Connection, check_time: Callable[[], None], rows: Iterable[int] | None = None
) -> Iterator[DetectedRow]:
    """Yield the bodies whose id or hash is wrong. ``rows`` are row numbers of the only bodies to check; None: all."""
    _create_hash_functions(db)
    for rowid, key, is_wrong_id, is_wrong_hash, is_small, body_hash in read_rows(db, _SUSPECT_BODIES, rows):
        has_wrong_hash = is_wrong_hash
        if not is_small:
            check_time()
            has_wrong_hash = not large_text_has_hash(db, "search_text", rowid, body_hash)
        if is_wrong_id:
            yield DetectedRow(
                v2.BODY_ID, tr("{n} with a wrong id (not the hash of its fields)"), noun="body", rowid=rowid, sample=key
            )
        if has_wrong_hash:
            yield DetectedRow(
                v2.BODY_HASH, tr("{n} whose hash does not match its text"), noun="body", rowid=rowid, sample=key
            )


def _detect_in_content(db: apsw.Connection, content: int, text: bytes, separator: str | None) -> Iterator[DetectedRow]:
    """Yield the units of a content whose offsets are wrong, or the materials with parts of the content in no unit.

    Args:
        db: an open index file.
        content: the row number of the content.
        text: all of its text.
        separator: text that may separate two units in addition to blanks; None: unknown, missing parts are not
            reported.
    """
    misplaced = list(_find_misplaced(db, content, text))
    for rowid, unit, body in misplaced:
        yield _misplaced_unit(rowid, unit, is_found_once=body is not None and contains_once(text, body))
    # Wrong offsets do not tell which part of the text is in no unit.
    if not misplaced and separator is not None:
        wide = decode_utf8(text).encode("utf-16-le")
        gaps = _find_uncovered(db, content, len(wide) // 2)
        yield from _detect_missing_parts(
            gaps, lambda start, end: wide[2 * start : 2 * end].decode("utf-16-le", "replace"), separator
        )


def _detect_in_large_content(
    db: apsw.Connection, content: int, key: bytes | None, separator: str | None, *, has_units: bool
) -> Iterator[DetectedRow]:
    """Check a content that is too large to hold: its hash, its units, and its parts in no unit.

    Args:
        db: an open index file.
        content: the row number of the content.
        key: its hash, as stored.
        separator: text that may separate two units in addition to blanks; None: unknown, missing parts are not
            reported.
        has_units: whether the tables of units and bodies can be read.
    """
    if not is_large_text_utf8(db, content) or not large_text_has_hash(db, "content", content, key):
        yield _wrong_content(content, key)
        return
    if not has_units:
        return
    large, is_misplaced = LargeContent(db, content), False
    for rowid, unit, body in large.find_misplaced():
        is_misplaced = True
        text = b"".join(read_pieces(db, "content", "text", content))
        body_text = b"".join(read_pieces(db, "search_text", "text", body))
        yield _misplaced_unit(rowid, unit, is_found_once=contains_once(text, body_text))
    if not is_misplaced and separator is not None:
        yield from _detect_missing_parts(_find_uncovered(db, content, large.length), large.read_part, separator)


def _wrong_content(rowid: int, key: bytes | None) -> DetectedRow:
    """Describe a content that does not match its hash ``key``."""
    return DetectedRow(v2.CONTENT_HASH, tr("{n} with a wrong hash"), noun="text", rowid=rowid, sample=key)


def _misplaced_unit(rowid: int, unit: bytes, *, is_found_once: bool) -> DetectedRow:
    """Describe a unit whose offsets are wrong. It can be repaired if the content has its body exactly once."""
    message = tr(
        "{{n}} whose body is not at its offsets in the text{is_once}",
        is_once="" if is_found_once else tr(", and not exactly once elsewhere in it"),
    )
    return DetectedRow(
        v2.UNIT_OFFSETS, message, noun="unit", rowid=rowid, sample=unit, is_beyond_repair=not is_found_once
    )


def _find_misplaced(db: apsw.Connection, content: int, text: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield row number, id and body of each unit whose body is not at its offsets in the content.

    ``content`` is the row number of the content, ``text`` its text. A missing body is None.
    """
    is_ascii = text.isascii()
    whole = text if is_ascii else decode_utf8(text).encode("utf-16-le")
    width = 1 if is_ascii else 2
    for rowid, unit, start, end, body, body_hash in db.execute(_SLICES, (content,)):
        if not is_valid_span(start, end, len(whole) // width):
            yield rowid, unit, body
            continue
        found = whole[start * width : end * width]
        expected = body if is_ascii else decode_utf8(body or b"").encode("utf-16-le")
        if found != expected:
            # If the slice has the hash that was embedded, the body itself is wrong and the offsets are right.
            raw = found if is_ascii else found.decode("utf-16-le", "replace").encode()
            if hashlib.sha256(raw).hexdigest().encode() != body_hash:
                yield rowid, unit, body


def _find_uncovered(db: apsw.Connection, content: int, length: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the parts of a content that no unit covers: material, begin and end in UTF-16 units.

    Each material that has units of the content is searched. ``content`` is its row number, ``length`` its length.
    """
    for material, spans in groupby(db.execute(_SPANS, (content,)), key=itemgetter(0)):
        end = 0
        for _, start, stop in spans:
            if start > end:
                yield material, end, start
            end = max(end, stop)
        if end < length:
            yield material, end, length


def _detect_missing_parts(
    gaps: Iterator[tuple[bytes, int, int]], read_part: Callable[[int, int], str], separator: str
) -> Iterator[DetectedRow]:
    """Yield each material that has an uncovered part which is not blank.

    Args:
        gaps: material, begin and end of each uncovered part.
        read_part: returns the text of the content between two offsets.
        separator: text that counts as blank.
    """
    reported: set[bytes] = set()
    for material, start, end in gaps:
        part = read_part(start, end)
        if material not in reported and not is_blank(part.replace(separator, "") if separator else part):
            reported.add(material)
            message = tr("{n} with text that is in no chunk, so that searches do not find it")
            yield DetectedRow(v2.UNIT_MISSING, message, noun="material", rowid=None, sample=material)


def contains_once(text: bytes, body: bytes) -> bool:
    """Whether a UTF-8 text contains a body exactly once."""
    first = text.find(body)
    return first >= 0 and text.find(body, first + 1) < 0


def is_valid_span(start: object, end: object, length: int) -> bool:
    """Whether two stored values are valid offsets into a text of ``length`` UTF-16 units."""
    return isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length


def matches_hash(key: bytes | None, kind: str, text: Any) -> bool:
    """Whether the stored value of a content is UTF-8 text with its hash.

    Args:
        key: the stored hash of the content.
        kind: SQLite's type of the stored value.
        text: the stored value as bytes.
    """
    if kind != "text" or key is None or not _is_utf8(text):
        return False
    wanted = key.decode("utf-8", "replace")
    return wanted == _sha256_or_null(text) or wanted == _lenient_sha256_or_null(text)


def _sha256_or_null(*values: Any) -> str | None:
    """Return the SHA-256 of the only argument as hexadecimal digits; None for a value that is not bytes."""
    raw = values[0]
    return hashlib.sha256(raw).hexdigest() if isinstance(raw, bytes) else None


def _lenient_sha256_or_null(*values: Any) -> str | None:
    """Return the SHA-256 of the only argument as JavaScript computes it: each unpaired surrogate becomes U+FFFD.

    None for ASCII, for which the other hash is the same, and for a value that is not bytes.
    """
    raw = values[0]
    return _sha256_or_null(decode_utf8(raw).encode()) if isinstance(raw, bytes) and not raw.isascii() else None


def _is_utf8(text: bytes) -> bool:
    """Whether bytes are UTF-8; unpaired surrogates are allowed."""
    try:
        text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


# --- large texts, read piece by piece --------------------------------------------------------------------------------


def large_text_has_hash(db: apsw.Connection, table: str, rowid: int, key: bytes | None) -> bool:
    """Whether the ``text`` of a row has the hash ``key``, as stored or with U+FFFD for each unpaired surrogate."""
    exact, lenient = hashlib.sha256(), hashlib.sha256()
    for piece in read_pieces(db, table, "text", rowid):
        exact.update(piece)
    if key is not None and exact.hexdigest().encode() == key:
        return True
    for piece in LargeText(db=db, table=table, column="text", rowid=rowid).pieces():
        lenient.update(piece)
    return key is not None and lenient.hexdigest().encode() == key


def is_large_text_utf8(db: apsw.Connection, rowid: int) -> bool:
    """Whether the content with this row number is UTF-8; unpaired surrogates are allowed."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    try:
        for piece in read_pieces(db, "content", "text", rowid):
            decoder.decode(piece)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


class LargeContent:
    """A content whose slices are read by UTF-16 offsets without holding all of it."""

    def __init__(self, db: apsw.Connection, rowid: int) -> None:
        self._text = LargeText(db=db, table="content", column="text", rowid=rowid)
        self._db = db
        self._rowid = rowid
        #: Offsets at which the pieces begin, and the length at the end. The pieces are read again when needed.
        self._starts = [0]
        for piece in self._text.pieces():
            self._starts.append(self._starts[-1] + count_utf16_units(piece))

    @property
    def length(self) -> int:
        """The length of the content in UTF-16 units."""
        return self._starts[-1]

    def read_part(self, start: int, end: int) -> str:
        """Return the text between two offsets; of a long part, only its first piece that is not blank."""
        for piece in self._read_slice(start, end):
            text = piece.decode()
            if not is_blank(text):
                return text
        return ""

    def find_misplaced(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield row number, id, and row number of the body of each unit whose body is not at its offsets."""
        units: list[Any] = self._db.execute(_LARGE_SLICES, (self._rowid,)).fetchall()
        for rowid, unit, start, end, body, body_hash in units:
            if is_valid_span(start, end, self.length):
                text = LargeText(db=self._db, table="search_text", column="text", rowid=body).pieces()
                blocks = zip_longest(_equal_blocks(self._read_slice(start, end)), _equal_blocks(text))
                if all(one == other for one, other in blocks):
                    continue
                digest = hashlib.sha256()
                for piece in self._read_slice(start, end):
                    digest.update(piece)
                # If the slice has the hash that was embedded, the body itself is wrong and the offsets are right.
                if digest.hexdigest().encode() == body_hash:
                    continue
            yield rowid, unit, body

    def _read_slice(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the text between two offsets as UTF-8, in pieces.

        Half of a surrogate pair that is cut off is U+FFFD.
        """
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


def _equal_blocks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the pieces in blocks of equal size."""
    rest = b""
    for piece in pieces:
        rest += piece
        whole = len(rest) - len(rest) % PIECE_BYTES
        yield from (rest[at : at + PIECE_BYTES] for at in range(0, whole, PIECE_BYTES))
        rest = rest[whole:]
    if rest:
        yield rest


# --- vectors ---------------------------------------------------------------------------------------------------------

#: Minimum number of texts with one vector that are reported as duplicates.
MANY_SHARING = 3
#: Bytes from the start of a vector that, with its norm, tell which vectors may be equal.
_PREFIX_BYTES = 32
#: Width of a bar in the histogram of norms, and the norm at which its last bar begins.
_NORM_STEP = 0.1
_LAST_BAR = round(10.0 / _NORM_STEP)

#: sqlite-vec computes norms in single precision, as the application does. The norm of a vector whose squares exceed
#: single precision is infinite, and the norm of a vector with a NaN is NULL.
_VECTORS = f"""SELECT rowid, CAST(embedding_text_hash AS BLOB), {HAS_LENGTH_SQL},
       CASE WHEN {HAS_LENGTH_SQL} THEN vec_distance_l2(vector_blob, zeroblob(:length)) END,
       CASE WHEN typeof(vector_blob) = 'blob' THEN substr(vector_blob, 1, :prefix) END
  FROM embedding WHERE TRUE"""


def classify_vector(has_length: int, norm: float | None) -> str | None:
    """Return the name of the finding for a vector; None if it is usable.

    ``has_length``: whether it has the expected length. ``norm`` is None if a component is not a number.
    """
    if not has_length:
        return v2.VECTOR_LENGTH
    if norm is None or not math.isfinite(norm):
        return v2.VECTOR_NON_FINITE
    return v2.VECTOR_ZERO if norm == 0 else None


class UniformVectors(msgspec.Struct, frozen=True):
    """Vectors without findings: all usable and of one length in bytes, and no vector shared by several texts."""

    length: int
    count: int
    #: As :meth:`VectorDetector.norms`.
    norms: dict[str, int]


#: Vectors whose norms are counted at once.
_VECTOR_BATCH = 1024
_FIRST_LENGTH = """SELECT octet_length(vector_blob) FROM embedding WHERE typeof(vector_blob) = 'blob' LIMIT 1"""
#: NULL for a vector of another length, and one with a NaN or an infinite norm.
_NORMS = f"""SELECT CASE WHEN {HAS_LENGTH_SQL} THEN nullif(vec_distance_l2(vector_blob, :origin), 9e999) END,
       CASE WHEN typeof(vector_blob) = 'blob' THEN substr(vector_blob, 1, :prefix) END
  FROM embedding"""


def read_uniform_vectors(db: apsw.Connection, dimensions: int | None) -> UniformVectors | None:
    """Read all vectors in one pass, which most files allow; None if one of them may have a finding.

    Args:
        db: an open index file, with sqlite-vec.
        dimensions: dimensions in the catalog; None: those of the first vector.
    """
    try:
        length: Any = db.execute(_FIRST_LENGTH).get if dimensions is None else 4 * dimensions
        if not length or length % 4:
            return None
        norms, prefixes = Counter[int](), Counter[int]()
        values = {"length": length, "origin": bytes(length), "prefix": _PREFIX_BYTES}
        rows: Iterator[tuple[Any, ...]] = db.execute(_NORMS, values)
        while batch := list(islice(rows, _VECTOR_BATCH)):
            found = [norm for norm, _ in batch]
            if not all(found):
                return None
            norms.update(map(_bar_of, found))
            prefixes.update(map(hash, batch))
    except apsw.Error as error:
        if sqlite.is_write_failure(error):
            raise
        return None
    if max(prefixes.values(), default=MANY_SHARING) >= MANY_SHARING:
        return None
    return UniformVectors(length, norms.total(), _label_bars(norms))


def _bar_of(norm: float) -> int:
    """Return the number of the bar for a norm in the histogram of norms."""
    return min(int(norm / _NORM_STEP), _LAST_BAR)


def _label_bars(counts: Counter[int]) -> dict[str, int]:
    """Replace the numbers of the bars of a histogram by their lower limits."""
    return {f"{bar * _NORM_STEP:.1f}": count for bar, count in sorted(counts.items())}


def find_unusable_vectors(db: apsw.Connection, length: int) -> Iterator[tuple[int, str]]:
    """Yield row number and name of the finding of each vector that is not usable.

    Args:
        db: an open index file, with sqlite-vec.
        length: the expected length in bytes.
    """
    for rowid, _, has_length, norm, _ in db.execute(_VECTORS, {"length": length, "prefix": 1}):
        finding = classify_vector(has_length, norm)
        if finding is not None:
            yield rowid, finding


class VectorDetector:
    """Checks every vector of an index, and counts the norms of the usable ones.

    Args:
        db: an index file, with sqlite-vec.
        length: the expected length in bytes.
        is_stated: whether the catalog states that length; otherwise it is the length of most vectors.
        rows: row numbers of the only vectors to check; None: all. Of some, no duplicates are reported.
    """

    def __init__(self, db: apsw.Connection, length: int, *, is_stated: bool, rows: Iterable[int] | None = None) -> None:
        self._db = db
        self._rows = rows
        self._length = length
        self._is_stated = is_stated
        self._norms: Counter[int] = Counter()

    def detect(self) -> Iterator[DetectedRow]:
        """Yield the vectors that are not usable, then texts that share one vector with two or more others."""
        # Hashes of norm and prefix take a tenth of the memory of both.
        prefixes: Counter[int] = Counter()
        values = {"length": self._length, "prefix": _PREFIX_BYTES}
        for rowid, key, has_length, norm, prefix in read_rows(self._db, _VECTORS, self._rows, values):
            finding = classify_vector(has_length, norm)
            if finding is not None:
                yield DetectedRow(finding, self._describe(finding, rowid), noun="vector", rowid=rowid, sample=key)
            else:
                self._norms[_bar_of(norm)] += 1
                if self._rows is None:
                    prefixes[hash((norm, prefix))] += 1
        if any(count >= MANY_SHARING for count in prefixes.values()):
            yield from self._detect_duplicates(prefixes)

    def norms(self) -> dict[str, int]:
        """Return the histogram of the norms of the usable vectors: their number, by the lower end of each bar."""
        return _label_bars(self._norms)

    def _describe(self, finding: str, rowid: int) -> str:
        """Return the message for the vector with this row number; ``finding`` is the name of its finding."""
        dimensions = self._length // 4
        if finding == v2.VECTOR_LENGTH and self._is_stated:
            return tr("{{n}} without the {dimensions} dimensions of the catalog", dimensions=dimensions)
        if finding == v2.VECTOR_LENGTH:
            return tr("{{n}} without the {dimensions} dimensions that most have", dimensions=dimensions)
        if finding == v2.VECTOR_ZERO:
            return tr("{n} of all zeros")
        vector: Any = self._db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get
        if is_finite(vector):
            return tr("{n} with a norm too large for single precision, which no vector search can rank")
        return tr("{n} with NaN or infinity: every vector query of the base fails in the released application")

    def _detect_duplicates(self, prefixes: Counter[int]) -> Iterator[DetectedRow]:
        """Yield the texts of vectors that are equal in all bytes to at least two others.

        ``prefixes`` counts the vectors by a hash of their norm and first bytes.
        """
        groups: dict[bytes, list[tuple[int, bytes]]] = {}
        values = {"length": self._length, "prefix": _PREFIX_BYTES}
        for rowid, key, has_length, norm, prefix in self._db.execute(_VECTORS, values):
            if has_length and norm and prefixes.get(hash((norm, prefix)), 0) >= MANY_SHARING:
                vector = self._db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get
                digest = hashlib.blake2b(vector, digest_size=16).digest()
                groups.setdefault(digest, []).append((rowid, key))
        for rows in groups.values():
            if len(rows) >= MANY_SHARING:
                for rowid, key in rows:
                    message = tr("{n} with a vector shared by at least two others")
                    yield DetectedRow(v2.VECTOR_DUPLICATE, message, noun="text", rowid=rowid, sample=key)


def digest_vectors(db: apsw.Connection, rows: Iterable[int]) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield row number, digest (16 bytes) and stored time of the vectors with these row numbers."""
    query = "SELECT rowid, typeof(vector_blob), CAST(created_at AS BLOB) FROM embedding WHERE TRUE"
    for rowid, kind, time in read_rows(db, query, rows):
        digest = hashlib.blake2b(digest_size=16, person=kind.encode())
        # Only these two types can be read in pieces.
        if kind in ("blob", "text"):
            for piece in read_pieces(db, "embedding", "vector_blob", rowid):
                digest.update(piece)
        yield rowid, digest.digest(), time or b""


# --- the full-text index ---------------------------------------------------------------------------------------------


def detect_full_text_numbers(db: apsw.Connection, shape: SchemaShape, body_count: int | None) -> Iterator[DetectedRow]:
    """Compare the numbers of bodies in the full-text index with the entries of that index.

    A body without an entry and an entry without a body are reported in pairs, as one body with the wrong number.
    ``body_count`` is the number of rows that ``search_text`` itself has, without its indexes; None: not counted.
    """
    number = _number_column(shape)
    bodies = f"SELECT rowid, CAST(search_text_id AS BLOB) FROM search_text WHERE {number} IS %s NULL"
    doubles = f"SELECT {number} FROM search_text WHERE {number} IS NOT NULL GROUP BY {number} HAVING count(*) > 1"
    docsize = f"main.{FULL_TEXT}_docsize"
    for rowid, key in db.execute(bodies % ""):
        yield DetectedRow(
            v2.BODY_ROWID, tr("{n} without a row number in the full-text index"), noun="body", rowid=rowid, sample=key
        )
    for (double,) in db.execute(doubles):
        yield DetectedRow(v2.BODY_ROWID, tr("{n} used twice"), noun="number", rowid=None, sample=double)
    has_no_entry = f"NOT EXISTS (SELECT 1 FROM {docsize} d WHERE d.id = search_text.{number})"
    without_entry = []
    if _may_match(db, "search_text", f"{number} IS NOT NULL AND {has_no_entry}", body_count):
        without_entry = list(db.execute(f"{bodies % 'NOT'} AND {has_no_entry}"))
    without_body = list(
        db.execute(f"SELECT id FROM {docsize} d WHERE NOT EXISTS (SELECT 1 FROM search_text t WHERE t.{number} = d.id)")
    )
    for body, entry in zip_longest(without_entry, without_body):
        if body is not None and entry is not None:
            message = tr("{n} whose row number is missing from the full-text index")
            yield DetectedRow(v2.BODY_ROWID, message, noun="body", rowid=body[0], sample=body[1])
        elif body is not None:
            yield DetectedRow(
                v2.FTS_DESYNC, tr("{n} not in the full-text index"), noun="body", rowid=body[0], sample=body[1]
            )
        else:
            message = tr("{n} in the full-text index without a body")
            yield DetectedRow(v2.FTS_DESYNC, message, noun="entry", rowid=None, sample=entry[0])


class WordCheck:
    """Compares the words of the full-text index with the bodies, in a thread beside the other checks of a file.

    FTS5's own check takes as long as all other checks together, and is no work for Python. It is a write, so it runs on
    a copy of the index's data in a temporary table (``docs/formats/index.md``, "Reading without a trace").

    Args:
        path: the index file.
        size: its size in bytes.
        shape: the tables that can be read.
        findings: limits how long the check may take.
    """

    def __init__(self, path: Path, size: int, shape: SchemaShape, findings: FindingCollector) -> None:
        self._path = path
        self._size = size
        self._shape = shape
        self._findings = findings
        self._thread: Thread | None = None
        self._connection: apsw.Connection | None = None
        self._agrees = False
        self._error: Exception | None = None

    def start(self) -> None:
        """Begin the check, unless it has begun."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="regraft full-text check", daemon=True)
            self._thread.start()

    def agrees(self) -> bool:
        """Wait for the end of the check; return whether the full-text index holds the words of the bodies.

        Raises:
            apsw.Error, OSError, UnicodeDecodeError: the file is damaged, or the time limit has passed.
        """
        self.start()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._agrees

    def stop(self) -> None:
        """Interrupt the check if it is running, and wait for its end."""
        while self._thread is not None and self._thread.is_alive():
            connection = self._connection
            # The check may end and close the connection meanwhile.
            if connection is not None:
                with suppress(apsw.ConnectionClosedError):
                    connection.interrupt()
            self._thread.join(0.05)

    def _run(self) -> None:
        """Compare the full-text index with the bodies, and keep the result or the error; runs in a thread."""
        try:
            with sqlite.open_readonly(self._path) as db, self._findings.limit_statements(db, self._size):
                self._connection = db
                number = _number_column(self._shape)
                bodies = f"SELECT {number} AS number, text FROM main.search_text WHERE {number} IS NOT NULL"
                self._agrees = words_agree(db, FULL_TEXT, "search_text", bodies, "text, tokenize = 'trigram'")
        except Exception as error:
            self._error = error
        finally:
            self._connection = None


def _number_column(shape: SchemaShape) -> str:
    """Return the column of a body's number in the full-text index; in version 1 of the layout it is the row number."""
    return "fts_rowid" if shape.has_rowid else "rowid"
