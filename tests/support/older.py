"""Index files of older layouts, made of one of version 2, and what must not change when they are upgraded."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

#: The full-text index of version 1 goes by the implicit number of a row.
_FULL_TEXT_1 = (
    "CREATE VIRTUAL TABLE search_text_fts USING fts5 (text, content = 'search_text', content_rowid = 'rowid',"
    " tokenize = 'trigram')"
)
_OUT = "INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.rowid, old.text);"
_IN = "INSERT INTO search_text_fts (rowid, text) VALUES (new.rowid, new.text);"
_TRIGGERS_1 = (
    f"CREATE TRIGGER search_text_ai AFTER INSERT ON search_text BEGIN {_IN} END",
    f"CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN {_OUT} END",
    f"CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text BEGIN {_OUT} {_IN} END",
)
#: Statements that make an index of version 1 of one of version 2.
TO_VERSION_1 = (
    *(f"DROP TRIGGER search_text_{name}" for name in ("ai", "ad", "au")),
    "DROP TABLE search_text_fts",
    "DROP INDEX search_text_fts_rowid_uniq",
    "ALTER TABLE search_text DROP COLUMN fts_rowid",
    _FULL_TEXT_1,
    "INSERT INTO search_text_fts (search_text_fts) VALUES ('rebuild')",
    *_TRIGGERS_1,
    "UPDATE meta SET schema_version = 1",
)
TABLES = ("content", "material", "search_unit", "search_text", "embedding")


def make_version_1(path: Path) -> None:
    """Turn an index of version 2 into one of version 1."""
    with closing(apsw.Connection(str(path))) as db:
        for statement in TO_VERSION_1:
            db.execute(statement)


def renumber(path: Path) -> None:
    """Give the bodies of a version 1 index other implicit numbers, as a dump and restore does."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("UPDATE search_text SET rowid = 1000 - rowid")


def add_column(path: Path, *, numbered: int) -> None:
    """Begin an upgrade of a version 1 index and stop: the new column is there, and filled for so many bodies."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("ALTER TABLE search_text ADD COLUMN fts_rowid INTEGER")
        db.execute("UPDATE search_text SET fts_rowid = rowid WHERE rowid <= ?", (numbered,))


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of an index, without the numbers of the full-text index."""
    with closing(apsw.Connection(str(path))) as db:
        found = {}
        for table in TABLES:
            columns = [row[1] for row in db.execute(f"PRAGMA table_info('{table}')") if row[1] != "fts_rowid"]
            found[table] = db.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY 1").fetchall()
        return found


def words(path: Path, query: str) -> list[str]:
    """Return the texts that a word search finds."""
    with closing(apsw.Connection(str(path))) as db:
        rows = db.execute(
            "SELECT t.text FROM search_text_fts f JOIN search_text t ON t.fts_rowid = f.rowid"
            " WHERE search_text_fts MATCH ? ORDER BY 1",
            (f'"{query}"',),
        )
        return [str(text) for (text,) in rows]
