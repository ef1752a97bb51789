"""The rows of an index file beside it, in temporary tables, where they are mended before any of them is written.

The tables hold ids, hashes and numbers, no texts but those that become others, and no vectors: a file of any size is
mended in little memory, and a dry run counts on them exactly what a real run then writes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import apsw
import msgspec

#: Columns have no type, so that damaged values stay what they are.
_TABLES = (
    # Texts that are not what their hash says; state: restored, rekeyed or left.
    "m_content (rid INTEGER PRIMARY KEY, key, own_key TEXT, state TEXT DEFAULT 'left', new_key TEXT, text TEXT)",
    # Every key that a text is going to have; is_whole: units can be cut from it.
    "m_known (rid INTEGER PRIMARY KEY, key, is_whole INTEGER)",
    "m_material (rid INTEGER PRIMARY KEY, id, content, new_content)",
    """m_unit (rid INTEGER PRIMARY KEY, id, material, content, type, idx, char_start, char_end, was_content, was_idx,
         follows INTEGER, touched INTEGER DEFAULT 0, new_id TEXT)""",
    """m_body (rid INTEGER PRIMARY KEY, id, type, target, kind, hash, number, unit INTEGER, bad INTEGER DEFAULT 0,

         is_new INTEGER DEFAULT 0, linked INTEGER DEFAULT 0, text TEXT, new_hash TEXT, new_target TEXT,
         new_id TEXT, new_number INTEGER)""",
    "m_vector (rid INTEGER PRIMARY KEY, flaw TEXT, bytes INTEGER)",
)
UNIT_KEY = " || ' ' || ".join(("material", "content", "type", "idx", "char_start", "char_end"))
#: The id that a unit has by its fields; NULL where one of them is.
DERIVED = f"sha256_hex(CAST({UNIT_KEY} AS BLOB))"
_FILL = (
    "INSERT INTO temp.m_material (rid, id, content) SELECT rowid, material_id, current_content_hash FROM main.material",
    """INSERT INTO temp.m_unit (rid, id, material, content, type, idx, char_start, char_end, was_content, was_idx)
       SELECT rowid, unit_id, material_id, content_hash, unit_type, unit_index, char_start, char_end, content_hash,
              unit_index FROM main.search_unit""",
    f"UPDATE temp.m_unit SET follows = {DERIVED} IS id",
    """INSERT INTO temp.m_body (rid, id, type, target, kind, hash, number)
       SELECT rowid, search_text_id, target_type, target_id, kind, embedding_text_hash, fts_rowid
         FROM main.search_text""",
    "CREATE INDEX temp.m_material_id ON m_material (id)",
    "CREATE INDEX temp.m_unit_id ON m_unit (id)",
    "CREATE INDEX temp.m_unit_content ON m_unit (content)",
    "CREATE INDEX temp.m_unit_material ON m_unit (material)",
    """UPDATE temp.m_body SET unit = (SELECT u.rid FROM temp.m_unit u WHERE u.id = m_body.target)
        WHERE type = 'search_unit' AND kind = 'body'""",
    "CREATE INDEX temp.m_body_unit ON m_body (unit)",
)


class Job(msgspec.Struct):
    """One file that is being mended: what is wanted, and what came of it so far."""

    db: apsw.Connection
    #: Findings that are to be mended.
    wanted: frozenset[str]
    #: Findings that the audit has of this file.
    found: frozenset[str]
    #: How many rows each action changes.
    done: Counter[str] = msgspec.field(default_factory=Counter)
    #: How many rows stay as they are, by finding and reason.
    left: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)

    def wants(self, name: str) -> bool:
        """Tell whether a finding is there and to be mended."""
        return name in self.wanted and name in self.found

    def change(self, action: str, sql: str) -> None:
        """Change rows of the temporary tables and count them."""
        self.db.execute(sql)
        self.done[action] += self.db.changes()

    def leave(self, finding: str, reason: str, count: int = 1) -> None:
        """Count rows that stay as they are."""
        if count and finding in self.wanted:
            self.left[finding, reason] += count

    def count(self, sql: str) -> int:
        """Return the one number that a query gives."""
        return int(self.db.execute(sql).get or 0)


def digest(raw: bytes) -> str:
    """Return the hash of a text's bytes, as the layout has it."""
    return hashlib.sha256(raw).hexdigest()


def text_of(raw: object) -> str | None:
    """Return bytes as text, None where they are none."""
    try:
        return raw.decode() if isinstance(raw, bytes) else None
    except UnicodeDecodeError:
        return None


