"""Chroma's own database, read with plain SQLite (``docs/formats/angel_memory.md``, "Collections").

``chroma.sqlite3`` holds collections, ids, documents and metadata in tables. Vectors are read where they still wait in
its queue; what Chroma has worked into the files of a segment's folder is not: one of those files can be a pickle.
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

#: The database in a folder of Chroma's.
FILE = "chroma.sqlite3"
#: Of an entry's metadata, the text that it stands for.
DOCUMENT = "chroma:document"
#: What an operation in the queue does.
ADD, UPDATE, UPSERT, DELETE = range(4)

#: Tables with the columns that are read.
_READ = {
    "collections": ("id", "name", "dimension"),
    "segments": ("id", "scope", "collection"),
    "embeddings": ("id", "segment_id", "embedding_id"),
    "embedding_metadata": ("id", "key", "string_value", "int_value", "float_value"),
    "embeddings_queue": ("seq_id", "operation", "topic", "id", "vector", "encoding", "metadata"),
    "max_seq_id": ("segment_id", "seq_id"),
}
#: In whose database programs make a collection when they do not say.
_DEFAULT_DATABASE = "00000000-0000-0000-0000-000000000000"


class ChromaProblem(ValueError):
    """A folder or a file of Chroma's that cannot be used; the message is what to say of it."""


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """A collection; ``dimension`` None: nothing was ever written to it."""

    id: str
    name: str
    dimension: int | None
    #: Its segments: vectors lie in the folder named after the first, ids and metadata in rows that name the second.
    vectors: str | None
    metadata: str | None


class Entry(msgspec.Struct, frozen=True):
    """What a collection holds under an id, the vector apart."""

    id: str
    document: str | None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


