"""Rebuild the vector segment of a collection: with the vectors that it has, and with new ones of a backfill.

chromadb builds the graph in a child process, from the vectors as its API returns them. Then every element gets the
bytes back that the old segment had for it: cosine distance would otherwise normalize a vector a second time, and
change its last bits. At the end, chromadb reads every vector of a copy with the new segment, and each must be the same,
bit for bit (``docs/chroma.md``, "Repair").

:class:`ChromaFiller` is the backfill: it embeds the documents of entries that have no vector. Vectors wait in a staging
file below ``.regraft`` until the segment has them, so that a run that stops pays for each text once. Then the segment
is rebuilt with them, which is the only step that needs chromadb (``docs/chroma.md``, "Backfill").
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec
import numpy as np

from checks.chroma import findings as chroma
from regraft import identity
from regraft.disk import durable, file_paths, sqlite
from regraft.embedders.settings import EmbedderSettings
from regraft.errors import ModelDiffers, RegraftError, SourceUnreadable, TargetLocked
from regraft.formats.chroma import core, database, label_map
from regraft.formats.chroma.collection import (
    KEPT_FILE,
    PROVEN,
    CollectionState,
    KeptPositions,
    Origin,
    open_collection,
    open_places,
)
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
from regraft.formats.vector_checks import has_usable_norm, read_floats
from regraft.language import format_count, tr
from regraft.ledger.ledger import FOLDER
from regraft.text import is_blank
from repair.changes import files
from repair.changes.changesets import IncrementalChange
from repair.changes.execution import RECONCILING
from repair.changes.files import copy_database
from repair.changes.plan import Action, FileChange, Plan, Unresolved
from repair.changes.session import open_ledger
from repair.changes.store import Store
from repair.embedding import probing
from repair.embedding.scope import (
    BackfillOptions,
    FillTargets,
    Publication,
    Scope,
    TextCounts,
    TextWithoutVector,
    WrittenCounts,
)

#: Name of the collection in which chromadb builds a segment.
_NAME = "rebuilt"
#: Relative difference that Chroma's own rounding makes to a vector that it normalizes.
_ROUNDING = 1e-6
_BATCH = 1000
_STORED_BYTES = "SELECT vector, stored, norm FROM vector WHERE id = ?"
#: A vector for an entry that has none: its id, the vector as Chroma is to return it, and the bytes and the norm that
#: the segment is to have for it. Chroma computes these if they are None, as for every vector that an application adds.
NewVector = tuple[str, bytes, bytes | None, bytes | None]
NewVectors = Callable[[apsw.Connection, CollectionState], Iterator[NewVector]]
#: The norm of a vector whose length is lost: it stays as the segment has it.
_LENGTH_1 = struct.pack("<f", 1)


def no_new_vectors(_: apsw.Connection, __: CollectionState) -> Iterator[NewVector]:
    """Yield nothing: the segment gets only the vectors that the folder has."""
    yield from ()


class Rebuild(msgspec.Struct, frozen=True, kw_only=True):
    """Builds the new segment of a collection. The attributes say which vectors it gets."""

    root: Path
    of: ChromaCollection
    #: Whether vectors are kept whose id or norm is not proven.
    keeps_unproven: bool
    #: Whether vectors are kept that have neither text nor metadata.
    keeps_orphans: bool = True
    #: Vectors of entries that have none that is kept.
    new: NewVectors = no_new_vectors

    def rows(self, state: CollectionState) -> Iterator[tuple[str, Origin, int]]:
        """Yield (id, origin, place) of each vector that is kept.

        The place is a position in the segment or a number in the queue. Operations of the queue that the segment does
        not include yet stay there, and Chroma applies them as before.
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
                links = self.of.links if state.segment is None else state.segment.header.links
                built = core.run_in_child(
                    _build, place / "built", place / "staged.sqlite", count, self.of.distance, links
                )
                self._copy_segment(Path(built), new, state, place / "staged.sqlite")
                self._verify(new, place, state)
        except (ChromaProblem, apsw.Error) as error:
            raise SourceUnreadable(path=path, reason=error) from error
        finally:
            durable.remove_tree(place)

    def _stage(self, source: apsw.Connection, state: CollectionState, staged: Path) -> int:
        """Write ids and vectors of the new segment to the temporary file ``staged``; returns their number.

        ``source`` is Chroma's database, ``state`` the collection as it is.
        """
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
                    stored, norm = stored_bytes(state, place) if is_there else (None, None)
                    is_shown = state.place_of(key) == (origin, place)
                    db.execute(
                        "INSERT INTO vector VALUES (?, ?, ?, ?, ?, ?)", (key, origin, vector, stored, norm, is_shown)
                    )
                    count += 1
                for key, vector, stored, norm in self.new(source, state):
                    origin = Origin.RECOVERED if stored is None else Origin.UNPROVEN
                    row = (key, origin, vector, stored, norm, not state.is_waiting(key))
                    db.execute("INSERT INTO vector VALUES (?, ?, ?, ?, ?, ?)", row)
                    count += 1
        return count

    def _copy_segment(self, built: Path, new: Path, state: CollectionState, staged: Path) -> None:
        """Copy the segment in ``built``, made by chromadb, to ``new``, and give each vector the bytes it had before.

        ``state`` is the collection with its old segment, ``staged`` the temporary file with the vectors.
        """
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
                # Versions up to 0.4 have this number nowhere else. 0 would mean that later operations are ignored.
                max_seq_id=max(1, state.applied) if state.labels is None else state.labels.max_seq_id,
                is_object=True,
            )
            numbers = [(key, state.sequence_number_of(key)) for key, _ in labels]
            durable.put_bytes(new / label_map.FILE, label_map.encode_label_map(older, labels, numbers))

    def _verify(self, new: Path, work: Path, state: CollectionState) -> None:
        """Read every vector with chromadb from a copy of Chroma's folder with the segment ``new``, and compare.

        ``work`` is the folder for the copy and the staged vectors, ``state`` the collection with its old segment.

        Raises:
            ChromaFailed: a vector differs.
        """
        copy = work / "verified"
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
            with sqlite.open_readonly(work / "staged.sqlite") as staged:
                # New vectors have no other place to be compared with.
                query = "SELECT id, vector FROM vector WHERE is_shown AND (stored IS NULL OR origin = ?)"
                rows = staged.execute(query, (Origin.UNPROVEN,))
                wrong += sum(1 for key, vector in rows if not _is_like(after, str(key), vector))
            if wrong or after.label_problem is not None or after.segment_problem is not None:
                raise ChromaFailed(tr("{vectors} of the new segment differ", vectors=format_count(wrong, "vector")))
        # Last, because chromadb applies the queue when it opens the copy.
        core.run_in_child(_compare, copy, self.of.name, work / "staged.sqlite", state.is_cosine)


