"""A v2 profile of the tests' own making: tables with the application's columns and some more, in other words."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

TABLES = (
    'CREATE TABLE "group" (id TEXT PRIMARY KEY NOT NULL, name TEXT NOT NULL)',
    """CREATE TABLE user_provider (
         provider_id TEXT NOT NULL PRIMARY KEY, preset TEXT, name TEXT NOT NULL, api_keys TEXT DEFAULT '[]',
         is_enabled INTEGER NOT NULL DEFAULT 0, order_key TEXT NOT NULL, created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE user_model (
         id TEXT NOT NULL PRIMARY KEY, provider_id TEXT NOT NULL REFERENCES user_provider (provider_id)
           ON DELETE CASCADE, model_id TEXT NOT NULL, preset_model_id TEXT, name TEXT NOT NULL, "group" TEXT,
         capabilities TEXT NOT NULL, is_hidden INTEGER NOT NULL DEFAULT 0, order_key TEXT NOT NULL,
         created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, UNIQUE (provider_id, model_id))""",
    """CREATE TABLE knowledge_base (
         id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, icon TEXT NOT NULL DEFAULT 'book',
         group_id TEXT REFERENCES "group" (id) ON DELETE SET NULL, dimensions INTEGER,
         embedding_model_id TEXT REFERENCES user_model (id), status TEXT NOT NULL
           CHECK (status IN ('completed', 'failed')), error TEXT,
         rerank_model_id TEXT REFERENCES user_model (id) ON DELETE SET NULL, file_processor_id TEXT,
         chunk_size INTEGER NOT NULL, chunk_overlap INTEGER NOT NULL,
         chunk_strategy TEXT NOT NULL DEFAULT 'structured', chunk_separator TEXT NOT NULL DEFAULT '\\n\\n',
         threshold REAL, document_count INTEGER, search_mode TEXT NOT NULL, hybrid_alpha REAL,
         created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
         CHECK (error IS NULL OR (status = 'failed' AND length(trim(error)) > 0)))""",
    """CREATE TABLE knowledge_item (
         id TEXT NOT NULL PRIMARY KEY, base_id TEXT NOT NULL REFERENCES knowledge_base (id) ON DELETE CASCADE,
         group_id TEXT, type TEXT NOT NULL CHECK (type IN ('file', 'url', 'note', 'directory')), data TEXT NOT NULL,
         status TEXT NOT NULL, error TEXT, pinned INTEGER NOT NULL DEFAULT 0, created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL, FOREIGN KEY (base_id, group_id) REFERENCES knowledge_item (base_id, id)
           ON DELETE CASCADE)""",
    "CREATE UNIQUE INDEX item_of_base ON knowledge_item (base_id, id)",
    """CREATE TABLE assistant (id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, settings TEXT NOT NULL,
         deleted_at INTEGER)""",
    """CREATE TABLE assistant_knowledge_base (
         assistant_id TEXT NOT NULL REFERENCES assistant (id) ON DELETE CASCADE,
         knowledge_base_id TEXT NOT NULL REFERENCES knowledge_base (id) ON DELETE CASCADE,
         created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, PRIMARY KEY (assistant_id, knowledge_base_id))""",
    "CREATE TABLE message (id TEXT NOT NULL PRIMARY KEY, text TEXT)",
    "CREATE VIRTUAL TABLE message_fts USING fts5 (text)",
    "CREATE TABLE seen (number INTEGER PRIMARY KEY, what TEXT)",
    """CREATE TRIGGER message_seen AFTER INSERT ON message
       BEGIN INSERT INTO seen (what) VALUES ('message ' || new.id); END""",
)
KEYS = '["a secret key"]'
ROWS = (
    f"INSERT INTO user_provider VALUES ('acme', NULL, 'Acme', '{KEYS}', 1, 'a0', 1, 1)",
    "INSERT INTO user_model VALUES ('acme::other', 'acme', 'other', NULL, 'Other', NULL, '[]', 0, 'a0', 1, 1)",
    """INSERT INTO knowledge_base (id, name, status, error, chunk_size, chunk_overlap, search_mode, created_at,
         updated_at) VALUES ('own', 'My own', 'failed', 'missing_vector_store', 9, 0, 'bm25', 1, 1)""",
    "INSERT INTO assistant VALUES ('cook', 'Cook', '{}', NULL), ('gone', 'Gone', '{}', 1)",
    "INSERT INTO message VALUES ('m', 'hello')",
    "INSERT INTO message_fts (rowid, text) VALUES (1, 'hello')",
)


def profile(folder: Path, *more: str) -> Path:
    """Make a profile; its database is left in WAL mode, with rows that only its log has."""
    made = folder / "made.sqlite"
    folder.mkdir(parents=True)
    with closing(apsw.Connection(str(made))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in TABLES:
            db.execute(statement)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for statement in (*ROWS, *more):
            db.execute(statement)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{made}{suffix}", folder / f"cherrystudio.sqlite{suffix}")
    made.unlink()
    (folder / "Data" / "Files").mkdir(parents=True)
    assert (folder / "cherrystudio.sqlite-wal").stat().st_size > 0
    return folder


def start_application(folder: Path) -> Path:
    """Let a profile look as if the application had it open, and return the lock, which may be removed."""
    if os.name == "nt":
        (folder / "lockfile").touch()
        return folder / "lockfile"
    (folder / "SingletonLock").symlink_to(f"{socket.gethostname()}-{os.getpid()}")
    return folder / "SingletonLock"


def changed(folder: Path, *statements: str, foreign_keys: bool = True) -> None:
    """Run statements in a profile's database, as the application would."""
    with closing(apsw.Connection(str(folder / "cherrystudio.sqlite"))) as db:
        db.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
        for statement in statements:
            db.execute(statement)


def rows(path: Path, sql: str, values: Iterable[Any] = ()) -> list[Any]:
    """Return what a database holds."""
    with closing(apsw.Connection(str(path))) as db:
        return db.execute(sql, tuple(values)).fetchall()


def tables(folder: Path) -> dict[str, list[Any]]:
    """Return all rows of a profile's tables, and its schema."""
    path = folder / "cherrystudio.sqlite"
    found = {"": sorted(rows(path, "SELECT type, name, sql FROM sqlite_schema WHERE sql NOT NULL"))}
    for name in [name for kind, name, _ in found[""] if kind == "table"]:
        found[name] = sorted(rows(path, f'SELECT * FROM "{name}"'), key=repr)
    return found
