"""The folder of a KB and its database (``docs/formats/rsclaw.md``, "The folder").

:func:`mirrored` reads the database once into temporary tables, of which everything else is asked in SQL: memory does
not grow with rows, and rows that are not of their form are kept apart and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import links, sqlite
from regraft.errors import RegraftError
from regraft.formats.redb import PageDamage, RedbFile, read_redb
from regraft.formats.rsclaw import rows
from regraft.formats.rsclaw.rows import Doc
from regraft.formats.rsclaw.vectors import flaw_of
from regraft.language import tr

FILE = "kb.redb"
MARKDOWN, RAW, FULL_TEXT, HNSW = "md", "raw", "idx/tantivy", "hnsw"
SNAPSHOT = f"{HNSW}/snapshot.meta.json"
#: What every file of redb begins with.
MAGIC = b"redb\x1a\n\xa9\r\n"
#: The folder of a KB in the application's own.
_FOLDER = "kb"
#: A database of documents has at least these tables.
_MARKS = frozenset({rows.DOCS, rows.CHUNKS})
_BATCH = 500
#: So many rows of a table that are not of their form are named; the others are counted.
MOST_BROKEN = 10_000
#: Keys of a type with a width may be of no bytes at all: a file of a few kB can claim any number of such rows.
_KEY_TYPES = ("&str", "&[u8]", "String", "Vec<u8>")

SCHEMA = """
CREATE TABLE doc (id TEXT PRIMARY KEY, lsid TEXT, title TEXT, kind TEXT, source_type TEXT, source_path TEXT, url TEXT,
                  md_path TEXT, md_sha TEXT, raw_path TEXT, raw_sha TEXT, owner TEXT, created_at INTEGER,
                  updated_at INTEGER, version INTEGER, status TEXT, visibility TEXT, visible_to TEXT, tags INTEGER)
                  WITHOUT ROWID;
CREATE TABLE latest (lsid TEXT PRIMARY KEY, doc_id TEXT, version INTEGER) WITHOUT ROWID;
CREATE TABLE chunk (id TEXT PRIMARY KEY, doc_id TEXT, lsid TEXT, doc_version INTEGER, seq INTEGER, first INTEGER,
                    last INTEGER, status TEXT, embedder TEXT, dimensions INTEGER, flaw TEXT) WITHOUT ROWID;
