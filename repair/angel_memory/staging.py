"""Keep paid vectors in a staging file below ``.regraft`` until the collection has them.

If a run stops, the next one uses the vectors again. The file is deleted once the collection has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, sqlite
from regraft.language import tr
from repair.changes import files
from repair.embedding.scope import TextCounts, TextWithoutVector, WrittenCounts

_BUSY_MS = 60_000
_TABLES = (
    "CREATE TABLE IF NOT EXISTS origin (provider TEXT NOT NULL, model TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS text (
         key TEXT NOT NULL PRIMARY KEY,
         text TEXT NOT NULL,
         is_stale INTEGER NOT NULL,
         vector BLOB)""",
)
#: Errors of a file that is not a database, and of an incomplete staging file.
_DAMAGED = (apsw.NotADBError, apsw.CorruptError)
_UNUSABLE = (*_DAMAGED, apsw.SQLError)
_WHERE_KEYS = "key IN (SELECT value FROM json_each(?))"


class PendingText(msgspec.Struct, frozen=True):
    """A text without a vector, by its hash. ``is_stale``: its note has a vector of an older text."""

    key: str
    text: str
    is_stale: bool


class Staging:
    """The texts of a staging file and their vectors, as a backfill scope.

    See :func:`open_staging` and :func:`read_staging`. Keys are the hashes of texts.

    Args:
        db: the open staging file.
        name: the embedding provider.
        ready: number of texts outside of the file that already have a vector in the collection.
        dimensions: length of the vectors; None if unknown.
    """

    def __init__(self, db: apsw.Connection, name: str = "", ready: int = 0, dimensions: int | None = None) -> None:
        self._db = db
        self._ready = ready
        self._dimensions = dimensions
        self.name = name
        self.label = tr("The notes")

    @property
    def dimensions(self) -> int | None:
        """Number of dimensions of the staged vectors; None if unknown."""
        if self._dimensions is None:
            size: Any = self._db.execute("SELECT length(vector) FROM text WHERE vector IS NOT NULL LIMIT 1").get
            self._dimensions = None if size is None else size // 4
        return self._dimensions

    def survey(self) -> TextCounts:
        """Count the texts of the collection, with and without a vector."""
        query = "SELECT count(vector), total(vector IS NULL AND NOT is_stale), total(vector IS NULL AND is_stale)"
        row: Any = self._db.execute(f"{query} FROM text").fetchone()
        staged, pending, stale = row
        return TextCounts(ready=self._ready + staged, pending=int(pending), stale=int(stale))

    def lacking(self) -> Iterator[str]:
        """Yield the keys of texts without a vector, in order."""
        found = self._db.execute("SELECT key FROM text WHERE vector IS NULL ORDER BY key").fetchall()
        return (str(key) for (key,) in found)

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of the given keys that still have no vector."""
        rows = self._select("key, text, is_stale", keys, " AND vector IS NULL")
        return {str(key): TextWithoutVector(str(text), bool(is_stale)) for key, text, is_stale in rows}

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors by key, in one transaction. Existing vectors are kept."""
        del now_ms
        was_stale = []
        with sqlite.transaction(self._db):
            for key, vector in vectors.items():
                query = "UPDATE text SET vector = ? WHERE key = ? AND vector IS NULL RETURNING is_stale"
                was_stale += [bool(is_stale) for (is_stale,) in self._db.execute(query, (vector, key))]
        return WrittenCounts(was_stale.count(False), was_stale.count(True))

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the staged vectors of the given keys."""
        return {str(key): bytes(vector) for key, vector in self._select("key, vector", keys, " AND vector IS NOT NULL")}

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` texts with their vectors."""
        query = "SELECT text, vector FROM text WHERE vector IS NOT NULL ORDER BY key LIMIT ?"
        return [(str(text), bytes(vector)) for text, vector in self._db.execute(query, (count,))]

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Do nothing: the queue of the run records the texts that could not be embedded."""

    def ready_keys(self) -> frozenset[str]:
        """Return the keys of the texts that have a vector."""
        return frozenset(str(key) for (key,) in self._db.execute("SELECT key FROM text WHERE vector IS NOT NULL"))

    def set_pending_texts(self, texts: Iterable[PendingText]) -> None:
        """Replace the list of texts that need a vector. Vectors of texts that are in both lists are kept."""
        with sqlite.transaction(self._db):
            self._db.execute("CREATE TEMP TABLE wanted (key TEXT PRIMARY KEY) WITHOUT ROWID")
            for one in texts:
                self._db.execute("INSERT INTO wanted VALUES (?)", (one.key,))
                self._db.execute(
                    "INSERT INTO text (key, text, is_stale) VALUES (?1, ?2, ?3)"
                    " ON CONFLICT (key) DO UPDATE SET is_stale = ?3",
                    (one.key, one.text, one.is_stale),
                )
            self._db.execute("DELETE FROM text WHERE key NOT IN (SELECT key FROM wanted)")
            self._db.execute("DROP TABLE wanted")

    def _select(self, columns: str, keys: Sequence[str], more: str) -> list[Any]:
        """Select columns of the rows with these keys; ``more`` is further SQL for the condition."""
        query = f"SELECT {columns} FROM text WHERE {_WHERE_KEYS}{more}"
        return self._db.execute(query, (sqlite.json_array(keys),)).fetchall()


class VectorOrigin(msgspec.Struct, frozen=True):
    """Provider and embedding model of the vectors in a staging file; the model is "" without an embedder."""

    provider: str
    model: str


@contextmanager
def open_staging(path: Path, origin: VectorOrigin, ready: int, dimensions: int | None) -> Iterator[Staging]:
    """Open or create a staging file. Vectors of another provider or model are deleted.

    Args:
        path: the staging file.
        origin: provider and model of its vectors.
        ready: number of texts outside of the file that already have a vector in the collection.
        dimensions: length of the vectors; None if unknown.

    Raises:
        apsw.Error, OSError: the file cannot be written.
    """
    if _is_damaged(path):
        files.delete_database(path)
    durable.make_folders(path.parent)
    with sqlite.open_writable(path, create=True) as db:
        db.set_busy_timeout(_BUSY_MS)
        with sqlite.transaction(db):
            _prepare(db, origin)
        yield Staging(db, origin.provider, ready, dimensions)


@contextmanager
def preview_staging(path: Path, origin: VectorOrigin, ready: int, dimensions: int | None) -> Iterator[Staging]:
    """Open an in-memory copy of a staging file as :func:`open_staging` would leave it. Nothing is written.

    Raises:
        apsw.Error, OSError: the present file cannot be read.
    """
    with sqlite.open_in_memory() as db:
        _prepare(db, origin)
        if path.is_file():
            with suppress(*_UNUSABLE), sqlite.open_readonly(path) as old:
                if _origin(old) == (origin.provider, origin.model):
                    db.executemany("INSERT INTO text VALUES (?, ?, ?, ?)", old.execute("SELECT * FROM text"))
        yield Staging(db, origin.provider, ready, dimensions)


@contextmanager
def read_staging(path: Path) -> Iterator[Staging]:
    """Open a staging file for reading.

    Raises:
        apsw.Error, OSError: the file cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        yield Staging(db)


def has_vectors(path: Path) -> bool:
    """Whether a staging file with at least one vector exists."""
    if path.is_file():
        with suppress(*_UNUSABLE), read_staging(path) as scope:
            return bool(scope.ready_keys())
    return False


def _is_damaged(path: Path) -> bool:
    """Whether a file exists and SQLite cannot read it."""
    if path.is_file():
        try:
            with sqlite.open_readonly(path) as db:
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except _DAMAGED:
            return True
    return False


def _prepare(db: apsw.Connection, origin: VectorOrigin) -> None:
    """Create the tables, and delete vectors of another provider or model."""
    for statement in _TABLES:
        db.execute(statement)
    if _origin(db) != (origin.provider, origin.model):
        db.execute("DELETE FROM text")
        db.execute("DELETE FROM origin")
        db.execute("INSERT INTO origin VALUES (?, ?)", (origin.provider, origin.model))


def _origin(db: apsw.Connection) -> object:
    """Return the row with the provider and the model of the staged vectors, or None."""
    return db.execute("SELECT provider, model FROM origin").fetchone()
