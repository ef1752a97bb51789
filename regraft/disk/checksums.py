"""Checksums of large files: computed in a thread of their own while the next bytes are read and written."""

from __future__ import annotations

import errno
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO

from regraft.language import tr
from regraft.text import format_bytes

#: How many chunks a thread may be behind: so many are held in memory.
_BEHIND = 2

Update = Callable[[bytes], object]


@contextmanager
def update_in_background(update: Update) -> Iterator[Update]:
    """Give a function that has ``update`` called on chunk after chunk, in their order, by another thread.

    At the end of the context all chunks are worked in. What ``update`` raises surfaces there, or at a later chunk.
    """
    pending: deque[Future[object]] = deque()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="regraft-hash") as pool:

        def add(chunk: bytes) -> None:
            if len(pending) >= _BEHIND:
                pending.popleft().result()
            pending.append(pool.submit(update, chunk))

        yield add
        while pending:
            pending.popleft().result()


# Holes in files: bytes that a file says it has and that are nowhere on the disk.
#
# A file of a terabyte may take no room at all. Reading it takes as long as if it did, and a copy takes the room: what is
# read whole must be there for the most part.


#: A file is read whole where at most this many bytes are holes, besides this many times its data.
FREE_BYTES = 64 << 20
DATA_FACTOR = 4
_READ_BYTES = 1 << 20
_POLYNOMIAL = 0xEDB88320


def refuse_sparse_file(descriptor: int) -> None:
    """Refuse a file that is holes for the most part. How much of it is read does not hang on its size.

    Raises:
        OSError
    """
    status = os.fstat(descriptor)
    # What a file system packs takes less than it is; only where there is little the file is asked for its holes.
    if _is_enough(getattr(status, "st_blocks", status.st_size) * 512, status.st_size):
        return
    data = 0
    for begin, end in data_ranges(descriptor, status.st_size):
        data += end - begin
        if _is_enough(data, status.st_size):
            return
    raise OSError(errno.EINVAL, _said(data, status.st_size))


def _is_enough(data: int, size: int) -> bool:
    return size <= FREE_BYTES + DATA_FACTOR * data


def _said(data: int, size: int) -> str:
    return tr(
        "of its {size} only {data} are there, the rest are holes", size=format_bytes(size), data=format_bytes(data)
    )


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of what is there of a file, in order; all of it where the system does not tell."""
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: nothing but a hole up to the end. Else the file system knows nothing of holes.
            if error.errno != errno.ENXIO:
                yield end, size
            return
        yield begin, min(end, size)


def file_crc32(file: BinaryIO) -> int:
    """Return the CRC-32 of a whole file; its holes count as zeros without being read."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    value = at = 0
    for begin, end in list(data_ranges(descriptor, size)) if _has_holes(descriptor) else [(0, size)]:
        value = _with_zeros(value, begin - at)
        file.seek(begin)
        left = end - begin
        while left and (chunk := file.read(min(left, _READ_BYTES))):
            value = zlib.crc32(chunk, value)
            left -= len(chunk)
        at = end - left
        if left:
            return value
    return _with_zeros(value, size - at)


def _has_holes(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return getattr(status, "st_blocks", status.st_size) * 512 < status.st_size


def _with_zeros(value: int, count: int) -> int:
    """Return a CRC-32 to which so many zero bytes are added: a power of the step that one zero bit makes."""
    if not count:
        return value
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    register = value ^ 0xFFFFFFFF
    bits = 8 * count
    while bits:
        if bits & 1:
            register = _applied(step, register)
        step = [_applied(step, row) for row in step]
        bits >>= 1
    return register ^ 0xFFFFFFFF


def _applied(step: list[int], register: int) -> int:
    result = bit = 0
    while register:
        if register & 1:
            result ^= step[bit]
        register >>= 1
        bit += 1
    return result
