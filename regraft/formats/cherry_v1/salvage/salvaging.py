"""A damaged vector file becomes one that SQLite reads: the rows that prove themselves, and the others with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import apsw
import msgspec

from regraft import sqlite
from regraft.formats.cherry_v1.embedjs import VECTORS
from regraft.formats.cherry_v1.salvage import scratch, verdicts
from regraft.formats.cherry_v1.salvage.rows import SHAPES, TEXT_INDEX
from regraft.formats.salvage_tally import SalvageTally
from regraft.formats.sqlite_pages import Origin, PageFile, Reading, Refusal
from regraft.formats.vector_survey import StoreProblem
from regraft.language import tr
from regraft.ledger import durable
from regraft.records import replace
from regraft.report import salvage_notices
from regraft.room import demand_room

#: How the temporary file is read.
TABLE = replace(VECTORS, reason="reason")
#: A row takes at least so many bytes.
_LEAST_ROW = 16
#: Places without a row that were rows of the table.
_WERE_ROWS = (Refusal.CELL, Refusal.CUT, Refusal.RECORD)


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a damaged file: ``path`` is a temporary file with :data:`TABLE`, None where only counted."""

    path: Path | None
    tally: SalvageTally


@contextmanager
def salvaged(
    path: Path,
    work: Path | None = None,
    *,
    known: Collection[str] = (),
    dimensions: int | None = None,
    keep: bool = True,
) -> Iterator[Salvaged]:
    """Read a damaged vector file page by page, and give what is left of it as long as the context is open.

    Args:
        path: the file; it is only read.
        work: folder for temporary files (default: the system's).
        known: loader ids that the state of v1 names.
        dimensions: those of the vectors, as the state says.
        keep: whether the rows are wanted, and not only their number.

    Raises:
        StoreProblem: nothing of it is in the form of a SQLite file.
        WorkFolderTooSmall: there is no room for the rows.
        apsw.Error, OSError: it cannot be read, or the temporary files cannot be written.
    """
    loaders = {loader.encode("utf-8", "surrogatepass") for loader in known}
    stated = None if dimensions is None else 4 * dimensions
    with ExitStack() as stack:
        folder = stack.enter_context(durable.temporary_folder(work))
        if keep:
            demand_room(folder, 2 * path.stat().st_size)
        try:
            file = stack.enter_context(PageFile(path))
        except ValueError as error:
            raise StoreProblem(tr("holds nothing of a SQLite file")) from error
        reading = Reading(file, SHAPES)
        place = folder / "salvaged.sqlite"
        with sqlite.writing(place, create=True) as db, _transaction(db):
            keys = scratch.fill(db, reading, loaders, keep=keep)
            # The table has the key on its texts, unless the schema is there and says otherwise.
            is_keyed = TEXT_INDEX in reading.roots or "vectors" not in reading.roots
            counts = verdicts.judge(db, keys, stated, unique_texts=is_keyed)
            _name_refused(db)
            tally = _tally(db, reading, deleted=counts["deleted"], is_exact=scratch.IDS in keys.whole)
            if keep:
                _write(db)
        yield Salvaged(path=place if keep else None, tally=tally)


@contextmanager
def _transaction(db: apsw.Connection) -> Iterator[None]:
    """Fill the file in one go; it is gone after a power cut, with the run that it was made for, and need not last."""
    db.pragma("synchronous", "OFF")
    with sqlite.transaction(db):
        yield


def _name_refused(db: apsw.Connection) -> None:
    """Add the rows of which only a key of an index is left, and name those that stay as the index does."""
    db.execute(
        """INSERT INTO found (strength, number, reason)
           SELECT 0, number, ? FROM key
            WHERE strength <= (SELECT min(strength) FROM key) AND strength < 2 AND is_sound
              AND number NOT IN (SELECT number FROM found) GROUP BY number""",
        (salvage_notices.ROW_LOST,),
    )
    db.execute(
        """UPDATE found SET loader = NULL, id = k.key FROM key k
            WHERE reason IS NOT NULL AND k.kind = ? AND k.strength < 2 AND k.number = found.number""",
        (scratch.IDS,),
    )


def _tally(db: apsw.Connection, reading: Reading, *, deleted: int, is_exact: bool) -> SalvageTally:
    refused: Counter[str] = Counter()
    weaker: Counter[str] = Counter()
    rows = 0
    origins = tuple(Origin)
    for reason, strength, count in db.execute("SELECT reason, strength, count(*) FROM found GROUP BY 1, 2"):
        if reason is not None:
            refused[str(reason)] += int(str(count))
            continue
        rows += int(str(count))
        if strength:
            weaker[origins[int(str(strength))].value] += int(str(count))
    file, counts = reading.file, reading.counts
    # Without an index as a whole, rows of which nothing is left are counted where they should be.
    nameless = sum(counts.refused["vectors", refusal] for refusal in _WERE_ROWS)
    nameless += min(max(0, reading.coverage["vectors"].missing), file.size // _LEAST_ROW)
    nameless = 0 if is_exact else max(0, nameless - refused[salvage_notices.ROW_LOST])
    return SalvageTally(
        rows=rows,
        about=rows + refused.total() + nameless,
        is_exact=is_exact,
        refused=dict(sorted(refused.items())),
        weaker=dict(weaker),
        deleted=deleted,
        pages=max(file.pages, file.stated),
        pages_read=counts.pages.total() + counts.overflow + counts.inner + counts.free,
        page_bytes=file.page_size,
    )


#: The loader id in the id of a row.
_LOADER = "substr(rtrim(CAST(id AS TEXT), '0123456789'), 1, length(rtrim(CAST(id AS TEXT), '0123456789')) - 1)"


def _write(db: apsw.Connection) -> None:
    """Write the rows in the order of their numbers; of those that stay only what names them."""
    db.execute(
        "CREATE TABLE vectors (id TEXT, pageContent TEXT, uniqueLoaderId TEXT, source TEXT, vector BLOB,"
        " metadata TEXT, reason TEXT)"
    )
    db.execute(
        f"""INSERT INTO vectors (rowid, id, pageContent, uniqueLoaderId, source, vector, metadata, reason)
            SELECT number, CAST(id AS TEXT), CAST(text AS TEXT), CAST(loader AS TEXT), CAST(source AS TEXT), vector,
                   CAST(metadata AS TEXT), NULL
              FROM found WHERE reason IS NULL
             UNION ALL
            SELECT number, CAST(id AS TEXT), NULL, {_LOADER}, NULL, NULL, NULL, reason
              FROM found WHERE reason IS NOT NULL
             ORDER BY number"""
    )
    db.execute("DROP TABLE found")
