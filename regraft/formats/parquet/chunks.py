"""The chunks of a KB of rsclaw for a Parquet file (``docs/formats/parquet.md``, "Chunks of rsclaw")."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import apsw

from regraft import sqlite
from regraft.formats.parquet.columns import UnitRow
from regraft.formats.parquet.metadata import AboutBase
from regraft.formats.parquet.stored import BaseLook
from regraft.formats.rsclaw import carrying, chunk_table
from regraft.formats.rsclaw.chunk_table import Chunks
from regraft.formats.rsclaw.scope import parsed
from regraft.located import Located

_QUERY = """SELECT id, doc_id, seq, title, path, source, body, vector FROM chunks WHERE reason IS NULL ORDER BY rowid"""
_REASONS = "SELECT reason, count(*) FROM chunks WHERE reason IS NOT NULL GROUP BY 1 ORDER BY 1"


def written(source: Located, visible_to: tuple[str, ...]) -> AbstractContextManager[Chunks]:
    """Lay the chunks of a KB out as a table, as :func:`regraft.formats.rsclaw.chunk_table.written` does.

    Raises:
        WrongUsage: somebody is named in another form.
        RedbError, NotEnoughSpace, OSError
    """
    return chunk_table.written(source.path, None, parsed(visible_to, "--visible-to"))


def about(chunks: Chunks) -> AboutBase:
    """Return what a file says of the base that a KB becomes."""
    choice = chunks.choice
    model = None if choice.embedder is None else f"{carrying.PROVIDER}::{choice.embedder}"
    return AboutBase(id=carrying.BASE_ID, name=carrying.NAME, model=model, dimensions=choice.dimensions, index=True)


def look(chunks: Chunks) -> BaseLook:
    """Count the chunks, and those that are not carried by their reason."""
    with sqlite.reading(chunks.path) as db:
        bodies: Any = db.execute("SELECT count(*) FROM chunks").get
        skipped: list[Any] = db.execute(_REASONS).fetchall()
    dimensions = chunks.choice.dimensions
    return BaseLook(vector_bytes=None if dimensions is None else 4 * dimensions, bodies=bodies, skipped=dict(skipped))


def rows(path: Path, base: AboutBase, look: BaseLook) -> Iterator[UnitRow]:
    """Stream the chunks that are carried, in the order in which a migration carries them.

    Raises:
        apsw.Error: the table cannot be read.
    """
    with sqlite.reading(path) as db:
        for row in db.execute(_QUERY):
            yield _row(row, base, look.vector_bytes)


def _row(row: tuple[apsw.SQLiteValue, ...], base: AboutBase, vector_bytes: int | None) -> UnitRow:
    key, doc, seq, title, path, source, body, vector = row
    text = str(body)
    return UnitRow(
        base=base.id,
        base_name=base.name,
        item=str(doc),
        path=None if path is None else str(path),
        source=None if source is None else str(source),
        unit_index=int(str(seq)),
        char_start=None,
        char_end=None,
        text=text,
        content_hash=None,
        body_hash=hashlib.sha256(text.encode()).hexdigest(),
        unit_id=str(key),
        title=None if title is None else str(title),
        locator_json=None,
        content=None,
        vector=vector if isinstance(vector, bytes) and len(vector) == vector_bytes else None,
    )
