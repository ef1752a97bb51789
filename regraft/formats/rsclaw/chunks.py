"""The chunks of a KB as a table that a migration reads, and an export (``docs/formats/rsclaw.md``, "What is carried").

A row has the text that its vector is of, and the vector as float32. One that is not carried has a reason, and neither
vector nor, but for reasons that are about the vector alone, text.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec

from regraft import identity
from regraft.disk import durable, links, sqlite
from regraft.errors import NotEnoughSpace
from regraft.formats.redb import read_redb
from regraft.formats.rsclaw import database, selection
from regraft.formats.rsclaw.database import ACTIVE, MARKDOWN, RAW, Mirror
from regraft.formats.rsclaw.selection import Scope, Verdict
from regraft.formats.rsclaw.vectors import Flaw, NotNumbers, body_of, float32_bytes
from regraft.formats.vector_table import VectorTable
from regraft.text import format_bytes

# Which chunks of a KB are carried, and why the others are not (``docs/formats/rsclaw.md``, "What is carried").
#
# All of it is asked in SQL, of the tables that :func:`regraft.formats.rsclaw.database.mirrored` gives.


#: The provider of the models that a KB's embedders become, and what its base is called.
PROVIDER, NAME = "rsclaw", "rsclaw"
#: The id of a KB, which has none of its own, and that of the base that it becomes: they hang on nothing that may go.
LEGACY_ID = "rsclaw"
BASE_ID = identity.base_id(LEGACY_ID)
#: The tables that :func:`choose` needs.
TABLES = (database.DOCS, database.LATEST, database.CHUNKS)
#: Why single chunks are not carried.
UNMAPPED, RANGE_OUTSIDE = "unmapped_loader", "range_outside"
#: The row of a chunk, or of its document, is not of its form, or lost.
ROW_UNREADABLE = "row_unreadable"
OTHER_EMBEDDER, DIMENSION_MISMATCH = "other_embedder", "dimension_mismatch"
#: What is wrong with a vector, as migrations have it; one of zeros is carried as it is.
FLAWS = {
    Flaw.EMPTY: "missing_vector_payload",
    Flaw.NOT_NUMBERS: "unsupported_vector_encoding",
    Flaw.NOT_FINITE: "non_finite_vector",
}
#: Reasons that are about the vector alone: the text can be carried.
OF_VECTOR = frozenset({OTHER_EMBEDDER, DIMENSION_MISMATCH, *FLAWS.values()})


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Whose vectors are carried, and how many numbers these have; None where no chunk is carried."""

    embedder: str | None = None
    dimensions: int | None = None


#: Only a vector of numbers has a length.
_HAS_LENGTH = f"coalesce(flaw NOT IN ('{Flaw.EMPTY}', '{Flaw.NOT_NUMBERS}'), 1)"


def choose(mirror: Mirror, root: Path, scope: Scope) -> Choice:
    """Decide for every chunk whether it is carried: into the temporary table ``placed`` (``id, row, reason``).

    ``row`` numbers chunks in the order in which they are carried: that of documents, and in each that of ``seq``.
    The temporary table ``body`` (``doc_id, size, is_same``) tells of every searched document whose file is there how
    long its body is, and whether that is the one that the document's chunks were cut from.

    Args:
        mirror: of the database, at least :data:`TABLES`.
        root: the folder of the KB.
        scope: who may see what is carried.
    """
    db = mirror.db
    selection.judge(mirror, scope)
    db.execute("CREATE TEMP TABLE body (doc_id TEXT PRIMARY KEY, size INTEGER, is_same INTEGER)")
    db.executemany("INSERT INTO body VALUES (?, ?, ?)", _bodies(db, root))
    db.execute(
        """CREATE TEMP TABLE placed AS
           SELECT c.id, row_number() OVER (ORDER BY coalesce(v.place, 1 << 62), c.doc_id, c.seq, c.id) AS row,
                  CASE WHEN v.doc_id IS NULL THEN ?1
                       WHEN v.reason IS NOT NULL THEN v.reason
                       WHEN c.status <> ?2 THEN ?3
                       WHEN c.first < 0 OR c.last < c.first OR (b.is_same AND c.last > b.size) THEN ?4 END AS reason,
                  c.embedder, c.dimensions, c.flaw
             FROM chunk c LEFT JOIN verdict v ON v.doc_id = c.doc_id LEFT JOIN body b ON b.doc_id = c.doc_id""",
        (
            UNMAPPED if mirror.is_whole(database.DOCS) else ROW_UNREADABLE,
            *(ACTIVE, Verdict.TOMBSTONED, RANGE_OUTSIDE),
        ),
    )
    db.execute("CREATE UNIQUE INDEX temp.placed_id ON placed (id)")
    return _with_reasons_of_vectors(db)


