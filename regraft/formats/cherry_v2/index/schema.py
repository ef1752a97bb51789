"""The seven tables of the index layout, version 2 (``docs/formats/index.md``).

The statements are kept in three groups because a fresh file is filled fastest in that order: tables, rows, indexes,
full text, triggers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

#: ``meta.schema_version``. The application drops every table of a file with another one.
SCHEMA_VERSION = 2

#: The tables in the order of their foreign keys; the seventh, ``search_text_fts``, is :data:`FULL_TEXT`.
TABLES = (
    """CREATE TABLE meta (
         id INTEGER PRIMARY KEY CHECK (id = 1),
         schema_version INTEGER NOT NULL,
         base_id TEXT NOT NULL,
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE content (
         content_hash TEXT PRIMARY KEY,
         text TEXT NOT NULL,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE material (
         material_id TEXT PRIMARY KEY,
         relative_path TEXT NOT NULL UNIQUE
           CHECK (relative_path <> '' AND relative_path NOT LIKE '/%')
           CHECK (relative_path <> '.cherry' AND relative_path NOT LIKE '.cherry/%'),
         current_content_hash TEXT REFERENCES content (content_hash),
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE search_unit (
         unit_id TEXT PRIMARY KEY,
         material_id TEXT NOT NULL REFERENCES material (material_id) ON DELETE CASCADE,
         content_hash TEXT NOT NULL REFERENCES content (content_hash) ON DELETE CASCADE,
         unit_type TEXT NOT NULL CHECK (unit_type IN ('chunk')),
         unit_index INTEGER NOT NULL CHECK (unit_index >= 0),
         title TEXT,
         char_start INTEGER NOT NULL CHECK (char_start >= 0),
         char_end INTEGER NOT NULL CHECK (char_end >= char_start),
         locator_json TEXT,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE search_text (
         search_text_id TEXT PRIMARY KEY,
         target_type TEXT NOT NULL CHECK (target_type IN ('search_unit')),
         target_id TEXT NOT NULL,
         kind TEXT NOT NULL CHECK (kind IN ('body')),
         text TEXT NOT NULL,
         embedding_text_hash TEXT NOT NULL,
         fts_rowid INTEGER,
         created_at INTEGER NOT NULL)""",
    """CREATE TABLE embedding (
         embedding_text_hash TEXT PRIMARY KEY,
         vector_blob BLOB NOT NULL,
         created_at INTEGER NOT NULL)""",
)

#: The index that FTS5 reads rows through.
ROWID_INDEX = "CREATE UNIQUE INDEX search_text_fts_rowid_uniq ON search_text (fts_rowid)"

#: All indexes, :data:`ROWID_INDEX` first.
INDEXES = (
    ROWID_INDEX,
    "CREATE INDEX material_content_idx ON material (current_content_hash)",
    "CREATE UNIQUE INDEX search_unit_material_index_idx ON search_unit (material_id, unit_type, unit_index)",
    "CREATE INDEX search_unit_content_idx ON search_unit (content_hash)",
    "CREATE INDEX search_unit_material_idx ON search_unit (material_id)",
    "CREATE UNIQUE INDEX search_text_target_kind_idx ON search_text (target_type, target_id, kind)",
    "CREATE INDEX search_text_embedding_hash_idx ON search_text (embedding_text_hash)",
    "CREATE INDEX search_text_kind_idx ON search_text (kind)",
)

#: The column of the full-text index, and how its texts become words.
WORDS = "text, tokenize = 'trigram'"

FULL_TEXT = """CREATE VIRTUAL TABLE search_text_fts
    USING fts5 (text, content = 'search_text', content_rowid = 'fts_rowid', tokenize = 'trigram')"""

TRIGGERS = (
    """CREATE TRIGGER search_text_ai AFTER INSERT ON search_text
       BEGIN
         UPDATE search_text
            SET fts_rowid = 1 + ifnull((SELECT max(fts_rowid) FROM search_text), 0)
          WHERE search_text_id = new.search_text_id;
         INSERT INTO search_text_fts (rowid, text)
           SELECT fts_rowid, new.text FROM search_text WHERE search_text_id = new.search_text_id;
       END""",
    """CREATE TRIGGER search_text_ad AFTER DELETE ON search_text
       BEGIN
         INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
       END""",
    """CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text
       BEGIN
         INSERT INTO search_text_fts (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text);
         INSERT INTO search_text_fts (rowid, text) VALUES (new.fts_rowid, new.text);
       END""",
)


def keep_full_text(db: apsw.Connection) -> None:
    """Let the full-text index follow the bodies for as long as a connection is open, whatever triggers the file has.

    Those of the file do not run (:mod:`regraft.guarding`): these are the layout's own, in the temporary schema.

    Raises:
        apsw.Error: the file has no table of bodies.
    """
    for statement in TRIGGERS:
        temporary = statement.replace("CREATE TRIGGER", "CREATE TEMP TRIGGER", 1)
        db.execute(temporary.replace("ON search_text\n", "ON main.search_text\n", 1))


@contextmanager
def full_text_kept(db: apsw.Connection) -> Iterator[None]:
    """Do what :func:`keep_full_text` does, for a while."""
    keep_full_text(db)
    try:
        yield
    finally:
        for statement in TRIGGERS:
            db.execute(f"DROP TRIGGER IF EXISTS temp.{statement.split()[2]}")
