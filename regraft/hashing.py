"""Checksums of large files: computed in a thread of their own while the next bytes are read and written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

#: How many chunks a thread may be behind: so many are held in memory.
_BEHIND = 2

Update = Callable[[bytes], object]


@contextmanager
def in_background(update: Update) -> Iterator[Update]:
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
