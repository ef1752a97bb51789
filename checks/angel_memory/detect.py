"""How AngelMemory's records differ from the files below ``raw/``: what ``check`` finds, and ``repair`` mends."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory import database as angel_memory_notes
from regraft.formats.angel_memory.chroma import DOCUMENT, ChromaProblem
from regraft.formats.angel_memory.database import AngelProblem, IndexedFile, Note, NoteFile, ProviderFolder, Record
from regraft.formats.vector_checks import has_usable_norm
from regraft.language import format_count, tr
from regraft.stores import derived


class FileState(StrEnum):
    """What a file is to its records."""

    SAME = "same"
    CHANGED = "changed"
    #: It has no record.
    NEW = "new"
    #: It is not there, or none that the system reads.
    GONE = "gone"
    #: The path leads out of ``raw/``.
    OUTSIDE = "outside"
    UNREADABLE = "unreadable"


class FileComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A path below ``raw/``, with all that is known of it."""

    path: str
    state: FileState
    #: As it is on disk, and as the index of files has it; None where it is not there.
    file: NoteFile | None
    indexed: IndexedFile | None
    #: As they are, and as the file gives them now.
    records: tuple[Record, ...] = ()
    notes: tuple[Note, ...] = ()
    #: Why it cannot be read.
    problem: str = ""

    @property
    def is_seen(self) -> bool:
        """Tell whether the next scan of the system reads the file again: it goes by the time of change alone."""
        return self.file is not None and (self.indexed is None or self.file.seconds > self.indexed.seconds)


def compare_files(
    root: Path, records: Iterable[Record], indexed: Iterable[IndexedFile], go_on: Callable[[], None] = lambda: None
) -> Iterator[FileComparison]:
    """Read every file below ``raw/`` and compare what it gives with the records, in the order of paths.

    Args:
        root: the folder that is called ``raw``.
        records: all records.
        indexed: the index of files.
        go_on: called before each file is read.

    Raises:
        OSError: a folder cannot be read.
    """
    of_path: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        of_path[record.path].append(record)
    known = {one.path: one for one in indexed}
    there = {one.path: one for one in angel_memory_notes.files(root)}
    for path in sorted(of_path.keys() | there.keys()):
        go_on()
        yield _compare_file(root, path, there.get(path), known.get(path), tuple(of_path.get(path, ())))


def _compare_file(
    root: Path, path: str, file: NoteFile | None, indexed: IndexedFile | None, records: tuple[Record, ...]
) -> FileComparison:
    if file is None:
        state = FileState.OUTSIDE if angel_memory_notes.inside(root, path) is None else FileState.GONE
        return FileComparison(path=path, state=state, file=None, indexed=indexed, records=records)
    try:
        notes = tuple(angel_memory_notes.notes_of(root / path, path))
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
    """Tell whether the records of a file are those that it gives."""
    stored = {one.source_id: (one.headings, one.total_lines, frozenset(one.names)) for one in records}
    given = {one.source_id: (one.headings, one.total_lines, frozenset(one.tags)) for one in notes}
    return stored == given


# Which embedding provider's vectors AngelMemory uses (``docs/formats/angel_memory.md``, "The provider in use").
#
# The choice itself stands in the system's own settings, elsewhere. In the data folder there are the state file, which
# names the provider of the last sync, and the folder of each provider, in which the system makes an empty collection as
# soon as it starts with that provider.


T = TypeVar("T")
#: An empty collection that was not written to for so long before the last maintenance was given up, in s.
ABANDONED_SECONDS = 86_400


class Providers(msgspec.Struct, frozen=True, kw_only=True):
    """Whose vectors are used, and whose are not."""

    #: The provider of the last sync, as it stands in its folder's name; "" where none is known.
    stated: str
    #: The provider in use, whose folder may still be missing; None: notes have no vectors.
    in_use: ProviderFolder | None
    #: The folders that are of no use, in the order of names.
    leftovers: tuple[ProviderFolder, ...]
    #: Why the state file cannot be read, None where it can.
    problem: str | None = None

    @property
    def is_changed(self) -> bool:
        """Tell whether the provider in use is not the one that the state file names."""
        return self.problem is None and self.in_use is not None and self.in_use.name != self.stated


