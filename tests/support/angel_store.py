"""Small data folders of AngelMemory: raw files, their records, and a collection of vectors, whole or damaged.

The tables are our own small equivalents. The collection is written with plain SQL (``real=False``: the tables that are
read) or by chromadb itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import harness
from harness import run, snapshot

from regraft.formats.angel_memory import database as angel_memory_database
from regraft.formats.angel_memory import database as angel_memory_notes

#: Data folders that the system itself wrote.
SAMPLES = harness.SAMPLES / "angel_memory"
needs_samples = harness.needs_samples

PROVIDER = "openai-embed_v1"
OTHER_PROVIDER = "bge-m3"
DIMENSION = 8
#: The full-text index in a database of Chroma's.
FULL_TEXT = "embedding_fulltext_search"
#: When every raw file was read, in whole seconds.
READ_AT = 1795293227

NOTES = {
    "data.csv": "a,b\n1,2\n",
    "notes/plan.md": "# Trip\n\n## Hotels\n- a\n\n## Flights\n### Out\ntext\n### Back\n# Budget\n10\n",
    "notes/dup.md": "# Same\na\n# Same\nb\n",
    "notes/Project  X/readme.md": "# Project   X   overview\n```\n# not a heading really\n```\n",
    "notes/中文/笔记.md": "# 旅行 计划\n## 酒店\n内容\n",
    "notes/plain.txt": "# no heading here\nline2\n",
    "skip.png": "x",
}

TABLES = (
    """CREATE TABLE memory_records (id TEXT PRIMARY KEY, memory_type TEXT NOT NULL, judgment TEXT NOT NULL,
         reasoning TEXT NOT NULL, strength INTEGER NOT NULL, is_active INTEGER NOT NULL, memory_scope TEXT NOT NULL,
         created_at REAL NOT NULL, updated_at REAL NOT NULL)""",
    "CREATE TABLE global_tags (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE memory_tag_rel (memory_id TEXT NOT NULL, tag_id INTEGER NOT NULL, UNIQUE (memory_id, tag_id))",
    "CREATE TABLE note_tag_rel (source_id TEXT NOT NULL, tag_id INTEGER NOT NULL, UNIQUE (source_id, tag_id))",
    """CREATE TABLE note_index_records (source_id TEXT PRIMARY KEY, note_short_id INTEGER UNIQUE,
         file_id TEXT NOT NULL, source_file_path TEXT NOT NULL, heading_h1 TEXT, heading_h2 TEXT, heading_h3 TEXT,
         heading_h4 TEXT, heading_h5 TEXT, heading_h6 TEXT, total_lines INTEGER NOT NULL DEFAULT 0,
         updated_at REAL NOT NULL)""",
    "CREATE TABLE note_short_id_seq (id INTEGER PRIMARY KEY CHECK (id = 1), next_id INTEGER NOT NULL)",
    "INSERT INTO note_short_id_seq VALUES (1, 0)",
)
FILE_TABLE = """CREATE TABLE file_index_global (id INTEGER PRIMARY KEY AUTOINCREMENT,
    relative_path TEXT UNIQUE NOT NULL, file_timestamp INTEGER NOT NULL)"""
CHROMA_TABLES = (
    "CREATE TABLE collections (id TEXT PRIMARY KEY, name TEXT NOT NULL, dimension INTEGER, database_id TEXT NOT NULL)",
    "CREATE TABLE segments (id TEXT PRIMARY KEY, type TEXT NOT NULL, scope TEXT NOT NULL, collection TEXT NOT NULL)",
    """CREATE TABLE embeddings (id INTEGER PRIMARY KEY, segment_id TEXT NOT NULL, embedding_id TEXT NOT NULL,
         seq_id BLOB NOT NULL, UNIQUE (segment_id, embedding_id))""",
    """CREATE TABLE embedding_metadata (id INTEGER, key TEXT NOT NULL, string_value TEXT, int_value INTEGER,
         float_value REAL, bool_value INTEGER, PRIMARY KEY (id, key))""",
    """CREATE TABLE embeddings_queue (seq_id INTEGER PRIMARY KEY, operation INTEGER NOT NULL, topic TEXT NOT NULL,
         id TEXT NOT NULL, vector BLOB, encoding TEXT, metadata TEXT)""",
    "CREATE TABLE max_seq_id (segment_id TEXT PRIMARY KEY, seq_id INTEGER)",
)
COLLECTION_ID = "11111111-1111-4111-8111-111111111111"
SEGMENTS = {"VECTOR": "22222222-2222-4222-8222-222222222222", "METADATA": "33333333-3333-4333-8333-333333333333"}
TOPIC = f"persistent://default/default/{COLLECTION_ID}"


def embed(text: str) -> list[float]:
    """Return the vector of a text: the same for the same text, always."""
    digest = hashlib.sha256(text.encode()).digest()
    return [struct.unpack("<f", struct.pack("<f", byte / 256 - 0.5))[0] for byte in digest[:DIMENSION]]


@dataclass(frozen=True)
class AngelStore:
    """A data folder and what can be done to it."""

    root: Path
    #: Whether chromadb itself writes the collections.
    real: bool = False

    # --- its parts ------------------------------------------------------------------------------------------------

    @property
    def raw(self) -> Path:
        return self.root / "raw"

    @property
    def database(self) -> Path:
        return self.root / angel_memory_database.DATABASE

    @property
    def file_index(self) -> Path:
        return self.root / angel_memory_database.FILE_INDEX

    @property
    def state_file(self) -> Path:
        return self.root / angel_memory_database.STATE

    def chroma(self, provider: str = PROVIDER) -> Path:
        return angel_memory_database.provider_folder(self.root, provider).database

    def records(self) -> list[angel_memory_database.Record]:
        """Return the records in the order of short ids."""
        with angel_memory_database.open_records(self.root) as db:
            return sorted(angel_memory_database.iterate_records(db), key=lambda record: record.short_id or 0)

    def texts(self) -> dict[str, str]:
        """Return the text of each record that has a vector, by source id."""
        with angel_memory_database.open_records(self.root) as db:
            return dict(angel_memory_database.iterate_vector_texts(db))

    def rows(self, query: str, *values: Any, path: Path | None = None) -> list[Any]:
        with closing(apsw.Connection(str(path or self.database))) as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def opened(self, path: Path | None = None) -> Iterator[apsw.Connection]:
        with closing(apsw.Connection(str(path or self.database))) as db:
            # Nothing here has to survive a power cut.
            db.execute("PRAGMA synchronous = OFF")
            db.execute("PRAGMA journal_mode = MEMORY")
            yield db

    # --- what the system does -------------------------------------------------------------------------------------

    def write(self, path: str, text: str | bytes, *, seconds: int = READ_AT) -> Path:
        """Write a raw file with a time of change."""
        place = self.raw / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        os.utime(place, (seconds, seconds))
        return place

    def scan(self) -> None:
        """Make records of the raw files that the index of files does not know, as the system's scan does."""
        with self.opened() as db, self.opened(self.file_index) as index:
            known = {path for (path,) in index.execute("SELECT relative_path FROM file_index_global")}
            for one in angel_memory_notes.find_note_files(self.raw):
                if one.path not in known:
                    index.execute("INSERT INTO file_index_global VALUES (NULL, ?, ?)", (one.path, one.seconds))
                    for note in angel_memory_notes.read_notes(self.raw / one.path, one.path):
                        add_note(db, note, str(index.last_insert_rowid()), one)

    def remember(self, memory: str, *tags: str) -> None:
        """Store a memory with its tags."""
        with self.opened() as db:
            db.execute(
                "INSERT INTO memory_records VALUES (?, 'knowledge', 'j', 'r', 1, 0, 'public', 1.0, 1.0)", (memory,)
            )
            for tag in tags:
                db.execute("INSERT OR IGNORE INTO global_tags (name) VALUES (?)", (tag,))
                relate(db, "memory_tag_rel", memory, tag)

    def set_state(self, **fields: Any) -> None:
        """Write the state file with some fields changed."""
        state = {"last_updated_at": 1.5, "memory_scope_migration_done": False, "cleanup_last_sleep_at": 0.0}
        state |= dict.fromkeys(angel_memory_database.PROVIDER_KEYS, "")
        if self.state_file.exists():
            state |= json.loads(self.state_file.read_text("utf-8"))
        self.state_file.write_text(json.dumps(state | fields, ensure_ascii=False, indent=2), "utf-8")

    def fill(self, provider: str = PROVIDER, texts: dict[str, str] | None = None) -> None:
        """Make a provider's folder, with a collection of vectors of all records (or of ``texts``)."""
        entries = self.texts() if texts is None else texts
        self.chroma(provider).parent.mkdir(parents=True, exist_ok=True)
        (self.chroma(provider).parents[1] / "index").mkdir(exist_ok=True)
        if self.real:
            with collection(self.chroma(provider).parent) as found:
                _upsert(found, entries)
            return
        with self.opened(self.chroma(provider)) as db:
            for statement in CHROMA_TABLES:
                db.execute(statement)
            dimension = DIMENSION if entries else None
            db.execute("INSERT INTO collections VALUES (?, 'notes_index', ?, 'd')", (COLLECTION_ID, dimension))
            for scope, segment in SEGMENTS.items():
                db.execute("INSERT INTO segments VALUES (?, 'urn', ?, ?)", (segment, scope, COLLECTION_ID))
            for key, text in entries.items():
                put(db, key, text)

    # --- damage ---------------------------------------------------------------------------------------------------

    def drop_vectors(self, *keys: str, provider: str = PROVIDER) -> None:
        """Take entries out of the collection."""
        if self.real:
            with collection(self.chroma(provider).parent) as found:
                found.delete(ids=list(keys))
            return
        with self.opened(self.chroma(provider)) as db:
            for key in keys:
                _forget(db, key)
                _queue(db, 3, key, None, {})

    def put_vector(
        self,
        key: str,
        text: str,
        *,
        provider: str = PROVIDER,
        vector: Sequence[float] | None = None,
        source_id: str | None = None,
    ) -> None:
        """Put an entry into the collection: an orphan, a stale document, wrong metadata, a vector of another length."""
        if self.real:
            with collection(self.chroma(provider).parent) as found:
                metadata = {"source_id": key if source_id is None else source_id}
                values = list(embed(text) if vector is None else vector)
                found.upsert(ids=[key], documents=[text], embeddings=[values], metadatas=[metadata])
            return
        with self.opened(self.chroma(provider)) as db:
            put(db, key, text, vector=vector, source_id=source_id)

    def add_tag(self, name: str) -> int:
        """Store a tag that nothing uses, and return its id."""
        with self.opened() as db:
            db.execute("INSERT INTO global_tags (name) VALUES (?)", (name,))
            return db.last_insert_rowid()

    def execute(self, statement: str, *values: Any, path: Path | None = None) -> None:
        """Change rows of the database of records, or of another one."""
        with self.opened(path) as db:
            db.execute(statement, values)


