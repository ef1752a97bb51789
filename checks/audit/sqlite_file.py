"""What keeps a file from being opened as a database of SQLite."""

from __future__ import annotations

from pathlib import Path

from regraft import links, long_paths, sqlite
from regraft.language import tr
from regraft.text import counted


def problem_with(path: Path) -> str | None:
    """Return why a file cannot be opened as a database, for a person; None where it can."""
    try:
        if not long_paths.is_file(path):
            return tr("it is not a file")
        with links.reading(path) as file:
            start = file.read(16)
        if start != sqlite.MAGIC:
            return tr("it is empty") if not start else tr("it is not a SQLite file")
        # A log or journal may bring what is missing.
        lost = 0 if sqlite.companions(links.real_path(path)) else sqlite.missing_bytes(path)
    except (OSError, ValueError) as error:
        return str(error)
    return tr("{bytes} at its end are missing", bytes=counted(lost, "byte")) if lost else None