def find_providers(root: Path, chosen: str | None = None) -> Providers:
    """Look at the state file and the folders of providers.

    Args:
        root: the data folder.
        chosen: the provider in use, where the user says so; its folder may be missing.
    """
    stated, saved_at, problem = _read_state(root)
    folders = database.provider_folders(root)
    if chosen is not None:
        in_use: ProviderFolder | None = database.provider_folder(root, chosen)
    else:
        in_use = _find_used_folder(root, folders, stated, saved_at)
    # Until the new provider has its vectors, the old one's are what there is.
    kept = {stated} if in_use is None else {stated, in_use.name}
    return Providers(
        stated=stated,
        in_use=in_use,
        leftovers=tuple(folder for folder in folders if folder.name not in kept),
        problem=problem,
    )


def _read_state(root: Path) -> tuple[str, float, str | None]:
    """Return the provider of the last sync, when the state was written (s), and why neither is known."""
    try:
        state = database.read_state(root)
    except AngelProblem as problem:
        return "", 0.0, str(problem)
    saved_at = state.get("last_updated_at")
    return database.stated_provider(state), saved_at if isinstance(saved_at, int | float) else 0.0, None


def _find_used_folder(root: Path, folders: list[ProviderFolder], stated: str, saved_at: float) -> ProviderFolder | None:
    named = next((folder for folder in folders if folder.name == stated), None)
    found = _find_started_folder(folders, stated, saved_at) or named or _find_latest_folder(folders)
    return database.provider_folder(root, stated) if found is None and stated else found


def _find_started_folder(folders: list[ProviderFolder], stated: str, saved_at: float) -> ProviderFolder | None:
    """Return the folder of a provider that was chosen since the last sync: it is not filled, or only in part."""
    others = (folder for folder in folders if folder.name != stated)
    return _find_latest_folder([folder for folder in others if _is_due(folder, saved_at)])


def _is_due(folder: ProviderFolder, saved_at: float) -> bool:
    if count_note_vectors(folder) == 0:
        return folder.database.stat().st_mtime >= saved_at - ABANDONED_SECONDS
    written_at = _query_notes(folder, chroma.written_at)
    # A sync that was stopped has not told the state file.
    return written_at is not None and saved_at > 0 and written_at > saved_at


def _find_latest_folder(folders: list[ProviderFolder]) -> ProviderFolder | None:
    """Return the folder that was written to last, of those that have a collection for notes."""
    of_notes = [folder for folder in folders if count_note_vectors(folder) is not None]
    return max(of_notes, key=lambda folder: (folder.database.stat().st_mtime_ns, folder.name), default=None)


def count_note_vectors(folder: ProviderFolder) -> int | None:
    """Return how many vectors of notes a provider's folder has, None where it has no collection for them.

    One that cannot be read counts as none.
    """
    return _query_notes(folder, chroma.count)


def _query_notes(
    folder: ProviderFolder, question: Callable[[apsw.Connection, chroma.Collection], T | None]
) -> T | None:
    """Ask the collection of notes in a provider's folder; None where there is none that can be read."""
    try:
        with chroma.reading(folder.database) as db:
            found = chroma.collection(db, database.COLLECTION)
            return None if found is None else question(db, found)
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return None


def find_other_collections(folder: ProviderFolder) -> list[str]:
    """Return the names of a provider's other collections that hold something: memories of it, as a rule."""
    try:
        with chroma.reading(folder.database) as db:
            names = [name for name in chroma.names(db) if name != database.COLLECTION]
            found = ((name, chroma.collection(db, name)) for name in names)
            return [name for name, one in found if one is not None and chroma.count(db, one)]
    except (ChromaProblem, OSError, apsw.Error, UnicodeDecodeError):
        return []


# How the vectors of AngelMemory's notes differ from its records: what ``check`` finds, and ``reconcile`` mends.


class VectorDifferences(msgspec.Struct):
    """Source ids by what is wrong with their vectors."""

    missing: list[str] = msgspec.field(default_factory=list)
    orphans: list[str] = msgspec.field(default_factory=list)
    #: Of another text than the records give now.
    stale: list[str] = msgspec.field(default_factory=list)
    #: Whose metadata is wrong.
    metadata: list[str] = msgspec.field(default_factory=list)
    #: Of another length than the collection's dimension.
    lengths: list[str] = msgspec.field(default_factory=list)
    #: That are no vectors, or are lost.
    unusable: list[str] = msgspec.field(default_factory=list)
    #: How many vectors the collection has, and of how many dimensions it is, where anything was ever written to it.
    count: int = 0
    dimension: int | None = None

    @property
    def embedded(self) -> list[str]:
        """Return whose texts have to be embedded, in the order of what is wrong."""
        return list(dict.fromkeys([*self.missing, *self.stale, *self.lengths, *self.unusable]))

    def __bool__(self) -> bool:
        """Tell whether anything differs."""
        return any((self.missing, self.orphans, self.stale, self.metadata, self.lengths, self.unusable))


