"""Files and folders that look older than they are, as `gc` asks for."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from planted_v2 import (
    NEW_BASE,
    OLD,
    OTHER,
    index,
    run_sql,
)

KNOWLEDGE = "KnowledgeBase"


def aged(path: Path) -> Path:
    """Make a file, or a folder and all in it, old."""
    for one in (*path.rglob("*"), path):
        os.utime(one, (OLD, OLD), follow_symlinks=os.utime not in os.supports_follow_symlinks)
    return path


def a_folder_of_nobody(target: Path) -> None:
    folder = target / KNOWLEDGE / NEW_BASE
    shutil.copytree(target / KNOWLEDGE / OTHER, folder)
    run_sql(index(target, NEW_BASE), f"UPDATE meta SET base_id = '{NEW_BASE}'")
    aged(folder)
