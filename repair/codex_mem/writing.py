"""Writing to codex-mem's notes so that no search by words is any different afterwards.

The application's trigger takes every UPDATE of a note for a new text: of an excluded note it deletes what the full-text
index never had, which skews all ranks for good (``docs/formats/codex_mem.md``, "Full text").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import apsw

from regraft.formats.codex_mem import database
from regraft.formats.codex_mem.database import CONTENT_VERSION, NOTES

#: About what a note's metadata take on the disk, in bytes.
SIZE = 300


@contextmanager
def metadata(db: apsw.Connection) -> Iterator[None]:
    """Let what a note's columns of migration 006 say be written, as a part of the caller's transaction.

    No trigger of the file runs meanwhile, and of an excluded note nothing but its status can be withdrawn.

    Raises:
        apsw.ConstraintError: a note is excluded.
    """
    with database.excluded_guarded(db):
        yield


def mark_ready(db: apsw.Connection, model_id: str, rows: Iterable[tuple[str, str, str]]) -> None:
    """Say of notes that they have their vector; inside :func:`metadata`.

    Args:
        db: the database, in a transaction.
        model_id: of the vectors.
        rows: of each note its id, the hash of the text that was embedded, and when that was, RFC 3339.
    """
    db.executemany(
        f"UPDATE {NOTES} SET embedding_eligible = 1, embedding_status = 'ready', embedding_model_id = ?,"
        " embedding_content_hash = ?, embedding_content_version = ?, embedded_at = ?,"
        " embedding_error_code = NULL, embedding_error_at = NULL WHERE id = ? AND searchable = 1",
        ((model_id, text_hash, CONTENT_VERSION, at, note) for note, text_hash, at in rows),
    )


def mark(db: apsw.Connection, rows: Iterable[tuple[str, str]]) -> None:
    """Give notes, by their ids, another status and nothing else; inside :func:`metadata`."""
    update = f"UPDATE {NOTES} SET embedding_status = ? WHERE id = ? AND searchable = 1"
    db.executemany(update, ((status, note) for note, status in rows))


def withdraw_status(db: apsw.Connection, notes: Iterable[str]) -> None:
    """Withdraw what excluded notes, by their ids, say of a vector; inside :func:`metadata`."""
    update = (
        f"UPDATE {NOTES} SET embedding_status = 'not_applicable', embedding_eligible = ifnull(embedding_eligible, 1)"
        " WHERE id = ? AND searchable IS NOT 1"
    )
    db.executemany(update, ((note,) for note in notes))
