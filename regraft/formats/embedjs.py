"""The v1 vector file of a base: one table ``vectors`` written by embedjs through libSQL (``docs/formats/v1.md``).

A survey reads every row once and keeps what planning needs per loader; rows are then streamed loader by loader. Both
are proof against rows of any type and against damaged files: what cannot be read is a :class:`StoreProblem`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from regraft import sqlite
from regraft.durable import NO_ROOM
from regraft.text import decode_utf8, is_blank

NEEDED_COLUMNS = ("pageContent", "uniqueLoaderId", "source", "vector")
#: Row ids kept as examples for each loader and kind of vector.
SAMPLES = 3

#: Kinds of a row's vector: the length in bytes of a usable one, or one of these.
MISSING = -1
UNSUPPORTED = -2


class StoreProblem(Exception):
    """A vector file that cannot be used; the text says why, for a person."""


@dataclass
class Tally:
    """Rows of one loader whose vectors are of one kind."""

    count: int = 0
    first_rowid: int = 0
    degenerate: int = 0
    #: Bytes of the bodies.
    body_bytes: int = 0
    samples: list[str] = field(default_factory=list)


@dataclass
class LoaderRows:
    """What a vector file holds of one loader."""

    rows: int = 0
    #: The last source that is text and not blank.
    source: str | None = None
    #: The highest number in a row id ``<loader id>_<n>``, -1 where there is none.
    highest_number: int = -1
    #: By kind: a usable length in bytes, :data:`MISSING` or :data:`UNSUPPORTED`.
    kinds: dict[int, Tally] = field(default_factory=dict)
    #: First and last rowid of every run of rows without another loader's between them, flat.
    runs: array[int] = field(default_factory=lambda: array("q"))
    _last_source: bytes | None = None

    def see_source(self, raw: bytes | None) -> None:
        """Take a row's source into account; the same bytes as the row before cost nothing."""
        if raw is None or raw == self._last_source:
            return
        self._last_source = raw
        text = decode_utf8(raw)
        if not is_blank(text):
            self.source = text


@dataclass
class Survey:
    """What a vector file holds: rows by loader, and the lengths of all usable vectors."""

    rows: int = 0
    #: By loader id; None for rows whose loader id is no text.
    loaders: dict[str | None, LoaderRows] = field(default_factory=dict)
    #: Usable vectors by length in bytes, in the order of their first rows.
    lengths: dict[int, int] = field(default_factory=dict)
    body_bytes: int = 0

    @property
    def vector_bytes(self) -> int | None:
        """Return the length in bytes that most usable vectors have (a tie goes to the first row), or None."""
        return max(self.lengths, key=self.lengths.__getitem__) if self.lengths else None


def check_file(path: Path) -> None:
    """Raise :class:`StoreProblem` where ``path`` cannot be a vector file: missing, a directory, empty."""
    try:
        if path.is_dir():
            raise StoreProblem("is a folder, not a vector file")
        if not path.exists():
            raise StoreProblem("does not exist")
        if path.stat().st_size == 0:
            raise StoreProblem("is empty (0 bytes)")
        missing = 0 if sqlite.companions(path.resolve()) else sqlite.missing_bytes(path)
        if missing:
            raise StoreProblem(f"is cut off: {missing:,} bytes are missing at its end")
    except OSError as error:
        raise StoreProblem(f"cannot be read: {error.strerror or error}") from error


def survey(path: Path, work: Path | None = None) -> Survey:
    """Read every row of the vector file once and return what it holds.

    Args:
        path: the vector file; it is opened read-only and without a trace.
        work: folder for a temporary copy, made only where a log or journal lies beside the file.

    Raises:
        StoreProblem: missing, a folder, empty, no SQLite, damaged, without the table or a column of it.
    """
    check_file(path)
    found = Survey()
    try:
        with sqlite.reading(path, vectors=True, work=work) as db:
            columns = _columns(db)
            _survey_rows(db, found, "id" in columns)
    except (apsw.Error, UnicodeDecodeError) as error:
        raise StoreProblem(f"cannot be read: {error}") from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise StoreProblem(f"cannot be read: {error.strerror or error}") from error
    return found


def _columns(db: apsw.Connection) -> set[str]:
    if not db.execute(
        "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'vectors' COLLATE NOCASE"
    ).fetchall():
        raise StoreProblem("has no table `vectors`")
    columns = {str(row[1]) for row in db.execute("PRAGMA table_info('vectors')")}
    missing = [name for name in NEEDED_COLUMNS if name not in columns]
    if missing:
        raise StoreProblem(f"has a table `vectors` without the column {', '.join(missing)}")
    return columns


