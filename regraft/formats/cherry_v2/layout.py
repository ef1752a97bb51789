"""Paths of v2 data: libraries, profiles, bases, and stores of preview builds among them.

The index of a base is ``<base id>/.cherry/index.sqlite``; preview builds also kept a flat file named after the base
(``docs/formats/preview.md``, "Where it lies"). Names are paths in a source's tree.
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
#: Database of a released application, relative to the profile.
LIVE_DATABASE = f"{DATA_FOLDER}/{PROFILE_DATABASE}"

_INDEX_FOLDER, _, _INDEX_NAME = INDEX_FILE.partition("/")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: Suffixes that a flat file may have after the base id.
_DATABASE_SUFFIXES = (".sqlite", ".sqlite3", ".db")
#: Levels above a path that are searched for the ``KnowledgeBase`` folder, which contains ``<base
#: id>/.cherry/index.sqlite``.
_LEVELS = 4


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """A file that contains one base: its path in the tree and a summary of its content."""

    #: Id of the base according to the path; None if the path does not contain it.
    base_id: str | None
    name: str
    #: Folder of the base's raw files.
    raw: str
    look: IndexSummary


class Stores(msgspec.Struct, frozen=True):
    """The stores of a source, one for each base, ordered by path."""

    #: Preview stores, and stores that cannot be read.
    preview: tuple[StoreFile, ...] = ()
    #: Stores in the v2 layout.
    current: tuple[StoreFile, ...] = ()
    #: Path of the catalog, beside or above the stores.
    catalog: str | None = None
    #: Database that a beta left in the root of a profile, beside the current one in ``Data/``. It is never read.
    stale_copy: str | None = None
    #: Folder that contains the bases of the catalog.
    bases: str = KNOWLEDGE_FOLDER
    #: These are all bases of the catalog, not a single requested one.
    is_whole: bool = False
    #: The user named a catalog that is not the folder's own: a copy under another name, or one beside the live
    #: database. It is read on its own and never changed.
    is_copy: bool = False

    @property
    def has_preview(self) -> bool:
        """Whether any store has the layout of preview builds."""
        return any(store.look.layout is IndexLayout.PREVIEW for store in self.preview)


def is_uuid(text: str) -> bool:
    """Whether ``text`` has the form of the application's base ids."""
    return _UUID.fullmatch(text) is not None


def open_surrounding_tree(path: Path) -> tuple[FolderTree, str]:
    """Open a tree that contains ``path`` and the files that belong to it; return it with the name of ``path`` in it.

    The files belonging to an index file or a base's folder are its ``raw/`` and the catalog of its library or profile,
    which are in folders above it.
    """
    path = path.absolute()
    above = [path, *path.parents][: _LEVELS + 1]
    root = path if path.is_dir() else path.parent
    bases = next((folder for folder in above if folder.name == KNOWLEDGE_FOLDER), None)
    if bases is not None:
        root = bases.parent.parent if bases.parent.name == DATA_FOLDER else bases.parent
    elif root.name == _INDEX_FOLDER:
        root = root.parent
    inside = path.relative_to(root).as_posix()
    return FolderTree(root, path), "" if inside == "." else inside


