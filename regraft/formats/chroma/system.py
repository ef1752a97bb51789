"""Store definition of Chroma: a folder with a database, and a folder for each vector segment."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import apsw

from regraft.disk import links, sqlite, untrusted_sqlite
from regraft.disk.trees import FolderTree, ZipTree, join_path
from regraft.errors import ApplicationOpen
from regraft.formats.cherry_v1.layout import StatePaths
from regraft.formats.cherry_v1.state import find_inner_folder
from regraft.formats.chroma import database, label_map, layouts
from regraft.formats.chroma.database import (
    ELEMENTS_FILE,
    HEADER_FILE,
    NORMS_FILE,
    UPPER_FILE,
    ChromaProblem,
    list_segment_folders,
)
from regraft.kinds import Kind
from regraft.language import tr
from regraft.stores.systems import Located, System

#: The files of a vector segment.
SEGMENT_FILES = (HEADER_FILE, ELEMENTS_FILE, NORMS_FILE, UPPER_FILE, label_map.FILE)


class Chroma(System):
    """Chroma. A store is the folder of its database, whichever application it belongs to."""

    kind = Kind.CHROMA
    part = "collection"
    commands = frozenset({"fix", "repair", "gc", "history", "undo", "export", "import", "backfill"})
    open_file = database.FILE

    def store_at(self, path: Path) -> Path | None:
        """Return the folder of the Chroma database that a path means, or None.

        The path can be that folder, the database file in it, or the data folder of Open WebUI.
        """
        if path.name == database.FILE and path.is_file():
            return path.parent
        for folder in (path, path / layouts.OPEN_WEBUI_FOLDER):
            if (folder / database.FILE).is_file():
                return links.check_inside(path, folder)
        return None

    def archive_members(self, tree: ZipTree) -> tuple[str, list[str]] | None:
        """Return the root of a store in an archive, and the files to extract; None if there is no database.

        These are the database, its journal, the files of its segments, and the database of Open WebUI beside it.
        Folders of segments whose files are all empty are left out: an archive can list very many of them.
        """
        inner = find_inner_folder(tree)
        roots = (inner, join_path(inner, layouts.OPEN_WEBUI_FOLDER))
        root = next((one for one in roots if tree.kind(join_path(one, database.FILE)) == "file"), None)
        if root is None:
            return None
        outside = root.rpartition("/")[0]
        databases = [join_path(root, database.FILE)]
        if root:
            databases.append(join_path(outside, layouts.OPEN_WEBUI_DATABASE))

        def files(names: Iterable[str]) -> list[str]:
            """Return those of the names that are files and not links."""
            return [name for name in names if tree.kind(name) == "file" and not tree.is_link(name)]

        found = files(name + suffix for name in databases for suffix in ("", "-wal", "-journal"))
        for folder in tree.children(root):
            if database.is_segment_folder(folder):
                path = join_path(root, folder)
                inside = files(join_path(path, name) for name in tree.children(path) if name in SEGMENT_FILES)
                if any(map(tree.size, inside)):
                    found += inside
        return root, found

    def has_name(self, path: Path) -> bool:
        """Whether a file that cannot be read has the name of a store's database."""
        return path.name == database.FILE

    def locate(self, path: Path) -> Located:
        """Describe the store at a path that :meth:`store_at` returned."""
        return Located(kind=self.kind, path=path, tree=FolderTree(path), places=StatePaths(vectors=""))

    def databases(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's SQLite files, relative to its root."""
        yield database.FILE

    def files(self, source: Located) -> Iterator[str]:
        """Yield the paths of a store's files and folders that are not SQLite databases, relative to its root."""
        yield from list_segment_folders(source.tree.path)

    def part_names(self, source: Located) -> dict[str, str]:
        """Map the id of each collection of a store to its name; empty if the database cannot be read."""
        with (
            contextlib.suppress(ChromaProblem, apsw.Error, OSError, UnicodeDecodeError),
            database.open_chroma(source.tree.path / database.FILE) as db,
        ):
            return {one.id: one.name for one in database.list_collections(db)}
        return {}

    @contextlib.contextmanager
    def exclusive_access(self, source: Located) -> Iterator[None]:
        """Make sure that no program has the database open, or Open WebUI its own.

        Chroma keeps no lock while it is idle. On Linux, the files that other processes have open are examined.
        Elsewhere, only a program that is writing at the moment is noticed.

        Raises:
            ApplicationOpen
        """
        root = source.tree.path
        files = [root / database.FILE]
        webui = layouts.open_webui_database(root)
        if webui is not None:
            files.append(webui)
        for file in files:
            if find_holder(file) or is_locked(file):
                raise ApplicationOpen(path=root, sign=tr("{name} is open", name=file.name))
        yield


def find_holder(path: Path) -> int | None:
    """Return the id of another process that has a file open, or None.

    Only Linux tells, and only about processes of the same user.
    """
    if not sys.platform.startswith("linux"):
        return None
    real = str(links.real_path(path))
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            # A process may end in the meantime, or belong to another user.
            with contextlib.suppress(OSError):
                for descriptor in (process / "fd").iterdir():
                    if str(descriptor.readlink()) == real:
                        return int(process.name)
    return None


def is_locked(path: Path) -> bool:
    """Whether a program is writing to a SQLite file, or reading it, at this moment."""
    if not untrusted_sqlite.is_database(path):
        return False
    try:
        with sqlite.open_readonly(path, beside_writers=True) as db:
            db.set_busy_timeout(0)
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    except apsw.BusyError:
        return True
    except (apsw.Error, OSError):
        return False
    return False


SYSTEM = Chroma()