def stored_bytes(state: CollectionState, position: int) -> tuple[bytes, bytes | None]:
    """Return the bytes of the vector at a position in the segment, and its norm for cosine distance, else None.

    A norm that is lost counts as 1.
    """
    norm = state.stored_norm(position)
    return state.stored_vector(position), _LENGTH_1 if norm is None and state.is_cosine else norm


def _is_same(before: CollectionState, rebuilt: CollectionState, key: str) -> bool:
    """Whether an id (``key``) has the same vector ``rebuilt`` the rebuild as ``before``."""
    old, new = before.vector_of(key), rebuilt.vector_of(key)
    if old is None or new is None:
        return False
    return old[1] == new[1] or (before.is_cosine and old[0] is Origin.RECOVERED and is_close(old[1], new[1]))


def _is_like(rebuilt: CollectionState, key: str, vector: Any) -> bool:
    """Whether the entry ``key`` of the new segment has this vector, or one that Chroma rounded."""
    found = rebuilt.vector_of(key)
    return found is not None and (found[1] == vector or (rebuilt.is_cosine and is_close(found[1], vector)))


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
    """Build a collection of the ``count`` staged vectors, in the child process; returns the folder of its segment.

    ``folder`` is a new one, ``distance`` "l2", "cosine" or "ip"; ``links`` is the most neighbors of an element.
    """
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
    """Yield batches of ids and vectors. Vectors that chromadb refuses are ones here, and get their own bytes later."""
    with sqlite.open_readonly(staged) as db:
        last = ""
        while rows := _fetch_batch(db, "SELECT id, vector FROM vector WHERE id > ? ORDER BY id LIMIT ?", last):
            vectors = np.array([np.frombuffer(vector, dtype="<f4") for _, vector in rows])
            with np.errstate(all="ignore"):
                norms = np.sqrt((vectors.astype(np.float64) ** 2).sum(axis=1))
            vectors[~(np.isfinite(norms) & (norms > 0))] = 1
            yield [str(key) for key, _ in rows], vectors
            last = str(rows[-1][0])


