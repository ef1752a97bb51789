"""Read and write a collection of AngelMemory with chromadb, and find the vectors nearest to a query.

chromadb always works on a copy, in a process of its own: native code reads files that may be damaged or malicious, and
a crash must not reach this process. When the child ends, no file of the copy is open any more. Only chromadb's Rust
core is used. It reads numbers and texts and never unpickles anything (``docs/formats/angel_memory.md``).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import numpy as np

from checks.angel_memory.detect import find_providers
from regraft.disk import durable, scratch
from regraft.errors import (
    NotSearchable,
    QueryVectorUnfit,
    SourceUnreadable,
)
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import COLLECTION, SOURCE_ID, AngelProblem, ProviderFolder
from regraft.formats.chroma import core
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import ChromaProblem
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.ranking.angel_memory import NearestRecords
from repair.angel_memory import staging
from repair.angel_memory.staging import Staging


class NearestVectors:
    """Keep the ``count`` vectors nearest to a query by squared L2 distance, as Chroma computes it. Memory is bounded.

    Args:
        vector: the query's vector, little-endian float32.
        count: number of vectors to keep.
    """

    def __init__(self, vector: bytes, count: int) -> None:
        self.vector = vector
        self.count = count
        #: Number of usable vectors that were compared.
        self.compared = 0
        self._numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
        #: Negative distance, then an id that sorts ties; the heap's first element is the farthest.
        self._heap: list[tuple[float, _Reversed]] = []

    @property
    def dimension(self) -> int:
        """Number of dimensions of the query's vector."""
        return len(self._numbers)

    def compare(self, vectors: Iterable[tuple[str, bytes]]) -> None:
        """Compare vectors, given as pairs of an id and a vector, with the query and keep the nearest ones.

        Vectors of another length, zero vectors and non-finite ones are skipped.
        """
        for key, vector in vectors:
            if len(vector) != len(self.vector):
                continue
            numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
            distance = float(((numbers - self._numbers) ** 2).sum())
            if np.isfinite(distance) and numbers.any():
                self.compared += 1
                self._keep(distance, key)

    def merge(self, other: NearestVectors) -> None:
        """Add the results of another search for the same vector."""
        self.compared += other.compared
        for key, distance in other.sorted():
            self._keep(distance, key)

    def sorted(self) -> list[tuple[str, float]]:
        """Ids and distances, nearest first; equal distances are ordered by id."""
        found = [(-negative, one.key) for negative, one in self._heap]
        return [(key, distance) for distance, key in sorted(found)]

    def _keep(self, distance: float, key: str) -> None:
        """Keep an id (``key``) if its distance is among the nearest so far; equal distances are ordered by id."""
        push = heapq.heappush if len(self._heap) < self.count else heapq.heappushpop
        push(self._heap, (-distance, _Reversed(key)))


class _Reversed:
    """An id that sorts in reverse, so that of equal distances the highest id leaves the heap first."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return self.key > other.key


class EntryRow(NamedTuple):
    """An entry to write: its source id, its text, and the hash of the text, by which its vector is staged."""

    source_id: str
    text: str
    text_hash: str


class CollectionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a collection, by source id. ``extra`` lists metadata names to remove from an entry."""

    is_rebuilt: bool
    deleted: tuple[str, ...]
    added: tuple[EntryRow, ...]
    #: Entries whose text and vector change.
    replaced: tuple[EntryRow, ...]
    #: Entries whose metadata changes, and nothing else.
    relabelled: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]


def read_vectors(folder: Path, keys: Sequence[str]) -> dict[str, bytes]:
    """Read the vectors of the entries ``keys`` (ids) with chromadb from ``folder``, a copy that chromadb may write to.

    Returns vectors as little-endian float32, by id; empty without a collection. All entries are read, whichever are
    asked for, which proves that chromadb can read them.

    Raises:
        ChromaFailed
    """
    found: dict[str, bytes] = core.run_in_child(_child_read_vectors, folder, frozenset(keys))
    return found


def rank_in_chroma(folder: Path, vector: bytes, count: int, keys: frozenset[str]) -> NearestVectors:
    """Find the ``count`` entries nearest to ``vector`` among the ids ``keys``, with chromadb.

    ``folder`` is a copy of Chroma's folder that chromadb may write to.

    Raises:
        ChromaFailed
    """
    found: NearestVectors = core.run_in_child(_child_nearest, folder, vector, count, keys)
    return found


