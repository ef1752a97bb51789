"""The directory and database of a KB, read into temporary tables (``docs/formats/rsclaw.md``, "The folder").

:func:`open_mirror` reads the database once into temporary SQLite tables; all other questions are SQL queries. Memory
use does not grow with rows. Malformed rows are counted and listed in a separate table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import apsw
import msgspec
from msgspec import Meta, Raw, Struct

from regraft.disk import links, sqlite
from regraft.errors import RegraftError
from regraft.formats.redb import PageDamage, RedbFile, read_redb
from regraft.formats.rsclaw.vectors import find_flaw
from regraft.language import tr

# Rows of the tables of ``kb.redb`` (``docs/formats/rsclaw.md``, "Tables"). Unused fields are not decoded.
# A malformed row raises ``msgspec.MsgspecError``.


#: Integers that SQLite and rsclaw can store.
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
NonNegativeInt64 = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
NonEmptyText = Annotated[str, Meta(min_length=1)]

DOCS = "kb_docs"
LATEST = "kb_doc_latest_version"
CHUNKS = "kb_chunks"
CHUNKS_BY_SOURCE = "kb_chunk_by_logical"
ENTITIES = "kb_entities"
ENTITY_INDEX = "kb_entity_index"
SEEN = "kb_seen_items"
SYNC = "kb_sync_state"
LEDGER = "kb_ledger"
JOBS = "kb_jobs_by_id"
JOBS_BY_DEDUPE = "kb_jobs_by_dedupe_active"
JOBS_BY_STATUS = "kb_jobs_by_status_priority"
CLAIMS = "kb_job_claims"
COLLECTIONS = "kb_collections"
COLLECTIONS_BY_NAME = "kb_collection_by_name"
TABLES = (
    DOCS,
    LATEST,
    CHUNKS,
    CHUNKS_BY_SOURCE,
    ENTITIES,
    ENTITY_INDEX,
    SEEN,
    SYNC,
    LEDGER,
    JOBS,
    JOBS_BY_DEDUPE,
    JOBS_BY_STATUS,
    CLAIMS,
    COLLECTIONS,
    COLLECTIONS_BY_NAME,
)

ACTIVE, TOMBSTONED, UPDATING = "active", "tombstoned", "updating"
#: States of a ledger entry, in order.
PENDING, INDEXED, CLEANUP, DONE = "pending", "indexing_complete", "cleanup_pending", "done"


class JobStatus(IntEnum):
    """First byte of a key of :data:`JOBS_BY_STATUS`."""

    READY = 0
    RUNNING = 1
    DONE = 2
    FAILED = 3


class Visibility(Struct, frozen=True):
    """Who may see a document."""

    type: str
    agent_id: str | None = None
    channel_id: str | None = None

    @property
    def of(self) -> str | None:
        """Id of the agent or the channel that the document is visible to; None for another type of visibility."""
        return {"agent": self.agent_id, "channel": self.channel_id}.get(self.type)


class Source(Struct, frozen=True):
    """Where a document came from."""

    type: str = ""
    path: str | None = None
    url: str | None = None


class Doc(Struct, frozen=True):
    """A version of a document. Times are in milliseconds."""

    id: NonEmptyText
    logical_source_id: str
    title: str
    markdown_path: str
    created_at: Int64
    updated_at: Int64
    version: Int64
    status: str
    visibility: Visibility
    source: Source = Source()
    source_kind: str = ""
    markdown_sha256: str | None = None
    raw_sha256: str | None = None
    raw_path: str | None = None
    owner_user_id: str | None = None
    tags: list[str] = []


class Chunk(Struct, frozen=True):
    """A part of a document. ``byte_offset`` is its range in the document's body."""

    id: NonEmptyText
    doc_id: str
    logical_source_id: str
    doc_version: Int64
    seq: NonNegativeInt64
    byte_offset: tuple[Int64, Int64]
    indexed_text: str
    vector: Raw
    status: str
    embedder_id: str


class LatestVersion(Struct, frozen=True):
    """The latest version of a source."""

    doc_id: str
    version: Int64


