"""Stores of preview builds made of plain data: with every column or few, in every place, with the vector index trap."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
from harness import NOW, run, snapshot
from v1 import Library, check_index, opened, vector_of

from regraft.formats.cherry_v2 import index
from regraft.formats.cherry_v2.index import schema

TABLE = "libsql_vectorstores_embedding"
BASE = "3c9e1f52-7d0b-4a86-9f1e-2b64d5a8c073"
OTHER = "b7a2d4e9-18c3-4f6d-8e05-91f3c6a0d5b2"
MODEL = "acme::embed-3"
CREATED, UPDATED = 1_748_000_000_000, 1_748_000_600_000

COLUMNS = ("id", "external_id", "collection", "document", "metadata", "embeddings")
_TYPES = {"id": "TEXT PRIMARY KEY", "metadata": "JSON DEFAULT '{}'", "embeddings": "F32_BLOB(4)"}
#: What only libSQL understands, as early builds wrote it.
VECTOR_INDEX = f"CREATE INDEX {TABLE}_embeddings_idx ON {TABLE} (libsql_vector_idx(embeddings, 'metric=cosine'))"
#: The same in a form that no other SQLite parses.
UNPARSABLE = f"CREATE INDEX {TABLE}_embeddings_idx ON {TABLE} USING libsql_vector_idx (embeddings)"

#: Stands for "as a preview build would have it" where None is a value of its own.
USUAL: Any = ...


def item_id(number: int) -> str:
    """Return an id as v2 gives them to items."""
    return f"0196b6af-9ca6-7645-86c6-{number:012x}"


A, B, C, D = (item_id(number) for number in range(1, 5))


@dataclass(frozen=True)
class Row:
    """One row; what is not given is made up of what is."""

    item: Any
    body: Any
    type: Any = "file"
    source: Any = "/home/alice/docs/plan.md"
    vector: Any = USUAL
    metadata: Any = USUAL
    external_id: Any = USUAL
    rowid: int | None = None
    more: dict[str, Any] = field(default_factory=dict)


def rows_of(item: str, *bodies: str, **fields: Any) -> list[Row]:
    """Return an item's rows."""
    return [Row(item, body, more={"chunkIndex": number}, **fields) for number, body in enumerate(bodies)]


#: A file, an address and a note, with a text that comes twice and an emoji before it.
ROWS = [
    *rows_of(A, "The harbour lamp 😀", "is lit at dusk", "shared text"),
    *rows_of(B, "# The ferry\nruns daily", "shared text", type="url", source="https://example.org/ferry"),
    *rows_of(C, "Rota for March", "Mei, then Alice", type="note", source="Rota"),
]


def metadata_of(row: Row, number: int) -> Any:
    """Return a row's metadata as a preview build writes it."""
    if row.metadata is not USUAL:
        return json.dumps(row.metadata) if isinstance(row.metadata, dict) else row.metadata
    known = {"itemId": row.item, "itemType": row.type, "source": row.source, "chunkIndex": number, "tokenCount": 3}
    return json.dumps({**known, **row.more}, ensure_ascii=False)