def update_collection(folder: Path, staged: Path, work: CollectionChanges) -> None:
    """Change the collection in a copy, creating it if needed, and verify its vectors.

    Args:
        folder: the copy of Chroma's folder; may be missing.
        staged: the staging file with the vectors.
        work: the changes.

    Raises:
        ChromaFailed: the changes failed, or a vector differs from what was written.
    """
    core.run_in_child(_child_update, folder, staged, work)


# --- searching the collection ----------------------------------------------------------------------------------------


def find_nearest(root: Path, vector: bytes, count: int) -> NearestRecords:
    """Find the ``count`` records whose vectors are nearest to ``vector``, by squared L2 distance.

    The vector is little-endian float32.

    Vectors in Chroma's queue are read with plain SQLite. The others are in segment files, which chromadb reads from a
    temporary copy. The data folder is never written.

    Raises:
        NotSearchable: no provider is in use, or it has no vectors of notes.
        QueryVectorUnfit: the collection's vectors have another length.
        SourceUnreadable: the records or the collection cannot be read.
        WrongUsage: chromadb is needed to read some vectors, and it is not installed.
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot read the collection.
    """
    folder = find_providers(root).in_use
    if folder is None or not folder.database.is_file():
        raise _no_vectors_error(root)
    try:
        with database.open_records(root) as db:
            wanted = {source_id for source_id, _ in database.iterate_vector_texts(db)}
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error
    found = NearestVectors(vector, count)
    try:
        in_files, orphans = _search_queue(root, folder, wanted, found)
    except (ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=folder.database, reason=error) from error
    if in_files:
        version = core.demand_chromadb()
        with scratch.temporary_folder() as place, core.reporting_refusals(folder.chroma, version):
            copy = place / folder.chroma.name
            # The write-ahead log of a running writer is copied; its shared-memory index is rebuilt from the log.
            durable.copy_tree(folder.chroma, copy, without=("-shm",))
            found.merge(rank_in_chroma(copy, found.vector, found.count, in_files))
    return NearestRecords(distances=found.sorted(), missing=len(wanted) - found.compared, orphans=orphans)


def _search_queue(
    root: Path, folder: ProviderFolder, wanted: set[str], found: NearestVectors
) -> tuple[frozenset[str], int]:
    """Compare the vectors that wait in Chroma's queue with the query in ``found``.

    ``folder`` is that of the provider in use. Returns the ids among ``wanted`` whose vectors are in segment files
    instead, and the number of entries whose id is not wanted.
    """
    with chroma.open_chroma(folder.database) as db:
        notes = chroma.find_collection(db, COLLECTION)
        if notes is None or notes.dimension is None:
            raise _no_vectors_error(root)
        chroma.check_dimension(notes)
        if found.dimension != notes.dimension:
            raise QueryVectorUnfit(
                path=folder.database, base=COLLECTION, found=found.dimension, expected=notes.dimension
            )
        queued = set()

        def of_records() -> Iterator[tuple[str, bytes]]:
            """Yield id and vector of the queued vectors of wanted records; note the ids of all queued ones."""
            for key, one in chroma.iterate_queued_vectors(db, notes):
                queued.add(key)
                if key in wanted:
                    yield key, one

        found.compare(of_records())
        in_files: set[str] = set()
        orphans = 0
        for entry in chroma.iterate_entries(db, notes):
            orphans += entry.id not in wanted
            if entry.id in wanted and entry.id not in queued:
                in_files.add(entry.id)
        return frozenset(in_files), orphans


def _no_vectors_error(root: Path) -> NotSearchable:
    """Make the error that says that no note has a vector yet."""
    what = tr("{name} without note vectors", name=KIND_NAMES[Kind.ANGEL_MEMORY])
    advice = tr("run regraft reconcile to create them, or search tags only with --mode simple")
    return NotSearchable(path=root, what=what, advice=advice)


# --- the child process -----------------------------------------------------------------------------------------------