def find_vector_differences(
    folder: ProviderFolder, texts: Mapping[str, str], *, ids_only: bool = False
) -> VectorDifferences:
    """Compare a provider's collection with the records; nothing is written.

    Args:
        folder: the provider's; without a database or a collection, every vector is missing.
        texts: the text of each record that has a vector, by source id.
        ids_only: look at nothing but ids.

    Raises:
        ChromaProblem: the database cannot be used.
        apsw.Error, OSError: it cannot be read.
    """
    if not folder.database.is_file():
        return VectorDifferences(missing=list(texts))
    with chroma.reading(folder.database) as db:
        found = chroma.collection(db, database.COLLECTION)
        if found is None:
            return VectorDifferences(missing=list(texts))
        chroma.demand_dimension(found)
        held = {entry.id: entry for entry in chroma.entries(db, found)}
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
    texts: Mapping[str, str | None], documents: Mapping[str, str | None], made: VectorDifferences
) -> None:
    lists = {"missing": made.missing, "stale": made.stale, "orphaned": made.orphans}
    for one in derived.compare_sorted(
        ((key, texts[key]) for key in sorted(texts)), ((key, documents[key]) for key in sorted(documents))
    ):
        lists[one.kind].append(one.id)


def _check_stored_vectors(
    db: apsw.Connection, found: chroma.Collection, made: VectorDifferences, keys: Collection[str], *, has_files: bool
) -> None:
    """Look at the vectors that can be read; the others are in the files of their segment, or lost without these."""
    waiting: set[str] = set()
    for key, vector in chroma.vectors(db, found):
        waiting.add(key)
        if key not in keys:
            continue
        numbers = array("f", vector)
        if numbers and found.dimension is not None and len(numbers) != found.dimension:
            made.lengths.append(key)
        elif not has_usable_norm(numbers):
            made.unusable.append(key)
    if not has_files:
        made.unusable += sorted(set(keys) - waiting)


# Verify the full-text index of a Chroma database against the documents that it is derived from.
#
# Chroma keeps the documents of all collections in ``embedding_metadata`` and a copy in the FTS5 table
# ``embedding_fulltext_search``. Damage to the copy makes every write of Chroma fail (``docs/formats/angel_memory.md``).


FULL_TEXT_TABLE = "embedding_fulltext_search"
#: The table in which FTS5 keeps the texts.
FULL_TEXT_CONTENT = f"{FULL_TEXT_TABLE}_content"
#: Documents whose text in the index is missing or another one.
DIFFERING_DOCUMENTS = (
    f"FROM embedding_metadata m LEFT JOIN {FULL_TEXT_CONTENT} c ON c.id = m.id "
    f"WHERE m.key = '{DOCUMENT}' AND m.string_value IS NOT NULL AND c.c0 IS NOT m.string_value"
)


def has_full_text_index(db: apsw.Connection) -> bool:
    """Whether a database has the full-text index at all; that of the first versions of Chroma has none."""
    return (
        db.execute("SELECT 1 FROM sqlite_schema WHERE name = ? AND type = 'table'", (FULL_TEXT_TABLE,)).get is not None
    )


def find_full_text_damage(db: apsw.Connection) -> str | None:
    """Return why the full-text index cannot be used or disagrees with the documents; None if it is sound.

    Nothing is written.

    Raises:
        apsw.CorruptError, apsw.IOError: the database itself is damaged, not only the index.
    """
    if not has_full_text_index(db):
        return None
    try:
        # SQLite asks FTS5 to verify its own tables, against the texts that it keeps.
        for (message,) in db.execute(f"PRAGMA integrity_check({FULL_TEXT_TABLE})"):
            if message != "ok":
                return " ".join(str(message).split())
        differing: Any = db.execute(f"SELECT count(*) {DIFFERING_DOCUMENTS}").get
    except (apsw.CorruptError, apsw.SQLError) as error:
        if isinstance(error, apsw.CorruptError) and getattr(error, "extendedresult", 0) != apsw.SQLITE_CORRUPT_VTAB:
            raise
        return str(error)
    if differing:
        return tr("it lacks the text of {documents}", documents=format_count(differing, "document"))
    return None
