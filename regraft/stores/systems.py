"""Describe other systems and their stores: how a store is recognized, named and protected.

Each system has one subclass of :class:`System` in its own folder of ``regraft/formats``; :class:`regraft.kinds.Kind`
lists them. ``checks/systems.py`` and ``repair/systems.py`` load the system's audit and its planners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, cast

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

# Recognized stores


class Located(msgspec.Struct, frozen=True, kw_only=True):
    """A recognized path: its kind, the tree to read it from, and where a v1 source keeps its state."""

    kind: Kind
    path: Path
    tree: Tree
    places: StatePaths = msgspec.field(default_factory=StatePaths)
    #: version number in the backup, if any
    version: int | None = None
    #: notices about how it was recognized
    notices: tuple[Notice, ...] = ()
    #: the catalog file below ``path`` that the user named; None if the user named a folder
    named_catalog: str | None = None
    #: stores of v2 and of preview builds
    stores: Stores = msgspec.field(default_factory=Stores)
    #: whether it is a slim backup: the database without the indexes and files of its bases
    is_slim: bool = False
    #: archive members that could not be extracted, each with the reason
    damaged: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: SHA-256 (hex) of the members extracted from a pack
    digests: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: whether ``path`` is an archive, and ``tree`` a temporary folder with what was extracted
    is_extracted: bool = False

    @property
    def profile(self) -> Path | None:
        """The folder of a live profile, which an application may be writing to; None otherwise."""
        if self.is_archive:
            return None
        if self.kind is Kind.V2_PROFILE:
            return self.tree.path
        return None if self.places.profile is None else self.tree.path / self.places.profile

    @property
    def has_v1_state(self) -> bool:
        """Whether a v2 profile still has the state of v1, which ``--kind v1-profile`` reads."""
        return self.kind is Kind.V2_PROFILE and self.tree.kind(LOCAL_STORAGE) == "folder"

    @property
    def is_archive(self) -> bool:
        """Whether the user has to extract it before a program can open or change its files."""
        return self.is_extracted or isinstance(self.tree, ZipTree)


class SidecarProblem(ValueError):
    """A file cannot be used as a sidecar; the message says why."""


#: The hash of a text (:func:`regraft.identity.text_hash`), and its vector: raw little-endian float32.
TextVector: TypeAlias = tuple[str, bytes]


class StoredVectors(msgspec.Struct, frozen=True, kw_only=True):
    """Vectors of one model in a store; the rows are read while the store is open."""

    name: str
    model_id: str | None
    dimensions: int
    rows: Iterator[TextVector]


class System:
    """A system whose vectors belong to a database of its own. The defaults are for stores without the feature."""

    #: the kind of its stores
    kind: Kind
    #: what ``--base`` selects, such as "project"; empty if a store has no parts
    part: str = ""
    #: error for an unknown part
    part_unknown: type[BaseUnknown] = BaseUnknown
    #: commands that change a store, or report what did
    commands: frozenset[str] = frozenset()
    #: advice in place of a migration, and of a search
    migrate_advice: str = ""
    search_advice: str = tr("migrate it first, and search the library")
    #: a file below the root that the system keeps open, with a log, while it runs
    open_file: str | None = None
    #: the file of a folder store whose change means that the store changed; the others are written whenever they are
    #: opened
    folder_file: str | None = None
    #: tables of a full-text index that the system refills with every change of its text
    full_text_tables: frozenset[str] = frozenset()
    #: counter tables by the name of their database below the root. Undo keeps their rows: a number is never given out
    #: twice.
    counters: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def store_at(self, path: Path) -> Path | None:
        """Return the path of the store that a folder is, contains, or belongs to; None if there is no such store.

        Raises:
            GenerationUnknown: it is of a later generation than regraft knows.
            OSError: the folder cannot be accessed.
        """
        raise NotImplementedError

    def has_tables(self, tables: Collection[str]) -> bool:
        """Whether a SQLite file with these tables is a store."""
        return False

    def has_name(self, path: Path) -> bool:
        """Whether an unreadable file is a store, judged by its name."""
        return False

    def archive_members(self, tree: ZipTree) -> tuple[str, list[str]] | None:
        """Return the folder of a store in a zip archive, and the members that belong to it; None if it has no store."""
        return None

    def describe(self, path: Path) -> str | None:
        """Describe a SQLite file that belongs to a store without being one; None for other files."""
        return None

    def locate(self, path: Path) -> Located:
        """Describe the store at a path: by default, a folder."""
        return Located(kind=self.kind, path=path, tree=FolderTree(path))

    def databases(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        raise NotImplementedError

    def files(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's other files, relative to its root."""
        yield from ()

    def part_names(self, source: Located) -> dict[str, str]:
        """Map the id of each part of a store, such as a project, to its name; empty if they cannot be read."""
        return {}

    def text_vectors(self, source: Located) -> Iterator[StoredVectors] | None:
        """Return the store's vectors with the hashes of their texts, grouped by model.

        None if only the system's migration reads the vectors, or nothing.

        Raises:
            RegraftError: they cannot be read.
        """
        return None

    def exclusive_access(self, source: Located) -> AbstractContextManager[None]:
        """Keep the system from opening a store within the context; the default is to do nothing.

        Raises:
            RegraftError: the system has the store open.
        """
        return nullcontext()

    def guard_rows(self, db: apsw.Connection) -> AbstractContextManager[None]:
        """Reject changes to protected rows of an open database within the context; the default protects none."""
        return nullcontext()

    def changeable_paths(self, source: Located) -> frozenset[str] | None:
        """Return the paths that a command may change, if other stores can be in the same folder; None: all of them."""
        return None


# Registry of the systems (:data:`regraft.kinds.SYSTEMS`), each loaded when it is first used


def system_of(kind: Kind) -> System:
    """Return the system whose stores have this kind."""
    return cast(System, import_module(f"regraft.formats.{kind.system}.system").SYSTEM)


def all_systems() -> Iterator[System]:
    """Yield all systems."""
    return map(system_of, SYSTEMS)


def counter_tables() -> frozenset[str]:
    """Return the names of all tables whose rows are counters, which undo keeps (:attr:`System.counters`)."""
    return frozenset(table for system in all_systems() for tables in system.counters.values() for table in tables)


def systems_for(kind: Kind | None) -> Iterator[System]:
    """Yield the systems that a path may belong to: the one with this kind, or all if the kind is unknown."""
    for system in all_systems():
        if kind in (None, system.kind):
            yield system


# Kinds of SQLite files


def kind_by_tables(path: Path, tables: set[str]) -> Kind:
    """Return the kind of a SQLite file that has these tables.

    Raises:
        SourceUnrecognised: it is none of the known kinds.
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
    described = (system.describe(path) for system in all_systems())
    found = next(filter(None, described), tr("a SQLite file with none of the known tables"))
    raise SourceUnrecognised(path=path, found=found)
