"""Rebuild the vector segment of a collection: with the vectors that it has, and with new ones of a backfill.

chromadb builds the graph in a child process, from the vectors as its API returns them. Then every element gets the
bytes back that the old segment had for it: cosine distance would otherwise normalize a vector a second time, and
change its last bits. At the end, chromadb reads every vector of a copy with the new segment, and each must be the same,
bit for bit (``docs/chroma.md``, "Repair").
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from regraft.disk import durable, sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.chroma import core, database, label_map
from regraft.formats.chroma.collection import CollectionState, Origin, open_collection
from regraft.formats.chroma.core import ChromaFailed
from regraft.formats.chroma.database import (
    ELEMENTS_FILE,
    HEADER_FILE,
    NORMS_FILE,
    UPPER_FILE,
    ChromaCollection,
    ChromaProblem,
)
from regraft.formats.chroma.label_map import LabelMap
from regraft.formats.chroma.segment import SegmentFiles, open_segment
from regraft.language import format_count, tr
from repair.changes import files
from repair.changes.files import copy_database
from repair.changes.plan import Action, FileChange

#: Name of the collection in which chromadb builds a segment.
_NAME = "rebuilt"
#: Relative difference that Chroma's own rounding makes to a vector that it normalizes.
_ROUNDING = 1e-6
_BATCH = 1000
_STORED_BYTES = "SELECT vector, stored, norm FROM vector WHERE id = ?"
#: Yields id and vector of entries that have no vector yet.
NewVectors = Callable[[apsw.Connection, CollectionState], Iterator[tuple[str, bytes]]]


def no_new_vectors(_: apsw.Connection, __: CollectionState) -> Iterator[tuple[str, bytes]]:
    """Yield nothing: the segment gets the vectors that the folder has."""
    yield from ()


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into the new segment of a collection."""

    root: Path
    of: ChromaCollection
    #: Whether vectors are kept whose id or norm is not proven.
    keeps_unproven: bool
    #: Whether vectors are kept that have neither text nor metadata.
    keeps_orphans: bool = True
    #: Vectors of entries that have none that is kept.
    new: NewVectors = no_new_vectors

    def rows(self, state: CollectionState) -> Iterator[tuple[str, Origin, int]]:
        """Yield id, origin and place of the vectors of the new segment.

        Later operations stay in the queue, and Chroma applies them as before.
        """
        orphans = set() if self.keeps_orphans else set(state.orphan_ids())
        for key, origin, place in state.segment_ids():
            if key not in orphans and (self.keeps_unproven or origin is not Origin.UNPROVEN):
                yield key, origin, place

    def write(self, new: Path) -> None:
        """Write the new folder of the segment.

        Raises:
            WrongUsage: chromadb is not installed.
            CollectionOfOtherVersion, CollectionRefused: chromadb failed, or a vector that it reads back differs.
            SourceUnreadable: the database or the old segment cannot be read.
        """
        version = core.demand_chromadb()
        place = new.with_name(f"{new.name}.build")
        path = self.root / database.FILE
        durable.remove_tree(place)
        durable.make_folders(place, flush=False)
        try:
            with (
                core.reporting_refusals(self.root, version),
                database.open_chroma(path) as db,
                open_collection(db, self.of, self.root) as state,
            ):
                count = self._stage(db, state, place / "staged.sqlite")
                links = 16 if state.segment is None else state.segment.header.links
                built = core.run_in_child(
                    _build, place / "built", place / "staged.sqlite", count, self.of.distance, links
                )
                self._take(Path(built), new, state, place / "staged.sqlite")
                self._verify(new, place, state)
        except (ChromaProblem, apsw.Error) as error:
            raise SourceUnreadable(path=path, reason=error) from error
        finally:
            durable.remove_tree(place)

    def _stage(self, source: apsw.Connection, state: CollectionState, staged: Path) -> int:
        """Write ids and vectors to a temporary file for the child process; returns their number."""
        count = 0
        with sqlite.open_writable(staged, create=True) as db:
            db.execute("PRAGMA journal_mode = OFF").fetchall()
            db.execute(
                "CREATE TABLE vector (id TEXT PRIMARY KEY, origin INTEGER, vector BLOB, stored BLOB, norm BLOB,"
                " is_shown INTEGER)"
            )
            with sqlite.transaction(db):
                for key, origin, place in self.rows(state):
                    vector = state.vector_at(origin, place)
                    if len(vector) != 4 * (state.dimension or 0):
                        raise ChromaFailed(tr("the vector of {id} cannot be read", id=key))
                    is_there = origin is not Origin.RECOVERED
                    stored = state.stored_vector(place) if is_there else None
                    norm = state.stored_norm(place) if is_there else None
                    if is_there and norm is None and state.is_cosine:
                        # Its length is lost: the vector stays as it is, of length 1.
                        norm = struct.pack("<f", 1)
                    is_shown = state.place_of(key) == (origin, place)
                    db.execute(
                        "INSERT INTO vector VALUES (?, ?, ?, ?, ?, ?)", (key, origin, vector, stored, norm, is_shown)
                    )
                    count += 1
                for key, vector in self.new(source, state):
                    # Chroma normalizes it, as it does with every vector that an application adds.
                    is_shown = not state.is_waiting(key)
                    row = (key, Origin.RECOVERED, vector, None, None, is_shown)
                    db.execute("INSERT INTO vector VALUES (?, ?, ?, ?, ?, ?)", row)
                    count += 1
        return count

    def _take(self, built: Path, new: Path, state: CollectionState, staged: Path) -> None:
        """Copy a built segment to ``new``, with the bytes of the old one for each vector."""
        durable.make_folders(new, flush=False)
        for name in (HEADER_FILE, ELEMENTS_FILE, NORMS_FILE, UPPER_FILE, label_map.FILE):
            durable.copy_file(built / name, new / name)
        found, labels = label_map.read_labels(new / label_map.FILE)
        segment = open_segment(new, None)
        with sqlite.open_readonly(staged) as db:
            ids = {label: key for key, label in labels}
            restore_bytes(new, segment, ids, db, _STORED_BYTES, is_cosine=state.is_cosine)
        if state.needs_object_labels:
            # Versions up to 0.6 read nothing but an instance of their own class.
            older = LabelMap(
                dimension=segment.header.dimension,
                total_added=found.total_added,
                # Versions up to 0.4 have this number nowhere else.
                max_seq_id=None if state.labels is None else state.labels.max_seq_id,
                is_object=True,
            )
            durable.put_bytes(new / label_map.FILE, label_map.encode_label_map(older, labels))

    def _verify(self, new: Path, place: Path, state: CollectionState) -> None:
        """Read every vector with chromadb from a copy that has the new segment, and compare.

        Raises:
            ChromaFailed: a vector differs.
        """
        copy = place / "verified"
        durable.make_folders(copy, flush=False)
        copy_database(self.root / database.FILE, copy / database.FILE)
        durable.copy_tree(new, copy / str(self.of.vectors))
        with (
            database.open_chroma(copy / database.FILE) as db,
            open_collection(db, self.of, copy) as after,
        ):
            kept = (key for key, origin, place in self.rows(state) if state.place_of(key) == (origin, place))
            wrong = sum(1 for key in kept if not _is_same(state, after, key))
            queued = (key for key, _, _ in state.queued_vectors() if state.place_of(key) != after.place_of(key))
            wrong += sum(1 for key in queued if not _is_same(state, after, key))
            with sqlite.open_readonly(place / "staged.sqlite") as staged:
                # New vectors have no other place to be compared with.
                rows = staged.execute("SELECT id, vector FROM vector WHERE is_shown AND stored IS NULL")
                wrong += sum(1 for key, vector in rows if not _is_like(after, str(key), vector))
            if wrong or after.label_problem is not None or after.segment_problem is not None:
                raise ChromaFailed(tr("{vectors} of the new segment differ", vectors=format_count(wrong, "vector")))
        # Last, because chromadb applies the queue when it opens the copy.
        core.run_in_child(_compare, copy, self.of.name, place / "staged.sqlite", state.is_cosine)


