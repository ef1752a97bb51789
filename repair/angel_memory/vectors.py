"""The plan that makes the vectors of AngelMemory's notes follow the records (``docs/angel-memory.md``, "Reconcile").

The collection that is to be is built beside the one that is there, out of a copy of it, and takes its place as a whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from checks.angel_memory import findings as angel
from checks.angel_memory import vectors
from checks.audit.findings import FINDINGS
from regraft import clock, identity, sqlite
from regraft.formats.angel_memory import chroma
from regraft.formats.angel_memory import database as angel_memory_database
from regraft.formats.angel_memory.database import PROVIDER_KEYS, STATE, AngelProblem, ProviderFolder
from regraft.language import tr
from regraft.ledger import durable
from regraft.system_errors import CollectionOfOtherVersion, CollectionRefused
from regraft.text import counted
from repair.angel_memory import collection
from repair.angel_memory.collection import ChromaFailed, Work
from repair.angel_memory.difference import Look
from repair.changes import files
from repair.changes.plan import Action, FileChange, Plan, Unresolved

#: Why a vector is written where the collection stays, and what is said of it.
_WRITTEN = (
    (angel.VECTOR_MISSING, "add-vectors", tr("add {} that notes lack")),
    (angel.DOCUMENT_STALE, "replace-vectors", tr("replace {} of texts that changed")),
    (angel.DIMENSION, "replace-vectors", tr("replace {} of another length")),
    (angel.VECTOR_UNUSABLE, "replace-vectors", tr("replace {} that cannot be used")),
)
#: What is wrong with vectors and is right once a collection is made anew.
_OF_VECTORS = (*(finding for finding, _, _ in _WRITTEN), angel.VECTOR_ORPHAN, angel.METADATA)


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """All that the new collection is made of: a look, the vectors that were staged, and who writes them."""

    root: Path
    look: Look
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

    def work(self) -> Work:
        """Return what is done to the collection."""
        look, differences = self.look, self.look.differences
        keys = [key for key in look.written if self.writes(key)]
        if look.is_rebuilt:
            return Work(is_rebuilt=True, deleted=(), added=self._rows(keys), replaced=(), relabelled=(), extra={})
        missing = frozenset(differences.missing)
        replaced = [key for key in keys if key not in missing]
        done = frozenset(replaced)
        relabelled = tuple(key for key in differences.metadata if key not in done)
        return Work(
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


def plan(build: Build) -> Plan:
    """Return what makes the collection, and the state file, follow; nothing is written."""
    look, made = build.look, Plan()
    folder = look.folder.chroma.relative_to(build.root).as_posix()
    lacking = build.lacking()
    actions = [*(_rebuilt if look.is_rebuilt else _changed)(build, folder)]
    if actions:
        size = files.size_of(look.folder.chroma) + len(look.written) * 4 * (look.dimension or 0)
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


def _rebuilt(build: Build, folder: str) -> Iterator[Action]:
    look = build.look
    count = sum(map(build.writes, look.written))
    if not count and not look.differences:
        return
    if look.providers.is_changed:
        before = tr(", it was {stated}", stated=look.providers.stated) if look.providers.stated else ""
        message = tr(
            "make the vectors of {notes} anew: the provider is {name}{before}",
            notes=counted(count, "note"),
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
            vectors=counted(count, "vector"),
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
        message = tr("write {vectors} into a new collection: none can be kept", vectors=counted(count, "vector"))
        yield Action(
            action="rebuild-collection",
            message=message,
            base=None,
            subject=folder,
            count=count,
            finding=angel.VECTOR_MISSING,
        )


def _changed(build: Build, folder: str) -> Iterator[Action]:
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
                message=message.format(counted(len(keys), "vector")),
                base=None,
                subject=folder,
                count=len(keys),
                finding=finding,
            )
    if work.relabelled:
        message = tr(
            "mend the metadata of {vectors}; nothing is embedded for it",
            vectors=counted(len(work.relabelled), "vector"),
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
        message = tr("delete {vectors} of notes that are not there", vectors=counted(len(work.deleted), "vector"))
        yield Action(
            action="delete-vectors",
            message=message,
            base=None,
            subject=folder,
            count=len(work.deleted),
            finding=angel.VECTOR_ORPHAN,
        )


def _left(build: Build, lacking: set[str]) -> Iterator[Unresolved]:
    look = build.look
    why = tr("their texts could not be embedded") if build.embeds else tr("that takes an embedder, and none is named")
    missing = frozenset(look.texts if look.is_rebuilt else look.differences.missing)
    counts = Counter(angel.VECTOR_MISSING if key in missing else angel.DOCUMENT_STALE for key in lacking)
    for finding, count in sorted(counts.items()):
        message = tr("{vectors} not made: {why}", vectors=counted(count, "vector"), why=why)
        yield Unresolved(finding=finding, reason=message, count=count, severity=FINDINGS[finding].severity)


# --- the collection --------------------------------------------------------------------------------------------------


def copied(look: Look, place: Path) -> Path:
    """Copy Chroma's folder, as far as chromadb is to see it, to below ``place``; returns where it is."""
    copy = ProviderFolder(look.folder.name, place).chroma
    if look.folder.chroma.is_dir():
        durable.copy_tree(look.folder.chroma, copy, without=sqlite.TRACES)
    return copy


def _make(build: Build, new: Path) -> None:
    """Write the folder as it is to be.

    Raises:
        CollectionOfOtherVersion, CollectionRefused: chromadb cannot make it, or it is not what it has to be.
    """
    look = build.look
    place = new.with_name(f"{new.name}.build")
    copy = copied(look, place)
    if look.is_rebuilt and look.segment is not None:
        # What cannot be read is not given to chromadb, not even to be removed.
        durable.remove_tree(copy / Path(look.segment).name)
    with refusals(look.folder.chroma, build.chromadb):
        collection.follow(copy, build.staged, build.work())
        after = vectors.differences(ProviderFolder(look.folder.name, place), look.texts)
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


def _demand_same_layout(look: Look, copy: Path, root: Path) -> None:
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
        with sqlite.reading(database) as db:
            return sorted(db.execute("SELECT dir, version, hash FROM migrations"))
    except (apsw.Error, OSError, UnicodeDecodeError):
        return None


# --- the state file --------------------------------------------------------------------------------------------------


def _state(build: Build) -> FileChange:
    look = build.look
    finding = angel.STATE if look.providers.problem is not None else angel.PROVIDER_CHANGED
    message = tr("say in the state file that the vectors are those of {name}", name=look.folder.name)
    return FileChange(
        path=STATE,
        actions=(Action(action="write-state", message=message, base=None, subject=STATE, finding=finding),),
        make=partial(_write_state, build),
    )


def _write_state(build: Build, new: Path) -> None:
    try:
        state = angel_memory_database.read_state(build.root)
    except AngelProblem:
        # What is not there has the system's own defaults.
        state = {}
    state |= {PROVIDER_KEYS[0]: build.look.folder.name, "last_updated_at": clock.now_ms() / 1000}
    durable.put_text(new, json.dumps(state, ensure_ascii=False, indent=2))
