"""Reads the rows of IndexedDB object stores (``docs/formats/chromium.md``, "IndexedDB").

Only the requested object stores are read. The value of a row may be compressed, or stored in a blob file.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from regraft.disk.trees import Tree, join_path
from regraft.formats.chromium.leveldb import (
    ByteReader,
    KeyFilter,
    LevelDb,
    MalformedStorage,
    Record,
    StorageChanged,
    StorageDamaged,
    StorageResult,
    decompress_snappy,
    read_leveldb,
)
from regraft.formats.chromium.script_value import decode_script_value
from regraft.language import tr

# Encoding of keys and names.


#: Third number of a prefix: what the key describes in its object store.
META, ROWS, BLOBS = 0, 1, 3
_NULL, _STRING, _DATE, _NUMBER, _ARRAY, _MIN, _BINARY = range(7)
#: Sort order of key types, which differs from their numbers.
_RANKS = {_NUMBER: 1, _DATE: 2, _STRING: 3, _BINARY: 4, _ARRAY: 5}
_NO_KEY = (6,)
_MAX_KEY_DEPTH = 100


class KeyPrefix(NamedTuple):
    """Prefix of every key; 0 if the key belongs to no object store, or to no database."""

    database: int
    store: int
    kind: int


def split_key(key: bytes) -> tuple[KeyPrefix, bytes]:
    """Split a key into its prefix and the rest.

    Raises:
        MalformedStorage: the key is too short.
    """
    data = ByteReader(key)
    sizes = data.byte()
    prefix = KeyPrefix(
        _little_endian(data.take((sizes >> 5) + 1)),
        _little_endian(data.take((sizes >> 2 & 7) + 1)),
        _little_endian(data.take((sizes & 3) + 1)),
    )
    return prefix, data.take(data.left)


def _little_endian(data: bytes) -> int:
    return int.from_bytes(data, "little")


def parse_database_id(value: bytes) -> int:
    """Return the database id stored under a database's name."""
    return _little_endian(value)


class PrefixFilter(msgspec.Struct, frozen=True):
    """Selects the keys with one of some prefixes whose rest begins with ``start``."""

    prefixes: tuple[KeyPrefix, ...]
    start: bytes = b""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """See :meth:`KeyFilter.may_hold`. Keys are ordered by the numbers in their prefixes, not by their bytes."""
        lowest, highest = _prefix(low), _prefix(high)
        return any(
            (lowest is None or lowest <= prefix) and (highest is None or prefix <= highest) for prefix in self.prefixes
        )

    def holds(self, key: bytes) -> bool:
        """See :meth:`KeyFilter.holds`."""
        try:
            prefix, rest = split_key(key)
        except MalformedStorage:
            return False
        return prefix in self.prefixes and rest.startswith(self.start)


def _prefix(key: bytes | None) -> KeyPrefix | None:
    try:
        return None if key is None else split_key(key)[0]
    except MalformedStorage:
        return None


def read_text(data: ByteReader) -> str:
    """Read a text that is preceded by its number of UTF-16 units.

    Raises:
        MalformedStorage: the text is truncated.
    """
    return decode_text(data.take(2 * data.number()))


def decode_text(coded: bytes) -> str:
    """Decode big-endian UTF-16; lone surrogates are kept.

    Raises:
        MalformedStorage: the last UTF-16 unit is incomplete.
    """
    if len(coded) % 2:
        raise MalformedStorage(tr("a text ends with half a character"))
    return coded.decode("utf-16-be", "surrogatepass")


def row_sort_key(coded: bytes) -> tuple[Any, ...]:
    """Return a sort key for encoded row keys, in IndexedDB's order; invalid keys come last."""
    try:
        return _parse_sort_key(ByteReader(coded), 0)
    except MalformedStorage:
        return (*_NO_KEY, coded)


def _parse_sort_key(data: ByteReader, depth: int) -> tuple[Any, ...]:
    kind = data.byte()
    if kind not in _RANKS or depth > _MAX_KEY_DEPTH:
        raise MalformedStorage(tr("a key of an unknown type"))
    if kind == _ARRAY:
        count = data.number()
        if count > data.left:
            raise MalformedStorage(tr("a key is truncated"))
        return _RANKS[kind], tuple(_parse_sort_key(data, depth + 1) for _ in range(count))
    if kind == _STRING:
        return _RANKS[kind], data.take(2 * data.number())
    if kind == _BINARY:
        return _RANKS[kind], data.sized()
    return _RANKS[kind], struct.unpack("<d", data.take(8))[0]


class ExternalObject(NamedTuple):
    """A file or blob that a row refers to: number (None for a handle) and size in bytes."""

    number: int | None
    size: int


