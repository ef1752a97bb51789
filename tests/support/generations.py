"""Profiles of every generation of the application, small and in the tests' own words, and what their databases hold."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
from planted_v2 import run_sql

#: Generations by the columns that they have.
#: The last one is drafted: items of the type external, and tables that tell where they come from.
GENERATIONS = ("before release", "2.0.0", "2.0.9", "2.1", "external")
MODEL = "acme::embed-small"
#: A model of the application's own list: what it inherits is null.
PRESET = "acme::listed"

_PROVIDER = """CREATE TABLE user_provider (
  provider_id TEXT NOT NULL PRIMARY KEY, preset_provider_id TEXT, name TEXT NOT NULL, {more}
  endpoint_configs TEXT, api_keys TEXT DEFAULT '[]', is_enabled INTEGER NOT NULL DEFAULT FALSE,
  order_key TEXT NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)"""
_MODEL = """CREATE TABLE user_model (
  id TEXT NOT NULL PRIMARY KEY,
  provider_id TEXT NOT NULL REFERENCES user_provider ON DELETE CASCADE,
  model_id TEXT NOT NULL, preset_model_id TEXT, name TEXT {own}, description TEXT, "group" TEXT,
  capabilities TEXT {own}, {more} supports_streaming INTEGER {streams}, pricing TEXT,
  is_enabled INTEGER NOT NULL DEFAULT TRUE, is_hidden INTEGER NOT NULL DEFAULT FALSE, order_key TEXT NOT NULL,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL {rules}, UNIQUE (provider_id, model_id))"""
_BASE = """CREATE TABLE knowledge_base (
  id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL, group_id TEXT REFERENCES "group" ON DELETE SET NULL,
  dimensions INTEGER, embedding_model_id TEXT REFERENCES user_model,
  status TEXT NOT NULL CHECK (status IN ('completed', 'failed')), error TEXT,
  rerank_model_id TEXT REFERENCES user_model ON DELETE SET NULL, file_processor_id TEXT,
  chunk_size INTEGER NOT NULL, chunk_overlap INTEGER NOT NULL, chunk_strategy TEXT NOT NULL DEFAULT 'structured',
  chunk_separator TEXT NOT NULL DEFAULT '\\n\\n', threshold REAL, document_count INTEGER, {more}
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  CHECK ((status = 'failed' AND length(trim(ifnull(error, ''))) > 0) OR (status = 'completed' AND error IS NULL
    AND (embedding_model_id IS NULL) = (dimensions IS NULL) AND ifnull(dimensions, 1) > 0 {rules})))"""
_ITEM = """CREATE TABLE knowledge_item (
  id TEXT NOT NULL PRIMARY KEY, base_id TEXT NOT NULL REFERENCES knowledge_base ON DELETE CASCADE, group_id TEXT,
  type TEXT NOT NULL CHECK (type IN ('file', 'url', 'note', 'directory')), data TEXT NOT NULL,
  status TEXT NOT NULL, error TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  FOREIGN KEY (base_id, group_id) REFERENCES knowledge_item (base_id, id) ON DELETE CASCADE,
  CHECK ((status = 'failed') = (error IS NOT NULL)))"""
_LINK = """CREATE TABLE {who}_knowledge_base (
  {who}_id TEXT NOT NULL REFERENCES {who} ON DELETE CASCADE,
  knowledge_base_id TEXT NOT NULL REFERENCES knowledge_base ON DELETE CASCADE,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, PRIMARY KEY ({who}_id, knowledge_base_id))"""
#: Where external items come from: an account, a space of it, and the documents there.
_EXTERNAL = (
    """CREATE TABLE external_knowledge_connection (
  id TEXT NOT NULL PRIMARY KEY, provider TEXT NOT NULL CHECK (provider = 'feishu'), app_id TEXT NOT NULL,
  app_credential_source TEXT NOT NULL CHECK (app_credential_source IN ('personal-agent', 'custom-app')),
  authorization_status TEXT NOT NULL
    CHECK (authorization_status IN ('pending-authorization', 'connected', 'reauthorization-required')),
  credential_reference TEXT NOT NULL UNIQUE, granted_scopes TEXT NOT NULL DEFAULT '[]', display_name TEXT,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL)""",
    """CREATE TABLE external_knowledge_source (
  id TEXT NOT NULL PRIMARY KEY, base_id TEXT NOT NULL REFERENCES knowledge_base ON DELETE CASCADE,
  connection_id TEXT NOT NULL REFERENCES external_knowledge_connection ON DELETE RESTRICT,
  provider TEXT NOT NULL, tenant_id TEXT NOT NULL, space_id TEXT NOT NULL, scope TEXT NOT NULL, name TEXT NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('active', 'paused')), revision INTEGER NOT NULL CHECK (revision >= 0),
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, UNIQUE (base_id, provider, tenant_id, space_id))""",
    """CREATE TABLE external_knowledge_document (
  id TEXT NOT NULL PRIMARY KEY, source_id TEXT NOT NULL REFERENCES external_knowledge_source ON DELETE CASCADE,
  remote_object_id TEXT NOT NULL, canonical_node_id TEXT NOT NULL, relative_breadcrumb TEXT NOT NULL,
  title TEXT NOT NULL, original_url TEXT NOT NULL, last_seen_at INTEGER NOT NULL,
  availability TEXT NOT NULL CHECK (availability IN ('active', 'unavailable')),
  knowledge_item_id TEXT UNIQUE REFERENCES knowledge_item ON DELETE NO ACTION,
  created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  CHECK ((availability = 'active') = (knowledge_item_id IS NOT NULL)))""",
)
#: Messages have a full-text index of their own, which triggers keep.
_MESSAGES = (
    "CREATE TABLE message (number INTEGER PRIMARY KEY, body TEXT)",
    "CREATE VIRTUAL TABLE message_fts USING fts5 (body, content = 'message', content_rowid = 'number')",
    """CREATE TRIGGER message_in AFTER INSERT ON message
       BEGIN INSERT INTO message_fts (rowid, body) VALUES (new.number, new.body); END""",
    "INSERT INTO message (body) VALUES ('hello'), ('good bye')",
)


def definitions(generation: str) -> Iterator[str]:
    """Yield what makes the tables of a generation."""
    is_early = generation == "before release"
    yield 'CREATE TABLE "group" (id TEXT NOT NULL PRIMARY KEY, entity_type TEXT NOT NULL, name TEXT NOT NULL)'
    features = "" if generation in ("2.1", "external") else "api_features TEXT,"
    yield _PROVIDER.format(more=features if is_early else f"logo_key TEXT, {features}")
    own = "preset_model_id IS NOT NULL OR (name NOT NULL AND capabilities NOT NULL AND supports_streaming NOT NULL)"
    yield _MODEL.format(
        own="NOT NULL" if is_early else "",
        streams="NOT NULL DEFAULT TRUE" if is_early else "",
        more="custom_endpoint_url TEXT, user_overrides TEXT," if is_early else "",
        rules="" if is_early else f", CHECK ({own})",
    )
    if generation in ("2.0.9", "2.1", "external"):
        yield "ALTER TABLE user_model ADD COLUMN input_modalities_explicit INTEGER NOT NULL DEFAULT FALSE"
    modes = "CHECK (search_mode IN ('vector', 'bm25', 'hybrid'))"
    yield _BASE.format(
        more=f"search_mode TEXT NOT NULL {modes}, hybrid_alpha REAL," if is_early else "",
        rules="AND (embedding_model_id NOT NULL OR search_mode = 'bm25')" if is_early else "",
    )
    yield _ITEM.replace("'directory')", "'directory', 'external')") if generation == "external" else _ITEM
    yield "CREATE UNIQUE INDEX items_of_base ON knowledge_item (base_id, id)"
    for who in ("assistant",) if is_early else ("assistant", "agent"):
        yield f"CREATE TABLE {who} (id TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL)"
        yield _LINK.format(who=who)
        yield f"INSERT INTO {who} VALUES ('{who} one', 'One')"
    yield from _MESSAGES
    if generation == "external":
        yield from _EXTERNAL
    if generation in ("2.1", "external"):
        yield "CREATE TABLE job (id TEXT NOT NULL PRIMARY KEY, use_priority_service_tier INTEGER NOT NULL DEFAULT 0)"


def rows(generation: str) -> Iterator[str]:
    """Yield the rows that a profile has without any base."""
    provider = "INSERT INTO user_provider (provider_id, name, api_keys, is_enabled, order_key, created_at, updated_at)"
    yield f"""{provider} VALUES ('acme', 'Acme', '["a secret key"]', 1, 'a0', 1, 1)"""
    yield f"{provider} VALUES ('own', 'Own', '[]', 0, 'a1', 1, 1)"
    listed = "'Listed', '[]', 1" if generation == "before release" else "NULL, NULL, NULL"
    yield (
        "INSERT INTO user_model (id, provider_id, model_id, preset_model_id, name, capabilities, supports_streaming,"
        f" order_key, created_at, updated_at) VALUES ('{PRESET}', 'acme', 'listed', 'listed', {listed}, 'Zz', 1, 1)"
    )


def profile(folder: Path, generation: str, *more: str) -> Path:
    """Make a profile without a base; its database is in WAL mode."""
    path = database_of(folder, generation)
    path.parent.mkdir(parents=True)
    (folder / "Data" / "Files").mkdir(parents=True)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA journal_mode = WAL")
        for statement in (*definitions(generation), *rows(generation), *more):
            db.execute(statement)
    return folder


def database_of(folder: Path, generation: str) -> Path:
    """Return where the database of a profile lies."""
    return folder / ("" if generation == "before release" else "Data") / "cherrystudio.sqlite"


def database(folder: Path) -> Path:
    """Return where the database of a profile that is there lies."""
    (path,) = (
        path for path in (folder / "Data" / "cherrystudio.sqlite", folder / "cherrystudio.sqlite") if path.is_file()
    )
    return path


def with_bases(folder: Path, generation: str, library: Path) -> Path:
    """Make a profile that has the bases of a library as if the application had made them, in use by all who can."""
    profile(folder, generation)
    shutil.copytree(library / "KnowledgeBase", folder / "Data" / "KnowledgeBase")
    with closing(apsw.Connection(str(database(folder)))) as db:
        db.execute("ATTACH ? AS library", (str(library / "catalog.sqlite"),))
        for table in ("user_model", "knowledge_base", "knowledge_item"):
            names, there = (
                [row[1] for row in db.execute(f"PRAGMA {one}.table_info({table})")] for one in ("library", "main")
            )
            values = {f'"{name}"': f'"{name}"' for name in names}
            if table == "knowledge_base" and "search_mode" in there:
                values["search_mode"] = "iif(embedding_model_id IS NULL, 'bm25', 'hybrid')"
            columns, read = ", ".join(values), ", ".join(values.values())
            db.execute(f"INSERT INTO main.{table} ({columns}) SELECT {read} FROM library.{table} ORDER BY rowid")
        db.execute("DETACH library")
        for who in ("assistant",) if generation == "before release" else ("assistant", "agent"):
            db.execute(f"INSERT INTO {who}_knowledge_base SELECT '{who} one', id, 1, 1 FROM knowledge_base")
    return folder


def changed(folder: Path, *statements: str) -> None:
    """Run statements in a profile's database; neither keys nor checks are held."""
    with closing(apsw.Connection(str(database(folder)))) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            db.execute(statement)


