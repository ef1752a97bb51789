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
    """Raise if a file consists mostly of holes. The cost does not depend on its size.

    Raises:
        OSError
    """
    status = os.fstat(descriptor)
    # Compressed files use fewer blocks than their size, so ask for the holes only if few blocks are used.
    if _is_enough(getattr(status, "st_blocks", status.st_size) * 512, status.st_size):
        return
    data = 0
    for begin, end in data_ranges(descriptor, status.st_size):
        data += end - begin
        if _is_enough(data, status.st_size):
            return
    message = tr(
        "only {data} of its {size} are data, the rest are holes",
        size=format_bytes(status.st_size),
        data=format_bytes(data),
    )
    raise OSError(errno.EINVAL, message)


def _is_enough(data: int, size: int) -> bool:
    """Whether a file with so many bytes of data is not mostly holes."""
    return size <= FREE_BYTES + DATA_FACTOR * data


def data_ranges(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the parts of a file that are data, in order; all of it if the system cannot tell."""
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
    """Return the CRC-32 after ``count`` more zero bytes, in O(log count): powers of the matrix that one zero bit
    applies.
    """
    if not count:
        return value
    step = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
    register = value ^ 0xFFFFFFFF
    bits = 8 * count
    while bits:
        if bits & 1:
            register = _multiply_matrix(step, register)
        step = [_multiply_matrix(step, row) for row in step]
        bits >>= 1
    return register ^ 0xFFFFFFFF


def _multiply_matrix(step: list[int], register: int) -> int:
    """Multiply a matrix over GF(2), given by its columns, with a CRC register."""
    result = bit = 0
    while register:
        if register & 1:
            result ^= step[bit]
        register >>= 1
        bit += 1
    return result