def parse_external_objects(value: bytes) -> list[ExternalObject]:
    """Return the external objects of a row.

    Raises:
        MalformedStorage: the entry is truncated or has an unknown type.
    """
    data = ByteReader(value)
    found = []
    while data.left:
        kind = data.byte()
        if kind in (0, 1):
            number, _, size = data.number(), read_text(data), data.number()
            if kind == 1:
                read_text(data)
                data.number()
            found.append(ExternalObject(number, size))
        elif kind == 2:
            data.sized()
            found.append(ExternalObject(None, 0))
        else:
            raise MalformedStorage(tr("an external object of an unknown type"))
    return found


# Uncommitted transactions (``docs/formats/chromium.md``, "Transactions").


_GLOBAL = (KeyPrefix(0, 0, 0),)
_SCOPES = b"\x32"
_STATES, _TASKS = _SCOPES + b"\x01", _SCOPES + b"\x02"
_UNDO = 0
#: Field numbers of a scope's state, of an undo task, and of its operations.
_LOCKS = 1
_PUT, _DELETE = 1, 2
_KEY, _VALUE = 1, 2
_VARINT, _FIXED_64, _SIZED, _FIXED_32 = 0, 1, 2, 5


def find_open_scopes(database: LevelDb) -> frozenset[int]:
    """Return the numbers of transactions that were not committed when the application ended.

    Raises:
        StorageDamaged: their states cannot be read.
    """
    found = set()
    for key, record in database.scan(PrefixFilter(_GLOBAL, _STATES)).items():
        try:
            if record.value is not None and _LOCKS in _parse_fields(record.value):
                found.add(ByteReader(split_key(key)[1], len(_STATES)).number())
        except MalformedStorage:
            continue
    return frozenset(found)


def scan_committed(database: LevelDb, wanted: KeyFilter, scopes: frozenset[int]) -> dict[bytes, bytes]:
    """Return the value of each selected key after the last committed transaction, without deleted keys.

    Raises:
        StorageDamaged: see :meth:`LevelDb.scan`.
    """
    newest = {key: record.value for key, record in database.scan(wanted).items()}
    if scopes:
        newest.update(_scan_undo_values(database, wanted, scopes))
    return {key: value for key, value in newest.items() if value is not None}


def _scan_undo_values(database: LevelDb, wanted: KeyFilter, scopes: frozenset[int]) -> dict[bytes, bytes | None]:
    """Return the values of selected keys before the open transactions; None for a key that did not exist."""

    def keep(_: bytes, task: bytes) -> bytes:
        try:
            change = _parse_undo_task(task)
        except MalformedStorage:
            return b""
        return task if change is not None and wanted.holds(change[0]) else b""

    tasks: list[tuple[int, bytes, Record]] = []
    for key, record in database.scan(PrefixFilter(_GLOBAL, _TASKS), keep).items():
        try:
            reader = ByteReader(split_key(key)[1], len(_TASKS))
            scope, kind, order = reader.number(), reader.byte(), reader.take(8)
        except MalformedStorage:
            continue
        if record.value and scope in scopes and kind == _UNDO:
            tasks.append((scope, order, record))
    found: dict[bytes, bytes | None] = {}
    # Task numbers decrease with every change: the oldest value of a key comes last and takes precedence.
    for _, _, record in sorted(tasks, key=lambda task: task[:2]):
        change = _parse_undo_task(record.value or b"")
        if change is not None:
            found[change[0]] = change[1]
    return found


def _parse_undo_task(task: bytes) -> tuple[bytes, bytes | None] | None:
    """Return the key of an undo task and its old value; None for a task on a range of keys."""
    fields = _parse_fields(task)
    if _PUT in fields:
        put = _parse_fields(fields[_PUT])
        return put.get(_KEY, b""), put.get(_VALUE, b"")
    if _DELETE in fields:
        return _parse_fields(fields[_DELETE]).get(_KEY, b""), None
    return None


def _parse_fields(message: bytes) -> dict[int, bytes]:
    """Return the last value of each length-delimited field of a protocol buffer message."""
    data = ByteReader(message)
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
            raise MalformedStorage(tr("a field of an unknown type"))
    return found


COMPARATOR = "idb_cmp1"
_DATABASE_NAME = b"\xc9"
_STORE = b"\x32"
_STORE_NAME = 0
#: Prefix of a wrapped value.
_WRAPPED = b"\xff\x11"
_IN_BLOB, _SNAPPY = 1, 2
#: A compressed blob is wrapped twice; more levels mean damage.
_MAX_WRAPS = 4
_LEVELDB, _BLOB = ".leveldb", ".blob"


class StoreRows(msgspec.Struct, frozen=True):
    """Rows of an object store in key order, as Python values (see :func:`decode_script_value`)."""

    rows: list[Any]
    #: Number of rows that could not be decoded.
    passed_over: int = 0
    #: Reason if the store cannot be read at all, or None.
    problem: str | None = None


