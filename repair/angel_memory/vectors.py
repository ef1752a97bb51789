"""Compare the vectors of AngelMemory's notes with the records, and plan the changes that make them match.

The comparison reads plain SQLite; chromadb writes the changed collection in a copy (``docs/angel-memory.md``,
"Reconcile").
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
from checks.angel_memory import findings as angel
from checks.angel_memory.detect import Providers, VectorDifferences, find_providers
from checks.audit.findings import FINDINGS
from regraft import identity
from regraft.disk import durable, sqlite, untrusted_sqlite
from regraft.errors import SourceUnreadable
from regraft.formats.angel_memory import database
from regraft.formats.angel_memory.database import (
    COLLECTION,
    PROVIDER_KEYS,
    SOURCE_ID,
    STATE,
    AngelProblem,
    ProviderFolder,
)
from regraft.formats.chroma import core
from regraft.formats.chroma import database as chroma
from regraft.formats.chroma.collection import read_vectors
from regraft.formats.chroma.core import ChromaFailed
from regraft.formats.chroma.database import ChromaEntry, ChromaProblem
from regraft.formats.vector_checks import has_usable_norm
from regraft.identity import replace
from regraft.language import format_count, tr
from repair.angel_memory import collection
from repair.angel_memory.collection import CollectionChanges, EntryRow
from repair.angel_memory.staging import PendingText
from repair.changes import files
from repair.changes.plan import Action, FileChange, Plan, Unresolved


class CollectionState(msgspec.Struct, frozen=True, kw_only=True):
    """The records, the collection of the provider in use, and their differences."""

    providers: Providers
    folder: ProviderFolder
    #: Texts of the records that should have a vector, by source id.
    texts: dict[str, str]
    differences: VectorDifferences
    #: Entries whose vector can be kept, by the hash of their text.
    kept: dict[str, ChromaEntry] = msgspec.field(default_factory=dict)
    #: Unexpected metadata names of each entry.
    extra: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    #: Folder name of the vector segment; None without a collection.
    segment: str | None = None
    #: Why chromadb cannot read the vectors; None if it can, or was not tried.
    unreadable: str | None = None

    @property
    def is_rebuilt(self) -> bool:
        """Whether the collection is created again, because none of its entries can be kept."""
        return self.providers.is_changed or self.unreadable is not None or not self.kept

    @property
    def states_provider(self) -> bool:
        """Whether the provider has to be written to the state file."""
        return self.providers.is_changed or self.providers.problem is not None

    @property
    def is_needed(self) -> bool:
        """Whether anything has to change."""
        return self.states_provider or bool(self.differences)

    @property
    def written(self) -> list[str]:
        """Source ids of the records whose vectors are to be written, in the order of records."""
        embedded = frozenset(self.differences.embedded)
        return [key for key in self.texts if self.is_rebuilt or key in embedded]

    @property
    def dimension(self) -> int | None:
        """Length of the vectors that are kept; None if none are."""
        return self.differences.dimension if self.kept else None

    def waiting(self) -> dict[str, PendingText]:
        """The texts whose vectors are to be written, by hash, each once."""
        missing = frozenset(self.texts if self.is_rebuilt else self.differences.missing)
        found: dict[str, PendingText] = {}
        for source_id in self.written:
            text = self.texts[source_id]
            key = identity.text_hash(text)
            is_stale = source_id not in missing and (key not in found or found[key].is_stale)
            found[key] = PendingText(key, text, is_stale)
        return found

    def donors(self) -> dict[str, ChromaEntry]:
        """Entries whose existing vector can be used for a text that lacks one, by the hash of the text."""
        return {key: self.kept[key] for key in self.waiting() if key in self.kept}

    def ready(self) -> int:
        """Number of different texts whose vectors stay unchanged."""
        return len({identity.text_hash(text) for text in self.texts.values()}.difference(self.waiting()))

    def without_files(self, reason: str, vectors: Mapping[str, bytes]) -> CollectionState:
        """Return the state if chromadb cannot read the collection, so that only some vectors can be kept.

        Args:
            reason: why chromadb cannot read it.
            vectors: the vectors that can be kept, by source id.
        """
        kept = {key: entry for key, entry in self.kept.items() if entry.id in vectors}
        return replace(self, kept=kept, unreadable=reason)


def compare_collection(root: Path, provider: str | None) -> CollectionState | None:
    """Compare the records with the vectors in the collection of the provider in use; None without a provider in use.

    Args:
        root: the data folder.
        provider: the provider in use, if the user names it.

    Raises:
        SourceUnreadable: the records or the collection cannot be read.
    """
    found = find_providers(root, provider)
    folder = found.in_use
    if folder is None:
        return None
    with _reporting_unreadable(root / database.DATABASE), database.open_records(root) as db:
        texts = dict(database.iterate_vector_texts(db))
    with _reporting_unreadable(folder.database):
        state = CollectionState(
            providers=found,
            folder=folder,
            texts=texts,
            differences=detect.find_vector_differences(folder, texts),
        )
        return _add_entries(state)


def _add_entries(state: CollectionState) -> CollectionState:
    """Read the entries of the collection, and return the state with their metadata and the vectors that can be kept."""
    if not state.folder.database.is_file():
        return state
    kept: dict[str, ChromaEntry] = {}
    extra: dict[str, tuple[str, ...]] = {}
    bad = {*state.differences.lengths, *state.differences.unusable}
    with chroma.open_chroma(state.folder.database) as db:
        found = chroma.find_collection(db, COLLECTION)
        if found is None:
            return state
        for entry in chroma.iterate_entries(db, found):
            extra[entry.id] = tuple(name for name in entry.metadata if name != SOURCE_ID)
            if entry.document is not None and entry.id not in bad:
                kept.setdefault(identity.text_hash(entry.document), entry)
    # Vectors of another provider cannot be kept.
    return replace(state, kept={} if state.providers.is_changed else kept, extra=extra, segment=found.vectors)


def read_plain_vectors(folder: ProviderFolder) -> dict[str, bytes]:
    """Read the vectors of the collection in a provider's folder without chromadb: from its segment, and from the queue.

    Returns them by source id.

    Raises:
        SourceUnreadable
    """
    with _reporting_unreadable(folder.database), chroma.open_chroma(folder.database) as db:
        found = chroma.find_collection(db, COLLECTION)
        return {} if found is None else dict(read_vectors(folder.database, found, db))


def is_usable_vector(vector: bytes, dimension: int | None) -> bool:
    """Whether a vector has the right length, finite numbers and a non-zero norm."""
    numbers = array("f", vector)
    return len(numbers) == dimension and has_usable_norm(numbers)


@contextmanager
def _reporting_unreadable(path: Path) -> Iterator[None]:
    """Context that reports errors of reading a database as :exc:`SourceUnreadable`."""
    try:
        yield
    except (AngelProblem, ChromaProblem, apsw.Error, OSError, UnicodeDecodeError) as error:
        raise SourceUnreadable(path=path, reason=error) from error


#: Findings for which vectors are written into the present collection, with action name and message.
_WRITE_ACTIONS = (
    (angel.VECTOR_MISSING, "add-vectors", tr("add {} missing from notes")),
    (angel.DOCUMENT_STALE, "replace-vectors", tr("replace {} of changed texts")),
    (angel.DIMENSION, "replace-vectors", tr("replace {} of the wrong length")),
    (angel.VECTOR_UNUSABLE, "replace-vectors", tr("replace {} that are invalid")),
)
#: Findings that a rebuilt collection resolves.
_REBUILD_RESOLVES = (*(finding for finding, _, _ in _WRITE_ACTIONS), angel.VECTOR_ORPHAN, angel.METADATA)


class CollectionBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Input for the new collection: the compared state, the staged vectors, and the version of chromadb."""

    root: Path
    state: CollectionState
    staged: Path
    #: Hashes of the texts whose vector is staged.
    ready: Collection[str]
    chromadb: str
    #: Whether an embedder is available.
    embeds: bool

    def writes(self, source_id: str) -> bool:
        """Whether the vector for a record's text is staged, so that the build writes it."""
        return identity.text_hash(self.state.texts[source_id]) in self.ready

    def lacking(self) -> set[str]:
        """Source ids of records whose vectors should be written but are not staged."""
        return {key for key in self.state.written if not self.writes(key)}

    def work(self) -> CollectionChanges:
        """Return the changes to the collection."""
        state, differences = self.state, self.state.differences
        keys = [key for key in state.written if self.writes(key)]
        if state.is_rebuilt:
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
            extra=state.extra,
        )

    def _rows(self, source_ids: list[str]) -> tuple[EntryRow, ...]:
        """Return the entries to write for some source ids."""
        texts = self.state.texts
        return tuple(EntryRow(key, texts[key], identity.text_hash(texts[key])) for key in source_ids)