class Entity(Struct, frozen=True):
    """A name that is mentioned in texts."""

    canonical_id: str


class Mention(Struct, frozen=True):
    """A mention of an entity in a chunk."""

    entity_id: str
    chunk_id: str


class LedgerEntry(Struct, frozen=True):
    """An entry of rsclaw's ledger. Times are in milliseconds."""

    id: NonEmptyText
    created_at: Int64
    updated_at: Int64
    doc_id: str
    status: str
    op: str = ""
    new_paths: list[str] = []
    old_paths: list[str] = []
    error: str | None = None


class JobKind(Struct, frozen=True):
    """What a job is about."""

    kind: str = ""
    doc_id: str | None = None
    doc_version: Int64 | None = None


class KbJob(Struct, frozen=True):
    """A job of the outbox. Times are in milliseconds."""

    id: NonEmptyText
    kind: JobKind
    status: str
    priority: Int64
    created_at: Int64
    attempts: Int64 = 0
    last_error: str | None = None


class JobClaim(Struct, frozen=True):
    """The claim of a worker on a job. Times are in milliseconds."""

    worker_id: str
    claimed_at: Int64
    expires_at: Int64
    token: str = ""


class KbCollection(Struct, frozen=True):
    """A named collection of documents."""

    id: str
    name: str


T = TypeVar("T")


def _decoder(shape: type[T]) -> Callable[[bytes], T]:
    """Return a function that decodes the JSON of a row. JSON that is nested too deeply counts as malformed."""
    decode = msgspec.json.Decoder(shape).decode

    def decoded(value: bytes) -> T:
        """Decode the JSON of a row; raises msgspec.MsgspecError if it is malformed."""
        try:
            return decode(value)
        except RecursionError as error:
            raise msgspec.DecodeError("JSON is nested too deep") from error

    return decoded


decode_doc = _decoder(Doc)
decode_chunk = _decoder(Chunk)
decode_latest = _decoder(LatestVersion)
decode_entity = _decoder(Entity)
decode_mention = _decoder(Mention)
decode_entry = _decoder(LedgerEntry)
decode_job = _decoder(KbJob)
decode_claim = _decoder(JobClaim)
decode_collection = _decoder(KbCollection)
#: For tables whose rows only have to be JSON objects.
decode_object = _decoder(dict[str, Raw])


def split_key(key: str) -> tuple[str, str]:
    """Split a key into its two parts, which a NUL character separates.

    Raises:
        ValueError: the key has only one part.
    """
    first, separator, second = key.partition("\0")
    if not separator:
        raise ValueError("the key has only one part")
    return first, second


def split_job_key(key: bytes) -> tuple[int, int, int, str]:
    """Split a key of :data:`JOBS_BY_STATUS` into status, priority, time (milliseconds) and job id.

    Raises:
        ValueError: the key is not valid.
    """
    if len(key) < 11:
        raise ValueError("the key is too short")
    return key[0], key[1], int.from_bytes(key[2:10], "big", signed=True), key[10:].decode()


FILE = "kb.redb"
MARKDOWN, RAW, FULL_TEXT, HNSW = "md", "raw", "idx/tantivy", "hnsw"
SNAPSHOT = f"{HNSW}/snapshot.meta.json"
#: Magic number of redb files.
MAGIC = b"redb\x1a\n\xa9\r\n"
#: Directory of the KB below the application's own.
_FOLDER = "kb"
#: A database of a KB has at least these tables.
_MARKS = frozenset({DOCS, CHUNKS})
_BATCH = 500
#: Malformed rows listed per table; further ones are only counted.
MAX_BROKEN_ROWS = 10_000
#: Accepted key types. With fixed-width types, a key could be empty, so a small file could claim any number of rows.
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
#: Created after all rows are inserted.
INDEXES = """
CREATE INDEX chunk_of_doc ON chunk (doc_id, seq);
CREATE INDEX doc_of_source ON doc (lsid);
CREATE INDEX path_of_entry ON entry_path (path);
CREATE INDEX job_of_doc ON job (doc_id);
CREATE INDEX job_in_queue ON queue (job_id);
"""


