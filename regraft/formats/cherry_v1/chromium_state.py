"""Read v1's state from Chromium's Local Storage and IndexedDB, in a profile or a backup of version 6.

Chromium stores data by origin. The application's origin is ``file://``, but the origin that contains the state is used
whatever its name (``docs/formats/v1.md``, "Profile folder").
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import chromium
from regraft.formats.cherry_v1.layout import STATE_KEY
from regraft.formats.chromium import StorageChanged, StorageDamaged, StoredText
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.notices import Notice

DATABASE = "CherryStudio"
APPLICATION_ORIGIN = "file://"
_LEVELDB = ".indexeddb.leveldb"


class ChromiumState(msgspec.Struct, frozen=True):
    """State found in Chromium's storage: the Redux state as JSON text, and the rows of each table."""

    #: None if no origin has the key.
    redux: bytearray | None
    tables: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def read_chromium_state(
    tree: Tree, local_storage: str, indexed_db: str | None, tables: tuple[str, ...], work: Path
) -> ChromiumState:
    """Read v1's state from a profile or a backup of version 6.

    Args:
        tree: the source.
        local_storage: folder of Local Storage's LevelDB in the tree.
        indexed_db: the folder ``IndexedDB`` in the tree, if it exists.
        tables: tables (object stores) to read.
        work: folder for copies. The source's files are only copied, never opened as databases.

    Raises:
        SourceUnreadable: the state cannot be read (a damaged table only causes a notice), or a running application kept
            changing the files.
        OSError: the disk fails, or ``work`` is full.
    """
    try:
        found = chromium.read_key(tree, local_storage, STATE_KEY, work, APPLICATION_ORIGIN)
    except StorageDamaged as problem:
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=problem) from problem
    if not found.value and found.passed_over:
        reason = tr("it is damaged or incomplete, and does not contain the application's state")
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=reason)
    reader = _Reader(tree, indexed_db, tables, work)
    if found.passed_over:
        reader.notices_found.append(damage_notice(found.passed_over, local_storage))
    if not found.value:
        return ChromiumState(None, notices=tuple(reader.notices_found))
    stored = reader.choose(found.value)
    rows = reader.rows(stored.origin)
    return ChromiumState(bytearray(stored.text.encode("utf-8", "surrogatepass")), rows, tuple(reader.notices_found))


def indexed_db_folder(origin: str) -> str:
    """Return the name of Chromium's folder for an origin's IndexedDB: ``file__0.indexeddb.leveldb`` for ``file://``."""
    scheme, _, rest = origin.partition("://")
    host, _, port = rest.partition(":")
    return f"{scheme}_{host}_{port or 0}{_LEVELDB}"


class _Tables(msgspec.Struct, frozen=True):
    """Rows by table of one origin's IndexedDB, with notices about it. If they cannot be read, ``rows`` is None."""

    rows: dict[str, list[Any]] | None
    notices_found: tuple[Notice, ...] = ()


class _Reader:
    """Reads the tables of one source. Single use."""

    def __init__(self, tree: Tree, indexed_db: str | None, tables: tuple[str, ...], work: Path) -> None:
        self._tree = tree
        self._tables = tables
        self._work = work
        self._folders = (
            []
            if indexed_db is None
            else [join_path(indexed_db, name) for name in tree.children(indexed_db) if name.endswith(_LEVELDB)]
        )
        #: Result for each folder; None if it does not contain the application's database.
        self._read: dict[str, _Tables | None] = {}
        self.notices_found: list[Notice] = []

    def choose(self, candidates: list[StoredText]) -> StoredText:
        """Choose one of the states that several origins stored. ``candidates`` are ordered by time, last written first.

        Origins with a database are preferred, then the application's own origin. A damaged database counts as existing.
        """
        if len(candidates) == 1:
            return candidates[0]
        with_tables = [stored for stored in candidates if self._tables_of(self._folder_of(stored.origin)) is not None]
        chosen = with_tables or candidates
        return next((stored for stored in chosen if stored.origin == APPLICATION_ORIGIN), chosen[0])

    def rows(self, origin: str) -> dict[str, list[Any]]:
        """Return the rows of an origin by table.

        If it has no tables, use those of the only other origin that has any.
        """
        found = self._tables_of(self._folder_of(origin))
        if found is None:
            others = [one for one in map(self._tables_of, self._folders) if one is not None]
            found = others[0] if len(others) == 1 else None
        if found is None:
            message = tr(
                "IndexedDB has no database {database} of {origin}; files and notes are read from the state alone",
                database=DATABASE,
                origin=origin,
            )
            found = _Tables(None, (Notice(code=notices.TABLE_UNREADABLE, message=message),))
        self.notices_found.extend(found.notices_found)
        return found.rows or {}

    def _folder_of(self, origin: str) -> str | None:
        """Return the path of an origin's IndexedDB, or None if it has no IndexedDB."""
        wanted = indexed_db_folder(origin)
        return next((folder for folder in self._folders if folder.rpartition("/")[2] == wanted), None)

    def _tables_of(self, folder: str | None) -> _Tables | None:
        """Return the tables in an IndexedDB folder; each folder is read once. None without v1's database."""
        if folder is None:
            return None
        if folder not in self._read:
            self._read[folder] = self._read_tables(folder)
        return self._read[folder]

    def _read_tables(self, folder: str) -> _Tables | None:
        """Read the tables of an IndexedDB folder, with notices on damage; None if it does not contain v1's database."""
        try:
            found = chromium.read_stores(self._tree, folder, DATABASE, self._tables, self._work)
        except StorageChanged as problem:
            # Not damaged: a later run can read everything.
            raise SourceUnreadable(path=f"{self._tree.path}/{folder}", reason=problem) from problem
        except StorageDamaged as problem:
            return _Tables(
                None,
                (
                    Notice(
                        code=notices.TABLE_UNREADABLE,
                        message=tr("{folder} cannot be read: {problem}", folder=folder, problem=problem),
                    ),
                ),
            )
        damaged = (damage_notice(found.passed_over, folder),) if found.passed_over else ()
        if found.value is None:
            # The damaged parts may have contained the database.
            return _Tables(None, damaged) if damaged else None
        lost = []
        for name, store in found.value.items():
            message = ""
            if store.problem is not None:
                message = tr("table {name} cannot be read: {problem}", name=name, problem=store.problem)
            elif store.passed_over:
                rows = format_count(store.passed_over, "row")
                message = tr("table {name}: {rows} cannot be read", name=name, rows=rows)
            if message:
                lost.append(Notice(code=notices.TABLE_UNREADABLE, message=message))
        return _Tables({name: store.rows for name, store in found.value.items()}, (*damaged, *lost))


def damage_notice(count: int, folder: str) -> Notice:
    """Make the notice that ``count`` damaged parts in a folder were skipped."""
    message = tr(
        "skipped {damaged_places} in {folder}; the latest changes may be missing",
        damaged_places=format_count(count, "damaged place"),
        folder=folder,
    )
    return Notice(code=notices.STORAGE_DAMAGED, message=message, count=count)
