"""Where v2 data lies, and the stores of preview builds among it (``docs/formats/preview.md``, "Where it lies").

A base has its store in ``<base id>/.cherry/index.sqlite``; preview builds also kept it in a flat file called after the
base. Names are those of a source's tree.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from regraft.disk.trees import FolderTree, Tree, ZipTree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import json_text
from regraft.formats.cherry_preview import IndexLayout, IndexSummary, summarize_member
from regraft.formats.cherry_v1.layout import VECTORS_FOLDER
from regraft.identity import replace
from regraft.language import tr

CATALOG_FILE = "catalog.sqlite"
PROFILE_DATABASE = "cherrystudio.sqlite"
KNOWLEDGE_FOLDER = VECTORS_FOLDER
INDEX_FILE = ".cherry/index.sqlite"
RAW_FOLDER = "raw"
DATA_FOLDER = "Data"
#: Where a released application has its database, below the profile.
LIVE_DATABASE = f"{DATA_FOLDER}/{PROFILE_DATABASE}"

_INDEX_FOLDER, _, _INDEX_NAME = INDEX_FILE.partition("/")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: What a flat file may be called besides the base's id.
_DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
#: How far above a path a ``KnowledgeBase`` folder is looked for: it holds ``<base id>/.cherry/index.sqlite``.
_LEVELS = 4


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """A file that holds one base: its name in the tree, and what it is at a glance."""

    #: The base's id, by the place where the file lies; None where that says nothing.
    base_id: str | None
    name: str
    #: The folder of the base's raw files.
    raw: str
    look: IndexSummary


class Stores(msgspec.Struct, frozen=True):
    """The stores of a source, one for each base, in the order of their names."""

    #: Those of preview builds, and those that nobody can read.
    preview: tuple[StoreFile, ...] = ()
    #: Those in the v2 layout.
    current: tuple[StoreFile, ...] = ()
    #: The catalog beside or above them, None where there is none.
    catalog: str | None = None
    #: The database that a beta left in the root of a profile, beside the live one in ``Data/``; it is never read.
    stale_copy: str | None = None
    #: The folder where the catalog's bases lie.
    bases: str = KNOWLEDGE_FOLDER
    #: Whether these are all bases of the catalog, not one that was named.
    is_whole: bool = False
    #: Whether the catalog is a file that the user named and that is not the one of its folder: a copy of another name,
    #: or one beside the live database. It is read alone, and never changed.
    is_copy: bool = False

    @property
    def has_preview(self) -> bool:
        """Tell whether any store is known to be one of a preview build."""
        return any(store.look.layout is IndexLayout.PREVIEW for store in self.preview)


def is_uuid(text: str) -> bool:
    """Tell whether ``text`` is of the form of the ids that the application gives to bases."""
    return _UUID.fullmatch(text) is not None


def open_surrounding_tree(path: Path) -> tuple[FolderTree, str]:
    """Return a tree in which what belongs to ``path`` can be named too, and the name of ``path`` in it.

    What belongs to a base's file or folder is its ``raw/`` and the catalog of its library or profile, which lie above.
    """
    path = path.absolute()
    above = [path, *path.parents][: _LEVELS + 1]
    root = path if path.is_dir() else path.parent
    bases = next((place for place in above if place.name == KNOWLEDGE_FOLDER), None)
    if bases is not None:
        root = bases.parent.parent if bases.parent.name == DATA_FOLDER else bases.parent
    elif root.name == _INDEX_FOLDER:
        root = root.parent
    inside = path.relative_to(root).as_posix()
    return FolderTree(root, path), "" if inside == "." else inside


def find_stores(tree: Tree, inside: str) -> Stores:
    """Find the stores of one file, one base's folder, a folder of bases, a library or a profile.

    Of several files of one base, one with units in the v2 layout stands for it, else one with rows in the preview
    table; ``.cherry/index.sqlite`` goes before a flat file.

    Args:
        tree: a folder or an archive.
        inside: the name in it of what is looked at; empty for all of it.
    """
    single = next((name for name in _single_names(inside) if is_index_file(tree, name)), None)
    if single is not None:
        # The tree may begin at the base's own folder, whose name then stands in no name.
        whole = single if isinstance(tree, ZipTree) else f"{tree.path.absolute().as_posix()}/{single}"
        stores, bases = [_known(_store(tree, base_id_from_path(whole), single))], KNOWLEDGE_FOLDER
    else:
        folders = _folders_of_bases(tree, inside)
        stores, bases = list(_chosen(tree, folders)), folders[0]
    catalog = _catalog(tree, inside)
    return Stores(
        preview=tuple(one for one in stores if one.look.layout in (IndexLayout.PREVIEW, IndexLayout.UNREADABLE)),
        current=tuple(one for one in stores if one.look.layout is IndexLayout.CURRENT),
        catalog=catalog,
        stale_copy=_stale_copy(tree, catalog),
        bases=bases,
        is_whole=single is None,
    )


def replace_catalog(stores: Stores, catalog: str, bases: Collection[str]) -> Stores:
    """Return the stores of a catalog that the user named in place of the one of its folder.

    Args:
        stores: those of the folder.
        catalog: the name of the file in the folder's tree.
        bases: the ids that this catalog has: the indexes of others are not its own.
    """
    return Stores(
        preview=tuple(one for one in stores.preview if one.base_id in bases),
        current=tuple(one for one in stores.current if one.base_id in bases),
        catalog=catalog,
        bases=stores.bases,
        is_copy=True,
    )


def is_index_file(tree: Tree, name: str) -> bool:
    """Tell whether a base's file is there; one that nobody may look for counts as there, and cannot be read."""
    return tree.kind(name) == "file" or (name.endswith(INDEX_FILE) and tree.is_denied(name))


