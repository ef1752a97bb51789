"""How much memory a library is going to take, and how much there is (``docs/fleet.md``, "Large libraries")."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

#: What a process takes whatever it works on, and each one that helps it, in bytes.
_OF_A_PROCESS, _OF_A_HELPER = 160 << 20, 64 << 20
#: Of so many bytes of a source, one more is taken: what SQLite and FTS5 hold of it.
_SHARE = 50
#: So much of the memory is left to everything else.
_LEFT = 0.1


def planned(source_bytes: int, cores: int) -> int:
    """Return how many bytes of memory a library takes at most, by its source's size and the cores that it has."""
    return _OF_A_PROCESS + _OF_A_HELPER * (cores - 1) + source_bytes // _SHARE


def available() -> int:
    """Return how many bytes of memory there are for more processes; 1 TiB where the system does not say so."""
    found = [size for size in (_of_the_machine(), _of_the_group()) if size is not None]
    return int(min(found, default=1 << 40) * (1 - _LEFT))


def _of_the_machine() -> int | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _of_the_group() -> int | None:
    """Return what the control group that a container is still allows, where it has a limit."""
    group = Path("/sys/fs/cgroup")
    for folder, most, used, idle in (
        (group, "memory.max", "memory.current", "inactive_file"),
        (group / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        with suppress(OSError, ValueError, KeyError):
            of_files = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            # What was read of files is given up where memory is wanted.
            taken = int((folder / used).read_text()) - int(of_files[idle])
            return int((folder / most).read_text()) - taken
    return None
