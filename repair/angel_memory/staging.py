"""Vectors of texts that wait for their collection: each is paid for once, whatever stops the run.

The file lies below the store's ``.regraft``, and goes once the collection has what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft.disk import durable, sqlite, untrusted_sqlite
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
#: What reading a file says that is no database, and one that is only the beginning of a staging file.
_DAMAGED = (apsw.NotADBError, apsw.CorruptError)
_UNUSABLE = (*_DAMAGED, apsw.SQLError)
_OF_KEYS = "key IN (SELECT value FROM json_each(?))"


class PendingText(msgspec.Struct, frozen=True):
    """A text that lacks its vector, by its hash; ``is_stale``: what it belongs to has one, of another text."""

    key: str
    text: str
    is_stale: bool


class Staging:
    """The texts that lack a vector, as a scope of backfill; see :func:`opened` and :func:`reading`.

    ``ready`` is the number of texts that had a vector before.
    """

    def __init__(self, db: apsw.Connection, name: str = "", ready: int = 0, dimensions: int | None = None) -> None:
        self._db = db
        self._ready = ready
        self._dimensions = dimensions
        self.name = name
        self.label = tr("The notes")

    @property
    def dimensions(self) -> int | None:
        """Return how many numbers its vectors have, None where none is known."""
        if self._dimensions is None:
            size: Any = self._db.execute("SELECT length(vector) FROM text WHERE vector IS NOT NULL LIMIT 1").get
            self._dimensions = None if size is None else size // 4
        return self._dimensions

    def survey(self) -> TextCounts:
        """Count the texts of the collection."""
        query = "SELECT count(vector), total(vector IS NULL AND NOT is_stale), total(vector IS NULL AND is_stale)"
        row: Any = self._db.execute(f"{query} FROM text").fetchone()
        staged, pending, stale = row
        return TextCounts(ready=self._ready + staged, pending=int(pending), stale=int(stale))

    def lacking(self) -> Iterator[str]:
        """Return the key of every text without a vector, in order."""
        found = self._db.execute("SELECT key FROM text WHERE vector IS NULL ORDER BY key").fetchall()
        return (str(key) for (key,) in found)

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of those keys that still lack a vector."""
        rows = self._of("key, text, is_stale", keys, " AND vector IS NULL")
        return {str(key): TextWithoutVector(str(text), bool(is_stale)) for key, text, is_stale in rows}

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors in one transaction; one that is there stays."""
        del now_ms
        was_stale = []
        with sqlite.transaction(self._db):
            for key, vector in vectors.items():
                query = "UPDATE text SET vector = ? WHERE key = ? AND vector IS NULL RETURNING is_stale"
                was_stale += [bool(is_stale) for (is_stale,) in self._db.execute(query, (vector, key))]
        return WrittenCounts(was_stale.count(False), was_stale.count(True))

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the vectors of those of the keys that have one."""
        return {str(key): bytes(vector) for key, vector in self._of("key, vector", keys, " AND vector IS NOT NULL")}

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return some texts with their vectors."""
        query = "SELECT text, vector FROM text WHERE vector IS NOT NULL ORDER BY key LIMIT ?"
        return [(str(text), bytes(vector)) for text, vector in self._db.execute(query, (count,))]

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Take note of nothing: the queue knows what failed."""

    def ready_keys(self) -> frozenset[str]:
        """Return the keys that have a vector."""
        return frozenset(str(key) for (key,) in self._db.execute("SELECT key FROM text WHERE vector IS NOT NULL"))

    def wait_for(self, texts: Iterable[PendingText]) -> None:
        """Let these texts wait, and no others; vectors that are there stay."""
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

    def _of(self, columns: str, keys: Sequence[str], more: str) -> list[Any]:
        wanted = msgspec.json.encode(list(keys)).decode()
        return self._db.execute(f"SELECT {columns} FROM text WHERE {_OF_KEYS}{more}", (wanted,)).fetchall()


class VectorOrigin(msgspec.Struct, frozen=True):
    """What the vectors of a staging file are of: a provider's name, and the embedder's model, "" where it has none."""

    provider: str
    model: str


@contextmanager
def open_staging(path: Path, origin: VectorOrigin, ready: int, dimensions: int | None) -> Iterator[Staging]:
    """Open a staging file, made anew where there is none; vectors of another origin go.

    Args:
        path: where it is.
        origin: what its vectors are of.
        ready: how many texts had a vector before.
        dimensions: of vectors, None where nobody knows.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    if _is_damaged(path):
        delete_staging(path)
    durable.make_folders(path.parent)
    with sqlite.open_writable(path, create=True) as db:
        db.set_busy_timeout(_BUSY_MS)
        with sqlite.transaction(db):
            _prepare(db, origin)
        yield Staging(db, origin.provider, ready, dimensions)


@contextmanager
def preview_staging(path: Path, origin: VectorOrigin, ready: int, dimensions: int | None) -> Iterator[Staging]:
    """Open what a staging file would be, for a look: nothing is written.

    Raises:
        apsw.Error, OSError: the file that is there cannot be read.
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
        apsw.Error, OSError: it cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        yield Staging(db)


def has_vectors(path: Path) -> bool:
    """Tell whether there is a staging file with a vector in it."""
    if path.is_file():
        with suppress(*_UNUSABLE), read_staging(path) as scope:
            return bool(scope.ready_keys())
    return False


def _is_damaged(path: Path) -> bool:
    if path.is_file():
        try:
            with sqlite.open_readonly(path) as db:
                db.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        except _DAMAGED:
            return True
    return False


def delete_staging(path: Path) -> None:
    """Remove a staging file, and its folder with it."""
    for file in (path, *untrusted_sqlite.find_companions(path)):
        durable.remove_tree(file)
    files.remove_empty_folders(path.parent, path.parent.parent)


def _prepare(db: apsw.Connection, origin: VectorOrigin) -> None:
    for statement in _TABLES:
        db.execute(statement)
    if _origin(db) != (origin.provider, origin.model):
        db.execute("DELETE FROM text")
        db.execute("DELETE FROM origin")
        db.execute("INSERT INTO origin VALUES (?, ?)", (origin.provider, origin.model))


def _origin(db: apsw.Connection) -> object:
    return db.execute("SELECT provider, model FROM origin").fetchone()
