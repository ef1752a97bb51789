"""Reads Chroma's database with plain SQLite (``docs/formats/angel_memory.md``, "Collections").

``chroma.sqlite3`` holds collections, ids, documents and metadata in tables. Vectors are read only from its write queue.
Vectors in index files of a segment's directory are not read, because they may include a pickle.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import sqlite
from regraft.formats import json_text
from regraft.language import tr

#: File name of Chroma's database.
FILE = "chroma.sqlite3"
#: Metadata key of an entry's document.
DOCUMENT = "chroma:document"
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
        existing = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
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
    columns = {str(row[1]) for row in db.execute("PRAGMA table_info(collections)")}
    order = "database_id <> ?2" if "database_id" in columns else "?2"
    found = f"SELECT id, name, dimension FROM collections WHERE name = ?1 ORDER BY {order}, id"
    row: Any = db.execute(found, (name, _DEFAULT_DATABASE)).fetchone()
    if row is None:
        return None
    found = "SELECT scope, CAST(id AS TEXT) FROM segments WHERE collection = ?"
    segments = dict(db.execute(found, (row[0],)))
    return ChromaCollection(
        id=str(row[0]), name=name, dimension=row[2], vectors=segments.get("VECTOR"), metadata=segments.get("METADATA")
    )


def check_dimension(of: ChromaCollection) -> None:
    """Raise ChromaProblem if the dimension of a collection is invalid."""
    if not (of.dimension is None or (isinstance(of.dimension, int) and of.dimension > 0)):
        raise ChromaProblem(tr("the dimension of its collection {name} is not valid", name=of.name))


def list_collection_names(db: apsw.Connection) -> list[str]:
    """Return the names of all collections in ascending order."""
    return [str(name) for (name,) in db.execute("SELECT name FROM collections ORDER BY name")]


def count_entries(db: apsw.Connection, of: ChromaCollection) -> int:
    """Return the number of entries of a collection."""
    pending = _read_pending(db, of)
    if pending:
        return sum(1 for _ in iterate_entries(db, of))
    number: Any = db.execute("SELECT count(*) FROM embeddings WHERE segment_id = ?", (of.metadata,)).get
    return int(number)


def last_write_time(db: apsw.Connection, of: ChromaCollection) -> float | None:
    """Return when the latest entry of a collection was written (Unix time in seconds), or None if unknown."""
    columns = {str(row[1]) for row in db.execute("PRAGMA table_info(embeddings)")}
    if "created_at" not in columns:
        return None
    query = "SELECT CAST(max(unixepoch(created_at)) AS REAL) FROM embeddings WHERE segment_id = ?"
    latest: Any = db.execute(query, (of.metadata,)).get
    return None if latest is None else float(latest)


def iterate_entries(db: apsw.Connection, of: ChromaCollection) -> Iterator[ChromaEntry]:
    """Yield the entries of a collection as Chroma would return them, in insertion order."""
    pending = _read_pending(db, of)
    for entry in _iterate_stored_entries(db, of):
        changed = pending.pop(entry.id, None)
        now = entry if changed is None else _apply_operations(entry, changed)
        if now is not None:
            yield now
    for key, operations in pending.items():
        made = _apply_operations(None, operations, key)
        if made is not None:
            yield made


def _iterate_stored_entries(db: apsw.Connection, of: ChromaCollection) -> Iterator[ChromaEntry]:
    """Yield the entries in the tables, without queued operations."""
    flag = any(row[1] == "bool_value" for row in db.execute("PRAGMA table_info(embedding_metadata)"))
    rows = db.execute(
        "SELECT e.id, e.embedding_id, m.key, m.string_value, m.int_value, m.float_value, "
        f"{'m.bool_value' if flag else 'NULL'} FROM embeddings e LEFT JOIN embedding_metadata m ON m.id = e.id "
        "WHERE e.segment_id = ? ORDER BY e.id",
        (of.metadata,),
    )
    for (_, key), group in groupby(rows, lambda row: (row[0], str(row[1]))):
        values = {str(row[2]): _pick_value(*row[3:]) for row in group if row[2] is not None}
        document = values.pop(DOCUMENT, None)
        yield ChromaEntry(key, None if document is None else str(document), values)


def _pick_value(text: Any, whole: Any, number: Any, flag: Any) -> Any:
    if flag is not None:
        return bool(flag)
    return next((value for value in (text, whole, number) if value is not None), None)


class _Operation(msgspec.Struct, frozen=True):
    code: int
    metadata: dict[str, Any]


def _read_pending(db: apsw.Connection, of: ChromaCollection) -> dict[str, list[_Operation]]:
    """Return the queued operations that are not yet applied to the tables, by entry id."""
    done: Any = db.execute("SELECT seq_id FROM max_seq_id WHERE segment_id = ?", (of.metadata,)).get
    # A collection that was never written to has no row.
    if done is None:
        return {}
    after = int.from_bytes(done, "big") if isinstance(done, bytes) else done
    if not isinstance(after, int) or after >= 1 << 63:
        raise ChromaProblem(tr("max_seq_id has an invalid value"))
    rows = db.execute(
        "SELECT id, operation, metadata FROM embeddings_queue WHERE seq_id > ? AND substr(topic, -36) = ? "
        "ORDER BY seq_id",
        (after, of.id),
    )
    found: dict[str, list[_Operation]] = {}
    for key, code, metadata in rows:
        try:
            decoded = json_text.loads(metadata) if isinstance(metadata, str) else {}
        except (ValueError, RecursionError):
            decoded = {}
        found.setdefault(str(key), []).append(_Operation(code, decoded if isinstance(decoded, dict) else {}))
    return found


def _apply_operations(entry: ChromaEntry | None, operations: list[_Operation], key: str = "") -> ChromaEntry | None:
    """Apply operations to an entry. Adding an existing or updating a missing entry has no effect."""
    for one in operations:
        if one.code == DELETE:
            entry = None
        elif one.code == UPSERT or (one.code == ADD) == (entry is None):
            before = {} if entry is None else {DOCUMENT: entry.document, **entry.metadata}
            values = {name: value for name, value in (before | one.metadata).items() if value is not None}
            document = values.pop(DOCUMENT, None)
            entry = ChromaEntry(key if entry is None else entry.id, document, values)
    return entry


def iterate_queued_vectors(db: apsw.Connection, of: ChromaCollection) -> Iterator[tuple[str, bytes]]:
    """Yield id and vector (little-endian float32) of entries whose vector is still in the queue.

    An invalid vector is yielded as empty bytes. The vectors of all other entries are in the files of the segment.
    """
    latest: dict[str, int] = {}
    rows = db.execute(
        "SELECT seq_id, operation, id, vector IS NOT NULL FROM embeddings_queue WHERE substr(topic, -36) = ? "
        "ORDER BY seq_id",
        (of.id,),
    )
    for sequence, operation, key, has_vector in rows:
        if operation == DELETE:
            latest.pop(key, None)
        elif has_vector and not (operation == ADD and key in latest):
            latest[key] = sequence
    for entry in iterate_entries(db, of):
        if entry.id in latest:
            row: Any = db.execute(
                "SELECT vector, encoding FROM embeddings_queue WHERE seq_id = ?", (latest[entry.id],)
            ).fetchone()
            yield entry.id, _as_float32(*row)


def _as_float32(vector: Any, encoding: Any) -> bytes:
    """Convert a queued vector to little-endian float32; empty bytes if invalid."""
    if not isinstance(vector, bytes) or len(vector) % 4:
        return b""
    if encoding == "INT32":
        return array("f", struct.unpack(f"<{len(vector) // 4}i", vector)).tobytes()
    return vector if encoding == "FLOAT32" else b""
