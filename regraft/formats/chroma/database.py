"""Reads Chroma's database with plain SQLite (``docs/formats/chroma.md``, "The database").

``chroma.sqlite3`` holds collections, ids, documents and metadata in tables, and the vectors of recent operations in a
queue. All other vectors are in the files of a segment's folder (:mod:`regraft.formats.chroma.collection`).
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import msgspec
from msgspec import structs

from regraft.disk import file_paths, sqlite
from regraft.formats import json_text
from regraft.language import format_count, join_list, tr

#: File name of Chroma's database.
FILE = "chroma.sqlite3"
#: Metadata key of an entry's document.
DOCUMENT = "chroma:document"
#: Key of a collection's metadata under which regraft records the model of the vectors, ``provider::model``.
MODEL_KEY = "embedding_model"
#: Operation codes in the queue.
ADD, UPDATE, UPSERT, DELETE = range(4)

#: Tables and columns that are read.
_READ = {
    "collections": ("id", "name", "dimension"),
    "segments": ("id", "scope", "collection"),
    "embeddings": ("id", "segment_id", "embedding_id"),
    "embedding_metadata": ("id", "key", "string_value", "int_value", "float_value"),
    "embeddings_queue": ("seq_id", "operation", "topic", "id", "vector", "encoding", "metadata"),
    "max_seq_id": ("segment_id", "seq_id"),
}
#: Lists in the metadata of entries.
_LISTS = "embedding_metadata_array"
#: The full-text index of all documents, and the table in which FTS5 stores their texts.
FULL_TEXT_TABLE = "embedding_fulltext_search"
FULL_TEXT_CONTENT = f"{FULL_TEXT_TABLE}_content"
#: The statements of the index and of the tables in which FTS5 stores it, by name, as every version writes them.
FULL_TEXT_SQL = {
    FULL_TEXT_TABLE: f"CREATE VIRTUAL TABLE {FULL_TEXT_TABLE} USING fts5(string_value, tokenize='trigram')",
    **{
        f"{FULL_TEXT_TABLE}_{part}": f"CREATE TABLE '{FULL_TEXT_TABLE}_{part}'{columns}"
        for part, columns in (
            ("data", "(id INTEGER PRIMARY KEY, block BLOB)"),
            ("idx", "(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID"),
            ("content", "(id INTEGER PRIMARY KEY, c0)"),
            ("docsize", "(id INTEGER PRIMARY KEY, sz BLOB)"),
            ("config", "(k PRIMARY KEY, v) WITHOUT ROWID"),
        )
    },
}
#: SQL: documents whose text in the index is missing or differs.
DIFFERING_DOCUMENTS = (
    f"FROM embedding_metadata m LEFT JOIN {FULL_TEXT_CONTENT} c ON c.id = m.id "
    f"WHERE m.key = '{DOCUMENT}' AND m.string_value IS NOT NULL AND c.c0 IS NOT m.string_value"
)
#: Distances of a collection. Collections of cosine distance store unit vectors, and their norms.
DISTANCES = ("l2", "cosine", "ip")
#: The files of a segment but for the label map.
HEADER_FILE, ELEMENTS_FILE, NORMS_FILE, UPPER_FILE = "header.bin", "data_level0.bin", "length.bin", "link_lists.bin"
#: Operations in the queue after which Chroma writes a segment, if the collection does not say.
_SYNC_THRESHOLD = 1000
#: Bytes of the number of an operation in versions before 1.0.
_NUMBER_BYTES = (8, 24)
#: Links of an element on upper levels (M) if the collection does not say, and the most that are believed.
DEFAULT_LINKS, MAX_LINKS = 16, 4096
#: Characters of the id of a collection or a segment.
_ID_CHARACTERS = 36
#: Limit of the dimensions that are believed.
MAX_DIMENSION = 1 << 20
#: SQL: the collection of an operation in the queue, whose id ends the topic.
TOPIC_COLLECTION = f"substr(topic, -{_ID_CHARACTERS})"
#: SQL: whether an operation in the queue has a number or a code that Chroma never writes.
INVALID_OPERATION = (
    f"(typeof(seq_id) <> 'integer' OR coalesce(operation, -1) NOT IN ({ADD}, {UPDATE}, {UPSERT}, {DELETE}))"
)
#: Chroma database that is used by default.
_DEFAULT_DATABASE = "00000000-0000-0000-0000-000000000000"


class ChromaProblem(ValueError):
    """A directory or file of Chroma that cannot be used; the message gives the reason."""


class ChromaCollection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection; ``dimension`` is None if nothing was ever written to it."""

    id: str
    name: str
    dimension: int | None
    #: Segment ids: the first names the directory with the vectors, the second the rows with ids and metadata.
    vectors: str | None
    metadata: str | None
    #: Name of the distance; None if it is none that Chroma has.
    distance: str | None = "l2"
    #: Operations in the queue after which Chroma writes the segment.
    sync_threshold: int = _SYNC_THRESHOLD
    #: Links of an element on upper levels (M).
    links: int = DEFAULT_LINKS