def _fetch_batch(db: apsw.Connection, query: str, last: str) -> list[Any]:
    """Fetch the next batch of rows, with keys after ``last``, which is the first parameter of the query."""
    return db.execute(query, (last, _BATCH)).fetchall()


def _compare(copy: Path, name: str, staged: Path, is_cosine: bool) -> None:
    """Read every staged vector of the collection ``name`` with Chroma's API; raises if one differs.

    ``copy`` is a copy of Chroma's folder, ``staged`` the file with the vectors as they were before.
    """
    collection = core.open_client(copy, migrates=True).get_collection(name, embedding_function=None)
    with sqlite.open_readonly(staged) as db:
        last = ""
        query = "SELECT id, origin, vector FROM vector WHERE id > ? AND is_shown ORDER BY id LIMIT ?"
        while rows := _fetch_batch(db, query, last):
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
        actions: the actions that the new segment performs.
        count: the number of its vectors.
    """
    folder, of = state.folder, state.of
    assert folder is not None
    assert of.vectors is not None
    size = 0
    if folder.is_dir():
        size = files.size_on_disk(folder)
        leaves_out = not job.keeps_unproven and any(origin is Origin.UNPROVEN for _, origin, _ in state.segment_ids())
        if leaves_out or None in (state.labels, state.segment):
            yield from keep_segment(state, folder)
    vectors = count * (4 * (state.dimension or 0) + 8)
    yield FileChange(path=of.vectors, actions=actions, make=job.write, bytes=3 * max(size, vectors))


def keep_segment(state: CollectionState, folder: Path) -> Iterator[FileChange]:
    """Plan to copy the old segment's ``folder`` to a name beside it, unless a failed run has left an equal copy.

    No command removes the copy: it may be the last one of some vectors.
    """
    kept_names = list_kept_names(folder)
    if any(_is_equal_copy(folder.with_name(name), folder) for name in kept_names):
        return
    number = len(kept_names) + 1
    name = folder.name + _KEPT + ("" if number == 1 else f"-{number}")
    message = tr(
        "keep the old segment of {name} as {path}, because it has vectors that are not proven",
        name=state.of.name,
        path=name,
    )
    action = Action(action="keep-segment", message=message, base=state.of.id, subject=name)
    kept = KeptPositions(applied=state.applied, last=state.read_last_operation())

    def make(new: Path) -> None:
        """Copy the folder, and note the positions in the queue."""
        durable.copy_tree(folder, new)
        durable.put_bytes(new / KEPT_FILE, msgspec.json.encode(kept))

    yield FileChange(path=name, actions=(action,), make=make, bytes=files.size_on_disk(folder))


def _is_equal_copy(kept: Path, folder: Path) -> bool:
    """Whether the folder ``kept`` has the same files as a segment's folder, and in addition the note on the queue."""
    if file_paths.is_link(kept) or not file_paths.is_folder(kept):
        # Another program made it: only the name is taken.
        return False
    names = sorted(path.name for path in folder.iterdir())
    return sorted(path.name for path in kept.iterdir()) == sorted([*names, KEPT_FILE]) and all(
        files.bytes_fingerprint(kept / name) == files.bytes_fingerprint(folder / name) for name in names
    )


def list_kept_names(folder: Path) -> list[str]:
    """List the folders to which repairs copied the segment in ``folder``, by name, oldest first."""
    names = [folder.name + _KEPT]
    while file_paths.exists(folder.with_name(names[-1])):
        names.append(f"{folder.name}{_KEPT}-{len(names) + 1}")
    return names[:-1]