def _is_same(before: CollectionState, after: CollectionState, key: str) -> bool:
    """Whether an id has the vector in the new segment that it had before."""
    old, new = before.vector_of(key), after.vector_of(key)
    if old is None or new is None:
        return False
    return old[1] == new[1] or (before.is_cosine and old[0] is Origin.RECOVERED and is_close(old[1], new[1]))


def _is_like(after: CollectionState, key: str, vector: Any) -> bool:
    """Whether an id has a vector in the new segment, but for Chroma's own rounding."""
    found = after.vector_of(key)
    return found is not None and (found[1] == vector or (after.is_cosine and is_close(found[1], vector)))


def is_close(one: bytes, other: bytes) -> bool:
    """Whether two vectors differ by no more than Chroma's own rounding."""
    if len(one) != len(other):
        return False
    left, right = (np.frombuffer(vector, dtype="<f4").astype(np.float64) for vector in (one, other))
    return bool(np.linalg.norm(left - right) <= _ROUNDING * max(float(np.linalg.norm(left)), 1e-30))


def restore_bytes(
    folder: Path, segment: SegmentFiles, ids: dict[int, str], staged: apsw.Connection, query: str, *, is_cosine: bool
) -> None:
    """Give every element of a segment that chromadb built the bytes that are staged for its vector.

    Args:
        folder: the segment's folder.
        segment: its files.
        ids: the id of each label.
        staged: the staged vectors.
        query: returns of an id (``?``) its vector, the bytes to store for it, and its norm; each may be NULL.
        is_cosine: whether elements have unit vectors. Otherwise the vector itself is stored.
    """
    header = segment.header
    start = 4 + 4 * header.lowest_links
    with (
        durable.open_binary(folder / ELEMENTS_FILE, "r+b") as elements,
        durable.open_binary(folder / NORMS_FILE, "r+b") as norms,
    ):
        for block in segment.blocks():
            for offset, label in enumerate(block.labels.tolist()):
                position = block.start + offset
                row: Any = staged.execute(query, (ids[label],)).fetchone()
                vector, stored, norm = row
                kept = stored if stored is not None else None if is_cosine else vector
                if kept is not None:
                    elements.seek(position * header.element_bytes + start)
                    elements.write(kept)
                if norm is not None:
                    norms.seek(4 * position)
                    norms.write(norm)


