"""Read tables that keep a text and a raw float32 vector in each row, as the v1 and the preview layout do.

A survey reads every row once and keeps what planning needs for each loader (in the preview layout: for each item). Rows
are then streamed loader by loader. Both accept values of any type and raise :class:`StoreProblem` for files that cannot
be read.

A survey scans the table but a stream seeks, and in a damaged file the two can return different rows. Therefore a stream
must reproduce the survey's digest of its rows (:mod:`regraft.formats.table_integrity`). Every query says ``NOT
INDEXED``: to any SQLite other than libSQL a libSQL vector index is empty, and SQLite might answer from it
(``docs/formats/preview.md``, "The vector index trap").
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import msgspec

from regraft.disk import links, sqlite, untrusted_sqlite
from regraft.disk.durable import NO_ROOM
from regraft.disk.untrusted_sqlite import ROW_NUMBERS, is_virtual
from regraft.formats import table_integrity
from regraft.formats.large_text import LARGE_BYTES, LargeText, hash_text
from regraft.formats.table_integrity import RowsDigest, digest_row
from regraft.formats.vector_checks import DEGENERATE, NON_FINITE, flaw_sql, register_functions
from regraft.formats.vector_survey import MISSING, UNSUPPORTED, StoreProblem, Surveyor, VectorSurvey, non_finite_kind
from regraft.language import join_list, tr
from regraft.text import JS_WHITESPACE, decode_utf8

#: SQL expression for the characters that JavaScript treats as white space.
SPACES_SQL = f"char({', '.join(str(ord(space)) for space in JS_WHITESPACE)})"


def check_file(path: Path) -> None:
    """Check that the file at ``path`` can be a vector file.

    Raises:
        StoreProblem: it is missing, a directory, empty or cut off.
    """
    try:
        if path.is_dir():
            raise StoreProblem(tr("is a folder, not a vector file; an older layout used folders"))
        if not path.exists():
            raise StoreProblem(tr("does not exist"))
        if path.stat().st_size == 0:
            raise StoreProblem(tr("is empty (0 bytes)"))
        missing = (
            0 if untrusted_sqlite.find_companions(links.real_path(path)) else untrusted_sqlite.count_missing_bytes(path)
        )
        if missing:
            message = tr("is truncated: the last {missing:,} bytes are missing", missing=missing)
            raise StoreProblem(message, is_damage=True)
    except OSError as error:
        raise _convert_system_error(error) from error


def convert_read_error(error: Exception) -> StoreProblem:
    """Convert an error of SQLite, or of a text that is not UTF-8, to StoreProblem; some of them count as damage."""
    is_damage = isinstance(error, (*sqlite.CONTENT_ERRORS, apsw.IOError, UnicodeDecodeError))
    return StoreProblem(tr("cannot be read: {error}", error=error), is_damage=is_damage)


def _convert_system_error(error: OSError) -> StoreProblem:
    """Convert an error of the operating system to StoreProblem; an I/O error counts as damage."""
    why = tr("cannot be read: {strerror}", strerror=error.strerror or error)
    return StoreProblem(why, is_damage=error.errno == errno.EIO)


#: Alternative SQL expressions, each with the column that it needs.
ColumnExpressions = tuple[tuple[str, str], ...]
#: First and last row id of each range.
RowIdRanges: TypeAlias = Iterable[tuple[int, int]]


class VectorTable(msgspec.Struct, frozen=True):
    """Location of a layout's chunks: a table and SQL expressions over its columns.

    None of the SQL comes from a file. For ``loader``, ``source`` and ``row_id`` there may be several expressions, each
    with the column that it needs: the first one that yields a text is used.

    Attributes:
        loader: id of the loader that the row belongs to.
        row_id: name of the row in messages; ``number`` parses the row's number from it.
        needed: columns that must exist.
        number: parses a chunk number from a row id and its loader id; None if the layout has no use for it.
        reason: reason code if the row is not migrated whatever its vector, else NULL. Such a row has no vector.
        locator: what the unit of a row keeps of the source, as JSON; None if the layout has nothing of this kind.
    """

    name: str
    loader: ColumnExpressions
    source: ColumnExpressions
    row_id: ColumnExpressions
    body: str
    vector: str
    needed: tuple[str, ...]
    number: Callable[[bytes, bytes], int] | None = None
    reason: str | None = None
    locator: str | None = None

    def survey(self, path: Path, work: Path | None = None, *, texts: bool = False) -> VectorSurvey:
        """Read every row of a file once.

        Args:
            path: the file. It is opened read-only and no file is created beside it.
            work: folder for a temporary copy, which is made only if a log or journal is beside the file.
            texts: count rows without a text separately (``RowTally.blank``).

        Raises:
            StoreProblem: the file is missing, a folder, empty, not SQLite, damaged, or lacks the table or a column. If
                the vector column exists, ``vector_bytes`` is set. A file that SQLite reads without an error is damaged
                too if its pages contradict each other.
        """
        check_file(path)
        found = VectorSurvey()
        try:
            with sqlite.open_readonly(path, vectors=True, work=work) as db:
                columns = self._columns(db)
                register_functions(db)
                self._survey_rows(db, found, columns, texts=texts)
                contradiction = table_integrity.find_contradiction(db, path, self.name, (self.body, self.vector))
                if contradiction is not None:
                    raise StoreProblem(tr("is damaged: {said}", said=contradiction), found.vector_bytes, is_damage=True)
        except (apsw.Error, UnicodeDecodeError) as error:
            if sqlite.is_write_failure(error):
                raise
            raise convert_read_error(error) from error
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            raise _convert_system_error(error) from error
        return found

    def rows(
        self,
        db: apsw.Connection,
        runs: RowIdRanges,
        vector_bytes: int,
        digest: int | None = None,
        *,
        any_number: bool = False,
    ) -> Iterator[tuple[str, bytes]]:
        """Stream (body, vector) of the rows in ``runs`` whose vector is a BLOB of ``vector_bytes``, ordered by row id.

        A NULL body becomes the empty text; unpaired surrogates and other invalid bytes become U+FFFD. Vectors that
        contain a NaN or an infinity are left out unless ``any_number`` is set.

        Raises:
            RowsDiffer: at the end, if the digest of the rows differs from ``digest``, which the survey computed.
        """
        length = f"typeof({self.vector}) = 'blob' AND octet_length({self.vector}) = ?3"
        fits = length if any_number else self._fits
        query = f"""SELECT rowid, CAST({self.body} AS BLOB), {self.vector} FROM {self.name} NOT INDEXED
                     WHERE rowid BETWEEN ?1 AND ?2 AND {fits} ORDER BY rowid"""
        return self._read_runs(db, query, runs, vector_bytes, digest)

    def locators(
        self, db: apsw.Connection, runs: RowIdRanges, vector_bytes: int | None, *, texts: bool
    ) -> Iterator[str | None]:
        """Stream the locator of each row that :meth:`rows` streams, or with ``texts`` :meth:`rows_and_texts`.

        A locator says as JSON where the row came from; None if the layout has none.
        """
        fits = f"({self._fits} OR {self._has_text})" if texts else self._fits
        query = f"""SELECT {self.locator or "NULL"} FROM {self.name} NOT INDEXED
                     WHERE rowid BETWEEN ?1 AND ?2 AND {fits} ORDER BY rowid"""
        register_functions(db)
        for first, last in runs:
            for (locator,) in db.execute(query, (first, last, vector_bytes)):
                yield None if locator is None else str(locator)

    def _read_runs(
        self,
        db: apsw.Connection,
        query: str,
        runs: RowIdRanges,
        vector_bytes: int | None,
        digest: int | None,
    ) -> Iterator[tuple[str, Any]]:
        """Run a query for each range of row ids and yield (text, vector); the query returns row id, text and vector.

        Raises RowsDiffer at the end if the digest of the rows is not ``digest``. ``vector_bytes`` is a parameter of the
        query.
        """
        register_functions(db)
        text, read = make_text_decoder(db), RowsDigest()
        for first, last in runs:
            for rowid, body, vector in db.execute(query, (first, last, vector_bytes)):
                read.add(rowid, body, len(body or b""), vector)
                yield text(body) or "", vector
        read.demand(digest, self.name)

    @contextmanager
    def every_row(self, path: Path) -> Iterator[tuple[int, Iterator[tuple[str, bytes]]]]:
        """Open a file; yield the most common vector length in bytes, and the rows that have such a vector.

        The rows are (body, vector) as in :meth:`rows`.

        Raises:
            StoreProblem: see :meth:`survey`; also raised by the rows.
        """
        check_file(path)
        try:
            with sqlite.open_readonly(path, vectors=True) as db:
                self._columns(db)
                size = self.most_common_length(db)
                everywhere = [(-(1 << 63), (1 << 63) - 1)]
                yield size or 0, iter(()) if size is None else self.rows(db, everywhere, size)
        except (apsw.Error, UnicodeDecodeError) as error:
            if sqlite.is_write_failure(error):
                raise
            raise StoreProblem(tr("cannot be read: {error}", error=error)) from error

    def text_hashes(self, db: apsw.Connection, runs: RowIdRanges, vector_bytes: int) -> Iterator[tuple[int, str]]:
        """Stream (row id, hash of the body) of the rows that :meth:`rows` streams, reading large bodies in pieces."""
        body, is_large = self.body, f"octet_length({self.body}) > {LARGE_BYTES}"
        query = f"""SELECT rowid, CASE WHEN {is_large} THEN NULL ELSE CAST({body} AS BLOB) END, {is_large}
                      FROM {self.name} NOT INDEXED WHERE rowid BETWEEN ?1 AND ?2 AND {self._fits} ORDER BY rowid"""
        register_functions(db)
        text, codec = make_text_decoder(db), text_codec(db)
        for first, last in runs:
            for rowid, small, large in db.execute(query, (first, last, vector_bytes)):
                whole = (
                    LargeText(db=db, table=self.name, column=body, rowid=rowid, codec=codec) if large else text(small)
                )
                yield rowid, hash_text(whole or "")

    def vector_of(self, db: apsw.Connection, rowid: int) -> bytes:
        """Read the vector of the row with a row id that :meth:`text_hashes` returned."""
        found: Any = db.execute(f"SELECT {self.vector} FROM {self.name} NOT INDEXED WHERE rowid = ?", (rowid,)).get
        return bytes(found)

    def large_rows(
        self,
        db: apsw.Connection,
        runs: RowIdRanges,
        vector_bytes: int | None,
        digest: int | None = None,
        *,
        texts: bool,
    ) -> Iterator[tuple[str | LargeText, bytes | None]]:
        """Stream the rows of :meth:`rows`, or with ``texts`` of :meth:`rows_and_texts`; large bodies are not loaded.

        A large body is a :class:`LargeText`, to be read in pieces. Only its length is part of the digest.

        Raises:
            RowsDiffer: as in :meth:`rows`.
        """
        fits = self._fits
        wanted = f"({fits} OR {self._has_text})" if texts else fits
        body, is_large = self.body, f"octet_length({self.body}) > {LARGE_BYTES}"
        query = f"""SELECT rowid, CASE WHEN {is_large} THEN NULL ELSE CAST({body} AS BLOB) END, {is_large},
                           CASE WHEN {fits} THEN {self.vector} END, octet_length({body})
                      FROM {self.name} NOT INDEXED WHERE rowid BETWEEN ?1 AND ?2 AND {wanted} ORDER BY rowid"""
        register_functions(db)
        text, codec, read = make_text_decoder(db), text_codec(db), RowsDigest()
        for first, last in runs:
            for rowid, small, large, vector, size in db.execute(query, (first, last, vector_bytes)):
                read.add(rowid, small, size if large else len(small or b""), vector)
                yield (
                    LargeText(db=db, table=self.name, column=body, rowid=rowid, codec=codec)
                    if large
                    else text(small) or "",
                    vector,
                )
        read.demand(digest, self.name)

    def rows_and_texts(
        self,
        db: apsw.Connection,
        runs: RowIdRanges,
        vector_bytes: int | None,
        digest: int | None = None,
    ) -> Iterator[tuple[str, bytes | None]]:
        """Stream (body, vector) as :meth:`rows` does, and (body, None) for rows that have only a text.

        Args:
            db: the open file.
            runs: ranges of row ids.
            vector_bytes: length of the vectors; None to stream all rows as texts.
            digest: the survey's digest of these rows; rows without a vector are digested by their text alone.

        Raises:
            RowsDiffer: as in :meth:`rows`.
        """
        fits = self._fits
        query = f"""SELECT rowid, CAST({self.body} AS BLOB), CASE WHEN {fits} THEN {self.vector} END
                      FROM {self.name} NOT INDEXED
                     WHERE rowid BETWEEN ?1 AND ?2 AND ({fits} OR {self._has_text}) ORDER BY rowid"""
        return self._read_runs(db, query, runs, vector_bytes, digest)

    @property
    def _fits(self) -> str:
        """SQL condition: the vector of a row is a BLOB of ``?3`` bytes and all its numbers are finite."""
        return (
            f"CASE WHEN typeof({self.vector}) = 'blob' AND octet_length({self.vector}) = ?3"
            f" THEN {flaw_sql(self.vector)} < {NON_FINITE} ELSE 0 END"
        )

    @property
    def _has_text(self) -> str:
        """SQL condition: the row has a text that is not blank. NULL if the body is NULL."""
        return f"ltrim(CAST({self.body} AS TEXT), {SPACES_SQL}) <> ''"

    def texts(self, db: apsw.Connection, wanted: Sequence[ColumnExpressions]) -> Iterator[tuple[str | None, ...]]:
        """Stream one text per entry of ``wanted`` for every row, ordered by row id.

        Each entry lists alternative expressions; the first one that is a text is used, or None. Invalid bytes become
        U+FFFD.

        Raises:
            StoreProblem: the table or a column is missing.
            apsw.Error: damage was found while reading.
        """
        columns = self._columns(db)
        texts = ", ".join(_text_sql(alternatives, columns) for alternatives in wanted)
        text = make_text_decoder(db)
        for row in db.execute(f"SELECT {texts} FROM {self.name} NOT INDEXED ORDER BY rowid"):
            yield tuple(map(text, row))

    def _columns(self, db: apsw.Connection) -> Sequence[str]:
        """Return the names of the table's columns, in order, after checking that the table can be read safely.

        Raises:
            StoreProblem: the table or a needed column is missing, or the table cannot be read safely.
        """
        self._check_plain_table(db)
        columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{self.name}')")]
        if any(name.lower() in ROW_NUMBERS for name in columns):
            raise StoreProblem(tr("has a table `{name}` with a column that hides the row ids", name=self.name))
        missing = [name for name in self.needed if name not in columns]
        if missing:
            length = self.most_common_length(db) if self.vector in columns else None
            raise StoreProblem(
                tr("has a table `{name}` without the column {missing}", name=self.name, missing=join_list(missing)),
                length,
                may_be_damage=True,
            )
        return columns

    def _check_plain_table(self, db: apsw.Connection) -> None:
        """Refuse views and virtual tables: reading one would run code that an untrusted file defines."""
        found = db.execute(
            "SELECT type, CAST(sql AS BLOB) FROM sqlite_master WHERE type IN ('table', 'view')"
            " AND name = ? COLLATE NOCASE",
            (self.name,),
        ).fetchone()
        if found is None:
            raise StoreProblem(tr("has no table `{name}`", name=self.name), may_be_damage=True)
        statement: Any = found[1]
        if found[0] == "view" or is_virtual((statement or b"").decode("utf-8", "replace")):
            raise StoreProblem(
                tr("has a view or virtual table named `{name}`, which regraft does not read", name=self.name)
            )

    def most_common_length(self, db: apsw.Connection) -> int | None:
        """Find the most common vector length in bytes; in a tie, that of the earliest row. None without vectors."""
        length = f"octet_length({self.vector})"
        query = f"""SELECT {length} FROM {self.name} NOT INDEXED
                     WHERE typeof({self.vector}) = 'blob' AND {length} > 0 AND {length} % 4 = 0
                     GROUP BY 1 ORDER BY count(*) DESC, min(rowid) LIMIT 1"""
        return next((int(str(found)) for (found,) in db.execute(query)), None)

    def _survey_rows(self, db: apsw.Connection, found: VectorSurvey, columns: Sequence[str], *, texts: bool) -> None:
        """Count all rows of the table in ``found``. ``texts``: also count the rows without a text separately."""
        surveyor = Surveyor(found, self.number)
        recoded = _make_recoder(db)
        for rowid, loader, source, row_id, length, body_bytes, flaw, has_text, reason, body, vector in db.execute(
            self._survey_query(columns, texts=texts)
        ):
            surveyor.start_row(rowid, recoded(loader), recoded(source), recoded(row_id))
            size = body_bytes if body is None else len(body)
            digests = digest_row(rowid, body, size, vector), digest_row(rowid, body, size, None) if texts else 0
            if reason is None:
                kind = non_finite_kind(length) if flaw == NON_FINITE else length
                tally = surveyor.count_vector(rowid, kind, body_bytes, flaw == DEGENERATE, digests)
            else:
                tally = surveyor.count_refused(rowid, str(reason), body_bytes, digests)
            if texts:
                is_there = bool(has_text)
                surveyor.record_text(tally, rowid, body_bytes, flaw == DEGENERATE, digests, is_there=is_there)

    def _survey_query(self, columns: Sequence[str], *, texts: bool) -> str:
        """Build the query that reads each row completely, with the flaw of its vector.

        ``columns`` are the columns of the table. ``texts``: also select whether the row has a text.
        """
        # Vectors are read completely, so that damage anywhere in a row shows now and not later. Their finiteness is
        # checked number by number only if sqlite-vec finds no direction. Texts are read as bytes because they may be
        # invalid UTF-8.
        vector, length = self.vector, f"octet_length({self.vector})"
        texts_sql = (_text_sql(alternatives, columns) for alternatives in (self.loader, self.source, self.row_id))
        # SQLite only notices that the columns of a row do not add up to its length if it reads the last column: one
        # wrong length shifts every column after it.
        last = untrusted_sqlite.quote_name(columns[-1])
        return f"""
            SELECT rowid, {", ".join(texts_sql)},
                   CASE WHEN {length} > 0 IS NOT TRUE THEN {MISSING}
                        WHEN typeof({vector}) <> 'blob' OR {length} % 4 THEN {UNSUPPORTED}
                        ELSE {length} END AS kind,
                   coalesce(octet_length({self.body}), 0),
                   CASE WHEN typeof({vector}) = 'blob' AND {length} > 0 AND {length} % 4 = 0
                        THEN {flaw_sql(vector)} ELSE 0 END,
                   {self._has_text if texts else "NULL"},
                   {self.reason or "NULL"},
                   CASE WHEN octet_length({self.body}) <= {LARGE_BYTES} THEN CAST({self.body} AS BLOB) END,
                   CASE WHEN typeof({vector}) = 'blob' THEN {vector} END
              FROM {self.name} NOT INDEXED
             WHERE typeof({last}) <> ''
             ORDER BY rowid"""


def _text_sql(alternatives: ColumnExpressions, columns: Sequence[str]) -> str:
    """Build SQL for the bytes of the first expression that is a text; those whose column is missing are skipped."""
    texts = [
        f"CASE typeof({expression}) WHEN 'text' THEN CAST({expression} AS BLOB) END"
        for column, expression in alternatives
        if column in columns
    ]
    return f"coalesce({', '.join(texts)}, NULL)" if texts else "NULL"


def make_text_decoder(db: apsw.Connection) -> Callable[[bytes | None], str | None]:
    """Make a function that decodes the bytes of a text in this file. Invalid bytes become U+FFFD; None stays None."""
    recoded = _make_recoder(db)

    def decoded(raw: bytes | None) -> str | None:
        """Decode the bytes of a text; None stays None."""
        coded = recoded(raw)
        return None if coded is None else decode_utf8(coded)

    return decoded


def _make_recoder(db: apsw.Connection) -> Callable[[bytes | None], bytes | None]:
    """Make a function that converts the bytes of a text in this file, which may be UTF-16, to UTF-8."""
    codec = text_codec(db)
    if codec is None:
        return lambda raw: raw
    return lambda raw: None if raw is None else raw.decode(codec, "replace").encode()


def text_codec(db: apsw.Connection) -> str | None:
    """Return the Python codec of the file's texts, or None for UTF-8."""
    return {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(str(db.execute("PRAGMA encoding").get))
