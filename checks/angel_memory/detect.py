"""Find how AngelMemory's records, vectors and full-text index differ from what they are derived from.

``check`` reports the differences; ``repair``, ``reconcile`` and ``gc`` plan from them.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from regraft.formats.angel_memory import database
from regraft.formats.angel_memory import database as angel_memory_notes
from regraft.formats.angel_memory.database import AngelProblem, IndexedFile, Note, NoteFile, ProviderFolder, Record
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.database import ChromaProblem
from regraft.formats.vector_checks import has_usable_norm
from regraft.stores import derived


class FileState(StrEnum):
    """How a file and its records relate."""

    SAME = "same"
    CHANGED = "changed"
    #: The file has no record.
    NEW = "new"
    #: The file is missing, or the system does not read it.
    GONE = "gone"
    #: The path leads out of ``raw/``.
    OUTSIDE = "outside"
    UNREADABLE = "unreadable"


class FileComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A path below ``raw/``, compared with its records."""

    path: str
    state: FileState
    #: The file on disk, and its entry in the index of files; None if missing.
    file: NoteFile | None
    indexed: IndexedFile | None
    #: The stored records, and the notes that the file contains now.
    records: tuple[Record, ...] = ()
    notes: tuple[Note, ...] = ()
    #: Why the file cannot be read.
    problem: str = ""

    @property
    def is_seen_by_scan(self) -> bool:
        """Whether AngelMemory's next scan reads the file again; a scan only compares modification times."""
        return self.file is not None and (self.indexed is None or self.file.seconds > self.indexed.seconds)


def compare_files(
    root: Path, records: Iterable[Record], indexed: Iterable[IndexedFile], check_time: Callable[[], None] = lambda: None
) -> Iterator[FileComparison]:
    """Read every note file below ``raw/`` and compare its notes with the records. Yield all paths in sorted order.

    Args:
        root: the folder ``raw``.
        records: all records.
        indexed: all entries of the system's index of files.
        check_time: called before each file is read; raises to stop.

    Raises:
        OSError: a folder cannot be read.
    """
    of_path: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_path[record.path].append(record)
    known = {one.path: one for one in indexed}
    there = {one.path: one for one in angel_memory_notes.find_note_files(root)}
    for path in sorted(of_path.keys() | there.keys()):
        check_time()
        yield _compare_file(root, path, there.get(path), known.get(path), tuple(of_path.get(path, ())))


def _compare_file(
    root: Path, path: str, file: NoteFile | None, indexed: IndexedFile | None, records: tuple[Record, ...]
) -> FileComparison:
    """Compare a note file with its records.

    Args:
        root: the folder ``raw``.
        path: the path below it.
        file: the file on disk; None if it is missing or outside the folder.
        indexed: its entry in the system's index of files; None if missing.
        records: the records that name the path.
    """
    if file is None:
        state = FileState.OUTSIDE if angel_memory_notes.resolve_note_path(root, path) is None else FileState.GONE
        return FileComparison(path=path, state=state, file=None, indexed=indexed, records=records)
    try:
        notes = tuple(angel_memory_notes.read_notes(root / path, path))
    except OSError as error:
        return FileComparison(
            path=path,
            state=FileState.UNREADABLE,
            file=file,
            indexed=indexed,
            records=records,
            problem=error.strerror or str(error),
        )
    state = FileState.NEW if not records else FileState.SAME if records_match(records, notes) else FileState.CHANGED
    return FileComparison(path=path, state=state, file=file, indexed=indexed, records=records, notes=notes)


def records_match(records: Iterable[Record], notes: Iterable[Note]) -> bool:
    """Whether the records of a file have the same ids, headings, lengths and tags as the notes in that file."""
    stored = {one.source_id: (one.headings, one.total_lines, frozenset(one.names)) for one in records}
    given = {one.source_id: (one.headings, one.total_lines, frozenset(one.tags)) for one in notes}
    return stored == given


# --- the provider in use (``docs/formats/angel_memory.md``) ---------------------------------------------------------
#
# The system's settings, which name the provider, are elsewhere. The data folder has the state file, which names the
# provider of the last sync, and a folder for each provider, with an empty collection once the system has started with
# it.


T = TypeVar("T")
#: In seconds. An empty collection that is this much older than the state file was abandoned.
ABANDONED_SECONDS = 86_400


