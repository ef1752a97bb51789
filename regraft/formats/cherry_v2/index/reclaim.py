"""Gives space back after large deletes (``docs/formats/index.md``, "How the store behaves")."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import apsw
import msgspec

from regraft.errors import FullTextOutOfStep
from regraft.formats.cherry_v2.index.full_text import is_in_step

#: VACUUM pays from this share of free pages on …
FREE_SHARE = 0.2
#: … and from so many bytes in them.
FREE_BYTES = 8 << 20

Vacuum = Literal["auto", "always", "never"]


class Reclaimed(msgspec.Struct, frozen=True, kw_only=True):
    """What a reclaim came to: sizes of the file in bytes, what was free in it, and whether it was vacuumed."""

    bytes_before: int
    bytes_after: int
    free_bytes: int
    vacuumed: bool


def reclaim(db: apsw.Connection, path: Path, vacuum: Vacuum) -> Reclaimed:
    """Optimize the full-text index, work the log in, and VACUUM where that pays (or always, or never).

    The full-text index is compared with the bodies before and after: it is keyed on ``fts_rowid``, which VACUUM
    must leave alone.

    Raises:
        FullTextOutOfStep: it does not match them; before anything was done, or afterwards.
        apsw.Error: the file is in use, or cannot be written.
    """
    _demand_in_step(db, path, "before")
    before, _ = sizes(db)
    db.execute("INSERT INTO search_text_fts (search_text_fts) VALUES ('optimize')")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    whole, free = sizes(db)
    vacuumed = vacuum == "always" or (vacuum == "auto" and pays(whole, free))
    if vacuumed:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        _demand_in_step(db, path, "after")
    after, _ = sizes(db)
    return Reclaimed(bytes_before=before, bytes_after=after, free_bytes=free, vacuumed=vacuumed)


def pays(size: int, free: int) -> bool:
    """Tell whether VACUUM pays for a database of so many bytes, so many of them free."""
    return free >= FREE_BYTES and free >= FREE_SHARE * size


def sizes(db: apsw.Connection) -> tuple[int, int]:
    """Return the size of the database and of its free pages, in bytes."""
    page, pages, free = (db.execute(f"PRAGMA {name}").get for name in ("page_size", "page_count", "freelist_count"))
    return page * pages, page * free


def _demand_in_step(db: apsw.Connection, path: Path, when: str) -> None:
    if not is_in_step(db):
        raise FullTextOutOfStep(path=path, when=when)
