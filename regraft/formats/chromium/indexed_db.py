"""IndexedDB: the rows of object stores (``docs/formats/chromium.md``, "IndexedDB").

Only the object stores that are asked for are read. A row's value may be packed, and may lie in a file of its own.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.formats.chromium.leveldb import (
    Bytes,
    Found,
    LevelDb,
    Malformed,
    Record,
    StorageChanged,
    StorageDamaged,
    Wanted,
    read_leveldb,
    unsnapped,
)
from regraft.formats.chromium.script_value import decode_script_value
from regraft.language import tr

# How IndexedDB codes its keys and names (``docs/formats/chromium.md``, "IndexedDB").


#: The third number of a prefix: what a key stands for in its object store.
META, ROWS, BLOBS = 0, 1, 3
_NULL, _STRING, _DATE, _NUMBER, _ARRAY, _MIN, _BINARY = range(7)
#: Numbers come before dates, and so on; the types are not numbered in that order.
_RANKS = {_NUMBER: 1, _DATE: 2, _STRING: 3, _BINARY: 4, _ARRAY: 5}
_NO_KEY = (6,)
_MAX_KEY_DEPTH = 100


class Prefix(NamedTuple):
    """What every key begins with; 0 where a key belongs to no object store, or to no database."""

    database: int
    store: int
    kind: int


def split_key(key: bytes) -> tuple[Prefix, bytes]:
    """Return a key's prefix and the rest of it.

    Raises:
        Malformed: it is too short.
    """
    data = Bytes(key)
    sizes = data.byte()
    prefix = Prefix(
        _little(data.take((sizes >> 5) + 1)),
        _little(data.take((sizes >> 2 & 7) + 1)),
        _little(data.take((sizes & 3) + 1)),
    )
    return prefix, data.take(data.left)


def _little(data: bytes) -> int:
    return int.from_bytes(data, "little")


def database_id(value: bytes) -> int:
    """Return the id that a database's name leads to."""
    return _little(value)


class Places(msgspec.Struct, frozen=True):
    """The keys of some prefixes whose rest begins with ``start``."""

    prefixes: tuple[Prefix, ...]
    start: bytes = b""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """See :meth:`Wanted.may_hold`: keys are ordered by the numbers in their prefixes, never by their bytes."""
        lowest, highest = _prefix(low), _prefix(high)
        return any(
            (lowest is None or lowest <= prefix) and (highest is None or prefix <= highest) for prefix in self.prefixes
        )

    def holds(self, key: bytes) -> bool:
        """See :meth:`Wanted.holds`."""
        try:
            prefix, rest = split_key(key)
        except Malformed:
            return False
        return prefix in self.prefixes and rest.startswith(self.start)


def _prefix(key: bytes | None) -> Prefix | None:
    try:
        return None if key is None else split_key(key)[0]
    except Malformed:
        return None


def sized_text(data: Bytes) -> str:
    """Read a text with the number of its UTF-16 units before it.

    Raises:
        Malformed: it is cut off.
    """
    return text(data.take(2 * data.number()))


def text(coded: bytes) -> str:
    """Return a text of big-endian UTF-16; lone surrogates stay.

    Raises:
        Malformed: it has half a unit at its end.
    """
    if len(coded) % 2:
        raise Malformed(tr("a text has half a character at its end"))
    return coded.decode("utf-16-be", "surrogatepass")


def row_order(coded: bytes) -> tuple[Any, ...]:
    """Return what sorts the coded key of a row as IndexedDB does; a key that cannot be read comes last."""
    try:
        return _rank(Bytes(coded), 0)
    except Malformed:
        return (*_NO_KEY, coded)


def _rank(data: Bytes, depth: int) -> tuple[Any, ...]:
    kind = data.byte()
    if kind not in _RANKS or depth > _MAX_KEY_DEPTH:
        raise Malformed(tr("a key of an unknown type"))
    if kind == _ARRAY:
        count = data.number()
        if count > data.left:
            raise Malformed(tr("a key is cut off"))
        return _RANKS[kind], tuple(_rank(data, depth + 1) for _ in range(count))
    if kind == _STRING:
        return _RANKS[kind], data.take(2 * data.number())
    if kind == _BINARY:
        return _RANKS[kind], data.sized()
    return _RANKS[kind], struct.unpack("<d", data.take(8))[0]


