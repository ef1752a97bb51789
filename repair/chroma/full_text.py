"""Rebuild the full-text index in a Chroma database from the documents."""

from __future__ import annotations

from pathlib import Path

import apsw

from regraft.disk import sqlite, untrusted_sqlite
from regraft.errors import FullTextNotRebuilt
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import DIFFERING_DOCUMENTS, FULL_TEXT_CONTENT, FULL_TEXT_TABLE
from regraft.language import tr
from repair.changes.files import copy_database

#: Version of FTS5's tables; FTS5 does not open them without it.
_FORMAT = 4


def rebuild_in_copy(path: Path, new: Path) -> None:
    """Copy a database and rebuild the full-text index in the copy.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild the index.
    """
    copy_database(path, new)
    try:
        with sqlite.open_writable(new) as db:
            # With one, FTS5's rebuild ends the process.
            for name in untrusted_sqlite.full_text_shadow_indexes(db):
                reason = tr("{name} is an index on a table of the full-text index", name=name)
                raise FullTextNotRebuilt(path=path, reason=reason)
            with sqlite.transaction(db):
                rebuild(db)
            problem = chroma.find_full_text_damage(db)
    except apsw.Error as error:
        raise FullTextNotRebuilt(path=path, reason=error) from error
    if problem is not None:
        raise FullTextNotRebuilt(path=path, reason=problem)


def rebuild(db: apsw.Connection) -> None:
    """Rebuild the index within the open transaction."""
    with untrusted_sqlite.allow_schema_writes(db):
        db.execute(f"INSERT OR REPLACE INTO {FULL_TEXT_TABLE}_config (k, v) VALUES ('version', ?)", (_FORMAT,))
        db.execute(
            f"INSERT OR REPLACE INTO {FULL_TEXT_CONTENT} (id, c0) SELECT m.id, m.string_value {DIFFERING_DOCUMENTS}"
        )
    db.execute(f"INSERT INTO {FULL_TEXT_TABLE} ({FULL_TEXT_TABLE}) VALUES ('rebuild')")
