"""Rebuild the full-text index of a Chroma database from the documents that it is derived from.

The rebuild happens in a copy, which takes the place of the database in one step; ``undo`` brings the old one back.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw

from checks.angel_memory import findings as angel
from checks.angel_memory import full_text
from checks.angel_memory.full_text import CONTENT, DIFFERING, TABLE
from regraft import guarding, sqlite
from regraft.formats.angel_memory import chroma, database
from regraft.formats.angel_memory.chroma import ChromaProblem
from regraft.language import tr
from regraft.system_errors import FullTextNotRebuilt
from repair.changes.copies import copy_database
from repair.changes.plan import Action, FileChange

#: FTS5's own format, without which it does not open its tables.
_FORMAT = 4


def changes(root: Path) -> Iterator[FileChange]:
    """Yield the rebuild of every damaged full-text index."""
    for folder in database.provider_folders(root):
        try:
            with chroma.reading(folder.database) as db:
                problem = full_text.damage(db)
        except (ChromaProblem, apsw.Error, OSError):
            continue  # ``check`` reports it as unreadable; no index can be rebuilt in such a file
        if problem is None:
            continue
        name = folder.database.relative_to(root).as_posix()
        action = Action(
            action="rebuild-full-text",
            message=tr("rebuild the full-text index of {name} from its documents", name=name),
            base=None,
            subject=name,
            finding=angel.FULL_TEXT,
        )
        size = folder.database.stat().st_size
        yield FileChange(path=name, actions=(action,), make=partial(_make, folder.database), bytes=2 * size)


def _make(path: Path, new: Path) -> None:
    """Write a copy of the database at ``path`` with a sound full-text index to ``new``.

    Raises:
        FullTextNotRebuilt: FTS5 cannot rebuild it.
    """
    copy_database(path, new)
    try:
        with sqlite.writing(new) as db:
            with sqlite.transaction(db):
                _rebuild(db)
            problem = full_text.damage(db)
    except apsw.Error as error:
        raise FullTextNotRebuilt(path=path, reason=error) from error
    if problem is not None:
        raise FullTextNotRebuilt(path=path, reason=problem)


def _rebuild(db: apsw.Connection) -> None:
    with guarding.below_the_surface(db):
        db.execute(f"INSERT OR REPLACE INTO {TABLE}_config (k, v) VALUES ('version', ?)", (_FORMAT,))
        db.execute(f"INSERT OR REPLACE INTO {CONTENT} (id, c0) SELECT m.id, m.string_value {DIFFERING}")
    db.execute(f"INSERT INTO {TABLE} ({TABLE}) VALUES ('rebuild')")
