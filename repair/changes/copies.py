"""Copies of SQLite files: page by page, as their readers see them, and proven where somebody may need them."""

from __future__ import annotations

from pathlib import Path

import apsw

from regraft import sqlite
from regraft.language import tr
from regraft.ledger import durable
from regraft.move_errors import CopyDiffers

#: Pages copied at once.
_PAGES = 4_096
#: What SQLite's check says of rows that their own table would refuse, and of indexes that are no pages of the file.
_OWN_AFFAIRS = ("CHECK constraint", "NULL value in", "value in", "FTS", "virtual table")


def copy_database(path: Path, new: Path) -> None:
    """Copy a SQLite file page by page as its readers see it now, with what its log holds.

    Raises:
        apsw.Error: it cannot be read or written.
    """
    with sqlite.reading(path) as source:
        _copy_pages(source, new)


def _copy_pages(source: apsw.Connection, new: Path) -> None:
    with sqlite.writing(new, create=True) as copy, copy.backup("main", source, "main") as backup:
        while not backup.done:
            backup.step(_PAGES)


def back_up(path: Path, new: Path) -> None:
    """Copy a SQLite file that this process has locked, and prove the copy.

    Raises:
        CopyDiffers: the copy is damaged.
        apsw.Error, OSError: it cannot be read or written.
    """
    durable.make_folders(new.parent)
    # Another way than SQLite's of closing the file would let go of the lock.
    with sqlite.writing(path) as source:
        pages = source.execute("PRAGMA page_count").get
        _copy_pages(source, new)
    with sqlite.reading(new) as copy:
        damage = damage_of(copy)
        if copy.execute("PRAGMA page_count").get != pages:
            damage = tr("pages are missing")
    if damage is not None:
        raise CopyDiffers(path=new, reason=damage)
    durable.sync_file(new)
    durable.sync_folder(new.parent)


def table_damage_of(db: apsw.Connection) -> str | None:
    """Return what is wrong with the tables of an index by SQLite's own check; None where nothing is.

    Full-text tables are left out: they follow from the others, and reading them takes longer than all the rest.

    Raises:
        apsw.Error: it is too damaged to be checked.
    """
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' ORDER BY name"
    tables = [(str(name), str(sql)) for name, sql in db.execute(query)]
    virtual = tuple(name for name, sql in tables if sql.upper().startswith("CREATE VIRTUAL"))
    for name, _ in tables:
        if not name.startswith(virtual) and not name.startswith("sqlite_"):
            damage = _damage(db, f"quick_check({sqlite.quoted(name)})")
            if damage is not None:
                return damage
    return None


def damage_of(db: apsw.Connection) -> str | None:
    """Return what is wrong with a file by SQLite's own check; None where nothing is.

    What rows and full-text indexes say is the application's own affair.

    Raises:
        apsw.Error: it is too damaged to be checked.
    """
    return _damage(db, "quick_check")


def _damage(db: apsw.Connection, check: str) -> str | None:
    for (found,) in db.execute(f"PRAGMA {check}"):
        message = str(found)
        if message != "ok" and not any(word in message for word in _OWN_AFFAIRS):
            return message
    return None
