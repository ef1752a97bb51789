"""A whole v2 library, and damage to it: one planting for everything that ``regraft check`` can find in v2 data."""

from __future__ import annotations

import json
import os
import struct
import unicodedata
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw
from conftest import NOW, run
from planted_v1 import whole

from regraft import identity

KB = identity.base_id("kb")
OTHER = identity.base_id("other")
OLD = 1_600_000_000
NEW_BASE = "aaaaaaaa-0000-4000-8000-000000000001"


def library(place: Path) -> Path:
    """Migrate a source that has something of everything; the library has nothing to complain about."""
    target = place / "library"
    assert run("migrate", whole(place / "v1"), "--to", target, "--now", NOW, "-q").status == 0
    return target


def index(target: Path, base: str = KB) -> Path:
    return target / "KnowledgeBase" / base / ".cherry" / "index.sqlite"


Plant = Callable[[Path], None]


def run_sql(path: Path, *statements: str) -> None:
    """Run statements without foreign keys and checks, as a program that knows neither would."""
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            db.execute(statement)


def sql(*statements: str) -> Plant:
    return lambda target: run_sql(index(target), *statements)


def catalog(*statements: str) -> Plant:
    return lambda target: run_sql(target / "catalog.sqlite", *statements)


def rewritten(old: str, new: str) -> Plant:
    """Return what changes the wording of the schema, and with it what it does."""

    def change(target: Path) -> None:
        with closing(apsw.Connection(str(index(target)))) as db:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (old, new))
            assert db.total_changes() > 0
            db.execute("PRAGMA writable_schema = RESET")

    return change


def in_bytes(change: Callable[[bytes], bytes]) -> Plant:
    return lambda target: index(target).write_bytes(change(index(target).read_bytes())) and None


def several(*plants: Plant) -> Plant:
    def plant(target: Path) -> None:
        for one in plants:
            one(target)

    return plant


def vector(*numbers: float) -> str:
    return f"x'{struct.pack(f'<{len(numbers)}f', *numbers).hex()}'"


FIRST = "(SELECT min(rowid) FROM {})"
EMBEDDING = "UPDATE embedding SET vector_blob = {} WHERE rowid = (SELECT min(rowid) FROM embedding)"
BODY = "UPDATE search_text SET {} WHERE rowid = (SELECT min(rowid) FROM search_text)"
UNIT = "UPDATE search_unit SET {} WHERE rowid = (SELECT min(rowid) FROM search_unit)"
MATERIAL = "UPDATE material SET {} WHERE rowid = (SELECT min(rowid) FROM material)"
ITEM = "UPDATE knowledge_item SET {} WHERE rowid = (SELECT min(rowid) FROM knowledge_item WHERE type = '{}')"
KB_ROW = f"UPDATE knowledge_base SET {{}} WHERE id = '{KB}'"
WITHOUT_AU = "DROP TRIGGER search_text_au"
AU = (
    "CREATE TRIGGER search_text_au AFTER UPDATE OF text ON search_text BEGIN INSERT INTO search_text_fts"
    " (search_text_fts, rowid, text) VALUES ('delete', old.fts_rowid, old.text); INSERT INTO search_text_fts"
    " (rowid, text) VALUES (new.fts_rowid, new.text); END"
)


def a_hot_journal(target: Path) -> None:
    path = index(target)
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE meta SET updated_at = updated_at + 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("CREATE TABLE filler (x)")
        db.execute("INSERT INTO filler SELECT randomblob(3000) FROM search_text, search_text")
        db.execute("DELETE FROM filler")
        journal = path.with_name("index.sqlite-journal").read_bytes()
        database = path.read_bytes()
        db.execute("ROLLBACK")
    path.write_bytes(database)
    path.with_name("index.sqlite-journal").write_bytes(journal)


def a_preview_store(target: Path) -> None:
    path = index(target, NEW_BASE)
    path.parent.mkdir(parents=True)
    run_sql(
        path,
        "CREATE TABLE libsql_vectorstores_embedding (id TEXT PRIMARY KEY, external_id TEXT, collection TEXT,"
        " document TEXT, metadata TEXT, embeddings F32_BLOB(4))",
        "INSERT INTO libsql_vectorstores_embedding VALUES ('r', 'i', 'c', 'text', '{}', zeroblob(16))",
    )


