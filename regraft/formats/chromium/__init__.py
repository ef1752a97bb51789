"""Reads Chromium's Local Storage and IndexedDB, both stored in LevelDB (``docs/formats/chromium.md``). Never writes.

:func:`read_key` and :func:`read_stores` are the entry points. For any input they return or raise
:class:`StorageDamaged` (or OSError for an I/O error).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

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
from regraft.language import tr

# --- serialized JavaScript values: Blink's envelope around V8's tagged values ("Script values") ----------------------
#
# Data types are decoded; browser objects (files, images, keys) are not.

VERSION_TAG = 0xFF
_TRAILER_TAG = 0xFE
#: Tag, 8-byte offset and 4-byte size.
_TRAILER_BYTES = 13
#: From this version on, Blink's version precedes V8's.
_FIRST_BLINK_VERSION = 16
#: From this version on, nested strings have a tag.
_TAGGED_STRINGS = 12
#: From this version on, buffer views have flags.
_VIEW_FLAGS = 14
MAX_DEPTH = 100
#: Bytes that array holes and buffer views may add to the size of the value itself.
_ROOM_BYTES = 4096

_PADDING, _HOLE, _VIEW, _COUNT = 0, ord("-"), ord("V"), ord("?")


def decode_script_value(data: bytes) -> Any:
    """Decode a serialized value to Python: dict, list, str, int, float, bool, bytes and None.

    Undefined, holes, errors and references to browser objects become None, a Date a float (milliseconds since 1970), a
    Map a list of ``[key, value]``, a Set a list, a regular expression its source, and object keys str. Repeated
    references give the same Python object; a reference to an enclosing object is None. Texts may contain lone
    surrogates.

    Raises:
        MalformedStorage: the value is invalid, truncated, nested too deeply, or contains a browser object.
    """
    source = ByteReader(data)
    version = _read_version(source)
    if version >= _FIRST_BLINK_VERSION:
        if source.left > _TRAILER_BYTES and data[source.at] == _TRAILER_TAG:
            source.skip(_TRAILER_BYTES)
        version = _read_version(source)
    try:
        return _Decoder(source, version).value()
    except RecursionError as error:
        raise MalformedStorage(tr("nested too deeply")) from error


def _read_version(source: ByteReader) -> int:
    """Read the version in the header of a serialized value."""
    if source.byte() != VERSION_TAG:
        raise MalformedStorage(tr("is not a serialized value"))
    return source.number()


class _Decoder:
    """Decodes one value and the objects that it refers to."""

    def __init__(self, source: ByteReader, version: int) -> None:
        self._source = source
        self._version = version
        #: Objects in the order in which they begin; None while incomplete, which ends cycles.
        self._objects: list[Any] = []
        self._depth = 0
        self._room = len(source.data) + _ROOM_BYTES

    def value(self) -> Any:
        """Decode the next value to Python."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedStorage(tr("nested too deeply"))
        tag = self._read_tag()
        if tag == _COUNT:
            self._source.number()
            tag = self._read_tag()
        read = self._READERS.get(tag)
        if read is None:
            raise MalformedStorage(tr("contains something that is not data (tag {tag})", tag=tag))
        value = read(self)
        if self._source.left and self._source.data[self._source.at] == _VIEW and isinstance(value, bytes):
            value = self._read_view(value)
        self._depth -= 1
        return value

    def _read_tag(self) -> int:
        """Return the next byte that is not padding: it tells the type of the next value."""
        while (tag := self._source.byte()) == _PADDING:
            pass
        return tag

    def _peek(self) -> int:
        """Return the next tag without consuming it."""
        tag = self._read_tag()
        self._source.at -= 1
        return tag

    def _spend(self, size: int) -> None:
        """Subtract the size of output that is not backed by input bytes from the limit.

        Raise MalformedStorage if it is used up.
        """
        self._room -= size
        if self._room < 0:
            raise MalformedStorage(tr("states a much larger size than it has"))

    # --- plain values ----------------------------------------------------------------------------------------------

    def _read_int32(self) -> int:
        """Read a zigzag-encoded integer."""
        coded = self._source.number()
        return (coded >> 1) ^ -(coded & 1)

    def _read_double(self) -> float:
        """Read a floating-point number."""
        return float(struct.unpack("<d", self._source.take(8))[0])

    def _read_bigint(self) -> int:
        """Read an integer of any size."""
        field = self._source.number()
        value = int.from_bytes(self._source.take(field >> 1), "little")
        return -value if field & 1 else value

    def _read_utf8(self) -> str:
        """Read a UTF-8 text."""
        try:
            return self._source.length_prefixed().decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise MalformedStorage(tr("contains a text that is not UTF-8")) from error

    def _read_utf16(self) -> str:
        """Read a UTF-16 text."""
        coded = self._source.length_prefixed()
        if len(coded) % 2:
            raise MalformedStorage(tr("contains a text that ends with half a character"))
        return coded.decode("utf-16-le", "surrogatepass")

    def _read_nested_text(self) -> str:
        """Read a text inside another value. Its encoding depends on the version."""
        if self._version < _TAGGED_STRINGS:
            return self._read_utf8()
        text = self.value()
        if not isinstance(text, str):
            raise MalformedStorage(tr("has no text where one is expected"))
        return text

    # --- objects ---------------------------------------------------------------------------------------------------

    def _read_object(self, read: Callable[[_Decoder], Any]) -> Any:
        """Read an object with ``read``. It gets its number before its content, for later references to it."""
        number = len(self._objects)
        self._objects.append(None)
        value = read(self)
        self._objects[number] = value
        return value

    def _read_reference(self) -> Any:
        """Return the object that the next number refers to, which was read before."""
        number = self._source.number()
        if number >= len(self._objects):
            raise MalformedStorage(tr("refers to an object that does not exist"))
        return self._objects[number]

    def _read_properties(self, end: str) -> dict[str, Any]:
        """Read the names and values of an object up to the tag ``end``, and skip the count behind it."""
        found: dict[str, Any] = {}
        while self._peek() != ord(end):
            name = self.value()
            if isinstance(name, int | float) and not isinstance(name, bool):
                name = str(int(name)) if name == name // 1 and abs(name) < 1e21 else repr(name)
            if not isinstance(name, str):
                raise MalformedStorage(tr("has a property whose name is not text"))
            found[name] = self.value()
        self._read_tag()
        self._source.number()
        return found

    def _read_dense_array(self) -> list[Any]:
        """Read an array with all elements; holes become None."""
        length = self._source.number()
        if length > self._source.left:
            raise MalformedStorage(tr("states a much larger size than it has"))
        found: list[Any] = []
        for _ in range(length):
            if self._peek() == _HOLE:
                self._read_tag()
                found.append(None)
            else:
                found.append(self.value())
        self._read_properties("$")
        self._source.number()
        return found

    def _read_sparse_array(self) -> list[Any]:
        """Read an array as numbered properties; missing ones become None."""
        length = self._source.number()
        self._spend(length)
        found: list[Any] = [None] * length
        for name, value in self._read_properties("@").items():
            if name.isascii() and name.isdigit() and len(name) < 10 and int(name) < length:
                found[int(name)] = value
        self._source.number()
        return found

    def _read_map(self) -> list[Any]:
        """Read a Map as a list of pairs."""
        flat = self._read_values_until(":")
        return [list(pair) for pair in zip(flat[::2], flat[1::2], strict=False)]

    def _read_values_until(self, end: str) -> list[Any]:
        """Read values up to the tag ``end``, and skip the count behind it."""
        found: list[Any] = []
        while self._peek() != ord(end):
            found.append(self.value())
        self._read_tag()
        self._source.number()
        return found

    def _read_regexp(self) -> str:
        """Read a regular expression as its source text."""
        source = self._read_nested_text()
        self._source.number()
        return source

    def _skip_error(self) -> None:
        """Skip an error object: tagged properties up to an end tag."""
        while (tag := self._source.byte()) != ord("."):
            if tag in b"ms":
                self._read_nested_text()
            elif tag == ord("c"):
                self.value()
            elif tag not in b"ERFSTU":
                raise MalformedStorage(tr("contains an error object of unknown structure"))

    # --- buffers ---------------------------------------------------------------------------------------------------

    def _read_resizable_buffer(self) -> bytes:
        """Read a resizable ArrayBuffer."""
        size = self._source.number()
        self._source.number()
        return self._source.take(size)

    def _read_view(self, buffer: bytes) -> bytes:
        """Read a typed array: a range of bytes of the buffer before it."""
        self._read_tag()
        self._source.byte()
        offset, length = self._source.number(), self._source.number()
        if self._version >= _VIEW_FLAGS:
            self._source.number()
        if offset + length > len(buffer):
            raise MalformedStorage(tr("refers to bytes past the end of a buffer"))
        self._spend(length)
        view = buffer[offset : offset + length]
        self._objects.append(view)
        return view

    def _skip_external(self) -> None:
        """Skip the number of an external object."""
        self._source.number()

    def _skip_host_object(self) -> None:
        """Skip a file or blob; other browser objects have no length and cannot be skipped."""
        tag = self._source.byte()
        count = self._source.number() if tag == ord("L") else 1
        if tag not in b"ieL" or count > self._source.left:
            raise MalformedStorage(tr("contains a browser object"))
        for _ in range(count):
            self._source.number()

    _READERS: ClassVar[dict[int, Callable[[_Decoder], Any]]] = {
        ord("_"): lambda _: None,
        ord("0"): lambda _: None,
        ord("T"): lambda _: True,
        ord("F"): lambda _: False,
        _HOLE: lambda _: None,
        ord("I"): _read_int32,
        ord("U"): lambda self: self._source.number(),
        ord("N"): _read_double,
        ord("Z"): _read_bigint,
        ord("S"): _read_utf8,
        ord('"'): lambda self: self._source.length_prefixed().decode("latin-1"),
        ord("c"): _read_utf16,
        ord("^"): _read_reference,
        ord("o"): lambda self: self._read_object(lambda _: self._read_properties("{")),
        ord("A"): lambda self: self._read_object(_Decoder._read_dense_array),
        ord("a"): lambda self: self._read_object(_Decoder._read_sparse_array),
        ord("D"): lambda self: self._read_object(_Decoder._read_double),
        ord("y"): lambda self: self._read_object(lambda _: True),
        ord("x"): lambda self: self._read_object(lambda _: False),
        ord("n"): lambda self: self._read_object(_Decoder._read_double),
        ord("z"): lambda self: self._read_object(_Decoder._read_bigint),
        ord("s"): lambda self: self._read_object(_Decoder._read_nested_text),
        ord("R"): lambda self: self._read_object(_Decoder._read_regexp),
        ord(";"): lambda self: self._read_object(_Decoder._read_map),
        ord("'"): lambda self: self._read_object(lambda _: self._read_values_until(",")),
        ord("B"): lambda self: self._read_object(lambda _: self._source.length_prefixed()),
        ord("~"): lambda self: self._read_object(_Decoder._read_resizable_buffer),
        ord("u"): lambda self: self._read_object(_Decoder._skip_external),
        ord("t"): lambda self: self._read_object(_Decoder._skip_external),
        ord("r"): lambda self: self._read_object(_Decoder._skip_error),
        ord("\\"): lambda self: self._read_object(_Decoder._skip_host_object),
    }


