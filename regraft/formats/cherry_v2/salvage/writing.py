"""A fresh index file of what was proven, with the values that its rows had, held against that once it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.errors import VerificationFailed
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, is_in_step, write_indexes
from regraft.formats.cherry_v2.salvage.scratch import KEPT, MADE
from regraft.language import tr

#: The schema that the proven rows are attached as.
_PROVEN = "proven"
_THERE = f"fate IN ('{KEPT}', '{MADE}')"
#: The columns of each table, in the order of the layout, by those of the proven rows. Texts come back from their bytes.
_COLUMNS = {
    "content": {"content_hash": "CAST(key AS TEXT)", "text": "CAST(text AS TEXT)", "created_at": "created"},
    "material": {
        "material_id": "CAST(key AS TEXT)",
        "relative_path": "CAST(path AS TEXT)",
        "current_content_hash": "CAST(content AS TEXT)",
        "created_at": "created",
        "updated_at": "updated",
    },
    "search_unit": {
        "unit_id": "CAST(key AS TEXT)",
        "material_id": "CAST(material AS TEXT)",
        "content_hash": "CAST(content AS TEXT)",
        "unit_type": "'chunk'",
        "unit_index": "place",
        "title": "CAST(title AS TEXT)",
        "char_start": "start",
        "char_end": "stop",
        "locator_json": "CAST(locator AS TEXT)",
        "created_at": "created",
    },
    "search_text": {
        "search_text_id": "CAST(key AS TEXT)",
        "target_type": "'search_unit'",
        "target_id": "CAST(target AS TEXT)",
        "kind": "'body'",
        "text": "CAST(text AS TEXT)",
        "embedding_text_hash": "CAST(hash AS TEXT)",
        "created_at": "created",
    },
    "embedding": {"embedding_text_hash": "CAST(key AS TEXT)", "vector_blob": "vector", "created_at": "created"},
}


def number_bodies(db: apsw.Connection) -> None:
    """Give every body that comes along its number in the full-text index: its own, or one behind all of them."""
    db.execute("CREATE TABLE numbered (number INTEGER PRIMARY KEY, seq INTEGER UNIQUE)")
    number = "typeof(number) = 'integer' AND number > 0"
    for numbers, chosen in (("number", f"fate = '{KEPT}'"), ("number", f"fate = '{MADE}'"), ("rid", _THERE)):
        condition = number.replace("number", numbers)
        db.execute(
            f"""INSERT OR IGNORE INTO numbered SELECT {numbers}, seq FROM search_text
                 WHERE {chosen} AND {condition} AND seq NOT IN (SELECT seq FROM numbered) ORDER BY seq"""
        )
    db.execute(
        f"""INSERT INTO numbered
            SELECT (SELECT ifnull(max(number), 0) FROM numbered) + row_number() OVER (ORDER BY seq), seq
              FROM search_text WHERE {_THERE} AND seq NOT IN (SELECT seq FROM numbered)"""
    )


def write(proven: Path, new: Path, base_id: str, now_ms: int) -> None:
    """Write the proven rows to ``new``, where no file is yet.

    Raises:
        VerificationFailed: the new file does not hold what was proven.
        apsw.Error, OSError: one cannot be read, or the other not be written.
    """
    with sqlite.writing(new, create=True) as db:
        with sqlite.attached(db, proven, _PROVEN):
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
            for statement in schema.TABLES:
                db.execute(statement)
            db.execute(
                "INSERT INTO main.meta VALUES (1, ?1, ?2, ifnull((SELECT created FROM proven.identity), ?3),"
                " ifnull((SELECT updated FROM proven.identity), ?3))",
                (schema.SCHEMA_VERSION, base_id, now_ms),
            )
            for table, columns in _COLUMNS.items():
                _write_table(db, table, columns)
            write_indexes(db)
            db.execute("COMMIT")
            _compare(db, base_id)
        _verify(db, base_id)


def _write_table(db: apsw.Connection, table: str, columns: dict[str, str]) -> None:
    names, values = ", ".join(columns), ", ".join(columns.values())
    if table == "search_text":
        # A reader that goes by the number of the row finds the same one.
        db.execute(
            f"""INSERT INTO main.search_text (rowid, fts_rowid, {names})
                SELECT given, given, {values} FROM proven.search_text JOIN
                  (SELECT seq AS of_row, number AS given FROM proven.numbered) ON of_row = seq
                 ORDER BY given"""
        )
        return
    db.execute(
        f"INSERT INTO main.{table} ({names}) SELECT {values} FROM proven.{table} WHERE {_THERE}"
        " ORDER BY rid IS NULL, rid"
    )


def _compare(db: apsw.Connection, base_id: str) -> None:
    """Hold every row against what was proven, byte for byte."""
    for table, columns in _COLUMNS.items():
        key = next(iter(columns))
        same = " AND ".join(f"n.{name} IS {_qualified(value)}" for name, value in columns.items())
        query = (
            f"SELECT (SELECT count(*) FROM proven.{table} WHERE {_THERE}) = (SELECT count(*) FROM main.{table})"
            f" AND NOT EXISTS (SELECT 1 FROM proven.{table} p LEFT JOIN main.{table} n ON n.{key} = CAST(p.key AS TEXT)"
            f" WHERE p.{_THERE} AND NOT ({same}))"
        )
        if not db.execute(query).get:
            raise VerificationFailed(base=base_id, reason=tr("texts or vectors differ"))


def _qualified(value: str) -> str:
    if value.startswith("CAST("):
        return value.replace("CAST(", "CAST(p.", 1)
    return value if value.startswith("'") else f"p.{value}"


def _verify(db: apsw.Connection, base_id: str) -> None:
    def demand(condition: Any, reason: str) -> None:
        if not condition:
            raise VerificationFailed(base=base_id, reason=reason)

    demand(not db.execute("PRAGMA foreign_key_check").fetchall(), tr("a foreign key dangles"))
    demand(db.execute("PRAGMA quick_check(1)").get == "ok", tr("SQLite's own check does not say ok"))
    demand(is_in_step(db), tr("the full-text index does not match the bodies"))
