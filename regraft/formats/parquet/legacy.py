"""The rows of a v1 vector file for a Parquet file (``docs/formats/parquet.md``, "The legacy table")."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from regraft import sqlite
from regraft.formats.parquet.columns import UnitRow
from regraft.formats.parquet.metadata import AboutBase
from regraft.formats.parquet.stored import BaseLook
from regraft.formats.vector_table import decoder
from regraft.text import whole

_QUERY = """SELECT {texts}, vector FROM vectors NOT INDEXED ORDER BY rowid"""


def rows(path: Path, base: AboutBase, look: BaseLook) -> Iterator[UnitRow]:
    """Stream the rows of a v1 vector file in their order; a vector of another length than most is None.

    Raises:
        apsw.Error: it is damaged.
    """
    numbers: Counter[str | None] = Counter()
    base_name = whole(base.name)
    with sqlite.reading(path) as db:
        text_of = decoder(db)
        there = {str(row[1]) for row in db.execute("PRAGMA table_info('vectors')")}
        columns = (name if name in there else "NULL" for name in ("id", "uniqueLoaderId", "source", "pageContent"))
        texts = ", ".join(f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" for name in columns)
        for *raws, vector in db.execute(_QUERY.format(texts=texts)):
            row_id, loader, source, text = map(text_of, raws)
            usable = isinstance(vector, bytes) and len(vector) == look.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=loader,
                path=None,
                source=source,
                unit_index=numbers[loader],
                char_start=None,
                char_end=None,
                text=text,
                content_hash=None,
                body_hash=None if text is None else hashlib.sha256(text.encode()).hexdigest(),
                unit_id=row_id,
                title=None,
                locator_json=None,
                content=None,
                vector=vector if usable else None,
            )
            numbers[loader] += 1
