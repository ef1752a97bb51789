"""Find the vectors of AngelMemory's collection ``notes_index`` that are nearest to a query's vector.

Vectors that still wait in Chroma's queue are read with plain SQLite. The others lie in the files of a segment, which
chromadb reads from a temporary copy (:mod:`repair.angel_memory.collection`). The data folder is never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw

from checks.angel_memory.detect import find_providers
from regraft.disk import durable
from regraft.errors import NotSearchable, QueryVectorUnfit, SourceUnreadable
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.formats.angel_memory.database import COLLECTION, AngelProblem, ProviderFolder
from regraft.kinds import KIND_NAMES, Kind
from regraft.language import tr
from regraft.ranking.angel_memory import Nearest
from repair.angel_memory import collection, vectors
from repair.angel_memory.collection import NearestVectors


def find_nearest(root: Path, vector: bytes, count: int) -> Nearest:
    """Return the ``count`` records whose vectors are nearest to ``vector`` (little-endian float32), by squared L2.

    Raises:
        NotSearchable: no provider is in use, or it has no vectors of notes.
        QueryVectorUnfit: the collection's vectors have another length.
        SourceUnreadable: the records or the collection cannot be read.
        WrongUsage: some vectors can only be read with chromadb, and it is not installed.
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot read the collection.
    """
    folder = find_providers(root).in_use
    if folder is None or not folder.database.is_file():
        raise _without_vectors(root)
    try:
        with database.reading(root) as db:
            wanted = {source_id for source_id, _ in database.vector_texts(db)}
    except (AngelProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=root / database.DATABASE, reason=error) from error
    found = NearestVectors(vector, count)
    try:
        in_files, orphans = _search_queue(root, folder, wanted, found)
    except (ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=folder.database, reason=error) from error
    if in_files:
        _search_files(folder, in_files, found)
    return Nearest(distances=found.sorted(), missing=len(wanted) - found.compared, orphans=orphans)


def _search_queue(
    root: Path, folder: ProviderFolder, wanted: set[str], found: NearestVectors
) -> tuple[frozenset[str], int]:
    """Compare the vectors in the queue; return the ids whose vectors are in files, and the number of orphans."""
    with chroma.reading(folder.database) as db:
        notes = chroma.collection(db, COLLECTION)
        if notes is None or notes.dimension is None:
            raise _without_vectors(root)
        chroma.demand_dimension(notes)
        if found.dimension != notes.dimension:
            raise QueryVectorUnfit(
                path=folder.database, base=COLLECTION, found=found.dimension, expected=notes.dimension
            )
        queued = set()

        def of_records() -> Iterator[tuple[str, bytes]]:
            for key, one in chroma.vectors(db, notes):
                queued.add(key)
                if key in wanted:
                    yield key, one

        found.compare(of_records())
        in_files: set[str] = set()
        orphans = 0
        for entry in chroma.entries(db, notes):
            orphans += entry.id not in wanted
            if entry.id in wanted and entry.id not in queued:
                in_files.add(entry.id)
        return frozenset(in_files), orphans


def _search_files(folder: ProviderFolder, keys: frozenset[str], found: NearestVectors) -> None:
    version = collection.demand_chromadb()
    with durable.temporary_folder() as place, vectors.refusals(folder.chroma, version):
        copy = place / folder.chroma.name
        # The log of a running writer is copied too; its index of shared memory is rebuilt from it.
        durable.copy_tree(folder.chroma, copy, without=("-shm",))
        found.merge(collection.rank_in_chroma(copy, found.vector, found.count, keys))


def _without_vectors(root: Path) -> NotSearchable:
    what = tr("{name} without vectors of notes", name=KIND_NAMES[Kind.ANGEL_MEMORY])
    advice = tr("regraft reconcile makes them; --mode simple searches tags alone")
    return NotSearchable(path=root, what=what, advice=advice)
