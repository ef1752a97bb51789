"""v1's state where the running application keeps it: in Chromium's Local Storage and IndexedDB.

A profile and a backup of version 6 hold the same folders (``docs/formats/v1.md``, "Profile folder"). Chromium keeps
everything by origin; the application's is ``file://``, but what counts is which origin has the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.errors import SourceUnreadable
from regraft.formats import chromium
from regraft.formats.cherry_v1.layout import STATE_KEY
from regraft.formats.chromium import StorageChanged, StorageDamaged, StoredText, StoreRows
from regraft.language import format_count, tr
from regraft.report import notices
from regraft.report.notices import Notice

DATABASE = "CherryStudio"
APPLICATION_ORIGIN = "file://"
_LEVELDB = ".indexeddb.leveldb"


class ChromiumState(msgspec.Struct, frozen=True):
    """What Chromium's storage holds of v1's state: the Redux state as JSON text, and rows by table."""

    #: None where no origin has the key.
    redux: bytearray | None
    tables: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def read_chromium_state(
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
        found = chromium.read_key(tree, local_storage, STATE_KEY, work, APPLICATION_ORIGIN)
    except StorageDamaged as problem:
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=problem) from problem
    if not found.value and found.passed_over:
        reason = tr("it does not hold the application's state, and it is damaged or incomplete")
        raise SourceUnreadable(path=f"{tree.path}/{local_storage}", reason=reason)
    reader = _Reader(tree, indexed_db, tables, work)
    if found.passed_over:
        reader.found_notices.append(damage_notice(found.passed_over, local_storage))
    if not found.value:
        return ChromiumState(None, notices=tuple(reader.found_notices))
    stored = reader.choose(found.value)
    rows = reader.rows(stored.origin)
    return ChromiumState(bytearray(stored.text.encode("utf-8", "surrogatepass")), rows, tuple(reader.found_notices))


def indexed_db_folder(origin: str) -> str:
    """Return what Chromium calls the IndexedDB folder of an origin: ``file://`` is ``file__0.indexeddb.leveldb``."""
    scheme, _, rest = origin.partition("://")
    host, _, port = rest.partition(":")
    return f"{scheme}_{host}_{port or 0}{_LEVELDB}"


class _Tables(msgspec.Struct, frozen=True):
    """One origin's IndexedDB: rows by table, None where they cannot be read; and what is to be said of it."""

    rows: dict[str, list[Any]] | None
    found_notices: tuple[Notice, ...] = ()


class _Reader:
    """Reads the tables of one source; used once."""

    def __init__(self, tree: Tree, indexed_db: str | None, tables: tuple[str, ...], work: Path) -> None:
        self._tree = tree
        self._tables = tables
        self._work = work
        self._folders = (
            []
            if indexed_db is None
            else [join_path(indexed_db, name) for name in _databases(tree.children(indexed_db))]
        )
        #: What was read of a folder; None where it has no database of the application.
        self._read: dict[str, _Tables | None] = {}
        self.found_notices: list[Notice] = []

    def choose(self, candidates: list[StoredText]) -> StoredText:
        """Return the application's own state of those that several origins have, the one written last before others.

        A database that is damaged is there all the same.
        """
        if len(candidates) == 1:
            return candidates[0]
        with_tables = [stored for stored in candidates if self._tables_of(self._folder_of(stored.origin)) is not None]
        chosen = with_tables or candidates
        return next((stored for stored in chosen if stored.origin == APPLICATION_ORIGIN), chosen[0])

    def rows(self, origin: str) -> dict[str, list[Any]]:
        """Return the tables of an origin; where it has none, those of the only origin that has any."""
        found = self._tables_of(self._folder_of(origin))
        if found is None:
            others = [one for one in map(self._tables_of, self._folders) if one is not None]
            found = others[0] if len(others) == 1 else None
        if found is None:
            message = tr(
                "no database {database} of {origin} in IndexedDB; files and notes are taken from the state alone",
                database=DATABASE,
                origin=origin,
            )
            found = _Tables(None, (Notice(code=notices.TABLE_UNREADABLE, message=message),))
        self.found_notices.extend(found.found_notices)
        return found.rows or {}

    def _folder_of(self, origin: str) -> str | None:
        wanted = indexed_db_folder(origin)
        return next((folder for folder in self._folders if folder.rpartition("/")[2] == wanted), None)

    def _tables_of(self, folder: str | None) -> _Tables | None:
        if folder is None:
            return None
        if folder not in self._read:
            self._read[folder] = self._read_tables(folder)
        return self._read[folder]

    def _read_tables(self, folder: str) -> _Tables | None:
        try:
            found = chromium.read_stores(self._tree, folder, DATABASE, self._tables, self._work)
        except StorageChanged as problem:
            # Nothing is damaged: a later run reads all of it.
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
            # Where places are damaged, the database may well be in one of them.
            return _Tables(None, damaged) if damaged else None
        rows = {name: store.rows for name, store in found.value.items()}
        return _Tables(rows, (*damaged, *_lost_rows(found.value)))


def damage_notice(places: int, folder: str) -> Notice:
    """Say that damaged places were passed over."""
    message = tr(
        "{damaged_places} in {folder} passed over; what was written or deleted last may not show",
        damaged_places=format_count(places, "damaged place"),
        folder=folder,
    )
    return Notice(code=notices.STORAGE_DAMAGED, message=message, count=places)


def _lost_rows(stores: dict[str, StoreRows]) -> Iterator[Notice]:
    for name, store in stores.items():
        if store.problem is not None:
            yield Notice(
                code=notices.TABLE_UNREADABLE,
                message=tr("table {name} cannot be read: {problem}", name=name, problem=store.problem),
            )
        elif store.passed_over:
            message = tr("table {name}: {rows} cannot be read", name=name, rows=format_count(store.passed_over, "row"))
            yield Notice(code=notices.TABLE_UNREADABLE, message=message)


def _databases(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(_LEVELDB)]