def build(
    folder: Path,
    notes: dict[str, str] | None = None,
    *,
    provider: str | None = PROVIDER,
    real: bool = False,
) -> AngelStore:
    """Make a data folder in which nothing is wrong.

    Args:
        folder: what is to become it.
        notes: texts of raw files by path.
        provider: whose vectors it has; None: it has none.
        real: whether chromadb writes the collection.
    """
    store = AngelStore(folder, real)
    store.database.parent.mkdir(parents=True)
    with store.opened() as db:
        for statement in TABLES:
            db.execute(statement)
    store.execute(FILE_TABLE, path=store.file_index)
    store.raw.mkdir()
    for path, text in (NOTES if notes is None else notes).items():
        store.write(path, text)
    store.scan()
    store.set_state(notes_vector_sync_last_provider=provider or "")
    if provider is not None:
        store.fill(provider)
    return store


def add_full_text(store: AngelStore, path: Path) -> None:
    """Give a plain collection the full-text index that Chroma has."""
    with store.opened(path) as db:
        db.execute(f"CREATE VIRTUAL TABLE {FULL_TEXT} USING fts5 (string_value, tokenize = 'trigram')")
        db.execute(
            f"INSERT INTO {FULL_TEXT} (rowid, string_value) SELECT id, string_value FROM embedding_metadata"
            " WHERE key = 'chroma:document'"
        )