def a_lost_upload(target: Path) -> None:
    (index(target).parent.parent / "raw" / "report.pdf").unlink()


def a_changed_snapshot(target: Path) -> None:
    for path in (index(target).parent.parent / "raw").glob("*.md"):
        path.write_bytes(path.read_bytes() + b"more")


def an_old_stray_file(target: Path) -> None:
    path = index(target).parent.parent / "raw" / "stray.bin"
    path.write_bytes(b"stray")
    os.utime(path, (OLD, OLD))


def a_vector_file(target: Path) -> None:
    run_sql(target / "KnowledgeBase" / "kb", "CREATE TABLE vectors (id)")


def a_clash(target: Path) -> None:
    name = unicodedata.normalize("NFD", "Küche.md")
    run_sql(index(target), MATERIAL.format("relative_path = 'KÜCHE.md'"))
    run_sql(
        index(target), f"UPDATE material SET relative_path = '{name}' WHERE rowid = (SELECT max(rowid) FROM material)"
    )


def moved_folder(target: Path) -> None:
    folder = index(target).parent.parent
    folder.rename(folder.with_name(NEW_BASE))


def data(**fields: object) -> str:
    return "data = '" + json.dumps(fields).replace("'", "''") + "'"


@dataclass(frozen=True)
class Planted:
    """Damage, and the finding that it is."""

    finding: str
    damage: Plant
    #: The level that sees it first.
    level: str = "quick"
    base: str | None = KB