class ChromaEntry(msgspec.Struct, frozen=True):
    """Id, document and metadata of an entry."""

    id: str
    document: str | None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


@contextmanager
def open_chroma(path: Path) -> Iterator[apsw.Connection]:
    """Open a ``chroma.sqlite3`` for reading, leaving no files behind.

    Raises:
        ChromaProblem: the file is not a Chroma database, is damaged, or has an unknown layout.
        FileNotFoundError: the file does not exist.
    """
    if not path.is_file():
        raise FileNotFoundError(path)
    try:
        with sqlite.open_readonly(path, beside_writers=True) as db:
            _check_layout(db)
            yield db
    except (*sqlite.CONTENT_ERRORS, UnicodeDecodeError) as error:
        raise ChromaProblem(tr("it is damaged ({error})", error=error)) from error


def _check_layout(db: apsw.Connection) -> None:
    """Raise ChromaProblem if a table or column is missing, or if there are triggers or views."""
    # Chroma enables triggers when it writes, so a foreign trigger would run.
    foreign: Any = db.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view')").fetchone()
    if foreign is not None:
        raise ChromaProblem(
            tr(
                "it has a {foreign} {foreign2}, which Chroma never creates",
                foreign=foreign[0],
                foreign2=foreign[1],
            )
        )
    for table, columns in _READ.items():
        existing = column_names(db, table)
        if not existing:
            raise ChromaProblem(tr("it has no table {table}: not a Chroma database", table=table))
        missing = [column for column in columns if column not in existing]
        if missing:
            message = tr(
                "its table {table} has no column {missing}: unknown Chroma layout",
                table=table,
                missing=missing[0],
            )
            raise ChromaProblem(message)


def find_collection(db: apsw.Connection, name: str) -> ChromaCollection | None:
    """Return the collection with a name, or None. The default database takes precedence."""
    columns = column_names(db, "collections")
    order = "database_id <> ?2" if "database_id" in columns else "?2"
    found = f"SELECT CAST(id AS TEXT) FROM collections WHERE name = ?1 AND id IS NOT NULL ORDER BY {order}, id"
    key: Any = db.execute(found, (name, _DEFAULT_DATABASE)).get
    return None if key is None else read_collection(db, key)


def list_collections(db: apsw.Connection) -> list[ChromaCollection]:
    """Return all collections, ordered by name. A vector segment that several of them refer to belongs to none."""
    query = "SELECT CAST(id AS TEXT) FROM collections WHERE id IS NOT NULL ORDER BY name, id"
    keys = [str(key) for (key,) in db.execute(query)]
    found = [read_collection(db, key) for key in keys]
    owners = Counter(one.vectors for one in found)
    return [one if owners[one.vectors] == 1 else structs.replace(one, vectors=None) for one in found]


def read_collection(db: apsw.Connection, key: str) -> ChromaCollection:
    """Read the row and the settings of the collection with an id (``key``)."""
    row: Any = db.execute("SELECT name, dimension FROM collections WHERE CAST(id AS TEXT) = ?", (key,)).fetchone()
    found = "SELECT scope, CAST(id AS TEXT) FROM segments WHERE CAST(collection AS TEXT) = ?"
    segments = dict(db.execute(found, (key,)))
    settings = _read_settings(db, key)
    distance, threshold = settings.get("space", "l2"), settings.get("sync_threshold")
    links = settings.get("M", settings.get("max_neighbors"))
    return ChromaCollection(
        id=key,
        name=str(row[0]),
        dimension=row[1],
        vectors=segments.get("VECTOR"),
        metadata=segments.get("METADATA"),
        distance=distance if distance in DISTANCES else None,
        sync_threshold=threshold if isinstance(threshold, int) and threshold > 0 else _SYNC_THRESHOLD,
        links=links if isinstance(links, int) and 0 < links <= MAX_LINKS else DEFAULT_LINKS,
    )