def needing(folder: Path, table: str, column: str) -> None:
    """Give a table a column that every row must have, and that has no default."""
    changed(folder, f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
    with closing(apsw.Connection(str(database(folder)))) as db:
        version = db.execute("PRAGMA schema_version").get
        db.execute("PRAGMA writable_schema = ON")
        had, has = f"{column} TEXT NOT NULL DEFAULT ''", f"{column} TEXT NOT NULL"
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (had, has))
        db.execute(f"PRAGMA schema_version = {version + 1}")


def dump(folder: Path) -> list[str]:
    """Return all of a profile's database as statements: every table, its rows in their order, by their bytes."""
    with tempfile.TemporaryDirectory() as place:
        # Where it lies, nothing is left beside it.
        for path in database(folder).parent.glob("cherrystudio.sqlite*"):
            shutil.copy(path, place)
        with closing(sqlite3.connect(Path(place, "cherrystudio.sqlite"))) as db:
            return list(db.iterdump())


def dangling(folder: Path) -> list[tuple[object, ...]]:
    """Return the references that lead nowhere."""
    with closing(apsw.Connection(str(database(folder)))) as db:
        return list(db.execute("PRAGMA foreign_key_check"))


def query(folder: Path, sql: str) -> list[tuple[object, ...]]:
    """Return what a profile's database holds."""
    with closing(apsw.Connection(str(database(folder)))) as db:
        return list(db.execute(sql))


def earlier(folder: Path) -> Path:
    """Give a library's catalog the shape that earlier versions wrote."""
    run_sql(
        folder / "catalog.sqlite",
        "PRAGMA foreign_keys = OFF",
        "ALTER TABLE knowledge_base ADD COLUMN search_mode TEXT NOT NULL DEFAULT 'hybrid'",
        "ALTER TABLE knowledge_base ADD COLUMN hybrid_alpha REAL",
        "UPDATE user_model SET capabilities = '[]'",
        "ALTER TABLE user_model DROP COLUMN supports_streaming",
    )
    return folder