def _folders_of_bases(tree: Tree, inside: str) -> list[str]:
    below = [join_path(inside, name) for name in (f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)]
    return [folder for folder in below if tree.kind(folder) == "folder"] or [inside]


def _single_names(inside: str) -> tuple[str, ...]:
    """Return the files that are one base's where ``inside`` is that file or its folder."""
    return (inside, join_path(inside, INDEX_FILE), join_path(inside, _INDEX_NAME))


def _catalog(tree: Tree, inside: str) -> str | None:
    places = [inside, *(str(parent) for parent in PurePosixPath(inside).parents)]
    # The application opens the one in `Data/`; only a beta has one in the profile's root alone.
    names = (LIVE_DATABASE, PROFILE_DATABASE, CATALOG_FILE)
    found = (join_path("" if place == "." else place, name) for place in places for name in names)
    return next((name for name in found if tree.kind(name) == "file"), None)


def _stale_copy(tree: Tree, catalog: str | None) -> str | None:
    """Return the database of a beta beside the live one, which nothing reads."""
    if catalog is None or PurePosixPath(catalog).parts[-2:] != (DATA_FOLDER, PROFILE_DATABASE):
        return None
    beside = join_path(PurePosixPath(catalog).parent.parent.as_posix().removeprefix("."), PROFILE_DATABASE)
    return beside if tree.kind(beside) == "file" else None


def find_profile(path: Path) -> Path:
    """Return the profile whose ``Data`` folder a path is; any other path as it is."""
    if path.name != DATA_FOLDER:
        return path
    if not (path / PROFILE_DATABASE).is_file():
        # A beta has its database above; a library that somebody called `Data` has a catalog of its own.
        is_of_beta = (path.parent / PROFILE_DATABASE).is_file() and not (path / CATALOG_FILE).is_file()
        return path.parent if is_of_beta else path
    # A profile of a beta may itself be called `Data`: then it has such a folder of its own, or the browser's.
    is_itself = any((path / name).is_dir() for name in (DATA_FOLDER, "Local Storage", "IndexedDB"))
    return path if is_itself or (path / "metadata.json").is_file() else path.parent


def base_id_from_path(name: str) -> str | None:
    """Return the id that a file's place gives its base: its folder's or its own name, None where that says nothing."""
    path = PurePosixPath(name)
    if path.parent.name == _INDEX_FOLDER:
        return path.parent.parent.name or None
    return _flat_id(path.name) if path.parent.name == KNOWLEDGE_FOLDER else None


def _flat_id(name: str) -> str:
    path = PurePosixPath(name)
    return path.stem if path.suffix.lower() in _DATABASE_SUFFIXES else name


