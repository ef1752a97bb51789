"""Which chunks of a KB are carried, and why the others are not (``docs/formats/rsclaw.md``, "What is carried").

All of it is asked in SQL, of the tables that :func:`regraft.formats.rsclaw.database.mirrored` gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw

from regraft import identity, links
from regraft.formats.rsclaw import rows, selection
from regraft.formats.rsclaw.database import MARKDOWN, RAW
from regraft.formats.rsclaw.markdown import body_of
from regraft.formats.rsclaw.rows import ACTIVE
from regraft.formats.rsclaw.scope import Scope
from regraft.formats.rsclaw.selection import Verdict

#: The provider of the models that a KB's embedders become, and what its base is called.
PROVIDER, NAME = "rsclaw", "rsclaw"
#: The tables that :func:`choose` needs.
TABLES = (rows.DOCS, rows.LATEST, rows.CHUNKS)
#: Why single chunks are not carried.
UNMAPPED, RANGE_OUTSIDE = "unmapped_loader", "range_outside"
OTHER_EMBEDDER, DIMENSION_MISMATCH = "other_embedder", "dimension_mismatch"
#: Reasons that are about the vector alone: the text can be carried.
OF_VECTOR = frozenset({OTHER_EMBEDDER, DIMENSION_MISMATCH})


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whose vectors are carried, and how many numbers these have; None where no chunk is carried."""

    embedder: str | None = None
    dimensions: int | None = None


def legacy_id(db: apsw.Connection) -> str:
    """Return the id of a KB: that of its first document, since it has none of its own; empty where it has none."""
    first: object = db.execute("SELECT min(id) FROM doc").get
    return "" if first is None else str(first)


def base_id(legacy: str) -> str:
    """Return the id of the base that a KB becomes."""
    return identity.base_id(f"{PROVIDER}:{legacy}")


def choose(db: apsw.Connection, root: Path, scope: Scope) -> Choice:
    """Decide for every chunk whether it is carried: into the temporary table ``placed`` (``id, row, reason``).

    ``row`` numbers chunks in the order in which they are carried: that of documents, and in each that of ``seq``.

    Args:
        db: the tables.
        root: the folder of the KB.
        scope: who may see what is carried.
    """
    selection.judge(db, scope)
    db.execute("CREATE TEMP TABLE body (doc_id TEXT PRIMARY KEY, size INTEGER)")
    db.executemany("INSERT INTO body VALUES (?, ?)", _body_sizes(db, root))
    db.execute(
        """CREATE TEMP TABLE placed AS
           SELECT c.id, row_number() OVER (ORDER BY coalesce(v.place, 1 << 62), c.doc_id, c.seq, c.id) AS row,
                  CASE WHEN v.doc_id IS NULL THEN ?1
                       WHEN v.reason IS NOT NULL THEN v.reason
                       WHEN c.status <> ?2 THEN ?3
                       WHEN c.first < 0 OR c.last < c.first OR c.last > coalesce(b.size, c.last) THEN ?4 END AS reason,
                  c.embedder, c.dimensions
             FROM chunk c LEFT JOIN verdict v ON v.doc_id = c.doc_id LEFT JOIN body b ON b.doc_id = c.doc_id""",
        (UNMAPPED, ACTIVE, Verdict.TOMBSTONED, RANGE_OUTSIDE),
    )
    db.execute("CREATE UNIQUE INDEX temp.placed_id ON placed (id)")
    return _with_reasons_of_vectors(db)


def _with_reasons_of_vectors(db: apsw.Connection) -> Choice:
    """Choose the embedder of most chunks that are carried, and give the others their reason."""
    embedder = _most(db, "embedder", "1")
    if embedder is None:
        return Choice()
    dimensions = _most(db, "dimensions", "embedder = ?1 AND dimensions > 0", embedder)
    db.execute(
        """UPDATE placed SET reason = CASE WHEN dimensions IS NOT ?2 AND dimensions > 0 THEN ?3 ELSE ?4 END
            WHERE reason IS NULL AND (embedder <> ?1 OR (dimensions <> ?2 AND dimensions > 0))""",
        (embedder, dimensions, DIMENSION_MISMATCH, OTHER_EMBEDDER),
    )
    return Choice(embedder=str(embedder), dimensions=None if dimensions is None else int(str(dimensions)))


def _most(db: apsw.Connection, column: str, where: str, *values: object) -> object:
    query = f"""SELECT {column} FROM placed WHERE reason IS NULL AND {where}
                 GROUP BY {column} ORDER BY count(*) DESC, min(row) LIMIT 1"""
    found: object = db.execute(query, values).get
    return found


def _body_sizes(db: apsw.Connection, root: Path) -> Iterator[tuple[str, int]]:
    """Yield the size of the body of every searched document whose file is the one that its ranges are of."""
    query = "SELECT d.id, d.md_path, d.md_sha FROM doc d JOIN verdict v ON v.doc_id = d.id WHERE v.reason IS NULL"
    for doc, path, sha256 in list(db.execute(query)):
        place = inside(root, str(path))
        with contextlib.suppress(OSError):
            body = None if place is None else body_of(place)
            if body is not None and body.sha256 == sha256:
                yield str(doc), body.size


def inside(root: Path, path: str) -> Path | None:
    """Return where a file of a KB is; None where its path is none in the KB's folders of files, or leads out of it."""
    parts = path.split("/")
    is_plain = all(part not in ("", ".", "..") and not set(part) & {"\\", "\0"} for part in parts)
    if not is_plain or len(parts) < 2 or parts[0] not in (MARKDOWN, RAW):
        return None
    place = root.joinpath(*parts)
    return place if links.are_followed() or not links.leads_out(root, place) else None
