"""Store definition of AngelMemory: records of notes, and a vector store for each embedding provider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

from regraft.formats.angel_memory import database
from regraft.formats.chroma import database as chroma
from regraft.kinds import Kind
from regraft.language import tr
from regraft.stores.systems import Located, System


class AngelMemory(System):
    """AngelMemory. A store is a data directory."""

    kind = Kind.ANGEL_MEMORY
    commands = frozenset({"fix", "repair", "reconcile", "gc", "history", "undo"})
    migrate_advice = tr("it is not a Cherry Studio knowledge base; regraft reconcile updates its vectors")
    open_file = database.FILE_INDEX
    folder_file = chroma.FILE
    counters = MappingProxyType({database.DATABASE: (database.SEQUENCE,)})

    def store_at(self, path: Path) -> Path | None:
        """Return the data directory that a path is, or is inside of; None for other paths."""
        return database.find_root(path)

    def databases(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        root = source.tree.path
        yield from (database.DATABASE, database.FILE_INDEX)
        for folder in database.find_provider_folders(root):
            yield folder.database.relative_to(root).as_posix()

    def files(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's files and folders that are not SQLite databases, relative to its root."""
        yield database.STATE


SYSTEM = AngelMemory()
