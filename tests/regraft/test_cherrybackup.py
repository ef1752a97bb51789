"""Backups in the format that is drafted for later releases: they are recognized, and refused with what to do."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from faults import untouched
from harness import run
from profiles import profile


def backup(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"version": 1}))
        archive.writestr("backup.sqlite", b"SQLite format 3\0")
    return path


@pytest.mark.parametrize("name", ["mine.cherrybackup", "MINE.CherryBackup", "renamed.zip"])
@pytest.mark.parametrize("command", ["inspect", "check", "migrate", "install", "export"])
def test_such_a_backup_is_refused_with_what_to_do(name: str, command: str, tmp_path: Path) -> None:
    path = backup(tmp_path / name)
    more = {
        "migrate": ("--to", tmp_path / "library"),
        "install": ("--profile", profile(tmp_path / "profile")),
        "export": (tmp_path / "out.parquet",),
    }.get(command, ())
    with untouched(tmp_path):
        outcome = run(command, path, *more, "--json")
    assert (outcome.status, outcome.document["error"]["code"]) == (2, "BackupTooNew")
    message = outcome.document["error"]["message"]
    assert name in message
    assert "restore the backup in the application that wrote it and give the profile folder" in message


def test_whatever_is_in_a_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "half.cherrybackup"
    path.write_bytes(b"\0 nothing that anybody knows")
    assert run("inspect", path, "--json").document["error"]["code"] == "BackupTooNew"
    assert run("inspect", tmp_path / "none.cherrybackup", "--json").document["error"]["code"] == "SourceNotFound"