def find_database(path: Path) -> Path | None:
    """Return the database of the knowledge base (KB) at a path, or None.

    The path may be the database under any name, the directory of the KB, or its parent directory.

    Raises:
        OSError: the directory cannot be read.
    """
    if path.is_file():
        return path if is_database(path) else None
    for folder in (path, path / _FOLDER):
        if (folder / FILE).is_file() and is_database(folder / FILE):
            return folder / FILE
    return None


def is_database(path: Path) -> bool:
    """Whether a file is the database of a KB: by its name, or as a redb file with the tables of a KB.

    A redb file that is damaged or cannot be read may have the tables, so it counts.

    Raises:
        OSError: the file cannot be read.
    """
    with links.open_for_reading(path) as file:
        if file.read(len(MAGIC)) != MAGIC:
            return path.name == FILE
    if path.name == FILE:
        return True
    damage: list[PageDamage] = []
    try:
        with read_redb(path, on_damage=damage.append) as redb:
            return bool(damage) or redb.tables.keys() >= _MARKS
    except RegraftError:
        return True


class TableCounts(msgspec.Struct, kw_only=True):
    """Row counts of a table: readable and malformed rows, and the number that the table states."""

    rows: int = 0
    broken: int = 0
    stated: int = 0
    #: Whether the table exists.
    is_there: bool = False

    @property
    def lost(self) -> int:
        """Number of rows in damaged pages."""
        return max(0, self.stated - self.rows - self.broken)


class Mirror(msgspec.Struct, kw_only=True):
    """The content of a KB's database as temporary SQLite tables (:data:`SCHEMA`), and its damage."""

    db: apsw.Connection
    clean: bool = True
    format_version: int = 0
    #: State of the file, to verify that a second reading sees the same content (see
    #: :func:`regraft.formats.redb.read_redb`).
    state: bytes = b""
    tables: dict[str, TableCounts] = msgspec.field(default_factory=dict)
    damage: list[PageDamage] = msgspec.field(default_factory=list)
    #: Number of damaged pages; only the first ones are in ``damage``.
    damaged_pages: int = 0
    #: Tables with damaged pages; None means the list of tables.
    damaged_tables: set[str | None] = msgspec.field(default_factory=set)

    def record_damage(self, damage: PageDamage) -> None:
        """Count a damaged page and note its table; keep the details of the first :data:`_BATCH` pages."""
        self.damaged_pages += 1
        self.damaged_tables.add(damage.table)
        if len(self.damage) < _BATCH:
            self.damage.append(damage)

    def record_broken_row(self, table: str, key: bytes, reason: object) -> None:
        """Record a malformed row of a table: its key, and why it cannot be decoded."""
        self.tables[table].broken += 1
        if self.tables[table].broken <= MAX_BROKEN_ROWS:
            self.db.execute("INSERT INTO broken VALUES (?, ?, ?)", (table, format_key(key), str(reason)))

    def is_whole(self, *names: str) -> bool:
        """Whether every row of the named tables was read, so that a row that was not found does not exist."""
        if None in self.damaged_tables or self.damaged_tables.intersection(names):
            return False
        tables = [self.tables[name] for name in names]
        return all(table.is_there and not table.lost and not table.broken for table in tables)

    @property
    def lost_rows(self) -> int:
        """Number of rows in damaged pages of all tables."""
        return sum(one.lost for one in self.tables.values())


def format_key(key: bytes) -> str:
    """Format a stored key for messages: its text, or hex digits if it is not UTF-8."""
    try:
        return key.decode().replace("\0", " ")
    except UnicodeDecodeError:
        return key.hex()


