"""Checksums of files, computed in a background thread, and without reading the holes of sparse files.

A sparse file of a terabyte may use no disk space. Reading it takes as long as if it did, and a copy uses the space;
files that are read as a whole must therefore consist mostly of data.
"""

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

#: Chunks that may wait in memory for the thread.
_BEHIND = 2

Update = Callable[[bytes], object]


@contextmanager
def update_in_background(update: Update) -> Iterator[Update]:
    """Yield a function that passes chunks to ``update``, in order, in another thread.

    When the context ends, all chunks are processed. An exception of ``update`` is raised then, or by a later call.
    """
    pending: deque[Future[object]] = deque()
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="regraft-hash") as pool:

        def add(chunk: bytes) -> None:
            """Queue a chunk for the thread; wait while too many are queued."""
            if len(pending) >= _BEHIND:
                pending.popleft().result()
            pending.append(pool.submit(update, chunk))

        yield add
        while pending:
            pending.popleft().result()


#: A sparse file is read if its holes are at most this many bytes plus this many times its data.
FREE_BYTES = 64 << 20
DATA_FACTOR = 4
_READ_BYTES = 1 << 20
_POLYNOMIAL = 0xEDB88320


def refuse_sparse_file(descriptor: int) -> None:
    """Raise if an open file consists mostly of holes. The cost does not depend on the size of the file.

    Raises:
        OSError
    """
    status = os.fstat(descriptor)
    # Compressed files use fewer blocks than their size, so ask for the holes only if few blocks are used.
    if _has_enough_data(getattr(status, "st_blocks", status.st_size) * 512, status.st_size):
        return
    data = 0
    for begin, end in data_ranges(descriptor, status.st_size):
        data += end - begin
        if _has_enough_data(data, status.st_size):
            return
    message = tr(
        "only {data} of its {size} are data, the rest are holes",
        size=format_bytes(status.st_size),
        data=format_bytes(data),
    )
    raise OSError(errno.EINVAL, message)


def _has_enough_data(data: int, size: int) -> bool:
    """Whether a file of ``size`` bytes does not consist mostly of holes if ``data`` bytes are outside of holes."""
    return size <= FREE_BYTES + DATA_FACTOR * data


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the ranges of an open file that are not holes, in order.

    Yields the whole file, of ``size`` bytes, if the system cannot tell where its holes are.
    """
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: only a hole up to the end. Other errors: the file system does not report holes.
            if error.errno != errno.ENXIO:
                yield end, size
            return
        yield begin, min(end, size)


def file_crc32(file: BinaryIO) -> int:
    """Return the CRC-32 of a whole file; its holes count as zeros without being read."""
    descriptor = file.fileno()
    size = os.fstat(descriptor).st_size
    value = at = 0
    has_holes = getattr(os.fstat(descriptor), "st_blocks", size) * 512 < size
    for begin, end in list(data_ranges(descriptor, size)) if has_holes else [(0, size)]:
        value = _append_zeros(value, begin - at)
        file.seek(begin)
        left = end - begin
        while left and (chunk := file.read(min(left, _READ_BYTES))):
            value = zlib.crc32(chunk, value)
            left -= len(chunk)
        at = end - left
        if left:
            return value
    return _append_zeros(value, size - at)


def _append_zeros(value: int, count: int) -> int:
    """Return the CRC-32 of bytes whose CRC-32 is ``value``, followed by ``count`` zero bytes, in O(log count).

    One zero bit multiplies the CRC register with a matrix; more zero bits multiply it with a power of the matrix.
    """
    if not count:
        return value
    matrix = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    register = value ^ 0xFFFFFFFF
    bits = 8 * count
    while bits:
        if bits & 1:
            register = _multiply_matrix(matrix, register)
        matrix = [_multiply_matrix(matrix, column) for column in matrix]
        bits >>= 1
    return register ^ 0xFFFFFFFF


def _multiply_matrix(columns: list[int], register: int) -> int:
    """Multiply a matrix over GF(2), given by its ``columns``, with the bits of a CRC register."""
    result = bit = 0
    while register:
        if register & 1:
            result ^= columns[bit]
        register >>= 1
        bit += 1
    return result
