"""Writing a collection of AngelMemory's with chromadb, always in a copy (``docs/formats/angel_memory.md``).

All of it happens in a process of its own. The files of a collection come from a disk and are read by native code: what
they do to it must not be done to this process, and when it has ended nothing of the copy is open any more. What the
files hold is never unpickled: of chromadb, only its own core is used, which reads numbers and texts and runs nothing.
"""

from __future__ import annotations

import heapq
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from regraft import errors
from regraft.disk import durable, writable
from regraft.errors import WrongUsage
from regraft.formats.angel_memory.database import COLLECTION, SOURCE_ID
from regraft.language import tr
from regraft.processes import pool
from repair.angel_memory import staging
from repair.angel_memory.staging import Staging

# Keep the nearest of a stream of vectors, by squared L2 distance as Chroma computes it.


class NearestVectors:
    """The ``count`` nearest of all vectors that were compared; memory does not grow with their number.

    Args:
        vector: the query's vector, little-endian float32.
        count: how many are kept.
    """

    def __init__(self, vector: bytes, count: int) -> None:
        self.vector = vector
        self.count = count
        #: How many usable vectors were compared.
        self.compared = 0
        self._numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
        #: Negative distance, then an id that sorts ties; the heap's first element is the farthest.
        self._heap: list[tuple[float, _Reversed]] = []

    @property
    def dimension(self) -> int:
        """Return how many numbers the query's vector has."""
        return len(self._numbers)

    def compare(self, vectors: Iterable[tuple[str, bytes]]) -> None:
        """Compare vectors by id; those of another length, of zeros or not finite are left out."""
        for key, vector in vectors:
            if len(vector) != len(self.vector):
                continue
            numbers = np.frombuffer(vector, dtype="<f4").astype(np.float64)
            distance = float(((numbers - self._numbers) ** 2).sum())
            if np.isfinite(distance) and numbers.any():
                self.compared += 1
                self._keep(distance, key)

    def merge(self, other: NearestVectors) -> None:
        """Add what another search for the same vector found."""
        self.compared += other.compared
        for key, distance in other.sorted():
            self._keep(distance, key)

    def sorted(self) -> list[tuple[str, float]]:
        """Return ids and distances, nearest first; equal distances in the order of ids."""
        found = [(-negative, one.key) for negative, one in self._heap]
        return [(key, distance) for distance, key in sorted(found)]

    def _keep(self, distance: float, key: str) -> None:
        push = heapq.heappush if len(self._heap) < self.count else heapq.heappushpop
        push(self._heap, (-distance, _Reversed(key)))


class _Reversed:
    """An id that sorts in reverse, so that of equal distances the highest id leaves the heap first."""

    __slots__ = ("key",)

    def __init__(self, key: str) -> None:
        self.key = key

    def __lt__(self, other: _Reversed) -> bool:
        return self.key > other.key


#: What needs chromadb, and the extra that brings it.
_NEEDED = (tr("collections of AngelMemory"), "chroma")
_CORE = "chromadb.api.rust.RustBindingsAPI"
#: How many entries are read or written at once.
_AT_ONCE = 1000
#: What chromadb says of a database that it would have to change before it can use it.
_OTHER_VERSION = "migration"


class ChromaFailed(Exception):
    """Chromadb could not do what it was asked to; the text says why. ``is_other_version``: it is not its own."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.is_other_version = _OTHER_VERSION in reason.lower()


class CollectionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to a collection, by source ids.

    Texts come with the keys of their vectors, which lie in a staging file. ``extra`` are names in the metadata of an
    entry that are none of its own.
    """

    is_rebuilt: bool
    deleted: tuple[str, ...]
    added: tuple[tuple[str, str, str], ...]
    #: Entries that get another text and vector.
    replaced: tuple[tuple[str, str, str], ...]
    #: Entries that get nothing but other metadata.
    relabelled: tuple[str, ...]
    extra: dict[str, tuple[str, ...]]


def demand_chromadb() -> str:
    """Return the version of chromadb.

    Raises:
        WrongUsage: it is not installed, or without the core that is used here, or cannot be loaded.
    """
    if find_spec("chromadb") is None:
        raise errors.not_installed_error("chromadb", *_NEEDED)
    try:
        version: str | None = _apart(_version)
    except ChromaFailed as failed:
        problem = tr("chromadb cannot be loaded ({reason})", reason=failed)
        raise WrongUsage(problem=problem, hint=tr("install it again, or another version of it")) from failed
    if version is None:
        raise errors.not_installed_error("chromadb", *_NEEDED)
    return version


def read_vectors(folder: Path, keys: Sequence[str]) -> dict[str, bytes]:
    """Return the vectors of entries, as little-endian float32, out of a copy that chromadb may write to.

    Without a collection there are none. Every entry is read, whatever is asked for: afterwards it is known that
    chromadb can work with all of them.

    Raises:
        ChromaFailed
    """
    found: dict[str, bytes] = _apart(_vectors_of, folder, frozenset(keys))
    return found


def rank_in_chroma(folder: Path, vector: bytes, count: int, keys: frozenset[str]) -> NearestVectors:
    """Return the nearest of the entries ``keys``, out of a copy that chromadb may write to.

    Raises:
        ChromaFailed
    """
    found: NearestVectors = _apart(_nearest_vectors, folder, vector, count, keys)
    return found


def update_collection(folder: Path, staged: Path, work: CollectionChanges) -> None:
    """Change the collection in a copy, made anew where there is none, and prove its vectors.

    Args:
        folder: the copy of Chroma's folder, which may be missing.
        staged: the staging file with the vectors.
        work: what is to be done.

    Raises:
        ChromaFailed: it cannot be done, or a vector is not what it has to be.
    """
    _apart(_follow, folder, staged, work)