def read_stores(
    tree: Tree, folder: str, database: str, stores: tuple[str, ...], work: Path
) -> StorageResult[dict[str, StoreRows] | None]:
    """Return the rows of the given object stores of a database by store name, or None if there is no such database.

    ``folder`` is the LevelDB directory in ``tree`` (``IndexedDB/….indexeddb.leveldb``); blobs are in a directory next
    to it. Copies are made below ``work``. Uncommitted transactions are ignored. If there is no database and nothing was
    skipped, it never existed or was deleted.

    Raises:
        StorageDamaged: the names of databases or stores cannot be read.
        StorageChanged: a running application kept changing the files.
        OSError: I/O error.
    """
    return read_leveldb(tree, folder, COMPARATOR, work, lambda leveldb: _read_stores(leveldb, database, stores))


def _read_stores(leveldb: LevelDb, name: str, stores: tuple[str, ...]) -> dict[str, StoreRows] | None:
    scopes = find_open_scopes(leveldb)
    database = _find_database(
        scan_committed(leveldb, PrefixFilter((KeyPrefix(0, 0, 0),), _DATABASE_NAME), scopes), name
    )
    if database is None:
        if leveldb.is_blank and not leveldb.passed_over:
            leveldb.pass_over(tr("every record"))
        return None
    ids = _store_ids(scan_committed(leveldb, PrefixFilter((KeyPrefix(database, 0, META),), _STORE), scopes))
    return {store: _read_rows(leveldb, database, ids[store], scopes) for store in stores if store in ids}


def _find_database(entries: dict[bytes, bytes], wanted: str) -> int | None:
    """Return the id of the database with this name; the highest if there are several."""
    found = []
    for key, value in entries.items():
        data = ByteReader(split_key(key)[1], len(_DATABASE_NAME))
        try:
            _origin, name = read_text(data), read_text(data)
        except MalformedStorage:
            continue
        if name == wanted and parse_database_id(value):
            found.append(parse_database_id(value))
    return max(found, default=None)


def _store_ids(entries: dict[bytes, bytes]) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, value in entries.items():
        data = ByteReader(split_key(key)[1], len(_STORE))
        try:
            number, kind = data.number(), data.byte()
            if kind == _STORE_NAME and number and not data.left:
                name = decode_text(value)
                found[name] = max(number, found.get(name, 0))
        except MalformedStorage:
            continue
    return found


def _read_rows(leveldb: LevelDb, database: int, store: int, scopes: frozenset[int]) -> StoreRows:
    wanted = PrefixFilter((KeyPrefix(database, store, ROWS), KeyPrefix(database, store, BLOBS)))
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
    for rest in sorted(rows, key=row_sort_key):
        try:
            data = ByteReader(rows.pop(rest))
            data.number()  # version of the row
            value = _unwrap(data.take(data.left), blobs.get(rest, b""), reader)
            found.append(decode_script_value(value))
        except MalformedStorage:
            passed_over += 1
    return StoreRows(found, passed_over)


class _BlobReader:
    """Reads the blob files of one database."""

    def __init__(self, tree: Tree, folder: str, database: int) -> None:
        self._tree = tree
        self._folder = f"{folder.removesuffix(_LEVELDB)}{_BLOB}/{database:x}"

    def read(self, blob: ExternalObject, size: int) -> bytes:
        """Read a blob, which must have ``size`` bytes.

        Raises:
            MalformedStorage: the blob is missing, unreadable, or has another size.
        """
        if blob.number is None:
            raise MalformedStorage(tr("a value refers to a blob that is not listed"))
        name = join_path(self._folder, f"{blob.number >> 8 & 0xFF:02x}/{blob.number:x}")
        try:
            if self._tree.kind(name) != "file" or self._tree.size(name) != size:
                raise MalformedStorage(tr("a blob is missing or of another size"))
            with self._tree.open(name) as file:
                data = file.read(size)
        except OSError as error:
            raise MalformedStorage(tr("a blob cannot be read")) from error
        if len(data) != size:
            raise MalformedStorage(tr("a blob is truncated"))
        return data


def _unwrap(value: bytes, blobs: bytes, reader: _BlobReader) -> bytes:
    """Return the serialized value of a row, without its wrappers."""
    for _ in range(_MAX_WRAPS):
        if not value.startswith(_WRAPPED):
            return value
        data = ByteReader(value, len(_WRAPPED))
        how = data.byte()
        if how == _SNAPPY:
            value = decompress_snappy(data.take(data.left))
        elif how == _IN_BLOB:
            size, number = data.number(), data.number()
            listed = parse_external_objects(blobs)
            if number >= len(listed):
                raise MalformedStorage(tr("a value refers to a blob that is not listed"))
            value = reader.read(listed[number], size)
        else:
            raise MalformedStorage(tr("a value has an unknown wrapper type ({how})", how=how))
    raise MalformedStorage(tr("a value has too many wrappers"))