def _survey_rows(db: apsw.Connection, found: Survey, has_id: bool) -> None:
    # Vectors are read whole (to see which have no direction), so that damage anywhere in a row shows here and not
    # later. Text is fetched as bytes: it may be no UTF-8.
    query = f"""
        SELECT rowid,
               CASE typeof(uniqueLoaderId) WHEN 'text' THEN CAST(uniqueLoaderId AS BLOB) END,
               CASE typeof(source) WHEN 'text' THEN CAST(source AS BLOB) END,
               {"CASE typeof(id) WHEN 'text' THEN CAST(id AS BLOB) END" if has_id else "NULL"},
               CASE WHEN octet_length(vector) > 0 IS NOT TRUE THEN {MISSING}
                    WHEN typeof(vector) <> 'blob' OR octet_length(vector) % 4 THEN {UNSUPPORTED}
                    ELSE octet_length(vector) END AS kind,
               octet_length(pageContent),
               CASE WHEN typeof(vector) = 'blob' AND octet_length(vector) > 0 AND octet_length(vector) % 4 = 0
                    THEN vec_distance_cosine(vector, vector) IS NULL ELSE 0 END
          FROM vectors NOT INDEXED
         ORDER BY rowid"""
    by_key: dict[bytes | None, LoaderRows] = {}
    key: bytes | None = b""
    loader = LoaderRows()
    loader_rows = 0
    last = -(1 << 63)
    recoded = _recoder(db)
    for rowid, raw_loader, raw_source, raw_id, kind, body_bytes, degenerate in db.execute(query):
        loader_key, source, row_id = recoded(raw_loader), recoded(raw_source), recoded(raw_id)
        if loader_key != key or loader_rows == 0:
            key = loader_key
            loader = _loader(by_key, found, key)
            loader.runs.extend((rowid, rowid))
        loader_rows += 1
        if rowid < last:
            # Ranges of rowids would then name other rows than these.
            raise StoreProblem("cannot be read: its rows are out of order")
        last = rowid
        loader.runs[-1] = rowid
        loader.rows += 1
        loader.see_source(source)
        tally = loader.kinds.get(kind)
        if tally is None:
            tally = loader.kinds[kind] = Tally(first_rowid=rowid)
        tally.count += 1
        tally.degenerate += degenerate
        tally.body_bytes += body_bytes or 0
        if len(tally.samples) < SAMPLES:
            tally.samples.append(decode_utf8(row_id) if row_id else f"rowid {rowid}")
        if row_id is not None and key is not None:
            loader.highest_number = max(loader.highest_number, _number(row_id, key))
        if kind > 0:
            found.lengths[kind] = found.lengths.get(kind, 0) + 1
        found.body_bytes += body_bytes or 0
    found.rows = loader_rows


def _recoder(db: apsw.Connection) -> Callable[[bytes | None], bytes | None]:
    """Return what makes UTF-8 of a text's bytes: a file may keep its texts as UTF-16."""
    codec = {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(str(db.execute("PRAGMA encoding").get))
    if codec is None:
        return lambda raw: raw
    return lambda raw: None if raw is None else raw.decode(codec, "replace").encode()


def _loader(by_key: dict[bytes | None, LoaderRows], found: Survey, key: bytes | None) -> LoaderRows:
    if key not in by_key:
        # Two ids of invalid UTF-8 may decode to one text: their rows then count as one loader's.
        text = None if key is None else decode_utf8(key)
        by_key[key] = found.loaders.setdefault(text, LoaderRows())
    return by_key[key]


def _number(row_id: bytes, loader: bytes) -> int:
    """Return n of a row id ``<loader id>_<n>``, or -1."""
    if not row_id.startswith(loader) or row_id[len(loader) : len(loader) + 1] != b"_":
        return -1
    digits = row_id[len(loader) + 1 :]
    return int(digits) if digits.isdigit() and len(digits) <= 15 else -1


def rows(db: apsw.Connection, runs: Iterable[tuple[int, int]], vector_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Stream (body, vector) of the rows in ``runs`` whose vector is a BLOB of that length, in rowid order.

    A NULL body is the empty text; unpaired surrogates and other invalid bytes become U+FFFD.
    """
    query = """SELECT CAST(pageContent AS BLOB), vector FROM vectors NOT INDEXED
                WHERE rowid BETWEEN ? AND ? AND typeof(vector) = 'blob' AND octet_length(vector) = ?
                ORDER BY rowid"""
    recoded = _recoder(db)
    for first, last in runs:
        for raw, vector in db.execute(query, (first, last, vector_bytes)):
            body = recoded(raw)
            yield ("" if body is None else decode_utf8(body)), vector
