"""Where a v1 source keeps what: its state, its vector files, its uploads (``docs/formats/v1.md``, "Sources")."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.formats.vector_table import VectorTable

VECTORS_FOLDER = "KnowledgeBase"
#: What a preview build put behind the names of vector files that it had read.
RENAMED_SUFFIX = ".embedjs.bak"
#: The key of the Redux state.
STATE_KEY = "persist:cherry-studio"
#: The tables of Dexie that hold something of knowledge bases.
TABLES = ("files", "knowledge_notes")
_TABLE_FOLDERS = ("dexie", "dexie_export", "", "indexedDB")
#: What releases 2.0.x write before their own upgrade, in the profile: a folder with one file for each slice of the
#: state and one for each table.
EXPORT_FOLDER = "migration_temp"
SLICES_FOLDER = "redux_export"
TABLES_FOLDER = "dexie_export"
#: Where Chromium keeps Local Storage in a profile.
LOCAL_STORAGE = "Local Storage/leveldb"
#: What Chromium itself calls the profile below its own root.
BROWSER_PROFILE = "Default"


class StatePaths(msgspec.Struct, frozen=True):
    """Where a source keeps its state, as names in its tree; None where it has no such thing.

    ``backup`` is a ``data.json``; else ``redux`` is a state by slice, ``slices`` a folder with a file for each slice,
    ``knowledge`` one slice alone, and ``local_storage`` the folder of Chromium's Local Storage, beside ``indexed_db``.
    """

    backup: str | None = None
    redux: str | None = None
    slices: str | None = None
    knowledge: str | None = None
    local_storage: str | None = None
    #: The folder that both lie in.
    profile: str | None = None
    indexed_db: str | None = None
    #: Table files of Dexie by table name.
    tables: dict[str, str] = msgspec.field(default_factory=dict)
    #: Whether it is a backup, which may have been made without ``Data/``.
    is_backup: bool = False
    #: The folders of vector files and of uploads.
    vectors: str | None = None
    uploads: str | None = None
    #: The only file that counts among the vector files; None: all of them do.
    vector_file: str | None = None

    @property
    def has_state(self) -> bool:
        """Tell whether there is a state, or a place for one, beside the vector files."""
        return (self.backup or self.redux or self.slices or self.knowledge or self.local_storage) is not None


def find_vector_file(tree: Tree, folder: str, name: str) -> str:
    """Return the name, in a folder of a source, of the vector file that v1 called ``name``.

    A preview build renamed vector files that it had read: ``<name>.embedjs.bak`` is the file where ``name`` is none.
    """
    if tree.kind(join_path(folder, name)) != "file" and tree.kind(join_path(folder, name + RENAMED_SUFFIX)) == "file":
        return name + RENAMED_SUFFIX
    return name


def _first_folder(tree: Tree, *names: str) -> str | None:
    return next((name for name in names if tree.kind(name) == "folder"), None)


def locate_profile_state(tree: Tree, folder: str) -> StatePaths:
    """Return where a profile, or a backup of version 6, keeps its state and its ``Data/``."""
    # A folder below Chromium's own root has its data beside that, or in it.
    roots = [folder, folder.rpartition("/")[0]] if folder.rpartition("/")[2] == BROWSER_PROFILE else [folder]

    def data(name: str) -> str | None:
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
    """Return where a backup of the versions 1 to 5, an export or a knowledge file keeps its state and its data.

    ``state`` is one of ``backup``, ``redux`` and ``knowledge``, with the name of the file.
    """

    def first_folder(*names: str) -> str | None:
        return _first_folder(tree, *(join_path(folder, name) for name in names))

    tables: dict[str, str] = {}
    if "backup" not in state:
        for table in TABLES:
            for place in _TABLE_FOLDERS:
                name = join_path(join_path(folder, place) if place else folder, f"{table}.json")
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
    """Yield where a folder can have vector files and uploads that no state lies beside, first choice first."""
    for vectors in (f"Data/{VECTORS_FOLDER}", VECTORS_FOLDER, ""):
        name = join_path(folder, vectors) if vectors else folder
        if tree.kind(name) == "folder":
            uploads = _first_folder(tree, join_path(folder, "Data/Files"), join_path(folder, "Files"))
            yield StatePaths(vectors=name, uploads=uploads)


def locate_export_state(tree: Tree, folder: str) -> StatePaths | None:
    """Return where a ``migration_temp`` of 2.0.x keeps its state, None where the folder is none.

    Vector files and uploads are in the profile that it lies in, or beside the slices.
    """
    slices, above = join_path(folder, SLICES_FOLDER), folder.rpartition("/")
    if tree.kind(join_path(slices, "knowledge.json")) != "file":
        return None
    roots = [above[0], folder] if above[2] == EXPORT_FOLDER else [folder]

    def data(name: str) -> str | None:
        return _first_folder(tree, *(join_path(root, place) for root in roots for place in (f"Data/{name}", name)))

    tables = {table: join_path(folder, f"{TABLES_FOLDER}/{table}.json") for table in TABLES}
    return StatePaths(
        slices=slices,
        tables={table: name for table, name in tables.items() if tree.kind(name) == "file"},
        vectors=data(VECTORS_FOLDER) or folder,
        uploads=data("Files"),
    )


# The v1 vector file of a base: one table ``vectors`` written by embedjs through libSQL (``docs/formats/v1.md``).


def parse_chunk_number(row_id: bytes, loader: bytes) -> int:
    """Return n of a row id ``<loader id>_<n>``, or -1."""
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
