"""What Chromium puts into its LevelDBs, for tests: entries of Local Storage, and of IndexedDB with its values."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cramjam
from leveldb_files import Entry, Folder, batch, sized, varint

IDB = "idb_cmp1"
DATABASE = "CherryStudio"
#: The ids of object stores in :func:`idb_entries`.
FILES, BLOCKS, NOTES = 1, 2, 300

# --- Local Storage -------------------------------------------------------------------------------------------------


def local_key(origin: str, key: str, wide: bool = False) -> bytes:
    return b"_" + origin.encode("latin-1") + b"\0" + local_text(key, wide)


def local_text(text: str, wide: bool = False) -> bytes:
    return b"\0" + text.encode("utf-16-le", "surrogatepass") if wide else b"\1" + text.encode("latin-1")


# --- keys of IndexedDB ---------------------------------------------------------------------------------------------


def little(number: int) -> bytes:
    return number.to_bytes(max(1, (number.bit_length() + 7) // 8), "little")


def prefix(database: int, store: int = 0, kind: int = 0) -> bytes:
    parts = [little(number) for number in (database, store, kind)]
    sizes = len(parts[0]) - 1 << 5 | len(parts[1]) - 1 << 2 | len(parts[2]) - 1
    return bytes([sizes]) + b"".join(parts)


def numbers_of(key: bytes) -> tuple[int, int, int]:
    sizes = (key[0] >> 5) + 1, (key[0] >> 2 & 7) + 1, (key[0] & 3) + 1
    at, found = 1, []
    for size in sizes:
        found.append(int.from_bytes(key[at : at + size], "little"))
        at += size
    return found[0], found[1], found[2]


def idb_order(key: bytes) -> tuple[Any, ...]:
    """Return what sorts keys as Chromium does, but for keys of one store, which the reader does not rely on."""
    return (*numbers_of(key), key)


def idb_text(text: str) -> bytes:
    coded = text.encode("utf-16-be", "surrogatepass")
    return varint(len(coded) // 2) + coded


def text_key(text: str) -> bytes:
    return b"\x01" + idb_text(text)


def number_key(number: float) -> bytes:
    return b"\x03" + struct.pack("<d", number)


def date_key(number: float) -> bytes:
    return b"\x02" + struct.pack("<d", number)


def binary_key(data: bytes) -> bytes:
    return b"\x06" + sized(data)


def array_key(*keys: bytes) -> bytes:
    return b"\x04" + varint(len(keys)) + b"".join(keys)


def row_key(store: int, key: str | bytes, database: int = 1) -> bytes:
    return prefix(database, store, 1) + (text_key(key) if isinstance(key, str) else key)


def blob_key(store: int, key: str | bytes, database: int = 1) -> bytes:
    return prefix(database, store, 3) + (text_key(key) if isinstance(key, str) else key)


def database_key(name: str = DATABASE, origin: str = "file__0@1") -> bytes:
    return prefix(0) + b"\xc9" + idb_text(origin) + idb_text(name)


def store_key(store: int, database: int = 1) -> bytes:
    return prefix(database) + b"\x32" + varint(store) + b"\0"


def names(stores: Mapping[int, str], name: str = DATABASE, database: int = 1) -> dict[bytes, bytes]:
    """Return what says that a database has some object stores."""
    found = {database_key(name): little(database)}
    for store, title in stores.items():
        found[store_key(store, database)] = title.encode("utf-16-be")
        found[prefix(database) + b"\x32" + varint(store) + b"\x01"] = b"\x01" + idb_text("id")
    return found


# --- values of IndexedDB -------------------------------------------------------------------------------------------


def tagged(value: Any) -> bytes:
    """Return a value as V8 serializes it."""
    match value:
        case None:
            return b"0"
        case bool():
            return b"T" if value else b"F"
        case int() if -(2**31) <= value < 2**31:
            return b"I" + varint(2 * value if value >= 0 else -2 * value - 1)
        case int() | float():
            return b"N" + struct.pack("<d", value)
        case str():
            if all(ord(unit) < 0x100 for unit in value):
                return b'"' + sized(value.encode("latin-1"))
            return b"c" + sized(value.encode("utf-16-le", "surrogatepass"))
        case list():
            items = b"".join(map(tagged, value))
            return b"A" + varint(len(value)) + items + b"$" + varint(0) + varint(len(value))
        case dict():
            items = b"".join(tagged(name) + tagged(inner) for name, inner in value.items())
            return b"o" + items + b"{" + varint(len(value))
        case bytes():
            return b"B" + sized(value)
        case _:
            raise TypeError(type(value))


HEAD = b"\xff\x15\xfe" + bytes(12) + b"\xff\x10"


def serialized(value: Any, head: bytes = HEAD) -> bytes:
    """Return a value with the versions before it."""
    return head + tagged(value)


def packed(value: bytes) -> bytes:
    """Return a serialized value as it is wrapped when it is large."""
    return b"\xff\x11\x02" + bytes(cramjam.snappy.compress_raw(value))


def in_blob(size: int, number: int = 0) -> bytes:
    """Return what stands for a value in a blob: its size, and its place in the list of external objects."""
    return b"\xff\x11\x01" + varint(size) + varint(number)


def blob_entry(number: int, size: int) -> bytes:
    return b"\0" + varint(number) + idb_text("application/vnd.blink-idb-value-wrapper") + varint(size)


def file_entry(number: int, size: int) -> bytes:
    return b"\1" + varint(number) + idb_text("text/plain") + varint(size) + idb_text("a.txt") + varint(7)


def row(value: Any, version: int = 1) -> bytes:
    return varint(version) + serialized(value)


def write_blob(folder: Path, number: int, data: bytes, database: int = 1) -> Path:
    """Put a blob beside the LevelDB in ``folder``."""
    place = folder.with_suffix(".blob") / f"{database:x}" / f"{number >> 8 & 0xFF:02x}" / f"{number:x}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return place


# --- transactions --------------------------------------------------------------------------------------------------


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + sized(data)


def scope_key(scope: int) -> bytes:
    return prefix(0) + b"\x32\x01" + varint(scope)


def undo_key(scope: int, order: int) -> bytes:
    return prefix(0) + b"\x32\x02" + varint(scope) + b"\0" + struct.pack(">q", order)


#: The state of a transaction that holds a lock, and of one that was committed.
OPEN_SCOPE = _field(1, b"\x08\x01" + _field(2, _field(1, b"lock")))
COMMITTED_SCOPE = b""


def undo_put(key: bytes, value: bytes) -> bytes:
    return _field(1, _field(1, key) + _field(2, value))


def undo_delete(key: bytes) -> bytes:
    return _field(2, _field(1, key))


# --- folders -------------------------------------------------------------------------------------------------------


def idb_folder(path: Path, entries: Mapping[bytes, bytes | None]) -> Folder:
    """Return an IndexedDB whose entries lie in one log, in their order."""
    return Folder(path, IDB, idb_order, logs={3: [batch(1, list(entries.items()))]})


def numbered(entries: Mapping[bytes, bytes | None], start: int = 1) -> list[Entry]:
    """Return entries with sequence numbers from ``start``."""
    return [(key, start + at, value) for at, (key, value) in enumerate(entries.items())]
