"""Keeping a redb file as it is (``docs/formats/redb.md``, "Reading one with Python")."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regraft import areas, links
from regraft.formats.redb.errors import RedbError, RedbInUse


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Keep every program from opening a redb file for writing, as long as this lasts; others may read it.

    redb locks a file for itself alone; a lock for reading stands in the way of that. On Windows, and where a file
    system has no locks, it is only seen whether somebody has the file open now.

    Raises:
        RedbInUse: a program has it open.
        RedbError: it cannot be opened.
    """
    try:
        descriptor = links.opened(path)
    except OSError as error:
        raise RedbError(path=path, reason=error.strerror or error) from error
    try:
        _lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        if areas.fcntl is None:
            os.read(descriptor, 1)  # what is locked is refused
        else:
            areas.fcntl.flock(descriptor, areas.fcntl.LOCK_SH | areas.fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise RedbInUse(path=path) from error
