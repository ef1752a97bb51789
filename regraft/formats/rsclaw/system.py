"""rsclaw: a folder of documents, with their chunks and vectors in a database of redb (``docs/formats/rsclaw.md``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from regraft import links
from regraft.formats.cherry_v1.layout import StatePlaces
from regraft.formats.redb.holding import held
from regraft.formats.rsclaw import database
from regraft.kinds import Kind
from regraft.located import Located
from regraft.system import System
from regraft.tree import FolderTree


class Rsclaw(System):
    """Stores are the folders of KBs, which are not divided; the database in one is never written."""

    kind = Kind.RSCLAW
    commands = frozenset({"fix", "gc", "reconcile", "history", "undo"})

    def store_at(self, path: Path) -> Path | None:
        """See :class:`System`."""
        return database.database_of(path)

    def has_name(self, path: Path) -> bool:
        """See :class:`System`."""
        return path.name == database.FILE

    def located(self, path: Path) -> Located:
        """See :class:`System`."""
        real = links.real_path(path) if path.is_symlink() else path
        return Located(kind=self.kind, path=real, tree=FolderTree(real.parent), places=StatePlaces(vectors=""))

    def alone(self, found: Located) -> AbstractContextManager[None]:
        """See :class:`System`."""
        return held(found.path)

    def databases(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        yield from ()

    def files(self, found: Located) -> Iterator[str]:
        """See :class:`System`."""
        yield from (found.path.name, database.MARKDOWN, database.RAW, database.FULL_TEXT, database.HNSW)


SYSTEM = Rsclaw()
