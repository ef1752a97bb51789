"""LevelDB's table format: sorted records in checked blocks, found through an index.

The rules are in ``docs/formats/chromium.md``, "Tables". Only the index and the blocks that may hold wanted keys are
read, one block at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, Protocol

import cramjam
import crc32c

from regraft.formats.chromium.damage import Bytes, Malformed, varint
from regraft.formats.chromium.leveldb_log import DELETED, PUT, Record, masked
from regraft.language import tr

MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES = 48
#: A block's type and checksum, after it.
TRAILER_BYTES = 5
RAW, SNAPPY, ZSTD = 0, 1, 2
#: What the sequence number and the type take at the end of a key.
_MARK_BYTES = 8
#: Snappy's densest form is 64 bytes out of 3.
_SNAPPY_RATIO = 22
_SNAPPY_SLACK = 64


class Wanted(Protocol):
    """Which keys a reader asks for."""

    def may_hold(self, low: bytes | None, high: bytes | None) -> bool:
        """Tell whether a wanted key can lie from ``low`` to ``high``, both included; None has no end on that side."""

    def holds(self, key: bytes) -> bool:
        """Tell whether a key is wanted."""


class _Handle(NamedTuple):
    """Where a block lies in its file, in bytes, without its trailer."""

    offset: int
    size: int


def unsnapped(packed: bytes) -> bytes:
    """Unpack Snappy's raw form, as blocks and IndexedDB's values have it.

    Raises:
        Malformed: it is damaged, or announces more than it can hold.
    """
    size, _ = varint(packed, 0)
    if size > _SNAPPY_RATIO * len(packed) + _SNAPPY_SLACK:
        raise Malformed(tr("{packed:,} packed bytes announce {size:,}", packed=len(packed), size=size))
    try:
        return bytes(cramjam.snappy.decompress_raw(packed))
    except Exception as error:  # cramjam's own error has no stable place to be imported from
        raise Malformed(tr("packed bytes are damaged: {error}", error=error)) from error


def user_key(internal: bytes) -> bytes:
    """Return the key without the sequence number and type that LevelDB appends to it.

    Raises:
        Malformed: it is too short for one.
    """
    if len(internal) < _MARK_BYTES:
        raise Malformed(tr("a key is too short"))
    return internal[:-_MARK_BYTES]


class Table:
    """One table file.

    Raises:
        Malformed: its end is not that of a table, or its index is damaged.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        if size < FOOTER_BYTES:
            raise Malformed(tr("too short for a table"))
        footer = Bytes(self._read(size - FOOTER_BYTES, FOOTER_BYTES))
        if not footer.data.endswith(MAGIC):
            raise Malformed(tr("does not end as a table does"))
        _handle(footer)  # of the filters, which are not needed
        self._index = [(user_key(key), _handle(Bytes(value))) for key, value in _entries(self._block(_handle(footer)))]

    def records(self, wanted: Wanted) -> Iterator[Record]:
        """Return the wanted records in the table's order, all versions of each key.

        Raises:
            Malformed: a block that may hold a wanted key is damaged.
        """
        low: bytes | None = None
        for high, handle in self._index:
            if wanted.may_hold(low, high):
                for internal, value in _entries(self._block(handle)):
                    key = user_key(internal)
                    if wanted.holds(key):
                        yield _record(key, internal, value)
            low = high

    def _read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        data = self._file.read(size)
        if len(data) != size:
            raise Malformed(tr("ends before byte {offset:,}", offset=offset + size))
        return data

    def _block(self, handle: _Handle) -> bytes:
        if handle.offset + handle.size + TRAILER_BYTES > self._size:
            raise Malformed(tr("a block at byte {offset:,} reaches past the end", offset=handle.offset))
        data = self._read(handle.offset, handle.size + TRAILER_BYTES)
        (checksum,) = struct.unpack_from("<I", data, handle.size + 1)
        if masked(crc32c.crc32c(memoryview(data)[:-4])) != checksum:
            raise Malformed(tr("the block at byte {offset:,} fails its checksum", offset=handle.offset))
        return _unpacked(data[handle.size], data[: handle.size], handle.offset)


def _unpacked(kind: int, data: bytes, offset: int) -> bytes:
    if kind == RAW:
        return data
    if kind == SNAPPY:
        return unsnapped(data)
    how = tr("with zstd") if kind == ZSTD else tr("in an unknown way ({kind})", kind=kind)
    raise Malformed(tr("the block at byte {offset:,} is packed {how}, which is not supported", offset=offset, how=how))


def _handle(data: Bytes) -> _Handle:
    return _Handle(data.number(), data.number())


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return the keys and values of a block. A key has only what differs from the one before it."""
    if len(block) < 4:
        raise Malformed(tr("a block is too short"))
    (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if end < 0:
        raise Malformed(tr("a block has more restarts than bytes"))
    at = 0
    key = b""
    while at < end:
        shared, at = varint(block, at)
        added, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + added + length > end:
            raise Malformed(tr("an entry reaches past its block"))
        key = key[:shared] + block[at : at + added]
        at += added
        yield key, block[at : at + length]
        at += length


def _record(key: bytes, internal: bytes, value: bytes) -> Record:
    mark = int.from_bytes(internal[-_MARK_BYTES:], "little")
    if mark & 0xFF not in (DELETED, PUT):
        raise Malformed(tr("a key has the unknown type {mark}", mark=mark & 255))
    return Record(key, mark >> 8, value if mark & 0xFF == PUT else None)
