"""Whether a vector file that SQLite reads to its end is damaged (``docs/salvage.md``, "Read, and wrong all the same").

SQLite checks what ties pages and indexes together. What a row says of itself is held against the other rows: only what
few rows do, and most do not, is damage. A file whose rows are all odd was written so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.formats import json_text
from regraft.formats.cherry_v1.embedjs import VECTORS
from regraft.formats.vector_proof import likeness, measures_of
from regraft.formats.vector_table import decoder
from regraft.language import tr
from regraft.text import counted

#: The function of libSQL's vector indexes. Their trees are empty, which is no damage (``docs/formats/preview.md``).
_VECTOR_INDEX = "libsql_vector_idx"
#: SQLite is to go on until it has said all: of a vector index it has a complaint for each row.
_COMPLAINTS = 1 << 30
#: Vectors of another model have one norm, too: where so many others are this near, it is no damage. One and the same
#: filling in several vectors makes one norm as well, but a larger one than that of any model.
_OF_ANOTHER_MODEL, _NEAR, _LARGEST = 5, 1e-4, 1e4
#: Of fewer vectors no more than one in ten may be damaged, or their norms say nothing.
_FEW_VECTORS = 20


def doubt(path: Path, work: Path | None = None) -> str | None:
    """Return what contradicts the rows that SQLite reads from a vector file, for a person; None where nothing does.

    Args:
        path: the file, which a survey has read; it is opened as there.
        work: folder for a temporary copy, made only where a log or journal lies beside the file.

    Raises:
        apsw.Error, OSError: it cannot be read, or there is no room.
    """
    try:
        with sqlite.reading(path, work=work) as db:
            said = _complaint(db)
            if said is None:
                with sqlite.scratch() as scratch:
                    rows = _Rows(scratch)
                    rows.read(db)
                    said = rows.contradiction()
            return said
    except (*sqlite.CONTENT_ERRORS, apsw.IOError, UnicodeDecodeError) as error:
        return str(error)


def _complaint(db: apsw.Connection) -> str | None:
    """Return the first thing that SQLite's own check says of the file, but for what it cannot know."""
    db.create_scalar_function(_VECTOR_INDEX, lambda *_values: None, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)
    indexes = db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql LIKE ?", (f"%{_VECTOR_INDEX}%",))
    unknown = tuple(f" index {name}" for (name,) in indexes)
    try:
        said = (str(one) for (one,) in db.execute(f"PRAGMA integrity_check({_COMPLAINTS})"))
        return next((one for one in said if one != "ok" and not (unknown and one.endswith(unknown))), None)
    except apsw.SQLError:
        # There is something in the schema that this SQLite does not know.
        return None


class _Rows:
    """What the rows of a file say of themselves, and what their vectors look like."""

    def __init__(self, scratch: apsw.Connection) -> None:
        self._scratch = scratch
        scratch.execute("CREATE TABLE measured (length INTEGER, norm REAL, repeats INTEGER, is_named INTEGER)")
        #: Rows, those whose metadata name them, and those whose metadata name another row or are damaged.
        self._count = self._named = self._misnamed = 0

    def read(self, db: apsw.Connection) -> None:
        """Take every row of a file."""
        with sqlite.transaction(self._scratch):
            self._scratch.executemany("INSERT INTO measured VALUES (?, ?, ?, ?)", self._measured(db))

    def _measured(self, db: apsw.Connection) -> Iterator[tuple[int, float, int, bool]]:
        for row_id, vector, metadata in _read(db):
            is_named = None if metadata is None else _names(metadata, row_id)
            self._count += 1
            self._named += is_named is True
            self._misnamed += is_named is False
            measures = measures_of(vector)
            # What is no vector, or not finite, is for the survey to tell.
            if vector is not None and measures is not None:
                yield len(vector), measures.norm, measures.repeats, is_named is True

    def contradiction(self) -> str | None:
        """Return what few rows say and the others do not, None where there is nothing of the kind."""
        if 0 < self._misnamed < self._named:
            return tr("{rows} with metadata that are damaged, or another row's", rows=counted(self._misnamed, "row"))
        unlike = self._unlike()
        return tr("{vectors} unlike the others", vectors=counted(unlike, "vector")) if unlike else None

    def _unlike(self) -> int:
        """Return how many vectors are not like the others; 0 where they are too many to be damaged."""
        run = self._scratch.execute
        most = "SELECT length FROM measured GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"
        run(f"DELETE FROM measured WHERE length <> ({most})")
        usual = likeness(self._scratch, "measured")
        if not usual.middle:
            return 0
        # Zeros are written, too: the metadata behind them tell that nothing wrote over them.
        found = run(
            """SELECT count(*) FROM
                 (SELECT norm, repeats, is_named, count(*) OVER (PARTITION BY round(norm / ?)) AS alike FROM measured)
                WHERE CASE WHEN norm = 0 THEN NOT is_named AND ?
                           ELSE repeats > ? OR (abs(norm - ?) > ? AND (alike < ? OR norm > ?)) END""",
            (
                usual.middle * _NEAR,
                2 * self._named > self._count,
                usual.repeats,
                usual.middle,
                usual.furthest,
                _OF_ANOTHER_MODEL,
                _LARGEST,
            ),
        ).get
        whole, unlike = (int(str(one)) for one in (run("SELECT count(*) FROM measured").get, found))
        limit = whole // 2 if whole >= _FEW_VECTORS else max(1, whole // 10)
        return unlike if unlike <= limit else 0


def _read(db: apsw.Connection) -> Iterator[tuple[str | None, bytes | None, str | None]]:
    """Yield the id, the vector and the metadata of every row."""
    columns = {str(row[1]) for row in db.execute(f"PRAGMA table_info('{VECTORS.name}')")}
    texts = (
        f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" if name in columns else "NULL"
        for name in ("id", "metadata")
    )
    text = decoder(db)
    rows: Any = db.execute(
        f"SELECT {', '.join(texts)}, CASE typeof(vector) WHEN 'blob' THEN vector END FROM {VECTORS.name} NOT INDEXED"
    )
    for row_id, metadata, vector in rows:
        yield text(row_id), vector, text(metadata)


def _names(metadata: str, row_id: str | None) -> bool | None:
    """Tell whether metadata name a row; None where they name none."""
    try:
        found: Any = json_text.loads(metadata)
    except json_text.JsonProblem:
        return False
    said = found.get("id") if isinstance(found, dict) else metadata
    if not isinstance(said, str):
        return None
    # What is half a character there is U+FFFD in the column.
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace") == row_id