@contextmanager
def open_mirror(
    path: Path,
    only: Iterable[str] = TABLES,
    go_on: Callable[[int], None] = lambda _: None,
) -> Iterator[Mirror]:
    """Read a KB's database into temporary SQLite tables, which are discarded at the end.

    Args:
        path: the database.
        only: tables to read.
        go_on: called with the length in bytes of each row that was read.

    Raises:
        RedbError: the database is in use, of another format, or completely damaged.
        OSError: the file cannot be read.
    """
    with sqlite.open_scratch() as db:
        db.execute(SCHEMA)
        mirror = Mirror(db=db)
        with read_redb(path, on_damage=mirror.record_damage) as file:
            mirror.clean, mirror.format_version, mirror.state = file.clean, file.format_version, file.state
            for table in only:
                _read_table(file, table, mirror, go_on)
        db.execute(INDEXES)
        yield mirror


def _read_table(file: RedbFile, table: str, mirror: Mirror, go_on: Callable[[int], None]) -> None:
    """Copy the rows of a table to the temporary tables of a mirror, and count them there.

    ``go_on`` is called with the length in bytes of each row.
    """
    read = mirror.tables[table] = TableCounts()
    if table not in file.tables:
        return
    read.is_there, read.stated = True, file.tables[table].length
    if file.tables[table].key_type not in _KEY_TYPES:
        reason = tr("the keys have the type {type}", type=file.tables[table].key_type)
        mirror.record_damage(PageDamage(table=table, page=tr("header"), offset=0, length=0, reason=reason))
        return
    writer = _Writer(mirror, table)
    with sqlite.transaction(mirror.db):
        for key, value in file.raw_rows(table):
            go_on(len(key) + len(value))
            try:
                writer.add(key, value)
            except (msgspec.MsgspecError, ValueError) as error:
                mirror.record_broken_row(table, key, error)
            else:
                read.rows += 1
        writer.flush()