# --- IndexedDB: encoding of keys and names ---------------------------------------------------------------------------

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
    """Split a key of IndexedDB into its prefix and the rest.

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
    """Decode an unsigned little-endian integer."""
    return int.from_bytes(data, "little")


class PrefixFilter(msgspec.Struct, frozen=True):
    """Selects the keys of IndexedDB that have one of some prefixes and whose rest begins with ``start``."""

    prefixes: tuple[KeyPrefix, ...]
    start: bytes = b""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """Whether a selected key can lie between ``low`` and ``high`` (both included); None is unbounded.

        Keys are ordered by the numbers in their prefixes, not by their bytes.
        """
        lowest, highest = _parse_prefix(low), _parse_prefix(high)
        return any(
            (lowest is None or lowest <= prefix) and (highest is None or prefix <= highest) for prefix in self.prefixes
        )

    def holds(self, key: bytes) -> bool:
        """Whether this filter selects a key."""
        try:
            prefix, rest = split_key(key)
        except MalformedStorage:
            return False
        return prefix in self.prefixes and rest.startswith(self.start)


def _parse_prefix(key: bytes | None) -> KeyPrefix | None:
    """Decode the prefix of an IndexedDB key; None if there is no key or it is malformed."""
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
    """Return a sort key for the encoded key of a row, in IndexedDB's order; invalid keys come last."""
    try:
        return _parse_sort_key(ByteReader(coded), 0)
    except MalformedStorage:
        return (*_NO_KEY, coded)


