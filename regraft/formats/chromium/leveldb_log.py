"""LevelDB's log format: records in blocks of 32 KiB, and the write batches in them.

The rules are in ``docs/formats/chromium.md``, "Logs". A log is streamed; one record is held at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

import crc32c

from regraft.formats.chromium.damage import Bytes, Malformed
from regraft.language import tr

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
_BATCH_HEADER = struct.Struct("<QI")
_ZERO, _FULL, _FIRST, _MIDDLE, _LAST = range(5)
DELETED, PUT = 0, 1


class Record(NamedTuple):
    """One record of a LevelDB: ``value`` is None where it deletes its key."""

    key: bytes
    sequence: int
    value: bytes | None


def masked(checksum: int) -> int:
    """Return a CRC-32C the way LevelDB stores it."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class LogReader:
    """The records of a log, in the order in which they were written.

    A cut-off end is what a killed program leaves, or half a copy: it is left out (:attr:`is_cut_off`). Damage elsewhere
    costs the rest of its block and is counted in :attr:`passed_over`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        #: Damaged places so far; right after the last record was taken.
        self.passed_over = 0
        self._parts: list[bytes] | None = None
        #: After damage, parts of a record whose beginning was lost are no second damage.
        self._resyncing = False
        #: Zeros where a record should be: an end that was only reserved, unless something follows.
        self._zeros = False
        #: Whether the last record is not whole; right after the last whole one was taken.
        self.is_cut_off = False

    def __iter__(self) -> Iterator[bytes]:
        while block := self._file.read(BLOCK_BYTES):
            yield from self._in_block(block)
        self.is_cut_off = self.is_cut_off or self._parts is not None

    def _in_block(self, block: bytes) -> Iterator[bytes]:
        at = 0
        while len(block) - at >= _HEADER.size:
            checksum, length, kind = _HEADER.unpack_from(block, at)
            end = at + _HEADER.size + length
            if kind == _ZERO and length == 0:
                # Zeros up to the end were reserved and never written; with something after them they are damage.
                self._zeros = True
                if block[at:].strip(b"\0"):
                    self._damage()
                return
            if end > len(block):
                self._end_within_part(block, at)
                return
            if masked(crc32c.crc32c(block[at + 6 : end])) != checksum:
                self._damage()
                return
            if self._zeros:
                self._damage()
            record = self._joined(kind, block[at + _HEADER.size : end])
            if record is not None:
                yield record
            at = end
        # Between whole records only the end of a whole block is left over, and that is zeros.
        self.is_cut_off = len(block) < BLOCK_BYTES and bool(block[at:].strip(b"\0"))

    def _end_within_part(self, block: bytes, at: int) -> None:
        """Take a part that reaches past its block as the log's cut-off end, or as damage."""
        if not self._zeros and _is_cut_off(block, at):
            self.is_cut_off = True
        else:
            self._damage()

    def _damage(self) -> None:
        self.passed_over += 1
        self._parts, self._resyncing, self._zeros = None, True, False

    def _joined(self, kind: int, part: bytes) -> bytes | None:
        """Return the record that ``part`` completes, None where it does not complete one."""
        if kind in (_FULL, _FIRST):
            if self._parts is not None:
                self.passed_over += 1
            self._resyncing = False
            self._parts = [part] if kind == _FIRST else None
            return part if kind == _FULL else None
        if kind not in (_MIDDLE, _LAST) or self._parts is None:
            if not self._resyncing:
                self._damage()
            return None
        self._parts.append(part)
        if kind == _MIDDLE:
            return None
        record, self._parts = b"".join(self._parts), None
        return record


def _is_cut_off(block: bytes, at: int) -> bool:
    """Tell whether a part that reaches past the end of the file can be one that was never written to its end.

    It cannot where its header makes no sense, or where whole parts come after it.
    """
    _, length, kind = _HEADER.unpack_from(block, at)
    if len(block) == BLOCK_BYTES or at + _HEADER.size + length > BLOCK_BYTES or not _FULL <= kind <= _LAST:
        return False
    return not any(_is_part(block, later) for later in range(at + 1, len(block) - _HEADER.size))


def _is_part(block: bytes, at: int) -> bool:
    if not _FULL <= block[at + 6] <= _LAST:
        return False
    checksum, length, _ = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + length
    return end <= len(block) and masked(crc32c.crc32c(block[at + 6 : end])) == int(checksum)


def batch_sequence(batch: bytes) -> int:
    """Return the sequence number of a write batch's first record; :func:`batch_records` must have taken the batch."""
    return int(_BATCH_HEADER.unpack_from(batch)[0])


def batch_records(batch: bytes, holds: Callable[[bytes], bool]) -> list[Record]:
    """Return those records of a write batch whose keys ``holds`` wants.

    Raises:
        Malformed: it is no write batch, as a whole.
    """
    if len(batch) < _BATCH_HEADER.size:
        raise Malformed(tr("a write batch is too short"))
    sequence, count = _BATCH_HEADER.unpack_from(batch)
    data = Bytes(batch, _BATCH_HEADER.size)
    found: list[Record] = []
    taken = 0
    while data.left:
        kind = data.byte()
        if kind not in (DELETED, PUT):
            raise Malformed(tr("a write batch holds a record of unknown type {kind}", kind=kind))
        key = data.sized()
        wanted = holds(key)
        value: bytes | None = None
        if kind == PUT:
            length = data.number()
            if wanted:
                value = data.take(length)
            else:
                data.skip(length)
        if wanted:
            found.append(Record(key, sequence + taken, value))
        taken += 1
    if taken != count:
        raise Malformed(tr("a write batch announces {count:,} records and holds {taken:,}", count=count, taken=taken))
    return found