def damaged(folder: Path, *, real: bool = False) -> AngelStore:
    """Make a data folder with a bit of everything wrong that is not in its raw files or providers."""
    store = build(folder, real=real)
    keys = list(store.texts())
    store.drop_vectors(*keys[:3])
    store.put_vector("note_00000000000000000000000000000000", "a ghost")
    store.put_vector("note_ffffffffffffffffffffffffffffffff", "another ghost")
    store.put_vector(keys[3], "old words")
    store.put_vector(keys[4], store.texts()[keys[4]], source_id="note_other")
    store.execute("INSERT INTO note_tag_rel VALUES ('note_gone', 1)")
    store.execute("INSERT INTO note_tag_rel VALUES (?, 99999)", keys[5])
    store.add_tag("unused-tag")
    store.execute("UPDATE note_short_id_seq SET next_id = 3")
    return store


# --- rows ---------------------------------------------------------------------------------------------------------


def sample(name: str, folder: Path) -> AngelStore:
    """Copy one of the system's own data folders, so that it can be written to."""
    root = Path(shutil.copytree(SAMPLES / name, folder / name))
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return AngelStore(root, real=True)


def add_note(
    db: apsw.Connection, note: angel_memory_notes.Note, file_id: str, file: angel_memory_notes.NoteFile
) -> None:
    """Store the record of a note under the next short id, with its tags."""
    short_id = db.execute("UPDATE note_short_id_seq SET next_id = next_id + 1 RETURNING next_id - 1").get
    values = (note.source_id, short_id, file_id, file.path, *note.headings, note.total_lines, float(file.seconds))
    db.execute(f"INSERT INTO note_index_records VALUES ({', '.join('?' * len(values))})", values)
    for tag in note.tags:
        db.execute("INSERT OR IGNORE INTO global_tags (name) VALUES (?)", (tag,))
        relate(db, "note_tag_rel", note.source_id, tag)