def _parse_sort_key(data: ByteReader, depth: int) -> tuple[Any, ...]:
    """Decode the key of a row into a tuple that sorts as Chromium does. ``depth`` counts the arrays around it."""
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
        return _RANKS[kind], data.length_prefixed()
    return _RANKS[kind], struct.unpack("<d", data.take(8))[0]


class ExternalObject(NamedTuple):
    """A file or blob that a row refers to: number (None for a handle) and size in bytes."""

    number: int | None
    size: int


def parse_external_objects(value: bytes) -> list[ExternalObject]:
    """Return the files and blobs that a row refers to, from the entry that lists them.

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
            data.length_prefixed()
            found.append(ExternalObject(None, 0))
        else:
            raise MalformedStorage(tr("an external object of an unknown type"))
    return found


# --- IndexedDB: uncommitted transactions ("Transactions") ------------------------------------------------------------

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
    """Return the numbers (scopes) of transactions that were not committed when the application ended.

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


def scan_committed(database: LevelDb, is_wanted: KeyFilter, scopes: frozenset[int]) -> dict[bytes, bytes]:
    """Return the value of each wanted key after the last committed transaction, without deleted keys.

    ``scopes`` are the numbers of transactions that were not committed.

    Raises:
        StorageDamaged: see :meth:`LevelDb.scan`.
    """
    newest = {key: record.value for key, record in database.scan(is_wanted).items()}
    if scopes:
        newest.update(_scan_undo_values(database, is_wanted, scopes))
    return {key: value for key, value in newest.items() if value is not None}


