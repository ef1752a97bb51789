"""``catalog.sqlite``: bases, items, and the models and providers they refer to (``docs/formats/catalog.md``).

This module defines the tables and rows of a library's catalog and writes new catalogs;
:mod:`regraft.formats.cherry_v2.catalog_reader` reads catalogs of any build.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.formats.order_keys import order_key

TABLES = (
    """CREATE TABLE user_provider (
         provider_id TEXT PRIMARY KEY NOT NULL,
         name TEXT NOT NULL,
         is_enabled INTEGER NOT NULL DEFAULT 0,
         order_key TEXT NOT NULL,
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE user_model (
         id TEXT PRIMARY KEY NOT NULL,
         provider_id TEXT NOT NULL REFERENCES user_provider (provider_id) ON DELETE CASCADE,
         model_id TEXT NOT NULL,
         name TEXT NOT NULL,
         "group" TEXT,
         capabilities TEXT NOT NULL,
         supports_streaming INTEGER NOT NULL,
         order_key TEXT NOT NULL,
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL)""",
    """CREATE TABLE knowledge_base (
         id TEXT PRIMARY KEY NOT NULL,
         name TEXT NOT NULL CHECK (length(trim(name)) > 0),
         group_id TEXT,
         dimensions INTEGER,
         embedding_model_id TEXT REFERENCES user_model (id),
         status TEXT NOT NULL CHECK (status IN ('completed', 'failed')),
         error TEXT,
         rerank_model_id TEXT REFERENCES user_model (id) ON DELETE SET NULL,
         file_processor_id TEXT,
         chunk_size INTEGER NOT NULL CHECK (chunk_size > 0),
         chunk_overlap INTEGER NOT NULL CHECK (chunk_overlap >= 0 AND chunk_overlap < chunk_size),
         chunk_strategy TEXT NOT NULL DEFAULT 'structured' CHECK (chunk_strategy IN ('structured', 'delimiter')),
         chunk_separator TEXT NOT NULL DEFAULT '\\n\\n',
         threshold REAL CHECK (threshold BETWEEN 0 AND 1),
         document_count INTEGER CHECK (document_count > 0),
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL,
         CHECK (CASE status
                  WHEN 'failed' THEN error IS NOT NULL AND length(trim(error)) > 0
                  ELSE error IS NULL
                   AND (embedding_model_id IS NULL) = (dimensions IS NULL)
                   AND (dimensions IS NULL OR dimensions > 0)
                END))""",
    """CREATE TABLE knowledge_item (
         id TEXT PRIMARY KEY NOT NULL,
         base_id TEXT NOT NULL REFERENCES knowledge_base (id) ON DELETE CASCADE,
         group_id TEXT,
         type TEXT NOT NULL CHECK (type IN ('file', 'url', 'note', 'directory')),
         data TEXT NOT NULL,
         status TEXT NOT NULL CHECK (status IN ('idle', 'preparing', 'processing', 'reading', 'embedding',
                                                'completed', 'failed', 'deleting')),
         error TEXT,
         created_at INTEGER NOT NULL,
         updated_at INTEGER NOT NULL,
         FOREIGN KEY (base_id, group_id) REFERENCES knowledge_item (base_id, id) ON DELETE CASCADE,
         CHECK (CASE type WHEN 'directory' THEN status NOT IN ('reading', 'embedding') ELSE status <> 'preparing' END),
         CHECK (CASE status WHEN 'failed' THEN error IS NOT NULL AND length(trim(error)) > 0
                            ELSE error IS NULL END))""",
    "CREATE UNIQUE INDEX knowledge_item_baseId_id_unique ON knowledge_item (base_id, id)",
    "CREATE INDEX knowledge_item_base_type_created_idx ON knowledge_item (base_id, type, created_at)",
    "CREATE INDEX knowledge_item_base_group_created_idx ON knowledge_item (base_id, group_id, created_at)",
)

#: The application's limit for the length of a note, in UTF-16 units.
MAX_NOTE_UNITS = 1_000_000

#: Capabilities of an embedding model and of a rerank model.
EMBEDDING = ("embedding",)
RERANK = ("rerank",)


class ProviderRow(msgspec.Struct, frozen=True):
    """A row of ``user_provider``, never with API keys."""

    provider_id: str
    name: str
    is_enabled: bool


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``user_model``; ``id`` is ``provider::model``."""

    id: str
    provider_id: str
    model_id: str
    name: str
    group: str | None
    #: The application treats a model without ``embedding`` as a chat model.
    capabilities: tuple[str, ...] = EMBEDDING
    supports_streaming: bool = True


class BaseRow(msgspec.Struct, frozen=True):
    """A row of ``knowledge_base``; times in ms."""

    id: str
    name: str
    dimensions: int | None
    embedding_model_id: str | None
    status: str
    error: str | None
    rerank_model_id: str | None
    file_processor_id: str | None
    chunk_size: int
    chunk_overlap: int
    threshold: float | None
    document_count: int | None
    created_at: int
    updated_at: int
    chunk_strategy: str = "structured"
    #: Four characters: backslash, n, backslash, n.
    chunk_separator: str = "\\n\\n"


class ItemRow(msgspec.Struct, frozen=True):
    """A row of ``knowledge_item``; times in ms."""

    id: str
    base_id: str
    group_id: str | None
    type: str
    data: dict[str, Any]
    status: str
    error: str | None
    created_at: int
    updated_at: int


class BaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that a base adds to the catalog, except its items."""

    base: BaseRow
    models: tuple[ModelRow, ...]
    providers: tuple[ProviderRow, ...]
    #: Time of the model and provider rows, in ms.
    now_ms: int


def write_catalog(path: Path, records: Iterable[tuple[BaseRecord, Iterable[ItemRow]]]) -> None:
    """Write a new catalog with the given bases, each with its items, in order.

    Items are streamed because they contain the texts of notes. The file is not flushed to disk; the caller does that
    when it publishes the file.

    Raises:
        apsw.Error: the file cannot be written.
    """
    with sqlite.open_writable(path, create=True) as db:
        db.pragma("synchronous", "OFF")
        _write(db, records)


def check_records(records: Iterable[tuple[BaseRecord, Iterable[ItemRow]]]) -> None:
    """Check that a catalog accepts these bases, each with its items, by writing them to a temporary database.

    Raises:
        apsw.ConstraintError, TypeError, OverflowError: a row is not accepted.
    """
    with sqlite.open_scratch() as db:
        db.execute("PRAGMA foreign_keys = ON")
        _write(db, records)


def _write(db: apsw.Connection, records: Iterable[tuple[BaseRecord, Iterable[ItemRow]]]) -> None:
    """Create the tables of a catalog and insert the bases, each with its items, models and providers."""
    db.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        db.execute(statement)
    for record, items in records:
        _write_models(db, record)
        db.execute(_insert_statement("knowledge_base", BaseRow), msgspec.structs.asdict(record.base))
        db.executemany(
            _insert_statement("knowledge_item", ItemRow),
            (
                {
                    **msgspec.structs.asdict(item),
                    "data": json.dumps(item.data, ensure_ascii=False, separators=(",", ":")),
                }
                for item in items
            ),
        )
    db.execute("COMMIT")


def _insert_statement(table: str, row_type: type[msgspec.Struct]) -> str:
    """Build the statement that inserts a row into a table; its columns are the fields of the row's struct."""
    names = row_type.__struct_fields__
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"


def _write_models(db: apsw.Connection, record: BaseRecord) -> None:
    """Insert the providers and models that a base uses, unless they exist."""
    times = (record.now_ms, record.now_ms)
    for provider in record.providers:
        key = order_key(db.execute("SELECT count(*) FROM user_provider").get)
        db.execute(
            "INSERT INTO user_provider VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (provider.provider_id, provider.name, int(provider.is_enabled), key, *times),
        )
    for model in record.models:
        count = "SELECT count(*) FROM user_model WHERE provider_id = ?"
        key = order_key(db.execute(count, (model.provider_id,)).get)
        capabilities, streaming = json.dumps(model.capabilities), int(model.supports_streaming)
        db.execute(
            "INSERT INTO user_model VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (
                *(model.id, model.provider_id, model.model_id, model.name, model.group),
                *(capabilities, streaming, key, *times),
            ),
        )