def relate(db: apsw.Connection, table: str, key: str, tag: str) -> None:
    db.execute(f"INSERT INTO {table} SELECT ?, id FROM global_tags WHERE name = ?", (key, tag))


def put(
    db: apsw.Connection,
    key: str,
    text: str,
    *,
    vector: Sequence[float] | None = None,
    source_id: str | None = None,
) -> None:
    """Write an entry as Chroma does: an operation in its queue, and what it makes of that in its tables."""
    metadata = {"source_id": key if source_id is None else source_id, "chroma:document": text}
    _forget(db, key)
    sequence = _queue(db, 2, key, embed(text) if vector is None else vector, metadata)
    db.execute("INSERT INTO embeddings VALUES (NULL, ?, ?, ?)", (SEGMENTS["METADATA"], key, sequence))
    row = db.last_insert_rowid()
    for name, value in metadata.items():
        db.execute("INSERT INTO embedding_metadata (id, key, string_value) VALUES (?, ?, ?)", (row, name, value))


def _forget(db: apsw.Connection, key: str) -> None:
    db.execute("DELETE FROM embedding_metadata WHERE id IN (SELECT id FROM embeddings WHERE embedding_id = ?)", (key,))
    db.execute("DELETE FROM embeddings WHERE embedding_id = ?", (key,))


def _queue(
    db: apsw.Connection, operation: int, key: str, vector: Sequence[float] | None, metadata: dict[str, Any]
) -> int:
    blob = None if vector is None else struct.pack(f"<{len(vector)}f", *vector)
    values = (operation, TOPIC, key, blob, None if blob is None else "FLOAT32", json.dumps(metadata))
    db.execute("INSERT INTO embeddings_queue VALUES (NULL, ?, ?, ?, ?, ?, ?)", values)
    sequence = db.last_insert_rowid()
    db.execute("INSERT OR REPLACE INTO max_seq_id VALUES (?, ?)", (SEGMENTS["METADATA"], sequence))
    return sequence


@contextmanager
def collection(folder: Path) -> Iterator[Any]:
    """Open the notes' collection in a folder with chromadb (made where there is none), and close it at the end."""
    import chromadb
    from chromadb.config import Settings

    client = chromadb.PersistentClient(path=str(folder), settings=Settings(anonymized_telemetry=False))
    try:
        yield client.get_or_create_collection("notes_index", metadata={"hnsw:space": "l2"}, embedding_function=None)
    finally:
        client.close()


def _upsert(found: Any, texts: dict[str, str]) -> None:
    if texts:
        found.upsert(
            ids=list(texts),
            documents=list(texts.values()),
            embeddings=[embed(text) for text in texts.values()],
            metadatas=[{"source_id": key} for key in texts],
        )


def check(store: AngelStore | Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return what an audit finds, by name; of several of one name the first."""
    path = store.root if isinstance(store, AngelStore) else store
    found = run("check", path, "--json", *(option for option in options if option)).document["findings"]
    return {one["name"]: one for one in reversed(found)}


@contextmanager
def untouched(folder: Path) -> Iterator[None]:
    before = snapshot(folder)
    yield
    assert snapshot(folder) == before


def never_read(store: AngelStore) -> None:
    store.write("new.md", "# New\n")
    store.execute("INSERT INTO file_index_global VALUES (NULL, 'new.md', ?)", READ_AT, path=store.file_index)


def double_short_id(store: AngelStore) -> None:
    """The system adds the column to older databases without the rule that each is there once."""
    store.execute("CREATE TABLE copy AS SELECT * FROM note_index_records")
    store.execute("DROP TABLE note_index_records")
    store.execute("ALTER TABLE copy RENAME TO note_index_records")
    store.execute("UPDATE note_index_records SET note_short_id = 1 WHERE note_short_id = 2")
