"""The bases that ``regraft certify`` reads: their texts and vectors, from an index or from any table of vectors.

A base is read twice: once in row order, to measure every text and vector into a temporary database, and once in blocks
of vectors, to compare queries with all of them. Memory is bounded by the size of a block.
"""

from __future__ import annotations

import hashlib
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw
import msgspec
import numpy as np

from regraft.disk import sqlite
from regraft.disk.untrusted_sqlite import find_rowid_column
from regraft.errors import SourceUnreadable
from regraft.formats.large_text import LARGE_BYTES, LargeText, hash_text
from regraft.formats.vector_checks import LARGEST_NORM
from regraft.formats.vector_table import VectorTable, make_text_decoder, text_codec
from regraft.language import tr
from regraft.text import decode_utf8

#: Letters and digits at the beginning of a text by which texts with one vector are told apart. Models read at least as
#: many, whatever their limit.
HEAD_LETTERS = 120
#: Characters of a text that are read to find them.
HEAD_CHARACTERS = 600
#: Longest vector that is read, in bytes; longer values are none of any model.
MAX_VECTOR_BYTES = 4 * 65_536
#: Bytes of vectors that are measured or compared at once.
BLOCK_BYTES = 4 << 20
_BATCH_ROWS = 2_048

#: The square of a shorter vector is zero in single precision.
SHORTEST_NORM = 1e-23
#: Flaws of vectors in the temporary database.
USABLE, ZERO, NOT_FINITE, TOO_LARGE, NO_VECTOR = range(5)

_TABLES = """
CREATE TABLE {0}body (rowid INTEGER PRIMARY KEY, text BLOB, is_blank INTEGER, is_foreign INTEGER, vector INTEGER,
                      is_extra INTEGER);
CREATE TABLE {0}vector (rowid INTEGER PRIMARY KEY, digest BLOB, length INTEGER, norm REAL, flaw INTEGER);
"""


class WordIndex(msgspec.Struct, frozen=True, kw_only=True):
    """The full-text index (FTS5) of another system, and the texts that it should have.

    Attributes:
        open: opens the database.
        table: name of the virtual table.
        rows: query for the row id in the index, and the first characters, of every text of the base.
        differing: query for the number of texts whose copy in the index is another text; None if it keeps no copies.
        values: parameters of both.
        is_trigram: whether it finds any part of a text from three characters on; otherwise words.
    """

    open: Callable[[], AbstractContextManager[apsw.Connection]]
    table: str
    rows: str
    values: Mapping[str, apsw.SQLiteValue]
    differing: str | None = None
    is_trigram: bool = False


class CertifiedBase(msgspec.Struct, frozen=True, kw_only=True):
    """One base of a source, and how its rows are read.

    Attributes:
        open: opens its file, with sqlite-vec; None if there is none.
        table: the table of its texts and vectors; None for an index of the current layout.
        problem: why it cannot be read.
        runs: ranges of rows that belong to items, in order; None: all rows do.
        items: maps ids of items to the ids of their bases in the catalog; None without a catalog.
        recall: share of the nearest vectors that its own index finds, or the reason why it cannot be searched; None if
            it has no such index, or if what searches it is not installed.
        words: its full-text index, if that is not one of the current layout.
    """

    id: str
    name: str
    model: str | None = None
    dimensions: int | None = None
    open: Callable[[], AbstractContextManager[apsw.Connection]] | None = None
    table: VectorTable | None = None
    problem: str | None = None
    runs: tuple[tuple[int, int], ...] | None = None
    items: Callable[[Sequence[str]], dict[str, str] | None] | None = None
    recall: Callable[[], float | str | None] | None = None
    words: WordIndex | None = None

    def has_row(self, rowid: int) -> bool:
        """Whether the row with this number belongs to an item."""
        if self.runs is None:
            return True
        at = bisect_right(self.runs, (rowid, MAX_ROWID)) - 1
        return at >= 0 and rowid <= self.runs[at][1]


#: The largest row id of SQLite.
MAX_ROWID = (1 << 63) - 1


def measure(db: apsw.Connection, base: CertifiedBase, scratch: apsw.Connection, prefix: str) -> None:
    """Measure each text and each vector of a base, into tables of a temporary database.

    Args:
        db: the open file of the base.
        base: how the base is read.
        scratch: the temporary database.
        prefix: the beginning of the names of the tables.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
        SourceUnreadable: a table is missing.
    """
    scratch.execute(_TABLES.format(prefix))
    with sqlite.transaction(scratch):
        scratch.executemany(
            f"INSERT INTO {prefix}body VALUES (?, ?, ?, ?, ?, ?)",
            _measure_bodies(db, base),
        )
        for rows in _measure_vectors(_read_vectors(db, base)):
            scratch.executemany(f"INSERT INTO {prefix}vector VALUES (?, ?, ?, ?, ?)", rows)
        for column in ("text", "vector"):
            scratch.execute(f"CREATE INDEX {prefix}body_{column} ON {prefix}body ({column})")
        # Vectors that belong to a text, once each, with a row of their text.
        scratch.execute(
            f"""CREATE TABLE {prefix}used AS
                SELECT v.rowid AS at, min(b.rowid) AS body, v.digest, v.length, v.norm, v.flaw
                  FROM {prefix}body b JOIN {prefix}vector v ON v.rowid = b.vector GROUP BY v.rowid"""
        )