def _with_reasons_of_vectors(db: apsw.Connection) -> Choice:
    """Choose the embedder of most chunks that are carried, and give the others their reason."""
    embedder = _most(db, "embedder", "1")
    if embedder is None:
        return Choice()
    dimensions = _most(db, "dimensions", f"embedder = ?1 AND {_HAS_LENGTH}", embedder)
    db.execute(
        f"""UPDATE placed SET reason = CASE WHEN dimensions <> ?2 AND {_HAS_LENGTH} THEN ?3 ELSE ?4 END
             WHERE reason IS NULL AND (embedder <> ?1 OR (dimensions <> ?2 AND {_HAS_LENGTH}))""",
        (embedder, dimensions, DIMENSION_MISMATCH, OTHER_EMBEDDER),
    )
    db.executemany("UPDATE placed SET reason = ?2 WHERE reason IS NULL AND flaw = ?1", list(FLAWS.items()))
    return Choice(embedder=str(embedder), dimensions=None if dimensions is None else int(str(dimensions)))


def _most(db: apsw.Connection, column: str, where: str, *values: object) -> object:
    query = f"""SELECT {column} FROM placed WHERE reason IS NULL AND {where}
                 GROUP BY {column} ORDER BY count(*) DESC, min(row) LIMIT 1"""
    found: object = db.execute(query, values).get
    return found


def _bodies(db: apsw.Connection, root: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield the size of the body of every searched document whose file is there, and whether it is the one it had."""
    query = "SELECT d.id, d.md_path, d.md_sha FROM doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
    for doc, path, sha256 in list(db.execute(query)):
        place = inside(root, str(path))
        with contextlib.suppress(OSError):
            body = None if place is None else body_of(place)
            if body is not None:
                yield str(doc), body.size, body.sha256 == str(sha256).lower()


def inside(root: Path, path: str) -> Path | None:
    """Return where a file of a KB is; None where its path is none in the KB's folders of files, or leads out of it."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and not set(part) & {"\\", "\0"} for part in parts)
    if not is_plain or len(parts) < 2 or parts[0] not in (MARKDOWN, RAW):
        return None
    place = root.joinpath(*parts)
    return place if links.are_links_followed() or not links.leads_outside(root, place) else None


#: Reasons of rows of which a report tells nothing but how many they are: they may be of documents that are hidden.
_UNNAMED = frozenset({Verdict.NOT_VISIBLE, UNMAPPED, ROW_UNREADABLE})
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
    with durable.temporary_folder(work) as folder, database.mirrored(path, TABLES) as mirror:
        _demand_room(folder, path.stat().st_size)
        choice = choose(mirror, path.parent, scope)
        place = folder / "chunks.sqlite"
        with sqlite.open_writable(place, create=True) as db:
            # It is thrown away whatever happens.
            db.execute("PRAGMA journal_mode = OFF").fetchall()
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"CREATE TABLE chunks ({_COLUMNS})")
            with sqlite.transaction(db), read_redb(path, on_damage=lambda _: None, state=mirror.state) as file:
                if database.CHUNKS in file.tables:
                    _write(db, file.raw_rows(database.CHUNKS), mirror.db)
        yield Chunks(
            path=place,
            choice=choice,
            damaged_pages=mirror.damaged_pages,
            lost=mirror.tables[database.CHUNKS].lost,
        )


def _demand_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NotEnoughSpace(path=folder, needed=format_bytes(needed), free=format_bytes(free))


def _write(db: apsw.Connection, chunks: Iterator[tuple[bytes, bytes]], mirror: apsw.Connection) -> None:
    waiting: list[tuple[Any, ...]] = []
    unreadable = int(str(mirror.execute("SELECT coalesce(max(row), 0) FROM placed").get))
    for _, value in chunks:
        try:
            chunk = database.decode_chunk(value)
            placed: Any = mirror.execute(_PLACE, (chunk.id, chunk.doc_id)).fetchone()
        except msgspec.MsgspecError:
            placed = None
        if placed is None:
            unreadable += 1
            waiting.append((unreadable, None, *[None] * 7, ROW_UNREADABLE))
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
        _insert(db, [(number, None, None, *[None] * 6, ROW_UNREADABLE)])


def _insert(db: apsw.Connection, waiting: list[tuple[Any, ...]]) -> None:
    columns = "rowid, id, doc_id, seq, title, path, source, body, vector, reason"
    db.executemany(f"INSERT INTO chunks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", waiting)
    waiting.clear()


def _carried(chunk: database.Chunk, reason: Any) -> tuple[str | None, bytes | str | None, Any]:
    """Return the text, the vector and the reason of a chunk's row."""
    if reason is not None:
        return (chunk.indexed_text if reason in OF_VECTOR else None), None, reason
    return chunk.indexed_text, _vector(chunk), None


def _vector(chunk: database.Chunk) -> bytes | str | None:
    """Return a vector as a migration takes it: text where it is not one of numbers, None where it is empty."""
    try:
        return float32_bytes(chunk.vector) or None
    except NotNumbers:
        return bytes(chunk.vector)[:20].decode("utf-8", "replace")