# --- a process of its own --------------------------------------------------------------------------------------------


def _apart(function: Callable[..., Any], *args: Any) -> Any:
    with pool.start_workers(1, _answer, function, args) as (worker,):
        try:
            answer, problem = worker.pipe.recv()
        except (EOFError, ConnectionError):
            # All that it writes to is a copy.
            answer, problem = None, tr("it ended in the midst of it (exit status {end})", end=worker.end())
    if problem is not None:
        raise ChromaFailed(problem)
    return answer


def _answer(parent: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    args = tuple(arg.absolute() if isinstance(arg, Path) else arg for arg in args)
    # Importing chromadb reads a file ``.env`` of the working directory, which may be a stranger's.
    os.chdir(sys.prefix)
    try:
        answer, problem = function(*args), None
    # What its core calls a panic is not even an Exception.
    except BaseException as error:
        answer, problem = None, f"{type(error).__name__}: {' '.join(str(error).split())}"
    parent.send((answer, problem))


def _version() -> str | None:
    """Return the version of chromadb; None where it is not installed, or without its core."""
    try:
        import chromadb.api.rust  # noqa: PLC0415 - as in _client
    except ImportError:
        return None
    return str(chromadb.__version__)


def _client(folder: Path) -> Any:
    import chromadb  # noqa: PLC0415 - an extra, and only ever in a process of its own
    from chromadb.config import Settings  # noqa: PLC0415

    is_there = folder.is_dir() and any(folder.iterdir())
    # Nothing of it comes from the environment or from a file that lies about.
    settings: dict[str, Any] = {
        "_env_file": None,
        "anonymized_telemetry": False,
        "chroma_api_impl": _CORE,
        "chroma_otel_collection_endpoint": "",
        "allow_reset": False,
        # The application that wrote it need not be able to read what another version makes of it.
        "migrations": "validate" if is_there else "apply",
    }
    # It is closed when the process ends.
    return chromadb.PersistentClient(path=str(writable.require_writable(folder)), settings=Settings(**settings))


def _vectors_of(folder: Path, keys: frozenset[str]) -> dict[str, bytes]:
    client = _client(folder)
    if not _is_in(client):
        return {}
    collection = client.get_collection(COLLECTION, embedding_function=None)
    return {key: vector for key, vector in _entries(collection) if key in keys}


def _nearest_vectors(folder: Path, vector: bytes, count: int, keys: frozenset[str]) -> NearestVectors:
    found = NearestVectors(vector, count)
    client = _client(folder)
    if _is_in(client):
        collection = client.get_collection(COLLECTION, embedding_function=None)
        found.compare((key, one) for key, one in _entries(collection) if key in keys)
    return found


def _is_in(client: Any) -> bool:
    return any(one.name == COLLECTION for one in client.list_collections())


def _entries(collection: Any) -> Iterator[tuple[str, bytes]]:
    import numpy  # noqa: PLC0415 - comes with chromadb

    for start in range(0, collection.count(), _AT_ONCE):
        page = collection.get(limit=_AT_ONCE, offset=start, include=["embeddings"])
        for key, vector in zip(page["ids"], page["embeddings"], strict=True):
            yield key, numpy.asarray(vector, dtype="<f4").tobytes()


def _follow(folder: Path, staged: Path, work: CollectionChanges) -> None:
    durable.make_folders(folder, flush=False)
    with staging.read_staging(staged) as waiting:
        client = _client(folder)
        if work.is_rebuilt and _is_in(client):
            client.delete_collection(COLLECTION)
        # As the system makes it: by default, distances are l2.
        collection = client.get_or_create_collection(COLLECTION, embedding_function=None)
        expected = _digests(collection)
        for keys in _chunks(work.deleted):
            collection.delete(ids=list(keys))
        for keys in _chunks(work.relabelled):
            collection.update(ids=list(keys), metadatas=[_metadata(work, key) for key in keys])
        for write, rows in ((collection.add, work.added), (collection.update, work.replaced)):
            for chunk in _chunks(rows):
                expected |= _written(write, chunk, waiting, work)
        for key in work.deleted:
            expected.pop(key, None)
        if _digests(collection) != expected:
            raise ValueError(tr("vectors are not what was written"))


def _written(
    write: Callable[..., Any], rows: Sequence[tuple[str, str, str]], waiting: Staging, work: CollectionChanges
) -> dict[str, bytes]:
    """Write entries with their texts and vectors; return what proves these vectors, by source id."""
    import numpy  # noqa: PLC0415 - comes with chromadb

    vectors = waiting.vectors([hashed for _, _, hashed in rows])
    write(
        ids=[key for key, _, _ in rows],
        documents=[text for _, text, _ in rows],
        embeddings=[numpy.frombuffer(vectors[hashed], dtype="<f4") for _, _, hashed in rows],
        metadatas=[_metadata(work, key) for key, _, _ in rows],
    )
    return {key: _digest(vectors[hashed]) for key, _, hashed in rows}


def _metadata(work: CollectionChanges, key: str) -> dict[str, str | None]:
    return {**dict.fromkeys(work.extra.get(key, ())), SOURCE_ID: key}


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE))


def _digests(collection: Any) -> dict[str, bytes]:
    return {key: _digest(vector) for key, vector in _entries(collection)}


def _digest(vector: bytes) -> bytes:
    return blake2b(vector, digest_size=16).digest()