_FILE = {"source": "a", "relativePath": "b"}
PLANTED = {
    "random bytes": Planted("file.unreadable", in_bytes(lambda raw: bytes(range(256)) * 9)),
    "half a file": Planted("file.unreadable", in_bytes(lambda raw: raw[: len(raw) // 2])),
    "an empty file": Planted("file.unreadable", in_bytes(lambda raw: b"")),
    "no catalog": Planted(
        "file.unreadable", lambda target: (target / "catalog.sqlite").write_bytes(b"x") and None, base=None
    ),
    "pages of zeros": Planted("file.corrupt", in_bytes(lambda raw: raw[:8192] + bytes(8192) + raw[16384:])),
    "a journal": Planted("file.hot-journal", a_hot_journal),
    "no index on hashes": Planted("schema.missing", sql("DROP INDEX search_text_embedding_hash_idx")),
    "no trigger": Planted("schema.missing", sql("DROP TRIGGER search_text_ad")),
    "no embeddings": Planted("schema.missing", sql("DROP TABLE embedding")),
    "an idle trigger": Planted(
        "schema.missing",
        sql(
            "DROP TRIGGER search_text_ad",
            "CREATE TRIGGER search_text_ad AFTER DELETE ON search_text BEGIN SELECT 1; END",
        ),
    ),
    "a lenient check": Planted("schema.missing", rewritten("unit_index >= 0", "unit_index >= -9")),
    "another key": Planted("schema.missing", rewritten("ON DELETE CASCADE", "ON DELETE SET NULL")),
    "version 1": Planted("schema.version", sql("UPDATE meta SET schema_version = 1")),
    "version 3": Planted("schema.version", sql("UPDATE meta SET schema_version = 3")),
    "a version in words": Planted("schema.version", sql("UPDATE meta SET schema_version = 'two'")),
    "a preview store": Planted("schema.preview", a_preview_store, base=NEW_BASE),
    "no identity": Planted("meta.missing", sql("DELETE FROM meta")),
    "another base": Planted("meta.base-id", sql("UPDATE meta SET base_id = 'other'")),
    "another text": Planted(
        "content.hash",
        sql("UPDATE content SET text = text || '!' WHERE rowid = (SELECT min(rowid) FROM content)"),
        "default",
    ),
    "a text of bytes": Planted(
        "content.hash", sql("UPDATE content SET text = x'ff' WHERE rowid = (SELECT min(rowid) FROM content)"), "default"
    ),
    "a text of nobody": Planted(
        "content.orphan", sql(f"INSERT INTO content VALUES ('{identity.text_hash('x')}', 'x', 0)")
    ),
    "no text": Planted("material.no-content", sql(MATERIAL.format("current_content_hash = NULL"))),
    "a text that is gone": Planted("material.no-content", sql(MATERIAL.format("current_content_hash = 'gone'"))),
    "a way out": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = '../x'"))),
    "a backslash": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = 'a\\b'"))),
    "an absolute path": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = '/etc/x'"))),
    "a drive": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = 'C:/x'"))),
    "a path in .cherry": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = '.CHERRY/x'"))),
    "a path with NUL": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = 'a' || char(0)"))),
    "a path with //": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = 'a//b'"))),
    "a path of no text": Planted("material.path-unsafe", sql(MATERIAL.format("relative_path = CAST(x'ff' AS TEXT)"))),
    "two paths that meet": Planted("material.path-clash", a_clash),
    "no units": Planted(
        "material.no-units",
        sql("DELETE FROM search_unit WHERE material_id = (SELECT material_id FROM material WHERE rowid = 1)"),
    ),
    "a place one off": Planted("unit.offsets", sql(UNIT.format("char_end = char_end - 1")), "default"),
    "a place beyond": Planted("unit.offsets", sql(UNIT.format("char_end = 100000")), "default"),
    "a place in words": Planted("unit.offsets", sql(UNIT.format("char_end = 'end'")), "default"),
    "another unit id": Planted(
        "unit.id",
        sql(
            "UPDATE search_text SET target_id = 'u' WHERE target_id = (SELECT unit_id FROM search_unit WHERE rowid = 1)",  # noqa: E501 - one statement
            UNIT.format("unit_id = 'u'"),
        ),
        "default",
    ),
    "a gap": Planted(
        "unit.gap",
        sql("UPDATE search_unit SET unit_index = 70 WHERE rowid = 1"),
    ),
    "a unit of another text": Planted(
        "unit.content",
        sql(
            "UPDATE search_unit SET content_hash = (SELECT max(content_hash) FROM content) WHERE rowid = 1",
            "UPDATE search_unit SET content_hash = (SELECT min(content_hash) FROM content) WHERE rowid = 2",
        ),
    ),
    "a unit of nobody": Planted("unit.content", sql(UNIT.format("material_id = 'gone'"))),
    "no body": Planted("unit.no-body", sql("DELETE FROM search_text WHERE rowid = 1")),
    "another body id": Planted("body.id", sql(BODY.format("search_text_id = 'b'")), "default"),
    "another body": Planted("body.hash", sql(BODY.format("text = 'another'")), "default"),
    "a body of bytes": Planted("body.hash", sql(WITHOUT_AU, BODY.format("text = x'00ff'"), AU), "default"),
    "a body of nobody": Planted("body.orphan", sql("DELETE FROM search_unit WHERE rowid = 1")),
    "no number": Planted("body.rowid", sql(BODY.format("fts_rowid = NULL"))),
    "a number out of step": Planted("body.rowid", sql(BODY.format("fts_rowid = 999"))),
    "one number twice": Planted(
        "body.rowid",
        sql("DROP INDEX search_text_fts_rowid_uniq", "UPDATE search_text SET fts_rowid = 1 WHERE fts_rowid = 2"),
    ),
    "words of no body": Planted("fts.desync", sql("INSERT INTO search_text_fts (rowid, text) VALUES (900, 'stray')")),
    "a body without words": Planted(
        "fts.desync",
        sql(
            "INSERT INTO search_text_fts (search_text_fts, rowid, text) SELECT 'delete', fts_rowid, text FROM search_text WHERE rowid = 1"  # noqa: E501 - one statement
        ),
    ),
    "other words": Planted("fts.desync", sql(WITHOUT_AU, BODY.format("text = 'text 9 of F'"), AU), "default"),
    "no vector": Planted("embedding.missing", sql("DELETE FROM embedding WHERE rowid = 1")),
    "a vector of nobody": Planted("embedding.orphan", sql("INSERT INTO embedding VALUES ('h', zeroblob(16), 0)")),
    "vectors without a model": Planted(
        "embedding.unexpected",
        catalog(KB_ROW.format("embedding_model_id = NULL, dimensions = NULL, search_mode = 'bm25'")),
    ),
    "a short vector": Planted("embedding.length", sql(EMBEDDING.format(vector(1, 2))), "default"),
    "an odd vector": Planted("embedding.length", sql(EMBEDDING.format("x'010203'")), "default"),
    "a vector in words": Planted("embedding.length", sql(EMBEDDING.format("'sixteen letters!'")), "default"),
    "NaN": Planted("embedding.non-finite", sql(EMBEDDING.format(vector(1, float("nan"), 0, 0))), "default"),
    "infinity": Planted("embedding.non-finite", sql(EMBEDDING.format(vector(1, float("-inf"), 0, 0))), "default"),
    "zeros": Planted("embedding.zero", sql(EMBEDDING.format("zeroblob(16)")), "default"),
    "one vector for many": Planted(
        "embedding.duplicate",
        sql("UPDATE embedding SET vector_blob = (SELECT vector_blob FROM embedding WHERE rowid = 1) WHERE rowid < 5"),
        "default",
    ),
    "a file without text": Planted(
        "item.no-material",
        sql(*(f"DELETE FROM {table}" for table in ("search_text", "search_unit", "material", "content", "embedding"))),
    ),
    "a note never indexed": Planted(
        "item.not-indexed",
        catalog(
            "INSERT INTO knowledge_item SELECT 'n', base_id, NULL, 'note', '{\"source\":\"s\",\"content\":\"\"}', 'completed',"  # noqa: E501 - one statement
            f" NULL, 0, 0 FROM knowledge_item WHERE base_id = '{KB}' LIMIT 1"
        ),
    ),
    "an item of no base": Planted(
        "item.no-base",
        catalog("INSERT INTO knowledge_item VALUES ('n', 'gone', NULL, 'note', '{}', 'idle', NULL, 0, 0)"),
        base="gone",
    ),
    "nobody works": Planted("item.status", catalog(ITEM.format("status = 'embedding'", "file"))),
    "failed without an error": Planted("item.status", catalog(ITEM.format("status = 'failed'", "file"))),
    "an unknown status": Planted("item.status", catalog(ITEM.format("status = x'00'", "file"))),
    "an unknown type": Planted("item.status", catalog(ITEM.format("type = 'memory'", "file"))),
    "no JSON": Planted("item.data", catalog(ITEM.format("data = '{'", "file"))),
    "deep JSON": Planted("item.data", catalog(ITEM.format(f"data = '{'[' * 100_000}'", "file"))),
    "no path": Planted("item.data", catalog(ITEM.format(data(source="a"), "file"))),
    "a long note": Planted("item.data", catalog(ITEM.format(data(source="a", content="x" * 1_000_001), "note"))),
    "a folder at work": Planted("item.container", catalog(ITEM.format("status = 'processing'", "directory"))),
    "a folder that is gone": Planted("item.container", catalog(ITEM.format("group_id = 'gone'", "file"))),
    "folders in a circle": Planted("item.container", catalog(ITEM.format("group_id = id", "directory"))),
    "a tombstone": Planted(
        "item.tombstone", catalog(ITEM.format("status = 'failed', error = 'directory_not_migrated'", "directory"))
    ),
    "a model without dimensions": Planted("base.status", catalog(KB_ROW.format("dimensions = NULL"))),
    "completed with an error": Planted("base.status", catalog(KB_ROW.format("error = 'x'"))),
    "an unknown mode": Planted("base.status", catalog(KB_ROW.format("search_mode = 'magic'"))),
    "dimensions in words": Planted("base.status", catalog(KB_ROW.format("dimensions = 'many'"))),
    "a model that is gone": Planted("base.model", catalog("DELETE FROM user_model")),
    "other dimensions": Planted("base.dimensions", catalog(KB_ROW.format("dimensions = 768"))),
    "a failed base": Planted(
        "base.failed", catalog(KB_ROW.format("status = 'failed', error = 'missing_vector_store'"))
    ),
    "no index": Planted("base.no-index", lambda target: index(target).unlink()),
    "a folder of no base": Planted("index.orphan", moved_folder, base=None),
    "a material of no item": Planted("material.orphan", catalog(ITEM.format("id = 'other'", "file"))),
    "a material being deleted": Planted("material.orphan", catalog(ITEM.format("status = 'deleting'", "file"))),
    "another path": Planted("material.path", catalog(ITEM.format(data(**_FILE), "file"))),
    "a lost upload": Planted("raw.missing", a_lost_upload),
    "a changed snapshot": Planted("raw.changed", a_changed_snapshot, "deep"),
    "a stray file": Planted("raw.orphan", an_old_stray_file),
    "v1's files": Planted("v1.leftover", a_vector_file, base=None),
}