class _Writer:
    """Converts the rows of one redb table and inserts them into the temporary tables of a mirror, in batches."""

    def __init__(self, mirror: Mirror, table: str) -> None:
        self._mirror = mirror
        self._convert = _ROW_CONVERTERS[table]
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._count = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Convert a stored row and collect the result.

        Raises:
            msgspec.MsgspecError, ValueError: the row is malformed.
        """
        for name, row in self._convert(key, value):
            self._waiting.setdefault(name, []).append(row)
        self._count += 1
        if self._count % _BATCH == 0:
            self.flush()

    def flush(self) -> None:
        """Insert the collected rows."""
        for name, waiting in self._waiting.items():
            marks = ", ".join("?" * len(waiting[0]))
            self._mirror.db.executemany(f"INSERT OR IGNORE INTO {name} VALUES ({marks})", waiting)
        self._waiting.clear()


#: Rows for temporary tables, each with the name of its table.
_TemporaryRows = Iterable[tuple[str, tuple[Any, ...]]]


def doc_row(doc: Doc) -> tuple[Any, ...]:
    """Return a document as a row of the temporary table ``doc``."""
    return (
        *(doc.id, doc.logical_source_id, doc.title, doc.source_kind, doc.source.type, doc.source.path, doc.source.url),
        *(doc.markdown_path, doc.markdown_sha256, doc.raw_path, doc.raw_sha256, doc.owner_user_id, doc.created_at),
        *(doc.updated_at, doc.version, doc.status, doc.visibility.type, doc.visibility.of, len(doc.tags)),
    )


def _chunk_row(chunk: Chunk) -> tuple[Any, ...]:
    """Return a chunk as a row of the temporary table ``chunk``; its vector is only measured."""
    position = (chunk.doc_version, chunk.seq, *chunk.byte_offset)
    text = bytes(chunk.vector)
    # The number of elements of the vector; None if it is not an array.
    dimensions = text.count(b",") + (text[1:-1].strip() != b"") if text.startswith(b"[") else None
    status = (chunk.status, chunk.embedder_id, dimensions, find_flaw(chunk.vector))
    return (chunk.id, chunk.doc_id, chunk.logical_source_id, *position, *status)


def _job_row(job: KbJob) -> tuple[Any, ...]:
    """Return a job as a row of the temporary table ``job``."""
    about = (job.kind.kind, job.kind.doc_id, job.kind.doc_version)
    return (job.id, *about, job.status, job.priority, job.created_at, job.attempts, job.last_error)


def _convert_entry(key: bytes, value: bytes) -> _TemporaryRows:
    """Convert a stored ledger entry to rows of temporary tables: the entry, and each of its new and old paths.

    Raises ValueError if its key is not its id.
    """
    entry = decode_entry(value)
    _check_key(key, entry.id)
    yield (
        "entry",
        (entry.id, entry.created_at, entry.updated_at, entry.doc_id, entry.op, entry.status, entry.error),
    )
    for is_new, paths in ((1, entry.new_paths), (0, entry.old_paths)):
        for path in paths:
            yield "entry_path", (entry.id, is_new, path)


def _check_object(_key: bytes, value: bytes) -> _TemporaryRows:
    """Check that a stored row is a JSON object; no temporary table has rows of it."""
    decode_object(value)
    return []


def _check_key(key: bytes, row_id: str) -> None:
    """Raise ValueError if the key of a row is not the id in its value."""
    if key != row_id.encode():
        raise ValueError("the key does not match the value")


def _make_id_converter(
    table: str, decode: Callable[[bytes], T], get_id: Callable[[T], str], make_row: Callable[[T], tuple[Any, ...]]
) -> Callable[[bytes, bytes], _TemporaryRows]:
    """Return a function that converts a stored row, whose key is its id, to a row of a temporary table.

    Args:
        table: name of the temporary table.
        decode: decodes the stored value.
        get_id: returns the id in the decoded value.
        make_row: makes the row from the decoded value.
    """

    def convert(key: bytes, value: bytes) -> _TemporaryRows:
        """Convert a stored row; raises ValueError if its key is not its id."""
        decoded = decode(value)
        _check_key(key, get_id(decoded))
        return [(table, make_row(decoded))]

    return convert


def _make_key_converter(
    table: str, decode: Callable[[bytes], T], make_row: Callable[[T, str], tuple[Any, ...]]
) -> Callable[[bytes, bytes], _TemporaryRows]:
    """Return a function that converts a stored row to a row of a temporary table that contains the row's key.

    Args:
        table: name of the temporary table.
        decode: decodes the stored value.
        make_row: makes the row from the decoded value and the key.
    """
    return lambda key, value: [(table, make_row(decode(value), key.decode()))]


#: Converts key and value of a stored row, by table.
_ROW_CONVERTERS: dict[str, Callable[[bytes, bytes], _TemporaryRows]] = {
    DOCS: _make_id_converter("doc", decode_doc, lambda doc: doc.id, doc_row),
    LATEST: _make_key_converter("latest", decode_latest, lambda latest, key: (key, latest.doc_id, latest.version)),
    CHUNKS: _make_id_converter("chunk", decode_chunk, lambda chunk: chunk.id, _chunk_row),
    CHUNKS_BY_SOURCE: lambda key, _: [("by_source", split_key(key.decode()))],
    ENTITIES: _make_id_converter(
        "entity", decode_entity, lambda entity: entity.canonical_id, lambda entity: (entity.canonical_id,)
    ),
    ENTITY_INDEX: lambda _, value: [("mention", msgspec.structs.astuple(decode_mention(value)))],
    SEEN: _check_object,
    SYNC: _check_object,
    LEDGER: _convert_entry,
    JOBS: _make_id_converter("job", decode_job, lambda job: job.id, _job_row),
    JOBS_BY_DEDUPE: lambda key, value: [("dedupe", (key.decode(), value.decode()))],
    JOBS_BY_STATUS: lambda key, _: [("queue", split_job_key(key))],
    CLAIMS: _make_key_converter(
        "claim", decode_claim, lambda claim, key: (key, claim.worker_id, claim.claimed_at, claim.expires_at)
    ),
    COLLECTIONS: _make_id_converter(
        "collection", decode_collection, lambda one: one.id, lambda one: (one.id, one.name)
    ),
    COLLECTIONS_BY_NAME: lambda key, value: [("collection_name", (key.decode(), value.decode()))],
}
