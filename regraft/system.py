"""What regraft has to know of a system beside the application: how its stores are recognised, named and guarded.

Each system has one :class:`System` in its own folder of ``regraft/formats``; ``regraft/kinds.py`` lists them. What is
audited and what is changed in its stores is told by the adapters that ``checks/systems.py`` and ``repair/systems.py``
list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType

import apsw

from regraft.errors import BaseUnknown
from regraft.kinds import Kind
from regraft.language import tr
from regraft.located import Located
from regraft.tree import FolderTree


class SidecarProblem(ValueError):
    """A file that cannot be used as a sidecar; the message is what to say of it."""


class System:
    """A system whose vectors follow a database of its own; what is not overridden, its stores do not have."""

    #: What ``inspect`` calls it, and ``--kind`` takes.
    kind: Kind
    #: What a store is divided into, as ``--base`` chooses it; empty: into nothing.
    part: str = ""
    #: What is said where a part is chosen that is not there.
    part_unknown: type[BaseUnknown] = BaseUnknown
    #: The commands that change a store, or tell what did.
    commands: frozenset[str] = frozenset()
    #: What to do instead of a migration, and of a search.
    migrate_advice: str = ""
    search_advice: str = tr("migrate it first, and search the library")
    #: A file below the root that the system keeps open, with a log, as long as it runs.
    open_file: str | None = None
    #: The file of a folder that tells whether the folder was changed: the others are written whenever they are opened.
    folder_file: str | None = None
    #: Where SQLite keeps a full-text index of the system's that is filled anew with every change of its text.
    full_text_tables: frozenset[str] = frozenset()
    #: Tables with counters, by the name of their database below the root. Undo leaves their rows as they are: what a
    #: counter has given out is never given out again.
    counters: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def store_at(self, path: Path) -> Path | None:
        """Return what holds a store that a folder is, has in it, or is a part of; None where there is none.

        Raises:
            GenerationUnknown: it is of a later generation than is known.
            OSError: nobody may look there.
        """
        raise NotImplementedError

    def has_tables(self, tables: Collection[str]) -> bool:
        """Tell whether a SQLite file is a store, by the names of its tables."""
        return False

    def has_name(self, path: Path) -> bool:
        """Tell whether a file that cannot be read is a store, by its name."""
        return False

    def describe(self, path: Path) -> str | None:
        """Return what to say of a SQLite file that belongs to a store without being one; None where it does not."""
        return None

    def located(self, path: Path) -> Located:
        """Return the store that a path is: by default, a folder."""
        return Located(kind=self.kind, path=path, tree=FolderTree(path))

    def databases(self, found: Located) -> Iterator[str]:
        """Yield the names of the SQLite files of a store, below its root."""
        raise NotImplementedError

    def files(self, found: Located) -> Iterator[str]:
        """Yield the names of its other files, below its root."""
        yield from ()

    def part_names(self, found: Located) -> dict[str, str]:
        """Return what a person calls each part, by its id; empty where that cannot be read."""
        return {}

    def alone(self, found: Located) -> AbstractContextManager[None]:
        """Keep the system itself from opening a store, as long as this lasts; by default nothing does.

        Raises:
            RegraftError: it has the store open.
        """
        return nullcontext()

    def guarded(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """Let nothing change a row that no run may change, as long as this lasts; other files are left alone."""
        return nullcontext()

    def changes_only(self, found: Located) -> frozenset[str] | None:
        """Return the names of what is changed, where other stores may lie in the same folder; None: all of it."""
        return None
