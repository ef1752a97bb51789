"""AngelMemory: records of notes, and a vector store of each provider (``docs/formats/angel_memory.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from regraft.formats.angel_memory import chroma, database
from regraft.kinds import Kind
from regraft.language import tr
from regraft.stores.systems import Located, System


class AngelMemory(System):
    """Stores are data folders, which are not divided."""

    kind = Kind.ANGEL_MEMORY
    commands = frozenset({"fix", "repair", "reconcile", "gc", "history", "undo"})
    migrate_advice = tr("it is not a knowledge base of the application; regraft reconcile keeps its vectors right")
    open_file = database.FILE_INDEX
    folder_file = chroma.FILE
    counters = MappingProxyType({database.DATABASE: (database.SEQUENCE,)})

    def store_at(self, path: Path) -> Path | None:
        """See :class:`System`."""
        return database.root_of(path)

    def databases(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        root = found.tree.path
        yield from (database.DATABASE, database.FILE_INDEX)
        for folder in database.provider_folders(root):
            yield folder.database.relative_to(root).as_posix()

    def files(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        yield database.STATE


SYSTEM = AngelMemory()