def plan_vectors(build: CollectionBuild) -> Plan:
    """Plan the changes of the collection and the state file."""
    state, made = build.state, Plan()
    folder = state.folder.chroma.relative_to(build.root).as_posix()
    lacking = build.lacking()
    actions = [*(_rebuild_actions if state.is_rebuilt else _update_actions)(build, folder)]
    if actions:
        size = files.size_on_disk(state.folder.chroma) + len(state.written) * 4 * (state.dimension or 0)
        made.changes.append(
            FileChange(path=folder, actions=tuple(actions), make=partial(_write_chroma_folder, build), bytes=size)
        )
    if state.states_provider:
        made.changes.append(_state_change(build))
    made.left += _report_missing_vectors(build, lacking)
    left = {one.finding for one in made.left}
    promised = set(_REBUILD_RESOLVES) if state.is_rebuilt else {str(action.finding) for action in actions}
    if state.states_provider:
        promised |= {angel.PROVIDER_CHANGED, angel.STATE}
    made.resolves |= {(finding, None) for finding in promised - left}
    return made


def _rebuild_actions(build: CollectionBuild, folder: str) -> Iterator[Action]:
    """Yield the action that creates the collection again, if any; ``folder`` is Chroma's folder below the root."""
    state = build.state
    count = sum(map(build.writes, state.written))
    if not count and not state.differences:
        return
    if state.providers.is_changed:
        before = tr(" (was {stated})", stated=state.providers.stated) if state.providers.stated else ""
        finding = angel.PROVIDER_CHANGED
        message = tr(
            "embed {notes} again with provider {name}{before}",
            notes=format_count(count, "note"),
            name=state.folder.name,
            before=before,
        )
    elif state.unreadable is not None:
        finding = angel.VECTOR_UNUSABLE
        message = tr(
            "write {vectors} into a new collection, because chromadb cannot read the old one",
            vectors=format_count(count, "vector"),
        )
    else:
        finding = angel.VECTOR_MISSING
        message = tr(
            "write {vectors} into a new collection, because no old vector can be kept",
            vectors=format_count(count, "vector"),
        )
    yield Action(action="rebuild-collection", message=message, subject=folder, count=count, finding=finding)


