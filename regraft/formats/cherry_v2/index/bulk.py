"""Write a new index file: rows first, then indexes, the full-text index, and triggers last.

This takes less than half the time of inserting rows with the triggers in place (``benchmarks/``). The file is written
in one transaction; memory holds one batch of rows and the texts of one material.

The digests over the bodies are computed while they are written; :mod:`regraft.formats.cherry_v2.index.verify` compares
them with the finished file.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import apsw
import msgspec

from regraft import identity
from regraft.disk import sqlite
from regraft.formats.cherry_v2.index import schema
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB, FullText, open_full_text, write_indexes
from regraft.formats.cherry_v2.index.schema import Unit, cut_units, make_unit
from regraft.formats.large_text import LARGE_BYTES, PIECE_BYTES, RESERVED_TEXT, LargeText, Spool, write_pieces
from regraft.processes.pool import ProcessPool
from regraft.text import utf16_len

#: Minimum number of bodies in a digest. A digest always covers whole materials.
PART_BODIES = 1024


class PartDigest(NamedTuple):
    """Digest over consecutive bodies; ``last`` is the number of the last one."""

    last: int
    digest: str


class BodiesDigest:
    """Running SHA-256 over the text hash and the vector of each body; a missing vector adds no bytes."""

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()

    def add(self, text_hash: bytes, vector: bytes | None) -> None:
        """Add the next body: the hash of its text, and its vector or None."""
        self._hasher.update(text_hash + (vector or b""))

    def hexdigest(self) -> str:
        """Return the digest of the bodies added so far."""
        return self._hasher.hexdigest()


class PartDigests:
    """Computes digests of consecutive bodies (parts) while the bodies are written in the order of their numbers."""

    def __init__(self) -> None:
        self.parts: list[PartDigest] = []
        self._first = 1
        self._running = BodiesDigest()

    def add(self, text_hash: bytes, vector: bytes | None) -> None:
        """Add the next body: the hash of its text, and its vector or None."""
        self._running.add(text_hash, vector)

    def end_material(self, last: int) -> None:
        """End the current part if it has enough bodies; ``last`` is the number of the last body written."""
        if last - self._first + 1 >= PART_BODIES:
            self.end(last)

    def end(self, last: int) -> None:
        """End the current part; ``last`` is the number of the last body written."""
        if last >= self._first:
            self.parts.append(PartDigest(last, self._running.hexdigest()))
        self._first, self._running = last + 1, BodiesDigest()


#: Separates the bodies of a material in its content.
BODY_SEPARATOR = "\n\n"
#: Bytes of a large material that are passed to ``Material.name``.
HEAD_BYTES = 16 << 20
#: Rows per SQLite call.
BATCH_ROWS = 256

#: Work to do while other processes sort words. Its argument must be called regularly to keep them supplied.
Meanwhile = Callable[[Callable[[], None]], None]


class IndexingProgress(Protocol):
    """Receives the progress of building the indexes of a file."""

    def watch(self, db: apsw.Connection) -> None:
        """Watch a connection while it builds indexes."""

    def rows(self, count: int) -> None:
        """Count rows whose words other processes have indexed."""


class Tallies(msgspec.Struct):
    """Numbers of rows written to an index."""

    materials: int = 0
    units: int = 0
    embeddings: int = 0
    text_bytes: int = 0
    #: Bodies whose vector differs from the one already stored for the same text. The stored vector is kept.
    differing_vectors: int = 0
    #: Numbers of the bodies added without a vector, ascending. They may still share the vector of an equal text.
    bare: array[int] = msgspec.field(default_factory=lambda: array("q"))


@dataclass
class Material:
    """A material to write: its id, its path below ``raw/`` and its bodies with their vectors, in row order.

    A vector may be None: the body is then only found by its words. ``name`` is called with the content and returns the
    path (a snapshot is named after its first line); of a large material it gets only the beginning.
    """

    material_id: str
    name: Callable[[str], str]
    rows: Iterable[tuple[str | LargeText, bytes | None]]
    #: The texts are so large that they are written in pieces.
    is_large: bool = False
    #: Contains the content of a large material while it is being written; for others ``content`` does.
    spool: Spool | None = field(default=None, init=False)
    content: str = field(default="", init=False)
    relative_path: str = field(default="", init=False)

    def pieces(self) -> Iterator[str]:
        """Yield the content in pieces. Only valid while the material is being written."""
        if self.spool is None:
            yield self.content
        else:
            yield from (piece.decode() for piece in self.spool.pieces())


class IndexBuilder:
    """Builds the index of one base in a new file.

    Add the materials in the order in which their rows are to be numbered, then call :meth:`finish`. ``digests`` cover
    all bodies in that order.

    Args:
        connection: the new, empty file.
        base_id: id of the base.
        now_ms: time of all rows, in ms.
        full_text: builds the full-text index; by default FTS5 does.
    """

    def __init__(
        self, connection: apsw.Connection, base_id: str, now_ms: int, full_text: FullText | None = None
    ) -> None:
        self._db = connection
        self._now = now_ms
        self.tallies = Tallies()
        self.digests = PartDigests()
        self._full_text = full_text or FullText()
        self._db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        self._db.execute("BEGIN IMMEDIATE")
        for statement in schema.TABLES:
            self._db.execute(statement)
        self._db.execute(
            "INSERT INTO meta (id, schema_version, base_id, created_at, updated_at) VALUES (1, ?, ?, ?, ?)",
            (schema.SCHEMA_VERSION, base_id, now_ms, now_ms),
        )

    def add(self, material: Material) -> None:
        """Write a material with its content, units, bodies and embeddings; set its content and its path."""
        if material.is_large:
            self._add_large(material)
        else:
            self._add_small(material)
        self.digests.end_material(self.tallies.units)

    def _add_small(self, material: Material) -> None:
        """Write a material whose texts fit into memory."""
        bodies: list[str] = []
        hashes: list[str] = []
        for batch in _batches(material.rows):
            rows = [(identity.text_hash(body), vector, self._now) for body, vector in batch]
            self._insert_vectors(rows, self.tallies.units + len(bodies))
            bodies.extend(body for body, _ in batch)
            hashes.extend(key for key, _, _ in rows)
        material.content = BODY_SEPARATOR.join(bodies)
        material.relative_path = material.name(material.content)
        content_hash = identity.text_hash(material.content)
        self._insert_material(material.material_id, material.relative_path, content_hash, material.content)
        self._add_units(material.material_id, content_hash, bodies, hashes)

    def _add_large(self, material: Material) -> None:
        """Write a material whose texts do not fit into memory: through a temporary database, piece by piece."""
        spool = material.spool = Spool()
        vectors: list[tuple[str, bytes | None, int]] = []
        for text, vector in material.rows:
            vectors.append((spool.add(text).text_hash, vector, self._now))
            if len(vectors) == BATCH_ROWS:
                self._insert_vectors(vectors, self.tallies.units + len(spool.bodies) - len(vectors))
                vectors.clear()
        self._insert_vectors(vectors, self.tallies.units + len(spool.bodies) - len(vectors))
        material.relative_path = material.name(spool.head(HEAD_BYTES))
        key = spool.content_hash
        known = self._db.execute("SELECT 1 FROM content WHERE content_hash = ?", (key,)).get
        if known is None:
            self._db.execute(f"INSERT INTO content VALUES (?, {RESERVED_TEXT}, ?)", (key, spool.size, self._now))
            write_pieces(self._db, "content", self._db.last_insert_rowid(), spool.pieces())
        self._insert_material_row(material.material_id, material.relative_path, key)
        self._add_spooled(material.material_id, spool)

    def _add_spooled(self, material_id: str, spool: Spool) -> None:
        """Write the units and bodies of a material whose bodies are in a temporary database."""
        units: list[Unit] = []
        start = waiting = 0
        for index, body in enumerate(spool.bodies):
            end = start + body.units
            is_large = body.size > PIECE_BYTES
            text = "" if is_large else spool.text(body)
            units.append(make_unit(material_id, spool.content_hash, index, (start, end), text, body.text_hash))
            waiting += body.size
            start = end + len(BODY_SEPARATOR)
            if is_large or waiting > LARGE_BYTES or len(units) == BATCH_ROWS or index == len(spool.bodies) - 1:
                self._insert_units(material_id, units)
                units, waiting = [], 0
            if is_large:
                self._full_text.leave_to_fts5()
                rowid = self.tallies.units
                self._db.execute(f"UPDATE search_text SET text = {RESERVED_TEXT} WHERE rowid = ?", (body.size, rowid))
                write_pieces(self._db, "search_text", rowid, spool.pieces(body.start, body.size))
                self.tallies.text_bytes += body.size

    def add_units(self, material_id: str, relative_path: str, content: str, spans: Iterable[tuple[int, int]]) -> None:
        """Write a material whose content is already divided into units; its bodies get no vectors.

        Args:
            material_id: id of the material.
            relative_path: its path below ``raw/``.
            content: the whole text.
            spans: start and end of each unit in UTF-16 units of the content.

        Raises:
            UnitRefused: a unit is not a slice of the content.
        """
        units = cut_units(material_id, content, spans)
        self._insert_material(material_id, relative_path, identity.text_hash(content), content)
        for first in range(0, len(units), BATCH_ROWS):
            self._insert_units(material_id, units[first : first + BATCH_ROWS])

    def _insert_material(self, material_id: str, relative_path: str, content_hash: str, content: str) -> None:
        """Insert a material and, unless the file has it, its content (the whole text)."""
        self._db.execute(
            "INSERT INTO content (content_hash, text, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (content_hash, content, self._now),
        )
        self._insert_material_row(material_id, relative_path, content_hash)

    def _insert_material_row(self, material_id: str, relative_path: str, content_hash: str) -> None:
        """Insert a material whose content is in the file."""
        self._db.execute(
            "INSERT INTO material (material_id, relative_path, current_content_hash, created_at, updated_at)"
            " VALUES (?, ?, ?, ?, ?)",
            (material_id, relative_path, content_hash, self._now, self._now),
        )
        self.tallies.materials += 1

    def _insert_vectors(self, rows: list[tuple[str, bytes | None, int]], written: int) -> None:
        """Insert the vectors of the next bodies, given as (text hash, vector or None, time in ms).

        ``written`` is the number of bodies written before.
        """
        before = self._db.total_changes()
        self._db.executemany(
            "INSERT INTO embedding (embedding_text_hash, vector_blob, created_at) VALUES (?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            [row for row in rows if row[1] is not None],
        )
        added = self._db.total_changes() - before
        stored = rows if added == len(rows) else [self._with_stored_vector(row) for row in rows]
        for number, (key, vector, _) in enumerate(stored, written + 1):
            self.digests.add(bytes.fromhex(key), vector)
            if vector is None:
                self.tallies.bare.append(number)
        self.tallies.embeddings += added

    def _with_stored_vector(self, row: tuple[str, bytes | None, int]) -> tuple[str, bytes | None, int]:
        """Return (text hash, vector, time) with the vector that the file stores for the text: the first one is kept."""
        key, vector, time = row
        if vector is None:
            return row
        kept = self._db.execute("SELECT vector_blob FROM embedding WHERE embedding_text_hash = ?", (key,)).get
        if kept != vector:
            self.tallies.differing_vectors += 1
        return key, kept, time

    def _add_units(self, material_id: str, content_hash: str, bodies: list[str], hashes: list[str]) -> None:
        """Write the units of a material: its content consists of the bodies, joined in order.

        ``hashes`` are the text hashes of the bodies.
        """
        start = 0
        for first in range(0, len(bodies), BATCH_ROWS):
            units = []
            for index in range(first, min(first + BATCH_ROWS, len(bodies))):
                body = bodies[index]
                end = start + utf16_len(body)
                units.append(make_unit(material_id, content_hash, index, (start, end), body, hashes[index]))
                start = end + len(BODY_SEPARATOR)
            self._insert_units(material_id, units)

    def _insert_units(self, material_id: str, units: list[Unit]) -> None:
        """Insert units of a material and their bodies, and pass the bodies on to the full-text index."""
        rows, texts = [], []
        for unit in units:
            rowid = self.tallies.units + 1
            rows.append(
                (
                    unit.unit_id,
                    material_id,
                    unit.content_hash,
                    unit.unit_index,
                    unit.char_start,
                    unit.char_end,
                    self._now,
                )
            )
            texts.append(
                (
                    rowid,
                    identity.body_id(unit.unit_id),
                    unit.unit_id,
                    unit.text,
                    unit.embedding_text_hash,
                    rowid,
                    self._now,
                )
            )
            self.tallies.units += 1
            self.tallies.text_bytes += len(unit.text)
            self._full_text.add(rowid, unit.text)
        self._db.executemany(
            "INSERT INTO search_unit (unit_id, material_id, content_hash, unit_type, unit_index, char_start,"
            " char_end, created_at) VALUES (?, ?, ?, 'chunk', ?, ?, ?, ?)",
            rows,
        )
        self._db.executemany(
            "INSERT INTO search_text (rowid, search_text_id, target_type, target_id, kind, text,"
            " embedding_text_hash, fts_rowid, created_at) VALUES (?, ?, 'search_unit', ?, 'body', ?, ?, ?, ?)",
            texts,
        )

    def finish(self, progress: IndexingProgress | None = None, meanwhile: Meanwhile = lambda _: None) -> None:
        """Create indexes, the full-text index and triggers, and commit.

        Args:
            progress: receives the progress.
            meanwhile: called while other processes may still sort words; see :data:`Meanwhile`.
        """
        self.digests.end(self.tallies.units)
        words = self._full_text
        words.end()
        meanwhile(words.go_on)
        if progress is not None:
            progress.watch(self._db)
        each = (lambda _: None) if progress is None else progress.rows
        write_indexes(self._db, lambda db: words.fill(db, each), words_last=words.is_sorted, go_on=words.go_on)
        self._db.execute("COMMIT")


def _batches(rows: Iterable[tuple[str | LargeText, bytes | None]]) -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield (body, vector) rows in lists of ``BATCH_ROWS``, with large bodies read into memory."""
    batch: list[tuple[str, bytes | None]] = []
    for body, vector in rows:
        batch.append((body if isinstance(body, str) else body.whole(), vector))
        if len(batch) == BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def build_index(  # noqa: PLR0913 - each is one thing to know of the file
    path: Path,
    base_id: str,
    now_ms: int,
    materials: Iterable[Material],
    each: Callable[[int, Material], None],
    *,
    meanwhile: Meanwhile = lambda _: None,
    is_flushed: bool = True,
    text_bytes: int | None = None,
    progress: IndexingProgress | None = None,
    processes: ProcessPool | None = None,
) -> tuple[Tallies, list[PartDigest]]:
    """Write an index file; return the row counts and the digests of what was written.

    Args:
        path: the new file; its folder exists, the file does not.
        base_id: id of the base, which is also the name of the base's folder.
        now_ms: time of the run in ms.
        materials: in the order in which their rows are numbered.
        each: called with the position and the material after each is written, while its content is available.
        meanwhile: called after all rows are written, while other processes may still sort words. It must call its
            argument regularly to keep them supplied.
        is_flushed: flush the file to disk; otherwise the caller must do so before publishing it.
        text_bytes: approximate size of all bodies in bytes, if known.
        progress: receives the progress of building the indexes, after all rows are written.
        processes: process pool that may sort words.

    Raises:
        apsw.Error: the file cannot be written (``apsw.FullError``, ``apsw.IOError``).
    """
    with (
        open_full_text(text_bytes, path.parent, processes) as words,
        sqlite.open_writable(path, create=True) as connection,
    ):
        if not is_flushed:
            connection.pragma("synchronous", "OFF")
        builder = IndexBuilder(connection, base_id, now_ms, words)
        for position, material in enumerate(materials):
            builder.add(material)
            each(position, material)
            material.content = ""
            if material.spool is not None:
                material.spool.close()
                material.spool = None
        builder.finish(progress, meanwhile)
    return builder.tallies, builder.digests.parts
