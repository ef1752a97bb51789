"""Giving the free space in index files back to the disk: no row changes, so that there is nothing to take back."""

from __future__ import annotations

from pathlib import Path

import apsw
from msgspec import structs

from regraft import sqlite
from regraft.errors import StoreBusy
from regraft.formats.cherry_v2.index.reclaim import reclaim
from regraft.language import tr
from regraft.records import replace
from regraft.report.progress import human_bytes
from repair.changes.plan import Reclaim


def give_back(root: Path, planned: Reclaim) -> Reclaim:
    """Give the free space of one file back, and return what that came to.

    Raises:
        StoreBusy: another program has it open.
        FullTextOutOfStep: its full-text index does not match its bodies.
        apsw.Error: the system stopped it; the file is as it was.
    """
    path = root / planned.path
    try:
        with sqlite.writing(path) as db:
            done = reclaim(db, path, "always")
    except apsw.BusyError as error:
        raise StoreBusy(path=path) from error
    before, after = human_bytes(done.bytes_before), human_bytes(done.bytes_after)
    message = tr(
        "gave free space in the index file back to the disk: it had {before}, it has {after}",
        before=before,
        after=after,
    )
    freed = max(done.bytes_before - done.bytes_after, 0)
    return replace(planned, action=structs.replace(planned.action, message=message, bytes=freed))
