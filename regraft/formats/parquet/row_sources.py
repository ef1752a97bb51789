"""Read rows for a Parquet file from a v2 index, a v1 vector file, or rsclaw's chunks (``docs/formats/parquet.md``)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from regraft.disk import sqlite
from regraft.disk.untrusted_sqlite import find_rowid_column
from regraft.formats import json_text, table_integrity
from regraft.formats.cherry_v2.index.bulk import BODY_SEPARATOR
from regraft.formats.cherry_v2.index.full_text import ROWS_CACHE_KIB
from regraft.formats.cherry_v2.index.schema import (
    choose_vector_length,
    count_bodies_of_other_length,
    count_vector_lengths,
)
from regraft.formats.large_text import LARGE_BYTES, LargeText
from regraft.formats.parquet.unit_file import BaseMetadata, EmptyMaterial, UnitRow
from regraft.formats.rsclaw import chunks as rsclaw_chunks
from regraft.formats.rsclaw.chunks import ChunkTable
from regraft.formats.rsclaw.documents import parse_scope
from regraft.formats.vector_survey import StoreProblem
from regraft.formats.vector_table import make_text_decoder
from regraft.language import tr
from regraft.stores.systems import Located
from regraft.text import decode_utf8, replace_surrogates

_TABLES = ("content", "material", "search_unit", "search_text", "embedding")
_TEXT = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) END"
_IS_LARGE = f"(typeof(t.text) = 'text' AND octet_length(t.text) > {LARGE_BYTES})"
_SMALL = f"CASE WHEN NOT {_IS_LARGE} THEN {_TEXT.format('t.text')} END"
_INTEGER = "CASE typeof({0}) WHEN 'integer' THEN {0} END"


@dataclass
class BaseSummary:
    """Result of a first pass over a base's file: rows that cannot be exported, and facts needed while streaming."""

    #: Most common vector length; None without vectors.
    vector_bytes: int | None = None
    bodies: int = 0
    #: Number of rows that no exported row can represent, by the finding that ``check`` reports.
    left_out: dict[str, int] = field(default_factory=dict)
    #: Number of bodies without an exported row, by reason code.
    skipped: dict[str, int] = field(default_factory=dict)
    #: Materials without units.
    bare: list[EmptyMaterial] = field(default_factory=list)
    #: Ids of materials whose content is not their bodies joined by a blank line.
    own_content: set[str] = field(default_factory=set)
    #: Damage that ended the pass, or None.
    damage: str | None = None


def read_base_id(path: Path) -> str | None:
    """Read the base id from an index; None if it has none.

    Raises:
        apsw.Error, OSError: the file is not an index or is damaged.
    """
    with sqlite.open_readonly(path) as db:
        rows: list[Any] = db.execute("SELECT base_id FROM meta").fetchall()
    return rows[0][0] if rows and isinstance(rows[0][0], str) else None


def summarize_index(path: Path, dimensions: int | None = None) -> BaseSummary:
    """Read an index once, except its vectors.

    Args:
        path: the index file.
        dimensions: dimensions in the catalog; without them the most common vector length is used.

    Raises:
        StoreProblem: a column hides the row ids.
        apsw.Error, OSError: the file is not an index, or its rows cannot be counted because of damage.
    """
    found = BaseSummary()
    with sqlite.open_readonly(path) as db:
        odd = find_rowid_column(db, _TABLES)
        if odd is not None:
            raise StoreProblem(tr("its column {odd} hides the row ids", odd=odd))
        found.bodies = db.execute("SELECT count(*) FROM search_text NOT INDEXED").get
        counts = {
            "body.orphan": "search_text WHERE target_id NOT IN (SELECT unit_id FROM search_unit)",
            "unit.no-body": "search_unit WHERE unit_id NOT IN (SELECT target_id FROM search_text)",
            "embedding.orphan": "embedding WHERE embedding_text_hash NOT IN"
            " (SELECT embedding_text_hash FROM search_text)",
            "content.orphan": "content WHERE content_hash NOT IN (SELECT content_hash FROM search_unit)"
            " AND content_hash NOT IN (SELECT ifnull(current_content_hash, '') FROM material)",
        }
        try:
            lengths = count_vector_lengths(db)
            if lengths:
                # If all vectors have one length, that length is exported, whatever the catalog says.
                found.vector_bytes = choose_vector_length(lengths, None if len(lengths) == 1 else dimensions)
                if others := count_bodies_of_other_length(db, found.vector_bytes):
                    found.left_out["embedding.length"] = others
            for name, what in counts.items():
                if count := db.execute(f"SELECT count(*) FROM {what}").get:
                    found.left_out[name] = count
            _summarize_materials(db, found)
            # Rows are read through indexes: a missing index entry would silently lose a unit or vector. Contents are
            # not checked because they follow from the texts.
            found.damage = table_integrity.find_inconsistency(db, (name for name in _TABLES if name != "content"))
        except apsw.Error as error:
            # The rows, or some of them, may still be intact.
            found.damage = str(error)
    return found


