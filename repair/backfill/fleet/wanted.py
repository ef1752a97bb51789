"""The texts of a fleet that lack a vector: first a file for each library, then all of them together, each once.

A file of a library is written where its task is done; the rest is done by the process that leads the fleet. Both lie
in the work folder beside the results, and go when the run ends: they hold the user's texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import areas, extras, identity, links, sqlite
from regraft.language import tr
from regraft.ledger import durable
from repair.backfill.fleet import answers

#: Below the work folder: what each library wants, and what is given to a cluster.
WANTED, PARTS = "wanted", "parts"
#: How many texts are written or read at once, and how many bytes of text before that.
_ROWS, _BYTES = 1000, 8 << 20


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Texts of a base with their vectors, to be compared; there are none where it has no vector yet.

    ``scope`` is what the store calls the base, ``base`` what a person does.
    """

    scope: str
    base: str
    dimensions: int | None
    #: As :func:`raw` writes texts.
    raw: list[tuple[bytes, bytes]]

    @property
    def known(self) -> list[tuple[str, bytes]]:
        """Return the texts with their vectors."""
        return [(text_of(text), vector) for text, vector in self.raw]


class Row(msgspec.Struct, frozen=True):
    """A text, its key, and its tokens."""

    key: str
    text: str
    tokens: int

    @classmethod
    def of(cls, text: str, tokens: int) -> Row:
        """Return a text with its key: whatever a store calls it, equal texts have one."""
        return cls(identity.text_hash(text), text, tokens)


def raw(text: str) -> bytes:
    """Return a text as it is written down: one that a strange program cut in the middle of a character, too."""
    return text.encode("utf-8", "surrogatepass")


def text_of(written: bytes) -> str:
    """Return the text that :func:`raw` wrote."""
    return written.decode("utf-8", "surrogatepass")


# --- of one library --------------------------------------------------------------------------------------------------


def write(work: Path, library: int, rows: Iterable[Row], samples: list[Sample]) -> int:
    """Write what a library wants, and return how many texts that are; one that an earlier try left is written over.

    Raises:
        OSError: it cannot be written.
    """
    texts_file, samples_file = _files(work, library)
    count = 0
    with areas.opened(work):
        durable.make_folders(texts_file.parent)
        durable.put_bytes(samples_file, msgspec.json.encode(samples))
        with ExitStack() as stack:
            file = stack.enter_context(durable.open_binary(texts_file, "wb"))
            writer = stack.enter_context(_writer(file))
            for chunk in chunks(rows):
                writer.write_table(_table(chunk))
                count += len(chunk)
    return count


def _files(work: Path, library: int) -> tuple[Path, Path]:
    folder = work / WANTED
    return folder / f"{library:06}.parquet", folder / f"{library:06}.json"


def _library(name: str) -> Any:
    return extras.needed(name, tr("Parquet files"), "parquet")


def _schema() -> Any:
    pa = _library("pyarrow")
    return pa.schema([("key", pa.string()), ("text", pa.binary()), ("tokens", pa.int64())])


def _writer(file: Any) -> Any:
    return _library("pyarrow.parquet").ParquetWriter(file, _schema(), compression="zstd")


def _table(rows: list[Row]) -> Any:
    found = [{"key": row.key, "text": raw(row.text), "tokens": row.tokens} for row in rows]
    return _library("pyarrow").Table.from_pylist(found, _schema())


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows, some at a time: fewer where they are large."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.text)
        if len(chunk) == _ROWS or size >= _BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def rows_of(work: Path, library: int) -> Iterator[Row]:
    """Yield the texts that a library wants.

    Raises:
        OSError, ValueError: they cannot be read.
    """
    with _library("pyarrow.parquet").ParquetFile(_files(work, library)[0]) as file:
        for batch in file.iter_batches(batch_size=_ROWS):
            for row in batch.to_pylist():
                yield Row(row["key"], text_of(row["text"]), row["tokens"])


def samples_of(work: Path, library: int) -> list[Sample]:
    """Return what a library's bases are compared by.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return msgspec.json.decode(links.content(_files(work, library)[1]), type=list[Sample])


# --- of all libraries ------------------------------------------------------------------------------------------------


class Texts:
    """Different texts, each once, in the order in which they came; on the disk, however many they are."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        #: How many came, those that were there already included.
        self.came = 0

    def add(self, rows: Iterable[Row], known: apsw.Connection | None) -> None:
        """Add those texts that are not there yet, and to which no answer is known."""
        for chunk in chunks(rows):
            self.came += len(chunk)
            there = answers.answered(known, [row.key for row in chunk])
            with sqlite.transaction(self._db):
                self._db.executemany(
                    "INSERT OR IGNORE INTO text VALUES (?, ?, ?)",
                    ((row.key, raw(row.text), row.tokens) for row in chunk if row.key not in there),
                )

    def clear(self) -> None:
        """Forget all."""
        self._db.execute("DELETE FROM text")

    @property
    def count(self) -> int:
        """Return how many there are."""
        found: Any = self._db.execute("SELECT count(*) FROM text").get
        return int(found)

    def sized(self) -> Iterator[tuple[str, int]]:
        """Yield the key of every text, and its tokens."""
        rows: Any = self._db.execute("SELECT key, tokens FROM text ORDER BY rowid")
        yield from rows

    def keyed(self) -> Iterator[tuple[str, str]]:
        """Yield the key of every text, and the text."""
        rows: Any = self._db.execute("SELECT key, text FROM text ORDER BY rowid")
        for key, text in rows:
            yield key, text_of(text)

    def parts(self, work: Path, most: int) -> list[Path]:
        """Write them into files of so many texts at most, which anybody can read, and return these.

        Raises:
            OSError: they cannot be written.
        """
        found: list[Path] = []
        with areas.opened(work):
            durable.remove_tree(work / PARTS)
            durable.make_folders(work / PARTS)
            rows = (Row(key, text, 0) for key, text in self.keyed())
            for chunk in chunks(rows):
                some = iter(chunk)
                while part := list(islice(some, most)):
                    found.append(work / PARTS / f"{len(found):06}.parquet")
                    with durable.open_binary(found[-1], "wb") as file, _writer(file) as writer:
                        writer.write_table(_table(part))
        return found


@contextmanager
def gathered(work: Path, name: str) -> Iterator[Texts]:
    """Give a place for texts in a file of the work folder, anew; it is removed at the end.

    Raises:
        apsw.Error, OSError: it cannot be written.
    """
    path = work / f"{name}.sqlite"
    with areas.opened(work):
        for file in (path, *(path.with_name(f"{path.name}{ending}") for ending in sqlite.TRACES)):
            durable.remove(file, missing_ok=True)
        try:
            with sqlite.writing(path, create=True) as db:
                # It is made anew by the next run.
                db.execute("PRAGMA journal_mode = OFF")
                db.execute("PRAGMA synchronous = OFF")
                db.execute("CREATE TABLE text (key TEXT PRIMARY KEY, text BLOB NOT NULL, tokens INTEGER NOT NULL)")
                yield Texts(db)
        finally:
            durable.remove(path, missing_ok=True)
