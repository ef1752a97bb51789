"""Paths of state, vector files and uploads in a v1 source, and the table of vectors (``docs/formats/v1.md``)."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.formats.vector_table import VectorTable

VECTORS_FOLDER = "KnowledgeBase"
#: Preview builds added this suffix to vector files after importing them.
RENAMED_SUFFIX = ".embedjs.bak"
#: Key of the Redux state in Local Storage.
STATE_KEY = "persist:cherry-studio"
#: Dexie tables that belong to knowledge bases.
TABLES = ("files", "knowledge_notes")
_TABLE_FOLDERS = ("dexie", "dexie_export", "", "indexedDB")
#: Releases 2.0.x write this folder to the profile before their own upgrade: one file for each slice of the state and
#: one for each table.
EXPORT_FOLDER = "migration_temp"
SLICES_FOLDER = "redux_export"
TABLES_FOLDER = "dexie_export"
#: Chromium's Local Storage in a profile.
LOCAL_STORAGE = "Local Storage/leveldb"
#: Chromium's name for the profile folder below its user data folder.
BROWSER_PROFILE = "Default"


class StatePaths(msgspec.Struct, frozen=True):
    """Paths of a source's state in its tree; None for parts that it does not have.

    At most one of ``backup`` (a ``data.json``), ``redux`` (a JSON file with the slices of the state), ``slices`` (a
    folder with one file for each slice), ``knowledge`` (the one slice) and ``local_storage`` (Chromium's folder) is
    set.
    """

    backup: str | None = None
    redux: str | None = None
    slices: str | None = None
    knowledge: str | None = None
    local_storage: str | None = None
    #: Folder that contains Local Storage and IndexedDB.
    profile: str | None = None
    indexed_db: str | None = None
    #: Files of Dexie tables by table name.
    tables: dict[str, str] = msgspec.field(default_factory=dict)
    #: The source is a backup, which may have been made without ``Data/``.
    is_backup: bool = False
    #: Folders of vector files and of uploads.
    vectors: str | None = None
    uploads: str | None = None
    #: The only vector file to use; None for all of them.
    vector_file: str | None = None

    @property
    def has_state(self) -> bool:
        """Whether the source has a state, or a location for one, in addition to vector files."""
        return (self.backup or self.redux or self.slices or self.knowledge or self.local_storage) is not None


def find_vector_file(tree: Tree, folder: str, name: str) -> str:
    """Return the name, in a folder of a source, of the vector file that v1 called ``name``.

    Preview builds renamed vector files that they had imported: if ``name`` is missing, ``<name>.embedjs.bak`` is used.
    """
    if tree.kind(join_path(folder, name)) != "file" and tree.kind(join_path(folder, name + RENAMED_SUFFIX)) == "file":
        return name + RENAMED_SUFFIX
    return name


def _first_folder(tree: Tree, *names: str) -> str | None:
    """Return the first of these names that is a folder in the source, or None."""
    return next((name for name in names if tree.kind(name) == "folder"), None)


def locate_profile_state(tree: Tree, folder: str) -> StatePaths:
    """Locate the state and the folder ``Data/`` in a profile or a backup of version 6 at this path in the source."""
    # If the folder is below Chromium's user data folder, ``Data/`` may be in either of them.
    roots = [folder, folder.rpartition("/")[0]] if folder.rpartition("/")[2] == BROWSER_PROFILE else [folder]

    def data(name: str) -> str | None:
        """Return the path of a folder in ``Data/``, or None if it does not exist."""
        return _first_folder(tree, *(join_path(root, f"Data/{name}") for root in roots))

    storage = _first_folder(tree, join_path(folder, LOCAL_STORAGE), join_path(folder, "Local Storage"))
    return StatePaths(
        local_storage=storage or join_path(folder, LOCAL_STORAGE),
        profile=folder,
        indexed_db=_first_folder(tree, join_path(folder, "IndexedDB")),
        is_backup=tree.kind(join_path(folder, "metadata.json")) == "file",
        vectors=data(VECTORS_FOLDER),
        uploads=data("Files"),
    )


def locate_file_state(tree: Tree, folder: str, **state: str) -> StatePaths:
    """Locate the state and the data of a backup of version 1 to 5, an export, or a knowledge file.

    ``folder`` contains the file. ``state`` names it with one of the keywords ``backup``, ``redux`` and ``knowledge``.
    """

    def first_folder(*names: str) -> str | None:
        """Return the path of the first of these names that is a folder, or None."""
        return _first_folder(tree, *(join_path(folder, name) for name in names))

    tables: dict[str, str] = {}
    if "backup" not in state:
        for table in TABLES:
            for below in _TABLE_FOLDERS:
                name = join_path(join_path(folder, below) if below else folder, f"{table}.json")
                if table not in tables and tree.kind(name) == "file" and name not in state.values():
                    tables[table] = name
    vectors = first_folder(f"Data/{VECTORS_FOLDER}", VECTORS_FOLDER)
    if vectors is None and "backup" not in state:
        vectors = folder
    uploads = first_folder("Data/Files", "Files")
    return StatePaths(
        backup=state.get("backup"),
        redux=state.get("redux"),
        knowledge=state.get("knowledge"),
        tables=tables,
        is_backup="backup" in state,
        vectors=vectors,
        uploads=uploads,
    )


def locate_vector_folders(tree: Tree, folder: str) -> Iterator[StatePaths]:
    """Yield possible locations of vector files and uploads in a folder without a state, the most likely first."""
    for vectors in (f"Data/{VECTORS_FOLDER}", VECTORS_FOLDER, ""):
        name = join_path(folder, vectors) if vectors else folder
        if tree.kind(name) == "folder":
            uploads = _first_folder(tree, join_path(folder, "Data/Files"), join_path(folder, "Files"))
            yield StatePaths(vectors=name, uploads=uploads)


def locate_export_state(tree: Tree, folder: str) -> StatePaths | None:
    """Locate the state in a ``migration_temp`` folder of 2.0.x; None if the folder is not one.

    Vector files and uploads are in the profile that contains the folder, or beside the slices.
    """
    slices, above = join_path(folder, SLICES_FOLDER), folder.rpartition("/")
    if tree.kind(join_path(slices, "knowledge.json")) != "file":
        return None
    roots = [above[0], folder] if above[2] == EXPORT_FOLDER else [folder]

    def data(name: str) -> str | None:
        """Return the path of a folder of the profile or beside the slices, or None if it does not exist."""
        return _first_folder(
            tree, *(join_path(root, name_below) for root in roots for name_below in (f"Data/{name}", name))
        )

    tables = {table: join_path(folder, f"{TABLES_FOLDER}/{table}.json") for table in TABLES}
    return StatePaths(
        slices=slices,
        tables={table: name for table, name in tables.items() if tree.kind(name) == "file"},
        vectors=data(VECTORS_FOLDER) or folder,
        uploads=data("Files"),
    )


# The vector file of a base has one table, ``vectors``, which embedjs wrote through libSQL (``docs/formats/v1.md``).


def parse_chunk_number(row_id: bytes, loader: bytes) -> int:
    """Return the chunk number n of a row id ``<loader id>_<n>``, or -1 if the row id has another form."""
    if not row_id.startswith(loader) or row_id[len(loader) : len(loader) + 1] != b"_":
        return -1
    digits = row_id[len(loader) + 1 :]
    return int(digits) if digits.isdigit() and len(digits) <= 15 else -1


VECTOR_TABLE = VectorTable(
    name="vectors",
    loader=(("uniqueLoaderId", "uniqueLoaderId"),),
    source=(("source", "source"),),
    row_id=(("id", "id"),),
    body="pageContent",
    vector="vector",
    needed=("pageContent", "uniqueLoaderId", "source", "vector"),
    number=parse_chunk_number,
)
