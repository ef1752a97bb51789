"""A sequence that stores many records in little memory: each as its encoded bytes, decoded when it is read.

A base may have a million items, which would take a gigabyte as objects. Large records, such as notes with their text,
are moved to a temporary file when they add up to much.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Generic, TypeVar, overload

import apsw
import msgspec

from regraft.disk import sqlite

Record = TypeVar("Record")
_encoder = msgspec.msgpack.Encoder()
#: Number of records whose bytes are stored as one block.
_BLOCK_RECORDS = 256
#: Size from which a record counts as large, and how many bytes of large records are held in memory.
_LARGE_BYTES, _HELD_BYTES = 1 << 12, 8 << 20


class _LargeRecords:
    """The bytes of large records, by ascending position."""

    def __init__(self) -> None:
        self._positions = array("Q")
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._file = ExitStack()
        self._db: apsw.Connection | None = None

    def __contains__(self, position: int) -> bool:
        """Whether the record at this position is a large one."""
        at = bisect_left(self._positions, position)
        return at < len(self._positions) and self._positions[at] == position

    def put(self, position: int, raw: bytes) -> None:
        """Store the bytes of a record. Positions must ascend."""
        self._positions.append(position)
        if self._db is not None:
            self._db.execute("INSERT INTO record VALUES (?, ?)", (position, raw))
            return
        self._held[position] = raw
        self._held_bytes += len(raw)
        if self._held_bytes > _HELD_BYTES:
            db = self._file.enter_context(sqlite.open_scratch())
            # The file is not needed after a crash.
            db.execute("PRAGMA journal_mode = OFF")
            db.execute("CREATE TABLE record (position INTEGER PRIMARY KEY, raw BLOB)")
            db.executemany("INSERT INTO record VALUES (?, ?)", self._held.items())
            self._held.clear()
            self._db = db

    def __getitem__(self, position: int) -> bytes:
        if self._db is None:
            return self._held[position]
        raw: Any = self._db.execute("SELECT raw FROM record WHERE position = ?", (position,)).get
        return bytes(raw)

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_large_records, ([(position, self[position]) for position in self._positions],)


def _restore_large_records(records: list[tuple[int, bytes]]) -> _LargeRecords:
    """Rebuild the storage after pickling from pairs of position and bytes."""
    made = _LargeRecords()
    for position, raw in records:
        made.put(position, raw)
    return made


class Packed(Sequence[Record], Generic[Record]):
    """A sequence of structs or dataclasses of one type, to which records can be appended."""

    def __init__(self, kind: type[Record], records: Iterable[Record] = ()) -> None:
        self._kind = kind
        #: Blocks of encoded records, and the block that is being filled.
        self._blocks: list[bytes] = []
        self._open_block = bytearray()
        #: End offset of each record, counted over all blocks.
        self._ends = array("Q", [0])
        #: Records with text that UTF-8 cannot represent (a file name, say), by position.
        self._unencodable: dict[int, Record] = {}
        self._large = _LargeRecords()
        self.extend(records)

    def append(self, record: Record) -> None:
        """Encode a record and store it at the end."""
        before = len(self._open_block)
        try:
            _encoder.encode_into(record, self._open_block, before)
        except UnicodeEncodeError:
            self._unencodable[len(self)] = record
            del self._open_block[before:]
        if len(self._open_block) - before >= _LARGE_BYTES:
            self._large.put(len(self), bytes(self._open_block[before:]))
            del self._open_block[before:]
        self._ends.append(self._ends[-1] + len(self._open_block) - before)
        if len(self) % _BLOCK_RECORDS == 0:
            self._blocks.append(bytes(self._open_block))
            self._open_block.clear()

    def extend(self, records: Iterable[Record]) -> None:
        """Append records in their order."""
        for record in records:
            self.append(record)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[Record]:
        decode = msgspec.msgpack.Decoder(self._kind).decode
        for number, stored in enumerate((*self._blocks, bytes(self._open_block))):
            first = number * _BLOCK_RECORDS
            before, *ends = self._ends[first : first + _BLOCK_RECORDS + 1]
            start = 0
            for position, length in enumerate(ends, first):
                end = length - before
                if position in self._unencodable:
                    yield self._unencodable[position]
                else:
                    yield decode(self._large[position] if position in self._large else stored[start:end])
                start = end

    @overload
    def __getitem__(self, position: int) -> Record: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[Record]: ...

    def __getitem__(self, position: int | slice) -> Record | Sequence[Record]:
        if isinstance(position, slice):
            return tuple(self[at] for at in range(len(self))[position])
        at = range(len(self))[position]
        if at in self._unencodable:
            return self._unencodable[at]
        if at in self._large:
            return msgspec.msgpack.decode(self._large[at], type=self._kind)
        number = at // _BLOCK_RECORDS
        start = self._ends[number * _BLOCK_RECORDS]
        stored = self._blocks[number] if number < len(self._blocks) else self._open_block
        return msgspec.msgpack.decode(stored[self._ends[at] - start : self._ends[at + 1] - start], type=self._kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Packed({list(self)!r})"

    __hash__ = None  # type: ignore[assignment]  # it can be appended to