def lay_out(db: apsw.Connection) -> None:
    """Put the rows of an open index file into fresh temporary tables.

    Raises:
        apsw.Error: the file is damaged, or there is no room for temporary tables.
    """
    functions: dict[str, Callable[..., Any]] = {
        "sha256_hex": lambda raw: digest(raw) if isinstance(raw, bytes) else None,
        "is_text": lambda raw: text_of(raw) is not None,
    }
    for name, function in functions.items():
        db.create_scalar_function(name, function, 1, deterministic=True)
    for table in _TABLES:
        db.execute(f"DROP TABLE IF EXISTS temp.{table.partition(' ')[0]}")
        db.execute(f"CREATE TEMP TABLE {table}")
    for statement in _FILL:
        db.execute(statement)


#: Ids and numbers are unique: rows that get another one first get one that no other row has.
_WRITE = (
    "PRAGMA defer_foreign_keys = ON",
    "UPDATE main.content SET text = m.text FROM temp.m_content m WHERE m.rid = content.rowid AND m.state = 'restored'",
    """INSERT OR IGNORE INTO main.content (content_hash, text, created_at)
       SELECT m.new_key, ifnull(m.text, CAST(c.text AS TEXT)), c.created_at
         FROM temp.m_content m JOIN main.content c ON c.rowid = m.rid WHERE m.state = 'rekeyed' ORDER BY m.rid""",
    """UPDATE main.search_unit
          SET unit_id = 'regraft ' || search_unit.rowid, unit_index = search_unit.rowid + 1099511627776
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND (m.new_id IS NOT NULL OR m.touched)""",
    """UPDATE main.search_unit
          SET unit_id = ifnull(m.new_id, m.id), unit_index = m.idx, char_start = m.char_start, char_end = m.char_end
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND (m.new_id IS NOT NULL OR m.touched)""",
    # A reference that leads nowhere and stays so must not be written: SQLite refuses it as if it were new.
    """UPDATE main.search_unit SET content_hash = m.content
         FROM temp.m_unit m WHERE m.rid = search_unit.rowid AND m.content IS NOT m.was_content""",
    """UPDATE main.material SET current_content_hash = m.new_content
         FROM temp.m_material m WHERE m.rid = material.rowid AND m.new_content IS NOT NULL""",
    """DELETE FROM main.content WHERE rowid IN (SELECT rid FROM temp.m_content WHERE state = 'rekeyed')
          AND NOT EXISTS (SELECT 1 FROM main.search_unit u WHERE u.content_hash = content.content_hash)
          AND NOT EXISTS (SELECT 1 FROM main.material m WHERE m.current_content_hash = content.content_hash)""",
    """UPDATE main.search_text
          SET search_text_id = 'regraft ' || search_text.rowid, target_id = 'regraft ' || search_text.rowid
         FROM temp.m_body m WHERE m.rid = search_text.rowid AND NOT m.is_new
          AND (m.new_id IS NOT NULL OR m.new_target IS NOT NULL OR m.linked)""",
    """UPDATE main.search_text SET target_type = 'search_unit', kind = 'body' FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND m.linked""",
    """UPDATE main.search_text
          SET search_text_id = ifnull(m.new_id, m.id), target_id = ifnull(m.new_target, m.target)
         FROM temp.m_body m WHERE m.rid = search_text.rowid AND NOT m.is_new
          AND (m.new_id IS NOT NULL OR m.new_target IS NOT NULL OR m.linked)""",
    """UPDATE main.search_text SET fts_rowid = m.new_number FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.new_number IS NOT NULL""",
    """UPDATE main.search_text SET embedding_text_hash = m.new_hash FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.new_hash IS NOT NULL""",
    """UPDATE main.search_text SET text = m.text FROM temp.m_body m
        WHERE m.rid = search_text.rowid AND NOT m.is_new AND m.text IS NOT NULL""",
    """INSERT INTO main.search_text (search_text_id, target_type, target_id, kind, text, embedding_text_hash,
                                     fts_rowid, created_at)
       SELECT m.new_id, 'search_unit', m.new_target, 'body', m.text, m.new_hash, m.new_number, u.created_at
         FROM temp.m_body m JOIN main.search_unit u ON u.rowid = m.unit WHERE m.is_new""",
    "DELETE FROM main.embedding WHERE rowid IN (SELECT rid FROM temp.m_vector)",
)


def write_back(db: apsw.Connection) -> None:
    """Write what became another value in the temporary tables into the file, in the caller's transaction.

    Raises:
        apsw.Error: the file cannot be written.
    """
    # A row that is mended in part may still break another of the layout's checks.
    db.execute("PRAGMA ignore_check_constraints = ON")
    try:
        for statement in _WRITE:
            db.execute(statement)
    finally:
        db.execute("PRAGMA ignore_check_constraints = OFF")
