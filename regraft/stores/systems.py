"""What regraft has to know of a system beside the application: how its stores are recognised, named and guarded.

Each system has one :class:`System` in its own folder of ``regraft/formats``; :class:`regraft.kinds.Kind` lists them.
``checks/systems.py`` and ``repair/systems.py`` load the system's audit and its planners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import cast

import apsw
import msgspec

from regraft.disk import links
from regraft.disk.trees import FolderTree, Tree, ZipTree
from regraft.errors import BaseUnknown, SourceUnrecognised
from regraft.formats import cherry_preview
from regraft.formats.cherry_v1.layout import LOCAL_STORAGE, StatePaths
from regraft.formats.cherry_v2.layout import PROFILE_DATABASE, Stores
from regraft.kinds import SYSTEMS, Kind
from regraft.language import tr
from regraft.report.notices import Notice

# What a recognised path is, and where to read it from.


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A recognised path: its kind, the tree to read it from, and where a v1 source keeps its state."""

    kind: Kind
    path: Path
    tree: Tree
    places: StatePaths = msgspec.field(default_factory=StatePaths)
    #: The backup's own version number, where it states one.
    version: int | None = None
    #: What is worth saying about how it was found.
    notices: tuple[Notice, ...] = ()
    #: The catalog that the user named as a file, below ``path``; None where a folder was named.
    named_catalog: str | None = None
    #: The stores of v2 and of preview builds.
    stores: Stores = msgspec.field(default_factory=Stores)
    #: Of a backup: whether it is a slim one, which has the database and neither indexes nor files of its bases.
    is_slim: bool = False
    #: Members of an archive that could not be extracted, each with the reason.
    damaged: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The SHA-256, in hex, of the members of a pack that were extracted.
    digests: Mapping[str, str] = msgspec.field(default_factory=dict)

    @property
    def profile(self) -> Path | None:
        """Return the folder of a live profile, which an application may be writing to."""
        if self.is_archive:
            return None
        if self.kind is Kind.V2_PROFILE:
            return self.tree.path
        return None if self.places.profile is None else self.tree.path / self.places.profile

    @property
    def has_v1_state(self) -> bool:
        """Tell whether a v2 profile still has what v1 kept its state in: ``--kind v1-profile`` reads that."""
        return self.kind is Kind.V2_PROFILE and self.tree.kind(LOCAL_STORAGE) == "folder"

    @property
    def is_archive(self) -> bool:
        """Tell whether members have to be extracted before a program can open them."""
        return isinstance(self.tree, ZipTree)


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


# The systems beside the application (:data:`regraft.kinds.SYSTEMS`), each loaded when it is asked for.


def system_of(kind: Kind) -> System:
    """Return the system whose stores are of a kind."""
    return cast(System, import_module(f"regraft.formats.{kind.system}.system").SYSTEM)


def all_systems() -> Iterator[System]:
    """Yield all of them."""
    return map(system_of, SYSTEMS)


def counter_tables() -> frozenset[str]:
    """Return the names of the tables whose rows no undo takes back (:attr:`regraft.stores.systems.System.counters`)."""
    return frozenset(table for system in all_systems() for tables in system.counters.values() for table in tables)


def systems_for(kind: Kind | None) -> Iterator[System]:
    """Yield the systems that a path may be of, where a user says its kind, or nothing of it."""
    for system in all_systems():
        if kind in (None, system.kind):
            yield system


# What a SQLite file is, by the tables that it has.


def kind_by_tables(path: Path, tables: set[str]) -> Kind:
    """Return what a SQLite file is, by its tables.

    Raises:
        SourceUnrecognised: none of the known kinds.
    """
    for system in all_systems():
        if system.has_tables(tables):
            return system.kind
    if (
        cherry_preview.PREVIEW_TABLE in tables
        and cherry_preview.summarize_file(path).layout is cherry_preview.IndexLayout.PREVIEW
    ):
        return Kind.PREVIEW
    if "search_unit" in tables:
        return Kind.INDEX
    if "vectors" in tables:
        return Kind.V1_VECTORS
    if "knowledge_base" in tables:
        real = links.real_path(path) if path.is_symlink() else path
        return Kind.V2_PROFILE if real.name == PROFILE_DATABASE else Kind.LIBRARY
    raise SourceUnrecognised(path=path, found=_other_database(path))


def _other_database(path: Path) -> str:
    """Say what a SQLite file is that is none of the known kinds."""
    described = (system.describe(path) for system in all_systems())
    return next(filter(None, described), tr("a SQLite file with none of the known tables"))
