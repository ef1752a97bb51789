"""Writes the chunks of a KB as a table for migration and export (``docs/formats/rsclaw.md``, "What is carried").

A row has the embedded text and the vector as float32. A skipped row has a reason and no vector; it has its text only if
the reason concerns the vector alone.
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
from regraft.disk import links, scratch, sqlite
from regraft.errors import NotEnoughSpace
from regraft.formats.redb import read_redb
from regraft.formats.rsclaw import database, documents
from regraft.formats.rsclaw.database import ACTIVE, MARKDOWN, RAW, Mirror
from regraft.formats.rsclaw.documents import ExclusionReason, Scope, read_body
from regraft.formats.rsclaw.vectors import NotNumbers, VectorFlaw, float32_bytes
from regraft.formats.vector_table import VectorTable
from regraft.text import format_bytes

#: Provider of the models that a KB's embedders become, and name of its base.
PROVIDER, NAME = "rsclaw", "rsclaw"
#: A KB has no id of its own: its legacy id, and the id of its base, are constants.
LEGACY_ID = "rsclaw"
BASE_ID = identity.base_id(LEGACY_ID)
#: Tables that :func:`choose_chunks` needs.
TABLES = (database.DOCS, database.LATEST, database.CHUNKS)
#: Reasons for skipping a chunk.
UNMAPPED, RANGE_OUTSIDE = "unmapped_loader", "range_outside"
#: The row of the chunk or of its document is malformed or lost.
ROW_UNREADABLE = "row_unreadable"
OTHER_EMBEDDER, DIMENSION_MISMATCH = "other_embedder", "dimension_mismatch"
#: Reason for each flaw of a vector. A vector of zeros is migrated unchanged.
FLAW_REASONS = {
    VectorFlaw.EMPTY: "missing_vector_payload",
    VectorFlaw.NOT_NUMBERS: "unsupported_vector_encoding",
    VectorFlaw.NOT_FINITE: "non_finite_vector",
}
#: Reasons that concern only the vector: the text can be migrated.
VECTOR_REASONS = frozenset({OTHER_EMBEDDER, DIMENSION_MISMATCH, *FLAW_REASONS.values()})


class VectorChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding model (embedder) whose vectors are migrated, and their dimensions; None if no chunk is."""

    embedder: str | None = None
    dimensions: int | None = None


#: SQL: the vector is an array of numbers, so its length is meaningful.
_HAS_LENGTH = f"coalesce(flaw NOT IN ('{VectorFlaw.EMPTY}', '{VectorFlaw.NOT_NUMBERS}'), 1)"


def choose_chunks(mirror: Mirror, root: Path, scope: Scope) -> VectorChoice:
    """Decide for every chunk whether it is migrated, in the temporary table ``placed`` (``id, row, reason``).

    ``row`` numbers the chunks in migration order: by document, then by ``seq``. The temporary table ``body`` (``doc_id,
    size, is_same``) holds the body length of each searched document whose file exists, and whether its hash matches the
    document's.

    Args:
        mirror: mirror of the database with at least :data:`TABLES`.
        root: directory of the KB.
        scope: the callers; documents that they may not see are skipped.
    """
    db = mirror.db
    documents.select_documents(mirror, scope)
    db.execute("CREATE TEMP TABLE body (doc_id TEXT PRIMARY KEY, size INTEGER, is_same INTEGER)")
    db.executemany("INSERT INTO body VALUES (?, ?, ?)", _read_bodies(db, root))
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
            *(ACTIVE, ExclusionReason.TOMBSTONED, RANGE_OUTSIDE),
        ),
    )
    db.execute("CREATE UNIQUE INDEX temp.placed_id ON placed (id)")
    return _choose_vectors(db)


def _choose_vectors(db: apsw.Connection) -> VectorChoice:
    """Choose the most frequent embedder and dimensions; record why chunks with others, or with a flaw, are skipped."""
    embedder = _most_frequent(db, "embedder", "1")
    if embedder is None:
        return VectorChoice()
    dimensions = _most_frequent(db, "dimensions", f"embedder = ?1 AND {_HAS_LENGTH}", embedder)
    db.execute(
        f"""UPDATE placed SET reason = CASE WHEN dimensions <> ?2 AND {_HAS_LENGTH} THEN ?3 ELSE ?4 END
             WHERE reason IS NULL AND (embedder <> ?1 OR (dimensions <> ?2 AND {_HAS_LENGTH}))""",
        (embedder, dimensions, DIMENSION_MISMATCH, OTHER_EMBEDDER),
    )
    db.executemany("UPDATE placed SET reason = ?2 WHERE reason IS NULL AND flaw = ?1", list(FLAW_REASONS.items()))
    return VectorChoice(embedder=str(embedder), dimensions=None if dimensions is None else int(str(dimensions)))


def _most_frequent(db: apsw.Connection, column: str, condition: str, *values: object) -> object:
    """Return the most frequent value of a column in ``placed``, among the migrated rows that meet a condition.

    ``values`` are the parameters of the SQL condition. None if there is no such row.
    """
    query = f"""SELECT {column} FROM placed WHERE reason IS NULL AND {condition}
                 GROUP BY {column} ORDER BY count(*) DESC, min(row) LIMIT 1"""
    found: object = db.execute(query, values).get
    return found