def _measure_bodies(db: apsw.Connection, base: CertifiedBase) -> Iterator[tuple[object, ...]]:
    """Yield the values of one row of the table of texts for each text of a base.

    They are row number, digest of the text, whether it is blank, whether the stated hash is wrong, row number of its
    vector, and whether no item has the row.
    """
    if base.table is None:
        name, column, codec = "search_text", "text", None
        stated = "CASE typeof(embedding_text_hash) WHEN 'text' THEN CAST(embedding_text_hash AS BLOB) END"
        vector = "(SELECT e.rowid FROM embedding e WHERE e.embedding_text_hash = search_text.embedding_text_hash)"
        decode: Callable[[bytes | None], str | None] = _decode
    else:
        name, column, codec = base.table.name, base.table.body, text_codec(db)
        stated, vector = "NULL", "rowid"
        decode = make_text_decoder(db)
    is_large = f"octet_length({column}) > {LARGE_BYTES}"
    rows: Any = db.execute(
        f"""SELECT rowid, {is_large}, CASE WHEN NOT {is_large} THEN CAST({column} AS BLOB) END, {stated}, {vector}
              FROM {name} NOT INDEXED ORDER BY rowid"""
    )
    for rowid, large, small, key, at in rows:
        text: str | LargeText = decode(small) or ""
        if large:
            text = LargeText(db=db, table=name, column=column, rowid=rowid, codec=codec)
        digest = hash_text(text)
        is_foreign = key is not None and decode_utf8(key) != digest
        is_blank = isinstance(text, str) and not text.strip()
        yield rowid, bytes.fromhex(digest)[:16], is_blank, is_foreign, at, not base.has_row(rowid)


def _decode(raw: bytes | None) -> str | None:
    """Decode UTF-8; None, a value that is not stored, stays None."""
    return None if raw is None else decode_utf8(raw)


def hash_beginning(text: str) -> bytes | None:
    """Hash the letters and digits at the beginning of a text, regardless of case, accents, spaces and order.

    Models may ignore all these differences. Return None for a text without letters and digits.
    """
    plain = unicodedata.normalize("NFKD", text[:HEAD_CHARACTERS].casefold())
    letters = sorted([one for one in plain if one.isalnum()][:HEAD_LETTERS])
    return hashlib.blake2b("".join(letters).encode("utf-8", "replace"), digest_size=8).digest() if letters else None


