"""Rule out findings about rows in one pass over the contents, units and bodies of an index file.

:mod:`checks.cherry_v2.detect` has a query for each rule, and reads every body three times. Most files break no rule.
This pass reads them once, evaluates the same rules, and tells which findings no row can have. The queries of the other
findings then run and describe the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import apsw

from checks.cherry_v2 import findings as v2
from checks.cherry_v2.detect import CONTENT_QUERY, IS_SMALL, PLACES, is_valid_span, matches_hash
from checks.cherry_v2.schema import SchemaShape
from regraft.disk import sqlite
from regraft.formats.large_text import LARGE_BYTES
from regraft.text import decode_utf8, is_blank

_ALL = PLACES | {v2.BODY_ID, v2.BODY_HASH, v2.UNIT_ID}

_HAS_LARGE = f"SELECT EXISTS (SELECT 1 FROM content WHERE NOT {IS_SMALL})"
#: In the order of the unique index, so that a content is read once.
_CONTENTS = f"{CONTENT_QUERY} ORDER BY content_hash"
#: The unary plus keeps SQLite from searching an index: a unit and its body usually have the same row number.
_UNITS = f"""SELECT search_unit.unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end,
       search_text_id, embedding_text_hash, CAST(search_text.text AS BLOB)
  FROM search_unit LEFT JOIN search_text
    ON search_text.rowid = search_unit.rowid AND +search_text.target_id = search_unit.unit_id
   AND +search_text.target_type = 'search_unit' AND +search_text.kind = 'body'
   AND typeof(search_text.text) = 'text' AND octet_length(search_text.text) <= {LARGE_BYTES}
 WHERE search_unit.content_hash = (SELECT c.content_hash FROM content c WHERE c.rowid = ?)"""
#: Rows of the table itself: an index can lack some.
_COUNTS = ", ".join(
    f"(SELECT count(*) FROM {table} NOT INDEXED)" for table in ("content", "search_unit", "search_text")
)
#: Maximum number of different blanks between units that are remembered.
_MOST_BLANKS = 1000


def rule_out_findings(
    db: apsw.Connection, shape: SchemaShape, separator: str | None, check_time: Callable[[], None]
) -> frozenset[str]:
    """Return the findings that no row of an index file has.

    None are returned if the file cannot be read or has rows that the pass does not reach: large texts, rows without a
    content, bodies with another row number than their unit.

    Args:
        db: an index file.
        shape: the tables that can be read.
        separator: text that may separate two units in addition to blanks; None: missing parts are not reported.
        check_time: called before each content; raises to stop.
    """
    if shape.missing or not shape.has("content", "material", "search_unit", "search_text"):
        return frozenset()
    try:
        return _RowPass(db, separator, check_time).run()
    except (_NotReached, ValueError, MemoryError, OverflowError):
        return frozenset()
    except apsw.Error as error:
        if sqlite.is_write_failure(error):
            raise
        return frozenset()


class _NotReached(Exception):
    """The file has rows that the pass does not reach."""


class _RowPass:
    """One pass over all contents with their units and bodies."""

    def __init__(self, db: apsw.Connection, separator: str | None, check_time: Callable[[], None]) -> None:
        self._db = db
        self._separator = separator
        self._check_time = check_time
        #: Findings that some row may have.
        self._possible: set[str] = set()
        self._reached = 0
        self._blanks: set[bytes] = set()

    def run(self) -> frozenset[str]:
        """Read all rows.

        Raises:
            _NotReached
            apsw.Error, ValueError: the file is damaged.
        """
        if self._db.execute(_HAS_LARGE).get:
            raise _NotReached
        contents, before = 0, b""
        for rowid, key, kind, text in self._db.execute(_CONTENTS):
            self._check_time()
            # A content that is listed twice could make up for rows that are not reached.
            if key is None or key <= before:
                raise _NotReached
            contents, before = contents + 1, key
            self._check_content(rowid, text if matches_hash(key, kind, text) else None)
        if self._db.execute(f"SELECT {_COUNTS}").fetchall() != [(contents, self._reached, self._reached)]:
            raise _NotReached
        return _ALL - self._possible

    def _check_content(self, rowid: int, text: bytes | None) -> None:
        """Check the units of a content and their bodies; ``text`` is None if the content is wrong."""
        spans: list[tuple[str, int, int]] = []
        is_ascii = text is not None and text.isascii()
        if text is None:
            self._possible |= PLACES
        whole = text if is_ascii or text is None else decode_utf8(text).encode("utf-16-le")
        width = 1 if is_ascii else 2
        for material, start, end, body in self._check_units(rowid):
            if whole is None:
                continue
            expected = body if is_ascii else decode_utf8(body).encode("utf-16-le")
            if not is_valid_span(start, end, len(whole) // width) or whole[start * width : end * width] != expected:
                self._possible |= PLACES
            else:
                spans.append((material, start, end))
        if whole is not None and self._separator is not None and not self._possible >= PLACES:
            self._check_coverage(whole, width, sorted(spans))

    def _check_units(self, content: int) -> Iterator[tuple[str, Any, Any, bytes]]:
        """Check ids and hashes of the units of a content and of their bodies.

        Yields:
            The material, the offsets and the body of each unit.
        """
        possible = self._possible
        rows: Iterator[Any] = self._db.execute(_UNITS, (content,))
        for unit, material, key, kind, index, start, end, body_id, body_hash, body in rows:
            if body is None:
                raise _NotReached
            self._reached += 1
            if sha256(f"{material} {key} {kind} {index} {start} {end}".encode()).hexdigest() != unit:
                possible.add(v2.UNIT_ID)
            if sha256(f"search_unit {unit} body".encode()).hexdigest() != body_id:
                possible.add(v2.BODY_ID)
            if sha256(body).hexdigest() != body_hash:
                possible.add(v2.BODY_HASH)
            yield material, start, end, body

    def _check_coverage(self, whole: bytes, width: int, spans: list[tuple[str, int, int]]) -> None:
        """Check that each part of a content that is in no unit of a material is blank."""
        material, covered = None, 0
        for this, start, end in spans:
            if this != material:
                if material is not None:
                    self._check_blank(whole[covered * width :], width)
                material, covered = this, 0
            if start > covered:
                self._check_blank(whole[covered * width : start * width], width)
            covered = max(covered, end)
        if material is not None:
            self._check_blank(whole[covered * width :], width)

    def _check_blank(self, part: bytes, width: int) -> None:
        if part in self._blanks:
            return
        text = part.decode() if width == 1 else part.decode("utf-16-le", "replace")
        if not is_blank(text.replace(self._separator, "") if self._separator else text):
            self._possible |= PLACES
        elif len(self._blanks) < _MOST_BLANKS:
            self._blanks.add(part)