def _read_bodies(db: apsw.Connection, root: Path) -> Iterator[tuple[str, int, bool]]:
    """Yield (document id, size of its body, whether the hash matches) of each searched document with a file.

    ``db`` is the mirror of the database, ``root`` the directory of the knowledge base.
    """
    query = "SELECT d.id, d.md_path, d.md_sha FROM doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
    for doc, path, sha256 in list(db.execute(query)):
        file = resolve_kb_file(root, str(path))
        with contextlib.suppress(OSError):
            body = None if file is None else read_body(file)
            if body is not None:
                yield str(doc), body.size, body.sha256 == str(sha256).lower()


def resolve_kb_file(root: Path, path: str) -> Path | None:
    """Return the path of a file of a KB (knowledge base), or None if it is in none of the file directories.

    ``path`` is relative to the directory ``root`` of the KB, as stored in the database.
    """
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and not set(part) & {"\\", "\0"} for part in parts)
    if not is_plain or len(parts) < 2 or parts[0] not in (MARKDOWN, RAW):
        return None
    file = root.joinpath(*parts)
    return file if links.are_links_followed() or not links.leads_outside(root, file) else None


#: Reasons that a report only counts: the chunk may belong to a hidden document.
_UNNAMED = frozenset({ExclusionReason.NOT_VISIBLE, UNMAPPED, ROW_UNREADABLE})
#: Layout of the table that :func:`write_chunk_table` writes.
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


class ChunkTable(msgspec.Struct, frozen=True, kw_only=True):
    """The chunks of a KB in a temporary file."""

    path: Path
    choice: VectorChoice
    damaged_pages: int
    #: Number of chunks lost in damaged pages.
    lost: int


#: Row number and reason of a chunk, and title, file and source of its document.
_PLACE = f"""SELECT p.row, p.reason, d.title, d.md_path, {documents.SOURCE_SQL}
               FROM placed p LEFT JOIN doc d ON d.id = ?2 WHERE p.id = ?1"""


@contextmanager
def write_chunk_table(path: Path, work: Path | None, scope: Scope) -> Iterator[ChunkTable]:
    """Write the chunks of a KB to a temporary file with the table :data:`TABLE`; it is deleted at the end.

    Args:
        path: database of the KB.
        work: directory of the temporary file (default: the system's).
        scope: the callers; documents that they may not see are skipped.

    Raises:
        RedbError: the database is in use, of another format, or completely damaged.
        NotEnoughSpace: not enough free disk space.
        OSError: the database cannot be read, or the file cannot be written.
    """
    with scratch.temporary_folder(work) as folder, database.open_mirror(path, TABLES) as mirror:
        needed, free = path.stat().st_size, shutil.disk_usage(folder).free
        if free < needed:
            raise NotEnoughSpace(path=folder, needed=format_bytes(needed), free=format_bytes(free))
        choice = choose_chunks(mirror, path.parent, scope)
        table_path = folder / "chunks.sqlite"
        with sqlite.open_writable(table_path, create=True) as db:
            # The file is temporary, so it needs no durability.
            db.execute("PRAGMA journal_mode = OFF").fetchall()
            db.execute("PRAGMA synchronous = OFF")
            db.execute(f"CREATE TABLE chunks ({_COLUMNS})")
            with sqlite.transaction(db), read_redb(path, on_damage=lambda _: None, state=mirror.state) as file:
                if database.CHUNKS in file.tables:
                    _write(db, file.raw_rows(database.CHUNKS), mirror.db)
        yield ChunkTable(
            path=table_path,
            choice=choice,
            damaged_pages=mirror.damaged_pages,
            lost=mirror.tables[database.CHUNKS].lost,
        )


def _write(db: apsw.Connection, chunks: Iterator[tuple[bytes, bytes]], mirror: apsw.Connection) -> None:
    """Write all chunks as rows of the chunk table; unreadable and missing ones as rows with a reason.

    Args:
        db: database with the chunk table.
        chunks: key and value of each stored chunk.
        mirror: tables of the first reading, with the decisions of :func:`choose_chunks`.
    """
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
            text = chunk.indexed_text if reason is None or reason in VECTOR_REASONS else None
            vector = _convert_vector(chunk) if reason is None else None
            waiting.append((row, key, doc, chunk.seq, *about, text, vector, reason))
        if len(waiting) == _BATCH:
            _insert(db, waiting)
    _insert(db, waiting)
    _add_missing(db, mirror, unreadable)


def _add_missing(db: apsw.Connection, mirror: apsw.Connection, last: int) -> None:
    """Add a row without content for every chunk that the first reading of the KB had and the second has not.

    Args:
        db: database with the chunk table.
        mirror: tables of the first reading.
        last: highest row number so far.
    """
    rows_of_first: Any = mirror.execute("SELECT row FROM placed ORDER BY row")
    missing = (
        row for (row,) in rows_of_first if db.execute("SELECT 1 FROM chunks WHERE rowid = ?", (row,)).get is None
    )
    for number, _ in enumerate(missing, last + 1):
        _insert(db, [(number, None, None, *[None] * 6, ROW_UNREADABLE)])


def _insert(db: apsw.Connection, waiting: list[tuple[Any, ...]]) -> None:
    """Insert the waiting rows into the chunk table and empty the list."""
    columns = "rowid, id, doc_id, seq, title, path, source, body, vector, reason"
    db.executemany(f"INSERT INTO chunks ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", waiting)
    waiting.clear()


def _convert_vector(chunk: database.Chunk) -> bytes | str | None:
    """Return the vector of a chunk as float32 bytes; None if it is empty.

    If it is not an array of numbers, the beginning of the JSON is returned as text.
    """
    try:
        return float32_bytes(chunk.vector) or None
    except NotNumbers:
        return bytes(chunk.vector)[:20].decode("utf-8", "replace")