def _summarize_materials(db: apsw.Connection, found: BaseSummary) -> None:
    materials = db.execute(
        f"SELECT {_text('material_id')}, {_text('relative_path')}, current_content_hash FROM material ORDER BY rowid"
    )
    for raw_id, raw_path, content_hash in materials:
        material = decode_utf8(raw_id or b"")
        bodies: list[Any] = db.execute(
            # CROSS JOIN forces the units first; otherwise every material would scan all bodies of the index.
            "SELECT t.rowid, u.content_hash FROM search_unit u CROSS JOIN search_text t"
            " ON t.target_type = 'search_unit' AND t.target_id = u.unit_id"
            " WHERE u.material_id = ? ORDER BY u.unit_index",
            (material,),
        ).fetchall()
        if not bodies:
            content = _content(db, content_hash)
            found.bare.append(EmptyMaterial(material, decode_utf8(raw_path or b""), content))
            continue
        # Hash the bodies joined by a blank line, holding one of them in memory at a time and no large one.
        joined = hashlib.sha256()
        for number, (rowid, _) in enumerate(bodies):
            if number:
                joined.update(BODY_SEPARATOR.encode())
            query = f"SELECT {_SMALL}, {_IS_LARGE} FROM search_text t WHERE t.rowid = ?"
            [(small, is_large)] = db.execute(query, (rowid,))
            large = LargeText(db=db, table="search_text", column="text", rowid=rowid)
            for piece in large.pieces() if is_large else (decode_utf8(small or b"").encode(),):
                joined.update(piece)
        if joined.hexdigest() != bodies[0][1]:
            found.own_content.add(material)


def _text(column: str) -> str:
    return _TEXT.format(column)


def _content(db: apsw.Connection, content_hash: Any) -> str | None:
    rows: list[Any] = db.execute(
        f"SELECT {_text('text')} FROM content WHERE content_hash = ?", (content_hash,)
    ).fetchall()
    return None if not rows or rows[0][0] is None else decode_utf8(rows[0][0])


def _large_content(db: apsw.Connection, content_hash: Any) -> str | bytes | None:
    """Read a content, a large one as UTF-8 bytes."""
    is_large = f"typeof(text) = 'text' AND octet_length(text) > {LARGE_BYTES}"
    query = f"SELECT rowid FROM content WHERE content_hash = ? AND {is_large}"
    found: list[Any] = db.execute(query, (content_hash,)).fetchall()
    for (rowid,) in found:
        return LargeText(db=db, table="content", column="text", rowid=rowid).utf8()
    return _content(db, content_hash)


def read_item_sources(items: list[dict[str, Any]] | None) -> dict[str, str]:
    """Return the ``source`` of catalog items by item id."""
    found = {}
    for item in items or ():
        try:
            source = json_text.loads(item["data"])["source"]
        except (ValueError, TypeError, KeyError):
            continue
        if isinstance(source, str) and isinstance(item.get("id"), str):
            found[item["id"]] = replace_surrogates(source)
    return found


def _units_query(db: apsw.Connection) -> str:
    texts = ("u.material_id", "m.relative_path", "u.content_hash", "t.embedding_text_hash", "u.unit_id")
    columns = ", ".join(_text(name) for name in (*texts, "u.title", "u.locator_json"))
    numbers = ", ".join(_INTEGER.format(f"u.{name}") for name in ("unit_index", "char_start", "char_end"))
    known = {str(row[1]) for row in db.execute("PRAGMA table_info('search_text')")}
    order = "t.fts_rowid, t.rowid" if "fts_rowid" in known else "t.rowid"
    return f"""SELECT {columns}, {numbers}, e.vector_blob, {_SMALL}, CASE WHEN {_IS_LARGE} THEN t.rowid END
                 FROM search_text t
           CROSS JOIN search_unit u ON u.unit_id = t.target_id
                 LEFT JOIN material m ON m.material_id = u.material_id
                 LEFT JOIN embedding e ON e.embedding_text_hash = t.embedding_text_hash
                ORDER BY {order}"""


