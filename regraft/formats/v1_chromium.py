"""v1's state where the running application keeps it: in Chromium's Local Storage and IndexedDB.

A profile and a backup of version 6 hold the same folders (``docs/formats/v1.md``, "Profile folder"). Chromium keeps
everything by origin; the application's is ``file://``, but what counts is which origin has the state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regraft import notices
from regraft.errors import SourceUnreadable
from regraft.formats import chromium
from regraft.formats.chromium import StorageChanged, StorageDamaged, StoredText
from regraft.notices import Notice
from regraft.text import counted
from regraft.tree import Tree, join

STATE_KEY = "persist:cherry-studio"
DATABASE = "CherryStudio"
APPLICATION_ORIGIN = "file://"
_LEVELDB = ".indexeddb.leveldb"


@dataclass(frozen=True)
class ChromiumState:
    """What Chromium's storage holds of v1's state: the Redux state as JSON text, and rows by table."""

    #: None where no origin has the key.
    redux: bytearray | None
    tables: dict[str, list[Any]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def read_chromium(
    tree: Tree, local_storage: str, indexed_db: str | None, tables: tuple[str, ...], work: Path
) -> ChromiumState:
    """Read v1's state from a profile or a backup of version 6.

    Args:
        tree: the source.
        local_storage: the folder of Local Storage's LevelDB in it.
        indexed_db: the folder ``IndexedDB`` in it; None where it has none.
        tables: the tables (object stores) that are wanted.
        work: a folder for copies; the source's own files are only copied, never opened as a database.

    Raises:
        SourceUnreadable: the state itself cannot be read (a damaged table alone is a notice instead), or a running
            application kept changing the files.
        OSError: the disk fails, or ``work`` has no room.
    """
    try:
        found = chromium.read_key(tree, local_storage, STATE_KEY, work)
    except StorageDamaged as problem:
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=problem) from problem
    if not found.value and found.passed_over:
        reason = "it does not hold the application's state, and it is damaged or incomplete"
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=reason)
    reader = _Reader(tree, indexed_db, tables, work)
    if found.passed_over:
        reader.say_damaged(found.passed_over, local_storage)
    if not found.value:
        return ChromiumState(None, notices=tuple(reader.said))
    stored = reader.choose(found.value)
    rows = reader.rows(stored.origin)
    return ChromiumState(bytearray(stored.text.encode("utf-8", "surrogatepass")), rows, tuple(reader.said))


def origin_folder(origin: str) -> str:
    """Return what Chromium calls the IndexedDB folder of an origin: ``file://`` is ``file__0.indexeddb.leveldb``."""
    scheme, _, rest = origin.partition("://")
    host, _, port = rest.partition(":")
    return f"{scheme}_{host}_{port or 0}{_LEVELDB}"


class _Reader:
    """Reads the tables of one source; used once."""

    def __init__(self, tree: Tree, indexed_db: str | None, tables: tuple[str, ...], work: Path) -> None:
        self._tree = tree
        self._tables = tables
        self._work = work
        self._folders = (
            [] if indexed_db is None else [join(indexed_db, name) for name in _databases(tree.children(indexed_db))]
        )
        #: What was read of a folder: its rows by table, None where it has no database of the application.
        self._read: dict[str, dict[str, list[Any]] | None] = {}
        self.said: list[Notice] = []

    def say_damaged(self, places: int, folder: str) -> None:
        said = f"{counted(places, 'damaged place')} in {folder} passed over; what was written last may be missing"
        self.said.append(Notice(notices.STORAGE_DAMAGED, said, count=places))

    def choose(self, candidates: list[StoredText]) -> StoredText:
        """Return the application's own state of those that several origins have, the one written last before others."""
        if len(candidates) == 1:
            return candidates[0]
        with_tables = [stored for stored in candidates if self._tables_of(self._folder_of(stored.origin)) is not None]
        chosen = with_tables or candidates
        return next((stored for stored in chosen if stored.origin == APPLICATION_ORIGIN), chosen[0])

    def rows(self, origin: str) -> dict[str, list[Any]]:
        """Return the tables of an origin; where it has none, those of the only origin that has any."""
        own = self._tables_of(self._folder_of(origin))
        if own is not None:
            return own
        others = [found for found in map(self._tables_of, self._folders) if found is not None]
        if len(others) == 1:
            return others[0]
        if not any(one.code == notices.TABLE_UNREADABLE for one in self.said):
            said = f"no database {DATABASE} of {origin} in IndexedDB; files and notes are taken from the state alone"
            self.said.append(Notice(notices.TABLE_UNREADABLE, said))
        return {}

    def _folder_of(self, origin: str) -> str | None:
        wanted = origin_folder(origin)
        return next((folder for folder in self._folders if folder.rpartition("/")[2] == wanted), None)

    def _tables_of(self, folder: str | None) -> dict[str, list[Any]] | None:
        if folder is None:
            return None
        if folder not in self._read:
            self._read[folder] = self._read_tables(folder)
        return self._read[folder]

    def _read_tables(self, folder: str) -> dict[str, list[Any]] | None:
        try:
            found = chromium.read_stores(self._tree, folder, DATABASE, self._tables, self._work)
        except StorageChanged as problem:
            # Nothing is damaged: a later run reads all of it.
            raise SourceUnreadable(path=f"{self._tree.path}/{folder}", reason=problem) from problem
        except StorageDamaged as problem:
            self.said.append(Notice(notices.TABLE_UNREADABLE, f"{folder} cannot be read: {problem}"))
            return None
        if found.value is None:
            return None
        if found.passed_over:
            self.say_damaged(found.passed_over, folder)
        for name, store in found.value.items():
            if store.problem is not None:
                self.said.append(Notice(notices.TABLE_UNREADABLE, f"table {name} cannot be read: {store.problem}"))
            elif store.passed_over:
                rows = counted(store.passed_over, "row")
                self.said.append(Notice(notices.TABLE_UNREADABLE, f"table {name}: {rows} cannot be read"))
        return {name: store.rows for name, store in found.value.items()}


def _databases(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(_LEVELDB)]
