"""Room on disks, looked at before anything is copied: what does not fit is refused, not begun."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from regraft import holes, links
from regraft.errors import WorkFolderTooSmall
from regraft.ledger import durable
from regraft.report.progress import human_bytes


def demand_room(folder: Path, needed: int) -> None:
    """Refuse to write more into a temporary folder than fits there.

    Raises:
        WorkFolderTooSmall
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkFolderTooSmall(path=folder, needed=human_bytes(needed), free=human_bytes(free))


def demand_copies(paths: list[Path], folder: Path | None) -> None:
    """Refuse to copy files into a temporary folder (default: the system's) that are not there or do not fit.

    Raises:
        WorkFolderTooSmall
        OSError: one is holes for the most part, or cannot be read.
    """
    needed = 0
    for path in paths:
        with links.reading(path) as file:
            holes.demand_whole(file.fileno())
            needed += os.fstat(file.fileno()).st_size
    demand_room(durable.temporary_place() if folder is None else folder, needed)
