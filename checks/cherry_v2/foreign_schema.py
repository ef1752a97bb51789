"""What the schema of an index file, or of a catalog, has that its layout does not (``docs/findings.md``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

import apsw
import msgspec

from checks.audit import file_findings
from checks.audit.foreign_schema import (
    Foreign,
    Trial,
    called_by,
    does_more,
    foreign_text_indexes,
    instead,
    objects,
    on_tables,
    views,
)
from regraft import sqlite
from regraft.formats.cherry_preview.libsql import TABLE as PREVIEW
from regraft.formats.cherry_v2.catalog_generation import AGENT_LINKS, ASSISTANT_LINKS, BASES, ITEMS, MODELS, PROVIDERS
from regraft.formats.cherry_v2.index import SCHEMA_VERSION, schema
from regraft.language import tr
from regraft.untouched import carrying_keys, is_virtual, tables_of, wrong_rule

_FULL_TEXT = "search_text_fts"
_FTS5 = re.compile(r"\bUSING\s+[\"'`\[]?fts5\b", re.IGNORECASE)
#: The functions that rules of the layout's tables call.
_IN_RULES = {"like", "length", "trim", "ifnull", "coalesce"}


class _OwnSchema(msgspec.Struct, frozen=True, kw_only=True):
    """What a layout has: columns by table, indexes, and its triggers with the tables that they are on."""

    tables: Mapping[str, frozenset[str]]
    indexes: frozenset[str]
    triggers: Mapping[str, str]


_PREVIEW_TEXT = f"{PREVIEW}_fts"
_INDEX = _OwnSchema(
    tables={
        "meta": frozenset({"id", "schema_version", "base_id", "created_at", "updated_at"}),
        "content": frozenset({"content_hash", "text", "created_at"}),
        "material": frozenset({"material_id", "relative_path", "current_content_hash", "created_at", "updated_at"}),
        "search_unit": frozenset(
            {
                *("unit_id", "material_id", "content_hash", "unit_type", "unit_index", "title"),
                *("char_start", "char_end", "locator_json", "created_at"),
            }
        ),
        "search_text": frozenset(
            {
                *("search_text_id", "target_type", "target_id", "kind", "text", "embedding_text_hash", "fts_rowid"),
                "created_at",
            }
        ),
        "embedding": frozenset({"embedding_text_hash", "vector_blob", "created_at"}),
    },
    indexes=frozenset(statement.split(" ON ")[0].split()[-1] for statement in schema.INDEXES),
    triggers={
        **dict.fromkeys(("search_text_ai", "search_text_ad", "search_text_au"), "search_text"),
        **{f"{PREVIEW}_{when}": PREVIEW for when in ("ai", "ad", "au")},
    },
)


_PARTS = (
    *schema.TABLES,
    schema.FULL_TEXT,
    f"CREATE TABLE {PREVIEW} (id, external_id, collection, document, metadata, embeddings)",
    f"CREATE VIRTUAL TABLE {_PREVIEW_TEXT} USING fts5 (document, content = '{PREVIEW}')",
)
_OF_INDEX = Trial(
    statements=_PARTS,
    firing={
        "search_text": (
            "INSERT INTO search_text (search_text_id) VALUES ('t')",
            "UPDATE search_text SET text = 't'",
            "DELETE FROM search_text",
        ),
        PREVIEW: (
            f"INSERT INTO {PREVIEW} (id) VALUES ('t')",
            f"UPDATE {PREVIEW} SET document = 't'",
            f"DELETE FROM {PREVIEW}",
        ),
    },
    written=frozenset({("search_text", _FULL_TEXT), (PREVIEW, _PREVIEW_TEXT)}),
    updated=frozenset({("search_text", "search_text", "fts_rowid")}),
)


def of_index(db: apsw.Connection) -> list[Foreign]:
    """Return what an index file has that no version of its layout has; nothing of one that is newer than ours.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    if _is_newer(db):
        return []
    found = [*_triggers(db), *views(db, {*_INDEX.tables, _FULL_TEXT})]
    for table, statement in tables_of(db).items():
        own = _INDEX.tables.get(table.lower())
        if own is not None:
            found += _columns(db, table, statement, own)
        elif table.lower() == _FULL_TEXT and is_virtual(statement) and not _FTS5.search(statement):
            found.append(instead(table, tr("a virtual table of another kind")))
        else:
            message = tr("{n} that carries changes of the layout's tables on")
            keys = () if is_virtual(statement) else carrying_keys(db, table, _INDEX.tables.keys())
            found += [_column(key, message, "key") for key in keys]
    return [*found, *_indexes(db), *foreign_text_indexes(db)]


def _is_newer(db: apsw.Connection) -> bool:
    with suppress(apsw.SQLError):
        version = db.execute("SELECT schema_version FROM meta ORDER BY id LIMIT 1").get
        return isinstance(version, int) and version > SCHEMA_VERSION
    return False


def _triggers(db: apsw.Connection) -> Iterator[Foreign]:
    for name, table, sql in objects(db, "trigger"):
        dropped = f"DROP TRIGGER {sqlite.quoted(name)}"
        if _INDEX.triggers.get(name.lower()) != table.lower():
            yield Foreign(
                finding=file_findings.FOREIGN_TRIGGER,
                name=name,
                message=tr("{n} that the layout does not have"),
                noun="trigger",
                mended=(dropped,),
            )
        elif does_more(name, table, sql, _OF_INDEX):
            again = tuple(one for one in schema.TRIGGERS if one.split()[2] == name.lower())
            message = tr("{n} of the layout's that does something else, too")
            yield Foreign(
                finding=file_findings.FOREIGN_TRIGGER,
                name=name,
                message=message,
                noun="trigger",
                mended=(dropped, *again),
            )


def _columns(db: apsw.Connection, table: str, statement: str, own: frozenset[str]) -> Iterator[Foreign]:
    if is_virtual(statement):
        yield instead(table, tr("a virtual table"))
        return
    for row in db.execute(f"PRAGMA table_xinfo({sqlite.quoted(table)})").fetchall():
        name, is_made = f"{table}.{row[1]}", bool(row[6])
        if is_made:
            yield _column(name, tr("{n} that follows from others"), "column")
        elif str(row[1]).lower() not in own:
            yield _column(name, tr("{n} that the layout does not have"), "column")
    rule = wrong_rule(statement)
    if rule is not None:
        yield _column(table, tr("{{n}} with {rule}", rule=rule), "table")
    for key in carrying_keys(db, table, _INDEX.tables.keys()):
        yield _column(key, tr("{n} that carries changes on"), "key")
    for name in sorted(called_by(statement) - _IN_RULES):
        yield _column(table, tr("{{n}} with a rule that calls {name}", name=name), "table")


def _column(name: str, message: str, noun: str) -> Foreign:
    return Foreign(finding=file_findings.FOREIGN_COLUMN, name=name, message=message, noun=noun)


def _indexes(db: apsw.Connection) -> Iterator[Foreign]:
    message = tr("{n} that the layout does not have")
    for name, table, _ in objects(db, "index"):
        if table.lower() in _INDEX.tables and name.lower() not in _INDEX.indexes:
            yield Foreign(finding=file_findings.FOREIGN_INDEX, name=name, message=message, noun="index")


def of_catalog(db: apsw.Connection) -> list[Foreign]:
    """Return what a catalog has on the tables of knowledge, and what stands in their place; all else is its own.

    Raises:
        apsw.Error, UnicodeDecodeError: the file is damaged.
    """
    return on_tables(db, (BASES, ITEMS, MODELS, PROVIDERS, ASSISTANT_LINKS, AGENT_LINKS))