def store(
    path: Path,
    rows: Iterable[Row] = tuple(ROWS),
    *,
    columns: Sequence[str] = COLUMNS,
    base: str | None = BASE,
    vector_index: str = "",
    full_text: bool = True,
    seven_tables: bool = False,
    before: str = "",
) -> Path:
    """Write a store; ``vector_index`` is the statement of an index that holds nothing, as libSQL's does to others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with closing(apsw.Connection(str(path))) as db:
        db.execute(before)
        db.execute("BEGIN")
        declared = ", ".join(f"{name} {_TYPES.get(name, 'TEXT')}" for name in columns)
        db.execute(f"CREATE TABLE {TABLE} ({declared})")
        for name in {"external_id", "collection"} & set(columns):
            db.execute(f"CREATE INDEX idx_{TABLE}_{name} ON {TABLE} ({name})")
        if full_text:
            _full_text(db)
        for number, row in enumerate(rows):
            _insert(db, columns, row, number, base)
        if vector_index:
            set_trap(db, vector_index)
        for statement in (*schema.TABLES, schema.FULL_TEXT, *schema.INDEXES, *schema.TRIGGERS) if seven_tables else ():
            db.execute(statement)
        if seven_tables:
            db.execute("INSERT INTO meta VALUES (1, 2, ?, ?, ?)", (base, CREATED, CREATED))
        db.execute("COMMIT")
    return path


def _insert(db: apsw.Connection, columns: Sequence[str], row: Row, number: int, base: str | None) -> None:
    values = {
        "id": str(uuid.UUID(int=number + 1)),
        "external_id": row.item if row.external_id is USUAL else row.external_id,
        "collection": base,
        "document": row.body,
        "metadata": metadata_of(row, number),
        "embeddings": vector_of(row.body) if row.vector is USUAL else row.vector,
    }
    values = {name: value for name, value in values.items() if name in columns}
    if row.rowid is not None:
        values["rowid"] = row.rowid
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO {TABLE} ({', '.join(values)}) VALUES ({marks})", list(values.values()))


def _full_text(db: apsw.Connection) -> None:
    db.execute(f"CREATE VIRTUAL TABLE {TABLE}_fts USING fts5 (document, content = '{TABLE}', content_rowid = 'rowid')")
    db.execute(
        f"""CREATE TRIGGER {TABLE}_ai AFTER INSERT ON {TABLE} BEGIN
              INSERT INTO {TABLE}_fts (rowid, document) VALUES (new.rowid, new.document); END"""
    )


def set_trap(db: apsw.Connection, statement: str) -> None:
    """Add an index whose tree is empty, and then give it the statement of another one."""
    name = f"{TABLE}_embeddings_idx"
    db.execute("CREATE TABLE libsql_vector_meta_shadow (name TEXT PRIMARY KEY, metadata BLOB) WITHOUT ROWID")
    db.execute(f"CREATE TABLE {name}_shadow (index_key INTEGER PRIMARY KEY, data BLOB)")
    db.execute(f"CREATE INDEX {name} ON {TABLE} (document) WHERE false")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (statement, name))


def current_store(path: Path, base: str, bodies: Sequence[str] = ("a text of v2",)) -> Path:
    """Write an index in the v2 layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = iter([(body, vector_of(body)) for body in bodies])
    material = index.Material(item_id(900), lambda _: "v2.md", rows)
    index.build_index(path, base, CREATED, iter([material]), lambda *_: None)
    return path


# --- catalogs ------------------------------------------------------------------------------------------------------

PROVIDER = {"provider_id": "acme", "name": "Acme", "is_enabled": 1, "api_keys": '["sk-secret"]'}
MODEL_ROW = {"id": MODEL, "provider_id": "acme", "model_id": "embed-3", "name": "Embed 3", "group": "embed"}


def base_row(base_id: str = BASE, **fields: Any) -> dict[str, Any]:
    """Return a row of ``knowledge_base``; fields given as USUAL are left out, as are those of no row at all."""
    usual = {
        "id": base_id,
        "name": "Harbour",
        "group_id": None,
        "dimensions": 4,
        "embedding_model_id": MODEL,
        "status": "completed",
        "error": None,
        "rerank_model_id": None,
        "file_processor_id": None,
        "chunk_size": 800,
        "chunk_overlap": 90,
        "chunk_strategy": "delimiter",
        "chunk_separator": "---",
        "threshold": 0.25,
        "document_count": 7,
        "search_mode": "vector",
        "hybrid_alpha": 0.75,
        "created_at": CREATED,
        "updated_at": UPDATED,
    }
    return {name: value for name, value in {**usual, **fields}.items() if value is not USUAL}


def item_row(item: str, kind: str, data: Any, **fields: Any) -> dict[str, Any]:
    """Return a row of ``knowledge_item``."""
    usual = {
        "id": item,
        "base_id": BASE,
        "group_id": None,
        "type": kind,
        "data": data if isinstance(data, str | None) else json.dumps(data),
        "status": "completed",
        "error": None,
        "created_at": CREATED,
        "updated_at": UPDATED,
    }
    return {name: value for name, value in {**usual, **fields}.items() if value is not USUAL}