#: What the name of a kept segment has after that of the segment.
_KEPT = ".unproven"
_BUSY_MS = 60_000
#: One file for each collection. Vectors of several models can wait for it.
_STAGED = (
    "CREATE TABLE IF NOT EXISTS vector (model TEXT, key TEXT, vector BLOB, PRIMARY KEY (model, key)) WITHOUT ROWID"
)
_STAGED_KEYS = "SELECT key FROM vector WHERE model = ? AND typeof(vector) = 'blob' AND length(vector) = ?"
_TABLES = (
    # Every entry with a document, by the hash of its text, and where its vector is (NULL: it lacks one).
    "CREATE TABLE entry (key TEXT, id TEXT, origin INTEGER, place INTEGER, PRIMARY KEY (key, id)) WITHOUT ROWID",
    "CREATE TABLE text (key TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID",
    # Vectors of texts of which another entry of the collection has no vector.
    "CREATE TABLE known (key TEXT PRIMARY KEY, vector BLOB) WITHOUT ROWID",
    "CREATE TABLE staged (key TEXT PRIMARY KEY) WITHOUT ROWID",
)
#: Texts without a vector that is staged, or that another entry with the same text has.
_LACKING = "key NOT IN (SELECT key FROM staged) AND key NOT IN (SELECT key FROM known)"
_OF_KEYS = "key IN (SELECT value FROM json_each(?))"
#: Reason code of collections that are not filled, as for other stores; not a finding of ``check``.
_MODEL = "base.model"
_DAMAGED = (apsw.NotADBError, apsw.CorruptError, apsw.SQLError)


# --- what a collection lacks -----------------------------------------------------------------------------------------


class CollectionTexts:
    """The documents of a collection, and which of them have no vector. They are read once, into a temporary file."""

    def __init__(self, db: apsw.Connection, state: CollectionState) -> None:
        opened = ExitStack()
        self.scratch = opened.enter_context(sqlite.open_scratch())
        # The targets of a run keep it for as long as they exist.
        weakref.finalize(self, opened.close)
        self.dimensions = state.dimension
        self._of, self._root = state.of, state.root
        self._mark = self._read_mark()
        #: Entries without a vector and without a text that could be embedded.
        self.without_text = 0
        for statement in _TABLES:
            self.scratch.execute(statement)
        with sqlite.transaction(self.scratch):
            self._read(db, state)
        #: Texts with their vectors, which the embedder is compared by.
        self.sample = list(self._sample(db, state))

    def _read(self, db: apsw.Connection, state: CollectionState) -> None:
        """Fill the temporary tables: the texts that lack a vector, and vectors of other entries with an equal text."""
        for entry in database.iterate_entries(db, state.of):
            found = find_proven(state, entry.id)
            if entry.document is None or is_blank(entry.document):
                self.without_text += found is None
                continue
            key = identity.text_hash(entry.document)
            row = (key, entry.id, *(found or (None, None)))
            self.scratch.execute("INSERT OR IGNORE INTO entry VALUES (?, ?, ?, ?)", row)
            if found is None:
                self.scratch.execute("INSERT OR IGNORE INTO text VALUES (?, ?)", (key, entry.document))
        query = "SELECT key, origin, place FROM entry WHERE place IS NOT NULL AND key IN (SELECT key FROM text)"
        for key, vector in self._read_usable(state, self.scratch.execute(query)):
            self.scratch.execute("INSERT OR IGNORE INTO known VALUES (?, ?)", (key, vector))

    def _read_usable(self, state: CollectionState, rows: Iterable[Any]) -> Iterator[tuple[str, bytes]]:
        """Yield key and vector for rows of (key, origin, place), without vectors that no search can use."""
        for key, origin, place in rows:
            vector = state.vector_at(Origin(origin), place)
            if is_fit(vector, self.dimensions):
                yield str(key), vector

    def _sample(self, db: apsw.Connection, state: CollectionState) -> Iterator[tuple[str, bytes]]:
        """Yield some texts with their vectors, the same ones each time, to compare an embedder with."""
        # The order of hashes is as good as any, and always the same.
        query = "SELECT id, origin, place FROM entry WHERE place IS NOT NULL GROUP BY key ORDER BY key LIMIT ?"
        rows = self.scratch.execute(query, (probing.SAMPLE_SIZE,)).fetchall()
        for key, vector in self._read_usable(state, rows):
            text = database.read_document(db, state.of, key)
            if text is not None and not is_blank(text):
                yield text, vector

    def _read_mark(self) -> tuple[object, ...]:
        """Return the states of files, which differ once another run has rebuilt the segment."""
        paths = (self._root / database.FILE, self._root / str(self._of.vectors) / database.ELEMENTS_FILE)
        return tuple(map(sqlite.read_file_state, paths))

    def vectors(self, keys: str) -> dict[str, bytes]:
        """Return the vectors of texts, given as a JSON list of text hashes, by hash.

        If the segment was changed by another run, only vectors that were read before are returned.
        """
        known: list[Any] = self.scratch.execute(f"SELECT key, vector FROM known WHERE {_OF_KEYS}", (keys,)).fetchall()
        found: dict[str, bytes] = dict(known)
        query = f"SELECT key, origin, place FROM entry WHERE place IS NOT NULL AND {_OF_KEYS} GROUP BY key"
        rows = self.scratch.execute(query, (keys,)).fetchall()
        if rows and self._read_mark() == self._mark:
            with (
                database.open_chroma(self._root / database.FILE) as db,
                open_places(db, self._of, self._root) as state,
            ):
                found = {**dict(self._read_usable(state, rows)), **found}
        return found

    def count(self) -> tuple[int, int]:
        """Count the distinct texts, and those among them that have to be embedded."""
        every: Any = self.scratch.execute("SELECT count(DISTINCT key) FROM entry").get
        lacking: Any = self.scratch.execute(f"SELECT count(*) FROM text WHERE {_LACKING}").get
        return int(every), int(lacking)

    @property
    def has_known(self) -> bool:
        """Whether an entry gets the vector of another entry with the same text."""
        return self.scratch.execute("SELECT 1 FROM known LIMIT 1").get is not None