def _read_vectors(db: apsw.Connection, base: CertifiedBase) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield row number, length in bytes, and bytes of every vector of a base; None as bytes of an invalid vector."""
    name, vector = ("embedding", "vector_blob") if base.table is None else (base.table.name, base.table.vector)
    fits = f"typeof({vector}) = 'blob' AND octet_length({vector}) BETWEEN 4 AND {MAX_VECTOR_BYTES}"
    yield from db.execute(
        f"""SELECT rowid, ifnull(octet_length({vector}), 0), CASE WHEN {fits} THEN {vector} END
              FROM {name} NOT INDEXED ORDER BY rowid"""
    )


def _measure_vectors(vectors: Iterator[tuple[int, int, bytes | None]]) -> Iterator[list[tuple[object, ...]]]:
    """Yield values of rows of the table of vectors, in batches: row number, digest, length, norm, and flaw.

    ``vectors`` are as :func:`_read_vectors` yields them. Digest and norm of an invalid vector are None.
    """
    waiting: list[tuple[int, bytes]] = []
    others: list[tuple[object, ...]] = []
    size = 0
    for rowid, length, raw in vectors:
        if raw is None or len(raw) % 4:
            others.append((rowid, None, length, None, NO_VECTOR))
        else:
            waiting.append((rowid, raw))
            size += len(raw)
        if size >= BLOCK_BYTES or len(waiting) + len(others) >= _BATCH_ROWS:
            yield [*others, *_measure_batch(waiting)]
            waiting, others, size = [], [], 0
    yield [*others, *_measure_batch(waiting)]


def _measure_batch(batch: list[tuple[int, bytes]]) -> Iterator[tuple[object, ...]]:
    """Yield row number, digest, length in bytes, norm (None if not finite) and flaw of each vector.

    ``batch`` has the row number and the bytes of each vector.
    """
    for length in {len(raw) for _, raw in batch}:
        rows = [(rowid, raw) for rowid, raw in batch if len(raw) == length]
        numbers = np.frombuffer(b"".join(raw for _, raw in rows), dtype="<f4").reshape(len(rows), -1)
        with np.errstate(all="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", numbers, numbers, dtype=np.float64))
        cases = [~np.isfinite(norms), norms < SHORTEST_NORM, norms >= LARGEST_NORM]
        flaws = np.select(cases, [NOT_FINITE, ZERO, TOO_LARGE], USABLE).tolist()
        for (rowid, raw), norm, flaw in zip(rows, norms.tolist(), flaws, strict=True):
            digest = hashlib.blake2b(raw, digest_size=16).digest()
            yield rowid, digest, length, norm if flaw != NOT_FINITE else None, flaw


# --- reading again ---------------------------------------------------------------------------------------------------


def read_blocks(
    db: apsw.Connection, base: CertifiedBase, length: int, excluded: Any, most_rows: int = _BATCH_ROWS
) -> Iterator[tuple[Any, Any]]:
    """Yield the usable vectors of one length in blocks: an array of row numbers (int64), and a matrix of unit vectors.

    Args:
        db: the open file of the base.
        base: how the base is read.
        length: the length of the vectors in bytes.
        excluded: sorted array of the row numbers (int64) of vectors to leave out.
        most_rows: maximum number of vectors of a block.
    """
    most_rows = max(1, min(most_rows, BLOCK_BYTES // length))
    ids: list[int] = []
    raws: list[bytes] = []
    for rowid, size, raw in _read_vectors(db, base):
        if size == length and raw is not None:
            ids.append(rowid)
            raws.append(raw)
        if len(ids) == most_rows:
            yield _make_block(ids, raws, excluded)
            ids, raws = [], []
    if ids:
        yield _make_block(ids, raws, excluded)


def _make_block(rowids: list[int], vectors: list[bytes], excluded: Any) -> tuple[Any, Any]:
    """Return row numbers and vectors of norm 1, without ``excluded`` row numbers and without unusable vectors."""
    numbers = np.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)
    keys = np.array(rowids, dtype=np.int64)
    units, is_usable = unit_vectors(numbers)
    is_usable &= ~np.isin(keys, excluded)
    return keys[is_usable], units[is_usable]


def unit_vectors(vectors: Any) -> tuple[Any, Any]:
    """Scale the rows of a matrix to norm 1; also return a boolean array, which of them are usable as vectors."""
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
        is_usable = np.isfinite(norms) & (norms >= SHORTEST_NORM) & (norms < LARGEST_NORM)
        units = (vectors / np.where(is_usable, norms, 1)[:, None]).astype(np.float32)
    return units, is_usable


def read_vectors(db: apsw.Connection, base: CertifiedBase, rowids: Sequence[int]) -> Any:
    """Read the vectors with these row numbers, which have one length, as a matrix (float32)."""
    return np.frombuffer(b"".join(read_vector(db, base, rowid) for rowid in rowids), dtype="<f4").reshape(
        len(rowids), -1
    )


def read_vector(db: apsw.Connection, base: CertifiedBase, rowid: int) -> bytes:
    """Read the vector with this row number."""
    if base.table is not None:
        return base.table.vector_of(db, rowid)
    return bytes(db.execute("SELECT vector_blob FROM embedding WHERE rowid = ?", (rowid,)).get)


def read_text(db: apsw.Connection, base: CertifiedBase, rowid: int, limit: int) -> str:
    """Read the beginning of the text with this row number: at most ``limit`` characters."""
    name, column = ("search_text", "text") if base.table is None else (base.table.name, base.table.body)
    found = db.execute(
        f"SELECT CAST(substr(CAST({column} AS TEXT), 1, {limit}) AS BLOB) FROM {name} NOT INDEXED WHERE rowid = ?",
        (rowid,),
    ).get
    decode = _decode if base.table is None else make_text_decoder(db)
    return decode(found) or "" if isinstance(found, bytes) else ""


def require_readable(base: CertifiedBase, db: apsw.Connection) -> None:
    """Check that the index of a base has the tables that are read; other bases are not checked.

    Raises:
        SourceUnreadable: a table is missing, or a column hides its row numbers.
    """
    if base.table is None:
        odd = find_rowid_column(db, ("search_text", "search_unit", "embedding"))
        if odd is not None:
            raise SourceUnreadable(path=base.name, reason=tr("its column {odd} hides the row ids", odd=odd))
        for table in ("search_text", "search_unit", "embedding"):
            try:
                db.execute(f"SELECT rowid FROM {table} LIMIT 0").fetchall()
            except apsw.SQLError as error:
                raise SourceUnreadable(path=base.name, reason=error) from error