#: The items of :data:`ROWS`.
ITEMS = [
    item_row(A, "file", {"source": "/home/alice/docs/plan.md", "relativePath": "plan.md"}),
    item_row(B, "url", {"source": "https://example.org/ferry", "url": "https://example.org/ferry"}),
    item_row(C, "note", {"source": "Rota", "content": "Rota for March\n\nMei, then Alice"}),
]


def write_catalog(
    path: Path,
    bases: Sequence[dict[str, Any]] = (base_row(),),
    items: Sequence[dict[str, Any]] | None = tuple(ITEMS),
    models: Sequence[dict[str, Any]] | None = (MODEL_ROW,),
    providers: Sequence[dict[str, Any]] | None = (PROVIDER,),
) -> Path:
    """Write a catalog with those columns that its rows have; None leaves a table out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = {"knowledge_base": bases, "knowledge_item": items, "user_model": models, "user_provider": providers}
    with closing(apsw.Connection(str(path))) as db:
        for table, rows in tables.items():
            if rows is None:
                continue
            columns = [*dict.fromkeys(name for row in rows for name in row)] or ["id"]
            declared = ", ".join(f'"{name}"' for name in columns)
            db.execute(f"CREATE TABLE {table} ({declared})")
            marks = ", ".join("?" * len(columns))
            values = [[row.get(name) for name in columns] for row in rows]
            db.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
    return path


def profile(folder: Path, rows: Iterable[Row] = tuple(ROWS), **catalog: Any) -> Path:
    """Write a profile of a preview build: one base with a raw file, and its catalog."""
    store(folder / "Data" / "KnowledgeBase" / BASE / ".cherry" / "index.sqlite", rows)
    raw = folder / "Data" / "KnowledgeBase" / BASE / "raw"
    raw.mkdir()
    (raw / "plan.md").write_bytes(b"the plan itself\n")
    write_catalog(folder / "cherrystudio.sqlite", **catalog)
    return folder


# --- what a run makes of them --------------------------------------------------------------------------------------


def migrate(source: Path, target: Path, *options: object) -> Library:
    """Run the command, see that the source is as before, and hold every index against the layout's invariants."""
    place = source if source.is_dir() else source.parent
    before = snapshot(place)
    done = run("migrate", source, "--to", target, "--json", "--now", NOW, *options)
    assert done.status in (0, 1), done.stderr
    after = {name: state for name, state in snapshot(place).items() if not (place / name).is_relative_to(target)}
    assert after == before, "the source was touched"
    library = Library(target, done.status, done.document)
    for entry in library.report["bases"]:
        check_base(library, entry)
    return library


def check_base(library: Library, entry: dict[str, Any]) -> None:
    """Hold one base's books and index against its report."""
    rows = entry["rows"]
    assert rows["read"] == rows["carried"] + sum(rows["skipped"].values())
    assert entry["legacy_id"] == entry["id"], "an id of v2 is kept"
    with opened(library.path / "catalog.sqlite") as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    paths = [item["data"].get("relativePath", "") for item in library.items(entry["id"])]
    # A migrated v1 base has no folders below raw/, and its checks allow for none.
    if entry["status"] == "completed" and not any("/" in path for path in paths):
        with opened(library.index_path(entry["id"])) as db:
            check_index(db, entry, [item for item in library.items(entry["id"]) if "relativePath" in item["data"]])


def expected(rows: Iterable[Row]) -> list[tuple[str, str, bytes]]:
    """Return item, body and vector of rows that are all carried, as the index lists them: item by item."""
    found: dict[str, list[Row]] = {}
    vectors: dict[str, bytes] = {}
    for row in rows:
        found.setdefault(row.item, []).append(row)
    for row in (row for own in found.values() for row in own):
        vectors.setdefault(row.body, vector_of(row.body) if row.vector is USUAL else row.vector)
    return [(row.item, row.body, vectors[row.body]) for own in found.values() for row in own]


def carried(library: Library, base: str = BASE) -> list[tuple[str, str, bytes]]:
    """Return item, body and vector of every unit of a base."""
    return [(unit.item, unit.body, unit.vector) for unit in library.units(base)]
