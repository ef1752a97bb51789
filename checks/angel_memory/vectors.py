"""How the vectors of AngelMemory's notes differ from its records: what ``check`` finds, and ``reconcile`` mends."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping

import apsw
import msgspec

from regraft import following
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.database import ProviderFolder
from regraft.formats.vector_numbers import has_norm


class Differences(msgspec.Struct):
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


def differences(folder: ProviderFolder, texts: Mapping[str, str], *, ids_only: bool = False) -> Differences:
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
        return Differences(missing=list(texts))
    with chroma.reading(folder.database) as db:
        found = chroma.collection(db, database.COLLECTION)
        if found is None:
            return Differences(missing=list(texts))
        chroma.demand_dimension(found)
        held = {entry.id: entry for entry in chroma.entries(db, found)}
        made = Differences(count=len(held), dimension=found.dimension)
        if ids_only:
            _compare(dict.fromkeys(texts), dict.fromkeys(held), made)
            return made
        _compare(texts, {key: entry.document for key, entry in held.items()}, made)
        both = held.keys() & texts.keys()
        made.metadata = [key for key in sorted(both) if held[key].metadata != {database.SOURCE_ID: key}]
        has_files = found.vectors is not None and (folder.chroma / found.vectors).is_dir()
        _judge(db, found, made, both, has_files=has_files)
        return made


def _compare(texts: Mapping[str, str | None], documents: Mapping[str, str | None], made: Differences) -> None:
    lists = {"missing": made.missing, "stale": made.stale, "orphaned": made.orphans}
    for one in following.differences(
        ((key, texts[key]) for key in sorted(texts)), ((key, documents[key]) for key in sorted(documents))
    ):
        lists[one.kind].append(one.id)


def _judge(
    db: apsw.Connection, found: chroma.Collection, made: Differences, keys: Collection[str], *, has_files: bool
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
        elif not has_norm(numbers):
            made.unusable.append(key)
    if not has_files:
        made.unusable += sorted(set(keys) - waiting)
