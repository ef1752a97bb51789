"""Store definition of rsclaw: a directory of documents, and a redb database of chunks and vectors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from regraft.disk import links
from regraft.disk.trees import FolderTree
from regraft.errors import SourceUnreadable
from regraft.formats.cherry_v1.layout import StatePaths
from regraft.formats.rsclaw import database
from regraft.kinds import Kind
from regraft.stores.systems import Located, System


class Rsclaw(System):
    """rsclaw. A store is the directory of one knowledge base (KB); its database is never written."""

    kind = Kind.RSCLAW
    commands = frozenset({"fix", "gc", "reconcile", "history", "undo"})

    def store_at(self, path: Path) -> Path | None:
        """Return the database of the knowledge base at a path, or None.

        Links out of a directory are followed with ``--follow-links`` only.

        Raises:
            SourceUnreadable: a link leads out of the given directory.
            OSError: the directory cannot be read.
        """
        found = database.find_database(path)
        if found is None:
            return None
        if found == path:
            return links.real_path(path) if path.is_symlink() else path
        try:
            return links.check_inside(path, found)
        except links.LinkLeadsOut as error:
            raise SourceUnreadable(path=found, reason=error.strerror) from error

    def has_name(self, path: Path) -> bool:
        """Whether a file that cannot be read has the name of a store's database."""
        return path.name == database.FILE

    def locate(self, path: Path) -> Located:
        """Describe the store at a path that :meth:`store_at` returned."""
        return Located(kind=self.kind, path=path, tree=FolderTree(path.parent), places=StatePaths(vectors=""))

    def exclusive_access(self, source: Located) -> AbstractContextManager[None]:
        """Keep rsclaw itself from opening a store within the context."""
        from regraft.formats.redb import block_writers  # noqa: PLC0415 - only where something is changed

        return block_writers(source.path)

    def databases(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        yield from ()

    def files(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's files and folders that are not SQLite databases, relative to its root."""
        yield from (source.path.name, database.MARKDOWN, database.RAW, database.FULL_TEXT, database.HNSW)


SYSTEM = Rsclaw()