@contextmanager
def reading(path: Path) -> Iterator[apsw.Connection]:
    """Open a ``chroma.sqlite3`` for reading without a trace.

    Raises:
        ChromaProblem: it is none, is damaged, or has another layout than is known.
        FileNotFoundError: there is none.
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
    # chromadb writes with triggers on.
    foreign: Any = db.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('trigger', 'view')").fetchone()
    if foreign is not None:
        raise ChromaProblem(
            tr(
                "it has a {foreign}, {foreign2}, which no database of Chroma's has",
                foreign=foreign[0],
                foreign2=foreign[1],
            )
        )
    for table, columns in _READ.items():
        there = {str(row[1]) for row in db.execute(f"PRAGMA table_info({table})")}
        if not there:
            raise ChromaProblem(tr("it has no table {table}: no database of Chroma's", table=table))
        missing = [column for column in columns if column not in there]
        if missing:
            message = tr(
                "its table {table} has no column {missing}: a layout of Chroma's that is not known",
                table=table,
                missing=missing[0],
            )
            raise ChromaProblem(message)


def collection(db: apsw.Connection, name: str) -> Collection | None:
    """Return the collection of a name, None where there is none; of several databases' the default one's."""
    columns = {str(row[1]) for row in db.execute("PRAGMA table_info(collections)")}
    order = "database_id <> ?2" if "database_id" in columns else "?2"
    found = f"SELECT id, name, dimension FROM collections WHERE name = ?1 ORDER BY {order}, id"
    row: Any = db.execute(found, (name, _DEFAULT_DATABASE)).fetchone()
    if row is None:
        return None
    found = "SELECT scope, CAST(id AS TEXT) FROM segments WHERE collection = ?"
    segments = dict(db.execute(found, (row[0],)))
    return Collection(
        id=str(row[0]), name=name, dimension=row[2], vectors=segments.get("VECTOR"), metadata=segments.get("METADATA")
    )


def demand_dimension(of: Collection) -> None:
    """Raise ChromaProblem where the dimension of a collection is none."""
    if not (of.dimension is None or (isinstance(of.dimension, int) and of.dimension > 0)):
        raise ChromaProblem(tr("the dimension of its collection {name} is not a number of dimensions", name=of.name))


def names(db: apsw.Connection) -> list[str]:
    """Return the names of all collections, in the order of names."""
    return [str(name) for (name,) in db.execute("SELECT name FROM collections ORDER BY name")]


def count(db: apsw.Connection, of: Collection) -> int:
    """Return how many ids a collection has."""
    pending = _pending(db, of)
    if pending:
        return sum(1 for _ in entries(db, of))
    number: Any = db.execute("SELECT count(*) FROM embeddings WHERE segment_id = ?", (of.metadata,)).get
    return int(number)


def written_at(db: apsw.Connection, of: Collection) -> float | None:
    """Return when the latest entry of a collection was written, in s; None where there is none, or nothing tells."""
    columns = {str(row[1]) for row in db.execute("PRAGMA table_info(embeddings)")}
    if "created_at" not in columns:
        return None
    query = "SELECT CAST(max(unixepoch(created_at)) AS REAL) FROM embeddings WHERE segment_id = ?"
    latest: Any = db.execute(query, (of.metadata,)).get
    return None if latest is None else float(latest)


def entries(db: apsw.Connection, of: Collection) -> Iterator[Entry]:
    """Return the entries of a collection, as Chroma would give them, in the order in which they were added."""
    pending = _pending(db, of)
    for entry in _stored(db, of):
        changed = pending.pop(entry.id, None)
        now = entry if changed is None else _after(entry, changed)
        if now is not None:
            yield now
    for key, operations in pending.items():
        made = _after(None, operations, key)
        if made is not None:
            yield made


def _stored(db: apsw.Connection, of: Collection) -> Iterator[Entry]:
    """Return what the tables hold."""
    flag = any(row[1] == "bool_value" for row in db.execute("PRAGMA table_info(embedding_metadata)"))
    rows = db.execute(
        "SELECT e.id, e.embedding_id, m.key, m.string_value, m.int_value, m.float_value, "
        f"{'m.bool_value' if flag else 'NULL'} FROM embeddings e LEFT JOIN embedding_metadata m ON m.id = e.id "
        "WHERE e.segment_id = ? ORDER BY e.id",
        (of.metadata,),
    )
    for (_, key), group in groupby(rows, lambda row: (row[0], str(row[1]))):
        values = {str(row[2]): _value(*row[3:]) for row in group if row[2] is not None}
        document = values.pop(DOCUMENT, None)
        yield Entry(key, None if document is None else str(document), values)


def _value(text: Any, whole: Any, number: Any, flag: Any) -> Any:
    if flag is not None:
        return bool(flag)
    return next((value for value in (text, whole, number) if value is not None), None)


class _Operation(msgspec.Struct, frozen=True):
    code: int
    metadata: dict[str, Any]


def _pending(db: apsw.Connection, of: Collection) -> dict[str, list[_Operation]]:
    """Return the operations that the tables do not show yet, of each id: a writer was stopped in between."""
    done: Any = db.execute("SELECT seq_id FROM max_seq_id WHERE segment_id = ?", (of.metadata,)).get
    # Before anything is written to a collection, there is no row.
    if done is None:
        return {}
    after = int.from_bytes(done, "big") if isinstance(done, bytes) else done
    if not isinstance(after, int) or after >= 1 << 63:
        raise ChromaProblem(tr("max_seq_id has no number of an operation"))
    rows = db.execute(
        "SELECT id, operation, metadata FROM embeddings_queue WHERE seq_id > ? AND substr(topic, -36) = ? "
        "ORDER BY seq_id",
        (after, of.id),
    )
    found: dict[str, list[_Operation]] = {}
    for key, code, metadata in rows:
        found.setdefault(str(key), []).append(_Operation(code, _decoded(metadata)))
    return found


def _decoded(metadata: Any) -> dict[str, Any]:
    """Return what an operation says, nothing where it says nothing that can be read."""
    try:
        found = json_text.loads(metadata) if isinstance(metadata, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _after(entry: Entry | None, operations: list[_Operation], key: str = "") -> Entry | None:
    """Return an entry after operations on it; adding what is there and updating what is not do nothing."""
    for one in operations:
        if one.code == DELETE:
            entry = None
        elif one.code == UPSERT or (one.code == ADD) == (entry is None):
            before = {} if entry is None else {DOCUMENT: entry.document, **entry.metadata}
            values = {name: value for name, value in (before | one.metadata).items() if value is not None}
            document = values.pop(DOCUMENT, None)
            entry = Entry(key if entry is None else entry.id, document, values)
    return entry


def vectors(db: apsw.Connection, of: Collection) -> Iterator[tuple[str, bytes]]:
    """Return the vectors of a collection's entries that are still in the queue, as little-endian float32.

    What is no vector is given as one of no bytes. An entry that is not among them has its vector in the files of its
    segment.
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
    for entry in entries(db, of):
        if entry.id in latest:
            row: Any = db.execute(
                "SELECT vector, encoding FROM embeddings_queue WHERE seq_id = ?", (latest[entry.id],)
            ).fetchone()
            yield entry.id, _as_float32(*row)


def _as_float32(vector: Any, encoding: Any) -> bytes:
    """Return a vector of the queue as little-endian float32, no bytes where it is none."""
    if not isinstance(vector, bytes) or len(vector) % 4:
        return b""
    if encoding == "INT32":
        return array("f", struct.unpack(f"<{len(vector) // 4}i", vector)).tobytes()
    return vector if encoding == "FLOAT32" else b""