def find_proven(state: CollectionState, key: str) -> tuple[Origin, int] | None:
    """Return origin and place of the vector of the entry ``key``; None if no vector is proven to be its own."""
    found = state.place_of(key)
    return found if found is not None and found[0] in PROVEN else None


def is_fit(vector: Any, dimensions: int | None) -> bool:
    """Whether a value is a vector with this number of dimensions, and usable for a search."""
    has_length = isinstance(vector, bytes) and len(vector) == 4 * (dimensions or 0)
    return has_length and has_usable_norm(read_floats(vector))


# --- the scope -------------------------------------------------------------------------------------------------------


class CollectionScope:
    """The texts of one collection, and the staging file (``path``) for their vectors, which need not exist.

    See :meth:`ChromaTarget.open_scope`. ``opened`` closes the staging file at its end.
    """

    def __init__(self, texts: CollectionTexts, target: ChromaTarget, path: Path, opened: ExitStack) -> None:
        self.name, self.label = target.base_id, target.label
        self.dimensions = texts.dimensions
        self._scratch, self._sample, self._model = texts.scratch, texts.sample, target.staged_model
        self._texts, self._path, self._opened = texts, path, opened
        self._staging: apsw.Connection | None = None
        with sqlite.transaction(self._scratch):
            self._scratch.execute("DELETE FROM staged")
            if is_staged(path):
                with sqlite.open_readonly(path, beside_writers=True) as staging:
                    rows = staging.execute(_STAGED_KEYS, (self._model, 4 * (self.dimensions or 0)))
                    self._scratch.executemany("INSERT INTO staged VALUES (?)", rows)

    def survey(self) -> TextCounts:
        """Count the distinct texts; those whose vector is staged are ready."""
        every, lacking = self._texts.count()
        return TextCounts(ready=every - lacking, pending=lacking, stale=0)

    def lacking(self) -> Iterator[str]:
        """Yield the key of every text without a vector, in ascending order."""
        last = ""
        query = f"SELECT key FROM text WHERE {_LACKING} AND key > ? ORDER BY key LIMIT 1000"
        while keys := self._scratch.execute(query, (last,)).fetchall():
            yield from (str(key) for (key,) in keys)
            last = str(keys[-1][0])

    def texts(self, keys: Sequence[str]) -> dict[str, TextWithoutVector]:
        """Return the texts of the given keys that still lack a vector, by key."""
        rows = self._select(f"SELECT key, text FROM text WHERE {_OF_KEYS} AND {_LACKING}", keys)
        return {str(key): TextWithoutVector(str(text), is_stale=False) for key, text in rows}

    def write(self, vectors: Mapping[str, bytes], now_ms: int) -> WrittenCounts:
        """Write vectors to the staging file, in one transaction. The first write creates the file."""
        del now_ms
        if self._staging is None:
            self._staging = self._opened.enter_context(_open_staging(self._path))
        new = 0
        with sqlite.transaction(self._staging), sqlite.transaction(self._scratch):
            for key, vector in vectors.items():
                self._scratch.execute("INSERT OR IGNORE INTO staged VALUES (?)", (key,))
                new += self._scratch.changes()
                self._staging.execute("INSERT OR REPLACE INTO vector VALUES (?, ?, ?)", (self._model, key, vector))
        return WrittenCounts(new, 0)

    def vectors(self, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the staged vectors for keys, and those of entries of the collection with an equal text."""
        found = self._texts.vectors(sqlite.json_array(keys))
        staged = {str(key) for (key,) in self._select(f"SELECT key FROM staged WHERE {_OF_KEYS}", keys)} - found.keys()
        if staged:
            with sqlite.open_readonly(self._path, beside_writers=True) as staging:
                query = f"SELECT key, vector FROM vector WHERE {_OF_KEYS} AND model = ?"
                rows: list[Any] = staging.execute(query, (sqlite.json_array(sorted(staged)), self._model)).fetchall()
                found |= rows
        return found

    def failed(self, key: str, code: str, now_ms: int) -> None:
        """Do nothing: Chroma has no place to record that a text could not be embedded."""

    def sample(self, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` texts of the collection with their vectors, or, if it has none, with staged ones."""
        if self._sample:
            return self._sample[:count]
        query = "SELECT key, text FROM text WHERE key IN (SELECT key FROM staged) ORDER BY key LIMIT ?"
        texts = {str(key): str(text) for key, text in self._scratch.execute(query, (count,)).fetchall()}
        return [(texts[key], vector) for key, vector in sorted(self.vectors(list(texts)).items())]

    def _select(self, query: str, keys: Sequence[str]) -> list[Any]:
        """Run a query whose parameter is a JSON list of keys, and return its rows."""
        return self._scratch.execute(query, (sqlite.json_array(keys),)).fetchall()


class ChromaTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A collection that a backfill can fill."""

    base_id: str
    label: str
    #: The name of its segment's folder.
    segment: str
    model_id: str | None
    #: The model under which its vectors are staged.
    staged_model: str
    texts_found: CollectionTexts
    resolves: frozenset[str]
    #: Whether there are vectors that the segment does not have yet, and that nothing has to be sent for.
    is_unfinished: bool
    finding: str = chroma.VECTOR_MISSING
    is_new: bool = False
    is_file_shared: bool = False
    needs_dimensions: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The folder of its segment, as the only path that is written."""
        return (self.segment,)

    def finding_of(self, error: RegraftError) -> str | None:
        """Return None: no error is a mere finding, each one stops the run."""
        del error
        return None

    def demand_fit(self, scope: Scope) -> None:
        """Do nothing: collections that cannot be filled are no targets."""

    def finish(self, root: Path, growing: Sequence[IncrementalChange], now_ms: int, *, wrote: bool) -> None:
        """Do nothing: the segment gets its vectors at the end of the run (:func:`_plan_segments`)."""

    @contextmanager
    def open_scope(self, root: Path, growing: Sequence[IncrementalChange] = ()) -> Iterator[CollectionScope]:
        """Open the texts as a scope; its staging file is created with the first vector."""
        del growing
        with ExitStack() as opened:
            yield CollectionScope(self.texts_found, self, staging_path(root, self.base_id), opened)


# --- the staging file ------------------------------------------------------------------------------------------------


def staging_path(root: Path, base: str) -> Path:
    """Return the path of the staging file of a collection; ``base`` is its id, which may be any text."""
    return root / FOLDER / RECONCILING / f"{identity.text_hash(base)[:32]}.sqlite"


def is_staged(path: Path) -> bool:
    """Whether a staging file has vectors that can be read."""
    if path.is_file():
        with suppress(*_DAMAGED), sqlite.open_readonly(path, beside_writers=True) as db:
            return bool(db.execute("SELECT model, key, vector FROM vector LIMIT 1").fetchall())
    return False


@contextmanager
def _open_staging(path: Path) -> Iterator[apsw.Connection]:
    """Open a staging file for writing, and create it if it does not exist."""
    if path.exists() and not is_staged(path):
        files.delete_database(path)
    durable.make_folders(path.parent)
    with sqlite.open_writable(path, create=True) as db:
        db.set_busy_timeout(_BUSY_MS)
        db.execute(_STAGED)
        sqlite.sync_every_commit(db)
        yield db


# --- writing the segments --------------------------------------------------------------------------------------------


def _new_vectors(target: ChromaTarget, db: apsw.Connection, state: CollectionState) -> Iterator[NewVector]:
    """Yield vectors for the entries without one: a staged vector, or that of an entry with the same text."""
    known, path = target.texts_found.scratch, staging_path(state.root, target.base_id)
    with ExitStack() as opened:
        staging = opened.enter_context(sqlite.open_readonly(path, beside_writers=True)) if is_staged(path) else None
        for entry in database.iterate_entries(db, state.of):
            if entry.document is None or find_proven(state, entry.id) is not None:
                continue
            key = identity.text_hash(entry.document)
            vector: Any = known.execute("SELECT vector FROM known WHERE key = ?", (key,)).get
            if vector is None and staging is not None:
                query = "SELECT vector FROM vector WHERE model = ? AND key = ?"
                vector = staging.execute(query, (target.staged_model, key)).get
            # The file may have come with the folder, from anywhere.
            if is_fit(vector, state.dimension):
                yield entry.id, vector, None, None


def _plan_segments(store: Store, targets: Sequence[ChromaTarget]) -> Plan:
    """Plan new segments for the targets that have staged vectors."""
    made, path = Plan(), store.root / database.FILE
    try:
        with database.open_chroma(path) as db:
            collections = {one.id: one for one in database.list_collections(db)}
            for target in targets:
                of = collections.get(target.base_id)
                if of is not None:
                    with open_collection(db, of, store.root) as state:
                        _plan_segment(made, db, state, target)
    except (ChromaProblem, apsw.Error, OSError) as error:
        raise SourceUnreadable(path=path, reason=error) from error
    return made


def _plan_segment(made: Plan, db: apsw.Connection, state: CollectionState, target: ChromaTarget) -> None:
    """Add to the plan ``made`` the new segment of a target with its staged vectors, if it has any."""
    of = state.of
    new = partial(_new_vectors, target)
    count = sum(1 for _ in new(db, state))
    if not count or state.folder is None:
        return
    job = Rebuild(root=state.root, of=of, keeps_unproven=False, new=new)
    kept = sum(1 for _ in job.rows(state))
    message = tr(
        "rebuild the vector segment of {name} with {vectors} more",
        name=of.name,
        vectors=format_count(count, "vector"),
    )
    finding = chroma.VECTOR_MISSING
    actions = (
        Action(action="add-vectors", message=message, base=of.id, subject=of.vectors, count=count, finding=finding),
    )
    made.changes += plan_new_segment(state, job, actions, kept + count)
    lacking = sum(1 for _ in state.missing_ids()) + state.count_origin(Origin.UNPROVEN)
    if count == lacking:
        made.resolves.add((finding, of.id))


def _remove_staging(store: Store, targets: Sequence[ChromaTarget]) -> None:
    """Delete the staging files whose vectors are in their segments now; another run may have added more."""
    # Another run that holds the store deletes them.
    with suppress(TargetLocked), open_ledger(store):
        waiting = {change.path for change in _plan_segments(store, targets).changes}
        for target in targets:
            path = staging_path(store.root, target.base_id)
            if target.segment not in waiting and path.exists():
                files.delete_database(path)


# --- the filler ------------------------------------------------------------------------------------------------------


class ChromaFiller:
    """Backfill of the collections in a folder of Chroma."""

    def models(self, store: Store, options: BackfillOptions) -> frozenset[str]:
        """Return the models that the selected collections record; empty if any model will do."""
        del options
        with _open_database(store) as db:
            found = (database.read_model(db, of) for of in _selected_collections(store, db))
            return frozenset(f"{model[0]}::{model[1]}" for model in found if model is not None)

    def targets(self, store: Store, settings: EmbedderSettings, options: BackfillOptions) -> FillTargets:
        """Return the selected collections with entries that lack a vector.

        Raises:
            ModelDiffers: all of them are of another model.
            WrongUsage: chromadb is not installed.
            SourceUnreadable: the database cannot be read.
        """
        targets: list[ChromaTarget] = []
        left: list[Unresolved] = []
        with _open_database(store) as db:
            for of in _selected_collections(store, db):
                with open_collection(db, of, store.root) as state:
                    _add_target(targets, left, store, db, state, settings)
        different = [one.reason for one in left if one.finding == _MODEL]
        if different and not targets:
            raise ModelDiffers(embedder=settings.name, model=settings.model, reason=different[0])
        if targets and not options.dry_run:
            # Before anything is paid for.
            core.demand_chromadb()
        publication = Publication(
            planner=partial(_plan_segments, targets=targets), finished=partial(_remove_staging, targets=targets)
        )
        return FillTargets(tuple(targets), tuple(left), publication=publication)


@contextmanager
def _open_database(store: Store) -> Iterator[apsw.Connection]:
    """Open Chroma's database read-only, and report errors of reading it as :exc:`SourceUnreadable`."""
    path = store.root / database.FILE
    try:
        with database.open_chroma(path) as db:
            yield db
    except (ChromaProblem, apsw.Error, OSError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


def _selected_collections(store: Store, db: apsw.Connection) -> list[ChromaCollection]:
    """List the collections that the user chose."""
    return [one for one in database.list_collections(db) if store.wants(one.id)]


def _add_target(
    targets: list[ChromaTarget],
    left: list[Unresolved],
    store: Store,
    db: apsw.Connection,
    state: CollectionState,
    settings: EmbedderSettings,
) -> None:
    """Add a collection to ``targets`` if any of its entries lacks a vector; to ``left`` why if it cannot be filled.

    ``db`` is the database of Chroma, ``state`` the collection, ``settings`` those of the embedder.
    """
    of = state.of
    is_unfinished = is_staged(staging_path(store.root, of.id))
    lacking = sum(1 for _ in state.missing_ids()) + state.count_origin(Origin.UNPROVEN)
    if not lacking and not is_unfinished:
        return
    model = database.read_model(db, of)
    model_id = None if model is None else "::".join(model)
    if model_id is not None and not settings.serves(model_id):
        reason = tr("the vectors of {name} were made by {model_id}", name=of.name, model_id=model_id)
        left.append(Unresolved(finding=_MODEL, reason=reason, base=of.id, subject=of.name))
        return
    obstacle = _find_obstacle(state)
    if obstacle is not None:
        left.append(Unresolved.registered(chroma.VECTOR_MISSING, obstacle, base=of.id, count=lacking))
        return
    texts = CollectionTexts(db, state)
    if texts.without_text:
        entries = format_count(texts.without_text, "entry")
        reason = tr("no text to embed: {entries} with neither vector nor document", entries=entries)
        left.append(Unresolved.registered(chroma.VECTOR_MISSING, reason, base=of.id, count=texts.without_text))
    target = ChromaTarget(
        base_id=of.id,
        label=of.name,
        segment=str(of.vectors),
        model_id=model_id,
        staged_model=model_id or settings.model,
        texts_found=texts,
        resolves=frozenset() if texts.without_text else frozenset({chroma.VECTOR_MISSING}),
        is_unfinished=is_unfinished or texts.has_known,
    )
    targets.append(target)


def _find_obstacle(state: CollectionState) -> str | None:
    """Return why a collection cannot be filled, or None."""
    if state.folder is None:
        return tr("the collection has no segment for its vectors")
    if state.dimension is None:
        return tr("the collection never had a vector, so the number of its dimensions is unknown")
    problem = state.segment_problem or state.label_problem
    job = Rebuild(root=state.root, of=state.of, keeps_unproven=False)
    if problem is not None and next(job.rows(state), None) is not None:
        # It keeps vectors that nothing has to be paid for.
        return tr("its segment is damaged ({problem}); run regraft repair first", problem=problem)
    return None