def _read_settings(db: apsw.Connection, key: str) -> dict[str, Any]:
    """Return the stated settings of a collection's vector index by name (see ``_SETTINGS``); ``key`` is its id.

    Metadata takes precedence over the configuration, as in Chroma. Versions from 1.0 on write the configuration, from
    1.3 on the schema.
    """
    found: dict[str, Any] = {"space": "l2"}
    columns = column_names(db, "collections")
    # The configuration takes precedence over the schema.
    for column in sorted(columns.intersection(("schema_str", "config_json_str")), reverse=True):
        text: Any = db.execute(f"SELECT {column} FROM collections WHERE CAST(id AS TEXT) = ?", (key,)).get
        for path in (("hnsw_configuration",), ("hnsw",), _VECTOR_INDEX, (*_VECTOR_INDEX, "hnsw")):
            inner = _find_in(_decode_json(text), path)
            found |= {name: inner[name] for name in _SETTINGS if inner.get(name) is not None}
    if column_names(db, "collection_metadata"):
        query = (
            "SELECT key, coalesce(str_value, int_value) FROM collection_metadata WHERE CAST(collection_id AS TEXT) = ?"
        )
        for name, value in db.execute(f"{query} AND key IN ('hnsw:space', 'hnsw:sync_threshold', 'hnsw:M')", (key,)):
            found[str(name).removeprefix("hnsw:")] = value
    return found


#: Settings of the vector index that are read. Versions from 1.0 on call M ``max_neighbors``.
_SETTINGS = ("space", "sync_threshold", "M", "max_neighbors")


def read_model(db: apsw.Connection, collection: ChromaCollection) -> tuple[str, str] | None:
    """Return the provider and the name of the model of a collection's vectors, or None.

    Versions from 1.0 on record an embedding function, if the application did not embed the texts itself. regraft
    records the model of a base that it exported in the collection's metadata.
    """
    columns = column_names(db, "collections")
    for column in ("config_json_str", "schema_str"):
        text: Any = db.execute(
            f"SELECT {column if column in columns else 'NULL'} FROM collections WHERE CAST(id AS TEXT) = ?",
            (collection.id,),
        ).get
        for path in (("embedding_function",), (*_VECTOR_INDEX, "embedding_function")):
            function = _find_in(_decode_json(text), path)
            config = function.get("config")
            name = function.get("name")
            model = config.get("model_name", config.get("model")) if isinstance(config, dict) else None
            if isinstance(name, str) and isinstance(model, str) and name.strip() and model.strip():
                return name, model
    if column_names(db, "collection_metadata"):
        query = "SELECT str_value FROM collection_metadata WHERE CAST(collection_id AS TEXT) = ? AND key = ?"
        recorded: Any = db.execute(query, (collection.id, MODEL_KEY)).get
        provider, separator, model = recorded.partition("::") if isinstance(recorded, str) else ("", "", "")
        if provider.strip() and separator and model.strip():
            return provider, model
    return None


