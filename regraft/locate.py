"""From any path that a user would naturally point at to the kind of store that it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import ledger, sqlite
from regraft.errors import RegraftError, SourceNotFound, SourceUnreadable, SourceUnrecognised
from regraft.formats import json_text, v1_state
from regraft.formats.v1_state import StatePlaces
from regraft.tree import FolderTree, Tree, ZipTree, join, open_tree

CATALOG_FILE = "catalog.sqlite"
PROFILE_DATABASE = "cherrystudio.sqlite"
KNOWLEDGE_FOLDER = "KnowledgeBase"
INDEX_FILE = ".cherry/index.sqlite"
RAW_FOLDER = "raw"

_REDUX_FILES = (
    "redux.json",
    "redux_state.json",
    "redux_export/redux_state.json",
    "redux_export/redux.json",
    "redux/redux.json",
)
_TABLE_FOLDERS = ("dexie", "dexie_export", "", "indexedDB")
#: Folders that mean something by their name: an archive is not read from inside them.
_NAMED_FOLDERS = {"Data", KNOWLEDGE_FOLDER, ".cherry"}
_TABLES = ("files", "knowledge_notes")


class Kind(StrEnum):
    """What a path can be. The value is what output and ``--kind`` call it."""

    V1_BACKUP = "v1-backup"
    V1_EXPORT = "v1-export"
    V1_KNOWLEDGE = "v1-knowledge"
    V1_BACKUP_6 = "v1-backup-6"
    V1_PROFILE = "v1-profile"
    V1_VECTORS = "v1-vectors"
    V2_BACKUP = "v2-backup"
    V2_PROFILE = "v2-profile"
    LIBRARY = "library"
    BASE = "base"
    INDEX = "index"
    PREVIEW = "preview-index"


#: What a kind is called in a sentence.
NAMES = {
    Kind.V1_BACKUP: "a v1 backup",
    Kind.V1_EXPORT: "a v1 export folder",
    Kind.V1_KNOWLEDGE: "a v1 knowledge state beside its vector files",
    Kind.V1_BACKUP_6: "a v1 backup of version 6",
    Kind.V1_PROFILE: "a v1 profile folder",
    Kind.V1_VECTORS: "the vector file of one v1 base",
    Kind.V2_BACKUP: "a v2 backup (version 7)",
    Kind.V2_PROFILE: "a v2 profile folder",
    Kind.LIBRARY: "a v2 library",
    Kind.BASE: "the folder of one v2 base",
    Kind.INDEX: "the index file of one v2 base",
    Kind.PREVIEW: "an index file of a preview build",
}
#: Kinds whose state and vector files can be migrated.
V1_SOURCES = (Kind.V1_BACKUP, Kind.V1_EXPORT, Kind.V1_KNOWLEDGE)


@dataclass(frozen=True)
class Located:
    """A recognised path: its kind, the tree to read it from, and where a v1 source keeps its state."""

    kind: Kind
    path: Path
    tree: Tree
    places: StatePlaces = field(default_factory=StatePlaces)
    #: The backup's own version number, where it states one.
    version: int | None = None

    @property
    def is_archive(self) -> bool:
        """Tell whether members have to be extracted before a program can open them."""
        return isinstance(self.tree, ZipTree)


@contextmanager
def located(path: Path, kind: Kind | None = None) -> Iterator[Located]:
    """Recognise ``path`` (or take the user's word for its kind) and keep its archive open meanwhile.

    Raises:
        SourceNotFound, SourceUnrecognised, SourceUnreadable: it is nothing, nothing known, or damaged.
        ArchiveUnsafe, ArchiveEncrypted: it is an archive that must not be read.
        BrokenJson: it is a JSON file that is broken.
    """
    found = _locate(path, kind)
    try:
        yield found
    finally:
        if isinstance(found.tree, ZipTree):
            found.tree.close()


def _locate(path: Path, kind: Kind | None) -> Located:
    try:
        if not path.exists():
            raise SourceNotFound(path=path)
        if path.is_dir():
            next(path.iterdir(), None)
            return _in_tree(path, FolderTree(path), kind)
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        if isinstance(error, RegraftError):
            raise
        raise SourceUnreadable(path=path, reason=error.strerror or error) from error
    if start.startswith(b"SQLite format 3\0"):
        return _database(path, kind)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")):
        tree = open_tree(path)
        try:
            return _in_tree(path, tree, kind)
        except BaseException:
            tree.close()  # type: ignore[union-attr]
            raise
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return _json_file(path, kind)
    raise SourceUnrecognised(path=path, found=_describe(start))


def _describe(start: bytes) -> str:
    if not start:
        return "an empty file"
    return "a text file" if b"\0" not in start else "a file of another kind"


# --- folders and archives ------------------------------------------------------------------------------------------


def _in_tree(path: Path, tree: FolderTree | ZipTree, kind: Kind | None) -> Located:
    folder = _inner_folder(tree)
    found = _recognise(path, tree, "" if isinstance(tree, FolderTree) else folder)
    if found is None and folder:
        # A folder that somebody unpacked an archive into: v1 sources are read through their tree from any depth.
        found = _recognise(path, tree, folder)
        found = found if found is not None and found.kind in (*V1_SOURCES, Kind.V1_BACKUP_6) else None
    if kind is not None and (found is None or found.kind is not kind):
        found = _forced(path, tree, folder, kind)
    if found is None:
        inside = ", ".join(tree.children(folder)[:4])
        what = "an archive" if isinstance(tree, ZipTree) else "a folder"
        raise SourceUnrecognised(path=path, found=f"{what} with {inside or 'nothing'} in it")
    return found


def _inner_folder(tree: Tree) -> str:
    """Return the folder of an archive that holds everything, where things were packed together with their folder."""
    folder = ""
    while True:
        # macOS adds a folder of its own to every archive.
        inside = [name for name in tree.children(folder) if name != "__MACOSX"]
        if len(inside) != 1 or inside[0] in _NAMED_FOLDERS or tree.kind(join(folder, inside[0])) != "folder":
            return folder
        folder = join(folder, inside[0])


def _recognise(path: Path, tree: Tree, folder: str) -> Located | None:  # noqa: PLR0911 - a list of what it can be
    def has(name: str, kind: str = "file") -> bool:
        return tree.kind(join(folder, name)) == kind

    backup_version = _stated_version(tree, join(folder, "metadata.json")) if has("metadata.json") else None
    if has(PROFILE_DATABASE) or has(f"Data/{PROFILE_DATABASE}") or backup_version == 7:
        kind = Kind.V2_BACKUP if backup_version is not None else Kind.V2_PROFILE
        return Located(kind, path, tree, version=backup_version)
    if has("data.json"):
        places = _places(tree, folder, backup=join(folder, "data.json"))
        return Located(Kind.V1_BACKUP, path, tree, places)
    if backup_version == 6:
        return Located(Kind.V1_BACKUP_6, path, tree, version=backup_version)
    if has(CATALOG_FILE) or (has(ledger.FOLDER, "folder") and has(KNOWLEDGE_FOLDER, "folder")):
        return Located(Kind.LIBRARY, path, tree)
    if has("Local Storage/leveldb", "folder") or (has("Local Storage", "folder") and has("IndexedDB", "folder")):
        return Located(Kind.V1_PROFILE, path, tree)
    for name in _REDUX_FILES:
        if has(name):
            return Located(Kind.V1_EXPORT, path, tree, _places(tree, folder, redux=join(folder, name)))
    if has(INDEX_FILE):
        return Located(Kind.BASE, path, tree)
    return _knowledge_folder(path, tree, folder)


def _knowledge_folder(path: Path, tree: Tree, folder: str) -> Located | None:
    """Recognise a folder with a knowledge state beside vector files, or a ``KnowledgeBase`` folder of v2 bases."""
    bases = join(folder, KNOWLEDGE_FOLDER) if tree.kind(join(folder, KNOWLEDGE_FOLDER)) == "folder" else folder
    if any(tree.kind(f"{join(bases, name)}/{INDEX_FILE}") == "file" for name in tree.children(bases)):
        return Located(Kind.LIBRARY, path, tree)
    for name in tree.children(folder):
        if _may_hold_state(name, beside_vectors=bases != folder):
            state = _json_state(tree, join(folder, name))
            if state == "knowledge":
                places = _places(tree, folder, knowledge=join(folder, name))
                return Located(Kind.V1_KNOWLEDGE, path, tree, places)
            if state == "redux":
                return Located(Kind.V1_EXPORT, path, tree, _places(tree, folder, redux=join(folder, name)))
    return None


def _may_hold_state(name: str, *, beside_vectors: bool) -> bool:
    """Tell whether a JSON file is worth opening: any beside ``KnowledgeBase``, else one called after its content."""
    if not name.endswith(".json") or name == v1_state.PENDING_DELETE_FILE:
        return False
    return beside_vectors or "knowledge" in name.lower() or "redux" in name.lower()


def _forced(path: Path, tree: Tree, folder: str, kind: Kind) -> Located:
    names = tree.children(folder)
    if kind is Kind.V1_BACKUP and "data.json" in names:
        return Located(kind, path, tree, _places(tree, folder, backup=join(folder, "data.json")))
    if kind is Kind.V1_EXPORT:
        redux = next((name for name in _REDUX_FILES if tree.kind(join(folder, name)) == "file"), None)
        if redux is not None:
            return Located(kind, path, tree, _places(tree, folder, redux=join(folder, redux)))
    if kind is Kind.LIBRARY and KNOWLEDGE_FOLDER in names:
        return Located(kind, path, tree)
    raise SourceUnrecognised(path=path, found=f"it does not hold what {NAMES[kind]} holds")


def _places(tree: Tree, folder: str, **state: str) -> StatePlaces:
    def first_folder(*names: str) -> str | None:
        return next((join(folder, name) for name in names if tree.kind(join(folder, name)) == "folder"), None)

    tables: dict[str, str] = {}
    if "backup" not in state:
        for table in _TABLES:
            for place in _TABLE_FOLDERS:
                name = join(join(folder, place) if place else folder, f"{table}.json")
                if table not in tables and tree.kind(name) == "file" and name not in state.values():
                    tables[table] = name
    vectors = first_folder(f"Data/{KNOWLEDGE_FOLDER}", KNOWLEDGE_FOLDER)
    if vectors is None and "backup" not in state:
        vectors = folder
    return StatePlaces(**state, tables=tables, vectors=vectors, uploads=first_folder("Data/Files", "Files"))


# --- single files --------------------------------------------------------------------------------------------------


class _Version(msgspec.Struct):
    version: Any = None


def _stated_version(tree: Tree, name: str) -> int | None:
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        version = json_text.decode(v1_state.read_text(tree, name), _Version).version
        return version if isinstance(version, int) else None
    return None


def _json_state(tree: Tree, name: str) -> str | None:
    """Tell whether a JSON file holds a ``knowledge`` slice, a Redux state, a backup, or none of them (None)."""
    with contextlib.suppress(json_text.JsonProblem, SourceUnreadable):
        found = json_text.fields(v1_state.read_text(tree, name), ("regraft", "bases", "knowledge", "localStorage"))
        kinds = {"bases": "knowledge", "knowledge": "redux", "localStorage": "backup"}
        # A report of regraft lists bases too.
        return kinds[next(iter(found))] if found and "regraft" not in found else None
    return None


def _json_file(path: Path, kind: Kind | None) -> Located:
    tree = FolderTree(path.parent)
    state = _json_state(tree, path.name)
    if state is None:
        with v1_state.blame(path, path.name):
            json_text.fields(v1_state.read_text(tree, path.name), ())
        raise SourceUnrecognised(path=path, found="a JSON file without a knowledge state")
    places = {
        "knowledge": lambda: _places(tree, "", knowledge=path.name),
        "redux": lambda: _places(tree, "", redux=path.name),
        "backup": lambda: _places(tree, "", backup=path.name),
    }[state]()
    recognised = {"knowledge": Kind.V1_KNOWLEDGE, "redux": Kind.V1_EXPORT, "backup": Kind.V1_BACKUP}[state]
    if kind not in (None, recognised):
        raise SourceUnrecognised(path=path, found=f"{NAMES[recognised]}, not {NAMES[kind]}")
    return Located(recognised, path, tree, places)


def _database(path: Path, kind: Kind | None) -> Located:
    try:
        with sqlite.reading(path) as db:
            tables = {str(row[0]) for row in db.execute("SELECT name FROM sqlite_master")}
    except (apsw.Error, UnicodeDecodeError) as error:
        if kind in (Kind.INDEX, Kind.V1_VECTORS, Kind.PREVIEW):
            return Located(kind, path, FolderTree(path.parent))
        raise SourceUnreadable(path=path, reason=error) from error
    if "search_unit" in tables:
        recognised = Kind.INDEX
    elif "libsql_vectorstores_embedding" in tables:
        recognised = Kind.PREVIEW
    elif "vectors" in tables:
        recognised = Kind.V1_VECTORS
    elif "knowledge_base" in tables:
        recognised = Kind.V2_PROFILE if path.name == PROFILE_DATABASE else Kind.LIBRARY
    else:
        raise SourceUnrecognised(path=path, found="a SQLite file with none of the known tables")
    if kind not in (None, recognised):
        raise SourceUnrecognised(path=path, found=f"{NAMES[recognised]}, not {NAMES[kind]}")
    if recognised in (Kind.V2_PROFILE, Kind.LIBRARY):
        return Located(recognised, path.parent, FolderTree(path.parent))
    return Located(recognised, path, FolderTree(path.parent))