CREATE TABLE by_source (lsid TEXT, chunk_id TEXT, PRIMARY KEY (lsid, chunk_id)) WITHOUT ROWID;
CREATE TABLE entity (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE mention (entity_id TEXT, chunk_id TEXT);
CREATE TABLE entry (id TEXT PRIMARY KEY, created_at INTEGER, updated_at INTEGER, doc_id TEXT, op TEXT, status TEXT,
                    error TEXT) WITHOUT ROWID;
CREATE TABLE entry_path (entry_id TEXT, is_new INTEGER, path TEXT);
CREATE TABLE job (id TEXT PRIMARY KEY, kind TEXT, doc_id TEXT, doc_version INTEGER, status TEXT, priority INTEGER,
                  created_at INTEGER, attempts INTEGER, error TEXT) WITHOUT ROWID;
CREATE TABLE dedupe (key TEXT PRIMARY KEY, job_id TEXT) WITHOUT ROWID;
CREATE TABLE queue (status INTEGER, priority INTEGER, created_at INTEGER, job_id TEXT);
CREATE TABLE claim (job_id TEXT PRIMARY KEY, worker TEXT, claimed_at INTEGER, expires_at INTEGER) WITHOUT ROWID;
CREATE TABLE collection (id TEXT PRIMARY KEY, name TEXT) WITHOUT ROWID;
CREATE TABLE collection_name (name TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE broken (tbl TEXT, key TEXT, reason TEXT);
"""
#: Once the rows are in.
INDEXES = """
CREATE INDEX chunk_of_doc ON chunk (doc_id, seq);
CREATE INDEX doc_of_source ON doc (lsid);
CREATE INDEX path_of_entry ON entry_path (path);
CREATE INDEX job_of_doc ON job (doc_id);
CREATE INDEX job_in_queue ON queue (job_id);
"""


def database_of(path: Path) -> Path | None:
    """Return the database of the KB that a path is, or that lies in it; None where there is none.

    A path may be the database under any name, the folder of the KB, or the one that this lies in.

    Raises:
        OSError: nobody may look there.
    """
    if path.is_file():
        return path if is_database(path) else None
    for folder in (path, path / _FOLDER):
        if (folder / FILE).is_file() and is_database(folder / FILE):
            return folder / FILE
    return None


def is_database(path: Path) -> bool:
    """Tell whether a file is the database of a KB: one of redb, unless it is seen to hold other tables.

    Raises:
        OSError: nobody may read it.
    """
    with links.reading(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return path.name == FILE
    return path.name == FILE or not _is_of_another(path)


def _is_of_another(path: Path) -> bool:
    """Tell whether a file of redb can be read, and holds other tables."""
    damage: list[PageDamage] = []
    try:
        with read_redb(path, on_damage=damage.append) as file:
            return not damage and not file.tables.keys() >= _MARKS
    except RegraftError:
        return False


class Read(msgspec.Struct, kw_only=True):
    """What of one table could be read: rows, those that are not of their form, and how many the table says it has."""

    rows: int = 0
    broken: int = 0
    stated: int = 0
    #: Whether the database has the table at all.
    is_there: bool = False

    @property
    def lost(self) -> int:
        """Return how many rows lie in pages that are damaged."""
        return max(0, self.stated - self.rows - self.broken)


class Mirror(msgspec.Struct, kw_only=True):
    """A database as temporary tables (:data:`SCHEMA`), what of it could be read, and the pages that could not."""

    db: apsw.Connection
    clean: bool = True
    format_version: int = 0
    #: Of the file, for who reads it once more (:func:`regraft.formats.redb.read_redb`).
    state: bytes = b""
    tables: dict[str, Read] = msgspec.field(default_factory=dict)
    damage: list[PageDamage] = msgspec.field(default_factory=list)
    #: How many pages are damaged: no more than some are kept.
    damaged_pages: int = 0
    #: The tables that these are of; None: what says which tables there are.
    damaged_tables: set[str | None] = msgspec.field(default_factory=set)

    def see(self, damage: PageDamage) -> None:
        """Take note of a page that cannot be read."""
        self.damaged_pages += 1
        self.damaged_tables.add(damage.table)
        if len(self.damage) < _BATCH:
            self.damage.append(damage)

    def broken(self, table: str, key: bytes, reason: object) -> None:
        """Take note of a row that is not of its form."""
        self.tables[table].broken += 1
        if self.tables[table].broken <= MOST_BROKEN:
            self.db.execute("INSERT INTO broken VALUES (?, ?, ?)", (table, shown_key(key), str(reason)))

    def is_whole(self, *names: str) -> bool:
        """Tell whether every row of these tables was read: only then does what is not among them not exist."""
        if None in self.damaged_tables or self.damaged_tables.intersection(names):
            return False
        tables = [self.tables[name] for name in names]
        return all(table.is_there and not table.lost and not table.broken for table in tables)

    @property
    def lost_rows(self) -> int:
        """Return how many rows of all tables lie in damaged pages."""
        return sum(one.lost for one in self.tables.values())


def shown_key(key: bytes) -> str:
    """Return what a person calls a row by its key: its text, or, where that is none, its bytes in hex."""
    try:
        return key.decode().replace("\0", " ")
    except UnicodeDecodeError:
        return key.hex()


@contextmanager
def mirrored(
    path: Path,
    only: Iterable[str] = rows.TABLES,
    go_on: Callable[[int], None] = lambda _: None,
) -> Iterator[Mirror]:
    """Read a database into temporary tables, which are forgotten at the end.

    Args:
        path: the database.
        only: the tables that are needed.
        go_on: told of every row that was read, by its length in bytes.

    Raises:
        RedbError: it is in use, of another format, or damaged as a whole.
        OSError: it cannot be read.
    """
    with sqlite.scratch() as db:
        db.execute(SCHEMA)
        mirror = Mirror(db=db)
        with read_redb(path, on_damage=mirror.see) as file:
            mirror.clean, mirror.format_version, mirror.state = file.clean, file.format_version, file.state
            for table in only:
                _read_table(file, table, mirror, go_on)
        db.execute(INDEXES)
        yield mirror


def _read_table(file: RedbFile, table: str, mirror: Mirror, go_on: Callable[[int], None]) -> None:
    read = mirror.tables[table] = Read()
    if table not in file.tables:
        return
    read.is_there, read.stated = True, file.tables[table].length
    if file.tables[table].key_type not in _KEY_TYPES:
        reason = tr("its keys are of the type {type}", type=file.tables[table].key_type)
        mirror.see(PageDamage(table=table, page=tr("header"), offset=0, length=0, reason=reason))
        return
    writer = _Writer(mirror, table)
    with sqlite.transaction(mirror.db):
        for key, value in file.raw_rows(table):
            go_on(len(key) + len(value))
            try:
                writer.add(key, value)
            except (msgspec.MsgspecError, ValueError) as error:
                mirror.broken(table, key, error)
            else:
                read.rows += 1
        writer.flush()


class _Writer:
    """Puts the rows of one table into its temporary tables, many at a time."""

    def __init__(self, mirror: Mirror, table: str) -> None:
        self._mirror = mirror
        self._shape = _SHAPES.get(table, _unread)
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._count = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Take a row.

        Raises:
            msgspec.MsgspecError, ValueError: it is not of its form.
        """
        for name, row in self._shape(key, value):
            self._waiting.setdefault(name, []).append(row)
        self._count += 1
        if self._count % _BATCH == 0:
            self.flush()

    def flush(self) -> None:
        """Write what was taken."""
        for name, waiting in self._waiting.items():
            marks = ", ".join("?" * len(waiting[0]))
            self._mirror.db.executemany(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", waiting)
        self._waiting.clear()


#: Rows of temporary tables, each with the table that it goes into.
_Rows = Iterable[tuple[str, tuple[Any, ...]]]


def _demand_key(key: bytes, *parts: str) -> None:
    if key != "\0".join(parts).encode():
        raise ValueError("its key is another one than its value says")


def doc_row(doc: Doc) -> tuple[Any, ...]:
    """Return a document as a row of the temporary table ``doc``."""
    return (
        *(doc.id, doc.logical_source_id, doc.title, doc.source_kind, doc.source.type, doc.source.path, doc.source.url),
        *(doc.markdown_path, doc.markdown_sha256, doc.raw_path, doc.raw_sha256, doc.owner_user_id, doc.created_at),
        *(doc.updated_at, doc.version, doc.status, doc.visibility.type, doc.visibility.of, len(doc.tags)),
    )


def _doc(key: bytes, value: bytes) -> _Rows:
    doc = rows.decode_doc(value)
    _demand_key(key, doc.id)
    return [("doc", doc_row(doc))]


def _latest(key: bytes, value: bytes) -> _Rows:
    latest = rows.decode_latest(value)
    return [("latest", (key.decode(), latest.doc_id, latest.version))]


def _chunk(key: bytes, value: bytes) -> _Rows:
    chunk = rows.decode_chunk(value)
    _demand_key(key, chunk.id)
    place = (chunk.doc_version, chunk.seq, *chunk.byte_offset)
    more = (chunk.status, chunk.embedder_id, _numbers(chunk.vector), flaw_of(chunk.vector))
    return [("chunk", (chunk.id, chunk.doc_id, chunk.logical_source_id, *place, *more))]


def _numbers(vector: msgspec.Raw) -> int | None:
    """Return how many numbers a vector has; None where it is no array."""
    text = bytes(vector)
    if not text.startswith(b"["):
        return None
    return text.count(b",") + (text[1:-1].strip() != b"")


def _by_source(key: bytes, _value: bytes) -> _Rows:
    return [("by_source", rows.split_key(key.decode()))]


def _entity(key: bytes, value: bytes) -> _Rows:
    entity = rows.decode_entity(value)
    _demand_key(key, entity.canonical_id)
    return [("entity", (entity.canonical_id,))]


def _mention(_key: bytes, value: bytes) -> _Rows:
    mention = rows.decode_mention(value)
    return [("mention", (mention.entity_id, mention.chunk_id))]


def _entry(key: bytes, value: bytes) -> _Rows:
    entry = rows.decode_entry(value)
    _demand_key(key, entry.id)
    yield (
        "entry",
        (entry.id, entry.created_at, entry.updated_at, entry.doc_id, entry.op, entry.status, entry.error),
    )
    for is_new, paths in ((1, entry.new_paths), (0, entry.old_paths)):
        for path in paths:
            yield "entry_path", (entry.id, is_new, path)


def _job(key: bytes, value: bytes) -> _Rows:
    job = rows.decode_job(value)
    _demand_key(key, job.id)
    about = (job.kind.kind, job.kind.doc_id, job.kind.doc_version)
    return [("job", (job.id, *about, job.status, job.priority, job.created_at, job.attempts, job.last_error))]


def _dedupe(key: bytes, value: bytes) -> _Rows:
    return [("dedupe", (key.decode(), value.decode()))]


def _queued(key: bytes, _value: bytes) -> _Rows:
    return [("queue", rows.split_job_key(key))]


def _claim(key: bytes, value: bytes) -> _Rows:
    claim = rows.decode_claim(value)
    return [("claim", (key.decode(), claim.worker_id, claim.claimed_at, claim.expires_at))]


def _collection(key: bytes, value: bytes) -> _Rows:
    collection = rows.decode_collection(value)
    _demand_key(key, collection.id)
    return [("collection", (collection.id, collection.name))]


def _collection_name(key: bytes, value: bytes) -> _Rows:
    return [("collection_name", (key.decode(), value.decode()))]


def _object(_key: bytes, value: bytes) -> _Rows:
    rows.decode_object(value)
    return []


def _unread(_key: bytes, _value: bytes) -> _Rows:
    return []


_SHAPES: dict[str, Callable[[bytes, bytes], _Rows]] = {
    rows.DOCS: _doc,
    rows.LATEST: _latest,
    rows.CHUNKS: _chunk,
    rows.CHUNKS_BY_SOURCE: _by_source,
    rows.ENTITIES: _entity,
    rows.ENTITY_INDEX: _mention,
    rows.SEEN: _object,
    rows.SYNC: _object,
    rows.LEDGER: _entry,
    rows.JOBS: _job,
    rows.JOBS_BY_DEDUPE: _dedupe,
    rows.JOBS_BY_STATUS: _queued,
    rows.CLAIMS: _claim,
    rows.COLLECTIONS: _collection,
    rows.COLLECTIONS_BY_NAME: _collection_name,
}
