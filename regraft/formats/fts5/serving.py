"""The process that does the jobs: what NumPy makes is made here, beside the one that deals them out."""

from __future__ import annotations

import contextlib
import ctypes
import os
from multiprocessing.connection import Connection

import apsw

from regraft import sqlite
from regraft.formats.fts5.jobs import RangeJob, SortJob
from regraft.formats.fts5.records import SpliceRefused

_NICE = 10
#: Of the C library's mallopt, where it has one: what larger pieces, or more free memory, go back to the system.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 64 << 20


def begin(parent: Connection) -> None:
    """Serve in a process of its own."""
    _stand_back()
    serve(parent)


def serve(parent: Connection) -> None:
    """Do one job after the other, and answer with what was made, or with what failed."""
    from regraft.formats.fts5 import making  # noqa: PLC0415 - NumPy is loaded where it is used

    with sqlite.scratch() as db:
        sorter = making.Sorter(db)
        while True:
            job: SortJob | RangeJob = parent.recv()
            try:
                parent.send(sorter.sort(job) if isinstance(job, SortJob) else making.make_pages(job))
            except (SpliceRefused, UnicodeError, apsw.Error, OSError, MemoryError) as error:
                parent.send(str(error) or type(error).__name__)


def _stand_back() -> None:
    """Let whoever deals out the texts go first, and keep memory for the next arrays instead of giving it back."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    with contextlib.suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
            library.mallopt(option, _KEPT_BYTES)
