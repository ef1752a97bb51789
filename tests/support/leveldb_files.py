"""A writer of LevelDB folders for tests: tables, logs and a MANIFEST, as much of each format as the tests need."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cramjam
import crc32c

BLOCK = 32 << 10
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
BYTEWISE = "leveldb.BytewiseComparator"

#: A key, its sequence number and its value; None deletes the key.
Entry = tuple[bytes, int, bytes | None]
#: What sorts keys.
Order = Callable[[bytes], Any]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def checksum(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


# --- logs ----------------------------------------------------------------------------------------------------------


def log(records: Iterable[bytes]) -> bytes:
    """Return records in the log format: split over blocks, with a checksum for every part."""
    out = bytearray()
    for record in records:
        at, first = 0, True
        while first or at < len(record):
            room = BLOCK - len(out) % BLOCK
            if room < 7:
                out += bytes(room)
                room = BLOCK
            part = record[at : at + room - 7]
            at += len(part)
            last = at == len(record)
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, last]
            out += checksum(bytes([kind]) + part) + struct.pack("<HB", len(part), kind) + part
            first = False
    return bytes(out)


def batch(sequence: int, entries: Sequence[tuple[bytes, bytes | None]], count: int | None = None) -> bytes:
    """Return a write batch; ``count`` lies about the number of its records."""
    body = b"".join(
        b"\0" + sized(key) if value is None else b"\1" + sized(key) + sized(value) for key, value in entries
    )
    return struct.pack("<QI", sequence, len(entries) if count is None else count) + body


# --- tables --------------------------------------------------------------------------------------------------------


def internal(key: bytes, sequence: int, kind: int) -> bytes:
    return key + (sequence << 8 | kind).to_bytes(8, "little")


def block(entries: Iterable[tuple[bytes, bytes]], restart: int = 16) -> bytes:
    out, restarts, last = bytearray(), [0], b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        elif number:
            restarts.append(len(out))
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return bytes(out) + b"".join(struct.pack("<I", at) for at in restarts) + struct.pack("<I", len(restarts))


class _Blocks:
    """The blocks of a table, one after the other."""

    def __init__(self, kind: int) -> None:
        self.out = bytearray()
        self.kind = kind

    def add(self, data: bytes) -> bytes:
        """Append a block and return its handle."""
        stored = bytes(cramjam.snappy.compress_raw(data)) if self.kind == 1 else data
        handle = varint(len(self.out)) + varint(len(stored))
        kind = bytes([self.kind])
        self.out += stored + kind + checksum(stored + kind)
        return handle


def _chunks(entries: list[tuple[bytes, bytes]], block_bytes: int) -> Iterable[list[tuple[bytes, bytes]]]:
    chunk: list[tuple[bytes, bytes]] = []
    for entry in entries:
        chunk.append(entry)
        if sum(len(key) + len(value) for key, value in chunk) >= block_bytes:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def sort_entries(entries: Iterable[Entry], order: Order) -> list[Entry]:
    return sorted(entries, key=lambda entry: (order(entry[0]), -entry[1]))


def table(
    entries: Iterable[Entry],
    *,
    kind: int = 0,
    block_bytes: int = 4096,
    order: Order = bytes,
    shorten: bool = False,
) -> bytes:
    """Return a table. ``kind`` says how blocks are packed (1 is snappy; any other is written raw under that name).

    With ``shorten`` the keys of the index are not keys of the table, but shorter ones that lie between its blocks.
    """
    coded = [
        (internal(key, sequence, 0 if value is None else 1), value or b"")
        for key, sequence, value in sort_entries(entries, order)
    ]
    blocks = _Blocks(kind)
    index = []
    chunks = list(_chunks(coded, block_bytes))
    for number, chunk in enumerate(chunks):
        last = chunk[-1][0]
        if shorten:
            following = chunks[number + 1][0][0][:-8] if number + 1 < len(chunks) else b"\xff" * 40
            last = between(last[:-8], following)
        index.append((last, blocks.add(block(chunk))))
    filters = blocks.add(block([]))
    handle = blocks.add(block(index, restart=1))
    return bytes(blocks.out) + (filters + handle).ljust(40, b"\0") + MAGIC


def between(low: bytes, high: bytes) -> bytes:
    """Return an internal key from ``low`` to before ``high``, as short as LevelDB makes it."""
    at = 0
    while at < min(len(low), len(high)) and low[at] == high[at]:
        at += 1
    if at < min(len(low), len(high)) and low[at] + 1 < high[at]:
        low = low[:at] + bytes([low[at] + 1])
    return internal(low, (1 << 56) - 1, 1)


# --- the folder ----------------------------------------------------------------------------------------------------


@dataclass
class TableSpec:
    """A table to write: where it stands, what it holds and how."""

    number: int
    entries: list[Entry]
    level: int = 0
    kind: int = 0
    suffix: str = "ldb"
    shorten: bool = False
    block_bytes: int = 4096
    #: What the edit that adds it says of the last sequence number; None: nothing.
    last_sequence: int | None = None


@dataclass
class Folder:
    """A LevelDB folder to write."""

    path: Path
    comparator: str = BYTEWISE
    order: Order = bytes
    tables: list[TableSpec] = field(default_factory=list)
    #: Batches by the number of their log.
    logs: dict[int, list[bytes]] = field(default_factory=dict)
    #: The first log that counts (default: the first there is), and the one before it that does.
    log_number: int | None = None
    previous_log: int = 0
    #: Edits before those that add the tables.
    earlier_edits: list[bytes] = field(default_factory=list)

    def write(self) -> Path:
        self.path.mkdir(parents=True, exist_ok=True)
        for spec in self.tables:
            data = table(
                spec.entries,
                kind=spec.kind,
                order=self.order,
                shorten=spec.shorten,
                block_bytes=spec.block_bytes,
            )
            (self.path / f"{spec.number:06}.{spec.suffix}").write_bytes(data)
        for number, batches in self.logs.items():
            (self.path / f"{number:06}.log").write_bytes(log(batches))
        first = min(self.logs, default=0) if self.log_number is None else self.log_number
        edits = [
            b"\x01" + sized(self.comparator.encode()) + b"\x02\x00\x03\x02\x04\x00",
            *self.earlier_edits,
            b"\x02" + varint(first) + b"\x09" + varint(self.previous_log) + b"\x03\x63\x04\x63",
            *[added(spec, self.order) for spec in self.tables],
        ]
        (self.path / "MANIFEST-000001").write_bytes(log(edits))
        (self.path / "CURRENT").write_bytes(b"MANIFEST-000001\n")
        return self.path


def added(spec: TableSpec, order: Order = bytes, level: int | None = None) -> bytes:
    """Return the edit that adds a table."""
    entries = sort_entries(spec.entries, order)
    smallest, largest = (internal(entries[at][0], entries[at][1], 1) for at in (0, -1))
    place = varint(spec.level if level is None else level) + varint(spec.number)
    dated = b"" if spec.last_sequence is None else b"\x04" + varint(spec.last_sequence)
    return dated + b"\x07" + place + varint(1000) + sized(smallest) + sized(largest)


def removed(level: int, number: int) -> bytes:
    """Return the edit that removes a table."""
    return b"\x06" + varint(level) + varint(number)