class ExternalObject(NamedTuple):
    """A file or blob that a row refers to: its number (None for a handle) and its size in bytes."""

    number: int | None
    size: int


def external_objects(value: bytes) -> list[ExternalObject]:
    """Return what a row's entry of external objects lists.

    Raises:
        Malformed: it is cut off, or of an unknown type.
    """
    data = Bytes(value)
    found = []
    while data.left:
        kind = data.byte()
        if kind in (0, 1):
            number, _, size = data.number(), sized_text(data), data.number()
            if kind == 1:
                sized_text(data)
                data.number()
            found.append(ExternalObject(number, size))
        elif kind == 2:
            data.sized()
            found.append(ExternalObject(None, 0))
        else:
            raise Malformed(tr("an external object of an unknown type"))
    return found


# What a transaction that was never finished left in an IndexedDB (``docs/formats/chromium.md``, "Transactions").


_GLOBAL = (Prefix(0, 0, 0),)
_SCOPES = b"\x32"
_STATES, _TASKS = _SCOPES + b"\x01", _SCOPES + b"\x02"
_UNDO = 0
#: Fields of a scope's state, of an undo task, and of what is in that.
_LOCKS = 1
_PUT, _DELETE = 1, 2
_KEY, _VALUE = 1, 2
_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5


def open_scopes(database: LevelDb) -> frozenset[int]:
    """Return the numbers of the transactions that were writing when the application ended, without being committed.

    Raises:
        StorageDamaged: their states cannot be read.
    """
    found = set()
    for key, record in database.scan(Places(_GLOBAL, _STATES)).items():
        try:
            if record.value is not None and _LOCKS in _fields(record.value):
                found.add(Bytes(split_key(key)[1], len(_STATES)).number())
        except Malformed:
            continue
    return frozenset(found)


def scan_committed(database: LevelDb, wanted: Wanted, scopes: frozenset[int]) -> dict[bytes, bytes]:
    """Return the value of each wanted key as the last committed transaction left it; deleted keys are left out.

    Raises:
        StorageDamaged: see :meth:`LevelDb.scan`.
    """
    newest = {key: record.value for key, record in database.scan(wanted).items()}
    if scopes:
        newest.update(_undone(database, wanted, scopes))
    return {key: value for key, value in newest.items() if value is not None}


def _undone(database: LevelDb, wanted: Wanted, scopes: frozenset[int]) -> dict[bytes, bytes | None]:
    """Return what the wanted keys were before the open transactions, None for nothing."""

    def keep(_: bytes, task: bytes) -> bytes:
        try:
            change = _change(task)
        except Malformed:
            return b""
        return task if change is not None and wanted.holds(change[0]) else b""

    tasks: list[tuple[int, bytes, Record]] = []
    for key, record in database.scan(Places(_GLOBAL, _TASKS), keep).items():
        try:
            place = Bytes(split_key(key)[1], len(_TASKS))
            scope, kind, order = place.number(), place.byte(), place.take(8)
        except Malformed:
            continue
        if record.value and scope in scopes and kind == _UNDO:
            tasks.append((scope, order, record))
    found: dict[bytes, bytes | None] = {}
    # The number of a task falls with every change: the oldest value of a key comes last, and is the one that counts.
    for _, _, record in sorted(tasks, key=lambda task: task[:2]):
        change = _change(record.value or b"")
        if change is not None:
            found[change[0]] = change[1]
    return found


def _change(task: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the key that an undo task is about and its old value, None where it is about a range of keys."""
    fields = _fields(task)
    if _PUT in fields:
        put = _fields(fields[_PUT])
        return put.get(_KEY, b""), put.get(_VALUE, b"")
    if _DELETE in fields:
        return _fields(fields[_DELETE]).get(_KEY, b""), None
    return None


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the last value of each field of a protocol buffer that has a length; the others are passed over."""
    data = Bytes(message)
    found: dict[int, bytes] = {}
    while data.left:
        tag = data.number()
        if tag & 7 == _SIZED:
            found[tag >> 3] = data.sized()
        elif tag & 7 == _VARINT:
            data.number()
        elif tag & 7 in (_FIXED_64, _FIXED_32):
            data.skip(8 if tag & 7 == _FIXED_64 else 4)
        else:
            raise Malformed(tr("a field of an unknown type"))
    return found


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
        name = join_path(self._folder, f"{blob.number >> 8 & 0xFF:02x}/{blob.number:x}")
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
