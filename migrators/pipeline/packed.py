"""Many records in little memory: a sequence that holds each as a few bytes and makes it anew when it is asked for.

A base may have a million items, and as objects they would take a gigabyte. Where large ones, such as notes with their
text, come to much, they lie in a temporary file.
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
#: Records whose bytes are kept together.
_TOGETHER = 256
#: From so many bytes on a record is a large one; so many bytes of large ones are held in memory.
_LARGE_BYTES, _HELD_BYTES = 1 << 12, 8 << 20


class _LargeRecords:
    """The bytes of large records by their positions, which rise."""

    def __init__(self) -> None:
        self._positions = array("Q")
        self._held: dict[int, bytes] = {}
        self._held_bytes = 0
        self._file = ExitStack()
        self._db: apsw.Connection | None = None

    def __contains__(self, position: int) -> bool:
        at = bisect_left(self._positions, position)
        return at < len(self._positions) and self._positions[at] == position

    def put(self, position: int, raw: bytes) -> None:
        """Keep the bytes of a record."""
        self._positions.append(position)
        if self._db is not None:
            self._db.execute("INSERT INTO record VALUES (?, ?)", (position, raw))
            return
        self._held[position] = raw
        self._held_bytes += len(raw)
        if self._held_bytes > _HELD_BYTES:
            db = self._file.enter_context(sqlite.open_scratch())
            # Nobody reads it after a crash.
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
        return _large_records, ([(position, self[position]) for position in self._positions],)


def _large_records(records: list[tuple[int, bytes]]) -> _LargeRecords:
    made = _LargeRecords()
    for position, raw in records:
        made.put(position, raw)
    return made


class Packed(Sequence[Record], Generic[Record]):
    """A sequence of structs or dataclasses of one kind, which can be appended to."""

    def __init__(self, kind: type[Record], records: Iterable[Record] = ()) -> None:
        self._kind = kind
        #: Of every so many records their bytes, one after the other, and those of the last ones.
        self._full: list[bytes] = []
        self._last = bytearray()
        #: Where each ends among the bytes of all.
        self._ends = array("Q", [0])
        #: Those with text that UTF-8 has no way to write, a name on a disk say; by their positions.
        self._whole: dict[int, Record] = {}
        self._large = _LargeRecords()
        self.extend(records)

    def append(self, record: Record) -> None:
        """Add a record at the end."""
        before = len(self._last)
        try:
            _encoder.encode_into(record, self._last, before)
        except UnicodeEncodeError:
            self._whole[len(self)] = record
            del self._last[before:]
        if len(self._last) - before >= _LARGE_BYTES:
            self._large.put(len(self), bytes(self._last[before:]))
            del self._last[before:]
        self._ends.append(self._ends[-1] + len(self._last) - before)
        if len(self) % _TOGETHER == 0:
            self._full.append(bytes(self._last))
            self._last.clear()

    def extend(self, records: Iterable[Record]) -> None:
        """Add records at the end, in their order."""
        for record in records:
            self.append(record)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _bytes_of(self, position: int) -> bytes | bytearray:
        number = position // _TOGETHER
        start = self._ends[number * _TOGETHER]
        stored = self._full[number] if number < len(self._full) else self._last
        return stored[self._ends[position] - start : self._ends[position + 1] - start]

    def __iter__(self) -> Iterator[Record]:
        decode = msgspec.msgpack.Decoder(self._kind).decode
        for number, stored in enumerate((*self._full, bytes(self._last))):
            first = number * _TOGETHER
            before, *ends = self._ends[first : first + _TOGETHER + 1]
            start = 0
            for position, length in enumerate(ends, first):
                end = length - before
                if position in self._whole:
                    yield self._whole[position]
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
        if at in self._whole:
            return self._whole[at]
        raw = self._large[at] if at in self._large else self._bytes_of(at)
        return msgspec.msgpack.decode(raw, type=self._kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Packed({list(self)!r})"

    __hash__ = None  # type: ignore[assignment]  # it can be appended to