def _child_read_vectors(folder: Path, keys: frozenset[str]) -> dict[str, bytes]:
    """Do the work of :func:`read_vectors` in a child process."""
    client = core.open_client(folder)
    if not _has_collection(client):
        return {}
    collection = client.get_collection(COLLECTION, embedding_function=None)
    return {key: vector for key, vector in _read_entries(collection) if key in keys}


def _child_nearest(folder: Path, vector: bytes, count: int, keys: frozenset[str]) -> NearestVectors:
    """Do the work of :func:`rank_in_chroma` in a child process.

    Only records in ``keys`` are compared, and the ``count`` nearest are returned.
    """
    found = NearestVectors(vector, count)
    client = core.open_client(folder)
    if _has_collection(client):
        collection = client.get_collection(COLLECTION, embedding_function=None)
        found.compare((key, one) for key, one in _read_entries(collection) if key in keys)
    return found


def _has_collection(client: Any) -> bool:
    """Whether the database that a chromadb client has open contains the collection of notes."""
    return any(one.name == COLLECTION for one in client.list_collections())


def _read_entries(collection: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the id and the vector (float32, little-endian) of each entry of a chromadb collection."""
    import numpy  # noqa: PLC0415 - comes with chromadb

    for start in range(0, collection.count(), core.PAGE_SIZE):
        page = collection.get(limit=core.PAGE_SIZE, offset=start, include=["embeddings"])
        for key, vector in zip(page["ids"], page["embeddings"], strict=True):
            yield key, numpy.asarray(vector, dtype="<f4").tobytes()


def _child_update(folder: Path, staged: Path, work: CollectionChanges) -> None:
    """Do the work of :func:`update_collection` in a child process, and verify every vector."""
    durable.make_folders(folder, flush=False)
    with staging.read_staging(staged) as waiting:
        client = core.open_client(folder)
        if work.is_rebuilt and _has_collection(client):
            client.delete_collection(COLLECTION)
        # Created as the application does: the default distance is l2.
        collection = client.get_or_create_collection(COLLECTION, embedding_function=None)
        expected = _digests(collection)
        for keys in _chunks(work.deleted):
            collection.delete(ids=list(keys))
        for keys in _chunks(work.relabelled):
            collection.update(ids=list(keys), metadatas=[_metadata(work, key) for key in keys])
        for write, rows in ((collection.add, work.added), (collection.update, work.replaced)):
            for chunk in _chunks(rows):
                expected |= _write_rows(write, chunk, waiting, work)
        for key in work.deleted:
            expected.pop(key, None)
        if _digests(collection) != expected:
            raise ValueError(tr("vectors read back differ from the vectors written"))


def _write_rows(
    write: Callable[..., Any], rows: Sequence[EntryRow], waiting: Staging, work: CollectionChanges
) -> dict[str, bytes]:
    """Write entries with their texts, metadata and vectors to the collection.

    Args:
        write: chromadb's ``add`` or ``update`` of the collection.
        rows: the entries.
        waiting: the staging file, which has the vectors by text hash.
        work: all changes, for the metadata.

    Returns:
        The digest of each written vector, by source id.
    """
    import numpy  # noqa: PLC0415 - comes with chromadb

    vectors = waiting.vectors([row.text_hash for row in rows])
    write(
        ids=[row.source_id for row in rows],
        documents=[row.text for row in rows],
        embeddings=[numpy.frombuffer(vectors[row.text_hash], dtype="<f4") for row in rows],
        metadatas=[_metadata(work, row.source_id) for row in rows],
    )
    return {row.source_id: _digest(vectors[row.text_hash]) for row in rows}


def _metadata(work: CollectionChanges, source_id: str) -> dict[str, str | None]:
    """Return the metadata to store with the vector of a source id; unexpected fields listed in ``work`` become None."""
    return {**dict.fromkeys(work.extra.get(source_id, ())), SOURCE_ID: source_id}


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split rows into slices no larger than chromadb accepts in one call."""
    return (rows[start : start + core.PAGE_SIZE] for start in range(0, len(rows), core.PAGE_SIZE))


def _digests(collection: Any) -> dict[str, bytes]:
    """Return the digest of every vector of a chromadb collection, by id."""
    return {key: _digest(vector) for key, vector in _read_entries(collection)}


def _digest(vector: bytes) -> bytes:
    return blake2b(vector, digest_size=16).digest()
