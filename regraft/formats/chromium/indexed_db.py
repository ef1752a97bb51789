"""IndexedDB: the rows of object stores (``docs/formats/chromium.md``, "IndexedDB").

Only the object stores that are asked for are read. A row's value may be packed, and may lie in a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from regraft.formats.chromium.damage import Bytes, Found, Malformed, StorageChanged, StorageDamaged
from regraft.formats.chromium.idb_coding import (
    BLOBS,
    META,
    ROWS,
    ExternalObject,
    Places,
    Prefix,
    database_id,
    external_objects,
    row_order,
    sized_text,
    split_key,
    text,
)
from regraft.formats.chromium.idb_scopes import open_scopes, scan_committed
from regraft.formats.chromium.leveldb import LevelDb, read_leveldb
from regraft.formats.chromium.leveldb_table import unsnapped
from regraft.formats.chromium.script_value import decode_script_value
from regraft.language import tr
from regraft.tree import Tree, join

COMPARATOR = "idb_cmp1"
_DATABASE_NAME = b"\xc9"
_STORE = b"\x32"
_STORE_NAME = 0
#: What a value begins with that is not the value itself.
_WRAPPED = b"\xff\x11"
_IN_BLOB, _SNAPPY = 1, 2
#: A blob that is packed is wrapped twice; more is damage.
_MAX_WRAPS = 4
_LEVELDB, _BLOB = ".leveldb", ".blob"


class StoreRows(msgspec.Struct, frozen=True):
    """The rows of one object store in the order of their keys, as plain Python (:func:`decode_script_value`)."""

    rows: list[Any]
    #: Rows that could not be decoded.
    passed_over: int = 0
    #: Why nothing of the store can be read; None where it can.
    problem: str | None = None


def read_stores(
    tree: Tree, folder: str, database: str, stores: tuple[str, ...], work: Path
) -> Found[dict[str, StoreRows] | None]:
    """Return the rows of those of ``stores`` that a database has; None in place of them where there is none.

    ``folder`` is the LevelDB's in ``tree`` (``IndexedDB/….indexeddb.leveldb``); blobs lie beside it. Copies are made
    below ``work``. Transactions that were never committed are left out. Where there is no database and nothing was
    passed over, there never was one, or it was deleted.

    Raises:
        StorageDamaged: the names of databases or stores cannot be read.
        StorageChanged: a running application kept changing the files.
        OSError: the disk fails.
    """
    return read_leveldb(tree, folder, COMPARATOR, work, lambda leveldb: _stores(leveldb, database, stores))


def _stores(leveldb: LevelDb, name: str, stores: tuple[str, ...]) -> dict[str, StoreRows] | None:
    scopes = open_scopes(leveldb)
    database = _database(scan_committed(leveldb, Places((Prefix(0, 0, 0),), _DATABASE_NAME), scopes), name)
    if database is None:
        if leveldb.is_blank and not leveldb.passed_over:
            leveldb.pass_over(tr("every record"))
        return None
    ids = _store_ids(scan_committed(leveldb, Places((Prefix(database, 0, META),), _STORE), scopes))
    return {store: _rows(leveldb, database, ids[store], scopes) for store in stores if store in ids}


def _database(entries: dict[bytes, bytes], wanted: str) -> int | None:
    """Return the id of the database of a name: the highest, where there are several."""
    found = []
    for key, value in entries.items():
        data = Bytes(split_key(key)[1], len(_DATABASE_NAME))
        try:
            _origin, name = sized_text(data), sized_text(data)
        except Malformed:
            continue
        if name == wanted and database_id(value):
            found.append(database_id(value))
    return max(found, default=None)


def _store_ids(entries: dict[bytes, bytes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in entries.items():
        data = Bytes(split_key(key)[1], len(_STORE))
        try:
            number, kind = data.number(), data.byte()
            if kind == _STORE_NAME and number and not data.left:
                name = text(value)
                found[name] = max(number, found.get(name, 0))
        except Malformed:
            continue
    return found


def _rows(leveldb: LevelDb, database: int, store: int, scopes: frozenset[int]) -> StoreRows:
    wanted = Places((Prefix(database, store, ROWS), Prefix(database, store, BLOBS)))
    try:
        entries = scan_committed(leveldb, wanted, scopes)
    except StorageChanged:
        raise
    except StorageDamaged as error:
        return StoreRows([], problem=str(error))
    rows: dict[bytes, bytes] = {}
    blobs: dict[bytes, bytes] = {}
    for key in list(entries):
        prefix, rest = split_key(key)
        (rows if prefix.kind == ROWS else blobs)[rest] = entries.pop(key)
    reader = _BlobReader(leveldb.tree, leveldb.folder, database)
    found: list[Any] = []
    passed_over = 0
    for rest in sorted(rows, key=row_order):
        try:
            found.append(_row(rows.pop(rest), blobs.get(rest, b""), reader))
        except Malformed:
            passed_over += 1
    return StoreRows(found, passed_over)


class _BlobReader:
    """The blobs of one database: files beside its LevelDB."""

    def __init__(self, tree: Tree, folder: str, database: int) -> None:
        self._tree = tree
        self._folder = f"{folder.removesuffix(_LEVELDB)}{_BLOB}/{database:x}"

    def read(self, blob: ExternalObject, size: int) -> bytes:
        """Return the bytes of a blob, which must be ``size`` of them.

        Raises:
            Malformed: it is missing, of another size or cannot be read.
        """
        if blob.number is None:
            raise Malformed(tr("a value lies in no blob"))
        name = join(self._folder, f"{blob.number >> 8 & 0xFF:02x}/{blob.number:x}")
        try:
            if self._tree.kind(name) != "file" or self._tree.size(name) != size:
                raise Malformed(tr("a blob is missing or of another size"))
            with self._tree.open(name) as file:
                data = file.read(size)
        except OSError as error:
            raise Malformed(tr("a blob cannot be read")) from error
        if len(data) != size:
            raise Malformed(tr("a blob is cut off"))
        return data


def _row(value: bytes, blobs: bytes, reader: _BlobReader) -> Any:
    data = Bytes(value)
    data.number()  # the row's version
    return decode_script_value(_unwrapped(data.take(data.left), blobs, reader))


def _unwrapped(value: bytes, blobs: bytes, reader: _BlobReader) -> bytes:
    """Return the serialized value that a row stands for."""
    for _ in range(_MAX_WRAPS):
        if not value.startswith(_WRAPPED):
            return value
        data = Bytes(value, len(_WRAPPED))
        how = data.byte()
        if how == _SNAPPY:
            value = unsnapped(data.take(data.left))
        elif how == _IN_BLOB:
            size, number = data.number(), data.number()
            listed = external_objects(blobs)
            if number >= len(listed):
                raise Malformed(tr("a value lies in no blob"))
            value = reader.read(listed[number], size)
        else:
            raise Malformed(tr("a value is wrapped in an unknown way ({how})", how=how))
    raise Malformed(tr("a value is wrapped too often"))