def read_index_rows(path: Path, base: BaseMetadata, found: BaseSummary) -> Iterator[UnitRow]:
    """Stream the units of an index ordered by ``fts_rowid`` (in version 1: by row id).

    A vector that is not a BLOB of the most common length becomes None.

    Raises:
        apsw.Error: damage was found while reading.
    """
    own = set(found.own_content)
    sources = read_item_sources(base.items)
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        # Units and vectors are looked up by hash, so access is random.
        db.execute(f"PRAGMA cache_size = -{ROWS_CACHE_KIB}")
        for row in db.execute(_units_query(db)):
            item, place, content_hash, body_hash, unit, title, locator = (
                None if raw is None else decode_utf8(raw) for raw in row[:7]
            )
            index, start, end, vector, small, large = row[7:]
            content: str | bytes | None = None
            text: str | bytes | None = None if small is None else decode_utf8(small)
            if large is not None:
                # UTF-8 takes less memory than a Python string.
                text = LargeText(db=db, table="search_text", column="text", rowid=large).utf8()
            if item in own:
                own.discard(item)
                content = _large_content(db, content_hash)
            usable = isinstance(vector, bytes) and len(vector) == found.vector_bytes
            yield UnitRow(
                base=base.id,
                base_name=base_name,
                item=item,
                path=place,
                source=sources.get(item or ""),
                unit_index=index,
                char_start=start,
                char_end=end,
                text=text,
                content_hash=content_hash,
                body_hash=body_hash,
                unit_id=unit,
                title=title,
                locator_json=locator,
                content=content,
                vector=vector if usable else None,
            )
            text = small = content = None


# v1 vector files ("The legacy table").


_V1_ROWS_QUERY = """SELECT {texts}, vector FROM vectors NOT INDEXED ORDER BY rowid"""


def read_v1_rows(path: Path, base: BaseMetadata, look: BaseSummary) -> Iterator[UnitRow]:
    """Stream the rows of a v1 vector file in order. A vector that does not have the most common length becomes None.

    Raises:
        apsw.Error: the file is damaged.
    """
    numbers: Counter[str | None] = Counter()
    base_name = replace_surrogates(base.name)
    with sqlite.open_readonly(path) as db:
        text_of = make_text_decoder(db)
        there = {str(row[1]) for row in db.execute("PRAGMA table_info('vectors')")}
        columns = (name if name in there else "NULL" for name in ("id", "uniqueLoaderId", "source", "pageContent"))
        texts = ", ".join(f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) END" for name in columns)
        for *raws, vector in db.execute(_V1_ROWS_QUERY.format(texts=texts)):
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


# Chunks of a knowledge base of rsclaw ("Chunks of rsclaw").


_CHUNKS_QUERY = (
    """SELECT id, doc_id, seq, title, path, source, body, vector FROM chunks WHERE reason IS NULL ORDER BY rowid"""
)
_REASONS = "SELECT reason, count(*) FROM chunks WHERE reason IS NOT NULL GROUP BY 1 ORDER BY 1"


def open_chunks(source: Located, visible_to: tuple[str, ...]) -> AbstractContextManager[ChunkTable]:
    """Write the chunks of a knowledge base to a temporary table, by :func:`regraft.formats.rsclaw.chunk_table.written`.

    Raises:
        WrongUsage: an entry of ``visible_to`` is malformed.
        RedbError, NotEnoughSpace, OSError
    """
    return rsclaw_chunks.write_chunk_table(source.path, None, parse_scope(visible_to, "--visible-to"))


def describe_base(chunks: ChunkTable) -> BaseMetadata:
    """Return the metadata of the base that represents a knowledge base."""
    choice = chunks.choice
    model = None if choice.embedder is None else f"{rsclaw_chunks.PROVIDER}::{choice.embedder}"
    return BaseMetadata(
        id=rsclaw_chunks.BASE_ID, name=rsclaw_chunks.NAME, model=model, dimensions=choice.dimensions, index=True
    )


def summarize_chunks(chunks: ChunkTable) -> BaseSummary:
    """Count the chunks, and those that are not exported by reason code."""
    with sqlite.open_readonly(chunks.path) as db:
        bodies: Any = db.execute("SELECT count(*) FROM chunks").get
        skipped: list[Any] = db.execute(_REASONS).fetchall()
    dimensions = chunks.choice.dimensions
    return BaseSummary(
        vector_bytes=None if dimensions is None else 4 * dimensions, bodies=bodies, skipped=dict(skipped)
    )


def read_chunk_rows(path: Path, base: BaseMetadata, look: BaseSummary) -> Iterator[UnitRow]:
    """Stream the exported chunks in the order in which a migration writes them.

    Raises:
        apsw.Error: the table cannot be read.
    """
    with sqlite.open_readonly(path) as db:
        for row in db.execute(_CHUNKS_QUERY):
            yield _row(row, base, look.vector_bytes)


def _row(row: tuple[apsw.SQLiteValue, ...], base: BaseMetadata, vector_bytes: int | None) -> UnitRow:
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
