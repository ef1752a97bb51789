"""Starts the processes that help to carry a large base while the command line is still being loaded.

It looks at the words of the command line alone, and may be wrong: processes that nobody takes end with the command.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

#: From so many bytes on, a vector file has texts enough that several processes carry it faster than one.
LARGE_FILE_BYTES = 64 << 20
#: Where a source has its vector files.
_FOLDERS = (Path("KnowledgeBase"), Path("Data", "KnowledgeBase"))
#: So many files of a folder are looked at.
_MOST_FILES = 1000
#: What those need who carry a base.
_MODULES = ("regraft.processes.pool", "regraft.disk.trees", "regraft.formats.fts5.segment")


@contextmanager
def prestart_helpers(arguments: Sequence[str]) -> Iterator[None]:
    """Start processes where a command line is going to need them, and end those that it has not taken.

    A stop ends them with this process.

    Args:
        arguments: the command and what follows it.
    """
    with ExitStack() as stack:
        if _carries_a_large_base(arguments):
            # Every other command line would load it in vain.
            from regraft.processes import pool  # noqa: PLC0415

            # Where none can be started, who needs one will find out why. Without a working directory they would be in
            # another one, and this process with them.
            with suppress(OSError):
                os.getcwd()  # noqa: PTH109 - asked as a process that is started asks
                if pool.can_use_pool():
                    stack.enter_context(pool.prestart_workers(pool.pool_size(), _MODULES))
        yield


def _carries_a_large_base(arguments: Sequence[str]) -> bool:
    is_to_write = arguments[:1] == ["migrate"] and "--dry-run" not in arguments
    return is_to_write and any(map(_has_large_file, arguments[1:]))


def _has_large_file(word: str) -> bool:
    """Tell whether a word names a source with a large vector file."""
    for folder in _FOLDERS:
        with suppress(OSError, ValueError), os.scandir(Path(word) / folder) as entries:
            if any(entry.stat().st_size >= LARGE_FILE_BYTES for entry in islice(entries, _MOST_FILES)):
                return True
    return False