class Providers(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding provider in use, and the folders of other providers."""

    #: The provider of the last sync, as in its folder's name; empty if unknown.
    stated: str
    #: The provider in use, whose folder can be missing; None: notes have no vectors.
    in_use: ProviderFolder | None
    #: Folders of other providers, sorted by name.
    leftovers: tuple[ProviderFolder, ...]
    #: Why the state file cannot be read, or None.
    problem: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether the provider in use is not the one that the state file names."""
        return self.problem is None and self.in_use is not None and self.in_use.name != self.stated


def find_providers(root: Path, chosen: str | None = None) -> Providers:
    """Determine the embedding provider in use from the state file and the folders of providers.

    Args:
        root: the data folder.
        chosen: the provider that the user named, whose folder can be missing; None: determine it.
    """
    stated, saved_at, problem = _read_state(root)
    folders = database.find_provider_folders(root)
    if chosen is not None:
        in_use: ProviderFolder | None = database.provider_folder(root, chosen)
    else:
        in_use = _find_used_folder(root, folders, stated, saved_at)
    # Until the new provider has vectors, those of the old one are kept.
    kept = {stated} if in_use is None else {stated, in_use.name}
    return Providers(
        stated=stated,
        in_use=in_use,
        leftovers=tuple(folder for folder in folders if folder.name not in kept),
        problem=problem,
    )


def _read_state(root: Path) -> tuple[str, float, str | None]:
    """Read the state file of a data folder.

    Returns:
        The provider of the last sync (empty: unknown), the time of that sync in seconds, and why the file cannot be
        read, or None.
    """
    try:
        state = database.read_state(root)
    except AngelProblem as problem:
        return "", 0.0, str(problem)
    saved_at = state.get("last_updated_at")
    return database.last_provider(state), saved_at if isinstance(saved_at, int | float) else 0.0, None


def _find_used_folder(root: Path, folders: list[ProviderFolder], stated: str, saved_at: float) -> ProviderFolder | None:
    """Find the folder of the provider in use: one that was begun after the last sync, or else the one of that sync.

    Args:
        root: the data folder.
        folders: the folders of all providers.
        stated: the provider of the last sync; empty: unknown.
        saved_at: the time of the last sync, in seconds.
    """
    named = next((folder for folder in folders if folder.name == stated), None)
    # The folder of a provider that was chosen since the last sync and is empty or only partly filled.
    started = _find_latest_folder([one for one in folders if one.name != stated and _is_newer_than_sync(one, saved_at)])
    found = started or named or _find_latest_folder(folders)
    return database.provider_folder(root, stated) if found is None and stated else found


def _is_newer_than_sync(folder: ProviderFolder, saved_at: float) -> bool:
    """Whether a provider's folder was written after the last sync, or created for the next one.

    ``saved_at`` is the time of the last sync in seconds.
    """
    if count_note_vectors(folder) == 0:
        return folder.database.stat().st_mtime >= saved_at - ABANDONED_SECONDS
    written_at = _query_notes(folder, chroma.last_write_time)
    # An interrupted sync did not update the state file.
    return written_at is not None and saved_at > 0 and written_at > saved_at


def _find_latest_folder(folders: list[ProviderFolder]) -> ProviderFolder | None:
    """Return the provider's folder with a collection of notes that was written last; None if no folder has one."""
    of_notes = [folder for folder in folders if count_note_vectors(folder) is not None]
    return max(of_notes, key=lambda folder: (folder.database.stat().st_mtime_ns, folder.name), default=None)


def count_note_vectors(folder: ProviderFolder) -> int | None:
    """Count the vectors of notes in a provider's folder; None if it has no readable collection of notes."""
    return _query_notes(folder, chroma.count_entries)


def _query_notes(
    folder: ProviderFolder, query: Callable[[apsw.Connection, chroma.ChromaCollection], T | None]
) -> T | None:
    """Call ``query`` with the database of a provider's folder and its collection of notes, and return the result.

    None is returned if there is no such collection, or if it cannot be read.
    """
    try:
        with chroma.open_chroma(folder.database) as db:
            found = chroma.find_collection(db, database.COLLECTION)
            return None if found is None else query(db, found)
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return None


def find_other_collections(folder: ProviderFolder) -> list[str]:
    """Return the names of the collections in a provider's folder that are not of notes and not empty."""
    try:
        with chroma.open_chroma(folder.database) as db:
            names = [name for name in chroma.list_collection_names(db) if name != database.COLLECTION]
            found = ((name, chroma.find_collection(db, name)) for name in names)
            return [name for name, one in found if one is not None and chroma.count_entries(db, one)]
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return []


# --- vectors that differ from the records ---------------------------------------------------------------------------


class VectorDifferences(msgspec.Struct):
    """Source ids of records, or of vectors without a record, by what is wrong with the vector."""

    missing: list[str] = msgspec.field(default_factory=list)
    orphans: list[str] = msgspec.field(default_factory=list)
    #: The document is not the text that the record gives now.
    stale: list[str] = msgspec.field(default_factory=list)
    #: The metadata is wrong.
    metadata: list[str] = msgspec.field(default_factory=list)
    #: The vector does not have the dimension of the collection.
    lengths: list[str] = msgspec.field(default_factory=list)
    #: The vector is zero, not finite, or lost.
    unusable: list[str] = msgspec.field(default_factory=list)
    #: Number of vectors, and the dimension of the collection; None if nothing was ever written to it.
    count: int = 0
    dimension: int | None = None

    @property
    def embedded(self) -> list[str]:
        """The source ids of the records whose texts must be embedded again."""
        return list(dict.fromkeys([*self.missing, *self.stale, *self.lengths, *self.unusable]))

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return any((self.missing, self.orphans, self.stale, self.metadata, self.lengths, self.unusable))


def find_vector_differences(
    folder: ProviderFolder, texts: Mapping[str, str], *, ids_only: bool = False
) -> VectorDifferences:
    """Compare the vectors in a provider's folder with the records.

    Args:
        folder: the provider's folder; without a collection of notes, every vector is missing.
        texts: the text of each record that needs a vector, by source id.
        ids_only: whether to compare only which ids there are.

    Raises:
        ChromaProblem: the database cannot be used.
        apsw.Error, OSError: it cannot be read.
    """
    if not folder.database.is_file():
        return VectorDifferences(missing=list(texts))
    with chroma.open_chroma(folder.database) as db:
        found = chroma.find_collection(db, database.COLLECTION)
        if found is None:
            return VectorDifferences(missing=list(texts))
        chroma.check_dimension(found)
        held = {entry.id: entry for entry in chroma.iterate_entries(db, found)}
        made = VectorDifferences(count=len(held), dimension=found.dimension)
        if ids_only:
            _compare_documents(dict.fromkeys(texts), dict.fromkeys(held), made)
            return made
        _compare_documents(texts, {key: entry.document for key, entry in held.items()}, made)
        both = held.keys() & texts.keys()
        made.metadata = [key for key in sorted(both) if held[key].metadata != {database.SOURCE_ID: key}]
        has_files = found.vectors is not None and (folder.chroma / found.vectors).is_dir()
        _check_stored_vectors(db, found, made, both, has_files=has_files)
        return made


def _compare_documents(
    texts: Mapping[str, str | None], documents: Mapping[str, str | None], differences: VectorDifferences
) -> None:
    """Compare the records' texts with the stored documents, both by source id.

    The ids of missing, stale and orphan vectors are added to ``differences``.
    """
    lists = {"missing": differences.missing, "stale": differences.stale, "orphaned": differences.orphans}
    for one in derived.compare_sorted(
        ((key, texts[key]) for key in sorted(texts)), ((key, documents[key]) for key in sorted(documents))
    ):
        lists[one.kind].append(one.id)


def _check_stored_vectors(
    db: apsw.Connection,
    collection: chroma.ChromaCollection,
    differences: VectorDifferences,
    ids: Collection[str],
    *,
    has_files: bool,
) -> None:
    """Check the vectors in Chroma's queue. Vectors elsewhere are in the files of a segment, and lost without these.

    Args:
        db: the database of the provider.
        collection: the collection of notes.
        differences: gets the ids of vectors with a wrong length or unusable numbers.
        ids: the source ids that have both a record and a vector.
        has_files: whether the segment has files.
    """
    waiting: set[str] = set()
    for key, vector in chroma.iterate_queued_vectors(db, collection):
        waiting.add(key)
        if key not in ids:
            continue
        numbers = array("f", vector)
        if numbers and collection.dimension is not None and len(numbers) != collection.dimension:
            differences.lengths.append(key)
        elif not has_usable_norm(numbers):
            differences.unusable.append(key)
    if not has_files:
        differences.unusable += sorted(set(ids) - waiting)
