"""Ctrl-C, where it must not come in the middle."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_back() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of what must not be torn, such as a transaction and the note that it was made.

    Python raises KeyboardInterrupt in the main thread between any two steps, also right after a commit. Where another
    program has its own way with the signal, or in another thread, this does nothing.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
