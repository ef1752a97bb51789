"""Which chunks of a KB are carried, and why the others are not (``docs/formats/rsclaw.md``, "What is carried").

All of it is asked in SQL, of the tables that :func:`regraft.formats.rsclaw.database.mirrored` gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from regraft import identity, links
from regraft.formats.rsclaw import rows, selection
from regraft.formats.rsclaw.database import MARKDOWN, RAW, Mirror
from regraft.formats.rsclaw.markdown import body_of
from regraft.formats.rsclaw.rows import ACTIVE
from regraft.formats.rsclaw.scope import Scope
from regraft.formats.rsclaw.selection import Verdict
from regraft.formats.rsclaw.vectors import Flaw

#: The provider of the models that a KB's embedders become, and what its base is called.
PROVIDER, NAME = "rsclaw", "rsclaw"
#: The id of a KB, which has none of its own, and that of the base that it becomes: they hang on nothing that may go.
LEGACY_ID = "rsclaw"
BASE_ID = identity.base_id(LEGACY_ID)
#: The tables that :func:`choose` needs.
TABLES = (rows.DOCS, rows.LATEST, rows.CHUNKS)
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
            UNMAPPED if mirror.is_whole(rows.DOCS) else ROW_UNREADABLE,
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
    return place if links.are_followed() or not links.leads_out(root, place) else None
