"""Many records in little memory: a sequence that holds each as a few bytes and makes it anew when it is asked for.

A base may have a million items, and as objects they would take a gigabyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

import msgspec

Record = TypeVar("Record")
_encoder = msgspec.msgpack.Encoder()
#: Records whose bytes are kept together.
_TOGETHER = 256


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
        self.extend(records)

    def append(self, record: Record) -> None:
        """Add a record at the end."""
        before = len(self._last)
        try:
            _encoder.encode_into(record, self._last, before)
        except UnicodeEncodeError:
            self._whole[len(self)] = record
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
                yield self._whole[position] if position in self._whole else decode(stored[start:end])
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
        return msgspec.msgpack.decode(self._bytes_of(at), type=self._kind)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"Packed({list(self)!r})"

    __hash__ = None  # type: ignore[assignment]  # it can be appended to
