"""Whether the pages of a SQLite table contradict each other, so that a scan does not give all of its rows.

A cell count that is too small, a leaf that no page names, or a wrong key above a leaf loses rows without any error:
SQLite reads such a file to its end. Its own check of pages finds them; what it says of other tables and of indexes does
not matter here, since no row is read through them.
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
from regraft.formats.sqlite_pages.pages import Kind, PageFile, TreePage, record_cell, tree_page
from regraft.formats.sqlite_pages.records import Field, Malformed, fields_of
from regraft.language import tr

#: SQLite's check ends after so many complaints; those of trees come before those of unused pages.
_COMPLAINTS = 100_000
#: Complaints that name a page and no tree: a page that no tree reaches, and cells that do not fill their page.
_UNUSED = re.compile(r"Page (\d+)(?: is|:) never used")
_UNFILLED = re.compile(r"(?:Fragmentation|Multiple uses for byte) .* (?:of|on) page (\d+)")
#: What SQLite says of a value that a column does not allow.
_VALUE = re.compile(r"(NULL|TEXT|NUMERIC|non-\w+) value in ")
_FIRST_BLOB, _FIRST_TEXT = 12, 13


def find_contradiction(db: apsw.Connection, path: Path, table: str, needed: Sequence[str]) -> str | None:
    """Return what the pages of a table contradict each other in, for a person; None where they agree.

    Args:
        db: the file, open for reading.
        path: the same file.
        table: an ordinary table with row numbers.
        needed: the columns of a text and of a vector, by which rows on pages outside the tree are recognized.

    Raises:
        apsw.Error, OSError: it cannot be read.
    """
    root = db.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE", (table,))
    tree = f"Tree {root.get} "
    suspects: list[tuple[int, str]] = []
    for said in _complaints(db, table):
        if said.startswith(tree):
            return said
        found = _UNUSED.match(said) or _UNFILLED.match(said)
        if found is not None:
            suspects.append((int(found[1]), said))
    if not suspects:
        return None
    columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{table}')")]
    shape = _Shape([columns.index(name) for name in needed], len(columns))
    return _lost_rows(path, suspects, shape)


def _complaints(db: apsw.Connection, table: str) -> Iterator[str]:
    """Yield the lines of SQLite's check of all pages; of the table's alone where the schema keeps it from the rest."""
    db.execute("PRAGMA ignore_check_constraints = ON")
    for pragma in (f"quick_check({_COMPLAINTS})", f"quick_check('{table}')"):
        try:
            texts = [str(text) for (text,) in db.execute(f"PRAGMA {pragma}")]
        except apsw.SQLError:
            # The schema has something that this SQLite does not know.
            continue
        for text in texts:
            yield from text.splitlines()
        return


def find_inconsistency(db: apsw.Connection, tables: Iterable[str]) -> str | None:
    """Return where pages of some tables, or their indexes, do not agree on which rows there are; None if they do.

    For files whose rows are found through indexes, too. A value that its column does not allow is no disagreement.

    Raises:
        apsw.Error: it cannot be read.
    """
    db.execute("PRAGMA ignore_check_constraints = ON")
    for table in tables:
        for (said,) in db.execute(f"PRAGMA integrity_check({untrusted_sqlite.quote_name(table)})"):
            if said != "ok" and not _VALUE.match(str(said)):
                return str(said)
    return None


class _Shape:
    """What rows of a table look like: how many columns they have, and which of these hold a text and a vector."""

    def __init__(self, positions: Sequence[int], columns: int) -> None:
        self._text, self._vector = positions
        self._columns = columns

    def fits(self, fields: Sequence[Field]) -> bool:
        """Whether a record may be a row of the table; columns that ALTER TABLE added may be missing."""
        return max(self._text, self._vector) < len(fields) <= self._columns

    def has_both(self, fields: Sequence[Field]) -> bool:
        """Whether a record that fits holds a text, or NULL, and a BLOB for a vector."""
        text, vector = fields[self._text].serial, fields[self._vector].serial
        is_text = text == 0 or (text >= _FIRST_TEXT and text & 1 == 1)
        return is_text and vector >= _FIRST_BLOB and not vector & 1


def _lost_rows(path: Path, suspects: Sequence[tuple[int, str]], shape: _Shape) -> str | None:
    """Return the first complaint that is about a page of the table, for a person."""
    try:
        with PageFile(path) as file:
            for number, said in suspects:
                is_unused = _UNUSED.match(said) is not None
                if is_unused and _has_row(file, number, shape):
                    return tr("page {number} holds rows, and no page leads to it", number=number)
                if not is_unused and _may_be_of_table(file, number, shape):
                    return said
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
    except ValueError:
        pass
    return None


def _has_row(file: PageFile, number: int, shape: _Shape) -> bool:
    """Whether a page is a leaf with at least one row of the table."""
    data = file.page(number)
    page = tree_page(data, number, file.usable)
    if page is None or page.kind is not Kind.TABLE_LEAF:
        return False
    return any(shape.fits(fields) and shape.has_both(fields) for fields in _records(file, data, page))


def _may_be_of_table(file: PageFile, number: int, shape: _Shape) -> bool:
    """Whether a page is of some table, and not evidently of another one."""
    data = file.page(number)
    page = tree_page(data, number, file.usable)
    if page is None or page.kind.is_index:
        return False
    records = list(_records(file, data, page)) if page.kind is Kind.TABLE_LEAF else []
    return not records or any(map(shape.fits, records))


def _records(file: PageFile, data: bytes, page: TreePage) -> Iterator[list[Field]]:
    """Yield the columns of every record on a leaf, as far as they can be read."""
    for at in page.cells:
        try:
            cell = record_cell(data, at, file.usable, page.kind, file.size)
            yield fields_of(cell.local)[0]
        except Malformed:
            continue


# A digest over rows of a table, by which a second reading proves that it gave the rows of the first.
#
# SQLite may answer two readings of a damaged file differently: a scan walks all leaf pages, a seek follows the keys above
# them. Counts can agree all the same. So every row counts with its number, its text and its vector.


_MASK = (1 << 64) - 1
#: Added to a row's checksum, so that no row counts nothing.
_OFFSET = 0x9E3779B1


class RowsDiffer(apsw.CorruptError):
    """A second reading of a table gave other rows than the first: the file is damaged."""


def digest_row(rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> int:
    """Return what one row adds to the digest of its rows. Digests of disjoint sets of rows add up, modulo 2^64.

    Of a text or vector over ``LARGE_BYTES`` only the length counts: it is never held whole.

    Args:
        rowid: the number of the row.
        body: the stored bytes of its text; None where it is NULL, or large.
        body_bytes: the length of the stored text in bytes.
        vector: its vector; None for a row that counts for its text alone.
    """
    checksum = crc32(body if body and body_bytes <= LARGE_BYTES else b"", body_bytes & 0xFFFFFFFF)
    if vector:
        checksum = crc32(vector if len(vector) <= LARGE_BYTES else b"%d" % len(vector), checksum)
    # A product, not a sum: two rows that exchange their contents must not add up to the same.
    return (2 * rowid + 1) * (checksum + _OFFSET) & _MASK


class RowsDigest:
    """Adds up the digests of the rows that a reading gives."""

    def __init__(self) -> None:
        self.value = 0

    def add(self, rowid: int, body: bytes | None, body_bytes: int, vector: bytes | None) -> None:
        """Count one row; the arguments are those of :func:`row_digest`."""
        self.value += digest_row(rowid, body, body_bytes, vector)

    def demand(self, expected: int | None, table: str) -> None:
        """Compare with the digest of the first reading; None where there is none to compare with.

        Raises:
            RowsDiffer: the rows are not those of the first reading.
        """
        if expected is not None and self.value & _MASK != expected & _MASK:
            raise RowsDiffer(tr("two readings of its table `{table}` gave different rows", table=table))
