"""Room on disks, looked at before anything is copied: what does not fit is refused, not begun."""

from __future__ import annotations

import shutil
from pathlib import Path

from regraft.errors import WorkFolderTooSmall
from regraft.report.progress import human_bytes


def demand_room(folder: Path, needed: int) -> None:
    """Refuse to write more into a temporary folder than fits there.

    Raises:
        WorkFolderTooSmall
    """
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkFolderTooSmall(path=folder, needed=human_bytes(needed), free=human_bytes(free))
