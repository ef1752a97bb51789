"""What ``reconcile`` has to do to the vectors of AngelMemory's notes: values, read with plain SQLite."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import apsw
import msgspec

from checks.angel_memory import vectors as angel_memory_vectors
from checks.angel_memory.providers import Providers, providers
from checks.angel_memory.vectors import Differences
from regraft import identity
from regraft.errors import SourceUnreadable
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.chroma import ChromaProblem, Entry
from regraft.formats.angel_memory.database import COLLECTION, SOURCE_ID, AngelProblem, ProviderFolder
from regraft.formats.vector_numbers import has_norm
from regraft.records import replace
from repair.angel_memory.staging import Waiting


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """The records, the collection of the provider in use, and how they differ."""

    providers: Providers
    folder: ProviderFolder
    #: The text of each record that has a vector, by source id.
    texts: dict[str, str]
    differences: Differences
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

    def waiting(self) -> dict[str, Waiting]:
        """Return the texts whose vectors are written, by hash: each once."""
        missing = frozenset(self.texts if self.is_rebuilt else self.differences.missing)
        found: dict[str, Waiting] = {}
        for source_id in self.written:
            text = self.texts[source_id]
            key = identity.text_hash(text)
            is_stale = source_id not in missing and (key not in found or found[key].is_stale)
            found[key] = Waiting(key, text, is_stale)
        return found

    def donors(self) -> dict[str, Entry]:
        """Return the entries that have the vectors of texts that wait, by the hash of the text."""
        return {key: self.kept[key] for key in self.waiting() if key in self.kept}

    def ready(self) -> int:
        """Return how many different texts keep their vector where it is."""
        return len({identity.text_hash(text) for text in self.texts.values()}.difference(self.waiting()))

    def without_files(self, reason: str, vectors: Mapping[str, bytes]) -> Look:
        """Return it for a collection that chromadb cannot work with: only ``vectors`` can be kept, by source id."""
        kept = {key: entry for key, entry in self.kept.items() if entry.id in vectors}
        return replace(self, kept=kept, unreadable=reason)


def look(root: Path, provider: str | None) -> Look | None:
    """Look at records and vectors; None where notes have no vectors, as no provider is in use.

    Args:
        root: the data folder.
        provider: the one in use, where the user says so.

    Raises:
        SourceUnreadable: the records, or the collection, cannot be read.
    """
    found = providers(root, provider)
    folder = found.in_use
    if folder is None:
        return None
    with _readable(root / database.DATABASE), database.reading(root) as db:
        texts = dict(database.vector_texts(db))
    with _readable(folder.database):
        seen = Look(
            providers=found, folder=folder, texts=texts, differences=angel_memory_vectors.differences(folder, texts)
        )
        return _with_entries(seen)


def _with_entries(seen: Look) -> Look:
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


def plain_vectors(folder: ProviderFolder) -> dict[str, bytes]:
    """Return the vectors of a collection that plain SQLite can read, by source id.

    Raises:
        SourceUnreadable
    """
    with _readable(folder.database), chroma.reading(folder.database) as db:
        found = chroma.collection(db, COLLECTION)
        return {} if found is None else dict(chroma.vectors(db, found))


def is_sound(vector: bytes, dimension: int | None) -> bool:
    """Tell whether a vector can be kept: it has the right length, and it is one."""
    numbers = array("f", vector)
    return len(numbers) == dimension and has_norm(numbers)


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