def _scan_undo_values(database: LevelDb, is_wanted: KeyFilter, scopes: frozenset[int]) -> dict[bytes, bytes | None]:
    """Return the values of wanted keys before the open transactions (``scopes``); None for a key that did not exist."""

    def keep(_: bytes, task: bytes) -> bytes:
        """Return an undo task of a wanted row as it is, and an empty one otherwise, to save memory."""
        try:
            change = _parse_undo_task(task)
        except MalformedStorage:
            return b""
        return task if change is not None and is_wanted.holds(change[0]) else b""

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
    """Return the key in an undo task and its old value (None: it did not exist). None for a task on a range of keys."""
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
            found[tag >> 3] = data.length_prefixed()
        elif tag & 7 == _VARINT:
            data.number()
        elif tag & 7 in (_FIXED_64, _FIXED_32):
            data.skip(8 if tag & 7 == _FIXED_64 else 4)
        else:
            raise MalformedStorage(tr("a field of an unknown type"))
    return found


# --- IndexedDB: rows of object stores --------------------------------------------------------------------------------
#
# Only the requested object stores are read. The value of a row may be compressed, or stored in a blob file.

INDEXED_DB_COMPARATOR = "idb_cmp1"
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
    return read_leveldb(
        tree, folder, INDEXED_DB_COMPARATOR, work, lambda leveldb: _read_stores(leveldb, database, stores)
    )


def _read_stores(leveldb: LevelDb, name: str, stores: tuple[str, ...]) -> dict[str, StoreRows] | None:
    """Read object stores of the database with this name; None if the database does not exist."""
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
    """Return the id of the database with the wanted name, the highest if there are several; None if there is none.

    ``entries`` are the keys and values of IndexedDB that name databases.
    """
    found = []
    for key, value in entries.items():
        data = ByteReader(split_key(key)[1], len(_DATABASE_NAME))
        try:
            _origin, name = read_text(data), read_text(data)
        except MalformedStorage:
            continue
        # The database's id is stored under its name.
        if name == wanted and _little_endian(value):
            found.append(_little_endian(value))
    return max(found, default=None)


def _store_ids(entries: dict[bytes, bytes]) -> dict[str, int]:
    """Map the names of object stores to their ids. ``entries`` are the keys and values that name them."""
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
    """Read the rows of an object store in key order, given the ids of database and store.

    Rows that cannot be decoded are counted. ``scopes`` are transactions that were not committed.
    """
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
    """Return the serialized value of a row, without compression, and read from a blob if it is stored in one.

    ``blobs`` is the entry that lists the blobs of the row.
    """
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


# --- Local Storage: texts by origin and key --------------------------------------------------------------------------

LOCAL_STORAGE_COMPARATOR = "leveldb.BytewiseComparator"
_UTF_16, _LATIN_1 = 0, 1
#: First byte of entry keys, and the byte that follows it in key order.
_ENTRY, _AFTER_ENTRIES = b"_", b"`"
#: Origin of pages that an application loads from its own files.
FILE_ORIGIN = "file://"


class StoredText(msgspec.Struct, frozen=True):
    """A value of Local Storage. ``text`` may contain lone surrogates; a higher ``sequence`` was written later."""

    origin: str
    text: str
    sequence: int