# --- the child process -----------------------------------------------------------------------------------------------


def _build(folder: Path, staged: Path, count: int, distance: str, links: int) -> str:
    """Build a collection of the staged vectors, and return the folder of its segment."""
    durable.make_folders(folder, flush=False)
    client = core.open_client(folder)
    # Chroma writes a segment when as many operations have come as the threshold says: with the last one.
    settings = {"space": distance, "max_neighbors": links, "sync_threshold": count + 1, "batch_size": 2}
    collection = client.create_collection(_NAME, embedding_function=None, configuration={"hnsw": settings})
    last: tuple[list[str], Any] | None = None
    for ids, vectors in _pages(staged):
        collection.add(ids=ids, embeddings=vectors)
        last = ids[-1:], vectors[-1:]
    if last is not None:
        collection.upsert(ids=last[0], embeddings=last[1])
    found = [path.parent for path in folder.glob(f"*/{label_map.FILE}")]
    if len(found) != 1:
        raise ValueError(tr("chromadb wrote no segment"))
    return str(found[0])


def _pages(staged: Path) -> Iterator[tuple[list[str], Any]]:
    """Yield ids and vectors; what chromadb refuses gets a place in the graph, and its own bytes later."""
    with sqlite.open_readonly(staged) as db:
        last = ""
        while rows := _fetch(db, "SELECT id, vector FROM vector WHERE id > ? ORDER BY id LIMIT ?", last):
            vectors = np.array([np.frombuffer(vector, dtype="<f4") for _, vector in rows])
            with np.errstate(all="ignore"):
                norms = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
            vectors[~(np.isfinite(norms) & (norms > 0))] = 1
            yield [str(key) for key, _ in rows], vectors
            last = str(rows[-1][0])


def _fetch(db: apsw.Connection, query: str, last: str) -> list[Any]:
    return db.execute(query, (last, _BATCH)).fetchall()


def _compare(copy: Path, name: str, staged: Path, is_cosine: bool) -> None:
    """Read every staged vector with Chroma's API and compare it with the one that was there before."""
    collection = core.open_client(copy, migrates=True).get_collection(name, embedding_function=None)
    with sqlite.open_readonly(staged) as db:
        last = ""
        query = "SELECT id, origin, vector FROM vector WHERE id > ? AND is_shown ORDER BY id LIMIT ?"
        while rows := _fetch(db, query, last):
            last = str(rows[-1][0])
            wanted = {str(key): (origin, vector) for key, origin, vector in rows}
            got = collection.get(ids=list(wanted), include=["embeddings"])
            for key, vector in zip(got["ids"], got["embeddings"], strict=True):
                origin, expected = wanted[key]
                raw = np.asarray(vector, dtype="<f4").tobytes()
                is_rounded = is_cosine and origin == Origin.RECOVERED
                if raw != expected and not (is_rounded and is_close(raw, expected)):
                    raise ValueError(tr("the vector of {id} reads back differently", id=key))


# --- planning --------------------------------------------------------------------------------------------------------


def plan_new_segment(
    state: CollectionState, job: Rebuild, actions: tuple[Action, ...], count: int
) -> Iterator[FileChange]:
    """Plan the new segment, and a copy of the old one if that may have vectors that the new one does not get.

    Args:
        state: the collection; its segment has the name of a folder.
        job: writes the segment.
        actions: what it does.
        count: the number of its vectors.
    """
    folder, of = state.folder, state.of
    assert folder is not None
    assert of.vectors is not None
    is_there = folder.is_dir()
    size = files.size_on_disk(folder) if is_there else 0
    drops = state.labels is None or (not job.keeps_unproven and state.count_origin(Origin.UNPROVEN) > 0)
    if is_there and drops:
        yield _keep_files(folder, of, size)
    vectors = count * (4 * (state.dimension or 0) + 8)
    yield FileChange(path=of.vectors, actions=actions, make=job.write, bytes=3 * max(size, vectors))


def _keep_files(folder: Path, of: ChromaCollection, size: int) -> FileChange:
    """Plan a copy of the old segment beside the new one. No command removes it: it may be the last copy of vectors."""
    name, number = f"{folder.name}.unproven", 1
    while (folder.parent / name).exists():
        number += 1
        name = f"{folder.name}.unproven-{number}"
    message = tr(
        "keep the old segment of {name} as {path}, because it has vectors that are not proven", name=of.name, path=name
    )
    action = Action(action="keep-segment", message=message, base=of.id, subject=name)
    return FileChange(path=name, actions=(action,), make=partial(durable.copy_tree, folder), bytes=size)