def _decode_json(text: Any) -> Any:
    """Decode JSON text from the database; an empty object if it is invalid or no text."""
    try:
        return json_text.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def _find_in(value: Any, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the JSON object at a path of keys in ``value``, or an empty one."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


#: Where a schema has the settings of the vector index.
_VECTOR_INDEX = ("keys", "#embedding", "float_list", "vector_index", "config")


def column_names(db: apsw.Connection, table: str) -> set[str]:
    """Return the names of a table's columns; empty if there is no such table."""
    return {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}


def check_dimension(collection: ChromaCollection) -> None:
    """Raise ChromaProblem if the dimension of a collection is invalid."""
    if not (
        collection.dimension is None
        or (isinstance(collection.dimension, int) and 0 < collection.dimension <= MAX_DIMENSION)
    ):
        raise ChromaProblem(tr("the dimension of its collection {name} is not valid", name=collection.name))


def list_collection_names(db: apsw.Connection) -> list[str]:
    """Return the names of all collections in ascending order."""
    return [str(name) for (name,) in db.execute("SELECT name FROM collections ORDER BY name")]


def count_entries(db: apsw.Connection, collection: ChromaCollection) -> int:
    """Return the number of entries of a collection."""
    if _has_pending(db, collection):
        return sum(1 for _ in iterate_entries(db, collection))
    number: Any = db.execute("SELECT count(*) FROM embeddings WHERE segment_id = ?", (collection.metadata,)).get
    return int(number)


def last_write_time(db: apsw.Connection, collection: ChromaCollection) -> float | None:
    """Return when the latest entry of a collection was written (Unix time in seconds), or None if unknown."""
    if "created_at" not in column_names(db, "embeddings"):
        return None
    query = "SELECT CAST(max(unixepoch(created_at)) AS REAL) FROM embeddings WHERE segment_id = ?"
    latest: Any = db.execute(query, (collection.metadata,)).get
    return None if latest is None else float(latest)


def iterate_entries(db: apsw.Connection, collection: ChromaCollection) -> Iterator[ChromaEntry]:
    """Yield the entries of a collection as Chroma would return them, in insertion order."""
    if not _has_pending(db, collection):
        yield from _iterate_stored_entries(db, collection)
        return
    with sqlite.open_scratch() as scratch:
        # A queue can be large, so the numbers of its operations are in a temporary table.
        scratch.execute("CREATE TABLE pending (id TEXT, seq INTEGER, PRIMARY KEY (id, seq)) WITHOUT ROWID")
        rows = db.execute(
            f"SELECT CAST(id AS TEXT), seq_id {PENDING}", (collection.id, read_applied(db, collection.metadata))
        )
        with sqlite.transaction(scratch):
            scratch.executemany("INSERT OR IGNORE INTO pending VALUES (?, ?)", rows)
        for entry in _iterate_stored_entries(db, collection):
            now = _apply_operations(entry, _take_pending(db, scratch, entry.id))
            if now is not None:
                yield now
        while (left := scratch.execute("SELECT id FROM pending ORDER BY id LIMIT 1").get) is not None:
            key = str(left)
            made = _apply_operations(None, _take_pending(db, scratch, key), key)
            if made is not None:
                yield made


def iterate_ids(db: apsw.Connection, collection: ChromaCollection) -> Iterator[str]:
    """Yield the ids of a collection's entries, in insertion order."""
    if _has_pending(db, collection):
        yield from (entry.id for entry in iterate_entries(db, collection))
        return
    query = "SELECT CAST(embedding_id AS TEXT) FROM embeddings WHERE segment_id = ? ORDER BY id"
    yield from (str(key) for (key,) in db.execute(query, (collection.metadata,)))


def _iterate_stored_entries(db: apsw.Connection, collection: ChromaCollection) -> Iterator[ChromaEntry]:
    """Yield the entries of a collection as the tables have them, without queued operations."""
    flag = "bool_value" in column_names(db, "embedding_metadata")
    rows = db.execute(
        "SELECT e.id, e.embedding_id, m.key, m.string_value, m.int_value, m.float_value, "
        f"{'m.bool_value' if flag else 'NULL'} FROM embeddings e LEFT JOIN embedding_metadata m ON m.id = e.id "
        "WHERE e.segment_id = ? ORDER BY e.id",
        (collection.metadata,),
    )
    # Versions from 1.5 on store the lists in metadata in a table of their own.
    needed = {"id", "key", "string_value", "int_value", "float_value", "bool_value"}
    has_lists = needed <= column_names(db, _LISTS) and db.execute(f"SELECT 1 FROM {_LISTS} LIMIT 1").get is not None
    for (number, key), group in groupby(rows, lambda row: (row[0], str(row[1]))):
        values = {str(row[2]): _pick_value(*row[3:]) for row in group if row[2] is not None}
        if has_lists:
            values |= _read_lists(db, number)
        document = values.pop(DOCUMENT, None)
        yield ChromaEntry(key, None if document is None else str(document), values)


def _read_lists(db: apsw.Connection, number: Any) -> dict[str, Any]:
    """Read the lists in the metadata of an entry by key; ``number`` is its row in the tables."""
    found: dict[str, Any] = {}
    query = f"SELECT key, string_value, int_value, float_value, bool_value FROM {_LISTS} WHERE id = ? ORDER BY rowid"
    for key, *value in db.execute(query, (number,)):
        found.setdefault(str(key), []).append(_pick_value(*value))
    return found


def read_document(db: apsw.Connection, collection: ChromaCollection, key: str) -> str | None:
    """Return the document of the entry with an id, or else its copy in the full-text index, or None."""
    of_entry = "WHERE e.segment_id = ? AND e.embedding_id = ?"
    query = f"""SELECT CAST(m.string_value AS TEXT) FROM embeddings e JOIN embedding_metadata m ON m.id = e.id
                {of_entry} AND m.key = '{DOCUMENT}'"""
    found: Any = db.execute(query, (collection.metadata, key)).get
    if found is None:
        copied = f"SELECT CAST(c.c0 AS TEXT) FROM embeddings e JOIN {FULL_TEXT_CONTENT} c ON c.id = e.id {of_entry}"
        # The copy may be missing or damaged.
        with suppress(apsw.CorruptError, apsw.SQLError, UnicodeDecodeError):
            found = db.execute(copied, (collection.metadata, key)).get
    return None if found is None else str(found)


def _pick_value(text: Any, whole: Any, number: Any, flag: Any) -> Any:
    """Return a metadata value from its four typed columns: the one that is not NULL. Bytes become text."""
    if flag is not None:
        return bool(flag)
    found = next((value for value in (text, whole, number) if value is not None), None)
    # Chroma stores no bytes and fails at them (chroma.unreadable).
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found


class _Operation(msgspec.Struct, frozen=True):
    """A queued operation: its code, such as ``ADD``, and the metadata that it sets."""

    code: int
    metadata: dict[str, Any]


def read_applied(db: apsw.Connection, segment: str | None) -> int | None:
    """Return the number of the last operation that the segment with an id includes; None if it is empty.

    Raises:
        ChromaProblem: the stored value is invalid.
    """
    done: Any = db.execute("SELECT seq_id FROM max_seq_id WHERE segment_id = ?", (segment,)).get
    if done is None:
        return None
    after = read_number(done)
    if after is None:
        raise ChromaProblem(tr("max_seq_id has an invalid value"))
    return after


def read_number(value: Any) -> int | None:
    """Return an operation's number from its stored value, which is bytes before 1.0; None if it is not valid."""
    number = int.from_bytes(value, "big") if isinstance(value, bytes) and len(value) in _NUMBER_BYTES else value
    return number if isinstance(number, int) and -1 <= number < 1 << 63 else None


def stores_numbers_as_bytes(db: apsw.Connection) -> bool:
    """Whether no version from 1.0 on has opened the database: those declare numbers of operations as integers.

    Versions before 1.0 store 8 bytes, big-endian, and versions up to 0.4 read nothing else.
    """
    query = "SELECT upper(type) = 'BLOB' FROM pragma_table_info('max_seq_id') WHERE name = 'seq_id'"
    return bool(db.execute(query).get)


#: SQL: operations of a collection (``?1``) after a number (``?2``).
PENDING = f"FROM embeddings_queue WHERE seq_id > ?2 AND {TOPIC_COLLECTION} = ?1 AND NOT {INVALID_OPERATION}"


def _has_pending(db: apsw.Connection, collection: ChromaCollection) -> bool:
    """Whether the queue has operations of a collection that are not yet applied to the tables."""
    after = read_applied(db, collection.metadata)
    # A collection that was never written to has no row.
    return after is not None and db.execute(f"SELECT 1 {PENDING} LIMIT 1", (collection.id, after)).get is not None


def _take_pending(db: apsw.Connection, scratch: apsw.Connection, key: str) -> list[_Operation]:
    """Return the queued operations on the entry with an id, and remove them from the temporary table ``pending``."""
    numbers = [number for (number,) in scratch.execute("SELECT seq FROM pending WHERE id = ? ORDER BY seq", (key,))]
    found = []
    for number in numbers:
        row: Any = db.execute("SELECT operation, metadata FROM embeddings_queue WHERE seq_id = ?", (number,)).fetchone()
        found.append(_Operation(row[0], _find_in(_decode_json(row[1]), ())))
    if numbers:
        scratch.execute("DELETE FROM pending WHERE id = ?", (key,))
    return found


def _apply_operations(entry: ChromaEntry | None, operations: list[_Operation], key: str = "") -> ChromaEntry | None:
    """Apply operations to an entry, or to none, and return the entry that results; ``key`` is its id.

    Adding an existing or updating a missing entry has no effect.
    """
    for one in operations:
        if one.code == DELETE:
            entry = None
        elif one.code == UPSERT or (one.code == ADD) == (entry is None):
            before = {} if entry is None else {DOCUMENT: entry.document, **entry.metadata}
            values = {name: value for name, value in (before | one.metadata).items() if value is not None}
            document = values.pop(DOCUMENT, None)
            document = None if document is None else str(document)
            entry = ChromaEntry(key if entry is None else entry.id, document, values)
    return entry


def iterate_queued_vectors(db: apsw.Connection, collection: ChromaCollection) -> Iterator[tuple[str, bytes]]:
    """Yield (id, vector) of entries of a collection whose vector is still in the queue.

    A vector is little-endian float32; empty if it is invalid. All other vectors are in the files of the segment.
    """
    latest: dict[str, int] = {}
    rows = db.execute(
        f"SELECT seq_id, operation, id, vector IS NOT NULL FROM embeddings_queue WHERE {TOPIC_COLLECTION} = ? "
        "ORDER BY seq_id",
        (collection.id,),
    )
    for sequence, operation, key, has_vector in rows:
        if operation == DELETE:
            latest.pop(key, None)
        elif has_vector and not (operation == ADD and key in latest):
            latest[key] = sequence
    for entry in iterate_entries(db, collection):
        if entry.id in latest:
            yield entry.id, read_queued_vector(db, latest[entry.id])


def read_queued_vector(db: apsw.Connection, number: int) -> bytes:
    """Return the vector of the queued operation with a number as little-endian float32; empty if it has none."""
    query = "SELECT vector, encoding FROM embeddings_queue WHERE seq_id = ?"
    row: Any = db.execute(query, (number,)).fetchone()
    return b"" if row is None else as_float32(*row)


def as_float32(vector: Any, encoding: Any) -> bytes:
    """Convert a queued vector in an encoding of Chroma's to little-endian float32; empty bytes if invalid."""
    if not isinstance(vector, bytes) or len(vector) % 4:
        return b""
    if encoding == "INT32":
        return array("f", struct.unpack(f"<{len(vector) // 4}i", vector)).tobytes()
    return vector if encoding == "FLOAT32" else b""


# --- the full-text index ---------------------------------------------------------------------------------------------
#
# Chroma keeps the documents of all collections in ``embedding_metadata`` and a copy in the FTS5 table. Damage to the
# copy makes every write of Chroma fail.


#: SQL: the migration of Chroma that creates the index. The first versions did not have it.
_FULL_TEXT_MIGRATION = "SELECT 1 FROM migrations WHERE dir = 'metadb' AND version = 3"


def list_missing_full_text_tables(db: apsw.Connection) -> list[str] | None:
    """Return which tables of the full-text index are missing; None if the database never had the index."""
    names = sqlite.table_names(db)
    if FULL_TEXT_TABLE not in names and ("migrations" not in names or db.execute(_FULL_TEXT_MIGRATION).get is None):
        return None
    return [name for name in FULL_TEXT_SQL if name not in names]


def find_full_text_damage(db: apsw.Connection) -> str | None:
    """Return why the full-text index cannot be used or differs from the documents, or None.

    Raises:
        apsw.CorruptError, apsw.IOError: the database itself is damaged, not only the index.
    """
    missing = list_missing_full_text_tables(db)
    if missing is None:
        return None
    if missing:
        return tr("missing tables: {tables}", tables=join_list(missing))
    try:
        # FTS5 compares its tables with the texts that it stores.
        for (message,) in db.execute(f"PRAGMA integrity_check({FULL_TEXT_TABLE})"):
            if message != "ok":
                return " ".join(str(message).split())
        differing: Any = db.execute(f"SELECT count(*) {DIFFERING_DOCUMENTS}").get
    except (apsw.CorruptError, apsw.SQLError) as error:
        if isinstance(error, apsw.CorruptError) and getattr(error, "extendedresult", 0) != apsw.SQLITE_CORRUPT_VTAB:
            raise
        return str(error)
    if differing:
        return tr("it lacks the text of {documents}", documents=format_count(differing, "document"))
    return None


def is_segment_name(name: str) -> bool:
    """Whether a segment's id can safely be used as the name of a folder."""
    return 0 < len(name) <= 64 and all(letter.isascii() and (letter.isalnum() or letter == "-") for letter in name)


def is_segment_folder(name: str) -> bool:
    """Whether the name of a folder has the form of a segment's id."""
    return len(name) == _ID_CHARACTERS and is_segment_name(name)


def list_segment_folders(root: Path) -> list[str]:
    """List the folders of a store whose names have the form of a segment's id, in ascending order."""
    return sorted(name for name in file_paths.names_in(root) if is_segment_folder(name) and (root / name).is_dir())
