"""The plan that makes the vectors of AngelMemory's notes follow the records (``docs/angel-memory.md``, "Reconcile").

The collection that is to be is built beside the one that is there, out of a copy of it, and takes its place as a whole.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import detect
from checks.angel_memory import detect as angel_memory_vectors
from checks.angel_memory import findings as angel
from checks.angel_memory.detect import Providers, VectorDifferences, find_providers
from checks.audit.findings import FINDINGS
from regraft import identity
from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import CollectionOfOtherVersion, CollectionRefused, SourceUnreadable
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory import database as angel_memory_database
from regraft.formats.angel_memory.chroma import ChromaProblem, Entry
from regraft.formats.angel_memory.database import (
    COLLECTION,
    PROVIDER_KEYS,
    SOURCE_ID,
    STATE,
    AngelProblem,
    ProviderFolder,
)
from regraft.formats.vector_checks import has_usable_norm
from regraft.identity import replace
from regraft.language import format_count, tr
from repair.angel_memory import collection
from repair.angel_memory.collection import ChromaFailed, CollectionChanges
from repair.angel_memory.staging import PendingText
from repair.changes import files
from repair.changes.plan import Action, FileChange, Plan, Unresolved

# What ``reconcile`` has to do to the vectors of AngelMemory's notes: values, read with plain SQLite.


class CollectionState(msgspec.Struct, frozen=True, kw_only=True):
    """The records, the collection of the provider in use, and how they differ."""

    providers: Providers
    folder: ProviderFolder
    #: The text of each record that has a vector, by source id.
    texts: dict[str, str]
    differences: VectorDifferences
    #: Entries whose vector can be kept, by the hash of the text that it is of.
    kept: dict[str, Entry] = msgspec.field(default_factory=dict)
    #: Of each entry, names in its metadata that are none of its own.
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    #: The name of the folder of its vectors, None where there is no collection.
    segment: str | None = None
    #: Why chromadb cannot read the vectors, None where it can, or was not asked.
    unreadable: str | None = None

    @property
    def is_rebuilt(self) -> bool:
        """Tell whether the collection is made anew: nothing of it can stay in its place."""
        return self.providers.is_changed or self.unreadable is not None or not self.kept

    @property
    def states_provider(self) -> bool:
        """Tell whether the state file has to be told the provider."""
        return self.providers.is_changed or self.providers.problem is not None

    @property
    def is_needed(self) -> bool:
        """Tell whether there is anything to do."""
        return self.states_provider or bool(self.differences)

    @property
    def written(self) -> list[str]:
        """Return the source ids whose vectors are written, in the order of records."""
        embedded = frozenset(self.differences.embedded)
        return [key for key in self.texts if self.is_rebuilt or key in embedded]

    @property
    def dimension(self) -> int | None:
        """Return how many numbers the vectors have that are kept, None where none are."""
        return self.differences.dimension if self.kept else None

    def waiting(self) -> dict[str, PendingText]:
        """Return the texts whose vectors are written, by hash: each once."""
        missing = frozenset(self.texts if self.is_rebuilt else self.differences.missing)
        found: dict[str, PendingText] = {}
        for source_id in self.written:
            text = self.texts[source_id]
            key = identity.text_hash(text)
            is_stale = source_id not in missing and (key not in found or found[key].is_stale)
            found[key] = PendingText(key, text, is_stale)
        return found

    def donors(self) -> dict[str, Entry]:
        """Return the entries that have the vectors of texts that wait, by the hash of the text."""
        return {key: self.kept[key] for key in self.waiting() if key in self.kept}

    def ready(self) -> int:
        """Return how many different texts keep their vector where it is."""
        return len({identity.text_hash(text) for text in self.texts.values()}.difference(self.waiting()))

    def without_files(self, reason: str, vectors: Mapping[str, bytes]) -> CollectionState:
        """Return it for a collection that chromadb cannot work with: only ``vectors`` can be kept, by source id."""
        kept = {key: entry for key, entry in self.kept.items() if entry.id in vectors}
        return replace(self, kept=kept, unreadable=reason)


def compare_collection(root: Path, provider: str | None) -> CollectionState | None:
    """Look at records and vectors; None where notes have no vectors, as no provider is in use.

    Args:
        root: the data folder.
        provider: the one in use, where the user says so.

    Raises:
        SourceUnreadable: the records, or the collection, cannot be read.
    """
    found = find_providers(root, provider)
    folder = found.in_use
    if folder is None:
        return None
    with _readable(root / database.DATABASE), database.reading(root) as db:
        texts = dict(database.vector_texts(db))
    with _readable(folder.database):
        seen = CollectionState(
            providers=found,
            folder=folder,
            texts=texts,
            differences=angel_memory_vectors.find_vector_differences(folder, texts),
        )
        return _with_entries(seen)


def _with_entries(seen: CollectionState) -> CollectionState:
    """Return a look with what the collection has."""
    if not seen.folder.database.is_file():
        return seen
    kept: dict[str, Entry] = {}
    extra: dict[str, tuple[str, ...]] = {}
    bad = {*seen.differences.lengths, *seen.differences.unusable}
    with chroma.reading(seen.folder.database) as db:
        found = chroma.collection(db, COLLECTION)
        if found is None:
            return seen
        for entry in chroma.entries(db, found):
            extra[entry.id] = tuple(name for name in entry.metadata if name != SOURCE_ID)
            if entry.document is not None and entry.id not in bad:
                kept.setdefault(identity.text_hash(entry.document), entry)
    # Those of another provider are of no use, whatever their texts.
    return replace(seen, kept={} if seen.providers.is_changed else kept, extra=extra, segment=found.vectors)


def read_plain_vectors(folder: ProviderFolder) -> dict[str, bytes]:
    """Return the vectors of a collection that plain SQLite can read, by source id.

    Raises:
        SourceUnreadable
    """
    with _readable(folder.database), chroma.reading(folder.database) as db:
        found = chroma.collection(db, COLLECTION)
        return {} if found is None else dict(chroma.vectors(db, found))


def is_usable_vector(vector: bytes, dimension: int | None) -> bool:
    """Tell whether a vector can be kept: it has the right length, and it is one."""
    numbers = array("f", vector)
    return len(numbers) == dimension and has_usable_norm(numbers)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Report what cannot be read as such.

    Raises:
        SourceUnreadable
    """
    try:
        yield
    except (AngelProblem, ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


#: Why a vector is written where the collection stays, and what is said of it.
_WRITTEN = (
    (angel.VECTOR_MISSING, "add-vectors", tr("add {} that notes lack")),
    (angel.DOCUMENT_STALE, "replace-vectors", tr("replace {} of texts that changed")),
    (angel.DIMENSION, "replace-vectors", tr("replace {} of another length")),
    (angel.VECTOR_UNUSABLE, "replace-vectors", tr("replace {} that cannot be used")),
)
#: What is wrong with vectors and is right once a collection is made anew.
_OF_VECTORS = (*(finding for finding, _, _ in _WRITTEN), angel.VECTOR_ORPHAN, angel.METADATA)


class CollectionBuild(msgspec.Struct, frozen=True, kw_only=True):
    """All that the new collection is made of: a look, the vectors that were staged, and who writes them."""

    root: Path
    look: CollectionState
    staged: Path
    #: Hashes of the texts whose vector is staged.
    ready: Collection[str]
    chromadb: str
    #: Whether there is an embedder.
    embeds: bool

    def writes(self, source_id: str) -> bool:
        """Tell whether the vector of a record's text is there to be written."""
        return identity.text_hash(self.look.texts[source_id]) in self.ready

    def lacking(self) -> set[str]:
        """Return the source ids whose vector is to be written, and is not there."""
        return {key for key in self.look.written if not self.writes(key)}

    def work(self) -> CollectionChanges:
        """Return what is done to the collection."""
        look, differences = self.look, self.look.differences
        keys = [key for key in look.written if self.writes(key)]
        if look.is_rebuilt:
            return CollectionChanges(
                is_rebuilt=True, deleted=(), added=self._rows(keys), replaced=(), relabelled=(), extra={}
            )
        missing = frozenset(differences.missing)
        replaced = [key for key in keys if key not in missing]
        done = frozenset(replaced)
        relabelled = tuple(key for key in differences.metadata if key not in done)
        return CollectionChanges(
            is_rebuilt=False,
            deleted=tuple(differences.orphans),
            added=self._rows([key for key in keys if key in missing]),
            replaced=self._rows(replaced),
            relabelled=relabelled,
            extra=look.extra,
        )

    def _rows(self, keys: list[str]) -> tuple[tuple[str, str, str], ...]:
        """Return records with their texts and the hashes of these."""
        texts = self.look.texts
        return tuple((key, texts[key], identity.text_hash(texts[key])) for key in keys)


def plan_vectors(build: CollectionBuild) -> Plan:
    """Return what makes the collection, and the state file, follow; nothing is written."""
    look, made = build.look, Plan()
    folder = look.folder.chroma.relative_to(build.root).as_posix()
    lacking = build.lacking()
    actions = [*(_rebuilt if look.is_rebuilt else _changed)(build, folder)]
    if actions:
        size = files.size_on_disk(look.folder.chroma) + len(look.written) * 4 * (look.dimension or 0)
        made.changes.append(FileChange(path=folder, actions=tuple(actions), make=partial(_make, build), bytes=size))
    if look.states_provider:
        made.changes.append(_state(build))
    made.left += _left(build, lacking)
    left = {one.finding for one in made.left}
    promised = set(_OF_VECTORS) if look.is_rebuilt else {str(action.finding) for action in actions}
    if look.states_provider:
        promised |= {angel.PROVIDER_CHANGED, angel.STATE}
    made.resolves |= {(finding, None) for finding in promised - left}
    return made


def _rebuilt(build: CollectionBuild, folder: str) -> Iterator[Action]:
    look = build.look
    count = sum(map(build.writes, look.written))
    if not count and not look.differences:
        return
    if look.providers.is_changed:
        before = tr(", it was {stated}", stated=look.providers.stated) if look.providers.stated else ""
        message = tr(
            "make the vectors of {notes} anew: the provider is {name}{before}",
            notes=format_count(count, "note"),
            name=look.folder.name,
            before=before,
        )
        yield Action(
            action="rebuild-collection",
            message=message,
            base=None,
            subject=folder,
            count=count,
            finding=angel.PROVIDER_CHANGED,
        )
    elif look.unreadable is not None:
        message = tr(
            "write {vectors} into a new collection: chromadb cannot read the old one's",
            vectors=format_count(count, "vector"),
        )
        yield Action(
            action="rebuild-collection",
            message=message,
            base=None,
            subject=folder,
            count=count,
            finding=angel.VECTOR_UNUSABLE,
        )
    else:
        message = tr("write {vectors} into a new collection: none can be kept", vectors=format_count(count, "vector"))
        yield Action(
            action="rebuild-collection",
            message=message,
            base=None,
            subject=folder,
            count=count,
            finding=angel.VECTOR_MISSING,
        )


def _changed(build: CollectionBuild, folder: str) -> Iterator[Action]:
    work, differences = build.work(), build.look.differences
    of = {
        angel.VECTOR_MISSING: differences.missing,
        angel.DOCUMENT_STALE: differences.stale,
        angel.DIMENSION: differences.lengths,
        angel.VECTOR_UNUSABLE: differences.unusable,
    }
    seen: set[str] = set()
    for finding, action, message in _WRITTEN:
        keys = [key for key in of[finding] if build.writes(key) and key not in seen]
        seen.update(keys)
        if keys:
            yield Action(
                action=action,
                message=message.format(format_count(len(keys), "vector")),
                base=None,
                subject=folder,
                count=len(keys),
                finding=finding,
            )
    if work.relabelled:
        message = tr(
            "mend the metadata of {vectors}; nothing is embedded for it",
            vectors=format_count(len(work.relabelled), "vector"),
        )
        yield Action(
            action="update-metadata",
            message=message,
            base=None,
            subject=folder,
            count=len(work.relabelled),
            finding=angel.METADATA,
        )
    if work.deleted:
        message = tr("delete {vectors} of notes that are not there", vectors=format_count(len(work.deleted), "vector"))
        yield Action(
            action="delete-vectors",
            message=message,
            base=None,
            subject=folder,
            count=len(work.deleted),
            finding=angel.VECTOR_ORPHAN,
        )


def _left(build: CollectionBuild, lacking: set[str]) -> Iterator[Unresolved]:
    look = build.look
    why = tr("their texts could not be embedded") if build.embeds else tr("that takes an embedder, and none is named")
    missing = frozenset(look.texts if look.is_rebuilt else look.differences.missing)
    counts = Counter(angel.VECTOR_MISSING if key in missing else angel.DOCUMENT_STALE for key in lacking)
    for finding, count in sorted(counts.items()):
        message = tr("{vectors} not made: {why}", vectors=format_count(count, "vector"), why=why)
        yield Unresolved(finding=finding, reason=message, count=count, severity=FINDINGS[finding].severity)


# --- the collection --------------------------------------------------------------------------------------------------


def copy_chroma_folder(look: CollectionState, place: Path) -> Path:
    """Copy Chroma's folder, as far as chromadb is to see it, to below ``place``; returns where it is."""
    copy = ProviderFolder(look.folder.name, place).chroma
    if look.folder.chroma.is_dir():
        durable.copy_tree(look.folder.chroma, copy, without=untrusted_sqlite.COMPANION_SUFFIXES)
    return copy


def _make(build: CollectionBuild, new: Path) -> None:
    """Write the folder as it is to be.

    Raises:
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot make it, or it is not what it has to be.
    """
    look = build.look
    place = new.with_name(f"{new.name}.build")
    copy = copy_chroma_folder(look, place)
    if look.is_rebuilt and look.segment is not None:
        # What cannot be read is not given to chromadb, not even to be removed.
        durable.remove_tree(copy / Path(look.segment).name)
    with refusals(look.folder.chroma, build.chromadb):
        collection.update_collection(copy, build.staged, build.work())
        after = detect.find_vector_differences(ProviderFolder(look.folder.name, place), look.texts)
        if {*after.embedded} != build.lacking() or after.orphans or after.metadata:
            raise ChromaFailed(tr("what was written is not what the records say"))
        _demand_same_layout(look, copy, build.root)
    durable.replace(copy, new)
    durable.remove_tree(place)


@contextmanager
def refusals(path: Path, version: str) -> Iterator[None]:
    """Say what chromadb, of this version, cannot do, and to what.

    Raises:
        CollectionOfOtherVersion, CollectionRefused
    """
    try:
        yield
    except ChromaFailed as failed:
        if failed.is_other_version:
            raise CollectionOfOtherVersion(path=path, version=version, reason=failed) from failed
        raise CollectionRefused(path=path, reason=failed) from failed


def _demand_same_layout(look: CollectionState, copy: Path, root: Path) -> None:
    """Refuse a database that was made anew, where the application's chromadb made all others another way.

    Raises:
        ChromaFailed
    """
    others = [_migrations(folder.database) for folder in angel_memory_database.provider_folders(root)]
    if not look.folder.database.is_file() and others and _migrations(copy / chroma.FILE) not in others:
        raise ChromaFailed(tr("its migrations are not those of the other providers' folders"))


def _migrations(database: Path) -> list[Any] | None:
    """Return what made the layout of a database, None where that cannot be read."""
    try:
        with sqlite.open_readonly(database) as db:
            return sorted(db.execute("SELECT dir, version, hash FROM migrations"))
    except (apsw.Error, OSError, UnicodeDecodeError):
        return None


# --- the state file --------------------------------------------------------------------------------------------------


def _state(build: CollectionBuild) -> FileChange:
    look = build.look
    finding = angel.STATE if look.providers.problem is not None else angel.PROVIDER_CHANGED
    message = tr("say in the state file that the vectors are those of {name}", name=look.folder.name)
    return FileChange(
        path=STATE,
        actions=(Action(action="write-state", message=message, base=None, subject=STATE, finding=finding),),
        make=partial(_write_state, build),
    )


def _write_state(build: CollectionBuild, new: Path) -> None:
    try:
        state = angel_memory_database.read_state(build.root)
    except AngelProblem:
        # What is not there has the system's own defaults.
        state = {}
    state |= {PROVIDER_KEYS[0]: build.look.folder.name, "last_updated_at": identity.now_ms() / 1000}
    durable.put_text(new, json.dumps(state, ensure_ascii=False, indent=2))
