"""Backups of v2 profiles, made as the application makes them."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

RESOURCES = {
    "database": False,
    "cache": True,
    "indexedDB": True,
    "localStorage": True,
    "appClaude": False,
    "data": True,
}
SLIM = {"indexedDB": False, "localStorage": False}


def backup(installed: Path, folder: Path, **resources: Any) -> Path:
    """Make an unpacked backup of a profile, as the application does: its database without a log."""
    shutil.copytree(installed / "Data", folder / "Data")
    with closing(apsw.Connection(str(installed / "cherrystudio.sqlite"))) as db:
        db.execute("VACUUM INTO ?", (str(folder / "Data" / "cherrystudio.sqlite"),))
    (folder / "cache.json").write_text("{}")
    (folder / "Data" / "Files" / "upload.txt").write_text("no base's")
    (folder / "Data" / "KnowledgeBase" / "left-of-v1").write_bytes(b"SQLite format 3\0" + bytes(200))
    metadata = {"version": 7, "timestamp": 1, "appName": "a", "resources": {**RESOURCES, **resources}}
    (folder / "metadata.json").write_text(json.dumps(metadata), "utf-8")
    return folder


def full(installed: Path, folder: Path) -> Path:
    return backup(installed, folder)
