"""Whether a full-text index of FTS5 holds the words of its texts, by FTS5's own check.

That check is a write, so it runs on a copy of the index's data in a temporary table.
"""

from __future__ import annotations

import apsw

from regraft import guarding

_PARTS = ("data", "idx", "docsize", "config")
#: Of an index's data, the row with its counts.
AVERAGES = 1


def words_agree(
    db: apsw.Connection, index: str, source: str, bodies: str, arguments: str, averages: bytes | None = None
) -> bool:
    """Tell by FTS5's own check whether a full-text index holds the words of its texts.

    Args:
        db: the file, opened for reading.
        index: the virtual table.
        source: the table whose texts it is of.
        bodies: a query for these texts, each with its ``number``.
        arguments: the columns, and with what else the index is made.
        averages: the row with the index's counts, where those that it has are not to be believed.

    Raises:
        apsw.Error: the file is damaged.
    """
    # The file itself was opened for reading only; this allows for temporary tables.
    db.execute("PRAGMA query_only = 0")
    try:
        with guarding.below_the_surface(db):
            db.execute(f"CREATE TEMP VIEW {source} AS {bodies}")
            made_of = f"{arguments}, content = '{source}', content_rowid = 'number'"
            db.execute(f"CREATE VIRTUAL TABLE temp.{index} USING fts5 ({made_of})")
            for part in _PARTS:
                db.execute(f"DELETE FROM temp.{index}_{part}")
                db.execute(f"INSERT INTO temp.{index}_{part} SELECT * FROM main.{index}_{part}")
            if averages is not None:
                db.execute(f"REPLACE INTO temp.{index}_data VALUES (?, ?)", (AVERAGES, averages))
        try:
            db.execute(f"INSERT INTO temp.{index} ({index}, rank) VALUES ('integrity-check', 1)")
        except apsw.CorruptError as error:
            if getattr(error, "extendedresult", 0) != apsw.SQLITE_CORRUPT_VTAB:
                raise
            return False
        return True
    finally:
        for what in (f"TABLE IF EXISTS temp.{index}", f"VIEW IF EXISTS temp.{source}"):
            db.execute(f"DROP {what}")
        db.execute("PRAGMA query_only = 1")
