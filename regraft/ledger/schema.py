"""The tables of a ledger, and whether a file has just these (``docs/formats/library.md``, "Ledger" and "Changes")."""

from __future__ import annotations

import re
from typing import Any

import apsw

from regraft.language import tr
from regraft.ledger.values import UnfitValue

#: Version 1 had no record of changes to data that were there before.
VERSION = 2

TABLES = (
    "CREATE TABLE ledger (version INTEGER NOT NULL)",
    """CREATE TABLE run (
         run_id TEXT PRIMARY KEY,
         command TEXT NOT NULL,
         source TEXT NOT NULL,
         status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'stopped', 'interrupted')),
         started_at INTEGER NOT NULL,
         finished_at INTEGER)""",
    """CREATE TABLE step (
         step_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         subject TEXT NOT NULL,
         action TEXT NOT NULL,
         state TEXT NOT NULL CHECK (state IN ('intended', 'done', 'dropped')),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE part (
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         number INTEGER NOT NULL,
         body BLOB NOT NULL,
         PRIMARY KEY (step_id, number))""",
    """CREATE TABLE entry (
         subject TEXT PRIMARY KEY,
         step_id INTEGER NOT NULL REFERENCES step (step_id),
         fingerprint TEXT NOT NULL,
         detail BLOB NOT NULL)""",
)
#: What version 2 has besides.
CHANGE_TABLES = (
    """CREATE TABLE change (
         change_id INTEGER PRIMARY KEY,
         run_id TEXT NOT NULL REFERENCES run (run_id),
         means TEXT NOT NULL CHECK (means IN ('rows', 'file')),
         path TEXT NOT NULL,
         state TEXT NOT NULL
           CHECK (state IN ('intended', 'done', 'dropped', 'undoing', 'undone', 'expired')),
         kept TEXT,
         bytes INTEGER NOT NULL,
         detail BLOB NOT NULL)""",
    """CREATE TABLE action (
         run_id TEXT NOT NULL REFERENCES run (run_id),
         number INTEGER NOT NULL,
         detail BLOB NOT NULL,
         PRIMARY KEY (run_id, number))""",
)
_OF_VERSION = {1: TABLES, 2: (*TABLES, *CHANGE_TABLES)}
_NAME = re.compile(r"CREATE TABLE (\w+)")
#: The indexes that SQLite makes for primary keys; it names them itself.
_OWN_INDEX = re.compile(r"sqlite_autoindex_(\w+)_1")


def _named(statements: tuple[str, ...]) -> dict[str, str]:
    return {_NAME.findall(sql)[0]: " ".join(sql.split()) for sql in statements}


def is_empty(db: apsw.Connection) -> bool:
    """Tell whether nothing is in the file yet: a run was killed before it had recorded anything."""
    return db.execute("SELECT 1 FROM sqlite_schema LIMIT 1").get is None


def _is_index_of(name: Any, table: Any) -> bool:
    """Tell whether SQLite made an index of that name for a table by itself."""
    found = _OWN_INDEX.fullmatch(str(name))
    return found is not None and found[1] == table


def demand_schema(db: apsw.Connection) -> int:
    """Return the version of a ledger that has just the tables of that version, as regraft makes them.

    A view, a trigger, another table or column, a table without rowids or a virtual one makes it another program's.

    Raises:
        UnfitValue, apsw.Error
    """
    rows: list[Any] = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema").fetchall()
    found = {str(name): str(sql) for kind, name, _, sql in rows if kind == "table"}
    if "ledger" not in found:
        raise UnfitValue(tr("it is of another program"))
    for kind, name, table, sql in rows:
        if kind != "table" and not (kind == "index" and sql is None and _is_index_of(name, table)):
            raise UnfitValue(tr("it has the {kind} {name!r}, which no ledger has", kind=kind, name=name))
    return _version(db, {name: " ".join(sql.split()) for name, sql in found.items()})


def _version(db: apsw.Connection, found: dict[str, str]) -> int:
    if found["ledger"] != _named(TABLES)["ledger"]:
        raise UnfitValue(tr("it is of another program"))
    versions: list[Any] = db.execute("SELECT version FROM ledger LIMIT 2").fetchall()
    version = versions[0][0] if len(versions) == 1 else None
    if not isinstance(version, int) or version not in _OF_VERSION:
        raise UnfitValue(tr("it is of version {version}", version=version))
    wanted = _named(_OF_VERSION[version])
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            what = "lacks" if name not in found else tr("has another") if name in wanted else tr("has besides")
            raise UnfitValue(tr("it {what} the table {name!r}", what=what, name=name))
    return version


def tables_of(version: int) -> frozenset[str]:
    """Return the names of the tables of a version."""
    return frozenset(_named(_OF_VERSION[version]))
