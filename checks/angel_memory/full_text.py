"""Verify the full-text index of a Chroma database against the documents that it is derived from.

Chroma keeps the documents of all collections in ``embedding_metadata`` and a copy in the FTS5 table
``embedding_fulltext_search``. Damage to the copy makes every write of Chroma fail (``docs/formats/angel_memory.md``).
"""

from __future__ import annotations

from typing import Any

import apsw

from regraft.formats.angel_memory.chroma import DOCUMENT
from regraft.language import tr
from regraft.text import counted

TABLE = "embedding_fulltext_search"
#: The table in which FTS5 keeps the texts.
CONTENT = f"{TABLE}_content"
#: Documents whose text in the index is missing or another one.
DIFFERING = (
    f"FROM embedding_metadata m LEFT JOIN {CONTENT} c ON c.id = m.id "
    f"WHERE m.key = '{DOCUMENT}' AND m.string_value IS NOT NULL AND c.c0 IS NOT m.string_value"
)


def has_index(db: apsw.Connection) -> bool:
    """Whether a database has the full-text index at all; that of the first versions of Chroma has none."""
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = ? AND type = 'table'", (TABLE,)).get is not None


def damage(db: apsw.Connection) -> str | None:
    """Return why the full-text index cannot be used or disagrees with the documents; None if it is sound.

    Nothing is written.

    Raises:
        apsw.CorruptError, apsw.IOError: the database itself is damaged, not only the index.
    """
    if not has_index(db):
        return None
    try:
        # SQLite asks FTS5 to verify its own tables, against the texts that it keeps.
        for (message,) in db.execute(f"PRAGMA integrity_check({TABLE})"):
            if message != "ok":
                return " ".join(str(message).split())
        differing: Any = db.execute(f"SELECT count(*) {DIFFERING}").get
    except (apsw.CorruptError, apsw.SQLError) as error:
        if isinstance(error, apsw.CorruptError) and getattr(error, "extendedresult", 0) != apsw.SQLITE_CORRUPT_VTAB:
            raise
        return str(error)
    if differing:
        return tr("it lacks the text of {documents}", documents=counted(differing, "document"))
    return None
