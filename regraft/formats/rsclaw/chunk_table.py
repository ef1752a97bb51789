"""The chunks of a KB as a table that a migration reads, and an export (``docs/formats/rsclaw.md``, "What is carried").

A row has the text that its vector is of, and the vector as float32. One that is not carried has a reason, and neither
vector nor, but for reasons that are about the vector alone, text.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import sqlite
from regraft.errors import NotEnoughSpace
from regraft.formats.redb import read_redb
from regraft.formats.rsclaw import carrying, database, rows, selection
from regraft.formats.rsclaw.carrying import Choice
from regraft.formats.rsclaw.scope import Scope
from regraft.formats.rsclaw.selection import Verdict
from regraft.formats.rsclaw.vectors import NotNumbers, float32_bytes
from regraft.formats.vector_table import VectorTable
from regraft.ledger import durable
from regraft.report.progress import human_bytes

#: Reasons of rows of which a report tells nothing but how many they are: they may be of documents that are hidden.
_UNNAMED = frozenset({Verdict.NOT_VISIBLE, carrying.UNMAPPED, carrying.ROW_UNREADABLE})
#: How :func:`written` lays the chunks out.
TABLE = VectorTable(
    name="chunks",
    loader=(("doc_id", "doc_id"),),
    source=(("source", "source"),),
    row_id=(("id", "id"),),
    body="body",
    vector="vector",
    needed=("id", "doc_id", "body", "vector", "reason"),
    reason="reason",
)
_COLUMNS = "id TEXT, doc_id TEXT, seq INTEGER, title TEXT, path TEXT, source TEXT, body TEXT, vector, reason TEXT"
_BATCH = 200


class Chunks(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of a KB as a table in a file: whose vectors they have, and what is damaged."""

    path: Path
    choice: Choice
    damaged_pages: int
    #: Chunks that lie in damaged pages.
    lost: int


#: Where a chunk goes, why it is not carried, and its document's title, file and source.
_PLACE = f"""SELECT p.row, p.reason, d.title, d.md_path, {selection.SOURCE}
               FROM placed p LEFT JOIN doc d ON d.id = ?2 WHERE p.id = ?1"""


@contextmanager
def written(path: Path, work: Path | None, scope: Scope) -> Iterator[Chunks]:
    """Write the chunks of a KB to a temporary file with the table :data:`TABLE`, and remove it at the end.

    Args:
        path: the KB's database.
        work: the folder that the file lies in (default: the system's).
        scope: who may see what is carried.

    Raises:
        RedbError: the database is in use, of another format, or damaged as a whole.
        NotEnoughSpace: there is no room.
        OSError: it cannot be read, or the file cannot be written.
    """
    with durable.temporary_folder(work) as folder, database.mirrored(path, carrying.TABLES) as mirror:
        _demand_room(folder, path.stat().st_size)
        choice = carrying.choose(mirror, path.parent, scope)
        place = folder / "chunks.sqlite"
        with sqlite.writing(place, create=True) as db:
            # It is thrown away whatever happens.
            db.execute("PRAGMA journal_mode = OFF").fetchall()
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"CREATE TABLE chunks ({_COLUMNS})")
            with sqlite.transaction(db), read_redb(path, on_damage=lambda _: None, state=mirror.state) as file:
                if rows.CHUNKS in file.tables:
                    _write(db, file.raw_rows(rows.CHUNKS), mirror.db)
        yield Chunks(
            path=place,
            choice=choice,
            damaged_pages=mirror.damaged_pages,
            lost=mirror.tables[rows.CHUNKS].lost,
        )


def _demand_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotEnoughSpace(path=folder, needed=human_bytes(needed), free=human_bytes(free))


def _write(db: apsw.Connection, chunks: Iterator[tuple[bytes, bytes]], mirror: apsw.Connection) -> None:
    waiting: list[tuple[Any, ...]] = []
    unreadable = int(str(mirror.execute("SELECT coalesce(max(row), 0) FROM placed").get))
    for _, value in chunks:
        try:
            chunk = rows.decode_chunk(value)
            placed: Any = mirror.execute(_PLACE, (chunk.id, chunk.doc_id)).fetchone()
        except msgspec.MsgspecError:
            placed = None
        if placed is None:
            unreadable += 1
            waiting.append((unreadable, None, *[None] * 7, carrying.ROW_UNREADABLE))
        else:
            row, reason, *about = placed
            key, doc = (None, None) if reason in _UNNAMED else (chunk.id, chunk.doc_id)
            waiting.append((row, key, doc, chunk.seq, *about, *_carried(chunk, reason)))
        if len(waiting) == _BATCH:
            _insert(db, waiting)
    _insert(db, waiting)
    _add_missing(db, mirror, unreadable)


def _add_missing(db: apsw.Connection, mirror: apsw.Connection, last: int) -> None:
    """Add a row without a document for every chunk that the first reading of the database gave and this one did not.

    Args:
        db: the table of chunks.
        mirror: what the first reading gave.
        last: the highest number that a row has.
    """
    rows_of_first: Any = mirror.execute("SELECT row FROM placed ORDER BY row")
    missing = (
        row for (row,) in rows_of_first if db.execute("SELECT 1 FROM chunks WHERE rowid = ?", (row,)).get is None
    )
    for number, _ in enumerate(missing, last + 1):
        _insert(db, [(number, None, None, *[None] * 6, carrying.ROW_UNREADABLE)])


def _insert(db: apsw.Connection, waiting: list[tuple[Any, ...]]) -> None:
    columns = "rowid, id, doc_id, seq, title, path, source, body, vector, reason"
    db.executemany(f"INSERT INTO chunks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", waiting)
    waiting.clear()


def _carried(chunk: rows.Chunk, reason: Any) -> tuple[str | None, bytes | str | None, Any]:
    """Return the text, the vector and the reason of a chunk's row."""
    if reason is not None:
        return (chunk.indexed_text if reason in carrying.OF_VECTOR else None), None, reason
    return chunk.indexed_text, _vector(chunk), None


def _vector(chunk: rows.Chunk) -> bytes | str | None:
    """Return a vector as a migration takes it: text where it is not one of numbers, None where it is empty."""
    try:
        return float32_bytes(chunk.vector) or None
    except NotNumbers:
        return bytes(chunk.vector)[:20].decode("utf-8", "replace")
