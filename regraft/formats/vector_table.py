"""A table with a text and a raw float32 vector in every row, as both the v1 and the preview layout keep their chunks.

A survey reads every row once and keeps what planning needs per loader (in the preview layout: per item); rows are then
streamed loader by loader. Both are proof against rows of any type and against damaged files: what cannot be read is a
:class:`StoreProblem`. The survey scans the table and the streams seek, which gives different rows where a file is
damaged: a stream has to reproduce the survey's digest of its rows (:mod:`regraft.formats.table_integrity`). Every query says
``NOT INDEXED``: a vector index of libSQL is empty to any other SQLite, which would answer from it
(``docs/formats/preview.md``, "The vector index trap").
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

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

#: White space as SQL.
SPACES_SQL = f"char({', '.join(str(ord(space)) for space in JS_WHITESPACE)})"


def check_file(path: Path) -> None:
    """Raise :class:`StoreProblem` where ``path`` cannot be a vector file: missing, a directory, empty."""
    try:
        if path.is_dir():
            raise StoreProblem(tr("is a folder, as a still older layout had it, not a vector file"))
        if not path.exists():
            raise StoreProblem(tr("does not exist"))
        if path.stat().st_size == 0:
            raise StoreProblem(tr("is empty (0 bytes)"))
        missing = (
            0 if untrusted_sqlite.find_companions(links.real_path(path)) else untrusted_sqlite.count_missing_bytes(path)
        )
        if missing:
            said = tr("is cut off: {missing:,} bytes are missing at its end", missing=missing)
            raise StoreProblem(said, is_damage=True)
    except OSError as error:
        raise _disk_problem(error) from error


def _disk_problem(error: OSError) -> StoreProblem:
    why = tr("cannot be read: {strerror}", strerror=error.strerror or error)
    return StoreProblem(why, is_damage=error.errno == errno.EIO)


#: SQL expressions, each with the column that it needs.
ColumnExpressions = tuple[tuple[str, str], ...]


class VectorTable(msgspec.Struct, frozen=True):
    """Where a layout keeps its chunks: a table and the SQL expressions over its columns.

    All of it is our own text, never a file's. ``loader`` says whose row it is; ``row_id`` names it for a person, and
    carries its number where ``number`` reads one out of it. Where a column may be missing there are several
    expressions, each with the column that it needs: the first that gives a text counts. ``needed`` are the columns that
    must be there. ``reason`` is why a row is not carried, NULL where nothing but its vector decides; such a row has no
    vector.
    """

    name: str
    loader: ColumnExpressions
    source: ColumnExpressions
    row_id: ColumnExpressions
    body: str
    vector: str
    needed: tuple[str, ...]
    #: Reads a chunk's number out of a row id and its loader id; None where the layout has no use for one.
    number: Callable[[bytes, bytes], int] | None = None
    reason: str | None = None

    def survey(self, path: Path, work: Path | None = None, *, texts: bool = False) -> VectorSurvey:
        """Read every row of a file once and return what it holds.

        Args:
            path: the file; it is opened read-only and without a trace.
            work: folder for a temporary copy, made only where a log or journal lies beside the file.
            texts: whether rows without a text are told from the others (``Tally.blank``).

        Raises:
            StoreProblem: missing, a folder, empty, no SQLite, damaged, without the table or a column of it; where the
                column of vectors is there, with their length. Damaged is also a file that SQLite reads to its end and
                whose pages do not agree on which rows there are.
        """
        check_file(path)
        found = VectorSurvey()
        try:
            with sqlite.open_readonly(path, vectors=True, work=work) as db:
                columns = self._columns(db)
                register_functions(db)
                self._survey_rows(db, found, columns, texts=texts)
                self._demand_all_rows(db, path, found)
        except (apsw.Error, UnicodeDecodeError) as error:
            if sqlite.is_write_failure(error):
                raise
            is_damage = isinstance(error, (*sqlite.CONTENT_ERRORS, apsw.IOError, UnicodeDecodeError))
            raise StoreProblem(tr("cannot be read: {error}", error=error), is_damage=is_damage) from error
        except OSError as error:
            if error.errno in NO_ROOM:
                raise
            raise _disk_problem(error) from error
        return found

    def rows(
        self,
        db: apsw.Connection,
        runs: Iterable[tuple[int, int]],
        vector_bytes: int,
        digest: int | None = None,
        *,
        any_number: bool = False,
    ) -> Iterator[tuple[str, bytes]]:
        """Stream (body, vector) of the rows in ``runs`` whose vector is a BLOB of that length, in rowid order.

        A NULL body is the empty text; unpaired surrogates and other invalid bytes become U+FFFD. Vectors with a NaN or
        an infinity are left out, but for ``any_number``.

        Raises:
            RowsDiffer: at the end, where ``digest``, that of these rows by the survey, is another one.
        """
        length = f"typeof({self.vector}) = 'blob' AND octet_length({self.vector}) = ?3"
        fits = length if any_number else self._fits
        query = f"""SELECT rowid, CAST({self.body} AS BLOB), {self.vector} FROM {self.name} NOT INDEXED
                     WHERE rowid BETWEEN ?1 AND ?2 AND {fits} ORDER BY rowid"""
        register_functions(db)
        text, read = make_text_decoder(db), RowsDigest()
        for first, last in runs:
            for rowid, body, vector in db.execute(query, (first, last, vector_bytes)):
                read.add(rowid, body, len(body or b""), vector)
                yield text(body) or "", vector
        read.demand(digest, self.name)

    def text_hashes(
        self, db: apsw.Connection, runs: Iterable[tuple[int, int]], vector_bytes: int
    ) -> Iterator[tuple[int, str]]:
        """Stream the rowid and the hash of the body of every row that :meth:`rows` streams, no large body whole."""
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
        """Return the vector of one of the rows that :meth:`rows` streams."""
        found: Any = db.execute(f"SELECT {self.vector} FROM {self.name} NOT INDEXED WHERE rowid = ?", (rowid,)).get
        return bytes(found)

    def large_rows(
        self,
        db: apsw.Connection,
        runs: Iterable[tuple[int, int]],
        vector_bytes: int | None,
        digest: int | None = None,
        *,
        texts: bool,
    ) -> Iterator[tuple[str | LargeText, bytes | None]]:
        """Stream what :meth:`rows` streams, or :meth:`rows_and_texts`; a large body is read in pieces.

        Of a large body only the length counts for the digest.

        Raises:
            RowsDiffer: as by :meth:`rows`.
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
        runs: Iterable[tuple[int, int]],
        vector_bytes: int | None,
        digest: int | None = None,
    ) -> Iterator[tuple[str, bytes | None]]:
        """Stream (body, vector) as :meth:`rows` does, and the rows that have a text alone, with None for a vector.

        Args:
            db: the file.
            runs: ranges of rowids.
            vector_bytes: the length of the vectors; with None every row counts for its text alone.
            digest: of these rows by the survey, those that come without a vector by their text alone.

        Raises:
            RowsDiffer: as by :meth:`rows`.
        """
        fits = self._fits
        query = f"""SELECT rowid, CAST({self.body} AS BLOB), CASE WHEN {fits} THEN {self.vector} END
                      FROM {self.name} NOT INDEXED
                     WHERE rowid BETWEEN ?1 AND ?2 AND ({fits} OR {self._has_text}) ORDER BY rowid"""
        register_functions(db)
        text, read = make_text_decoder(db), RowsDigest()
        for first, last in runs:
            for rowid, body, vector in db.execute(query, (first, last, vector_bytes)):
                read.add(rowid, body, len(body or b""), vector)
                yield text(body) or "", vector
        read.demand(digest, self.name)

    @property
    def _fits(self) -> str:
        """Return SQL that tells whether a row's vector is a BLOB of ``?3`` bytes whose numbers are all finite."""
        return (
            f"CASE WHEN typeof({self.vector}) = 'blob' AND octet_length({self.vector}) = ?3"
            f" THEN {flaw_sql(self.vector)} < {NON_FINITE} ELSE 0 END"
        )

    @property
    def _has_text(self) -> str:
        """Return SQL that tells whether a row has a text that is not blank; NULL where it has none."""
        return f"ltrim(CAST({self.body} AS TEXT), {SPACES_SQL}) <> ''"

    def texts(self, db: apsw.Connection, wanted: Sequence[ColumnExpressions]) -> Iterator[tuple[str | None, ...]]:
        """Stream some texts of every row, in rowid order: for each of ``wanted`` the first expression that is text.

        None where none is. Invalid bytes become U+FFFD.

        Raises:
            StoreProblem: the table or a column of it is missing.
            apsw.Error: damage, found while reading.
        """
        columns = self._columns(db)
        texts = ", ".join(_text_of(some, columns) for some in wanted)
        text = make_text_decoder(db)
        for row in db.execute(f"SELECT {texts} FROM {self.name} NOT INDEXED ORDER BY rowid"):
            yield tuple(map(text, row))

    def _columns(self, db: apsw.Connection) -> Sequence[str]:
        """Return the names of the table's columns, in their order."""
        self._demand_plain_table(db)
        columns = [str(row[1]) for row in db.execute(f"PRAGMA table_info('{self.name}')")]
        if any(name.lower() in ROW_NUMBERS for name in columns):
            raise StoreProblem(
                tr("has a table `{name}` with a column in the place of the numbers of its rows", name=self.name)
            )
        missing = [name for name in self.needed if name not in columns]
        if missing:
            length = self.most_common_length(db) if self.vector in columns else None
            raise StoreProblem(
                tr("has a table `{name}` without the column {missing}", name=self.name, missing=join_list(missing)),
                length,
                may_be_damage=True,
            )
        return columns

    def _demand_plain_table(self, db: apsw.Connection) -> None:
        """Refuse a view and a virtual table: reading one would run what a stranger defined."""
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
                tr("has something else in the place of its table `{name}`, which is not read", name=self.name)
            )

    def most_common_length(self, db: apsw.Connection) -> int | None:
        """Return the length in bytes that most usable vectors have (a tie goes to the first row), or None."""
        length = f"octet_length({self.vector})"
        query = f"""SELECT {length} FROM {self.name} NOT INDEXED
                     WHERE typeof({self.vector}) = 'blob' AND {length} > 0 AND {length} % 4 = 0
                     GROUP BY 1 ORDER BY count(*) DESC, min(rowid) LIMIT 1"""
        return next((int(str(found)) for (found,) in db.execute(query)), None)

    def _survey_rows(self, db: apsw.Connection, found: VectorSurvey, columns: Sequence[str], *, texts: bool) -> None:
        seen = Surveyor(found, self.number)
        recoded = _recoder(db)
        for rowid, loader, source, row_id, length, body_bytes, flaw, has_text, reason, body, vector in db.execute(
            self._survey_query(columns, texts=texts)
        ):
            seen.row(rowid, recoded(loader), recoded(source), recoded(row_id))
            size = body_bytes if body is None else len(body)
            digests = digest_row(rowid, body, size, vector), digest_row(rowid, body, size, None) if texts else 0
            if reason is None:
                kind = non_finite_kind(length) if flaw == NON_FINITE else length
                tally = seen.vector(rowid, kind, body_bytes, flaw == DEGENERATE, digests)
            else:
                tally = seen.refused(rowid, str(reason), body_bytes, digests)
            if texts:
                is_there = bool(has_text)
                seen.text(tally, rowid, body_bytes, flaw == DEGENERATE, digests, is_there=is_there)

    def _demand_all_rows(self, db: apsw.Connection, path: Path, found: VectorSurvey) -> None:
        """Refuse a file whose pages do not agree on which rows there are."""
        said = table_integrity.find_contradiction(db, path, self.name, (self.body, self.vector))
        if said is not None:
            raise StoreProblem(tr("is damaged: {said}", said=said), found.vector_bytes, is_damage=True)

    def _survey_query(self, columns: Sequence[str], *, texts: bool) -> str:
        # Vectors are read whole (to see which have no direction), so that damage anywhere in a row shows here and not
        # later. One with a NaN or an infinity has none either: only of these few the numbers are looked at. Text is
        # fetched as bytes: it may be no UTF-8.
        vector, length = self.vector, f"octet_length({self.vector})"
        told = (_text_of(some, columns) for some in (self.loader, self.source, self.row_id))
        # Only where it reads the last column, SQLite sees that columns take more or less than there is of a row: one
        # wrong length shifts every column behind it.
        last = untrusted_sqlite.quote_name(columns[-1])
        return f"""
            SELECT rowid, {", ".join(told)},
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


def _text_of(some: ColumnExpressions, columns: Sequence[str]) -> str:
    """Return SQL for the bytes of the first expression that is text; those without their column are left out."""
    texts = [
        f"CASE typeof({expression}) WHEN 'text' THEN CAST({expression} AS BLOB) END"
        for column, expression in some
        if column in columns
    ]
    return f"coalesce({', '.join(texts)}, NULL)" if texts else "NULL"


def make_text_decoder(db: apsw.Connection) -> Callable[[bytes | None], str | None]:
    """Return what makes text of a text's bytes; invalid ones become U+FFFD, and None stays None."""
    recoded = _recoder(db)

    def decoded(raw: bytes | None) -> str | None:
        coded = recoded(raw)
        return None if coded is None else decode_utf8(coded)

    return decoded


def _recoder(db: apsw.Connection) -> Callable[[bytes | None], bytes | None]:
    """Return what makes UTF-8 of a text's bytes: a file may keep its texts as UTF-16."""
    codec = text_codec(db)
    if codec is None:
        return lambda raw: raw
    return lambda raw: None if raw is None else raw.decode(codec, "replace").encode()


def text_codec(db: apsw.Connection) -> str | None:
    """Return in what a file keeps its texts; None for UTF-8."""
    return {"UTF-16le": "utf-16-le", "UTF-16be": "utf-16-be"}.get(str(db.execute("PRAGMA encoding").get))