def find_stores(tree: Tree, inside: str) -> Stores:
    """Find the stores in a file, a base's folder, a folder of bases, a library or a profile.

    If a base has several files, one with units in the v2 layout is used, else one with rows in the preview table;
    ``.cherry/index.sqlite`` is preferred to a flat file.

    Args:
        tree: a folder or an archive.
        inside: path in the tree; empty for the whole tree.
    """
    # A single base, if `inside` is its file or its folder.
    files = (inside, join_path(inside, INDEX_FILE), join_path(inside, _INDEX_NAME))
    single = next((name for name in files if is_index_file(tree, name)), None)
    if single is not None:
        # The tree may start at the base's own folder, so the name of that folder is only in the tree's path.
        whole = single if isinstance(tree, ZipTree) else f"{tree.path.absolute().as_posix()}/{single}"
        stores, bases = (
            [_require_known_layout(_describe_store(tree, base_id_from_path(whole), single))],
            KNOWLEDGE_FOLDER,
        )
    else:
        below = [join_path(inside, name) for name in (f"{DATA_FOLDER}/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)]
        folders = [folder for folder in below if tree.kind(folder) == "folder"] or [inside]
        stores, bases = list(_choose_stores(tree, folders)), folders[0]
    catalog, stale_copy = _find_catalog(tree, inside)
    return Stores(
        preview=tuple(one for one in stores if one.look.layout in (IndexLayout.PREVIEW, IndexLayout.UNREADABLE)),
        current=tuple(one for one in stores if one.look.layout is IndexLayout.CURRENT),
        catalog=catalog,
        stale_copy=stale_copy,
        bases=bases,
        is_whole=single is None,
    )


def _find_catalog(tree: Tree, inside: str) -> tuple[str | None, str | None]:
    """Return the catalog in a folder or above it, and a stale copy of it that the application no longer opens.

    Both are paths in the tree, None if missing. ``inside`` is the folder.
    """
    # The application opens the database in ``Data/``; only betas have one in the root of the profile alone.
    names = (LIVE_DATABASE, PROFILE_DATABASE, CATALOG_FILE)
    above = [inside, *(str(parent) for parent in PurePosixPath(inside).parents)]
    found = (join_path("" if folder == "." else folder, name) for folder in above for name in names)
    catalog = next((name for name in found if tree.kind(name) == "file"), None)
    if catalog is None or PurePosixPath(catalog).parts[-2:] != (DATA_FOLDER, PROFILE_DATABASE):
        return catalog, None
    beside = join_path(PurePosixPath(catalog).parent.parent.as_posix().removeprefix("."), PROFILE_DATABASE)
    return catalog, beside if tree.kind(beside) == "file" else None


def replace_catalog(stores: Stores, catalog: str, bases: Collection[str]) -> Stores:
    """Return the stores of a catalog that the user named instead of the folder's own.

    Args:
        stores: the stores of the folder.
        catalog: path of the named catalog in the folder's tree.
        bases: ids of the bases in that catalog; other stores do not belong to it.
    """
    return Stores(
        preview=tuple(one for one in stores.preview if one.base_id in bases),
        current=tuple(one for one in stores.current if one.base_id in bases),
        catalog=catalog,
        bases=stores.bases,
        is_copy=True,
    )


def is_index_file(tree: Tree, name: str) -> bool:
    """Whether the index file with a name exists in a tree. One without read permission counts; reading it will fail."""
    return tree.kind(name) == "file" or (name.endswith(INDEX_FILE) and tree.is_denied(name))


def find_profile(path: Path) -> Path:
    """Return the profile if ``path`` is its ``Data`` folder; any other path unchanged."""
    if path.name != DATA_FOLDER:
        return path
    if not (path / PROFILE_DATABASE).is_file():
        # A beta has its database in the parent folder; a library named `Data` has its own catalog.
        is_of_beta = (path.parent / PROFILE_DATABASE).is_file() and not (path / CATALOG_FILE).is_file()
        return path.parent if is_of_beta else path
    # A beta's profile may itself be named `Data`; it then contains such a folder, or those of the browser.
    is_itself = any((path / name).is_dir() for name in (DATA_FOLDER, "Local Storage", "IndexedDB"))
    return path if is_itself or (path / "metadata.json").is_file() else path.parent


def base_id_from_path(name: str) -> str | None:
    """Return the base id in the path of a file, from its folder or file name, or None."""
    path = PurePosixPath(name)
    if path.parent.name == _INDEX_FOLDER:
        return path.parent.parent.name or None
    return _id_of_flat_file(path.name) if path.parent.name == KNOWLEDGE_FOLDER else None


def _id_of_flat_file(name: str) -> str:
    """Return the base id in the name of an index file that is not in a folder of its own."""
    path = PurePosixPath(name)
    return path.stem if path.suffix.lower() in _DATABASE_SUFFIXES else name


def _describe_store(tree: Tree, base_id: str | None, name: str) -> StoreFile:
    """Describe the file ``name``, which contains the base ``base_id``: its folder of raw files and its layout."""
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
    """The files of one base: index files in its own folder, and flat files beside the folders of bases."""

    indexes: list[str] = msgspec.field(default_factory=list)
    flat: list[str] = msgspec.field(default_factory=list)


def _choose_stores(tree: Tree, folders: list[str]) -> Iterator[StoreFile]:
    """Yield one index for each base in some folders: of several, the one that the application would use."""
    by_base: dict[str, _Files] = {}
    for folder in folders:
        for child in tree.children(folder):
            path = join_path(folder, child)
            if tree.kind(path) == "file":
                by_base.setdefault(_id_of_flat_file(child), _Files()).flat.append(path)
            elif is_index_file(tree, join_path(path, INDEX_FILE)):
                by_base.setdefault(child, _Files()).indexes.append(join_path(path, INDEX_FILE))
    for base_id, files in sorted(by_base.items()):
        stores = [_require_known_layout(_describe_store(tree, base_id, name)) for name in files.indexes]
        # Other files may be beside the folders of bases: v1's vector files, the application's own lists.
        flat = (_describe_store(tree, base_id, name) for name in files.flat)
        stores += [one for one in flat if one.look.layout is not IndexLayout.UNREADABLE or is_uuid(base_id)]
        if stores:
            yield min(stores, key=_rank)


def _require_known_layout(store: StoreFile) -> StoreFile:
    """Return a store, marked as unreadable if it is at the path of a base's index but has an unknown layout."""
    if store.look.layout is not IndexLayout.OTHER or not store.name.endswith(_INDEX_NAME):
        return store
    return replace(store, look=IndexSummary(IndexLayout.UNREADABLE, problem=tr("it contains none of the known tables")))


def _rank(store: StoreFile) -> int:
    """Return the rank of a store among those of the same base: the lowest one is used, in a tie the first one."""
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
    """Whether a path is where a base's index is expected, whatever the file contains."""
    return path.absolute().match(INDEX_FILE)


# The report that a migration writes to a library, as far as other commands read it (``docs/formats/library.md``).


REPORT_FILE = "report.json"
REPORT_PAGE = "report.html"

#: Larger files, in bytes, are not reports.
_MAX_REPORT_BYTES = 256 << 20


def read_report_bytes(tree: Tree, folder: str = "") -> bytes:
    """Read the report of the last migration in a library's folder; empty if it is missing or not regraft's.

    Raises:
        SourceUnreadable: the disk fails.
    """
    name = join_path(folder, REPORT_FILE)
    try:
        if tree.kind(name) != "file" or tree.size(name) > _MAX_REPORT_BYTES:
            return b""
        with tree.open(name) as file:
            return file.read()
    except OSError as error:
        cause = error.__cause__ if isinstance(error, SourceUnreadable) else error
        if isinstance(cause, OSError) and cause.errno == errno.EIO:
            raise SourceUnreadable(path=name, reason=cause.strerror) from error
        return b""


def read_reported_ids(tree: Tree, folder: str = "") -> dict[str, str]:
    """Read the report of the last migration in a library's folder: the id of each base by its v1 id.

    Raises:
        SourceUnreadable: see :func:`read_report_bytes`.
    """
    try:
        reported: Any = json_text.loads(read_report_bytes(tree, folder))
        return {old: new for old, new in reported["ids"]["bases"].items() if isinstance(new, str)}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