def _update_actions(build: CollectionBuild, folder: str) -> Iterator[Action]:
    """Yield the actions that change single vectors of the collection; ``folder`` is Chroma's folder below the root."""
    work, differences = build.work(), build.state.differences
    of = {
        angel.VECTOR_MISSING: differences.missing,
        angel.DOCUMENT_STALE: differences.stale,
        angel.DIMENSION: differences.lengths,
        angel.VECTOR_UNUSABLE: differences.unusable,
    }
    state: set[str] = set()
    for finding, action, message in _WRITE_ACTIONS:
        keys = [key for key in of[finding] if build.writes(key) and key not in state]
        state.update(keys)
        if keys:
            yield Action(
                action=action,
                message=message.format(format_count(len(keys), "vector")),
                subject=folder,
                count=len(keys),
                finding=finding,
            )
    if work.relabelled:
        message = tr(
            "correct the metadata of {vectors} (nothing is embedded)",
            vectors=format_count(len(work.relabelled), "vector"),
        )
        yield Action(
            action="update-metadata",
            message=message,
            subject=folder,
            count=len(work.relabelled),
            finding=angel.METADATA,
        )
    if work.deleted:
        message = tr("delete {vectors} of missing notes", vectors=format_count(len(work.deleted), "vector"))
        yield Action(
            action="delete-vectors",
            message=message,
            subject=folder,
            count=len(work.deleted),
            finding=angel.VECTOR_ORPHAN,
        )