def read_key(
    tree: Tree, folder: str, key: str, work: Path, origin: str = FILE_ORIGIN
) -> StorageResult[list[StoredText]]:
    """Return the value of ``key`` for each origin, the most recent first.

    ``folder`` is the LevelDB directory in ``tree`` (``Local Storage/leveldb``). Copies are made below ``work``. Origins
    whose value was deleted are omitted. ``origin`` is the most important one: if its value was found, unreadable older
    tables are skipped, together with values of other origins that those tables may replace. Damaged values of other
    origins are skipped as long as one value is left.

    Raises:
        StorageDamaged: a file that may hold a newer value of ``origin`` is missing or damaged, or its value is, or no
            origin has a value that is not.
        StorageChanged: a running application kept changing the files.
        OSError: I/O error.
    """
    return read_leveldb(
        tree, folder, LOCAL_STORAGE_COMPARATOR, work, lambda database: _read_texts(database, key, origin)
    )


class _Entries:
    """Selects the entries of Local Storage with one key, of any origin and in either encoding."""

    def __init__(self, key: str) -> None:
        wide = bytes([_UTF_16]) + key.encode("utf-16-le", "surrogatepass")
        self._names = [wide]
        if all(ord(unit) < 0x100 for unit in key):
            self._names.append(bytes([_LATIN_1]) + key.encode("latin-1"))

    def origin(self, key: bytes) -> bytes | None:
        """Return the origin in the key of an entry if it is selected, or None."""
        origin, nul, name = key[1:].partition(b"\0")
        return origin if key.startswith(_ENTRY) and nul and name in self._names else None

    def holds(self, key: bytes) -> bool:
        """Whether a key is one of the wanted entries."""
        return self.origin(key) is not None

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """Whether a wanted entry may lie between two keys (both included); None is unbounded."""
        low = max(low or b"", _ENTRY)
        high = _AFTER_ENTRIES if high is None else min(high, _AFTER_ENTRIES)
        if low > high:
            return False
        # Within one origin, the possible keys are known exactly.
        origin, nul, _ = low.partition(b"\0")
        if nul and high.startswith(origin + nul):
            return any(low <= origin + nul + name <= high for name in self._names)
        return True


def _read_texts(database: LevelDb, key: str, own: str) -> list[StoredText]:
    """Read the values that the origins stored for a key, newest first.

    Damaged values are skipped if another is readable, but not that of ``own``, the most important origin.
    """
    found: list[StoredText] = []
    problems: dict[str, StorageDamaged] = {}
    for origin, record in _newest_by_origin(database, key, own).items():
        try:
            found.append(StoredText(origin, _decode_text(record.value or b""), record.sequence))
        except MalformedStorage as error:
            problems[origin] = StorageDamaged(
                tr(
                    "{folder}: the value of {key} of {origin} {error}",
                    folder=database.folder,
                    key=key,
                    origin=origin,
                    error=error,
                )
            )
    if own in problems or (problems and not found):
        raise problems.get(own) or next(iter(problems.values()))
    for origin in problems:
        database.pass_over(tr("the value of {origin}", origin=origin))
    return sorted(found, key=lambda stored: -stored.sequence)


def _newest_by_origin(database: LevelDb, key: str, own: str) -> dict[str, Record]:
    """Return the newest record of each origin for a key.

    Once the value of ``own``, the most important origin, is known, older files may be unreadable.
    """
    wanted = _Entries(key)

    def origin_of(record: Record) -> str:
        """Return the origin in the key of a record."""
        return (wanted.origin(record.key) or b"").decode("latin-1")

    def is_answer(record: Record) -> bool:
        """Whether the own origin has a value, so that no other is needed."""
        return record.value is not None and origin_of(record) == own

    newest: dict[str, Record] = {}
    for record in database.scan(wanted, is_answer=is_answer).values():
        origin = origin_of(record)
        if record.value is not None and (origin not in newest or newest[origin].sequence < record.sequence):
            newest[origin] = record
    return newest


def _decode_text(value: bytes) -> str:
    """Decode a text of Local Storage: its first byte says Latin-1 or UTF-16."""
    coding, coded = value[:1], value[1:]
    if coding == bytes([_LATIN_1]):
        return coded.decode("latin-1")
    if coding != bytes([_UTF_16]):
        raise MalformedStorage(tr("has an unknown encoding"))
    if len(coded) % 2:
        raise MalformedStorage(tr("ends with half a character"))
    return coded.decode("utf-16-le", "surrogatepass")


__all__ = ["StorageChanged", "StorageDamaged", "StorageResult", "StoreRows", "StoredText", "read_key", "read_stores"]
