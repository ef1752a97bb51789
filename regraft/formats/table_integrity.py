"""Detect tables whose rows SQLite does not return completely, although it reports no error.

A cell count that is too small, a leaf page that no page refers to, or a wrong key above a leaf hides rows. SQLite's own
page check finds such pages; complaints about other tables and about indexes are ignored, since no row is read through
them.

Two ways to read a damaged file can also return different rows: a scan visits all leaf pages, a seek follows the keys
above them, and the number of rows may still agree. A digest over row ids, texts and vectors proves that a second read
returned the rows of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from zlib import crc32

import apsw

from regraft.disk import untrusted_sqlite
from regraft.disk.durable import NO_ROOM
from regraft.formats.large_text import LARGE_BYTES
from regraft.formats.sqlite_pages.pages import PageFile, PageKind, TreePage, parse_record_cell, parse_tree_page
from regraft.formats.sqlite_pages.records import MalformedRecord, RecordField, parse_fields
from regraft.language import tr

#: Upper limit of SQLite's complaints. Complaints about trees come before those about unused pages.
_COMPLAINTS = 100_000
#: Complaints that name a page but no tree: a page that no tree refers to, and cells that do not fill their page.
_UNUSED = re.compile(r"Page (\d+)(?: is|:) never used")
_UNFILLED = re.compile(r"(?:Fragmentation|Multiple uses for byte) .* (?:of|on) page (\d+)")
#: Complaints about a value that its column does not allow.
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC|non-\w+) value in ")
_FIRST_BLOB, _FIRST_TEXT = 12, 13


def find_contradiction(db: apsw.Connection, path: Path, table: str, needed: Sequence[str]) -> str | None:
    """Find a contradiction between the pages of a table. Return SQLite's complaint, or None if the pages agree.

    Args:
        db: the file, open for reading.
        path: path of the same file.
        table: an ordinary table with row ids.
        needed: the text column and the vector column; they identify rows on pages outside the tree.

    Raises:
        apsw.Error, OSError: the file cannot be read.
    """
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE", (table,))
    tree = f"Tree {root.get} "
    suspects: list[tuple[int, str]] = []
    for complaint in _complaints(db, table):
        if complaint.startswith(tree):
            return complaint
        found = _UNUSED.match(complaint) or _UNFILLED.match(complaint)
        if found is not None:
            suspects.append((int(found[1]), complaint))
    if not suspects:
        return None
    columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]
    shape = _RowShape([columns.index(name) for name in needed], len(columns))
    return _find_lost_rows(path, suspects, shape)


def _complaints(db: apsw.Connection, table: str) -> Iterator[str]:
    """Yield the lines of SQLite's page check: of the file, or of the table if the schema prevents that."""
    db.execute("PRAGMA ignore_check_constraints = ON")
    for pragma in (f"quick_check({_COMPLAINTS})", f"quick_check('{table}')"):
        try:
            texts = [str(text) for (text,) in db.execute(f"PRAGMA {pragma}")]
        except apsw.SQLError:
            # The schema uses something that this SQLite does not support.
            continue
        for text in texts:
            yield from text.splitlines()
        return


def find_inconsistency(db: apsw.Connection, tables: Iterable[str]) -> str | None:
    """Find a table whose pages and indexes disagree on which rows exist. Return SQLite's complaint, or None.

    For files whose rows are read through indexes too. Values that a column does not allow are ignored.

    Raises:
        apsw.Error: the file cannot be read.
    """
    db.execute("PRAGMA ignore_check_constraints = ON")
    for table in tables:
        for (complaint,) in db.execute(f"PRAGMA integrity_check({untrusted_sqlite.quote_name(table)})"):
            if complaint != "ok" and not _VALUE.match(str(complaint)):
                return str(complaint)
    return None


class _RowShape:
    """Recognizes rows of a table by the number of their columns, and by the types of two of them.

    Args:
        positions: positions of the text column and of the vector column.
        columns: number of columns of the table.
    """

    def __init__(self, positions: Sequence[int], columns: int) -> None:
        self._text, self._vector = positions
        self._columns = columns

    def fits(self, fields: Sequence[RecordField]) -> bool:
        """Whether a record has as many columns as a row. Columns that ALTER TABLE added may be missing."""
        return max(self._text, self._vector) < len(fields) <= self._columns

    def has_both(self, fields: Sequence[RecordField]) -> bool:
        """Whether a record that fits has a text or NULL in the text column, and a BLOB in the vector column."""
        text, vector = fields[self._text].serial, fields[self._vector].serial
        is_text = text == 0 or (text >= _FIRST_TEXT and text & 1 == 1)
        return is_text and vector >= _FIRST_BLOB and not vector & 1


def _find_lost_rows(path: Path, suspects: Sequence[tuple[int, str]], shape: _RowShape) -> str | None:
    """Return the first complaint about a page that can contain rows of the table, or None.

    ``suspects`` are page numbers with SQLite's complaints; ``shape`` recognizes the rows.
    """
    try:
        with PageFile(path) as file:
            for number, complaint in suspects:
                data = file.page(number)
                page = parse_tree_page(data, number, file.usable)
                if page is None or page.kind.is_index:
                    continue
                records = list(_records(file, data, page)) if page.kind is PageKind.TABLE_LEAF else []
                if _UNUSED.match(complaint):
                    # A page outside every tree: it must contain a row to be missed.
                    if any(shape.fits(fields) and shape.has_both(fields) for fields in records):
                        return tr("page {number} contains rows, but no other page refers to it", number=number)
                elif not records or any(map(shape.fits, records)):
                    return complaint
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
    except ValueError:
        pass
    return None


def _records(file: PageFile, data: bytes, page: TreePage) -> Iterator[list[RecordField]]:
    """Yield the columns of each readable record on a leaf page, whose bytes are ``data``."""
    for at in page.cells:
        try:
            cell = parse_record_cell(data, at, file.usable, page.kind, file.size)
            yield parse_fields(cell.local)[0]
        except MalformedRecord:
            continue


_MASK = (1 << 64) - 1
#: Added to a row's checksum so that no row contributes zero.
_OFFSET = 0x9E3779B1


class RowsDiffer(apsw.CorruptError):
    """A second read of a table returned other rows than the first, so the file is damaged."""


def digest_row(rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> int:
    """Compute the summand of one row in the digest of a table. Summands add up modulo 2^64.

    A text or vector over ``LARGE_BYTES`` contributes only its length, because it is never held in memory.

    Args:
        rowid: row id.
        body: stored bytes of the text; None if it is NULL or large.
        body_bytes: length of the stored text in bytes.
        vector: the vector; None to digest the text alone.
    """
    checksum = crc32(body if body and body_bytes <= LARGE_BYTES else b"", body_bytes & 0xFFFFFFFF)
    if vector:
        checksum = crc32(vector if len(vector) <= LARGE_BYTES else b"%d" % len(vector), checksum)
    # A product, not a sum: two rows that swap their contents must change the digest.
    return (2 * rowid + 1) * (checksum + _OFFSET) & _MASK


class RowsDigest:
    """Digest of the rows that one read of a table returns: the sum over all rows."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> None:
        """Add one row; the arguments are those of :func:`digest_row`."""
        self.value += digest_row(rowid, body, body_bytes, vector)

    def demand(self, expected: int | None, table: str) -> None:
        """Compare the sum with the digest of an earlier read of the same table; None: nothing to compare with.

        Raises:
            RowsDiffer: the rows differ from those of the earlier read.
        """
        if expected is not None and self.value & _MASK != expected & _MASK:
            raise RowsDiffer(tr("reading table `{table}` twice returned different rows", table=table))