def _report_missing_vectors(build: CollectionBuild, lacking: set[str]) -> Iterator[Unresolved]:
    """Yield the findings that remain for records that still have no vector, or an outdated one.

    ``lacking`` are the source ids of the records.
    """
    state = build.state
    why = tr("their texts could not be embedded") if build.embeds else tr("no embedder was given")
    missing = frozenset(state.texts if state.is_rebuilt else state.differences.missing)
    counts = Counter(angel.VECTOR_MISSING if key in missing else angel.DOCUMENT_STALE for key in lacking)
    for finding, count in sorted(counts.items()):
        message = tr("{vectors} not created: {why}", vectors=format_count(count, "vector"), why=why)
        yield Unresolved(finding=finding, reason=message, count=count, severity=FINDINGS[finding].severity)


# --- the collection --------------------------------------------------------------------------------------------------


def copy_chroma_folder(state: CollectionState, target: Path) -> Path:
    """Copy the files of Chroma's folder that chromadb needs to below ``target``; returns the path of the copy."""
    copy = ProviderFolder(state.folder.name, target).chroma
    if state.folder.chroma.is_dir():
        durable.copy_tree(state.folder.chroma, copy, without=untrusted_sqlite.COMPANION_SUFFIXES)
    return copy


def _write_chroma_folder(build: CollectionBuild, new: Path) -> None:
    """Write Chroma's folder with the changed collection to ``new``.

    Raises:
        CollectionOfOtherVersion, CollectionRefused: chromadb failed, or the result differs from the records.
    """
    state = build.state
    place = new.with_name(f"{new.name}.build")
    copy = copy_chroma_folder(state, place)
    if state.is_rebuilt and state.segment is not None:
        # Remove a segment that may be unreadable before chromadb opens the copy.
        durable.remove_tree(copy / Path(state.segment).name)
    with core.reporting_refusals(state.folder.chroma, build.chromadb):
        collection.update_collection(copy, build.staged, build.work())
        after = detect.find_vector_differences(ProviderFolder(state.folder.name, place), state.texts)
        if {*after.embedded} != build.lacking() or after.orphans or after.metadata:
            raise ChromaFailed(tr("the collection written does not match the records"))
        # The application's chromadb must not have created all other databases with different migrations.
        others = [_migrations(folder.database) for folder in database.find_provider_folders(build.root)]
        if not state.folder.database.is_file() and others and _migrations(copy / chroma.FILE) not in others:
            raise ChromaFailed(tr("its schema migrations differ from those of the other providers' databases"))
    durable.replace(copy, new)
    durable.remove_tree(place)


def _migrations(path: Path) -> list[Any] | None:
    """Read the migrations applied to a Chroma database as (folder, version, hash); None if they cannot be read."""
    try:
        with sqlite.open_readonly(path) as db:
            return sorted(db.execute("SELECT dir, version, hash FROM migrations"))
    except (apsw.Error, OSError, UnicodeDecodeError):
        return None


# --- the state file --------------------------------------------------------------------------------------------------


def _state_change(build: CollectionBuild) -> FileChange:
    """Plan the change of the state file, which names the provider in use."""
    state = build.state
    finding = angel.STATE if state.providers.problem is not None else angel.PROVIDER_CHANGED
    message = tr("record {name} as the provider in the state file", name=state.folder.name)
    return FileChange(
        path=STATE,
        actions=(Action(action="write-state", message=message, subject=STATE, finding=finding),),
        make=partial(_write_state, build),
    )


def _write_state(build: CollectionBuild, new: Path) -> None:
    """Write the state file to ``new``, with the provider of the new vectors; its other keys are kept."""
    try:
        state = database.read_state(build.root)
    except AngelProblem:
        # Missing keys have the system's defaults.
        state = {}
    state |= {PROVIDER_KEYS[0]: build.state.folder.name, "last_updated_at": identity.now_ms() / 1000}
    durable.put_text(new, json.dumps(state, ensure_ascii=False, indent=2))