def _store(tree: Tree, base_id: str | None, name: str) -> StoreFile:
    folder = PurePosixPath(name).parent
    if folder.name == _INDEX_FOLDER:
        raw = folder.parent / RAW_FOLDER
    else:
        raw = folder / base_id / RAW_FOLDER if folder.name == KNOWLEDGE_FOLDER and base_id else folder / RAW_FOLDER
    try:
        look = summarize_member(tree, name)
    except SourceUnreadable as error:
        look = IndexSummary(IndexLayout.UNREADABLE, problem=str(error.facts["reason"]))
    return StoreFile(base_id=base_id, name=name, raw=str(raw), look=look)


class _Files(msgspec.Struct):
    """The files of one base: index files in folders of their own, and flat ones."""

    indexes: list[str] = msgspec.field(default_factory=list)
    flat: list[str] = msgspec.field(default_factory=list)


def _files(tree: Tree, folders: list[str]) -> dict[str, _Files]:
    found: dict[str, _Files] = {}
    for folder in folders:
        for child in tree.children(folder):
            place = join_path(folder, child)
            if tree.kind(place) == "file":
                found.setdefault(_flat_id(child), _Files()).flat.append(place)
            elif is_index_file(tree, join_path(place, INDEX_FILE)):
                found.setdefault(child, _Files()).indexes.append(join_path(place, INDEX_FILE))
    return dict(sorted(found.items()))


def _chosen(tree: Tree, folders: list[str]) -> Iterator[StoreFile]:
    for base_id, files in _files(tree, folders).items():
        stores = [_known(_store(tree, base_id, name)) for name in files.indexes]
        # Beside the folders of bases there may lie anything: v1's vector files, the application's own lists.
        flat = (_store(tree, base_id, name) for name in files.flat)
        stores += [one for one in flat if one.look.layout is not IndexLayout.UNREADABLE or is_uuid(base_id)]
        if stores:
            yield min(stores, key=_rank)


def _known(store: StoreFile) -> StoreFile:
    """Return a file in a base's own folder as its store, whatever it holds."""
    if store.look.layout is not IndexLayout.OTHER or not store.name.endswith(_INDEX_NAME):
        return store
    return replace(store, look=IndexSummary(IndexLayout.UNREADABLE, problem=tr("it holds none of the known tables")))


def _rank(store: StoreFile) -> int:
    """Return which of several stores of one base stands for it: the lowest; a tie goes to the first."""
    look = store.look
    order = (
        look.layout is IndexLayout.CURRENT and look.has_rows,
        look.layout is IndexLayout.PREVIEW and look.has_rows,
        look.layout is IndexLayout.PREVIEW,
        look.layout is IndexLayout.CURRENT,
        look.layout is IndexLayout.UNREADABLE,
    )
    return order.index(True) if True in order else len(order)


def is_index_path(path: Path) -> bool:
    """Tell whether a file lies where the index of a base does, whatever it holds."""
    return path.absolute().match(INDEX_FILE)


# The report that a migration leaves in a library, as far as others read it (``docs/formats/library.md``).


REPORT_FILE = "report.json"
REPORT_PAGE = "report.html"

#: A report that is larger, in bytes, is none of ours.
_LARGEST = 256 << 20


def read_report_bytes(tree: Tree, folder: str = "") -> bytes:
    """Return the report beside a library's catalog; nothing where there is none, or none that can be ours.

    Raises:
        SourceUnreadable: the disk fails: nobody knows whether there is one.
    """
    name = join_path(folder, REPORT_FILE)
    try:
        if tree.kind(name) != "file" or tree.size(name) > _LARGEST:
            return b""
        with tree.open(name) as file:
            return file.read()
    except OSError as error:
        cause = error.__cause__ if isinstance(error, SourceUnreadable) else error
        if isinstance(cause, OSError) and cause.errno == errno.EIO:
            raise SourceUnreadable(path=name, reason=cause.strerror) from error
        return b""


def read_reported_ids(tree: Tree, folder: str = "") -> dict[str, str]:
    """Return the ids of bases by their v1 ids, as the report of the last migration gives them.

    Raises:
        SourceUnreadable: as for :func:`report_bytes`.
    """
    try:
        reported: Any = json_text.loads(read_report_bytes(tree, folder))
        return {old: new for old, new in reported["ids"]["bases"].items() if isinstance(new, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
